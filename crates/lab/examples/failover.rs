//! When segments are served again after one of many servers died, in the simulated world with charged processor time:
//! `cargo run --release -p lab --example failover [SEED [SEEDS [FILE]]]`. The parameters, and where they come from, are in
//! `crates/lab/parameters/failover.toml`; FILE is one with others.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a tool for the command line")]

use std::time::Duration;

use mimalloc::MiMalloc;

use lab::experiments::failover::Failover;

/// As in `levee`.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).map_or(1, |text| text.parse::<u64>().expect("a number"));
    let (first, seeds) = (number(0), number(1));
    let settings = match arguments.get(2) {
        Some(file) => Failover::parse(&std::fs::read_to_string(file).expect("the file can be read")),
        None => Failover::from_file(),
    };
    let settings = settings.expect("the file is sound");
    println!("{} servers, {} volumes of four segments", settings.servers, settings.volumes);
    println!("{:>6} {:>9} {:>12} {:>12} {:>7}", "seed", "segments", "half, ms", "all, ms", "never");
    for seed in first..first + seeds {
        let resumed = settings.measure(seed);
        // Those of the dead are the slowest.
        let of_dead = &resumed.after[resumed.after.len().saturating_sub(resumed.lost)..];
        let ms = |time: Option<&Duration>| time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
        let (half, all) = (ms(of_dead.get(of_dead.len() / 2)), ms(of_dead.last()));
        println!("{seed:>6} {:>9} {half:>12.1} {all:>12.1} {:>7}", resumed.lost, resumed.never);
    }
}
