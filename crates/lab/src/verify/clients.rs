//! The workers: each takes the next step of the plan when it has nothing else to do, and writes down what it saw.
//!
//! A client is a machine's worth of workers that share one connection to each volume. When a connection breaks, what
//! was in flight on it has no known outcome; the next worker that needs it attaches again. Some clients are virtual
//! machines on the store's machine, with a disk for each volume ([`Disk`]) instead of a connection. Accidents are not carried
//! out here, in the middle of a task: they are handed to the run, which has the world in its hands.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use base::{AlignedBuf, Bytes, Prng, SECTOR};
use control::Manager;
use control::service::CreateVolume;
use runtime::sync::{Budget, oneshot};
use runtime::{Class, Handle};
use wire::LocalBoxFuture;

use super::disk::{Disk, serve_disk};
use super::history::{RequestId, VolumeLife, encode};
use super::link::Link;
use super::nbd::{Command, Connection, Gone, NO_HOLE, Reply, TIMEOUT, UNNAMED};
use super::plan::{Order, Promise, Request, Step, Vm};
use super::shared::{Gate, Running, Share, Slot, name_of};

/// How long a worker waits before it tries to attach again: each time twice as long, up to a limit.
const ATTACH_PAUSE: Duration = Duration::from_millis(2);
const ATTACH_PAUSE_MAX: Duration = Duration::from_millis(100);
/// How often it tries before it gives the step up: for longer than the longest accident.
const ATTACH_TRIES: u32 = 600;

/// How often who has an attachment that is over writes through it, at most.
const GO_ON: usize = 4;
/// Sectors that one read of the last check asks for.
const CHECK_SECTORS: u64 = 256;

/// Error numbers of the protocol.
const EIO: u32 = 5;
const ENOSPC: u32 = 28;
const ESHUTDOWN: u32 = 108;

/// A link, which life of the volume it is to, and through what.
#[derive(Clone)]
struct Attachment {
    life: u64,
    gate: Gate,
    link: Link,
    /// Whether a change came through it: then those before it are over.
    is_proven: Rc<Cell<bool>>,
}

impl Attachment {
    /// Whether it is what a volume is to be used through. A virtual machine outlives its agent.
    fn is_present(&self, at: VolumeLife, gate: Gate) -> bool {
        let is_there = if self.link.disk().is_some() { self.gate.is_beside(&gate) } else { self.gate == gate };
        self.life == at.life && is_there && !self.link.is_broken()
    }

    /// Whether the two go through different lives of agents, which have different attachments of the volume.
    fn is_beside(&self, other: &Attachment) -> bool {
        self.life == other.life && (self.gate.agent, self.gate.life) != (other.gate.agent, other.gate.life)
    }
}

/// What a request is for, and through what it goes.
#[derive(Clone, Copy)]
struct Way {
    at: VolumeLife,
    gate: Gate,
}

impl Way {
    /// The same, through what the link is used by now.
    fn through(self, link: &Link) -> Way {
        Way { gate: link.gate(self.gate), ..self }
    }
}

/// What a worker is told to do that is not a request.
pub trait Errands {
    /// Does what a person asks of several servers.
    fn carry(&self, order: Order) -> LocalBoxFuture<'_, ()>;

    /// Deletes a volume and makes another one of the same name.
    fn replace(&self, volume: usize) -> LocalBoxFuture<'_, ()>;
}

/// A machine that uses the store.
pub struct Client {
    handle: Handle,
    share: Share,
    number: usize,
    /// What its disks are like, if it is a virtual machine.
    vm: Option<Vm>,
    /// One disk of it is plugged in at a time.
    plugging: Budget,
    /// By volume.
    connections: RefCell<Vec<Option<Attachment>>>,
    /// By volume: the one before, through another agent, which a change had come through.
    former: RefCell<Vec<Option<Attachment>>>,
    errands: RefCell<Option<Rc<dyn Errands>>>,
}

impl Client {
    /// The client of that number, which has not attached yet.
    pub fn new(handle: &Handle, share: &Share, number: usize) -> Rc<Client> {
        let volumes = share.borrow().slots.len();
        let vm = share.borrow().shape.vms.get(number).copied().flatten();
        share.borrow_mut().coverage.guests += u64::from(vm.is_some());
        let none = || RefCell::new((0..volumes).map(|_| None).collect());
        Rc::new(Client {
            handle: handle.clone(),
            share: share.clone(),
            number,
            vm,
            plugging: Budget::new(1),
            connections: none(),
            former: none(),
            errands: RefCell::default(),
        })
    }

