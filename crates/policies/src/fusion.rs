//! When the Fusion Write Engine closes what it has gathered and appends it to the journal (EBS, FAST 2024, §2.3).
//!
//! Intuition: one append for many small writes costs the disk about as much as one for a single write, so it pays to
//! gather; but a write that waits for company is late. The paper waits for 16 KiB (one data block) or 8 us (its
//! interval between polls of the network). Here the loop's turn is the poll: what one turn received is there at its
//! end, so the default is not to wait beyond it, and a wait is a setting.
//!
//! While the disk is busy with appends, another small one gains nothing: it would land with the next one, and each
//! costs the processor as much as a large one. So with [`FusionSettings::busy_appends`] in flight what comes gathers
//! until one of them lands, or until there is enough for an append that is large in itself.
//!
//! Names: *gathered*, records that are in no append yet; *block*, the amount from which waiting is pointless; *busy*,
//! said of a disk that has appends in flight.
//!
//! Invariants: a decision to wait has a deadline, `wait` after the oldest gathered record; nothing gathered, nothing
//! to decide.

use std::time::Duration;

use base::{Instant, KIB};

/// When to close.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FusionSettings {
    /// From this many bytes on nothing is waited for.
    pub block_bytes: u64,
    /// How long the oldest record waits for others; zero: until the end of the turn.
    pub wait: Duration,
    /// From so many appends in flight on, less than `busy_bytes` waits until one of them lands.
    pub busy_appends: usize,
    /// Bytes that are appended however busy the disk is.
    pub busy_bytes: u64,
    /// Bytes that are closed at once, before the turn's end: one append cannot hold more.
    pub append_bytes_max: u64,
}

impl Default for FusionSettings {
    fn default() -> Self {
        FusionSettings {
            block_bytes: 16 * KIB,
            wait: Duration::ZERO,
            busy_appends: 2,
            busy_bytes: 64 * KIB,
            append_bytes_max: 1024 * KIB,
        }
    }
}

/// What to do with what is gathered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FusionPlan {
    /// Append it.
    Close,
    /// Look again at the end of this turn.
    AtTurnEnd,
    /// Look again at this point, or when more has come.
    WaitUntil(Instant),
    /// Look again when an append has landed, or when more has come.
    WhenLanded,
}

/// What is gathered, and since when.
#[derive(Clone, Debug)]
pub struct FusionGathering {
    settings: FusionSettings,
    bytes: u64,
    oldest: Option<Instant>,
}

impl FusionGathering {
    /// Nothing gathered.
    pub fn new(settings: FusionSettings) -> Self {
        assert!(settings.append_bytes_max >= settings.block_bytes, "an append holds a block");
        FusionGathering { settings, bytes: 0, oldest: None }
    }

    /// Bytes that are gathered.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A record came.
    pub fn on_record(&mut self, now: Instant, bytes: u64) -> FusionPlan {
        self.bytes += bytes;
        self.oldest.get_or_insert(now);
        match self.bytes >= self.settings.append_bytes_max {
            true => FusionPlan::Close,
            false => FusionPlan::AtTurnEnd,
        }
    }

    /// The turn ends, a wait is over, or an append landed; `in_flight` appends have not. `None`: nothing is gathered.
    pub fn plan_close(&self, now: Instant, in_flight: usize) -> Option<FusionPlan> {
        let deadline = self.oldest? + self.settings.wait;
        if in_flight >= self.settings.busy_appends && self.bytes < self.settings.busy_bytes {
            return Some(FusionPlan::WhenLanded);
        }
        Some(match self.bytes >= self.settings.block_bytes || deadline <= now {
            true => FusionPlan::Close,
            false => FusionPlan::WaitUntil(deadline),
        })
    }

    /// The oldest records, with `bytes` together, went into an append. What is left is overdue: it stays because no
    /// append was possible, not to wait for company.
    pub fn on_appended(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "only what was gathered is appended");
        self.bytes -= bytes;
        if self.bytes == 0 {
            self.oldest = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1000;

    fn gathering(wait_us: u64) -> FusionGathering {
        FusionGathering::new(FusionSettings { wait: Duration::from_micros(wait_us), ..Default::default() })
    }

    #[test]
    fn without_a_wait_the_turn_decides() {
        let mut gathering = gathering(0);
        assert_eq!(gathering.plan_close(Instant(5 * US), 0), None);
        assert_eq!(gathering.on_record(Instant(5 * US), 4096), FusionPlan::AtTurnEnd);
        assert_eq!(gathering.plan_close(Instant(5 * US), 0), Some(FusionPlan::Close));
        gathering.on_appended(4096);
        assert_eq!(gathering.plan_close(Instant(6 * US), 0), None);
    }

    #[test]
    fn a_wait_ends_with_a_block_or_with_its_deadline() {
        let mut gathering = gathering(8);
        gathering.on_record(Instant(100 * US), 4096);
        let wait = FusionPlan::WaitUntil(Instant(108 * US));
        assert_eq!(gathering.plan_close(Instant(101 * US), 0), Some(wait));
        gathering.on_record(Instant(103 * US), 4096);
        assert_eq!(gathering.plan_close(Instant(103 * US), 0), Some(wait), "the oldest record counts");
        assert_eq!(gathering.plan_close(Instant(108 * US), 0), Some(FusionPlan::Close));
        gathering.on_record(Instant(104 * US), 8192);
        assert_eq!(gathering.plan_close(Instant(104 * US), 0), Some(FusionPlan::Close), "16 KiB");
    }

    #[test]
    fn a_full_append_does_not_wait_for_the_turn() {
        let mut gathering = gathering(0);
        assert_eq!(gathering.on_record(Instant(0), 1024 * KIB - 1), FusionPlan::AtTurnEnd);
        assert_eq!(gathering.on_record(Instant(0), 1), FusionPlan::Close);
        gathering.on_appended(1024 * KIB - 1);
        assert_eq!((gathering.bytes(), gathering.plan_close(Instant(0), 0)), (1, Some(FusionPlan::Close)));
    }

    #[test]
    fn a_busy_disk_gathers_until_an_append_lands_or_a_large_one_is_there() {
        let mut gathering = gathering(0);
        gathering.on_record(Instant(0), 4096);
        assert_eq!(gathering.plan_close(Instant(0), 1), Some(FusionPlan::Close));
        assert_eq!(gathering.plan_close(Instant(90 * US), 2), Some(FusionPlan::WhenLanded));
        gathering.on_record(Instant(0), 60 * KIB - 1);
        assert_eq!(gathering.plan_close(Instant(90 * US), 8), Some(FusionPlan::WhenLanded));
        gathering.on_record(Instant(0), 1);
        assert_eq!(gathering.plan_close(Instant(90 * US), 8), Some(FusionPlan::Close));
    }
}
