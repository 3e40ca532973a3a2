//! Several writers at once over one store.
//!
//! **Intuition.** A [`Store`] has one writer: the process that opened it. Servers that hand segments to each other need
//! one store with many, of which any may be stopped for good while the others go on. So one process has the store
//! *below*, and gives each writer a life of its own: a number, and a [`Store`] that changes only what is the life's
//! (`member`). What a life may do is decided here, for each operation, by its *guard*.
//!
//! **Names.** A *life* is one writer from [`Shared::join`] on, numbered by its incarnation; it has no end, but may be
//! *fenced*. Its **guard** (`guard`) is a file of kind `Incarnation`: sealed means fenced, so that a fence is as durable
//! as a seal is, and needs no second truth. In it stands the life's *grant*, what it may set aside for files.
//!
//! **Invariants** (rules 35, 36, 43 and 44 of docs/SAFETY.md).
//! - A number is given to one life only, also after a restart of the store below.
//! - A fence concerns one life. It is durable when it returns, and nothing of that life is in flight any more: what
//!   was confirmed is on disk, what was not never will be.
//! - A file is its creator's to append to and to seal; of one that is fenced, everybody's to seal and delete. Data files
//!   and tables belong to a segment, and whoever owns it deletes them: this floor does not know who that is.
//! - What lives were granted, and what files of fenced ones take up, is at most what the store below has.
//! - Of that the *reserve* is granted to nobody for use. An adoption may have it, and grows the grant by what it copies;
//!   a log may, beyond the grant, which has to be made good before the life makes files for use. So what is deleted fills
//!   the reserve first, and nothing that goes on for ever draws on it.
//! - A life sees the files that it created in its list. Those of others it reads by their id, and finds them by the
//!   life that created them.
//!
//! **Flow.** *Join*: a number, durable in the store below; then it *enters*: a guard with the first grant. Whoever is far
//! away does these one by one, since it may ask again for what it has no answer to: see `crate::served`. *An operation*: refused if the
//! life is fenced, else counted as in flight until it is done, whoever stops waiting for it. *Fence*: refuse what comes,
//! seal the guard, wait for what is in flight. *A restart of the store below*: lives go on with their number; the files
//! that they were appending to take no more, and they go on in new ones.

mod guard;
mod life;
mod member;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Error, ErrorKind, FileId, GIB, Incarnation, Result, SegmentId, StoreId};
use runtime::sync::Budget;
use runtime::{Class, Handle};

use self::guard::{GUARD_BYTES, Guard};
use self::life::Life;
use self::member::Member;
use crate::{Claim, FileInfo, FileKind, Store};

/// Most numbers that were given out and not used yet.
const UNUSED_MAX: usize = 1024;

/// The reserve is at most this part of the store.
const RESERVE_PART: u64 = 16;

/// How a store is shared.
#[derive(Clone, Copy, Debug)]
pub struct SharedOptions {
    /// What a life is granted at a time.
    pub grant_bytes: u64,
    /// What only logs and adoption may take ([`Claim`]), so that a full store can be taken over and emptied: as much as
    /// a dead engine may have that is in its journals and memtables only, and a log and a journal of the one who takes its
    /// place. A sixteenth of the store at most.
    pub reserve_bytes: u64,
    /// Copies of each guard.
    pub copies: u8,
}

impl Default for SharedOptions {
    fn default() -> Self {
        SharedOptions { grant_bytes: GIB, reserve_bytes: 2 * GIB, copies: 2 }
    }
}

/// A store that several writers have at once. Clones share it.
#[derive(Clone)]
pub struct Shared(Rc<Inner>);

struct Inner {
    handle: Handle,
    below: Store,
    options: SharedOptions,
    lives: RefCell<BTreeMap<Incarnation, Rc<Life>>>,
    /// The files that name a segment.
    segments: RefCell<BTreeMap<SegmentId, BTreeSet<FileId>>>,
    /// Who changes grants: one at a time.
    granting: Budget,
    /// Numbers up to this one were given out.
    numbered: Cell<Incarnation>,
    /// Those of them that may still begin a life: the newest ones.
    unused: RefCell<BTreeSet<Incarnation>>,
}

/// What is known of a life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LifeInfo {
    /// Its number.
    pub incarnation: Incarnation,
    /// Whether it is over.
    pub is_fenced: bool,
    /// Bytes that it may set aside.
    pub granted_bytes: u64,
    /// Bytes that its files have set aside.
    pub used_bytes: u64,
}

