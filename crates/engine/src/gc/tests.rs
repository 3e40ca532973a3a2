//! Garbage collection on a small, full store: overwrites, discards, reads and restarts while it works; blocks that
//! cannot be read; and what it costs, under uniform and under skewed writes.

use std::collections::BTreeMap;

use base::checksum::block_checksum;
use base::{AlignedBuf, ErrorKind, MIB, Prng, ReadPart, SegmentSequence, VolumeId};
use files::FileKind;
use files::memory::{AppendFault, Memory, MemoryOptions};
use files::{CreateOptions, FileWriter, Redundancy};

use super::*;
use crate::index::{Entry, IndexOptions};
use crate::options::{EPOCH, Ownership};
use crate::reader::Reader;
use crate::testing::{TestLog, run};
use crate::verified::VerifiedFiles;

const SEGMENT: SegmentId = SegmentId { volume: VolumeId(7), index: 1 };

/// Shape of a store in a test.
#[derive(Clone, Copy)]
struct Shape {
    blocks: u32,
    capacity: u64,
    data_file_bytes: u64,
    copies: u8,
}

impl Shape {
    fn reserve(&self) -> u64 {
        // Tables take their part of it.
        4 * self.data_file_bytes + MIB
    }
}

/// One life of a small engine: dumps write whole blocks straight to data files.
#[derive(Clone)]
struct Life {
    shape: Shape,
    handle: Handle,
    memory: Memory,
    log: TestLog,
    index: Index,
    reader: Reader,
    gc: Gc,
    open: Rc<RefCell<Option<FileWriter>>>,
    /// Full files that a dump in flight still names.
    full: Rc<RefCell<Vec<(FileId, u64)>>>,
    sequence: Rc<Cell<u64>>,
    waiting: Rc<Cell<bool>>,
    /// The newest sequence of each block that was acknowledged; `None`: discarded.
    model: Rc<RefCell<BTreeMap<u32, Option<u64>>>>,
    written_bytes: Rc<Cell<u64>>,
}

/// What a block holds after the write `sequence`.
fn content(block: u32, sequence: u64) -> Vec<u8> {
    let mut bytes = vec![sequence as u8; BLOCK as usize];
    bytes[..4].copy_from_slice(&block.to_le_bytes());
    bytes[4..12].copy_from_slice(&sequence.to_le_bytes());
    bytes
}

fn sequence_of(block: u32, bytes: &[u8]) -> u64 {
    let sequence = u64::from_le_bytes(bytes[4..12].try_into().unwrap());
    assert!(bytes == content(block, sequence), "bytes of block {block}");
    sequence
}

impl Life {
    fn new(handle: &Handle, seed: u64, shape: Shape) -> Life {
        let options = MemoryOptions { capacity: shape.capacity, directories: shape.copies, ..MemoryOptions::default() };
        let (memory, log) = (Memory::new(seed, options), TestLog::new(handle, seed));
        Life::start(handle, shape, memory, log, Rc::default(), Rc::default())
    }

    fn start(
        handle: &Handle,
        shape: Shape,
        memory: Memory,
        log: TestLog,
        sequence: Rc<Cell<u64>>,
        written_bytes: Rc<Cell<u64>>,
    ) -> Life {
        let files = VerifiedFiles::new(handle, &memory.open(handle));
        let options = IndexOptions {
            page_cache_bytes: 1 << 20,
            memtable_bytes_max: 64 << 10,
            copies: shape.copies,
            ownership: Ownership::Whole,
        };
        let index = Index::new(&files, &Garbage::new(), options);
        let waiting: Rc<Cell<bool>> = Rc::default();
        let (store, writers_wait) = (files.store().clone(), waiting.clone());
        let space = move || {
            let space = store.space();
            GcSpace {
                capacity_bytes: space.capacity,
                free_bytes: space.free,
                reserve_bytes: shape.reserve(),
                kept_bytes: 0,
                writers_wait: writers_wait.get(),
            }
        };
        let gc_options = GcOptions {
            settings: GcSettings { copy_bytes_per_sec: 1 << 40, ..GcSettings::default() },
            data_file_bytes_max: shape.data_file_bytes,
            copies: shape.copies,
        };
        let gc = Gc::new(&index, Rc::new(log.clone()), space, gc_options);
        let (handle, reader) =
            (handle.clone(), Reader::new(&index, policies::read_ahead::ReadAheadSettings::default()));
        let (open, model) = (Rc::default(), Rc::default());
        let full = Rc::default();
        Life { shape, handle, memory, log, index, reader, gc, open, full, sequence, waiting, model, written_bytes }
    }

