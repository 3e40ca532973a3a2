//! The index of one segment: a memtable, frozen memtables on their way to tables, and tables.

use std::cell::{RefCell, RefMut};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use base::{Epoch, FileId, LogSequence, SegmentId};
use runtime::sync::Event;

use super::entry::Entry;
use super::manifest::{SegmentTables, TableInfo};
use super::memtable::Memtable;
use super::table::{Table, join_slots};
use crate::options::EPOCH;
use crate::transaction::FrozenAt;

/// One segment. Shared with jobs and readers that outlast its removal.
pub(super) struct SegmentIndex {
    id: SegmentId,
    /// The ownership under which its tables are written.
    epoch: Epoch,
    state: RefCell<State>,
}

pub(super) struct State {
    /// What new entries are joined into.
    pub memtable: Memtable,
    /// Oldest first: the order in which they are flushed, so that `covers` only grows.
    frozen: VecDeque<Rc<Frozen>>,
    /// Newest first.
    tables: Rc<[Rc<Table>]>,
    covers: LogSequence,
    /// A flush or a merge is at work; one of each at a time.
    pub is_flushing: bool,
    pub is_merging: bool,
    /// The segment was removed from the index; jobs that find this throw their work away.
    pub is_dropped: bool,
    /// Background work that makes, changes or removes its files (flushes apart), and whether more of it may begin.
    at_work: usize,
    is_held: bool,
}

/// Background work on the files of a segment, until it is dropped.
pub struct Work {
    /// None of a segment that the index knows nothing of: it has files, and is not released.
    segment: Option<Rc<SegmentIndex>>,
    done: Event,
}

impl Work {
    pub(super) fn new(segment: Option<Rc<SegmentIndex>>, done: &Event) -> Work {
        if let Some(segment) = &segment {
            segment.borrow_mut().at_work += 1;
        }
        Work { segment, done: done.clone() }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(segment) = &self.segment {
            segment.borrow_mut().at_work -= 1;
            self.done.notify();
        }
    }
}

/// A part of a segment's index at one moment.
pub(super) struct Snapshot {
    /// Entries of each memtable.
    pub memtables: Vec<Vec<Entry>>,
    pub tables: Rc<[Rc<Table>]>,
    /// The block below which the entries of the memtables are all there are.
    pub bound: u32,
}

/// A memtable that takes no more entries.
pub(super) struct Frozen {
    pub memtable: Memtable,
    pub at: FrozenAt,
}

impl SegmentIndex {
    pub fn new(id: SegmentId) -> Self {
        Self::restored(id, EPOCH, &SegmentTables::default())
    }

    pub fn restored(id: SegmentId, epoch: Epoch, tables: &SegmentTables) -> Self {
        let open = tables.tables.iter().map(|info| Rc::new(Table::new(id, *info)));
        let state = State {
            memtable: Memtable::default(),
            frozen: VecDeque::new(),
            tables: open.collect(),
            covers: tables.covers,
            is_flushing: false,
            is_merging: false,
            is_dropped: false,
            at_work: 0,
            is_held: false,
        };
        SegmentIndex { id, epoch, state: RefCell::new(state) }
    }

