//! Reads whose bytes are proven before they are used: another copy where one is bad, an error where all are.
//!
//! **Flow.** One read from whichever copy the file layer likes best; the caller's proof (a page's checksum, a block's)
//! is applied to it. Only if that fails is every copy read by itself: the first that proves itself is the answer, the
//! ones that did not, or could not be read, are overwritten with it in the background. Wrong bytes never leave this module; when no copy is
//! good the error names the path and the offset of each.
//!
//! **Bound.** At most [`REPAIRS_MAX`] repairs at a time; beyond that a bad copy is left for the next read or scrub.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;

use base::seeded::is_on;
use base::{AlignedBuf, BLOCK, Bytes, Error, ErrorKind, FileId, Result};
use files::Store;
use runtime::sync::Event;
use runtime::{Class, Handle};

use crate::pins::{Pin, Pins};

/// Repairs in flight at most.
const REPAIRS_MAX: u64 = 16;

/// The files of an engine, read with proof. Clones share counters and pins.
#[derive(Clone)]
pub struct VerifiedFiles(Rc<Inner>);

struct Inner {
    handle: Handle,
    store: Store,
    pins: Pins,
    counters: Counters,
    /// A repair ended.
    repaired: Event,
}

#[derive(Default)]
struct Counters {
    mismatches: Cell<u64>,
    lost: Cell<u64>,
    repaired: Cell<u64>,
    repairs_in_flight: Cell<u64>,
}

/// How often a file is tried to be removed, and the pauses between, which double: about half an hour in all.
const DELETE_TRIES_MAX: u32 = 36;
const DELETE_PAUSE: Duration = Duration::from_secs(1);
const DELETE_PAUSE_MAX: Duration = Duration::from_secs(60);

/// What went wrong with the bytes of files, and what became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VerifyStatistics {
    /// Copies that held wrong bytes when they were read.
    pub mismatches: u64,
    /// Reads that no copy could serve with proof.
    pub lost: u64,
    /// Copies that were overwritten with proven bytes.
    pub repaired: u64,
}

impl VerifyStatistics {
    /// Adds what was found in the files of another engine.
    pub(crate) fn merge(&mut self, other: &VerifyStatistics) {
        let VerifyStatistics { mismatches, lost, repaired } = other;
        self.mismatches += mismatches;
        self.lost += lost;
        self.repaired += repaired;
    }
}

/// What [`VerifiedFiles::check`] saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checked {
    /// Bytes that were read or tried to be, all copies counted.
    pub read_bytes: u64,
    /// Blocks that no copy has right.
    pub lost: u64,
}

/// A range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileRange {
    /// The file.
    pub file: FileId,
    /// Byte offset.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
}

impl VerifiedFiles {
    /// The files of `store`.
    pub fn new(handle: &Handle, store: &Store) -> Self {
        let (handle, store) = (handle.clone(), store.clone());
        let (pins, counters, repaired) = (Pins::new(), Counters::default(), Event::new());
        VerifiedFiles(Rc::new(Inner { handle, store, pins, counters, repaired }))
    }

    /// The loop.
    pub fn handle(&self) -> &Handle {
        &self.0.handle
    }

    /// The file layer below.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Keeps every file that the index names now until the pin is dropped.
    pub fn pin(&self) -> Pin {
        self.0.pins.pin()
    }

    /// Removes a file once every reader that may still know it has ended. Its intent is on record by now.
    ///
    /// # Errors
    /// `Io`.
    pub async fn delete_unpinned(&self, file: FileId) -> Result<()> {
        if !is_on("file-removed-under-reader") {
            self.0.pins.quiesce().await;
        }
        self.0.store.delete(file).await
    }

    /// Removes files as [`VerifiedFiles::delete_unpinned`] does, without anybody waiting. What a disk refuses to remove
    /// is tried again, more and more seldom; in the end a start finds that nothing refers to it.
    pub fn delete_in_background(&self, mut files: Vec<FileId>) {
        if files.is_empty() {
            return;
        }
        let this = self.clone();
        let delete = async move {
            if !is_on("file-removed-under-reader") {
                this.0.pins.quiesce().await;
            }
            let mut pause = DELETE_PAUSE;
            for _ in 0..DELETE_TRIES_MAX {
                let mut left = Vec::new();
                for file in files {
                    if let Err(error) = this.0.store.delete(file).await {
                        tracing::warn!(%file, "a file that nothing refers to could not be removed: {error}");
                        left.push(file);
                    }
                }
                if left.is_empty() {
                    return;
                }
                files = left;
                this.0.handle.sleep(pause).await;
                pause = (pause * 2).min(DELETE_PAUSE_MAX);
            }
        };
        self.0.handle.spawn(Class::Background, "remove files", delete).detach();
    }

