//! Files on disks as a value: what a recovery finds, and what it changes one step after the other.

use base::{BLOCK, Epoch, FileId, Incarnation};
use files::{FileInfo, FileKind};

use crate::protocol::small_set::SmallSet;

/// Copies at most.
pub(super) const COPIES_MAX: usize = 2;
/// Blocks of a file at most.
pub(super) const BLOCKS_MAX: usize = 8;

/// The number of a content of 4 KiB: see [`super::content::Contents`].
pub(super) type Block = u16;

/// Every file.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct Disk {
    /// By id.
    pub(super) files: Vec<File>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct File {
    pub(super) id: u8,
    pub(super) kind: FileKind,
    pub(super) incarnation: u8,
    /// Blocks that it may have.
    pub(super) capacity: u8,
    pub(super) copies: [Option<Copy>; COPIES_MAX],
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Copy {
    /// Blocks up to its end.
    pub(super) sealed: Option<u8>,
    pub(super) blocks: [Block; BLOCKS_MAX],
}

/// A change of one copy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Change {
    Write { file: u8, copy: u8, at: u8, block: Block },
    Seal { file: u8, copy: u8, length: u8 },
    Delete { file: u8, copy: u8 },
}

impl Disk {
    /// A new file, empty.
    pub(super) fn create(&mut self, id: u8, kind: FileKind, incarnation: u8, capacity: u8, copies: usize) {
        let empty = Copy { sealed: None, blocks: [0; BLOCKS_MAX] };
        let copies = [0, 1].map(|copy| (copy < copies).then_some(empty));
        self.files.push(File { id, kind, incarnation, capacity, copies });
    }

    pub(super) fn file(&self, id: u8) -> Option<&File> {
        self.files.iter().find(|file| file.id == id)
    }

    pub(super) fn copy_mut(&mut self, id: u8, copy: u8) -> Option<&mut Copy> {
        self.files.iter_mut().find(|file| file.id == id)?.copies[copy as usize].as_mut()
    }

    pub(super) fn apply(&mut self, change: Change) {
        match change {
            Change::Write { file, copy, at, block } => {
                if let Some(copy) = self.copy_mut(file, copy) {
                    copy.blocks[at as usize] = block;
                }
            }
            Change::Seal { file, copy, length } => {
                if let Some(copy) = self.copy_mut(file, copy) {
                    copy.sealed = Some(length);
                }
            }
            Change::Delete { file, copy } => self.drop_copy(file, copy),
        }
    }

    fn drop_copy(&mut self, file: u8, copy: u8) {
        if let Some(file) = self.files.iter_mut().find(|other| other.id == file) {
            file.copies[copy as usize] = None;
        }
        self.files.retain(|file| file.copies.iter().any(Option::is_some));
    }

    /// Whether something is in a directory only. The file layer does not go on without it then, unless a person says so.
    pub(super) fn needs(&self, copy: usize) -> bool {
        self.files.iter().any(|file| file.present() == SmallSet::of(copy))
    }

    /// A directory is gone for good: so are the copies in it.
    pub(super) fn lose(&mut self, copy: u8) {
        self.files.iter_mut().for_each(|file| file.copies[copy as usize] = None);
        self.files.retain(|file| file.copies.iter().any(Option::is_some));
    }

    /// What a start of the file layer does first (`files::local::open`: `adopt`, `finish`): a seal that reached one
    /// copy is completed in the other.
    pub(super) fn open(&mut self) {
        for file in &mut self.files {
            let Some(length) = file.sealed() else { continue };
            file.copies.iter_mut().flatten().for_each(|copy| copy.sealed = Some(length));
        }
    }
}

impl File {
    /// The copies that there are.
    pub(super) fn present(&self) -> SmallSet {
        (0..COPIES_MAX).filter(|copy| self.copies[*copy].is_some()).collect()
    }

    /// Blocks up to its end.
    pub(super) fn sealed(&self) -> Option<u8> {
        self.copies.iter().flatten().find_map(|copy| copy.sealed)
    }

    /// What the engine sees of it.
    pub(super) fn info(&self, copies_wanted: usize) -> FileInfo {
        FileInfo {
            id: FileId(self.id.into()),
            kind: self.kind,
            incarnation: Incarnation(self.incarnation.into()),
            epoch: Epoch(1),
            segment: None,
            capacity: u64::from(self.capacity) * BLOCK,
            sealed: self.sealed().map(|length| u64::from(length) * BLOCK),
            copies: self.present().len() as u8,
            copies_wanted: copies_wanted as u8,
        }
    }
}
