//! Work on copies that nobody waits for: directories that come back, copies that are missing.
//!
//! **A directory that was away** is never read before it has been resynchronized: each of its sealed files that the
//! members have, too, is compared with theirs and attached to the file, so that from then on a deletion reaches it;
//! everything else in it is removed. Only then does it become a member, in a new generation. If it was left behind
//! by a start without missing directories and holds files that were born nowhere else, a person has to decide: it
//! stays out.
//!
//! A sealed file does not change. So where the copies differ, one of them rotted, and nothing here can tell which:
//! both stay as they are, and the caller, who verifies what it reads, finds the good one and repairs the other. To
//! overwrite one with the other could destroy the last good copy. What cannot be read at all is written again. The
//! members' copy, which was there all the time, is read first.
//!
//! **A missing copy** of a sealed file is written to another directory, under a temporary name until it is complete.
//! Files that are still written to get their missing copies after they are sealed, which whoever writes to them does soon: he is
//! told that a directory has joined.
//!
//! Both go in the background, at a set pace, one file at a time; who deletes a file does not wait for its copying.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use base::seeded::is_on;
use base::{AlignedBuf, BLOCK, MIB};
use runtime::sync::Event;
use runtime::{Class, File};

use super::Local;
use super::access::is_full;
use super::agreement;
use super::catalogue::{Copy, Entry};
use super::directory::{Directory, MAKE_UNSYNCED, READ, State, WRITE, aligned};
use super::guard::{Guarded, Probe, probe_directory};
use super::header::{Birth, HEADER, Header};
use super::names::Name;
use super::pool::{Vacancy, allocate};
use super::space::plan_placement;
use super::wait::{Pace, both};

/// Bytes that are compared or copied in one step.
const STEP: u64 = MIB;
/// Files that are looked at between two yields.
const LOOKS_PER_STEP: usize = 32;
/// How long a directory that is away is left alone at first; doubled with each failure.
const WATCH_INTERVAL: Duration = Duration::from_secs(15);
const WATCH_DOUBLINGS_MAX: u32 = 8;

/// Which of these works are going on.
#[derive(Default)]
pub(crate) struct Resync {
    repairing: Cell<bool>,
    repair_wanted: Cell<bool>,
    /// The last look found no file that lacks a copy, and no directory has come or gone since.
    complete: Cell<bool>,
    watching: Cell<bool>,
    /// A directory has become a member that was none.
    pub(crate) joined: Event,
}

impl Resync {
    /// Whether every file has the copies that it can have.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete.get()
    }
}

/// Missing copies.
impl Local {
    /// Looks for missing copies in the background: a directory came or went, or a file that lacks one was sealed.
    pub(crate) fn request_repair(&self) {
        self.resync.repair_wanted.set(true);
        self.resync.complete.set(false);
        if self.options.read_only || self.resync.repairing.replace(true) {
            return;
        }
        let weak = self.this.clone();
        let task = async move {
            while let Some(local) = weak.upgrade() {
                if !local.resync.repair_wanted.replace(false) {
                    local.resync.repairing.set(false);
                    return;
                }
                let mut lacking = false;
                for (index, entry) in local.catalogue.all().into_iter().enumerate() {
                    if index % LOOKS_PER_STEP == 0 {
                        local.handle.yield_now().await;
                    }
                    local.repair_entry(&entry).await;
                    lacking |= local.lacks_copies(&entry);
                }
                local.resync.complete.set(!lacking && !local.resync.repair_wanted.get());
            }
        };
        self.handle.spawn(Class::Background, "files: repair", task).detach();
    }

    /// Whether a file has fewer copies than it could have.
    pub(crate) fn lacks_copies(&self, entry: &Entry) -> bool {
        let possible = self.members().len().min(entry.copies_wanted as usize);
        entry.live_copies().len() < possible
    }

    /// Writes the copies that a file lacks.
    async fn repair_entry(self: &Rc<Self>, entry: &Rc<Entry>) {
        self.drop_surplus(entry).await;
        while let Some((target, number)) = self.plan_repair(entry) {
            let gate = entry.gate.take(1).await;
            // Whatever happened while waiting for the gate is taken into account.
            if self.plan_repair(entry).is_none_or(|(again, _)| again.id.get() != target.id.get()) {
                continue;
            }
            match self.write_copy(entry, &target, number).await {
                Ok(true) => {
                    tracing::info!("copied file {} to {}", entry.id, target.path.display());
                    drop(gate);
                    self.drop_surplus(entry).await;
                }
                Ok(false) => return,
                Err(error) => {
                    tracing::warn!("copying file {} to {} failed: {error}", entry.id, target.path.display());
                    return;
                }
            }
        }
    }

