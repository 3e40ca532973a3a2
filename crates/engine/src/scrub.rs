//! Scrubbing: reads what is stored before somebody needs it (EBS, FAST 2024, §2.2, "Other background I/O").
//!
//! **Intuition.** Bytes rot where nobody reads them, and a read looks at one copy: the other one is found to be bad on
//! the day when it is the last. So once in a period a **round** reads every page of every table, and every block that
//! the index names, from each copy by itself, and proves it. What one copy has wrong is repaired from another, as a
//! read would do it; what no copy has right is counted, and said once.
//!
//! **Flow.** Rest; then segment by segment, from one that is drawn: the tables page by page, then the blocks in the
//! order of the index; of each file, what its copies say of themselves, too. After each step, as long a pause as the pace wants (`policies::scrub`). A restart forgets how
//! far a round was: because the first segment is drawn, every one has its turn though no life sees the end.
//!
//! **Why it is safe.** Data files and tables do not change once they are written: what the index said of a block holds
//! for as long as the file is there, also if the block was overwritten meanwhile. Whether it is there is asked after a
//! pin was taken, so that it stays there until the step is over.
//!
//! **What it leaves alone.** Journals and transaction files: they live for minutes, and a start reads all their copies.
//! Bytes that no index names: nobody can miss them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{BLOCK, ErrorKind, FileId, Instant, KIB, Result, SegmentId};
use policies::background::{Left, Spare};
use policies::scrub::ScrubSettings;
use runtime::{Class, Handle, Task};

use crate::data::{DataFiles, run_len};
use crate::garbage::Garbage;
use crate::index::{Entry, Index, TableInfo};
use crate::verified::Checked;

/// Index entries that are looked at together.
const SCAN_ENTRIES: usize = 2048;
/// Blocks or pages of one read: what a turn of the loop can prove without anybody noticing.
const READ_BLOCKS: usize = (128 * KIB / BLOCK) as usize;

/// What scrubbing did since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScrubStatistics {
    /// Rounds that came through.
    pub rounds: u64,
    /// Rounds that took longer than a period.
    pub late_rounds: u64,
    /// Bytes read, all copies counted.
    pub read_bytes: u64,
    /// Blocks and pages that no copy had right, those that were found in several rounds counted each time.
    pub lost: u64,
    /// Segments of the present round, or the last one.
    pub segments: u64,
    /// Those of them that are done.
    pub segments_done: u64,
    /// Rounds that are under way.
    pub running: u64,
}

impl ScrubStatistics {
    /// Adds what another engine did.
    pub(crate) fn merge(&mut self, other: &ScrubStatistics) {
        let ScrubStatistics { rounds, late_rounds, read_bytes, lost, segments, segments_done, running } = other;
        self.rounds += rounds;
        self.late_rounds += late_rounds;
        self.read_bytes += read_bytes;
        self.lost += lost;
        self.segments += segments;
        self.segments_done += segments_done;
        self.running += running;
    }
}

/// The scrubber of an engine. Clones share it.
#[derive(Clone)]
pub struct Scrub(Rc<Inner>);

struct Inner {
    handle: Handle,
    index: Index,
    data: DataFiles,
    garbage: Garbage,
    settings: ScrubSettings,
    statistics: Cell<ScrubStatistics>,
    spare: Cell<Spare>,
    /// The round that somebody asked for last.
    asked_for: RefCell<Option<Task<()>>>,
}

impl Scrub {
    /// A scrubber of what `index` names.
    pub fn new(index: &Index, settings: ScrubSettings) -> Scrub {
        let files = index.files();
        Scrub(Rc::new(Inner {
            handle: files.handle().clone(),
            index: index.clone(),
            data: DataFiles::new(files),
            garbage: index.garbage().clone(),
            settings,
            statistics: Cell::default(),
            spare: Cell::default(),
            asked_for: RefCell::default(),
        }))
    }

    /// Says what foreground work leaves of the disks' bandwidth. Holds for a second.
    pub fn set_spare(&self, left: Left) {
        self.0.spare.set(Spare::new(self.0.handle.now(), left));
    }

    /// Starts the rounds, if there are any. They end when it is dropped.
    pub fn spawn(&self) -> Option<Task<()>> {
        let first = self.0.settings.first_round_at(self.0.handle.now())?;
        let this = self.clone();
        Some(self.0.handle.spawn(Class::Background, "scrub", async move { this.run(first).await }))
    }

    /// Begins a round now, unless one is under way.
    pub fn begin(&self) {
        if self.statistics().running > 0 {
            return;
        }
        let (this, running) = (self.clone(), Running::begin(self));
        let round = async move {
            this.round_of(running).await;
        };
        *self.0.asked_for.borrow_mut() = Some(self.0.handle.spawn(Class::Background, "scrub", round));
    }

    /// Ends the round that somebody asked for.
    pub fn end(&self) {
        drop(self.0.asked_for.take());
    }

    /// Counters since the start.
    pub fn statistics(&self) -> ScrubStatistics {
        self.0.statistics.get()
    }

