//! `levee agent profile`: what requests take of a loop's processor on this machine, for the scheduler of tenants (BurstCBS,
//! OSDI 2024, §5.3). Every start of an agent looks for what was measured ([`crate::measured`]).
//!
//! **Flow.** A store of its own runs on a loop in a scratch directory, with one volume that was written in full. A thread plays
//! its clients, one kind and size of request after the other, as many in flight as keep the loop busy: over NBD ([`nbd`]) and
//! as a virtual machine ([`machine`]). What the loop's thread had of a processor meanwhile, by the number of requests, is what one
//! takes; of several rounds the lowest counts, since whatever else the machine does only adds.

#![allow(clippy::disallowed_methods, reason = "files and threads outside of the simulated worlds")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use base::units::format_size;
use base::{Error, GIB, MIB, Result};
use node::profile::{Asked, FILES, KINDS, MachineProfile, Measured, SCRATCH, SIZES, Way};
use node::settings::VhostUserSettings;
use node::{Node, Settings};
use runtime::Handle;
use runtime::sync::{first, foreign};
use runtime::uring::{self, process};
use rustix::time::{ClockId, clock_gettime};
use wire::api::Size;

use crate::cli::Profile;
use crate::explain::duration;
use crate::{console, measured, up};

mod machine;
mod nbd;

/// Bytes of the volume.
const VOLUME_BYTES: u64 = 256 * MIB;
/// What the scratch directory may come to.
const ROOM_BYTES: u64 = 4 * GIB;
/// Requests in flight.
const DEPTH: usize = 32;
/// How often each kind and size is measured.
const ROUNDS: u32 = 3;

/// Measures, and writes the file.
///
/// # Errors
/// What keeps it from being measured or written.
pub fn run(options: Profile) -> Result<()> {
    let settings = up::settings_of(options.config.as_deref(), &options.directories)?;
    let path = measured::file_of(&settings, &settings.directories[0]);
    let beside = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |what: &'static str| move |error: std::io::Error| Error::from_io(what, &error);
    fs::create_dir_all(beside).map_err(|error| Error::from_io(beside.display().to_string(), &error))?;
    let scratch = Scratch::take(&beside.join(SCRATCH))?;
    // Before any other thread: they inherit which signals they do not take.
    let signals = process::stop_signals().map_err(failed("cannot wait for signals"))?;
    let spinner = console::spinner("measuring what requests take");
    let (directory, span) = (scratch.path.clone(), span_of(options.seconds));
    let main = move |handle: Handle| async move { measure(&handle, &directory, span, signals).await };
    let requests = uring::run(uring::Options::default(), main).map_err(failed("cannot run an event loop"))?;
    spinner.finish_and_clear();
    drop(scratch);
    let profile = MachineProfile { machine: measured::this_machine(), request: requests? };
    write(&path, &profile.text()?)?;
    if options.json {
        return console::print_json(&profile);
    }
    console::print(&text_of(&profile));
    console::print(&format!(
        "\nIn {}: an agent that starts with that directory or configuration uses it.",
        path.display()
    ));
    Ok(())
}

/// How long one kind and size is asked for in one round.
fn span_of(seconds: u64) -> Duration {
    Duration::from_secs(seconds) / (ROUNDS * (KINDS.len() * SIZES.len()) as u32)
}

/// As a whole or not at all.
fn write(path: &Path, text: &str) -> Result<()> {
    let whole = path.with_file_name(FILES[1]);
    let failed = |error: std::io::Error| Error::from_io(format!("cannot write {}", path.display()), &error);
    fs::write(&whole, text).map_err(failed)?;
    File::open(&whole).and_then(|file| file.sync_all()).map_err(failed)?;
    fs::rename(&whole, path).map_err(failed)
}

fn text_of(profile: &MachineProfile) -> String {
    let sizes = SIZES.map(format_size);
    let header: Vec<&str> = ["FRONTEND", "REQUEST"].into_iter().chain(sizes.iter().map(String::as_str)).collect();
    let row = |(way, asked): (Way, Asked)| {
        let names = match way {
            Way::Nbd => "NBD",
            Way::VhostUser => "vhost-user",
        };
        let mut cells = vec![names.to_owned(), if asked == Asked::Read { "read" } else { "write" }.into()];
        let time = |bytes| profile.of(way, asked, bytes).map_or(String::new(), |ns| duration(ns as u64));
        cells.extend(SIZES.map(time));
        cells
    };
    let rows: Vec<Vec<String>> = KINDS.map(row).into();
    let ratio = |asked| {
        let [nbd, guest] = [Way::Nbd, Way::VhostUser].map(|way| profile.of(way, asked, SIZES[0]).unwrap_or(f64::NAN));
        guest / nbd
    };
    format!(
        "Processor time of a loop for each request ({}):\n\n{}\n\nOf a virtual machine over vhost-user a read of 4 KiB takes {:.2}, a \
         write {:.2} of what it takes over NBD.",
        profile.machine,
        console::table(&header, &rows),
        ratio(Asked::Read),
        ratio(Asked::Write)
    )
}

/// The directory that is ours while it is locked. What a former measurement has left there is removed.
struct Scratch {
    path: PathBuf,
    _lock: File,
}

