//! The executor of one loop: tasks in two queues, operations, timers, and the turn that drives them.
//!
//! Who calls [`Executor::turn`]: the `uring` driver's loop calls it for ever with `may_block`, and it sleeps in the
//! driver's `reap`; the simulated world calls it without, whenever an outcome, a timer or a wake-up is due, and reads
//! in [`TurnEnd::wait`] when to call again.
//!
//! Invariants:
//! - A task's future is polled and dropped on the loop's thread only, whoever wakes it.
//! - No cell of the executor is borrowed while a task, a hook, a waker or the driver runs.
//! - After [`Executor::kill`] no task is polled, no operation reaches the driver, and every future has been dropped.
//!   A task that is awaited from outside never completes then.
//! - Everything that a live future registered (timer, operation) vanishes with it, except operations that the world
//!   already has: those stay until their outcome comes, and with them their buffers.

mod busy;
mod operations;
mod queue;
mod timers;
mod watchdog;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base::Instant;
use policies::loop_schedule::{Discipline, Look, LoopSchedule, LoopSettings, Sleep};
use slab::Slab;

use self::busy::BusyLog;
use self::operations::{Aftermath, Operations};
use self::queue::{ReadyQueues, Runnable, TaskInfo};
pub(crate) use self::timers::TimerKey;
use self::timers::Timers;
use self::watchdog::Watchdog;
use crate::driver::{Driver, LoopMain, Op, OpId, Outcome, Started, Wait};
use crate::statistics::{Busy, SLOW_POLL, Statistics};
use crate::sync::Budget;
use crate::{Class, Handle};

/// Jobs of one loop that are on the thread pool or wait for it there; more wait on the loop.
const OFFLOADS_IN_FLIGHT: u64 = 64;

pub(crate) type SpawnedTask<T> = async_task::FallibleTask<T, TaskInfo>;

/// The state of one loop. Held by [`Handle`]s; whoever made it must [`Executor::kill`] it, because tasks hold handles.
pub struct Executor {
    driver: Rc<dyn Driver>,
    queues: Arc<ReadyQueues>,
    schedule: RefCell<LoopSchedule>,
    /// A waker of every task that exists, to reach it when the loop is killed.
    tasks: RefCell<Slab<Waker>>,
    operations: Operations,
    timers: Timers,
    turn_end_hooks: RefCell<Vec<Box<dyn FnOnce()>>>,
    /// I/O tasks that gave way until the loop has received once more.
    yielded: RefCell<Vec<Waker>>,
    /// The class that runs now, or ran last.
    running: Cell<Class>,
    /// Empty between reaps; kept for its capacity.
    outcomes: RefCell<Vec<(OpId, Outcome)>>,
    pub(crate) offloads: Budget,
    statistics: RefCell<Statistics>,
    watchdog: RefCell<Watchdog>,
    /// When the loop last finished looking at the driver's outcomes.
    reaped_at: Cell<Instant>,
    busy: RefCell<BusyLog>,
    /// How long what the last look found may have lain there because the loop was busy for long, in nanoseconds.
    unseen_ns: Cell<u64>,
    in_turn: Cell<bool>,
    dead: Cell<bool>,
    /// Dead, and the tasks are dropped or being dropped.
    dismantled: Cell<bool>,
}

/// What a turn did, and when the next one is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TurnEnd {
    /// Tasks that were polled.
    pub polls: u64,
    /// When to call [`Executor::turn`] again if nothing happens before: at once, at a point, or not. A wake-up in
    /// between calls the driver's `unpark`. After a turn that may block: always at once.
    pub wait: Wait,
}

impl Executor {
    /// A loop on the calling thread, with no tasks yet.
    pub fn start(driver: Rc<dyn Driver>, settings: LoopSettings) -> Handle {
        let now = driver.now();
        Handle(Rc::new(Executor {
            queues: Arc::new(ReadyQueues::new(driver.unparker())),
            schedule: RefCell::new(LoopSchedule::new(settings, now)),
            tasks: RefCell::default(),
            operations: Operations::default(),
            timers: Timers::default(),
            turn_end_hooks: RefCell::default(),
            yielded: RefCell::default(),
            running: Cell::new(Class::Io),
            outcomes: RefCell::default(),
            offloads: Budget::new(OFFLOADS_IN_FLIGHT),
            statistics: RefCell::default(),
            watchdog: RefCell::default(),
            reaped_at: Cell::new(now),
            busy: RefCell::new(BusyLog::new(now)),
            unseen_ns: Cell::default(),
            in_turn: Cell::new(false),
            dead: Cell::new(false),
            dismantled: Cell::new(false),
            driver,
        }))
    }

