//! The Fusion Write Engine: gathers the writes of all segments of a loop into appends to its journal (EBS, FAST 2024,
//! §2.3).
//!
//! Intuition: a durable append costs the same for one small write as for thirty, so what one turn of the loop
//! received shares one. While the disk is busy with as many appends as may be in flight, what comes gathers for the
//! next, and appends grow by themselves with the load.
//!
//! Names: records are *gathered* until they go into a [`Batch`]; when that is closed is decided in
//! [`policies::fusion`]; [`JournalWriter`] makes it durable and tells each record.
//!
//! Invariants: the order of [`FusionWriteEngine::submit`] is the order in the journal and of the calls of
//! `on_durable`; every record is told exactly once, unless the loop ends before.
//!
//! Flow: `submit` -> turn's end: `pump` -> batches -> the journal -> `on_durable` of each record, in order.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::Duration;

use base::limits::{JOURNAL_APPEND_MAX, SEGMENT_SIZE};
use base::{Error, FileId, Instant, Result, SECTOR, SegmentId, SegmentSequence};
use files::Store;
use policies::fusion::{FusionGathering, FusionPlan, FusionSettings};
use runtime::sync::Event;
use runtime::{Class, Handle};

use crate::cache::{CacheExtent, CacheMemory};
use crate::journal::batch::{AppendSize, Batch, Submitted, record_bytes};
use crate::journal::writer::{JournalWriter, Upstream};
use crate::journal::{
    JournalOptions, JournalPosition, JournalPressure, JournalRecord, JournalStatistics, OldestUndumped, Operation,
    RECORD_DATA_MAX, RecoveredJournal,
};
use crate::way::Way;

/// Processor time that the simulation charges for a record and for each KiB of it (measured: `examples/fusion_cpu`).
const RECORD_COST: Duration = Duration::from_nanos(300);
const KIB_COST: Duration = Duration::from_nanos(150);

/// Gathers the writes of all segments of this loop into appends to the journal. Clones share it.
#[derive(Clone)]
pub struct FusionWriteEngine(Rc<Inner>);

