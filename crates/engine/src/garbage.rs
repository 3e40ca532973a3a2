//! How much of each data file is garbage: the ledger that garbage collection decides by.
//!
//! **Intuition.** A log-structured store learns late that a block is garbage: when the memtable replaces its entry,
//! or when a merge sees the old and the new entry side by side. So the ledger keeps for every data file the number of
//! index entries that name it, its **references**, over memtables, frozen memtables and tables. The winner of every
//! block is among them: references are an upper bound of the live blocks, and a closed file without references is
//! dead. The bound is loose while old entries wait for a merge. A **count**, a scan over all winners of a segment,
//! makes it exact; and since live blocks of a closed file only become fewer, the lower of the two is used.
//!
//! **Names.** *Open*: still appended to, or named by records in flight. *Closed*: nothing new will ever name it.
//! *Stale*: blocks of a segment that were written or discarded since its last count: so much may be wrong.
//!
//! **Flow.** The write side and GC report [`Garbage::opened`], [`Garbage::appended`], [`Garbage::closed`]; the index
//! reports every reference that comes and goes; GC asks for [`Garbage::files`], reports what it counted, and at the
//! end [`Garbage::removed`].
//!
//! References of tables that were restored at a start are learned later, from the tables' summaries; the index says
//! of a segment when all are known, and only then may its files be taken for dead.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{BLOCK, FileId, Instant, Map, SegmentId};
use runtime::sync::Event;

use crate::index::memtable::References;

/// Each time so many blocks more are stale, GC looks whether a count is worth it: 16 MiB.
const STALE_NEWS_BLOCKS: u64 = 4096;

/// The ledger of one engine. Clones share it.
#[derive(Clone, Default)]
pub struct Garbage(Rc<Inner>);

#[derive(Default)]
struct Inner {
    ledger: RefCell<Ledger>,
    changed: Event,
}

#[derive(Default)]
struct Ledger {
    /// Files that are known, and files that only stale entries still name.
    files: Map<FileId, File>,
    segments: BTreeMap<SegmentId, Segment>,
}

#[derive(Default)]
struct Segment {
    files: BTreeSet<FileId>,
    stale_blocks: u64,
}

#[derive(Default)]
struct File {
    /// Index entries that name it. Negative for a moment while summaries are being read.
    references: i64,
    known: Option<Known>,
}

struct Known {
    segment: SegmentId,
    capacity_bytes: u64,
    written_blocks: u64,
    /// What the last count found, once it was closed.
    counted_blocks: Option<u64>,
    is_closed: bool,
    generation: u8,
    written_at: Instant,
}

/// What is known of one data file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileGarbage {
    /// The file.
    pub file: FileId,
    /// The segment that it belongs to.
    pub segment: SegmentId,
    /// Bytes that its removal frees.
    pub capacity_bytes: u64,
    /// Blocks that were appended.
    pub written_blocks: u64,
    /// Blocks that may be live: an upper bound.
    pub live_blocks_max: u64,
    /// Whether nothing new will ever name it.
    pub is_closed: bool,
    /// How often GC has moved what it holds. A restart forgets that.
    pub generation: u8,
    /// When what it holds was written, about. A restart forgets that, too.
    pub written_at: Instant,
}

impl Garbage {
    /// An empty ledger.
    pub fn new() -> Self {
        Self::default()
    }

    /// Completes when a file was closed or found to have no references, or much became stale.
    pub fn changed(&self) -> &Event {
        &self.0.changed
    }

    /// A data file of `segment` exists, open. Before any entry names it.
    pub fn opened(&self, segment: SegmentId, file: FileId, capacity_bytes: u64) {
        let mut ledger = self.0.ledger.borrow_mut();
        ledger.segments.entry(segment).or_default().files.insert(file);
        let known = Known {
            segment,
            capacity_bytes,
            written_blocks: 0,
            counted_blocks: None,
            is_closed: false,
            generation: 0,
            written_at: Instant::ZERO,
        };
        let old = ledger.files.entry(file).or_default().known.replace(known);
        assert!(old.is_none(), "file {file} is opened once");
        drop(ledger);
        // There is less space now.
        self.0.changed.notify();
    }

    /// An open file holds what GC moved: `generation` times, and written at about `written_at`.
    pub fn set_origin(&self, file: FileId, generation: u8, written_at: Instant) {
        if let Some(known) = self.0.ledger.borrow_mut().known_mut(file) {
            (known.generation, known.written_at) = (generation, written_at);
        }
    }

