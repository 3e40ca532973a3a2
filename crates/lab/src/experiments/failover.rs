//! One of many servers dies: when is each of its segments served again?
//!
//! The roles run as their commands start them (`node::cluster`), each on a machine of the simulated world, and pay for
//! their processor as in [`super::scaling`]. Every volume has a client, which writes to one of its segments after the
//! other. A server's machine is killed; of each segment the time counts until a write was answered that began after that.
//!
//! Every parameter stands in `parameters/failover.toml`, with its reason.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use base::limits::{DATA_SECTOR_DEFAULT, SEGMENTS_PER_GROUP};
use base::{AlignedBuf, Error, GIB, Instant, MIB, Prng, Result};
use control::cluster::ClusterManager;
use control::service::{CreateVolume, Request};
use node::Settings;
use node::cluster::agent::AgentRole;
use node::cluster::manager::ManagerRole;
use node::cluster::server::ServerRole;
use node::settings::{ApiSettings, EngineSettings, NbdSettings};
use node::shared_files::{SharedFiles, SharedFilesOptions};
use runtime::sim::{CpuOptions, DiskOptions, NetworkOptions, NodeId, NodeOptions, World};
use runtime::{Address, Class, Handle};
use serde::Deserialize;
use wire::api::Size;

use super::scaling::Charges;
use crate::verify::nbd::{Command, Connection, Reply};

const FILE: &str = include_str!("../../parameters/failover.toml");
const PORT: u16 = 7000;
const NBD_PORT: u16 = 10809;
/// Loops of the clients' machine: they cost next to nothing.
const CLIENT_LOOPS: usize = 8;

/// What a run depends on. The file explains each.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "parameters/failover.toml explains each")]
pub struct Failover {
    pub servers: usize,
    pub managers: usize,
    pub agents: usize,
    pub volumes: usize,
    pub request_bytes: u32,
    pub rows: u64,
    pub pause_us: u64,
    pub warm_up_us: u64,
    pub watched_us: u64,
    pub disks: usize,
    pub network_bytes_per_sec: u64,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Resumed {
    /// Segments that the server had.
    pub lost: usize,
    /// When each segment served again, shortest first; of those of living servers, too.
    pub after: Vec<Duration>,
    /// Segments that did not serve again while it was watched.
    pub never: usize,
}

/// The machines of a run.
struct Machines {
    world: World,
    settings: Failover,
    store: NodeId,
    managers: Vec<NodeId>,
    servers: Vec<NodeId>,
    agents: Vec<NodeId>,
    clients: NodeId,
}

/// When what was killed, and when each segment served after that.
struct Seen {
    killed: Cell<Option<Instant>>,
    served: RefCell<Vec<Option<Duration>>>,
}

impl Failover {
    /// Those of the file.
    ///
    /// # Errors
    /// `Invalid`: only in a build with a broken file.
    pub fn from_file() -> Result<Failover> {
        Self::parse(FILE)
    }

    /// Those of a text like it.
    ///
    /// # Errors
    /// `Invalid`: one is missing, unknown, or no number.
    pub fn parse(text: &str) -> Result<Failover> {
        toml::from_str(text).map_err(|error| Error::invalid(error.to_string()))
    }

