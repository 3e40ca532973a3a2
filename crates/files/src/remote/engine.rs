//! The file layer's face of a life in a store that is far away. Whatever changes something is a task of its own: it goes on
//! when its caller stops waiting.

use std::cell::Cell;
use std::future::Future;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::time::Duration;

use base::limits::REQUEST_SIZE_MAX;
use base::{AlignedBuf, Bytes, Error, ErrorKind, FileId, Gathered, Incarnation, Result, SegmentId, StoreId};
use runtime::{Class, sync};
use wire::LinkLost;
use wire::files::{FileAnswer, NewFile};

use super::known::info_of;
use super::session::Session;
use crate::{
    CreateOptions, DirectoryStatus, FileEngine, FileInfo, FileKind, LocalBoxFuture, Redundancy, Statistics, StoreSpace,
};

/// The store is asked for more space this often at most.
const SPACE_PAUSE: Duration = Duration::from_millis(100);

/// See the module.
pub(super) struct Remote {
    session: Rc<Session>,
    is_asking_for_space: Rc<Cell<bool>>,
}

impl Remote {
    pub(super) fn new(session: Rc<Session>) -> Remote {
        Remote { session, is_asking_for_space: Rc::default() }
    }

    fn to_its_end<T: 'static, W: Future<Output = Result<T>> + 'static>(
        &self,
        name: &'static str,
        work: impl FnOnce(Rc<Session>) -> W,
    ) -> LocalBoxFuture<'static, Result<T>> {
        let (sender, receiver) = sync::oneshot();
        let work = work(self.session.clone());
        self.session.handle.spawn(Class::Io, name, async move { sender.send(work.await) }).detach();
        Box::pin(async move { receiver.await.unwrap_or_else(|| Err(Error::internal("the loop is shutting down"))) })
    }

    fn read_from(
        &self,
        file: FileId,
        copy: Option<u8>,
        offset: u64,
        len: usize,
    ) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        let session = self.session.clone();
        Box::pin(async move {
            let mut read = AlignedBuf::with_capacity(len);
            // What there is nothing of is asked for, too: there may be no such file.
            while read.len() < len || len == 0 {
                let (at, part) = (offset.saturating_add(read.len() as u64), (len - read.len()).min(PART_MAX));
                let bytes =
                    session.ask(async |life| session.service.read(life, file, copy, at, part as u64).await).await?;
                if bytes.len() != part {
                    let found = bytes.len();
                    return Err(Error::internal(format!("{part} bytes of file {file} were read, and {found} came")));
                }
                session.known.on_read(file, part as u64);
                read.extend_from_slice(&bytes);
                if len == 0 {
                    break;
                }
            }
            Ok(read)
        })
    }
}

/// Most bytes of one request.
const PART_MAX: usize = REQUEST_SIZE_MAX as usize;

/// Appends, part by part if it is much. Nobody knows how far it came if it fails: then the file takes no more.
async fn append(session: &Rc<Session>, file: FileId, offset: u64, data: Gathered) -> Result<()> {
    let parts = match data.len() <= PART_MAX {
        true => vec![data],
        false => {
            let all = data.joined();
            (0..all.len()).step_by(PART_MAX).map(|at| all.slice(at..all.len().min(at + PART_MAX)).into()).collect()
        }
    };
    let mut at = offset;
    for part in parts {
        let len = part.len() as u64;
        if let Err(error) = append_part(session, file, at, part).await {
            if error.kind == ErrorKind::Io {
                session.known.break_file(file, &error.message);
            }
            return Err(error);
        }
        session.known.on_appended(file, len);
        at += len;
    }
    Ok(())
}

async fn append_part(session: &Rc<Session>, file: FileId, offset: u64, data: Gathered) -> Result<()> {
    let asked = async |life| {
        if let Err(error) = session.known.check_appendable(file) {
            return Ok(Err(error));
        }
        match session.service.append(life, file, offset, data.clone()).await {
            // It is not asked again: it may be there, and more behind it.
            Err(LinkLost { message }) => {
                session.on_lost(life, &message);
                if base::seeded::is_on("lost-answer-is-done") {
                    return Ok(Ok(()));
                }
                Ok(Err(Error::io(format!(
                    "nobody knows whether {} bytes at {offset} are there: {message}",
                    data.len()
                ))))
            }
            answer => answer,
        }
    };
    session.ask(asked).await
}

