//! How the blocks of a range are read: with as few disk operations as their places allow.
//!
//! **Names.** A *run* is a number of blocks that lie near each other in one data file, in the order of their addresses,
//! and are one read. Between them may be up to [`GAP_MAX`] bytes of something else: the label of a large write, or
//! what was overwritten since; to read over it costs less than another read. A *piece* is a part of the answer, and
//! has one *source*.
//!
//! Runs of several requests are not joined here: what a turn submits together, the kernel's block layer joins where it
//! is neighbours, without holding anything back (4 KiB reads in sequence at depth 32, without reading ahead: 0.24 disk
//! operations each).

use std::ops::Range;

use base::{BLOCK, Bytes, ReadPart, SECTOR};

use crate::cache::CacheHit;
use crate::data::{RUN_BLOCKS_MAX, distance};
use crate::index::Entry;

pub(crate) const SECTORS_PER_BLOCK: u64 = BLOCK / SECTOR;

/// Bytes that are read over between two blocks of a run.
const GAP_MAX: u64 = 4 * BLOCK;
/// Bytes that a run spans at most.
const RUN_BYTES_MAX: u64 = RUN_BLOCKS_MAX as u64 * BLOCK;

/// Where a piece of the answer comes from.
pub(crate) enum Source {
    Cached(CacheHit),
    Zeros,
    /// Byte offset in the buffer of a run.
    Run(usize, u64),
}

/// Blocks that are read together.
pub(crate) struct Run {
    pub(crate) entries: Vec<Entry>,
    /// What was read ahead of them, from the first one on. It is not proven.
    pub(crate) held: Option<Bytes>,
}

/// A read that knows where everything is.
#[derive(Default)]
pub(crate) struct Plan {
    /// Length in bytes and source of each piece, by address.
    pub(crate) pieces: Vec<(u64, Source)>,
    pub(crate) runs: Vec<Run>,
}

/// Bytes that are in memory, from the block of an entry on: as far as they go.
pub(crate) trait Held {
    /// What is held from the place of `entry` on.
    fn find(&self, entry: &Entry) -> Option<Bytes>;
}

/// Nothing is.
impl Held for () {
    fn find(&self, _entry: &Entry) -> Option<Bytes> {
        None
    }
}

/// The blocks that `sectors` touch.
pub(crate) fn blocks_of(sectors: &Range<u64>) -> Range<u32> {
    (sectors.start / SECTORS_PER_BLOCK) as u32..sectors.end.div_ceil(SECTORS_PER_BLOCK) as u32
}

pub(crate) fn sectors_of(blocks: Range<u32>) -> Range<u64> {
    u64::from(blocks.start) * SECTORS_PER_BLOCK..u64::from(blocks.end) * SECTORS_PER_BLOCK
}

impl Plan {
    /// Adds the pieces for `sectors` from the index's answer for the blocks from `first_block` on.
    pub(crate) fn add_gap(&mut self, sectors: Range<u64>, first_block: u32, slots: &[Option<Entry>], held: &impl Held) {
        let mut at = sectors.start;
        while at < sectors.end {
            let block = (at / SECTORS_PER_BLOCK) as u32;
            let end = sectors.end.min(sectors_of(block..block + 1).end);
            let in_block = at % SECTORS_PER_BLOCK * SECTOR;
            match slots[(block - first_block) as usize].filter(|entry| entry.file().is_some()) {
                None => self.add(Source::Zeros, (end - at) * SECTOR),
                Some(entry) => {
                    let (run, block_offset) = self.place(entry, held);
                    self.add(Source::Run(run, block_offset + in_block), (end - at) * SECTOR);
                }
            }
            at = end;
        }
    }

    /// The run that reads `entry`, and the offset of its block in the run's buffer.
    fn place(&mut self, entry: Entry, held: &impl Held) -> (usize, u64) {
        let index = self.runs.len().wrapping_sub(1);
        if let Some(run) = self.runs.last_mut()
            && let Some(offset) = run.offset_of(&entry)
        {
            // A block that two gaps share is read once.
            if run.entries.last() != Some(&entry) {
                run.entries.push(entry);
            }
            return (index, offset);
        }
        self.runs.push(Run { entries: vec![entry], held: held.find(&entry) });
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

    /// The answer, from the buffers of the runs.
    pub(crate) fn assemble(self, buffers: &[Bytes]) -> Vec<ReadPart> {
        let mut parts: Vec<ReadPart> = Vec::with_capacity(self.pieces.len());
        for (len, source) in self.pieces {
            let part = match source {
                Source::Cached(CacheHit::Data(data)) => ReadPart::Data(data),
                Source::Cached(CacheHit::Zeros) | Source::Zeros => ReadPart::Zeros(len),
                Source::Run(run, offset) => {
                    ReadPart::Data(buffers[run].slice(offset as usize..(offset + len) as usize))
                }
            };
            match (parts.last_mut(), &part) {
                (Some(ReadPart::Zeros(before)), ReadPart::Zeros(len)) => *before += len,
                _ => parts.push(part),
            }
        }
        parts
    }
}

impl Run {
    /// Where in the run's buffer the block of `entry` is, if it is the last one or can become the next one.
    fn offset_of(&self, entry: &Entry) -> Option<u64> {
        let (first, last) = (self.entries.first()?, self.entries.last()?);
        let offset = distance(first, entry)?;
        if last == entry {
            return Some(offset);
        }
        let gap = distance(last, entry)?.checked_sub(BLOCK)?;
        let fits = match &self.held {
            Some(held) => gap == 0 && offset + BLOCK <= held.len() as u64,
            None => gap <= GAP_MAX && offset + BLOCK <= RUN_BYTES_MAX,
        };
        fits.then_some(offset)
    }
}
