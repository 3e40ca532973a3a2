//! The file layer as a state machine, for the tests of the floors above: no disk, but a disk's ways to fail.
//!
//! [`Memory`] is what outlives a process: the content of every copy of every file. [`Memory::open`] starts a **life**:
//! a [`Store`] with the next incarnation over that content; the store of an earlier life is dead from then on.
//!
//! Invariants, the same as those of the local engine:
//! - an append that was confirmed is in every copy and survives [`Memory::kill`] and [`Memory::power_loss`];
//! - an append that was not confirmed is there, not there, or torn between sectors, and different in each copy, when
//!   the next life begins; after that nothing of an earlier life lands any more;
//! - a prepared file may show bytes of a deleted one where it was not written yet;
//! - ids are never used again; create, seal and delete are durable when they return.
//!
//! Flow of an append: queued in `in_flight` at the call, applied to the copies when its time has come (a random
//! latency if the life has a clock), then confirmed. What is still queued when a life ends is interrupted.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use base::{AlignedBuf, BLOCK, Bytes, Error, FileId, Gathered, Incarnation, Prng, Result, SECTOR, StoreId, TIB};
use runtime::Handle;

use crate::{
    CreateOptions, DirectoryStatus, FileEngine, FileInfo, FileKind, LocalBoxFuture, Redundancy, Statistics, Store,
    StoreSpace,
};

#[cfg(test)]
mod tests;

/// Deleted prepared files whose content waits to shine through a new one.
const RECYCLED_MAX: usize = 4;
/// Most copies of one file.
const COPIES_MAX: u8 = 8;

/// What a [`Memory`] is like.
#[derive(Clone, Debug)]
pub struct MemoryOptions {
    /// Bytes that files may set aside, one copy counted.
    pub capacity: u64,
    /// Directories that it pretends to have: the most copies of a file.
    pub directories: u8,
    /// How long a call takes, drawn evenly, if the life has a clock. Empty: no time at all.
    pub latency_ns: Range<u64>,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        MemoryOptions { capacity: TIB, directories: 1, latency_ns: 10_000..100_000 }
    }
}

/// What becomes of an append that is made to fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppendFault {
    /// Nothing was written.
    Lost,
    /// All of it was written, and may be found later.
    Landed,
    /// Some sectors of it were written, others were not.
    Torn,
}

/// The content that outlives processes. Clones share it.
#[derive(Clone)]
pub struct Memory(Rc<RefCell<State>>);

struct State {
    id: StoreId,
    options: MemoryOptions,
    prng: Prng,
    /// The number of the newest life, and whether it goes on.
    incarnation: Incarnation,
    alive: bool,
    /// The highest number that was given out: to a life, or to one that writes beside it.
    numbered: Incarnation,
    fenced: Incarnation,
    next_file: u64,
    files: BTreeMap<FileId, File>,
    recycled: VecDeque<Vec<Option<Bytes>>>,
    next_append: u64,
    in_flight: BTreeMap<u64, Append>,
    append_faults: VecDeque<(Option<FileKind>, AppendFault)>,
    read_faults: Vec<(FileId, Option<u8>, Range<u64>)>,
    /// So many deletions fail.
    deletion_faults: usize,
    statistics: Statistics,
}

struct File {
    info: FileInfo,
    /// The life of the store that created it: no other one appends to it.
    life: Incarnation,
    prepared: bool,
    /// Of each copy its blocks, or nothing for a missing copy. A block that is `None` reads as zeros.
    copies: Vec<Option<Vec<Option<Bytes>>>>,
}

struct Append {
    file: FileId,
    offset: u64,
    data: Bytes,
}

