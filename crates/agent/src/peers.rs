//! The connections that are open: counted, drained, and ended when they stand in the way of others.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::limits::REQUESTS_PER_CONNECTION;
use base::{Instant, VolumeId};
use runtime::Stream;
use runtime::sync::{Budget, Event};

/// What a peer is connected by, for whoever ends that.
#[derive(Clone)]
pub(crate) enum Line {
    /// A stream of bytes.
    Stream(Stream),
    /// The port of a hypervisor, whose connection looks here.
    Port(Rc<HangUp>),
}

/// Tells a connection to end.
#[derive(Default)]
pub(crate) struct HangUp {
    is_told: Cell<bool>,
    told: Event,
}

impl HangUp {
    /// Returns when the connection is to end.
    pub(crate) async fn wait(&self) {
        while !self.is_told.get() {
            self.told.wait().await;
        }
    }
}

impl Line {
    /// Ends the connection.
    pub(crate) fn shutdown(&self) {
        match self {
            Line::Stream(stream) => stream.shutdown(),
            Line::Port(hang_up) => {
                hang_up.is_told.set(true);
                hang_up.told.notify();
            }
        }
    }
}

/// One connection, as the agent sees it.
pub(crate) struct Peer {
    /// For logs.
    pub(crate) id: u64,
    pub(crate) line: Line,
    /// A request holds one from its arrival until its reply is sent.
    pub(crate) slots: Budget,
    /// The volume that it uses, once it is in transmission.
    pub(crate) volume: Cell<Option<VolumeId>>,
    /// No request is started any more.
    pub(crate) draining: Cell<bool>,
    /// Since when a send waits for the peer to take bytes.
    pub(crate) sends_since: Cell<Option<Instant>>,
    /// Since when a payload that has memory waits for the peer to send bytes.
    pub(crate) receives_since: Cell<Option<Instant>>,
    /// Whether it was ended for making others wait.
    pub(crate) stalled: Cell<bool>,
}

impl Peer {
    pub(crate) fn new(id: u64, line: Line) -> Self {
        Peer {
            id,
            line,
            slots: Budget::new(REQUESTS_PER_CONNECTION as u64),
            volume: Cell::new(None),
            draining: Cell::new(false),
            sends_since: Cell::new(None),
            receives_since: Cell::new(None),
            stalled: Cell::new(false),
        }
    }

    /// Lets the requests in flight finish and their replies go out, then ends the connection. Asked again, it leaves
    /// that to the first.
    pub(crate) async fn drain(&self) {
        if self.draining.replace(true) {
            return;
        }
        if self.volume.get().is_some() {
            self.slots.take(self.slots.total()).await;
        }
        self.line.shutdown();
    }

    fn is_stalled(&self, now: Instant, patience: Duration) -> bool {
        let waits = [self.sends_since.get(), self.receives_since.get()];
        waits.into_iter().flatten().any(|since| now.since(since) >= patience)
    }
}

/// All connections that are open.
#[derive(Default)]
pub(crate) struct Peers {
    open: RefCell<BTreeMap<u64, Rc<Peer>>>,
    /// Notified when one is gone.
    pub(crate) gone: Event,
}

impl Peers {
    pub(crate) fn insert(&self, peer: Rc<Peer>) {
        self.open.borrow_mut().insert(peer.id, peer);
    }

    pub(crate) fn remove(&self, id: u64) {
        self.open.borrow_mut().remove(&id);
        self.gone.notify();
    }

    pub(crate) fn len(&self) -> usize {
        self.open.borrow().len()
    }

    /// The one of that number.
    pub(crate) fn get(&self, id: u64) -> Option<Rc<Peer>> {
        self.open.borrow().get(&id).cloned()
    }

    /// Those that use a volume, or all.
    pub(crate) fn of(&self, volume: Option<VolumeId>) -> Vec<Rc<Peer>> {
        let open = self.open.borrow();
        open.values().filter(|peer| volume.is_none() || peer.volume.get() == volume).cloned().collect()
    }

    /// Ends every connection whose peer has neither taken nor sent what it must for as long as `patience`, and says
    /// how many these were.
    pub(crate) fn end_stalled(&self, now: Instant, patience: Duration) -> u64 {
        let stalled: Vec<Rc<Peer>> =
            self.of(None).into_iter().filter(|peer| !peer.stalled.get() && peer.is_stalled(now, patience)).collect();
        for peer in &stalled {
            peer.stalled.set(true);
            peer.line.shutdown();
        }
        stalled.len() as u64
    }
}
