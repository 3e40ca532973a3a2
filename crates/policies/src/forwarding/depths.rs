//! What waits at agents to be sent to a server, as they say (DiffForward, §3.4: LQD, of which this is the part that the server
//! cannot see by itself).
//!
//! What an agent said counts until it says something else, and for no longer than a moment: who has nothing more to send says
//! nothing more.

use std::time::Duration;

use base::{Instant, Map};

/// For how long a depth counts.
const COUNTS: Duration = Duration::from_millis(100);
/// Agents that are remembered between looks, after which those are forgotten that said nothing for long.
const REMEMBERED_MAX: usize = 1_024;

/// The depths that agents told one server. An agent is called by a number of the caller's.
#[derive(Clone, Debug, Default)]
pub struct Depths {
    told: Map<u64, (u32, Instant)>,
}

impl Depths {
    /// A request of an agent says how many wait behind it. Of one that waits for nothing nothing is kept.
    #[inline]
    pub fn on_request(&mut self, now: Instant, agent: u64, depth: u32) {
        if depth == 0 {
            if !self.told.is_empty() {
                self.told.remove(&agent);
            }
            return;
        }
        if self.told.len() >= REMEMBERED_MAX {
            self.told.retain(|_, (_, at)| counts(now, *at));
        }
        self.told.insert(agent, (depth, now));
    }

    /// What all of them have.
    pub fn sum(&self, now: Instant) -> u64 {
        self.told.values().filter(|(_, at)| counts(now, *at)).map(|(depth, _)| u64::from(*depth)).sum()
    }
}

fn counts(now: Instant, at: Instant) -> bool {
    now.nanos_since(at) < COUNTS.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    #[test]
    fn what_was_said_counts_for_a_moment() {
        let mut depths = Depths::default();
        depths.on_request(at(0), 1, 3);
        depths.on_request(at(50), 2, 4);
        assert_eq!(depths.sum(at(50)), 7);
        depths.on_request(at(60), 2, 1);
        assert_eq!(depths.sum(at(60)), 4);
        assert_eq!(depths.sum(at(100)), 1, "the first one said nothing since");
        depths.on_request(at(110), 2, 0);
        assert_eq!(depths.sum(at(110)), 0);
        // Whoever comes and goes is not remembered for ever.
        for agent in 0..10_000 {
            depths.on_request(at(1_000 + agent), agent, 1);
        }
        assert!(depths.told.len() <= REMEMBERED_MAX, "{}", depths.told.len());
    }
}
