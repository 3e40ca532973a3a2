//! A block server in the simulated world, and the connections of its clients.
//!
//! What runs is [`server::Server`] on a loop with the discipline under test. Requests come in small frames over the
//! world's network and lie in the receive buffer until the loop looks; each becomes an I/O task that is charged for its
//! processor time; background tasks run on the same loop.
//!
//! Time is kept for each request: from its arrival at the machine (sent, plus the network's delay) to its reply is what
//! the *cluster* takes; without what the store below took of it, what the *proxy layer* takes.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use base::{AlignedBuf, BLOCK, Bytes, Epoch, Generation, Instant, Result, SegmentId, VolumeId, WriteStamp};
use runtime::sync::Event;
use runtime::{Class, Handle, Stream};
use server::Server;
use slab::Slab;
use wire::{BlockService, LocalBoxFuture, SessionId, Target, VolumeDescriptor, VolumeDirectory};

use super::Parameters;
use super::ask::Ask;
use super::measured::Measured;
use super::store::{Shared, Store};

/// Bytes of a request: segment, kind, blocks, when it was sent.
pub const FRAME: usize = 16;
/// Bytes of a reply: the segment.
pub const REPLY: usize = 4;
/// How often the estimator is asked: no more often than it looks.
const LOOK: Duration = Duration::from_millis(10);
/// Segments of a volume.
const PER_VOLUME: u32 = 4;
/// Addresses of requests in flight are so far apart.
const SPREAD: u64 = 64 << 10;

/// A request as a frame; the time is filled in when it is sent.
pub fn frame(ask: &Ask) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[..4].copy_from_slice(&ask.segment.to_le_bytes());
    frame[4] = ask.is_write.into();
    frame[6..8].copy_from_slice(&((u64::from(ask.bytes) / BLOCK) as u16).to_le_bytes());
    frame
}

/// Stamps every frame of a buffer that is about to be sent.
pub fn stamp(frames: &mut [u8], now: Instant) {
    frames.chunks_exact_mut(FRAME).for_each(|frame| frame[8..].copy_from_slice(&now.0.to_le_bytes()));
}

/// Sends what is put into it, as much at a time as there is.
pub struct Outbox {
    stream: Stream,
    bytes: RefCell<Vec<u8>>,
    filled: Event,
}

impl Outbox {
    /// An outbox of a stream, and the task that empties it. `seal` sees each buffer just before it goes.
    pub fn new(handle: &Handle, stream: &Stream, seal: fn(&mut [u8], Instant)) -> Rc<Outbox> {
        let outbox = Rc::new(Outbox { stream: stream.clone(), bytes: RefCell::default(), filled: Event::new() });
        let (this, clock) = (outbox.clone(), handle.clone());
        let empty = async move {
            loop {
                let filled = this.filled.wait();
                let mut bytes = std::mem::take(&mut *this.bytes.borrow_mut());
                if bytes.is_empty() {
                    filled.await;
                    continue;
                }
                seal(&mut bytes, clock.now());
                if this.stream.send(vec![Bytes::from(bytes)]).await.is_err() {
                    return;
                }
            }
        };
        handle.spawn(Class::Io, "outbox", empty).detach();
        outbox
    }

    /// Puts some bytes in.
    pub fn put(&self, bytes: &[u8]) {
        let was_empty = {
            let mut waiting = self.bytes.borrow_mut();
            waiting.extend_from_slice(bytes);
            waiting.len() == bytes.len()
        };
        if was_empty {
            self.filled.notify();
        }
    }
}

/// Receives a stream and hands out records of `N` bytes, until it ends.
pub async fn receive_records<const N: usize>(stream: Stream, mut each: impl FnMut(&[u8; N])) {
    let (mut buffer, mut held) = (AlignedBuf::zeroed(64 << 10), 0);
    loop {
        let (received, returned) = stream.receive(buffer, held).await;
        buffer = returned;
        let Ok(count @ 1..) = received else { return };
        let end = held + count;
        let whole = end / N * N;
        for record in buffer[..whole].chunks_exact(N) {
            if let Ok(record) = record.try_into() {
                each(record);
            }
        }
        buffer.copy_within(whole..end, 0);
        held = end - whole;
    }
}

