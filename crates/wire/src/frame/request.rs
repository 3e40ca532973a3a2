//! Requests: which fields of the header each kind uses, and what its body is.

mod file;
mod segments;

use base::checksum::{crc32c, crc32c_append};
use base::io::{fragment_checksum, fragments};
use base::levels::Level;
use base::limits::{FRAME_BODY_MAX, OBSERVED_MAX, REQUEST_SIZE_MAX, SEGMENT_SIZE};
use base::units::is_aligned;
use base::{
    Bytes, Epoch, Error, FileId, Gathered, Generation, Incarnation, Result, SECTOR, SegmentId, StoreId, Term, VolumeId,
    WriteStamp,
};
use bytes::BufMut;

use super::fields::{Fields, TEXT_MAX, put_text};
use super::file::LISTED_BYTES_MAX;
use super::header::Header;
use super::kind::Kind;
use super::lease::{change, put_change};
use super::reply::{EXTENT_LEN, EXTENTS_MAX};
use super::segments::has;
use super::volume::{put_volume, volume};
use crate::directory::VolumeDescriptor;
use crate::files::{Life, NewFile};
use crate::lease::{LeaseId, Revision, Write, check_key, check_write};
use crate::owner::Assignment;
use crate::service::{SessionId, Target};

/// What one process asks of another: the methods of the traits, with their arguments. `engine` is the one that is meant:
/// its address may be another one's by now. A segment `after` which a list begins is that with volume 0 for a whole one.
// The documentation of a variant is that of the method.
#[allow(missing_docs)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    Attach { volume: VolumeId, generation: Generation },
    Detach { session: SessionId },
    Read { target: Target, offset: u64, len: u64 },
    Write { target: Target, offset: u64, data: Bytes, checksums: Vec<u32>, stamp: WriteStamp },
    Discard { target: Target, offset: u64, len: u64, stamp: WriteStamp },
    Flush { target: Target },
    Allocation { target: Target, offset: u64, len: u64, extents_max: u32 },
    Resolve { name: String },
    Describe { volume: VolumeId },
    List,
    Take { volume: VolumeId },
    GiveBack { volume: VolumeId, generation: Generation },
    TakeLogs { volume: VolumeId, generation: Generation, make: bool },
    DropVolume { volume: VolumeId },
    BeginScrub,
    SetLevels(Box<VolumeDescriptor>),
    SetProvisioned { bytes: u64 },
    Release { volume: VolumeId },
    Users { volume: VolumeId },
    LearnLevels(Box<VolumeDescriptor>),
    Join,
    Enter { store: StoreId, life: Life },
    CreateFile { life: Life, file: NewFile },
    Append { life: Life, file: FileId, offset: u64, data: Gathered },
    ReadFile { life: Life, file: FileId, copy: Option<u8>, offset: u64, len: u64 },
    RepairCopy { life: Life, file: FileId, copy: u8, offset: u64, data: Bytes },
    CheckHeaders { life: Life, file: FileId },
    Seal { life: Life, file: FileId, length: u64 },
    DeleteFile { life: Life, file: FileId },
    NeedSpace { life: Life, bytes: u64 },
    Fence { store: StoreId, incarnation: Incarnation },
    FilesOf { store: StoreId, incarnation: Incarnation, after: FileId },
    FindFile { store: StoreId, file: FileId },
    Lives { after: Incarnation },
    FilesOfSegment { store: StoreId, segment: SegmentId, after: FileId },
    Grant { ttl_ms: u32 },
    KeepAlive { lease: LeaseId },
    Swap { key: String, expected: Revision, write: Write },
    Watch { prefix: String, seen: Revision },
    Locate { segment: SegmentId },
    Register { engine: Incarnation, server: String, address: String },
    Missing { engines: Vec<Incarnation> },
    Observe { after: VolumeId },
    Explain { volume: VolumeId },
    Assign { engine: Incarnation, term: Term, assignments: Vec<Assignment> },
    Refuse { engine: Incarnation, term: Term, segment: SegmentId, epoch: Epoch },
    ReleaseSegment { engine: Incarnation, term: Term, segment: SegmentId, epoch: Epoch, most: u32 },
    Held { engine: Incarnation, segment: SegmentId },
    Released { engine: Incarnation, after: SegmentId },
    ForgetRelease { engine: Incarnation, term: Term, segment: SegmentId, epoch: Epoch },
    Recover { engine: Incarnation, term: Term, dead: Incarnation, after: SegmentId },
    BeginAttachment { engine: Incarnation, term: Term, volume: Box<VolumeDescriptor>, segment: SegmentId, epoch: Epoch },
    DropSegment { engine: Incarnation, term: Term, segment: SegmentId, epoch: Epoch },
}

