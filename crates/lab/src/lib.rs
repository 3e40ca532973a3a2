//! The laboratory: the real store in a simulated world.
//!
//! [`verify`] is its first half: faults, workloads, and checkers for what must never happen.

pub mod linearizability;
pub mod shrink;
pub mod verify;
