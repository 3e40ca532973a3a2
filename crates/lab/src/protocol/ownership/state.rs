//! What a state of the model is made of.

use crate::protocol::explore::Broken;
use crate::protocol::small_set::SmallSet;

pub(super) const ENGINES_MAX: usize = 3;
pub(super) const SEGMENTS_MAX: usize = 2;
pub(super) const AGENTS_MAX: usize = 2;
pub(super) const WRITES_MAX: usize = 3;
/// Requests and replies on their way at most: one of each agent, and those that nobody waits for any more.
const REQUESTS_MAX: usize = 4;
/// Assignments of a segment at most.
const ASSIGNMENTS_MAX: usize = 6;

/// Everything.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub(super) manager: Manager,
    /// What the shared store has of each engine.
    pub(super) logs: [Log; ENGINES_MAX],
    pub(super) engines: [Engine; ENGINES_MAX],
    pub(super) agents: [Agent; AGENTS_MAX],
    /// In order of their content, which says nothing.
    pub(super) requests: [Option<Request>; REQUESTS_MAX],
    pub(super) writes: [Write; WRITES_MAX],
    pub(super) writes_begun: u8,
    /// By segment: the writes that were acknowledged, and the last of them.
    pub(super) acknowledged: [SmallSet; SEGMENTS_MAX],
    pub(super) newest: [Option<u8>; SEGMENTS_MAX],
    pub(super) left: Left,
    pub(super) broken: Option<Broken>,
}

/// What may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Left {
    /// Writes, at most three.
    pub writes: u8,
    /// Reads.
    pub reads: u8,
    /// Planned moves.
    pub moves: u8,
    /// Engines that are declared dead. They may live on.
    pub deaths: u8,
    /// Requests that are given up.
    pub timeouts: u8,
    /// Assignments that are refused.
    pub refusals: u8,
    /// Times that another manager takes charge.
    pub managers: u8,
}

/// The managers' durable table, and what whoever is in charge knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Manager {
    /// Of the volume's newest attachment.
    pub(super) generation: u8,
    pub(super) table: [Assignment; SEGMENTS_MAX],
    /// What of the table is durable: all of it.
    pub(super) durable: [Assignment; SEGMENTS_MAX],
    /// Every assignment that was sent: it may arrive at any time from then on, and again.
    pub(super) sent: [[Option<Assignment>; ASSIGNMENTS_MAX]; SEGMENTS_MAX],
    pub(super) lives: [Life; ENGINES_MAX],
    /// What a manager that is not in charge any more believes to be the table.
    pub(super) stale: Option<[Assignment; SEGMENTS_MAX]>,
}

/// Who is to own a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct Assignment {
    pub(super) epoch: u8,
    pub(super) engine: u8,
    /// The engine whose log has the segment until the assignee has adopted it.
    pub(super) source: u8,
    /// Whether the manager knows that it has.
    pub(super) adopted: bool,
}

/// How an engine stands in the manager's eyes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(super) enum Life {
    #[default]
    Alive,
    /// Declared dead, durably.
    Dead,
    /// Its recoverer was told that the fence stands.
    Fenced,
    /// Its recoverer has decided where its log ends.
    Sealed,
}

/// What the shared store has of one engine's life: its log, as what its records come to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Log {
    /// Its directory exists.
    pub(super) registered: bool,
    pub(super) fenced: bool,
    pub(super) deleted: bool,
    pub(super) holdings: [Holding; SEGMENTS_MAX],
    /// The highest epoch of each segment that it has refused.
    pub(super) refused: [u8; SEGMENTS_MAX],
}

/// What a log says of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct Holding {
    pub(super) role: Role,
    pub(super) epoch: u8,
    /// The newest attachment that was recorded.
    pub(super) generation: u8,
    pub(super) writes: SmallSet,
    /// The one that a read finds.
    pub(super) last: Option<u8>,
}

/// By what right.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(super) enum Role {
    /// None: it never had it, or need not remember.
    #[default]
    None,
    Owned,
    Released,
}

/// What an engine knows beside its log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Engine {
    /// It was told that it is fenced.
    pub(super) stopped: bool,
    pub(super) adopting: [Option<Assignment>; SEGMENTS_MAX],
    /// The one record on its way to the log.
    pub(super) pending: Option<Append>,
    /// The newest session of each agent.
    pub(super) sessions: [u8; AGENTS_MAX],
}

/// A record on its way, and what became of it, on the way back.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Append {
    pub(super) record: Record,
    pub(super) outcome: Option<bool>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Record {
    /// With the request that it answers.
    Write(Request),
    /// A segment and all that was copied of it.
    Adopt(u8, Holding),
    /// A segment and a generation.
    Attach(u8, u8),
    Release(u8),
    /// A segment and an epoch.
    Refuse(u8, u8),
}

