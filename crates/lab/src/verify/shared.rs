//! What the workers and the run of a world share: what is still to be done, what happened, what names of volumes stand for.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use agent::AgentStatistics;
use base::{Instant, Result};
use control::Manager;
use runtime::{Address, Handle};
use wire::LocalBoxFuture;

use super::coverage::{BusyTime, Coverage};
use super::history::{History, RequestId, VolumeLife};
use super::plan::{Fault, Plan, Shape, Step};

/// For so long an attachment that nobody waits for any more may still come about: as long as agent and manager try.
const STRAY: Duration = Duration::from_secs(60);

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
    /// Whether overlapping writes come one after the other, and how many are in flight.
    pub order: Rc<dyn Fn() -> Result<usize, String>>,
    /// How many connections each loop has.
    pub connections: Rc<dyn Fn() -> Vec<usize>>,
}

/// What virtual machines need of an agent, and of the machine that it runs on.
#[derive(Clone)]
pub struct Door {
    /// A loop of another process there: who connects has to be on the same machine.
    pub beside: Handle,
    /// The agent's loop.
    pub handle: Handle,
    /// Has a volume served as a disk at a path; to be called on the agent's loop.
    pub serve: Rc<dyn Fn(String, PathBuf) -> LocalBoxFuture<'static, Result<()>>>,
    /// What the agent counts.
    pub statistics: Rc<dyn Fn() -> AgentStatistics>,
    /// Whether admission keeps its promises, and how many requests wait: of the agent's tenants
    /// ([`agent::Agent::audit_tenants`]), and of the whole store, where that is one process.
    pub audit: Rc<dyn Fn() -> Result<usize, String>>,
    /// Writes of its clients that wait in logs.
    pub logged: Rc<dyn Fn() -> usize>,
}

/// By agent, while it runs.
pub type Doors = Rc<RefCell<Vec<Option<Door>>>>;

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
    pub(super) adrift: Vec<(RequestId, usize, Gate)>,
    /// Clients are told of nothing but the end of their agent, their attachment or their volume.
    pub is_strict: bool,
    /// Accidents that are due, for the run.
    pub accidents: Vec<(Fault, Duration)>,
    /// A clean restart is asked for.
    pub restart_wanted: bool,
    /// The store, while it is up.
    pub store: Option<Running>,
    /// What virtual machines need of agents.
    pub doors: Doors,
    /// The disks of virtual machines that the store has promised to serve, by their paths.
    pub served: BTreeMap<PathBuf, VolumeLife>,
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

impl Gate {
    /// Whether both lead through the same agent, whichever life of it.
    pub fn is_beside(&self, other: &Gate) -> bool {
        (self.agent, self.moves) == (other.agent, other.moves)
    }
}

impl Shared {
    /// Nothing has happened yet. Volumes are used through these agents.
    pub fn new(plan: &Plan, agents: impl IntoIterator<Item = Address>) -> Shared {
        let agents: Vec<_> = agents.into_iter().map(|address| Agent { address, life: 0 }).collect();
        let doors = Rc::new(RefCell::new(vec![None; agents.len()]));
        Shared {
            shape: plan.shape.clone(),
            steps: VecDeque::from(plan.steps.clone()),
            history: History::default(),
            coverage: Coverage::default(),
            slots: vec![Slot::default(); plan.shape.volumes],
            agents,
            strays: Vec::new(),
            entered: Vec::new(),
            adrift: Vec::new(),
            is_strict: false,
            accidents: Vec::new(),
            restart_wanted: false,
            store: None,
            doors,
            served: BTreeMap::new(),
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
    pub(super) fn life_of(&self, volume: usize) -> Option<VolumeLife> {
        let slot = self.slots[volume];
        (slot.exists && !slot.changing).then_some(VolumeLife { volume, life: slot.life })
    }

    /// Whether a volume's name stands for one that can be used.
    pub fn is_usable(&self, volume: usize) -> bool {
        self.life_of(volume).is_some()
    }

    /// Through what a volume is used now.
    pub(super) fn gate_of(&self, volume: usize) -> Gate {
        let Slot { agent, moves, .. } = self.slots[volume];
        Gate { agent, life: self.agents[agent].life, moves }
    }

    /// Whether a volume may be attached through another gate than this one, now or a moment ago.
    pub(super) fn is_contended(&self, volume: usize, gate: Gate, now: Instant) -> bool {
        let may_come = |stray: &Stray| stray.since.is_none_or(|since| now.since(since) < STRAY);
        // An agent that had the volume before goes on with what it has, until it hears that this has ended.
        let is_old = |of: usize, old: Gate| {
            (of, old.agent, old.life) == (volume, gate.agent, gate.life) && old.moves < gate.moves
        };
        gate != self.gate_of(volume)
            || self.entered.iter().any(|(of, old)| is_old(*of, *old))
            || self.strays.iter().any(|stray| stray.volume == volume && stray.gate != gate && may_come(stray))
    }

    /// What virtual machines need of an agent, if it runs.
    pub fn door(&self, agent: usize) -> Option<Door> {
        self.doors.borrow()[agent].clone()
    }

    /// Checks the books of all agents that run, now; of a store of one server those of its admission, too.
    pub fn audit_agents(&mut self) {
        let doors = self.doors.clone();
        for door in doors.borrow().iter().flatten() {
            match (door.audit)() {
                Err(what) => self.fail(format!("admission: {what}")),
                Ok(waiting) => self.coverage.throttled += u64::from(waiting > 0),
            }
            self.coverage.logged += u64::from((door.logged)() > 0);
        }
    }

    /// An attachment begins. What was asked of the volume through agents that are dead now will have happened when it is
    /// there, or never will.
    pub(super) fn begin_attaching(&mut self, volume: usize, gate: Gate) -> Vec<RequestId> {
        self.strays.push(Stray { volume, gate, since: None });
        if !self.entered.contains(&(volume, gate)) {
            self.entered.push((volume, gate));
        }
        let agents = &self.agents;
        let is_over = |gate: &Gate| agents[gate.agent].life != gate.life;
        self.adrift.iter().filter(|(_, of, gate)| *of == volume && is_over(gate)).map(|(id, ..)| *id).collect()
    }

    pub(super) fn end_attaching(
        &mut self,
        volume: usize,
        gate: Gate,
        is_there: bool,
        settled: &[RequestId],
        now: Instant,
    ) {
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