    /// How many workers it has.
    pub fn depth(&self) -> usize {
        self.vm.map_or(self.share.borrow().shape.depth, |vm| vm.depth)
    }

    fn disks(&self) -> Vec<Rc<Disk>> {
        let connections = self.connections.borrow();
        connections.iter().flatten().filter_map(|attachment| attachment.link.disk().cloned()).collect()
    }

    /// An agent's process has ended: see [`Disk::on_end_of_process`].
    pub fn on_end_of_process(&self, agent: usize) -> Vec<(RequestId, usize, Gate)> {
        let disks = self.disks().into_iter().filter(|disk| disk.gate().agent == agent);
        disks.flat_map(|disk| disk.on_end_of_process()).collect()
    }

    /// The machine on which an agent runs has lost its power: so have virtual machines there.
    pub fn on_power_loss(&self, agent: usize) {
        self.disks().iter().filter(|disk| disk.gate().agent == agent).for_each(|disk| disk.unplug());
    }

    /// Ends all that it has.
    pub fn leave(&self) {
        self.disks().iter().for_each(|disk| disk.unplug());
        self.connections.borrow_mut().fill(None);
        self.former.borrow_mut().fill(None);
    }

    /// Its connections close, and it attaches again when it needs to; to the disks of a virtual machine something happens.
    fn reattach(&self) {
        match self.vm {
            Some(_) => self.disks().iter().for_each(|disk| disk.disturb()),
            None => self.connections.borrow_mut().fill(None),
        }
    }

    /// Where several servers are, who does what is asked of them.
    pub fn set_errands(&self, errands: Rc<dyn Errands>) {
        *self.errands.borrow_mut() = Some(errands);
    }

    /// Its loop.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Takes steps until there are none.
    pub async fn work(self: Rc<Self>) {
        loop {
            let step = {
                let mut shared = self.share.borrow_mut();
                match shared.violation {
                    Some(_) => None,
                    None => shared.steps.pop_front(),
                }
            };
            let Some(step) = step else { break };
            match step {
                Step::Ask { volume, request } => {
                    self.ask(volume, &request).await;
                    self.let_go_on(volume);
                }
                Step::Idle(span) => self.handle.sleep(span).await,
                Step::Reattach => self.reattach(),
                Step::Replace(volume) => {
                    let errands = self.errands.borrow().clone();
                    match errands {
                        None => self.replace(volume).await,
                        Some(errands) => errands.replace(volume).await,
                    }
                }
                Step::Order(order) => {
                    let errands = self.errands.borrow().clone();
                    if let Some(errands) = errands {
                        errands.carry(order).await;
                    }
                }
                Step::Restart => self.share.borrow_mut().restart_wanted = true,
                Step::Accident { fault, after } => self.share.borrow_mut().accidents.push((fault, after)),
            }
        }
        self.share.borrow_mut().workers -= 1;
    }

    /// Asks for something and writes down what came of it.
    pub async fn ask(&self, volume: usize, request: &Request) {
        let Some(attachment) = self.attached(volume).await else { return };
        let Attachment { life, gate, link, is_proven } = attachment;
        let at = VolumeLife { volume, life };
        let way = Way { at, gate };
        let in_doubt = {
            let mut shared = self.share.borrow_mut();
            shared.in_flight += 1;
            shared.busy.begin(self.handle.now());
            shared.slots[volume].in_doubt
        };
        let is_done = match request {
            Request::Read(sectors) => self.read(&link, way, sectors.clone()).await,
            Request::Write(sectors) => self.write(&link, way, sectors.clone()).await,
            Request::Discard(sectors) => self.zero(&link, way, sectors.clone(), Command::Trim, 0).await,
            Request::WriteZeroes { range, allocate } => {
                let flags = if *allocate { NO_HOLE } else { 0 };
                self.zero(&link, way, range.clone(), Command::WriteZeroes, flags).await
            }
            Request::Flush => {
                let outcome = link.ask(None, Command::Flush, 0, (0, 0), Bytes::new()).await;
                self.judge("a flush", way.through(&link), &outcome);
                matches!(outcome, Ok(Reply::Done(_)))
            }
        };
        // One that is over may still be answered, by an owner that is: what was.
        if is_done && !matches!(request, Request::Read(_) | Request::Flush) {
            is_proven.set(true);
        }
        let mut shared = self.share.borrow_mut();
        shared.in_flight -= 1;
        shared.busy.end(self.handle.now());
        if is_done && in_doubt && shared.slots[volume].life == at.life {
            shared.slots[volume].in_doubt = false;
        }
        shared.audit_agents();
        let Some(store) = shared.store.clone() else { return };
        match (store.order)() {
            Err(what) => shared.fail(format!("the order of writes: {what}")),
            Ok(writes) => shared.coverage.ordered += u64::from(writes > 1),
        }
        let busy_loops = (store.connections)().iter().filter(|count| **count > 0).count();
        shared.coverage.spread += u64::from(busy_loops > 1);
    }

