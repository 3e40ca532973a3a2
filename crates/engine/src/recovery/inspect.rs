//! Looking at an engine's files without running it: what a start would find, and whether every checksum holds.
//!
//! Flow: every copy of every log is read by itself; then the logs are replayed by the code of a start, over a store
//! that changes nothing (`files::dry_run`); then every page of every table and every block that the index refers to
//! is read in each of its copies and compared with its checksum. Bytes that nothing refers to are garbage, and not
//! looked at.
//!
//! **Damage** is what was acknowledged and is not there any more in some copy. What a crash leaves at the ends of logs
//! is none: a start cuts it or completes it.

use std::collections::{BTreeMap, BTreeSet};

use base::{AlignedBuf, BLOCK, Error, ErrorKind, FileId, Result, SegmentId, VolumeId};
use files::dry_run::DryRun;
use files::{FileInfo, FileKind, Store};
use runtime::Handle;

use super::replay::Replay;
use super::{restore_index, tails};
use crate::data::{self, RUN_BLOCKS_MAX};
use crate::garbage::Garbage;
use crate::index::table::Layout;
use crate::index::table::page::{PAGE, PageKind, PagePlace, SUMMARY_FILES, is_intact};
use crate::index::{Entry, Index, IndexOptions, Mapping, TableInfo};
use crate::journal::{self, ScanOptions};
use crate::options::Options;
use crate::statistics::RecoveryStatistics;
use crate::transaction;
use crate::verified::VerifiedFiles;

/// Entries of one scan of the index.
const ENTRIES_PER_SCAN: usize = 16 * RUN_BLOCKS_MAX;
/// Runs that are read at the same time.
const RUNS_IN_FLIGHT: usize = 4;
/// Damage that is listed; more is only counted.
const DAMAGE_LISTED_MAX: usize = 1000;

const ADVICE_COPY: &str = "another copy is intact and is used instead: nothing is lost";
const ADVICE_BLOCK: &str = "reads of it fail until it is written or discarded again; or restore the file from a backup";
const ADVICE_PAGE: &str = "reads of the segment fail where they need it; restore the file from a backup";
const ADVICE_LOG: &str = "if it is still needed, a start refuses and says how to go on without it";

/// What an inspection found.
#[derive(Clone, Debug, Default)]
pub struct Inspection {
    /// Every segment that was ever written, with what the index maps.
    pub segments: Vec<SegmentInspection>,
    /// The volumes that a start would have something of: [`crate::Engine::volumes`].
    pub volumes: BTreeSet<VolumeId>,
    /// What a start would replay.
    pub recovery: RecoveryStatistics,
    /// Ranges of single copies that a start would bring in line with the other copies after a crash.
    pub mends: u64,
    /// Bytes of live blocks in each data file.
    pub live_bytes: BTreeMap<FileId, u64>,
    /// Blocks, pages, appends and transaction records whose checksum was compared, each copy counted.
    pub verified: u64,
    /// Why a start would refuse, in its words.
    pub refusals: Vec<String>,
    /// What is wrong; at most 1,000 of it.
    pub damage: Vec<Damage>,
    /// How much is wrong in all.
    pub damage_count: u64,
}

/// Something that was acknowledged and is not as it was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// The path of the file.
    pub path: String,
    /// Where in its content, in bytes: behind the 4 KiB of its header. None: the whole file.
    pub offset: Option<u64>,
    /// What is wrong.
    pub what: String,
    /// What that means and what to do.
    pub advice: String,
}

/// What is known of a segment.
#[derive(Clone, Debug, Default)]
pub struct SegmentInspection {
    /// The segment.
    pub segment: SegmentId,
    /// Blocks with data.
    pub blocks: u64,
    /// Tables of its index.
    pub tables: usize,
    /// Bytes of writes that are in the journal only.
    pub journal_bytes: u64,
}

/// Inspects the engine's files in the store below `dry_run`. `on_progress` hears how many bytes were verified, and
/// how many there are at most.
///
/// # Errors
/// `Invalid`: a later version wrote it.
pub async fn inspect(handle: &Handle, dry_run: &DryRun, on_progress: impl FnMut(u64, u64)) -> Result<Inspection> {
    let store = dry_run.store();
    let mut inspector = Inspector::new(handle, &store, on_progress);
    inspector.check_logs(handle).await?;
    match inspector.replay().await {
        Ok(replay) => inspector.check_content(handle, dry_run, &replay).await,
        Err(error) => inspector.found.refusals.push(error.message),
    }
    Ok(inspector.found)
}

