//! Several engines in processes of their own over one shared store, which is killed and started again while they write
//! and read: what was acknowledged is there, and wrong bytes are nowhere.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::io::{ReadPart, fragment_checksums};
use base::{Bytes, ErrorKind, KIB, MIB, Prng, SegmentId, VolumeId, WriteStamp};
use engine::{Engine, Options};
use files::Store;
use files::memory::{Memory, MemoryOptions};
use files::remote::{self, RemoteOptions};
use files::served::Served;
use files::shared::{Shared, SharedOptions};
use link::stream::{self, FarEnd, NearEnd, Services};
use runtime::sim::{NodeId, NodeOptions, World};
use runtime::{Address, Class, Handle};

const ENGINES: usize = 3;
const CAPACITY: u64 = 512 * MIB;
const SLOT_BYTES: u64 = 16 * KIB;
const SLOTS: u64 = 96;
/// Long enough for any restart here.
const PATIENCE: Duration = Duration::from_secs(20);

fn stream_options(name: &str) -> stream::Options {
    stream::Options { silence: Duration::from_millis(400), ..stream::Options::new(name) }
}

/// A machine with the store, and one for each engine.
struct Site {
    world: World,
    nodes: Vec<NodeId>,
    memory: Memory,
    address: Address,
}

impl Site {
    fn new(seed: u64) -> Site {
        let world = World::new(seed);
        let nodes: Vec<NodeId> = (0..=ENGINES).map(|_| world.add_node(NodeOptions::default())).collect();
        let memory =
            Memory::new(seed, MemoryOptions { directories: 2, capacity: CAPACITY, ..MemoryOptions::default() });
        let address = Address::Tcp((world.address(nodes[0]), 7000).into());
        Site { world, nodes, memory, address }
    }

    fn start_store(&self) -> Shared {
        let handle = self.world.restart(self.nodes[0]);
        let (inside, below, address) = (handle.clone(), self.memory.open(&handle), self.address.clone());
        self.world.block_on(&handle, async move {
            let options = SharedOptions { grant_bytes: 24 * MIB, copies: 2 };
            let shared = Shared::open(&inside, below, options).await.expect("it was a good store before");
            let services = Services { files: Some(Served::new(shared.clone())), ..Services::default() };
            let end = FarEnd::new(&inside, services, stream_options("the store"));
            end.serve(inside.listen(&address).await.expect("nobody else is there"));
            shared
        })
    }

    fn open_engine(&self, index: usize) -> (Handle, Store, Engine) {
        let handle = self.world.start_loop(self.nodes[index + 1]);
        let (inside, address) = (handle.clone(), self.address.clone());
        let (store, engine) = self.world.block_on(&handle, async move {
            let near = NearEnd::dial(&inside, address, Services::default(), stream_options("an engine"));
            let options = RemoteOptions { patience: PATIENCE, ..RemoteOptions::new("the store") };
            let store = remote::join(&inside, Rc::new(near), options).await.expect("there is room");
            let options = Options {
                copies: 2,
                journal_file_bytes: MIB,
                journal_files: 2,
                data_file_bytes: 2 * MIB,
                transaction_file_bytes: 256 * KIB,
                segment_cache_bytes: 128 * KIB,
                ..Options::default()
            };
            let engine = Engine::open(&inside, &store, options).await.expect("there is nothing to recover");
            (store, engine)
        });
        (handle, store, engine)
    }
}

/// What one client of one engine was told: of each slot what it may hold.
struct Client {
    segment: SegmentId,
    /// The value that was acknowledged last, and those that were tried since.
    slots: RefCell<BTreeMap<u64, (u64, Vec<u64>)>>,
    acknowledged: Cell<u64>,
    failed: Cell<u64>,
    is_stopped: Cell<bool>,
}

fn content(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(SLOT_BYTES as usize / 8)
}

impl Client {
    fn new(volume: u64) -> Rc<Client> {
        Rc::new(Client {
            segment: SegmentId { volume: VolumeId(volume), index: 0 },
            slots: RefCell::default(),
            acknowledged: Cell::default(),
            failed: Cell::default(),
            is_stopped: Cell::default(),
        })
    }

    async fn live(self: Rc<Self>, handle: Handle, engine: Engine, mut prng: Prng) {
        let mut next = 0;
        while !self.is_stopped.get() {
            let slot = prng.below(SLOTS);
            if prng.one_in(4) {
                self.check(&engine, slot, false).await;
                continue;
            }
            next += 1;
            // From 64 KiB on a write goes past the journal: four slots at once, sometimes.
            let slots: Vec<u64> = if prng.one_in(8) { (slot / 4 * 4..slot / 4 * 4 + 4).collect() } else { vec![slot] };
            let value = (self.segment.volume.0 << 32) | next;
            let data: Bytes = slots.iter().flat_map(|_| content(value)).collect::<Vec<u8>>().into();
            let offset = slots[0] * SLOT_BYTES;
            for slot in &slots {
                self.slots.borrow_mut().entry(*slot).or_default().1.push(value);
            }
            let checksums = fragment_checksums(self.segment, offset, &data);
            match engine.write(self.segment, offset, data, checksums, WriteStamp::default()).await {
                Ok(()) => {
                    self.acknowledged.set(self.acknowledged.get() + 1);
                    for slot in &slots {
                        self.slots.borrow_mut().insert(*slot, (value, Vec::new()));
                    }
                }
                Err(error) => {
                    assert!(matches!(error.kind, ErrorKind::Io | ErrorKind::Full), "{error:?}");
                    self.failed.set(self.failed.get() + 1);
                }
            }
            handle.sleep(Duration::from_micros(prng.below(10_000))).await;
        }
    }

