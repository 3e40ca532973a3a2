//! The steps of the model, and what they are called in a trace.

use std::fmt::{self, Display, Formatter};

/// What happens. Numbers are engines, segments, agents and epochs, in the order of the words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A segment is assigned to an engine, under an epoch.
    Assign(u8, u8, u8),
    /// The entry of a segment is durable.
    Durable(u8),
    /// The manager learns that a segment was adopted by an engine.
    Confirm(u8, u8),
    /// Another manager takes charge.
    NewManager,
    /// The manager before it wants a segment to be an engine's.
    OldManager(u8, u8),
    /// An engine is declared dead.
    Declare(u8),
    /// It is fenced.
    Fence(u8),
    /// Where its log ends is decided: with the record in doubt, or without one.
    Decide(u8, bool),
    /// Its log is deleted.
    Delete(u8),
    /// An engine takes an assignment: segment, epoch.
    Accept(u8, u8, u8),
    /// An engine refuses an assignment: segment, epoch.
    Refuse(u8, u8, u8),
    /// An engine begins to release a segment.
    Release(u8, u8),
    /// An engine has copied a segment from another one's log, and logs Adopt.
    Adopt(u8, u8, u8),
    /// A checkpoint of an engine leaves out the release of a segment.
    Forget(u8, u8),
    /// A record reaches the log of its engine, or is refused there.
    AppendArrives(u8, bool),
    /// An engine is told what became of it.
    AppendReturns(u8),
    /// An agent attaches the volume, under a generation.
    Attach(u8, u8),
    /// An engine records, for a segment, a generation.
    Record(u8, u8, u8),
    /// The attach returns.
    Attached(u8),
    /// An agent begins a write to a segment.
    Write(u8, u8, u8),
    /// An agent begins a read of a segment.
    Read(u8, u8),
    /// An agent sends what it wants to an engine.
    Send(u8, u8),
    /// An agent waits no longer.
    Timeout(u8),
    /// A request of an agent reaches an engine.
    RequestArrives(u8, u8),
    /// A reply reaches its agent.
    ReplyArrives(u8),
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Step::Assign(segment, engine, epoch) => {
                write!(f, "segment {segment} is assigned to engine {engine}, epoch {epoch}")
            }
            Step::Durable(segment) => write!(f, "the assignment of segment {segment} is durable"),
            Step::Confirm(segment, engine) => write!(f, "the manager knows that engine {engine} has segment {segment}"),
            Step::NewManager => write!(f, "another manager takes charge"),
            Step::OldManager(segment, engine) => {
                write!(f, "the manager before it moves segment {segment} to engine {engine}")
            }
            Step::Declare(engine) => write!(f, "engine {engine} is declared dead"),
            Step::Fence(engine) => write!(f, "engine {engine} is fenced"),
            Step::Decide(engine, true) => write!(f, "the log of engine {engine} ends behind the record in doubt"),
            Step::Decide(engine, false) => write!(f, "the log of engine {engine} ends with what is certain"),
            Step::Delete(engine) => write!(f, "the log of engine {engine} is deleted"),
            Step::Accept(engine, segment, epoch) => write!(f, "engine {engine} takes segment {segment}, epoch {epoch}"),
            Step::Refuse(engine, segment, epoch) => {
                write!(f, "engine {engine} refuses segment {segment}, epoch {epoch}")
            }
            Step::Release(engine, segment) => write!(f, "engine {engine} releases segment {segment}"),
            Step::Adopt(engine, segment, source) => {
                write!(f, "engine {engine} adopts segment {segment} from the log of engine {source}")
            }
            Step::Forget(engine, segment) => write!(f, "engine {engine} forgets that it released segment {segment}"),
            Step::AppendArrives(engine, true) => write!(f, "a record of engine {engine} is durable"),
            Step::AppendArrives(engine, false) => write!(f, "a record of engine {engine} is refused"),
            Step::AppendReturns(engine) => write!(f, "engine {engine} is told what became of it"),
            Step::Attach(agent, generation) => write!(f, "agent {agent} attaches, generation {generation}"),
            Step::Record(engine, segment, generation) => {
                write!(f, "engine {engine} records generation {generation} for segment {segment}")
            }
            Step::Attached(agent) => write!(f, "the attach of agent {agent} returns"),
            Step::Write(agent, write, segment) => write!(f, "agent {agent} begins write {write} to segment {segment}"),
            Step::Read(agent, segment) => write!(f, "agent {agent} begins a read of segment {segment}"),
            Step::Send(agent, engine) => write!(f, "agent {agent} sends it to engine {engine}"),
            Step::Timeout(agent) => write!(f, "agent {agent} waits no longer"),
            Step::RequestArrives(agent, engine) => write!(f, "a request of agent {agent} reaches engine {engine}"),
            Step::ReplyArrives(agent) => write!(f, "a reply reaches agent {agent}"),
        }
    }
}
