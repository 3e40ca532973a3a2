use std::time::Duration;

use base::levels::{Credits, Level, Levels, Rate};
use base::{Instant, Prng};

use super::*;
use crate::waits::{Reason, Waits};

const T: Duration = Duration::from_millis(10);

fn at(interval: u64) -> Instant {
    Instant(interval * 10_000_000)
}

/// Milliseconds: the intervals of accounts.
fn ms(ms: u64) -> Instant {
    Instant(ms * 1_000_000)
}

fn iops(iops: u64) -> Rate {
    Rate { iops, bytes_per_sec: 0 }
}

fn base(iops: u64, bytes_per_sec: u64, credits: Credits) -> Allowance {
    let levels = Levels { base: Rate { iops, bytes_per_sec }, burst: Rate::default(), credits };
    Allowance::new(levels, T, 1, at(0))
}

/// Requests that are started on base and beyond, when they come as fast as they may.
fn started(allowance: &mut Allowance, intervals: std::ops::Range<u64>, bytes: u64) -> [u64; 2] {
    let mut count = [0; 2];
    for interval in intervals {
        while let Ok(level) = allowance.plan(at(interval)) {
            if level == Level::Burst && allowance.levels().credits.percent == 0 {
                break;
            }
            allowance.draw(bytes, level);
            count[usize::from(level == Level::Burst)] += 1;
            allowance.audit().unwrap();
        }
    }
    count
}

#[test]
fn rates_hold_even_below_one_operation_in_an_interval() {
    for iops in [1, 7, 50, 99, 1000, 50_000] {
        let [count, _] = started(&mut base(iops, 0, Credits::default()), 0..1000, 4096);
        assert!(count >= 10 * iops && count <= 10 * iops + 1 + iops / 100, "{iops}: {count}");
    }
    let [count, _] = started(&mut base(0, 1_000_000, Credits::default()), 0..1000, 65_536);
    assert!((152..=154).contains(&count), "{count}");
    // The tighter of the two.
    let [count, _] = started(&mut base(1000, 1_000_000, Credits::default()), 0..1000, 65_536);
    assert!((152..=154).contains(&count), "{count}");
}

#[test]
fn what_is_not_used_is_gone_or_saved_for_bursts() {
    let mut plain = base(1000, 0, Credits::default());
    assert_eq!(started(&mut plain, 500..501, 512), [10, 0]);
    let mut saving = base(1000, 0, Credits { cap_seconds: 2, percent: 100 });
    assert_eq!(started(&mut saving, 0..1, 512), [10, 0], "at first nothing is saved");
    assert_eq!(started(&mut saving, 100..101, 512), [10, 990], "a base of ten, whatever was saved");
    assert_eq!(started(&mut saving, 10_000..10_001, 512), [10, 2000], "no more than the cap");
    let held = saving.plan(at(10_000)).unwrap_err();
    assert_eq!(held, Held { reason: Reason::BaseLevel, until: at(10_001) }, "who saves bursts on what is saved");
    let mut half = base(1000, 0, Credits { cap_seconds: 100, percent: 50 });
    let [count, burst] = started(&mut half, 100..101, 512);
    assert!(count == 10 && (490..=500).contains(&burst), "{burst}");
}

#[test]
fn the_burst_level_bounds_base_and_burst_together() {
    let levels = Levels { base: iops(1000), burst: iops(3000), credits: Credits::default() };
    let mut allowance = Allowance::new(levels, T, 1, at(0));
    let mut count = [0; 2];
    while let Ok(level) = allowance.plan(at(0)) {
        allowance.draw(4096, level);
        count[usize::from(level == Level::Burst)] += 1;
    }
    assert_eq!(count, [10, 20]);
    assert_eq!(allowance.plan(at(0)), Err(Held { reason: Reason::BurstLevel, until: at(1) }));
    assert!(Allowance::new(Levels::default(), T, 1, at(0)).has_burst(at(0)), "without levels there is no bound");
    // A debt of 100 intervals.
    let levels = Levels { burst: Rate { iops: 0, bytes_per_sec: 1_000_000 }, ..Levels::default() };
    let mut allowance = Allowance::new(levels, T, 1, at(0));
    allowance.draw(1_005_000, Level::Burst);
    assert_eq!(allowance.plan(at(0)).unwrap_err().until, at(100));
    assert!(allowance.plan(at(99)).is_err() && allowance.plan(at(100)).is_ok());
}