struct Inspector<P> {
    store: Store,
    files: VerifiedFiles,
    index: Index,
    found: Inspection,
    on_progress: P,
    done: u64,
    total: u64,
}

/// Neighbouring blocks of a data file, and what they should be.
struct Run {
    info: FileInfo,
    offset: u64,
    entries: Vec<Entry>,
}

/// What reading a range of each copy gave.
type CopyReads = Vec<(u8, Result<AlignedBuf>)>;

impl<P: FnMut(u64, u64)> Inspector<P> {
    fn new(handle: &Handle, store: &Store, on_progress: P) -> Self {
        let options = Options::default();
        let files = VerifiedFiles::new(handle, store);
        let index_options = IndexOptions {
            page_cache_bytes: options.page_cache_bytes,
            memtable_bytes_max: options.memtable_bytes_max,
            copies: options.copies,
            ownership: options.ownership,
        };
        let index = Index::new(&files, &Garbage::new(), index_options);
        let bytes = |info: FileInfo| info.sealed.unwrap_or(info.capacity) * u64::from(info.copies_wanted);
        let total = store.list().into_iter().filter(|info| info.kind != FileKind::Log).map(bytes).sum();
        let found = Inspection::default();
        Inspector { store: store.clone(), files, index, found, on_progress, done: 0, total }
    }

    fn on_damage(&mut self, path: String, offset: Option<u64>, what: String, advice: &str) {
        self.found.damage_count += 1;
        if self.found.damage.len() < DAMAGE_LISTED_MAX {
            self.found.damage.push(Damage { path, offset, what, advice: advice.into() });
        }
    }

    fn on_read(&mut self, bytes: u64) {
        self.done += bytes;
        (self.on_progress)(self.done.min(self.total), self.total);
    }

    /// Every append and transaction record, in every copy.
    async fn check_logs(&mut self, handle: &Handle) -> Result<()> {
        let store = self.store.clone();
        let journals = journal::inspect(handle, &store, |bytes| self.on_read(bytes)).await?;
        let transactions = transaction::inspect::inspect(&store, |bytes| self.on_read(bytes)).await?;
        self.found.verified += journals.appends + transactions.records;
        let advice = |is_elsewhere: bool| if is_elsewhere { ADVICE_COPY } else { ADVICE_LOG };
        for bad in journals.damage {
            let number = bad.sequence.map(|sequence| format!(" {sequence}")).unwrap_or_default();
            let what = format!("journal append{number} is damaged: {}", bad.reason);
            let path = store.locate(bad.file, bad.copy);
            self.on_damage(path, Some(bad.offset), what, advice(bad.is_elsewhere));
        }
        for bad in transactions.damage {
            let what = format!("a transaction record is damaged: {}", bad.reason);
            let path = store.locate(bad.file, bad.copy);
            self.on_damage(path, Some(bad.offset), what, advice(bad.is_elsewhere));
        }
        Ok(())
    }

    /// The transaction log, as a start replays it.
    async fn replay(&mut self) -> Result<Replay> {
        let mut scanned = transaction::scan(&self.store, false).await?;
        let mut replay = Replay::new(&mut scanned);
        let found = &mut self.found.recovery;
        found.transaction_records = replay.effects.len() as u64;
        found.torn_tails = u64::from(scanned.torn_tail);
        restore_index(&self.index, &self.files, &mut replay, scanned.durable_through, false, found).await?;
        tails::restore(&self.index, &self.files, &mut replay, false, found).await?;
        Ok(replay)
    }

    /// Journals, tables and data.
    async fn check_content(&mut self, handle: &Handle, dry_run: &DryRun, replay: &Replay) {
        let mut segments: BTreeMap<SegmentId, SegmentInspection> = BTreeMap::new();
        match self.scan_journals(handle, replay).await {
            Ok(journaled) => {
                for (id, bytes) in journaled {
                    segments.entry(id).or_default().journal_bytes = bytes;
                }
            }
            Err(error) => self.found.refusals.push(error.message),
        }
        // Reads mend, too; what they mend is damage, and is listed as such.
        self.found.mends = dry_run.repairs().len() as u64;
        for (id, segment) in &replay.segments {
            for table in &segment.tables.tables {
                self.check_table(*id, table).await;
            }
            let entry = segments.entry(*id).or_default();
            entry.tables = segment.tables.tables.len();
            entry.blocks = self.check_data(*id).await;
        }
        let stored = segments.keys().map(|id| id.volume);
        self.found.volumes = stored.chain(replay.dropped.iter().copied()).collect();
        self.found.segments =
            segments.into_iter().map(|(segment, rest)| SegmentInspection { segment, ..rest }).collect();
    }

