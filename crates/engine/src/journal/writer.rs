//! Writes batches into journal files: several appends in flight, confirmed strictly in order.
//!
//! Names: a *flight* is an append that was given to the store and whose records were not told yet. Files are opened,
//! sealed and deleted in [`journal_files`].
//!
//! Invariants:
//! - A batch is told that it is durable only after every batch before it (SAFETY: acknowledgements follow journal
//!   order), also across files.
//! - After an append failed, nothing more goes into its file. When the other flights have landed, the file is sealed
//!   behind its last confirmed append, and the batches that were not confirmed are written again, under the same log
//!   sequences, into a new file. Its `base` says that what may have landed in the old one is void, even if the seal
//!   could not be written. A batch that fails [`APPEND_TRIES_MAX`] times is given up together with all that waits.
//!
//! Flow: [`JournalWriter::append_limit`], [`JournalWriter::append`]; an outcome comes; `settle` confirms from the
//! front; or `start_over` seals, opens a new file, and `relaunch` writes again.

mod journal_files;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::time::Duration;

use base::limits::JOURNAL_APPENDS_IN_FLIGHT;
use base::seeded::is_on;
use base::{Error, ErrorKind, FileId, Instant, LogSequence, Result};
use files::Store;
use runtime::sync::Event;
use runtime::{Class, Handle};

use super::batch::{Batch, Place};
use super::ledger::LedgerFile;
use super::{JOURNAL_FILE_BYTES_MIN, JournalOptions};
use crate::cache::CacheMemory;
use crate::way::Way;
use journal_files::JournalFiles;

/// How often a batch is written before its records fail.
const APPEND_TRIES_MAX: u32 = 3;
/// How long the journal is quiet before a marker says that its last append was durable.
const MARKER_PAUSE: Duration = Duration::from_millis(20);

/// Who gathers the records: told when an append may have become possible, and when none is for now.
pub(crate) trait Upstream {
    /// [`JournalWriter::append_limit`] may have grown.
    fn on_room(&self);
    /// No journal can be written: fail what waits. Later submissions try again.
    fn on_journal_lost(&self, error: &Error);
}

/// Counters of a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JournalStatistics {
    /// Appends that became durable.
    pub appends: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes of them, padding and headers included, one copy counted.
    pub bytes: u64,
    /// Appends that failed.
    pub failed_appends: u64,
    /// Batches that were written again after a failure.
    pub rewritten_batches: u64,
    /// Files that were taken into use.
    pub files: u64,
    /// Times that writers had to wait for a file.
    pub file_waits: u64,
}

/// The writer of one loop's journal. Clones share it.
#[derive(Clone)]
pub(crate) struct JournalWriter(Rc<Inner>);

struct Inner {
    handle: Handle,
    store: Store,
    options: JournalOptions,
    memory: CacheMemory,
    upstream: RefCell<Option<Weak<dyn Upstream>>>,
    pressure_event: Event,
    /// Notified whenever a flight or a file changed its state.
    changed: Event,
    state: RefCell<State>,
    marker_armed: Cell<bool>,
}

struct State {
    files: JournalFiles,
    /// An append failed: nothing is appended until a new file is open.
    failing: bool,
    flights: VecDeque<Flight>,
    next_flight: u64,
    /// Batches that have to be written again, before any other.
    again: VecDeque<Unconfirmed>,
    /// The next append's number.
    sequence: LogSequence,
    durable_through: LogSequence,
    /// Whether the last append had records: a marker is due when the journal falls quiet.
    unmarked: bool,
    statistics: JournalStatistics,
}

struct Unconfirmed {
    batch: Batch,
    /// How often it failed.
    failures: u32,
    /// When it was appended first.
    tried: Option<Instant>,
}

struct Flight {
    number: u64,
    file: FileId,
    sequence: LogSequence,
    len: u64,
    unconfirmed: Unconfirmed,
    launched: Instant,
    landed: Instant,
    outcome: Option<Result<()>>,
}