#[test]
fn what_is_saved_survives_other_levels_and_is_not_refilled_by_them() {
    let credits = Credits { cap_seconds: 10, percent: 100 };
    let mut allowance = base(1000, 0, credits);
    assert!(allowance.plan(at(201)).is_ok());
    assert_eq!(allowance.saved().0, 2010);
    allowance.change(Levels { base: iops(100), burst: iops(5000), credits }, at(201));
    assert_eq!(allowance.saved().0, 1000, "the cap is lower now");
    allowance.change(Levels { base: iops(100), ..Levels::default() }, at(201));
    allowance.change(Levels { base: iops(1000), burst: Rate::default(), credits }, at(201));
    assert_eq!((allowance.saved().0, allowance.audit()), (0, Ok(())));
}

/// The audit itself: who is given too much is found out.
#[test]
fn an_audit_notices_what_no_level_gives() {
    let levels = Levels { base: iops(1000), burst: iops(2000), credits: Credits { cap_seconds: 1, percent: 10 } };
    let new = || Allowance::new(levels, T, 1, at(0));
    let mut allowance = new();
    (0..21).for_each(|_| allowance.draw(512, Level::Burst));
    assert_eq!(allowance.audit().unwrap_err(), "20000000 credits were had, and 2000000 could be saved");
    let mut allowance = new();
    (0..22).for_each(|_| allowance.draw(512, Level::Base));
    assert!(allowance.audit().unwrap_err().contains("of the burst level were drawn, and 20000000 were given"));
    let mut allowance = Allowance::new(Levels { burst: Rate::default(), ..levels }, T, 1, at(0));
    (0..22).for_each(|_| allowance.draw(512, Level::Base));
    assert!(allowance.audit().unwrap_err().contains("of the base level were drawn, and 10000000 were given"));
}

/// An agent with some loops, each with a line of one volume.
struct Agent {
    account: Account,
    tenant: Option<Allowance>,
    loops: Vec<Lines<u64>>,
    started: Vec<[u64; 2]>,
    asked: u64,
    next: u64,
}

impl Agent {
    fn new(levels: Levels, loops: usize) -> Agent {
        let mut lines: Vec<Lines<u64>> = (0..loops).map(|_| Lines::default()).collect();
        lines.iter_mut().for_each(|lines| assert_eq!(lines.add(true), 0));
        let account = Account::new(levels, loops, ms(0));
        Agent { account, tenant: None, loops: lines, started: vec![[0; 2]; loops], asked: 0, next: 0 }
    }

    fn count(&mut self, index: usize, level: Level) {
        self.started[index][usize::from(level != Level::Base)] += 1;
    }

    /// Whether it starts at once.
    fn submit(&mut self, now: Instant, index: usize, bytes: u64) -> bool {
        let (account, tenant, asked) = (&mut self.account, &mut self.tenant, &mut self.asked);
        let ask = |purse: &mut Purse| {
            *asked += 1;
            account.arrive(now, index, bytes, purse, tenant.as_mut())
        };
        self.next += 1;
        match self.loops[index].submit(now, 0, bytes, ask, || self.next) {
            Verdict::Start(level) => self.count(index, level),
            Verdict::Wait(_) => return false,
        }
        true
    }

    /// The tickets that one loop hands out.
    fn hand_out(&mut self, now: Instant, index: usize) -> Vec<u64> {
        let mut tickets = Vec::new();
        loop {
            let (account, tenant) = (&mut self.account, &mut self.tenant);
            let ask = |_: u32, bytes: u64, is_last: bool, purse: &mut Purse| {
                account.go_on(now, index, bytes, is_last, purse, tenant.as_mut())
            };
            let Some(grant) = self.loops[index].next_grant(now, ask) else { break };
            self.count(index, grant.level);
            tickets.push(grant.ticket);
        }
        tickets
    }

