//! The part of a segment's index that is in memory: every entry since the last freeze, joined.
//!
//! Ranges never overlap: a data entry covers one block, a tombstone any number; a newer tombstone cuts what it covers
//! out of older entries and is itself cut around newer ones. So the content depends only on the set of entries that
//! were joined, not on their order or repetition.
//!
//! Not an [`base::IntervalMap`]: nearly every entry is one block, where one search and one insertion in the tree are
//! enough, and a loser must not cut what it loses against.

use std::collections::BTreeMap;
use std::ops::Range;

use base::FileId;
use base::seeded::is_on;

use super::entry::{Entry, Mapping};

/// What an entry is charged against the memory bound, in bytes: itself, its key, and the tree's slack.
pub const ENTRY_BYTES: u64 = 80;

/// A join of entries, ordered by block.
#[derive(Debug, Default)]
pub struct Memtable {
    /// By first block. Entries do not overlap.
    entries: BTreeMap<u32, Entry>,
}

/// How a join changed the references that a memtable holds to data files.
pub trait References {
    /// One more entry names `file`.
    fn added(&mut self, file: FileId);
    /// One entry less names `file`.
    fn removed(&mut self, file: FileId);
}

/// Nobody counts.
impl References for () {
    fn added(&mut self, _file: FileId) {}
    fn removed(&mut self, _file: FileId) {}
}

impl Memtable {
    /// Joins `entry`: it takes effect wherever it is newer than what is here.
    pub fn join(&mut self, entry: Entry, references: &mut (impl References + ?Sized)) {
        debug_assert!(entry.is_valid(), "{entry:?}");
        match entry.mapping {
            Mapping::Data { file, .. } => self.join_block(entry, file, references),
            Mapping::Zeros => self.join_zeros(entry, references),
        }
    }

    fn join_block(&mut self, entry: Entry, file: FileId, references: &mut (impl References + ?Sized)) {
        let block = entry.block;
        let below = self.entries.range_mut(..=block).next_back().map(|(_, old)| old);
        match below {
            Some(old) if old.covers(block) => {
                if !entry.wins_over(old) {
                    return;
                }
                if let Some(replaced) = old.file() {
                    references.removed(replaced);
                    *old = entry;
                } else {
                    let hole = *old;
                    self.entries.remove(&hole.block);
                    self.put_around(hole, block, block + 1);
                    self.entries.insert(block, entry);
                    if is_on("reference-not-counted") {
                        return;
                    }
                }
            }
            _ => {
                self.entries.insert(block, entry);
            }
        }
        references.added(file);
    }

    fn join_zeros(&mut self, entry: Entry, references: &mut (impl References + ?Sized)) {
        let (start, end) = (entry.block, entry.end());
        let mut at = start;
        // From left to right: what loses is removed (its overhang put back), what wins is stepped over.
        while at < end {
            let next = self.next_overlapping(at, end);
            let Some(old) = next else {
                self.entries.insert(at, entry.clipped(at, end));
                return;
            };
            if !entry.wins_over(&old) {
                if old.block > at {
                    self.entries.insert(at, entry.clipped(at, old.block));
                }
                at = old.end();
                continue;
            }
            self.entries.remove(&old.block);
            self.put_around(old, start, end);
            if let Some(file) = old.file() {
                references.removed(file);
            }
        }
    }

    /// The first entry that covers a block of `from..to`, whole.
    fn next_overlapping(&self, from: u32, to: u32) -> Option<Entry> {
        let below = self.entries.range(..=from).next_back().map(|(_, entry)| *entry);
        below
            .filter(|entry| entry.covers(from))
            .or_else(|| self.entries.range(from..to).next().map(|(_, entry)| *entry))
    }

    /// Puts back what of a removed `old` lies outside `start..end`.
    fn put_around(&mut self, old: Entry, start: u32, end: u32) {
        if old.block < start {
            self.entries.insert(old.block, old.clipped(old.block, start));
        }
        if old.end() > end {
            self.entries.insert(end, old.clipped(end, old.end()));
        }
    }

    /// The entry that covers `block`.
    pub fn get(&self, block: u32) -> Option<&Entry> {
        let (_, entry) = self.entries.range(..=block).next_back()?;
        entry.covers(block).then_some(entry)
    }

    /// The entries that cover blocks of `blocks`, whole (not clipped), by block.
    pub fn overlapping(&self, blocks: Range<u32>) -> impl Iterator<Item = &Entry> {
        let first = self.get(blocks.start).map_or(blocks.start, |entry| entry.block);
        self.entries.range(first..blocks.end.max(first)).map(|(_, entry)| entry)
    }

    /// Every entry, by block.
    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What it is charged against the memory bound, in bytes.
    pub fn bytes(&self) -> u64 {
        self.entries.len() as u64 * ENTRY_BYTES
    }
}

#[cfg(test)]
mod tests;
