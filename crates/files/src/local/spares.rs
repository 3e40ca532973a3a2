//! The spares of one directory: space that no file has, kept for the next file of its size.
//!
//! There are two kinds, which never mix. *Written* spares were zero-written, or hold what a journal left: a durable
//! append to them touches no file-system metadata. *Allocated* ones are what data files left: mostly written, but
//! nobody promises it. Each kind has its own bounds, so that data files of many sizes, coming and going, cannot push
//! out what the journal is about to need. At a bound the oldest spare gives way: its size may never be asked for
//! again.
//!
//! Data files come and go in waves: garbage collection deletes many at once, which writers ask for one by one. So the
//! bound of allocated spares is in bytes, and wide. What gives way costs twice: the file system discards its blocks now,
//! and converts those of its successor at each first write, both beside what clients wait for.
//!
//! One allocated spare may be *unfinished*: it is being zero-written ahead of need ([`super::ready`]), and no file takes
//! it before that is done. It counts as the others do, and is the first to give way. While zeros go to it, it is *in
//! hand*: nobody gets it, and who has to have its room waits for the few steps until it is put back.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::header::HEADER;
use super::names::{Name, SpareKind};

/// Written spares of one capacity that are kept.
pub(crate) const WRITTEN_PER_CAPACITY_MAX: usize = 8;
/// Written spares that are kept in all.
const WRITTEN_MAX: usize = 24;
/// Allocated spares that are kept, if they are within the bound in bytes.
const ALLOCATED_MAX: usize = 512;

/// The spares of one directory.
#[derive(Default)]
pub(crate) struct Spares {
    /// The numbers in their names, ascending: the oldest first.
    numbers: BTreeMap<(SpareKind, u64), Vec<u64>>,
    bytes_written: u64,
    bytes_allocated: u64,
    /// At rest; one that is in hand is not here, but counted.
    unfinished: Option<Unfinished>,
    is_in_hand: bool,
}

/// A spare that is being zero-written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unfinished {
    /// The number in its name.
    pub(crate) number: u64,
    /// Its capacity.
    pub(crate) capacity: u64,
    /// Bytes that hold zeros, from its first one on.
    pub(crate) zeroed: u64,
}

impl Unfinished {
    /// Its name.
    pub(crate) fn name(&self) -> Name {
        Name::Spare(SpareKind::Allocated, self.number)
    }

    fn bytes(&self) -> u64 {
        HEADER + self.capacity
    }
}

/// The one that is being zero-written.
impl Spares {
    /// Begins one: it is in hand.
    pub(crate) fn begin(&mut self, unfinished: &Unfinished) {
        assert!(!self.is_in_hand && self.unfinished.is_none(), "one at a time");
        self.is_in_hand = true;
        self.bytes_allocated += unfinished.bytes();
    }

    /// The one at rest, to be gone on with: it is in hand.
    pub(crate) fn take_in_hand(&mut self) -> Option<Unfinished> {
        let taken = self.unfinished.take();
        self.is_in_hand |= taken.is_some();
        taken
    }

    /// Puts the one in hand back, as one to be gone on with.
    pub(crate) fn put_back(&mut self, unfinished: Unfinished) {
        assert!(std::mem::take(&mut self.is_in_hand), "it was in hand");
        self.unfinished = Some(unfinished);
    }

    /// The one in hand is like the others from now on.
    pub(crate) fn finish(&mut self, unfinished: &Unfinished) {
        self.lose(unfinished);
        self.add(SpareKind::Allocated, unfinished.capacity, unfinished.number);
    }

    /// The one in hand is gone.
    pub(crate) fn lose(&mut self, unfinished: &Unfinished) {
        assert!(std::mem::take(&mut self.is_in_hand), "it was in hand");
        self.bytes_allocated -= unfinished.bytes();
    }

    /// Whether one is in hand.
    pub(crate) fn is_in_hand(&self) -> bool {
        self.is_in_hand
    }

    /// Whether one is to be gone on with.
    pub(crate) fn has_unfinished(&self) -> bool {
        self.unfinished.is_some()
    }

    fn take_unfinished(&mut self) -> Option<(Name, u64)> {
        let taken = self.unfinished.take()?;
        self.bytes_allocated -= taken.bytes();
        Some((taken.name(), taken.capacity))
    }
}