    fn audit(&self) -> usize {
        self.account.audit().unwrap();
        self.tenant.iter().for_each(|tenant| tenant.audit().unwrap());
        self.loops.iter().map(|lines| lines.audit().unwrap()).sum()
    }

    fn waits(&self) -> Waits {
        let mut all = Waits::default();
        self.loops.iter().for_each(|lines| all.add(&lines.status(0).0));
        all
    }
}

#[test]
fn a_volume_without_levels_is_not_counted() {
    let mut agent = Agent::new(Levels::default(), 1);
    agent.loops[0].set_bound(0, false);
    assert!((0..10_000).all(|_| agent.submit(ms(0), 0, 1 << 20)));
    assert_eq!((agent.asked, agent.loops[0].status(0)), (0, (Waits::default(), [0, 0])));
}

#[test]
fn requests_are_marked_and_what_is_beyond_the_burst_level_waits_in_its_order() {
    let mut agent = Agent::new(Levels { base: iops(1000), burst: iops(3000), ..Levels::default() }, 1);
    assert_eq!((0..100).filter(|_| agent.submit(ms(0), 0, 4096)).count(), 30, "ten milliseconds' worth");
    assert_eq!((agent.started[0], agent.audit()), ([10, 20], 70));
    assert_eq!(agent.loops[0].next_look(), Some(ms(1)));
    assert_eq!(agent.hand_out(ms(0), 0), []);
    assert_eq!(agent.hand_out(ms(1), 0), [31, 32, 33]);
    assert_eq!(agent.started[0], [11, 22], "one of base in each millisecond");
    assert!(!agent.submit(ms(2), 0, 4096), "who comes now is behind them");
    assert_eq!(agent.hand_out(ms(2), 0), [34, 35, 36]);
    let waits = agent.waits();
    assert_eq!((waits.of(Reason::BurstLevel).requests, waits.of(Reason::BurstLevel).now), (6, 65));
    // Levels that are taken away hold nobody any more.
    agent.account.change(Levels::default(), ms(2));
    assert_eq!((agent.hand_out(ms(12), 0).len(), agent.audit()), (65, 0));
    assert_eq!(agent.loops[0].next_look(), None, "nobody waits, and nothing is due");
}

#[test]
fn one_loop_takes_a_lock_for_few_of_its_requests_and_steals_nothing_from_another() {
    let mut agent = Agent::new(Levels { burst: iops(200_000), ..Levels::default() }, 2);
    // 100 requests in each millisecond on one loop, one on the other.
    for millisecond in 0..1000 {
        for n in 0..100 {
            let now = Instant(millisecond * 1_000_000 + n * 10_000);
            assert!(agent.submit(now, 0, 4096));
            if n == 50 {
                assert!(agent.submit(now, 1, 4096));
            }
        }
    }
    assert!(agent.asked < 15_000, "{} of 101000", agent.asked);
    assert_eq!(agent.audit(), 0);
}

/// However long it was idle, and whatever a loop had taken before.
#[test]
fn ten_milliseconds_of_a_level_may_start_at_once_and_no_more() {
    let mut agent = Agent::new(Levels { burst: iops(200_000), ..Levels::default() }, 2);
    for n in 0..150 {
        assert!(agent.submit(Instant(n * 10_000), 0, 512));
    }
    assert!(agent.asked < 100, "a part of a batch is left");
    assert_eq!((0..3000).filter(|_| agent.submit(ms(500), 0, 512)).count(), 2000);
}

#[test]
fn who_arrives_on_one_loop_is_behind_those_in_line_on_another() {
    let mut agent = Agent::new(Levels { burst: iops(1000), ..Levels::default() }, 2);
    assert_eq!((0..12).filter(|_| agent.submit(ms(0), 0, 512)).count(), 10);
    assert!(!agent.submit(ms(1), 1, 512), "something is there again, and not for him");
    assert_eq!((agent.hand_out(ms(2), 0), agent.hand_out(ms(2), 1)), (vec![11], vec![13]), "each gets a share");
}

