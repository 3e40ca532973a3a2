//! The simulated world behind [`crate::driver::Driver`]: the same code as in production, on virtual time, disks that
//! tear and lie, and clocks that drift.
//!
//! **Intuition.** A [`World`] is a queue of events ordered by virtual time, and one generator of random numbers.
//! Stepping the world takes the next event and lets it happen: a loop has its turn, an operation takes effect on a
//! disk, the test does something. Nothing happens by itself, no thread runs, no clock is read; so one seed gives one
//! history, on every machine. A test that fails prints its seed; running that seed again fails in the same way.
//!
//! **Names.** A *node* is a machine with one process: disks mounted at paths, a clock, *loops* (executors, each with
//! its [`Handle`]). A *disk* holds directories and files with two views of them, present and durable.
//! A *kill* ends the process: direct writes that it had in flight may land later, as a kernel would do it, and the
//! lock of a file comes free when they have. A *power loss* ends the machine: what was not durable survives or not,
//! sector by sector, name by name. [`SimDisk`] is the test's hand on a disk: faults, rot, a full disk, a pulled one.
//!
//! **Flow.** `World::block_on` spawns a future on a loop and steps until it is done. In a loop's turn, tasks submit
//! operations. `storage` gives one on a file a duration by the disk's model of time and queues its completion; at
//! that time it takes effect in one step, and the outcome waits for the loop's next turn. `network` and `stream` do
//! the same for sockets, packet by packet. The loop's own time runs ahead during a turn, by what its work costs.
//!
//! **Limits.** Events are atomic: a read in flight sees a write in flight either wholly or not. A sector of 512 bytes
//! never tears. Memory for the page cache of a file that is not opened with O_DIRECT never runs out, and reading it
//! takes as long as reading the disk. Loops of one node do not compete for processors. There are no links, no
//! permissions, and no special files: a Unix socket has an address, and no name in a directory.
//!
//! ```
//! use std::path::Path;
//! use base::Bytes;
//! use runtime::OpenOptions;
//! use runtime::sim::{NodeOptions, World};
//!
//! let world = World::new(42);
//! let node = world.add_node(NodeOptions::default());
//! let handle = world.start_loop(node);
//! let inside = handle.clone();
//! world.block_on(&handle, async move {
//!     let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
//!     let file = inside.open(Path::new("/disk/journal"), options).await?;
//!     file.write_at(0, Bytes::from_static(b"levee")).await?;
//!     file.sync().await?;
//!     inside.sync_directory(Path::new("/disk")).await
//! }).unwrap();
//! world.power_loss(node);
//! assert_eq!(world.disk(node, "/disk").content("journal"), b"levee");
//! ```

mod clock;
mod content;
mod disk;
mod driver;
mod errno;
mod events;
mod links;
mod loops;
mod namespace;
mod network;
mod node;
mod state;
mod storage;
mod stream;
mod tamper;

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base::{Instant, Prng};
use policies::loop_schedule::LoopSettings;

pub use self::disk::{DiskCounters, DiskOptions, Fault, FaultPlan};
pub use self::links::NetworkOptions;
pub use self::node::{CpuOptions, NodeId, NodeOptions};
pub use self::tamper::{DiskSnapshot, SimDisk};

use self::disk::Disk;
use self::driver::{SimDriver, Unparker};
use self::network::{Network, Step};
use self::state::{Event, LoopId, Node, State};
use crate::executor::Executor;
use crate::{Class, Handle};

/// How long a `block_on` may take in virtual time before the world takes it for stuck.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Runs one piece of code on one loop of a fresh world with one node and one disk at `/disk`.
///
/// # Panics
/// As [`World::block_on`].
pub fn run<T: 'static, F: Future<Output = T> + 'static>(seed: u64, act: impl FnOnce(Handle) -> F) -> T {
    let world = World::new(seed);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    world.block_on(&handle, act(handle.clone()))
}

/// A deterministic world. Cheap to clone; clones are the same world. It ends, and its loops with it, when the last
/// clone is dropped: so do not keep one within a task, which would keep the world alive for ever.
#[derive(Clone)]
pub struct World(Rc<Inner>);

