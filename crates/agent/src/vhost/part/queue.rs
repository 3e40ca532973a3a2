//! One queue on one loop: a task that claims requests, a task for each request, and the bell that tells the guest.
//!
//! ```text
//! kick or wake -> slots -> claim: heads, marked -> copy descriptors -> memory -> task: volume -> guest memory
//!     -> used ring -> turn's end: call
//! ```
//!
//! What loops have to know of a queue together is in [`Claims`]; this is the part that each has for itself. A request stays on
//! the loop that claimed it, or to which it was handed over before it began. What was used in one turn of the loop is told once,
//! at its end. Whoever gets no slot or no memory claims nothing more from the ring: that is the back-pressure.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Waker;

use base::levels::Level;
use base::{AlignedBuf, Bytes, Instant, MIB, Passage, ReadPart, Result, Stage, buffer, seeded};
use policies::queues::{BATCH, Queues};
use policies::slow_requests::{self, Direction};
use policies::tenants;
use runtime::guest::Memory;
use runtime::sync::{Permit, first};
use runtime::{Class, Doorbell, Work};

use super::Part;
use crate::accounts::{account, note, take};
use crate::shared::Running;
use crate::statistics::Operation;
use crate::vhost::chain::copy_chain;
use crate::vhost::claims::{Batch, Claim, Claims};
use crate::vhost::memory::{Dedicated, Payload};
use crate::vhost::protocol::{Status, Violation};
use crate::vhost::request::{Command, Plan, Request, plan_request};

/// Rings of the guest's bell that may be under way at once: one that nobody hears fills up, and then they wait.
const CALLS_MAX: u32 = 4;
/// Zeros that are copied at once into guest memory.
const ZEROS: usize = MIB as usize;

/// See the module.
pub(super) struct Queue {
    part: Rc<Part>,
    index: usize,
    claims: Claims,
    memory: Dedicated,
    kick: RefCell<Rc<Doorbell>>,
    call: RefCell<Option<Doorbell>>,
    is_call_due: Cell<bool>,
    calls: Cell<u32>,
    is_call_missing: Cell<bool>,
}

/// The bell that is waited for, and the wait.
type Armed = Option<(Rc<Doorbell>, Pin<Box<dyn Future<Output = io::Result<()>>>>)>;

/// A request that was claimed.
struct Taken {
    head: u16,
    request: Request,
    memory: Memory,
    received_at: Instant,
    unseen_ns: u64,
    intake_ns: u64,
    _slot: Permit,
    payload: Option<Payload>,
    _running: Running,
}

impl Queue {
    pub(super) fn new(
        part: &Rc<Part>,
        index: usize,
        (claims, memory): (Claims, Dedicated),
        kick: Doorbell,
        call: Option<Doorbell>,
    ) -> Rc<Queue> {
        Rc::new(Queue {
            part: part.clone(),
            index,
            claims,
            memory,
            kick: RefCell::new(Rc::new(kick)),
            call: RefCell::new(call),
            is_call_due: Cell::new(false),
            calls: Cell::new(0),
            is_call_missing: Cell::new(false),
        })
    }

    /// Starts the task that claims requests. It ends when the queue was stopped.
    pub(super) fn start(self: &Rc<Self>) {
        let queue = self.clone();
        let claiming = async move {
            let (part, shared) = (&queue.part, &queue.part.shared);
            shared.claiming.begin();
            if let Err(violation) = queue.claim_requests().await {
                part.device.break_down(queue.index, violation);
            }
            shared.claiming.end();
            queue.claims.depart(&shared.handle, shared.index());
            queue.pass_on_kick();
        };
        self.part.shared.handle.spawn(Class::Io, "virtio queue", claiming).detach();
    }

    /// A connection may be over before the last of its loops has noticed. What that one hears meanwhile the guest has rung for
    /// whoever serves the queue by then, and it does not ring twice. Who is rung for nothing looks in vain.
    fn pass_on_kick(&self) {
        drop(self.kick.borrow().ring());
    }

