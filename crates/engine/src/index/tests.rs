//! The index of a few segments against a map, under everything that can happen to it at once: dumps, large writes that
//! arrive late, discards, relocations, freezes at any moment, flushes, merges of any tables, restarts.

use std::collections::BTreeMap;
use std::time::Duration;

use base::{FileId, LogSequence, Prng, SegmentSequence};
use files::FileKind;
use files::LocalBoxFuture;
use files::memory::{AppendFault, Memory, MemoryOptions};
use runtime::{Class, Handle};

use super::*;
use crate::options::EPOCH;
use crate::testing::{TestLog, run};
use crate::transaction::{Record, Relocating, TransactionSink};

const BLOCKS: u32 = 600;
const SEGMENT: SegmentId = SegmentId { volume: VolumeId(7), index: 1 };

/// The winner for each block, tombstones included.
type Model = BTreeMap<u32, Entry>;

fn join_model(model: &mut Model, entries: &[Entry]) {
    for entry in entries {
        for block in entry.block..entry.end() {
            let one = Entry { block, count: 1, ..*entry };
            let best = model.entry(block).or_insert(one);
            if one.wins_over(best) {
                *best = one;
            }
        }
    }
}

#[derive(Clone)]
struct Life {
    handle: Handle,
    log: TestLog,
    index: Index,
    model: Rc<RefCell<Model>>,
    /// The next sequence to give.
    sequence: Rc<Cell<u64>>,
    tally: Rc<RefCell<BTreeMap<&'static str, u64>>>,
}

impl Life {
    fn count(&self, what: &'static str) {
        *self.tally.borrow_mut().entry(what).or_default() += 1;
    }

    fn next_sequence(&self) -> SegmentSequence {
        self.sequence.set(self.sequence.get() + 1);
        SegmentSequence(self.sequence.get())
    }

    /// Logs entries; memory and model learn of them when they are durable.
    async fn log_entries(&self, record: Record) {
        let (Record::Dump { entries, .. } | Record::Relocate { entries, .. }) = &record else { return };
        let (index, model, entries) = (self.index.clone(), self.model.clone(), entries.clone());
        let apply = move |_| {
            index.apply(SEGMENT, &entries);
            join_model(&mut model.borrow_mut(), &entries);
        };
        let _ = self.log.log(record, Box::new(apply)).await;
    }

    /// A dump of a few writes and discards; each file holds a few blocks.
    fn dump(&self, prng: &mut Prng) -> impl Future<Output = ()> + use<> {
        let mut entries = Vec::new();
        let mut through = SegmentSequence(0);
        for _ in 0..prng.between(1, 12) {
            let block = prng.below(u64::from(BLOCKS)) as u32;
            through = self.next_sequence();
            match prng.one_in(5) {
                true => {
                    let count = prng.between(1, u64::from(BLOCKS - block).min(60)) as u32;
                    entries.push(Entry::zeros(block, count, through));
                }
                false => entries.push(self.place(prng, block, through)),
            }
        }
        self.count("dumps");
        let this = self.clone();
        async move {
            this.log_entries(Record::Dump { segment: SEGMENT, epoch: EPOCH, through, replay: None, entries }).await
        }
    }

    fn place(&self, prng: &mut Prng, block: u32, sequence: SegmentSequence) -> Entry {
        let file = FileId(1_000_000 + prng.below(30));
        Entry::data(block, sequence, file, sequence.0 * 4096, sequence.0 as u32)
    }

    /// What GC does: looks where blocks are, takes its time, logs new places.
    fn relocate(&self, prng: &mut Prng) -> impl Future<Output = ()> + use<> {
        let start = prng.below(u64::from(BLOCKS)) as u32;
        let blocks = start..(start + prng.between(1, 40) as u32).min(BLOCKS);
        let (delay, file) = (Duration::from_micros(prng.below(900)), FileId(2_000_000 + prng.below(30)));
        let this = self.clone();
        async move {
            let _relocating = this.log.relocating(SEGMENT);
            let runs = this.index.lookup(SEGMENT, blocks).await.unwrap();
            let live = runs.into_iter().filter_map(|(_, entry)| entry).filter(|entry| entry.file().is_some());
            let moved = |entry: Entry| {
                entry.relocated(file, (entry.version.sequence.0 * 64 + u64::from(entry.version.moves)) * 4096)
            };
            let entries: Vec<Entry> = live.map(moved).collect();
            this.handle.sleep(delay).await;
            if !entries.is_empty() {
                this.count("relocations");
                this.log_entries(Record::Relocate { segment: SEGMENT, epoch: EPOCH, entries }).await;
            }
        }
    }

