//! One directory of a store at run time: its state, its superblock, its room and its spares.
//!
//! What each file of a directory is: `lock` is locked by the process that has the store open and says who that is;
//! `superblock` is locked, too, because only the lock of a file that is written to outlives the writes of a killed
//! process (see [`super::open`]); `files` holds the files under the names of [`super::names`].

use std::cell::{Cell, RefCell};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use base::seeded::is_on;
use base::{AlignedBuf, Bytes, DirectoryId};
use runtime::{File, Handle, OpenOptions};

use super::names::Name;
use super::spares::Spares;
use super::superblock::{SLOT, SLOTS, StoreRecord, Superblock};

/// Opens for reading past the page cache.
pub(crate) const READ: OpenOptions =
    OpenOptions { write: false, create: false, exclusive: false, direct: true, dsync: false };
/// Opens for durable writes past the page cache.
pub(crate) const WRITE: OpenOptions = OpenOptions { write: true, dsync: true, ..READ };
/// Makes a file, for durable writes.
pub(crate) const MAKE: OpenOptions = OpenOptions { create: true, exclusive: true, ..WRITE };
/// Makes a file whose writes are made durable together, by a sync.
pub(crate) const MAKE_UNSYNCED: OpenOptions = OpenOptions { dsync: false, ..MAKE };

/// Room that is left to the file system itself: this part of it, but no more than [`MARGIN_MAX`].
const MARGIN_DIVISOR: u64 = 100;
const MARGIN_MAX: u64 = 64 << 20;
/// How often a lock is asked for.
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// What a directory is to the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Read from and written to.
    Member,
    /// About to be a member: everything in it is good, but not every superblock says so yet.
    Joining,
    /// It was away; what it holds is being compared with the members.
    Resynchronizing,
    /// A write to it failed, or it vanished.
    Failed,
    /// It was not there, or empty where a member was expected.
    Missing,
}

/// One directory.
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    pub(crate) id: Cell<DirectoryId>,
    pub(crate) state: Cell<State>,
    pub(crate) space: SpaceCount,
    pub(crate) spares: RefCell<Spares>,
    /// Bytes that a resynchronization still has to look at.
    pub(crate) behind_bytes: Cell<u64>,
    /// A write to it failed, but it holds files that are nowhere else: it gets no new ones.
    pub(crate) suspect: Cell<bool>,
    /// Times that it failed in this life.
    pub(crate) failures: Cell<u32>,
    handle: Handle,
    guards: RefCell<Option<Guards>>,
    /// Files that are getting their name.
    naming: Rc<Cell<u32>>,
    sequence: Cell<u64>,
    next_number: Cell<u64>,
}

/// The open files that say that a directory is in use, for as long as they are open.
pub(crate) struct Guards {
    pub(crate) _lock: File,
    pub(crate) superblock: File,
}

/// A file that is getting its name.
pub(crate) struct Naming(Rc<Cell<u32>>);

impl Drop for Naming {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Room of one directory, in bytes.
#[derive(Default)]
pub(crate) struct SpaceCount {
    /// Free in the file system: as it last said, corrected by what was done since.
    pub(crate) fs_free: Cell<u64>,
    /// Size of the file system.
    pub(crate) fs_total: Cell<u64>,
    /// What its files take up.
    pub(crate) allocated: Cell<u64>,
}

impl SpaceCount {
    /// A file took up `bytes` of the file system.
    pub(crate) fn on_allocated(&self, bytes: u64) {
        self.fs_free.set(self.fs_free.get().saturating_sub(bytes));
    }

    /// A file gave `bytes` back to the file system.
    pub(crate) fn on_released(&self, bytes: u64) {
        self.fs_free.set(self.fs_free.get().saturating_add(bytes));
    }
}

impl Directory {
    /// A directory that is not open yet.
    pub(crate) fn new(handle: &Handle, path: &Path, id: DirectoryId, state: State) -> Self {
        Directory {
            path: path.to_owned(),
            id: Cell::new(id),
            state: Cell::new(state),
            space: SpaceCount::default(),
            spares: RefCell::default(),
            behind_bytes: Cell::new(0),
            suspect: Cell::new(false),
            failures: Cell::new(0),
            handle: handle.clone(),
            guards: RefCell::new(None),
            naming: Rc::default(),
            sequence: Cell::new(0),
            next_number: Cell::new(1),
        }
    }

    /// Puts the open files in place, with the sequence of the superblock that was read.
    pub(crate) fn guard(&self, guards: Guards, sequence: u64) {
        *self.guards.borrow_mut() = Some(guards);
        self.sequence.set(sequence);
    }

    /// Lets go of the open files: the directory failed.
    pub(crate) fn unguard(&self) {
        let guards = self.guards.borrow_mut().take();
        drop(guards);
    }