    async fn run(self, first: Instant) {
        let mut next = first;
        loop {
            self.0.handle.sleep_until(next).await;
            let began = self.0.handle.now();
            self.round().await;
            let (next_round, is_late) = self.0.settings.next_round_at(began, self.0.handle.now());
            next = next_round;
            if is_late {
                self.count(|statistics| statistics.late_rounds += 1);
                let period = self.0.settings.period;
                tracing::warn!("a round of scrubbing took longer than {period:?}: engine.scrub_rate is too low for it");
            }
        }
    }

    /// Looks at everything once. Says how many blocks and pages no copy has right.
    pub(crate) async fn round(&self) -> u64 {
        self.round_of(Running::begin(self)).await
    }

    async fn round_of(&self, _running: Running) -> u64 {
        let ScrubStatistics { lost: before, .. } = self.statistics();
        let mut segments = self.0.index.segments();
        let first = self.0.handle.random_u64() % (segments.len() as u64).max(1);
        segments.rotate_left(first as usize);
        self.count(|statistics| (statistics.segments, statistics.segments_done) = (segments.len() as u64, 0));
        for segment in segments {
            self.tables(segment).await;
            match self.blocks(segment).await {
                Ok(()) => {}
                // This life is over. Whoever has the segment now looks at it.
                Err(error) if error.kind == ErrorKind::Fenced => tracing::debug!(%segment, "not scrubbed: {error}"),
                // Its pages were looked at, and counted.
                Err(error) => tracing::error!(%segment, "the blocks of a segment are not scrubbed: {error}"),
            }
            self.count(|statistics| statistics.segments_done += 1);
        }
        self.count(|statistics| statistics.rounds += 1);
        let ScrubStatistics { lost, read_bytes, .. } = self.statistics();
        tracing::info!(lost = lost - before, read_bytes, "a round of scrubbing is over");
        lost - before
    }

    /// Every page of the tables that the segment has now.
    async fn tables(&self, segment: SegmentId) {
        for table in self.0.index.tables(segment).tables {
            self.headers(segment, table.file).await;
            let mut at = 0;
            while let Some(checked) = self.pages(segment, &table, at).await {
                at += READ_BLOCKS as u32;
                self.pause_after(checked).await;
            }
        }
    }

    async fn headers(&self, segment: SegmentId, file: FileId) {
        let Some(work) = self.0.index.begin_work(segment) else { return };
        let checked = self.0.index.files().check_headers(file).await;
        drop(work);
        self.pause_after(checked).await;
    }

    /// Pages of a table from `at` on; none if there are no more, or the table is gone: merged into another one.
    async fn pages(&self, segment: SegmentId, table: &TableInfo, at: u32) -> Option<Checked> {
        let _work = self.0.index.begin_work(segment)?;
        let _pin = self.0.index.files().pin();
        let is_there = self.0.index.tables(segment).tables.iter().any(|other| other.file == table.file);
        match is_there {
            true => self.0.index.check_pages(segment, table, at, READ_BLOCKS as u32).await,
            false => None,
        }
    }

    /// The headers of the segment's data files, and every block that the index names.
    async fn blocks(&self, segment: SegmentId) -> Result<()> {
        for file in self.0.garbage.files(segment) {
            self.headers(segment, file.file).await;
        }
        let mut at = 0;
        while u64::from(at) < base::limits::SEGMENT_BLOCKS {
            let scan = self.0.index.scan(segment, at, SCAN_ENTRIES).await?;
            let mut entries: Vec<Entry> = scan.entries.into_iter().filter(|entry| entry.file().is_some()).collect();
            entries.sort_unstable_by_key(|entry| entry.mapping);
            let mut rest = &entries[..];
            while !rest.is_empty() {
                let (run, others) = rest.split_at(run_len(rest).min(READ_BLOCKS));
                let checked = self.run_of_blocks(segment, run).await;
                self.pause_after(checked).await;
                rest = others;
            }
            at = scan.end;
        }
        Ok(())
    }

    /// Blocks that lie one after the other, unless their file is about to be removed.
    async fn run_of_blocks(&self, segment: SegmentId, run: &[Entry]) -> Checked {
        let Some(_work) = self.0.index.begin_work(segment) else { return Checked::default() };
        let _pin = self.0.index.files().pin();
        match run[0].file().and_then(|file| self.0.garbage.file(file)) {
            Some(_) => self.0.data.check_run(segment, run).await,
            None => Checked::default(),
        }
    }

    async fn pause_after(&self, checked: Checked) {
        self.count(|statistics| {
            statistics.read_bytes += checked.read_bytes;
            statistics.lost += checked.lost;
        });
        let left = self.0.spare.get().at(self.0.handle.now());
        self.0.handle.sleep(self.0.settings.time_for(checked.read_bytes, left)).await;
    }

    fn count(&self, change: impl FnOnce(&mut ScrubStatistics)) {
        let mut statistics = self.0.statistics.get();
        change(&mut statistics);
        self.0.statistics.set(statistics);
    }
}

/// A round under way, until it is dropped.
struct Running(Scrub);

impl Running {
    fn begin(scrub: &Scrub) -> Self {
        scrub.count(|statistics| statistics.running += 1);
        Running(scrub.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.count(|statistics| statistics.running -= 1);
    }
}

#[cfg(test)]
mod tests;
