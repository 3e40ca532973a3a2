//! Scans a table from a block on, in large reads past the page cache, so that a merge or a GC scan evicts nothing.

use std::rc::Rc;

use base::{KIB, Result};

use super::page::{self, LEAF_ENTRIES, PAGE, PageKind};
use super::{Entry, PageCache, Table};
use crate::index::sweep::{Pending, Source};
use crate::verified::FileRange;

/// Leaves read at a time: 64 KiB.
const LEAVES_PER_READ: u32 = 64 * KIB as u32 / PAGE as u32;

/// A position in a table's entries.
pub struct TableCursor {
    table: Rc<Table>,
    next_leaf: u32,
    /// Entries read and not yet passed.
    entries: Pending,
}

impl TableCursor {
    /// A cursor at the first entry of which a part lies at `from` or above.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub async fn seek(table: Rc<Table>, cache: &PageCache, from: u32) -> Result<TableCursor> {
        let next_leaf = match from < table.info.end_block {
            true if from <= table.info.first_block => 0,
            true => table.leaf_of(cache, from).await?,
            false => table.info.leaves,
        };
        let mut cursor = TableCursor { table, next_leaf, entries: Pending::default() };
        while cursor.is_starved() {
            cursor.fill(cache).await?;
            cursor.skip_to(from);
        }
        Ok(cursor)
    }

    /// The table.
    pub fn table(&self) -> &Rc<Table> {
        &self.table
    }

    /// Whether nothing is left in memory but more is in the table.
    pub fn is_starved(&self) -> bool {
        self.entries.is_empty() && self.next_leaf < self.table.info.leaves
    }

    /// Reads the next leaves if the cursor is starved.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub async fn fill(&mut self, cache: &PageCache) -> Result<()> {
        if !self.is_starved() {
            return Ok(());
        }
        let (table, first) = (&self.table, self.next_leaf);
        let leaves = (table.info.leaves - first).min(LEAVES_PER_READ);
        let offset = u64::from(first) * PAGE as u64;
        let range = FileRange { file: table.info.file, offset, len: leaves as usize * PAGE };
        // Whether the pages are intact is seen one by one below, where a bad one is recovered by itself.
        let chunk = cache.files().read_unproven(range).await.ok();
        let mut entries = Vec::with_capacity(leaves as usize * LEAF_ENTRIES);
        for number in first..first + leaves {
            let place = table.place(number, PageKind::Leaf);
            let start = (number - first) as usize * PAGE;
            let proven = chunk.as_ref().map(|chunk| &chunk[start..start + PAGE]);
            let recovered;
            let leaf: &[u8] = match proven.filter(|bytes| page::is_intact(bytes, &place)) {
                Some(bytes) => bytes,
                None => {
                    recovered = super::read_page(cache.files(), &place).await?;
                    &recovered
                }
            };
            for index in 0..page::count(leaf) {
                entries.push(table.entry(leaf, number, index)?);
            }
        }
        self.entries = Pending::new(entries);
        self.next_leaf += leaves;
        Ok(())
    }
}

impl Source for TableCursor {
    fn peek(&self) -> Option<Entry> {
        self.entries.peek()
    }

    fn skip_to(&mut self, block: u32) {
        self.entries.skip_to(block);
    }
}
