//! The read path against an array of sectors: caches over index over zeros, bad copies, lost blocks, deleted files.

use std::rc::Rc;
use std::time::Duration;

use base::{ErrorKind, FileId, Prng, SegmentSequence, VolumeId};
use files::memory::{Memory, MemoryOptions};
use files::{CreateOptions, FileKind, FileWriter, Redundancy};
use runtime::{Class, Handle};

use super::*;
use crate::garbage::Garbage;
use crate::index::{IndexOptions, Mapping};
use crate::options::{EPOCH, Ownership};
use crate::testing::run;
use crate::verified::VerifiedFiles;

mod ahead;

const SEGMENT: SegmentId = SegmentId { volume: VolumeId(7), index: 1 };
const BLOCKS: u32 = 300;
const SECTORS: u64 = BLOCKS as u64 * SECTORS_PER_BLOCK;

/// A segment whose blocks are written straight to data files, with a model of its sectors.
struct Disk {
    memory: Memory,
    index: Index,
    reader: Reader,
    writer: FileWriter,
    sequence: u64,
    /// `None`: a hole.
    blocks: Vec<Option<Vec<u8>>>,
}

impl Disk {
    async fn new(handle: &Handle, seed: u64, copies: u8) -> Disk {
        let memory = Memory::new(seed, MemoryOptions { directories: copies, ..MemoryOptions::default() });
        let files = VerifiedFiles::new(handle, &memory.open(handle));
        let options =
            IndexOptions { page_cache_bytes: 0, memtable_bytes_max: 1 << 24, copies, ownership: Ownership::Whole };
        let index = Index::new(&files, &Garbage::new(), options);
        let reader = Reader::new(&index, ReadAheadSettings::default());
        let writer = Disk::open_file(&files, copies).await;
        Disk { memory, index, reader, writer, sequence: 0, blocks: vec![None; BLOCKS as usize] }
    }

    async fn open_file(files: &VerifiedFiles, copies: u8) -> FileWriter {
        let options = CreateOptions {
            kind: FileKind::Data,
            capacity: 64 << 20,
            redundancy: Redundancy::Copies(copies),
            prepared: false,
            epoch: EPOCH,
            segment: None,
            claim: files::Claim::Use,
        };
        files.store().create(options).await.unwrap()
    }

    async fn write(&mut self, prng: &mut Prng, first: u32, count: u32) {
        let mut content = vec![0; (u64::from(count) * BLOCK) as usize];
        prng.fill(&mut content);
        let offset = self.writer.append(base::AlignedBuf::copy_of(&content).freeze()).await.unwrap();
        self.sequence += 1;
        let mut entries = Vec::new();
        for (i, bytes) in (0..).zip(content.chunks_exact(BLOCK as usize)) {
            let block = first + i;
            let checksum = base::checksum::block_checksum(SEGMENT.volume, 1 << 32 | u64::from(block), bytes);
            let place = offset + u64::from(i) * BLOCK;
            entries.push(Entry::data(block, SegmentSequence(self.sequence), self.writer.id(), place, checksum));
            self.blocks[block as usize] = Some(bytes.to_vec());
        }
        self.index.apply(SEGMENT, &entries);
    }

    fn discard(&mut self, first: u32, count: u32) {
        self.sequence += 1;
        self.index.apply(SEGMENT, &[Entry::zeros(first, count, SegmentSequence(self.sequence))]);
        self.blocks[first as usize..(first + count) as usize].fill(None);
    }

    async fn read(&self, sectors: Range<u64>, cached: Cached) -> Result<Vec<u8>> {
        let (offset, len) = (sectors.start * SECTOR, (sectors.end - sectors.start) * SECTOR);
        let parts = self.reader.read(SEGMENT, offset, len, || cached, Instant::ZERO, &mut Passage::default()).await?;
        assert_eq!(parts.iter().map(ReadPart::len).sum::<u64>(), len);
        let bytes = |part: ReadPart| match part {
            ReadPart::Data(data) => data.to_vec(),
            ReadPart::Zeros(len) => vec![0; len as usize],
        };
        Ok(parts.into_iter().flat_map(bytes).collect())
    }