    /// Whether files are read from and written to it.
    pub(crate) fn is_member(&self) -> bool {
        self.state.get() == State::Member
    }

    /// The folder of its files.
    pub(crate) fn files(&self) -> PathBuf {
        self.path.join("files")
    }

    /// The path of a file.
    pub(crate) fn path_of(&self, name: Name) -> PathBuf {
        self.path.join("files").join(name.to_string())
    }

    /// A number that no temporary name of this directory has.
    pub(crate) fn take_number(&self) -> u64 {
        let number = self.next_number.get();
        self.next_number.set(number + 1);
        number
    }

    /// Notes a number that is in use.
    pub(crate) fn on_number(&self, number: u64) {
        self.next_number.set(self.next_number.get().max(number.saturating_add(1)));
    }

    /// Counts a file that is getting its name, until the result is dropped.
    pub(crate) fn naming(&self) -> Naming {
        self.naming.set(self.naming.get() + 1);
        Naming(self.naming.clone())
    }

    /// Whether a file may still get its name: then what is in the directory is not certain.
    pub(crate) fn is_naming(&self) -> bool {
        self.naming.get() > 0
    }

    /// Makes the names of its files durable. An error where the disk was away since the directory was guarded, be it
    /// for a moment: what was changed before that may be lost, and a sync of what is there now does not see it.
    pub(crate) async fn sync_names(&self) -> io::Result<()> {
        self.handle.sync_directory(&self.files()).await?;
        // Whatever is in it: what was opened before the disk went cannot be read. One slot that has rotted says nothing.
        let guard = self.open_superblock()?;
        match guard.read_up_to(0, SLOT as usize).await {
            Ok(_) => Ok(()),
            Err(_) => guard.read_up_to(SLOT, SLOT as usize).await.map(drop),
        }
    }

    /// The superblock as it was opened when the directory was guarded.
    fn open_superblock(&self) -> io::Result<File> {
        let file = self.guards.borrow().as_ref().map(|guards| guards.superblock.clone());
        file.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the directory is not there any more"))
    }

    /// Writes what the store's directories agree on, durably.
    pub(crate) async fn publish(&self, record: &StoreRecord) -> io::Result<()> {
        let file = self.open_superblock()?;
        let sequence = self.sequence.get() + 1;
        let superblock = Superblock { sequence, directory: self.id.get(), record: record.clone() };
        file.write_at(Superblock::slot_offset(sequence), aligned(&superblock.encode())).await?;
        // After an error this slot holds nobody knows what: the next try goes there again, not to the good one.
        self.sequence.set(sequence);
        Ok(())
    }

    /// What its file system has free, less a margin.
    pub(crate) fn unclaimed(&self) -> u64 {
        let margin = (self.space.fs_total.get() / MARGIN_DIVISOR).min(MARGIN_MAX);
        self.space.fs_free.get().saturating_sub(margin)
    }

    /// What its spares take up.
    pub(crate) fn spare_bytes(&self) -> u64 {
        self.spares.borrow().bytes()
    }

    /// Asks the file system for its room.
    pub(crate) async fn refresh_space(&self) -> io::Result<()> {
        let space = self.handle.space(&self.path).await?;
        self.space.fs_free.set(space.free);
        self.space.fs_total.set(space.total);
        Ok(())
    }

    /// Whether it is still there under its path, and was all the time: a disk that was unmounted leaves an empty
    /// folder behind, and the open files go on without a name; one that came back left them dead.
    pub(crate) async fn check_presence(&self) -> io::Result<()> {
        let gone = || io::Error::new(io::ErrorKind::NotFound, "the directory is not there any more");
        let guard = self.open_superblock()?;
        let named = self.handle.open(&self.path.join("superblock"), READ).await?;
        for file in [guard, named] {
            match Superblock::choose(&file.read_up_to(0, (SLOT * SLOTS) as usize).await?) {
                Ok(found) if found.record.directory == self.id.get() => {}
                _ => return Err(gone()),
            }
        }
        Ok(())
    }
}

/// Takes the lock of `file`, asking for at most `wait`: the writes of a killed process hold it until they are done.
pub(crate) async fn lock_within(handle: &Handle, file: &File, wait: Duration) -> io::Result<bool> {
    let deadline = handle.now() + wait;
    loop {
        if is_on("locks-not-taken") || file.try_lock().await? {
            return Ok(true);
        }
        if handle.now() >= deadline {
            return Ok(false);
        }
        handle.sleep(LOCK_INTERVAL).await;
    }
}

/// A copy of `bytes` that can be written past the page cache.
pub(crate) fn aligned(bytes: &[u8]) -> Bytes {
    AlignedBuf::copy_of(bytes).freeze()
}
