//! What a running store tells of itself: a snapshot of the plain counters and histograms that its parts hold.
//!
//! Nothing here is global: several nodes live in one process of a test. Whoever assembles a node implements
//! [`Observer`]; the snapshot travels to the HTTP thread, so it is compact (a distribution is 30 numbers) and `Send`.

use base::{Histogram, Instant, VolumeId};
use files::{Statistics, StoreSpace};
use policies::admission::{AdmissionSettings, AdmissionStatus, VolumeStatus, Waits};
use policies::slow_requests::SlowRequests;
use wire::{LocalBoxFuture, api};

/// The binary logarithm of the smallest bound of a [`Distribution`] in nanoseconds: 8.2 us.
pub const FIRST_POWER: u32 = 13;
/// How many bounds a [`Distribution`] has, each twice the one before: the last is 8.6 s.
pub const POWERS: usize = 21;

/// A histogram of nanoseconds, reduced to what is published.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
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

/// What one volume's clients did with one kind of request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestCounters {
    /// `read`, `write`, `discard` or `flush`.
    pub operation: &'static str,
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

/// The traffic of one volume since the store started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeCounters {
    /// Its id.
    pub volume: VolumeId,
    /// Its name.
    pub name: String,
    /// By kind of request.
    pub requests: Vec<RequestCounters>,
    /// What its requests waited for.
    pub waits: Waits,
}

/// A number under a name, with labels.
#[derive(Clone, PartialEq, Debug)]
pub struct Metric {
    /// Its name after `levee_`, unit last; counters end in `_total`.
    pub name: &'static str,
    /// What it is, in one sentence.
    pub help: &'static str,
    /// Labels and their values; the same ones for all of a name.
    pub labels: Vec<(&'static str, String)>,
    /// The number.
    pub value: f64,
}

impl Metric {
    /// A number without a label.
    pub fn plain(name: &'static str, help: &'static str, value: f64) -> Self {
        Metric { name, help, labels: Vec::new(), value }
    }

    /// One of several numbers that a label tells apart.
    pub fn labelled(
        name: &'static str,
        help: &'static str,
        label: &'static str,
        label_value: impl Into<String>,
        value: f64,
    ) -> Self {
        Metric { name, help, labels: vec![(label, label_value.into())], value }
    }
}

/// Everything at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
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
    /// How long requests spent in each stage, in the order of a request's life.
    pub stages: Vec<(&'static str, Distribution)>,
    /// Bytes to and from disk, and the state of each directory.
    pub files: Statistics,
    /// Room.
    pub space: StoreSpace,
    /// Bytes that the store holds in memory by its own account, and its bound.
    pub memory_bytes: u64,
    /// The bound of `memory_bytes`.
    pub memory_bytes_max: u64,
    /// What reads and scrubbing found.
    pub scrub: api::Scrub,
    /// NBD connections that are open.
    pub connections: u64,
    /// Bytes of data files that are surely garbage.
    pub garbage_bytes: u64,
    /// Logs that take no more records.
    pub broken_logs: u64,
    /// Engines that have no room for writes.
    pub full_engines: u64,
    /// Reads of blocks that no copy has right.
    pub lost_reads: u64,
    /// The settings of the block server's admission, and how it stands.
    pub admission: Option<(AdmissionSettings, AdmissionStatus)>,
    /// How several servers stand, where there are such.
    pub cluster: Option<api::Cluster>,
    /// Everything else: queue depths, counts of events.
    pub metrics: Vec<Metric>,
}

/// How long one kind of request of a volume took, from its arrival to its reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quantiles {
    /// `read` or `write`.
    pub operation: &'static str,
    /// Requests that succeeded.
    pub requests: u64,
    /// Their median in nanoseconds.
    pub p50_ns: u64,
    /// Their 99th percentile.
    pub p99_ns: u64,
}

impl Quantiles {
    /// Of a histogram of nanoseconds.
    pub fn of(operation: &'static str, histogram: &Histogram) -> Self {
        let [p50_ns, p99_ns] = [500_000, 990_000].map(|per_million| histogram.quantile(per_million));
        Quantiles { operation, requests: histogram.count(), p50_ns, p99_ns }
    }
}

/// Why I/O of a volume waits or waited.
#[derive(Clone, Debug)]
pub struct Explained {
    /// The settings of the block server's admission.
    pub settings: AdmissionSettings,
    /// How it stands.
    pub server: AdmissionStatus,
    /// What it knows of the volume; none where nobody has used it since the store started.
    pub volume: Option<VolumeStatus>,
    /// By kind of request.
    pub latency: Vec<Quantiles>,
    /// Which of its requests were slow; none where nobody has used it.
    pub slow: Option<SlowRequests>,
    /// When this was asked for.
    pub now: Instant,
}

/// Takes snapshots. Called on the manager's loop; quick.
pub trait Observer {
    /// The present state, of all loops. `volumes` is left to the manager.
    fn observe(&self) -> LocalBoxFuture<'_, Snapshot>;

    /// Why I/O of a volume waits, without waiting; none while the block server is going away.
    fn explain(&self, volume: VolumeId) -> Option<Explained>;
}
