//! The workers: each takes the next step of the plan when it has nothing else to do, and writes down what it saw.
//!
//! A client is a machine's worth of workers that share one connection to each volume. When a connection breaks, what
//! was in flight on it has no known outcome; the next worker that needs it attaches again. Accidents are not carried
//! out here, in the middle of a task: they are handed to the run, which has the world in its hands.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use base::{AlignedBuf, Bytes, Instant, SECTOR};
use control::Manager;
use control::service::CreateVolume;
use runtime::sync::oneshot;
use runtime::{Address, Class, Handle};

use super::coverage::{BusyTime, Coverage};
use super::history::{History, RequestId, VolumeLife, encode};
use super::nbd::{Command, Connection, Gone, NO_HOLE, Reply, TIMEOUT};
use super::plan::{Fault, Promise, Request, Shape, Step};

/// How long a worker waits before it tries to attach again: each time twice as long, up to a limit.
const ATTACH_PAUSE: Duration = Duration::from_millis(2);
const ATTACH_PAUSE_MAX: Duration = Duration::from_millis(100);
/// How often it tries before it gives the step up: for longer than the longest accident.
const ATTACH_TRIES: u32 = 600;

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
}

/// The name of a volume.
pub fn name_of(volume: usize) -> String {
    format!("v{volume}")
}

/// A connection, and which life of the volume it is to.
type Attachment = (u64, Rc<Connection>);

/// A machine that uses the store.
pub struct Client {
    handle: Handle,
    address: Address,
    share: Share,
    /// By volume.
    connections: RefCell<Vec<Option<Attachment>>>,
}

impl Client {
    /// A client that has not attached yet.
    pub fn new(handle: &Handle, address: &Address, share: &Share) -> Rc<Client> {
        let volumes = share.borrow().slots.len();
        let connections = RefCell::new((0..volumes).map(|_| None).collect());
        Rc::new(Client { handle: handle.clone(), address: address.clone(), share: share.clone(), connections })
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
                Step::Ask { volume, request } => self.ask(volume, &request).await,
                Step::Idle(span) => self.handle.sleep(span).await,
                Step::Reattach => self.connections.borrow_mut().iter_mut().for_each(|one| *one = None),
                Step::Replace(volume) => self.replace(volume).await,
                Step::Restart => self.share.borrow_mut().restart_wanted = true,
                Step::Accident { fault, after } => self.share.borrow_mut().accidents.push((fault, after)),
            }
        }
        self.share.borrow_mut().workers -= 1;
    }

    /// Asks for something and writes down what came of it.
    pub async fn ask(&self, volume: usize, request: &Request) {
        let Some((at, connection)) = self.attached(volume).await else { return };
        let in_doubt = {
            let mut shared = self.share.borrow_mut();
            shared.in_flight += 1;
            shared.busy.begin(self.handle.now());
            shared.slots[volume].in_doubt
        };
        let is_done = match request {
            Request::Read(sectors) => self.read(&connection, at, sectors.clone()).await,
            Request::Write(sectors) => self.write(&connection, at, sectors.clone()).await,
            Request::Discard(sectors) => self.zero(&connection, at, sectors.clone(), Command::Trim, 0).await,
            Request::WriteZeroes { range, allocate } => {
                let flags = if *allocate { NO_HOLE } else { 0 };
                self.zero(&connection, at, range.clone(), Command::WriteZeroes, flags).await
            }
            Request::Flush => {
                let outcome = connection.ask(Command::Flush, 0, 0, 0, Bytes::new()).await;
                self.judge("a flush", at, &outcome);
                matches!(outcome, Ok(Reply::Done(_)))
            }
        };
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
    async fn read(&self, connection: &Connection, at: VolumeLife, sectors: Range<u64>) -> bool {
        let id = self.share.borrow_mut().history.begin_read(at, sectors.clone());
        let (offset, len) = bytes_of(&sectors);
        let outcome = connection.ask(Command::Read, 0, offset, len, Bytes::new()).await;
        self.judge("a read", at, &outcome);
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

    async fn write(&self, connection: &Connection, at: VolumeLife, sectors: Range<u64>) -> bool {
        let id = self.share.borrow_mut().history.begin_write(at, sectors.clone());
        let (offset, len) = bytes_of(&sectors);
        let mut data = AlignedBuf::zeroed(len as usize);
        for (sector, out) in sectors.clone().zip(data.chunks_exact_mut(SECTOR as usize)) {
            encode(id, at, sector, out);
        }
        let outcome = connection.ask(Command::Write, 0, offset, len, data.freeze()).await;
        self.conclude("a write", at, id, outcome)
    }

    async fn zero(
        &self,
        connection: &Connection,
        at: VolumeLife,
        sectors: Range<u64>,
        command: Command,
        flags: u16,
    ) -> bool {
        let id = self.share.borrow_mut().history.begin_zeros(at, sectors.clone());
        let (offset, len) = bytes_of(&sectors);
        let outcome = connection.ask(command, flags, offset, len, Bytes::new()).await;
        self.conclude(if command == Command::Trim { "a discard" } else { "a write of zeros" }, at, id, outcome)
    }

    fn conclude(&self, what: &str, at: VolumeLife, id: RequestId, outcome: Result<Reply, Gone>) -> bool {
        self.judge(what, at, &outcome);
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
                false
            }
        }
    }

    /// Whether an error was due.
    fn judge(&self, what: &str, at: VolumeLife, outcome: &Result<Reply, Gone>) {
        let mut shared = self.share.borrow_mut();
        let Ok(Reply::Failed(errno)) = outcome else {
            shared.coverage.broken_requests += u64::from(outcome.is_err());
            if *outcome == Err(Gone::TimedOut) && self.handle.now().since(shared.trouble_at) > 2 * TIMEOUT {
                shared.fail(format!("{what} of volume v{} had no answer within {TIMEOUT:?}", at.volume));
            }
            return;
        };
        shared.coverage.failed_requests += 1;
        let is_current = shared.life_of(at.volume) == Some(at);
        let excused = match *errno {
            ENOSPC => shared.full_allowed || shared.errors_allowed,
            EIO => shared.errors_allowed,
            ESHUTDOWN => true,
            _ => false,
        };
        if !excused && is_current {
            shared
                .fail(format!("{what} of volume v{} was refused with error {errno}, and nothing was wrong", at.volume));
        }
    }

    /// A connection to what the volume's name stands for now.
    async fn attached(&self, volume: usize) -> Option<(VolumeLife, Rc<Connection>)> {
        let mut pause = ATTACH_PAUSE;
        for _ in 0..ATTACH_TRIES {
            if self.share.borrow().violation.is_some() || self.share.borrow().is_given_up {
                return None;
            }
            let life = self.share.borrow().life_of(volume);
            if let Some(at) = life {
                let present = self.connections.borrow()[volume].clone();
                match present {
                    Some((life, connection)) if life == at.life && !connection.is_broken() => {
                        return Some((at, connection));
                    }
                    _ => {}
                }
                let attached = Connection::attach(&self.handle, &self.address, &name_of(volume)).await;
                // The name may stand for another volume by now.
                if let Ok(connection) = attached
                    && self.share.borrow().life_of(volume) == Some(at)
                {
                    self.share.borrow_mut().coverage.attachments += 1;
                    self.connections.borrow_mut()[volume] = Some((at.life, connection.clone()));
                    return Some((at, connection));
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
