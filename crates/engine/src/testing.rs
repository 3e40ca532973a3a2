//! What the tests of index, reader and GC stand on: a transaction log in memory, and a world with one loop.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::{LogSequence, Prng, Result, SegmentId};
use files::LocalBoxFuture;
use runtime::sim::{NodeOptions, World};
use runtime::sync::{Event, oneshot};
use runtime::{Class, Handle};

use crate::index::{Entry, SegmentTables};
use crate::transaction::{FrozenAt, Record, Relocating, TransactionSink};

/// Runs `test` on a loop of a fresh world.
pub fn run<T: 'static, F: Future<Output = T> + 'static>(seed: u64, test: impl FnOnce(Handle) -> F) -> T {
    let world = World::new(seed);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    world.block_on(&handle, test(handle.clone()))
}

/// A log whose records become durable after a random time, in order, and stay when the index above dies.
#[derive(Clone)]
pub struct TestLog(Rc<State>);

struct State {
    handle: Handle,
    prng: RefCell<Prng>,
    next: Cell<u64>,
    durable: Cell<u64>,
    changed: Event,
    records: RefCell<Vec<(LogSequence, Record)>>,
    in_flight: RefCell<BTreeMap<u64, SegmentId>>,
    relocating: RefCell<BTreeMap<SegmentId, Rc<Cell<usize>>>>,
    is_dead: Cell<bool>,
}

impl TestLog {
    pub fn new(handle: &Handle, seed: u64) -> TestLog {
        TestLog(Rc::new(State {
            handle: handle.clone(),
            prng: RefCell::new(Prng::new(seed)),
            next: Cell::new(1),
            durable: Cell::new(0),
            changed: Event::new(),
            records: RefCell::default(),
            in_flight: RefCell::default(),
            relocating: RefCell::default(),
            is_dead: Cell::new(false),
        }))
    }

    /// Ends this life: what is in flight never happens. The next life goes on with the same records.
    pub fn crash(&self) -> TestLog {
        self.0.is_dead.set(true);
        let seed = self.0.prng.borrow_mut().next_u64();
        let next = TestLog::new(&self.0.handle, seed);
        let last = self.0.durable.get();
        next.0.next.set(last + 1);
        next.0.durable.set(last);
        next.0.records.replace(self.0.records.borrow().clone());
        next
    }

    pub fn records(&self) -> Vec<(LogSequence, Record)> {
        self.0.records.borrow().clone()
    }

    /// Where the tables of `segment` stand after all records.
    pub fn tables(&self, segment: SegmentId) -> SegmentTables {
        let mut tables = SegmentTables::default();
        for (_, record) in self.0.records.borrow().iter() {
            if let Record::TableSet { segment: of, added, removed, covers } = record
                && *of == segment
            {
                tables.apply(added, removed, *covers);
            }
        }
        tables
    }

    /// The entries that a replay applies over the tables of `segment`, in log order.
    pub fn tail(&self, segment: SegmentId) -> Vec<Vec<Entry>> {
        let covers = self.tables(segment).covers;
        let records = self.0.records.borrow();
        let tail = records.iter().filter(|(sequence, _)| *sequence >= covers);
        tail.filter_map(|(_, record)| match record {
            Record::Dump { segment: of, entries, .. } | Record::Relocate { segment: of, entries, .. }
                if *of == segment =>
            {
                Some(entries.clone())
            }
            _ => None,
        })
        .collect()
    }

    pub fn in_flight(&self) -> usize {
        self.0.in_flight.borrow().len()
    }
}

impl TransactionSink for TestLog {
    fn log(&self, record: Record, apply: Box<dyn FnOnce(LogSequence)>) -> LocalBoxFuture<'static, Result<LogSequence>> {
        let sequence = self.0.next.get();
        self.0.next.set(sequence + 1);
        if let Some(segment) = record.segment() {
            self.0.in_flight.borrow_mut().insert(sequence, segment);
        }
        let delay = Duration::from_nanos(self.0.prng.borrow_mut().below(300_000));
        let (state, (done, wait)) = (self.0.clone(), oneshot());
        let durable = async move {
            state.handle.sleep(delay).await;
            while state.durable.get() + 1 != sequence {
                state.changed.wait().await;
            }
            if state.is_dead.get() {
                return;
            }
            state.records.borrow_mut().push((LogSequence(sequence), record));
            state.in_flight.borrow_mut().remove(&sequence);
            apply(LogSequence(sequence));
            state.durable.set(sequence);
            state.changed.notify();
            done.send(());
        };
        self.0.handle.spawn(Class::Io, "log", durable).detach();
        Box::pin(async move {
            match wait.await {
                Some(()) => Ok(LogSequence(sequence)),
                None => Err(base::Error::internal("the log is dead")),
            }
        })
    }

    fn frozen_at(&self, segment: SegmentId) -> FrozenAt {
        let in_flight = self.0.in_flight.borrow();
        let lowest = in_flight.iter().find(|(_, of)| **of == segment).map(|(&sequence, _)| sequence);
        let relocating = self.0.relocating.borrow().get(&segment).map_or(0, |count| count.get());
        FrozenAt {
            covers: LogSequence(lowest.unwrap_or(self.0.next.get())),
            quiet: lowest.is_none() && relocating == 0,
        }
    }

    fn relocating(&self, segment: SegmentId) -> Relocating {
        Relocating::new(self.0.relocating.borrow_mut().entry(segment).or_default().clone())
    }
}
