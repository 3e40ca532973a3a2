//! What is left of segments that were dropped (rule 43 of docs/SAFETY.md).
//!
//! **Intuition.** One record drops a segment; its files go afterwards, which takes its time. Whoever recovers this log, if
//! this engine dies meanwhile, must find that record: nobody has the segment any more, so nobody else would ever look for
//! files of it.
//!
//! **Invariant.** A segment that was dropped is a *rest* until a look at the store has found no file of it; and as long as it
//! is one, a recovery of this log finds the record of its drop, because every checkpoint repeats it.
//!
//! **Flow.** `DropSegment is durable -> a rest -> its files are listed and removed, again and again -> no rest`. Dead:
//! `recovery -> rests -> the one recoverer removes the files` ([`super::estate`]).

use std::rc::Rc;
use std::time::Duration;

use base::{Epoch, FileId, Result, SegmentId};
use files::Store;
use runtime::Class;

use crate::core::Core;
use crate::transaction::Record;

/// Between two looks: what was under way when the segment was dropped removes by itself what it makes.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause, where the store refuses to remove or to say what there is.
const PAUSE_MAX: Duration = Duration::from_secs(60);

impl Core {
    /// The drop of a segment is durable.
    pub(super) fn on_dropped(self: &Rc<Self>, id: SegmentId, epoch: Epoch) {
        self.rests.borrow_mut().insert(id, epoch);
        self.remove_rest(id, epoch);
    }

    /// Goes on with what an earlier life has not removed.
    pub(crate) fn remove_rests(self: &Rc<Self>) {
        let rests: Vec<(SegmentId, Epoch)> = self.rests.borrow().iter().map(|(id, epoch)| (*id, *epoch)).collect();
        rests.into_iter().for_each(|(id, epoch)| self.remove_rest(id, epoch));
    }

    /// Logs the drops whose files are not gone yet once more, for a checkpoint that comes behind them.
    pub(crate) fn repeat_drops(&self) {
        for (&segment, &epoch) in &*self.rests.borrow() {
            // Whether it gets there is known by the record behind it.
            drop(self.log.append(&Record::DropSegment { segment, epoch }, Box::new(|_| ())));
        }
    }

    fn remove_rest(self: &Rc<Self>, id: SegmentId, epoch: Epoch) {
        let (core, handle) = (Rc::downgrade(self), self.handle.clone());
        let removing = async move {
            let mut pause = PAUSE;
            loop {
                let Some(core) = core.upgrade() else { return };
                // Who was given the segment anew looks after it.
                if core.rests.borrow().get(&id) != Some(&epoch) {
                    return;
                }
                match core.remove_some_rest(id, epoch).await {
                    Ok(0) => {
                        core.rests.borrow_mut().remove(&id);
                        return;
                    }
                    Ok(_) => pause = PAUSE,
                    Err(_) if !core.can_log() => return,
                    Err(error) => {
                        tracing::warn!(segment = %id, "files of a segment that was dropped stay for now: {error}");
                        pause = (pause * 2).min(PAUSE_MAX);
                    }
                }
                drop(core);
                handle.sleep(pause).await;
            }
        };
        self.handle.spawn(Class::Background, "remove the rest of a segment", removing).detach();
    }

    /// Removes the files that a look finds; gives how many that were.
    async fn remove_some_rest(&self, id: SegmentId, epoch: Epoch) -> Result<usize> {
        let rest = rest(&self.store, id, epoch).await?;
        for file in &rest {
            self.files.delete_unpinned(*file).await?;
        }
        Ok(rest.len())
    }
}

/// The files of a segment that was dropped under `epoch`.
pub(super) async fn rest(store: &Store, id: SegmentId, epoch: Epoch) -> Result<Vec<FileId>> {
    let found = store.files_of_segment(id).await?;
    Ok(found.iter().filter(|info| info.epoch <= epoch).map(|info| info.id).collect())
}
