//! How files are born, sealed and deleted: each step durable before the next, in all copies at once.

use std::io;
use std::rc::Rc;

use base::seeded::is_on;
use base::{BLOCK, Error, ErrorKind, FileId, Incarnation, Result};

use super::Local;
use super::access::is_full;
use super::catalogue::{Copy, Entry};
use super::directory::{Directory, aligned};
use super::guard::explain;
use super::header::{Birth, COPIES_MAX, HEADER, Header};
use super::names::{Name, SpareKind};
use super::pool::Vacancy;
use super::space::plan_placement;
use super::wait::all;
use crate::{CreateOptions, Redundancy};

/// How often the header of a new file is written, if it is not there afterwards.
const HEADER_TRIES: u32 = 3;

/// Creating.
impl Local {
    /// See `Store::create`, and `FileEngine::create_for`.
    pub(crate) async fn create_file(
        self: &Rc<Self>,
        incarnation: Incarnation,
        options: CreateOptions,
    ) -> Result<FileId> {
        self.check_writable()?;
        options.check_segment()?;
        let Redundancy::Copies(copies_wanted) = options.redundancy;
        if copies_wanted == 0 || copies_wanted as usize > COPIES_MAX {
            return Err(Error::invalid(format!("{copies_wanted} copies of a file; possible are 1 to {COPIES_MAX}")));
        }
        if options.capacity == 0 || !options.capacity.is_multiple_of(BLOCK) || options.capacity > u64::MAX / 4 {
            return Err(Error::invalid(format!("a capacity of {} bytes is not whole blocks", options.capacity)));
        }
        self.readiness.on_activity();
        let mut avoided: Vec<Rc<Directory>> = Vec::new();
        let mut failure: Option<Error> = None;
        if self.place(options, &avoided).is_err() {
            // Others may have made room since the last look.
            self.look_at_space().await;
        }
        let entry = loop {
            // Each try has an id of its own: what a failed one left behind is no copy of the file.
            let file = self.take_file_id().await?;
            let places = match (self.place(options, &avoided), failure.take()) {
                (Err(_), Some(failure)) => {
                    if failure.kind == ErrorKind::Full {
                        // There is less than was known: callers would ask again and again.
                        self.look_at_space().await;
                    }
                    return Err(failure);
                }
                (places, _) => places?,
            };
            let births = births(self, file, incarnation, options, &places);
            let born = all(places.iter().zip(births).map(|(place, birth)| self.create_copy(place, birth))).await;
            // A directory may have failed since its copy was born.
            let live = born.iter().flatten().filter(|copy| copy.is_live()).cloned().collect::<Vec<_>>();
            if born.iter().all(Result::is_ok) && !live.is_empty() {
                let entry = Rc::new(Entry::new(&Header { birth: (*live[0].birth).clone(), sealed: None }, true));
                live.into_iter().for_each(|copy| entry.attach(copy));
                break entry;
            }
            // Some may exist by now. They go, and it is tried again elsewhere.
            for (place, born) in places.iter().zip(born) {
                match born {
                    Ok(copy) => self.discard_copy(copy).await,
                    Err(error) => {
                        let what = format!("creating file {file}");
                        if !is_full(&error) {
                            self.on_directory_failure(place, &what, &error);
                        }
                        avoided.push(place.clone());
                        failure = Some(explain(&place.files(), &error));
                    }
                }
            }
        };
        let file = entry.id;
        self.catalogue.insert(entry);
        self.settle().await?;
        if options.prepared && SpareKind::of(options.kind) == SpareKind::Written {
            self.prepare_ahead(options.kind, options.capacity);
        }
        self.touch_space();
        Ok(file)
    }

    /// The directories for the copies of a new file.
    fn place(&self, options: CreateOptions, avoided: &[Rc<Directory>]) -> Result<Vec<Rc<Directory>>> {
        let Redundancy::Copies(copies_wanted) = options.redundancy;
        let mut members = self.members();
        if members.iter().any(|member| !member.suspect.get()) {
            members.retain(|member| !member.suspect.get());
        }
        let copies = (copies_wanted as usize).min(members.len());
        let need = HEADER + options.capacity;
        let full = || {
            let free = base::units::format_size(self.space().free);
            let need = base::units::format_size(options.capacity);
            Error::full(format!(
                "no room for a file of {need} in {copies} copies: {free} free; delete or discard something"
            ))
        };
        if self.options.capacity.is_some() && self.space().free < options.capacity {
            return Err(full());
        }
        let is_avoided = |directory: &Directory| avoided.iter().any(|other| other.id.get() == directory.id.get());
        let rooms =
            members.iter().map(|member| if is_avoided(member) { 0 } else { self.room(member) }).collect::<Vec<_>>();
        let chosen = plan_placement(&rooms, copies, need);
        match chosen.len() == copies && copies > 0 {
            true => Ok(chosen.into_iter().map(|index| members[index].clone()).collect()),
            false => Err(full()),
        }
    }

