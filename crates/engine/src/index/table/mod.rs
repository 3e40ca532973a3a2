//! Sorted, immutable parts of a segment's index, one file each.
//!
//! **Layout** (docs/formats/table.md). Leaves from page 0 on, each up to 127 entries in the order of their blocks;
//! then levels of inner pages, each with the first block of up to 1,016 children, up to one root; then summary pages
//! that say which data files the entries name; last the footer. Where each part starts follows from the number of
//! leaves and of data files, which the [`TableInfo`] in the transaction log holds: opening a table reads nothing, and
//! an open table holds nothing but that, whatever its size. Everything else comes through the page cache.
//!
//! [`writer`] writes a table, [`cursor`] scans one past the cache, [`Table`] answers for a few blocks through it.

pub mod cursor;
pub mod page;
pub mod writer;

use std::cell::Cell;
use std::ops::Range;

use base::{Error, FileId, Result, SegmentId};

use super::TableInfo;
use super::entry::{Entry, Version};
use super::page_cache::{Page, PageCache, read_page};
use crate::garbage::Garbage;
use crate::verified::{Checked, FileRange, VerifiedFiles};
use page::{INNER_CHILDREN, LEAF_ENTRIES, PageKind, PagePlace, SUMMARY_FILES};

/// Most levels of inner pages: 1,016 to the fourth leaves are more than 32-bit page numbers reach.
const LEVELS_MAX: usize = 4;

/// Where the parts of a table are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// First page and number of pages of each inner level, from above the leaves to the root.
    inner: [(u32, u32); LEVELS_MAX],
    levels: usize,
    /// First summary page.
    summary: u32,
    /// Summary pages.
    summary_pages: u32,
}

impl Layout {
    /// The layout of a table with that many leaves, whose entries name that many data files.
    pub fn new(leaves: u32, data_files: u32) -> Layout {
        let (mut inner, mut levels) = ([(0, 0); LEVELS_MAX], 0);
        let (mut children, mut next_page) = (leaves, leaves);
        while children > 1 {
            children = children.div_ceil(INNER_CHILDREN as u32);
            inner[levels] = (next_page, children);
            next_page += children;
            levels += 1;
        }
        Layout { inner, levels, summary: next_page, summary_pages: data_files.div_ceil(SUMMARY_FILES as u32) }
    }

    /// The footer's page.
    pub fn footer(&self) -> u32 {
        self.summary + self.summary_pages
    }

    /// What a page holds.
    pub fn kind(&self, page: u32) -> PageKind {
        let leaves = if self.levels == 0 { self.summary } else { self.inner[0].0 };
        match page {
            page if page < leaves => PageKind::Leaf,
            page if page < self.summary => PageKind::Inner,
            page if page < self.footer() => PageKind::Summary,
            _ => PageKind::Footer,
        }
    }

    /// Pages of the whole table.
    pub fn pages(&self) -> u32 {
        self.footer() + 1
    }
}

/// An open table.
#[derive(Debug)]
pub struct Table {
    segment: SegmentId,
    info: TableInfo,
    layout: Layout,
    is_quiet: Cell<bool>,
    references: Cell<Counted>,
}

/// Whether the garbage ledger knows which data files a table's entries name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Counted {
    /// Not yet: the table was restored at the start.
    No,
    /// Its summary is being read.
    Running,
    /// Yes.
    Yes,
}

impl Table {
    /// The table of `segment` that `info` describes. Nothing is read.
    pub fn new(segment: SegmentId, info: TableInfo) -> Table {
        let layout = Layout::new(info.leaves, info.data_files);
        Table { segment, info, layout, is_quiet: Cell::new(info.quiet), references: Cell::new(Counted::No) }
    }

    /// The same, of a table whose references are in the garbage ledger already: its entries came from memory.
    pub fn new_counted(segment: SegmentId, info: TableInfo) -> Table {
        let table = Table::new(segment, info);
        table.references.set(Counted::Yes);
        table
    }

    /// Whether the garbage ledger has its references.
    pub fn references_are_counted(&self) -> bool {
        self.references.get() == Counted::Yes
    }