/// An append that failed, when everything in flight has landed.
struct Failure {
    /// Files with appends that were not confirmed.
    files: Vec<FileId>,
    /// Why the first of them failed.
    error: Error,
    /// Whether the first one has failed too often.
    exhausted: bool,
}

impl JournalWriter {
    /// A writer with no file open yet; it creates its first one at once.
    pub(crate) fn new(
        handle: &Handle,
        store: &Store,
        options: JournalOptions,
        memory: &CacheMemory,
        recovered: Vec<LedgerFile>,
    ) -> Self {
        assert!(options.files_max >= 2, "one journal file is written while another is dumped");
        assert!(options.file_bytes >= JOURNAL_FILE_BYTES_MIN, "a file holds the longest record");
        let writer = JournalWriter(Rc::new(Inner {
            handle: handle.clone(),
            store: store.clone(),
            options,
            memory: memory.clone(),
            upstream: RefCell::new(None),
            pressure_event: Event::new(),
            changed: Event::new(),
            marker_armed: Cell::new(false),
            state: RefCell::new(State {
                files: JournalFiles::new(recovered),
                failing: false,
                flights: VecDeque::new(),
                next_flight: 0,
                again: VecDeque::new(),
                sequence: LogSequence(1),
                durable_through: LogSequence(0),
                unmarked: false,
                statistics: JournalStatistics::default(),
            }),
        }));
        writer.ensure_file(false);
        writer
    }

    /// Says who gathers the records. Once, before the first append.
    pub(crate) fn connect(&self, upstream: Weak<dyn Upstream>) {
        *self.0.upstream.borrow_mut() = Some(upstream);
    }

    /// The longest append that is possible now; `None` when none is: [`Upstream::on_room`] says when to ask again.
    pub(crate) fn append_limit(&self) -> Option<u64> {
        let state = self.0.state.borrow();
        let free = !state.failing && state.again.is_empty() && state.flights.len() < JOURNAL_APPENDS_IN_FLIGHT;
        if free && state.files.current.is_none() {
            drop(state);
            self.ensure_file(true);
            let room = self.current_room();
            if room.is_none() {
                self.0.state.borrow_mut().files.on_starved(self.0.handle.now());
            }
            return room;
        }
        state.files.room().filter(|_| free)
    }

    fn current_room(&self) -> Option<u64> {
        self.0.state.borrow().files.room()
    }

    /// Appends that have not landed, and batches that must be written again.
    pub(crate) fn in_flight(&self) -> usize {
        let state = self.0.state.borrow();
        state.flights.len() + state.again.len()
    }

    /// Appends a batch no longer than [`JournalWriter::append_limit`].
    pub(crate) fn append(&self, batch: Batch) {
        self.launch(Unconfirmed { batch, failures: 0, tried: None });
        self.ensure_file(false);
    }

    fn launch(&self, mut unconfirmed: Unconfirmed) {
        let launched = self.0.handle.now();
        unconfirmed.tried.get_or_insert(launched);
        let mut state = self.0.state.borrow_mut();
        let State { files, sequence, durable_through, .. } = &mut *state;
        let current = files.current.as_mut().expect("an append has a file");
        let place = Place {
            file: current.writer.id(),
            incarnation: self.0.store.incarnation(),
            log: self.0.options.log,
            ordinal: current.ordinal,
            base: current.base,
            sequence: *sequence,
            durable_through: match is_on("durable-through-ahead") {
                true => LogSequence(sequence.0 - 1),
                false => *durable_through,
            },
            offset: current.writer.position(),
        };
        let bytes = unconfirmed.batch.encode(&place);
        let len = bytes.len() as u64;
        tracing::trace!(target: "levee::stage", file = %place.file, sequence = %place.sequence, len, "append");
        let appended = current.writer.append(bytes);
        sequence.0 += 1;
        state.unmarked = !unconfirmed.batch.is_marker();
        let number = state.next_flight;
        state.next_flight += 1;
        state.flights.push_back(Flight {
            number,
            file: place.file,
            sequence: place.sequence,
            len,
            unconfirmed,
            launched,
            landed: launched,
            outcome: None,
        });
        drop(state);
        let this = self.clone();
        let landing = async move {
            let outcome = match is_on("acked-before-durable") {
                true => Ok(()),
                false => appended.await.map(drop),
            };
            this.on_landed(number, outcome);
        };
        self.0.handle.spawn(Class::Io, "journal append", landing).detach();
    }

