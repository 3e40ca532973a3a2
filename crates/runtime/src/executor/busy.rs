//! When a loop was busy for long: stretches between two looks at disk and network, and the task that ran longest in
//! each.
//!
//! While a loop does not look, what the disk has finished and what clients have sent lies unseen, and no stage of a
//! request can tell. The executor reads its clock around most polls anyway; this keeps what it read when a stretch was
//! long, and costs a comparison when it was not. What runs at a turn's end counts as part of the task before it.

use std::collections::VecDeque;
use std::time::Duration;

use base::Instant;

use crate::statistics::{Busy, SLOW_POLL};

/// Stretches that are remembered.
const STRETCHES_MAX: usize = 64;
/// From this length on a stretch is remembered.
const LONG: Duration = SLOW_POLL;
/// A sleep that is no longer than this ended because something was there before it began.
const AT_ONCE: Duration = Duration::from_micros(20);
/// What a loop does between its tasks: system calls, some of which do their work before they return.
const SUBMITTING: &str = "submit and receive";

/// The long stretches of one loop.
pub(super) struct BusyLog {
    /// When the loop looked last.
    since: Instant,
    /// When it ran out of work, if nothing has called it since.
    idle_since: Option<Instant>,
    running: Option<(&'static str, Instant)>,
    longest: Poll,
    stretches: VecDeque<Stretch>,
    /// How long the loop had nothing to do, in nanoseconds.
    idle_ns: u64,
}

/// A task that ran.
#[derive(Clone, Copy, Default)]
struct Poll {
    task: &'static str,
    ns: u64,
}

struct Stretch {
    from: Instant,
    to: Instant,
    longest: Poll,
}

impl BusyLog {
    /// The log of a loop that starts at `now`.
    pub fn new(now: Instant) -> Self {
        BusyLog {
            since: now,
            idle_since: None,
            running: None,
            longest: Poll::default(),
            stretches: VecDeque::new(),
            idle_ns: 0,
        }
    }

    /// A task begins to run, the one before has ended.
    #[inline]
    pub fn on_poll(&mut self, now: Instant, task: &'static str) {
        self.on_rest(now);
        self.running = Some((task, now));
    }

    /// No task runs.
    #[inline]
    pub fn on_rest(&mut self, now: Instant) {
        let Some((task, started)) = self.running.take() else { return };
        let ns = now.nanos_since(started);
        if ns > self.longest.ns {
            self.longest = Poll { task, ns };
        }
    }

    /// The loop has nothing to do, and will be called when there is: the simulated world's way to sleep.
    pub fn on_idle(&mut self, now: Instant) {
        self.on_rest(now);
        self.idle_since = Some(now);
    }

    /// The loop looked, from `now` to `looked`, asleep for most of it if it `may_sleep`. Gives how long what it found may
    /// have lain there because the loop was busy; zero if that was not long.
    #[inline]
    pub fn on_look(&mut self, now: Instant, looked: Instant, may_sleep: bool) -> u64 {
        self.on_rest(now);
        let idle = self.idle_since.take();
        let mut to = idle.unwrap_or(now);
        if !may_sleep {
            let ns = looked.nanos_since(now);
            if ns > self.longest.ns {
                self.longest = Poll { task: SUBMITTING, ns };
            }
            to = idle.unwrap_or(looked);
        }
        let (from, longest) = (self.since, std::mem::take(&mut self.longest));
        self.since = looked;
        self.idle_ns += looked.nanos_since(to);
        if to.since(from) < LONG {
            return 0;
        }
        if self.stretches.len() == STRETCHES_MAX {
            self.stretches.pop_front();
        }
        self.stretches.push_back(Stretch { from, to, longest });
        // What is there already ends a sleep at once; what comes later has not waited.
        let slept = match idle {
            Some(idle) => now > idle,
            None => may_sleep && looked.since(now) > AT_ONCE,
        };
        if slept { 0 } else { to.nanos_since(from) }
    }

