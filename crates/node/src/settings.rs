//! What a node is told: one typed structure, from a TOML file or from code.
//!
//! Everything has a default but the directories. A key that is not known is an error that names the nearest one; a
//! value is checked before anything is opened. docs/CONFIGURATION.md lists the keys.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use base::limits::{MEMORY_DEFAULT, MEMORY_MIN};
use base::units::format_size;
use base::{Error, GIB, KIB, MIB, Result};
use control::rules;
use policies::read_ahead::ReadAheadSettings;
use policies::ready::ReadySettings;
use policies::scrub::ScrubSettings;
use policies::{loop_schedule, polling, sharding};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use wire::api::Size;

mod admission;
mod guests;
mod tenants;
mod tls;

pub use admission::{AdmissionSettings, Throttle};
pub use guests::{Queues, VhostSettings};
pub use tenants::{Enforcer, TenantsSettings};
pub use tls::{NbdDemand, TlsSettings};

use crate::cluster::settings::ClusterSettings;

/// The settings of one node that plays all roles.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The store's directories, ideally one per disk.
    pub directories: Vec<PathBuf>,
    /// Copies of everything, at most one per directory. Default: two with several directories, one with one.
    pub copies: Option<u8>,
    /// The bound on memory.
    pub memory: Size,
    /// Most bytes that the store's files may take, one copy counted. Default: what the file systems hold.
    pub capacity: Option<Size>,
    /// The NBD frontend.
    pub nbd: NbdSettings,
    /// The volumes that are disks of virtual machines.
    pub vhost_user: Vec<VhostUserSettings>,
    /// How loops share their queues.
    pub vhost: VhostSettings,
    /// The control API.
    pub api: ApiSettings,
    /// The engine.
    pub engine: EngineSettings,
    /// Who has to wait when there is more to do than the store takes.
    pub admission: AdmissionSettings,
    /// How those who share an agent share its loops.
    pub tenants: TenantsSettings,
    /// The event loop. Whoever starts one looks at it: a node is given a loop that runs.
    #[serde(rename = "loop")]
    pub event_loop: LoopSettings,
    /// What this process shows others.
    pub tls: TlsSettings,
    /// The roles of several servers; `levee up` has no use for it.
    pub cluster: ClusterSettings,
    /// Start although acknowledged records have rotted, and go on without them. Not for a file: a flag, once.
    #[serde(skip)]
    pub accept_data_loss: bool,
    /// Start although directories are missing, and give up what only they hold. Not for a file: a flag, once.
    #[serde(skip)]
    pub accept_missing_directories: bool,
    /// Who we are, for a second process that finds the store in use.
    #[serde(skip)]
    pub holder: String,
}

/// Where NBD clients connect.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NbdSettings {
    /// The TCP address; port 0 asks for a free one.
    pub listen: SocketAddr,
    /// The Unix socket. Default: `nbd.sock` in the first directory.
    pub socket: Option<PathBuf>,
}

/// A volume that is a disk of virtual machines.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VhostUserSettings {
    /// The name of the volume.
    pub volume: String,
    /// The Unix socket where hypervisors connect.
    pub path: PathBuf,
}

/// Where people and programs ask.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApiSettings {
    /// The address; port 0 asks for a free one.
    pub listen: SocketAddr,
    /// Names that clients may put into `Host` besides `localhost` and addresses.
    pub host_names: Vec<String>,
    /// Whether it is served. Not for a file: the simulated world has no threads.
    #[serde(skip)]
    pub is_off: bool,
}

