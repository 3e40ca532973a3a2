//! Which I/O an agent starts now, and which has to wait: tenants that share the loops of one host ("Burstable Cloud Block
//! Storage with Data Processing Units", BurstCBS, OSDI 2024, §5.2 and §5.3).
//!
//! **Intuition.** On one host many virtual machines share a few loops, and what a loop can do in a millisecond, a *window*,
//! is bounded: by its processor time, by the bytes that come in and go out, by a limit that somebody has set. One that
//! bursts takes all of it if it may, and whoever comes a moment later waits for the next window, though what he wants is a
//! part of what he was promised. So each window's resources are *allocated* before it begins, by what tenants used in the last
//! one: who stays below his base is allocated a little less in each window that follows, what that leaves goes to those
//! who burst, and whoever comes back gets his own at once, from what others were allocated beyond theirs, or from a *reserve*.
//!
//! **Names** (the paper's): *base* and *burst*, what a tenant was promised and the most that it gets; *usage*, what it
//! spent in a window; *throttle*, the cost of what waits at its end; *alloc*, what it may spend in a window. Ours: a
//! *tenant* is an owner with its volumes on one agent; a *balance* is what is left of an alloc; a *promise* is what is left of
//! the base, whoever it is lent to at the moment; a *line*, the requests of one volume that wait.
//!
//! **Flow.** [`Scheduler::submit`] starts an arrival or puts it in line; [`Scheduler::next_grant`] hands out what may start
//! now, one request at a time, so that whoever asks can let the started ones run in between; [`Scheduler::next_look`] says
//! when to ask again: at the next window, and never while nobody waits. A request's price is a [`Cost`], from a [`Profile`].
//!
//! **Invariants** ([`Scheduler::audit`] and `tests.rs`):
//! - requests of one volume start in the order of their arrival;
//! - in a window no more is started than was allocated, debts of requests larger than an alloc apart;
//! - a tenant gets no more than its burst; whoever stays within his base does not wait while the sum of all bases fits and
//!   not more than the reserve covers come back in one window;
//! - the reserve is never negative, and is whole again in the next window;
//! - nothing is due while nobody waits, and a tenant that is idle costs nothing after [`IDLE_WINDOWS`].
//!
//! **Algorithm 1 as printed does not run.** Line 8 stands in one branch only, so that those who get their whole base are
//! not subtracted from what is unused; the list of bursting tenants and the reserve are never reset; a window without
//! usage divides by zero; and lines 17 to 22 let a tenant that bursts take from others and from the reserve. Here line 8
//! holds for both branches, usage, list and reserve begin anew with each window, shares follow the base where there was no
//! usage, nobody is lowered below what he uses, and only who stays within his base reclaims or uses the reserve ([`Account`](account)).
//!
//! **Baselines** are settings of the same component: [`Scheduling`].
//!
//! **Who was promised nothing** has a base all the same, an equal share of what nobody was promised: the paper's tenants
//! all pay for one, and ours shall be protected from each other before anybody has thought of levels.

mod account;
mod cost;
mod delay;
mod measured;
mod profile;
mod scheduler;
mod settings;
mod shares;
mod slack;
mod tenant;
#[cfg(test)]
mod tests;
mod together;

pub use cost::{Cost, DIMENSIONS, Dimension, UNLIMITED};
pub use delay::Delay;
pub use measured::Measured;
pub use profile::{Frontend, Line, Operation, Profile, Sample};
pub use scheduler::{Grant, Scheduler, TenantStatus, Verdict, VolumeNumber};
pub use settings::{Pricing, Promise, Scheduling, TenantsSettings};
pub use shares::Shares;
pub use slack::Slack;
pub use together::Together;

/// Windows without a request after which a tenant is no more looked at (BurstCBS §6.6: "idle for a while").
pub const IDLE_WINDOWS: u64 = 100;
