//! The machines of a run, and the processes on them.
//!
//! A process is what its loop has: killed, it is gone with everything that it held. What is known of it here from outside
//! (the manager to ask, the engine to look at) is forgotten when it dies.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::ready;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use base::{Incarnation, Instant, MIB, Result, SegmentId};
use control::cluster::ClusterManager;
use engine::{Engine, Tenure};
use files::rados::StorePools;
use files::rados::librados::Place;
use files::rados::simulated::{Pool, PoolOptions};
use files::shared::LifeInfo;
use node::Settings;
use node::cluster::agent::AgentRole;
use node::cluster::manager::ManagerRole;
use node::cluster::server::ServerRole;
use node::cluster::{Ceph, Pools};
use node::settings::{ApiSettings, EngineSettings, NbdSettings};
use node::shared_files::{SharedFiles, SharedFilesOptions};
use runtime::sim::{DiskOptions, Link, NetworkOptions, NodeId, NodeOptions, SimDisk, World};
use runtime::{Address, Class, Handle};
use server::Owner;
use wire::api::{self, Size};
use wire::{DeviceHost, LocalBoxFuture};

use super::super::plan::{Machine, Plan, Role, Shape};
use super::super::shared::{Door, Doors};

/// Where roles listen for each other.
const PORT: u16 = 7000;
/// Where agents serve NBD.
const NBD_PORT: u16 = 10809;
/// An accident takes some seconds, and so does what comes of it.
const AFTERMATH: Duration = Duration::from_secs(15);
/// What settings call the pool.
const POOL: &str = "rados:lab";
/// Segments of a volume that are looked at: those that are used.
const SEGMENTS: u32 = 4;
/// Whoever could not start tries again after so long.
const START_PAUSE: Duration = Duration::from_millis(100);

/// See the module. Clones are the same machines.
#[derive(Clone)]
pub(super) struct Machines(Rc<Inner>);

struct Inner {
    nodes: BTreeMap<Machine, NodeId>,
    addresses: BTreeMap<Machine, SocketAddr>,
    clients: NodeId,
    disks: Vec<SimDisk>,
    /// Where the files are, if not on those disks, first the pool that has everything but data files. All have the same OSDs.
    pools: Vec<Pool>,
    shape: Shape,
    doors: Doors,
    state: Rc<RefCell<State>>,
}

#[derive(Default)]
struct State {
    /// Counts the deaths of each machine, so that an accident meant for one life does not end another.
    deaths: BTreeMap<Machine, u64>,
    running: BTreeMap<Machine, Handle>,
    managers: BTreeMap<usize, Rc<ClusterManager>>,
    servers: BTreeMap<usize, Known>,
    store: Option<Rc<SharedFiles>>,
    /// Servers that were declared dead while they lived, and that nobody has looked at since.
    dismissed: Vec<usize>,
    /// Until when what happened to a machine may have its consequences.
    harmed: BTreeMap<Machine, Instant>,
    /// Why something did not start, the last time.
    refusal: Option<String>,
}

/// What is known of a server that runs.
#[derive(Clone)]
pub(super) struct Known {
    pub engine: Incarnation,
    pub store: Engine,
    /// Under which it takes orders.
    pub orders: Rc<Owner>,
}

impl Known {
    /// The segments that it has, of those that are used.
    pub(super) fn segments(&self) -> impl Iterator<Item = (SegmentId, Tenure)> {
        let volumes = self.store.volumes().into_iter();
        let segments = volumes.flat_map(|volume| (0..SEGMENTS).map(move |index| SegmentId { volume, index }));
        segments.filter_map(|segment| self.store.tenure(segment).map(|tenure| (segment, tenure)))
    }
}

/// Whether every segment has an owner that lives, nobody is dead, and so many servers are in touch.
pub(super) fn is_settled(cluster: &api::Cluster, servers: usize) -> bool {
    let mut engines = cluster.servers.iter().flat_map(|server| &server.engines);
    let are_well = engines.all(|engine| engine.state == "healthy");
    are_well && cluster.segments_on_the_way == 0 && cluster.servers.len() == servers
}

