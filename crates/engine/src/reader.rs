//! Reads: what the caches hold, over what the index says, over zeros.
//!
//! **Flow.** In one step, without waiting: the caches are asked, and the index takes its snapshot of what is in
//! memory. So data on its way from a cache to the index is seen in one of them. Then, for what the caches do not
//! cover: pages of the index, data files, one read for each run of neighbouring blocks, many at a time. Every block
//! is proven against its entry before a byte of it is used, also when only a sector of it was asked for.
//!
//! A read of one whole block, the common case, hands out the buffer that the disk filled.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use base::limits::SEGMENT_BLOCKS;
use base::{AllocationExtent, BLOCK, Bytes, Instant, Passage, ReadPart, Result, SECTOR, SegmentId, Stage};

use crate::cache::CacheHit;
use crate::data::{DataFiles, RUN_BLOCKS_MAX, follows};
use crate::index::{Entry, Index};
use crate::join::join_all;

/// Reads of data files that one request has in flight.
const READS_IN_FLIGHT: usize = 32;
/// Index entries that one allocation query looks at.
const ALLOCATION_ENTRIES_MAX: usize = 64 * 1024;
/// Index entries that it asks for at a time.
const ALLOCATION_STEP: usize = 4096;

const SECTORS_PER_BLOCK: u64 = BLOCK / SECTOR;

/// What the caches of a segment know of a range: sectors and content, by address, without overlaps.
pub type Cached = Vec<(Range<u64>, CacheHit)>;

/// The read path of an engine. Clones share it.
#[derive(Clone)]
pub struct Reader {
    index: Index,
    data: DataFiles,
    relocated_blocks: Rc<Cell<u64>>,
}

/// Where a piece of the answer comes from.
enum Source {
    Cached(CacheHit),
    Zeros,
    /// Byte offset in the buffer of a run.
    Run(usize, u64),
}

/// Blocks that are read together.
struct Run {
    entries: Vec<Entry>,
}

/// A read that knows where everything is.
#[derive(Default)]
struct Plan {
    /// Length in bytes and source of each piece, by address.
    pieces: Vec<(u64, Source)>,
    runs: Vec<Run>,
}

