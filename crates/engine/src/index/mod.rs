//! The index: for every block of every segment, where its newest content is (EBS, FAST 2024, §2.2: an LSM-tree).
//!
//! **Intuition.** An index entry says where a block is and how new that is; of all entries for a block the newest
//! counts, wherever it stands ([`entry`]). So there is nothing to keep in order: entries are joined into a
//! [`memtable`]; a full memtable is *frozen* and *flushed* into a sorted immutable [`table`]; tables are *merged*
//! into fewer; a lookup joins what all of them say. The transaction log is the memtable's write-ahead log.
//!
//! **Names.** *Freeze*: the memtable becomes read-only and a new one takes its place. *Covers*: the log position from
//! which a replay must start once the frozen memtable is a table. *Quiet*: nothing of the segment was in flight at
//! the freeze. *Tombstone*: an entry that says "zeros".
//!
//! **Invariants.** The answer for a block is the join of all entries ever applied to it, except that a tombstone may
//! be gone once nothing older can exist or arrive: in a merge of all tables of the segment of which the newest is
//! quiet. Tables are listed newest first, but nothing depends on it. Memory: memtables are bounded together
//! ([`Index::room`]), pages by the page cache, an open table by a few hundred bytes.
//!
//! **Flow.** `apply` (synchronous) -> memtable -> `freeze` -> `flush` -> table -> `merge` ([`jobs`], driven by
//! [`maintenance`]). Every change of the table set is a record in the transaction log first. `lookup` and `scan` take
//! a snapshot without waiting, then read pages; files that leave the index meanwhile are kept by pins.

pub mod entry;
pub mod jobs;
pub mod maintenance;
pub mod manifest;
pub mod memtable;
pub mod page_cache;
mod scan;
mod segment;
pub mod sweep;
pub mod table;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use base::limits::SEGMENT_BLOCKS;
use base::{Epoch, FileId, Map, Result, SegmentId, Set, VolumeId};
use runtime::sync::Event;

use crate::garbage::Garbage;
use crate::options::{EPOCH, Ownership};
use crate::patience::Patience;
use crate::transaction::{FrozenAt, TransactionSink};
use crate::verified::{Checked, VerifiedFiles};

pub use entry::{Entry, Mapping, Version};
pub use manifest::{SegmentTables, TableInfo};
pub use scan::Scan;
pub use segment::Work;

use memtable::ENTRY_BYTES;
use page_cache::{PageCache, PageCacheStatistics};
use segment::SegmentIndex;

/// Settings of an index.
#[derive(Clone, Copy, Debug)]
pub struct IndexOptions {
    /// Bytes of pages kept in memory.
    pub page_cache_bytes: u64,
    /// Bytes of memtables, frozen ones included, of all segments together.
    pub memtable_bytes_max: u64,
    /// Copies of every table.
    pub copies: u8,
    /// Whether files say which segment they are of.
    pub ownership: Ownership,
}

/// The index of all segments of an engine. Clones share it.
#[derive(Clone)]
pub struct Index(Rc<Inner>);

struct Inner {
    options: IndexOptions,
    files: VerifiedFiles,
    pages: Rc<PageCache>,
    garbage: Garbage,
    segments: RefCell<Map<SegmentId, Rc<SegmentIndex>>>,
    memtable_bytes: Cell<u64>,
    /// A memtable grew past a bound, was frozen or flushed.
    changed: Event,
    /// Nothing is flushed or merged any more.
    ended: Cell<bool>,
    /// Of those who wait for a flush.
    patience: Patience,
    /// Segments with frozen memtables.
    frozen: RefCell<BTreeSet<SegmentId>>,
    /// Segments whose tables changed since they were last looked at for a merge.
    merge_candidates: RefCell<BTreeSet<SegmentId>>,
    tables_changed: Event,
    /// Tables that were in a merge which met a page that no copy has.
    unmergeable: RefCell<Set<FileId>>,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    flushes: Cell<u64>,
    merges: Cell<u64>,
    table_bytes_written: Cell<u64>,
    tombstones_dropped: Cell<u64>,
}

