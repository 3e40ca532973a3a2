//! What requests take that meet nobody below: the measure of what they take in company.
//!
//! The last ones of each direction and size are remembered, so that a disk that ages, or its host, is followed.

use crate::slow_requests::Direction;

/// Requests alone that are remembered of each direction and size.
const REMEMBERED: usize = 128;
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
    /// Their 95th percentile, found anew now and then.
    pub(super) p95_ns: u64,
}

impl References {
    pub(super) fn of(&mut self, direction: Direction, bytes: u64) -> &mut Reference {
        let class = (bytes.max(4096).next_power_of_two().ilog2() - 12) as usize;
        &mut self.0[usize::from(direction != Direction::Read)][class.min(CLASSES - 1)]
    }
}

impl Reference {
    /// Whether nothing is known of such requests.
    pub(super) fn is_empty(&self) -> bool {
        self.ns.is_empty()
    }

    pub(super) fn learn(&mut self, ns: u64) {
        match self.ns.len() < REMEMBERED {
            true => self.ns.push(ns),
            false => self.ns[self.next] = ns,
        }
        self.next = (self.next + 1) % REMEMBERED;
        if self.ns.len() <= 4 || self.next.is_multiple_of(8) {
            let mut sorted = [u64::MAX; REMEMBERED];
            sorted[..self.ns.len()].copy_from_slice(&self.ns);
            sorted.sort_unstable();
            self.p95_ns = sorted[(self.ns.len() * 95).div_ceil(100) - 1].max(1);
        }
    }
}
