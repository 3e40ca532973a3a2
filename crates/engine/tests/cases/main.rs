//! A whole engine in what it meets seldom, a module for each. One program, since linking one takes as long as its tests do.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod broken_log;
mod dropped_volume;
mod full_disk;
mod full_store;
mod interrupted_deletion;
mod recycled_space;
mod remote;
mod sealed_data;
mod shared;
mod slow_pool;
mod strays;
mod unreadable_file;
