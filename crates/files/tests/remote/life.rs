//! One who writes: life after life, each until it is fenced.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use base::{AlignedBuf, BLOCK, Epoch, Error, ErrorKind, FileId, Incarnation, KIB, MIB, Prng, Result};
use files::rados::{self, RadosOptions, StorePools};
use files::remote::{self, RemoteOptions};
use files::{CreateOptions, FileKind, FileWriter, Redundancy, Store};
use link::stream::{NearEnd, Services};
use runtime::{Address, Handle};

use crate::forgetful::{Forgetful, Lost};
use crate::model::{Known, Model, block, count};
use crate::site::stream_options;

/// Longer than most of what happens, and shorter than some.
const PATIENCE: Duration = Duration::from_millis(1500);

/// See the module.
pub struct Writer {
    pub handle: Handle,
    pub way: Way,
    pub model: Rc<Model>,
    pub prng: Prng,
}

/// How a writer reaches the store.
pub enum Way {
    /// In another process. One answer of so many is lost besides what happens to connections; 0: none.
    Remote { address: Address, lost: Rc<Lost>, forgets_one_in: u64 },
    /// In a pool.
    Pool { pools: StorePools, options: RadosOptions },
}

/// A file that it writes to.
struct Open {
    writer: FileWriter,
    /// Bytes that were confirmed from its beginning on.
    confirmed: u64,
}

impl Writer {
    /// Writes until the model says so; gives the stores of its lives that go on, each of which has been asked something
    /// at last.
    pub async fn live(mut self) -> Vec<Store> {
        let mut living = Vec::new();
        while !self.model.is_stopped() {
            let Ok(store) = self.join().await else { continue };
            count(&self.model.lives);
            let mut open = Vec::new();
            let mut is_over = false;
            while !is_over && !self.model.is_stopped() {
                is_over = self.act(&store, &mut open).await;
            }
            living.push(store);
        }
        // Nothing is wrong any more.
        let mut left = Vec::new();
        for store in living {
            let was_over = self.model.is_over(store.incarnation());
            let last = async { store.delete(store.create(options(FileKind::Log, false)).await?.id()).await };
            match last.await {
                Ok(()) => {
                    assert!(!was_over, "{} is over", store.incarnation());
                    left.push(store);
                }
                Err(error) if error.kind == ErrorKind::Full => left.push(store),
                Err(error) => {
                    assert!(self.model.fencing.borrow().contains(&store.incarnation()), "{error}");
                    assert_eq!(error.kind, ErrorKind::Fenced, "{error}");
                }
            }
        }
        left
    }

    async fn join(&mut self) -> Result<Store> {
        let (address, lost, forgets_one_in) = match &self.way {
            Way::Remote { address, lost, forgets_one_in } => (address.clone(), lost.clone(), *forgets_one_in),
            Way::Pool { pools, options } => return rados::join(&self.handle, pools.clone(), *options).await,
        };
        let near = NearEnd::dial(&self.handle, address, Services::default(), stream_options("a life"));
        let way = Forgetful {
            behind: RefCell::new(Rc::new(near)),
            next: RefCell::default(),
            late: None,
            prng: RefCell::new(self.prng.fork()),
            forgets_one_in,
            lost,
            model: self.model.clone(),
        };
        let options = RemoteOptions { patience: PATIENCE, ..RemoteOptions::new("the store") };
        remote::join(&self.handle, Rc::new(way), options).await
    }

