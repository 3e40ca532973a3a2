//! Model of fencing: one segment, servers that have it one after the other, agents that attach it one after the other, a
//! manager that decides, and a network that delays everything. What has to be fenced, in which order, so that a former
//! owner and a former holder change nothing any more; [`super::ownership`] takes a fence for granted, and has the rest.
//!
//! **What is code today, and what is design.** Segments do not move between servers yet: there is one server, its epoch
//! is 1, and `files::Store::fence` refuses what an incarnation still wants to write within one process. What is code is
//! how a server takes agents over: sessions and generations (`server::session`), said again here in
//! `state::Server::admits` and compared with the real server, step by step, in `sessions`. The change of an owner follows the design:
//! - the manager's epoch is durable before it is used, and so is the generation of an attachment;
//! - an incarnation's files are registered in its directory, guarded by an epoch, before their first acknowledgement;
//! - a new owner raises the epoch of the directory of every incarnation before it, then that of every file listed there,
//!   and only then reads them; a write is accepted only under the epoch that its file has, at the offset that its writer
//!   knows;
//! - an attach returns when the owner has recorded its generation durably and has drained what is older;
//! - an agent drops replies of a lower epoch than the highest that it knows. No lease stops anybody.
//!
//! **What happens.** Requests, replies and appends arrive late or never; the old owner knows nothing of the new one
//! and goes on; agents give up waiting and ask the manager; the manager moves the segment at any moment, and may forget
//! everything that is not durable.
//!
//! **Invariants.** [`ONE_OWNER`]; [`NOTHING_LOST`]; [`FRESH`], for agents that no later attachment fences; [`FENCED`].

mod agent;
mod server;
#[cfg(test)]
mod sessions;
mod state;
mod step;
#[cfg(test)]
mod tests;

use self::state::World;
use super::explore::{Broken, Model};

pub use self::state::Left;
pub use self::step::Step;

/// At most one server serves under an epoch.
pub const ONE_OWNER: &str = "an epoch has one owner";
/// What was acknowledged is there after a change of owner.
pub const NOTHING_LOST: &str = "no acknowledged write is lost";
/// A read is never older than a write that was acknowledged before it began.
pub const FRESH: &str = "reads are not stale";
/// No write of an agent takes effect after a later attachment returned.
pub const FENCED: &str = "a fenced agent writes nothing";

/// The model with its bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fencing {
    /// Servers, each with one life, at most three.
    pub servers: usize,
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
    /// A new owner fences the files of the ones before, not their directories.
    FencesFilesOnly,
    /// A new owner fences only the last owner that the manager named, which may have got nowhere.
    FencesLastOwnerOnly,
    /// A new owner reads files before it fences them.
    ReadsBeforeFencing,
    /// A file is written to before it is registered.
    WritesBeforeRegistering,
    /// The file layer accepts appends of any epoch.
    AppendsUnguarded,
    /// A server acknowledges before the file layer has.
    AcknowledgesBlindly,
    /// The manager uses an epoch before it is durable.
    EpochNotDurable,
    /// Agents believe replies of lower epochs.
    BelievesOldReplies,
    /// A server admits agents of older generations.
    AdmitsOldGenerations,
    /// An attach returns before the owner knows of it.
    AttachReturnsEarly,
    /// An attach does not wait for older writes in flight.
    AttachDrainsNothing,
    /// A server does not record the generation durably.
    GenerationNotDurable,
}

impl Flaw {
    /// Every one.
    pub const ALL: [Flaw; 12] = [
        Flaw::FencesFilesOnly,
        Flaw::FencesLastOwnerOnly,
        Flaw::ReadsBeforeFencing,
        Flaw::WritesBeforeRegistering,
        Flaw::AppendsUnguarded,
        Flaw::AcknowledgesBlindly,
        Flaw::EpochNotDurable,
        Flaw::BelievesOldReplies,
        Flaw::AdmitsOldGenerations,
        Flaw::AttachReturnsEarly,
        Flaw::AttachDrainsNothing,
        Flaw::GenerationNotDurable,
    ];
}

impl Fencing {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

impl Model for Fencing {
    type State = World;
    type Step = Step;

    fn starts(&self) -> Vec<World> {
        assert!((2..=state::SERVERS_MAX).contains(&self.servers) && (1..=state::AGENTS_MAX).contains(&self.agents));
        vec![World::new(self.left)]
    }

    fn steps(&self, world: &World, lead: &mut dyn FnMut(Step, World)) {
        self.manage(world, lead);
        for server in 0..self.servers {
            self.take_over(world, server, lead);
            self.serve(world, server, lead);
        }
        for agent in 0..self.agents {
            self.attach(world, agent, lead);
            self.use_volume(world, agent, lead);
        }
        self.receive(world, lead);
    }

    fn broken(&self, world: &World) -> Option<Broken> {
        world.broken.clone()
    }
}
