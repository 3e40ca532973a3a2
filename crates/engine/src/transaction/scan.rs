//! Reading the transaction log of earlier incarnations: where it ends, and what it says.
//!
//! A file of the log is begun only when everything in the files before it is durable, or sealed away. So only the
//! last file with records can have a **torn** tail: appends that were in flight when the process died. Every other
//! record that cannot be read from any copy is **rotten**: acknowledged work depends on it, and the store does not
//! start without an override. Within the last file, a bad record is rotten if a later one says that it was durable, or
//! if the file was sealed behind it, as it is when the store is stopped.
//! Where the disk cannot say what is there, the log may go on: that is neither torn nor empty.
//! Files that a checkpoint made unneeded may still be there, with fewer copies: a power loss undoes some of a deletion.
//! What is bad in them does not matter.
//!
//! Flow: read all files, and in each the records that follow each other; decide which files count; bring every copy of
//! the tail to the decided content and seal, so that the next recovery decides the same; find the newest checkpoint;
//! hand out what a replay needs.

use std::ops::Range;

use base::seeded::is_on;
use base::{AlignedBuf, BLOCK, Error, ErrorKind, FileId, Incarnation, LogSequence, Result};
use files::{FileInfo, FileKind, Store};

use super::codec::{BODY_BYTES_MAX, Header, claimed_body_len, decode, padded_len};
use super::format::{Checkpoint, Record};
use super::log::LogFile;

/// Bytes of one read.
const READ_BYTES: u64 = base::MIB;

/// What the log of earlier incarnations says.
#[derive(Debug, Default)]
pub struct ScannedLog {
    /// The newest checkpoint; none in a new store.
    pub checkpoint: Option<Checkpoint>,
    /// The life that wrote it: only its data files may go on behind what the log knows of them.
    pub checkpoint_by: Incarnation,
    /// Every record from the first one that a replay needs, in log order.
    pub records: Vec<(LogSequence, Record)>,
    /// Large writes up to here counted when they were logged over, or were decided by an earlier recovery.
    pub durable_through: LogSequence,
    /// The first sequence that is free.
    pub next: LogSequence,
    /// The files that a replay needs, oldest first.
    pub files: Vec<LogFile>,
    /// Whether the last file ended in records that were cut.
    pub torn_tail: bool,
    /// Copies of the tail that were brought to the decided content.
    pub repaired_copies: u64,
}

/// A valid record.
struct Found {
    header: Header,
    record: Record,
}

/// One file, as it was read.
struct ReadFile {
    info: FileInfo,
    content: AlignedBuf,
    /// The number of its first record; none if no record was found.
    first: Option<LogSequence>,
    /// The records that follow each other from the start.
    found: Vec<Found>,
    /// Where they end.
    end: u64,
    /// What the records that were found behind a gap say.
    behind: Vec<Header>,
    /// Offsets of blocks that no copy could be read of.
    unreadable: Vec<u64>,
}

impl ReadFile {
    /// The number of the record that may follow.
    fn next(&self) -> LogSequence {
        LogSequence(self.first.unwrap_or_default().0 + self.found.len() as u64)
    }

    /// Whether a record may stand where the records end, and cannot be read.
    fn may_go_on(&self) -> bool {
        let rest = &self.content[self.end as usize..];
        let claimed = if rest.is_empty() { 0 } else { padded_len(claimed_body_len(rest)) };
        let first = self.end..self.end + claimed.min(padded_len(BODY_BYTES_MAX));
        self.unreadable.iter().any(|offset| first.contains(offset))
    }

    /// Whether records stood here that are all gone: a file is sealed behind its last one.
    fn has_rotted(&self) -> bool {
        self.first.is_none() && self.info.sealed.is_some_and(|sealed| sealed > 0)
    }

    /// Whether something is missing behind the last record, or may be. `after` begins with the record of that number.
    fn is_cut(&self, after: Option<LogSequence>) -> bool {
        let is_rotten = match after {
            // The next file was begun when all of this one was durable.
            Some(after) => self.next() != after,
            None => self.behind.iter().any(|header| header.durable_through >= self.next()),
        };
        is_rotten || self.info.sealed.is_some_and(|sealed| sealed != self.end) || self.may_go_on()
    }

