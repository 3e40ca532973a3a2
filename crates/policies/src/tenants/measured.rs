//! A profile that keeps itself current (BurstCBS, OSDI 2024, §7, "automated cost profiling").
//!
//! Now and then a loop says how long it was busy, and what the requests cost, by the profile, that it started meanwhile. The
//! ratio, smoothed, says how much processor time one nanosecond of the profile is here: on another machine, after an update,
//! beside other work that the loop has. How kinds and sizes compare stays what the profile says.

/// The weight of a new ratio.
const WEIGHT: f64 = 0.2;
/// Ratios beyond are taken for these.
const RATIO: std::ops::RangeInclusive<f64> = 0.05..=20.0;
/// The least share of a span that a loop must have been busy: below, what it does for nobody weighs too much.
const BUSY_MIN: f64 = 0.2;

/// Processor time of this loop for each nanosecond of the profile.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    ratio: f64,
}

impl Default for Measured {
    fn default() -> Self {
        Measured { ratio: 1.0 }
    }
}

impl Measured {
    /// In `span_ns` the loop was busy for `busy_ns`, and started what costs `profiled_ns`.
    pub fn on_span(&mut self, span_ns: u64, busy_ns: u64, profiled_ns: f64) {
        if span_ns == 0 || profiled_ns <= 0.0 || (busy_ns as f64) < BUSY_MIN * span_ns as f64 {
            return;
        }
        let ratio = (busy_ns as f64 / profiled_ns).clamp(*RATIO.start(), *RATIO.end());
        self.ratio += WEIGHT * (ratio - self.ratio);
    }

    /// See the module.
    pub fn ratio(&self) -> f64 {
        self.ratio
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_follows_what_is_measured_while_there_is_something_to_measure() {
        let mut measured = Measured::default();
        for _ in 0..50 {
            measured.on_span(100, 80, 160.0);
        }
        assert!((measured.ratio() - 0.5).abs() < 0.01);
        let before = measured.ratio();
        measured.on_span(100, 10, 1.0);
        measured.on_span(100, 90, 0.0);
        measured.on_span(0, 0, 10.0);
        assert_eq!(measured.ratio(), before, "an idle loop says nothing");
        for _ in 0..100 {
            measured.on_span(100, 100, 0.001);
        }
        assert!(measured.ratio() <= 20.0);
    }
}