    /// Does something; true if the life is over.
    async fn act(&mut self, store: &Store, open: &mut Vec<Open>) -> bool {
        let me = store.incarnation();
        // What it begins now must not be done.
        let was_over = self.model.is_over(me);
        self.handle.sleep(Duration::from_micros(self.prng.below(4000))).await;
        let is_new = open.len() < 3;
        let done = match self.prng.below(20) {
            0..3 if is_new => self.create(store, open).await,
            3..12 if !open.is_empty() => {
                let at = self.prng.below(open.len() as u64) as usize;
                let mut file = open.swap_remove(at);
                let appended = self.append(&mut file).await;
                match appended {
                    Ok(()) if file.writer.room() >= 8 * BLOCK && !self.prng.one_in(8) => {
                        open.push(file);
                        Ok(())
                    }
                    Err(error) if error.kind == ErrorKind::Fenced => Err(error),
                    appended => {
                        if let Err(error) = appended {
                            assert_eq!(error.kind, ErrorKind::Io, "{error}");
                            count(&self.model.failed);
                        }
                        self.seal(store, &file).await
                    }
                }
            }
            12..14 => match self.delete(store).await {
                Ok(false) => return false,
                deleted => deleted.map(drop),
            },
            14..17 => return self.read(store).await,
            17 if self.prng.one_in(4) => return self.fence(store).await,
            18 => return self.look(store).await,
            _ => {
                store.need_space(self.prng.between(1, 12) * MIB / 4);
                self.handle.sleep(Duration::from_micros(self.prng.between(1, 3000))).await;
                return false;
            }
        };
        match done {
            Ok(()) => {
                assert!(!was_over, "{me} was fenced, and does something");
                false
            }
            Err(error) => self.is_over(me, &error),
        }
    }

    /// What an error means that may come of anything.
    fn is_over(&self, me: Incarnation, error: &Error) -> bool {
        match error.kind {
            ErrorKind::Fenced => {
                assert!(self.model.fencing.borrow().contains(&me), "nobody has fenced {me}: {error}");
                count(&self.model.refused);
                true
            }
            ErrorKind::Io => {
                let is_far = error.message.contains("could not be reached") || error.message.contains("gave no answer");
                assert!(is_far, "{error}");
                false
            }
            ErrorKind::Full => {
                count(&self.model.full);
                false
            }
            _ => panic!("{error:?}"),
        }
    }

    async fn create(&mut self, store: &Store, open: &mut Vec<Open>) -> Result<()> {
        let kind = *self.prng.pick(&[FileKind::Journal, FileKind::Data, FileKind::Data, FileKind::Transaction]);
        let writer = store.create(options(kind, self.prng.one_in(2))).await?;
        let is_data = kind == FileKind::Data;
        let life = store.incarnation();
        let known = Known {
            life,
            confirmed: Default::default(),
            sealed: None,
            is_to_be_deleted: false,
            is_deleted: false,
            is_data,
        };
        let before = self.model.files.borrow_mut().insert(writer.id(), known);
        assert!(before.is_none(), "file {} was there", writer.id());
        assert!(store.info(writer.id()).is_some(), "who has created a file knows it");
        let space = store.space();
        assert!(space.used <= space.capacity, "it has what it was granted: {space:?}");
        open.push(Open { writer, confirmed: 0 });
        Ok(())
    }

