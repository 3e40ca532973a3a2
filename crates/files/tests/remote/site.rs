//! Three machines: the store's, and two with lives.

use std::rc::Rc;
use std::time::Duration;

use base::MIB;
use files::local::{self, LocalOptions};
use files::memory::Memory;
use files::served::Served;
use files::shared::{Shared, SharedOptions};
use link::stream::{FarEnd, Options, Services};
use runtime::sim::{DiskOptions, NodeId, NodeOptions, World};
use runtime::{Address, Handle};

use crate::model::Model;

/// How long an end waits for the other.
pub const SILENCE: Duration = Duration::from_millis(400);
/// What the store may use: less than all would like to.
pub const CAPACITY: u64 = 8 * MIB;

/// What is below the shared store.
pub enum Below {
    Memory(Memory),
    Local(LocalOptions),
}

/// A store that runs.
pub struct Running {
    pub handle: Handle,
    pub shared: Shared,
}

pub struct Site {
    pub world: World,
    pub nodes: [NodeId; 3],
    /// The loops of those with lives.
    pub handles: [Handle; 2],
    pub address: Address,
}

pub fn stream_options(name: &str) -> Options {
    Options { silence: SILENCE, requests_max: 12, ..Options::new(name) }
}

impl Site {
    pub fn new(seed: u64) -> Site {
        let world = World::new(seed);
        let disks = NodeOptions::with_disks(["/0", "/1"], &DiskOptions::default());
        let nodes = [disks, NodeOptions::default(), NodeOptions::default()].map(|options| world.add_node(options));
        let handles = [1, 2].map(|node: usize| world.start_loop(nodes[node]));
        let address = Address::Tcp((world.address(nodes[0]), 7000).into());
        Site { world, nodes, handles, address }
    }

    /// Starts the store's process, after it was killed if it runs.
    pub fn start_store(&self, below: &Below) -> Running {
        let handle = self.world.restart(self.nodes[0]);
        let (inside, address) = (handle.clone(), self.address.clone());
        let memory = match below {
            Below::Memory(memory) => Ok(memory.open(&handle)),
            Below::Local(options) => Err(options.clone()),
        };
        let shared = self.world.block_on(&handle, async move {
            let below = match memory {
                Ok(store) => store,
                Err(options) => local::open(&inside, options).await.unwrap().0,
            };
            let options = SharedOptions { grant_bytes: MIB / 2, ..SharedOptions::default() };
            let shared = Shared::open(&inside, below, options).await.unwrap();
            let services = Services { files: Some(Served::new(shared.clone())), ..Services::default() };
            let end = FarEnd::new(&inside, services, stream_options("the store"));
            end.serve(inside.listen(&address).await.unwrap());
            shared
        });
        Running { handle, shared }
    }

    /// Reads everything that was ever confirmed, from every copy.
    pub fn check_all(&self, running: &Running, model: &Rc<Model>, seed: u64) {
        let (shared, model) = (running.shared.clone(), model.clone());
        self.world.block_on(&running.handle, async move {
            let files = model.files.borrow().clone();
            for (id, file) in &files {
                let what = format!("seed {seed}: file {id}");
                let found = shared.find(*id);
                assert!(found.is_none() || !file.is_deleted, "{what} was deleted");
                assert!(found.is_some() || file.is_to_be_deleted, "{what}: nobody asked that it be deleted: {file:?}");
                let Some(info) = found else { continue };
                if file.sealed.is_some() {
                    assert_eq!(info.sealed, file.sealed, "{what}");
                }
                let reader = shared.rejoin(info.incarnation).unwrap();
                let len = info.sealed.unwrap_or(info.capacity) as usize;
                for copy in 0..info.copies_wanted {
                    let content = reader.read_copy(*id, copy, 0, len).await.unwrap();
                    file.check(&content, &format!("{what}, copy {copy}"));
                    if let Some(left) = model.left.borrow().get(&(*id, copy)).filter(|_| info.sealed.is_none()) {
                        assert!(left[..] == content[..], "{what} changed after its life was fenced");
                    }
                }
            }
            let lives = shared.lives();
            for fenced in model.fenced.borrow().iter() {
                let life = lives.iter().find(|life| life.incarnation == *fenced);
                assert!(life.is_none_or(|life| life.is_fenced), "seed {seed}: {fenced} was fenced");
            }
        });
    }
}
