//! A set of numbers below eight: directories, writes, copies.

use std::fmt::{self, Debug, Formatter};

/// A set of numbers below eight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SmallSet(u8);

impl SmallSet {
    /// Nothing.
    pub const EMPTY: SmallSet = SmallSet(0);

    /// The numbers below `count`.
    pub fn below(count: usize) -> SmallSet {
        SmallSet(((1u16 << count) - 1) as u8)
    }

    /// One number.
    pub fn of(number: usize) -> SmallSet {
        SmallSet(1 << number)
    }

    /// Whether `number` is in it.
    pub fn has(self, number: usize) -> bool {
        self.0 & 1 << number != 0
    }

    /// Whether nothing is in it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many are in it.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// With `number`.
    pub fn with(self, number: usize) -> SmallSet {
        SmallSet(self.0 | 1 << number)
    }

    /// Without `number`.
    pub fn without(self, number: usize) -> SmallSet {
        SmallSet(self.0 & !(1 << number))
    }

    /// What is in one of the two.
    pub fn or(self, other: SmallSet) -> SmallSet {
        SmallSet(self.0 | other.0)
    }

    /// What is in both.
    pub fn and(self, other: SmallSet) -> SmallSet {
        SmallSet(self.0 & other.0)
    }

    /// What is not in the other one.
    pub fn minus(self, other: SmallSet) -> SmallSet {
        SmallSet(self.0 & !other.0)
    }

    /// Whether all of it is in the other one.
    pub fn is_in(self, other: SmallSet) -> bool {
        self.minus(other).is_empty()
    }

    /// The numbers, in order.
    pub fn iter(self) -> impl Iterator<Item = usize> + use<> {
        (0..8).filter(move |number| self.has(*number))
    }

    /// Every set of its numbers, itself and the empty one included.
    pub fn subsets(self) -> impl Iterator<Item = SmallSet> + use<> {
        (0..=self.0).map(SmallSet).filter(move |subset| subset.is_in(self))
    }
}

impl FromIterator<usize> for SmallSet {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> SmallSet {
        numbers.into_iter().fold(SmallSet::EMPTY, SmallSet::with)
    }
}

impl Debug for SmallSet {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_sets() {
        let odd = SmallSet::from_iter([1, 3, 5, 7]);
        let low = SmallSet::below(4);
        assert_eq!(odd.and(low).iter().collect::<Vec<_>>(), [1, 3]);
        assert_eq!((odd.or(low).len(), odd.minus(low), SmallSet::below(8).len()), (6, SmallSet::from_iter([5, 7]), 8));
        assert_eq!(odd.and(low).subsets().count(), 4);
        assert!(SmallSet::EMPTY.is_in(odd) && !low.is_in(odd) && odd.with(0).without(0) == odd);
        assert_eq!(format!("{odd:?}"), "{1, 3, 5, 7}");
    }
}
