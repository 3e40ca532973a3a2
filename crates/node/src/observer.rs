//! Gathers the counters of a process's parts into one snapshot: of a store in one process, of a server, of an agent.
//!
//! What a part counts is said in one place, whatever process it is in: a store in one process says what a server says and what
//! an agent says.

use std::rc::{Rc, Weak};

use agent::forwarding::{self, Forwarder};
use agent::{
    Agent, AgentStatistics, OperationStatistics, Router, RouterStatistics, SlowPart, TenantStatistics, VolumeStatistics,
};
use base::{Error, Histogram, Incarnation, Instant, Result, VolumeId};
use control::observe::{admission, slow_reasons, slow_requests, waits};
use engine::Engine;
use files::{FileKind, Store};
use policies::admission::AdmissionStatus;
use policies::slow_requests::Direction;
use policies::waits::{Reason, Waits};
use runtime::Handle;
use server::{Server, ServerStatistics, StageStatistics};
use wire::observe::{
    Detail, Distribution, Explained, Metric, Name, RequestCounters, SlowEngine, Snapshot, Timed, VolumeCounters,
    add_waits,
};
use wire::{LocalBoxFuture, Observer, api};

use crate::shards::{Counters, Shards};

/// What it takes to look at a node.
pub struct NodeObserver {
    pub handle: Handle,
    pub shards: Weak<Shards>,
    pub agent: Agent,
    pub memory_bytes_max: u64,
    pub begun: Instant,
}

impl NodeObserver {
    fn shards(&self) -> Result<Rc<Shards>> {
        self.shards.upgrade().ok_or_else(going)
    }
}

impl Observer for NodeObserver {
    fn observe(&self, _detail: Detail) -> LocalBoxFuture<'_, Result<Snapshot>> {
        Box::pin(async move {
            let shards = self.shards()?;
            let counters = shards.counters().await;
            let mut snapshot = of_server(shards.server(), &counters);
            add_agent(&mut snapshot, &self.agent).await;
            for volume in &mut snapshot.traffic {
                let known = shards.server().admission_of(volume.volume);
                add_waits(&mut volume.waits, &known.map(|known| waits(&known.waits)).unwrap_or_default());
            }
            snapshot.memory.limit_bytes = self.memory_bytes_max;
            Ok(living(snapshot, shards.store(), &self.handle, self.begun))
        })
    }

    fn explain(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<Explained>> {
        Box::pin(async move {
            let shards = self.shards()?;
            let of_server = explained_by_server(shards.server(), volume);
            Ok(Explained {
                incarnation: shards.store().incarnation().0,
                ..explained_by_agent(of_server, &self.agent, volume, self.handle.now())
            })
        })
    }
}

/// What it takes to look at a server of several.
pub struct ServerObserver {
    pub handle: Handle,
    pub name: String,
    pub store: Store,
    pub engine: Engine,
    pub server: Weak<Server<Engine>>,
    pub memory_bytes_max: u64,
    pub begun: Instant,
}

impl ServerObserver {
    fn server(&self) -> Result<Rc<Server<Engine>>> {
        self.server.upgrade().ok_or_else(going)
    }
}

impl Observer for ServerObserver {
    fn observe(&self, detail: Detail) -> LocalBoxFuture<'_, Result<Snapshot>> {
        Box::pin(async move {
            let server = self.server()?;
            let counters = Counters {
                engine: self.engine.statistics(),
                server: server.statistics(),
                looped: self.handle.statistics(),
                files: self.store.statistics(),
                space: self.store.space(),
            };
            let mut snapshot = of_server(&server, &counters);
            if detail == Detail::Full {
                snapshot.traffic = server.waits().iter().map(|(volume, known)| waits_of(*volume, known)).collect();
            }
            snapshot.name.clone_from(&self.name);
            snapshot.memory.limit_bytes = self.memory_bytes_max;
            Ok(living(snapshot, &self.store, &self.handle, self.begun))
        })
    }

    fn explain(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<Explained>> {
        Box::pin(async move {
            let explained = explained_by_server(&*self.server()?, volume);
            Ok(Explained { incarnation: self.store.incarnation().0, ..explained })
        })
    }
}