/// How the engine writes. The defaults are right for most disks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineSettings {
    /// Size of one journal file, zero-written ahead.
    pub journal_file: Size,
    /// How many journal files there may be.
    pub journal_files: usize,
    /// Largest size of one data file.
    pub data_file: Size,
    /// Writes from this size on skip the journal.
    pub large_write: Size,
    /// A segment's cache is dumped when it holds this much.
    pub segment_cache: Size,
    /// Memory for what is read ahead of clients that read in sequence; 0: nothing is. Default: a 32nd of `memory`.
    pub read_ahead: Option<Size>,
    /// How long a batch waits for more writes, in microseconds; 0: until the loop's turn ends.
    pub fusion_wait_us: u64,
    /// Bytes that are read in a second, at most, to see whether what is stored is still right; 0: none.
    pub scrub_rate: Size,
    /// In how many days everything is to be read once.
    pub scrub_days: u64,
    /// Bytes of space for data files in each directory that are zero-written ahead of need, at most; 0: none.
    pub zero_ahead: Size,
    /// Zeros that are written in a second, in each directory, while nobody wants the store.
    pub zero_rate: Size,
    /// Copies that are lacking are made at so many bytes per second in each directory, where foreground work leaves as much.
    pub rebuild_rate: Size,
    /// And at so many, however little it leaves.
    pub rebuild_floor: Size,
    /// How long nobody must have wanted the store before zeros are written, if it is not to be the default. For the laboratory, whose runs are short.
    #[serde(skip)]
    pub zero_quiet: Option<Duration>,
    /// That time, if it is not to be counted in days: for the laboratory.
    #[serde(skip)]
    pub scrub_period: Option<Duration>,
    /// Bytes of the index that are kept in memory until they become tables, if that is not to be a share of `memory`.
    /// For the laboratory, whose stores are too small to fill that share.
    #[serde(skip)]
    pub memtable_bytes: Option<u64>,
    /// Bytes of a file of the transaction log, and of a manager's log, if they are not to be the default. For the laboratory, too.
    #[serde(skip)]
    pub transaction_file_bytes: Option<u64>,
}

/// How the event loop orders its tasks.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoopSettings {
    /// The order of tasks.
    pub discipline: Discipline,
    /// Whether a loop looks on for a moment before it sleeps.
    pub polling: Polling,
    /// How many loops a new store gets, each on a thread of its own: 1, 2, 4 or 8. A store keeps its number.
    pub count: Option<u8>,
    /// Whether the first loop serves all clients, as a baseline to measure against. For the laboratory.
    #[serde(skip)]
    pub gathers_clients: bool,
}

/// See [`loop_schedule::Discipline`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// I/O first, background work for a bounded time after it.
    #[default]
    Priority,
    /// One queue in order of arrival: a baseline to measure against.
    Fifo,
}

/// See [`polling::Polling`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Polling {
    /// While more is done by it.
    Adaptive,
    /// It sleeps at once.
    #[default]
    Never,
    /// Before each sleep: a baseline to measure against.
    Always,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            directories: Vec::new(),
            copies: None,
            memory: Size::Bytes(MEMORY_DEFAULT),
            capacity: None,
            nbd: NbdSettings::default(),
            vhost_user: Vec::new(),
            vhost: VhostSettings::default(),
            api: ApiSettings::default(),
            engine: EngineSettings::default(),
            admission: AdmissionSettings::default(),
            tenants: TenantsSettings::default(),
            event_loop: LoopSettings::default(),
            tls: TlsSettings::default(),
            cluster: ClusterSettings::default(),
            accept_data_loss: false,
            accept_missing_directories: false,
            holder: String::new(),
        }
    }
}

impl Default for NbdSettings {
    fn default() -> Self {
        NbdSettings { listen: (Ipv4Addr::LOCALHOST, 10809).into(), socket: None }
    }
}

impl Default for ApiSettings {
    fn default() -> Self {
        ApiSettings { listen: (Ipv4Addr::LOCALHOST, 7400).into(), host_names: Vec::new(), is_off: false }
    }
}

