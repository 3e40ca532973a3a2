//! The frame of all figures: a paper says what a point is and how it is measured; the rest is the same for each, and here.
//!
//! **Flow.** A [`Figure`] makes points out of the [`Setup`]: parameters, a seed, perhaps a [`Mechanism`] that is taken away,
//! perhaps a [`Trace`] in place of the load. Each point is measured by itself, in any order and beside others ([`Measure`]);
//! then the figure's judge compares all of them with what was printed, and its rows are the result.
//! [`Figure::report`] does that in all the [`Ways`] that are wanted.
//!
//! **Invariant.** What comes of a point depends on the point only, with its parameters, requests and seed, but for its label and
//! real time. So a point that several figures or ways have is measured once ([`Known`]).

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use base::{Map, Result, Set};

use super::report::in_the_middle;
use super::{FromFile, Mechanism, Printed, Report, Row, Trace, Variation};

/// A paper: a type without a value.
pub trait Paper: Clone + Debug + 'static {
    /// What names of its figures begin with, up to the slash.
    const NAME: &'static str;
    /// Its figures.
    const FIGURES: &'static [Figure<Self>];
    /// Requests at each point, in full and for a quick look.
    const REQUESTS: [u64; 2];
    /// What tables of several figures are called: see [`super::summary::table`].
    const TITLES: [&'static str; 2];
    /// The file that they are written to.
    const SUMMARY: &'static str;
    /// What is said of a trace that nothing would replay.
    const NO_LOAD: &'static str;

    /// What figures depend on besides their points.
    type Parameters: FromFile;
    /// What is measured.
    type Point: Clone + Debug + Sync;
    /// What came of a point; by default: nothing was measured.
    type Measured: Clone + Default + Send;

    /// The point with so many requests and that seed.
    fn with(point: Self::Point, requests: u64, seed: u64) -> Self::Point;
    /// The point without a mechanism. What a judge looks at besides points is the judge's affair.
    fn without(point: Self::Point, mechanism: Mechanism) -> Self::Point;
    /// The point with a trace as its load, if it has one that a trace can take the place of.
    fn replaying(_point: Self::Point, _trace: &Arc<Trace>) -> Option<Self::Point> {
        None
    }
    /// The point without what it is called.
    fn unlabelled(point: Self::Point) -> Self::Point;
    /// What comes of the point. `clock` is the time that has passed, for what is measured in real time.
    fn measure(point: &Self::Point, clock: &dyn Fn() -> Duration) -> Self::Measured;

    /// The figure of that name.
    fn find(name: &str) -> Option<&'static Figure<Self>> {
        Self::FIGURES.iter().find(|figure| figure.name == name)
    }
}

/// One figure.
pub struct Figure<P: Paper> {
    /// As the command line calls it.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Its points.
    pub(super) points: fn(&P::Parameters) -> Vec<P::Point>,
    /// Compares what was measured at the points with what was printed.
    pub(super) judge: fn(&Case<P>) -> Vec<Row>,
    /// The printed numbers that it is about.
    pub printed: &'static [&'static Printed],
    /// Parameters that are not printed, whose half and double are looked at, too.
    pub sensitive: &'static [&'static str],
}

/// One run of a figure: what was measured, and how.
pub struct Case<'a, P: Paper> {
    /// What it depends on.
    pub parameters: &'a P::Parameters,
    /// Everything random.
    pub seed: u64,
    /// What was taken away.
    pub without: Option<Mechanism>,
    /// The figure's points, in their order.
    pub measured: &'a [(P::Point, P::Measured)],
}

/// How a figure is run.
#[derive(Clone, Debug)]
pub struct Setup<P: Paper> {
    /// What it depends on.
    pub parameters: P::Parameters,
    /// Requests at each point.
    pub requests: u64,
    /// Everything random.
    pub seed: u64,
    /// What is taken away.
    pub without: Option<Mechanism>,
    /// What is asked for in place of the figure's own load.
    pub trace: Option<Arc<Trace>>,
}

/// In what other ways a figure is run, too.
#[derive(Clone, Debug, Default)]
pub struct Ways {
    /// What was set in place of the file's parameters.
    pub changes: Vec<String>,
    /// Without each mechanism that it is about.
    pub necessity: bool,
    /// With half and double of what is not printed.
    pub neighbours: bool,
    /// With so many seeds.
    pub seeds: u64,
}

