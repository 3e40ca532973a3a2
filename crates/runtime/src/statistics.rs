//! What a loop counts about itself: plain numbers, read through [`Handle::statistics`](crate::Handle::statistics).

use std::collections::BTreeMap;
use std::time::Duration;

use base::Histogram;

/// A background poll above this is counted by the name of its task: it should be cut into shorter steps.
pub const SLOW_POLL: Duration = Duration::from_micros(100);

/// What a loop has done since it started.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// Turns in all.
    pub turns: u64,
    /// Turns that began by sleeping in the kernel.
    pub sleeps: u64,
    /// Polls of I/O tasks.
    pub io_polls: u64,
    /// Polls of background tasks.
    pub background_polls: u64,
    /// Time spent in background tasks, in nanoseconds.
    pub background_ns: u64,
    /// Operations handed to the driver.
    pub operations_submitted: u64,
    /// Operations in flight now.
    pub operations_in_flight: usize,
    /// Tasks that exist now.
    pub tasks: usize,
    /// Timers that wait now.
    pub timers: usize,
    /// Jobs handed to the thread pool.
    pub offloads: u64,
    /// How long outcomes lay in the receive buffer at most, in nanoseconds: from the end of the reap before to the reap that found
    /// them. An outcome that ended a sleep counts as zero. This is the wait that priority-based task scheduling
    /// shortens (NSDI 2026, §4.3).
    pub receive_wait: Histogram,
    /// From the start of a turn's I/O phase to each poll of an I/O task in it, in nanoseconds.
    pub queue_wait: Histogram,
    /// How long background tasks waited for their turn, in nanoseconds: samples, of the last one in line.
    pub background_wait: Histogram,
    /// Times that one of them had waited for longer than a second, and still did.
    pub background_overdue: u64,
    /// Background polls above [`SLOW_POLL`], by task name.
    pub slow_polls: BTreeMap<&'static str, SlowPolls>,
}

impl Statistics {
    /// Adds what another loop of the process did.
    pub fn merge(&mut self, other: &Statistics) {
        let Statistics {
            turns,
            sleeps,
            io_polls,
            background_polls,
            background_ns,
            operations_submitted,
            operations_in_flight,
            tasks,
            timers,
            offloads,
            receive_wait,
            queue_wait,
            background_wait,
            background_overdue,
            slow_polls,
        } = other;
        self.turns += turns;
        self.sleeps += sleeps;
        self.io_polls += io_polls;
        self.background_polls += background_polls;
        self.background_ns += background_ns;
        self.operations_submitted += operations_submitted;
        self.operations_in_flight += operations_in_flight;
        self.tasks += tasks;
        self.timers += timers;
        self.offloads += offloads;
        self.receive_wait.merge(receive_wait);
        self.queue_wait.merge(queue_wait);
        self.background_wait.merge(background_wait);
        self.background_overdue += background_overdue;
        for (name, polls) in slow_polls {
            let mine = self.slow_polls.entry(name).or_default();
            mine.count += polls.count;
            mine.longest_ns = mine.longest_ns.max(polls.longest_ns);
        }
    }
}

/// A loop did not look at disk and network for long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Busy {
    /// For how long, in nanoseconds: stretches of at least [`SLOW_POLL`], added up.
    pub ns: u64,
    /// The task that ran longest in them.
    pub task: &'static str,
}

/// Polls of one task name that took too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlowPolls {
    /// How many.
    pub count: u64,
    /// The longest, in nanoseconds.
    pub longest_ns: u64,
}
