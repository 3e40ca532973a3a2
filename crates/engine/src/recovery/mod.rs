//! Opening an engine: what earlier incarnations acknowledged, and nothing that a recovery once cut.
//!
//! **Flow.**
//! 1. Scan the transaction log: its end is decided and sealed; replay it: tables, data files, index entries.
//! 2. Large writes that no later record vouches for count if their data is there, in any copy, block by block.
//! 3. Read on behind what the log knows of each data file, from label to label ([`crate::label`]): large writes that
//!    were acknowledged and not logged yet.
//! 4. Scan the journals: their ends are decided and sealed; records that are not dumped go into the caches. A record
//!    older than a large write of its segment is compared with the index, block by block: an index entry of sequence
//!    s holds every write up to s to that block, so what it covers of an older record is left out.
//! 5. Begin a new transaction file with the records of those large writes, and a checkpoint that repeats what was decided. When it is durable the first
//!    request may come: no later recovery decides otherwise.
//! 6. In the background: delete what nobody refers to, seal data files, dump what was replayed, delete old journals.
//!
//! Nothing is ever appended to a file of an earlier incarnation: a killed process's last writes may still land there.

pub mod inspect;
mod proof;
mod replay;
mod tails;

use std::cell::{Cell, RefCell};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use base::seeded::is_on;
use base::{BLOCK, Error, FileId, LogSequence, Result, SECTOR, SegmentId};
use files::{FileInfo, FileKind, Store};
use runtime::sync::{Budget, Event};
use runtime::{Class, Handle};

pub use self::proof::is_proven;
pub use self::replay::{Replay, ReplayedSegment};
use crate::admission::{Admission, Promises, Reserve};
use crate::arrivals::Arrivals;
use crate::cache::{CacheExtent, CacheMemory};
use crate::core::{Core, DUMPS_IN_FLIGHT, Stage, Trimming};
use crate::data::DataFiles;
use crate::data_writer::{DataFileFactory, DataFileOptions};
use crate::dropped::Dropped;
use crate::fusion::FusionWriteEngine;
use crate::garbage::Garbage;
use crate::gc::{Gc, GcOptions};
use crate::index::{Index, IndexOptions, SegmentTables};
use crate::journal::{self, JournalOptions, JournalRecord, Operation, ScanOptions};
use crate::options::{EPOCH, Options, Ownership};
use crate::reader::Reader;
use crate::scrub::Scrub;
use crate::segment::{Segment, Segments};
use crate::statistics::{Counters, RecoveryStatistics};
use crate::transaction::{self, LogOptions, Record, TransactionLog};
use crate::verified::VerifiedFiles;

/// Suspects that are compared with the index at the same time.
const LOOKUPS_IN_FLIGHT: usize = 32;
/// Index entries that a comparison looks at in one step.
const SCAN_ENTRIES: usize = 1024;

/// See [`crate::Engine::open`].
pub(crate) async fn open(handle: &Handle, store: &Store, options: Options) -> Result<Rc<Core>> {
    let recovered = recover(handle, store, options, None).await?;
    recovered.begin_log().await?;
    let Recovered { core, mut files_before, unidentified, referenced, lengths, .. } = recovered;
    // What says that it is of a segment that is not here is somebody else's to judge (rule 43 of docs/SAFETY.md).
    files_before.retain(|info| info.segment.is_none_or(|id| core.segments.borrow().contains_key(&id)));
    core.start_background();
    core.remove_rests();
    let tidying = core.clone();
    let tidy = async move {
        tidying.remove_unidentified(unidentified, &referenced);
        tidying.tidy(files_before, referenced, lengths).await;
    };
    handle.spawn(Class::Background, "tidy after recovery", tidy).detach();
    Ok(core)
}

/// What a recovery found, and decided: nothing of it is served, or logged, yet.
pub(crate) struct Recovered {
    pub(crate) core: Rc<Core>,
    /// The first record of the new log.
    next: LogSequence,
    /// Large writes that only their labels told of.
    labelled: Vec<Record>,
    files_before: Vec<FileInfo>,
    unidentified: Vec<(FileId, FileKind)>,
    referenced: BTreeSet<FileId>,
    lengths: BTreeMap<FileId, u64>,
}