    /// Another bell is waited for, from when the loop was woken.
    pub(super) fn set_kick(&self, kick: Doorbell) {
        *self.kick.borrow_mut() = Rc::new(kick);
    }

    /// Another bell is rung from now on.
    pub(super) fn set_call(&self, call: Option<Doorbell>) {
        let before = self.call.replace(call);
        drop(before);
    }

    fn is_over(&self) -> bool {
        self.part.device.is_broken() || self.part.peer.draining.get()
    }

    async fn claim_requests(self: &Rc<Self>) -> Result<(), Violation> {
        let (shared, slots) = (&self.part.shared, &self.part.peer.slots);
        let (handle, me) = (&shared.handle, shared.index());
        let (mut heads, mut room) = (VecDeque::with_capacity(BATCH), Vec::with_capacity(BATCH));
        let mut armed = None;
        let has_others = shared.options().queues == Queues::Shared && !self.part.is_alone();
        loop {
            room.clear();
            if has_others && self.part.volume.has_enough() {
                self.rest(&mut armed).await;
            }
            let (slot, has_waited) = take(slots, 1).await;
            room.push(slot);
            while room.len() < BATCH
                && let Some(slot) = slots.try_take(1)
            {
                room.push(slot);
            }
            let received_at = handle.now();
            let running = |index| shared.commons.running(index);
            match self.claims.claim(handle, me, room.len(), &mut heads, self.is_over(), running)? {
                Claim::Taken(batch) => {
                    let Batch { is_more, .. } = batch;
                    self.begin_all(batch, &mut heads, room.drain(..), received_at, has_waited).await?;
                    // Others may want some of it, and what was claimed is to run before more is.
                    if is_more && !self.part.is_alone() {
                        handle.yield_now().await;
                    }
                }
                Claim::HandedOver(waker) => {
                    (0..shared.options().queues.messages()).for_each(|_| handle.spend(Work::Crossing));
                    waker.into_iter().for_each(Waker::wake);
                    // The other one begins before this one has run something of its own.
                    handle.yield_now().await;
                }
                Claim::Await => {
                    room.clear();
                    self.wait_for_others().await;
                }
                Claim::Sleep => {
                    room.clear();
                    self.wait(&mut armed).await;
                }
                Claim::Listen => {
                    room.clear();
                    self.arm(&mut armed);
                    self.wait(&mut armed).await;
                }
                Claim::Over => return Ok(()),
            }
        }
    }

    /// Leaves the queue to others until what was claimed has started as far as it will not wait for long.
    async fn rest(&self, armed: &mut Armed) {
        let shared = &self.part.shared;
        let (handle, me, _pause) = (&shared.handle, shared.index(), shared.claiming.pause());
        let mut wanting = pin!(self.part.volume.until_wanting());
        loop {
            if let Some(waker) = self.claims.rest(handle, me) {
                handle.spend(Work::Crossing);
                waker.wake();
            }
            let Some((_, heard)) = armed else { return wanting.await };
            match first(wanting.as_mut(), heard.as_mut()).await {
                Ok(()) => return,
                // It was rung for whoever looks: nobody does, perhaps, until it is passed on.
                Err(heard) => {
                    *armed = None;
                    if heard.is_ok() {
                        self.claims.hear(handle, me);
                    }
                }
            }
        }
    }

    /// Waits until another loop hands something over; asks for it, if that is how it comes, when this one
    /// has nothing more to begin with.
    async fn wait_for_others(&self) {
        let shared = &self.part.shared;
        let (handle, me, _pause) = (&shared.handle, shared.index(), shared.claiming.pause());
        let asking = async {
            if shared.options().queues.asks() {
                shared.claiming.until_none().await;
                handle.spend(Work::Crossing);
                self.claims.ask(handle, me);
            }
            pending::<()>().await;
        };
        let _ = first(self.claims.woken(handle, me), asking).await;
    }

