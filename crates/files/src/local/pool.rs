//! Space for new files: fallocated, or prepared so that a durable append touches no file-system metadata.
//!
//! **Prepared** space was written once: with zeros, or by a file that was deleted. It waits among the [`super::spares`]
//! of its directory, which are bounded and give way when other files need the room. While journal files of a capacity
//! are being created, spares of it are zero-written in the background, ahead of need, as many as there are such
//! files, but not more than [`READY_BYTES_MAX`] unless one is more. A prepared data file gets what another one left, or
//! what was zero-written while nobody wanted the store ([`super::ready`]), or else space that is only allocated; who makes
//! one may ask first which capacities are there.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use base::buffer;
use base::seeded::is_on;
use base::{Bytes, GIB, KIB, MIB, Set};
use runtime::{Class, File, OpenOptions};

use super::Local;
use super::directory::{Directory, MAKE, MAKE_UNSYNCED, WRITE, lock_within};
use super::header::HEADER;
use super::names::{Name, SpareKind};
use super::spares::WRITTEN_PER_CAPACITY_MAX;
use super::wait::Pace;
use crate::FileKind;

/// Bytes of one capacity that are zero-written ahead of need.
const READY_BYTES_MAX: u64 = 256 * MIB;
/// One write of zeros while somebody waits for them.
const ZEROS_URGENT: u64 = MIB;
/// One write of zeros in the background: short, so that a foreground write does not wait long behind it.
const ZEROS_GENTLE: u64 = 128 * KIB;
/// Bytes of allocated spares that are kept in a directory however little its files take up, if there is room.
const ALLOCATED_SPARES_MIN: u64 = GIB;

/// How long a spare may stay locked by what its last file still had in flight.
pub(crate) const RECYCLE_WAIT: Duration = Duration::from_millis(100);

/// Space in a directory that has no file yet.
pub(crate) struct Vacancy {
    /// Its name so far.
    pub(crate) name: Name,
    /// Open for durable writes, and locked.
    pub(crate) file: File,
}

/// What is being zero-written now.
#[derive(Default)]
pub(crate) struct Preparing(RefCell<Set<(u128, u64)>>);

impl Local {
    /// Space for a file of `capacity` in `directory`, as fast as it can be had.
    pub(crate) async fn vacancy(
        self: &Rc<Self>,
        directory: &Rc<Directory>,
        kind: FileKind,
        capacity: u64,
        prepared: bool,
    ) -> io::Result<Vacancy> {
        if !prepared {
            self.make_room(directory, HEADER + capacity).await?;
            return self.make_allocated(directory, capacity, MAKE).await;
        }
        let spare = SpareKind::of(kind);
        loop {
            let taken = directory.spares.borrow_mut().take(spare, capacity);
            let Some(name) = taken else { break };
            let file = self.handle.open(&directory.path_of(name), durable()).await?;
            if lock_within(&self.handle, &file, RECYCLE_WAIT).await? {
                return Ok(Vacancy { name, file });
            }
            // Somebody still writes to it. It goes; nobody will read what is written.
            self.handle.remove(&directory.path_of(name)).await?;
            directory.space.on_released(HEADER + capacity);
        }
        self.make_room(directory, HEADER + capacity).await?;
        if spare == SpareKind::Allocated {
            return self.make_allocated(directory, capacity, MAKE).await;
        }
        let name = self.make_zeroed(directory, kind, capacity, None).await?;
        let file = self.handle.open(&directory.path_of(name), durable()).await?;
        match lock_within(&self.handle, &file, RECYCLE_WAIT).await? {
            true => Ok(Vacancy { name, file }),
            false => Err(io::Error::from(io::ErrorKind::WouldBlock)),
        }
    }

