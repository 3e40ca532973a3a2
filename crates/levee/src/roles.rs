//! `levee server`, `levee agent`, `levee manager`: the roles of several servers over one shared store, each a process.
//!
//! Each is one loop on the main thread, as `levee up` is; a panic ends the process, and others take over.

use std::path::Path;
use std::time::Duration;

use base::{Error, Result};
use node::cluster::agent::AgentRole;
use node::cluster::manager::ManagerRole;
use node::cluster::server::ServerRole;
use node::{Settings, nbd_uri};
use runtime::Handle;
use runtime::sync::first;
use runtime::uring::{self, process};
use serde::Serialize;
use wire::api::Size;

use crate::cli::{AgentOptions, ManagerOptions, RoleOptions, ServerOptions};
use crate::{console, measured, pki, up};

/// Between two tries to begin another life.
const PAUSE: Duration = Duration::from_secs(1);

type Signals = async_channel::Receiver<process::Stop>;

/// What `--json` prints.
#[derive(Serialize, Default)]
struct Announcement {
    role: &'static str,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nbd: Vec<String>,
}

/// Runs a server until a signal stops it. One whose life is over begins another one, however long that takes.
///
/// # Errors
/// One sentence that says why it does not start, or why it could not stop cleanly.
pub fn server(options: &ServerOptions) -> Result<()> {
    let mut settings = settings(&options.role)?;
    settings.cluster.store = options.store.clone().unwrap_or(settings.cluster.store);
    settings.memory = options.memory.map(Size::Bytes).unwrap_or(settings.memory);
    settings.admission.bandwidth = options.bandwidth.clone().or(settings.admission.bandwidth);
    let json = options.role.json;
    run(move |handle, signals| async move {
        let mut is_again = false;
        loop {
            let started = first(ServerRole::start(&handle, &settings), stopped(&signals)).await;
            let Ok(server) = started else { return Ok(()) };
            let server = match server {
                Ok(server) => server,
                Err(error) if is_again => {
                    eprintln!("note: this server cannot begin another life yet: {error}");
                    if first(stopped(&signals), handle.sleep(PAUSE)).await.is_ok() {
                        return Ok(());
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            is_again = true;
            // From now on it is found at the same place, whatever life it is in.
            settings.cluster.listen = server.address();
            let (name, address) = (settings.cluster.name.clone(), server.address());
            let text = format!(
                "Server {name} is ready at {address}, in life {}. Stop it with Ctrl-C.",
                server.incarnation().0
            );
            announce(
                json,
                &text,
                Announcement { role: "server", name, address: Some(address), ..Announcement::default() },
            )?;
            if first(stopped(&signals), server.dismissed()).await.is_ok() {
                let stopped = server.stop().await;
                return stopped.map_err(|error| error.context("the server could not stop cleanly; others recover it"));
            }
            eprintln!("note: this life of the server is over, and others get its segments; it begins another one");
            server.abandon().await;
        }
    })
}

/// Runs an agent until a signal stops it.
///
/// # Errors
/// One sentence that says why it does not start.
pub fn agent(options: &AgentOptions) -> Result<()> {
    let mut settings = settings(&options.role)?;
    settings.nbd.listen = options.nbd.unwrap_or(settings.nbd.listen);
    settings.nbd.socket = options.socket.clone().or(settings.nbd.socket);
    settings.vhost_user.extend(up::devices(&options.disks));
    // It has no directory of its own; nor has one without a home anything there.
    if let Some(beside) = up::default_directory().ok().or_else(|| settings.tenants.profile.clone()) {
        measured::find(&mut settings, &beside)?;
    }
    settings.memory = options.memory.map(Size::Bytes).unwrap_or(settings.memory);
    let json = options.role.json;
    run(move |handle, signals| async move {
        let started = first(AgentRole::start(&handle, &settings), stopped(&signals)).await;
        let Ok(agent) = started else { return Ok(()) };
        let agent = agent?;
        let nbd: Vec<String> = agent.nbd().iter().map(|address| nbd_uri(address, &settings.tls)).collect();
        let name = settings.cluster.name.clone();
        let text = format!("Agent {name} is ready at {}. Stop it with Ctrl-C.", nbd.join(" and "));
        announce(json, &text, Announcement { role: "agent", name, nbd, ..Announcement::default() })?;
        stopped(&signals).await;
        agent.stop().await;
        Ok(())
    })
}

/// Runs a manager until a signal stops it.
///
/// # Errors
/// One sentence that says why it does not start.
pub fn manager(options: &ManagerOptions) -> Result<()> {
    let mut settings = settings(&options.role)?;
    let cluster = &mut settings.cluster;
    cluster.store = options.store.clone().unwrap_or_else(|| cluster.store.clone());
    cluster.leases = options.leases.clone().or(cluster.leases.take());
    let token_file = options.token_file.clone().or(cluster.token_file.take());
    let token_file = match token_file {
        Some(file) => std::path::absolute(&file).map_err(|error| Error::from_io(file.display().to_string(), &error))?,
        None => up::default_directory()?.join(node::http::TOKEN_FILE),
    };
    if let Some(directory) = token_file.parent() {
        std::fs::create_dir_all(directory)
            .map_err(|error| Error::from_io(format!("cannot make {}", directory.display()), &error))?;
    }
    cluster.token_file = Some(token_file);
    settings.api.listen = options.api_listen.unwrap_or(settings.api.listen);
    let json = options.role.json;
    run(move |handle, signals| async move {
        let started = first(ManagerRole::start(&handle, &settings), stopped(&signals)).await;
        let Ok(manager) = started else { return Ok(()) };
        let manager = manager?;
        let (name, address) = (settings.cluster.name.clone(), Some(manager.address()));
        let api = manager.api().map(|api| format!("http://{api}"));
        let shown = api.clone().unwrap_or_default();
        let text =
            format!("Manager {name} is ready at {}, its API at {shown}. Stop it with Ctrl-C.", manager.address());
        announce(json, &text, Announcement { role: "manager", name, address, api, nbd: vec![] })?;
        stopped(&signals).await;
        manager.stop().await;
        Ok(())
    })
}

/// Runs a role on a loop of its own.
fn run<F: Future<Output = Result<()>> + 'static>(role: impl FnOnce(Handle, Signals) -> F + 'static) -> Result<()> {
    up::abort_on_panic();
    // Before any other thread: they inherit which signals they do not take.
    let signals = process::stop_signals().map_err(|error| Error::from_io("cannot wait for signals", &error))?;
    if let Err(error) = process::raise_descriptor_limit() {
        tracing::warn!(%error, "the limit of open descriptors stays as it is");
    }
    uring::run(uring::Options::default(), move |handle: Handle| role(handle, signals))
        .map_err(|error| Error::from_io("cannot run an event loop", &error))?
}

/// Waits for a signal to stop. Whoever is told so while it starts just ends: it has promised nothing.
async fn stopped(signals: &Signals) {
    // The sender lives as long as the process.
    let _ = signals.recv().await;
}

/// The file's settings with the flags over them.
fn settings(options: &RoleOptions) -> Result<Settings> {
    let mut settings = match options.config.as_deref() {
        None => Settings::default(),
        Some(path) => read(path)?,
    };
    let cluster = &mut settings.cluster;
    cluster.name = options.name.clone().unwrap_or_else(|| cluster.name.clone());
    cluster.listen = options.listen.clone().unwrap_or_else(|| cluster.listen.clone());
    if !options.managers.is_empty() {
        cluster.managers = options.managers.clone();
    }
    pki::secure(&mut settings.tls, options.tls.as_deref())?;
    settings.holder = format!("levee, process {}", std::process::id());
    Ok(settings)
}

fn read(path: &Path) -> Result<Settings> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::from_io(format!("cannot read {}", path.display()), &error))?;
    Settings::from_toml(&text).map_err(|error| error.context(path.display()))
}

fn announce(json: bool, text: &str, announcement: Announcement) -> Result<()> {
    if !json {
        console::print(text);
        return Ok(());
    }
    let line = serde_json::to_string(&announcement).map_err(|error| Error::internal(error.to_string()))?;
    console::print(&line);
    Ok(())
}
