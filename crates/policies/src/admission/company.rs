//! What requests take that meet nobody below, and who met somebody: the measure of what they take in company.
//!
//! The last ones of each direction and size are remembered, so that a disk that ages, or its host, is followed. *Alone* is
//! a request below which no other one was between its start and its end.

use base::Instant;

use super::request::Outcome;
use super::tally::Cell;
use crate::slow_requests::Direction;

/// Requests alone that are remembered of each direction and size.
const REMEMBERED: usize = 128;
/// With fewer the percentile is found with each.
const FEW: usize = 5;
/// Size classes: powers of two from 4 KiB.
const CLASSES: usize = 14;

/// Who is below, and what it takes alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Company {
    references: [[Reference; CLASSES]; 2],
    /// Requests below, and when there was last more than one.
    below: usize,
    crowded_at: Instant,
}

/// A request that is done, beside its like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compared {
    /// How long it took. What memory answers is as fast as it can be.
    pub took: Cell,
    /// What its like takes alone, the 95th percentile; none where that is not known.
    pub alone: Option<Cell>,
    /// Whether it was alone itself.
    pub was_alone: bool,
}

impl Company {
    /// A request was started.
    #[inline]
    pub fn on_start(&mut self, now: Instant) {
        self.below += 1;
        if self.below > 1 {
            self.crowded_at = now;
        }
    }

    /// A request that was started is gone without an outcome.
    pub fn on_gone(&mut self) {
        self.below = self.below.saturating_sub(1);
    }

    /// A request is done.
    #[inline]
    pub fn on_done(&mut self, now: Instant, done: &Outcome) -> Compared {
        if self.below > 1 {
            self.crowded_at = now;
        }
        self.below = self.below.saturating_sub(1);
        let ns = now.nanos_since(done.granted);
        let reference = self.of(done.direction, done.bytes);
        let was_alone = done.went_below && done.granted > self.crowded_at;
        let reference = &mut self.references[reference.0][reference.1];
        if was_alone {
            reference.learn(ns);
        }
        let alone = (!reference.ns.is_empty()).then_some(reference.p95);
        let took = match alone {
            Some(alone) if !done.went_below => alone,
            _ => Cell::of(ns),
        };
        Compared { took, alone, was_alone }
    }

    fn of(&self, direction: Direction, bytes: u64) -> (usize, usize) {
        let class = (bytes.max(4096).next_power_of_two().ilog2() - 12) as usize;
        (usize::from(direction != Direction::Read), class.min(CLASSES - 1))
    }

    /// Requests below.
    pub fn below(&self) -> usize {
        self.below
    }

    /// Whatever was lost count of is not there any more.
    pub fn forget_below(&mut self) {
        self.below = 0;
    }

    /// Finds percentiles anew, where there was somebody since the last time.
    pub fn find(&mut self) {
        let all = self.references.iter_mut().flatten();
        all.filter(|reference| reference.has_new).for_each(Reference::find);
    }
}

/// The last ones of a kind that were alone.
#[derive(Clone, Debug, Default)]
struct Reference {
    ns: Vec<u64>,
    next: usize,
    /// Where the 95th percentile of them is counted, as it was found last.
    p95: Cell,
    has_new: bool,
}

impl Reference {
    /// One more.
    fn learn(&mut self, ns: u64) {
        match self.ns.len() < REMEMBERED {
            true => self.ns.push(ns),
            false => self.ns[self.next] = ns,
        }
        self.next = (self.next + 1) % REMEMBERED;
        self.has_new = true;
        if self.ns.len() < FEW {
            self.find();
        }
    }

    fn find(&mut self) {
        let mut sorted = [u64::MAX; REMEMBERED];
        sorted[..self.ns.len()].copy_from_slice(&self.ns);
        sorted.sort_unstable();
        self.p95 = Cell::of(sorted[(self.ns.len() * 95).div_ceil(100) - 1]);
        self.has_new = false;
    }
}
