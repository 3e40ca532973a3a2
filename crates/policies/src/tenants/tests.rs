//! The scheduler by itself: the paper's worked examples, and what holds however tenants behave.

use std::collections::VecDeque;
use std::time::Duration;

use base::{Instant, Prng};

use super::*;

const WINDOW: u64 = 1_000_000;

fn at(window: u64, ns: u64) -> Instant {
    Instant(window * WINDOW + ns)
}

/// A loop that has so many units of processor time in a window, and nothing else that is bounded.
fn settings(scheduling: Scheduling, units: f64) -> TenantsSettings {
    let mut per_second = Cost::UNLIMITED * 1000.0;
    per_second.0[0] = units * 1000.0;
    TenantsSettings { scheduling, per_second, adjusts: false, ..TenantsSettings::default() }
}

/// What was promised in units of a window.
fn base_of(units: f64) -> Promise {
    Promise { base: Some(units_of(units) * 1000.0), burst: None }
}

/// So many units of processor time.
fn units_of(units: f64) -> Cost {
    let mut cost = Cost::ZERO;
    cost.0[0] = units;
    cost
}

/// Tenants with a volume each; tickets say whose they are and when they came.
struct Bench {
    scheduler: Scheduler<(usize, Instant)>,
    volumes: Vec<VolumeNumber>,
    /// What was started of each: in all, and the sum of what it waited.
    started: Vec<u64>,
    waited_ns: Vec<u64>,
    /// What waits of each.
    in_line: Vec<usize>,
}

impl Bench {
    fn new(settings: TenantsSettings, promises: &[Promise]) -> Bench {
        let mut scheduler = Scheduler::new(settings, 1, Instant(0));
        let mut volumes = Vec::new();
        for (at, promise) in promises.iter().enumerate() {
            let tenant = scheduler.add_tenant(at as u64, *promise);
            volumes.push(scheduler.add_volume(tenant, 0, 1));
        }
        let count = promises.len();
        Bench { scheduler, volumes, started: vec![0; count], waited_ns: vec![0; count], in_line: vec![0; count] }
    }

    fn submit(&mut self, now: Instant, tenant: usize, cost: f64) -> bool {
        let verdict = self.scheduler.submit(now, self.volumes[tenant], units_of(cost), || (tenant, now));
        let starts = matches!(verdict, Verdict::Start { .. });
        self.started[tenant] += u64::from(starts);
        self.in_line[tenant] += usize::from(!starts);
        starts
    }

    /// All that may start now.
    fn grant(&mut self, now: Instant) -> Vec<usize> {
        let mut granted = Vec::new();
        while let Some(grant) = self.scheduler.next_grant(now) {
            let (tenant, came) = grant.ticket;
            self.started[tenant] += 1;
            self.waited_ns[tenant] += now.nanos_since(came);
            self.in_line[tenant] -= 1;
            granted.push(tenant);
        }
        self.scheduler.audit().unwrap();
        granted
    }

    /// Windows in which tenants keep so many requests of one unit each in flight, which are done at once.
    fn run(&mut self, windows: std::ops::Range<u64>, depths: &[usize]) -> Vec<u64> {
        let before = self.started.clone();
        for window in windows {
            for step in 0..10 {
                let now = at(window, step * WINDOW / 10);
                self.grant(now);
                for (tenant, depth) in depths.iter().enumerate() {
                    // Each has so many in a tenth of a window that could be done.
                    for _ in 0..*depth {
                        if self.in_line[tenant] < *depth {
                            self.submit(now, tenant, 1.0);
                        }
                    }
                }
            }
        }
        self.started.iter().zip(before).map(|(after, before)| after - before).collect()
    }
}

/// Figure 13: three tenants with one request in a window each. One is idle, one wants three: it gets one.
#[test]
fn base_gives_everybody_his_part_and_nobody_more() {
    let mut bench = Bench::new(settings(Scheduling::Base, 3.0), &[base_of(1.0); 3]);
    let now = at(1, 0);
    assert!(bench.submit(now, 0, 1.0));
    let second: Vec<bool> = (0..3).map(|_| bench.submit(now, 1, 1.0)).collect();
    assert_eq!(second, [true, false, false], "though a third of the window is idle");
    assert_eq!(bench.grant(at(2, 0)), [1]);
    assert_eq!(bench.grant(at(3, 0)), [1]);
}

