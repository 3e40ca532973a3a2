//! The transaction log: the write-ahead log of the index, shared by all segments of an engine.

pub mod codec;
mod fields;
pub mod format;
pub(crate) mod inspect;
pub mod log;
pub mod scan;

use std::cell::Cell;
use std::rc::Rc;

use base::{LogSequence, Result, SegmentId};
use files::LocalBoxFuture;

pub(crate) use codec::{decode_large, encode_body};
pub(crate) use fields::Fields;
pub use format::{Checkpoint, Record, SegmentCheckpoint, Tenure};
pub use log::{LogFile, LogOptions, TransactionLog};
pub use scan::{ScannedLog, scan};

/// Where merges and GC log what they did.
pub trait TransactionSink {
    /// Appends one record. When it and every record before it are durable, `apply` is called synchronously with its
    /// log sequence, in log order, and then the future completes. On an error `apply` is not called, and whether
    /// the record counts is decided by the next recovery.
    ///
    /// The record's effect on memory belongs into `apply`: a checkpoint that is composed between durability and
    /// effect would lose it. `apply` must not call back into the log.
    fn log(&self, record: Record, apply: Box<dyn FnOnce(LogSequence)>) -> LocalBoxFuture<'static, Result<LogSequence>>;

    /// Where a replay of `segment` must start if its memtable is frozen now. Call it in the same step as the freeze.
    fn frozen_at(&self, segment: SegmentId) -> FrozenAt;

    /// Announces that blocks of `segment` are about to be relocated: held from before the index is asked where they
    /// are until the record is applied or given up. While one is held, no freeze of the segment is quiet.
    fn relocating(&self, segment: SegmentId) -> Relocating;
}

/// What is true of a memtable at the moment at which it is frozen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrozenAt {
    /// Every record of the segment below this one is in the tables once the frozen memtable is one. (Effects of
    /// later records may be, too: the join makes their replay harmless.)
    pub covers: LogSequence,
    /// No record of the segment, and no relocation, is in flight: nothing older than what the memtable holds can
    /// arrive any more. Only a merge whose newest input was frozen quietly may drop tombstones, because a late
    /// relocation of a block that was discarded meanwhile would otherwise bring it back in a replay.
    pub quiet: bool,
}

/// See [`TransactionSink::relocating`].
pub struct Relocating(Rc<Cell<usize>>);

impl Relocating {
    /// One more of those that `count` counts.
    pub fn new(count: Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Relocating(count)
    }
}

impl Drop for Relocating {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