    fn check_lookup(&self, prng: &mut Prng) -> impl Future<Output = ()> + use<> {
        let start = prng.below(u64::from(BLOCKS)) as u32;
        let blocks = start..(start + prng.between(1, 80) as u32).min(BLOCKS);
        let this = self.clone();
        async move {
            // Taken in the same step as the index's snapshot.
            let model = this.model.borrow().clone();
            let runs = this.index.lookup(SEGMENT, blocks.clone()).await.unwrap();
            assert_eq!((runs[0].0.start, runs[runs.len() - 1].0.end), (blocks.start, blocks.end));
            for (run, entry) in runs {
                for block in run {
                    assert_same(block, entry.map(|entry| entry.clipped(block, block + 1)), model.get(&block).copied());
                }
            }
            this.count("lookups");
        }
    }

    fn check_scan(&self, prng: &mut Prng) -> impl Future<Output = ()> + use<> {
        let from = prng.below(u64::from(BLOCKS)) as u32;
        let entries_max = prng.between(1, 100) as usize;
        let this = self.clone();
        async move {
            let model = this.model.borrow().clone();
            let scan = this.index.scan(SEGMENT, from, entries_max).await.unwrap();
            assert!(scan.entries.len() <= entries_max && scan.end > from);
            let mut found = Model::new();
            join_model(&mut found, &scan.entries);
            for block in from..scan.end.min(BLOCKS) {
                assert_same(block, found.get(&block).copied(), model.get(&block).copied());
            }
            this.count("scans");
        }
    }

    async fn merge(&self, choice: u64, all: bool) {
        let tables = self.index.tables(SEGMENT).tables;
        if tables.is_empty() {
            return;
        }
        let start = choice as usize % tables.len();
        let end = start + 1 + (choice / 64) as usize % (tables.len() - start);
        let range = if all { 0..tables.len() } else { start..end };
        let files: Vec<FileId> = tables[range].iter().map(|table| table.file).collect();
        if let Ok(true) = self.index.merge(SEGMENT, &files, &self.log).await {
            self.count("merges");
        }
    }
}

/// A block that was discarded may be unmapped.
fn assert_same(block: u32, found: Option<Entry>, expected: Option<Entry>) {
    let content = |entry: Option<Entry>| entry.filter(|entry| entry.file().is_some());
    assert_eq!(content(found), content(expected), "block {block}");
}

fn new_index(handle: &Handle, memory: &Memory) -> Index {
    let files = VerifiedFiles::new(handle, &memory.open(handle));
    let options =
        IndexOptions { page_cache_bytes: 0, memtable_bytes_max: 1 << 20, copies: 1, ownership: Ownership::Whole };
    Index::new(&files, &Garbage::new(), options)
}

