//! A journal over several lives of its store, and what is known of its records.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use base::io::fragment_checksums;
use base::{
    BLOCK, Bytes, Epoch, Generation, MIB, Prng, SECTOR, SegmentSequence, SnapshotNumber, VolumeId, WriteSequence,
    WriteStamp,
};
use files::local::{self, LocalOptions};
use files::memory::{AppendFault, Memory, MemoryOptions};
use runtime::sim::{DiskOptions, Fault, NodeId, NodeOptions, World};

use super::super::*;
use crate::cache::CacheMemory;
use crate::fusion::FusionWriteEngine;
use crate::journal::{JournalOptions, Operation};

/// What happened over all seeds: a test that never saw a torn tail proves nothing about them.
#[derive(Default, Debug)]
pub(super) struct Coverage {
    pub(super) acknowledged: u64,
    pub(super) landed_unacknowledged: u64,
    pub(super) torn_tails: u64,
    pub(super) repaired_appends: u64,
    pub(super) failed_writes: u64,
    pub(super) rewritten_batches: u64,
    pub(super) replays_from_the_middle: u64,
    pub(super) new_files: u64,
    pub(super) trims: u64,
    pub(super) lost_copies: u64,
}

impl Coverage {
    /// Everything happened at least once.
    pub(super) fn assert_complete(&self) {
        let all = [
            self.acknowledged,
            self.landed_unacknowledged,
            self.torn_tails,
            self.repaired_appends,
            self.failed_writes,
            self.rewritten_batches,
            self.replays_from_the_middle,
            self.new_files,
            self.trims,
            self.lost_copies,
        ];
        assert!(all.iter().all(|count| *count > 0), "something never happened: {self:?}");
    }
}

pub(super) type Key = (base::SegmentId, SegmentSequence);

/// What is below the journal.
pub(super) enum Disk {
    Memory(Memory),
    /// Directories on disks of the node, one each.
    Local(Vec<PathBuf>),
}

struct Submitted {
    record: JournalRecord,
    outcome: Option<bool>,
}

pub(super) struct Rig {
    pub(super) world: World,
    pub(super) node: NodeId,
    pub(super) prng: Prng,
    pub(super) disk: Disk,
    pub(super) copies: u8,
    submitted: Rc<RefCell<BTreeMap<Key, Submitted>>>,
    next: BTreeMap<base::SegmentId, u64>,
    /// What the index durably has, and where its last record said that a replay starts.
    dumped: BTreeMap<base::SegmentId, SegmentSequence>,
    start: Option<JournalPosition>,
    /// What the last scan returned.
    pub(super) shown: BTreeMap<Key, JournalRecord>,
}

/// A life of the store, after its scan.
pub(super) struct Life {
    pub(super) handle: Handle,
    pub(super) store: Store,
    pub(super) report: ScanReport,
}

impl Rig {
    pub(super) fn memory(seed: u64, copies: u8) -> Rig {
        let options = MemoryOptions { directories: copies, latency_ns: 20_000..400_000, ..MemoryOptions::default() };
        Self::new(seed, copies, NodeOptions::default(), Disk::Memory(Memory::new(seed, options)))
    }

    pub(super) fn local(seed: u64, copies: u8) -> Rig {
        let paths: Vec<PathBuf> = (0..copies).map(|copy| PathBuf::from(format!("/disk{copy}"))).collect();
        let node = NodeOptions::with_disks(paths.clone(), &DiskOptions::default());
        Self::new(seed, copies, node, Disk::Local(paths.iter().map(|path| path.join("store")).collect()))
    }

    fn new(seed: u64, copies: u8, node: NodeOptions, disk: Disk) -> Rig {
        let world = World::new(seed);
        let node = world.add_node(node);
        Rig {
            world,
            node,
            prng: Prng::new(seed),
            disk,
            copies,
            submitted: Rc::default(),
            next: BTreeMap::new(),
            dumped: BTreeMap::new(),
            start: None,
            shown: BTreeMap::new(),
        }
    }

    fn record(&mut self, epoch: u64) -> JournalRecord {
        let prng = &mut self.prng;
        let segment = base::SegmentId { volume: VolumeId(1 + prng.below(2)), index: prng.below(3) as u32 };
        let sequence = self.next.entry(segment).or_insert(1);
        *sequence += 1;
        let len = match prng.below(16) {
            0 => prng.between(1, 512) * SECTOR,
            1..=6 => prng.between(1, 20) * SECTOR,
            _ => BLOCK,
        };
        let offset = prng.below(1 << 20) * SECTOR;
        let operation = match prng.one_in(8) {
            true => Operation::Discard,
            false => {
                let mut data = vec![0; len as usize];
                prng.fill(&mut data);
                Operation::Write { checksums: fragment_checksums(segment, offset, &data), data: Bytes::from(data) }
            }
        };
        let stamp = WriteStamp {
            generation: Generation(epoch),
            sequence: WriteSequence(prng.next_u64()),
            snapshot: SnapshotNumber(prng.below(9) as u32),
        };
        let sequence = SegmentSequence(*sequence - 1);
        JournalRecord { segment, epoch: Epoch(epoch), sequence, stamp, offset, len, operation }
    }

