//! Append-only files: what the block layer knows of storage. It never learns where bytes live.
//!
//! A **file** is created once, appended to by one writer at offsets that the writer knows, sealed at a length, read,
//! and deleted; its id is never used again. Bytes that an append confirmed are durable in every current copy. After
//! an error the writer takes no more: seal at the last confirmed length and go on in a new file, never repeat an
//! append (its first try may have landed).
//!
//! Engines: [`memory`] (a state machine for tests) and [`local`] (directories, ideally one per disk, with
//! `Copies(n)` over them), with one writer at a time each; [`shared`] lets several write to one of them at once, and
//! [`remote`] does so from another process, over which [`served`] has the shared store; in [`rados`] each of several writers
//! writes to a pool of Ceph by itself. One conformance suite runs on all.
//!
//! Names: *copy* k of a file is one of its replicas, numbered from 0 as in its header; *capacity* is the space set
//! aside when it is created; *length* is known once it is sealed; *prepared* files were zero-written (or used)
//! before, so that a durable append touches no file-system metadata.
//!
//! Invariants: offsets and lengths are multiples of 4 KiB; a record of a file's earlier life never reaches a reader
//! as part of this life by way of a checksum, because file ids are in every record; a sealed or fenced file accepts
//! no append; an append beyond the capacity is refused as `Full`.

use std::future::Future;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::rc::Rc;

use base::seeded::is_on;
use base::{AlignedBuf, Bytes, Epoch, Error, FileId, Gathered, Incarnation, Result, SegmentId, StoreId};
use policies::background::{Left, Work};

pub mod dry_run;
pub mod estate;
mod layout;
pub mod local;
pub mod memory;
pub mod rados;
pub mod remote;
pub mod served;
pub mod shared;

/// A boxed future on one loop.
pub type LocalBoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What a file is for. The numbers are on disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum FileKind {
    /// Written in the foreground before an acknowledgement, read only in recovery.
    Journal = 1,
    /// Transaction records: the write-ahead log of the index.
    Transaction = 2,
    /// Blocks of one segment.
    Data = 3,
    /// A sorted, immutable part of the index.
    Table = 4,
    /// The log of a metadata table (volumes).
    Log = 5,
    /// What a shared store knows of the life of one of its writers: see [`shared`].
    Incarnation = 6,
}

impl FileKind {
    /// Every kind, in the order of the numbers.
    pub const ALL: [FileKind; 6] = [
        FileKind::Journal,
        FileKind::Transaction,
        FileKind::Data,
        FileKind::Table,
        FileKind::Log,
        FileKind::Incarnation,
    ];

    /// The kind with this number.
    pub fn from_number(number: u8) -> Option<FileKind> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Whether files of this kind belong to one segment each, whoever has that.
    pub fn is_of_segment(self) -> bool {
        matches!(self, FileKind::Data | FileKind::Table)
    }

    /// Its name, as in the names of files.
    pub fn name(self) -> &'static str {
        match self {
            FileKind::Journal => "journal",
            FileKind::Transaction => "transaction",
            FileKind::Data => "data",
            FileKind::Table => "table",
            FileKind::Log => "log",
            FileKind::Incarnation => "incarnation",
        }
    }
}

/// Which space a file may take in a store that several writers share (rule 44 of docs/SAFETY.md). The numbers are on the
/// wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Claim {
    /// Whatever clients ask for, and what follows from it: what the writer was granted.
    #[default]
    Use = 0,
    /// A log without which its writer can neither take over nor delete: where nothing is left of what the writer was
    /// granted, the reserve of the store. It has to be made good before the writer makes a file for use.
    Log = 1,
    /// Copied from what a dead writer left: the reserve first, because what the writer was granted is promised to others.
    Adoption = 2,
}

impl Claim {
    /// The claim with this number.
    pub fn from_number(number: u8) -> Option<Claim> {
        [Claim::Use, Claim::Log, Claim::Adoption].into_iter().find(|claim| *claim as u8 == number)
    }
}

/// How a file survives the loss of a failure domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Redundancy {
    /// This many copies, at most one per directory; fewer where there are fewer directories, and the store says so.
    Copies(u8),
}