/// Figure 14: the second bursts to three and comes first; the first one, within its base, waits for the next window.
#[test]
fn wild_uses_everything_and_delays_who_comes_after_the_burst() {
    let mut bench = Bench::new(settings(Scheduling::Wild, 3.0), &[base_of(1.0); 3]);
    let burst: Vec<bool> = (0..6).map(|_| bench.submit(at(1, 0), 1, 1.0)).collect();
    assert_eq!(burst, [true, true, true, false, false, false]);
    assert!(!bench.submit(at(1, 500_000), 0, 1.0), "within its base, and it has to wait");
    let next = bench.grant(at(2, 0));
    assert_eq!(next.len(), 3);
    assert!(next.contains(&0), "its base is its own in the next window: {next:?}");
}

/// Figure 15: the same with BIOS. What is idle is lent to who bursts, and the first has its own at once.
#[test]
fn bios_lends_what_is_idle_and_gives_the_base_back_at_once() {
    let promises = [base_of(7.0), base_of(130.0), base_of(130.0)];
    let mut bench = Bench::new(settings(Scheduling::Bios, 300.0), &promises);
    let alone = bench.run(1..200, &[0, 300, 0]);
    assert!(alone[1] >= 199 * 284 - 300, "{alone:?}: all but the reserve");
    for round in 0..20 {
        let window = 200 + round * 150;
        bench.run(window..window + 140, &[0, 300, 0]);
        // Who bursts has spent all that it was lent by now: the reserve is what there is.
        let now = at(window + 139, WINDOW - 1);
        assert!((0..7).all(|_| bench.submit(now, 0, 1.0)), "window {window}: what it was promised is there at once");
    }
    let status: Vec<TenantStatus> = bench.scheduler.status().collect();
    assert!(status[0].throttled == 0 && status[0].from_reserve > 0, "{:?}", status[0]);
}

/// And from what others have beyond their base, where that is not spent yet.
#[test]
fn who_comes_back_reclaims_what_is_lent() {
    let mut bench = Bench::new(settings(Scheduling::Bios, 300.0), &[base_of(100.0), base_of(100.0)]);
    bench.run(1..200, &[0, 300]);
    bench.grant(at(200, 0));
    bench.grant(at(201, 0));
    let started = (0..100).filter(|_| bench.submit(at(201, 10), 0, 1.0)).count();
    let status: Vec<TenantStatus> = bench.scheduler.status().collect();
    assert!(started == 100 && status[0].reclaimed > 80, "{started}: {:?}", status[0]);
}

/// Everybody is allocated bytes beyond his base, of which there is no end: nobody can give processor time for it.
#[test]
fn who_comes_back_reclaims_from_those_that_have_what_he_needs() {
    let mut moves = units_of(1.0);
    moves.set(Dimension::Ingress, 1e6);
    let small = Promise { base: Some(moves * 2000.0), burst: None };
    let promises: Vec<Promise> = [base_of(100.0); 2].into_iter().chain([small; 20]).collect();
    let mut bench = Bench::new(settings(Scheduling::Bios, 300.0), &promises);
    for window in 1..200 {
        bench.grant(at(window, 0));
        for tenant in 2..22 {
            let verdict = bench.scheduler.submit(at(window, 5), bench.volumes[tenant], moves, || (tenant, Instant(0)));
            assert!(matches!(verdict, Verdict::Start { .. }), "within its base, window {window}");
        }
        while bench.in_line[1] < 300 {
            bench.submit(at(window, 10), 1, 1.0);
        }
    }
    bench.grant(at(200, 0));
    bench.grant(at(201, 0));
    let started = (0..100).filter(|_| bench.submit(at(201, 10), 0, 1.0)).count();
    let status: Vec<TenantStatus> = bench.scheduler.status().collect();
    assert!(started == 100 && status[0].reclaimed > 80, "{started}: {:?}", status[0]);
}

/// What is left of the lent, and what is in the reserve, are too little each.
#[test]
fn who_comes_back_late_is_paid_for_by_a_donor_and_the_reserve_together() {
    let mut bench = Bench::new(settings(Scheduling::Bios, 100.0), &[base_of(30.0), base_of(30.0)]);
    bench.submit(at(1, 0), 0, 1.0);
    bench.run(1..200, &[0, 20]);
    let alone = bench.started[1];
    // It has 95 of a window, and leaves some.
    while bench.started[1] - alone < 92 {
        bench.submit(at(200, 0), 1, 1.0);
        bench.grant(at(200, 0));
    }
    assert!(bench.submit(at(200, 500_000), 0, 7.0), "3 are left of what is lent, and 5 in the reserve");
    bench.scheduler.audit().unwrap();
}