impl Shared {
    /// Shares `below`, which nobody else writes to. Lives of before are there again.
    ///
    /// # Errors
    /// `Io`, `Full`; `Corrupt` where it cannot be told which life a guard is of.
    pub async fn open(handle: &Handle, below: Store, options: SharedOptions) -> Result<Shared> {
        let numbered = below.incarnation();
        let shared = Shared(Rc::new(Inner {
            handle: handle.clone(),
            below,
            options,
            lives: RefCell::default(),
            segments: RefCell::default(),
            granting: Budget::new(1),
            numbered: Cell::new(numbered),
            unused: RefCell::default(),
        }));
        let mut guards: BTreeMap<Incarnation, Vec<FileInfo>> = BTreeMap::new();
        for info in shared.0.below.list() {
            if info.kind != FileKind::Incarnation {
                shared.0.on_file(&shared.0.life_or_lost(info.incarnation), &info, false);
            } else if info.incarnation == Incarnation(0) {
                let place = shared.0.below.locate(info.id, 0);
                return Err(Error::corrupt(format!("{place} says who may write, and cannot be read: restore it")));
            } else {
                guards.entry(info.incarnation).or_default().push(info);
            }
        }
        for (incarnation, infos) in guards {
            let guard = Guard::recover(&shared.0.below, incarnation, &infos).await?;
            let life = shared.0.life_or_lost(incarnation);
            life.restore(guard);
            shared.0.forget_if_gone(&life).await;
        }
        Ok(shared)
    }

    /// One more life, and its store.
    ///
    /// # Errors
    /// `Io`, `Full`; `Fenced` where it was fenced before it began.
    pub async fn join(&self) -> Result<Store> {
        let incarnation = self.number().await?;
        self.enter(incarnation).await
    }

    /// A number for one more life, which begins when it [enters](Shared::enter). One that never does leaves nothing.
    ///
    /// # Errors
    /// `Io`.
    pub async fn number(&self) -> Result<Incarnation> {
        loop {
            let incarnation = self.0.below.0.begin_incarnation().await?;
            self.0.numbered.set(incarnation.max(self.0.numbered.get()));
            // Somebody may have fenced a number that had no life yet.
            if !self.0.lives.borrow().contains_key(&incarnation) {
                let mut unused = self.0.unused.borrow_mut();
                unused.insert(incarnation);
                if unused.len() > UNUSED_MAX {
                    unused.pop_first();
                }
                return Ok(incarnation);
            }
        }
    }

    /// Begins the life of a number that was given out, or goes on with it. May be repeated.
    ///
    /// # Errors
    /// `NotFound`: there is no such life, and none may begin (any more). `Fenced`, `Io`, `Full`.
    pub async fn enter(&self, incarnation: Incarnation) -> Result<Store> {
        let is_new = self.0.unused.borrow_mut().remove(&incarnation);
        let known = self.0.lives.borrow().get(&incarnation).cloned();
        let life = match known {
            Some(life) => life,
            None if is_new => self.0.insert(Life::new(incarnation)),
            None => return Err(nobody(incarnation)),
        };
        life.check_alive()?;
        self.0.grant_first(&life).await?;
        Ok(self.store(life))
    }

    /// The store of a life that joined before: of a writer that has lost touch.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn rejoin(&self, incarnation: Incarnation) -> Result<Store> {
        let life = self.0.lives.borrow().get(&incarnation).cloned();
        life.map(|life| self.store(life)).ok_or_else(|| nobody(incarnation))
    }

    fn store(&self, life: Rc<Life>) -> Store {
        Store::new(Rc::new(Member::new(&self.0, life)))
    }

    /// The id of the store below.
    pub fn id(&self) -> StoreId {
        self.0.below.id()
    }

    /// Ends the life with exactly this number, durably, also if there is none yet. When it returns, everything that the
    /// life was told to be done is on disk, and nothing more comes.
    ///
    /// # Errors
    /// `Io`: nobody knows whether the fence stands. Ask again.
    pub async fn fence(&self, incarnation: Incarnation) -> Result<()> {
        self.0.fence(incarnation).await
    }

    /// Every life of which there is a guard or a file, by number.
    pub fn lives(&self) -> Vec<LifeInfo> {
        self.0.lives.borrow().values().map(|life| life.info()).collect()
    }

    /// One of them.
    pub fn life(&self, incarnation: Incarnation) -> Option<LifeInfo> {
        self.0.lives.borrow().get(&incarnation).map(|life| life.info())
    }

    /// Waits until nothing that a life has begun to change is in flight.
    pub(crate) async fn at_rest(&self, incarnation: Incarnation) {
        let life = self.0.lives.borrow().get(&incarnation).cloned();
        if let Some(life) = life {
            life.at_rest().await;
        }
    }

    /// Grants a life more, so that `bytes` are free, as far as there is more.
    pub(crate) async fn need_space(&self, incarnation: Incarnation, bytes: u64) {
        let life = self.0.lives.borrow().get(&incarnation).cloned();
        if let Some(life) = life.filter(|life| !life.is_fenced())
            && let Some(missing) = self.0.plan_growth(&life, bytes)
        {
            self.0.grow(&life, missing).await;
        }
    }

    /// A file of whichever life.
    pub fn find(&self, file: FileId) -> Option<FileInfo> {
        self.0.below.info(file).filter(|info| info.kind != FileKind::Incarnation)
    }

    /// The files that a life created, by id.
    pub fn files_of(&self, incarnation: Incarnation) -> Vec<FileInfo> {
        let life = self.0.lives.borrow().get(&incarnation).cloned();
        life.map(|life| self.0.files_of(&life)).unwrap_or_default()
    }

    /// The files that name a segment, by id, whoever created them.
    pub fn files_of_segment(&self, segment: SegmentId) -> Vec<FileInfo> {
        self.0.files_of_segment(segment)
    }
}

