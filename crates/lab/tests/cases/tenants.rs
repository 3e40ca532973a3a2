//! A quick look at the experiments on tenants: they run, the same seed gives the same, and without what a figure is about it
//! is another one. All points with all requests, and which figures are missed without what: `levee lab run osdi24 --necessity`.

use std::time::Duration;

use lab::experiments::osdi24::{Measured, Osdi24, Parameters, Point};
use lab::experiments::row::Better;
use lab::experiments::{FromFile, Mechanism, Outcome, Paper, Row, Setup};

/// Few requests of the first points, with the burst at its highest depth only, after a short warm-up.
fn look(name: &str, points: usize, without: Option<Mechanism>) -> Vec<Row> {
    let changes = ["bps_depths=[64]", "iops_depths=[128]", "warm_up_us=100000", "wake_iops=[30000,60000]"];
    let parameters = Parameters::with(&changes.map(str::to_owned)).unwrap();
    let (experiment, setup) =
        (Osdi24::find(name).unwrap(), Setup { parameters, requests: 4_000, seed: 1, without, trace: None });
    let points = experiment.points(&setup).into_iter().take(points);
    let measured: Vec<(Point, Measured)> =
        points.map(|point| (point.clone(), point.measure(&|| Duration::ZERO))).collect();
    experiment.judge(&setup, &measured)
}

/// The row of that name.
fn value(rows: &[Row], what: &str) -> f64 {
    rows.iter().find(|row| row.what.contains(what)).unwrap_or_else(|| panic!("{what} in {rows:?}")).measured
}

#[test]
fn names_are_unique_and_no_band_holds_no_change() {
    for (number, experiment) in Osdi24::FIGURES.iter().enumerate() {
        assert!(
            Osdi24::FIGURES[..number].iter().all(|other| other.name != experiment.name),
            "{} twice",
            experiment.name
        );
        assert!(Osdi24::find(experiment.name).is_some() && experiment.name.starts_with("osdi24/"));
        for printed in experiment.printed {
            let [low, high] = printed.band;
            assert!(low <= high && !printed.reason.is_empty() && !printed.source.is_empty(), "{}", printed.what);
            let is_reduction = printed.unit == "%" && printed.better == Better::Less;
            assert!(!is_reduction || printed.outcome(0.0) == Outcome::Missed, "{}", printed.what);
        }
    }
    assert!(Osdi24::find("osdi24/fig1").is_none());
}

#[test]
fn the_same_seed_is_the_same_result() {
    let rows = || format!("{:?}", look("osdi24/fig20", 3, None));
    assert_eq!(rows(), rows());
}

/// Points come as WildCBS, BaseCBS and ours.
#[test]
fn latency_and_base_of_the_quiet_one_need_the_scheduler() {
    for name in ["osdi24/fig19", "osdi24/fig20", "osdi24/fig21"] {
        let usual = look(name, 3, None);
        assert!(usual.iter().filter_map(Row::outcome).all(|outcome| outcome == Outcome::Met), "{usual:?}");
        let rows = look(name, 3, Some(Mechanism::TenantScheduler));
        assert!(rows.iter().filter_map(Row::outcome).any(|outcome| outcome == Outcome::Missed), "{rows:?}");
    }
}

#[test]
fn wild_fails_where_ours_does_not() {
    let rows = look("osdi24/fig22", 15, None);
    assert_eq!(value(&rows, "WildCBS"), 5.0, "all that were looked at");
    assert!(value(&rows, "IOPS-intensive burst, kind with least") >= 18.0, "{rows:?}");
}

#[test]
fn a_burst_pays_with_the_reserve_and_base_cbs_halves_it() {
    let rows = look("osdi24/fig23", 4, None);
    assert!(rows.iter().filter_map(Row::outcome).all(|outcome| outcome == Outcome::Met), "{rows:?}");
    let (with, without) = (value(&rows, ", lost"), value(&rows, "lost without a reserve"));
    assert!(with > without + 3.0, "{with}% lost, {without}% without a reserve");
}

#[test]
fn who_wakes_within_his_base_needs_recovery() {
    let rows = look("osdi24/fig24", 2, None);
    assert_eq!(value(&rows, "wakes within"), 0.0, "{rows:?}");
    assert!(value(&rows, "60 k") > 0.0, "{rows:?}");
    let without = look("osdi24/fig24", 2, Some(Mechanism::Recovery));
    assert!(value(&without, "wakes within") > 0.0, "{without:?}");
}

/// Only that they say something, and what a mechanism that is off is compared with: what they say is in docs/RESULTS.md.
#[test]
fn wrong_costs_are_measured() {
    let rows = look("osdi24/table3", 4, None);
    assert!(value(&rows, "with adjustment").is_finite() && value(&rows, "without adjustment") < -10.0, "{rows:?}");
    let without = look("osdi24/table3", 4, Some(Mechanism::CostAdjustment));
    assert_eq!(value(&without, "reads, with adjustment"), value(&without, "reads, without adjustment"), "{without:?}");
}

/// One burst is short of processor time and one of bytes: with a vector each has what the other leaves.
#[test]
fn mixed_bursts_need_a_vector() {
    let rows = look("osdi24/fig16", 2, None);
    assert!(value(&rows, "mixed bursts") >= 20.0, "{rows:?}");
    assert_eq!(value(&look("osdi24/fig16", 2, Some(Mechanism::VectorCost)), "mixed bursts"), 0.0);
}
