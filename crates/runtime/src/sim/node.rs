//! A node: a machine with disks, a clock and processors, on which one process runs one or more loops.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use base::Bytes;

use super::clock::Clock;
use super::disk::DiskOptions;
use super::state::Node;
use super::storage::Mounts;
use crate::driver::{Op, Work};

/// The name of a node of the world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub(super) usize);

/// What a node is like.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its disks and the absolute paths where they are mounted. Nothing exists outside of them.
    pub disks: Vec<(PathBuf, DiskOptions)>,
    /// Its IP addresses; without any it gets one (10.0.0.1 and so on).
    pub addresses: Vec<IpAddr>,
    /// What work costs.
    pub cpu: CpuOptions,
    /// What its clock shows when the world begins.
    pub clock_start: Duration,
    /// How much its clock gains, in millionths.
    pub clock_drift_ppm: i64,
    /// How far its calendar is off, in milliseconds.
    pub wall_offset_ms: i64,
}

/// What a loop's own work costs, in nanoseconds of its processor if nothing else is said. A look at the clock costs
/// something, so that time always moves; what is 0 by default is for those who measure throughput.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuOptions {
    /// A look at the clock: the loop takes one per poll of a task.
    pub clock_ns: u64,
    /// Submitting an operation.
    pub submit_ns: u64,
    /// Receiving an outcome.
    pub outcome_ns: u64,
    /// Processors of the pool that offloaded jobs run on.
    pub pool: usize,
    /// What a turn costs besides: its entry into the kernel.
    pub turn_ns: u64,
    /// A byte that is sent or received, in picoseconds.
    pub socket_byte_ps: u64,
    /// Submitting an operation on a file, besides `submit_ns`.
    pub file_ns: u64,
    /// [`Work::Request`].
    pub request_ns: u64,
    /// [`Work::Service`].
    pub service_ns: u64,
    /// [`Work::Crossing`].
    pub crossing_ns: u64,
    /// Taking a lock that loops share, and as long as it is held.
    pub lock_ns: u64,
}

impl CpuOptions {
    /// What it costs to submit an operation.
    pub(super) fn submission_ns(&self, op: &Op) -> u64 {
        let besides_ns = match op {
            Op::Send { data, .. } => self.bytes_ns(data.iter().map(Bytes::len).sum()),
            Op::Read { .. } | Op::Write { .. } | Op::Sync { .. } => self.file_ns,
            _ => 0,
        };
        self.submit_ns + besides_ns
    }

    /// What it costs to move so many bytes between a socket and memory.
    pub(super) fn bytes_ns(&self, bytes: usize) -> u64 {
        bytes as u64 * self.socket_byte_ps / 1000
    }

    /// What a kind of work costs.
    pub(super) fn cost_ns(&self, work: Work) -> u64 {
        match work {
            Work::Request => self.request_ns,
            Work::Service => self.service_ns,
            Work::Crossing => self.crossing_ns,
        }
    }
}

impl Default for CpuOptions {
    fn default() -> Self {
        CpuOptions {
            clock_ns: 50,
            submit_ns: 300,
            outcome_ns: 300,
            pool: 2,
            turn_ns: 0,
            socket_byte_ps: 0,
            file_ns: 0,
            request_ns: 0,
            service_ns: 0,
            crossing_ns: 0,
            lock_ns: 0,
        }
    }
}

impl Default for NodeOptions {
    /// One disk at `/disk`.
    fn default() -> Self {
        NodeOptions {
            disks: vec![(PathBuf::from("/disk"), DiskOptions::default())],
            addresses: Vec::new(),
            cpu: CpuOptions::default(),
            clock_start: Duration::from_secs(1),
            clock_drift_ppm: 0,
            wall_offset_ms: 0,
        }
    }
}

impl NodeOptions {
    /// A node with these disks, all alike, at these paths.
    pub fn with_disks<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>, options: &DiskOptions) -> Self {
        let disks = paths.into_iter().map(|path| (path.into(), options.clone())).collect();
        NodeOptions { disks, ..NodeOptions::default() }
    }
}

impl Node {
    pub(super) fn new(options: &NodeOptions, mounts: Mounts) -> Self {
        assert!(options.cpu.clock_ns > 0 && options.cpu.pool > 0, "time moves, and jobs run");
        let clock_start_ns = options.clock_start.as_nanos() as u64;
        Node {
            clock: Clock::new(clock_start_ns, options.clock_drift_ppm, options.wall_offset_ms),
            cpu: options.cpu,
            mounts,
            has_power: true,
            pool_free_ns: vec![0; options.cpu.pool],
        }
    }
}