    /// Space that is only set aside, opened as `how` says, and locked.
    pub(crate) async fn make_allocated(
        &self,
        directory: &Directory,
        capacity: u64,
        how: OpenOptions,
    ) -> io::Result<Vacancy> {
        let how = OpenOptions { create: true, exclusive: true, ..how };
        let name = Name::Making(directory.take_number());
        let path = directory.path_of(name);
        let file = self.handle.open(&path, how).await?;
        let made = async {
            match file.try_lock().await? {
                true => allocate(&file, capacity).await,
                false => Err(io::Error::from(io::ErrorKind::WouldBlock)),
            }
        };
        match made.await {
            Ok(()) => {
                directory.space.on_allocated(HEADER + capacity);
                Ok(Vacancy { name, file })
            }
            Err(error) => {
                drop(self.handle.remove(&path).await);
                Err(error)
            }
        }
    }

    /// Zero-writes space; the zeros are durable when it returns. `pace` is how fast, if nobody waits for it.
    async fn make_zeroed(
        &self,
        directory: &Directory,
        kind: FileKind,
        capacity: u64,
        mut pace: Option<Pace>,
    ) -> io::Result<Name> {
        let name = Name::Making(directory.take_number());
        let path = directory.path_of(name);
        let file = self.handle.open(&path, MAKE_UNSYNCED).await?;
        directory.space.on_allocated(HEADER + capacity);
        let step = if pace.is_some() { ZEROS_GENTLE } else { ZEROS_URGENT };
        let zeros = buffer::zeros(step as usize);
        let written = async {
            allocate(&file, capacity).await?;
            let end = HEADER + capacity;
            let mut offset = 0;
            while offset < end {
                if let Some(pace) = &mut pace {
                    pace.spend(step).await;
                }
                let part: Bytes = zeros.slice(..step.min(end - offset) as usize);
                let len = part.len() as u64;
                self.counters.on_written(kind as usize, len);
                if pace.is_some() {
                    self.counters.on_background(0, len);
                }
                file.write_at(offset, part).await?;
                offset += len;
            }
            file.sync().await
        };
        match written.await {
            Ok(()) => Ok(name),
            Err(error) => {
                directory.space.on_released(HEADER + capacity);
                drop(self.handle.remove(&path).await);
                Err(error)
            }
        }
    }

    /// Removes spares until `bytes` fit, the unfinished one and then those of the largest capacity first.
    async fn make_room(&self, directory: &Directory, bytes: u64) -> io::Result<()> {
        loop {
            let limit = self.options.capacity.map(|capacity| {
                let copies = self.copies_effective() as u64;
                capacity.saturating_mul(copies).saturating_sub(self.allocated_bytes() + self.spare_bytes())
            });
            let fits = directory.unclaimed() >= bytes && limit.is_none_or(|free| free >= bytes);
            if fits {
                return Ok(());
            }
            let Some((name, capacity)) = self.take_spare_for_room(directory).await else { return Ok(()) };
            self.handle.remove(&directory.path_of(name)).await?;
            directory.space.on_released(HEADER + capacity);
        }
    }

    /// Has spares of `capacity` made in every member, if fewer are ready than are wanted.
    pub(crate) fn prepare_ahead(self: &Rc<Self>, kind: FileKind, capacity: u64) {
        for directory in self.members() {
            let key = (directory.id.get().0, capacity);
            if ready(&directory, capacity) < self.spares_wanted(capacity) && self.preparing.0.borrow_mut().insert(key) {
                let weak = self.this.clone();
                let task = async move {
                    while let Some(local) = weak.upgrade()
                        && ready(&directory, capacity) < local.spares_wanted(capacity)
                        && local.prepare_one(&directory, kind, capacity).await
                    {}
                    if let Some(local) = weak.upgrade() {
                        local.preparing.0.borrow_mut().remove(&key);
                    }
                };
                self.handle.spawn(Class::Background, "files: prepare", task).detach();
            }
        }
    }

