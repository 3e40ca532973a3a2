//! Sessions of one server: which are open, what each has in flight, and how one takes over from another.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::limits::SEGMENT_SIZE;
use base::units::is_aligned;
use base::{Epoch, Error, Generation, Map, Result, SECTOR, VolumeId};
use runtime::sync::Event;
use wire::{SessionId, Target, VolumeDescriptor};

/// The epoch of every segment until segments move between servers.
pub(crate) const FIRST_EPOCH: Epoch = Epoch(1);

/// One agent's hold on one volume.
pub(crate) struct Session {
    id: SessionId,
    volume: VolumeId,
    pub(crate) generation: Generation,
    segments: u32,
    pub(crate) read_only: bool,
    state: Cell<State>,
    in_flight: Cell<usize>,
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
    drained: Event,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let left = self.session.in_flight.get() - 1;
        self.session.in_flight.set(left);
        if left == 0 && self.session.state.get() == State::Closed {
            self.drained.notify();
        }
    }
}

impl Session {
    /// Whether this session may make this request now.
    fn check(&self, target: Target, offset: u64, len: u64) -> Result<()> {
        if self.state.get() != State::Open {
            return Err(Error::fenced(format!("{} of {} has ended", self.id, self.volume)));
        }
        if target.segment.volume != self.volume || target.segment.index >= self.segments {
            return Err(Error::invalid(format!("segment {} does not belong to {}", target.segment, self.id)));
        }
        if target.epoch != FIRST_EPOCH {
            let (segment, theirs) = (target.segment, target.epoch);
            return Err(Error::fenced(format!("segment {segment} is owned under {FIRST_EPOCH}, not {theirs}")));
        }
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
    /// `Fenced` where a newer generation came first, or while this one waited.
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
            in_flight: Cell::new(0),
        });
        self.by_id.borrow_mut().insert(session.id, session.clone());
        self.by_volume.borrow_mut().entry(volume.id).or_default().push(session.clone());
        self.wait_for_older(&session).await;
        match session.state.get() {
            State::Waiting => session.state.set(State::Open),
            State::Closed => return Err(Error::fenced(format!("a newer session took {} over", volume.id))),
            State::Open => unreachable!("a session is opened once"),
        }
        Ok(session.id)
    }

    /// Admits one request, or says why not.
    pub(crate) fn admit(&self, target: Target, offset: u64, len: u64) -> Result<InFlight> {
        let session = self.by_id.borrow().get(&target.session).cloned();
        let session = session.ok_or_else(|| Error::fenced(format!("{} has ended", target.session)))?;
        session.check(target, offset, len)?;
        session.in_flight.set(session.in_flight.get() + 1);
        Ok(InFlight { session, drained: self.drained.clone() })
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
                sessions.retain(|s| s.state.get() != State::Closed || s.in_flight.get() > 0);
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