    /// Where a file lacks a copy that could be written now, and its number.
    fn plan_repair(&self, entry: &Entry) -> Option<(Rc<Directory>, u8)> {
        let state = entry.state.borrow();
        let length = state.sealed.filter(|_| !state.deleted)?;
        let trusted = state.numbered_live().filter(|copy| !copy.directory.suspect.get());
        let members = self.members().into_iter().filter(|member| !member.suspect.get()).collect::<Vec<_>>();
        let readable = state.numbered_live().next().is_some();
        if !readable || trusted.count() >= (entry.copies_wanted as usize).min(members.len()) {
            return None;
        }
        let candidates = members.into_iter().filter(|member| !state.is_in(member)).collect::<Vec<_>>();
        let rooms = candidates.iter().map(|member| self.room(member)).collect::<Vec<_>>();
        let index = *plan_placement(&rooms, 1, HEADER + length).first()?;
        let taken = |number: u8| state.copies.iter().any(|copy| copy.number == number && !copy.directory.suspect.get());
        let number = (0..entry.copies_wanted).find(|number| !taken(*number))?;
        Some((candidates[index].clone(), number))
    }

    /// Writes one copy of a sealed file. False if the file was deleted meanwhile.
    async fn write_copy(
        self: &Rc<Self>,
        entry: &Rc<Entry>,
        target: &Rc<Directory>,
        number: u8,
    ) -> Result<bool, base::Error> {
        let (length, copy) = {
            let state = entry.state.borrow();
            let (Some(length), Some(copy)) = (state.sealed, state.copies.first()) else { return Ok(false) };
            let mut directories = copy.birth.directories.clone();
            directories.resize(directories.len().max(number as usize + 1), target.id.get());
            directories[number as usize] = target.id.get();
            let birth = Birth { copy: number, directories, capacity: length, prepared: false, ..(*copy.birth).clone() };
            (length, Copy::new(target, birth, None))
        };
        let name = Name::Making(target.take_number());
        let path = target.path_of(name);
        let reserved = Cell::new(0);
        let written = async {
            let here = |error: io::Error| base::Error::from_io(path.display(), &error);
            let file = self.handle.open(&path, MAKE_UNSYNCED).await.map_err(here)?;
            // All of it now: a disk that is full says so before anything is copied.
            allocate(&file, length).await.map_err(here)?;
            target.space.on_allocated(HEADER + length);
            reserved.set(HEADER + length);
            let (least, most) = (self.options.resync_floor_bytes_per_sec, self.options.resync_bytes_per_sec);
            let mut pace = Pace::beside(&self.spare, &self.handle, least, most);
            let read = |offset: u64| {
                let len = STEP.min(length - offset);
                self.read_from(entry.id, None, offset, len as usize)
            };
            let mut offset = 0;
            let mut bytes = read(offset).await?;
            while offset < length {
                let len = bytes.len() as u64;
                pace.spend(len).await;
                if entry.state.borrow().deleted || !copy.is_live() {
                    return Ok(false);
                }
                self.check_same_as_suspects(entry, offset, &bytes).await?;
                // What is next is read meanwhile.
                let (written, next) = both(file.write_at(HEADER + offset, bytes.freeze()), read(offset + len)).await;
                written.map_err(here)?;
                bytes = next?;
                self.counters.on_written(entry.kind as usize, len);
                self.counters.on_background(len, len);
                offset += len;
            }
            let header = Header { birth: (*copy.birth).clone(), sealed: Some(length) };
            if let Err(error) = self.give_name(target, Vacancy { name, file }, &header).await {
                if is_full(&error) {
                    return Err(here(error));
                }
                // It may have its name or not: if the directory stays, a deletion must look for it.
                self.catalogue.on_damaged(target, entry.kind, entry.id, "its name may not be durable".into());
                self.on_directory_failure(target, "naming a copy", &error);
                return Err(here(error));
            }
            if !copy.is_live() {
                return Ok(false);
            }
            self.catalogue.on_repaired(target, entry.id);
            self.readers.forget_copy(copy.key());
            entry.attach(copy);
            Ok(true)
        };
        let outcome = written.await;
        if !matches!(outcome, Ok(true)) {
            drop(self.handle.remove(&path).await);
            target.space.on_released(reserved.get());
            self.touch_space();
        }
        outcome
    }

