//! How fast stored bytes are read to see whether they are still right, and when that begins anew (EBS, FAST 2024, §2.2:
//! at most 10 MiB/s, everything within 15 days).
//!
//! The paper's two numbers hold together for up to 12.4 TiB of a server. Above that the rate wins: a round takes as
//! long as it takes, and is said to be late. Below it a round is done early, and the rest of the period is a rest.

use std::time::Duration;

use base::{Instant, MIB};

use crate::background::{Left, read_pace};

/// A start is no time for it: the first round begins after this part of a period (an hour of 15 days).
const FIRST_ROUND_PART: u32 = 360;

/// What an operator sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubSettings {
    /// Bytes that are read in a second at most, all copies counted; zero: no rounds but those that somebody asks for,
    /// and those without a pause.
    pub bytes_per_sec: u64,
    /// How long a round may take, and how often one begins.
    pub period: Duration,
}

impl Default for ScrubSettings {
    fn default() -> Self {
        ScrubSettings { bytes_per_sec: 10 * MIB, period: Duration::from_secs(15 * 24 * 3600) }
    }
}

impl ScrubSettings {
    /// When the first round of a life begins; `None`: never.
    pub fn first_round_at(&self, now: Instant) -> Option<Instant> {
        (self.bytes_per_sec > 0).then(|| now + self.period / FIRST_ROUND_PART)
    }

    /// When the round after the one of `began` begins, and whether that one took too long. It ended `now`.
    pub fn next_round_at(&self, began: Instant, now: Instant) -> (Instant, bool) {
        let due = began + self.period;
        (due.max(now), due < now)
    }

    /// How long reading so many bytes should take. `left` is what foreground work leaves of the disks' bandwidth.
    pub fn time_for(&self, bytes: u64, left: Left) -> Duration {
        if self.bytes_per_sec == 0 {
            return Duration::ZERO;
        }
        let pace = read_pace(self.bytes_per_sec, left).max(1);
        Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(pace)).min(u128::from(u64::MAX)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_the_paper_hold_together_for_12_4_tib() {
        let settings = ScrubSettings::default();
        let bytes = (12.35 * (1u64 << 40) as f64) as u64;
        let took = settings.time_for(bytes, Left::All);
        assert!(
            took < settings.period && settings.time_for(bytes / 100 * 101, Left::All) > settings.period,
            "{took:?}"
        );
    }

    #[test]
    fn it_yields_and_never_stops() {
        let settings = ScrubSettings { bytes_per_sec: 16 * MIB, ..ScrubSettings::default() };
        let micros = |left| settings.time_for(MIB, left).as_micros();
        let all = [Left::All, Left::Bytes(u64::MAX), Left::Unknown, Left::Bytes(8 * MIB), Left::Bytes(0)];
        assert_eq!(all.map(micros), [62_500, 62_500, 125_000, 125_000, 1_000_000]);
        assert_eq!(ScrubSettings { bytes_per_sec: 0, ..settings }.first_round_at(Instant(7)), None);
    }

    #[test]
    fn rounds_begin_once_a_period_or_as_often_as_they_can() {
        let settings = ScrubSettings { period: Duration::from_nanos(3_600), ..ScrubSettings::default() };
        assert_eq!(settings.first_round_at(Instant(5)), Some(Instant(15)));
        assert_eq!(settings.next_round_at(Instant(15), Instant(20)), (Instant(3_615), false));
        assert_eq!(settings.next_round_at(Instant(15), Instant(4_000)), (Instant(4_000), true));
    }
}
