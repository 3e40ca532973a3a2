//! The workers: each takes the next step of the plan when it has nothing else to do, and writes down what it saw.
//!
//! A client is a machine's worth of workers that share one connection to each volume. When a connection breaks, what
//! was in flight on it has no known outcome; the next worker that needs it attaches again. Accidents are not carried
//! out here, in the middle of a task: they are handed to the run, which has the world in its hands.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use base::{AlignedBuf, Bytes, Instant, Prng, SECTOR};
use control::Manager;
use control::service::CreateVolume;
use runtime::sync::oneshot;
use runtime::{Address, Class, Handle};

use super::coverage::{BusyTime, Coverage};
use super::history::{History, RequestId, VolumeLife, encode};
use super::nbd::{Command, Connection, Gone, NO_HOLE, Reply, TIMEOUT};
use super::plan::{Fault, Order, Plan, Promise, Request, Shape, Step};
use wire::LocalBoxFuture;

/// How long a worker waits before it tries to attach again: each time twice as long, up to a limit.
const ATTACH_PAUSE: Duration = Duration::from_millis(2);
const ATTACH_PAUSE_MAX: Duration = Duration::from_millis(100);
/// How often it tries before it gives the step up: for longer than the longest accident.
const ATTACH_TRIES: u32 = 600;

/// For so long an attachment that nobody waits for any more may still come about: as long as agent and manager try.
const STRAY: Duration = Duration::from_secs(60);
/// How often who has an attachment that is over writes through it, at most.
const GO_ON: usize = 4;
/// Sectors that one read of the last check asks for.
const CHECK_SECTORS: u64 = 256;

/// Error numbers of the protocol.
const EIO: u32 = 5;
const ENOSPC: u32 = 28;
const ESHUTDOWN: u32 = 108;

/// What a volume's name stands for now.
#[derive(Clone, Copy, Default, Debug)]
pub struct Slot {
    /// The id of the volume that has the name, or had it last.
    pub life: u64,
    /// Whether it exists, as far as is known.
    pub exists: bool,
    /// Whether it is being deleted or made.
    pub changing: bool,
    /// Whether a deletion failed that may count after the next start. What is acknowledged from now on settles it.
    pub in_doubt: bool,
    /// The agent that clients use it through.
    pub agent: usize,
    /// How often another one was chosen.
    pub moves: u64,
}

/// Through which life of which agent a volume is used. A store that is one process has one agent, with one life.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Gate {
    /// The agent.
    pub agent: usize,
    /// Counts its lives.
    pub life: u64,
    /// See [`Slot::moves`].
    pub moves: u64,
}

/// An agent, as clients know it.
#[derive(Clone, Debug)]
pub struct Agent {
    /// Where it serves NBD.
    pub address: Address,
    /// Counts its lives: one ends when it is killed.
    pub life: u64,
}

/// An attachment that may still come about, though nobody waits for it any more.
#[derive(Clone, Copy, Debug)]
struct Stray {
    volume: usize,
    gate: Gate,
    /// When it was given up, if it was.
    since: Option<Instant>,
}

/// A store that is up, for whoever asks it for more than I/O.
#[derive(Clone)]
pub struct Running {
    /// Its loop.
    pub handle: Handle,
    /// Who makes and deletes volumes.
    pub manager: Manager,
    /// Whether admission keeps its promises, and how many requests wait.
    pub fairness: Rc<dyn Fn() -> Result<usize, String>>,
    /// Whether overlapping writes come one after the other, and how many are in flight.
    pub order: Rc<dyn Fn() -> Result<usize, String>>,
    /// How many connections each loop has.
    pub connections: Rc<dyn Fn() -> Vec<usize>>,
}

