//! The log of the table of owners in a store that managers share.
//!
//! **Intuition.** Each manager writes files of its own life; nobody goes on in a file of another one. So to take the log is
//! to fence the lives of those who had it, to read how far they came, and to begin a file with all of it. What keeps an old
//! manager out is the fence of the store: what it has on its way is refused there, whatever it believes.
//!
//! **Names.** A *claim* is an empty file that says, by the epoch under which it was made, which term its life begins. Any
//! other file begins with a checkpoint, and counts when that is whole.
//!
//! **Invariants** (rule 45 of docs/SAFETY.md).
//! - A claim is durable before its life looks for others. Of two who claim at once at least one sees the other; the lower
//!   term gives way, and the higher one fences it.
//! - What was read counts for good: its writers were fenced before it was looked for.
//! - The file that counts is the last whole one of the highest term. The ones before it are deleted when the next one is
//!   whole.
//! - A record is confirmed, or its writer takes no more part. The end of a file is where no copy has a record that follows;
//!   if one stands behind it, it has not ended but rotted.

use std::cell::RefCell;
use std::rc::Rc;

use base::{AlignedBuf, BLOCK, Epoch, Error, ErrorKind, FileId, LogSequence, MIB, Result, Term};
use files::{Claim, CreateOptions, FileInfo, FileKind, FileWriter, Redundancy, Store};
use runtime::sync::Budget;
use wire::LocalBoxFuture;

use super::format::{self, Found, Header, Kind, Record};
use super::tables::{Entry, Tables};
use super::{OwnersLog, Replay};

/// How the log is kept.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Copies of each file.
    pub copies: u8,
    /// Bytes of a file at least; larger where a checkpoint needs a quarter of it.
    pub file_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { copies: 2, file_bytes: 16 * MIB }
    }
}

/// Begins one more life in the store.
pub type Join = Rc<dyn Fn() -> LocalBoxFuture<'static, Result<Store>>>;

/// See the module.
pub struct FileLog {
    store: RefCell<Store>,
    /// What to do when that life is over, if anything.
    join: Option<Join>,
    options: Options,
    /// Who begins, or appends: one at a time.
    writing: Budget,
    /// None while nobody on this life may write.
    open: RefCell<Option<Open>>,
}

/// The log as the manager in charge has it.
struct Open {
    term: Term,
    writer: FileWriter,
    /// Of the last record.
    sequence: LogSequence,
    tables: Tables,
}

impl FileLog {
    /// The log in a store, of which this process has a life of its own.
    pub fn new(store: &Store, options: Options) -> FileLog {
        let store = RefCell::new(store.clone());
        FileLog { store, join: None, options, writing: Budget::new(1), open: RefCell::default() }
    }

    /// The same by one who begins another life when that one is over: whoever took the log from it has fenced it.
    pub fn joining(store: &Store, join: Join, options: Options) -> FileLog {
        FileLog { join: Some(join), ..FileLog::new(store, options) }
    }

    /// The store, as the present life of this process sees it.
    pub fn store(&self) -> Store {
        self.store.borrow().clone()
    }

    async fn live(&self) -> Result<()> {
        let Some(join) = &self.join else { return Ok(()) };
        match self.store().check_life().await {
            Err(error) if error.kind == ErrorKind::Fenced => {
                let store = join().await?;
                *self.store.borrow_mut() = store;
                Ok(())
            }
            alive => alive,
        }
    }

    /// Every file of the log, of all lives: those of higher terms first, and of one term the newer ones.
    async fn files(&self) -> Result<Vec<FileInfo>> {
        let mut files = Vec::new();
        for life in self.store().lives().await? {
            files.extend(self.store().files_of(life).await?);
        }
        // Tables of volumes are logs, too, under an epoch without a term.
        files.retain(|info| info.kind == FileKind::Log && info.epoch.term() > Term(0));
        files.sort_by_key(|info| std::cmp::Reverse((info.epoch.term(), info.id)));
        Ok(files)
    }

    async fn create(&self, term: Term, capacity: u64) -> Result<FileWriter> {
        let options = CreateOptions {
            kind: FileKind::Log,
            capacity,
            redundancy: Redundancy::Copies(self.options.copies),
            prepared: false,
            epoch: Epoch::of(term, 0),
            segment: None,
            claim: Claim::Log,
        };
        self.store().create(options).await.map_err(|error| error.context("the table of owners"))
    }

    async fn claim(&self, term: Term) -> Result<Tables> {
        let over = |by: Term| Error::fenced(format!("{term} is over: the table of owners is under {by}"));
        if let Some(newest) = self.files().await?.first().map(|info| info.epoch.term()).filter(|newest| *newest >= term)
        {
            return Err(over(newest));
        }
        self.open.take();
        self.live().await?;
        let claim = self.create(term, BLOCK).await?.id();
        let others = self.files().await?;
        let mine = self.store().incarnation();
        let rival = others.iter().find(|info| info.epoch.term() >= term && info.incarnation != mine);
        if let Some(rival) = rival {
            // Both may give way; whoever tries again has a higher term.
            self.store().delete(claim).await?;
            return Err(over(rival.epoch.term()));
        }
        for life in others.iter().map(|info| info.incarnation).filter(|life| *life != mine) {
            if base::seeded::is_on("old-manager-writes") {
                continue;
            }
            self.store().fence(life).await?;
        }
        // Again, because until it was fenced one of them may have gone on in another file.
        let others = self.files().await?;
        let (tables, last) = self.read(&others).await?;
        let (writer, sequence) = self.begin_file(term, &tables, last).await?;
        *self.open.borrow_mut() = Some(Open { term, writer, sequence, tables: tables.clone() });
        // They are needed no more; what cannot be deleted now is found by the next one.
        for info in others.iter().filter(|info| info.epoch.term() < term) {
            if let Err(error) = self.store().delete(info.id).await {
                tracing::debug!(file = %info.id, %error, "an old file of the table of owners stays for now");
            }
        }
        Ok(tables)
    }

