//! The segment cache: what was written to a segment and is not in its data files yet (EBS, FAST 2024, §2.3).
//!
//! Intuition: the journal makes a write durable, this makes it visible. It maps ranges of sectors to the newest
//! write or discard of each sector. When it holds enough ([`SegmentCache::bytes`]) its owner swaps it for an empty
//! one; the full one is then the *dumping* cache, still readable, whose [`SegmentCache::plan_dump`] says block by
//! block what goes into the data file. Unaligned writes never race, because they become blocks only there.
//!
//! Names: *extent*, a run of sectors of one write or discard; *active* and *dumping* cache of a segment (reads look
//! into the active one first); [`CacheMemory`], the account of what all caches of an engine cost.
//!
//! Invariants: of two writes of a sector the one with the higher segment sequence is shown, in whatever order they
//! were inserted; sequences of removed extents do not come back; every byte is counted once.
//!
//! Flow: [`SegmentCache::insert`] on durability, [`SegmentCache::lookup`] by reads, [`SegmentCache::punch`] by large
//! writes that are newer, [`std::mem::replace`] and [`SegmentCache::plan_dump`] by dumps, [`SegmentCache::absorb`]
//! when a dump failed.

use std::ops::Range;

use base::{IntervalMap, SegmentSequence, Split};

mod dump_plan;
mod extent;
mod memory;
#[cfg(test)]
mod tests;

pub use dump_plan::{DumpBlock, DumpItem};
pub(crate) use extent::WriteIn;
pub use extent::{CacheExtent, CacheHit};
pub use memory::{CacheMemory, EXTENT_OVERHEAD, SparseBacking};

/// Extents of one segment, by sector.
pub struct SegmentCache {
    memory: CacheMemory,
    extents: IntervalMap<CacheExtent>,
    data_bytes: u64,
    highest: SegmentSequence,
}

impl SegmentCache {
    /// An empty cache on the account of `memory`.
    pub fn new(memory: &CacheMemory) -> Self {
        SegmentCache { memory: memory.clone(), extents: IntervalMap::new(), data_bytes: 0, highest: SegmentSequence(0) }
    }

    /// Puts `extent` at `sectors`, where nothing newer is, and returns by how much [`SegmentCache::bytes`] changed.
    pub fn insert(&mut self, sectors: Range<u64>, extent: CacheExtent) -> i64 {
        assert!(
            extent.is_zeros() || extent.data_len() == (sectors.end - sectors.start) * base::SECTOR,
            "an extent is as long as its range"
        );
        let before = self.bytes();
        self.highest = self.highest.max(extent.sequence());
        if self.extents.is_free(&sectors) {
            self.put(sectors, extent);
            return self.bytes().cast_signed() - before.cast_signed();
        }
        let newer: Vec<Range<u64>> = self
            .extents
            .overlapping(sectors.clone())
            .filter(|(_, there)| there.sequence() > extent.sequence())
            .map(|(range, _)| range)
            .collect();
        match newer.is_empty() {
            true => self.put(sectors, extent),
            false => self.put_around(&newer, sectors, extent),
        }
        self.bytes().cast_signed() - before.cast_signed()
    }

    /// Removes what is older than `sequence` from `sectors` and returns by how much [`SegmentCache::bytes`] changed:
    /// a large write with that sequence is in the index now.
    pub fn punch(&mut self, sectors: Range<u64>, sequence: SegmentSequence) -> i64 {
        let before = self.bytes();
        for (range, extent) in self.take(sectors) {
            if extent.sequence() > sequence {
                self.put(range, extent);
            }
        }
        self.bytes().cast_signed() - before.cast_signed()
    }

    /// What it knows of `sectors`, clipped to them, by address. What is missing is not in this cache.
    pub fn lookup(&self, sectors: Range<u64>) -> Vec<(Range<u64>, CacheHit)> {
        self.extents
            .overlapping(sectors.clone())
            .map(|(range, extent)| {
                let clipped = range.start.max(sectors.start)..range.end.min(sectors.end);
                let hit = extent.hit(clipped.start - range.start..clipped.end - range.start);
                (clipped, hit)
            })
            .collect()
    }

