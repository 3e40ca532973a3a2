//! Time as an argument: nanoseconds since a loop's world began. Only `runtime` makes one from a clock.

use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time, in nanoseconds since the start of the world (real or simulated) that it belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// The start of the world.
    pub const ZERO: Instant = Instant(0);

    /// Nanoseconds from `earlier` to this point; zero when `earlier` is later.
    pub fn nanos_since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The time from `earlier` to this point; zero when `earlier` is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, span: Duration) -> Instant {
        Instant(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Instant(5) - Instant(9), Duration::ZERO);
        assert_eq!(Instant(5) + Duration::MAX, Instant(u64::MAX));
        assert_eq!((Instant(9) - Instant(5)).as_nanos(), 4);
    }
}