    fn expected(&self, sectors: Range<u64>, cached: &Cached) -> Vec<u8> {
        let mut bytes = Vec::new();
        for at in sectors {
            let in_block = (at % SECTORS_PER_BLOCK * SECTOR) as usize;
            let block = self.blocks[(at / SECTORS_PER_BLOCK) as usize].as_ref();
            match (cached.iter().find(|(range, _)| range.contains(&at)), block) {
                (Some((range, CacheHit::Data(data))), _) => {
                    bytes.extend_from_slice(&data[((at - range.start) * SECTOR) as usize..][..SECTOR as usize]);
                }
                (None, Some(block)) => bytes.extend_from_slice(&block[in_block..][..SECTOR as usize]),
                _ => bytes.extend_from_slice(&[0; SECTOR as usize]),
            }
        }
        bytes
    }
}

fn random_range(prng: &mut Prng) -> Range<u64> {
    let start = prng.below(SECTORS);
    start..start + prng.between(1, (SECTORS - start).min(400))
}

fn random_cached(prng: &mut Prng, sectors: &Range<u64>) -> Cached {
    let (mut cached, mut at) = (Cached::new(), sectors.start);
    while prng.below(3) > 0 {
        at += prng.below(30);
        if at >= sectors.end {
            break;
        }
        let end = at + prng.between(1, (sectors.end - at).min(20));
        let hit = match prng.one_in(3) {
            true => CacheHit::Zeros,
            false => {
                let mut data = vec![0; ((end - at) * SECTOR) as usize];
                prng.fill(&mut data);
                CacheHit::Data(Bytes::from(data))
            }
        };
        cached.push((at..end, hit));
        at = end;
    }
    cached
}

async fn random_disk(handle: &Handle, prng: &mut Prng, copies: u8) -> Disk {
    let mut disk = Disk::new(handle, prng.next_u64(), copies).await;
    for _ in 0..prng.between(5, 60) {
        let first = prng.below(u64::from(BLOCKS)) as u32;
        let count = prng.between(1, u64::from(BLOCKS - first).min(20)) as u32;
        match prng.one_in(4) {
            true => disk.discard(first, count),
            false => disk.write(prng, first, count).await,
        }
    }
    disk
}

#[test]
fn agrees_with_an_array_of_sectors() {
    for seed in 0..20 {
        run(seed, move |handle| async move {
            let mut prng = Prng::new(seed);
            let disk = random_disk(&handle, &mut prng, 1).await;
            for _ in 0..40 {
                let sectors = match prng.one_in(3) {
                    true => {
                        let block = prng.below(u64::from(BLOCKS)) as u32;
                        sectors_of(block..block + 1)
                    }
                    false => random_range(&mut prng),
                };
                let cached = if prng.one_in(2) { random_cached(&mut prng, &sectors) } else { Cached::new() };
                let found = disk.read(sectors.clone(), cached.clone()).await.unwrap();
                assert!(found == disk.expected(sectors.clone(), &cached), "seed {seed}, {sectors:?}");
                check_allocation(&disk, &mut prng, sectors, cached).await;
            }
        });
    }
}

async fn check_allocation(disk: &Disk, prng: &mut Prng, sectors: Range<u64>, cached: Cached) {
    let extents_max = prng.between(1, 12) as usize;
    let (offset, len) = (sectors.start * SECTOR, (sectors.end - sectors.start) * SECTOR);
    let found = disk.reader.allocation(SEGMENT, offset, len, extents_max, || cached.clone()).await.unwrap();
    assert!((1..=extents_max).contains(&found.len()));
    assert!(found.windows(2).all(|pair| pair[0].allocated != pair[1].allocated));
    let mut at = sectors.start;
    for extent in &found {
        for sector in at..at + extent.len / SECTOR {
            let allocated = match cached.iter().find(|(range, _)| range.contains(&sector)) {
                Some((_, hit)) => *hit != CacheHit::Zeros,
                None => disk.blocks[(sector / SECTORS_PER_BLOCK) as usize].is_some(),
            };
            assert_eq!(extent.allocated, allocated, "sector {sector}");
        }
        at += extent.len / SECTOR;
    }
    assert!(at <= sectors.end && (at == sectors.end || found.len() == extents_max), "nothing is left out without need");
}

