//! What an engine counts: plain numbers and histograms, read by the control plane.

use std::cell::{Cell, RefCell};

use base::Histogram;

use crate::gc::GcStatistics;
use crate::index::IndexStatistics;
use crate::read_ahead::ReadAheadStatistics;
use crate::scrub::ScrubStatistics;
use crate::verified::VerifyStatistics;

/// Counters while the engine runs.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) queue: RefCell<Histogram>,
    pub(crate) journal: RefCell<Histogram>,
    pub(crate) large: RefCell<Histogram>,
    pub(crate) read: RefCell<Histogram>,
    pub(crate) dump: RefCell<Histogram>,
    pub(crate) dumps: Cell<u64>,
    pub(crate) dumped_blocks: Cell<u64>,
    pub(crate) merged_blocks: Cell<u64>,
    pub(crate) poisoned_blocks: Cell<u64>,
    pub(crate) dump_retries: Cell<u64>,
    pub(crate) discards: Cell<u64>,
    pub(crate) checkpoints: Cell<u64>,
    pub(crate) strays: Cell<u64>,
    pub(crate) recovery: RefCell<RecoveryStatistics>,
}

/// What an engine did since it was opened, and how it stands. Times in nanoseconds, sizes in bytes.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// From a write's arrival to its submission: admission.
    pub queue: Histogram,
    /// From submission to durability in the journal.
    pub journal: Histogram,
    /// From submission to effect of a large write.
    pub large: Histogram,
    /// From a transaction record's submission to its effect on the index.
    pub index: Histogram,
    /// Reads, whole.
    pub read: Histogram,
    /// Dumps, from the switch of caches to the effect on the index.
    pub dump: Histogram,
    /// Blocks that were read from where garbage collection had moved them.
    pub relocated_reads: u64,
    /// Dumps done.
    pub dumps: u64,
    /// Blocks that dumps wrote.
    pub dumped_blocks: u64,
    /// Blocks among them that were merged with their base.
    pub merged_blocks: u64,
    /// Blocks whose base could not be read from any copy, and which read as errors until they are overwritten.
    pub poisoned_blocks: u64,
    /// Dumps that failed and were repeated.
    pub dump_retries: u64,
    /// Large writes.
    pub large_writes: u64,
    /// Discards.
    pub discards: u64,
    /// Checkpoints of the transaction log.
    pub checkpoints: u64,
    /// Files of its segments that no log named, and that were removed.
    pub strays: u64,
    /// Writes that waited for memory.
    pub memory_waits: u64,
    /// Writes that found no space.
    pub full_hits: u64,
    /// Bytes of closed data files in which nothing live is left to be read; at least so many.
    pub garbage_bytes: u64,
    /// Engines whose log of transactions takes no more records.
    pub broken_logs: u64,
    /// Engines that have less than 1 MiB left for writes.
    pub full_engines: u64,
    /// Bytes of caches and writes in flight, and their bound.
    pub dirty_bytes: u64,
    /// See `dirty_bytes`.
    pub dirty_bytes_max: u64,
    /// What the last recovery found.
    pub recovery: RecoveryStatistics,
    /// What was read ahead of streams.
    pub read_ahead: ReadAheadStatistics,
    /// Proofs of bytes that were read.
    pub verify: VerifyStatistics,
    /// Garbage collection.
    pub gc: GcStatistics,
    /// Scrubbing.
    pub scrub: ScrubStatistics,
    /// Memtables, tables and pages of the index.
    pub index_tables: IndexStatistics,
}

/// What a recovery found and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryStatistics {
    /// Transaction records replayed.
    pub transaction_records: u64,
    /// Journal records that went into caches.
    pub journal_records: u64,
    /// Journal records that a newer large write or dump had made needless.
    pub shadowed_records: u64,
    /// Logs that ended in records that were cut.
    pub torn_tails: u64,
    /// Large writes that were found without their data.
    pub rejected_large_writes: u64,
    /// Large writes that were proven by their data.
    pub proven_large_writes: u64,
    /// Large writes that no record of the log names, and that were found by their labels.
    pub labelled_large_writes: u64,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
}

impl Statistics {
    /// Adds what another engine of the same store counted.
    pub fn merge(&mut self, other: &Statistics) {
        // Named one by one, so that none is forgotten.
        let Statistics {
            queue,
            journal,
            large,
            index,
            read,
            dump,
            relocated_reads,
            dumps,
            dumped_blocks,
            merged_blocks,
            poisoned_blocks,
            dump_retries,
            large_writes,
            discards,
            checkpoints,
            strays,
            memory_waits,
            full_hits,
            garbage_bytes,
            broken_logs,
            full_engines,
            dirty_bytes,
            dirty_bytes_max,
            recovery,
            read_ahead,
            verify,
            gc,
            scrub,
            index_tables,
        } = other;
        self.queue.merge(queue);
        self.journal.merge(journal);
        self.large.merge(large);
        self.index.merge(index);
        self.read.merge(read);
        self.dump.merge(dump);
        self.relocated_reads += relocated_reads;
        self.dumps += dumps;
        self.dumped_blocks += dumped_blocks;
        self.merged_blocks += merged_blocks;
        self.poisoned_blocks += poisoned_blocks;
        self.dump_retries += dump_retries;
        self.large_writes += large_writes;
        self.discards += discards;
        self.checkpoints += checkpoints;
        self.strays += strays;
        self.memory_waits += memory_waits;
        self.full_hits += full_hits;
        self.garbage_bytes += garbage_bytes;
        self.broken_logs += broken_logs;
        self.full_engines += full_engines;
        self.dirty_bytes += dirty_bytes;
        self.dirty_bytes_max += dirty_bytes_max;
        self.recovery.merge(recovery);
        self.read_ahead.merge(read_ahead);
        self.verify.merge(verify);
        self.gc.merge(gc);
        self.scrub.merge(scrub);
        self.index_tables.merge(index_tables);
    }
}

impl RecoveryStatistics {
    /// Adds another recovery, that took place at the same time.
    fn merge(&mut self, other: &RecoveryStatistics) {
        let RecoveryStatistics {
            transaction_records,
            journal_records,
            shadowed_records,
            torn_tails,
            rejected_large_writes,
            proven_large_writes,
            labelled_large_writes,
            took_ns,
        } = other;
        self.transaction_records += transaction_records;
        self.journal_records += journal_records;
        self.shadowed_records += shadowed_records;
        self.torn_tails += torn_tails;
        self.rejected_large_writes += rejected_large_writes;
        self.proven_large_writes += proven_large_writes;
        self.labelled_large_writes += labelled_large_writes;
        self.took_ns = self.took_ns.max(*took_ns);
    }
}
