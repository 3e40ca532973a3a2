//! The steps of the model, and what they are called in a trace.

use std::fmt::{self, Display, Formatter};
use std::ops::Range;

use policies::forwarding::{Content, Index, LogNumber, Route};

use super::state::{Agent, CELLS, LOGS, Merging, Open, Piece, World, Writes, settings};
use super::{Flaw, Forwarding};

/// What happens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A client begins a write of these cells; as a burst, to a log.
    Write(Range<u64>, Option<u8>),
    /// A piece of a write lands, and is answered.
    Land(u8),
    /// A piece of a write lands in a log, and is not answered.
    LandSilently(u8),
    /// A log refuses a piece of a write.
    Refuse(u8),
    /// The agent opens a session with the owner.
    OpenSession,
    /// The owner is asked to merge.
    AskToMerge,
    /// It merges a part, or is done.
    MergePart,
    /// The watermark is durable.
    WatermarkDurable,
    /// The agent forgets what was merged.
    Trim,
    /// The agent dies, and another one attaches.
    Die,
    /// A piece lands that an earlier agent had on its way to the owner.
    LandLate(u8),
    /// The owner merges a part that an earlier agent had asked for.
    MergeLate,
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Step::Write(cells, None) => write!(f, "a client writes cells {cells:?}"),
            Step::Write(cells, Some(log)) => write!(f, "a client writes cells {cells:?}, to log {log}"),
            Step::Land(write) => write!(f, "a piece of write {write} lands, and is answered"),
            Step::LandSilently(write) => write!(f, "a piece of write {write} lands in its log, without an answer"),
            Step::Refuse(write) => write!(f, "a log refuses a piece of write {write}"),
            Step::OpenSession => write!(f, "the agent opens a session with the owner"),
            Step::AskToMerge => write!(f, "the agent asks the owner to merge"),
            Step::MergePart => write!(f, "the owner merges a part, or is done"),
            Step::WatermarkDurable => write!(f, "the watermark is durable"),
            Step::Trim => write!(f, "the agent forgets what is merged"),
            Step::Die => write!(f, "the agent dies, and another one attaches"),
            Step::LandLate(write) => write!(f, "what a dead agent had on its way of write {write} lands"),
            Step::MergeLate => write!(f, "the owner merges a part for a dead agent"),
        }
    }
}

/// Every step that is possible.
pub(super) fn all(model: &Forwarding, world: &World, lead: &mut dyn FnMut(Step, World)) {
    let lead = &mut |step, mut next: World| {
        next.observe();
        lead(step, next);
    };
    writes(model, world, lead);
    pieces(model, world, lead);
    merges(model, world, lead);
    if !world.agent.has_session {
        lead(Step::OpenSession, with_session(world));
    }
    if world.left.deaths > 0 {
        lead(Step::Die, dead(model, world));
    }
    for (at, piece) in world.late.iter().enumerate() {
        let mut next = world.clone();
        let piece_gone = next.late.remove(at);
        next.land(&piece_gone);
        lead(Step::LandLate(piece.write), next);
    }
    if !world.late_merge.is_empty() {
        let mut next = world.clone();
        let part = next.late_merge.remove(0);
        next.merge(part);
        lead(Step::MergeLate, next);
    }
}

/// What is still on its way to the owner from an earlier agent never arrives: it may have before, in steps of its own.
fn with_session(world: &World) -> World {
    let mut next = world.clone();
    next.agent.has_session = true;
    next.late.retain(|piece| piece.log.is_some());
    next.late_merge.clear();
    next
}

fn writes(model: &Forwarding, world: &World, lead: &mut dyn FnMut(Step, World)) {
    if world.left.writes == 0 {
        return;
    }
    for range in [0..1, 1..2, 0..CELLS as u64] {
        let overlaps = |open: &Open| open.range.start < range.end && range.start < open.range.end;
        if world.agent.open.iter().any(overlaps) && !model.has(Flaw::LosesOrder) {
            continue;
        }
        for log in [None, Some(0), Some(1)] {
            let routes = match (log, model.has(Flaw::WritesOverLogged)) {
                (Some(_), _) => vec![Route::Log(range.clone(), 0)],
                (None, true) => vec![Route::Owner(range.clone())],
                (None, false) => world.agent.index.route(range.clone()),
            };
            let wants_owner = routes.iter().any(|route| matches!(route, Route::Owner(_)));
            let mut next = if wants_owner { with_session(world) } else { world.clone() };
            next.begun += 1;
            next.left.writes -= 1;
            let write = next.begun;
            range.clone().for_each(|cell| next.allowed[cell as usize].add(write));
            let mut beside = Writes::default();
            next.agent.open.iter().for_each(|open| beside.add(open.write));
            let (range, pieces) = (range.clone(), routes.len() as u8);
            next.agent.open.push(Open { write, range: range.clone(), pieces, has_failed: false, beside });
            for route in routes {
                let piece = match route {
                    Route::Owner(range) => Piece { range, write, log: None },
                    Route::Log(range, times) => append(&mut next, range, write, log.unwrap_or(0), times),
                    Route::Wait(..) => unreachable!("the bounds of the index are far away"),
                };
                next.agent.pieces.push(piece);
            }
            lead(Step::Write(range, log), next);
        }
    }
}

