//! A quick look at the experiments on queues of virtual machines and several loops, and at the one in real time. All points with
//! all requests: `levee lab run osdi24 --necessity`.

use std::cell::Cell;
use std::time::Duration;

use lab::experiments::osdi24::{Measured, Osdi24, Parameters, Point};
use lab::experiments::{FromFile, Mechanism, Outcome, Paper, Row, Setup};

/// The figure with few requests of its first points.
fn look(name: &str, points: usize, changes: &[&str], without: Option<Mechanism>) -> Vec<Row> {
    let changes: Vec<String> =
        ["machines_warm_up_us=5000"].iter().chain(changes).map(|change| (*change).to_owned()).collect();
    let parameters = Parameters::with(&changes).unwrap();
    let (experiment, setup) =
        (Osdi24::find(name).unwrap(), Setup { parameters, requests: 4_000, seed: 1, without, trace: None });
    let points = experiment.points(&setup).into_iter().take(points);
    let measured: Vec<(Point, Measured)> =
        points.map(|point| (point.clone(), point.measure(&|| Duration::ZERO))).collect();
    experiment.judge(&setup, &measured)
}

/// The row of that name.
fn row<'a>(rows: &'a [Row], what: &str) -> &'a Row {
    rows.iter().find(|row| row.what.contains(what)).unwrap_or_else(|| panic!("{what} in {rows:?}"))
}

#[test]
fn the_same_seed_is_the_same_result() {
    let rows = || format!("{:?}", look("osdi24/fig11", 3, &[], None));
    assert_eq!(rows(), rows());
}

/// The victim waits for a burst of its loop, and not where all loops serve all queues.
#[test]
fn who_shares_a_loop_with_a_burst_waits_for_it() {
    let what = "what it waits for beside the burst, static by shared";
    let usual = row(&look("osdi24/fig6", 4, &[], None), what).measured;
    let without = row(&look("osdi24/fig6", 4, &[], Some(Mechanism::SharedQueues)), what).measured;
    assert!(usual > 1.5 && without == 1.0, "{usual} times as long, {without} without shared queues");
}

/// What is lost with baselines in software is what their messages take.
#[test]
fn stealing_and_a_dispatcher_pay_for_messages() {
    let usual = look("osdi24/fig11", 4, &[], None);
    let free = look("osdi24/fig11", 4, &[], Some(Mechanism::Messages));
    for way in ["Stealing", "Dispatcher"] {
        let [usual, free] = [&usual, &free].map(|rows| row(rows, way).measured);
        assert!(usual < -10.0 && free > usual + 5.0, "{way}: {usual}%, {free}% where messages cost nothing");
    }
    assert!(row(&usual, "Shared").measured > -10.0, "{usual:?}");
}

/// Six loops in place of one, on which a machine has one queue.
#[test]
fn one_queue_needs_to_be_shared_to_scale() {
    let changes = ["scaled_loops=[2]"];
    let usual = look("osdi24/fig18", 4, &changes, None);
    assert_eq!(row(&usual, "short of processor time").outcome(), Some(Outcome::Met), "{usual:?}");
    assert_eq!(row(&usual, "most by least throughput").outcome(), Some(Outcome::Met), "{usual:?}");
    let without = look("osdi24/fig18", 4, &changes, Some(Mechanism::SharedQueues));
    for what in ["short of processor time", "most by least throughput"] {
        assert_eq!(row(&without, what).outcome(), Some(Outcome::Missed), "{without:?}");
    }
}

/// The clock is an argument: with one by which each window takes a microsecond, that is what comes out.
#[test]
fn what_a_window_takes_is_what_the_clock_says() {
    let parameters = Parameters::with(&["known_tenants=[4,128]".to_owned()]).unwrap();
    let (experiment, setup) =
        (Osdi24::find("osdi24/fig25").unwrap(), Setup { parameters, requests: 1, seed: 1, without: None, trace: None });
    let (calls, now) = (Cell::new(0), Cell::new(0));
    // Of three looks the last two are what is timed, and the first two what a look takes.
    let clock = || {
        calls.set(calls.get() + 1);
        now.set(now.get() + [7, 1, 2][(calls.get() - 1) % 3]);
        Duration::from_micros(now.get())
    };
    let points = experiment.points(&setup).into_iter();
    let measured: Vec<(Point, Measured)> = points.map(|point| (point.clone(), point.measure(&clock))).collect();
    let rows = experiment.judge(&setup, &measured);
    for what in ["all active", "64 of them active", "4 active of 4", "64 active of 128"] {
        assert_eq!(row(&rows, what).measured, 1.0, "{rows:?}");
    }
    assert_eq!(row(&rows, "time of a tenant").measured, 1.0 / 32.0);
}
