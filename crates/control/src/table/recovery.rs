//! What the log of the volume table says, read without changing anything.
//!
//! Intuition: the writer has one append in flight, so a record proves that everything before it was durable. Reading
//! a file from its start, the first place where no copy holds the next record is its end, and it is a **torn** (or
//! never written) tail if nothing of this file follows; if a record follows, what is missing was acknowledged and
//! has **rotted**: then we stop and say so. A file that was sealed has no torn tail: it is sealed at a clean stop, and
//! at the end that an earlier recovery chose, and every record up to there counts.
//!
//! A new file is taken into use only when every older one is gone. So while an older file is there, a newer one whose
//! checkpoint is not intact was never in use; and a file whose checkpoint is intact makes every older one void.

use std::collections::BTreeSet;

use base::{AlignedBuf, BLOCK, Error, ErrorKind, FileId, LogSequence, Result, VolumeId};
use files::{FileInfo, FileKind, Store};

use super::VolumeTable;
use super::format::{self, Body, Found, Header};

/// A block of one copy that is not what another copy holds there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadCopy {
    /// The file.
    pub file: FileId,
    /// Which copy.
    pub copy: u8,
    /// Where the record begins, in bytes.
    pub offset: u64,
    /// Its length with padding, in bytes.
    pub len: u64,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Recovered {
    /// The table.
    pub table: VolumeTable,
    /// The last record of its history; zero for a store without one.
    pub sequence: LogSequence,
    /// The file that the table was read from, and the end of its last record.
    pub source: Option<(FileId, u64)>,
    /// Records that one copy has lost and another still holds.
    pub bad_copies: Vec<BadCopy>,
    /// Records that were read and are intact, the checkpoint among them.
    pub intact_records: u64,
    /// Records that are lost, where this was accepted.
    pub lost_records: u64,
}

/// Reads the table from the files of `store`. With `accept_loss`, records that have rotted are skipped.
///
/// # Errors
/// `Corrupt` where an acknowledged record is lost, with the file and the override; `Io` where it cannot be read;
/// `Invalid` for a format of a newer Levee.
pub async fn recover(store: &Store, accept_loss: bool) -> Result<Recovered> {
    let mut files: Vec<FileInfo> = store.list().into_iter().filter(|info| info.kind == FileKind::Log).collect();
    files.sort_by_key(|info| (info.incarnation, info.id));
    let mut rotten = None;
    for info in files.iter().rev() {
        match replay(store, info, accept_loss).await? {
            Replay::Table(recovered) => return Ok(recovered),
            Replay::NoCheckpoint { was_in_use: false } => {}
            Replay::NoCheckpoint { was_in_use: true } => rotten = rotten.or(Some(info)),
        }
        // If it was not in use, the older file is the table.
        if rotten.is_some() {
            break;
        }
    }
    // The table is opened before anything else makes a file: one that crashed before its first checkpoint is alone.
    let was_used = store.list().iter().any(|info| info.kind != FileKind::Log);
    match rotten.or(files.last().filter(|_| was_used)) {
        Some(info) => Err(Error::corrupt(format!(
            "the volume table in {} has lost its checkpoint: the names and sizes of the volumes are in no other file; \
             bring back a copy of this file",
            store.locate(info.id, 0)
        ))),
        None if was_used => Err(Error::corrupt(
            "the store holds data but no volume table: a directory of the store is missing; start with all of them",
        )),
        None => Ok(Recovered::default()),
    }
}

/// Why a store does not start that has something of `volumes`, which its table says were never created
/// ([`VolumeTable::never_created`]).
pub fn creation_lost(volumes: &BTreeSet<VolumeId>) -> Error {
    let ids: Vec<String> = volumes.iter().map(|volume| volume.0.to_string()).collect();
    Error::corrupt(format!(
        "the store has data under the volume id {}, which the volume table never gave out: a disk has lost what was \
         acknowledged; restore the store from a backup, or start once with --accept-data-loss to go on without that \
         data, which is deleted then",
        ids.join(" and ")
    ))
}

enum Replay {
    Table(Recovered),
    /// It was in use if records follow, or if it was sealed: then its checkpoint has rotted.
    NoCheckpoint {
        was_in_use: bool,
    },
}

