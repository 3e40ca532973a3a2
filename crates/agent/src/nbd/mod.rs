//! The NBD frontend: a complete fixed-newstyle server of the Network Block Device protocol (docs/formats/nbd.md).
//!
//! What the bytes mean is decided without I/O, so that it can be fuzzed: [`handshake`] turns a client's bytes into
//! options, [`request`] 28 bytes into a decision, [`reply`] outcomes into bytes. Around it lies a thin layer that
//! moves them: `negotiate` answers options, `intake` receives, `connection` runs requests, `outbox` sends replies.
//!
//! Flow of a connection: handshake (under a time limit; it may go over to TLS, [`entrance`]) -> a volume is entered -> requests, each in a task of its
//! own, until the client disconnects, breaks the protocol, or is drained -> what is in flight finishes -> the volume
//! is left.
//!
//! Invariants: hostile input ends its own connection only; a connection holds at most 256 requests, refused ones
//! included, and a bounded share of the payload memory; an idle connection has no timer and one small buffer (two under TLS).

mod connection;
mod end;
mod entrance;
pub mod handshake;
mod intake;
mod negotiate;
mod outbox;
pub mod protocol;
pub mod reply;
pub mod request;

pub(crate) use connection::serve_connection;
pub(crate) use entrance::{Certificates, Entrance};
pub use entrance::{Demand, NbdTls, demands_tls};
pub(crate) use intake::LARGE_BUFFERS_MAX;

#[cfg(test)]
pub(crate) mod tests;
