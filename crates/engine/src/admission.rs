//! Who may write now: a bound on memory, and space that is promised before a write is acknowledged.
//!
//! **Memory.** Bytes that are cached, in flight to the journal or in flight to data files share one bound. A write
//! that does not fit waits, in order of arrival, until dumps have made room. So overload makes the disk slower, never
//! the process larger.
//!
//! **Space.** What is acknowledged must be dumpable. Each segment *owes* the blocks that its cached writes may become
//! at worst (a lone sector becomes a block); against that stand the *room* of its open data file and what the store
//! has *promised* it for the next ones. A write that would owe more than that gets a larger promise, or `Full`. Kept
//! out of all promises is the *reserve*: for journals that do not exist yet, transaction files, tables, and at least
//! four data files for garbage collection. Discards are not asked: what they owe (at most two blocks) comes out of
//! the reserve, so that a full disk can be emptied.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::units::{round_down, round_up};
use base::{BLOCK, Error, ErrorKind, Result};
use files::{FileKind, Store};
use runtime::sync::{Budget, Event};

use crate::cache::CacheMemory;
use crate::data_writer::DataFileOptions;
use crate::fusion::FusionWriteEngine;
use crate::gc::GcSpace;
use crate::options::Options;

/// Bytes that one cached record costs beside its data.
const RECORD_OVERHEAD: u64 = crate::cache::EXTENT_OVERHEAD;

/// The gate in front of all writes of an engine.
pub struct Admission {
    memory: CacheMemory,
    fusion: FusionWriteEngine,
    store: Store,
    bytes_max: u64,
    /// Payload of large writes in flight.
    large_bytes: Cell<u64>,
    /// One waits at a time; the others wait for it, in order.
    line: Budget,
    /// Something was dumped, settled or freed.
    freed: Event,
    /// Somebody waits: dumps are needed.
    wanted: Event,
    /// Bytes that the first in line waits for.
    waiting_for: Cell<u64>,
    promises: Promises,
    reserve: Reserve,
    waits: Cell<u64>,
    full_hits: Cell<u64>,
    /// Writes that wait for garbage collection to free space.
    space_waiters: Cell<u64>,
    /// Nothing will be dumped any more: who waits is let through, and finds out.
    ended: Cell<bool>,
    /// Why dumps do not come through: they find no space, although it was promised, because somebody else fills the
    /// disk; or they have failed for longer than writers wait.
    stuck: RefCell<Option<Error>>,
}

/// Space that no write may take.
#[derive(Clone, Copy, Debug)]
pub struct Reserve {
    /// For garbage collection: at least four data files or 2% of the store.
    pub collection_bytes: u64,
    /// For journals, those that exist included.
    pub journal_bytes: u64,
    /// For transaction files, those that exist included.
    pub transaction_bytes: u64,
    /// For tables and their merges.
    pub index_bytes: u64,
}

impl Reserve {
    /// The reserve of a store of `capacity` bytes.
    pub fn new(options: &Options, files: &DataFileOptions, capacity: u64) -> Self {
        Reserve {
            collection_bytes: (4 * files.bytes_max).max(capacity / 50),
            journal_bytes: options.journal_files as u64 * options.journal_file_bytes,
            transaction_bytes: 4 * options.transaction_file_bytes,
            index_bytes: (options.memtable_bytes_max / 2).min(capacity / 64).max(capacity / 128),
        }
    }
}

impl Admission {
    /// A gate with nothing admitted.
    pub fn new(
        store: &Store,
        memory: &CacheMemory,
        fusion: &FusionWriteEngine,
        options: &Options,
        reserve: Reserve,
        promises: Promises,
    ) -> Self {
        Admission {
            memory: memory.clone(),
            fusion: fusion.clone(),
            store: store.clone(),
            bytes_max: options.dirty_bytes_max,
            large_bytes: Cell::new(0),
            line: Budget::new(1),
            freed: Event::new(),
            wanted: Event::new(),
            waiting_for: Cell::new(0),
            promises,
            reserve,
            waits: Cell::new(0),
            full_hits: Cell::new(0),
            space_waiters: Cell::new(0),
            ended: Cell::new(false),
            stuck: RefCell::default(),
        }
    }

