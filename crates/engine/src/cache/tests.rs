use base::checksum::block_checksum;
use base::io::fragment_checksums;
use base::{AlignedBuf, BLOCK, Bytes, ErrorKind, Prng, SECTOR, SegmentId, VolumeId};

use super::extent::WriteIn;
use super::*;
use crate::journal::{JournalRecord, Operation};

const SEGMENT: SegmentId = SegmentId { volume: VolumeId(7), index: 3 };
const SECTORS: u64 = 96;
const SECTORS_PER_BLOCK: u64 = BLOCK / SECTOR;

/// What a sector of the model holds: the write that made it, and the byte it is filled with (none: zeros).
type Sector = Option<(u64, Option<u8>)>;

/// A cache beside an array of sectors that says what it should show.
struct Pair {
    memory: CacheMemory,
    cache: SegmentCache,
    model: Vec<Sector>,
    sequence: u64,
}

impl Pair {
    fn new() -> Self {
        let memory = CacheMemory::new();
        Pair { cache: SegmentCache::new(&memory), memory, model: vec![None; SECTORS as usize], sequence: 0 }
    }

    fn range(prng: &mut Prng) -> Range<u64> {
        let start = prng.below(SECTORS);
        start..start + prng.between(1, (SECTORS - start).min(40))
    }

    /// A batch of writes of this and other segments in one buffer, applied in order or not.
    fn write_batch(&mut self, prng: &mut Prng) {
        let count = prng.between(1, 6);
        let mut buffer = vec![0xee; prng.below(3) as usize * 512];
        let mut writes = Vec::new();
        for _ in 0..count {
            let range = Self::range(prng);
            self.sequence += 1;
            writes.push((range.clone(), buffer.len(), self.sequence));
            for sector in range {
                buffer.extend_from_slice(&[fill(self.sequence, sector); SECTOR as usize]);
            }
        }
        // Bytes of other segments, which are dropped with their caches.
        buffer.resize(buffer.len() + prng.below(64) as usize * 512, 0xdd);
        if prng.one_in(4) {
            writes.reverse();
        }
        let buffer = Bytes::from(buffer);
        let backing = self.memory.pin(buffer.clone(), vec![SEGMENT]);
        for (range, start, sequence) in writes {
            let (offset, len) = (range.start * SECTOR, ((range.end - range.start) * SECTOR) as usize);
            let checksums = fragment_checksums(SEGMENT, offset, &buffer[start..start + len]);
            let write = WriteIn { segment: SEGMENT, offset, start, len };
            let extent = CacheExtent::data(backing.clone(), write, checksums, SegmentSequence(sequence));
            self.insert(range, extent, sequence, true);
        }
    }

    fn discard(&mut self, prng: &mut Prng) {
        let range = Self::range(prng);
        // Sometimes late, as a replay of several journals may do it.
        let sequence = match prng.one_in(3) {
            true => prng.between(1, self.sequence + 1),
            false => self.sequence + 1,
        };
        self.sequence = self.sequence.max(sequence);
        self.insert(range, CacheExtent::zeros(SegmentSequence(sequence)), sequence, false);
    }

    fn insert(&mut self, range: Range<u64>, extent: CacheExtent, sequence: u64, data: bool) {
        let before = self.cache.bytes();
        let delta = self.cache.insert(range.clone(), extent);
        assert_eq!(before.wrapping_add_signed(delta), self.cache.bytes());
        for sector in range {
            let there = &mut self.model[sector as usize];
            if there.is_none_or(|(newest, _)| newest <= sequence) {
                *there = Some((sequence, data.then(|| fill(sequence, sector))));
            }
        }
    }

    fn punch(&mut self, prng: &mut Prng) {
        let range = Self::range(prng);
        let sequence = prng.between(1, self.sequence + 1);
        let before = self.cache.bytes();
        let delta = self.cache.punch(range.clone(), SegmentSequence(sequence));
        assert_eq!(before.wrapping_add_signed(delta), self.cache.bytes());
        for sector in range {
            let there = &mut self.model[sector as usize];
            if there.is_some_and(|(newest, _)| newest <= sequence) {
                *there = None;
            }
        }
    }

    /// Swaps the cache for an empty one, goes on, and takes the old one back in.
    fn fail_a_dump(&mut self, prng: &mut Prng) {
        let dumping = std::mem::replace(&mut self.cache, SegmentCache::new(&self.memory));
        let older = std::mem::replace(&mut self.model, vec![None; SECTORS as usize]);
        (0..prng.below(3)).for_each(|_| self.write_batch(prng));
        self.cache.absorb(dumping);
        for (there, older) in self.model.iter_mut().zip(older) {
            *there = (*there).max(older);
        }
    }

    fn copy_out(&mut self) {
        while let Some(sparse) = self.memory.next_sparse() {
            assert_eq!(sparse.segments(), [SEGMENT]);
            self.cache.copy_out(&sparse);
        }
    }

