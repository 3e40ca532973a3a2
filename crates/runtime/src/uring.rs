//! The real world: a loop on io_uring.
//!
//! [`run`] makes a loop on the calling thread and drives it until its main future ends. One turn of the loop enters
//! the kernel once as a rule: what the tasks queued is submitted by the same call that waits for completions. Sends are
//! an exception where nothing else is to be submitted and the loop is about to sleep: they are made by calls of their own,
//! because one that the ring makes completes at once, and the loop would enter the kernel a second time to sleep.
//!
//! - A *request* is an operation that the kernel works on ([`requests`]), with all the memory that it needs; it lives
//!   until its completion, whoever still waits for it.
//! - A *resource* is an open descriptor ([`resources`]), closed when its last request has ended.
//! - Quick calls and calls of start-up (listening, listing, locking) are made on the spot; their outcome waits for the
//!   next reap like all others.
//!
//! Flow of an operation: `submit` makes a request and queues its entry; `flush` or `reap` enters the kernel; `reap`
//! takes completions and turns them into outcomes, or continues the request (the rest of a short read, an open
//! without O_DIRECT).
//!
//! Further loops of the process ([`Handle::start_loop`]) run on threads of their own.
//!
//! Another thread wakes the loop through an event descriptor. A read of it is in flight only while the loop sleeps,
//! and the executor calls [`Unpark`] only then, so a busy loop pays nothing.

mod clock;
mod guest;
mod names;
pub mod process;
mod requests;
mod resources;
mod ring;
mod sockets;

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::{Instant, Set};
use io_uring::opcode;
use io_uring::types::{CancelBuilder, Fd};
use policies::loop_schedule::LoopSettings;
use slab::Slab;

use self::clock::Randomness;
use self::guest::EventCounter;
use self::requests::{Next, Request, Work, cancel_entry};
use self::resources::{Closable, Kind, ResourceKey, Resources};
use self::ring::{Ring, Stay};
use self::sockets::RawAddress;
use crate::driver::{Address, Driver, LoopMain, Op, OpId, Outcome, Payload, ResourceId, Started, Token, Unpark, Wait};
use crate::executor::Executor;
use crate::guest::Port;
use crate::{Class, Handle, offload};

/// User data of the read of the event descriptor, and of entries whose completion means nothing.
const WAKE_UP: u64 = u64::MAX;
const IGNORED: u64 = u64::MAX - 1;

/// Pauses of the processor between two looks for completions: about a microsecond.
const LOOKS_PER_YIELD: u32 = 16;

/// How long a loop that ends waits for its last requests without any of them completing, in rounds of a second.
const LAST_ROUNDS: u32 = 10;

/// Settings of a loop in the real world.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// When it receives, runs background work and sleeps.
    pub schedule: LoopSettings,
}

/// Runs a loop on this thread until the future that `main` makes has ended; every task of the loop is dropped then,
/// and what the kernel still works on is waited for.
///
/// # Errors
/// io_uring is not to be had; the error says what to do about it.
pub fn run<T: 'static, F: Future<Output = T> + 'static>(
    options: Options,
    main: impl FnOnce(Handle) -> F,
) -> io::Result<T> {
    run_on(Ring::new()?, options, main)
}

fn run_on<T: 'static, F: Future<Output = T> + 'static>(
    ring: Ring,
    options: Options,
    main: impl FnOnce(Handle) -> F,
) -> io::Result<T> {
    let driver = Rc::new(UringDriver::new(ring)?);
    let handle = Executor::start(driver.clone(), options.schedule);
    let running = Running { handle: &handle, driver: &driver };
    let output = Rc::new(RefCell::new(None));
    let main = {
        let (output, future) = (output.clone(), main(handle.clone()));
        async move {
            let value = future.await;
            *output.borrow_mut() = Some(value);
        }
    };
    handle.spawn(Class::Io, "main", main).detach();
    while output.borrow().is_none() {
        handle.0.turn(true);
    }
    drop(running);
    Ok(output.take().expect("the loop ran until the output was there"))
}