    /// Bytes that count against the bound now.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes() + self.fusion.unsettled_bytes() + self.large_bytes.get()
    }

    /// The bound.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Whether more than half of the bound is taken: dumps are foreground work then.
    pub fn is_pressed(&self) -> bool {
        self.bytes() > self.bytes_max / 2
    }

    /// Waits until `bytes` of payload fit, or the gate has ended. What is admitted must be submitted before the next
    /// await. Gives whether it had to wait.
    ///
    /// # Errors
    /// `Full` where no room comes because dumps find no space, `Io` where they fail.
    pub async fn admit(&self, bytes: u64) -> Result<bool> {
        let bytes = bytes + RECORD_OVERHEAD;
        if self.line.available() == 1 && self.fits(bytes) {
            return Ok(false);
        }
        self.waits.set(self.waits.get() + 1);
        let _first = self.line.take(1).await;
        while !self.fits(bytes) && !self.ended.get() {
            let stuck = self.stuck.borrow().clone();
            if let Some(error) = stuck {
                self.waiting_for.set(0);
                return Err(if error.kind == ErrorKind::Full { self.on_full() } else { error });
            }
            let freed = self.freed.wait();
            self.waiting_for.set(bytes);
            self.wanted.notify();
            freed.await;
        }
        self.waiting_for.set(0);
        Ok(true)
    }

    /// Dumps do not come through, or do again: while they do not, who waits for memory is refused.
    pub fn set_stuck(&self, error: Option<&Error>) {
        *self.stuck.borrow_mut() = error.cloned();
        self.freed.notify();
    }

    /// Why dumps do not come through, while they do not.
    pub fn stuck(&self) -> Option<Error> {
        self.stuck.borrow().clone()
    }

    /// No room comes back any more: nobody waits for it from here on.
    pub fn end(&self) {
        self.ended.set(true);
        self.freed.notify();
    }

    /// Bytes that should be dumped now: down to half of the bound, and so that who waits fits.
    pub fn excess(&self) -> u64 {
        let bytes = self.bytes();
        let above_half = bytes.saturating_sub(self.bytes_max / 2);
        match self.waiting_for.get() {
            0 => above_half,
            waiting => above_half.max((bytes + waiting).saturating_sub(self.bytes_max)),
        }
    }

    fn fits(&self, bytes: u64) -> bool {
        let taken = self.bytes();
        taken == 0 || taken + bytes <= self.bytes_max
    }

    /// Notified each time a writer waits for memory.
    pub fn wanted(&self) -> &Event {
        &self.wanted
    }

    /// Something went: whoever is first in line looks again.
    pub fn on_freed(&self) {
        self.freed.notify();
    }

    /// Payload of a large write is in flight until the guard is dropped.
    pub fn hold_large(self: &Rc<Self>, bytes: u64) -> LargeBytes {
        self.large_bytes.set(self.large_bytes.get() + bytes);
        LargeBytes { admission: self.clone(), bytes }
    }

    /// Space that may still be promised or taken by new data files.
    pub fn free_space(&self) -> u64 {
        let free = self.store.space().free;
        free.saturating_sub(self.kept_space(free) + self.reserve.collection_bytes)
    }

    /// Of `free` bytes of the store: what is neither for new data nor for garbage collection to copy to. Kept for
    /// journals, transaction files and tables that are to come, and promised.
    fn kept_space(&self, free: u64) -> u64 {
        let reserve = &self.reserve;
        let rough = reserve.journal_bytes + reserve.transaction_bytes + reserve.index_bytes + self.promises.0.get();
        let ample = 2 * (rough + reserve.collection_bytes);
        if free > ample {
            return rough;
        }
        self.store.need_space(ample);
        // Scarce: what exists of journals and transaction files is not reserved again.
        let (mut journals, mut transactions) = (reserve.journal_bytes, reserve.transaction_bytes);
        for info in self.store.list() {
            match info.kind {
                FileKind::Journal => journals = journals.saturating_sub(info.capacity),
                FileKind::Transaction => transactions = transactions.saturating_sub(info.capacity),
                _ => {}
            }
        }
        reserve.index_bytes + journals + transactions + self.promises.0.get()
    }

    /// Space as garbage collection sees it: what writes may not take is its reserve.
    pub fn space_for_collection(&self) -> GcSpace {
        let space = self.store.space();
        GcSpace {
            capacity_bytes: space.capacity,
            free_bytes: space.free,
            reserve_bytes: space.free - self.free_space(),
            kept_bytes: self.kept_space(space.free),
            writers_wait: self.has_space_waiters(),
        }
    }

    /// Whether writes wait for space.
    pub fn has_space_waiters(&self) -> bool {
        self.space_waiters.get() > 0
    }

    /// Counts as one who waits for space until the guard is dropped.
    pub fn wait_for_space(self: &Rc<Self>) -> SpaceWaiter {
        self.space_waiters.set(self.space_waiters.get() + 1);
        SpaceWaiter(self.clone())
    }

    /// Whether a file of `capacity` bytes may be opened for new data without breaking a promise.
    pub fn has_space(&self, capacity: u64) -> bool {
        self.free_space() >= capacity
    }

    /// A write found no space.
    pub fn on_full(&self) -> Error {
        self.full_hits.set(self.full_hits.get() + 1);
        Error::full("the store is full: discard blocks or delete a volume, and space comes back in time")
    }

    /// How often a write waited for memory, and how often one found no space.
    pub fn counters(&self) -> (u64, u64) {
        (self.waits.get(), self.full_hits.get())
    }

    /// The account of a segment.
    pub fn segment_space(&self) -> SegmentSpace {
        self.promises.segment()
    }
}

