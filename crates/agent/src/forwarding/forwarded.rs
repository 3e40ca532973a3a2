//! One attached volume: what is known of its logs, and who works with that.
//!
//! `writing.rs` sends writes to logs or owners, `reading.rs` finds them, `merging.rs` carries home what is in a log.

mod merging;
mod reading;
mod writing;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::seeded::is_on;
use base::{ErrorKind, Generation, Instant, Result, VolumeId, WriteStamp};
use policies::burst::Detector;
use policies::forwarding::{Content, Index, LogNumber, Place, Seen, Serial, Tuning};
use runtime::sync::{Budget, Event};
use runtime::{Class, Handle, Task};
use wire::{BlockService, Layout, LinkLost, SessionId};

pub(super) use self::writing::Written;

use super::book::Watermark;
use super::entry::Header;
use super::logs::{Found, Logs, Trouble};
use super::{Counted, Mode, Options, Shared, State};

/// See the module.
pub(super) struct Forwarded {
    shared: Rc<Shared>,
    session: SessionId,
    pub(super) volume: VolumeId,
    pub(super) generation: Generation,
    layout: Layout,
    mode: Cell<Mode>,
    detector: RefCell<Detector>,
    tuning: RefCell<Tuning>,
    segments: RefCell<BTreeMap<u32, Segment>>,
    logs: RefCell<LogsState>,
    /// Told when a watermark went up, or room came back.
    advanced: Event,
    /// Told when there is something to merge.
    work: Event,
    /// Writes that wait for others to be merged, or for room that this makes.
    waiters: Cell<u64>,
    /// It is given back.
    is_closing: Cell<bool>,
    /// Told when there is one more that waits, or it is given back: merging does not make room for others any more.
    wanted: Event,
    /// Why nothing is sent any more: an outcome is unknown.
    lost: RefCell<Option<String>>,
    merging: RefCell<Option<Task<()>>>,
    /// One batch at a time.
    merges: Budget,
    pub(super) counted: RefCell<Counted>,
    /// What was written and logged since TH was looked at.
    interval: Cell<(u64, u64)>,
}

/// What is known of one segment.
struct Segment {
    index: Index,
    /// All is merged through this entry, and that is about to be written down.
    merged: Serial,
    /// Of each entry after the watermark: who wrote it, and when it came.
    notes: BTreeMap<Serial, (WriteStamp, Instant)>,
    /// Writes that wait until something of it is merged.
    waited_for: Rc<Cell<u64>>,
}

/// Whether there are logs.
enum LogsState {
    /// None: nothing was ever forwarded.
    None,
    /// They are being made, or that failed a moment ago.
    Making,
    Open(Rc<Logs>),
}

impl Forwarded {
    pub(super) fn new(
        shared: Rc<Shared>,
        session: SessionId,
        volume: VolumeId,
        generation: Generation,
        layout: Layout,
        mode: Mode,
    ) -> Rc<Forwarded> {
        let now = shared.handle.now();
        let Options { burst, limits, .. } = shared.options;
        let tuning = Tuning::new(limits);
        let forwarded = Rc::new(Forwarded {
            session,
            volume,
            generation,
            layout,
            mode: Cell::new(mode),
            detector: RefCell::new(Detector::new(burst, now)),
            tuning: RefCell::new(tuning),
            segments: RefCell::default(),
            logs: RefCell::new(LogsState::None),
            advanced: Event::new(),
            work: Event::new(),
            waiters: Cell::new(0),
            is_closing: Cell::new(false),
            wanted: Event::new(),
            lost: RefCell::default(),
            merging: RefCell::default(),
            merges: Budget::new(1),
            counted: RefCell::default(),
            interval: Cell::default(),
            shared,
        });
        forwarded.begin_detection();
        forwarded
    }

    fn handle(&self) -> &Handle {
        &self.shared.handle
    }

    fn service(&self) -> &Rc<dyn BlockService> {
        &self.shared.service
    }

    /// Whether requests go their way without a look here.
    pub(super) fn is_plain(&self) -> bool {
        self.mode.get() == Mode::Off && matches!(*self.logs.borrow(), LogsState::None)
    }

    pub(super) fn set_mode(&self, mode: Mode) {
        if self.mode.replace(mode) != mode {
            self.begin_detection();
        }
    }

    /// What tunes itself begins anew, and otherwise it is as it was set.
    fn begin_detection(&self) {
        let Options { burst, limits, .. } = self.shared.options;
        let tuning = Tuning::new(limits);
        let (threshold, bytes) = match self.mode.get() {
            Mode::Auto => (tuning.threshold(), tuning.threshold_bytes()),
            _ => (burst.threshold, burst.threshold_bytes),
        };
        *self.tuning.borrow_mut() = tuning;
        self.detector.borrow_mut().set_threshold(threshold, bytes);
    }

