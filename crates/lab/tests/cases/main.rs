//! Experiments, and workloads that are no virtual disk's, a module for each. One program, since linking one takes as long as
//! its tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test panics where something is not as it should be")]

mod experiments;
mod forwarding;
mod queues;
mod scaling;
mod tenants;
mod traces;