struct Inner {
    seed: u64,
    state: Rc<RefCell<State>>,
    /// The loops by number; `None` once killed.
    handles: RefCell<Vec<Option<Handle>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the simulated world had seed {} and stopped at {} ns", self.seed, self.state.borrow().now_ns);
        }
        for handle in std::mem::take(&mut *self.handles.borrow_mut()).into_iter().flatten() {
            handle.0.kill();
        }
        // Events may hold clones of the state's owner or of tasks' values: they go while the state can be borrowed.
        while let Some(event) = { self.state.borrow_mut().queue.pop() } {
            drop(event);
        }
    }
}

/// Building a world, and looking at it.
impl World {
    /// A world without nodes, in which everything random depends on `seed`.
    pub fn new(seed: u64) -> World {
        World(Rc::new(Inner { seed, state: Rc::new(RefCell::new(State::new(seed))), handles: RefCell::default() }))
    }

    /// The seed that it was made with.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// The world's own time, which no node's clock shows.
    pub fn now(&self) -> Instant {
        Instant(self.0.state.borrow().now_ns)
    }

    /// A hash over every operation and outcome so far, with their times. Two runs of one seed have the same.
    pub fn history_hash(&self) -> u64 {
        self.0.state.borrow().history.0
    }

    /// Operations that completed so far, in the whole world.
    pub fn operations_done(&self) -> u64 {
        self.0.state.borrow().operations_done
    }

    /// 64 random bits from the world's seed, for choices that a test makes.
    pub fn random_u64(&self) -> u64 {
        self.0.state.borrow_mut().prng.next_u64()
    }

    /// A generator of its own for a test, seeded by the world.
    pub fn fork_prng(&self) -> Prng {
        self.0.state.borrow_mut().prng.fork()
    }

    /// Adds a node, with its disks. It runs nothing yet.
    pub fn add_node(&self, options: NodeOptions) -> NodeId {
        let mut state = self.0.state.borrow_mut();
        let mut mounts = Vec::new();
        for (path, disk) in &options.disks {
            assert!(path.is_absolute(), "a disk is mounted at an absolute path, not at {}", path.display());
            mounts.push((path.clone(), state.storage.add_disk(Disk::new(disk.clone()))));
        }
        state.nodes.push(Node::new(&options, mounts));
        state.network.links.add_node(options.addresses);
        NodeId(state.nodes.len() - 1)
    }

    /// Starts a loop in the process of `node`, which must have power.
    pub fn start_loop(&self, node: NodeId) -> Handle {
        self.start_loop_with(node, LoopSettings::default())
    }

    /// Starts a loop with other settings than the usual ones.
    pub fn start_loop_with(&self, node: NodeId, settings: LoopSettings) -> Handle {
        let state = self.0.state.clone();
        let (id, unparker) = {
            let mut state = state.borrow_mut();
            assert!(state.nodes[node.0].has_power, "a node without power starts nothing: restart it");
            let unparker = Arc::new(Unparker::new(state.any_woken.clone()));
            (state.add_loop(node, unparker.clone()), unparker)
        };
        let handle = Executor::start(Rc::new(SimDriver { state, id, unparker }), settings);
        self.0.handles.borrow_mut().push(Some(handle.clone()));
        handle
    }
}

