//! How much space for data files is zero-written ahead of need, of which sizes, and when.
//!
//! **Intuition.** The first durable write to a block that a file system has only set aside costs it metadata; later ones
//! do not. Who writes zeros there while nobody wants the disk has made new space as cheap as used space. That must never
//! cost a client anything: it happens while it is *quiet*, in steps so short that a request that comes meanwhile waits
//! for one of them at most, and never in the last room of a disk.
//!
//! **Names.** The *target* is what is kept ready in one directory; what deleted files left there counts, it was written,
//! too. It is what volumes may still come to hold, and, since an overwrite takes new space before what it replaces comes
//! free, a part of what they hold already. *Quiet* is a store for which nobody appended or read for
//! [`ReadySettings::quiet`]; a count of what was done tells, so that nobody who does it has to look at a clock.
//!
//! **Sizes.** Data files grow with their segment, and a file takes a spare that is up to four times smaller than it would
//! be ([`SIZE_STEP`]). So a few sizes, four times apart, serve all files: most of the target has the largest of them, of
//! the smaller ones there are as many as some young segments need to get there.
//!
//! **Invariants.** Nothing is planned beyond the target; the target is never more than [`ROOM_PART`] of the room; where
//! nothing is planned, nothing happens until the room or the spares change.

use std::time::Duration;

use base::{GIB, Instant, MIB};

/// What is kept ready is at most this part of what a directory has room for, so that nobody else misses it.
const ROOM_PART: u64 = 3;
/// Overwrites are expected to take so large a part of what volumes hold before they give it back: no more than what is
/// kept of deleted files, or zeros would be written again and again to space that is given up.
const OVERWRITE_PART: u64 = 2;
/// One size of spares is so many times the next smaller one.
const SIZE_STEP: u64 = 4;
/// Sizes of spares.
const SIZES_MAX: usize = 3;
/// Spares of each size but the largest: a segment needs six of one to grow into the next, a volume has four segments.
const SMALL_ONES: u64 = 24;
/// Those of one size are at most this part of the target.
const SMALL_PART: u64 = 8;
/// One write of zeros: a disk takes half a millisecond for it.
const STEP_BYTES: u64 = MIB;

/// What an operator sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadySettings {
    /// Bytes that are kept ready in each directory at most; zero: nothing is written ahead.
    pub bytes_max: u64,
    /// Zeros that are written in a second, in each directory; zero: none.
    pub bytes_per_sec: u64,
    /// How long nobody must have wanted the store before zeros are written.
    pub quiet: Duration,
}

impl Default for ReadySettings {
    fn default() -> Self {
        ReadySettings { bytes_max: 32 * GIB, bytes_per_sec: GIB, quiet: Duration::from_millis(200) }
    }
}

impl ReadySettings {
    /// Nothing is written ahead.
    pub const OFF: ReadySettings = ReadySettings { bytes_max: 0, bytes_per_sec: 0, quiet: Duration::ZERO };

    /// What one of so many shards does, which share the directories.
    pub fn of(&self, shards: u8) -> ReadySettings {
        let share = |bytes| bytes / u64::from(shards);
        ReadySettings { bytes_max: share(self.bytes_max), bytes_per_sec: share(self.bytes_per_sec), ..*self }
    }

    /// What is to be ready in a directory with so much room, that of its spares included, where files take up `used` bytes,
    /// and volumes may come to hold `expected`.
    pub fn target(&self, room: u64, used: u64, expected: u64) -> u64 {
        let (to_come, overwritten) = (expected.saturating_sub(used), expected.min(used) / OVERWRITE_PART);
        match self.bytes_per_sec {
            0 => 0,
            _ => self.bytes_max.min(room / ROOM_PART).min(to_come + overwritten),
        }
    }
}

/// The capacities of spares for data files of `smallest` to `largest` bytes, the largest first.
pub fn plan_sizes(smallest: u64, largest: u64) -> Vec<u64> {
    let sizes = (1..=SIZES_MAX as u32).map(|step| largest / SIZE_STEP.pow(step)).filter(|size| *size >= smallest);
    let mut sizes: Vec<u64> = sizes.collect();
    if sizes.is_empty() {
        sizes.push(largest);
    }
    sizes
}