/// Ends the loop when `run` ends, by a panic too.
struct Running<'a> {
    handle: &'a Handle,
    driver: &'a UringDriver,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.handle.0.kill();
        self.driver.state.borrow_mut().shut_down();
    }
}

/// A ring, and everything that is open or in flight on it.
struct UringDriver {
    state: RefCell<State>,
    randomness: RefCell<Randomness>,
    wake_up: Arc<WakeUp>,
}

struct State {
    ring: Ring,
    requests: Slab<Request>,
    resources: Resources,
    /// Outcomes of operations that did not need the ring, and of completions that were taken.
    ready: Vec<(OpId, Outcome)>,
    /// Sends that were asked for and are not queued: with nothing but receives before or behind them they can be made on
    /// the spot when the loop is about to sleep.
    sends: Vec<usize>,
    /// Something else than receives was queued since the kernel was entered.
    has_work_queued: bool,
    started: u32,
    wake_up: Arc<WakeUp>,
    /// Where the kernel puts the event descriptor's count, while a read of it is in flight.
    wake_up_count: Box<u64>,
    wake_up_armed: bool,
    /// Whether the ring can truncate (6.9).
    truncates: bool,
    /// Devices whose file system refused O_DIRECT.
    warned: Set<u64>,
}

/// The event descriptor that other threads write to.
struct WakeUp(OwnedFd);

impl Unpark for WakeUp {
    fn unpark(&self) {
        let one = 1u64;
        // SAFETY: the number outlives the call. It cannot fail: the counter is read long before it is full.
        unsafe { libc::write(self.0.as_raw_fd(), std::ptr::from_ref(&one).cast(), size_of::<u64>()) };
    }
}

impl UringDriver {
    fn new(ring: Ring) -> io::Result<Self> {
        // SAFETY: no memory is passed; the new descriptor is owned by nobody else.
        let wake_up = Arc::new(WakeUp(unsafe { OwnedFd::from_raw_fd(check(libc::eventfd(0, libc::EFD_CLOEXEC))?) }));
        let state = State {
            truncates: ring.supports(opcode::Ftruncate::CODE),
            ring,
            requests: Slab::new(),
            resources: Resources::default(),
            ready: Vec::new(),
            sends: Vec::new(),
            has_work_queued: false,
            started: 0,
            wake_up: wake_up.clone(),
            wake_up_count: Box::new(0),
            wake_up_armed: false,
            warned: Set::default(),
        };
        Ok(UringDriver { state: RefCell::new(state), randomness: RefCell::new(Randomness::new()), wake_up })
    }
}

impl Driver for UringDriver {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn wall_ms(&self) -> u64 {
        clock::wall_ms()
    }

    fn random_u64(&self) -> u64 {
        self.randomness.borrow_mut().next()
    }

    fn submit(&self, id: OpId, op: Op) {
        self.state.borrow_mut().submit(id, op);
    }

    fn cancel(&self, id: OpId) {
        self.state.borrow_mut().cancel(id);
    }

    fn flush(&self) {
        let state = &mut *self.state.borrow_mut();
        state.queue_sends();
        if state.ring.has_queued() {
            state.enter(Stay::Submit);
        }
    }

    fn reap(&self, wait: Wait, poll: Duration, outcomes: &mut Vec<(OpId, Outcome)>) {
        let state = &mut *self.state.borrow_mut();
        state.collect();
        let stay = match wait {
            _ if !state.ready.is_empty() => Stay::Collect,
            Wait::No => Stay::Collect,
            Wait::Forever => Stay::Forever,
            Wait::Until(deadline) => match deadline.nanos_since(clock::now()) {
                0 => Stay::Collect,
                nanos => Stay::For(nanos),
            },
        };
        if stay == Stay::Collect {
            state.queue_sends();
            if state.ring.has_queued() || state.ring.owes_completions() {
                state.enter(stay);
            }
        } else if !state.send_now() {
            state.arm_wake_up();
            if poll.is_zero() || !state.look_on(stay, poll) {
                state.enter(stay);
            }
        }
        state.collect();
        outcomes.append(&mut state.ready);
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        self.wake_up.clone()
    }

