//! Several engines in processes of their own over one shared store, which is killed and started again while they write
//! and read: what was acknowledged is there, and wrong bytes are nowhere. And segments that are taken over from engines
//! that were fenced in the middle of their work, and live on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::io::{ReadPart, fragment_checksums};
use base::{
    Bytes, Epoch, ErrorKind, Generation, Incarnation, KIB, MIB, Prng, Result, SegmentId, VolumeId, WriteSequence,
    WriteStamp,
};
use engine::ownership::estate::{Estate, Holding};
use engine::{Engine, Options, Ownership, Tenure};
use files::memory::{Memory, MemoryOptions};
use files::remote::{self, RemoteOptions};
use files::served::Served;
use files::shared::{Shared, SharedOptions};
use files::{FileKind, Store};
use link::stream::{self, FarEnd, NearEnd, Services};
use runtime::sim::{NodeId, NodeOptions, World};
use runtime::{Address, Class, Handle};

const ENGINES: usize = 3;
const CAPACITY: u64 = 512 * MIB;
const SLOT_BYTES: u64 = 16 * KIB;
const SLOTS: u64 = 96;
/// How often, and after which pauses, an audit is asked again before what it finds counts.
const AUDITS: u64 = 8;
const AUDIT_PAUSE: Duration = Duration::from_millis(100);
const GENERATION: Generation = Generation(1);
/// Long enough for any restart here.
const PATIENCE: Duration = Duration::from_secs(20);

fn stream_options(name: &str) -> stream::Options {
    stream::Options { silence: Duration::from_millis(400), ..stream::Options::new(name) }
}

