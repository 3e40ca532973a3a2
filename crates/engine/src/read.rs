//! Reads and allocation queries: the segment's caches, and [`crate::reader`] for what they do not hold.

use std::rc::Rc;

use base::{AllocationExtent, Error, ErrorKind, Passage, ReadPart, Result, SECTOR, SegmentId, Stage};

use crate::core::Core;
use crate::options::Ownership;
use crate::segment::Segment;
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
        let parts = self.check_present(&segment, parts).await;
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
        self.check_present(&segment, extents).await
    }

    /// What a look at `segment` found, if it was here all the time. If it was released meanwhile, what was looked up may
    /// not be all there was. And whoever has it now may have removed its files: what cannot be read may be no damage, but
    /// a life that does not know that it is over.
    async fn check_present<T>(&self, segment: &Segment, found: Result<T>) -> Result<T> {
        if let Err(error) = &found
            && self.options.ownership == Ownership::Given
            && let Err(over) = self.store.check_life().await
            && over.kind == ErrorKind::Fenced
        {
            self.log.on_fenced(&over);
            return Err(Error::moved(format!("{} was taken over: {error}", segment.id())));
        }
        segment.check_exists()?;
        found
    }
}
