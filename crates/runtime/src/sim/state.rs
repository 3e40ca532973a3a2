//! The state of a world: its nodes, loops, operations in flight and the queue of what happens next.
//!
//! `now_ns` is the time of the event that is being handled; everything that happens is an event.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use base::Prng;
use slab::Slab;

use super::World;
use super::clock::Clock;
use super::disk::DiskId;
use super::events::EventQueue;
use super::loops::Loop;
use super::network::{Effects, NetEvent, Network, Step};
use super::node::{CpuOptions, NodeId};
use super::storage::{FileOp, Mounts, Storage};
use super::stream::Caller;
use crate::driver::{Op, Outcome, Payload};

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
    operations_submitted: u64,
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

struct InFlight {
    number: u64,
    caller: Caller,
    node: NodeId,
    operation: FileOp,
}

/// What becomes of an operation whose process was killed.
#[derive(Clone, Copy)]
enum Late {
    OnTime,
    Later,
    Never,
}

/// A kernel is done with the operations of a killed process after at most one of these times: seldom a long one.
const LATE_NS_MAX: [u64; 4] = [20_000_000, 20_000_000, 20_000_000, 1_000_000_000];

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
            operations_submitted: 0,
            next_resource: 1,
        }
    }

    /// Takes an operation of a loop at `at_ns`.
    pub(super) fn submit(&mut self, at_ns: u64, caller: Caller, op: Op) {
        let node = self.loops[caller.0.0].node;
        self.history.record([at_ns, caller.0.0 as u64, caller.1.0, fingerprint(&op)]);
        if self.is_for_network(&op) {
            return self.on_network(at_ns, |network, step| network.submit(step, node, caller, op));
        }
        let mounts = &self.nodes[node.0].mounts;
        let (done_ns, operation) = self.storage.submit(at_ns, mounts, op, &mut self.prng);
        self.operations_submitted += 1;
        let number = self.operations_submitted;
        let slot = self.in_flight.insert(InFlight { number, caller, node, operation });
        self.queue.push(done_ns, Event::File { slot, number });
    }

    fn is_for_network(&self, op: &Op) -> bool {
        match op {
            Op::Close { id } => !self.storage.knows(*id) && self.network.knows(id.0),
            Op::Listen { .. }
            | Op::Accept { .. }
            | Op::Connect { .. }
            | Op::Receive { .. }
            | Op::Send { .. }
            | Op::Shutdown { .. }
            | Op::Release { .. }
            | Op::Adopt { .. } => true,
            _ => false,
        }
    }

    /// Makes an operation on a file happen.
    pub(super) fn on_file(&mut self, slot: usize, number: u64) {
        if self.in_flight.get(slot).is_none_or(|in_flight| in_flight.number != number) {
            return;
        }
        let InFlight { caller, operation, .. } = self.in_flight.remove(slot);
        let outcome = self.complete(caller.0, operation);
        self.deliver(caller, outcome);
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
        self.network.links.world_ns = self.now_ns;
        let mut step =
            Step { now_ns: at_ns, prng: &mut self.prng, next_resource: &mut self.next_resource, effects: &mut effects };
        act(&mut self.network, &mut step);
        for (at_ns, event) in effects.events.drain(..) {
            self.queue.push(at_ns, Event::Net(event));
        }
        for (caller, outcome) in effects.outcomes.drain(..) {
            if let (Ok(count), Payload::Buffer(_)) = (&outcome.value, &outcome.payload) {
                let to = &mut self.loops[caller.0.0];
                to.unpaid_ns += self.nodes[to.node.0].cpu.bytes_ns(*count as usize);
            }
            self.deliver(caller, outcome);
        }
        self.effects = effects;
    }

    /// Closes the streams that were dropped on their way from one loop to another.
    pub(super) fn close_stray(&mut self) {
        if self.network.strays.is_empty() {
            return;
        }
        let now_ns = self.now_ns;
        self.on_network(now_ns, Network::close_strays);
    }

    /// Gives an outcome to its loop, if that lives.
    pub(super) fn deliver(&mut self, (to, id): Caller, outcome: Outcome) {
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

    /// The processes of a node die. What they had in flight lands in time, or late, or never: as a kernel would.
    pub(super) fn kill(&mut self, node: NodeId) {
        let plan = *self.prng.pick(&[Some(Late::OnTime), Some(Late::Later), Some(Late::Never), None]);
        for slot in self.in_flight_of(node) {
            if !self.loops[self.in_flight[slot].caller.0.0].alive {
                continue;
            }
            // Only what the device works on outlives its process; a call within the kernel is over or never was.
            if !self.storage.is_on_device(&self.in_flight[slot].operation) {
                let InFlight { caller, operation, .. } = self.in_flight.remove(slot);
                match self.prng.one_in(2) {
                    true => drop(self.complete(caller.0, operation)),
                    false => self.storage.abandon(operation),
                }
                continue;
            }
            let late = plan.unwrap_or_else(|| *self.prng.pick(&[Late::OnTime, Late::Later, Late::Never]));
            match late {
                Late::OnTime => {}
                Late::Later => {
                    let latest_ns = *self.prng.pick(&LATE_NS_MAX);
                    let at_ns = self.now_ns + self.prng.below(latest_ns);
                    self.operations_submitted += 1;
                    self.in_flight[slot].number = self.operations_submitted;
                    self.queue.push(at_ns, Event::File { slot, number: self.operations_submitted });
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
                self.storage.forget_flushes(LoopId(index), &mut self.prng);
                self.storage.close_all(LoopId(index));
                died.push(LoopId(index));
            }
        }
        let now_ns = self.now_ns;
        died.into_iter().for_each(|id| self.on_network(now_ns, |network, step| network.kill(step, id)));
    }

    /// A loop ends by itself: what it has open is closed, what it has in flight lands in time.
    pub(super) fn end_loop(&mut self, id: LoopId) {
        self.loops[id.0].die();
        self.storage.close_all(id);
        let now_ns = self.now_ns;
        self.on_network(now_ns, |network, step| network.kill(step, id));
    }

    /// A node loses its power, and with it everything that was not durable.
    pub(super) fn lose_power(&mut self, node: NodeId) {
        let mounts = self.nodes[node.0].mounts.clone();
        for slot in self.in_flight_of(node) {
            let InFlight { caller, operation, .. } = self.in_flight.remove(slot);
            if operation.is_write() {
                mounts.iter().for_each(|(_, disk)| self.storage.tear(&operation, *disk, &mut self.prng));
            } else if self.prng.one_in(2) {
                self.complete(caller.0, operation);
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

/// A number that differs where two operations do: by their kind, place and length, and a sample of their bytes.
fn fingerprint(op: &Op) -> u64 {
    let sample = |bytes: &[u8]| {
        let ends = bytes.iter().take(8).chain(bytes.iter().rev().take(8));
        ends.fold(bytes.len() as u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)))
    };
    match op {
        Op::Read { offset, len, .. } => 1 ^ offset.rotate_left(8) ^ (*len as u64),
        Op::Write { offset, data, .. } => {
            data.parts().fold(2 ^ offset.rotate_left(8), |sum, part| sum ^ sample(part).rotate_left(32))
        }
        Op::Send { data, .. } => data.iter().fold(3, |sum, part| sum ^ sample(part).rotate_left(32)),
        Op::Receive { range, .. } => 4 ^ (range.len() as u64).rotate_left(8),
        Op::Sync { .. } => 5,
        Op::Allocate { offset, len, .. } => 6 ^ offset.rotate_left(8) ^ len.rotate_left(16),
        Op::SetLen { len, .. } => 7 ^ len.rotate_left(8),
        Op::Open { .. } => 8,
        Op::Close { .. } => 9,
        _ => 10,
    }
}
