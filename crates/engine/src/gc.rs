//! Garbage collection: copies what is live out of data files that are mostly garbage, and removes them (EBS, FAST
//! 2024, §2.2).
//!
//! **Intuition.** The index knows which blocks are live, and where; nothing in a data file does. So GC does not read
//! data files to find out: a **pass** scans the index of one segment from left to right, and moves every block whose
//! winner lies in one of the victims. When the scan has come through, no winner names a victim any more, whatever
//! older entries still do; the victims are dead. The same scan counts the live blocks of all other files: a pass
//! without victims is a **count**.
//!
//! **Why a move is safe.** A moved block keeps its sequence and adds one to its moves, so its entry wins over the old
//! place and loses against every write, even one that is applied before it or replayed after it. While a pass looks
//! and moves, it holds [`TransactionSink::relocating`], so that no merge takes a tombstone for the last word while an
//! older block may still be on its way. Blocks are proven when they are read. A victim is removed only after the
//! records of all moves are durable, with an intent in the log, when no reader is left that could know it.
//!
//! **Which, when, how fast** is decided by `policies::gc`. A pass runs in steps of about a megabyte; each step is
//! background work, or `Io` while writers wait for space.
//!
//! **Lifetimes.** What GC moves has survived for long, and will for longer than what is being written now: it goes to
//! files of its own, so that files of fresh data become garbage as a whole. They are made to measure for a pass, and
//! sealed at its end: an idle segment sets aside nothing for GC.

mod pass;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use base::{BLOCK, ErrorKind, FileId, Instant, Map, Result, SegmentId, Set};
use policies::background::{Left, Spare};
use policies::gc::{GcDecision, GcFile, GcSegment, GcSettings, GcView, plan_gc};
use runtime::{Class, Handle, Task};

use crate::data::DataFiles;
use crate::garbage::{FileGarbage, Garbage};
use crate::index::Index;
use crate::transaction::{Record, TransactionSink};
use pass::Pass;

/// Between two decisions while nothing is worth doing.
const REST: Duration = Duration::from_millis(20);
/// After an error.
const REST_AFTER_ERROR: Duration = Duration::from_secs(1);
/// After a pass that found no space: less than the patience of writes that wait for it (see `crate::space`).
const REST_WHEN_FULL: Duration = Duration::from_millis(50);
/// How long a segment is left alone of which the index cannot be read: the others go on.
const REST_OF_SEGMENT: Duration = Duration::from_secs(60);

/// How the collector makes files.
#[derive(Clone, Copy, Debug)]
pub struct GcOptions {
    /// What `policies::gc` decides by.
    pub settings: GcSettings,
    /// Largest data file.
    pub data_file_bytes_max: u64,
    /// Copies of each file.
    pub copies: u8,
}

/// Space as GC sees it, asked before each decision and each step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GcSpace {
    /// Space of the store, in bytes.
    pub capacity_bytes: u64,
    /// What can still be given to files.
    pub free_bytes: u64,
    /// What writes may not take of it.
    pub reserve_bytes: u64,
    /// What GC may not take of it either.
    pub kept_bytes: u64,
    /// Whether writes wait for space, or are refused.
    pub writers_wait: bool,
}

impl GcSpace {
    fn view<'a>(&self, files: &'a [GcFile], segments: &'a [GcSegment]) -> GcView<'a> {
        let GcSpace { capacity_bytes, free_bytes, reserve_bytes, kept_bytes, writers_wait } = *self;
        GcView { capacity_bytes, free_bytes, reserve_bytes, kept_bytes, writers_wait, files, segments }
    }
}

/// What GC did since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GcStatistics {
    /// Passes with victims that came through.
    pub passes: u64,
    /// Passes that only counted.
    pub counts: u64,
    /// Bytes of live blocks that were copied, one copy counted.
    pub moved_bytes: u64,
    /// Data files removed.
    pub removed_files: u64,
    /// Bytes that their removal freed.
    pub freed_bytes: u64,
    /// Files that are left alone because a block of theirs cannot be read with proof, or not be moved.
    pub stuck_files: u64,
}

impl GcStatistics {
    /// Adds what another collector did.
    pub(crate) fn merge(&mut self, other: &GcStatistics) {
        let GcStatistics { passes, counts, moved_bytes, removed_files, freed_bytes, stuck_files } = other;
        self.passes += passes;
        self.counts += counts;
        self.moved_bytes += moved_bytes;
        self.removed_files += removed_files;
        self.freed_bytes += freed_bytes;
        self.stuck_files += stuck_files;
    }
}

/// The collector of an engine. Clones share it.
#[derive(Clone)]
pub struct Gc(Rc<Inner>);

