//! Real traces as the load of an experiment. They are not part of the project: where they are missing, that is said.

use std::path::PathBuf;
use std::sync::Arc;

use lab::experiments::nsdi26::{Measured, Nsdi26, Parameters, Point};
use lab::experiments::sig23::detection::Detection;
use lab::experiments::sig23::workload::writes_of;
use lab::experiments::trace::Request;
use lab::experiments::trace_statistics::{Statistics, Summary};
use lab::experiments::{FromFile, Paper, Setup, Trace};
use policies::burst::{BurstSettings, Cap};

fn read(name: &str) -> Option<Trace> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces")).join(name);
    match std::fs::read(&path) {
        Ok(bytes) => Some(Trace::parse(name, &bytes).unwrap()),
        Err(_) => {
            eprintln!("skipped: there is no ../shared/traces/{name}");
            None
        }
    }
}

#[test]
fn traces_of_both_formats_are_read_whole() {
    for (name, requests, largest) in [
        ("cloudPhysicsIO.vscsi", 113_872, 69_632),
        ("msr.cut.per_10k.rw_20_80.105.trace", 10_000, 65_536),
        ("msr.cut.per_10k.rw_40_60.1370.trace", 10_000, 65_536),
    ] {
        let Some(trace) = read(name) else { continue };
        assert_eq!(format!("{trace:?}"), format!("{name} with {requests} requests"));
        assert_eq!(trace.sizes().1, largest);
    }
}

/// Sizes and mixes are the trace's, so that four mixes are one; what comes of it is shown and not judged.
#[test]
fn a_trace_takes_the_place_of_a_figures_load() {
    let Some(trace) = read("cloudPhysicsIO.vscsi") else { return };
    let experiment = Nsdi26::find("nsdi26/fig10").unwrap();
    let parameters = Parameters { servers: 1, ..Parameters::from_file().unwrap() };
    let trace = Some(Arc::new(trace));
    let setup = Setup { parameters, requests: 20_000, seed: 1, without: None, trace };
    let points = experiment.points(&setup);
    assert_eq!(points.len(), 2, "one bucket and two");
    let measured: Vec<(Point, Measured)> = points.into_iter().map(|point| (point.clone(), point.measure())).collect();
    let [(_, one), (_, two)] = measured.as_slice() else { panic!("two points") };
    assert!(one.requests >= 20_000 && two.requests >= 20_000);
    let rows = experiment.judge(&setup, &measured);
    assert!(!rows.is_empty() && rows.iter().all(|row| row.outcome().is_none() && row.measured.is_finite()), "{rows:?}");
}

/// As they were measured by other means before there was this: how uneven for reads and writes together, all else of writes.
#[test]
fn real_disks_are_as_uneven_as_they_are_known_to_be() {
    for (name, cov, peak, random, writes, sizes, small) in [
        ("cloudPhysicsIO.vscsi", 9.54, 486.0, 0.20, 0.587, [40, 64, 68], 0.47),
        ("msr.cut.per_10k.rw_20_80.105.trace", 2.41, 27.0, 0.39, 0.80, [4, 8, 16], 0.94),
        ("msr.cut.per_10k.rw_40_60.1370.trace", 3.08, 44.0, 0.29, 0.60, [3, 4, 8], 0.95),
    ] {
        let Some(trace) = read(name) else { continue };
        let of = |all: bool| -> Summary {
            let mut statistics = Statistics::default();
            let requests = trace.requests().iter();
            let requests = requests.map(|request| Request { is_write: request.is_write || all, ..*request });
            requests.for_each(|request| statistics.add(request).unwrap());
            statistics.summary().unwrap()
        };
        let (found, all) = (of(false), of(true));
        println!("{name}: {found:?}, all {all:?}");
        let share = found.writes.requests as f64 / (found.writes.requests + found.reads.requests) as f64;
        assert!((all.cov / cov - 1.0).abs() < 0.02 && (all.peak / peak - 1.0).abs() < 0.02, "{all:?}");
        assert!((found.random_writes - random).abs() < 0.02 && (share - writes).abs() < 0.01, "{found:?}");
        assert!((found.small_writes - small).abs() < 0.01, "{found:?}");
        let kib = found.write_sizes.map(|size| size / 1024);
        assert!(kib[0] == sizes[0] && kib[2] == sizes[2], "{kib:?}");
    }
}

/// DiffForward's detector over a real trace of two hours. The paper prints a recall of about 80% and a precision of about 90% for
/// a trace of its own (band, by intervals: 0.75 to 0.95 and 0.8 to 0.95). The sensitive one finds more than is there.
#[test]
fn bursts_of_a_real_disk_are_found() {
    let Some(trace) = read("cloudPhysicsIO.vscsi") else { return };
    let writes = writes_of(&trace).writes;
    let of = |settings| {
        let Detection { bytes, intervals } = Detection::of(&writes, Some(settings));
        [bytes.recall(), bytes.precision(), intervals.recall(), intervals.precision()]
    };
    let exact = of(BurstSettings::EXACT);
    let capped = of(BurstSettings { cap: Cap::Threshold, ..BurstSettings::EXACT });
    let sensitive = of(BurstSettings::SENSITIVE);
    println!("exact {exact:.2?}, with QLEN at TH {capped:.2?}, sensitive {sensitive:.2?}");
    assert!((0.75..0.95).contains(&exact[2]) && (0.8..0.95).contains(&exact[3]), "{exact:?}");
    assert!(sensitive[2] > 0.95 && sensitive[3] < 0.5, "{sensitive:?}");
    // Without randomness more is found that is none.
    let blind = of(BurstSettings { weight_sequential: 100, ..BurstSettings::EXACT });
    assert!(blind[3] < exact[3] - 0.05, "{blind:?}");
}
