//! Transaction records: what the write-ahead log of the index says.

use std::borrow::Cow;

use base::{
    BLOCK, Epoch, FileId, Generation, Incarnation, LogSequence, SegmentId, SegmentSequence, VolumeId, WriteStamp,
};

use crate::index::{Entry, SegmentTables, TableInfo};
use crate::journal::JournalPosition;
use crate::options::EPOCH;

/// One record of the transaction log.
#[derive(Clone, PartialEq, Debug)]
pub enum Record {
    /// A segment cache became blocks of a data file.
    Dump {
        /// The segment.
        segment: SegmentId,
        /// The ownership under which it was dumped.
        epoch: Epoch,
        /// Every write up to this one is in the index now.
        through: SegmentSequence,
        /// Where a replay of the journal may start once this dump counts; nothing is known if there is none.
        replay: Option<JournalPosition>,
        /// What the index learns.
        entries: Vec<Entry>,
    },
    /// A large write: its data went to the data file at the same time, and it counts only if the data is there.
    Large {
        /// The segment.
        segment: SegmentId,
        /// The ownership.
        epoch: Epoch,
        /// The write's place in the segment's order.
        sequence: SegmentSequence,
        /// Who wrote.
        stamp: WriteStamp,
        /// First block.
        block: u32,
        /// The data file.
        file: FileId,
        /// Byte offset in it.
        offset: u64,
        /// One for each block.
        checksums: Vec<u32>,
    },
    /// GC moved live blocks: same sequences, one more in `moves`.
    Relocate {
        /// The segment.
        segment: SegmentId,
        /// The ownership.
        epoch: Epoch,
        /// The new places.
        entries: Vec<Entry>,
    },
    /// A flush or merge replaced tables.
    TableSet {
        /// The segment.
        segment: SegmentId,
        /// New tables, newest first.
        added: Vec<TableInfo>,
        /// Tables whose content is in the new ones.
        removed: Vec<FileId>,
        /// See [`SegmentTables::covers`]; unchanged by a merge.
        covers: LogSequence,
    },
    /// A data file was opened for a segment; logged before any record that refers to it.
    DataFile {
        /// The segment.
        segment: SegmentId,
        /// The file.
        file: FileId,
    },
    /// A file (data or table) holds nothing any more and is about to be deleted: the intent.
    DropFile {
        /// The segment it belongs to.
        segment: SegmentId,
        /// The file.
        file: FileId,
    },
    /// Every write in a journal file is dumped, and it is about to be deleted: the intent.
    DropJournal {
        /// The file.
        file: FileId,
    },
    /// Every segment of a volume is forgotten.
    DropVolume {
        /// The volume.
        volume: VolumeId,
    },
    /// The engine has a segment from here on, and it is empty.
    Create {
        /// The segment.
        segment: SegmentId,
        /// The ownership.
        epoch: Epoch,
        /// The newest attachment of its volume.
        generation: Generation,
    },
    /// The engine has a segment from here on, with what another one had of it. The commit point: see
    /// [`crate::ownership`].
    Adopt {
        /// Whose log had it until here.
        source: Incarnation,
        /// The segment under its new epoch: nothing of it is anywhere else.
        segment: SegmentCheckpoint,
    },
    /// The engine has a segment no more: the segment as it leaves it, under the epoch that ends.
    Release(SegmentCheckpoint),
    /// A segment of a volume that is being deleted: the engine has it no more, and what there was of it goes.
    DropSegment {
        /// The segment.
        segment: SegmentId,
        /// The ownership that ends.
        epoch: Epoch,
    },
    /// A volume was attached: from here on nothing of an older attachment is taken.
    Attach {
        /// The volume.
        volume: VolumeId,
        /// The attachment.
        generation: Generation,
    },
    /// Everything that a recovery needs besides the records after `from`.
    Checkpoint(Checkpoint),
}

