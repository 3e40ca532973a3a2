//! What the write path costs the processor between submission and cache, without a disk.
//!
//! `cargo run --release -p engine --example fusion_cpu` gathers writes in the Fusion Write Engine of a real loop over a
//! store whose appends are done at once, and puts what is durable into segment caches. It prints nanoseconds for each
//! record: the smallest of several rounds, because whatever else runs on the machine only adds. Beside them stands
//! what the bytes alone cost: one copy and one checksum.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::io::{fragment_checksum, fragment_checksums};
use base::{
    AlignedBuf, Bytes, Epoch, FileId, Incarnation, KIB, MIB, Prng, Result, SECTOR, SegmentId, SegmentSequence, StoreId,
    VolumeId, WriteStamp,
};
use engine::cache::{CacheMemory, SegmentCache};
use engine::fusion::FusionWriteEngine;
use engine::journal::{JournalOptions, JournalRecord, Operation};
use files::{CreateOptions, FileEngine, FileInfo, LocalBoxFuture, Statistics, Store, StoreSpace};
use runtime::{Handle, uring};

/// Rounds of each measurement; the best one counts.
const ROUNDS: usize = 9;
/// Bytes that the writes of a round have together.
const ROUND_BYTES: u64 = 64 * MIB;
/// Where the writes come from: more than the caches of a core hold, as if a network had brought it.
const SOURCE_BYTES: u64 = 8 * MIB;

fn main() -> std::io::Result<()> {
    uring::run(uring::Options::default(), |handle| async move {
        println!("| write | records in a turn | ns per record | with the cache | copy and checksum alone |");
        println!("| --- | --- | --- | --- | --- |");
        for (len, in_turn) in [(4096, 1), (4096, 8), (4096, 32), (4096, 256), (512, 32), (16384, 32)] {
            let source = Source::new(len);
            let (mut fusion, mut cached, mut bytes) = (u64::MAX, u64::MAX, u64::MAX);
            for _ in 0..ROUNDS {
                fusion = fusion.min(round(&handle, &source, in_turn, false).await);
                cached = cached.min(round(&handle, &source, in_turn, true).await);
                bytes = bytes.min(source.cost_of_bytes(&handle));
            }
            println!("| {len} B | {in_turn} | {fusion} | {cached} | {bytes} |");
        }
    })
}

/// Writes with their checksums, as a server has received them.
struct Source {
    writes: Vec<(u64, Bytes, Vec<u32>)>,
}

const SEGMENT: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };

impl Source {
    fn new(len: usize) -> Self {
        let mut prng = Prng::new(1);
        let mut data = AlignedBuf::zeroed(SOURCE_BYTES as usize);
        prng.fill(&mut data);
        let data = data.freeze();
        let count = SOURCE_BYTES as usize / len;
        let writes = (0..count).map(|index| {
            let data = data.slice(index * len..(index + 1) * len);
            let offset = prng.below(base::GIB / len as u64) * len as u64;
            let checksums = fragment_checksums(SEGMENT, offset, &data);
            (offset, data, checksums)
        });
        Source { writes: writes.collect() }
    }

    fn record(&self, number: u64) -> JournalRecord {
        let (offset, data, checksums) = &self.writes[number as usize % self.writes.len()];
        JournalRecord {
            segment: SEGMENT,
            epoch: Epoch(1),
            sequence: SegmentSequence(number + 1),
            stamp: WriteStamp::default(),
            offset: *offset,
            len: data.len() as u64,
            operation: Operation::Write { checksums: checksums.clone(), data: data.clone() },
        }
    }

    fn records_in_round(&self) -> u64 {
        ROUND_BYTES / self.writes[0].1.len() as u64
    }

    /// Nanoseconds to copy and checksum one write.
    fn cost_of_bytes(&self, handle: &Handle) -> u64 {
        let mut target = AlignedBuf::zeroed(128 * KIB as usize);
        let (mut at, mut wrong) = (0, 0);
        let began = handle.now();
        for number in 0..self.records_in_round() {
            let (offset, data, checksums) = &self.writes[number as usize % self.writes.len()];
            at = if at + data.len() > target.len() { 0 } else { at };
            let copy = &mut target[at..at + data.len()];
            copy.copy_from_slice(data);
            let blocks = copy.chunks(4096).zip(checksums).enumerate();
            wrong += blocks
                .filter(|(index, (block, checksum))| {
                    fragment_checksum(SEGMENT, offset + *index as u64 * 4096, block) != **checksum
                })
                .count();
            at += data.len();
        }
        assert_eq!(wrong, 0);
        handle.now().nanos_since(began) / self.records_in_round()
    }
}

