//! Looks at journals and changes nothing: for a person who wants to know what is there, and whether it is intact.
//!
//! A start reads an append from any one copy and stops at the first that it cannot believe. Here every copy is walked
//! by itself and to its end. What is missing in a copy is **damage** if it was acknowledged: the file was sealed
//! behind it, or an append that was written later says that it was durable. Otherwise it is what a crash leaves.

use base::{AlignedBuf, BLOCK, ErrorKind, FileId, LogSequence, MIB, Result, Set};
use files::{FileInfo, FileKind, Store};
use runtime::Handle;

use super::format::{AppendHeader, decode_records};
use super::scan::source::Source;

/// What is read at once.
const CHUNK_BYTES: u64 = MIB;

/// What the journals of a store hold.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JournalInspection {
    /// Appends that are intact, each copy counted.
    pub appends: u64,
    /// Acknowledged appends that a copy does not hold.
    pub damage: Vec<DamagedAppend>,
}

/// An acknowledged append that one copy of a journal file does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DamagedAppend {
    /// The file.
    pub file: FileId,
    /// Which copy of it.
    pub copy: u8,
    /// Where the append should be, in bytes.
    pub offset: u64,
    /// Its number; none where nothing is left that says it.
    pub sequence: Option<LogSequence>,
    /// What is wrong there, for a person.
    pub reason: String,
    /// Whether another copy holds it.
    pub is_elsewhere: bool,
}

/// Reads every copy of every journal file and verifies every checksum. `on_read` hears of the bytes read.
///
/// # Errors
/// `Invalid`: a later version wrote it. A copy that cannot be read is damaged.
pub async fn inspect(handle: &Handle, store: &Store, mut on_read: impl FnMut(u64)) -> Result<JournalInspection> {
    let mut found = JournalInspection::default();
    let mut files = Vec::new();
    for info in store.list().into_iter().filter(|info| info.kind == FileKind::Journal) {
        let source = Source::new(handle, store, info);
        match source.any_header().await? {
            Some(header) => files.push((header, source)),
            // Nothing was ever acknowledged out of it, unless it was sealed behind something.
            None => found.damage.extend(lost_whole(&source).await),
        }
    }
    files.sort_by_key(|(header, _)| (header.incarnation, header.log, header.ordinal));
    for journal in files.chunk_by(|(a, _), (b, _)| (a.incarnation, a.log) == (b.incarnation, b.log)) {
        inspect_journal(store, journal, &mut found, &mut on_read).await?;
    }
    Ok(found)
}

/// Every copy of a file of which no append is left, if it held any.
async fn lost_whole(source: &Source) -> Vec<DamagedAppend> {
    let Some(reason) = source.why_not_empty().await else { return Vec::new() };
    let copies = 0..source.info.copies_wanted.max(1);
    let damaged = |copy| DamagedAppend {
        file: source.info.id,
        copy,
        offset: 0,
        sequence: None,
        reason: reason.clone(),
        is_elsewhere: false,
    };
    copies.map(damaged).collect()
}

async fn inspect_journal(
    store: &Store,
    journal: &[(AppendHeader, Source)],
    found: &mut JournalInspection,
    on_read: &mut impl FnMut(u64),
) -> Result<()> {
    let mut walks = Vec::new();
    for (index, (header, source)) in journal.iter().enumerate() {
        // Appends from there on are void: they failed, and stand in a later file.
        let limit = journal[index + 1..].iter().map(|(later, _)| later.base).min().unwrap_or(LogSequence(u64::MAX));
        for copy in 0..source.info.copies_wanted.max(1) {
            let mut walk = Walk::new(store, source, copy, *header, limit);
            walk.run(on_read).await?;
            walks.push(walk);
        }
    }
    let durable_through = walks.iter().map(|walk| walk.durable_through).max().unwrap_or_default();
    for walk in &walks {
        found.appends += walk.intact.len() as u64;
        let sealed = walk.info.sealed.unwrap_or(0);
        let was_acknowledged = |missing: &&Missing| missing.offset < sealed || missing.sequence <= durable_through;
        for missing in walk.missing.iter().filter(was_acknowledged) {
            let holds = |other: &&Walk<'_>| other.info.id == walk.info.id && other.intact.contains(&missing.sequence);
            found.damage.push(DamagedAppend {
                file: walk.info.id,
                copy: walk.copy,
                offset: missing.offset,
                sequence: Some(missing.sequence),
                reason: missing.reason.clone(),
                is_elsewhere: walks.iter().any(|other| holds(&other)),
            });
        }
    }
    Ok(())
}

