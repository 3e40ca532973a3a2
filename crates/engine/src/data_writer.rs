//! The data files that a segment appends to: opened when needed, sealed when full or failed.
//!
//! A segment appends dumps to one file and large writes to another: large writes are foreground, so their file is
//! *prepared* (recycled where possible), and data of one request stays together. Files of a segment that holds little are
//! small; they grow with it, so that a thin volume of 1 GiB does not set aside gigabytes. A recycled file may be smaller
//! than a new one would be.
//!
//! A large write's append begins with a label ([`crate::label`]), which stands for its record until the log has that;
//! [`crate::landings`] says from when on it does.
//!
//! Invariants: the record that says whose file it is comes before any record that refers to it; a file that failed
//! takes no more; nothing is appended to a file of an earlier incarnation. A hole that a failed append leaves in a
//! data file is harmless: bytes count only where a record refers to them. What failed behind all that has landed is not
//! in the file when it is sealed: what is within a seal is there.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::units::round_up;
use base::{BLOCK, Bytes, Epoch, Error, FileId, Gathered, Result, SegmentId};
use files::{Claim, CreateOptions, FileKind, FileWriter, Redundancy};
use runtime::sync::Budget;
use runtime::{Class, Handle};

use crate::garbage::Garbage;
use crate::label::{LABEL_BYTES, Place};
use crate::landings::Landings;
use crate::options::{DATA_FILE_BYTES_MIN, Options, Ownership};
use crate::transaction::{Record, TransactionLog};
use crate::verified::VerifiedFiles;

/// A recycled file may be this many times smaller than a new one would be.
const RECYCLED_PART: u64 = 4;

/// What a file is appended to for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Dumps of segment caches.
    Dump,
    /// Large writes in the foreground.
    Large,
}

/// How data files are made.
#[derive(Clone, Copy, Debug)]
pub struct DataFileOptions {
    /// Smallest capacity of a new file.
    pub bytes_min: u64,
    /// Largest capacity.
    pub bytes_max: u64,
    /// Copies of each.
    pub copies: u8,
    /// Whether they say whose they are.
    pub ownership: Ownership,
}

impl DataFileOptions {
    /// Sizes for a store of `capacity` bytes: a hundred and more files fit, whatever the setting says.
    pub fn for_store(capacity: u64, options: &Options) -> Self {
        let &Options { data_file_bytes, copies, ownership, .. } = options;
        let bytes_max = data_file_bytes.min(round_down_power(capacity / 128)).max(DATA_FILE_BYTES_MIN);
        DataFileOptions { bytes_min: bytes_max.min(base::MIB), bytes_max, copies, ownership }
    }

    /// The capacity of the next file of a segment whose files hold `held` bytes: a quarter of them, so that few
    /// files hold most of a segment and little is set aside in vain.
    pub fn capacity_for(&self, held: u64) -> u64 {
        (held / 4).next_power_of_two().clamp(self.bytes_min, self.bytes_max)
    }
}

fn round_down_power(value: u64) -> u64 {
    match value {
        0 => 0,
        value => 1 << value.ilog2(),
    }
}

/// Opens data files, and tells log and ledger whose they are. Clones share it.
#[derive(Clone)]
pub struct DataFileFactory {
    handle: Handle,
    files: VerifiedFiles,
    log: TransactionLog,
    garbage: Garbage,
    options: DataFileOptions,
    /// What the labels of this life are told by.
    label_key: u64,
}

impl DataFileFactory {
    /// A factory of files among `files`.
    pub fn new(
        handle: &Handle,
        files: &VerifiedFiles,
        log: &TransactionLog,
        garbage: &Garbage,
        options: DataFileOptions,
        label_key: u64,
    ) -> Self {
        DataFileFactory {
            handle: handle.clone(),
            files: files.clone(),
            log: log.clone(),
            garbage: garbage.clone(),
            options,
            label_key,
        }
    }

    /// What the labels of this life are told by.
    pub fn label_key(&self) -> u64 {
        self.label_key
    }

    /// How files are made.
    pub fn options(&self) -> &DataFileOptions {
        &self.options
    }

    /// The capacity of the next file of `segment`.
    pub fn capacity_for(&self, segment: SegmentId) -> u64 {
        let held: u64 = self.garbage.files(segment).iter().map(|file| file.written_blocks * BLOCK).sum();
        self.options.capacity_for(held)
    }

    /// The capacity of a recycled file that can stand for one of `wanted`, and holds `len` bytes at least: a first write
    /// to space that was written before is much cheaper.
    fn recyclable(&self, wanted: u64, len: u64) -> Option<u64> {
        let least = (wanted / RECYCLED_PART).max(len);
        self.files.store().recyclable(FileKind::Data, least..=wanted)
    }