    fn on_landed(&self, number: u64, outcome: Result<()>) {
        let now = self.0.handle.now();
        let mut state = self.0.state.borrow_mut();
        if let Err(error) = &outcome {
            tracing::error!(%error, "an append to the journal failed");
            state.failing = true;
            state.statistics.failed_appends += 1;
            if let Some(current) = &mut state.files.current
                && !is_on("append-goes-on-after-error")
            {
                current.writer.fail();
            }
        }
        let at = state.flights.iter().position(|flight| flight.number == number);
        let at = at.expect("a flight stays until it landed");
        state.flights[at].outcome = Some(outcome);
        state.flights[at].landed = now;
        if is_on("acked-out-of-order") {
            state.flights.swap(0, at);
        }
        drop(state);
        self.settle(now);
    }

    /// Confirms what has landed, from the front.
    fn settle(&self, now: Instant) {
        while let Some((batch, way)) = self.confirm_front(now) {
            batch.deliver(&self.0.memory, way);
        }
        if let Some(failure) = self.take_failure() {
            let this = self.clone();
            let starting_over = async move { this.start_over(failure).await };
            self.0.handle.spawn(Class::Io, "journal failure", starting_over).detach();
            return;
        }
        self.end_files();
        self.relaunch();
        self.arm_marker();
        self.0.changed.notify();
        self.tell_room();
    }

    fn confirm_front(&self, now: Instant) -> Option<(Batch, Way)> {
        let mut state = self.0.state.borrow_mut();
        if !matches!(state.flights.front()?.outcome, Some(Ok(()))) {
            return None;
        }
        let Flight { file, sequence, len, unconfirmed, launched, landed, .. } = state.flights.pop_front()?;
        let Unconfirmed { batch, tried, .. } = unconfirmed;
        let (starved, tried) = (state.files.starved_at, tried.unwrap_or(launched));
        let way = Way { starved, tried, launched, landed, confirmed: now, ..Way::default() };
        state.durable_through = sequence;
        tracing::trace!(target: "levee::stage", %file, %sequence, "durable");
        let known = state.files.ledger.file(file).expect("a file with flights is in the ledger");
        known.on_append(sequence, len, batch.sequences());
        state.statistics.appends += 1;
        state.statistics.records += batch.sequences().count() as u64;
        state.statistics.bytes += len;
        Some((batch, way))
    }

    /// Writes batches again, as far as there is a file and room.
    fn relaunch(&self) {
        loop {
            let mut state = self.0.state.borrow_mut();
            let Some(len) = state.again.front().map(|first| first.batch.padded_len()) else { return };
            if state.failing || state.flights.len() >= JOURNAL_APPENDS_IN_FLIGHT {
                return;
            }
            match state.files.current.as_ref().map(|current| current.writer.room() >= len) {
                Some(true) => {}
                Some(false) => {
                    drop(state);
                    self.finish_file();
                    continue;
                }
                None => {
                    drop(state);
                    self.ensure_file(true);
                    if self.current_room().is_none() {
                        return;
                    }
                    continue;
                }
            }
            let Some(unconfirmed) = state.again.pop_front() else { return };
            state.statistics.rewritten_batches += 1;
            drop(state);
            self.launch(unconfirmed);
        }
    }