/// Which capacity one more spare of a directory should have, if it lacks one. `sizes` are those of [`plan_sizes`];
/// `spare_bytes` is what its spares take up, and `count` how many have a capacity.
pub fn plan_spare(target: u64, sizes: &[u64], spare_bytes: u64, count: impl Fn(u64) -> u64) -> Option<u64> {
    let left = target.saturating_sub(spare_bytes);
    // The small ones first: a new segment asks for them before it asks for the large ones.
    let small = sizes.iter().copied().skip(1).rev();
    let mut lacking = small.filter(|size| count(*size) < SMALL_ONES.min(target / SMALL_PART / size));
    lacking.next().or(sizes.first().copied()).filter(|size| *size <= left)
}

/// What to do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Write so many zeros.
    Zero(u64),
    /// Somebody wants the disk, or may: look again then.
    GiveWay(Instant),
    /// The rate is used up until then.
    Pause(Instant),
}

/// When zeros are written to one directory.
#[derive(Clone, Debug)]
pub struct ZeroPace {
    settings: ReadySettings,
    /// The count of what was done at the last look.
    seen: u64,
    /// When that was found to have changed.
    changed_at: Instant,
    /// When the next step is in order.
    next: Instant,
}

impl ZeroPace {
    /// Nothing is known yet: it might have been busy until now.
    pub fn new(settings: ReadySettings, now: Instant, activity: u64) -> Self {
        ZeroPace { settings, seen: activity, changed_at: now, next: now }
    }

    /// What to do now; `activity` counts what was done for anybody since the start, and never falls.
    pub fn plan_step(&mut self, now: Instant, activity: u64) -> Step {
        if activity != self.seen {
            (self.seen, self.changed_at) = (activity, now);
        }
        let quiet_at = self.changed_at + self.settings.quiet;
        if now < quiet_at {
            return Step::GiveWay(quiet_at);
        }
        if now < self.next {
            return Step::Pause(self.next);
        }
        let nanos = u128::from(STEP_BYTES) * 1_000_000_000 / u128::from(self.settings.bytes_per_sec.max(1));
        // Time in which nothing was written is not made up for.
        self.next = now + Duration::from_nanos(nanos as u64);
        Step::Zero(STEP_BYTES)
    }

