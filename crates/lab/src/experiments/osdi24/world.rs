//! One point of a figure: an agent, guests that ask it for something, and what came of it.
//!
//! The agent runs as it is shipped, with its scheduler of tenants. A *product* is what requests cost: A those of a virtual
//! machine's queue, B those of NBD. What runs is a [`Bench`]. Where it is about tenants, the agent has one loop, and its guests
//! are NBD clients on a machine whose work costs nothing; both products come in over NBD there, since only their cost matters
//! to who has to wait. Where it is about loops, guests are virtual machines ([`machines`]). The scheduler is also measured by
//! itself ([`windows`]).

mod machines;
mod windows;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use agent::{Agent, Options};
use base::{AlignedBuf, Bytes, GIB, Instant, KIB, Prng};
use policies::levels::{Enforcer, LevelsSettings};
use policies::queues::Queues;
use policies::tenants::{Cost, Dimension, Frontend, Line, Operation, Pricing, Profile, Scheduling, TenantsSettings};
use runtime::sim::{CpuOptions, NetworkOptions, NodeOptions, World};
use runtime::sync::Event;
use runtime::{Address, Class, Handle};

use super::parameters::Parameters;
use super::store::Store;
use crate::verify::nbd::{Command, Connection, Reply};

pub use self::windows::Window;

const PORT: u16 = 10809;
/// Guests that wake do so as often, whatever the requests of a point.
const ROUNDS_MIN: u64 = 2;
/// The means of queries are looked at in stretches of so long.
const STRETCH: Duration = Duration::from_millis(10);
/// Bytes of a volume: two requests rarely meet.
const VOLUME_BYTES: u64 = 64 * GIB;
/// The least that lets time pass: what requests take is charged by the store.
const LEAN: CpuOptions = CpuOptions {
    clock_ns: 20,
    submit_ns: 50,
    outcome_ns: 50,
    pool: 2,
    turn_ns: 0,
    socket_byte_ps: 0,
    file_ns: 0,
    request_ns: 0,
    service_ns: 0,
    crossing_ns: 0,
    lock_ns: 0,
};

/// What requests cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Product {
    /// Those of a virtual machine's queue.
    A,
    /// Those of a connection of the NBD protocol.
    B,
}

/// What runs at a point.
#[derive(Clone, PartialEq, Debug)]
pub enum Bench {
    /// An agent on one loop, and guests over NBD.
    Tenants,
    /// An agent on several loops, and guests with queues.
    Machines(Loops),
    /// The scheduler by itself, with so many tenants of which so many are active, one pair after the other.
    Windows(Vec<(u64, u64)>),
}

/// The loops of an agent.
#[derive(Clone, PartialEq, Debug)]
pub struct Loops {
    /// How many.
    pub count: usize,
    /// How they share the queues of virtual machines.
    pub queues: Queues,
    /// What all may send and receive together, in bytes per second, each; none: more than they can.
    pub network_bytes_per_sec: Option<u64>,
}

/// Somebody with a volume.
#[derive(Clone, PartialEq, Debug)]
pub struct Guest {
    /// What its volume is called.
    pub name: String,
    /// What it is promised in operations per second; none: an equal share of what nobody was promised.
    pub base_iops: Option<u64>,
    /// Sizes of its requests, each as often.
    pub sizes_kib: Vec<u64>,
    /// Requests that it has in flight.
    pub depth: usize,
    /// Of a virtual machine, those in each of its queues.
    pub queue_depths: Vec<usize>,
    /// Sleeps, and wakes to ask for so many in a second; none: asks for the next as soon as one is answered.
    pub wakes_for: Option<u64>,
    /// The most that it gets in operations per second; none: what there is.
    pub burst_iops: Option<u64>,
    /// Is a database, with so many threads as it has requests in flight.
    pub database: Option<Database>,
    /// Asks for a while and then sleeps for a while, so long on average each, in microseconds; none: always asks.
    pub pauses_us: Option<u64>,
}

/// What each thread of a database does for a query: it computes, and then asks for one block after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Database {
    /// How long it computes, in microseconds, on a processor that the agent has no part of.
    pub compute_us: u64,
    /// Blocks of a query.
    pub blocks: u64,
    /// How many of a hundred are read; the others are written.
    pub read_percent: u64,
}