    fn rotten(&self, store: &Store, what: &str) -> Error {
        Error::corrupt(format!(
            "{}: {what} at byte {} was durable and cannot be read from any copy; restore the file, or start once with \
             --accept-data-loss to go on with what came before it",
            store.locate(self.info.id, 0),
            self.end
        ))
    }

    fn unreadable(&self, store: &Store) -> Error {
        Error::io(format!(
            "{}: byte {} cannot be read from any copy, and the transaction log may go on there; bring the disk back, \
             or start once with --accept-data-loss to go on with what came before it",
            store.locate(self.info.id, 0),
            self.end
        ))
    }
}

/// Reads the transaction files of `store`, decides where the log ends and makes that durable.
///
/// # Errors
/// `Corrupt` where records that were durable cannot be read (`accept_data_loss`: goes on without them), `Io`.
pub async fn scan(store: &Store, accept_data_loss: bool) -> Result<ScannedLog> {
    let mut files = Vec::new();
    for info in store.list().into_iter().filter(|info| info.kind == FileKind::Transaction) {
        files.push(read_file(store, info).await?);
    }
    // A file without a single valid record holds nothing that anything depends on, unless it was sealed behind one.
    let (mut files, empty): (Vec<_>, Vec<_>) = files.into_iter().partition(|file| file.first.is_some());
    files.sort_by_key(|file| file.first);
    let decided = decide(store, &mut files, accept_data_loss);
    // Ids are in the order of the log: what is older than all that a replay needs was being deleted.
    let oldest = decided.is_ok().then(|| oldest_needed(&files)).flatten();
    for file in empty.iter().filter(|file| !accept_data_loss && oldest.is_none_or(|oldest| file.info.id > oldest)) {
        if file.may_go_on() {
            return Err(file.unreadable(store));
        }
        if file.has_rotted() {
            return Err(file.rotten(store, "the first record"));
        }
    }
    let left_out = decided?;
    let mut scanned = ScannedLog { next: LogSequence(1), ..ScannedLog::default() };
    for file in &files {
        reconcile_and_seal(store, file, &mut scanned).await?;
    }
    for file in empty.iter().chain(&left_out) {
        store.delete(file.info.id).await?;
    }
    collect(files, &mut scanned)?;
    Ok(scanned)
}

/// Leaves the files that count in `files`, which are in log order, and gives the others. Between two places where
/// something is missing is a stretch without a gap. The newest one that has all that its newest checkpoint needs is what
/// counts; what is missing behind it is a loss, which has to be accepted.
fn decide(store: &Store, files: &mut Vec<ReadFile>, accept_data_loss: bool) -> Result<Vec<ReadFile>> {
    let is_cut = |index: &usize| files[*index].is_cut(files.get(*index + 1).and_then(|after| after.first));
    let ends: Vec<usize> = (0..files.len()).filter(is_cut).map(|index| index + 1).collect();
    let starts = [0].into_iter().chain(ends.iter().copied());
    let stretches: Vec<Range<usize>> =
        starts.zip(ends.iter().copied().chain([files.len()])).map(|(start, end)| start..end).collect();
    let counts = |stretch: &&Range<usize>| stretch.start == 0 || oldest_needed(&files[(*stretch).clone()]).is_some();
    let Range { start, end } = stretches.iter().rfind(counts).cloned().unwrap_or_default();
    if ends.contains(&end) {
        let (file, expected) = (&files[end - 1], files[end - 1].next());
        if !accept_data_loss && !is_on("rotten-log-cut") {
            return Err(match file.may_go_on() {
                true => file.unreadable(store),
                false => file.rotten(store, &format!("transaction record {expected}")),
            });
        }
        tracing::error!(%expected, "accepting the loss of all transaction records from here on");
    }
    // Records behind a loss must never be taken for those that follow what is written from now on.
    let mut left_out = files.split_off(end);
    left_out.extend(files.drain(..start));
    Ok(left_out)
}

