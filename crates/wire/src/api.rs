//! What the control API says, in JSON: the same types for whoever serves it and whoever asks.
//!
//! Field names end in their unit. A reader ignores fields that it does not know; the server refuses them.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

/// A volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Volume {
    /// Its id, never used again.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Its stripe unit.
    pub data_sector_bytes: u64,
    /// How many segments it has, thin.
    pub segments: u32,
    /// `active` or `deleting`.
    pub state: String,
    /// How often it was attached.
    pub generation: u64,
    /// Clients that are connected now.
    pub clients: usize,
    /// Whose it is.
    pub owner: String,
    /// What it was promised, and the most that it gets.
    pub levels: Levels,
    /// Whether its bursts are spread over several servers: `off`, `auto`, `on`, or `default`, as its agent is set.
    #[serde(default)]
    pub forwarding: String,
    /// When it was created, in milliseconds since 1970: a label.
    pub created_ms: u64,
    /// Where clients attach it.
    pub uris: Vec<String>,
}

/// Base and burst levels of a volume; null: not given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Levels {
    /// Operations per second that it was promised.
    pub base_iops: Option<u64>,
    /// Bytes per second that it was promised.
    pub base_bytes_per_second: Option<u64>,
    /// Operations per second that it gets at most.
    pub burst_iops: Option<u64>,
    /// Bytes per second that it gets at most.
    pub burst_bytes_per_second: Option<u64>,
    /// Most that is saved of an unused base level, in seconds of it.
    pub credit_seconds: Option<u32>,
    /// How much of an unused base level is saved, in percent.
    pub credit_percent: Option<u32>,
}

impl From<base::levels::Levels> for Levels {
    fn from(levels: base::levels::Levels) -> Self {
        let given = |rate: u64| (rate > 0).then_some(rate);
        let saved = |credit: u32| (credit > 0).then_some(credit);
        Levels {
            base_iops: given(levels.base.iops),
            base_bytes_per_second: given(levels.base.bytes_per_sec),
            burst_iops: given(levels.burst.iops),
            burst_bytes_per_second: given(levels.burst.bytes_per_sec),
            credit_seconds: saved(levels.credits.cap_seconds),
            credit_percent: saved(levels.credits.percent),
        }
    }
}

/// `GET /v1/volumes`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeList {
    /// By name; those that are being deleted last.
    pub volumes: Vec<Volume>,
}

/// The body of `POST /v1/volumes`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CreateVolume {
    /// Its name.
    pub name: String,
    /// Its size: bytes, or text such as `10G`.
    pub size: Size,
    /// Its stripe unit: bytes, or text such as `128K`; 128 KiB if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_sector: Option<Size>,
    /// Whose it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
    /// Whether a volume of that name and size may exist already. It keeps the levels that it has.
    #[serde(default)]
    pub allow_existing: bool,
    /// Its levels, and where its bursts go.
    #[serde(flatten)]
    pub changes: SetVolume,
}

/// The body of `PATCH /v1/volumes/{name}`: what is left out stays as it is, 0 or null takes one away.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SetVolume {
    /// Operations per second that it is promised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_iops: Option<u64>,
    /// Bytes per second that it is promised: a number, or text such as `100M`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_bandwidth: Option<Size>,
    /// Operations per second that it gets at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_iops: Option<u64>,
    /// Bytes per second that it gets at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_bandwidth: Option<Size>,
    /// Most that is saved of an unused base level, in seconds of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credit_seconds: Option<u32>,
    /// How much of an unused base level is saved, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credit_percent: Option<u32>,
    /// Whether its bursts are spread over several servers: `off`, `auto`, `on`, or `default`, as its agent is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forwarding: Option<String>,
}

/// `GET /v1/scrub`, and `POST`, which begins a round unless one is under way: what reads and scrubbing found since the
/// store started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Scrub {
    /// Whether a round is under way.
    pub is_running: bool,
    /// Rounds that came through; of several loops each counts its own.
    pub rounds: u64,
    /// Rounds that took longer than they should.
    pub late_rounds: u64,
    /// Segments of the present round, or the last one.
    pub segments: u64,
    /// Those of them that are done.
    pub segments_done: u64,
    /// Bytes that rounds have read, all copies counted.
    pub read_bytes: u64,
    /// Blocks that rounds found in no copy; each time counted.
    pub lost_blocks: u64,
    /// Copies of blocks that were wrong.
    pub damaged_copies: u64,
    /// Those that were repaired.
    pub repaired_copies: u64,
    /// Engines in touch that have not answered: what they found is not in these numbers. 0 where the store is one server.
    #[serde(default)]
    pub silent_engines: u64,
}

