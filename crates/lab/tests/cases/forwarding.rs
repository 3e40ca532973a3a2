//! A quick look at the experiments on where writes go: they run, the same seed gives the same, and without what a figure is about
//! it is missed. All of it: `levee lab run sig23 --necessity`.

use base::Map;
use lab::experiments::row::Better;
use lab::experiments::sig23::{Measured, Parameters, Point, Sig23};
use lab::experiments::{FromFile, Mechanism, Outcome, Paper, Row, Setup};

/// A short while of the morning only: the first points, with few placements.
fn look(name: &str, points: usize, without: Option<Mechanism>) -> Vec<Row> {
    looks(name, points, 40, &[without]).remove(0)
}

/// The same of so many seconds, without each of several mechanisms; a point that stays what it is is measured once.
fn looks(name: &str, points: usize, seconds: u64, without: &[Option<Mechanism>]) -> Vec<Vec<Row>> {
    // As many thresholds as a figure needs at least, where it has several.
    let betas = "betas=[0.1, 0.5, 1.0]".to_owned();
    let parameters = Parameters::with(&[format!("seconds={seconds}"), "placements=3".to_owned(), betas]).unwrap();
    let figure = Sig23::find(name).unwrap();
    let mut known: Map<String, Measured> = Map::default();
    let mut rows = |without: &Option<Mechanism>| {
        let setup =
            Setup { parameters: parameters.clone(), requests: 1_000_000, seed: 1, without: *without, trace: None };
        let points = figure.points(&setup).into_iter().take(points);
        let measured: Vec<(Point, Measured)> = points
            .map(|point| {
                let key = format!("{:?}", Sig23::unlabelled(point.clone()));
                let measured = known.entry(key).or_insert_with(|| point.measure()).clone();
                (point, measured)
            })
            .collect();
        figure.judge(&setup, &measured)
    };
    without.iter().map(&mut rows).collect()
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
            // As good as the best is what is asked of agents that find out, and no reduction.
            let is_reduction = !printed.needs.is_empty() && !printed.needs.contains(&Mechanism::FindingOut);
            assert!(!is_reduction || printed.outcome(0.0) == Outcome::Missed, "{}", printed.what);
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
    let needs = Sig23::find("sig23/fig13").unwrap().needs();
    let without: Vec<Option<Mechanism>> = [None].into_iter().chain(needs.into_iter().map(Some)).collect();
    let all = looks("sig23/fig13", 6, 40, &without);
    assert_eq!(of(&all[0], what).1, Some(Outcome::Met));
    for (mechanism, rows) in without.iter().zip(&all).skip(1) {
        for what in [what, "CoV against replication"] {
            assert_eq!(of(rows, what).1, Some(Outcome::Missed), "{mechanism:?}: {rows:?}");
        }
        if *mechanism == Some(Mechanism::BurstDetection) {
            assert_eq!(of(rows, what).0, 0.0, "segmentation is what is left");
        }
    }
}

/// With the store's own agent, and merging on the same cards.
#[test]
fn writes_are_sooner_done_where_bursts_are_found_and_take_turns() {
    let what = "average of writes against segmentation";
    let mechanisms = [Mechanism::BurstDetection, Mechanism::RoundRobin, Mechanism::Synchronization];
    let without: Vec<Option<Mechanism>> = [None].into_iter().chain(mechanisms.map(Some)).collect();
    let [usual, undetected, one_server, alone] = &looks("sig23/fig14", 5, 40, &without)[..] else { unreachable!() };
    assert_eq!(of(usual, what).1, Some(Outcome::Met), "{usual:?}");
    assert_eq!(of(usual, "P99 of writes against segmentation").1, Some(Outcome::Met), "{usual:?}");
    for rows in [undetected, one_server] {
        assert_eq!(of(rows, what).1, Some(Outcome::Missed), "{rows:?}");
    }
    let chain = "average of replication against the slowest other baseline";
    assert_eq!(of(alone, chain).1, Some(Outcome::Missed), "{alone:?}");
    assert!(of(alone, chain).0 < of(usual, chain).0, "{alone:?} {usual:?}");
}

/// What a burst costs reads is waiting for the card by which servers store it.
#[test]
fn reads_are_sooner_done_where_bursts_are_spread() {
    let what = "average of reads against the best other";
    let needs = [None, Some(Mechanism::BurstDetection)];
    let [usual, undetected] = &looks("sig23/fig15", 10, 20, &needs)[..] else { unreachable!() };
    assert_eq!(of(usual, what).1, Some(Outcome::Met), "{usual:?}");
    assert_eq!(of(undetected, what).1, Some(Outcome::Missed), "{undetected:?}");
}

#[test]
fn the_most_loaded_server_is_nearer_to_the_others_where_bursts_are_spread() {
    let needs = Sig23::find("sig23/fig12").unwrap().needs();
    let without: Vec<Option<Mechanism>> = [None].into_iter().chain(needs.into_iter().map(Some)).collect();
    let all = looks("sig23/fig12", 6, 40, &without);
    for what in ["most less least of servers, against segmentation", "highest traffic of a server"] {
        assert_eq!(of(&all[0], what).1, Some(Outcome::Met), "{:?}", all[0]);
        assert_eq!(of(&all[1], what).1, Some(Outcome::Missed), "{:?}: {:?}", without[1], all[1]);
    }
}

