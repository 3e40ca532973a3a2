//! The life of journal files: created ahead of need, filled, sealed, deleted when everything in them is dumped.
//!
//! Intuition: creating a file takes several disk operations, an append one. So a file is made while the one before it
//! is still being filled, and it is sealed in the background. Appends wait for a file only if a disk is slow to give
//! one, or if dumping lags behind by all the files that may exist: then the journal is *starved*.
//!
//! Names: the *current* file takes appends; the *next* one is prepared before it is needed; *finished* files only wait
//! to be dumped.
//!
//! Invariants:
//! - No file is created when `files_max` exist, the next one included: appends wait until the oldest was dumped and
//!   trimmed. One is created at a time.
//! - A file is sealed behind its last confirmed append, and only when it takes no more appends and all of its flights
//!   have landed. One without a confirmed append is deleted instead.
//! - A file that could not be sealed is finished all the same: its end is proven by the files after it, the seal only
//!   spares a recovery the search.
//! - Files are trimmed from the oldest on, so that the journal on disk has no gap.
//!
//! Flow: [`JournalWriter::ensure_file`] takes the next file into use and has another created;
//! [`JournalWriter::end_files`] seals what takes no more appends; [`JournalWriter::trim`] deletes what is dumped, which
//! lets `ensure_file` go on; [`JournalWriter::close`] ends everything.

use std::rc::Rc;
use std::time::Duration;

use base::limits::JOURNAL_APPEND_MAX;
use base::{Error, ErrorKind, FileId, Instant, LogSequence, Result, SegmentId, SegmentSequence};
use files::{Claim, CreateOptions, FileKind, FileWriter, Redundancy};
use runtime::Class;
use runtime::sync::{Event, first};

use super::{JournalWriter, State};
use crate::journal::ledger::{Ledger, LedgerFile};
use crate::journal::{JournalPosition, JournalPressure, OldestUndumped};
use crate::patience::Patience;

/// How often creating, sealing or deleting a file is tried in a row, and the pause after the first failure; each
/// further one is ten times longer.
const FILE_TRIES_MAX: u32 = 3;
const FILE_RETRY_PAUSE: Duration = Duration::from_millis(10);
/// How long the creation of a file that nobody waits for yet rests after it failed.
const PREPARE_PAUSE: Duration = Duration::from_secs(1);
/// How long a deletion that failed rests. Where writers wait for the file, no dump may be left that would try it again.
const TRIM_PAUSE: Duration = Duration::from_secs(1);

/// The files of one journal.
pub(super) struct JournalFiles {
    /// Those that were taken into use.
    pub(super) ledger: Ledger,
    pub(super) current: Option<CurrentFile>,
    next: Option<FileWriter>,
    /// A file is being created.
    creating: bool,
    /// When the creation of a file that nobody waits for may be tried again.
    prepare_at: Instant,
    /// Somebody waits for a file, and `files_max` forbids it.
    starved: bool,
    /// Since when an append has been waiting for a file, if one does.
    starved_since: Option<Instant>,
    /// From when to when one did, the last time.
    pub(super) starved_at: (Instant, Instant),
    /// A deletion failed; whoever relieves the pressure is asked again in a while.
    trim_rests: bool,
    /// How long deletions have been failing.
    trim_patience: Patience,
    /// Why no file is trimmed any more: who waits for one waits in vain.
    ended: Option<Error>,
    /// No file is opened any more.
    closed: bool,
    /// Of the file that was taken into use last.
    ordinal: u32,
    pressure: JournalPressure,
}

/// The file that takes appends.
pub(super) struct CurrentFile {
    pub(super) writer: FileWriter,
    /// Its place among the files of the journal.
    pub(super) ordinal: u32,
    /// The log sequence of its first append.
    pub(super) base: LogSequence,
}

impl JournalFiles {
    /// No file is open yet; those of earlier incarnations wait to be dumped.
    pub(super) fn new(recovered: Vec<LedgerFile>) -> Self {
        JournalFiles {
            ledger: Ledger::new(recovered),
            current: None,
            next: None,
            creating: false,
            prepare_at: Instant::ZERO,
            starved: false,
            starved_since: None,
            starved_at: Default::default(),
            trim_rests: false,
            trim_patience: Patience::default(),
            ended: None,
            closed: false,
            ordinal: 0,
            pressure: JournalPressure::Low,
        }
    }