/// `GET /v1/volumes/{name}/explain`: why its I/O waits or waited, since the store started, and what the
/// slowest of it waited for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Explanation {
    /// Its name.
    pub volume: String,
    /// Clients that are connected now.
    pub clients: usize,
    /// What it is held to.
    pub levels: Levels,
    /// Reads and writes that were started.
    pub started_requests: u64,
    /// Why requests waited: what is waited for now first, then what cost most; reasons that did not occur are left out.
    pub waits: Vec<Waiting>,
    /// Its segments that are hot now, by their index.
    pub hot_segments: Vec<u32>,
    /// How long its reads and writes took.
    pub latency: Vec<Latency>,
    /// What the slowest 0.1% of them waited for, the most frequent reason first; reasons that did not occur are left out.
    pub slow_reasons: Vec<SlowReason>,
    /// The last of them, the latest first.
    pub slow_requests: Vec<SlowRequest>,
    /// How the block server stands; of several servers, all of them together; null: none of them has answered.
    pub server: Option<Admission>,
    /// Of several servers: the engines that have segments of the volume, or had requests of it.
    #[serde(default)]
    pub engines: Vec<ExplainedEngine>,
    /// Of several servers: where its bursts go; null while no agent has it.
    #[serde(default)]
    pub forwarding: Option<ForwardedBursts>,
}

/// What became of the bursts of a volume since it was attached (DiffForward, SIGMETRICS 2023).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ForwardedBursts {
    /// `off`, `auto` or `on`: what its agent does with bursts that come now.
    pub mode: String,
    /// Whether it has logs.
    pub has_logs: bool,
    /// With `auto`: of a hundred moments, those in which its agent spreads bursts, as it has found that to gain something or not.
    #[serde(default)]
    pub spread_percent: Option<u32>,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Those that were a burst, and went to logs.
    pub burst_bytes: u64,
    /// Those that were none, and followed into logs what they overlapped there.
    pub rescheduled_bytes: u64,
    /// Bytes that came home.
    pub merged_bytes: u64,
    /// Bytes that wait in logs.
    pub waiting_bytes: u64,
    /// Entries that wait in logs.
    pub waiting_entries: u64,
    /// For how long the oldest of them waits.
    pub lag_ns: u64,
    /// Reads that went to a log, those of merging included.
    pub log_reads: u64,
    /// Writes that waited until others had come home.
    pub waits: u64,
    /// Batches that an owner refused, and that were tried again.
    pub failed_merges: u64,
    /// How much of the average traffic, as time, may stand in the queue before a write is a burst.
    pub threshold_ns: u64,
}

/// What one engine of several does with a volume.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ExplainedEngine {
    /// The name of its server.
    pub server: String,
    /// The number of its life.
    pub engine: u64,
    /// Segments of the volume that it has.
    pub segments: usize,
    /// Why nothing is known of it; null where it has answered.
    pub silent: Option<String>,
    /// Reads and writes of the volume that were started there.
    pub started_requests: u64,
    /// Why requests waited there, as in [`Explanation`].
    pub waits: Vec<Waiting>,
    /// How its block server stands; null where it has not answered.
    pub admission: Option<Admission>,
}

/// What waiting for one reason came to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Waiting {
    /// `hot_segment`, `main_bucket_empty`, `base_level`, `burst_level`, `client_cap`, `segment_cap`, `tenant_level` or
    /// `tenant_share`.
    pub reason: String,
    /// Requests that waited and were started.
    pub requests: u64,
    /// How long they waited, added up.
    pub total_ns: u64,
    /// How long the one waited that waited longest.
    pub longest_ns: u64,
    /// Requests that wait now.
    pub waiting_requests: u64,
}

impl Waiting {
    /// What is waited for now comes first, then what cost most.
    pub fn sort(waits: &mut [Waiting]) {
        waits.sort_by_key(|wait| Reverse((wait.waiting_requests > 0, wait.total_ns)));
    }
}

