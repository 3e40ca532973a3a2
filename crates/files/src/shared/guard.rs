//! The guard of a life: a file that says what it was granted, and by its seal that it is over.
//!
//! A row of records of one block each (docs/formats/incarnation.md), of which the one with the highest number counts.
//! When the file is full, or takes no appends after a restart, the last record goes into a new one, and the old one is
//! deleted: in between there are two, and a life is fenced if one of them is sealed.

use std::cell::{Cell, RefCell};

use base::{AlignedBuf, BLOCK, Error, ErrorKind, FileId, Incarnation, KIB, Result};
use runtime::sync::Budget;

use crate::layout::{Unreadable, close, get_u64, open, put};
use crate::{CreateOptions, FileInfo, FileKind, FileWriter, Redundancy, Store};

/// What a guard sets aside: sixteen records.
pub(super) const GUARD_BYTES: u64 = 64 * KIB;

const MAGIC: [u8; 8] = *b"LEVEEINC";

/// One record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) file: FileId,
    pub(super) incarnation: Incarnation,
    /// From 1, from file to file.
    pub(super) sequence: u64,
    pub(super) granted: u64,
}

/// What guards of before say of a life.
pub(super) struct Recovered {
    pub(super) is_sealed: bool,
    pub(super) granted: u64,
    sequence: u64,
    files: Vec<FileId>,
}

/// See the module.
pub(super) struct Guard {
    sequence: Cell<u64>,
    sealed: Cell<bool>,
    writer: RefCell<Option<FileWriter>>,
    /// Files of before, to be deleted or sealed.
    older: RefCell<Vec<FileId>>,
    /// Held by whoever changes it.
    gate: Budget,
}

impl Default for Guard {
    fn default() -> Self {
        Guard {
            sequence: Cell::default(),
            sealed: Cell::default(),
            writer: RefCell::default(),
            older: RefCell::default(),
            gate: Budget::new(1),
        }
    }
}

impl Guard {
    /// Reads the guards of a life, any of which may have been the last.
    ///
    /// # Errors
    /// `Io`: try again. `Corrupt`: a newer version wrote it.
    pub(super) async fn recover(below: &Store, incarnation: Incarnation, files: &[FileInfo]) -> Result<Recovered> {
        let is_sealed = files.iter().any(|info| info.sealed.is_some());
        let ids = files.iter().map(|info| info.id).collect();
        let mut recovered = Recovered { is_sealed, granted: 0, sequence: 0, files: ids };
        for info in files {
            for at in (0..info.sealed.unwrap_or(info.capacity)).step_by(BLOCK as usize) {
                let Some(record) = read_record(below, info, at).await? else { continue };
                if record.incarnation == incarnation && record.sequence > recovered.sequence {
                    (recovered.sequence, recovered.granted) = (record.sequence, record.granted);
                }
            }
        }
        Ok(recovered)
    }

    pub(super) fn restore(&self, recovered: Recovered) {
        self.sequence.set(recovered.sequence);
        self.sealed.set(recovered.is_sealed);
        self.older.replace(recovered.files);
    }

    /// Says durably what the life may set aside.
    ///
    /// # Errors
    /// `Fenced`, `Io`, `Full`.
    pub(super) async fn record(&self, below: &Store, incarnation: Incarnation, copies: u8, granted: u64) -> Result<()> {
        let _gate = self.gate.take(1).await;
        if self.sealed.get() {
            return Err(Error::fenced(format!("incarnation {incarnation} was fenced")));
        }
        let mut writer = self.writer.borrow_mut().take();
        if writer.as_ref().is_none_or(|writer| writer.has_failed() || writer.room() < BLOCK) {
            let full = writer.take().map(|writer| writer.id());
            self.older.borrow_mut().extend(full);
            writer = Some(create(below, incarnation, copies).await?);
        }
        let Some(mut writer) = writer else { return Err(Error::internal("no guard was made")) };
        let record = Record { file: writer.id(), incarnation, sequence: self.sequence.get() + 1, granted };
        // Also if it fails: it may be there, and must not count against the next one.
        self.sequence.set(record.sequence);
        let appended = writer.append(AlignedBuf::copy_of(&record.encode()).freeze()).await;
        if appended.is_err() {
            writer.fail();
        }
        self.writer.replace(Some(writer));
        appended?;
        self.delete_older(below).await;
        Ok(())
    }

