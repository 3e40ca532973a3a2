//! Appends and reads: the paths that every byte takes.
//!
//! An append goes to all copies in member directories at once and is confirmed when it is durable in all of them and
//! every directory that failed meanwhile is excluded for good. A read goes to one copy, and to the next one if that
//! fails.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use base::seeded::is_on;
use base::{AlignedBuf, BLOCK, Bytes, DirectoryId, Error, FileId, Gathered, MIB, Map, Result};
use runtime::File;

use super::Local;
use super::catalogue::{Copy, Entry};
use super::directory::{READ, WRITE, lock_within};
use super::header::HEADER;
use crate::LocalBoxFuture;

/// Files that are kept open for reading.
const READERS_MAX: usize = 256;

/// Files that are open for reading; the one that was used longest ago is closed first.
#[derive(Default)]
pub(crate) struct Readers(RefCell<ReadersState>);

#[derive(Default)]
struct ReadersState {
    open: Map<(FileId, DirectoryId), (File, u64)>,
    uses: u64,
}

impl Readers {
    fn get(&self, key: (FileId, DirectoryId)) -> Option<File> {
        let mut state = self.0.borrow_mut();
        state.uses += 1;
        let uses = state.uses;
        let (file, last_use) = state.open.get_mut(&key)?;
        *last_use = uses;
        Some(file.clone())
    }

    fn insert(&self, key: (FileId, DirectoryId), file: File) {
        let mut state = self.0.borrow_mut();
        let oldest = match state.open.len() < READERS_MAX {
            true => None,
            false => state.open.iter().min_by_key(|(_, (_, last_use))| *last_use).map(|(key, _)| *key),
        };
        let closed = oldest.and_then(|oldest| state.open.remove(&oldest));
        let uses = state.uses;
        let replaced = state.open.insert(key, (file, uses));
        drop(state);
        drop((closed, replaced));
    }

    /// Closes a file: it is being deleted.
    pub(crate) fn forget(&self, file: FileId) {
        self.forget_where(|(of, _)| *of == file);
    }

    /// Closes one copy of a file: what is under its name is to be another one.
    pub(crate) fn forget_copy(&self, key: (FileId, DirectoryId)) {
        self.forget_where(|of| *of == key);
    }

    /// Closes the files of a directory that failed.
    pub(crate) fn forget_directory(&self, directory: DirectoryId) {
        self.forget_where(|(_, of)| *of == directory);
    }

    fn forget_where(&self, which: impl Fn(&(FileId, DirectoryId)) -> bool) {
        let mut state = self.0.borrow_mut();
        let keys = state.open.keys().filter(|key| which(key)).copied().collect::<Vec<_>>();
        let closed = keys.iter().filter_map(|key| state.open.remove(key)).collect::<Vec<_>>();
        drop(state);
        drop(closed);
    }
}

/// A file, and the open copies that an append goes to.
type AppendPlan = (Rc<Entry>, Vec<(Copy, File)>);

