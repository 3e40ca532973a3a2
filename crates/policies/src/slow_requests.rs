//! Which requests of a volume were slow, and what each of them waited for.
//!
//! **Intuition.** Nobody can say in advance how slow is slow: it depends on the disks and on the client. So the slowest
//! 0.1% of what a volume did lately are *slow*, reads and writes apart. A slow request spent most of its time where
//! requests always spend most of it (the disk, say), or somewhere else. What it waited for is the stage that took
//! longest *beyond its usual time*.
//!
//! **Names.** A request's [`Passage`] has the time of each stage. The *usual* time of a stage is a moving average over
//! requests that were not slow. The *threshold* is the 99.9th percentile of two generations of requests: when the
//! younger one is large or old enough, it becomes the elder one, and what was before is forgotten.
//!
//! **Invariants** ([`SlowRequests::check_invariants`]): a bounded number is kept, in the order of their replies; each
//! that is counted has a reason; the counts of the reasons add up to the number of slow requests.
//!
//! The first requests of a volume are never slow, because nothing is known; until there are a thousand of them, only
//! one that is slower than all before it is.

use std::collections::VecDeque;
use std::time::Duration;

use base::{Histogram, Instant, Passage, Stage};

/// What counts as slow, and how much is kept.
#[derive(Clone, Debug)]
pub struct SlowSettings {
    /// The part of all requests that is not slow, in millionths.
    pub quantile_per_million: u64,
    /// Requests before the first that can be slow.
    pub learn: u64,
    /// Slow requests of a volume that are kept.
    pub kept_max: usize,
    /// A generation ends when it has so many requests,
    pub generation_max: u64,
    /// or when it has a thousand and is so old.
    pub generation_age: Duration,
}

impl Default for SlowSettings {
    fn default() -> Self {
        SlowSettings {
            quantile_per_million: 999_000,
            learn: 32,
            kept_max: 32,
            generation_max: 32_768,
            generation_age: Duration::from_secs(60),
        }
    }
}

/// A generation needs so many requests that 0.1% of them is one.
const GENERATION_MIN: u64 = 1_000;
/// The threshold is found anew after so many requests.
const THRESHOLD_EVERY: u64 = 256;
/// One request in so many teaches the usual times.
const SAMPLE_EVERY: u64 = 16;
/// A sample moves a usual time by this part of the difference.
const USUAL_WEIGHT: i64 = 16;

/// Reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// A read.
    Read,
    /// A write.
    Write,
}

impl Direction {
    /// Both.
    pub const ALL: [Direction; 2] = [Direction::Read, Direction::Write];

    /// Its name in metrics and answers.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Read => "read",
            Direction::Write => "write",
        }
    }
}

/// A request whose reply was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// What it was.
    pub direction: Direction,
    /// Byte offset in the volume.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Where its time went.
    pub passage: Passage,
}

/// A slow one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlowRequest {
    /// The request.
    pub request: Request,
    /// When its reply was sent.
    pub at: Instant,
    /// What it waited for.
    pub reason: Stage,
    /// How much longer than usual, in nanoseconds.
    pub beyond_ns: u64,
}

/// What waiting for one reason came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Blame {
    /// Slow requests.
    pub requests: u64,
    /// How long they took, added up, in nanoseconds.
    pub total_ns: u64,
    /// How long the slowest took.
    pub max_ns: u64,
}

/// The record of one volume. See the module's header.
#[derive(Clone, Debug)]
pub struct SlowRequests {
    settings: SlowSettings,
    recent: [Recent; Direction::ALL.len()],
    kept: VecDeque<SlowRequest>,
}

/// What is known of one direction.
#[derive(Clone, Debug)]
struct Recent {
    younger: Histogram,
    elder: Histogram,
    begun: Instant,
    threshold_ns: u64,
    usual_ns: [u64; Stage::ALL.len()],
    blames: [Blame; Stage::ALL.len()],
    slow: u64,
}