/// How an agent is set up and what it is asked for.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// What the figure calls it.
    pub label: String,
    /// What runs.
    pub bench: Bench,
    /// Everything else.
    pub parameters: Parameters,
    /// What requests cost.
    pub product: Product,
    /// Whether all are writes; otherwise all are reads.
    pub is_write: bool,
    /// Who may keep whom waiting.
    pub scheduling: Scheduling,
    /// Whether who comes back may take from others and from the reserve.
    pub recovers: bool,
    /// Whether cost follows delay.
    pub adjusts: bool,
    /// Whether cost follows measured processor time.
    pub measures: bool,
    /// How requests are priced.
    pub pricing: Pricing,
    /// How many times what the profile says requests take.
    pub misestimated: f64,
    /// Who asks.
    pub guests: Vec<Guest>,
    /// Requests of all of them.
    pub requests: u64,
    /// Everything random.
    pub seed: u64,
}

/// What came of one guest's requests.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Asked {
    /// How many were answered.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From asking to the answer, all together.
    pub latency_ns: u64,
    /// Queries of a database.
    pub queries: u64,
    /// What they took, all together.
    pub query_ns: u64,
    /// The highest mean of queries that ended in the same stretch of [`STRETCH`].
    pub worst_query_ns: u64,
    /// Those that had to wait because nothing was left for them.
    pub throttled: u64,
}

impl Asked {
    fn since(self, before: Asked) -> Asked {
        Asked {
            requests: self.requests - before.requests,
            bytes: self.bytes - before.bytes,
            latency_ns: self.latency_ns - before.latency_ns,
            queries: self.queries - before.queries,
            query_ns: self.query_ns - before.query_ns,
            worst_query_ns: self.worst_query_ns,
            throttled: self.throttled - before.throttled,
        }
    }

    /// The mean, in microseconds; not a number where nothing was answered.
    pub fn latency_us(&self) -> f64 {
        self.latency_ns as f64 / self.requests as f64 / 1e3
    }

    /// The mean of a query, in microseconds; not a number where none ended.
    pub fn query_us(&self) -> f64 {
        self.query_ns as f64 / self.queries as f64 / 1e3
    }
}

/// What came of a point.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Measured {
    /// By guest.
    pub guests: Vec<Asked>,
    /// How long it took.
    pub seconds: f64,
    /// Requests of virtual machines that each loop began.
    pub by_loop: Vec<u64>,
    /// What the scheduler took by itself.
    pub windows: Vec<Window>,
}

impl Measured {
    /// One guest's requests; nothing of a point that was not measured.
    pub fn guest(&self, number: usize) -> Asked {
        self.guests.get(number).copied().unwrap_or_default()
    }

    /// Requests per second of all guests, in thousands.
    pub fn kiops(&self) -> f64 {
        self.guests.iter().map(|guest| guest.requests).sum::<u64>() as f64 / self.seconds / 1e3
    }

    /// Bytes per second of all guests.
    pub fn throughput(&self) -> f64 {
        self.guests.iter().map(|guest| guest.bytes).sum::<u64>() as f64 / self.seconds
    }
}

impl Point {
    /// Runs it. `clock` is the time that has passed, for what is measured in real time.
    ///
    /// # Panics
    /// The agent does not answer.
    pub fn measure(&self, clock: &dyn Fn() -> Duration) -> Measured {
        match &self.bench {
            Bench::Tenants => self.measure_tenants(),
            Bench::Machines(loops) => machines::measure(self, loops),
            Bench::Windows(sizes) => {
                let windows = sizes.iter().map(|&(known, active)| windows::measure(known, active, clock)).collect();
                Measured { windows, ..Measured::default() }
            }
        }
    }

