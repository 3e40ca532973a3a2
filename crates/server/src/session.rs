//! Sessions of one server: which are open, what each has in flight, and how one takes over from another.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use base::limits::SEGMENT_SIZE;
use base::units::is_aligned;
use base::{Epoch, Error, Generation, Map, Result, SECTOR, VolumeId};
use runtime::sync::Event;
use slab::Slab;
use wire::{SessionId, Target, VolumeDescriptor};

/// One agent's hold on one volume.
pub(crate) struct Session {
    id: SessionId,
    volume: VolumeId,
    pub(crate) generation: Generation,
    segments: u32,
    pub(crate) read_only: bool,
    state: Cell<State>,
    /// Its requests that have no outcome yet.
    in_flight: RefCell<Slab<Change>>,
}

/// What a request does to its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// It looks.
    None,
    /// It changes it.
    Change,
}

/// What a request in flight changes: of which segment, and which bytes; no bytes for one that changes nothing.
#[derive(Clone, Debug)]
struct Change {
    segment: u32,
    range: Range<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Older sessions of the volume are being drained.
    Waiting,
    /// Requests are admitted.
    Open,
    /// Requests are refused; those in flight go on to their end.
    Closed,
}

/// A request that was admitted. Dropped when its outcome is known.
pub(crate) struct InFlight {
    pub(crate) session: Rc<Session>,
    key: usize,
    drained: Event,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let left = {
            let mut in_flight = self.session.in_flight.borrow_mut();
            in_flight.remove(self.key);
            in_flight.len()
        };
        if left == 0 && self.session.state.get() == State::Closed {
            self.drained.notify();
        }
    }
}

impl Session {
    /// Whether this session may make this request now, of a segment that is `owned` under this epoch, if at all.
    fn check(&self, target: Target, owned: Option<Epoch>, offset: u64, len: u64) -> Result<()> {
        if self.state.get() != State::Open {
            return Err(Error::fenced(format!("{} of {} has ended", self.id, self.volume)));
        }
        if target.segment.volume != self.volume || target.segment.index >= self.segments {
            return Err(Error::invalid(format!("segment {} does not belong to {}", target.segment, self.id)));
        }
        check_owned(target, owned)?;
        let in_range = offset.checked_add(len).is_some_and(|end| end <= SEGMENT_SIZE);
        if len == 0 || !in_range || !is_aligned(offset, SECTOR) || !is_aligned(len, SECTOR) {
            return Err(Error::invalid(format!(
                "no such range: {len} bytes at {offset} of segment {}",
                target.segment
            )));
        }
        Ok(())
    }
}

/// Whether a request is for the present ownership of its segment. To be asked again when it has waited: meanwhile the
/// segment may have been somebody else's, with newer writes, and have come back.
///
/// # Errors
/// `Moved`.
pub(crate) fn check_owned(target: Target, owned: Option<Epoch>) -> Result<()> {
    let (segment, theirs) = (target.segment, target.epoch);
    match owned {
        Some(owned) if owned == theirs => Ok(()),
        Some(owned) => Err(Error::moved(format!("segment {segment} is owned here under {owned}, not {theirs}"))),
        None => Err(Error::moved(format!("segment {segment} is not here"))),
    }
}

/// All sessions of a server.
#[derive(Default)]
pub(crate) struct Sessions {
    last_id: Cell<u64>,
    /// Open and waiting sessions by id.
    by_id: RefCell<Map<SessionId, Rc<Session>>>,
    /// Sessions of each volume that are not done: at most one is not closed, the last.
    by_volume: RefCell<Map<VolumeId, Vec<Rc<Session>>>>,
    /// Notified when a closed session has drained.
    drained: Event,
}

impl Sessions {
    /// Opens a session of a volume: closes older ones at once, and returns when they are drained.
    ///
    /// # Errors
    /// `Fenced` where a newer generation came first, or while this one waited; `Retry`: another session of the same one did,
    /// or the volume's sessions were closed.
    pub(crate) async fn open(&self, volume: &VolumeDescriptor, generation: Generation) -> Result<SessionId> {
        let newest = self.newest_generation(volume.id);
        if newest.is_some_and(|newest| newest > generation) {
            return Err(Error::fenced(format!("{} is attached under a newer generation", volume.id)));
        }
        self.close_all_of(volume.id);
        self.last_id.set(self.last_id.get() + 1);
        let session = Rc::new(Session {
            id: SessionId(self.last_id.get()),
            volume: volume.id,
            generation,
            segments: volume.segments,
            read_only: volume.read_only,
            state: Cell::new(State::Waiting),
            in_flight: RefCell::default(),
        });
        self.by_id.borrow_mut().insert(session.id, session.clone());
        self.by_volume.borrow_mut().entry(volume.id).or_default().push(session.clone());
        self.wait_for_older(&session).await;
        match session.state.get() {
            State::Waiting => session.state.set(State::Open),
            // The same attachment may have asked twice, over a link that had broken: only a newer one ends it.
            State::Closed if self.newest_generation(volume.id) <= Some(generation) => {
                return Err(Error::retry(format!("another session of {} was asked for: open one again", volume.id)));
            }
            State::Closed => return Err(Error::fenced(format!("a newer session took {} over", volume.id))),
            State::Open => unreachable!("a session is opened once"),
        }
        Ok(session.id)
    }