    /// Says whether it was answered with data, as the others do.
    async fn read(&self, link: &Link, way: Way, sectors: Range<u64>) -> bool {
        let id = self.share.borrow_mut().history.begin_read(way.at, sectors.clone());
        let outcome = link.ask(None, Command::Read, 0, bytes_of(&sectors), Bytes::new()).await;
        let way = way.through(link);
        self.judge("a read", way, &outcome);
        let mut shared = self.share.borrow_mut();
        match outcome {
            Ok(Reply::Done(data)) => {
                shared.coverage.requests += 1;
                if let Err(what) = shared.history.end_read(id, &data) {
                    shared.fail(what);
                }
                true
            }
            _ => {
                shared.history.drop_read(id);
                false
            }
        }
    }

    async fn write(&self, link: &Link, way: Way, sectors: Range<u64>) -> bool {
        let id = self.share.borrow_mut().history.begin_write(way.at, sectors.clone());
        let bytes = bytes_of(&sectors);
        let mut data = AlignedBuf::zeroed(bytes.1 as usize);
        for (sector, out) in sectors.clone().zip(data.chunks_exact_mut(SECTOR as usize)) {
            encode(id, way.at, sector, out);
        }
        let outcome = link.ask(Some(id), Command::Write, 0, bytes, data.freeze()).await;
        self.conclude("a write", way.through(link), id, outcome)
    }

    async fn zero(&self, link: &Link, way: Way, sectors: Range<u64>, command: Command, flags: u16) -> bool {
        let id = self.share.borrow_mut().history.begin_zeros(way.at, sectors.clone());
        let outcome = link.ask(Some(id), command, flags, bytes_of(&sectors), Bytes::new()).await;
        let what = if command == Command::Trim { "a discard" } else { "a write of zeros" };
        self.conclude(what, way.through(link), id, outcome)
    }

    fn conclude(&self, what: &str, way: Way, id: RequestId, outcome: Result<Reply, Gone>) -> bool {
        self.judge(what, way, &outcome);
        let mut shared = self.share.borrow_mut();
        match outcome {
            Ok(Reply::Done(_)) => {
                shared.coverage.requests += 1;
                shared.history.on_done(id);
                true
            }
            Err(Gone::NotBegun) => {
                shared.history.on_refused(id);
                false
            }
            // Parts of it may have happened, and an append that failed may be found by the next recovery.
            Ok(Reply::Failed(_)) | Err(_) => {
                shared.history.on_unknown(id);
                if shared.is_strict {
                    shared.adrift.push((id, way.at.volume, way.gate));
                }
                false
            }
        }
    }

    /// Whether an error was due.
    fn judge(&self, what: &str, way: Way, outcome: &Result<Reply, Gone>) {
        let Way { at, gate } = way;
        let mut shared = self.share.borrow_mut();
        let now = self.handle.now();
        let name = name_of(at.volume);
        let is_current = shared.life_of(at.volume) == Some(at);
        let is_excused = !shared.is_strict || !is_current || shared.is_contended(at.volume, gate, now);
        let Ok(Reply::Failed(errno)) = outcome else {
            shared.coverage.broken_requests += u64::from(outcome.is_err());
            let is_quiet = now.since(shared.trouble_at) > 2 * TIMEOUT;
            match outcome {
                Err(Gone::TimedOut) if is_quiet => {
                    shared.fail(format!("{what} of volume {name} had no answer within {TIMEOUT:?}"));
                }
                Err(Gone::Broken) if !is_excused && shared.cut_at.is_none_or(|cut| now.since(cut) > TIMEOUT) => {
                    shared.fail(format!("{what} of volume {name} lost its connection, though its agent lives"));
                }
                _ => {}
            }
            return;
        };
        shared.coverage.failed_requests += 1;
        let excused = match *errno {
            ENOSPC => shared.full_allowed || shared.errors_allowed,
            EIO => shared.errors_allowed,
            ESHUTDOWN => is_excused,
            // A deletion that failed has ended its attachment.
            UNNAMED if !shared.is_strict => {
                shared.full_allowed || shared.errors_allowed || shared.slots[at.volume].in_doubt
            }
            UNNAMED => is_excused || shared.errors_allowed,
            _ => false,
        };
        if !excused && is_current {
            shared.fail(format!("{what} of volume {name} was refused with error {errno}, and nothing was wrong"));
        }
    }

