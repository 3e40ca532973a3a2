//! What is counted between two looks: who was done, how long it took, and how long it takes alone.

use base::Instant;

use super::cost::Load;

/// Steady requests that a window needs to be judged by them.
pub(super) const STEADY_MIN: u32 = 8;
/// Where histograms of times begin: 4 us.
const FIRST_POWER: u32 = 12;
/// Their cells, eight for each octave.
pub(super) const CELLS: usize = 8 * 24;

/// What is counted since the last look.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) begun: Instant,
    pub(super) done: Load,
    pub(super) requests: u64,
    /// The time of all of them, which is how many there were at a time.
    pub(super) total_ns: u64,
    /// Of the requests of steady segments, and of all of them.
    pub(super) steady: Times,
    pub(super) all: Times,
    pub(super) steady_done: Load,
    pub(super) binds: bool,
}

/// How long requests took, and what their like takes alone.
#[derive(Clone, Debug)]
pub(super) struct Times {
    took: [u32; CELLS],
    alone: [u32; CELLS],
    pub(super) count: u32,
}

impl Times {
    pub(super) fn new() -> Times {
        Times { took: [0; CELLS], alone: [0; CELLS], count: 0 }
    }

    pub(super) fn add(&mut self, took_ns: u64, alone_ns: u64) {
        self.took[cell_of(took_ns)] += 1;
        self.alone[cell_of(alone_ns)] += 1;
        self.count += 1;
    }

    /// A quantile of what they took over the same one of what they take alone, in percent.
    pub(super) fn stretch(&self, percent: u32) -> u64 {
        let rank = (self.count * percent).div_ceil(100);
        quantile(&self.took, rank) * 100 / quantile(&self.alone, rank)
    }
}

fn quantile(cells: &[u32; CELLS], rank: u32) -> u64 {
    let mut seen = 0;
    let found = cells.iter().position(|count| {
        seen += count;
        seen >= rank
    });
    middle_of(found.unwrap_or(CELLS - 1))
}

impl Window {
    pub(super) fn new(begun: Instant) -> Window {
        Window {
            begun,
            done: Load::default(),
            requests: 0,
            total_ns: 0,
            steady: Times::new(),
            all: Times::new(),
            steady_done: Load::default(),
            binds: false,
        }
    }

    /// The stretch, in percent; none where too few requests could be compared.
    pub(super) fn stretch_percent(&self) -> Option<u64> {
        if self.steady.count >= STEADY_MIN {
            return Some(self.steady.stretch(95));
        }
        (u64::from(self.all.count) * 2 >= self.requests.max(1)).then(|| self.all.stretch(75))
    }
}

/// Where a time is counted.
pub(super) fn cell_of(ns: u64) -> usize {
    let ns = ns.max(1 << FIRST_POWER);
    let power = ns.ilog2();
    let step = (ns >> (power - 3)) & 7;
    ((power - FIRST_POWER) as usize * 8 + step as usize).min(CELLS - 1)
}

/// The middle of what is counted there.
pub(super) fn middle_of(cell: usize) -> u64 {
    let (power, step) = (cell as u32 / 8 + FIRST_POWER, cell as u64 % 8);
    (1u64 << power) + (step << (power - 3)) + (1 << (power - 4))
}