impl Machines {
    pub(super) fn new(world: &World, plan: &Plan) -> Machines {
        let shape = &plan.shape;
        let several = shape.several.unwrap_or_else(|| unreachable!("a plan of several servers has them"));
        world.set_network(NetworkOptions { loss_one_in: shape.packet_loss_one_in, ..NetworkOptions::default() });
        let disk = DiskOptions {
            latency: shape.disk_latency,
            jitter_percent: shape.disk_jitter_percent,
            capacity: shape.disk_bytes,
            ..DiskOptions::default()
        };
        let paths: Vec<String> = (0..shape.disks).map(|disk| format!("/disk{disk}")).collect();
        let mut nodes = BTreeMap::new();
        let mut addresses = BTreeMap::new();
        let mut disks = Vec::new();
        for machine in several.machines() {
            let node = match machine.role {
                Role::Store => {
                    let node = world.add_node(NodeOptions::with_disks(paths.clone(), &disk));
                    disks = paths.iter().map(|path| world.disk(node, path)).collect();
                    node
                }
                _ => world.add_node(NodeOptions::default()),
            };
            if machine.role == Role::Server {
                world.set_card(node, shape.card);
            }
            nodes.insert(machine, node);
            addresses.insert(machine, (world.address(node), PORT).into());
        }
        let clients = world.add_node(NodeOptions::default());
        let pools = shape.pool.iter().flat_map(|pooled| {
            let pool = |is_erasure_coded| {
                let latency_ns = 5_000..shape.disk_latency.as_nanos().max(10_000) as u64;
                let (capacity, lost_one_in) = (shape.disk_bytes, pooled.lost_one_in);
                Pool::new(world, PoolOptions { capacity, latency_ns, lost_one_in, is_erasure_coded })
            };
            std::iter::once(pool(false)).chain(pooled.is_coded.then(|| pool(true)))
        });
        let pools = pools.collect();
        let (shape, state) = (shape.clone(), Rc::default());
        let doors = Rc::new(RefCell::new(vec![None; several.agents]));
        Machines(Rc::new(Inner { nodes, addresses, clients, disks, pools, shape, doors, state }))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Machine> + use<> {
        self.0.shape.several.into_iter().flat_map(|several| several.machines())
    }

    pub(super) fn of(&self, role: Role) -> impl Iterator<Item = Machine> + use<> {
        self.all().filter(move |machine| machine.role == role)
    }

    pub(super) fn node(&self, machine: Machine) -> NodeId {
        self.0.nodes[&machine]
    }

    /// All machines but this one, and that of the clients if it is an agent.
    pub(super) fn others(&self, machine: Machine) -> Vec<NodeId> {
        let others = self.0.nodes.iter().filter(|(other, _)| **other != machine).map(|(_, node)| *node);
        others.chain((machine.role == Role::Agent).then_some(self.0.clients)).collect()
    }

    /// All machines, with that of the clients.
    pub(super) fn nodes(&self) -> Vec<NodeId> {
        self.0.nodes.values().copied().chain([self.0.clients]).collect()
    }

    /// What virtual machines need of agents.
    pub(super) fn doors(&self) -> Doors {
        self.0.doors.clone()
    }

    pub(super) fn clients(&self) -> NodeId {
        self.0.clients
    }

    /// Makes a disk of the store so many times slower; of a pool all of it, or one OSD.
    pub(super) fn slow_down(&self, disk: usize, factor: u64) {
        if self.0.pools.is_empty() {
            return self.0.disks[disk].set_slowness(factor);
        }
        for pool in &self.0.pools {
            match disk {
                0 => pool.set_slowness(factor),
                osd => pool.set_slow_osd((factor > 1).then_some((osd as u64, factor as u32))),
            }
        }
    }

    /// Ends what is wrong with the store of files.
    pub(super) fn heal_store(&self) {
        self.0.disks.iter().for_each(|disk| disk.set_slowness(1));
        for pool in &self.0.pools {
            pool.set_slowness(1);
            pool.set_slow_osd(None);
            pool.set_lost_one_in(0);
        }
    }

    /// Where an agent serves NBD.
    pub(super) fn nbd(&self, agent: Machine) -> SocketAddr {
        (self.0.addresses[&agent].ip(), NBD_PORT).into()
    }

    pub(super) fn handle(&self, machine: Machine) -> Option<Handle> {
        self.0.state.borrow().running.get(&machine).cloned()
    }

    pub(super) fn deaths(&self, machine: Machine) -> u64 {
        self.0.state.borrow().deaths.get(&machine).copied().unwrap_or_default()
    }

    /// Servers that were declared dead while they lived, since this was asked last.
    pub(super) fn take_dismissed(&self) -> Vec<usize> {
        std::mem::take(&mut self.0.state.borrow_mut().dismissed)
    }

    /// Something happened to a machine.
    pub(super) fn on_harm(&self, machine: Machine, now: Instant) {
        self.0.state.borrow_mut().harmed.insert(machine, now + AFTERMATH);
    }

    /// Whether nothing has happened to a machine for a while.
    pub(super) fn is_well(&self, machine: Machine, now: Instant) -> bool {
        self.0.state.borrow().harmed.get(&machine).is_none_or(|until| *until < now)
    }

    /// Why something did not start, the last time.
    pub(super) fn refusal(&self) -> Option<String> {
        self.0.state.borrow().refusal.clone()
    }

    /// The servers that run.
    pub(super) fn servers(&self) -> Vec<Known> {
        self.0.state.borrow().servers.values().cloned().collect()
    }

    /// The server that has released a segment and knows that, or else one that has it.
    pub(super) fn giver(&self, segment: SegmentId) -> Option<Machine> {
        let state = self.0.state.borrow();
        let has_released = |known: &Known| known.store.released().iter().any(|(id, _)| *id == segment);
        let find = |is_it: &dyn Fn(&Known) -> bool| state.servers.iter().find(|(_, known)| is_it(known));
        let giver = find(&has_released).or_else(|| find(&|known| known.store.tenure(segment).is_some()));
        giver.map(|(index, _)| Machine { role: Role::Server, index: *index })
    }

    /// What the shared store knows of lives, while it runs: a pool always does.
    pub(super) fn lives(&self) -> Option<Vec<LifeInfo>> {
        match self.0.pools.first() {
            Some(pool) => {
                Some(pool.lives(self.0.pools.get(1)).unwrap_or_else(|error| panic!("the pool is damaged: {error}")))
            }
            None => self.0.state.borrow().store.as_ref().map(|store| store.lives()),
        }
    }

    /// How a machine reaches pools. Those there are are where the store is, for links.
    fn pools(&self, world: &World, machine: Machine) -> Rc<dyn Pools> {
        let pools = self.0.pools.clone();
        if pools.is_empty() {
            return Rc::new(Ceph);
        }
        let (node, store) = (self.node(machine), self.node(Machine { role: Role::Store, index: 0 }));
        Rc::new(OverLinks { pools, there: world.link(node, store), back: world.link(store, node) })
    }

    /// The managers that run.
    pub(super) fn managers(&self) -> Vec<(usize, Rc<ClusterManager>)> {
        self.0.state.borrow().managers.iter().map(|(index, manager)| (*index, manager.clone())).collect()
    }

    /// Which manager believes to be in charge.
    pub(super) fn manager_in_charge(&self) -> Option<usize> {
        self.managers().into_iter().find(|(_, manager)| manager.is_in_charge()).map(|(index, _)| index)
    }

    /// A manager that believes to be in charge, and its loop.
    pub(super) fn in_charge(&self) -> Option<(Handle, Rc<ClusterManager>)> {
        let (index, manager) = self.managers().into_iter().find(|(_, manager)| manager.is_in_charge())?;
        Some((self.handle(Machine { role: Role::Manager, index })?, manager))
    }

    /// How all of it stands, if anybody knows.
    pub(super) fn cluster(&self) -> Option<api::Cluster> {
        let (_, manager) = self.in_charge()?;
        manager.cluster().ok()
    }

    fn settings(&self, machine: Machine) -> Settings {
        let shape = &self.0.shape;
        let mut settings = Settings {
            memory: Size::Bytes(base::limits::MEMORY_MIN),
            engine: EngineSettings {
                journal_file: Size::Bytes(shape.journal_file_bytes),
                data_file: Size::Bytes(shape.data_file_bytes),
                segment_cache: Size::Bytes(shape.segment_cache_bytes),
                memtable_bytes: Some(shape.memtable_bytes),
                transaction_file_bytes: Some(shape.transaction_file_bytes),
                large_write: Size::Bytes(shape.large_write_bytes),
                ..EngineSettings::default()
            },
            api: ApiSettings { is_off: true, ..ApiSettings::default() },
            ..Settings::default()
        };
        if machine.role == Role::Agent {
            settings.nbd = NbdSettings { listen: self.nbd(machine), ..NbdSettings::default() };
            settings.tenants.limit = shape.limit.map(Size::Bytes);
        }
        let at = |machine: Machine| self.0.addresses[&machine].to_string();
        let cluster = &mut settings.cluster;
        cluster.name = name(machine);
        cluster.listen = at(machine);
        cluster.store = at(Machine { role: Role::Store, index: 0 });
        if shape.pool.is_some() {
            cluster.leases = Some(std::mem::replace(&mut cluster.store, POOL.into()));
        }
        cluster.forwarding = shape.forwarding;
        cluster.forwarding_log = Size::Bytes(MIB);
        cluster.managers = self.of(Role::Manager).map(at).collect();
        settings
    }

    /// Starts a machine that does not run.
    pub(super) fn start(&self, world: &World, machine: Machine) {
        let handle = world.restart(self.node(machine));
        self.0.state.borrow_mut().running.insert(machine, handle.clone());
        let (inside, settings, state) = (handle.clone(), self.settings(machine), self.0.state.clone());
        let pools = self.pools(world, machine);
        // Where an agent runs there may be virtual machines.
        let beside = (machine.role == Role::Agent).then(|| (world.start_loop(self.node(machine)), self.doors()));
        let store = SharedFilesOptions {
            directories: (0..self.0.shape.disks).map(|disk| format!("/disk{disk}/store").into()).collect(),
            listen: Some(Address::Tcp(self.0.addresses[&machine])),
            neighbours: vec![],
            tls: Default::default(),
            copies: self.0.shape.copies,
            holder: String::new(),
        };
        let life = async move {
            loop {
                match live(&inside, machine, &settings, &store, &pools, &state, beside.as_ref()).await {
                    Ok(()) => {}
                    Err(error) => {
                        tracing::info!(?machine, %error, "a start was refused");
                        state.borrow_mut().refusal = Some(format!("{}: {error}", name(machine)));
                        inside.sleep(START_PAUSE).await;
                    }
                }
            }
        };
        handle.spawn(Class::Io, "a machine", life).detach();
    }

    /// Ends the present life of a machine, if there is one; says whether there was.
    pub(super) fn kill(&self, world: &World, machine: Machine, power: bool) -> bool {
        let node = self.node(machine);
        if self.0.state.borrow_mut().running.remove(&machine).is_none() {
            return false;
        }
        *self.0.state.borrow_mut().deaths.entry(machine).or_default() += 1;
        match power {
            true => world.power_loss(node),
            false => world.kill(node),
        }
        // It runs no more: what is left of it here goes.
        let gone = {
            let mut state = self.0.state.borrow_mut();
            match machine.role {
                Role::Manager => (state.managers.remove(&machine.index), None, None),
                Role::Server => (None, state.servers.remove(&machine.index), None),
                Role::Store => (None, None, state.store.take()),
                Role::Agent => (None, None, None),
            }
        };
        drop(gone);
        if machine.role == Role::Agent {
            let door = self.0.doors.borrow_mut()[machine.index].take();
            drop(door);
        }
        true
    }

    /// Whether a machine runs.
    pub(super) fn runs(&self, machine: Machine) -> bool {
        self.0.state.borrow().running.contains_key(&machine)
    }
}

fn door(handle: &Handle, beside: &Handle, role: &AgentRole) -> Door {
    let (agent, forwarder) = (role.agent(), role.forwarder().clone());
    let (devices, counting) = (agent.clone(), agent.clone());
    let serve = move |volume: String, path: PathBuf| -> LocalBoxFuture<'static, Result<()>> {
        let devices = devices.clone();
        Box::pin(async move { devices.add_device(&volume, &path).await })
    };
    Door {
        beside: beside.clone(),
        handle: handle.clone(),
        serve: Rc::new(serve),
        statistics: Rc::new(move || counting.statistics()),
        audit: Rc::new(agent.audit_tenants()),
        logged: Rc::new(move || {
            forwarder.check_invariants();
            forwarder.waiting().1
        }),
    }
}