/// How to create a file.
#[derive(Clone, Copy, Debug)]
pub struct CreateOptions {
    /// What it is for.
    pub kind: FileKind,
    /// Most bytes that it will hold, a multiple of 4 KiB. The space is reserved now.
    pub capacity: u64,
    /// How many copies.
    pub redundancy: Redundancy,
    /// Whether appends are in the foreground: the file is prepared (from the recycled pool, or zero-written now).
    pub prepared: bool,
    /// The ownership under which it is written; 1 until segments move.
    pub epoch: Epoch,
    /// The segment that a data file or table belongs to, for ever (rule 43 of docs/SAFETY.md). None in a store whose
    /// segments do not move.
    pub segment: Option<SegmentId>,
    /// Which space it may take, where several share a store.
    pub claim: Claim,
}

impl CreateOptions {
    /// Whether there can be such a file, whoever keeps it.
    ///
    /// # Errors
    /// `Invalid`.
    pub(crate) fn check_segment(&self) -> Result<()> {
        match self.segment {
            Some(segment) if segment.volume.0 == 0 => Err(Error::invalid(format!("there is no segment {segment}"))),
            Some(segment) if !self.kind.is_of_segment() => Err(Error::invalid(format!(
                "a {} belongs to no segment, and not to {segment}: only data files and tables do",
                self.kind.name()
            ))),
            _ => Ok(()),
        }
    }
}

/// What is known of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Its id.
    pub id: FileId,
    /// What it is for.
    pub kind: FileKind,
    /// The life of the server that created it.
    pub incarnation: Incarnation,
    /// The ownership under which it was created.
    pub epoch: Epoch,
    /// The segment that it belongs to, if it says so.
    pub segment: Option<SegmentId>,
    /// Bytes set aside for it, per copy.
    pub capacity: u64,
    /// Its length, once sealed.
    pub sealed: Option<u64>,
    /// Healthy copies that can be read now.
    pub copies: u8,
    /// Copies that it should have.
    pub copies_wanted: u8,
}

/// Space of the store in bytes, counted for one copy of new data at the default redundancy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreSpace {
    /// What the store may use in all.
    pub capacity: u64,
    /// What its files have set aside.
    pub used: u64,
    /// What can still be set aside (bounded by the file systems, too). Recycled files count as free.
    pub free: u64,
}

