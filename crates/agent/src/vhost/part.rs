//! One connection of a hypervisor on one loop: the volume there, and the queues that the loop serves.
//!
//! The connection itself is on the agent's first loop ([`super::connection`]) and says what is to be done here: [`Order`]s,
//! each of which it waits for. A part has a peer of its own on its loop, so that whoever ends connections there finds it: then
//! it claims nothing more, and what it runs finishes.

mod queue;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::MIB;
use futures_channel::oneshot::Sender;
use policies::tenants::Frontend;
use runtime::guest::Bell;
use runtime::{Doorbell, Handle, SharedBudget};
use wire::VolumeDescriptor;

use self::queue::Queue;
use super::claims::Claims;
use super::memory::Dedicated;
use super::protocol::{Disk, Violation};
use crate::accounts::MEMORY_SHARE;
use crate::peers::Peer;
use crate::registry::Entered;
use crate::shared::{Commons, Shared};
use crate::volume::Volume;

/// What all parts of a connection share.
pub(super) struct Device {
    pub(super) connection: u64,
    /// The name of the volume.
    pub(super) volume: String,
    commons: Arc<Commons>,
    /// How many parts it has.
    parts: usize,
    /// Bytes of payload that this connection may have of the pool.
    pub(super) memory: SharedBudget,
    /// Its guest broke the rules: nothing more is claimed until its driver has stopped all queues.
    is_broken: AtomicBool,
}

/// See the module.
pub(super) struct Part {
    pub(super) shared: Rc<Shared>,
    pub(super) peer: Rc<Peer>,
    pub(super) volume: Rc<Volume>,
    pub(super) disk: Disk,
    pub(super) device: Arc<Device>,
}

/// The queues that a part serves, each of which has the part.
type Queues = BTreeMap<usize, Rc<Queue>>;

/// What a part is told.
pub(super) enum Order {
    /// Serve a queue. One part rings first: what a former connection, or a former life, has used may never have been told.
    Start { queue: usize, claims: Claims, memory: Dedicated, kick: Bell, call: Option<Bell>, rings: bool },
    /// Wait for another bell.
    SetKick { queue: usize, bell: Bell },
    /// Ring another bell; one part does so at once, since what was told to the former may not have been heard.
    SetCall { queue: usize, bell: Option<Bell>, rings: bool },
    /// A queue was stopped.
    Forget { queue: usize },
}

/// An order, and where it is said that it was done, or why not.
pub(super) struct Told {
    pub(super) order: Order,
    pub(super) done: Sender<std::io::Result<()>>,
}

impl Device {
    pub(super) fn new(commons: Arc<Commons>, connection: u64, volume: String, parts: usize) -> Arc<Device> {
        let share = (commons.options.payload_bytes_max / MEMORY_SHARE).max(MIB);
        Arc::new(Device {
            connection,
            volume,
            commons,
            parts,
            memory: SharedBudget::new(share),
            is_broken: AtomicBool::new(false),
        })
    }

    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    /// Its driver begins anew.
    pub(super) fn mend(&self) {
        self.is_broken.store(false, Ordering::Release);
    }

    /// The guest broke the rules: that is said once, whichever loops see it, and nothing more is claimed.
    pub(super) fn break_down(&self, index: usize, violation: Violation) {
        if self.is_broken.swap(true, Ordering::AcqRel) {
            return;
        }
        self.commons.violations.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            connection = self.connection,
            volume = %self.volume,
            queue = index,
            %violation,
            "a guest broke the rules of its disk, which is not served until its driver resets it"
        );
    }
}

impl Part {
    /// The part on the loop of `shared`, of which `peer` is known there. `entered`: the connection has entered the volume for
    /// it.
    pub(super) fn new(
        shared: &Rc<Shared>,
        peer: &Rc<Peer>,
        found: &VolumeDescriptor,
        entered: Entered,
        device: Arc<Device>,
    ) -> Rc<Part> {
        let volume = shared.seat(found, Frontend::VhostUser, entered);
        peer.volume.set(Some(found.id));
        // Whoever ends connections may have looked already.
        if volume.turns_away() || shared.is_stopping() {
            shared.drain_one(peer.id);
        }
        let disk = Disk::of(volume.descriptor());
        let (shared, peer) = (shared.clone(), peer.clone());
        Rc::new(Part { shared, peer, volume, disk, device })
    }

    /// Whether no other loop can serve a queue of this device.
    pub(super) fn is_alone(&self) -> bool {
        self.device.parts == 1
    }

    /// Does what it is told until the connection ends, and then waits for what is in flight here.
    pub(super) async fn follow(self: &Rc<Self>, orders: async_channel::Receiver<Told>) {
        let mut queues = Queues::new();
        while let Ok(Told { order, done }) = orders.recv().await {
            // Whoever does not wait any more is gone.
            let _ = done.send(self.obey(order, &mut queues).await);
        }
        // Every slot back means that every request was answered.
        self.peer.slots.take(self.peer.slots.total()).await;
        // What was used last is told at the end of the turn: before the hypervisor stops to listen.
        self.shared.handle.yield_now().await;
    }

    async fn obey(self: &Rc<Self>, order: Order, queues: &mut Queues) -> std::io::Result<()> {
        let handle = &self.shared.handle;
        match order {
            Order::Start { queue: index, claims, memory, kick, call, rings } => {
                let (kick, call) = (handle.hang(kick).await?, hang(handle, call).await?);
                let queue = Queue::new(self, index, (claims, memory), kick, call);
                if rings {
                    queue.ring_call();
                }
                queue.start();
                queues.insert(index, queue);
            }
            Order::SetKick { queue, bell } => {
                let bell = handle.hang(bell).await?;
                if let Some(queue) = queues.get(&queue) {
                    queue.set_kick(bell);
                }
            }
            Order::SetCall { queue, bell, rings } => {
                let bell = hang(handle, bell).await?;
                if let Some(queue) = queues.get(&queue) {
                    queue.set_call(bell);
                    if rings {
                        queue.ring_call();
                    }
                }
            }
            Order::Forget { queue } => drop(queues.remove(&queue)),
        }
        Ok(())
    }
}

async fn hang(handle: &Handle, bell: Option<Bell>) -> std::io::Result<Option<Doorbell>> {
    match bell {
        Some(bell) => handle.hang(bell).await.map(Some),
        None => Ok(None),
    }
}
