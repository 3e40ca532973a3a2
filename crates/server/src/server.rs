//! The service itself: each request passes session, ownership, range and admission, and reaches the engine.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::limits::{CONNECTIONS_MAX, REQUESTS_PER_CONNECTION};
use base::{
    AllocationExtent, Bytes, Error, ErrorKind, Generation, Instant, Passage, ReadPart, Result, Stage, VolumeId,
    WriteStamp,
};
use policies::admission::{AdmissionSettings, AdmissionStatus, Outcome, Request, VolumeStatus, Waits};
use policies::slow_requests::Direction;
use runtime::Handle;
use runtime::sync::{Budget, Permit};
use wire::{
    Answer, Attachment, BlockService, LocalBoxFuture, Reply, SessionId, Target, VolumeDescriptor, VolumeDirectory,
    VolumeOwner,
};

use crate::backend::Backend;
use crate::gate::{Buckets, Gate, Origin, Pass};
use crate::session::{Effect, InFlight, Sessions, check_owned};
use crate::statistics::{ServerStatistics, StageStatistics};
use crate::volumes::Volumes;

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Requests that the engine works on at once; others wait in order of arrival.
    pub requests_max: usize,
    /// Who has to wait when there is more to do than the store takes.
    pub admission: AdmissionSettings,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            requests_max: CONNECTIONS_MAX * REQUESTS_PER_CONNECTION / 16,
            admission: AdmissionSettings { limit_bytes_per_sec: u64::MAX, ..AdmissionSettings::default() },
        }
    }
}

/// A block server on one loop.
pub struct Server<B: Backend> {
    handle: Handle,
    backend: B,
    volumes: Volumes,
    sessions: Sessions,
    gate: Gate,
    slots: Budget,
    stopping: Cell<bool>,
    statistics: RefCell<ServerStatistics>,
}

/// A request on its way through the engine: its place in the session and its slot, given back together.
struct Admitted {
    in_flight: InFlight,
    _slot: Permit,
    arrived: Instant,
    since: Instant,
    /// What it waited for so far.
    passage: Passage,
    /// That it passed the gate, if it had to.
    passed: Option<Passed>,
}

/// A request that has passed the gate, and has no outcome yet.
struct Passed {
    gate: Gate,
    pass: Pass,
    has_outcome: bool,
}

impl Drop for Passed {
    fn drop(&mut self) {
        if !self.has_outcome {
            self.gate.on_gone(self.pass);
        }
    }
}

/// The stages of a server and its engine in which a loop that does not look keeps a request longer than need be.
const AT_OWNER: [Stage; 8] = [
    Stage::Slot,
    Stage::Gather,
    Stage::Append,
    Stage::JournalOrder,
    Stage::Apply,
    Stage::Index,
    Stage::Disk,
    Stage::Turn,
];

/// Whether a request moves bytes of the volume, and where to: only then it needs tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Data(Direction),
    Metadata,
}

/// Which of the statistics a request belongs to.
type Counted = fn(&mut ServerStatistics) -> &mut StageStatistics;

impl<B: Backend> Server<B> {
    /// A server of the segments in `backend`, which asks `directory` for volumes and their generations.
    pub fn new(handle: &Handle, backend: B, directory: Rc<dyn VolumeDirectory>, options: Options) -> Rc<Self> {
        let buckets = Buckets::new(options.admission, handle.now(), 1);
        Server::sharing(handle, backend, directory, options.requests_max, buckets)
    }

    /// A server of segments that are given to it: what it has to know of volumes comes with them.
    pub fn told(handle: &Handle, backend: B, options: Options) -> Rc<Self> {
        let buckets = Buckets::new(options.admission, handle.now(), 1);
        Server::over(handle, backend, Volumes::told(), options.requests_max, buckets)
    }

    /// The same, with tokens that servers on other loops have, too. At most `requests_max` requests are in the engine.
    pub fn sharing(
        handle: &Handle,
        backend: B,
        directory: Rc<dyn VolumeDirectory>,
        requests_max: usize,
        buckets: Buckets,
    ) -> Rc<Self> {
        Server::over(handle, backend, Volumes::asked(directory), requests_max, buckets)
    }

