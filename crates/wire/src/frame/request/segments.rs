//! Requests of [`crate::SegmentOwner`], [`crate::SegmentDirectory`] and [`crate::EngineRegistry`].

use base::checksum::crc32c_append;
use base::limits::REQUEST_SIZE_MAX;
use base::{Bytes, Error, Result};
use bytes::BufMut;

use super::super::fields::{Fields, put_text};
use super::super::header::Header;
use super::super::kind::Kind;
use super::super::segments::{
    ASSIGNED_MAX, HOLDINGS_BYTES_MAX, OUTCOME_LEN_MAX, assignment, check_left, check_volume, engine, put_assignment,
    put_engine, term,
};
use super::super::volume::{put_volume, volume};
use super::Request;
use crate::owner::{Assignment, Source};
use crate::registry::{check_engines, check_registration};

/// What was left of the segments of these assignments, in their order.
fn contents(assignments: &[Assignment]) -> impl Iterator<Item = &Bytes> {
    assignments.iter().filter_map(|assignment| match &assignment.source {
        Source::Left(left) => Some(&left.content),
        Source::Nobody | Source::Estate(_) => None,
    })
}

fn contents_len(assignments: &[Assignment]) -> u64 {
    contents(assignments).map(|content| content.len() as u64).sum()
}

/// See [`Request::bytes`].
pub(super) fn bytes(request: &Request) -> u64 {
    match request {
        Request::Assign { assignments, .. } => contents_len(assignments) + assignments.len() as u64 * OUTCOME_LEN_MAX,
        Request::ReleaseSegment { most, .. } => (*most).into(),
        Request::Released { .. } | Request::Recover { .. } => HOLDINGS_BYTES_MAX,
        Request::Missing { engines } => engines.len() as u64 * 8,
        _ => 0,
    }
}

/// See [`Request::check`].
pub(super) fn check(request: &Request) -> Result<()> {
    match request {
        Request::Register { server, address, .. } => check_registration(server, address),
        Request::Missing { engines } => check_engines(engines),
        Request::BeginAttachment { volume, segment, .. } => check_volume(volume, *segment),
        Request::ReleaseSegment { segment, most, .. } => check_left(*segment, (*most).into()),
        Request::Assign { assignments, .. } => {
            let (count, len) = (assignments.len(), bytes(request));
            if !(1..=ASSIGNED_MAX).contains(&count) || len > REQUEST_SIZE_MAX {
                return Err(Error::invalid(format!(
                    "{count} assignments of {len} bytes are not said at once: {ASSIGNED_MAX} with {REQUEST_SIZE_MAX} bytes \
                     are the most"
                )));
            }
            assignments.iter().try_for_each(|assignment| {
                if let Source::Left(left) = &assignment.source {
                    check_left(assignment.segment, left.content.len() as u64)?;
                }
                check_volume(&assignment.volume, assignment.segment)
            })
        }
        _ => Ok(()),
    }
}

/// The fields of the header of a request.
pub(super) fn fields(request: &Request) -> Header {
    match request {
        Request::Locate { segment } | Request::Held { segment, .. } => {
            Header { segment: *segment, ..Header::default() }
        }
        Request::Released { after, .. } | Request::Recover { after, .. } => {
            Header { segment: *after, ..Header::default() }
        }
        Request::ReleaseSegment { segment, epoch, most, .. } => {
            Header { segment: *segment, epoch: *epoch, len: (*most).into(), ..Header::default() }
        }
        Request::Refuse { segment, epoch, .. }
        | Request::ForgetRelease { segment, epoch, .. }
        | Request::BeginAttachment { segment, epoch, .. }
        | Request::DropSegment { segment, epoch, .. } => {
            Header { segment: *segment, epoch: *epoch, ..Header::default() }
        }
        _ => Header::default(),
    }
}

pub(super) fn put_body(out: &mut Vec<u8>, request: &Request) {
    match request {
        Request::Register { engine, server, address } => {
            out.put_u64_le(engine.0);
            put_text(out, server);
            put_text(out, address);
        }
        Request::Missing { engines } => engines.iter().for_each(|engine| out.put_u64_le(engine.0)),
        Request::Assign { engine, term, assignments } => {
            put_engine(out, *engine, *term);
            assignments.iter().for_each(|assignment| put_assignment(out, assignment));
        }
        Request::Refuse { engine, term, .. }
        | Request::ReleaseSegment { engine, term, .. }
        | Request::ForgetRelease { engine, term, .. }
        | Request::DropSegment { engine, term, .. } => put_engine(out, *engine, *term),
        Request::Held { engine, .. } | Request::Released { engine, .. } => out.put_u64_le(engine.0),
        Request::Recover { engine, term, dead, .. } => {
            put_engine(out, *engine, *term);
            out.put_u64_le(dead.0);
        }
        Request::BeginAttachment { engine, term, volume, .. } => {
            put_engine(out, *engine, *term);
            put_volume(out, volume);
        }
        _ => {}
    }
}

/// The request of `kind` that a header, a body and a payload say.
pub(super) fn request(kind: Kind, header: &Header, body: &mut Fields<'_>, mut data: Bytes) -> Option<Request> {
    let Header { segment, epoch, len, .. } = *header;
    Some(match kind {
        Kind::Locate => Request::Locate { segment },
        Kind::Register => Request::Register { engine: engine(body)?, server: body.text()?, address: body.text()? },
        Kind::Missing => Request::Missing { engines: body.all(engine)? },
        Kind::Assign => {
            let (engine, term) = (engine(body)?, term(body)?);
            let assignments = body.all(|body| assignment(body, &mut data))?;
            // A payload is what was left, and nothing else.
            data.is_empty().then_some(Request::Assign { engine, term, assignments })?
        }
        Kind::Refuse => Request::Refuse { engine: engine(body)?, term: term(body)?, segment, epoch },
        Kind::ReleaseSegment => {
            let (engine, term) = (engine(body)?, term(body)?);
            Request::ReleaseSegment { engine, term, segment, epoch, most: u32::try_from(len).ok()? }
        }
        Kind::Held => Request::Held { engine: engine(body)?, segment },
        Kind::Released => Request::Released { engine: engine(body)?, after: segment },
        Kind::ForgetRelease => Request::ForgetRelease { engine: engine(body)?, term: term(body)?, segment, epoch },
        Kind::Recover => {
            Request::Recover { engine: engine(body)?, term: term(body)?, dead: engine(body)?, after: segment }
        }
        Kind::BeginAttachment => {
            let (engine, term, volume) = (engine(body)?, term(body)?, Box::new(volume(body)?));
            Request::BeginAttachment { engine, term, volume, segment, epoch }
        }
        Kind::DropSegment => Request::DropSegment { engine: engine(body)?, term: term(body)?, segment, epoch },
        _ => return None,
    })
}

/// The payload of a request, in parts, and its checksum.
pub(super) fn payload(request: &Request) -> (Vec<Bytes>, u32) {
    let Request::Assign { assignments, .. } = request else { return (vec![], 0) };
    let checksum = contents(assignments).fold(0, |checksum, content| crc32c_append(checksum, content));
    (contents(assignments).cloned().collect(), checksum)
}
