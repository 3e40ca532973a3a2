//! The files of a store, in memory: which copies each has, whether it is sealed, who may write.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::seeded::is_on;
use base::{BLOCK, DirectoryId, Epoch, Error, FileId, Incarnation, Result, SegmentId};
use runtime::File;
use runtime::sync::Budget;

use super::directory::{Directory, State};
use super::header::{Birth, HEADER, Header};
use super::names::Name;
use crate::{FileInfo, FileKind};

/// In the place of a copy's number: callers ask for the numbers below the copies wanted only, so each of those goes to
/// a copy that is to stay, and what is too many has none.
const SURPLUS: u8 = u8::MAX;

/// Every file, by id.
#[derive(Default)]
pub(crate) struct Catalogue {
    entries: RefCell<BTreeMap<FileId, Rc<Entry>>>,
    /// Names of which nobody knows what is behind them. They are not read, but deleted with the file.
    damaged: RefCell<BTreeMap<FileId, Vec<DamagedCopy>>>,
}

/// What may be a copy of a file.
#[derive(Clone)]
pub(crate) struct DamagedCopy {
    pub(crate) directory: Rc<Directory>,
    pub(crate) name: Name,
    pub(crate) why: String,
}

/// One file.
pub(crate) struct Entry {
    pub(crate) id: FileId,
    pub(crate) kind: FileKind,
    /// The life that it says that it is of.
    pub(crate) incarnation: Incarnation,
    /// Whether this life of the store created it: no other one is appended to.
    pub(crate) is_new: bool,
    pub(crate) epoch: Epoch,
    pub(crate) segment: Option<SegmentId>,
    /// Bytes of content that were set aside when it was born.
    pub(crate) capacity: u64,
    pub(crate) prepared: bool,
    pub(crate) copies_wanted: u8,
    /// Held by whoever seals, deletes, repairs or copies it.
    pub(crate) gate: Budget,
    pub(crate) state: RefCell<EntryState>,
}

/// What changes about a file.
pub(crate) struct EntryState {
    /// Its end, durable in every copy.
    pub(crate) sealed: Option<u64>,
    /// The end that a seal chose which is not durable everywhere yet: no other may be chosen.
    pub(crate) sealing: Option<u64>,
    /// Being deleted: nobody sees it any more.
    pub(crate) deleted: bool,
    /// Its copies in directories that are members or may become members, by number.
    pub(crate) copies: Vec<Copy>,
}

/// One copy of a file.
#[derive(Clone)]
pub(crate) struct Copy {
    /// Which, below the copies wanted; or [`SURPLUS`].
    pub(crate) number: u8,
    /// Where.
    pub(crate) directory: Rc<Directory>,
    /// Its birth record.
    pub(crate) birth: Rc<Birth>,
    /// Open and locked for writing, until it is sealed; only for files of this life.
    pub(crate) writer: Option<File>,
    /// It was found to differ from a copy in a member directory while its own was none: see [`super::resync`].
    doubtful: Rc<Cell<bool>>,
    /// How often the directory had failed when the copy was made or found. Once it fails again, the copy is worth
    /// nothing, even if the directory comes back.
    failures: u32,
}

impl Copy {
    /// A copy of what the birth record says, in this directory.
    pub(crate) fn new(directory: &Rc<Directory>, birth: Birth, writer: Option<File>) -> Copy {
        let failures = directory.failures.get();
        Copy {
            number: birth.copy,
            directory: directory.clone(),
            birth: Rc::new(birth),
            writer,
            failures,
            doubtful: Rc::default(),
        }
    }

    /// Whether it is read and written.
    pub(crate) fn is_live(&self) -> bool {
        self.directory.is_member() && self.failures == self.directory.failures.get()
    }

    /// Whether somebody should decide between it and the others.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.doubtful.get()
    }

    /// Notes that it differs from another one.
    pub(crate) fn doubt(&self) {
        self.doubtful.set(true);
    }

    /// Whether it is one more than are wanted, about to be removed.
    pub(crate) fn is_surplus(&self) -> bool {
        self.number == SURPLUS
    }

    /// Whether it is live, or will be when its directory is a member again.
    pub(crate) fn is_good(&self) -> bool {
        let away = matches!(self.directory.state.get(), State::Failed | State::Missing);
        !away && self.failures == self.directory.failures.get()
    }

    /// Which file, and where.
    pub(crate) fn key(&self) -> (FileId, DirectoryId) {
        (self.birth.file, self.directory.id.get())
    }

    /// Its path.
    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.directory.path_of(Name::File(self.birth.kind, self.birth.file))
    }

    /// What it takes up in its directory, with a seal at `sealed`.
    pub(crate) fn allocated(&self, sealed: Option<u64>) -> u64 {
        match sealed {
            Some(length) if !self.birth.prepared => HEADER + length,
            _ => HEADER + self.birth.capacity,
        }
    }
}