fn nobody(incarnation: Incarnation) -> Error {
    Error::not_found(format!("incarnation {incarnation} has not joined this store"))
}

impl Inner {
    fn insert(&self, life: Life) -> Rc<Life> {
        let life = Rc::new(life);
        self.lives.borrow_mut().insert(life.incarnation, life.clone());
        life
    }

    /// The life with this number: fenced, if nothing but its files is known.
    fn life_or_lost(&self, incarnation: Incarnation) -> Rc<Life> {
        let known = self.lives.borrow().get(&incarnation).cloned();
        known.unwrap_or_else(|| {
            let life = Life::new(incarnation);
            life.stop();
            self.insert(life)
        })
    }

    fn files_of(&self, life: &Life) -> Vec<FileInfo> {
        life.files().into_iter().filter_map(|file| self.below.info(file)).collect()
    }

    fn files_of_segment(&self, segment: SegmentId) -> Vec<FileInfo> {
        let segments = self.segments.borrow();
        segments.get(&segment).into_iter().flatten().filter_map(|file| self.below.info(*file)).collect()
    }

    /// A file that a life has, of which the space is not counted yet.
    fn on_file(&self, life: &Life, info: &FileInfo, is_new: bool) {
        life.on_file(info, is_new);
        if let Some(segment) = info.segment {
            self.segments.borrow_mut().entry(segment).or_default().insert(info.id);
        }
    }

    /// A file was changed, which may have named `segment`: what is counted of it follows.
    fn on_changed(&self, creator: &Life, file: FileId, segment: Option<SegmentId>) {
        let info = self.below.info(file);
        creator.on_changed(file, info.as_ref());
        let mut segments = self.segments.borrow_mut();
        if let (None, Some(segment)) = (info, segment)
            && let Some(files) = segments.get_mut(&segment)
        {
            files.remove(&file);
            if files.is_empty() {
                segments.remove(&segment);
            }
        }
    }

    async fn fence(&self, incarnation: Incarnation) -> Result<()> {
        if base::seeded::is_on("fence-fences-nothing") {
            return Ok(());
        }
        self.unused.borrow_mut().remove(&incarnation);
        let life = self.life_or_lost(incarnation);
        life.stop();
        life.guard.seal(&self.below, incarnation, self.options.copies).await?;
        life.at_rest().await;
        if !base::seeded::is_on("grant-kept-by-the-dead") {
            life.give_back();
        }
        self.forget_if_gone(&life).await;
        Ok(())
    }

    /// Of a life that is over and left no file nothing has to be known: its number is not given out again. One that was
    /// fenced before it was given out has to be.
    async fn forget_if_gone(&self, life: &Life) {
        let is_gone = life.guard.is_sealed() && !life.has_files() && life.incarnation <= self.numbered.get();
        if is_gone && self.lives.borrow_mut().remove(&life.incarnation).is_some() {
            life.guard.delete(&self.below).await;
        }
    }

    /// What may still be granted for use.
    fn available(&self) -> u64 {
        let reserve = self.options.reserve_bytes.min(self.below.space().capacity / RESERVE_PART);
        self.left().saturating_sub(reserve)
    }

    /// What nobody has, the reserve included.
    fn left(&self) -> u64 {
        let space = self.below.space();
        let lives = self.lives.borrow();
        // A guard that is renewed is there twice.
        let guards = 2 * GUARD_BYTES * (lives.len() as u64 + 1);
        let taken: u64 = lives.values().map(|life| life.claim()).sum();
        // What the store below has for itself: the beginnings of files.
        let kept = space.capacity / 64;
        space.capacity.saturating_sub(taken + guards + kept)
    }

