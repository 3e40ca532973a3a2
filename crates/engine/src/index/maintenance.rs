//! Flushes and merges by itself: memtables stay below their bound, segments keep few tables.
//!
//! Two tasks wait for changes: one flushes what is frozen, and freezes and flushes the largest memtable while there
//! is too much in memory; the other merges where `policies::merge` says so. Both are background work, but a flush
//! that writers wait for runs as `Io`. What failed is tried again after a rest, so that a full disk is not asked a
//! thousand times.

use std::rc::Rc;
use std::time::Duration;

use base::{Error, ErrorKind, FileId, Result, SegmentId};
use policies::merge::{MergeSettings, plan_merge};
use runtime::{Class, Task};

use super::Index;
use crate::transaction::TransactionSink;

/// How long a task rests after an error.
const REST_AFTER_ERROR: Duration = Duration::from_secs(1);
/// The same where there was no space: less than the patience of writes that wait for it (see `crate::space`).
const REST_WHEN_FULL: Duration = Duration::from_millis(100);

impl Index {
    /// Starts the two tasks. They end when dropped; what they were writing is then removed by the next start.
    pub fn spawn_maintenance(&self, sink: Rc<dyn TransactionSink>) -> [Task<()>; 2] {
        let flusher = self.spawn_flusher(sink.clone());
        let merger = self.clone().run_merger(sink);
        [flusher, self.0.files.handle().spawn(Class::Background, "merger", merger)]
    }

    /// Starts the first of them only, for an index that is looked at no longer than it takes to give it away.
    pub fn spawn_flusher(&self, sink: Rc<dyn TransactionSink>) -> Task<()> {
        self.0.files.handle().spawn(Class::Background, "flusher", self.clone().run_flusher(sink))
    }

    async fn run_flusher(self, sink: Rc<dyn TransactionSink>) {
        while !self.0.ended.get() {
            let changed = self.0.changed.wait();
            let Some(segment) = self.next_to_flush(&*sink) else {
                changed.await;
                continue;
            };
            let class = match self.memtable_bytes() >= self.0.options.memtable_bytes_max {
                true => Class::Io,
                false => Class::Background,
            };
            let (this, sink) = (self.clone(), sink.clone());
            let job = async move { this.flush(segment, &*sink).await };
            match self.0.files.handle().spawn(class, "flush a memtable", job).await {
                Ok(true) => (),
                // Somebody else flushes it.
                Ok(false) => changed.await,
                Err(error) => {
                    note("a memtable could not be flushed", segment, &error);
                    if self.0.patience.on_failure(self.0.files.handle().now(), &error) {
                        self.0.changed.notify();
                    }
                    self.0.files.handle().sleep(rest_after(&error)).await;
                }
            }
        }
    }

    /// A segment with a frozen memtable; else, if there is too much in memory, the largest one, frozen now.
    fn next_to_flush(&self, sink: &dyn TransactionSink) -> Option<SegmentId> {
        if let Some(segment) = self.0.frozen.borrow().first() {
            return Some(*segment);
        }
        if !self.wants_flush() {
            return None;
        }
        let (segment, _) = *self.memtables().first()?;
        self.freeze(segment, sink.frozen_at(segment));
        Some(segment)
    }

    async fn run_merger(self, sink: Rc<dyn TransactionSink>) {
        while !self.0.ended.get() {
            let changed = self.0.tables_changed.wait();
            let Some((segment, files)) = self.next_to_merge() else {
                changed.await;
                continue;
            };
            let Err(error) = self.merge(segment, &files, &*sink).await else { continue };
            note("tables could not be merged", segment, &error);
            if error.kind == ErrorKind::Corrupt {
                // It will not get better: its tables stay as they are, and newer ones are merged among themselves.
                self.0.unmergeable.borrow_mut().extend(files);
            }
            self.merge_later(segment, rest_after(&error));
        }
    }

    /// Looks at a segment again after a rest. The others go on: what is wrong with its tables may stay wrong.
    fn merge_later(&self, segment: SegmentId, rest: Duration) {
        let this = Rc::downgrade(&self.0);
        let handle = self.0.files.handle().clone();
        let later = async move {
            handle.sleep(rest).await;
            if let Some(inner) = this.upgrade() {
                Index(inner).on_tables_changed(segment);
            }
        };
        self.0.files.handle().spawn(Class::Background, "merge later", later).detach();
    }

    /// Takes segments whose tables changed until one wants a merge. A merge that succeeds brings it back.
    fn next_to_merge(&self) -> Option<(SegmentId, Vec<FileId>)> {
        loop {
            let segment = self.0.merge_candidates.borrow_mut().pop_first()?;
            let tables = self.tables(segment).tables;
            let unmergeable = self.0.unmergeable.borrow();
            let mergeable = tables.iter().take_while(|table| !unmergeable.contains(&table.file));
            let sizes: Vec<u64> = mergeable.map(|table| u64::from(table.entries)).collect();
            let run = plan_merge(&sizes, &MergeSettings::default());
            if run > 0 {
                return Some((segment, tables[..run].iter().map(|table| table.file).collect()));
            }
        }
    }

    /// Flushes every memtable, and returns when all that was applied before the call is in tables.
    ///
    /// # Errors
    /// `Full`, `Io`, `Fenced`: what is not flushed stays in memory, and in the transaction log.
    pub async fn flush_all(&self, sink: &dyn TransactionSink) -> Result<()> {
        let segments: Vec<SegmentId> = self.memtables().into_iter().map(|(segment, _)| segment).collect();
        for &segment in &segments {
            self.freeze(segment, sink.frozen_at(segment));
        }
        for segment in segments {
            self.flush_frozen(segment, sink).await?;
        }
        Ok(())
    }

    /// Flushes what is frozen of `segment` now.
    pub(super) async fn flush_frozen(&self, segment: SegmentId, sink: &dyn TransactionSink) -> Result<()> {
        let Some(last) = self.segment(segment).and_then(|segment| segment.newest_frozen()) else { return Ok(()) };
        while self.segment(segment).is_some_and(|segment| segment.is_frozen(&last)) {
            let changed = self.0.changed.wait();
            if !self.flush(segment, sink).await? {
                changed.await;
            }
        }
        Ok(())
    }
}

/// A full store says so to its writers; the log need not repeat it ten times a second.
fn note(what: &str, segment: SegmentId, error: &Error) {
    match error.kind {
        ErrorKind::Full => tracing::debug!(%segment, "{what}: {error}"),
        _ => tracing::warn!(%segment, "{what}: {error}"),
    }
}

fn rest_after(error: &Error) -> Duration {
    match error.kind {
        ErrorKind::Full => REST_WHEN_FULL,
        _ => REST_AFTER_ERROR,
    }
}
