//! The steps of the model, and what they are called in a trace.

use std::fmt::{self, Display, Formatter};

/// What happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The manager gives the segment to a server, under an epoch.
    Assign(u8, u8),
    /// The manager forgets what is not durable.
    ManagerRestarts,
    /// A server raises the epoch of another one's directory, and reads the list.
    FenceDirectory(u8, u8),
    /// A server raises the epoch of a file.
    FenceFile(u8, u8),
    /// A server reads a file.
    ReadFile(u8, u8),
    /// A server has taken over, and serves.
    Serve(u8),
    /// A server makes a file.
    Create(u8),
    /// A server registers its file.
    Register(u8, u8),
    /// An append reaches the file layer.
    AppendArrives(u8, bool),
    /// A server is told what became of its append.
    AppendReturns(u8),
    /// An agent attaches the volume.
    Attach(u8, u8),
    /// The owner records the generation.
    Record(u8, u8),
    /// The attach returns.
    Attached(u8),
    /// An agent writes.
    Write(u8, u8),
    /// An agent reads.
    Read(u8),
    /// An agent sends what it wants to a server.
    Send(u8, u8),
    /// An agent waits no longer.
    Timeout(u8),
    /// The same, and it is told of an owner that is not one any more.
    Detour(u8, u8),
    /// A request reaches its server.
    RequestArrives(u8, u8),
    /// A reply reaches its agent.
    ReplyArrives(u8),
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Step::Assign(server, epoch) => write!(f, "the manager gives the segment to server {server}, epoch {epoch}"),
            Step::ManagerRestarts => write!(f, "the manager restarts"),
            Step::FenceDirectory(server, other) => write!(f, "server {server} fences the directory of server {other}"),
            Step::FenceFile(server, file) => write!(f, "server {server} fences file {file}"),
            Step::ReadFile(server, file) => write!(f, "server {server} reads file {file}"),
            Step::Serve(server) => write!(f, "server {server} serves"),
            Step::Create(server) => write!(f, "server {server} makes a file"),
            Step::Register(server, file) => write!(f, "server {server} registers file {file}"),
            Step::AppendArrives(server, true) => write!(f, "an append of server {server} is durable"),
            Step::AppendArrives(server, false) => write!(f, "an append of server {server} is refused"),
            Step::AppendReturns(server) => write!(f, "server {server} is told what became of it"),
            Step::Attach(agent, generation) => write!(f, "agent {agent} attaches, generation {generation}"),
            Step::Record(server, generation) => write!(f, "server {server} records generation {generation}"),
            Step::Attached(agent) => write!(f, "the attach of agent {agent} returns"),
            Step::Write(agent, write) => write!(f, "agent {agent} begins write {write}"),
            Step::Read(agent) => write!(f, "agent {agent} begins a read"),
            Step::Send(agent, server) => write!(f, "agent {agent} sends it to server {server}"),
            Step::Timeout(agent) => write!(f, "agent {agent} waits no longer"),
            Step::Detour(agent, server) => write!(f, "agent {agent} waits no longer, and is sent to server {server}"),
            Step::RequestArrives(agent, server) => write!(f, "a request of agent {agent} reaches server {server}"),
            Step::ReplyArrives(agent) => write!(f, "a reply reaches agent {agent}"),
        }
    }
}