    /// A connection to what the volume's name stands for now.
    async fn attached(&self, volume: usize) -> Option<Attachment> {
        let mut pause = ATTACH_PAUSE;
        for _ in 0..ATTACH_TRIES {
            if self.share.borrow().violation.is_some() || self.share.borrow().is_given_up {
                return None;
            }
            let plugging = self.vm.is_some().then(|| self.plugging.take(1));
            let alone = match plugging {
                Some(turn) => Some(turn.await),
                None => None,
            };
            let life = self.share.borrow().life_of(volume);
            if let Some(at) = life {
                let gate = self.share.borrow().gate_of(volume);
                let present = self.connections.borrow()[volume].clone();
                match present {
                    Some(there) if there.is_present(at, gate) => return Some(there),
                    // A machine is ended before another one may connect in its place.
                    there => there.iter().filter_map(|there| there.link.disk()).for_each(|disk| disk.unplug()),
                }
                if let Some(link) = self.attach(at, gate).await {
                    let there = Attachment { life: at.life, gate, link, is_proven: Rc::default() };
                    let before = self.connections.borrow_mut()[volume].replace(there.clone());
                    let before = before.filter(|before| before.is_proven.get() && before.is_beside(&there));
                    if before.is_some() {
                        self.former.borrow_mut()[volume] = before;
                    }
                    return Some(there);
                }
            }
            drop(alone);
            self.handle.sleep(pause).await;
            pause = (pause * 2).min(ATTACH_PAUSE_MAX);
        }
        let mut shared = self.share.borrow_mut();
        match shared.shape.promise {
            Promise::Flawless => shared.fail(format!("nobody could attach to volume v{volume} for long")),
            // What was open on a disk that went away stays dead: the operator starts the store again.
            Promise::NothingLost | Promise::NeverWrong => shared.restart_wanted = true,
        }
        None
    }

    /// Attaches anew.
    async fn attach(&self, at: VolumeLife, gate: Gate) -> Option<Link> {
        if let Some(vm) = self.vm {
            return self.plug(at, gate, vm).await;
        }
        let volume = at.volume;
        let (address, settled) = {
            let mut shared = self.share.borrow_mut();
            (shared.agents[gate.agent].address.clone(), shared.begin_attaching(volume, gate))
        };
        let attached = Connection::attach(&self.handle, &address, &name_of(volume)).await;
        let mut shared = self.share.borrow_mut();
        shared.end_attaching(volume, gate, attached.is_ok(), &settled, self.handle.now());
        // The name may stand for another volume by now, or be used elsewhere.
        let is_wanted = shared.life_of(volume) == Some(at) && shared.gate_of(volume) == gate;
        let connection = attached.ok().filter(|_| is_wanted)?;
        shared.coverage.attachments += 1;
        Some(Link::Nbd(connection))
    }

    /// Gets a disk.
    async fn plug(&self, at: VolumeLife, gate: Gate, vm: Vm) -> Option<Link> {
        let socket = PathBuf::from(format!("/run/vm{}-{}.sock", self.number, name_of(at.volume)));
        let is_served = serve_disk(&self.share, at, gate.agent, &socket).await;
        let mut shared = self.share.borrow_mut();
        // The name may stand for another volume by now, or be used elsewhere.
        let is_wanted = shared.life_of(at.volume) == Some(at) && shared.gate_of(at.volume).is_beside(&gate);
        if !is_served || !is_wanted {
            return None;
        }
        shared.coverage.attachments += 1;
        drop(shared);
        Some(Link::Disk(Disk::plug(&self.handle, &self.share, (at, gate), &socket, vm)))
    }

    /// A change has come through the present attachment of a volume: then the one before is over, and whoever has it and
    /// goes on finds that out.
    fn let_go_on(self: &Rc<Self>, volume: usize) {
        let present = self.connections.borrow()[volume].clone().filter(|present| present.is_proven.get());
        let is_over = self.vm.is_none()
            && present.is_some_and(|present| {
                let former = self.former.borrow();
                former[volume].as_ref().is_some_and(|former| former.is_beside(&present))
            });
        let former = is_over.then(|| self.former.borrow_mut()[volume].take()).flatten();
        if let Some(former) = former.filter(|_| self.share.borrow().is_strict) {
            self.share.borrow_mut().workers += 1;
            let client = self.clone();
            let going_on = async move {
                client.go_on(volume, former).await;
                client.share.borrow_mut().workers -= 1;
            };
            self.handle.spawn(Class::Io, "lab former holder", going_on).detach();
        }
    }

