//! Base and burst levels of a volume (EBS, FAST 2024, §3.2): what it was promised, and the most that it gets.
//!
//! I/O within the **base level** comes before everybody's burst. The **burst level** bounds what a volume gets however
//! idle the store is. Both have a rate in operations and one in bytes, and what is started has to fit both; they change
//! without a change of the capacity. Without levels a volume has no promise and no bound.
//!
//! **Credits.** What a volume does not use of its base level may be saved: a part of it, up to so many seconds of the base
//! level. A volume that saves bursts on what it has saved, and on nothing else: credits permit bursts, and are never base,
//! because what many have saved would be asked for at the same time, and nobody has promised that. Off by default.

/// Most operations per second that a base level may promise.
pub const BASE_IOPS_MAX: u64 = 200_000;
/// Most operations per second that a burst level may allow.
pub const BURST_IOPS_MAX: u64 = 1_000_000;

/// Which part of its volume's rate a request belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Level {
    /// Nobody has decided that.
    #[default]
    Open,
    /// The base level, which was promised.
    Base,
    /// The burst level: what is idle.
    Burst,
    /// None: it was charged when it was logged, and comes home from there while no client wants the server.
    Merge,
}

/// A rate in both dimensions; 0 in one of them: that one is not given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rate {
    /// Operations per second.
    pub iops: u64,
    /// Bytes per second.
    pub bytes_per_sec: u64,
}

impl Rate {
    /// Neither of them is given.
    pub fn is_none(&self) -> bool {
        self.iops == 0 && self.bytes_per_sec == 0
    }
}

/// What a volume may save of its base level.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Credits {
    /// Most that is saved, in seconds of the base level; 0: nothing.
    pub cap_seconds: u32,
    /// How much of what is unused is saved, in percent.
    pub percent: u32,
}

/// The levels of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Levels {
    /// What it was promised; none: nothing.
    pub base: Rate,
    /// The most that it gets; none: no bound.
    pub burst: Rate,
    /// What becomes of base tokens that it does not use.
    pub credits: Credits,
}
