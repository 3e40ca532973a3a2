//! A link between two loops of one process.
//!
//! The near end puts errands into a bounded queue: functions that run on the far loop, on what lives there. The far end
//! takes them in order and runs each in a task of its own, a bounded number at a time, so that nothing grows without
//! bounds. When the far end is gone, or drops an errand with its loop, the near end reports [`LinkLost`].

use std::rc::Rc;

use base::{AllocationExtent, Bytes, Error, Generation, ReadPart, Result, VolumeId, WriteStamp};
use runtime::sync::{Budget, foreign};
use runtime::{Class, Handle, Work};
use wire::{
    Answer, Attachment, BlockService, LinkLost, LocalBoxFuture, SessionId, Target, VolumeDescriptor, VolumeDirectory,
};

/// What is to be done on the far loop.
type Errand<T> = Box<dyn FnOnce(Rc<T>) -> LocalBoxFuture<'static, ()> + Send>;

/// A mailbox for at most `queued_max` errands that nobody has taken yet: its two ends, each for a loop of its own.
pub fn mailbox<T: ?Sized + 'static>(queued_max: usize) -> (NearEnd<T>, FarEnd<T>) {
    let (sender, receiver) = runtime::sync::mailbox(queued_max);
    (NearEnd(sender), FarEnd { errands: receiver })
}

/// The end of those who ask. Clones share the queue, and may live on several loops.
pub struct NearEnd<T: ?Sized>(async_channel::Sender<Errand<T>>);

/// The end of the one that is asked.
pub struct FarEnd<T: ?Sized> {
    errands: async_channel::Receiver<Errand<T>>,
}

impl<T: ?Sized> Clone for NearEnd<T> {
    fn clone(&self) -> Self {
        NearEnd(self.0.clone())
    }
}

impl<T: ?Sized + 'static> FarEnd<T> {
    /// Does errands with `owner`, at most `running_max` at once, until every near end is gone; then waits for those
    /// that run.
    pub async fn serve(self, handle: Handle, owner: Rc<T>, running_max: usize) {
        let slots = Budget::new(running_max as u64);
        while let Ok(errand) = self.errands.recv().await {
            let slot = slots.take(1).await;
            handle.spend(Work::Crossing);
            let work = errand(owner.clone());
            handle
                .spawn(Class::Io, "errand", async move {
                    work.await;
                    drop(slot);
                })
                .detach();
        }
        slots.take(running_max as u64).await;
    }
}

impl<T: ?Sized> Drop for FarEnd<T> {
    /// What nobody will take any more is dropped here, because the queue itself lives as long as a near end does:
    /// whoever waits for an answer learns that the link is lost.
    fn drop(&mut self) {
        self.errands.close();
        while self.errands.try_recv().is_ok() {}
    }
}

impl<T: ?Sized + 'static> NearEnd<T> {
    /// Has `errand` done on the far loop, and waits for what comes of it. If nobody waits any more, it is done all the
    /// same.
    ///
    /// # Errors
    /// The far end is gone: nobody knows whether the errand was done.
    pub async fn ask<R: Send + 'static>(
        &self,
        errand: impl FnOnce(Rc<T>) -> LocalBoxFuture<'static, R> + Send + 'static,
    ) -> Result<R, LinkLost> {
        let (sender, receiver) = foreign();
        let errand: Errand<T> = Box::new(move |owner| {
            let work = errand(owner);
            Box::pin(async move { drop(sender.send(work.await)) })
        });
        self.0.send(errand).await.map_err(|_| lost("the other loop has ended"))?;
        receiver.await.map_err(|_| lost("the other loop ended with the request in flight"))
    }
}

/// What came back from the other loop says so.
fn crossed<T>(answer: Answer<T>) -> Answer<T> {
    answer.map(|mut reply| {
        reply.passage.crossed = true;
        reply
    })
}

fn lost(message: &str) -> LinkLost {
    LinkLost { message: message.into() }
}

/// A lost link where there is no epoch to speak of.
fn to_error(lost: LinkLost) -> Error {
    Error::io(lost.message)
}

impl BlockService for NearEnd<dyn BlockService> {
    fn attach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<Attachment>> {
        Box::pin(async move {
            let attach =
                move |owner: Rc<dyn BlockService>| Box::pin(async move { owner.attach(volume, generation).await }) as _;
            self.ask(attach).await.map_err(to_error)?
        })
    }

    fn detach(&self, session: SessionId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.ask(move |owner| Box::pin(async move { owner.detach(session).await })).await.map_err(to_error)?
        })
    }

    fn read(&self, target: Target, offset: u64, len: u64) -> LocalBoxFuture<'_, Answer<Vec<ReadPart>>> {
        Box::pin(async move {
            crossed(self.ask(move |owner| Box::pin(async move { owner.read(target, offset, len).await })).await?)
        })
    }

    fn write(
        &self,
        target: Target,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
    ) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(async move {
            let write = move |owner: Rc<dyn BlockService>| {
                Box::pin(async move { owner.write(target, offset, data, checksums, stamp).await }) as _
            };
            crossed(self.ask(write).await?)
        })
    }

    fn discard(&self, target: Target, offset: u64, len: u64, stamp: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(async move {
            self.ask(move |owner| Box::pin(async move { owner.discard(target, offset, len, stamp).await })).await?
        })
    }

    fn flush(&self, target: Target) -> LocalBoxFuture<'_, Answer<()>> {
        Box::pin(async move { self.ask(move |owner| Box::pin(async move { owner.flush(target).await })).await? })
    }

    fn allocation(
        &self,
        target: Target,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>> {
        Box::pin(async move {
            self.ask(move |owner| Box::pin(async move { owner.allocation(target, offset, len, extents_max).await }))
                .await?
        })
    }
}

impl VolumeDirectory for NearEnd<dyn VolumeDirectory> {
    fn resolve<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<VolumeDescriptor>> {
        let name = name.to_owned();
        Box::pin(async move {
            self.ask(move |manager| Box::pin(async move { manager.resolve(&name).await })).await.map_err(to_error)?
        })
    }

    fn describe(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(async move {
            self.ask(move |manager| Box::pin(async move { manager.describe(volume).await })).await.map_err(to_error)?
        })
    }

    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async move {
            self.ask(move |manager| Box::pin(async move { manager.list().await })).await.map_err(to_error)?
        })
    }

    fn attach(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(async move {
            self.ask(move |manager| Box::pin(async move { manager.attach(volume).await })).await.map_err(to_error)?
        })
    }

    fn detach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.ask(move |manager| Box::pin(async move { manager.detach(volume, generation).await }))
                .await
                .map_err(to_error)?
        })
    }

    fn take_logs(
        &self,
        volume: VolumeId,
        generation: Generation,
        make: bool,
    ) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(async move {
            self.ask(move |manager| Box::pin(async move { manager.take_logs(volume, generation, make).await }))
                .await
                .map_err(to_error)?
        })
    }
}

#[cfg(test)]
mod tests;
