//! The writer of the transaction log.
//!
//! A record gets its log sequence, and its place behind the records before it, at the call. Those of one turn of the
//! loop go out as one append, because each append has to be made durable; what nobody waits for
//! ([`TransactionLog::append_lazily`]) goes out with the next one, or after a moment. Several appends are in flight; their records
//! **retire** in log order: a record retires when it and every record before it are durable, and only then is
//! its effect applied to memory and its waiter told. So what memory holds is always a prefix of the log (the effect
//! of large writes, which wait for their data too, excepted), and a checkpoint can name the position it stands for.
//!
//! Names: `durable_through` is the highest sequence up to which everything is complete: records, and the data of
//! large writes. It travels in every header, and tells a recovery which large writes need no proof.
//!
//! How it gets from one file to the next, and what becomes of a file that failed, is in [`rotation`]; what
//! records have not brought about yet, in [`unsettled`].

mod rotation;
mod unsettled;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use base::seeded::is_on;
use base::{AlignedBuf, Error, FileId, Histogram, Incarnation, Instant, KIB, LogSequence, Result, SegmentId};
use files::{FileWriter, LocalBoxFuture, Store};
use runtime::sync::{Event, Receiver, Sender, oneshot};
use runtime::{Class, Handle};

use crate::patience::Patience;

use super::codec::{Header, Kind, encode_behind, encode_body, kind_of, padded_len};
use super::{FrozenAt, Record, Relocating, TransactionSink};
use unsettled::Unsettled;

/// Bytes of one append at most, unless one record has more.
const APPEND_BYTES_MAX: u64 = 64 * KIB;
/// How long records that nobody waits for may gather, so that many of them are one append: so many times what an append takes
/// here, within these bounds. Where an append is an operation of a store far away, each costs what one of data costs.
const LAZY_WAIT_APPENDS: u64 = 8;
const LAZY_WAIT_MIN: Duration = Duration::from_millis(10);
const LAZY_WAIT_MAX: Duration = Duration::from_millis(200);
/// Records that have not retired, before [`TransactionLog::room`] holds back more: what a recovery finds by their labels
/// is bounded by it.
const UNRETIRED_MAX: usize = 1024;
/// Files at most, before [`TransactionLog::room`] holds back what can wait for a checkpoint.
const FILES_MAX: usize = 4;

/// How the log keeps its files.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// Capacity of a file.
    pub file_bytes: u64,
    /// Copies of a file.
    pub copies: u8,
}

/// A file of the log that may still be needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogFile {
    /// The file.
    pub file: FileId,
    /// Its first record's sequence.
    pub first: LogSequence,
}

/// The log. Clones share it.
#[derive(Clone)]
pub struct TransactionLog(Rc<Shared>);

struct Shared {
    handle: Handle,
    store: Store,
    options: LogOptions,
    state: RefCell<State>,
    /// Something retired, rotated or broke.
    changed: Event,
    /// Of those who wait for a checkpoint.
    patience: Patience,
    rotated: Event,
    broke: Event,
}

