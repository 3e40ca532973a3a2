//! Which tenants burst at the same time (BurstCBS, OSDI 2024, §7: what a server can tell whoever places volumes).
//!
//! Time is cut into slots. In each, loops note who had more than his base; when the next one begins, every two of them have
//! burst together once more. What was counted fades, half of it in ten minutes, so that what is told is about now.
//!
//! Bounded: of each tenant so many companions are counted, those that burst with it most; a new one takes the place of one that
//! has all but faded. Of a slot with very many that burst, only the first count: where so many do, nobody bursts with
//! somebody in particular.

use base::Map;

/// Length of a slot in nanoseconds.
pub const SLOT_NS: u64 = 100_000_000;
/// Slots in which half of what was counted fades.
const HALF_LIFE_SLOTS: f64 = 6000.0;
/// Companions of each tenant.
const COMPANIONS_MAX: usize = 16;
/// Tenants of a slot that count.
const BURSTING_MAX: usize = 64;
/// Slots in common below which a companion makes room for another one.
const FADED: f64 = 0.5;

/// See the module. Tenants are called by their keys.
#[derive(Clone, Debug, Default)]
pub struct Together {
    /// The slot that is being noted.
    slot: u64,
    bursting: Vec<u64>,
    known: Map<u64, Bursts>,
}

/// What is counted of one tenant, as of a slot.
#[derive(Clone, Debug, Default)]
struct Bursts {
    as_of: u64,
    slots: f64,
    with: Vec<(u64, f64)>,
}

impl Bursts {
    fn fade(&mut self, slot: u64) {
        let left = 0.5f64.powf(slot.saturating_sub(self.as_of) as f64 / HALF_LIFE_SLOTS);
        self.slots *= left;
        self.with.iter_mut().for_each(|(_, slots)| *slots *= left);
        self.as_of = self.as_of.max(slot);
    }

    fn count(&mut self, other: u64) {
        if let Some((_, slots)) = self.with.iter_mut().find(|(key, _)| *key == other) {
            return *slots += 1.0;
        }
        if self.with.len() < COMPANIONS_MAX {
            return self.with.push((other, 1.0));
        }
        let least = self.with.iter_mut().min_by(|(_, one), (_, two)| one.total_cmp(two));
        if let Some(least) = least.filter(|(_, slots)| *slots < FADED) {
            *least = (other, 1.0);
        }
    }
}

impl Together {
    /// A tenant had more than its base on some loop, in the slot of this time.
    pub fn note(&mut self, key: u64, now_ns: u64) {
        let slot = now_ns / SLOT_NS;
        if slot > self.slot {
            self.end_slot();
            self.slot = slot;
        }
        if self.bursting.len() < BURSTING_MAX && !self.bursting.contains(&key) {
            self.bursting.push(key);
        }
    }

    fn end_slot(&mut self) {
        for (at, &key) in self.bursting.iter().enumerate() {
            let bursts = self.known.entry(key).or_default();
            bursts.fade(self.slot);
            bursts.slots += 1.0;
            let others = self.bursting.iter().enumerate().filter(|(other, _)| *other != at);
            others.for_each(|(_, other)| bursts.count(*other));
        }
        self.bursting.clear();
    }

    /// A tenant is gone.
    pub fn forget(&mut self, key: u64) {
        self.bursting.retain(|other| *other != key);
        self.known.remove(&key);
        self.known.values_mut().for_each(|bursts| bursts.with.retain(|(other, _)| *other != key));
    }

    /// With whom a tenant bursts, most of all first, and in which part of the slots in which it bursts itself. The slot that
    /// is being noted is not in it.
    pub fn of(&self, key: u64) -> Vec<(u64, f64)> {
        let Some(bursts) = self.known.get(&key) else { return Vec::new() };
        let mut with: Vec<(u64, f64)> =
            bursts.with.iter().map(|(other, slots)| (*other, (slots / bursts.slots).min(1.0))).collect();
        with.sort_by(|(first, one), (second, two)| two.total_cmp(one).then(first.cmp(second)));
        with
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(together: &mut Together, from: u64, count: u64, keys: &[u64]) -> u64 {
        for slot in from..from + count {
            // Several loops note in the same slot.
            keys.iter().chain(keys).for_each(|key| together.note(*key, slot * SLOT_NS + key));
        }
        from + count
    }

    #[test]
    fn who_bursts_at_the_same_time_is_told_with_his_share() {
        let mut together = Together::default();
        let mut next = slots(&mut together, 1, 30, &[1, 2]);
        next = slots(&mut together, next, 10, &[1, 2, 3]);
        next = slots(&mut together, next, 60, &[1]);
        slots(&mut together, next, 1, &[4]);
        let near = |found: Vec<(u64, f64)>, expected: &[(u64, f64)]| {
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for ((key, share), (other, wanted)) in found.iter().zip(expected) {
                assert!(key == other && (share - wanted).abs() < 0.01, "{found:?}");
            }
        };
        near(together.of(1), &[(2, 0.4), (3, 0.1)]);
        near(together.of(2), &[(1, 1.0), (3, 0.25)]);
        near(together.of(3), &[(1, 1.0), (2, 1.0)]);
        assert!(together.of(4).is_empty() && together.of(9).is_empty());
        together.forget(2);
        near(together.of(1), &[(3, 0.1)]);
        assert!(together.of(2).is_empty());
    }

    #[test]
    fn what_was_counted_fades_and_a_pause_changes_no_share() {
        let mut together = Together::default();
        let next = slots(&mut together, 1, 100, &[1, 2]);
        slots(&mut together, next + HALF_LIFE_SLOTS as u64, 100, &[1, 3]);
        slots(&mut together, next + HALF_LIFE_SLOTS as u64 + 100, 1, &[1]);
        let found = together.of(1);
        assert_eq!((found[0].0, found[1].0), (3, 2), "{found:?}");
        assert!((found[0].1 - 0.667).abs() < 0.01 && (found[1].1 - 0.333).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn companions_are_bounded_and_new_ones_replace_those_that_have_faded() {
        let mut together = Together::default();
        let mut next = 1;
        for other in 0..COMPANIONS_MAX as u64 {
            next = slots(&mut together, next, 2, &[100, other]);
        }
        next = slots(&mut together, next, 5, &[100, 50]);
        assert!(together.of(100).iter().all(|(key, _)| *key != 50) && together.of(100).len() == COMPANIONS_MAX);
        next = slots(&mut together, next + 3 * HALF_LIFE_SLOTS as u64, 5, &[100, 50]);
        slots(&mut together, next, 1, &[100]);
        assert_eq!(together.of(100)[0].0, 50);
        assert_eq!(together.of(100).len(), COMPANIONS_MAX);
        let crowd: Vec<u64> = (0..200).collect();
        next = slots(&mut together, next + 1, 1, &crowd);
        slots(&mut together, next, 1, &[0]);
        assert_eq!(together.known.values().map(|bursts| bursts.with.len()).max(), Some(COMPANIONS_MAX));
        assert!(together.of(199).is_empty(), "only the first of a crowd count");
    }
}