    /// Creates a data file of `segment`, unless that `is_gone` meanwhile. Records that refer to it may be logged at
    /// once; `landings` hear when the log says durably whose it is.
    ///
    /// # Errors
    /// `Full`, `Io`, `NotFound`.
    async fn open(
        &self,
        segment: SegmentId,
        epoch: Epoch,
        capacity: u64,
        prepared: bool,
        is_gone: impl Fn() -> bool,
        landings: &Landings,
    ) -> Result<FileWriter> {
        let options = CreateOptions {
            kind: FileKind::Data,
            capacity,
            redundancy: Redundancy::Copies(self.options.copies),
            prepared,
            epoch,
            segment: self.options.ownership.named(segment),
            claim: Claim::Use,
        };
        let writer = self.files.store().create(options).await.map_err(|error| error.context("opening a data file"))?;
        if is_gone() {
            // Nothing names it yet.
            self.files.delete_in_background(vec![writer.id()]);
            return Err(gone(segment));
        }
        tracing::trace!(%segment, file = %writer.id(), capacity, "data file opened");
        self.garbage.opened(segment, writer.id(), capacity);
        let record = Record::DataFile { segment, file: writer.id() };
        // Not awaited: the records that refer to the file stand behind it in the log.
        let landings = landings.clone();
        drop(self.log.append(&record, Box::new(move |_| landings.announce())));
        Ok(writer)
    }

    /// Ends a file that gets no more appends and that no record in flight names: its unused space comes back.
    fn end(&self, open: &OpenFile) {
        let (file, end) = (open.writer.borrow().id(), open.landings.landed_through());
        self.garbage.ended(file, end / BLOCK);
        let this = self.clone();
        let seal = async move {
            if let Err(error) = this.files.store().seal(file, end).await {
                // It is sealed by the next recovery; until then its unused space stays set aside.
                tracing::debug!(%file, %error, "a data file was not sealed");
            }
            let capacity = this.files.store().info(file).map_or(end, |info| info.capacity);
            tracing::trace!(%file, end, "data file closed");
            this.garbage.closed(file, capacity, this.handle.now());
        };
        self.handle.spawn(Class::Background, "seal data file", seal).detach();
    }
}

fn gone(segment: SegmentId) -> Error {
    Error::not_found(format!("{segment} is not here any more"))
}

/// The file of one purpose of one segment.
pub struct DataWriter {
    purpose: Purpose,
    /// The ownership of the segment.
    epoch: Epoch,
    current: RefCell<Option<Rc<OpenFile>>>,
    opening: Budget,
    /// The segment is gone, or about to be, and whoever still works for it gets no file.
    ended: Cell<bool>,
}

struct OpenFile {
    factory: DataFileFactory,
    writer: RefCell<FileWriter>,
    landings: Landings,
    /// Appends and records in flight that name it.
    named: Cell<usize>,
    retired: Cell<bool>,
}

/// Where bytes were put, and a hold on the file until the record that names them is applied or given up.
pub struct Placed {
    /// The file.
    pub file: FileId,
    /// Byte offset in it.
    pub offset: u64,
    open: Rc<OpenFile>,
}

impl Placed {
    fn new(open: &Rc<OpenFile>, file: FileId, offset: u64) -> Self {
        open.named.set(open.named.get() + 1);
        Placed { file, offset, open: open.clone() }
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        self.open.named.set(self.open.named.get() - 1);
        self.open.end_if_quiet();
    }
}

impl OpenFile {
    /// Appends `data`: where, its number among the appends of the file, and what completes when it is durable.
    fn append(self: &Rc<Self>, data: Gathered) -> (Placed, u64, impl Future<Output = Result<()>> + use<>) {
        let (file, offset, len, append) = {
            let mut writer = self.writer.borrow_mut();
            assert!(writer.room() >= data.len() as u64, "room was prepared");
            (writer.id(), writer.position(), data.len() as u64, writer.append(data))
        };
        // Also what fails takes its place in the file: as garbage.
        self.factory.garbage.appended(file, len / BLOCK);
        let number = self.landings.begin(offset + len);
        let (placed, in_flight) = (Placed::new(self, file, offset), Placed::new(self, file, offset));
        let landed = async move {
            let landed = append.await.map(drop);
            match landed {
                Ok(()) => in_flight.open.landings.on_landed(number),
                Err(_) => in_flight.open.writer.borrow_mut().fail(),
            }
            landed
        };
        (placed, number, landed)
    }

    fn retire(&self) {
        self.retired.set(true);
        self.end_if_quiet();
    }

