//! Which volumes this agent holds: attached when the first connection enters, detached when the last one leaves.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, Map, Result, Set, VolumeId};
use runtime::sync::Event;
use runtime::{Class, Handle, Task};
use wire::{BlockService, VolumeDirectory};

use crate::statistics::VolumeStatistics;
use crate::volume::Volume;

/// Volumes whose statistics are kept though nobody uses them.
const STATISTICS_KEPT_MAX: usize = 256;

/// What to do when a volume is lost.
type OnLost = Rc<dyn Fn(VolumeId)>;

/// The volumes of one agent.
pub(crate) struct Registry {
    handle: Handle,
    pub(crate) directory: Rc<dyn VolumeDirectory>,
    service: Rc<dyn BlockService>,
    slots: RefCell<Map<VolumeId, Slot>>,
    /// Volumes that nobody may enter, because they are being let go of.
    closed: RefCell<Set<VolumeId>>,
    statistics: RefCell<BTreeMap<VolumeId, Named>>,
}

/// A volume's counters outlive its attachments, so that they only grow.
struct Named {
    name: String,
    statistics: Rc<RefCell<VolumeStatistics>>,
}

enum Slot {
    /// Being attached or detached; notified when that is done.
    Busy(Event),
    Held {
        volume: Rc<Volume>,
        users: usize,
        /// Notified when the last user has left.
        left: Event,
        /// Waits for the volume to be lost.
        _watch: Task<()>,
    },
}

/// What one look at a slot says.
enum Look {
    Entered(Rc<Volume>),
    Wait(Event),
    Attach(Event),
}

impl Registry {
    pub(crate) fn new(handle: &Handle, directory: Rc<dyn VolumeDirectory>, service: Rc<dyn BlockService>) -> Self {
        Registry {
            handle: handle.clone(),
            directory,
            service,
            slots: RefCell::default(),
            closed: RefCell::default(),
            statistics: RefCell::default(),
        }
    }

    /// Uses a volume, attaching it if nobody does yet. The future must not be dropped before it completes.
    pub(crate) async fn enter(&self, id: VolumeId, on_lost: OnLost) -> Result<Rc<Volume>> {
        let attached = loop {
            if self.closed.borrow().contains(&id) {
                return Err(Error::not_found(format!("volume {id} is being deleted")));
            }
            match self.look(id) {
                Look::Entered(volume) => return Ok(volume),
                Look::Wait(event) => event.wait().await,
                Look::Attach(event) => break event,
            }
        };
        let statistics = self.statistics_of(id);
        let volume = Volume::attach(&self.handle, &*self.directory, self.service.clone(), id, statistics).await;
        let volume = match volume {
            Ok(volume) => Rc::new(volume),
            Err(error) => {
                self.slots.borrow_mut().remove(&id);
                attached.notify();
                return Err(error);
            }
        };
        if let Some(named) = self.statistics.borrow_mut().get_mut(&id) {
            named.name.clone_from(&volume.descriptor.name);
        }
        let lost = volume.on_lost.wait();
        let watch = self.handle.spawn(Class::Io, "lost volume", async move {
            lost.await;
            on_lost(id);
        });
        let slot = Slot::Held { volume: volume.clone(), users: 1, left: attached.clone(), _watch: watch };
        self.slots.borrow_mut().insert(id, slot);
        attached.notify();
        Ok(volume)
    }

    fn look(&self, id: VolumeId) -> Look {
        let mut slots = self.slots.borrow_mut();
        match slots.get_mut(&id) {
            None => {
                let event = Event::new();
                slots.insert(id, Slot::Busy(event.clone()));
                Look::Attach(event)
            }
            Some(Slot::Busy(event)) => Look::Wait(event.clone()),
            Some(Slot::Held { volume, left, .. }) if volume.is_lost() => Look::Wait(left.clone()),
            Some(Slot::Held { volume, users, .. }) => {
                *users += 1;
                Look::Entered(volume.clone())
            }
        }
    }

    /// Stops using a volume; the last user detaches it. Nothing of this user may be in flight.
    pub(crate) async fn leave(&self, id: VolumeId) {
        let busy = Event::new();
        let (volume, left) = {
            let mut slots = self.slots.borrow_mut();
            let Some(Slot::Held { volume, users, left, .. }) = slots.get_mut(&id) else {
                unreachable!("a user of a volume keeps it held");
            };
            *users -= 1;
            if *users > 0 {
                return;
            }
            let last = (volume.clone(), left.clone());
            slots.insert(id, Slot::Busy(busy.clone()));
            last
        };
        volume.detach(&*self.directory).await;
        self.slots.borrow_mut().remove(&id);
        busy.notify();
        left.notify();
    }

    /// How many use a volume.
    pub(crate) fn users(&self, id: VolumeId) -> usize {
        match self.slots.borrow().get(&id) {
            Some(Slot::Held { users, .. }) => *users,
            _ => 0,
        }
    }

    /// Something to wait for until the volume is not held, if it is.
    pub(crate) fn held(&self, id: VolumeId) -> Option<Event> {
        match self.slots.borrow().get(&id)? {
            Slot::Busy(event) => Some(event.clone()),
            Slot::Held { left, .. } => Some(left.clone()),
        }
    }

    /// Lets nobody enter a volume until [`Self::forget`].
    pub(crate) fn close(&self, id: VolumeId) {
        self.closed.borrow_mut().insert(id);
    }

    /// Forgets a volume that nobody uses, its counters included.
    pub(crate) fn forget(&self, id: VolumeId) {
        self.closed.borrow_mut().remove(&id);
        self.statistics.borrow_mut().remove(&id);
    }

    /// The counters of every volume that was used lately, with its name.
    pub(crate) fn statistics(&self) -> Vec<(VolumeId, String, VolumeStatistics)> {
        let all = self.statistics.borrow();
        let copies = all.iter().map(|(&id, named)| {
            let mut statistics = named.statistics.borrow().clone();
            statistics.connections = self.users(id);
            (id, named.name.clone(), statistics)
        });
        copies.collect()
    }

    fn statistics_of(&self, id: VolumeId) -> Rc<RefCell<VolumeStatistics>> {
        let mut all = self.statistics.borrow_mut();
        if all.len() >= STATISTICS_KEPT_MAX && !all.contains_key(&id) {
            let unused = all.keys().copied().find(|other| !self.slots.borrow().contains_key(other));
            unused.map(|other| all.remove(&other));
        }
        let named = all.entry(id).or_insert_with(|| Named { name: String::new(), statistics: Rc::default() });
        named.statistics.clone()
    }
}
