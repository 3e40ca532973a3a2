//! The log-structured block device (EBS, FAST 2024, §2.2 and §2.3): durable writes and verified reads of segments.
//!
//! To be completed by its parts; the public face is below.

mod admission;
mod background;
pub mod cache;
mod checkpoint;
mod core;
pub mod data;
mod data_writer;
mod dump;
pub mod fusion;
pub mod garbage;
pub mod gc;
pub mod index;
pub mod join;
pub mod journal;
mod large;
pub mod options;
pub mod pins;
mod read;
pub mod reader;
mod recovery;
pub mod segment;
pub mod statistics;
#[cfg(test)]
mod testing;
pub mod transaction;
pub mod verified;
mod volume;
mod write;

use std::rc::Rc;

use base::{AllocationExtent, Bytes, Epoch, ReadPart, Result, SegmentId, VolumeId, WriteStamp};
use files::Store;
use runtime::Handle;

pub use options::Options;
pub use statistics::Statistics;

/// The ownership of every segment, until segments move between servers.
pub const EPOCH: Epoch = Epoch(1);

/// An engine on one loop. Clones share it.
#[derive(Clone)]
pub struct Engine(Rc<core::Core>);

impl Engine {
    /// Opens the engine on `store`: recovers everything that earlier incarnations acknowledged.
    ///
    /// # Errors
    /// `Corrupt` where an acknowledged byte cannot be proven or disproven (it names the override), `Io`, `Full`.
    pub async fn open(handle: &Handle, store: &Store, options: Options) -> Result<Engine> {
        recovery::open(handle, store, options).await.map(Engine)
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
        self.0.write(segment, offset, data, checksums, stamp).await
    }

    /// Reads `len` bytes at `offset`.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: never wrong bytes.
    pub async fn read(&self, segment: SegmentId, offset: u64, len: u64) -> Result<Vec<ReadPart>> {
        self.0.read(segment, offset, len).await
    }

    /// Makes a range read as zeros and frees its space in time. Durable when it returns.
    ///
    /// # Errors
    /// `Io`. Works on a full disk.
    pub async fn discard(&self, segment: SegmentId, offset: u64, len: u64, stamp: WriteStamp) -> Result<()> {
        self.0.discard(segment, offset, len, stamp).await
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
        self.0.allocation(segment, offset, len, extents_max).await
    }

    /// Forgets every segment of a volume and frees its space in time. Durable when it returns.
    ///
    /// # Errors
    /// `Io`. Works on a full disk.
    pub async fn drop_volume(&self, volume: VolumeId) -> Result<()> {
        self.0.drop_volume(volume).await
    }

    /// Dumps what is dirty and ends background work, so that the next start has nothing to replay.
    ///
    /// # Errors
    /// `Io`: nothing acknowledged is lost, the next start replays.
    pub async fn close(&self) -> Result<()> {
        self.0.close().await
    }

    /// What it did since it was opened, and how it stands.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics()
    }
}