impl Default for EngineSettings {
    fn default() -> Self {
        let defaults = engine::Options::default();
        EngineSettings {
            journal_file: Size::Bytes(defaults.journal_file_bytes),
            journal_files: defaults.journal_files,
            data_file: Size::Bytes(defaults.data_file_bytes),
            large_write: Size::Bytes(defaults.large_write_bytes),
            segment_cache: Size::Bytes(defaults.segment_cache_bytes),
            read_ahead: None,
            fusion_wait_us: 0,
            scrub_rate: Size::Bytes(defaults.scrub.bytes_per_sec),
            scrub_days: defaults.scrub.period.as_secs() / DAY_SECS,
            zero_ahead: Size::Bytes(ReadySettings::default().bytes_max),
            zero_rate: Size::Bytes(ReadySettings::default().bytes_per_sec),
            rebuild_rate: Size::Bytes(REBUILD_RATE),
            rebuild_floor: Size::Bytes(REBUILD_FLOOR),
            zero_quiet: None,
            scrub_period: None,
            memtable_bytes: None,
            transaction_file_bytes: None,
        }
    }
}

impl LoopSettings {
    /// For [`runtime::uring::Options`].
    pub fn schedule(&self) -> loop_schedule::LoopSettings {
        let discipline = match self.discipline {
            Discipline::Priority => loop_schedule::Discipline::Priority,
            Discipline::Fifo => loop_schedule::Discipline::Fifo,
        };
        let polling = match self.polling {
            Polling::Adaptive => polling::Polling::Adaptive,
            Polling::Never => polling::Polling::Never,
            Polling::Always => polling::Polling::Always,
        };
        let polling = polling::PollingSettings { polling, ..polling::PollingSettings::default() };
        loop_schedule::LoopSettings { discipline, polling, ..loop_schedule::LoopSettings::default() }
    }
}

/// As fast as most disks while nobody asks for anything; and copies of a lost directory of 100 GiB are back in an hour,
/// whatever is asked for.
const REBUILD_RATE: u64 = GIB;
const REBUILD_FLOOR: u64 = 29 * MIB;

/// Every table of the file with its keys.
const KEYS: [(&str, &[&str]); 10] = [
    (
        "",
        &[
            "directories",
            "copies",
            "memory",
            "capacity",
            "nbd",
            "vhost_user",
            "vhost",
            "api",
            "engine",
            "admission",
            "tenants",
            "loop",
            "tls",
            "cluster",
        ],
    ),
    ("nbd", &["listen", "socket"]),
    ("vhost", &["queues"]),
    ("api", &["listen", "host_names"]),
    (
        "engine",
        &[
            "journal_file",
            "journal_files",
            "data_file",
            "large_write",
            "segment_cache",
            "read_ahead",
            "fusion_wait_us",
            "scrub_rate",
            "scrub_days",
            "zero_ahead",
            "zero_rate",
            "rebuild_rate",
            "rebuild_floor",
        ],
    ),
    (
        "admission",
        &[
            "throttle",
            "bandwidth",
            "bandwidth_floor",
            "takeoff_percent",
            "client_cap",
            "segment_cap",
            "cheque_percent",
            "cheque_follows_demand",
            "interval_ms",
            "hot_share_percent",
            "calm_intervals",
            "hot_parts",
            "operation_cost",
            "service_bandwidth",
            "headroom",
        ],
    ),
    (
        "tenants",
        &[
            "scheduling",
            "limit",
            "ingress",
            "egress",
            "window_us",
            "alpha_percent",
            "weight_throttle_percent",
            "reserve_percent",
            "recovery",
            "cost",
            "adjustment",
            "profile",
            "levels",
            "burst_iops",
            "burst_bandwidth",
        ],
    ),
    ("loop", &["discipline", "polling", "count"]),
    ("tls", &["directory", "nbd"]),
    (
        "cluster",
        &[
            "name",
            "listen",
            "store",
            "leases",
            "managers",
            "lease_ms",
            "patience_seconds",
            "forwarding",
            "forwarding_log",
            "forwarding_mild_percent",
            "token_file",
        ],
    ),
];

