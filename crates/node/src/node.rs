//! A store in one process: how it starts and how it stops.
//!
//! Start, each step only after the one before: the API's address is taken (a conflict is known before anything is
//! written) -> the directories are locked and opened -> the volume table -> the engine recovers -> block server and
//! agent -> listeners -> the API. Whoever hears an address may use it at once.
//!
//! Stop, the other way round: no more calls, no more connections, requests in flight finish, sessions close, the
//! engine dumps what is dirty, the table closes.

use std::path::PathBuf;
use std::rc::Rc;

use agent::Agent;
use base::limits::API_CALLS_MAX;
use base::{Error, Result};
use control::service::{self, CreateVolume};
use control::table::recovery;
use control::{Connection, Manager, http};
use engine::Engine;
use files::local::{LocalOptions, OpenReport};
use files::{DirectoryStatus, Redundancy, Store};
use runtime::{Address, Handle};
use server::Server;

use crate::observer::NodeObserver;
use crate::settings::{Resolved, Settings};

/// Names besides the store's own files that may stand in a directory.
const NEIGHBOURS: [&str; 2] = [http::TOKEN_FILE, "nbd.sock"];

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
    store: Store,
    manager: Manager,
    engine: Engine,
    server: Rc<Server<Engine>>,
    agent: Agent,
    api: Option<http::Server>,
    ready: Ready,
    _connection: Connection,
}

impl Node {
    /// Starts a node on the loop of `handle`.
    ///
    /// # Errors
    /// One sentence that says what was wrong and what to do: a setting, an address, a directory, a store.
    pub async fn start(handle: &Handle, settings: &Settings) -> Result<Node> {
        let resolved = settings.resolve()?;
        let api = match settings.api.is_off {
            true => None,
            false => Some(http::Listener::bind(settings.api.listen)?),
        };
        let (store, report) = files::local::open(handle, local_options(settings, &resolved)).await?;
        let redundancy = Redundancy::Copies(resolved.copies);
        let options = service::Options { redundancy, accept_data_loss: settings.accept_data_loss };
        let manager = Manager::open(handle, &store, options).await?;
        let engine = Engine::open(handle, &store, resolved.engine.clone()).await?;
        settle_volumes(&manager, &engine, settings.accept_data_loss).await?;
        let directory: Rc<Manager> = Rc::new(manager.clone());
        let server_options = server::Options { admission: resolved.admission.clone(), ..server::Options::default() };
        let server = Server::new(handle, engine.clone(), directory.clone(), server_options);
        let agent_options =
            agent::Options { payload_bytes_max: resolved.payload_bytes_max, ..agent::Options::default() };
        let agent = Agent::new(handle, directory, link::call(server.clone()), agent_options);

        let socket = resolved.socket.clone();
        let unix = listen(handle, &Address::Unix(socket.clone())).await?;
        let tcp = listen(handle, &Address::Tcp(settings.nbd.listen)).await?;
        let nbd = tcp.address().clone();
        agent.serve(unix);
        agent.serve(tcp);

        let begun = handle.now();
        let observer = NodeObserver {
            handle: handle.clone(),
            store: store.clone(),
            engine: engine.clone(),
            server: Rc::downgrade(&server),
            agent: agent.clone(),
            memory_bytes_max: resolved.memory_bytes,
            begun,
        };
        let connection = manager.connect(server.clone(), Rc::new(agent.clone()), Some(Rc::new(observer)));
        manager.resume();
        let mut ready = Ready { api: None, socket, nbd, notes: notes(&report) };
        let api = match api {
            None => None,
            Some(listener) => {
                let (calls, mailbox) = runtime::sync::mailbox(API_CALLS_MAX);
                manager.serve(mailbox).detach();
                ready.api = Some(listener.address());
                Some(listener.serve(api_options(handle, settings, &ready), calls)?)
            }
        };
        Ok(Node { handle: handle.clone(), store, manager, engine, server, agent, api, ready, _connection: connection })
    }

    /// Where it can be reached.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// The manager, for whoever shares the loop.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// How each directory of the store is, in the order of the settings.
    pub fn directories(&self) -> Vec<DirectoryStatus> {
        self.store.statistics().directories
    }

    /// See [`Engine::audit`].
    ///
    /// # Errors
    /// Those of [`Engine::audit`].
    pub fn audit(&self) -> impl Future<Output = Result<Vec<String>>> + use<> {
        let engine = self.engine.clone();
        async move { engine.audit().await }
    }

    /// What says whether admission keeps what it promises ([`Server::audit_admission`]), for as long as the node lives.
    pub fn fairness(&self) -> impl Fn() -> std::result::Result<usize, String> + use<> {
        let server = Rc::downgrade(&self.server);
        move || server.upgrade().map_or(Ok(0), |server| server.audit_admission())
    }

    /// Makes a volume, or finds it with the same size.
    ///
    /// # Errors
    /// `Conflict` where it exists with another size, and those of a creation.
    pub async fn ensure_volume(&self, name: &str, size: u64) -> Result<()> {
        let wanted = CreateVolume { allow_existing: true, ..CreateVolume::new(name, size) };
        self.manager.create(wanted).await.map(drop)
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
        self.server.stop().await;
        let closed = self.engine.close().await;
        let ended = self.manager.close().await;
        // A stale socket would be replaced; without one a client hears at once that nobody is there.
        let _ = self.handle.remove(&self.ready.socket).await;
        closed.and(ended)
    }
}

/// Sees to it that no id is given out of a volume that the engine has something of: what is stored of one would show
/// in the other.
async fn settle_volumes(manager: &Manager, engine: &Engine, accept_data_loss: bool) -> Result<()> {
    let lost = manager.never_created(engine.volumes());
    let Some(last) = lost.last() else { return Ok(()) };
    if !accept_data_loss {
        return Err(recovery::creation_lost(&lost));
    }
    for volume in &lost {
        tracing::warn!(%volume, "the data of a volume that the volume table has lost is deleted, as was accepted");
        engine.drop_volume(*volume).await?;
    }
    // After the deletion: a crash in between leaves what is found again.
    manager.burn_ids(*last).await
}

async fn listen(handle: &Handle, address: &Address) -> Result<runtime::Listener> {
    handle.listen(address).await.map_err(|error| {
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
        accept_missing: settings.accept_missing_directories,
        holder: settings.holder.clone(),
        neighbours: NEIGHBOURS.map(str::to_owned).into(),
        ..LocalOptions::new(settings.directories.clone())
    }
}

fn notes(report: &OpenReport) -> Vec<String> {
    report.notes.iter().cloned().chain(report.damaged.iter().map(|damaged| format!("damaged: {damaged}"))).collect()
}

fn api_options(handle: &Handle, settings: &Settings, ready: &Ready) -> http::Options {
    let tcp = match &ready.nbd {
        Address::Tcp(address) => format!("nbd://{address}"),
        Address::Unix(path) => format!("nbd+unix:///?socket={}", path.display()),
    };
    http::Options {
        token_file: settings.directories[0].join(http::TOKEN_FILE),
        token_seed: std::array::from_fn(|_| handle.random_u64()),
        host_names: settings.api.host_names.clone(),
        nbd: vec![format!("nbd+unix:///?socket={}", ready.socket.display()), tcp],
    }
}
