//! Model of ownership: segments that move between engines, engines that are declared dead and live on, whoever
//! recovers and adopts what they had, agents that attach and try again, managers that follow each other.
//!
//! **Intuition.** A segment is what one engine's log says it is. So it changes hands by records in logs: the new owner
//! copies what it takes and logs *Adopt*; before that it has nothing, after that it alone has everything. All the rest
//! sees to it that the log it copies from says nothing more: a planned move waits for *Release* in it, a failover for
//! the fence of that engine and for one decision on where its log ends.
//!
//! **Names.** An *engine* is one life with one log (an incarnation); a *holding* is what a log says of a segment; an
//! *assignment* gives a segment to an engine under an epoch, from a *source*, the engine whose log has it until then.
//! A *record in doubt* is one that was on its way when its engine was fenced: whoever recovers the engine finds it or
//! does not, and decides.
//!
//! **The protocol.**
//! - An assignment is durable in the managers' table before it is sent, and the table takes writes of the manager in
//!   charge only. It may arrive late, and again. Only the assignee's durable refusal, or its fence, takes it back.
//! - Who releases waits for what is in flight, logs Release, and repeats it until the table says that it was adopted.
//! - An engine that is declared dead is fenced: nothing is appended to its log any more, also if that log does not
//!   exist yet. Then one recoverer decides where its log ends. Then each segment that the table gives it is assigned
//!   anew: from its log if it had adopted the segment, else from where it was to have it from.
//! - A log is deleted when all that it held was adopted elsewhere.
//! - An attach returns when the owner of every segment at the present epoch has recorded its generation. Records are
//!   appended one after the other: so what is older is drained.
//! - An agent that waits no longer begins a new session; the old one is closed before a request of the new one is
//!   taken. No server remembers what was asked of it.
//!
//! **Left out.** Files below a log and what a fence covers of them ([`super::fencing`]); what a recovery finds at the
//! end of a log ([`super::recovery`]); engines that start again under the same name: they are new ones; several records
//! in flight in one log.
//!
//! **Invariants.** [`ONE_OWNER`], [`NOTHING_LOST`], [`FRESH`] for agents that no later attachment fences, [`FENCED`],
//! [`LIVING`]; and where nothing can happen any more, [`SERVED`].

mod agent;
mod engine;
mod manager;
mod state;
mod step;
#[cfg(test)]
mod tests;

use self::state::{Life, Role, World};
use super::explore::{Broken, Model};

pub use self::state::Left;
pub use self::step::Step;

/// At most one log that accepts appends has a segment as its own.
pub const ONE_OWNER: &str = "a segment has one owner";
/// The log with the last word on a segment exists, and has every write that was acknowledged.
pub const NOTHING_LOST: &str = "no acknowledged write is lost";
/// A read is never older than a write that was acknowledged before it began.
pub const FRESH: &str = "reads are not stale";
/// No write of an agent takes effect after a later attachment returned.
pub const FENCED: &str = "a fenced agent writes nothing";
/// No engine is fenced that nobody declared dead.
pub const LIVING: &str = "a living engine is not fenced";
/// When nothing can happen any more, every segment has an owner that serves, and nobody waits.
pub const SERVED: &str = "everything is served in the end";

/// The model with its bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ownership {
    /// Engines, at most three.
    pub engines: usize,
    /// Segments of the one volume, at most two.
    pub segments: usize,
    /// Agents, at most two.
    pub agents: usize,
    /// What may happen.
    pub left: Left,
    /// What is wrong with the protocol.
    pub flaw: Option<Flaw>,
}

/// What may be wrong, to see that it would be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// An assignee that does not answer is not fenced before somebody else gets the segment.
    ReassignsSilent,
    /// A second recoverer decides, too, and what it found is acted on.
    TwoRecoverers,
    /// A log is deleted when what it held is assigned elsewhere.
    DeletesEarly,
    /// What a dead engine had released is taken for its own.
    ReplaysReleased,
    /// A checkpoint of a log forgets releases.
    ForgetsRelease,
    /// A fence does nothing where there is no log yet.
    FencesNothing,
    /// A fence concerns engines with lower numbers, too.
    FencesBelow,
    /// An attach does not wait for segments on their way.
    AttachesBeside,
    /// An adopter takes no notice of the generation that was recorded.
    ForgetsGeneration,
    /// What a dead engine had is adopted, and served to those who try again, before its log is sealed.
    AdoptsUnsealed,
    /// An assignment is sent before it is durable.
    SendsBeforeDurable,
    /// A manager that is not in charge any more writes to the table.
    OldManagerWrites,
    /// An engine takes an assignment that it has refused.
    ForgetsRefusal,
    /// A server takes requests of sessions that were followed by newer ones.
    AdmitsOldSessions,
}