/// What the workers and the run share.
pub struct Shared {
    /// What does not change.
    pub shape: Shape,
    /// What is still to be done.
    pub steps: VecDeque<Step>,
    /// What was asked and answered.
    pub history: History,
    /// What was exercised.
    pub coverage: Coverage,
    /// What the names of volumes stand for.
    pub slots: Vec<Slot>,
    /// The agents.
    pub agents: Vec<Agent>,
    /// Attachments that are being made, or were given up.
    strays: Vec<Stray>,
    /// Through what each volume was attached so far.
    entered: Vec<(usize, Gate)>,
    /// Changes without an answer, and through what they were asked for.
    adrift: Vec<(RequestId, usize, Gate)>,
    /// Clients are told of nothing but the end of their agent, their attachment or their volume.
    pub is_strict: bool,
    /// Accidents that are due, for the run.
    pub accidents: Vec<(Fault, Duration)>,
    /// A clean restart is asked for.
    pub restart_wanted: bool,
    /// The store, while it is up.
    pub store: Option<Running>,
    /// Requests in flight.
    pub in_flight: u64,
    /// Time in which a request or a recovery was in progress.
    pub busy: BusyTime,
    /// Workers that have not finished.
    pub workers: usize,
    /// The disks may refuse or lose something just now, or have since the store started.
    pub errors_allowed: bool,
    /// When the last accident happened, by the clock of the clients.
    pub trouble_at: Instant,
    /// When connections between clients and agents broke, or could.
    pub cut_at: Option<Instant>,
    /// There may be no room.
    pub full_allowed: bool,
    /// The only copy of a log's last records may have vanished without a trace: no store can tell that from a crash
    /// before they were written. Bytes may be older than they should, and still never others.
    pub may_be_older: bool,
    /// The only copy of something may be damaged: a start may be refused for good.
    pub may_refuse: bool,
    /// The store has lost what it needs to start, where that is allowed.
    pub is_given_up: bool,
    /// What was found to be wrong.
    pub violation: Option<String>,
}

/// See [`Shared`].
pub type Share = Rc<RefCell<Shared>>;

impl Shared {
    /// Nothing has happened yet. Volumes are used through these agents.
    pub fn new(plan: &Plan, agents: impl IntoIterator<Item = Address>) -> Shared {
        Shared {
            shape: plan.shape.clone(),
            steps: VecDeque::from(plan.steps.clone()),
            history: History::default(),
            coverage: Coverage::default(),
            slots: vec![Slot::default(); plan.shape.volumes],
            agents: agents.into_iter().map(|address| Agent { address, life: 0 }).collect(),
            strays: Vec::new(),
            entered: Vec::new(),
            adrift: Vec::new(),
            is_strict: false,
            accidents: Vec::new(),
            restart_wanted: false,
            store: None,
            in_flight: 0,
            busy: BusyTime::default(),
            workers: 0,
            errors_allowed: false,
            trouble_at: Instant::ZERO,
            cut_at: None,
            full_allowed: false,
            may_be_older: false,
            may_refuse: false,
            is_given_up: false,
            violation: None,
        }
    }

    /// What was exercised by the end of the world, and what was wrong.
    pub fn conclude(&mut self, now: Instant) -> (Coverage, Option<String>) {
        self.coverage.busy = self.busy.total();
        self.coverage.elapsed = now.since(Instant::ZERO);
        (self.coverage.clone(), self.violation.take())
    }

    /// Writes down the first violation.
    pub fn fail(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.violation.get_or_insert(what);
    }

    /// What a volume's name stands for, if it can be used.
    fn life_of(&self, volume: usize) -> Option<VolumeLife> {
        let slot = self.slots[volume];
        (slot.exists && !slot.changing).then_some(VolumeLife { volume, life: slot.life })
    }

    /// Whether a volume's name stands for one that can be used.
    pub fn is_usable(&self, volume: usize) -> bool {
        self.life_of(volume).is_some()
    }

    /// Through what a volume is used now.
    fn gate_of(&self, volume: usize) -> Gate {
        let Slot { agent, moves, .. } = self.slots[volume];
        Gate { agent, life: self.agents[agent].life, moves }
    }

