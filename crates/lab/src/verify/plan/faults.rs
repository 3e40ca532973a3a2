//! What can go wrong in a run: kinds of accidents, as the command line names them, and accidents as a plan has them.

use std::time::Duration;

use super::machines::{Harm, Machine};

/// A kind of accident, as the command line names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FaultKind {
    /// The process dies; writes that it had in flight may land later.
    Kill,
    /// The machine loses power: what was not synced survives or not, sector by sector, name by name.
    PowerLoss,
    /// A crash, and another one while the next life begins.
    RestartStorm,
    /// The process does not run for a while.
    Pause,
    /// The clock jumps forwards.
    ClockJump,
    /// The clock runs too fast or too slow.
    ClockDrift,
    /// No packets pass between client and server, in one direction or both, for a while.
    Partition,
    /// All connections break.
    Reset,
    /// A disk takes 10 to 1,000 times as long for a while.
    SlowDisk,
    /// There is no room for a while.
    FullDisk,
    /// Reads end with an error.
    ReadError,
    /// Writes end with an error, and some of their sectors are on the disk.
    WriteError,
    /// Syncs end with an error.
    SyncError,
    /// Writes are cut short.
    ShortWrite,
    /// Writes are reported as done, and never happened.
    LostWrite,
    /// Writes are reported as done, and went elsewhere.
    MisdirectedWrite,
    /// Bits flip on the medium.
    Rot,
    /// The process dies, and bits flip in a log, where what follows proves that something durable was there.
    RotInLog,
    /// The same at the end of a log while the store is stopped: that nothing is missing there is proven then, too.
    RotAtRest,
    /// A disk vanishes, and returns as it was, or as it was some time before.
    LostDisk,
    /// What one machine sends to another one takes longer for a while; only where there are several.
    SlowLink,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [FaultKind; 21] = [
        FaultKind::Kill,
        FaultKind::PowerLoss,
        FaultKind::RestartStorm,
        FaultKind::Pause,
        FaultKind::ClockJump,
        FaultKind::ClockDrift,
        FaultKind::Partition,
        FaultKind::Reset,
        FaultKind::SlowDisk,
        FaultKind::FullDisk,
        FaultKind::ReadError,
        FaultKind::WriteError,
        FaultKind::SyncError,
        FaultKind::ShortWrite,
        FaultKind::LostWrite,
        FaultKind::MisdirectedWrite,
        FaultKind::Rot,
        FaultKind::RotInLog,
        FaultKind::RotAtRest,
        FaultKind::LostDisk,
        FaultKind::SlowLink,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Kill => "kill",
            FaultKind::PowerLoss => "power-loss",
            FaultKind::RestartStorm => "restart-storm",
            FaultKind::Pause => "pause",
            FaultKind::ClockJump => "clock-jump",
            FaultKind::ClockDrift => "clock-drift",
            FaultKind::Partition => "partition",
            FaultKind::Reset => "reset",
            FaultKind::SlowDisk => "slow-disk",
            FaultKind::FullDisk => "full-disk",
            FaultKind::ReadError => "read-error",
            FaultKind::WriteError => "write-error",
            FaultKind::SyncError => "sync-error",
            FaultKind::ShortWrite => "short-write",
            FaultKind::LostWrite => "lost-write",
            FaultKind::MisdirectedWrite => "misdirected-write",
            FaultKind::Rot => "rot",
            FaultKind::RotInLog => "rot-in-log",
            FaultKind::RotAtRest => "rot-at-rest",
            FaultKind::LostDisk => "lost-disk",
            FaultKind::SlowLink => "slow-link",
        }
    }

    /// The kind of that name.
    pub fn parse(name: &str) -> Option<FaultKind> {
        FaultKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether everything stays true with one copy: nothing that was synced is touched.
    pub(super) fn is_harmless(self) -> bool {
        !self.needs_another_copy()
    }

    /// Whether bytes may be gone afterwards without a sign.
    pub(super) fn is_silent(self) -> bool {
        use FaultKind::*;
        matches!(self, LostWrite | MisdirectedWrite | Rot | LostDisk)
    }

    /// Whether bytes of one disk may be gone, wrong or unreadable.
    fn needs_another_copy(self) -> bool {
        use FaultKind::*;
        matches!(
            self,
            ReadError | WriteError | SyncError | LostWrite | MisdirectedWrite | Rot | RotInLog | RotAtRest | LostDisk
        )
    }
}