    pub fn id(&self) -> SegmentId {
        self.id
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// No more work begins, or it may again.
    pub fn hold(&self, is_held: bool) {
        self.state.borrow_mut().is_held = is_held;
    }

    pub fn is_held(&self) -> bool {
        self.state.borrow().is_held
    }

    /// Whether nothing changes its files: no work, and no flush.
    pub fn is_still(&self) -> bool {
        let state = self.state.borrow();
        state.at_work == 0 && !state.is_flushing
    }

    pub fn borrow_mut(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }

    /// Joins what memory knows of `blocks` into `slots`, and returns the tables to ask besides: together a snapshot.
    pub fn overlay_memory(&self, blocks: &Range<u32>, slots: &mut [Option<Entry>]) -> Rc<[Rc<Table>]> {
        let state = self.state.borrow();
        for memtable in state.memtables() {
            memtable.overlapping(blocks.clone()).for_each(|entry| join_slots(entry, blocks, slots));
        }
        state.tables.clone()
    }

    /// What a scan from `from` on starts with: up to `limit` entries of each memtable, and the tables.
    pub fn snapshot(&self, from: u32, limit: usize) -> Snapshot {
        let state = self.state.borrow();
        let mut snapshot = Snapshot { memtables: Vec::new(), tables: state.tables.clone(), bound: u32::MAX };
        for memtable in state.memtables() {
            let mut rest = memtable.overlapping(from..u32::MAX);
            let part: Vec<Entry> = rest.by_ref().take(limit).map(|entry| entry.clipped(from, u32::MAX)).collect();
            snapshot.bound = snapshot.bound.min(rest.next().map_or(u32::MAX, |entry| entry.block));
            snapshot.memtables.push(part);
        }
        snapshot
    }

    pub fn freeze(&self, at: FrozenAt) {
        let mut state = self.state.borrow_mut();
        if state.memtable.is_empty() && state.frozen.is_empty() {
            // Everything below is in tables already.
            state.covers = state.covers.max(at.covers);
            state.on_nothing_new(at);
            return;
        }
        let memtable = std::mem::take(&mut state.memtable);
        state.frozen.push_back(Rc::new(Frozen { memtable, at }));
    }

    pub fn oldest_frozen(&self) -> Option<Rc<Frozen>> {
        self.state.borrow().frozen.front().cloned()
    }

    pub fn has_frozen(&self) -> bool {
        !self.state.borrow().frozen.is_empty()
    }

    pub fn newest_frozen(&self) -> Option<Rc<Frozen>> {
        self.state.borrow().frozen.back().cloned()
    }

    /// Whether `frozen` still waits to be flushed.
    pub fn is_frozen(&self, frozen: &Rc<Frozen>) -> bool {
        self.state.borrow().frozen.iter().any(|other| Rc::ptr_eq(other, frozen))
    }

    /// Bytes of the memtable and the frozen ones.
    pub fn memory_bytes(&self) -> u64 {
        self.state.borrow().memtables().map(Memtable::bytes).sum()
    }

    pub fn tables(&self) -> Rc<[Rc<Table>]> {
        self.state.borrow().tables.clone()
    }

    pub fn manifest(&self) -> SegmentTables {
        let state = self.state.borrow();
        SegmentTables { tables: state.tables.iter().map(|table| table.info()).collect(), covers: state.covers }
    }

    /// The oldest frozen memtable became a table (or had nothing to say). Returns the bytes of memory given back.
    pub fn install_flushed(&self, frozen: &Rc<Frozen>, table: Option<TableInfo>) -> u64 {
        let mut state = self.state.borrow_mut();
        let oldest = state.frozen.pop_front();
        assert!(oldest.is_some_and(|oldest| Rc::ptr_eq(&oldest, frozen)), "frozen memtables are flushed in order");
        state.change_tables(self.id, table.as_slice(), &[], frozen.at.covers);
        if table.is_none() {
            state.on_nothing_new(frozen.at);
        }
        frozen.memtable.bytes()
    }

    /// A merge took the place of `removed`.
    pub fn install_merged(&self, added: &[TableInfo], removed: &[FileId]) {
        self.state.borrow_mut().change_tables(self.id, added, removed, LogSequence(0));
    }

    /// Marks the segment as removed and returns its table files.
    pub fn drop_all(&self) -> Vec<FileId> {
        let mut state = self.state.borrow_mut();
        state.is_dropped = true;
        state.memtable = Memtable::default();
        state.frozen.clear();
        let tables = std::mem::replace(&mut state.tables, Rc::from([]));
        tables.iter().map(|table| table.info().file).collect()
    }
}

impl State {
    fn memtables(&self) -> impl Iterator<Item = &Memtable> {
        std::iter::once(&self.memtable).chain(self.frozen.iter().rev().map(|frozen| &frozen.memtable))
    }

    /// The tables hold all there was at a freeze.
    fn on_nothing_new(&self, at: FrozenAt) {
        if let Some(newest) = self.tables.first().filter(|_| at.quiet) {
            newest.set_quiet();
        }
    }

    fn change_tables(&mut self, id: SegmentId, added: &[TableInfo], removed: &[FileId], covers: LogSequence) {
        let old = std::mem::replace(&mut self.tables, Rc::from([]));
        let infos = old.iter().map(|table| table.info()).collect();
        let mut manifest = SegmentTables { tables: infos, covers: self.covers };
        manifest.apply(added, removed, covers);
        let open = manifest.tables.iter().map(|info| {
            let kept = old.iter().find(|table| table.info().file == info.file);
            kept.cloned().unwrap_or_else(|| Rc::new(Table::new_counted(id, *info)))
        });
        self.tables = open.collect();
        self.covers = manifest.covers;
    }
}