    fn measure_tenants(&self) -> Measured {
        let world = World::new(self.seed);
        world.set_network(NetworkOptions {
            delay: Duration::from_nanos(self.parameters.hop_ns),
            jitter_percent: 0,
            split_one_in: 0,
            pipe_bytes: 4 << 20,
            transfer_bytes_per_sec: 1_000_000_000_000,
            ..NetworkOptions::default()
        });
        let idle = CpuOptions { clock_ns: 1, submit_ns: 1, outcome_ns: 1, ..CpuOptions::default() };
        let [host, outside] = [LEAN, idle].map(|cpu| world.add_node(NodeOptions { cpu, ..NodeOptions::default() }));
        let [handle, machine] = [host, outside].map(|node| world.start_loop(node));
        let store = self.store(&handle);
        let agent = Agent::new(&handle, store.clone(), store, self.options(), 1);
        let address = Address::Tcp((world.address(host), PORT).into());
        let (inside, at) = (handle.clone(), address.clone());
        let listener = world.block_on(&handle, async move { inside.listen(&at).await });
        agent.serve(listener.unwrap_or_else(|error| panic!("a simulated machine has a free port: {error}")));
        let progress: Vec<Rc<Progress>> = self.guests.iter().map(|_| Rc::default()).collect();
        for (number, (guest, progress)) in self.guests.iter().zip(&progress).enumerate() {
            let load = Load {
                guest: guest.clone(),
                parameters: self.parameters.clone(),
                command: if self.is_write { Command::Write } else { Command::Read },
                seed: self.seed << 8 | number as u64,
                progress: progress.clone(),
            };
            machine.spawn(Class::Io, "guest", load.run(machine.clone(), address.clone())).detach();
        }
        self.observe(&world, &handle, &agent, &progress, Duration::from_micros(self.parameters.warm_up_us))
    }

    /// What comes of the guests after a warm-up.
    fn observe(
        &self,
        world: &World,
        handle: &Handle,
        agent: &Agent,
        progress: &[Rc<Progress>],
        warm_up: Duration,
    ) -> Measured {
        world.run_for(warm_up);
        progress.iter().for_each(|one| one.forget_stretches());
        let (before, begun_before) = (self.asked(world, handle, agent, progress), agent.guest_requests());
        let begun = world.now();
        let of_all = || progress.iter().map(|one| one.asked.borrow().requests).sum::<u64>();
        let wanted = of_all() + self.requests;
        let is_awake = |at: usize| self.guests[at].wakes_for.is_none() || progress[at].rounds.get() >= ROUNDS_MIN;
        world.run_until(|| of_all() >= wanted && (0..progress.len()).all(is_awake));
        let seconds = world.now().since(begun).as_secs_f64();
        let by_loop = agent.guest_requests().into_iter().zip(begun_before).map(|(after, before)| after - before);
        let by_loop = by_loop.collect();
        let after = self.asked(world, handle, agent, progress);
        let books = agent.audit_tenants()();
        assert!(books.is_ok(), "the books of the scheduler: {books:?}");
        let guests = after.into_iter().zip(before).map(|(after, before)| after.since(before)).collect();
        Measured { guests, seconds, by_loop, windows: Vec::new() }
    }

    /// The store on the loop of `handle`, with the guests' volumes.
    fn store(&self, handle: &Handle) -> Rc<Store> {
        let takes = [Operation::Read, Operation::Write].map(|operation| {
            let Line { fixed_ns, per_byte_ns } = self.line(operation);
            Line { fixed_ns: fixed_ns * self.misestimated, per_byte_ns: per_byte_ns * self.misestimated }
        });
        let store = Store::new(handle, Duration::from_nanos(self.parameters.store_ns), takes);
        for guest in &self.guests {
            store.add_volume(&guest.name, VOLUME_BYTES, guest.base_iops, guest.burst_iops);
        }
        store
    }

    /// How its agent is set up.
    fn options(&self) -> Options {
        // What is measured is the scheduler of tenants: no volume is held to a level, but where that is what a figure is about.
        let is_held = self.guests.iter().any(|guest| guest.burst_iops.is_some());
        let enforcer = if is_held { Enforcer::Agent } else { Enforcer::Server };
        let levels = LevelsSettings { enforcer, ..LevelsSettings::default() };
        Options { tenants: self.settings(), levels, ..Options::default() }
    }

    fn asked(&self, world: &World, handle: &Handle, agent: &Agent, progress: &[Rc<Progress>]) -> Vec<Asked> {
        let agent = agent.clone();
        let tenants = world.block_on(handle, async move { agent.tenants().await });
        let of = |(guest, progress): (&Guest, &Rc<Progress>)| {
            let tenant = tenants.iter().find(|tenant| tenant.name == guest.name);
            Asked { throttled: tenant.map_or(0, |tenant| tenant.throttled), ..*progress.asked.borrow() }
        };
        self.guests.iter().zip(progress).map(of).collect()
    }

    /// What requests took of the loop's processor, all together, as they are charged.
    pub(super) fn processor_ns(&self, asked: Asked) -> f64 {
        let line = self.line(if self.is_write { Operation::Write } else { Operation::Read });
        (line.fixed_ns * asked.requests as f64 + line.per_byte_ns * asked.bytes as f64) * self.misestimated
    }

