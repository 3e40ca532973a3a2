//! Volumes as the control plane describes them, and what is asked of it.

use std::path::{Path, PathBuf};

use base::levels::Levels;
use base::limits::{DATA_SECTOR_DEFAULT, GROUP_SIZE, SEGMENTS_PER_GROUP};
use base::{Error, Generation, Result, VolumeId};

use crate::layout::Layout;
use crate::service::LocalBoxFuture;

/// Whether bursts of a volume are spread over several servers (DiffForward, SIGMETRICS 2023). The numbers are on disk and in
/// frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Forwarding {
    /// As the agent has it that it is attached to.
    #[default]
    Default = 0,
    /// They are not.
    Off = 1,
    /// They are, where that costs no more than agents may spend.
    Auto = 2,
    /// They are.
    On = 3,
}

impl Forwarding {
    /// All of them, with what people call them.
    pub const NAMES: [(Forwarding, &'static str); 4] = [
        (Forwarding::Default, "default"),
        (Forwarding::Off, "off"),
        (Forwarding::Auto, "auto"),
        (Forwarding::On, "on"),
    ];

    /// The one with this number.
    pub fn of(number: u8) -> Option<Forwarding> {
        Self::NAMES.iter().map(|(one, _)| *one).find(|one| *one as u8 == number)
    }

    /// The one that people call so.
    pub fn named(name: &str) -> Option<Forwarding> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(one, _)| *one)
    }

    /// What people call it.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(one, _)| *one == self).expect("every one has a name").1
    }
}

/// What the control plane knows of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeDescriptor {
    /// Its id, never used again.
    pub id: VolumeId,
    /// Its name, unique among the volumes that exist.
    pub name: String,
    /// Its size in bytes, a multiple of 512.
    pub size: u64,
    /// The stripe unit of its segment groups in bytes (EBS, FAST 2024, §2.2): a power of two, at least a block.
    pub data_sector_bytes: u64,
    /// How many segments it has: whole groups of 4, thin.
    pub segments: u32,
    /// The newest attachment; zero where it was never attached.
    pub generation: Generation,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whose it is: tells clients apart where each has a cap.
    pub owner: String,
    /// What it was promised, and the most that it gets.
    pub levels: Levels,
    /// Whether its bursts are spread.
    pub forwarding: Forwarding,
}

impl VolumeDescriptor {
    /// A volume that nobody has attached yet, with the default layout.
    pub fn new(id: VolumeId, name: impl Into<String>, size: u64) -> Self {
        VolumeDescriptor {
            id,
            name: name.into(),
            size,
            data_sector_bytes: DATA_SECTOR_DEFAULT,
            segments: segments_for(size),
            generation: Generation(0),
            read_only: false,
            owner: String::new(),
            levels: Levels::default(),
            forwarding: Forwarding::default(),
        }
    }

    /// Where its bytes lie.
    pub fn layout(&self) -> Layout {
        Layout::new(self.data_sector_bytes)
    }

    /// The volume whose logs are in this one, if it is such a hidden one.
    pub fn logs_of(&self) -> Option<VolumeId> {
        self.name.strip_prefix(LOGS)?.parse().ok().map(VolumeId)
    }
}

/// What the names of hidden volumes begin with that have the logs of others.
const LOGS: &str = ".logs-";

/// What the volume with the logs of a volume is called: as no other can be.
pub fn logs_name(volume: VolumeId) -> String {
    format!("{LOGS}{}", volume.0)
}

/// How many segments a volume of `size` bytes has: whole groups, at least one.
pub fn segments_for(size: u64) -> u32 {
    (size.div_ceil(GROUP_SIZE).max(1) * SEGMENTS_PER_GROUP) as u32
}

/// The manager's face to agents and block servers. Needed only to open, attach and detach: I/O goes on without it.
pub trait VolumeDirectory {
    /// The volume called `name`.
    ///
    /// # Errors
    /// `NotFound`.
    fn resolve<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<VolumeDescriptor>>;