/// What an engine of the file layer does. See [`Store`] for the meaning of each call.
pub trait FileEngine {
    /// See [`Store::id`].
    fn id(&self) -> StoreId;
    /// See [`Store::incarnation`].
    fn incarnation(&self) -> Incarnation;
    /// See [`Store::create`].
    fn create(&self, options: CreateOptions) -> LocalBoxFuture<'_, Result<FileId>>;
    /// Gives out the number of one more life that writes beside this one, above all before, durably. For [`shared`].
    fn begin_incarnation(&self) -> LocalBoxFuture<'_, Result<Incarnation>> {
        Box::pin(std::future::ready(Err(one_writer())))
    }
    /// Creates a file that says that `incarnation` did. This life writes it for that one. For [`shared`].
    fn create_for(&self, _: Incarnation, _: CreateOptions) -> LocalBoxFuture<'_, Result<FileId>> {
        Box::pin(std::future::ready(Err(one_writer())))
    }
    /// See [`Store::recyclable`]. An engine that recycles nothing has none.
    fn recyclable(&self, _kind: FileKind, _capacities: RangeInclusive<u64>) -> Option<u64> {
        None
    }
    /// See [`FileWriter::append`]. Offsets are chosen by the writer, and submitted in the order of the calls.
    fn append(&self, file: FileId, offset: u64, data: Gathered) -> LocalBoxFuture<'static, Result<()>>;
    /// See [`Store::appends_at_once`].
    fn appends_at_once(&self) -> usize {
        2
    }
    /// See [`Store::read`].
    fn read(&self, file: FileId, offset: u64, len: usize) -> LocalBoxFuture<'static, Result<AlignedBuf>>;
    /// See [`Store::read_copy`].
    fn read_copy(&self, file: FileId, copy: u8, offset: u64, len: usize)
    -> LocalBoxFuture<'static, Result<AlignedBuf>>;
    /// See [`Store::repair_copy`].
    fn repair_copy(&self, file: FileId, copy: u8, offset: u64, data: Bytes) -> LocalBoxFuture<'static, Result<()>>;
    /// See [`Store::check_headers`]. An engine that keeps no headers has none to look at.
    fn check_headers(&self, _file: FileId) -> LocalBoxFuture<'static, Result<u64>> {
        Box::pin(std::future::ready(Ok(0)))
    }
    /// See [`Store::seal`].
    fn seal(&self, file: FileId, length: u64) -> LocalBoxFuture<'_, Result<()>>;
    /// See [`Store::delete`].
    fn delete(&self, file: FileId) -> LocalBoxFuture<'_, Result<()>>;
    /// See [`Store::fence`].
    fn fence(&self, incarnation: Incarnation) -> LocalBoxFuture<'_, Result<()>>;
    /// See [`Store::check_life`].
    fn check_life(&self) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// See [`Store::list`].
    fn list(&self) -> Vec<FileInfo>;
    /// See [`Store::unidentified`]. An engine that keeps no headers has none.
    fn unidentified(&self) -> Vec<(FileId, FileKind)> {
        Vec::new()
    }
    /// See [`Store::info`].
    fn info(&self, file: FileId) -> Option<FileInfo>;
    /// See [`Store::files_of`].
    fn files_of(&self, incarnation: Incarnation) -> LocalBoxFuture<'_, Result<Vec<FileInfo>>> {
        let files = self.list().into_iter().filter(|info| info.incarnation == incarnation).collect();
        Box::pin(std::future::ready(Ok(files)))
    }
    /// See [`Store::files_of_segment`].
    fn files_of_segment(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<Vec<FileInfo>>> {
        let files = self.list().into_iter().filter(|info| info.segment == Some(segment)).collect();
        Box::pin(std::future::ready(Ok(files)))
    }
    /// See [`Store::find`].
    fn find(&self, file: FileId) -> LocalBoxFuture<'_, Result<Option<FileInfo>>> {
        Box::pin(std::future::ready(Ok(self.info(file))))
    }
    /// See [`Store::lives`].
    fn lives(&self) -> LocalBoxFuture<'_, Result<Vec<Incarnation>>> {
        let mut lives: Vec<Incarnation> = self.list().iter().map(|info| info.incarnation).collect();
        lives.sort_unstable();
        lives.dedup();
        Box::pin(std::future::ready(Ok(lives)))
    }
    /// See [`Store::locate`].
    fn locate(&self, file: FileId, copy: u8) -> String;
    /// See [`Store::space`].
    fn space(&self) -> StoreSpace;
    /// See [`Store::need_space`]. An engine that has nothing to grant does not need to know.
    fn need_space(&self, _bytes: u64) {}
    /// See [`Store::statistics`].
    fn statistics(&self) -> Statistics;
    /// See [`Store::keep_ready`]. An engine to which new space is as good as used space does not need to know.
    fn keep_ready(&self, _capacities: &[u64], _bytes: u64) {}
    /// See [`Store::on_request`].
    fn on_request(&self) {}
    /// See [`Store::renewal`]. To an engine whose files are all alike that never happens.
    fn renewal(&self) -> LocalBoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
    /// See [`Store::is_inferior`].
    fn is_inferior(&self, _file: FileId) -> bool {
        false
    }
    /// See [`Store::set_spare_bandwidth`]. An engine that copies nothing in the background does not need to know.
    fn set_spare_bandwidth(&self, _left: Left) {}
    /// See [`Store::background_work`].
    fn background_work(&self) -> Work {
        Work::default()
    }
}

fn one_writer() -> Error {
    Error::invalid("this store has one writer at a time: it cannot be shared")
}

