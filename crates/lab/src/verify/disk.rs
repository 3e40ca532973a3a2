//! A disk of a virtual machine: what a client asks of it goes through rings in the machine's memory, which the agent's process
//! serves ([`agent::vhost::driver`]).
//!
//! **Intuition.** The machine outlives the process that serves its disk. Its memory, with the rings and with what is in
//! flight, stays when the process is killed; its hypervisor connects to the next life, which does what was in flight. So a
//! request is answered once, however many lives that takes, and whoever asked waits. It ends without an answer only with the
//! machine (the power fails, its volume is gone), or with a reset by its driver, before which the device says that it has not
//! begun.
//!
//! **Names.** The *hypervisor* connects, also after a connection has ended, and says what the machine is like. A disk that is
//! *unplugged* is over: whatever was asked of it has no outcome any more. What is *carried over* was asked during one connection
//! and answered during a later one.
//!
//! **Invariants.** A machine belongs to one life of a volume; what another one of the same name gets from it would be noticed. A
//! used request was asked for and not used before ([`Guest::next_used`] asserts that), has a status, and as many bytes as it
//! says. The hypervisor knows as little as QEMU does: it connects to whatever is at its path.
//!
//! The machine's processors are those of the clients, to whom nothing happens; only who connects has to be where the agent is.
//! Where there are several agents, a machine is on that of one of them; when its volume is to be used through another one, it
//! ends, and one on that agent's machine begins.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use agent::vhost::driver::{Asked, Guest, Shape, dial};
use agent::vhost::protocol::{Status, feature, kind};
use base::{Bytes, Instant, Prng, SECTOR};
use runtime::guest::{Answer, Ask, Visitor};
use runtime::sync::{Event, Receiver, Sender, first, oneshot};
use runtime::{Class, Handle};

use super::history::{RequestId, VolumeLife};
use super::nbd::{Command, Gone, NO_HOLE, Reply, TIMEOUT, UNNAMED};
use super::plan::{Promise, Vm};
use super::shared::{Gate, Share, name_of};

/// How long a hypervisor waits before it connects again: each time twice as long, up to a limit.
const PAUSE: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// How often it does so in vain: for longer than the longest accident.
const TRIES: u32 = 600;
/// A driver that gathers requests rings after so many nanoseconds at most.
const GATHER_NS: u64 = 50_000;
/// Memory of a request besides what it moves: header, status, table.
const BESIDE: u64 = 4096;
/// Pieces of memory, and how many descriptors a request has at most: as a disk says that it likes them.
const PIECES: [u32; 5] = [512, 600, 4096, 1 << 14, 1 << 16];
const SEGMENTS: usize = 126;
/// The flag of zeroes that may become a hole.
const UNMAP: u32 = 1;

/// See the module.
pub struct Disk {
    handle: Handle,
    share: Share,
    at: VolumeLife,
    /// Through which it was plugged in, or connected last.
    gate: Cell<Gate>,
    socket: PathBuf,
    vm: Vm,
    guest: RefCell<Guest>,
    /// By queue and head.
    waiting: RefCell<BTreeMap<(usize, u16), Waiting>>,
    prng: RefCell<Prng>,
    /// By queue: how far its available ring was when the device was last rung.
    rung: RefCell<Vec<u16>>,
    /// Connections so far.
    connections: Cell<u64>,
    /// Since when there is one.
    connected_at: Cell<Option<Instant>>,
    is_resetting: Cell<bool>,
    is_over: Cell<bool>,
    wish: Cell<Option<Wish>>,
    /// Descriptors came free, or all of it is over.
    room: Event,
    /// The rings are others, or all of it is over.
    rings: Event,
    /// Something is wished, or all of it is over.
    wished: Event,
}

/// A request that was not used yet.
struct Waiting {
    asked: Asked,
    /// What it is in the history, if it changes something.
    change: Option<RequestId>,
    sender: Sender<Result<Reply, Gone>>,
    /// The connection during which it was asked for, or the last one before.
    since: u64,
    /// What was begun with it during connections up to this one is in the history.
    told: u64,
}