struct Inner {
    handle: Handle,
    journal: JournalWriter,
    gathered: RefCell<VecDeque<Submitted>>,
    gathering: RefCell<FusionGathering>,
    /// Whether a look at the turn's end, or at the end of a wait, is already arranged.
    at_turn_end: Cell<bool>,
    waiting: Cell<bool>,
    unsettled_bytes: Cell<u64>,
    this: Weak<Inner>,
}

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
        let settings = FusionSettings {
            wait: options.fusion_wait,
            append_bytes_max: JOURNAL_APPEND_MAX,
            busy_appends: store.appends_at_once(),
            ..FusionSettings::default()
        };
        let recovered = recovered.into_iter().map(|journal| journal.0).collect();
        let inner = Rc::new_cyclic(|this| Inner {
            handle: handle.clone(),
            journal: JournalWriter::new(handle, store, options, memory, recovered),
            gathered: RefCell::default(),
            gathering: RefCell::new(FusionGathering::new(settings)),
            at_turn_end: Cell::new(false),
            waiting: Cell::new(false),
            unsettled_bytes: Cell::new(0),
            this: this.clone(),
        });
        let upstream: Weak<dyn Upstream> = inner.this.clone();
        inner.journal.connect(upstream);
        FusionWriteEngine(inner)
    }

    /// Queues a record. The order of calls is the journal's order.
    ///
    /// `on_durable` is called once, in that order, when the record and everything before it is durable, with what
    /// goes into the segment's cache at the record's range, and with the points that its append passed: apply it there,
    /// then wake who waits. It may submit more.
    /// On an error the outcome is unknown (`Io`), or nothing was written because the data did not match its
    /// checksums (`Internal`).
    pub fn submit(&self, record: JournalRecord, on_durable: impl FnOnce(Result<(CacheExtent, Way)>) + 'static) {
        let inner = &*self.0;
        check(&record);
        let bytes = record_bytes(&record);
        tracing::trace!(target: "levee::stage", segment = %record.segment, sequence = %record.sequence, "gathered");
        inner.unsettled_bytes.set(inner.unsettled_bytes.get() + bytes);
        let this = inner.this.clone();
        inner.gathered.borrow_mut().push_back(Submitted::new(record, move |outcome| {
            if let Some(this) = this.upgrade() {
                this.unsettled_bytes.set(this.unsettled_bytes.get() - bytes);
            }
            on_durable(outcome);
        }));
        let plan = inner.gathering.borrow_mut().on_record(inner.handle.now(), bytes);
        match plan {
            FusionPlan::Close => inner.pump(),
            _ => inner.look_at_turn_end(),
        }
    }

    /// Deletes the journal files of whose every segment the last write in them is dumped. A segment that does not
    /// exist any more is dumped through the largest number. A file is deleted when `intend` has made durable that it
    /// is going to be: what is left of a deletion that was interrupted must not be read as a journal.
    pub async fn trim(
        &self,
        dumped_through: impl Fn(SegmentId) -> SegmentSequence,
        intend: impl AsyncFn(FileId) -> Result<()>,
    ) {
        self.0.journal.trim(&dumped_through, &intend).await;
    }

    /// The journal files that [`FusionWriteEngine::trim`] would delete, or is deleting.
    pub fn dumped_journals(&self, dumped_through: impl Fn(SegmentId) -> SegmentSequence) -> Vec<FileId> {
        self.0.journal.dumped_files(&dumped_through)
    }

    /// What to dump first. `None`: nothing durable is undumped.
    pub fn oldest_undumped(&self, dumped_through: impl Fn(SegmentId) -> SegmentSequence) -> Option<OldestUndumped> {
        self.0.journal.oldest_undumped(&dumped_through)
    }

    /// Where a replay would start now: nothing before it is needed, whatever is in flight. For `Dump` records and
    /// checkpoints. `None`: there is no journal file yet.
    pub fn replay_start(&self, dumped_through: impl Fn(SegmentId) -> SegmentSequence) -> Option<JournalPosition> {
        self.0.journal.replay_start(&dumped_through)
    }

    /// How full the journal is.
    pub fn pressure(&self) -> JournalPressure {
        self.0.journal.pressure()
    }

    /// A new file may be better: see [`JournalWriter::renew_file`].
    pub(crate) fn renew_file(&self) {
        self.0.journal.renew_file();
    }

    /// Notified each time the pressure rises, and when under pressure one more file became ready for
    /// [`FusionWriteEngine::trim`].
    pub fn pressure_event(&self) -> Event {
        self.0.journal.pressure_event()
    }

    /// Bytes of records that were submitted and are neither durable nor failed: bounded by who submits.
    pub fn unsettled_bytes(&self) -> u64 {
        self.0.unsettled_bytes.get()
    }

    /// Refuses what waits for room in the journal, because none comes for now. What is on its way stays there.
    pub(crate) fn refuse_waiting(&self, error: &Error) {
        self.0.on_journal_lost(error);
    }

    /// Refuses what waits for a journal file, if something does, because none comes free for now: also what was on its
    /// way and has to be written again.
    pub(crate) fn refuse_starved(&self, error: &Error) {
        self.0.journal.refuse_starved(error);
    }

    /// No file is trimmed any more: from now on whatever waits for room in the journal is refused, also what was on
    /// its way and has to be written again.
    pub(crate) fn end(&self, error: &Error) {
        self.refuse_waiting(error);
        self.0.journal.end(error);
    }

    /// Counters since the start.
    pub fn statistics(&self) -> JournalStatistics {
        self.0.journal.statistics()
    }

    /// Waits for everything in flight, then deletes every journal file whose records are dumped, as
    /// [`FusionWriteEngine::trim`] does: after it there is nothing to replay. Nothing may be submitted afterwards.
    ///
    /// # Errors
    /// `Io`: a file could not be deleted; the next start replays it.
    pub async fn close(
        &self,
        dumped_through: impl Fn(SegmentId) -> SegmentSequence,
        intend: impl AsyncFn(FileId) -> Result<()>,
    ) -> Result<()> {
        while self.unsettled_bytes() > 0 {
            self.0.journal.changed().await;
        }
        self.0.journal.close(&dumped_through, &intend).await
    }

    /// Forgets every record that is not durable; nobody is told.
    pub(crate) fn forget_in_flight(&self) {
        let forgotten = std::mem::take(&mut *self.0.gathered.borrow_mut());
        drop(forgotten);
        self.0.journal.forget_in_flight();
    }
}