    /// What the newest whole file of the log comes to; empty tables where there is none.
    async fn read(&self, files: &[FileInfo]) -> Result<(Tables, LogSequence)> {
        for info in files {
            if let Some(read) = self.read_file(info).await? {
                return Ok(read);
            }
        }
        Ok((Tables::default(), LogSequence(0)))
    }

    /// What a file comes to, if its checkpoint is whole.
    async fn read_file(&self, info: &FileInfo) -> Result<Option<(Tables, LogSequence)>> {
        let len = info.sealed.unwrap_or(info.capacity);
        let mut copies = Vec::new();
        for copy in 0..info.copies_wanted {
            match self.store().read_copy(info.id, copy, 0, len as usize).await {
                Ok(bytes) => copies.push(bytes),
                Err(error) if error.kind == ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(file = %info.id, copy, %error, "the table of owners cannot be read"),
            }
        }
        if copies.is_empty() {
            let place = self.store().locate(info.id, 0);
            return Err(Error::io(format!("{place}: no copy of the table of owners can be read: bring the disk back")));
        }
        let (mut replay, mut last, mut at) = (Replay::default(), None, 0);
        while let Some((record, len)) = record_at(info.id, &copies, at)? {
            replay.take(&record)?;
            last = Some(record.header.sequence);
            at += len as usize;
        }
        let rest = (at + BLOCK as usize..len as usize).step_by(BLOCK as usize);
        for behind in rest {
            if record_at(info.id, &copies, behind)?.is_some_and(|(record, _)| Some(record.header.sequence) > last) {
                let place = self.store().locate(info.id, 0);
                return Err(Error::corrupt(format!(
                    "{place}: a record of the table of owners at byte {at} was durable and cannot be read from any copy: \
                     restore the file"
                )));
            }
        }
        Ok(replay.end().ok())
    }

    /// A new file with all of the tables, whose last record so far was `last`.
    async fn begin_file(&self, term: Term, tables: &Tables, last: LogSequence) -> Result<(FileWriter, LogSequence)> {
        let parts = format::checkpoint(tables);
        let encode = |file, last: LogSequence, changes| {
            let header = self.header(file, last, tables.owners.term());
            format::encode(&Record { header, kind: Kind::Checkpoint, changes })
        };
        let len: usize = parts.iter().map(|part| encode(FileId(0), last, part.clone()).len()).sum();
        let mut writer = self.create(term, (4 * len as u64).max(self.options.file_bytes)).await?;
        let mut sequence = last;
        for part in parts {
            let bytes = encode(writer.id(), sequence, part);
            sequence.0 += 1;
            writer.append(AlignedBuf::copy_of(&bytes).freeze()).await?;
        }
        Ok((writer, sequence))
    }

    async fn write(&self, term: Term, changes: Vec<Entry>) -> Result<()> {
        // Given back when it is known what is durable.
        let Some(mut open) = self.open.borrow_mut().take().filter(|open| open.term == term) else {
            return Err(Error::fenced(format!(
                "this manager does not write the table of owners under {term} any more"
            )));
        };
        for change in &changes {
            open.tables.check(change)?;
            open.tables.apply(change);
        }
        let header = self.header(open.writer.id(), open.sequence, open.tables.owners.term());
        let bytes = format::fits(&changes).then(|| format::encode(&Record { header, kind: Kind::Changes, changes }));
        match bytes.filter(|bytes| bytes.len() as u64 <= open.writer.room()) {
            Some(bytes) => {
                open.writer.append(AlignedBuf::copy_of(&bytes).freeze()).await?;
                open.sequence = header.sequence;
            }
            None => {
                // The changes are part of the tables with which the next file begins.
                let full = open.writer.id();
                (open.writer, open.sequence) = self.begin_file(term, &open.tables, open.sequence).await?;
                self.store().delete(full).await?;
            }
        }
        *self.open.borrow_mut() = Some(open);
        Ok(())
    }

    /// That of the record behind `last`.
    fn header(&self, file: FileId, last: LogSequence, term: Term) -> Header {
        let (incarnation, sequence) = (self.store().incarnation(), LogSequence(last.0 + 1));
        Header { file, incarnation, sequence, durable_through: last, term }
    }
}

/// The record at a place, from any copy, and its length.
fn record_at(file: FileId, copies: &[AlignedBuf], at: usize) -> Result<Option<(Record, u64)>> {
    for copy in copies.iter().filter(|copy| at < copy.len()) {
        if let Found::Record(record, len) = format::decode(file, &copy[at..])? {
            return Ok(Some((record, len)));
        }
    }
    Ok(None)
}

impl OwnersLog for FileLog {
    fn term(&self) -> LocalBoxFuture<'_, Result<Term>> {
        Box::pin(async move { Ok(self.files().await?.first().map_or(Term(0), |info| info.epoch.term())) })
    }

    fn begin(&self, term: Term) -> LocalBoxFuture<'_, Result<Tables>> {
        Box::pin(async move {
            let _alone = self.writing.take(1).await;
            self.claim(term).await
        })
    }

    fn append(&self, term: Term, changes: Vec<Entry>) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let _alone = self.writing.take(1).await;
            self.write(term, changes).await
        })
    }
}

#[cfg(test)]
mod tests;