async fn random_history(handle: Handle, seed: u64, tally: Rc<RefCell<BTreeMap<&'static str, u64>>>) {
    let mut prng = Prng::new(seed);
    let memory = Memory::new(seed, MemoryOptions::default());
    let log = TestLog::new(&handle, prng.next_u64());
    let index = new_index(&handle, &memory);
    let mut life = Life { handle: handle.clone(), log, index, model: Rc::default(), sequence: Rc::default(), tally };
    for _ in 0..prng.between(1, 4) {
        let mut tasks = Vec::new();
        for _ in 0..prng.between(20, 150) {
            let this = life.clone();
            let spawn = |future: LocalBoxFuture<'static, ()>| handle.spawn(Class::Io, "operation", future);
            match prng.below(20) {
                0..6 => tasks.push(spawn(Box::pin(this.dump(&mut prng)))),
                6..8 => tasks.push(spawn(Box::pin(this.relocate(&mut prng)))),
                8..12 => tasks.push(spawn(Box::pin(this.check_lookup(&mut prng)))),
                12..14 => tasks.push(spawn(Box::pin(this.check_scan(&mut prng)))),
                14..16 => {
                    let at = life.log.frozen_at(SEGMENT);
                    life.count(if at.quiet { "quiet freezes" } else { "freezes in traffic" });
                    life.index.freeze(SEGMENT, at);
                }
                16..18 => tasks.push(spawn(Box::pin(async move {
                    if let Ok(true) = this.index.flush(SEGMENT, &this.log).await {
                        this.count("flushes");
                    }
                }))),
                _ => {
                    let (choice, all) = (prng.next_u64(), prng.one_in(2));
                    tasks.push(spawn(Box::pin(async move { this.merge(choice, all).await })));
                }
            }
            handle.sleep(Duration::from_nanos(prng.below(400_000))).await;
        }
        if prng.one_in(3) {
            for task in tasks.drain(..) {
                task.await;
            }
            check_everything(&life).await;
        }
        drop(tasks);
        life = restart(life, &handle, &memory).await;
    }
    check_everything(&life).await;
}

/// Kills the index in the middle of what it does, and recovers it from tables and the tail of the log.
async fn restart(life: Life, handle: &Handle, memory: &Memory) -> Life {
    life.count("restarts");
    let log = life.log.crash();
    let index = new_index(handle, memory);
    index.restore(SEGMENT, EPOCH, &log.tables(SEGMENT));
    log.tail(SEGMENT).iter().for_each(|entries| index.apply(SEGMENT, entries));
    // What became durable is what counts, whether the dead index had applied it or not.
    let mut model = Model::new();
    for (_, record) in log.records() {
        if let Record::Dump { entries, .. } | Record::Relocate { entries, .. } = record {
            join_model(&mut model, &entries);
        }
    }
    Life { log, index, model: Rc::new(RefCell::new(model)), ..life }
}

async fn check_everything(life: &Life) {
    while life.log.in_flight() > 0 {
        life.handle.sleep(Duration::from_millis(1)).await;
    }
    let model = life.model.borrow().clone();
    for block in 0..BLOCKS {
        assert_same(block, life.index.lookup_block(SEGMENT, block).await.unwrap(), model.get(&block).copied());
    }
    check_references(life, &model, false).await;
    life.index.flush_all(&life.log).await.unwrap();
    life.merge(0, true).await;
    for block in 0..BLOCKS {
        assert_same(block, life.index.lookup_block(SEGMENT, block).await.unwrap(), model.get(&block).copied());
    }
    // In one table nothing hides: references are live blocks.
    check_references(life, &model, true).await;
    let tables = life.index.tables(SEGMENT).tables;
    if let [table] = tables[..] {
        // Everything was quiet, so nothing is kept for what may still arrive.
        assert_eq!(table.tombstones, 0);
    }
}

async fn check_references(life: &Life, model: &Model, exact: bool) {
    assert!(life.index.count_references(SEGMENT).await.unwrap());
    let mut live: BTreeMap<FileId, i64> = BTreeMap::new();
    model.values().filter_map(Entry::file).for_each(|file| *live.entry(file).or_default() += 1);
    for file in (0..30).flat_map(|i| [FileId(1_000_000 + i), FileId(2_000_000 + i)]) {
        let (references, live) = (life.index.garbage().references(file), live.get(&file).copied().unwrap_or(0));
        assert!(if exact { references == live } else { references >= live }, "{file}: {references} for {live} live");
    }
}

#[test]
fn agrees_with_a_map_under_everything_at_once() {
    let tally: Rc<RefCell<BTreeMap<&'static str, u64>>> = Rc::default();
    for seed in 0..150 {
        let tally = tally.clone();
        run(seed, move |handle| random_history(handle, seed, tally));
    }
    let tally = tally.borrow();
    for what in [
        "dumps",
        "relocations",
        "lookups",
        "scans",
        "quiet freezes",
        "freezes in traffic",
        "flushes",
        "merges",
        "restarts",
    ] {
        assert!(tally.get(what).is_some_and(|&count| count > 20), "{what}: {tally:?}");
    }
}

