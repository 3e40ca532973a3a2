//! Loops: when they have their turns, and what their drivers ask of the world.
//!
//! A turn is one event, but the loop's own time runs on during it: each operation, outcome, look at the clock and
//! `charge` moves `local_ns` forwards, and what the loop submits reaches the world at that later time. The next turn
//! comes no earlier than the last one ended. So a loop that works is late for what comes in, as a real one is. (What
//! it limits: another loop of the same process may see a mailbox message a little before its sender's local time.)

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::Instant;

use super::World;
use super::driver::Unparker;
use super::errno::{ECANCELED, fail};
use super::node::NodeId;
use super::state::{Event, LoopId, State};
use crate::driver::{Op, OpId, Outcome, Payload, Wait, Work};

/// A loop, as the world keeps it.
pub(super) struct Loop {
    pub(super) node: NodeId,
    pub(super) alive: bool,
    pub(super) unparker: Arc<Unparker>,
    /// How far it has got by itself.
    pub(super) local_ns: u64,
    pub(super) in_turn: bool,
    /// When its next turn is.
    pub(super) turn_at_ns: Option<u64>,
    /// Operations that were not flushed yet.
    pub(super) queued: Vec<(OpId, Op)>,
    /// Outcomes that it has not reaped.
    pub(super) outcomes: Vec<(OpId, Outcome)>,
    /// What they cost besides.
    pub(super) unpaid_ns: u64,
}

impl Loop {
    /// It does nothing more.
    pub(super) fn die(&mut self) {
        self.alive = false;
        self.queued.clear();
        self.outcomes.clear();
    }
}

/// Turns.
impl State {
    pub(super) fn add_loop(&mut self, node: NodeId, unparker: Arc<Unparker>) -> LoopId {
        self.loops.push(Loop {
            node,
            alive: true,
            unparker,
            local_ns: self.now_ns,
            in_turn: false,
            turn_at_ns: None,
            queued: Vec::new(),
            outcomes: Vec::new(),
            unpaid_ns: 0,
        });
        LoopId(self.loops.len() - 1)
    }

    /// Where a loop runs, if it does.
    pub(super) fn node_of_living(&self, id: LoopId) -> Option<NodeId> {
        Some(&self.loops[id.0]).filter(|of| of.alive).map(|of| of.node)
    }

    /// The loop that was started last.
    pub(super) fn newest_loop(&self) -> LoopId {
        LoopId(self.loops.len() - 1)
    }

    /// Makes sure that a loop has a turn at `at_ns`, or as soon after that as it is free.
    pub(super) fn schedule_turn(&mut self, id: LoopId, at_ns: u64) {
        let state = &mut self.loops[id.0];
        let at_ns = at_ns.max(state.local_ns);
        if state.alive && !state.in_turn && state.turn_at_ns.is_none_or(|scheduled_ns| scheduled_ns > at_ns) {
            state.turn_at_ns = Some(at_ns);
            self.queue.push(at_ns, Event::Turn(id));
        }
    }

    /// A turn's event came up: whether the loop is to have its turn now.
    pub(super) fn start_turn(&mut self, id: LoopId) -> bool {
        let state = &mut self.loops[id.0];
        if !state.alive || state.turn_at_ns != Some(self.now_ns) {
            return false;
        }
        state.turn_at_ns = None;
        state.in_turn = true;
        state.local_ns = state.local_ns.max(self.now_ns) + self.nodes[state.node.0].cpu.turn_ns;
        true
    }

    /// A turn is over.
    pub(super) fn end_turn(&mut self, id: LoopId, wait: Wait) {
        let state = &mut self.loops[id.0];
        state.in_turn = false;
        let clock = &self.nodes[state.node.0].clock;
        let next_ns = match wait {
            _ if !state.outcomes.is_empty() || !state.queued.is_empty() => Some(state.local_ns),
            Wait::No => Some(state.local_ns),
            Wait::Until(deadline) => Some(clock.when(deadline)),
            Wait::Forever => None,
        };
        if let Some(next_ns) = next_ns {
            self.schedule_turn(id, next_ns);
        }
    }

    /// Gives a turn to every loop that was woken from outside, at the time of the loop that is `speaking`.
    pub(super) fn turn_woken(&mut self, speaking: Option<LoopId>) {
        if !self.any_woken.swap(false, Ordering::Relaxed) {
            return;
        }
        let at_ns = speaking.map_or(0, |id| self.loops[id.0].local_ns).max(self.now_ns);
        for index in 0..self.loops.len() {
            if self.loops[index].unparker.take() {
                self.schedule_turn(LoopId(index), at_ns);
            }
        }
    }

    /// Gives a turn to every loop: somebody outside may have submitted something.
    pub(super) fn turn_all(&mut self) {
        (0..self.loops.len()).for_each(|index| self.schedule_turn(LoopId(index), self.now_ns));
    }
}

