//! The one explicit handle to a loop: spawn, time, files, sockets.

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use base::Instant;

use crate::driver::{Op, Outcome};

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
pub struct Handle(pub(crate) Rc<crate::executor::Executor>);

/// A spawned task: a future of its output. Dropping it cancels the task; [`Task::detach`] lets it run on.
pub struct Task<T>(pub(crate) async_task::Task<T>);

impl<T> Task<T> {
    /// Lets the task run to its end without anybody waiting for it.
    pub fn detach(self) {
        self.0.detach();
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<T> {
        std::pin::Pin::new(&mut self.0).poll(cx)
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
        let _ = (class, name, future);
        todo!()
    }

    /// The present. Cached by the loop within a poll where the driver's clock is dear.
    pub fn now(&self) -> Instant {
        todo!()
    }

    /// Milliseconds since 1970: a label, never an input to a decision.
    pub fn wall_ms(&self) -> u64 {
        todo!()
    }

    /// 64 random bits.
    pub fn random_u64(&self) -> u64 {
        todo!()
    }

    /// Completes at `deadline`, or at once if that has passed.
    pub fn sleep_until(&self, deadline: Instant) -> impl Future<Output = ()> + use<> {
        let _ = deadline;
        std::future::ready(todo!())
    }

    /// Completes after `span`.
    pub fn sleep(&self, span: Duration) -> impl Future<Output = ()> + use<> {
        self.sleep_until(self.now() + span)
    }

    /// Lets other tasks of the loop run: the step boundary of background work.
    pub fn yield_now(&self) -> impl Future<Output = ()> + use<> {
        std::future::ready(todo!())
    }

    /// Runs `hook` once, at the end of the I/O tasks of this turn, before submission.
    pub fn at_turn_end(&self, hook: impl FnOnce() + 'static) {
        let _ = hook;
        todo!()
    }

    /// Spends processor time in the simulation.
    pub fn charge(&self, span: Duration) {
        let _ = span;
        todo!()
    }

    /// Runs `job` on the thread pool (`cost`: what the simulation charges) and completes with its result.
    pub fn offload<T: Send + 'static>(
        &self,
        cost: Duration,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = T> + 'static {
        let _ = (cost, job);
        std::future::ready(todo!())
    }

    /// Gives one operation to the driver. Queued at the call, not at the first poll. Dropping the future of an
    /// `Accept`, `Connect` or `Receive` cancels it; every other operation runs to its end, with its buffers kept.
    pub(crate) fn operate(&self, op: Op) -> impl Future<Output = Outcome> + use<> {
        let _ = op;
        std::future::ready(todo!())
    }
}
