//! What came of a run.

use std::panic::{AssertUnwindSafe, catch_unwind};

use runtime::sim::World;

use super::coverage::Coverage;
use super::panics;

/// See the module.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// A hash over every operation and outcome of the world, with their times.
    pub hash: u64,
    /// What it exercised.
    pub coverage: Coverage,
    /// What a correct store would not have done.
    pub violation: Option<String>,
}

impl Outcome {
    /// Of what `act` does in the world of a seed, and finds. A panic of the code under test is a violation, too.
    pub fn of(seed: u64, act: impl FnOnce(&World) -> (Coverage, Option<String>)) -> Outcome {
        let world = World::new(seed);
        let result = catch_unwind(AssertUnwindSafe(|| act(&world)));
        let (coverage, violation) = result.unwrap_or_else(|panic| {
            let text = panics::last().or_else(|| panic.downcast_ref::<String>().cloned());
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            (Coverage::default(), Some(text.unwrap_or_else(|| "a panic without a message".into())))
        });
        let hash = world.history_hash() ^ coverage.requests.rotate_left(32) ^ coverage.failed_requests;
        Outcome { hash, coverage, violation }
    }
}