/// What is to be done to a machine that runs.
#[derive(Clone, Copy)]
enum Wish {
    /// Its hypervisor connects anew.
    Reconnect,
    /// Its driver begins anew.
    Reset,
}

impl Disk {
    /// A disk of a machine that was started for that life of a volume, which is served at `socket` through `gate`.
    pub fn plug(handle: &Handle, share: &Share, (at, gate): (VolumeLife, Gate), socket: &Path, vm: Vm) -> Rc<Disk> {
        let mut guest = Guest::new(socket, vm.queues, vm.size);
        for (is_taken, bit) in [(vm.tells, feature::EVENT_IDX), (vm.tables, feature::INDIRECT)] {
            guest.features &= if is_taken { u64::MAX } else { !bit };
        }
        let disk = Rc::new(Disk {
            handle: handle.clone(),
            share: share.clone(),
            at,
            gate: Cell::new(gate),
            socket: socket.to_owned(),
            vm,
            guest: RefCell::new(guest),
            waiting: RefCell::default(),
            prng: RefCell::new(Prng::new(handle.random_u64())),
            rung: RefCell::new(vec![0; vm.queues]),
            connections: Cell::new(0),
            connected_at: Cell::new(None),
            is_resetting: Cell::new(false),
            is_over: Cell::new(false),
            wish: Cell::new(None),
            room: Event::new(),
            rings: Event::new(),
            wished: Event::new(),
        });
        handle.spawn(Class::Io, "lab hypervisor", disk.clone().stay_connected()).detach();
        for queue in 0..vm.queues {
            handle.spawn(Class::Io, "lab interrupts", disk.clone().hear(queue)).detach();
        }
        disk
    }

    /// Whether nothing more is answered.
    pub fn is_over(&self) -> bool {
        self.is_over.get()
    }

    /// Through what it is used.
    pub fn gate(&self) -> Gate {
        self.gate.get()
    }

    /// Ends the machine.
    pub fn unplug(&self) {
        self.is_over.set(true);
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        drop(waiting);
        [&self.room, &self.rings, &self.wished].into_iter().for_each(Event::notify);
    }

    /// Something happens to the machine, with requests in flight.
    pub fn disturb(&self) {
        let what = self.prng.borrow_mut().below(5);
        match what {
            0 => self.unplug(),
            1 | 2 => self.wish.set(Some(Wish::Reset)),
            _ => self.wish.set(Some(Wish::Reconnect)),
        }
        self.wished.notify();
    }

    /// The process that served it has ended, maybe in the middle: changes that it may have done, and that the next one does
    /// again; with their volume, and through what that was used. Each is told once of each process.
    pub fn on_end_of_process(&self) -> Vec<(RequestId, usize, Gate)> {
        // What was used will not be done again.
        (0..self.vm.queues).for_each(|queue| self.collect(queue));
        let connections = self.connections.get();
        let mut again = Vec::new();
        for waiting in self.waiting.borrow_mut().values_mut().filter(|waiting| waiting.told < connections) {
            waiting.told = connections;
            again.extend(waiting.change.map(|change| (change, self.at.volume, self.gate.get())));
        }
        again
    }

    /// Asks for something; `change` is what the history calls it, if it changes something. The same words as those of
    /// [`super::nbd::Connection::ask`].
    ///
    /// # Errors
    /// There will be no answer.
    pub async fn ask(
        &self,
        change: Option<RequestId>,
        command: Command,
        flags: u16,
        (offset, len): (u64, u32),
        data: Bytes,
    ) -> Result<Reply, Gone> {
        let range = |flags: u32| {
            let words = [offset / SECTOR, (u64::from(flags) << 32) | (u64::from(len) / SECTOR)];
            words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>()
        };
        let (kind, sector, data, room) = match command {
            Command::Read => (kind::IN, offset / SECTOR, Vec::new(), u64::from(len)),
            Command::Write => (kind::OUT, offset / SECTOR, data.to_vec(), 0),
            Command::Flush => (kind::FLUSH, 0, Vec::new(), 0),
            Command::Trim => (kind::DISCARD, 0, range(0), 0),
            Command::WriteZeroes => {
                let flags = if flags & NO_HOLE == 0 { UNMAP } else { 0 };
                (kind::WRITE_ZEROES, 0, range(flags), 0)
            }
        };
        let (queue, mut receiver) = loop {
            let more = self.room.wait();
            if self.is_over() {
                return Err(Gone::Ended);
            }
            match self.put(change, kind, sector, &data, room) {
                Some(put) => break put,
                None => self.unless_stuck(more).await?,
            }
        };
        let gather_ns = {
            let mut prng = self.prng.borrow_mut();
            if prng.one_in(4) { prng.below(GATHER_NS) } else { 0 }
        };
        if gather_ns > 0 {
            self.handle.sleep(Duration::from_nanos(gather_ns)).await;
        }
        self.ring(queue);
        self.unless_stuck(&mut receiver).await?.unwrap_or(Err(Gone::Ended))
    }