    /// `blocks` were appended to an open file.
    pub fn appended(&self, file: FileId, blocks: u64) {
        if let Some(known) = self.0.ledger.borrow_mut().known_mut(file) {
            known.written_blocks += blocks;
        }
    }

    /// `file` ends behind its first `blocks`: what was appended behind them never landed.
    pub fn ended(&self, file: FileId, blocks: u64) {
        if let Some(known) = self.0.ledger.borrow_mut().known_mut(file) {
            known.written_blocks = known.written_blocks.min(blocks);
        }
    }

    /// Nothing more is appended to `file`, every record that names blocks of it has been applied or given up, and its
    /// removal frees `capacity_bytes`. Repetitions do nothing.
    pub fn closed(&self, file: FileId, capacity_bytes: u64, now: Instant) {
        if let Some(known) = self.0.ledger.borrow_mut().known_mut(file)
            && !known.is_closed
        {
            known.capacity_bytes = capacity_bytes;
            known.is_closed = true;
            if known.generation == 0 {
                known.written_at = now;
            }
        }
        self.0.changed.notify();
    }

    /// A file was removed, or will be by an intent on record: it is no longer garbage.
    pub fn removed(&self, file: FileId) {
        self.0.ledger.borrow_mut().forget(file);
    }

    /// Forgets a segment and returns its data files, for removal.
    pub fn remove_segment(&self, segment: SegmentId) -> Vec<FileId> {
        let mut ledger = self.0.ledger.borrow_mut();
        let files: Vec<FileId> =
            ledger.segments.get(&segment).map(|s| s.files.iter().copied().collect()).unwrap_or_default();
        files.iter().for_each(|&file| ledger.forget(file));
        ledger.segments.remove(&segment);
        files
    }

    /// Blocks of `segment` were written or discarded: as many may have become garbage unseen.
    pub fn add_stale(&self, segment: SegmentId, blocks: u64) {
        let mut ledger = self.0.ledger.borrow_mut();
        let stale = &mut ledger.segments.entry(segment).or_default().stale_blocks;
        let before = *stale / STALE_NEWS_BLOCKS;
        *stale += blocks;
        let is_news = *stale / STALE_NEWS_BLOCKS > before;
        drop(ledger);
        if is_news {
            self.0.changed.notify();
        }
    }

    /// The result of a count that began when `stale_before` blocks were stale: how many winners name each file.
    /// `counted` must hold for files that were closed when the count began; others are passed over.
    pub fn counted(&self, segment: SegmentId, stale_before: u64, closed: &[FileId], live: &Map<FileId, u64>) {
        let mut ledger = self.0.ledger.borrow_mut();
        if let Some(segment) = ledger.segments.get_mut(&segment) {
            segment.stale_blocks = segment.stale_blocks.saturating_sub(stale_before);
        }
        for &file in closed {
            if let Some(known) = ledger.known_mut(file) {
                let found = live.get(&file).copied().unwrap_or(0);
                known.counted_blocks = Some(known.counted_blocks.map_or(found, |before| before.min(found)));
            }
        }
    }

    /// Blocks of `segment` that were written or discarded since its last count.
    pub fn stale_blocks(&self, segment: SegmentId) -> u64 {
        self.0.ledger.borrow().segments.get(&segment).map_or(0, |segment| segment.stale_blocks)
    }

    /// Every segment that has files, with its stale blocks.
    pub fn segments(&self) -> Vec<(SegmentId, u64)> {
        let ledger = self.0.ledger.borrow();
        let with_files = ledger.segments.iter().filter(|(_, segment)| !segment.files.is_empty());
        with_files.map(|(&id, segment)| (id, segment.stale_blocks)).collect()
    }

    /// What is known of `file`; `None` once it was removed.
    pub fn file(&self, file: FileId) -> Option<FileGarbage> {
        self.0.ledger.borrow().file(file)
    }

    /// The data files of `segment`, by id.
    pub fn files(&self, segment: SegmentId) -> Vec<FileGarbage> {
        let ledger = self.0.ledger.borrow();
        let files = ledger.segments.get(&segment).into_iter().flat_map(|segment| &segment.files);
        files.filter_map(|&file| ledger.file(file)).collect()
    }

