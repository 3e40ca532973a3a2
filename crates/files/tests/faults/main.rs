//! What goes wrong with the directories of a store, case by case, in the simulated world.
#![allow(clippy::unwrap_used, reason = "a test panics where something is not as it should be")]

mod agreement;
mod bench;
mod directories;
mod disks;
mod ownership;
mod power;
mod ready;
mod scratch;
mod sharing;
