//! The NBD frontend: a complete fixed-newstyle server of the Network Block Device protocol (docs/formats/nbd.md).
//!
//! What the bytes mean is decided without I/O, so that it can be fuzzed: [`handshake`] turns a client's bytes into
//! options, [`request`] 28 bytes into a decision, [`reply`] outcomes into bytes.

pub mod handshake;
pub mod protocol;
pub mod reply;
pub mod request;
