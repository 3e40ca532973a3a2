//! Bytes of a transaction record: see `docs/formats/transaction.md`.
//!
//! A record is a header of [`HEADER_BYTES`], a body, and zeros up to the next 4 KiB: a device block never holds
//! parts of two records (SAFETY: never rewrite a block with acknowledged bytes). One CRC-32C covers header and body.

use base::checksum::crc32c_append;
use base::units::round_up;
use base::{
    AlignedBuf, BLOCK, Epoch, Error, FileId, Generation, Incarnation, LogSequence, Result, SegmentSequence,
    SnapshotNumber, VolumeId, WriteSequence, WriteStamp,
};
use bytes::BufMut;

use super::fields::{Fields, put_count, put_segment};
use super::format::{Checkpoint, Record, SegmentCheckpoint, Tenure};
use crate::index::{Entry, Mapping, SegmentTables, TableInfo, Version};
use crate::journal::JournalPosition;

/// Bytes of a record's header.
pub const HEADER_BYTES: usize = 64;
/// Longest body that is believed: a checkpoint of 40,000 segments has about 8 MiB.
pub const BODY_BYTES_MAX: usize = 64 << 20;

const MAGIC: u32 = u32::from_le_bytes(*b"LvTx");
const VERSION: u16 = 1;
/// Where the checksum stands in the header.
const CRC_AT: usize = 12;
const ENTRY_BYTES: usize = 48;

/// The kind of a checkpoint, and its flags. It begins with the key of labels: who does not know labels would lose
/// large writes, and refuses such a log. Its segments have a tenure, and those that were released follow: who does not
/// know that would take them for its own.
const CHECKPOINT: u16 = 8;
const WITH_LABELS: u32 = 1;
const WITH_TENURE: u32 = 2;

/// The shortest form of a segment in a checkpoint.
const SEGMENT_BYTES_MIN: usize = 56;

const MAPPING_DATA: u8 = 1;
const MAPPING_ZEROS: u8 = 2;

/// What a record's header says besides the body: its place and what was durable when it was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The file that it was written to.
    pub file: FileId,
    /// The life of the server that wrote it.
    pub incarnation: Incarnation,
    /// Its number: one above the record before it, across files and incarnations.
    pub sequence: LogSequence,
    /// Every record up to this one was complete (large writes with their data) when this one was written.
    pub durable_through: LogSequence,
    /// Records before it in its file.
    pub index: u32,
}

impl Header {
    /// The sequence of the first record of its file.
    pub fn first(&self) -> LogSequence {
        LogSequence(self.sequence.0 - u64::from(self.index))
    }
}

/// The bytes of `record`'s body.
pub fn encode_body(record: &Record) -> Vec<u8> {
    let mut out = Vec::new();
    match record {
        Record::Dump { segment, epoch, through, replay, entries } => {
            put_segment(&mut out, *segment);
            out.put_u64_le(epoch.0);
            out.put_u64_le(through.0);
            put_position(&mut out, replay.as_ref());
            put_entries(&mut out, entries);
        }
        Record::Large { segment, epoch, sequence, stamp, block, file, offset, checksums } => {
            put_segment(&mut out, *segment);
            out.put_u64_le(epoch.0);
            out.put_u64_le(sequence.0);
            put_stamp(&mut out, stamp);
            out.put_u64_le(file.0);
            out.put_u64_le(*offset);
            out.put_u32_le(*block);
            put_count(&mut out, checksums.len());
            // The place of an algorithm id, a key id and a stored length.
            out.put_u64_le(0);
            checksums.iter().for_each(|&sum| out.put_u32_le(sum));
        }
        Record::Relocate { segment, epoch, entries } => {
            put_segment(&mut out, *segment);
            out.put_u64_le(epoch.0);
            put_entries(&mut out, entries);
        }
        Record::TableSet { segment, added, removed, covers } => {
            put_segment(&mut out, *segment);
            out.put_u64_le(covers.0);
            put_count(&mut out, added.len());
            put_count(&mut out, removed.len());
            added.iter().for_each(|table| out.put_slice(&table.encode()));
            removed.iter().for_each(|file| out.put_u64_le(file.0));
        }
        Record::DataFile { segment, file } | Record::DropFile { segment, file } => {
            put_segment(&mut out, *segment);
            out.put_u64_le(file.0);
        }
        Record::DropVolume { volume } => out.put_u64_le(volume.0),
        Record::DropJournal { file } => out.put_u64_le(file.0),
        Record::Create { segment, epoch, generation } => {
            put_segment(&mut out, *segment);
            put_tenure(&mut out, &Tenure { epoch: *epoch, generation: *generation });
        }
        Record::Adopt { source, segment } => {
            out.put_u64_le(source.0);
            put_segment_checkpoint(&mut out, segment, true);
        }
        Record::Release(segment) => put_segment_checkpoint(&mut out, segment, true),
        Record::DropSegment { segment, epoch } => {
            put_segment(&mut out, *segment);
            out.put_u64_le(epoch.0);
        }
        Record::Attach { volume, generation } => {
            out.put_u64_le(volume.0);
            out.put_u64_le(generation.0);
        }
        Record::Checkpoint(checkpoint) => put_checkpoint(&mut out, checkpoint),
    }
    assert!(out.len() <= BODY_BYTES_MAX, "a record of {} bytes", out.len());
    out
}