/// Bytes that went to disk, by kind of file, and what went wrong.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// Bytes written, all copies together, for each [`FileKind`] (index: its number), headers and zeros included.
    pub written_bytes: [u64; 7],
    /// Bytes read, by kind.
    pub read_bytes: [u64; 7],
    /// Reads and writes that failed in one copy.
    pub copy_errors: u64,
    /// Bytes that deleted files left, or that were zero-written ahead, which are kept for the next files, one copy
    /// counted. They are free, too.
    pub kept_bytes: u64,
    /// Zeros that were written to space for data files ahead of need, all copies together; part of `written_bytes`.
    pub zeroed_bytes: u64,
    /// One line for each directory: its path, state (`healthy`, `failed`, `missing`, `resynchronizing`), free bytes.
    pub directories: Vec<DirectoryStatus>,
}

impl Statistics {
    /// Adds another shard of the same store.
    pub fn merge(&mut self, other: &Statistics) {
        let Statistics { written_bytes, read_bytes, copy_errors, kept_bytes, zeroed_bytes, directories } = other;
        let add =
            |mine: &mut [u64; 7], theirs: &[u64; 7]| mine.iter_mut().zip(theirs).for_each(|(mine, more)| *mine += more);
        add(&mut self.written_bytes, written_bytes);
        add(&mut self.read_bytes, read_bytes);
        self.copy_errors += copy_errors;
        self.kept_bytes += kept_bytes;
        self.zeroed_bytes += zeroed_bytes;
        self.directories.extend(directories.iter().cloned());
    }
}

impl StoreSpace {
    /// Adds another shard of the same store, which takes no more than its part of what the file systems have left.
    pub fn merge(&mut self, other: &StoreSpace) {
        self.capacity += other.capacity;
        self.used += other.used;
        self.free += other.free;
    }
}

/// The state of one directory of a store.
#[derive(Clone, Debug)]
pub struct DirectoryStatus {
    /// Its path, or what is known of it.
    pub path: String,
    /// `healthy`, `slow`, `failed`, `missing` or `resynchronizing`.
    pub state: &'static str,
    /// Free bytes in its file system.
    pub free_bytes: u64,
    /// Bytes that still have to be copied to it.
    pub behind_bytes: u64,
}

/// An open store of append-only files. Clones share it.
#[derive(Clone)]
pub struct Store(Rc<dyn FileEngine>);

impl Store {
    /// A store served by `engine`.
    pub fn new(engine: Rc<dyn FileEngine>) -> Self {
        Store(engine)
    }

    /// The store's id.
    pub fn id(&self) -> StoreId {
        self.0.id()
    }

    /// This life's number: higher than that of every process that opened the store before. Durable.
    pub fn incarnation(&self) -> Incarnation {
        self.0.incarnation()
    }

    /// Creates an empty file of this incarnation. It exists durably when this returns.
    ///
    /// # Errors
    /// `Full`, `Io`.
    pub async fn create(&self, options: CreateOptions) -> Result<FileWriter> {
        let file = self.0.create(options).await?;
        Ok(FileWriter { store: self.clone(), file, capacity: options.capacity, position: 0, failed: false })
    }

    /// The largest capacity within a range of which a prepared file of `kind` would be a recycled one. A hint: others may
    /// take it first.
    pub fn recyclable(&self, kind: FileKind, capacities: RangeInclusive<u64>) -> Option<u64> {
        self.0.recyclable(kind, capacities)
    }

    /// How many appends to one file are worth to be in flight: while so many are, another small one gains nothing, and what
    /// comes had better gather. A disk does one and has the next at hand; where they are done strictly one after the other,
    /// it is one.
    pub fn appends_at_once(&self) -> usize {
        self.0.appends_at_once()
    }

    /// Reads from any healthy copy. The caller verifies content and falls back to [`Store::read_copy`].
    ///
    /// # Errors
    /// `NotFound`, `Io` when no copy could be read, `Invalid` beyond the end, `Corrupt` where the file is there under
    /// its name, and nobody knows what is in it.
    pub fn read(&self, file: FileId, offset: u64, len: usize) -> impl Future<Output = Result<AlignedBuf>> + use<> {
        self.0.read(file, offset, len)
    }

