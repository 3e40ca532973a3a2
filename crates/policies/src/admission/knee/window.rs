//! What is counted between two looks: who was done, how long it took, and how long it takes alone.

use base::Instant;

use super::cost::Load;

/// Steady requests that a window needs to be judged by them.
pub(super) const STEADY_MIN: u32 = 8;
/// Where histograms of times begin: 4 us.
const FIRST_POWER: u32 = 12;
/// Their cells, eight for each octave.
pub(super) const CELLS: usize = 8 * 24;

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Cell(pub(super) usize);

/// What is counted since the last look.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) begun: Instant,
    pub(super) requests: u64,
    /// The time of all of them, which is how many there were at a time.
    pub(super) total_ns: u64,
    /// What steady segments had done, and hot ones.
    pub(super) steady: Done,
    pub(super) hot: Done,
    pub(super) binds: bool,
}

/// What was done, how long it took, and what its like takes alone.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) load: Load,
    took: [u32; CELLS],
    alone: [u32; CELLS],
    /// How many were compared.
    pub(super) count: u32,
}

impl Done {
    fn new() -> Done {
        Done { load: Load::default(), took: [0; CELLS], alone: [0; CELLS], count: 0 }
    }

    /// A request whose like is known.
    #[inline]
    pub(super) fn compare(&mut self, took: Cell, alone: Cell) {
        self.took[took.0] += 1;
        self.alone[alone.0] += 1;
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
    Cell(found.unwrap_or(CELLS - 1)).middle_ns()
}

impl Window {
    pub(super) fn new(begun: Instant) -> Window {
        Window { begun, requests: 0, total_ns: 0, steady: Done::new(), hot: Done::new(), binds: false }
    }

    /// All that was done.
    pub(super) fn done(&self) -> Load {
        self.steady.load.plus(&self.hot.load)
    }

    /// The stretch, in percent; none where too few requests could be compared.
    pub(super) fn stretch_percent(&self) -> Option<u64> {
        if self.steady.count >= STEADY_MIN {
            return Some(self.steady.stretch(95));
        }
        let mut all = self.steady.clone();
        all.count += self.hot.count;
        for (sums, parts) in [(&mut all.took, &self.hot.took), (&mut all.alone, &self.hot.alone)] {
            sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        }
        (u64::from(all.count) * 2 >= self.requests.max(1)).then(|| all.stretch(75))
    }
}

impl Cell {
    /// Where a time is counted.
    #[inline]
    pub(super) fn of(ns: u64) -> Cell {
        let ns = ns.max(1 << FIRST_POWER);
        let power = ns.ilog2();
        let step = (ns >> (power - 3)) & 7;
        Cell(((power - FIRST_POWER) as usize * 8 + step as usize).min(CELLS - 1))
    }

    /// The middle of what is counted there.
    pub(super) fn middle_ns(self) -> u64 {
        let (power, step) = (self.0 as u32 / 8 + FIRST_POWER, self.0 as u64 % 8);
        (1u64 << power) + (step << (power - 3)) + (1 << (power - 4))
    }
}
