//! What is known of files and space without asking the store.
//!
//! Invariant: a file of this life is known from the answer to its creation until that to its deletion. One that the store
//! has and that is not known here, while nothing is being changed, was created for somebody who has no answer: nobody
//! knows of it, and nobody will.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::rc::Rc;

use base::{Error, FileId, Incarnation, Result};
use runtime::sync::Event;
use wire::files::{FileDescriptor, LifeSpace};

use crate::{FileInfo, FileKind, Statistics, StoreSpace};

/// Most files of others that are remembered.
const OTHERS_MAX: usize = 65_536;
/// Most files whose space is remembered after they were deleted.
const SPARES_MAX: usize = 64;

/// See the module.
pub(super) struct Known {
    incarnation: Incarnation,
    own: RefCell<BTreeMap<FileId, Own>>,
    others: RefCell<BTreeMap<FileId, FileInfo>>,
    granted: Cell<u64>,
    /// What own files have set aside: asked for with every write.
    used: Cell<u64>,
    /// Kind and capacity of prepared files that were deleted: the store may have their space at hand.
    spares: RefCell<VecDeque<(FileKind, u64)>>,
    statistics: RefCell<Statistics>,
    /// Changes of files that are in flight, and that were.
    changing: Cell<u64>,
    changed: Cell<u64>,
    rested: Event,
}

/// A file of this life.
struct Own {
    info: FileInfo,
    is_prepared: bool,
    /// Nobody knows how far it was appended to, and why.
    broken: Option<String>,
}

/// Something that may make or remove files is in flight until this is dropped.
pub(super) struct Change(Rc<Known>);

impl Drop for Change {
    fn drop(&mut self) {
        let known = &self.0;
        known.changed.set(known.changed.get() + 1);
        known.changing.set(known.changing.get() - 1);
        if known.changing.get() == 0 {
            known.rested.notify();
        }
    }
}

impl Known {
    pub(super) fn new(incarnation: Incarnation) -> Rc<Known> {
        Rc::new(Known {
            incarnation,
            own: RefCell::default(),
            others: RefCell::default(),
            granted: Cell::default(),
            used: Cell::default(),
            spares: RefCell::default(),
            statistics: RefCell::default(),
            changing: Cell::default(),
            changed: Cell::default(),
            rested: Event::new(),
        })
    }
}

/// Changes.
impl Known {
    pub(super) fn begin_change(self: &Rc<Self>) -> Change {
        self.changing.set(self.changing.get() + 1);
        Change(self.clone())
    }

    /// Waits until nothing is being changed.
    pub(super) async fn at_rest(&self) {
        loop {
            let rested = self.rested.wait();
            if self.changing.get() == 0 {
                return;
            }
            rested.await;
        }
    }

    /// Tells changes apart: nothing was changed between two equal moments. None while something is.
    pub(super) fn moment(&self) -> Option<u64> {
        (self.changing.get() == 0).then(|| self.changed.get())
    }

    pub(super) fn on_created(&self, file: &FileDescriptor, is_prepared: bool) -> Result<FileId> {
        let info = info_of(file)?;
        if is_prepared {
            let mut spares = self.spares.borrow_mut();
            let taken = spares.iter().position(|spare| *spare == (info.kind, info.capacity));
            taken.and_then(|at| spares.remove(at));
        }
        self.own.borrow_mut().insert(file.id, Own { info, is_prepared, broken: None });
        self.count();
        Ok(file.id)
    }

    /// What the store says of a file.
    pub(super) fn on_found(&self, info: FileInfo) {
        if let Some(own) = self.own.borrow_mut().get_mut(&info.id) {
            own.info = info.clone();
        }
        self.count();
        if info.incarnation != self.incarnation {
            let mut others = self.others.borrow_mut();
            others.insert(info.id, info);
            if others.len() > OTHERS_MAX {
                others.pop_first();
            }
        }
    }

    /// There is no such file any more.
    pub(super) fn on_gone(&self, file: FileId) {
        self.others.borrow_mut().remove(&file);
        let gone = self.own.borrow_mut().remove(&file);
        self.count();
        if let Some(Own { info, is_prepared: true, .. }) = gone {
            let mut spares = self.spares.borrow_mut();
            spares.push_back((info.kind, info.capacity));
            if spares.len() > SPARES_MAX {
                spares.pop_front();
            }
        }
    }