impl Settings {
    /// Reads settings from TOML.
    ///
    /// # Errors
    /// `Invalid`, with the key and the nearest known one, or the line.
    pub fn from_toml(text: &str) -> Result<Settings> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| Error::invalid(error.to_string()))?;
        for (name, keys) in KEYS {
            let part = if name.is_empty() { Some(&table) } else { table.get(name).and_then(Value::as_table) };
            let unknown = part.and_then(|part| part.keys().find(|key| !keys.contains(&key.as_str())));
            if let Some(key) = unknown {
                return Err(unknown_key(name, key));
            }
        }
        toml::from_str(text).map_err(|error| Error::invalid(error.to_string().trim_end()))
    }

    /// Checks what a type cannot say, and turns sizes into bytes.
    ///
    /// # Errors
    /// `Invalid`, with the key and what would be accepted.
    pub fn resolve(&self) -> Result<Resolved> {
        let resolved = self.resolve_without_directories()?;
        if self.directories.is_empty() {
            return Err(Error::invalid("no directory was given: name one with --dir"));
        }
        // Before a store is made that could not be started.
        resolved.engine_of(self.event_loop.count.unwrap_or(1))?;
        Ok(resolved)
    }

    /// The same for a process whose files, if it has any, are in a store that it shares.
    ///
    /// # Errors
    /// `Invalid`: which setting, and what it may be.
    pub fn resolve_without_directories(&self) -> Result<Resolved> {
        let memory_bytes = size("memory", &self.memory)?;
        if memory_bytes < MEMORY_MIN {
            return Err(Error::invalid(format!(
                "memory = {} is too little: a store needs {}",
                format_size(memory_bytes),
                format_size(MEMORY_MIN)
            )));
        }
        if let Some(count) = self.event_loop.count.filter(|count| !sharding::is_count(*count)) {
            return Err(Error::invalid(format!("loop.count = {count} (--loops) is not possible: choose 1, 2, 4 or 8")));
        }
        let capacity_bytes = self.capacity.as_ref().map(|capacity| size("capacity", capacity)).transpose()?;
        let copies = self.copies.unwrap_or(if self.directories.len() > 1 { 2 } else { 1 });
        let defaults = engine::Options::default();
        let engine = engine::Options {
            dirty_bytes_max: memory_bytes / 8 * 3,
            page_cache_bytes: memory_bytes / 4,
            memtable_bytes_max: self.engine.memtable_bytes.unwrap_or(memory_bytes / 16),
            read_ahead: self.engine.read_ahead(memory_bytes)?,
            segment_cache_bytes: size("engine.segment_cache", &self.engine.segment_cache)?,
            journal_file_bytes: size("engine.journal_file", &self.engine.journal_file)?,
            journal_files: self.engine.journal_files,
            data_file_bytes: size("engine.data_file", &self.engine.data_file)?,
            large_write_bytes: size("engine.large_write", &self.engine.large_write)?,
            fusion_wait: Duration::from_micros(self.engine.fusion_wait_us),
            transaction_file_bytes: self.engine.transaction_file_bytes.unwrap_or(defaults.transaction_file_bytes),
            scrub: self.engine.scrub()?,
            copies,
            accept_data_loss: self.accept_data_loss,
            ..defaults
        };
        engine.check().map_err(|error| error.context("engine"))?;
        let admission = self.admission.resolve()?;
        let (tenants, levels) = (self.tenants.resolve()?, self.tenants.levels()?);
        let beside = || self.directories.first().map(|first| first.join("nbd.sock")).unwrap_or_default();
        let socket = self.nbd.socket.clone().unwrap_or_else(beside);
        if socket.as_os_str().len() > SOCKET_PATH_MAX {
            return Err(Error::invalid(format!(
                "the path of the NBD socket {} has more than the {SOCKET_PATH_MAX} bytes that the kernel takes: give a \
                 shorter one as nbd.socket, or a shorter --dir",
                socket.display()
            )));
        }
        Ok(Resolved {
            memory_bytes,
            payload_bytes_max: memory_bytes / 8,
            capacity_bytes,
            copies,
            ready: self.engine.ready()?,
            rebuild: self.engine.rebuild()?,
            engine,
            admission,
            tenants,
            levels,
            queues: self.vhost.resolve(),
            socket,
        })
    }
}

