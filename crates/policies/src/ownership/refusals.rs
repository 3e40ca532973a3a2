//! Who has refused which segment, and when it may be offered to them again.
//!
//! **Intuition.** What an engine cannot take now, another one may. When nobody could, what is in the way (a file that is
//! missing, a pool that is full) will seldom be gone a moment later, and each try is a record in the log: so a segment is
//! offered once more after a pause, which doubles each time. An engine that has just come has refused nothing, and is asked
//! at once.
//!
//! **Invariant.** A segment is here from its first refusal until it has an owner or its volume is gone: there are as many as
//! the table has segments, at most.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::{Incarnation, Instant, SegmentId, VolumeId};

/// The pause after the second round of refusals; after the first one there is none.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// The longest pause: whoever puts right what was in the way waits no longer than that.
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    segments: BTreeMap<SegmentId, Refused>,
}

#[derive(Debug)]
struct Refused {
    /// Those who are not to be asked before `until`.
    by: BTreeSet<Incarnation>,
    until: Instant,
    /// The pause after the next refusal.
    pause: Duration,
}

const NOBODY: &BTreeSet<Incarnation> = &BTreeSet::new();

impl Refusals {
    /// Who is not to be offered `segment`.
    pub(super) fn of(&self, segment: SegmentId) -> &BTreeSet<Incarnation> {
        self.segments.get(&segment).map_or(NOBODY, |refused| &refused.by)
    }

    pub(super) fn on_refused(&mut self, now: Instant, segment: SegmentId, engine: Incarnation) {
        let fresh = || Refused { by: BTreeSet::new(), until: now, pause: Duration::ZERO };
        let refused = self.segments.entry(segment).or_insert_with(fresh);
        refused.by.insert(engine);
        refused.until = now + refused.pause;
    }

    /// Those whose pause is over may be asked again.
    pub(super) fn on_time(&mut self, now: Instant) {
        for refused in self.segments.values_mut() {
            if now >= refused.until && !refused.by.is_empty() {
                refused.by.clear();
                refused.pause = (2 * refused.pause).clamp(PAUSE_MIN, PAUSE_MAX);
            }
        }
    }

    /// It has an owner.
    pub(super) fn forget(&mut self, segment: SegmentId) {
        self.segments.remove(&segment);
    }

    /// Nothing is left of it.
    pub(super) fn forget_volume(&mut self, volume: VolumeId) {
        self.segments.retain(|segment, _| segment.volume != volume);
    }
}