    /// A new copy takes the place of one in a suspect directory: it must hold the same, or the good one of two may go.
    async fn check_same_as_suspects(&self, entry: &Entry, offset: u64, bytes: &[u8]) -> Result<(), base::Error> {
        for copy in entry.live_copies().into_iter().filter(|copy| copy.directory.suspect.get()) {
            if let Ok(theirs) = self.read_copy_of(entry, &copy, offset, bytes.len()).await
                && theirs[..] != *bytes
            {
                self.counters.copy_errors.set(self.counters.copy_errors.get() + 1);
                let place = copy.path();
                return Err(base::Error::corrupt(format!(
                    "{} differs from its other copy at {offset}",
                    place.display()
                )));
            }
        }
        Ok(())
    }

    /// Removes the copies of a file that are more than are wanted: it was copied away from a suspect directory.
    async fn drop_surplus(&self, entry: &Rc<Entry>) {
        let surplus = || {
            let state = entry.state.borrow();
            let whole = state.numbered_live().count() >= entry.copies_wanted as usize && !state.deleted;
            state.copies.iter().find(|copy| copy.is_surplus() && copy.is_live()).filter(|_| whole).cloned()
        };
        while surplus().is_some() {
            let _gate = entry.gate.take(1).await;
            let Some(copy) = surplus() else { return };
            // From here on nobody counts on it: a directory that fails while it is being removed may have the only one.
            entry.detach(copy.directory.id.get());
            self.readers.forget_copy(copy.key());
            let removed = self.handle.remove(&copy.path()).await;
            if removed.is_err() || copy.directory.sync_names().await.is_err() {
                // It may be there or not: if the directory stays, a deletion must look for it.
                let why = "it is one copy too many, and could not be removed";
                self.catalogue.on_damaged(&copy.directory, entry.kind, entry.id, why.into());
                return;
            }
            copy.directory.space.on_released(copy.allocated(entry.state.borrow().sealed));
        }
    }
}

/// Directories that come back.
impl Local {
    /// Looks after directories that are away or suspect, for as long as there are any.
    pub(crate) fn request_watch(&self) {
        let is_away = |directory: &Rc<Directory>| {
            matches!(directory.state.get(), State::Failed | State::Missing) || directory.suspect.get()
        };
        if !self.directories.iter().any(is_away) || self.resync.watching.replace(true) {
            return;
        }
        let (weak, handle) = (self.this.clone(), self.handle.clone());
        let task = async move {
            let mut round = 0u64;
            loop {
                handle.sleep(WATCH_INTERVAL).await;
                let Some(local) = weak.upgrade() else { return };
                round += 1;
                let away = local.directories.iter().filter(|directory| is_away(directory)).cloned().collect::<Vec<_>>();
                if away.is_empty() {
                    local.resync.watching.set(false);
                    return;
                }
                for directory in away {
                    if directory.suspect.replace(false) {
                        // If it fails again, it becomes suspect again.
                        if local.publish().await.is_ok() && !directory.suspect.get() {
                            tracing::info!("{} can be written to again", directory.path.display());
                            local.request_repair();
                        }
                        continue;
                    }
                    let doublings = directory.failures.get().saturating_sub(1).min(WATCH_DOUBLINGS_MAX);
                    if round.is_multiple_of(1 << doublings) {
                        local.look_for(&directory).await;
                    }
                }
            }
        };
        self.handle.spawn(Class::Background, "files: watch", task).detach();
    }

