//! What a volume may start of its base and burst levels ([`base::levels`]; EBS, FAST 2024, §3.2; BurstCBS, OSDI 2024,
//! §3), and who says so.
//!
//! **Intuition.** A level belongs to the volume, wherever its segments are: a volume on three servers gets its burst
//! level once. Only its agent sees all that it asks for, so the agent holds it to its burst level and marks each
//! request as base or burst. A server has a disk to share out, and goes by the marks.
//!
//! **Names.** An [`Allowance`] is what is left of the levels of one volume. An *account* ([`Account`]) is the one of a
//! volume that the loops of an agent share, behind a lock; a [`Purse`] is what one loop has taken from it for its next
//! requests; a *line* is the requests of one volume that wait on one loop ([`Lines`]). *Held*: why a request may not
//! start now, and when to ask again.
//!
//! **Flow.** [`Lines::submit`] starts a request that its loop's purse pays for, at the cost of some comparisons; else
//! the account is asked; else it waits in line, and [`Lines::next_grant`] hands it out when the account has something
//! again. [`Lines::next_look`] says when that is, and nothing is due while nobody waits. A volume without levels has
//! nothing to count, and is not counted.
//!
//! **Base, burst, credits.** What fits the base level is base. Beyond, it is burst, up to the burst level; a volume
//! that saves what it leaves over of its base ([`base::levels::Credits`]) bursts on what it has saved only. Credits
//! begin at nothing, so nobody gets richer by a restart.
//!
//! **Invariants** ([`Allowance::audit`], [`Lines::audit`] and `tests.rs`):
//! - over any span a volume starts no more than its burst level gives, and an interval's worth and one request more,
//!   whichever loops its requests are on;
//! - of base it starts no more than its base level gives, in the same measure;
//! - no credit comes from nothing: what was saved and spent is a part of what was left over of the base level;
//! - requests of one volume on one loop start in the order of their arrival; of several loops with a line each gets a share;
//! - nobody waits without a [`crate::waits::Reason`], and nobody waits for ever.

use base::levels::Rate;

mod account;
mod allowance;
mod lines;
#[cfg(test)]
mod tests;

pub use account::{Account, DEPTH, INTERVAL, Purse};
pub use allowance::{Allowance, Held};
pub use lines::{Grant, Lines, Verdict};

/// Who holds volumes to their levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Enforcer {
    /// The agent, over all segments, servers and loops; it marks requests.
    #[default]
    Agent,
    /// Each server by itself, as far as it sees a volume: the papers' block servers do.
    Server,
}

/// Settings of an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LevelsSettings {
    /// Who holds volumes to their levels.
    pub enforcer: Enforcer,
    /// The most that a tenant gets, all its volumes on this agent together; none: no bound.
    pub tenant_burst: Rate,
}
