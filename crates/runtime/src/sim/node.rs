//! A node: a machine with disks, a clock and processors, on which one process runs one or more loops.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::clock::Clock;
use super::disk::DiskOptions;
use super::state::Node;
use super::storage::Mounts;

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

/// What a loop's own work costs, in nanoseconds of its processor. Above zero, so that time always moves.
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
}

impl Default for CpuOptions {
    fn default() -> Self {
        CpuOptions { clock_ns: 50, submit_ns: 300, outcome_ns: 300, pool: 2 }
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