    /// Whether a directory is there again.
    async fn look_for(self: &Rc<Self>, directory: &Rc<Directory>) {
        if directory.is_naming() || !self.membership.is_settled() {
            // A file could still turn up in it from before it failed, or a superblock that says it is a member.
            return;
        }
        let expected = directory.id.get();
        let superblock = match probe_directory(&self.handle, &directory.path, &self.options).await {
            Ok(Probe::Store(Guarded { guards, superblock, .. })) => {
                let known = self
                    .directories
                    .iter()
                    .any(|other| other.id.get() == superblock.directory && !Rc::ptr_eq(other, directory));
                let ours = superblock.record.store == self.store && !known;
                // An empty directory has no id yet: whatever of this store turns up under its path is welcome.
                if !ours || (directory.state.get() == State::Failed && superblock.directory != expected) {
                    return;
                }
                directory.id.set(superblock.directory);
                directory.guard(guards, superblock.sequence);
                superblock
            }
            _ => return,
        };
        tracing::info!("{} is back: resynchronizing it", directory.path.display());
        directory.state.set(State::Resynchronizing);
        let left_behind = agreement::was_left_behind(&superblock.record, &self.membership.record());
        self.resynchronize(directory, left_behind).await;
    }

    /// Starts to resynchronize a directory that was found at the start.
    pub(crate) fn spawn_resynchronization(&self, directory: &Rc<Directory>, left_behind: bool) {
        let (weak, directory) = (self.this.clone(), directory.clone());
        let task = async move {
            if let Some(local) = weak.upgrade() {
                local.resynchronize(&directory, left_behind).await;
            }
        };
        self.handle.spawn(Class::Background, "files: resynchronize", task).detach();
    }

    async fn resynchronize(self: &Rc<Self>, directory: &Rc<Directory>, left_behind: bool) {
        match self.bring_up(directory, left_behind).await {
            Ok(true) => {
                tracing::info!("{} is a member again", directory.path.display());
                self.request_repair();
                self.resync.joined.notify();
            }
            Ok(false) => {
                directory.state.set(State::Missing);
                directory.unguard();
                self.catalogue.detach_all(directory);
                tracing::error!(
                    "{} was left behind and holds files that are nowhere else. It stays out: empty it to let it join, \
                     or keep it to get these files back",
                    directory.path.display()
                );
            }
            Err(error) => self.on_directory_failure(directory, "resynchronizing", &error),
        }
    }