    /// What somebody does whose attachment is over, with the present one.
    #[cfg(test)]
    pub(super) async fn go_on_as_if_over(&self, volume: usize) {
        let present = self.connections.borrow()[volume].clone();
        self.go_on(volume, present.expect("it is attached")).await;
    }

    /// Writes through an attachment that is over, until it is told so: nothing of that may be done (rule 47 of
    /// docs/SAFETY.md).
    async fn go_on(&self, volume: usize, former: Attachment) {
        let mut prng = Prng::new(self.handle.random_u64());
        let way = Way { at: VolumeLife { volume, life: former.life }, gate: former.gate };
        for _ in 0..GO_ON {
            if former.link.is_broken() || self.share.borrow().violation.is_some() {
                return;
            }
            let sectors = self.share.borrow().shape.draw_range(&mut prng, 8);
            if self.write(&former.link, way, sectors).await {
                let what = format!("volume v{volume} was written through {:?}, which was over", former.gate);
                return self.share.borrow_mut().fail(what);
            }
        }
    }

    /// Reads all that was ever written, and writes once more.
    pub async fn read_everything(&self) {
        let (sectors, volumes) = {
            let shape = &self.share.borrow().shape;
            (shape.sectors.clone(), shape.volumes)
        };
        for volume in 0..volumes {
            let mut at = sectors.start;
            while at < sectors.end {
                let end = (at + CHECK_SECTORS).min(sectors.end);
                self.ask(volume, &Request::Read(at..end)).await;
                at = end;
            }
            self.ask(volume, &Request::Write(sectors.start..sectors.start + 1)).await;
            self.ask(volume, &Request::Read(sectors.start..sectors.start + 1)).await;
        }
    }

    /// Deletes a volume and makes it anew. Whatever is left undone is done by [`reconcile`] in the next life.
    async fn replace(&self, volume: usize) {
        let store = {
            let mut shared = self.share.borrow_mut();
            if shared.life_of(volume).is_none() {
                return;
            }
            let Some(store) = shared.store.clone() else { return };
            shared.slots[volume].changing = true;
            store
        };
        let Running { handle, manager, .. } = store;
        let (sender, receiver) = oneshot();
        let share = self.share.clone();
        let replacing = async move {
            match manager.delete(&name_of(volume), true).await {
                Ok(_) => {
                    share.borrow_mut().slots[volume].exists = false;
                    share.borrow_mut().coverage.deletions += 1;
                }
                Err(error) => {
                    tracing::debug!(%error, "a volume was not deleted");
                    share.borrow_mut().slots[volume].in_doubt = true;
                }
            }
            reconcile(&share, &manager, volume).await;
            sender.send(());
        };
        handle.spawn(Class::Io, "lab replace", replacing).detach();
        receiver.await;
    }
}

/// Makes a volume if there is none of its name, and learns what the name stands for.
pub async fn reconcile(share: &Share, manager: &Manager, volume: usize) {
    let (bytes, levels) = {
        let shape = &share.borrow().shape;
        (shape.volume_bytes, shape.levels)
    };
    let view = match manager.show(&name_of(volume)) {
        Ok(view) => Ok(view),
        Err(_) => {
            let wanted = CreateVolume { levels, ..CreateVolume::new(name_of(volume), bytes) };
            manager.create(wanted).await.map(|(view, _)| view)
        }
    };
    let mut shared = share.borrow_mut();
    let Slot { exists, changing, .. } = shared.slots[volume];
    let is_settled = exists && !changing;
    shared.slots[volume].exists = view.is_ok();
    shared.slots[volume].changing = false;
    match view {
        Ok(view) if view.row.id.0 < shared.slots[volume].life && !shared.may_be_older => {
            shared.fail(format!("volume v{volume} was made again under an older id, {}", view.row.id));
        }
        Ok(view) if is_settled && view.row.id.0 != shared.slots[volume].life && !shared.may_be_older => {
            shared.fail(format!("volume v{volume} was gone, and nobody had deleted it"));
        }
        Ok(view) => shared.slots[volume].life = view.row.id.0,
        // The next start tries again.
        Err(_) if shared.errors_allowed || shared.full_allowed || shared.store.is_none() => {}
        Err(error) => shared.fail(format!("volume v{volume} cannot be made: {error}")),
    }
}

fn bytes_of(sectors: &Range<u64>) -> (u64, u32) {
    (sectors.start * SECTOR, ((sectors.end - sectors.start) * SECTOR) as u32)
}
