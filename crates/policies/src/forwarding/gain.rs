//! Whether to spread bursts gains anything: found out by doing it at some times and not at others.
//!
//! **Intuition.** DiffForward (SIGMETRICS 2023) spreads every burst. Where the cards of servers are what is scarce, that pays: a log
//! on another server answers long before an owner does whose card is full. Where it is processors, or one disk behind all servers,
//! all of them together take longer, since each byte that is logged is written twice. An agent cannot see which of these a cluster
//! is. But it can spread whatever is a burst for a moment, and nothing in the next one, and see in which of them writes take longer.
//!
//! Moments are compared, and not writes of the same moment that went both ways: a log may answer sooner than the owner beside it
//! though each write that goes there makes all others slower, which such a comparison cannot see. It was tried, and spread half of a burst of
//! large writes where they took a quarter longer for it (bench/README.md, "What spreading costs").
//!
//! **Names.** A *period* is such a moment, in which all of a burst goes one [`Way`]; a write counts for the one in which it began.
//!
//! **Flow.** [`Gain::way`] says where a write goes, [`Gain::on_answer`] is told what came of it. A period that is over, with all its
//! answers, is added to those of its kind, and both kinds are compared: how long a write takes in each, and how sure that is. Some of
//! a burst take a hundred times what others take, and those of one moment have that in common, so it is periods that are taken for
//! independent of each other, not writes (a ratio estimate of a sample of clusters). What is within its own spread decides nothing.
//!
//! **Chosen** (the paper has nothing of it): a twentieth has to be gained, because what is in logs is carried home afterwards, which
//! is in no period. It begins as the paper has it, with bursts spread but for one period of eight, and stays so until it is sure that
//! this loses; from then on it has to be sure that it gains. What loses where servers have nothing to spare is a quarter of the time of
//! a write; what is lost where cards are full and a burst has its owner only is three times that time (docs/RESULTS.md). So the
//! other way is tried less, down to one period of 64, when enough of it were compared, and that is kept up, so that a change is
//! seen. Periods that are few are taken to differ among themselves as much as those that are many: of seven, the one that takes a hundred times
//! as long may be none; and as much as they would if both kinds took what the slower one does. A change is seen within minutes of bursts: what
//! was compared before it has to be forgotten first. Which period is of which kind is chance, so that nothing that comes in turns is taken for it. All volumes
//! of an agent share what was found: what is scarce is scarce for all of them, and a volume by itself has few bursts.

use std::collections::VecDeque;
use std::time::Duration;

use base::Instant;

/// Short, so that a burst is compared with itself; and longer than most writes take, that begin in one period and end in another.
const PERIOD: Duration = Duration::from_millis(20);
/// So many periods wait for their answers at most: whoever comes later counts as a period by itself.
const OPEN_MAX: usize = 64;
/// Periods are divided into so many parts.
const PARTS: u32 = 64;
/// Of these, the ones that go the other way: at first, and once enough of them were compared, if that seems to gain, and if it seems
/// to lose.
const TRIED: [u32; 3] = [8, 2, 1];
/// Fewer of either kind are not compared, so many are enough, and with so many of which nothing is sure it begins anew: some may be
/// from before a change.
const PERIODS: [f64; 3] = [6.0, 24.0, 128.0];
/// What is written in spread periods has to take less than this part of what it takes otherwise.
const GAINS: f64 = 0.95;
/// So many standard errors decide.
const SURE: f64 = 2.5;

/// Where a write of a burst goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// To the owner of its segment.
    Owner,
    /// To a log.
    Log,
}

impl Way {
    fn other(self) -> Way {
        match self {
            Way::Owner => Way::Log,
            Way::Log => Way::Owner,
        }
    }
}

/// Where a write goes, and the period for which it counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// See there.
    pub way: Way,
    period: u64,
}

/// See the module.
#[derive(Clone, PartialEq, Debug)]
pub struct Gain {
    /// Where bursts go, but for so many periods of [`PARTS`].
    usual: Way,
    tried: u32,
    /// Those whose answers are not all there, the present one last; the first one's number; and when the present one is over.
    open: VecDeque<Period>,
    first: u64,
    until: Instant,
    owner: Sample,
    log: Sample,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Period {
    way: Way,
    /// Writes that have no answer yet.
    under_way: u32,
    count: f64,
    seconds: f64,
}

/// Periods of one kind: sums of their writes, of the seconds that these took, and of the products of both.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Sample {
    periods: f64,
    count: f64,
    seconds: f64,
    count_squared: f64,
    product: f64,
    seconds_squared: f64,
}

impl Default for Gain {
    /// Nothing is known.
    fn default() -> Self {
        let (open, owner, log) = Default::default();
        Gain { usual: Way::Log, tried: TRIED[0], open, first: 0, until: Instant(0), owner, log }
    }
}

