//! Requests to a store of files that several writers share.
//!
//! **Names.** A writer is a *life*, numbered by its incarnation; how it joins, is granted space and is fenced is the
//! store's (docs/SAFETY.md, rules 35 to 37, 43, 44). It *enters* the store anew whenever its connection was lost, under a
//! *generation* that it counts itself: of a life the highest one that has entered is the only one that is served.
//!
//! **Invariants.** When [`FileService::enter`] has returned, nothing that was asked under a lower generation is in flight
//! at the store, and what of it arrives later is refused: so whoever has lost an answer finds out what came of its
//! question by looking, and what is found stays. A number that was given out and never entered leaves nothing behind.

use base::{Bytes, Epoch, FileId, Gathered, Generation, Incarnation, Result, SegmentId, StoreId};

use crate::service::{LinkLost, LocalBoxFuture};

/// Most files or lives of one answer; those behind them are asked for by the last one.
pub const LISTED_MAX: usize = 1024;

/// By what right a request is made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Life {
    /// Who asks.
    pub incarnation: Incarnation,
    /// How often it has entered.
    pub generation: Generation,
}

/// What a life may set aside for files, and what its files have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LifeSpace {
    /// Bytes that it was granted. They grow as long as it lives.
    pub granted: u64,
    /// Bytes that its files have set aside.
    pub used: u64,
}

/// A file that is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewFile {
    /// The number of its kind, as on disk.
    pub kind: u8,
    /// Most bytes that it will hold, a multiple of 4 KiB.
    pub capacity: u64,
    /// How many copies.
    pub copies: u8,
    /// Whether space is made ready for appends in the foreground.
    pub prepared: bool,
    /// The ownership under which it is written.
    pub epoch: Epoch,
    /// The segment that a data file or table belongs to, where segments move.
    pub segment: Option<SegmentId>,
    /// The number of what it is for: whether it may take space of the reserve.
    pub claim: u8,
}

/// What a store knows of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileDescriptor {
    /// Its id.
    pub id: FileId,
    /// The number of its kind, as on disk.
    pub kind: u8,
    /// The life that created it.
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

/// What a store knows of a life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LifeDescriptor {
    /// Its number.
    pub incarnation: Incarnation,
    /// Whether it is over.
    pub is_fenced: bool,
    /// What it may set aside.
    pub space: LifeSpace,
}

/// What comes back: what the store says, or nothing but that the link was lost with the request in flight.
///
/// An error of kind `Retry` says that nothing was done, because there was no connection, or the life has to enter anew.
pub type FileAnswer<T> = Result<Result<T>, LinkLost>;

/// A store of append-only files that several lives share. Offsets and lengths are multiples of 4 KiB.
///
/// A future that is dropped stops waiting; the request goes on. Errors that every request of a [`Life`] may be answered
/// with: `Fenced` (it is over), `Retry` (see [`FileAnswer`]), `Invalid`.
pub trait FileService {
    /// Which store it is, and a number for one more life, given to nobody else, ever.
    fn join(&self) -> LocalBoxFuture<'_, FileAnswer<(StoreId, Incarnation)>>;

    /// Begins the life of a number that was just given out by this store, or goes on with it: see the module. Ends what
    /// was asked under lower generations. Gives what it may set aside.
    ///
    /// # Errors
    /// `NotFound`: there is no such life, and the number is worth nothing (any more). `Conflict`: this is another store.
    /// `Full`, `Io`.
    fn enter(&self, store: StoreId, life: Life) -> LocalBoxFuture<'_, FileAnswer<LifeSpace>>;

    /// Creates a file, durably.
    ///
    /// # Errors
    /// `Full`, `Io`.
    fn create(&self, life: Life, file: NewFile) -> LocalBoxFuture<'_, FileAnswer<(FileDescriptor, LifeSpace)>>;

    /// Appends to a file of this life; durable when answered. What was asked for earlier is submitted earlier.
    ///
    /// # Errors
    /// `Io`, `Conflict` where it is sealed, `Full` beyond its capacity. Then it takes no more: seal it.
    fn append(&self, life: Life, file: FileId, offset: u64, data: Gathered) -> LocalBoxFuture<'_, FileAnswer<()>>;

    /// Reads from one copy, or from any.
    ///
    /// # Errors
    /// `NotFound`, `Io`, `Corrupt`.
    fn read(
        &self,
        life: Life,
        file: FileId,
        copy: Option<u8>,
        offset: u64,
        len: u64,
    ) -> LocalBoxFuture<'_, FileAnswer<Bytes>>;

    /// Overwrites a range of one copy with bytes that were proven.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` where the file is another living one's, `Io`.
    fn repair_copy(
        &self,
        life: Life,
        file: FileId,
        copy: u8,
        offset: u64,
        data: Bytes,
    ) -> LocalBoxFuture<'_, FileAnswer<()>>;

    /// Mends what copies say of themselves; gives in how many that was done.
    ///
    /// # Errors
    /// As [`FileService::repair_copy`].
    fn check_headers(&self, life: Life, file: FileId) -> LocalBoxFuture<'_, FileAnswer<u64>>;

    /// Ends a file at a length, durably; gives what it is then. May be repeated.
    ///
    /// # Errors
    /// `NotFound`, `Conflict` at another length or where the file is another living one's, `Io`.
    fn seal(&self, life: Life, file: FileId, length: u64) -> LocalBoxFuture<'_, FileAnswer<Option<FileDescriptor>>>;

    /// Removes a file. May be repeated.
    ///
    /// # Errors
    /// `Conflict` where it is another living one's, `Io`.
    fn delete(&self, life: Life, file: FileId) -> LocalBoxFuture<'_, FileAnswer<()>>;

    /// Says that so many bytes should be free; gives what the life has after that was looked into.
    ///
    /// # Errors
    /// Those of every request.
    fn need_space(&self, life: Life, bytes: u64) -> LocalBoxFuture<'_, FileAnswer<LifeSpace>>;

    /// Ends a life for ever, as an order that anybody may give: see `files::shared`. May be repeated.
    ///
    /// # Errors
    /// `Io`: nobody knows whether it stands. `Conflict`: this is another store.
    fn fence(&self, store: StoreId, incarnation: Incarnation) -> LocalBoxFuture<'_, FileAnswer<()>>;

    /// The files of a life with an id above `after`, by id, at most [`LISTED_MAX`].
    ///
    /// # Errors
    /// `Conflict`: this is another store.
    fn files_of(
        &self,
        store: StoreId,
        incarnation: Incarnation,
        after: FileId,
    ) -> LocalBoxFuture<'_, FileAnswer<Vec<FileDescriptor>>>;

    /// The files that name a segment, of whichever life, with an id above `after`, by id, at most [`LISTED_MAX`].
    ///
    /// # Errors
    /// `Conflict`: this is another store.
    fn files_of_segment(
        &self,
        store: StoreId,
        segment: SegmentId,
        after: FileId,
    ) -> LocalBoxFuture<'_, FileAnswer<Vec<FileDescriptor>>>;

    /// A file of whichever life.
    ///
    /// # Errors
    /// `Conflict`: this is another store.
    fn find(&self, store: StoreId, file: FileId) -> LocalBoxFuture<'_, FileAnswer<Option<FileDescriptor>>>;

    /// The lives of which there is something, with a number above `after`, at most [`LISTED_MAX`].
    ///
    /// # Errors
    /// Those of every request.
    fn lives(&self, after: Incarnation) -> LocalBoxFuture<'_, FileAnswer<Vec<LifeDescriptor>>>;
}
