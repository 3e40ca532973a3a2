//! Gathers the counters of a node's parts into one snapshot.

use std::rc::Weak;

use agent::{Agent, OperationStatistics, VolumeStatistics};
use base::{Histogram, Instant, Stage, VolumeId};
use control::observe::{
    Distribution, Explained, Metric, Observer, Quantiles, RequestCounters, Snapshot, VolumeCounters,
};
use policies::admission::{AdmissionStatus, Reason, Waits};
use policies::slow_requests::Direction;
use runtime::Handle;
use wire::{LocalBoxFuture, api};

use crate::shards::{Counters, Shards};

/// What it takes to look at a node.
pub struct NodeObserver {
    pub handle: Handle,
    pub shards: Weak<Shards>,
    pub agent: Agent,
    pub memory_bytes_max: u64,
    pub begun: Instant,
}

impl Observer for NodeObserver {
    fn observe(&self) -> LocalBoxFuture<'_, Snapshot> {
        Box::pin(async move {
            match self.shards.upgrade() {
                Some(shards) => self.snapshot(&shards, shards.counters().await),
                // The node is being taken apart.
                None => Snapshot::default(),
            }
        })
    }

    fn explain(&self, volume: VolumeId) -> Option<Explained> {
        let shards = self.shards.upgrade()?;
        let (settings, status) = shards.server().admission();
        let statistics = self.agent.volume_statistics();
        let statistics = statistics.into_iter().find(|(id, ..)| *id == volume).map(|(.., found)| found);
        let slow = statistics.as_ref().map(|found| found.slow.clone());
        let statistics = statistics.unwrap_or_default();
        let latency = vec![
            Quantiles::of("read", &statistics.read.latency_ns),
            Quantiles::of("write", &statistics.write.latency_ns),
        ];
        let volume = shards.server().admission_of(volume);
        Some(Explained { settings, server: status, volume, latency, slow, now: self.handle.now() })
    }
}

impl NodeObserver {
    fn snapshot(&self, shards: &Shards, counters: Counters) -> Snapshot {
        let Counters { engine, server, looped, files, space } = counters;
        let volumes = self.agent.volume_statistics();
        let agent = self.agent.statistics();
        let together = |part: fn(&VolumeStatistics) -> &Histogram| {
            let mut all = Histogram::new();
            volumes.iter().for_each(|(_, _, volume)| all.merge(part(volume)));
            Distribution::from(&all)
        };
        let queue_depth = |queue: &str, depth: u64| {
            Metric::labelled("queue_depth", "What waits or is in progress.", "queue", queue, depth as f64)
        };
        let event = |name, help, count: u64| Metric::plain(name, help, count as f64);
        let (index, ahead) = (&engine.index_tables, &engine.read_ahead);
        let mut snapshot = Snapshot {
            store: shards.store().id().to_string(),
            incarnation: shards.store().incarnation().0,
            uptime_seconds: self.handle.now().nanos_since(self.begun) as f64 / 1e9,
            volumes: 0,
            cluster: None,
            traffic: volumes
                .iter()
                .map(|(id, name, volume)| {
                    let waits = shards.server().admission_of(*id).map(|volume| volume.waits).unwrap_or_default();
                    VolumeCounters { volume: *id, name: name.clone(), requests: traffic(volume), waits }
                })
                .collect(),
            stages: vec![
                ("loop_wait", Distribution::from(&looped.receive_wait)),
                ("background_wait", Distribution::from(&looped.background_wait)),
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
            files,
            space,
            memory_bytes: agent.payload_bytes
                + engine.dirty_bytes
                + index.memtable_bytes
                + index.pages.bytes
                + ahead.held_bytes,
            memory_bytes_max: self.memory_bytes_max,
            scrub: scrubbing(&engine),
            connections: agent.connections_open as u64,
            garbage_bytes: engine.garbage_bytes,
            broken_logs: engine.broken_logs,
            full_engines: engine.full_engines,
            lost_reads: engine.verify.lost,
            admission: None,
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
                event("lost_reads_total", "Reads of blocks that no copy has right.", engine.verify.lost),
                Metric::plain("read_ahead_streams", "Clients' reads in sequence, by segment.", ahead.streams as f64),
                Metric::plain("read_ahead_held_bytes", "Memory of what is read ahead.", ahead.held_bytes as f64),
                event("read_ahead_bytes_total", "Bytes that were read ahead of clients.", ahead.read_bytes),
                event("read_ahead_used_bytes_total", "Bytes among them that were asked for.", ahead.used_bytes),
                event("memory_waits_total", "Writes that waited for memory.", engine.memory_waits),
                event("loop_turns_total", "Turns of the event loop.", looped.turns),
                event("loop_sleeps_total", "Turns that ended asleep.", looped.sleeps),
                event(
                    "background_overdue_total",
                    "Background tasks that waited longer than a second for their turn.",
                    looped.background_overdue,
                ),
            ],
        };
        let (settings, status) = shards.server().admission();
        snapshot.metrics.extend(admission(&status));
        let waits = snapshot.traffic.iter().flat_map(|volume| throttled(&volume.name, &volume.waits));
        snapshot.metrics.extend(waits);
        snapshot.metrics.extend(volumes.iter().flat_map(|(_, name, volume)| slow(name, volume)));
        snapshot.admission = Some((settings, status));
        snapshot
    }
}

