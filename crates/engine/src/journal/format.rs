//! The bytes of a journal file, format 1 (docs/formats/journal.md).
//!
//! A file is a run of **appends**, each a multiple of 4 KiB: a header of [`HEADER_LEN`] bytes, one header for each
//! record, the records' data one after the other, zeros. The append's header has a checksum of its own, so that a
//! search can believe it without the rest; the record headers, which hold the checksums of the data, have a second
//! one. So everything that an append says is covered, and data is checksummed once: by the agent that sent it.
//!
//! Invariants: an append says in which file, at which offset and under which number it stands, so that bytes of
//! another place or of a file's earlier life never validate; zeros never validate.

use base::checksum::{crc32c, crc32c_append};
use base::io::{fragment_checksum, fragments};
use base::limits::{JOURNAL_APPEND_MAX, SEGMENT_SIZE};
use base::seeded::is_on;
use base::{
    BLOCK, Bytes, Epoch, Error, FileId, Generation, Incarnation, LogSequence, Result, SECTOR, SegmentId,
    SegmentSequence, SnapshotNumber, VolumeId, WriteSequence, WriteStamp,
};

use super::{JournalRecord, Operation, RECORD_DATA_MAX};
use crate::transaction::Fields;

/// Bytes of an append's header.
pub const HEADER_LEN: usize = 128;
/// Bytes of a record's header before the checksums of its data.
const RECORD_LEN: usize = 80;

const MAGIC: [u8; 8] = *b"LeveeJnl";
const VERSION: u16 = 1;
/// The only kind of append so far.
const RECORDS: u16 = 1;
/// Where the file's id stands, in every version.
const FILE_AT: usize = 32;

/// Where the two checksums stand in an append's header: of the header itself, and of the record headers.
const CHECKSUM_AT: usize = 8;
const RECORDS_CHECKSUM_AT: usize = 12;
const CHECKED_FROM: usize = 12;

const WRITE: u8 = 1;
const DISCARD: u8 = 2;

/// The header of an append.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppendHeader {
    /// The file that it was written to.
    pub file: FileId,
    /// The life of the server that wrote it.
    pub incarnation: Incarnation,
    /// Which journal of that life: the loop's number.
    pub log: u32,
    /// The file's place among the files of that journal, from 1.
    pub ordinal: u32,
    /// The log sequence of the file's first append. Appends of earlier files from this number on are void: they
    /// failed, and were written again.
    pub base: LogSequence,
    /// The append's own number: one above the append before it in the journal.
    pub sequence: LogSequence,
    /// Every append up to this one was durable when this one was written; zero if none was.
    pub durable_through: LogSequence,
    /// Where it stands in the file.
    pub offset: u64,
    /// Its length in the file.
    pub len: u64,
    /// Bytes of this header and the record headers.
    pub headers_len: u32,
    /// Bytes of data after them.
    pub data_len: u32,
    /// How many records it has.
    pub record_count: u32,
    /// Checksum of the record headers.
    pub records_checksum: u32,
}

impl AppendHeader {
    /// Its bytes.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC);
        put(&[0; 4]); // its checksum, below
        put(&self.records_checksum.to_le_bytes());
        put(&VERSION.to_le_bytes());
        put(&RECORDS.to_le_bytes());
        put(&[0; 12]); // feature flags: incompatible, read-only compatible, compatible
        put(&self.file.0.to_le_bytes());
        put(&self.incarnation.0.to_le_bytes());
        put(&self.log.to_le_bytes());
        put(&self.ordinal.to_le_bytes());
        put(&self.base.0.to_le_bytes());
        put(&self.sequence.0.to_le_bytes());
        put(&self.durable_through.0.to_le_bytes());
        put(&self.offset.to_le_bytes());
        put(&(self.len as u32).to_le_bytes());
        put(&self.headers_len.to_le_bytes());
        put(&self.data_len.to_le_bytes());
        put(&self.record_count.to_le_bytes());
        // 24 reserved bytes: data blocks and their algorithm, once appends are compressed.
        let checksum = header_checksum(&out);
        out[CHECKSUM_AT..CHECKED_FROM].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Reads the header of an append to `file` at the start of `bytes`; `None` if there is no valid one.
    ///
    /// # Errors
    /// `Invalid`: it is valid, but of a format that this binary does not know.
    pub fn decode(bytes: &[u8], file: FileId) -> Result<Option<AppendHeader>> {
        let of_file = |head: &&[u8; HEADER_LEN]| {
            let is_ours = head[FILE_AT..FILE_AT + 8] == file.0.to_le_bytes() || is_on("recycled-journal-replayed");
            head[..MAGIC.len()] == MAGIC && is_ours
        };
        let Some(head) = bytes.first_chunk::<HEADER_LEN>().filter(of_file) else { return Ok(None) };
        let mut fields = Fields(&head[CHECKSUM_AT..]);
        if fields.u32() != Some(header_checksum(head)) {
            return Ok(None);
        }
        Self::decode_checked(head).map(Some).ok_or_else(|| {
            let version = u16::from_le_bytes([head[16], head[17]]);
            let features = u32::from_le_bytes([head[20], head[21], head[22], head[23]]);
            Error::invalid(format!(
                "a journal of format {version} with features {features:#x}, or with fields that this version does \
                 not know (it knows format {VERSION} without features): start the newer version that wrote it"
            ))
        })
    }

