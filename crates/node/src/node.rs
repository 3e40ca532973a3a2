//! A store in one process: how it starts and how it stops.
//!
//! Start, each step only after the one before: the API's address is taken (a conflict is known before anything is
//! written) -> the directories are locked and opened -> the volume table -> the engines recover, each with its block
//! server ([`shards`]) -> agent -> listeners -> the API. Whoever hears an address may use it at once.
//!
//! Stop, the other way round: no more calls, no more connections, requests in flight finish, sessions close, the
//! engines dump what is dirty, the table closes.

use std::path::PathBuf;
use std::rc::Rc;

use agent::{Agent, AgentStatistics};
use base::limits::API_CALLS_MAX;
use base::{Error, Result};
use control::service::{self, CreateVolume};
use control::table::recovery;
use control::{Connection, Manager, http};
use files::local::{LocalOptions, OpenReport};
use files::{DirectoryStatus, FileKind, Redundancy};
use runtime::{Address, Handle};
use server::Buckets;
use wire::{VolumeDirectory, VolumeOwner};

use crate::addresses::listen_when_free;
use crate::cluster;
use crate::devices::{self, Devices};
use crate::observer::NodeObserver;
use crate::profile;
use crate::settings::{Resolved, Settings, TlsSettings};
use crate::shards::{self, ShardOptions, Shards};

/// Names besides the store's own files that may stand in a directory.
pub(crate) const NEIGHBOURS: [&str; 9] = [
    http::TOKEN_FILE,
    http::READ_TOKEN_FILE,
    http::ATTACH_TOKEN_FILE,
    "nbd.sock",
    devices::FILES[0],
    devices::FILES[1],
    profile::FILES[0],
    profile::FILES[1],
    profile::SCRATCH,
];

/// Where a node can be reached.
#[derive(Clone, Debug)]
pub struct Ready {
    /// The control API's address as really bound; none where it is off.
    pub api: Option<std::net::SocketAddr>,
    /// The NBD socket.
    pub socket: PathBuf,
    /// The NBD address as really bound.
    pub nbd: Address,
    /// What a person should know about the start.
    pub notes: Vec<String>,
}

/// A running store.
pub struct Node {
    handle: Handle,
    manager: Manager,
    shards: Rc<Shards>,
    agent: Agent,
    devices: Rc<Devices>,
    api: Option<http::Server>,
    ready: Ready,
    _connection: Connection,
}

impl Node {
    /// Starts a node on the loop of `handle`, and on further ones if the store has several shards.
    ///
    /// # Errors
    /// One sentence that says what was wrong and what to do: a setting, an address, a directory, a store.
    pub async fn start(handle: &Handle, settings: &Settings) -> Result<Node> {
        let resolved = settings.resolve()?;
        // Each loop reads them when a client asks for TLS. Who starts a store hears now what is wrong with them.
        cluster::credentials(handle, &settings.tls).await?;
        let api = match settings.api.is_off {
            true => None,
            false => Some(http::Listener::bind(settings.api.listen)?),
        };
        let opened = shards::open(handle, settings.event_loop.count, &local_options(settings, &resolved)).await?;
        if opened.first().list().iter().any(|info| info.kind == FileKind::Incarnation) {
            let directory = settings.directories[0].display();
            return Err(Error::conflict(format!(
                "{directory} holds a store that several servers share: start it with --servers, or give another directory"
            )));
        }
        let shard_options = ShardOptions {
            engine: resolved.engine_of(opened.count())?,
            requests_max: server::Options::default().requests_max,
            buckets: Buckets::new(resolved.admission.clone(), handle.now(), opened.count().into()),
        };
        let notes = opened.reports.iter().flat_map(notes).collect();
        let beside = &settings.directories[0];
        let is_beside_old = opened.reports.iter().any(|report| report.left_behind.contains(beside));
        let redundancy = Redundancy::Copies(resolved.copies);
        let options = service::Options { redundancy, accept_data_loss: settings.accept_data_loss };
        let manager = Manager::open(handle, opened.first(), options).await?;
        let directory: Rc<Manager> = Rc::new(manager.clone());
        let shards = Rc::new(opened.serve(directory.clone(), shard_options).await?);
        settle_volumes(&manager, &shards, settings.accept_data_loss).await?;
        let agent_options = agent::Options {
            payload_bytes_max: resolved.payload_bytes_max,
            tenants: resolved.tenants.clone(),
            levels: resolved.levels,
            queues: resolved.queues,
            tls: settings.tls.of_clients(),
            ..agent::Options::default()
        };
        let agent = Agent::new(handle, directory, shards.service(), agent_options, shards.count());
        if !settings.event_loop.gathers_clients {
            shards.spread(&agent).await?;
        }

        let socket = resolved.socket.clone();
        let unix = listen(handle, &Address::Unix(socket.clone())).await?;
        let tcp = listen(handle, &Address::Tcp(settings.nbd.listen)).await?;
        let nbd = tcp.address().clone();
        agent.serve(unix);
        agent.serve(tcp);

        let begun = handle.now();
        let observer = NodeObserver {
            handle: handle.clone(),
            shards: Rc::downgrade(&shards),
            agent: agent.clone(),
            memory_bytes_max: resolved.memory_bytes,
            begun,
        };
        let connection = manager.connect(shards.clone(), Rc::new(agent.clone()), Some(Rc::new(observer)));
        let volumes: Rc<dyn VolumeDirectory> = Rc::new(manager.clone());
        let devices = Devices::new(handle, &agent, volumes, beside, &settings.vhost_user);
        match is_beside_old {
            true => devices.forget().await,
            false => devices.remember().await,
        }
        manager.connect_devices(devices.clone());
        manager.resume();
        let mut ready = Ready { api: None, socket, nbd, notes };
        let api = match api {
            None => None,
            Some(listener) => {
                let (calls, mailbox) = runtime::sync::mailbox(API_CALLS_MAX);
                manager.serve(mailbox).detach();
                ready.api = Some(listener.address());
                Some(listener.serve(api_options(handle, settings, &ready), calls)?)
            }
        };
        Ok(Node { handle: handle.clone(), manager, shards, agent, devices, api, ready, _connection: connection })
    }

