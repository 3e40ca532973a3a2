//! What a process tells of itself: the counters of its parts, and why I/O of a volume waits.
//!
//! **Intuition.** Whoever assembles a process implements [`Observer`] and gathers plain counters when somebody asks; nothing
//! is counted for this, and idle it costs nothing. A manager in the same process asks directly, one in another process over a
//! stream, and both hear the same.
//!
//! **Names.** A [`Snapshot`] is everything at one moment. A [`Source`] is the snapshot of one process of several, with the
//! [`Role`] that tells it from others: counters of processes are added up for people, and never for metrics, where a sum
//! would go backwards when a process is missing. [`Explained`] is about one volume.
//!
//! **Invariants.** What came from another process is checked before it is used ([`bytes`]). Sums saturate.
//!
//! **Flow.** `counters -> Observer -> bytes -> stream -> Observer -> Snapshot::add, Explained::add -> the API`.

pub mod bytes;
mod merge;

pub use merge::add_waits;

use std::borrow::Cow;

use base::{Histogram, Result, VolumeId};
use serde::{Deserialize, Serialize};

use crate::api;
use crate::service::LocalBoxFuture;

/// The name of something that is known when a process is built, though maybe not the one that hears of it.
pub type Name = Cow<'static, str>;

/// The binary logarithm of the smallest bound of a [`Distribution`] in nanoseconds: 8.2 us.
pub const FIRST_POWER: u32 = 13;
/// How many bounds a [`Distribution`] has, each twice the one before: the last is 8.6 s.
pub const POWERS: usize = 21;
/// Slow requests of a volume that are told, of all processes together.
pub const SLOW_TOLD_MAX: usize = 32;

/// A histogram of nanoseconds, reduced to what is published.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Distribution {
    /// How many values lie below 2^(13 + index) ns.
    pub below: Vec<u64>,
    /// How many values there are.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub sum_ns: u64,
}

impl From<&Histogram> for Distribution {
    fn from(histogram: &Histogram) -> Self {
        Distribution {
            below: histogram.counts_below_powers(FIRST_POWER, POWERS),
            count: histogram.count(),
            sum_ns: histogram.sum(),
        }
    }
}

/// What was done of one kind of request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RequestCounters {
    /// `read`, `write`, `discard`, `flush` or `query`.
    pub operation: Name,
    /// Requests that were answered, errors included.
    pub requests: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Those that were answered with an error.
    pub errors: u64,
    /// From the arrival of a request to its reply.
    pub latency: Distribution,
    /// The same in full: [`Histogram::buckets`].
    pub latency_ns: Vec<(u64, u64)>,
}

impl RequestCounters {
    /// As the API has it.
    pub fn traffic(&self) -> api::OperationTraffic {
        api::OperationTraffic {
            operation: self.operation.to_string(),
            requests: self.requests,
            bytes: self.bytes,
            errors: self.errors,
            latency_ns: self.latency_ns.clone(),
        }
    }
}

/// The traffic of one volume since the process started. Those who serve clients know of requests, those who have segments
/// of waits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeCounters {
    /// Its id.
    #[serde(with = "volume_id")]
    pub volume: VolumeId,
    /// Its name; empty where it is not known.
    pub name: String,
    /// Clients that are connected now.
    pub clients: u64,
    /// By kind of request.
    pub requests: Vec<RequestCounters>,
    /// What its requests waited for.
    pub waits: Vec<api::Waiting>,
    /// What the slowest of its requests waited for.
    pub slow: Vec<api::SlowReason>,
}

/// The id of a volume as a number.
mod volume_id {
    use base::VolumeId;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(volume: &VolumeId, serializer: S) -> Result<S::Ok, S::Error> {
        volume.0.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<VolumeId, D::Error> {
        u64::deserialize(deserializer).map(VolumeId)
    }
}

/// A number under a name, with labels.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Metric {
    /// Its name after `levee_`, unit last; counters end in `_total`.
    pub name: Name,
    /// What it is, in one sentence.
    pub help: Name,
    /// Labels and their values; the same ones for all of a name.
    pub labels: Vec<(Name, String)>,
    /// The number.
    pub value: f64,
}

impl Metric {
    /// A number without a label.
    pub fn plain(name: &'static str, help: &'static str, value: f64) -> Self {
        Metric { name: name.into(), help: help.into(), labels: Vec::new(), value }
    }

    /// One of several numbers that a label tells apart.
    pub fn labelled(
        name: &'static str,
        help: &'static str,
        label: &'static str,
        label_value: impl Into<String>,
        value: f64,
    ) -> Self {
        Metric { labels: vec![(label.into(), label_value.into())], ..Metric::plain(name, help, value) }
    }
}

/// Everything at one moment.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// The name of the process among those of its role; empty for a store in one process.
    pub name: String,
    /// The store's id, in hexadecimal digits.
    pub store: String,
    /// The number of this life of the store.
    pub incarnation: u64,
    /// Seconds since this life began.
    pub uptime_seconds: f64,
    /// Volumes that exist.
    pub volumes: usize,
    /// Traffic by volume; volumes without any may be left out.
    pub traffic: Vec<VolumeCounters>,
    /// Who shares the loops that serve clients.
    pub tenants: Vec<api::Tenant>,
    /// Whether volumes with higher ids were left out.
    pub has_more: bool,
    /// What a block server did, by kind of request.
    pub served: Vec<RequestCounters>,
    /// How long requests spent in each stage of their life.
    pub stages: Vec<(Name, Distribution)>,
    /// The state of each directory.
    pub directories: Vec<api::Directory>,
    /// Room.
    pub space: api::Space,
    /// Memory by the process's own account.
    pub memory: api::Memory,
    /// What reads and scrubbing found.
    pub scrub: api::Scrub,
    /// NBD connections that are open.
    pub connections: u64,
    /// Where NBD clients connect: URIs without a volume. A store in one process leaves them to its API.
    pub nbd: Vec<String>,
    /// Logs that take no more records.
    pub broken_logs: u64,
    /// Engines that have no room for writes.
    pub full_engines: u64,
    /// Reads of blocks that no copy has right.
    pub lost_reads: u64,
    /// How the admission of the block server stands.
    pub admission: Option<api::Admission>,
    /// Engines that an agent finds slow.
    pub slow_engines: Vec<SlowEngine>,
    /// Everything else: queue depths, counts of events.
    pub metrics: Vec<Metric>,
    /// How several servers stand, where there are such.
    #[serde(skip)]
    pub cluster: Option<api::Cluster>,
    /// What this was added up from, where there are several servers.
    #[serde(skip)]
    pub sources: Vec<Source>,
}

