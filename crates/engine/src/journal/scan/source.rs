//! Reads one journal file: ahead and in big pieces along the chain of appends, copy by copy where that breaks.

use std::collections::VecDeque;

use base::seeded::is_on;
use base::{AlignedBuf, BLOCK, Bytes, ErrorKind, MIB, Result};
use files::{FileInfo, Store};
use runtime::{Class, Handle, Task};

use super::super::JournalRecord;
use super::super::format::{AppendHeader, decode_records};

/// What is read at once, and how far ahead.
const CHUNK_BYTES: u64 = MIB;
const AHEAD_BYTES: u64 = 8 * MIB;

/// A journal file that is being read.
pub(in crate::journal) struct Source {
    handle: Handle,
    store: Store,
    pub(in crate::journal) info: FileInfo,
    /// Nothing behind this counts: where it was sealed, or its capacity.
    pub(in crate::journal) end: u64,
    /// Chunks in the order of their offsets, read or being read.
    chunks: VecDeque<Chunk>,
    next_chunk: u64,
}

struct Chunk {
    start: u64,
    len: u64,
    read: Read,
}

enum Read {
    Pending(Task<Result<AlignedBuf>>),
    Done(Result<Bytes>),
}

/// What stands at a place of the file.
pub(in crate::journal) enum Found {
    /// An append as it was written.
    Intact(Box<Append>),
    /// Something else.
    Bad(Bad),
}

/// Why there is no append.
pub(in crate::journal) struct Bad {
    /// For a person.
    pub(in crate::journal) reason: String,
    /// No copy could be read there: nothing is proven.
    pub(in crate::journal) unreadable: bool,
}

/// An append that was read.
pub(in crate::journal) struct Append {
    pub(in crate::journal) header: AppendHeader,
    pub(in crate::journal) bytes: Bytes,
    pub(in crate::journal) records: Vec<JournalRecord>,
    /// Copies that must be given these bytes: they were found to have others.
    pub(in crate::journal) damaged_copies: Vec<u8>,
}

impl Source {
    pub(in crate::journal) fn new(handle: &Handle, store: &Store, info: FileInfo) -> Self {
        let end = info.sealed.unwrap_or(info.capacity);
        Source { handle: handle.clone(), store: store.clone(), info, end, chunks: VecDeque::new(), next_chunk: 0 }
    }

    /// Where the file and `offset` in it are, for a person.
    pub(in crate::journal) fn place(&self, offset: u64) -> String {
        let paths: Vec<String> =
            (0..self.info.copies_wanted.max(1)).map(|copy| self.store.locate(self.info.id, copy)).collect();
        format!("journal file {} at offset {offset}", paths.join(" and "))
    }

    /// A header of the file: its first one, or any other if that is damaged. `None`: nothing was written to it.
    pub(in crate::journal) async fn any_header(&self) -> Result<Option<AppendHeader>> {
        if self.end == 0 || self.info.copies == 0 {
            return Ok(None);
        }
        for copy in 0..self.info.copies_wanted.max(1) {
            if let Ok(block) = self.store.read_copy(self.info.id, copy, 0, BLOCK as usize).await
                && let Some(header) = self.header(&block, 0)?
            {
                return Ok(Some(header));
            }
        }
        Ok(self.headers_from(0).await?.into_iter().next())
    }

    /// Why a file without any header may have held acknowledged writes all the same, for a person.
    pub(in crate::journal) async fn why_not_empty(&self) -> Option<String> {
        match self.info.sealed {
            Some(0) => None,
            // Whoever seals a file does it behind an append that counts.
            Some(sealed) => {
                Some(format!("the file was sealed at {sealed}, but no append is left in it: they were acknowledged"))
            }
            // Its first append may be there, where the disk cannot read.
            None => match self.store.read(self.info.id, 0, BLOCK as usize).await {
                Ok(_) => None,
                Err(_) => Some("the beginning cannot be read, and may hold acknowledged writes".to_owned()),
            },
        }
    }

