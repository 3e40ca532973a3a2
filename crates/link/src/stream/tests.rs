//! Streams between nodes of a simulated world: what crosses, what is lost, and who is given up.

mod crossing;
mod faults;
mod fuzz;
mod hostile;
mod real;
mod store;
mod world;