    /// Grants `bytes` more to a life for use, as far as there is room for them.
    async fn grant(&self, life: &Rc<Life>, bytes: u64) -> Result<()> {
        let _alone = self.granting.take(1).await;
        self.grant_alone(life, bytes.min(self.available())).await
    }

    /// What a life begins with, if it has nothing.
    async fn grant_first(&self, life: &Rc<Life>) -> Result<()> {
        let _alone = self.granting.take(1).await;
        match life.granted() {
            0 => self.grant_alone(life, self.options.grant_bytes.min(self.available())).await,
            _ => Ok(()),
        }
    }

    async fn grant_alone(&self, life: &Rc<Life>, bytes: u64) -> Result<()> {
        let granted = life.granted() + bytes;
        // Also of one who has more than it was granted.
        life.begin_grant(life.granted().max(life.used()) + bytes);
        life.guard.record(&self.below, life.incarnation, self.options.copies, granted).await?;
        life.end_grant(granted);
        Ok(())
    }

    /// Sets `bytes` aside for a file.
    async fn claim(&self, life: &Rc<Life>, bytes: u64, claim: Claim) -> Result<()> {
        if claim == Claim::Adoption && self.claim_for_adoption(life, bytes).await? {
            return Ok(());
        }
        match self.claim_granted(life, bytes).await {
            Err(full) if full.kind == ErrorKind::Full && claim == Claim::Log => {
                life.try_overdraw(bytes, self.left()).then_some(()).ok_or(full)
            }
            claimed => claimed,
        }
    }

    /// Grants a life what it copies from a dead one, so that it has as much for use as before. False: there is no such
    /// room.
    async fn claim_for_adoption(&self, life: &Rc<Life>, bytes: u64) -> Result<bool> {
        let _alone = self.granting.take(1).await;
        if bytes > self.left() {
            return Ok(false);
        }
        self.grant_alone(life, bytes).await?;
        life.take(bytes);
        Ok(true)
    }

    /// Makes room for a file of `bytes` within the life's grant.
    async fn claim_granted(&self, life: &Rc<Life>, bytes: u64) -> Result<()> {
        while !life.try_claim(bytes) {
            let missing = life.missing(bytes);
            if missing > self.available() {
                let (need, free) = (base::units::format_size(bytes), base::units::format_size(life.free()));
                return Err(Error::full(format!(
                    "no room for a file of {need}: {free} are left of what incarnation {} was granted, and the store \
                     has no more; delete or discard something",
                    life.incarnation
                )));
            }
            self.grant(life, missing.max(self.options.grant_bytes)).await?;
        }
        Ok(())
    }

    /// Grants more before it is needed, so that `bytes` are free.
    fn grant_ahead(self: &Rc<Self>, life: &Rc<Life>, bytes: u64) {
        if let Some(missing) = self.plan_growth(life, bytes) {
            let (inner, life) = (self.clone(), life.clone());
            self.handle.spawn(Class::Background, "grant", async move { inner.grow(&life, missing).await }).detach();
        }
    }

    /// What a life lacks of `bytes`, if it can be given more and nobody does that already: it is to be [grown](Self::grow)
    /// then.
    fn plan_growth(&self, life: &Life, bytes: u64) -> Option<u64> {
        let missing = life.missing(bytes);
        (missing > 0 && self.available() > 0 && life.begin_growing()).then_some(missing)
    }

    async fn grow(&self, life: &Rc<Life>, missing: u64) {
        if let Err(error) = self.grant(life, missing.max(self.options.grant_bytes)).await {
            tracing::warn!(incarnation = %life.incarnation, "no more space was granted: {error}");
        }
        life.end_growing();
    }

    /// Whether `life` may delete or mend a file; gives the file's creator, and the segment that it names.
    fn check_may_change(&self, life: &Life, file: FileId) -> Result<(Rc<Life>, Option<SegmentId>)> {
        let info = self.below.info(file).filter(|info| info.kind != FileKind::Incarnation);
        let info = info.ok_or_else(|| Error::not_found(format!("there is no file {file}")))?;
        let creator = self.life_or_lost(info.incarnation);
        match info.kind.is_of_segment() || creator.incarnation == life.incarnation || creator.is_fenced() {
            true => Ok((creator, info.segment)),
            false => Err(Error::conflict(format!(
                "file {file} is a {} of incarnation {}, which lives: fence it first",
                info.kind.name(),
                info.incarnation
            ))),
        }
    }
}
