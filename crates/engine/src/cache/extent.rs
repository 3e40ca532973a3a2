//! What a segment cache knows of a range of sectors: bytes of a write with their checksums, or zeros.
//!
//! Names: a *write* is one journaled write as it arrived, with the fragment checksums of its agent
//! ([`base::io::fragment_checksums`]); a *piece* shows a run of its sectors. When newer writes cut an extent, the
//! pieces still refer to the whole write, so that its checksums can be verified before any byte of it goes into a
//! data file: the chain of checksums from agent to file has no gap.

use std::ops::Range;
use std::rc::Rc;

use base::io::{fragment_checksum, fragment_checksums, fragments};
use base::{BLOCK, Bytes, Error, Result, SECTOR, SegmentId, SegmentSequence, Split};

use super::memory::{Backing, CacheMemory};
use crate::journal::{JournalRecord, Operation};

/// What covers a range of a segment cache since the write or discard `sequence`.
pub struct CacheExtent {
    sequence: SegmentSequence,
    content: Content,
}

enum Content {
    Data(Shown),
    Zeros,
}

/// A part of what [`super::SegmentCache::lookup`] found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CacheHit {
    /// Bytes that were written.
    Data(Bytes),
    /// The range was discarded: it reads as zeros.
    Zeros,
}

/// One write, whole.
struct CachedWrite {
    backing: Rc<Backing>,
    /// Where its bytes begin in the backing.
    start: usize,
    len: usize,
    segment: SegmentId,
    /// Its byte offset in the segment.
    offset: u64,
    checksums: Vec<u32>,
}

/// A run of sectors of a write.
#[derive(Clone)]
pub(crate) struct Piece {
    write: Rc<CachedWrite>,
    /// Byte range in the write.
    bytes: Range<usize>,
}

/// A piece that counts as live in its backing.
struct Shown(Piece);

impl CacheExtent {
    /// An extent that reads as zeros.
    pub fn zeros(sequence: SegmentSequence) -> Self {
        CacheExtent { sequence, content: Content::Zeros }
    }

    /// The extent of a record that recovery found, with its own copy of the data. Its range is the record's.
    pub fn of_record(memory: &CacheMemory, record: JournalRecord) -> Self {
        match record.operation {
            Operation::Discard => CacheExtent::zeros(record.sequence),
            Operation::Write { data, checksums } => {
                let backing = memory.pin(Bytes::copy_from_slice(&data), vec![record.segment]);
                let write = WriteIn { segment: record.segment, offset: record.offset, start: 0, len: data.len() };
                CacheExtent::data(backing, write, checksums, record.sequence)
            }
        }
    }

    pub(crate) fn data(backing: Rc<Backing>, write: WriteIn, checksums: Vec<u32>, sequence: SegmentSequence) -> Self {
        let WriteIn { segment, offset, start, len } = write;
        assert!(start + len <= backing.bytes().len() && len > 0, "a write lies in its backing");
        assert_eq!(fragments(offset, len as u64).count(), checksums.len(), "one checksum for each fragment");
        let write = Rc::new(CachedWrite { backing, start, len, segment, offset, checksums });
        CacheExtent { sequence, content: Content::Data(Shown::new(Piece { write, bytes: 0..len })) }
    }

    /// The write or discard that it came from.
    pub fn sequence(&self) -> SegmentSequence {
        self.sequence
    }

    /// Whether it reads as zeros.
    pub fn is_zeros(&self) -> bool {
        matches!(self.content, Content::Zeros)
    }

    /// Bytes of data that it shows; none for zeros.
    pub fn data_len(&self) -> u64 {
        match &self.content {
            Content::Data(shown) => shown.0.bytes.len() as u64,
            Content::Zeros => 0,
        }
    }

    /// The sectors `range`, counted from its first one.
    pub(crate) fn hit(&self, range: Range<u64>) -> CacheHit {
        match &self.content {
            Content::Zeros => CacheHit::Zeros,
            Content::Data(shown) => CacheHit::Data(shown.0.slice(range).bytes()),
        }
    }

    /// The sectors `range`, counted from its first one; none for zeros.
    pub(crate) fn piece(&self, range: Range<u64>) -> Option<Piece> {
        match &self.content {
            Content::Zeros => None,
            Content::Data(shown) => Some(shown.0.slice(range)),
        }
    }

