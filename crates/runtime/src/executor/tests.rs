//! The executor against a small deterministic driver: time is a cell, outcomes are what the test says.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use crate::driver::{Payload, ResourceId, Unpark};

/// A world of which the test decides everything.
#[derive(Default)]
struct World {
    now: Cell<Instant>,
    submitted: RefCell<Vec<(OpId, Op)>>,
    cancelled: RefCell<Vec<OpId>>,
    /// What the next reap finds, and how long receiving it takes.
    arriving: RefCell<VecDeque<(OpId, Outcome)>>,
    receive_takes: Cell<Duration>,
    /// What happened, in order: flushes, and waits of more than no time.
    log: RefCell<Vec<String>>,
    unparks: Arc<Unparks>,
}

#[derive(Default)]
struct Unparks(AtomicU64);

impl Unpark for Unparks {
    fn unpark(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Driver for World {
    fn now(&self) -> Instant {
        self.now.get()
    }

    fn wall_ms(&self) -> u64 {
        0
    }

    fn random_u64(&self) -> u64 {
        4
    }

    fn submit(&self, id: OpId, op: Op) {
        self.submitted.borrow_mut().push((id, op));
    }

    fn cancel(&self, id: OpId) {
        self.cancelled.borrow_mut().push(id);
    }

    fn flush(&self) {
        self.log.borrow_mut().push("flush".into());
    }

    fn reap(&self, wait: Wait, outcomes: &mut Vec<(OpId, Outcome)>) {
        if let Wait::Until(deadline) = wait {
            self.now.set(deadline.max(self.now.get()));
        }
        if wait != Wait::No {
            self.log.borrow_mut().push(format!("{wait:?}"));
        }
        if !self.arriving.borrow().is_empty() {
            self.charge(self.receive_takes.get());
            outcomes.extend(self.arriving.borrow_mut().drain(..));
        }
    }

    fn unparker(&self) -> Arc<dyn Unpark> {
        self.unparks.clone()
    }

    fn charge(&self, span: Duration) {
        self.now.set(self.now.get() + span);
    }

    fn offload(&self, job: Box<dyn FnOnce() + Send>, _cost: Duration) {
        job();
    }
}

impl World {
    fn arrives(&self, id: OpId, value: u64) {
        self.arriving.borrow_mut().push_back((id, Outcome { value: Ok(value), payload: Payload::None }));
    }

    fn unparks(&self) -> u64 {
        self.unparks.0.load(Ordering::SeqCst)
    }

    fn closed(&self) -> Vec<u64> {
        let closed = |(_, op): &(OpId, Op)| match op {
            Op::Close { id } => Some(id.0),
            _ => None,
        };
        self.submitted.borrow().iter().filter_map(closed).collect()
    }
}

fn start(settings: LoopSettings) -> (Rc<World>, Handle) {
    let world = Rc::new(World::default());
    (world.clone(), Executor::start(world, settings))
}

fn start_default() -> (Rc<World>, Handle) {
    start(LoopSettings::default())
}

fn sync_op() -> Op {
    Op::Sync { id: ResourceId(1) }
}

const IO: Class = Class::Io;
const BACKGROUND: Class = Class::Background;

type Trace = Rc<RefCell<Vec<&'static str>>>;

/// A task of figure 9: it takes some microseconds and leaves its name.
fn figure_task(handle: &Handle, trace: &Trace, class: Class, name: &'static str, us: u64) {
    let (trace, this) = (trace.clone(), handle.clone());
    let future = async move {
        this.charge(Duration::from_micros(us));
        trace.borrow_mut().push(name);
    };
    handle.spawn(class, name, future).detach();
}

/// Sets figure 9 up, and gives the loops that ran: their tasks, and how long each took in microseconds.
fn figure_9(settings: LoopSettings) -> Vec<(String, u64)> {
    let (world, handle) = start(settings);
    let trace = Trace::default();
    // D5 is a request that has arrived already: receiving it takes 5 us, and it makes E3, F3, d3 and e3.
    let receive = handle.operate(Op::Receive { id: ResourceId(1), buffer: base::AlignedBuf::zeroed(0), from: 0 });
    world.arrives(world.submitted.borrow()[0].0, 0);
    world.receive_takes.set(Duration::from_micros(5));
    let receiver = {
        let (handle, trace) = (handle.clone(), trace.clone());
        async move {
            receive.await;
            for (class, name) in [(IO, "E3"), (IO, "F3"), (BACKGROUND, "d3"), (BACKGROUND, "e3")] {
                figure_task(&handle, &trace, class, name, 3);
            }
        }
    };
    handle.spawn(IO, "receiver", receiver).detach();
    for name in ["A3", "B3", "C3"] {
        figure_task(&handle, &trace, IO, name, 3);
    }
    for (name, us) in [("a3", 3), ("b2", 2), ("c2", 2)] {
        figure_task(&handle, &trace, BACKGROUND, name, us);
    }
    let mut loops = Vec::new();
    loop {
        let start = world.now();
        if handle.0.turn(false).polls == 0 {
            break;
        }
        let ran = std::mem::take(&mut *trace.borrow_mut());
        loops.push((ran.join(" "), world.now().nanos_since(start) / 1000));
    }
    handle.0.kill();
    loops
}

#[test]
fn figure_9_to_the_microsecond() {
    let loops = figure_9(LoopSettings::default());
    let expected = [("A3 B3 C3 a3", 12), ("E3 F3 b2", 13), ("c2 d3 e3", 8)];
    assert_eq!(loops, expected.map(|(tasks, us)| (tasks.to_owned(), us)));
}

#[test]
fn the_fifo_baseline_receives_only_when_it_has_run_dry() {
    let loops = figure_9(LoopSettings { discipline: Discipline::Fifo, ..LoopSettings::default() });
    // The request waits behind every task that is there; then its background work runs in the order of arrival.
    let expected = [("A3 B3 C3 a3 b2 c2", 16), ("E3 F3 d3 e3", 17)];
    assert_eq!(loops, expected.map(|(tasks, us)| (tasks.to_owned(), us)));
}