    /// One run.
    ///
    /// # Panics
    /// Something does not start, or a client meets an error.
    pub fn measure(&self, seed: u64) -> Resumed {
        let world = World::new(seed);
        world.set_network(NetworkOptions {
            split_one_in: 0,
            pipe_bytes: 1 << 20,
            transfer_bytes_per_sec: self.network_bytes_per_sec,
            ..NetworkOptions::default()
        });
        let machines = Machines::new(&world, self);
        let managers = machines.start();
        machines.wait("all servers are in touch", || {
            in_charge(&managers).is_some_and(|(_, manager)| manager.servers_in_touch() == self.servers)
        });
        machines.create(&managers);
        let seen = Rc::new(Seen {
            killed: Cell::new(None),
            served: RefCell::new(vec![None; self.volumes * SEGMENTS_PER_GROUP as usize]),
        });
        let clients = machines.start_clients(seed, &seen);
        world.run_for(Duration::from_micros(self.warm_up_us));
        let lost = segments_of(&managers, &name("server", 0));
        world.kill(machines.servers[0]);
        seen.killed.set(Some(clients.now()));
        world.run_for(Duration::from_micros(self.watched_us));
        let served = seen.served.borrow();
        let mut after: Vec<Duration> = served.iter().flatten().copied().collect();
        after.sort();
        Resumed { lost, never: served.len() - after.len(), after }
    }
}

/// Managers, and the loops that they run on.
type Managers = Rc<RefCell<Vec<(Handle, Rc<ClusterManager>)>>>;

/// The one in charge, if one is.
fn in_charge(managers: &Managers) -> Option<(Handle, Rc<ClusterManager>)> {
    managers.borrow().iter().find(|(_, manager)| manager.is_in_charge()).cloned()
}

/// How many segments a server has.
fn segments_of(managers: &Managers, server: &str) -> usize {
    let cluster = in_charge(managers).and_then(|(_, manager)| manager.cluster().ok());
    let servers = cluster.into_iter().flat_map(|cluster| cluster.servers);
    servers.filter(|shown| shown.name == server).map(|shown| shown.segments).sum()
}

fn name(role: &str, index: usize) -> String {
    format!("{role}-{index}")
}

fn volume(index: usize) -> String {
    format!("v{index}")
}

impl Machines {
    fn new(world: &World, settings: &Failover) -> Machines {
        let cpu = Charges::from_file().unwrap_or_else(|error| panic!("scaling.toml: {error}")).cpu();
        let free = CpuOptions { clock_ns: 1, submit_ns: 1, outcome_ns: 1, ..CpuOptions::default() };
        let paths: Vec<String> = (0..settings.disks).map(|disk| format!("/disk{disk}")).collect();
        let store = NodeOptions { cpu: free, ..NodeOptions::with_disks(paths, &DiskOptions::default()) };
        let add = |count: usize, cpu: &CpuOptions| -> Vec<NodeId> {
            (0..count).map(|_| world.add_node(NodeOptions { cpu: *cpu, ..NodeOptions::default() })).collect()
        };
        Machines {
            store: world.add_node(store),
            managers: add(settings.managers, &cpu),
            servers: add(settings.servers, &cpu),
            agents: add(settings.agents, &cpu),
            clients: world.add_node(NodeOptions { cpu: free, ..NodeOptions::default() }),
            world: world.clone(),
            settings: settings.clone(),
        }
    }

    fn at(&self, node: NodeId, port: u16) -> SocketAddr {
        (self.world.address(node), port).into()
    }

    fn settings(&self, role: &str, index: usize, node: NodeId) -> Settings {
        let mut settings = Settings {
            memory: Size::Bytes(512 * MIB),
            engine: EngineSettings {
                journal_file: Size::Bytes(16 * MIB),
                data_file: Size::Bytes(16 * MIB),
                ..EngineSettings::default()
            },
            api: ApiSettings { is_off: true, ..ApiSettings::default() },
            nbd: NbdSettings { listen: self.at(node, NBD_PORT), ..NbdSettings::default() },
            ..Settings::default()
        };
        let cluster = &mut settings.cluster;
        cluster.name = name(role, index);
        cluster.listen = self.at(node, PORT).to_string();
        cluster.store = self.at(self.store, PORT).to_string();
        cluster.managers = self.managers.iter().map(|manager| self.at(*manager, PORT).to_string()).collect();
        settings
    }

    /// Starts all machines but the clients'.
    fn start(&self) -> Managers {
        let store = SharedFilesOptions {
            directories: (0..self.settings.disks).map(|disk| format!("/disk{disk}/store").into()).collect(),
            listen: Some(Address::Tcp(self.at(self.store, PORT))),
            neighbours: vec![],
            tls: Default::default(),
            copies: 1,
            holder: String::new(),
        };
        let handle = self.world.start_loop(self.store);
        let inside = handle.clone();
        // What a machine runs stays until the world ends.
        let files = self.world.block_on(&handle, async move { SharedFiles::start(&inside, &store).await });
        std::mem::forget(files.unwrap_or_else(|error| panic!("the store: {error}")));
        let managers = Managers::default();
        for (index, node) in self.managers.iter().enumerate() {
            let (settings, managers) = (self.settings("manager", index, *node), managers.clone());
            self.run(*node, async move |handle| {
                let role = ManagerRole::start(&handle, &settings).await?;
                managers.borrow_mut().push((handle, role.manager().clone()));
                std::mem::forget(role);
                Ok(())
            });
        }
        for (index, node) in self.servers.iter().enumerate() {
            let settings = self.settings("server", index, *node);
            self.run(*node, async move |handle| ServerRole::start(&handle, &settings).await.map(std::mem::forget));
        }
        for (index, node) in self.agents.iter().enumerate() {
            let settings = self.settings("agent", index, *node);
            self.run(*node, async move |handle| AgentRole::start(&handle, &settings).await.map(std::mem::forget));
        }
        managers
    }