/// See [`Admission::wait_for_space`].
pub struct SpaceWaiter(Rc<Admission>);

impl Drop for SpaceWaiter {
    fn drop(&mut self) {
        self.0.space_waiters.set(self.0.space_waiters.get() - 1);
    }
}

/// Payload of a large write in flight.
pub struct LargeBytes {
    admission: Rc<Admission>,
    bytes: u64,
}

impl Drop for LargeBytes {
    fn drop(&mut self) {
        self.admission.large_bytes.set(self.admission.large_bytes.get() - self.bytes);
        self.admission.on_freed();
    }
}

/// What all segments together were promised. Clones share it.
#[derive(Clone, Default)]
pub struct Promises(Rc<Cell<u64>>);

impl Promises {
    /// The account of one more segment.
    pub fn segment(&self) -> SegmentSpace {
        SegmentSpace { promised_in_all: self.0.clone(), state: RefCell::default() }
    }
}

/// What one segment owes, and was promised, in bytes.
pub struct SegmentSpace {
    promised_in_all: Rc<Cell<u64>>,
    state: RefCell<SpaceState>,
}

#[derive(Default)]
struct SpaceState {
    /// Of writes in flight.
    line: u64,
    /// Of the active cache.
    active: u64,
    /// Of the dumping cache.
    dumping: u64,
    promised: u64,
}

/// The most that a write of `len` bytes at `offset` becomes in a data file.
pub fn owed_bytes(offset: u64, len: u64) -> u64 {
    round_up(offset + len, BLOCK) - round_down(offset, BLOCK)
}

impl SegmentSpace {
    /// Takes `bytes` as owed if they are backed: by `room` in the open file, by what is promised, or by a new promise.
    /// `free` says how much can be promised, and how much is best promised at a time. False: the store is full.
    pub fn owe(&self, bytes: u64, room: u64, free: impl FnOnce() -> (u64, u64)) -> bool {
        let mut state = self.state.borrow_mut();
        let (owed, backed) = (state.owed() + bytes, room + state.promised);
        if owed > backed {
            let missing = round_up(owed - backed, BLOCK);
            let (free, unit) = free();
            let free = round_down(free, BLOCK);
            if free < missing {
                return false;
            }
            let more = missing.max(unit).min(free);
            state.promised += more;
            self.promised_in_all.set(self.promised_in_all.get() + more);
        }
        state.line += bytes;
        true
    }

    /// Takes `bytes` as owed in any case: out of the reserve.
    pub fn owe_unasked(&self, bytes: u64) {
        self.state.borrow_mut().line += bytes;
    }

    /// A write that owed `bytes` failed.
    pub fn on_failed(&self, bytes: u64) {
        self.state.borrow_mut().line -= bytes;
    }

    /// A write that owed `bytes` was applied to the active cache, which cannot become more than `worst` bytes.
    pub fn on_applied(&self, bytes: u64, worst: u64) {
        let mut state = self.state.borrow_mut();
        state.line -= bytes;
        state.active = (state.active + bytes).min(worst);
    }

