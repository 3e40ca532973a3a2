//! Requests of [`crate::FileService`].

use base::limits::{FILE_SIZE_MAX, REQUEST_SIZE_MAX};
use base::units::is_aligned;
use base::{BLOCK, Bytes, Error, FileId, Incarnation, Result};
use bytes::BufMut;

use super::super::fields::Fields;
use super::super::file::{ANY_COPY, NO_SEGMENT, file_id, life, named, put_life, store_id};
use super::super::header::Header;
use super::super::kind::Kind;
use super::Request;
use crate::files::{Life, NewFile};

/// See [`Request::check`].
pub(super) fn check(request: &Request) -> Result<()> {
    let (file, offset, len, least) = match request {
        Request::Append { file, offset, data, .. } => (*file, *offset, data.len() as u64, BLOCK),
        Request::RepairCopy { file, offset, data, .. } => (*file, *offset, data.len() as u64, BLOCK),
        Request::ReadFile { file, offset, len, .. } => (*file, *offset, *len, 0),
        Request::Seal { file, length, .. } => (*file, *length, 0, 0),
        Request::CreateFile { file: NewFile { capacity, segment, .. }, .. } => {
            if let Some(segment) = segment.filter(|segment| segment.volume == NO_SEGMENT.volume) {
                return Err(Error::invalid(format!("no file belongs to {segment}: there is no volume 0")));
            }
            return match (BLOCK..=FILE_SIZE_MAX).contains(capacity) && is_aligned(*capacity, BLOCK) {
                true => Ok(()),
                false => Err(Error::invalid(format!("a file of {capacity} bytes is not a number of whole blocks"))),
            };
        }
        _ => return Ok(()),
    };
    let is_whole = is_aligned(offset, BLOCK) && is_aligned(len, BLOCK);
    let in_range = offset <= FILE_SIZE_MAX && (least..=REQUEST_SIZE_MAX).contains(&len);
    match is_whole && in_range {
        true => Ok(()),
        false => Err(Error::invalid(format!("{len} bytes at {offset} of file {file} are no whole blocks of a file"))),
    }
}

/// The fields of the header of a request.
pub(super) fn fields(request: &Request) -> Header {
    match request {
        Request::CreateFile { file: NewFile { capacity, epoch, segment, .. }, .. } => {
            Header { len: *capacity, epoch: *epoch, segment: segment.unwrap_or(NO_SEGMENT), ..Header::default() }
        }
        Request::FilesOfSegment { segment, .. } => Header { segment: *segment, ..Header::default() },
        Request::Append { offset, data, .. } => Header { offset: *offset, len: data.len() as u64, ..Header::default() },
        Request::ReadFile { offset, len, .. } => Header { offset: *offset, len: *len, ..Header::default() },
        Request::RepairCopy { offset, data, .. } => {
            Header { offset: *offset, len: data.len() as u64, ..Header::default() }
        }
        Request::Seal { length, .. } => Header { len: *length, ..Header::default() },
        _ => Header::default(),
    }
}

pub(super) fn put_body(out: &mut Vec<u8>, request: &Request) {
    let file_of = |out: &mut Vec<u8>, life: &Life, file: &FileId| {
        put_life(out, *life);
        out.put_u64_le(file.0);
    };
    match request {
        Request::Enter { store, life } => {
            out.put_u128_le(store.0);
            put_life(out, *life);
        }
        Request::CreateFile { life, file } => {
            put_life(out, *life);
            out.put_u8(file.kind);
            out.put_u8(file.copies);
            out.put_u8(file.prepared.into());
            out.put_u8(file.claim);
        }
        Request::Append { life, file, .. }
        | Request::CheckHeaders { life, file }
        | Request::Seal { life, file, .. }
        | Request::DeleteFile { life, file } => file_of(out, life, file),
        Request::ReadFile { life, file, copy, .. } => {
            file_of(out, life, file);
            out.put_u8(copy.unwrap_or(ANY_COPY));
        }
        Request::RepairCopy { life, file, copy, .. } => {
            file_of(out, life, file);
            out.put_u8(*copy);
        }
        Request::NeedSpace { life, bytes } => {
            put_life(out, *life);
            out.put_u64_le(*bytes);
        }
        Request::Fence { store, incarnation } => {
            out.put_u128_le(store.0);
            out.put_u64_le(incarnation.0);
        }
        Request::FilesOf { store, incarnation, after } => {
            out.put_u128_le(store.0);
            out.put_u64_le(incarnation.0);
            out.put_u64_le(after.0);
        }
        Request::FilesOfSegment { store, after: file, .. } | Request::FindFile { store, file } => {
            out.put_u128_le(store.0);
            out.put_u64_le(file.0);
        }
        Request::Lives { after } => out.put_u64_le(after.0),
        _ => {}
    }
}

/// The request of `kind` that a header, a body and a payload say.
pub(super) fn request(kind: Kind, header: &Header, body: &mut Fields<'_>, data: Bytes) -> Option<Request> {
    let Header { offset, len, epoch, segment, .. } = *header;
    Some(match kind {
        Kind::Join => Request::Join,
        Kind::Enter => Request::Enter { store: store_id(body)?, life: life(body)? },
        Kind::CreateFile => {
            let life = life(body)?;
            let (kind, copies, prepared, claim) = (body.u8()?, body.u8()?, body.bool()?, body.u8()?);
            let segment = named(segment);
            let file = NewFile { kind, capacity: len, copies, prepared, epoch, segment, claim };
            Request::CreateFile { life, file }
        }
        Kind::Append => Request::Append { life: life(body)?, file: file_id(body)?, offset, data: data.into() },
        Kind::ReadFile => {
            let (life, file, copy) = (life(body)?, file_id(body)?, body.u8()?);
            Request::ReadFile { life, file, copy: Some(copy).filter(|copy| *copy != ANY_COPY), offset, len }
        }
        Kind::RepairCopy => {
            Request::RepairCopy { life: life(body)?, file: file_id(body)?, copy: body.u8()?, offset, data }
        }
        Kind::CheckHeaders => Request::CheckHeaders { life: life(body)?, file: file_id(body)? },
        Kind::Seal => Request::Seal { life: life(body)?, file: file_id(body)?, length: len },
        Kind::DeleteFile => Request::DeleteFile { life: life(body)?, file: file_id(body)? },
        Kind::NeedSpace => Request::NeedSpace { life: life(body)?, bytes: body.u64()? },
        Kind::Fence => Request::Fence { store: store_id(body)?, incarnation: Incarnation(body.u64()?) },
        Kind::FilesOf => {
            let (store, incarnation) = (store_id(body)?, Incarnation(body.u64()?));
            Request::FilesOf { store, incarnation, after: file_id(body)? }
        }
        Kind::FilesOfSegment => Request::FilesOfSegment { store: store_id(body)?, segment, after: file_id(body)? },
        Kind::FindFile => Request::FindFile { store: store_id(body)?, file: file_id(body)? },
        Kind::Lives => Request::Lives { after: Incarnation(body.u64()?) },
        _ => return None,
    })
}