struct State {
    writer: Option<FileWriter>,
    /// Prepared ahead, so that a rotation does not wait and needs no space.
    spare: Option<FileWriter>,
    /// Files that a checkpoint made unneeded, and that could not be deleted yet.
    unneeded: Vec<FileId>,
    /// Somebody is opening a file, or sealing a failed one.
    opening: bool,
    /// What waits is submitted when this turn of the loop ends.
    is_due: bool,
    /// Somebody waits for one of the records that wait, so that they go out as soon as they can.
    is_urgent: bool,
    /// Bytes of the records that wait, padded.
    waiting_bytes: u64,
    /// What waits is submitted when a pause is over.
    is_pausing: bool,
    /// No more records are taken.
    closed: bool,
    next: LogSequence,
    /// Records that have not retired, in log order.
    slots: VecDeque<Slot>,
    /// Appends in flight to the present file.
    in_flight: usize,
    /// Where the records of the present file that retired end.
    retired_end: u64,
    unsettled: Unsettled,
    files: VecDeque<LogFile>,
    rotations: u64,
    latency: Histogram,
    /// What an append takes, smoothed over some eight of them.
    append_ns: u64,
    broken: Option<Error>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Progress {
    Waiting,
    InFlight,
    Durable,
}

struct Slot {
    sequence: LogSequence,
    kind: Kind,
    body: Rc<Vec<u8>>,
    progress: Progress,
    submitted: Instant,
    apply: Box<dyn FnOnce(LogSequence)>,
    waiter: Sender<Result<LogSequence>>,
}

impl TransactionLog {
    /// A log that goes on with the record `next`. `files` are those of earlier incarnations that a replay still
    /// needs, by their first record; nothing is ever appended to them.
    /// `rotated` is notified each time a new file is begun: a checkpoint would make the older ones unneeded.
    pub fn new(
        handle: &Handle,
        store: &Store,
        options: LogOptions,
        next: LogSequence,
        files: Vec<LogFile>,
        rotated: &Event,
    ) -> Self {
        let state = State {
            writer: None,
            spare: None,
            unneeded: Vec::new(),
            opening: false,
            is_due: false,
            is_urgent: false,
            waiting_bytes: 0,
            is_pausing: false,
            closed: false,
            next,
            slots: VecDeque::new(),
            in_flight: 0,
            retired_end: 0,
            unsettled: Unsettled::default(),
            files: files.into(),
            rotations: 0,
            latency: Histogram::new(),
            append_ns: 0,
            broken: None,
        };
        TransactionLog(Rc::new(Shared {
            handle: handle.clone(),
            store: store.clone(),
            options,
            state: RefCell::new(state),
            changed: Event::new(),
            patience: Patience::default(),
            rotated: rotated.clone(),
            broke: Event::new(),
        }))
    }

    /// Appends a record: see [`TransactionSink::log`].
    pub fn append(
        &self,
        record: &Record,
        apply: Box<dyn FnOnce(LogSequence)>,
    ) -> (LogSequence, impl Future<Output = Result<LogSequence>> + use<>) {
        let appended = self.push(record, apply);
        self.0.state.borrow_mut().is_urgent = true;
        self.write_at_turn_end();
        appended
    }

    /// Appends a record that nobody waits for, because what it says is durable elsewhere: it goes out with the next
    /// one that somebody waits for, when there are enough, or after a moment. Its place in the log is taken now.
    pub fn append_lazily(&self, record: &Record) -> (LogSequence, impl Future<Output = Result<LogSequence>> + use<>) {
        let appended = self.push(record, Box::new(|_| ()));
        let (is_enough, is_pausing, wait) = {
            let mut state = self.0.state.borrow_mut();
            let is_enough = state.waiting_bytes >= APPEND_BYTES_MAX;
            let wait = Duration::from_nanos(LAZY_WAIT_APPENDS * state.append_ns).clamp(LAZY_WAIT_MIN, LAZY_WAIT_MAX);
            (is_enough, is_enough || std::mem::replace(&mut state.is_pausing, true), wait)
        };
        if is_enough {
            self.write_at_turn_end();
        } else if !is_pausing {
            let this = self.clone();
            let flush = async move {
                this.0.handle.sleep(wait).await;
                this.0.state.borrow_mut().is_pausing = false;
                this.write_waiting();
            };
            self.0.handle.spawn(Class::Io, "transaction records", flush).detach();
        }
        appended
    }

    fn push(
        &self,
        record: &Record,
        apply: Box<dyn FnOnce(LogSequence)>,
    ) -> (LogSequence, impl Future<Output = Result<LogSequence>> + use<>) {
        let (waiter, receiver) = oneshot();
        let sequence = {
            let mut state = self.0.state.borrow_mut();
            let sequence = state.next;
            match state.refusal() {
                Some(error) => waiter.send(Err(error)),
                None => {
                    state.next.0 += 1;
                    state.unsettled.on_called(sequence, record);
                    let body = encode_body(record);
                    state.waiting_bytes += padded_len(body.len());
                    state.slots.push_back(Slot {
                        sequence,
                        kind: kind_of(record),
                        body: Rc::new(body),
                        progress: Progress::Waiting,
                        submitted: self.0.handle.now(),
                        apply,
                        waiter,
                    });
                }
            }
            sequence
        };
        (sequence, outcome(receiver))
    }