/// Measures points, in any order and at once, and gives what came of each.
pub type Measure<'a, P> = &'a dyn Fn(&[<P as Paper>::Point]) -> Vec<<P as Paper>::Measured>;

impl<P: Paper> Figure<P> {
    /// What has to be measured. With a trace only what has a load that it can take the place of.
    pub fn points(&self, setup: &Setup<P>) -> Vec<P::Point> {
        let points = (self.points)(&setup.parameters).into_iter();
        let points = points.map(|point| P::with(point, setup.requests, setup.seed));
        let points = points.map(|point| match setup.without {
            Some(mechanism) => P::without(point, mechanism),
            None => point,
        });
        let Some(trace) = &setup.trace else { return points.collect() };
        // Points that differ in their own load only are the same ones now.
        let mut seen = Set::default();
        let replaying = points.filter_map(|point| P::replaying(point, trace));
        replaying.filter(|point| seen.insert(format!("{point:?}"))).collect()
    }

    /// Compares what was measured, in the order of the points. What a trace gives is not what was printed: it is shown, and
    /// not judged.
    pub fn judge(&self, setup: &Setup<P>, measured: &[(P::Point, P::Measured)]) -> Vec<Row> {
        let Setup { parameters, seed, without, .. } = setup;
        let rows = (self.judge)(&Case { parameters, seed: *seed, without: *without, measured });
        match setup.trace {
            Some(_) => rows.into_iter().map(|row| Row { printed: None, kind: "trace", ..row }).collect(),
            None => rows,
        }
    }

    /// What its numbers need, each once.
    pub fn needs(&self) -> Vec<Mechanism> {
        let mut needs = Vec::new();
        for mechanism in self.printed.iter().flat_map(|printed| printed.needs) {
            if !needs.contains(mechanism) {
                needs.push(*mechanism);
            }
        }
        needs
    }

    /// Runs it in all the ways that are wanted.
    ///
    /// # Errors
    /// `Invalid`: a parameter that it depends on cannot be half or double of what it is.
    pub fn report(&self, usual: &Setup<P>, ways: &Ways, known: &mut Known<P>, measure: Measure<P>) -> Result<Report> {
        let needs = if ways.necessity { self.needs() } else { Vec::new() };
        let without: Vec<_> =
            needs.into_iter().map(|one| (one, Setup { without: Some(one), ..usual.clone() })).collect();
        let mut neighbours = Vec::new();
        for key in if ways.neighbours { self.sensitive } else { &[] } {
            for (change, parameters) in P::Parameters::neighbours(&ways.changes, key)? {
                neighbours.push((change, Setup { parameters, ..usual.clone() }));
            }
        }
        let seed_of = |number| Setup { seed: usual.seed.wrapping_add(number), ..usual.clone() };
        let seeds: Vec<Setup<P>> = (0..ways.seeds).map(seed_of).collect();
        let others =
            without.iter().map(|(_, setup)| setup).chain(neighbours.iter().map(|(_, setup)| setup)).chain(&seeds);
        known.add(std::iter::once(usual).chain(others).flat_map(|setup| self.points(setup)), measure);
        let rows = |setup: &Setup<P>| {
            let pairs: Vec<_> = self.points(setup).into_iter().map(|point| (point.clone(), known.of(&point))).collect();
            self.judge(setup, &pairs)
        };
        let variation = |change: String, setup| Variation { change, rows: rows(setup) };
        let seeds: Vec<Variation> = seeds.iter().map(|setup| variation(setup.seed.to_string(), setup)).collect();
        let trace = usual.trace.iter().map(|trace| format!("{trace:?}"));
        Ok(Report {
            name: self.name.to_owned(),
            title: self.title.to_owned(),
            requests: usual.requests,
            seed: usual.seed,
            changes: ways.changes.iter().cloned().chain(trace).collect(),
            rows: in_the_middle(&seeds).unwrap_or_else(|| rows(usual)),
            without: without.iter().map(|(mechanism, setup)| (*mechanism, rows(setup))).collect(),
            neighbours: neighbours.iter().map(|(change, setup)| variation(change.clone(), setup)).collect(),
            seeds,
        })
    }
}

/// What was measured already, by everything that it depends on.
pub struct Known<P: Paper>(Map<String, P::Measured>);

impl<P: Paper> Default for Known<P> {
    fn default() -> Self {
        Known(Map::default())
    }
}

