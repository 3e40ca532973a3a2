//! Writes a table: entries in, in the order of their blocks; a sealed file out.
//!
//! Memory while it works: one batch of leaves, four bytes for each leaf, and a count for each data file. A table that
//! is not finished is garbage: nothing refers to it, the caller deletes it.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::{AlignedBuf, Epoch, FileId, KIB, Result, SegmentId, SegmentSequence};
use files::{Claim, CreateOptions, FileKind, FileWriter, Redundancy, Store};

use super::page::{self, INNER_CHILDREN, LEAF_ENTRIES, PAGE, PageKind, PagePlace, SUMMARY_FILES};
use super::{Layout, pages_max};
use crate::index::TableInfo;
use crate::index::entry::{Entry, Mapping};
use crate::index::page_cache::PageCache;
use crate::options::Ownership;

/// Bytes of leaves that are gathered before they are appended.
const BATCH: usize = 128 * KIB as usize;

/// How to make a table's file.
#[derive(Clone, Copy, Debug)]
pub struct TableOptions {
    /// The segment.
    pub segment: SegmentId,
    /// The ownership under which it is written.
    pub epoch: Epoch,
    /// Entries that will be pushed at most.
    pub entries_max: u64,
    /// Data files that they name at most.
    pub data_files_max: u64,
    /// Copies of the file.
    pub copies: u8,
    /// Whether it says which segment it is of.
    pub ownership: Ownership,
}

/// A table being written.
pub struct TableWriter {
    store: Store,
    writer: FileWriter,
    segment: SegmentId,
    info: TableInfo,
    leaf: Vec<Entry>,
    batch: AlignedBuf,
    first_blocks: Vec<u32>,
    data_files: BTreeMap<FileId, u32>,
    next_page: u32,
    /// Where its pages go besides.
    cache: Option<Rc<PageCache>>,
}

impl TableWriter {
    /// Creates the file.
    ///
    /// # Errors
    /// `Full`, `Io`.
    pub async fn create(store: &Store, options: TableOptions) -> Result<TableWriter> {
        let capacity = pages_max(options.entries_max, options.data_files_max) * PAGE as u64;
        let create = CreateOptions {
            kind: FileKind::Table,
            capacity,
            redundancy: Redundancy::Copies(options.copies),
            prepared: false,
            epoch: options.epoch,
            segment: options.ownership.named(options.segment),
            claim: Claim::Use,
        };
        let writer = store.create(create).await?;
        let info = TableInfo { file: writer.id(), sequence_min: SegmentSequence(u64::MAX), ..TableInfo::default() };
        Ok(TableWriter {
            store: store.clone(),
            writer,
            segment: options.segment,
            info,
            leaf: Vec::with_capacity(LEAF_ENTRIES),
            batch: AlignedBuf::with_capacity(BATCH),
            first_blocks: Vec::new(),
            data_files: BTreeMap::new(),
            next_page: 0,
            cache: None,
        })
    }

    /// From here on its pages are in memory, too, when they are written, if that takes so many.
    pub fn keep_in(mut self, cache: &Rc<PageCache>, options: &TableOptions) -> TableWriter {
        let is_taken = cache.takes(pages_max(options.entries_max, options.data_files_max));
        self.cache = is_taken.then(|| cache.clone());
        self
    }

    /// The file.
    pub fn file(&self) -> FileId {
        self.info.file
    }

    /// Entries so far.
    pub fn entries(&self) -> u32 {
        self.info.entries
    }