/// Steps 1 to 4 of the flow; of certain segments only, if somebody else may have the others.
pub(crate) async fn recover(
    handle: &Handle,
    store: &Store,
    options: Options,
    wanted: Option<&BTreeSet<SegmentId>>,
) -> Result<Recovered> {
    options.check()?;
    let started = handle.now();
    let (files_before, unidentified) = (store.list(), store.unidentified());
    let mut found = RecoveryStatistics::default();

    let mut scanned = transaction::scan(store, options.accept_data_loss).await?;
    if scanned.checkpoint.is_none() && files_before.iter().any(|info| info.kind == FileKind::Table) {
        return Err(Error::corrupt("there are tables, but no transaction log: a transaction file was taken away"));
    }
    found.torn_tails += u64::from(scanned.torn_tail);
    let is_there = scanned.checkpoint.is_some();
    let mut replay = Replay::new(&mut scanned);
    if is_there && replay.is_given != (options.ownership == Ownership::Given) {
        return Err(Error::invalid(match replay.is_given {
            true => "the segments of this log were given to it by a manager: it is not a store of its own",
            false => "this log is that of a store of its own: no segments can be given to it",
        }));
    }
    if let Some(wanted) = wanted {
        replay.keep_only(wanted);
    }
    found.transaction_records = replay.effects.len() as u64;

    // The parts, bottom up.
    let checkpoint_wanted = Event::new();
    let log_options = LogOptions { file_bytes: options.transaction_file_bytes, copies: options.copies };
    let log_files = std::mem::take(&mut scanned.files);
    let log = TransactionLog::new(handle, store, log_options, scanned.next, log_files, &checkpoint_wanted);
    let files = VerifiedFiles::new(handle, store);
    let garbage = Garbage::new();
    let index_options = IndexOptions {
        page_cache_bytes: options.page_cache_bytes,
        memtable_bytes_max: options.memtable_bytes_max,
        copies: options.copies,
        ownership: options.ownership,
    };
    let index = Index::new(&files, &garbage, index_options);
    let label_key = handle.random_u64().max(1);
    // Of segments that were adopted: files of others, of which a store that is far away has to be asked.
    for file in replay.referenced() {
        store.find(file).await?;
    }
    // Before the next checkpoint, which does not know of them any more.
    for file in &replay.dumped_journals {
        store.delete(*file).await?;
    }
    restore_index(&index, &files, &mut replay, scanned.durable_through, options.accept_data_loss, &mut found).await?;
    let labelled = tails::restore(&index, &files, &mut replay, options.accept_data_loss, &mut found).await?;

    for (id, segment) in &replay.segments {
        for (file, appended) in &segment.data_files {
            garbage.opened(*id, *file, store.info(*file).map_or(0, |info| info.capacity));
            garbage.appended(*file, appended / BLOCK);
        }
    }
    let data = DataFiles::new(&files);
    let memory = CacheMemory::new();
    let promises = Promises::default();
    let mut segments = Segments::new();
    for (id, replayed) in &replay.segments {
        let segment = Segment::new(*id, &memory, promises.segment(), replayed.start.clone());
        segments.insert(*id, Rc::new(segment));
    }
    let recovered = {
        let mut journals = JournalReplay {
            handle,
            index: &index,
            next: scanned.next,
            is_given: replay.is_given,
            memory: &memory,
            promises: &promises,
            dropped: &replay.dropped,
            segments: &mut segments,
            suspects: Vec::new(),
            found: &mut found,
        };
        let infos = replay.journals(&files_before);
        let scan_options = ScanOptions { start: replay.journal, accept_data_loss: options.accept_data_loss };
        let report = journal::scan(handle, store, &infos, &scan_options, |record| journals.visit(record)).await?;
        let suspects = std::mem::take(&mut journals.suspects);
        restore_suspects(suspects, &mut journals).await?;
        journals.segments.values().for_each(|segment| segment.on_recovered());
        journals.found.torn_tails += report.torn_tails;
        report.files
    };

    let journal_options = JournalOptions {
        file_bytes: options.journal_file_bytes,
        files_max: options.journal_files,
        copies: options.copies,
        log: 0,
        fusion_wait: options.fusion_wait,
    };
    let fusion = FusionWriteEngine::new(handle, store, journal_options, &memory, recovered);
    let capacity = store.space().capacity;
    let data_options = DataFileOptions::for_store(capacity, &options);
    let reserve = Reserve::new(&options, &data_options, capacity);
    let admission = Rc::new(Admission::new(store, &memory, &fusion, &options, reserve, promises));
    let gc_options =
        GcOptions { settings: options.gc, data_file_bytes_max: data_options.bytes_max, copies: options.copies };
    let space = admission.clone();
    let gc = Gc::new(&index, Rc::new(log.clone()), move || space.space_for_collection(), gc_options);
    let core = Rc::new(Core {
        handle: handle.clone(),
        store: store.clone(),
        gc,
        scrub: Scrub::new(&index, options.scrub),
        admission,
        fullness: Rc::default(),
        factory: DataFileFactory::new(handle, &files, &log, &garbage, data_options, label_key),
        reader: Reader::new(&index, options.read_ahead),
        data,
        files,
        index,
        garbage,
        memory,
        fusion,
        log,
        segments: RefCell::new(segments),
        dropped: RefCell::new(Dropped::default()),
        arrivals: Arrivals::default(),
        released: RefCell::new(std::mem::take(&mut replay.released)),
        rests: RefCell::new(std::mem::take(&mut replay.rests)),
        dump_slots: Budget::new(DUMPS_IN_FLIGHT),
        dirtied: Event::new(),
        dumped: Event::new(),
        undumped: RefCell::default(),
        checkpoint_wanted,
        rejected: RefCell::new(replay.rejected.iter().copied().collect()),
        stage: Cell::new(Stage::Running),
        trimming: Cell::new(Trimming::No),
        journal_wants: RefCell::default(),
        counters: Counters::default(),
        maintenance: RefCell::default(),
        options,
    });
    core.dropped.borrow_mut().restore(replay.dropped.iter().copied(), &files_before, scanned.next);

    found.took_ns = handle.now().nanos_since(started);
    *core.counters.recovery.borrow_mut() = found;
    tracing::info!(?found, "the log of an earlier life was recovered");
    let (next, referenced, lengths) = (scanned.next, replay.referenced(), replay.lengths());
    Ok(Recovered { core, next, labelled, files_before, unidentified, referenced, lengths })
}