    fn check(&self, range: Range<u64>) {
        let mut shown: Vec<Option<Option<u8>>> = vec![None; SECTORS as usize];
        let mut last = range.start;
        for (part, hit) in self.cache.lookup(range.clone()) {
            assert!(part.start >= last && part.end <= range.end && !part.is_empty());
            last = part.end;
            for sector in part.clone() {
                shown[sector as usize] = Some(match &hit {
                    CacheHit::Zeros => None,
                    CacheHit::Data(data) => {
                        assert_eq!(data.len() as u64, (part.end - part.start) * SECTOR);
                        let start = ((sector - part.start) * SECTOR) as usize;
                        let bytes = &data[start..start + SECTOR as usize];
                        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                        Some(bytes[0])
                    }
                });
            }
        }
        for sector in range {
            assert_eq!(shown[sector as usize], self.model[sector as usize].map(|(_, byte)| byte), "sector {sector}");
        }
        let data = self.model.iter().flatten().filter(|(_, byte)| byte.is_some()).count() as u64 * SECTOR;
        let extents = self.cache.extents().count() as u64;
        assert_eq!(self.cache.bytes(), data + extents * EXTENT_OVERHEAD);
        assert_eq!(self.memory.live_bytes(), data);
        assert!(self.memory.bytes() >= self.cache.bytes());
        assert_eq!(self.cache.is_empty(), self.model.iter().all(Option::is_none));
        assert!(self.cache.highest_sequence() <= SegmentSequence(self.sequence));
    }

    /// Runs the plan over a base and compares every block with the model.
    fn check_dump(&self, prng: &mut Prng) {
        let mut base = vec![0u8; (SECTORS * SECTOR) as usize];
        prng.fill(&mut base);
        let mut expected = base.clone();
        let mut newest = vec![0; (SECTORS / SECTORS_PER_BLOCK) as usize];
        for (sector, there) in self.model.iter().enumerate() {
            let Some((sequence, byte)) = there else { continue };
            expected[sector * 512..(sector + 1) * 512].fill(byte.unwrap_or(0));
            let block = sector / SECTORS_PER_BLOCK as usize;
            newest[block] = sequence.max(&newest[block]).to_owned();
        }
        let mut dumped = base;
        let mut next = 0;
        for item in self.cache.plan_dump() {
            let (blocks, sequence) = match &item {
                DumpItem::Zeros { blocks, sequence } => (blocks.clone(), *sequence),
                DumpItem::Block(block) => (block.block()..block.block() + 1, block.sequence()),
            };
            assert!(blocks.start >= next, "items are in order");
            next = blocks.end;
            for block in blocks.clone() {
                assert_eq!(SegmentSequence(newest[block as usize]), sequence);
                newest[block as usize] = 0;
            }
            let target = &mut dumped[blocks.start as usize * 4096..blocks.end as usize * 4096];
            match item {
                DumpItem::Zeros { .. } => target.fill(0),
                DumpItem::Block(block) => {
                    assert!(block.needs_base() || !block.only_zeros());
                    let mut buffer = AlignedBuf::with_capacity(4096);
                    let base = block.needs_base().then_some(&*target);
                    let checksum = block.append_to(&mut buffer, SEGMENT, base).unwrap();
                    target.copy_from_slice(&buffer);
                    let place = u64::from(SEGMENT.index) << 32 | u64::from(block.block());
                    assert_eq!(checksum, block_checksum(SEGMENT.volume, place, target));
                }
            }
        }
        assert!(newest.iter().all(|sequence| *sequence == 0), "every block that changed is in the plan");
        assert!(dumped == expected);
    }
}

fn fill(sequence: u64, sector: u64) -> u8 {
    (sequence.wrapping_mul(31) + sector) as u8 | 1
}

#[test]
fn agrees_with_an_array_of_sectors() {
    for seed in 0..400 {
        println!("seed {seed}");
        let mut prng = Prng::new(seed);
        let mut pair = Pair::new();
        for _ in 0..30 {
            match prng.below(10) {
                0..=4 => pair.write_batch(&mut prng),
                5 => pair.discard(&mut prng),
                6 => pair.punch(&mut prng),
                7 => pair.fail_a_dump(&mut prng),
                8 => pair.copy_out(),
                _ => pair.check_dump(&mut prng),
            }
            pair.check(0..SECTORS);
            pair.check(Pair::range(&mut prng));
        }
        pair.check_dump(&mut prng);
        let memory = pair.memory.clone();
        drop(pair);
        assert_eq!((memory.bytes(), memory.live_bytes()), (0, 0));
    }
}

/// One write of `len` bytes of `byte` at `offset`, in a buffer of its own.
fn write(memory: &CacheMemory, offset: u64, len: usize, byte: u8, sequence: u64) -> (Range<u64>, CacheExtent) {
    let data = Bytes::from(vec![byte; len]);
    let record = JournalRecord {
        segment: SEGMENT,
        epoch: base::Epoch(1),
        sequence: SegmentSequence(sequence),
        stamp: base::WriteStamp::default(),
        offset,
        len: len as u64,
        operation: Operation::Write { checksums: fragment_checksums(SEGMENT, offset, &data), data },
    };
    (offset / SECTOR..(offset + len as u64) / SECTOR, CacheExtent::of_record(memory, record))
}