    /// Scans the journals; gives the bytes of each segment that are in no data file yet.
    async fn scan_journals(&mut self, handle: &Handle, replay: &Replay) -> Result<BTreeMap<SegmentId, u64>> {
        let journals = replay.journals(&self.store.list());
        let options = ScanOptions { start: replay.journal, accept_data_loss: false };
        let mut bytes: BTreeMap<SegmentId, u64> = BTreeMap::new();
        let recovery = &mut self.found.recovery;
        let report = journal::scan(handle, &self.store, &journals, &options, |record| {
            let dumped_through = replay.segments.get(&record.segment).map(|segment| segment.start.dumped_through);
            let is_dumped = dumped_through.is_some_and(|dumped| record.sequence <= dumped);
            if !is_dumped && !replay.dropped.contains(&record.segment.volume) {
                recovery.journal_records += 1;
                *bytes.entry(record.segment).or_default() += record.len;
            }
        });
        recovery.torn_tails += report.await?.torn_tails;
        Ok(bytes)
    }

    /// Every page of a table, in every copy.
    async fn check_table(&mut self, segment: SegmentId, table: &TableInfo) {
        let Some(info) = self.store.info(table.file) else {
            let (path, what) = (self.store.locate(table.file, 0), format!("a table of segment {segment} is missing"));
            return self.on_damage(path, None, what, ADVICE_PAGE);
        };
        let pages = Layout::new(table.leaves, table.data_files).pages();
        for first in (0..pages).step_by(RUN_BLOCKS_MAX) {
            let count = (pages - first).min(RUN_BLOCKS_MAX as u32) as usize;
            let offset = u64::from(first) * BLOCK;
            let reads = read_copies(&self.store, &info, offset, count * PAGE).await;
            let place = |index: usize| {
                let number = first + index as u32;
                PagePlace { segment, file: table.file, number, kind: page_kind(table, number) }
            };
            let holds = |index: usize, page: &[u8]| is_intact(page, &place(index));
            let what = |index: usize| format!("{} has a wrong checksum", place(index));
            self.judge(&info, offset, count, reads, holds, what, ADVICE_PAGE);
        }
    }

    /// Every block of a segment that the index refers to, in every copy. Gives how many blocks there are.
    async fn check_data(&mut self, segment: SegmentId) -> u64 {
        let (mut from, mut blocks) = (0, 0);
        while u64::from(from) < base::limits::SEGMENT_BLOCKS {
            let scan = match self.index.scan(segment, from, ENTRIES_PER_SCAN).await {
                Ok(scan) => scan,
                Err(error) => {
                    // The page itself is listed already.
                    let cannot = format!("the index of segment {segment} cannot be read from block {from} on: {error}");
                    self.found.refusals.push(cannot);
                    return blocks;
                }
            };
            from = scan.end;
            let mut entries = scan.entries;
            entries.retain(|entry| matches!(entry.mapping, Mapping::Data { .. }));
            blocks += entries.len() as u64;
            let runs = self.plan_runs(segment, entries);
            for group in runs.chunks(RUNS_IN_FLIGHT) {
                let store = &self.store;
                let reads = group
                    .iter()
                    .map(|run| read_copies(store, &run.info, run.offset, run.entries.len() * BLOCK as usize));
                let outcomes = runtime::sync::join_all(reads).await;
                for (run, reads) in group.iter().zip(outcomes) {
                    let holds = |index: usize, block: &[u8]| data::is_intact(segment, &run.entries[index], block);
                    let what = |index: usize| {
                        format!("block {} of segment {segment} has a wrong checksum", run.entries[index].block)
                    };
                    self.judge(&run.info, run.offset, run.entries.len(), reads, holds, what, ADVICE_BLOCK);
                }
            }
        }
        blocks
    }

