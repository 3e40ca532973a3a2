//! Segments that are given to an engine and taken from it (rules 38, 39, 42 and 47 of docs/SAFETY.md).
//!
//! **Intuition.** A segment is what one engine's log says it is. So it changes hands by records: *Create* gives an
//! empty one, *Release* ends what one log has, *Adopt* begins it in another one. Between the two lies the segment *as it
//! was left*: everything that was written to it is in tables and sealed data files, and nothing is cached or journaled.
//! That is a small record ([`SegmentCheckpoint`]), which is all that an adopter needs: files belong to the segment, and
//! are not copied.
//!
//! **Names.** The *tenure* of a segment is the epoch under which an engine has it, and the newest attachment that it
//! knows of. What a dead engine had is its *estate* ([`estate`]): it is released from the dead engine's log by whoever
//! adopts it, in the same words.
//!
//! **Invariants.**
//! - An epoch is given to one engine, for one segment. A segment that is here has exactly one.
//! - Release is logged when nothing is in flight, dirty or being removed, and every record before it is durable. From
//!   then on nothing of the segment is written, removed or answered, also not to who asked before.
//! - Adopt is the commit point: before it is durable the segment is not here. What comes before it in this log is not
//!   about this tenure, and replays pass it over.
//! - Epochs of a segment only grow here: one that was begun, or refused, is not begun again.
//! - A file says which segment it is of; what no log names any more is removed by whoever has the segment ([`strays`]), and
//!   what is left of one that was dropped by whoever has the log that says so ([`rests`]).
//! - What was released is known, in the log, too, until somebody says who has it ([`Core::forget_release`]).

use std::rc::Rc;

use base::{BLOCK, Epoch, Error, FileId, Generation, Incarnation, LogSequence, Result, SegmentId, VolumeId};
use files::FileKind;
use runtime::Class;
use runtime::sync::{first, join_all};

use crate::arrivals::Arrival;
use crate::core::Core;
use crate::index::SegmentTables;
use crate::options::Ownership;
use crate::segment::Segment;
use crate::transaction::{Record, SegmentCheckpoint, Tenure};

pub mod estate;
mod rests;
mod strays;

/// Files of a segment that are looked for at the same time.
const FILES_LOOKED_AT: usize = 16;

impl Core {
    /// See [`crate::Engine::create_segment`].
    pub(crate) async fn create_segment(self: &Rc<Self>, id: SegmentId, tenure: Tenure) -> Result<()> {
        let Some(arrival) = self.begin_arrival(id, tenure)? else { return Ok(()) };
        let covers = self.log.next_sequence();
        let Tenure { epoch, generation } = tenure;
        let record = Record::Create { segment: id, epoch, generation };
        self.begin_tenure(record, SegmentCheckpoint::empty(id, tenure, covers), arrival).await
    }

    /// See [`crate::Engine::adopt`].
    pub(crate) async fn adopt(
        self: &Rc<Self>,
        source: Incarnation,
        left: SegmentCheckpoint,
        tenure: Tenure,
    ) -> Result<()> {
        let Some(arrival) = self.begin_arrival(left.segment, tenure)? else { return Ok(()) };
        self.check_files(source, &left).await?;
        self.check_writable()?;
        let generation = tenure.generation.max(left.tenure.generation);
        let tables = SegmentTables { covers: self.log.next_sequence(), ..left.tables };
        let segment = SegmentCheckpoint { tenure: Tenure { generation, ..tenure }, tables, ..left };
        self.begin_tenure(Record::Adopt { source, segment: segment.clone() }, segment, arrival).await
    }

    /// Whether every file is there that a segment refers to.
    async fn check_files(&self, source: Incarnation, left: &SegmentCheckpoint) -> Result<()> {
        let files: Vec<FileId> = left.files().collect();
        for some in files.chunks(FILES_LOOKED_AT) {
            let found = join_all(some.iter().map(|file| self.store.find(*file))).await;
            for (file, found) in some.iter().zip(found) {
                if found?.is_none() {
                    let (segment, place) = (left.segment, self.store.locate(*file, 0));
                    return Err(Error::corrupt(format!(
                        "{segment} cannot be had from incarnation {source}: {place} is missing; restore it"
                    )));
                }
            }
        }
        Ok(())
    }

    /// See [`crate::Engine::release`].
    pub(crate) async fn release(self: &Rc<Self>, id: SegmentId, epoch: Epoch) -> Result<SegmentCheckpoint> {
        if let Some(left) = self.released.borrow().get(&id).filter(|left| left.tenure.epoch == epoch) {
            return Ok(left.clone());
        }
        let segment = self.segment(id)?;
        if segment.epoch() != epoch {
            return Err(Error::conflict(format!("{id} is here under {}, not under {epoch}", segment.epoch())));
        }
        if !segment.begin_leaving() {
            return Err(Error::conflict(format!("{id} is about to leave already")));
        }
        let leaving = Leaving { core: self.clone(), segment };
        // Who waits there for one whose record is in doubt would wait for ever, once the log takes no more records.
        let left = first(leaving.settle(), self.log.when_broken()).await.unwrap_or_else(Err)?;
        // No way back from here on: the record counts, also if nobody waits for it any more.
        leaving.segment.leave();
        let (core, id) = (Rc::downgrade(self), left.segment);
        let (released, record) = (left.clone(), Record::Release(left.clone()));
        let apply = move |_| {
            let Some(core) = core.upgrade() else { return };
            core.segments.borrow_mut().remove(&id);
            core.index.forget(id);
            core.journal_wants.borrow_mut().remove(&id);
            core.released.borrow_mut().insert(id, released);
            tracing::trace!(target: "levee::segment", segment = %id, "released");
        };
        self.log.append(&record, Box::new(apply)).1.await?;
        self.trim_journal_apart().await;
        Ok(left)
    }