impl<P: Paper> Known<P> {
    fn key(point: &P::Point) -> String {
        format!("{:?}", P::unlabelled(point.clone()))
    }

    fn of(&self, point: &P::Point) -> P::Measured {
        self.0.get(&Self::key(point)).cloned().unwrap_or_default()
    }

    fn add(&mut self, points: impl Iterator<Item = P::Point>, measure: Measure<P>) {
        let mut listed = Set::default();
        let mut is_new = |key| !self.0.contains_key(&key) && listed.insert(key);
        let new: Vec<P::Point> = points.filter(|point| is_new(Self::key(point))).collect();
        let measured = measure(&new);
        self.0.extend(new.iter().map(Self::key).zip(measured));
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde::Deserialize;

    use super::super::row::Better;
    use super::*;

    /// A paper about adding numbers.
    #[derive(Clone, Debug)]
    struct Sums;

    #[derive(Clone, Debug, Deserialize)]
    struct Summands {
        one: u64,
        other: u64,
    }

    impl FromFile for Summands {
        const FILE: &'static str = "one = 10\nother = 4";
        fn is_sound(&self) -> bool {
            true
        }
    }

    const SUM: Printed = Printed {
        what: "sum",
        number: "14",
        source: "",
        band: [14.0, 14.0],
        reason: "",
        unit: "",
        better: Better::Neither,
        beyond: "",
        is_aside: false,
        needs: &[Mechanism::Burst],
    };

    const FIGURE: Figure<Sums> = Figure {
        name: "sums/fig1",
        title: "",
        points: |Summands { one, other }| vec![("one", *one, 0), ("other", *other, 0), ("other again", *other, 0)],
        judge: |case| vec![Row::judged(&SUM, case.measured[0].1 + case.measured[1].1, String::new())],
        printed: &[&SUM],
        sensitive: &["one"],
    };

    impl Paper for Sums {
        const NAME: &'static str = "sums";
        const FIGURES: &'static [Figure<Sums>] = &[FIGURE];
        const REQUESTS: [u64; 2] = [1, 1];
        const TITLES: [&'static str; 2] = [""; 2];
        const SUMMARY: &'static str = "";
        const NO_LOAD: &'static str = "";
        type Parameters = Summands;
        /// Label, number, seed.
        type Point = (&'static str, u64, u64);
        type Measured = f64;

        fn with((label, number, _): Self::Point, _requests: u64, seed: u64) -> Self::Point {
            (label, number, seed)
        }
        fn without((label, _, seed): Self::Point, _: Mechanism) -> Self::Point {
            (label, 0, seed)
        }
        fn unlabelled((_, number, seed): Self::Point) -> Self::Point {
            ("", number, seed)
        }
        fn measure((_, number, _): &Self::Point, _clock: &dyn Fn() -> Duration) -> f64 {
            *number as f64
        }
    }

    #[test]
    fn a_figure_is_run_in_all_ways_and_each_point_is_measured_once() {
        let usual =
            Setup { parameters: Summands::from_file().unwrap(), requests: 1, seed: 7, without: None, trace: None };
        let ways = Ways { necessity: true, neighbours: true, seeds: 2, ..Ways::default() };
        let seen = RefCell::new(Vec::new());
        let measure = |points: &[(&'static str, u64, u64)]| -> Vec<f64> {
            seen.borrow_mut().extend(points.iter().map(|point| (point.1, point.2)));
            points.iter().map(|point| Sums::measure(point, &|| Duration::ZERO)).collect()
        };
        let mut known = Known::default();
        let report = FIGURE.report(&usual, &ways, &mut known, &measure).unwrap();
        assert_eq!((report.rows[0].measured, report.without[0].1[0].measured), (14.0, 0.0));
        let near: Vec<_> = report.neighbours.iter().map(|one| (one.change.as_str(), one.rows[0].measured)).collect();
        assert_eq!(near, [("one=5", 9.0), ("one=20", 24.0)]);
        let seeds: Vec<_> = report.seeds.iter().map(|one| one.change.as_str()).collect();
        assert_eq!(seeds, ["7", "8"]);
        let all = [(10, 7), (4, 7), (0, 7), (5, 7), (20, 7), (10, 8), (4, 8)];
        assert_eq!(*seen.borrow(), all, "and labels do not count");
        FIGURE.report(&usual, &ways, &mut known, &measure).unwrap();
        assert_eq!(seen.borrow().len(), all.len(), "what is known is not measured again");
    }
}
