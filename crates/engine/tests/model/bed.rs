//! What the engine's files lie on, and what outlives its lives: memory, or directories on simulated disks.

use std::path::PathBuf;
use std::time::Duration;

use base::{BLOCK, FileId, Prng, Result};
use files::local::{self, LocalOptions};
use files::memory::{AppendFault, Memory, MemoryOptions};
use files::{FileInfo, FileKind, Store};
use policies::ready::ReadySettings;
use runtime::Handle;
use runtime::sim::{DiskOptions, Fault, NodeId, NodeOptions, SimDisk, World};

use super::scenario::Settings;

/// Most blocks of a file that are made bad at a time.
const BAD_BLOCKS: u64 = 8;

/// Where the files are.
#[derive(Clone)]
pub enum Bed {
    /// The file layer as a state machine.
    Memory(Memory),
    /// Directories, one per disk.
    Local(Vec<(PathBuf, SimDisk)>),
}

impl Bed {
    /// A bed for a world of these settings, and the node that it stands on.
    pub fn new(world: &World, settings: &Settings, prng: &mut Prng) -> (Bed, NodeId) {
        if settings.local {
            let paths: Vec<PathBuf> = (0..settings.directories).map(|i| format!("/disk{i}").into()).collect();
            let disk = DiskOptions { capacity: settings.capacity, ..DiskOptions::default() };
            let node = world.add_node(NodeOptions::with_disks(paths.clone(), &disk));
            let disks = paths.into_iter().map(|path| (path.join("levee"), world.disk(node, path)));
            return (Bed::Local(disks.collect()), node);
        }
        let options = MemoryOptions {
            capacity: settings.capacity,
            directories: settings.directories,
            latency_ns: settings.latency_ns.clone(),
        };
        let node = world.add_node(NodeOptions::default());
        (Bed::Memory(Memory::new(prng.next_u64(), options)), node)
    }

    /// Starts the next life of the store.
    ///
    /// # Errors
    /// Those of [`local::open`].
    pub async fn open(&self, handle: &Handle, copies: u8) -> Result<Store> {
        match self {
            Bed::Memory(memory) => Ok(memory.open(handle)),
            Bed::Local(disks) => {
                let directories = disks.iter().map(|(path, _)| path.clone()).collect();
                let ready = ReadySettings { quiet: Duration::from_micros(100), ..ReadySettings::default() };
                let options =
                    LocalOptions { copies, resync_bytes_per_sec: 1 << 30, ready, ..LocalOptions::new(directories) };
                Ok(local::open(handle, options).await?.0)
            }
        }
    }

    /// The process is killed.
    pub fn kill(&self, world: &World, node: NodeId) {
        if let Bed::Memory(memory) = self {
            memory.kill();
        }
        world.kill(node);
    }

    /// The machine loses its power.
    pub fn power_loss(&self, world: &World, node: NodeId) {
        if let Bed::Memory(memory) = self {
            memory.power_loss();
        }
        world.power_loss(node);
    }

    /// Something fails once or twice: an append, a read, a sync; or a disk is slow from now on. Gives its name.
    pub fn fail(&self, files: &[FileInfo], prng: &mut Prng) -> &'static str {
        let count = prng.between(1, 2);
        match self {
            Bed::Memory(memory) => {
                if prng.one_in(3) && !files.is_empty() {
                    // In every copy, until the life ends.
                    let (id, range) = some_range(prng.pick(files), prng);
                    memory.fail_reads(id, None, range);
                    return "read_faults";
                }
                let kinds = [None, Some(FileKind::Journal), Some(FileKind::Transaction), Some(FileKind::Data)];
                let kind = *prng.pick(&kinds);
                let fault = *prng.pick(&[AppendFault::Lost, AppendFault::Torn, AppendFault::Landed]);
                memory.fail_appends(kind, count as usize, fault);
                "write_faults"
            }
            Bed::Local(disks) => {
                let (_, disk) = prng.pick(disks);
                match prng.below(6) {
                    0 | 1 => disk.inject(Fault::WriteError, count),
                    2 => disk.inject(Fault::SyncError, count),
                    3 => {
                        disk.inject(Fault::Slow, 3 * count);
                        return "slow_faults";
                    }
                    4 => {
                        disk.set_slowness(prng.between(2, 50));
                        return "slow_faults";
                    }
                    _ => {
                        disk.inject(Fault::ReadError, count);
                        return "read_faults";
                    }
                }
                "write_faults"
            }
        }
    }

    /// Faults that were asked for and did not happen yet will not, and disks are quick again.
    pub fn end_faults(&self) {
        match self {
            Bed::Memory(memory) => memory.clear_faults(),
            Bed::Local(disks) => disks.iter().for_each(|(_, disk)| {
                disk.stop_injections();
                disk.set_slowness(1);
            }),
        }
    }

    /// In one copy of some file, a few blocks rot or cannot be read, or the copy is gone. Which one of two goes bad
    /// depends on the file only, so that the other one is always good.
    pub fn spoil(&self, store: &Store, prng: &mut Prng) -> bool {
        let Bed::Memory(memory) = self else { return false };
        let files = store.list();
        if files.is_empty() {
            return false;
        }
        let file = prng.pick(&files);
        let (id, range) = some_range(file, prng);
        let copy = bad_copy(id);
        match prng.below(12) {
            0..=3 => memory.fail_reads(id, Some(copy), range),
            4 if file.sealed.is_some() => memory.drop_copy(id, copy),
            _ => memory.corrupt(id, copy, range),
        }
        true
    }

    /// A few blocks of a data file rot in all copies, for good: their content is lost.
    pub fn lose(&self, store: &Store, prng: &mut Prng) -> bool {
        let Bed::Memory(memory) = self else { return false };
        let files: Vec<FileInfo> = store.list().into_iter().filter(|file| file.kind == FileKind::Data).collect();
        if files.is_empty() {
            return false;
        }
        let file = prng.pick(&files);
        let (id, range) = some_range(file, prng);
        (0..file.copies_wanted).for_each(|copy| memory.corrupt(id, copy, range.clone()));
        true
    }
}

fn bad_copy(file: FileId) -> u8 {
    (Prng::new(file.0).next_u64() & 1) as u8
}

/// Some blocks of a file, in the part of it that is likely written.
fn some_range(file: &FileInfo, prng: &mut Prng) -> (FileId, std::ops::Range<u64>) {
    let blocks = file.sealed.unwrap_or(file.capacity).div_ceil(BLOCK).max(1);
    let first = match prng.one_in(2) {
        true => prng.below(blocks),
        // Near its beginning: files are large, and seldom full.
        false => prng.below(blocks.min(16)),
    };
    let end = blocks.min(first + prng.between(1, BAD_BLOCKS));
    (file.id, first * BLOCK..end * BLOCK)
}