/// What it takes to look at an agent of several.
pub struct AgentObserver {
    pub handle: Handle,
    pub name: String,
    pub agent: Agent,
    pub router: Rc<Router>,
    pub forwarder: Rc<Forwarder>,
    /// Where clients connect, as URIs.
    pub nbd: Vec<String>,
    pub memory_bytes_max: u64,
    pub begun: Instant,
}

impl Observer for AgentObserver {
    fn observe(&self, detail: Detail) -> LocalBoxFuture<'_, Result<Snapshot>> {
        Box::pin(async move {
            let looped = self.handle.statistics();
            let mut snapshot = Snapshot {
                name: self.name.clone(),
                nbd: self.nbd.clone(),
                uptime_seconds: seconds_since(&self.handle, self.begun),
                stages: looped_stages(&looped),
                metrics: of_loop(&looped),
                ..Snapshot::default()
            };
            add_agent(&mut snapshot, &self.agent).await;
            if detail == Detail::WithoutVolumes {
                snapshot.traffic.clear();
            }
            snapshot.metrics.extend(of_router(&self.router.statistics()));
            snapshot.slow_engines = self.router.slow().into_iter().map(slow_engine).collect();
            snapshot.metrics.extend(snapshot.slow_engines.iter().map(of_slow_engine));
            snapshot.metrics.extend(of_forwarder(&self.forwarder));
            snapshot.memory.limit_bytes = self.memory_bytes_max;
            Ok(snapshot)
        })
    }

    fn explain(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<Explained>> {
        let explained = explained_by_agent(Explained::default(), &self.agent, volume, self.handle.now());
        let forwarding = self.forwarder.state(volume).map(forwarded_bursts);
        Box::pin(std::future::ready(Ok(Explained { forwarding, ..explained })))
    }
}

fn going() -> Error {
    Error::retry("it is starting or shutting down")
}

fn seconds_since(handle: &Handle, begun: Instant) -> f64 {
    handle.now().nanos_since(begun) as f64 / 1e9
}

/// Says which life of a store this is of.
fn living(snapshot: Snapshot, store: &Store, handle: &Handle, begun: Instant) -> Snapshot {
    Snapshot {
        store: store.id().to_string(),
        incarnation: store.incarnation().0,
        uptime_seconds: seconds_since(handle, begun),
        ..snapshot
    }
}

/// What a server with its engine and its loop says.
fn of_server(server: &Server<Engine>, counters: &Counters) -> Snapshot {
    let Counters { engine, server: served, looped, files, space } = counters;
    let (settings, status) = server.admission();
    let index = &engine.index_tables;
    let mut stages = looped_stages(looped);
    stages.extend([
        ("queue".into(), Distribution::from(&served.queue_ns)),
        ("admission".into(), Distribution::from(&engine.queue)),
        ("journal".into(), Distribution::from(&engine.journal)),
        ("large_write".into(), Distribution::from(&engine.large)),
        ("index".into(), Distribution::from(&engine.index)),
        ("read".into(), Distribution::from(&served.read.latency_ns)),
        ("dump".into(), Distribution::from(&engine.dump)),
    ]);
    let mut metrics = of_loop(looped);
    metrics.extend(of_engine(engine, served));
    metrics.extend(of_files(files));
    metrics.extend(of_admission(&status));
    let directories = files.directories.iter().map(|directory| api::Directory {
        path: directory.path.clone(),
        state: directory.state.into(),
        free_bytes: directory.free_bytes,
        behind_bytes: directory.behind_bytes,
    });
    let held = engine.dirty_bytes + index.memtable_bytes + index.pages.bytes + engine.read_ahead.held_bytes;
    Snapshot {
        served: vec![
            served_counters("read", &served.read),
            served_counters("write", &served.write),
            served_counters("discard", &served.discard),
        ],
        stages,
        directories: directories.collect(),
        space: api::Space {
            capacity_bytes: space.capacity,
            used_bytes: space.used,
            garbage_bytes: engine.garbage_bytes,
            free_bytes: space.free,
            kept_bytes: files.kept_bytes,
        },
        memory: api::Memory { used_bytes: held, limit_bytes: 0 },
        scrub: scrubbing(engine),
        broken_logs: engine.broken_logs,
        full_engines: engine.full_engines,
        lost_reads: engine.verify.lost,
        admission: Some(admission(&settings, &status)),
        metrics,
        ..Snapshot::default()
    }
}

