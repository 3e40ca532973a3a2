//! Several servers in one process, to try them out with one command: the shared store, a manager, the servers and an agent, on
//! one loop. They reach each other over sockets in the first directory, as processes do.
//!
//! What dies here dies together, and the store is as safe as its directories are: it shows how segments are spread, moved and
//! taken over, and protects from no loss that `levee up` alone does not protect from.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::limits::MEMORY_MIN;
use base::{Error, Result};
use control::http;
use control::service::{CreateVolume, Request};
use runtime::sync::{Event, first};
use runtime::{Address, Class, Handle, Task};
use wire::api::Size;

use super::agent::AgentRole;
use super::manager::ManagerRole;
use super::server::ServerRole;
use super::shown;
use crate::node::Ready;
use crate::settings::{Settings, TlsSettings};
use crate::shared_files::{SharedFiles, SharedFilesOptions};

/// Most servers in one process.
const SERVERS_MAX: u8 = 16;
/// How long the start may wait for a manager to be in charge and servers to be in touch.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);

/// See the module.
pub struct Together {
    files: SharedFiles,
    manager: ManagerRole,
    agent: AgentRole,
    servers: Vec<Task<Result<()>>>,
    stopping: Event,
    is_stopping: Rc<Cell<bool>>,
    ready: Ready,
}

impl Together {
    /// Starts all of it, with so many servers.
    ///
    /// # Errors
    /// One sentence that says what was wrong and what to do.
    pub async fn start(handle: &Handle, settings: &Settings, servers: u8) -> Result<Together> {
        if !(1..=SERVERS_MAX).contains(&servers) {
            return Err(Error::invalid(format!("--servers {servers} is not possible: choose 1 to {SERVERS_MAX}")));
        }
        let resolved = settings.resolve()?;
        let home = settings.directories[0].clone();
        let socket = |name: &str| Address::Unix(home.join(format!("{name}.sock")));
        let names: Vec<String> = (1..=servers).map(|number| format!("server-{number}")).collect();
        let tokens = [http::TOKEN_FILE, http::READ_TOKEN_FILE, http::ATTACH_TOKEN_FILE];
        let mut neighbours: Vec<String> =
            [&tokens[..], &["nbd.sock", "manager.sock"]].concat().into_iter().map(str::to_owned).collect();
        neighbours.extend(names.iter().map(|name| format!("{name}.sock")));
        let options = SharedFilesOptions {
            directories: settings.directories.clone(),
            listen: None,
            tls: TlsSettings::default(),
            copies: resolved.copies,
            neighbours,
            holder: settings.holder.clone(),
        };
        let files = SharedFiles::start(handle, &options).await?;
        let role = |name: &str, listen: &Address| {
            let mut role = settings.clone();
            role.tls.only_clients = true;
            role.cluster.name = name.to_owned();
            role.cluster.listen = shown(listen);
            role.cluster.store = files.address();
            role.cluster.managers = vec![shown(&socket("manager"))];
            role.cluster.token_file = Some(home.join(http::TOKEN_FILE));
            role
        };
        let manager = ManagerRole::start(handle, &role("manager", &socket("manager"))).await?;
        let (stopping, is_stopping) = (Event::new(), Rc::new(Cell::new(false)));
        let start = |name: &String| {
            let mut settings = role(name, &socket(name));
            // They share what the process may have.
            settings.memory = Size::Bytes((resolved.memory_bytes / u64::from(servers)).max(MEMORY_MIN));
            let life = serve(handle.clone(), settings, stopping.clone(), is_stopping.clone());
            handle.spawn(Class::Io, "a server", life)
        };
        let tasks = names.iter().map(start).collect();
        let mut of_agent = role("agent", &socket("agent"));
        of_agent.nbd.socket = Some(resolved.socket.clone());
        let agent = AgentRole::start(handle, &of_agent).await?;
        let nbd = agent.nbd().first().cloned().ok_or_else(|| Error::internal("an agent has an address"))?;
        let ready = Ready { api: manager.api(), socket: resolved.socket, nbd, notes: files.notes().to_vec() };
        let together = Together { files, manager, agent, servers: tasks, stopping, is_stopping, ready };
        together.wait(handle, usize::from(servers)).await?;
        Ok(together)
    }

    /// Waits until somebody is in charge and all servers are in touch, so that the first volume is spread over them.
    async fn wait(&self, handle: &Handle, servers: usize) -> Result<()> {
        let begun = handle.now();
        while self.manager.manager().servers_in_touch() < servers {
            if handle.now() - begun > PATIENCE {
                return Err(Error::io("the servers of this process do not come up: see the log"));
            }
            handle.sleep(LOOK).await;
        }
        Ok(())
    }

    /// Where it can be reached.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Makes a volume, or finds it with the same size.
    ///
    /// # Errors
    /// `Conflict` where it exists with another size, and those of a creation.
    pub async fn ensure_volume(&self, name: &str, size: u64) -> Result<()> {
        let wanted = CreateVolume { allow_existing: true, ..CreateVolume::new(name, size) };
        self.manager.manager().handle(Request::Create(wanted)).await.map(drop)
    }

    /// Stops cleanly: agent, manager, servers, store.
    ///
    /// # Errors
    /// `Io`: not all that was dirty could be written; the next start recovers it.
    pub async fn stop(self) -> Result<()> {
        self.agent.stop().await;
        // Before the servers, or it would have others take their segments.
        self.manager.stop().await;
        self.is_stopping.set(true);
        self.stopping.notify();
        let mut stopped = Ok(());
        for server in self.servers {
            stopped = stopped.and(server.await);
        }
        self.files.stop().await;
        stopped
    }
}

/// One server, life after life, until it is to stop.
async fn serve(handle: Handle, settings: Settings, stopping: Event, is_stopping: Rc<Cell<bool>>) -> Result<()> {
    while !is_stopping.get() {
        let server = match ServerRole::start(&handle, &settings).await {
            Ok(server) => server,
            Err(error) => {
                tracing::warn!("{} does not start: {error}", settings.cluster.name);
                let _ = first(stopping.wait(), handle.sleep(Duration::from_secs(1))).await;
                continue;
            }
        };
        let stopped = stopping.wait();
        if is_stopping.get() || first(stopped, server.dismissed()).await.is_ok() {
            return server.stop().await;
        }
        server.abandon().await;
    }
    Ok(())
}
