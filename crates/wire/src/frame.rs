//! The bytes of a stream between two processes, version 1 (docs/formats/wire.md).
//!
//! **Intuition.** Two processes say to each other what a call or a mailbox says within one: requests of
//! [`BlockService`](crate::BlockService), [`VolumeDirectory`](crate::VolumeDirectory),
//! [`VolumeOwner`](crate::VolumeOwner), [`VolumeUser`](crate::VolumeUser), [`FileService`](crate::FileService),
//! [`LeaseStore`](crate::LeaseStore), [`SegmentDirectory`](crate::SegmentDirectory),
//! [`EngineRegistry`](crate::EngineRegistry), [`SegmentOwner`](crate::SegmentOwner) and [`Observer`](crate::Observer), and
//! their replies. Each is one **frame**; a list that may be longer than one holds is asked for in parts.
//! This module turns messages into frames and back. It knows nothing of what was said before: that is
//! [`connection`](crate::connection).
//!
//! **Names.** A frame is a *header* of [`HEADER_LEN`] bytes, *extensions* (type, length, value), a *body* that depends on
//! the type, and a *payload*: bytes of a volume or file. The *rest* of a frame is extensions and body. A *kind* is what is asked;
//! a reply has the kind of its request. *Marks* are what a request says of itself for those who schedule it.
//!
//! **Invariants.** No byte is believed before its checksum: the header's covers the header, one in it the rest, and a
//! payload is covered by the agent's block checksums (a write) or by one in the header (any other). A length is believed
//! before what it measures is there, so each has a bound. What is accepted means exactly what it says: encoded again it
//! gives the same bytes, but for extensions that this version does not know, which are skipped.
//!
//! **Flow.** [`Message::encode`] gives a [`Frame`], whose payload is the bytes that it was given and no copy of them.
//! [`Header::decode`] says how long the rest and the payload are; [`Message::decode`] takes all three.

mod error;
mod extension;
mod fields;
mod file;
mod header;
mod hello;
mod kind;
mod lease;
mod message;
mod reply;
mod request;
mod segments;
mod volume;

pub use self::header::{HEADER_LEN, Header, Marks};
pub use self::hello::{FEATURES, Hello, Services};
pub use self::kind::Kind;
pub use self::message::{Frame, Message};
pub use self::reply::Value;
pub use self::request::Request;
pub use self::segments::{ASSIGNED_MAX, HOLDINGS_MAX, LEFT_MAX, check_left};

/// The version of the protocol that this build speaks.
pub const VERSION: u8 = 1;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
