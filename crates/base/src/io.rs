//! What travels with a read or a write on its way between agent, server and engine.

use bytes::Bytes;

use crate::checksum::{crc32c, crc32c_append};
use crate::ids::{Generation, SegmentId, SnapshotNumber, WriteSequence};
use crate::units::{BLOCK, SECTOR};

/// Who wrote, and when in its own order: stamped by the agent on every write and discard, kept in every record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct WriteStamp {
    /// The attachment of the volume.
    pub generation: Generation,
    /// The write's number within it.
    pub sequence: WriteSequence,
    /// The snapshot that the write comes after.
    pub snapshot: SnapshotNumber,
}

/// A part of what a read returns, in address order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadPart {
    /// Bytes that were written.
    Data(Bytes),
    /// This many bytes that read as zeros: never written, or discarded.
    Zeros(u64),
}

impl ReadPart {
    /// Length in bytes.
    #[allow(clippy::len_without_is_empty)] // a part is never empty
    pub fn len(&self) -> u64 {
        match self {
            ReadPart::Data(data) => data.len() as u64,
            ReadPart::Zeros(len) => *len,
        }
    }
}

/// What a range of a segment is made of, for allocation queries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocationExtent {
    /// Length in bytes.
    pub len: u64,
    /// Whether it holds written data; otherwise it is a hole that reads as zeros.
    pub allocated: bool,
}

/// A checksum for each block that a write touches, made by the agent and kept until the bytes are in a data file.
///
/// A write of `data` at byte `offset` of a segment is cut at block boundaries into *fragments*. The checksum of a
/// fragment that fills its block is [`crate::checksum::block_checksum`], so that the index can keep it as it is.
pub fn fragment_checksums(segment: SegmentId, offset: u64, data: &[u8]) -> Vec<u32> {
    fragments(offset, data.len() as u64)
        .map(|(at, len)| fragment_checksum(segment, offset + at, &data[at as usize..(at + len) as usize]))
        .collect()
}

/// The checksum of one fragment at byte `offset` of a segment; it must not cross a block boundary.
pub fn fragment_checksum(segment: SegmentId, offset: u64, data: &[u8]) -> u32 {
    let block = (u64::from(segment.index) << 32) | (offset / BLOCK);
    let in_block = offset % BLOCK;
    debug_assert!(in_block + data.len() as u64 <= BLOCK);
    if data.len() as u64 == BLOCK {
        return crate::checksum::block_checksum(segment.volume, block, data);
    }
    let mut place = [0u8; 24];
    place[..8].copy_from_slice(&segment.volume.0.to_le_bytes());
    place[8..16].copy_from_slice(&block.to_le_bytes());
    place[16..].copy_from_slice(&(in_block / SECTOR + 1).to_le_bytes());
    crc32c_append(crc32c(&place), data)
}

/// The fragments of a write of `len` bytes at `offset`: position in the write, and length.
pub fn fragments(offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        (at < len).then(|| {
            let size = (BLOCK - (offset + at) % BLOCK).min(len - at);
            at += size;
            (at - size, size)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::VolumeId;

    #[test]
    fn fragments_end_at_block_boundaries() {
        assert_eq!(fragments(512, 8192).collect::<Vec<_>>(), [(0, 3584), (3584, 4096), (7680, 512)]);
        let segment = SegmentId { volume: VolumeId(3), index: 2 };
        let data = vec![1u8; 8192];
        let sums = fragment_checksums(segment, 512, &data);
        assert_eq!(sums.len(), 3);
        assert_eq!(sums[1], crate::checksum::block_checksum(VolumeId(3), 2 << 32 | 1, &data[3584..7680]));
        assert_ne!(fragment_checksum(segment, 0, &data[..512]), fragment_checksum(segment, 512, &data[..512]));
    }
}