/// How long one kind of request took, from its arrival to its reply, waiting included.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Latency {
    /// `read` or `write`.
    pub operation: String,
    /// Requests that succeeded.
    pub requests: u64,
    /// Half of them took no longer.
    pub p50_ns: u64,
    /// 99 of 100 took no longer.
    pub p99_ns: u64,
    /// The slowest 0.1% of the last ones took longer; null: too few requests.
    pub slow_ns: Option<u64>,
}

/// What the slowest 0.1% of a volume's reads or writes waited for, and what that came to since the store started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SlowReason {
    /// `read` or `write`.
    pub operation: String,
    /// The stage that took longest beyond its usual time: `intake`, `payload`, `overlap`, `other_loop`, `tokens`,
    /// `engine_slot`, `memory`, `space`, `room`, `journal_file`, `gather`, `retry`, `append`, `journal_order`,
    /// `segment_order`, `index`, `disk_read`, `read_repair`, `turn`, `reply` or `busy_loop`.
    pub reason: String,
    /// Slow requests that waited for it most of all.
    pub requests: u64,
    /// How long they took, added up.
    pub total_ns: u64,
    /// How long the slowest took.
    pub longest_ns: u64,
}

/// One of the last slow requests of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SlowRequest {
    /// `read` or `write`.
    pub operation: String,
    /// Where it was in the volume.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// How long ago its reply was sent.
    pub ago_ns: u64,
    /// From its arrival, which may have been noticed late, to the end of the send that carried its reply.
    pub total_ns: u64,
    /// As in [`SlowReason`].
    pub reason: String,
    /// How much longer than usual that took.
    pub beyond_ns: u64,
    /// What was missing where the reason is `tokens`, as in [`Waiting`]; the task that ran longest where it is `busy_loop`.
    pub detail: Option<String>,
    /// Where its time went: the stages that took any, in order.
    pub stages: Vec<StageTime>,
}

/// The part of a request's time that one stage took.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StageTime {
    /// As the reasons in [`SlowReason`].
    pub stage: String,
    /// How long.
    pub ns: u64,
}

/// How the admission of a block server stands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Admission {
    /// `dual-buckets`, `one-bucket`, `client-cap`, `segment-cap` or `off`.
    pub throttle: String,
    /// What all volumes together may move, at the present mix of requests; null: without a limit, or not learned so far.
    pub bandwidth_bytes_per_second: Option<u64>,
    /// Whether that is learned while the store runs.
    #[serde(default)]
    pub is_learned: bool,
    /// What one client or one segment may move, where they are capped.
    pub cap_bytes_per_second: Option<u64>,
    /// Tokens in the main bucket; below zero: debt; null: there are always enough, as without a limit, or while one volume
    /// has the store for itself and the limit is learned.
    pub main_bytes: Option<i64>,
    /// What a full main bucket holds: the tokens of one interval.
    pub main_size_bytes: Option<u64>,
    /// Tokens in the cheque bucket; below zero: debt.
    pub cheque_bytes: Option<i64>,
    /// What a full cheque bucket holds.
    pub cheque_size_bytes: Option<u64>,
    /// Requests of all volumes that wait now.
    pub waiting_requests: u64,
    /// Segments of all volumes that were used in the last second.
    pub active_segments: u64,
    /// Segments of all volumes that are hot now.
    pub hot_segments: u64,
    /// Bytes that were started.
    pub started_bytes: u64,
    /// How many of them on the cheque bucket.
    pub overdrawn_bytes: u64,
    /// The 95th percentile of recent latencies below admission; null: too few requests.
    pub p95_ns: Option<u64>,
    /// The 99.999th percentile that is predicted from it.
    pub p99999_ns: Option<u64>,
    /// What the disks are estimated to have left.
    pub available_bytes_per_second: Option<u64>,
}

/// A size, as a number of bytes or as people write it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged, expecting = "a size is a number of bytes or text such as \"10G\"")]
pub enum Size {
    /// Bytes.
    Bytes(u64),
    /// Text such as `10G` or `1.5TiB`.
    Text(String),
}

impl Default for Size {
    fn default() -> Self {
        Size::Bytes(0)
    }
}