    /// Reads from copy `copy` only (below `FileInfo::copies_wanted`; a copy that is missing is `NotFound`).
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn read_copy(&self, file: FileId, copy: u8, offset: u64, len: usize) -> Result<AlignedBuf> {
        self.0.read_copy(file, copy, offset, len).await
    }

    /// Overwrites a range of one copy with bytes that the caller verified from another copy, durably. A copy that
    /// cannot be written to is given up where others are left; that is no error.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn repair_copy(&self, file: FileId, copy: u8, offset: u64, data: Bytes) -> Result<()> {
        self.0.repair_copy(file, copy, offset, data).await
    }

    /// Looks at what each copy says of itself, and writes anew what cannot be read: the next start would give the copy
    /// up. Gives in how many that was done.
    ///
    /// # Errors
    /// `NotFound`, `Io`.
    pub async fn check_headers(&self, file: FileId) -> Result<u64> {
        self.0.check_headers(file).await
    }

    /// Ends a file at `length` durably, in every copy. Nothing is appended afterwards, nothing beyond is ever read. A
    /// repetition with the same length does nothing; with another one it is `Conflict`. Appends of this life that are
    /// still in flight are not waited for: the length covers only what was confirmed.
    ///
    /// Of a file of an earlier life the copies may differ where nothing was confirmed. Whoever chooses its length
    /// makes them the same up to there first ([`Store::repair_copy`]): only the caller can tell a good copy.
    ///
    /// # Errors
    /// `Io`, `Conflict`, `NotFound`, `Invalid` beyond the capacity.
    pub async fn seal(&self, file: FileId, length: u64) -> Result<()> {
        self.0.seal(file, length).await
    }

    /// Removes a file. Its space may be kept for recycling, and counts as free. A second removal does nothing.
    ///
    /// # Errors
    /// `Io`.
    pub async fn delete(&self, file: FileId) -> Result<()> {
        self.0.delete(file).await
    }

    /// Refuses every append of incarnations up to `incarnation`, whatever their writers believe.
    ///
    /// # Errors
    /// `Io`.
    pub async fn fence(&self, incarnation: Incarnation) -> Result<()> {
        self.0.fence(incarnation).await
    }

    /// Whether this life goes on, as far as the store knows now: somebody may have fenced it, and changed what it had.
    ///
    /// # Errors
    /// `Fenced`: it is over. `Io`: the store cannot be asked.
    pub async fn check_life(&self) -> Result<()> {
        self.0.check_life().await
    }

    /// Returns when, after this call, new files may have become better than present ones ([`Store::is_inferior`]): a directory has
    /// become a member that was none, or what a file is in answers slowly.
    pub fn renewal(&self) -> LocalBoxFuture<'static, ()> {
        self.0.renewal()
    }

    /// Whether whoever appends to a file should go on in a new one: it has fewer copies than it could have (those it gets in the
    /// background, once it is sealed), or answers slowly.
    pub fn is_inferior(&self, file: FileId) -> bool {
        self.0.is_inferior(file)
    }

    /// Every file, by id.
    pub fn list(&self) -> Vec<FileInfo> {
        self.0.list()
    }

    /// Names of data files and tables of earlier lives behind which no copy has a header that can be believed, and
    /// which are not in [`Store::list`]. Whoever knows that nothing refers to one of them may delete it.
    pub fn unidentified(&self) -> Vec<(FileId, FileKind)> {
        self.0.unidentified()
    }

    /// One file. Of files of others in a store with several writers it says what [`Store::files_of`] and
    /// [`Store::find`] learned of them, if they are far away.
    pub fn info(&self, file: FileId) -> Option<FileInfo> {
        self.0.info(file)
    }

    /// The files that a life created, by id, as they are now: of another writer in a store with several.
    ///
    /// # Errors
    /// `Io`: the store cannot be asked.
    pub async fn files_of(&self, incarnation: Incarnation) -> Result<Vec<FileInfo>> {
        self.0.files_of(incarnation).await
    }

    /// The data files and tables that name a segment, by id, whoever created them, as they are now.
    ///
    /// # Errors
    /// `Io`: the store cannot be asked.
    pub async fn files_of_segment(&self, segment: SegmentId) -> Result<Vec<FileInfo>> {
        self.0.files_of_segment(segment).await
    }

    /// The lives of which there are files, by number: of all writers in a store with several.
    ///
    /// # Errors
    /// `Io`: the store cannot be asked.
    pub async fn lives(&self) -> Result<Vec<Incarnation>> {
        self.0.lives().await
    }

    /// [`Store::info`] as it is now, also of a file of another writer.
    ///
    /// # Errors
    /// `Io`: the store cannot be asked.
    pub async fn find(&self, file: FileId) -> Result<Option<FileInfo>> {
        self.0.find(file).await
    }

    /// Where copy `copy` of a file lives, for a person: a path.
    pub fn locate(&self, file: FileId, copy: u8) -> String {
        self.0.locate(file, copy)
    }

    /// Space. Cheap: a cached value that creations and deletions keep current.
    pub fn space(&self) -> StoreSpace {
        self.0.space()
    }

    /// Says that the writer should have so much free ([`StoreSpace::free`]). A store with several writers grants it more
    /// in time, as long as there is more.
    pub fn need_space(&self, bytes: u64) {
        self.0.need_space(bytes);
    }

    /// Counters since the start.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    /// Has space for prepared data files of these capacities zero-written ahead of need while nobody appends or reads,
    /// the most important capacity first, as long as files hold less than `bytes`, one copy counted. It counts as free
    /// ([`Store::space`]). No more without capacities.
    pub fn keep_ready(&self, capacities: &[u64], bytes: u64) {
        self.0.keep_ready(capacities, bytes);
    }

    /// Says that a client waits for something: what is done only while nobody does gives way. Appends say so by themselves.
    pub fn on_request(&self) {
        self.0.on_request();
    }

    /// Says what foreground work leaves of the disks' bandwidth: copies are made of it. Holds for a second.
    pub fn set_spare_bandwidth(&self, left: Left) {
        self.0.set_spare_bandwidth(left);
    }

    /// What it had the disks do without being asked: copies that were lacking, space that was prepared.
    pub fn background_work(&self) -> Work {
        self.0.background_work()
    }
}

