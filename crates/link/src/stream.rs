//! A link between two processes, over TCP or a Unix socket.
//!
//! **Intuition.** What a [mailbox](mod@crate::mailbox) does between two loops of a process a stream does between two
//! loops of two processes: requests go over, several at a time, and answers come back one by one. What is new is that the
//! other process, or the way to it, may be gone while this one lives. Then everything in flight is [`wire::LinkLost`], and
//! nothing that was said over that connection is said again by this crate: who tries again is the agent, after it has
//! attached anew.
//!
//! **Names.** A [`NearEnd`] asks: it dials when somebody asks and no connection is there, or stands for a peer that has
//! connected by itself. A [`FarEnd`] accepts connections. Both ends of a connection may do things for the other
//! ([`Services`]): so a manager asks an agent over the connection that the agent has dialled. *Live* is one connection
//! from its first byte to its last; what may be said on it when, and what it means, is [`wire::connection`].
//! A peer is *refused* when its machine says that nobody listens there ([`NearEnd::is_refused`]): its process is gone, where a
//! connection that was lost, or did not come about, says nothing.
//!
//! **Invariants.** A session belongs to one connection. The near end sends a request only over the connection that its
//! session was opened over; the far end refuses any other, and when a connection ends closes the sessions that were opened
//! over it, one whose opening was still under way too. An order is done by the engine that it names, whoever lives at its
//! address now. A request that was taken is done, whether or not anybody still
//! waits. All of it is bounded: connections, requests in flight and their bytes by the credit of the connection, replies
//! that wait to be sent by the same numbers, for as long as the peer takes bytes at all.
//!
//! **Flow.** of a write: `near -> credit -> frame -> outbox -> socket -> intake -> connection -> task: service`, and the
//! reply goes back the same way. The payload is sent from where the caller has it. A small one stays in the buffer that it
//! was received into, a large one is received into aligned memory of its own; either is handed on without a copy, but for
//! what of a large one came together with its header.

mod far;
mod first;
mod intake;
mod live;
mod near;
mod offer;
mod outbox;
mod rights;
mod serve;

use std::rc::Rc;
use std::time::Duration;

use base::Incarnation;
use base::limits::{REQUEST_SIZE_MAX, STREAM_BYTES, STREAM_REQUESTS, STREAMS_MAX};
use wire::{
    BlockService, EngineRegistry, FileService, LeaseStore, Observer, SegmentDirectory, SegmentOwner, VolumeDirectory,
    VolumeOwner, VolumeUser, connection, frame,
};

pub use self::far::{FarEnd, Statistics};
pub use self::near::NearEnd;
use crate::tls::{Credentials, Role};

/// What one process does for another.
#[derive(Clone, Default)]
pub struct Services {
    /// It owns segments.
    pub block: Option<Rc<dyn BlockService>>,
    /// It knows volumes.
    pub directory: Option<Rc<dyn VolumeDirectory>>,
    /// It owns the segments of volumes, for a manager.
    pub owner: Option<Rc<dyn VolumeOwner>>,
    /// It uses volumes, for a manager.
    pub user: Option<Rc<dyn VolumeUser>>,
    /// It has files that several share.
    pub files: Option<Rc<dyn FileService>>,
    /// It has leases, and what is bound to them.
    pub lease: Option<Rc<dyn LeaseStore>>,
    /// It knows where segments are.
    pub places: Option<Rc<dyn SegmentDirectory>>,
    /// Engines say to it that they live.
    pub registry: Option<Rc<dyn EngineRegistry>>,
    /// It is this engine, which owns segments, for a manager.
    pub segments: Option<(Incarnation, Rc<dyn SegmentOwner>)>,
    /// It tells how it stands.
    pub observer: Option<Rc<dyn Observer>>,
}

/// Settings of an end.
#[derive(Clone)]
pub struct Options {
    /// What this process is, for the messages of others.
    pub name: String,
    /// Requests that it takes at a time from one connection, and has in flight on one at most.
    pub requests_max: u32,
    /// Bytes of payload that these may have, in either direction; at least the largest request.
    pub bytes_max: u64,
    /// It gives a peer up after so long without a byte, or without one taken; and a connection that does not come about.
    pub silence: Duration,
    /// Connections that a far end has at a time; further ones are told so, and closed.
    pub streams_max: usize,
    /// Connections are under TLS, and nothing is said in the open.
    pub tls: Option<Tls>,
}

/// How an end has its connections under TLS.
#[derive(Clone)]
pub struct Tls {
    /// What it shows, and whom it believes.
    pub credentials: Rc<Credentials>,
    /// What whoever it dials has to be. Who dials a far end has to be something that may ask for what it offers.
    pub dialled: Role,
}

impl Options {
    /// The usual settings for a process of this name.
    pub fn new(name: impl Into<String>) -> Options {
        Options {
            name: name.into(),
            requests_max: STREAM_REQUESTS as u32,
            bytes_max: STREAM_BYTES,
            silence: Duration::from_secs(5),
            streams_max: STREAMS_MAX,
            tls: None,
        }
    }

    /// The same, under TLS if there are credentials; whoever is dialled has to be this.
    pub fn secured(self, credentials: Option<&Rc<Credentials>>, dialled: Role) -> Options {
        let tls = credentials.map(|credentials| Tls { credentials: credentials.clone(), dialled });
        Options { tls, ..self }
    }

    /// What is said to a peer. `peer` is what it is, where that is known.
    fn of_connection(&self, services: &Services, peer: Option<Role>) -> connection::Options {
        let offered = services.offered();
        connection::Options {
            services: peer.map_or(offered, |role| rights::of(role, offered)),
            requests_max: self.requests_max.max(1),
            bytes_max: self.bytes_max.max(REQUEST_SIZE_MAX),
            silence: self.silence,
            name: self.name.clone(),
        }
    }
}

impl Services {
    /// What of all that is there.
    fn offered(&self) -> frame::Services {
        frame::Services {
            block: self.block.is_some(),
            directory: self.directory.is_some(),
            owner: self.owner.is_some(),
            user: self.user.is_some(),
            files: self.files.is_some(),
            lease: self.lease.is_some(),
            places: self.places.is_some(),
            registry: self.registry.is_some(),
            segments: self.segments.is_some(),
            observer: self.observer.is_some(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
