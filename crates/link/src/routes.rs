//! Several owners behind one [`BlockService`]: each request goes to the one that has its segment.
//!
//! A session here stands for one with each owner, opened and closed together; what an owner answers goes back
//! unchanged. So an agent needs not know how many there are. All owners begin with the same epoch.
//!
//! Each loop with clients has routes of its own: to the owner on it a call, to each other one a mailbox. Their sessions are
//! the same ([`Sessions`]): whichever loop's routes opened one, all of them know it. What a request needs of them each loop
//! keeps for itself, until one of them ends.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{
    AllocationExtent, Bytes, Error, Generation, Map, Passage, ReadPart, Result, SegmentId, VolumeId, WriteStamp,
};
use runtime::{Handle, Work};
use wire::{Answer, Attachment, BlockService, LocalBoxFuture, Reply, SessionId, Target};

/// Which owner has a segment: an index.
pub type Route = Rc<dyn Fn(SegmentId) -> usize>;

/// The sessions that are open, for the routes of every loop. Clones are the same ones.
#[derive(Clone, Default)]
pub struct Sessions(Arc<Table>);

#[derive(Default)]
struct Table {
    /// The sessions behind each one that was given out, in the order of the owners.
    open: Mutex<Map<SessionId, Behind>>,
    last: AtomicU64,
    /// How many have ended: whoever remembers sessions from before looks them up again.
    ended: AtomicU64,
}

type Behind = Arc<[SessionId]>;

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, Map<SessionId, Behind>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, behind: Behind) -> SessionId {
        let session = SessionId(self.0.last.fetch_add(1, Ordering::Relaxed) + 1);
        self.lock().insert(session, behind);
        session
    }

    fn end(&self, session: SessionId) -> Option<Behind> {
        let behind = self.lock().remove(&session);
        self.0.ended.fetch_add(1, Ordering::Release);
        behind
    }
}

/// The owners, and the sessions with them.
pub struct Routes {
    handle: Handle,
    owners: Vec<Rc<dyn BlockService>>,
    /// The owner that is on this loop.
    here: usize,
    route: Route,
    sessions: Sessions,
    /// Sessions that this loop has looked up, none of which had ended when so many had.
    known: RefCell<Map<SessionId, Behind>>,
    ended: Cell<u64>,
}

impl Routes {
    /// Routes to `owners` from the loop of the one at index `here`. `route` gives an index into them.
    pub fn new(
        handle: &Handle,
        owners: Vec<Rc<dyn BlockService>>,
        here: usize,
        route: Route,
        sessions: Sessions,
    ) -> Rc<Routes> {
        Rc::new(Routes {
            handle: handle.clone(),
            owners,
            here,
            route,
            sessions,
            known: RefCell::default(),
            ended: Cell::default(),
        })
    }

    /// The owner that a request goes to, and the target as it knows it.
    fn find(&self, target: Target) -> Result<(&dyn BlockService, Target)> {
        let index = (self.route)(target.segment);
        match self.session_at(target.session, index) {
            Some(session) => {
                if index != self.here {
                    self.handle.spend(Work::Crossing);
                }
                Ok((&*self.owners[index], Target { session, ..target }))
            }
            None => Err(Error::fenced(format!("{} has ended", target.session))),
        }
    }

    /// The session with an owner behind one that was given out.
    fn session_at(&self, session: SessionId, index: usize) -> Option<SessionId> {
        let mut known = self.known.borrow_mut();
        let ended = self.sessions.0.ended.load(Ordering::Acquire);
        if self.ended.replace(ended) != ended {
            known.clear();
        }
        if let Some(behind) = known.get(&session) {
            return Some(behind[index]);
        }
        let behind = self.sessions.lock().get(&session).cloned()?;
        let found = behind[index];
        known.insert(session, behind);
        Some(found)
    }

    async fn open(&self, volume: VolumeId, generation: Generation) -> Result<Attachment> {
        let mut attachments: Vec<Attachment> = Vec::with_capacity(self.owners.len());
        for owner in &self.owners {
            match owner.attach(volume, generation).await {
                Ok(attachment) => attachments.push(attachment),
                Err(error) => {
                    // What they say of it matters less than why there is no session.
                    drop(self.close(attachments.iter().map(|attachment| attachment.session)).await);
                    return Err(error);
                }
            }
        }
        let epoch = attachments.iter().map(|attachment| attachment.epoch).max();
        let epoch = epoch.ok_or_else(|| Error::internal("nobody owns segments"))?;
        let session = self.sessions.begin(attachments.iter().map(|attachment| attachment.session).collect());
        Ok(Attachment { session, epoch })
    }

    /// Ends sessions with the first owners; all of them, whatever comes of one.
    async fn close(&self, sessions: impl Iterator<Item = SessionId>) -> Result<()> {
        let mut outcome = Ok(());
        for (owner, session) in self.owners.iter().zip(sessions) {
            outcome = outcome.and(owner.detach(session).await);
        }
        outcome
    }
}

/// What nobody had to be asked for.
fn refused<T>(target: Target, error: Error) -> Answer<T> {
    Ok(Reply { epoch: target.epoch, result: Err(error), passage: Passage::default() })
}

impl BlockService for Routes {
    fn attach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<Attachment>> {
        Box::pin(self.open(volume, generation))
    }

    fn detach(&self, session: SessionId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            match self.sessions.end(session) {
                Some(behind) => self.close(behind.iter().copied()).await,
                None => Ok(()),
            }
        })
    }

    fn read(&self, target: Target, offset: u64, len: u64) -> LocalBoxFuture<'_, Answer<Vec<ReadPart>>> {
        match self.find(target) {
            Ok((owner, target)) => owner.read(target, offset, len),
            Err(error) => Box::pin(async move { refused(target, error) }),
        }
    }

    fn write(
        &self,
        target: Target,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
    ) -> LocalBoxFuture<'_, Answer<()>> {
        match self.find(target) {
            Ok((owner, target)) => owner.write(target, offset, data, checksums, stamp),
            Err(error) => Box::pin(async move { refused(target, error) }),
        }
    }

    fn discard(&self, target: Target, offset: u64, len: u64, stamp: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        match self.find(target) {
            Ok((owner, target)) => owner.discard(target, offset, len, stamp),
            Err(error) => Box::pin(async move { refused(target, error) }),
        }
    }

    fn flush(&self, target: Target) -> LocalBoxFuture<'_, Answer<()>> {
        match self.find(target) {
            Ok((owner, target)) => owner.flush(target),
            Err(error) => Box::pin(async move { refused(target, error) }),
        }
    }

    fn allocation(
        &self,
        target: Target,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>> {
        match self.find(target) {
            Ok((owner, target)) => owner.allocation(target, offset, len, extents_max),
            Err(error) => Box::pin(async move { refused(target, error) }),
        }
    }
}

#[cfg(test)]
mod tests;
