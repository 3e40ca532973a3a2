//! A quick look at the experiments: they run, the same seed gives the same, and each figure needs what it is about.

use lab::experiments::nsdi26::{Measured, Nsdi26, Parameters, Point};
use lab::experiments::row::Better;
use lab::experiments::{FromFile, Mechanism, Outcome, Paper, Row, Setup};

/// Few requests on one server, of the first points only: the last percentiles mean little.
fn look(name: &str, points: usize, without: Option<Mechanism>) -> Vec<Row> {
    let whole = Parameters::from_file().unwrap();
    let parameters = if points == 0 { whole } else { Parameters { servers: 1, ..whole } };
    let (experiment, setup) =
        (Nsdi26::find(name).unwrap(), Setup { parameters, requests: 100_000, seed: 1, without, trace: None });
    let points = experiment.points(&setup).into_iter().take(points);
    let measured: Vec<(Point, Measured)> = points.map(|point| (point.clone(), point.measure())).collect();
    experiment.judge(&setup, &measured)
}

#[test]
fn names_are_unique_and_found() {
    for (number, experiment) in Nsdi26::FIGURES.iter().enumerate() {
        assert!(
            Nsdi26::FIGURES[..number].iter().all(|other| other.name != experiment.name),
            "{} twice",
            experiment.name
        );
        assert!(Nsdi26::find(experiment.name).is_some() && experiment.name.starts_with("nsdi26/"));
    }
    assert!(Nsdi26::find("nsdi26/fig1").is_none());
}

/// A band that holds "no change" cannot fail.
#[test]
fn no_reduction_is_met_without_any() {
    for printed in Nsdi26::FIGURES.iter().flat_map(|experiment| experiment.printed) {
        let [low, high] = printed.band;
        assert!(low <= high && !printed.reason.is_empty() && !printed.source.is_empty(), "{}", printed.what);
        let is_reduction = printed.unit == "%" && printed.better == Better::Less;
        assert!(!is_reduction || printed.outcome(0.0) == Outcome::Missed, "{}", printed.what);
    }
}

#[test]
fn the_same_seed_is_the_same_result() {
    let rows = || format!("{:?}", look("nsdi26/rq2", 3, None));
    assert_eq!(rows(), rows());
}

/// What is compared is what the policies decide: without the mechanism that it is about, a figure is missed. The figures
/// that take few requests; `levee lab run nsdi26 --necessity` does it for all.
#[test]
fn a_figure_is_missed_without_what_it_needs() {
    for (name, points) in
        [("fig4", 0), ("fig9", 0), ("fig10", 2), ("fig13", 2), ("fig12", 4), ("rq2", 3), ("rq3-cap", 3)]
    {
        let name = format!("nsdi26/{name}");
        let usual = look(&name, points, None);
        let judged = usual.iter().filter_map(Row::outcome);
        assert!(judged.clone().count() > 0 && judged.clone().all(|outcome| outcome != Outcome::Missed), "{usual:?}");
        for mechanism in Nsdi26::find(&name).unwrap().needs() {
            let rows = look(&name, points, Some(mechanism));
            let needs = |row: &&Row| row.printed.is_some_and(|printed| printed.needs.contains(&mechanism));
            let is_missed = rows.iter().filter(needs).any(|row| row.outcome() == Some(Outcome::Missed));
            assert!(is_missed, "{name} is still met without {mechanism:?}: {rows:?}");
        }
    }
}