impl SlowRequests {
    /// Nothing seen yet.
    pub fn new(settings: SlowSettings, now: Instant) -> Self {
        let recent = Recent {
            younger: Histogram::new(),
            elder: Histogram::new(),
            begun: now,
            threshold_ns: 0,
            usual_ns: [0; Stage::ALL.len()],
            blames: [Blame::default(); Stage::ALL.len()],
            slow: 0,
        };
        SlowRequests { settings, recent: [recent.clone(), recent], kept: VecDeque::new() }
    }

    /// Whether a request that took `total_ns` would be slow: whoever has more to find out about it does so first.
    #[inline]
    pub fn is_slow(&self, direction: Direction, total_ns: u64) -> bool {
        let recent = &self.recent[direction as usize];
        total_ns > recent.threshold_ns && recent.seen() >= self.settings.learn
    }

    /// A reply was sent. The reason, if it was slow.
    #[inline]
    pub fn on_request(&mut self, now: Instant, request: &Request) -> Option<Stage> {
        let total_ns = request.passage.total_ns();
        let is_slow = self.is_slow(request.direction, total_ns);
        let recent = &mut self.recent[request.direction as usize];
        recent.on_request(&self.settings, now, total_ns);
        if !is_slow {
            recent.learn(&request.passage);
            return None;
        }
        Some(self.keep(now, request))
    }

    #[cold]
    fn keep(&mut self, now: Instant, request: &Request) -> Stage {
        let (reason, beyond_ns) = self.recent[request.direction as usize].blame(&request.passage);
        if self.kept.len() >= self.settings.kept_max {
            self.kept.pop_front();
        }
        self.kept.push_back(SlowRequest { request: *request, at: now, reason, beyond_ns });
        reason
    }

    /// Above how many nanoseconds a request is slow; none while too few were seen.
    pub fn threshold_ns(&self, direction: Direction) -> Option<u64> {
        let recent = &self.recent[direction as usize];
        (recent.seen() >= self.settings.learn).then_some(recent.threshold_ns)
    }

    /// What slow requests waited for since the start.
    pub fn blame(&self, direction: Direction, reason: Stage) -> Blame {
        self.recent[direction as usize].blames[reason as usize]
    }

    /// The last slow requests, oldest first.
    pub fn last(&self) -> impl DoubleEndedIterator<Item = &SlowRequest> {
        self.kept.iter()
    }

    /// Adds what another loop noted of the same volume, to be looked at: each loop has usual times and a threshold of its
    /// own, and of two thresholds the higher one is shown.
    pub fn merge(&mut self, other: &SlowRequests) {
        for (mine, theirs) in self.recent.iter_mut().zip(&other.recent) {
            mine.younger.merge(&theirs.younger);
            mine.elder.merge(&theirs.elder);
            mine.threshold_ns = mine.threshold_ns.max(theirs.threshold_ns);
            mine.slow += theirs.slow;
            for (blame, more) in mine.blames.iter_mut().zip(&theirs.blames) {
                blame.requests += more.requests;
                blame.total_ns += more.total_ns;
                blame.max_ns = blame.max_ns.max(more.max_ns);
            }
        }
        self.kept.extend(&other.kept);
        self.kept.make_contiguous().sort_by_key(|one| one.at);
        self.kept.drain(..self.kept.len().saturating_sub(self.settings.kept_max));
    }

    /// See the module's header.
    ///
    /// # Panics
    /// If one of the invariants does not hold.
    pub fn check_invariants(&self) {
        assert!(self.kept.len() <= self.settings.kept_max, "the record is bounded");
        assert!(self.kept.iter().zip(self.kept.iter().skip(1)).all(|(one, next)| one.at <= next.at), "in order");
        for recent in &self.recent {
            let blamed: u64 = recent.blames.iter().map(|blame| blame.requests).sum();
            assert!(blamed == recent.slow, "each slow request has a reason");
        }
    }
}

impl Recent {
    #[inline]
    fn seen(&self) -> u64 {
        self.younger.count() + self.elder.count()
    }

