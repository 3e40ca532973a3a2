//! What `bandwidth = "auto"` finds, on disks of very different kinds: does a steady volume keep its latency beside a burst,
//! and is it as good as the best limit that anybody could have set?
//!
//! `cargo test --release -p policies --test knee -- --ignored --nocapture` prints the table of docs/RESULTS.md.

mod disks;
mod world;

use base::MIB;
use disks::{DISKS, Disk};
use policies::admission::knee::KneeSettings;
use policies::admission::{AdmissionSettings, Throttle};
use world::{Load, Outcomes, run, run_stores};

/// Limits that are tried to find the best one.
const LIMITS: u32 = 20;
/// What a neighbour may cost: the best limit is the highest one that keeps to it.
const STRETCH_MAX: f64 = 2.0;

/// A steady volume that asks for a tenth of what the disk does, and a burst.
fn load_for(disk: &Disk) -> Load {
    let channels = disk.channels as u64 * 1_000_000_000 / disk.service_ns[0];
    let most = disk.sold.map_or(channels, |sold| channels.min(sold.iops)).min(disk.bus_bytes_per_sec / 24_000);
    let seconds = if disk.halved.is_some() { 100 } else { 30 };
    Load { steady_per_sec: (most / 10).max(5), depth: 128, sizes: (12, 16), reads: 50, seconds, warm_up: 10 }
}

fn auto() -> AdmissionSettings {
    AdmissionSettings { learns: Some(KneeSettings::default()), ..AdmissionSettings::default() }
}

fn fixed(limit_bytes_per_sec: u64) -> AdmissionSettings {
    AdmissionSettings { limit_bytes_per_sec, ..AdmissionSettings::default() }
}

fn off() -> AdmissionSettings {
    AdmissionSettings { throttle: Throttle::Off, ..AdmissionSettings::default() }
}

/// How many times its p99 alone the steady volume has.
fn stretch(disk: &Disk, found: &Outcomes, seed: u64) -> f64 {
    let alone = run(*disk, off(), Load { depth: 0, ..load_for(disk) }, seed);
    found.p99 as f64 / alone.p99 as f64
}

#[test]
fn a_steady_volume_keeps_its_latency_on_every_disk() {
    // How much a burst may cost, and what it gets at least of what it gets without a throttle. A request of a hard disk
    // waits for the one before, whatever the limit is, and half a disk is a disk of half the rate.
    let bands = [(12.0, 0.8), (3.5, 0.12), (3.5, 0.1), (2.0, 0.8), (6.0, 0.12)];
    for (disk, (most, least)) in DISKS.iter().zip(bands) {
        let free = run(*disk, off(), load_for(disk), 7);
        let found = run(*disk, auto(), load_for(disk), 7);
        let [without, with] = [&free, &found].map(|outcomes| stretch(disk, outcomes, 7));
        let share = found.burst / free.burst;
        assert!(with <= most && share >= least, "{}: {with:.2} times its p99 alone, {share:.2} of it", disk.name);
        assert!(without > 2.0 * most, "{}: {without:.2} without a throttle: this shows nothing", disk.name);
    }
}

#[test]
fn a_burst_that_is_alone_has_everything() {
    for disk in DISKS.iter().filter(|disk| disk.halved.is_none()) {
        let load = Load { steady_per_sec: 0, ..load_for(disk) };
        let share = run(*disk, auto(), load, 3).burst / run(*disk, off(), load, 3).burst;
        assert!((0.99..=1.01).contains(&share), "{}: {share:.3}", disk.name);
    }
}

#[test]
fn two_stores_on_one_disk_find_limits_that_leave_room_for_each_other() {
    for disk in DISKS.iter().filter(|disk| matches!(disk.name, "SATA SSD" | "NVMe")) {
        let load = Load { steady_per_sec: load_for(disk).steady_per_sec / 2, ..load_for(disk) };
        let found = run_stores(*disk, auto(), load, 5, 2);
        let free = run_stores(*disk, off(), load, 5, 2);
        let stretches = |outcomes: &[Outcomes]| [0, 1].map(|store| stretch(disk, &outcomes[store], 5));
        let (with, without, shares) = (stretches(&found), stretches(&free), found[0].burst / found[1].burst);
        println!("{}: {with:.2?} times alone, {without:.2?} without a throttle, bursts {found:.0?}", disk.name);
        assert!(with.iter().all(|with| *with < 5.0 && without[0] > 2.0 * with), "{}: {with:.2?}", disk.name);
        assert!((0.33..3.0).contains(&shares), "{}: one has {shares:.2} times what the other has", disk.name);
    }
}

#[test]
#[ignore = "a table: run it with --release and --nocapture"]
fn compared_with_the_best_limit() {
    println!(
        "| disk | off: p99 / alone | best limit: burst MiB/s, p99 / alone | auto: burst MiB/s, p99 / alone | burst, of the best's | p99, of the best's |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    for disk in &DISKS {
        let load = load_for(disk);
        let mut rows = Vec::new();
        for seed in 1..=3 {
            let free = run(*disk, off(), load, seed);
            let tried = (1..=LIMITS).map(|step| free.burst * 1.3 * f64::from(step) / f64::from(LIMITS));
            let tried = tried.map(|limit| run(*disk, fixed(limit as u64), load, seed));
            let tried = tried.filter(|outcomes| stretch(disk, outcomes, seed) <= STRETCH_MAX);
            let best = tried.max_by(|one, other| one.burst.total_cmp(&other.burst));
            rows.push((stretch(disk, &free, seed), best, run(*disk, auto(), load, seed), seed));
        }
        let mib = |bytes: f64| bytes / MIB as f64;
        // The middle one of the seeds.
        rows.sort_by_key(|(_, _, found, _)| found.p99);
        let (free, best, found, seed) = rows.swap_remove(1);
        let best_text =
            best.map_or("none".into(), |best| format!("{:.0}, {:.2}", mib(best.burst), stretch(disk, &best, seed)));
        let compared =
            |ratio: &dyn Fn(&Outcomes) -> f64| best.map_or("-".into(), |best| format!("{:.2}", ratio(&best)));
        println!(
            "| {} | {free:.1} | {best_text} | {:.0}, {:.2} | {} | {} |",
            disk.name,
            mib(found.burst),
            stretch(disk, &found, seed),
            compared(&|best| found.burst / best.burst),
            compared(&|best| found.p99 as f64 / best.p99 as f64),
        );
    }
}
