//! What background work takes of the disks beside foreground work (EBS, FAST 2024, §3.2: what the foreground leaves is
//! for the rest).
//!
//! Intuition: admission estimates with each load what the disks have left (NSDI 2026, §4.2, equations 1 and 2). What
//! copies in the background keeps below that, and never stops altogether: garbage and missing copies only get more.

use std::time::Duration;

use base::Instant;

/// How long what was said of the disks' bandwidth holds: whoever says it does so with every tenth of a second of load.
const HOLDS: Duration = Duration::from_secs(1);
/// What is left to background work in any case, as a part of what it would take alone.
const LEAST_PART: u64 = 16;

/// What foreground work leaves of the disks' bandwidth, and until when that is to be believed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spare {
    bytes_per_sec: u64,
    until: Instant,
}

impl Spare {
    /// So many bytes per second are left now.
    pub fn new(now: Instant, bytes_per_sec: u64) -> Self {
        Spare { bytes_per_sec, until: now + HOLDS }
    }

    /// Bytes per second that are left, if anybody knows.
    pub fn at(&self, now: Instant) -> Option<u64> {
        (now < self.until).then_some(self.bytes_per_sec)
    }
}

/// Bytes that may be read in a second, by what would read `most` if it was alone.
pub fn read_pace(most: u64, spare: Option<u64>) -> u64 {
    spare.map_or(most, |spare| spare.clamp(most / LEAST_PART, most))
}

/// Bytes that may be copied in a second, by what would copy `most` if it was alone, and `least` whatever else there is to
/// do: as long as copies are lacking the next failure loses data.
pub fn copy_pace(most: u64, least: u64, spare: Option<u64>) -> u64 {
    // Each byte that is copied is read and written.
    read_pace(most, spare.map(|spare| spare / 2)).max(least.min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_take_half_of_what_is_left_but_always_a_little() {
        let paces = [Some(0), Some(32), Some(64), Some(1000), None].map(|spare| copy_pace(160, 0, spare));
        assert_eq!(paces, [10, 16, 32, 160, 160]);
        assert_eq!([Some(0), Some(80), None].map(|spare| copy_pace(160, 20, spare)), [20, 40, 160]);
        assert_eq!(copy_pace(160, 1000, Some(0)), 160);
    }

    #[test]
    fn what_was_said_of_the_disks_is_forgotten() {
        let spare = Spare::new(Instant(5), 7);
        assert_eq!(spare.at(Instant(1_000_000_004)), Some(7));
        assert_eq!(spare.at(Instant(1_000_000_005)), None);
        assert_eq!(Spare::default().at(Instant::ZERO), None);
    }
}
