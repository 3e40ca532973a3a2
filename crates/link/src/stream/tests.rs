//! Streams between nodes of a simulated world: what crosses, what is lost, and who is given up.

mod circle;
mod crossing;
mod engine;
mod faults;
mod fuzz;
mod hostile;
mod observing;
mod real;
mod refused;
mod segments;
pub(crate) mod store;
pub(crate) mod world;