/// Adds what an agent says: its volumes with their clients, and what it has in memory.
async fn add_agent(snapshot: &mut Snapshot, agent: &Agent) {
    let tenants = agent.tenants().await;
    snapshot.metrics.extend(tenants.iter().flat_map(of_tenant));
    snapshot.tenants = tenants.iter().map(tenant).collect();
    let volumes = agent.volume_statistics();
    let statistics = agent.statistics();
    let together = |part: fn(&VolumeStatistics) -> &Histogram| {
        let mut all = Histogram::new();
        volumes.iter().for_each(|(_, _, volume)| all.merge(part(volume)));
        Distribution::from(&all)
    };
    snapshot.stages.extend([
        ("receive_wait".into(), together(|volume| &volume.receive_wait_ns)),
        ("order_wait".into(), together(|volume| &volume.order_wait_ns)),
        ("reply".into(), together(|volume| &volume.reply_ns)),
    ]);
    snapshot.traffic = volumes
        .iter()
        .map(|(id, name, volume)| VolumeCounters {
            name: name.clone(),
            clients: volume.connections as u64,
            requests: traffic(volume),
            slow: slow_reasons(&volume.slow),
            ..waits_of(*id, &volume.waits)
        })
        .collect();
    snapshot.connections = statistics.connections_open as u64;
    snapshot.memory.used_bytes += statistics.payload_bytes + statistics.queue_bytes;
    snapshot.metrics.extend(of_agent(&statistics));
}

/// What a server knows of a volume.
fn waits_of(volume: VolumeId, known: &Waits) -> VolumeCounters {
    VolumeCounters { volume, name: String::new(), clients: 0, requests: vec![], waits: waits(known), slow: vec![] }
}

fn explained_by_server(server: &Server<Engine>, volume: VolumeId) -> Explained {
    let (settings, status) = server.admission();
    let known = server.admission_of(volume);
    Explained {
        admission: Some(admission(&settings, &status)),
        started_requests: known.as_ref().map_or(0, |known| known.started),
        waits: known.as_ref().map(|known| waits(&known.waits)).unwrap_or_default(),
        hot_segments: known.iter().flat_map(|known| &known.hot_segments).map(|segment| segment.index).collect(),
        ..Explained::default()
    }
}

fn explained_by_agent(explained: Explained, agent: &Agent, volume: VolumeId, now: Instant) -> Explained {
    let statistics = agent.volume_statistics();
    let found = statistics.into_iter().find(|(id, ..)| *id == volume).map(|(.., found)| found);
    let slow = found.as_ref().map(|found| found.slow.clone());
    let found = found.unwrap_or_default();
    let mut all_waits = explained.waits;
    add_waits(&mut all_waits, &waits(&found.waits));
    let slow_ns = |direction| slow.as_ref().and_then(|slow| slow.threshold_ns(direction));
    Explained {
        waits: all_waits,
        latency: vec![
            Timed::of("read", &found.read.latency_ns, slow_ns(Direction::Read)),
            Timed::of("write", &found.write.latency_ns, slow_ns(Direction::Write)),
        ],
        slow_reasons: slow.as_ref().map(slow_reasons).unwrap_or_default(),
        slow_requests: slow.as_ref().map(|slow| slow_requests(slow, now)).unwrap_or_default(),
        ..explained
    }
}

fn forwarded_bursts(state: forwarding::State) -> api::ForwardedBursts {
    let forwarding::State { counted, threshold, lag, .. } = state;
    api::ForwardedBursts {
        mode: state.mode.name().into(),
        has_logs: state.has_logs,
        spread_percent: state.spread_percent,
        written_bytes: counted.written_bytes,
        burst_bytes: counted.burst_bytes,
        rescheduled_bytes: counted.rescheduled_bytes,
        merged_bytes: counted.merged_bytes,
        waiting_bytes: state.waiting_bytes,
        waiting_entries: state.waiting_entries,
        lag_ns: lag.as_nanos() as u64,
        log_reads: counted.log_reads,
        waits: counted.waits,
        failed_merges: counted.failed_merges,
        threshold_ns: threshold.as_nanos() as u64,
    }
}

