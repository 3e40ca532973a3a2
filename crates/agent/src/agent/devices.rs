//! The disks of virtual machines that an agent serves: each a volume at a Unix socket, to which a hypervisor connects.
//!
//! A device is there from when it is added until it is removed, its volume is deleted or the agent stops; hypervisors come
//! and go. It is that volume's and no other's: another one that has got the same name since is not given to a machine that was
//! started with the one before. It has one connection at a time: the next one is accepted when nothing of the one before is in flight, since
//! both would write into the same rings. A connection is answered on this loop, and its queues are served on all
//! (`policies::queues`); its place among the connections of loops says where that begins.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use base::{Error, ErrorKind, Result, VolumeId};
use runtime::sync::{Event, first, oneshot};
use runtime::{Address, Class, Listener, Stream, Task};
use wire::Device;

use super::Inner;
use crate::peers::{HangUp, Line, Peer};
use crate::shared::Place;
use crate::vhost;

/// How long to wait after an accept that failed, for file descriptors to come free.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// How often a connection is told to end.
const DRAIN_AGAIN: Duration = Duration::from_millis(100);
/// Devices of one agent.
const DEVICES_MAX: usize = 256;

/// All devices of an agent, by the path of their sockets.
#[derive(Default)]
pub(super) struct Devices(RefCell<BTreeMap<PathBuf, Served>>);

struct Served {
    volume: String,
    id: VolumeId,
    state: Rc<State>,
    accepting: Task<()>,
}

#[derive(Default)]
struct State {
    /// The connection that it has.
    connection: Cell<Option<u64>>,
    is_removed: Cell<bool>,
    removed: Event,
}

impl Devices {
    /// Adds a device; says so if it is there already.
    ///
    /// # Errors
    /// `NotFound`: there is no such volume. `Conflict`: the path is another volume's, or something that is not ours is
    /// there. `Invalid`: the path cannot be that of a socket.
    pub(super) async fn add(&self, agent: &Rc<Inner>, volume: &str, path: &Path) -> Result<()> {
        if !path.is_absolute() {
            return Err(Error::invalid(format!("{} is not an absolute path: give the whole of it", path.display())));
        }
        let id = agent.here.directory.resolve(volume).await?.id;
        self.remove_outlived(volume, id, path).await;
        if self.is_there(volume, path)? {
            return Ok(());
        }
        let listener = agent.handle.listen(&Address::Unix(path.to_owned())).await.map_err(|error| {
            let what = format!("a disk of {volume:?} cannot be served at {}", path.display());
            let mut refusal = Error::from_io(what, &error);
            if error.kind() == std::io::ErrorKind::AddrInUse {
                refusal.message.push_str("; give another path, or remove what is there");
            }
            refusal
        })?;
        // Somebody else may have been as far meanwhile: then that one listens, and this one could not.
        let state = Rc::new(State::default());
        let serving = accept(agent.clone(), state.clone(), listener, (volume.to_owned(), id), path.to_owned());
        let accepting = agent.handle.spawn(Class::Io, "vhost-user accept", serving);
        let device = Served { volume: volume.to_owned(), id, state, accepting };
        self.0.borrow_mut().insert(path.to_owned(), device);
        Ok(())
    }

    /// Removes the device at a path if it is one of an earlier volume of the same name, which is gone.
    async fn remove_outlived(&self, volume: &str, id: VolumeId, path: &Path) {
        let is_outlived = self.0.borrow().get(path).is_some_and(|device| device.volume == volume && device.id != id);
        if is_outlived {
            // It may go by itself meanwhile.
            let _ = self.remove(path).await;
        }
    }

    fn is_there(&self, volume: &str, path: &Path) -> Result<bool> {
        let devices = self.0.borrow();
        match devices.get(path) {
            Some(device) if device.volume == volume => Ok(true),
            Some(device) => {
                let other = &device.volume;
                Err(Error::conflict(format!("{} serves the volume {other:?}: give another path", path.display())))
            }
            None if devices.len() >= DEVICES_MAX => {
                Err(Error::full(format!("there are {DEVICES_MAX} disks of virtual machines: remove one first")))
            }
            None => Ok(false),
        }
    }