/// A block server under test.
pub struct Proxy {
    handle: Handle,
    parameters: Parameters,
    server: Rc<Server<Shared>>,
    store: Rc<Store>,
    /// By volume.
    sessions: RefCell<Vec<SessionId>>,
    in_flight: RefCell<Slab<()>>,
    data: Bytes,
    delay: Duration,
    measured: RefCell<Measured>,
    warm_up: WarmUp,
}

/// What is not measured: so many requests, and what comes before this nanosecond.
#[derive(Clone, Copy, Debug)]
pub struct WarmUp {
    /// See [`WarmUp`].
    pub requests: u64,
    /// See [`WarmUp`].
    pub until: Instant,
}

impl Proxy {
    /// A server on the loop of `handle`, over a modelled store, for requests of `bytes_max` at most; `delay` is the
    /// network's. It measures what comes after the warm-up.
    pub async fn start(
        handle: &Handle,
        parameters: &Parameters,
        options: server::Options,
        store: Rc<Store>,
        bytes_max: u64,
        delay: Duration,
        warm_up: WarmUp,
    ) -> Result<Rc<Proxy>> {
        let server = Server::new(handle, Shared(store.clone()), Rc::new(Volumes(parameters.clone())), options);
        let mut sessions = Vec::new();
        for volume in 0..parameters.segments.div_ceil(PER_VOLUME) {
            sessions.push(server.attach(VolumeId(u64::from(volume) + 1), Generation(1)).await?.session);
        }
        Ok(Rc::new(Proxy {
            handle: handle.clone(),
            parameters: parameters.clone(),
            server,
            store,
            sessions: RefCell::new(sessions),
            in_flight: RefCell::default(),
            data: Bytes::from(vec![0; bytes_max as usize]),
            delay,
            measured: RefCell::new(Measured::default()),
            warm_up,
        }))
    }