    fn over(handle: &Handle, backend: B, volumes: Volumes, requests_max: usize, buckets: Buckets) -> Rc<Self> {
        Rc::new(Server {
            handle: handle.clone(),
            backend,
            volumes,
            sessions: Sessions::default(),
            gate: Gate::new(handle, buckets),
            slots: Budget::new(requests_max.max(1) as u64),
            stopping: Cell::new(false),
            statistics: RefCell::default(),
        })
    }

    /// The engine below.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// What happened since it started.
    pub fn statistics(&self) -> ServerStatistics {
        let mut statistics = self.statistics.borrow().clone();
        statistics.sessions = self.sessions.count();
        statistics.in_flight = self.slots.total() - self.slots.available();
        statistics
    }

    /// How admission stands.
    pub fn admission(&self) -> (AdmissionSettings, AdmissionStatus) {
        (self.gate.settings(), self.gate.status())
    }

    /// See [`Gate::disturb`].
    pub(crate) fn disturb(&self, span: Duration) {
        self.gate.disturb(span);
    }

    /// Whether admission keeps what it promises at this moment, and how many requests wait. It looks at every segment.
    ///
    /// # Errors
    /// One sentence that says what is wrong.
    pub fn audit_admission(&self) -> std::result::Result<usize, String> {
        self.gate.audit()
    }

    /// Whether agents keep overlapping writes apart, and how many changes are in flight. It looks at all of them.
    ///
    /// # Errors
    /// One sentence that says what is wrong.
    pub fn audit_order(&self) -> std::result::Result<usize, String> {
        self.sessions.audit()
    }

    /// What admission knows of a volume, if it has seen requests for it.
    pub fn admission_of(&self, volume: VolumeId) -> Option<VolumeStatus> {
        self.gate.volume(volume)
    }

    /// What the requests of each volume that admission knows waited for.
    pub fn waits(&self) -> Vec<(VolumeId, Waits)> {
        self.gate.waits()
    }

    /// Refuses new requests and returns when those in flight are done. The engine is closed by its owner.
    pub async fn stop(&self) {
        self.stopping.set(true);
        self.sessions.close_all().await;
    }

    async fn open_session(&self, volume: VolumeId, generation: Generation) -> Result<Attachment> {
        self.check_running()?;
        let descriptor = self.volumes.current(volume, generation).await?;
        self.gate.set_volume(&descriptor);
        let session = self.sessions.open(&descriptor, generation).await?;
        // The volume may have been deleted or attached anew while older sessions were drained.
        let still_current = self.volumes.current(volume, generation).await.and_then(|_| self.check_running());
        if let Err(error) = still_current {
            self.sessions.close(session).await;
            return Err(error);
        }
        Ok(Attachment { session, epoch: engine::EPOCH })
    }

    /// Learns of a volume's newest attachment, with one of its segments or by itself, and gives the newest one that is known
    /// here: word of that may have come before. Sessions of older ones are closed at once, and are drained when this
    /// returns: some may be left from when the server had other segments of the volume.
    pub(crate) async fn on_volume(&self, descriptor: &VolumeDescriptor) -> Generation {
        match self.volumes.tell(descriptor) {
            Ok(is_newer) => {
                self.gate.set_volume(descriptor);
                if is_newer {
                    self.sessions.close_volume(descriptor.id).await;
                }
                descriptor.generation
            }
            Err(known) => known,
        }
    }

    /// A volume is being deleted: nobody has a session of it any more.
    pub(crate) async fn on_dropped(&self, volume: VolumeId) {
        self.sessions.close_volume(volume).await;
        self.gate.remove_volume(volume);
        self.volumes.forget(volume);
    }

    /// The request waited: is the segment still here under that epoch? Nothing is awaited between this and the engine.
    fn check_owned(&self, target: Target) -> Result<()> {
        check_owned(target, self.backend.epoch(target.segment))
    }

    /// A reply to what did not come as far as the engine.
    fn refuse<T>(&self, target: Target, error: Error) -> Answer<T> {
        let epoch = self.backend.epoch(target.segment).unwrap_or(target.epoch);
        Ok(Reply { epoch, result: Err(error), passage: Passage::default() })
    }

    fn check_running(&self) -> Result<()> {
        match self.stopping.get() {
            true => Err(Error::internal("the block server is stopping")),
            false => Ok(()),
        }
    }

