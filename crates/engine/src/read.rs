//! Reads and allocation queries: the segment's caches, and [`crate::reader`] for what they do not hold.

use std::rc::Rc;

use base::{AllocationExtent, Passage, ReadPart, Result, SECTOR, SegmentId, Stage};

use crate::core::Core;
use crate::write::check_range;

impl Core {
    /// See [`crate::Engine::read`].
    pub(crate) async fn read(
        self: &Rc<Self>,
        id: SegmentId,
        offset: u64,
        len: u64,
        passage: &mut Passage,
    ) -> Result<Vec<ReadPart>> {
        let started = self.handle.now();
        check_range(offset, len)?;
        let segment = self.segment(id)?;
        let sectors = offset / SECTOR..(offset + len) / SECTOR;
        let parts = self.reader.read(id, offset, len, || segment.lookup(sectors), started, passage).await;
        // It was released meanwhile: what was looked up may not be all there was, and files may be gone.
        segment.check_exists()?;
        let took_ns = self.handle.now().nanos_since(started);
        self.counters.read.borrow_mut().record(took_ns);
        // What the caches had was not read.
        if passage.of(Stage::Index) > 0 {
            let known_ns = passage.of(Stage::Index) + passage.of(Stage::Repair);
            passage.add(Stage::Disk, took_ns.saturating_sub(known_ns));
        }
        parts
    }

    /// See [`crate::Engine::allocation`].
    pub(crate) async fn allocation(
        self: &Rc<Self>,
        id: SegmentId,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> Result<Vec<AllocationExtent>> {
        check_range(offset, len)?;
        let segment = self.segment(id)?;
        let sectors = offset / SECTOR..(offset + len) / SECTOR;
        let extents = self.reader.allocation(id, offset, len, extents_max, || segment.lookup(sectors)).await;
        segment.check_exists()?;
        extents
    }
}
