//! One journal, from its first append to the cut.

use std::collections::VecDeque;

use base::seeded::is_on;
use base::{Bytes, LogSequence, Result};
use files::Store;

use super::super::format::AppendHeader;
use super::super::ledger::LedgerFile;
use super::super::{JournalRecord, RecoveredJournal, ScanOptions, ScanReport};
use super::source::{Append, Bad, Found};
use super::{JournalFile, rotten};

/// A journal while it is read.
pub(super) struct Chain {
    files: Vec<ChainFile>,
    /// The number that the next append must have.
    expected: LogSequence,
    /// Accepted appends that none after them calls durable: a copy may lack them.
    unproven: VecDeque<Unproven>,
    accept_data_loss: bool,
}

struct ChainFile {
    file: JournalFile,
    /// What was accepted of it.
    ledger: LedgerFile,
    /// Appends from this number on are void: a later file begins with it.
    limit: LogSequence,
    /// What copies have to be given: copy, offset, bytes.
    repairs: Vec<(u8, u64, Bytes)>,
}

struct Unproven {
    file: usize,
    offset: u64,
    sequence: LogSequence,
    bytes: Bytes,
}

/// Where to go on after a place without an intact append.
enum GoOn {
    /// Nowhere: the journal ends there.
    Cut,
    /// In the same file, at this append; what is between is lost.
    At(AppendHeader),
    /// In the next file; the rest of this one is lost.
    NextFile,
}

impl Chain {
    pub(super) fn new(journal: Vec<JournalFile>, options: &ScanOptions) -> Self {
        let mut limit = LogSequence(u64::MAX);
        let mut files: Vec<ChainFile> = Vec::new();
        for file in journal.into_iter().rev() {
            let base = file.header.base;
            let start = options.start.filter(|start| start.file == file.source.info.id);
            let (offset, next) = start.map_or((0, base), |start| (start.offset, start.sequence));
            files.push(ChainFile { ledger: file.ledger(offset, next), file, limit, repairs: Vec::new() });
            limit = limit.min(base);
        }
        files.reverse();
        let first = files.iter().find(|file| !file.is_void());
        let expected = first.map_or(LogSequence(1), |file| file.ledger.next());
        Chain { files, expected, unproven: VecDeque::new(), accept_data_loss: options.accept_data_loss }
    }

    /// Walks the files and hands their records out, up to the cut.
    pub(super) async fn read(&mut self, visit: &mut impl FnMut(JournalRecord), report: &mut ScanReport) -> Result<()> {
        for index in 0..self.files.len() {
            if self.files[index].is_void() {
                continue;
            }
            while let Some(bad) = self.read_file(index, visit, report).await? {
                match self.decide(index, &bad, report).await? {
                    GoOn::Cut => return Ok(()),
                    GoOn::At(header) => {
                        self.files[index].ledger.skip_to(header.offset);
                        self.expected = header.sequence;
                    }
                    GoOn::NextFile => self.expected = self.files[index].limit,
                }
            }
        }
        Ok(())
    }

    /// Accepts appends until a later file takes over (`None`), or until there is no next one.
    async fn read_file(
        &mut self,
        index: usize,
        visit: &mut impl FnMut(JournalRecord),
        report: &mut ScanReport,
    ) -> Result<Option<Bad>> {
        loop {
            let file = &mut self.files[index];
            let (offset, expected) = (file.ledger.end(), self.expected);
            if expected >= file.limit {
                return Ok(None);
            }
            if offset >= file.file.source.end {
                return Ok(Some(Bad { reason: "the file ends".to_owned(), unreadable: false }));
            }
            let (log, ordinal) = (file.file.header.log, file.file.header.ordinal);
            let fits =
                |header: &AppendHeader| header.sequence == expected && header.log == log && header.ordinal == ordinal;
            match file.file.source.append_at(offset, fits).await? {
                Found::Intact(append) => self.accept(index, *append, visit, report),
                Found::Bad(bad) => return Ok(Some(bad)),
            }
        }
    }

    fn accept(&mut self, index: usize, append: Append, visit: &mut impl FnMut(JournalRecord), report: &mut ScanReport) {
        let Append { header, bytes, records, damaged_copies } = append;
        let file = &mut self.files[index];
        file.repairs.extend(damaged_copies.into_iter().map(|copy| (copy, header.offset, bytes.clone())));
        let writes = records.iter().map(|record| (record.segment, record.sequence));
        file.ledger.on_append(header.sequence, header.len, writes);
        self.expected = file.ledger.next();
        while self.unproven.front().is_some_and(|append| append.sequence <= header.durable_through) {
            self.unproven.pop_front();
        }
        if file.file.source.info.sealed.is_none() && file.file.source.info.copies_wanted > 1 {
            let (offset, sequence) = (header.offset, header.sequence);
            self.unproven.push_back(Unproven { file: index, offset, sequence, bytes });
        }
        report.records += records.len() as u64;
        records.into_iter().for_each(visit);
    }

