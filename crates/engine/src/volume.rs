//! The end of a volume, and the end of an engine.

use std::rc::Rc;

use base::{Error, Result, VolumeId};

use crate::core::{Core, Stage};
use crate::transaction::Record;

impl Core {
    /// See [`crate::Engine::drop_volume`].
    pub(crate) async fn drop_volume(self: &Rc<Self>, volume: VolumeId) -> Result<()> {
        if self.stage.get() != Stage::Running {
            return Err(Error::internal("the engine is closed"));
        }
        let _deletion = self.fullness.begin_deletion();
        // What is in flight must not keep a core alive that is gone.
        let weak = Rc::downgrade(self);
        let apply = move |_| {
            let Some(core) = weak.upgrade() else { return };
            core.dropped.borrow_mut().add(volume, &core.store, core.log.next_sequence());
            let mut segments = core.segments.borrow_mut();
            segments.retain(|id, segment| {
                let keep = id.volume != volume;
                if !keep {
                    segment.drop_all();
                    segment.dumps.end();
                    segment.larges.end();
                }
                keep
            });
            drop(segments);
            core.index.drop_volume(volume);
        };
        self.log.append(&Record::DropVolume { volume }, Box::new(apply)).1.await?;
        self.admission.on_freed();
        self.on_discarded();
        self.trim_journal_apart().await;
        Ok(())
    }

    /// See [`crate::Engine::close`].
    pub(crate) async fn close(self: &Rc<Self>) -> Result<()> {
        if self.stage.replace(Stage::Closing) != Stage::Running {
            return Err(Error::internal("the engine is closed already"));
        }
        self.store.keep_ready(&[], 0);
        let outcome = self.wind_down().await;
        self.stage.set(Stage::Closed);
        self.maintenance.borrow_mut().clear();
        self.scrub.end();
        self.reader.clear();
        for event in [&self.dirtied, &self.dumped, &self.checkpoint_wanted, self.admission.wanted()] {
            event.notify();
        }
        self.fusion.pressure_event().notify();
        outcome?;
        // Last of all, when nobody has anything to log any more.
        self.log.close().await
    }

    async fn wind_down(self: &Rc<Self>) -> Result<()> {
        loop {
            // Also notified by writes that are still in flight.
            let dumped = self.dumped.wait();
            let dirty: Vec<_> = self.all_segments().into_iter().filter(|segment| !segment.is_clean()).collect();
            if dirty.is_empty() {
                break;
            }
            dirty.iter().for_each(|segment| self.want_dump(segment));
            if let Some(error) = self.log.broken() {
                return Err(error);
            }
            if let Some(error) = self.undumped.borrow().clone() {
                return Err(error.context("some writes are in the journal only, and the next start replays them"));
            }
            dumped.await;
        }
        self.fusion.close(|id| self.dumped_through(id), async |file| self.intend_to_drop(file).await).await?;
        for segment in self.all_segments() {
            segment.dumps.close();
            segment.larges.close();
        }
        self.last_checkpoint().await
    }
}