fn looped_stages(looped: &runtime::statistics::Statistics) -> Vec<(Name, Distribution)> {
    vec![
        ("loop_wait".into(), Distribution::from(&looped.receive_wait)),
        ("background_wait".into(), Distribution::from(&looped.background_wait)),
    ]
}

fn queue_depth(queue: &'static str, depth: u64) -> Metric {
    Metric::labelled("queue_depth", "What waits or is in progress.", "queue", queue, depth as f64)
}

fn plain(name: &'static str, help: &'static str, value: u64) -> Metric {
    Metric::plain(name, help, value as f64)
}

fn of_loop(looped: &runtime::statistics::Statistics) -> Vec<Metric> {
    let overdue = "Background tasks that waited longer than a second for their turn.";
    vec![
        queue_depth("disk", looped.operations_in_flight as u64),
        queue_depth("tasks", looped.tasks as u64),
        plain("loop_turns_total", "Turns of the event loop.", looped.turns),
        plain("loop_sleeps_total", "Turns that ended asleep.", looped.sleeps),
        plain("background_overdue_total", overdue, looped.background_overdue),
    ]
}

fn of_engine(engine: &engine::Statistics, served: &ServerStatistics) -> Vec<Metric> {
    let ahead = &engine.read_ahead;
    vec![
        queue_depth("server", served.in_flight),
        plain("sessions", "Sessions that are open.", served.sessions as u64),
        plain("dirty_bytes", "Bytes that are in the journal only.", engine.dirty_bytes),
        plain("dirty_limit_bytes", "The bound of dirty bytes.", engine.dirty_bytes_max),
        plain("requests_refused_total", "Requests without session, epoch or range.", served.refused),
        plain("requests_corrupt_total", "Requests that met damaged bytes.", served.corrupt),
        plain("requests_full_total", "Requests that found no space.", served.full),
        plain("dumps_total", "Segment caches that became data files.", engine.dumps),
        plain("dumped_blocks_total", "Blocks that dumps wrote.", engine.dumped_blocks),
        plain("large_writes_total", "Writes past the journal.", engine.large_writes),
        plain("checkpoints_total", "Checkpoints of the transaction log.", engine.checkpoints),
        plain("lost_reads_total", "Reads of blocks that no copy has right.", engine.verify.lost),
        plain("read_ahead_streams", "Clients' reads in sequence, by segment.", ahead.streams),
        plain("read_ahead_held_bytes", "Memory of what is read ahead.", ahead.held_bytes),
        plain("read_ahead_bytes_total", "Bytes that were read ahead of clients.", ahead.read_bytes),
        plain("read_ahead_used_bytes_total", "Bytes among them that were asked for.", ahead.used_bytes),
        plain("memory_waits_total", "Writes that waited for memory.", engine.memory_waits),
    ]
}

fn tenant(tenant: &TenantStatistics) -> api::Tenant {
    api::Tenant {
        name: tenant.name.clone(),
        volumes: tenant.volumes.clone(),
        agent: String::new(),
        base_iops: tenant.base.iops,
        base_bytes_per_second: tenant.base.bytes_per_sec,
        base_percent: tenant.scaled * 100.0,
        started: tenant.started,
        throttled: tenant.throttled,
        reclaimed: tenant.reclaimed,
        from_reserve: tenant.from_reserve,
        waiting: tenant.waiting,
        waited_ns: tenant.waited_ns,
        longest_ns: tenant.waited_max_ns,
        burst_windows: tenant.burst_windows,
        bursts_with: tenant.bursts_with.iter().map(bursts_with).collect(),
        burst_iops: tenant.burst.iops,
        burst_bytes_per_second: tenant.burst.bytes_per_sec,
        marked_base: tenant.marked_base,
        marked_burst: tenant.marked_burst,
        waits: waits(&tenant.waits),
    }
}

fn bursts_with((name, share): &(String, f64)) -> api::BurstsWith {
    api::BurstsWith { name: name.clone(), percent: (share * 1000.0).round() / 10.0 }
}