fn engine_options(ownership: Ownership) -> Options {
    Options {
        copies: 2,
        journal_file_bytes: MIB,
        journal_files: 2,
        data_file_bytes: 2 * MIB,
        transaction_file_bytes: 256 * KIB,
        segment_cache_bytes: 128 * KIB,
        ownership,
        ..Options::default()
    }
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
            let options = SharedOptions { grant_bytes: 24 * MIB, ..SharedOptions::default() };
            let shared = Shared::open(&inside, below, options).await.expect("it was a good store before");
            let services = Services { files: Some(Served::new(shared.clone())), ..Services::default() };
            let end = FarEnd::new(&inside, services, stream_options("the store"));
            end.serve(inside.listen(&address).await.expect("nobody else is there"));
            shared
        })
    }

    fn open_engine(&self, index: usize, ownership: Ownership) -> (Handle, Store, Engine) {
        let handle = self.world.start_loop(self.nodes[index + 1]);
        let (inside, address) = (handle.clone(), self.address.clone());
        let (store, engine) = self.world.block_on(&handle, async move {
            let near = NearEnd::dial(&inside, address, Services::default(), stream_options("an engine"));
            let options = RemoteOptions { patience: PATIENCE, ..RemoteOptions::new("the store") };
            let store = remote::join(&inside, Rc::new(near), options).await.expect("there is room");
            let engine =
                Engine::open(&inside, &store, engine_options(ownership)).await.expect("there is nothing to recover");
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
    last: Cell<u64>,
    /// Its engine has the segment no more.
    is_over: Cell<bool>,
    is_stopped: Cell<bool>,
}

/// Says that the engine has the segment no more.
fn is_over(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Fenced | ErrorKind::Moved)
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
            last: Cell::default(),
            is_over: Cell::default(),
            is_stopped: Cell::default(),
        })
    }

    async fn live(self: Rc<Self>, handle: Handle, engine: Engine, mut prng: Prng) {
        while !self.is_stopped.get() && !self.is_over.get() {
            let slot = prng.below(SLOTS);
            if prng.one_in(4) {
                self.check(&engine, slot, false).await;
                continue;
            }
            self.last.set(self.last.get() + 1);
            // From 64 KiB on a write goes past the journal: four slots at once, sometimes.
            let slots: Vec<u64> = if prng.one_in(8) { (slot / 4 * 4..slot / 4 * 4 + 4).collect() } else { vec![slot] };
            let value = (self.segment.volume.0 << 32) | self.last.get();
            let data: Bytes = slots.iter().flat_map(|_| content(value)).collect::<Vec<u8>>().into();
            let offset = slots[0] * SLOT_BYTES;
            for slot in &slots {
                self.slots.borrow_mut().entry(*slot).or_default().1.push(value);
            }
            let checksums = fragment_checksums(self.segment, offset, &data);
            let sequence = WriteSequence(self.last.get());
            let stamp = WriteStamp { generation: GENERATION, sequence, ..WriteStamp::default() };
            match engine.write(self.segment, offset, data, checksums, stamp).await {
                Ok(()) => {
                    self.acknowledged.set(self.acknowledged.get() + 1);
                    for slot in &slots {
                        self.slots.borrow_mut().insert(*slot, (value, Vec::new()));
                    }
                }
                Err(error) if is_over(error.kind) => self.is_over.set(true),
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
                assert!(!must && (error.kind == ErrorKind::Io || is_over(error.kind)), "{error:?}");
                self.is_over.set(self.is_over.get() || is_over(error.kind));
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
        let engines: Vec<_> = (0..ENGINES).map(|index| site.open_engine(index, Ownership::Whole)).collect();
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
        assert!(clients.iter().all(|client| !client.is_over.get()), "seed {seed}: nobody was fenced");
        for ((handle, store, engine), client) in engines.into_iter().zip(clients) {
            acknowledged += client.acknowledged.get();
            failed += client.failed.get();
            let shared = shared.clone();
            let inside = handle.clone();
            site.world.block_on(&handle, async move {
                for slot in 0..SLOTS {
                    client.check(&engine, slot, true).await;
                }
                // Files that records have just made garbage go one after the other: what is found counts if it stays.
                for _ in 0..AUDITS {
                    if engine.audit().await.expect("it can be read").is_empty() {
                        break;
                    }
                    inside.sleep(AUDIT_PAUSE).await;
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

/// Decides where the log of `dead` ends, for the one who is to adopt. Fences it first.
async fn recover(handle: Handle, own: Store, dead: Incarnation, segment: SegmentId, before: Tenure) -> Result<()> {
    let options = engine_options(Ownership::Given);
    let estate = Estate::open(&handle, &own, dead, &options).await?;
    assert_eq!(estate.holdings(), [(segment, Holding::Owned(before))].into());
    let early = Estate::open_sealed(&handle, &own, dead, &options, &[segment].into()).await;
    assert_eq!(early.map(drop).map_err(|error| error.kind), Err(ErrorKind::Retry), "its logs are not sealed");
    estate.seal().await
}

/// Adopts a segment that `dead` had. Gives how much its journals still held.
async fn adopt(
    handle: Handle,
    own: Store,
    engine: Engine,
    dead: Incarnation,
    segment: SegmentId,
    tenure: Tenure,
) -> Result<u64> {
    let options = engine_options(Ownership::Given);
    let estate = Estate::open_sealed(&handle, &own, dead, &options, &[segment].into()).await?;
    let left = estate.take(segment).await?;
    // Also files of lives before that one: without that no copy of them is mended, and no space counted.
    assert!(left.files().all(|file| own.info(file).is_some()), "the store was asked for all of them");
    engine.adopt(dead, left, tenure).await?;
    // All that it held was adopted.
    for info in own.files_of(dead).await? {
        if matches!(info.kind, FileKind::Journal | FileKind::Transaction) {
            own.delete(info.id).await?;
        }
    }
    Ok(estate.recovery().journal_records)
}

/// The segment goes from machine to machine, so that who takes it over refers to files of each one before. On every
/// machine there are several lives; nobody stops those that were fenced.
#[test]
fn a_segment_is_taken_over_from_an_engine_that_lives_on() {
    let (mut acknowledged, mut replayed, mut files_of_others) = (0, 0, 0);
    for seed in 0..16 {
        let site = Site::new(seed);
        let mut prng = site.world.fork_prng();
        let shared = site.start_store();
        let client = Client::new(1);
        let segment = client.segment;
        let tenure = |number: u64| Tenure { epoch: Epoch(number << 32), generation: GENERATION };
        let mut owner = site.open_engine(0, Ownership::Given);
        let creator = owner.2.clone();
        site.world.block_on(&owner.0, async move {
            creator.create_segment(segment, tenure(1)).await.expect("nothing fails yet")
        });
        let mut former = Vec::new();
        for number in 2..=4_u64 {
            let life = client.clone().live(owner.0.clone(), owner.2.clone(), prng.fork());
            let life = owner.0.spawn(Class::Io, "client", life);
            site.world.run_for(Duration::from_millis(prng.between(50, 900)));
            let adopter = site.open_engine(number as usize % ENGINES, Ownership::Given);
            let recoverer = site.open_engine((number as usize + 1) % ENGINES, Ownership::Given);
            // Connections break meanwhile.
            for _ in 0..prng.below(4) {
                let (store, node) = (site.nodes[0], site.nodes[prng.between(1, ENGINES as u64) as usize]);
                let at = Duration::from_millis(prng.below(60));
                site.world.after(at, move |world| world.reset_connections(store, node));
            }
            let dead = owner.1.incarnation();
            let recovered = recover(recoverer.0.clone(), recoverer.1.clone(), dead, segment, tenure(number - 1));
            site.world.block_on(&recoverer.0, recovered).unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
            let (handle, store, engine) = adopter.clone();
            let adopted = adopt(handle, store, engine, dead, segment, tenure(number));
            let adopted = site.world.block_on(&adopter.0, adopted);
            replayed += adopted.unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
            site.world.block_on(&owner.0, life);
            assert!(client.is_over.replace(false), "seed {seed}: its engine was fenced");
            former.push(std::mem::replace(&mut owner, adopter));
            former.push(recoverer);
            let (reader, engine) = (client.clone(), owner.2.clone());
            site.world.block_on(&owner.0, async move {
                for slot in 0..SLOTS {
                    reader.check(&engine, slot, true).await;
                }
                assert_eq!(engine.audit().await.expect("it can be read"), Vec::<String>::new(), "seed {seed}");
            });
        }
        acknowledged += client.acknowledged.get();
        for file in owner.2.segments().iter().flat_map(|segment| segment.files().collect::<Vec<_>>()) {
            let info = shared.find(file).unwrap_or_else(|| panic!("seed {seed}: file {file} is missing"));
            files_of_others += u64::from(info.incarnation != owner.1.incarnation());
        }
    }
    println!(
        "{acknowledged} acknowledged, {replayed} of them replayed by an adopter, {files_of_others} files of others"
    );
    assert!(acknowledged > 2000 && replayed > 100 && files_of_others > 20);
}

/// A life that is over may read nothing any more, and calls nothing lost for that.
#[test]
fn what_is_fenced_finds_nothing_lost() {
    let site = Site::new(3);
    let shared = site.start_store();
    let [(handle, store, engine), (_, other, _)] = [0, 1].map(|index| site.open_engine(index, Ownership::Whole));
    site.world.block_on(&handle, async move {
        let segment = SegmentId { volume: VolumeId(1), index: 0 };
        let write = async |number: u64| {
            let (offset, data) = (number * 128 * KIB, Bytes::from(vec![7; 128 << 10]));
            let checksums = fragment_checksums(segment, offset, &data);
            engine.write(segment, offset, data, checksums, WriteStamp::default()).await
        };
        for number in 0..16 {
            write(number).await.expect("there is room");
        }
        assert!(engine.scrub().await == 0 && engine.statistics().scrub.read_bytes >= 2 * MIB);
        other.fence(store.incarnation()).await.expect("nothing fails");
        assert_eq!(write(0).await.expect_err("it was fenced").kind, ErrorKind::Fenced);
        let before = engine.statistics().scrub.read_bytes;
        let (lost, after) = (engine.scrub().await, engine.statistics());
        assert!(after.scrub.read_bytes < before + MIB, "it reads nothing");
        assert_eq!((lost, after.scrub.lost), (0, 0));
    });
    drop(shared);
}
