//! The state of one segment in memory: whose turn it is, what is cached, how far it is dumped.
//!
//! **Intuition.** Every write or discard takes the next *segment sequence* when it is submitted, to the journal or
//! (large ones) to data file and transaction log at once. The two paths finish in any order; their effects do not:
//! they are applied strictly in sequence order, by whoever makes the first one in line ready. So "everything up to
//! sequence s" is one well-defined state of the segment, which a dump can stand for.
//!
//! **Names.** The *line* holds the sequences that were given out and are not applied. *Applied through* is the last
//! sequence before the line. *Dumped through*: every write up to this one is in the index. *Last large*: the last
//! sequence that a large write took; only below it can the index know something newer than a journaled write.
//!
//! **Invariants.** Effects are applied after durability and before the reply, without an await between; what is
//! dumping stays visible until the index has it; `dumped_through <= applied_through < next`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use base::limits::SEGMENT_SIZE;
use base::seeded::is_on;
use base::{BLOCK, Epoch, Error, Generation, Instant, LogSequence, Result, SECTOR, SegmentId, SegmentSequence};
use runtime::sync::Sender;

use crate::admission::{SegmentSpace, owed_bytes};
use crate::cache::{CacheExtent, CacheHit, CacheMemory, SegmentCache};
use crate::data_writer::{DataWriter, Placed, Purpose};
use crate::index::Entry;
use crate::transaction::Tenure;
use crate::way::Way;

/// One segment. Its owner keeps it in an `Rc`; all methods are synchronous.
pub struct Segment {
    id: SegmentId,
    tenure: Cell<Tenure>,
    memory: CacheMemory,
    /// What it owes, and was promised.
    pub(crate) space: SegmentSpace,
    /// Where its dumps go.
    pub(crate) dumps: DataWriter,
    /// Where its large writes go.
    pub(crate) larges: DataWriter,
    presence: Cell<Presence>,
    state: RefCell<State>,
}

/// Whether a segment is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Presence {
    Here,
    /// It is about to be released: it is read, and takes no writes.
    Leaving,
    /// It was released.
    Gone,
    /// Its volume was dropped.
    Dropped,
}

struct State {
    next: SegmentSequence,
    line: VecDeque<Place>,
    dumped_through: SegmentSequence,
    last_large: SegmentSequence,
    active: SegmentCache,
    /// When the oldest write of the active cache was applied.
    dirty_since: Option<Instant>,
    dumping: Option<SegmentCache>,
    dump: DumpStage,
}

/// Where a segment's dump stands. There is at most one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DumpStage {
    /// None is wanted.
    Idle,
    /// One was asked for, and waits for its slot.
    Wanted,
    /// The cache was switched; blocks are on their way to the data file.
    Running,
}

/// A place in the line.
enum Place {
    Waiting,
    Ready(Settled),
}

/// What became of a write: its effect, and what its waiter hears.
pub(crate) struct Settled {
    pub(crate) effect: Effect,
    pub(crate) result: Result<Way>,
    pub(crate) reply: Sender<Result<Way>>,
}

/// What a durable write does to memory.
pub(crate) enum Effect {
    /// It failed: nothing.
    Nothing,
    /// It goes into the active cache.
    /// `owed`: what it may become in a data file.
    Cache { sectors: Range<u64>, extent: CacheExtent, owed: u64 },
    /// It goes into the index, and what it covers leaves the caches.
    /// `placed` keeps its data file open for the log until then.
    Large { log: LogSequence, entries: Vec<Entry>, placed: Option<Placed> },
}

/// What a segment's effects reach outside of it.
pub(crate) trait Outside {
    /// The index learns the entries of a large write whose record has the log sequence `log`.
    fn apply_large(&self, segment: SegmentId, log: LogSequence, entries: &[Entry]);
}

/// What a recovery found of a segment.
#[derive(Clone, Debug)]
pub struct SegmentStart {
    /// The next write gets this sequence.
    pub next: SegmentSequence,
    /// Every write up to this one is in the index.
    pub dumped_through: SegmentSequence,
    /// The last sequence of a large write.
    pub last_large: SegmentSequence,
    /// By what right the engine has it.
    pub tenure: Tenure,
}

