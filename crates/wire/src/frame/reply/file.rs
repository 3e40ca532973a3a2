//! Replies of [`crate::FileService`].

use base::Incarnation;
use bytes::BufMut;

use super::super::fields::Fields;
use super::super::file::{file, put_file, put_space, space, store_id};
use super::super::kind::Kind;
use super::Value;
use crate::files::{LISTED_MAX, LifeDescriptor};

pub(super) fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Joined(store, incarnation) => {
            out.put_u128_le(store.0);
            out.put_u64_le(incarnation.0);
        }
        Value::Created(file, space) => {
            put_file(out, file);
            put_space(out, *space);
        }
        Value::File(file) => file.iter().for_each(|file| put_file(out, file)),
        Value::Files(files) => {
            assert!(files.len() <= LISTED_MAX, "a list of {} files", files.len());
            files.iter().for_each(|file| put_file(out, file));
        }
        Value::Lives(lives) => {
            assert!(lives.len() <= LISTED_MAX, "a list of {} lives", lives.len());
            for life in lives {
                out.put_u64_le(life.incarnation.0);
                out.put_u8(life.is_fenced.into());
                put_space(out, life.space);
            }
        }
        Value::Space(space) => put_space(out, *space),
        _ => {}
    }
}

/// What a reply to a request of `kind` says: that it is done, where nothing else is to be said.
pub(super) fn value(kind: Kind, body: &mut Fields<'_>) -> Option<Value> {
    Some(match kind {
        Kind::Join => Value::Joined(store_id(body)?, Incarnation(body.u64()?)),
        Kind::CreateFile => Value::Created(file(body)?, space(body)?),
        Kind::Seal | Kind::FindFile => Value::File(if body.end().is_some() { None } else { Some(file(body)?) }),
        Kind::FilesOf | Kind::FilesOfSegment => Value::Files(listed(body, file)?),
        Kind::Lives => Value::Lives(listed(body, |body| {
            let (incarnation, is_fenced) = (Incarnation(body.u64()?), body.bool()?);
            Some(LifeDescriptor { incarnation, is_fenced, space: space(body)? })
        })?),
        Kind::Enter | Kind::NeedSpace => Value::Space(space(body)?),
        _ => Value::Done,
    })
}

fn listed<T>(body: &mut Fields<'_>, item: impl FnMut(&mut Fields<'_>) -> Option<T>) -> Option<Vec<T>> {
    body.all(item).filter(|items| items.len() <= LISTED_MAX)
}
