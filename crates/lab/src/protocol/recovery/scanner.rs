//! Runs the recoveries of `engine` over the disks of a state, once for each that is different.

use std::cell::RefCell;
use std::rc::Rc;

use base::{Bytes, Map};
use files::Store;
use runtime::Handle;
use runtime::sim::{NodeOptions, World};

use super::content::Contents;
use super::disk::{Block, Change, Disk};
use super::store::ModelStore;

/// A loop in a world of its own, and what recoveries found on it.
pub(super) struct Scanner<K, T> {
    world: World,
    handle: Handle,
    contents: Rc<RefCell<Contents>>,
    found: RefCell<Found<K, T>>,
}

/// By disk, and by what else a recovery depends on.
type Found<K, T> = Map<(Disk, K), Rc<Scanned<T>>>;

/// What a recovery would change, in order, and what it found.
pub(super) struct Scanned<T> {
    pub(super) changes: Vec<Change>,
    pub(super) found: Result<T, String>,
}

impl<K: Clone + Eq + std::hash::Hash, T: 'static> Scanner<K, T> {
    pub(super) fn new() -> Self {
        let world = World::new(1);
        let node = world.add_node(NodeOptions::default());
        let handle = world.start_loop(node);
        Scanner { world, handle, contents: Rc::new(RefCell::new(Contents::new())), found: RefCell::default() }
    }

    /// What `scan` finds on `disk` and changes there. `scan` depends on `key` and the disk only.
    pub(super) fn scan<F: Future<Output = base::Result<T>> + 'static>(
        &self,
        disk: &Disk,
        copies: usize,
        incarnation: u8,
        key: K,
        scan: impl FnOnce(Handle, Store) -> F,
    ) -> Rc<Scanned<T>> {
        let known = (disk.clone(), key);
        if let Some(found) = self.found.borrow().get(&known) {
            return found.clone();
        }
        let (store, log) = ModelStore::new(&self.contents, disk, incarnation, copies);
        let found = self.world.block_on(&self.handle, scan(self.handle.clone(), store));
        let scanned = Rc::new(Scanned { changes: log.changes(), found: found.map_err(|error| error.message) });
        self.found.borrow_mut().insert(known, scanned.clone());
        scanned
    }

    /// Different disks that were scanned.
    pub(super) fn scans(&self) -> usize {
        self.found.borrow().len()
    }

    /// The numbers of the blocks of `bytes`.
    pub(super) fn blocks(&self, bytes: &Bytes) -> Vec<Block> {
        self.contents.borrow_mut().numbers(bytes)
    }

    /// The number of a block of which only the beginning was written.
    pub(super) fn torn(&self, block: Block) -> Block {
        self.contents.borrow_mut().torn(block)
    }
}