    /// The append at `offset`, if it is intact in some copy and `expects` its header.
    pub(in crate::journal) async fn append_at(
        &mut self,
        offset: u64,
        expects: impl Fn(&AppendHeader) -> bool,
    ) -> Result<Found> {
        if let Ok(block) = self.window(offset, BLOCK).await
            && let Some(header) = self.header(&block, offset)?.filter(&expects)
            && let Ok(bytes) = self.window(offset, header.len).await
            && let Ok(records) = decode_records(&header, &bytes)
        {
            return Ok(Found::Intact(Box::new(Append { header, bytes, records, damaged_copies: Vec::new() })));
        }
        self.append_in_copies(offset, expects).await
    }

    /// The same, looking into each copy by itself.
    async fn append_in_copies(&self, offset: u64, expects: impl Fn(&AppendHeader) -> bool) -> Result<Found> {
        let (mut found, mut damaged_copies) = (None, Vec::new());
        let mut reasons = Vec::new();
        let mut unreadable = true;
        for copy in 0..self.info.copies_wanted.max(1) {
            match self.append_in_copy(copy, offset, &expects).await? {
                Ok(append) => {
                    if found.is_none() {
                        found = Some(append);
                    }
                    unreadable = false;
                }
                Err(Missing::Copy) => {}
                Err(Missing::Unreadable(reason)) => {
                    reasons.push(reason);
                    damaged_copies.push(copy);
                }
                Err(Missing::Append(reason)) => {
                    reasons.push(reason);
                    damaged_copies.push(copy);
                    unreadable = false;
                }
            }
        }
        Ok(match found {
            Some((header, bytes, records)) => {
                Found::Intact(Box::new(Append { header, bytes, records, damaged_copies }))
            }
            None => {
                reasons.dedup();
                Found::Bad(Bad { reason: reasons.join("; "), unreadable })
            }
        })
    }

    async fn append_in_copy(
        &self,
        copy: u8,
        offset: u64,
        expects: &impl Fn(&AppendHeader) -> bool,
    ) -> Result<Result<(AppendHeader, Bytes, Vec<JournalRecord>), Missing>> {
        let block = match self.store.read_copy(self.info.id, copy, offset, BLOCK as usize).await {
            Ok(block) => block,
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(Err(Missing::Copy)),
            Err(error) => return Ok(Err(Missing::Unreadable(error.message))),
        };
        let Some(header) = self.header(&block, offset)? else {
            return Ok(Err(Missing::Append("there is no valid append header".to_owned())));
        };
        if !expects(&header) {
            return Ok(Err(Missing::Append(format!("there is append {} instead of the next one", header.sequence))));
        }
        let bytes = match self.store.read_copy(self.info.id, copy, offset, header.len as usize).await {
            Ok(bytes) => bytes.freeze(),
            Err(error) => return Ok(Err(Missing::Unreadable(error.message))),
        };
        Ok(match decode_records(&header, &bytes) {
            Ok(records) => Ok((header, bytes, records)),
            Err(reason) => Err(Missing::Append(reason)),
        })
    }

    /// A header at the start of `block` that belongs to `offset` of this file.
    pub(in crate::journal) fn header(&self, block: &[u8], offset: u64) -> Result<Option<AppendHeader>> {
        let header = AppendHeader::decode(block, self.info.id).map_err(|error| error.context(self.place(offset)))?;
        Ok(header.filter(|header| {
            let is_ours = header.incarnation == self.info.incarnation || is_on("recycled-journal-replayed");
            header.offset == offset && is_ours && offset + header.len <= self.end
        }))
    }

    /// Every valid header from `from` on, in any copy, by offset. Blocks that cannot be read have none.
    pub(in crate::journal) async fn headers_from(&self, from: u64) -> Result<Vec<AppendHeader>> {
        let mut headers: Vec<AppendHeader> = Vec::new();
        for copy in 0..self.info.copies_wanted.max(1) {
            let mut reads: VecDeque<(u64, Task<Result<AlignedBuf>>)> = VecDeque::new();
            let mut next = from;
            loop {
                while next < self.end && reads.len() < (AHEAD_BYTES / CHUNK_BYTES) as usize {
                    let len = CHUNK_BYTES.min(self.end - next);
                    reads.push_back((next, self.read_copy_task(copy, next, len)));
                    next += len;
                }
                let Some((start, read)) = reads.pop_front() else { break };
                match read.await {
                    Ok(chunk) => self.collect_headers(start, &chunk, &mut headers)?,
                    Err(error) if error.kind == ErrorKind::NotFound => break,
                    Err(_) => self.headers_block_by_block(copy, start, &mut headers).await?,
                }
            }
        }
        headers.sort_by_key(|header| (header.offset, header.sequence));
        headers.dedup();
        Ok(headers)
    }