    async fn create_copy(self: &Rc<Self>, directory: &Rc<Directory>, birth: Birth) -> io::Result<Copy> {
        let mut copy = Copy::new(directory, birth, None);
        let birth = &copy.birth;
        let vacancy = self.vacancy(directory, birth.kind, birth.capacity, birth.prepared).await?;
        let (writer, before) = (vacancy.file.clone(), vacancy.name);
        let header = Header { birth: (**birth).clone(), sealed: None };
        if let Err(error) = self.give_name(directory, vacancy, &header).await {
            // It has one of these names. If it cannot be removed, the next life finds it, empty or unfinished.
            for name in [before, Name::File(birth.kind, birth.file)] {
                drop(self.handle.remove(&directory.path_of(name)).await);
            }
            directory.space.on_released(copy.allocated(None));
            return Err(error);
        }
        copy.writer = Some(writer);
        // It works again, or it would not have been asked.
        directory.suspect.set(false);
        Ok(copy)
    }

    /// Makes a file of a vacancy: its header is durable before it gets its name, and its name before this returns. If
    /// the disk is full, it does not have its name.
    pub(crate) async fn give_name(&self, directory: &Directory, vacancy: Vacancy, header: &Header) -> io::Result<()> {
        let _naming = directory.naming();
        self.write_header(&vacancy, header).await?;
        let name = Name::File(header.birth.kind, header.birth.file);
        self.handle.rename(&directory.path_of(vacancy.name), &directory.path_of(name)).await?;
        match is_on("name-not-synced") {
            true => Ok(()),
            false => directory.sync_names().await.map_err(io::Error::other),
        }
    }

    /// Writes the header of a file to be, and looks whether it is there: a disk may say so of a write that it lost or
    /// put elsewhere, and a log's name without a header would stop the next start.
    async fn write_header(&self, vacancy: &Vacancy, header: &Header) -> io::Result<()> {
        let block = aligned(&header.encode());
        for _ in 0..HEADER_TRIES {
            vacancy.file.write_at(0, block.clone()).await?;
            // The length of the file, too.
            vacancy.file.sync().await?;
            self.counters.on_written(header.birth.kind as usize, HEADER);
            if vacancy.file.read_at(0, HEADER as usize).await?[..] == block[..] {
                return Ok(());
            }
        }
        Err(io::Error::other("a header that was written is not there"))
    }

    /// Undoes the birth of a copy. If that fails, the file is found by the next life, empty and unknown to anybody.
    async fn discard_copy(&self, copy: Copy) {
        if let Err(error) = self.handle.remove(&copy.path()).await {
            tracing::warn!("removing {} failed: {error}", copy.path().display());
        }
        copy.directory.space.on_released(copy.allocated(None));
    }
}

fn births(
    local: &Local,
    file: FileId,
    incarnation: Incarnation,
    options: CreateOptions,
    places: &[Rc<Directory>],
) -> Vec<Birth> {
    let Redundancy::Copies(copies_wanted) = options.redundancy;
    let directories = places.iter().map(|place| place.id.get()).collect::<Vec<_>>();
    (0..places.len() as u8)
        .map(|copy| Birth {
            store: local.store,
            file,
            kind: options.kind,
            incarnation,
            epoch: options.epoch,
            segment: options.segment,
            capacity: options.capacity,
            copies_wanted,
            copy,
            prepared: options.prepared,
            directories: directories.clone(),
        })
        .collect()
}

/// Sealing.
impl Local {
    /// See `Store::seal`. Appends that are in flight do not count: what they write is beyond the end, or the same as
    /// what is there.
    pub(crate) async fn seal_file(self: &Rc<Self>, file: FileId, length: u64) -> Result<()> {
        self.check_writable()?;
        let entry = self.catalogue.get(file)?;
        let _gate = entry.gate.take(1).await;
        {
            let mut state = entry.state.borrow_mut();
            if state.deleted {
                return Err(Error::not_found(format!("there is no file {file}")));
            }
            match state.sealed {
                Some(sealed) if sealed == length => return Ok(()),
                Some(sealed) => {
                    return Err(Error::conflict(format!("file {file} is sealed at {sealed}, not {length}")));
                }
                None => {}
            }
            if let Some(sealing) = state.sealing.filter(|sealing| *sealing != length) {
                return Err(Error::conflict(format!("file {file} is being sealed at {sealing}, not {length}")));
            }
            if length > entry.capacity || !length.is_multiple_of(BLOCK) {
                return Err(Error::invalid(format!(
                    "file {file} of {} bytes cannot be sealed at {length}",
                    entry.capacity
                )));
            }
            state.sealing = Some(length);
        }
        let copies = entry.live_copies();
        let sealed = all(copies.iter().map(|copy| self.seal_copy(copy, length))).await;
        for (copy, result) in copies.iter().zip(&sealed) {
            if let Err(error) = result {
                // As long as it is not sealed in every member, nobody is told that it is; a repetition may work.
                if !is_full(error) {
                    self.on_directory_failure(&copy.directory, &format!("sealing file {file}"), error);
                }
                if copy.directory.is_member() {
                    return Err(Error::from_io(format!("sealing {}", copy.path().display()), error));
                }
            }
        }
        self.settle().await?;
        if !copies.iter().zip(&sealed).any(|(copy, result)| result.is_ok() && copy.is_live()) {
            return Err(Error::io(format!("sealing file {file} failed in every copy")));
        }
        entry.on_sealed(length);
        self.touch_space();
        if self.lacks_copies(&entry) {
            self.request_repair();
        }
        Ok(())
    }

