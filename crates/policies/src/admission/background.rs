//! What the store below is asked for besides what clients wait for, as a rate.
//!
//! Each loop says now and then what its engine did ([`Work`]); a few tenths of a second of it together are a rate.

use std::time::Duration;

use base::Instant;

use super::cost::Load;
use crate::background::Work;

/// How long is counted for a rate. Loops say what they did every tenth of a second.
const SPAN: Duration = Duration::from_millis(200);
/// A rate is half of what was found last, and half of what it was before.
const WEIGHT: f64 = 0.5;
/// After so long what was before does not count.
const FORGOTTEN: Duration = Duration::from_secs(2);

/// The rate of background work.
#[derive(Clone, Debug)]
pub(super) struct Background {
    sum: Load,
    begun: Instant,
    per_sec: Load,
}

impl Background {
    pub fn new(now: Instant) -> Background {
        Background { sum: Load::default(), begun: now, per_sec: Load::default() }
    }

    /// Some was done.
    pub fn add(&mut self, work: &Work) {
        self.sum = self.sum.plus(&Load::of_work(work));
    }

    /// Looks whether enough time was counted.
    pub fn look(&mut self, now: Instant) {
        let span = now.since(self.begun);
        if span < SPAN {
            return;
        }
        let before = if span < FORGOTTEN { 1.0 - WEIGHT } else { 0.0 };
        let found = self.sum.scaled((1.0 - before) / span.as_secs_f64());
        self.per_sec = self.per_sec.scaled(before).plus(&found);
        (self.sum, self.begun) = (Load::default(), now);
    }

    /// What is done in a second.
    pub fn per_sec(&self) -> &Load {
        &self.per_sec
    }

    /// The same in bytes, read and written together.
    pub fn bytes_per_sec(&self) -> f64 {
        self.per_sec.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_of_a_few_moments_is_a_rate() {
        let mut background = Background::new(Instant(0));
        let at = |millis: u64| Instant(millis * 1_000_000);
        for millis in (100..=3_000).step_by(100) {
            background.add(&Work { read_bytes: 1_000, written_bytes: 9_000 });
            background.look(at(millis));
        }
        assert!((99_000.0..101_000.0).contains(&background.bytes_per_sec()), "{}", background.bytes_per_sec());
        background.look(at(6_000));
        assert_eq!(background.bytes_per_sec(), 0.0, "nobody said anything for long");
    }
}
