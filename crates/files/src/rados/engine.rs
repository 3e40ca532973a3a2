//! The file layer's face of a life in a pool. Whatever changes something is a task of its own: it goes on when its caller
//! stops waiting.

use std::collections::BTreeSet;
use std::future::{Future, ready};
use std::rc::Rc;

use base::{AlignedBuf, Bytes, Error, FileId, Gathered, Incarnation, Result, SegmentId, StoreId};
use runtime::{Class, sync};

use super::life::Life;
use super::records::part_object;
use crate::{CreateOptions, DirectoryStatus, FileEngine, FileInfo, LocalBoxFuture, Statistics, StoreSpace};

/// See the module.
pub(super) struct Rados(Rc<Life>);

impl Rados {
    pub(super) fn new(life: Life) -> Rados {
        Rados(Rc::new(life))
    }

    fn to_its_end<T: 'static, W: Future<Output = Result<T>> + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(Rc<Life>) -> W,
    ) -> LocalBoxFuture<'static, Result<T>> {
        let (sender, receiver) = sync::oneshot();
        let (life, work) = (self.0.clone(), work(self.0.clone()));
        let working = async move {
            let done = work.await;
            if let Err(error) = &done {
                life.on_error(error);
            }
            sender.send(done);
        };
        self.0.handle.spawn(Class::Io, name, working).detach();
        Box::pin(async move { receiver.await.unwrap_or_else(|| Err(Error::internal("the loop is shutting down"))) })
    }
}

impl FileEngine for Rados {
    fn id(&self) -> StoreId {
        self.0.store
    }

    fn incarnation(&self) -> Incarnation {
        self.0.incarnation
    }

    fn create(&self, options: CreateOptions) -> LocalBoxFuture<'_, Result<FileId>> {
        self.to_its_end("rados: create", |life| async move { life.create(options).await })
    }

    fn append(&self, file: FileId, offset: u64, data: Gathered) -> LocalBoxFuture<'static, Result<()>> {
        let (life, len) = (&self.0, data.len() as u64);
        let may = life.check_alive().and_then(|()| life.known.check_appendable(file, offset, len));
        let appended = match may.and_then(|claim| Ok((claim, life.places.of(file)?))) {
            Ok((claim, place)) => place.append(file, claim, offset, &data),
            Err(error) => return Box::pin(ready(Err(error))),
        };
        self.to_its_end("rados: append", |life| async move { life.append(file, appended, len).await })
    }

    fn appends_at_once(&self) -> usize {
        1
    }

    fn read(&self, file: FileId, offset: u64, len: usize) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        self.read_copy(file, 0, offset, len)
    }

    fn read_copy(
        &self,
        file: FileId,
        copy: u8,
        offset: u64,
        len: usize,
    ) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        let life = self.0.clone();
        Box::pin(async move { life.read(file, copy, offset, len).await })
    }

    fn repair_copy(&self, file: FileId, copy: u8, offset: u64, data: Bytes) -> LocalBoxFuture<'static, Result<()>> {
        self.to_its_end("rados: repair", |life| async move { life.repair(file, copy, offset, data).await })
    }

    fn seal(&self, file: FileId, length: u64) -> LocalBoxFuture<'_, Result<()>> {
        self.to_its_end("rados: seal", |life| async move { life.seal(file, length).await })
    }

    fn delete(&self, file: FileId) -> LocalBoxFuture<'_, Result<()>> {
        self.to_its_end("rados: delete", |life| async move { life.delete(file).await })
    }

    fn fence(&self, incarnation: Incarnation) -> LocalBoxFuture<'_, Result<()>> {
        self.to_its_end("rados: fence", move |life| async move { life.fence(incarnation).await })
    }

    fn check_life(&self) -> LocalBoxFuture<'_, Result<()>> {
        self.to_its_end("rados: check life", |life| async move {
            life.check_alive()?;
            life.directories.check(life.incarnation).await
        })
    }

    fn list(&self) -> Vec<FileInfo> {
        self.0.known.list()
    }

    fn info(&self, file: FileId) -> Option<FileInfo> {
        self.0.known.info(file)
    }

    fn files_of(&self, incarnation: Incarnation) -> LocalBoxFuture<'_, Result<Vec<FileInfo>>> {
        let life = self.0.clone();
        Box::pin(async move { life.files_of(incarnation).await })
    }

    fn files_of_segment(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<Vec<FileInfo>>> {
        let life = self.0.clone();
        Box::pin(async move { life.files_of_segment(segment).await })
    }

    fn find(&self, file: FileId) -> LocalBoxFuture<'_, Result<Option<FileInfo>>> {
        let life = self.0.clone();
        Box::pin(async move { life.find(file).await })
    }

    fn lives(&self) -> LocalBoxFuture<'_, Result<Vec<Incarnation>>> {
        let life = self.0.clone();
        Box::pin(async move { life.lives().await })
    }

    fn locate(&self, file: FileId, _copy: u8) -> String {
        let name = self.0.places.of(file).map_or_else(|_| self.0.pools.name(), |place| place.name());
        format!("{name}, objects {}...", part_object(file, 0))
    }

    fn space(&self) -> StoreSpace {
        let life = &self.0;
        StoreSpace { capacity: life.space.granted(), used: life.known.used(), free: life.free() }
    }

    fn need_space(&self, bytes: u64) {
        if !self.0.is_over.get() {
            self.0.grow_ahead(bytes);
        }
    }

    fn renewal(&self) -> LocalBoxFuture<'static, ()> {
        self.0.places.renewal()
    }

    fn is_inferior(&self, file: FileId) -> bool {
        self.0.places.of(file).is_ok_and(|place| place.pace().is_left(file))
    }

    fn statistics(&self) -> Statistics {
        let culprits: BTreeSet<String> = self.0.places.all().flat_map(|place| place.pace().culprits()).collect();
        let (name, culprits) = (self.0.pools.name(), Vec::from_iter(culprits));
        let (path, state) = match culprits.is_empty() {
            true => (name, "healthy"),
            false => (format!("{name}, {}", culprits.join(" or ")), "slow"),
        };
        let status = DirectoryStatus { path, state, free_bytes: self.0.free(), behind_bytes: 0 };
        Statistics { directories: vec![status], ..self.0.known.statistics() }
    }
}
