//! One queue that is served: a task that takes requests, a task for each request, and the bell that tells the guest.
//!
//! ```text
//! kick -> slot -> take: copy descriptors, mark -> memory -> task: volume -> guest memory -> used ring -> turn's end: call
//! ```
//!
//! What was used in one turn of the loop is told once, at its end. Whoever gets no slot or no memory takes nothing more from
//! the ring: that is the back-pressure.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use base::levels::Level;
use base::{AlignedBuf, Bytes, Instant, MIB, Passage, ReadPart, Result, Stage, buffer};
use policies::slow_requests::{self, Direction};
use policies::tenants;
use runtime::guest::Memory;
use runtime::sync::{Budget, Event, Permit, first};
use runtime::{Class, Doorbell, SharedPermit, Task, Work};

use super::protocol::{Disk, Status, Violation};
use super::request::{Command, Plan, Request, plan_request};
use super::ring::Ring;
use crate::accounts::{MEMORY_SHARE, account, note, take};
use crate::peers::Peer;
use crate::shared::Shared;
use crate::statistics::Operation;
use crate::volume::Volume;

/// Rings of the guest's bell that may be under way at once: one that nobody hears fills up, and then they wait.
const CALLS_MAX: u32 = 4;
/// Zeros that are copied at once into guest memory.
const ZEROS: usize = MIB as usize;

/// What the queues of one connection share.
pub(super) struct Device {
    pub(super) shared: Rc<Shared>,
    pub(super) peer: Rc<Peer>,
    pub(super) volume: Rc<Volume>,
    pub(super) disk: Disk,
    /// Bytes of payload of this connection.
    memory: Budget,
    /// Its guest broke the rules: nothing more is taken until its driver has stopped all queues.
    pub(super) is_broken: Cell<bool>,
}

/// See the module.
pub(super) struct Queue {
    device: Rc<Device>,
    index: usize,
    ring: RefCell<Ring>,
    memory: RefCell<Memory>,
    kick: RefCell<Rc<Doorbell>>,
    call: RefCell<Option<Doorbell>>,
    is_stopped: Cell<bool>,
    /// Notified when the task that takes requests has to look at something else than the kick.
    changed: Event,
    /// Notified when nothing is in flight.
    idle: Event,
    is_call_due: Cell<bool>,
    calls: Cell<u32>,
    is_call_missing: Cell<bool>,
}

/// A request that was taken.
struct Taken {
    head: u16,
    request: Request,
    memory: Memory,
    received_at: Instant,
    unseen_ns: u64,
    intake_ns: u64,
    _slot: Permit,
    payload: Option<(Permit, SharedPermit)>,
}

impl Device {
    pub(super) fn new(shared: Rc<Shared>, peer: Rc<Peer>, volume: Rc<Volume>) -> Rc<Device> {
        let share = (shared.options().payload_bytes_max / MEMORY_SHARE).max(MIB);
        let disk = Disk::of(volume.descriptor());
        Rc::new(Device { shared, peer, volume, disk, memory: Budget::new(share), is_broken: Cell::new(false) })
    }

    /// The guest broke the rules: that is said once, and nothing more is taken.
    pub(super) fn break_down(&self, index: usize, violation: Violation) {
        if self.is_broken.replace(true) {
            return;
        }
        self.shared.commons.violations.fetch_add(1, Ordering::Relaxed);
        let volume = &self.volume.descriptor().name;
        tracing::warn!(
            connection = self.peer.id,
            %volume,
            queue = index,
            %violation,
            "a guest broke the rules of its disk, which is not served until its driver resets it"
        );
    }
}

impl Queue {
    pub(super) fn new(
        device: &Rc<Device>,
        index: usize,
        ring: Ring,
        memory: Memory,
        kick: Rc<Doorbell>,
        call: Option<Doorbell>,
    ) -> Rc<Queue> {
        Rc::new(Queue {
            device: device.clone(),
            index,
            ring: RefCell::new(ring),
            memory: RefCell::new(memory),
            kick: RefCell::new(kick),
            call: RefCell::new(call),
            is_stopped: Cell::new(false),
            changed: Event::new(),
            idle: Event::new(),
            is_call_due: Cell::new(false),
            calls: Cell::new(0),
            is_call_missing: Cell::new(false),
        })
    }

