//! The bytes of one simulated file: what readers see now, and what a loss of power would leave.
//!
//! Content is kept as sparse 4 KiB pages in chunks of 64. A page of zeros holds no memory, and pages are shared
//! between the two views and with snapshots until one of them changes. Each page knows which of its 512-byte sectors
//! are *dirty* (written, not yet synced) and what the medium holds below them.
//!
//! The medium may write a dirty sector back whenever it likes. That matters only when the sector is overwritten while
//! dirty (a coin decides then whether the older version reached the medium) and at a loss of power (a [`Fate`]
//! decides, sector by sector, which version is found). A sector itself is atomic.
//!
//! Invariants: a clean page is the same in both views; bytes beyond `size` are zero; `allocated` counts the bits of
//! the chunks.

mod page;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use base::Prng;
use base::buffer::are_shared_zeros;

use self::page::{Chunk, PAGE, PAGES_PER_CHUNK, Page, copy_sector, for_each_chunk, for_each_page, put, sector_mask};

pub(super) use self::page::SECTOR;

/// How far a write reaches when it completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reach {
    /// The medium: it survives a loss of power.
    Medium,
    /// A cache: it survives until a loss of power, which decides its fate.
    Cache,
}

/// What a loss of power does to a set of sectors that nobody synced. Drawn once per file or write, so that "all of
/// it" and "nothing of it" are as likely as a mixture.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// Nothing reached the medium.
    Nothing,
    /// Everything did.
    Everything,
    /// The sectors before a point did: a torn append.
    Prefix(u64),
    /// Each sector did or did not.
    Scattered,
}

impl Fate {
    /// Draws the fate of `sectors` sectors.
    pub(super) fn draw(prng: &mut Prng, sectors: u64) -> Fate {
        match prng.below(4) {
            0 => Fate::Nothing,
            1 => Fate::Everything,
            2 => Fate::Prefix(prng.between(0, sectors)),
            _ => Fate::Scattered,
        }
    }

    /// Whether the sector that is number `index` of the set survives.
    pub(super) fn survives(self, prng: &mut Prng, index: u64) -> bool {
        match self {
            Fate::Nothing => false,
            Fate::Everything => true,
            Fate::Prefix(end) => index < end,
            Fate::Scattered => prng.one_in(2),
        }
    }
}

/// The content of one file.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    size: u64,
    durable_size: u64,
    chunks: BTreeMap<u64, Box<Chunk>>,
    allocated_pages: u64,
    /// Pages that became dirty since the last sync. A page may have become clean again since.
    dirty_pages: Vec<u64>,
    /// Counts the writes to the cache, to tell which of them a sync covers.
    writes: u64,
    /// The point of the newest sync in flight.
    syncing: u64,
    /// Counts the truncations that reached the medium.
    cuts: u64,
}

/// What lies in one page of a range.
pub(super) enum Piece<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// So many zeros.
    Zeros(usize),
}

impl Piece<'_> {
    fn len(&self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Zeros(count) => *count,
        }
    }
}

/// What a sync in flight covers: all writes that had completed when it was submitted.
#[derive(Clone, Copy, Debug)]
pub(super) struct SyncPoint {
    writes: u64,
    size: u64,
    cuts: u64,
}

impl Content {
    /// The length in bytes, as readers see it.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of room that the file takes up.
    pub(super) fn allocated(&self) -> u64 {
        self.allocated_pages * PAGE
    }

    /// Bytes that a sync would have to write, in whole pages.
    pub(super) fn dirty(&self) -> u64 {
        self.dirty_pages.len() as u64 * PAGE
    }

    /// Bytes of room that an allocation of `offset..offset + len` would add.
    pub(super) fn missing(&self, offset: u64, len: u64) -> u64 {
        let mut missing = 0;
        for_each_chunk(offset, len, |chunk, mask| {
            let have = self.chunks.get(&chunk).map_or(0, |chunk| chunk.allocated);
            missing += u64::from((mask & !have).count_ones());
        });
        missing * PAGE
    }

    /// Takes up the room of a range without changing its bytes, and extends the file to its end.
    pub(super) fn allocate(&mut self, offset: u64, len: u64) {
        let mut added = 0;
        for_each_chunk(offset, len, |number, mask| {
            let chunk = self.chunks.entry(number).or_insert_with(Chunk::empty);
            added += u64::from((mask & !chunk.allocated).count_ones());
            chunk.allocated |= mask;
        });
        self.allocated_pages += added;
        self.size = self.size.max(offset + len);
    }