    /// What a request of this product is said to take.
    fn line(&self, operation: Operation) -> Line {
        let p = &self.parameters;
        let (fixed_ns, byte_ps) = match (self.product, operation) {
            (Product::A, Operation::Read) => (p.a_read_ns, p.a_read_byte_ps),
            (Product::A, _) => (p.a_write_ns, p.a_write_byte_ps),
            (Product::B, Operation::Read) => (p.b_read_ns, p.b_read_byte_ps),
            (Product::B, _) => (p.b_write_ns, p.b_write_byte_ps),
        };
        Line { fixed_ns: fixed_ns as f64, per_byte_ns: byte_ps as f64 / 1e3 }
    }

    fn settings(&self) -> TenantsSettings {
        let parameters = &self.parameters;
        let mut profile = Profile::default();
        for frontend in [Frontend::Nbd, Frontend::VhostUser] {
            for operation in [Operation::Read, Operation::Write] {
                profile.set(frontend, operation, self.line(operation));
            }
        }
        let mut per_second = TenantsSettings::default().per_second;
        match &self.bench {
            Bench::Machines(loops) => {
                for dimension in [Dimension::Ingress, Dimension::Egress] {
                    let rate = loops.network_bytes_per_sec.map(|rate| rate as f64);
                    per_second.set(dimension, rate.unwrap_or(per_second.of(dimension)));
                }
            }
            _ => {
                let network = parameters.network_bytes_per_sec as f64;
                per_second = Cost([1e9, network, network, parameters.software_bytes_per_sec as f64]);
            }
        }
        TenantsSettings {
            scheduling: self.scheduling,
            window: Duration::from_micros(parameters.window_us),
            alpha: parameters.alpha,
            weight_throttle: parameters.weight_throttle,
            reserve: parameters.reserve,
            recovers: self.recovers,
            pricing: self.pricing,
            adjusts: self.adjusts,
            measures: self.measures,
            profile,
            per_second,
        }
    }
}

/// How far a guest is.
#[derive(Default)]
struct Progress {
    asked: RefCell<Asked>,
    /// How often it has been awake.
    rounds: Cell<u64>,
    /// The stretch that queries end in now: which one it is, how many, and what they took.
    stretch: Cell<(u64, u64, u64)>,
}

impl Progress {
    fn on_query(&self, took_ns: u64, now: Instant) {
        let mut asked = self.asked.borrow_mut();
        (asked.queries, asked.query_ns) = (asked.queries + 1, asked.query_ns + took_ns);
        let number = now.0 / STRETCH.as_nanos() as u64;
        let (stretch, queries, sum_ns) = match self.stretch.get() {
            (stretch, queries, sum_ns) if stretch == number => (number, queries + 1, sum_ns + took_ns),
            _ => (number, 1, took_ns),
        };
        self.stretch.set((stretch, queries, sum_ns));
        asked.worst_query_ns = asked.worst_query_ns.max(sum_ns / queries);
    }

    fn forget_stretches(&self) {
        self.stretch.take();
        self.asked.borrow_mut().worst_query_ns = 0;
    }
}

/// What a guest asks for.
struct Load {
    guest: Guest,
    parameters: Parameters,
    command: Command,
    seed: u64,
    progress: Rc<Progress>,
}

