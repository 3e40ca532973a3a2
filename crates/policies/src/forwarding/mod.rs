//! Where bursts of a volume go, and how what went there comes home (DiffForward, SIGMETRICS 2023, §3.3 to §3.5).
//!
//! **Intuition.** A burst that went to the owner of its segment would find one server busy and all others idle. So each of its
//! writes goes to a *log* of the volume instead, of which it has one on each of several servers, in turns. There it is durable, and
//! that is all that its client waits for. Later, when its servers have nothing else to do, what was logged is carried to the owner of
//! its segment. Until then the agent knows what is in which log, and reads it from there.
//!
//! **Names** are the paper's, except where it has one word for two things:
//! - a *log* is what a volume has on one server (the paper's sub-log, log_{i,j}); its *space* are the addresses that appends
//!   go to;
//! - an *entry* is a write, or a part of one, that was appended to a log. It is of one segment, and its *serial* says which place
//!   it has among the entries of that segment, in whichever logs they are;
//! - an entry that was written to the segment by its owner is *merged*. What was merged of a segment is told by a *watermark*: all
//!   through that serial.
//!
//! **Flow.** of a write: [`crate::burst`] says what it is, and [`Gain`] whether a log is worth it; [`Index::route`] cuts it into what its owner may have, and what
//! overlaps an entry and so has to follow it into a log; [`Turns`] says into which, the next or the nearest one; [`Space`] gives it an address there,
//! [`Index::begin`] a serial, and [`Index::logged`] makes it readable when it is durable. Of a read: [`Index::find`]. Of what
//! comes home: [`Index::next_batch`] is what an agent carries home, as much at a time as [`Window`] has it, when [`Coordination`] at the servers lets
//! it; then a watermark
//! is written down durably, and only then [`Index::merged`] forgets the entries, and [`Space::release`] their addresses.
//!
//! **Invariants** (rules 52 to 57 of docs/SAFETY.md):
//! - a write goes to its owner directly only where nothing overlaps it that is logged and not merged. So to merge entries twice,
//!   in the order of their serials, changes nothing;
//! - a watermark never passes an entry of which nobody knows whether it was appended;
//! - entries of overlapping ranges have serials in the order in which they were acknowledged: the agent begins a write when all
//!   that it overlaps have their outcomes.
//!
//! **Chosen**, where the paper is silent or where Levee differs:
//! - a log is cut by segments and not only by volumes: a slow owner keeps back what is its own, and nothing else;
//! - an entry is found by reads when it was appended, not before: until then its client was told nothing, and what was there
//!   before is as right an answer;
//! - what is of an entry that a later one covers is not merged: nobody can read it any more;
//! - with `auto`, bursts are spread unless that is sure to lose ([`Gain`]);
//! - the paper's servers look for entries by themselves (TraverseMeta), and fetch them. Here the agent, which knows them, carries
//!   them, and logs are traversed when a volume is attached. So one writes to a log, and nobody has to find out who else may.

mod coordination;
mod depths;
mod gain;
mod index;
mod pace;
mod space;
mod tuning;
mod turns;
mod window;

#[cfg(test)]
mod tests;

pub use coordination::{Asked, Coordination, CoordinationSettings, Turn};
pub use depths::Depths;
pub use gain::{Chosen, Gain, Way};
pub use index::{Batch, Content, Index, IndexSettings, LogNumber, Part, Place, Route, Serial};
pub use pace::{BatchSize, Pace};
pub use space::{Address, Space};
pub use tuning::{Limits, Seen, Tuning};
pub use turns::{Reach, Turns};
pub use window::{Window, WindowSettings};
