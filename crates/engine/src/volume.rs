//! The end of a volume, and the end of an engine.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::seeded::is_on;
use base::{Error, FileId, LogSequence, Result, VolumeId};
use files::{FileInfo, FileKind, Store};

use crate::core::{Core, Stage};
use crate::transaction::Record;

/// Volumes that were dropped and whose records may still stand in a journal or in the transaction log.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    volumes: BTreeMap<VolumeId, Remains>,
}

/// Where records of a dropped volume may stand: with the last of these it is forgotten.
#[derive(Debug)]
struct Remains {
    /// The journals that existed when it was dropped.
    journals: BTreeSet<FileId>,
    /// The first record of the transaction log that knows of the drop. One before it may name the volume and come
    /// after the drop in the log: it was on its way when the drop became durable.
    known_from: LogSequence,
}

impl Dropped {
    /// What a recovery found: any of the journals among `files` may name the volumes.
    pub(crate) fn restore(
        &mut self,
        volumes: impl Iterator<Item = VolumeId>,
        files: &[FileInfo],
        known_from: LogSequence,
    ) {
        let journals = journals(files);
        self.volumes.extend(volumes.map(|volume| (volume, Remains { journals: journals.clone(), known_from })));
    }

    /// Whether the volume was dropped.
    pub(crate) fn contains(&self, volume: VolumeId) -> bool {
        self.volumes.contains_key(&volume)
    }

    /// All of them.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = VolumeId> {
        self.volumes.keys().copied()
    }

    fn add(&mut self, volume: VolumeId, store: &Store, known_from: LogSequence) {
        self.volumes.insert(volume, Remains { journals: journals(&store.list()), known_from });
    }

    /// The volumes that a checkpoint has to name, after which the log is replayed from `from` on.
    pub(crate) fn still_needed(&mut self, store: &Store, from: LogSequence) -> Vec<VolumeId> {
        if is_on("dropped-volume-forgotten") {
            self.volumes.clear();
        }
        self.volumes.retain(|_, Remains { journals, known_from }| {
            journals.retain(|journal| store.info(*journal).is_some());
            !journals.is_empty() || from < *known_from
        });
        self.volumes.keys().copied().collect()
    }
}

fn journals(files: &[FileInfo]) -> BTreeSet<FileId> {
    files.iter().filter(|info| info.kind == FileKind::Journal).map(|info| info.id).collect()
}

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
        self.trim_journal().await;
        Ok(())
    }

    /// See [`crate::Engine::close`].
    pub(crate) async fn close(self: &Rc<Self>) -> Result<()> {
        if self.stage.replace(Stage::Closing) != Stage::Running {
            return Err(Error::internal("the engine is closed already"));
        }
        let outcome = self.wind_down().await;
        self.stage.set(Stage::Closed);
        self.maintenance.borrow_mut().clear();
        self.scrub.end();
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
        self.checkpoint().await
    }
}
