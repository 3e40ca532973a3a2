//! What is known of files without asking: of one's own all, of others what was true when somebody asked.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use base::{Error, FileId, Incarnation, Result};

use super::records::FileRecord;
use crate::{Claim, FileInfo, FileKind, Statistics};

/// Most files of others that are remembered.
const OTHERS_MAX: usize = 65_536;

/// See the module.
#[derive(Default)]
pub(super) struct Known {
    own: RefCell<BTreeMap<FileId, Own>>,
    others: RefCell<BTreeMap<FileId, FileInfo>>,
    /// What own files have set aside, and those that are being made: asked for with every write.
    used: Cell<u64>,
    statistics: RefCell<Statistics>,
}

/// A file of this life.
struct Own {
    record: FileRecord,
    claim: Claim,
    /// Nobody knows how far it was appended to, and why.
    broken: Option<String>,
}

impl Known {
    /// Something is set aside for a file that is about to be made.
    pub(super) fn claim(&self, bytes: u64) {
        self.used.set(self.used.get() + bytes);
    }

    /// It was not made.
    pub(super) fn unclaim(&self, bytes: u64) {
        self.used.set(self.used.get() - bytes);
    }

    pub(super) fn used(&self) -> u64 {
        self.used.get()
    }

    /// A file was made of what was claimed.
    pub(super) fn on_made(&self, record: FileRecord, claim: Claim) {
        let own = Own { record, claim, broken: None };
        self.own.borrow_mut().insert(own.record.info.id, own);
    }

    /// A record was changed, or seen a moment ago: what was sealed since then stays so.
    pub(super) fn on_record(&self, record: &FileRecord) {
        let is_older =
            record.info.sealed.is_none() && self.info(record.info.id).is_some_and(|known| known.sealed.is_some());
        if is_older {
            return;
        }
        if let Some(own) = self.own.borrow_mut().get_mut(&record.info.id) {
            self.used.set(self.used.get() - own.record.info.capacity + record.info.capacity);
            own.record = record.clone();
        } else {
            self.remember(record.info.clone());
        }
    }

    /// A file is no more.
    pub(super) fn on_gone(&self, file: FileId) {
        if let Some(own) = self.own.borrow_mut().remove(&file) {
            self.used.set(self.used.get() - own.record.info.capacity);
        }
        self.others.borrow_mut().remove(&file);
    }

    /// These are all files of another life.
    pub(super) fn on_files_of(&self, life: Incarnation, files: &[FileInfo]) {
        self.others.borrow_mut().retain(|_, info| info.incarnation != life);
        files.iter().for_each(|info| self.remember(info.clone()));
    }

    fn remember(&self, info: FileInfo) {
        let mut others = self.others.borrow_mut();
        if others.len() >= OTHERS_MAX {
            others.clear();
        }
        others.insert(info.id, info);
    }

    pub(super) fn own_ids(&self) -> BTreeSet<FileId> {
        self.own.borrow().keys().copied().collect()
    }

    pub(super) fn is_own(&self, file: FileId) -> bool {
        self.own.borrow().contains_key(&file)
    }

    pub(super) fn list(&self) -> Vec<FileInfo> {
        self.own.borrow().values().map(|own| own.record.info.clone()).collect()
    }

    pub(super) fn info(&self, file: FileId) -> Option<FileInfo> {
        let own = self.own.borrow().get(&file).map(|own| own.record.info.clone());
        own.or_else(|| self.others.borrow().get(&file).cloned())
    }
}

/// Appends and reads.
impl Known {
    /// Whether a file takes an append of `len` bytes.
    ///
    /// # Errors
    /// `Fenced`: it is no file of this life. `Conflict`: it is sealed. `Io`, `Full`.
    pub(super) fn check_appendable(&self, file: FileId, offset: u64, len: u64) -> Result<Claim> {
        let own = self.own.borrow();
        let own = own.get(&file).ok_or_else(|| Error::fenced(format!("file {file} is none of this life")))?;
        if own.record.info.sealed.is_some() {
            return Err(Error::conflict(format!("file {file} is sealed")));
        }
        if let Some(why) = &own.broken {
            return Err(Error::io(format!(
                "an append to file {file} failed before ({why}): seal it at its confirmed length and go on in a new one"
            )));
        }
        match offset.checked_add(len).is_some_and(|end| end <= own.record.info.capacity) {
            true => Ok(own.claim),
            false => Err(Error::full(format!("file {file} is full"))),
        }
    }

    /// An append to this file failed, or nobody knows what came of it: it takes no more.
    pub(super) fn break_file(&self, file: FileId, why: &str) {
        if let Some(own) = self.own.borrow_mut().get_mut(&file) {
            own.broken.get_or_insert_with(|| why.to_owned());
        }
    }

    pub(super) fn on_appended(&self, file: FileId, bytes: u64) {
        let kind = self.own.borrow().get(&file).map(|own| own.record.info.kind);
        if let Some(kind) = kind {
            self.statistics.borrow_mut().written_bytes[kind as usize] += bytes;
        }
    }

    pub(super) fn on_read(&self, kind: FileKind, bytes: u64) {
        self.statistics.borrow_mut().read_bytes[kind as usize] += bytes;
    }

    pub(super) fn on_error(&self) {
        self.statistics.borrow_mut().copy_errors += 1;
    }

    pub(super) fn statistics(&self) -> Statistics {
        self.statistics.borrow().clone()
    }
}
