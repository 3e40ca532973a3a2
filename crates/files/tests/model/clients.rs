//! Those who use a store: what compares it with the model, what recovers it, and clients that do one random thing
//! after the other.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::{Bytes, Epoch, ErrorKind, FileId, KIB, Prng, Result};
use files::{CreateOptions, FileInfo, FileKind, FileWriter, Redundancy, Store};
use runtime::{Class, Handle};

use crate::model::{BLOCK, Model, payload};
use crate::world::trace;

pub const CLIENTS: u64 = 3;
const FILES_MAX: usize = 14;

/// What all tasks of a life share.
#[derive(Clone)]
pub struct Shared {
    pub handle: Handle,
    pub store: Store,
    pub model: Rc<RefCell<Model>>,
    /// A fault was injected in this life or is there from before: errors are to be expected.
    pub faulty: Rc<Cell<bool>>,
    /// The clients come to an end.
    pub resting: Rc<Cell<bool>>,
}

impl Shared {
    /// Everything is as the model has it.
    pub async fn compare(&self) {
        self.model.borrow_mut().on_opened(&self.store);
        for info in self.store.list() {
            if !self.model.borrow().files.contains_key(&info.id) {
                // The caller of its creation never heard of it.
                let deleted = self.store.delete(info.id).await;
                assert!(deleted.is_ok() || self.faulty.get(), "{deleted:?}");
                if deleted.is_ok() {
                    self.model.borrow_mut().on_unheard_deleted(info.id);
                }
                continue;
            }
            for copy in 0..info.copies_wanted {
                self.check_content(info.id, Some(copy)).await;
            }
            self.check_content(info.id, None).await;
        }
    }

    /// Reads what was confirmed of a file, in one copy or in any.
    async fn check_content(&self, id: FileId, copy: Option<u8>) {
        let count = self.model.borrow().readable_blocks(id);
        for block in 0..count {
            let read = match copy {
                Some(copy) => self.store.read_copy(id, copy, block * BLOCK, BLOCK as usize).await,
                None => self.store.read(id, block * BLOCK, BLOCK as usize).await,
            };
            self.model.borrow().check_read(&self.store, (id, block, copy), &read, self.faulty.get());
            if read.is_err() {
                return;
            }
        }
    }

    /// Chooses an end for files of earlier lives, in the way that a journal's recovery does.
    pub async fn recover(&self, prng: &mut Prng) {
        for info in self.store.list() {
            if info.sealed.is_some() || !self.model.borrow().files.contains_key(&info.id) || prng.one_in(4) {
                continue;
            }
            let (chosen, confirmed) = {
                let model = self.model.borrow();
                let file = &model.files[&info.id];
                (file.chosen_end(), file.confirmed())
            };
            let length = match chosen {
                Some(chosen) => chosen,
                None if prng.one_in(2) && confirmed < info.capacity && self.keep_tail(&info, confirmed).await => {
                    confirmed + BLOCK
                }
                None => confirmed,
            };
            self.seal(info.id, length).await;
            self.model.borrow_mut().coverage.recovered_files += 1;
        }
    }

    /// A block that nobody confirmed is kept if some copy has it, and brought to the others.
    async fn keep_tail(&self, info: &FileInfo, offset: u64) -> bool {
        let block = offset / BLOCK;
        let good = payload(info.id, block..block + 1);
        let mut found = false;
        for copy in 0..info.copies_wanted {
            let read = self.store.read_copy(info.id, copy, offset, BLOCK as usize).await;
            found |= read.is_ok_and(|read| read[..] == good[..]);
        }
        let kept = found && self.repair_all(info, offset, &good).await.is_ok();
        if kept {
            let mut model = self.model.borrow_mut();
            model.coverage.tails_kept += 1;
            model.files.get_mut(&info.id).unwrap().on_tail_kept(block);
        }
        kept
    }

    async fn repair_all(&self, info: &FileInfo, offset: u64, good: &Bytes) -> Result<()> {
        for copy in 0..info.copies_wanted {
            match self.store.repair_copy(info.id, copy, offset, good.clone()).await {
                Err(error) if error.kind == ErrorKind::NotFound => {}
                result => result?,
            }
        }
        Ok(())
    }

    async fn seal(&self, id: FileId, length: u64) {
        {
            let mut model = self.model.borrow_mut();
            let Some(file) = model.files.get_mut(&id) else { return };
            file.on_seal(length);
        }
        let sealed = self.store.seal(id, length).await;
        let mut model = self.model.borrow_mut();
        let Some(file) = model.files.get_mut(&id) else { return };
        match sealed {
            Ok(()) => file.on_sealed(length),
            Err(error) => assert!(self.faulty.get() || file.deleting, "sealing {id}: {error}"),
        }
    }
}

/// One of those who work at once: its files are those with its number as remainder of their ids.
pub struct Client {
    shared: Shared,
    number: u64,
    prng: Prng,
    writers: BTreeMap<FileId, FileWriter>,
}