/// Companions of a tenant in its metrics.
const COMPANIONS_SHOWN: usize = 3;

/// The levels that an agent holds requests to.
const LEVELS: [Reason; 3] = [Reason::BaseLevel, Reason::BurstLevel, Reason::TenantLevel];

/// Of each tenant that has clients.
fn of_tenant(tenant: &TenantStatistics) -> Vec<Metric> {
    let of = |name, help, value: f64| Metric::labelled(name, help, "tenant", &tenant.name, value);
    let held = |name, help, reason: Reason, value: f64| {
        let labels = vec![("tenant".into(), tenant.name.clone()), ("reason".into(), reason.name().into())];
        Metric { labels, ..Metric::plain(name, help, value) }
    };
    let (held_total, held_seconds) = ("tenant_held_total", "tenant_held_seconds_total");
    let requests = LEVELS.map(|reason| {
        let wait = tenant.waits.of(reason);
        held(held_total, "Requests of a tenant that a level held back.", reason, wait.requests as f64)
    });
    let seconds = LEVELS.map(|reason| {
        let wait = tenant.waits.of(reason);
        held(held_seconds, "How long levels held its requests back.", reason, wait.total_ns as f64 / 1e9)
    });
    let mut metrics = vec![
        of("tenant_base_total", "Requests within the base levels of their volumes.", tenant.marked_base as f64),
        of("tenant_burst_total", "Requests beyond them.", tenant.marked_burst as f64),
        of("tenant_requests_total", "Requests of a tenant that were started.", tenant.started as f64),
        of("tenant_throttled_total", "Those that had to wait for its share of a loop.", tenant.throttled as f64),
        of("tenant_reclaimed_total", "Those paid for by what others had lent.", tenant.reclaimed as f64),
        of("tenant_reserve_total", "Those paid for from the reserve.", tenant.from_reserve as f64),
        of("tenant_waiting", "Requests of a tenant that wait for its share.", tenant.waiting as f64),
        of("tenant_wait_seconds_total", "How long its requests waited for it.", tenant.waited_ns as f64 / 1e9),
        of("tenant_burst_windows_total", "Windows in which it used more than its base.", tenant.burst_windows as f64),
    ];
    metrics.extend(requests);
    metrics.extend(seconds);
    metrics.extend(tenant.bursts_with.iter().take(COMPANIONS_SHOWN).map(|(with, share)| {
        let labels = vec![("tenant".into(), tenant.name.clone()), ("with".into(), with.clone())];
        let help = "The part of the time in which a tenant bursts in which another one does, too.";
        Metric { labels, ..Metric::plain("tenant_bursts_with_ratio", help, *share) }
    }));
    metrics
}

fn of_agent(agent: &AgentStatistics) -> Vec<Metric> {
    vec![
        plain("connections", "NBD connections that are open.", agent.connections_open as u64),
        plain("connections_accepted_total", "NBD connections that were accepted.", agent.connections_accepted),
        plain("connections_refused_total", "Connections beyond the limit.", agent.connections_refused),
        plain("protocol_violations_total", "Connections that broke the protocol.", agent.violations),
        plain("stalled_connections_total", "Connections ended for holding memory.", agent.stalled),
        plain("payload_bytes", "Bytes of requests in memory.", agent.payload_bytes),
        plain("queue_bytes", "Bytes of memory set aside for queues of virtual machines.", agent.queue_bytes),
        plain("guest_requests_total", "Requests of virtual machines that were begun.", agent.guest_requests),
        plain("guest_requests_pooled_total", "Those with memory from the pool.", agent.guest_requests_pooled),
    ]
}

/// Requests that had to go elsewhere.
fn of_router(router: &RouterStatistics) -> Vec<Metric> {
    vec![
        plain("segments_located_total", "Times that a manager was asked who has a segment.", router.located),
        plain("sessions_opened_total", "Sessions that were opened with servers.", router.opened),
        plain("requests_moved_total", "Requests tried again because their segment had moved.", router.moved),
        plain("requests_broken_total", "Requests tried again because a connection broke.", router.broken),
        plain("requests_failed_total", "Requests tried again because a server could not do them.", router.failed),
        plain("requests_given_up_total", "Requests that found nobody in time who could do them.", router.given_up),
    ]
}

