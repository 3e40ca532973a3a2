//! Which I/O a block server starts now, and which has to wait: dual-bucket throttling ("Come Hell or Still Water",
//! NSDI 2026, §4.2) over base and burst levels (EBS, FAST 2024, §3.2).
//!
//! **Intuition.** The store below a block server serves so many bytes per second before its latency takes off. When a
//! few busy segments ask for more than that, somebody has to wait, and with one queue everybody does. So tokens are
//! issued every 10 ms, for as many bytes as the store can take; who has none waits. Segments that ask for more than
//! their share in an interval are *hot*, all others *steady*. Steady segments have a second bucket to themselves, filled
//! before the burst began, so that they do not notice that the first one is empty. What a volume was promised, its *base
//! level*, comes before anybody's burst.
//!
//! **Names** (the paper's): *main bucket*, for all segments; *cheque bucket*, for steady ones only, filled from the main
//! bucket with what the store is estimated to have left; *interval* `T`; *overdraw*, tokens of the cheque bucket on top
//! of the main ones. Ours: a *line*, requests that wait in order of their arrival, one for each segment; a *ring*, the
//! lines whose turn comes round.
//!
//! **Flow.** [`Admission::submit`] counts an arrival ([`monitor`]) and starts it or puts it in line;
//! [`Admission::next_grant`] hands out what may start now, one request at a time: base first, then steady, then hot
//! lines, each ring by deficit round robin. [`Admission::next_look`] says when to ask again: at the next refill, or
//! when hot lines get their next part of the interval's tokens, and never while nobody waits. [`Admission::on_done`] feeds the
//! [`estimator`], or the [`knee`], with the latency of what was started, and [`Admission::on_background`] with what else
//! there is to do.
//!
//! **Invariants** ([`Admission::audit`], which the simulated store asks after every request, and `tests.rs`):
//! - requests of one segment start in the order of their arrival;
//! - over any span no more tokens are drawn than the limit, both buckets' sizes and one request allow;
//! - after [`Admission::next_grant`] has returned nothing, no steady line waits for tokens while either bucket has some,
//!   and nobody waits for the main bucket while that has some for him: hot lines wait for their part of the interval;
//! - what is within the base levels starts at the latest at the next refill, as long as their sum fits the limit;
//! - nobody waits without a [`Reason`], and nobody waits for ever.
//!
//! **The limit** is a number, or learned while the store runs ([`knee`]): then tokens are what requests cost the disk,
//! and both buckets change with what it is found to take.
//!
//! **Baselines** are settings of the same component: [`Throttle`].
//!
//! **Levels.** Requests come with a mark of their agent, which sees all that their volume asks for ([`crate::levels`]): base or
//! burst. The server holds marked requests to no burst level, serves base first, and counts what is marked base beyond what
//! was promised as burst. Of a request without a mark it decides both itself, from the volume's levels, as far as it sees
//! the volume.
//!
//! The base level is looked at when a request reaches the head of its line, not when it arrives: base I/O of a segment would
//! wait behind burst I/O of the same segment, which must not be overtaken. So marks belong to a line, and whoever is at its
//! head has one if any is left.

mod admit;
mod audit;
mod background;
pub mod buckets;
pub mod calibration;
mod client;
mod company;
mod cost;
pub mod estimator;
pub mod knee;
mod limit;
mod line;
pub mod monitor;
mod request;
mod rings;
mod settings;
mod status;
mod tally;
#[cfg(test)]
mod tests;

pub use admit::{Admission, Grant, Overload, Verdict};
pub use client::ClientId;
pub use request::{Outcome, Request};
pub use settings::{AdmissionSettings, Throttle};
pub use status::{AdmissionStatus, VolumeStatus};

pub use crate::waits::{Reason, Wait, Waits};