/// Blocks of many segments, as dumps would give them, with the latest entry of each.
async fn fill(index: &Index, prng: &mut Prng, segments: u32, dumps: u32) -> BTreeMap<(u32, u32), Entry> {
    let mut latest = BTreeMap::new();
    for sequence in 1..=u64::from(dumps) {
        index.room().await.unwrap();
        let segment = prng.below(u64::from(segments)) as u32;
        let entry = |prng: &mut Prng| {
            let block = prng.below(100_000) as u32;
            Entry::data(block, SegmentSequence(sequence), FileId(1 + sequence / 50), u64::from(block) * 4096, block)
        };
        let entries: Vec<Entry> = (0..64).map(|_| entry(prng)).collect();
        index.apply(SegmentId { index: segment, ..SEGMENT }, &entries);
        for entry in entries {
            let best = latest.entry((segment, entry.block)).or_insert(entry);
            if entry.wins_over(best) {
                *best = entry;
            }
        }
        let bytes = index.memtable_bytes();
        assert!(bytes <= SMALL_MEMTABLES + 64 * ENTRY_BYTES, "{bytes} bytes of memtables");
        index.files().handle().sleep(Duration::from_micros(20)).await;
    }
    latest
}

const SMALL_MEMTABLES: u64 = 256 << 10;

fn small_index(handle: &Handle, memory: &Memory) -> Index {
    let files = VerifiedFiles::new(handle, &memory.open(handle));
    let options = IndexOptions {
        page_cache_bytes: 1 << 20,
        memtable_bytes_max: SMALL_MEMTABLES,
        copies: 1,
        ownership: Ownership::Whole,
    };
    Index::new(&files, &Garbage::new(), options)
}

async fn check_latest(index: &Index, latest: &BTreeMap<(u32, u32), Entry>) {
    for ((segment, block), expected) in latest.iter().step_by(7) {
        let found = index.lookup_block(SegmentId { index: *segment, ..SEGMENT }, *block).await.unwrap();
        assert_eq!(found, Some(*expected));
    }
}

/// A table that was written a moment ago is not read from disk, unless it would push out much of what is in memory.
#[test]
fn what_was_written_is_in_memory() {
    run(1, |handle| async move {
        for (page_cache_bytes, is_kept) in [(1 << 20, true), (270 << 10, false)] {
            let memory = Memory::new(1, MemoryOptions::default());
            let files = VerifiedFiles::new(&handle, &memory.open(&handle));
            let options =
                IndexOptions { page_cache_bytes, memtable_bytes_max: 1 << 24, copies: 1, ownership: Ownership::Whole };
            let index = Index::new(&files, &Garbage::new(), options);
            let log = TestLog::new(&handle, 1);
            let latest = fill(&index, &mut Prng::new(1), 1, 50).await;
            index.flush_all(&log).await.unwrap();
            check_latest(&index, &latest).await;
            let pages = index.statistics().pages;
            assert!(pages.hits > 0 && (pages.misses == 0) == is_kept, "{pages:?}");
        }
    });
}

#[test]
fn maintenance_bounds_memory_and_tables() {
    run(1, |handle| async move {
        let memory = Memory::new(1, MemoryOptions::default());
        let index = small_index(&handle, &memory);
        let log = TestLog::new(&handle, 1);
        let tasks = index.spawn_maintenance(Rc::new(log.clone()));
        let latest = fill(&index, &mut Prng::new(1), 5, 2000).await;
        check_latest(&index, &latest).await;
        index.flush_all(&log).await.unwrap();
        assert_eq!(index.memtable_bytes(), 0);
        // Merges end when there is nothing left that is worth one.
        handle.sleep(Duration::from_secs(1)).await;
        for segment in index.segments() {
            assert!(index.tables(segment).tables.len() <= 8);
            assert_eq!(index.tables(segment), log.tables(segment));
        }
        let statistics = index.statistics();
        assert!(statistics.flushes > 20 && statistics.merges > 5, "{statistics:?}");
        check_latest(&index, &latest).await;
        let tables: usize = index.segments().iter().map(|&segment| index.tables(segment).tables.len()).sum();
        let files = index.files().store().list().len();
        assert_eq!(files, tables, "tables that were merged are gone");
        drop(tasks);
    });
}