impl Load {
    /// Connects, and asks for ever.
    async fn run(self, handle: Handle, address: Address) {
        let mut connections = Vec::new();
        for _ in 0..self.guest.depth.div_ceil(self.parameters.queue_depth) {
            let connection = Connection::attach(&handle, &address, &self.guest.name).await;
            connections.push(connection.unwrap_or_else(|gone| panic!("an agent without accidents answers: {gone:?}")));
        }
        let awake = self.guest.pauses_us.map(|mean_us| self.wake_and_sleep(&handle, mean_us));
        let worker = |number: usize| Worker {
            handle: handle.clone(),
            connection: connections[number % connections.len()].clone(),
            command: self.command,
            sizes_kib: self.guest.sizes_kib.clone(),
            data: payload(&self.guest.sizes_kib),
            awake: awake.clone(),
            prng: Prng::new(self.seed << 16 | number as u64),
            progress: self.progress.clone(),
        };
        let workers = (0..self.guest.depth).map(worker);
        let Some(rate) = self.guest.wakes_for else {
            for mut worker in workers {
                let database = self.guest.database;
                let asking = async move {
                    loop {
                        worker.wait_until_awake().await;
                        match database {
                            Some(database) => worker.query(database).await,
                            None => worker.ask(worker.command).await,
                        }
                    }
                };
                handle.spawn(Class::Io, "guest's request", asking).detach();
            }
            return;
        };
        let mut workers: Vec<Worker> = workers.collect();
        handle.sleep(Duration::from_micros(self.parameters.warm_up_us)).await;
        let (awake, depth) = (Duration::from_micros(self.parameters.awake_us), self.guest.depth as u64);
        loop {
            handle.sleep(Duration::from_micros(self.parameters.asleep_us)).await;
            let begins = handle.now();
            let ends = begins + awake;
            let round = workers.into_iter().enumerate().map(|(number, mut worker)| {
                let mut due = begins + Duration::from_nanos(number as u64 * 1_000_000_000 / rate);
                let every = Duration::from_nanos(depth * 1_000_000_000 / rate);
                let asking = async move {
                    while due < ends {
                        worker.handle.sleep_until(due).await;
                        worker.ask(worker.command).await;
                        due = (due + every).max(worker.handle.now());
                    }
                    worker
                };
                handle.spawn(Class::Io, "guest's request", asking)
            });
            let round: Vec<_> = round.collect();
            workers = Vec::new();
            for asking in round {
                workers.push(asking.await);
            }
            self.progress.rounds.set(self.progress.rounds.get() + 1);
        }
    }
}

impl Load {
    /// Is awake and asleep in turns; the lengths are drawn anew each time.
    fn wake_and_sleep(&self, handle: &Handle, mean_us: u64) -> Rc<Awake> {
        let awake: Rc<Awake> = Rc::default();
        let (turning, inside, mut prng) = (awake.clone(), handle.clone(), Prng::new(self.seed ^ 0x5eed));
        let turn = async move {
            loop {
                // Lengths of an exponential distribution.
                let drawn = (prng.below(1 << 20) + 1) as f64 / (1 << 20) as f64;
                inside.sleep(Duration::from_micros((-drawn.ln() * mean_us as f64) as u64)).await;
                turning.is_asleep.set(!turning.is_asleep.get());
                turning.changed.notify();
            }
        };
        handle.spawn(Class::Io, "guest's pauses", turn).detach();
        awake
    }
}

/// Whether a guest with pauses asks now.
#[derive(Default)]
struct Awake {
    is_asleep: Cell<bool>,
    changed: Event,
}

/// What writes write: nobody looks at it.
fn payload(sizes_kib: &[u64]) -> Bytes {
    let largest = sizes_kib.iter().max().copied().unwrap_or(0) * KIB;
    AlignedBuf::zeroed(largest as usize).freeze()
}

/// One of the requests that a guest has in flight.
struct Worker {
    handle: Handle,
    connection: Rc<Connection>,
    command: Command,
    sizes_kib: Vec<u64>,
    data: Bytes,
    awake: Option<Rc<Awake>>,
    prng: Prng,
    progress: Rc<Progress>,
}

impl Worker {
    async fn wait_until_awake(&self) {
        while let Some(awake) = &self.awake {
            let changed = awake.changed.wait();
            if !awake.is_asleep.get() {
                return;
            }
            changed.await;
        }
    }

    async fn query(&mut self, database: Database) {
        let since = self.handle.now();
        self.handle.sleep(Duration::from_micros(database.compute_us)).await;
        for _ in 0..database.blocks {
            let is_read = self.prng.below(100) < database.read_percent;
            self.ask(if is_read { Command::Read } else { Command::Write }).await;
        }
        let now = self.handle.now();
        self.progress.on_query(now.nanos_since(since), now);
    }

    async fn ask(&mut self, command: Command) {
        let bytes = self.sizes_kib[self.prng.below(self.sizes_kib.len() as u64) as usize] * KIB;
        // At most 1 MiB, and in one piece of the volume's layout.
        let place = self.prng.below(VOLUME_BYTES / bytes.next_power_of_two()) * bytes.next_power_of_two();
        let data = if command == Command::Write { self.data.slice(..bytes as usize) } else { Bytes::new() };
        let since = self.handle.now();
        let outcome = self.connection.ask(command, 0, place, bytes as u32, data).await;
        assert!(matches!(outcome, Ok(Reply::Done(_))), "a request without accidents: {outcome:?}");
        let mut asked = self.progress.asked.borrow_mut();
        asked.requests += 1;
        asked.bytes += bytes;
        asked.latency_ns += self.handle.now().nanos_since(since);
    }
}
