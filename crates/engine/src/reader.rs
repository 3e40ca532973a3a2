//! Reads: what the caches hold, over what the index says, over zeros.
//!
//! **Flow.** In one step, without waiting: the caches are asked, and the index takes its snapshot of what is in
//! memory. So data on its way from a cache to the index is seen in one of them. Then, for what the caches do not
//! cover: pages of the index, data files, one read for each run of neighbouring blocks, many at a time; what was read
//! ahead of a stream ([`crate::read_ahead`]) takes the place of the disk there. Every block is proven against its entry
//! before a byte of it is used, also when only a sector of it was asked for.
//!
//! A read of one whole block, the common case, hands out the buffer that the disk filled.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use base::limits::SEGMENT_BLOCKS;
use base::seeded::is_on;
use base::{AllocationExtent, BLOCK, Bytes, Instant, Passage, ReadPart, Result, SECTOR, SegmentId, Stage};
use policies::read_ahead::ReadAheadSettings;

use crate::cache::CacheHit;
use crate::data::{DataFiles, are_intact};
use crate::index::{Entry, Index};
use crate::read_ahead::{Following, ReadAhead, ReadAheadStatistics};
use crate::read_plan::{Plan, Run, SECTORS_PER_BLOCK, Source, blocks_of, sectors_of};
use runtime::sync::join_all;

/// Reads of data files that one request has in flight.
const READS_IN_FLIGHT: usize = 32;
/// Index entries that one allocation query looks at.
const ALLOCATION_ENTRIES_MAX: usize = 64 * 1024;
/// Index entries that it asks for at a time.
const ALLOCATION_STEP: usize = 4096;

/// What the caches of a segment know of a range: sectors and content, by address, without overlaps.
pub type Cached = Vec<(Range<u64>, CacheHit)>;

/// The read path of an engine. Clones share it.
#[derive(Clone)]
pub struct Reader {
    index: Index,
    data: DataFiles,
    ahead: ReadAhead,
    relocated_blocks: Rc<Cell<u64>>,
}

impl Reader {
    /// The read path over `index`.
    pub fn new(index: &Index, ahead: ReadAheadSettings) -> Reader {
        let data = DataFiles::new(index.files());
        let ahead = ReadAhead::new(index, &data, ahead);
        Reader { index: index.clone(), data, ahead, relocated_blocks: Rc::default() }
    }

    /// What was read ahead, and what became of it.
    pub fn ahead(&self) -> ReadAheadStatistics {
        self.ahead.statistics()
    }

    /// Gives back the memory of what was read ahead.
    pub fn clear(&self) {
        self.ahead.clear();
    }

    /// Blocks that were read from where garbage collection had moved them.
    pub fn relocated_blocks(&self) -> u64 {
        self.relocated_blocks.get()
    }