    fn end_if_quiet(&self) {
        if self.retired.get() && self.named.get() == 0 {
            self.factory.end(self);
        }
    }
}

impl DataWriter {
    /// No file yet.
    pub fn new(purpose: Purpose, epoch: Epoch) -> Self {
        DataWriter { purpose, epoch, current: RefCell::new(None), opening: Budget::new(1), ended: Cell::new(false) }
    }

    /// A file takes no more appends where a new one would be better.
    pub fn renew(&self) {
        let is_inferior = |open: &Rc<OpenFile>| open.factory.files.store().is_inferior(open.writer.borrow().id());
        let is_inferior = self.current.borrow().as_ref().is_some_and(is_inferior);
        if is_inferior {
            self.close();
        }
    }

    /// Bytes that can be appended before a new file is needed.
    pub fn room(&self) -> u64 {
        let current = self.current.borrow();
        let Some(open) = &*current else { return 0 };
        let writer = open.writer.borrow();
        if writer.has_failed() { 0 } else { writer.room() }
    }

    /// Makes sure that at least `len` bytes fit the present file; `capacity` is that of a new one if needed. Gives
    /// the capacity of the file that was opened, zero if none was.
    ///
    /// # Errors
    /// `Full`, `Io`, `NotFound` after [`DataWriter::end`].
    pub async fn prepare(
        &self,
        factory: &DataFileFactory,
        segment: SegmentId,
        len: u64,
        capacity: impl FnOnce() -> Result<u64>,
    ) -> Result<u64> {
        assert!(len <= factory.options.bytes_max + LABEL_BYTES, "an append fits a file");
        if self.room() >= len {
            return Ok(0);
        }
        let _alone = self.opening.take(1).await;
        if self.room() >= len {
            return Ok(0);
        }
        if self.ended.get() {
            return Err(gone(segment));
        }
        let wanted = round_up(capacity()?.max(len), BLOCK);
        let prepared = self.purpose == Purpose::Large;
        let capacity = match prepared {
            true => factory.recyclable(wanted, len).unwrap_or(wanted),
            false => wanted,
        };
        let landings = Landings::default();
        let writer = factory.open(segment, self.epoch, capacity, prepared, || self.ended.get(), &landings).await?;
        let open = OpenFile {
            factory: factory.clone(),
            writer: RefCell::new(writer),
            landings,
            named: Cell::new(0),
            retired: Cell::new(false),
        };
        let old = self.current.borrow_mut().replace(Rc::new(open));
        if let Some(old) = old {
            old.retire();
        }
        Ok(capacity)
    }

    /// Appends `data`, which fits ([`DataWriter::prepare`], with no await in between). The place is taken at the
    /// call; the future completes when the bytes are durable.
    pub fn append(&self, data: Bytes) -> (Placed, impl Future<Output = Result<()>> + use<>) {
        let open = self.current.borrow().clone().expect("a file was prepared");
        let (placed, _, landed) = open.append(data.into());
        (placed, landed)
    }

    /// Where the label of the next append would stand, and up to which byte everything in its file has landed. Room was
    /// prepared, with no await in between.
    pub(crate) fn next_label(&self) -> (Place, u64) {
        let open = self.current.borrow().clone().expect("a file was prepared");
        let (writer, factory) = (open.writer.borrow(), &open.factory);
        let incarnation = factory.files.store().incarnation();
        let place = Place { file: writer.id(), incarnation, key: factory.label_key, offset: writer.position() };
        (place, open.landings.whole_through())
    }

    /// [`DataWriter::append`] of a large write, whose first block is its label. The second future completes when a
    /// recovery would find the write by its label, if it has landed; perhaps never.
    pub(crate) fn append_labelled(
        &self,
        labelled: Gathered,
    ) -> (Placed, impl Future<Output = Result<()>> + use<>, impl Future<Output = ()> + use<>) {
        let open = self.current.borrow().clone().expect("a file was prepared");
        let (placed, number, landed) = open.append(labelled);
        (placed, landed, open.landings.clone().when_found(number))
    }

    /// [`DataWriter::close`], and until [`DataWriter::go_on`] no file is opened; none is being opened when this returns.
    pub async fn rest(&self) {
        self.ended.set(true);
        let _alone = self.opening.take(1).await;
        self.close();
    }

    /// Files may be opened again.
    pub fn go_on(&self) {
        self.ended.set(false);
    }

    /// No more appends: the file is sealed when nothing in flight names it.
    pub fn close(&self) {
        if let Some(open) = self.current.borrow_mut().take() {
            open.retire();
        }
    }
    /// The volume was deleted: [`DataWriter::close`], and no file is opened any more, because none would be removed.
    pub fn end(&self) {
        self.ended.set(true);
        self.close();
    }
}