impl Default for SegmentStart {
    fn default() -> Self {
        let none = SegmentSequence(0);
        SegmentStart { next: SegmentSequence(1), dumped_through: none, last_large: none, tenure: Tenure::default() }
    }
}

impl Segment {
    /// A segment as recovery found it, with nothing cached.
    pub fn new(id: SegmentId, memory: &CacheMemory, space: SegmentSpace, start: SegmentStart) -> Self {
        assert!(start.dumped_through < start.next && start.last_large < start.next, "{id}: {start:?}");
        let state = State {
            next: start.next,
            line: VecDeque::new(),
            dumped_through: start.dumped_through,
            last_large: start.last_large,
            active: SegmentCache::new(memory),
            dirty_since: None,
            dumping: None,
            dump: DumpStage::Idle,
        };
        Segment {
            id,
            tenure: Cell::new(start.tenure),
            memory: memory.clone(),
            space,
            dumps: DataWriter::new(Purpose::Dump, start.tenure.epoch),
            larges: DataWriter::new(Purpose::Large, start.tenure.epoch),
            presence: Cell::new(Presence::Here),
            state: RefCell::new(state),
        }
    }

    /// Its id.
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// By what right the engine has it.
    pub fn tenure(&self) -> Tenure {
        self.tenure.get()
    }

    /// Its ownership.
    pub fn epoch(&self) -> Epoch {
        self.tenure.get().epoch
    }

    /// Its volume was attached anew, and the log has that.
    pub(crate) fn on_attached(&self, generation: Generation) {
        let tenure = self.tenure.get();
        self.tenure.set(Tenure { generation: tenure.generation.max(generation), ..tenure });
    }

    /// Whether its volume was dropped: effects are nothing any more.
    pub fn is_dropped(&self) -> bool {
        self.presence.get() == Presence::Dropped
    }

    /// Nothing of a dropped volume may enter a journal: what is dropped is remembered only as long as the journals of
    /// that time are there. To be asked after the last await before something is submitted.
    ///
    /// # Errors
    /// `NotFound`.
    pub(crate) fn check_exists(&self) -> Result<()> {
        match self.presence.get() {
            Presence::Here | Presence::Leaving => Ok(()),
            Presence::Gone => Err(self.moved()),
            Presence::Dropped => Err(self.no_volume()),
        }
    }

    /// [`Segment::check_exists`] for what changes it.
    ///
    /// # Errors
    /// `NotFound`, `Moved`.
    pub(crate) fn check_changeable(&self) -> Result<()> {
        match self.presence.get() {
            Presence::Leaving => Err(self.moved()),
            _ => self.check_exists(),
        }
    }

    /// From here on nothing changes it. False: it is not here, or leaves already.
    pub(crate) fn begin_leaving(&self) -> bool {
        let is_here = self.presence.get() == Presence::Here;
        if is_here {
            self.presence.set(Presence::Leaving);
        }
        is_here
    }

    /// Whether it is about to be released.
    pub(crate) fn is_leaving(&self) -> bool {
        self.presence.get() == Presence::Leaving
    }

    /// It is not released after all.
    pub(crate) fn stay(&self) {
        if self.is_leaving() {
            self.presence.set(Presence::Here);
        }
    }

    /// It was released: what a read found since then may not be all there is.
    pub(crate) fn leave(&self) {
        if !self.is_dropped() {
            self.presence.set(Presence::Gone);
        }
    }

    fn moved(&self) -> Error {
        Error::moved(format!("{} moves to another server", self.id))
    }

    fn no_volume(&self) -> Error {
        Error::not_found(format!("volume {} was deleted", self.id.volume))
    }

    /// The next sequence, and a place at the end of the line.
    pub(crate) fn take_place(&self) -> SegmentSequence {
        let mut state = self.state.borrow_mut();
        let sequence = state.next;
        state.next.0 += 1;
        state.line.push_back(Place::Waiting);
        sequence
    }

    /// The same for a large write.
    pub(crate) fn take_large_place(&self) -> SegmentSequence {
        let sequence = self.take_place();
        self.state.borrow_mut().last_large = sequence;
        sequence
    }

