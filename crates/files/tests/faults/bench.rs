//! The rig: a store over the simulated disks of one node, and what its tests write and read.

use std::path::PathBuf;

use base::{AlignedBuf, Bytes, Epoch, Error, FileId, KIB, Result};
use files::local::{self, LocalOptions, OpenReport};
use files::{CreateOptions, FileKind, Redundancy, Store};
use runtime::Handle;
use runtime::sim::{DiskOptions, NodeId, NodeOptions, SimDisk, World};

pub const BLOCK: usize = 4096;

/// A node with disks at `/0`, `/1` and so on, and the folder `levee` on each as a directory of the store.
pub struct Bench {
    pub world: World,
    node: NodeId,
    pub handle: Handle,
    disks: usize,
}

impl Bench {
    pub fn new(seed: u64, disks: usize) -> Bench {
        Bench::with(seed, disks, DiskOptions::default())
    }

    pub fn with(seed: u64, disks: usize, options: DiskOptions) -> Bench {
        let world = World::new(seed);
        let paths = (0..disks).map(|disk| format!("/{disk}"));
        let node = world.add_node(NodeOptions::with_disks(paths, &options));
        let handle = world.start_loop(node);
        Bench { world, node, handle, disks }
    }

    /// Opens with `disks` only, be it all of them or not.
    pub fn options(&self, disks: &[usize]) -> LocalOptions {
        let directories = disks.iter().map(|disk| PathBuf::from(format!("/{disk}/levee"))).collect();
        LocalOptions {
            copies: 2.min(self.disks as u8),
            holder: "levee up, process 7".into(),
            ..LocalOptions::new(directories)
        }
    }

    fn all(&self) -> Vec<usize> {
        (0..self.disks).collect()
    }

    pub fn try_open(&self, options: LocalOptions) -> Result<(Store, OpenReport)> {
        let handle = self.handle.clone();
        self.run(async move { local::open(&handle, options).await })
    }

    /// The store on all disks.
    pub fn open(&self) -> Store {
        self.try_open(self.options(&self.all())).unwrap().0
    }

    pub fn open_with(&self, disks: &[usize]) -> Result<(Store, OpenReport)> {
        self.try_open(self.options(disks))
    }

    /// Why the store does not open.
    pub fn refusal(&self, options: LocalOptions) -> Error {
        self.try_open(options).map(drop).unwrap_err()
    }

    pub fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        self.world.block_on(&self.handle, future)
    }

    /// Kills the process; what it had in flight may land later.
    pub fn restart(&mut self) {
        self.handle = self.world.restart(self.node);
    }

    /// What was not synced is gone.
    pub fn power_loss(&mut self) {
        self.world.power_loss(self.node);
        self.restart();
    }

    pub fn disk(&self, disk: usize) -> SimDisk {
        self.world.disk(self.node, format!("/{disk}"))
    }

    /// Where the copy of `file` on `disk` is, from the disk's root.
    pub fn file_path(&self, store: &Store, file: FileId, disk: usize) -> PathBuf {
        let info = store.info(file).unwrap();
        let prefix = format!("/{disk}/");
        let places = (0..info.copies_wanted).map(|copy| store.locate(file, copy));
        let place = places.into_iter().find(|place| place.starts_with(&prefix)).unwrap();
        PathBuf::from(place.strip_prefix(&prefix).unwrap())
    }
}

/// Options of a data file.
pub fn options(copies: u8) -> CreateOptions {
    CreateOptions {
        kind: FileKind::Data,
        capacity: 64 * KIB,
        redundancy: Redundancy::Copies(copies),
        prepared: false,
        epoch: Epoch(1),
        segment: None,
        claim: files::Claim::Use,
    }
}

/// The same, or those of a journal, which is made of written space.
pub fn maybe_prepared(prepared: bool, copies: u8) -> CreateOptions {
    let kind = if prepared { FileKind::Journal } else { FileKind::Data };
    CreateOptions { kind, prepared, ..options(copies) }
}

pub fn blocks(byte: u8, count: usize) -> Bytes {
    let mut buffer = AlignedBuf::zeroed(count * BLOCK);
    buffer.fill(byte);
    buffer.freeze()
}

/// A data file of four blocks of `byte`.
pub async fn sealed_file(store: Store, copies: u8, byte: u8) -> FileId {
    let mut writer = store.create(options(copies)).await.unwrap();
    writer.append(blocks(byte, 4)).await.unwrap();
    store.seal(writer.id(), 4 * BLOCK as u64).await.unwrap();
    writer.id()
}

/// What such a file holds.
pub async fn read_all(store: Store, file: FileId) -> Vec<u8> {
    store.read(file, 0, 4 * BLOCK).await.unwrap().to_vec()
}

/// The state of each directory, in the order in which they were given.
pub fn states(store: &Store) -> Vec<&'static str> {
    store.statistics().directories.iter().map(|directory| directory.state).collect()
}
