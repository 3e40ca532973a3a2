//! Recovery of journals: where each one ends, and what is in it.
//!
//! Intuition: a crash leaves the last appends of a journal torn, missing, or landed though nobody was told. All of
//! them may be cut, because none was acknowledged; nothing else may be. What tells them apart is `durable_through`:
//! an append says which appends before it were durable when it was written. A bad append that a later one calls
//! durable is not torn, it is **rotten**, and the scan stops with an error rather than lose acknowledged writes.
//!
//! Names: a *journal* is the files of one incarnation and loop, in the order of their `ordinal`; its *chain* is the
//! run of intact appends without a gap in the log sequence; the *cut* is where the chain ends and nothing says that
//! it went on. The *base* of a file is its first log sequence: appends of earlier files from there on are void,
//! because they failed and were written again (see the writer).
//!
//! Invariants: an append that is intact in one copy counts, and is brought to every other copy; the ends are sealed,
//! durably, before [`scan`] returns, so that no later scan decides otherwise; nothing is changed before everything is
//! decided.
//!
//! Flow: `survey` finds out what each file is; `Chain::read` walks the files of one journal and hands records out;
//! `Chain::settle` repairs copies, seals, and deletes files without content.

use base::{Error, FileId, LogSequence, Result};
use files::{FileInfo, FileKind, Store};
use runtime::Handle;

use super::format::AppendHeader;
use super::ledger::LedgerFile;
use super::{JournalPosition, JournalRecord, RecoveredJournal, ScanOptions, ScanReport};

mod chain;
pub(super) mod source;
#[cfg(test)]
mod tests;

use chain::Chain;
use source::Source;

/// See [`super::scan`].
pub(super) async fn scan(
    handle: &Handle,
    store: &Store,
    files: &[FileInfo],
    options: &ScanOptions,
    mut visit: impl FnMut(JournalRecord),
) -> Result<ScanReport> {
    let mut report = ScanReport::default();
    let mut survey = survey(handle, store, files, options, &mut report).await?;
    report.files = survey.take_dumped(options.start);
    let mut chains = Vec::new();
    for journal in survey.journals {
        let mut chain = Chain::new(journal, options);
        chain.read(&mut visit, &mut report).await?;
        chains.push(chain);
    }
    // Everything is decided: from here on things change.
    for chain in chains {
        chain.settle(store, &mut report).await?;
    }
    for file in survey.empty {
        store.delete(file).await?;
    }
    Ok(report)
}

/// What the files are.
struct Survey {
    /// By incarnation and loop; the files of each by ordinal.
    journals: Vec<Vec<JournalFile>>,
    /// Files without any append.
    empty: Vec<FileId>,
}

struct JournalFile {
    source: Source,
    /// One of its headers: says what the file is.
    header: AppendHeader,
}

async fn survey(
    handle: &Handle,
    store: &Store,
    files: &[FileInfo],
    options: &ScanOptions,
    report: &mut ScanReport,
) -> Result<Survey> {
    let (mut known, mut empty) = (Vec::new(), Vec::new());
    for info in files.iter().filter(|info| info.kind == FileKind::Journal) {
        assert!(info.incarnation < store.incarnation(), "only journals of earlier lives are recovered");
        let source = Source::new(handle, store, info.clone());
        match source.any_header().await? {
            Some(header) => known.push(JournalFile { source, header }),
            None => {
                if let Some(why) = source.why_not_empty().await {
                    let place = source.place(0);
                    if !options.accept_data_loss {
                        return Err(rotten(&place, &why));
                    }
                    report.lost.push(format!("{place}: {why}"));
                }
                empty.push(info.id);
            }
        }
    }
    known.sort_by_key(|file| (file.header.incarnation, file.header.log, file.header.ordinal));
    let journals = known.chunk_by(|a, b| a.is_of_journal(b)).map(<[JournalFile]>::len).collect::<Vec<_>>();
    let mut known = known.into_iter();
    Ok(Survey { journals: journals.into_iter().map(|len| known.by_ref().take(len).collect()).collect(), empty })
}

impl Survey {
    /// Takes out the files before `start`: all their records are dumped, they only wait to be deleted.
    fn take_dumped(&mut self, start: Option<JournalPosition>) -> Vec<RecoveredJournal> {
        let Some(start) = start else { return Vec::new() };
        let is_start = |file: &JournalFile| file.source.info.id == start.file;
        let Some(journal) = self.journals.iter().position(|files| files.iter().any(is_start)) else {
            // The file was deleted since, and all before it.
            return Vec::new();
        };
        let mut before: Vec<JournalFile> = self.journals.drain(..journal).flatten().collect();
        let in_journal = self.journals[0].iter().position(is_start).unwrap_or_default();
        before.extend(self.journals[0].drain(..in_journal));
        before.iter().map(|file| RecoveredJournal(file.ledger(0, file.header.base))).collect()
    }
}

impl JournalFile {
    fn is_of_journal(&self, other: &JournalFile) -> bool {
        (self.header.incarnation, self.header.log) == (other.header.incarnation, other.header.log)
    }

    /// A ledger of it, with nothing before `start` in it.
    fn ledger(&self, start: u64, next: LogSequence) -> LedgerFile {
        let mut ledger = LedgerFile::new(self.source.info.id, self.source.info.capacity, start, next);
        ledger.on_ended();
        ledger
    }
}

/// What a person reads when acknowledged writes cannot be read.
fn rotten(place: &str, why: &str) -> Error {
    Error::corrupt(format!(
        "{place}: {why}. Bring the disk with an intact copy back; or start once with --accept-data-loss, which goes \
         on without the writes that cannot be read"
    ))
}
