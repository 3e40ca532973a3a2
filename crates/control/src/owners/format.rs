//! The bytes of the table of owners: docs/formats/owners.md.

use base::checksum::{crc32c, crc32c_append};
use base::units::round_up;
use base::{BLOCK, Epoch, Error, FileId, Generation, Incarnation, LogSequence, MIB, Result, SegmentId, Term, VolumeId};
use policies::ownership::Change;

use super::tables::{Entry, Tables};
use crate::table::format as volumes;

/// The first bytes of every record.
pub const MAGIC: [u8; 8] = *b"LEVEEOT\0";
/// The version that is written, and the only one that is read.
pub const VERSION: u16 = 1;
/// Length of a record's header in bytes.
pub const HEADER: usize = 64;
/// Longest body of a record, in bytes.
pub const BODY_MAX: usize = MIB as usize - HEADER;
/// The numbers of changes of the volume table.
const VOLUMES: u32 = 21;
const NEXT_VOLUME: u32 = 22;
/// Most bytes of one change.
const CHANGE_MAX: usize = 8 + volumes::CHANGE_MAX;
// The longest of the others has the name of a server.
const _: () = assert!(CHANGE_MAX >= 24 + base::limits::SERVER_NAME_MAX);

/// What a record says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The file that it was written to.
    pub file: FileId,
    /// The life of the process that wrote it.
    pub incarnation: Incarnation,
    /// Its place in the table's history: one more than that of the record before.
    pub sequence: LogSequence,
    /// The last record that was durable when this one was written.
    pub durable_through: LogSequence,
    /// The term of the manager that wrote it.
    pub term: Term,
}

/// What the changes of a record are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A part of the table: the first records of every file, up to one that ends with a floor.
    Checkpoint,
    /// What was decided together, and is so or not.
    Changes,
}

/// A record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// What it says of itself.
    pub header: Header,
    /// What its changes are.
    pub kind: Kind,
    /// At least one.
    pub changes: Vec<Entry>,
}

/// What a reader finds at a place.
#[derive(Debug)]
pub enum Found {
    /// A record that is intact, and its length in the file with padding.
    Record(Record, u64),
    /// Nothing that is intact: never written, torn or rotten.
    Nothing,
}

/// `changes` in pieces that fit a record each.
pub fn pieces(changes: &[Entry]) -> impl Iterator<Item = &[Entry]> {
    changes.chunks(BODY_MAX / CHANGE_MAX)
}

/// What the records of a checkpoint hold, in order.
pub fn checkpoint(tables: &Tables) -> Vec<Vec<Entry>> {
    pieces(&tables.history()).map(<[Entry]>::to_vec).collect()
}

/// Whether a record can have these changes.
pub fn fits(changes: &[Entry]) -> bool {
    if changes.len() <= BODY_MAX / CHANGE_MAX {
        return true;
    }
    let mut bytes = vec![];
    changes.iter().for_each(|change| put_entry(&mut bytes, change));
    bytes.len() <= BODY_MAX
}