    fn read_copy_task(&self, copy: u8, offset: u64, len: u64) -> Task<Result<AlignedBuf>> {
        let (store, file) = (self.store.clone(), self.info.id);
        let read = async move { store.read_copy(file, copy, offset, len as usize).await };
        self.handle.spawn(Class::Io, "journal scan", read)
    }

    fn collect_headers(&self, start: u64, chunk: &[u8], headers: &mut Vec<AppendHeader>) -> Result<()> {
        for (index, block) in chunk.chunks(BLOCK as usize).enumerate() {
            headers.extend(self.header(block, start + index as u64 * BLOCK)?);
        }
        Ok(())
    }

    async fn headers_block_by_block(&self, copy: u8, start: u64, headers: &mut Vec<AppendHeader>) -> Result<()> {
        let mut at = start;
        while at < (start + CHUNK_BYTES).min(self.end) {
            match self.store.read_copy(self.info.id, copy, at, BLOCK as usize).await {
                Ok(block) => self.collect_headers(at, &block, headers)?,
                Err(error) => tracing::warn!(%error, "a block behind the journal's end cannot be read"),
            }
            at += BLOCK;
        }
        Ok(())
    }

    /// `len` bytes at `offset`, from whichever copy. Offsets only grow from call to call.
    async fn window(&mut self, offset: u64, len: u64) -> Result<Bytes> {
        let end = offset + len;
        assert!(end <= self.end, "a window lies in the file");
        while self.chunks.front().is_some_and(|chunk| chunk.start + chunk.len <= offset) {
            self.chunks.pop_front();
        }
        if self.chunks.is_empty() {
            self.next_chunk = self.next_chunk.max(offset);
        }
        while self.next_chunk < self.end.min(end + AHEAD_BYTES) {
            let (start, len) = (self.next_chunk, CHUNK_BYTES.min(self.end - self.next_chunk));
            let read = self.store.read(self.info.id, start, len as usize);
            let task = self.handle.spawn(Class::Io, "journal scan", read);
            self.chunks.push_back(Chunk { start, len, read: Read::Pending(task) });
            self.next_chunk += len;
        }
        let mut whole: Option<AlignedBuf> = None;
        for chunk in &mut self.chunks {
            if chunk.start >= end {
                break;
            }
            if let Read::Pending(task) = &mut chunk.read {
                chunk.read = Read::Done(task.await.map(AlignedBuf::freeze));
            }
            let Read::Done(bytes) = &chunk.read else { unreachable!("it was awaited") };
            let bytes = bytes.clone()?;
            let part = offset.max(chunk.start)..end.min(chunk.start + chunk.len);
            let part = bytes.slice((part.start - chunk.start) as usize..(part.end - chunk.start) as usize);
            if part.len() as u64 == len {
                return Ok(part);
            }
            whole.get_or_insert_with(|| AlignedBuf::with_capacity(len as usize)).extend_from_slice(&part);
        }
        let whole = whole.expect("a window overlaps its chunks");
        assert_eq!(whole.len() as u64, len, "chunks have no gaps");
        Ok(whole.freeze())
    }

    /// Gives one copy the bytes that another one has.
    pub(in crate::journal) async fn repair(&self, copy: u8, offset: u64, bytes: Bytes) -> Result<()> {
        self.store.repair_copy(self.info.id, copy, offset, bytes).await
    }

    /// The copies whose bytes at `offset` are not `bytes`. A missing copy is the store's to bring back.
    pub(in crate::journal) async fn differing_copies(&self, offset: u64, bytes: &Bytes) -> Vec<u8> {
        let mut differing = Vec::new();
        for copy in 0..self.info.copies_wanted.max(1) {
            match self.store.read_copy(self.info.id, copy, offset, bytes.len()).await {
                Ok(there) if there[..] == bytes[..] => {}
                Err(error) if error.kind == ErrorKind::NotFound => {}
                Ok(_) | Err(_) => differing.push(copy),
            }
        }
        differing
    }
}

/// Why a copy does not have an append.
enum Missing {
    /// There is no such copy.
    Copy,
    /// It cannot be read.
    Unreadable(String),
    /// Something else is there.
    Append(String),
}