/// What an index did since the start, and what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IndexStatistics {
    /// Bytes of memtables, frozen ones included.
    pub memtable_bytes: u64,
    /// Memtables that became tables.
    pub flushes: u64,
    /// Merges of tables.
    pub merges: u64,
    /// Bytes of tables written by both, one copy counted.
    pub table_bytes_written: u64,
    /// Tombstones that merges dropped.
    pub tombstones_dropped: u64,
    /// The page cache.
    pub pages: PageCacheStatistics,
}

impl IndexStatistics {
    /// Adds the index of another engine.
    pub(crate) fn merge(&mut self, other: &IndexStatistics) {
        let IndexStatistics { memtable_bytes, flushes, merges, table_bytes_written, tombstones_dropped, pages } = other;
        self.memtable_bytes += memtable_bytes;
        self.flushes += flushes;
        self.merges += merges;
        self.table_bytes_written += table_bytes_written;
        self.tombstones_dropped += tombstones_dropped;
        self.pages.merge(pages);
    }
}

impl Index {
    /// An empty index over `files`, which reports references to data files to `garbage`.
    pub fn new(files: &VerifiedFiles, garbage: &Garbage, options: IndexOptions) -> Index {
        Index(Rc::new(Inner {
            options,
            files: files.clone(),
            pages: Rc::new(PageCache::new(files.clone(), options.page_cache_bytes)),
            garbage: garbage.clone(),
            segments: RefCell::default(),
            memtable_bytes: Cell::new(0),
            changed: Event::new(),
            ended: Cell::new(false),
            patience: Patience::default(),
            frozen: RefCell::default(),
            merge_candidates: RefCell::default(),
            tables_changed: Event::new(),
            unmergeable: RefCell::default(),
            counters: Counters::default(),
        }))
    }

    /// The files it reads.
    pub fn files(&self) -> &VerifiedFiles {
        &self.0.files
    }

    /// The ledger it reports to.
    pub fn garbage(&self) -> &Garbage {
        &self.0.garbage
    }

    /// Joins `entries` into the memtable of `segment`. What is newer already, here or in a table, stays. Visible to
    /// every lookup that starts afterwards.
    pub fn apply(&self, segment: SegmentId, entries: &[Entry]) {
        self.join(&self.segment_or_new(segment), entries);
        let blocks = entries.iter().map(|entry| u64::from(entry.count)).sum();
        self.0.garbage.add_stale(segment, blocks);
    }

    /// The same for blocks that GC moved: nothing became garbage unseen, and the segment may have been dropped
    /// meanwhile.
    pub fn apply_relocated(&self, segment: SegmentId, entries: &[Entry]) {
        if let Some(segment) = self.segment(segment) {
            self.join(&segment, entries);
        }
    }

    fn join(&self, segment: &SegmentIndex, entries: &[Entry]) {
        let grown = self.0.garbage.with_references(|references| {
            let mut state = segment.borrow_mut();
            let before = state.memtable.len();
            for entry in entries {
                state.memtable.join(*entry, references);
            }
            state.memtable.len() as i64 - before as i64
        });
        let bytes = self.0.memtable_bytes.get().saturating_add_signed(grown * ENTRY_BYTES as i64);
        self.0.memtable_bytes.set(bytes);
        if self.wants_flush() {
            self.0.changed.notify();
        }
    }