/// The bytes of a record, padded with zeros to a multiple of 4 KiB.
///
/// # Panics
/// It has more changes than [`fits`]: a bug.
pub fn encode(record: &Record) -> Vec<u8> {
    let header = &record.header;
    let kind: u16 = match record.kind {
        Kind::Checkpoint => 1,
        Kind::Changes => 2,
    };
    let mut bytes = vec![0; HEADER];
    record.changes.iter().for_each(|change| put_entry(&mut bytes, change));
    assert!(bytes.len() - HEADER <= BODY_MAX, "a record of {} changes", record.changes.len());
    let body_len = (bytes.len() - HEADER) as u32;
    bytes[0..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[10..12].copy_from_slice(&kind.to_le_bytes());
    bytes[12..16].copy_from_slice(&body_len.to_le_bytes());
    bytes[16..24].copy_from_slice(&header.file.0.to_le_bytes());
    bytes[24..32].copy_from_slice(&header.incarnation.0.to_le_bytes());
    bytes[32..40].copy_from_slice(&header.sequence.0.to_le_bytes());
    bytes[40..48].copy_from_slice(&header.durable_through.0.to_le_bytes());
    bytes[48..52].copy_from_slice(&header.term.0.to_le_bytes());
    bytes.resize(round_up(bytes.len() as u64, BLOCK) as usize, 0);
    let checksum = checksum(&bytes);
    bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Reads the record at the start of `bytes` if it is one of `file` and intact.
///
/// # Errors
/// `Corrupt` for a record whose checksum is right and whose content makes no sense, `Invalid` for one of a newer Levee.
pub fn decode(file: FileId, bytes: &[u8]) -> Result<Found> {
    if bytes.len() < HEADER || bytes[0..8] != MAGIC {
        return Ok(Found::Nothing);
    }
    let mut fields = Reader(&bytes[8..HEADER]);
    let (version, kind, body_len) = (fields.u16()?, fields.u16()?, fields.u32()? as usize);
    let header = Header {
        file: FileId(fields.u64()?),
        incarnation: Incarnation(fields.u64()?),
        sequence: LogSequence(fields.u64()?),
        durable_through: LogSequence(fields.u64()?),
        term: Term(fields.u32()?),
    };
    let (read_only_compatible, incompatible, reserved, sum) =
        (fields.u16()?, fields.u16()?, fields.u32()?, fields.u32()?);
    let padded_len = round_up((HEADER + body_len) as u64, BLOCK);
    if header.file != file || body_len > BODY_MAX || padded_len > bytes.len() as u64 {
        return Ok(Found::Nothing);
    }
    if checksum(&bytes[..padded_len as usize]) != sum {
        return Ok(Found::Nothing);
    }
    if version != VERSION || incompatible != 0 || read_only_compatible != 0 || reserved != 0 {
        return Err(Error::invalid(format!(
            "the table of owners was written in format {version} (flags {read_only_compatible:#x}, {incompatible:#x}), \
             this Levee knows format {VERSION}: start the version that wrote it"
        )));
    }
    let kind = match kind {
        1 => Kind::Checkpoint,
        2 => Kind::Changes,
        _ => return Err(Error::corrupt(format!("a record of the table of owners has the unknown kind {kind}"))),
    };
    let mut rest = Reader(&bytes[HEADER..HEADER + body_len]);
    let mut changes = vec![];
    while !rest.0.is_empty() {
        changes.push(rest.entry()?);
    }
    match changes.is_empty() {
        true => Err(Error::corrupt("a record of the table of owners has no changes")),
        false => Ok(Found::Record(Record { header, kind, changes }, padded_len)),
    }
}

/// The checksum of a record, padding included, over everything but the checksum itself.
fn checksum(record: &[u8]) -> u32 {
    crc32c_append(crc32c(&record[..60]), &record[HEADER..])
}

fn put_entry(bytes: &mut Vec<u8>, entry: &Entry) {
    match entry {
        Entry::Owners(change) => put_change(bytes, change),
        Entry::Volumes(change) => {
            bytes.extend_from_slice(&VOLUMES.to_le_bytes());
            let length = bytes.len();
            bytes.extend_from_slice(&[0; 4]);
            volumes::put_change(bytes, change);
            let len = (bytes.len() - length - 4) as u32;
            bytes[length..length + 4].copy_from_slice(&len.to_le_bytes());
        }
        Entry::NextVolume(next) => {
            bytes.extend_from_slice(&NEXT_VOLUME.to_le_bytes());
            bytes.extend_from_slice(&[0; 4]);
            bytes.extend_from_slice(&next.0.to_le_bytes());
        }
    }
}

fn put_change(bytes: &mut Vec<u8>, change: &Change) {
    let mut put = |number: u32, index: u32, values: &[u64]| {
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&index.to_le_bytes());
        values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
    };
    match change {
        Change::Term(term) => put(1, term.0, &[]),
        Change::Floor { engine, epoch } => put(2, 0, &[engine.0, epoch.0]),
        Change::Engine { engine, server } => {
            put(3, server.len() as u32, &[engine.0]);
            bytes.extend_from_slice(server.as_bytes());
        }
        Change::Drain { server, is_drained } => {
            put(if *is_drained { 4 } else { 5 }, server.len() as u32, &[]);
            bytes.extend_from_slice(server.as_bytes());
        }
        Change::Declare(engine) => put(6, 0, &[engine.0]),
        Change::Fenced(engine) => put(7, 0, &[engine.0]),
        Change::Recoverer { dead, recoverer } => put(8, 0, &[dead.0, recoverer.0]),
        Change::Recovered(engine) => put(9, 0, &[engine.0]),
        Change::Delete(engine) => put(10, 0, &[engine.0]),
        Change::Create { volume, segments } => put(11, *segments, &[volume.0]),
        Change::Attach { volume, generation } => put(12, 0, &[volume.0, generation.0]),
        Change::Attached { volume, generation } => put(13, 0, &[volume.0, generation.0]),
        Change::Drop(volume) => put(14, 0, &[volume.0]),
        Change::Forget(volume) => put(15, 0, &[volume.0]),
        Change::Assign { segment, epoch, engine } => put(16, segment.index, &[segment.volume.0, epoch.0, engine.0]),
        Change::Revoke { segment, epoch } => put(17, segment.index, &[segment.volume.0, epoch.0]),
        Change::Released { segment, epoch } => put(18, segment.index, &[segment.volume.0, epoch.0]),
        Change::Adopted { segment, epoch } => put(19, segment.index, &[segment.volume.0, epoch.0]),
        Change::Dropped { segment, epoch } => put(20, segment.index, &[segment.volume.0, epoch.0]),
    }
}

/// Takes bytes apart; every step may find that there are too few.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn slice(&mut self, len: usize) -> Result<&'a [u8]> {
        let short = || Error::corrupt("a record of the table of owners is shorter than what it holds");
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.slice(N)?);
        Ok(array)
    }

    fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn server(&mut self, len: u32) -> Result<String> {
        let text = std::str::from_utf8(self.slice(len as usize)?);
        text.map(str::to_owned).map_err(|_| Error::corrupt("the name of a server in the table of owners is not UTF-8"))
    }

    fn segment(&mut self, index: u32) -> Result<(SegmentId, Epoch)> {
        Ok((SegmentId { volume: VolumeId(self.u64()?), index }, Epoch(self.u64()?)))
    }

    fn attachment(&mut self) -> Result<(VolumeId, Generation)> {
        Ok((VolumeId(self.u64()?), Generation(self.u64()?)))
    }

    fn engine(&mut self) -> Result<Incarnation> {
        self.u64().map(Incarnation)
    }

    fn entry(&mut self) -> Result<Entry> {
        let (number, index) = (self.u32()?, self.u32()?);
        Ok(match number {
            VOLUMES => Entry::Volumes(volumes::read_change(self.slice(index as usize)?)?),
            NEXT_VOLUME if index == 0 => Entry::NextVolume(VolumeId(self.u64()?)),
            _ => Entry::Owners(self.change(number, index)?),
        })
    }

    fn change(&mut self, number: u32, index: u32) -> Result<Change> {
        let uses_index = matches!(number, 1 | 3 | 4 | 5 | 11 | 16..=20);
        if index != 0 && !uses_index {
            return Err(Error::corrupt("a change in the table of owners uses bytes that format 1 reserves"));
        }
        Ok(match number {
            1 => Change::Term(Term(index)),
            2 => Change::Floor { engine: self.engine()?, epoch: Epoch(self.u64()?) },
            3 => Change::Engine { engine: self.engine()?, server: self.server(index)? },
            4 => Change::Drain { server: self.server(index)?, is_drained: true },
            5 => Change::Drain { server: self.server(index)?, is_drained: false },
            6 => Change::Declare(self.engine()?),
            7 => Change::Fenced(self.engine()?),
            8 => Change::Recoverer { dead: self.engine()?, recoverer: self.engine()? },
            9 => Change::Recovered(self.engine()?),
            10 => Change::Delete(self.engine()?),
            11 => Change::Create { volume: VolumeId(self.u64()?), segments: index },
            12 => {
                let (volume, generation) = self.attachment()?;
                Change::Attach { volume, generation }
            }
            13 => {
                let (volume, generation) = self.attachment()?;
                Change::Attached { volume, generation }
            }
            14 => Change::Drop(VolumeId(self.u64()?)),
            15 => Change::Forget(VolumeId(self.u64()?)),
            16..=20 => {
                let (segment, epoch) = self.segment(index)?;
                match number {
                    16 => Change::Assign { segment, epoch, engine: self.engine()? },
                    17 => Change::Revoke { segment, epoch },
                    18 => Change::Released { segment, epoch },
                    19 => Change::Adopted { segment, epoch },
                    _ => Change::Dropped { segment, epoch },
                }
            }
            _ => return Err(Error::corrupt(format!("the table of owners has the unknown change {number}"))),
        })
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
pub(super) mod tests;
