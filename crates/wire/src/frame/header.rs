//! The header of a frame: fixed fields at fixed places, those that a type does not use zero.

use base::checksum::{crc32c, crc32c_append};
use base::levels::Level;
use base::limits::{FRAME_BODY_MAX, FRAME_EXTENSIONS_MAX, REQUEST_SIZE_MAX};
use base::{Epoch, Error, Generation, Result, SegmentId, SnapshotNumber, VolumeId, WriteSequence, WriteStamp};
use bytes::BufMut;

use super::error::changed;
use super::fields::Fields;
use crate::service::SessionId;

/// Bytes of a header.
pub const HEADER_LEN: usize = 128;

const MAGIC: [u8; 4] = *b"Levw";
const CHECKSUM_AT: usize = 4;
const CHECKED_FROM: usize = 8;
const RESERVED: usize = 8;

const BASE: u16 = 1;
const BURST: u16 = 2;
const RETRY: u16 = 4;
const HEDGE: u16 = 8;

/// What a request says of itself for those who schedule it. Whoever knows nothing to do with a mark passes it over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    /// Which part of its volume's rate it belongs to.
    pub level: Level,
    /// It was sent before: the same bytes under the same stamp.
    pub is_retry: bool,
    /// Another one like it is on its way to another place; the first answer counts.
    pub is_hedge: bool,
    /// How long from its sending on it is of use, in microseconds; 0: as long as it takes.
    pub deadline_us: u32,
    /// Requests of its sender that wait behind it to be sent on this stream, those that merge not counted: what the other side
    /// cannot see of the queue here.
    pub queue_depth: u32,
    /// Names it in logs on both sides; 0: it has no name.
    pub trace: u64,
}

/// The fixed fields of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// The version that both sides agreed on; 0 in a hello or goodbye, which are the same in every version.
    pub version: u8,
    /// The type: the code of a kind, or of a reply to one.
    pub code: u8,
    /// See [`Marks`].
    pub marks: Marks,
    /// The session that a request is made in, or that was opened.
    pub session: SessionId,
    /// The number of a request among those of its sender, from 1; a reply has that of its request.
    pub sequence: u64,
    /// Whose bytes.
    pub segment: SegmentId,
    /// The ownership that the agent believes in, or that a reply was given under.
    pub epoch: Epoch,
    /// The attachment, and the write's number and snapshot in it.
    pub stamp: WriteStamp,
    /// Where in the segment or file, in bytes.
    pub offset: u64,
    /// How many bytes of it.
    pub len: u64,
    /// Bytes of the extensions.
    pub extensions_len: u32,
    /// Bytes of the body.
    pub body_len: u32,
    /// Bytes of the payload.
    pub payload_len: u32,
    /// CRC-32C of extensions and body.
    pub rest_checksum: u32,
    /// CRC-32C of the payload; 0 where the body has checksums of its own.
    pub payload_checksum: u32,
}