    fn charge(&self, _span: Duration) {}

    fn offload(&self, job: Box<dyn FnOnce() + Send>, _cost: Duration) {
        offload::run(job);
    }

    fn attend(&self, stream: Token) -> io::Result<Port> {
        let stream = stream.downcast::<OwnedFd>().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        guest::attend(*stream)
    }

    fn start_loop(&self, name: &str, settings: LoopSettings, main: LoopMain, started: Started) {
        let thread = std::thread::Builder::new().name(name.to_owned());
        let started = Arc::new(Mutex::new(Some(started)));
        let tell = {
            let started = started.clone();
            // Whoever asked may be gone.
            move |result| drop(started.lock().ok().and_then(|mut started| started.take()).map(|to| to.send(result)))
        };
        let tell_from_there = tell.clone();
        let spawned = thread.spawn(move || match Ring::new() {
            Err(error) => tell_from_there(Err(error)),
            Ok(ring) => {
                let main = |handle| {
                    tell_from_there(Ok(()));
                    main(handle)
                };
                if let Err(error) = run_on(ring, Options { schedule: settings }, main) {
                    tell_from_there(Err(error));
                }
            }
        });
        if let Err(error) = spawned {
            tell(Err(error));
        }
    }
}

impl State {
    fn submit(&mut self, id: OpId, op: Op) {
        match op {
            // Calls on open files and streams that go through the ring.
            Op::Close { id: resource } => self.close(id, resource),
            Op::Read { id: resource, offset, buffer, len } => match self.resources.find(resource) {
                Ok((key, resource)) => {
                    let direct = resource.is_direct();
                    self.start(id, Some(key), Work::Read { buffer, len, done: 0, offset, direct });
                }
                Err(error) => self.finish(id, Err(error), Payload::Buffer(buffer)),
            },
            Op::Write { id: resource, offset, data } => {
                self.start_on(id, resource, |direct| Work::write(data, offset, direct));
            }
            Op::Sync { id: resource } => self.start_on(id, resource, |_| Work::Sync),
            Op::Allocate { id: resource, offset, len } => {
                self.start_on(id, resource, |_| Work::Allocate { offset, len })
            }
            Op::SetLen { id: resource, len } if self.truncates => self.start_on(id, resource, |_| Work::SetLen { len }),
            Op::Accept { id: resource } => self.start_on(id, resource, |_| Work::Accept),
            Op::Receive { id: resource, buffer, range } => {
                assert!(!range.is_empty() && range.start <= buffer.len(), "a receive needs room");
                match self.resources.find(resource) {
                    Ok((key, resource)) => {
                        let is_awaited = resource.is_drained;
                        self.start(id, Some(key), Work::Receive { buffer, range, is_awaited });
                    }
                    Err(error) => self.finish(id, Err(error), Payload::Buffer(buffer)),
                }
            }
            Op::Send { id: resource, data } => self.start_on(id, resource, |_| Work::send(data)),
            Op::Shutdown { id: resource } => self.start_on(id, resource, |_| Work::Shutdown),
            // Calls on names that go through the ring.
            Op::Open { path, options } => self.start_or_fail(id, || {
                let (path, direct) = (names::c_path(&path)?, options.direct);
                Ok(Work::Open { path, options, direct })
            }),
            Op::Rename { from, to } => {
                self.start_or_fail(id, || Ok(Work::Rename { from: names::c_path(&from)?, to: names::c_path(&to)? }))
            }
            Op::Remove { path } => self.start_or_fail(id, || Ok(Work::Remove { path: names::c_path(&path)? })),
            Op::SyncDirectory { path } => {
                self.start_or_fail(id, || Ok(Work::SyncDirectory { directory: names::open_directory(&path)? }))
            }
            Op::Connect { address } => self.start_or_fail(id, || {
                let address = RawAddress::new(&address)?;
                Ok(Work::Connect { socket: sockets::open_stream(&address)?, address })
            }),
            // Calls that are made on the spot.
            Op::SetLen { id: resource, len } => self.call_on(id, resource, |fd| names::set_len(fd, len)),
            Op::Length { id: resource } => self.call_on(id, resource, |fd| Ok(names::status(fd)?.0)),
            Op::Lock { id: resource } => self.call_on(id, resource, names::try_lock),
            Op::CreateDirectory { path } => {
                let outcome = std::fs::create_dir_all(path).map(|()| 0);
                self.finish(id, outcome, Payload::None);
            }
            Op::ReadDirectory { path } => match names::read_directory(&path) {
                Ok(entries) => self.finish(id, Ok(0), Payload::Entries(entries)),
                Err(error) => self.finish(id, Err(error), Payload::None),
            },
            Op::Space { path } => match names::space(&path) {
                Ok(space) => self.finish(id, Ok(0), Payload::Space(space)),
                Err(error) => self.finish(id, Err(error), Payload::None),
            },
            Op::Listen { address } => self.listen(id, &address),
            Op::Release { id: resource } => match self.resources.release(resource) {
                Ok(fd) => self.finish(id, Ok(0), Payload::Token(Box::new(fd))),
                Err(error) => self.finish(id, Err(error), Payload::None),
            },
            Op::Adopt { token } => match token.downcast::<OwnedFd>() {
                Ok(fd) => {
                    let resource = self.resources.insert(*fd, Kind::Stream);
                    self.finish(id, Ok(resource.0), Payload::None);
                }
                Err(token) => match token.downcast::<EventCounter>() {
                    Ok(counter) => {
                        let resource = self.resources.insert(counter.into_fd(), Kind::Bell);
                        self.finish(id, Ok(resource.0), Payload::None);
                    }
                    Err(_) => self.finish(id, Err(io::ErrorKind::InvalidInput.into()), Payload::None),
                },
            },
            Op::Await { id: resource } => self.start_on(id, resource, |_| Work::hear()),
            Op::Ring { id: resource } => self.start_on(id, resource, |_| Work::ring()),
        }
    }

