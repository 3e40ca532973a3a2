//! How much faster than real time a simulated store is under a steady load:
//! `cargo run --release -p lab --example pace [SECONDS [SEED]]`.
//!
//! One client reads or writes 4 KiB a thousand times a second, without accidents. Everything that a run does is counted:
//! client, network, server, engine, disks, and the checks at the end. One thread.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a tool for the command line")]
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "it measures the simulation from outside")]

use std::time::Instant;

use mimalloc::MiMalloc;

use lab::verify::{Plan, run};

/// As in `levee`.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Requests in each simulated second.
const IOPS: u64 = 1_000;

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let (seconds, seed) = (numbers.next().unwrap_or(60), numbers.next().unwrap_or(1));
    let plan = Plan::steady(seed, IOPS, seconds);
    let begun = Instant::now();
    let outcome = run(&plan);
    let wall = begun.elapsed();
    assert_eq!(outcome.violation, None);
    let coverage = outcome.coverage;
    let per_request = wall.as_secs_f64() / coverage.requests as f64;
    println!(
        "{} requests in {:.2} s, {:.1} us each: {:.0} times real time at {IOPS} IOPS",
        coverage.requests,
        wall.as_secs_f64(),
        per_request * 1e6,
        1.0 / IOPS as f64 / per_request,
    );
}
