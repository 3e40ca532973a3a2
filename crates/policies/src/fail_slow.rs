//! Which places answer slowly, and after how long it is worth to ask another copy (EBS, FAST 2024, §3.1: what takes longer
//! than the 99.9th percentile goes elsewhere).
//!
//! Intuition: a disk that fails slowly does not fail. It answers, ten or a hundred times later than others, and whoever
//! waits for it has that latency. What is slow is seen by comparison only: with what the same kind of operation of the same
//! size took a moment ago, wherever it went.
//!
//! Names: a *place* is what operations go to, such as an object of a pool. What is *usual* for a size are the median and the
//! 99.9th percentile of the last 10 to 20 s, of all places. The *limit* is [`TIMES`] medians, [`FLOOR`] more than the median at
//! least: what takes longer is *late*. A place is a *suspect* once something of it was late, and *slow* while the moving average
//! (EWMA) of its operations is above the limit.
//!
//! Invariants:
//! - Nothing is late while fewer than [`ENOUGH`] operations of its size were seen: a start is no disk that fails.
//! - One late operation makes nothing slow; of those that take twice the limit six in a row do.
//! - Where most places are late, that is usual after 20 s, and nothing is slow: nobody runs away from a pool that is busy.
//! - Of reads one in [`HEDGE_ONE_IN`] is asked for twice at most, so that a pool that is busy gets little more to do by it.
//! - At most [`SUSPECTS_MAX`] places are remembered, each for [`MEMORY`] after its last operation.
//!
//! The papers name no numbers but the percentile. A limit besides it is needed where a third of the places is slow: then the
//! 99.9th percentile is theirs.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use base::{Histogram, Instant};

/// People are told of whoever was slow over so long a time: a burst of work is no disk that fails.
pub const NAMED_AFTER: Duration = Duration::from_secs(5);

/// How many medians are late.
const TIMES: u64 = 8;
/// How much above the median late is at least: less is the pauses of machines that are busy.
const FLOOR: Duration = Duration::from_millis(5);
/// Operations of a size after which it is known what is usual.
const ENOUGH: u64 = 100;
/// What is usual is of so long a time, and of as long again before it.
const WINDOW: Duration = Duration::from_secs(10);
/// Weight of the newest operation in the average of a suspect: one in so many.
const WEIGHT: u64 = 8;
/// An operation counts as so many limits at most: a single one, however late, makes nothing slow.
const LATE_MAX: u64 = 4_000;
/// The average, in thousandths of the limit, above which a place is slow, and below which it is no suspect any more.
const SLOW: u64 = 1_000;
const CLEAR: u64 = 400;
/// See the module.
const SUSPECTS_MAX: usize = 64;
/// See the module.
const MEMORY: Duration = Duration::from_secs(30);
/// Reads for one that may be asked for twice, and how many of these may be saved up.
const HEDGE_ONE_IN: u64 = 10;
const HEDGES_MAX: u64 = 16;
/// Whoever leaves a slow place leaves no other one for so long.
const LEAVE_PAUSE: Duration = Duration::from_secs(10);

/// Sizes of operations that are compared with each other: up to these, and larger ones.
const SIZES: [u64; 2] = [64 << 10, 512 << 10];

/// What is known of one kind of operation.
#[derive(Debug)]
pub struct FailSlow<P> {
    usual: [Usual; SIZES.len() + 1],
    suspects: BTreeMap<P, Suspect>,
    /// What may be asked for twice, in parts of [`HEDGE_ONE_IN`].
    hedges: u64,
    left_at: Option<Instant>,
}

/// What operations of one size took.
#[derive(Debug, Default)]
struct Usual {
    present: Histogram,
    former: Histogram,
    since: Instant,
    /// Of both, as it was counted the last time.
    median_ns: u64,
    percentile_ns: u64,
    counted: u64,
}