    /// Compares `count` blocks at `offset` in each copy with what they should be.
    #[expect(clippy::too_many_arguments, reason = "a range, what was read there, and three views of what it should be")]
    fn judge(
        &mut self,
        info: &FileInfo,
        offset: u64,
        count: usize,
        reads: CopyReads,
        holds: impl Fn(usize, &[u8]) -> bool,
        what: impl Fn(usize) -> String,
        advice: &str,
    ) {
        let mut is_good = vec![false; count];
        let mut bad: Vec<(usize, u8, String)> = Vec::new();
        for (copy, read) in reads {
            let bytes = match read {
                Ok(bytes) => bytes,
                // Its directory is missing, or its header is damaged: that is said elsewhere.
                Err(error) if error.kind == ErrorKind::NotFound => continue,
                Err(Error { message, .. }) => {
                    bad.push((0, copy, format!("{} bytes cannot be read: {message}", count as u64 * BLOCK)));
                    continue;
                }
            };
            self.on_read(bytes.len() as u64);
            self.found.verified += count as u64;
            for (index, block) in bytes.chunks_exact(BLOCK as usize).enumerate() {
                match holds(index, block) {
                    true => is_good[index] = true,
                    false => bad.push((index, copy, what(index))),
                }
            }
        }
        for (index, copy, what) in bad {
            let place = offset + index as u64 * BLOCK;
            let advice = if is_good[index] { ADVICE_COPY } else { advice };
            self.on_damage(self.store.locate(info.id, copy), Some(place), what, advice);
        }
    }

    /// Entries as reads: neighbours in a file together.
    fn plan_runs(&mut self, segment: SegmentId, mut entries: Vec<Entry>) -> Vec<Run> {
        entries.sort_by_key(|entry| match entry.mapping {
            Mapping::Data { file, offset, .. } => (file, offset),
            Mapping::Zeros => (FileId(0), 0),
        });
        let mut runs = Vec::new();
        let mut rest = &entries[..];
        while !rest.is_empty() {
            let (run, after) = rest.split_at(data::run_len(rest));
            rest = after;
            let Mapping::Data { file, offset, .. } = run[0].mapping else { continue };
            *self.found.live_bytes.entry(file).or_default() += run.len() as u64 * BLOCK;
            match self.store.info(file) {
                Some(info) => runs.push(Run { info, offset, entries: run.to_vec() }),
                None => {
                    let (first, count) = (run[0].block, run.len());
                    let what = format!("it is missing, with {count} blocks of segment {segment} from {first} on");
                    self.on_damage(self.store.locate(file, 0), Some(offset), what, ADVICE_BLOCK);
                }
            }
        }
        runs
    }
}

async fn read_copies(store: &Store, info: &FileInfo, offset: u64, len: usize) -> CopyReads {
    let mut reads = Vec::new();
    for copy in 0..info.copies_wanted {
        reads.push((copy, store.read_copy(info.id, copy, offset, len).await));
    }
    reads
}

fn page_kind(table: &TableInfo, number: u32) -> PageKind {
    let layout = Layout::new(table.leaves, table.data_files);
    let summary = layout.footer() - table.data_files.div_ceil(SUMMARY_FILES as u32);
    match number {
        leaf if leaf < table.leaves => PageKind::Leaf,
        footer if footer == layout.footer() => PageKind::Footer,
        inner if inner < summary => PageKind::Inner,
        _ => PageKind::Summary,
    }
}

#[cfg(test)]
mod tests {
    use base::io::fragment_checksums;
    use base::{Prng, VolumeId, WriteStamp};
    use files::memory::{Memory, MemoryOptions};
    use runtime::sim::{NodeOptions, World};

    use super::*;
    use crate::Engine;

