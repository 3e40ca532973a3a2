//! The vhost-user frontend as guests see it: with a driver of our own in guest memory of the simulated world.

mod chains;
mod fuzz;

mod hostile;
mod inflight;
mod lifecycle;
mod loops;
mod memory;
mod transfer;

use std::path::PathBuf;
use std::rc::Rc;

use base::GIB;
use link::mailbox;
use runtime::sim::{CpuOptions, NodeId, NodeOptions, World};
use runtime::{Class, Handle};
use wire::{BlockService, DeviceHost, VolumeDirectory};

use super::driver::Guest;
use super::protocol::Disk;
use crate::nbd::tests::store::Store;
use crate::{Agent, Options};

/// A machine with an agent and its guests, and two volumes of 8 GiB: `disk` and `other`, each a device.
struct Fixture {
    world: World,
    node: NodeId,
    handle: Handle,
    /// Where guests run.
    guests: Handle,
    store: Rc<Store>,
    agent: Agent,
}

fn path(volume: &str) -> PathBuf {
    PathBuf::from(format!("/run/{volume}.sock"))
}

/// A disk of that many sectors.
fn disk(sectors: u64) -> Disk {
    Disk { size: sectors * 512, read_only: false, stripe: 1 << 17, id: *b"levee-test-disk-0001" }
}

/// A guest that runs, with two queues.
async fn started(handle: &Handle, socket: PathBuf) -> Guest {
    let mut guest = Guest::new(socket, 2, 256);
    guest.connect(handle).await.unwrap();
    guest
}

impl Fixture {
    fn new(seed: u64) -> Fixture {
        Fixture::with(seed, Options::default(), 1 + seed as usize % 3)
    }

    fn with(seed: u64, options: Options, loops: usize) -> Fixture {
        Fixture::on(seed, CpuOptions::default(), options, loops)
    }

    /// On a machine whose loops take their time.
    fn on(seed: u64, cpu: CpuOptions, options: Options, loops: usize) -> Fixture {
        let world = World::new(seed);
        let node = world.add_node(NodeOptions { cpu, ..NodeOptions::default() });
        let handle = world.start_loop(node);
        let store = Store::new(&handle);
        store.add_volume("disk", 8 * GIB);
        store.add_volume("other", 8 * GIB);
        Fixture::start(world, node, handle, store, options, loops)
    }

    fn start(world: World, node: NodeId, handle: Handle, store: Rc<Store>, options: Options, loops: usize) -> Fixture {
        let agent = Agent::new(&handle, store.clone(), store.clone(), options, loops);
        let (directory, asked) = mailbox::<dyn VolumeDirectory>(64);
        handle.spawn(Class::Io, "directory", asked.serve(handle.clone(), store.clone(), 64)).detach();
        let (service, requests) = mailbox::<dyn BlockService>(64);
        handle.spawn(Class::Io, "service", requests.serve(handle.clone(), store.clone(), 1024)).detach();
        for _ in 1..loops {
            let other = world.start_loop(node);
            agent.invite().accept(&other, Rc::new(directory.clone()), Rc::new(service.clone()));
        }
        let guests = world.start_loop(node);
        let adding = agent.clone();
        world.block_on(&handle, async move {
            for volume in ["disk", "other"] {
                adding.add_device(volume, &path(volume)).await.unwrap();
            }
        });
        Fixture { world, node, handle, guests, store, agent }
    }

    /// Runs `work` where guests run.
    fn run<T: 'static, F: Future<Output = T> + 'static>(&self, work: impl FnOnce(Handle) -> F) -> T {
        self.world.block_on(&self.guests, work(self.guests.clone()))
    }

    /// Runs `work` on the agent's first loop.
    fn with_agent<T: 'static, F: Future<Output = T> + 'static>(&self, work: impl FnOnce(Agent) -> F) -> T {
        self.world.block_on(&self.handle, work(self.agent.clone()))
    }

    /// Runs `work` with a guest that uses `disk`.
    fn attached<T: 'static, F: Future<Output = T> + 'static>(&self, work: impl FnOnce(Guest) -> F + 'static) -> T {
        self.run(|handle| async move { work(started(&handle, path("disk")).await).await })
    }

    /// Waits until no connection is there.
    fn settle(&self) {
        let agent = self.agent.clone();
        self.world.run_until(|| agent.statistics().connections_open == 0);
    }
}
