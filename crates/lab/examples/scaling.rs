//! How throughput grows with the loops of a store, in the simulated world with charged processor time:
//! `cargo run --release -p lab --example scaling [SEED]`. The parameters, and where they come from, are in
//! `crates/lab/parameters/scaling.toml`.
#![allow(clippy::expect_used, clippy::print_stdout, reason = "a tool for the command line")]

use mimalloc::MiMalloc;

use lab::experiments::scaling::{Charges, Clients};

/// As in `levee`.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() {
    let seed = std::env::args().nth(1).map_or(1, |text| text.parse().expect("a number"));
    let charges = Charges::from_file().expect("the file is sound");
    println!("{} volumes, {} connections each, depth {}", charges.volumes, charges.connections, charges.depth);
    println!("{:>6} {:>9} {:>10} {:>8} {:>12}", "loops", "clients", "IOPS", "by one", "us of a loop");
    let one = charges.measure(1, Clients::Spread, seed).iops;
    for clients in [Clients::Spread, Clients::Gathered] {
        for loops in [1, 2, 4, 8] {
            let iops = charges.measure(loops, clients, seed).iops;
            let cost = f64::from(loops) * 1e6 / iops;
            println!("{loops:>6} {:>9} {iops:>10.0} {:>8.2} {cost:>12.2}", format!("{clients:?}"), iops / one);
        }
    }
}