/// The same without recovery, and without the reserve: it is missed.
#[test]
fn without_recovery_who_comes_back_waits() {
    let settings = TenantsSettings { recovers: false, ..settings(Scheduling::Bios, 30.0) };
    let mut bench = Bench::new(settings, &[base_of(9.5); 3]);
    bench.run(1..300, &[1, 30, 0]);
    bench.run(300..450, &[0, 30, 0]);
    assert!(!bench.submit(at(450, 0), 0, 1.0));
}

#[test]
fn a_burst_beyond_the_base_neither_reclaims_nor_uses_the_reserve() {
    let mut bench = Bench::new(settings(Scheduling::Bios, 100.0), &[base_of(20.0), base_of(20.0)]);
    bench.run(1..300, &[0, 100]);
    let now = at(300, 10);
    let started = (0..50).filter(|_| bench.submit(now, 0, 1.0)).count();

    assert!((20..=21).contains(&started), "{started}: its base, and not one more");
}

/// Nobody who is within his base waits, whatever others do; and what is not used is not lost.
#[test]
fn bases_are_met_while_others_burst_and_nothing_is_wasted() {
    for seed in 0..20 {
        let mut prng = Prng::new(seed);
        let count = prng.between(2, 6) as usize;
        let promises: Vec<Promise> = (0..count).map(|_| base_of(95.0 / count as f64)).collect();
        let mut bench = Bench::new(settings(Scheduling::Bios, 100.0), &promises);
        // One is within its base at depth 1; the others burst.
        let depths: Vec<usize> = (0..count).map(|at| if at == 0 { 1 } else { prng.between(30, 60) as usize }).collect();
        let windows = 300;
        let done = bench.run(1..1 + windows, &depths);
        let status: Vec<TenantStatus> = bench.scheduler.status().collect();
        assert_eq!(status[0].throttled, 0, "seed {seed}: {:?}", status[0]);
        let all: u64 = done.iter().sum();
        // All but the reserve, and what who is within his base keeps though he does not use it: alpha lets go of that slowly.
        assert!(all >= windows * 86, "seed {seed}: {all} of {}", windows * 100);
        assert!(all <= windows * 101 + 200, "seed {seed}: {all}");
    }
}

/// To the last request, and with requests that come a little bunched: one too many in a window follows on one too few.
#[test]
fn who_asks_for_just_his_base_is_not_throttled() {
    let cost = 5_483.328;
    for bunched in [0, 1, 4] {
        let promises = [base_of(45.0 * cost), base_of(950_000.0 - 45.0 * cost)];
        let mut bench = Bench::new(settings(Scheduling::Bios, 1_000_000.0), &promises);
        for window in 1..500 {
            let count = if window % 2 == 0 { 45 + bunched } else { 45 - bunched };
            for step in 0..50 {
                let now = at(window, step * WINDOW / 50);
                bench.grant(now);
                if step < count {
                    bench.submit(now, 0, cost);
                }
                while bench.in_line[1] < 8 {
                    bench.submit(now, 1, 4_000.0);
                }
            }
        }
        let throttled = bench.scheduler.status().next().map(|tenant| tenant.throttled);
        assert_eq!(throttled, Some(0), "{bunched}");
    }
}

#[test]
fn wild_throttles_who_bios_does_not() {
    let mut bench = Bench::new(settings(Scheduling::Wild, 100.0), &[base_of(47.5), base_of(47.5)]);
    bench.run(1..300, &[1, 100]);
    let status: Vec<TenantStatus> = bench.scheduler.status().collect();
    assert!(status[0].throttled > 100, "{:?}", status[0]);
}

#[test]
fn a_burst_level_is_kept() {
    let capped = Promise { base: Some(units_of(10.0) * 1000.0), burst: Some(units_of(30.0) * 1000.0) };
    let mut bench = Bench::new(settings(Scheduling::Bios, 100.0), &[capped, base_of(10.0)]);
    let done = bench.run(1..201, &[90, 1]);
    assert!((5_900..=6_100).contains(&done[0]), "{done:?}");
}