/// What a loop's driver asks for.
impl State {
    pub(super) fn loop_now(&mut self, id: LoopId) -> Instant {
        let state = &mut self.loops[id.0];
        let node = &self.nodes[state.node.0];
        if state.in_turn {
            state.local_ns += node.cpu.clock_ns;
        }
        node.clock.show(state.local_ns.max(self.now_ns))
    }

    pub(super) fn loop_wall_ms(&self, id: LoopId) -> u64 {
        let state = &self.loops[id.0];
        self.nodes[state.node.0].clock.wall_ms(state.local_ns.max(self.now_ns))
    }

    pub(super) fn loop_random(&mut self, id: LoopId) -> u64 {
        let random = self.prng.next_u64();
        self.history.record([self.now_ns, id.0 as u64, random, 0]);
        random
    }

    pub(super) fn loop_charge(&mut self, id: LoopId, span_ns: u64) {
        let state = &mut self.loops[id.0];
        if state.in_turn {
            state.local_ns += span_ns;
        }
    }

    pub(super) fn loop_spend(&mut self, id: LoopId, work: Work) {
        let cost_ns = self.nodes[self.loops[id.0].node.0].cpu.cost_ns(work);
        self.loop_charge(id, cost_ns);
    }

    /// Charges for a lock, and for the rest of the time that another loop has it. Only what the last holder did is
    /// known, and one that is ahead in its own time is nobody to wait for: turns are not in the order of their times.
    pub(super) fn loop_lock(&mut self, id: LoopId, held_until_ns: &AtomicU64) {
        let state = &mut self.loops[id.0];
        let lock_ns = self.nodes[state.node.0].cpu.lock_ns;
        if lock_ns == 0 || !state.in_turn {
            return;
        }
        let until_ns = held_until_ns.load(Ordering::Relaxed);
        let is_held = (until_ns.saturating_sub(lock_ns)..until_ns).contains(&state.local_ns);
        state.local_ns = if is_held { until_ns } else { state.local_ns } + lock_ns;
        held_until_ns.store(state.local_ns, Ordering::Relaxed);
    }

    pub(super) fn loop_submit(&mut self, id: LoopId, operation: OpId, op: Op) {
        let state = &mut self.loops[id.0];
        if state.alive {
            state.queued.push((operation, op));
        }
    }

    pub(super) fn loop_cancel(&mut self, id: LoopId, operation: OpId) {
        let state = &mut self.loops[id.0];
        if let Some(index) = state.queued.iter().position(|(queued, _)| *queued == operation) {
            let (_, op) = state.queued.remove(index);
            let payload = match op {
                Op::Read { buffer, .. } | Op::Receive { buffer, .. } => Payload::Buffer(buffer),
                _ => Payload::None,
            };
            self.deliver((id, operation), Outcome { value: fail(ECANCELED), payload });
        } else {
            let at_ns = state.local_ns.max(self.now_ns);
            self.on_network(at_ns, |network, step| network.cancel(step, (id, operation)));
        }
    }

    pub(super) fn loop_flush(&mut self, id: LoopId) {
        let mut queued = std::mem::take(&mut self.loops[id.0].queued);
        for (operation, op) in queued.drain(..) {
            let state = &mut self.loops[id.0];
            let cost_ns = self.nodes[state.node.0].cpu.submission_ns(&op);
            state.local_ns = state.local_ns.max(self.now_ns) + cost_ns;
            let at_ns = state.local_ns;
            self.submit(at_ns, (id, operation), op);
        }
        // Its capacity is kept; nothing was queued meanwhile, for no task runs in here.
        self.loops[id.0].queued = queued;
    }

    pub(super) fn loop_reap(&mut self, id: LoopId, outcomes: &mut Vec<(OpId, Outcome)>) {
        let state = &mut self.loops[id.0];
        if state.in_turn {
            let cpu = &self.nodes[state.node.0].cpu;
            state.local_ns += cpu.outcome_ns * state.outcomes.len() as u64 + std::mem::take(&mut state.unpaid_ns);
        }
        outcomes.append(&mut state.outcomes);
    }

    /// Something that this loop wants from the world, when its own time has come.
    pub(super) fn loop_call(&mut self, id: LoopId, call: Box<dyn FnOnce(&World)>) {
        let at_ns = self.loops[id.0].local_ns.max(self.now_ns);
        self.queue.push(at_ns, Event::Call(call));
    }

    pub(super) fn loop_offload(&mut self, id: LoopId, job: Box<dyn FnOnce() + Send>, cost_ns: u64) {
        let state = &self.loops[id.0];
        if !state.alive {
            return;
        }
        let start_ns = state.local_ns.max(self.now_ns);
        let pool = &mut self.nodes[state.node.0].pool_free_ns;
        let processor = (0..pool.len()).min_by_key(|&i| pool[i]).expect("a node has a pool");
        let done_ns = start_ns.max(pool[processor]) + cost_ns.max(1_000);
        pool[processor] = done_ns;
        self.queue.push(done_ns, Event::Job(id, job));
    }
}
