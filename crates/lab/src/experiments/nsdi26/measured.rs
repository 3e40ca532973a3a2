//! What a point of an experiment is measured by.

use std::time::Duration;

use base::{Histogram, Instant};

/// Latencies of one class of requests, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    /// In the proxy layer: everything but the store below.
    pub proxy_ns: Histogram,
    /// From arrival to reply.
    pub cluster_ns: Histogram,
    /// In the receive buffer, and until the request's task ran.
    pub receive_ns: Histogram,
}

impl Latencies {
    fn merge(&mut self, other: &Latencies) {
        self.proxy_ns.merge(&other.proxy_ns);
        self.cluster_ns.merge(&other.cluster_ns);
        self.receive_ns.merge(&other.receive_ns);
    }
}

/// What an estimator said, again and again: sums.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Estimates {
    /// How often it was asked and had an answer.
    pub count: u64,
    /// What the store has left, in bytes per second.
    pub available_bytes_per_sec: u128,
    /// The 99.999th percentile, in nanoseconds.
    pub p99999_ns: u128,
}

impl Estimates {
    /// The means, if it had any answer: what is left, and the percentile.
    pub fn means(&self) -> (f64, f64) {
        let count = self.count as f64;
        (self.available_bytes_per_sec as f64 / count, self.p99999_ns as f64 / count)
    }
}

/// What came of a point.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Steady and hot segments; of each, reads and writes.
    pub classes: [[Latencies; 2]; 2],
    /// The store below, all requests.
    pub store_ns: Histogram,
    /// How late background tasks began.
    pub background_wait_ns: Histogram,
    /// What the server's estimator said meanwhile.
    pub estimates: Estimates,
    /// Requests, with those of the warm-up, and without.
    pub requests: u64,
    /// See [`Measured::requests`].
    pub counted: u64,
    /// Bytes after the warm-up.
    pub bytes: u64,
    /// When the warm-up ended.
    pub begun: Instant,
    /// Time after it.
    pub elapsed: Duration,
}

impl Measured {
    /// Reads and writes of steady segments together.
    pub fn steady(&self) -> Latencies {
        self.together(0)
    }

    /// Reads and writes of hot segments together.
    pub fn hot(&self) -> Latencies {
        self.together(1)
    }

    /// Writes of all segments.
    pub fn writes(&self) -> Latencies {
        let mut writes = self.classes[0][1].clone();
        writes.merge(&self.classes[1][1]);
        writes
    }

    /// Bytes per second.
    pub fn throughput(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    fn together(&self, class: usize) -> Latencies {
        let mut both = self.classes[class][0].clone();
        both.merge(&self.classes[class][1]);
        both
    }

    /// Adds what another server measured.
    pub(super) fn merge(&mut self, other: &Measured) {
        for (mine, theirs) in self.classes.iter_mut().flatten().zip(other.classes.iter().flatten()) {
            mine.merge(theirs);
        }
        self.store_ns.merge(&other.store_ns);
        self.background_wait_ns.merge(&other.background_wait_ns);
        self.estimates.count += other.estimates.count;
        self.estimates.available_bytes_per_sec += other.estimates.available_bytes_per_sec;
        self.estimates.p99999_ns += other.estimates.p99999_ns;
        self.requests += other.requests;
        self.counted += other.counted;
        self.bytes += other.bytes;
        self.elapsed += other.elapsed;
    }
}