/// Restores tables, and joins the records behind them. Large writes that nothing vouches for are proven first.
async fn restore_index(
    index: &Index,
    files: &VerifiedFiles,
    replay: &mut Replay,
    durable_through: LogSequence,
    accept_data_loss: bool,
    found: &mut RecoveryStatistics,
) -> Result<()> {
    for (id, segment) in &replay.segments {
        index.restore(*id, segment.start.tenure.epoch, &segment.tables);
    }
    for (sequence, record) in std::mem::take(&mut replay.effects) {
        let Some(id) = record.segment() else { continue };
        if matches!(record, Record::Large { .. }) && sequence > durable_through {
            if !is_proven(files, &record, accept_data_loss).await? {
                tails::check_torn(files, replay.labels, &record, accept_data_loss).await?;
                found.rejected_large_writes += 1;
                replay.rejected.insert(sequence);
                continue;
            }
            found.proven_large_writes += 1;
        }
        index.apply(id, &record.entries());
    }
    Ok(())
}

/// Takes the records of old journals.
struct JournalReplay<'a> {
    handle: &'a Handle,
    index: &'a Index,
    next: LogSequence,
    /// See [`Replay::is_given`].
    is_given: bool,
    memory: &'a CacheMemory,
    promises: &'a Promises,
    dropped: &'a BTreeSet<base::VolumeId>,
    segments: &'a mut Segments,
    /// Records that the index may know something newer for.
    suspects: Vec<JournalRecord>,
    found: &'a mut RecoveryStatistics,
}

