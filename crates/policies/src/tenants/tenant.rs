//! One tenant on one loop: its requests that wait, what it was promised, and what is told of it. What it may spend is its
//! [account](super::account).

use std::collections::VecDeque;

use base::Instant;

use super::cost::Cost;
use super::settings::Promise;

/// A request that waits.
pub(super) struct Waiting<T> {
    pub(super) arrived: Instant,
    pub(super) cost: Cost,
    pub(super) ticket: T,
}

/// The requests of one volume.
struct Queue<T> {
    /// What the volume is called outside.
    key: u64,
    /// Requests that it may start in one turn among the volumes of its tenant.
    weight: u32,
    /// How many of those are left of this turn.
    turn: u32,
    waiting: VecDeque<Waiting<T>>,
}

/// See the module.
pub(super) struct Tenant<T> {
    pub(super) promise: Promise,
    /// Its part of the base on this loop.
    pub(super) part: f64,
    queues: Vec<Queue<T>>,
    /// Queues with something in them.
    ring: VecDeque<u32>,
    pub(super) throttled: u64,
    pub(super) reclaimed: u64,
    pub(super) from_reserve: u64,
    /// How long its requests waited, in nanoseconds: all together, and the longest.
    pub(super) waited_ns: u64,
    pub(super) waited_max_ns: u64,
}

impl<T> Tenant<T> {
    pub(super) fn new(promise: Promise) -> Self {
        Tenant {
            promise,
            part: 1.0,
            queues: Vec::new(),
            ring: VecDeque::new(),
            throttled: 0,
            reclaimed: 0,
            from_reserve: 0,
            waited_ns: 0,
            waited_max_ns: 0,
        }
    }

    /// The number of a volume's queue, which is there from here on.
    pub(super) fn queue(&mut self, key: u64, weight: u32) -> u32 {
        let queues = &mut self.queues;
        let at = queues.iter().position(|queue| queue.key == key).unwrap_or_else(|| {
            queues.push(Queue { key, weight, turn: 0, waiting: VecDeque::new() });
            queues.len() - 1
        });
        queues[at].weight = weight;
        at as u32
    }

    /// Puts a request in line.
    pub(super) fn push(&mut self, queue: u32, waiting: Waiting<T>) {
        let line = &mut self.queues[queue as usize];
        if line.waiting.is_empty() {
            line.turn = line.weight;
            self.ring.push_back(queue);
        }
        line.waiting.push_back(waiting);
    }

    /// The request whose turn it is.
    pub(super) fn first(&self) -> Option<&Waiting<T>> {
        self.queues[*self.ring.front()? as usize].waiting.front()
    }

    /// Takes that.
    pub(super) fn pop(&mut self) -> Option<Waiting<T>> {
        let queue = *self.ring.front()?;
        let line = &mut self.queues[queue as usize];
        let first = line.waiting.pop_front()?;
        line.turn = line.turn.saturating_sub(1);
        if line.waiting.is_empty() || line.turn == 0 {
            self.ring.pop_front();
            if !line.waiting.is_empty() {
                line.turn = line.weight;
                self.ring.push_back(queue);
            }
        }
        Some(first)
    }

    /// Requests that wait, counted.
    pub(super) fn count_waiting(&self) -> usize {
        self.queues.iter().map(|queue| queue.waiting.len()).sum()
    }
}