    /// Takes the logs that there are, with what is in them; makes them first, if that is wanted. Says whether there are any.
    ///
    /// # Errors
    /// Those of the directory and of servers. That a log is not found where there are some is one of them: what was in it may be
    /// newer than what owners have.
    pub(super) async fn open_logs(self: &Rc<Self>, make: bool) -> Result<bool> {
        let Shared { directory, handle, service, options, .. } = &*self.shared;
        let logs = match directory.take_logs(self.volume, self.generation, make).await {
            Err(error) if error.kind == ErrorKind::NotFound => {
                tracing::debug!(volume = %self.volume, %error, "no logs");
                return Ok(false);
            }
            taken => taken?,
        };
        let (id, generation) = (logs.id, logs.generation);
        let opened = async {
            let session = service.attach(id, generation).await?.session;
            Logs::open(handle, service.clone(), logs, session, options.log_bytes).await
        };
        let (logs, found) = opened.await?;
        self.take_over(&logs, found);
        *self.logs.borrow_mut() = LogsState::Open(logs);
        self.start_merging();
        Ok(true)
    }

    /// What former attachments left.
    fn take_over(&self, logs: &Logs, found: Found) {
        let now = self.handle().now();
        let mut by_segment: BTreeMap<u32, (Watermark, Vec<(LogNumber, Header)>)> = BTreeMap::new();
        for watermark in found.watermarks {
            let segment = watermark.segment;
            by_segment.entry(segment).or_default().0 = watermark;
        }
        for (log, header) in found.headers {
            by_segment.entry(header.segment).or_default().1.push((log, header));
        }
        let mut segments = self.segments.borrow_mut();
        for (segment, (Watermark { merged, void, .. }, headers)) in by_segment {
            let entries = headers.iter().map(|(log, header)| (header.range(), place(*log, header))).collect();
            let index = match is_on("logs-not-traversed") {
                true => Index::new(self.shared.options.index, merged),
                false => Index::found(self.shared.options.index, merged, &void, entries),
            };
            let mut notes = BTreeMap::new();
            for (log, header) in headers {
                if index.has(header.serial) {
                    notes.insert(header.serial, (header.stamp, now));
                } else {
                    logs.release(log, header.at);
                }
            }
            tracing::trace!(volume = %self.volume, segment, ?merged, ?void, entries = ?notes.keys(), "found in logs");
            segments.insert(segment, Segment { index, merged, notes, waited_for: Rc::default() });
        }
    }

    fn start_merging(self: &Rc<Self>) {
        let merging = merging::run(Rc::downgrade(self), self.handle().clone());
        let task = self.handle().spawn(Class::Background, "merge a volume's logs", merging);
        *self.merging.borrow_mut() = Some(task);
    }

    /// The logs, if there are any.
    fn opened(&self) -> Option<Rc<Logs>> {
        match &*self.logs.borrow() {
            LogsState::Open(logs) => Some(logs.clone()),
            _ => None,
        }
    }