    fn listen(&mut self, id: OpId, address: &Address) {
        match sockets::listen(address) {
            Ok((socket, bound)) => {
                let path = match address {
                    Address::Unix(path) => Some(path.clone()),
                    Address::Tcp(_) => None,
                };
                let resource = self.resources.insert(socket, Kind::Listener { path });
                self.finish(id, Ok(resource.0), Payload::Address(bound));
            }
            Err(error) => self.finish(id, Err(error), Payload::None),
        }
    }

    fn close(&mut self, id: OpId, resource: ResourceId) {
        let (key, has_peer, fd) = match self.resources.find(resource) {
            Ok((key, resource)) => (key, resource.has_peer(), resource.fd()),
            Err(error) => return self.finish(id, Err(error), Payload::None),
        };
        match self.resources.close(key, id) {
            Some(closable) => self.start_close(closable),
            // Reads and writes of files end by themselves; what waits for a peer may not.
            None if has_peer => self.push_ignored(cancel_entry(CancelBuilder::fd(Fd(fd)).all())),
            None => {}
        }
    }

    fn start_close(&mut self, closable: Closable) {
        self.start(closable.id, None, Work::Close { fd: closable.fd, is_file: closable.is_file });
    }

    fn cancel(&mut self, id: OpId) {
        // Cancelling is rare (a connection ends), so there is no map from ids to requests.
        let Some((key, request)) = self.requests.iter_mut().find(|(_, request)| request.id == id) else { return };
        request.cancelled = true;
        let target = user_data(request.life, key);
        self.push_ignored(cancel_entry(CancelBuilder::user_data(target)));
    }

    fn start_on(&mut self, id: OpId, resource: ResourceId, work: impl FnOnce(bool) -> Work) {
        match self.resources.find(resource) {
            Ok((key, resource)) => {
                let work = work(resource.is_direct());
                self.start(id, Some(key), work);
            }
            Err(error) => self.finish(id, Err(error), Payload::None),
        }
    }

