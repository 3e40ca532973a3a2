//! The store of one life: every change asks the life's guard, and is in flight until it is done.

use std::future::{Future, ready};
use std::ops::RangeInclusive;
use std::rc::Rc;

use base::{AlignedBuf, Bytes, Error, ErrorKind, FileId, Gathered, Incarnation, Result, SegmentId, StoreId};
use runtime::{Class, sync};

use super::Inner;
use super::life::{InFlight, Life};
use crate::{CreateOptions, FileEngine, FileInfo, FileKind, LocalBoxFuture, Statistics, StoreSpace};

/// See the module.
pub(super) struct Member {
    shared: Rc<Inner>,
    life: Rc<Life>,
}

impl Member {
    pub(super) fn new(shared: &Rc<Inner>, life: Rc<Life>) -> Member {
        Member { shared: shared.clone(), life }
    }

    /// Does `work` to its end, whoever stops waiting for it, if the life may begin it.
    fn change<T: 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<T>> + 'static,
    ) -> LocalBoxFuture<'static, Result<T>> {
        match self.life.begin() {
            Ok(in_flight) => self.to_its_end(name, in_flight, work),
            Err(fenced) => Box::pin(ready(Err(fenced))),
        }
    }

    fn to_its_end<T: 'static>(
        &self,
        name: &'static str,
        in_flight: InFlight,
        work: impl Future<Output = Result<T>> + 'static,
    ) -> LocalBoxFuture<'static, Result<T>> {
        let (sender, receiver) = sync::oneshot();
        let to_its_end = async move {
            sender.send(work.await);
            drop(in_flight);
        };
        self.shared.handle.spawn(Class::Io, name, to_its_end).detach();
        Box::pin(async move { receiver.await.unwrap_or_else(|| Err(Error::internal("the loop is shutting down"))) })
    }
}

impl FileEngine for Member {
    fn id(&self) -> StoreId {
        self.shared.below.id()
    }

    fn incarnation(&self) -> Incarnation {
        self.life.incarnation
    }

    fn create(&self, options: CreateOptions) -> LocalBoxFuture<'_, Result<FileId>> {
        let (shared, life) = (self.shared.clone(), self.life.clone());
        let in_flight = match life.begin_file() {
            Ok(in_flight) => in_flight,
            Err(fenced) => return Box::pin(ready(Err(fenced))),
        };
        self.to_its_end("shared: create", in_flight, async move {
            if options.kind == FileKind::Incarnation {
                return Err(Error::invalid("guards are made by the store"));
            }
            shared.claim(&life, options.capacity, options.claim).await?;
            let created = shared.below.0.create_for(life.incarnation, options).await;
            life.unclaim(options.capacity);
            let file = created?;
            if let Some(info) = shared.below.info(file) {
                shared.on_file(&life, &info, true);
            }
            shared.grant_ahead(&life, shared.options.grant_bytes / 2);
            Ok(file)
        })
    }

    fn recyclable(&self, kind: FileKind, capacities: RangeInclusive<u64>) -> Option<u64> {
        self.shared.below.recyclable(kind, capacities)
    }

    fn append(&self, file: FileId, offset: u64, data: Gathered) -> LocalBoxFuture<'static, Result<()>> {
        match self.life.begin_file().and_then(|in_flight| self.life.check_appendable(file).map(|()| in_flight)) {
            // Queued now: appends are submitted in the order of the calls.
            Ok(in_flight) => {
                self.to_its_end("shared: append", in_flight, self.shared.below.0.append(file, offset, data))
            }
            Err(error) => Box::pin(ready(Err(error))),
        }
    }

    fn read(&self, file: FileId, offset: u64, len: usize) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        self.shared.below.0.read(file, offset, len)
    }

    fn read_copy(
        &self,
        file: FileId,
        copy: u8,
        offset: u64,
        len: usize,
    ) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        self.shared.below.0.read_copy(file, copy, offset, len)
    }

    fn repair_copy(&self, file: FileId, copy: u8, offset: u64, data: Bytes) -> LocalBoxFuture<'static, Result<()>> {
        let (shared, life) = (self.shared.clone(), self.life.clone());
        self.change("shared: repair copy", async move {
            shared.check_may_change(&life, file)?;
            shared.below.repair_copy(file, copy, offset, data).await
        })
    }

    fn check_headers(&self, file: FileId) -> LocalBoxFuture<'static, Result<u64>> {
        let (shared, life) = (self.shared.clone(), self.life.clone());
        self.change("shared: check headers", async move {
            shared.check_may_change(&life, file)?;
            shared.below.check_headers(file).await
        })
    }

    fn seal(&self, file: FileId, length: u64) -> LocalBoxFuture<'_, Result<()>> {
        let (shared, life) = (self.shared.clone(), self.life.clone());
        self.change("shared: seal", async move {
            let (creator, segment) = shared.check_may_change(&life, file)?;
            if creator.incarnation != life.incarnation && !creator.is_fenced() {
                return Err(Error::conflict(format!(
                    "file {file} is being written by incarnation {}: fence it first",
                    creator.incarnation
                )));
            }
            let sealed = shared.below.seal(file, length).await;
            shared.on_changed(&creator, file, segment);
            sealed
        })
    }

    fn delete(&self, file: FileId) -> LocalBoxFuture<'_, Result<()>> {
        let (shared, life) = (self.shared.clone(), self.life.clone());
        self.change("shared: delete", async move {
            let (creator, segment) = match shared.check_may_change(&life, file) {
                Err(error) if error.kind == ErrorKind::NotFound => return Ok(()),
                creator => creator?,
            };
            let deleted = shared.below.delete(file).await;
            shared.on_changed(&creator, file, segment);
            shared.forget_if_gone(&creator).await;
            deleted
        })
    }

    fn fence(&self, incarnation: Incarnation) -> LocalBoxFuture<'_, Result<()>> {
        let shared = self.shared.clone();
        Box::pin(async move { shared.fence(incarnation).await })
    }

    fn check_life(&self) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(ready(self.life.begin().map(drop)))
    }

    fn list(&self) -> Vec<FileInfo> {
        self.shared.files_of(&self.life)
    }

    fn info(&self, file: FileId) -> Option<FileInfo> {
        self.shared.below.info(file).filter(|info| info.kind != FileKind::Incarnation)
    }

    fn files_of(&self, incarnation: Incarnation) -> LocalBoxFuture<'_, Result<Vec<FileInfo>>> {
        let life = self.shared.lives.borrow().get(&incarnation).cloned();
        let files = life.map(|life| self.shared.files_of(&life)).unwrap_or_default();
        Box::pin(ready(Ok(files)))
    }

    fn files_of_segment(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<Vec<FileInfo>>> {
        Box::pin(ready(Ok(self.shared.files_of_segment(segment))))
    }

    fn lives(&self) -> LocalBoxFuture<'_, Result<Vec<Incarnation>>> {
        let lives =
            self.shared.lives.borrow().values().filter(|life| life.has_files()).map(|life| life.incarnation).collect();
        Box::pin(ready(Ok(lives)))
    }

    fn locate(&self, file: FileId, copy: u8) -> String {
        self.shared.below.locate(file, copy)
    }

    fn space(&self) -> StoreSpace {
        StoreSpace { capacity: self.life.granted(), used: self.life.used(), free: self.life.free() }
    }

    fn need_space(&self, bytes: u64) {
        if !self.life.is_fenced() {
            self.shared.grant_ahead(&self.life, bytes);
        }
    }

    fn statistics(&self) -> Statistics {
        self.shared.below.statistics()
    }
}