    fn run(&self, node: NodeId, role: impl AsyncFnOnce(Handle) -> Result<()> + 'static) {
        let handle = self.world.start_loop(node);
        let inside = handle.clone();
        let life =
            async move { role(inside).await.unwrap_or_else(|error| panic!("a machine does not start: {error}")) };
        handle.spawn(Class::Io, "a machine", life).detach();
    }

    fn wait(&self, what: &str, so: impl Fn() -> bool) {
        let begun = self.world.now();
        while !so() {
            assert!(self.world.now() - begun < Duration::from_secs(60), "not within a minute: {what}");
            self.world.run_for(Duration::from_millis(50));
        }
    }

    /// Makes the volumes, and waits until every segment has an owner.
    fn create(&self, managers: &Managers) {
        let (handle, manager) = in_charge(managers).unwrap_or_else(|| panic!("nobody is in charge"));
        let volumes = self.settings.volumes;
        let making = manager.clone();
        self.world.block_on(&handle, async move {
            for index in 0..volumes {
                let made = making.handle(Request::Create(CreateVolume::new(volume(index), GIB))).await;
                made.unwrap_or_else(|error| panic!("volume {index}: {error}"));
            }
        });
        self.wait("every segment has an owner", || {
            manager.cluster().is_ok_and(|cluster| cluster.segments_on_the_way == 0)
        });
    }

    /// Has a client use each volume. Gives a loop of their machine, for its clock.
    fn start_clients(&self, seed: u64, seen: &Rc<Seen>) -> Handle {
        let loops: Vec<Handle> = (0..CLIENT_LOOPS).map(|_| self.world.start_loop(self.clients)).collect();
        let is_attached = Rc::new(Cell::new(0));
        for index in 0..self.settings.volumes {
            let handle = loops[index % CLIENT_LOOPS].clone();
            let agent = Address::Tcp(self.at(self.agents[index % self.agents.len()], NBD_PORT));
            let client = Client {
                handle: handle.clone(),
                settings: self.settings.clone(),
                index,
                prng: RefCell::new(Prng::new(seed << 16 | index as u64)),
                seen: seen.clone(),
            };
            let attached = is_attached.clone();
            handle.spawn(Class::Io, "client", async move { client.live(&agent, &attached).await }).detach();
        }
        self.wait("all clients are attached", || is_attached.get() == self.settings.volumes);
        loops[0].clone()
    }
}

/// Whoever uses one volume.
struct Client {
    handle: Handle,
    settings: Failover,
    index: usize,
    prng: RefCell<Prng>,
    seen: Rc<Seen>,
}

impl Client {
    async fn live(&self, agent: &Address, attached: &Cell<usize>) {
        let connection = Connection::attach(&self.handle, agent, &volume(self.index)).await;
        let connection = connection.unwrap_or_else(|gone| panic!("client {}: {gone:?}", self.index));
        attached.set(attached.get() + 1);
        let len = self.settings.request_bytes;
        let data = AlignedBuf::zeroed(len as usize).freeze();
        let pause = Duration::from_micros(self.settings.pause_us);
        // They do not move in step.
        self.handle.sleep(pause.mul_f64(self.draw(1000) as f64 / 1000.0)).await;
        for segment in (self.draw(SEGMENTS_PER_GROUP)..).map(|turn| turn % SEGMENTS_PER_GROUP) {
            let row = self.draw(self.settings.rows) * SEGMENTS_PER_GROUP + segment;
            let offset = row * DATA_SECTOR_DEFAULT + self.draw(DATA_SECTOR_DEFAULT / u64::from(len)) * u64::from(len);
            let begun = self.handle.now();
            let outcome = connection.ask(Command::Write, 0, offset, len, data.clone()).await;
            assert!(matches!(outcome, Ok(Reply::Done(_))), "client {}: {outcome:?}", self.index);
            if let Some(killed) = self.seen.killed.get().filter(|killed| begun >= *killed) {
                let at = self.index * SEGMENTS_PER_GROUP as usize + segment as usize;
                self.seen.served.borrow_mut()[at].get_or_insert(self.handle.now() - killed);
            }
            self.handle.sleep(pause).await;
        }
    }

    fn draw(&self, below: u64) -> u64 {
        self.prng.borrow_mut().below(below)
    }
}
