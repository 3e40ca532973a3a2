//! Interim reader, until `reader` is there.

use std::rc::Rc;

use base::checksum::block_checksum;
use base::{AllocationExtent, BLOCK, Bytes, ReadPart, Result, SECTOR, SegmentId};

use crate::cache::CacheHit;
use crate::core::Core;
use crate::index::{Index, Mapping};
use crate::verified::{FileRange, VerifiedFiles};
use crate::write::check_range;

pub(crate) struct Reader {
    files: VerifiedFiles,
    index: Index,
}

impl Reader {
    pub(crate) fn new(files: &VerifiedFiles, index: &Index) -> Self {
        Reader { files: files.clone(), index: index.clone() }
    }

    pub(crate) async fn read_block(&self, segment: SegmentId, block: u32) -> Result<Option<Bytes>> {
        let _pin = self.files.pin();
        let Some(entry) = self.index.lookup_block(segment, block).await? else { return Ok(None) };
        let Mapping::Data { file, offset, checksum } = entry.mapping else { return Ok(None) };
        let place = u64::from(segment.index) << 32 | u64::from(block);
        let range = FileRange { file, offset, len: BLOCK as usize };
        let good = |bytes: &[u8]| block_checksum(segment.volume, place, bytes) == checksum;
        self.files.read(range, &format!("block {block} of {segment}"), good).await.map(|bytes| Some(bytes.freeze()))
    }
}

impl Core {
    pub(crate) async fn read(self: &Rc<Self>, id: SegmentId, offset: u64, len: u64) -> Result<Vec<ReadPart>> {
        check_range(offset, len)?;
        let segment = self.segment(id)?;
        let sectors = offset / SECTOR..(offset + len) / SECTOR;
        let _pin = self.files.pin();
        let hits = segment.lookup(sectors.clone());
        let mut parts = Vec::new();
        let mut at = sectors.start;
        for (range, hit) in hits.into_iter().map(|(r, h)| (r, Some(h))).chain([(sectors.end..sectors.end, None)]) {
            while at < range.start {
                let block = at / 8;
                let end = range.start.min((block + 1) * 8);
                match self.reader.read_block(id, block as u32).await? {
                    None => parts.push(ReadPart::Zeros((end - at) * SECTOR)),
                    Some(bytes) => {
                        let from = ((at - block * 8) * SECTOR) as usize;
                        parts.push(ReadPart::Data(bytes.slice(from..from + ((end - at) * SECTOR) as usize)));
                    }
                }
                at = end;
            }
            match hit {
                Some(CacheHit::Data(bytes)) => parts.push(ReadPart::Data(bytes)),
                Some(CacheHit::Zeros) => parts.push(ReadPart::Zeros((range.end - range.start) * SECTOR)),
                None => {}
            }
            at = range.end.max(at);
        }
        Ok(parts)
    }

    pub(crate) async fn allocation(
        self: &Rc<Self>,
        _id: SegmentId,
        _offset: u64,
        _len: u64,
        _max: usize,
    ) -> Result<Vec<AllocationExtent>> {
        Ok(Vec::new())
    }
}