    /// Fields of a header whose checksum is right.
    fn decode_checked(head: &[u8; HEADER_LEN]) -> Option<AppendHeader> {
        let mut fields = Fields(&head[RECORDS_CHECKSUM_AT..]);
        let records_checksum = fields.u32()?;
        (fields.u16()? == VERSION).then_some(())?;
        (fields.u16()? == RECORDS).then_some(())?;
        fields.reserved::<4>()?;
        // Read-only compatible features matter to writers only, and nothing is written to a file that is read.
        fields.bytes::<8>()?;
        let header = AppendHeader {
            file: FileId(fields.u64()?),
            incarnation: Incarnation(fields.u64()?),
            log: fields.u32()?,
            ordinal: fields.u32()?,
            base: LogSequence(fields.u64()?),
            sequence: LogSequence(fields.u64()?),
            durable_through: LogSequence(fields.u64()?),
            offset: fields.u64()?,
            len: u64::from(fields.u32()?),
            headers_len: fields.u32()?,
            data_len: fields.u32()?,
            record_count: fields.u32()?,
            records_checksum,
        };
        fields.reserved::<24>()?;
        header.is_sound().then_some(header)
    }

    fn is_sound(&self) -> bool {
        let content = u64::from(self.headers_len) + u64::from(self.data_len);
        self.len.is_multiple_of(BLOCK)
            && self.offset.is_multiple_of(BLOCK)
            && self.headers_len as usize >= HEADER_LEN
            && content <= self.len
            && self.len <= JOURNAL_APPEND_MAX
            && self.base.0 > 0
            && self.base <= self.sequence
            && self.durable_through < self.sequence
    }
}

pub(super) fn header_checksum(head: &[u8; HEADER_LEN]) -> u32 {
    crc32c_append(crc32c(&head[..CHECKSUM_AT]), &head[CHECKED_FROM..])
}

/// Checksum of all record headers of an append.
pub(super) fn records_checksum(headers: &[u8]) -> u32 {
    crc32c(headers)
}

/// Bytes of a record's header: a multiple of eight.
pub(super) fn record_header_len(record: &JournalRecord) -> usize {
    header_len_for(fragment_count(record))
}

fn fragment_count(record: &JournalRecord) -> usize {
    match &record.operation {
        Operation::Write { checksums, .. } => checksums.len(),
        Operation::Discard => 0,
    }
}

fn header_len_for(fragments: usize) -> usize {
    (RECORD_LEN + fragments * 4).next_multiple_of(8)
}

/// Hands the header of `record` to `put`, in order.
pub(super) fn put_record_header(record: &JournalRecord, mut put: impl FnMut(&[u8])) {
    let header_len = record_header_len(record);
    let (operation, stored_len) = match &record.operation {
        Operation::Write { data, .. } => (WRITE, data.len() as u32),
        Operation::Discard => (DISCARD, 0),
    };
    let mut head = [0; RECORD_LEN];
    head[0..2].copy_from_slice(&(header_len as u16).to_le_bytes());
    head[2] = operation;
    head[4..8].copy_from_slice(&record.segment.index.to_le_bytes());
    head[8..16].copy_from_slice(&record.segment.volume.0.to_le_bytes());
    head[16..24].copy_from_slice(&record.epoch.0.to_le_bytes());
    head[24..32].copy_from_slice(&record.sequence.0.to_le_bytes());
    head[32..40].copy_from_slice(&record.stamp.generation.0.to_le_bytes());
    head[40..48].copy_from_slice(&record.stamp.sequence.0.to_le_bytes());
    head[48..52].copy_from_slice(&record.stamp.snapshot.0.to_le_bytes());
    // 52..60: algorithm and key of the stored data.
    head[60..64].copy_from_slice(&stored_len.to_le_bytes());
    head[64..72].copy_from_slice(&record.offset.to_le_bytes());
    head[72..80].copy_from_slice(&record.len.to_le_bytes());
    put(&head);
    if let Operation::Write { checksums, .. } = &record.operation {
        checksums.iter().for_each(|checksum| put(&checksum.to_le_bytes()));
        put(&[0; 4][..header_len - RECORD_LEN - checksums.len() * 4]);
    }
}

