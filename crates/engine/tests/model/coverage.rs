//! What happened in all seeds of a test: a test of crashes that never crashed proves nothing.

use std::collections::BTreeMap;
use std::fmt;

use engine::Statistics;

/// Counters by name.
#[derive(Default)]
pub struct Coverage(BTreeMap<&'static str, u64>);

impl Coverage {
    /// Something happened so many times.
    pub fn add(&mut self, name: &'static str, count: u64) {
        *self.0.entry(name).or_default() += count;
    }

    /// How often it happened.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// What an engine did in one life.
    pub fn add_life(&mut self, statistics: &Statistics) {
        let recovery = &statistics.recovery;
        for (name, count) in [
            ("dumps", statistics.dumps),
            ("merged_blocks", statistics.merged_blocks),
            ("dump_retries", statistics.dump_retries),
            ("poisoned_blocks", statistics.poisoned_blocks),
            ("large_writes", statistics.large_writes),
            ("discards", statistics.discards),
            ("checkpoints", statistics.checkpoints),
            ("memory_waits", statistics.memory_waits),
            ("full_hits", statistics.full_hits),
            ("relocated_reads", statistics.relocated_reads),
            ("read_ahead_bytes", statistics.read_ahead.read_bytes),
            ("read_ahead_used_bytes", statistics.read_ahead.used_bytes),
            ("read_ahead_unused_chunks", statistics.read_ahead.unused_chunks),
            ("replayed_transactions", recovery.transaction_records),
            ("replayed_writes", recovery.journal_records),
            ("shadowed_writes", recovery.shadowed_records),
            ("torn_tails", recovery.torn_tails),
            ("proven_large_writes", recovery.proven_large_writes),
            ("rejected_large_writes", recovery.rejected_large_writes),
            ("mismatches", statistics.verify.mismatches),
            ("repaired", statistics.verify.repaired),
            ("lost_reads", statistics.verify.lost),
            ("gc_passes", statistics.gc.passes),
            ("gc_moved_bytes", statistics.gc.moved_bytes),
            ("gc_removed_files", statistics.gc.removed_files),
            ("gc_stuck_files", statistics.gc.stuck_files),
            ("scrub_rounds", statistics.scrub.rounds),
            ("flushes", statistics.index_tables.flushes),
            ("merges", statistics.index_tables.merges),
            ("tombstones_dropped", statistics.index_tables.tombstones_dropped),
        ] {
            self.add(name, count);
        }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, count)) in self.0.iter().enumerate() {
            write!(f, "{}{name} {count}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