/// The length in the file of a record whose body has `body_len` bytes.
pub fn padded_len(body_len: usize) -> u64 {
    round_up((HEADER_BYTES + body_len) as u64, BLOCK)
}

/// A whole record, padded, ready for the disk.
pub fn encode(header: &Header, kind: Kind, body: &[u8]) -> AlignedBuf {
    let mut out = AlignedBuf::with_capacity(padded_len(body.len()) as usize);
    encode_behind(&mut out, header, kind, body);
    out
}

/// The same, behind the records that `out` has.
pub fn encode_behind(out: &mut AlignedBuf, header: &Header, kind: Kind, body: &[u8]) {
    let mut head = Vec::with_capacity(HEADER_BYTES);
    head.put_u32_le(MAGIC);
    head.put_u16_le(VERSION);
    head.put_u16_le(kind.number);
    head.put_u32_le(kind.incompatible);
    head.put_u32_le(0); // checksum, below
    head.put_u64_le(header.file.0);
    head.put_u64_le(header.incarnation.0);
    head.put_u64_le(header.sequence.0);
    head.put_u64_le(header.durable_through.0);
    head.put_u32_le(body.len() as u32);
    head.put_u32_le(0); // compatible feature flags
    head.put_u32_le(0); // read-only-compatible feature flags
    head.put_u32_le(header.index);
    let crc = crc32c_append(crc32c_append(0, &head), body);
    head[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(body);
    out.pad_to(BLOCK as usize);
}

/// Reads the record at the start of `bytes`, which must have been written to `file`: its header, itself, and its
/// length in the file. `None` if there is no whole valid one: zeros, another file's bytes, a torn or rotten record.
///
/// # Errors
/// `Invalid`: a whole valid record that this version does not understand, or that makes no sense. It must not be
/// taken for a torn one.
pub fn decode(bytes: &[u8], file: FileId) -> Result<Option<(Header, Record, u64)>> {
    let Some((fixed, body)) = checked(bytes, file) else { return Ok(None) };
    let header = fixed.header;
    let not_understood = |what: &str| {
        Error::invalid(format!(
            "transaction record {} of file {file} has {what}: it was written by a later version, start that one",
            header.sequence
        ))
    };
    if fixed.version != VERSION {
        return Err(not_understood(&format!("version {}", fixed.version)));
    }
    let known = if fixed.kind == CHECKPOINT { WITH_LABELS | WITH_TENURE } else { 0 };
    if fixed.incompatible & !known != 0 || fixed.read_only_compatible != 0 {
        return Err(not_understood("feature flags that this version does not know"));
    }
    let kind = Kind { number: fixed.kind, incompatible: fixed.incompatible };
    let record = decode_body(kind, body).ok_or_else(|| not_understood("unknown content"))?;
    if header.durable_through >= header.sequence || u64::from(header.index) >= header.sequence.0 {
        return Err(not_understood("an unknown header"));
    }
    Ok(Some((header, record, padded_len(body.len()))))
}

/// The fields of a header whose checksum is right.
struct Fixed {
    header: Header,
    version: u16,
    kind: u16,
    incompatible: u32,
    read_only_compatible: u32,
}

/// Header and body at the start of `bytes`, if the checksum and the file are right.
fn checked(bytes: &[u8], file: FileId) -> Option<(Fixed, &[u8])> {
    let head: [u8; HEADER_BYTES] = *bytes.first_chunk()?;
    let mut fields = Fields(&head);
    if fields.u32()? != MAGIC {
        return None;
    }
    let (version, kind, incompatible, crc) = (fields.u16()?, fields.u16()?, fields.u32()?, fields.u32()?);
    let mut header = Header {
        file: fields.file()?,
        incarnation: Incarnation(fields.u64()?),
        sequence: fields.log_sequence()?,
        durable_through: fields.log_sequence()?,
        index: 0,
    };
    let body_len = fields.u32()? as usize;
    let (_compatible, read_only_compatible) = (fields.u32()?, fields.u32()?);
    header.index = fields.u32()?;
    if header.file != file || body_len > BODY_BYTES_MAX {
        return None;
    }
    let body = bytes.get(HEADER_BYTES..HEADER_BYTES + body_len)?;
    let mut unsummed = head;
    unsummed[CRC_AT..CRC_AT + 4].fill(0);
    let intact = crc32c_append(crc32c_append(0, &unsummed), body) == crc;
    intact.then_some((Fixed { header, version, kind, incompatible, read_only_compatible }, body))
}

/// The length of the body that the header at the start of `bytes` claims; nothing is verified. Zero where there are
/// fewer bytes than a header has.
pub fn claimed_body_len(bytes: &[u8]) -> usize {
    match bytes.get(48..52) {
        Some(&[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]) as usize,
        _ => 0,
    }
}

/// What a record is, on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind {
    /// Its number.
    number: u16,
    /// Its incompatible feature flags.
    incompatible: u32,
}