    fn start_or_fail(&mut self, id: OpId, work: impl FnOnce() -> io::Result<Work>) {
        match work() {
            Ok(work) => self.start(id, None, work),
            Err(error) => self.finish(id, Err(error), Payload::None),
        }
    }

    fn call_on(&mut self, id: OpId, resource: ResourceId, call: impl FnOnce(i32) -> io::Result<u64>) {
        let outcome = self.resources.find(resource).and_then(|(_, resource)| call(resource.fd()));
        self.finish(id, outcome, Payload::None);
    }

    fn finish(&mut self, id: OpId, value: io::Result<u64>, payload: Payload) {
        self.ready.push((id, Outcome { value, payload }));
    }

    fn start(&mut self, id: OpId, resource: Option<ResourceKey>, work: Work) {
        if let Some(key) = resource {
            self.resources.begin(key);
        }
        self.started = self.started.wrapping_add(1);
        let key = self.requests.insert(Request { id, life: self.started, resource, cancelled: false, work });
        self.push_request(key);
    }

    fn push_request(&mut self, key: usize) {
        match self.requests[key].work {
            Work::Send { .. } if !self.has_work_queued => return self.sends.push(key),
            Work::Receive { .. } | Work::Hear { .. } => {}
            _ => self.queue_sends_before(),
        }
        self.queue_request(key);
    }

    /// Leaves the sends that were asked for to the ring.
    fn queue_sends(&mut self) {
        if !self.sends.is_empty() {
            self.queue_sends_before();
        }
    }

    /// Something other than a receive is about to be queued: sends that were asked for before come before it.
    fn queue_sends_before(&mut self) {
        self.has_work_queued = true;
        let mut sends = mem::take(&mut self.sends);
        sends.drain(..).for_each(|key| self.queue_request(key));
        self.sends = sends;
    }

    /// Makes the sends that were asked for on the spot, as far as the sockets take them; whether anything came of it. The
    /// ring gets the others.
    ///
    /// A send that the ring makes on the way to sleep is done before the sleep begins, and ends it: the kernel is entered
    /// twice for one request. Outboxes that go on to send while their sockets take it end by running dry.
    fn send_now(&mut self) -> bool {
        let mut sends = mem::take(&mut self.sends);
        for key in sends.drain(..) {
            let request = &self.requests[key];
            let fd = request.resource.map_or(-1, |key| self.resources.fd(key));
            match request.work.send_now(fd) {
                Some(result) => self.on_result(key, result),
                None => {
                    self.has_work_queued = true;
                    self.queue_request(key);
                }
            }
        }
        self.sends = sends;
        !self.ready.is_empty()
    }

    fn enter(&mut self, stay: Stay) {
        self.has_work_queued = false;
        self.ring.enter(stay);
    }

    fn queue_request(&mut self, key: usize) {
        let request = &mut self.requests[key];
        let fd = request.resource.map_or(-1, |key| self.resources.fd(key));
        let entry = request.work.entry(fd).user_data(user_data(request.life, key));
        // SAFETY: the request owns all that the entry points to, on the heap, and is kept until its completion.
        unsafe { self.ring.push(entry) };
    }

    fn push_ignored(&mut self, entry: io_uring::squeue::Entry) {
        self.queue_sends_before();
        // SAFETY: a cancellation points to nothing.
        unsafe { self.ring.push(entry.user_data(IGNORED)) };
    }

    fn arm_wake_up(&mut self) {
        if mem::replace(&mut self.wake_up_armed, true) {
            return;
        }
        let target = std::ptr::from_mut(&mut *self.wake_up_count).cast();
        let entry = opcode::Read::new(Fd(self.wake_up.0.as_raw_fd()), target, size_of::<u64>() as u32).build();
        // SAFETY: the count is on the heap, nobody else looks at it, and it is kept until the completion.
        unsafe { self.ring.push(entry.user_data(WAKE_UP)) };
    }