    /// What became of the write `sequence` is known: applies it, and what it held back, as far as the line is ready.
    pub(crate) fn settle(&self, sequence: SegmentSequence, settled: Settled, now: Instant, outside: &dyn Outside) {
        {
            let mut state = self.state.borrow_mut();
            let first = state.next.0 - state.line.len() as u64;
            let place = &mut state.line[(sequence.0 - first) as usize];
            assert!(matches!(place, Place::Waiting), "a write is settled once");
            *place = Place::Ready(settled);
        }
        loop {
            let Settled { effect, mut result, reply } = {
                let mut state = self.state.borrow_mut();
                match state.line.pop_front() {
                    Some(Place::Ready(settled)) => settled,
                    Some(waiting) => return state.line.push_front(waiting),
                    None => return,
                }
            };
            match self.is_dropped() {
                true => result = Err(self.no_volume()),
                false => self.apply(effect, now, outside),
            }
            tracing::trace!(target: "levee::stage", segment = %self.id, "applied");
            reply.send(result.map(|way| Way { applied: now, ..way }));
        }
    }

    fn apply(&self, effect: Effect, now: Instant, outside: &dyn Outside) {
        let mut state = self.state.borrow_mut();
        match effect {
            Effect::Nothing => {}
            Effect::Cache { sectors, extent, owed } => {
                state.active.insert(sectors, extent);
                state.dirty_since.get_or_insert(now);
                self.space.on_applied(owed, state.active.dump_bytes_max());
            }
            Effect::Large { log, entries, placed } => {
                // Dropped at the end of this, with the effect applied.
                let _placed = placed;
                outside.apply_large(self.id, log, &entries);
                let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return };
                let per_block = BLOCK / SECTOR;
                let sectors = u64::from(first.block) * per_block..u64::from(last.end()) * per_block;
                if is_on("large-write-hidden") {
                    return;
                }
                state.active.punch(sectors.clone(), first.version.sequence);
                if let Some(dumping) = &mut state.dumping {
                    dumping.punch(sectors, first.version.sequence);
                }
            }
        }
        state.settle_if_clean();
    }

    /// Puts a record that recovery found into the active cache. The line is empty, sequences may come in any order.
    pub(crate) fn restore(&self, sectors: Range<u64>, extent: CacheExtent, now: Instant) {
        let owed = owed_bytes(sectors.start * SECTOR, (sectors.end - sectors.start) * SECTOR);
        self.space.owe(owed, 0, || (u64::MAX, 0));
        let mut state = self.state.borrow_mut();
        assert!(state.line.is_empty(), "recovery comes before the first write");
        state.active.insert(sectors, extent);
        self.space.on_applied(owed, state.active.dump_bytes_max());
        state.dirty_since.get_or_insert(now);
    }

    /// A record that recovery found had this sequence: it is never given out again.
    pub(crate) fn skip(&self, sequence: SegmentSequence) {
        let mut state = self.state.borrow_mut();
        state.next = state.next.max(SegmentSequence(sequence.0 + 1));
    }

    /// Recovery has found everything there is: with nothing cached, all of it is in the index.
    pub(crate) fn on_recovered(&self) {
        self.state.borrow_mut().settle_if_clean();
    }

    /// What the caches know of `sectors`, by address; the active cache hides the dumping one.
    pub fn lookup(&self, sectors: Range<u64>) -> Vec<(Range<u64>, CacheHit)> {
        debug_assert!(sectors.end <= SEGMENT_SIZE / SECTOR);
        let state = self.state.borrow();
        let mut hits = state.active.lookup(sectors.clone());
        let Some(dumping) = state.dumping.as_ref().filter(|_| !is_on("dumping-cache-hidden")) else { return hits };
        let mut at = sectors.start;
        let mut gaps = Vec::new();
        for (range, _) in &hits {
            if range.start > at {
                gaps.push(at..range.start);
            }
            at = range.end;
        }
        if at < sectors.end {
            gaps.push(at..sectors.end);
        }
        let from_active = hits.len();
        hits.extend(gaps.into_iter().flat_map(|gap| dumping.lookup(gap)));
        if hits.len() > from_active {
            hits.sort_by_key(|(range, _)| range.start);
        }
        hits
    }

    /// Bytes of the active cache.
    pub fn active_bytes(&self) -> u64 {
        self.state.borrow().active.bytes()
    }

    /// When the oldest write in the active cache was applied, if there is one.
    pub fn dirty_since(&self) -> Option<Instant> {
        self.state.borrow().dirty_since
    }

    /// Whether nothing is cached, dumping or in line.
    pub fn is_clean(&self) -> bool {
        let state = self.state.borrow();
        state.active.is_empty() && state.dumping.is_none() && state.line.is_empty()
    }

    /// Where its dump stands.
    pub fn dump_stage(&self) -> DumpStage {
        self.state.borrow().dump
    }

    /// Asks for a dump; false if one was asked for, or runs, already.
    pub(crate) fn want_dump(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let idle = state.dump == DumpStage::Idle && !state.active.is_empty();
        if idle {
            state.dump = DumpStage::Wanted;
        }
        idle
    }

    /// Makes the active cache the dumping one, and gives the last write that is part of it. `None`: nothing is
    /// cached any more, and no dump is wanted.
    pub(crate) fn begin_dump(&self) -> Option<SegmentSequence> {
        let mut state = self.state.borrow_mut();
        assert!(state.dump == DumpStage::Wanted && state.dumping.is_none(), "one dump at a time");
        if state.active.is_empty() {
            state.dump = DumpStage::Idle;
            return None;
        }
        state.dump = DumpStage::Running;
        self.space.on_dump_begun();
        state.dirty_since = None;
        let full = std::mem::replace(&mut state.active, SegmentCache::new(&self.memory));
        state.dumping = Some(full);
        if is_on("dump-counted-early") {
            state.dumped_through = state.applied_through();
        }
        Some(state.applied_through())
    }

    /// Looks at the dumping cache.
    pub(crate) fn with_dumping<T>(&self, look: impl FnOnce(&SegmentCache) -> T) -> Option<T> {
        self.state.borrow().dumping.as_ref().map(look)
    }

    /// The index holds every write up to `through` now: the dumping cache goes.
    pub(crate) fn apply_dumped(&self, through: SegmentSequence) {
        let mut state = self.state.borrow_mut();
        state.dumping = None;
        state.dump = DumpStage::Idle;
        state.dumped_through = state.dumped_through.max(through);
        state.settle_if_clean();
        self.space.on_dumped(self.dumps.room());
    }

    /// The dump was given up: what was dumping is active again, below what is newer.
    pub(crate) fn give_up_dump(&self, now: Instant) {
        let mut state = self.state.borrow_mut();
        state.dump = DumpStage::Idle;
        self.space.on_dump_given_up();
        if let Some(dumping) = state.dumping.take() {
            state.active.absorb(dumping);
            state.dirty_since.get_or_insert(now);
        }
        state.settle_if_clean();
    }

    /// Every write up to this one is in the index.
    pub fn dumped_through(&self) -> SegmentSequence {
        match self.is_dropped() {
            true => SegmentSequence(u64::MAX),
            false => self.state.borrow().dumped_through,
        }
    }

    /// The last sequence of a large write.
    pub fn last_large(&self) -> SegmentSequence {
        self.state.borrow().last_large
    }

    /// The sequence that the next write gets.
    pub fn next(&self) -> SegmentSequence {
        self.state.borrow().next
    }

    /// The volume was deleted: everything cached goes, and what is in line will do nothing.
    pub(crate) fn drop_all(&self) {
        self.presence.set(Presence::Dropped);
        let mut state = self.state.borrow_mut();
        state.active = SegmentCache::new(&self.memory);
        state.dumping = None;
        state.dirty_since = None;
    }

    /// Moves live bytes out of buffers of which most is dead.
    pub(crate) fn copy_out(&self, sparse: &crate::cache::SparseBacking) {
        self.state.borrow_mut().active.copy_out(sparse);
    }
}