async fn replay(store: &Store, info: &FileInfo, accept_loss: bool) -> Result<Replay> {
    let image = Image::read(store, info).await?;
    let mut bad_copies = Vec::new();
    let Some((header, body, end)) = image.record_at(0, LogSequence(0), &mut bad_copies)? else {
        image.check_readable(store, 0)?;
        let was_in_use =
            image.len > 0 && (info.sealed.is_some() || image.next_record(BLOCK, LogSequence(0))?.is_some());
        return Ok(Replay::NoCheckpoint { was_in_use });
    };
    let Body::Checkpoint(table) = body else {
        return Err(image.corrupt(store, 0, "does not begin with a checkpoint"));
    };
    let mut found = Recovered { table, sequence: header.sequence, intact_records: 1, ..Recovered::default() };
    let mut at = end;
    while at < image.len {
        let record = match image.record_at(at, found.sequence, &mut bad_copies)? {
            None => image.stray(at + BLOCK, found.sequence, &mut bad_copies)?,
            record => record,
        };
        match record {
            Some((header, body, len)) => {
                found.intact_records += 1;
                found.apply(store, &image, at, &header, body, accept_loss)?;
                at += len;
            }
            None => match image.next_record(at + BLOCK, found.sequence)? {
                None if info.sealed.is_none() => {
                    image.check_readable(store, at)?;
                    break;
                }
                later if !accept_loss => {
                    let proof = if later.is_some() { "later ones are intact" } else { "the file was sealed behind it" };
                    return Err(image.corrupt(
                        store,
                        at,
                        &format!(
                            "has lost an acknowledged record there ({proof}); bring back another copy of the file, or \
                             start with --accept-data-loss to go on without it"
                        ),
                    ));
                }
                Some(later) => at = later,
                None => {
                    found.lose((image.len - at) / BLOCK);
                    at = image.len;
                }
            },
        }
    }
    found.source = Some((info.id, at));
    found.bad_copies = bad_copies;
    Ok(Replay::Table(found))
}

impl Recovered {
    /// So many records are lost, at most. Each may have created a volume, whose id must not be given out again.
    fn lose(&mut self, records: u64) {
        (0..records).for_each(|_| self.table.burn_id());
        self.lost_records += records;
        self.sequence.0 += records;
    }

    fn apply(
        &mut self,
        store: &Store,
        image: &Image,
        at: u64,
        header: &Header,
        body: Body,
        accept_loss: bool,
    ) -> Result<()> {
        let Body::Change(change) = body else {
            return Err(image.corrupt(store, at, "has a second checkpoint there"));
        };
        let gap = header.sequence.0.saturating_sub(self.sequence.0 + 1);
        let is_next = header.sequence > self.sequence && (gap == 0 || accept_loss);
        if !is_next {
            return Err(image.corrupt(store, at, "has a record out of order there"));
        }
        self.lose(gap);
        self.sequence = header.sequence;
        match self.table.check(&change) {
            Ok(()) => self.table.apply(change),
            // What a lost record had prepared.
            Err(_) if self.lost_records > 0 => self.lost_records += 1,
            Err(error) => return Err(error.context(store.locate(image.info.id, 0))),
        }
        Ok(())
    }
}

/// All copies of one file in memory. A block that could not be read is `None`.
struct Image<'a> {
    info: &'a FileInfo,
    len: u64,
    copies: Vec<(u8, Vec<u8>, Vec<bool>)>,
}