    /// See [`Handle::start_loop`].
    pub(crate) fn start_loop(&self, name: &str, main: LoopMain, started: Started) {
        let settings = self.schedule.borrow().settings().clone();
        self.driver.start_loop(name, settings, main, started);
    }

    /// One round of the loop (see the crate's header). With `may_block` it sleeps in the driver when nothing is ready.
    pub fn turn(&self, may_block: bool) -> TurnEnd {
        if self.dead.get() {
            return TurnEnd { polls: 0, wait: Wait::Forever };
        }
        let _guard = TurnGuard::enter(self);
        self.queues.wake_up();
        // What timers and other threads have woken meanwhile is received, too: only what the last turn left counts as
        // work that comes before a look at the receive buffer.
        let left = self.queues.len(Class::Io);
        self.queues.take_foreign();
        let start = self.receive(may_block, left);
        self.resume_yielded();
        self.watch(start);
        let mut polls = self.run_io(start);
        self.run_turn_end_hooks();
        // A later reap submits too, with the same system call that receives: submit here only if that is not next.
        if self.runs_background_next() {
            self.flush();
            polls += self.run_background();
            self.run_turn_end_hooks();
        }
        if !may_block || self.queues.len(Class::Io) > 0 {
            self.flush();
        }
        if may_block || self.dead.get() {
            return TurnEnd { polls, wait: Wait::No };
        }
        let now = self.driver.now();
        let wait = self.plan_wait_asleep(now);
        if wait != Wait::No {
            self.busy.borrow_mut().on_idle(now);
        }
        TurnEnd { polls, wait }
    }

    /// Ends the loop: from here on nothing reaches the driver, then every task's future is dropped. Called from
    /// within a task it takes effect when that task's poll ends.
    pub fn kill(&self) {
        self.dead.set(true);
        if !self.in_turn.get() {
            self.drop_everything();
        }
    }

    /// Whether the loop was killed.
    pub fn is_dead(&self) -> bool {
        self.dead.get()
    }

    /// Starts the turn, with receiving if it is time to. Gives the time at which I/O tasks may run.
    fn receive(&self, may_block: bool, left: usize) -> Instant {
        let now = self.driver.now();
        self.timers.fire(now);
        let plan = self.schedule.borrow_mut().plan_receive(left);
        if !plan {
            self.on_turn_start(now, false);
            return now;
        }
        let mut outcomes = std::mem::take(&mut *self.outcomes.borrow_mut());
        let wait = if may_block { self.plan_wait_asleep(now) } else { Wait::No };
        let poll = if wait == Wait::No { Duration::ZERO } else { self.schedule.borrow().plan_poll() };
        self.driver.reap(wait, poll, &mut outcomes);
        let received = self.driver.now();
        self.unseen_ns.set(self.busy.borrow_mut().on_look(now, received, wait != Wait::No));
        if wait == Wait::No {
            self.on_turn_start(now, false);
            self.record_receive_wait(now.nanos_since(self.reaped_at.get()), outcomes.len());
        } else {
            // The turn starts when there is something to do; what ended the sleep has not waited.
            self.queues.wake_up();
            self.on_turn_start(received, true);
            let io_polls = self.statistics.borrow().io_polls;
            self.schedule.borrow_mut().on_wait_end(received, received.since(now), io_polls);
            self.record_receive_wait(0, outcomes.len());
            self.timers.fire(received);
        }
        self.reaped_at.set(received);
        self.queues.take_foreign();
        for (id, outcome) in outcomes.drain(..) {
            self.deliver(id, outcome);
        }
        *self.outcomes.borrow_mut() = outcomes;
        received
    }