    /// Everything before the engine. The session counts the request from its arrival on, so that a newer session
    /// waits for it even while it is in line.
    async fn admit(&self, target: Target, offset: u64, len: u64, work: Work, effect: Effect) -> Result<Admitted> {
        let mut arrived = self.handle.now();
        self.handle.spend(runtime::Work::Service);
        let in_flight = self.check_running().and_then(|()| {
            let owned = self.backend.epoch(target.segment);
            self.sessions.admit(target, owned, offset, len, effect)
        });
        let in_flight = in_flight.inspect_err(|_| self.statistics.borrow_mut().refused += 1)?;
        tracing::trace!(target: "levee::stage", segment = %target.segment, "session");
        let mut passage = Passage::default();
        let mut passed = None;
        if let Work::Data(direction) = work {
            let Target { session, segment, level, behind, .. } = target;
            let request = Request { segment, bytes: len, direction, level };
            let (pass, waited_for) = self.gate.pass(arrived, request, Origin { agent: session.0, behind }).await?;
            passed = Some(Passed { gate: self.gate.clone(), pass, has_outcome: false });
            if let Pass::Merge(turn) = pass {
                // That it had to wait for clients is no delay.
                arrived = turn.begun;
            }
            if let Some(reason) = waited_for {
                passage.add(Stage::Tokens, self.handle.now().nanos_since(arrived));
                passage.tokens = reason.name();
            }
        }
        let (slot, waited) = match self.slots.try_take(1) {
            Some(slot) => (slot, false),
            None => (self.slots.take(1).await, true),
        };
        let since = self.handle.now();
        if waited {
            passage.fill(Stage::Slot, since.nanos_since(arrived));
        }
        self.statistics.borrow_mut().queue_ns.record(since.nanos_since(arrived));
        self.check_owned(target)?;
        tracing::trace!(target: "levee::stage", segment = %target.segment, "slot");
        Ok(Admitted { in_flight, _slot: slot, arrived, since, passage, passed })
    }

    /// As [`Self::admit`], for what changes data.
    async fn admit_change(
        &self,
        target: Target,
        offset: u64,
        len: u64,
        stamp: WriteStamp,
        work: Work,
    ) -> Result<Admitted> {
        let admitted = self.admit(target, offset, len, work, Effect::Change).await?;
        let session = &admitted.in_flight.session;
        if session.read_only {
            return Err(Error::invalid(format!("{} is read-only", target.segment.volume)));
        }
        if stamp.generation != session.generation {
            let (ours, theirs) = (session.generation, stamp.generation);
            return Err(Error::fenced(format!("a write of {theirs} in a session of {ours}")));
        }
        Ok(admitted)
    }

    /// Counts an outcome, and makes it a reply. Of those that move data admission learns how long they took, and
    /// background work what is left for it.
    fn conclude<T>(
        &self,
        counted: Counted,
        target: Target,
        mut admitted: Admitted,
        bytes: u64,
        work: Work,
        result: Result<T>,
    ) -> Answer<T> {
        let result = result.map_err(of_engine);
        let now = self.handle.now();
        if let Work::Data(direction) = work
            && let Some(passed) = admitted.passed.as_mut().filter(|_| result.is_ok())
        {
            passed.has_outcome = true;
            // A write is on a disk now; a read may have been answered from memory.
            let went_below = direction == Direction::Write || admitted.passage.of(Stage::Disk) > 0;
            let outcome = Outcome { segment: target.segment, granted: admitted.since, bytes, direction, went_below };
            if let Some(left) = self.gate.on_done(now, passed.pass, outcome, || self.backend.background_work()) {
                self.backend.set_spare_bandwidth(left);
            }
        }
        let latency_ns = now.nanos_since(admitted.since);
        let mut statistics = self.statistics.borrow_mut();
        counted(&mut statistics).on_outcome(latency_ns, bytes, result.is_ok());
        if let Err(error) = &result {
            statistics.on_error(error.kind);
            if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Io | ErrorKind::Internal) {
                tracing::error!(%error, "a request failed in the engine");
            }
        }
        let passage = &mut admitted.passage;
        passage.fill(Stage::Turn, now.nanos_since(admitted.arrived));
        if let Some(busy) = self.handle.busy_since(admitted.arrived, now) {
            passage.carve_busy(AT_OWNER.into_iter(), busy.ns, busy.task);
        }
        Ok(Reply { epoch: target.epoch, result, passage: *passage })
    }
}

