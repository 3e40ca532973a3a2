//! How well bursts are found (DiffForward, SIGMETRICS 2023, §5.5, figure 20a).
//!
//! What a burst is, independently of how it is found, the paper does not say. Here time is cut into intervals of 100 ms; one
//! with more than ten times the mean of those before it, of up to a minute and of 10 s at least, is a burst. By bytes: those of
//! such intervals against those of writes that are found. By intervals: one counts as found if half of its bytes are.

use std::collections::VecDeque;

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

/// Looks at the writes of one volume, one after the other in the order of their times. What it keeps is of the last minute.
pub struct Watch {
    detector: Option<Detector>,
    /// The interval that is open, its bytes, and those of them that were found.
    open: u64,
    bytes: u64,
    found: u64,
    /// Bytes of the intervals before it.
    before: VecDeque<u64>,
    sum: u64,
    seen: Detection,
}

impl Watch {
    /// Without settings nothing is found.
    pub fn new(settings: Option<BurstSettings>) -> Watch {
        Watch {
            detector: settings.map(|settings| Detector::new(settings, Instant(0))),
            open: 0,
            bytes: 0,
            found: 0,
            before: VecDeque::new(),
            sum: 0,
            seen: Detection::default(),
        }
    }

    /// One more write.
    pub fn add(&mut self, write: &Write) {
        let at = write.at_ns / INTERVAL_NS;
        if at > self.open {
            self.close();
            // Of what nothing was written in nothing more than a minute counts.
            (1..at - self.open).take(BEFORE_MAX).for_each(|_| self.remember(0));
            self.open = at;
        }
        let found = match &mut self.detector {
            Some(detector) => detector.on_write(Instant(write.at_ns), write.offset, write.bytes),
            None => burst::Traffic::Stable,
        };
        self.bytes += write.bytes;
        self.found += if found != burst::Traffic::Stable { write.bytes } else { 0 };
    }

    /// What there was, and what was found.
    pub fn finish(mut self) -> Detection {
        self.close();
        self.seen
    }

    fn close(&mut self) {
        let (bytes, found) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.found));
        let count = self.before.len();
        let is_there = count >= BEFORE_MIN && bytes * count as u64 > TIMES * self.sum;
        self.seen.bytes.add(found, is_there, true);
        self.seen.bytes.add(bytes - found, is_there, false);
        if bytes > 0 {
            self.seen.intervals.add(1, is_there, found * 2 >= bytes);
        }
        self.remember(bytes);
    }

    fn remember(&mut self, bytes: u64) {
        self.sum += bytes;
        self.before.push_back(bytes);
        if self.before.len() > BEFORE_MAX {
            self.sum -= self.before.pop_front().unwrap_or_default();
        }
    }
}

impl Detection {
    /// Of the writes of one volume, in the order of their times; without settings nothing is found.
    pub fn of<'a>(writes: impl IntoIterator<Item = &'a Write>, settings: Option<BurstSettings>) -> Detection {
        let mut watch = Watch::new(settings);
        writes.into_iter().for_each(|write| watch.add(write));
        watch.finish()
    }

    /// Of two volumes together.
    pub fn and(self, other: Detection) -> Detection {
        Detection { bytes: self.bytes.and(other.bytes), intervals: self.intervals.and(other.intervals) }
    }
}