    /// Admits one request, or says why not.
    pub(crate) fn admit(
        &self,
        target: Target,
        owned: Option<Epoch>,
        offset: u64,
        len: u64,
        effect: Effect,
    ) -> Result<InFlight> {
        let session = self.by_id.borrow().get(&target.session).cloned();
        let session = session.ok_or_else(|| Error::fenced(format!("{} has ended", target.session)))?;
        session.check(target, owned, offset, len)?;
        let end = if effect == Effect::Change { offset + len } else { offset };
        let change = Change { segment: target.segment.index, range: offset..end };
        let key = session.in_flight.borrow_mut().insert(change);
        Ok(InFlight { session, key, drained: self.drained.clone() })
    }

    /// Whether agents keep the order that they promise (docs/SAFETY.md, rule 30): of the changes of a session that have
    /// no outcome yet no two overlap. How many there are. It looks at all of them.
    pub(crate) fn audit(&self) -> std::result::Result<usize, String> {
        let mut count = 0;
        for session in self.by_volume.borrow().values().flatten() {
            let in_flight = session.in_flight.borrow();
            let mut changes: Vec<&Change> =
                in_flight.iter().map(|(_, change)| change).filter(|change| !change.range.is_empty()).collect();
            count += changes.len();
            changes.sort_unstable_by_key(|change| (change.segment, change.range.start));
            let overlap =
                |pair: &&[&Change]| pair[0].segment == pair[1].segment && pair[0].range.end > pair[1].range.start;
            if let Some(pair) = changes.windows(2).find(overlap) {
                let volume = session.volume;
                return Err(format!("two writes of {volume} that overlap are in flight at once: {pair:?}"));
            }
        }
        Ok(count)
    }

    /// Closes one session and waits until it is drained.
    pub(crate) async fn close(&self, id: SessionId) {
        let Some(session) = self.by_id.borrow().get(&id).cloned() else { return };
        self.retire(&session);
        self.wait_until_drained(session.volume, |other| other.id == id).await;
    }

    /// Closes every session of a volume and waits until all are drained.
    pub(crate) async fn close_volume(&self, volume: VolumeId) {
        self.close_all_of(volume);
        self.wait_until_drained(volume, |_| true).await;
    }

    /// Closes every session and waits until all are drained.
    pub(crate) async fn close_all(&self) {
        let volumes: Vec<VolumeId> = self.by_volume.borrow().keys().copied().collect();
        volumes.iter().for_each(|&volume| self.close_all_of(volume));
        for volume in volumes {
            self.wait_until_drained(volume, |_| true).await;
        }
    }

    /// Sessions that are not closed.
    pub(crate) fn count(&self) -> usize {
        self.by_id.borrow().len()
    }

    fn newest_generation(&self, volume: VolumeId) -> Option<Generation> {
        self.by_volume.borrow().get(&volume)?.iter().map(|session| session.generation).max()
    }

    fn close_all_of(&self, volume: VolumeId) {
        let sessions = self.by_volume.borrow().get(&volume).cloned().unwrap_or_default();
        sessions.iter().for_each(|session| self.retire(session));
    }

    fn retire(&self, session: &Session) {
        session.state.set(State::Closed);
        self.by_id.borrow_mut().remove(&session.id);
        // One that never was open, or has nothing in flight, will not say so itself.
        self.drained.notify();
    }

    async fn wait_for_older(&self, session: &Session) {
        self.wait_until_drained(session.volume, |other| other.id < session.id).await;
    }

    /// Waits until no session of the volume that `concerns` is in flight, and forgets those that are done.
    async fn wait_until_drained(&self, volume: VolumeId, concerns: impl Fn(&Session) -> bool) {
        loop {
            let drained = self.drained.wait();
            {
                let mut by_volume = self.by_volume.borrow_mut();
                let Some(sessions) = by_volume.get_mut(&volume) else { return };
                sessions.retain(|s| s.state.get() != State::Closed || !s.in_flight.borrow().is_empty());
                let busy = sessions.iter().any(|s| s.state.get() == State::Closed && concerns(s));
                if sessions.is_empty() {
                    by_volume.remove(&volume);
                }
                if !busy {
                    return;
                }
            }
            drained.await;
        }
    }
}