impl EntryState {
    /// The copies that are read and written.
    pub(crate) fn numbered_live(&self) -> impl Iterator<Item = &Copy> {
        self.copies.iter().filter(|copy| copy.is_live() && !copy.is_surplus())
    }

    /// Whether a copy is in `directory`, whatever the state of that is.
    pub(crate) fn is_in(&self, directory: &Directory) -> bool {
        self.copies.iter().any(|copy| copy.directory.id.get() == directory.id.get())
    }
}

impl Entry {
    /// A file without copies; these are attached.
    pub(crate) fn new(header: &Header, is_new: bool) -> Entry {
        let birth = &header.birth;
        Entry {
            id: birth.file,
            kind: birth.kind,
            incarnation: birth.incarnation,
            is_new,
            epoch: birth.epoch,
            segment: birth.segment,
            capacity: birth.capacity,
            prepared: birth.prepared,
            copies_wanted: birth.copies_wanted,
            gate: Budget::new(1),
            state: RefCell::new(EntryState {
                sealed: header.sealed,
                sealing: None,
                deleted: false,
                copies: Vec::new(),
            }),
        }
    }

    /// Adds a copy, and counts its space. It gets its own number, another one if that is taken, or that of a copy that
    /// it takes the place of, because that one's directory is suspect. Where no number is left, it is a surplus.
    pub(crate) fn attach(&self, mut copy: Copy) {
        assert!(copy.is_good(), "the copy of {} in {} is out of date", self.id, copy.directory.path.display());
        let mut state = self.state.borrow_mut();
        let holder = |number: u8| state.copies.iter().position(|copy| copy.number == number);
        if let Some(before) = holder(copy.number) {
            let is_better = state.copies[before].directory.suspect.get() && !copy.directory.suspect.get();
            match (0..self.copies_wanted).find(|number| holder(*number).is_none()) {
                Some(free) => copy.number = free,
                None if is_better => state.copies[before].number = SURPLUS,
                None => copy.number = SURPLUS,
            }
        }
        let count = &copy.directory.space.allocated;
        count.set(count.get() + copy.allocated(state.sealed));
        state.copies.push(copy);
        state.copies.sort_by_key(|copy| copy.number);
    }

    /// Forgets the copy in `directory`, and its space. A surplus takes its number.
    pub(crate) fn detach(&self, directory: DirectoryId) -> Option<Copy> {
        let mut state = self.state.borrow_mut();
        let index = state.copies.iter().position(|copy| copy.directory.id.get() == directory)?;
        let copy = state.copies.remove(index);
        let count = &copy.directory.space.allocated;
        count.set(count.get().saturating_sub(copy.allocated(state.sealed)));
        if let Some(surplus) = state.copies.iter_mut().find(|other| other.is_surplus() && !copy.is_surplus()) {
            surplus.number = copy.number;
        }
        Some(copy)
    }

    /// Marks it sealed: nobody writes any more, and what is beyond the end is given back.
    pub(crate) fn on_sealed(&self, length: u64) {
        let mut state = self.state.borrow_mut();
        let before = state.sealed;
        for copy in &mut state.copies {
            let surplus = copy.allocated(before) - copy.allocated(Some(length));
            let space = &copy.directory.space;
            space.allocated.set(space.allocated.get().saturating_sub(surplus));
            space.on_released(surplus);
            copy.writer = None;
        }
        state.sealed = Some(length);
        state.sealing = None;
    }

    /// The copies that are read and written.
    pub(crate) fn live_copies(&self) -> Vec<Copy> {
        self.state.borrow().numbered_live().cloned().collect()
    }

    /// Whether a copy of it is in `directory`, whatever the state of that is.
    pub(crate) fn is_in(&self, directory: &Directory) -> bool {
        self.state.borrow().is_in(directory)
    }

    /// Whether `range` lies within what may be read, in whole blocks.
    pub(crate) fn check_range(&self, offset: u64, len: u64) -> Result<()> {
        let end = self.state.borrow().sealed.unwrap_or(self.capacity);
        let fits = offset.checked_add(len).is_some_and(|last| last <= end);
        match fits && offset.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "{len} bytes at {offset} of file {} are not whole blocks within its {end} bytes",
                self.id
            ))),
        }
    }

    /// What callers see.
    pub(crate) fn info(&self) -> FileInfo {
        let state = self.state.borrow();
        FileInfo {
            id: self.id,
            kind: self.kind,
            incarnation: self.incarnation,
            epoch: self.epoch,
            segment: self.segment,
            capacity: state.sealed.filter(|_| !self.prepared).unwrap_or(self.capacity),
            sealed: state.sealed,
            copies: state.numbered_live().count() as u8,
            copies_wanted: self.copies_wanted,
        }
    }
}