    #[inline]
    fn on_request(&mut self, settings: &SlowSettings, now: Instant, total_ns: u64) {
        self.younger.record(total_ns);
        if self.seen() <= GENERATION_MIN {
            self.threshold_ns = self.threshold_ns.max(total_ns);
        } else if self.younger.count().is_multiple_of(THRESHOLD_EVERY) {
            self.find_threshold(settings, now);
        }
    }

    fn find_threshold(&mut self, settings: &SlowSettings, now: Instant) {
        let mut both = self.elder.clone();
        both.merge(&self.younger);
        self.threshold_ns = both.quantile(settings.quantile_per_million);
        let count = self.younger.count();
        let is_old = count >= GENERATION_MIN && now.since(self.begun) >= settings.generation_age;
        if count >= settings.generation_max || is_old {
            self.elder = std::mem::take(&mut self.younger);
            self.begun = now;
        }
    }

    /// A request that was not slow says what is usual.
    #[inline]
    fn learn(&mut self, passage: &Passage) {
        let count = self.younger.count();
        if !count.is_multiple_of(SAMPLE_EVERY) && self.seen() > SAMPLE_EVERY {
            return;
        }
        for stage in Stage::ALL {
            let usual = &mut self.usual_ns[stage as usize];
            let difference = passage.of(stage).cast_signed() - usual.cast_signed();
            // Away from zero, so that a usual time does not stop above or below what is usual.
            let step = difference / USUAL_WEIGHT + difference.signum() * i64::from(difference % USUAL_WEIGHT != 0);
            *usual = usual.saturating_add_signed(step);
        }
    }

    /// The stage that took longest beyond its usual time, and how much longer.
    fn blame(&mut self, passage: &Passage) -> (Stage, u64) {
        let beyond = |stage: Stage| passage.of(stage).saturating_sub(self.usual_ns[stage as usize]);
        // The first of equals: what comes later in a request's life often waits because of what came before.
        let reason = Stage::ALL.into_iter().rev().max_by_key(|stage| beyond(*stage)).unwrap_or(Stage::Turn);
        let beyond_ns = beyond(reason);
        let total_ns = passage.total_ns();
        let blame = &mut self.blames[reason as usize];
        blame.requests += 1;
        blame.total_ns += total_ns;
        blame.max_ns = blame.max_ns.max(total_ns);
        self.slow += 1;
        (reason, beyond_ns)
    }
}

#[cfg(test)]
mod tests {
    use base::Prng;

    use super::*;

    fn record() -> SlowRequests {
        SlowRequests::new(SlowSettings::default(), Instant::ZERO)
    }

    fn write(stages: &[(Stage, u64)]) -> Request {
        let mut passage = Passage::default();
        stages.iter().for_each(|(stage, ns)| passage.add(*stage, *ns));
        Request { direction: Direction::Write, offset: 4096, len: 4096, passage }
    }

    /// Usual writes: the disk takes most of their time.
    fn usual(random: &mut Prng) -> Request {
        write(&[(Stage::Append, 100_000 + random.below(20_000)), (Stage::Turn, 5_000 + random.below(2_000))])
    }

    #[test]
    fn about_one_in_a_thousand_is_slow() {
        let (mut slow, mut random) = (record(), Prng::new(1));
        let mut count = 0;
        for n in 0..200_000u64 {
            // A long tail: one in a hundred takes ten times as long, and so on.
            let mut ns = 100_000 + random.below(50_000);
            while random.one_in(100) {
                ns *= 10;
            }
            count += u64::from(slow.on_request(Instant(n * 100_000), &write(&[(Stage::Append, ns)])).is_some());
        }
        slow.check_invariants();
        assert!((40..=250).contains(&count), "{count} of 200,000");
        assert_eq!(slow.last().count(), 32);
        assert_eq!(slow.blame(Direction::Write, Stage::Append).requests, count);
    }

