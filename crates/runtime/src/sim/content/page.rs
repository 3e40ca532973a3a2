//! Pages of a file's content, in chunks of 64: their bytes, which sectors are dirty, and what the medium holds.

use std::ops::Range;
use std::rc::Rc;

use base::Prng;

/// Bytes in a page, the unit of allocation.
pub(super) const PAGE: u64 = 4096;
/// Bytes in a sector, the unit of atomicity.
pub(in crate::sim) const SECTOR: u64 = 512;
/// Pages in a chunk: one bit of a word for each.
pub(super) const PAGES_PER_CHUNK: u64 = 64;

/// The content of a page; `None` is zeros.
pub(super) type Data = Option<Rc<[u8; PAGE as usize]>>;

#[derive(Clone, Debug)]
pub(super) struct Chunk {
    /// One bit per page: it takes up room on the disk.
    pub(super) allocated: u64,
    pub(super) pages: [Page; PAGES_PER_CHUNK as usize],
}

#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    pub(super) now: Data,
    pub(super) dirty: Option<Box<Dirty>>,
}

#[derive(Clone, Debug)]
pub(super) struct Dirty {
    /// One bit per sector that is newer than the medium.
    pub(super) sectors: u8,
    /// What the medium holds.
    pub(super) durable: Data,
    /// For each dirty sector, the number of the write that it came with.
    pub(super) written: [u64; (PAGE / SECTOR) as usize],
}

impl Chunk {
    pub(super) fn empty() -> Box<Chunk> {
        Box::new(Chunk { allocated: 0, pages: [const { Page { now: None, dirty: None } }; PAGES_PER_CHUNK as usize] })
    }
}

impl Page {
    /// Marks sectors as dirty by write number `write`, before they change.
    pub(super) fn soil(&mut self, sectors: u8, write: u64, syncing: u64, prng: &mut Prng, on_first: impl FnOnce()) {
        if self.dirty.is_none() {
            on_first();
        }
        let Page { now, dirty } = self;
        let dirty = dirty.get_or_insert_with(|| {
            Box::new(Dirty { sectors: 0, durable: now.clone(), written: [0; (PAGE / SECTOR) as usize] })
        });
        // Was the version that is overwritten now written back before? Surely so if a sync in flight covers it.
        let overwritten = dirty.sectors & sectors;
        let lucky = overwritten != 0 && prng.one_in(2);
        for sector in bits(overwritten) {
            if lucky || dirty.written[sector as usize] <= syncing {
                copy_sector(now, &mut dirty.durable, sector);
            }
        }
        dirty.sectors |= sectors;
        bits(sectors).for_each(|sector| dirty.written[sector as usize] = write);
    }

    /// These sectors reached the medium as they are now.
    pub(super) fn clean(&mut self, sectors: u8) {
        let Some(dirty) = &mut self.dirty else { return };
        bits(sectors).for_each(|sector| copy_sector(&self.now, &mut dirty.durable, sector));
        dirty.sectors &= !sectors;
        if dirty.sectors == 0 {
            self.dirty = None;
        }
    }

    /// The sectors that were written no later than by write number `write` reached the medium.
    pub(super) fn clean_until(&mut self, write: u64) {
        let Some(dirty) = &self.dirty else { return };
        let covered = bits(dirty.sectors).filter(|&sector| dirty.written[sector as usize] <= write);
        let covered = covered.fold(0, |mask, sector| mask | (1 << sector));
        match covered == dirty.sectors {
            true => self.dirty = None,
            false => self.clean(covered),
        }
    }

    pub(super) fn put(&mut self, within: usize, bytes: &[u8], zeros: bool) {
        match (zeros, bytes.len() as u64 == PAGE) {
            (true, true) => self.now = None,
            (true, false) if self.now.is_none() => {}
            (false, true) if bytes.chunks(64).all(|run| run.iter().fold(0, |sum, byte| sum | byte) == 0) => {
                self.now = None;
            }
            (false, true) if self.now.is_none() => {
                self.now = Some(Rc::new(bytes.try_into().expect("a whole page")));
            }
            _ => put(&mut self.now, within, bytes),
        }
    }
}

pub(super) fn put(data: &mut Data, within: usize, bytes: &[u8]) {
    let page = data.get_or_insert_with(|| Rc::new([0; PAGE as usize]));
    Rc::make_mut(page)[within..within + bytes.len()].copy_from_slice(bytes);
}

pub(super) fn copy_sector(from: &Data, to: &mut Data, sector: u64) {
    let start = (sector * SECTOR) as usize;
    let end = start + SECTOR as usize;
    match (from, &to) {
        (None, None) => {}
        (None, Some(_)) => put(to, start, &[0; SECTOR as usize]),
        (Some(from), _) => {
            let bytes: [u8; SECTOR as usize] = from[start..end].try_into().expect("a sector");
            put(to, start, &bytes);
        }
    }
}

/// The numbers of the bits that are set.
pub(super) fn bits(mask: u8) -> impl Iterator<Item = u64> {
    (0..PAGE / SECTOR).filter(move |sector| mask & (1 << sector) != 0)
}

/// One bit per sector that `within..within + len` of a page touches.
pub(super) fn sector_mask(within: usize, len: usize) -> u8 {
    let first = within as u64 / SECTOR;
    let end = (within + len) as u64;
    let end = end.div_ceil(SECTOR);
    (((1u16 << end) - 1) & !((1u16 << first) - 1)) as u8
}

/// Calls `f(page, offset within it, range of the caller's bytes)` for each page that a range touches.
pub(super) fn for_each_page(offset: u64, len: u64, mut f: impl FnMut(u64, usize, Range<usize>)) {
    let mut done = 0;
    while done < len {
        let at = offset + done;
        let count = (PAGE - at % PAGE).min(len - done);
        f(at / PAGE, (at % PAGE) as usize, done as usize..(done + count) as usize);
        done += count;
    }
}

/// Calls `f(chunk, mask of its pages)` for each chunk that a range touches.
pub(super) fn for_each_chunk(offset: u64, len: u64, mut f: impl FnMut(u64, u64)) {
    if len == 0 {
        return;
    }
    let (first, end) = (offset / PAGE, (offset + len).div_ceil(PAGE));
    for chunk in first / PAGES_PER_CHUNK..end.div_ceil(PAGES_PER_CHUNK) {
        let start = chunk * PAGES_PER_CHUNK;
        let from = first.saturating_sub(start).min(PAGES_PER_CHUNK);
        let to = (end - start).min(PAGES_PER_CHUNK);
        let mask = (u64::MAX << from) & (u64::MAX >> (PAGES_PER_CHUNK - to));
        f(chunk, mask);
    }
}