impl State {
    fn applied_through(&self) -> SegmentSequence {
        SegmentSequence(self.next.0 - 1 - self.line.len() as u64)
    }

    /// With nothing cached, everything that was applied is in the index.
    fn settle_if_clean(&mut self) {
        if self.active.is_empty() {
            self.dirty_since = None;
            if self.dumping.is_none() {
                self.dumped_through = self.dumped_through.max(self.applied_through());
            }
        }
    }
}

/// Segments of an engine by id.
pub type Segments = BTreeMap<SegmentId, Rc<Segment>>;

#[cfg(test)]
mod tests {
    use base::{FileId, VolumeId};
    use runtime::sync::{Receiver, oneshot};

    use super::*;
    use crate::admission::Promises;

    const ID: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };

    /// Records the order in which large writes reach the index.
    #[derive(Default)]
    struct Index(RefCell<Vec<u64>>);

    impl Outside for Index {
        fn apply_large(&self, _segment: SegmentId, log: LogSequence, _entries: &[Entry]) {
            self.0.borrow_mut().push(log.0);
        }
    }

    fn segment() -> Segment {
        Segment::new(ID, &CacheMemory::new(), Promises::default().segment(), SegmentStart::default())
    }

    fn settle(segment: &Segment, index: &Index, sequence: SegmentSequence, effect: Effect) -> Receiver<Result<Way>> {
        let (reply, receiver) = oneshot();
        segment.settle(sequence, Settled { effect, result: Ok(Way::default()), reply }, Instant(7), index);
        receiver
    }

    fn zeros(sequence: SegmentSequence) -> Effect {
        Effect::Cache { sectors: 0..16, extent: CacheExtent::zeros(sequence), owed: 0 }
    }

    fn large(sequence: SegmentSequence) -> Effect {
        let entries = (0..2).map(|block| Entry::data(block, sequence, FileId(1), 0, 0)).collect();
        Effect::Large { log: LogSequence(sequence.0), entries, placed: None }
    }

    #[test]
    fn effects_wait_for_what_came_before() {
        let (segment, index) = (segment(), Index::default());
        let first = segment.take_large_place();
        let second = segment.take_place();
        let third = segment.take_large_place();
        settle(&segment, &index, third, large(third));
        settle(&segment, &index, second, zeros(second));
        assert!(segment.lookup(0..16).is_empty() && index.0.borrow().is_empty() && !segment.is_clean());
        settle(&segment, &index, first, large(first));
        // The second one was applied in between, and is covered by the third.
        assert_eq!(*index.0.borrow(), [first.0, third.0]);
        assert!(segment.lookup(0..16).is_empty() && segment.is_clean());
        assert_eq!((segment.dumped_through(), segment.last_large()), (third, third));
    }

    #[test]
    fn a_dump_stands_for_everything_before_it() {
        let (segment, index) = (segment(), Index::default());
        let first = segment.take_place();
        settle(&segment, &index, first, zeros(first));
        assert!(segment.want_dump() && !segment.want_dump());
        let waiting = segment.take_place();
        let later = segment.take_place();
        settle(&segment, &index, later, zeros(later));
        assert_eq!(segment.begin_dump(), Some(first));
        assert_eq!(segment.lookup(4..8), [(4..8, CacheHit::Zeros)], "what is dumping is visible");
        settle(&segment, &index, waiting, zeros(waiting));
        segment.apply_dumped(first);
        assert_eq!(segment.dumped_through(), first);
        assert!(!segment.is_clean() && segment.dump_stage() == DumpStage::Idle);
        assert!(segment.want_dump());
        assert_eq!(segment.begin_dump(), Some(later));
        segment.give_up_dump(Instant(9));
        assert_eq!((segment.dumped_through(), segment.dirty_since()), (first, Some(Instant(9))));
    }

    #[test]
    fn a_dropped_segment_forgets() {
        let (segment, index) = (segment(), Index::default());
        let first = segment.take_place();
        let second = segment.take_place();
        settle(&segment, &index, first, zeros(first));
        segment.drop_all();
        assert!(segment.lookup(0..16).is_empty());
        settle(&segment, &index, second, large(second));
        assert!(index.0.borrow().is_empty() && segment.is_clean());
        assert_eq!(segment.dumped_through(), SegmentSequence(u64::MAX));
    }
}