fn scrubbing(engine: &engine::Statistics) -> api::Scrub {
    let (verify, scrub) = (&engine.verify, &engine.scrub);
    api::Scrub {
        is_running: scrub.running > 0,
        rounds: scrub.rounds,
        late_rounds: scrub.late_rounds,
        segments: scrub.segments,
        segments_done: scrub.segments_done,
        read_bytes: scrub.read_bytes,
        lost_blocks: scrub.lost,
        damaged_copies: verify.mismatches,
        repaired_copies: verify.repaired,
    }
}

fn admission(status: &AdmissionStatus) -> Vec<Metric> {
    let plain = |name, help, value: u64| Metric::plain(name, help, value as f64);
    let mut metrics = vec![
        plain("admission_waiting_requests", "Requests that wait for tokens.", status.waiting as u64),
        plain("admission_active_segments", "Segments used in the last second.", status.active_segments),
        plain("admission_hot_segments", "Segments that ask for more than their share.", status.hot_segments),
        plain("admission_started_bytes_total", "Bytes of requests that got their tokens.", status.started_bytes),
        plain("admission_overdrawn_bytes_total", "Started bytes from the cheque bucket.", status.overdrawn_bytes),
        plain(
            "admission_background_bytes_per_second",
            "Read and written by dumps, merges, garbage collection, copies and scrubbing, as admission knows of it.",
            status.background_bytes_per_sec,
        ),
    ];
    let limit = status.limit_bytes_per_sec.map(|limit| {
        plain("admission_bandwidth_bytes_per_second", "What the disks take: set, or learned of the present mix.", limit)
    });
    metrics.extend(limit);
    // Without a limit there are always enough.
    if status.is_limited {
        metrics.push(Metric::labelled(TOKENS.0, TOKENS.1, "bucket", "main", status.main as f64));
        metrics.push(Metric::labelled(TOKENS.0, TOKENS.1, "bucket", "cheque", status.cheque as f64));
    }
    let seconds = |ns: u64| ns as f64 / 1e9;
    let p95 = status.p95_ns.map(|p95| {
        Metric::plain("admission_p95_seconds", "95th percentile of recent latencies below admission.", seconds(p95))
    });
    let available = status
        .available_bytes_per_sec
        .map(|left| plain("admission_available_bytes_per_second", "What the disks are estimated to have left.", left));
    metrics.extend(p95.into_iter().chain(available));
    metrics
}

/// Name and help of the buckets' tokens.
const TOKENS: (&str, &str) = ("admission_tokens_bytes", "Tokens in a bucket of admission; below zero: debt.");

/// For which reasons requests of a volume waited; only those that occurred.
fn throttled(volume: &str, waits: &Waits) -> Vec<Metric> {
    let occurred = Reason::ALL.into_iter().filter(|reason| waits.of(*reason).requests > 0);
    let metrics = occurred.flat_map(|reason| {
        let labels = vec![("volume", volume.to_owned()), ("reason", reason.name().to_owned())];
        let wait = waits.of(reason);
        let requests =
            Metric::plain("throttled_requests_total", "Requests that waited for tokens.", wait.requests as f64);
        let total = wait.total_ns as f64 / 1e9;
        let seconds = Metric::plain("throttled_seconds_total", "How long requests waited for tokens, added up.", total);
        [Metric { labels: labels.clone(), ..requests }, Metric { labels, ..seconds }]
    });
    metrics.collect()
}

/// What slow requests of a volume waited for; only reasons that occurred.
fn slow(volume: &str, statistics: &VolumeStatistics) -> Vec<Metric> {
    let all = Direction::ALL.into_iter().flat_map(|direction| Stage::ALL.map(|stage| (direction, stage)));
    let blames = all.map(|(direction, stage)| (direction, stage, statistics.slow.blame(direction, stage)));
    let metrics = blames.filter(|(.., blame)| blame.requests > 0).map(|(direction, stage, blame)| Metric {
        name: "slow_requests_total",
        help: "Requests among the slowest 0.1% of their time, by what they waited for.",
        labels: vec![
            ("volume", volume.to_owned()),
            ("operation", direction.name().to_owned()),
            ("reason", stage.name().to_owned()),
        ],
        value: blame.requests as f64,
    });
    metrics.collect()
}

fn traffic(volume: &VolumeStatistics) -> Vec<RequestCounters> {
    let counters = |operation, counted: &OperationStatistics| RequestCounters {
        operation,
        requests: counted.latency_ns.count() + counted.errors,
        bytes: counted.bytes,
        errors: counted.errors,
        latency: Distribution::from(&counted.latency_ns),
        latency_ns: counted.latency_ns.buckets().collect(),
    };
    vec![
        counters("read", &volume.read),
        counters("write", &volume.write),
        counters("flush", &volume.flush),
        counters("discard", &volume.discard),
        counters("query", &volume.query),
    ]
}