    /// See [`crate::Engine::drop_segment`].
    pub(crate) async fn drop_segment(self: &Rc<Self>, id: SegmentId, epoch: Epoch) -> Result<()> {
        self.check_writable()?;
        let segment = match self.segment(id) {
            Ok(segment) if segment.epoch() == epoch => segment,
            Ok(segment) => return Err(Error::conflict(format!("{id} is here under {}, not {epoch}", segment.epoch()))),
            Err(_) if self.arrivals.newest(id) >= Some(epoch) => return Ok(()),
            Err(moved) => return Err(moved),
        };
        // Of a drop and a release only one is logged: the files of what was released are somebody's.
        if !segment.begin_leaving() {
            return Err(Error::conflict(format!("{id} is about to leave already")));
        }
        let _deletion = self.fullness.begin_deletion();
        let core = Rc::downgrade(self);
        let apply = move |_| {
            let Some(core) = core.upgrade() else { return };
            core.segments.borrow_mut().remove(&id);
            segment.drop_all();
            segment.dumps.end();
            segment.larges.end();
            core.index.drop_segment(id);
            core.on_dropped(id, epoch);
            tracing::trace!(target: "levee::segment", segment = %id, "dropped");
        };
        self.log.append(&Record::DropSegment { segment: id, epoch }, Box::new(apply)).1.await?;
        self.admission.on_freed();
        self.on_discarded();
        self.trim_journal_apart().await;
        Ok(())
    }

    /// See [`crate::Engine::forget_release`].
    pub(crate) fn forget_release(&self, id: SegmentId, epoch: Epoch) {
        let mut released = self.released.borrow_mut();
        if released.get(&id).is_some_and(|left| left.tenure.epoch == epoch) {
            released.remove(&id);
        }
    }

    /// See [`crate::Engine::refuse`].
    pub(crate) fn refuse(&self, id: SegmentId, epoch: Epoch) -> Result<()> {
        if self.segments.borrow().get(&id).is_some_and(|segment| segment.epoch() >= epoch) {
            return Err(Error::conflict(format!("{id} is here already")));
        }
        self.arrivals.refuse(id, epoch)
    }

    /// See [`crate::Engine::record_attachment`].
    pub(crate) async fn record_attachment(self: &Rc<Self>, volume: VolumeId, generation: Generation) -> Result<()> {
        self.check_writable()?;
        let core = Rc::downgrade(self);
        let apply = move |_| {
            let Some(core) = core.upgrade() else { return };
            let segments = core.segments.borrow();
            segments.values().filter(|segment| segment.id().volume == volume).for_each(|segment| {
                segment.on_attached(generation);
            });
        };
        self.log.append(&Record::Attach { volume, generation }, Box::new(apply)).1.await.map(drop)
    }

    /// Nobody else lets the segment arrive until the guard is dropped. `None`: it is here under this tenure.
    fn begin_arrival(self: &Rc<Self>, id: SegmentId, tenure: Tenure) -> Result<Option<Arrival>> {
        self.check_writable()?;
        if self.options.ownership != Ownership::Given {
            return Err(Error::invalid("this store is one server's own: no segments can be given to it"));
        }
        if self.dropped.borrow().contains(id.volume) {
            return Err(Error::not_found(format!("volume {} was deleted", id.volume)));
        }
        if let Some(segment) = self.segments.borrow().get(&id) {
            return match segment.epoch() == tenure.epoch {
                true => Ok(None),
                false => Err(Error::conflict(format!("{id} is here already, under {}", segment.epoch()))),
            };
        }
        self.arrivals.begin(id, tenure.epoch).map(Some)
    }

    /// Logs the beginning of a tenure; when that is durable, the segment is here.
    async fn begin_tenure(self: &Rc<Self>, record: Record, segment: SegmentCheckpoint, arrival: Arrival) -> Result<()> {
        let core = Rc::downgrade(self);
        let is_adopted = matches!(record, Record::Adopt { .. });
        // The arrival ends with the record, also if nobody waits for it any more.
        let apply = move |_: LogSequence| {
            let Some(core) = core.upgrade() else { return };
            arrival.complete();
            core.released.borrow_mut().remove(&segment.segment);
            core.rests.borrow_mut().remove(&segment.segment);
            for &(file, bytes) in &segment.data_files {
                let capacity = core.store.info(file).map_or(bytes, |info| info.capacity);
                core.garbage.opened(segment.segment, file, capacity);
                core.garbage.appended(file, bytes / BLOCK);
                core.garbage.closed(file, capacity, core.handle.now());
            }
            let data_files = segment.data_files.clone();
            let what = if is_adopted { "adopted" } else { "created" };
            tracing::trace!(target: "levee::segment", segment = %segment.segment, "{what}");
            let here = core.add_segment(segment);
            if is_adopted {
                core.settle_in(here, data_files);
            }
        };
        if base::seeded::is_on("adopt-answered-early") {
            // Its record goes out with the next one.
            apply(self.log.next_sequence());
            let _logging = self.log.append_lazily(&record);
            return Ok(());
        }
        self.log.append(&record, Box::new(apply)).1.await.map(drop)
    }

