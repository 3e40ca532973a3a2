//! A quick look at the experiments: they run, the same seed gives the same, and the policies decide what comes out.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test panics where something is not as it should be")]

use lab::experiments::{ALL, Measured, Parameters, Point, Row, find};

/// Few requests on one server: the last percentiles mean little.
fn look(name: &str, change: impl Fn(Point) -> Point) -> Vec<Row> {
    let parameters = Parameters { servers: 1, ..Parameters::from_file().unwrap() };
    let experiment = find(name).unwrap();
    let points = (experiment.points)(&parameters).into_iter().take(4);
    let points = points.map(|point| change(Point { requests: 120_000, seed: 1, ..point }));
    let measured: Vec<(Point, Measured)> = points.map(|point| (point.clone(), point.measure())).collect();
    (experiment.judge)(&parameters, &measured)
}

#[test]
fn names_are_unique_and_found() {
    for (number, experiment) in ALL.iter().enumerate() {
        assert!(ALL[..number].iter().all(|other| other.name != experiment.name), "{} twice", experiment.name);
        assert!(find(experiment.name).is_some() && experiment.name.starts_with("nsdi26/"));
    }
    assert!(find("nsdi26/fig1").is_none());
}

#[test]
fn the_example_of_the_loop_is_exact() {
    let rows = look("nsdi26/fig9", |point| point);
    assert!(rows.len() == 3 && rows.iter().all(Row::is_met), "{rows:?}");
}

#[test]
fn the_same_seed_is_the_same_result() {
    let rows = || format!("{:?}", look("nsdi26/rq2", |point| point));
    assert_eq!(rows(), rows());
}

/// What is compared is what the policies decide: with the second bucket taken away, or with segments that are never
/// hot, the figure is not the same.
#[test]
fn a_mistake_in_the_policies_shows_in_the_figure() {
    let tail_of_steady = |rows: &[Row]| rows.iter().find(|row| row.what.contains("P99 of steady")).unwrap().measured;
    let usual = tail_of_steady(&look("nsdi26/fig10", |point| point));
    assert!(usual < -80.0, "{usual}% with two buckets");
    let without_cheque = look("nsdi26/fig10", |point| Point { tune: |settings| settings.cheque_permille = 0, ..point });
    assert!(tail_of_steady(&without_cheque) > usual + 20.0, "{without_cheque:?}");
    let never_hot =
        look("nsdi26/fig10", |point| Point { tune: |settings| settings.hot_requests_min = u32::MAX, ..point });
    assert!(tail_of_steady(&never_hot) > usual + 20.0, "{never_hot:?}");
}

#[test]
fn io_first_shows_in_the_figure() {
    let rows = look("nsdi26/fig12", |point| point);
    let by_fifo = rows.iter().find(|row| row.what.contains("against FIFO")).unwrap();
    assert!(by_fifo.measured < -15.0, "{by_fifo:?}");
}