    /// Every extent, by address: its sectors, the sequence of its write or discard, and whether it reads as zeros.
    pub fn extents(&self) -> impl Iterator<Item = (Range<u64>, SegmentSequence, bool)> {
        self.extents.iter().map(|(range, extent)| (range, extent.sequence(), extent.is_zeros()))
    }

    /// What it holds, in bytes: shown data, and a fixed amount for each extent, so that many small discards count.
    pub fn bytes(&self) -> u64 {
        self.data_bytes + self.extents.len() as u64 * EXTENT_OVERHEAD
    }

    /// The most that a dump of it appends to a data file: an extent touches at most two blocks beyond its data.
    pub fn dump_bytes_max(&self) -> u64 {
        self.data_bytes + 2 * base::BLOCK * self.extents.len() as u64
    }

    /// Whether it shows nothing. (Its highest sequence may still be above zero.)
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// The highest sequence that was ever inserted; zero if there was none.
    pub fn highest_sequence(&self) -> SegmentSequence {
        self.highest
    }

    /// What a dump of it writes, block by block, by address.
    pub fn plan_dump(&self) -> Vec<DumpItem> {
        dump_plan::plan(self.extents.iter())
    }

    /// Takes the extents of `older` in, where nothing newer is: its dump failed.
    pub fn absorb(&mut self, mut older: SegmentCache) {
        self.highest = self.highest.max(older.highest);
        for (range, extent) in older.take(0..u64::MAX) {
            self.insert(range, extent);
        }
    }

    /// Copies what it shows of a sparse backing into buffers of its own, so that the backing can be freed. An extent
    /// whose bytes no longer match their checksums stays as it is; its dump will say so.
    pub fn copy_out(&mut self, sparse: &SparseBacking) {
        for (_, extent) in self.extents.iter_mut() {
            if let Err(error) = extent.copy_out(&self.memory, &sparse.0) {
                tracing::error!(%error, "a cached write is damaged");
            }
        }
    }

    /// Puts `extent` at `range`, over whatever is there.
    fn put(&mut self, range: Range<u64>, extent: CacheExtent) {
        let count = self.extents.len();
        self.data_bytes += extent.data_len();
        let covered = self.extents.insert(range, extent);
        self.forget(count, &covered);
    }

    /// Puts `extent` into those parts of `range` that none of `newer` (by address) covers.
    fn put_around(&mut self, newer: &[Range<u64>], range: Range<u64>, extent: CacheExtent) {
        let (mut at, mut rest) = (range.start, Some(extent));
        for newer in newer {
            if newer.start > at {
                let Some(mut part) = rest.take() else { return };
                rest = Some(part.split_off(newer.start - at));
                self.put(at..newer.start, part);
                at = newer.start;
            }
            let hidden_end = newer.end.min(range.end);
            rest = rest.take().filter(|_| hidden_end < range.end).map(|mut hidden| hidden.split_off(hidden_end - at));
            at = hidden_end;
        }
        if let Some(rest) = rest {
            self.put(at..range.end, rest);
        }
    }

    /// Cuts `range` out.
    fn take(&mut self, range: Range<u64>) -> Vec<(Range<u64>, CacheExtent)> {
        let count = self.extents.len();
        let taken = self.extents.remove(range);
        self.forget(count, &taken);
        taken
    }

    /// Keeps the account after `removed` left the map, which had `count` extents before.
    fn forget(&mut self, count: usize, removed: &[(Range<u64>, CacheExtent)]) {
        self.data_bytes -= removed.iter().map(|(_, extent)| extent.data_len()).sum::<u64>();
        self.memory.add_extents(self.extents.len() as i64 - count as i64);
    }
}

impl Drop for SegmentCache {
    fn drop(&mut self) {
        self.memory.add_extents(-(self.extents.len() as i64));
    }
}