/// One request may cost more than a tenant has in a window: it starts, and the debt is paid.
#[test]
fn a_large_request_starts_and_is_paid_for_later() {
    let mut bench = Bench::new(settings(Scheduling::Bios, 100.0), &[base_of(0.5), base_of(50.0)]);
    bench.run(1..200, &[0, 100]);
    // Half a request in a window: every second window one, and the first at once.
    let mut started = 0;
    let mut waits = false;
    for window in 200..1200 {
        let granted = bench.grant(at(window, 0));
        waits &= !granted.contains(&0);
        started += granted.iter().filter(|tenant| **tenant == 0).count();
        for _ in 0..100 {
            bench.submit(at(window, 1), 1, 1.0);
        }
        if !waits {
            match bench.submit(at(window, 2), 0, 1.0) {
                true => started += 1,
                false => waits = true,
            }
        }
    }
    assert!((480..=1000).contains(&started), "{started}: at least what it was promised");
}

#[test]
fn promises_beyond_what_there_is_are_scaled() {
    let mut bench = Bench::new(settings(Scheduling::Bios, 100.0), &[base_of(100.0), base_of(90.0)]);
    let done = bench.run(1..301, &[100, 100]);
    let share = done[0] as f64 / (done[0] + done[1]) as f64;
    assert!((0.45..0.6).contains(&share), "{done:?}");
    let status: Vec<TenantStatus> = bench.scheduler.status().collect();
    assert!((status[0].scaled - 0.5).abs() < 0.01, "{}", status[0].scaled);
}

/// Who was promised nothing is protected all the same from who bursts.
#[test]
fn without_promises_everybody_has_an_equal_part() {
    let mut bench = Bench::new(settings(Scheduling::Bios, 100.0), &[Promise::default(); 3]);
    let done = bench.run(1..301, &[1, 100, 0]);
    let status: Vec<TenantStatus> = bench.scheduler.status().collect();
    assert_eq!(status[0].throttled, 0);
    assert!(done[1] > 300 * 75, "{done:?}: what the others leave");
}

#[test]
fn a_single_tenant_is_not_held_up() {
    let mut bench = Bench::new(settings(Scheduling::Bios, 10.0), &[base_of(1.0)]);
    assert!((0..1000).all(|_| bench.submit(at(1, 0), 0, 1.0)));
    assert_eq!(bench.scheduler.next_look(at(1, 0)), None);
}

/// A limit that somebody has set holds for one, too, and nothing is kept for others then.
#[test]
fn a_limit_holds_for_a_single_tenant() {
    let mut limited = settings(Scheduling::Bios, 1e9);
    limited.per_second.set(Dimension::Software, 100.0 * 1000.0);
    let mut scheduler: Scheduler<()> = Scheduler::new(limited, 1, Instant(0));
    let tenant = scheduler.add_tenant(1, Promise::default());
    let volume = scheduler.add_volume(tenant, 1, 1);
    let mut started = 0;
    for window in 1..101 {
        while scheduler.next_grant(at(window, 0)).is_some() {
            started += 1;
        }
        for _ in 0..150 {
            let verdict = scheduler.submit(at(window, 1), volume, Cost([1.0, 0.0, 1.0, 1.0]), || ());
            started += u64::from(matches!(verdict, Verdict::Start { .. }));
        }
    }
    assert!((9_900..=10_100).contains(&started), "{started}");
}

/// Figure 8's point, and figure 16's: what one tenant takes of one dimension, another has of a second one. Also of what both
/// of them were promised, and one does not use.
#[test]
fn two_dimensions_are_used_at_once_unless_cost_is_a_scalar() {
    let run = |pricing, base: Option<f64>| {
        let mut settings = settings(Scheduling::Bios, 100.0);
        settings.per_second = Cost([100_000.0, 100_000.0, 1e18, 1e18]);
        settings.pricing = pricing;
        let mut scheduler: Scheduler<usize> = Scheduler::new(settings, 3, Instant(0));
        let small = Cost([1.0, 0.1, 0.0, 0.0]);
        let large = Cost([0.1, 1.0, 0.0, 0.0]);
        let promise = Promise { base: base.map(|base| Cost([base, base, 0.0, 0.0])), burst: None };
        let numbers = [0, 1].map(|key| {
            let tenant = scheduler.add_tenant(key, promise);
            scheduler.add_volume(tenant, 0, 1)
        });
        let mut done = 0;
        let mut in_line = [0usize; 2];
        for window in 1..300 {
            for tenant in std::iter::from_fn(|| scheduler.next_grant(at(window, 0)).map(|grant| grant.ticket)) {
                done += 1;
                in_line[tenant] -= 1;
            }
            for (tenant, cost) in [small, large].into_iter().enumerate() {
                let cost = if pricing == Pricing::Scalar { Cost([1.0, 1.0, 0.0, 0.0]) } else { cost };
                while in_line[tenant] < 200 {
                    match scheduler.submit(at(window, 1), numbers[tenant], cost, || tenant) {
                        Verdict::Start { .. } => done += 1,
                        Verdict::Wait => in_line[tenant] += 1,
                    }
                }
            }
        }
        done
    };
    for base in [Some(10_000.0), Some(45_000.0), None] {
        let (vector, scalar) = (run(Pricing::Vector, base), run(Pricing::Scalar, base));
        assert!(vector * 10 > scalar * 14, "{vector} against {scalar} where {base:?} was promised");
    }
}

