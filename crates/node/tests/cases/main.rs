//! A whole store in the simulated world, a module for each thing that it can do. One program, since linking one takes as long
//! as its tests do.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod calibrate;
#[path = "../client/mod.rs"]
mod client;
mod devices;
mod lost_creation;
mod returned_directory;
mod several_loops;
mod slow_requests;
