//! One writer's life in a pool: what it has, and what it does with files, its own and those of others.

use std::cell::Cell;
use std::rc::Rc;

use base::{AlignedBuf, BLOCK, Bytes, Error, ErrorKind, FileId, Incarnation, Result, SegmentId, StoreId};
use runtime::sync::Budget;
use runtime::{Class, Handle};

use super::RadosOptions;
use super::directory::{Directories, fenced};
use super::head::Heads;
use super::known::Known;
use super::pools::{Places, StorePools};
use super::records::{FILES_MAX, FileRecord, creator, file_id};
use crate::{Claim, CreateOptions, FileInfo, FileKind, LocalBoxFuture};

/// See the module.
pub(super) struct Life {
    pub(super) handle: Handle,
    pub(super) pools: StorePools,
    pub(super) options: RadosOptions,
    pub(super) store: StoreId,
    pub(super) incarnation: Incarnation,
    pub(super) heads: Heads,
    pub(super) directories: Directories,
    pub(super) places: Places,
    pub(super) known: Known,
    pub(super) space: Space,
    /// Files that were begun.
    count: Cell<u32>,
    /// It was told that it is over.
    pub(super) is_over: Cell<bool>,
}

/// What it may set aside for files: see `space`.
pub(super) struct Space {
    pub(super) granted: Cell<u64>,
    /// Who asks for more: one at a time.
    pub(super) asking: Budget,
    pub(super) is_growing: Cell<bool>,
}

impl Default for Space {
    fn default() -> Self {
        Space { granted: Cell::default(), asking: Budget::new(1), is_growing: Cell::default() }
    }
}

impl Space {
    pub(super) fn granted(&self) -> u64 {
        self.granted.get()
    }
}

impl Life {
    /// See [`super::join`].
    pub(super) async fn begin(handle: &Handle, pools: StorePools, options: RadosOptions) -> Result<Life> {
        let objects = pools.main.clone();
        let heads = Heads { handle: handle.clone(), objects: objects.clone(), reserve_bytes: options.reserve_bytes };
        heads.bind(pools.data.as_deref()).await?;
        let (store, incarnation) = heads.begin_life().await?;
        let life = Life {
            handle: handle.clone(),
            directories: Directories { objects },
            places: Places::new(handle, &pools),
            pools,
            options,
            store,
            incarnation,
            heads,
            known: Known::default(),
            space: Space::default(),
            count: Cell::default(),
            is_over: Cell::default(),
        };
        life.ask_for_first().await?;
        Ok(life)
    }

    pub(super) fn on_error(&self, error: &Error) {
        match error.kind {
            ErrorKind::Fenced => self.is_over.set(true),
            ErrorKind::Io => self.known.on_error(),
            _ => {}
        }
    }

    /// Whether the life goes on, as far as it was told.
    ///
    /// # Errors
    /// `Fenced`.
    pub(super) fn check_alive(&self) -> Result<()> {
        match self.is_over.get() {
            true => Err(fenced(self.incarnation)),
            false => Ok(()),
        }
    }

    pub(super) async fn create(self: &Rc<Self>, options: CreateOptions) -> Result<FileId> {
        self.check_alive()?;
        options.check_segment()?;
        if options.kind == FileKind::Incarnation {
            return Err(Error::invalid("guards are made by the store"));
        }
        let count = self.count.get() + 1;
        if count > FILES_MAX {
            return Err(Error::full("this life has made all files that it can make: start anew"));
        }
        self.count.set(count);
        let is_apart = options.kind == FileKind::Data && self.pools.data.is_some();
        self.claim(options.capacity, options.claim).await?;
        let info = FileInfo {
            id: file_id(self.incarnation, count, is_apart),
            kind: options.kind,
            incarnation: self.incarnation,
            epoch: options.epoch,
            segment: options.segment,
            capacity: options.capacity,
            sealed: None,
            copies: 1,
            copies_wanted: 1,
        };
        let file = info.id;
        let record = FileRecord { info, made_for: options.capacity, is_prepared: options.prepared, is_going: false };
        if let Err(error) = self.make(&record, options.claim).await {
            self.known.unclaim(options.capacity);
            self.remove_unheard(record);
            return Err(error);
        }
        self.known.on_made(record, options.claim);
        self.grow_ahead(self.options.grant_bytes / 2);
        Ok(file)
    }

    /// First the bytes, then the record: who fences the life later finds both, and who did before keeps the record out.
    async fn make(&self, record: &FileRecord, claim: Claim) -> Result<()> {
        self.places.of(record.info.id)?.make(record, claim).await?;
        self.directories.register(record).await
    }

    /// Removes what there is of a file that could not be made. Its parts or its record may still come: so the record says that it
    /// goes until the life is over, which removes what has come until then. A record without parts would be a file that the pool
    /// has lost.
    fn remove_unheard(self: &Rc<Self>, record: FileRecord) {
        let life = self.clone();
        let removing = async move {
            let file = record.info.id;
            let removed = match life.directories.give_up(&record).await {
                Ok(true) => life.remove_parts(&record).await,
                given_up => given_up.map(drop),
            };
            if let Err(error) = removed {
                tracing::warn!(%file, "a file that was made for nobody may stay for now: {error}");
            }
        };
        self.handle.spawn(Class::Background, "remove a file that was made for nobody", removing).detach();
    }