impl JournalReplay<'_> {
    fn visit(&mut self, record: JournalRecord) {
        if self.dropped.contains(&record.segment.volume) {
            return;
        }
        let segment = match self.segments.entry(record.segment) {
            // It was released.
            Entry::Vacant(_) if self.is_given => return,
            entry => entry.or_insert_with(|| {
                // The transaction log knows nothing of it: no record before the next one is about it.
                self.index.restore(record.segment, EPOCH, &SegmentTables { tables: Vec::new(), covers: self.next });
                Rc::new(Segment::new(record.segment, self.memory, self.promises.segment(), Default::default()))
            }),
        };
        if record.epoch != segment.epoch() {
            return;
        }
        tracing::trace!(segment = %record.segment, sequence = %record.sequence, at = record.offset, len = record.len,
            discard = matches!(record.operation, Operation::Discard), "journal record");
        if !is_on("segment-sequence-reused") {
            segment.skip(record.sequence);
        }
        let is_left_out = is_on("discard-not-replayed") && matches!(record.operation, Operation::Discard);
        if record.sequence <= segment.dumped_through() || is_left_out {
            return;
        }
        match record.sequence < segment.last_large() && !is_on("older-write-replayed") {
            true => self.suspects.push(record),
            false => self.restore(record),
        }
    }

    fn restore(&mut self, record: JournalRecord) {
        let Some(segment) = self.segments.get(&record.segment) else { return };
        self.found.journal_records += 1;
        let sectors = record.offset / SECTOR..(record.offset + record.len) / SECTOR;
        let extent = CacheExtent::of_record(self.memory, record);
        segment.restore(sectors, extent, self.handle.now());
    }
}

/// Puts those parts of suspects into the caches that the index does not know anything newer for.
async fn restore_suspects(suspects: Vec<JournalRecord>, journals: &mut JournalReplay<'_>) -> Result<()> {
    let index = journals.index;
    let mut suspects = suspects.into_iter().peekable();
    while suspects.peek().is_some() {
        let group: Vec<JournalRecord> = suspects.by_ref().take(LOOKUPS_IN_FLIGHT).collect();
        let lookups = group.iter().map(|record| shadowed(index, record));
        let shadows = runtime::sync::join_all(lookups).await;
        for (record, shadowed) in group.into_iter().zip(shadows) {
            let shadowed = shadowed?;
            journals.found.shadowed_records += u64::from(!shadowed.is_empty());
            uncovered(&record, &shadowed).into_iter().for_each(|part| journals.restore(part));
        }
    }
    Ok(())
}

/// The sectors of a record that the index holds something newer for, by address.
async fn shadowed(index: &Index, record: &JournalRecord) -> Result<Vec<Range<u64>>> {
    let end = (record.offset + record.len).div_ceil(BLOCK) as u32;
    let mut at = (record.offset / BLOCK) as u32;
    let mut shadowed = Vec::new();
    // A scan, because a discard may cover the whole segment, and a lookup costs memory for each block.
    while at < end {
        let scan = index.scan(record.segment, at, SCAN_ENTRIES).await?;
        for entry in scan.entries.iter().filter(|entry| entry.block < end && entry.end() > at) {
            if entry.version.sequence >= record.sequence {
                shadowed.push(sectors_of(entry.block.max(at)..entry.end().min(end)));
            }
        }
        at = scan.end;
    }
    Ok(shadowed)
}

fn sectors_of(blocks: Range<u32>) -> Range<u64> {
    let per_block = BLOCK / SECTOR;
    u64::from(blocks.start) * per_block..u64::from(blocks.end) * per_block
}

/// The parts of `record` outside of `shadowed` (by address), as records of the same sequence. Shadows are whole
/// blocks, so no fragment is cut, and every part keeps the checksums of its fragments.
fn uncovered(record: &JournalRecord, shadowed: &[Range<u64>]) -> Vec<JournalRecord> {
    let mut parts = Vec::new();
    let (mut at, end) = (record.offset, record.offset + record.len);
    let limits = shadowed.iter().map(|range| (range.start * SECTOR, range.end * SECTOR)).chain([(end, end)]);
    for (start, next) in limits {
        let stop = start.min(end);
        if stop > at {
            parts.push(part_of(record, at, stop));
        }
        at = at.max(next);
    }
    parts
}