    /// Submits, and takes what is done, in the middle of a turn.
    fn collect(&self) {
        let mut outcomes = std::mem::take(&mut *self.outcomes.borrow_mut());
        self.driver.reap(Wait::No, Duration::ZERO, &mut outcomes);
        let now = self.driver.now();
        self.unseen_ns.set(self.busy.borrow_mut().on_look(now, now, false));
        self.record_receive_wait(now.nanos_since(self.reaped_at.replace(now)), outcomes.len());
        for (id, outcome) in outcomes.drain(..) {
            self.deliver(id, outcome);
        }
        *self.outcomes.borrow_mut() = outcomes;
    }

    fn on_turn_start(&self, now: Instant, slept: bool) {
        self.schedule.borrow_mut().on_turn_start(now);
        let mut statistics = self.statistics.borrow_mut();
        statistics.turns += 1;
        statistics.sleeps += u64::from(slept);
    }

    fn record_receive_wait(&self, wait_ns: u64, outcomes: usize) {
        let mut statistics = self.statistics.borrow_mut();
        (0..outcomes).for_each(|_| statistics.receive_wait.record(wait_ns));
    }

    fn deliver(&self, id: OpId, outcome: Outcome) {
        let (waker, aftermath) = self.operations.deliver(id, outcome);
        if let Some(waker) = waker {
            waker.wake();
        }
        self.settle(id, aftermath);
    }

    fn run_io(&self, start: Instant) -> u64 {
        let mut left = self.schedule.borrow().plan_io_polls(self.queues.len(Class::Io));
        let mut polls = 0;
        self.running.set(Class::Io);
        while left > 0 && !self.dead.get() {
            let Some(runnable) = self.queues.pop(Class::Io) else { break };
            match self.schedule.borrow().plan_look(polls) {
                Look::No => {}
                Look::Submit => self.flush(),
                Look::Collect => self.collect(),
            }
            left -= 1;
            polls += 1;
            let mut begins = start;
            if polls > 1 {
                begins = self.driver.now();
                self.statistics.borrow_mut().queue_wait.record(begins.nanos_since(start));
            }
            self.busy.borrow_mut().on_poll(begins, runnable.metadata().name);
            runnable.run();
        }
        let mut statistics = self.statistics.borrow_mut();
        statistics.io_polls += polls;
        if polls > 0 {
            statistics.queue_wait.record(0);
        }
        polls
    }

    /// Queues the I/O tasks that gave way in the turn before.
    fn resume_yielded(&self) {
        let mut yielded = std::mem::take(&mut *self.yielded.borrow_mut());
        yielded.drain(..).for_each(Waker::wake);
        let mut list = self.yielded.borrow_mut();
        if list.is_empty() {
            *list = yielded;
        }
    }

    fn run_turn_end_hooks(&self) {
        // A hook that one of them adds belongs to the next round.
        let hooks = std::mem::take(&mut *self.turn_end_hooks.borrow_mut());
        for hook in hooks {
            if !self.dead.get() {
                hook();
            }
        }
    }

    fn runs_background_next(&self) -> bool {
        !self.dead.get() && self.queues.len(Class::Background) > 0 && !self.schedule.borrow().background_rests()
    }

    fn run_background(&self) -> u64 {
        let mut now = self.driver.now();
        self.running.set(Class::Background);
        self.schedule.borrow_mut().on_io_end(now);
        let mut polls = 0;
        while !self.dead.get() && self.schedule.borrow_mut().plan_background(now) {
            let Some(runnable) = self.queues.pop(Class::Background) else { break };
            let name = runnable.metadata().name;
            let waited = self.watchdog.borrow_mut().on_poll(now);
            if let Some(waited) = waited {
                let waited_ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
                self.statistics.borrow_mut().background_wait.record(waited_ns);
            }
            self.busy.borrow_mut().on_poll(now, name);
            runnable.run();
            let end = self.driver.now();
            self.busy.borrow_mut().on_rest(end);
            let span = end.since(now);
            now = end;
            polls += 1;
            self.schedule.borrow_mut().on_background_end(now, span);
            let span_ns = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
            let mut statistics = self.statistics.borrow_mut();
            statistics.background_polls += 1;
            statistics.background_ns += span_ns;
            if span > SLOW_POLL {
                let slow = statistics.slow_polls.entry(name).or_default();
                slow.count += 1;
                slow.longest_ns = slow.longest_ns.max(span_ns);
            }
        }
        polls
    }

