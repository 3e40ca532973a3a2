//! Disks of virtual machines that were asked for while the store ran: they are there again after a restart.
//!
//! A machine outlives the process that serves its disk, and waits for the next one; nobody is there to ask anew. So what was
//! asked for stands in a file beside the store, in the words of the configuration, with the number of the volume: another
//! one that has got the same name since is not given to the machine. What the configuration names is not in the file.
//!
//! The file is replaced as a whole: written apart, made durable, renamed. In a directory that was left behind it is that of
//! another time: who accepted the loss of the volume table has numbers given out again, so nothing in it is believed.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use agent::Agent;
use base::{Error, ErrorKind, Result, VolumeId};
use runtime::sync::Budget;
use runtime::{Handle, OpenOptions};
use serde::{Deserialize, Serialize};
use wire::{Device, DeviceHost, LocalBoxFuture, VolumeDirectory};

use crate::addresses::add_device_when_free;
use crate::settings::VhostUserSettings;

/// The file, and what the next one is called until it is whole: in the first directory of the store.
pub(crate) const FILES: [&str; 2] = ["devices.toml", "devices.toml.new"];
/// More than all devices of an agent take.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// See the module.
pub(crate) struct Devices {
    handle: Handle,
    agent: Agent,
    directory: Rc<dyn VolumeDirectory>,
    beside: PathBuf,
    configured: Vec<VhostUserSettings>,
    asked_for: RefCell<Vec<AskedFor>>,
    /// One change at a time.
    turn: Budget,
}

/// A disk that was asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct AskedFor {
    volume: String,
    id: u64,
    path: PathBuf,
}

/// The file.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    #[serde(default)]
    vhost_user: Vec<AskedFor>,
}

impl Devices {
    /// Those of `agent`, whose file is in `beside`.
    pub(crate) fn new(
        handle: &Handle,
        agent: &Agent,
        directory: Rc<dyn VolumeDirectory>,
        beside: &Path,
        configured: &[VhostUserSettings],
    ) -> Rc<Devices> {
        Rc::new(Devices {
            handle: handle.clone(),
            agent: agent.clone(),
            directory,
            beside: beside.to_owned(),
            configured: configured.to_vec(),
            asked_for: RefCell::default(),
            turn: Budget::new(1),
        })
    }

    /// Reads the file. One that cannot be read is said to be so in the log, and no reason not to start.
    pub(crate) async fn remember(&self) {
        let kept = read(&self.handle, &self.beside.join(FILES[0])).await.unwrap_or_else(|error| {
            tracing::error!(%error, "disks of virtual machines that were asked for are not served: ask again with levee attach");
            Kept::default()
        });
        // Whoever wrote the list may have been killed before its name was durable: what is served now is served after the next
        // power loss, too.
        if let Err(error) = self.handle.sync_directory(&self.beside).await {
            tracing::warn!(%error, "the list of the disks of virtual machines may not be durable");
        }
        *self.asked_for.borrow_mut() = kept.vhost_user;
    }

    /// Gives up what the file names.
    pub(crate) async fn forget(&self) {
        let Ok(Kept { vhost_user }) = read(&self.handle, &self.beside.join(FILES[0])).await else { return };
        for AskedFor { volume, path, .. } in &vhost_user {
            let path = path.display();
            tracing::error!(
                "{path} is not served as a disk of {volume}: the list that names it is older than the store. If it still is one, \
                 ask again with levee attach {volume} --vhost-user {path}"
            );
        }
        *self.asked_for.borrow_mut() = vhost_user;
        if let Err(error) = self.keep(Vec::new()).await {
            tracing::warn!(%error, "the older list of the disks of virtual machines stays");
            self.asked_for.borrow_mut().clear();
        }
    }

    /// Serves what the configuration names, and what was asked for before this start.
    ///
    /// # Errors
    /// What is wrong with one that the configuration names: its volume does not exist, or something else is at its path.
    /// With one that was asked for that is said in the log; it is tried again at the next start, unless its volume is gone.
    pub(crate) async fn serve(&self) -> Result<()> {
        for VhostUserSettings { volume, path } in &self.configured {
            add_device_when_free(&self.handle, &self.agent, volume, path).await?;
        }
        let _alone = self.turn.take(1).await;
        let before = self.asked_for.borrow().clone();
        for device in before {
            if let Err(error) = self.serve_again(&device).await {
                let path = device.path.display();
                tracing::warn!(volume = device.volume, %path, %error, "a disk of a virtual machine is not served again");
                if error.kind == ErrorKind::NotFound {
                    self.asked_for.borrow_mut().retain(|other| *other != device);
                }
            }
        }
        Ok(())
    }