    /// How many spares of a capacity are to be ready: as many as there are files of it.
    fn spares_wanted(&self, capacity: u64) -> usize {
        let is_alike = |entry: &&Rc<super::catalogue::Entry>| {
            entry.prepared && entry.capacity == capacity && SpareKind::of(entry.kind) == SpareKind::Written
        };
        let in_use = self.catalogue.all().iter().filter(is_alike).count();
        let most = (READY_BYTES_MAX / capacity).clamp(1, WRITTEN_PER_CAPACITY_MAX as u64);
        in_use.clamp(1, most as usize)
    }

    /// Makes one spare in the background. False if that is not to be repeated.
    async fn prepare_one(&self, directory: &Rc<Directory>, kind: FileKind, capacity: u64) -> bool {
        let plenty = self.space().free / 4 >= capacity;
        if !directory.is_member() || !plenty || self.unclaimed(directory) < 4 * capacity {
            return false;
        }
        let failures = directory.failures.get();
        let pace = Pace::new(&self.handle, self.options.prepare_bytes_per_sec);
        let made = match self.make_zeroed(directory, kind, capacity, Some(pace)).await {
            // What was made before a failure is gone, or will be.
            Ok(_) if directory.failures.get() != failures => return false,
            Ok(name) => self.keep(directory, name, SpareKind::of(kind), capacity).await,
            Err(error) => Err(error),
        };
        match made {
            Ok(kept) => kept,
            Err(error) => {
                // Nobody waits for it: the next file to be created finds out what is wrong with the directory.
                tracing::warn!("preparing space in {} failed: {error}", directory.path.display());
                false
            }
        }
    }

    /// Turns a file or finished space into a spare, or removes it where there are enough. The name it had is gone, but
    /// not durably yet. False if it was removed.
    pub(crate) async fn keep(
        &self,
        directory: &Rc<Directory>,
        name: Name,
        kind: SpareKind,
        capacity: u64,
    ) -> io::Result<bool> {
        let path = directory.path_of(name);
        if directory.spares.borrow().is_enough(kind, capacity) {
            self.handle.remove(&path).await?;
            directory.space.on_released(HEADER + capacity);
            return Ok(false);
        }
        let (number, failures) = (directory.take_number(), directory.failures.get());
        self.handle.rename(&path, &directory.path_of(Name::Spare(kind, number))).await?;
        // A name that is not durable must not be given away: a crash would bring the file of before back under its
        // old name, with the header of the next one.
        directory.sync_names().await?;
        if directory.failures.get() != failures {
            return Ok(true);
        }
        directory.spares.borrow_mut().add(kind, capacity, number);
        loop {
            let limit = self.allocated_spares_max(directory);
            let surplus = directory.spares.borrow_mut().take_surplus(kind, limit);
            let Some((name, capacity)) = surplus else { return Ok(true) };
            self.handle.remove(&directory.path_of(name)).await?;
            directory.space.on_released(HEADER + capacity);
        }
    }

    /// Most bytes of allocated spares in a directory: in proportion to what its files take up, so that what is deleted
    /// for good comes free for others, or what is to be ready, and no more than half of what is left.
    fn allocated_spares_max(&self, directory: &Directory) -> u64 {
        let in_use = directory.space.allocated.get();
        (in_use / 2).max(ALLOCATED_SPARES_MIN).max(self.ready_target(directory)).min(self.room(directory) / 2)
    }
}

/// Opens prepared space, for durable writes.
fn durable() -> OpenOptions {
    OpenOptions { dsync: !is_on("append-not-dsync"), ..WRITE }
}

/// Spares of `capacity` that a journal could use at once.
fn ready(directory: &Directory, capacity: u64) -> usize {
    directory.spares.borrow().count(SpareKind::Written, capacity)
}

/// Reserves the blocks of a file; where the file system cannot, gives it its length only.
pub(crate) async fn allocate(file: &File, capacity: u64) -> io::Result<()> {
    match file.allocate(0, HEADER + capacity).await {
        Err(error) if error.kind() == io::ErrorKind::Unsupported => file.set_len(HEADER + capacity).await,
        result => result,
    }
}