impl Size {
    /// The size in bytes.
    ///
    /// # Errors
    /// A sentence that says what a size looks like.
    pub fn bytes(&self) -> Result<u64, String> {
        match self {
            Size::Bytes(bytes) => Ok(*bytes),
            Size::Text(text) => base::units::parse_size(text),
        }
    }
}

/// The answer to `DELETE /v1/volumes/{name}`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Deleted {
    /// The volume as it was.
    pub volume: Volume,
    /// Whether its data is dropped; otherwise the store goes on trying.
    pub is_dropped: bool,
}

/// `GET /v1/status`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The version of Levee.
    pub version: String,
    /// The store's id.
    pub store: String,
    /// The number of this life of the store.
    pub incarnation: u64,
    /// How long it runs.
    pub uptime_seconds: f64,
    /// How many volumes there are.
    pub volumes: usize,
    /// Whether nothing is wrong: there are no problems.
    pub is_healthy: bool,
    /// What is wrong.
    pub problems: Vec<Problem>,
    /// NBD connections that are open.
    pub connections: u64,
    /// Room.
    pub space: Space,
    /// Memory by the store's own account.
    pub memory: Memory,
    /// The directories that hold it.
    pub directories: Vec<Directory>,
    /// What reads and scrubbing found since the store started.
    pub scrub: Scrub,
    /// Who waits for tokens; null while the store is going away.
    pub admission: Option<Admission>,
    /// The volumes that are not being deleted, by name.
    pub traffic: Vec<VolumeTraffic>,
    /// Who shares the loops that serve clients: owners and volumes without one, while they have clients.
    #[serde(default)]
    pub tenants: Vec<Tenant>,
    /// How several servers stand; null where the store is one.
    #[serde(default)]
    pub cluster: Option<Cluster>,
    /// Where NBD clients connect: the listening addresses.
    pub nbd: Vec<String>,
    /// The file with the token that changes need.
    pub token_file: String,
}

/// Something that is wrong with a store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Problem {
    /// `directory_failed`, `directory_missing`, `directory_resynchronizing`, `store_slow`, `log_broken`, `full`, `lost_data`, or
    /// of several servers `no_servers`, `server_silent`, `server_mute`, `server_slow`, `link_slow`, `server_dead`,
    /// `segments_on_the_way`.
    pub kind: String,
    /// What is wrong and what to do, for a person.
    pub message: String,
}

/// What clients did with a volume since the store started, and why requests waited.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeTraffic {
    /// Its name.
    pub volume: String,
    /// Its size.
    pub size_bytes: u64,
    /// Clients that are connected now.
    pub clients: usize,
    /// Why requests waited: what is waited for now first, then what cost most; reasons that did not occur are left out.
    pub waits: Vec<Waiting>,
    /// By kind of request; none for a volume that was not used lately.
    pub operations: Vec<OperationTraffic>,
}

/// An owner with his volumes on one agent, or a volume that has no owner: what it did while it had clients there.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Tenant {
    /// The owner, or the volume.
    pub name: String,
    /// Its volumes that have clients, by name.
    pub volumes: Vec<String>,
    /// The agent, where there are several; empty otherwise.
    #[serde(default)]
    pub agent: String,
    /// What its volumes were promised together, in operations per second; 0: nothing.
    pub base_iops: u64,
    /// The same in bytes per second.
    pub base_bytes_per_second: u64,
    /// The most that they get together, in operations per second; 0: no bound.
    #[serde(default)]
    pub burst_iops: u64,
    /// The same in bytes per second.
    #[serde(default)]
    pub burst_bytes_per_second: u64,
    /// How much of what it was promised it has, in percent: less than 100 where promises exceed what the agent can do.
    pub base_percent: f64,
    /// Requests that were started.
    pub started: u64,
    /// Requests that had to wait because nothing was left for them.
    pub throttled: u64,
    /// Requests that were paid for by what others had beyond their base.
    pub reclaimed: u64,
    /// Requests that were paid for from the reserve.
    pub from_reserve: u64,
    /// Requests that wait now.
    pub waiting: u64,
    /// How long requests waited, all together.
    pub waited_ns: u64,
    /// How long the one that waited longest.
    pub longest_ns: u64,
    /// Windows in which it used more than its base.
    pub burst_windows: u64,
    /// With whom it bursts at the same time, most of all first.
    #[serde(default)]
    pub bursts_with: Vec<BurstsWith>,
    /// Requests that were started within the base levels of their volumes; of volumes with levels.
    #[serde(default)]
    pub marked_base: u64,
    /// Those beyond.
    #[serde(default)]
    pub marked_burst: u64,
    /// What requests waited for that a level held back, of its volumes or its own.
    #[serde(default)]
    pub waits: Vec<Waiting>,
}