    /// Serves one connection until it ends.
    pub async fn serve(self: Rc<Self>, stream: Stream) {
        let outbox = Outbox::new(&self.handle, &stream, |_, _| ());
        let this = self.clone();
        receive_records::<FRAME>(stream, move |frame| {
            this.handle.charge(Duration::from_nanos(this.parameters.parse_ns));
            let segment = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]);
            let sent = u64::from_le_bytes([
                frame[8], frame[9], frame[10], frame[11], frame[12], frame[13], frame[14], frame[15],
            ]);
            let arrived = Instant(sent) + this.delay;
            let bytes = u32::from(u16::from_le_bytes([frame[6], frame[7]])) * BLOCK as u32;
            let ask = Ask { segment, is_write: frame[4] != 0, bytes };
            let request = this.clone().answer(ask, arrived, outbox.clone());
            this.handle.spawn(Class::Io, "request", request).detach();
        })
        .await;
    }

    async fn answer(self: Rc<Self>, ask: Ask, arrived: Instant, outbox: Rc<Outbox>) {
        let (Ask { segment, is_write, .. }, bytes) = (ask, u64::from(ask.bytes));
        let received = self.handle.now();
        let cpu_ns = if is_write { self.parameters.write_cpu_ns } else { self.parameters.read_cpu_ns };
        self.handle.charge(Duration::from_nanos(cpu_ns));
        let slot = self.in_flight.borrow_mut().insert(());
        let offset = slot as u64 * SPREAD;
        let volume = segment / PER_VOLUME;
        let target = Target {
            level: base::levels::Level::Open,
            behind: 0,
            session: self.sessions.borrow()[volume as usize],
            segment: SegmentId { volume: VolumeId(u64::from(volume) + 1), index: segment % PER_VOLUME },
            epoch: Epoch(1),
        };
        let is_answered = match is_write {
            true => {
                let checksums = vec![0; (bytes / BLOCK).max(1) as usize];
                let stamp = WriteStamp { generation: Generation(1), ..WriteStamp::default() };
                let reply =
                    self.server.write(target, offset, self.data.slice(..bytes as usize), checksums, stamp).await;
                reply.is_ok_and(|reply| reply.result.is_ok())
            }
            false => self.server.read(target, offset, bytes).await.is_ok_and(|reply| reply.result.is_ok()),
        };
        assert!(is_answered, "the server of an experiment answers every request");
        self.in_flight.borrow_mut().remove(slot);
        self.handle.charge(Duration::from_nanos(self.parameters.reply_ns));
        outbox.put(&segment.to_le_bytes());
        let (now, below_ns) = (self.handle.now(), self.store.took_ns(offset));
        let is_hot = segment < self.parameters.hot_segments();
        let mut measured = self.measured.borrow_mut();
        measured.requests += 1;
        if measured.requests > self.warm_up.requests && now > self.warm_up.until {
            if measured.counted == 0 {
                measured.begun = now;
            }
            measured.counted += 1;
            let total_ns = now.nanos_since(arrived);
            let class = &mut measured.classes[usize::from(is_hot)][usize::from(is_write)];
            class.cluster_ns.record(total_ns);
            class.proxy_ns.record(total_ns.saturating_sub(below_ns));
            class.receive_ns.record(received.nanos_since(arrived));
            measured.store_ns.record(below_ns);
            measured.bytes += bytes;
        }
    }

    /// Runs the background tasks of a server; `is_split` leaves out those that another thread would run.
    pub fn run_background(self: &Rc<Self>, is_split: bool) {
        for task in self.parameters.tasks.clone() {
            if is_split && task.4 != 0 {
                continue;
            }
            let this = self.clone();
            let run = async move {
                let mut due = this.handle.now();
                loop {
                    due = due.max(this.handle.now()) + Duration::from_micros(task.1);
                    this.handle.sleep_until(due).await;
                    let waited_ns = this.handle.now().nanos_since(due);
                    this.measured.borrow_mut().background_wait_ns.record(waited_ns);
                    for _ in 0..task.2 {
                        this.handle.charge(Duration::from_nanos(task.3 * this.parameters.step_percent / 100));
                        this.handle.yield_now().await;
                    }
                }
            };
            self.handle.spawn(Class::Background, "background task of a model", run).detach();
        }
    }

    /// Asks the estimator again and again what it thinks of the store.
    pub fn watch_estimates(self: &Rc<Self>) {
        let this = self.clone();
        let watch = async move {
            loop {
                this.handle.sleep(LOOK).await;
                let status = this.server.admission().1;
                let mut measured = this.measured.borrow_mut();
                let (Some(available), Some(p99999)) = (status.available_bytes_per_sec, status.p99999_ns) else {
                    continue;
                };
                if measured.counted > 0 {
                    measured.estimates.count += 1;
                    measured.estimates.available_bytes_per_sec += u128::from(available);
                    measured.estimates.p99999_ns += u128::from(p99999);
                }
            }
        };
        self.handle.spawn(Class::Io, "watch", watch).detach();
    }

    /// Requests that were measured.
    pub fn counted(&self) -> u64 {
        self.measured.borrow().counted
    }

    /// What was measured so far.
    pub fn measured(&self) -> Measured {
        let mut measured = self.measured.borrow().clone();
        measured.elapsed = self.handle.now().since(measured.begun);
        measured
    }
}

/// Volumes that are always there; those with hot segments belong to few clients.
struct Volumes(Parameters);

impl VolumeDirectory for Volumes {
    fn resolve<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<VolumeDescriptor>> {
        Box::pin(async move { Err(base::Error::not_found(format!("a server asks by id, not for {name}"))) })
    }

    fn describe(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(async move {
            let size = u64::from(PER_VOLUME) * base::limits::SEGMENT_SIZE;
            let (number, hot) = (volume.0 as u32 - 1, self.0.hot_segments().div_ceil(PER_VOLUME));
            let owner = match number < hot {
                true => format!("major {}", number % self.0.hot_clients.max(1)),
                false => format!("minor {number}"),
            };
            let descriptor = VolumeDescriptor::new(volume, format!("volume {number}"), size);
            Ok(VolumeDescriptor { generation: Generation(1), owner, ..descriptor })
        })
    }

    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn attach(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        self.describe(volume)
    }

    fn detach(&self, _volume: VolumeId, _generation: Generation) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}