impl Request {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Request::Attach { .. } => Kind::Attach,
            Request::Detach { .. } => Kind::Detach,
            Request::Read { .. } => Kind::Read,
            Request::Write { .. } => Kind::Write,
            Request::Discard { .. } => Kind::Discard,
            Request::Flush { .. } => Kind::Flush,
            Request::Allocation { .. } => Kind::Allocation,
            Request::Resolve { .. } => Kind::Resolve,
            Request::Describe { .. } => Kind::Describe,
            Request::List => Kind::List,
            Request::Take { .. } => Kind::Take,
            Request::GiveBack { .. } => Kind::GiveBack,
            Request::TakeLogs { .. } => Kind::TakeLogs,
            Request::DropVolume { .. } => Kind::DropVolume,
            Request::BeginScrub => Kind::BeginScrub,
            Request::SetLevels(_) => Kind::SetLevels,
            Request::SetProvisioned { .. } => Kind::SetProvisioned,
            Request::Release { .. } => Kind::Release,
            Request::Users { .. } => Kind::Users,
            Request::LearnLevels(_) => Kind::LearnLevels,
            Request::Join => Kind::Join,
            Request::Enter { .. } => Kind::Enter,
            Request::CreateFile { .. } => Kind::CreateFile,
            Request::Append { .. } => Kind::Append,
            Request::ReadFile { .. } => Kind::ReadFile,
            Request::RepairCopy { .. } => Kind::RepairCopy,
            Request::CheckHeaders { .. } => Kind::CheckHeaders,
            Request::Seal { .. } => Kind::Seal,
            Request::DeleteFile { .. } => Kind::DeleteFile,
            Request::NeedSpace { .. } => Kind::NeedSpace,
            Request::Fence { .. } => Kind::Fence,
            Request::FilesOf { .. } => Kind::FilesOf,
            Request::FindFile { .. } => Kind::FindFile,
            Request::Lives { .. } => Kind::Lives,
            Request::FilesOfSegment { .. } => Kind::FilesOfSegment,
            Request::Grant { .. } => Kind::Grant,
            Request::KeepAlive { .. } => Kind::KeepAlive,
            Request::Swap { .. } => Kind::Swap,
            Request::Watch { .. } => Kind::Watch,
            Request::Locate { .. } => Kind::Locate,
            Request::Register { .. } => Kind::Register,
            Request::Missing { .. } => Kind::Missing,
            Request::Observe { .. } => Kind::Observe,
            Request::Explain { .. } => Kind::Explain,
            Request::Assign { .. } => Kind::Assign,
            Request::Refuse { .. } => Kind::Refuse,
            Request::ReleaseSegment { .. } => Kind::ReleaseSegment,
            Request::Held { .. } => Kind::Held,
            Request::Released { .. } => Kind::Released,
            Request::ForgetRelease { .. } => Kind::ForgetRelease,
            Request::Recover { .. } => Kind::Recover,
            Request::BeginAttachment { .. } => Kind::BeginAttachment,
            Request::DropSegment { .. } => Kind::DropSegment,
        }
    }

    /// The session that it is made in, if any.
    pub fn session(&self) -> Option<SessionId> {
        match self {
            Request::Detach { session } => Some(*session),
            Request::Read { target, .. }
            | Request::Write { target, .. }
            | Request::Discard { target, .. }
            | Request::Flush { target }
            | Request::Allocation { target, .. } => Some(target.session),
            _ => None,
        }
    }

    /// How it is marked, if it says for whom it is.
    pub fn level(&self) -> Option<Level> {
        match self {
            Request::Read { target, .. }
            | Request::Write { target, .. }
            | Request::Discard { target, .. }
            | Request::Flush { target }
            | Request::Allocation { target, .. } => Some(target.level),
            _ => None,
        }
    }

    /// Bytes that it brings, or that its reply may: what it costs of the bytes that the other side grants.
    pub fn bytes(&self) -> u64 {
        match self {
            Request::Read { len, .. } | Request::ReadFile { len, .. } => *len,
            Request::Write { data, .. } | Request::RepairCopy { data, .. } => data.len() as u64,
            Request::Append { data, .. } => data.len() as u64,
            Request::FilesOf { .. } | Request::FilesOfSegment { .. } | Request::Lives { .. } => LISTED_BYTES_MAX,
            Request::Allocation { extents_max, .. } => EXTENT_LEN * u64::from(*extents_max).min(EXTENTS_MAX as u64),
            Request::List | Request::Watch { .. } => FRAME_BODY_MAX as u64,
            Request::Observe { .. } | Request::Explain { .. } => OBSERVED_MAX as u64,
            _ => segments::bytes(self),
        }
    }

    /// Whether a frame can say it: the sender asks before it sends, and the receiver when it has read it.
    ///
    /// # Errors
    /// `Invalid`: there is no such range, or too much of something.
    pub fn check(&self) -> Result<()> {
        let (target, offset, len, most) = match self {
            Request::Read { target, offset, len } => (target, *offset, *len, REQUEST_SIZE_MAX),
            Request::Write { target, offset, data, checksums, .. } => {
                let (offset, len) = (*offset, data.len() as u64);
                // What is too long is refused below, and its blocks are not counted.
                if len <= REQUEST_SIZE_MAX
                    && offset <= SEGMENT_SIZE
                    && checksums.len() != fragments(offset, len).count()
                {
                    return Err(Error::invalid("a write has one checksum for each block that it touches"));
                }
                (target, offset, len, REQUEST_SIZE_MAX)
            }
            Request::Discard { target, offset, len, .. } => (target, *offset, *len, SEGMENT_SIZE),
            Request::Allocation { target, offset, len, .. } => (target, *offset, *len, SEGMENT_SIZE),
            Request::Resolve { name } if name.len() > TEXT_MAX => {
                return Err(Error::invalid(format!("no volume has a name of {} bytes", name.len())));
            }
            Request::SetLevels(volume) | Request::LearnLevels(volume)
                if volume.name.len().max(volume.owner.len()) > TEXT_MAX =>
            {
                return Err(Error::invalid(format!(
                    "{} has a name or an owner of more than {TEXT_MAX} bytes",
                    volume.id
                )));
            }
            Request::Swap { key, write, .. } => return check_key(key).and_then(|()| check_write(write)),
            Request::Watch { prefix, .. } => return check_key(prefix),
            _ if has(self.kind()) => return segments::check(self),
            _ => return file::check(self),
        };
        let in_range = offset.checked_add(len).is_some_and(|end| end <= SEGMENT_SIZE);
        if len == 0 || len > most || !in_range || !is_aligned(offset, SECTOR) || !is_aligned(len, SECTOR) {
            let segment = target.segment;
            return Err(Error::invalid(format!("no such range: {len} bytes at {offset} of segment {segment}")));
        }
        Ok(())
    }

    /// The fields of its header.
    pub(super) fn fields(&self) -> Header {
        let of_target = |target: &Target| Header {
            session: target.session,
            segment: target.segment,
            epoch: target.epoch,
            ..Header::default()
        };
        let of_volume = |volume: VolumeId| Header { segment: SegmentId { volume, index: 0 }, ..Header::default() };
        let attached = |volume: VolumeId, generation: Generation| Header {
            stamp: WriteStamp { generation, ..WriteStamp::default() },
            ..of_volume(volume)
        };
        match self {
            Request::Attach { volume, generation } => attached(*volume, *generation),
            Request::GiveBack { volume, generation } | Request::TakeLogs { volume, generation, .. } => {
                attached(*volume, *generation)
            }
            Request::Detach { session } => Header { session: *session, ..Header::default() },
            Request::Read { target, offset, len } => Header { offset: *offset, len: *len, ..of_target(target) },
            Request::Write { target, offset, data, stamp, .. } => {
                Header { offset: *offset, len: data.len() as u64, stamp: *stamp, ..of_target(target) }
            }
            Request::Discard { target, offset, len, stamp } => {
                Header { offset: *offset, len: *len, stamp: *stamp, ..of_target(target) }
            }
            Request::Flush { target } => of_target(target),
            Request::Allocation { target, offset, len, .. } => {
                Header { offset: *offset, len: *len, ..of_target(target) }
            }
            Request::Describe { volume }
            | Request::Take { volume }
            | Request::DropVolume { volume }
            | Request::Release { volume }
            | Request::Users { volume }
            | Request::Observe { after: volume }
            | Request::Explain { volume } => of_volume(*volume),
            Request::Resolve { .. }
            | Request::List
            | Request::BeginScrub
            | Request::SetLevels(_)
            | Request::LearnLevels(_)
            | Request::SetProvisioned { .. }
            | Request::Grant { .. }
            | Request::KeepAlive { .. }
            | Request::Swap { .. }
            | Request::Watch { .. } => Header::default(),
            _ if has(self.kind()) => segments::fields(self),
            _ => file::fields(self),
        }
    }

    pub(super) fn put_body(&self, out: &mut Vec<u8>) {
        match self {
            Request::Write { checksums, .. } => checksums.iter().for_each(|&checksum| out.put_u32_le(checksum)),
            Request::Allocation { extents_max, .. } => out.put_u32_le(*extents_max),
            Request::Resolve { name } => put_text(out, name),
            Request::SetLevels(volume) | Request::LearnLevels(volume) => put_volume(out, volume),
            Request::SetProvisioned { bytes } => out.put_u64_le(*bytes),
            Request::TakeLogs { make, .. } => out.put_u8((*make).into()),
            Request::Grant { ttl_ms } => out.put_u32_le(*ttl_ms),
            Request::KeepAlive { lease } => out.put_u64_le(lease.0),
            Request::Swap { key, expected, write } => put_change(out, key, *expected, write),
            Request::Watch { prefix, seen } => {
                out.put_u64_le(seen.0);
                put_text(out, prefix);
            }
            _ if has(self.kind()) => segments::put_body(out, self),
            _ => file::put_body(out, self),
        }
    }

    /// The request of `kind` that a header, a body and a payload say. Fields and body that its kind does not use are
    /// looked at by the caller, who knows them all.
    pub(super) fn get(kind: Kind, header: &Header, body: &mut Fields<'_>, data: Bytes) -> Option<Request> {
        let Header { session, segment, epoch, stamp, offset, len, .. } = *header;
        let (volume, generation) = (segment.volume, stamp.generation);
        let target = Target { session, segment, epoch, level: header.marks.level, behind: header.marks.queue_depth };
        Some(match kind {
            Kind::Attach => Request::Attach { volume, generation },
            Kind::Detach => Request::Detach { session },
            Kind::Read => Request::Read { target, offset, len },
            Kind::Write => Request::Write { target, offset, data, checksums: body.all(Fields::u32)?, stamp },
            Kind::Discard => Request::Discard { target, offset, len, stamp },
            Kind::Flush => Request::Flush { target },
            Kind::Allocation => Request::Allocation { target, offset, len, extents_max: body.u32()? },
            Kind::Resolve => Request::Resolve { name: body.text()? },
            Kind::Describe => Request::Describe { volume },
            Kind::List => Request::List,
            Kind::Take => Request::Take { volume },
            Kind::GiveBack => Request::GiveBack { volume, generation },
            Kind::TakeLogs => Request::TakeLogs { volume, generation, make: body.bool()? },
            Kind::DropVolume => Request::DropVolume { volume },
            Kind::BeginScrub => Request::BeginScrub,
            Kind::SetLevels => Request::SetLevels(Box::new(self::volume(body)?)),
            Kind::SetProvisioned => Request::SetProvisioned { bytes: body.u64()? },
            Kind::Release => Request::Release { volume },
            Kind::Users => Request::Users { volume },
            Kind::LearnLevels => Request::LearnLevels(Box::new(self::volume(body)?)),
            Kind::Observe => Request::Observe { after: volume },
            Kind::Explain => Request::Explain { volume },
            Kind::Grant => Request::Grant { ttl_ms: body.u32()? },
            Kind::KeepAlive => Request::KeepAlive { lease: LeaseId(body.u64()?) },
            Kind::Swap => {
                let (key, expected, write) = change(body)?;
                Request::Swap { key, expected, write }
            }
            Kind::Watch => Request::Watch { seen: Revision(body.u64()?), prefix: body.text()? },
            _ if has(kind) => return segments::request(kind, header, body, data),
            _ => return file::request(kind, header, body, data),
        })
    }

    /// Its payload, in parts, and the checksum of that where the body has none.
    pub(super) fn payload(&self) -> (Vec<Bytes>, u32) {
        match self {
            Request::Write { data, .. } => (vec![data.clone()], 0),
            Request::Append { data, .. } => {
                let parts: Vec<Bytes> = data.parts().cloned().collect();
                let checksum = parts.iter().fold(0, |checksum, part| crc32c_append(checksum, part));
                (parts, checksum)
            }
            Request::RepairCopy { data, .. } => (vec![data.clone()], crc32c(data)),
            _ => segments::payload(self),
        }
    }

    /// Whether the payload of a write is what its agent sent: compares it with the agent's checksums, which go on to the
    /// disk with it and are compared there again.
    pub(super) fn is_intact(&self) -> bool {
        let Request::Write { target, offset, data, checksums, .. } = self else { return true };
        fragments(*offset, data.len() as u64).zip(checksums).all(|((at, len), &checksum)| {
            let fragment = &data[at as usize..(at + len) as usize];
            fragment_checksum(target.segment, offset + at, fragment) == checksum
        })
    }

    /// The epoch that an answer has which nobody had to be asked for.
    pub fn epoch(&self) -> Epoch {
        self.fields().epoch
    }
}