    /// Submits, and looks on for `poll` at most, no longer than `stay`; whether something is there to be taken. Whoever
    /// else is ready to run on this processor comes first: what is waited for may be theirs to do.
    fn look_on(&mut self, stay: Stay, poll: Duration) -> bool {
        let poll_ns = poll.as_nanos() as u64;
        let poll_ns = if let Stay::For(nanos) = stay { poll_ns.min(nanos) } else { poll_ns };
        let start = clock::now();
        self.enter(Stay::Collect);
        loop {
            if self.ring.has_completions() {
                return true;
            }
            if self.ring.owes_completions() {
                self.enter(Stay::Collect);
                continue;
            }
            if clock::now().nanos_since(start) >= poll_ns {
                return false;
            }
            (0..LOOKS_PER_YIELD).for_each(|_| std::hint::spin_loop());
            std::thread::yield_now();
        }
    }

    /// Takes the completions that are there.
    fn collect(&mut self) {
        while let Some((user_data, result)) = self.ring.pop() {
            match user_data {
                WAKE_UP => self.wake_up_armed = false,
                IGNORED => {}
                _ => self.on_completion(user_data, result),
            }
        }
    }

    fn on_completion(&mut self, data: u64, result: i32) {
        let key = (data & u64::from(u32::MAX)) as usize;
        let request = self.requests.get(key).expect("the kernel completes what was asked for");
        assert!(data == user_data(request.life, key), "a request completes once");
        self.on_result(key, result);
    }

    /// What came of the request in this slot.
    fn on_result(&mut self, key: usize, result: i32) {
        let request = &mut self.requests[key];
        if let (Some(resource), Work::Receive { .. }) = (request.resource, &request.work) {
            self.resources.on_received(resource, request.work.has_drained(result));
        }
        let refused = match &request.work {
            Work::Open { path, options, direct: false } if options.direct => Some(path.clone()),
            _ => None,
        };
        let outcome = match request.on_completion(result) {
            Next::Again => return self.push_request(key),
            Next::Done(outcome) => outcome,
            Next::Opened(fd, kind) => {
                if let Some(path) = refused {
                    self.warn_of_refused_direct(&fd, &path.to_string_lossy());
                }
                Outcome { value: Ok(self.resources.insert(fd, kind).0), payload: Payload::None }
            }
        };
        let request = self.requests.remove(key);
        self.ready.push((request.id, outcome));
        if let Some(closable) = request.resource.and_then(|key| self.resources.end(key)) {
            self.start_close(closable);
        }
    }

    fn warn_of_refused_direct(&mut self, fd: &OwnedFd, path: &str) {
        let device = names::status(fd.as_raw_fd()).map_or(0, |(_, device)| device);
        if self.warned.insert(device) {
            tracing::warn!(path, "this file system refuses O_DIRECT: going through the page cache, which is slower");
        }
    }

    /// Waits for everything in flight, then closes everything. Memory that the kernel may still use is never freed.
    fn shut_down(&mut self) {
        let waiting = self.requests.iter().filter(|(_, request)| request.work.waits_for_peer());
        let mut targets: Vec<u64> = waiting.map(|(key, request)| user_data(request.life, key)).collect();
        targets.extend(self.wake_up_armed.then_some(WAKE_UP));
        for target in targets {
            self.push_ignored(cancel_entry(CancelBuilder::user_data(target)));
        }
        self.requests.iter_mut().for_each(|(_, request)| request.cancelled = true);
        let mut rounds_left = LAST_ROUNDS;
        while !self.requests.is_empty() || self.wake_up_armed {
            let before = self.requests.len();
            self.enter(Stay::For(1_000_000_000));
            self.collect();
            rounds_left = if self.requests.len() < before { LAST_ROUNDS } else { rounds_left - 1 };
            if rounds_left == 0 {
                tracing::warn!(requests = self.requests.len(), "the kernel keeps requests; their memory is given up");
                mem::forget(mem::take(&mut self.requests));
                mem::forget(mem::take(&mut self.wake_up_count));
                break;
            }
        }
        self.ready.clear();
        self.resources.clear();
    }
}

fn user_data(life: u32, key: usize) -> u64 {
    u64::from(life) << 32 | key as u64
}

/// The result of a system call that returns -1 for an error.
fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests;