    fn write_at_turn_end(&self) {
        if !std::mem::replace(&mut self.0.state.borrow_mut().is_due, true) {
            let this = self.clone();
            self.0.handle.at_turn_end(move || {
                this.0.state.borrow_mut().is_due = false;
                this.write_waiting();
            });
        }
    }

    /// The data of a large write is durable, and its effect was applied.
    pub fn on_large_done(&self, sequence: LogSequence) {
        self.0.state.borrow_mut().unsettled.on_large_done(sequence);
        self.0.changed.notify();
    }

    /// The data of a large write did not become durable: whether it counts must be said by a checkpoint
    /// ([`TransactionLog::undecided`]) before `durable_through` may pass it.
    pub fn on_large_failed(&self, sequence: LogSequence) {
        self.0.state.borrow_mut().unsettled.on_large_failed(sequence);
        self.0.changed.notify();
    }

    /// What a checkpoint that is composed now decides: large writes through the first value count, but those listed.
    pub fn undecided(&self) -> (LogSequence, Vec<LogSequence>) {
        let state = self.0.state.borrow();
        let end = state.unsettled.first_pending().unwrap_or(state.next).min(state.retired_below());
        (LogSequence(end.0 - 1), state.unsettled.failed_below(end))
    }

    /// Whether a large write failed that no checkpoint lists yet.
    pub fn has_failed_large_writes(&self) -> bool {
        self.0.state.borrow().unsettled.has_failed()
    }

    /// A checkpoint that lists these failed large writes is durable: they hold nothing back any more.
    pub fn on_rejected(&self, sequences: &[LogSequence]) {
        let mut state = self.0.state.borrow_mut();
        sequences.iter().for_each(|sequence| state.unsettled.on_rejected(*sequence));
    }

    /// Every record below this one is applied to memory (large writes: is durable).
    pub fn retired_below(&self) -> LogSequence {
        self.0.state.borrow().retired_below()
    }

    /// The sequence that the next record gets.
    pub fn next_sequence(&self) -> LogSequence {
        self.0.state.borrow().next
    }

    /// Files that may still be needed, oldest first.
    pub fn files(&self) -> Vec<LogFile> {
        self.0.state.borrow().files.iter().copied().collect()
    }

    /// How often a new file was begun.
    pub fn rotations(&self) -> u64 {
        self.0.state.borrow().rotations
    }

    /// Nanoseconds from the call to the retirement of each record.
    pub fn latency(&self) -> Histogram {
        self.0.state.borrow().latency.clone()
    }

    /// Forgets every record that has not retired; nobody is told. What their effects hold goes with them.
    pub(crate) fn forget_in_flight(&self) {
        let forgotten = { std::mem::take(&mut self.0.state.borrow_mut().slots) };
        drop(forgotten);
    }

    /// Why the log takes no more records, if it does not.
    pub fn broken(&self) -> Option<Error> {
        self.0.state.borrow().broken.clone()
    }

    /// Completes when the log takes no more records, with the reason.
    pub async fn when_broken(&self) -> Error {
        loop {
            let broke = self.0.broke.wait();
            if let Some(error) = self.broken() {
                return error;
            }
            broke.await;
        }
    }

    /// Completes when a record retired, a large write was applied or failed, a file came or went, or the log ended.
    pub fn changed(&self) -> impl Future<Output = ()> + use<> {
        self.0.changed.wait()
    }

    /// Whether it has more files than it should.
    pub fn is_long(&self) -> bool {
        self.0.state.borrow().files.len() > FILES_MAX
    }

    /// Whether no checkpoint makes the log shorter now: the effect of a record in the oldest file is not applied yet.
    pub fn is_held_back(&self) -> bool {
        let state = self.0.state.borrow();
        match (state.files.get(1), state.unsettled.first_effect()) {
            (Some(second), Some(oldest)) => oldest < second.first,
            _ => false,
        }
    }

