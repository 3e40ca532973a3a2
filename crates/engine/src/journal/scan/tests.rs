use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::io::fragment_checksums;
use base::{
    BLOCK, Bytes, Epoch, ErrorKind, Generation, Instant, MIB, Prng, SECTOR, SegmentId, SegmentSequence, SnapshotNumber,
    VolumeId, WriteSequence, WriteStamp,
};
use files::memory::{AppendFault, Memory, MemoryOptions};
use runtime::sim::{NodeId, NodeOptions, World};

use super::*;
use crate::cache::CacheMemory;
use crate::fusion::FusionWriteEngine;
use crate::journal::{JournalOptions, Operation};

/// What happened over all seeds: a test that never saw a torn tail proves nothing about them.
#[derive(Default, Debug)]
struct Coverage {
    acknowledged: u64,
    returned_unacknowledged: u64,
    torn_tails: u64,
    repaired: u64,
    failed_writes: u64,
    starts_in_the_middle: u64,
    rewritten: u64,
    rotations: u64,
    trims: u64,
}

/// A record that was submitted.
struct Submitted {
    record: JournalRecord,
    acknowledged: bool,
}

/// A journal over several lives, and what is known of its records.
struct Rig {
    world: World,
    node: NodeId,
    prng: Prng,
    disk: Memory,
    copies: u8,
    submitted: Rc<RefCell<BTreeMap<(SegmentId, SegmentSequence), Submitted>>>,
    next: BTreeMap<SegmentId, u64>,
    /// What the index durably has, and where its last record said that a replay starts.
    dumped: BTreeMap<SegmentId, SegmentSequence>,
    start: Option<JournalPosition>,
    /// What the last scan returned.
    shown: BTreeMap<(SegmentId, SegmentSequence), JournalRecord>,
}