/// What `record` is, on disk.
pub fn kind_of(record: &Record) -> Kind {
    let incompatible = match record {
        Record::Checkpoint(Checkpoint { released: Some(_), .. }) => WITH_LABELS | WITH_TENURE,
        Record::Checkpoint(_) => WITH_LABELS,
        _ => 0,
    };
    let number = match record {
        Record::Dump { .. } => 1,
        Record::Large { .. } => 2,
        Record::Relocate { .. } => 3,
        Record::TableSet { .. } => 4,
        Record::DataFile { .. } => 5,
        Record::DropFile { .. } => 6,
        Record::DropVolume { .. } => 7,
        Record::Checkpoint(_) => CHECKPOINT,
        Record::DropJournal { .. } => 9,
        Record::Create { .. } => 10,
        Record::Adopt { .. } => 11,
        Record::Release(_) => 12,
        Record::Attach { .. } => 13,
        Record::DropSegment { .. } => 14,
    };
    Kind { number, incompatible }
}

/// The record of a large write that [`encode_body`] made `body` of.
pub fn decode_large(body: &[u8]) -> Option<Record> {
    let mut fields = Fields(body);
    let record = large(&mut fields)?;
    fields.end()?;
    Some(record)
}

fn decode_body(kind: Kind, body: &[u8]) -> Option<Record> {
    let has = |flag: u32| kind.incompatible & flag != 0;
    let mut fields = Fields(body);
    let f = &mut fields;
    let record = match kind.number {
        1 => Record::Dump {
            segment: f.segment()?,
            epoch: Epoch(f.u64()?),
            through: f.segment_sequence()?,
            replay: position(f)?,
            entries: entries(f)?,
        },
        2 => large(f)?,
        3 => Record::Relocate { segment: f.segment()?, epoch: Epoch(f.u64()?), entries: entries(f)? },
        4 => {
            let (segment, covers) = (f.segment()?, f.log_sequence()?);
            let (added, removed) = (f.u32()?, f.u32()?);
            let (added, removed) = (tables(f, added)?, f.list(removed, 8, Fields::file)?);
            Record::TableSet { segment, added, removed, covers }
        }
        5 => Record::DataFile { segment: f.segment()?, file: f.file()? },
        6 => Record::DropFile { segment: f.segment()?, file: f.file()? },
        7 => Record::DropVolume { volume: VolumeId(f.u64()?) },
        CHECKPOINT => {
            if has(WITH_TENURE) && !has(WITH_LABELS) {
                return None;
            }
            let label_key = if has(WITH_LABELS) { Some(f.u64()?).filter(|key| *key != 0) } else { None };
            Record::Checkpoint(Checkpoint { label_key, ..checkpoint(f, has(WITH_TENURE))? })
        }
        9 => Record::DropJournal { file: f.file()? },
        10 => {
            let (segment, Tenure { epoch, generation }) = (f.segment()?, tenure(f)?);
            Record::Create { segment, epoch, generation }
        }
        11 => Record::Adopt { source: Incarnation(f.u64()?), segment: segment_checkpoint(f, true)? },
        12 => Record::Release(segment_checkpoint(f, true)?),
        14 => Record::DropSegment { segment: f.segment()?, epoch: Epoch(f.u64()?) },
        13 => Record::Attach { volume: VolumeId(f.u64()?), generation: Generation(f.u64()?) },
        _ => return None,
    };
    fields.end()?;
    Some(record)
}