/// The first file that a replay over the newest checkpoint in `files` needs; none if that is not among them.
fn oldest_needed(files: &[ReadFile]) -> Option<FileId> {
    let start = files.iter().flat_map(|file| &file.found).rev().find_map(|found| match &found.record {
        Record::Checkpoint(checkpoint) => Some(checkpoint.replay_start()),
        _ => None,
    })?;
    files.iter().rfind(|file| file.first <= Some(start)).map(|file| file.info.id)
}

/// Brings all copies of a file to its decided content, and seals it there.
async fn reconcile_and_seal(store: &Store, file: &ReadFile, scanned: &mut ScannedLog) -> Result<()> {
    let info = &file.info;
    if info.sealed.is_some() {
        return Ok(());
    }
    if file.end == 0 {
        return store.delete(info.id).await;
    }
    if info.copies > 1 {
        for copy in 0..info.copies_wanted {
            scanned.repaired_copies += reconcile_copy(store, file, copy).await?;
        }
    }
    store.seal(info.id, file.end).await
}

/// Writes what differs in one copy; gives how many ranges did.
async fn reconcile_copy(store: &Store, file: &ReadFile, copy: u8) -> Result<u64> {
    let mut repaired = 0;
    let mut at = 0;
    while at < file.end {
        let len = READ_BYTES.min(file.end - at);
        let wanted = &file.content[at as usize..(at + len) as usize];
        let there = match store.read_copy(file.info.id, copy, at, len as usize).await {
            Ok(there) => Some(there),
            Err(error) if error.kind == base::ErrorKind::NotFound => return Ok(repaired),
            Err(_) => None,
        };
        if there.is_none_or(|there| there[..] != *wanted) {
            store.repair_copy(file.info.id, copy, at, AlignedBuf::copy_of(wanted).freeze()).await?;
            repaired += 1;
        }
        at += len;
    }
    Ok(repaired)
}

/// Finds the newest checkpoint and keeps what a replay from it needs.
fn collect(files: Vec<ReadFile>, scanned: &mut ScannedLog) -> Result<()> {
    let mut all = Vec::new();
    for file in files {
        scanned.torn_tail |= !file.behind.is_empty();
        if file.found.is_empty() {
            continue;
        }
        let said = file.found.iter().map(|found| found.header.durable_through).max();
        scanned.durable_through = scanned.durable_through.max(said.unwrap_or_default());
        scanned.files.push(LogFile { file: file.info.id, first: file.found[0].header.sequence });
        for Found { header, record } in file.found {
            if matches!(record, Record::Checkpoint(_)) {
                scanned.checkpoint_by = header.incarnation;
            }
            all.push((header.sequence, record));
        }
    }
    if let Some((last, _)) = all.last() {
        scanned.next = LogSequence(last.0 + 1);
    }
    let newest = all.iter().rposition(|(_, record)| matches!(record, Record::Checkpoint(_)));
    let Some(newest) = newest else {
        return match all.first() {
            None => Ok(()),
            Some((first, _)) => {
                Err(Error::corrupt(format!("the transaction log begins at record {first} without a checkpoint")))
            }
        };
    };
    let Record::Checkpoint(checkpoint) = all[newest].1.clone() else { unreachable!("found as a checkpoint") };
    let start = checkpoint.replay_start();
    if all[0].0 > start {
        return Err(Error::corrupt(format!(
            "the transaction log begins at record {}, but the newest checkpoint needs it from record {start}",
            all[0].0
        )));
    }
    scanned.durable_through = scanned.durable_through.max(checkpoint.decided_through);
    all.retain(|(sequence, record)| *sequence >= start && !matches!(record, Record::Checkpoint(_)));
    scanned.records = all;
    scanned.checkpoint = Some(checkpoint);
    Ok(())
}