    pub(super) async fn append(
        &self,
        file: FileId,
        appended: LocalBoxFuture<'static, Result<()>>,
        len: u64,
    ) -> Result<()> {
        if let Err(mut error) = appended.await {
            // A data file can also have been removed by whoever has its segment now, while this life goes on.
            if error.kind == ErrorKind::Fenced && self.directories.check(self.incarnation).await.is_ok() {
                error = Error::io(format!("file {file} is gone: somebody else has removed it"));
            }
            self.known.break_file(file, &error.message);
            return Err(error);
        }
        self.known.on_appended(file, len);
        Ok(())
    }

    /// What is known of a file that is to be read: of one that somebody else may seal now, what is true now.
    async fn info_to_read(&self, file: FileId) -> Result<FileInfo> {
        let known = self.known.info(file).filter(|info| self.known.is_own(file) || info.sealed.is_some());
        let info = match known {
            Some(info) => Some(info),
            None => self.find(file).await?,
        };
        info.ok_or_else(|| Error::not_found(format!("there is no file {file}")))
    }

    pub(super) async fn read(&self, file: FileId, copy: u8, offset: u64, len: usize) -> Result<AlignedBuf> {
        let info = self.info_to_read(file).await?;
        check_copy(file, copy)?;
        check_range(&info, offset, len as u64)?;
        let is_settled = self.known.is_own(file) || info.sealed.is_some();
        let read = match self.places.of(file)?.read(file, offset, len, is_settled).await {
            Err(error) if error.kind == ErrorKind::NotFound => {
                let is_there = self.find(file).await?.is_some();
                return Err(match is_there {
                    true => Error::corrupt(format!("{}: repair the pool", error.message)),
                    false => error,
                });
            }
            Ok((_, false)) if info.sealed.is_some() => {
                return Err(Error::corrupt(format!("file {file} is shorter than it was sealed at: repair the pool")));
            }
            read => read?.0,
        };
        self.known.on_read(info.kind, len as u64);
        Ok(read)
    }

    pub(super) async fn find(&self, file: FileId) -> Result<Option<FileInfo>> {
        let record = self.directories.find(file).await?.record.filter(|record| !record.is_going);
        match &record {
            // One that is being made is not known yet.
            Some(record) if creator(file) != self.incarnation || self.known.is_own(file) => {
                self.known.on_record(record);
            }
            Some(_) => return Ok(None),
            None => self.known.on_gone(file),
        }
        Ok(record.map(|record| record.info))
    }

    /// Before what another life made is changed: see the module.
    async fn check_own_life(&self, file: FileId) -> Result<()> {
        self.check_alive()?;
        match creator(file) == self.incarnation {
            true => Ok(()),
            false if base::seeded::is_on("fenced-changes-others") => Ok(()),
            false => self.directories.check(self.incarnation).await,
        }
    }

    /// Whether this life may change a file, besides appending to it.
    fn check_may_change(&self, record: &FileRecord, is_fenced: bool) -> Result<()> {
        let FileInfo { id, kind, incarnation, .. } = record.info;
        match (incarnation == self.incarnation, is_fenced) {
            (true, true) => Err(fenced(self.incarnation)),
            (true, false) | (false, true) => Ok(()),
            (false, false) => Err(Error::conflict(format!(
                "file {id} is a {} of incarnation {incarnation}, which lives: fence it first",
                kind.name()
            ))),
        }
    }

    pub(super) async fn seal(&self, file: FileId, length: u64) -> Result<()> {
        self.check_own_life(file).await?;
        let decide = |record: &FileRecord, is_fenced: bool| {
            if record.is_going {
                return Err(no_file(file));
            }
            self.check_may_change(record, is_fenced)?;
            match record.info.sealed {
                Some(sealed) if sealed == length => return Ok(None),
                Some(sealed) => {
                    return Err(Error::conflict(format!("file {file} is sealed at {sealed}, and not at {length}")));
                }
                None => check_range(&record.info, length, 0)?,
            }
            Ok(Some(record.sealed_at(length)))
        };
        let Some(sealed) = self.directories.alter(file, decide).await? else {
            // Of a life that is over others may have removed it.
            self.directories.check(self.incarnation).await?;
            return Err(no_file(file));
        };
        self.known.on_record(&sealed);
        Ok(())
    }

    pub(super) async fn delete(&self, file: FileId) -> Result<()> {
        self.check_own_life(file).await?;
        let decide = |record: &FileRecord, is_fenced: bool| {
            if !record.info.kind.is_of_segment() || record.info.incarnation == self.incarnation {
                self.check_may_change(record, is_fenced)?;
            }
            Ok((!record.is_going).then(|| record.going()))
        };
        match self.directories.alter(file, decide).await? {
            Some(record) => {
                self.remove(&record).await?;
                if creator(file) != self.incarnation {
                    self.forget_if_gone(creator(file)).await?;
                }
            }
            None => self.directories.check(self.incarnation).await?,
        }
        self.known.on_gone(file);
        Ok(())
    }