    /// The longest append that fits into the current file, if there is one.
    pub(super) fn room(&self) -> Option<u64> {
        self.current.as_ref().map(|current| current.writer.room().min(JOURNAL_APPEND_MAX))
    }

    /// An append waits for a file.
    pub(super) fn on_starved(&mut self, now: Instant) {
        self.starved_since.get_or_insert(now);
    }

    pub(super) fn is_creating(&self) -> bool {
        self.creating
    }
}

impl JournalWriter {
    /// Ends the current file, because a record does not fit into its rest.
    pub(crate) fn finish_file(&self) {
        self.0.state.borrow_mut().files.current = None;
        self.ensure_file(true);
        self.end_files();
    }

    /// A new file may be better than the present one (`Store::is_inferior`), which takes no more appends then. Not where another one could only be had after a dump: then it is full soon.
    pub(crate) fn renew_file(&self) {
        let is_inferior = |writer: &FileWriter| self.0.store.is_inferior(writer.id());
        let (unfit, is_current_inferior) = {
            let mut state = self.0.state.borrow_mut();
            let (failing, files) = (state.failing, &mut state.files);
            if failing || files.closed || files.ledger.len() >= self.0.options.files_max {
                return;
            }
            let is_current_inferior = files.current.as_ref().is_some_and(|current| is_inferior(&current.writer));
            (files.next.take_if(|next| is_inferior(next)), is_current_inferior)
        };
        if let Some(unfit) = unfit {
            // Nothing is in it.
            let store = self.0.store.clone();
            let delete = async move {
                if let Err(error) = store.delete(unfit.id()).await {
                    tracing::warn!(%error, "a journal file that nobody needs could not be deleted");
                }
            };
            self.0.handle.spawn(Class::Background, "journal file", delete).detach();
        }
        match is_current_inferior {
            true => self.finish_file(),
            false => self.ensure_file(false),
        }
    }

    /// Takes the next file into use if there is no current one, and has another prepared when half of the current
    /// one is used. `wanted`: somebody cannot append without.
    pub(super) fn ensure_file(&self, wanted: bool) {
        let mut state = self.0.state.borrow_mut();
        if state.failing || state.files.closed {
            return;
        }
        if state.files.current.is_none()
            && let Some(writer) = state.files.next.take()
        {
            self.install(&mut state, writer);
        }
        let (file_bytes, now) = (self.0.options.file_bytes, self.0.handle.now());
        let due = match &state.files.current {
            None => true,
            Some(current) => current.writer.room() < file_bytes / 2 && now >= state.files.prepare_at,
        };
        if due && state.files.next.is_none() && !state.files.creating {
            let allowed = state.files.ledger.len() < self.0.options.files_max;
            if allowed {
                state.files.creating = true;
                let this = self.clone();
                self.0.handle.spawn(Class::Io, "journal file", async move { this.create_file().await }).detach();
            } else if wanted && state.files.current.is_none() {
                state.statistics.file_waits += u64::from(!state.files.starved);
                state.files.starved = true;
                if let Some(error) = state.files.ended.clone() {
                    drop(state);
                    self.give_up(&error);
                    return;
                }
            }
        }
        drop(state);
        self.note_pressure(false);
    }

    /// No file is trimmed any more: who waits for one is told, now and later.
    pub(crate) fn end(&self, error: &Error) {
        self.0.state.borrow_mut().files.ended = Some(error.clone());
        self.refuse_starved(error);
    }

    /// Nothing is trimmed for now: who waits for a file is told.
    pub(crate) fn refuse_starved(&self, error: &Error) {
        let is_starved = self.0.state.borrow().files.starved;
        if is_starved {
            self.give_up(error);
        }
    }

    fn install(&self, state: &mut State, writer: FileWriter) {
        let State { files, sequence, statistics, .. } = state;
        files.ordinal += 1;
        files.starved = false;
        if let Some(since) = files.starved_since.take() {
            files.starved_at = (since, self.0.handle.now());
        }
        statistics.files += 1;
        files.ledger.push(LedgerFile::new(writer.id(), self.0.options.file_bytes, 0, *sequence));
        files.current = Some(CurrentFile { writer, ordinal: files.ordinal, base: *sequence });
    }

