//! Gathers the counters of a node's parts into one snapshot.

use std::rc::Weak;

use agent::{Agent, OperationStatistics, VolumeStatistics};
use base::{Histogram, Instant};
use control::observe::{Distribution, Metric, Observer, RequestCounters, Snapshot, VolumeCounters};
use engine::Engine;
use files::Store;
use runtime::Handle;
use server::Server;

/// What it takes to look at a node.
pub struct NodeObserver {
    pub handle: Handle,
    pub store: Store,
    pub engine: Engine,
    pub server: Weak<Server<Engine>>,
    pub agent: Agent,
    pub memory_bytes_max: u64,
    pub begun: Instant,
}

impl Observer for NodeObserver {
    fn observe(&self) -> Snapshot {
        let volumes = self.agent.volume_statistics();
        let engine = self.engine.statistics();
        let server = self.server.upgrade().map(|server| server.statistics()).unwrap_or_default();
        let agent = self.agent.statistics();
        let looped = self.handle.statistics();
        let together = |part: fn(&VolumeStatistics) -> &Histogram| {
            let mut all = Histogram::new();
            volumes.iter().for_each(|(_, _, volume)| all.merge(part(volume)));
            Distribution::from(&all)
        };
        let queue_depth = |queue: &str, depth: u64| {
            Metric::labelled("queue_depth", "What waits or is in progress.", "queue", queue, depth as f64)
        };
        let event = |name, help, count: u64| Metric::plain(name, help, count as f64);
        let index = &engine.index_tables;
        Snapshot {
            store: self.store.id().to_string(),
            incarnation: self.store.incarnation().0,
            uptime_seconds: self.handle.now().nanos_since(self.begun) as f64 / 1e9,
            volumes: 0,
            traffic: volumes.iter().map(|(_, name, volume)| traffic(name, volume)).collect(),
            stages: vec![
                ("loop_wait", Distribution::from(&looped.receive_wait)),
                ("receive_wait", together(|volume| &volume.receive_wait_ns)),
                ("order_wait", together(|volume| &volume.order_wait_ns)),
                ("queue", Distribution::from(&server.queue_ns)),
                ("admission", Distribution::from(&engine.queue)),
                ("journal", Distribution::from(&engine.journal)),
                ("large_write", Distribution::from(&engine.large)),
                ("index", Distribution::from(&engine.index)),
                ("read", Distribution::from(&server.read.latency_ns)),
                ("dump", Distribution::from(&engine.dump)),
                ("reply", together(|volume| &volume.reply_ns)),
            ],
            files: self.store.statistics(),
            space: self.store.space(),
            memory_bytes: agent.payload_bytes + engine.dirty_bytes + index.memtable_bytes + index.pages.bytes,
            memory_bytes_max: self.memory_bytes_max,
            metrics: vec![
                queue_depth("server", server.in_flight),
                queue_depth("disk", looped.operations_in_flight as u64),
                queue_depth("tasks", looped.tasks as u64),
                Metric::plain("connections", "NBD connections that are open.", agent.connections_open as f64),
                Metric::plain("sessions", "Sessions that are open.", server.sessions as f64),
                event("connections_accepted_total", "NBD connections that were accepted.", agent.connections_accepted),
                event("connections_refused_total", "Connections beyond the limit.", agent.connections_refused),
                event("protocol_violations_total", "Connections that broke the protocol.", agent.violations),
                event("stalled_connections_total", "Connections ended for holding memory.", agent.stalled),
                Metric::plain("payload_bytes", "Bytes of requests in memory.", agent.payload_bytes as f64),
                Metric::plain("dirty_bytes", "Bytes that are in the journal only.", engine.dirty_bytes as f64),
                Metric::plain("dirty_limit_bytes", "The bound of dirty bytes.", engine.dirty_bytes_max as f64),
                event("requests_refused_total", "Requests without session, epoch or range.", server.refused),
                event("requests_corrupt_total", "Requests that met damaged bytes.", server.corrupt),
                event("requests_full_total", "Requests that found no space.", server.full),
                event("dumps_total", "Segment caches that became data files.", engine.dumps),
                event("dumped_blocks_total", "Blocks that dumps wrote.", engine.dumped_blocks),
                event("large_writes_total", "Writes past the journal.", engine.large_writes),
                event("checkpoints_total", "Checkpoints of the transaction log.", engine.checkpoints),
                event("memory_waits_total", "Writes that waited for memory.", engine.memory_waits),
                event("loop_turns_total", "Turns of the event loop.", looped.turns),
                event("loop_sleeps_total", "Turns that ended asleep.", looped.sleeps),
            ],
        }
    }
}

fn traffic(name: &str, volume: &VolumeStatistics) -> VolumeCounters {
    let counters = |operation, counted: &OperationStatistics| RequestCounters {
        operation,
        requests: counted.latency_ns.count() + counted.errors,
        bytes: counted.bytes,
        errors: counted.errors,
        latency: Distribution::from(&counted.latency_ns),
    };
    VolumeCounters {
        name: name.to_owned(),
        requests: vec![
            counters("read", &volume.read),
            counters("write", &volume.write),
            counters("flush", &volume.flush),
            counters("discard", &volume.discard),
            counters("query", &volume.query),
        ],
    }
}