    /// These are the files of another life.
    pub(super) fn on_files_of(&self, incarnation: Incarnation, files: &[FileInfo]) {
        self.others.borrow_mut().retain(|_, info| info.incarnation != incarnation);
        files.iter().for_each(|info| self.on_found(info.clone()));
    }

    /// These are the files that the store has of this life, and nothing is being changed: gives those that nobody knows.
    pub(super) fn settle(&self, files: &[FileInfo]) -> Vec<FileId> {
        let mut own = self.own.borrow_mut();
        let mut before = std::mem::take(&mut *own);
        let mut unknown = Vec::new();
        for info in files {
            match before.remove(&info.id) {
                Some(known) => drop(own.insert(info.id, Own { info: info.clone(), ..known })),
                None => unknown.push(info.id),
            }
        }
        drop(own);
        self.count();
        unknown
    }

    fn count(&self) {
        self.used.set(self.own.borrow().values().map(|own| own.info.capacity).sum());
    }
}

/// Space, and what else is asked without waiting.
impl Known {
    /// The grant of a life that goes on only grows: in whatever order answers come, the most counts.
    pub(super) fn on_space(&self, space: LifeSpace) {
        self.granted.set(self.granted.get().max(space.granted));
    }

    pub(super) fn space(&self) -> StoreSpace {
        let (capacity, used) = (self.granted.get(), self.used.get());
        StoreSpace { capacity, used, free: capacity.saturating_sub(used) }
    }

    pub(super) fn list(&self) -> Vec<FileInfo> {
        self.own.borrow().values().map(|own| own.info.clone()).collect()
    }

    pub(super) fn is_own(&self, file: FileId) -> bool {
        self.own.borrow().contains_key(&file)
    }

    pub(super) fn info(&self, file: FileId) -> Option<FileInfo> {
        let own = self.own.borrow().get(&file).map(|own| own.info.clone());
        own.or_else(|| self.others.borrow().get(&file).cloned())
    }

    pub(super) fn recyclable(&self, kind: FileKind, capacities: &RangeInclusive<u64>) -> Option<u64> {
        let spares = self.spares.borrow();
        let fitting = spares.iter().filter(|(of, capacity)| *of == kind && capacities.contains(capacity));
        fitting.map(|(_, capacity)| *capacity).max()
    }

    pub(super) fn statistics(&self) -> Statistics {
        self.statistics.borrow().clone()
    }
}

/// Appends and reads.
impl Known {
    /// An append to this file failed, or nobody knows what came of it: it takes no more.
    pub(super) fn break_file(&self, file: FileId, why: &str) {
        if let Some(own) = self.own.borrow_mut().get_mut(&file) {
            own.broken.get_or_insert_with(|| why.to_owned());
        }
    }

    /// Whether nothing is in doubt about a file that is to be appended to.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn check_appendable(&self, file: FileId) -> Result<()> {
        match self.own.borrow().get(&file).and_then(|own| own.broken.as_ref()) {
            Some(why) => Err(Error::io(format!(
                "an append to file {file} failed before ({why}): seal it at its confirmed length and go on in a new one"
            ))),
            None => Ok(()),
        }
    }

    pub(super) fn on_appended(&self, file: FileId, bytes: u64) {
        if let Some(own) = self.own.borrow().get(&file) {
            let bytes = bytes * u64::from(own.info.copies);
            self.statistics.borrow_mut().written_bytes[own.info.kind as usize] += bytes;
        }
    }

    pub(super) fn on_read(&self, file: FileId, bytes: u64) {
        if let Some(info) = self.info(file) {
            self.statistics.borrow_mut().read_bytes[info.kind as usize] += bytes;
        }
    }
}

/// What the store says of a file, as this floor says it.
///
/// # Errors
/// `Invalid`: the store is newer.
pub(super) fn info_of(file: &FileDescriptor) -> Result<FileInfo> {
    let kind = FileKind::from_number(file.kind).ok_or_else(|| {
        let FileDescriptor { id, kind, .. } = file;
        Error::invalid(format!("file {id} has the kind {kind}, which is unknown here: upgrade this process"))
    })?;
    let FileDescriptor { id, incarnation, epoch, segment, capacity, sealed, copies, copies_wanted, .. } = *file;
    Ok(FileInfo { id, kind, incarnation, epoch, segment, capacity, sealed, copies, copies_wanted })
}