/// Another tenant that bursts at the same time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct BurstsWith {
    /// The other one's name.
    pub name: String,
    /// In how much of the time in which the one bursts, in percent.
    pub percent: f64,
}

/// One kind of request of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OperationTraffic {
    /// `read`, `write`, `flush`, `discard` or `query`.
    pub operation: String,
    /// Requests that were answered, errors included.
    pub requests: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Those that were answered with an error.
    pub errors: u64,
    /// How many of those that succeeded took how long: pairs of the most nanoseconds of a bucket and its requests,
    /// ascending, empty buckets left out. The difference of two answers has the percentiles of the time between.
    pub latency_ns: Vec<(u64, u64)>,
}

/// Room, counted for one copy of new data.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Space {
    /// What the store may use in all.
    pub capacity_bytes: u64,
    /// What its files have set aside.
    pub used_bytes: u64,
    /// What of it is garbage, at least, that collection gives back.
    pub garbage_bytes: u64,
    /// What can still be set aside.
    pub free_bytes: u64,
    /// What of it deleted files left, or was zero-written ahead, which is kept for the next files.
    pub kept_bytes: u64,
}

/// Memory.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    /// What the store holds.
    pub used_bytes: u64,
    /// Its bound.
    pub limit_bytes: u64,
}

/// A directory of a store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Directory {
    /// Its path.
    pub path: String,
    /// `healthy`, `slow`, `failed`, `missing` or `resynchronizing`.
    pub state: String,
    /// Free bytes of its file system.
    pub free_bytes: u64,
    /// What still has to be copied to it.
    pub behind_bytes: u64,
}

/// The answer to what was decided and will come about: `GET /v1/status` says when.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Decided {
    /// It was decided.
    pub is_decided: bool,
}

/// A volume as a disk of virtual machines.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Device {
    /// The name of the volume.
    pub volume: String,
    /// The Unix socket where hypervisors connect, which speak vhost-user.
    pub path: String,
    /// Whether one is connected.
    pub is_connected: bool,
}

/// All of them, by path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceList {
    /// The disks.
    pub devices: Vec<Device>,
}

/// How several servers stand, as the manager in charge sees it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Cluster {
    /// The manager in charge.
    pub manager: Option<ManagerInCharge>,
    /// Servers, by name.
    pub servers: Vec<Server>,
    /// Segments of all volumes.
    pub segments: usize,
    /// Those of them that nobody serves, or that are to go elsewhere.
    pub segments_on_the_way: usize,
    /// The first 100 of those.
    pub moving: Vec<SegmentMove>,
    /// Servers of which no engine lives, and that were heard of in the last hour, by name.
    #[serde(default)]
    pub gone: Vec<GoneServer>,
    /// Agents that are in touch and have answered, by name.
    #[serde(default)]
    pub agents: Vec<Agent>,
}

/// A server that was there until lately: it was stopped, or is dead, and others have its segments.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct GoneServer {
    /// Its name.
    pub name: String,
    /// When it was last heard of.
    pub silent_seconds: f64,
}

/// An agent.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Agent {
    /// Its name.
    pub name: String,
    /// Where NBD clients connect: URIs without a volume.
    pub nbd: Vec<String>,
    /// How long it runs.
    pub uptime_seconds: f64,
    /// NBD connections that are open.
    pub connections: u64,
}

/// The manager that decides.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ManagerInCharge {
    /// Its name.
    pub name: String,
    /// Its time in charge: higher than all before.
    pub term: u32,
}

/// A server: a named set of engines.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Server {
    /// Its name.
    pub name: String,
    /// Whether it is to own nothing.
    pub is_drained: bool,
    /// Segments that its engines have.
    pub segments: usize,
    /// Its engines: those that live, and those that were declared dead and are not settled yet.
    pub engines: Vec<Engine>,
}

