//! The compute side: frontends that clients attach to, and the way from a volume's bytes to the owners of its
//! segments.
//!
//! A frontend ([`nbd`]) speaks a client's protocol and knows nothing of segments. A `Volume` knows its layout and its
//! owners and nothing of clients: it cuts requests into pieces, stamps writes, keeps overlapping ones in order, and
//! sends them through a [`wire::BlockService`]. The [`Agent`] holds both together: which volumes are attached, who is
//! connected, and how much memory all of them may use.
//!
//! Flow of a write: `frontend -> slot and memory -> order -> layout -> checksum and stamp -> service`, and the outcome
//! climbs back once, to a reply.

mod agent;
pub mod nbd;
mod peers;
mod registry;
mod shared;
mod statistics;
mod volume;
mod weave;
pub mod write_order;

pub use agent::Agent;
pub use shared::Options;
pub use statistics::{AgentStatistics, Operation, OperationStatistics, VolumeStatistics};