    fn dumped_through(&self) -> impl Fn(base::SegmentId) -> SegmentSequence + use<> {
        let dumped = self.dumped.clone();
        move |segment| dumped.get(&segment).copied().unwrap_or_default()
    }

    fn open(&self, handle: &Handle) -> Store {
        match &self.disk {
            Disk::Memory(memory) => memory.open(handle),
            Disk::Local(directories) => {
                let options = LocalOptions { copies: self.copies, ..LocalOptions::new(directories.clone()) };
                let inner = handle.clone();
                self.world.block_on(handle, async move { local::open(&inner, options).await.unwrap().0 })
            }
        }
    }

    /// Begins a life: scans what the lives before left.
    pub(super) fn scan(&mut self, accept_data_loss: bool) -> Result<Life> {
        let handle = self.world.restart(self.node);
        let store = self.open(&handle);
        let (inner, scanned) = ((handle.clone(), store.clone()), Rc::new(RefCell::new(Vec::new())));
        let (visited, options) = (scanned.clone(), ScanOptions { start: self.start, accept_data_loss });
        let report = self.world.block_on(&handle, async move {
            let files = inner.1.list();
            crate::journal::scan(&inner.0, &inner.1, &files, &options, |record| visited.borrow_mut().push(record)).await
        })?;
        self.shown.clear();
        let mut last = BTreeMap::new();
        for record in scanned.take() {
            let before = last.insert(record.segment, (record.epoch, record.sequence));
            assert!(before < Some((record.epoch, record.sequence)), "in the order of each segment");
            self.shown.insert((record.segment, record.sequence), record);
        }
        assert_eq!(report.records, self.shown.len() as u64);
        Ok(Life { handle, store, report })
    }

    /// Compares what a scan returned with what was submitted, and with what the scan before it had shown. What it did
    /// not return is gone for good: nobody may see it later.
    pub(super) fn check(&mut self, shown_before: &BTreeMap<Key, JournalRecord>, coverage: &mut Coverage) {
        let dumped = self.dumped_through();
        let mut submitted = self.submitted.borrow_mut();
        for (key, record) in &self.shown {
            let known = submitted.get(key).expect("what is returned was submitted");
            assert_eq!(&known.record, record);
            coverage.landed_unacknowledged += u64::from(known.outcome != Some(true));
        }
        for (key, known) in submitted.iter().filter(|(key, _)| key.1 > dumped(key.0)) {
            let acknowledged = known.outcome == Some(true);
            assert!(!acknowledged || self.shown.contains_key(key), "lost: {key:?}");
            coverage.acknowledged += u64::from(acknowledged);
        }
        for key in shown_before.keys().filter(|key| key.1 > dumped(key.0)) {
            assert!(self.shown.contains_key(key), "shown once and then taken back: {key:?}");
        }
        submitted.retain(|key, _| self.shown.contains_key(key) || key.1 <= dumped(key.0));
    }

    pub(super) fn engine(&mut self, life: &mut Life) -> FusionWriteEngine {
        // As a new owner does, the sequences continue behind what was found.
        for (segment, next) in &mut self.next {
            let shown = self.shown.keys().filter(|key| key.0 == *segment).map(|key| key.1.0).max().unwrap_or(0);
            *next = shown.max(self.dumped.get(segment).map_or(0, |dumped| dumped.0)) + 1;
            let gone = |key: &Key| key.0 == *segment && key.1.0 >= *next;
            self.submitted.borrow_mut().retain(|key, _| !gone(key));
        }
        let options =
            JournalOptions { file_bytes: MIB, files_max: 5, copies: self.copies, log: 0, fusion_wait: Duration::ZERO };
        let recovered = std::mem::take(&mut life.report.files);
        FusionWriteEngine::new(&life.handle, &life.store, options, &CacheMemory::new(), recovered)
    }

    pub(super) fn submit(&mut self, engine: &FusionWriteEngine, epoch: u64) {
        let record = self.record(epoch);
        let key = (record.segment, record.sequence);
        self.submitted.borrow_mut().insert(key, Submitted { record: record.clone(), outcome: None });
        let submitted = self.submitted.clone();
        engine.submit(record, move |outcome| {
            let known = &mut submitted.borrow_mut();
            known.get_mut(&key).expect("it was submitted").outcome = Some(outcome.is_ok());
        });
    }

    /// Takes one copy of each journal file away, as a lost disk does. What was acknowledged is in the other one, and
    /// so is what a scan has shown.
    fn lose_copies(&mut self, coverage: &mut Coverage) {
        let Disk::Memory(memory) = &self.disk else { return };
        if self.copies < 2 || !self.prng.one_in(4) {
            return;
        }
        for info in memory.open_untimed().list().iter().filter(|info| info.copies == info.copies_wanted) {
            memory.drop_copy(info.id, self.prng.below(u64::from(self.copies)) as u8);
            coverage.lost_copies += 1;
        }
    }