    /// Looks after the background tasks that are ready.
    fn watch(&self, now: Instant) {
        if self.watchdog.borrow_mut().look(now, self.queues.len(Class::Background)) {
            self.statistics.borrow_mut().background_overdue += 1;
            tracing::warn!(patience = ?watchdog::PATIENCE, "a background task still waits for its turn");
        }
    }

    fn flush(&self) {
        if !self.dead.get() {
            self.driver.flush();
        }
    }

    /// When the loop must be up again, as far as it knows. Unless that is now, pushes unpark from here on.
    fn plan_wait_asleep(&self, now: Instant) -> Wait {
        let (io, background) = (self.queues.len(Class::Io), self.queues.len(Class::Background));
        if !self.yielded.borrow().is_empty() || !self.turn_end_hooks.borrow().is_empty() {
            return Wait::No;
        }
        let sleep = self.schedule.borrow_mut().plan_sleep(now, io, background);
        let timer = self.timers.next_deadline();
        let wait = match (sleep, timer) {
            (Sleep::No, _) => return Wait::No,
            (Sleep::Forever, None) => Wait::Forever,
            (Sleep::Forever, Some(deadline)) => Wait::Until(deadline),
            (Sleep::Until(end), timer) => Wait::Until(timer.map_or(end, |deadline| deadline.min(end))),
        };
        match wait {
            Wait::Until(deadline) if deadline <= now => Wait::No,
            _ if !self.queues.fall_asleep() => Wait::No,
            wait => wait,
        }
    }

    fn settle(&self, id: OpId, aftermath: Aftermath) {
        if self.dead.get() {
            return;
        }
        match aftermath {
            Aftermath::Nothing => {}
            Aftermath::Cancel => self.driver.cancel(id),
            Aftermath::Close(resource) => {
                if let Some(id) = self.submit(Op::Close { id: resource }) {
                    self.abandon(id);
                }
            }
        }
    }

    /// Drops every task, however it is scheduled, then what is left of their registrations.
    fn drop_everything(&self) {
        assert!(self.dead.get(), "only a dead loop drops its tasks");
        // What is dropped here may ask for the kill once more.
        if self.dismantled.replace(true) {
            return;
        }
        while !self.tasks.borrow().is_empty() {
            let wakers: Vec<Waker> = self.tasks.borrow().iter().map(|(_, waker)| waker.clone()).collect();
            // A woken task is in a queue as a runnable, and dropping a runnable drops its future. Another thread may
            // be about to queue one that it has just woken: hence the outer loop.
            wakers.into_iter().for_each(Waker::wake);
            self.queues.take_foreign();
            while let Some(runnable) = self.queues.pop(Class::Io).or_else(|| self.queues.pop(Class::Background)) {
                drop(runnable);
            }
            std::hint::spin_loop();
        }
        let hooks = std::mem::take(&mut *self.turn_end_hooks.borrow_mut());
        drop(hooks);
        let yielded = std::mem::take(&mut *self.yielded.borrow_mut());
        drop(yielded);
        self.timers.clear();
        self.operations.clear();
    }
}