    /// How long the loop had nothing to do until it looked last, in nanoseconds since it began.
    pub fn idle_ns(&self) -> u64 {
        self.idle_ns
    }

    /// How long the loop was busy in long stretches from `from` to `now`, and what it did most of all.
    pub fn within(&self, from: Instant, now: Instant) -> Option<Busy> {
        let mut longest = match self.running {
            Some((task, started)) if now.nanos_since(started) > self.longest.ns => {
                Poll { task, ns: now.nanos_since(started) }
            }
            _ => self.longest,
        };
        let mut ns = 0;
        let present = now.nanos_since(self.since.max(from));
        match now.since(self.since) >= LONG {
            true => ns += present,
            false => longest = Poll::default(),
        }
        for stretch in self.stretches.iter().rev().take_while(|stretch| stretch.to > from) {
            ns += stretch.to.nanos_since(stretch.from.max(from));
            if stretch.longest.ns > longest.ns {
                longest = stretch.longest;
            }
        }
        (ns > 0).then_some(Busy { ns, task: longest.task })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Instant {
        Instant(us * 1_000)
    }

    #[test]
    fn long_stretches_are_remembered_with_the_task_that_ran_longest() {
        let mut log = BusyLog::new(us(0));
        assert_eq!(log.on_look(us(0), us(10), true), 0);
        log.on_poll(us(10), "short");
        log.on_poll(us(20), "long");
        log.on_poll(us(420), "short");
        assert_eq!(log.within(us(400), us(430)), Some(Busy { ns: 30_000, task: "long" }), "it goes on");
        assert_eq!(log.on_look(us(450), us(451), false), 441_000);
        // A turn like any other is not.
        log.on_poll(us(451), "short");
        assert_eq!(log.on_look(us(480), us(481), false), 0);
        assert_eq!(log.within(us(0), us(485)), Some(Busy { ns: 441_000, task: "long" }));
        assert_eq!(log.within(us(440), us(485)), Some(Busy { ns: 11_000, task: "long" }));
        assert_eq!(log.within(us(451), us(485)), None, "it began after that");
        // A system call that does the work itself.
        assert_eq!(log.on_look(us(485), us(985), false), 504_000);
        assert_eq!(log.within(us(481), us(990)), Some(Busy { ns: 504_000, task: SUBMITTING }));
    }

    #[test]
    fn what_ends_a_sleep_at_once_was_there_before() {
        let mut log = BusyLog::new(us(0));
        for (slept_us, unseen_ns) in [(3, 300_000), (400, 0)] {
            log.on_look(us(0), us(0), false);
            log.on_poll(us(0), "task");
            assert_eq!(log.on_look(us(300), us(300 + slept_us), true), unseen_ns);
            // The same in the simulated world, which does not call a loop that sleeps.
            log.on_look(us(2_000), us(2_000), false);
            log.on_poll(us(2_000), "task");
            log.on_idle(us(2_300));
            let called = if unseen_ns > 0 { us(2_300) } else { us(2_300 + slept_us) };
            assert_eq!(log.on_look(called, called, false), unseen_ns);
            assert_eq!(log.within(us(2_000), called), Some(Busy { ns: 300_000, task: "task" }));
        }
    }

    #[test]
    fn sleep_is_not_work_and_memory_is_bounded() {
        let mut log = BusyLog::new(us(0));
        for n in 0..1_000 {
            // Asleep up to the full millisecond, then busy for 250 us.
            log.on_look(us(n * 1_000), us(n * 1_000 + 700), true);
            log.on_poll(us(n * 1_000 + 700), "task");
            log.on_look(us(n * 1_000 + 950), us(n * 1_000 + 950), false);
        }
        assert_eq!(log.stretches.len(), STRETCHES_MAX);
        assert_eq!(log.idle_ns(), 700_000_000);
        assert_eq!(log.within(us(998_000), us(1_000_000)), Some(Busy { ns: 500_000, task: "task" }));
    }
}