    /// What can be done when the segment serves already: its garbage is learned of, the unused space of data files that
    /// their writer did not live to seal comes back, and strays go.
    fn settle_in(self: &Rc<Self>, segment: Rc<Segment>, data_files: Vec<(FileId, u64)>) {
        let (core, id) = (Rc::downgrade(self), segment.id());
        let settle_in = async move {
            let Some(core) = core.upgrade() else { return };
            if let Err(error) = core.index.count_references(id).await {
                tracing::error!(segment = %id, "the garbage of a segment is not known, it is not collected: {error}");
            }
            for (file, length) in data_files {
                let Some(_work) = core.index.begin_work(id) else { return };
                if let Err(error) = core.seal_data_file(file, length).await {
                    tracing::warn!(%file, "a file of an adopted segment was not sealed: {error}");
                }
            }
            core.garbage.changed().notify();
            if let Err(error) = core.remove_strays_of(&segment).await {
                tracing::warn!(segment = %id, "files that no log names stay for now: {error}");
            }
        };
        self.handle.spawn(Class::Background, "settle in", settle_in).detach();
    }

    async fn seal_data_file(&self, file: FileId, length: u64) -> Result<()> {
        match self.store.info(file) {
            Some(info) if info.kind == FileKind::Data && info.sealed.is_none() => self.store.seal(file, length).await,
            _ => Ok(()),
        }
    }
}

/// A segment that is about to be released. Dropped before it is, it stays.
struct Leaving {
    core: Rc<Core>,
    segment: Rc<Segment>,
}

impl Leaving {
    /// Lets what is in flight land, puts everything into tables and sealed files, and lets nothing more begin.
    async fn settle(&self) -> Result<SegmentCheckpoint> {
        let (core, segment) = (&self.core, &self.segment);
        let id = segment.id();
        loop {
            // Also notified by writes that are still in flight.
            let dumped = core.dumped.wait();
            core.check_writable()?;
            segment.check_exists()?;
            if segment.is_clean() {
                break;
            }
            if let Some(error) = core.admission.stuck() {
                return Err(error.context(format!("{id} has writes that cannot be dumped, and does not leave")));
            }
            core.want_dump(segment);
            dumped.await;
        }
        segment.dumps.rest().await;
        segment.larges.rest().await;
        core.index.settle(id, &core.log).await?;
        loop {
            let changed = core.garbage.changed().wait();
            if core.garbage.files(id).iter().all(|file| file.is_closed) {
                break;
            }
            changed.await;
        }
        for file in core.garbage.files(id) {
            core.seal_data_file(file.file, file.written_blocks * BLOCK).await?;
        }
        core.check_writable()?;
        segment.check_exists()?;
        Ok(core.checkpoint_of(segment))
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if self.segment.is_leaving() {
            self.segment.stay();
            self.segment.dumps.go_on();
            self.segment.larges.go_on();
            self.core.index.resume(self.segment.id());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::ErrorKind;
    use files::memory::{Memory, MemoryOptions};

    use super::*;
    use crate::{Engine, Options, testing};

    /// Whether the last records of a file came through is never known then, so that it stays as it is.
    #[test]
    fn a_release_ends_when_the_log_takes_no_more_records() {
        testing::run(1, |handle| async move {
            let segment = |index| SegmentId { volume: VolumeId(1), index };
            let tenure = Tenure { epoch: Epoch(1 << 32), generation: Generation(1) };
            let options = Options { ownership: Ownership::Given, ..Options::default() };
            let store = Memory::new(1, MemoryOptions::default()).open(&handle);
            let engine = Engine::open(&handle, &store, options).await.unwrap();
            engine.create_segment(segment(0), tenure).await.unwrap();
            engine.0.garbage.opened(segment(0), FileId(77), BLOCK);
            let releasing = engine.clone();
            let release = async move { releasing.release(segment(0), tenure.epoch).await };
            let mut release = handle.spawn(Class::Io, "release", release);
            let minute = || handle.sleep(Duration::from_secs(60));
            assert!(first(&mut release, minute()).await.is_err(), "a file of it is being written");
            store.fence(store.incarnation()).await.unwrap();
            let refused = engine.create_segment(segment(1), tenure).await.unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Fenced, "{refused}");
            let released = first(release, minute()).await.expect("there is nothing to wait for");
            assert_eq!(released.unwrap_err().kind, ErrorKind::Fenced);
            assert!(engine.released().is_empty());
        });
    }
}