impl Spares {
    /// What they take up.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes_written + self.bytes_allocated
    }

    /// What those of one kind take up.
    pub(crate) fn bytes_of(&self, kind: SpareKind) -> u64 {
        match kind {
            SpareKind::Written => self.bytes_written,
            SpareKind::Allocated => self.bytes_allocated,
        }
    }

    /// The largest capacity within `range` of which there is a spare of one kind.
    pub(crate) fn largest_within(&self, kind: SpareKind, range: RangeInclusive<u64>) -> Option<u64> {
        let within = self.numbers.range((kind, *range.start())..=(kind, *range.end()));
        within.map(|(&(_, capacity), _)| capacity).next_back()
    }

    /// Whether one more of a kind and capacity would be too many, whatever the others are.
    pub(crate) fn is_enough(&self, kind: SpareKind, capacity: u64) -> bool {
        kind == SpareKind::Written && self.count(kind, capacity) >= WRITTEN_PER_CAPACITY_MAX
    }

    /// How many there are of one kind and capacity.
    pub(crate) fn count(&self, kind: SpareKind, capacity: u64) -> usize {
        self.numbers.get(&(kind, capacity)).map_or(0, Vec::len)
    }

    pub(crate) fn add(&mut self, kind: SpareKind, capacity: u64, number: u64) {
        self.numbers.entry((kind, capacity)).or_default().push(number);
        *self.bytes_of_mut(kind) += HEADER + capacity;
    }

    /// Takes the youngest of one kind and capacity.
    pub(crate) fn take(&mut self, kind: SpareKind, capacity: u64) -> Option<Name> {
        let number = self.numbers.get_mut(&(kind, capacity))?.pop();
        self.on_taken((kind, capacity));
        number.map(|number| Name::Spare(kind, number))
    }

    /// Takes one to make room, with its capacity: the unfinished one, then one of those that take up most.
    pub(crate) fn take_for_room(&mut self) -> Option<(Name, u64)> {
        if let Some(unfinished) = self.take_unfinished() {
            return Some(unfinished);
        }
        let (kind, capacity) = self.numbers.keys().copied().max_by_key(|&(kind, capacity)| (capacity, kind))?;
        self.take(kind, capacity).map(|name| (name, capacity))
    }

    /// Takes the oldest of a kind if there are too many, with its capacity. Of allocated ones there are too many where
    /// they take up more than `allocated_bytes_max`.
    pub(crate) fn take_surplus(&mut self, kind: SpareKind, allocated_bytes_max: u64) -> Option<(Name, u64)> {
        let (count_max, bytes_max) = match kind {
            SpareKind::Written => (WRITTEN_MAX, u64::MAX),
            SpareKind::Allocated => (ALLOCATED_MAX, allocated_bytes_max),
        };
        let bytes = self.bytes_of(kind);
        let of_kind = || self.numbers.iter().filter(|((other, _), _)| *other == kind);
        if of_kind().map(|(_, numbers)| numbers.len()).sum::<usize>() <= count_max && bytes <= bytes_max {
            return None;
        }
        let (&key, &number) =
            of_kind().filter_map(|(key, numbers)| Some((key, numbers.first()?))).min_by_key(|(_, n)| **n)?;
        self.numbers.get_mut(&key)?.remove(0);
        self.on_taken(key);
        Some((Name::Spare(kind, number), key.1))
    }

    fn bytes_of_mut(&mut self, kind: SpareKind) -> &mut u64 {
        match kind {
            SpareKind::Written => &mut self.bytes_written,
            SpareKind::Allocated => &mut self.bytes_allocated,
        }
    }

    fn on_taken(&mut self, key: (SpareKind, u64)) {
        *self.bytes_of_mut(key.0) -= HEADER + key.1;
        if self.numbers.get(&key).is_some_and(Vec::is_empty) {
            self.numbers.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_a_kind_gives_way_and_the_other_kind_stays() {
        let mut spares = Spares::default();
        spares.add(SpareKind::Allocated, 100, 1);
        for number in 2..2 + WRITTEN_MAX as u64 {
            spares.add(SpareKind::Written, number, number);
            assert_eq!(spares.take_surplus(SpareKind::Written, 0), None);
        }
        spares.add(SpareKind::Written, 5, 1000);
        assert_eq!(spares.take_surplus(SpareKind::Written, 0), Some((Name::Spare(SpareKind::Written, 2), 2)));
        assert_eq!(spares.take_surplus(SpareKind::Written, 0), None);
        assert_eq!(spares.count(SpareKind::Allocated, 100), 1);
        assert_eq!(spares.take(SpareKind::Allocated, 100), Some(Name::Spare(SpareKind::Allocated, 1)));
        assert_eq!(spares.take(SpareKind::Allocated, 100), None);
    }

    #[test]
    fn allocated_ones_are_bounded_by_bytes_and_by_number() {
        let mut spares = Spares::default();
        for number in 0..10 {
            spares.add(SpareKind::Allocated, 1000, number);
            assert!(!spares.is_enough(SpareKind::Allocated, 1000));
        }
        let limit = 9 * (1000 + HEADER);
        assert_eq!(
            spares.take_surplus(SpareKind::Allocated, limit),
            Some((Name::Spare(SpareKind::Allocated, 0), 1000))
        );
        assert_eq!(spares.take_surplus(SpareKind::Allocated, limit), None);
        for number in 10..10 + ALLOCATED_MAX as u64 {
            spares.add(SpareKind::Allocated, 1000, number);
        }
        let gone = std::iter::from_fn(|| spares.take_surplus(SpareKind::Allocated, u64::MAX)).count();
        assert_eq!((gone, spares.count(SpareKind::Allocated, 1000)), (9, ALLOCATED_MAX));
    }

    #[test]
    fn the_largest_that_is_asked_for_is_found() {
        let mut spares = Spares::default();
        for (kind, capacity) in [(SpareKind::Allocated, 10), (SpareKind::Allocated, 30), (SpareKind::Written, 20)] {
            spares.add(kind, capacity, capacity);
        }
        let largest = |range| spares.largest_within(SpareKind::Allocated, range);
        assert_eq!((largest(5..=40), largest(5..=30), largest(5..=29)), (Some(30), Some(30), Some(10)));
        assert_eq!((largest(11..=29), largest(31..=40)), (None, None));
    }

    #[test]
    fn the_unfinished_one_counts_and_is_nobodys_but_gives_way_first() {
        let unfinished = Unfinished { number: 1, capacity: 8192, zeroed: 4096 };
        let mut spares = Spares::default();
        spares.begin(&unfinished);
        assert!(spares.is_in_hand() && !spares.has_unfinished());
        assert_eq!((spares.bytes(), spares.take_for_room()), (8192 + HEADER, None), "in hand: who wants it waits");
        spares.put_back(unfinished);
        assert_eq!(spares.take(SpareKind::Allocated, 8192), None);
        assert_eq!(spares.largest_within(SpareKind::Allocated, 0..=8192), None);
        assert_eq!(spares.take_in_hand(), Some(unfinished));
        spares.finish(&unfinished);
        assert_eq!((spares.bytes(), spares.is_in_hand()), (8192 + HEADER, false));
        assert_eq!(spares.take(SpareKind::Allocated, 8192), Some(unfinished.name()));

        spares.add(SpareKind::Written, 1 << 20, 2);
        spares.begin(&unfinished);
        spares.put_back(unfinished);
        assert_eq!(spares.take_for_room(), Some((unfinished.name(), 8192)));
        assert_eq!((spares.take_in_hand(), spares.bytes()), (None, HEADER + (1 << 20)));
        spares.begin(&unfinished);
        spares.lose(&unfinished);
        assert_eq!((spares.is_in_hand(), spares.bytes()), (false, HEADER + (1 << 20)));
    }

    #[test]
    fn bytes_are_what_is_there() {
        let mut spares = Spares::default();
        spares.add(SpareKind::Written, 8192, 1);
        spares.add(SpareKind::Allocated, 4096, 2);
        assert_eq!(spares.bytes(), 8192 + 4096 + 2 * HEADER);
        assert_eq!(spares.take_for_room(), Some((Name::Spare(SpareKind::Written, 1), 8192)));
        assert_eq!(spares.take_for_room(), Some((Name::Spare(SpareKind::Allocated, 2), 4096)));
        assert_eq!((spares.take_for_room(), spares.bytes()), (None, 0));
    }
}