    /// Starts the task that takes requests. What a former connection, or a former life, has used may never have been told.
    pub(super) fn start(self: &Rc<Self>) -> Task<()> {
        self.ring_call();
        let queue = self.clone();
        self.device.shared.handle.spawn(Class::Io, "virtio queue", async move {
            if let Err(violation) = queue.take_requests().await {
                queue.device.break_down(queue.index, violation);
            }
        })
    }

    /// Takes nothing more.
    pub(super) fn stop(&self) {
        self.is_stopped.set(true);
        self.changed.notify();
    }

    /// Returns when nothing is in flight: the next place of the available ring.
    pub(super) async fn wait_until_idle(&self) -> u16 {
        loop {
            let idle = self.idle.wait();
            if self.ring.borrow().in_flight() == 0 {
                return self.ring.borrow().next();
            }
            idle.await;
        }
    }

    /// Another bell is rung from now on.
    pub(super) fn set_call(&self, call: Option<Doorbell>) {
        let before = self.call.replace(call);
        drop(before);
        // What was told to the former one may not have been heard.
        self.ring_call();
    }

    /// The bell that it rings, which it does not need any more.
    pub(super) fn take_call(&self) -> Option<Doorbell> {
        self.call.take()
    }

    /// The guest's memory is another one from now on, or another bell is waited for.
    pub(super) fn change(&self, act: impl FnOnce(&mut Ring, &mut Memory, &mut Rc<Doorbell>) -> Result<(), Violation>) {
        let changed = act(&mut self.ring.borrow_mut(), &mut self.memory.borrow_mut(), &mut self.kick.borrow_mut());
        if let Err(violation) = changed {
            self.device.break_down(self.index, violation);
        }
        self.changed.notify();
    }

    fn is_over(&self) -> bool {
        self.is_stopped.get() || self.device.is_broken.get() || self.device.peer.draining.get()
    }

    async fn take_requests(self: &Rc<Self>) -> Result<(), Violation> {
        let device = &self.device;
        loop {
            let (slot, slot_waited) = take(&device.peer.slots, 1).await;
            if self.is_over() {
                return Ok(());
            }
            let received_at = device.shared.handle.now();
            let memory = self.memory.borrow().clone();
            let taken = self.ring.borrow_mut().take(&memory)?;
            let Some((head, chain)) = taken else {
                drop(slot);
                self.wait_for_kick(&memory).await?;
                continue;
            };
            let request = match plan_request(&memory, chain, &device.disk) {
                Ok(request) => request,
                Err(violation) => {
                    self.give_up(head);
                    return Err(violation);
                }
            };
            let unseen_ns = device.shared.handle.unseen_ns();
            let mut taken =
                Taken { head, request, memory, received_at, unseen_ns, intake_ns: 0, _slot: slot, payload: None };
            let bytes = match &taken.request.plan {
                Plan::Run(Command::Read(range) | Command::Write(range)) => range.end - range.start,
                _ => 0,
            };
            if bytes > 0 {
                let (own, own_waited) = take(&device.memory, bytes.min(device.memory.total())).await;
                let (shared, shared_waited) = device.shared.take_payload(bytes).await;
                taken.payload = Some((own, shared));
                if slot_waited || own_waited || shared_waited {
                    taken.intake_ns = device.shared.handle.now().nanos_since(received_at);
                }
            }
            let running = self.clone();
            device.shared.handle.spawn(Class::Io, "virtio request", async move { running.run(taken).await }).detach();
        }
    }

    /// Waits until the guest says that something is available.
    async fn wait_for_kick(&self, memory: &Memory) -> Result<(), Violation> {
        let mut changed = pin!(self.changed.wait());
        if self.is_over() || self.ring.borrow_mut().listen(memory)? {
            return Ok(());
        }
        let kick = self.kick.borrow().clone();
        // A bell that fails is one that nobody rings any more: whoever has it says so in time.
        if let Ok(Err(error)) = first(kick.wait(), changed.as_mut()).await {
            tracing::debug!(connection = self.device.peer.id, %error, "a guest's bell cannot be heard");
            changed.await;
        }
        self.ring.borrow_mut().stop_listening(memory)
    }

