//! What the requests of all frontends have in common: what they take before they run, and what is kept of where their time
//! went.

use std::ops::Range;

use base::{Instant, Passage, Stage};
use policies::slow_requests::{Direction, Request};
use runtime::Handle;
use runtime::sync::{Budget, Permit};

use crate::statistics::VolumeStatistics;

/// The share of all payload memory that one connection may hold: an eighth.
pub(crate) const MEMORY_SHARE: u64 = 8;

/// The stages of an agent in which a loop that does not look keeps a request longer than need be.
const AT_AGENT: [Stage; 6] = [Stage::Intake, Stage::Payload, Stage::Order, Stage::Crossing, Stage::Turn, Stage::Reply];

/// Units of a budget, by the quick way if nobody waits, and whether it was not so quick.
pub(crate) async fn take(budget: &Budget, units: u64) -> (Permit, bool) {
    match budget.try_take(units) {
        Some(permit) => (permit, false),
        None => (budget.take(units).await, true),
    }
}

/// What is kept of a read or write until its reply is sent: its stages add up to the time until now, with what it may
/// have lain there before.
pub(crate) fn note(
    direction: Direction,
    range: Range<u64>,
    mut passage: Passage,
    unseen_ns: u64,
    latency_ns: u64,
) -> Request {
    passage.fill(if passage.crossed { Stage::Crossing } else { Stage::Turn }, latency_ns);
    passage.add(Stage::Busy, unseen_ns);
    Request { direction, offset: range.start, len: range.end - range.start, passage }
}

/// A reply was sent: was its request slow, and why?
pub(crate) fn account(handle: &Handle, now: Instant, request: &mut Request, statistics: &mut VolumeStatistics) {
    let passage = &mut request.passage;
    let total_ns = passage.total_ns();
    if statistics.slow.is_slow(request.direction, total_ns)
        && let Some(busy) = handle.busy_since(Instant(now.0.saturating_sub(total_ns)), now)
    {
        // What the owner found is part of this, if it is on this loop.
        let more_ns = busy.ns.saturating_sub(passage.of(Stage::Busy));
        passage.carve_busy(AT_AGENT.into_iter(), more_ns, busy.task);
        if passage.of(Stage::Busy) > 0 && passage.task.is_empty() {
            passage.task = busy.task;
        }
    }
    statistics.slow.on_request(now, request);
}
