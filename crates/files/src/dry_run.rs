//! A store over another one that changes nothing: what is created, appended, sealed, deleted or mended is only
//! remembered, and seen by later calls.
//!
//! It lets the code that recovers a store run on one that must stay as it is: an offline inspection sees what a start
//! would see, and is told what a start would have mended ([`DryRun::repairs`]).
//!
//! Invariants: no call reaches the store below but reads; new files have ids above all that are there; memory holds
//! what was written during the dry run, and no more.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{AlignedBuf, BLOCK, Bytes, Error, FileId, Gathered, Incarnation, Result, StoreId};

use crate::{CreateOptions, FileEngine, FileInfo, LocalBoxFuture, Redundancy, Statistics, Store, StoreSpace};

/// A range of one copy that was to be overwritten with bytes from another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Repair {
    /// The file.
    pub file: FileId,
    /// The copy that is not what it should be.
    pub copy: u8,
    /// Where, in bytes.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

/// What was done to a file of the store below, and is only remembered.
#[derive(Clone, Debug)]
pub enum Change {
    /// A range of a copy was overwritten.
    Repaired(Repair, Bytes),
    /// It was sealed at a length.
    Sealed(FileId, u64),
    /// It was deleted.
    Deleted(FileId),
}

/// See the module.
#[derive(Clone)]
pub struct DryRun(Rc<Layer>);

struct Layer {
    below: Store,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    next_file: u64,
    created: BTreeMap<FileId, Created>,
    sealed: BTreeMap<FileId, u64>,
    deleted: BTreeSet<FileId>,
    repairs: BTreeMap<Repair, Bytes>,
    changes: Vec<Change>,
}

struct Created {
    info: FileInfo,
    blocks: BTreeMap<u64, Bytes>,
}

impl DryRun {
    /// A dry run over `below`, as its next life.
    pub fn over(below: &Store) -> DryRun {
        Self::numbered_from(below, below.list().iter().map(|info| info.id.0).max().unwrap_or(0) + 1)
    }

    /// The same, with ids for new files from `next_file` on, which nobody else has.
    pub(crate) fn numbered_from(below: &Store, next_file: u64) -> DryRun {
        let state = RefCell::new(State { next_file, ..State::default() });
        DryRun(Rc::new(Layer { below: below.clone(), state }))
    }

    /// The store that changes nothing.
    pub fn store(&self) -> Store {
        Store::new(self.0.clone())
    }

    /// What would have been done to files of the store below, in that order.
    pub fn changes(&self) -> Vec<Change> {
        self.0.state.borrow().changes.clone()
    }

    /// What would have been mended, in the order of files.
    pub fn repairs(&self) -> Vec<Repair> {
        self.0.state.borrow().repairs.keys().copied().collect()
    }
}

impl Layer {
    fn check_exists(&self, file: FileId) -> Result<FileInfo> {
        self.info(file).ok_or_else(|| Error::not_found(format!("there is no file {file}")))
    }

    /// Of a file that this layer knows nothing of, the one below says what is wrong.
    fn check_range(&self, file: FileId, offset: u64, len: usize) -> Result<()> {
        let info = match self.info(file) {
            Some(info) => info,
            None if self.state.borrow().deleted.contains(&file) => return self.check_exists(file).map(drop),
            None => return Ok(()),
        };
        let end = info.sealed.unwrap_or(info.capacity);
        match offset.checked_add(len as u64).is_some_and(|last| last <= end) {
            true => Ok(()),
            false => Err(Error::invalid(format!("{len} bytes at {offset} of file {file} are beyond its {end}"))),
        }
    }

    fn read_created(&self, file: FileId, offset: u64, len: usize) -> Option<AlignedBuf> {
        let state = self.state.borrow();
        let created = state.created.get(&file)?;
        let mut buffer = AlignedBuf::zeroed(len);
        for (index, block) in buffer.chunks_mut(BLOCK as usize).enumerate() {
            if let Some(bytes) = created.blocks.get(&(offset / BLOCK + index as u64)) {
                block.copy_from_slice(&bytes[..block.len()]);
            }
        }
        Some(buffer)
    }

