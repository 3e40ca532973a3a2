//! How well bursts are found (DiffForward, SIGMETRICS 2023, §5.5, figure 20a).
//!
//! What a burst is, independently of how it is found, the paper does not say. Here time is cut into intervals of 100 ms; one
//! with more than ten times the mean of those before it, of up to a minute and of 10 s at least, is a burst. By bytes: those of
//! such intervals against those of writes that are found. By intervals: one counts as found if half of its bytes are.

use base::Instant;
use policies::burst::{self, BurstSettings, Detector};

use super::workload::Write;

const INTERVAL_NS: u64 = 100_000_000;
/// Intervals that the mean is of.
const BEFORE_MAX: usize = 600;
const BEFORE_MIN: usize = 100;
const TIMES: u64 = 10;

/// What was there, what was found, and what of both.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hits {
    /// In truth.
    pub there: u64,
    /// As the detector says.
    pub found: u64,
    /// Both.
    pub hit: u64,
}

impl Hits {
    fn add(&mut self, weight: u64, is_there: bool, is_found: bool) {
        self.there += if is_there { weight } else { 0 };
        self.found += if is_found { weight } else { 0 };
        self.hit += if is_there && is_found { weight } else { 0 };
    }

    /// What of all that was there was found.
    pub fn recall(self) -> f64 {
        self.hit as f64 / self.there as f64
    }

    /// What of all that was found was there.
    pub fn precision(self) -> f64 {
        self.hit as f64 / self.found as f64
    }

    /// Of two volumes together.
    pub fn and(self, other: Hits) -> Hits {
        Hits { there: self.there + other.there, found: self.found + other.found, hit: self.hit + other.hit }
    }
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Detection {
    /// By bytes.
    pub bytes: Hits,
    /// By intervals.
    pub intervals: Hits,
}

impl Detection {
    /// Of the writes of one volume, in the order of their times; without settings nothing is found.
    pub fn of<'a>(writes: impl IntoIterator<Item = &'a Write>, settings: Option<BurstSettings>) -> Detection {
        let mut detector = settings.map(|settings| Detector::new(settings, Instant(0)));
        // By interval: bytes, and those of them that were found.
        let mut intervals: Vec<(u64, u64)> = Vec::new();
        for write in writes {
            let found = match &mut detector {
                Some(detector) => detector.on_write(Instant(write.at_ns), write.offset, write.bytes),
                None => burst::Traffic::Stable,
            };
            let at = (write.at_ns / INTERVAL_NS) as usize;
            if intervals.len() <= at {
                intervals.resize(at + 1, (0, 0));
            }
            intervals[at].0 += write.bytes;
            intervals[at].1 += if found == burst::Traffic::Burst { write.bytes } else { 0 };
        }
        let mut detection = Detection::default();
        let mut before = 0;
        for (at, &(bytes, found)) in intervals.iter().enumerate() {
            let count = at.min(BEFORE_MAX);
            let is_there = count >= BEFORE_MIN && bytes * count as u64 > TIMES * before;
            detection.bytes.add(found, is_there, true);
            detection.bytes.add(bytes - found, is_there, false);
            if bytes > 0 {
                detection.intervals.add(1, is_there, found * 2 >= bytes);
            }
            before += bytes;
            if at >= BEFORE_MAX {
                before -= intervals[at - BEFORE_MAX].0;
            }
        }
        detection
    }

    /// Of two volumes together.
    pub fn and(self, other: Detection) -> Detection {
        Detection { bytes: self.bytes.and(other.bytes), intervals: self.intervals.and(other.intervals) }
    }
}
