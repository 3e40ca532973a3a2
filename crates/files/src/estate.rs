//! The files of a life that is over, as its log's recovery wants to see them: as a store of its own.
//!
//! It lets the code that recovers a store run over what a dead writer left in a shared one, while nothing of that is
//! changed: files of the dead are only read; that they were sealed, mended or removed is remembered
//! ([`Estate::changes`]), and seen by later calls. Logs and journals that are created here are remembered only, too.
//! Data files and tables are made for good, by the life that looks: they are what it copies for itself, out of the reserve
//! of the store if need be.
//!
//! Invariants: the store below hears only of files that this life created; what is remembered has ids that the store
//! below never gives out.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::rc::Rc;

use base::{AlignedBuf, Bytes, Error, FileId, Gathered, Incarnation, Result, StoreId};

use crate::dry_run::{Change, DryRun};
use crate::{Claim, CreateOptions, FileEngine, FileInfo, FileKind, LocalBoxFuture, Statistics, Store, StoreSpace};

/// Ids from here on are remembered only: no store gives out so many.
const FIRST_REMEMBERED: u64 = 1 << 62;

/// See the module.
pub struct Estate {
    dry_run: DryRun,
    view: Rc<View>,
}

impl Estate {
    /// What `dead` left in the store of `own`, a life that goes on. Nothing is appended for it any more: it was fenced.
    ///
    /// # Errors
    /// `Io`: the store cannot be asked.
    pub async fn open(own: &Store, dead: Incarnation) -> Result<Estate> {
        let files = own.files_of(dead).await?;
        let left = Store::new(Rc::new(Left { own: own.clone(), dead, files }));
        let dry_run = DryRun::numbered_from(&left, FIRST_REMEMBERED);
        let view = View { own: own.clone(), dry: dry_run.store(), made: RefCell::default() };
        Ok(Estate { dry_run, view: Rc::new(view) })
    }

    /// The store to recover.
    pub fn store(&self) -> Store {
        Store::new(self.view.clone())
    }

    /// What a recovery of it did to files of the dead, in that order.
    pub fn changes(&self) -> Vec<Change> {
        self.dry_run.changes()
    }
}

/// The files of the dead, to be read.
struct Left {
    own: Store,
    dead: Incarnation,
    files: Vec<FileInfo>,
}

fn not_here<T: 'static>() -> LocalBoxFuture<'static, Result<T>> {
    Box::pin(std::future::ready(Err(Error::fenced("what a dead writer left is not written to"))))
}

impl FileEngine for Left {
    fn id(&self) -> StoreId {
        self.own.id()
    }

    fn incarnation(&self) -> Incarnation {
        self.dead
    }

    fn create(&self, _: CreateOptions) -> LocalBoxFuture<'_, Result<FileId>> {
        not_here()
    }

    fn append(&self, _: FileId, _: u64, _: Gathered) -> LocalBoxFuture<'static, Result<()>> {
        not_here()
    }

    fn read(&self, file: FileId, offset: u64, len: usize) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        self.own.0.read(file, offset, len)
    }

    fn read_copy(
        &self,
        file: FileId,
        copy: u8,
        offset: u64,
        len: usize,
    ) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        self.own.0.read_copy(file, copy, offset, len)
    }

    fn repair_copy(&self, _: FileId, _: u8, _: u64, _: Bytes) -> LocalBoxFuture<'static, Result<()>> {
        not_here()
    }

    fn seal(&self, _: FileId, _: u64) -> LocalBoxFuture<'_, Result<()>> {
        not_here()
    }

    fn delete(&self, _: FileId) -> LocalBoxFuture<'_, Result<()>> {
        not_here()
    }

    fn fence(&self, _: Incarnation) -> LocalBoxFuture<'_, Result<()>> {
        not_here()
    }

    fn list(&self) -> Vec<FileInfo> {
        self.files.clone()
    }

    fn info(&self, file: FileId) -> Option<FileInfo> {
        // Of segments that it had adopted it refers to files of others, too.
        let of_dead = self.files.iter().find(|info| info.id == file);
        of_dead.cloned().or_else(|| self.own.info(file))
    }

    fn find(&self, file: FileId) -> LocalBoxFuture<'_, Result<Option<FileInfo>>> {
        Box::pin(self.own.find(file))
    }

    fn locate(&self, file: FileId, copy: u8) -> String {
        self.own.locate(file, copy)
    }

    fn space(&self) -> StoreSpace {
        self.own.space()
    }

    fn statistics(&self) -> Statistics {
        self.own.statistics()
    }
}

