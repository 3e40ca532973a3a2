//! Experiments: the figures of the papers, by name, with the store's own code.
//!
//! **What is real and what is a model.** The block server ([`server::Server`]: sessions, admission, statistics) and its
//! event loop run as they are shipped, in the simulated world, behind its network. The store below them is a model: a
//! queue with a known service rate, so that it is known what admission should find out. Clients are models, too.
//!
//! **Flow.** An [`Experiment`] is a list of [`Point`]s; each is a world of its own, can run beside the others, and gives
//! a [`Measured`]; then the experiment compares them with what the paper printed ([`row`]): each printed number has one
//! band, written down before, and one outcome. The same is done again without each [`Mechanism`] that a number depends on,
//! with other parameters and with other seeds; a [`Report`] has all of it, a [`summary`] that of all figures.
//!
//! [`osdi24`] is about the agent, and has experiments, points and parameters of its own; rows and reports are the same.
//! [`scaling`] is apart: it is about the loops of a whole store, with parameters of its own.
//!
//! Every other parameter stands in one file for each paper, such as `parameters/nsdi26.toml`, which was written before the first
//! result ([`parameters`]); a run may set others, and prints which.

pub mod ask;
pub mod balance;
pub mod disk;
pub mod failover;
pub mod load;
pub mod measured;
pub mod mechanism;
pub mod nsdi26;
pub mod osdi24;
pub mod parameters;
pub mod proxy;
pub mod random;
pub mod report;
pub mod row;
pub mod scaling;
pub mod sig23;
pub mod store;
pub mod summary;
pub mod trace;
pub mod world;

pub use measured::Measured;
pub use mechanism::Mechanism;
pub use parameters::Parameters;
pub use report::{Report, Variation};
pub use row::{Outcome, Printed, Row};
pub use trace::Trace;
pub use world::Point;

use std::sync::Arc;

use base::Set;

/// One run of a figure: what was measured, and how.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// What it depends on.
    pub parameters: &'a Parameters,
    /// Everything random.
    pub seed: u64,
    /// What was taken away.
    pub without: Option<Mechanism>,
    /// The figure's points.
    pub measured: &'a [(Point, Measured)],
}

/// Makes comparisons of what was measured.
pub type Judge = fn(&Case) -> Vec<Row>;

/// One figure.
pub struct Experiment {
    /// As the command line calls it.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Its points.
    points: fn(&Parameters) -> Vec<Point>,
    /// Compares what was measured at the points with what was printed.
    judge: Judge,
    /// The printed numbers that it is about.
    pub printed: &'static [&'static Printed],
    /// Parameters that are not printed, whose half and double are looked at, too.
    pub sensitive: &'static [&'static str],
}

/// How a figure is run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What it depends on.
    pub parameters: Parameters,
    /// Requests at each point.
    pub requests: u64,
    /// Everything random.
    pub seed: u64,
    /// What is taken away.
    pub without: Option<Mechanism>,
    /// What is asked for in place of the figure's own load.
    pub trace: Option<Arc<Trace>>,
}

impl Experiment {
    /// What has to be measured.
    pub fn points(&self, setup: &Setup) -> Vec<Point> {
        let points = (self.points)(&setup.parameters).into_iter();
        let points = points.map(|point| Point { requests: setup.requests, seed: setup.seed, ..point });
        let points = points.map(|point| match setup.without {
            Some(mechanism) => mechanism.remove(point),
            None => point,
        });
        let Some(trace) = &setup.trace else { return points.collect() };
        // Points that differ in sizes and mixes only are the same ones now.
        let mut seen = Set::default();
        points.map(|point| point.replaying(trace)).filter(|point| seen.insert(format!("{point:?}"))).collect()
    }

    /// Whether clients ask for something that a trace could ask for instead.
    pub fn has_load(&self, parameters: &Parameters) -> bool {
        (self.points)(parameters).iter().any(|point| point.disk.is_none())
    }

    /// Compares what was measured, in the order of the points. What a trace gives is not what was printed: it is shown, and
    /// not judged.
    pub fn judge(&self, setup: &Setup, measured: &[(Point, Measured)]) -> Vec<Row> {
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
}

/// Every experiment on throttling at the block server.
pub const ALL: &[Experiment] = nsdi26::ALL;

/// The experiment of that name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    ALL.iter().find(|experiment| experiment.name == name)
}
