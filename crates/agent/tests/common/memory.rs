//! One volume in memory: a directory that knows it and an owner that keeps its blocks, for real clients to try.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{
    AlignedBuf, AllocationExtent, BLOCK, Bytes, Epoch, Error, Generation, Map, ReadPart, Result, VolumeId, WriteStamp,
};
use wire::{
    Answer, Attachment, BlockService, LocalBoxFuture, Reply, SessionId, Target, VolumeDescriptor, VolumeDirectory,
};

/// Blocks by segment and number; what is not there reads as zeros.
pub struct Memory {
    volume: RefCell<VolumeDescriptor>,
    blocks: RefCell<Map<(u32, u64), Bytes>>,
    session: Cell<u64>,
}

impl Memory {
    /// An empty volume.
    pub fn new(name: &str, size: u64) -> Rc<Memory> {
        let volume = VolumeDescriptor::new(VolumeId(1), name, size);
        Rc::new(Memory { volume: RefCell::new(volume), blocks: RefCell::default(), session: Cell::new(0) })
    }

    fn describe(&self) -> VolumeDescriptor {
        self.volume.borrow().clone()
    }

    fn reply<'a, T: 'a>(&self, target: Target, value: impl FnOnce() -> T) -> LocalBoxFuture<'a, Answer<T>> {
        let result = match target.session.0 == self.session.get() {
            true => Ok(value()),
            false => Err(Error::fenced("another session took the volume over")),
        };
        Box::pin(std::future::ready(Ok(Reply { epoch: Epoch(1), result })))
    }

    fn write_bytes(&self, segment: u32, offset: u64, data: &Bytes) {
        let mut blocks = self.blocks.borrow_mut();
        for (at, len) in base::io::fragments(offset, data.len() as u64) {
            let (block, in_block) = ((offset + at) / BLOCK, ((offset + at) % BLOCK) as usize);
            let part = data.slice(at as usize..(at + len) as usize);
            if len == BLOCK {
                blocks.insert((segment, block), part);
                continue;
            }
            let mut merged = match blocks.get(&(segment, block)) {
                Some(old) => AlignedBuf::copy_of(old),
                None => AlignedBuf::zeroed(BLOCK as usize),
            };
            merged[in_block..in_block + part.len()].copy_from_slice(&part);
            blocks.insert((segment, block), merged.freeze());
        }
    }

    fn read_parts(&self, segment: u32, offset: u64, len: u64) -> Vec<ReadPart> {
        let blocks = self.blocks.borrow();
        base::io::fragments(offset, len)
            .map(|(at, len)| {
                let (block, in_block) = ((offset + at) / BLOCK, ((offset + at) % BLOCK) as usize);
                match blocks.get(&(segment, block)) {
                    Some(data) => ReadPart::Data(data.slice(in_block..in_block + len as usize)),
                    None => ReadPart::Zeros(len),
                }
            })
            .collect()
    }

    fn discard_range(&self, segment: u32, offset: u64, len: u64) {
        let mut blocks = self.blocks.borrow_mut();
        let end = offset + len;
        blocks.retain(|&(s, block), _| s != segment || block * BLOCK < offset || (block + 1) * BLOCK > end);
        drop(blocks);
        let head = (offset.next_multiple_of(BLOCK) - offset).min(len);
        let tail = if end / BLOCK * BLOCK >= offset { end % BLOCK } else { 0 };
        for (offset, len) in [(offset, head), (end - tail, tail)] {
            if len > 0 {
                self.write_bytes(segment, offset, &base::buffer::zeros(len as usize));
            }
        }
    }
}

impl VolumeDirectory for Memory {
    fn resolve<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<VolumeDescriptor>> {
        let volume = self.describe();
        let known = volume.name == name;
        let result = known.then_some(volume).ok_or_else(|| Error::not_found(format!("there is no volume '{name}'")));
        Box::pin(std::future::ready(result))
    }

    fn describe(&self, _volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        Box::pin(std::future::ready(Ok(self.describe())))
    }

    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<String>>> {
        Box::pin(std::future::ready(Ok(vec![self.describe().name])))
    }

    fn attach(&self, _volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        self.volume.borrow_mut().generation.0 += 1;
        Box::pin(std::future::ready(Ok(self.describe())))
    }

    fn detach(&self, _volume: VolumeId, _generation: Generation) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

impl BlockService for Memory {
    fn attach(&self, _volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<Attachment>> {
        self.session.set(generation.0);
        Box::pin(std::future::ready(Ok(Attachment { session: SessionId(generation.0), epoch: Epoch(1) })))
    }

    fn detach(&self, _session: SessionId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn read(&self, target: Target, offset: u64, len: u64) -> LocalBoxFuture<'_, Answer<Vec<ReadPart>>> {
        self.reply(target, || self.read_parts(target.segment.index, offset, len))
    }

    fn write(
        &self,
        target: Target,
        offset: u64,
        data: Bytes,
        _checksums: Vec<u32>,
        _stamp: WriteStamp,
    ) -> LocalBoxFuture<'_, Answer<()>> {
        self.reply(target, || self.write_bytes(target.segment.index, offset, &data))
    }

    fn discard(&self, target: Target, offset: u64, len: u64, _stamp: WriteStamp) -> LocalBoxFuture<'_, Answer<()>> {
        self.reply(target, || self.discard_range(target.segment.index, offset, len))
    }

    fn flush(&self, target: Target) -> LocalBoxFuture<'_, Answer<()>> {
        self.reply(target, || ())
    }

    fn allocation(
        &self,
        target: Target,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>> {
        self.reply(target, || {
            let blocks = self.blocks.borrow();
            let segment = target.segment.index;
            let mut present: Vec<u64> = blocks.keys().filter(|(s, _)| *s == segment).map(|(_, block)| *block).collect();
            present.sort_unstable();
            let mut extents: Vec<AllocationExtent> = Vec::new();
            let (mut at, end) = (offset, offset + len);
            let inside = present.iter().filter(|&&block| (block + 1) * BLOCK > offset && block * BLOCK < end);
            for block in inside.copied().chain([u64::MAX]) {
                let start = block.saturating_mul(BLOCK).clamp(offset, end);
                let stop = block.saturating_add(1).saturating_mul(BLOCK).min(end);
                for (until, allocated) in [(start, false), (stop, true)] {
                    match extents.last_mut() {
                        _ if until <= at => {}
                        Some(last) if last.allocated == allocated => last.len += until - at,
                        _ => extents.push(AllocationExtent { len: until - at, allocated }),
                    }
                    at = at.max(until);
                }
            }
            extents.truncate(extents_max);
            extents
        })
    }
}
