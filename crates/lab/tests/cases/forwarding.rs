//! A quick look at the experiments on where writes go: they run, the same seed gives the same, and without what a figure is about
//! it is missed. All of it: `levee lab run sig23 --necessity`.

use lab::experiments::row::Better;
use lab::experiments::sig23::{Measured, Parameters, Point, Sig23};
use lab::experiments::{FromFile, Mechanism, Outcome, Paper, Row, Setup};

/// A short while of the morning only: the first points, with few placements.
fn look(name: &str, points: usize, without: Option<Mechanism>) -> Vec<Row> {
    let parameters = Parameters::with(&["seconds=40".to_owned(), "placements=3".to_owned()]).unwrap();
    let (figure, setup) =
        (Sig23::find(name).unwrap(), Setup { parameters, requests: 1_000_000, seed: 1, without, trace: None });
    let points = figure.points(&setup).into_iter().take(points);
    let measured: Vec<(Point, Measured)> = points.map(|point| (point.clone(), point.measure())).collect();
    figure.judge(&setup, &measured)
}

/// What was measured for the number of that name, and whether it is met.
fn of(rows: &[Row], what: &str) -> (f64, Option<Outcome>) {
    let row = rows.iter().find(|row| row.what.contains(what)).unwrap_or_else(|| panic!("{what} in {rows:?}"));
    (row.measured, row.outcome())
}

#[test]
fn names_are_unique_and_no_band_of_a_reduction_holds_no_change() {
    for (number, figure) in Sig23::FIGURES.iter().enumerate() {
        assert!(Sig23::FIGURES[..number].iter().all(|other| other.name != figure.name), "{} twice", figure.name);
        assert!(Sig23::find(figure.name).is_some() && figure.name.starts_with("sig23/"));
        for printed in figure.printed {
            assert!(printed.band[0] <= printed.band[1] && printed.better == Better::Neither, "{}", printed.what);
            assert!(printed.needs.is_empty() || printed.outcome(0.0) == Outcome::Missed, "{}", printed.what);
        }
    }
    assert!(Sig23::find("sig23/fig1").is_none());
}

#[test]
fn the_same_seed_is_the_same_result() {
    let rows = || format!("{:?}", look("sig23/fig2a", 2, None));
    assert_eq!(rows(), rows());
}

#[test]
fn servers_are_as_unequal_as_bursts_make_them() {
    let what = "CoV of servers, bins of 100 ms";
    let (usual, calm) = (look("sig23/fig2a", 2, None), look("sig23/fig2a", 2, Some(Mechanism::Burst)));
    assert_eq!(
        (of(&usual, what).1, of(&calm, what).1),
        (Some(Outcome::Met), Some(Outcome::Missed)),
        "{usual:?} {calm:?}"
    );
}

#[test]
fn balance_needs_detection_and_turns() {
    let what = "CoV against segmentation, TH of the text";
    assert_eq!(of(&look("sig23/fig13", 5, None), what).1, Some(Outcome::Met));
    for mechanism in Sig23::find("sig23/fig13").unwrap().needs() {
        let rows = look("sig23/fig13", 5, Some(mechanism));
        assert_eq!(of(&rows, what).1, Some(Outcome::Missed), "{mechanism:?}: {rows:?}");
    }
    let off = look("sig23/fig13", 5, Some(Mechanism::BurstDetection));
    assert_eq!(of(&off, what).0, 0.0, "segmentation is what is left");
}

/// With the store's own agent, and merging on the same cards.
#[test]
fn writes_are_sooner_done_where_bursts_are_found_and_take_turns() {
    let what = "average of writes against segmentation";
    let usual = look("sig23/fig14", 2, None);
    assert_eq!(of(&usual, what).1, Some(Outcome::Met), "{usual:?}");
    assert_eq!(of(&usual, "P99 of writes against segmentation").1, Some(Outcome::Met), "{usual:?}");
    for mechanism in Sig23::find("sig23/fig14").unwrap().needs() {
        let rows = look("sig23/fig14", 2, Some(mechanism));
        assert_eq!(of(&rows, what).1, Some(Outcome::Missed), "{mechanism:?}: {rows:?}");
    }
}

#[test]
fn nothing_is_found_without_a_detector() {
    let what = "recall by intervals, TH of the prototype";
    assert_eq!(of(&look("sig23/fig20a", 3, None), what).1, Some(Outcome::Met));
    assert_eq!(of(&look("sig23/fig20a", 3, Some(Mechanism::BurstDetection)), what).0, 0.0);
}