    /// The volume with this id, its newest generation included.
    ///
    /// # Errors
    /// `NotFound`.
    fn describe(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>>;

    /// The names of all volumes, sorted.
    ///
    /// # Errors
    /// `Internal` while shutting down.
    fn list(&self) -> LocalBoxFuture<'_, Result<Vec<String>>>;

    /// Gives the volume to an agent: a new generation is durably recorded, and is in the descriptor that comes back.
    ///
    /// # Errors
    /// `NotFound`, `Io` where the table cannot be written.
    fn attach(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<VolumeDescriptor>>;

    /// The agent is done with this attachment. Nothing happens if a newer one exists.
    ///
    /// # Errors
    /// `Io` where the table cannot be written.
    fn detach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<()>>;

    /// Attaches the hidden volume that has the logs of `volume`, for whoever has attached that under `generation`; makes it
    /// first where there is none, if `make` says so.
    ///
    /// # Errors
    /// `NotFound`: the volume has none, or there is no second server to have it. `Fenced`: a newer attachment of the volume is
    /// recorded, or the volume is gone, and what was in logs with it. `Full`, `Io`.
    fn take_logs(
        &self,
        volume: VolumeId,
        _generation: Generation,
        _make: bool,
    ) -> LocalBoxFuture<'_, Result<VolumeDescriptor>> {
        let none = Error::not_found(format!("volume {volume} has no logs: it is all on one machine"));
        Box::pin(std::future::ready(Err(none)))
    }
}

/// What a manager asks of the side that owns a volume's segments.
pub trait VolumeOwner {
    /// Closes the volume's session, drains it, and forgets its data; the space comes back in time. Durable when it
    /// returns; may be repeated.
    ///
    /// # Errors
    /// `Io`.
    fn drop_volume(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<()>>;

    /// Begins to read every copy of everything, to see whether it is still right, unless that is under way.
    ///
    /// # Errors
    /// `Internal`: it is going away.
    fn begin_scrub(&self) -> LocalBoxFuture<'_, Result<()>>;

    /// Says whose a volume is now, and what it was promised: holds from the next request on.
    fn set_levels(&self, volume: &VolumeDescriptor);

    /// Says how many bytes all volumes together may come to hold, from now on. Space is made ready for that.
    fn set_provisioned(&self, _bytes: u64) {}
}

/// What a manager asks of the side that uses volumes.
pub trait VolumeUser {
    /// Ends every client's connection to the volume and detaches it, after the requests in flight.
    fn release(&self, volume: VolumeId) -> LocalBoxFuture<'_, ()>;

    /// How many clients are connected to the volume.
    fn users(&self, volume: VolumeId) -> usize;

    /// Says what a volume was promised from now on, and whether its bursts are spread. Who does not hear it learns it with the
    /// next connection, or attachment.
    fn learn_levels(&self, _volume: &VolumeDescriptor) {}
}

/// A volume as a disk of virtual machines.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// The name of the volume.
    pub volume: String,
    /// The Unix socket where hypervisors connect.
    pub path: PathBuf,
    /// Whether one is connected.
    pub is_connected: bool,
}

/// What a manager asks of the side that serves disks of virtual machines in its process.
pub trait DeviceHost {
    /// Serves a volume at a Unix socket, to hypervisors that speak vhost-user. Nothing happens if it is served there.
    ///
    /// # Errors
    /// `NotFound`: no such volume. `Conflict`: something else is there. `Invalid`, `Full`.
    fn add_device<'a>(&'a self, volume: &'a str, path: &'a Path) -> LocalBoxFuture<'a, Result<()>>;

    /// Ends that, when what is in flight has finished.
    ///
    /// # Errors
    /// `NotFound`
    fn remove_device<'a>(&'a self, path: &'a Path) -> LocalBoxFuture<'a, Result<()>>;

    /// All of them, by path.
    fn devices(&self) -> Vec<Device>;
}

#[cfg(test)]
mod tests {
    use base::{GIB, TIB};

    use super::*;

    #[test]
    fn volumes_have_whole_groups_of_segments() {
        assert_eq!([1, GIB, 128 * GIB].map(segments_for), [4, 4, 4]);
        assert_eq!([128 * GIB + 1, 64 * TIB].map(segments_for), [8, 2048]);
    }
}
