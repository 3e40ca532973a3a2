//! What the transaction log says: a checkpoint, and the records behind it, as one state.
//!
//! Two passes. The first is about structure: which tables and data files a segment has, how far it is dumped, which
//! volumes were dropped. Only when it is done is it known from which record on a segment's index entries are needed;
//! they are the second pass, and their order does not matter, because the index is a join.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use base::{BLOCK, Epoch, FileId, Incarnation, LogSequence, SegmentId, SegmentSequence, VolumeId};
use files::{FileInfo, FileKind};

use crate::index::{Mapping, SegmentTables};
use crate::journal::JournalPosition;
use crate::segment::SegmentStart;
use crate::transaction::{Record, ScannedLog, SegmentCheckpoint, Tenure};

/// The state of the engine when its transaction log ended.
#[derive(Debug, Default)]
pub struct Replay {
    /// Every segment.
    pub segments: BTreeMap<SegmentId, ReplayedSegment>,
    /// Whether segments were given to the engine, and none came into being by itself.
    pub is_given: bool,
    /// Segments that it released, as it left them.
    pub released: BTreeMap<SegmentId, SegmentCheckpoint>,
    /// Segments that it dropped, and of which files may be left.
    pub rests: BTreeMap<SegmentId, Epoch>,
    /// Volumes that were dropped and may still stand in a journal.
    pub dropped: BTreeSet<VolumeId>,
    /// Large writes that do not count.
    pub rejected: BTreeSet<LogSequence>,
    /// Journal files that hold nothing any more: they were being deleted, and may be there in part.
    pub dumped_journals: BTreeSet<FileId>,
    /// Where the replay of the journal may start.
    pub journal: Option<JournalPosition>,
    /// The life that wrote the checkpoint, and what its labels are told by: the files of that life may go on behind what
    /// the log knows of them.
    pub labels: Option<(Incarnation, u64)>,
    /// A segment that the checkpoint does not know has no record before this one.
    from: LogSequence,
    /// Records whose effect on the index is needed, in log order.
    pub effects: Vec<(LogSequence, Record)>,
}

/// One segment of a [`Replay`].
#[derive(Debug, Default)]
pub struct ReplayedSegment {
    /// Where its sequences stand.
    pub start: SegmentStart,
    /// Its tables.
    pub tables: SegmentTables,
    /// Data files, and how many bytes of each were appended.
    pub data_files: BTreeMap<FileId, u64>,
}

impl Replay {
    /// Replays `scanned`, whose records are taken out of it.
    pub fn new(scanned: &mut ScannedLog) -> Replay {
        let mut replay = Replay { from: LogSequence(1), ..Replay::default() };
        if let Some(checkpoint) = scanned.checkpoint.take() {
            replay.from = checkpoint.from;
            replay.labels = checkpoint.label_key.map(|key| (scanned.checkpoint_by, key));
            replay.dropped.extend(checkpoint.dropped);
            replay.rejected.extend(checkpoint.rejected);
            replay.journal = checkpoint.replay;
            replay.dumped_journals.extend(checkpoint.dumped_journals);
            replay.is_given = checkpoint.released.is_some();
            let released = checkpoint.released.into_iter().flatten();
            replay.released.extend(released.map(|segment| (segment.segment, segment)));
            let segments = checkpoint.segments.into_iter();
            replay.segments.extend(segments.map(|segment| (segment.segment, segment.into())));
        }
        let records = std::mem::take(&mut scanned.records);
        let from = replay.from;
        for (sequence, record) in records.iter().filter(|(sequence, _)| *sequence >= from) {
            tracing::trace!(%sequence, ?record, "replay");
            replay.on_structure(record);
        }
        replay.effects = records.into_iter().filter(|(sequence, record)| replay.needs(*sequence, record)).collect();
        replay
    }