/// Tenants come and go and do as they like: the books stay right, lines keep their order, and everybody who waits is
/// served in the end.
#[test]
fn whatever_tenants_do_everybody_is_served_in_order() {
    for seed in 0..60 {
        let mut prng = Prng::new(seed);
        let kinds = [Scheduling::Off, Scheduling::Wild, Scheduling::Base, Scheduling::Bios];
        let scheduling = kinds[prng.below(4) as usize];
        let settings = TenantsSettings { adjusts: prng.one_in(2), ..settings(scheduling, 50.0) };
        let mut scheduler: Scheduler<(u32, u64)> = Scheduler::new(settings, seed, Instant(0));
        let mut tenants: Vec<(u32, Vec<VolumeNumber>)> = Vec::new();
        let mut lines: base::Map<u32, VecDeque<u64>> = base::Map::default();
        let (mut now, mut serial, mut submitted, mut started) = (0, 0, 0u64, 0u64);
        for _ in 0..3_000 {
            let pause = if prng.one_in(50) { 300_000_000 } else { 200_000 };
            now += prng.below(pause);
            match prng.below(20) {
                0 if tenants.len() < 12 => {
                    let base = prng.one_in(2).then(|| units_of(prng.between(1, 40) as f64 * 1000.0));
                    let burst = prng.one_in(4).then(|| units_of(prng.between(1, 60) as f64 * 1000.0));
                    let tenant = scheduler.add_tenant(serial, Promise { base, burst });
                    let volumes = (0..prng.between(1, 3)).map(|key| scheduler.add_volume(tenant, key, 1 + key as u32));
                    tenants.push((tenant, volumes.collect()));
                }
                1 if !tenants.is_empty() => {
                    let at = prng.below(tenants.len() as u64) as usize;
                    if scheduler.remove_tenant(tenants[at].0) {
                        tenants.swap_remove(at);
                    }
                }
                2 if !tenants.is_empty() => {
                    let (tenant, _) = tenants[prng.below(tenants.len() as u64) as usize];
                    scheduler.set_promise(tenant, base_of(prng.between(1, 60) as f64));
                    scheduler.set_part(tenant, prng.between(1, 10) as f64 / 10.0);
                }
                3 => scheduler.on_delay(prng.below(100_000)),
                4 => scheduler.on_busy(1_000_000, prng.below(1_000_000)),
                _ if !tenants.is_empty() => {
                    let (_, volumes) = &tenants[prng.below(tenants.len() as u64) as usize];
                    let volume = volumes[prng.below(volumes.len() as u64) as usize];
                    serial += 1;
                    submitted += 1;
                    let most = if prng.one_in(10) { 300 } else { 5 };
                    let cost = units_of(prng.between(1, most) as f64);
                    match scheduler.submit(Instant(now), volume, cost, || (volume.tenant(), serial)) {
                        Verdict::Start { .. } => started += 1,
                        Verdict::Wait => lines.entry(volume.tenant()).or_default().push_back(serial),
                    }
                }
                _ => {}
            }
            for _ in 0..prng.below(30) {
                let Some(grant) = scheduler.next_grant(Instant(now)) else { break };
                let line = lines.get_mut(&grant.ticket.0).unwrap();
                let place = line.iter().position(|serial| *serial == grant.ticket.1).unwrap();
                line.remove(place);
                started += 1;
            }
            scheduler.audit().unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        }
        let mut looks = 0;
        while let Some(next) = scheduler.next_look(Instant(now)) {
            now = next.0.max(now);
            while scheduler.next_grant(Instant(now)).is_some() {
                started += 1;
            }
            looks += 1;
            assert!(looks < 1_000_000, "seed {seed}: {} of {submitted} were started", started);
        }
        assert_eq!(started, submitted, "seed {seed}, {scheduling:?}");
    }
}