impl Scratch {
    fn take(path: &Path) -> Result<Scratch> {
        let failed = |error: std::io::Error| Error::from_io(format!("cannot measure in {}", path.display()), &error);
        fs::create_dir_all(path).map_err(failed)?;
        let lock = File::open(path).map_err(failed)?;
        if lock.try_lock().is_err() {
            return Err(Error::conflict(format!(
                "another levee agent profile measures in {}: wait for it",
                path.display()
            )));
        }
        for left in fs::read_dir(path).map_err(failed)? {
            let left = left.map_err(failed)?.path();
            let removed = if left.is_dir() { fs::remove_dir_all(&left) } else { fs::remove_file(&left) };
            removed.map_err(failed)?;
        }
        Ok(Scratch { path: path.to_owned(), _lock: lock })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("note: {} can be removed: {error}", self.path.display());
        }
    }
}

/// Runs the store and has its client ask, until that is done or a signal comes.
async fn measure(
    handle: &Handle,
    directory: &Path,
    span: Duration,
    signals: async_channel::Receiver<process::Stop>,
) -> Result<Vec<Measured>> {
    const VOLUME: &str = "volume";
    let guest = directory.join("guest.sock");
    let mut settings = Settings { directories: vec![directory.to_owned()], ..Settings::default() };
    settings.nbd.listen = ([127, 0, 0, 1], 0).into();
    settings.api.is_off = true;
    settings.capacity = Some(Size::Bytes(ROOM_BYTES));
    settings.vhost_user = vec![VhostUserSettings { volume: VOLUME.into(), path: guest.clone() }];
    // Nothing but requests, and what they bring with them.
    settings.admission.bandwidth = Some(Size::Text("none".into()));
    settings.engine.zero_ahead = Size::Bytes(0);
    settings.engine.scrub_rate = Size::Bytes(0);
    settings.holder = format!("levee agent profile, process {}", std::process::id());
    let node = Node::start(handle, &settings).await?;
    let asking = async {
        node.ensure_volume(VOLUME, VOLUME_BYTES).await?;
        node.serve_devices().await?;
        ask_all(node.ready().socket.clone(), VOLUME, guest, span).await
    };
    let asked = first(asking, signals.recv()).await;
    // What it has is removed anyway.
    let _ = node.stop().await;
    asked.unwrap_or_else(|_| {
        Err(Error::retry("stopped: nothing was measured to its end, and the scratch files are removed"))
    })
}

/// Somebody who asks for the same again and again, as many at once as are allowed.
trait Client {
    /// Asks for so long: how many were answered.
    fn ask(&mut self, asked: Asked, bytes: u64, span: Duration) -> Result<u64>;
}

/// What the client's thread does.
type Job = Box<dyn FnOnce(&mut Clients) + Send>;

struct Clients {
    nbd: nbd::Nbd,
    machine: machine::Machine,
}

impl Clients {
    fn of(&mut self, way: Way) -> &mut dyn Client {
        match way {
            Way::Nbd => &mut self.nbd,
            Way::VhostUser => &mut self.machine,
        }
    }
}

async fn ask_all(socket: PathBuf, volume: &'static str, guest: PathBuf, span: Duration) -> Result<Vec<Measured>> {
    let (jobs, taken) = mpsc::channel::<Job>();
    let (connected, ready) = foreign();
    let playing = move || {
        let connect = || {
            let mut nbd = nbd::Nbd::connect(&socket, volume, VOLUME_BYTES, DEPTH)?;
            nbd.fill()?;
            Ok(Clients { nbd, machine: machine::Machine::connect(&guest, VOLUME_BYTES, DEPTH)? })
        };
        let mut clients: Clients = match connect() {
            Ok(clients) => clients,
            Err(error) => return drop(connected.send(Err(error))),
        };
        if connected.send(Ok(())).is_ok() {
            taken.iter().for_each(|job| job(&mut clients));
        }
    };
    let thread = thread::Builder::new().name("clients".into());
    thread.spawn(playing).map_err(|error| Error::from_io("cannot start a thread", &error))?;
    let gone = || Error::internal("the clients have ended");
    ready.await.map_err(|_| gone())??;
    let kinds = || KINDS.into_iter().flat_map(|(way, asked)| SIZES.map(|bytes| (way, asked, bytes)));
    let mut lowest = vec![f64::INFINITY; kinds().count()];
    for _ in 0..ROUNDS {
        for (lowest, (way, asked, bytes)) in lowest.iter_mut().zip(kinds()) {
            let (answered, answer) = foreign();
            let job: Job = Box::new(move |clients| drop(answered.send(clients.of(way).ask(asked, bytes, span))));
            let before = processor_time();
            jobs.send(job).map_err(|_| gone())?;
            let requests = answer.await.map_err(|_| gone())??;
            let took = processor_time() - before;
            *lowest = lowest.min(took.as_nanos() as f64 / requests.max(1) as f64);
        }
    }
    let measured = |((frontend, operation, bytes), processor_ns): (_, f64)| Measured {
        frontend,
        operation,
        bytes,
        processor_ns: processor_ns.round(),
    };
    Ok(kinds().zip(lowest).map(measured).collect())
}

/// Of this thread, which is the loop's.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