    /// The last one says everything.
    async fn delete_older(&self, below: &Store) {
        for file in self.older.take() {
            if let Err(error) = below.delete(file).await {
                tracing::warn!(%file, "a guard of before stays for now: {error}");
                self.older.borrow_mut().push(file);
            }
        }
    }

    /// Says durably that the life is over.
    ///
    /// # Errors
    /// `Io`.
    pub(super) async fn seal(&self, below: &Store, incarnation: Incarnation, copies: u8) -> Result<()> {
        let _gate = self.gate.take(1).await;
        if self.sealed.get() {
            return Ok(());
        }
        let known = self.writer.borrow().as_ref().map(FileWriter::id);
        let file = match known {
            Some(file) => file,
            None => {
                let writer = create(below, incarnation, copies).await?;
                self.writer.borrow_mut().insert(writer).id()
            }
        };
        // What a life that is over was granted is nobody's concern.
        below.seal(file, 0).await.map_err(|error| error.context(format!("fencing incarnation {incarnation}")))?;
        self.sealed.set(true);
        Ok(())
    }

    /// Deletes it: the life is over, and nothing is left of it.
    pub(super) async fn delete(&self, below: &Store) {
        let _gate = self.gate.take(1).await;
        let last = self.writer.borrow_mut().take().map(|writer| writer.id());
        self.older.borrow_mut().extend(last);
        self.delete_older(below).await;
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.sealed.get()
    }
}

async fn create(below: &Store, incarnation: Incarnation, copies: u8) -> Result<FileWriter> {
    let options = CreateOptions {
        kind: FileKind::Incarnation,
        capacity: GUARD_BYTES,
        redundancy: Redundancy::Copies(copies),
        prepared: false,
        epoch: base::Epoch(0),
        segment: None,
        claim: crate::Claim::Use,
    };
    let file = below.0.create_for(incarnation, options).await?;
    Ok(FileWriter { store: below.clone(), file, capacity: GUARD_BYTES, position: 0, failed: false })
}

/// The record at `at`, from the first copy that has one.
async fn read_record(below: &Store, info: &FileInfo, at: u64) -> Result<Option<Record>> {
    for copy in 0..info.copies_wanted {
        let bytes = match below.read_copy(info.id, copy, at, BLOCK as usize).await {
            Ok(bytes) => bytes,
            // A copy that is not there, or that its disk does not read.
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Io) => continue,
            Err(error) => return Err(error),
        };
        match Record::decode(&bytes) {
            Ok(record) if record.file == info.id => return Ok(Some(record)),
            Err(Unreadable::Newer) => {
                let place = below.locate(info.id, copy);
                return Err(Error::corrupt(format!("{place} was written by a newer version of Levee: use that one")));
            }
            Ok(_) | Err(Unreadable::Blank | Unreadable::Damaged) => {}
        }
    }
    Ok(None)
}

impl Record {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK as usize];
        put(&mut bytes, 40, self.file.0.to_le_bytes());
        put(&mut bytes, 48, self.incarnation.0.to_le_bytes());
        put(&mut bytes, 56, self.sequence.to_le_bytes());
        put(&mut bytes, 64, self.granted.to_le_bytes());
        close(&mut bytes, MAGIC);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Record, Unreadable> {
        let decode = |bytes: &[u8]| {
            Some(Record {
                file: FileId(get_u64(bytes, 40)),
                incarnation: Incarnation(get_u64(bytes, 48)),
                sequence: get_u64(bytes, 56),
                granted: get_u64(bytes, 64),
            })
        };
        open(bytes, MAGIC, decode, Record::encode).map(|readable| readable.record)
    }
}