    /// Reads a slot; `must`: nothing is wrong any more.
    async fn check(&self, engine: &Engine, slot: u64, must: bool) {
        let parts = match engine.read(self.segment, slot * SLOT_BYTES, SLOT_BYTES).await {
            Ok(parts) => parts,
            Err(error) => {
                assert!(!must && error.kind == ErrorKind::Io, "{error:?}");
                return;
            }
        };
        let mut found = Vec::new();
        for part in parts {
            match part {
                ReadPart::Data(data) => found.extend_from_slice(&data),
                ReadPart::Zeros(len) => found.resize(found.len() + len as usize, 0),
            }
        }
        let (acknowledged, tried) = self.slots.borrow().get(&slot).cloned().unwrap_or_default();
        // A write whose outcome is unknown is old or new in each sector.
        for sector in found.chunks(512) {
            let value = u64::from_le_bytes(*sector.first_chunk().expect("a sector has eight bytes"));
            assert!(sector == &content(value)[..512], "slot {slot} of {}: no write", self.segment);
            assert!(
                value == acknowledged || tried.contains(&value),
                "slot {slot} of {}: {value:x}, where {acknowledged:x} was acknowledged",
                self.segment
            );
        }
    }
}

#[test]
fn engines_go_on_while_the_store_is_killed_and_connections_break() {
    let (mut acknowledged, mut failed, mut kills) = (0, 0, 0);
    for seed in 0..8 {
        let site = Site::new(seed);
        let mut prng = site.world.fork_prng();
        let mut shared = site.start_store();
        let engines: Vec<_> = (0..ENGINES).map(|index| site.open_engine(index)).collect();
        let clients: Vec<Rc<Client>> = (1..=ENGINES as u64).map(Client::new).collect();
        let living: Vec<_> = (engines.iter().zip(&clients))
            .flat_map(|((handle, _, engine), client)| {
                let life = client.clone().live(handle.clone(), engine.clone(), prng.fork());
                [handle.spawn(Class::Io, "client", life)]
            })
            .collect();
        for _ in 0..8 {
            site.world.run_for(Duration::from_millis(prng.between(20, 300)));
            let node = site.nodes[prng.between(1, ENGINES as u64) as usize];
            match prng.below(4) {
                0 => site.world.reset_connections(site.nodes[0], node),
                1 => {
                    site.world.partition(site.nodes[0], node);
                    site.world.after(Duration::from_millis(prng.between(1, 900)), {
                        let store = site.nodes[0];
                        move |world| world.heal(store, node)
                    });
                }
                _ => {
                    site.world.kill(site.nodes[0]);
                    kills += 1;
                    site.world.run_for(Duration::from_millis(prng.below(300)));
                    shared = site.start_store();
                }
            }
        }
        site.world.run_for(Duration::from_secs(3));
        for client in &clients {
            client.is_stopped.set(true);
        }
        for (life, (handle, ..)) in living.into_iter().zip(&engines) {
            site.world.block_on(handle, life);
        }
        for ((handle, store, engine), client) in engines.into_iter().zip(clients) {
            acknowledged += client.acknowledged.get();
            failed += client.failed.get();
            let shared = shared.clone();
            site.world.block_on(&handle, async move {
                for slot in 0..SLOTS {
                    client.check(&engine, slot, true).await;
                }
                assert_eq!(engine.audit().await.expect("it can be read"), Vec::<String>::new(), "seed {seed}");
                engine.close().await.expect("nothing is wrong any more");
                let ids = |infos: Vec<files::FileInfo>| infos.iter().map(|info| info.id).collect::<Vec<_>>();
                let there = ids(shared.files_of(store.incarnation()));
                assert_eq!(there, ids(store.list()), "seed {seed}: no file is there that its engine does not know");
            });
        }
        let lives = shared.lives();
        let claimed: u64 = lives.iter().map(|life| life.granted_bytes.max(life.used_bytes)).sum();
        assert!(lives.len() == ENGINES && claimed <= CAPACITY, "{lives:?}");
    }
    println!("{acknowledged} acknowledged, {failed} failed, {kills} kills");
    assert!(acknowledged > 5000 && kills > 20, "{acknowledged} acknowledged, {failed} failed, {kills} kills");
}