    /// What `future` gives. A machine waits for ever; but if nothing comes of it although nothing is wrong, that is said.
    async fn unless_stuck<T>(&self, mut future: impl Future<Output = T> + Unpin) -> Result<T, Gone> {
        loop {
            if let Ok(value) = first(&mut future, self.handle.sleep(TIMEOUT)).await {
                return Ok(value);
            }
            let now = self.handle.now();
            let is_quiet = now.since(self.share.borrow().trouble_at) > 2 * TIMEOUT
                && self.connected_at.get().is_some_and(|since| now.since(since) > TIMEOUT);
            if is_quiet || self.is_pointless() {
                return Err(Gone::TimedOut);
            }
        }
    }

    /// Puts a request into some queue, if there is room.
    fn put(
        &self,
        change: Option<RequestId>,
        kind: u32,
        sector: u64,
        data: &[u8],
        room: u64,
    ) -> Option<(usize, Receiver<Result<Reply, Gone>>)> {
        if self.is_resetting.get() {
            return None;
        }
        let (mut guest, mut prng) = (self.guest.borrow_mut(), self.prng.borrow_mut());
        let queue = prng.below(self.vm.queues as u64) as usize;
        let bytes = data.len() as u64 + room;
        let shape = self.vm.draw_shape(bytes, &mut prng);
        let descriptors = if shape.is_indirect { 1 } else { descriptors(bytes, shape) };
        if guest.free(queue) < descriptors || !guest.has_room(bytes + BESIDE) {
            return None;
        }
        let asked = guest.put_request(queue, kind, sector, data, room, shape);
        let (sender, receiver) = oneshot();
        let since = self.connections.get();
        let (head, told) = (asked.head, since.saturating_sub(1));
        self.waiting.borrow_mut().insert((queue, head), Waiting { asked, change, sender, since, told });
        Some((queue, receiver))
    }

    /// Rings the device for what was put into a queue, if it wants that.
    fn ring(&self, queue: usize) {
        let mut guest = self.guest.borrow_mut();
        let before = std::mem::replace(&mut self.rung.borrow_mut()[queue], guest.queues[queue].available);
        guest.kick(queue, before);
    }

    /// Takes what was used out of a queue, whenever the device calls.
    async fn hear(self: Rc<Self>, queue: usize) {
        while !self.is_over() {
            self.collect(queue);
            let call = {
                let guest = self.guest.borrow();
                if guest.listen(queue) {
                    continue;
                }
                guest.queues[queue].call.clone()
            };
            let others = self.rings.wait();
            let _ = first(call.wait(), others).await;
        }
    }

    fn collect(&self, queue: usize) {
        loop {
            let used = self.guest.borrow_mut().next_used(queue);
            let Some((head, len)) = used else { break };
            // A machine that is over forgets what it has asked for.
            let Some(waiting) = self.waiting.borrow_mut().remove(&(queue, head)) else { continue };
            let (status, bytes) = self.guest.borrow().answer(&waiting.asked);
            let reply = match status {
                status if status == Status::Ok as u8 => {
                    assert_eq!(len as usize, bytes.len() + 1, "a disk says how much it has written");
                    Reply::Done(bytes)
                }
                status if status == Status::IoError as u8 => Reply::Failed(UNNAMED),
                status => panic!("a request was used with the status {status}"),
            };
            {
                let coverage = &mut self.share.borrow_mut().coverage;
                coverage.guest_requests += 1;
                coverage.carried_over += u64::from(waiting.since < self.connections.get());
            }
            waiting.sender.send(Ok(reply));
            self.room.notify();
        }
    }

