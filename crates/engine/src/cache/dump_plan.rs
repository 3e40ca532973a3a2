//! What a dump writes: the extents of a segment cache, cut into blocks.
//!
//! Intuition: the index knows whole 4 KiB blocks, the cache 512-byte sectors. A block that extents cover entirely
//! goes to the data file as it is; one that they cover in part is merged into its *base*, the block as the index has
//! it. A discard becomes an index entry without data where it covers whole blocks.
//!
//! Invariant: the checksum of every write is verified before its bytes go into a block, and the block's own checksum
//! is the write's where the block is one whole fragment of it.

use std::ops::Range;

use base::checksum::block_checksum;
use base::{AlignedBuf, BLOCK, Result, SECTOR, SegmentId, SegmentSequence};

use super::extent::{CacheExtent, Piece};

const SECTORS_PER_BLOCK: u64 = BLOCK / SECTOR;

/// One step of a dump. Items are in the order of their blocks and do not overlap.
pub enum DumpItem {
    /// A block with data.
    Block(DumpBlock),
    /// Whole blocks that read as zeros.
    Zeros {
        /// The blocks of the segment.
        blocks: Range<u32>,
        /// The discard.
        sequence: SegmentSequence,
    },
}

/// A block that becomes data.
pub struct DumpBlock {
    block: u32,
    sequence: SegmentSequence,
    parts: Vec<Part>,
}

/// Sectors of a block, and what is there; zeros where there is no piece.
struct Part {
    sectors: Range<u64>,
    piece: Option<Piece>,
}

/// Cuts extents (by address) into blocks.
pub(super) fn plan<'a>(extents: impl Iterator<Item = (Range<u64>, &'a CacheExtent)>) -> Vec<DumpItem> {
    let mut items: Vec<DumpItem> = Vec::new();
    for (range, extent) in extents {
        let mut at = range.start;
        while at < range.end {
            let block = at / SECTORS_PER_BLOCK;
            let whole_blocks = (range.end - at) / SECTORS_PER_BLOCK;
            if extent.is_zeros() && at.is_multiple_of(SECTORS_PER_BLOCK) && whole_blocks > 0 {
                push_zeros(&mut items, block as u32..(block + whole_blocks) as u32, extent.sequence());
                at += whole_blocks * SECTORS_PER_BLOCK;
                continue;
            }
            let end = range.end.min((block + 1) * SECTORS_PER_BLOCK);
            let first = block * SECTORS_PER_BLOCK;
            let part =
                Part { sectors: at - first..end - first, piece: extent.piece(at - range.start..end - range.start) };
            push_part(&mut items, block as u32, extent.sequence(), part);
            at = end;
        }
    }
    items.into_iter().map(DumpBlock::zeros_if_nothing_else).collect()
}

fn push_zeros(items: &mut Vec<DumpItem>, blocks: Range<u32>, sequence: SegmentSequence) {
    match items.last_mut() {
        Some(DumpItem::Zeros { blocks: last, sequence: same }) if last.end == blocks.start && *same == sequence => {
            last.end = blocks.end;
        }
        _ => items.push(DumpItem::Zeros { blocks, sequence }),
    }
}

fn push_part(items: &mut Vec<DumpItem>, block: u32, sequence: SegmentSequence, part: Part) {
    match items.last_mut() {
        Some(DumpItem::Block(last)) if last.block == block => {
            last.sequence = last.sequence.max(sequence);
            last.parts.push(part);
        }
        _ => items.push(DumpItem::Block(DumpBlock { block, sequence, parts: vec![part] })),
    }
}

impl DumpBlock {
    /// The block of the segment.
    pub fn block(&self) -> u32 {
        self.block
    }

    /// The newest write or discard in it: the sequence of its index entry.
    pub fn sequence(&self) -> SegmentSequence {
        self.sequence
    }

    /// Whether it must be merged into what the index has for the block.
    pub fn needs_base(&self) -> bool {
        let covered: u64 = self.parts.iter().map(|part| part.sectors.end - part.sectors.start).sum();
        covered < SECTORS_PER_BLOCK
    }

    /// Whether every part reads as zeros: over a base of zeros there is nothing to write.
    pub fn only_zeros(&self) -> bool {
        self.parts.iter().all(|part| part.piece.is_none())
    }

    /// A block that several discards cover together needs no data.
    fn zeros_if_nothing_else(item: DumpItem) -> DumpItem {
        match item {
            DumpItem::Block(block) if !block.needs_base() && block.only_zeros() => {
                DumpItem::Zeros { blocks: block.block..block.block + 1, sequence: block.sequence }
            }
            item => item,
        }
    }

    /// Appends the block's content to `buffer` and returns its checksum. `base` is the verified block in the index;
    /// without one, sectors that nobody wrote are zeros.
    ///
    /// # Errors
    /// `Corrupt` if cached bytes changed since they were written.
    pub fn append_to(&self, buffer: &mut AlignedBuf, segment: SegmentId, base: Option<&[u8]>) -> Result<u32> {
        let start = buffer.len();
        if let Some(piece) = self.whole_piece() {
            buffer.extend_from_slice(&piece.bytes());
            let checksum = self.checksum(segment, &buffer[start..]);
            if piece.block_checksum() != Some(checksum) {
                piece.verify()?;
            }
            return Ok(checksum);
        }
        match base {
            Some(base) => buffer.extend_from_slice(base),
            None => buffer.set_len(start + BLOCK as usize),
        }
        let target = &mut buffer[start..];
        for part in &self.parts {
            let target = &mut target[(part.sectors.start * SECTOR) as usize..(part.sectors.end * SECTOR) as usize];
            let Some(piece) = &part.piece else {
                target.fill(0);
                continue;
            };
            target.copy_from_slice(&piece.bytes());
            // Each write answers for its own bytes. After the copy: what changed before it is noticed, too.
            piece.verify()?;
        }
        Ok(self.checksum(segment, target))
    }

    fn checksum(&self, segment: SegmentId, content: &[u8]) -> u32 {
        assert_eq!(content.len() as u64, BLOCK, "a block is filled as a whole");
        block_checksum(segment.volume, u64::from(segment.index) << 32 | u64::from(self.block), content)
    }

    /// The one piece that covers the block, if there is one.
    fn whole_piece(&self) -> Option<&Piece> {
        match &self.parts[..] {
            [Part { sectors, piece: Some(piece) }] if sectors.end - sectors.start == SECTORS_PER_BLOCK => Some(piece),
            _ => None,
        }
    }
}
