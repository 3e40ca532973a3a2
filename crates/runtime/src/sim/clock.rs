//! A node's clock: virtual time as this node sees it.

use base::Instant;

/// What the first node's calendar shows when a world begins, in milliseconds since 1970: a day in 2026.
const WALL_START_MS: u64 = 1_780_000_000_000;

/// A clock that starts at some number, drifts at a settable rate, may jump forwards, and never runs backwards.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// The clock showed `shown_ns` when the world's time was `world_ns`.
    world_ns: u64,
    shown_ns: u64,
    drift_ppm: i64,
    wall_offset_ms: i64,
}

/// Parts per million.
const MILLION: i128 = 1_000_000;

impl Clock {
    pub(super) fn new(shown_ns: u64, drift_ppm: i64, wall_offset_ms: i64) -> Self {
        assert!(drift_ppm.abs() < MILLION as i64 / 2, "a clock drifts by less than half");
        Clock { world_ns: 0, shown_ns, drift_ppm, wall_offset_ms }
    }

    /// What the clock shows.
    pub(super) fn show(&self, world_ns: u64) -> Instant {
        let passed_ns = world_ns.saturating_sub(self.world_ns);
        if self.drift_ppm == 0 {
            return Instant(self.shown_ns + passed_ns);
        }
        let passed = i128::from(passed_ns);
        Instant(self.shown_ns + (passed * (MILLION + i128::from(self.drift_ppm)) / MILLION) as u64)
    }

    /// When in the world's time the clock will show `instant`.
    pub(super) fn when(&self, instant: Instant) -> u64 {
        let left = i128::from(instant.0.saturating_sub(self.shown_ns));
        let rate = MILLION + i128::from(self.drift_ppm);
        let passed = (left * MILLION + rate - 1) / rate;
        self.world_ns.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }

    /// What the calendar shows, in milliseconds since 1970.
    pub(super) fn wall_ms(&self, world_ns: u64) -> u64 {
        (WALL_START_MS + world_ns / 1_000_000).saturating_add_signed(self.wall_offset_ms)
    }

    /// From now on the clock gains `drift_ppm` millionths.
    pub(super) fn set_drift(&mut self, world_ns: u64, drift_ppm: i64) {
        let shown_ns = self.show(world_ns).0;
        *self = Clock { world_ns, ..Clock::new(shown_ns, drift_ppm, self.wall_offset_ms) };
    }

    /// The clock jumps forwards, as that of a paused virtual machine does.
    pub(super) fn jump(&mut self, span_ns: u64) {
        self.shown_ns = self.shown_ns.saturating_add(span_ns);
    }

    /// Sets the calendar only.
    pub(super) fn set_wall_offset(&mut self, wall_offset_ms: i64) {
        self.wall_offset_ms = wall_offset_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drifts_jumps_and_finds_its_way_back() {
        for drift_ppm in [-300_000, -7, 0, 13, 400_000] {
            let mut clock = Clock::new(1_000, 0, 0);
            assert_eq!(clock.show(500), Instant(1_500));
            clock.set_drift(500, drift_ppm);
            assert_eq!(clock.show(500), Instant(1_500));
            assert_eq!(clock.show(1_000_500).0, (1_001_500 + drift_ppm) as u64);
            for target in [1_500, 1_501, 99_999, 123_456_789] {
                let when = clock.when(Instant(target));
                assert!(clock.show(when) >= Instant(target) && (when <= 500 || clock.show(when - 1) < Instant(target)));
            }
            clock.jump(77);
            assert_eq!(clock.show(500), Instant(1_577));
        }
    }
}