/// A write: whose, and where.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Write {
    pub(super) generation: u8,
    pub(super) segment: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Agent {
    /// Its attachment, and whether that has returned.
    pub(super) generation: u8,
    pub(super) attached: bool,
    /// A later attachment has returned.
    pub(super) fenced: bool,
    /// It was told that somebody else has the volume.
    pub(super) ended: bool,
    /// The stream that it uses now: a new one after each time-out.
    pub(super) session: u8,
    /// The engine and the epoch of each segment.
    pub(super) routes: [(u8, u8); SEGMENTS_MAX],
    pub(super) waits: Option<Waiting>,
}

/// What an agent waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Waiting {
    pub(super) segment: u8,
    pub(super) what: What,
    /// What had been acknowledged when it began.
    pub(super) floor: Option<u8>,
    pub(super) stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// It goes to whom the agent knows.
    Known,
    /// It goes to whom the manager names.
    Asked,
    Sent,
}

/// A request on its way, or a reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Request {
    pub(super) agent: u8,
    pub(super) generation: u8,
    pub(super) session: u8,
    pub(super) segment: u8,
    pub(super) engine: u8,
    pub(super) epoch: u8,
    pub(super) what: What,
    pub(super) reply: Option<Reply>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum What {
    Write(u8),
    Read,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Reply {
    Written,
    Value(Option<u8>),
    /// It is not the owner under this epoch.
    Moved,
    /// There is a newer generation, or a newer session.
    Fenced,
}

impl World {
    /// Engine 0 owns the first segment, engine 1 the second, agent 0 has attached the volume.
    pub(super) fn new(segments: usize, left: Left) -> World {
        let mut world = World {
            manager: Manager { generation: 1, ..Manager::default() },
            logs: Default::default(),
            engines: Default::default(),
            agents: Default::default(),
            requests: Default::default(),
            writes: Default::default(),
            writes_begun: 0,
            acknowledged: Default::default(),
            newest: Default::default(),
            left,
            broken: None,
        };
        world.agents[0] = Agent { generation: 1, attached: true, ..Agent::default() };
        for segment in 0..segments {
            let engine = segment as u8;
            let assignment = Assignment { epoch: 1, engine, source: engine, adopted: true };
            world.manager.table[segment] = assignment;
            world.manager.durable[segment] = assignment;
            world.logs[segment].registered = true;
            let holding = Holding { role: Role::Owned, epoch: 1, generation: 1, ..Holding::default() };
            world.logs[segment].holdings[segment] = holding;
            world.agents[0].routes[segment] = (engine, 1);
        }
        world
    }

    pub(super) fn break_invariant(&mut self, invariant: &'static str, why: String) {
        self.broken.get_or_insert(Broken::new(invariant, why));
    }

    /// A request or a reply sets out.
    pub(super) fn send(&mut self, request: Request) {
        let free = self.requests.iter_mut().find(|slot| slot.is_none()).expect("as many as there may be");
        *free = Some(request);
        self.requests.sort_unstable();
    }

    /// It has arrived.
    pub(super) fn take(&mut self, index: usize) {
        self.requests[index] = None;
        self.requests.sort_unstable();
    }

    /// Under which epoch `engine` serves a segment, if it does.
    pub(super) fn serves(&self, engine: usize, segment: usize) -> Option<u8> {
        let (holding, own) = (&self.logs[engine].holdings[segment], &self.engines[engine]);
        let is_changing = own.pending.is_some_and(|pending| match pending.record {
            Record::Adopt(of, _) | Record::Release(of) => usize::from(of) == segment,
            _ => false,
        });
        (holding.role == Role::Owned && !own.stopped && !is_changing).then_some(holding.epoch)
    }

    /// The engine whose log has the last word on a segment.
    pub(super) fn holder(&self, segment: usize) -> Option<usize> {
        let has = |engine: &usize| {
            let log = &self.logs[*engine];
            !log.deleted && log.holdings[segment].role != Role::None
        };
        (0..ENGINES_MAX).filter(has).max_by_key(|engine| self.logs[*engine].holdings[segment].epoch)
    }
}

impl Manager {
    /// Whether there may be another assignment. Without a flaw, there may.
    pub(super) fn may_send(&self, segment: usize) -> bool {
        self.sent[segment].contains(&None)
    }

    /// An assignment is on its way, for as long as anybody may get it.
    pub(super) fn send(&mut self, segment: usize, assignment: Assignment) {
        let free = self.sent[segment].iter_mut().find(|slot| slot.is_none()).expect("as many as there may be");
        *free = Some(assignment);
    }
}

impl Log {
    /// What a record changes.
    pub(super) fn apply(&mut self, record: Record) {
        self.registered = true;
        match record {
            Record::Write(request) => {
                let What::Write(write) = request.what else { unreachable!("a read is no record") };
                let holding = &mut self.holdings[usize::from(request.segment)];
                holding.writes = holding.writes.with(write.into());
                holding.last = Some(write);
            }
            Record::Adopt(segment, holding) => self.holdings[usize::from(segment)] = holding,
            Record::Attach(segment, generation) => self.holdings[usize::from(segment)].generation = generation,
            Record::Release(segment) => self.holdings[usize::from(segment)].role = Role::Released,
            Record::Refuse(segment, epoch) => self.refused[usize::from(segment)] = epoch,
        }
    }
}