fn append(world: &mut World, range: Range<u64>, write: u8, log: u8, reschedules: u8) -> Piece {
    let log = LogNumber(log);
    let serial = world.agent.index.begin(range.clone(), log, Content::Data(range.start), reschedules);
    Piece { range, write, log: Some((log, serial)) }
}

fn pieces(model: &Forwarding, world: &World, lead: &mut dyn FnMut(Step, World)) {
    for at in 0..world.agent.pieces.len() {
        let mut next = world.clone();
        let piece = next.agent.pieces.remove(at);
        let write = piece.write;
        next.land(&piece);
        if let Some((_, serial)) = piece.log {
            next.agent.index.logged(serial);
        }
        next.answer(write, false);
        lead(Step::Land(write), next);

        let Some((log, serial)) = piece.log else { continue };
        if world.left.silences > 0 {
            let mut next = world.clone();
            next.left.silences -= 1;
            if model.has(Flaw::RetriesElsewhere) {
                // What was on its way lands, or not, before the next agent looks.
                next.agent.index.failed(serial);
                next.late.push(piece.clone());
                let again = append(&mut next, piece.range.clone(), write, (log.0 + 1) % LOGS, 0);
                next.agent.pieces[at] = again;
            } else {
                next.land(&piece);
            }
            lead(Step::LandSilently(write), next);
        }
        if world.left.refusals > 0 {
            let mut next = world.clone();
            next.left.refusals -= 1;
            next.agent.pieces.remove(at);
            if !model.has(Flaw::ForgetsVoids) {
                next.void.push(serial);
                next.void.sort();
            }
            if !model.has(Flaw::StopsAtHoles) {
                next.agent.index.failed(serial);
            }
            next.answer(write, true);
            lead(Step::Refuse(write), next);
        }
    }
}

fn merges(model: &Forwarding, world: &World, lead: &mut dyn FnMut(Step, World)) {
    match &world.agent.merging {
        None => {
            if let Some(batch) = world.agent.index.next_batch(u64::MAX, 2) {
                let mut next = with_session(world);
                next.agent.merging = Some(Merging::AtOwner(batch.through, batch.parts));
                lead(Step::AskToMerge, next);
            }
        }
        Some(Merging::AtOwner(through, parts)) => {
            let mut next = world.clone();
            let (mut parts, through) = (parts.clone(), *through);
            if parts.is_empty() {
                next.agent.merging = Some(Merging::Watermark(through));
                if model.has(Flaw::TrimsBeforeWatermark) {
                    next.agent.index.merged(through);
                }
            } else {
                next.merge(parts.remove(0));
                next.agent.merging = Some(Merging::AtOwner(through, parts));
            }
            lead(Step::MergePart, next);
        }
        Some(Merging::Watermark(through)) => {
            let mut next = world.clone();
            next.watermark = next.watermark.max(*through);
            next.agent.merging = Some(Merging::Durable(*through));
            lead(Step::WatermarkDurable, next);
        }
        Some(Merging::Durable(through)) => {
            let mut next = world.clone();
            next.agent.index.merged(*through);
            next.agent.merging = None;
            lead(Step::Trim, next);
        }
    }
}

fn dead(model: &Forwarding, world: &World) -> World {
    let mut next = world.clone();
    next.left.deaths -= 1;
    // To a log: what has landed has done so in a step of its own, and what has not is fenced.
    let pieces = std::mem::take(&mut next.agent.pieces);
    next.late.extend(pieces.into_iter().filter(|piece| piece.log.is_none()));
    next.late.retain(|piece| piece.log.is_none() || model.has(Flaw::RetriesElsewhere));
    if let Some(Merging::AtOwner(_, parts)) = next.agent.merging.take() {
        next.late_merge.extend(parts);
    }
    let index = match model.has(Flaw::AttachesUntraversed) {
        true => Index::new(settings(), next.watermark),
        false => next.traverse(),
    };
    next.agent = Agent::new(index);
    next
}