impl<'a> Image<'a> {
    async fn read(store: &Store, info: &'a FileInfo) -> Result<Image<'a>> {
        let len = info.sealed.unwrap_or(info.capacity);
        let mut copies = Vec::new();
        for copy in 0..info.copies_wanted {
            match store.read_copy(info.id, copy, 0, len as usize).await {
                Ok(bytes) => copies.push((copy, bytes.to_vec(), vec![true; (len / BLOCK) as usize])),
                Err(error) if error.kind == ErrorKind::NotFound => {}
                Err(_) => copies.push(read_blocks(store, info, copy, len).await),
            }
        }
        match copies.is_empty() && len > 0 {
            true => Err(Error::io(format!("no copy of the volume table in {} can be read", store.locate(info.id, 0)))),
            false => Ok(Image { info, len, copies }),
        }
    }

    /// The intact record at `at`, from whichever copy has it; the copies that do not are noted. A disk may have put an
    /// older record there, or one that belongs further back: the next one behind `after` is what counts.
    fn record_at(
        &self,
        at: u64,
        after: LogSequence,
        bad_copies: &mut Vec<BadCopy>,
    ) -> Result<Option<(Header, Body, u64)>> {
        let mut found: Option<(u8, Header, Body, u64)> = None;
        for (copy, bytes, _) in &self.copies {
            if let Found::Record(header, body, len) = format::decode(self.info.id, &bytes[at as usize..])?
                && header.sequence > after
                && found.as_ref().is_none_or(|(_, best, ..)| header.sequence < best.sequence)
            {
                found = Some((*copy, header, body, len));
            }
        }
        let Some((good, header, body, len)) = found else { return Ok(None) };
        let range = at as usize..(at + len) as usize;
        let content =
            |wanted: u8| self.copies.iter().find(|(copy, ..)| *copy == wanted).map(|(_, b, _)| &b[range.clone()]);
        for (copy, ..) in &self.copies {
            if content(*copy) != content(good) {
                bad_copies.push(BadCopy { file: self.info.id, copy: *copy, offset: at, len });
            }
        }
        Ok(Some((header, body, len)))
    }

    /// The record behind `after`, if a disk has put it further back than it belongs: at `from` or later.
    fn stray(
        &self,
        from: u64,
        after: LogSequence,
        bad_copies: &mut Vec<BadCopy>,
    ) -> Result<Option<(Header, Body, u64)>> {
        for at in (from..self.len).step_by(BLOCK as usize) {
            for (copy, bytes, _) in &self.copies {
                match format::decode(self.info.id, &bytes[at as usize..])? {
                    Found::Record(header, body, len) if header.sequence.0 == after.0 + 1 => {
                        bad_copies.push(BadCopy { file: self.info.id, copy: *copy, offset: at, len });
                        return Ok(Some((header, body, len)));
                    }
                    _ => {}
                }
            }
        }
        Ok(None)
    }

    /// Where the next intact record from `from` on begins that proves that the one behind `after` was written.
    fn next_record(&self, from: u64, after: LogSequence) -> Result<Option<u64>> {
        for at in (from..self.len).step_by(BLOCK as usize) {
            for (_, bytes, _) in &self.copies {
                match format::decode(self.info.id, &bytes[at as usize..])? {
                    Found::Record(header, ..) if header.sequence.0 > after.0 + 1 => return Ok(Some(at)),
                    _ => {}
                }
            }
        }
        Ok(None)
    }

    /// Refuses an end that is only an end because the disk did not give the block.
    fn check_readable(&self, store: &Store, at: u64) -> Result<()> {
        let block = (at / BLOCK) as usize;
        match self.copies.iter().find(|(_, _, readable)| readable.get(block) == Some(&false)) {
            None => Ok(()),
            Some((copy, ..)) => Err(Error::io(format!(
                "the volume table in {} cannot be read at {at}: the disk fails",
                store.locate(self.info.id, *copy)
            ))),
        }
    }

    fn corrupt(&self, store: &Store, at: u64, what: &str) -> Error {
        Error::corrupt(format!("the volume table in {}, at {at}, {what}", store.locate(self.info.id, 0)))
    }
}

/// Block by block, where the copy could not be read in one piece.
async fn read_blocks(store: &Store, info: &FileInfo, copy: u8, len: u64) -> (u8, Vec<u8>, Vec<bool>) {
    let mut bytes = Vec::with_capacity(len as usize);
    let mut readable = Vec::new();
    for at in (0..len).step_by(BLOCK as usize) {
        let block = store.read_copy(info.id, copy, at, BLOCK as usize).await;
        readable.push(block.is_ok());
        bytes.extend_from_slice(&block.unwrap_or_else(|_| AlignedBuf::zeroed(BLOCK as usize)));
    }
    (copy, bytes, readable)
}