/// Letting time pass.
impl World {
    /// Runs `future` on the loop of `handle` and steps the world until it is done.
    ///
    /// # Panics
    /// With the seed: if nothing is left to happen, if the loop is killed meanwhile, or after an hour of virtual time.
    pub fn block_on<T: 'static>(&self, handle: &Handle, future: impl Future<Output = T> + 'static) -> T {
        let result = Rc::new(RefCell::new(None));
        let slot = result.clone();
        let task = handle.spawn(Class::Io, "block_on", async move {
            let value = future.await;
            *slot.borrow_mut() = Some(value);
        });
        self.run_until(|| result.borrow().is_some() || handle.0.is_dead());
        drop(task);
        let value = result.borrow_mut().take();
        value.unwrap_or_else(|| panic!("seed {}: the loop died before the future was done", self.0.seed))
    }

    /// Steps the world until `done` says so; it is asked after each event.
    ///
    /// # Panics
    /// With the seed: if nothing is left to happen, or after an hour of virtual time.
    pub fn run_until(&self, mut done: impl FnMut() -> bool) {
        let limit = self.now() + PATIENCE;
        self.0.state.borrow_mut().turn_all();
        while !done() {
            assert!(self.step(), "seed {}: deadlock: nothing is left to happen at {:?}", self.0.seed, self.now());
            assert!(self.now() < limit, "seed {}: still not done after {PATIENCE:?} of virtual time", self.0.seed);
        }
    }

    /// Lets `span` pass.
    pub fn run_for(&self, span: Duration) {
        let end = self.now() + span;
        self.0.state.borrow_mut().turn_all();
        while self.0.state.borrow().queue.next_at().is_some_and(|at_ns| at_ns <= end.0) {
            self.step();
        }
        self.0.state.borrow_mut().now_ns = end.0;
    }

    /// Calls `act` after `span`: the way to let something go wrong in the middle of things.
    pub fn after(&self, span: Duration, act: impl FnOnce(&World) + 'static) {
        let mut state = self.0.state.borrow_mut();
        let at = Instant(state.now_ns) + span;
        state.queue.push(at.0, Event::Call(Box::new(act)));
    }

    /// Lets the next event happen; false if there is none.
    pub fn step(&self) -> bool {
        let next = self.0.state.borrow_mut().queue.pop();
        let Some((at_ns, event)) = next else { return false };
        {
            let mut state = self.0.state.borrow_mut();
            assert!(at_ns >= state.now_ns, "time does not run backwards");
            state.now_ns = at_ns;
        }
        let mut speaking = None;
        match event {
            Event::Turn(id) => {
                speaking = Some(id);
                self.turn(id);
            }
            Event::File { slot, number } => self.0.state.borrow_mut().on_file(slot, number),
            Event::Net(event) => {
                self.0.state.borrow_mut().on_network(at_ns, |network, step| network.on_event(step, event));
            }
            Event::Job(id, job) => {
                if self.0.state.borrow().loops[id.0].alive {
                    job();
                }
            }
            Event::Call(act) => {
                act(self);
                self.0.state.borrow_mut().turn_all();
            }
        }
        let mut state = self.0.state.borrow_mut();
        state.turn_woken(speaking);
        state.close_stray();
        drop(state);
        true
    }

    fn turn(&self, id: LoopId) {
        if !self.0.state.borrow_mut().start_turn(id) {
            return;
        }
        let handle = self.0.handles.borrow()[id.0].clone();
        let end = handle.expect("a live loop has a handle").0.turn(false);
        self.0.state.borrow_mut().end_turn(id, end.wait);
    }
}

/// What goes wrong with machines, and with their clocks.
impl World {
    /// Kills the process of `node` (as `kill -9` does): its loops do nothing more, then their tasks are dropped.
    /// Writes in flight land in time, late (within 20 ms) or never. Not to be called from within a task: use
    /// [`World::after`].
    pub fn kill(&self, node: NodeId) {
        self.0.state.borrow_mut().kill(node);
        self.drop_loops(node);
    }

    /// The machine loses its power: its process dies, and of what was not synced each sector and each change of a
    /// name survives or vanishes at random. Not to be called from within a task: use [`World::after`].
    pub fn power_loss(&self, node: NodeId) {
        self.0.state.borrow_mut().lose_power(node);
        self.drop_loops(node);
    }

    /// Gives a node its power back, kills what still runs there, and starts a fresh loop on the same disks.
    pub fn restart(&self, node: NodeId) -> Handle {
        self.kill(node);
        self.0.state.borrow_mut().give_power(node);
        self.start_loop(node)
    }

    /// The first IP address of a node.
    pub fn address(&self, node: NodeId) -> IpAddr {
        self.0.state.borrow().network.links.address(node)
    }

    /// Replaces what the network is like, for what happens from now on.
    pub fn set_network(&self, options: NetworkOptions) {
        assert!(options.pipe_bytes > 0 && options.transfer_bytes_per_sec > 0, "a network carries something");
        self.0.state.borrow_mut().network.links.options = options;
    }

    /// Gives a node a network card that carries so many bytes in a second each way, of all its links together, or takes it away
    /// again: without one links know nothing of each other.
    pub fn set_card(&self, node: NodeId, bytes_per_sec: Option<u64>) {
        assert!(bytes_per_sec != Some(0), "a card carries something");
        self.0.state.borrow_mut().network.links.set_card(node, bytes_per_sec);
    }

