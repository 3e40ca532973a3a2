//! What a server counts: plain numbers, copied out on request.

use base::{ErrorKind, Histogram};

/// One kind of request.
#[derive(Clone, Debug, Default)]
pub struct StageStatistics {
    /// From admission to the engine's outcome, in nanoseconds.
    pub latency_ns: Histogram,
    /// Bytes of requests that succeeded.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
}

impl StageStatistics {
    fn merge(&mut self, other: &StageStatistics) {
        let StageStatistics { latency_ns, bytes, errors } = other;
        self.latency_ns.merge(latency_ns);
        self.bytes += bytes;
        self.errors += errors;
    }

    pub(crate) fn on_outcome(&mut self, latency_ns: u64, bytes: u64, succeeded: bool) {
        self.latency_ns.record(latency_ns);
        match succeeded {
            true => self.bytes += bytes,
            false => self.errors += 1,
        }
    }
}

/// What a server did since it started.
#[derive(Clone, Debug, Default)]
pub struct ServerStatistics {
    /// From arrival to admission, in nanoseconds: the stage `queue`.
    pub queue_ns: Histogram,
    /// Reads.
    pub read: StageStatistics,
    /// Writes.
    pub write: StageStatistics,
    /// Discards.
    pub discard: StageStatistics,
    /// Requests that were refused for want of a session, an epoch or a range.
    pub refused: u64,
    /// Requests whose bytes were not what they should be.
    pub corrupt: u64,
    /// Requests that found no space.
    pub full: u64,
    /// Sessions that are open now.
    pub sessions: usize,
    /// Requests in flight now.
    pub in_flight: u64,
}

impl ServerStatistics {
    /// Adds what a server on another loop did.
    pub fn merge(&mut self, other: &ServerStatistics) {
        let ServerStatistics { queue_ns, read, write, discard, refused, corrupt, full, sessions, in_flight } = other;
        self.queue_ns.merge(queue_ns);
        self.read.merge(read);
        self.write.merge(write);
        self.discard.merge(discard);
        self.refused += refused;
        self.corrupt += corrupt;
        self.full += full;
        // Each has one with every volume that is attached.
        self.sessions = self.sessions.max(*sessions);
        self.in_flight += in_flight;
    }

    pub(crate) fn on_error(&mut self, kind: ErrorKind) {
        match kind {
            ErrorKind::Corrupt => self.corrupt += 1,
            ErrorKind::Full => self.full += 1,
            _ => {}
        }
    }
}