/// The one writer of a file: knows the next offset. Several appends may be in flight.
pub struct FileWriter {
    store: Store,
    file: FileId,
    capacity: u64,
    position: u64,
    failed: bool,
}

impl FileWriter {
    /// The file.
    pub fn id(&self) -> FileId {
        self.file
    }

    /// Where the next append goes.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes that still fit.
    pub fn room(&self) -> u64 {
        self.capacity - self.position
    }

    /// Appends `data` (a multiple of 4 KiB, at a 4 KiB boundary in memory) and completes when it is durable in every
    /// current copy. The offset is taken, and the write queued, at the call; the future resolves to that offset.
    /// Several appends may be in flight and may complete in any order.
    ///
    /// # Errors
    /// `Full` at once if it does not fit; `Io`, `Fenced` when it failed: then call [`FileWriter::fail`], seal at the
    /// length confirmed so far and go on in a new file.
    pub fn append<D: Into<Gathered>>(&mut self, data: D) -> impl Future<Output = Result<u64>> + use<D> {
        let data = data.into();
        assert!((data.len() as u64).is_multiple_of(base::BLOCK), "appends are padded by their writer");
        let offset = self.position;
        let fits = !self.failed && data.len() as u64 <= self.room();
        let written = fits.then(|| {
            let again = if is_on("block-written-again") { base::BLOCK } else { 0 };
            self.position += data.len() as u64 - again;
            self.store.0.append(self.file, offset, data)
        });
        async move {
            match written {
                Some(written) => written.await.map(|()| offset),
                None => Err(base::Error::full("the file is full")),
            }
        }
    }

    /// Takes no more appends: one failed.
    pub fn fail(&mut self) {
        self.failed = true;
    }

    /// Whether [`FileWriter::fail`] was called.
    pub fn has_failed(&self) -> bool {
        self.failed
    }
}
