//! Experiments: the figures of the papers, by name, with the store's own code.
//!
//! **Flow.** Every paper is a [`Paper`] in the frame of [`figure`]: it says what a point is and how one is measured, and has
//! figures, each of which is a list of points and a judge. What was measured is compared with what was printed ([`row`]): each
//! printed number has one band, written down before, and one outcome. The same is done again without each [`Mechanism`] that a
//! number depends on, with other parameters and with other seeds; a [`Report`] has all of it, a [`summary`] that of all figures.
//!
//! - [`nsdi26`]: throttling and scheduling at the block server;
//! - [`osdi24`]: tenants that share an agent, and its loops;
//! - [`sig23`]: where writes go, and which of them are a burst.
//!
//! Every other parameter stands in one file for each paper, such as `parameters/nsdi26.toml`, which was written before the first
//! result ([`parameters`]); a run may set others, and prints which.
//!
//! [`scaling`] and [`failover`] are apart: they are about a whole store, with parameters of their own. So is [`replay`], which is
//! about somebody's own workload.

pub mod failover;
pub mod figure;
pub mod mechanism;
pub mod nsdi26;
pub mod osdi24;
pub mod parameters;
pub mod random;
pub mod replay;
pub mod report;
pub mod row;
pub mod scaling;
pub mod sig23;
pub mod summary;
pub mod trace;
pub mod trace_statistics;

pub use figure::{Paper, Setup};
pub use mechanism::Mechanism;
pub use parameters::FromFile;
pub use report::{Report, Variation};
pub use row::{Outcome, Printed, Row};
pub use trace::Trace;