    /// Everything a recovery does, in short.
    async fn restart(self) -> Life {
        let (log, handle) = (self.log.crash(), self.handle.clone());
        let life = Life::start(&handle, self.shape, self.memory, log, self.sequence, self.written_bytes);
        let tables = life.log.tables(SEGMENT);
        life.index.restore(SEGMENT, EPOCH, &tables);
        let garbage = life.index.garbage().clone();
        let mut data_files: BTreeMap<FileId, SegmentId> = BTreeMap::new();
        for (_, record) in life.log.records() {
            match record {
                Record::DataFile { segment, file } => drop(data_files.insert(file, segment)),
                Record::DropFile { file, .. } => drop(data_files.remove(&file)),
                _ => (),
            }
        }
        let store = life.index.files().store().clone();
        for info in store.list() {
            let is_table = tables.tables.iter().any(|table| table.file == info.id);
            match (info.kind, data_files.get(&info.id)) {
                (FileKind::Data, Some(segment)) => {
                    let length = info.sealed.unwrap_or(info.capacity);
                    store.seal(info.id, length).await.unwrap();
                    garbage.opened(*segment, info.id, length);
                    garbage.appended(info.id, length / BLOCK);
                    garbage.closed(info.id, length, handle.now());
                }
                (FileKind::Table, _) if is_table => (),
                _ => store.delete(info.id).await.unwrap(),
            }
        }
        life.log.tail(SEGMENT).iter().for_each(|entries| life.index.apply(SEGMENT, entries));
        let mut newest: BTreeMap<u32, (u64, bool)> = BTreeMap::new();
        for (_, record) in life.log.records() {
            let Record::Dump { entries, .. } = record else { continue };
            for entry in entries {
                for block in entry.block..entry.end() {
                    let this = (entry.version.sequence.0, entry.file().is_some());
                    let best = newest.entry(block).or_insert(this);
                    *best = this.max(*best);
                }
            }
        }
        *life.model.borrow_mut() = newest.into_iter().map(|(b, (s, is_data))| (b, is_data.then_some(s))).collect();
        life
    }

    /// Ends files that are full and that no record in flight names.
    async fn close_full_files(&self) {
        let full = std::mem::take(&mut *self.full.borrow_mut());
        for (file, length) in full {
            self.index.files().store().seal(file, length).await.unwrap();
            self.index.garbage().closed(file, length, self.handle.now());
        }
    }

    /// Waits for space as admission does, and returns a file with room.
    async fn writable(&self) -> (FileWriter, u64) {
        if let Some(writer) = self.open.borrow_mut().take() {
            if writer.room() > 0 && !writer.has_failed() {
                let room = writer.room();
                return (writer, room);
            }
            self.full.borrow_mut().push((writer.id(), writer.position()));
        }
        let store = self.index.files().store();
        while store.space().free < self.shape.reserve() + self.shape.data_file_bytes {
            self.waiting.set(true);
            self.index.garbage().changed().notify();
            self.handle.sleep(Duration::from_millis(1)).await;
        }
        self.waiting.set(false);
        let options = CreateOptions {
            kind: FileKind::Data,
            capacity: self.shape.data_file_bytes,
            redundancy: Redundancy::Copies(self.shape.copies),
            prepared: false,
            epoch: EPOCH,
            segment: None,
            claim: files::Claim::Use,
        };
        let writer = store.create(options).await.unwrap();
        self.index.garbage().opened(SEGMENT, writer.id(), self.shape.data_file_bytes);
        let record = Record::DataFile { segment: SEGMENT, file: writer.id() };
        drop(self.log.log(record, Box::new(|_| ())));
        let room = writer.room();
        (writer, room)
    }

