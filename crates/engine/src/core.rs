//! What the parts of an engine share, and how they find each other.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Epoch, Error, LogSequence, Result, SegmentId, SegmentSequence, VolumeId};
use files::Store;
use runtime::sync::{Budget, Event};
use runtime::{Class, Handle, Task};

use crate::admission::Admission;
use crate::arrivals::Arrivals;
use crate::cache::CacheMemory;
use crate::data::DataFiles;
use crate::data_writer::DataFileFactory;
use crate::dropped::Dropped;
use crate::fullness::Fullness;
use crate::fusion::FusionWriteEngine;
use crate::garbage::Garbage;
use crate::gc::Gc;
use crate::index::{Entry, Index};
use crate::journal::JournalPressure;
use crate::options::{Options, Ownership};
use crate::reader::Reader;
use crate::scrub::Scrub;
use crate::segment::{Outside, Segment, SegmentStart, Segments};
use crate::statistics::Counters;
use crate::transaction::{SegmentCheckpoint, Tenure, TransactionLog, TransactionSink};
use crate::verified::VerifiedFiles;

/// Dumps at the same time: each holds up to a chunk of blocks beside its cache.
pub(crate) const DUMPS_IN_FLIGHT: u64 = 8;

/// The parts of one engine. Tasks hold it in an `Rc`; it ends with the last of them.
pub(crate) struct Core {
    pub(crate) handle: Handle,
    pub(crate) store: Store,
    pub(crate) options: Options,
    pub(crate) memory: CacheMemory,
    pub(crate) fusion: FusionWriteEngine,
    pub(crate) log: TransactionLog,
    pub(crate) files: VerifiedFiles,
    pub(crate) index: Index,
    pub(crate) garbage: Garbage,
    pub(crate) data: DataFiles,
    pub(crate) reader: Reader,
    pub(crate) gc: Gc,
    pub(crate) scrub: Scrub,
    pub(crate) admission: Rc<Admission>,
    pub(crate) fullness: Rc<Fullness>,
    pub(crate) factory: DataFileFactory,
    pub(crate) segments: RefCell<Segments>,
    /// Volumes that were dropped, and whose records may still stand in a journal.
    pub(crate) dropped: RefCell<Dropped>,
    /// Segments that were released, as they were left, until somebody is known to have them.
    pub(crate) released: RefCell<BTreeMap<SegmentId, SegmentCheckpoint>>,
    /// Segments that were dropped, and under which epoch, until nothing is left of them.
    pub(crate) rests: RefCell<BTreeMap<SegmentId, Epoch>>,
    /// Segments that are given to it.
    pub(crate) arrivals: Arrivals,
    pub(crate) dump_slots: Budget,
    /// A segment may have become dirty.
    pub(crate) dirtied: Event,
    /// A dump ended.
    pub(crate) dumped: Event,
    /// Why a dump was given up.
    pub(crate) undumped: RefCell<Option<Error>>,
    /// The transaction log should be checkpointed.
    pub(crate) checkpoint_wanted: Event,
    /// Large writes that do not count although their record is in the log: checkpoints name them as long as that is
    /// so.
    pub(crate) rejected: RefCell<Vec<LogSequence>>,
    pub(crate) stage: Cell<Stage>,
    /// A trim of the journal runs, and whether another one should follow.
    pub(crate) trimming: Cell<Trimming>,
    /// Segments whose dump would free a journal file, but that have nothing to dump yet.
    pub(crate) journal_wants: RefCell<BTreeSet<SegmentId>>,
    pub(crate) counters: Counters,
    /// Flushes and merges of the index; they end with the engine.
    pub(crate) maintenance: RefCell<Vec<Task<()>>>,
}

/// Whether the engine takes requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Running,
    Closing,
    Closed,
}

/// Whether the journal is being trimmed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trimming {
    No,
    Once,
    Again,
}

impl Core {
    /// The segment, made on its first use.
    ///
    /// # Errors
    /// `NotFound` if its volume was dropped, `Internal` once the engine is closed.
    pub(crate) fn segment(&self, id: SegmentId) -> Result<Rc<Segment>> {
        self.check_running()?;
        if let Some(segment) = self.segments.borrow().get(&id) {
            return Ok(segment.clone());
        }
        if id.volume == VolumeId(0) || self.dropped.borrow().contains(id.volume) {
            return Err(Error::not_found(format!("volume {} was deleted", id.volume)));
        }
        match self.options.ownership {
            Ownership::Given => Err(Error::moved(format!("{id} is not here"))),
            // A replay of it starts here: no record before this one is about it.
            Ownership::Whole => {
                let covers = self.log.frozen_at(id).covers;
                Ok(self.add_segment(SegmentCheckpoint::empty(id, Tenure::default(), covers)))
            }
        }
    }

    /// Has a segment from now on.
    pub(crate) fn add_segment(&self, found: SegmentCheckpoint) -> Rc<Segment> {
        let SegmentCheckpoint { segment: id, tenure, next, dumped_through, last_large, tables, data_files: _ } = found;
        self.index.restore(id, tenure.epoch, &tables);
        let start = SegmentStart { next, dumped_through, last_large, tenure };
        let segment = Rc::new(Segment::new(id, &self.memory, self.admission.segment_space(), start));
        self.segments.borrow_mut().insert(id, segment.clone());
        segment
    }

    /// # Errors
    /// `Internal` once the engine is closed. To be asked again after each await before something is submitted.
    pub(crate) fn check_running(&self) -> Result<()> {
        match self.stage.get() {
            Stage::Running => Ok(()),
            Stage::Closing | Stage::Closed => Err(Error::internal("the engine is closed")),
        }
    }

    /// Refuses changes that could never be dumped: without a log nothing says where the blocks are.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_running()?;
        self.log.broken().map_or(Ok(()), Err)
    }

    /// Whether dumps and checkpoints can still come through.
    pub(crate) fn can_log(&self) -> bool {
        self.stage.get() != Stage::Closed && self.log.broken().is_none()
    }

    /// Every segment, by id.
    pub(crate) fn all_segments(&self) -> Vec<Rc<Segment>> {
        self.segments.borrow().values().cloned().collect()
    }

    /// The last write of a segment that is in the index; a segment that is not there needs nothing from a journal.
    pub(crate) fn dumped_through(&self, id: SegmentId) -> SegmentSequence {
        self.segments.borrow().get(&id).map_or(SegmentSequence(u64::MAX), |segment| segment.dumped_through())
    }

    /// The class of a dump that starts now: foreground work when writers wait, or soon will (NSDI 2026, §4.3).
    pub(crate) fn dump_class(&self) -> Class {
        match self.admission.is_pressed() || self.fusion.pressure() == JournalPressure::Full {
            true => Class::Io,
            false => Class::Background,
        }
    }
}

impl Drop for Core {
    /// What is in flight knows parts of the core, which know it. A process that ends does not mind; a simulated world,
    /// in which thousands of them are cut off, would fill up.
    fn drop(&mut self) {
        self.log.forget_in_flight();
        self.fusion.forget_in_flight();
    }
}

impl Outside for Core {
    fn apply_large(&self, segment: SegmentId, log: LogSequence, entries: &[Entry]) {
        self.index.apply(segment, entries);
        self.log.on_large_done(log);
    }
}
