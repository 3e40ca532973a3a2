//! Replies: a status, and what a kind of request is answered with.

mod file;
mod segments;

use base::checksum::{crc32c, crc32c_append};
use base::limits::{FRAME_BODY_MAX, OBSERVED_MAX, REQUEST_SIZE_MAX, SEGMENT_SIZE};
use base::{AllocationExtent, Bytes, Epoch, Error, Incarnation, ReadPart, SegmentId, StoreId};
use bytes::BufMut;

use super::error::{error, put_error};
use super::fields::{Fields, put_text};
use super::header::Header;
use super::kind::Kind;
use super::lease::{lease, put_lease, put_snapshot, put_swapped, snapshot, swapped};
use super::segments::has;
use super::volume::{put_volume, volume};
use crate::directory::VolumeDescriptor;
use crate::files::{FileDescriptor, LifeDescriptor, LifeSpace};
use crate::lease::{Lease, Snapshot, Swapped};
use crate::owner::{Holding, Located};
use crate::registry::Registered;
use crate::service::{Attachment, Reply};

/// The first byte of a reply that is no error.
const DONE: u8 = 0;
/// The first byte of one that leaves the outcome open.
const LOST: u8 = 255;
/// In the length of a part of a read: it is zeros, which are not in the payload.
const ZEROS: u32 = 1 << 31;
/// In the length of an extent: it holds data.
const ALLOCATED: u64 = 1 << 63;

/// Bytes of an extent.
pub(super) const EXTENT_LEN: u64 = 8;
/// Most extents of one reply; those behind them are left out, as a reply may.
pub(super) const EXTENTS_MAX: usize = FRAME_BODY_MAX / EXTENT_LEN as usize - 1;

/// What a request is answered with, unless by an error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// It is done.
    Done,
    /// To an attach.
    Attached(Attachment),
    /// To a read: its bytes, in address order.
    Parts(Vec<ReadPart>),
    /// To a question what is allocated.
    Extents(Vec<AllocationExtent>),
    /// To what asks for a volume.
    Volume(Box<VolumeDescriptor>),
    /// To a list.
    Names(Vec<String>),
    /// To the question how many use a volume, or how many headers were mended.
    Count(u64),
    /// To one who joins a shared store.
    Joined(StoreId, Incarnation),
    /// To one who creates a file.
    Created(FileDescriptor, LifeSpace),
    /// What a file is now, if there is one.
    File(Option<FileDescriptor>),
    /// To the question which files a life has.
    Files(Vec<FileDescriptor>),
    /// To the question which lives there are.
    Lives(Vec<LifeDescriptor>),
    /// To one who enters, or needs space.
    Space(LifeSpace),
    /// To what asks for a lease.
    Lease(Lease),
    /// To a compare and swap.
    Swapped(Swapped),
    /// To a watch.
    Snapshot(Snapshot),
    /// Who has a segment.
    Located(Located),
    /// To an engine that says that it lives.
    Registered(Registered),
    /// The engines that are missing.
    Engines(Vec<Incarnation>),
    /// To assignments: what came of each.
    Outcomes(Vec<Result<(), Error>>),
    /// To a release.
    Left {
        /// Whose log has the segment last.
        incarnation: Incarnation,
        /// How many bytes say what there is of it.
        len: u32,
        /// These bytes; nothing if there are more than were asked for.
        content: Bytes,
    },
    /// Under which epoch an engine has a segment, if it has it.
    Held(Option<Epoch>),
    /// What an engine has released.
    Released(Vec<(SegmentId, Epoch)>),
    /// What the log of a dead engine says.
    Holdings(Vec<Holding>),
    /// What a process says of itself, as [`crate::observe::bytes`] writes it.
    Observed(Bytes),
    /// The link behind the one who was asked is lost: nobody knows the outcome. Why, for a person.
    Lost(String),
}

