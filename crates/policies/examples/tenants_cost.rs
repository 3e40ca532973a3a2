//! What the scheduler of tenants takes for a request, and at the beginning of a window: the latter as `levee lab run
//! osdi24/fig25` measures it, without the rest of the store to build.
//!
//! Medians of rounds; on a machine that does something else, too, the lowest is nearer to the truth: both are printed.
#![allow(clippy::expect_used, clippy::disallowed_methods, reason = "a tool for the command line")]

use std::hint::black_box;
use std::time::Instant as Clock;

use base::Instant;
use policies::tenants::{
    Cost, Frontend, Operation, Promise, Scheduler, Scheduling, TenantsSettings, Verdict, VolumeNumber,
};

const WINDOW: u64 = 1_000_000;
const ROUNDS: usize = 2_000;

fn scheduler(known: u64, scheduling: Scheduling) -> (Scheduler<()>, Vec<VolumeNumber>) {
    let settings = TenantsSettings { scheduling, ..TenantsSettings::default() };
    let mut scheduler = Scheduler::new(settings, 1, Instant(0));
    let base = Some(Cost([2e8 / known as f64, 1e9, 1e9, 1e9]));
    let volumes = (0..known).map(|key| {
        let tenant = scheduler.add_tenant(key, Promise { base, burst: None });
        scheduler.add_volume(tenant, 0, 1)
    });
    let volumes = volumes.collect();
    (scheduler, volumes)
}

fn spread(mut rounds: Vec<f64>) -> (f64, f64) {
    rounds.sort_by(f64::total_cmp);
    (rounds[rounds.len() / 2], rounds[0])
}

/// Nanoseconds of one request with two tenants, one of which bursts.
fn request(scheduling: Scheduling) -> (f64, f64) {
    let (mut scheduler, volumes) = scheduler(2, scheduling);
    let mut rounds = Vec::new();
    for window in 1..ROUNDS as u64 {
        let begun = Clock::now();
        for number in 0..100 {
            let now = Instant(window * WINDOW + number * 10_000);
            let cost = scheduler.cost(Frontend::Nbd, Operation::Read, 4096);
            let volume = volumes[usize::from(number % 10 > 0)];
            if black_box(scheduler.submit(now, volume, cost, || ())) == Verdict::Wait {
                black_box(scheduler.next_grant(now));
            }
            scheduler.on_delay(5_000);
        }
        rounds.push(begun.elapsed().as_nanos() as f64 / 100.0);
    }
    spread(rounds)
}

/// Microseconds of the beginning of a window, where so many of the known tenants ask for something in each: more than there
/// is if they are many, so that lines grow.
fn window(known: u64, active: usize) -> (f64, f64) {
    let (mut scheduler, volumes) = scheduler(known, Scheduling::Bios);
    let cost = scheduler.cost(Frontend::VhostUser, Operation::Read, 4096);
    let mut rounds = Vec::new();
    for window in 1..ROUNDS as u64 {
        let now = Instant(window * WINDOW);
        for volume in &volumes[..active] {
            black_box(scheduler.submit(now, *volume, cost, || ()));
        }
        while scheduler.next_grant(now).is_some() {}
        let begun = Clock::now();
        black_box(scheduler.next_grant(Instant((window + 1) * WINDOW)));
        rounds.push(begun.elapsed().as_nanos() as f64 / 1e3);
    }
    // The first ones have more to do.
    spread(rounds.split_off(ROUNDS / 10))
}

fn main() {
    for (known, active) in [(64, 64), (256, 256), (1024, 1024), (1024, 64)] {
        let (median, lowest) = window(known, active);
        println!("a window, {active} of {known} tenants active: median {median:.1} us, lowest {lowest:.1} us");
    }
    for scheduling in [Scheduling::Off, Scheduling::Wild, Scheduling::Base, Scheduling::Bios] {
        let (median, lowest) = request(scheduling);
        println!("one request, {scheduling:?}: median {median:.0} ns, lowest {lowest:.0} ns");
    }
}