    /// Begins to wait for the guest's bell, if that is not done yet.
    fn arm(&self, armed: &mut Armed) {
        let kick = self.kick.borrow().clone();
        if !armed.as_ref().is_some_and(|(bell, _)| Rc::ptr_eq(bell, &kick)) {
            let bell = kick.clone();
            *armed = Some((kick, Box::pin(async move { bell.wait().await })));
        }
    }

    /// Waits until another loop says that something is available, or the guest does.
    ///
    /// Who has begun to wait for the bell goes on with that, also when another loop listens meanwhile: what was given up may
    /// hear the bell still, before the kernel knows, and nobody else would. So whoever hears it looks.
    async fn wait(&self, armed: &mut Armed) {
        let shared = &self.part.shared;
        let (handle, me, _pause) = (&shared.handle, shared.index(), shared.claiming.pause());
        let mut woken = pin!(self.claims.woken(handle, me));
        if let Some((_, heard)) = armed {
            match first(heard.as_mut(), woken.as_mut()).await {
                Ok(Ok(())) => {
                    self.claims.hear(handle, me);
                    return *armed = None;
                }
                Err(()) => return handle.spend(Work::Crossing),
                // A bell that fails is one that nobody rings any more: whoever has it says so in time.
                Ok(Err(error)) => {
                    tracing::debug!(connection = self.part.peer.id, %error, "a guest's bell cannot be heard");
                    *armed = None;
                }
            }
        }
        woken.await;
        handle.spend(Work::Crossing);
    }

    /// Begins what was claimed, one after the other.
    async fn begin_all(
        self: &Rc<Self>,
        batch: Batch,
        heads: &mut VecDeque<u16>,
        room: impl Iterator<Item = Permit>,
        received_at: Instant,
        has_waited: bool,
    ) -> Result<(), Violation> {
        let handle = &self.part.shared.handle;
        if batch.is_handed {
            handle.spend(Work::Crossing);
        }
        if let Some(waker) = batch.wake {
            handle.spend(Work::Crossing);
            waker.wake();
        }
        for slot in room {
            let Some(head) = heads.pop_front() else { break };
            let chain = copy_chain(&batch.memory, batch.table, batch.size, head);
            let request = match chain.and_then(|chain| plan_request(&batch.memory, chain, &self.part.disk)) {
                Ok(request) => request,
                Err(violation) => {
                    heads.push_front(head);
                    self.claims.give_up(handle, heads.drain(..));
                    return Err(violation);
                }
            };
            let (unseen_ns, memory) = (handle.unseen_ns(), batch.memory.clone());
            let running = Running::new(&self.part.shared);
            let mut taken = Taken {
                head,
                request,
                memory,
                received_at,
                unseen_ns,
                intake_ns: 0,
                payload: None,
                _slot: slot,
                _running: running,
            };
            let bytes = match &taken.request.plan {
                Plan::Run(Command::Read(range) | Command::Write(range)) => range.end - range.start,
                _ => 0,
            };
            if bytes > 0 {
                let (shared, own) = (&self.part.shared, &self.part.device.memory);
                let (payload, payload_waited) = self.memory.take(shared, own, bytes).await;
                taken.payload = Some(payload);
                if has_waited || payload_waited {
                    taken.intake_ns = handle.now().nanos_since(received_at);
                }
            }
            let running = self.clone();
            handle.spawn(Class::Io, "virtio request", async move { running.run(taken).await }).detach();
        }
        Ok(())
    }

