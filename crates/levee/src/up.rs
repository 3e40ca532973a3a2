//! `levee up`: a whole store in this process.
//!
//! One loop on the main thread; a thread for the control API, one that waits for signals, a small pool for long jobs.
//! A panic anywhere ends the process at once: what was acknowledged is on disk, and the next start recovers it, while
//! a store with a part missing could only do harm.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::task::Poll;

use base::{Error, Result};
use node::cluster::together::Together;
use node::settings::{TlsSettings, VhostUserSettings};
use node::{Node, Ready, Settings, nbd_uri};
use runtime::Handle;
use runtime::sync::first;
use runtime::uring::{self, process};
use serde::Serialize;
use wire::api::Size;

use crate::cli::{Disk, Up};
use crate::{console, measured, pki};

/// Runs the store until a signal stops it.
///
/// # Errors
/// One sentence that says why it does not start, or why it could not stop cleanly.
pub fn run(options: Up) -> Result<()> {
    let settings = settings(&options)?;
    abort_on_panic();
    // Before any other thread: they inherit which signals they do not take.
    let signals = process::stop_signals().map_err(|error| Error::from_io("cannot wait for signals", &error))?;
    if let Err(error) = process::raise_descriptor_limit() {
        tracing::warn!(%error, "the limit of open descriptors stays as it is");
    }
    let loop_options = uring::Options { schedule: settings.event_loop.schedule() };
    let main = move |handle: Handle| async move { serve(&handle, &settings, &options, signals).await };
    uring::run(loop_options, main).map_err(|error| Error::from_io("cannot run an event loop", &error))?
}

async fn serve(
    handle: &Handle,
    settings: &Settings,
    options: &Up,
    signals: async_channel::Receiver<process::Stop>,
) -> Result<()> {
    if let Some(servers) = options.servers {
        return together(handle, settings, options, servers, signals).await;
    }
    let spinner = console::spinner("opening the store");
    let started = {
        let mut start = pin!(start(handle, settings, options));
        let mut stop = pin!(signals.recv());
        // A store that is asked to stop while it recovers just ends: it has acknowledged nothing.
        std::future::poll_fn(|cx| match start.as_mut().poll(cx) {
            Poll::Ready(started) => Poll::Ready(Some(started)),
            Poll::Pending => stop.as_mut().poll(cx).map(|_| None),
        })
        .await
    };
    spinner.finish_and_clear();
    let Some(started) = started else { return Ok(()) };
    let node = started?;
    node.ready().notes.iter().for_each(|note| eprintln!("note: {note}"));
    announce(node.ready(), options, &settings.tls)?;
    // The sender lives as long as the process.
    let _ = signals.recv().await;
    let spinner = console::spinner("stopping: writing what is dirty (once more ends at once, and loses nothing)");
    let stopped = node.stop().await;
    spinner.finish_and_clear();
    stopped.map_err(|error| error.context("the store could not stop cleanly; the next start recovers"))
}

/// `--servers`: several servers in this process.
async fn together(
    handle: &Handle,
    settings: &Settings,
    options: &Up,
    servers: u8,
    signals: async_channel::Receiver<process::Stop>,
) -> Result<()> {
    if !settings.vhost_user.is_empty() {
        return Err(Error::invalid(
            "--servers serves no vhost-user disks: start levee agent with --vhost-user for that",
        ));
    }
    let Ok(together) = first(Together::start(handle, settings, servers), signals.recv()).await else { return Ok(()) };
    let together = together?;
    together.ready().notes.iter().for_each(|note| eprintln!("note: {note}"));
    if let (Some(name), Some(size)) = (&options.volume, options.size)
        && let Err(error) = together.ensure_volume(name, size).await
    {
        let _ = together.stop().await;
        return Err(error);
    }
    announce(together.ready(), options, &settings.tls)?;
    let _ = signals.recv().await;
    together.stop().await.map_err(|error| error.context("the servers could not stop cleanly; the next start recovers"))
}

async fn start(handle: &Handle, settings: &Settings, options: &Up) -> Result<Node> {
    let node = Node::start(handle, settings).await?;
    if let (Some(name), Some(size)) = (&options.volume, options.size)
        && let Err(error) = node.ensure_volume(name, size).await
    {
        let _ = node.stop().await;
        return Err(error);
    }
    if let Err(error) = node.serve_devices().await {
        let _ = node.stop().await;
        return Err(error);
    }
    Ok(node)
}