/// A place in the journal: file, byte offset, log sequence; zeros if there is none.
fn put_position(out: &mut Vec<u8>, position: Option<&JournalPosition>) {
    let (file, offset, sequence) = position.map_or((0, 0, 0), |at| (at.file.0, at.offset, at.sequence.0));
    [file, offset, sequence].into_iter().for_each(|field| out.put_u64_le(field));
}

fn position(f: &mut Fields<'_>) -> Option<Option<JournalPosition>> {
    let (file, offset, sequence) = (f.u64()?, f.u64()?, f.u64()?);
    match file {
        0 => ((offset, sequence) == (0, 0)).then_some(None),
        _ => Some(Some(JournalPosition { file: FileId(file), offset, sequence: LogSequence(sequence) })),
    }
}

fn put_stamp(out: &mut Vec<u8>, stamp: &WriteStamp) {
    out.put_u64_le(stamp.generation.0);
    out.put_u64_le(stamp.sequence.0);
    out.put_u32_le(stamp.snapshot.0);
    out.put_u32_le(0);
}

fn large(f: &mut Fields<'_>) -> Option<Record> {
    let (segment, epoch, sequence) = (f.segment()?, Epoch(f.u64()?), f.segment_sequence()?);
    let stamp = WriteStamp {
        generation: Generation(f.u64()?),
        sequence: WriteSequence(f.u64()?),
        snapshot: SnapshotNumber(f.u32()?),
    };
    f.reserved::<4>()?;
    let (file, offset, block, count) = (f.file()?, f.u64()?, f.u32()?, f.u32()?);
    f.reserved::<8>()?;
    let checksums = f.list(count, 4, Fields::u32)?;
    // Both ends valid, and all between them are.
    let fits = |i: u32| {
        let place = offset.checked_add(u64::from(i) * BLOCK)?;
        Entry::data(block.checked_add(i)?, sequence, file, place, 0).is_valid().then_some(())
    };
    fits(0)?;
    fits(count.checked_sub(1)?)?;
    Some(Record::Large { segment, epoch, sequence, stamp, block, file, offset, checksums })
}

fn put_entries(out: &mut Vec<u8>, entries: &[Entry]) {
    put_count(out, entries.len());
    out.put_u32_le(0);
    for entry in entries {
        let (kind, file, offset, checksum, stored) = match entry.mapping {
            Mapping::Data { file, offset, checksum } => (MAPPING_DATA, file.0, offset, checksum, BLOCK as u32),
            Mapping::Zeros => (MAPPING_ZEROS, 0, 0, 0, 0),
        };
        out.put_u32_le(entry.block);
        out.put_u32_le(entry.count);
        out.put_u64_le(entry.version.sequence.0);
        out.put_u32_le(entry.version.moves);
        out.put_u8(kind);
        out.put_u8(0); // the place of an algorithm id
        out.put_u16_le(0); // the place of a key id
        out.put_u64_le(file);
        out.put_u64_le(offset);
        out.put_u32_le(checksum);
        out.put_u32_le(stored);
    }
}

fn entries(f: &mut Fields<'_>) -> Option<Vec<Entry>> {
    let count = f.u32()?;
    f.reserved::<4>()?;
    f.list(count, ENTRY_BYTES, |f| {
        let (block, count) = (f.u32()?, f.u32()?);
        let version = Version { sequence: f.segment_sequence()?, moves: f.u32()? };
        let kind = f.u8()?;
        f.reserved::<3>()?;
        let (file, offset, checksum, stored) = (f.u64()?, f.u64()?, f.u32()?, f.u32()?);
        let mapping = match kind {
            MAPPING_DATA if stored == BLOCK as u32 => Mapping::Data { file: FileId(file), offset, checksum },
            MAPPING_ZEROS if (file, offset, checksum, stored) == (0, 0, 0, 0) => Mapping::Zeros,
            _ => return None,
        };
        let entry = Entry { block, count, version, mapping };
        entry.is_valid().then_some(entry)
    })
}

fn tables(f: &mut Fields<'_>, count: u32) -> Option<Vec<TableInfo>> {
    f.list(count, TableInfo::ENCODED_LEN, |f| TableInfo::decode(&f.bytes()?))
}