    /// Counters since the start.
    pub fn statistics(&self) -> VerifyStatistics {
        let counters = &self.0.counters;
        VerifyStatistics {
            mismatches: counters.mismatches.get(),
            lost: counters.lost.get(),
            repaired: counters.repaired.get(),
        }
    }

    /// Reads from whichever copy is best, without proof: the caller checks and calls [`VerifiedFiles::recover`].
    ///
    /// # Errors
    /// Those of [`Store::read`].
    pub async fn read_unproven(&self, range: FileRange) -> Result<AlignedBuf> {
        self.0.store.read(range.file, range.offset, range.len).await
    }

    /// Reads `range` so that `is_good` holds for the bytes. `what` names them for a person.
    ///
    /// # Errors
    /// `Corrupt` when copies were read and none is good, `Io` when none could be read, `Fenced` when this life is over.
    pub async fn read(
        &self,
        range: FileRange,
        what: &dyn Display,
        is_good: impl Fn(&[u8]) -> bool,
    ) -> Result<AlignedBuf> {
        match self.read_unproven(range).await {
            Ok(bytes) if is_good(&bytes) => Ok(bytes),
            _ => self.recover(range, what, is_good).await,
        }
    }

    /// Looks through all copies of `range` for one that `is_good`, and repairs those that are not.
    ///
    /// # Errors
    /// `Corrupt` when copies were read and none is good, `Io` when none could be read, `Fenced` when this life is over.
    pub async fn recover(
        &self,
        range: FileRange,
        what: &dyn Display,
        is_good: impl Fn(&[u8]) -> bool,
    ) -> Result<AlignedBuf> {
        let FileRange { file, offset, len } = range;
        let store = &self.0.store;
        let Some(info) = store.info(file) else {
            bump(&self.0.counters.lost);
            // It is gone, or it is there and nobody knows what is in it.
            let why = store.read_copy(file, 0, offset, len).await.err();
            let why = why.unwrap_or_else(|| Error::corrupt(format!("file {file} came back")));
            return Err(Error::corrupt(format!("{what}: {why}")));
        };
        let (mut good, mut bad, mut unread) = (None, Vec::new(), Vec::new());
        for copy in 0..info.copies_wanted {
            match store.read_copy(file, copy, offset, len).await {
                Ok(bytes) if is_good(&bytes) => good = good.or(Some(bytes)),
                Ok(_) => bad.push(copy),
                Err(error) => unread.push((copy, error)),
            }
        }
        self.0.counters.mismatches.set(self.0.counters.mismatches.get() + bad.len() as u64);
        let Some(good) = good else {
            let error = self.explain(range, what, &bad, &unread);
            // A life that is over may read nothing: that says nothing of what is there.
            if error.kind != ErrorKind::Fenced {
                bump(&self.0.counters.lost);
            }
            return Err(error);
        };
        for copy in bad {
            tracing::warn!(path = store.locate(file, copy), offset, "{what}: wrong bytes in one copy");
            self.repair(range, copy, AlignedBuf::copy_of(&good).freeze());
        }
        // Sectors that a disk cannot read are replaced when they are written.
        for (copy, error) in unread.into_iter().filter(|(_, error)| error.kind == ErrorKind::Io) {
            tracing::warn!(path = store.locate(file, copy), offset, "{what}: one copy cannot be read: {error}");
            self.repair(range, copy, AlignedBuf::copy_of(&good).freeze());
        }
        Ok(good)
    }