impl Header {
    /// Its bytes.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        let mut rest = &mut out[..];
        rest.put_slice(&MAGIC);
        rest.put_u32_le(0); // its checksum, below
        rest.put_u8(self.version);
        rest.put_u8(self.code);
        rest.put_u16_le(self.marks.flags());
        rest.put_u32_le(self.stamp.snapshot.0);
        rest.put_u64_le(self.session.0);
        rest.put_u64_le(self.sequence);
        rest.put_u64_le(self.segment.volume.0);
        rest.put_u32_le(self.segment.index);
        rest.put_u32_le(self.marks.queue_depth);
        rest.put_u64_le(self.epoch.0);
        rest.put_u64_le(self.stamp.generation.0);
        rest.put_u64_le(self.stamp.sequence.0);
        rest.put_u64_le(self.offset);
        rest.put_u64_le(self.len);
        rest.put_u64_le(self.marks.trace);
        rest.put_u32_le(self.marks.deadline_us);
        rest.put_u32_le(self.extensions_len);
        rest.put_u32_le(self.body_len);
        rest.put_u32_le(self.payload_len);
        rest.put_u32_le(self.rest_checksum);
        rest.put_u32_le(self.payload_checksum);
        let checksum = checksum(&out);
        out[CHECKSUM_AT..CHECKED_FROM].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Reads a header.
    ///
    /// # Errors
    /// `Invalid`: no frame of Levee begins here, or one that is longer than any may be. `Corrupt`: its bytes changed on
    /// their way.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Header> {
        if bytes[..CHECKSUM_AT] != MAGIC {
            return Err(Error::invalid("this is no frame of Levee: is the address that of another service?"));
        }
        let mut fields = Fields(&bytes[CHECKSUM_AT..]);
        if fields.u32() != Some(checksum(bytes)) {
            return Err(changed("the header of a frame"));
        }
        let header = Self::fields(&mut fields)
            .ok_or_else(|| Error::invalid("the header of a frame has flags or reserved bytes that must be zero"))?;
        header.check_lengths()?;
        Ok(header)
    }

    fn fields(fields: &mut Fields<'_>) -> Option<Header> {
        let (version, code) = (fields.u8()?, fields.u8()?);
        let mut marks = Marks::from_flags(fields.u16()?)?;
        let snapshot = SnapshotNumber(fields.u32()?);
        let session = SessionId(fields.u64()?);
        let sequence = fields.u64()?;
        let segment = SegmentId { volume: VolumeId(fields.u64()?), index: fields.u32()? };
        marks.queue_depth = fields.u32()?;
        let epoch = Epoch(fields.u64()?);
        let generation = Generation(fields.u64()?);
        let stamp = WriteStamp { generation, sequence: WriteSequence(fields.u64()?), snapshot };
        let (offset, len) = (fields.u64()?, fields.u64()?);
        marks.trace = fields.u64()?;
        marks.deadline_us = fields.u32()?;
        let header = Header {
            version,
            code,
            marks,
            session,
            sequence,
            segment,
            epoch,
            stamp,
            offset,
            len,
            extensions_len: fields.u32()?,
            body_len: fields.u32()?,
            payload_len: fields.u32()?,
            rest_checksum: fields.u32()?,
            payload_checksum: fields.u32()?,
        };
        (fields.bytes::<RESERVED>()? == [0; RESERVED]).then_some(header)
    }

    fn check_lengths(&self) -> Result<()> {
        let bounds = [
            ("extensions", self.extensions_len, FRAME_EXTENSIONS_MAX as u64),
            ("a body", self.body_len, FRAME_BODY_MAX as u64),
            ("a payload", self.payload_len, REQUEST_SIZE_MAX),
        ];
        match bounds.into_iter().find(|&(_, len, max)| u64::from(len) > max) {
            Some((what, len, max)) => {
                Err(Error::invalid(format!("a frame with {what} of {len} bytes, where {max} are allowed")))
            }
            None => Ok(()),
        }
    }

    /// Bytes of extensions and body.
    pub fn rest_len(&self) -> usize {
        self.extensions_len as usize + self.body_len as usize
    }
}

/// The checksum of a header: of all but itself.
pub(super) fn checksum(header: &[u8; HEADER_LEN]) -> u32 {
    crc32c_append(crc32c(&header[..CHECKSUM_AT]), &header[CHECKED_FROM..])
}

impl Marks {
    fn flags(&self) -> u16 {
        let level = match self.level {
            Level::Open => 0,
            Level::Base => BASE,
            Level::Burst => BURST,
            Level::Merge => BASE | BURST,
        };
        level | if self.is_retry { RETRY } else { 0 } | if self.is_hedge { HEDGE } else { 0 }
    }

    fn from_flags(flags: u16) -> Option<Marks> {
        let level = match flags & (BASE | BURST) {
            0 => Level::Open,
            BASE => Level::Base,
            BURST => Level::Burst,
            _ => Level::Merge,
        };
        let (is_retry, is_hedge) = (flags & RETRY != 0, flags & HEDGE != 0);
        let marks = Marks { level, is_retry, is_hedge, ..Marks::default() };
        (marks.flags() == flags).then_some(marks)
    }
}