    /// Reads into `buffer` and returns the count of bytes, short only at the end of the file.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let mut rest = &mut *buffer;
        self.read_pieces(offset, rest.len(), |piece| {
            let (next, behind) = std::mem::take(&mut rest).split_at_mut(piece.len());
            match piece {
                Piece::Bytes(bytes) => next.copy_from_slice(bytes),
                Piece::Zeros(_) => next.fill(0),
            }
            rest = behind;
        })
    }

    /// What a read of `len` bytes returns, in pieces; gives the count of bytes, short only at the end of the file.
    pub(super) fn read_pieces(&self, offset: u64, len: usize, mut each: impl FnMut(Piece<'_>)) -> usize {
        let count = self.size.saturating_sub(offset).min(len as u64);
        for_each_page(offset, count, |page, within, range| match &self.page(page).and_then(|p| p.now.as_ref()) {
            Some(data) => each(Piece::Bytes(&data[within..within + range.len()])),
            None => each(Piece::Zeros(range.len())),
        });
        count as usize
    }

    /// Writes `data` and extends the file if it ends before. The caller has checked the room.
    pub(super) fn write(&mut self, offset: u64, data: &[u8], reach: Reach, prng: &mut Prng) {
        if data.is_empty() {
            return;
        }
        self.allocate(offset, data.len() as u64);
        if reach == Reach::Medium {
            self.durable_size = self.durable_size.max(offset + data.len() as u64);
        }
        self.writes += 1;
        let zeros = are_shared_zeros(data);
        let Content { chunks, dirty_pages, writes, syncing, .. } = self;
        for_each_page(offset, data.len() as u64, |number, within, range| {
            let chunk = chunks.get_mut(&(number / PAGES_PER_CHUNK)).expect("allocated above");
            let page = &mut chunk.pages[(number % PAGES_PER_CHUNK) as usize];
            let sectors = sector_mask(within, range.len());
            match reach {
                Reach::Cache => page.soil(sectors, *writes, *syncing, prng, || dirty_pages.push(number)),
                Reach::Medium => {}
            }
            page.put(within, &data[range.clone()], zeros);
            if reach == Reach::Medium {
                page.clean(sectors);
            }
        });
    }

    /// Changes bytes on the medium and in every cache behind everybody's back: rot, or a misdirected write. Bytes
    /// beyond the end of the file are dropped.
    pub(super) fn poke(&mut self, offset: u64, data: &[u8]) {
        let len = self.size.saturating_sub(offset).min(data.len() as u64);
        for_each_page(offset, len, |number, within, range| {
            let chunk = self.chunks.entry(number / PAGES_PER_CHUNK).or_insert_with(Chunk::empty);
            let page = &mut chunk.pages[(number % PAGES_PER_CHUNK) as usize];
            page.put(within, &data[range.clone()], false);
            if let Some(dirty) = &mut page.dirty {
                put(&mut dirty.durable, within, &data[range]);
            }
        });
    }

    /// Truncates, or extends sparsely. Until the next sync a loss of power may undo it.
    pub(super) fn set_len(&mut self, len: u64, prng: &mut Prng) {
        if len < self.size {
            match prng.one_in(2) {
                true => {
                    self.cut(len);
                    self.durable_size = self.durable_size.min(len);
                }
                false => self.cut_in_cache(len, prng),
            }
        }
        self.size = len;
    }

    /// A sync is submitted.
    pub(super) fn start_sync(&mut self) -> SyncPoint {
        self.syncing = self.writes;
        SyncPoint { writes: self.writes, size: self.size, cuts: self.cuts }
    }

    /// A sync is done: what had been written when it was submitted is durable.
    pub(super) fn finish_sync(&mut self, point: SyncPoint) {
        self.durable_size = match self.cuts == point.cuts {
            true => point.size,
            false => self.size,
        };
        let mut pages = std::mem::take(&mut self.dirty_pages);
        pages.retain(|&number| {
            let Some(page) = self.page_mut(number) else { return false };
            page.clean_until(point.writes);
            page.dirty.is_some()
        });
        self.dirty_pages = pages;
    }

    /// A sync failed: of what was dirty some reached the medium, the rest is gone, and the pages count as clean.
    /// This is what Linux does, so that a second sync succeeds and proves nothing.
    pub(super) fn fail_sync(&mut self, prng: &mut Prng) {
        self.settle(prng);
    }

    /// Power is lost: what was not synced survives or vanishes, sector by sector.
    pub(super) fn lose_power(&mut self, prng: &mut Prng) {
        self.settle(prng);
        let (low, high) = (self.size.min(self.durable_size), self.size.max(self.durable_size));
        let size = match prng.below(3) {
            0 => low,
            1 => high,
            _ => (prng.between(low, high) / SECTOR * SECTOR).max(low),
        };
        self.size = size;
        self.cut(size);
        self.durable_size = size;
    }

    /// Decides the fate of every dirty sector; afterwards both views are one.
    fn settle(&mut self, prng: &mut Prng) {
        let mut pages = std::mem::take(&mut self.dirty_pages);
        pages.sort_unstable();
        pages.dedup();
        let fate = Fate::draw(prng, pages.len() as u64 * (PAGE / SECTOR));
        for (index, number) in pages.into_iter().enumerate() {
            let Some(page) = self.page_mut(number) else { continue };
            let Some(dirty) = page.dirty.take() else { continue };
            for sector in 0..PAGE / SECTOR {
                let survives = fate.survives(prng, index as u64 * (PAGE / SECTOR) + sector);
                if dirty.sectors & (1 << sector) != 0 && !survives {
                    copy_sector(&dirty.durable, &mut page.now, sector);
                }
            }
        }
    }

    /// Drops everything beyond `len`, in both views.
    fn cut(&mut self, len: u64) {
        self.cuts += 1;
        let whole = len.div_ceil(PAGE);
        let beyond = self.chunks.split_off(&whole.div_ceil(PAGES_PER_CHUNK));
        self.allocated_pages -= beyond.values().map(|chunk| u64::from(chunk.allocated.count_ones())).sum::<u64>();
        if let Some(chunk) = self.chunks.get_mut(&(whole / PAGES_PER_CHUNK)) {
            let first = whole % PAGES_PER_CHUNK;
            let mask = u64::MAX << first;
            self.allocated_pages -= u64::from((chunk.allocated & mask).count_ones());
            chunk.allocated &= !mask;
            chunk.pages[first as usize..].fill(Page::default());
        }
        let within = (len % PAGE) as usize;
        if within > 0
            && let Some(page) = self.page_mut(len / PAGE)
        {
            let tail = [0; PAGE as usize];
            page.put(within, &tail[within..], false);
            if let Some(dirty) = &mut page.dirty {
                put(&mut dirty.durable, within, &tail[within..]);
            }
        }
    }

    /// Drops everything beyond `len` from what readers see, and keeps it on the medium until the next sync.
    fn cut_in_cache(&mut self, len: u64, prng: &mut Prng) {
        self.writes += 1;
        let first = len / PAGE;
        let Content { chunks, dirty_pages, allocated_pages, writes, syncing, .. } = self;
        for (number, chunk) in chunks.range_mut(first / PAGES_PER_CHUNK..) {
            for index in 0..PAGES_PER_CHUNK {
                let page_number = number * PAGES_PER_CHUNK + index;
                let page = &mut chunk.pages[index as usize];
                let start = len.saturating_sub(page_number * PAGE);
                if start >= PAGE {
                    continue;
                }
                if page.now.is_some() {
                    let tail = [0; PAGE as usize];
                    let sectors = sector_mask(start as usize, (PAGE - start) as usize);
                    page.soil(sectors, *writes, *syncing, prng, || dirty_pages.push(page_number));
                    page.put(start as usize, &tail[start as usize..], start == 0);
                }
                if start == 0 && chunk.allocated & (1 << index) != 0 {
                    chunk.allocated &= !(1 << index);
                    *allocated_pages -= 1;
                }
            }
        }
    }

    fn page(&self, number: u64) -> Option<&Page> {
        self.chunks.get(&(number / PAGES_PER_CHUNK)).map(|chunk| &chunk.pages[(number % PAGES_PER_CHUNK) as usize])
    }

    fn page_mut(&mut self, number: u64) -> Option<&mut Page> {
        self.chunks
            .get_mut(&(number / PAGES_PER_CHUNK))
            .map(|chunk| &mut chunk.pages[(number % PAGES_PER_CHUNK) as usize])
    }
}
