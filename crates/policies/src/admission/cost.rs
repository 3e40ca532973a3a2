//! What requests cost a disk's time, learned from what it delivered.
//!
//! A disk is not so many bytes per second, nor so many operations: it is time, of which an operation takes some, and each
//! byte some more. Neither is known. What is known is the load that was as much as the disk takes, again and again, of
//! different mixes; each says that its cost is the limit. So costs are moved as little as that needs.

use crate::background::Work;
use crate::slow_requests::Direction;

/// What an operation costs besides its bytes, before anything was learned: a guess between disks that move 4 KiB as fast
/// as 64 KiB and those that do not.
const OPERATION_BYTES: f64 = 16_384.0;
/// What background work reads or writes at a time, about.
const WORK_BYTES: f64 = 524_288.0;
/// Costs stay within so many times their first guess, up or down.
const THETA: std::ops::RangeInclusive<f64> = 1.0 / 64.0..=64.0;

/// What requests cost: theta for the operations and bytes of reads and writes, in that order.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Cost(pub(super) [f64; 4]);

/// Operations (in [`OPERATION_BYTES`]) and bytes of reads and writes.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Load(pub(super) [f64; 4]);

impl Load {
    pub(super) fn add(&mut self, direction: Direction, bytes: u64) {
        let at = if direction == Direction::Read { 0 } else { 2 };
        self.0[at] += OPERATION_BYTES;
        self.0[at + 1] += bytes as f64;
    }

    /// What was done in the background.
    pub(super) fn of_work(work: &Work) -> Load {
        let mut load = Load::default();
        for (at, bytes) in [(0, work.read_bytes), (2, work.written_bytes)] {
            load.0[at] = bytes as f64 / WORK_BYTES * OPERATION_BYTES;
            load.0[at + 1] = bytes as f64;
        }
        load
    }

    pub(super) fn plus(&self, other: &Load) -> Load {
        Load(std::array::from_fn(|at| self.0[at] + other.0[at]))
    }

    /// What it costs before anything was learned.
    pub(super) fn plain(&self) -> f64 {
        self.0.iter().sum()
    }

    pub(super) fn bytes(&self) -> f64 {
        self.0[1] + self.0[3]
    }

    pub(super) fn scaled(&self, factor: f64) -> Load {
        Load(self.0.map(|part| part * factor))
    }
}

impl Cost {
    /// Tokens of one request.
    #[inline]
    pub(super) fn of(&self, direction: Direction, bytes: u64) -> u64 {
        let at = if direction == Direction::Read { 0 } else { 2 };
        (self.0[at] * OPERATION_BYTES + self.0[at + 1] * bytes as f64) as u64
    }

    pub(super) fn of_load(&self, load: &Load) -> f64 {
        self.0.iter().zip(load.0).map(|(theta, part)| theta * part).sum()
    }

    /// Changes costs as little as possible so that `load` costs `wanted` (Kaczmarz's projection): what it is made of
    /// changes most, what it has nothing of stays.
    pub(super) fn project(&mut self, load: &Load, wanted: f64) {
        let length: f64 = load.0.iter().map(|part| part * part).sum();
        if length <= 0.0 {
            return;
        }
        let step = (wanted - self.of_load(load)) / length;
        for (theta, part) in self.0.iter_mut().zip(load.0) {
            *theta = (*theta + step * part).clamp(*THETA.start(), *THETA.end());
        }
    }
}
