//! Blocks in data files: read as few times as their places allow, each proven against its index entry
//! (docs/formats/data.md).
//!
//! A **run** is a number of entries whose blocks lie one after the other in one data file, perhaps with something
//! between them; it is one read. A block whose checksum does not match, or whose run could not be read, is looked for
//! by itself in every copy.

use std::ops::Range;

use std::cell::Cell;

use base::checksum::block_checksum;
use base::seeded::is_on;
use base::{AlignedBuf, BLOCK, FileId, MIB, Result, SegmentId};

use crate::index::{Entry, Mapping};
use crate::verified::{Checked, FileRange, VerifiedFiles};

/// Most blocks that one run spans: 1 MiB.
pub const RUN_BLOCKS_MAX: usize = (MIB / BLOCK) as usize;

/// Reads blocks. Clones share the files below.
#[derive(Clone)]
pub struct DataFiles {
    files: VerifiedFiles,
}

/// Where a data entry's block is.
pub(crate) fn place(entry: &Entry) -> (FileId, u64, u32) {
    match entry.mapping {
        Mapping::Data { file, offset, checksum } => (file, offset, checksum),
        Mapping::Zeros => panic!("zeros are in no file"),
    }
}

/// How many of the first `entries` form a run without gaps. They are data entries; there is at least one.
pub fn run_len(entries: &[Entry]) -> usize {
    let followed = entries.windows(2).take(RUN_BLOCKS_MAX - 1).take_while(|pair| follows(&pair[0], &pair[1]));
    1 + followed.count()
}

/// Whether the block of `next` lies right after the one of `entry`. Both are data entries.
pub fn follows(entry: &Entry, next: &Entry) -> bool {
    distance(entry, next) == Some(BLOCK)
}

/// How many bytes the block of `next` lies behind the one of `entry`, if it does. Both are data entries.
pub fn distance(entry: &Entry, next: &Entry) -> Option<u64> {
    let ((file, offset, _), (next_file, next_offset, _)) = (place(entry), place(next));
    if next_file == file { next_offset.checked_sub(offset) } else { None }
}

/// The range of a file that a run spans.
pub(crate) fn span(entries: &[Entry]) -> FileRange {
    let ((file, offset, _), last) = (place(&entries[0]), place(&entries[entries.len() - 1]));
    FileRange { file, offset, len: (last.1 + BLOCK - offset) as usize }
}

/// Where in the buffer of a run that begins with `first` the block of `entry` is.
fn in_buffer(first: &Entry, entry: &Entry) -> Range<usize> {
    let start = distance(first, entry).expect("a run is in one file, and goes forward") as usize;
    start..start + BLOCK as usize
}

/// Whether `bytes`, from the place of the first entry on, are what all entries of a run promise.
pub fn are_intact(segment: SegmentId, entries: &[Entry], bytes: &[u8]) -> bool {
    entries.iter().all(|entry| is_intact(segment, entry, &bytes[in_buffer(&entries[0], entry)]))
}

/// Whether `bytes` are the content that `entry` of `segment` promises.
pub fn is_intact(segment: SegmentId, entry: &Entry, bytes: &[u8]) -> bool {
    let (_, _, checksum) = place(entry);
    let block = u64::from(segment.index) << 32 | u64::from(entry.block);
    bytes.len() as u64 == BLOCK && block_checksum(segment.volume, block, bytes) == checksum
}

impl DataFiles {
    /// The data files among `files`.
    pub fn new(files: &VerifiedFiles) -> DataFiles {
        DataFiles { files: files.clone() }
    }

    /// The files below.
    pub fn files(&self) -> &VerifiedFiles {
        &self.files
    }

    /// The block of one data entry. The caller holds a pin from before it learned of the entry.
    ///
    /// # Errors
    /// `Corrupt`: no copy has the content that the entry promises; `Io`: none could be read.
    pub async fn read_block(&self, segment: SegmentId, entry: &Entry) -> Result<AlignedBuf> {
        self.read_block_noted(segment, entry, &Cell::default()).await
    }

    /// [`DataFiles::read_block`], which adds the time that it looked for another copy to `repair_ns`.
    ///
    /// # Errors
    /// The same.
    pub async fn read_block_noted(
        &self,
        segment: SegmentId,
        entry: &Entry,
        repair_ns: &Cell<u64>,
    ) -> Result<AlignedBuf> {
        let (file, offset, _) = place(entry);
        let range = FileRange { file, offset, len: BLOCK as usize };
        match self.files.read_unproven(range).await {
            Ok(bytes) if is_intact(segment, entry, &bytes) || is_on("lone-block-not-verified") => Ok(bytes),
            _ => self.recover(segment, entry, repair_ns).await,
        }
    }

    /// What a run spans: its blocks, and between them whatever is there. The caller holds a pin from before it learned of
    /// the entries.
    ///
    /// # Errors
    /// As [`DataFiles::read_block`], for the first block that is lost.
    pub async fn read_run(&self, segment: SegmentId, entries: &[Entry]) -> Result<AlignedBuf> {
        self.read_run_noted(segment, entries, &Cell::default()).await
    }

    /// [`DataFiles::read_run`], as [`DataFiles::read_block_noted`].
    ///
    /// # Errors
    /// The same.
    pub async fn read_run_noted(
        &self,
        segment: SegmentId,
        entries: &[Entry],
        repair_ns: &Cell<u64>,
    ) -> Result<AlignedBuf> {
        if let [entry] = entries {
            return self.read_block_noted(segment, entry, repair_ns).await;
        }
        let (mut bytes, is_read) = match self.read_run_unproven(entries).await {
            Ok(bytes) => (bytes, true),
            Err(_) => (AlignedBuf::zeroed(span(entries).len), false),
        };
        for entry in entries {
            let block = &mut bytes[in_buffer(&entries[0], entry)];
            if !is_read || !(is_intact(segment, entry, block) || is_on("block-not-verified")) {
                block.copy_from_slice(&self.recover(segment, entry, repair_ns).await?);
            }
        }
        Ok(bytes)
    }

    /// The same from whichever copy is best, without proof: the caller compares it with the entries.
    ///
    /// # Errors
    /// Those of [`files::Store::read`].
    pub async fn read_run_unproven(&self, entries: &[Entry]) -> Result<AlignedBuf> {
        self.files.read_unproven(span(entries)).await
    }

    /// Proves the blocks of a run in every copy. The caller holds a pin from before it knew that the file is there.
    pub async fn check_run(&self, segment: SegmentId, entries: &[Entry]) -> Checked {
        let (file, offset, _) = place(&entries[0]);
        let range = FileRange { file, offset, len: entries.len() * BLOCK as usize };
        let what = |number: usize| format!("block {} of segment {segment}", entries[number].block);
        self.files.check(range, what, |number, bytes| is_intact(segment, &entries[number], bytes)).await
    }

    async fn recover(&self, segment: SegmentId, entry: &Entry, repair_ns: &Cell<u64>) -> Result<AlignedBuf> {
        let begun = self.files.handle().now();
        let (file, offset, _) = place(entry);
        let range = FileRange { file, offset, len: BLOCK as usize };
        let what = format!("block {} of segment {segment}", entry.block);
        let recovered = self.files.recover(range, &what, |bytes| is_intact(segment, entry, bytes)).await;
        repair_ns.set(repair_ns.get() + self.files.handle().now().nanos_since(begun));
        recovered
    }
}