/// Reads one file and finds every valid record in it, also those behind holes; a record that is bad in one copy is
/// taken from another.
async fn read_file(store: &Store, info: FileInfo) -> Result<ReadFile> {
    let len = info.sealed.unwrap_or(info.capacity);
    let (content, unreadable) = read_content(store, &info, None).await;
    let mut file = ReadFile { info, content, first: None, found: Vec::new(), end: 0, behind: Vec::new(), unreadable };
    let mut copies = None;
    let (mut offset, mut last) = (0, None);
    while offset < len {
        let is_next = |header: &Header| {
            header.sequence == last.map_or(header.first(), |last: LogSequence| LogSequence(last.0 + 1))
        };
        let found = match decode(&file.content[offset as usize..], file.info.id)? {
            Some(found) if is_next(&found.0) => Some(found),
            // A disk may have put another record here, where a copy still has the right one.
            Some(other) => from_other_copies(store, &mut file, &mut copies, offset, is_next).await?.or(Some(other)),
            None => from_other_copies(store, &mut file, &mut copies, offset, |_| true).await?,
        };
        let Some((header, record, len)) = found else {
            offset += BLOCK;
            continue;
        };
        last = Some(header.sequence);
        file.first = file.first.or(Some(header.first()));
        if offset == file.end && header.sequence == file.next() {
            file.end += len;
            file.found.push(Found { header, record });
        } else {
            file.behind.push(header);
        }
        offset += len;
    }
    Ok(file)
}

/// What a file holds, from one copy or from whichever is best, and the blocks that cannot be read.
async fn read_content(store: &Store, info: &FileInfo, copy: Option<u8>) -> (AlignedBuf, Vec<u64>) {
    let read = async |at: u64, len: u64| match copy {
        Some(copy) => store.read_copy(info.id, copy, at, len as usize).await,
        None => store.read(info.id, at, len as usize).await,
    };
    let len = info.sealed.unwrap_or(info.capacity);
    let mut content = AlignedBuf::with_capacity(len as usize);
    let (mut unreadable, mut at) = (Vec::new(), 0);
    while at < len {
        let part = READ_BYTES.min(len - at);
        match read(at, part).await {
            Ok(bytes) => content.extend_from_slice(&bytes),
            // Not all of it; there is no such copy, or nobody has one.
            Err(error) if info.copies == 0 || error.kind == ErrorKind::NotFound => {
                content.extend_zeros(part as usize);
                unreadable.extend((at..at + part).step_by(BLOCK as usize));
            }
            Err(error) => {
                tracing::warn!(file = %info.id, at, %error, "a part of a transaction file cannot be read");
                for offset in (at..at + part).step_by(BLOCK as usize) {
                    match read(offset, BLOCK).await {
                        Ok(bytes) => content.extend_from_slice(&bytes),
                        Err(_) => {
                            content.extend_zeros(BLOCK as usize);
                            unreadable.push(offset);
                        }
                    }
                }
            }
        }
        at += part;
    }
    (content, unreadable)
}

/// Looks for a record that `fits` at `offset` in each single copy, and puts its bytes into the content. The copies are
/// read when they are first needed, as wholes: at the end of each file nothing is found in any of its blocks.
async fn from_other_copies(
    store: &Store,
    file: &mut ReadFile,
    copies: &mut Option<Vec<AlignedBuf>>,
    offset: u64,
    fits: impl Fn(&Header) -> bool,
) -> Result<Option<(Header, Record, u64)>> {
    if file.info.copies <= 1 {
        return Ok(None);
    }
    let copies = match copies {
        Some(copies) => copies,
        None => {
            let mut all = Vec::new();
            for copy in 0..file.info.copies_wanted {
                all.push(read_content(store, &file.info, Some(copy)).await.0);
            }
            copies.insert(all)
        }
    };
    for copy in copies {
        let rest = &copy[offset as usize..];
        if let Some(found) = decode(rest, file.info.id)?.filter(|found| fits(&found.0)) {
            let len = found.2 as usize;
            file.content[offset as usize..offset as usize + len].copy_from_slice(&rest[..len]);
            return Ok(Some(found));
        }
    }
    Ok(None)
}
