//! A shared store for those who are in other processes: [`Shared`] as a [`FileService`].
//!
//! **Intuition.** Whoever is far away may have no answer to what it asked, and what it asked may still be on its way. So
//! a life *enters* under a generation that it counts up, each time that it has lost touch; from then on nothing is begun
//! for a lower one. What a lower one had begun is done before the answer to an enter goes out. After that the life can
//! look what came of its questions, and what it finds stays so.
//!
//! **Invariants.** Of each life one generation is served, the highest that has entered since this store was opened; what
//! is asked under another one is answered with `Retry`, and nothing was done. A request that was taken is done, whoever
//! waits for it. Bytes that are written lie at a boundary that the disk takes.

use std::cell::RefCell;
use std::future::ready;
use std::rc::Rc;

use base::{
    AlignedBuf, BLOCK, Bytes, Error, FileId, Gathered, Generation, Incarnation, Map, Result, SegmentId, StoreId,
};
use wire::LocalBoxFuture;
use wire::files::{FileAnswer, FileDescriptor, FileService, LISTED_MAX, Life, LifeDescriptor, LifeSpace, NewFile};

use crate::shared::{LifeInfo, Shared};
use crate::{Claim, CreateOptions, FileInfo, FileKind, Redundancy, Store};

/// See the module.
pub struct Served {
    shared: Shared,
    id: StoreId,
    entered: RefCell<Map<Incarnation, (Generation, Option<Store>)>>,
}

impl Served {
    /// Serves `shared`, which may be used in this process meanwhile.
    pub fn new(shared: Shared) -> Rc<Served> {
        let id = shared.id();
        Rc::new(Served { shared, id, entered: RefCell::default() })
    }

    /// The store of a life that has entered under this generation, and is not over.
    fn store(&self, life: Life) -> Result<Store> {
        let entered = self.entered.borrow();
        let store = match entered.get(&life.incarnation) {
            Some((generation, Some(store))) if *generation == life.generation => store.clone(),
            _ => {
                return Err(Error::retry(format!(
                    "incarnation {} has not entered this store, or entered it anew: enter it again",
                    life.incarnation
                )));
            }
        };
        match self.shared.life(life.incarnation) {
            Some(LifeInfo { is_fenced: false, .. }) => Ok(store),
            Some(_) if base::seeded::is_on("fence-misses-files") => Ok(store),
            _ => Err(Error::fenced(format!("incarnation {} was fenced", life.incarnation))),
        }
    }

    fn space(&self, incarnation: Incarnation) -> LifeSpace {
        self.shared.life(incarnation).map(|life| space_of(&life)).unwrap_or_default()
    }

    /// Whether a request is for this store.
    fn check(&self, store: StoreId) -> Result<()> {
        match store == self.id {
            true => Ok(()),
            false => Err(Error::conflict(format!(
                "this is the store {}, and not {store}: is the address that of another one?",
                self.id
            ))),
        }
    }

    async fn enter(&self, store: StoreId, life: Life) -> Result<LifeSpace> {
        self.check(store)?;
        let Life { incarnation, generation } = life;
        {
            let mut entered = self.entered.borrow_mut();
            entered.retain(|incarnation, _| self.shared.life(*incarnation).is_some());
            let newest = entered.get(&incarnation).map(|(newest, _)| *newest);
            if newest.is_some_and(|newest| newest >= generation) {
                return Err(Error::retry(format!("incarnation {incarnation} has entered this store later")));
            }
            // From here on nothing is begun for a lower one.
            entered.insert(incarnation, (generation, None));
        }
        let store = self.shared.enter(incarnation).await?;
        self.shared.at_rest(incarnation).await;
        match self.entered.borrow_mut().get_mut(&incarnation) {
            Some((newest, entered)) if *newest == generation => *entered = Some(store),
            _ => return Err(Error::retry(format!("incarnation {incarnation} has entered this store later"))),
        }
        Ok(self.space(incarnation))
    }

    async fn create(&self, life: Life, file: NewFile) -> Result<(FileDescriptor, LifeSpace)> {
        let store = self.store(life)?;
        let kind = FileKind::from_number(file.kind).ok_or_else(|| {
            Error::invalid(format!("kind {} of a file is unknown here: upgrade the store", file.kind))
        })?;
        let claim = Claim::from_number(file.claim).ok_or_else(|| {
            Error::invalid(format!("claim {} of a file is unknown here: upgrade the store", file.claim))
        })?;
        let NewFile { capacity, copies, prepared, epoch, segment, .. } = file;
        let redundancy = Redundancy::Copies(copies);
        let options = CreateOptions { kind, capacity, redundancy, prepared, epoch, segment, claim };
        let id = store.0.create(options).await?;
        let info = store.find(id).await?;
        // Only its creator knows of it yet.
        let info = info.ok_or_else(|| Error::internal(format!("file {id} was created and is not there")))?;
        Ok((described(&info), self.space(life.incarnation)))
    }

    async fn seal(&self, life: Life, file: FileId, length: u64) -> Result<Option<FileDescriptor>> {
        let store = self.store(life)?;
        store.seal(file, length).await?;
        Ok(store.find(file).await?.as_ref().map(described))
    }

    async fn read(&self, life: Life, file: FileId, copy: Option<u8>, offset: u64, len: u64) -> Result<Bytes> {
        let store = self.store(life)?;
        let len = usize::try_from(len).map_err(|_| Error::invalid("no memory is that large"))?;
        let read = match copy {
            Some(copy) => store.read_copy(file, copy, offset, len).await?,
            None => store.read(file, offset, len).await?,
        };
        Ok(read.freeze())
    }
}