const DAY_SECS: u64 = 24 * 3600;
const SCRUB_DAYS_MAX: u64 = 3650;

/// Longest path of a Unix socket in bytes.
const SOCKET_PATH_MAX: usize = 107;

/// Settings that were checked: sizes in bytes, defaults filled in.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The bound on memory.
    pub memory_bytes: u64,
    /// The agent's share of it.
    pub payload_bytes_max: u64,
    /// Most bytes of the store's files.
    pub capacity_bytes: Option<u64>,
    /// Copies of everything.
    pub copies: u8,
    /// How much space is zero-written ahead of need, by all shards together.
    pub ready: ReadySettings,
    /// Bytes per second at which lacking copies are made, at least and at most, by all shards together.
    pub rebuild: RangeInclusive<u64>,
    /// The engine's options.
    pub engine: engine::Options,
    /// The block server's admission.
    pub admission: policies::admission::AdmissionSettings,
    /// The agent's scheduler.
    pub tenants: policies::tenants::TenantsSettings,
    /// Who holds volumes to their levels.
    pub levels: policies::levels::LevelsSettings,
    /// Which loops serve the queues of virtual machines.
    pub queues: policies::queues::Queues,
    /// The path of the NBD socket.
    pub socket: PathBuf,
}

impl Resolved {
    /// What the engine of one of `shards` is told: its part of the memory.
    ///
    /// # Errors
    /// `Invalid` where that is too little.
    pub fn engine_of(&self, shards: u8) -> Result<engine::Options> {
        let least = MEMORY_MIN * u64::from(shards);
        if self.memory_bytes < least {
            return Err(Error::invalid(format!(
                "memory = {} is too little: a store with {shards} loops needs {}",
                format_size(self.memory_bytes),
                format_size(least)
            )));
        }
        let share = |bytes: u64| bytes / u64::from(shards);
        Ok(engine::Options {
            dirty_bytes_max: share(self.engine.dirty_bytes_max),
            page_cache_bytes: share(self.engine.page_cache_bytes),
            memtable_bytes_max: share(self.engine.memtable_bytes_max),
            read_ahead: ReadAheadSettings {
                bytes_max: share(self.engine.read_ahead.bytes_max),
                ..self.engine.read_ahead
            },
            scrub: ScrubSettings { bytes_per_sec: share(self.engine.scrub.bytes_per_sec), ..self.engine.scrub },
            ..self.engine.clone()
        })
    }
}

fn size(key: &str, size: &Size) -> Result<u64> {
    size.bytes().map_err(|message| Error::invalid(format!("{key}: {message}")))
}

/// # Errors
/// `Invalid`: a number that is not within what the setting may be.
fn number(key: &str, found: u64, range: RangeInclusive<u64>) -> Result<()> {
    match range.contains(&found) {
        true => Ok(()),
        false => {
            Err(Error::invalid(format!("{key} = {found} cannot be: choose from {} to {}", range.start(), range.end())))
        }
    }
}

fn unknown_key(table: &str, key: &str) -> Error {
    let full = |key: &str| if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") };
    let here = KEYS.iter().find(|(name, _)| *name == table).map_or(&[][..], |(_, keys)| keys);
    // A key of another table, perhaps with its header forgotten.
    let elsewhere =
        KEYS.iter().filter(|(name, keys)| *name != table && keys.contains(&key)).map(|(name, _)| *name).next();
    let hint = match (elsewhere, rules::nearest(key, here.iter().copied())) {
        (Some(""), _) => format!("{key} belongs above the first [table]"),
        (Some(table), _) => format!("{key} belongs below [{table}]"),
        (None, Some(near)) => format!("did you mean {}?", full(near)),
        (None, None) => format!("known are {}", here.join(", ")),
    };
    Error::invalid(format!("there is no setting {}; {hint}", full(key)))
}