impl Catalogue {
    /// A file that exists.
    pub(crate) fn get(&self, id: FileId) -> Result<Rc<Entry>> {
        if let Some(entry) = self.entries.borrow().get(&id).filter(|entry| !entry.state.borrow().deleted) {
            return Ok(entry.clone());
        }
        match self.damaged.borrow().get(&id) {
            Some(copies) => {
                let whys = copies.iter().map(|copy| copy.why.as_str()).collect::<Vec<_>>().join("; ");
                Err(Error::corrupt(format!("file {id} cannot be read: {whys}")))
            }
            None => Err(Error::not_found(format!("there is no file {id}"))),
        }
    }

    /// A file that exists or is being deleted.
    pub(crate) fn get_any(&self, id: FileId) -> Option<Rc<Entry>> {
        self.entries.borrow().get(&id).cloned()
    }

    /// Adds a file.
    pub(crate) fn insert(&self, entry: Rc<Entry>) {
        let before = self.entries.borrow_mut().insert(entry.id, entry);
        assert!(before.is_none(), "file ids are never used again");
    }

    /// Forgets a file.
    pub(crate) fn remove(&self, id: FileId) {
        self.entries.borrow_mut().remove(&id);
    }

    /// Notes a name of which nobody knows what is behind it.
    pub(crate) fn on_damaged(&self, directory: &Rc<Directory>, kind: FileKind, id: FileId, why: String) {
        let copy = DamagedCopy { directory: directory.clone(), name: Name::File(kind, id), why };
        self.damaged.borrow_mut().entry(id).or_default().push(copy);
    }

    /// A good copy took the place of a damaged one.
    pub(crate) fn on_repaired(&self, directory: &Directory, id: FileId) {
        if let Some(copies) = self.damaged.borrow_mut().get_mut(&id) {
            copies.retain(|copy| copy.directory.id.get() != directory.id.get());
        }
    }

    /// Logs of which no copy has a header that can be believed. Nobody knows what is in them: a recovery must not go
    /// on as if they were gone.
    pub(crate) fn unknown_logs(&self) -> Vec<FileInfo> {
        let (entries, damaged) = (self.entries.borrow(), self.damaged.borrow());
        let unknown = damaged.iter().filter_map(|(id, copies)| {
            let Name::File(kind, _) = copies.first()?.name else { return None };
            let is_log = !matches!(kind, FileKind::Data | FileKind::Table);
            (is_log && !entries.contains_key(id)).then_some(FileInfo {
                id: *id,
                kind,
                incarnation: Incarnation(0),
                epoch: Epoch(0),
                segment: None,
                capacity: BLOCK,
                sealed: None,
                copies: 0,
                copies_wanted: copies.len() as u8,
            })
        });
        unknown.collect()
    }

    /// Names of data files and tables of which no copy has a header that can be believed.
    pub(crate) fn unidentified(&self) -> Vec<(FileId, FileKind)> {
        let (entries, damaged) = (self.entries.borrow(), self.damaged.borrow());
        let unknown = damaged.iter().filter(|(id, _)| !entries.contains_key(id));
        let named = unknown.filter_map(|(id, copies)| match copies.first()?.name {
            Name::File(kind @ (FileKind::Data | FileKind::Table), _) => Some((*id, kind)),
            _ => None,
        });
        named.collect()
    }

    /// What may be copies of a file, in member directories.
    pub(crate) fn damaged(&self, id: FileId) -> Vec<DamagedCopy> {
        let damaged = self.damaged.borrow();
        damaged.get(&id).into_iter().flatten().filter(|copy| copy.directory.is_member()).cloned().collect()
    }

    /// What may have been copies of a file is gone.
    pub(crate) fn forget_damaged(&self, id: FileId) {
        self.damaged.borrow_mut().remove(&id);
    }

    /// Every file that exists, by id.
    pub(crate) fn all(&self) -> Vec<Rc<Entry>> {
        let entries = self.entries.borrow();
        entries.values().filter(|entry| !entry.state.borrow().deleted).cloned().collect()
    }

    /// Whether `directory` holds the only copy of some file that is not being deleted.
    pub(crate) fn needs(&self, directory: &Directory) -> bool {
        let is_other = |copy: &Copy| copy.is_live() && copy.directory.id.get() != directory.id.get();
        self.entries.borrow().values().any(|entry| {
            let state = entry.state.borrow();
            let is_only = !state.copies.is_empty() && !state.copies.iter().any(is_other);
            is_only && !state.deleted && !is_on("only-copy-given-up")
        })
    }

    /// Forgets every copy in a directory that is no member any more.
    pub(crate) fn detach_all(&self, directory: &Directory) {
        assert!(!matches!(directory.state.get(), State::Member | State::Joining));
        let entries = self.entries.borrow().values().cloned().collect::<Vec<_>>();
        for entry in entries {
            entry.detach(directory.id.get());
        }
    }
}