    fn count_relocated<'a>(&self, entries: impl IntoIterator<Item = &'a Entry>) {
        let relocated = entries.into_iter().filter(|entry| entry.version.moves > 0).count() as u64;
        self.relocated_blocks.set(self.relocated_blocks.get() + relocated);
    }

    /// Reads `len` bytes at byte `offset` of `segment`, both multiples of 512. `cached` says what the caches know of
    /// those sectors; it is called in the same step in which the index takes its snapshot. How long the index took since
    /// `started` is noted in `passage`, and how long other copies were looked for; what is left is the disk's.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: never wrong bytes.
    pub async fn read(
        &self,
        segment: SegmentId,
        offset: u64,
        len: u64,
        cached: impl FnOnce() -> Cached,
        started: Instant,
        passage: &mut Passage,
    ) -> Result<Vec<ReadPart>> {
        check_range(offset, len);
        let handle = self.data.files().handle();
        let repair_ns = Cell::default();
        let following = self.ahead.on_read(segment, offset, len);
        let _pin = self.data.files().pin();
        let cached = cached();
        if following.is_none() && cached.is_empty() && len == BLOCK && offset.is_multiple_of(BLOCK) {
            let entry = self.lookup_block(segment, (offset / BLOCK) as u32).await?;
            passage.add(Stage::Index, handle.now().nanos_since(started));
            let content = self.fetch_block(segment, entry, &repair_ns).await;
            passage.add(Stage::Repair, repair_ns.get());
            return content.map(|content| vec![content.map_or(ReadPart::Zeros(BLOCK), ReadPart::Data)]);
        }
        let plan = self.plan(segment, offset / SECTOR..(offset + len) / SECTOR, cached, following).await?;
        self.count_relocated(plan.runs.iter().flat_map(|run| &run.entries));
        if !plan.runs.is_empty() {
            passage.add(Stage::Index, handle.now().nanos_since(started));
        }
        let buffers = self.fetch(segment, &plan.runs, &repair_ns).await;
        passage.add(Stage::Repair, repair_ns.get());
        Ok(plan.assemble(&buffers?))
    }

    /// What the index has for one block, past the caches: the buffer that was read, or `None` for zeros.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub async fn read_block(&self, segment: SegmentId, block: u32) -> Result<Option<Bytes>> {
        let _pin = self.data.files().pin();
        let entry = self.lookup_block(segment, block).await?;
        self.fetch_block(segment, entry, &Cell::default()).await
    }

    async fn lookup_block(&self, segment: SegmentId, block: u32) -> Result<Option<Entry>> {
        Ok(self.index.lookup_block(segment, block).await?.filter(|entry| entry.file().is_some()))
    }

    async fn fetch_block(
        &self,
        segment: SegmentId,
        entry: Option<Entry>,
        repair_ns: &Cell<u64>,
    ) -> Result<Option<Bytes>> {
        let Some(entry) = entry else { return Ok(None) };
        self.count_relocated([&entry]);
        Ok(Some(self.data.read_block_noted(segment, &entry, repair_ns).await?.freeze()))
    }

    async fn plan(
        &self,
        segment: SegmentId,
        sectors: Range<u64>,
        cached: Cached,
        following: Option<Following>,
    ) -> Result<Plan> {
        // The index is asked once, for all blocks from the first to the last that the caches leave open.
        let gaps = gaps(&sectors, &cached);
        let blocks = match (gaps.first(), gaps.last()) {
            (Some(first), Some(last)) => blocks_of(&(first.start..last.end)),
            _ => 0..0,
        };
        let mut slots = vec![None; blocks.len()];
        if !blocks.is_empty() {
            self.index.lookup_into(segment, blocks.clone(), &mut slots).await?;
            if let Some(following) = &following {
                following.loaded().await;
            }
        }
        let mut plan = Plan::default();
        let mut at = sectors.start;
        for (range, hit) in cached {
            plan.add_gap(at..range.start, blocks.start, &slots, &following);
            plan.pieces.push(((range.end - range.start) * SECTOR, Source::Cached(hit)));
            at = range.end;
        }
        plan.add_gap(at..sectors.end, blocks.start, &slots, &following);
        if let Some(following) = following {
            following.pass();
        }
        Ok(plan)
    }

    /// The buffers of all runs, some at a time.
    async fn fetch(&self, segment: SegmentId, runs: &[Run], repair_ns: &Cell<u64>) -> Result<Vec<Bytes>> {
        let mut buffers = Vec::with_capacity(runs.len());
        if let [run] = runs {
            buffers.push(self.fetch_run(segment, run, repair_ns).await?);
            return Ok(buffers);
        }
        for some in runs.chunks(READS_IN_FLIGHT) {
            for buffer in join_all(some.iter().map(|run| self.fetch_run(segment, run, repair_ns))).await {
                buffers.push(buffer?);
            }
        }
        Ok(buffers)
    }

    /// What was read ahead, if it is what the index promises; else what is on the disk.
    async fn fetch_run(&self, segment: SegmentId, run: &Run, repair_ns: &Cell<u64>) -> Result<Bytes> {
        if let Some(held) = &run.held {
            let is_right = are_intact(segment, &run.entries, held) || is_on("read-ahead-believed");
            self.ahead.on_use(run.entries.len() as u64 * BLOCK, is_right);
            if is_right {
                return Ok(held.clone());
            }
        }
        Ok(self.data.read_run_noted(segment, &run.entries, repair_ns).await?.freeze())
    }

    /// Which parts of a range hold data: at most `extents_max` extents (at least one), which may cover less than was
    /// asked for. `cached` as in [`Reader::read`]. Looks at a bounded number of index entries.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub async fn allocation(
        &self,
        segment: SegmentId,
        offset: u64,
        len: u64,
        extents_max: usize,
        cached: impl FnOnce() -> Cached,
    ) -> Result<Vec<AllocationExtent>> {
        check_range(offset, len);
        let _pin = self.data.files().pin();
        let cached = cached();
        let sectors = offset / SECTOR..(offset + len) / SECTOR;
        let blocks = blocks_of(&sectors);
        let mut mapped: Vec<Range<u64>> = Vec::new();
        let (mut at, mut looked_at) = (blocks.start, 0);
        // More holes and data than extents are asked for need not be looked for: caches can only join them.
        while at < blocks.end && looked_at < ALLOCATION_ENTRIES_MAX && mapped.len() <= extents_max + cached.len() {
            let scan = self.index.scan(segment, at, ALLOCATION_STEP).await?;
            looked_at += scan.entries.len().max(1);
            for entry in scan.entries.iter().filter(|entry| entry.file().is_some()) {
                let range = sectors_of(entry.block..entry.end());
                match mapped.last_mut().filter(|last| last.end == range.start) {
                    Some(last) => last.end = range.end,
                    None => mapped.push(range),
                }
            }
            at = scan.end;
        }
        let known = sectors.start..sectors.end.min(u64::from(at) * SECTORS_PER_BLOCK);
        Ok(extents(known, &mapped, &cached, extents_max.max(1)))
    }
}