impl Client {
    pub fn new(shared: Shared, number: u64, prng: Prng) -> Client {
        Client { shared, number, prng, writers: BTreeMap::new() }
    }

    /// Does one thing after the other until it is told to rest.
    pub async fn work(mut self) {
        while !self.shared.resting.get() {
            let mine = self.files(|id| id.0 % CLIENTS == self.number);
            match self.prng.below(13) {
                0..=1 if self.shared.model.borrow().files.len() < FILES_MAX => self.create().await,
                0..=7 if !self.writers.is_empty() => self.append().await,
                8 | 12 if !self.writers.is_empty() => {
                    let id = self.pick_writer();
                    self.end(id).await;
                }
                9 if !mine.is_empty() && self.prng.one_in(2) => {
                    let id = *self.prng.pick(&mine);
                    self.delete(id).await;
                }
                10 => {
                    let all = self.files(|_| true);
                    if !all.is_empty() {
                        self.shared.check_content(*self.prng.pick(&all), None).await;
                    }
                }
                _ => self.shared.handle.sleep(Duration::from_micros(self.prng.between(1, 500))).await,
            }
        }
        // So that nothing is left without its copies.
        while let Some(id) = self.writers.keys().next().copied() {
            self.end(id).await;
        }
    }

    fn files(&self, matches: impl Fn(&FileId) -> bool) -> Vec<FileId> {
        self.shared.model.borrow().files.keys().copied().filter(matches).collect()
    }

    fn pick_writer(&mut self) -> FileId {
        let ids = self.writers.keys().copied().collect::<Vec<_>>();
        *self.prng.pick(&ids)
    }

    /// A file ends where it was confirmed.
    async fn end(&mut self, id: FileId) {
        self.writers.remove(&id);
        let length = self.shared.model.borrow().confirmed(id);
        self.shared.seal(id, length).await;
    }

    async fn create(&mut self) {
        let Shared { store, model, faulty, .. } = &self.shared;
        let copies = (store.statistics().directories.len() as u8).min(2);
        let options = CreateOptions {
            kind: *self.prng.pick(&FileKind::ALL),
            capacity: *self.prng.pick(&[32 * KIB, 64 * KIB]),
            redundancy: Redundancy::Copies(copies),
            prepared: self.prng.one_in(2),
            epoch: Epoch(1),
            segment: None,
            claim: files::Claim::Use,
        };
        model.borrow_mut().on_creating();
        let created = store.create(options).await;
        match created {
            Ok(writer) => {
                model.borrow_mut().on_created(writer.id(), options, store.incarnation());
                self.writers.insert(writer.id(), writer);
            }
            // It may be found later.
            Err(error) if error.kind == ErrorKind::Full => model.borrow_mut().coverage.full += 1,
            Err(error) => assert!(faulty.get(), "creating a file: {error}"),
        }
    }

    /// A few appends at once to one file, which ends if one of them fails.
    async fn append(&mut self) {
        let id = self.pick_writer();
        if self.shared.model.borrow().files.get(&id).is_none_or(|file| file.deleting) {
            // By another client.
            self.writers.remove(&id);
            return;
        }
        let writer = self.writers.get_mut(&id).unwrap();
        let mut appends = Vec::new();
        for _ in 0..self.prng.between(1, 3) {
            let count = self.prng.between(1, 3).min(writer.room() / BLOCK);
            if count == 0 {
                break;
            }
            let first = writer.position() / BLOCK;
            self.shared.model.borrow_mut().files.get_mut(&id).unwrap().on_append(count);
            let append = writer.append(payload(id, first..first + count));
            let Shared { handle, model, faulty, .. } = self.shared.clone();
            appends.push(handle.spawn(Class::Io, "append", async move {
                let appended = append.await;
                let mut model = model.borrow_mut();
                let Some(file) = model.files.get_mut(&id) else { return true };
                match appended {
                    Ok(offset) => {
                        file.on_appended(offset / BLOCK..offset / BLOCK + count);
                        true
                    }
                    Err(error) => {
                        assert!(faulty.get() || file.deleting, "appending: {error}");
                        model.coverage.failed_appends += 1;
                        false
                    }
                }
            }));
        }
        let mut whole = true;
        for append in appends {
            whole &= append.await;
        }
        if !whole {
            self.end(id).await;
        }
    }

    async fn delete(&mut self, id: FileId) {
        let Shared { handle, store, model, faulty, .. } = &self.shared;
        self.writers.remove(&id);
        model.borrow_mut().files.get_mut(&id).unwrap().deleting = true;
        let places = (0..2).map(|copy| store.locate(id, copy)).collect::<Vec<_>>().join(", ");
        let result = store.delete(id).await;
        trace(handle, || format!("delete {id} {places} {result:?}"));
        match result {
            Ok(()) => drop(model.borrow_mut().files.remove(&id)),
            Err(error) => assert!(faulty.get(), "deleting {id}: {error}"),
        }
    }
}
