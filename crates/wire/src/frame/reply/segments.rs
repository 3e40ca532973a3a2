//! Replies of [`crate::SegmentOwner`], [`crate::SegmentDirectory`] and [`crate::EngineRegistry`].

use base::checksum::crc32c;
use base::limits::ENGINES_MAX;
use base::{Bytes, Epoch, Incarnation};
use bytes::BufMut;

use super::super::fields::Fields;
use super::super::kind::Kind;
use super::super::segments::{
    ASSIGNED_MAX, HOLDINGS_MAX, LEFT_MAX, engine, holding, located, outcome, put_holding, put_located, put_outcome,
    put_registered, put_segment, registered, segment,
};
use super::Value;

/// Appends the body of such a reply; gives its payload and the checksum of that.
pub(super) fn put_value(out: &mut Vec<u8>, value: &Value) -> (Vec<Bytes>, u32) {
    let within = |count: usize, most: usize| assert!(count <= most, "a list of {count}, where {most} are the most");
    match value {
        Value::Located(place) => put_located(out, place),
        Value::Registered(registration) => put_registered(out, *registration),
        Value::Engines(engines) => {
            within(engines.len(), ENGINES_MAX);
            engines.iter().for_each(|engine| out.put_u64_le(engine.0));
        }
        Value::Outcomes(outcomes) => {
            within(outcomes.len(), ASSIGNED_MAX);
            outcomes.iter().for_each(|outcome| put_outcome(out, outcome));
        }
        Value::Left { incarnation, len, content } => {
            out.put_u64_le(incarnation.0);
            out.put_u32_le(*len);
            return match content.is_empty() {
                true => (vec![], 0),
                false => (vec![content.clone()], crc32c(content)),
            };
        }
        Value::Held(epoch) => epoch.iter().for_each(|epoch| out.put_u64_le(epoch.0)),
        Value::Released(released) => {
            within(released.len(), HOLDINGS_MAX);
            for (segment, epoch) in released {
                put_segment(out, *segment);
                out.put_u64_le(epoch.0);
            }
        }
        Value::Holdings(holdings) => {
            within(holdings.len(), HOLDINGS_MAX);
            holdings.iter().for_each(|holding| put_holding(out, holding));
        }
        _ => {}
    }
    (vec![], 0)
}

/// What a reply to a request of `kind` says: that it is done, where nothing else is to be said.
pub(super) fn value(kind: Kind, body: &mut Fields<'_>, content: Bytes) -> Option<Value> {
    Some(match kind {
        Kind::Locate => Value::Located(located(body)?),
        Kind::Register => Value::Registered(registered(body)?),
        Kind::Missing => Value::Engines(listed(body, ENGINES_MAX, engine)?),
        Kind::Assign => Value::Outcomes(listed(body, ASSIGNED_MAX, outcome)?),
        Kind::ReleaseSegment => {
            let (incarnation, len) = (Incarnation(body.u64()?), body.u32()?);
            let possible = u64::from(len) <= LEFT_MAX && (content.is_empty() || content.len() == len as usize);
            possible.then_some(Value::Left { incarnation, len, content })?
        }
        Kind::Held => Value::Held(if body.end().is_some() { None } else { Some(Epoch(body.u64()?)) }),
        Kind::Released => {
            Value::Released(listed(body, HOLDINGS_MAX, |body| Some((segment(body)?, Epoch(body.u64()?))))?)
        }
        Kind::Recover => Value::Holdings(listed(body, HOLDINGS_MAX, holding)?),
        _ => Value::Done,
    })
}

fn listed<T>(body: &mut Fields<'_>, most: usize, item: impl FnMut(&mut Fields<'_>) -> Option<T>) -> Option<Vec<T>> {
    body.all(item).filter(|items| items.len() <= most)
}