impl Value {
    /// Whether a request of `kind` is answered with such a value.
    fn suits(&self, kind: Kind) -> bool {
        match self {
            Value::Attached(_) => kind == Kind::Attach,
            Value::Parts(_) => matches!(kind, Kind::Read | Kind::ReadFile),
            Value::Extents(_) => kind == Kind::Allocation,
            Value::Volume(_) => matches!(kind, Kind::Resolve | Kind::Describe | Kind::Take | Kind::TakeLogs),
            Value::Names(_) => kind == Kind::List,
            Value::Count(_) => matches!(kind, Kind::Users | Kind::CheckHeaders),
            Value::Joined(..) => kind == Kind::Join,
            Value::Created(..) => kind == Kind::CreateFile,
            Value::File(_) => matches!(kind, Kind::Seal | Kind::FindFile),
            Value::Files(_) => matches!(kind, Kind::FilesOf | Kind::FilesOfSegment),
            Value::Lives(_) => kind == Kind::Lives,
            Value::Space(_) => matches!(kind, Kind::Enter | Kind::NeedSpace),
            Value::Lease(_) => matches!(kind, Kind::Grant | Kind::KeepAlive),
            Value::Swapped(_) => kind == Kind::Swap,
            Value::Snapshot(_) => kind == Kind::Watch,
            Value::Located(_) => kind == Kind::Locate,
            Value::Registered(_) => kind == Kind::Register,
            Value::Engines(_) => kind == Kind::Missing,
            Value::Observed(_) => matches!(kind, Kind::Observe | Kind::Explain),
            Value::Outcomes(_) => kind == Kind::Assign,
            Value::Left { .. } => kind == Kind::ReleaseSegment,
            Value::Held(_) => kind == Kind::Held,
            Value::Released(_) => kind == Kind::Released,
            Value::Holdings(_) => kind == Kind::Recover,
            Value::Lost(_) => {
                let of_segments =
                    matches!(kind, Kind::Read | Kind::Write | Kind::Discard | Kind::Flush | Kind::Allocation);
                of_segments || (64..80).contains(&(kind as u8))
            }
            Value::Done => !matches!(
                kind,
                Kind::Attach
                    | Kind::Read
                    | Kind::Allocation
                    | Kind::Resolve
                    | Kind::Describe
                    | Kind::Take
                    | Kind::TakeLogs
                    | Kind::List
                    | Kind::Users
                    | Kind::Join
                    | Kind::Enter
                    | Kind::CreateFile
                    | Kind::ReadFile
                    | Kind::CheckHeaders
                    | Kind::Seal
                    | Kind::NeedSpace
                    | Kind::FilesOf
                    | Kind::FindFile
                    | Kind::Lives
                    | Kind::FilesOfSegment
                    | Kind::Grant
                    | Kind::KeepAlive
                    | Kind::Swap
                    | Kind::Watch
                    | Kind::Locate
                    | Kind::Register
                    | Kind::Missing
                    | Kind::Observe
                    | Kind::Explain
                    | Kind::Assign
                    | Kind::ReleaseSegment
                    | Kind::Held
                    | Kind::Released
                    | Kind::Recover
            ),
        }
    }
}

/// The fields of the header of a reply.
pub(super) fn fields(reply: &Reply<Value>) -> Header {
    match &reply.result {
        // An attachment has no other epoch than its reply.
        Ok(Value::Attached(attachment)) => {
            Header { session: attachment.session, epoch: attachment.epoch, ..Header::default() }
        }
        _ => Header { epoch: reply.epoch, ..Header::default() },
    }
}