impl Rig {
    fn new(seed: u64, copies: u8) -> Rig {
        let world = World::new(seed);
        let node = world.add_node(NodeOptions::default());
        let options = MemoryOptions { directories: copies, latency_ns: 20_000..400_000, ..MemoryOptions::default() };
        Rig {
            world,
            node,
            prng: Prng::new(seed),
            disk: Memory::new(seed, options),
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
        let segment = SegmentId { volume: VolumeId(1 + prng.below(2)), index: prng.below(3) as u32 };
        let sequence = self.next.entry(segment).or_insert(1);
        let len = match prng.below(8) {
            0 => prng.between(1, 512) * SECTOR,
            1..=3 => prng.between(1, 40) * SECTOR,
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
        *sequence += 1;
        JournalRecord {
            segment,
            epoch: Epoch(epoch),
            sequence: SegmentSequence(*sequence - 1),
            stamp: WriteStamp {
                generation: Generation(epoch),
                sequence: WriteSequence(prng.next_u64()),
                snapshot: SnapshotNumber(prng.below(9) as u32),
            },
            offset,
            len,
            operation,
        }
    }

    fn dumped_through(&self) -> impl Fn(SegmentId) -> SegmentSequence + use<> {
        let dumped = self.dumped.clone();
        move |segment| dumped.get(&segment).copied().unwrap_or_default()
    }

    /// Scans what the lives before left, in a new one.
    fn scan(&mut self, accept_data_loss: bool) -> Result<(Handle, Store, ScanReport)> {
        let handle = self.world.restart(self.node);
        let store = self.disk.open(&handle);
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
        Ok((handle, store, report))
    }

    /// Compares what a scan returned with what was submitted, and with what the scan before it had shown.
    fn check(&self, shown_before: &BTreeMap<(SegmentId, SegmentSequence), JournalRecord>, coverage: &mut Coverage) {
        let submitted = self.submitted.borrow();
        for (key, record) in &self.shown {
            let known = submitted.get(key).expect("what is returned was submitted");
            assert_eq!(&known.record, record);
            coverage.returned_unacknowledged += u64::from(!known.acknowledged);
        }
        let dumped = self.dumped_through();
        for (key, known) in submitted.iter().filter(|(key, _)| key.1 > dumped(key.0)) {
            assert!(!known.acknowledged || self.shown.contains_key(key), "lost: {key:?}");
            coverage.acknowledged += u64::from(known.acknowledged);
        }
        for key in shown_before.keys().filter(|key| key.1 > dumped(key.0)) {
            assert!(self.shown.contains_key(key), "shown once and then taken back: {key:?}");
        }
    }

    /// One life: writes, faults, dumps, and an end.
    fn live(&mut self, epoch: u64, coverage: &mut Coverage) {
        let shown = self.shown.clone();
        let (handle, store, report) = self.scan(false).unwrap();
        coverage.torn_tails += report.torn_tails;
        coverage.repaired += report.repaired_appends;
        self.check(&shown, coverage);
        if self.prng.one_in(4) {
            // Ended before it served anything: the next scan must decide the same.
            return self.end(&handle);
        }
        let options =
            JournalOptions { file_bytes: MIB, files_max: 5, copies: self.copies, log: 0, fusion_wait: Duration::ZERO };
        // A new owner's sequences continue behind what it found.
        for (segment, next) in &mut self.next {
            let shown = self.shown.keys().filter(|key| key.0 == *segment).map(|key| key.1.0).max().unwrap_or(0);
            let dumped = self.dumped.get(segment).map_or(0, |dumped| dumped.0);
            *next = shown.max(dumped) + 1;
            let mut submitted = self.submitted.borrow_mut();
            submitted.retain(|key, _| key.0 != *segment || key.1.0 < *next);
        }
        let engine = FusionWriteEngine::new(&handle, &store, options, &CacheMemory::new(), report.files);
        for _ in 0..self.prng.between(1, 60) {
            match self.prng.below(20) {
                0 => {
                    let fault = *self.prng.pick(&[AppendFault::Lost, AppendFault::Landed, AppendFault::Torn]);
                    let count = if self.prng.one_in(5) { 30 } else { 1 };
                    self.disk.fail_appends(None, count, fault);
                }
                1 => self.dump(&handle, &engine, coverage),
                2 => self.world.run_for(Duration::from_millis(self.prng.between(1, 100))),
                _ => {}
            }
            for _ in 0..self.prng.between(1, 8) {
                self.submit(&engine, epoch);
            }
            self.world.run_for(Duration::from_nanos(self.prng.below(300_000)));
        }
        if self.prng.one_in(2) {
            self.world.run_for(Duration::from_millis(500));
        }
        let statistics = engine.statistics();
        coverage.rewritten += statistics.rewritten_batches;
        coverage.rotations += statistics.files.saturating_sub(1);
        self.end(&handle);
    }

    fn submit(&mut self, engine: &FusionWriteEngine, epoch: u64) {
        let record = self.record(epoch);
        let key = (record.segment, record.sequence);
        self.submitted.borrow_mut().insert(key, Submitted { record: record.clone(), acknowledged: false });
        let submitted = self.submitted.clone();
        engine.submit(record, move |outcome| {
            let mut submitted = submitted.borrow_mut();
            let known = submitted.get_mut(&key).expect("it was submitted");
            known.acknowledged = outcome.is_ok();
        });
    }

    /// Some segments are dumped, and the journal is trimmed.
    fn dump(&mut self, handle: &Handle, engine: &FusionWriteEngine, coverage: &mut Coverage) {
        for (segment, next) in &self.next {
            // Every write up to here has an outcome: what failed has no effect.
            let submitted = self.submitted.borrow();
            let settled = submitted.iter().filter(|(key, known)| key.0 == *segment && known.acknowledged);
            let last = settled.map(|(key, _)| key.1).max();
            if let Some(last) = last.filter(|_| self.prng.one_in(2)) {
                let dumped = self.dumped.entry(*segment).or_default();
                *dumped = last.max(*dumped);
                assert!(last.0 < *next);
            }
        }
        let dumped = self.dumped_through();
        if self.prng.one_in(2) {
            self.start = engine.replay_start(&dumped);
        }
        let files = engine.statistics().files;
        let trimming = engine.clone();
        self.world.block_on(handle, async move { trimming.trim(dumped).await });
        coverage.trims += u64::from(files > 0);
    }

    fn end(&mut self, handle: &Handle) {
        self.disk.clear_faults();
        match self.prng.one_in(2) {
            true => self.disk.kill(),
            false => self.disk.power_loss(),
        }
        self.world.kill(self.node);
        let _ = handle;
    }
}

fn run(seed: u64, copies: u8, coverage: &mut Coverage) {
    let mut rig = Rig::new(seed, copies);
    for epoch in 1..=4 {
        rig.live(epoch, coverage);
        coverage.starts_in_the_middle += u64::from(rig.start.is_some());
    }
    let shown = rig.shown.clone();
    rig.scan(false).unwrap();
    rig.check(&shown, coverage);
}

#[test]
fn what_was_acknowledged_is_returned_and_nothing_else_than_what_was_submitted() {
    let base_seed = 0;
    let mut coverage = Coverage::default();
    for seed in base_seed..base_seed + 150 {
        println!("seed {seed}");
        run(seed, 1 + (seed % 2) as u8, &mut coverage);
    }
    println!("{coverage:?}");
    let Coverage { acknowledged, returned_unacknowledged, torn_tails, repaired, .. } = coverage;
    assert!(acknowledged > 0 && returned_unacknowledged > 0 && torn_tails > 0 && repaired > 0, "{coverage:?}");
}
