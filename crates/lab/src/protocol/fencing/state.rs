//! What a state of the model is made of.

use crate::protocol::explore::Broken;
use crate::protocol::small_set::SmallSet;

pub(super) const SERVERS_MAX: usize = 3;
pub(super) const AGENTS_MAX: usize = 2;

/// Everything.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct World {
    pub(super) manager: Manager,
    pub(super) servers: [Server; SERVERS_MAX],
    /// The guarded directory of each server's life.
    pub(super) directories: [Directory; SERVERS_MAX],
    pub(super) files: Vec<File>,
    pub(super) agents: [Agent; AGENTS_MAX],
    /// Requests on their way to a server: also those that nobody waits for any more.
    pub(super) requests: Vec<Request>,
    /// The generation of the agent of each write.
    pub(super) writes: Vec<u8>,
    pub(super) acknowledged: SmallSet,
    /// The last write that was acknowledged, if one was.
    pub(super) newest: Option<u8>,
    pub(super) left: Left,
    pub(super) broken: Option<Broken>,
}

/// What may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Left {
    /// Writes.
    pub writes: u8,
    /// Reads.
    pub reads: u8,
    /// Changes of the owner.
    pub moves: u8,
    /// Files that servers begin besides their first.
    pub rotations: u8,
    /// Requests that are given up.
    pub timeouts: u8,
    /// Times that the manager forgets what is not durable.
    pub restarts: u8,
    /// Times that an agent is told of an owner that is not one any more.
    pub detours: u8,
}

/// Who owns the segment, and who has attached it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Manager {
    pub(super) epoch: u8,
    pub(super) owner: u8,
    pub(super) generation: u8,
    /// What of the epoch is durable.
    pub(super) durable_epoch: u8,
}

/// A server in one life.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Server {
    pub(super) stage: Stage,
    /// The ownership that it has, or takes.
    pub(super) epoch: u8,
    /// The newest attachment that it knows of.
    pub(super) generation: u8,
    /// The file that takes appends, and how many it confirmed there.
    pub(super) file: Option<(u8, u8)>,
    /// An append on its way.
    pub(super) pending: Option<Append>,
    /// What it knows to be written, in order.
    pub(super) applied: Vec<u8>,
}

/// How far a server is with taking the segment over.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub(super) enum Stage {
    /// It was never told to.
    #[default]
    Idle,
    /// It fences the directories of these servers.
    Directories(SmallSet),
    /// It fences these files, or reads those that are in the second list.
    Files(Vec<u8>, Vec<u8>),
    /// It answers.
    Serving,
    /// It was told that it is not the owner any more.
    Fenced,
}

/// A write to a file at an offset, under an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Append {
    pub(super) file: u8,
    pub(super) at: u8,
    pub(super) write: u8,
    pub(super) epoch: u8,
    /// Whom to answer.
    pub(super) agent: u8,
    /// What became of it, on the way back.
    pub(super) outcome: Option<bool>,
}

/// The list of a server's files.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Directory {
    /// Below this one nothing is accepted.
    pub(super) epoch: u8,
    pub(super) files: Vec<u8>,
    pub(super) generation: u8,
}

/// A file.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct File {
    pub(super) epoch: u8,
    pub(super) writes: Vec<u8>,
}

/// An agent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Agent {
    /// Its attachment, and whether that has returned.
    pub(super) generation: u8,
    pub(super) attached: bool,
    /// Whom it asks, under which epoch.
    pub(super) route: (u8, u8),
    /// The highest epoch of a reply.
    pub(super) highest: u8,
    pub(super) waits: Option<Waiting>,
    /// A later attachment has returned.
    pub(super) fenced: bool,
}

/// What an agent waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Waiting {
    pub(super) what: What,
    /// What had been acknowledged when it began.
    pub(super) floor: Option<u8>,
    pub(super) is_sent: bool,
}

/// A request on its way, or a reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Request {
    pub(super) agent: u8,
    pub(super) generation: u8,
    pub(super) server: u8,
    pub(super) epoch: u8,
    pub(super) what: What,
    pub(super) reply: Option<Reply>,
}

/// What is asked for. A read has a number, too, by which its agent knows the reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum What {
    Write(u8),
    Read(u8),
}

/// A reply. Its epoch is the server's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Reply {
    Written,
    Value(Option<u8>),
    Refused,
}

impl World {
    pub(super) fn new(left: Left) -> World {
        let mut world = World {
            manager: Manager { epoch: 1, owner: 0, generation: 1, durable_epoch: 1 },
            servers: Default::default(),
            directories: Default::default(),
            files: Vec::new(),
            agents: Default::default(),
            requests: Vec::new(),
            writes: Vec::new(),
            acknowledged: SmallSet::EMPTY,
            newest: None,
            left,
            broken: None,
        };
        // The first server owns the segment, and the first agent has attached it.
        world.servers[0] = Server { stage: Stage::Serving, epoch: 1, generation: 1, ..Server::default() };
        world.directories[0] = Directory { epoch: 1, files: Vec::new(), generation: 1 };
        world.agents[0] = Agent { generation: 1, attached: true, route: (0, 1), highest: 1, ..Agent::default() };
        world
    }

    pub(super) fn break_invariant(&mut self, invariant: &'static str, why: String) {
        self.broken.get_or_insert(Broken::new(invariant, why));
    }

    /// A request or a reply sets out. Their order is nobody's.
    pub(super) fn send(&mut self, request: Request) {
        self.requests.push(request);
        self.requests.sort_unstable();
    }
}

impl Server {
    /// Whether it believes to be the owner under this epoch.
    pub(super) fn serves_under(&self, epoch: u8) -> bool {
        self.stage == Stage::Serving && self.epoch == epoch
    }

    /// Whether it admits a request: `server::session::Session::check`, with epochs that move.
    pub(super) fn admits(&self, epoch: u8, generation: u8) -> bool {
        self.serves_under(epoch) && self.generation == generation
    }
}
