//! The label of a large write: the block in front of its data that says what it is.
//!
//! Data and label are one append, so one durable write is all that an acknowledgement waits for; the same record
//! reaches the transaction log later, many at a time (EBS, FAST 2024, §2.2: metadata beside the block, and the
//! transaction file follows the acknowledgement). Labels are read only by a recovery, behind the part of a data file
//! that the log knows ([`crate::recovery`]). docs/formats/data.md describes every byte.
//!
//! Invariants: a label counts only in its own file, at its own offset, and with the key that the life which wrote it
//! drew at random: neither what a client writes nor what a recycled file held before passes for one.

use base::checksum::crc32c_append;
use base::seeded::is_on;
use base::{AlignedBuf, BLOCK, FileId, Incarnation};
use bytes::BufMut;

use crate::transaction::{Fields, Record, decode_large, encode_body};

/// Bytes of a label in its file.
pub(crate) const LABEL_BYTES: u64 = BLOCK;

const MAGIC: u32 = u32::from_le_bytes(*b"LvLw");
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 64;
/// Where the checksum stands.
const CRC_AT: usize = 12;

/// Where a label stands, and what it says besides its record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// The data file.
    pub file: FileId,
    /// The life that appends to it.
    pub incarnation: Incarnation,
    /// What that life drew at random.
    pub key: u64,
    /// Byte offset of the label in the file.
    pub offset: u64,
}

/// A label with the record of a large write whose data lies right behind it. `whole_through`: up to this byte of the
/// file everything had landed when it was written.
pub(crate) fn encode(place: &Place, whole_through: u64, record: &Record) -> AlignedBuf {
    let body = encode_body(record);
    let mut head = Vec::with_capacity(HEADER_BYTES);
    head.put_u32_le(MAGIC);
    head.put_u16_le(VERSION);
    head.put_u16_le(0);
    head.put_u32_le(0); // incompatible feature flags
    head.put_u32_le(0); // checksum, below
    head.put_u64_le(place.file.0);
    head.put_u64_le(place.incarnation.0);
    head.put_u64_le(place.offset);
    head.put_u64_le(whole_through);
    head.put_u64_le(place.key);
    head.put_u32_le(body.len() as u32);
    head.put_u32_le(0); // compatible feature flags
    let crc = crc32c_append(crc32c_append(0, &head), &body);
    head[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    let mut out = AlignedBuf::with_capacity(LABEL_BYTES as usize);
    out.extend_from_slice(&head);
    out.extend_from_slice(&body);
    out.pad_to(LABEL_BYTES as usize);
    assert!(out.len() as u64 == LABEL_BYTES, "a label is one block");
    out
}

/// The record of the label at the start of `bytes`, and up to where the file was whole; none if no valid label of
/// `place` is there.
pub(crate) fn decode(bytes: &[u8], place: &Place) -> Option<(Record, u64)> {
    let head: [u8; HEADER_BYTES] = *bytes.first_chunk()?;
    let mut fields = Fields(&head);
    let (magic, version, reserved) = (fields.u32()?, fields.u16()?, fields.u16()?);
    let (incompatible, crc) = (fields.u32()?, fields.u32()?);
    let found = Place { file: fields.file()?, incarnation: Incarnation(fields.u64()?), offset: fields.u64()?, key: 0 };
    let (whole_through, key) = (fields.u64()?, fields.u64()?);
    let body_len = fields.u32()? as usize;
    let is_here = match is_on("label-of-earlier-life") {
        true => true,
        false => Place { key, ..found } == *place,
    };
    if (magic, version, reserved, incompatible) != (MAGIC, VERSION, 0, 0) || !is_here {
        return None;
    }
    let body = bytes.get(HEADER_BYTES..HEADER_BYTES.checked_add(body_len)?)?;
    let mut unsummed = head;
    unsummed[CRC_AT..CRC_AT + 4].fill(0);
    if crc32c_append(crc32c_append(0, &unsummed), body) != crc {
        return None;
    }
    let record = decode_large(body)?;
    Some((record, whole_through))
}

#[cfg(test)]
mod tests;