    #[test]
    fn the_reason_is_what_took_longer_than_usual() {
        for stage in Stage::ALL {
            let (mut slow, mut random) = (record(), Prng::new(2));
            for n in 0..5_000u64 {
                slow.on_request(Instant(n), &usual(&mut random));
            }
            // The append still takes most of the time, but no more than ever; unless it is the one that is late.
            let (append, late) = (110_000, 90_000);
            let request = write(&[(Stage::Append, append), (Stage::Turn, 6_000), (stage, late)]);
            assert_eq!(slow.on_request(Instant(6_000), &request), Some(stage));
            let last = slow.last().next_back().unwrap();
            assert_eq!((last.reason, last.request, last.at), (stage, request, Instant(6_000)));
            assert!((85_000..110_000).contains(&last.beyond_ns), "{}", last.beyond_ns);
            slow.check_invariants();
        }
    }

    #[test]
    fn directions_have_thresholds_of_their_own() {
        let (mut slow, mut random) = (record(), Prng::new(3));
        for n in 0..3_000u64 {
            slow.on_request(Instant(n), &usual(&mut random));
            slow.on_request(Instant(n), &Request { direction: Direction::Read, ..write(&[(Stage::Disk, 1_000)]) });
        }
        let read = Request { direction: Direction::Read, ..write(&[(Stage::Disk, 2_000)]) };
        assert_eq!(slow.on_request(Instant(3_000), &read), Some(Stage::Disk), "slow for a read");
        assert_eq!(slow.on_request(Instant(3_000), &write(&[(Stage::Append, 90_000)])), None, "quick for a write");
        assert_eq!(slow.blame(Direction::Read, Stage::Disk).max_ns, 2_000);
    }

    #[test]
    fn the_first_requests_teach_and_then_the_slowest_so_far_is_slow() {
        let mut slow = record();
        assert_eq!(slow.threshold_ns(Direction::Write), None);
        for n in 0..32u64 {
            assert_eq!(slow.on_request(Instant(n), &write(&[(Stage::Append, 1_000 * (n + 1))])), None);
        }
        assert_eq!(slow.threshold_ns(Direction::Write), Some(32_000));
        assert_eq!(slow.on_request(Instant(40), &write(&[(Stage::Append, 32_000)])), None);
        assert_eq!(slow.on_request(Instant(41), &write(&[(Stage::Memory, 2_000_000_000)])), Some(Stage::Memory));
    }

    #[test]
    fn what_was_usual_long_ago_is_forgotten() {
        let (mut slow, mut random) = (record(), Prng::new(4));
        let minute = Duration::from_secs(60);
        for n in 0..4_000u64 {
            slow.on_request(Instant(n), &write(&[(Stage::Append, 10_000_000)]));
        }
        let mut now = Instant(4_000);
        for _ in 0..3 {
            now = now + minute;
            (0..2_048).for_each(|_| {
                slow.on_request(now, &usual(&mut random));
            });
        }
        let threshold = slow.threshold_ns(Direction::Write).unwrap();
        assert!(threshold < 150_000, "the disk is quick again: {threshold}");
        assert_eq!(slow.on_request(now, &write(&[(Stage::Append, 1_000_000)])), Some(Stage::Append));
    }

    #[test]
    fn what_two_loops_noted_is_one_record() {
        let (mut random, mut loops) = (Prng::new(3), [record(), record()]);
        for n in 0..4_000u64 {
            let noted = &mut loops[(n % 2) as usize];
            let request = if n % 100 == 7 { write(&[(Stage::Slot, 1_000_000 + n)]) } else { usual(&mut random) };
            noted.on_request(Instant(n), &request);
        }
        let mut both = SlowRequests::new(SlowSettings::default(), Instant::ZERO);
        loops.iter().for_each(|noted| both.merge(noted));
        both.check_invariants();
        let of = |noted: &SlowRequests| noted.blame(Direction::Write, Stage::Slot).requests;
        assert!(of(&both) > 10 && of(&both) == of(&loops[0]) + of(&loops[1]));
        let latest = loops.iter().flat_map(|noted| noted.last().map(|slow| slow.at)).max();
        assert_eq!(both.last().last().map(|slow| slow.at), latest);
    }
}