/// The pools as one machine reaches them.
struct OverLinks {
    pools: Vec<Pool>,
    there: Link,
    back: Link,
}

impl Pools for OverLinks {
    fn open(&self, handle: &Handle, _place: Place) -> LocalBoxFuture<'static, Result<StorePools>> {
        let reached = |pool: &Pool| pool.reached_over(handle, self.there.clone(), self.back.clone());
        let pools = StorePools { main: reached(&self.pools[0]), data: self.pools.get(1).map(reached) };
        Box::pin(ready(Ok(pools)))
    }
}

/// What a process is called.
pub(super) fn name(machine: Machine) -> String {
    format!("{}-{}", machine.role.name(), machine.index)
}

/// One life of a process. Only a server's ends by itself, when it was declared dead.
async fn live(
    handle: &Handle,
    machine: Machine,
    settings: &Settings,
    store: &SharedFilesOptions,
    pools: &Rc<dyn Pools>,
    state: &RefCell<State>,
    beside: Option<&(Handle, Doors)>,
) -> Result<()> {
    match machine.role {
        Role::Store => {
            let files = Rc::new(SharedFiles::start(handle, store).await?);
            state.borrow_mut().store = Some(files);
            std::future::pending().await
        }
        Role::Manager => {
            let manager = ManagerRole::start_over(handle, settings, pools.clone()).await?;
            state.borrow_mut().managers.insert(machine.index, manager.manager().clone());
            std::future::pending().await
        }
        Role::Agent => {
            let role = AgentRole::start(handle, settings).await?;
            if let Some((beside, doors)) = beside {
                doors.borrow_mut()[machine.index] = Some(door(handle, beside, &role));
            }
            std::future::pending().await
        }
        Role::Server => {
            let server = ServerRole::start_over(handle, settings, pools.clone()).await?;
            let (engine, orders) = (server.incarnation(), server.owner().clone());
            let known = Known { engine, store: server.engine().clone(), orders };
            state.borrow_mut().servers.insert(machine.index, known);
            server.dismissed().await;
            let known = state.borrow_mut().servers.remove(&machine.index);
            drop(known);
            state.borrow_mut().dismissed.push(machine.index);
            server.abandon().await;
            Ok(())
        }
    }
}
