//! A map from ranges of addresses to values, where a newer range cuts what it covers out of older ones.
//!
//! The memory index, the segment cache and the client index are such maps. Ranges are half open, never empty and
//! never overlap. A value knows how to [`Split`] itself when a part of its range is cut away.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};

/// A value that covers a range and can be cut in two.
pub trait Split: Sized {
    /// Shortens this value to its first `at` units and returns the rest. `0 < at < length`.
    fn split_off(&mut self, at: u64) -> Self;
}

/// The same value everywhere in a range.
impl Split for () {
    fn split_off(&mut self, _at: u64) {}
}

/// Ranges of `u64` addresses and their values, ordered by address.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IntervalMap<V> {
    ranges: BTreeMap<u64, (u64, V)>,
}

impl<V> Default for IntervalMap<V> {
    fn default() -> Self {
        IntervalMap { ranges: BTreeMap::new() }
    }
}

impl<V> IntervalMap<V> {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there is no range.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Every range and its value, by address.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Range<u64>, &V)> {
        self.ranges.iter().map(|(&start, (end, value))| (start..*end, value))
    }

    /// Every range and its value, by address, to change values in place.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (Range<u64>, &mut V)> {
        self.ranges.iter_mut().map(|(&start, (end, value))| (start..*end, value))
    }

    /// The ranges that overlap `range`, whole (not clipped), by address.
    pub fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, &V)> {
        let first = match self.ranges.range(..=range.start).next_back() {
            Some((&start, (end, _))) if *end > range.start => start,
            _ => range.start,
        };
        // An empty query sees nothing; `first..first` would panic in neither case.
        let last = if range.is_empty() { first } else { range.end };
        self.ranges
            .range((Bound::Included(first), Bound::Excluded(last.max(first))))
            .map(|(&start, (end, value))| (start..*end, value))
    }

    /// The range that contains `address`, whole, with its value.
    pub fn get(&self, address: u64) -> Option<(Range<u64>, &V)> {
        let (&start, (end, value)) = self.ranges.range(..=address).next_back()?;
        (address < *end).then_some((start..*end, value))
    }

    /// Whether no range overlaps `range`, which is not empty.
    pub fn is_free(&self, range: &Range<u64>) -> bool {
        // If any does, then the last one that begins before its end does.
        self.ranges.range(..range.end).next_back().is_none_or(|(_, (end, _))| *end <= range.start)
    }

    /// The parts of `range` that no range covers, by address.
    pub fn gaps(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        for (covered, _) in self.overlapping(range.clone()) {
            if covered.start > at {
                gaps.push(at..covered.start);
            }
            at = covered.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }
}

impl<V: Split> IntervalMap<V> {
    /// Puts `value` at `range` and returns what it covered, clipped to `range`, by address.
    pub fn insert(&mut self, range: Range<u64>, value: V) -> Vec<(Range<u64>, V)> {
        assert!(!range.is_empty(), "a range is never empty");
        let covered = self.remove(range.clone());
        self.ranges.insert(range.start, (range.end, value));
        covered
    }

    /// Cuts `range` out of the map and returns what was there, clipped to `range`, by address.
    pub fn remove(&mut self, range: Range<u64>) -> Vec<(Range<u64>, V)> {
        if range.is_empty() || self.is_free(&range) {
            return Vec::new();
        }
        self.cut(range.start);
        self.cut(range.end);
        let mut starts = self.ranges.range(range.clone()).map(|(&start, _)| start);
        let Some(first) = starts.next() else { return Vec::new() };
        let mut removed = Vec::new();
        let others: Vec<u64> = starts.collect();
        for start in std::iter::once(first).chain(others) {
            if let Some((end, value)) = self.ranges.remove(&start) {
                removed.push((start..end, value));
            }
        }
        removed
    }

    /// Makes `address` a boundary: a range that spans it becomes two.
    fn cut(&mut self, address: u64) {
        let Some((&start, (end, value))) = self.ranges.range_mut(..address).next_back() else { return };
        if *end > address {
            let rest = value.split_off(address - start);
            let rest_end = std::mem::replace(end, address);
            self.ranges.insert(address, (rest_end, rest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Prng;

    /// A value that remembers which address it was inserted for.
    #[derive(Clone, Debug, PartialEq)]
    struct Tag {
        write: u64,
        offset: u64,
    }

    impl Split for Tag {
        fn split_off(&mut self, at: u64) -> Tag {
            Tag { write: self.write, offset: self.offset + at }
        }
    }

    #[test]
    fn agrees_with_an_array() {
        for seed in 0..200 {
            let mut prng = Prng::new(seed);
            let mut map = IntervalMap::new();
            let mut model: Vec<Option<Tag>> = vec![None; 64];
            for write in 0..60 {
                let start = prng.below(64);
                let end = prng.between(start, 63.min(start + 20)) + 1;
                let old: Vec<_> = model[start as usize..end as usize].to_vec();
                let covered = match prng.one_in(3) {
                    true => {
                        (start..end).for_each(|i| model[i as usize] = None);
                        map.remove(start..end)
                    }
                    false => {
                        (start..end).for_each(|i| model[i as usize] = Some(Tag { write, offset: i - start }));
                        map.insert(start..end, Tag { write, offset: 0 })
                    }
                };
                let mut returned = vec![None; old.len()];
                for (range, value) in covered {
                    for i in range.clone() {
                        returned[(i - start) as usize] =
                            Some(Tag { write: value.write, offset: value.offset + i - range.start });
                    }
                }
                assert_eq!(returned, old, "seed {seed}");
                for i in 0..64 {
                    let found = map.get(i).map(|(range, v)| Tag { write: v.write, offset: v.offset + i - range.start });
                    assert_eq!(found, model[i as usize], "seed {seed}");
                }
                let (a, b) = (prng.below(64), prng.below(64));
                let (a, b) = (a.min(b), a.max(b));
                let gap: u64 = map.gaps(a..b).iter().map(|g| g.end - g.start).sum();
                assert_eq!(gap, (a..b).filter(|&i| model[i as usize].is_none()).count() as u64);
                assert!(a == b || map.is_free(&(a..b)) == (gap == b - a));
                assert!(map.overlapping(a..b).all(|(r, _)| r.start < b && r.end > a));
            }
        }
    }
}
