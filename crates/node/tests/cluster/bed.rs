//! The machines, and what runs on them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use base::Result;
use control::cluster::ClusterManager;
use control::service::{CreateVolume, Reply, Request};
use node::Settings;
use node::cluster::agent::AgentRole;
use node::cluster::manager::ManagerRole;
use node::cluster::server::ServerRole;
use node::cluster::settings::Forwarding;
use node::settings::{ApiSettings, Enforcer, EngineSettings, NbdSettings, TenantsSettings};
use node::shared_files::{SharedFiles, SharedFilesOptions};
use runtime::sim::{DiskOptions, NodeId, NodeOptions, World};
use runtime::{Address, Class, Handle};
use wire::api::{self, Size};

/// What a machine is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    Store,
    Manager,
    Server,
    Agent,
}

struct Machine {
    node: NodeId,
    handle: Option<Handle>,
}

/// A world with machines of each role.
pub struct Bed {
    pub world: World,
    machines: BTreeMap<(Role, usize), Machine>,
    managers: Rc<RefCell<BTreeMap<usize, Rc<ClusterManager>>>>,
    agents: Rc<RefCell<BTreeMap<usize, Rc<AgentRole>>>>,
    /// How long a server may be silent.
    pub lease_ms: u64,
    /// Who holds volumes to their levels.
    pub enforcer: Enforcer,
    /// Which writes agents have logged.
    pub forwarding: Forwarding,
}

/// The seeds of a test: `LEVEE_SEED` alone, or the first `count`, or as many as `LEVEE_SEEDS` says.
pub fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("LEVEE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LEVEE_SEEDS").unwrap_or(count),
    }
}

impl Bed {
    pub fn new(seed: u64, managers: usize, servers: usize, agents: usize) -> Bed {
        let world = World::new(seed);
        let mut machines = BTreeMap::new();
        let of = [(Role::Store, 1), (Role::Manager, managers), (Role::Server, servers), (Role::Agent, agents)];
        for (role, count) in of {
            for index in 0..count {
                let options = match role {
                    Role::Store => NodeOptions::with_disks(["/disk-1", "/disk-2"], &DiskOptions::default()),
                    _ => NodeOptions::default(),
                };
                machines.insert((role, index), Machine { node: world.add_node(options), handle: None });
            }
        }
        Bed {
            world,
            machines,
            managers: Rc::default(),
            agents: Rc::default(),
            lease_ms: 2_000,
            enforcer: Enforcer::Agent,
            forwarding: Forwarding::Off,
        }
    }

    pub fn handle(&self, role: Role, index: usize) -> Handle {
        self.machines[&(role, index)].handle.clone().unwrap()
    }

    fn at(&self, role: Role, index: usize) -> SocketAddr {
        (self.world.address(self.machines[&(role, index)].node), 7000).into()
    }

    /// Where an agent serves NBD.
    pub fn nbd(&self, index: usize) -> Address {
        Address::Tcp((self.world.address(self.machines[&(Role::Agent, index)].node), 10809).into())
    }

    fn count(&self, role: Role) -> usize {
        self.machines.keys().filter(|(other, _)| *other == role).count()
    }

    fn settings(&self, role: Role, index: usize) -> Settings {
        let size = |text: &str| Size::Text(text.into());
        let mut settings = Settings {
            memory: size("128M"),
            engine: EngineSettings {
                journal_file: size("4M"),
                data_file: size("4M"),
                segment_cache: size("64K"),
                ..EngineSettings::default()
            },
            api: ApiSettings { is_off: true, ..ApiSettings::default() },
            tenants: TenantsSettings { levels: self.enforcer, ..TenantsSettings::default() },
            ..Settings::default()
        };
        if let (Role::Agent, Address::Tcp(listen)) = (role, self.nbd(index.min(self.count(Role::Agent) - 1))) {
            settings.nbd = NbdSettings { listen, ..NbdSettings::default() };
        }
        let cluster = &mut settings.cluster;
        cluster.name = format!("{}-{index}", format!("{role:?}").to_lowercase());
        cluster.listen = self.at(role, index).to_string();
        cluster.lease_ms = self.lease_ms;
        cluster.forwarding = self.forwarding;
        // They begin anew all the time.
        cluster.forwarding_log = size("1M");
        cluster.store = self.at(Role::Store, 0).to_string();
        cluster.managers = (0..self.count(Role::Manager)).map(|at| self.at(Role::Manager, at).to_string()).collect();
        settings
    }

    pub fn start_all(&mut self) {
        let all: Vec<_> = self.machines.keys().copied().collect();
        for (role, index) in all {
            self.start(role, index);
        }
    }

