//! The file layer over a [`Disk`]: for recoveries, which read, and repair, seal and delete. It writes down what they
//! change, in order.

use std::cell::RefCell;
use std::rc::Rc;

use base::{AlignedBuf, BLOCK, Bytes, Error, FileId, Incarnation, Result, StoreId};
use files::{CreateOptions, FileEngine, FileInfo, LocalBoxFuture, Statistics, Store, StoreSpace};

use super::content::Contents;
use super::disk::{Change, Copy, Disk};

/// See the module.
pub(super) struct ModelStore {
    contents: Rc<RefCell<Contents>>,
    incarnation: Incarnation,
    copies: usize,
    state: RefCell<(Disk, Vec<Change>)>,
}

impl ModelStore {
    pub(super) fn new(
        contents: &Rc<RefCell<Contents>>,
        disk: &Disk,
        incarnation: u8,
        copies: usize,
    ) -> (Store, Rc<ModelStore>) {
        let store = Rc::new(ModelStore {
            contents: contents.clone(),
            incarnation: Incarnation(incarnation.into()),
            copies,
            state: RefCell::new((disk.clone(), Vec::new())),
        });
        (Store::new(Rc::new(Shared(store.clone()))), store)
    }

    /// What was changed so far.
    pub(super) fn changes(&self) -> Vec<Change> {
        self.state.borrow().1.clone()
    }

    fn change(&self, change: Change) {
        let (disk, changes) = &mut *self.state.borrow_mut();
        disk.apply(change);
        changes.push(change);
    }

    fn read(&self, file: FileId, copy: Option<u8>, offset: u64, len: usize) -> Result<AlignedBuf> {
        let (disk, _) = &*self.state.borrow();
        let known = disk.file(file.0 as u8).ok_or_else(|| no_file(file))?;
        let mut copies = known.copies.iter().enumerate().filter_map(|(number, copy)| Some((number, copy.as_ref()?)));
        let found = copies.find(|(number, _)| copy.is_none_or(|copy| usize::from(copy) == *number));
        let (_, Copy { blocks, .. }) = found.ok_or_else(|| no_file(file))?;
        let contents = self.contents.borrow();
        let mut bytes = AlignedBuf::with_capacity(len);
        for block in (offset / BLOCK..offset / BLOCK + len as u64 / BLOCK).map(|at| blocks[at as usize]) {
            bytes.extend_from_slice(&contents.bytes(block));
        }
        Ok(bytes)
    }

    fn repair(&self, file: FileId, copy: u8, offset: u64, data: &Bytes) {
        let blocks = self.contents.borrow_mut().numbers(data);
        for (at, block) in (offset / BLOCK..).zip(blocks) {
            self.change(Change::Write { file: file.0 as u8, copy, at: at as u8, block });
        }
    }

    fn in_each_copy(&self, file: FileId, change: impl Fn(u8, u8) -> Change) {
        let present = self.state.borrow().0.file(file.0 as u8).map(super::disk::File::present);
        for copy in present.into_iter().flat_map(|present| present.iter()) {
            self.change(change(file.0 as u8, copy as u8));
        }
    }
}

fn no_file(file: FileId) -> Error {
    Error::not_found(format!("there is no such copy of {file}"))
}

fn ready<T: 'static>(value: T) -> LocalBoxFuture<'static, T> {
    Box::pin(std::future::ready(value))
}

/// A handle of the store that its caller looks into afterwards.
struct Shared(Rc<ModelStore>);

impl FileEngine for Shared {
    fn id(&self) -> StoreId {
        StoreId(1)
    }

    fn incarnation(&self) -> Incarnation {
        self.0.incarnation
    }

    fn create(&self, _options: CreateOptions) -> LocalBoxFuture<'_, Result<FileId>> {
        ready(Err(Error::internal("a recovery creates nothing before it has decided")))
    }

    fn append(&self, _file: FileId, _offset: u64, _data: base::Gathered) -> LocalBoxFuture<'static, Result<()>> {
        ready(Err(Error::internal("a recovery appends nothing before it has decided")))
    }

    fn read(&self, file: FileId, offset: u64, len: usize) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        ready(self.0.read(file, None, offset, len))
    }

    fn read_copy(
        &self,
        file: FileId,
        copy: u8,
        offset: u64,
        len: usize,
    ) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        ready(self.0.read(file, Some(copy), offset, len))
    }

    fn repair_copy(&self, file: FileId, copy: u8, offset: u64, data: Bytes) -> LocalBoxFuture<'static, Result<()>> {
        self.0.repair(file, copy, offset, &data);
        ready(Ok(()))
    }

    fn seal(&self, file: FileId, length: u64) -> LocalBoxFuture<'_, Result<()>> {
        self.0.in_each_copy(file, |file, copy| Change::Seal { file, copy, length: (length / BLOCK) as u8 });
        ready(Ok(()))
    }

    fn delete(&self, file: FileId) -> LocalBoxFuture<'_, Result<()>> {
        self.0.in_each_copy(file, |file, copy| Change::Delete { file, copy });
        ready(Ok(()))
    }

    fn fence(&self, _incarnation: Incarnation) -> LocalBoxFuture<'_, Result<()>> {
        ready(Err(Error::internal("a recovery fences nobody")))
    }

    fn list(&self) -> Vec<FileInfo> {
        self.0.state.borrow().0.files.iter().map(|file| file.info(self.0.copies)).collect()
    }

    fn info(&self, file: FileId) -> Option<FileInfo> {
        self.0.state.borrow().0.file(file.0 as u8).map(|file| file.info(self.0.copies))
    }

    fn locate(&self, file: FileId, copy: u8) -> String {
        format!("copy {copy} of file {file}")
    }

    fn space(&self) -> StoreSpace {
        StoreSpace::default()
    }

    fn statistics(&self) -> Statistics {
        Statistics::default()
    }
}