impl Flaw {
    /// Every one.
    pub const ALL: [Flaw; 14] = [
        Flaw::ReassignsSilent,
        Flaw::TwoRecoverers,
        Flaw::DeletesEarly,
        Flaw::ReplaysReleased,
        Flaw::ForgetsRelease,
        Flaw::FencesNothing,
        Flaw::FencesBelow,
        Flaw::AttachesBeside,
        Flaw::ForgetsGeneration,
        Flaw::AdoptsUnsealed,
        Flaw::SendsBeforeDurable,
        Flaw::OldManagerWrites,
        Flaw::ForgetsRefusal,
        Flaw::AdmitsOldSessions,
    ];
}

impl Ownership {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// What `segment` is like in `world` that it must not be.
    fn broken_segment(&self, world: &World, segment: usize) -> Option<Broken> {
        let owns = |engine: &usize| {
            let log = &world.logs[*engine];
            log.holdings[segment].role == Role::Owned && !log.fenced && !log.deleted
        };
        let owners: Vec<usize> = (0..self.engines).filter(owns).collect();
        if owners.len() > 1 {
            return Some(Broken::new(ONE_OWNER, format!("engines {owners:?} own segment {segment}")));
        }
        let Some(holder) = world.holder(segment) else {
            return Some(Broken::new(NOTHING_LOST, format!("no log has segment {segment}")));
        };
        let lost = world.acknowledged[segment].minus(world.logs[holder].holdings[segment].writes);
        let why = || format!("engine {holder} has segment {segment} without writes {lost:?}");
        (!lost.is_empty()).then(|| Broken::new(NOTHING_LOST, why()))
    }
}

impl Model for Ownership {
    type State = World;
    type Step = Step;

    fn starts(&self) -> Vec<World> {
        assert!((self.segments..=state::ENGINES_MAX).contains(&self.engines));
        assert!((1..=state::SEGMENTS_MAX).contains(&self.segments) && (1..=state::AGENTS_MAX).contains(&self.agents));
        assert!(usize::from(self.left.writes) <= state::WRITES_MAX && self.left.timeouts <= 2);
        vec![World::new(self.segments, self.left)]
    }

    fn steps(&self, world: &World, lead: &mut dyn FnMut(Step, World)) {
        self.manage(world, lead);
        for engine in 0..self.engines {
            self.recover(world, engine, lead);
            self.change_hands(world, engine, lead);
            self.append(world, engine, lead);
        }
        for agent in 0..self.agents {
            self.attach(world, agent, lead);
            self.use_volume(world, agent, lead);
        }
        self.receive(world, lead);
    }

    fn broken(&self, world: &World) -> Option<Broken> {
        let is_victim = |engine: &usize| world.logs[*engine].fenced && world.manager.lives[*engine] == Life::Alive;
        let living = (0..self.engines).find(is_victim);
        let living = living.map(|engine| Broken::new(LIVING, format!("engine {engine} is fenced")));
        let segments = || (0..self.segments).find_map(|segment| self.broken_segment(world, segment));
        world.broken.clone().or(living).or_else(segments)
    }

    fn stuck(&self, world: &World) -> Option<Broken> {
        let serves = |segment: usize| (0..self.engines).any(|engine| world.serves(engine, segment).is_some());
        if let Some(segment) = (0..self.segments).find(|segment| !serves(*segment)) {
            return Some(Broken::new(SERVED, format!("nobody serves segment {segment}")));
        }
        let waits = |agent: &usize| {
            let own = &world.agents[*agent];
            own.waits.is_some() || (own.generation > 0 && !own.attached && !own.ended)
        };
        let waiting = (0..self.agents).find(waits);
        waiting.map(|agent| Broken::new(SERVED, format!("agent {agent} waits for ever")))
    }
}