/// What is seen: the files of the dead and what is remembered of them, and what was made for good.
struct View {
    own: Store,
    dry: Store,
    made: RefCell<BTreeSet<FileId>>,
}

impl View {
    fn of(&self, file: FileId) -> &Store {
        if self.made.borrow().contains(&file) { &self.own } else { &self.dry }
    }
}

impl FileEngine for View {
    fn id(&self) -> StoreId {
        self.own.id()
    }

    fn incarnation(&self) -> Incarnation {
        self.dry.incarnation()
    }

    fn create(&self, options: CreateOptions) -> LocalBoxFuture<'_, Result<FileId>> {
        if !matches!(options.kind, FileKind::Data | FileKind::Table) {
            return self.dry.0.create(options);
        }
        Box::pin(async move {
            // Nothing of it is there for clients yet, and what the own life was granted is promised to its own.
            let file = self.own.0.create(CreateOptions { claim: Claim::Adoption, ..options }).await?;
            self.made.borrow_mut().insert(file);
            Ok(file)
        })
    }

    fn recyclable(&self, kind: FileKind, capacities: RangeInclusive<u64>) -> Option<u64> {
        self.own.recyclable(kind, capacities)
    }

    fn append(&self, file: FileId, offset: u64, data: Gathered) -> LocalBoxFuture<'static, Result<()>> {
        self.of(file).0.append(file, offset, data)
    }

    fn read(&self, file: FileId, offset: u64, len: usize) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        self.of(file).0.read(file, offset, len)
    }

    fn read_copy(
        &self,
        file: FileId,
        copy: u8,
        offset: u64,
        len: usize,
    ) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        self.of(file).0.read_copy(file, copy, offset, len)
    }

    fn repair_copy(&self, file: FileId, copy: u8, offset: u64, data: Bytes) -> LocalBoxFuture<'static, Result<()>> {
        self.of(file).0.repair_copy(file, copy, offset, data)
    }

    fn seal(&self, file: FileId, length: u64) -> LocalBoxFuture<'_, Result<()>> {
        self.of(file).0.seal(file, length)
    }

    fn delete(&self, file: FileId) -> LocalBoxFuture<'_, Result<()>> {
        self.of(file).0.delete(file)
    }

    fn fence(&self, _: Incarnation) -> LocalBoxFuture<'_, Result<()>> {
        not_here()
    }

    fn check_life(&self) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(self.own.check_life())
    }

    fn list(&self) -> Vec<FileInfo> {
        let made = self.made.borrow();
        let mut files = self.dry.list();
        files.extend(made.iter().filter_map(|file| self.own.info(*file)));
        files
    }

    fn info(&self, file: FileId) -> Option<FileInfo> {
        self.of(file).info(file)
    }

    fn find(&self, file: FileId) -> LocalBoxFuture<'_, Result<Option<FileInfo>>> {
        self.of(file).0.find(file)
    }

    fn locate(&self, file: FileId, copy: u8) -> String {
        self.of(file).locate(file, copy)
    }

    fn space(&self) -> StoreSpace {
        self.own.space()
    }

    fn need_space(&self, bytes: u64) {
        self.own.need_space(bytes);
    }

    fn statistics(&self) -> Statistics {
        self.own.statistics()
    }
}