    /// What is mapped in `blocks`, by block: runs without content (`None`) or of one entry, clipped; every block is in
    /// one of them.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: a page of a table could not be read with proof.
    pub async fn lookup(&self, segment: SegmentId, blocks: Range<u32>) -> Result<Vec<(Range<u32>, Option<Entry>)>> {
        let mut slots = vec![None; blocks.len()];
        self.lookup_into(segment, blocks.clone(), &mut slots).await?;
        let mut runs: Vec<(Range<u32>, Option<Entry>)> = Vec::new();
        for (block, slot) in blocks.zip(slots) {
            if let Some((run, last)) = runs.last_mut()
                && is_continued(last.as_mut(), slot.as_ref())
            {
                run.end = block + 1;
                continue;
            }
            runs.push((block..block + 1, slot));
        }
        Ok(runs)
    }

    /// What is mapped at `block`, as an entry of one block.
    ///
    /// # Errors
    /// As [`Index::lookup`].
    pub async fn lookup_block(&self, segment: SegmentId, block: u32) -> Result<Option<Entry>> {
        let mut slot = [None];
        self.lookup_into(segment, block..block + 1, &mut slot).await?;
        Ok(slot[0])
    }

    /// What is mapped at each of `blocks`, one slot for each. The snapshot is taken at the first poll, before anything
    /// is waited for.
    ///
    /// # Errors
    /// As [`Index::lookup`].
    pub async fn lookup_into(&self, segment: SegmentId, blocks: Range<u32>, slots: &mut [Option<Entry>]) -> Result<()> {
        assert_eq!(blocks.len(), slots.len(), "a slot for each block");
        let Some(segment) = self.segment(segment) else { return Ok(()) };
        let _pin = self.0.files.pin();
        let tables = segment.overlay_memory(&blocks, slots);
        for table in tables.iter() {
            // A table with an entry of the same version still counts: of two places the later one wins.
            let newest = table.version_max();
            if slots.iter().all(|slot| slot.is_some_and(|best| best.version > newest)) {
                continue;
            }
            table.overlay(&self.0.pages, blocks.clone(), slots).await?;
        }
        Ok(())
    }

    /// Freezes the memtable of `segment`: what was applied so far is flushed together. `at` is true at this moment.
    pub fn freeze(&self, segment: SegmentId, at: FrozenAt) {
        if let Some(index) = self.segment(segment) {
            index.freeze(at);
            if index.has_frozen() {
                self.0.frozen.borrow_mut().insert(segment);
            }
            self.0.changed.notify();
        }
    }

    /// Segments with anything that is not in a table yet, frozen memtables included, with its bytes: the largest
    /// first.
    pub fn memtables(&self) -> Vec<(SegmentId, u64)> {
        let segments = self.0.segments.borrow();
        let mut sizes: Vec<(SegmentId, u64)> = segments.iter().map(|(&id, s)| (id, s.memory_bytes())).collect();
        sizes.retain(|&(id, bytes)| bytes > 0 || segments[&id].has_frozen());
        sizes.sort_by_key(|&(id, bytes)| (std::cmp::Reverse(bytes), id));
        sizes
    }

    /// Bytes of all memtables, frozen ones included.
    pub fn memtable_bytes(&self) -> u64 {
        self.0.memtable_bytes.get()
    }

    /// Waits until the memtables are below their bound, or never will be again. Who is about to log records with
    /// entries waits here first.
    ///
    /// # Errors
    /// `Full`, `Io`: flushes have failed for longer than writers wait.
    pub async fn room(&self) -> Result<()> {
        while self.0.memtable_bytes.get() >= self.0.options.memtable_bytes_max && !self.0.ended.get() {
            let changed = self.0.changed.wait();
            self.0.patience.check()?;
            changed.await;
        }
        Ok(())
    }

    /// Nothing can be flushed or merged any more: nobody waits for it from here on, and nobody tries.
    pub fn end(&self) {
        self.0.ended.set(true);
        self.0.changed.notify();
        self.0.tables_changed.notify();
    }

    /// Whether memtables are far above their bound: what does not wait for [`Index::room`] must rest.
    pub fn is_overfull(&self) -> bool {
        self.0.memtable_bytes.get() >= 2 * self.0.options.memtable_bytes_max
    }

