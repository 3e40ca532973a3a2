//! The compute side: frontends that clients attach to, and the way from a volume's bytes to the owners of its
//! segments.
//!
//! A frontend ([`nbd`]) speaks a client's protocol and knows nothing of segments. A `Volume` knows its layout and its
//! owners and nothing of clients: it cuts requests into pieces, stamps writes, keeps overlapping ones in order, and
//! sends them through a [`wire::BlockService`]. The [`Agent`] holds both together: which volumes are attached, who is
//! connected, and how much memory all of them may use.
//!
//! An agent serves connections on one loop or on several. A connection of NBD stays on the loop that got it, with its
//! requests and their memory; a queue of a virtual machine is served by all loops, each request by the one that claimed it
//! ([`vhost`]). A request leaves its loop only on its way to the owner of its segment, and back. What loops share is
//! little: an attachment with the order of its writes (`attachment`), the rings of a queue, the budget of payload memory, and
//! counters. On the first loop is the agent's `home`, which attaches and detaches.
//!
//! Flow of a write: `frontend -> slot and memory -> order -> layout -> checksum and stamp -> service`, and the outcome
//! climbs back once, to a reply.

mod accounts;
mod agent;
mod attachment;
pub mod forwarding;
mod home;
pub mod nbd;
mod peers;
mod registry;
mod roster;
mod router;
mod shared;
mod slow_engines;
mod statistics;
mod tenants;
pub mod vhost;
mod volume;
mod weave;
pub mod write_order;

pub use agent::{Agent, Invitation};
pub use roster::{TenantKey, TenantStatistics};
pub use router::{Connect, Router, RouterOptions, RouterStatistics};
pub use shared::Options;
pub use slow_engines::SlowPart;
pub use statistics::{AgentStatistics, Operation, OperationStatistics, VolumeStatistics};
