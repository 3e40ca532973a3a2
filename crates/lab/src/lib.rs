//! The laboratory: the real store in a simulated world.
//!
//! [`verify`] has faults, workloads, and checkers for what must never happen; [`protocol`] has models of the protocols,
//! of which every state is visited; [`experiments`] has the figures of the papers.

#[cfg(feature = "seeded-bugs")]
pub mod bugs;
pub mod experiments;
pub mod linearizability;
pub mod protocol;
pub mod shrink;
pub mod verify;
