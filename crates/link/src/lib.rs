//! Carries `wire` requests from an agent to the owner of a segment.
//!
//! A link is a [`BlockService`] that stands for another one. On one loop it is a **call**: the owner itself, behind an
//! `Rc` ([`call`]); nothing is copied, queued or woken. Between loops of one process it is a **mailbox**
//! ([`mailbox()`]): requests cross threads through a bounded queue and answers come back one by one. Between processes it
//! is a **stream** ([`stream`]), over TCP or a Unix socket, in the open or under [`tls`]. All carry the same requests with the same
//! outcomes. Where several loops own segments, **routes** ([`Routes`]) send each request to the link of its owner: so a
//! store grows from one loop to many without its agents noticing.
//!
//! Names: the *near* end is the agent's, the *far* end the owner's. Invariants: a request that the far end took is
//! answered or its link is lost, never silently dropped; a full mailbox makes the near end wait.

pub mod mailbox;
mod routes;
pub mod stream;
pub mod tls;

use std::rc::Rc;

pub use mailbox::{FarEnd, NearEnd, mailbox};
pub use routes::{Route, Routes, Sessions};
use wire::BlockService;

/// The link on one loop: the owner itself.
pub fn call<S: BlockService + 'static>(owner: Rc<S>) -> Rc<dyn BlockService> {
    owner
}
