//! Models of recovery (rules 5 to 12 of docs/SAFETY.md): what was acknowledged is there, and what one recovery decided
//! stays decided. [`journal`] is about journal files, [`log`] about the transaction log and large writes.
//!
//! **What is real.** The recoveries are the code of `engine`, run as it is over the bytes that a state of the model has
//! on its disks: [`engine::journal::scan`], [`engine::transaction::scan`], [`engine::Replay`] and
//! [`engine::is_proven`], which decode the records that [`engine::journal::encode_append`] and
//! [`engine::transaction::codec`] wrote. They read everything before they change anything, so what they change is a list
//! that the disks determine; the model carries it out one step at a time, and a kill may come between any two. What
//! the writers do is said again here, in functions that name what they repeat; nothing compares them with the real ones.
//!
//! **What happens.** Several appends are in flight, landing in any order and in each copy by itself; they may fail,
//! landed or not, or torn; files are sealed in the background. The process may be killed at any moment, and what was in
//! flight has landed, or not, or in part, differently in each copy. A recovery may be killed after each of its steps.
//! Once, a directory may be lost, if everything in it has another copy.

mod content;
mod disk;
pub mod journal;
pub mod log;
mod scanner;
mod store;

/// What was acknowledged is found.
pub const ACKNOWLEDGED: &str = "what was acknowledged is found";
/// What a recovery has shown stays.
pub const SHOWN: &str = "what was shown stays";
/// What a recovery has cut does not come back.
pub const CUT: &str = "what was cut stays cut";
/// Only what was submitted is found, each record as a whole, in order.
pub const WHOLE: &str = "records are whole";
/// Without damage a start is not refused.
pub const STARTS: &str = "a store without damage starts";