    /// Writes whole blocks and discards others, as one dump. One at a time.
    async fn dump(&self, writes: &[u32], discards: &[(u32, u32)]) {
        self.index.room().await.unwrap();
        let (mut entries, mut rest) = (Vec::new(), writes);
        while !rest.is_empty() {
            let (mut writer, room) = self.writable().await;
            let (now, later) = rest.split_at(rest.len().min((room / BLOCK) as usize));
            rest = later;
            let (mut bytes, file, offset) = (Vec::new(), writer.id(), writer.position());
            for (index, &block) in (0..).zip(now) {
                let sequence = self.next_sequence();
                let data = content(block, sequence);
                let checksum = block_checksum(SEGMENT.volume, 1 << 32 | u64::from(block), &data);
                bytes.extend_from_slice(&data);
                entries.push(Entry::data(block, SegmentSequence(sequence), file, offset + index * BLOCK, checksum));
            }
            self.index.garbage().appended(file, now.len() as u64);
            self.written_bytes.set(self.written_bytes.get() + bytes.len() as u64);
            writer.append(AlignedBuf::copy_of(&bytes).freeze()).await.unwrap();
            *self.open.borrow_mut() = Some(writer);
        }
        for &(block, count) in discards {
            entries.push(Entry::zeros(block, count, SegmentSequence(self.next_sequence())));
        }
        let through = SegmentSequence(self.sequence.get());
        let (index, model, applied) = (self.index.clone(), self.model.clone(), entries.clone());
        let apply = move |_| {
            index.apply(SEGMENT, &applied);
            for entry in applied {
                let sequence = entry.file().map(|_| entry.version.sequence.0);
                model.borrow_mut().extend((entry.block..entry.end()).map(|block| (block, sequence)));
            }
        };
        let record = Record::Dump { segment: SEGMENT, epoch: EPOCH, through, replay: None, entries };
        let _ = self.log.log(record, Box::new(apply)).await;
        self.close_full_files().await;
    }

    fn next_sequence(&self) -> u64 {
        self.sequence.set(self.sequence.get() + 1);
        self.sequence.get()
    }

    /// Reads a block and checks that what it holds is not older than what was acknowledged before.
    async fn check_block(&self, block: u32) {
        let expected = self.model.borrow().get(&block).copied().flatten();
        let parts = self
            .reader
            .read(SEGMENT, u64::from(block) * BLOCK, BLOCK, Vec::new, Instant::ZERO, &mut base::Passage::default())
            .await
            .unwrap();
        let now = self.model.borrow().get(&block).copied().flatten();
        match &parts[..] {
            [ReadPart::Data(bytes)] => {
                let found = sequence_of(block, bytes);
                assert!(found >= expected.unwrap_or(0), "block {block}: {found}, acknowledged was {expected:?}");
            }
            [ReadPart::Zeros(_)] => assert!(expected.is_none() || now.is_none(), "block {block} was lost"),
            other => panic!("{other:?}"),
        }
    }

    async fn check_all(&self) {
        for block in 0..self.shape.blocks {
            self.check_block(block).await;
        }
    }

    fn live_blocks(&self) -> u64 {
        self.model.borrow().values().flatten().count() as u64
    }
}

fn small() -> Shape {
    Shape { blocks: 1500, capacity: 14 * MIB, data_file_bytes: MIB / 2, copies: 1 }
}

async fn overwrite(life: Life, mut prng: Prng, dumps: u64) {
    for _ in 0..dumps {
        let blocks = u64::from(life.shape.blocks);
        let writes: Vec<u32> = (0..prng.between(1, 100)).map(|_| prng.below(blocks) as u32).collect();
        let discard = |prng: &mut Prng| {
            let block = prng.below(blocks) as u32;
            (block, prng.between(1, (blocks - u64::from(block)).min(40)) as u32)
        };
        let discards: Vec<(u32, u32)> = (0..prng.below(3)).map(|_| discard(&mut prng)).collect();
        life.dump(&writes, &discards).await;
        life.handle.sleep(Duration::from_micros(prng.below(500))).await;
    }
}

