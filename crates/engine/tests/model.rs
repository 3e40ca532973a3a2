//! The engine against an array of sectors, under everything that can go wrong at once.
//!
//! Each seed is one world: a store with small files, so that journals fill, caches are dumped, tables are merged and
//! data files are collected all the time; a few clients that read, write, discard and delete; and lives that end by
//! a close, a kill, or a loss of power at any moment, also while the engine is being opened. After every life the
//! engine is opened again and everything is read.
//!
//! `LEVEE_SEEDS` is the number of seeds of each test, `LEVEE_BASE` the first one (otherwise it is new in each run, and
//! printed), `LEVEE_SEED` replays one, with `LEVEE_LOG` to see what the engine says and `LEVEE_SECTOR` to see what
//! happened to one sector. A test fails if something that it is there for never happened in all of its seeds.

mod model {
    pub mod bed;
    pub mod clients;
    pub mod coverage;
    pub mod scenario;
    pub mod sectors;
    pub mod world;
}

use std::hash::{BuildHasher, Hasher};

use model::coverage::Coverage;
use model::scenario::Scenario;
use model::world::run_seed;

/// What happens in every scenario.
const ALWAYS: &[&str] = &[
    "recoveries",
    "ended_while_opening",
    "kills",
    "power_losses",
    "closes",
    "dumps",
    "merged_blocks",
    "large_writes",
    "discards",
    "checkpoints",
    "flushes",
    "merges",
    "gc_moved_bytes",
    "gc_removed_files",
    "scrub_rounds",
    "relocated_reads",
    "read_ahead_used_bytes",
    "replayed_writes",
    "shadowed_writes",
    "torn_tails",
    "memory_waits",
    "emptied",
];

/// Runs the seeds of one test, and fails if something that it is there for never happened.
fn run(scenario: Scenario, seeds_default: u64, required: &[&str]) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let mut coverage = Coverage::default();
    if std::env::var("LEVEE_LOG").is_ok() {
        // A second test of the same process finds it installed already.
        let _ = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).without_time().try_init();
    }
    let name = scenario.name();
    if let Some(seed) = number("LEVEE_SEED") {
        run_seed(scenario, seed, &mut coverage);
        println!("{name}, seed {seed}: {coverage}");
        return;
    }
    let seeds = number("LEVEE_SEEDS").unwrap_or(seeds_default);
    // The standard library seeds its hasher from the system.
    let fresh = || std::hash::RandomState::new().build_hasher().finish() >> 16;
    let base = number("LEVEE_BASE").unwrap_or_else(fresh);
    println!("{name}: {seeds} seeds from {base}");
    for seed in base..base + seeds {
        run_seed(scenario, seed, &mut coverage);
    }
    println!("{name}: {coverage}");
    let never: Vec<&&str> = ALWAYS.iter().chain(required).filter(|name| coverage.get(name) == 0).collect();
    assert!(seeds < seeds_default || never.is_empty(), "{seeds} seeds, and never: {never:?}");
}

#[test]
fn everyday() {
    run(Scenario::Everyday, 1500, &["tombstones_dropped", "proven_large_writes", "rejected_large_writes"]);
}

#[test]
fn full_disk() {
    run(Scenario::FullDisk, 800, &["full_hits", "full_replies", "tombstones_dropped"]);
}

#[test]
fn bad_copies() {
    let required = &["spoiled", "mismatches", "repaired", "lost_ranges", "lost_replies", "poisoned_blocks"];
    run(Scenario::BadCopies, 1200, required);
}

/// Content that rots in all copies after a start has proven it is lost, and no write that never landed: the next start says
/// so, and gives nobody what stood there before.
#[test]
fn what_a_start_has_proven_the_next_one_does_not_doubt() {
    for seed in [119_411_544_134_024, 11_757_582_660_417] {
        run_seed(Scenario::BadCopies, seed, &mut Coverage::default());
    }
}

#[test]
fn faults() {
    let required =
        &["write_faults", "read_faults", "slow_faults", "failed_replies", "failed_opens", "dump_retries", "lost_reads"];
    run(Scenario::Faults, 1200, required);
}

#[test]
fn local() {
    run(Scenario::Local, 600, &["proven_large_writes"]);
}