    /// Has logs made, which a burst needs. Until then it goes to the owners.
    fn want_logs(self: &Rc<Self>) {
        if !matches!(*self.logs.borrow(), LogsState::None) {
            return;
        }
        *self.logs.borrow_mut() = LogsState::Making;
        let forwarded = self.clone();
        let making = async move {
            match forwarded.open_logs(true).await {
                Ok(true) => return,
                // There is nowhere to spread them to.
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(volume = %forwarded.volume, %error, "bursts are not spread: there are no logs");
                }
            }
            forwarded.handle().sleep(super::AGAIN).await;
            *forwarded.logs.borrow_mut() = LogsState::None;
        };
        self.handle().spawn(Class::Background, "make a volume's logs", making).detach();
    }

    /// Nothing more is sent: nobody knows what becomes of something that was.
    fn lose(&self, reason: String) -> LinkLost {
        let mut lost = self.lost.borrow_mut();
        let message = lost.get_or_insert(reason).clone();
        self.advanced.notify();
        LinkLost { message }
    }

    /// # Errors
    /// It is lost.
    fn check(&self) -> Result<(), LinkLost> {
        match &*self.lost.borrow() {
            Some(message) => Err(LinkLost { message: message.clone() }),
            None => Ok(()),
        }
    }

    fn unknown(&self, trouble: Trouble) -> LinkLost {
        self.lose(trouble.into_error().message)
    }

    fn with<T>(&self, segment: u32, what: impl FnOnce(&mut Segment) -> T) -> T {
        what(self.segments.borrow_mut().get_mut(&segment).expect("it has entries"))
    }

    /// Writes down what is merged and what is void.
    ///
    /// # Errors
    /// Nobody knows what is written down.
    async fn write_book(&self, logs: &Rc<Logs>) -> Result<(), Trouble> {
        logs.write_book(|| self.to_write_down(false)).await
    }

    /// What is to be in the book.
    fn to_write_down(&self, is_last: bool) -> (Vec<Watermark>, bool) {
        let segments = self.segments.borrow();
        let is_clean = is_last && segments.values().all(|known| known.index.is_empty());
        let watermark = |(segment, known): (&u32, &Segment)| {
            let void = known.index.void().filter(|serial| *serial > known.merged).collect();
            Watermark { segment: *segment, merged: known.merged, void }
        };
        (segments.iter().map(watermark).collect(), is_clean)
    }

    /// Looks at how much was a burst, and how that went: TH from here on.
    fn tune(&self) {
        if self.mode.get() != Mode::Auto {
            return;
        }
        let (logged, written) = self.interval.take();
        let seen = Seen { written, logged, log_bytes: self.waiting().0, lag: self.lag() };
        let mut tuning = self.tuning.borrow_mut();
        let threshold = tuning.on_interval(seen);
        self.detector.borrow_mut().set_threshold(threshold, tuning.threshold_bytes());
    }

    /// For how long the oldest entry waits.
    fn lag(&self) -> Duration {
        let segments = self.segments.borrow();
        let oldest = segments.values().filter_map(|known| known.notes.first_key_value()).map(|(_, (_, at))| *at).min();
        oldest.map_or(Duration::ZERO, |at| self.handle().now().since(at))
    }

    pub(super) fn state(&self) -> State {
        let (waiting_bytes, entries) = self.waiting();
        State {
            mode: self.mode.get(),
            has_logs: self.opened().is_some(),
            spread_percent: (self.mode.get() == Mode::Auto).then(|| self.shared.gain.borrow().percent()),
            counted: *self.counted.borrow(),
            waiting_bytes,
            waiting_entries: entries as u64,
            lag: self.lag(),
            threshold: self.detector.borrow().threshold(),
        }
    }

    /// Bytes that wait in logs, and entries.
    pub(super) fn waiting(&self) -> (u64, usize) {
        let segments = self.segments.borrow();
        segments
            .values()
            .fold((0, 0), |(bytes, entries), known| (bytes + known.index.bytes(), entries + known.index.len()))
    }

    pub(super) fn check_invariants(&self) {
        for known in self.segments.borrow().values() {
            known.index.check_invariants();
            let watermark = known.index.watermark();
            assert!(known.merged >= watermark, "what is forgotten is written down");
            assert!(known.notes.keys().all(|serial| *serial > watermark), "and nothing of it is kept");
        }
    }

    /// Gives the logs back, empty if that takes no longer than a moment. Nothing of a client is in flight.
    pub(super) async fn close(self: &Rc<Self>) {
        self.is_closing.set(true);
        self.wanted.notify();
        drop(self.merging.borrow_mut().take());
        let Some(logs) = self.opened() else { return };
        if self.check().is_err() {
            return;
        }
        let emptying = async {
            merging::empty(self, &logs).await?;
            match logs.is_open() {
                true => logs.write_book(|| self.to_write_down(true)).await,
                false => Ok(()),
            }
        };
        match runtime::sync::first(emptying, self.handle().sleep(super::CLOSING)).await {
            Ok(Ok(())) => {}
            Ok(Err(trouble)) => {
                let error = trouble.into_error();
                tracing::warn!(volume = %self.volume, %error, "a volume is given back with something in its logs");
            }
            Err(()) => tracing::debug!(volume = %self.volume, "a volume is given back with something in its logs"),
        }
        let _ = logs.close().await;
        let _ = self.shared.directory.detach(logs.volume.id, logs.volume.generation).await;
    }
}

impl Segment {
    fn new(options: Options) -> Segment {
        let index = Index::new(options.index, Serial(0));
        Segment { index, merged: Serial(0), notes: BTreeMap::new(), waited_for: Rc::default() }
    }
}

fn place(log: LogNumber, header: &Header) -> Place {
    let content = match header.data_checksum {
        Some(_) => Content::Data(header.at.0 + super::entry::HEADER),
        None => Content::Zeros(header.at.0),
    };
    Place { serial: header.serial, log, content, reschedules: header.reschedules }
}
