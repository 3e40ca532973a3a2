//! What a block server needs from the engine below it.

use std::future::Future;

use base::{AllocationExtent, Bytes, Epoch, Passage, ReadPart, Result, SegmentId, VolumeId, WriteStamp};
use policies::background::{Left, Work};

/// The engine as a server sees it; [`engine::Engine`] is the real one. The contracts are those of its methods.
pub trait Backend: 'static {
    /// See [`engine::Engine::read_noted`].
    fn read(
        &self,
        segment: SegmentId,
        offset: u64,
        len: u64,
        passage: &mut Passage,
    ) -> impl Future<Output = Result<Vec<ReadPart>>>;

    /// See [`engine::Engine::write_noted`].
    fn write(
        &self,
        segment: SegmentId,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
        passage: &mut Passage,
    ) -> impl Future<Output = Result<()>>;

    /// See [`engine::Engine::discard`].
    fn discard(&self, segment: SegmentId, offset: u64, len: u64, stamp: WriteStamp)
    -> impl Future<Output = Result<()>>;

    /// See [`engine::Engine::allocation`].
    fn allocation(
        &self,
        segment: SegmentId,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> impl Future<Output = Result<Vec<AllocationExtent>>>;

    /// See [`engine::Engine::drop_volume`].
    fn drop_volume(&self, volume: VolumeId) -> impl Future<Output = Result<()>>;

    /// The ownership under which it has a segment, if it has it ([`engine::Engine::tenure`]).
    fn epoch(&self, _segment: SegmentId) -> Option<Epoch> {
        Some(engine::EPOCH)
    }

    /// See [`engine::Engine::set_spare_bandwidth`].
    fn set_spare_bandwidth(&self, _left: Left) {}

    /// See [`engine::Engine::background_work`]. What does none has nothing to say.
    fn background_work(&self) -> Work {
        Work::default()
    }

    /// See [`engine::Engine::begin_scrub`]. What has no copies has none to look at.
    fn begin_scrub(&self) {}

    /// See [`engine::Engine::set_provisioned`]. To some, new space is as good as used space.
    fn set_provisioned(&self, _bytes: u64) {}
}

impl Backend for engine::Engine {
    fn read(
        &self,
        segment: SegmentId,
        offset: u64,
        len: u64,
        passage: &mut Passage,
    ) -> impl Future<Output = Result<Vec<ReadPart>>> {
        self.read_noted(segment, offset, len, passage)
    }

    fn write(
        &self,
        segment: SegmentId,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
        passage: &mut Passage,
    ) -> impl Future<Output = Result<()>> {
        self.write_noted(segment, offset, data, checksums, stamp, passage)
    }

    fn discard(
        &self,
        segment: SegmentId,
        offset: u64,
        len: u64,
        stamp: WriteStamp,
    ) -> impl Future<Output = Result<()>> {
        self.discard(segment, offset, len, stamp)
    }

    fn allocation(
        &self,
        segment: SegmentId,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> impl Future<Output = Result<Vec<AllocationExtent>>> {
        self.allocation(segment, offset, len, extents_max)
    }

    fn drop_volume(&self, volume: VolumeId) -> impl Future<Output = Result<()>> {
        self.drop_volume(volume)
    }

    fn epoch(&self, segment: SegmentId) -> Option<Epoch> {
        self.tenure(segment).map(|tenure| tenure.epoch)
    }

    fn set_spare_bandwidth(&self, left: Left) {
        self.set_spare_bandwidth(left);
    }

    fn background_work(&self) -> Work {
        self.background_work()
    }

    fn begin_scrub(&self) {
        self.begin_scrub();
    }

    fn set_provisioned(&self, bytes: u64) {
        self.set_provisioned(bytes);
    }
}