struct Inner {
    handle: Handle,
    index: Index,
    data: DataFiles,
    garbage: Garbage,
    sink: Rc<dyn TransactionSink>,
    space: Box<dyn Fn() -> GcSpace>,
    options: GcOptions,
    /// Files with blocks that cannot be moved; not tried again in this life.
    stuck: RefCell<Set<FileId>>,
    /// Segments with index pages that cannot be read, each with the time when it is tried again.
    resting: RefCell<Map<SegmentId, Instant>>,
    statistics: Cell<GcStatistics>,
    spare: Cell<Spare>,
}

impl Gc {
    /// A collector over `index`. `space` says how much room there is.
    pub fn new(
        index: &Index,
        sink: Rc<dyn TransactionSink>,
        space: impl Fn() -> GcSpace + 'static,
        options: GcOptions,
    ) -> Gc {
        let files = index.files();
        Gc(Rc::new(Inner {
            handle: files.handle().clone(),
            index: index.clone(),
            data: DataFiles::new(files),
            garbage: index.garbage().clone(),
            sink,
            space: Box::new(space),
            options,
            stuck: RefCell::default(),
            resting: RefCell::default(),
            statistics: Cell::default(),
            spare: Cell::default(),
        }))
    }

    /// Says what foreground work leaves of the disks' bandwidth. Holds for a second.
    pub fn set_spare(&self, left: Left) {
        self.0.spare.set(Spare::new(self.0.handle.now(), left));
    }

    /// Starts collecting. Ends when dropped; a pass that was under way is harmless, and begins anew after a restart.
    pub fn spawn(&self) -> Task<()> {
        let this = self.clone();
        self.0.handle.spawn(Class::Background, "gc", async move { this.run().await })
    }

    /// Counters since the start.
    pub fn statistics(&self) -> GcStatistics {
        self.0.statistics.get()
    }