    /// Waits until a checkpoint has made the log short enough. For records that can wait; what a checkpoint needs
    /// itself is not held back.
    ///
    /// # Errors
    /// `Full`, `Io`: checkpoints have failed for longer than writers wait.
    pub async fn room(&self) -> Result<()> {
        let is_behind = || self.0.state.borrow().slots.len() > UNRETIRED_MAX;
        while (self.is_long() || is_behind()) && self.broken().is_none() {
            let changed = self.0.changed.wait();
            self.0.patience.check()?;
            changed.await;
        }
        Ok(())
    }

    /// As [`TransactionLog::room`], but not while the log is held back: a large write is applied after the smaller
    /// ones before it, which may wait for a journal file, which waits for the dump that asks.
    ///
    /// # Errors
    /// Those of [`TransactionLog::room`].
    pub async fn room_for_dump(&self) -> Result<()> {
        while self.is_long() && !self.is_held_back() && self.broken().is_none() {
            let changed = self.0.changed.wait();
            self.0.patience.check()?;
            changed.await;
        }
        Ok(())
    }

    /// A checkpoint came through, or failed with this error.
    pub(crate) fn on_checkpoint(&self, now: Instant, failure: Option<&Error>) {
        match failure {
            None => self.0.patience.on_success(),
            Some(error) if self.0.patience.on_failure(now, error) => self.0.changed.notify(),
            Some(_) => {}
        }
    }

    /// Takes no more records, waits for those in flight, and seals the file behind the last one. So the next start
    /// knows where the log ends: what is missing before that is no torn tail.
    ///
    /// # Errors
    /// `Io`: every record is durable, but nothing says that there are no more.
    pub async fn close(&self) -> Result<()> {
        self.0.state.borrow_mut().closed = true;
        self.write_waiting();
        self.0.changed.notify();
        loop {
            let changed = self.0.changed.wait();
            if let Some(error) = self.broken() {
                return Err(error);
            }
            if self.0.state.borrow().is_quiet() {
                break;
            }
            changed.await;
        }
        let (last, end, spare) = {
            let mut state = self.0.state.borrow_mut();
            (state.writer.take(), state.retired_end, state.spare.take())
        };
        match last {
            Some(_) if is_on("log-not-sealed") => {}
            Some(last) if end > 0 => self.0.store.seal(last.id(), end).await?,
            Some(last) => self.0.store.delete(last.id()).await?,
            None => {}
        }
        match spare {
            Some(spare) => self.0.store.delete(spare.id()).await,
            None => Ok(()),
        }
    }

    /// Submits what waits for the disk, as far as the present file has room.
    fn write_waiting(&self) {
        let mut state = self.0.state.borrow_mut();
        let state = &mut *state;
        while !state.opening && state.broken.is_none() {
            let Some(at) = state.slots.iter().position(|slot| slot.progress == Progress::Waiting) else {
                (state.is_urgent, state.waiting_bytes) = (false, 0);
                return;
            };
            let len = padded_len(state.slots[at].body.len());
            let room = state.writer.as_ref().filter(|writer| !writer.has_failed()).map_or(0, FileWriter::room);
            if room < len {
                state.opening = true;
                let this = self.clone();
                let rotate = async move { this.rotate(len).await };
                self.0.handle.spawn(Class::Io, "transaction file", rotate).detach();
                return;
            }
            let (records, bytes) = state.gather(at, room.min(APPEND_BYTES_MAX.max(len)), self.0.store.incarnation());
            let Some(writer) = &mut state.writer else { return };
            let append = writer.append(bytes.freeze());
            state.in_flight += 1;
            let (this, begun) = (self.clone(), self.0.handle.now());
            let land = async move {
                let landed = append.await;
                this.on_landed(records, begun, landed.map(drop));
            };
            self.0.handle.spawn(Class::Io, "transaction append", land).detach();
        }
    }

