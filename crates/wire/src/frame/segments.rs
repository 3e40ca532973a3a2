//! What stands in the bodies of requests and replies of [`crate::SegmentOwner`], [`crate::SegmentDirectory`] and
//! [`crate::EngineRegistry`].
//!
//! What was left of a segment is in the payload, where it may be as long as that may be: it names every table and data
//! file of the segment.

use base::limits::{FRAME_BODY_MAX, REQUEST_SIZE_MAX, VOLUME_NAME_MAX, VOLUME_OWNER_MAX};
use base::{Bytes, Epoch, Error, Generation, Incarnation, Result, SegmentId, Term, VolumeId};
use bytes::BufMut;

use super::error::{error, put_error_within};
use super::fields::{Fields, put_text};
use super::kind::Kind;
use super::volume::{VOLUME_LEN, put_volume, volume};
use crate::directory::VolumeDescriptor;
use crate::owner::{Assignment, Holding, LeftSegment, Located, Source};
use crate::registry::Registered;

/// Most assignments of one request.
pub const ASSIGNED_MAX: usize = 1024;
/// Most segments of one answer of an engine; those behind them are asked for by the last one.
pub const HOLDINGS_MAX: usize = 32_768;

/// Most bytes of what was left of one segment: the names of a million files.
pub const LEFT_MAX: u64 = REQUEST_SIZE_MAX / 2;

/// Bytes of an assignment beside its volume, at most.
const ASSIGNMENT_LEN: usize = 25;
/// Longest reason of one assignment that failed, in bytes.
const REASON_MAX: usize = 512;
/// What the answer to one assignment may bring.
pub(super) const OUTCOME_LEN_MAX: u64 = 3 + REASON_MAX as u64;
/// Bytes of what an engine has of a segment.
const HOLDING_LEN: usize = 29;
/// What a list of segments may bring.
pub(super) const HOLDINGS_BYTES_MAX: u64 = (HOLDINGS_MAX * HOLDING_LEN) as u64;

/// The first byte of a source.
const NOBODY: u8 = 0;
const LEFT: u8 = 1;
const ESTATE: u8 = 2;
/// The first byte of the outcome of an assignment that is done.
const DONE: u8 = 0;

const _: () = assert!(
    ASSIGNED_MAX * (ASSIGNMENT_LEN + VOLUME_LEN + 4 + VOLUME_NAME_MAX + VOLUME_OWNER_MAX) + 12 < FRAME_BODY_MAX,
    "a body has all assignments of a request"
);
const _: () = assert!(LEFT_MAX + OUTCOME_LEN_MAX <= REQUEST_SIZE_MAX, "a request has what was left of a segment");
const _: () = assert!(ASSIGNED_MAX * (3 + REASON_MAX) < FRAME_BODY_MAX, "a body has all their outcomes");
const _: () = assert!(HOLDINGS_MAX * HOLDING_LEN < FRAME_BODY_MAX, "a body has a whole list");
const _: () = assert!(base::limits::ENGINES_MAX * 8 < FRAME_BODY_MAX, "a body has all engines");

/// Whether requests of this kind are said here.
pub(super) fn has(kind: Kind) -> bool {
    kind as u8 >= Kind::Locate as u8
}

/// Whether a frame can say this volume, of which a segment is assigned or attached.
///
/// # Errors
/// `Invalid`.
pub(super) fn check_volume(volume: &VolumeDescriptor, segment: SegmentId) -> Result<()> {
    if volume.id != segment.volume {
        return Err(Error::invalid(format!("{segment} is no segment of {}: an order names the volume", volume.id)));
    }
    if volume.name.len() > VOLUME_NAME_MAX || volume.owner.len() > VOLUME_OWNER_MAX {
        return Err(Error::invalid(format!(
            "{} has a name of more than {VOLUME_NAME_MAX} bytes, or an owner of more than {VOLUME_OWNER_MAX}: rename it",
            volume.id
        )));
    }
    Ok(())
}

/// Whether a frame can say so much of a segment that was left.
///
/// # Errors
/// `Invalid`.
pub fn check_left(segment: SegmentId, len: u64) -> Result<()> {
    match len <= LEFT_MAX {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "what there is of {segment} takes {len} bytes to say, where {LEFT_MAX} are the most: it has too many files; \
             give data files a larger size (engine.data_file)"
        ))),
    }
}