    /// The hypervisor.
    async fn stay_connected(self: Rc<Self>) {
        let (mut pause, mut tries) = (PAUSE, 0);
        while !self.is_over() {
            // Whoever unplugs it does not wait for a device that is still busy with the connection before.
            let connected = first(self.connect(), self.until_over()).await;
            match connected {
                Err(()) => break,
                Ok(Ok(visitor)) => {
                    (pause, tries) = (PAUSE, 0);
                    self.connected_at.set(Some(self.handle.now()));
                    self.keep(&visitor).await;
                    self.connected_at.set(None);
                    continue;
                }
                Ok(Err(error)) => self.see_to(&error).await,
            }
            tries += 1;
            if tries > TRIES {
                tries = 0;
                self.on_missing();
            }
            let _ = first(self.handle.sleep(pause), self.until_over()).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn until_over(&self) {
        loop {
            let wished = self.wished.wait();
            if self.is_over() {
                return;
            }
            wished.await;
        }
    }

    async fn connect(&self) -> io::Result<Visitor> {
        let ended = || io::Error::from(io::ErrorKind::ConnectionReset);
        let door = self.share.borrow().door(self.gate.get().agent).ok_or_else(ended)?;
        let mut attaching = Attaching::begin(self).ok_or_else(ended)?;
        let (sender, receiver) = oneshot();
        let (beside, socket) = (door.beside.clone(), self.socket.clone());
        let dialing = async move { sender.send(dial(&beside, &socket).await) };
        door.beside.spawn(Class::Io, "lab dial", dialing).detach();
        let visitor = receiver.await.ok_or_else(ended)??;
        let features = visitor.ask(Ask::Features).await?;
        attaching.is_there = true;
        drop(attaching);
        self.introduce(&visitor, &features).await?;
        Ok(visitor)
    }

    /// Says what the machine is like, to a device that has said what it can do.
    async fn introduce(&self, visitor: &Visitor, features: &Answer) -> io::Result<()> {
        self.connections.set(self.connections.get() + 1);
        let asks = {
            let guest = self.guest.borrow();
            guest.check_features(features);
            guest.introduction()
        };
        for ask in asks {
            visitor.ask(ask).await?;
        }
        Ok(())
    }

    /// Keeps a connection until it ends, or is to end.
    async fn keep(&self, visitor: &Visitor) {
        loop {
            let wished = self.wished.wait();
            if self.is_over() {
                return;
            }
            match self.wish.take() {
                None => {}
                Some(Wish::Reconnect) => return,
                Some(Wish::Reset) => {
                    if self.reset(visitor).await.is_err() {
                        return;
                    }
                    continue;
                }
            }
            if first(visitor.ended(), wished).await.is_ok() {
                return;
            }
        }
    }

    /// Stops all queues and begins anew with empty ones. What the device has not begun with never happens.
    async fn reset(&self, visitor: &Visitor) -> io::Result<()> {
        self.is_resetting.set(true);
        let stopped = self.stop(visitor).await;
        if stopped.is_ok() && !self.is_over() {
            let left = std::mem::take(&mut *self.waiting.borrow_mut());
            left.into_values().for_each(|waiting| waiting.sender.send(Err(Gone::NotBegun)));
            self.guest.borrow_mut().renew();
            self.rung.borrow_mut().fill(0);
            self.rings.notify();
            self.share.borrow_mut().coverage.driver_resets += 1;
        }
        self.is_resetting.set(false);
        self.room.notify();
        stopped?;
        let features = visitor.ask(Ask::Features).await?;
        self.introduce(visitor, &features).await
    }

    async fn stop(&self, visitor: &Visitor) -> io::Result<()> {
        for queue in 0..self.vm.queues {
            let next = visitor.ask(Ask::Stop { queue }).await?;
            let used = self.guest.borrow().used_index(queue);
            assert_eq!(next, Answer::Number(u64::from(used)), "a queue stops when all that was begun is used");
            self.collect(queue);
        }
        Ok(())
    }

    /// Whether the volume's name stands for another one, or it is used through another agent.
    fn is_gone(&self) -> bool {
        let shared = self.share.borrow();
        let is_elsewhere = !shared.gate_of(self.at.volume).is_beside(&self.gate.get());
        is_elsewhere || shared.slots[self.at.volume].life != self.at.life
    }

    /// There was no connection.
    async fn see_to(&self, error: &io::Error) {
        if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
            && self.share.borrow().is_usable(self.at.volume)
        {
            serve_disk(&self.share, self.at, self.gate.get().agent, &self.socket).await;
            // Whoever asked for a disk of a name may have got that of another volume.
            while self.share.borrow().slots[self.at.volume].changing && !self.is_pointless() {
                self.handle.sleep(PAUSE).await;
            }
        }
        if self.is_pointless() || self.is_gone() {
            self.unplug();
        }
    }

    fn is_pointless(&self) -> bool {
        let shared = self.share.borrow();
        shared.violation.is_some() || shared.is_given_up
    }

    /// Nobody was there for long.
    fn on_missing(&self) {
        let mut shared = self.share.borrow_mut();
        match shared.shape.promise {
            Promise::Flawless => {
                let name = name_of(self.at.volume);
                shared.fail(format!("a virtual machine could not connect to its disk of {name} for long"));
            }
            // What was open on a disk that went away stays dead: the operator starts the store again.
            Promise::NothingLost | Promise::NeverWrong => shared.restart_wanted = true,
        }
    }
}

/// Descriptors of a request that moves so many bytes: header and status, and one for each piece.
fn descriptors(bytes: u64, shape: Shape) -> usize {
    2 + bytes.div_ceil(u64::from(shape.piece)) as usize
}

impl Vm {
    /// How a request that moves so many bytes is laid out: so that a queue can have it.
    fn draw_shape(&self, bytes: u64, prng: &mut Prng) -> Shape {
        let is_indirect = self.tables && prng.one_in(2);
        let most = if is_indirect { SEGMENTS } else { usize::from(self.size).min(SEGMENTS) };
        let fits = |piece: &u32| descriptors(bytes, Shape { is_indirect, piece: *piece }) <= most;
        let pieces: Vec<u32> = PIECES.into_iter().filter(fits).collect();
        Shape { is_indirect, piece: *prng.pick(&pieces) }
    }
}

/// A hypervisor that connects attaches a volume, for whoever wants to know which attachment is the present one.
struct Attaching<'a> {
    disk: &'a Disk,
    gate: Gate,
    settled: Vec<RequestId>,
    is_there: bool,
}

impl Attaching<'_> {
    /// Nothing, if the volume is used through another agent by now.
    fn begin(disk: &Disk) -> Option<Attaching<'_>> {
        let mut shared = disk.share.borrow_mut();
        let gate = shared.gate_of(disk.at.volume);
        if !gate.is_beside(&disk.gate.get()) {
            return None;
        }
        disk.gate.set(gate);
        let settled = shared.begin_attaching(disk.at.volume, gate);
        drop(shared);
        Some(Attaching { disk, gate, settled, is_there: false })
    }
}

impl Drop for Attaching<'_> {
    fn drop(&mut self) {
        let Attaching { disk, gate, settled, is_there } = self;
        let now = disk.handle.now();
        disk.share.borrow_mut().end_attaching(disk.at.volume, *gate, *is_there, settled, now);
    }
}

/// Has a volume served as a disk at `socket` by an agent; whether it is.
pub async fn serve_disk(share: &Share, at: VolumeLife, agent: usize, socket: &Path) -> bool {
    let Some(door) = share.borrow().door(agent) else { return false };
    let (sender, receiver) = oneshot();
    let serving = (door.serve)(name_of(at.volume), socket.to_owned());
    let serving = async move { sender.send(serving.await) };
    door.handle.spawn(Class::Io, "lab attach", serving).detach();
    let is_served = matches!(receiver.await, Some(Ok(_)));
    let mut shared = share.borrow_mut();
    if is_served && shared.life_of(at.volume) == Some(at) {
        shared.served.insert(socket.to_owned(), at);
    }
    is_served
}
