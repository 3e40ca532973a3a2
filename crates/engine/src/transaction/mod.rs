//! The transaction log: the write-ahead log of the index, shared by all segments of an engine.

pub mod format;

use base::{LogSequence, Result};
use files::LocalBoxFuture;

pub use format::{Checkpoint, Record, SegmentCheckpoint};

/// Where merges and GC log what they did.
pub trait TransactionSink {
    /// Appends one record. When it and every record before it are durable, `apply` is called synchronously with its
    /// log sequence, in log order, and then the future completes. On an error `apply` is not called, and whether
    /// the record counts is decided by the next recovery.
    ///
    /// The record's effect on memory belongs into `apply`: a checkpoint that is composed between durability and
    /// effect would lose it.
    fn log(&self, record: Record, apply: Box<dyn FnOnce(LogSequence)>) -> LocalBoxFuture<'static, Result<LogSequence>>;

    /// The log sequence that the next record gets: what a memtable frozen now covers, if no record of its segment
    /// is in flight.
    fn next_sequence(&self) -> LogSequence;
}