/// Something that goes wrong, with all its particulars.
#[derive(Clone, PartialEq, Debug)]
pub enum Fault {
    /// The process is killed, and starts again after `down`.
    Kill {
        /// Until the next life.
        down: Duration,
    },
    /// The same with the whole machine.
    PowerLoss {
        /// Until the next life.
        down: Duration,
    },
    /// Crashes again and again while starting.
    RestartStorm {
        /// How long each of the lives lasts.
        lives: Vec<Duration>,
        /// Whether it is the machine that fails.
        power: bool,
    },
    /// The server's process does not run.
    Pause(Duration),
    /// The server's clock jumps.
    ClockJump(Duration),
    /// The server's clock gains so many millionths from now on.
    ClockDrift(i64),
    /// Packets to the server, from it, or both, stop for so long.
    Partition {
        /// From client to server.
        there: bool,
        /// From server to client.
        back: bool,
        /// For how long.
        span: Duration,
    },
    /// All connections break.
    Reset,
    /// A disk is slow.
    SlowDisk {
        /// Which.
        disk: usize,
        /// How many times.
        factor: u64,
        /// For how long.
        span: Duration,
    },
    /// The disks have no room but `spare_bytes`.
    FullDisk {
        /// Bytes that may still be allocated.
        spare_bytes: u64,
        /// For how long.
        span: Duration,
    },
    /// The next `count` operations of a kind on a disk go wrong.
    Disk {
        /// Which.
        disk: usize,
        /// In which way.
        fault: runtime::sim::Fault,
        /// How often.
        count: u64,
    },
    /// Bytes on a disk flip.
    Rot {
        /// Which.
        disk: usize,
        /// In which files; at rest: when the store was stopped next, which is wanted now.
        reach: Reach,
        /// How many places.
        places: u64,
        /// Chooses them.
        seed: u64,
    },
    /// A disk vanishes, and returns; `stale` with what it held when the run was that many crashes younger.
    LostDisk {
        /// Which.
        disk: usize,
        /// For how long.
        span: Duration,
        /// Whether it returns as an older copy of itself.
        stale: bool,
    },
    /// Something happens to one machine of several.
    At {
        /// Which.
        machine: Machine,
        /// What.
        harm: Harm,
    },
    /// Something happens to the manager that is in charge at that moment, if one is.
    InCharge {
        /// What.
        harm: Harm,
    },
    /// Something happens to the server that has a segment at that moment, or has released it and knows that, if there is one.
    Giver {
        /// The number of the volume.
        volume: usize,
        /// The segment.
        index: u32,
        /// What.
        harm: Harm,
    },
}

/// Where bits flip.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// In any file.
    Anywhere,
    /// In a log, where what follows proves that something durable was there.
    InLog,
    /// In the last records of a log of a store that was stopped.
    AtRest,
}

impl Harm {
    /// Its kind.
    fn kind(&self) -> FaultKind {
        match self {
            Harm::Death { power: false, .. } => FaultKind::Kill,
            Harm::Death { power: true, .. } => FaultKind::PowerLoss,
            Harm::Pause(_) => FaultKind::Pause,
            Harm::ClockJump(_) => FaultKind::ClockJump,
            Harm::ClockDrift(_) => FaultKind::ClockDrift,
            Harm::Cut { .. } | Harm::CutOff { .. } => FaultKind::Partition,
            Harm::Reset => FaultKind::Reset,
            Harm::SlowLink { .. } => FaultKind::SlowLink,
            Harm::SlowDisk { .. } => FaultKind::SlowDisk,
        }
    }
}

impl Fault {
    /// Its kind.
    pub fn kind(&self) -> FaultKind {
        match self {
            Fault::Kill { .. } => FaultKind::Kill,
            Fault::PowerLoss { .. } => FaultKind::PowerLoss,
            Fault::RestartStorm { .. } => FaultKind::RestartStorm,
            Fault::Pause(_) => FaultKind::Pause,
            Fault::ClockJump(_) => FaultKind::ClockJump,
            Fault::ClockDrift(_) => FaultKind::ClockDrift,
            Fault::Partition { .. } => FaultKind::Partition,
            Fault::Reset => FaultKind::Reset,
            Fault::SlowDisk { .. } => FaultKind::SlowDisk,
            Fault::FullDisk { .. } => FaultKind::FullDisk,
            Fault::Rot { reach: Reach::Anywhere, .. } => FaultKind::Rot,
            Fault::Rot { reach: Reach::InLog, .. } => FaultKind::RotInLog,
            Fault::Rot { reach: Reach::AtRest, .. } => FaultKind::RotAtRest,
            Fault::LostDisk { .. } => FaultKind::LostDisk,
            Fault::At { harm, .. } | Fault::InCharge { harm } | Fault::Giver { harm, .. } => harm.kind(),
            Fault::Disk { fault, .. } => match fault {
                runtime::sim::Fault::ReadError => FaultKind::ReadError,
                runtime::sim::Fault::WriteError => FaultKind::WriteError,
                runtime::sim::Fault::SyncError => FaultKind::SyncError,
                runtime::sim::Fault::ShortWrite => FaultKind::ShortWrite,
                runtime::sim::Fault::LostWrite => FaultKind::LostWrite,
                runtime::sim::Fault::MisdirectedWrite => FaultKind::MisdirectedWrite,
                runtime::sim::Fault::Rot => FaultKind::Rot,
                runtime::sim::Fault::Slow => FaultKind::SlowDisk,
            },
        }
    }

    /// Whether bytes may be gone afterwards without a sign.
    pub fn is_silent(&self) -> bool {
        self.kind().is_silent()
    }

    /// Whether what was durable may be damaged: then a store without another copy may refuse to start.
    pub fn is_damage(&self) -> bool {
        self.is_silent() || matches!(self.kind(), FaultKind::RotInLog | FaultKind::RotAtRest)
    }

    /// Whether requests may fail because of it while the store goes on.
    pub fn may_fail_requests(&self) -> bool {
        self.kind().needs_another_copy()
    }
}