/// An engine that was fenced has nothing any more. That says nothing about the session of who asks.
fn of_engine(error: Error) -> Error {
    match error.kind {
        ErrorKind::Fenced => Error { kind: ErrorKind::Moved, ..error },
        _ => error,
    }
}

fn reply<T>(target: Target, result: Result<T>) -> Answer<T> {
    Ok(Reply { epoch: target.epoch, result, passage: Passage::default() })
}

impl<B: Backend> BlockService for Server<B> {
    fn attach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<Attachment>> {
        Box::pin(self.open_session(volume, generation))
    }

    fn detach(&self, session: SessionId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.sessions.close(session).await;
            Ok(())
        })
    }

    fn read(&self, target: Target, offset: u64, len: u64) -> LocalBoxFuture<'_, Answer<Vec<ReadPart>>> {
        Box::pin(async move {
            let mut admitted = match self.admit(target, offset, len, Work::Data(Direction::Read), Effect::None).await {
                Ok(admitted) => admitted,
                Err(error) => return self.refuse(target, error),
            };
            let result = self.backend.read(target.segment, offset, len, &mut admitted.passage).await;
            if let Ok(parts) = &result {
                let returned: u64 = parts.iter().map(ReadPart::len).sum();
                assert_eq!(returned, len, "a read returns what was asked for");
            }
            self.conclude(|s| &mut s.read, target, admitted, len, Work::Data(Direction::Read), result)
        })
    }

    fn write(
        &self,
        target: Target,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
    ) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(async move {
            let len = data.len() as u64;
            let mut admitted = match self.admit_change(target, offset, len, stamp, Work::Data(Direction::Write)).await {
                Ok(admitted) => admitted,
                Err(error) => return self.refuse(target, error),
            };
            let result = match checksums.len() == base::io::fragments(offset, len).count() {
                true => {
                    let passage = &mut admitted.passage;
                    self.backend.write(target.segment, offset, data, checksums, stamp, passage).await
                }
                false => Err(Error::invalid("a write has one checksum for each block that it touches")),
            };
            self.conclude(|s| &mut s.write, target, admitted, len, Work::Data(Direction::Write), result)
        })
    }

    fn discard(&self, target: Target, offset: u64, len: u64, stamp: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(async move {
            let admitted = match self.admit_change(target, offset, len, stamp, Work::Metadata).await {
                Ok(admitted) => admitted,
                Err(error) => return self.refuse(target, error),
            };
            let result = self.backend.discard(target.segment, offset, len, stamp).await;
            self.conclude(|s| &mut s.discard, target, admitted, len, Work::Metadata, result)
        })
    }

    fn flush(&self, target: Target) -> LocalBoxFuture<'_, Answer<()>> {
        // An answered write is durable; what a flush can still tell is that the session is the newest.
        Box::pin(async move {
            match self.admit(target, 0, base::SECTOR, Work::Metadata, Effect::None).await {
                Ok(_admitted) => reply(target, Ok(())),
                Err(error) => self.refuse(target, error),
            }
        })
    }

    fn allocation(
        &self,
        target: Target,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>> {
        Box::pin(async move {
            match self.admit(target, offset, len, Work::Metadata, Effect::None).await {
                Ok(_admitted) => {
                    let extents = self.backend.allocation(target.segment, offset, len, extents_max.max(1)).await;
                    reply(target, extents.map_err(of_engine))
                }
                Err(error) => self.refuse(target, error),
            }
        })
    }
}

impl<B: Backend> VolumeOwner for Server<B> {
    fn begin_scrub(&self) -> LocalBoxFuture<'_, Result<()>> {
        self.backend.begin_scrub();
        Box::pin(std::future::ready(Ok(())))
    }

    fn drop_volume(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.on_dropped(volume).await;
            self.backend.drop_volume(volume).await
        })
    }

    fn set_levels(&self, volume: &VolumeDescriptor) {
        self.gate.set_volume(volume);
    }

    fn set_provisioned(&self, bytes: u64) {
        self.backend.set_provisioned(bytes);
    }
}

#[cfg(test)]
mod tests;