/// One copy of one file, from its start to its end.
struct Walk<'a> {
    store: &'a Store,
    source: &'a Source,
    info: &'a FileInfo,
    copy: u8,
    first: AppendHeader,
    limit: LogSequence,
    chunk: Option<(u64, AlignedBuf)>,
    intact: Set<LogSequence>,
    missing: Vec<Missing>,
    /// The highest that any header seen says.
    durable_through: LogSequence,
}

/// A place without the append that should be there.
struct Missing {
    offset: u64,
    sequence: LogSequence,
    reason: String,
}

/// Why there is no append.
enum Unfit {
    /// There is no such copy.
    NoCopy,
    /// For a person.
    Bad(String),
}

impl<'a> Walk<'a> {
    fn new(store: &'a Store, source: &'a Source, copy: u8, first: AppendHeader, limit: LogSequence) -> Self {
        let durable_through = first.durable_through;
        let (info, intact, missing) = (&source.info, Set::default(), Vec::new());
        Walk { store, source, info, copy, first, limit, chunk: None, intact, missing, durable_through }
    }

    async fn run(&mut self, on_read: &mut impl FnMut(u64)) -> Result<()> {
        let (mut offset, mut sequence) = (0, self.first.base);
        while offset < self.source.end && sequence < self.limit {
            let reason = match self.append_at(offset, sequence, on_read).await? {
                Ok(header) => {
                    self.intact.insert(sequence);
                    self.durable_through = self.durable_through.max(header.durable_through);
                    (offset, sequence) = (offset + header.len, LogSequence(sequence.0 + 1));
                    continue;
                }
                Err(Unfit::NoCopy) => return Ok(()),
                Err(Unfit::Bad(reason)) => reason,
            };
            self.missing.push(Missing { offset, sequence, reason });
            // Whatever stands behind it, in any copy: it tells what was acknowledged, and where to go on.
            let later = self.source.headers_from(offset).await?;
            let later = later.into_iter().filter(|header| header.log == self.first.log && header.sequence < self.limit);
            let later: Vec<AppendHeader> = later.collect();
            let durable_through = later.iter().map(|header| header.durable_through).max().unwrap_or_default();
            self.durable_through = self.durable_through.max(durable_through);
            match later.iter().find(|header| header.offset > offset && header.sequence > sequence) {
                Some(next) => (offset, sequence) = (next.offset, next.sequence),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// The header of the append number `sequence` at `offset`, if all of it is intact.
    async fn append_at(
        &mut self,
        offset: u64,
        sequence: LogSequence,
        on_read: &mut impl FnMut(u64),
    ) -> Result<Result<AppendHeader, Unfit>> {
        let (source, first) = (self.source, self.first);
        let block = match self.read(offset, BLOCK, on_read).await {
            Ok(block) => block,
            Err(unfit) => return Ok(Err(unfit)),
        };
        let Some(header) = source.header(block, offset)? else {
            return Ok(Err(Unfit::Bad("there is no valid append header".into())));
        };
        if header.sequence != sequence || header.log != first.log || header.ordinal != first.ordinal {
            return Ok(Err(Unfit::Bad(format!("append {} stands there", header.sequence))));
        }
        let bytes = match self.read(offset, header.len, on_read).await {
            Ok(bytes) => AlignedBuf::copy_of(bytes).freeze(),
            Err(unfit) => return Ok(Err(unfit)),
        };
        Ok(decode_records(&header, &bytes).map(|_| header).map_err(Unfit::Bad))
    }

    /// `len` bytes at `offset`, read in bigger pieces.
    async fn read(&mut self, offset: u64, len: u64, on_read: &mut impl FnMut(u64)) -> Result<&[u8], Unfit> {
        let is_there =
            |(start, chunk): &(u64, AlignedBuf)| *start <= offset && offset + len <= start + chunk.len() as u64;
        if !self.chunk.as_ref().is_some_and(is_there) {
            let ahead = CHUNK_BYTES.max(len).min(self.source.end - offset);
            let read = match self.store.read_copy(self.info.id, self.copy, offset, ahead as usize).await {
                Ok(chunk) => Ok(chunk),
                Err(error) if error.kind == ErrorKind::NotFound => return Err(Unfit::NoCopy),
                // Perhaps only what lies behind it.
                Err(_) => self.store.read_copy(self.info.id, self.copy, offset, len as usize).await,
            };
            let chunk = read.map_err(|error| Unfit::Bad(error.message))?;
            on_read(chunk.len() as u64);
            self.chunk = Some((offset, chunk));
        }
        let Some((start, chunk)) = &self.chunk else { unreachable!("it was read") };
        let at = (offset - start) as usize;
        Ok(&chunk[at..at + len as usize])
    }
}