impl Memory {
    /// Empty content. Everything random in it depends on `seed` only.
    pub fn new(seed: u64, options: MemoryOptions) -> Self {
        assert!((1..=COPIES_MAX).contains(&options.directories), "one to {COPIES_MAX} directories");
        let mut prng = Prng::new(seed);
        let id = StoreId(u128::from(prng.next_u64()) << 64 | u128::from(prng.next_u64()));
        Memory(Rc::new(RefCell::new(State {
            id,
            options,
            prng,
            incarnation: Incarnation(0),
            alive: false,
            numbered: Incarnation(0),
            fenced: Incarnation(0),
            next_file: 1,
            files: BTreeMap::new(),
            recycled: VecDeque::new(),
            next_append: 0,
            in_flight: BTreeMap::new(),
            append_faults: VecDeque::new(),
            read_faults: Vec::new(),
            deletion_faults: 0,
            statistics: Statistics::default(),
        })))
    }

    /// Starts the next life. Ends the one before as [`Memory::kill`] does, if it was not ended yet.
    pub fn open(&self, handle: &Handle) -> Store {
        self.start_life(Some(handle.clone()))
    }

    /// The same, with every call complete at its first poll: needs no loop.
    pub fn open_untimed(&self) -> Store {
        self.start_life(None)
    }

    fn start_life(&self, handle: Option<Handle>) -> Store {
        self.kill();
        let mut state = self.0.borrow_mut();
        state.incarnation = state.next_incarnation();
        state.alive = true;
        Store::new(Rc::new(Engine { memory: self.clone(), handle, incarnation: state.incarnation }))
    }

    /// Ends the life as `kill -9` does: what was in flight lands or not, block by block.
    pub fn kill(&self) {
        self.0.borrow_mut().interrupt(BLOCK);
    }

    /// Ends the life as a power loss does: what was in flight lands or not, sector by sector.
    pub fn power_loss(&self) {
        self.0.borrow_mut().interrupt(SECTOR);
    }

    /// Makes the next `count` appends (of `kind` only, if given) fail with `Io`.
    pub fn fail_appends(&self, kind: Option<FileKind>, count: usize, fault: AppendFault) {
        self.0.borrow_mut().append_faults.extend(std::iter::repeat_n((kind, fault), count));
    }

    /// Makes the next `count` deletions fail with `Io`.
    pub fn fail_deletions(&self, count: usize) {
        self.0.borrow_mut().deletion_faults = count;
    }

    /// Makes reads that touch `range` of a file (in one copy, or in all) fail with `Io`, until
    /// [`Memory::clear_faults`]. `repair_copy` over the range heals it, too.
    pub fn fail_reads(&self, file: FileId, copy: Option<u8>, range: Range<u64>) {
        self.0.borrow_mut().read_faults.push((file, copy, range));
    }

    /// Flips a bit in every sector of `range` of one copy.
    pub fn corrupt(&self, file: FileId, copy: u8, range: Range<u64>) {
        let mut state = self.0.borrow_mut();
        let Some(blocks) = state.blocks_mut(file, copy) else { return };
        let mut bytes = read_blocks(blocks, range.start, (range.end - range.start) as usize);
        for sector in bytes.chunks_mut(SECTOR as usize) {
            sector[sector.len() / 2] ^= 0x10;
        }
        write_blocks(blocks, range.start, &bytes.freeze());
    }

    /// Copies a range of one copy to another place there, as a misdirected write does.
    pub fn misdirect(&self, file: FileId, copy: u8, range: Range<u64>, to: u64) {
        let mut state = self.0.borrow_mut();
        let Some(blocks) = state.blocks_mut(file, copy) else { return };
        let bytes = read_blocks(blocks, range.start, (range.end - range.start) as usize);
        write_blocks(blocks, to, &bytes.freeze());
    }

    /// Takes one copy of a file away, as a lost directory does.
    pub fn drop_copy(&self, file: FileId, copy: u8) {
        let mut state = self.0.borrow_mut();
        if let Some(file) = state.files.get_mut(&file) {
            file.copies[copy as usize] = None;
            file.info.copies = file.copies.iter().flatten().count() as u8;
        }
    }

    /// Changes the bytes that files may set aside. What is set aside already stays.
    pub fn set_capacity(&self, capacity: u64) {
        self.0.borrow_mut().options.capacity = capacity;
    }