#[test]
fn whoever_waits_looks_in_time_whether_levels_have_changed() {
    let bytes_per_sec = 1_000_000;
    let mut agent = Agent::new(Levels { burst: Rate { iops: 0, bytes_per_sec }, ..Levels::default() }, 1);
    assert!(agent.submit(ms(0), 0, 32 << 20) && !agent.submit(ms(0), 0, 512), "a debt of half a minute");
    agent.account.change(Levels { burst: Rate { iops: 0, bytes_per_sec: 2_000_000 }, ..Levels::default() }, ms(5));
    assert_eq!(agent.loops[0].next_look(), Some(ms(10)));
    assert_eq!(agent.hand_out(ms(10), 0).len(), 1, "who has other levels owes nothing");
}

/// What a volume gets in a second, of each loop, where every loop wants all of it, or some want less.
fn second_of_bursts(levels: Levels, loops: usize, wanted: &[u64], bytes: u64) -> Vec<u64> {
    let mut agent = Agent::new(levels, loops);
    for millisecond in 0..1000 {
        for (index, wanted) in wanted.iter().enumerate() {
            let now = ms(millisecond);
            agent.hand_out(now, index);
            let waiting = agent.loops[index].audit().unwrap() as u64;
            for _ in waiting..*wanted {
                agent.submit(now, index, bytes);
            }
        }
        agent.audit();
    }
    agent.started.iter().map(|[base, burst]| base + burst).collect()
}

#[test]
fn a_level_holds_over_all_loops_and_each_gets_a_share() {
    for (base, rate) in [(0, 300), (0, 5_000), (1_000, 5_000), (0, 100_000), (20_000, 100_000)] {
        let levels = Levels { base: iops(base), burst: iops(rate), ..Levels::default() };
        for loops in [1, 2, 3, 8] {
            let each = second_of_bursts(levels, loops, &vec![1000; loops], 4096);
            let all: u64 = each.iter().sum();
            assert!(all <= rate + rate / 100 + 1 && all + 1 >= rate * 99 / 100, "{rate}, {loops}: {each:?}");
            let fair = rate / loops as u64;
            assert!(each.iter().all(|one| (fair * 8 / 10..=fair * 12 / 10 + 10).contains(one)), "{rate}: {each:?}");
        }
    }
    // Who wants less than a share leaves the rest to the other one.
    let each = second_of_bursts(Levels { burst: iops(20_000), ..Levels::default() }, 2, &[1000, 2], 4096);
    assert!(each[1] >= 1900 && each[0] + each[1] >= 19_800, "{each:?}");
    // Requests that are more than an interval gives.
    let bytes_per_sec = 10_000_000;
    let levels = Levels { burst: Rate { iops: 0, bytes_per_sec }, ..Levels::default() };
    let each = second_of_bursts(levels, 2, &[4, 4], 1 << 20);
    assert!((9..=11).contains(&(each[0] + each[1])) && each[0].abs_diff(each[1]) <= 1, "{each:?}");
}

#[test]
fn a_loop_that_is_gone_keeps_nobody_waiting() {
    let mut agent = Agent::new(Levels { burst: iops(100), ..Levels::default() }, 2);
    assert!(agent.submit(ms(0), 0, 512));
    assert!(!agent.submit(ms(0), 0, 512) && !agent.submit(ms(0), 1, 512));
    // The second loop never looks again, nor leaves.
    let granted: Vec<u64> = (1..200).filter(|now| !agent.hand_out(ms(*now), 0).is_empty()).collect();
    assert_eq!(granted.len(), 1, "{granted:?}");
    assert!(agent.submit(ms(200), 0, 512));
    // One that leaves is not waited for.
    let mut agent = Agent::new(Levels { burst: iops(100), ..Levels::default() }, 2);
    assert!(agent.submit(ms(0), 1, 512) && !agent.submit(ms(0), 1, 512) && !agent.submit(ms(0), 0, 512));
    let purse = agent.loops[1].remove(0);
    agent.account.leave(ms(0), 1, purse, None);
    assert_eq!((agent.hand_out(ms(10), 0).len(), agent.loops[1].audit()), (1, Ok(0)));
}