    async fn create_file(&self) {
        // Without one nothing can be discarded.
        let is_first = self.0.state.borrow().files.ledger.len() == 0;
        let claim = if is_first { Claim::Log } else { Claim::Use };
        let options = CreateOptions {
            kind: FileKind::Journal,
            capacity: self.0.options.file_bytes,
            redundancy: Redundancy::Copies(self.0.options.copies),
            prepared: true,
            epoch: base::Epoch(1),
            segment: None,
            claim,
        };
        let mut attempt = 0;
        let created = loop {
            attempt += 1;
            match self.0.store.create(options).await {
                Ok(writer) => break Ok(writer),
                Err(error) if attempt == FILE_TRIES_MAX || error.kind == ErrorKind::Fenced => break Err(error),
                Err(error) => tracing::warn!(%error, attempt, "a journal file could not be created"),
            }
            self.pause(attempt).await;
        };
        let mut state = self.0.state.borrow_mut();
        state.files.creating = false;
        match created {
            Ok(writer) => state.files.next = Some(writer),
            Err(error) => {
                tracing::error!(%error, "no journal file can be created");
                state.files.prepare_at = self.0.handle.now() + PREPARE_PAUSE;
                let lost = state.files.current.is_none();
                drop(state);
                if lost {
                    self.give_up(&error);
                }
                self.0.changed.notify();
                return;
            }
        }
        drop(state);
        self.ensure_file(false);
        self.settle(self.0.handle.now());
    }

    /// Seals, in the background, files that take no more appends and whose last flight has landed.
    pub(super) fn end_files(&self) {
        let ending: Vec<FileId> = {
            let mut state = self.0.state.borrow_mut();
            let State { files, flights, failing, .. } = &mut *state;
            if *failing {
                return;
            }
            let JournalFiles { ledger, current, .. } = files;
            let in_use = |file: FileId| {
                flights.iter().any(|flight| flight.file == file)
                    || current.as_ref().is_some_and(|current| current.writer.id() == file)
            };
            ledger.plan_end(in_use)
        };
        for file in ending {
            let this = self.clone();
            let sealing = async move { this.end_file(file).await };
            self.0.handle.spawn(Class::Background, "journal seal", sealing).detach();
        }
    }

    /// Seals a file behind its last confirmed append, or deletes it if there is none.
    pub(super) async fn end_file(&self, file: FileId) {
        let end = self.0.state.borrow_mut().files.ledger.file(file).map(|known| known.end());
        let Some(end) = end else { return };
        for attempt in 1..=FILE_TRIES_MAX {
            let ended = match end {
                0 => self.0.store.delete(file).await,
                end => self.0.store.seal(file, end).await,
            };
            match ended {
                Ok(()) if end == 0 => {
                    self.0.state.borrow_mut().files.ledger.remove(file);
                    break;
                }
                Ok(()) => break,
                Err(error) => tracing::warn!(%error, attempt, "a journal file could not be ended"),
            }
            self.pause(attempt).await;
        }
        if let Some(known) = self.0.state.borrow_mut().files.ledger.file(file) {
            known.on_ended();
        }
        self.0.changed.notify();
        self.note_pressure(true);
    }

    /// See [`crate::fusion::FusionWriteEngine::trim`].
    pub(crate) async fn trim(
        &self,
        dumped_through: &impl Fn(SegmentId) -> SegmentSequence,
        intend: &impl AsyncFn(FileId) -> Result<()>,
    ) {
        loop {
            match self.trim_one(dumped_through, intend).await {
                Ok(false) => return,
                Ok(true) => {
                    self.0.state.borrow().files.trim_patience.on_success();
                    self.ensure_file(false);
                    self.settle(self.0.handle.now());
                }
                Err(error) => {
                    tracing::warn!(%error, "a journal file could not be deleted; it is tried again");
                    let now = self.0.handle.now();
                    if self.0.state.borrow().files.trim_patience.on_failure(now, &error) {
                        self.refuse_starved(&error);
                    }
                    return self.trim_later();
                }
            }
        }
    }

    /// Deletes the oldest file, if nothing in it is needed any more. Gives whether there was one.
    async fn trim_one(
        &self,
        dumped_through: &impl Fn(SegmentId) -> SegmentSequence,
        intend: &impl AsyncFn(FileId) -> Result<()>,
    ) -> Result<bool> {
        let planned = { self.0.state.borrow_mut().files.ledger.plan_trim(dumped_through) };
        let Some(file) = planned else { return Ok(false) };
        let deleted = match intend(file).await {
            Ok(()) => self.0.store.delete(file).await,
            Err(error) => Err(error),
        };
        let mut state = self.0.state.borrow_mut();
        match &deleted {
            Ok(()) => state.files.ledger.remove(file),
            Err(_) => state.files.ledger.file(file).into_iter().for_each(LedgerFile::on_ended),
        }
        drop(state);
        // Who ends the journal waits for every file that is on its way out, also one that stays.
        self.0.changed.notify();
        deleted.map(|()| true)
    }