    /// Whether the journal may end where `bad` is, before `expected`.
    async fn decide(&mut self, index: usize, bad: &Bad, report: &mut ScanReport) -> Result<GoOn> {
        let file = &self.files[index];
        let offset = file.ledger.end();
        let (source, expected) = (&file.file.source, self.expected);
        let at_end = offset >= source.end;
        if at_end && file.limit == LogSequence(u64::MAX) {
            return Ok(GoOn::Cut);
        }
        let behind: Vec<AppendHeader> = source
            .headers_from(offset)
            .await?
            .into_iter()
            .filter(|header| header.sequence >= expected && header.sequence < file.limit)
            .collect();
        let proof = match source.info.sealed {
            Some(sealed) if !at_end => Some(format!("the file was sealed at {sealed}")),
            _ => self.proof(index, &behind).await?,
        };
        let proof = proof.filter(|_| !is_on("rotten-journal-cut"));
        let why = match proof {
            None if !bad.unreadable => {
                report.torn_tails += u64::from(!behind.is_empty());
                return Ok(GoOn::Cut);
            }
            None => format!("append {expected} cannot be read ({}), and may have been acknowledged", bad.reason),
            Some(proof) => format!("append {expected} is damaged ({}), but {proof}: it was acknowledged", bad.reason),
        };
        let place = source.place(offset);
        if !self.accept_data_loss {
            return Err(rotten(&place, &why));
        }
        tracing::error!(place, why, "going on without acknowledged writes, as the operator chose");
        report.lost.push(format!("{place}: {why}"));
        let next = behind.into_iter().find(|header| header.offset > offset && header.sequence > expected);
        Ok(match next {
            Some(header) => GoOn::At(header),
            None if file.limit < LogSequence(u64::MAX) => GoOn::NextFile,
            None => GoOn::Cut,
        })
    }

    /// Who says that the append `expected` was durable.
    async fn proof(&self, index: usize, behind: &[AppendHeader]) -> Result<Option<String>> {
        let expected = self.expected;
        let proves = |header: &&AppendHeader| header.durable_through >= expected;
        let sentence = |header: &AppendHeader, place: String| {
            format!(
                "append {} ({place}) says that everything through {} was durable",
                header.sequence, header.durable_through
            )
        };
        if let Some(header) = behind.iter().find(proves) {
            return Ok(Some(sentence(header, format!("at offset {}", header.offset))));
        }
        for later in &self.files[index + 1..] {
            let source = &later.file.source;
            if let Some(header) = source.headers_from(0).await?.iter().find(proves) {
                return Ok(Some(sentence(header, source.place(header.offset))));
            }
        }
        Ok(None)
    }

    /// Brings every accepted append to every copy, and makes the ends durable.
    pub(super) async fn settle(mut self, store: &Store, report: &mut ScanReport) -> Result<()> {
        for Unproven { file, offset, bytes, .. } in self.unproven {
            let file = &mut self.files[file];
            for copy in file.file.source.differing_copies(offset, &bytes).await {
                file.repairs.push((copy, offset, bytes.clone()));
            }
        }
        for ChainFile { file, ledger, repairs, .. } in self.files {
            let source = &file.source;
            for (copy, offset, bytes) in repairs.into_iter().filter(|_| !is_on("journal-not-spread")) {
                match source.repair(copy, offset, bytes).await {
                    Ok(()) => report.repaired_appends += 1,
                    Err(error) => {
                        let place = store.locate(source.info.id, copy);
                        tracing::warn!(%error, place, offset, "a copy of the journal could not be repaired");
                    }
                }
            }
            if ledger.end() == 0 {
                store.delete(source.info.id).await?;
                continue;
            }
            if source.info.sealed.is_none() {
                store.seal(source.info.id, ledger.end()).await?;
            }
            report.files.push(RecoveredJournal(ledger));
        }
        Ok(())
    }
}

impl ChainFile {
    /// Whether all of it was written again in later files.
    fn is_void(&self) -> bool {
        self.file.header.base >= self.limit
    }
}
