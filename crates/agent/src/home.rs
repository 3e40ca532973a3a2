//! What an agent has on its first loop: the volumes that it holds, and the way to its parts on every loop.
//!
//! A part ([`Shared`]) serves connections. What concerns a volume as a whole it asks here: to enter it, to leave it.
//! What concerns the connections of all loops is passed on from here: to end those of a volume, to end those that stand
//! in the way of somebody who waits for memory.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use base::{Result, VolumeId};
use link::NearEnd;
use runtime::{Class, Handle};
use wire::LocalBoxFuture;

use crate::registry::{Entered, Registry};
use crate::shared::Shared;

/// See the module.
pub(crate) struct Home {
    handle: Handle,
    pub(crate) registry: Registry,
    here: RefCell<Weak<Shared>>,
    /// The parts on other loops, in their order: the first one's index is 1.
    others: RefCell<Vec<NearEnd<Shared>>>,
}

impl Home {
    pub(crate) fn new(handle: &Handle, registry: Registry) -> Rc<Home> {
        Rc::new(Home { handle: handle.clone(), registry, here: RefCell::default(), others: RefCell::default() })
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
    pub(crate) async fn enter(self: &Rc<Self>, volume: VolumeId, index: usize) -> Result<Entered> {
        let home = Rc::downgrade(self);
        let on_lost = move |volume| {
            if let Some(home) = home.upgrade() {
                home.drain(Some(volume));
            }
        };
        self.registry.enter(volume, index, Rc::new(on_lost)).await
    }

    /// Drains the connections of a volume, or all, on every loop.
    pub(crate) fn drain(&self, volume: Option<VolumeId>) {
        self.tell(move |part| part.drain(volume));
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

/// A part's way to the home of its agent.
pub(crate) enum Door {
    /// On the same loop.
    Here(Rc<Home>),
    /// On another one.
    There(NearEnd<Home>),
}

impl Door {
    /// See [`Home::enter`]. The future must not be dropped before it completes.
    pub(crate) async fn enter(&self, volume: VolumeId, index: usize) -> Result<Entered> {
        match self {
            Door::Here(home) => home.enter(volume, index).await,
            Door::There(home) => {
                let entered = home.ask(move |home| Box::pin(async move { home.enter(volume, index).await })).await;
                entered.map_err(|lost| base::Error::internal(lost.message))?
            }
        }
    }

    /// See [`Registry::leave`].
    pub(crate) async fn leave(&self, volume: VolumeId) {
        match self {
            Door::Here(home) => home.registry.leave(volume).await,
            // Where there is no home any more, there is nothing to leave.
            Door::There(home) => {
                drop(home.ask(move |home| Box::pin(async move { home.registry.leave(volume).await })).await);
            }
        }
    }

    /// See [`Home::end_stalled`].
    pub(crate) async fn end_stalled(&self) {
        match self {
            Door::Here(home) => home.end_stalled(),
            Door::There(home) => drop(home.ask(|home| Box::pin(async move { home.end_stalled() })).await),
        }
    }
}
