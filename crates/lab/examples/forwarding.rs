//! How evenly servers are asked with each way to spread writes, and how well bursts are found (DiffForward, SIGMETRICS 2023,
//! figures 2a, 13 and 20a), over traffic as that of the paper's clusters.
//!
//! `cargo run --release -p lab --example forwarding [SEEDS]`: of so many seeds of traffic (2), with twelve placements of segments
//! each, the mean and from the tenth to the ninetieth of a hundred.

use lab::experiments::sig23::balance::Balance;
use lab::experiments::sig23::detection::Detection;
use lab::experiments::sig23::schemes::{Geometry, Scheme};
use lab::experiments::sig23::workload::{Traffic, Workload, Write};
use policies::burst::{BurstSettings, Cap};

const SERVERS: usize = 5;
const PLACEMENTS: u64 = 12;
const BIN_NS: u64 = 100_000_000;
const LONG_BIN_NS: u64 = 100_000_000_000;

fn main() {
    let seeds = std::env::args().nth(1).map_or(2, |text| text.parse::<u64>().expect("a number"));
    for (name, workload) in [("W1", Workload::W1), ("W2", Workload::W2)] {
        let traffic: Vec<Traffic> = (0..seeds).map(|seed| workload.make(seed)).collect();
        println!("{name}: {seeds} seeds, {PLACEMENTS} placements each");
        println!("{:44} {:>22} {:>24}", "", "CoV", "Max/Min");
        for (label, bin_ns) in [("volumes that are not cut, 100 ms", BIN_NS), ("the same, 100 s", LONG_BIN_NS)] {
            report(label, &traffic, Scheme::Segmentation, Geometry::WHOLE, bin_ns);
        }
        for (label, scheme) in [
            ("segmentation", Scheme::Segmentation),
            ("migration, last interval", Scheme::MIGRATION_BY_LAST),
            ("migration, EWMA", Scheme::MIGRATION_BY_AVERAGE),
            ("DiffForward, TH of 50 ms", Scheme::DiffForward(BurstSettings::SENSITIVE)),
            ("DiffForward, TH of 800 ms", Scheme::DiffForward(BurstSettings::EXACT)),
        ] {
            report(label, &traffic, scheme, Geometry::PAPER, BIN_NS);
        }
        for (label, settings) in [
            ("TH of 50 ms", BurstSettings::SENSITIVE),
            ("TH of 800 ms", BurstSettings::EXACT),
            ("TH of 800 ms, QLEN left at TH", BurstSettings { cap: Cap::Threshold, ..BurstSettings::EXACT }),
        ] {
            let found = traffic.iter().map(|traffic| detect(traffic, settings)).reduce(Detection::and);
            let Detection { bytes, intervals } = found.expect("a seed");
            println!(
                "found, {label:38} recall {:.2}, precision {:.2} of bytes; {:.2}, {:.2} of intervals",
                bytes.recall(),
                bytes.precision(),
                intervals.recall(),
                intervals.precision()
            );
        }
        println!();
    }
}

fn report(label: &str, traffic: &[Traffic], scheme: Scheme, geometry: Geometry, bin_ns: u64) {
    let pairs = traffic.iter().flat_map(|traffic| (0..PLACEMENTS).map(move |placement| (traffic, placement)));
    let found: Vec<Balance> =
        pairs.map(|(traffic, placement)| Balance::of(traffic, scheme, geometry, SERVERS, bin_ns, placement)).collect();
    let text = |of: fn(&Balance) -> f64| {
        let mut all: Vec<f64> = found.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        let at = |share: f64| all[((all.len() - 1) as f64 * share).round() as usize];
        format!("{:.2} [{:.2} to {:.2}]", all.iter().sum::<f64>() / all.len() as f64, at(0.1), at(0.9))
    };
    println!("{label:44} {:>22} {:>24}", text(|one| one.cov), text(|one| one.max_by_min));
}

fn detect(traffic: &Traffic, settings: BurstSettings) -> Detection {
    let mut by_volume: Vec<Vec<Write>> = vec![Vec::new(); traffic.sizes.len()];
    traffic.writes.iter().for_each(|write| by_volume[write.volume as usize].push(*write));
    let each = by_volume.iter().map(|writes| Detection::of(writes, settings));
    each.reduce(Detection::and).unwrap_or_default()
}
