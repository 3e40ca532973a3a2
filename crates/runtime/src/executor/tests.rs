//! The executor against a small deterministic driver: time is a cell, outcomes are what the test says.

mod background;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use crate::driver::{LoopMain, Payload, ResourceId, Started, Unpark};

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

    fn reap(&self, wait: Wait, _poll: Duration, outcomes: &mut Vec<(OpId, Outcome)>) {
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

    fn start_loop(&self, _name: &str, _settings: LoopSettings, _main: LoopMain, _started: Started) {}
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
    let receive = handle.operate(Op::Receive { id: ResourceId(1), buffer: base::AlignedBuf::zeroed(0), range: 0..0 });
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

fn note(log: &Rc<World>, what: &str) {
    log.log.borrow_mut().push(what.into());
}

fn spawn_note(world: &Rc<World>, handle: &Handle, class: Class, what: &'static str) {
    let world = world.clone();
    handle.spawn(class, what, async move { note(&world, what) }).detach();
}

#[test]
fn a_turn_runs_io_then_hooks_then_submits_then_runs_background() {
    let (world, handle) = start_default();
    spawn_note(&world, &handle, BACKGROUND, "background");
    let (inner, log) = (handle.clone(), world.clone());
    let io = async move {
        note(&log, "io");
        let hooks = (log.clone(), inner.clone());
        inner.at_turn_end(move || {
            note(&hooks.0, "hook");
            let log = hooks.0.clone();
            hooks.1.at_turn_end(move || note(&log, "hook of a hook"));
        });
        inner.spawn(IO, "successor", async move { note(&log, "successor") }).detach();
    };
    handle.spawn(IO, "io", io).detach();
    let end = handle.0.turn(false);
    assert_eq!((end.polls, end.wait), (3, Wait::Forever));
    let expected = ["io", "successor", "hook", "flush", "background", "hook of a hook", "flush"];
    assert_eq!(*world.log.borrow(), expected);
}

/// Five tasks, the first of which completes an operation that somebody waits for with `spawn_ahead`.
fn long_turn(discipline: Discipline) -> Vec<String> {
    let (world, handle) = start(LoopSettings { polls_per_look: 2, discipline, ..LoopSettings::default() });
    let (sync, log) = (handle.operate(sync_op()), world.clone());
    let waiter = async move {
        sync.await.value.expect("arrived");
        note(&log, "arrived");
    };
    handle.spawn_ahead("waiter", waiter).detach();
    handle.0.turn(false);
    world.log.borrow_mut().clear();
    for what in ["a", "b", "c", "d", "e"] {
        spawn_note(&world, &handle, IO, what);
    }
    let (id, inside) = (world.submitted.borrow()[0].0, world.clone());
    handle.spawn_ahead("disk", async move { inside.arrives(id, 0) }).detach();
    handle.0.turn(true);
    world.log.take()
}

#[test]
fn a_long_turn_looks_at_the_world_while_it_runs() {
    assert_eq!(long_turn(Discipline::Priority)[..5], ["a", "b", "arrived", "c", "d"]);
}

#[test]
fn a_long_turn_of_one_queue_submits_while_it_runs() {
    assert_eq!(long_turn(Discipline::Fifo)[..6], ["a", "b", "flush", "c", "d", "flush"]);
}

#[test]
fn a_hook_from_outside_gets_a_turn() {
    let (world, handle) = start_default();
    assert_eq!(handle.0.turn(false).wait, Wait::Forever);
    let log = world.clone();
    handle.at_turn_end(move || note(&log, "hook"));
    assert_eq!(world.unparks(), 1);
    handle.0.turn(false);
    assert!(world.log.borrow().contains(&"hook".to_owned()));
}

#[test]
fn a_loop_that_may_block_submits_with_the_call_that_waits() {
    let (world, handle) = start_default();
    spawn_note(&world, &handle, IO, "io");
    handle.0.turn(true);
    assert_eq!(*world.log.borrow(), ["io"]);
    let sleep = handle.sleep_until(Instant(500));
    let waiter = handle.spawn(IO, "sleeper", sleep);
    handle.0.turn(true);
    assert!(!waiter.is_finished());
    handle.0.turn(true);
    assert!(waiter.is_finished() && world.now() == Instant(500));
    assert_eq!(world.log.borrow()[1], format!("{:?}", Wait::Until(Instant(500))));
    let statistics = handle.statistics();
    assert_eq!((statistics.turns, statistics.sleeps, statistics.timers), (3, 1, 0));
}

/// Two tasks that keep each other ready for ever.
fn spawn_ping_pong(handle: &Handle) -> [crate::Task<()>; 2] {
    let (ping, pong) = (crate::sync::Event::new(), crate::sync::Event::new());
    let player = |mine: crate::sync::Event, other: crate::sync::Event| async move {
        loop {
            let turn = mine.wait();
            other.notify();
            turn.await;
        }
    };
    [handle.spawn(IO, "ping", player(ping.clone(), pong.clone())), handle.spawn(IO, "pong", player(pong, ping))]
}

#[test]
fn tasks_that_wake_each_other_do_not_lock_out_the_network() {
    // A turn that looks at the world itself needs no other bound.
    let settings = LoopSettings { polls_per_look: u64::MAX, ..LoopSettings::default() };
    let (world, handle) = start(settings.clone());
    let _players = spawn_ping_pong(&handle);
    let receive = handle.operate(sync_op());
    world.arrives(world.submitted.borrow()[0].0, 7);
    let receiver = handle.spawn(IO, "receiver", async move { receive.await.value.expect("arrived") });
    for turn in 0..=settings.turns_without_receive_max {
        assert!(!receiver.is_finished(), "turn {turn}");
        let end = handle.0.turn(false);
        assert!(end.polls >= settings.successors_max as u64 && end.wait == Wait::No);
        assert!(end.polls <= settings.successors_max as u64 + 4);
    }
    assert!(receiver.is_finished());
}

#[test]
fn io_work_that_yields_lets_the_loop_receive() {
    let (world, handle) = start_default();
    let (inner, steps) = (handle.clone(), Rc::new(Cell::new(0)));
    let count = steps.clone();
    let long = async move {
        loop {
            count.set(count.get() + 1);
            inner.yield_now().await;
        }
    };
    let _long = handle.spawn(IO, "long", long);
    let receive = handle.operate(sync_op());
    let receiver = handle.spawn(IO, "receiver", async move { receive.await.value.expect("arrived") });
    assert_eq!(handle.0.turn(false).wait, Wait::No, "it wants to go on");
    world.arrives(world.submitted.borrow()[0].0, 7);
    handle.0.turn(false);
    assert!(receiver.is_finished());
    assert_eq!(steps.get(), 2, "one step each turn");
}

#[test]
fn wakes_from_other_threads_unpark_a_sleeping_loop_once() {
    let (world, handle) = start_default();
    let (sender, receiver) = crate::sync::mailbox::<u32>(16);
    let sum = Rc::new(Cell::new(0));
    let total = sum.clone();
    let reader = async move {
        while let Ok(value) = receiver.recv().await {
            total.set(total.get() + value);
        }
    };
    handle.spawn(IO, "reader", reader).detach();
    assert_eq!(handle.0.turn(false).wait, Wait::Forever);
    let before = world.unparks();
    std::thread::scope(|scope| {
        scope.spawn(|| (1..=4).for_each(|i| sender.send_blocking(i).expect("open")));
    });
    assert_eq!(world.unparks(), before + 1);
    handle.0.turn(false);
    assert_eq!(sum.get(), 10);
}

#[test]
fn a_loop_that_is_up_is_not_unparked() {
    let (world, handle) = start_default();
    let (sender, receiver) = crate::sync::foreign::<u32>();
    let waiter = handle.spawn(IO, "waiter", async move { receiver.await.expect("sent") });
    handle.0.turn(false);
    let before = world.unparks();
    // The loop is in the middle of a turn when the other thread sends.
    let sending = async move {
        std::thread::scope(|scope| drop(scope.spawn(move || sender.send(5)).join()));
    };
    handle.spawn(BACKGROUND, "sending", sending).detach();
    assert_eq!(world.unparks(), before + 1, "the spawn itself unparks");
    assert_eq!(handle.0.turn(false).wait, Wait::No, "the turn ends knowing that there is more");
    assert_eq!(world.unparks(), before + 1);
    handle.0.turn(false);
    assert!(waiter.is_finished());
}

#[test]
fn a_dropped_future_leaves_an_orphan_that_is_cleaned_up() {
    let (world, handle) = start_default();
    let id = ResourceId(9);
    drop(handle.operate(Op::Accept { id }));
    drop(handle.operate(sync_op()));
    let (accept, sync) = (world.submitted.borrow()[0].0, world.submitted.borrow()[1].0);
    assert_eq!(*world.cancelled.borrow(), [accept], "only what may wait for ever is cancelled");
    assert_eq!(handle.statistics().operations_in_flight, 2);
    // The cancellation came too late: there is a connection, and nobody to take it.
    world.arrives(accept, 33);
    world.arrives(sync, 0);
    handle.0.turn(false);
    assert_eq!(world.closed(), [33]);
    // An outcome that was delivered but never looked at is cleaned up as well.
    let open = handle.operate(Op::Open { path: "x".into(), options: crate::OpenOptions::default() });
    let open_id = world.submitted.borrow().last().expect("submitted").0;
    world.arrives(open_id, 44);
    handle.0.turn(false);
    drop(open);
    assert_eq!(world.closed(), [33, 44]);
}

#[test]
fn operations_complete_in_any_order_and_ids_do_not_return() {
    let (world, handle) = start_default();
    let mut seen = Vec::new();
    for round in 0..3u64 {
        let operations: Vec<_> = (0..4).map(|_| handle.operate(sync_op())).collect();
        let tasks: Vec<_> = operations.into_iter().map(|op| handle.spawn(IO, "op", op)).collect();
        let ids: Vec<OpId> = world.submitted.borrow_mut().drain(..).map(|(id, _)| id).collect();
        for (i, id) in ids.iter().enumerate().rev() {
            world.arrives(*id, round * 10 + i as u64);
        }
        seen.extend(ids);
        handle.0.turn(false);
        handle.0.turn(false);
        for (i, task) in tasks.into_iter().enumerate() {
            let checked = async move { assert_eq!(task.await.value.expect("arrived"), round * 10 + i as u64) };
            let checked = handle.spawn(IO, "checked", checked);
            handle.0.turn(false);
            assert!(checked.is_finished());
        }
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 12);
}

/// Says in the log that it was dropped, and submits an operation while it is.
struct Last(Rc<World>, Handle, &'static str);

impl Drop for Last {
    fn drop(&mut self) {
        note(&self.0, self.2);
        drop(self.1.operate(Op::Close { id: ResourceId(1) }));
        let log = self.0.clone();
        self.1.spawn(IO, "too late", async move { note(&log, "ran after the kill") }).detach();
        self.1.at_turn_end(|| unreachable!("no turn ends any more"));
        self.1.0.kill();
    }
}

#[test]
fn a_killed_loop_drops_every_task_and_swallows_what_they_do() {
    let (world, handle) = start_default();
    let (_sender, receiver) = crate::sync::oneshot::<()>();
    let last = |what| Last(world.clone(), handle.clone(), what);
    let (waiting, sleeping, operating, queued) = (last("waiting"), last("sleeping"), last("operating"), last("queued"));
    let sleep = handle.sleep(Duration::from_secs(1));
    let operation = handle.operate(sync_op());
    let waiting = async move {
        let _last = waiting;
        receiver.await;
    };
    let sleeping = async move {
        let _last = sleeping;
        sleep.await;
    };
    let operating = async move {
        let _last = operating;
        operation.await;
    };
    handle.spawn(IO, "waiting", waiting).detach();
    handle.spawn(BACKGROUND, "sleeping", sleeping).detach();
    let kept = handle.spawn(IO, "operating", operating);
    handle.0.turn(false);
    handle.spawn(IO, "queued", async move { drop(queued) }).detach();
    let submitted = world.submitted.borrow().len();
    world.log.borrow_mut().clear();

    handle.0.kill();
    let mut dropped = world.log.borrow().clone();
    dropped.sort();
    assert_eq!(dropped, ["operating", "queued", "sleeping", "waiting"]);
    assert_eq!(world.submitted.borrow().len(), submitted);
    assert_eq!(handle.0.turn(false), TurnEnd { polls: 0, wait: Wait::Forever });
    let statistics = handle.statistics();
    assert_eq!((statistics.tasks, statistics.timers, statistics.operations_in_flight), (0, 0, 0));
    drop(kept);
    drop(handle);
    assert_eq!(Rc::strong_count(&world), 1, "nothing keeps the executor");
}

#[test]
fn a_task_may_kill_its_own_loop() {
    let (world, handle) = start_default();
    let last = Last(world.clone(), handle.clone(), "dropped");
    let (inner, log) = (handle.clone(), world.clone());
    let killer = async move {
        let _last = last;
        inner.0.kill();
        note(&log, "still in its poll");
        std::future::pending::<()>().await;
    };
    handle.spawn(IO, "killer", killer).detach();
    spawn_note(&world, &handle, IO, "never");
    spawn_note(&world, &handle, BACKGROUND, "never");
    handle.0.turn(false);
    assert_eq!(*world.log.borrow(), ["still in its poll", "dropped"]);
}

#[test]
fn other_threads_may_wake_while_the_loop_is_killed() {
    for _ in 0..200 {
        let (_world, handle) = start_default();
        let mut senders = Vec::new();
        for _ in 0..8 {
            let (sender, receiver) = crate::sync::foreign::<()>();
            senders.push(sender);
            let guard = Last(Rc::new(World::default()), handle.clone(), "");
            let waiter = async move {
                let _guard = guard;
                let _ = receiver.await;
            };
            handle.spawn(IO, "waiter", waiter).detach();
        }
        handle.0.turn(false);
        std::thread::scope(|scope| {
            scope.spawn(move || senders.into_iter().for_each(|sender| sender.send(()).unwrap_or_default()));
            handle.0.kill();
        });
        assert_eq!(handle.statistics().tasks, 0);
    }
}

#[test]
fn dropped_sleeps_and_tasks_leave_nothing() {
    let (_world, handle) = start_default();
    for _ in 0..100 {
        let task = handle.spawn(IO, "sleeper", handle.sleep(Duration::from_secs(1)));
        handle.0.turn(false);
        drop(task);
        handle.0.turn(false);
    }
    let statistics = handle.statistics();
    assert_eq!((statistics.tasks, statistics.timers), (0, 0));
}

#[test]
fn a_job_keeps_its_slot_and_brings_its_result() {
    let (_world, handle) = start_default();
    let jobs: Vec<_> = (0..200u64).map(|i| handle.offload(Duration::ZERO, move || i + 1)).collect();
    let sum = handle.spawn(IO, "sum", async move {
        let mut sum = 0;
        for job in jobs {
            sum += job.await;
        }
        sum
    });
    for _ in 0..20 {
        handle.0.turn(false);
    }
    assert!(sum.is_finished());
    assert_eq!((handle.0.offloads.available(), handle.0.offloads.total()), (64, 64));
}

#[test]
fn waiting_to_be_received_and_to_be_polled_is_measured() {
    let (world, handle) = start_default();
    let operations: Vec<_> = (0..3).map(|_| handle.operate(sync_op())).collect();
    for (id, _) in world.submitted.borrow().iter() {
        world.arrives(*id, 0);
    }
    handle.0.turn(false);
    for operation in operations {
        let inner = handle.clone();
        let polled = async move {
            operation.await;
            inner.charge(Duration::from_micros(10));
        };
        handle.spawn(IO, "polled", polled).detach();
    }
    handle.0.turn(false);
    let statistics = handle.statistics();
    assert_eq!((statistics.receive_wait.count(), statistics.receive_wait.max()), (3, 0));
    assert_eq!((statistics.queue_wait.count(), statistics.queue_wait.max()), (3, 20_000));
    assert_eq!((statistics.io_polls, statistics.operations_submitted), (3, 3));
}