    /// Whether memtables should be flushed: they hold half of what they may.
    pub fn wants_flush(&self) -> bool {
        self.0.memtable_bytes.get() * 2 > self.0.options.memtable_bytes_max
    }

    /// Reports to the ledger which data files the tables of `segment` name, where that is not known since the start.
    /// Returns whether it is complete now; false means that another task is on its way.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub async fn count_references(&self, segment: SegmentId) -> Result<bool> {
        let Some(segment) = self.segment(segment) else { return Ok(true) };
        let _pin = self.0.files.pin();
        let mut is_complete = true;
        for table in segment.tables().iter() {
            is_complete &= table.count_references(&self.0.pages, &self.0.garbage).await?;
        }
        Ok(is_complete)
    }

    /// Whether the ledger knows of all that the tables of `segment` name.
    pub fn references_are_known(&self, segment: SegmentId) -> bool {
        let Some(segment) = self.segment(segment) else { return true };
        segment.tables().iter().all(|table| table.references_are_counted())
    }

    /// Whether anything is known of `segment`; not any more once its volume was dropped.
    pub fn contains(&self, segment: SegmentId) -> bool {
        self.segment(segment).is_some()
    }

    /// The ownership under which files of `segment` are written.
    pub fn epoch(&self, segment: SegmentId) -> Epoch {
        self.segment(segment).map_or(EPOCH, |segment| segment.epoch())
    }

    /// What a new file of `segment` says of whose it is.
    pub fn named(&self, segment: SegmentId) -> Option<SegmentId> {
        self.0.options.ownership.named(segment)
    }

    /// The tables of `segment`, for a checkpoint.
    pub fn tables(&self, segment: SegmentId) -> SegmentTables {
        self.segment(segment).map(|segment| segment.manifest()).unwrap_or_default()
    }

    /// Proves pages of one of them in every copy: [`Table::check_pages`].
    pub async fn check_pages(&self, segment: SegmentId, table: &TableInfo, at: u32, count: u32) -> Option<Checked> {
        table::Table::new(segment, *table).check_pages(&self.0.files, at, count).await
    }

    /// Every segment that has anything, by id.
    pub fn segments(&self) -> Vec<SegmentId> {
        let mut ids: Vec<SegmentId> = self.0.segments.borrow().keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Gives `segment`, which is owned under `epoch`, the tables that a checkpoint and the records after it say. Before
    /// anything is applied to it.
    pub fn restore(&self, segment: SegmentId, epoch: Epoch, tables: &SegmentTables) {
        let restored = SegmentIndex::restored(segment, epoch, tables);
        // One table has no hidden entries: what names a file there is live.
        if let [_, _, ..] = tables.tables[..] {
            let entries = tables.tables.iter().map(|table| u64::from(table.entries)).sum();
            self.0.garbage.add_stale(segment, entries);
        }
        let old = self.0.segments.borrow_mut().insert(segment, Rc::new(restored));
        assert!(old.is_none(), "a segment is restored once, before it is used");
        self.0.merge_candidates.borrow_mut().insert(segment);
    }

    /// Forgets every segment of `volume`, and removes their tables and data files when no reader is left. The intent
    /// is on record. A file that cannot be removed now is found unreferenced by the next start.
    pub fn drop_volume(&self, volume: VolumeId) {
        self.drop_segments(|id| id.volume == volume);
    }

    /// The same for one segment.
    pub fn drop_segment(&self, segment: SegmentId) {
        self.drop_segments(|id| id == segment);
    }

    fn drop_segments(&self, is_dropped: impl Fn(SegmentId) -> bool) {
        let dropped: Vec<SegmentId> = self.segments().into_iter().filter(|id| is_dropped(*id)).collect();
        let mut files = Vec::new();
        for id in dropped {
            if let Some(segment) = self.0.segments.borrow_mut().remove(&id) {
                let bytes = self.0.memtable_bytes.get() - segment.memory_bytes();
                self.0.memtable_bytes.set(bytes);
                files.extend(segment.drop_all());
            }
            files.extend(self.0.garbage.remove_segment(id));
            self.0.frozen.borrow_mut().remove(&id);
        }
        self.0.changed.notify();
        self.0.files.delete_in_background(files);
    }

    /// Background work that makes, changes or removes files of `segment` begins. `None`: not now, because it is about
    /// to be released.
    pub fn begin_work(&self, segment: SegmentId) -> Option<Work> {
        let segment = self.segment(segment);
        let is_held = segment.as_ref().is_some_and(|segment| segment.is_held());
        (!is_held).then(|| Work::new(segment, &self.0.changed))
    }

    /// Whether no background work may begin on `segment`.
    pub fn is_held(&self, segment: SegmentId) -> bool {
        self.segment(segment).is_some_and(|segment| segment.is_held())
    }

    /// Lets no more background work on `segment` begin, and returns when none is under way and everything that was
    /// applied to it is in tables.
    ///
    /// # Errors
    /// `Full`, `Io`, `Fenced`: it was not flushed.
    pub async fn settle(&self, segment: SegmentId, sink: &dyn TransactionSink) -> Result<()> {
        let Some(index) = self.segment(segment) else { return Ok(()) };
        index.hold(true);
        loop {
            let changed = self.0.changed.wait();
            if index.is_still() {
                break;
            }
            changed.await;
        }
        self.freeze(segment, sink.frozen_at(segment));
        self.flush_frozen(segment, sink).await
    }

    /// Lets background work on `segment` begin again.
    pub fn resume(&self, segment: SegmentId) {
        if let Some(index) = self.segment(segment) {
            index.hold(false);
            self.on_tables_changed(segment);
            self.0.garbage.changed().notify();
        }
    }

    /// Knows nothing of `segment` any more; its files stay for whoever has it now. Nothing is at work on it.
    pub fn forget(&self, segment: SegmentId) {
        if let Some(index) = self.0.segments.borrow_mut().remove(&segment) {
            self.0.memtable_bytes.set(self.0.memtable_bytes.get() - index.memory_bytes());
            index.drop_all();
        }
        self.0.garbage.remove_segment(segment);
        self.0.frozen.borrow_mut().remove(&segment);
        self.0.changed.notify();
    }

    /// Counters, and what is held now.
    pub fn statistics(&self) -> IndexStatistics {
        let counters = &self.0.counters;
        IndexStatistics {
            memtable_bytes: self.0.memtable_bytes.get(),
            flushes: counters.flushes.get(),
            merges: counters.merges.get(),
            table_bytes_written: counters.table_bytes_written.get(),
            tombstones_dropped: counters.tombstones_dropped.get(),
            pages: self.0.pages.statistics(),
        }
    }

    fn segment(&self, segment: SegmentId) -> Option<Rc<SegmentIndex>> {
        self.0.segments.borrow().get(&segment).cloned()
    }

    fn segment_or_new(&self, segment: SegmentId) -> Rc<SegmentIndex> {
        let mut segments = self.0.segments.borrow_mut();
        segments.entry(segment).or_insert_with(|| Rc::new(SegmentIndex::new(segment))).clone()
    }
}

/// Whether the run that ends with `last` goes on with `next`; then `last` covers it, too.
fn is_continued(last: Option<&mut Entry>, next: Option<&Entry>) -> bool {
    match (last, next) {
        (None, None) => true,
        (Some(last), Some(next)) if last.file().is_none() && next.file().is_none() => {
            let same = last.version == next.version;
            last.count += u32::from(same);
            same
        }
        _ => false,
    }
}

const _: () = assert!(SEGMENT_BLOCKS * ENTRY_BYTES < i64::MAX as u64);

#[cfg(test)]
mod tests;