    /// Where it can be reached.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// The manager, for whoever shares the loop.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// How each directory of the store is, in the order of the settings; then those that other shards than the first
    /// have within them.
    pub fn directories(&self) -> impl Future<Output = Vec<DirectoryStatus>> + use<> {
        let shards = self.shards.clone();
        async move { shards.counters().await.files.directories }
    }

    /// What says how many NBD connections each loop has, the first one's first.
    pub fn connections(&self) -> impl Fn() -> Vec<usize> + use<> {
        let agent = self.agent.clone();
        move || agent.connections()
    }

    /// What says what the agent counts.
    pub fn agent_statistics(&self) -> impl Fn() -> AgentStatistics + use<> {
        let agent = self.agent.clone();
        move || agent.statistics()
    }

    /// See [`engine::Engine::audit`]; of all shards.
    ///
    /// # Errors
    /// Those of [`engine::Engine::audit`].
    pub fn audit(&self) -> impl Future<Output = Result<Vec<String>>> + use<> {
        let shards = self.shards.clone();
        async move { shards.audit().await }
    }

    /// See [`engine::Engine::scrub`]; of all shards.
    ///
    /// # Errors
    /// `Internal`: the node is stopping.
    pub fn scrub(&self) -> impl Future<Output = Result<u64>> + use<> {
        let shards = self.shards.clone();
        async move { shards.scrub().await }
    }

    /// What says whether admission keeps what it promises ([`server::Server::audit_admission`]), and the scheduler of tenants on
    /// the first loop ([`Agent::audit_tenants`]), and how many requests wait; for as long as the node lives.
    pub fn fairness(&self) -> impl Fn() -> std::result::Result<usize, String> + use<> {
        let (shards, tenants) = (Rc::downgrade(&self.shards), self.agent.audit_tenants());
        move || {
            let waiting = shards.upgrade().map_or(Ok(0), |shards| shards.server().audit_admission())?;
            Ok(waiting + tenants()?)
        }
    }

    /// What says whether overlapping writes reach the first shard one after the other ([`server::Server::audit_order`]),
    /// and how many are there, for as long as the node lives.
    pub fn order(&self) -> impl Fn() -> std::result::Result<usize, String> + use<> {
        let shards = Rc::downgrade(&self.shards);
        move || shards.upgrade().map_or(Ok(0), |shards| shards.server().audit_order())
    }

