//! The seam between a loop and its world: operations go down, outcomes come back.

use std::any::Any;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use base::{AlignedBuf, Bytes, Gathered, Instant};
use policies::loop_schedule::LoopSettings;

use crate::Handle;
use crate::guest::{Port, Visitor};

/// The loop's name for one operation in flight. Never reused while the operation is in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub u64);

/// The driver's name for an open file, listener or stream. Reused only after `Close`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ResourceId(pub u64);

/// Where a listener listens or a stream connects to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// TCP; port 0 asks for a free one.
    Tcp(SocketAddr),
    /// A Unix socket; listening replaces a stale socket file, never one that somebody answers on.
    Unix(PathBuf),
}

/// How to open a file.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Open for writing as well as reading.
    pub write: bool,
    /// Create the file if it does not exist.
    pub create: bool,
    /// Fail if the file exists already (with `create`).
    pub exclusive: bool,
    /// O_DIRECT: offsets, lengths and memory are multiples of 4 KiB. Where the file system refuses it, the driver
    /// falls back to the page cache and says so once.
    pub direct: bool,
    /// O_DSYNC: a write is durable when it completes.
    pub dsync: bool,
}

/// Room in the file system of a directory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// Its size.
    pub total: u64,
    /// What an unprivileged writer may still use.
    pub free: u64,
}

/// One name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryEntry {
    /// The last component of the path.
    pub name: String,
    /// Whether it is a directory.
    pub is_directory: bool,
}

/// One request to the world. Buffers travel with it and come back in the [`Outcome`].
// The documentation of a variant speaks of its fields.
#[allow(missing_docs)]
#[derive(Debug)]
pub enum Op {
    /// Opens a file: `Outcome::value` is its [`ResourceId`].
    Open { path: PathBuf, options: OpenOptions },
    /// Closes a file, listener or stream. Operations in flight on it end with an error.
    Close { id: ResourceId },
    /// Reads `len` bytes at `offset` into `buffer`, an empty one that has room for them; `value` is the count of bytes
    /// read, short only at the end, and the buffer comes back with so many.
    Read { id: ResourceId, offset: u64, buffer: AlignedBuf, len: usize },
    /// Writes `data` at `offset`; `value` is the count of bytes written, which may be short.
    Write { id: ResourceId, offset: u64, data: Gathered },
    /// Makes all completed writes of the file durable (fdatasync).
    Sync { id: ResourceId },
    /// Reserves space for a range, and extends the file to its end (fallocate).
    Allocate { id: ResourceId, offset: u64, len: u64 },
    /// Truncates or extends (sparsely).
    SetLen { id: ResourceId, len: u64 },
    /// `value` is the length of the file.
    Length { id: ResourceId },
    /// Takes the exclusive advisory lock of the file (flock) without waiting: `value` 1 if taken, 0 if held elsewhere.
    Lock { id: ResourceId },
    /// Renames a file; the directory must be synced before it counts.
    Rename { from: PathBuf, to: PathBuf },
    /// Removes a file; the directory must be synced before it counts.
    Remove { path: PathBuf },
    /// Makes a directory and its missing parents.
    CreateDirectory { path: PathBuf },
    /// Makes the names in a directory durable.
    SyncDirectory { path: PathBuf },
    /// Lists a directory, sorted by name: `Payload::Entries`.
    ReadDirectory { path: PathBuf },
    /// Room in the file system of `path`: `Payload::Space`.
    Space { path: PathBuf },
    /// Listens: `value` is the [`ResourceId`], the payload the address as really bound.
    Listen { address: Address },
    /// Waits for a connection: `value` is the stream's [`ResourceId`].
    Accept { id: ResourceId },
    /// Connects: `value` is the stream's [`ResourceId`].
    Connect { address: Address },
    /// Receives into a range of `buffer`'s memory that begins within its length and may end behind it; `value` is the
    /// count of bytes, 0 at the end of the stream. The buffer comes back long enough to show them.
    Receive { id: ResourceId, buffer: AlignedBuf, range: Range<usize> },
    /// Sends `data` (gathered); `value` is the count of bytes sent, which may be short.
    Send { id: ResourceId, data: Vec<Bytes> },
    /// Ends both directions of a stream; operations in flight on it end.
    Shutdown { id: ResourceId },
    /// Takes a stream, with nothing in flight on it, from this loop: `Payload::Token`.
    Release { id: ResourceId },
    /// Takes over a stream that another loop of the process has released, or a bell: `value` is its [`ResourceId`] here.
    Adopt { token: Token },
    /// Waits until a bell was rung, and takes notice of all that rang it so far.
    Await { id: ResourceId },
    /// Rings a bell.
    Ring { id: ResourceId },
}