    /// Takes the next entry, which must start where the last one ended or above. When it returns true, call
    /// [`TableWriter::flush`] before the next push.
    pub fn push(&mut self, entry: Entry) -> bool {
        let info = &mut self.info;
        assert!(info.entries == 0 || entry.block >= info.end_block, "entries come by block and do not overlap");
        if info.entries == 0 {
            info.first_block = entry.block;
        }
        info.entries += 1;
        info.end_block = entry.end();
        info.sequence_min = info.sequence_min.min(entry.version.sequence);
        info.sequence_max = info.sequence_max.max(entry.version.sequence);
        info.moves_max = info.moves_max.max(entry.version.moves);
        match entry.mapping {
            Mapping::Zeros => info.tombstones += 1,
            Mapping::Data { file, .. } => *self.data_files.entry(file).or_default() += 1,
        }
        self.leaf.push(entry);
        if self.leaf.len() == LEAF_ENTRIES {
            self.end_leaf();
        }
        self.batch.len() == BATCH
    }

    fn end_leaf(&mut self) {
        let Some(first) = self.leaf.first() else { return };
        self.first_blocks.push(first.block);
        let leaf = std::mem::take(&mut self.leaf);
        self.add_page(PageKind::Leaf, |page, place| page::encode_leaf(page, place, &leaf));
        self.leaf = leaf;
        self.leaf.clear();
    }

    fn add_page(&mut self, kind: PageKind, encode: impl FnOnce(&mut [u8], &PagePlace)) {
        let place = PagePlace { segment: self.segment, file: self.info.file, number: self.next_page, kind };
        let start = self.batch.len();
        self.batch.set_len(start + PAGE);
        encode(&mut self.batch[start..], &place);
        self.next_page += 1;
    }

    /// Appends the pages gathered so far.
    ///
    /// # Errors
    /// `Io`, `Full`: the table is lost; delete its file.
    pub async fn flush(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let batch = std::mem::replace(&mut self.batch, AlignedBuf::with_capacity(BATCH)).freeze();
        self.writer.append(batch.clone()).await?;
        if let Some(cache) = &self.cache {
            let pages = batch.chunks_exact(PAGE);
            let first = self.next_page - pages.len() as u32;
            (first..).zip(pages).for_each(|(number, page)| cache.put(self.info.file, number, page));
        }
        Ok(())
    }

    async fn flush_if_full(&mut self) -> Result<()> {
        match self.batch.len() == BATCH {
            true => self.flush().await,
            false => Ok(()),
        }
    }

    /// Ends the table: inner pages, summary, footer, seal. At least one entry was pushed. `quiet`: see [`TableInfo`].
    ///
    /// # Errors
    /// `Io`, `Full`: the table is lost; delete its file.
    pub async fn finish(mut self, quiet: bool) -> Result<TableInfo> {
        assert!(self.info.entries > 0, "an empty table is not written");
        self.end_leaf();
        self.flush_if_full().await?;
        self.info.leaves = self.next_page;
        self.info.data_files = self.data_files.len() as u32;
        self.info.quiet = quiet;
        let layout = Layout::new(self.info.leaves, self.info.data_files);

        let mut first_blocks = std::mem::take(&mut self.first_blocks);
        while first_blocks.len() > 1 {
            for children in first_blocks.chunks(INNER_CHILDREN) {
                self.add_page(PageKind::Inner, |page, place| page::encode_inner(page, place, children));
                self.flush_if_full().await?;
            }
            first_blocks = first_blocks.into_iter().step_by(INNER_CHILDREN).collect();
        }
        let data_files: Vec<(FileId, u32)> = std::mem::take(&mut self.data_files).into_iter().collect();
        for files in data_files.chunks(SUMMARY_FILES) {
            self.add_page(PageKind::Summary, |page, place| page::encode_summary(page, place, files));
            self.flush_if_full().await?;
        }
        assert_eq!(self.next_page, layout.footer(), "the layout is what it says");
        let info = self.info;
        self.add_page(PageKind::Footer, |page, place| page::encode_footer(page, place, &info));
        self.flush().await?;
        self.store.seal(info.file, u64::from(layout.pages()) * PAGE as u64).await?;
        Ok(info)
    }
}

const _: () = assert!(BATCH.is_multiple_of(PAGE));