#[test]
fn nothing_is_lost_under_overwrites_reads_and_restarts() {
    let (mut moved, mut removed) = (0, 0);
    for seed in 0..12 {
        let statistics = run(seed, move |handle| async move {
            let mut prng = Prng::new(seed);
            let mut life = Life::new(&handle, seed, small());
            let mut total = GcStatistics::default();
            for _ in 0..3 {
                let tasks = life.index.spawn_maintenance(Rc::new(life.log.clone()));
                let collector = life.gc.spawn();
                let dumps = prng.between(30, 160);
                let writer = handle.spawn(Class::Io, "writer", overwrite(life.clone(), prng.fork(), dumps));
                let mut readers = Vec::new();
                for _ in 0..4 {
                    let (life, mut prng) = (life.clone(), prng.fork());
                    readers.push(handle.spawn(Class::Io, "reader", async move {
                        loop {
                            life.check_block(prng.below(u64::from(life.shape.blocks)) as u32).await;
                            life.handle.sleep(Duration::from_micros(prng.below(300))).await;
                        }
                    }));
                }
                match prng.one_in(2) {
                    true => writer.await,
                    false => {
                        handle.sleep(Duration::from_millis(prng.below(60))).await;
                        drop(writer);
                    }
                }
                let statistics = life.gc.statistics();
                total.moved_bytes += statistics.moved_bytes;
                total.removed_files += statistics.removed_files;
                // A kill: everything stops where it is.
                drop((tasks, collector, readers));
                life = life.restart().await;
                life.check_all().await;
            }
            total
        });
        moved += statistics.moved_bytes;
        removed += statistics.removed_files;
    }
    assert!(moved > 10 * MIB && removed > 100, "GC had something to do: {moved} bytes moved, {removed} files removed");
}

#[test]
fn a_block_that_no_copy_has_keeps_its_file() {
    run(1, |handle| async move {
        let shape = Shape { copies: 2, ..small() };
        let life = Life::new(&handle, 1, shape);
        life.dump(&(0..128).collect::<Vec<_>>(), &[]).await;
        life.dump(&(200..210).collect::<Vec<_>>(), &[]).await;
        let file = life.index.garbage().files(SEGMENT)[0].file;
        for copy in 0..2 {
            life.memory.corrupt(file, copy, 7 * BLOCK..7 * BLOCK + 1);
        }
        life.memory.corrupt(file, 0, 9 * BLOCK..9 * BLOCK + 1);
        handle.sleep(Duration::from_millis(5)).await;
        life.gc.pass(SEGMENT, vec![file]).await.unwrap();
        let statistics = life.gc.statistics();
        assert_eq!((statistics.moved_bytes, statistics.stuck_files, statistics.removed_files), (127 * BLOCK, 1, 0));
        for block in (0..7).chain(8..128) {
            life.check_block(block).await;
        }
        let error = life
            .reader
            .read(SEGMENT, 7 * BLOCK, BLOCK, Vec::new, Instant::ZERO, &mut base::Passage::default())
            .await
            .unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt);
        assert!(life.index.files().store().info(file).is_some());
    });
}

#[test]
fn a_failed_move_changes_nothing() {
    run(2, |handle| async move {
        let life = Life::new(&handle, 2, small());
        life.dump(&(0..128).collect::<Vec<_>>(), &[]).await;
        life.dump(&(0..20).collect::<Vec<_>>(), &[]).await;
        handle.sleep(Duration::from_millis(5)).await;
        let file = life.index.garbage().files(SEGMENT)[0].file;
        for fault in [AppendFault::Lost, AppendFault::Torn, AppendFault::Landed] {
            life.memory.fail_appends(Some(FileKind::Data), 1, fault);
            assert_eq!(life.gc.pass(SEGMENT, vec![file]).await.unwrap_err().kind, ErrorKind::Io);
            life.check_all().await;
            // What failed is not within the seal.
            let newest = life.index.files().store().list().into_iter().filter(|info| info.kind == FileKind::Data);
            assert_eq!(newest.max_by_key(|info| info.id).unwrap().sealed, Some(0));
        }
        life.gc.pass(SEGMENT, vec![file]).await.unwrap();
        assert!(life.index.files().store().info(file).is_none());
        assert_eq!(life.gc.statistics().moved_bytes, 108 * BLOCK);
        life.check_all().await;
    });
}