    /// Makes a volume, or finds it with the same size.
    ///
    /// # Errors
    /// `Conflict` where it exists with another size, and those of a creation.
    pub async fn ensure_volume(&self, name: &str, size: u64) -> Result<()> {
        let wanted = CreateVolume { allow_existing: true, ..CreateVolume::new(name, size) };
        self.manager.create(wanted).await.map(drop)
    }

    /// Serves the disks of virtual machines: those of the settings, and those that were asked for before this start.
    ///
    /// # Errors
    /// What is wrong with one of the settings: its volume does not exist, or something else is at its path.
    pub async fn serve_devices(&self) -> Result<()> {
        self.devices.serve().await
    }

    /// Stops cleanly: what was acknowledged is durable in any case; after this the next start has nothing to replay.
    ///
    /// # Errors
    /// `Io` where the engine could not write what was dirty: the next start replays it; or where a log could not be
    /// ended.
    pub async fn stop(self) -> Result<()> {
        if let Some(api) = self.api {
            api.stop().await;
        }
        self.agent.stop().await;
        let closed = self.shards.stop().await;
        let ended = self.manager.close().await;
        // A stale socket would be replaced; without one a client hears at once that nobody is there.
        let _ = self.handle.remove(&self.ready.socket).await;
        closed.and(ended)
    }
}

/// Sees to it that no id is given out of a volume that an engine has something of: what is stored of one would show
/// in the other.
async fn settle_volumes(manager: &Manager, shards: &Shards, accept_data_loss: bool) -> Result<()> {
    let lost = manager.never_created(shards.volumes().await?);
    let Some(last) = lost.last() else { return Ok(()) };
    if !accept_data_loss {
        return Err(recovery::creation_lost(&lost));
    }
    for volume in &lost {
        tracing::warn!(%volume, "the data of a volume that the volume table has lost is deleted, as was accepted");
        shards.drop_volume(*volume).await?;
    }
    // After the deletion: a crash in between leaves what is found again.
    manager.burn_ids(*last).await
}

async fn listen(handle: &Handle, address: &Address) -> Result<runtime::Listener> {
    listen_when_free(handle, address).await.map_err(|error| {
        let (what, flag) = match address {
            Address::Tcp(address) => (address.to_string(), "--listen, or port 0 for a free one"),
            Address::Unix(path) => (path.display().to_string(), "nbd.socket in --config"),
        };
        let mut refusal = Error::from_io(format!("cannot listen on {what} for NBD"), &error);
        if error.kind() == std::io::ErrorKind::AddrInUse {
            refusal.message.push_str(&format!("; somebody answers there: choose another with {flag}"));
        }
        refusal
    })
}

fn local_options(settings: &Settings, resolved: &Resolved) -> LocalOptions {
    LocalOptions {
        capacity: resolved.capacity_bytes,
        copies: resolved.copies,
        ready: resolved.ready,
        resync_bytes_per_sec: *resolved.rebuild.end(),
        resync_floor_bytes_per_sec: *resolved.rebuild.start(),
        accept_missing: settings.accept_missing_directories,
        holder: settings.holder.clone(),
        neighbours: NEIGHBOURS.map(str::to_owned).into(),
        ..LocalOptions::new(settings.directories.clone())
    }
}

fn notes(report: &OpenReport) -> impl Iterator<Item = String> {
    report.notes.iter().cloned().chain(report.damaged.iter().map(|damaged| format!("damaged: {damaged}")))
}

/// The URI of an address where NBD clients connect, without a volume.
pub fn nbd_uri(address: &Address, tls: &TlsSettings) -> String {
    match address {
        Address::Tcp(at) if agent::nbd::demands_tls(address, tls.of_clients().as_ref()) => format!("nbds://{at}"),
        Address::Tcp(address) => format!("nbd://{address}"),
        Address::Unix(path) => format!("nbd+unix:///?socket={}", path.display()),
    }
}

fn api_options(handle: &Handle, settings: &Settings, ready: &Ready) -> http::Options {
    http::Options {
        token_file: settings.directories[0].join(http::TOKEN_FILE),
        token_seed: std::array::from_fn(|_| handle.random_u64()),
        host_names: settings.api.host_names.clone(),
        nbd: [Address::Unix(ready.socket.clone()), ready.nbd.clone()].map(|at| nbd_uri(&at, &settings.tls)).into(),
        is_one_of_several: false,
    }
}