#[test]
fn volumes_of_one_tenant_share_its_level() {
    let mut agent = Agent::new(Levels { base: iops(1000), ..Levels::default() }, 1);
    let bound = Levels { burst: iops(2000), ..Levels::default() };
    agent.tenant = Some(Allowance::new(bound, INTERVAL, DEPTH, ms(0)));
    // Another volume of it was there before.
    (0..15).for_each(|_| agent.tenant.as_mut().unwrap().draw(512, Level::Burst));
    assert_eq!((0..100).filter(|_| agent.submit(ms(0), 0, 512)).count(), 5);
    assert_eq!(agent.waits().of(Reason::TenantLevel).now, 95);
    assert_eq!((agent.hand_out(ms(1), 0).len(), agent.audit()), (2, 93));
}

/// Arrivals of any size on any loop, and levels that change: what must hold whatever happens.
#[test]
fn invariants_hold_under_random_load() {
    for seed in 0..150 {
        let mut prng = Prng::new(seed);
        let loops = prng.between(1, 4) as usize;
        let levels = random_levels(&mut prng);
        let mut agent = Agent::new(levels, loops);
        let (mut now, mut order) = (ms(1), vec![0; loops]);
        let (mut begun, mut bytes, mut largest) = (now, 0u64, 0u64);
        for _ in 0..2000 {
            let longest = if prng.one_in(100) { 100_000 } else { 400 };
            now = now + Duration::from_micros(prng.below(longest));
            let index = prng.below(loops as u64) as usize;
            for _ in 0..prng.below(6) {
                let len = 512 * prng.between(1, 64);
                let before = agent.loops[index].audit().unwrap();
                let starts = agent.submit(now, index, len);
                assert!(!(starts && before > 0), "seed {seed}: it overtook its line");
                (bytes, largest) = (bytes + if starts { len } else { 0 }, largest.max(len));
            }
            let waiting: usize = agent.audit();
            for ticket in agent.hand_out(now, index) {
                assert!(ticket > order[index], "seed {seed}: out of order");
                order[index] = ticket;
            }
            agent.audit();
            let due = agent.loops[index].next_look();
            assert!(due.is_none_or(|due| due > now && due <= now + T), "seed {seed}: {due:?} at {now:?}");
            if waiting == 0 && prng.one_in(200) {
                agent.account.change(random_levels(&mut prng), now);
                (begun, bytes) = (now, 0);
            }
            // What was started at once can be counted from outside.
            let burst = agent.account.levels().burst.bytes_per_sec;
            let span = (now - begun).as_secs_f64() + 0.012;
            assert!(burst == 0 || bytes as f64 <= span * burst as f64 + largest as f64, "seed {seed}: {bytes}");
        }
        // It all ends.
        for _ in 0..1_000_000 {
            let Some(look) = agent.loops.iter().filter_map(Lines::next_look).min() else { break };
            now = look.max(now);
            (0..loops).for_each(|index| drop(agent.hand_out(now, index)));
        }
        assert_eq!(agent.audit(), 0, "seed {seed}: somebody waits for ever");
    }
}

fn random_levels(prng: &mut Prng) -> Levels {
    let rate = |prng: &mut Prng| Rate {
        iops: if prng.one_in(2) { prng.between(100, 50_000) } else { 0 },
        bytes_per_sec: if prng.one_in(2) { prng.between(1_000_000, 500_000_000) } else { 0 },
    };
    let credits = match prng.one_in(3) {
        true => Credits { cap_seconds: prng.below(5) as u32, percent: prng.below(101) as u32 },
        false => Credits::default(),
    };
    Levels { base: rate(prng), burst: rate(prng), credits }
}
