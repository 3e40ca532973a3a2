//! The spares of one directory: space that no file has, kept for the next file of its size.
//!
//! There are two kinds, which never mix. *Written* spares were zero-written, or hold what a journal left: a durable
//! append to them touches no file-system metadata. *Allocated* ones are what data files left: mostly written, but
//! nobody promises it. Each kind has its own bound, so that data files of many sizes, coming and going, cannot push
//! out what the journal is about to need. At the bound the oldest spare gives way: its size may never be asked for
//! again.

use std::collections::BTreeMap;

use super::header::HEADER;
use super::names::Name;
use crate::FileKind;

/// Spares of one kind and capacity that are kept.
pub(crate) const SPARES_PER_CAPACITY_MAX: usize = 8;
/// Spares of one kind that are kept in all.
pub(crate) const SPARES_MAX: usize = 24;

/// What is known of the space of a spare.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum SpareKind {
    /// Every block was written once.
    Written,
    /// Every block is set aside.
    Allocated,
}

impl SpareKind {
    /// What a prepared file of `kind` is made of, and becomes. Data files are too large and too many to be
    /// zero-written ahead: that would write every byte of a sequential load twice. They are recycled.
    pub(crate) fn of(kind: FileKind) -> SpareKind {
        match kind {
            FileKind::Data | FileKind::Table => SpareKind::Allocated,
            FileKind::Journal | FileKind::Transaction | FileKind::Log => SpareKind::Written,
        }
    }
}

/// The spares of one directory.
#[derive(Default)]
pub(crate) struct Spares {
    /// The numbers in their names, ascending: the oldest first.
    numbers: BTreeMap<(SpareKind, u64), Vec<u64>>,
    bytes: u64,
}

impl Spares {
    /// What they take up.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many there are of one kind and capacity.
    pub(crate) fn count(&self, kind: SpareKind, capacity: u64) -> usize {
        self.numbers.get(&(kind, capacity)).map_or(0, Vec::len)
    }

    pub(crate) fn add(&mut self, kind: SpareKind, capacity: u64, number: u64) {
        self.numbers.entry((kind, capacity)).or_default().push(number);
        self.bytes += HEADER + capacity;
    }

    /// Takes the youngest of one kind and capacity.
    pub(crate) fn take(&mut self, kind: SpareKind, capacity: u64) -> Option<Name> {
        let number = self.numbers.get_mut(&(kind, capacity))?.pop();
        self.on_taken((kind, capacity));
        number.map(|number| Name::Spare(kind, number))
    }

    /// Takes one of those that take up most, with its capacity.
    pub(crate) fn take_largest(&mut self) -> Option<(Name, u64)> {
        let (kind, capacity) = self.numbers.keys().copied().max_by_key(|&(kind, capacity)| (capacity, kind))?;
        self.take(kind, capacity).map(|name| (name, capacity))
    }

    /// Takes the oldest of a kind if there are too many, with its capacity.
    pub(crate) fn take_surplus(&mut self, kind: SpareKind) -> Option<(Name, u64)> {
        let of_kind = || self.numbers.iter().filter(|((other, _), _)| *other == kind);
        if of_kind().map(|(_, numbers)| numbers.len()).sum::<usize>() <= SPARES_MAX {
            return None;
        }
        let (&key, &number) =
            of_kind().filter_map(|(key, numbers)| Some((key, numbers.first()?))).min_by_key(|(_, n)| **n)?;
        self.numbers.get_mut(&key)?.remove(0);
        self.on_taken(key);
        Some((Name::Spare(kind, number), key.1))
    }

    fn on_taken(&mut self, key: (SpareKind, u64)) {
        self.bytes -= HEADER + key.1;
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
        spares.add(SpareKind::Written, 100, 1);
        for number in 2..2 + SPARES_MAX as u64 {
            spares.add(SpareKind::Allocated, number, number);
            assert_eq!(spares.take_surplus(SpareKind::Allocated), None);
        }
        spares.add(SpareKind::Allocated, 5, 1000);
        assert_eq!(spares.take_surplus(SpareKind::Allocated), Some((Name::Spare(SpareKind::Allocated, 2), 2)));
        assert_eq!(spares.take_surplus(SpareKind::Allocated), None);
        assert_eq!(spares.count(SpareKind::Written, 100), 1);
        assert_eq!(spares.take(SpareKind::Written, 100), Some(Name::Spare(SpareKind::Written, 1)));
        assert_eq!(spares.take(SpareKind::Written, 100), None);
    }

    #[test]
    fn bytes_are_what_is_there() {
        let mut spares = Spares::default();
        spares.add(SpareKind::Written, 8192, 1);
        spares.add(SpareKind::Allocated, 4096, 2);
        assert_eq!(spares.bytes(), 8192 + 4096 + 2 * HEADER);
        assert_eq!(spares.take_largest(), Some((Name::Spare(SpareKind::Written, 1), 8192)));
        assert_eq!(spares.take_largest(), Some((Name::Spare(SpareKind::Allocated, 2), 4096)));
        assert_eq!((spares.take_largest(), spares.bytes()), (None, 0));
    }
}