    /// Lets everything that `from` sends to `to` take so much longer.
    pub fn set_extra_delay(&self, from: NodeId, to: NodeId, delay: Duration) {
        self.0.state.borrow_mut().network.links.set_extra_delay(from, to, delay);
    }

    /// Cuts the link from `from` to `to`, in this direction only. What is sent waits until it is mended.
    pub fn cut_link(&self, from: NodeId, to: NodeId) {
        self.on_network(|network, step| network.set_cut(step, from, to, true));
    }

    /// Mends the link from `from` to `to`.
    pub fn mend_link(&self, from: NodeId, to: NodeId) {
        self.on_network(|network, step| network.set_cut(step, from, to, false));
    }

    /// Cuts both links between two nodes.
    pub fn partition(&self, a: NodeId, b: NodeId) {
        self.cut_link(a, b);
        self.cut_link(b, a);
    }

    /// Mends both links between two nodes.
    pub fn heal(&self, a: NodeId, b: NodeId) {
        self.mend_link(a, b);
        self.mend_link(b, a);
    }

    /// How the link from `from` to `to` is, for what is simulated above the network.
    pub fn link(&self, from: NodeId, to: NodeId) -> Link {
        Link { state: self.0.state.clone(), from, to }
    }

    /// Resets all connections between two nodes; both sides get errors.
    pub fn reset_connections(&self, a: NodeId, b: NodeId) {
        self.on_network(|network, step| network.reset(step, a, b));
    }

    fn on_network(&self, act: impl FnOnce(&mut Network, &mut Step<'_>)) {
        let mut state = self.0.state.borrow_mut();
        let now_ns = state.now_ns;
        state.on_network(now_ns, act);
    }

    /// From now on the clock of `node` gains `drift_ppm` millionths.
    pub fn set_clock_drift(&self, node: NodeId, drift_ppm: i64) {
        self.on_clock(node, |clock, now_ns| clock.set_drift(now_ns, drift_ppm));
    }

    /// The clock of `node` jumps forwards, as after a pause of its virtual machine.
    pub fn jump_clock(&self, node: NodeId, span: Duration) {
        self.on_clock(node, |clock, _| clock.jump(span.as_nanos() as u64));
    }

    /// Sets the calendar of `node` off by so many milliseconds.
    pub fn set_wall_offset(&self, node: NodeId, wall_offset_ms: i64) {
        self.on_clock(node, |clock, _| clock.set_wall_offset(wall_offset_ms));
    }

    fn on_clock(&self, node: NodeId, change: impl FnOnce(&mut clock::Clock, u64)) {
        let mut state = self.0.state.borrow_mut();
        let now_ns = state.now_ns;
        change(&mut state.nodes[node.0].clock, now_ns);
        // Their timers are due at other times of the world now.
        state.turn_all();
    }

    /// The driver is dead by now: only then are the tasks dropped.
    /// A loop has come to its end: what it still had is dropped.
    fn end_loop(&self, id: LoopId) {
        let ended = self.0.handles.borrow_mut()[id.0].take();
        if let Some(handle) = ended {
            handle.0.kill();
            self.0.state.borrow_mut().end_loop(id);
        }
    }

    fn drop_loops(&self, node: NodeId) {
        let dead: Vec<Handle> = {
            let state = self.0.state.borrow();
            let mut handles = self.0.handles.borrow_mut();
            let on_node = state.loops.iter().zip(handles.iter_mut()).filter(|(of, _)| of.node == node);
            on_node.filter_map(|(_, handle)| handle.take()).collect()
        };
        dead.into_iter().for_each(|handle| handle.0.kill());
    }
}

/// A link between two nodes, in one direction, as it is whenever somebody asks. It may be kept within a task.
#[derive(Clone)]
pub struct Link {
    state: Rc<RefCell<State>>,
    from: NodeId,
    to: NodeId,
}

impl Link {
    /// How long a small packet would travel now; none: the link is cut.
    pub fn delay(&self) -> Option<Duration> {
        let state = &mut *self.state.borrow_mut();
        let links = &state.network.links;
        let is_cut = links.is_cut(self.from, self.to);
        (!is_cut).then(|| Duration::from_nanos(links.delay(self.from, self.to, &mut state.prng)))
    }
}

#[cfg(test)]
mod tests;