    /// Runs a request and gives it back to the guest.
    async fn run(self: Rc<Self>, mut taken: Taken) {
        let device = &self.device;
        let (handle, volume) = (&device.shared.handle, &device.volume);
        tracing::trace!(target: "levee::stage", connection = device.peer.id, cookie = taken.head, "received");
        let wait = handle.now().nanos_since(taken.received_at);
        volume.counters.with(|counters| counters.receive_wait_ns.record(wait));
        let mut passage = Passage::default();
        passage.add(Stage::Intake, taken.intake_ns);
        passage.fill(Stage::Turn, wait);
        let command = match taken.request.plan.clone() {
            Plan::Run(command) => command,
            Plan::Answer(status) => {
                volume.counters.with(|counters| counters.refused += 1);
                return self.answer(&taken, status, 0);
            }
        };
        let (operation, range) = command.kind();
        let delay_ns = wait.saturating_sub(taken.intake_ns);
        let level = volume.pass(command.priced_as(), range.end - range.start, delay_ns, &mut passage).await;
        handle.spend(Work::Request);
        let outcome = self.execute(&command, level, &mut taken, &mut passage).await;
        let now = handle.now();
        let latency_ns = now.nanos_since(taken.received_at);
        let error = match &outcome {
            Ok(Err(error)) => Some(error.kind),
            _ => None,
        };
        let bytes = range.end - range.start;
        volume.counters.with(|counters| counters.on_outcome(operation, latency_ns, bytes, error));
        tracing::trace!(target: "levee::stage", connection = device.peer.id, cookie = taken.head, "reply queued");
        match outcome {
            Ok(Ok(written)) => self.answer(&taken, Status::Ok, written),
            Ok(Err(error)) => {
                tracing::debug!(connection = device.peer.id, %error, "a request of a guest failed");
                self.answer(&taken, Status::IoError, 0);
            }
            Err(violation) => {
                self.give_up(taken.head);
                device.break_down(self.index, violation);
            }
        }
        if let Some(direction) = command.direction() {
            let mut noted: slow_requests::Request = note(direction, range, passage, taken.unseen_ns, latency_ns);
            volume.counters.with(|counters| account(handle, now, &mut noted, counters));
        }
    }

    /// Does what is asked; how many bytes of the answer were written.
    async fn execute(
        &self,
        command: &Command,
        level: Level,
        taken: &mut Taken,
        passage: &mut Passage,
    ) -> Result<Result<u32>, Violation> {
        let volume = &self.device.volume;
        let done = |outcome: Result<()>| Ok(outcome.map(|()| 0));
        match command.clone() {
            Command::Read(range) => match volume.read(range, level, passage).await {
                Ok(parts) => {
                    let mut writer = taken.request.output.writer(&taken.memory);
                    for part in parts {
                        match part {
                            ReadPart::Data(bytes) => writer.put(&bytes)?,
                            ReadPart::Zeros(len) => put_zeros(&mut writer, len)?,
                        }
                    }
                    Ok(Ok(taken.request.output.len() as u32))
                }
                Err(error) => Ok(Err(error)),
            },
            Command::Write(range) => {
                let mut buffer = AlignedBuf::zeroed((range.end - range.start) as usize);
                // From here on it is a copy: the guest may change what it has.
                taken.request.input.copy_to(&taken.memory, &mut buffer)?;
                let outcome = volume.write(range.start, Bytes::from_owner(buffer), level, passage).await;
                // From here on the store accounts for the bytes that it keeps.
                taken.payload = None;
                done(outcome)
            }
            Command::Flush => done(volume.flush().await),
            Command::Discard(range) | Command::WriteZeroes(range, true) => done(volume.discard(range).await),
            Command::WriteZeroes(range, false) => done(volume.write_zeros(range, level).await),
            Command::Identify => {
                let id = self.device.disk.id;
                taken.request.output.writer(&taken.memory).put(&id)?;
                Ok(Ok(id.len() as u32))
            }
        }
    }

