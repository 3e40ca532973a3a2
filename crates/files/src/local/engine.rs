//! The local engine behind the face of all engines. What changes names or headers runs as a task of its own: it is
//! not left half done when its caller stops waiting.

use std::future::Future;
use std::ops::RangeInclusive;
use std::rc::Rc;

use base::{AlignedBuf, Bytes, Error, FileId, Gathered, Incarnation, Result, StoreId};
use policies::background::{Left, Spare, Work};
use runtime::{Class, sync};

use super::Local;
use super::directory::Directory;
use super::names::SpareKind;
use crate::{CreateOptions, FileEngine, FileInfo, FileKind, LocalBoxFuture, Statistics, StoreSpace};

fn to_its_end<T: 'static>(
    local: &Rc<Local>,
    name: &'static str,
    work: impl Future<Output = Result<T>> + 'static,
) -> LocalBoxFuture<'static, Result<T>> {
    let (sender, receiver) = sync::oneshot();
    local.handle.spawn(Class::Io, name, async move { sender.send(work.await) }).detach();
    Box::pin(async move { receiver.await.unwrap_or_else(|| Err(Error::internal("the loop is shutting down"))) })
}

impl FileEngine for Rc<Local> {
    fn id(&self) -> StoreId {
        self.store
    }

    fn incarnation(&self) -> Incarnation {
        self.incarnation.get()
    }

    fn create(&self, options: CreateOptions) -> LocalBoxFuture<'_, Result<FileId>> {
        self.create_for(self.incarnation.get(), options)
    }

    fn begin_incarnation(&self) -> LocalBoxFuture<'_, Result<Incarnation>> {
        let local = self.clone();
        to_its_end(self, "files: begin incarnation", async move { local.number_a_life().await })
    }

    fn create_for(&self, incarnation: Incarnation, options: CreateOptions) -> LocalBoxFuture<'_, Result<FileId>> {
        let local = self.clone();
        to_its_end(self, "files: create", async move { local.create_file(incarnation, options).await })
    }

    fn recyclable(&self, kind: FileKind, capacities: RangeInclusive<u64>) -> Option<u64> {
        let kind = SpareKind::of(kind);
        let found = |directory: &Rc<Directory>| directory.spares.borrow().largest_within(kind, capacities.clone());
        self.each_member().filter_map(found).max()
    }

    fn append(&self, file: FileId, offset: u64, data: Gathered) -> LocalBoxFuture<'static, Result<()>> {
        self.start_append(file, offset, data)
    }

    fn read(&self, file: FileId, offset: u64, len: usize) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        let local = self.clone();
        Box::pin(async move { local.read_from(file, None, offset, len).await })
    }

    fn read_copy(
        &self,
        file: FileId,
        copy: u8,
        offset: u64,
        len: usize,
    ) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        let local = self.clone();
        Box::pin(async move { local.read_from(file, Some(copy), offset, len).await })
    }

    fn repair_copy(&self, file: FileId, copy: u8, offset: u64, data: Bytes) -> LocalBoxFuture<'static, Result<()>> {
        let local = self.clone();
        to_its_end(self, "files: repair copy", async move { local.repair(file, copy, offset, data).await })
    }

    fn check_headers(&self, file: FileId) -> LocalBoxFuture<'static, Result<u64>> {
        let local = self.clone();
        to_its_end(self, "files: check headers", async move { local.check_headers(file).await })
    }

    fn seal(&self, file: FileId, length: u64) -> LocalBoxFuture<'_, Result<()>> {
        let local = self.clone();
        to_its_end(self, "files: seal", async move { local.seal_file(file, length).await })
    }

    fn delete(&self, file: FileId) -> LocalBoxFuture<'_, Result<()>> {
        let local = self.clone();
        to_its_end(self, "files: delete", async move { local.delete_file(file).await })
    }

    fn fence(&self, incarnation: Incarnation) -> LocalBoxFuture<'_, Result<()>> {
        let local = self.clone();
        to_its_end(self, "files: fence", async move { local.fence_through(incarnation).await })
    }

    fn list(&self) -> Vec<FileInfo> {
        let mut all: Vec<FileInfo> = self.catalogue.all().iter().map(|entry| entry.info()).collect();
        let unknown = self.catalogue.unknown_logs();
        if !unknown.is_empty() {
            all.extend(unknown);
            all.sort_by_key(|info| info.id);
        }
        all
    }

    fn unidentified(&self) -> Vec<(FileId, FileKind)> {
        self.catalogue.unidentified()
    }

    fn info(&self, file: FileId) -> Option<FileInfo> {
        match self.catalogue.get(file) {
            Ok(entry) => Some(entry.info()),
            Err(_) => self.catalogue.unknown_logs().into_iter().find(|info| info.id == file),
        }
    }

    fn locate(&self, file: FileId, copy: u8) -> String {
        let entry = self.catalogue.get(file).ok();
        let copies = entry.map(|entry| entry.live_copies()).unwrap_or_default();
        let damaged = self.catalogue.damaged(file);
        match (copies.iter().find(|found| found.number == copy), damaged.get(copy as usize)) {
            (Some(found), _) => found.path().display().to_string(),
            (None, Some(damaged)) if copies.is_empty() => damaged.directory.path_of(damaged.name).display().to_string(),
            _ => format!("copy {copy} of file {file}, which is missing"),
        }
    }

    fn space(&self) -> StoreSpace {
        Local::space(self)
    }

    fn statistics(&self) -> Statistics {
        Local::statistics(self)
    }

    fn keep_ready(&self, capacities: &[u64], bytes: u64) {
        self.keep_space_ready(capacities, bytes);
    }

    fn on_request(&self) {
        self.readiness.on_activity();
    }

    fn renewal(&self) -> LocalBoxFuture<'static, ()> {
        Box::pin(self.resync.joined.wait())
    }

    fn is_inferior(&self, file: FileId) -> bool {
        self.catalogue.get_any(file).is_some_and(|entry| self.lacks_copies(&entry))
    }

    fn set_spare_bandwidth(&self, left: Left) {
        self.spare.set(Spare::new(self.handle.now(), left));
    }

    fn background_work(&self) -> Work {
        self.counters.background.get()
    }
}