    /// What was mended of a range of one copy: position in the range, and bytes.
    fn repaired(&self, file: FileId, copy: u8, offset: u64, len: usize) -> Vec<(usize, Bytes)> {
        let end = offset + len as u64;
        let state = self.state.borrow();
        let of_copy = state.repairs.iter().filter(|(repair, _)| repair.file == file && repair.copy == copy);
        let parts = of_copy.filter_map(|(repair, bytes)| {
            let (from, to) = (repair.offset.max(offset), (repair.offset + repair.len).min(end));
            let part = |bytes: &Bytes| bytes.slice((from - repair.offset) as usize..(to - repair.offset) as usize);
            (from < to).then(|| ((from - offset) as usize, part(bytes)))
        });
        parts.collect()
    }
}

fn done<T: 'static>(value: Result<T>) -> LocalBoxFuture<'static, Result<T>> {
    Box::pin(std::future::ready(value))
}

impl FileEngine for Layer {
    fn id(&self) -> StoreId {
        self.below.id()
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.below.incarnation().0 + 1)
    }

    fn create(&self, options: CreateOptions) -> LocalBoxFuture<'_, Result<FileId>> {
        let mut state = self.state.borrow_mut();
        let id = FileId(state.next_file);
        state.next_file += 1;
        let Redundancy::Copies(copies) = options.redundancy;
        let info = FileInfo {
            id,
            kind: options.kind,
            incarnation: self.incarnation(),
            epoch: options.epoch,
            segment: options.segment,
            capacity: options.capacity,
            sealed: None,
            copies,
            copies_wanted: copies,
        };
        state.created.insert(id, Created { info, blocks: BTreeMap::new() });
        done(Ok(id))
    }

    fn append(&self, file: FileId, offset: u64, data: Gathered) -> LocalBoxFuture<'static, Result<()>> {
        let mut state = self.state.borrow_mut();
        let Some(created) = state.created.get_mut(&file) else {
            return done(Err(Error::fenced(format!("file {file} belongs to an earlier life"))));
        };
        let data = data.joined();
        for at in (0..data.len()).step_by(BLOCK as usize) {
            let block = data.slice(at..data.len().min(at + BLOCK as usize));
            created.blocks.insert((offset + at as u64) / BLOCK, block);
        }
        done(Ok(()))
    }

    fn read(&self, file: FileId, offset: u64, len: usize) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        if let Err(error) = self.check_range(file, offset, len) {
            return done(Err(error));
        }
        match self.read_created(file, offset, len) {
            Some(bytes) => done(Ok(bytes)),
            None => Box::pin(self.below.read(file, offset, len)),
        }
    }

    fn read_copy(
        &self,
        file: FileId,
        copy: u8,
        offset: u64,
        len: usize,
    ) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        if let Err(error) = self.check_range(file, offset, len) {
            return done(Err(error));
        }
        if let Some(bytes) = self.read_created(file, offset, len) {
            return done(Ok(bytes));
        }
        let (below, repaired) = (self.below.clone(), self.repaired(file, copy, offset, len));
        Box::pin(async move {
            let mut bytes = below.read_copy(file, copy, offset, len).await?;
            for (at, part) in repaired {
                bytes[at..at + part.len()].copy_from_slice(&part);
            }
            Ok(bytes)
        })
    }

    fn repair_copy(&self, file: FileId, copy: u8, offset: u64, data: Bytes) -> LocalBoxFuture<'static, Result<()>> {
        if let Err(error) = self.check_exists(file).and_then(|_| self.check_range(file, offset, data.len())) {
            return done(Err(error));
        }
        let repair = Repair { file, copy, offset, len: data.len() as u64 };
        let mut state = self.state.borrow_mut();
        if !state.created.contains_key(&file) {
            state.changes.push(Change::Repaired(repair, data.clone()));
        }
        state.repairs.insert(repair, data);
        done(Ok(()))
    }

    fn seal(&self, file: FileId, length: u64) -> LocalBoxFuture<'_, Result<()>> {
        let sealed = self.check_exists(file).and_then(|info| match info.sealed {
            Some(sealed) if sealed != length => {
                Err(Error::conflict(format!("file {file} is sealed at {sealed}, not at {length}")))
            }
            sealed => Ok(sealed.is_some()),
        });
        done(sealed.map(|is_known| {
            let mut state = self.state.borrow_mut();
            state.sealed.insert(file, length);
            if !is_known && !state.created.contains_key(&file) {
                state.changes.push(Change::Sealed(file, length));
            }
        }))
    }

    fn delete(&self, file: FileId) -> LocalBoxFuture<'_, Result<()>> {
        let mut state = self.state.borrow_mut();
        if state.created.remove(&file).is_none() && state.deleted.insert(file) {
            state.changes.push(Change::Deleted(file));
        }
        done(Ok(()))
    }

    fn fence(&self, _incarnation: Incarnation) -> LocalBoxFuture<'_, Result<()>> {
        done(Ok(()))
    }

    fn list(&self) -> Vec<FileInfo> {
        let created: Vec<FileId> = self.state.borrow().created.keys().copied().collect();
        let below = self.below.list().into_iter().map(|info| info.id);
        below.chain(created).filter_map(|id| self.info(id)).collect()
    }

    fn info(&self, file: FileId) -> Option<FileInfo> {
        let state = self.state.borrow();
        let found = match state.created.get(&file) {
            Some(created) => created.info.clone(),
            None if state.deleted.contains(&file) => return None,
            None => self.below.info(file)?,
        };
        Some(FileInfo { sealed: state.sealed.get(&file).copied().or(found.sealed), ..found })
    }

    fn find(&self, file: FileId) -> LocalBoxFuture<'_, Result<Option<FileInfo>>> {
        Box::pin(async move {
            self.below.find(file).await?;
            Ok(self.info(file))
        })
    }

    fn locate(&self, file: FileId, copy: u8) -> String {
        match self.state.borrow().created.contains_key(&file) {
            true => format!("file {file} of a dry run"),
            false => self.below.locate(file, copy),
        }
    }

    fn space(&self) -> StoreSpace {
        self.below.space()
    }

    fn statistics(&self) -> Statistics {
        self.below.statistics()
    }
}

