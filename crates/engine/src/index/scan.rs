//! Scanning the winners of a segment, a bounded part at a time.

use base::limits::SEGMENT_BLOCKS;
use base::{Result, SegmentId};

use super::Index;
use super::entry::Entry;
use super::segment::Snapshot;
use super::sweep::{Coalesce, Pending, Source, next_piece};
use super::table::cursor::TableCursor;

/// Pieces between two yields to other tasks.
const PIECES_PER_STEP: usize = 1024;

/// What a range of a segment is mapped to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scan {
    /// Entries by block, without overlaps, of the range from where the scan began up to `end`. Blocks between them
    /// are not mapped.
    pub entries: Vec<Entry>,
    /// The block up to which this is everything; the next scan begins here. At the segment's end the last one.
    pub end: u32,
}

impl Index {
    /// The mapped ranges from block `from` on: at most `entries_max` of them (at least one). Reads past the page
    /// cache, in large pieces.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub async fn scan(&self, segment: SegmentId, from: u32, entries_max: usize) -> Result<Scan> {
        let segment_end = SEGMENT_BLOCKS as u32;
        let Some(segment) = self.segment(segment) else { return Ok(Scan { entries: Vec::new(), end: segment_end }) };
        let _pin = self.0.files.pin();
        let Snapshot { memtables, tables, bound } = segment.snapshot(from, entries_max.max(1));
        let mut sources: Vec<AnySource> =
            memtables.into_iter().map(|part| AnySource::Memory(Pending::new(part))).collect();
        for table in tables.iter().filter(|table| table.info().end_block > from) {
            sources.push(AnySource::Table(TableCursor::seek(table.clone(), &self.0.pages, from).await?));
        }
        let (mut entries, mut coalesce, mut pieces) = (Vec::new(), Coalesce::default(), 0);
        let end = loop {
            for source in &mut sources {
                if let AnySource::Table(cursor) = source {
                    cursor.fill(&self.0.pages).await?;
                }
            }
            let Some(piece) = next_piece(&mut sources, |_| ()) else { break bound.min(segment_end) };
            if piece.block >= bound {
                break bound;
            }
            let found = entries.len() + usize::from(coalesce.has_piece());
            if found >= entries_max.max(1) && !coalesce.continues(&piece) {
                break piece.block;
            }
            entries.extend(coalesce.push(piece.clipped(piece.block, bound)));
            if piece.end() >= bound {
                break bound;
            }
            pieces += 1;
            if pieces % PIECES_PER_STEP == 0 {
                self.0.files.handle().yield_now().await;
            }
        };
        entries.extend(coalesce.finish());
        Ok(Scan { entries, end })
    }
}

enum AnySource {
    Memory(Pending),
    Table(TableCursor),
}

impl Source for AnySource {
    fn peek(&self) -> Option<Entry> {
        match self {
            AnySource::Memory(pending) => pending.peek(),
            AnySource::Table(cursor) => cursor.peek(),
        }
    }

    fn skip_to(&mut self, block: u32) {
        match self {
            AnySource::Memory(pending) => pending.skip_to(block),
            AnySource::Table(cursor) => cursor.skip_to(block),
        }
    }
}