fn check_range(offset: u64, len: u64) {
    let aligned = offset.is_multiple_of(SECTOR) && len.is_multiple_of(SECTOR);
    let end = offset.checked_add(len);
    let in_segment = end.is_some_and(|end| end <= SEGMENT_BLOCKS * BLOCK);
    assert!(aligned && len > 0 && in_segment, "the engine checks requests before it reads");
}

/// What `cached` does not cover of `sectors`.
fn gaps(sectors: &Range<u64>, cached: &Cached) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    let mut at = sectors.start;
    for (range, _) in cached {
        assert!(at <= range.start && range.end <= sectors.end, "cached parts are sorted, apart and inside");
        if at < range.start {
            gaps.push(at..range.start);
        }
        at = range.end;
    }
    if at < sectors.end {
        gaps.push(at..sectors.end);
    }
    gaps
}

/// Extents of `known`: what is cached, over what is mapped, over holes.
fn extents(known: Range<u64>, mapped: &[Range<u64>], cached: &Cached, extents_max: usize) -> Vec<AllocationExtent> {
    // Every boundary at which the answer may change.
    let mut cuts: Vec<u64> = vec![known.start, known.end];
    let ranges = mapped.iter().chain(cached.iter().map(|(range, _)| range));
    cuts.extend(ranges.flat_map(|range| [range.start, range.end]).filter(|cut| known.contains(cut)));
    cuts.sort_unstable();
    cuts.dedup();
    let (mut mapped, mut cached) = (mapped.iter().peekable(), cached.iter().peekable());
    let mut extents: Vec<AllocationExtent> = Vec::new();
    for cut in cuts.windows(2) {
        let (at, len) = (cut[0], (cut[1] - cut[0]) * SECTOR);
        while mapped.next_if(|range| range.end <= at).is_some() {}
        while cached.next_if(|(range, _)| range.end <= at).is_some() {}
        let allocated = match cached.peek() {
            Some((range, hit)) if range.contains(&at) => *hit != CacheHit::Zeros,
            _ => mapped.peek().is_some_and(|range| range.contains(&at)),
        };
        if let Some(last) = extents.last_mut().filter(|last| last.allocated == allocated) {
            last.len += len;
        } else if extents.len() < extents_max {
            extents.push(AllocationExtent { len, allocated });
        } else {
            break;
        }
    }
    extents
}

#[cfg(test)]
mod tests;