#[test]
fn a_failed_flush_or_merge_changes_nothing() {
    run(2, |handle| async move {
        let memory = Memory::new(2, MemoryOptions::default());
        let (index, log) = (small_index(&handle, &memory), TestLog::new(&handle, 2));
        let mut latest = BTreeMap::new();
        for round in 0..3 {
            latest.extend(fill(&index, &mut Prng::new(round), 1, 20).await);
            memory.fail_appends(Some(FileKind::Table), 1, AppendFault::Torn);
            assert!(index.flush_all(&log).await.is_err());
            index.flush_all(&log).await.unwrap();
        }
        let segment = index.segments()[0];
        let before = index.tables(segment);
        let files: Vec<FileId> = before.tables.iter().map(|table| table.file).collect();
        memory.fail_appends(Some(FileKind::Table), 1, AppendFault::Torn);
        assert!(index.merge(segment, &files, &log).await.is_err());
        assert_eq!(index.tables(segment), before);
        handle.sleep(Duration::from_millis(10)).await;
        assert_eq!(index.files().store().list().len(), 3, "what was not finished is gone");
        assert!(index.merge(segment, &files, &log).await.unwrap());
        assert_eq!(index.tables(segment).tables.len(), 1);
    });
}

#[test]
fn a_table_that_cannot_be_read_is_left_alone_by_merges() {
    run(3, |handle| async move {
        let memory = Memory::new(3, MemoryOptions::default());
        let (index, log) = (small_index(&handle, &memory), TestLog::new(&handle, 3));
        fill(&index, &mut Prng::new(3), 1, 20).await;
        index.flush_all(&log).await.unwrap();
        let segment = index.segments()[0];
        let bad = index.tables(segment).tables[0].file;
        memory.corrupt(bad, 0, 4096..4097);
        let _tasks = index.spawn_maintenance(Rc::new(log.clone()));
        for round in 4..40 {
            fill(&index, &mut Prng::new(round), 1, 20).await;
            index.flush_all(&log).await.unwrap();
            handle.sleep(Duration::from_millis(500)).await;
        }
        let tables = index.tables(segment).tables;
        assert!(tables.iter().any(|table| table.file == bad));
        assert!(tables.len() < 14 && index.statistics().merges > 2, "{} tables", tables.len());
    });
}

/// Starts a job, and cancels it as soon as its record is on its way.
async fn cancel_on_its_way(handle: &Handle, log: &TestLog, job: impl Future<Output = Result<bool>> + 'static) {
    let job = handle.spawn(Class::Background, "job", job);
    while log.in_flight() == 0 {
        handle.sleep(Duration::from_nanos(100)).await;
    }
    drop(job);
    // The loop lets go of it when its turn comes.
    handle.yield_now().await;
    assert_eq!(log.in_flight(), 1, "the record is not durable yet");
}

