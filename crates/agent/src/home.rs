//! What an agent has on its first loop: the volumes that it holds, and the way to its parts on every loop.
//!
//! A part ([`Shared`]) serves connections. What concerns a volume as a whole it asks here: to enter it, to leave it.
//! What concerns the connections of all loops is passed on from here: to end those of a volume, to end those that stand
//! in the way of somebody who waits for memory.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use base::{Error, Generation, Result, VolumeId};
use link::NearEnd;
use runtime::sync::Budget;
use runtime::{Class, Handle};
use wire::LocalBoxFuture;

use crate::registry::{Entered, Registry};
use crate::shared::{Door, Shared};

/// The share of all payload memory that may be set aside for queues: a quarter.
const QUEUES_SHARE: u64 = 4;

/// See the module.
pub(crate) struct Home {
    handle: Handle,
    pub(crate) registry: Registry,
    here: RefCell<Weak<Shared>>,
    /// The parts on other loops, in their order: the first one's index is 1.
    others: RefCell<Vec<NearEnd<Shared>>>,
    /// Payload memory that may be set aside for queues of virtual machines.
    pub(crate) of_queues: Budget,
}

impl Home {
    /// An agent without parts, which has so many bytes for payload.
    pub(crate) fn new(handle: &Handle, registry: Registry, payload_bytes_max: u64) -> Rc<Home> {
        Rc::new(Home {
            handle: handle.clone(),
            registry,
            here: RefCell::default(),
            others: RefCell::default(),
            of_queues: Budget::new(payload_bytes_max / QUEUES_SHARE),
        })
    }

    /// The part on this loop.
    pub(crate) fn set_here(&self, here: &Rc<Shared>) {
        *self.here.borrow_mut() = Rc::downgrade(here);
    }

    /// One more part, on another loop.
    pub(crate) fn add(&self, part: NearEnd<Shared>) {
        self.others.borrow_mut().push(part);
    }

    /// The part on another loop.
    pub(crate) fn other(&self, index: usize) -> NearEnd<Shared> {
        self.others.borrow()[index - 1].clone()
    }

    /// The parts on other loops.
    pub(crate) fn others(&self) -> Vec<NearEnd<Shared>> {
        self.others.borrow().clone()
    }

    /// See [`Registry::enter`].
    pub(crate) async fn enter(self: &Rc<Self>, volume: VolumeId, newest: Generation, index: usize) -> Result<Entered> {
        let home = Rc::downgrade(self);
        let on_lost = move |volume| {
            if let Some(home) = home.upgrade() {
                home.drain(Some(volume));
            }
        };
        self.registry.enter(volume, newest, index, Rc::new(on_lost)).await
    }

    /// Drains the connections of a volume, or all, on every loop.
    pub(crate) fn drain(&self, volume: Option<VolumeId>) {
        self.tell(move |part| part.drain(volume));
    }

    /// Drains one connection, on whichever loop it is.
    pub(crate) fn drain_one(&self, id: u64) {
        self.tell(move |part| part.drain_one(id));
    }

    /// Ends the connections that stand in the way of others, on every loop.
    pub(crate) fn end_stalled(&self) {
        self.tell(Shared::end_stalled);
    }

    /// Has something done by all parts.
    fn tell(&self, what: impl Fn(&Shared) + Copy + Send + 'static) {
        if let Some(here) = self.here.borrow().upgrade() {
            what(&here);
        }
        for part in self.others() {
            let errand =
                move |part: Rc<Shared>| -> LocalBoxFuture<'static, ()> { Box::pin(async move { what(&part) }) };
            // A loop that has ended has no connections.
            let telling = async move { drop(part.ask(errand).await) };
            self.handle.spawn(Class::Io, "tell a loop", telling).detach();
        }
    }
}

impl Door for Rc<Home> {
    fn enter(&self, volume: VolumeId, newest: Generation, index: usize) -> LocalBoxFuture<'_, Result<Entered>> {
        Box::pin(Home::enter(self, volume, newest, index))
    }

    fn leave(&self, volume: VolumeId) -> LocalBoxFuture<'_, ()> {
        Box::pin(self.registry.leave(volume))
    }

    fn end_stalled(&self) -> LocalBoxFuture<'_, ()> {
        Home::end_stalled(self);
        Box::pin(std::future::ready(()))
    }
}

impl Door for NearEnd<Home> {
    fn enter(&self, volume: VolumeId, newest: Generation, index: usize) -> LocalBoxFuture<'_, Result<Entered>> {
        Box::pin(async move {
            let entering =
                self.ask(move |home| Box::pin(async move { Home::enter(&home, volume, newest, index).await }));
            entering.await.map_err(|lost| Error::internal(lost.message))?
        })
    }

    fn leave(&self, volume: VolumeId) -> LocalBoxFuture<'_, ()> {
        // Where there is no home any more, there is nothing to leave.
        Box::pin(async move {
            drop(self.ask(move |home| Box::pin(async move { home.registry.leave(volume).await })).await);
        })
    }

    fn end_stalled(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move { drop(self.ask(|home| Box::pin(async move { Home::end_stalled(&home) })).await) })
    }
}
