//! What stands in the bodies of requests and replies of [`crate::FileService`].

use base::limits::{FILE_SIZE_MAX, FRAME_BODY_MAX};
use base::{Epoch, FileId, Generation, Incarnation, SegmentId, StoreId, VolumeId};
use bytes::BufMut;

use super::fields::Fields;
use crate::files::{FileDescriptor, LISTED_MAX, Life, LifeSpace};

/// No copy in particular.
pub(super) const ANY_COPY: u8 = 255;
/// Bytes of a file in a list.
const FILE_LEN: usize = 56;
/// Bytes of a life in a list.
const LIFE_LEN: usize = 25;
/// What a list may bring.
pub(super) const LISTED_BYTES_MAX: u64 = (LISTED_MAX * FILE_LEN) as u64;

const _: () = assert!(LISTED_MAX * FILE_LEN < FRAME_BODY_MAX && LIFE_LEN < FILE_LEN, "a body has a whole list");

pub(super) fn put_life(out: &mut Vec<u8>, life: Life) {
    out.put_u64_le(life.incarnation.0);
    out.put_u64_le(life.generation.0);
}

pub(super) fn life(body: &mut Fields<'_>) -> Option<Life> {
    Some(Life { incarnation: Incarnation(body.u64()?), generation: Generation(body.u64()?) })
}

pub(super) fn store_id(body: &mut Fields<'_>) -> Option<StoreId> {
    Some(StoreId(u128::from_le_bytes(body.bytes()?)))
}

pub(super) fn file_id(body: &mut Fields<'_>) -> Option<FileId> {
    body.u64().map(FileId)
}

pub(super) fn put_space(out: &mut Vec<u8>, space: LifeSpace) {
    out.put_u64_le(space.granted);
    out.put_u64_le(space.used);
}

pub(super) fn space(body: &mut Fields<'_>) -> Option<LifeSpace> {
    Some(LifeSpace { granted: body.u64()?, used: body.u64()? })
}

/// No segment: there is no volume 0.
pub(super) const NO_SEGMENT: SegmentId = SegmentId { volume: VolumeId(0), index: 0 };

/// The segment that a file names, if it names one.
pub(super) fn named(segment: SegmentId) -> Option<SegmentId> {
    (segment != NO_SEGMENT).then_some(segment)
}

/// A length that is `u64::MAX` is none.
pub(super) fn put_file(out: &mut Vec<u8>, file: &FileDescriptor) {
    out.put_u64_le(file.id.0);
    out.put_u8(file.kind);
    out.put_u8(file.copies);
    out.put_u8(file.copies_wanted);
    out.put_u8(0);
    out.put_u64_le(file.incarnation.0);
    out.put_u64_le(file.epoch.0);
    out.put_u64_le(file.capacity);
    out.put_u64_le(file.sealed.unwrap_or(u64::MAX));
    let segment = file.segment.unwrap_or(NO_SEGMENT);
    out.put_u64_le(segment.volume.0);
    out.put_u32_le(segment.index);
}

pub(super) fn file(body: &mut Fields<'_>) -> Option<FileDescriptor> {
    let (id, kind) = (FileId(body.u64()?), body.u8()?);
    let (copies, copies_wanted, reserved) = (body.u8()?, body.u8()?, body.u8()?);
    let (incarnation, epoch) = (Incarnation(body.u64()?), Epoch(body.u64()?));
    let (capacity, sealed) = (body.u64()?, body.u64()?);
    let sealed = Some(sealed).filter(|length| *length != u64::MAX);
    let segment = named(SegmentId { volume: VolumeId(body.u64()?), index: body.u32()? });
    let possible = reserved == 0
        && capacity <= FILE_SIZE_MAX
        && sealed.is_none_or(|length| length <= FILE_SIZE_MAX)
        && segment.is_none_or(|segment| segment.volume != NO_SEGMENT.volume);
    possible.then_some(FileDescriptor {
        id,
        kind,
        incarnation,
        epoch,
        segment,
        capacity,
        sealed,
        copies,
        copies_wanted,
    })
}