/// Appends the body of a reply to a request of `kind`; gives its payload, in parts, and the checksum of that.
///
/// # Panics
/// The reply does not suit the kind, or is longer than any may be: a bug of whoever made it.
pub(super) fn put_body(out: &mut Vec<u8>, kind: Kind, reply: &Reply<Value>) -> (Vec<Bytes>, u32) {
    let value = match &reply.result {
        Ok(value) => value,
        Err(error) => {
            put_error(out, error);
            return (vec![], 0);
        }
    };
    assert!(value.suits(kind), "a {} is not answered with {value:?}", kind.name());
    out.put_u8(if matches!(value, Value::Lost(_)) { LOST } else { DONE });
    match value {
        Value::Done | Value::Attached(_) => {}
        Value::Parts(parts) => return put_parts(out, parts),
        Value::Extents(extents) => extents.iter().take(EXTENTS_MAX).for_each(|extent| {
            out.put_u64_le(extent.len | if extent.allocated { ALLOCATED } else { 0 });
        }),
        Value::Volume(volume) => put_volume(out, volume),
        Value::Names(names) => names.iter().for_each(|name| put_text(out, name)),
        Value::Count(count) => out.put_u64_le(*count),
        Value::Lease(lease) => put_lease(out, lease),
        Value::Swapped(swapped) => put_swapped(out, swapped),
        Value::Snapshot(snapshot) => put_snapshot(out, snapshot),
        Value::Observed(content) => {
            assert!(content.len() <= OBSERVED_MAX, "{} bytes of what a process says of itself", content.len());
            return (vec![content.clone()], crc32c(content));
        }
        Value::Lost(message) => put_text(out, message),
        _ if has(kind) => return segments::put_value(out, value),
        _ => file::put_value(out, value),
    }
    (vec![], 0)
}

fn put_parts(out: &mut Vec<u8>, parts: &[ReadPart]) -> (Vec<Bytes>, u32) {
    let (mut payload, mut checksum) = (Vec::with_capacity(parts.len()), 0);
    for part in parts {
        let len = u32::try_from(part.len()).ok().filter(|len| u64::from(*len) <= REQUEST_SIZE_MAX);
        let len = len.expect("a part is no longer than a request");
        match part {
            ReadPart::Zeros(_) => out.put_u32_le(len | ZEROS),
            ReadPart::Data(data) => {
                out.put_u32_le(len);
                checksum = crc32c_append(checksum, data);
                payload.push(data.clone());
            }
        }
    }
    (payload, checksum)
}

/// What a reply to a request of `kind` says. Its payload is known to be intact.
pub(super) fn result(
    kind: Kind,
    header: &Header,
    body: &mut Fields<'_>,
    payload: Bytes,
) -> Option<Result<Value, Error>> {
    match body.u8()? {
        DONE => {}
        LOST => {
            let lost = Value::Lost(body.text()?);
            return lost.suits(kind).then_some(Ok(lost));
        }
        status => return Some(Err(error(status, body)?)),
    }
    Some(Ok(match kind {
        Kind::Attach => Value::Attached(Attachment { session: header.session, epoch: header.epoch }),
        Kind::Read | Kind::ReadFile => Value::Parts(parts(body, payload)?),
        Kind::Allocation => Value::Extents(body.all(extent)?),
        Kind::Resolve | Kind::Describe | Kind::Take | Kind::TakeLogs => Value::Volume(Box::new(volume(body)?)),
        Kind::List => Value::Names(body.all(Fields::text)?),
        Kind::Users | Kind::CheckHeaders => Value::Count(body.u64()?),
        Kind::Grant | Kind::KeepAlive => Value::Lease(lease(body)?),
        Kind::Observe | Kind::Explain => Value::Observed(payload),
        Kind::Swap => Value::Swapped(swapped(body)?),
        Kind::Watch => Value::Snapshot(snapshot(body)?),
        _ if has(kind) => segments::value(kind, body, payload)?,
        _ => file::value(kind, body)?,
    }))
}

fn parts(body: &mut Fields<'_>, mut payload: Bytes) -> Option<Vec<ReadPart>> {
    let parts = body.all(|body| {
        let len = body.u32()?;
        let part = match len & ZEROS {
            0 => ReadPart::Data((len as usize <= payload.len()).then(|| payload.split_to(len as usize))?),
            _ => ReadPart::Zeros(u64::from(len & !ZEROS)),
        };
        (1..=REQUEST_SIZE_MAX).contains(&part.len()).then_some(part)
    })?;
    payload.is_empty().then_some(parts)
}

fn extent(body: &mut Fields<'_>) -> Option<AllocationExtent> {
    let bits = body.u64()?;
    let (len, allocated) = (bits & !ALLOCATED, bits & ALLOCATED != 0);
    (1..=SEGMENT_SIZE).contains(&len).then_some(AllocationExtent { len, allocated })
}