    const SEGMENT: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };

    async fn write(engine: &Engine, segment: SegmentId, offset: u64, len: usize, seed: u64) {
        let mut data = vec![0; len];
        Prng::new(seed).fill(&mut data);
        let checksums = fragment_checksums(segment, offset, &data);
        engine.write(segment, offset, data.into(), checksums, WriteStamp::default()).await.unwrap();
    }

    fn in_a_world<F: Future<Output = ()> + 'static>(test: impl FnOnce(Handle, Memory) -> F) {
        let world = World::new(1);
        let node = world.add_node(NodeOptions::default());
        let handle = world.start_loop(node);
        let memory = Memory::new(1, MemoryOptions { directories: 2, ..MemoryOptions::default() });
        world.block_on(&handle, test(handle.clone(), memory));
    }

    /// A store with dumped data, large writes, tables and, unless it was closed, a journal. It had two lives, so that
    /// the transaction log begins with a checkpoint that says something.
    async fn written(handle: &Handle, memory: &Memory, is_closed: bool) -> Store {
        let options = Options {
            copies: 2,
            journal_file_bytes: 4 * base::MIB,
            transaction_file_bytes: base::MIB,
            data_file_bytes: 4 * base::MIB,
            ..Options::default()
        };
        for life in 0..2 {
            let store = memory.open(handle);
            let engine = Engine::open(handle, &store, options.clone()).await.unwrap();
            let start = life * 16 * base::MIB;
            for number in 0..20 {
                write(&engine, SEGMENT, start + number * 128 * 1024, 128 * 1024, number).await;
                for index in 0..6 {
                    let segment = SegmentId { index, ..SEGMENT };
                    write(&engine, segment, start + 64 * base::MIB + number * 8192, 4096 + 512, number).await;
                }
            }
            if is_closed || life == 0 {
                engine.close().await.unwrap();
            }
            memory.kill();
        }
        memory.open(handle)
    }

    #[test]
    fn a_sound_store_has_no_damage_and_stays_as_it_is() {
        in_a_world(|handle, memory| async move {
            for is_closed in [true, false] {
                let before = written(&handle, &memory, is_closed).await.list();
                let store = memory.open(&handle);
                let (mut calls, mut last) = (0, 0);
                let found = inspect(&handle, &DryRun::over(&store), |done, total| {
                    assert!(last <= done && done <= total, "{last} {done} {total}");
                    (calls, last) = (calls + 1, done);
                })
                .await
                .unwrap();
                assert_eq!((&found.damage[..], &found.refusals[..]), (&[][..], &[][..]));
                assert!(calls > 0 && found.verified >= 2 * 1280, "{found:?}");
                let segment = &found.segments[0];
                assert!(segment.blocks >= 1280, "{segment:?}");
                assert_eq!(segment.journal_bytes > 0, !is_closed, "{segment:?}");
                assert_eq!(store.list(), before);
            }
        });
    }

    /// Rot in one copy, and then in both: found, located, and told apart.
    #[test]
    fn rot_in_every_kind_of_file_is_found_and_located() {
        in_a_world(|handle, memory| async move {
            let store = written(&handle, &memory, false).await;
            let kinds = [FileKind::Data, FileKind::Table, FileKind::Journal, FileKind::Transaction];
            let mut seen = std::collections::BTreeSet::new();
            for info in store.list().into_iter().filter(|info| kinds.contains(&info.kind)) {
                let inspect = async || inspect(&handle, &DryRun::over(&memory.open(&handle)), |_, _| ()).await.unwrap();
                if store.read(info.id, 0, 4096).await.unwrap().iter().all(|byte| *byte == 0) {
                    // Made ahead of need.
                    continue;
                }
                memory.corrupt(info.id, 1, 0..BLOCK);
                let mut found = inspect().await;
                let mut at = 0;
                // The first block of a file of large writes is a label, which nobody reads once its record is logged.
                if info.kind == FileKind::Data && found.damage.is_empty() {
                    at = BLOCK;
                    memory.corrupt(info.id, 1, at..at + BLOCK);
                    found = inspect().await;
                    if found.damage.is_empty() {
                        // The log has not got its writes yet: a start proves them, and brings them to both copies.
                        assert!(found.mends > 0, "{info:?}");
                        continue;
                    }
                }
                let expected = store.locate(info.id, 1);
                assert_eq!(found.damage.len(), 1, "{info:?}: {:?}", found.damage);
                let Damage { path, offset, advice, .. } = &found.damage[0];
                assert_eq!((path, *offset, &advice[..]), (&expected, Some(at), ADVICE_COPY));
                assert_eq!(found.refusals, Vec::<String>::new());

                memory.corrupt(info.id, 0, at..at + BLOCK);
                let found = inspect().await;
                let at_start = found.damage.iter().filter(|damage| damage.offset == Some(at));
                let places: Vec<&String> = at_start.map(|damage| &damage.path).collect();
                assert_eq!(places, [&store.locate(info.id, 0), &expected], "{info:?}: {:?}", found.damage);
                assert!(found.damage.iter().all(|damage| damage.advice != ADVICE_COPY), "{:?}", found.damage);
                let refuses = !found.refusals.is_empty();
                assert_eq!(refuses, info.kind != FileKind::Data, "{info:?}: {:?}", found.refusals);
                memory.corrupt(info.id, 0, at..at + BLOCK);
                memory.corrupt(info.id, 1, at..at + BLOCK);
                seen.insert(info.kind);
            }
            assert_eq!(seen.len(), kinds.len(), "{seen:?}");
        });
    }
}