    /// Bytes of closed files that are surely garbage.
    pub fn bytes(&self) -> u64 {
        let ledger = self.0.ledger.borrow();
        let closed = ledger.files.keys().filter_map(|&file| ledger.file(file)).filter(|file| file.is_closed);
        closed.map(|file| (file.written_blocks - file.live_blocks_max) * BLOCK).sum()
    }

    /// `entries` index entries that name `file` were learned of from a table's summary.
    pub fn add_references(&self, file: FileId, entries: u64) {
        self.0.ledger.borrow_mut().change_references(file, entries.cast_signed());
    }

    /// Entries that name `file` and are gone: a merge dropped them.
    pub fn drop_references(&self, file: FileId, entries: u64) {
        if self.0.ledger.borrow_mut().change_references(file, -entries.cast_signed()) {
            self.0.changed.notify();
        }
    }

    /// A ledger borrowed for many changes at once, as a join makes them.
    pub fn with_references<R>(&self, change: impl FnOnce(&mut dyn References) -> R) -> R {
        let mut changes = Changes { ledger: &mut self.0.ledger.borrow_mut(), any_dead: false };
        let result = change(&mut changes);
        if changes.any_dead {
            self.0.changed.notify();
        }
        result
    }

    /// Index entries that name `file`, as far as they are known.
    pub fn references(&self, file: FileId) -> i64 {
        self.0.ledger.borrow().files.get(&file).map_or(0, |file| file.references)
    }
}

impl Ledger {
    fn known_mut(&mut self, file: FileId) -> Option<&mut Known> {
        self.files.get_mut(&file)?.known.as_mut()
    }

    fn file(&self, id: FileId) -> Option<FileGarbage> {
        let file = self.files.get(&id)?;
        let known = file.known.as_ref()?;
        // Below zero: entries are gone of which the summary is still being read.
        let references = u64::try_from(file.references).unwrap_or(u64::MAX);
        Some(FileGarbage {
            file: id,
            segment: known.segment,
            capacity_bytes: known.capacity_bytes,
            written_blocks: known.written_blocks,
            live_blocks_max: known.counted_blocks.unwrap_or(u64::MAX).min(references).min(known.written_blocks),
            is_closed: known.is_closed,
            generation: known.generation,
            written_at: known.written_at,
        })
    }

    fn forget(&mut self, id: FileId) {
        let Some(file) = self.files.get_mut(&id) else { return };
        if let Some(known) = file.known.take()
            && let Some(segment) = self.segments.get_mut(&known.segment)
        {
            segment.files.remove(&id);
        }
        // Hidden entries may name it for some time.
        if file.references == 0 {
            self.files.remove(&id);
        }
    }

    /// Whether a closed file lost its last reference.
    fn change_references(&mut self, id: FileId, change: i64) -> bool {
        let file = self.files.entry(id).or_default();
        file.references += change;
        if file.references != 0 {
            return false;
        }
        match &file.known {
            Some(known) => known.is_closed,
            None => {
                self.files.remove(&id);
                false
            }
        }
    }
}

struct Changes<'a> {
    ledger: &'a mut Ledger,
    any_dead: bool,
}

impl References for Changes<'_> {
    fn added(&mut self, file: FileId) {
        self.ledger.change_references(file, 1);
    }

    fn removed(&mut self, file: FileId) {
        self.any_dead |= self.ledger.change_references(file, -1);
    }
}

#[cfg(test)]
mod tests {
    use base::VolumeId;

    use super::*;

    /// Were it taken for dead, a restart whose summaries are read late would remove live data.
    #[test]
    fn a_file_with_references_below_zero_is_not_dead() {
        let (garbage, file) = (Garbage::new(), FileId(1));
        let segment = SegmentId { volume: VolumeId(1), index: 0 };
        garbage.opened(segment, file, 1 << 20);
        garbage.appended(file, 5);
        garbage.closed(file, 1 << 20, Instant::ZERO);
        garbage.drop_references(file, 2);
        assert_eq!(garbage.file(file).unwrap().live_blocks_max, 5);
        garbage.add_references(file, 5);
        assert_eq!(garbage.file(file).unwrap().live_blocks_max, 3);
        assert_eq!(garbage.bytes(), 2 * 4096);
        garbage.drop_references(file, 3);
        assert_eq!(garbage.file(file).unwrap().live_blocks_max, 0);
    }
}