    /// Forgets every fault that was asked for and has not happened yet.
    pub fn clear_faults(&self) {
        let mut state = self.0.borrow_mut();
        state.append_faults.clear();
        state.read_faults.clear();
        state.deletion_faults = 0;
    }
}

impl State {
    fn interrupt(&mut self, granularity: u64) {
        self.alive = false;
        for (_, append) in std::mem::take(&mut self.in_flight) {
            self.apply_partly(&append, granularity);
        }
    }

    fn blocks_mut(&mut self, file: FileId, copy: u8) -> Option<&mut Vec<Option<Bytes>>> {
        self.files.get_mut(&file)?.copies.get_mut(copy as usize)?.as_mut()
    }

    fn apply(&mut self, append: &Append) {
        let Some(file) = self.files.get_mut(&append.file) else { return };
        for blocks in file.copies.iter_mut().flatten() {
            write_blocks(blocks, append.offset, &append.data);
            self.statistics.written_bytes[file.info.kind as usize] += append.data.len() as u64;
        }
    }

    /// In each copy for itself: nothing, everything, a prefix, or some units and not others.
    fn apply_partly(&mut self, append: &Append, granularity: u64) {
        let Some(file) = self.files.get_mut(&append.file) else { return };
        let units = append.data.len() as u64 / granularity;
        for blocks in file.copies.iter_mut().flatten() {
            let manner = self.prng.below(4);
            let prefix = self.prng.below(units);
            for unit in 0..units {
                let lands = match manner {
                    0 => false,
                    1 => true,
                    2 => unit < prefix,
                    _ => self.prng.one_in(2),
                };
                if lands {
                    let start = (unit * granularity) as usize;
                    let part = append.data.slice(start..start + granularity as usize);
                    write_blocks(blocks, append.offset + start as u64, &part);
                }
            }
        }
    }

    fn next_incarnation(&mut self) -> Incarnation {
        self.numbered.0 = self.numbered.0.max(self.fenced.0) + 1;
        self.numbered
    }

    fn used(&self) -> u64 {
        self.files.values().map(|file| file.info.capacity).sum()
    }

    fn create(&mut self, options: CreateOptions, incarnation: Incarnation) -> Result<FileId> {
        assert!(options.capacity.is_multiple_of(BLOCK) && options.capacity > 0, "capacities are whole blocks");
        options.check_segment()?;
        if self.used() + options.capacity > self.options.capacity {
            return Err(Error::full("the store is full: discard or delete something"));
        }
        let Redundancy::Copies(copies_wanted) = options.redundancy;
        let copies = copies_wanted.clamp(1, self.options.directories);
        let id = FileId(self.next_file);
        self.next_file += 1;
        let block_count = (options.capacity / BLOCK) as usize;
        let fresh = |state: &mut State| {
            let recycled = options.prepared && state.prng.one_in(2);
            let mut blocks = recycled.then(|| state.recycled.pop_front()).flatten().unwrap_or_default();
            blocks.resize(block_count, None);
            Some(blocks)
        };
        let copies = (0..copies).map(|_| fresh(self)).collect::<Vec<_>>();
        let info = FileInfo {
            id,
            kind: options.kind,
            incarnation,
            epoch: options.epoch,
            segment: options.segment,
            capacity: options.capacity,
            sealed: None,
            copies: copies.len() as u8,
            copies_wanted,
        };
        self.files.insert(id, File { info, life: self.incarnation, prepared: options.prepared, copies });
        Ok(id)
    }