/// What every caller guarantees.
fn check(record: &JournalRecord) {
    let JournalRecord { offset, len, .. } = *record;
    assert!(offset.is_multiple_of(SECTOR) && len.is_multiple_of(SECTOR) && len > 0, "records are whole sectors");
    assert!(offset + len <= SEGMENT_SIZE, "a record lies in its segment");
    if let Operation::Write { data, .. } = &record.operation {
        assert!(data.len() as u64 == len && len <= RECORD_DATA_MAX, "a write brings its data, in bounded pieces");
    }
}

impl Inner {
    fn look_at_turn_end(&self) {
        if !self.at_turn_end.replace(true) {
            let this = self.this.clone();
            self.handle.at_turn_end(move || {
                if let Some(this) = this.upgrade() {
                    this.at_turn_end.set(false);
                    this.look();
                }
            });
        }
    }

    /// Closes what is gathered, or arranges to look again.
    fn look(&self) {
        let plan = self.gathering.borrow().plan_close(self.handle.now(), self.journal.in_flight());
        match plan {
            // The journal tells of every append that lands.
            None | Some(FusionPlan::WhenLanded) => {}
            Some(FusionPlan::Close | FusionPlan::AtTurnEnd) => self.pump(),
            Some(FusionPlan::WaitUntil(deadline)) => self.look_at(deadline),
        }
    }

    fn look_at(&self, deadline: Instant) {
        if self.waiting.replace(true) {
            return;
        }
        let this = self.this.clone();
        let sleep = self.handle.sleep_until(deadline);
        let waiting = async move {
            sleep.await;
            if let Some(this) = this.upgrade() {
                this.waiting.set(false);
                this.look();
            }
        };
        self.handle.spawn(Class::Io, "fusion wait", waiting).detach();
    }

    /// Appends what is gathered, as far as the journal takes it now.
    fn pump(&self) {
        while !self.gathered.borrow().is_empty() {
            let Some(limit) = self.journal.append_limit() else { return };
            let (records, bytes) = self.take_records(limit);
            if records.is_empty() {
                self.journal.finish_file();
                continue;
            }
            self.gathering.borrow_mut().on_appended(bytes);
            self.handle.charge(RECORD_COST * records.len() as u32 + KIB_COST * (bytes / base::KIB) as u32);
            self.journal.append(Batch::new(records));
        }
    }

    /// The oldest records that fit an append of `limit` bytes together, and their bytes.
    fn take_records(&self, limit: u64) -> (Vec<Submitted>, u64) {
        let mut gathered = self.gathered.borrow_mut();
        let (mut size, mut bytes, mut count) = (AppendSize::default(), 0, 0);
        for one in gathered.iter() {
            let with = size.with(one.record());
            if with.padded() > limit {
                break;
            }
            size = with;
            bytes += record_bytes(one.record());
            count += 1;
        }
        (gathered.drain(..count).collect(), bytes)
    }
}

impl Upstream for Inner {
    fn on_room(&self) {
        if !self.gathered.borrow().is_empty() {
            self.look_at_turn_end();
        }
    }

    fn on_journal_lost(&self, error: &Error) {
        let gathered = std::mem::take(&mut *self.gathered.borrow_mut());
        let bytes = gathered.iter().map(|one| record_bytes(one.record())).sum();
        self.gathering.borrow_mut().on_appended(bytes);
        gathered.into_iter().for_each(|one| one.fail(error));
    }
}

#[cfg(test)]
mod tests;