    /// Whether a volume may be attached through another gate than this one, now or a moment ago.
    fn is_contended(&self, volume: usize, gate: Gate, now: Instant) -> bool {
        let may_come = |stray: &Stray| stray.since.is_none_or(|since| now.since(since) < STRAY);
        // An agent that had the volume before goes on with what it has, until it hears that this has ended.
        let is_old = |of: usize, old: Gate| {
            (of, old.agent, old.life) == (volume, gate.agent, gate.life) && old.moves < gate.moves
        };
        gate != self.gate_of(volume)
            || self.entered.iter().any(|(of, old)| is_old(*of, *old))
            || self.strays.iter().any(|stray| stray.volume == volume && stray.gate != gate && may_come(stray))
    }

    /// An attachment begins. What was asked of the volume through agents that are dead now will have happened when it is
    /// there, or never will.
    fn begin_attaching(&mut self, volume: usize, gate: Gate) -> Vec<RequestId> {
        self.strays.push(Stray { volume, gate, since: None });
        if !self.entered.contains(&(volume, gate)) {
            self.entered.push((volume, gate));
        }
        let agents = &self.agents;
        let is_over = |gate: &Gate| agents[gate.agent].life != gate.life;
        self.adrift.iter().filter(|(_, of, gate)| *of == volume && is_over(gate)).map(|(id, ..)| *id).collect()
    }

    fn end_attaching(&mut self, volume: usize, gate: Gate, is_there: bool, settled: &[RequestId], now: Instant) {
        let begun = |stray: &Stray| stray.volume == volume && stray.gate == gate && stray.since.is_none();
        let Some(at) = self.strays.iter().position(begun) else { return };
        match is_there {
            true => drop(self.strays.swap_remove(at)),
            false => self.strays[at].since = Some(now),
        }
        if is_there && gate != self.gate_of(volume) {
            // It has ended whatever was attached meanwhile.
            self.slots[volume].moves += 1;
        }
        self.strays.retain(|stray| stray.since.is_none_or(|since| now.since(since) < STRAY));
        if is_there && !settled.is_empty() {
            self.adrift.retain(|(id, ..)| !settled.contains(id));
            self.history.on_settled(settled);
        }
    }
}

/// The name of a volume.
pub fn name_of(volume: usize) -> String {
    format!("v{volume}")
}

/// A connection, which life of the volume it is to, and through what.
#[derive(Clone)]
struct Attachment {
    life: u64,
    gate: Gate,
    connection: Rc<Connection>,
    /// Whether a change came through it: then those before it are over.
    is_proven: Rc<Cell<bool>>,
}

impl Attachment {
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
    /// By volume.
    connections: RefCell<Vec<Option<Attachment>>>,
    /// By volume: the one before, through another agent, which a change had come through.
    former: RefCell<Vec<Option<Attachment>>>,
    errands: RefCell<Option<Rc<dyn Errands>>>,
}

