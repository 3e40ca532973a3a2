//! What an engine says of itself: its figures, and what somebody might be waiting for.

use base::BLOCK;
use policies::background::Work;

use crate::core::Core;
use crate::statistics::Statistics;

impl Core {
    /// See [`crate::Engine::statistics`].
    pub(crate) fn statistics(&self) -> Statistics {
        let counters = &self.counters;
        let (memory_waits, full_hits) = self.admission.counters();
        Statistics {
            queue: counters.queue.borrow().clone(),
            journal: counters.journal.borrow().clone(),
            large: counters.large.borrow().clone(),
            index: self.log.latency(),
            read: counters.read.borrow().clone(),
            dump: counters.dump.borrow().clone(),
            relocated_reads: self.reader.relocated_blocks(),
            dumps: counters.dumps.get(),
            dumped_blocks: counters.dumped_blocks.get(),
            merged_blocks: counters.merged_blocks.get(),
            poisoned_blocks: counters.poisoned_blocks.get(),
            dump_retries: counters.dump_retries.get(),
            large_writes: counters.large.borrow().count(),
            discards: counters.discards.get(),
            checkpoints: counters.checkpoints.get(),
            strays: counters.strays.get(),
            memory_waits,
            full_hits,
            garbage_bytes: self.garbage.bytes(),
            broken_logs: u64::from(self.log.broken().is_some()),
            full_engines: u64::from(self.admission.free_space() < base::MIB),
            dirty_bytes: self.admission.bytes(),
            dirty_bytes_max: self.admission.bytes_max(),
            recovery: *counters.recovery.borrow(),
            gc: self.gc.statistics(),
            scrub: self.scrub.statistics(),
            read_ahead: self.reader.ahead(),
            verify: self.files.statistics(),
            index_tables: self.index.statistics(),
        }
    }

    /// See [`crate::Engine::background_work`].
    pub(crate) fn background_work(&self) -> Work {
        let (moved, scrubbed) = (self.gc.statistics().moved_bytes, self.scrub.statistics().read_bytes);
        let tables = self.index.statistics().table_bytes_written;
        let of_files = self.store.background_work();
        Work {
            read_bytes: moved + scrubbed + of_files.read_bytes,
            written_bytes: self.counters.dumped_blocks.get() * BLOCK + moved + tables + of_files.written_bytes,
        }
    }

    /// See [`crate::Engine::diagnose`].
    pub(crate) fn diagnose(&self) -> String {
        let mut lines = vec![
            format!(
                "{:?}; memory {} of {}, {} of it to the journal; dump slots free {}, waited for by {}",
                self.stage.get(),
                self.admission.bytes(),
                self.admission.bytes_max(),
                self.fusion.unsettled_bytes(),
                self.dump_slots.available(),
                self.dump_slots.waiting(),
            ),
            format!("journal: {:?}, {:?}", self.fusion.pressure(), self.fusion.statistics()),
            format!(
                "journal needs: {:?}, wanted {:?}",
                self.fusion.oldest_undumped(|id| self.dumped_through(id)),
                self.journal_wants.borrow()
            ),
            format!(
                "transaction log: retired below {}, next {}, files {:?}, broken {:?}; memtables {} bytes",
                self.log.retired_below(),
                self.log.next_sequence(),
                self.log.files(),
                self.log.broken(),
                self.index.memtable_bytes(),
            ),
            format!("space: {:?}, free for writes {}", self.store.space(), self.admission.free_space()),
            format!("gc: {:?}, sees {:?}", self.gc.statistics(), self.admission.space_for_collection()),
        ];
        let mut by_kind: std::collections::BTreeMap<_, (u64, u64)> = std::collections::BTreeMap::new();
        for info in self.store.list() {
            let (files, bytes) = by_kind.entry(format!("{:?}", info.kind)).or_default();
            *files += 1;
            *bytes += info.capacity;
        }
        lines.extend(by_kind.iter().map(|(kind, (files, bytes))| format!("{kind}: {files} files, {bytes} bytes")));
        for (segment, stale) in self.garbage.segments() {
            let tables = self.index.tables(segment).tables;
            let known = self.index.references_are_known(segment);
            lines.push(format!("{segment}: {} tables, {stale} stale blocks, references known: {known}", tables.len()));
            lines.extend(self.garbage.files(segment).iter().map(|file| format!("  {file:?}")));
        }
        lines.extend(self.all_segments().iter().filter(|segment| !segment.is_clean()).map(|segment| {
            format!(
                "{}: {:?}, active {}, next {}, dumped through {}, owed {} promised {}",
                segment.id(),
                segment.dump_stage(),
                segment.active_bytes(),
                segment.next(),
                segment.dumped_through(),
                segment.space.owed(),
                segment.space.promised(),
            )
        }));
        lines.join("\n")
    }
}