    /// Starts a machine that does not run. What is not there yet is waited for.
    pub fn start(&mut self, role: Role, index: usize) {
        let settings = self.settings(role, index);
        let machine = self.machines.get_mut(&(role, index)).unwrap();
        let handle = self.world.restart(machine.node);
        machine.handle = Some(handle.clone());
        let (inside, managers, agents) = (handle.clone(), self.managers.clone(), self.agents.clone());
        let listen = self.at(role, index);
        let life = async move {
            match role {
                Role::Store => {
                    let options = SharedFilesOptions {
                        directories: vec!["/disk-1/store".into(), "/disk-2/store".into()],
                        listen: Some(Address::Tcp(listen)),
                        copies: 2,
                        neighbours: vec![],
                        tls: settings.tls.clone(),
                        holder: String::new(),
                    };
                    std::mem::forget(SharedFiles::start(&inside, &options).await.unwrap());
                }
                Role::Manager => {
                    let manager = ManagerRole::start(&inside, &settings).await.unwrap();
                    managers.borrow_mut().insert(index, manager.manager().clone());
                    std::mem::forget(manager);
                }
                Role::Agent => {
                    let agent = AgentRole::start(&inside, &settings).await.unwrap();
                    agents.borrow_mut().insert(index, Rc::new(agent));
                }
                Role::Server => loop {
                    let Ok(server) = ServerRole::start(&inside, &settings).await else {
                        inside.sleep(Duration::from_secs(1)).await;
                        continue;
                    };
                    server.dismissed().await;
                    server.abandon().await;
                },
            }
        };
        handle.spawn(Class::Io, "a machine", life).detach();
        match role {
            Role::Store | Role::Agent => self.world.run_for(Duration::from_millis(20)),
            _ => {}
        }
    }

    pub fn kill(&mut self, role: Role, index: usize) {
        let machine = self.machines.get_mut(&(role, index)).unwrap();
        machine.handle = None;
        self.world.kill(machine.node);
        if role == Role::Manager {
            // It runs no more; dropping what it had would be more than a killed process does.
            std::mem::forget(self.managers.borrow_mut().remove(&index));
        }
        if role == Role::Agent {
            std::mem::forget(self.agents.borrow_mut().remove(&index));
        }
    }

    fn others(&self, role: Role, index: usize) -> impl Iterator<Item = NodeId> {
        let but = self.machines[&(role, index)].node;
        self.machines.values().map(|machine| machine.node).filter(move |node| *node != but)
    }

    /// Nothing reaches it, nor does it reach anybody.
    pub fn cut_off(&self, role: Role, index: usize) {
        self.others(role, index).for_each(|other| self.world.partition(self.machines[&(role, index)].node, other));
    }

    /// Everything between two machines takes so much longer each way.
    pub fn delay(&self, one: (Role, usize), other: (Role, usize), delay: Duration) {
        let (one, other) = (self.machines[&one].node, self.machines[&other].node);
        self.world.set_extra_delay(one, other, delay);
        self.world.set_extra_delay(other, one, delay);
    }

    /// Nothing passes between it and all machines of another role.
    pub fn cut_off_from(&self, role: Role, index: usize, others: Role) {
        let of_others = self.machines.iter().filter(|((other, _), _)| *other == others);
        of_others.for_each(|(_, other)| self.world.partition(self.machines[&(role, index)].node, other.node));
    }

    pub fn reconnect(&self, role: Role, index: usize) {
        self.others(role, index).for_each(|other| self.world.heal(self.machines[&(role, index)].node, other));
    }

    /// Runs until something is so.
    pub fn wait(&self, what: &str, so: impl Fn(&Bed) -> bool) {
        for _ in 0..600 {
            if so(self) {
                return;
            }
            self.world.run_for(Duration::from_millis(50));
        }
        panic!("seed {}: {what} has not come about within 30 s: {:?}", self.world.seed(), self.try_cluster());
    }

    /// An agent that runs.
    pub fn agent(&self, index: usize) -> Rc<AgentRole> {
        self.agents.borrow()[&index].clone()
    }

    /// Which manager is in charge.
    pub fn in_charge(&self) -> Option<(usize, Rc<ClusterManager>)> {
        let managers = self.managers.borrow();
        managers.iter().find(|(_, manager)| manager.is_in_charge()).map(|(index, manager)| (*index, manager.clone()))
    }

    /// The manager in charge, when there is one.
    fn whoever_is_in_charge(&self) -> (usize, Rc<ClusterManager>) {
        for _ in 0..200 {
            if let Some(found) = self.in_charge() {
                return found;
            }
            self.world.run_for(Duration::from_millis(50));
        }
        panic!("nobody is in charge");
    }

    /// Asks the manager in charge.
    pub fn ask(&self, request: Request) -> Result<Reply> {
        let (index, manager) = self.whoever_is_in_charge();
        let handle = self.handle(Role::Manager, index);
        self.world.block_on(&handle, async move { manager.handle(request).await })
    }

    fn try_cluster(&self) -> Option<api::Cluster> {
        // The tables have it; nobody is asked.
        self.whoever_is_in_charge().1.cluster().ok()
    }

    /// How all of it stands.
    pub fn cluster(&self) -> api::Cluster {
        self.try_cluster().unwrap()
    }

    /// Makes a volume, once all servers are in touch, and waits until it has owners.
    pub fn create(&self, name: &str, size: u64) {
        let servers = self.count(Role::Server);
        self.wait("all servers are there", |bed| {
            bed.try_cluster().is_some_and(|cluster| cluster.servers.len() == servers)
        });
        self.ask(Request::Create(CreateVolume::new(name, size))).unwrap();
        self.settle();
    }

    /// Runs until every segment has an owner that lives, and nobody is dead any more.
    pub fn settle(&self) {
        self.wait("everything is settled", |bed| {
            bed.try_cluster().is_some_and(|cluster| {
                let engines = cluster.servers.iter().flat_map(|server| &server.engines);
                cluster.segments_on_the_way == 0 && engines.clone().all(|engine| engine.state == "healthy")
            })
        });
    }
}
