//! Which volumes this agent holds: attached when the first connection enters, detached when the last one leaves.
//!
//! It lives on the agent's first loop; the others ask it when a connection enters or leaves, and use what they get
//! ([`Entered`]) without it. So a volume has one attachment, however many loops have connections to it.
//!
//! Whoever enters says which generation is the newest that the directory knows. An attachment that is older is over, heard
//! or not: it may still be answered by an owner that has not heard of that either, and what is read there is what was
//! (docs/SAFETY.md, rule 47). Nobody who comes anew is to see that, so it is given up, and the volume attached again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use base::{Error, ErrorKind, Generation, Map, Result, Set, VolumeId};
use futures_channel::oneshot::Receiver;
use runtime::sync::Event;
use runtime::{Class, Handle, Task};
use wire::{BlockService, VolumeDirectory};

use crate::attachment::Attachment;
use crate::statistics::{Counters, VolumeStatistics};

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

/// What a connection gets that enters a volume.
pub(crate) struct Entered {
    pub(crate) attachment: Arc<Attachment>,
    /// Where its loop counts.
    pub(crate) counters: Counters,
}

/// A volume's counters outlive its attachments, so that they only grow.
#[derive(Default)]
struct Named {
    name: String,
    /// What was counted before the present attachment.
    past: VolumeStatistics,
    /// What each loop counts that has had connections since, by its index.
    present: BTreeMap<usize, Counters>,
}

impl Named {
    fn sum(&self) -> VolumeStatistics {
        let mut all = self.past.clone();
        self.present.values().for_each(|counters| counters.with(|counters| all.merge(counters)));
        all
    }
}

enum Slot {
    /// Being attached or detached; notified when that is done.
    Busy(Event),
    Held {
        attachment: Arc<Attachment>,
        users: usize,
        /// Notified when the last user has left.
        left: Event,
        /// Waits for the volume to be lost.
        _watch: Task<()>,
    },
}

/// What one look at a slot says.
enum Look {
    Entered(Arc<Attachment>),
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

    /// Uses a volume from the loop of that index, attaching it if nobody does yet, or did under an older generation than
    /// `newest`. The future must not be dropped before it completes.
    pub(crate) async fn enter(
        &self,
        id: VolumeId,
        newest: Generation,
        index: usize,
        on_lost: OnLost,
    ) -> Result<Entered> {
        let attached = loop {
            if self.closed.borrow().contains(&id) {
                return Err(Error::not_found(format!("volume {id} is being deleted")));
            }
            match self.look(id, newest) {
                Look::Entered(attachment) => return Ok(Entered { attachment, counters: self.counters_of(id, index) }),
                Look::Wait(event) => event.wait().await,
                Look::Attach(event) => break event,
            }
        };
        let (attachment, lost) = match self.attach(id).await {
            Ok((attachment, lost)) => (Arc::new(attachment), lost),
            Err(error) => {
                self.slots.borrow_mut().remove(&id);
                attached.notify();
                return Err(error);
            }
        };
        let counters = self.counters_of(id, index);
        if let Some(named) = self.statistics.borrow_mut().get_mut(&id) {
            named.name.clone_from(&attachment.descriptor.name);
        }
        let watch = self.handle.spawn(Class::Io, "lost volume", async move {
            if lost.await.is_ok() {
                on_lost(id);
            }
        });
        let slot = Slot::Held { attachment: attachment.clone(), users: 1, left: attached.clone(), _watch: watch };
        self.slots.borrow_mut().insert(id, slot);
        attached.notify();
        Ok(Entered { attachment, counters })
    }

    /// A new generation in the directory, then a session at the owner.
    async fn attach(&self, id: VolumeId) -> Result<(Attachment, Receiver<()>)> {
        let descriptor = self.directory.attach(id).await?;
        match self.service.attach(id, descriptor.generation).await {
            Ok(attached) => Ok(Attachment::new(descriptor, attached.session, attached.epoch)),
            Err(error) => {
                if let Err(detach) = self.directory.detach(id, descriptor.generation).await {
                    tracing::warn!(volume = %id, error = %detach, "an attachment that failed could not be taken back");
                }
                Err(error)
            }
        }
    }

    /// Gives a volume back that nothing of is in flight.
    async fn detach(&self, attachment: &Attachment) {
        let (volume, generation) = (attachment.descriptor.id, attachment.descriptor.generation);
        if attachment.lost().is_none()
            && let Err(error) = self.service.detach(attachment.session).await
        {
            tracing::warn!(%volume, %error, "a session could not be ended; the next one will close it");
        }
        match self.directory.detach(volume, generation).await {
            Err(error) if error.kind != ErrorKind::NotFound => {
                tracing::warn!(%volume, %error, "the volume directory did not record that the volume is detached");
            }
            _ => {}
        }
    }

    fn look(&self, id: VolumeId, newest: Generation) -> Look {
        let mut slots = self.slots.borrow_mut();
        match slots.get_mut(&id) {
            None => {
                let event = Event::new();
                slots.insert(id, Slot::Busy(event.clone()));
                Look::Attach(event)
            }
            Some(Slot::Busy(event)) => Look::Wait(event.clone()),
            Some(Slot::Held { attachment, users, left, .. }) => {
                let held = attachment.descriptor.generation;
                if held < newest {
                    attachment
                        .lose(&format!("{id} was attached under {newest} meanwhile, elsewhere; here it is {held}"));
                }
                if attachment.lost().is_some() {
                    return Look::Wait(left.clone());
                }
                *users += 1;
                Look::Entered(attachment.clone())
            }
        }
    }

    /// Stops using a volume; the last user, of all loops, detaches it. Nothing of this user may be in flight.
    pub(crate) async fn leave(&self, id: VolumeId) {
        let busy = Event::new();
        let (attachment, left) = {
            let mut slots = self.slots.borrow_mut();
            let Some(Slot::Held { attachment, users, left, .. }) = slots.get_mut(&id) else {
                unreachable!("a user of a volume keeps it held");
            };
            *users -= 1;
            if *users > 0 {
                return;
            }
            let last = (attachment.clone(), left.clone());
            slots.insert(id, Slot::Busy(busy.clone()));
            last
        };
        self.detach(&attachment).await;
        if let Some(named) = self.statistics.borrow_mut().get_mut(&id) {
            named.past = named.sum();
            named.present.clear();
        }
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

    /// Sees to it that whoever has entered a volume, and is not known on its loop yet, ends there. To be said before the
    /// loops are told to end those that they know.
    pub(crate) fn turn_away(&self, id: VolumeId) {
        if let Some(Slot::Held { attachment, .. }) = self.slots.borrow().get(&id) {
            attachment.close();
        }
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
            let statistics = VolumeStatistics { connections: self.users(id), ..named.sum() };
            (id, named.name.clone(), statistics)
        });
        copies.collect()
    }

    /// Where the loop of that index counts what it does for a volume that is held.
    pub(crate) fn counters_of(&self, id: VolumeId, index: usize) -> Counters {
        let mut all = self.statistics.borrow_mut();
        if all.len() >= STATISTICS_KEPT_MAX && !all.contains_key(&id) {
            let unused = all.keys().copied().find(|other| !self.slots.borrow().contains_key(other));
            unused.map(|other| all.remove(&other));
        }
        all.entry(id).or_default().present.entry(index).or_default().clone()
    }
}