/// The records of the append `bytes` (as long as its header says), with their data verified. `Err` says what is
/// wrong with them, for a person.
pub(super) fn decode_records(header: &AppendHeader, bytes: &Bytes) -> Result<Vec<JournalRecord>, String> {
    assert_eq!(bytes.len() as u64, header.len, "an append is decoded as a whole");
    let headers = &bytes[HEADER_LEN..header.headers_len as usize];
    if records_checksum(headers) != header.records_checksum {
        return Err("the record headers do not match their checksum".to_owned());
    }
    let mut fields = Fields(headers);
    let mut data = bytes.slice(header.headers_len as usize..(header.headers_len + header.data_len) as usize);
    let mut records = Vec::with_capacity((header.record_count as usize).min(headers.len() / RECORD_LEN));
    for number in 0..header.record_count {
        let record = decode_record(&mut fields, &mut data)
            .ok_or_else(|| format!("the header of record {number} of {} makes no sense", header.record_count))?;
        if !is_on("torn-append-accepted") {
            verify_data(&record)?;
        }
        records.push(record);
    }
    match fields.0.is_empty() && data.is_empty() {
        true => Ok(records),
        false => Err("there is more than its records".to_owned()),
    }
}

fn decode_record(fields: &mut Fields<'_>, data: &mut Bytes) -> Option<JournalRecord> {
    let header_len = usize::from(fields.u16()?);
    let operation = fields.u8()?;
    fields.reserved::<1>()?;
    let index = fields.u32()?;
    let segment = SegmentId { volume: VolumeId(fields.u64()?), index };
    let epoch = Epoch(fields.u64()?);
    let sequence = SegmentSequence(fields.u64()?);
    let (generation, write) = (Generation(fields.u64()?), WriteSequence(fields.u64()?));
    let stamp = WriteStamp { generation, sequence: write, snapshot: SnapshotNumber(fields.u32()?) };
    fields.reserved::<8>()?;
    let stored_len = fields.u32()? as usize;
    let (offset, len) = (fields.u64()?, fields.u64()?);
    let in_segment = offset.checked_add(len).is_some_and(|end| end <= SEGMENT_SIZE);
    let aligned = offset.is_multiple_of(SECTOR) && len.is_multiple_of(SECTOR) && len > 0;
    (in_segment && aligned).then_some(())?;
    let operation = match operation {
        WRITE => {
            (len <= RECORD_DATA_MAX && stored_len as u64 == len && stored_len <= data.len()).then_some(())?;
            let count = fragments(offset, len).count();
            (header_len == header_len_for(count)).then_some(())?;
            let checksums = fields.list(count as u32, 4, Fields::u32)?;
            if !count.is_multiple_of(2) {
                fields.reserved::<4>()?;
            }
            Operation::Write { checksums, data: data.split_to(stored_len) }
        }
        DISCARD => {
            (header_len == RECORD_LEN && stored_len == 0).then_some(())?;
            Operation::Discard
        }
        _ => return None,
    };
    Some(JournalRecord { segment, epoch, sequence, stamp, offset, len, operation })
}

/// Compares every fragment with its checksum.
fn verify_data(record: &JournalRecord) -> Result<(), String> {
    let Operation::Write { checksums, data } = &record.operation else { return Ok(()) };
    match data_matches(record.segment, record.offset, data, checksums) {
        true => Ok(()),
        false => Err(format!(
            "the data of write {} of segment {} ({} bytes at {}) does not match its checksums",
            record.sequence, record.segment, record.len, record.offset
        )),
    }
}

/// Whether each fragment of `data` has the checksum that its agent gave it.
pub(super) fn data_matches(segment: SegmentId, offset: u64, data: &[u8], checksums: &[u32]) -> bool {
    fragments(offset, data.len() as u64).zip(checksums).all(|((at, len), checksum)| {
        fragment_checksum(segment, offset + at, &data[at as usize..(at + len) as usize]) == *checksum
    })
}
