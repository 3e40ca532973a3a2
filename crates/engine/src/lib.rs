//! The log-structured block device (EBS, FAST 2024, §2.2 and §2.3).
//!
//! To be completed by its parts; the public face is below.

pub mod cache;
pub mod data;
pub mod fusion;
pub mod garbage;
pub mod gc;
pub mod index;
pub mod join;
pub mod journal;
pub mod options;
pub mod pins;
pub mod reader;
#[cfg(test)]
mod testing;
pub mod transaction;
pub mod verified;

use base::{AllocationExtent, Bytes, Epoch, ReadPart, Result, SegmentId, VolumeId, WriteStamp};
use files::Store;
use runtime::Handle;

pub use options::Options;

/// The ownership of every segment, until segments move between servers.
pub const EPOCH: Epoch = Epoch(1);

/// An engine on one loop. Clones share it.
#[derive(Clone)]
pub struct Engine {}

impl Engine {
    /// Opens the engine on `store`: recovers everything that earlier incarnations acknowledged.
    ///
    /// # Errors
    /// `Corrupt` where an acknowledged byte cannot be proven or disproven (it names the override), `Io`, `Full`.
    pub async fn open(handle: &Handle, store: &Store, options: Options) -> Result<Engine> {
        let _ = (handle, store, options);
        todo!()
    }

    /// Writes `data` at byte `offset` of a segment, both multiples of 512. `checksums` are
    /// [`base::io::fragment_checksums`] of it. When it returns, the write is durable and visible.
    ///
    /// # Errors
    /// `Full`, `Io` (the outcome is unknown), `Invalid`.
    pub async fn write(
        &self,
        segment: SegmentId,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
    ) -> Result<()> {
        let _ = (segment, offset, data, checksums, stamp);
        todo!()
    }

    /// Reads `len` bytes at `offset`.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: never wrong bytes.
    pub async fn read(&self, segment: SegmentId, offset: u64, len: u64) -> Result<Vec<ReadPart>> {
        let _ = (segment, offset, len);
        todo!()
    }

    /// Makes a range read as zeros and frees its space in time. Durable when it returns.
    ///
    /// # Errors
    /// `Io`. Works on a full disk.
    pub async fn discard(&self, segment: SegmentId, offset: u64, len: u64, stamp: WriteStamp) -> Result<()> {
        let _ = (segment, offset, len, stamp);
        todo!()
    }

    /// Which parts of a range hold data. At most `extents_max` extents; they may cover less than was asked.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub async fn allocation(
        &self,
        segment: SegmentId,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<AllocationExtent>> {
        let _ = (segment, offset, len, extents_max);
        todo!()
    }

    /// Forgets every segment of a volume and frees its space in time. Durable when it returns.
    ///
    /// # Errors
    /// `Io`. Works on a full disk.
    pub async fn drop_volume(&self, volume: VolumeId) -> Result<()> {
        let _ = volume;
        todo!()
    }

    /// Dumps what is dirty and ends background work, so that the next start has nothing to replay.
    ///
    /// # Errors
    /// `Io`: nothing acknowledged is lost, the next start replays.
    pub async fn close(&self) -> Result<()> {
        todo!()
    }
}
