//! The laboratory itself: the same seed is the same run, and a few new seeds at each `cargo test`. Many more run in
//! `levee lab verify`.
//!
//! `LEVEE_SEEDS` is the number of seeds, `LEVEE_BASE` the first one.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test panics where something is not as it should be")]
#![allow(clippy::disallowed_methods, reason = "the clock outside of the simulated worlds gives new seeds")]

mod seeds;

use lab::verify::coverage::Event;
use lab::verify::plan::Role;
use lab::verify::{Coverage, FaultKind, Plan, run};

#[test]
fn the_same_seed_is_the_same_run() {
    let mut hashes = Vec::new();
    for seed in 0..10 {
        let plan = Plan::draw(seed, &FaultKind::ALL);
        let here = run(&plan);
        // With other addresses and other seeds of hash maps than the first one had.
        let there = run(&Plan::draw(seed, &FaultKind::ALL));
        assert_eq!(here.hash, there.hash, "seed {seed}");
        assert_eq!(format!("{:?}", here.coverage), format!("{:?}", there.coverage), "seed {seed}");
        hashes.push(here.hash);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 10, "other seeds are other runs");
}

#[test]
fn some_seeds() {
    let base = seeds::base();
    let seeds = seeds::number("LEVEE_SEEDS").unwrap_or(40).min(300);
    println!("{seeds} seeds from {base}");
    let mut coverage = Coverage::default();
    for seed in base..base + seeds {
        let outcome = run(&Plan::draw(seed, &FaultKind::ALL));
        if let Some(what) = outcome.violation {
            panic!("{what}\nreplay it with: levee lab verify --seed {seed}");
        }
        coverage.add(&outcome.coverage);
    }
    let exercised = [
        ("operations", coverage.requests),
        ("crashes with I/O in flight", coverage.crashes_in_flight),
        ("recoveries", coverage.recoveries),
        ("clean restarts", coverage.restarts),
        ("deletions", coverage.deletions),
        ("audits", coverage.audits),
        ("virtual machines", coverage.guests),
        ("answers to a virtual machine by a later life", coverage.carried_over),
        ("resets by drivers of virtual machines", coverage.driver_resets),
        ("sectors", coverage.sectors),
        ("worlds of one server", coverage.alone),
        ("worlds of several", coverage.several),
        ("deaths of managers", coverage.events.get(&Event::Death(Role::Manager)).copied().unwrap_or(0)),
        ("deaths of servers", coverage.events.get(&Event::Death(Role::Server)).copied().unwrap_or(0)),
        ("moves", coverage.events.get(&Event::Move).copied().unwrap_or(0)),
        ("other owners", coverage.events.get(&Event::Handover).copied().unwrap_or(0)),
        ("terms", coverage.events.get(&Event::Term).copied().unwrap_or(0)),
    ];
    for (what, count) in exercised {
        println!("{what}: {count}");
        assert!(count > 0 || seeds < 20, "no {what}");
    }
}