    async fn run(self) {
        self.learn_references().await;
        loop {
            let changed = self.0.garbage.changed().wait();
            let decision = self.plan();
            let segment = match &decision {
                GcDecision::Collect { segment, .. } | GcDecision::Count(segment) => Some(*segment),
                GcDecision::Rest | GcDecision::Remove(_) => None,
            };
            let done = match decision {
                GcDecision::Rest => {
                    changed.await;
                    self.0.handle.sleep(REST).await;
                    continue;
                }
                GcDecision::Remove(files) => self.remove(&files).await,
                GcDecision::Collect { segment, files } => self.pass(segment, files).await,
                GcDecision::Count(segment) => self.pass(segment, Vec::new()).await,
            };
            match (done, segment) {
                (Ok(()), _) => {}
                (Err(error), _) if error.kind == ErrorKind::Retry => self.0.handle.sleep(REST).await,
                (Err(error), Some(segment)) if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Io) => {
                    tracing::error!(%segment, "a segment is not collected for now: {error}");
                    self.0.resting.borrow_mut().insert(segment, self.0.handle.now() + REST_OF_SEGMENT);
                }
                (Err(error), _) if error.kind == ErrorKind::Full => {
                    // What was moved stays moved: the next pass needs less.
                    tracing::debug!("garbage collection rests: {error}");
                    self.0.handle.sleep(REST_WHEN_FULL).await;
                }
                (Err(error), _) if error.kind == ErrorKind::Fenced => return,
                (Err(error), _) => {
                    tracing::warn!("garbage collection rests: {error}");
                    self.0.handle.sleep(REST_AFTER_ERROR).await;
                }
            }
        }
    }

    /// After a start, the ledger learns from the tables which files they name. A segment of which that fails is left
    /// alone until the next start.
    async fn learn_references(&self) {
        for segment in self.0.index.segments() {
            if let Err(error) = self.0.index.count_references(segment).await {
                tracing::error!(%segment, "the garbage of a segment is not known, it is not collected: {error}");
            }
        }
    }

    fn plan(&self) -> GcDecision {
        let (inner, mut files, mut segments) = (&self.0, Vec::new(), Vec::new());
        let (stuck, mut resting, now) = (inner.stuck.borrow(), inner.resting.borrow_mut(), inner.handle.now());
        resting.retain(|_, until| *until > now);
        for (segment, stale_blocks) in inner.garbage.segments() {
            // What is not known to be live for want of summaries must not be taken for garbage.
            let is_known = inner.index.references_are_known(segment);
            if !is_known || resting.contains_key(&segment) || inner.index.is_held(segment) {
                continue;
            }
            let of_segment = inner.garbage.files(segment);
            let written_bytes = of_segment.iter().map(|file| file.written_blocks * BLOCK).sum();
            segments.push(GcSegment { segment, stale_bytes: stale_blocks * BLOCK, written_bytes });
            let closed = of_segment.iter().filter(|file| file.is_closed && !stuck.contains(&file.file));
            files.extend(closed.map(|file| GcFile {
                file: file.file,
                segment,
                capacity_bytes: file.capacity_bytes,
                live_bytes_max: file.live_blocks_max * BLOCK,
                written_at: file.written_at,
                generation: file.generation,
            }));
        }
        plan_gc(&(inner.space)().view(&files, &segments), &inner.options.settings, now)
    }

    /// Moves what is live in `victims`, files of `segment` that are closed, and removes them. Without victims: counts
    /// what is live in every closed file of the segment.
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt` (a page of the index): what was moved so far is moved, no victim was removed.
    pub async fn pass(&self, segment: SegmentId, victims: Vec<FileId>) -> Result<()> {
        let Some(_work) = self.0.index.begin_work(segment) else { return Ok(()) };
        if !self.0.index.count_references(segment).await? {
            return Ok(());
        }
        let is_count = victims.is_empty();
        let mut pass = Pass::new(self, segment, victims);
        // Each step is a task of its own, so that its class is that of the moment.
        while !pass.is_done() {
            if self.0.index.is_held(segment) {
                // It is about to be released: its next owner begins anew.
                pass.abandon().await;
                return Ok(());
            }
            let class = if (self.0.space)().writers_wait { Class::Io } else { Class::Background };
            let step = async move {
                let result = pass.step().await;
                (pass, result)
            };
            let (stepped, result) = self.0.handle.spawn(class, "gc step", step).await;
            pass = stepped;
            if let Err(error) = result {
                pass.abandon().await;
                // With its segment the pass has lost its purpose, and nothing failed.
                return if self.0.index.contains(segment) { Err(error) } else { Ok(()) };
            }
            self.pace(pass.take_moved_bytes()).await;
        }
        let dead = pass.finish().await;
        self.count(|statistics| match is_count {
            true => statistics.counts += 1,
            false => statistics.passes += 1,
        });
        self.remove_of(&dead).await
    }

    /// Waits as long as a step that moved so much should have taken.
    async fn pace(&self, moved_bytes: u64) {
        let space = (self.0.space)();
        let left = self.0.spare.get().at(self.0.handle.now());
        let pace = self.0.options.settings.pace_bytes_per_sec(space.view(&[], &[]).room_permille(), left);
        if let (Some(bytes_per_sec), false) = (pace, space.writers_wait) {
            let nanos = u128::from(moved_bytes) * 1_000_000_000 / u128::from(bytes_per_sec.max(1));
            self.0.handle.sleep(Duration::from_nanos(nanos as u64)).await;
        }
        self.0.handle.yield_now().await;
    }

    /// Removes dead files: an intent in the log, then the file, once no reader can know it.
    ///
    /// # Errors
    /// `Io`: a file of which the intent is on record is tried again in the background.
    pub async fn remove(&self, files: &[FileId]) -> Result<()> {
        // Gone with its segment, perhaps.
        let known: Vec<FileGarbage> = files.iter().filter_map(|file| self.0.garbage.file(*file)).collect();
        let segments: BTreeSet<SegmentId> = known.iter().map(|file| file.segment).collect();
        let mut result = Ok(());
        for segment in segments {
            let Some(_work) = self.0.index.begin_work(segment) else { continue };
            let of_segment: Vec<FileId> =
                known.iter().filter(|file| file.segment == segment).map(|file| file.file).collect();
            result = self.remove_of(&of_segment).await.and(result);
        }
        result
    }

    /// The same for files of a segment on which this is at work.
    async fn remove_of(&self, files: &[FileId]) -> Result<()> {
        let mut removed = Vec::new();
        for file in files {
            let Some(known) = self.0.garbage.file(*file) else { continue };
            let (garbage, id) = (self.0.garbage.clone(), *file);
            let record = Record::DropFile { segment: known.segment, file: id };
            let logged = self.0.sink.log(record, Box::new(move |_| garbage.removed(id)));
            removed.push((known, logged));
        }
        let mut result = Ok(());
        for (known, logged) in removed {
            if let Err(error) = logged.await {
                // Whether the intent counts is decided by the next start; the file stays in the ledger.
                result = Err(error);
                continue;
            }
            match self.0.index.files().delete_unpinned(known.file).await {
                Ok(()) => self.count(|statistics| {
                    statistics.removed_files += 1;
                    statistics.freed_bytes += known.capacity_bytes;
                }),
                Err(error) => {
                    self.0.index.files().delete_in_background(vec![known.file]);
                    result = Err(error);
                }
            }
        }
        result
    }

    fn count(&self, change: impl FnOnce(&mut GcStatistics)) {
        let mut statistics = self.0.statistics.get();
        change(&mut statistics);
        self.0.statistics.set(statistics);
    }
}

#[cfg(test)]
mod tests;
