//! A link between two loops of one process.
//!
//! The near end puts requests into a bounded queue; the far end takes them in order and runs each in a task of its
//! own, at most [`bound`](mailbox) at a time, so that queue and tasks together hold at most twice the bound. When the
//! far end is gone, or drops a request with its loop, the near end reports [`LinkLost`].

use std::rc::Rc;

use base::{AllocationExtent, Bytes, Error, Generation, ReadPart, Result, VolumeId, WriteStamp};
use futures_channel::oneshot;
use runtime::sync::{Budget, foreign};
use runtime::{Class, Handle};
use wire::{Answer, Attachment, BlockService, LinkLost, LocalBoxFuture, SessionId, Target};

/// One request on its way, with the way back for its answer.
enum Request {
    Attach {
        volume: VolumeId,
        generation: Generation,
        answer: oneshot::Sender<Result<Attachment>>,
    },
    Detach {
        session: SessionId,
        answer: oneshot::Sender<Result<()>>,
    },
    Read {
        target: Target,
        offset: u64,
        len: u64,
        answer: oneshot::Sender<Answer<Vec<ReadPart>>>,
    },
    Write {
        target: Target,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
        answer: oneshot::Sender<Answer<()>>,
    },
    Discard {
        target: Target,
        offset: u64,
        len: u64,
        stamp: WriteStamp,
        answer: oneshot::Sender<Answer<()>>,
    },
    Flush {
        target: Target,
        answer: oneshot::Sender<Answer<()>>,
    },
    Allocation {
        target: Target,
        offset: u64,
        len: u64,
        extents_max: usize,
        answer: oneshot::Sender<Answer<Vec<AllocationExtent>>>,
    },
}

/// A mailbox for at most `bound` requests that nobody has taken yet: its two ends, each for a loop of its own.
pub fn mailbox(bound: usize) -> (NearEnd, FarEnd) {
    let (sender, receiver) = runtime::sync::mailbox(bound);
    (NearEnd(sender), FarEnd { requests: receiver, bound })
}

/// The agent's end. Clones share the queue, and may live on several loops.
#[derive(Clone)]
pub struct NearEnd(async_channel::Sender<Request>);

/// The owner's end.
pub struct FarEnd {
    requests: async_channel::Receiver<Request>,
    bound: usize,
}

impl FarEnd {
    /// Serves requests with `owner` until every near end is gone, then waits for those in flight.
    pub async fn serve(self, handle: Handle, owner: Rc<dyn BlockService>) {
        let slots = Budget::new(self.bound as u64);
        while let Ok(request) = self.requests.recv().await {
            let slot = slots.take(1).await;
            let owner = owner.clone();
            handle
                .spawn(Class::Io, "link request", async move {
                    run(&*owner, request).await;
                    drop(slot);
                })
                .detach();
        }
        slots.take(self.bound as u64).await;
    }
}

impl Drop for FarEnd {
    /// What nobody will take any more is dropped here, because the queue itself lives as long as a near end does:
    /// whoever waits for an answer learns that the link is lost.
    fn drop(&mut self) {
        self.requests.close();
        while self.requests.try_recv().is_ok() {}
    }
}

/// Runs one request. A near end that stopped waiting takes no answer, which is its right.
async fn run(owner: &dyn BlockService, request: Request) {
    match request {
        Request::Attach { volume, generation, answer } => {
            answer.send(owner.attach(volume, generation).await).ok();
        }
        Request::Detach { session, answer } => {
            answer.send(owner.detach(session).await).ok();
        }
        Request::Read { target, offset, len, answer } => {
            answer.send(owner.read(target, offset, len).await).ok();
        }
        Request::Write { target, offset, data, checksums, stamp, answer } => {
            answer.send(owner.write(target, offset, data, checksums, stamp).await).ok();
        }
        Request::Discard { target, offset, len, stamp, answer } => {
            answer.send(owner.discard(target, offset, len, stamp).await).ok();
        }
        Request::Flush { target, answer } => {
            answer.send(owner.flush(target).await).ok();
        }
        Request::Allocation { target, offset, len, extents_max, answer } => {
            answer.send(owner.allocation(target, offset, len, extents_max).await).ok();
        }
    }
}

impl NearEnd {
    /// Sends what `request` makes of the way back, and waits for the answer.
    async fn ask<T: Send>(&self, request: impl FnOnce(oneshot::Sender<T>) -> Request) -> Result<T, LinkLost> {
        let (sender, receiver) = foreign();
        self.0.send(request(sender)).await.map_err(|_| lost("the block server's loop has ended"))?;
        receiver.await.map_err(|_| lost("the block server's loop ended with the request in flight"))
    }
}

fn lost(message: &str) -> LinkLost {
    LinkLost { message: message.into() }
}

/// A lost link where there is no epoch to speak of.
fn to_error(lost: LinkLost) -> Error {
    Error::io(lost.message)
}

impl BlockService for NearEnd {
    fn attach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<Attachment>> {
        Box::pin(
            async move { self.ask(|answer| Request::Attach { volume, generation, answer }).await.map_err(to_error)? },
        )
    }

    fn detach(&self, session: SessionId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move { self.ask(|answer| Request::Detach { session, answer }).await.map_err(to_error)? })
    }

    fn read(&self, target: Target, offset: u64, len: u64) -> LocalBoxFuture<'_, Answer<Vec<ReadPart>>> {
        Box::pin(async move { self.ask(|answer| Request::Read { target, offset, len, answer }).await? })
    }

    fn write(
        &self,
        target: Target,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
    ) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(
            async move { self.ask(|answer| Request::Write { target, offset, data, checksums, stamp, answer }).await? },
        )
    }

    fn discard(&self, target: Target, offset: u64, len: u64, stamp: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(async move { self.ask(|answer| Request::Discard { target, offset, len, stamp, answer }).await? })
    }

    fn flush(&self, target: Target) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(async move { self.ask(|answer| Request::Flush { target, answer }).await? })
    }

    fn allocation(
        &self,
        target: Target,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>> {
        Box::pin(
            async move { self.ask(|answer| Request::Allocation { target, offset, len, extents_max, answer }).await? },
        )
    }
}

#[cfg(test)]
mod tests;
