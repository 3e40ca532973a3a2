//! Model of forwarding: writes of one segment that go to logs or to its owner, what the owner merges, and agents that die in the
//! middle of it (rules 52 to 57, docs/SAFETY.md).
//!
//! **Intuition.** There are three places where the newest bytes may be: the owner, a log, and nowhere yet. Whoever reads believes
//! one index, which is in the memory of an agent, and which the next agent makes again from what it finds in the logs. So two things
//! must never be: that the index leads to something old, and that something old in a log comes home over something newer.
//!
//! **What is real.** The index ([`policies::forwarding::Index`]) with its routes, batches, and what it makes of a traversal.
//!
//! **What happens.** A write of one or both of two cells goes to the owner or, as a burst, to one of two logs. Its pieces land in any
//! order; one that went to a log may land without an answer, and be tried again there; or be refused, whether it has landed or
//! not, which is written down before its client is told. The owner merges a batch, a part at a time; then its watermark
//! becomes durable; then the agent forgets the entries. The agent may die at any moment. What it had on its way to a log lands before
//! the next one looks into that, or never; what it had on its way to the owner, or had asked that to merge, goes on until the
//! next one opens a session there.
//!
//! **Left out.** Sizes and space; where the watermark is; owners and logs that die, which recover what is durable; more than one
//! segment, since nothing connects them. Reads are no steps: in each state somebody reads what nobody is writing, and what he finds
//! there is what must be found until the next write.
//!
//! **Invariants.** [`FRESH`], and where nothing can happen any more, [`HOME`].

mod state;
mod step;
#[cfg(test)]
mod tests;

use self::state::World;
use super::explore::{Broken, Model};

pub use self::state::Left;
pub use self::step::Step;

/// A read finds the last write that was acknowledged, or one that was not and began after it.
pub const FRESH: &str = "what is read is the newest";
/// When nothing can happen any more, nothing is in a log.
pub const HOME: &str = "everything comes home";

/// The model with its bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forwarding {
    /// What may happen.
    pub left: Left,
    /// What is wrong.
    pub flaw: Option<Flaw>,
}

/// What may be wrong, to see that it would be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// An agent forgets entries before their watermark is durable.
    TrimsBeforeWatermark,
    /// What had no answer from a log is tried again at the other one.
    RetriesElsewhere,
    /// Whoever attaches does not look into the logs.
    AttachesUntraversed,
    /// A write goes to the owner though it overlaps what is in a log.
    WritesOverLogged,
    /// A refused append holds up all behind it.
    StopsAtHoles,
    /// Writes that overlap begin beside each other.
    LosesOrder,
    /// A refused append is not written down.
    ForgetsVoids,
}

impl Flaw {
    /// Every one.
    pub const ALL: [Flaw; 7] = [
        Flaw::TrimsBeforeWatermark,
        Flaw::RetriesElsewhere,
        Flaw::AttachesUntraversed,
        Flaw::WritesOverLogged,
        Flaw::StopsAtHoles,
        Flaw::LosesOrder,
        Flaw::ForgetsVoids,
    ];
}

impl Forwarding {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

impl Model for Forwarding {
    type State = World;
    type Step = Step;

    fn starts(&self) -> Vec<World> {
        vec![World::new(self.left)]
    }

    fn steps(&self, world: &World, lead: &mut dyn FnMut(Step, World)) {
        step::all(self, world, lead);
    }

    fn broken(&self, world: &World) -> Option<Broken> {
        let (cell, found, allowed) = world.stale()?;
        Some(Broken::new(FRESH, format!("cell {cell} is of write {found}, and not of one of {allowed:?}")))
    }

    fn stuck(&self, world: &World) -> Option<Broken> {
        let waiting = world.agent.index.len();
        (waiting > 0).then(|| Broken::new(HOME, format!("{waiting} entries stay in logs")))
    }
}