    /// Reports the references of a restored table to the ledger, once. Returns whether they are there now; another
    /// task may be on its way.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub async fn count_references(&self, cache: &PageCache, garbage: &Garbage) -> Result<bool> {
        if self.references.get() == Counted::No {
            let counting = Counting::begin(&self.references);
            let files = self.data_files(cache).await?;
            files.into_iter().for_each(|(file, entries)| garbage.add_references(file, u64::from(entries)));
            counting.0.set(Counted::Yes);
        }
        Ok(self.references.get() == Counted::Yes)
    }

    /// What is known without reading.
    pub fn info(&self) -> TableInfo {
        TableInfo { quiet: self.is_quiet.get(), ..self.info }
    }

    /// A later freeze found nothing new and nothing in flight: now the table is quiet, too.
    pub fn set_quiet(&self) {
        self.is_quiet.set(true);
    }

    /// No entry is newer than this.
    pub fn version_max(&self) -> Version {
        Version { sequence: self.info.sequence_max, moves: self.info.moves_max }
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        u64::from(self.layout.pages()) * page::PAGE as u64
    }

    /// Joins the entries for `blocks` into `slots`, one for each block.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub async fn overlay(&self, cache: &PageCache, blocks: Range<u32>, slots: &mut [Option<Entry>]) -> Result<()> {
        if blocks.end <= self.info.first_block || blocks.start >= self.info.end_block {
            return Ok(());
        }
        let mut number = self.leaf_of(cache, blocks.start).await?;
        loop {
            let leaf = self.page(cache, number, PageKind::Leaf).await?;
            let first = page::leaf_search(&leaf, blocks.start).unwrap_or(0);
            for index in first..page::count(&leaf) {
                if page::leaf_block(&leaf, index) >= blocks.end {
                    return Ok(());
                }
                let entry = self.entry(&leaf, number, index)?;
                join_slots(&entry, &blocks, slots);
            }
            number += 1;
            if number == self.info.leaves {
                return Ok(());
            }
        }
    }

    /// The leaf that holds the last entry that starts at `block` or below; the first leaf where all start above.
    async fn leaf_of(&self, cache: &PageCache, block: u32) -> Result<u32> {
        let mut child = 0;
        for &(start, pages) in self.layout.inner[..self.layout.levels].iter().rev() {
            if child >= pages {
                return Err(self.malformed(start));
            }
            let number = start + child;
            let page = self.page(cache, number, PageKind::Inner).await?;
            child = child * INNER_CHILDREN as u32 + page::inner_search(&page, block).unwrap_or(0) as u32;
        }
        match child < self.info.leaves {
            true => Ok(child),
            false => Err(self.malformed(child)),
        }
    }

    async fn page(&self, cache: &PageCache, number: u32, kind: PageKind) -> Result<Page> {
        cache.get(&self.place(number, kind)).await
    }

    fn place(&self, number: u32, kind: PageKind) -> PagePlace {
        PagePlace { segment: self.segment, file: self.info.file, number, kind }
    }

    fn entry(&self, leaf: &[u8], number: u32, index: usize) -> Result<Entry> {
        page::leaf_entry(leaf, index).ok_or_else(|| self.malformed(number))
    }

    /// An intact page that makes no sense: written by a later version, or by a bug.
    fn malformed(&self, number: u32) -> Error {
        let (file, segment) = (self.info.file, self.segment);
        Error::corrupt(format!("page {number} of table {file} of segment {segment} is intact but makes no sense"))
    }

    /// The data files that its entries name, and how many entries name each. Read past the cache.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub async fn data_files(&self, cache: &PageCache) -> Result<Vec<(FileId, u32)>> {
        let mut files = Vec::with_capacity(self.info.data_files as usize);
        for number in self.layout.summary..self.layout.footer() {
            let page = read_page(cache.files(), &self.place(number, PageKind::Summary)).await?;
            files.extend(page::summary_files(&page));
        }
        Ok(files)
    }

    /// Proves up to `count` pages from `at` on in every copy; `None` if there are no more.
    pub async fn check_pages(&self, files: &VerifiedFiles, at: u32, count: u32) -> Option<Checked> {
        let end = (at + count).min(self.layout.pages());
        let place = |number: usize| self.place(at + number as u32, self.layout.kind(at + number as u32));
        let range = FileRange {
            file: self.info.file,
            offset: u64::from(at) * page::PAGE as u64,
            len: end.checked_sub(at).filter(|pages| *pages > 0)? as usize * page::PAGE,
        };
        let is_intact = |number: usize, bytes: &[u8]| page::is_intact(bytes, &place(number));
        Some(files.check(range, |number| place(number).to_string(), is_intact).await)
    }

    /// Reads the footer and compares it with what the transaction log says. For inspection.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub async fn check_footer(&self, cache: &PageCache) -> Result<()> {
        let number = self.layout.footer();
        let page = read_page(cache.files(), &self.place(number, PageKind::Footer)).await?;
        // A table may have become quiet after it was written.
        match page::footer_info(&page) {
            Some(footer) if (TableInfo { quiet: footer.quiet, ..self.info }) == footer => Ok(()),
            _ => Err(self.malformed(number)),
        }
    }
}

/// A summary being read. If that fails or is dropped, another task may try.
struct Counting<'a>(&'a Cell<Counted>);

impl<'a> Counting<'a> {
    fn begin(counted: &'a Cell<Counted>) -> Self {
        counted.set(Counted::Running);
        Counting(counted)
    }
}

impl Drop for Counting<'_> {
    fn drop(&mut self) {
        if self.0.get() == Counted::Running {
            self.0.set(Counted::No);
        }
    }
}

/// Joins one entry into the slots of `blocks`.
pub fn join_slots(entry: &Entry, blocks: &Range<u32>, slots: &mut [Option<Entry>]) {
    let (from, to) = (entry.block.max(blocks.start), entry.end().min(blocks.end));
    for block in from..to {
        let slot = &mut slots[(block - blocks.start) as usize];
        if slot.as_ref().is_none_or(|best| entry.wins_over(best)) {
            *slot = Some(Entry { block, count: 1, ..*entry });
        }
    }
}

/// Pages that a table of up to `entries` entries, naming up to `data_files` data files, can have.
pub fn pages_max(entries: u64, data_files: u64) -> u64 {
    let leaves = entries.div_ceil(LEAF_ENTRIES as u64).min(u64::from(u32::MAX / 2)) as u32;
    let data_files = data_files.min(u64::from(u32::MAX / 2)) as u32;
    u64::from(Layout::new(leaves, data_files).pages())
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
