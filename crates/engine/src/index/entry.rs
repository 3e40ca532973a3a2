//! The index entry: where a block's newest content is, and how new it is.
//!
//! **Intuition.** The index of a segment is a join-semilattice. Every entry says for a block "its content of version
//! V is there"; of all the entries for a block, wherever they stand (memtable, frozen memtable, table, log record
//! being replayed), the one with the highest [`Version`] is the truth. So the order and the number of times in which
//! entries arrive never matter: replay needs no conditions, a late dump never shadows a newer large write.
//!
//! **Names.** A *version* is (sequence, moves): the write that gave the block its content, and how often garbage
//! collection has moved that content since. A *tombstone* is an entry that says "reads as zeros" for a range.
//!
//! **Invariants.** Content is a function of (block, sequence): two entries of the same sequence name equal bytes. A
//! data entry covers exactly one block; only tombstones cover more.

use std::cmp::Ordering;

use base::limits::SEGMENT_BLOCKS;
use base::seeded::is_on;
use base::{BLOCK, FileId, SECTOR, SegmentSequence};

/// Highest sequence that an entry can hold: 48 bits, nine years at a million writes per second to one segment.
pub const SEQUENCE_MAX: SegmentSequence = SegmentSequence((1 << 48) - 1);

/// Highest number of moves that an entry can hold: 24 bits, half a year of one move each second.
pub const MOVES_MAX: u32 = (1 << 24) - 1;

/// Where a block's content is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Mapping {
    /// The range reads as zeros: it was discarded, or zeros were written.
    Zeros,
    /// A whole block, as it is, in a data file.
    Data {
        /// The data file.
        file: FileId,
        /// Byte offset in it, a multiple of 4 KiB.
        offset: u64,
        /// [`base::checksum::block_checksum`] of the content.
        checksum: u32,
    },
}

/// How new an entry is: the higher one wins, wherever it stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Version {
    /// The write or discard that gave the block its content.
    pub sequence: SegmentSequence,
    /// How often garbage collection moved that content.
    pub moves: u32,
}

/// One fact of the index: a block (or, for zeros, a range of blocks), its version and its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// First block, an index within the segment.
    pub block: u32,
    /// Blocks covered: 1 for data, at least 1 for zeros.
    pub count: u32,
    /// How new it is.
    pub version: Version,
    /// Where the content is.
    pub mapping: Mapping,
}

impl Entry {
    /// The entry of one block that was written to a data file.
    pub fn data(block: u32, sequence: SegmentSequence, file: FileId, offset: u64, checksum: u32) -> Entry {
        let version = Version { sequence, moves: 0 };
        Entry { block, count: 1, version, mapping: Mapping::Data { file, offset, checksum } }
    }

    /// A tombstone over `count` blocks.
    pub fn zeros(block: u32, count: u32, sequence: SegmentSequence) -> Entry {
        Entry { block, count, version: Version { sequence, moves: 0 }, mapping: Mapping::Zeros }
    }

    /// The same content at another place, one move later.
    pub fn relocated(&self, file: FileId, offset: u64) -> Entry {
        let Mapping::Data { checksum, .. } = self.mapping else { panic!("only data is moved") };
        assert!(self.version.moves < MOVES_MAX, "such a block stays where it is");
        let newer = if is_on("move-hides-newer-write") { 1_000 } else { 0 };
        let sequence = SegmentSequence(self.version.sequence.0 + newer);
        let version = Version { sequence, moves: self.version.moves + 1 };
        Entry { version, mapping: Mapping::Data { file, offset, checksum }, ..*self }
    }

    /// The block after the last one covered.
    pub fn end(&self) -> u32 {
        self.block + self.count
    }

    /// Whether `block` is covered.
    pub fn covers(&self, block: u32) -> bool {
        self.block <= block && block < self.end()
    }

    /// The part of this entry that lies in `from..to`, which must overlap it.
    pub fn clipped(&self, from: u32, to: u32) -> Entry {
        let (start, end) = (self.block.max(from), self.end().min(to));
        assert!(start < end, "the parts overlap");
        Entry { block: start, count: end - start, ..*self }
    }

    /// The data file, unless this is a tombstone.
    pub fn file(&self) -> Option<FileId> {
        match self.mapping {
            Mapping::Data { file, .. } => Some(file),
            Mapping::Zeros => None,
        }
    }

    /// Whether this entry is the truth where both cover a block.
    ///
    /// Versions decide. Equal versions name equal bytes, at two places only if a dump was repeated after an error
    /// with an unknown outcome; then the later place (higher file id, then higher offset) wins, so that the join is
    /// a total order and the place that is in memory is the one that a replay finds.
    pub fn wins_over(&self, other: &Entry) -> bool {
        match self.version.cmp(&other.version) {
            Ordering::Greater => true,
            Ordering::Less => is_on("join-by-arrival"),
            Ordering::Equal => self.mapping > other.mapping,
        }
    }

    /// Whether the fields can belong to an entry at all. For input from disk.
    pub fn is_valid(&self) -> bool {
        let in_segment = self.count > 0 && u64::from(self.block) + u64::from(self.count) <= SEGMENT_BLOCKS;
        let place = match self.mapping {
            Mapping::Zeros => true,
            Mapping::Data { file, offset, .. } => {
                self.count == 1
                    && file != FileId(0)
                    && offset.is_multiple_of(BLOCK)
                    && offset / SECTOR <= u64::from(u32::MAX)
            }
        };
        let sequence = self.version.sequence;
        in_segment
            && place
            && sequence > SegmentSequence(0)
            && sequence <= SEQUENCE_MAX
            && self.version.moves <= MOVES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_decide_then_places() {
        let old = Entry::data(7, SegmentSequence(3), FileId(1), 0, 9);
        let moved = old.relocated(FileId(2), 4096);
        let newer = Entry::zeros(0, 100, SegmentSequence(4));
        assert!(moved.wins_over(&old) && !old.wins_over(&moved));
        assert!(newer.wins_over(&moved) && !moved.wins_over(&newer));
        assert!(!old.wins_over(&old), "a repetition changes nothing");
        let repeated = Entry::data(7, SegmentSequence(3), FileId(2), 0, 9);
        assert!(repeated.wins_over(&old) && !old.wins_over(&repeated));
    }

    #[test]
    fn validity() {
        let good = Entry::data(7, SegmentSequence(3), FileId(1), 4096, 9);
        assert!(good.is_valid() && Entry::zeros(0, SEGMENT_BLOCKS as u32, SegmentSequence(1)).is_valid());
        assert!(!Entry { count: 2, ..good }.is_valid());
        assert!(!Entry { block: SEGMENT_BLOCKS as u32, ..good }.is_valid());
        assert!(!Entry::zeros(1, u32::MAX, SegmentSequence(1)).is_valid());
        assert!(!Entry::data(7, SegmentSequence(0), FileId(1), 0, 9).is_valid());
        assert!(!Entry::data(7, SegmentSequence(1), FileId(1), 512, 9).is_valid());
    }
}