#[test]
fn a_count_finds_garbage_that_no_merge_has_seen() {
    run(3, |handle| async move {
        let life = Life::new(&handle, 3, small());
        let sink = life.log.clone();
        for _ in 0..3 {
            life.dump(&(0..128).collect::<Vec<_>>(), &[]).await;
            life.index.flush_all(&sink).await.unwrap();
        }
        life.dump(&[], &[(0, 100)]).await;
        life.index.flush_all(&sink).await.unwrap();
        handle.sleep(Duration::from_millis(5)).await;
        let garbage = life.index.garbage().clone();
        let live = || garbage.files(SEGMENT).iter().map(|file| file.live_blocks_max).collect::<Vec<_>>();
        assert_eq!(live(), [128, 128, 128]);
        life.gc.pass(SEGMENT, Vec::new()).await.unwrap();
        // The last file is still open; what is written to it is not known to be final.
        assert_eq!(live(), [0, 0, 128]);
        assert_eq!(garbage.stale_blocks(SEGMENT), 0);
        let collector = life.gc.spawn();
        while garbage.files(SEGMENT).len() > 1 {
            handle.sleep(Duration::from_millis(1)).await;
        }
        drop(collector);
        assert_eq!(life.index.files().store().list().iter().filter(|info| info.kind == FileKind::Data).count(), 1);
        life.check_all().await;
    });
}

#[test]
fn a_dropped_volume_leaves_nothing() {
    run(4, |handle| async move {
        let life = Life::new(&handle, 4, small());
        let tasks = life.index.spawn_maintenance(Rc::new(life.log.clone()));
        let collector = life.gc.spawn();
        let writer = handle.spawn(Class::Io, "writer", overwrite(life.clone(), Prng::new(4), 100));
        handle.sleep(Duration::from_millis(20)).await;
        drop(writer);
        while life.log.in_flight() > 0 {
            handle.sleep(Duration::from_micros(10)).await;
        }
        life.index.drop_volume(SEGMENT.volume);
        handle.sleep(Duration::from_millis(50)).await;
        drop((tasks, collector));
        assert_eq!(life.index.memtable_bytes(), 0);
        let left: Vec<_> = life.index.files().store().list().into_iter().filter(|info| info.sealed.is_some()).collect();
        assert!(left.is_empty(), "{left:?}");
    });
}

/// Whatever a pass is about when its volume is dropped, it logs nothing about it any more.
#[test]
fn a_pass_over_a_dropped_segment_is_silent() {
    let mut moved = 0;
    for seed in 0..40 {
        moved += run(seed, move |handle| async move {
            let life = Life::new(&handle, seed, small());
            let tasks = life.index.spawn_maintenance(Rc::new(life.log.clone()));
            let collector = life.gc.spawn();
            let writer = handle.spawn(Class::Io, "writer", overwrite(life.clone(), Prng::new(seed), 1_000));
            handle.sleep(Duration::from_millis(50) + Duration::from_micros(seed * 487)).await;
            drop(writer);
            while life.log.in_flight() > 0 {
                handle.sleep(Duration::from_micros(10)).await;
            }
            let before = life.log.records();
            life.index.drop_volume(SEGMENT.volume);
            handle.sleep(Duration::from_millis(50)).await;
            drop((tasks, collector));
            let after = life.log.records();
            assert_eq!(after.len(), before.len(), "seed {seed}: {:?}", &after[before.len()..]);
            before.iter().filter(|(_, record)| matches!(record, Record::Relocate { .. })).count()
        });
    }
    assert!(moved > 0, "no pass was under way");
}