fn space_of(life: &LifeInfo) -> LifeSpace {
    LifeSpace { granted: life.granted_bytes, used: life.used_bytes }
}

/// What is said of a file.
fn described(info: &FileInfo) -> FileDescriptor {
    FileDescriptor {
        id: info.id,
        kind: info.kind as u8,
        incarnation: info.incarnation,
        epoch: info.epoch,
        segment: info.segment,
        capacity: info.capacity,
        sealed: info.sealed,
        copies: info.copies,
        copies_wanted: info.copies_wanted,
    }
}

/// The same bytes where the disk takes them from. What came in a frame of its own size lies there already.
fn aligned(data: Bytes) -> Bytes {
    match (data.as_ptr() as usize).is_multiple_of(BLOCK as usize) {
        true => data,
        false => AlignedBuf::copy_of(&data).freeze(),
    }
}

/// Nothing is lost on the way between this service and the store.
fn told<'a, T>(work: impl Future<Output = Result<T>> + 'a) -> LocalBoxFuture<'a, FileAnswer<T>> {
    Box::pin(async move { Ok(work.await) })
}

impl FileService for Served {
    fn join(&self) -> LocalBoxFuture<'_, FileAnswer<(StoreId, Incarnation)>> {
        told(async move { Ok((self.id, self.shared.number().await?)) })
    }

    fn enter(&self, store: StoreId, life: Life) -> LocalBoxFuture<'_, FileAnswer<LifeSpace>> {
        told(Served::enter(self, store, life))
    }

    fn create(&self, life: Life, file: NewFile) -> LocalBoxFuture<'_, FileAnswer<(FileDescriptor, LifeSpace)>> {
        told(Served::create(self, life, file))
    }

    fn append(&self, life: Life, file: FileId, offset: u64, data: Gathered) -> LocalBoxFuture<'_, FileAnswer<()>> {
        told(async move { self.store(life)?.0.append(file, offset, aligned(data.joined()).into()).await })
    }

    fn read(
        &self,
        life: Life,
        file: FileId,
        copy: Option<u8>,
        offset: u64,
        len: u64,
    ) -> LocalBoxFuture<'_, FileAnswer<Bytes>> {
        told(Served::read(self, life, file, copy, offset, len))
    }

    fn repair_copy(
        &self,
        life: Life,
        file: FileId,
        copy: u8,
        offset: u64,
        data: Bytes,
    ) -> LocalBoxFuture<'_, FileAnswer<()>> {
        told(async move { self.store(life)?.repair_copy(file, copy, offset, aligned(data)).await })
    }

    fn check_headers(&self, life: Life, file: FileId) -> LocalBoxFuture<'_, FileAnswer<u64>> {
        told(async move { self.store(life)?.check_headers(file).await })
    }

    fn seal(&self, life: Life, file: FileId, length: u64) -> LocalBoxFuture<'_, FileAnswer<Option<FileDescriptor>>> {
        told(Served::seal(self, life, file, length))
    }

    fn delete(&self, life: Life, file: FileId) -> LocalBoxFuture<'_, FileAnswer<()>> {
        told(async move { self.store(life)?.delete(file).await })
    }

    fn need_space(&self, life: Life, bytes: u64) -> LocalBoxFuture<'_, FileAnswer<LifeSpace>> {
        told(async move {
            self.store(life)?;
            self.shared.need_space(life.incarnation, bytes).await;
            Ok(self.space(life.incarnation))
        })
    }

    fn fence(&self, store: StoreId, incarnation: Incarnation) -> LocalBoxFuture<'_, FileAnswer<()>> {
        told(async move {
            self.check(store)?;
            self.shared.fence(incarnation).await
        })
    }

    fn files_of(
        &self,
        store: StoreId,
        incarnation: Incarnation,
        after: FileId,
    ) -> LocalBoxFuture<'_, FileAnswer<Vec<FileDescriptor>>> {
        told(async move {
            self.check(store)?;
            let files = self.shared.files_of(incarnation);
            Ok(files.iter().filter(|info| info.id > after).take(LISTED_MAX).map(described).collect())
        })
    }

    fn files_of_segment(
        &self,
        store: StoreId,
        segment: SegmentId,
        after: FileId,
    ) -> LocalBoxFuture<'_, FileAnswer<Vec<FileDescriptor>>> {
        told(async move {
            self.check(store)?;
            let files = self.shared.files_of_segment(segment);
            Ok(files.iter().filter(|info| info.id > after).take(LISTED_MAX).map(described).collect())
        })
    }

    fn find(&self, store: StoreId, file: FileId) -> LocalBoxFuture<'_, FileAnswer<Option<FileDescriptor>>> {
        told(async move {
            self.check(store)?;
            Ok(self.shared.find(file).as_ref().map(described))
        })
    }

    fn lives(&self, after: Incarnation) -> LocalBoxFuture<'_, FileAnswer<Vec<LifeDescriptor>>> {
        let lives = self.shared.lives();
        let listed = lives.iter().filter(|life| life.incarnation > after).take(LISTED_MAX).map(|life| LifeDescriptor {
            incarnation: life.incarnation,
            is_fenced: life.is_fenced,
            space: space_of(life),
        });
        told(ready(Ok(listed.collect())))
    }
}