impl Local {
    /// See `FileWriter::append`. The writes are queued at the call.
    pub(crate) fn start_append(
        self: &Rc<Self>,
        file: FileId,
        offset: u64,
        data: Gathered,
    ) -> LocalBoxFuture<'static, Result<()>> {
        self.readiness.on_activity();
        match self.plan_append(file, offset, data.len() as u64) {
            Err(error) => Box::pin(std::future::ready(Err(error))),
            Ok((entry, copies)) => {
                let mut writes = Vec::with_capacity(copies.len());
                for (_, writer) in &copies {
                    self.counters.on_written(entry.kind as usize, data.len() as u64);
                    writes.push(writer.write_at(HEADER + offset, data.clone()));
                }
                let local = self.clone();
                Box::pin(async move {
                    let mut written = Vec::with_capacity(writes.len());
                    for ((copy, _), write) in copies.iter().zip(writes) {
                        // They run together: each was queued above. In the order of the copies is as good as any.
                        written.push((copy, write.await));
                        if is_on("acked-in-one-copy") {
                            break;
                        }
                    }
                    let mut full = None;
                    for (copy, result) in &written {
                        match result {
                            Err(error) if is_full(error) => full = Some(Error::from_io(place(&entry, offset), error)),
                            Err(error) => local.on_directory_failure(&copy.directory, &place(&entry, offset), error),
                            Ok(()) => {}
                        }
                    }
                    if let Some(full) = full {
                        return Err(full);
                    }
                    local.settle().await?;
                    // In all that are members now, and in at least one.
                    let live = || written.iter().filter(|(copy, _)| copy.is_live());
                    match live().all(|(_, result)| result.is_ok()) && live().next().is_some() {
                        true => Ok(()),
                        false => Err(Error::io(format!("{} failed", place(&entry, offset)))),
                    }
                })
            }
        }
    }

    fn plan_append(&self, file: FileId, offset: u64, len: u64) -> Result<AppendPlan> {
        self.check_writable()?;
        let entry = self.catalogue.get(file)?;
        assert!(offset.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK), "appends are whole blocks");
        if !entry.is_new {
            return Err(Error::fenced(format!("file {file} belongs to incarnation {}", entry.incarnation)));
        }
        let copies = {
            let state = entry.state.borrow();
            if state.sealed.or(state.sealing).is_some() {
                return Err(Error::conflict(format!("file {file} is sealed")));
            }
            if offset + len > entry.capacity {
                return Err(Error::full(format!("file {file} is full")));
            }
            let live = state.copies.iter().filter(|copy| copy.is_live());
            live.filter_map(|copy| Some((copy.clone(), copy.writer.clone()?))).collect::<Vec<_>>()
        };
        match copies.is_empty() {
            true => Err(Error::io(format!("every directory with a copy of file {file} failed"))),
            false => Ok((entry, copies)),
        }
    }

    /// Reads from the copy with this number, or from any.
    pub(crate) async fn read_from(
        &self,
        file: FileId,
        number: Option<u8>,
        offset: u64,
        len: usize,
    ) -> Result<AlignedBuf> {
        let entry = self.catalogue.get(file)?;
        entry.check_range(offset, len as u64)?;
        if len == 0 {
            return Ok(AlignedBuf::zeroed(0));
        }
        let mut copies = entry.live_copies();
        copies.retain(|copy| number.is_none_or(|number| copy.number == number));
        if copies.is_empty() {
            return Err(match number {
                Some(number) => Error::not_found(format!("file {file} has no copy {number}")),
                None => Error::io(format!("every directory with a copy of file {file} failed")),
            });
        }
        // Ranges of a file go to its copies in turn, the same range always to the same copy.
        let first = ((file.0 + offset / MIB) % copies.len() as u64) as usize;
        copies.rotate_left(first);
        // One that differs from another goes last: whoever can tell which is right asks for it by its number.
        copies.sort_by_key(|copy| copy.is_doubtful());
        let mut failure = None;
        for copy in &copies {
            match self.read_copy_of(&entry, copy, offset, len).await {
                Ok(buffer) => {
                    self.counters.on_read(entry.kind as usize, len as u64);
                    return Ok(buffer);
                }
                Err(error) => {
                    tracing::warn!("reading {len} bytes at {offset} of {} failed: {error}", copy.path().display());
                    self.counters.copy_errors.set(self.counters.copy_errors.get() + 1);
                    failure = Some(Error::from_io(format!("reading {}", copy.path().display()), &error));
                }
            }
        }
        let failure = failure.unwrap_or_else(|| Error::io("no copy was tried"));
        // A name that is gone is not a file that was deleted.
        Err(Error::io(failure.message))
    }

    pub(crate) async fn read_copy_of(
        &self,
        entry: &Entry,
        copy: &Copy,
        offset: u64,
        len: usize,
    ) -> io::Result<AlignedBuf> {
        let file = self.reader_of(entry, copy).await?;
        let mut buffer = file.read_up_to(HEADER + offset, len).await?;
        let missing = buffer.len() < len;
        if missing && entry.state.borrow().sealed.is_some() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        // Of a file that was not sealed, the last length may be lost: nothing was written there.
        let end = buffer.len();
        buffer.set_len(len);
        buffer[end..].fill(0);
        Ok(buffer)
    }

    /// A copy, open for reads.
    pub(crate) async fn reader_of(&self, entry: &Entry, copy: &Copy) -> io::Result<File> {
        if let Some(writer) = &copy.writer {
            return Ok(writer.clone());
        }
        let key = (entry.id, copy.directory.id.get());
        if let Some(file) = self.readers.get(key) {
            return Ok(file);
        }
        let file = self.handle.open(&copy.path(), READ).await?;
        // It may have been deleted meanwhile; then it must not be found under this id any more.
        if !entry.state.borrow().deleted && copy.is_live() {
            self.readers.insert(key, file.clone());
        }
        Ok(file)
    }

    /// See `Store::repair_copy`.
    pub(crate) async fn repair(&self, file: FileId, number: u8, offset: u64, data: Bytes) -> Result<()> {
        self.check_writable()?;
        let entry = self.catalogue.get(file)?;
        entry.check_range(offset, data.len() as u64)?;
        let _gate = entry.gate.take(1).await;
        let copy = entry.live_copies().into_iter().find(|copy| copy.number == number);
        let copy = copy.ok_or_else(|| Error::not_found(format!("file {file} has no copy {number}")))?;
        if entry.state.borrow().deleted {
            return Err(Error::not_found(format!("there is no file {file}")));
        }
        let written = async {
            let writer = self.open_writer(&copy).await?;
            writer.write_at(HEADER + offset, data.clone()).await
        };
        self.counters.on_written(entry.kind as usize, data.len() as u64);
        match written.await {
            Ok(()) => self.settle().await,
            Err(error) => {
                let what = format!("repairing {}", copy.path().display());
                if !is_full(&error) {
                    self.on_directory_failure(&copy.directory, &what, &error);
                }
                // A copy that does not count any more needs no repair.
                match copy.is_live() {
                    true => Err(Error::from_io(what, &error)),
                    false => self.settle().await,
                }
            }
        }
    }

    /// A copy, open for durable writes and locked.
    pub(crate) async fn open_writer(&self, copy: &Copy) -> io::Result<File> {
        if let Some(writer) = &copy.writer {
            return Ok(writer.clone());
        }
        let file = self.handle.open(&copy.path(), WRITE).await?;
        match lock_within(&self.handle, &file, self.options.lock_wait).await? {
            true => Ok(file),
            false => Err(io::Error::new(io::ErrorKind::WouldBlock, "another process still has the file open")),
        }
    }
}

/// Whether an error means that no space is left.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn place(entry: &Entry, offset: u64) -> String {
    format!("an append at {offset} of {} file {}", entry.kind.name(), entry.id)
}