/// The file's settings with the flags over them.
fn settings(options: &Up) -> Result<Settings> {
    let mut settings = settings_of(options.config.as_deref(), &options.directories)?;
    settings.nbd.listen = options.listen.unwrap_or(settings.nbd.listen);
    settings.api.listen = options.api_listen.unwrap_or(settings.api.listen);
    settings.vhost_user.extend(devices(&options.disks));
    settings.memory = options.memory.map(Size::Bytes).unwrap_or(settings.memory);
    settings.copies = options.copies.or(settings.copies);
    settings.admission.bandwidth = options.bandwidth.clone().or(settings.admission.bandwidth);
    settings.event_loop.count = options.loops.or(settings.event_loop.count);
    pki::secure(&mut settings.tls, options.tls.as_deref())?;
    settings.accept_data_loss = options.accept_data_loss;
    settings.accept_missing_directories = options.accept_missing_directories;
    settings.holder = format!("levee up, process {}", std::process::id());
    let beside = settings.directories[0].clone();
    measured::find(&mut settings, &beside)?;
    Ok(settings)
}

/// The disks of the command line as settings.
pub fn devices(disks: &[Disk]) -> impl Iterator<Item = VhostUserSettings> {
    disks.iter().map(|disk| VhostUserSettings { volume: disk.volume.clone(), path: disk.path.clone() })
}

/// The settings of a file, else the defaults, for these directories, else for those that it names, else for the default one.
///
/// # Errors
/// `Invalid` and `Io`, with the file.
pub fn settings_of(config: Option<&Path>, directories: &[PathBuf]) -> Result<Settings> {
    let mut settings = match config {
        None => Settings::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| Error::from_io(format!("cannot read {}", path.display()), &error))?;
            Settings::from_toml(&text).map_err(|error| error.context(path.display()))?
        }
    };
    if !directories.is_empty() {
        settings.directories = directories.to_vec();
    }
    if settings.directories.is_empty() {
        settings.directories.push(default_directory()?);
    }
    for directory in &mut settings.directories {
        // The addresses that are printed must work from anywhere.
        *directory = std::path::absolute(&directory)
            .map_err(|error| Error::from_io(format!("--dir {}", directory.display()), &error))?;
    }
    Ok(settings)
}

/// `levee` in the user's data directory.
pub fn default_directory() -> Result<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")));
    data.map(|data| data.join("levee"))
        .ok_or_else(|| Error::invalid("neither HOME nor XDG_DATA_HOME is set: name a directory with --dir"))
}

/// What `--json` prints.
#[derive(Serialize)]
struct Addresses {
    api: String,
    socket: String,
    nbd: String,
}

/// Says that the store is ready, and how to use it: every command works when it is pasted.
fn announce(ready: &Ready, options: &Up, tls: &TlsSettings) -> Result<()> {
    let api = ready.api.map(|address| format!("http://{address}")).unwrap_or_default();
    let nbd = nbd_uri(&ready.nbd, tls);
    let socket = ready.socket.display().to_string();
    if options.json {
        let line = serde_json::to_string(&Addresses { api, socket, nbd });
        console::print(&line.map_err(|error| Error::internal(error.to_string()))?);
        return Ok(());
    }
    let levee = std::env::args().next().unwrap_or_else(|| "levee".into());
    let control_example = match &options.volume {
        Some(name) => format!("{levee} volume show {name} --api {api}"),
        None => format!("{levee} volume create vm-1 --size 10G --api {api}"),
    };
    let name = options.volume.as_deref().unwrap_or_default();
    let unix_uri = format!("nbd+unix:///{name}?socket={socket}");
    let tcp_example = match &options.volume {
        // Each client has a directory of its own.
        Some(name) if nbd.starts_with("nbds") => format!("nbdinfo \"{nbd}/{name}?tls-certificates=DIR\""),
        None if nbd.starts_with("nbds") => format!("nbdinfo --list \"{nbd}/?tls-certificates=DIR\""),
        Some(name) => format!("qemu-img info -f raw {nbd}/{name}"),
        None => format!("nbdinfo --list {nbd}"),
    };
    let unix_example = match options.volume {
        Some(_) => format!("nbdinfo \"{unix_uri}\""),
        None => format!("nbdinfo --list \"{unix_uri}\""),
    };
    console::print("Levee is ready. Stop it with Ctrl-C.\n");
    console::print(&format!("control  {api}\n         {control_example}"));
    console::print(&format!("socket   {socket}\n         {unix_example}"));
    console::print(&format!("NBD      {nbd}\n         {tcp_example}"));
    Ok(())
}

/// Ends the process with the first panic.
pub fn abort_on_panic() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        usual(panic);
        eprintln!(
            "error: this is a bug in Levee, please report it with the lines above; the process ends, what was \
             acknowledged is safe: start it again"
        );
        std::process::abort();
    }));
}