/// The state of the engine at a position of its transaction log.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Checkpoint {
    /// What the life that wrote it drew for its labels ([`crate::label`]), not 0; none before there were any, and where that
    /// life has ended cleanly, so that the log knows everything.
    pub label_key: Option<u64>,
    /// Every record below this one is part of the state (the effect of large writes excepted: that is what
    /// [`SegmentTables::covers`] says).
    pub from: LogSequence,
    /// Large writes up to here were decided by an earlier recovery: all count but those in `rejected`.
    pub decided_through: LogSequence,
    /// Large writes that a recovery found without their data.
    pub rejected: Vec<LogSequence>,
    /// Where a replay of the journal may start; nothing is known if there is none.
    pub replay: Option<JournalPosition>,
    /// Volumes dropped whose journaled records may still be found.
    pub dropped: Vec<VolumeId>,
    /// Journal files of which every write is dumped, and which may still be found.
    pub dumped_journals: Vec<FileId>,
    /// Every segment.
    pub segments: Vec<SegmentCheckpoint>,
    /// Of an engine whose segments are given to it and taken from it: segments that it released, and of which it does
    /// not know yet that somebody has them. None of an engine that has whatever it is asked for.
    pub released: Option<Vec<SegmentCheckpoint>>,
}

impl Checkpoint {
    /// The first record that a replay over this checkpoint needs.
    pub fn replay_start(&self) -> LogSequence {
        self.segments.iter().map(|segment| segment.tables.covers).fold(self.from, LogSequence::min)
    }
}

/// One segment in a [`Checkpoint`].
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SegmentCheckpoint {
    /// The segment.
    pub segment: SegmentId,
    /// By what right the engine has it, or had it.
    pub tenure: Tenure,
    /// The next write gets this sequence.
    pub next: SegmentSequence,
    /// Every write up to this one is in the index or in records from `from` on.
    pub dumped_through: SegmentSequence,
    /// The last large write that was given a sequence; an index entry can shadow a journaled write only below it.
    pub last_large: SegmentSequence,
    /// Its tables.
    pub tables: SegmentTables,
    /// Its data files, and how many bytes of each were appended.
    pub data_files: Vec<(FileId, u64)>,
}

impl SegmentCheckpoint {
    /// A segment of which there is nothing, and no record before `covers`.
    pub fn empty(segment: SegmentId, tenure: Tenure, covers: LogSequence) -> SegmentCheckpoint {
        let (next, none) = (SegmentSequence(1), SegmentSequence(0));
        let tables = SegmentTables { tables: Vec::new(), covers };
        let data_files = Vec::new();
        SegmentCheckpoint { segment, tenure, next, dumped_through: none, last_large: none, tables, data_files }
    }

    /// Every file that it refers to: tables and data files.
    pub fn files(&self) -> impl Iterator<Item = FileId> {
        let tables = self.tables.tables.iter().map(|table| table.file);
        tables.chain(self.data_files.iter().map(|(file, _)| *file))
    }
}

/// By what right an engine has a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tenure {
    /// The ownership: given out once, for one segment and one engine.
    pub epoch: Epoch,
    /// The newest attachment of its volume that its log has.
    pub generation: Generation,
}

impl Default for Tenure {
    /// That of segments that stay where they are.
    fn default() -> Self {
        Tenure { epoch: EPOCH, generation: Generation(0) }
    }
}

impl Record {
    /// The segment that the record is about, if it is about one.
    pub fn segment(&self) -> Option<SegmentId> {
        match self {
            Record::Create { segment, .. } | Record::DropSegment { segment, .. } => Some(*segment),
            Record::Adopt { segment, .. } | Record::Release(segment) => Some(segment.segment),
            Record::Dump { segment, .. }
            | Record::Large { segment, .. }
            | Record::Relocate { segment, .. }
            | Record::TableSet { segment, .. }
            | Record::DataFile { segment, .. }
            | Record::DropFile { segment, .. } => Some(*segment),
            Record::DropJournal { .. } | Record::DropVolume { .. } | Record::Attach { .. } | Record::Checkpoint(_) => {
                None
            }
        }
    }

    /// Whether the record changes the index of its segment when it is replayed. Tables cover such records.
    pub fn changes_index(&self) -> bool {
        matches!(self, Record::Dump { .. } | Record::Large { .. } | Record::Relocate { .. })
    }

    /// What the index learns from the record. Nothing from those that do not change it.
    pub fn entries(&self) -> Cow<'_, [Entry]> {
        match self {
            Record::Dump { entries, .. } | Record::Relocate { entries, .. } => Cow::Borrowed(entries),
            Record::Large { sequence, block, file, offset, checksums, .. } => {
                let entry = |(i, &checksum): (usize, &u32)| {
                    Entry::data(block + i as u32, *sequence, *file, offset + i as u64 * BLOCK, checksum)
                };
                Cow::Owned(checksums.iter().enumerate().map(entry).collect())
            }
            _ => Cow::Borrowed(&[]),
        }
    }
}
