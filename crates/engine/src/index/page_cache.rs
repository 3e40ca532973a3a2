//! Pages of tables in memory, for all segments of an engine, under one bound.
//!
//! Every page is proven before it enters, or comes from whoever has just written it: who reads what was written a moment ago, or
//! what a merge has moved, would otherwise wait for each page once. A page that several tasks want is read once: the first reads, the others
//! wait for it. Replacement is CLOCK (Corbató, 1968): a hit sets a bit, the hand clears bits and takes the first page
//! whose bit is clear; a page enters with a clear bit, so that pages touched once go first. Pages of deleted tables
//! are never asked for again (file ids are not reused) and leave in the same way.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use base::{AlignedBuf, FileId, Map, Result};
use runtime::sync::Event;

use super::table::page::{PAGE, PagePlace, is_intact};
use crate::verified::{FileRange, VerifiedFiles};

/// A table is kept in memory when it is written if it takes no more than this part of the cache.
const WRITTEN_PART: usize = 4;
/// Fewest pages: enough for one path through each of a segment's tables.
const PAGES_MIN: usize = 64;

/// A page in memory. It stays readable while somebody holds it, even after it left the cache.
pub type Page = Rc<AlignedBuf>;

/// The cache. One for all segments of an engine.
pub struct PageCache {
    files: VerifiedFiles,
    pages_max: usize,
    state: RefCell<State>,
    hits: Cell<u64>,
    misses: Cell<u64>,
}

#[derive(Default)]
struct State {
    by_key: Map<(FileId, u32), Place>,
    slots: Vec<Slot>,
    hand: usize,
}

enum Place {
    Cached(usize),
    Loading(Event),
}

struct Slot {
    key: (FileId, u32),
    page: Page,
    referenced: bool,
}

/// How the cache does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageCacheStatistics {
    /// Pages found in memory.
    pub hits: u64,
    /// Pages read.
    pub misses: u64,
    /// Bytes held now.
    pub bytes: u64,
}

impl PageCacheStatistics {
    /// Adds another cache.
    pub(crate) fn merge(&mut self, other: &PageCacheStatistics) {
        let PageCacheStatistics { hits, misses, bytes } = other;
        self.hits += hits;
        self.misses += misses;
        self.bytes += bytes;
    }
}

impl PageCache {
    /// A cache of up to `bytes_max` bytes (and at least a few pages).
    pub fn new(files: VerifiedFiles, bytes_max: u64) -> Self {
        let pages_max = usize::try_from(bytes_max / PAGE as u64).unwrap_or(usize::MAX).max(PAGES_MIN);
        PageCache { files, pages_max, state: RefCell::default(), hits: Cell::new(0), misses: Cell::new(0) }
    }

    /// The files that pages come from.
    pub fn files(&self) -> &VerifiedFiles {
        &self.files
    }

    /// Counters since the start.
    pub fn statistics(&self) -> PageCacheStatistics {
        let bytes = self.state.borrow().slots.len() as u64 * PAGE as u64;
        PageCacheStatistics { hits: self.hits.get(), misses: self.misses.get(), bytes }
    }

    /// The page at `place`, from memory or from its file.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: no copy of the page could be proven or read.
    pub async fn get(&self, place: &PagePlace) -> Result<Page> {
        loop {
            match self.look(place) {
                Look::Hit(page) => return Ok(page),
                Look::Loading(event) => event.wait().await,
                Look::Absent => return self.load(place).await,
            }
        }
    }

    /// Whether the pages of a table that is being written are to come here: of one that would push out much of what was asked
    /// for, they are not.
    pub fn takes(&self, pages: u64) -> bool {
        self.pages_max > PAGES_MIN && pages <= (self.pages_max / WRITTEN_PART) as u64
    }

    /// A page that was just written.
    pub fn put(&self, file: FileId, number: u32, bytes: &[u8]) {
        let key = (file, number);
        if !self.state.borrow().by_key.contains_key(&key) {
            let mut page = AlignedBuf::with_capacity(PAGE);
            page.extend_from_slice(bytes);
            self.insert(key, Rc::new(page));
        }
    }

    fn look(&self, place: &PagePlace) -> Look {
        let mut state = self.state.borrow_mut();
        let State { by_key, slots, .. } = &mut *state;
        match by_key.get(&(place.file, place.number)) {
            Some(Place::Cached(slot)) => {
                let slot = &mut slots[*slot];
                slot.referenced = true;
                self.hits.set(self.hits.get() + 1);
                Look::Hit(slot.page.clone())
            }
            Some(Place::Loading(event)) => Look::Loading(event.clone()),
            None => Look::Absent,
        }
    }

    async fn load(&self, place: &PagePlace) -> Result<Page> {
        let loading = Loading::begin(self, (place.file, place.number));
        self.misses.set(self.misses.get() + 1);
        let page = Rc::new(read_page(&self.files, place).await?);
        loading.finish(page.clone());
        Ok(page)
    }

    fn insert(&self, key: (FileId, u32), page: Page) {
        let mut state = self.state.borrow_mut();
        let slot = Slot { key, page, referenced: false };
        let index = match state.slots.len() < self.pages_max {
            true => {
                state.slots.push(slot);
                state.slots.len() - 1
            }
            false => {
                let index = state.victim();
                let old = std::mem::replace(&mut state.slots[index], slot);
                state.by_key.remove(&old.key);
                index
            }
        };
        state.by_key.insert(key, Place::Cached(index));
    }
}

impl State {
    /// Turns the hand to the next page that was not touched since it last came by. Two rounds suffice.
    fn victim(&mut self) -> usize {
        loop {
            let index = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            if !std::mem::take(&mut self.slots[index].referenced) {
                return index;
            }
        }
    }
}

/// Reads and proves one page, past the cache.
pub async fn read_page(files: &VerifiedFiles, place: &PagePlace) -> Result<AlignedBuf> {
    let range = FileRange { file: place.file, offset: u64::from(place.number) * PAGE as u64, len: PAGE };
    files.read(range, place, |bytes| is_intact(bytes, place)).await
}

impl fmt::Display for PagePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {} of table {} of segment {}", self.number, self.file, self.segment)
    }
}

enum Look {
    Hit(Page),
    Loading(Event),
    Absent,
}

/// A page being read. If the reader fails or is dropped the others try for themselves.
struct Loading<'a> {
    cache: &'a PageCache,
    key: (FileId, u32),
    event: Event,
}

impl<'a> Loading<'a> {
    fn begin(cache: &'a PageCache, key: (FileId, u32)) -> Self {
        let event = Event::new();
        cache.state.borrow_mut().by_key.insert(key, Place::Loading(event.clone()));
        Loading { cache, key, event }
    }

    fn finish(self, page: Page) {
        self.cache.insert(self.key, page);
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.state.borrow_mut();
        if matches!(state.by_key.get(&self.key), Some(Place::Loading(_))) {
            state.by_key.remove(&self.key);
        }
        drop(state);
        self.event.notify();
    }
}