/// Nanoseconds for each record of a round.
async fn round(handle: &Handle, source: &Source, in_turn: u64, into_cache: bool) -> u64 {
    let options =
        JournalOptions { file_bytes: 64 * MIB, files_max: 1000, copies: 1, log: 0, fusion_wait: Duration::ZERO };
    let memory = CacheMemory::new();
    let store = Store::new(Rc::new(Nowhere::default()));
    let engine = FusionWriteEngine::new(handle, &store, options, &memory, Vec::new());
    let cache = Rc::new(Cell::new(Some(SegmentCache::new(&memory))));
    // The first file is open before the clock starts.
    submit(&engine, source, 0, &cache, &memory, into_cache);
    settle(handle, &engine).await;
    let began = handle.now();
    let count = source.records_in_round();
    let mut next = 1;
    while next <= count {
        for _ in 0..in_turn {
            submit(&engine, source, next, &cache, &memory, into_cache);
            next += 1;
        }
        handle.yield_now().await;
    }
    settle(handle, &engine).await;
    handle.now().nanos_since(began) / count
}

fn submit(
    engine: &FusionWriteEngine,
    source: &Source,
    number: u64,
    cache: &Rc<Cell<Option<SegmentCache>>>,
    memory: &CacheMemory,
    into_cache: bool,
) {
    let record = source.record(number);
    let sectors = record.offset / SECTOR..(record.offset + record.len) / SECTOR;
    if !into_cache {
        return engine.submit(record, |durable| drop(durable.expect("nothing fails here")));
    }
    let (cache, memory) = (cache.clone(), memory.clone());
    engine.submit(record, move |durable| {
        let mut filling = cache.take().expect("it is there between calls");
        filling.insert(sectors, durable.expect("nothing fails here").0);
        // As a dump would take it away.
        let full = filling.bytes() >= 512 * KIB;
        cache.set(Some(if full { SegmentCache::new(&memory) } else { filling }));
    });
}

async fn settle(handle: &Handle, engine: &FusionWriteEngine) {
    while engine.unsettled_bytes() > 0 {
        handle.yield_now().await;
    }
}

/// A store that keeps nothing, and is done at once.
#[derive(Default)]
struct Nowhere {
    files: Cell<u64>,
}

impl FileEngine for Nowhere {
    fn id(&self) -> StoreId {
        StoreId(1)
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(1)
    }

    fn create(&self, _options: CreateOptions) -> LocalBoxFuture<'_, Result<FileId>> {
        self.files.set(self.files.get() + 1);
        let file = FileId(self.files.get());
        Box::pin(async move { Ok(file) })
    }

    fn append(&self, _file: FileId, _offset: u64, _data: base::Gathered) -> LocalBoxFuture<'static, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn read(&self, file: FileId, _offset: u64, _len: usize) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        Box::pin(async move { Err(base::Error::not_found(format!("file {file} was kept nowhere"))) })
    }

    fn read_copy(&self, file: FileId, _: u8, offset: u64, len: usize) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        self.read(file, offset, len)
    }

    fn repair_copy(&self, _file: FileId, _: u8, _offset: u64, _data: Bytes) -> LocalBoxFuture<'static, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn seal(&self, _file: FileId, _length: u64) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn delete(&self, _file: FileId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn fence(&self, _incarnation: Incarnation) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn list(&self) -> Vec<FileInfo> {
        Vec::new()
    }

    fn info(&self, _file: FileId) -> Option<FileInfo> {
        None
    }

    fn locate(&self, file: FileId, _copy: u8) -> String {
        format!("nowhere, file {file}")
    }

    fn space(&self) -> StoreSpace {
        StoreSpace { capacity: base::TIB, used: 0, free: base::TIB }
    }

    fn statistics(&self) -> Statistics {
        Statistics::default()
    }
}