#[test]
fn nothing_is_found_without_a_detector() {
    let what = "recall by intervals, TH of the prototype";
    assert_eq!(of(&look("sig23/fig20a", 3, None), what).1, Some(Outcome::Met));
    assert_eq!(of(&look("sig23/fig20a", 3, Some(Mechanism::BurstDetection)), what).0, 0.0);
}

/// It costs something on cards, and more if it waits for nobody.
#[test]
fn merging_lets_clients_go_first() {
    let what = "average of writes with 1 MiB at once against prioritized";
    let [usual, heedless] = &looks("sig23/fig20d", 4, 20, &[None, Some(Mechanism::Coordination)])[..] else {
        unreachable!()
    };
    assert!(of(usual, "against no merging, prioritized").0 > 0.0, "{usual:?}");
    assert_eq!((of(usual, what).1, of(heedless, what).1), (Some(Outcome::Met), Some(Outcome::Missed)), "{usual:?}");
}

#[test]
fn logs_grow_where_nothing_is_merged() {
    let what = "last quarter of the time against the second";
    let [usual, never] = &looks("sig23/fig20b", 1, 20, &[None, Some(Mechanism::Merging)])[..] else { unreachable!() };
    assert_eq!(of(never, what).1, Some(Outcome::Missed), "{never:?}");
    assert!(of(usual, "most in the logs").0 * 2.0 < of(never, "most in the logs").0, "{usual:?} {never:?}");
}

/// What a burst costs is waiting.
#[test]
fn waiting_is_what_turns_save() {
    let what = "waiting against segmentation, average";
    let needs = [None, Some(Mechanism::BurstDetection)];
    let [usual, undetected] = &looks("sig23/fig19", 2, 20, &needs)[..] else { unreachable!() };
    assert!(of(usual, what).0 < -30.0, "{usual:?}");
    assert_eq!(of(undetected, what), (0.0, Some(Outcome::Missed)));
}

/// It is the log that waits least, so there have to be several on several servers.
#[test]
fn mild_bursts_take_less_at_the_nearest_log() {
    let what = "average with mild bursts";
    let without = [None, Some(Mechanism::BurstDetection), Some(Mechanism::RoundRobin)];
    let all = looks("sig23/categories", 4, 20, &without);
    let [usual, undetected, one_server] = &all[..] else { unreachable!() };
    assert!(of(usual, what).0 < -5.0, "{usual:?}");
    assert_eq!(of(undetected, what), (0.0, Some(Outcome::Missed)));
    assert_eq!(of(one_server, what).1, Some(Outcome::Missed), "{one_server:?}");
}

/// And they are not, where nothing of it is spread.
#[test]
fn writes_take_as_long_as_with_the_best_threshold_where_agents_find_out() {
    let what = "average of writes with auto";
    let without = [None, Some(Mechanism::FindingOut)];
    // Three thresholds, auto, and three of its parts, in the morning.
    let [usual, nothing] = &looks("sig23/auto", 7, 25, &without)[..] else { unreachable!() };
    assert!(of(usual, what).0 < 15.0, "{usual:?}");
    assert!(of(nothing, what).0 > 50.0, "{nothing:?}");
    assert_eq!(of(nothing, what).1, Some(Outcome::Missed));
}

#[test]
fn latency_grows_with_load_where_there_are_bursts() {
    let what = "P99 where most is used";
    let [usual, calm] = &looks("sig23/fig2d", 4, 40, &[None, Some(Mechanism::Burst)])[..] else { unreachable!() };
    assert_eq!(of(usual, what).1, Some(Outcome::Met), "{usual:?}");
    // The band holds that, too: with slower cards all of it takes longer.
    assert!(of(usual, what).0 > 3.0 * of(calm, what).0, "{usual:?} {calm:?}");
}

#[test]
fn bursts_are_not_predicted() {
    let what = "error of an average (EWMA), intervals of 5 s";
    let [usual, calm] = &looks("sig23/predictions", 2, 240, &[None, Some(Mechanism::Burst)])[..] else {
        unreachable!()
    };
    assert_eq!(of(usual, what).1, Some(Outcome::Met), "{usual:?}");
    // The band holds that, too: most volumes write so little that a few writes more or less are much.
    assert!(of(usual, what).0 > 1.5 * of(calm, what).0, "{usual:?} {calm:?}");
}

/// Replicas are worth nothing if it is always the same one that is asked.
#[test]
fn replicas_even_servers_out_where_there_is_a_choice() {
    let what = "CoV of replication against segmentation";
    let [usual, fixed] = &looks("sig23/fig5", 7, 20, &[None, Some(Mechanism::ReplicaChoice)])[..] else {
        unreachable!()
    };
    assert!(of(usual, what).0 < of(fixed, what).0 - 10.0, "{usual:?} {fixed:?}");
    assert_eq!(of(fixed, what).1, Some(Outcome::Missed), "{fixed:?}");
}