    /// Removes a device: its socket goes at once, then what is in flight finishes and its connection ends.
    ///
    /// # Errors
    /// `NotFound`
    pub(super) async fn remove(&self, path: &Path) -> Result<()> {
        let removed = self.0.borrow_mut().remove(path);
        let Some(device) = removed else {
            return Err(Error::not_found(format!("no disk of a virtual machine is served at {}", path.display())));
        };
        device.state.is_removed.set(true);
        device.state.removed.notify();
        device.accepting.await;
        Ok(())
    }

    /// No device accepts a hypervisor any more; their connections go on.
    pub(super) fn clear(&self) {
        let devices = std::mem::take(&mut *self.0.borrow_mut());
        drop(devices);
    }

    /// All of them, by path.
    pub(super) fn list(&self) -> Vec<Device> {
        let status = |(path, device): (&PathBuf, &Served)| Device {
            volume: device.volume.clone(),
            path: path.clone(),
            is_connected: device.state.connection.get().is_some(),
        };
        self.0.borrow().iter().map(status).collect()
    }
}

/// Serves the hypervisors of a device, one after the other.
async fn accept(
    agent: Rc<Inner>,
    state: Rc<State>,
    listener: Listener,
    (volume, volume_id): (String, VolumeId),
    path: PathBuf,
) {
    let mut listener = Some(listener);
    while let Some(open) = &listener {
        let removed = state.removed.wait();
        if state.is_removed.get() {
            return;
        }
        let stream = match first(open.accept(), removed).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                tracing::warn!(path = %path.display(), %error, "a hypervisor's connection could not be accepted");
                agent.handle.sleep(ACCEPT_RETRY).await;
                continue;
            }
            Err(()) => return,
        };
        let Some((id, place)) = agent.admit() else { continue };
        state.connection.set(Some(id));
        let mut serving = std::pin::pin!(serve(&agent, id, stream, place, (volume.clone(), volume_id)));
        let removed = state.removed.wait();
        let outcome = match first(serving.as_mut(), removed).await {
            Ok(outcome) => outcome,
            Err(()) => {
                // The socket goes first, so that nobody else connects to it.
                listener = None;
                loop {
                    agent.home.drain_one(id);
                    // It may be on its way to its loop still.
                    let pause = agent.handle.sleep(DRAIN_AGAIN);
                    if let Ok(outcome) = first(serving.as_mut(), pause).await {
                        break outcome;
                    }
                }
            }
        };
        state.connection.set(None);
        match outcome {
            Err(error) if error.kind == ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "a disk of a virtual machine goes with its volume");
                // The task cannot drop itself: it ends now.
                if let Some(device) = agent.devices.0.borrow_mut().remove(&path) {
                    device.accepting.detach();
                }
                return;
            }
            Err(error) => tracing::warn!(connection = id, %volume, %error, "a hypervisor cannot have its disk"),
            Ok(()) => {}
        }
    }
}

/// Serves one connection on this loop, in a task of its own: whoever waits for its end may go.
async fn serve(
    agent: &Rc<Inner>,
    id: u64,
    stream: Stream,
    place: Place,
    (volume, volume_id): (String, VolumeId),
) -> Result<()> {
    let lost = |error: std::io::Error| Error::from_io("a hypervisor's connection was lost", &error);
    let released = stream.release().await.map_err(lost)?;
    let shared = agent.here.clone();
    let attended = shared.handle.attend(released);
    let port = attended.map_err(|error| Error::from_io("a hypervisor's connection cannot be served", &error))?;
    let hang_up: Rc<HangUp> = Rc::default();
    let peer = Rc::new(Peer::new(id, Line::Port(hang_up.clone())));
    let (sender, ended) = oneshot();
    // Whoever drains all connections may have looked already.
    if shared.is_stopping() {
        return Ok(());
    }
    shared.peers.insert(peer.clone());
    let (serving_for, home) = (shared.clone(), agent.home.clone());
    let serving = async move {
        let of = (volume.as_str(), volume_id);
        let outcome = vhost::serve_guest(&serving_for, &home, (&peer, &place), &hang_up, port, of).await;
        // Whoever waits for the last peer to go finds the place free, too.
        drop(place);
        serving_for.peers.remove(peer.id);
        sender.send(outcome);
    };
    shared.handle.spawn(Class::Io, "vhost-user connection", serving).detach();
    ended.await.unwrap_or(Ok(()))
}
