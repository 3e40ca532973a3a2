//! What background work takes of the disks beside foreground work (EBS, FAST 2024, §3.2: what the foreground leaves is
//! for the rest).
//!
//! Intuition: admission says with each load what the disks have left (NSDI 2026, §4.2, equations 1 and 2, or what was
//! learned). What copies in the background keeps below that, and never stops altogether: garbage and missing copies only
//! get more. Where nobody asks for anything all is left; where somebody does and nobody can tell, a middle share is taken.

use std::time::Duration;

use base::Instant;

/// How long what was said of the disks' bandwidth holds: whoever says it does so with every tenth of a second of load.
const HOLDS: Duration = Duration::from_secs(1);
/// What is left to background work in any case, as a part of what it would take alone.
const LEAST_PART: u64 = 16;
/// What it takes where foreground work is going on and nobody knows what that leaves.
const MIDDLE_PART: u64 = 2;

/// What foreground work leaves of the disks' bandwidth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Left {
    /// All: there is none.
    #[default]
    All,
    /// There is some, and nobody knows.
    Unknown,
    /// So many bytes per second.
    Bytes(u64),
}

/// What was said last of what is left, and until when that is to be believed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spare {
    left: Left,
    until: Instant,
}

impl Spare {
    /// So much is left now.
    pub fn new(now: Instant, left: Left) -> Self {
        Spare { left, until: now + HOLDS }
    }

    /// What is left: all, where nothing was said for a while.
    pub fn at(&self, now: Instant) -> Left {
        if now < self.until { self.left } else { Left::All }
    }
}

/// Bytes that may be read in a second, by what would read `most` if it was alone.
pub fn read_pace(most: u64, left: Left) -> u64 {
    match left {
        Left::All => most,
        Left::Unknown => most / MIDDLE_PART,
        Left::Bytes(left) => left.clamp(most / LEAST_PART, most),
    }
}

/// Bytes that may be copied in a second, by what would copy `most` if it was alone.
pub fn copy_pace(most: u64, left: Left) -> u64 {
    read_pace(most, halved(left))
}

/// The same of copies that are lacking, of which `least` are made whatever else there is to do: as long as they lack, the
/// next failure loses data.
pub fn rebuild_pace(most: u64, least: u64, left: Left) -> u64 {
    match halved(left) {
        Left::Bytes(left) => left.max(least).min(most),
        other => read_pace(most, other),
    }
}

/// Each byte that is copied is read and written.
fn halved(left: Left) -> Left {
    match left {
        Left::Bytes(left) => Left::Bytes(left / 2),
        other => other,
    }
}

/// What background work had the disks do since the start, in bytes, one copy counted: dumps, merges, garbage collection,
/// copies, scrubbing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
}

impl Work {
    /// What came since `before`.
    pub fn since(&self, before: &Work) -> Work {
        Work {
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_take_half_of_what_is_left_but_always_a_little() {
        let all = [Left::Bytes(0), Left::Bytes(32), Left::Bytes(64), Left::Bytes(1000), Left::Unknown, Left::All];
        assert_eq!(all.map(|left| copy_pace(160, left)), [10, 16, 32, 160, 80, 160]);
        assert_eq!(all.map(|left| rebuild_pace(160, 3, left)), [3, 16, 32, 160, 80, 160]);
        assert_eq!([Left::Bytes(0), Left::Bytes(80)].map(|left| rebuild_pace(160, 20, left)), [20, 40]);
        assert_eq!(rebuild_pace(160, 1000, Left::Bytes(0)), 160);
    }

    #[test]
    fn what_was_said_of_the_disks_is_forgotten() {
        let spare = Spare::new(Instant(5), Left::Bytes(7));
        assert_eq!(spare.at(Instant(1_000_000_004)), Left::Bytes(7));
        assert_eq!(spare.at(Instant(1_000_000_005)), Left::All);
        assert_eq!(Spare::default().at(Instant::ZERO), Left::All);
    }
}