    /// Writes the seal record of one copy, and gives back what is beyond the end.
    pub(crate) async fn seal_copy(&self, copy: &Copy, length: u64) -> io::Result<()> {
        let writer = self.open_writer(copy).await?;
        let header = Header { birth: (*copy.birth).clone(), sealed: Some(length) };
        writer.write_at(0, aligned(&header.encode())).await?;
        self.counters.on_written(copy.birth.kind as usize, HEADER);
        match copy.birth.prepared {
            true => Ok(()),
            false => writer.set_len(HEADER + length).await,
        }
    }
}

/// Deleting.
impl Local {
    /// See `Store::delete`.
    pub(crate) async fn delete_file(self: &Rc<Self>, file: FileId) -> Result<()> {
        self.check_writable()?;
        let Some(entry) = self.catalogue.get_any(file) else { return self.delete_damaged(file).await };
        // From here on nobody finds it, and whoever copies it lets go of it.
        entry.state.borrow_mut().deleted = true;
        let _gate = entry.gate.take(1).await;
        if self.catalogue.get_any(file).is_none() {
            return Ok(());
        }
        // Not before: who copied it may have left one more name behind.
        if let Err(error) = self.delete_damaged(file).await {
            entry.state.borrow_mut().deleted = false;
            return Err(error);
        }
        self.readers.forget(file);
        // The lock of each copy comes free, for the file that is born in its place.
        entry.state.borrow_mut().copies.iter_mut().for_each(|copy| copy.writer = None);
        let copies = entry.state.borrow().copies.clone();
        let sealed = entry.state.borrow().sealed;
        let removed = all(copies.iter().map(|copy| self.remove_copy(copy, sealed))).await;
        let mut failure = None;
        for (copy, result) in copies.iter().zip(removed) {
            if let Err(error) = result {
                self.on_directory_failure(&copy.directory, &format!("deleting file {file}"), &error);
                if copy.directory.is_member() {
                    failure = Some(Error::from_io(format!("deleting {}", copy.path().display()), &error));
                }
            }
        }
        if let Some(failure) = failure {
            // The only directory: the file may be there or not, and can be deleted again.
            entry.state.borrow_mut().deleted = false;
            return Err(failure);
        }
        self.settle().await?;
        for copy in &copies {
            entry.detach(copy.directory.id.get());
        }
        self.catalogue.remove(file);
        self.touch_space();
        if !self.resync.is_complete() {
            // There may be room for copies now.
            self.request_repair();
        }
        Ok(())
    }

    /// Takes the name of a copy away, durably.
    async fn remove_copy(&self, copy: &Copy, sealed: Option<u64>) -> io::Result<()> {
        let name = Name::File(copy.birth.kind, copy.birth.file);
        let removed = match copy.birth.prepared && copy.is_live() {
            true => {
                let kind = SpareKind::of(copy.birth.kind);
                self.keep(&copy.directory, name, kind, copy.birth.capacity).await
            }
            false => {
                let removed = self.handle.remove(&copy.directory.path_of(name)).await;
                if removed.is_ok() {
                    copy.directory.space.on_released(copy.allocated(sealed));
                }
                removed.map(|()| false)
            }
        };
        match removed {
            Ok(true) => Ok(()),
            Ok(false) => copy.directory.sync_names().await,
            // Gone by an earlier try, unless everything is gone.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                copy.directory.sync_names().await?;
                copy.directory.check_presence().await
            }
            Err(error) => Err(error),
        }
    }

    /// Removes what may be copies of a file: one whose header cannot be read today may be found tomorrow.
    async fn delete_damaged(&self, file: FileId) -> Result<()> {
        for copy in self.catalogue.damaged(file) {
            let path = copy.directory.path_of(copy.name);
            let removed = async {
                match self.handle.remove(&path).await {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => copy.directory.sync_names().await?,
                }
                copy.directory.check_presence().await
            };
            if let Err(error) = removed.await {
                self.on_directory_failure(&copy.directory, &format!("deleting damaged file {file}"), &error);
                if copy.directory.is_member() {
                    return Err(Error::from_io(format!("deleting {}", path.display()), &error));
                }
            }
        }
        self.catalogue.forget_damaged(file);
        self.settle().await
    }
}
