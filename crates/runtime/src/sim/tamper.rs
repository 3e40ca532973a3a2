//! What a test does to a disk behind the back of those who use it: look at it, break it, swap it.

use std::cell::RefCell;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::disk::{Disk, DiskCounters, DiskId, Fault, FaultPlan};
use super::namespace::{InodeId, Namespace};
use super::state::State;
use super::{NodeId, World};

/// A disk of the world, for the test that breaks it. Paths are below the disk's mount, such as `journal/0`.
#[derive(Clone)]
pub struct SimDisk {
    state: Rc<RefCell<State>>,
    id: DiskId,
}

/// A copy of a whole disk, as everybody sees it now. Cheap to take: pages are shared until they change.
#[derive(Clone, Debug)]
pub struct DiskSnapshot(Namespace);

impl World {
    /// The disk of `node` that is mounted at `path`.
    pub fn disk(&self, node: NodeId, path: impl AsRef<Path>) -> SimDisk {
        let path = path.as_ref();
        let state = self.0.state.borrow();
        let mount = state.nodes[node.0].mounts.iter().find(|(mount, _)| mount == path);
        let (_, id) = *mount.unwrap_or_else(|| panic!("no disk is mounted at {}", path.display()));
        SimDisk { state: self.0.state.clone(), id }
    }
}

/// Looking.
impl SimDisk {
    /// The files that have a name, with their lengths in bytes, sorted.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        self.with(|disk| {
            let files = disk.names.files().into_iter();
            files.map(|(path, id)| (PathBuf::from(path), disk.names.file(id).content.size())).collect()
        })
    }

    /// The whole content of a file, as everybody sees it now.
    pub fn content(&self, path: impl AsRef<Path>) -> Vec<u8> {
        self.with_file(path, |disk, id, _| {
            let content = &disk.names.file(id).content;
            let mut bytes = vec![0; content.size() as usize];
            content.read(0, &mut bytes);
            bytes
        })
    }

    /// What it did so far.
    pub fn counters(&self) -> DiskCounters {
        self.with(|disk| disk.counters)
    }

    /// Bytes of room in use.
    pub fn used(&self) -> u64 {
        self.with(|disk| disk.used())
    }

    /// The same, counted file by file.
    #[cfg(test)]
    pub(super) fn counted(&self) -> u64 {
        self.with(|disk| disk.occupied())
    }
}

/// Breaking.
impl SimDisk {
    /// Makes `fault` happen to the next `count` operations that it fits.
    pub fn inject(&self, fault: Fault, count: u64) {
        self.with(|disk| disk.inject(fault, None, count));
    }

    /// Makes `fault` happen to the next `count` operations on this file (or directory) that it fits.
    pub fn inject_on(&self, path: impl Into<PathBuf>, fault: Fault, count: u64) {
        self.with(|disk| disk.inject(fault, Some(path.into()), count));
    }

    /// Whether a fault that was injected has not happened yet.
    pub fn has_injections(&self) -> bool {
        self.with(|disk| disk.has_injections())
    }

    /// Ends the injected faults that have not happened yet.
    pub fn stop_injections(&self) {
        self.with(Disk::stop_injections);
    }

    /// Replaces the plan of what goes wrong by itself.
    pub fn set_faults(&self, plan: FaultPlan) {
        self.with(|disk| disk.options.faults = plan);
    }

    /// Makes everything take `factor` times as long; 1 ends it.
    pub fn set_slowness(&self, factor: u64) {
        assert!(factor > 0, "a disk is not infinitely fast");
        self.with(|disk| disk.slowness = factor);
    }

    /// Changes the room, in bytes. Below what is in use, the disk is full.
    pub fn set_capacity(&self, bytes: u64) {
        self.with(|disk| disk.options.capacity = bytes);
    }

    /// Writes over bytes of a file, on the medium and in every cache, unnoticed.
    pub fn overwrite(&self, path: impl AsRef<Path>, offset: u64, bytes: &[u8]) {
        self.with_file(path, |disk, id, _| disk.names.file_mut(id).content.poke(offset, bytes));
    }

    /// Flips one bit of a file.
    pub fn flip_bit(&self, path: impl AsRef<Path>, offset: u64, bit: u32) {
        self.with_file(path, |disk, id, _| {
            let content = &mut disk.names.file_mut(id).content;
            let mut byte = [0];
            assert_eq!(content.read(offset, &mut byte), 1, "the bit lies within the file");
            content.poke(offset, &[byte[0] ^ (1 << bit)]);
        });
    }

    /// Fills a range of a file with random bytes.
    pub fn corrupt(&self, path: impl AsRef<Path>, range: Range<u64>) {
        self.with_file(path, |disk, id, prng| {
            let mut noise = vec![0; (range.end - range.start) as usize];
            prng.fill(&mut noise);
            disk.names.file_mut(id).content.poke(range.start, &noise);
        });
    }
}

/// Swapping.
impl SimDisk {
    /// A copy of everything that is on it.
    pub fn snapshot(&self) -> DiskSnapshot {
        self.with(|disk| DiskSnapshot(disk.names.copy()))
    }

    /// Replaces everything by an older copy, or by that of another disk. Files that are open are dead from here on.
    pub fn restore(&self, snapshot: &DiskSnapshot) {
        self.with(|disk| disk.replace(snapshot.0.copy()));
    }

    /// Replaces everything by nothing. Files that are open are dead from here on.
    pub fn erase(&self) {
        self.with(|disk| disk.replace(Namespace::new()));
    }

    /// Pulls the disk: operations on open files end with EIO, nothing can be opened. Of what was not synced, some is
    /// there when it returns, as after a power loss.
    pub fn vanish(&self) {
        self.state.borrow_mut().lose_disk(self.id);
    }

    /// Plugs the disk in again. Files that were open when it vanished stay dead. With [`SimDisk::restore`] or
    /// [`SimDisk::erase`] before, it returns as another one.
    pub fn come_back(&self) {
        self.with(|disk| disk.present = true);
    }

    fn with<T>(&self, act: impl FnOnce(&mut Disk) -> T) -> T {
        act(&mut self.state.borrow_mut().storage.disks[self.id.0])
    }

    fn with_file<T>(&self, path: impl AsRef<Path>, act: impl FnOnce(&mut Disk, InodeId, &mut base::Prng) -> T) -> T {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let disk = &mut state.storage.disks[self.id.0];
        let path = path.as_ref();
        let id = disk.names.find_file(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        act(disk, id, &mut state.prng)
    }
}
