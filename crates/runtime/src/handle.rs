//! The one explicit handle to a loop: spawn, time, files, sockets.

use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use base::Instant;

use crate::driver::{Op, OpId, Outcome, Work};
use crate::executor::{Executor, SpawnedTask, TimerKey};
use crate::statistics::{Busy, Statistics};
use crate::sync;

/// Which queue a task lives in (NSDI 2026, §4.3). A task keeps its class for life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Somebody waits for it: parsing, journal, cache lookup, reads, replies.
    Io,
    /// Nobody waits for it: dumps, merges, GC, statistics. Runs after the I/O of a turn, for a bounded time.
    Background,
}

/// A handle to a loop. Cheap to clone; stays on the loop's thread.
#[derive(Clone)]
pub struct Handle(pub(crate) Rc<Executor>);

/// A spawned task: a future of its output. Dropping it cancels the task; [`Task::detach`] lets it run on.
///
/// A task whose loop was killed never completes.
#[must_use = "a dropped task is cancelled; detach it to let it run"]
pub struct Task<T>(Option<SpawnedTask<T>>);

impl<T> Task<T> {
    /// Lets the task run to its end without anybody waiting for it.
    pub fn detach(self) {
        if let Some(task) = self.0 {
            task.detach();
        }
    }

    /// Whether the task has run to its end.
    pub fn is_finished(&self) -> bool {
        self.0.as_ref().is_some_and(SpawnedTask::is_finished)
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(task) = &mut self.0 else { return Poll::Pending };
        match Pin::new(task).poll(cx) {
            Poll::Ready(Some(output)) => Poll::Ready(output),
            // The loop was killed and dropped the task's future; nobody on it is polled any more.
            Poll::Ready(None) => {
                self.0 = None;
                Poll::Pending
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Handle {
    /// Starts a task. `name` appears in statistics of slow polls.
    pub fn spawn<T: 'static>(
        &self,
        class: Class,
        name: &'static str,
        future: impl Future<Output = T> + 'static,
    ) -> Task<T> {
        Task(self.0.spawn(class, false, name, future))
    }

    /// Starts an I/O task that runs before all that are ready, each time it is woken: one that passes on what others
    /// have finished, so that whoever waits for that is not idle while they all run.
    pub fn spawn_ahead<T: 'static>(&self, name: &'static str, future: impl Future<Output = T> + 'static) -> Task<T> {
        Task(self.0.spawn(Class::Io, true, name, future))
    }

    /// The present.
    pub fn now(&self) -> Instant {
        self.0.driver().now()
    }

    /// Milliseconds since 1970: a label, never an input to a decision.
    pub fn wall_ms(&self) -> u64 {
        self.0.driver().wall_ms()
    }

    /// 64 random bits.
    pub fn random_u64(&self) -> u64 {
        self.0.driver().random_u64()
    }

    /// Completes at `deadline`, or at once if that has passed.
    pub fn sleep_until(&self, deadline: Instant) -> impl Future<Output = ()> + use<> {
        Sleep { handle: self.clone(), deadline, key: None }
    }

    /// Completes after `span`.
    pub fn sleep(&self, span: Duration) -> impl Future<Output = ()> + use<> {
        self.sleep_until(self.now() + span)
    }

    /// Lets other tasks of the loop run: the step boundary of long work. An I/O task goes on in the next turn, after
    /// the loop has received; a background task at the end of its queue.
    pub fn yield_now(&self) -> impl Future<Output = ()> + use<> {
        YieldNow { handle: self.clone(), yielded: false }
    }

    /// Runs `hook` once, at the end of the I/O tasks of this turn, before submission. A hook that a background task
    /// adds runs at the end of the background tasks, one that a hook adds in the next turn.
    pub fn at_turn_end(&self, hook: impl FnOnce() + 'static) {
        self.0.at_turn_end(Box::new(hook));
    }

    /// Spends processor time in the simulation.
    pub fn charge(&self, span: Duration) {
        self.0.driver().charge(span);
    }

    /// Spends what this kind of work costs in the simulation.
    #[inline]
    pub fn spend(&self, work: Work) {
        self.0.driver().spend(work);
    }

    /// Runs `job` on the thread pool (`cost`: what the simulation charges) and completes with its result. The job
    /// runs even if the future is dropped; one that panics panics here.
    pub fn offload<T: Send + 'static>(
        &self,
        cost: Duration,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = T> + 'static {
        let (sender, receiver) = sync::oneshot();
        let (done, finished) = sync::foreign();
        let job = move || {
            // The receiver is gone only with its loop.
            let _ = done.send(catch_unwind(AssertUnwindSafe(job)));
        };
        let executor = self.0.clone();
        // A task of its own keeps the slot until the job is done, whoever stops waiting for it.
        let keeper = async move {
            let _slot = executor.offloads.take(1).await;
            executor.offload(Box::new(job), cost);
            if let Ok(result) = finished.await {
                sender.send(result);
            }
        };
        self.spawn(Class::Io, "offload", keeper).detach();
        async move {
            match receiver.await {
                Some(Ok(value)) => value,
                Some(Err(panic)) => resume_unwind(panic),
                None => std::future::pending().await,
            }
        }
    }

    /// Starts another loop of this process, with the settings of this one. It runs until the future that `main` makes
    /// there has ended; then its tasks are dropped. What the two say to each other goes through mailboxes. Completes
    /// when the other one runs.
    ///
    /// # Errors
    /// The system has no thread or no ring to give.
    pub async fn start_loop<F: Future<Output = ()> + 'static>(
        &self,
        name: &str,
        main: impl FnOnce(Handle) -> F + Send + 'static,
    ) -> io::Result<()> {
        let (started, starting) = sync::foreign();
        self.0.start_loop(name, Box::new(|handle| Box::pin(main(handle))), started);
        starting.await.unwrap_or_else(|_| Err(io::Error::other("the thread of the loop ended early")))
    }

