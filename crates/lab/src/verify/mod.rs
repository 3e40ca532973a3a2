//! Verification: the whole store in a simulated world, under load and accidents, with checkers that would notice.
//!
//! **Intuition.** What runs here is the code that is shipped: `node` assembles it, the NBD frontend answers, the engine
//! writes; only the world below `runtime` is simulated. A seed gives a [`plan`]: disks, volumes, what clients do and
//! what goes wrong when. In two of three it is of one server ([`alone`](run)), in the others of several, with managers, agents
//! and a shared store ([`several`]). The run carries it out; [`clients`], over [`nbd`] or as virtual machines with a
//! [`disk`], write down everything they asked and saw
//! ([`history`]); at the end each sector must look like a register to everybody ([`crate::linearizability`]), the store
//! must have recovered each time, and nothing may be left of what was deleted.
//!
//! **Names.** A *run* is one seed. A *violation* is something that a correct store never does; it is reported with the
//! seed, and [`shrink_plan`] looks for a smaller plan that still shows it.

pub mod agents;
pub mod clients;
pub mod coverage;
pub mod disk;
pub mod history;
pub mod link;
pub mod nbd;
pub mod outcome;
pub mod panics;
pub mod plan;
pub mod run;
pub mod several;
pub mod shared;

use crate::shrink::{Shrunk, shrink};

pub use self::coverage::Coverage;
pub use self::outcome::Outcome;
pub use self::plan::{FaultKind, Plan};

/// Carries a plan out. A panic of the code under test is a violation, too.
pub fn run(plan: &Plan) -> Outcome {
    Outcome::of(plan.seed, |world| match plan.shape.several {
        None => run::run(world, plan),
        Some(_) => several::run(world, plan),
    })
}

/// A smaller plan that still ends with a violation, found within so many runs.
pub fn shrink_plan(plan: &Plan, runs_max: usize) -> Shrunk<plan::Step> {
    shrink(plan.steps.clone(), runs_max, |steps| {
        let smaller = Plan { steps: steps.to_vec(), ..plan.clone() };
        run(&smaller).violation.is_some()
    })
}