fn part_of(record: &JournalRecord, start: u64, end: u64) -> JournalRecord {
    let operation = match &record.operation {
        Operation::Discard => Operation::Discard,
        Operation::Write { checksums, data } => {
            let first = (start / BLOCK - record.offset / BLOCK) as usize;
            let count = (end.div_ceil(BLOCK) - start / BLOCK) as usize;
            Operation::Write {
                checksums: checksums[first..first + count].to_vec(),
                data: data.slice((start - record.offset) as usize..(end - record.offset) as usize),
            }
        }
    };
    JournalRecord { offset: start, len: end - start, operation, ..record.clone() }
}

impl Recovered {
    /// Begins the new transaction log with everything that was decided. What only labels said comes first: when the
    /// checkpoint is there, no later start reads the labels of this life.
    pub(crate) async fn begin_log(&self) -> Result<()> {
        let core = &self.core;
        core.log.prepare().await?;
        // They were proven a moment ago, as was everything before: whoever starts next doubts none of it. If content rots in
        // all copies until then, that is a loss, and no write that never landed.
        let mut decided_through = LogSequence(self.next.0 - 1);
        for record in self.labelled.iter().filter(|_| !is_on("labelled-not-logged")) {
            let (sequence, _) = core.log.append_lazily(record);
            core.log.on_large_done(sequence);
            decided_through = sequence;
        }
        let mut checkpoint = core.compose_checkpoint();
        checkpoint.decided_through = decided_through;
        let start = checkpoint.replay_start();
        checkpoint.rejected.retain(|sequence| *sequence >= start);
        let (_, appended) = core.log.append(&Record::Checkpoint(checkpoint), Box::new(|_| ()));
        appended.await?;
        core.log.trim(start).await;
        Ok(())
    }

    /// Nothing of the files that there are is appended to, and nobody seals them.
    pub(crate) fn close_files(&self) {
        let core = &self.core;
        for file in self.lengths.keys() {
            let capacity = core.store.info(*file).map_or(0, |info| info.capacity);
            core.garbage.closed(*file, capacity, core.handle.now());
        }
    }
}

impl Core {
    /// Deletes names that stood for files without a good header when this life began, and that nobody refers to: what
    /// was lost there is nobody's.
    fn remove_unidentified(&self, unidentified: Vec<(FileId, FileKind)>, referenced: &BTreeSet<FileId>) {
        let mut needless = unidentified;
        needless.retain(|(file, _)| !referenced.contains(file));
        for (file, kind) in &needless {
            tracing::warn!(%file, ?kind, "nothing refers to a file without a good header: it is removed");
        }
        self.index.files().delete_in_background(needless.into_iter().map(|(file, _)| file).collect());
    }

    /// Deletes files of earlier incarnations that nobody refers to, and seals the data files among the others.
    async fn tidy(
        self: Rc<Self>,
        files_before: Vec<FileInfo>,
        referenced: BTreeSet<FileId>,
        lengths: BTreeMap<FileId, u64>,
    ) {
        let mut needless = Vec::new();
        for info in &files_before {
            match (info.kind, lengths.get(&info.id)) {
                (FileKind::Data | FileKind::Table, _) if !referenced.contains(&info.id) => {
                    tracing::debug!(file = %info.id, kind = ?info.kind, "nothing refers to a file of an earlier life");
                    needless.push(info.id);
                }
                (FileKind::Data, Some(length)) if info.sealed.is_none() && self.store.info(info.id).is_some() => {
                    if let Err(error) = self.store.seal(info.id, *length).await {
                        tracing::warn!(file = %info.id, %error, "a file was not sealed; the next start tries again");
                    }
                }
                _ => {}
            }
            if info.kind == FileKind::Data {
                let capacity = self.store.info(info.id).map_or(0, |info| info.capacity);
                self.garbage.closed(info.id, capacity, self.handle.now());
            }
        }
        self.index.files().delete_in_background(needless);
    }
}

#[cfg(test)]
mod tests;