fn slow_engine((engine, part): (Incarnation, SlowPart)) -> SlowEngine {
    let part = match part {
        SlowPart::Server => "server",
        SlowPart::Link => "link",
    };
    SlowEngine { engine: engine.0, part: part.into() }
}

/// One line for each engine that is slow, none where all are well.
fn of_slow_engine(slow: &SlowEngine) -> Metric {
    let labels = vec![("engine".into(), slow.engine.to_string()), ("part".into(), slow.part.to_string())];
    let help = "1: the agent finds the engine slow for some seconds, itself (server) or the way to it (link).";
    Metric { labels, ..Metric::plain("engine_slow", help, 1.0) }
}

/// Nothing of an agent that has never found or written anything in a log.
fn of_forwarder(forwarder: &Forwarder) -> Vec<Metric> {
    let (counted, (bytes, entries)) = (forwarder.counted(), forwarder.waiting());
    if (counted, entries) == Default::default() {
        return Vec::new();
    }
    vec![
        plain(
            "forwarded_written_bytes_total",
            "Written bytes of volumes whose bursts are spread.",
            counted.written_bytes,
        ),
        plain("forwarded_bytes_total", "Written bytes that were a burst, and went to logs.", counted.burst_bytes),
        plain(
            "forwarded_rescheduled_bytes_total",
            "Written bytes that followed others into logs.",
            counted.rescheduled_bytes,
        ),
        plain("forwarded_merged_bytes_total", "Bytes that came home from logs.", counted.merged_bytes),
        plain("forwarded_log_reads_total", "Reads that went to a log, those of merging included.", counted.log_reads),
        plain(
            "forwarded_reads_repeated_total",
            "Reads done again, since what they had read was merged meanwhile.",
            counted.repeated_reads,
        ),
        plain("forwarded_waits_total", "Times that a write waited for others to be merged.", counted.waits),
        plain(
            "forwarded_merges_failed_total",
            "Batches tried again, since an owner refused them.",
            counted.failed_merges,
        ),
        plain("forwarded_waiting_bytes", "Bytes that wait in logs.", bytes),
        plain("forwarded_waiting_entries", "Entries that wait in logs.", entries as u64),
    ]
}

/// Every kind of file, with its name in metrics.
const KINDS: [(FileKind, &str); 6] = [
    (FileKind::Journal, "journal"),
    (FileKind::Transaction, "transaction"),
    (FileKind::Data, "data"),
    (FileKind::Table, "table"),
    (FileKind::Log, "log"),
    (FileKind::Incarnation, "incarnation"),
];

fn of_files(files: &files::Statistics) -> Vec<Metric> {
    let mut metrics = Vec::new();
    for (name, help, bytes) in [
        ("disk_written_bytes_total", "Bytes written to files, all copies together.", &files.written_bytes),
        ("disk_read_bytes_total", "Bytes read from files.", &files.read_bytes),
    ] {
        metrics
            .extend(KINDS.map(|(kind, said)| Metric::labelled(name, help, "kind", said, bytes[kind as usize] as f64)));
    }
    let zeroed = "Zeros written ahead to space for data files, which count as written, too.";
    metrics.push(plain("disk_zeroed_bytes_total", zeroed, files.zeroed_bytes));
    metrics.push(plain("disk_copy_errors_total", "Reads and writes that failed in one copy.", files.copy_errors));
    metrics
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
        silent_engines: 0,
    }
}

fn of_admission(status: &AdmissionStatus) -> Vec<Metric> {
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

fn traffic(volume: &VolumeStatistics) -> Vec<RequestCounters> {
    let counters = |operation: &'static str, counted: &OperationStatistics| RequestCounters {
        operation: operation.into(),
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

/// What a block server did of one kind of request.
fn served_counters(operation: &'static str, served: &StageStatistics) -> RequestCounters {
    RequestCounters {
        operation: operation.into(),
        requests: served.latency_ns.count(),
        bytes: served.bytes,
        errors: served.errors,
        latency: Distribution::from(&served.latency_ns),
        latency_ns: served.latency_ns.buckets().collect(),
    }
}