    fn seal(&mut self, id: FileId, length: u64) -> Result<()> {
        let file = self.files.get(&id).ok_or_else(|| no_file(id))?;
        match file.info.sealed {
            Some(sealed) if sealed == length => return Ok(()),
            Some(sealed) => return Err(Error::conflict(format!("file {id} is sealed at {sealed}, not at {length}"))),
            None if length > file.info.capacity || !length.is_multiple_of(BLOCK) => {
                return Err(Error::invalid(format!("file {id} cannot be sealed at {length}")));
            }
            None => {}
        }
        // What this life has in flight lands before the seal; nothing does afterwards.
        let late: Vec<u64> = self.in_flight.iter().filter(|(_, a)| a.file == id).map(|(n, _)| *n).collect();
        for append in late.iter().filter_map(|n| self.in_flight.remove(n)).collect::<Vec<_>>() {
            self.apply(&append);
        }
        let Some(file) = self.files.get_mut(&id) else { return Err(no_file(id)) };
        file.info.sealed = Some(length);
        if !file.prepared {
            file.info.capacity = length;
        }
        let content = file.copies.iter().flatten().next().cloned().unwrap_or_default();
        for (index, block) in content.into_iter().take((length / BLOCK) as usize).enumerate() {
            // A copy that is shorter is brought to the length; one that differs is for its reader to judge.
            for blocks in file.copies.iter_mut().flatten().filter(|blocks| blocks[index].is_none()) {
                blocks[index] = block.clone();
            }
        }
        Ok(())
    }

    fn delete(&mut self, id: FileId) {
        let Some(mut file) = self.files.remove(&id) else { return };
        if file.prepared && self.recycled.len() < RECYCLED_MAX {
            self.recycled.extend(file.copies.drain(..).flatten().next());
        }
    }

    fn read(&mut self, id: FileId, copy: Option<u8>, offset: u64, len: usize) -> Result<AlignedBuf> {
        let file = self.files.get(&id).ok_or_else(|| no_file(id))?;
        let end = file.info.sealed.unwrap_or(file.info.capacity);
        let whole = offset.is_multiple_of(BLOCK) && (len as u64).is_multiple_of(BLOCK);
        if offset.checked_add(len as u64).is_none_or(|last| last > end) || !whole {
            return Err(Error::invalid(format!(
                "{len} bytes at {offset} of file {id} are not whole blocks within its {end} bytes"
            )));
        }
        let range = offset..offset + len as u64;
        let mut outcome = Err(Error::not_found(format!("file {id} has no such copy")));
        for (index, blocks) in file.copies.iter().enumerate() {
            let index = index as u8;
            let Some(blocks) = blocks.as_ref().filter(|_| copy.is_none_or(|copy| copy == index)) else { continue };
            let faulty = self.read_faults.iter().any(|(file, copy, bad)| {
                *file == id && copy.is_none_or(|copy| copy == index) && bad.start < range.end && range.start < bad.end
            });
            if faulty {
                self.statistics.copy_errors += 1;
                outcome =
                    Err(Error::io(format!("file {id}, copy {index}, {len} bytes at {offset}: input/output error")));
                continue;
            }
            self.statistics.read_bytes[file.info.kind as usize] += len as u64;
            return Ok(read_blocks(blocks, offset, len));
        }
        outcome
    }

    fn repair(&mut self, id: FileId, copy: u8, offset: u64, data: &Bytes) -> Result<()> {
        let end = self.files.get(&id).map(|file| file.info.sealed.unwrap_or(file.info.capacity));
        let end = end.ok_or_else(|| no_file(id))?;
        let range = offset..offset + data.len() as u64;
        if range.end > end || !offset.is_multiple_of(BLOCK) || !range.end.is_multiple_of(BLOCK) {
            return Err(Error::invalid(format!("{range:?} of file {id} is not whole blocks within its {end} bytes")));
        }
        let blocks =
            self.blocks_mut(id, copy).ok_or_else(|| Error::not_found(format!("file {id} has no such copy")))?;
        write_blocks(blocks, offset, data);
        self.read_faults.retain(|(file, faulty, bad)| {
            *file != id || *faulty != Some(copy) || bad.start < range.start || bad.end > range.end
        });
        Ok(())
    }

