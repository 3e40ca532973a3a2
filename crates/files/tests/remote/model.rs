//! What lives were told.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use base::{AlignedBuf, BLOCK, FileId, Incarnation};

/// See the module.
#[derive(Default)]
pub struct Model {
    /// Every file of which somebody was told that it was created.
    pub files: RefCell<BTreeMap<FileId, Known>>,
    /// Lives of which somebody was told that they are over.
    pub fenced: RefCell<BTreeSet<Incarnation>>,
    /// Lives that somebody wants to end.
    pub fencing: RefCell<BTreeSet<Incarnation>>,
    /// What a copy of a file had when the fence of its life stood.
    pub left: RefCell<BTreeMap<(FileId, u8), AlignedBuf>>,
    pub confirmed: Cell<u64>,
    pub failed: Cell<u64>,
    pub refused: Cell<u64>,
    pub full: Cell<u64>,
    pub lives: Cell<u64>,
    next: Cell<u64>,
    is_stopped: Cell<bool>,
}

/// A file.
#[derive(Clone, Debug)]
pub struct Known {
    pub life: Incarnation,
    /// Blocks whose appends were confirmed, by index: each has a number of its own.
    pub confirmed: BTreeMap<u64, u64>,
    /// The length of a seal that was confirmed.
    pub sealed: Option<u64>,
    /// Whether somebody has asked for its deletion, and was told that it is done.
    pub is_to_be_deleted: bool,
    pub is_deleted: bool,
    pub is_data: bool,
}

impl Model {
    pub fn stop(&self) {
        self.is_stopped.set(true);
    }

    pub fn is_stopped(&self) -> bool {
        self.is_stopped.get()
    }

    /// A number that no block has.
    pub fn number(&self) -> u64 {
        self.next.set(self.next.get() + 1);
        self.next.get()
    }

    pub fn is_over(&self, life: Incarnation) -> bool {
        self.fenced.borrow().contains(&life)
    }
}

pub fn count(cell: &Cell<u64>) {
    cell.set(cell.get() + 1);
}

/// A block with this number.
pub fn block(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK as usize / 8)
}

impl Known {
    /// Compares what was confirmed with what is there, from the file's beginning on.
    pub fn check(&self, content: &[u8], what: &str) {
        for (index, number) in &self.confirmed {
            let found = content.get((index * BLOCK) as usize..((index + 1) * BLOCK) as usize);
            let is_there = found.is_some_and(|found| found.chunks(8).all(|word| word == number.to_le_bytes()));
            assert!(is_there, "{what}: block {index} was confirmed and is gone");
        }
    }
}
