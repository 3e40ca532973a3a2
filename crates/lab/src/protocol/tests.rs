//! What the tests of the models have in common.

use super::explore::{Explored, Model, explore};

/// States at most: a search that wants more is not complete, and its test fails.
const STATES_MAX: usize = 20_000_000;

/// Explores `model` completely, in which nothing may be wrong.
pub(super) fn holds<M: Model>(what: &str, model: &M) -> Explored {
    match explore(model, STATES_MAX) {
        Ok(explored) => {
            println!("{what}: {explored}");
            assert!(explored.complete, "{what}");
            explored
        }
        Err(found) => panic!("{what}: {found}"),
    }
}

/// Explores `model`, in which something is wrong, until `invariant` is broken. Gives the number of steps.
pub(super) fn breaks<M: Model>(what: &str, model: &M, invariant: &str) -> usize {
    match explore(model, STATES_MAX) {
        Ok(explored) => panic!("{what}: nobody noticed: {explored}"),
        Err(found) => {
            println!("{what}: {} states; {found}", found.states);
            assert_eq!(found.broken.invariant, invariant, "{what}: {found}");
            found.trace.len()
        }
    }
}

/// Whether there is time for larger bounds: `LEVEE_BOUNDS=large`.
pub(super) fn has_time() -> bool {
    std::env::var("LEVEE_BOUNDS").is_ok_and(|bounds| bounds == "large")
}