#[test]
fn one_whole_block_is_the_buffer_that_was_read() {
    run(1, |handle| async move {
        let mut disk = Disk::new(&handle, 1, 1).await;
        disk.write(&mut Prng::new(1), 5, 1).await;
        let parts = disk
            .reader
            .read(SEGMENT, 5 * BLOCK, BLOCK, Vec::new, Instant::ZERO, &mut Passage::default())
            .await
            .unwrap();
        let [ReadPart::Data(data)] = &parts[..] else { panic!("{parts:?}") };
        assert_eq!(data.as_ptr() as usize % 4096, 0);
    });
}

#[test]
fn reads_overlap() {
    run(2, |handle| async move {
        let mut disk = Disk::new(&handle, 2, 1).await;
        let mut prng = Prng::new(2);
        // Every other block, so that nothing can be read together.
        for block in (0..64).step_by(2) {
            disk.write(&mut prng, block, 1).await;
        }
        let start = handle.now();
        disk.read(0..64 * SECTORS_PER_BLOCK, Cached::new()).await.unwrap();
        // One read takes up to 100 us in this file layer.
        assert!(handle.now() - start < Duration::from_micros(250), "{:?}", handle.now() - start);
        let reader = Rc::new(disk.reader);
        let reads = (0..32u64).map(|i| {
            let reader = reader.clone();
            handle.spawn(Class::Io, "read", async move {
                reader.read(SEGMENT, i * 2 * BLOCK, BLOCK, Vec::new, Instant::ZERO, &mut Passage::default()).await
            })
        });
        let (reads, start): (Vec<_>, _) = (reads.collect(), handle.now());
        for read in reads {
            read.await.unwrap();
        }
        assert!(handle.now() - start < Duration::from_micros(250), "{:?}", handle.now() - start);
    });
}

#[test]
fn bad_blocks_come_from_another_copy_and_are_repaired() {
    for seed in 0..20 {
        run(seed, move |handle| async move {
            let mut prng = Prng::new(seed);
            let disk = random_disk(&handle, &mut prng, 2).await;
            let file = disk.writer.id();
            // Every block is bad in one of two copies, or cannot be read there.
            for block in 0..disk.writer.position() / BLOCK {
                let sector = block * BLOCK + prng.below(SECTORS_PER_BLOCK) * SECTOR;
                match prng.one_in(4) {
                    true => disk.memory.fail_reads(file, Some(prng.below(2) as u8), sector..sector + 1),
                    false => disk.memory.corrupt(file, prng.below(2) as u8, sector..sector + 1),
                }
            }
            for _ in 0..20 {
                let sectors = random_range(&mut prng);
                let found = disk.read(sectors.clone(), Cached::new()).await.unwrap();
                assert!(found == disk.expected(sectors.clone(), &Cached::new()), "seed {seed}, {sectors:?}");
            }
            handle.sleep(Duration::from_millis(10)).await;
            let statistics = disk.index.files().statistics();
            assert!(statistics.repaired > 0 && statistics.lost == 0, "seed {seed}: {statistics:?}");
        });
    }
}

