//! Settings of an engine, and the relations between them.

use std::time::Duration;

use base::{BLOCK, Epoch, Error, KIB, MIB, Result, SegmentId};
use policies::gc::GcSettings;
use policies::read_ahead::ReadAheadSettings;
use policies::scrub::ScrubSettings;

use crate::journal::JOURNAL_FILE_BYTES_MIN;

/// The ownership of segments that stay where they are.
pub const EPOCH: Epoch = Epoch(1);

/// Who says which segments an engine has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ownership {
    /// The store is its alone: a segment comes into being with the first request to it, and stays.
    Whole,
    /// Segments are given to it and taken from it ([`crate::ownership`]); what it was not given is not here.
    Given,
}

impl Ownership {
    /// What a data file or table of `segment` says of whose it is: where segments stay, nobody has to ask.
    pub(crate) fn named(self, segment: SegmentId) -> Option<SegmentId> {
        match self {
            Ownership::Whole => None,
            Ownership::Given => Some(segment),
        }
    }
}

/// Settings of an engine. [`Options::default`] is what `levee up` runs with; [`Options::check`] what must hold.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of dirty segment caches (those being dumped included) and of writes in flight, together.
    pub dirty_bytes_max: u64,
    /// A segment's cache is dumped when it holds this much (512 KiB; EBS, FAST 2024, §2.3).
    pub segment_cache_bytes: u64,
    /// A segment's cache is dumped when its oldest write is this old, so that a restart replays little.
    pub dump_age: Duration,
    /// Bytes of index pages kept in memory.
    pub page_cache_bytes: u64,
    /// Which reads are streams, and how much memory may be used to read ahead of them.
    pub read_ahead: ReadAheadSettings,
    /// Bytes of index entries that are in no table yet; the largest part is flushed when there are more.
    pub memtable_bytes_max: u64,
    /// Size of a journal file.
    pub journal_file_bytes: u64,
    /// Journal files at most, at least two.
    pub journal_files: usize,
    /// Largest size of a data file: those of a segment that holds little are smaller.
    pub data_file_bytes: u64,
    /// Size of a transaction file.
    pub transaction_file_bytes: u64,
    /// Writes from this size on skip the journal.
    pub large_write_bytes: u64,
    /// How long the Fusion Write Engine waits for more data before it closes a batch that is not full; zero: the
    /// turn's end.
    pub fusion_wait: Duration,
    /// When garbage collection works, and how fast.
    pub gc: GcSettings,
    /// How fast, and how often, everything is read to see whether it is still right.
    pub scrub: ScrubSettings,
    /// Copies of every file.
    pub copies: u8,
    /// Who says which segments it has.
    pub ownership: Ownership,
    /// The operator's override: start although acknowledged writes cannot be read any more, and go on without them.
    pub accept_data_loss: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            dirty_bytes_max: 192 * MIB,
            segment_cache_bytes: 512 * KIB,
            dump_age: Duration::from_secs(10),
            page_cache_bytes: 64 * MIB,
            read_ahead: ReadAheadSettings::default(),
            memtable_bytes_max: 32 * MIB,
            journal_file_bytes: 64 * MIB,
            journal_files: 4,
            data_file_bytes: 512 * MIB,
            transaction_file_bytes: 8 * MIB,
            large_write_bytes: 64 * KIB,
            fusion_wait: Duration::ZERO,
            gc: GcSettings::default(),
            scrub: ScrubSettings::default(),
            copies: 1,
            ownership: Ownership::Whole,
            accept_data_loss: false,
        }
    }
}

/// Smallest data file: room for one whole dump, or one largest request in pieces.
pub(crate) const DATA_FILE_BYTES_MIN: u64 = 64 * KIB;

impl Options {
    /// Whether the settings make sense together.
    ///
    /// # Errors
    /// `Invalid`: names the setting and what it must be.
    pub fn check(&self) -> Result<()> {
        let rules = [
            (self.copies >= 1, "copies must be at least 1"),
            (self.journal_files >= 2, "journal_files must be at least 2"),
            (self.journal_file_bytes >= JOURNAL_FILE_BYTES_MIN, "journal_file_bytes must be at least 512 KiB"),
            (self.segment_cache_bytes >= 4 * BLOCK, "segment_cache_bytes must be at least 16 KiB"),
            (self.dirty_bytes_max >= 2 * self.segment_cache_bytes, "dirty_bytes_max must hold two segment caches"),
            (self.large_write_bytes >= BLOCK, "large_write_bytes must be at least 4 KiB"),
            (self.data_file_bytes >= DATA_FILE_BYTES_MIN, "data_file_bytes must be at least 64 KiB"),
            (self.transaction_file_bytes >= 64 * KIB, "transaction_file_bytes must be at least 64 KiB"),
            (
                [self.data_file_bytes, self.transaction_file_bytes, self.journal_file_bytes]
                    .iter()
                    .all(|bytes| bytes.is_multiple_of(BLOCK)),
                "file sizes must be multiples of 4 KiB",
            ),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            Some((_, rule)) => Err(Error::invalid(*rule)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_sound_and_nonsense_is_named() {
        assert!(Options::default().check().is_ok());
        let bad = Options { journal_files: 1, ..Options::default() };
        assert!(bad.check().unwrap_err().message.contains("journal_files"));
    }
}