impl Gain {
    /// Where a write of a burst goes that comes now; `chance` is any number.
    pub fn way(&mut self, now: Instant, chance: u64) -> Chosen {
        if now >= self.until || self.open.is_empty() {
            let is_tried = chance % u64::from(PARTS) < u64::from(self.tried);
            let way = if is_tried { self.usual.other() } else { self.usual };
            self.open.push_back(Period { way, under_way: 0, count: 0.0, seconds: 0.0 });
            self.until = now + PERIOD;
            self.close();
        }
        let last = self.open.len() - 1;
        self.open[last].under_way += 1;
        Chosen { way: self.open[last].way, period: self.first + last as u64 }
    }

    /// A write was answered after so long, or nothing can be said of it.
    pub fn on_answer(&mut self, chosen: Chosen, took: Option<Duration>) {
        let seconds = took.map(|took| took.as_secs_f64());
        let open = chosen.period.checked_sub(self.first).and_then(|at| self.open.get_mut(at as usize));
        match (open, seconds) {
            (Some(period), _) => {
                period.under_way -= 1;
                period.count += if seconds.is_some() { 1.0 } else { 0.0 };
                period.seconds += seconds.unwrap_or(0.0);
            }
            (None, Some(seconds)) => self.sample(chosen.way).add(1.0, seconds),
            (None, None) => {}
        }
    }

    /// Of a hundred periods, those in which bursts are spread.
    pub fn percent(&self) -> u32 {
        let logged = if self.usual == Way::Log { PARTS - self.tried } else { self.tried };
        logged * 100 / PARTS
    }

    /// Adds up the periods that are over, and compares.
    fn close(&mut self) {
        while self.open.len() > 1 && (self.open[0].under_way == 0 || self.open.len() > OPEN_MAX) {
            let Some(Period { way, count, seconds, .. }) = self.open.pop_front() else { return };
            self.first += 1;
            if count > 0.0 {
                self.sample(way).add(count, seconds);
            }
        }
        let (owner, log) = (self.owner, self.log);
        let fewer = owner.periods.min(log.periods);
        if fewer < PERIODS[0] {
            return;
        }
        let (owner_takes, log_takes) = (GAINS * owner.mean(), log.mean());
        let variance = owner.relative_variance().max(log.relative_variance());
        let spread = owner_takes.max(log_takes) * (variance * (owner.periods.recip() + log.periods.recip())).sqrt();
        let is_sure = (log_takes - owner_takes).abs() >= SURE * spread;
        let better = if log_takes < owner_takes { Way::Log } else { Way::Owner };
        match (is_sure, better == self.usual) {
            (true, false) => (self.usual, self.tried) = (better, TRIED[0]),
            (true, true) => self.tried = TRIED[2],
            (false, seems_to_lose) if fewer >= PERIODS[1] => self.tried = TRIED[1 + usize::from(seems_to_lose)],
            (false, _) => {}
        }
        if is_sure || fewer >= PERIODS[2] {
            (self.owner, self.log) = Default::default();
        }
    }

    fn sample(&mut self, way: Way) -> &mut Sample {
        match way {
            Way::Owner => &mut self.owner,
            Way::Log => &mut self.log,
        }
    }
}

impl Sample {
    fn add(&mut self, count: f64, seconds: f64) {
        self.periods += 1.0;
        self.count += count;
        self.seconds += seconds;
        self.count_squared += count * count;
        self.product += count * seconds;
        self.seconds_squared += seconds * seconds;
    }

    /// What a write takes.
    fn mean(&self) -> f64 {
        self.seconds / self.count
    }

