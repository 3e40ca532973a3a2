//! Experiments: the figures of the papers, by name, with the store's own code.
//!
//! **What is real and what is a model.** The block server ([`server::Server`]: sessions, admission, statistics) and its
//! event loop run as they are shipped, in the simulated world, behind its network. The store below them is a model: a
//! queue with a known service rate, so that it is known what admission should find out. Clients are models, too.
//!
//! **Flow.** An [`Experiment`] is a list of [`Point`]s; each is a world of its own, can run beside the others, and gives
//! a [`Measured`]; then the experiment compares them with what the paper printed, row by row, each with the band that an
//! honest reproduction is expected to fall into and a verdict ([`report`]).
//!
//! [`scaling`] is apart: it is about the loops of a whole store, with parameters of its own.
//!
//! Every other parameter stands in one file, `parameters/nsdi26.toml`, which was written before the first result
//! ([`parameters`]); a run may set others, and prints which.

pub mod balance;
pub mod load;
pub mod measured;
pub mod nsdi26;
pub mod parameters;
pub mod proxy;
pub mod report;
pub mod scaling;
pub mod store;
pub mod world;

pub use measured::Measured;
pub use parameters::Parameters;
pub use report::{Neighbour, Report, Row};
pub use world::Point;

/// Makes comparisons of what was measured.
pub type Judge = fn(&Parameters, &[(Point, Measured)]) -> Vec<Row>;

/// One figure.
pub struct Experiment {
    /// As the command line calls it.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Its points.
    pub points: fn(&Parameters) -> Vec<Point>,
    /// Compares what was measured at the points with what was printed.
    pub judge: Judge,
    /// Parameters whose half and double are looked at, too.
    pub sensitive: &'static [&'static str],
}

/// Every experiment.
pub const ALL: &[Experiment] = nsdi26::ALL;

/// The experiment of that name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    ALL.iter().find(|experiment| experiment.name == name)
}
