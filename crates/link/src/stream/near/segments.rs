//! The near end as a manager: a directory of segments, and where engines say that they live; and as an engine that owns
//! segments, of which each request says which one it is for.
//!
//! What is longer than a frame goes over in several. All assignments of one go to an engine together, because it reads the
//! log of a dead one once for them; of what an engine recovers or has released the next part is asked for by the last one
//! of the part before, and of what was left of a segment as much again as there is.

use std::rc::Rc;

use base::limits::{SEGMENT_SIZE, VOLUME_SIZE_MAX, VOLUMES_MAX};
use base::{Epoch, Error, Incarnation, Result, SegmentId, Term};
use wire::frame::{ASSIGNED_MAX, HOLDINGS_MAX, LEFT_MAX, Request, Value};
use wire::{
    Assignment, EngineRegistry, Holding, LeftSegment, LocalBoxFuture, Located, Registered, SegmentDirectory,
    SegmentOwner, Source, VolumeDescriptor,
};

use super::{Inner, NearEnd, other};

/// What there is of most segments takes no more bytes to say: the first answer to a release brings it.
const LEFT_USUAL: u32 = 64 * 1024;
/// Segments that there can be.
const SEGMENTS_MAX: usize = VOLUMES_MAX * (VOLUME_SIZE_MAX / SEGMENT_SIZE) as usize;

impl NearEnd {
    /// The engine `engine`, if it is the one that lives there: as long as another one does, `NotFound` is what it answers.
    /// A connection that fails is an error of kind `Io`, after which nobody knows what was done.
    pub fn engine(&self, engine: Incarnation) -> Rc<dyn SegmentOwner> {
        Rc::new(Engine { near: self.clone(), engine })
    }
}

impl SegmentDirectory for NearEnd {
    fn locate(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<Located>> {
        Box::pin(async move {
            match self.0.ask_any(Request::Locate { segment }).await? {
                Value::Located(located) => Ok(located),
                value => other(&value),
            }
        })
    }
}

impl EngineRegistry for NearEnd {
    fn register<'a>(
        &'a self,
        engine: Incarnation,
        server: &'a str,
        address: &'a str,
    ) -> LocalBoxFuture<'a, Result<Registered>> {
        Box::pin(async move {
            let (server, address) = (server.to_owned(), address.to_owned());
            match self.0.ask_any(Request::Register { engine, server, address }).await? {
                Value::Registered(registered) => Ok(registered),
                value => other(&value),
            }
        })
    }

    fn missing(&self, engines: Vec<Incarnation>) -> LocalBoxFuture<'_, Result<Vec<Incarnation>>> {
        Box::pin(async move {
            match self.0.ask_any(Request::Missing { engines }).await? {
                Value::Engines(engines) => Ok(engines),
                value => other(&value),
            }
        })
    }
}

/// An engine behind a near end.
struct Engine {
    near: NearEnd,
    engine: Incarnation,
}

impl Engine {
    fn inner(&self) -> &Rc<Inner> {
        &self.near.0
    }

    async fn assign_together(&self, term: Term, assignments: Vec<Assignment>) -> Vec<Result<()>> {
        let (engine, count) = (self.engine, assignments.len());
        let mut outcomes = match self.inner().ask_any(Request::Assign { engine, term, assignments }).await {
            Ok(Value::Outcomes(outcomes)) => outcomes,
            Ok(value) => other(&value),
            Err(error) => vec![Err(error); count],
        };
        outcomes.resize_with(count, || Err(Error::io("an engine has not said what came of an assignment: ask again")));
        outcomes
    }

    /// Asks for what there is of a released segment, as far as it takes no more than `most` bytes to say: how many it takes,
    /// and what was left.
    async fn left(&self, term: Term, segment: SegmentId, epoch: Epoch, most: u32) -> Result<(u32, LeftSegment)> {
        let engine = self.engine;
        match self.inner().ask_any(Request::ReleaseSegment { engine, term, segment, epoch, most }).await? {
            Value::Left { incarnation, len, content } => Ok((len, LeftSegment { incarnation, content })),
            value => other(&value),
        }
    }
}

