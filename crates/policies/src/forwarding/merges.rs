//! When an owner merges, and of which segment first (DiffForward, §3.4).
//!
//! **Intuition.** Merging is for moments in which nobody wants the server (GQD is 0). Of the batches that agents ask for it takes
//! that of the longest log first, as the paper has it. A log that grows old or long meanwhile is merged all the same, for a
//! part of the time: otherwise a server that is never idle would let logs grow to their bound, and all would wait there.
//!
//! A pure decision: who asks is told when to look again.

use std::time::Duration;

use base::Instant;

/// Settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MergeSettings {
    /// A batch that waited for so long is merged though others want the server.
    pub patience: Duration,
    /// So is one of a log of which so many of a hundred of its bound are in use.
    pub full_percent: u32,
    /// Such merges take so many of a hundred of the time at most.
    pub share_percent: u32,
}

impl Default for MergeSettings {
    fn default() -> Self {
        MergeSettings { patience: Duration::from_secs(10), full_percent: 50, share_percent: 25 }
    }
}

/// A batch that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Waiting {
    ticket: u64,
    since: Instant,
    /// Of the log that it is from: bytes that wait in it, and of how many.
    log_bytes: u64,
    log_bytes_max: u64,
}

/// What an owner was asked to merge. A batch is called by a ticket of the caller's.
#[derive(Clone, Debug)]
pub struct Merges {
    settings: MergeSettings,
    waiting: Vec<Waiting>,
    /// When a batch that could not wait was begun last, and when the next one may be.
    forced_at: Instant,
    next_forced: Instant,
}

/// How often whoever waits looks again, while somebody wants the server.
const LOOK: Duration = Duration::from_millis(5);

impl Merges {
    /// Nothing was asked for.
    pub fn new(settings: MergeSettings) -> Merges {
        Merges { settings, waiting: Vec::new(), forced_at: Instant(0), next_forced: Instant(0) }
    }

    /// A batch is asked for, of a log that has so many bytes of so many. Asked again it has waited since it was asked first.
    pub fn on_asked(&mut self, now: Instant, ticket: u64, log_bytes: u64, log_bytes_max: u64) {
        if let Some(known) = self.waiting.iter_mut().find(|waiting| waiting.ticket == ticket) {
            (known.log_bytes, known.log_bytes_max) = (log_bytes, log_bytes_max);
            return;
        }
        self.waiting.push(Waiting { ticket, since: now, log_bytes, log_bytes_max });
    }

    /// Nobody wants it any more.
    pub fn forget(&mut self, ticket: u64) {
        self.waiting.retain(|waiting| waiting.ticket != ticket);
    }

    /// The batch to merge now, if there is one; `depth` is GQD.
    pub fn plan_next(&mut self, now: Instant, depth: u64) -> Option<u64> {
        let may_all = depth == 0;
        let is_time = now >= self.next_forced;
        let candidates =
            self.waiting.iter().enumerate().filter(|(_, one)| may_all || is_time && self.is_urgent(now, one));
        // The longest; of those that are as long, who waits longest.
        let (at, _) = candidates.max_by_key(|(at, one)| (one.log_bytes, std::cmp::Reverse(*at)))?;
        let chosen = self.waiting.remove(at);
        if !may_all {
            self.forced_at = now;
        }
        Some(chosen.ticket)
    }

    /// A batch is done that was begun then. If it could not wait, the next one that cannot waits for its part of the time.
    pub fn on_done(&mut self, now: Instant, begun: Instant) {
        if begun == self.forced_at {
            let took = now.nanos_since(begun);
            let share = u64::from(self.settings.share_percent.clamp(1, 100));
            self.next_forced = Instant(now.0.saturating_add(took.saturating_mul(100 - share) / share));
        }
    }

    /// When to look again; none: nothing waits.
    pub fn next_look(&self, now: Instant) -> Option<Instant> {
        (!self.waiting.is_empty()).then(|| now + LOOK)
    }

    /// Batches that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn is_urgent(&self, now: Instant, one: &Waiting) -> bool {
        let is_old = now.nanos_since(one.since) >= self.settings.patience.as_nanos() as u64;
        let is_long =
            one.log_bytes.saturating_mul(100) >= one.log_bytes_max.saturating_mul(self.settings.full_percent.into());
        is_old || is_long
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    #[test]
    fn the_longest_log_is_first_while_nobody_wants_the_server() {
        let mut merges = Merges::new(MergeSettings::default());
        for (ticket, bytes) in [(1, 10), (2, 30), (3, 30), (4, 20)] {
            merges.on_asked(at(0), ticket, bytes, 1_000);
        }
        assert_eq!(merges.plan_next(at(1), 1), None, "somebody wants it");
        assert_eq!(merges.next_look(at(1)), Some(at(6)));
        merges.forget(4);
        let order: Vec<u64> = std::iter::from_fn(|| merges.plan_next(at(1), 0)).collect();
        assert_eq!(order, [2, 3, 1]);
        assert_eq!((merges.next_look(at(1)), merges.is_empty()), (None, true));
    }

    /// A quarter of the time is theirs.
    #[test]
    fn what_is_old_or_long_is_merged_all_the_same_for_a_part_of_the_time() {
        let mut merges = Merges::new(MergeSettings::default());
        merges.on_asked(at(0), 1, 10, 1_000);
        merges.on_asked(at(0), 2, 500, 1_000);
        merges.on_asked(at(0), 3, 499, 1_000);
        assert_eq!(merges.plan_next(at(1), 5), Some(2), "it is half full");
        merges.on_done(at(11), at(1));
        assert_eq!(merges.plan_next(at(20), 5), None);
        merges.on_asked(at(20), 4, 600, 1_000);
        assert_eq!(merges.plan_next(at(40), 5), None, "ten ms of merging, thirty of others");
        assert_eq!(merges.plan_next(at(41), 5), Some(4));
        merges.on_done(at(42), at(41));
        assert_eq!(merges.plan_next(at(9_999), 5), None);
        assert_eq!(merges.plan_next(at(10_000), 5), Some(3), "they are old, and it is longer");
        // What could wait does not count.
        assert_eq!(merges.plan_next(at(10_001), 0), Some(1));
        merges.on_done(at(20_000), at(10_001));
        merges.on_asked(at(20_000), 5, 900, 1_000);
        assert_eq!(merges.plan_next(at(20_000), 5), Some(5));
    }
}