/// Bytes that writes and GC wrote, by what writes wrote, in a store of which `live_percent` are live.
fn write_amplification(seed: u64, live_percent: u64, mut next: impl FnMut(&mut Prng, u32) -> u32 + 'static) -> f64 {
    run(seed, move |handle| async move {
        let blocks: u32 = 12 * 1024;
        let mut shape = Shape { blocks, capacity: 0, data_file_bytes: MIB, copies: 1 };
        let usable = u64::from(blocks) * BLOCK * 100 / live_percent;
        shape.capacity = usable + shape.reserve();
        let mut prng = Prng::new(seed);
        let life = Life::new(&handle, seed, shape);
        let _tasks = life.index.spawn_maintenance(Rc::new(life.log.clone()));
        let _collector = life.gc.spawn();
        let order: Vec<u32> = (0..blocks).collect();
        for chunk in order.chunks(128) {
            life.dump(chunk, &[]).await;
        }
        let mut before = (0, 0);
        for round in 0..6 {
            if round == 2 {
                before = (life.written_bytes.get(), life.gc.statistics().moved_bytes);
            }
            for _ in 0..blocks / 128 {
                let writes: Vec<u32> = (0..128).map(|_| next(&mut prng, blocks)).collect();
                life.dump(&writes, &[]).await;
            }
        }
        assert_eq!(life.live_blocks(), u64::from(blocks));
        let written = (life.written_bytes.get() - before.0) as f64;
        (written + (life.gc.statistics().moved_bytes - before.1) as f64) / written
    })
}

/// GC write amplification as EBS counts it (FAST 2024, §2.2): bytes written by the server and GC, by those written by
/// the server. The bounds keep the policy from getting worse by accident; see docs for what is reached.
#[test]
fn write_amplification_stays_low() {
    let uniform = |prng: &mut Prng, blocks: u32| prng.below(u64::from(blocks)) as u32;
    // Nine of ten writes go to a tenth of the blocks.
    let skewed = |prng: &mut Prng, blocks: u32| match prng.below(10) {
        0 => prng.below(u64::from(blocks)) as u32,
        _ => prng.below(u64::from(blocks / 10)) as u32 * 10,
    };
    let mut results = Vec::new();
    for (name, live_percent, bound) in
        [("uniform", 50, 1.55), ("uniform", 70, 2.6), ("skewed", 50, 1.4), ("skewed", 70, 1.8)]
    {
        let amplification = match name {
            "uniform" => write_amplification(11, live_percent, uniform),
            _ => write_amplification(12, live_percent, skewed),
        };
        println!("{name} overwrites at {live_percent}% live: {amplification:.2}");
        results.push((name, live_percent, amplification, bound));
    }
    for (name, live_percent, amplification, bound) in results {
        assert!(amplification < bound, "{name} at {live_percent}%: {amplification:.2}");
    }
}

#[test]
fn a_segment_whose_index_cannot_be_read_does_not_stop_the_others() {
    run(6, |handle| async move {
        let life = Life::new(&handle, 6, Shape { capacity: 64 * MIB, ..small() });
        for _ in 0..3 {
            life.dump(&(0..128).collect::<Vec<_>>(), &[]).await;
        }
        life.index.flush_all(&life.log).await.unwrap();
        let table = life.index.tables(SEGMENT).tables[0].file;
        life.memory.corrupt(table, 0, 0..1);
        // Another segment, with a dead file.
        let other = SegmentId { index: 2, ..SEGMENT };
        let options = CreateOptions {
            kind: FileKind::Data,
            capacity: MIB,
            redundancy: Redundancy::Copies(1),
            prepared: false,
            epoch: EPOCH,
            segment: None,
            claim: files::Claim::Use,
        };
        let store = life.index.files().store().clone();
        let dead = store.create(options).await.unwrap().id();
        let garbage = life.index.garbage().clone();
        garbage.opened(other, dead, MIB);
        garbage.closed(dead, MIB, handle.now());
        life.waiting.set(true);
        garbage.add_stale(SEGMENT, 10_000);
        let _collector = life.gc.spawn();
        handle.sleep(Duration::from_millis(200)).await;
        assert!(store.info(dead).is_none());
        assert_eq!(life.gc.0.resting.borrow().len(), 1);
        life.waiting.set(false);
    });
}