    /// Runs a request and gives it back to the guest.
    async fn run(self: Rc<Self>, mut taken: Taken) {
        let part = &self.part;
        let (handle, volume) = (&part.shared.handle, &part.volume);
        tracing::trace!(target: "levee::stage", connection = part.peer.id, cookie = taken.head, "received");
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
        // Whoever sees that the request is over finds its memory free.
        taken.payload = None;
        let now = handle.now();
        let latency_ns = now.nanos_since(taken.received_at);
        let error = match &outcome {
            Ok(Err(error)) => Some(error.kind),
            _ => None,
        };
        let bytes = range.end - range.start;
        volume.counters.with(|counters| counters.on_outcome(operation, latency_ns, bytes, error));
        tracing::trace!(target: "levee::stage", connection = part.peer.id, cookie = taken.head, "reply queued");
        match outcome {
            Ok(Ok(written)) => self.answer(&taken, Status::Ok, written),
            Ok(Err(error)) => {
                tracing::debug!(connection = part.peer.id, %error, "a request of a guest failed");
                self.answer(&taken, Status::IoError, 0);
            }
            Err(violation) => {
                self.claims.give_up(handle, [taken.head]);
                part.device.break_down(self.index, violation);
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
        let volume = &self.part.volume;
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
                let data = Bytes::from_owner(buffer);
                if seeded::is_on("guest-answered-early") {
                    let (volume, mut passage) = (volume.clone(), Passage::default());
                    let writing = async move { drop(volume.write(range.start, data, level, &mut passage).await) };
                    self.part.shared.handle.spawn(Class::Io, "seeded bug", writing).detach();
                    return done(Ok(()));
                }
                let outcome = volume.write(range.start, data, level, passage).await;
                // From here on the store accounts for the bytes that it keeps.
                taken.payload = None;
                done(outcome)
            }
            Command::Flush => done(volume.flush().await),
            Command::Discard(range) | Command::WriteZeroes(range, true) => done(volume.discard(range).await),
            Command::WriteZeroes(range, false) => done(volume.write_zeros(range, level).await),
            Command::Identify => {
                let id = self.part.disk.id;
                taken.request.output.writer(&taken.memory).put(&id)?;
                Ok(Ok(id.len() as u32))
            }
        }
    }

    /// Gives a request back to the guest; `written`: bytes before its status.
    fn answer(self: &Rc<Self>, taken: &Taken, status: Status, written: u32) {
        let handle = &self.part.shared.handle;
        let place = vm_memory::GuestAddress(taken.request.status);
        if vm_memory::Bytes::write_obj(taken.memory.map(), status as u8, place).is_err() {
            self.claims.give_up(handle, [taken.head]);
            let violation = Violation::Unreachable { address: taken.request.status, len: 1 };
            return self.part.device.break_down(self.index, violation);
        }
        let is_first = !self.is_call_due.replace(true);
        if let Err(violation) = self.claims.put_used(handle, taken.head, written + 1, is_first) {
            self.part.device.break_down(self.index, violation);
        }
        if is_first {
            let queue = self.clone();
            handle.at_turn_end(move || queue.tell());
        }
    }

    /// Rings the guest's bell, if it wants to hear of what was used in this turn.
    fn tell(self: &Rc<Self>) {
        let handle = &self.part.shared.handle;
        self.is_call_due.set(false);
        match self.claims.wants_call(handle) {
            Ok(true) => self.ring_call_within_bound(),
            Ok(false) => {}
            Err(violation) => self.part.device.break_down(self.index, violation),
        }
        self.claims.notice_told(handle);
    }

    /// Rings it, whoever wants to hear.
    pub(super) fn ring_call(&self) {
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
        tracing::trace!(target: "levee::stage", connection = self.part.peer.id, "replies sent");
        let queue = self.clone();
        let waiting = async move {
            // A counter that is full will be heard; one that fails has nobody who hears it.
            let _ = ringing.await;
            queue.calls.set(queue.calls.get() - 1);
            if queue.is_call_missing.take() {
                queue.ring_call_within_bound();
            }
        };
        self.part.shared.handle.spawn(Class::Io, "virtio call", waiting).detach();
    }
}

fn put_zeros(writer: &mut crate::vhost::chain::Writer<'_>, len: u64) -> Result<(), Violation> {
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
