//! The index of all segments (to be written).

pub mod entry;

pub use entry::{Entry, Mapping};

use base::{FileId, LogSequence};

/// What a checkpoint keeps of a segment's index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SegmentTables {
    /// Tables, newest first.
    pub tables: Vec<FileId>,
    /// The tables hold the effect of every transaction record of the segment below this log sequence.
    pub covers: LogSequence,
}
