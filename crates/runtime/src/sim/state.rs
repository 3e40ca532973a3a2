//! The state of a world: its nodes, loops, operations in flight and the queue of what happens next.
//!
//! Time. `now_ns` is the time of the event that is being handled. A turn of a loop is one event, but the loop's own
//! time runs on during it: each operation, outcome, look at the clock and `charge` moves `local_ns` forwards, and
//! what the loop submits reaches the world at that later time. The next turn comes no earlier than the last one
//! ended. So a loop that works is late for what comes in, as a real one is. (What it limits: another loop on the
//! same node may see a mailbox message a little before its sender's local time.)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::{Instant, Prng};
use slab::Slab;

use super::World;
use super::clock::Clock;
use super::disk::DiskId;
use super::driver::Unparker;
use super::errno::{ECANCELED, fail};
use super::events::EventQueue;
use super::network::{Effects, NetEvent, Network, Step};
use super::node::{CpuOptions, NodeId};
use super::storage::{FileOp, Mounts, Storage};
use crate::driver::{Op, OpId, Outcome, Payload, Wait};

/// The number of a loop in its world; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct LoopId(pub(super) usize);

pub(super) struct State {
    pub(super) now_ns: u64,
    pub(super) prng: Prng,
    pub(super) queue: EventQueue<Event>,
    pub(super) nodes: Vec<Node>,
    pub(super) loops: Vec<Loop>,
    pub(super) storage: Storage,
    pub(super) network: Network,
    effects: Effects,
    pub(super) history: History,
    pub(super) operations_done: u64,
    pub(super) any_woken: Arc<AtomicBool>,
    in_flight: Slab<InFlight>,
    submitted: u64,
    next_resource: u64,
}

/// What can happen.
pub(super) enum Event {
    /// A loop's turn, unless its next turn was moved to another time since.
    Turn(LoopId),
    /// An operation on a file takes effect: its slot, and its number to tell it from a later user of the slot.
    File { slot: usize, number: u64 },
    /// Something happens in the network.
    Net(NetEvent),
    /// A job of a loop on another processor is done.
    Job(LoopId, Box<dyn FnOnce() + Send>),
    /// The test does something.
    Call(Box<dyn FnOnce(&World)>),
}

pub(super) struct Node {
    pub(super) clock: Clock,
    pub(super) cpu: CpuOptions,
    pub(super) mounts: Mounts,
    pub(super) has_power: bool,
    /// When each processor of the pool for jobs is free.
    pub(super) pool_free_ns: Vec<u64>,
}

pub(super) struct Loop {
    pub(super) node: NodeId,
    pub(super) alive: bool,
    pub(super) unparker: Arc<Unparker>,
    local_ns: u64,
    in_turn: bool,
    turn_at_ns: Option<u64>,
    queued: Vec<(OpId, Op)>,
    outcomes: Vec<(OpId, Outcome)>,
}

struct InFlight {
    number: u64,
    caller: LoopId,
    node: NodeId,
    id: OpId,
    operation: FileOp,
}

/// What becomes of an operation whose process was killed.
#[derive(Clone, Copy)]
enum Late {
    OnTime,
    Later,
    Never,
}

/// A kernel is done with the operations of a killed process after at most this time.
const LATE_NS_MAX: u64 = 20_000_000;

/// A running hash over everything that happened.
#[derive(Default)]
pub(super) struct History(pub(super) u64);

