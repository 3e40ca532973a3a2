//! What requests take that meet nobody below: the measure of what they take in company.
//!
//! The last ones of each direction and size are remembered, so that a disk that ages, or its host, is followed.

use super::window::Cell;
use crate::slow_requests::Direction;

/// Requests alone that are remembered of each direction and size.
const REMEMBERED: usize = 128;
/// With fewer the percentile is found with each.
const FEW: usize = 5;
/// Size classes: powers of two from 4 KiB.
const CLASSES: usize = 14;

/// What a request of each direction and size takes alone, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct References([[Reference; CLASSES]; 2]);

/// The last ones of a kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Reference {
    ns: Vec<u64>,
    next: usize,
    /// Where the 95th percentile of them is counted, as it was found last.
    pub(super) p95: Cell,
    has_new: bool,
}

impl References {
    pub(super) fn of(&mut self, direction: Direction, bytes: u64) -> &mut Reference {
        let class = (bytes.max(4096).next_power_of_two().ilog2() - 12) as usize;
        &mut self.0[usize::from(direction != Direction::Read)][class.min(CLASSES - 1)]
    }

    /// Finds percentiles anew, where there was somebody since the last time.
    pub(super) fn find(&mut self) {
        let all = self.0.iter_mut().flatten();
        all.filter(|reference| reference.has_new).for_each(Reference::find);
    }
}

impl Reference {
    /// Whether nothing is known of such requests.
    pub(super) fn is_empty(&self) -> bool {
        self.ns.is_empty()
    }

    /// One more.
    pub(super) fn learn(&mut self, ns: u64) {
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