    /// Appends several times at once.
    async fn append(&mut self, file: &mut Open) -> Result<()> {
        let mut flying = Vec::new();
        for _ in 0..self.prng.between(1, 4) {
            let numbers: Vec<u64> = (0..self.prng.between(1, 2)).map(|_| self.model.number()).collect();
            let mut data = AlignedBuf::with_capacity(numbers.len() * BLOCK as usize);
            numbers.iter().for_each(|number| data.extend_from_slice(&block(*number)));
            let append = file.writer.append(data.freeze());
            flying.push((numbers, append));
        }
        let mut outcome = Ok(());
        for (numbers, append) in flying {
            match append.await {
                Ok(offset) => {
                    let len = numbers.len() as u64;
                    let mut files = self.model.files.borrow_mut();
                    let known = files.get_mut(&file.writer.id()).unwrap();
                    // Only what has no hole before it was promised to anybody: the rest is not sealed.
                    if outcome.is_ok() {
                        file.confirmed = offset + len * BLOCK;
                        known.confirmed.extend((offset / BLOCK..).zip(numbers));
                        self.model.confirmed.set(self.model.confirmed.get() + len);
                    }
                }
                Err(error) => {
                    file.writer.fail();
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome
    }

    /// Ends a file where it was confirmed, however long that takes.
    async fn seal(&mut self, store: &Store, file: &Open) -> Result<()> {
        let (id, length) = (file.writer.id(), file.confirmed);
        loop {
            match store.seal(id, length).await {
                Ok(()) => {
                    self.model.files.borrow_mut().get_mut(&id).unwrap().sealed = Some(length);
                    assert_eq!(store.info(id).and_then(|info| info.sealed), Some(length));
                    return Ok(());
                }
                Err(error) if error.kind == ErrorKind::Io && !self.model.is_stopped() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Deletes a file that nobody appends to: one of its own, or one of a life that is over. False: there is none.
    async fn delete(&mut self, store: &Store) -> Result<bool> {
        let me = store.incarnation();
        let candidates: Vec<FileId> = {
            let files = self.model.files.borrow();
            let mine = |known: &Known| known.life == me && known.sealed.is_some();
            let may = |known: &Known| mine(known) || (known.is_data && self.model.is_over(known.life));
            files.iter().filter(|(_, known)| !known.is_deleted && may(known)).map(|(id, _)| *id).collect()
        };
        if candidates.is_empty() {
            return Ok(false);
        }
        let id = *self.prng.pick(&candidates);
        self.model.files.borrow_mut().get_mut(&id).unwrap().is_to_be_deleted = true;
        store.delete(id).await?;
        self.model.files.borrow_mut().get_mut(&id).unwrap().is_deleted = true;
        assert!(store.info(id).is_none() && store.list().iter().all(|info| info.id != id));
        Ok(true)
    }

    /// Reads a file of whoever has written it.
    async fn read(&mut self, store: &Store) -> bool {
        let candidates: Vec<(FileId, Known)> = {
            let files = self.model.files.borrow();
            let wanted = files.iter().filter(|(_, known)| !known.is_to_be_deleted && !known.confirmed.is_empty());
            wanted.map(|(id, known)| (*id, known.clone())).collect()
        };
        if candidates.is_empty() {
            return false;
        }
        let (id, known) = self.prng.pick(&candidates).clone();
        let len = (known.confirmed.keys().last().unwrap() + 1) * BLOCK;
        match store.read(id, 0, len as usize).await {
            Ok(content) => {
                known.check(&content, &format!("file {id}"));
                false
            }
            Err(error) if error.kind == ErrorKind::NotFound => {
                assert!(self.model.files.borrow()[&id].is_to_be_deleted, "{error}");
                false
            }
            Err(error) => self.is_over(store.incarnation(), &error),
        }
    }

    /// Ends somebody's life, its own included, and looks what it leaves.
    async fn fence(&mut self, store: &Store) -> bool {
        let lives: Vec<Incarnation> = self.model.files.borrow().values().map(|known| known.life).collect();
        let Some(victim) = (!lives.is_empty()).then(|| *self.prng.pick(&lives)) else { return false };
        self.model.fencing.borrow_mut().insert(victim);
        if let Err(error) = store.fence(victim).await {
            return self.is_over(store.incarnation(), &error);
        }
        self.model.fenced.borrow_mut().insert(victim);
        let Ok(files) = store.files_of(victim).await else { return false };
        for info in files.into_iter().filter(|info| info.sealed.is_none()) {
            for copy in 0..info.copies_wanted {
                // It may be deleted meanwhile, or nobody may be reached.
                if let Ok(content) = store.read_copy(info.id, copy, 0, info.capacity as usize).await {
                    let mut left = self.model.left.borrow_mut();
                    let before = left.entry((info.id, copy)).or_insert_with(|| AlignedBuf::copy_of(&content));
                    assert!(before[..] == content[..], "file {} changed after {victim} was fenced", info.id);
                }
            }
        }
        false
    }

    /// Looks at what others have.
    async fn look(&mut self, store: &Store) -> bool {
        let ids: Vec<FileId> = self.model.files.borrow().keys().copied().collect();
        let Some(id) = (!ids.is_empty()).then(|| *self.prng.pick(&ids)) else { return false };
        match store.find(id).await {
            Ok(found) => {
                let files = self.model.files.borrow();
                let known = &files[&id];
                assert!(found.is_some() || known.is_to_be_deleted, "file {id} is gone");
                assert!(found.is_none_or(|info| info.incarnation == known.life));
                false
            }
            Err(error) => self.is_over(store.incarnation(), &error),
        }
    }
}

pub fn options(kind: FileKind, prepared: bool) -> CreateOptions {
    CreateOptions {
        kind,
        capacity: 64 * KIB,
        redundancy: Redundancy::Copies(2),
        prepared,
        epoch: Epoch(1),
        segment: None,
        claim: files::Claim::Use,
    }
}
