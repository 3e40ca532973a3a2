//! Requests to the owner of a segment, and its replies.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use base::levels::Level;
use base::{AllocationExtent, Bytes, Epoch, Generation, Passage, ReadPart, Result, SegmentId, VolumeId, WriteStamp};

/// A boxed future that stays on its loop.
pub type LocalBoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// One agent's hold on one volume at one block server. Given out by the server, never twice in its life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {}", self.0)
    }
}

/// Whom a request is for, and by what right it is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// The agent's session with the owner.
    pub session: SessionId,
    /// The segment.
    pub segment: SegmentId,
    /// The ownership that the agent believes in.
    pub epoch: Epoch,
    /// Which part of its volume's rate it belongs to, where the agent has decided that.
    pub level: Level,
    /// How many more of its agent waited to be sent to this server when it was; 0 where nobody knows.
    pub behind: u32,
}

/// A session as the server opened it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attachment {
    /// Its name in later requests.
    pub session: SessionId,
    /// The epoch of the volume's segments at this owner.
    pub epoch: Epoch,
}

/// What an owner answers: the outcome, an error included, and the epoch that it was given under.
#[derive(Clone, Debug)]
pub struct Reply<T> {
    /// The owner's epoch of the segment. An agent that knows a higher one drops the reply.
    pub epoch: Epoch,
    /// What came of the request. After an error of kind `Io` the bytes of a write may be old or new; the order of
    /// later writes is not in doubt.
    pub result: Result<T>,
    /// How long the request was at its owner, and what it waited for there. Of reads and writes; nothing of others.
    pub passage: Passage,
}

/// The link broke before the answer came: nobody knows whether the request takes effect, or when.
///
/// The agent then opens a new session (which closes and drains the old one) before it sends anything else.
#[derive(Clone, Debug)]
pub struct LinkLost {
    /// What happened, for a person.
    pub message: String,
}

impl fmt::Display for LinkLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for LinkLost {}

/// What comes back through a link.
pub type Answer<T> = Result<Reply<T>, LinkLost>;

/// The owner of segments, as an agent sees it. Offsets are bytes within the segment; offsets and lengths are
/// multiples of 512.
///
/// A future that is dropped stops waiting; the request goes on.
///
/// Errors that every request of a session may be answered with: `Fenced` (a newer session, generation or epoch
/// exists), `Invalid` (out of range or unaligned), `Internal` (shutting down).
pub trait BlockService {
    /// Opens a session of `volume` under `generation`. Older sessions of the volume are closed and drained first.
    ///
    /// # Errors
    /// `Fenced` where a newer generation is recorded, `NotFound` for an unknown volume.
    fn attach(&self, volume: VolumeId, generation: Generation) -> LocalBoxFuture<'_, Result<Attachment>>;

    /// Ends a session when its requests in flight are done. Unknown sessions are ended already.
    ///
    /// # Errors
    /// Those of the link.
    fn detach(&self, session: SessionId) -> LocalBoxFuture<'_, Result<()>>;

    /// Reads `len` bytes: parts in address order that add up to `len`.
    ///
    /// # Errors
    /// `Corrupt`, `Io`: never wrong bytes.
    fn read(&self, target: Target, offset: u64, len: u64) -> LocalBoxFuture<'_, Answer<Vec<ReadPart>>>;

    /// Writes `data`; `checksums` are [`base::io::fragment_checksums`] of it. Durable and visible when answered.
    ///
    /// # Errors
    /// `Full`, `Io`.
    fn write(
        &self,
        target: Target,
        offset: u64,
        data: Bytes,
        checksums: Vec<u32>,
        stamp: WriteStamp,
    ) -> LocalBoxFuture<'_, Answer<()>>;

    /// Makes a range read as zeros and frees its space in time. Durable when answered.
    ///
    /// # Errors
    /// `Io`. Works on a full disk.
    fn discard(&self, target: Target, offset: u64, len: u64, stamp: WriteStamp) -> LocalBoxFuture<'_, Answer<()>>;

    /// Makes every answered write durable: a formality, because an answered write is durable.
    ///
    /// # Errors
    /// Those of every request.
    fn flush(&self, target: Target) -> LocalBoxFuture<'_, Answer<()>>;

    /// Which parts of a range hold data: at most `extents_max` extents from `offset` on, which may cover less than
    /// `len` but never nothing.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    fn allocation(
        &self,
        target: Target,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> LocalBoxFuture<'_, Answer<Vec<AllocationExtent>>>;

    /// Which server is asked for what is at `offset` at this moment, as far as is known: a number that all segments there have in
    /// common. It says what shares a way, and decides nothing that has to be right.
    fn server(&self, _target: Target, _offset: u64) -> u64 {
        0
    }
}
