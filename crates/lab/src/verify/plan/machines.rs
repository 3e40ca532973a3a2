//! The machines of a world of several servers, and what happens to one of them.

use std::time::Duration;

/// What a machine is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// The shared store of files, and of the managers' leases.
    Store,
    /// A manager.
    Manager,
    /// A server.
    Server,
    /// An agent.
    Agent,
}

impl Role {
    /// All of them, in the order in which they start.
    pub const ALL: [Role; 4] = [Role::Store, Role::Manager, Role::Server, Role::Agent];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Role::Store => "store",
            Role::Manager => "manager",
            Role::Server => "server",
            Role::Agent => "agent",
        }
    }
}

/// One machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Machine {
    /// What it is for.
    pub role: Role,
    /// Which of those.
    pub index: usize,
}

/// What happens to a machine.
#[derive(Clone, PartialEq, Debug)]
pub enum Harm {
    /// Its process dies, or all of it, and starts again after `down`.
    Death {
        /// Whether the machine loses its power.
        power: bool,
        /// Until the next life.
        down: Duration,
    },
    /// Its process does not run, with its connections open.
    Pause(Duration),
    /// Its clock jumps.
    ClockJump(Duration),
    /// Its clock gains so many millionths from now on.
    ClockDrift(i64),
    /// What it sends to another machine, or to all, what it gets from there, or both, stops for so long.
    Cut {
        /// From where; none: all.
        from: Option<Machine>,
        /// What it sends.
        there: bool,
        /// What it gets.
        back: bool,
        /// For how long.
        span: Duration,
    },
    /// Nothing passes between it and all machines of a role: servers that managers miss, and the other way round.
    CutOff {
        /// Which.
        role: Role,
        /// For how long.
        span: Duration,
    },
    /// All its connections with others break.
    Reset,
    /// What it sends takes so much longer.
    SlowLink {
        /// How much.
        delay: Duration,
        /// For how long.
        span: Duration,
    },
    /// Its disk is slow.
    SlowDisk {
        /// Which.
        disk: usize,
        /// How many times.
        factor: u64,
        /// For how long.
        span: Duration,
    },
}