/// An engine that an agent finds slow.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SlowEngine {
    /// Its number.
    pub engine: u64,
    /// What of it: `server` or `link`, as [`api::SlowFor`] has it.
    pub part: Name,
}

/// What one process of several said.
#[derive(Clone, PartialEq, Debug)]
pub struct Source {
    /// Which process it was.
    pub role: Role,
    /// What it said.
    pub snapshot: Snapshot,
}

/// A process that tells of itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// One that is a whole store.
    Alone,
    /// An engine, on a server.
    Engine {
        /// The name of the server.
        server: String,
        /// The number of the engine.
        engine: u64,
    },
    /// An agent.
    Agent {
        /// Its name.
        agent: String,
    },
}

impl Role {
    /// Whether it has segments, and so disks.
    pub fn has_segments(&self) -> bool {
        !matches!(self, Role::Agent { .. })
    }

    /// Whether it has clients.
    pub fn has_clients(&self) -> bool {
        !matches!(self, Role::Engine { .. })
    }

    /// What tells its metrics from those of others.
    pub fn labels(&self) -> Vec<(&'static str, String)> {
        match self {
            Role::Alone => vec![],
            Role::Engine { server, engine } => vec![("server", server.clone()), ("engine", engine.to_string())],
            Role::Agent { agent } => vec![("agent", agent.clone())],
        }
    }
}

/// How long one kind of request of a volume took, from its arrival to its reply.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Timed {
    /// `read` or `write`.
    pub operation: Name,
    /// Requests that succeeded, by their nanoseconds: [`Histogram::buckets`].
    pub latency_ns: Vec<(u64, u64)>,
    /// The longest.
    pub max_ns: u64,
    /// The slowest 0.1% of the last ones took longer; none where too few were seen.
    pub slow_ns: Option<u64>,
}

impl Timed {
    /// Of a histogram of nanoseconds.
    pub fn of(operation: &'static str, histogram: &Histogram, slow_ns: Option<u64>) -> Self {
        Timed {
            operation: operation.into(),
            latency_ns: histogram.buckets().collect(),
            max_ns: histogram.max(),
            slow_ns,
        }
    }

    /// How many there are.
    pub fn requests(&self) -> u64 {
        self.latency_ns.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// What `per_million` parts of a million do not exceed.
    pub fn quantile(&self, per_million: u64) -> u64 {
        quantile(&self.latency_ns, per_million).min(self.max_ns)
    }
}

/// Of buckets as [`Histogram::buckets`] has them: the bound that `per_million` parts of a million of all values do not
/// exceed; zero without values.
pub fn quantile(buckets: &[(u64, u64)], per_million: u64) -> u64 {
    let count: u128 = buckets.iter().map(|(_, count)| u128::from(*count)).sum();
    let rank = (count * u128::from(per_million)).div_ceil(1_000_000).max(1);
    let mut seen = 0;
    let found = buckets.iter().find(|(_, count)| {
        seen += u128::from(*count);
        seen >= rank
    });
    found.map_or(0, |(bound, _)| *bound)
}

/// Why I/O of a volume waits or waited.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Explained {
    /// The number of the life that tells this.
    pub incarnation: u64,
    /// How the admission of the block server stands; none of who has no segments.
    pub admission: Option<api::Admission>,
    /// Reads and writes of the volume that were started there.
    pub started_requests: u64,
    /// Why they waited.
    pub waits: Vec<api::Waiting>,
    /// Segments of it that are hot now, by their index.
    pub hot_segments: Vec<u32>,
    /// By kind of request; none of who has no clients.
    pub latency: Vec<Timed>,
    /// What the slowest of them waited for.
    pub slow_reasons: Vec<api::SlowReason>,
    /// The last of these, the latest first.
    pub slow_requests: Vec<api::SlowRequest>,
    /// Where its bursts go; none of who has not attached it.
    pub forwarding: Option<api::ForwardedBursts>,
    /// What each engine said, where there are several servers.
    #[serde(skip)]
    pub engines: Vec<api::ExplainedEngine>,
}

/// How much is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// All of it.
    Full,
    /// All but the traffic of volumes, of which there may be thousands.
    WithoutVolumes,
}

/// Takes snapshots. Quick, and changes nothing.
pub trait Observer {
    /// The present state, of all loops of a process. `volumes` is left to the manager.
    ///
    /// # Errors
    /// `Retry`: the process is starting or going away. `Io`: it cannot be reached. `Invalid`: it is of another version, and
    /// does not tell.
    fn observe(&self, detail: Detail) -> LocalBoxFuture<'_, Result<Snapshot>>;

    /// Why I/O of a volume waits; nothing of one that nobody has used.
    ///
    /// # Errors
    /// Those of [`Observer::observe`].
    fn explain(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<Explained>>;
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
