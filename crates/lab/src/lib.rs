//! The laboratory: the real store in a simulated world.
//!
//! [`verify`] is its first half: faults, workloads, and checkers for what must never happen. [`protocol`] has models of
//! the protocols, of which every state is visited.

pub mod linearizability;
pub mod protocol;
pub mod shrink;
pub mod verify;