    async fn bring_up(self: &Rc<Self>, directory: &Rc<Directory>, left_behind: bool) -> io::Result<bool> {
        directory.refresh_space().await?;
        let names = self.names_in(directory).await?;
        if left_behind {
            for (_, name) in &names {
                if self.is_only_there(directory, *name).await? {
                    return Ok(false);
                }
            }
        }
        self.tell_members(directory).await?;
        directory
            .behind_bytes
            .set(names.iter().filter_map(|(_, name)| self.comparable(*name)).map(|(_, len)| len).sum());
        let (least, most) = (self.options.resync_floor_bytes_per_sec, self.options.resync_bytes_per_sec);
        let mut pace = Pace::beside(&self.spare, &self.handle, least, most);
        for (_, name) in &names {
            self.compare(directory, *name, &mut pace).await?;
        }
        directory.behind_bytes.set(0);
        // What was not attached is of no use to anybody. Nothing can be attached any more, only deleted.
        for (text, name) in self.names_in(directory).await? {
            let id = match name {
                Name::File(_, id) => Some(id),
                Name::Spare(..) | Name::Making(_) => None,
            };
            let attached = id.and_then(|id| self.catalogue.get_any(id)).is_some_and(|entry| entry.is_in(directory));
            if !attached && !is_on("deleted-file-returns") {
                match self.handle.remove(&directory.files().join(&text)).await {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        directory.sync_names().await?;
        directory.state.set(State::Joining);
        let published = self.publish().await;
        published.map_err(|error| io::Error::other(error.message))?;
        match directory.is_member() {
            true => Ok(true),
            false => Err(io::Error::other("it failed while it joined")),
        }
    }

    /// Tells a directory that comes back who the members are. What it knows may be that it is the only one: should this
    /// life end while its files are being removed, it would start alone, with what is left.
    async fn tell_members(&self, directory: &Directory) -> io::Result<()> {
        let agreed = self.membership.agreed();
        let agreed = agreed.ok_or_else(|| io::Error::other("the members do not agree yet"))?;
        directory.publish(&agreed).await
    }

    async fn names_in(&self, directory: &Directory) -> io::Result<Vec<(String, Name)>> {
        let entries = self.handle.read_directory(&directory.files()).await?;
        Ok(entries.into_iter().filter_map(|entry| Some((entry.name.clone(), Name::parse(&entry.name)?))).collect())
    }

    /// The file of a name, if it could have one more copy, and its length.
    fn comparable(&self, name: Name) -> Option<(Rc<Entry>, u64)> {
        let Name::File(kind, id) = name else { return None };
        let entry = self.catalogue.get(id).ok()?;
        let length = entry.state.borrow().sealed?;
        let lacks = entry.live_copies().len() < entry.copies_wanted as usize;
        (entry.kind == kind && lacks).then_some((entry, length))
    }

    /// Whether a file was born in this directory only, and nobody knows it.
    async fn is_only_there(&self, directory: &Directory, name: Name) -> io::Result<bool> {
        let Name::File(_, id) = name else { return Ok(false) };
        if self.catalogue.get_any(id).is_some() {
            return Ok(false);
        }
        let file = self.handle.open(&directory.path_of(name), READ).await?;
        let block = file.read_up_to(0, HEADER as usize).await?;
        let Some(header) = decode(&block) else { return Ok(true) };
        let members = self.each_member().map(|member| member.id.get()).collect::<Vec<_>>();
        Ok(agreement::is_only_there(false, &header.birth.directories, &members))
    }

    /// Compares a copy with the members' and attaches it, if the file lacks one and this one fits it.
    async fn compare(self: &Rc<Self>, directory: &Rc<Directory>, name: Name, pace: &mut Pace) -> io::Result<()> {
        let Some((entry, length)) = self.comparable(name) else { return Ok(()) };
        let _gate = entry.gate.take(1).await;
        if self.comparable(name).is_none() {
            return Ok(());
        }
        let file = self.handle.open(&directory.path_of(name), WRITE).await?;
        let Some(header) = decode(&file.read_up_to(0, HEADER as usize).await?) else { return Ok(()) };
        let taken = entry.live_copies().iter().any(|copy| copy.number == header.birth.copy);
        let same = header.birth.store == self.store
            && header.birth.file == entry.id
            && header.birth.incarnation == entry.incarnation
            && header.sealed == Some(length)
            && !taken;
        if !same || !file.try_lock().await? {
            return Ok(());
        }
        let copy = Copy::new(directory, header.birth.clone(), None);
        let mut offset = 0;
        while offset < length {
            let len = STEP.min(length - offset);
            pace.spend(len).await;
            if entry.state.borrow().deleted {
                return Ok(());
            }
            let theirs = self.read_from(entry.id, None, offset, len as usize);
            let (theirs, ours) = both(theirs, file.read_up_to(HEADER + offset, len as usize)).await;
            // Where the members' cannot be read, this may be the copy that is left.
            if let Ok(theirs) = theirs
                && !ours.is_ok_and(|ours| ours[..] == theirs[..])
            {
                self.compare_blocks(&file, &copy, offset, &theirs).await?;
            }
            self.counters.on_background(2 * len, 0);
            directory.behind_bytes.set(directory.behind_bytes.get().saturating_sub(len));
            offset += len;
        }
        if copy.is_good() {
            entry.attach(copy);
        }
        Ok(())
    }

    /// Compares the blocks of a copy with `theirs`, and writes those that cannot be read.
    async fn compare_blocks(&self, file: &File, copy: &Copy, offset: u64, theirs: &[u8]) -> io::Result<()> {
        for (index, block) in theirs.chunks(BLOCK as usize).enumerate() {
            let at = offset + index as u64 * BLOCK;
            match file.read_at(HEADER + at, block.len()).await {
                Ok(ours) if ours[..] == *block => {}
                Ok(_) => {
                    copy.doubt();
                    tracing::error!(
                        "{} differs from its other copy at {at}: one of them is damaged. Both are kept, and the other \
                         one is read first; a read that finds it damaged repairs it from this one",
                        copy.path().display()
                    );
                    self.counters.copy_errors.set(self.counters.copy_errors.get() + 1);
                }
                Err(_) => {
                    file.write_at(HEADER + at, aligned(block)).await?;
                    self.counters.on_written(copy.birth.kind as usize, BLOCK);
                }
            }
        }
        Ok(())
    }
}

fn decode(block: &AlignedBuf) -> Option<Header> {
    match block.len() as u64 == HEADER {
        true => Header::decode(block).ok().map(|header| header.record),
        false => None,
    }
}
