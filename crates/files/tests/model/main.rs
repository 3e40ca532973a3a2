//! Random lives of a store against a simple model: whatever was confirmed is there after kills, power losses and
//! failing disks, and whatever was deleted is not.
//!
//! A world has disks, a store over them and a few clients that create, append, seal, delete and read. Each life ends
//! at a random moment, in the middle of opening, too. The next one compares everything with the model, which lives
//! outside of the world. `LEVEE_SEED=N` repeats one seed, `LEVEE_SEEDS` is how many are run otherwise.
#![allow(clippy::unwrap_used, reason = "a test panics where something is not as it should be")]

mod clients;
mod coverage;
mod model;
mod world;

use std::hash::{BuildHasher, Hasher};

use coverage::Coverage;
use world::run_seed;

#[test]
fn what_was_confirmed_is_there_and_what_was_deleted_is_not() {
    let mut coverage = Coverage::default();
    if let Ok(seed) = std::env::var("LEVEE_SEED") {
        run_seed(seed.parse().unwrap(), &mut coverage);
        return;
    }
    let count = std::env::var("LEVEE_SEEDS").map_or(100, |count| count.parse().unwrap());
    let base = std::hash::RandomState::new().build_hasher().finish() >> 16;
    println!("seeds from {base} on");
    let is_covered = |coverage: &Coverage| {
        let text = format!("{coverage:?}");
        !text.contains(": 0,") && !text.contains(": 0 }")
    };
    // What is rare may take some more.
    for seed in base..base + 20 * count {
        if seed >= base + count && is_covered(&coverage) {
            break;
        }
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run_seed(seed, &mut coverage)));
        if let Err(panic) = run {
            eprintln!("failed with LEVEE_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
    println!("{coverage:?}");
    assert!(is_covered(&coverage), "not everything was covered");
}
