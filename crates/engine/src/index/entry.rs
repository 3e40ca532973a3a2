//! What the index knows of a block: the element of a join-semilattice.
//!
//! Provisional shape, to be completed by the index's owner.

use base::{FileId, SegmentSequence};

/// Where the bytes of a run of blocks are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mapping {
    /// One block, at a byte offset of a data file.
    Data {
        /// The data file.
        file: FileId,
        /// Byte offset in it, a multiple of 4 KiB.
        offset: u64,
        /// [`base::checksum::block_checksum`] of the block.
        checksum: u32,
    },
    /// Reads as zeros: discarded or written as zeros.
    Zeros,
}

/// A run of blocks of one segment and where they are. For each block the entry with the highest
/// (sequence, moves) wins, wherever it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// First block in the segment.
    pub block: u32,
    /// Blocks; 1 for data.
    pub count: u32,
    /// Where they are.
    pub mapping: Mapping,
    /// The last write that is part of the content.
    pub sequence: SegmentSequence,
    /// How often GC has moved it since.
    pub moves: u32,
}