    /// The active cache became the dumping one.
    pub fn on_dump_begun(&self) {
        let mut state = self.state.borrow_mut();
        state.dumping = std::mem::take(&mut state.active);
    }

    /// The dump was given up: the caches are one again.
    pub fn on_dump_given_up(&self) {
        let mut state = self.state.borrow_mut();
        state.active += std::mem::take(&mut state.dumping);
    }

    /// The dump is done and left `room` in the open file: what is promised and not needed goes back.
    pub fn on_dumped(&self, room: u64) {
        let mut state = self.state.borrow_mut();
        state.dumping = 0;
        let surplus = state.promised.saturating_sub(state.owed().saturating_sub(room));
        state.promised -= surplus;
        self.promised_in_all.set(self.promised_in_all.get() - surplus);
    }

    /// A data file of `capacity` bytes was opened on the promise.
    pub fn on_opened(&self, capacity: u64) {
        let mut state = self.state.borrow_mut();
        let used = capacity.min(state.promised);
        state.promised -= used;
        self.promised_in_all.set(self.promised_in_all.get() - used);
    }

    /// Bytes promised.
    pub fn promised(&self) -> u64 {
        self.state.borrow().promised
    }

    /// Bytes owed.
    pub fn owed(&self) -> u64 {
        self.state.borrow().owed()
    }
}

impl SpaceState {
    fn owed(&self) -> u64 {
        self.line + self.active + self.dumping
    }
}

impl Drop for SegmentSpace {
    fn drop(&mut self) {
        self.promised_in_all.set(self.promised_in_all.get() - self.state.borrow().promised);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_is_backed() {
        let mut prng = base::Prng::new(1);
        for _ in 0..200 {
            let promises = Promises::default();
            let space = promises.segment();
            // What is left in the store, in the open file, and what writes in flight and in the caches owe.
            let (mut free, mut room) = (prng.below(64) * BLOCK, 0);
            let (mut line, mut active, mut dumping) = (Vec::new(), 0, 0);
            for _ in 0..200 {
                match prng.below(5) {
                    0 | 1 => {
                        let bytes = prng.between(1, 4) * BLOCK;
                        if space.owe(bytes, room, || (free - promises.0.get(), 8 * BLOCK)) {
                            line.push(bytes);
                        } else {
                            let needed = line.iter().sum::<u64>() + active + dumping + bytes;
                            assert!(needed > room + space.promised() + free - promises.0.get());
                        }
                    }
                    2 => {
                        if let Some(bytes) = line.pop() {
                            if prng.one_in(4) {
                                space.on_failed(bytes);
                            } else {
                                space.on_applied(bytes, u64::MAX);
                                active += bytes;
                            }
                        }
                    }
                    3 if dumping == 0 => {
                        space.on_dump_begun();
                        dumping = std::mem::take(&mut active);
                    }
                    _ if dumping > 0 && prng.one_in(3) => {
                        space.on_dump_given_up();
                        active += std::mem::take(&mut dumping);
                    }
                    _ => {
                        // The dump writes what it owes, out of the open file and out of new ones on the promise.
                        while dumping > room {
                            dumping -= room;
                            room = space.promised();
                            assert!(room > 0 && room <= free, "the promise covers the dump");
                            free -= room;
                            space.on_opened(room);
                        }
                        room -= dumping;
                        dumping = 0;
                        space.on_dumped(room);
                    }
                }
                assert_eq!(space.owed(), line.iter().sum::<u64>() + active + dumping);
                assert!(space.owed() <= room + space.promised());
                assert!(promises.0.get() <= free && space.promised() == promises.0.get());
            }
            drop(space);
            assert_eq!(promises.0.get(), 0);
        }
    }

    #[test]
    fn overwriting_does_not_owe_more_and_more() {
        let space = Promises::default().segment();
        for _ in 0..1000 {
            space.owe(BLOCK, 0, || (1 << 30, 0));
            space.on_applied(BLOCK, 3 * BLOCK);
        }
        assert_eq!(space.owed(), 3 * BLOCK);
        assert_eq!(owed_bytes(512, 4096), 2 * BLOCK);
    }
}
