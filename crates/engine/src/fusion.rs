//! The Fusion Write Engine (EBS, FAST 2024, §2.3): to be completed.

use base::{Result, SegmentId, SegmentSequence};
use files::Store;
use runtime::Handle;
use runtime::sync::Event;

use crate::cache::{CacheExtent, CacheMemory};
use crate::journal::{JournalOptions, JournalPressure, JournalRecord, OldestUndumped, RecoveredJournal};

/// Gathers the writes of all segments of this loop into appends to the journal. Clones share it.
#[derive(Clone)]
pub struct FusionWriteEngine {}

impl FusionWriteEngine {
    /// An engine that writes new journal files in `store`. `recovered` are the files of earlier incarnations, from
    /// the scan; they count as journal files until [`FusionWriteEngine::trim`] deletes them.
    pub fn new(
        handle: &Handle,
        store: &Store,
        options: JournalOptions,
        memory: &CacheMemory,
        recovered: Vec<RecoveredJournal>,
    ) -> Self {
        let _ = (handle, store, options, memory, recovered);
        todo!()
    }

    /// Queues a record. The order of calls is the journal's order.
    ///
    /// `on_durable` is called once, in that order, when the record and everything before it is durable, with what
    /// goes into the segment's cache at the record's range: apply it there, then wake who waits. It may submit more.
    /// On an error the outcome is unknown (`Io`), or nothing was written because the data did not match its
    /// checksums (`Internal`).
    pub fn submit(&self, record: JournalRecord, on_durable: impl FnOnce(Result<CacheExtent>) + 'static) {
        let _ = (record, on_durable);
        todo!()
    }

    /// Deletes the journal files of whose every segment the last write in them is dumped. A segment that does not
    /// exist any more is dumped through the largest number.
    pub async fn trim(&self, dumped_through: impl Fn(SegmentId) -> SegmentSequence) {
        let _ = dumped_through;
        todo!()
    }

    /// What to dump first, and where a replay would start. `None`: nothing durable is undumped.
    pub fn oldest_undumped(&self, dumped_through: impl Fn(SegmentId) -> SegmentSequence) -> Option<OldestUndumped> {
        let _ = dumped_through;
        todo!()
    }

    /// How full the journal is.
    pub fn pressure(&self) -> JournalPressure {
        todo!()
    }

    /// Notified each time the pressure rises.
    pub fn pressure_event(&self) -> Event {
        todo!()
    }

    /// Bytes of records that were submitted and are neither durable nor failed: bounded by who submits.
    pub fn unsettled_bytes(&self) -> u64 {
        todo!()
    }

    /// Waits for everything in flight, then deletes every journal file whose records are dumped: after it there is
    /// nothing to replay. Nothing may be submitted afterwards.
    ///
    /// # Errors
    /// `Io`: a file could not be deleted; the next start replays it.
    pub async fn close(&self, dumped_through: impl Fn(SegmentId) -> SegmentSequence) -> Result<()> {
        let _ = dumped_through;
        todo!()
    }
}