    /// After a failure, once every flight has landed: moves what was not confirmed to the batches that are written
    /// again, under the same log sequences.
    fn take_failure(&self) -> Option<Failure> {
        let mut state = self.0.state.borrow_mut();
        if !state.failing || !state.flights.iter().all(|flight| flight.outcome.is_some()) {
            return None;
        }
        state.sequence = state.flights.front()?.sequence;
        let flights: Vec<Flight> = state.flights.drain(..).collect();
        let mut files: Vec<FileId> = flights.iter().map(|flight| flight.file).collect();
        if !is_on("append-goes-on-after-error") {
            files.extend(state.files.current.take().map(|current| current.writer.id()));
        }
        files.dedup();
        let mut failure = Failure { files, error: Error::io("an append failed"), exhausted: false };
        for Flight { mut unconfirmed, outcome, .. } in flights.into_iter().rev() {
            if let Some(Err(error)) = outcome {
                unconfirmed.failures += 1;
                failure.error = error;
            }
            failure.exhausted = unconfirmed.failures >= APPEND_TRIES_MAX;
            state.again.push_front(unconfirmed);
        }
        Some(failure)
    }

    /// Ends the files that were not confirmed to their end, and goes on in a new one.
    async fn start_over(&self, failure: Failure) {
        for file in failure.files {
            if is_on("append-goes-on-after-error") {
                continue;
            }
            self.end_file(file).await;
        }
        self.0.state.borrow_mut().failing = false;
        if failure.exhausted || failure.error.kind == ErrorKind::Fenced {
            self.give_up(&failure.error);
        }
        self.settle(self.0.handle.now());
    }

    /// Fails everything that waits, in order. The outcome of what was tried is unknown: it may have landed.
    fn give_up(&self, error: &Error) {
        let error = match error.kind {
            ErrorKind::Fenced | ErrorKind::Full => error.clone(),
            _ => Error::io(&error.message),
        };
        let error = error.context("the journal cannot be written");
        let again = std::mem::take(&mut self.0.state.borrow_mut().again);
        again.into_iter().for_each(|unconfirmed| unconfirmed.batch.fail(&error));
        let upstream = self.upstream();
        if let Some(upstream) = upstream {
            upstream.on_journal_lost(&error);
        }
    }

    fn upstream(&self) -> Option<Rc<dyn Upstream>> {
        self.0.upstream.borrow().as_ref()?.upgrade()
    }

    fn tell_room(&self) {
        if let Some(upstream) = self.upstream() {
            upstream.on_room();
        }
    }

    /// Lets a marker follow when the journal has been quiet for a while. Without it, the last append of a journal is
    /// proven durable by nothing: if it rotted, a recovery would have to take it for torn.
    fn arm_marker(&self) {
        let due = { self.0.state.borrow().unmarked };
        if !due || self.0.marker_armed.replace(true) {
            return;
        }
        let this = Rc::downgrade(&self.0);
        let handle = self.0.handle.clone();
        let marking = async move {
            let mut seen = None;
            loop {
                handle.sleep(MARKER_PAUSE).await;
                let Some(this) = this.upgrade().map(JournalWriter) else { return };
                let (sequence, in_flight, unmarked) = {
                    let state = this.0.state.borrow();
                    (state.sequence, !state.flights.is_empty(), state.unmarked)
                };
                if seen.replace(sequence) != Some(sequence) || in_flight {
                    continue;
                }
                this.0.marker_armed.set(false);
                if unmarked && this.append_limit().is_some_and(|limit| limit > 0) {
                    this.append(Batch::marker());
                }
                return;
            }
        };
        self.0.handle.spawn(Class::Background, "journal marker", marking).detach();
    }

    /// Forgets every batch that is not confirmed; nobody is told.
    pub(crate) fn forget_in_flight(&self) {
        let forgotten = {
            let mut state = self.0.state.borrow_mut();
            (std::mem::take(&mut state.flights), std::mem::take(&mut state.again))
        };
        drop(forgotten);
    }

    fn is_settled(&self) -> bool {
        let state = self.0.state.borrow();
        !state.files.is_creating() && !state.failing && state.flights.is_empty() && state.again.is_empty()
    }

    /// Completes when a flight or a file changes its state.
    pub(crate) fn changed(&self) -> impl Future<Output = ()> + use<> {
        self.0.changed.wait()
    }

    pub(crate) fn statistics(&self) -> JournalStatistics {
        self.0.state.borrow().statistics
    }
}