    /// Gives a request back to the guest; `written`: bytes before its status.
    fn answer(self: &Rc<Self>, taken: &Taken, status: Status, written: u32) {
        let answered = self.put_answer(taken, status, written);
        if let Err(violation) = answered {
            self.device.break_down(self.index, violation);
        }
        if !self.is_call_due.replace(true) {
            let queue = self.clone();
            self.device.shared.handle.at_turn_end(move || queue.tell());
        }
        self.notice_idle();
    }

    fn put_answer(&self, taken: &Taken, status: Status, written: u32) -> Result<(), Violation> {
        let mut ring = self.ring.borrow_mut();
        let map = taken.memory.map();
        let place = vm_memory::GuestAddress(taken.request.status);
        if vm_memory::Bytes::write_obj(map, status as u8, place).is_err() {
            ring.give_up(taken.head);
            return Err(Violation::Unreachable { address: taken.request.status, len: 1 });
        }
        ring.put_used(&self.memory.borrow(), taken.head, written + 1)
    }

    fn give_up(&self, head: u16) {
        self.ring.borrow_mut().give_up(head);
        self.notice_idle();
    }

    fn notice_idle(&self) {
        if self.ring.borrow().in_flight() == 0 {
            self.idle.notify();
        }
    }

    /// Rings the guest's bell, if it wants to hear of what was used in this turn.
    fn tell(self: &Rc<Self>) {
        self.is_call_due.set(false);
        let wanted = self.ring.borrow_mut().wants_call(&self.memory.borrow());
        match wanted {
            Ok(true) => self.ring_call_within_bound(),
            Ok(false) => {}
            Err(violation) => self.device.break_down(self.index, violation),
        }
    }

    fn ring_call(&self) {
        if let Some(call) = &*self.call.borrow() {
            drop(call.ring());
        }
    }

    fn ring_call_within_bound(self: &Rc<Self>) {
        if self.calls.get() == CALLS_MAX {
            return self.is_call_missing.set(true);
        }
        let ringing = match &*self.call.borrow() {
            Some(call) => call.ring(),
            None => return,
        };
        self.calls.set(self.calls.get() + 1);
        tracing::trace!(target: "levee::stage", connection = self.device.peer.id, "replies sent");
        let queue = self.clone();
        let waiting = async move {
            // A counter that is full will be heard; one that fails has nobody who hears it.
            let _ = ringing.await;
            queue.calls.set(queue.calls.get() - 1);
            if queue.is_call_missing.take() {
                queue.ring_call_within_bound();
            }
        };
        self.device.shared.handle.spawn(Class::Io, "virtio call", waiting).detach();
    }
}

fn put_zeros(writer: &mut super::chain::Writer<'_>, len: u64) -> Result<(), Violation> {
    let mut left = len as usize;
    while left > 0 {
        let part = left.min(ZEROS);
        writer.put(&buffer::zeros(part))?;
        left -= part;
    }
    Ok(())
}

impl Command {
    /// What it counts as, and the range that it is about.
    fn kind(&self) -> (Operation, Range<u64>) {
        match self {
            Command::Read(range) => (Operation::Read, range.clone()),
            Command::Write(range) | Command::WriteZeroes(range, false) => (Operation::Write, range.clone()),
            Command::Flush => (Operation::Flush, 0..0),
            Command::Discard(range) | Command::WriteZeroes(range, true) => (Operation::Discard, range.clone()),
            Command::Identify => (Operation::Query, 0..0),
        }
    }

    /// What kind of request it is among those of all tenants.
    fn priced_as(&self) -> tenants::Operation {
        match self {
            Command::Read(_) => tenants::Operation::Read,
            Command::Write(_) | Command::WriteZeroes(_, false) => tenants::Operation::Write,
            Command::Discard(_) | Command::WriteZeroes(_, true) => tenants::Operation::Discard,
            // Questions are not what anybody bursts with.
            Command::Flush | Command::Identify => tenants::Operation::Flush,
        }
    }

    fn direction(&self) -> Option<Direction> {
        match self {
            Command::Read(_) => Some(Direction::Read),
            Command::Write(_) => Some(Direction::Write),
            _ => None,
        }
    }
}