#[test]
fn a_lost_block_is_an_error_that_names_every_path() {
    run(3, |handle| async move {
        let mut prng = Prng::new(3);
        let mut disk = Disk::new(&handle, 3, 2).await;
        disk.write(&mut prng, 0, 8).await;
        let file = disk.writer.id();
        disk.memory.corrupt(file, 0, 5 * BLOCK..5 * BLOCK + 1);
        disk.memory.fail_reads(file, Some(1), 5 * BLOCK..6 * BLOCK);
        for sectors in [0..64, 40..48, 41..42] {
            let error = disk.read(sectors, Cached::new()).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
            for copy in 0..2 {
                assert!(error.message.contains(&disk.reader.data.files().store().locate(file, copy)), "{error}");
            }
            assert!(error.message.contains("offset 20480") && error.message.contains("block 5"), "{error}");
        }
        // Its neighbours can be read, and its own sectors where a cache has them.
        disk.read(0..40, Cached::new()).await.unwrap();
        disk.read(0..64, vec![(40..48, CacheHit::Zeros)]).await.unwrap();
        disk.memory.fail_reads(file, Some(0), 5 * BLOCK..6 * BLOCK);
        assert_eq!(disk.read(40..41, Cached::new()).await.unwrap_err().kind, ErrorKind::Io);
        assert_eq!(disk.index.files().statistics().lost, 4);
    });
}

/// Blocks in the wrong place have the wrong checksum, however intact they are.
#[test]
fn swapped_blocks_are_noticed() {
    run(4, |handle| async move {
        let mut disk = Disk::new(&handle, 4, 1).await;
        disk.write(&mut Prng::new(4), 0, 2).await;
        let entries: Vec<Entry> = disk.index.scan(SEGMENT, 0, 10).await.unwrap().entries;
        let Some(file) = entries[0].file() else { panic!("data") };
        let (Mapping::Data { checksum: a, .. }, Mapping::Data { checksum: b, .. }) =
            (entries[0].mapping, entries[1].mapping)
        else {
            panic!("data")
        };
        let swapped =
            [Entry::data(0, SegmentSequence(9), file, BLOCK, a), Entry::data(1, SegmentSequence(9), file, 0, b)];
        disk.index.apply(SEGMENT, &swapped);
        assert_eq!(disk.read(0..8, Cached::new()).await.unwrap_err().kind, ErrorKind::Corrupt);
        assert_eq!(disk.read(8..16, Cached::new()).await.unwrap_err().kind, ErrorKind::Corrupt);
    });
}

/// A block is moved and its file deleted while readers are on their way to it: they end with the right bytes.
#[test]
fn readers_keep_files_that_are_deleted() {
    run(5, |handle| async move {
        let mut prng = Prng::new(5);
        let mut disk = Disk::new(&handle, 5, 1).await;
        disk.write(&mut prng, 0, 64).await;
        let files = disk.index.files().clone();
        for round in 0..20u64 {
            let old: FileId = disk.writer.id();
            let mut readers = Vec::new();
            for i in 0..10u64 {
                let (reader, handle2, delay) = (disk.reader.clone(), handle.clone(), prng.below(200_000));
                let expected = disk.expected(i * 8..i * 8 + 64, &Cached::new());
                readers.push(handle.spawn(Class::Io, "reader", async move {
                    handle2.sleep(Duration::from_nanos(delay)).await;
                    let parts = reader
                        .read(SEGMENT, i * BLOCK, 8 * BLOCK, Vec::new, Instant::ZERO, &mut Passage::default())
                        .await
                        .unwrap();
                    let bytes: Vec<u8> = parts
                        .iter()
                        .flat_map(|part| match part {
                            ReadPart::Data(data) => data.to_vec(),
                            ReadPart::Zeros(_) => panic!("data"),
                        })
                        .collect();
                    assert!(bytes == expected, "round {round}");
                }));
            }
            // What GC does, in short.
            let live = disk.index.scan(SEGMENT, 0, 100).await.unwrap().entries;
            let content: Vec<u8> = disk.blocks[..64].iter().flatten().flatten().copied().collect();
            disk.writer = Disk::open_file(&files, 1).await;
            let offset = disk.writer.append(base::AlignedBuf::copy_of(&content).freeze()).await.unwrap();
            let moved = live.iter().map(|e| e.relocated(disk.writer.id(), offset + u64::from(e.block) * BLOCK));
            disk.index.apply(SEGMENT, &moved.collect::<Vec<_>>());
            files.delete_unpinned(old).await.unwrap();
            assert!(files.store().info(old).is_none());
            for reader in readers {
                reader.await;
            }
        }
    });
}