/// A stream between two loops of a process, or a bell, in the form of its world. Dropped, it is closed.
pub type Token = Box<dyn Any + Send>;

/// What came of an operation.
#[derive(Debug)]
pub struct Outcome {
    /// The count, length or id that the operation's documentation names; the world's error otherwise.
    pub value: io::Result<u64>,
    /// What came with it.
    pub payload: Payload,
}

/// What an outcome brings besides its value.
#[derive(Debug)]
pub enum Payload {
    /// Nothing.
    None,
    /// The buffer of a `Read` or `Receive`, given back in every case.
    Buffer(AlignedBuf),
    /// The entries of a directory.
    Entries(Vec<DirectoryEntry>),
    /// Room in a file system.
    Space(Space),
    /// The address that a listener is bound to.
    Address(Address),
    /// A stream that belongs to no loop.
    Token(Token),
}

/// Work that the simulation charges for by kind: what it costs is a property of its machines
/// ([`crate::sim::CpuOptions`]), and nothing unless it says so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// A client's request at its connection: parsed, routed, checksummed, answered.
    Request,
    /// A request at the owner of its segment: admission, engine, and what it leaves for the background.
    Service,
    /// One end of a passage from one loop to another.
    Crossing,
}

/// How long a reap may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Do not wait; take what is there.
    No,
    /// Until something happens, or until this point.
    Until(Instant),
    /// Until something happens.
    Forever,
}

/// Makes a loop's `reap` return from any thread. In the simulation it schedules the loop's next turn.
pub trait Unpark: Send + Sync {
    /// Wakes the loop. Cheap to call repeatedly.
    fn unpark(&self);
}

/// What another loop of the process runs, and until when: it ends with the future.
pub type LoopMain = Box<dyn FnOnce(Handle) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// Where the start of another loop is told.
pub type Started = futures_channel::oneshot::Sender<io::Result<()>>;

/// A world for one loop.
pub trait Driver {
    /// The present, as this loop's node sees it. Cheap.
    fn now(&self) -> Instant;
    /// Milliseconds since 1970, for labels only.
    fn wall_ms(&self) -> u64;
    /// 64 random bits: from the kernel, or from the simulation's seed.
    fn random_u64(&self) -> u64;
    /// Queues an operation. It reaches the world at the next `flush` or `reap`.
    fn submit(&self, id: OpId, op: Op);
    /// Asks for an operation to end early. Its outcome still comes, as an error if the cancellation won.
    fn cancel(&self, id: OpId);
    /// Hands the queued operations to the world, without waiting.
    fn flush(&self);
    /// Flushes, then collects outcomes. Before it sleeps as `wait` says, it looks on for `poll`.
    fn reap(&self, wait: Wait, poll: Duration, outcomes: &mut Vec<(OpId, Outcome)>);
    /// Something that ends a waiting `reap` from any thread.
    fn unparker(&self) -> Arc<dyn Unpark>;
    /// Spends `span` of this loop's processor in the simulation; free in the real world, where time passes by itself.
    fn charge(&self, span: Duration);
    /// Spends what this kind of work costs in the simulation; free in the real world.
    fn spend(&self, _work: Work) {}
    /// Somebody on this loop holds a lock for a moment that loops share. `held_until_ns` belongs to the lock: there the
    /// simulation remembers how long its last holder had it.
    fn on_lock(&self, _held_until_ns: &AtomicU64) {}
    /// Runs a job outside the loop: on the thread pool, or inline in the simulation. The job itself completes a
    /// channel; `cost` is what the simulation charges to another processor before it runs.
    fn offload(&self, job: Box<dyn FnOnce() + Send>, cost: Duration);
    /// Takes a stream that was accepted for a device of virtual machines.
    fn attend(&self, _stream: Token) -> io::Result<Port> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// The other end of such a stream, which only the simulation has: in the real world another process has it.
    fn visit(&self, _stream: Token) -> io::Result<Visitor> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Starts another loop in this process, on a thread of its own. `started` hears whether there is one.
    fn start_loop(&self, name: &str, settings: LoopSettings, main: LoopMain, started: Started);
}