    fn queue_append(&mut self, incarnation: Incarnation, append: Append) -> Result<u64> {
        if !self.alive || incarnation != self.incarnation || incarnation <= self.fenced {
            return Err(Error::fenced(format!("incarnation {incarnation} writes no more")));
        }
        let file = self.files.get(&append.file).ok_or_else(|| no_file(append.file))?;
        if file.life != incarnation {
            return Err(Error::fenced(format!("file {} belongs to an earlier incarnation", append.file)));
        }
        if file.info.sealed.is_some() {
            return Err(Error::conflict(format!("file {} is sealed", append.file)));
        }
        if append.offset + append.data.len() as u64 > file.info.capacity {
            return Err(Error::full(format!("file {} is full", append.file)));
        }
        assert!(append.offset.is_multiple_of(BLOCK) && (append.data.len() as u64).is_multiple_of(BLOCK));
        let kind = file.info.kind;
        if let Some(at) = self.append_faults.iter().position(|(only, _)| only.is_none_or(|only| only == kind)) {
            match self.append_faults.remove(at).map(|(_, fault)| fault) {
                Some(AppendFault::Landed) => self.apply(&append),
                Some(AppendFault::Torn) => self.apply_partly(&append, SECTOR),
                Some(AppendFault::Lost) | None => {}
            }
            self.statistics.copy_errors += 1;
            return Err(Error::io(format!("file {}, append at {}: input/output error", append.file, append.offset)));
        }
        self.next_append += 1;
        self.in_flight.insert(self.next_append, append);
        Ok(self.next_append)
    }
}

fn no_file(id: FileId) -> Error {
    Error::not_found(format!("there is no file {id}"))
}

fn read_blocks(blocks: &[Option<Bytes>], offset: u64, len: usize) -> AlignedBuf {
    let mut buffer = AlignedBuf::zeroed(len);
    let first = (offset / BLOCK) as usize;
    for (block, out) in blocks[first..].iter().zip(buffer.chunks_mut(BLOCK as usize)) {
        if let Some(block) = block {
            out.copy_from_slice(&block[..out.len()]);
        }
    }
    buffer
}

/// Writes whole sectors; whole blocks are shared with `data`, parts of one are merged into a new block.
fn write_blocks(blocks: &mut [Option<Bytes>], offset: u64, data: &Bytes) {
    let mut done = 0;
    while done < data.len() {
        let at = offset + done as u64;
        let (index, within) = ((at / BLOCK) as usize, (at % BLOCK) as usize);
        let len = (BLOCK as usize - within).min(data.len() - done);
        let part = data.slice(done..done + len);
        blocks[index] = Some(match len == BLOCK as usize {
            true => part,
            false => {
                let mut merged = AlignedBuf::zeroed(BLOCK as usize);
                if let Some(old) = &blocks[index] {
                    merged.copy_from_slice(old);
                }
                merged[within..within + len].copy_from_slice(&part);
                merged.freeze()
            }
        });
        done += len;
    }
}

/// One life over a [`Memory`].
struct Engine {
    memory: Memory,
    handle: Option<Handle>,
    incarnation: Incarnation,
}

impl Engine {
    /// The time that one call takes.
    fn latency(&self) -> impl Future<Output = ()> + use<> {
        let mut state = self.memory.0.borrow_mut();
        let span = state.options.latency_ns.clone();
        let sleep = match &self.handle {
            Some(handle) if !span.is_empty() => {
                Some(handle.sleep(Duration::from_nanos(state.prng.between(span.start, span.end - 1))))
            }
            _ => None,
        };
        async move {
            if let Some(sleep) = sleep {
                sleep.await;
            }
        }
    }

    /// Applies a change at the first poll, durably, and returns its result after the latency: a life that ends in
    /// between leaves the change behind.
    fn change<T: 'static>(
        &self,
        change: impl FnOnce(&mut State) -> Result<T> + 'static,
    ) -> LocalBoxFuture<'static, Result<T>> {
        let (memory, incarnation, latency) = (self.memory.clone(), self.incarnation, self.latency());
        Box::pin(async move {
            let result = {
                let mut state = memory.0.borrow_mut();
                match state.alive && state.incarnation == incarnation && state.fenced < incarnation {
                    true => change(&mut state),
                    false => Err(Error::fenced(format!("incarnation {incarnation} is over"))),
                }
            };
            latency.await;
            result
        })
    }
}

