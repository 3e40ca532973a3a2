//! What agents, block servers and managers say to each other, without any I/O.
//!
//! An agent (the compute side) turns a client's read or write of a *volume* into requests for *segments* and sends
//! them through a [`BlockService`]; whoever implements it may be the block server itself, a mailbox to its loop, or a
//! stream to another process. What the agent must know of a volume (its size, its layout, its generation) it asks a
//! [`VolumeDirectory`], the manager's face. A server whose files are in a store that it shares with others asks that store's
//! [`FileService`]. Who has which segment is decided by a manager, which asks engines for it ([`SegmentOwner`]), and tells
//! others ([`SegmentDirectory`]); engines say to it that they live ([`EngineRegistry`]). Whoever is asked tells how it stands
//! ([`Observer`]). Between processes all of it is bytes: [`frame`] says which, and [`connection`] when they may be said.
//!
//! Names: a *session* is one agent's hold on one volume at one block server; a *generation* numbers the attachments
//! of a volume, an *epoch* the ownerships of a segment, and of each the higher one fences every lower one. A *piece*
//! is the part of a volume's range that lies in one segment.
//!
//! Flow of an attachment: `VolumeDirectory::attach` records a new generation durably, `BlockService::attach` opens a
//! session under it (the server asks the directory whether that generation is still the newest, closes the older
//! session and drains it), then requests flow, each with session, segment and epoch.
//!
//! Invariants: a [`Reply`] says under which epoch it was given, so that an agent can drop a fenced owner's answer;
//! [`LinkLost`] is the only answer that leaves an outcome unknown for reasons of transport; [`layout`] is a bijection
//! between a volume's bytes and those of its segments.

pub mod api;
pub mod connection;
pub mod directory;
pub mod files;
pub mod frame;
pub mod layout;
pub mod lease;
pub mod observe;
pub mod owner;
pub mod registry;
pub mod service;

pub use directory::{
    Device, DeviceHost, Forwarding, VolumeDescriptor, VolumeDirectory, VolumeOwner, VolumeUser, logs_name,
};
pub use files::FileService;
pub use layout::{Layout, Piece};
pub use lease::LeaseStore;
pub use observe::Observer;
pub use owner::{Assignment, Holding, LeftSegment, Located, SegmentDirectory, SegmentOwner, Source};
pub use registry::{EngineRegistry, Registered};
pub use service::{Answer, Attachment, BlockService, LinkLost, LocalBoxFuture, Reply, SessionId, Target};