    /// What is marked as going goes.
    ///
    /// # Errors
    /// `Io`.
    pub(super) async fn remove(&self, record: &FileRecord) -> Result<()> {
        self.remove_parts(record).await?;
        self.directories.remove(record).await
    }

    async fn remove_parts(&self, record: &FileRecord) -> Result<()> {
        self.places.of(record.info.id)?.remove(record).await
    }

    async fn forget_if_gone(&self, life: Incarnation) -> Result<()> {
        if self.directories.is_empty(life).await?
            && self.heads.seen().await?.lives.get(&life).is_some_and(|record| record.is_fenced)
        {
            self.settle(life).await?;
        }
        Ok(())
    }

    pub(super) async fn fence(&self, life: Incarnation) -> Result<()> {
        if base::seeded::is_on("fence-fences-nothing") {
            return Ok(());
        }
        let seen = self.heads.seen().await?;
        let may_be_new = life > seen.head.last;
        if !may_be_new && !seen.lives.contains_key(&life) {
            // It was fenced before, and nothing is left of it.
            return Ok(());
        }
        if !self.directories.fence(life, may_be_new).await? {
            return Ok(());
        }
        if life == self.incarnation {
            self.is_over.set(true);
        }
        let listed = self.directories.list(life).await?;
        for record in listed.iter().flat_map(|listed| &listed.files) {
            // Nobody appends to one that is sealed, or going.
            if record.info.sealed.is_none() && !record.is_going && !base::seeded::is_on("fence-misses-files") {
                self.places.of(record.info.id)?.fence(record).await?;
            }
        }
        match may_be_new {
            // Its object has to stay, so that it never begins.
            true => Ok(()),
            false => self.settle(life).await.map(drop),
        }
    }

    pub(super) async fn files_of(&self, life: Incarnation) -> Result<Vec<FileInfo>> {
        let before = self.known.own_ids();
        let listed = self.directories.list(life).await?;
        let records = listed.map(|listed| listed.files).unwrap_or_default();
        let files = records.into_iter().filter(|record| !record.is_going).map(|record| record.info);
        if life != self.incarnation {
            let files: Vec<_> = files.collect();
            self.known.on_files_of(life, &files);
            return Ok(files);
        }
        // One that nobody knows of is being made, or was made for nobody. Others may have removed some.
        let files: Vec<_> = files.filter(|info| self.known.is_own(info.id)).collect();
        for gone in before.iter().filter(|file| files.binary_search_by_key(file, |info| &info.id).is_err()) {
            self.known.on_gone(*gone);
        }
        Ok(files)
    }

    pub(super) async fn files_of_segment(&self, segment: SegmentId) -> Result<Vec<FileInfo>> {
        let records = self.directories.of_segment(segment).await?;
        let is_shown = |record: &FileRecord| {
            !record.is_going && (record.info.incarnation != self.incarnation || self.known.is_own(record.info.id))
        };
        let shown: Vec<_> = records.into_iter().filter(is_shown).collect();
        shown.iter().for_each(|record| self.known.on_record(record));
        Ok(shown.into_iter().map(|record| record.info).collect())
    }

    pub(super) async fn lives(&self) -> Result<Vec<Incarnation>> {
        let mut lives = Vec::new();
        for life in self.heads.seen().await?.lives.into_keys() {
            if !self.directories.is_empty(life).await? {
                lives.push(life);
            }
        }
        Ok(lives)
    }

    pub(super) async fn repair(&self, file: FileId, copy: u8, offset: u64, data: Bytes) -> Result<()> {
        self.check_own_life(file).await?;
        let info = self.info_to_read(file).await?;
        check_copy(file, copy)?;
        check_range(&info, offset, data.len() as u64)?;
        self.places.of(file)?.repair(file, offset, &data, creator(file) == self.incarnation).await
    }
}

fn no_file(file: FileId) -> Error {
    Error::not_found(format!("there is no file {file}"))
}

/// A pool has one copy of a file, for all that is seen here.
fn check_copy(file: FileId, copy: u8) -> Result<()> {
    match copy {
        0 => Ok(()),
        _ => Err(Error::not_found(format!("file {file} has one copy, and not {}", u64::from(copy) + 1))),
    }
}

/// Whether a range lies in a file, and at the boundaries of blocks.
fn check_range(info: &FileInfo, offset: u64, len: u64) -> Result<()> {
    let end = offset.checked_add(len).filter(|end| *end <= info.sealed.unwrap_or(info.capacity));
    match end.is_some() && offset.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK) {
        true => Ok(()),
        false => Err(Error::invalid(format!("file {} has no {len} bytes at {offset}", info.id))),
    }
}
