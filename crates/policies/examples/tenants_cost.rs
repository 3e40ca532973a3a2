//! What the scheduler of tenants takes for a request. What it takes for a window is `levee lab run osdi24/fig25`.
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

fn main() {
    for scheduling in [Scheduling::Off, Scheduling::Wild, Scheduling::Base, Scheduling::Bios] {
        let (median, lowest) = request(scheduling);
        println!("one request, {scheduling:?}: median {median:.0} ns, lowest {lowest:.0} ns");
    }
}