#[cfg(test)]
mod tests {
    use base::Epoch;
    use runtime::sim::{NodeOptions, World};

    use super::*;
    use crate::FileKind;
    use crate::memory::{Memory, MemoryOptions};

    #[test]
    fn changes_are_seen_and_not_made() {
        let world = World::new(1);
        let node = world.add_node(NodeOptions::default());
        let handle = world.start_loop(node);
        world.block_on(&handle, async move {
            let memory = Memory::new(1, MemoryOptions { directories: 2, ..MemoryOptions::default() });
            let below = memory.open_untimed();
            let options = CreateOptions {
                kind: FileKind::Data,
                capacity: 4 * BLOCK,
                redundancy: Redundancy::Copies(2),
                prepared: false,
                epoch: Epoch(1),
                segment: None,
                claim: crate::Claim::Use,
            };
            let block = |byte: u8| AlignedBuf::copy_of(&[byte; BLOCK as usize]).freeze();
            let mut writer = below.create(options).await.unwrap();
            writer.append(block(7)).await.unwrap();
            let old = writer.id();
            let before = below.list();

            let dry = DryRun::over(&below);
            let store = dry.store();
            let mut new = store.create(options).await.unwrap();
            assert!(new.id() > old && store.incarnation() > below.incarnation());
            new.append(block(9)).await.unwrap();
            assert_eq!(store.read(new.id(), 0, 8192).await.unwrap()[4095..4097], [9, 0]);
            store.repair_copy(old, 1, 0, block(5)).await.unwrap();
            assert_eq!(store.read_copy(old, 1, 0, 8192).await.unwrap()[4095..4097], [5, 0]);
            assert_eq!(store.read_copy(old, 0, 0, 4096).await.unwrap()[0], 7);
            store.seal(old, BLOCK).await.unwrap();
            assert_eq!(store.info(old).unwrap().sealed, Some(BLOCK));
            assert!(store.read(old, BLOCK, 4096).await.is_err(), "beyond the seal");
            assert_eq!(store.seal(old, 0).await.unwrap_err().kind, base::ErrorKind::Conflict);
            assert_eq!(store.list().len(), 2);
            store.delete(old).await.unwrap();
            assert!(store.info(old).is_none() && store.list().len() == 1);
            assert_eq!(dry.repairs(), [Repair { file: old, copy: 1, offset: 0, len: BLOCK }]);

            assert_eq!(below.list(), before, "the store below is as it was");
            assert_eq!(below.read_copy(old, 1, 0, 4096).await.unwrap()[0], 7);
        });
    }
}