    /// One life: writes, faults, dumps, and an end.
    pub(super) fn live(&mut self, epoch: u64, coverage: &mut Coverage) {
        let shown = self.shown.clone();
        self.lose_copies(coverage);
        let mut life = self.scan(false).unwrap();
        coverage.torn_tails += life.report.torn_tails;
        coverage.repaired_appends += life.report.repaired_appends;
        coverage.replays_from_the_middle += u64::from(self.start.is_some_and(|start| start.offset > 0));
        self.check(&shown, coverage);
        if self.prng.one_in(4) {
            // Ended before it served anything: the next scan must decide the same.
            return self.end();
        }
        let engine = self.engine(&mut life);
        for _ in 0..self.prng.between(1, 50) {
            match self.prng.below(20) {
                0 => self.fail_appends(),
                1 => self.dump(&life, &engine, coverage),
                2 => self.world.run_for(Duration::from_millis(self.prng.between(1, 100))),
                _ => {}
            }
            for _ in 0..self.prng.between(1, 8) {
                self.submit(&engine, epoch);
            }
            self.world.run_for(Duration::from_nanos(self.prng.below(300_000)));
        }
        if self.prng.one_in(3) {
            self.world.run_for(Duration::from_millis(500));
        }
        let statistics = engine.statistics();
        coverage.rewritten_batches += statistics.rewritten_batches;
        coverage.new_files += statistics.files;
        coverage.failed_writes +=
            self.submitted.borrow().values().filter(|known| known.outcome == Some(false)).count() as u64;
        self.end();
    }

    fn fail_appends(&mut self) {
        let count = if self.prng.one_in(5) { 30 } else { 1 };
        match &self.disk {
            Disk::Memory(memory) => {
                let fault = *self.prng.pick(&[AppendFault::Lost, AppendFault::Landed, AppendFault::Torn]);
                memory.fail_appends(None, count, fault);
            }
            // With several disks the store goes on without the one that fails, and then has no way back in this test.
            Disk::Local(directories) if directories.len() == 1 => {
                self.world.disk(self.node, "/disk0").inject(Fault::WriteError, count as u64);
            }
            Disk::Local(_) => {}
        }
    }

    /// Some segments are dumped, and the journal is trimmed.
    fn dump(&mut self, life: &Life, engine: &FusionWriteEngine, coverage: &mut Coverage) {
        for segment in self.next.keys() {
            let submitted = self.submitted.borrow();
            let settled = submitted.iter().filter(|(key, known)| key.0 == *segment && known.outcome == Some(true));
            let last = settled.map(|(key, _)| key.1).max();
            if let Some(last) = last.filter(|_| self.prng.one_in(2)) {
                let dumped = self.dumped.entry(*segment).or_default();
                *dumped = last.max(*dumped);
            }
        }
        let dumped = self.dumped_through();
        if self.prng.one_in(2) {
            self.start = engine.replay_start(&dumped);
        }
        let trimming = engine.clone();
        self.world.block_on(&life.handle, async move { trimming.trim(dumped, async |_| Ok(())).await });
        coverage.trims += 1;
    }

    /// The process or the machine dies.
    pub(super) fn end(&mut self) {
        let kill = self.prng.one_in(2);
        match &self.disk {
            Disk::Memory(memory) => {
                memory.clear_faults();
                if kill { memory.kill() } else { memory.power_loss() }
            }
            Disk::Local(directories) => {
                for index in 0..directories.len() {
                    self.world.disk(self.node, format!("/disk{index}")).stop_injections();
                }
            }
        }
        if kill { self.world.kill(self.node) } else { self.world.power_loss(self.node) }
    }

    /// Flips bits in `range` of one copy of a file.
    pub(super) fn rot(&self, life: &Life, file: FileId, copy: u8, range: std::ops::Range<u64>) {
        match &self.disk {
            Disk::Memory(memory) => memory.corrupt(file, copy, range),
            Disk::Local(directories) => {
                let path = PathBuf::from(life.store.locate(file, copy));
                let index = directories.iter().position(|directory| path.starts_with(directory)).expect("a directory");
                let mount = format!("/disk{index}");
                let path = path.strip_prefix(&mount).expect("a directory is on its disk");
                // 4 KiB of header stand before the content.
                let range = range.start + BLOCK..range.end + BLOCK;
                self.world.disk(self.node, &mount).corrupt(path, range);
            }
        }
    }

    /// What an inspection finds damaged.
    pub(super) fn inspect(&self, life: &Life) -> Vec<crate::journal::DamagedAppend> {
        let (handle, store) = (life.handle.clone(), life.store.clone());
        let inspect = async move { crate::journal::inspect(&handle, &store, |_| ()).await };
        self.world.block_on(&life.handle, inspect).unwrap().damage
    }

    /// The headers of every append that counts, by file.
    pub(super) fn headers(&self, life: &Life) -> Vec<AppendHeader> {
        let (handle, store) = (life.handle.clone(), life.store.clone());
        let found = Rc::new(Cell::new(Vec::new()));
        let headers = found.clone();
        self.world.block_on(&life.handle, async move {
            let mut all = Vec::new();
            for info in store.list() {
                all.extend(Source::new(&handle, &store, info).headers_from(0).await.unwrap());
            }
            headers.set(all);
        });
        found.take()
    }
}