/// Scrubbing, as the engine is told, and zero-writing, as the file layer is.
impl EngineSettings {
    fn ready(&self) -> Result<ReadySettings> {
        Ok(ReadySettings {
            bytes_max: size("engine.zero_ahead", &self.zero_ahead)?,
            bytes_per_sec: size("engine.zero_rate", &self.zero_rate)?,
            quiet: self.zero_quiet.unwrap_or(ReadySettings::default().quiet),
        })
    }

    fn rebuild(&self) -> Result<RangeInclusive<u64>> {
        let least = size("engine.rebuild_floor", &self.rebuild_floor)?;
        let most = size("engine.rebuild_rate", &self.rebuild_rate)?;
        if least > most || most < MIB {
            return Err(Error::invalid(format!(
                "engine.rebuild_rate = {} per second is not possible with rebuild_floor = {}: choose at least that, and 1 MiB",
                format_size(most),
                format_size(least)
            )));
        }
        Ok(least..=most)
    }

    fn scrub(&self) -> Result<ScrubSettings> {
        if !(1..=SCRUB_DAYS_MAX).contains(&self.scrub_days) {
            let days = self.scrub_days;
            return Err(Error::invalid(format!(
                "engine.scrub_days = {days} is not possible: choose 1 to {SCRUB_DAYS_MAX}, or scrub_rate = 0 for no \
                 scrubbing"
            )));
        }
        let period = self.scrub_period.unwrap_or(Duration::from_secs(self.scrub_days * DAY_SECS));
        Ok(ScrubSettings { bytes_per_sec: size("engine.scrub_rate", &self.scrub_rate)?, period })
    }
}

/// Reading ahead, as the engine is told.
impl EngineSettings {
    /// Part of `memory` that may be used for it: more would be missing elsewhere.
    const READ_AHEAD_PART: u64 = 8;

    fn read_ahead(&self, memory_bytes: u64) -> Result<ReadAheadSettings> {
        let bytes_max = match &self.read_ahead {
            None => memory_bytes / 32,
            Some(bytes) => size("engine.read_ahead", bytes)?,
        };
        let most = memory_bytes / Self::READ_AHEAD_PART;
        if bytes_max > most {
            return Err(Error::invalid(format!(
                "engine.read_ahead = {} is too much: with memory = {}, {} is the most",
                format_size(bytes_max),
                format_size(memory_bytes),
                format_size(most)
            )));
        }
        Ok(ReadAheadSettings { bytes_max, ..ReadAheadSettings::default() })
    }
}