/// An engine: one life of a process with a log of its own.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Engine {
    /// The number of its life.
    pub id: u64,
    /// Where it listens; empty where that is not known.
    pub address: String,
    /// `healthy`, `silent` (not heard of for a lease), `dead` (declared so), `recovering` or `recovered` (its segments
    /// go to others).
    pub state: String,
    /// When it was last heard of; null where it never was.
    pub silent_seconds: Option<f64>,
    /// Segments whose last word is in its log.
    pub segments: usize,
    /// How it stands, in its own words; null where it was not asked, or has not answered.
    #[serde(default)]
    pub work: Option<EngineWork>,
    /// Why it has not answered; null where it has, or was not asked.
    #[serde(default)]
    pub no_answer: Option<String>,
    /// Who finds it slow, agents by name.
    #[serde(default)]
    pub slow: Vec<SlowFor>,
}

/// An engine is slow for an agent: for some seconds it has taken many times as long as engines usually do.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SlowFor {
    /// The name of the agent.
    pub agent: String,
    /// `server`: it takes long to answer; `link`: requests and answers are long on their way.
    pub part: String,
}

/// How an engine stands.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct EngineWork {
    /// How long it runs.
    pub uptime_seconds: f64,
    /// Reads, writes and discards of its segments, by kind, retries of agents included.
    pub operations: Vec<OperationTraffic>,
    /// Requests that wait for tokens.
    pub waiting_requests: u64,
    /// Bytes that its files have set aside in the shared store.
    pub used_bytes: u64,
    /// What it holds in memory, and its bound.
    pub memory: Memory,
}

/// A segment that nobody serves, or that is to go elsewhere.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SegmentMove {
    /// The name of its volume.
    pub volume: String,
    /// Which one of it.
    pub index: u32,
    /// The server whose log has it.
    pub from: Option<String>,
    /// The server that is to have it.
    pub to: Option<String>,
    /// What has to happen next.
    pub waits_for: String,
}

/// The body of every answer that is an error.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// What went wrong.
    pub error: FailureDetail,
}

/// What went wrong.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FailureDetail {
    /// A word that a program can act on, such as `not_found`.
    pub kind: String,
    /// What was wrong and what to do, for a person.
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_or_text() {
        let read = |text: &str| serde_json::from_str::<CreateVolume>(text).unwrap().size.bytes();
        assert_eq!(read(r#"{"name": "a", "size": 4096}"#), Ok(4096));
        assert_eq!(read(r#"{"name": "a", "size": "10G"}"#), Ok(10 << 30));
        assert!(read(r#"{"name": "a", "size": "ten"}"#).is_err());
    }

    #[test]
    fn what_is_waited_for_now_comes_first() {
        let wait = |reason: &str, total_ns, waiting_requests| Waiting {
            reason: reason.into(),
            requests: 1,
            total_ns,
            longest_ns: total_ns,
            waiting_requests,
        };
        let mut waits = [wait("a", 9, 0), wait("b", 1, 1), wait("c", 10, 0), wait("d", 2, 1)];
        Waiting::sort(&mut waits);
        assert_eq!(waits.each_ref().map(|wait| wait.reason.as_str()), ["d", "b", "c", "a"]);
    }

    #[test]
    fn levels_that_are_not_given_are_left_out_of_a_request_and_null_in_an_answer() {
        let levels =
            SetVolume { base_iops: Some(100), burst_bandwidth: Some(Size::Text("1M".into())), ..SetVolume::default() };
        assert_eq!(serde_json::to_string(&levels).unwrap(), r#"{"base_iops":100,"burst_bandwidth":"1M"}"#);
        let wanted = CreateVolume { changes: levels.clone(), ..CreateVolume::default() };
        let text = serde_json::to_string(&wanted).unwrap();
        assert_eq!(text, r#"{"name":"","size":0,"allow_existing":false,"base_iops":100,"burst_bandwidth":"1M"}"#);
        assert_eq!(serde_json::from_str::<CreateVolume>(&text).unwrap(), wanted);
        let shown = Levels::from(base::levels::Levels {
            base: base::levels::Rate { iops: 100, bytes_per_sec: 0 },
            ..Default::default()
        });
        assert_eq!(shown, Levels { base_iops: Some(100), ..Levels::default() });
    }
}
