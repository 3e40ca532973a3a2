//! Which segment caches are dumped now (EBS, FAST 2024, §2.3; the bound on all of them together is ours).
//!
//! A cache is dumped at its size by whoever fills it. These two plans are for the others: caches that are old, so
//! that a restart replays little; and caches under pressure of memory, largest first, because a large dump frees most
//! per append and writes the fewest partial blocks per byte.

use std::time::Duration;

use base::Instant;

/// A cache that could be dumped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate<K> {
    /// Whose it is.
    pub key: K,
    /// What it holds.
    pub bytes: u64,
    /// When its oldest write was applied.
    pub dirty_since: Instant,
}

/// What [`plan_age`] decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgePlan<K> {
    /// Caches to dump now.
    pub due: Vec<K>,
    /// When to ask again; never, if nothing is dirty.
    pub next_at: Option<Instant>,
}

/// The caches whose oldest write is at least `age_max` old, and when the next one will be.
pub fn plan_age<K>(candidates: impl Iterator<Item = Candidate<K>>, now: Instant, age_max: Duration) -> AgePlan<K> {
    let mut plan = AgePlan { due: Vec::new(), next_at: None };
    for candidate in candidates {
        let due_at = candidate.dirty_since + age_max;
        match due_at <= now {
            true => plan.due.push(candidate.key),
            false => plan.next_at = Some(plan.next_at.map_or(due_at, |at| at.min(due_at))),
        }
    }
    plan
}

/// The fewest caches that hold at least `bytes` together, largest first; of equals the oldest.
pub fn plan_pressure<K>(candidates: impl Iterator<Item = Candidate<K>>, bytes: u64) -> Vec<K> {
    let mut candidates: Vec<Candidate<K>> = candidates.collect();
    candidates.sort_by_key(|candidate| (std::cmp::Reverse(candidate.bytes), candidate.dirty_since));
    let mut covered = 0;
    let needed = candidates.iter().take_while(|candidate| {
        let more = covered < bytes;
        covered += candidate.bytes;
        more
    });
    let count = needed.count();
    candidates.truncate(count);
    candidates.into_iter().map(|candidate| candidate.key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caches() -> Vec<Candidate<char>> {
        let cache = |key, bytes, dirty_since| Candidate { key, bytes, dirty_since: Instant(dirty_since) };
        vec![cache('a', 10, 5), cache('b', 30, 7), cache('c', 30, 6), cache('d', 1, 0)]
    }

    #[test]
    fn old_ones_are_due_and_the_next_is_named() {
        let plan = |now| plan_age(caches().into_iter(), Instant(now), Duration::from_nanos(10));
        assert_eq!(plan(9), AgePlan { due: vec![], next_at: Some(Instant(10)) });
        assert_eq!(plan(15), AgePlan { due: vec!['a', 'd'], next_at: Some(Instant(16)) });
        assert_eq!(plan(17).next_at, None);
        assert_eq!(plan_age(std::iter::empty::<Candidate<char>>(), Instant(1), Duration::ZERO).next_at, None);
    }

    #[test]
    fn pressure_takes_the_largest_and_no_more_than_needed() {
        let plan = |bytes| plan_pressure(caches().into_iter(), bytes);
        assert_eq!(plan(0), []);
        assert_eq!(plan(1), ['c']);
        assert_eq!(plan(31), ['c', 'b']);
        assert_eq!(plan(1000), ['c', 'b', 'a', 'd']);
    }
}