/// What handles, files and streams call.
impl Executor {
    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// Starts a task, which goes before those that are ready already each time it is woken, if `ahead`. On a dead loop
    /// the future is dropped, and there is no task.
    pub(crate) fn spawn<T: 'static>(
        self: &Rc<Self>,
        class: Class,
        ahead: bool,
        name: &'static str,
        future: impl Future<Output = T> + 'static,
    ) -> Option<SpawnedTask<T>> {
        if self.dead.get() {
            return None;
        }
        let (queue, ahead) = match self.schedule.borrow().settings().discipline {
            Discipline::Priority => (class, ahead),
            Discipline::Fifo => (Class::Io, false),
        };
        let key = self.tasks.borrow_mut().insert(Waker::noop().clone());
        let registration = Registration { executor: self.clone(), key };
        let future = Registered { future, _registration: registration };
        let queues = self.queues.clone();
        let (runnable, task) = async_task::Builder::new()
            .metadata(TaskInfo { name, queue, ahead })
            .spawn_local(move |_| future, move |runnable: Runnable| queues.push(runnable));
        self.tasks.borrow_mut()[key] = runnable.waker();
        runnable.schedule();
        Some(task.fallible())
    }

    /// Gives an operation to the driver; a dead loop swallows it.
    pub(crate) fn submit(&self, op: Op) -> Option<OpId> {
        if self.dead.get() {
            return None;
        }
        let id = self.operations.insert(&op);
        self.driver.submit(id, op);
        Some(id)
    }

    pub(crate) fn poll_operation(&self, id: OpId, waker: &Waker) -> Poll<Outcome> {
        if self.dead.get() { Poll::Pending } else { self.operations.poll(id, waker) }
    }

    /// The future of an operation is dropped before it completed.
    pub(crate) fn abandon(&self, id: OpId) {
        if !self.dead.get() {
            let aftermath = self.operations.abandon(id);
            self.settle(id, aftermath);
        }
    }

    pub(crate) fn at_turn_end(&self, hook: Box<dyn FnOnce()>) {
        if !self.dead.get() {
            self.turn_end_hooks.borrow_mut().push(hook);
            self.queues.nudge();
        }
    }

    /// The running task gives way. A background task goes to the end of its queue; it runs again in this turn if time
    /// is left. An I/O task waits for the next turn and does not count as ready at its start: long work of the I/O
    /// class that yields between its steps does not keep the loop from receiving.
    pub(crate) fn yield_task(&self, waker: &Waker) {
        match self.running.get() {
            Class::Background => waker.wake_by_ref(),
            Class::Io => {
                self.yielded.borrow_mut().push(waker.clone());
                self.queues.nudge();
            }
        }
    }

    pub(crate) fn set_timer(&self, deadline: Instant, waker: &Waker) -> TimerKey {
        self.timers.insert(deadline, waker.clone())
    }

    /// False if the timer has fired.
    pub(crate) fn renew_timer(&self, key: TimerKey, waker: &Waker) -> bool {
        self.timers.renew(key, waker)
    }

    pub(crate) fn drop_timer(&self, key: TimerKey) {
        self.timers.remove(key);
    }

    pub(crate) fn offload(&self, job: Box<dyn FnOnce() + Send>, cost: std::time::Duration) {
        if !self.dead.get() {
            self.statistics.borrow_mut().offloads += 1;
            self.driver.offload(job, cost);
        }
    }

    pub(crate) fn idle_ns(&self) -> u64 {
        self.busy.borrow().idle_ns()
    }

    pub(crate) fn busy_since(&self, from: Instant, now: Instant) -> Option<Busy> {
        self.busy.borrow().within(from, now)
    }

    pub(crate) fn unseen_ns(&self) -> u64 {
        self.unseen_ns.get()
    }

    pub(crate) fn statistics(&self) -> Statistics {
        Statistics {
            operations_submitted: self.operations.submitted(),
            operations_in_flight: self.operations.len(),
            tasks: self.tasks.borrow().len(),
            timers: self.timers.len(),
            ..self.statistics.borrow().clone()
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Marks the executor as being in a turn, and finishes a kill that happened during it.
struct TurnGuard<'a>(&'a Executor);

impl<'a> TurnGuard<'a> {
    fn enter(executor: &'a Executor) -> Self {
        assert!(!executor.in_turn.replace(true), "a turn within a turn");
        TurnGuard(executor)
    }
}

impl Drop for TurnGuard<'_> {
    fn drop(&mut self) {
        self.0.in_turn.set(false);
        if self.0.dead.get() && !std::thread::panicking() {
            self.0.drop_everything();
        }
    }
}

/// A task's entry in the list of all tasks.
struct Registration {
    executor: Rc<Executor>,
    key: usize,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let waker = self.executor.tasks.borrow_mut().remove(self.key);
        drop(waker);
    }
}

pin_project_lite::pin_project! {
    /// A task's future with its registration, which goes after the future itself is gone.
    struct Registered<F> {
        #[pin]
        future: F,
        _registration: Registration,
    }
}

impl<F: Future> Future for Registered<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(cx)
    }
}

#[cfg(test)]
mod tests;