    fn on_landed(&self, records: RangeInclusive<LogSequence>, begun: Instant, landed: Result<()>) {
        {
            let mut state = self.0.state.borrow_mut();
            let state = &mut *state;
            state.in_flight -= 1;
            state.append_ns -= state.append_ns / 8;
            state.append_ns += self.0.handle.now().nanos_since(begun) / 8;
            let at = state.slots.partition_point(|slot| slot.sequence < *records.start());
            let progress = if landed.is_ok() { Progress::Durable } else { Progress::Waiting };
            state.is_urgent |= landed.is_err();
            let slots = state.slots.range_mut(at..).take_while(|slot| records.contains(&slot.sequence));
            slots.for_each(|slot| slot.progress = progress);
            if let Err(error) = landed {
                let (first, last) = (records.start(), records.end());
                tracing::warn!(%first, %last, %error, "transaction records did not become durable");
                if let Some(writer) = &mut state.writer {
                    writer.fail();
                }
            }
        }
        self.retire();
        self.0.changed.notify();
        if self.0.state.borrow().is_urgent {
            self.write_waiting();
        }
    }

    /// Applies what is durable, in log order.
    fn retire(&self) {
        let now = self.0.handle.now();
        loop {
            let slot = {
                let mut state = self.0.state.borrow_mut();
                if state.slots.front().is_none_or(|slot| slot.progress != Progress::Durable) {
                    return;
                }
                let Some(slot) = state.slots.pop_front() else { return };
                state.retired_end += padded_len(slot.body.len());
                state.latency.record(now.nanos_since(slot.submitted));
                state.unsettled.on_retired(slot.sequence);
                slot
            };
            (slot.apply)(slot.sequence);
            slot.waiter.send(Ok(slot.sequence));
        }
    }
}

impl State {
    /// Why no record is taken, if none is.
    fn refusal(&self) -> Option<Error> {
        self.broken.clone().or_else(|| self.closed.then(|| Error::internal("the transaction log was closed")))
    }

    /// The records that wait from slot `at` on, encoded, as many as `bytes_max` holds: they are in flight now. The
    /// first one fits.
    fn gather(
        &mut self,
        at: usize,
        bytes_max: u64,
        incarnation: Incarnation,
    ) -> (RangeInclusive<LogSequence>, AlignedBuf) {
        let durable_through = self.durable_through();
        let first = self.files.back().map_or(self.next, |file| file.first);
        let file = self.writer.as_ref().map_or(FileId(0), FileWriter::id);
        let (mut len, mut count) = (0, 0);
        for slot in self.slots.range(at..).take_while(|slot| slot.progress == Progress::Waiting) {
            len += padded_len(slot.body.len());
            if len > bytes_max {
                break;
            }
            count += 1;
        }
        let mut bytes = AlignedBuf::with_capacity(len.min(bytes_max) as usize);
        for slot in self.slots.range_mut(at..at + count) {
            let index = (slot.sequence.0 - first.0) as u32;
            let header = Header { file, incarnation, sequence: slot.sequence, durable_through, index };
            encode_behind(&mut bytes, &header, slot.kind, &slot.body);
            slot.progress = Progress::InFlight;
        }
        (self.slots[at].sequence..=self.slots[at + count - 1].sequence, bytes)
    }

    /// Whether every record has retired, and nobody works on a file.
    fn is_quiet(&self) -> bool {
        self.slots.is_empty() && self.in_flight == 0 && !self.opening
    }

    fn retired_below(&self) -> LogSequence {
        self.slots.front().map_or(self.next, |slot| slot.sequence)
    }

    fn durable_through(&self) -> LogSequence {
        let incomplete = self.unsettled.first_incomplete().unwrap_or(self.next);
        LogSequence(incomplete.min(self.retired_below()).0 - 1)
    }
}

impl TransactionSink for TransactionLog {
    fn log(&self, record: Record, apply: Box<dyn FnOnce(LogSequence)>) -> LocalBoxFuture<'static, Result<LogSequence>> {
        let (_, outcome) = self.append(&record, apply);
        Box::pin(outcome)
    }

    fn frozen_at(&self, segment: SegmentId) -> FrozenAt {
        let state = self.0.state.borrow();
        state.unsettled.frozen_at(segment, state.next)
    }

    fn relocating(&self, segment: SegmentId) -> Relocating {
        self.0.state.borrow_mut().unsettled.relocating(segment)
    }
}

async fn outcome(receiver: Receiver<Result<LogSequence>>) -> Result<LogSequence> {
    match receiver.await {
        Some(outcome) => outcome,
        None => Err(Error::internal("the transaction log was closed")),
    }
}

#[cfg(test)]
mod tests;
