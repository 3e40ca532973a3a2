//! What an agent counts, per volume and for itself: plain numbers, copied out on request.

use std::sync::{Arc, Mutex, PoisonError};

use base::{ErrorKind, Histogram, Instant};
use policies::slow_requests::{SlowRequests, SlowSettings};
use policies::waits::Waits;

/// One kind of request.
#[derive(Clone, Debug, Default)]
pub struct OperationStatistics {
    /// From the arrival of the request's bytes to the reply's entry into the outbox, in nanoseconds; of those that
    /// succeeded. Its count is the number of requests.
    pub latency_ns: Histogram,
    /// Bytes of those that succeeded.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u64,
}

/// What a volume did through this agent, over all its connections so far.
#[derive(Clone, Debug)]
pub struct VolumeStatistics {
    /// Reads.
    pub read: OperationStatistics,
    /// Writes, and zeros written without a hole.
    pub write: OperationStatistics,
    /// Flushes.
    pub flush: OperationStatistics,
    /// Discards, and zeros written as holes.
    pub discard: OperationStatistics,
    /// Questions about allocation, and hints.
    pub query: OperationStatistics,
    /// From the arrival of a request's bytes to its start, in nanoseconds: parsing of those before it, the wait for
    /// a slot and for memory.
    pub receive_wait_ns: Histogram,
    /// How long writes waited for earlier ones that they overlap, in nanoseconds; of those that did.
    pub order_wait_ns: Histogram,
    /// From the reply's entry into the outbox to the end of the send that carried it, in nanoseconds.
    pub reply_ns: Histogram,
    /// Requests that were refused before they reached the volume.
    pub refused: u64,
    /// Connections that use it now.
    pub connections: usize,
    /// What requests waited for here: levels of their volume or tenant, their tenant's share of the loop.
    pub waits: Waits,
    /// Which of its reads and writes were slow, and why.
    pub slow: SlowRequests,
}

impl Default for VolumeStatistics {
    fn default() -> Self {
        let counters = OperationStatistics::default;
        VolumeStatistics {
            read: counters(),
            write: counters(),
            flush: counters(),
            discard: counters(),
            query: counters(),
            receive_wait_ns: Histogram::new(),
            order_wait_ns: Histogram::new(),
            reply_ns: Histogram::new(),
            refused: 0,
            connections: 0,
            waits: Waits::default(),
            slow: SlowRequests::new(SlowSettings::default(), Instant::ZERO),
        }
    }
}

/// What kind of request it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A discard.
    Discard,
    /// A question about allocation, or a hint.
    Query,
}

/// What one loop counts of a volume, for whoever asks on another one. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Counters(Arc<Mutex<VolumeStatistics>>);

impl Counters {
    /// Counts, or looks. Its own loop has the lock to itself, as long as nobody looks.
    #[inline]
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut VolumeStatistics) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl OperationStatistics {
    fn merge(&mut self, other: &OperationStatistics) {
        self.latency_ns.merge(&other.latency_ns);
        self.bytes += other.bytes;
        self.errors += other.errors;
    }
}

impl VolumeStatistics {
    /// Adds what another loop counted.
    pub(crate) fn merge(&mut self, other: &VolumeStatistics) {
        let VolumeStatistics {
            read,
            write,
            flush,
            discard,
            query,
            receive_wait_ns,
            order_wait_ns,
            reply_ns,
            refused,
            connections,
            waits,
            slow,
        } = other;
        self.read.merge(read);
        self.write.merge(write);
        self.flush.merge(flush);
        self.discard.merge(discard);
        self.query.merge(query);
        self.receive_wait_ns.merge(receive_wait_ns);
        self.order_wait_ns.merge(order_wait_ns);
        self.reply_ns.merge(reply_ns);
        self.refused += refused;
        self.connections += connections;
        self.waits.add(waits);
        self.slow.merge(slow);
    }

    /// The counters of one kind of request.
    pub fn operation_mut(&mut self, operation: Operation) -> &mut OperationStatistics {
        match operation {
            Operation::Read => &mut self.read,
            Operation::Write => &mut self.write,
            Operation::Flush => &mut self.flush,
            Operation::Discard => &mut self.discard,
            Operation::Query => &mut self.query,
        }
    }

    pub(crate) fn on_outcome(&mut self, operation: Operation, latency_ns: u64, bytes: u64, error: Option<ErrorKind>) {
        let counters = self.operation_mut(operation);
        match error {
            Some(_) => counters.errors += 1,
            None => {
                counters.latency_ns.record(latency_ns);
                counters.bytes += bytes;
            }
        }
    }
}

/// What an agent did since it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AgentStatistics {
    /// Connections that were accepted.
    pub connections_accepted: u64,
    /// Connections that are open now.
    pub connections_open: usize,
    /// Connections that were turned away because too many were open.
    pub connections_refused: u64,
    /// Connections that ended because the peer broke the protocol.
    pub violations: u64,
    /// Connections that ended because the peer neither sent nor took bytes while others needed the memory.
    pub stalled: u64,
    /// Bytes of payload that requests have of the pool now.
    pub payload_bytes: u64,
    /// Bytes of it that are set aside for queues of virtual machines.
    pub queue_bytes: u64,
    /// Requests of virtual machines that were begun.
    pub guest_requests: u64,
    /// Those whose memory came from the pool, because what is set aside for their queue was in use or too little.
    pub guest_requests_pooled: u64,
    /// The bound on them.
    pub payload_bytes_max: u64,
}
