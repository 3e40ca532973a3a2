//! Little-endian fields of a record's body, written and read in the same order.
//!
//! Reading never panics and never allocates for more than the bytes that are there: records come from disks.

use base::{FileId, LogSequence, SegmentId, SegmentSequence, VolumeId};
use bytes::BufMut;

/// Appends a segment: volume, index, four reserved bytes.
pub(crate) fn put_segment(out: &mut Vec<u8>, segment: SegmentId) {
    out.put_u64_le(segment.volume.0);
    out.put_u32_le(segment.index);
    out.put_u32_le(0);
}

/// Appends the length of a list; lists are far smaller than 2^32 (a record is bounded).
pub(crate) fn put_count(out: &mut Vec<u8>, count: usize) {
    out.put_u32_le(u32::try_from(count).expect("a record's lists are bounded"));
}

/// What is left of a body. Every method gives `None` where the bytes end or are not what they must be.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    pub(crate) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.bytes::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    /// `N` bytes that must be zero in this version.
    pub(crate) fn reserved<const N: usize>(&mut self) -> Option<()> {
        (self.bytes::<N>()? == [0; N]).then_some(())
    }

    pub(crate) fn segment(&mut self) -> Option<SegmentId> {
        let segment = SegmentId { volume: VolumeId(self.u64()?), index: self.u32()? };
        self.reserved::<4>()?;
        (segment.volume != VolumeId(0)).then_some(segment)
    }

    pub(crate) fn file(&mut self) -> Option<FileId> {
        self.u64().filter(|&file| file != 0).map(FileId)
    }

    pub(crate) fn log_sequence(&mut self) -> Option<LogSequence> {
        self.u64().map(LogSequence)
    }

    pub(crate) fn segment_sequence(&mut self) -> Option<SegmentSequence> {
        self.u64().map(SegmentSequence)
    }

    /// `count` items of at least `bytes_min` bytes each.
    pub(crate) fn list<T>(
        &mut self,
        count: u32,
        bytes_min: usize,
        mut item: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = count as usize;
        if count.checked_mul(bytes_min)? > self.0.len() {
            return None;
        }
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(item(self)?);
        }
        Some(items)
    }

    /// Nothing may follow.
    pub(crate) fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}