    /// Whether what it believes makes sense.
    pub fn check_invariants(&self, now: Instant) {
        assert!(self.changed_at <= now, "nothing is seen before it happens");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use base::{KIB, Prng};

    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    #[test]
    fn sizes_serve_every_file_of_a_segment_that_is_not_young() {
        let sizes = plan_sizes(MIB, 512 * MIB);
        assert_eq!(sizes, [128 * MIB, 32 * MIB, 8 * MIB]);
        for wanted in (3..=9).map(|power| MIB << power) {
            assert!(sizes.iter().any(|size| (wanted / 4..=wanted).contains(size)), "{wanted}");
        }
        assert_eq!(plan_sizes(MIB, 4 * MIB), [MIB]);
        assert_eq!(plan_sizes(64 * KIB, 64 * KIB), [64 * KIB], "all files of a small store have one size");
    }

    /// Fills a directory as the plan says; gives the spares.
    fn fill(settings: &ReadySettings, room: u64, sizes: &[u64]) -> Vec<u64> {
        let (mut spares, mut counts, mut bytes) = (Vec::new(), BTreeMap::new(), 0);
        let target = settings.target(room, 0, u64::MAX);
        while let Some(size) = plan_spare(target, sizes, bytes, |size| counts.get(&size).copied().unwrap_or(0)) {
            spares.push(size);
            *counts.entry(size).or_default() += 1;
            bytes += size;
        }
        spares
    }

    #[test]
    fn a_directory_is_filled_to_its_target_and_not_beyond() {
        let settings = ReadySettings::default();
        let sizes = plan_sizes(MIB, 512 * MIB);
        let spares = fill(&settings, 1 << 42, &sizes);
        let count = |size| spares.iter().filter(|spare| **spare == size).count();
        assert_eq!((count(8 * MIB), count(32 * MIB), count(128 * MIB)), (24, 24, 248));
        assert_eq!(spares[..24], [8 * MIB; 24], "what a young segment needs first");
        for seed in 0..200 {
            let mut prng = Prng::new(seed);
            let room_bits = prng.between(12, 44);
            let room = prng.below(1 << room_bits);
            let largest = (64 * KIB) << prng.below(14);
            let sizes = plan_sizes(largest.min(MIB), largest);
            let bytes: u64 = fill(&settings, room, &sizes).iter().sum();
            assert!(bytes <= room / 3 && bytes <= settings.bytes_max, "seed {seed}");
            assert!(bytes + sizes[0] > settings.target(room, 0, u64::MAX), "seed {seed}: it is full");
        }
    }

    #[test]
    fn what_deleted_files_left_counts_and_off_is_off() {
        let sizes = [128, 32, 8];
        assert_eq!(plan_spare(1000, &sizes, 1000, |_| 0), None);
        assert_eq!(plan_spare(1000, &sizes, 950, |_| 100), None, "a large one would be too much");
        assert_eq!(plan_spare(1000, &sizes, 872, |_| 100), Some(128));
        assert_eq!(plan_spare(7, &[8], 0, |_| 0), None);
        assert_eq!(ReadySettings::OFF.target(u64::MAX, 0, u64::MAX), 0);
        let no_rate = ReadySettings { bytes_per_sec: 0, ..ReadySettings::default() };
        assert_eq!(no_rate.target(u64::MAX, 0, u64::MAX), 0);
    }

    #[test]
    fn what_is_ready_is_of_use() {
        let target = |used, expected| ReadySettings::default().target(u64::MAX, used, expected);
        assert_eq!(target(0, 7 * MIB), 7 * MIB, "a new volume is filled once");
        assert_eq!(target(7 * MIB, 7 * MIB), 7 * MIB / 2, "one that is full is overwritten");
        assert_eq!(target(3 * MIB, 7 * MIB), 4 * MIB + 3 * MIB / 2);
        assert_eq!(target(u64::MAX, 7 * MIB), 7 * MIB / 2, "garbage, journals, other volumes' remains");
        assert_eq!(target(7 * MIB, 0), 0, "nobody writes anything");
        assert_eq!(target(GIB, u64::MAX), 32 * GIB);
    }

    #[test]
    fn it_waits_until_it_is_quiet_and_gives_way_at_once() {
        let settings = ReadySettings { quiet: 10 * MILLI, bytes_per_sec: 1000 * MIB, ..ReadySettings::default() };
        let start = Instant(7);
        let mut pace = ZeroPace::new(settings, start, 5);
        assert_eq!(pace.plan_step(start, 5), Step::GiveWay(start + 10 * MILLI), "it may have been busy a moment ago");
        let quiet = start + 10 * MILLI;
        assert_eq!(pace.plan_step(quiet, 5), Step::Zero(MIB));
        assert_eq!(pace.plan_step(quiet, 5), Step::Pause(quiet + MILLI));
        assert_eq!(pace.plan_step(quiet + MILLI, 5), Step::Zero(MIB));
        let busy = quiet + 2 * MILLI;
        assert_eq!(pace.plan_step(busy, 6), Step::GiveWay(busy + 10 * MILLI));
        assert_eq!(pace.plan_step(busy + 9 * MILLI, 7), Step::GiveWay(busy + 19 * MILLI), "load goes on");
        assert_eq!(pace.plan_step(busy + 19 * MILLI, 7), Step::Zero(MIB));
        pace.check_invariants(busy + 19 * MILLI);
    }

    #[test]
    fn under_load_nothing_is_written_and_alone_the_rate_is_kept() {
        let settings = ReadySettings { quiet: 10 * MILLI, bytes_per_sec: 100 * MIB, ..ReadySettings::default() };
        for (busy_every, expected) in [(Some(5), 0..=0), (None, 98..=100)] {
            let (mut pace, mut activity, mut written) = (ZeroPace::new(settings, Instant::ZERO, 0), 0, 0);
            for milli in 0..1000u32 {
                activity += u64::from(busy_every.is_some_and(|every| milli % every == 0));
                if let Step::Zero(bytes) = pace.plan_step(Instant::ZERO + MILLI * milli, activity) {
                    written += bytes / MIB;
                }
            }
            assert!(expected.contains(&written), "{busy_every:?}: {written}");
        }
    }
}