    /// Reads `range` from each copy by itself and proves every block of 4 KiB: `is_good` and `what` are told its number in
    /// the range. Blocks that a copy has wrong are repaired as [`VerifiedFiles::recover`] does it. A copy that is not
    /// there is nobody's business here: the file layer makes it anew.
    pub async fn check(
        &self,
        range: FileRange,
        what: impl Fn(usize) -> String,
        is_good: impl Fn(usize, &[u8]) -> bool,
    ) -> Checked {
        let (FileRange { file, offset, len }, block) = (range, BLOCK as usize);
        let copies = self.0.store.info(file).map_or(0, |info| info.copies_wanted);
        let (mut checked, mut seen, mut suspects) = (Checked::default(), false, BTreeSet::new());
        for copy in 0..copies {
            match self.0.store.read_copy(file, copy, offset, len).await {
                Ok(bytes) => {
                    seen = true;
                    let bad = bytes.chunks(block).enumerate().filter(|(number, bytes)| !is_good(*number, bytes));
                    suspects.extend(bad.map(|(number, _)| number));
                }
                Err(error) if error.kind == ErrorKind::NotFound => continue,
                Err(error) if error.kind == ErrorKind::Fenced => return checked,
                Err(_) => suspects.extend(0..len / block),
            }
            checked.read_bytes += len as u64;
        }
        if !seen {
            suspects.extend(0..len / block);
        }
        for number in suspects {
            let place = FileRange { file, offset: offset + (number * block) as u64, len: block };
            let recovered = self.recover(place, &what(number), |bytes| is_good(number, bytes)).await;
            if let Err(error) = recovered {
                checked.lost += 1;
                let lost = self.0.counters.lost.get();
                if lost.is_power_of_two() {
                    tracing::error!(lost, "{error}; levee inspect, while the store is stopped, names all that is lost");
                }
            }
            // A bad disk has many bad blocks, and repairs in flight are bounded.
            self.repairs_done().await;
        }
        checked
    }

    /// Looks at what the copies of a file say of themselves.
    pub async fn check_headers(&self, file: FileId) -> Checked {
        let copies = self.0.store.info(file).map_or(0, |info| info.copies_wanted);
        match self.0.store.check_headers(file).await {
            Ok(repaired) => {
                let Counters { mismatches, repaired: all, .. } = &self.0.counters;
                mismatches.set(mismatches.get() + repaired);
                all.set(all.get() + repaired);
            }
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Fenced) => {}
            Err(error) => tracing::warn!(%file, "headers cannot be looked at: {error}"),
        }
        Checked { read_bytes: u64::from(copies) * BLOCK, lost: 0 }
    }

    /// Completes when no repair is in flight.
    async fn repairs_done(&self) {
        loop {
            let repaired = self.0.repaired.wait();
            if self.0.counters.repairs_in_flight.get() == 0 {
                return;
            }
            repaired.await;
        }
    }

    fn explain(&self, range: FileRange, what: &dyn Display, bad: &[u8], unread: &[(u8, Error)]) -> Error {
        let (file, offset) = (range.file, range.offset);
        let place = |copy: u8| format!("{} at offset {offset}", self.0.store.locate(file, copy));
        let wrong = bad.iter().map(|&copy| format!("wrong bytes in {}", place(copy)));
        let failed = unread.iter().map(|(copy, error)| format!("{}: {error}", place(*copy)));
        let all: Vec<String> = wrong.chain(failed).collect();
        let failed_by = |kind| unread.iter().any(|(_, error)| error.kind == kind);
        let kind = match bad.is_empty() {
            true if failed_by(ErrorKind::Fenced) => ErrorKind::Fenced,
            true if failed_by(ErrorKind::Io) => ErrorKind::Io,
            _ => ErrorKind::Corrupt,
        };
        Error { kind, message: format!("{what}: no good copy: {}", all.join("; ")) }
    }

    /// Overwrites one copy with proven bytes, in the background.
    fn repair(&self, range: FileRange, copy: u8, good: Bytes) {
        let in_flight = &self.0.counters.repairs_in_flight;
        if in_flight.get() >= REPAIRS_MAX {
            return;
        }
        bump(in_flight);
        let (this, pin) = (self.clone(), self.pin());
        let repair = async move {
            let _pin = pin;
            let counters = &this.0.counters;
            match this.0.store.repair_copy(range.file, copy, range.offset, good).await {
                Ok(()) => bump(&counters.repaired),
                Err(error) => {
                    let path = this.0.store.locate(range.file, copy);
                    tracing::warn!(path, offset = range.offset, "a bad copy could not be repaired: {error}");
                }
            }
            counters.repairs_in_flight.set(counters.repairs_in_flight.get() - 1);
            this.0.repaired.notify();
        };
        self.0.handle.spawn(Class::Background, "repair a copy", repair).detach();
    }
}

fn bump(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}
