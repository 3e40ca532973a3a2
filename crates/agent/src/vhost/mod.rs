//! The vhost-user frontend: a volume as a virtio disk of virtual machines (virtio 1.2, section 5.2; docs/VIRTUAL-MACHINES.md).
//!
//! A guest puts descriptors of its requests into rings in its own memory. What they mean is decided without I/O, so that it
//! can be fuzzed: [`chain`] copies the descriptors of one request, [`request`] makes a decision of them, [`ring`] takes
//! from one ring and gives back to the other, [`inflight`] remembers in memory of the hypervisor what is between the two,
//! [`protocol`] says what the disk is like. Around it lies a thin layer: `connection` answers the hypervisor, on the agent's
//! first loop; `part` is the connection on each loop and runs requests there, `claims` is what loops know of a queue
//! together, and `memory` is what they have for its payload. The other side, for the simulated world, is [`driver`].
//!
//! Flow of a connection: a volume is entered -> the hypervisor says where memory and rings lie -> requests of each queue,
//! claimed by whichever loop comes to it, each in a task of its own there, until the hypervisor stops the queue or goes, or
//! the connection is drained -> what is in flight finishes on every loop -> the volume is left.
//!
//! Invariants: nothing of a guest is looked at twice: what matters is copied out of its memory once; a hostile guest ends
//! its own disk only, on all loops, until its driver resets that; a connection runs at most 256 requests at once on each loop,
//! with a bounded share of the payload memory, and some that no other queue can take; a request is claimed by one loop, marked as in flight before it begins, and no
//! more when its outcome can be seen.

pub mod chain;
mod claims;
mod connection;
pub mod driver;
pub mod inflight;
mod memory;
mod part;
pub mod protocol;
pub mod request;
pub mod ring;

pub(crate) use connection::serve_guest;

#[cfg(test)]
mod tests;