#[derive(Clone, Copy, Debug)]
struct Suspect {
    /// In thousandths of the limit.
    average: u64,
    slow_since: Option<Instant>,
    at: Instant,
}

impl Suspect {
    fn is_slow(&self, now: Instant) -> bool {
        self.slow_since.is_some() && now.since(self.at) < MEMORY
    }
}

impl<P> Default for FailSlow<P> {
    fn default() -> Self {
        FailSlow { usual: Default::default(), suspects: BTreeMap::new(), hedges: 0, left_at: None }
    }
}

fn size_of(bytes: u64) -> usize {
    SIZES.iter().take_while(|size| bytes > **size).count()
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

impl Usual {
    fn on_done(&mut self, now: Instant, took_ns: u64) {
        if now.since(self.since) >= WINDOW {
            // After a longer rest the one before is too old.
            let is_old = now.since(self.since) >= 2 * WINDOW;
            self.former = std::mem::take(&mut self.present);
            if is_old {
                // And so is what is known of both.
                (self.former, self.median_ns, self.percentile_ns) = (Histogram::new(), 0, 0);
            }
            self.since = now;
            self.counted = 0;
        }
        self.present.record(took_ns);
        let count = self.present.count() + self.former.count();
        // Percentiles take a look at all buckets: not with each operation.
        if count >= ENOUGH && count >= self.counted + ENOUGH {
            let mut both = self.former.clone();
            both.merge(&self.present);
            (self.median_ns, self.percentile_ns) = (both.quantile(500_000), both.quantile(999_000));
            self.counted = count;
        }
    }

    /// None: too little is known.
    fn limit_ns(&self) -> Option<u64> {
        let limit = self.median_ns.saturating_mul(TIMES).max(self.median_ns + nanos(FLOOR));
        (self.median_ns > 0).then_some(limit)
    }
}

impl<P: Copy + Ord> FailSlow<P> {
    /// An operation of so many bytes at a place took so long, or has taken so long already. Says whether the place has become
    /// slow by that.
    pub fn on_done(&mut self, now: Instant, place: P, bytes: u64, took: Duration) -> bool {
        let usual = &mut self.usual[size_of(bytes)];
        let took_ns = nanos(took);
        usual.on_done(now, took_ns);
        let Some(limit_ns) = usual.limit_ns() else { return false };
        let part = (took_ns.saturating_mul(SLOW) / limit_ns).min(LATE_MAX);
        if part > SLOW && !self.suspects.contains_key(&place) {
            self.forget(now);
            if self.suspects.len() < SUSPECTS_MAX {
                self.suspects.insert(place, Suspect { average: 0, slow_since: None, at: now });
            }
        }
        let Some(suspect) = self.suspects.get_mut(&place) else { return false };
        suspect.average = (suspect.average * (WEIGHT - 1) + part) / WEIGHT;
        suspect.at = now;
        let has_become_slow = suspect.slow_since.is_none() && suspect.average >= SLOW;
        if has_become_slow {
            suspect.slow_since = Some(now);
        }
        if suspect.average < CLEAR && part < SLOW {
            self.suspects.remove(&place);
        }
        has_become_slow
    }

    /// After how long a read of so many bytes may be asked of another copy; none: too little is known.
    pub fn patience(&self, bytes: u64) -> Option<Duration> {
        let usual = &self.usual[size_of(bytes)];
        usual.limit_ns().map(|limit_ns| Duration::from_nanos(limit_ns.min(usual.percentile_ns)))
    }

    /// A read begins.
    pub fn on_read(&mut self) {
        self.hedges = (self.hedges + 1).min(HEDGES_MAX * HEDGE_ONE_IN);
    }

    /// Whether a read may be asked for a second time.
    pub fn plan_hedge(&mut self) -> bool {
        let may = self.hedges >= HEDGE_ONE_IN;
        if may {
            self.hedges -= HEDGE_ONE_IN;
        }
        may
    }

    /// Whether a place is slow.
    pub fn is_slow(&self, now: Instant, place: P) -> bool {
        self.suspects.get(&place).is_some_and(|suspect| suspect.is_slow(now))
    }

    /// The slow places, each with the time from the operation that made it slow to its last one.
    pub fn slow(&self, now: Instant) -> impl Iterator<Item = (P, Range<Instant>)> + '_ {
        let slow = self.suspects.iter().filter(move |(_, suspect)| suspect.is_slow(now));
        slow.filter_map(|(place, suspect)| Some((*place, suspect.slow_since?..suspect.at)))
    }

    /// Those that were slow over so long a time.
    pub fn slow_for(&self, now: Instant, span: Duration) -> impl Iterator<Item = P> + '_ {
        self.slow(now).filter(move |(_, time)| time.end.since(time.start) >= span).map(|(place, _)| place)
    }

    /// Whether whoever appends to a slow place should go on elsewhere now.
    pub fn plan_leave(&mut self, now: Instant) -> bool {
        let may = self.left_at.is_none_or(|left| now.since(left) >= LEAVE_PAUSE);
        if may {
            self.left_at = Some(now);
        }
        may
    }

    fn forget(&mut self, now: Instant) {
        self.suspects.retain(|_, suspect| now.since(suspect.at) < MEMORY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    struct Bed {
        policy: FailSlow<u32>,
        now: Instant,
    }

    impl Bed {
        fn new() -> Bed {
            Bed { policy: FailSlow::default(), now: Instant(1) }
        }

        /// An operation of 4 KiB each millisecond.
        fn done(&mut self, place: u32, took: Duration) -> bool {
            self.now = self.now + MS;
            self.policy.on_done(self.now, place, 4096, took)
        }

        /// So many operations at ten places, a millisecond each.
        fn calm(mut self, count: u32) -> Bed {
            (0..count).for_each(|index| assert!(!self.done(index % 10, MS)));
            self
        }

        fn is_slow(&self, place: u32) -> bool {
            self.policy.is_slow(self.now, place)
        }
    }

    #[test]
    fn a_place_that_is_late_again_and_again_is_slow_until_it_is_well() {
        let mut bed = Bed::new().calm(1_000);
        assert!(!bed.done(3, 30 * MS), "one late operation makes nothing slow");
        let late = (0..20).position(|_| bed.done(3, 20 * MS));
        assert!(late.is_some_and(|more| (2..8).contains(&more)), "{late:?}");
        assert!(bed.is_slow(3) && !bed.is_slow(4));
        assert_eq!(bed.policy.slow(bed.now).map(|(place, _)| place).collect::<Vec<_>>(), [3]);
        (0..40).for_each(|_| _ = bed.done(3, MS));
        assert!(!bed.is_slow(3));
    }

    #[test]
    fn what_is_slow_for_long_is_so_over_operations_and_no_rest_counts() {
        let mut bed = Bed::new().calm(1_000);
        let lasting = |bed: &Bed| bed.policy.slow_for(bed.now, 5_000 * MS).collect::<Vec<_>>();
        (0..10).for_each(|_| _ = bed.done(3, 20 * MS));
        bed.now = bed.now + 20_000 * MS;
        assert!(bed.is_slow(3) && lasting(&bed).is_empty(), "a burst of late ones, and nothing since");
        let mut bed = Bed::new().calm(1_000);
        for round in 0..600 {
            (0..9).for_each(|place| _ = bed.done(10 + place, MS));
            bed.done(3, 20 * MS);
            assert!(round >= 500 || lasting(&bed).is_empty(), "{round}");
        }
        assert_eq!(lasting(&bed), [3]);
    }

    #[test]
    fn one_operation_that_hangs_makes_nothing_slow() {
        let mut bed = Bed::new().calm(1_000);
        bed.done(3, Duration::from_secs(20));
        (0..10).for_each(|_| assert!(!bed.done(3, MS)));
        assert!(!bed.is_slow(3));
    }

    #[test]
    fn little_is_known_at_the_start() {
        let mut bed = Bed::new();
        (0..50).for_each(|index| assert!(!bed.done(index % 2, if index % 2 == 0 { MS } else { 300 * MS })));
        assert_eq!(bed.policy.patience(4096), None);
        let bed = Bed::new().calm(1_000);
        // The 99.9th percentile: nothing took longer than a millisecond.
        assert!(bed.policy.patience(4096).is_some_and(|patience| patience <= 2 * MS));
        assert_eq!(bed.policy.patience(1 << 20), None, "a size of its own");
    }

    #[test]
    fn what_was_usual_before_a_rest_is_not_known_any_more() {
        let mut bed = Bed::new().calm(1_000);
        bed.now = bed.now + 2 * WINDOW;
        // Somebody has moved to a slower pool meanwhile.
        (0..90).for_each(|index| assert!(!bed.done(index % 2, 50 * MS)));
        assert_eq!((bed.policy.patience(4096), bed.policy.suspects.len()), (None, 0));
    }

    #[test]
    fn where_a_third_of_the_places_is_slow_others_are_asked_all_the_same() {
        let mut bed = Bed::new().calm(1_000);
        for index in 0..30_000 {
            bed.done(index % 9, if index % 3 == 0 { 50 * MS } else { MS });
        }
        assert!([0, 3, 6].iter().all(|place| bed.is_slow(*place)));
        assert!([1, 2, 4, 5, 7, 8].iter().all(|place| !bed.is_slow(*place)));
        // The 99.9th percentile is that of slow places by now.
        assert!(bed.policy.patience(4096).is_some_and(|patience| patience < 12 * MS));
    }

    #[test]
    fn a_pool_that_is_busy_is_usual_before_long() {
        let mut bed = Bed::new().calm(1_000);
        (0..40_000).for_each(|index| _ = bed.done(index % 10, 50 * MS));
        assert_eq!(bed.policy.slow(bed.now).count(), 0);
        // And quick again at once.
        (0..40_000).for_each(|index| _ = bed.done(index % 10, MS));
        assert_eq!(bed.policy.slow(bed.now).count(), 0);
        let slow = (0..20).any(|_| bed.done(3, 50 * MS));
        assert!(slow);
    }

    #[test]
    fn what_was_slow_long_ago_is_not_known_any_more_and_memory_is_bounded() {
        let mut bed = Bed::new().calm(1_000);
        for place in 0..200 {
            (0..20).for_each(|_| _ = bed.done(1_000 + place, 20 * MS));
            // Enough others in between, so that this is not usual.
            (0..100).for_each(|index| _ = bed.done(index % 10, MS));
        }
        assert!(bed.policy.suspects.len() <= SUSPECTS_MAX);
        bed.now = bed.now + MEMORY;
        assert_eq!(bed.policy.slow(bed.now).count(), 0);
    }

    #[test]
    fn few_reads_are_asked_for_twice() {
        let mut policy = FailSlow::<u32>::default();
        assert!(!policy.plan_hedge());
        let hedged = (0..10_000).filter(|_| {
            policy.on_read();
            policy.plan_hedge()
        });
        assert_eq!(hedged.count() as u64, 10_000 / HEDGE_ONE_IN);
        (0..10_000).for_each(|_| policy.on_read());
        assert_eq!((0..1_000).filter(|_| policy.plan_hedge()).count() as u64, HEDGES_MAX);
    }

    #[test]
    fn places_are_left_one_after_the_other() {
        let mut policy = FailSlow::<u32>::default();
        let at = |seconds| Instant(1) + Duration::from_secs(seconds);
        let left: Vec<u64> = (0..30).filter(|second| policy.plan_leave(at(*second))).collect();
        assert_eq!(left, [0, 10, 20]);
    }
}