impl Reader {
    /// The read path over `index`.
    pub fn new(index: &Index) -> Reader {
        Reader { index: index.clone(), data: DataFiles::new(index.files()), relocated_blocks: Rc::default() }
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
        let _pin = self.data.files().pin();
        let cached = cached();
        if cached.is_empty() && len == BLOCK && offset.is_multiple_of(BLOCK) {
            let entry = self.lookup_block(segment, (offset / BLOCK) as u32).await?;
            passage.add(Stage::Index, handle.now().nanos_since(started));
            let content = self.fetch_block(segment, entry, &repair_ns).await;
            passage.add(Stage::Repair, repair_ns.get());
            return content.map(|content| vec![content.map_or(ReadPart::Zeros(BLOCK), ReadPart::Data)]);
        }
        let plan = self.plan(segment, offset / SECTOR..(offset + len) / SECTOR, cached).await?;
        self.count_relocated(plan.runs.iter().flat_map(|run| &run.entries));
        if !plan.runs.is_empty() {
            passage.add(Stage::Index, handle.now().nanos_since(started));
        }
        let buffers = self.fetch(segment, &plan.runs, &repair_ns).await;
        passage.add(Stage::Repair, repair_ns.get());
        Ok(assemble(plan.pieces, &buffers?))
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

    async fn plan(&self, segment: SegmentId, sectors: Range<u64>, cached: Cached) -> Result<Plan> {
        // The index is asked once, for all blocks from the first to the last that the caches leave open.
        let gaps = gaps(&sectors, &cached);
        let blocks = match (gaps.first(), gaps.last()) {
            (Some(first), Some(last)) => blocks_of(&(first.start..last.end)),
            _ => 0..0,
        };
        let mut slots = vec![None; blocks.len()];
        if !blocks.is_empty() {
            self.index.lookup_into(segment, blocks.clone(), &mut slots).await?;
        }
        let mut plan = Plan::default();
        let mut at = sectors.start;
        for (range, hit) in cached {
            plan.add_gap(at..range.start, blocks.start, &slots);
            plan.pieces.push(((range.end - range.start) * SECTOR, Source::Cached(hit)));
            at = range.end;
        }
        plan.add_gap(at..sectors.end, blocks.start, &slots);
        Ok(plan)
    }

    /// Reads all runs, some at a time.
    async fn fetch(&self, segment: SegmentId, runs: &[Run], repair_ns: &Cell<u64>) -> Result<Vec<Bytes>> {
        let mut buffers = Vec::with_capacity(runs.len());
        if let [run] = runs {
            buffers.push(self.data.read_run_noted(segment, &run.entries, repair_ns).await?.freeze());
            return Ok(buffers);
        }
        for some in runs.chunks(READS_IN_FLIGHT) {
            let reads = some.iter().map(|run| self.data.read_run_noted(segment, &run.entries, repair_ns));
            for buffer in join_all(reads).await {
                buffers.push(buffer?.freeze());
            }
        }
        Ok(buffers)
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

/// The blocks that `sectors` touch.
fn blocks_of(sectors: &Range<u64>) -> Range<u32> {
    (sectors.start / SECTORS_PER_BLOCK) as u32..sectors.end.div_ceil(SECTORS_PER_BLOCK) as u32
}

fn sectors_of(blocks: Range<u32>) -> Range<u64> {
    u64::from(blocks.start) * SECTORS_PER_BLOCK..u64::from(blocks.end) * SECTORS_PER_BLOCK
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

impl Plan {
    /// Adds the pieces for `sectors` from the index's answer for the blocks from `first_block` on.
    fn add_gap(&mut self, sectors: Range<u64>, first_block: u32, slots: &[Option<Entry>]) {
        let mut at = sectors.start;
        while at < sectors.end {
            let block = (at / SECTORS_PER_BLOCK) as u32;
            let end = sectors.end.min(sectors_of(block..block + 1).end);
            let in_block = at % SECTORS_PER_BLOCK * SECTOR;
            match slots[(block - first_block) as usize].filter(|entry| entry.file().is_some()) {
                None => self.add(Source::Zeros, (end - at) * SECTOR),
                Some(entry) => {
                    let (run, block_offset) = self.place(entry);
                    self.add(Source::Run(run, block_offset + in_block), (end - at) * SECTOR);
                }
            }
            at = end;
        }
    }

    /// The run that reads `entry`, and the offset of its block in the run's buffer.
    fn place(&mut self, entry: Entry) -> (usize, u64) {
        let index = self.runs.len().wrapping_sub(1);
        if let Some(run) = self.runs.last_mut() {
            let last = run.entries.len() - 1;
            // A block that two gaps share is read once.
            if run.entries[last] == entry {
                return (index, last as u64 * BLOCK);
            }
            if last + 1 < RUN_BLOCKS_MAX && follows(&run.entries[last], &entry) {
                run.entries.push(entry);
                return (index, (last + 1) as u64 * BLOCK);
            }
        }
        self.runs.push(Run { entries: vec![entry] });
        (self.runs.len() - 1, 0)
    }

    fn add(&mut self, source: Source, len: u64) {
        if let Some((last_len, last)) = self.pieces.last_mut() {
            let continues = match (last, &source) {
                (Source::Zeros, Source::Zeros) => true,
                (Source::Run(run, offset), Source::Run(next_run, next)) => {
                    run == next_run && *offset + *last_len == *next
                }
                _ => false,
            };
            if continues {
                *last_len += len;
                return;
            }
        }
        self.pieces.push((len, source));
    }
}

fn assemble(pieces: Vec<(u64, Source)>, buffers: &[Bytes]) -> Vec<ReadPart> {
    let mut parts: Vec<ReadPart> = Vec::with_capacity(pieces.len());
    for (len, source) in pieces {
        let part = match source {
            Source::Cached(CacheHit::Data(data)) => ReadPart::Data(data),
            Source::Cached(CacheHit::Zeros) | Source::Zeros => ReadPart::Zeros(len),
            Source::Run(run, offset) => ReadPart::Data(buffers[run].slice(offset as usize..(offset + len) as usize)),
        };
        match (parts.last_mut(), &part) {
            (Some(ReadPart::Zeros(before)), ReadPart::Zeros(len)) => *before += len,
            _ => parts.push(part),
        }
    }
    parts
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