#[test]
fn a_sparse_buffer_is_freed_when_its_live_rest_is_copied_out() {
    let memory = CacheMemory::new();
    let mut cache = SegmentCache::new(&memory);
    let mut others = SegmentCache::new(&memory);
    let buffer = Bytes::from(vec![1; 64 * 1024]);
    let backing = memory.pin(buffer.clone(), vec![SEGMENT]);
    let part = |start: usize, len: usize, sequence| {
        let checksums = fragment_checksums(SEGMENT, start as u64, &buffer[start..start + len]);
        let write = WriteIn { segment: SEGMENT, offset: start as u64, start, len };
        let sectors = start as u64 / SECTOR..(start + len) as u64 / SECTOR;
        (sectors, CacheExtent::data(backing.clone(), write, checksums, SegmentSequence(sequence)))
    };
    let (kept, dumped) = (part(0, 6 * 1024, 1), part(8192, 56 * 1024, 2));
    drop(backing);
    cache.insert(kept.0, kept.1);
    others.insert(dumped.0, dumped.1);
    assert!(memory.next_sparse().is_none(), "all but 2 KiB is live");
    drop(others);
    assert_eq!(memory.bytes(), 64 * 1024 + EXTENT_OVERHEAD, "6 KiB pin the whole buffer");
    let sparse = memory.next_sparse().unwrap();
    // A newer write cuts a fragment, so that its checksum does not fit what is left of it.
    let (sectors, extent) = write(&memory, 512, 1024, 2, 3);
    cache.insert(sectors, extent);
    cache.copy_out(&sparse);
    drop(sparse);
    assert!(memory.next_sparse().is_none());
    assert_eq!(memory.bytes(), 6 * 1024 + 3 * EXTENT_OVERHEAD);
    let mut block = AlignedBuf::with_capacity(4096);
    let DumpItem::Block(first) = &cache.plan_dump()[0] else { panic!("a block of data") };
    first.append_to(&mut block, SEGMENT, None).unwrap();
    assert!(block[..512].iter().chain(&block[1536..]).all(|b| *b == 1) && block[512..1536].iter().all(|b| *b == 2));
}

#[test]
fn a_whole_block_keeps_the_checksum_of_its_agent() {
    let memory = CacheMemory::new();
    let mut cache = SegmentCache::new(&memory);
    let (sectors, extent) = write(&memory, 4096 - 512, 512 + 4096 + 512, 9, 1);
    cache.insert(sectors, extent);
    let plan = cache.plan_dump();
    let blocks: Vec<_> = plan
        .iter()
        .map(|item| match item {
            DumpItem::Block(block) => (block.block(), block.needs_base()),
            DumpItem::Zeros { .. } => panic!("nothing was discarded"),
        })
        .collect();
    assert_eq!(blocks, [(0, true), (1, false), (2, true)]);
}

#[test]
fn zeros_that_fill_blocks_are_no_data() {
    let memory = CacheMemory::new();
    let mut cache = SegmentCache::new(&memory);
    for (range, sequence) in [(0..4, 1), (4..30, 2), (32..40, 2), (40..48, 3)] {
        cache.insert(range, CacheExtent::zeros(SegmentSequence(sequence)));
    }
    let described: Vec<_> = cache
        .plan_dump()
        .into_iter()
        .map(|item| match item {
            DumpItem::Zeros { blocks, sequence } => (blocks, sequence.0, false),
            DumpItem::Block(block) => (block.block()..block.block() + 1, block.sequence().0, block.only_zeros()),
        })
        .collect();
    assert_eq!(described, [(0..1, 2, false), (1..3, 2, false), (3..4, 2, true), (4..5, 2, false), (5..6, 3, false)]);
}

#[test]
fn bytes_that_changed_in_memory_do_not_reach_a_data_file() {
    let memory = CacheMemory::new();
    let data = Bytes::from(vec![5; 4096]);
    let mut checksums = fragment_checksums(SEGMENT, 0, &data);
    checksums[0] ^= 1;
    for cut in [false, true] {
        let mut cache = SegmentCache::new(&memory);
        let backing = memory.pin(data.clone(), vec![SEGMENT]);
        let write_in = WriteIn { segment: SEGMENT, offset: 0, start: 0, len: 4096 };
        cache.insert(0..8, CacheExtent::data(backing, write_in, checksums.clone(), SegmentSequence(1)));
        if cut {
            let (sectors, extent) = write(&memory, 0, 512, 6, 2);
            cache.insert(sectors, extent);
        }
        let DumpItem::Block(block) = &cache.plan_dump()[0] else { panic!("a block of data") };
        let error = block.append_to(&mut AlignedBuf::with_capacity(4096), SEGMENT, None).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt);
        assert!(error.message.contains("v7/3"), "{error}");
    }
}