    /// Moves what it shows of `backing` into a buffer of its own.
    ///
    /// # Errors
    /// `Corrupt` if the bytes changed in memory since they were written; the extent stays as it is.
    pub(crate) fn copy_out(&mut self, memory: &CacheMemory, backing: &Rc<Backing>) -> Result<bool> {
        let Content::Data(shown) = &mut self.content else { return Ok(false) };
        if !Rc::ptr_eq(&shown.0.write.backing, backing) {
            return Ok(false);
        }
        *shown = Shown::new(shown.0.to_own_buffer(memory)?);
        Ok(true)
    }
}

impl Split for CacheExtent {
    fn split_off(&mut self, at: u64) -> Self {
        let content = match &mut self.content {
            Content::Zeros => Content::Zeros,
            Content::Data(shown) => Content::Data(shown.split_off((at * SECTOR) as usize)),
        };
        CacheExtent { sequence: self.sequence, content }
    }
}

/// Where a write stands: its address in the segment, and its bytes in a backing.
pub(crate) struct WriteIn {
    pub(crate) segment: SegmentId,
    pub(crate) offset: u64,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

impl Piece {
    fn slice(&self, sectors: Range<u64>) -> Piece {
        let start = self.bytes.start + (sectors.start * SECTOR) as usize;
        let end = self.bytes.start + (sectors.end * SECTOR) as usize;
        assert!(start < end && end <= self.bytes.end, "a part lies in its piece");
        Piece { write: self.write.clone(), bytes: start..end }
    }

    pub(crate) fn bytes(&self) -> Bytes {
        let start = self.write.start;
        self.write.backing.bytes().slice(start + self.bytes.start..start + self.bytes.end)
    }

    /// The checksum of its block, if it is exactly one whole block of its write.
    pub(crate) fn block_checksum(&self) -> Option<u32> {
        let address = self.write.offset + self.bytes.start as u64;
        let whole = self.bytes.len() as u64 == BLOCK && address.is_multiple_of(BLOCK);
        whole.then(|| self.write.checksums[(address / BLOCK - self.write.offset / BLOCK) as usize])
    }

    /// Verifies every fragment that it shows a part of.
    pub(crate) fn verify(&self) -> Result<()> {
        let write = &*self.write;
        let all = &write.backing.bytes()[write.start..write.start + write.len];
        for ((at, len), expected) in fragments(write.offset, write.len as u64).zip(&write.checksums) {
            let (at, end) = (at as usize, (at + len) as usize);
            if at >= self.bytes.end || end <= self.bytes.start {
                continue;
            }
            let address = write.offset + at as u64;
            if fragment_checksum(write.segment, address, &all[at..end]) != *expected {
                return Err(Error::corrupt(format!(
                    "{len} bytes at {address} of segment {} changed in memory after they were written: check this \
                     machine's memory; the journal still has the intact bytes, a restart replays them",
                    write.segment
                )));
            }
        }
        Ok(())
    }

    fn to_own_buffer(&self, memory: &CacheMemory) -> Result<Piece> {
        let write = &*self.write;
        self.verify()?;
        let data = Bytes::copy_from_slice(&self.bytes());
        let offset = write.offset + self.bytes.start as u64;
        // Fragments that were cut get a new checksum: of bytes that were verified, and are compared with the source.
        let checksums = fragment_checksums(write.segment, offset, &data);
        let backing = memory.pin(data, vec![write.segment]);
        let len = self.bytes.len();
        let write = CachedWrite { backing, start: 0, len, segment: write.segment, offset, checksums };
        Ok(Piece { write: Rc::new(write), bytes: 0..len })
    }
}

impl Shown {
    fn new(piece: Piece) -> Self {
        piece.write.backing.add_live(piece.bytes.len() as u64);
        Shown(piece)
    }

    /// What was live in one extent is live in two.
    fn split_off(&mut self, at: usize) -> Shown {
        let middle = self.0.bytes.start + at;
        assert!(at > 0 && middle < self.0.bytes.end, "a split leaves two parts");
        let rest = Piece { write: self.0.write.clone(), bytes: middle..self.0.bytes.end };
        self.0.bytes.end = middle;
        Shown(rest)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.0.write.backing.remove_live(self.0.bytes.len() as u64);
    }
}