fn put_checkpoint(out: &mut Vec<u8>, checkpoint: &Checkpoint) {
    out.put_u64_le(checkpoint.label_key.unwrap_or(0));
    out.put_u64_le(checkpoint.from.0);
    out.put_u64_le(checkpoint.decided_through.0);
    put_position(out, checkpoint.replay.as_ref());
    put_count(out, checkpoint.rejected.len());
    put_count(out, checkpoint.dropped.len());
    put_count(out, checkpoint.segments.len());
    put_count(out, checkpoint.dumped_journals.len());
    checkpoint.rejected.iter().for_each(|sequence| out.put_u64_le(sequence.0));
    checkpoint.dropped.iter().for_each(|volume| out.put_u64_le(volume.0));
    checkpoint.dumped_journals.iter().for_each(|file| out.put_u64_le(file.0));
    let released = checkpoint.released.as_ref();
    checkpoint.segments.iter().for_each(|segment| put_segment_checkpoint(out, segment, released.is_some()));
    if let Some(released) = released {
        put_count(out, released.len());
        released.iter().for_each(|segment| put_segment_checkpoint(out, segment, true));
    }
}

fn put_segment_checkpoint(out: &mut Vec<u8>, segment: &SegmentCheckpoint, with_tenure: bool) {
    put_segment(out, segment.segment);
    if with_tenure {
        put_tenure(out, &segment.tenure);
    }
    out.put_u64_le(segment.next.0);
    out.put_u64_le(segment.dumped_through.0);
    out.put_u64_le(segment.last_large.0);
    out.put_u64_le(segment.tables.covers.0);
    put_count(out, segment.tables.tables.len());
    put_count(out, segment.data_files.len());
    segment.tables.tables.iter().for_each(|table| out.put_slice(&table.encode()));
    for (file, appended) in &segment.data_files {
        out.put_u64_le(file.0);
        out.put_u64_le(*appended);
    }
}

impl SegmentCheckpoint {
    /// Its bytes, for whoever carries it to its next owner: the body of a release.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_segment_checkpoint(&mut out, self, true);
        out
    }

    /// What [`SegmentCheckpoint::encode`] made; `None` where that is not what it is.
    pub fn decode(bytes: &[u8]) -> Option<SegmentCheckpoint> {
        let mut fields = Fields(bytes);
        let segment = segment_checkpoint(&mut fields, true)?;
        fields.end().map(|()| segment)
    }
}

fn put_tenure(out: &mut Vec<u8>, tenure: &Tenure) {
    out.put_u64_le(tenure.epoch.0);
    out.put_u64_le(tenure.generation.0);
}

fn tenure(f: &mut Fields<'_>) -> Option<Tenure> {
    Some(Tenure { epoch: Epoch(f.u64()?), generation: Generation(f.u64()?) })
}

fn checkpoint(f: &mut Fields<'_>, with_tenure: bool) -> Option<Checkpoint> {
    let (from, decided_through, replay) = (f.log_sequence()?, f.log_sequence()?, position(f)?);
    let (rejected, dropped, segments, journals) = (f.u32()?, f.u32()?, f.u32()?, f.u32()?);
    Some(Checkpoint {
        label_key: None,
        from,
        decided_through,
        replay,
        rejected: f.list(rejected, 8, Fields::log_sequence)?,
        dropped: f.list(dropped, 8, |f| f.u64().map(VolumeId))?,
        dumped_journals: f.list(journals, 8, Fields::file)?,
        segments: f.list(segments, SEGMENT_BYTES_MIN, |f| segment_checkpoint(f, with_tenure))?,
        released: match with_tenure {
            true => {
                let count = f.u32()?;
                Some(f.list(count, SEGMENT_BYTES_MIN, |f| segment_checkpoint(f, true))?)
            }
            false => None,
        },
    })
}

fn segment_checkpoint(f: &mut Fields<'_>, with_tenure: bool) -> Option<SegmentCheckpoint> {
    let segment = f.segment()?;
    let tenure = if with_tenure { tenure(f)? } else { Tenure::default() };
    let (next, dumped_through, last_large) = (f.segment_sequence()?, f.segment_sequence()?, f.segment_sequence()?);
    let covers = f.log_sequence()?;
    let (table_count, files) = (f.u32()?, f.u32()?);
    let tables = SegmentTables { tables: tables(f, table_count)?, covers };
    let data_files = f.list(files, 16, |f| Some((f.file()?, f.u64()?)))?;
    let ordered = dumped_through < next && last_large < next && next > SegmentSequence(0);
    ordered.then_some(SegmentCheckpoint { segment, tenure, next, dumped_through, last_large, tables, data_files })
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