    /// How much periods differ in it: the variance of one, as a part of the square of that mean.
    fn relative_variance(&self) -> f64 {
        let mean = self.mean();
        let residuals = self.seconds_squared - 2.0 * mean * self.product + mean * mean * self.count_squared;
        residuals.max(0.0) * self.periods / (self.seconds * self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use base::Prng;

    use super::*;

    /// Lets a write of a burst come each millisecond for so long; `took` is what those of the period take, in microseconds. Gives how
    /// many of a hundred went to logs.
    fn run(gain: &mut Gain, from: u64, writes: u64, mut took: impl FnMut(Way) -> u64) -> u64 {
        let mut prng = Prng::new(from);
        let mut logged = 0;
        for ms in from..from + writes {
            let chosen = gain.way(Instant(ms * 1_000_000), prng.next_u64());
            logged += u64::from(chosen.way == Way::Log);
            gain.on_answer(chosen, Some(Duration::from_micros(took(chosen.way))));
        }
        logged * 100 / writes
    }

    #[test]
    fn what_loses_is_left_off_within_seconds_and_tried_again() {
        let mut gain = Gain::default();
        assert_eq!(gain.percent(), 87);
        let logged = run(&mut gain, 0, 3_000, |way| if way == Way::Log { 650 } else { 500 });
        assert!(logged < 60, "{logged}");
        run(&mut gain, 3_000, 20_000, |way| if way == Way::Log { 650 } else { 500 });
        assert_eq!(gain.percent(), 1, "one period of 64");
        let tried = run(&mut gain, 30_000, 100_000, |way| if way == Way::Log { 650 } else { 500 });
        assert!((1..=2).contains(&tried), "{tried}");
        // From now on a card is full.
        run(&mut gain, 200_000, 40_000, |way| if way == Way::Log { 500 } else { 5_000 });
        assert_eq!(gain.percent(), 98, "and one of 64 tells when it is not any more");
        run(&mut gain, 300_000, 200_000, |_| 500);
        assert_eq!(gain.percent(), 1, "as long is not enough for what comes after it");
    }

    /// A processor that all share, and other work beside it: each moment takes another time, and spread ones a quarter longer.
    #[test]
    fn what_loses_is_seen_through_what_differs_a_little() {
        for seed in 0..20 {
            let (mut gain, mut prng) = (Gain::default(), Prng::new(seed));
            let (mut so_far, mut moment) = (0, 0);
            let logged = run(&mut gain, seed, 60_000, |way| {
                if so_far % 20 == 0 {
                    moment = 250 + prng.next_u64() % 1_000;
                }
                so_far += 1;
                if way == Way::Log { moment * 5 / 4 } else { moment }
            });
            assert!(gain.percent() <= 12 && logged < 40, "{seed}: {} {logged}", gain.percent());
        }
    }

    /// What cannot be told apart is spread as in the paper; and what loses much is not, after long enough.
    #[test]
    fn bursts_that_differ_by_more_than_their_ways_are_not_judged_by_few() {
        for (owner, log) in [(100, 95), (100, 40), (40, 100)] {
            let mut spread = Vec::new();
            for seed in 0..20 {
                let (mut gain, mut prng) = (Gain::default(), Prng::new(seed));
                let (mut so_far, mut size) = (0, 1);
                run(&mut gain, seed, 200_000, |way| {
                    // Bursts of 50 writes, one of ten of them a hundred times as long as the others.
                    if so_far % 50 == 0 {
                        size = if prng.next_u64().is_multiple_of(10) { 100 } else { 1 };
                    }
                    so_far += 1;
                    size * if way == Way::Log { log } else { owner }
                });
                spread.push(gain.percent());
            }
            let few = spread.iter().filter(|percent| **percent <= 12).count();
            assert!(if owner > log { few == 0 } else { few >= 15 }, "{owner} and {log}: {spread:?}");
        }
    }

    /// What a log does to all others is seen, though each write of it is answered sooner than one of an owner beside it.
    #[test]
    fn all_of_a_period_counts() {
        let (mut gain, mut prng) = (Gain::default(), Prng::new(2));
        run(&mut gain, 0, 20_000, |way| {
            // One processor for all: more work is more time.
            let (owner, log) = if way == Way::Log { (300, 200) } else { (150, 100) };
            if prng.next_u64().is_multiple_of(2) { owner } else { log }
        });
        assert_eq!(gain.percent(), 1);
    }

    #[test]
    fn all_of_a_burst_goes_one_way_for_a_while() {
        let (mut gain, mut prng) = (Gain::default(), Prng::new(3));
        let ways: Vec<Way> = (0..1_000).map(|ms| gain.way(Instant(ms * 1_000_000), prng.next_u64()).way).collect();
        let changes: Vec<usize> = (1..ways.len()).filter(|at| ways[*at] != ways[at - 1]).collect();
        assert!((4..=24).contains(&changes.len()), "{changes:?}");
        assert!(changes.iter().all(|at| at.is_multiple_of(20)), "{changes:?}");
    }

    /// Answers that come late count for their period, those that never come for none, and what is kept is bounded.
    #[test]
    fn a_write_counts_for_the_period_in_which_it_began() {
        let (mut gain, mut prng) = (Gain::default(), Prng::new(4));
        let mut under_way = VecDeque::new();
        for ms in 0..100_000 {
            under_way.push_back(gain.way(Instant(ms * 1_000_000), prng.next_u64()));
            if under_way.len() > 100 {
                let chosen = under_way.pop_front().expect("there are some");
                let took = Duration::from_millis(if chosen.way == Way::Log { 130 } else { 100 });
                gain.on_answer(chosen, (!ms.is_multiple_of(7)).then_some(took));
            }
        }
        assert_eq!((gain.percent(), gain.open.len()), (1, 6));
        let lost: Vec<Chosen> =
            (100_000..200_000).map(|ms| gain.way(Instant(ms * 1_000_000), prng.next_u64())).collect();
        assert_eq!(gain.open.len(), OPEN_MAX);
        lost.into_iter().for_each(|chosen| gain.on_answer(chosen, Some(Duration::from_secs(9))));
    }
}