/// Cuts off as many assignments as a frame has.
fn next_part(rest: &mut Vec<Assignment>) -> Vec<Assignment> {
    let mut len = 0;
    let fits = |assignment: &&Assignment| {
        if let Source::Left(left) = &assignment.source {
            len += left.content.len() as u64;
        }
        len <= LEFT_MAX
    };
    let count = rest.iter().take(ASSIGNED_MAX).take_while(fits).count();
    // One that no frame has is refused by itself.
    let behind = rest.split_off(count.max(1).min(rest.len()));
    std::mem::replace(rest, behind)
}

/// Asks for a list, in which each segment is once, part by part until one is not full.
async fn all_parts<T>(
    segment_of: impl Fn(&T) -> SegmentId,
    ask: impl AsyncFn(SegmentId) -> Result<Vec<T>>,
) -> Result<Vec<T>> {
    let (mut all, mut after) = (Vec::new(), SegmentId::default());
    loop {
        let part = ask(after).await?;
        let (is_last, last) = (part.len() < HOLDINGS_MAX, part.last().map(&segment_of));
        all.extend(part);
        let Some(last) = last.filter(|_| !is_last) else { return Ok(all) };
        if last <= after || all.len() > SEGMENTS_MAX {
            return Err(Error::io(format!(
                "an engine tells of {} segments, and has not come to an end behind {last}: it has a bug",
                all.len()
            )));
        }
        after = last;
    }
}

impl SegmentOwner for Engine {
    fn assign(&self, term: Term, mut assignments: Vec<Assignment>) -> LocalBoxFuture<'_, Vec<Result<()>>> {
        Box::pin(async move {
            let mut outcomes = Vec::with_capacity(assignments.len());
            while !assignments.is_empty() {
                let part = next_part(&mut assignments);
                outcomes.extend(self.assign_together(term, part).await);
            }
            outcomes
        })
    }

    fn refuse(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(self.inner().clone().done(Request::Refuse { engine: self.engine, term, segment, epoch }))
    }

    fn release(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<LeftSegment>> {
        Box::pin(async move {
            let (len, left) = self.left(term, segment, epoch, LEFT_USUAL).await?;
            if left.content.len() == len as usize {
                return Ok(left);
            }
            let (len, left) = self.left(term, segment, epoch, len).await?;
            match left.content.len() == len as usize {
                true => Ok(left),
                false => Err(Error::io(format!("what was left of {segment} has grown to {len} bytes: ask again"))),
            }
        })
    }

    fn held(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<Option<Epoch>>> {
        Box::pin(async move {
            match self.inner().ask_any(Request::Held { engine: self.engine, segment }).await? {
                Value::Held(epoch) => Ok(epoch),
                value => other(&value),
            }
        })
    }

    fn released(&self) -> LocalBoxFuture<'_, Result<Vec<(SegmentId, Epoch)>>> {
        Box::pin(async move {
            let ask = async |after| match self.inner().ask_any(Request::Released { engine: self.engine, after }).await?
            {
                Value::Released(released) => Ok(released),
                value => other(&value),
            };
            all_parts(|(segment, _)| *segment, ask).await
        })
    }

    fn forget_release(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(self.inner().clone().done(Request::ForgetRelease { engine: self.engine, term, segment, epoch }))
    }

    fn recover(&self, term: Term, dead: Incarnation) -> LocalBoxFuture<'_, Result<Vec<Holding>>> {
        Box::pin(async move {
            let engine = self.engine;
            let ask = async |after| match self.inner().ask_any(Request::Recover { engine, term, dead, after }).await? {
                Value::Holdings(holdings) => Ok(holdings),
                value => other(&value),
            };
            all_parts(|holding: &Holding| holding.segment, ask).await
        })
    }

    fn begin_attachment(
        &self,
        term: Term,
        volume: VolumeDescriptor,
        segment: SegmentId,
        epoch: Epoch,
    ) -> LocalBoxFuture<'_, Result<()>> {
        let (engine, volume) = (self.engine, Box::new(volume));
        Box::pin(self.inner().clone().done(Request::BeginAttachment { engine, term, volume, segment, epoch }))
    }

    fn drop_segment(&self, term: Term, segment: SegmentId, epoch: Epoch) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(self.inner().clone().done(Request::DropSegment { engine: self.engine, term, segment, epoch }))
    }
}
