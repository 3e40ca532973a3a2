//! The journal: where a write is made durable before it is acknowledged (EBS, FAST 2024, §2.3).
//!
//! Intuition: a small write would cost a data file a block, the index an entry and the disk two operations. The
//! journal takes it as it is, together with whatever else is being written, in one sequential append. It is read only
//! after a crash; in normal life a file of it is deleted when everything in it has been dumped.
//!
//! Names: an *append* is what one turn of the loop wrote at once, of all segments; a *record* is one write or discard
//! in it; a *journal* is the files of one loop and one incarnation, in the order of their *ordinal*.
//!
//! Map: [`format`] is the bytes (docs/formats/journal.md); `batch` the records of an append in memory; `writer` puts
//! appends into files, in order, through failures; its `journal_files` opens and ends them; `ledger` knows which file
//! is still needed; [`scan`] recovers.
//! [`crate::fusion`] gathers what goes into an append.
//!
//! Invariants:
//! - a record is confirmed only when it and every record before it is durable;
//! - what recovery returns contains every confirmed record that is not dumped, and nothing that was not submitted;
//! - what one recovery has shown or cut, a later one shows or cuts;
//! - files are deleted from the oldest on, so that the journal on disk has no gap.

use base::{Bytes, Epoch, FileId, LogSequence, Result, SegmentId, SegmentSequence, WriteStamp};
use files::{FileInfo, Store};
use runtime::Handle;

pub(crate) mod batch;
pub mod format;
#[cfg(test)]
mod fuzz;
mod inspect;
mod ledger;
mod scan;
#[cfg(test)]
mod tests;
pub(crate) mod writer;

pub use batch::{Place, encode_append};
pub use inspect::{DamagedAppend, JournalInspection, inspect};
use ledger::LedgerFile;
pub use writer::JournalStatistics;

/// One write or discard of a segment, as it stands in the journal.
#[derive(Clone, PartialEq, Debug)]
pub struct JournalRecord {
    /// The segment.
    pub segment: SegmentId,
    /// The ownership under which it was accepted.
    pub epoch: Epoch,
    /// Its place in the segment's order.
    pub sequence: SegmentSequence,
    /// Who wrote.
    pub stamp: WriteStamp,
    /// Byte offset in the segment, a multiple of 512.
    pub offset: u64,
    /// Length in bytes, a multiple of 512, not zero. At most [`RECORD_DATA_MAX`] for a write.
    pub len: u64,
    /// What it does.
    pub operation: Operation,
}

/// What a [`JournalRecord`] does to its range.
#[derive(Clone, PartialEq, Debug)]
pub enum Operation {
    /// The range holds `data` from now on.
    Write {
        /// One for each fragment ([`base::io::fragment_checksums`]).
        checksums: Vec<u32>,
        /// As long as the range.
        data: Bytes,
    },
    /// The range reads as zeros from now on.
    Discard,
}

/// Most data of one record, in bytes: a longer write becomes several records.
pub const RECORD_DATA_MAX: u64 = 256 * base::KIB;

/// Smallest journal file, in bytes: an append with the longest record, twice.
pub const JOURNAL_FILE_BYTES_MIN: u64 = 2 * RECORD_DATA_MAX;

const _: () = assert!(RECORD_DATA_MAX + RECORD_DATA_MAX / 4 < base::limits::JOURNAL_APPEND_MAX, "headers fit, too");

/// Settings of the journal of one loop.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// Size of a journal file, at least [`JOURNAL_FILE_BYTES_MIN`].
    pub file_bytes: u64,
    /// Journal files at most, those of earlier incarnations included; at least two.
    pub files_max: usize,
    /// Copies of each.
    pub copies: u8,
    /// The loop's number: each loop has a journal of its own.
    pub log: u32,
    /// How long an append waits for more data before it has 16 KiB; zero: until the turn's end.
    pub fusion_wait: std::time::Duration,
}

/// A place in the journal where a replay may start: the beginning of an append.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalPosition {
    /// The file.
    pub file: FileId,
    /// Byte offset of the append in it.
    pub offset: u64,
    /// The append's log sequence.
    pub sequence: LogSequence,
}

/// What is oldest in the journal and not dumped.
#[derive(Clone, PartialEq, Debug)]
pub struct OldestUndumped {
    /// Where a replay would have to start now: nothing before it is needed. For `Dump` records.
    pub position: JournalPosition,
    /// The segments whose dump would free the oldest file.
    pub segments: Vec<SegmentId>,
}

/// How full the journal is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum JournalPressure {
    /// Files can be created as needed.
    Low,
    /// The last file that may exist is in use or about to be: dump the oldest segments.
    High,
    /// Writers wait for a file: dump the oldest segments as foreground work.
    Full,
}

/// A journal file of an earlier incarnation, sealed, with the segments and sequences that stand in it.
#[derive(Debug)]
pub struct RecoveredJournal(pub(crate) LedgerFile);

impl RecoveredJournal {
    /// The file.
    pub fn file(&self) -> FileId {
        self.0.file
    }
}

/// What [`scan`] decided.
#[derive(Debug, Default)]
pub struct ScanReport {
    /// The files that still hold records, in journal order: hand them to the next
    /// [`crate::fusion::FusionWriteEngine`].
    pub files: Vec<RecoveredJournal>,
    /// Records handed out.
    pub records: u64,
    /// Journals whose tail was torn and cut.
    pub torn_tails: u64,
    /// Appends that one copy lacked and was given from another.
    pub repaired_appends: u64,
    /// What was lost by the operator's choice, for a person.
    pub lost: Vec<String>,
}

/// Settings of a [`scan`].
#[derive(Clone, Debug, Default)]
pub struct ScanOptions {
    /// Where the newest `Dump` record says that a replay may start; everything if there is none.
    pub start: Option<JournalPosition>,
    /// The operator's override: go on without acknowledged records that cannot be read.
    pub accept_data_loss: bool,
}

/// Decides where the journals of earlier incarnations end, seals them there, and hands out their records in journal
/// order. When it returns, that decision is durable.
///
/// # Errors
/// `Corrupt` where records that were acknowledged cannot be read: names file and offset and the override. `Io`.
pub async fn scan(
    handle: &Handle,
    store: &Store,
    files: &[FileInfo],
    options: &ScanOptions,
    visit: impl FnMut(JournalRecord),
) -> Result<ScanReport> {
    scan::scan(handle, store, files, options, visit).await
}