/// Sizes that suit a test or a small machine: files of a few MiB.
impl EngineSettings {
    /// Small files, so that a small disk holds many.
    pub fn small() -> Self {
        EngineSettings {
            journal_file: Size::Bytes(4 * MIB),
            data_file: Size::Bytes(8 * MIB),
            segment_cache: Size::Bytes(128 * KIB),
            ..EngineSettings::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;
    use crate::cluster::{LeasesPlace, StorePlace};

    fn refusal(text: &str) -> String {
        let error = Settings::from_toml(text).and_then(|settings| settings.resolve().map(drop)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid, "{text}");
        error.message
    }

    #[test]
    fn a_file_with_everything() {
        let text = r#"
            directories = ["/disk1/levee", "/disk2/levee"]
            copies = 2
            memory = "1G"
            capacity = "100G"
            [nbd]
            listen = "0.0.0.0:10809"
            socket = "/run/levee.sock"
            [api]
            listen = "[::1]:0"
            host_names = ["disks.example"]
            [engine]
            journal_file = "32M"
            journal_files = 8
            data_file = 67108864
            large_write = "128K"
            segment_cache = "256K"
            read_ahead = "8M"
            fusion_wait_us = 8
            scrub_rate = "20M"
            scrub_days = 7
            zero_ahead = "4G"
            zero_rate = "200M"
            rebuild_rate = "100M"
            rebuild_floor = "10M"
            [admission]
            throttle = "client-cap"
            bandwidth = "1G"
            client_cap = "60M"
            cheque_percent = 25
            interval_ms = 20
            hot_share_percent = 150
            calm_intervals = 5
            hot_parts = 1
            operation_cost = "16K"
            service_bandwidth = "2G"
            headroom = 300000000
            [tenants]
            scheduling = "wild"
            limit = "500M"
            ingress = "1G"
            egress = "none"
            window_us = 500
            profile = "/etc/levee/profile.toml"
            levels = "agent"
            burst_iops = 70000
            burst_bandwidth = "900M"
            [vhost]
            queues = "static"
            [loop]
            discipline = "fifo"
            polling = "adaptive"
            count = 2
            [tls]
            directory = "/etc/levee/tls"
            nbd = "required"
            [cluster]
            name = "s1"
            listen = "10.0.0.5:7700"
            store = "10.0.0.1:7500"
            leases = "10.0.0.2:7500"
            managers = ["10.0.0.1:7600", "10.0.0.2:7600"]
            lease_ms = 1500
            patience_seconds = 90
            token_file = "/etc/levee/api.token"
        "#;
        let settings = Settings::from_toml(text).unwrap();
        let cluster = settings.cluster.resolve().unwrap();
        assert_eq!((cluster.lease, cluster.patience), (Duration::from_millis(1500), Duration::from_secs(90)));
        assert_eq!(cluster.managers.len(), 2);
        let places = ["10.0.0.1:7500", "10.0.0.2:7500"].map(|place| crate::cluster::address(place).unwrap());
        let (store, leases) = (settings.cluster.store().unwrap(), settings.cluster.leases().unwrap());
        assert_eq!((store, leases), (StorePlace::Served(places[0].clone()), LeasesPlace::Served(places[1].clone())));
        let resolved = settings.resolve().unwrap();
        assert_eq!((resolved.memory_bytes, resolved.capacity_bytes, resolved.copies), (GIB, Some(100 * GIB), 2));
        assert_eq!(resolved.engine.journal_file_bytes, 32 * MIB);
        assert_eq!(resolved.engine.fusion_wait, Duration::from_micros(8));
        assert_eq!(resolved.engine_of(2).unwrap().read_ahead.bytes_max, 4 * MIB);
        let week = Duration::from_secs(7 * DAY_SECS);
        assert_eq!(resolved.engine.scrub, ScrubSettings { bytes_per_sec: 20 * MIB, period: week });
        assert_eq!(resolved.engine_of(2).unwrap().scrub.bytes_per_sec, 10 * MIB);
        assert_eq!(resolved.rebuild, 10 * MIB..=100 * MIB);
        assert_eq!((resolved.ready.bytes_max, resolved.ready.bytes_per_sec), (4 * GIB, 200 * MIB));
        assert_eq!(resolved.ready.of(2).bytes_per_sec, 100 * MIB);
        assert_eq!(resolved.socket, PathBuf::from("/run/levee.sock"));
        assert_eq!((resolved.admission.limit_bytes_per_sec, resolved.admission.cheque_permille), (GIB, 250));
        assert_eq!(resolved.tenants.window, Duration::from_micros(500));
        let tenant = resolved.levels.tenant_burst;
        assert_eq!((tenant.iops, tenant.bytes_per_sec), (70_000, 900 * MIB));
        assert_eq!(resolved.queues, policies::queues::Queues::Static);
        let tls = settings.tls.of_clients().unwrap();
        assert_eq!((tls.directory, tls.demand), (PathBuf::from("/etc/levee/tls"), agent::nbd::Demand::All));
        assert_eq!(settings.event_loop.schedule().discipline, loop_schedule::Discipline::Fifo);
        assert_eq!(settings.event_loop.schedule().polling.polling, polling::Polling::Adaptive);
        // What is written is read again; for that, also what another throttle needs.
        let admission = AdmissionSettings { segment_cap: Some(Size::Bytes(MIB)), ..settings.admission.clone() };
        let settings = Settings { admission, ..settings };
        let written = toml::to_string(&settings).unwrap();
        assert_eq!(Settings::from_toml(&written).unwrap(), settings);
        // And every key that serde knows is in the list that hints come from.
        let table: Table = written.parse().unwrap();
        for (name, keys) in KEYS {
            let part = if name.is_empty() { &table } else { table[name].as_table().unwrap() };
            let mut found: Vec<&str> = part.keys().map(String::as_str).collect();
            let mut expected = keys.to_vec();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "[{name}]");
        }
    }

    #[test]
    fn the_memory_that_is_handed_out_stays_below_the_bound() {
        for memory in [MEMORY_MIN, MEMORY_DEFAULT, 8 * GIB] {
            let settings =
                Settings { directories: vec!["/d".into()], memory: Size::Bytes(memory), ..Settings::default() };
            let resolved = settings.resolve().unwrap();
            let engine = &resolved.engine;
            assert!(resolved.payload_bytes_max + engine.dirty_bytes_max <= memory / 2, "the contract of the defaults");
            let all = engine.page_cache_bytes + engine.memtable_bytes_max + engine.read_ahead.bytes_max;
            assert!(resolved.payload_bytes_max + engine.dirty_bytes_max + all <= memory / 16 * 14);
        }
    }

    #[test]
    fn disks_of_virtual_machines_are_listed() {
        let text =
            "[[vhost_user]]\nvolume = 'a'\npath = '/run/a.sock'\n[[vhost_user]]\nvolume = 'b'\npath = '/run/b.sock'";
        let disks = Settings::from_toml(text).unwrap().vhost_user;
        assert_eq!(disks.iter().map(|disk| &*disk.volume).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(disks[1].path, PathBuf::from("/run/b.sock"));
    }

    #[test]
    fn mistakes_are_named_with_what_was_meant() {
        assert_eq!(refusal("memroy = 1"), "there is no setting memroy; did you mean memory?");
        assert_eq!(
            refusal("[engine]\njurnal_files = 1"),
            "there is no setting engine.jurnal_files; did you mean engine.journal_files?"
        );
        assert_eq!(refusal("socket = '/s'"), "there is no setting socket; socket belongs below [nbd]");
        assert_eq!(
            refusal("[api]\nmemory = 1"),
            "there is no setting api.memory; memory belongs above the first [table]"
        );
        assert!(refusal("[nbd]\nxxxxxxxxxxxx = 1").contains("known are listen, socket"));
        assert!(refusal("memory = '1X'").contains("memory: '1X' is not a size"));
        assert!(refusal("memory = '1M'").contains("a store needs 64 MiB"));
        assert!(refusal("memory = true").contains("line 1"));
        assert!(refusal("[nbd]\nlisten = 'nowhere'").contains("line 2"));
        assert!(refusal("memory = ").contains("line 1"));
        assert!(refusal("[loop]\ndiscipline = 'lifo'").contains("expected `priority` or `fifo`"));
        let crowded = refusal("memory = '128M'\ndirectories = ['/d']\n[loop]\ncount = 4");
        assert!(crowded.contains("a store with 4 loops needs 256 MiB"), "{crowded}");
        assert!(refusal("[loop]\ncount = 3").contains("choose 1, 2, 4 or 8"));
        assert!(refusal("").contains("--dir"));
        assert!(
            refusal("directories = ['/d']\n[engine]\nrebuild_rate = '1M'")
                .contains("engine.rebuild_rate = 1 MiB per second")
        );
        assert!(refusal("bandwidth = '1G'").contains("bandwidth belongs below [admission]"));
        assert!(refusal("directories = ['/d']\n[admission]\ninterval_ms = 0").contains("choose from 1 to 1000"));
        assert!(refusal("directories = ['/d']\n[engine]\njournal_files = 1").contains("at least 2"));
        let greedy = refusal("directories = ['/d']\n[engine]\nread_ahead = '65M'");
        assert!(greedy.contains("with memory = 512 MiB, 64 MiB is the most"), "{greedy}");
        assert!(refusal(&format!("directories = ['/{}']", "x".repeat(120))).contains("107 bytes"));
    }
}
