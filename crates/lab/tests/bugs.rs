//! The mutation check: some of the seeded bugs at each `make test`, other ones every time. All of them:
//! `levee lab bugs`.
//!
//! `LEVEE_BASE` chooses which, and is the first seed of each hunt; `LEVEE_BUGS` is how many, `LEVEE_BUG` names one.
#![cfg(feature = "seeded-bugs")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test panics where something is not as it should be")]
#![allow(clippy::disallowed_methods, reason = "the clock outside of the simulated worlds gives new seeds")]

mod seeds;

use base::seeded::find;
use lab::bugs::{SEEDS_MAX, Survey, subset};
use lab::verify::panics;

#[test]
fn some_seeded_bugs_are_noticed() {
    let base = seeds::base();
    let bugs = match std::env::var("LEVEE_BUG") {
        Ok(name) => vec![find(&name).expect("a bug is called so")],
        Err(_) => subset(seeds::number("LEVEE_BUGS").unwrap_or(4) as usize, base),
    };
    println!("{} bugs, seeds from {base}", bugs.len());
    // Each in a world of its own: a thread has one bug at most.
    panics::remember();
    let hunts = bugs.into_iter().map(|bug| std::thread::spawn(move || Survey::of(bug, base, 1, SEEDS_MAX)));
    let hunts: Vec<_> = hunts.collect();
    let missed: Vec<&str> = hunts
        .into_iter()
        .map(|hunt| hunt.join().expect("a hunt does not panic"))
        .inspect(|survey| println!("{}", survey.row()))
        .filter(|survey| !survey.is_caught())
        .map(|survey| survey.bug.name)
        .collect();
    assert!(missed.is_empty(), "not noticed within {SEEDS_MAX} seeds from {base}: {missed:?}");
}