pub(super) fn put_engine(out: &mut Vec<u8>, engine: Incarnation, term: Term) {
    out.put_u64_le(engine.0);
    out.put_u32_le(term.0);
}

pub(super) fn engine(body: &mut Fields<'_>) -> Option<Incarnation> {
    body.u64().map(Incarnation)
}

pub(super) fn term(body: &mut Fields<'_>) -> Option<Term> {
    body.u32().map(Term)
}

/// The volume of the segment stands behind it, and says which that is.
pub(super) fn put_assignment(out: &mut Vec<u8>, assignment: &Assignment) {
    out.put_u32_le(assignment.segment.index);
    out.put_u64_le(assignment.epoch.0);
    match &assignment.source {
        Source::Nobody => out.put_u8(NOBODY),
        Source::Left(left) => {
            out.put_u8(LEFT);
            out.put_u64_le(left.incarnation.0);
            out.put_u32_le(left.content.len() as u32);
        }
        Source::Estate(dead) => {
            out.put_u8(ESTATE);
            out.put_u64_le(dead.0);
        }
    }
    put_volume(out, &assignment.volume);
}

/// An assignment; what was left of its segment is next in `payload`.
pub(super) fn assignment(body: &mut Fields<'_>, payload: &mut Bytes) -> Option<Assignment> {
    let (index, epoch) = (body.u32()?, Epoch(body.u64()?));
    let source = match body.u8()? {
        NOBODY => Source::Nobody,
        LEFT => {
            let (incarnation, len) = (Incarnation(body.u64()?), body.u32()? as usize);
            let content = (len <= payload.len()).then(|| payload.split_to(len))?;
            Source::Left(LeftSegment { incarnation, content })
        }
        ESTATE => Source::Estate(Incarnation(body.u64()?)),
        _ => return None,
    };
    let volume = volume(body)?;
    let segment = SegmentId { volume: volume.id, index };
    Some(Assignment { volume, segment, epoch, source })
}

/// What came of an assignment. A long reason is cut.
pub(super) fn put_outcome(out: &mut Vec<u8>, outcome: &Result<()>) {
    match outcome {
        Ok(()) => out.put_u8(DONE),
        Err(error) => put_error_within(out, error, REASON_MAX),
    }
}

pub(super) fn outcome(body: &mut Fields<'_>) -> Option<Result<()>> {
    Some(match body.u8()? {
        DONE => Ok(()),
        code => Err(error(code, body).filter(|error| error.message.len() <= REASON_MAX)?),
    })
}

pub(super) fn put_segment(out: &mut Vec<u8>, segment: SegmentId) {
    out.put_u64_le(segment.volume.0);
    out.put_u32_le(segment.index);
}

pub(super) fn segment(body: &mut Fields<'_>) -> Option<SegmentId> {
    Some(SegmentId { volume: VolumeId(body.u64()?), index: body.u32()? })
}

pub(super) fn put_holding(out: &mut Vec<u8>, holding: &Holding) {
    put_segment(out, holding.segment);
    out.put_u64_le(holding.epoch.0);
    out.put_u64_le(holding.generation.0);
    out.put_u8(holding.is_released.into());
}

pub(super) fn holding(body: &mut Fields<'_>) -> Option<Holding> {
    let (segment, epoch) = (segment(body)?, Epoch(body.u64()?));
    Some(Holding { segment, epoch, generation: Generation(body.u64()?), is_released: body.bool()? })
}

pub(super) fn put_located(out: &mut Vec<u8>, located: &Located) {
    out.put_u64_le(located.owner.0);
    out.put_u64_le(located.epoch.0);
    put_text(out, &located.address);
}

pub(super) fn located(body: &mut Fields<'_>) -> Option<Located> {
    let (owner, epoch) = (engine(body)?, Epoch(body.u64()?));
    Some(Located { owner, address: body.text()?, epoch })
}

pub(super) fn put_registered(out: &mut Vec<u8>, registered: Registered) {
    out.put_u32_le(registered.lease_ms);
    out.put_u8(registered.is_in_charge.into());
}

pub(super) fn registered(body: &mut Fields<'_>) -> Option<Registered> {
    Some(Registered { lease_ms: body.u32()?, is_in_charge: body.bool()? })
}