    async fn serve_again(&self, device: &AskedFor) -> Result<()> {
        let there = self.directory.resolve(&device.volume).await?.id;
        if there != VolumeId(device.id) {
            return Err(Error::not_found(format!("its volume was deleted, and {there} has its name since")));
        }
        add_device_when_free(&self.handle, &self.agent, &device.volume, &device.path).await
    }

    async fn add(&self, volume: &str, path: &Path) -> Result<()> {
        let _alone = self.turn.take(1).await;
        let id = self.directory.resolve(volume).await?.id;
        let was_there = self.agent.devices().iter().any(|device| device.path == path);
        self.agent.add_device(volume, path).await?;
        if self.configured.iter().any(|configured| configured.path == path) {
            return Ok(());
        }
        let mut next = self.without(path);
        next.push(AskedFor { volume: volume.to_owned(), id: id.0, path: path.to_owned() });
        let kept = self.keep(next).await;
        if kept.is_err() && !was_there {
            // What a restart would forget is not promised.
            self.agent.remove_device(path).await?;
        }
        kept
    }

    async fn remove(&self, path: &Path) -> Result<()> {
        let _alone = self.turn.take(1).await;
        let next = self.without(path);
        let was_asked_for = next.len() < self.asked_for.borrow().len();
        match self.agent.remove_device(path).await {
            // Of one whose volume is gone nothing else is left.
            Err(error) if error.kind == ErrorKind::NotFound && was_asked_for => {}
            removed => removed?,
        }
        if was_asked_for { self.keep(next).await } else { Ok(()) }
    }

    fn without(&self, path: &Path) -> Vec<AskedFor> {
        self.asked_for.borrow().iter().filter(|device| device.path != path).cloned().collect()
    }

    /// Makes `next` what is served after a restart.
    async fn keep(&self, next: Vec<AskedFor>) -> Result<()> {
        if *self.asked_for.borrow() == next {
            return Ok(());
        }
        let kept = Kept { vhost_user: next };
        let text = toml::to_string(&kept).map_err(|error| Error::internal(format!("a list of disks: {error}")))?;
        let path = self.beside.join(FILES[0]);
        self.replace(&path, text.into_bytes()).await.map_err(|error| {
            Error::from_io(format!("{} cannot be written, so a restart would forget it", path.display()), &error)
        })?;
        *self.asked_for.borrow_mut() = kept.vhost_user;
        Ok(())
    }

    async fn replace(&self, path: &Path, content: Vec<u8>) -> io::Result<()> {
        let apart = self.beside.join(FILES[1]);
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        let file = self.handle.open(&apart, options).await?;
        file.set_len(content.len() as u64).await?;
        file.write_at(0, base::Bytes::from(content)).await?;
        file.sync().await?;
        self.handle.rename(&apart, path).await?;
        self.handle.sync_directory(&self.beside).await
    }
}

async fn read(handle: &Handle, path: &Path) -> Result<Kept> {
    let failed = |error: &io::Error| Error::from_io(path.display().to_string(), error);
    let file = match handle.open(path, OpenOptions::default()).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Kept::default()),
        opened => opened.map_err(|error| failed(&error))?,
    };
    let length = file.length().await.map_err(|error| failed(&error))?;
    if length > FILE_BYTES_MAX {
        return Err(Error::invalid(format!("{}: {length} bytes are no list of disks", path.display())));
    }
    let content = file.read_at(0, length as usize).await.map_err(|error| failed(&error))?;
    let text = std::str::from_utf8(&content).map_err(|error| Error::invalid(format!("{}: {error}", path.display())))?;
    toml::from_str(text).map_err(|error| Error::invalid(format!("{}: {error}", path.display())))
}

impl DeviceHost for Devices {
    fn add_device<'a>(&'a self, volume: &'a str, path: &'a Path) -> LocalBoxFuture<'a, Result<()>> {
        Box::pin(self.add(volume, path))
    }

    fn remove_device<'a>(&'a self, path: &'a Path) -> LocalBoxFuture<'a, Result<()>> {
        Box::pin(self.remove(path))
    }

    fn devices(&self) -> Vec<Device> {
        self.agent.devices()
    }
}