impl FileEngine for Engine {
    fn id(&self) -> StoreId {
        self.memory.0.borrow().id
    }

    fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn create(&self, options: CreateOptions) -> LocalBoxFuture<'_, Result<FileId>> {
        self.create_for(self.incarnation, options)
    }

    fn begin_incarnation(&self) -> LocalBoxFuture<'_, Result<Incarnation>> {
        self.change(|state| Ok(state.next_incarnation()))
    }

    fn create_for(&self, incarnation: Incarnation, options: CreateOptions) -> LocalBoxFuture<'_, Result<FileId>> {
        self.change(move |state| state.create(options, incarnation))
    }

    fn append(&self, file: FileId, offset: u64, data: Gathered) -> LocalBoxFuture<'static, Result<()>> {
        let queued =
            self.memory.0.borrow_mut().queue_append(self.incarnation, Append { file, offset, data: data.joined() });
        let (memory, incarnation, latency) = (self.memory.clone(), self.incarnation, self.latency());
        Box::pin(async move {
            latency.await;
            let number = queued?;
            let mut state = memory.0.borrow_mut();
            if !state.alive || state.incarnation != incarnation {
                return Err(Error::fenced(format!("incarnation {incarnation} is over")));
            }
            // Not there any more: a seal was faster, and had it applied.
            if let Some(append) = state.in_flight.remove(&number) {
                state.apply(&append);
            }
            Ok(())
        })
    }

    fn read(&self, file: FileId, offset: u64, len: usize) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        let (memory, latency) = (self.memory.clone(), self.latency());
        Box::pin(async move {
            latency.await;
            memory.0.borrow_mut().read(file, None, offset, len)
        })
    }

    fn read_copy(
        &self,
        file: FileId,
        copy: u8,
        offset: u64,
        len: usize,
    ) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        let (memory, latency) = (self.memory.clone(), self.latency());
        Box::pin(async move {
            latency.await;
            memory.0.borrow_mut().read(file, Some(copy), offset, len)
        })
    }

    fn repair_copy(&self, file: FileId, copy: u8, offset: u64, data: Bytes) -> LocalBoxFuture<'static, Result<()>> {
        self.change(move |state| state.repair(file, copy, offset, &data))
    }

    fn seal(&self, file: FileId, length: u64) -> LocalBoxFuture<'_, Result<()>> {
        self.change(move |state| state.seal(file, length))
    }

    fn delete(&self, file: FileId) -> LocalBoxFuture<'_, Result<()>> {
        self.change(move |state| {
            if state.deletion_faults > 0 {
                state.deletion_faults -= 1;
                return Err(Error::io(format!("deleting file {file} failed")));
            }
            state.delete(file);
            Ok(())
        })
    }

    fn fence(&self, incarnation: Incarnation) -> LocalBoxFuture<'_, Result<()>> {
        self.change(move |state| {
            state.fenced = state.fenced.max(incarnation);
            Ok(())
        })
    }

    fn list(&self) -> Vec<FileInfo> {
        self.memory.0.borrow().files.values().map(|file| file.info.clone()).collect()
    }

    fn info(&self, file: FileId) -> Option<FileInfo> {
        self.memory.0.borrow().files.get(&file).map(|file| file.info.clone())
    }

    fn locate(&self, file: FileId, copy: u8) -> String {
        format!("memory, copy {copy} of file {file}")
    }

    fn space(&self) -> StoreSpace {
        let state = self.memory.0.borrow();
        let (capacity, used) = (state.options.capacity, state.used());
        StoreSpace { capacity, used, free: capacity.saturating_sub(used) }
    }

    fn statistics(&self) -> Statistics {
        let state = self.memory.0.borrow();
        let mut statistics = state.statistics.clone();
        let free_bytes = state.options.capacity.saturating_sub(state.used());
        statistics.directories = (0..state.options.directories)
            .map(|index| DirectoryStatus {
                path: format!("memory {index}"),
                state: "healthy",
                free_bytes,
                behind_bytes: 0,
            })
            .collect();
        statistics
    }
}