    /// See [`crate::fusion::FusionWriteEngine::dumped_journals`].
    pub(crate) fn dumped_files(&self, dumped_through: &impl Fn(SegmentId) -> SegmentSequence) -> Vec<FileId> {
        self.0.state.borrow().files.ledger.dumped_files(dumped_through)
    }

    /// Says after a pause that the journal is still under pressure, if it is.
    fn trim_later(&self) {
        if std::mem::replace(&mut self.0.state.borrow_mut().files.trim_rests, true) {
            return;
        }
        let (this, handle) = (Rc::downgrade(&self.0), self.0.handle.clone());
        let resting = async move {
            handle.sleep(TRIM_PAUSE).await;
            let Some(this) = this.upgrade().map(JournalWriter) else { return };
            this.0.state.borrow_mut().files.trim_rests = false;
            this.note_pressure(true);
        };
        self.0.handle.spawn(Class::Io, "journal trim", resting).detach();
    }

    /// See [`crate::fusion::FusionWriteEngine::oldest_undumped`].
    pub(crate) fn oldest_undumped(
        &self,
        dumped_through: &impl Fn(SegmentId) -> SegmentSequence,
    ) -> Option<OldestUndumped> {
        self.0.state.borrow().files.ledger.oldest_undumped(dumped_through)
    }

    /// See [`crate::fusion::FusionWriteEngine::replay_start`].
    pub(crate) fn replay_start(
        &self,
        dumped_through: &impl Fn(SegmentId) -> SegmentSequence,
    ) -> Option<JournalPosition> {
        self.0.state.borrow().files.ledger.replay_start(dumped_through)
    }

    pub(crate) fn pressure(&self) -> JournalPressure {
        self.0.state.borrow().files.pressure
    }

    pub(crate) fn pressure_event(&self) -> Event {
        self.0.pressure_event.clone()
    }

    /// See [`crate::fusion::FusionWriteEngine::close`]. What is gathered upstream must have been appended.
    pub(crate) async fn close(
        &self,
        dumped_through: &impl Fn(SegmentId) -> SegmentSequence,
        intend: &impl AsyncFn(FileId) -> Result<()>,
    ) -> Result<()> {
        loop {
            self.trim(dumped_through, intend).await;
            // A trim that fails at once, as with a log that is broken, is not what is waited for.
            let changed = self.0.changed.wait();
            if self.is_settled() {
                break;
            }
            // Whoever waits for the room of a file waits for the next try.
            let _ = first(changed, self.0.handle.sleep(TRIM_PAUSE)).await;
        }
        {
            let mut state = self.0.state.borrow_mut();
            state.files.closed = true;
            state.files.current = None;
        }
        self.end_files();
        loop {
            let changed = self.0.changed.wait();
            if self.0.state.borrow().files.ledger.is_quiet() {
                break;
            }
            changed.await;
        }
        let next = { self.0.state.borrow_mut().files.next.take() };
        if let Some(next) = next {
            self.0.store.delete(next.id()).await?;
        }
        while self.trim_one(dumped_through, intend).await? {}
        Ok(())
    }

    /// `freed`: a file may be trimmed now that could not before.
    fn note_pressure(&self, freed: bool) {
        let (before, now) = {
            let mut state = self.0.state.borrow_mut();
            let finished_max = self.0.options.files_max.saturating_sub(2).max(1);
            let now = match state.files.starved {
                true => JournalPressure::Full,
                false if state.files.ledger.finished() >= finished_max => JournalPressure::High,
                false => JournalPressure::Low,
            };
            (std::mem::replace(&mut state.files.pressure, now), now)
        };
        if now > before || (freed && now > JournalPressure::Low) {
            self.0.pressure_event.notify();
        }
    }

    async fn pause(&self, attempt: u32) {
        if attempt < FILE_TRIES_MAX {
            self.0.handle.sleep(FILE_RETRY_PAUSE * 10u32.pow(attempt - 1)).await;
        }
    }
}
