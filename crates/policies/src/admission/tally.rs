//! How long requests took, and how long their like takes alone: histograms of both, side by side.

/// Where histograms of times begin: 4 us.
const FIRST_POWER: u32 = 12;
/// Their cells, eight for each octave.
pub(super) const CELLS: usize = 8 * 24;

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Cell(pub(super) usize);

/// Requests that were compared with what their like takes alone.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    took: [u32; CELLS],
    alone: [u32; CELLS],
    /// How many they are.
    pub count: u32,
}

impl Tally {
    pub const NONE: Tally = Tally { took: [0; CELLS], alone: [0; CELLS], count: 0 };

    /// One more.
    #[inline]
    pub fn add(&mut self, took: Cell, alone: Cell) {
        self.took[took.0] += 1;
        self.alone[alone.0] += 1;
        self.count += 1;
    }

    /// All of another one.
    pub fn merge(&mut self, other: &Tally) {
        self.count += other.count;
        for (sums, parts) in [(&mut self.took, &other.took), (&mut self.alone, &other.alone)] {
            sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        }
    }

    /// A quantile of what they took, and the same one of what their like takes alone, in nanoseconds.
    pub fn quantile(&self, percent: u32) -> (u64, u64) {
        let rank = (u64::from(self.count) * u64::from(percent)).div_ceil(100) as u32;
        (quantile(&self.took, rank), quantile(&self.alone, rank))
    }

    /// A quantile of what they took, by where it lies in its cell: for differences, which are small beside a cell.
    pub fn took_between(&self, percent: u32) -> u64 {
        let rank = (u64::from(self.count) * u64::from(percent)).div_ceil(100) as u32;
        let mut seen = 0;
        for (cell, count) in self.took.iter().enumerate() {
            if seen + count >= rank.max(1) {
                let (first, width) = Cell(cell).range_ns();
                return first + width * u64::from(rank.max(1) - seen) / u64::from(*count);
            }
            seen += count;
        }
        Cell(CELLS - 1).middle_ns()
    }

    /// The one over the other, in percent.
    pub fn stretch(&self, percent: u32) -> u64 {
        let (took, alone) = self.quantile(percent);
        took * 100 / alone
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

impl Cell {
    /// Where a time is counted.
    #[inline]
    pub fn of(ns: u64) -> Cell {
        let ns = ns.max(1 << FIRST_POWER);
        let power = ns.ilog2();
        let step = (ns >> (power - 3)) & 7;
        Cell(((power - FIRST_POWER) as usize * 8 + step as usize).min(CELLS - 1))
    }

    /// The middle of what is counted there.
    pub fn middle_ns(self) -> u64 {
        let (first, width) = self.range_ns();
        first + width / 2
    }

    /// The shortest time that is counted there, and how far it is to the next cell.
    fn range_ns(self) -> (u64, u64) {
        let (power, step) = (self.0 as u32 / 8 + FIRST_POWER, self.0 as u64 % 8);
        ((1u64 << power) + (step << (power - 3)), 1 << (power - 3))
    }
}

#[cfg(test)]
mod tests {
    use base::Prng;

    use super::*;

    #[test]
    fn cells_hold_what_they_say() {
        let mut prng = Prng::new(3);
        for _ in 0..10_000 {
            let ns = prng.between(5_000, 10_000_000_000);
            let found = Cell::of(ns).middle_ns();
            assert!((ns * 92 / 100..=ns * 108 / 100).contains(&found), "{ns}: {found}");
        }
        assert_eq!((Cell::of(u64::MAX), Cell::of(0)), (Cell(CELLS - 1), Cell(0)));
    }

    #[test]
    fn a_quantile_between_the_ends_of_a_cell_is_near() {
        let mut tally = Tally::NONE;
        // From 100 to 200 us, all as often.
        (0..10_000).for_each(|number| tally.add(Cell::of(100_000 + number * 10), Cell::default()));
        for percent in [5, 50, 95] {
            let (found, expected) = (tally.took_between(percent), 100_000 + u64::from(percent) * 1_000);
            assert!((expected * 99 / 100..=expected * 101 / 100).contains(&found), "{found} for {expected}");
        }
    }
}
