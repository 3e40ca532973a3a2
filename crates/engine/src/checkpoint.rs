//! Checkpoints: what bounds the transaction log, and so the time that a recovery takes.
//!
//! When the log has gone on to a new file, the index entries that only the older files hold are flushed to tables;
//! then one record states everything that a recovery needs besides the records behind it, and the older files go.
//! A checkpoint is composed and given its place in the log in one step, so that it stands for exactly the records
//! that were applied before.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use base::seeded::is_on;
use base::{BLOCK, LogSequence, Result, SegmentId};

use crate::core::Core;
use crate::options::Ownership;
use crate::segment::Segment;
use crate::transaction::{Checkpoint, Record, SegmentCheckpoint, TransactionSink};

/// Between two checkpoints of which the first did not do.
const PAUSE: Duration = Duration::from_millis(20);
/// Pauses after failures double up to this.
const PAUSE_MAX: Duration = Duration::from_secs(1);

impl Core {
    /// One segment as of now.
    pub(crate) fn checkpoint_of(&self, segment: &Segment) -> SegmentCheckpoint {
        let id = segment.id();
        let files = self.garbage.files(id).into_iter();
        SegmentCheckpoint {
            segment: id,
            tenure: segment.tenure(),
            next: segment.next(),
            dumped_through: segment.dumped_through(),
            last_large: segment.last_large(),
            tables: self.index.tables(id),
            data_files: files.map(|file| (file.file, file.written_blocks * BLOCK)).collect(),
        }
    }

    /// Writes a checkpoint whenever the log has begun a new file, or somebody wants one.
    pub(crate) async fn keep_checkpointing(self: Rc<Self>) {
        let mut written_at = self.log.rotations();
        let mut pause = PAUSE;
        while self.can_log() {
            let (wanted, changed) = (self.checkpoint_wanted.wait(), self.log.changed());
            if self.log.rotations() == written_at && !self.log.has_failed_large_writes() {
                if !self.log.is_long() {
                    wanted.await;
                    continue;
                }
                if self.log.is_held_back() {
                    changed.await;
                    continue;
                }
                // The last one left too much behind: something was in flight, or came meanwhile.
                self.handle.sleep(PAUSE).await;
            }
            let rotations = self.log.rotations();
            match self.checkpoint().await {
                Ok(()) => {
                    (written_at, pause) = (rotations, PAUSE);
                    self.log.on_checkpoint(self.handle.now(), None);
                }
                Err(_) if !self.can_log() => return,
                Err(error) => {
                    tracing::warn!(%error, "a checkpoint failed and is tried again");
                    self.log.on_checkpoint(self.handle.now(), Some(&error));
                    self.handle.sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Flushes what only the older files of the log hold, writes a checkpoint, and deletes those files.
    ///
    /// # Errors
    /// `Io`, `Full`: the log is as long as before, and as good.
    pub(crate) async fn checkpoint(self: &Rc<Self>) -> Result<()> {
        self.index.flush_all(&self.log).await?;
        self.log_checkpoint(self.compose_checkpoint()).await
    }

    /// The last one of this life: all large writes are done, and the log has their records. No start has to look for
    /// labels.
    ///
    /// # Errors
    /// As those of [`Core::checkpoint`].
    pub(crate) async fn last_checkpoint(self: &Rc<Self>) -> Result<()> {
        self.index.flush_all(&self.log).await?;
        self.log_checkpoint(Checkpoint { label_key: None, ..self.compose_checkpoint() }).await
    }

    async fn log_checkpoint(&self, mut checkpoint: Checkpoint) -> Result<()> {
        let (decided_through, failed) = self.log.undecided();
        checkpoint.decided_through = decided_through;
        checkpoint.rejected.extend(&failed);
        let start = checkpoint.replay_start();
        checkpoint.rejected.retain(|sequence| *sequence >= start);
        let rejected = checkpoint.rejected.clone();
        self.repeat_drops();
        let appended = self.log.append(&Record::Checkpoint(checkpoint), Box::new(|_| ())).1;
        appended.await?;
        self.log.on_rejected(&failed);
        *self.rejected.borrow_mut() = rejected;
        self.counters.checkpoints.set(self.counters.checkpoints.get() + 1);
        self.log.trim(start).await;
        Ok(())
    }

    /// The state as of now, large writes that failed since excepted.
    pub(crate) fn compose_checkpoint(&self) -> Checkpoint {
        let from = match is_on("checkpoint-over-in-flight") {
            true => self.log.next_sequence(),
            false => self.log.retired_below(),
        };
        let unflushed: BTreeSet<SegmentId> = self.index.memtables().into_iter().map(|(id, _)| id).collect();
        let segments = self.all_segments().into_iter().map(|segment| {
            let id = segment.id();
            if !unflushed.contains(&id) {
                // Nothing is in memory, so there is nothing to freeze; but now the tables cover all that was applied.
                self.index.freeze(id, self.log.frozen_at(id));
            }
            self.checkpoint_of(&segment)
        });
        Checkpoint {
            label_key: Some(self.factory.label_key()),
            from,
            decided_through: LogSequence(0),
            rejected: self.rejected.borrow().clone(),
            replay: self.fusion.replay_start(|id| self.dumped_through(id)),
            dropped: self.dropped.borrow_mut().still_needed(&self.store, from),
            dumped_journals: self.fusion.dumped_journals(|id| self.dumped_through(id)),
            segments: segments.collect(),
            released: match self.options.ownership {
                Ownership::Whole => None,
                Ownership::Given => Some(match base::seeded::is_on("release-not-in-checkpoint") {
                    true => vec![],
                    false => self.released.borrow().values().cloned().collect(),
                }),
            },
        }
    }
}