impl History {
    pub(super) fn record(&mut self, parts: [u64; 4]) {
        for part in parts {
            self.0 = (self.0.rotate_left(5) ^ part).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
    }
}

impl State {
    pub(super) fn new(seed: u64) -> Self {
        State {
            now_ns: 0,
            prng: Prng::new(seed),
            queue: EventQueue::new(),
            nodes: Vec::new(),
            loops: Vec::new(),
            storage: Storage::default(),
            network: Network::default(),
            effects: Effects::default(),
            history: History::default(),
            operations_done: 0,
            any_woken: Arc::default(),
            in_flight: Slab::new(),
            submitted: 0,
            next_resource: 1,
        }
    }

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
        });
        LoopId(self.loops.len() - 1)
    }

    /// Makes an operation on a file happen.
    pub(super) fn on_file(&mut self, slot: usize, number: u64) {
        if self.in_flight.get(slot).is_none_or(|in_flight| in_flight.number != number) {
            return;
        }
        let InFlight { caller, id, operation, .. } = self.in_flight.remove(slot);
        let outcome = self.complete(caller, operation);
        self.deliver(caller, id, outcome);
    }

    fn complete(&mut self, caller: LoopId, operation: FileOp) -> Outcome {
        let outcome = self.storage.complete(operation, caller, &mut self.next_resource, &mut self.prng);
        if !self.loops[caller.0].alive {
            self.storage.close_all(caller);
        }
        outcome
    }

    /// Lets the network take a step at `at_ns`, and carries out what comes of it.
    pub(super) fn on_network(&mut self, at_ns: u64, act: impl FnOnce(&mut Network, &mut Step<'_>)) {
        let mut effects = std::mem::take(&mut self.effects);
        let mut step =
            Step { now_ns: at_ns, prng: &mut self.prng, next_resource: &mut self.next_resource, effects: &mut effects };
        act(&mut self.network, &mut step);
        for (at_ns, event) in effects.events.drain(..) {
            self.queue.push(at_ns, Event::Net(event));
        }
        for ((to, id), outcome) in effects.outcomes.drain(..) {
            self.deliver(to, id, outcome);
        }
        self.effects = effects;
    }

    /// Gives an outcome to its loop, if that lives.
    pub(super) fn deliver(&mut self, to: LoopId, id: OpId, outcome: Outcome) {
        let value = match &outcome.value {
            Ok(value) => *value,
            Err(error) => !(error.raw_os_error().unwrap_or(0) as u64),
        };
        self.history.record([self.now_ns, to.0 as u64, id.0, value]);
        self.operations_done += 1;
        if self.loops[to.0].alive {
            self.loops[to.0].outcomes.push((id, outcome));
            self.schedule_turn(to, self.now_ns);
        }
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
        state.local_ns = state.local_ns.max(self.now_ns);
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

    /// The processes of a node die. What they had in flight lands in time, or late, or never: as a kernel would.
    pub(super) fn kill(&mut self, node: NodeId) {
        let plan = *self.prng.pick(&[Some(Late::OnTime), Some(Late::Later), Some(Late::Never), None]);
        for slot in self.in_flight_of(node) {
            if !self.loops[self.in_flight[slot].caller.0].alive {
                continue;
            }
            // Only what the device works on outlives its process; a call within the kernel is over or never was.
            if !self.storage.is_on_device(&self.in_flight[slot].operation) {
                let InFlight { caller, operation, .. } = self.in_flight.remove(slot);
                match self.prng.one_in(2) {
                    true => drop(self.complete(caller, operation)),
                    false => self.storage.abandon(operation),
                }
                continue;
            }
            let late = plan.unwrap_or_else(|| *self.prng.pick(&[Late::OnTime, Late::Later, Late::Never]));
            match late {
                Late::OnTime => {}
                Late::Later => {
                    let at_ns = self.now_ns + self.prng.below(LATE_NS_MAX);
                    self.submitted += 1;
                    self.in_flight[slot].number = self.submitted;
                    self.queue.push(at_ns, Event::File { slot, number: self.submitted });
                }
                Late::Never => {
                    let operation = self.in_flight.remove(slot).operation;
                    self.storage.abandon(operation);
                }
            }
        }
        let mut died = Vec::new();
        for (index, state) in self.loops.iter_mut().enumerate() {
            if state.node == node && state.alive {
                state.die();
                self.storage.close_all(LoopId(index));
                died.push(LoopId(index));
            }
        }
        let now_ns = self.now_ns;
        died.into_iter().for_each(|id| self.on_network(now_ns, |network, step| network.kill(step, id)));
    }

    /// A node loses its power, and with it everything that was not durable.
    pub(super) fn lose_power(&mut self, node: NodeId) {
        let mounts = self.nodes[node.0].mounts.clone();
        for slot in self.in_flight_of(node) {
            let InFlight { caller, operation, .. } = self.in_flight.remove(slot);
            if operation.is_write() {
                mounts.iter().for_each(|(_, disk)| self.storage.tear(&operation, *disk, &mut self.prng));
            } else if self.prng.one_in(2) {
                self.complete(caller, operation);
            }
        }
        self.loops.iter_mut().filter(|state| state.node == node).for_each(Loop::die);
        self.nodes[node.0].has_power = false;
        self.network.lose_power(node);
        for (_, disk) in mounts {
            self.storage.forget_disk(disk);
            self.storage.disks[disk.0].lose_power(self.now_ns, &mut self.prng);
        }
    }

    /// A node has power (again).
    pub(super) fn give_power(&mut self, node: NodeId) {
        self.nodes[node.0].has_power = true;
        let now_ns = self.now_ns;
        self.on_network(now_ns, |network, step| network.on_power(step, node));
    }

    /// A disk is gone at once: of the writes in flight some sectors reached it, but all of them will fail.
    pub(super) fn lose_disk(&mut self, disk: DiskId) {
        for (_, in_flight) in &self.in_flight {
            self.storage.tear(&in_flight.operation, disk, &mut self.prng);
        }
        let now_ns = self.now_ns;
        self.storage.disks[disk.0].vanish(now_ns, &mut self.prng);
    }

    fn in_flight_of(&self, node: NodeId) -> Vec<usize> {
        self.in_flight.iter().filter(|(_, in_flight)| in_flight.node == node).map(|(slot, _)| slot).collect()
    }
}

impl Loop {
    fn die(&mut self) {
        self.alive = false;
        self.queued.clear();
        self.outcomes.clear();
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
            self.deliver(id, operation, Outcome { value: fail(ECANCELED), payload });
        } else {
            let at_ns = state.local_ns.max(self.now_ns);
            self.on_network(at_ns, |network, step| network.cancel(step, (id, operation)));
        }
    }

    pub(super) fn loop_flush(&mut self, id: LoopId) {
        let mut queued = std::mem::take(&mut self.loops[id.0].queued);
        for (operation, op) in queued.drain(..) {
            let for_network = self.is_for_network(&op);
            let state = &mut self.loops[id.0];
            let node = &self.nodes[state.node.0];
            state.local_ns = state.local_ns.max(self.now_ns) + node.cpu.submit_ns;
            self.submitted += 1;
            if for_network {
                let (at_ns, node) = (state.local_ns, state.node);
                self.history.record([at_ns, id.0 as u64, operation.0, 0]);
                self.on_network(at_ns, |network, step| network.submit(step, node, (id, operation), op));
                continue;
            }
            let (at_ns, operation_on_file) = self.storage.submit(state.local_ns, &node.mounts, op, &mut self.prng);
            let slot = self.in_flight.insert(InFlight {
                number: self.submitted,
                caller: id,
                node: state.node,
                id: operation,
                operation: operation_on_file,
            });
            self.history.record([self.now_ns, id.0 as u64, operation.0, at_ns]);
            self.queue.push(at_ns, Event::File { slot, number: self.submitted });
        }
        // The capacity is kept; nothing was queued meanwhile, for the world is not re-entered here.
        self.loops[id.0].queued = queued;
    }

    fn is_for_network(&self, op: &Op) -> bool {
        match op {
            Op::Close { id } => !self.storage.knows(*id) && self.network.knows(id.0),
            Op::Listen { .. }
            | Op::Accept { .. }
            | Op::Connect { .. }
            | Op::Receive { .. }
            | Op::Send { .. }
            | Op::Shutdown { .. } => true,
            _ => false,
        }
    }

    pub(super) fn loop_reap(&mut self, id: LoopId, outcomes: &mut Vec<(OpId, Outcome)>) {
        let state = &mut self.loops[id.0];
        if state.in_turn {
            state.local_ns += self.nodes[state.node.0].cpu.outcome_ns * state.outcomes.len() as u64;
        }
        outcomes.append(&mut state.outcomes);
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