    /// What a record says of everything but the index.
    pub(super) fn on_structure(&mut self, record: &Record) {
        if let Record::DropVolume { volume } = record {
            self.dropped.insert(*volume);
            self.segments.retain(|id, _| id.volume != *volume);
        }
        if let Record::DropJournal { file } = record {
            self.dumped_journals.insert(*file);
        }
        self.on_ownership(record);
        let Some(id) = record.segment().filter(|id| !self.dropped.contains(&id.volume)) else { return };
        let (covers, is_given) = (self.from, self.is_given);
        let empty = || SegmentCheckpoint::empty(id, Tenure::default(), covers).into();
        let segment = match self.segments.entry(id) {
            Entry::Vacant(_) if is_given => return,
            entry => entry.or_insert_with(empty),
        };
        // Also of records that tables cover, and of large writes that turn out not to count: the files reach that far.
        for entry in record.entries().iter() {
            let Mapping::Data { file, offset, .. } = entry.mapping else { continue };
            if let Some(appended) = segment.data_files.get_mut(&file) {
                *appended = (*appended).max(offset + BLOCK);
            }
        }
        let start = &mut segment.start;
        match record {
            Record::Dump { through, replay, .. } => {
                start.dumped_through = start.dumped_through.max(*through);
                start.saw(*through);
                self.journal = replay.or(self.journal);
            }
            Record::Large { sequence, .. } => {
                start.last_large = start.last_large.max(*sequence);
                start.saw(*sequence);
            }
            Record::TableSet { added, removed, covers, .. } => segment.tables.apply(added, removed, *covers),
            Record::DataFile { file, .. } => {
                segment.data_files.entry(*file).or_default();
            }
            Record::DropFile { file, .. } => {
                segment.data_files.remove(file);
            }
            Record::Relocate { .. }
            | Record::DropJournal { .. }
            | Record::DropVolume { .. }
            | Record::Create { .. }
            | Record::Adopt { .. }
            | Record::Release(_)
            | Record::DropSegment { .. }
            | Record::Attach { .. }
            | Record::Checkpoint(_) => {}
        }
    }

    /// Who has what from here on (rule 38 of docs/SAFETY.md).
    fn on_ownership(&mut self, record: &Record) {
        match record {
            Record::Create { segment, epoch, generation } => {
                let tenure = Tenure { epoch: *epoch, generation: *generation };
                let empty = SegmentCheckpoint::empty(*segment, tenure, self.from);
                self.segments.insert(*segment, empty.into());
                self.rests.remove(segment);
            }
            Record::Adopt { segment, .. } => {
                self.released.remove(&segment.segment);
                self.rests.remove(&segment.segment);
                self.segments.insert(segment.segment, segment.clone().into());
            }
            Record::Release(segment) => {
                self.segments.remove(&segment.segment);
                self.released.insert(segment.segment, segment.clone());
            }
            Record::DropSegment { segment, epoch } => {
                self.segments.remove(segment);
                self.rests.insert(*segment, *epoch);
            }
            Record::Attach { volume, generation } => {
                for (_, segment) in self.segments.iter_mut().filter(|(id, _)| id.volume == *volume) {
                    let tenure = &mut segment.start.tenure;
                    tenure.generation = tenure.generation.max(*generation);
                }
            }
            _ => {}
        }
    }

    /// Leaves out what is about other segments: somebody else may have them already, and changes their files.
    pub fn keep_only(&mut self, wanted: &BTreeSet<SegmentId>) {
        self.segments.retain(|id, _| wanted.contains(id));
        self.released.retain(|id, _| wanted.contains(id));
        self.rests.clear();
        self.effects.retain(|(_, record)| record.segment().is_none_or(|id| wanted.contains(&id)));
    }

    /// The journal files among `files` that have to be read.
    pub fn journals<'a>(&self, files: impl IntoIterator<Item = &'a FileInfo>) -> Vec<FileInfo> {
        let is_needed = |info: &&FileInfo| info.kind == FileKind::Journal && !self.dumped_journals.contains(&info.id);
        files.into_iter().filter(is_needed).cloned().collect()
    }

    fn needs(&self, sequence: LogSequence, record: &Record) -> bool {
        let Some(segment) = record.segment().and_then(|id| self.segments.get(&id)) else { return false };
        record.changes_index() && sequence >= segment.tables.covers && !self.rejected.contains(&sequence)
    }

    /// How many bytes of each data file anything may refer to.
    pub fn lengths(&self) -> BTreeMap<FileId, u64> {
        self.segments.values().flat_map(|segment| segment.data_files.clone()).collect()
    }

    /// Files that something refers to: data files and tables.
    pub fn referenced(&self) -> BTreeSet<FileId> {
        let segments = self.segments.values();
        segments
            .flat_map(|segment| {
                let tables = segment.tables.tables.iter().map(|table| table.file);
                tables.chain(segment.data_files.keys().copied())
            })
            .collect()
    }
}

impl From<SegmentCheckpoint> for ReplayedSegment {
    fn from(segment: SegmentCheckpoint) -> ReplayedSegment {
        let SegmentCheckpoint { segment: _, tenure, next, dumped_through, last_large, tables, data_files } = segment;
        let start = SegmentStart { next, dumped_through, last_large, tenure };
        ReplayedSegment { start, tables, data_files: data_files.into_iter().collect() }
    }
}

impl SegmentStart {
    /// A sequence that was given out.
    fn saw(&mut self, sequence: SegmentSequence) {
        self.next = self.next.max(SegmentSequence(sequence.0 + 1));
    }
}