async fn create(session: &Rc<Session>, options: CreateOptions) -> Result<FileId> {
    let CreateOptions { kind, capacity, redundancy, prepared, epoch, segment, claim } = options;
    let Redundancy::Copies(copies) = redundancy;
    let file = NewFile { kind: kind as u8, capacity, copies, prepared, epoch, segment, claim: claim as u8 };
    let created = async |life| {
        let _change = session.known.begin_change();
        let answer = session.service.create(life, file).await?;
        Ok(answer.and_then(|(file, space)| {
            session.known.on_space(space);
            session.known.on_created(&file, prepared)
        }))
    };
    session.ask(created).await
}

/// Seals or deletes: what is asked may change what the file is.
async fn change<T>(
    session: &Rc<Session>,
    asked: impl AsyncFn(wire::files::Life) -> FileAnswer<T>,
    done: impl Fn(T) -> Result<()>,
) -> Result<()> {
    let changed = async |life| {
        let _change = session.known.begin_change();
        Ok(asked(life).await?.and_then(&done))
    };
    session.ask(changed).await
}

impl FileEngine for Remote {
    fn id(&self) -> StoreId {
        self.session.store
    }

    fn incarnation(&self) -> Incarnation {
        self.session.incarnation
    }

    fn create(&self, options: CreateOptions) -> LocalBoxFuture<'_, Result<FileId>> {
        self.to_its_end("remote: create", |session| async move { create(&session, options).await })
    }

    fn recyclable(&self, kind: FileKind, capacities: RangeInclusive<u64>) -> Option<u64> {
        self.session.known.recyclable(kind, &capacities)
    }

    fn append(&self, file: FileId, offset: u64, data: Gathered) -> LocalBoxFuture<'static, Result<()>> {
        // Tasks begin in the order in which they were started, and whoever waits is woken in that order.
        self.to_its_end("remote: append", |session| async move { append(&session, file, offset, data).await })
    }

    fn read(&self, file: FileId, offset: u64, len: usize) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        self.read_from(file, None, offset, len)
    }

    fn read_copy(
        &self,
        file: FileId,
        copy: u8,
        offset: u64,
        len: usize,
    ) -> LocalBoxFuture<'static, Result<AlignedBuf>> {
        self.read_from(file, Some(copy), offset, len)
    }

    fn repair_copy(&self, file: FileId, copy: u8, offset: u64, data: Bytes) -> LocalBoxFuture<'static, Result<()>> {
        self.to_its_end("remote: repair copy", |session| async move {
            for at in (0..data.len()).step_by(PART_MAX) {
                let part = data.slice(at..data.len().min(at + PART_MAX));
                let repaired =
                    async |life| session.service.repair_copy(life, file, copy, offset + at as u64, part.clone()).await;
                session.ask(repaired).await?;
            }
            Ok(())
        })
    }

    fn check_headers(&self, file: FileId) -> LocalBoxFuture<'static, Result<u64>> {
        self.to_its_end("remote: check headers", |session| async move {
            session.ask(async |life| session.service.check_headers(life, file).await).await
        })
    }

    fn seal(&self, file: FileId, length: u64) -> LocalBoxFuture<'_, Result<()>> {
        self.to_its_end("remote: seal", |session| async move {
            let known = &session.known;
            let sealed = async |life| session.service.seal(life, file, length).await;
            change(&session, sealed, |found| {
                found.map_or(Ok(()), |found| info_of(&found).map(|info| known.on_found(info)))
            })
            .await
        })
    }

    fn delete(&self, file: FileId) -> LocalBoxFuture<'_, Result<()>> {
        self.to_its_end("remote: delete", |session| async move {
            let deleted = async |life| session.service.delete(life, file).await;
            change(&session, deleted, |()| {
                session.known.on_gone(file);
                Ok(())
            })
            .await
        })
    }

    fn fence(&self, incarnation: Incarnation) -> LocalBoxFuture<'_, Result<()>> {
        self.to_its_end("remote: fence", move |session| async move {
            session.ask_as_anybody(async || session.service.fence(session.store, incarnation).await).await?;
            if incarnation == session.incarnation {
                session.on_fenced(Error::fenced(format!("incarnation {incarnation} was fenced, by itself")));
            }
            Ok(())
        })
    }

    /// The store is asked, as by one who needs no more space: that changes nothing, and is done for a life that goes on.
    fn check_life(&self) -> LocalBoxFuture<'_, Result<()>> {
        let session = self.session.clone();
        Box::pin(async move { session.ask(async |life| session.service.need_space(life, 0).await).await.map(drop) })
    }

    fn list(&self) -> Vec<FileInfo> {
        self.session.known.list()
    }

    fn info(&self, file: FileId) -> Option<FileInfo> {
        self.session.known.info(file)
    }

    fn files_of(&self, incarnation: Incarnation) -> LocalBoxFuture<'_, Result<Vec<FileInfo>>> {
        let session = self.session.clone();
        Box::pin(async move {
            let mut files = session.ask_as_anybody(async || session.files_of(incarnation).await).await?;
            match incarnation == session.incarnation {
                // One that nobody knows of is about to be deleted.
                true => files.retain(|info| session.known.is_own(info.id)),
                false => session.known.on_files_of(incarnation, &files),
            }
            Ok(files)
        })
    }

    fn files_of_segment(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<Vec<FileInfo>>> {
        let session = self.session.clone();
        Box::pin(async move {
            let before = session.known.moment();
            let mut files = session.ask_as_anybody(async || session.files_of_segment(segment).await).await?;
            // Of its own, one that nobody knows of is about to be deleted.
            files.retain(|info| info.incarnation != session.incarnation || session.known.is_own(info.id));
            if before.is_some() && session.known.moment() == before {
                files.iter().for_each(|info| session.known.on_found(info.clone()));
            }
            Ok(files)
        })
    }

    fn lives(&self) -> LocalBoxFuture<'_, Result<Vec<Incarnation>>> {
        let session = self.session.clone();
        Box::pin(async move { session.ask_as_anybody(async || session.lives().await).await })
    }

    fn find(&self, file: FileId) -> LocalBoxFuture<'_, Result<Option<FileInfo>>> {
        let session = self.session.clone();
        Box::pin(async move {
            let before = session.known.moment();
            let found = session.ask_as_anybody(async || session.service.find(session.store, file).await).await?;
            let is_now = before.is_some() && session.known.moment() == before;
            let info = found.as_ref().map(info_of).transpose()?;
            match &info {
                Some(info) if is_now => session.known.on_found(info.clone()),
                None if is_now => session.known.on_gone(file),
                _ => {}
            }
            Ok(info)
        })
    }

    fn locate(&self, file: FileId, copy: u8) -> String {
        format!("copy {copy} of file {file} in the shared store {}", self.session.options.name)
    }

    fn space(&self) -> StoreSpace {
        self.session.known.space()
    }

    fn need_space(&self, bytes: u64) {
        if self.space().free >= bytes || self.is_asking_for_space.replace(true) {
            return;
        }
        let (session, is_asking) = (self.session.clone(), self.is_asking_for_space.clone());
        let asking = async move {
            if let Err(error) = ask_for_space(&session, bytes).await {
                tracing::warn!(incarnation = %session.incarnation, "the store was not asked for space: {error}");
            }
            session.handle.sleep(SPACE_PAUSE).await;
            is_asking.set(false);
        };
        self.session.handle.spawn(Class::Background, "remote: need space", asking).detach();
    }

    /// What this life has had written and read. Its one directory is the store.
    fn statistics(&self) -> Statistics {
        let state = if self.session.has_entered() { "healthy" } else { "missing" };
        let (path, free_bytes) = (self.session.options.name.clone(), self.space().free);
        let store = DirectoryStatus { path, state, free_bytes, behind_bytes: 0 };
        Statistics { directories: vec![store], ..self.session.known.statistics() }
    }
}

/// Asks for more space, and whether there is more already: others may have deleted files of this life.
async fn ask_for_space(session: &Rc<Session>, bytes: u64) -> Result<()> {
    let before = session.known.moment();
    let space = session.ask(async |life| session.service.need_space(life, bytes).await).await?;
    session.known.on_space(space);
    let is_now = before.is_some() && session.known.moment() == before;
    if is_now && session.known.space().used != space.used {
        session.look_again().await?;
    }
    Ok(())
}