impl Client {
    /// A client that has not attached yet.
    pub fn new(handle: &Handle, share: &Share) -> Rc<Client> {
        let volumes = share.borrow().slots.len();
        let none = || RefCell::new((0..volumes).map(|_| None).collect());
        let (connections, former) = (none(), none());
        let (handle, share) = (handle.clone(), share.clone());
        Rc::new(Client { handle, share, connections, former, errands: RefCell::default() })
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
                Step::Reattach => self.connections.borrow_mut().iter_mut().for_each(|one| *one = None),
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
        let Attachment { life, gate, connection, is_proven } = attachment;
        let at = VolumeLife { volume, life };
        let way = Way { at, gate };
        let in_doubt = {
            let mut shared = self.share.borrow_mut();
            shared.in_flight += 1;
            shared.busy.begin(self.handle.now());
            shared.slots[volume].in_doubt
        };
        let is_done = match request {
            Request::Read(sectors) => self.read(&connection, way, sectors.clone()).await,
            Request::Write(sectors) => self.write(&connection, way, sectors.clone()).await,
            Request::Discard(sectors) => self.zero(&connection, way, sectors.clone(), Command::Trim, 0).await,
            Request::WriteZeroes { range, allocate } => {
                let flags = if *allocate { NO_HOLE } else { 0 };
                self.zero(&connection, way, range.clone(), Command::WriteZeroes, flags).await
            }
            Request::Flush => {
                let outcome = connection.ask(Command::Flush, 0, 0, 0, Bytes::new()).await;
                self.judge("a flush", way, &outcome);
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
        let Some(store) = shared.store.clone() else { return };
        match (store.fairness)() {
            Err(what) => shared.fail(format!("admission: {what}")),
            Ok(waiting) => shared.coverage.throttled += u64::from(waiting > 0),
        }
        match (store.order)() {
            Err(what) => shared.fail(format!("the order of writes: {what}")),
            Ok(writes) => shared.coverage.ordered += u64::from(writes > 1),
        }
        let busy_loops = (store.connections)().iter().filter(|count| **count > 0).count();
        shared.coverage.spread += u64::from(busy_loops > 1);
    }

    /// Says whether it was answered with data, as the others do.
    async fn read(&self, connection: &Connection, way: Way, sectors: Range<u64>) -> bool {
        let id = self.share.borrow_mut().history.begin_read(way.at, sectors.clone());
        let (offset, len) = bytes_of(&sectors);
        let outcome = connection.ask(Command::Read, 0, offset, len, Bytes::new()).await;
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

    async fn write(&self, connection: &Connection, way: Way, sectors: Range<u64>) -> bool {
        let id = self.share.borrow_mut().history.begin_write(way.at, sectors.clone());
        let (offset, len) = bytes_of(&sectors);
        let mut data = AlignedBuf::zeroed(len as usize);
        for (sector, out) in sectors.clone().zip(data.chunks_exact_mut(SECTOR as usize)) {
            encode(id, way.at, sector, out);
        }
        let outcome = connection.ask(Command::Write, 0, offset, len, data.freeze()).await;
        self.conclude("a write", way, id, outcome)
    }

    async fn zero(&self, connection: &Connection, way: Way, sectors: Range<u64>, command: Command, flags: u16) -> bool {
        let id = self.share.borrow_mut().history.begin_zeros(way.at, sectors.clone());
        let (offset, len) = bytes_of(&sectors);
        let outcome = connection.ask(command, flags, offset, len, Bytes::new()).await;
        self.conclude(if command == Command::Trim { "a discard" } else { "a write of zeros" }, way, id, outcome)
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
            let life = self.share.borrow().life_of(volume);
            if let Some(at) = life {
                let gate = self.share.borrow().gate_of(volume);
                let present = self.connections.borrow()[volume].clone();
                match present {
                    Some(there) if (there.life, there.gate) == (at.life, gate) && !there.connection.is_broken() => {
                        return Some(there);
                    }
                    _ => {}
                }
                if let Some(connection) = self.attach(at, gate).await {
                    let there = Attachment { life: at.life, gate, connection, is_proven: Rc::default() };
                    let before = self.connections.borrow_mut()[volume].replace(there.clone());
                    let before = before.filter(|before| before.is_proven.get() && before.is_beside(&there));
                    if before.is_some() {
                        self.former.borrow_mut()[volume] = before;
                    }
                    return Some(there);
                }
            }
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
    async fn attach(&self, at: VolumeLife, gate: Gate) -> Option<Rc<Connection>> {
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
        Some(connection)
    }

    /// A change has come through the present attachment of a volume: then the one before is over, and whoever has it and
    /// goes on finds that out.
    fn let_go_on(self: &Rc<Self>, volume: usize) {
        let present = self.connections.borrow()[volume].clone().filter(|present| present.is_proven.get());
        let is_over = present.is_some_and(|present| {
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
            if former.connection.is_broken() || self.share.borrow().violation.is_some() {
                return;
            }
            let sectors = self.share.borrow().shape.draw_range(&mut prng, 8);
            if self.write(&former.connection, way, sectors).await {
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
