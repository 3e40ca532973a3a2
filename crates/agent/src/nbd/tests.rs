//! The NBD frontend as its clients see it, over the simulated network, which cuts the bytes where it likes.

mod client;
mod fuzz;
mod handshake;
mod hostile;
mod levels;
mod lifecycle;
mod loops;
mod pressure;
mod secure;
pub(crate) mod store;
mod tenants;
mod transmission;

use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use base::GIB;
use link::mailbox;
use runtime::sim::{NodeOptions, World};
use runtime::{Address, Class, Handle};
use wire::{BlockService, VolumeDirectory};

use self::client::Client;
use self::store::Store;
use crate::{Agent, Options, VolumeStatistics};

/// A server on one machine, a client on another, and a volume `disk` of 8 GiB.
struct Fixture {
    world: World,
    server: Handle,
    client: Handle,
    store: Rc<Store>,
    agent: Agent,
    address: Address,
}

impl Fixture {
    fn new(seed: u64) -> Fixture {
        Fixture::with(seed, Options::default())
    }

    /// On one loop, two or three, by the seed: clients do not notice.
    fn with(seed: u64, options: Options) -> Fixture {
        Fixture::on_loops(seed, options, 1 + seed as usize % 3)
    }

    fn on_loops(seed: u64, options: Options, loops: usize) -> Fixture {
        Fixture::on_machine(seed, NodeOptions::default(), options, loops)
    }

    /// The agent is on such a machine.
    fn on_machine(seed: u64, machine: NodeOptions, options: Options, loops: usize) -> Fixture {
        let world = World::new(seed);
        let nodes = [machine, NodeOptions::default()].map(|options| world.add_node(options));
        let [server, client] = nodes.map(|node| world.start_loop(node));
        let store = Store::new(&server);
        store.add_volume("disk", 8 * GIB);
        let agent = Agent::new(&server, store.clone(), store.clone(), options, loops);
        let (directory, asked) = mailbox::<dyn VolumeDirectory>(64);
        server.spawn(Class::Io, "directory", asked.serve(server.clone(), store.clone(), 64)).detach();
        let (service, requests) = mailbox::<dyn BlockService>(64);
        server.spawn(Class::Io, "service", requests.serve(server.clone(), store.clone(), 1024)).detach();
        for _ in 1..loops {
            let handle = world.start_loop(nodes[0]);
            agent.invite().accept(&handle, Rc::new(directory.clone()), Rc::new(service.clone()));
        }
        let any = Address::Tcp(SocketAddr::new(world.address(nodes[0]), 0));
        let inside = server.clone();
        let listener = world.block_on(&server, async move { inside.listen(&any).await.unwrap() });
        let address = listener.address().clone();
        agent.serve(listener);
        Fixture { world, server, client, store, agent, address }
    }

    /// Runs `work` on the client's machine.
    fn run<T: 'static, F: Future<Output = T> + 'static>(&self, work: impl FnOnce(Handle, Address) -> F) -> T {
        self.world.block_on(&self.client, work(self.client.clone(), self.address.clone()))
    }

    /// Runs `work` with a client that has taken `disk`.
    fn attached<T: 'static, F: Future<Output = T> + 'static>(&self, work: impl FnOnce(Client) -> F + 'static) -> T {
        self.run(|handle, address| async move { work(Client::attach(&handle, &address, "disk").await.unwrap()).await })
    }

    fn stop(&self) {
        let agent = self.agent.clone();
        self.world.block_on(&self.server, async move { agent.stop().await });
    }

    /// Lets connections end that nobody waits for.
    fn settle(&self) {
        self.world.run_for(Duration::from_secs(1));
    }

    fn statistics(&self) -> VolumeStatistics {
        self.agent.volume_statistics().into_iter().find(|(_, name, _)| name == "disk").unwrap().2
    }
}
