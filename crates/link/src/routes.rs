//! Several owners behind one [`BlockService`]: each request goes to the one that has its segment.
//!
//! A session here stands for one with each owner, opened and closed together; what an owner answers goes back
//! unchanged. So an agent needs not know how many there are. All owners begin with the same epoch.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{
    AllocationExtent, Bytes, Error, Generation, Map, Passage, ReadPart, Result, SegmentId, VolumeId, WriteStamp,
};
use wire::{Answer, Attachment, BlockService, LocalBoxFuture, Reply, SessionId, Target};

/// Which owner has a segment: an index.
pub type Route = Rc<dyn Fn(SegmentId) -> usize>;

/// The owners, and the sessions with them.
pub struct Routes {
    owners: Vec<Rc<dyn BlockService>>,
    route: Route,
    /// The sessions behind each one that was given out, in the order of the owners.
    sessions: RefCell<Map<SessionId, Rc<[SessionId]>>>,
    last_session: Cell<u64>,
}

impl Routes {
    /// Routes to `owners`. `route` gives an index into them.
    pub fn new(owners: Vec<Rc<dyn BlockService>>, route: Route) -> Rc<Routes> {
        Rc::new(Routes { owners, route, sessions: RefCell::default(), last_session: Cell::default() })
    }

    /// The owner that a request goes to, and the target as it knows it.
    fn find(&self, target: Target) -> Result<(&dyn BlockService, Target)> {
        let index = (self.route)(target.segment);
        let session = self.sessions.borrow().get(&target.session).map(|sessions| sessions[index]);
        match session {
            Some(session) => Ok((&*self.owners[index], Target { session, ..target })),
            None => Err(Error::fenced(format!("{} has ended", target.session))),
        }
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
        self.last_session.set(self.last_session.get() + 1);
        let session = SessionId(self.last_session.get());
        let sessions = attachments.iter().map(|attachment| attachment.session).collect();
        self.sessions.borrow_mut().insert(session, sessions);
        let epoch = attachments.iter().map(|attachment| attachment.epoch).max();
        Ok(Attachment { session, epoch: epoch.ok_or_else(|| Error::internal("nobody owns segments"))? })
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
            let sessions = self.sessions.borrow_mut().remove(&session);
            match sessions {
                Some(sessions) => self.close(sessions.iter().copied()).await,
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