#[test]
fn one_volume_does_not_stand_in_the_way_of_another_of_the_same_tenant() {
    let mut scheduler: Scheduler<u64> = Scheduler::new(settings(Scheduling::Bios, 20.0), 1, Instant(0));
    let tenant = scheduler.add_tenant(1, base_of(10.0));
    let other = scheduler.add_tenant(2, base_of(5.0));
    let volumes = [scheduler.add_volume(tenant, 1, 1), scheduler.add_volume(tenant, 2, 3)];
    let busy = scheduler.add_volume(other, 3, 1);
    for _ in 0..1000 {
        scheduler.submit(at(1, 0), volumes[0], units_of(1.0), || 0);
        scheduler.submit(at(1, 0), busy, units_of(1.0), || 9);
    }
    for _ in 0..100 {
        scheduler.submit(at(1, 0), volumes[1], units_of(1.0), || 1);
    }
    let mut done = [0; 10];
    for window in 2..8 {
        while let Some(grant) = scheduler.next_grant(at(window, 0)) {
            done[grant.ticket as usize] += 1;
        }
    }
    assert!(done[1] > 2 * done[0], "three for one: {done:?}");
    assert!(done[0] > 0 && done[9] > 0, "{done:?}");
}

/// The time of one look at 1,024 tenants is measured by `levee lab run osdi24/fig25`.
#[test]
fn an_idle_tenant_is_looked_at_no_more() {
    let mut bench = Bench::new(settings(Scheduling::Bios, 100.0), &[base_of(1.0); 50]);
    for tenant in 0..50 {
        bench.submit(at(1, 0), tenant, 1.0);
    }
    bench.grant(at(2, 0));
    assert_eq!(bench.scheduler.demands().count(), 50);
    bench.submit(at(2 + IDLE_WINDOWS, 0), 0, 1.0);
    bench.submit(at(4 + IDLE_WINDOWS, 0), 0, 1.0);
    assert_eq!(bench.scheduler.demands().count(), 1);
    assert_eq!(bench.scheduler.settings().window, Duration::from_millis(1));
}

#[test]
fn cost_follows_measured_time_only_where_it_is_to() {
    let ratio_of = |measures| {
        let settings = TenantsSettings { measures, ..settings(Scheduling::Bios, 100.0) };
        let mut scheduler: Scheduler<()> = Scheduler::new(settings, 1, Instant(0));
        let tenant = scheduler.add_tenant(1, Promise::default());
        let volume = scheduler.add_volume(tenant, 1, 1);
        for _ in 0..50 {
            scheduler.submit(Instant(0), volume, units_of(100.0), || ());
            scheduler.on_busy(1000, 1000);
        }
        scheduler.factors().1
    };
    assert!(ratio_of(true) > 5.0, "ten times what the profile says");
    assert_eq!(ratio_of(false), 1.0);
}

/// A profile that is twenty times too dear holds up nobody for long, who is bound by what somebody has set still is, and where
/// something was promised the profile holds.
#[test]
fn who_waits_for_an_idle_loop_gets_more_unless_that_is_not_what_binds_him() {
    let bounded = Promise { burst: base_of(20.0).base, ..base_of(20.0) };
    // Whether it is idle, what bounds the tenant, and how much starts in a hundred windows of 100, at least and at most.
    let cases = [
        (true, Promise::default(), 50_000, u64::MAX),
        (false, Promise::default(), 9_000, 10_500),
        (true, bounded, 1_500, 2_500),
        (true, base_of(50.0), 9_000, 10_500),
    ];
    for (is_idle, promise, least, most) in cases {
        let mut bench = Bench::new(settings(Scheduling::Bios, 100.0), &[promise, Promise::default()]);
        for window in 1..=100 {
            while bench.in_line[0] < 3_000 {
                bench.submit(at(window, 0), 0, 1.0);
            }
            // Else the first would be alone.
            bench.submit(at(window, 1), 1, 1.0);
            bench.scheduler.on_wait(WINDOW, if is_idle { WINDOW * 8 / 10 } else { 0 });
            bench.grant(at(window + 1, 0));
        }
        let started = bench.started[0];
        assert!((least..=most).contains(&started), "idle {is_idle}, {promise:?}: {started}");
    }
}