    /// How long the loop was busy between `from` and `now` without looking at disk and network, in stretches of at least
    /// [`SLOW_POLL`](crate::statistics::SLOW_POLL): nothing in most cases. It remembers the last 64 stretches.
    pub fn busy_since(&self, from: Instant, now: Instant) -> Option<Busy> {
        self.0.busy_since(from, now)
    }

    /// How long the loop had nothing to do, in nanoseconds since it began, until it looked at disk and network last. What it
    /// did in a span besides was work.
    pub fn idle_ns(&self) -> u64 {
        self.0.idle_ns()
    }

    /// How long what the loop has just received may have lain there at most, in nanoseconds, because it was busy in such
    /// a stretch; zero in most cases.
    pub fn unseen_ns(&self) -> u64 {
        self.0.unseen_ns()
    }

    /// What the loop has done since it started.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    /// Gives one operation to the driver. Queued at the call, not at the first poll. Dropping the future of an
    /// `Accept`, `Connect`, `Receive` or `Await` cancels it; every other operation runs to its end, with its buffers kept.
    pub(crate) fn operate(&self, op: Op) -> impl Future<Output = Outcome> + use<> {
        let state = match self.0.submit(op) {
            Some(id) => OperationState::InFlight(id),
            None => OperationState::Swallowed,
        };
        Operation { handle: self.clone(), state }
    }
}

struct Sleep {
    handle: Handle,
    deadline: Instant,
    key: Option<TimerKey>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let executor = &self.handle.0;
        match self.key {
            Some(key) if executor.renew_timer(key, cx.waker()) => Poll::Pending,
            Some(_) => {
                self.key = None;
                Poll::Ready(())
            }
            None if executor.driver().now() >= self.deadline => Poll::Ready(()),
            None => {
                self.key = Some(executor.set_timer(self.deadline, cx.waker()));
                Poll::Pending
            }
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.handle.0.drop_timer(key);
        }
    }
}

struct YieldNow {
    handle: Handle,
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        self.handle.0.yield_task(cx.waker());
        Poll::Pending
    }
}

struct Operation {
    handle: Handle,
    state: OperationState,
}

enum OperationState {
    InFlight(OpId),
    /// The loop is dead: it never reached the driver, and never completes.
    Swallowed,
    Done,
}

impl Future for Operation {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        match self.state {
            OperationState::InFlight(id) => {
                let poll = self.handle.0.poll_operation(id, cx.waker());
                if poll.is_ready() {
                    self.state = OperationState::Done;
                }
                poll
            }
            OperationState::Swallowed => Poll::Pending,
            OperationState::Done => panic!("polled after completion"),
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if let OperationState::InFlight(id) = self.state {
            self.handle.0.abandon(id);
        }
    }
}