/// A close cancels flusher and merger, and its checkpoint flushes what is left: a memtable or table that is given to
/// two records has lost its place when the second one is durable.
#[test]
fn a_cancelled_job_has_not_ended_while_its_record_is_on_its_way() {
    run(4, |handle| async move {
        let memory = Memory::new(4, MemoryOptions::default());
        let (index, log) = (small_index(&handle, &memory), TestLog::new(&handle, 4));
        for tables in 1..=2 {
            fill(&index, &mut Prng::new(tables), 1, 20).await;
            let segment = index.segments()[0];
            index.freeze(segment, log.frozen_at(segment));
            let (flusher, sink) = (index.clone(), log.clone());
            cancel_on_its_way(&handle, &log, async move { flusher.flush(segment, &sink).await }).await;
            assert!(!index.flush(segment, &log).await.unwrap(), "a flush is at work");
            index.flush_all(&log).await.unwrap();
            assert_eq!((log.records().len() as u64, index.memtable_bytes()), (tables, 0), "each was flushed once");
            assert_eq!(index.tables(segment), log.tables(segment));
        }
        let segment = index.segments()[0];
        let files: Vec<FileId> = index.tables(segment).tables.iter().map(|table| table.file).collect();
        let (merger, sink, inputs) = (index.clone(), log.clone(), files.clone());
        cancel_on_its_way(&handle, &log, async move { merger.merge(segment, &inputs, &sink).await }).await;
        assert!(!index.merge(segment, &files, &log).await.unwrap(), "a merge is at work");
        while log.in_flight() > 0 {
            handle.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!((log.records().len(), index.tables(segment).tables.len()), (3, 1), "they were merged once");
        assert_eq!(index.tables(segment), log.tables(segment));
        // What was cancelled has ended with its record: the next one has its turn.
        let merged = [index.tables(segment).tables[0].file];
        assert!(index.merge(segment, &merged, &log).await.unwrap());
    });
}

/// A log in which a segment leaves, or is dropped, right behind each record of it: before whoever wrote that goes on.
struct LeavesBehind {
    log: TestLog,
    index: Index,
    leave: fn(&Index, SegmentId),
}

impl TransactionSink for LeavesBehind {
    fn log(&self, record: Record, apply: Box<dyn FnOnce(LogSequence)>) -> LocalBoxFuture<'static, Result<LogSequence>> {
        let (index, leave) = (self.index.clone(), self.leave);
        let segment = index.segments()[0];
        let apply = move |sequence| {
            apply(sequence);
            leave(&index, segment);
        };
        self.log.log(record, Box::new(apply))
    }

    fn frozen_at(&self, segment: SegmentId) -> FrozenAt {
        self.log.frozen_at(segment)
    }

    fn relocating(&self, segment: SegmentId) -> Relocating {
        self.log.relocating(segment)
    }
}

#[test]
fn a_table_that_was_flushed_belongs_to_whoever_has_the_segment_then() {
    let left = |leave: fn(&Index, SegmentId)| {
        run(5, move |handle| async move {
            let memory = Memory::new(5, MemoryOptions::default());
            let index = small_index(&handle, &memory);
            fill(&index, &mut Prng::new(5), 1, 20).await;
            let segment = index.segments()[0];
            let log = LeavesBehind { log: TestLog::new(&handle, 5), index: index.clone(), leave };
            index.freeze(segment, log.frozen_at(segment));
            assert!(index.flush(segment, &log).await.unwrap() && index.segments().is_empty());
            handle.sleep(Duration::from_millis(10)).await;
            index.files().store().list().len()
        })
    };
    assert_eq!(left(Index::forget), 1, "somebody has it");
    assert_eq!(left(Index::drop_segment), 0, "nobody does");
}

/// A merge subtracts what it drops; after a restart that must not come before the addition, or a file that is live
/// looks dead for a while.
#[test]
fn a_merge_after_a_restart_waits_until_references_are_counted() {
    for seed in 0..20 {
        run(seed, move |handle| async move {
            let memory = Memory::new(seed, MemoryOptions::default());
            let (old, log) = (small_index(&handle, &memory), TestLog::new(&handle, seed));
            let mut latest = BTreeMap::new();
            for round in 0..3 {
                latest.extend(fill(&old, &mut Prng::new(round), 1, 30).await);
                old.flush_all(&log).await.unwrap();
            }
            let segment = old.segments()[0];
            let (index, tables) = (small_index(&handle, &memory), log.tables(segment));
            index.restore(segment, EPOCH, &tables);
            let files: Vec<FileId> = tables.tables.iter().map(|table| table.file).collect();
            let counter = index.clone();
            let count = async move { counter.count_references(segment).await };
            let counting = handle.spawn(Class::Background, "count", count);
            let (merger, log) = (index.clone(), log.clone());
            let merging = handle.spawn(Class::Io, "merge", async move { merger.merge(segment, &files, &log).await });
            let mut live: BTreeMap<FileId, i64> = BTreeMap::new();
            for file in latest.values().filter_map(Entry::file) {
                *live.entry(file).or_default() += 1;
            }
            for _ in 0..500 {
                if index.references_are_known(segment) {
                    for (file, live) in &live {
                        let references = index.garbage().references(*file);
                        assert!(references >= *live, "seed {seed}: {references} references to {file}, {live} live");
                    }
                }
                handle.sleep(Duration::from_micros(10)).await;
            }
            counting.await.unwrap();
            assert!(merging.await.unwrap());
        });
    }
}
