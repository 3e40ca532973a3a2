//! A change of what a volume is promised, and of where its bursts go: only what is named changes.

use base::levels::{Credits, Levels, Rate};
use base::{Error, Result};
use wire::Forwarding;

/// What is to change of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VolumeChange {
    /// Of what it is promised, and the most that it gets.
    pub levels: LevelsChange,
    /// Whether its bursts are spread.
    pub forwarding: Option<Forwarding>,
}

impl VolumeChange {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == VolumeChange::default()
    }
}

impl From<LevelsChange> for VolumeChange {
    fn from(levels: LevelsChange) -> Self {
        VolumeChange { levels, forwarding: None }
    }
}

/// Refuses to spread bursts where all is on one machine.
///
/// # Errors
/// `Invalid`.
pub(crate) fn check_spread_on_one_machine(forwarding: Option<Forwarding>) -> Result<()> {
    match forwarding {
        Some(Forwarding::Auto | Forwarding::On) => Err(Error::invalid(
            "bursts cannot be spread: this store has one server, and that takes several (see docs/CLUSTER.md)",
        )),
        _ => Ok(()),
    }
}

/// What is to change; 0 takes one away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LevelsChange {
    /// Operations per second of the base level.
    pub base_iops: Option<u64>,
    /// Bytes per second of the base level.
    pub base_bytes_per_sec: Option<u64>,
    /// Operations per second of the burst level.
    pub burst_iops: Option<u64>,
    /// Bytes per second of the burst level.
    pub burst_bytes_per_sec: Option<u64>,
    /// Most that is saved of an unused base level, in seconds of it.
    pub credit_seconds: Option<u32>,
    /// How much of an unused base level is saved, in percent.
    pub credit_percent: Option<u32>,
}

impl LevelsChange {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == LevelsChange::default()
    }

    /// The levels after it.
    pub fn over(&self, levels: Levels) -> Levels {
        Levels {
            base: Rate {
                iops: self.base_iops.unwrap_or(levels.base.iops),
                bytes_per_sec: self.base_bytes_per_sec.unwrap_or(levels.base.bytes_per_sec),
            },
            burst: Rate {
                iops: self.burst_iops.unwrap_or(levels.burst.iops),
                bytes_per_sec: self.burst_bytes_per_sec.unwrap_or(levels.burst.bytes_per_sec),
            },
            credits: Credits {
                cap_seconds: self.credit_seconds.unwrap_or(levels.credits.cap_seconds),
                percent: self.credit_percent.unwrap_or(levels.credits.percent),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_changes() {
        let levels = Levels {
            base: Rate { iops: 1, bytes_per_sec: 2 },
            burst: Rate { iops: 3, bytes_per_sec: 4 },
            credits: Credits { cap_seconds: 5, percent: 6 },
        };
        assert!(LevelsChange::default().is_empty() && LevelsChange::default().over(levels) == levels);
        let change = LevelsChange { base_bytes_per_sec: Some(20), burst_iops: Some(0), ..LevelsChange::default() };
        let expected =
            Levels { base: Rate { iops: 1, bytes_per_sec: 20 }, burst: Rate { iops: 0, bytes_per_sec: 4 }, ..levels };
        assert!(!change.is_empty() && change.over(levels) == expected);
        let credits = LevelsChange { credit_seconds: Some(50), credit_percent: Some(0), ..LevelsChange::default() };
        assert_eq!(credits.over(levels).credits, Credits { cap_seconds: 50, percent: 0 });
    }
}
