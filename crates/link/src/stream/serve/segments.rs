//! A manager is asked, or an engine: only if it is the one that is meant. An address may have passed on to the next life
//! of a server, which must not do what was asked of the last one.

use base::{Error, Incarnation, Result, SegmentId};
use wire::SegmentOwner;
use wire::frame::{HOLDINGS_MAX, Request, Value, check_left};

use super::{Duties, done};

impl Duties {
    pub(super) async fn segments(&self, request: Request) -> Option<Result<Value>> {
        Some(match request {
            Request::Locate { segment } => {
                self.offer.get(|services| services.places.clone())?.locate(segment).await.map(Value::Located)
            }
            Request::Register { engine, server, address } => {
                let registry = self.offer.get(|services| services.registry.clone())?;
                registry.register(engine, &server, &address).await.map(Value::Registered)
            }
            Request::Missing { engines } => {
                let count = engines.len();
                let missing = self.offer.get(|services| services.registry.clone())?.missing(engines).await;
                missing.map(|mut missing| {
                    missing.truncate(count);
                    Value::Engines(missing)
                })
            }
            _ => {
                let (lives, owner) = self.offer.get(|services| services.segments.clone())?;
                return asked(lives, &*owner, request).await;
            }
        })
    }
}

/// What the engine that lives here answers.
async fn asked(lives: Incarnation, owner: &dyn SegmentOwner, request: Request) -> Option<Result<Value>> {
    if let Some(gone) = meant(&request).filter(|engine| *engine != lives) {
        return Some(Err(Error::not_found(format!("engine {gone} does not live here any more: {lives} does"))));
    }
    Some(match request {
        Request::Assign { term, assignments, .. } => {
            let count = assignments.len();
            let mut outcomes = owner.assign(term, assignments).await;
            outcomes.truncate(count);
            Ok(Value::Outcomes(outcomes))
        }
        Request::Refuse { term, segment, epoch, .. } => owner.refuse(term, segment, epoch).await.map(done),
        Request::ReleaseSegment { term, segment, epoch, most, .. } => {
            owner.release(term, segment, epoch).await.and_then(|left| {
                let len = left.content.len();
                check_left(segment, len as u64)?;
                let content = if len <= most as usize { left.content } else { Default::default() };
                Ok(Value::Left { incarnation: left.incarnation, len: len as u32, content })
            })
        }
        Request::Held { segment, .. } => owner.held(segment).await.map(Value::Held),
        Request::Released { after, .. } => {
            owner.released().await.map(|all| Value::Released(part(all, after, |(segment, _)| *segment)))
        }
        Request::ForgetRelease { term, segment, epoch, .. } => {
            owner.forget_release(term, segment, epoch).await.map(done)
        }
        Request::Recover { term, dead, after, .. } => {
            owner.recover(term, dead).await.map(|all| Value::Holdings(part(all, after, |holding| holding.segment)))
        }
        Request::BeginAttachment { term, volume, segment, epoch, .. } => {
            owner.begin_attachment(term, *volume, segment, epoch).await.map(done)
        }
        Request::DropSegment { term, segment, epoch, .. } => owner.drop_segment(term, segment, epoch).await.map(done),
        _ => return None,
    })
}

/// Which engine is meant.
fn meant(request: &Request) -> Option<Incarnation> {
    match request {
        Request::Assign { engine, .. }
        | Request::Refuse { engine, .. }
        | Request::ReleaseSegment { engine, .. }
        | Request::Held { engine, .. }
        | Request::Released { engine, .. }
        | Request::ForgetRelease { engine, .. }
        | Request::Recover { engine, .. }
        | Request::BeginAttachment { engine, .. }
        | Request::DropSegment { engine, .. } => Some(*engine),
        _ => None,
    }
}

/// Of a list, in which each segment is once, what an answer has of the segments behind `after`.
fn part<T>(mut all: Vec<T>, after: SegmentId, segment_of: impl Fn(&T) -> SegmentId) -> Vec<T> {
    all.retain(|item| segment_of(item) > after);
    all.sort_by_key(&segment_of);
    all.truncate(HOLDINGS_MAX);
    all
}
