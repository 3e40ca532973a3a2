//! One world: the store, the engines, who has what, and the end.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use base::{Epoch, FileId, Incarnation, KIB, MIB, Prng, SegmentId, VolumeId};
use engine::{Engine, Options, Ownership};
use files::memory::{Memory, MemoryOptions};
use files::shared::{Shared, SharedOptions};
use files::{FileInfo, FileKind, Store};
use policies::gc::GcSettings;
use runtime::sim::{NodeOptions, World};
use runtime::{Class, Handle};

use super::{clients, manager};
use crate::Coverage;
use crate::sectors::Sectors;

/// Sectors of each segment that are used; each client writes to its own part of them.
pub const SECTORS: u64 = 8 * 8 * 16;
/// How often, and how many times, files are looked at until nothing is left.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const LOOKS_MAX: u64 = 200;
/// Clients, all of which use every segment.
pub const CLIENTS: u64 = 3;

/// An engine and its store. It may have been declared dead.
#[derive(Clone)]
pub struct Member {
    pub store: Store,
    pub engine: Engine,
}

impl Member {
    pub fn incarnation(&self) -> Incarnation {
        self.store.incarnation()
    }
}

/// Who has a segment, as clients are told.
#[derive(Clone)]
pub struct Owner {
    pub member: Member,
    pub epoch: Epoch,
}

/// What everybody knows.
pub struct State {
    pub sectors: Sectors,
    pub prng: Prng,
    /// None while a segment is on its way.
    pub owners: BTreeMap<SegmentId, Option<Owner>>,
    pub failure: Option<String>,
    pub operations_left: u64,
    pub next_write: u64,
    /// Copies that go on although they were refused.
    pub copies: u64,
    pub counts: BTreeMap<&'static str, u64>,
}

impl State {
    pub fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }

    pub fn owner(&self, segment: SegmentId) -> Option<Owner> {
        self.owners[&segment].clone()
    }
}

/// See [`State`].
pub type Share = Rc<RefCell<State>>;

/// What the world is made of.
#[derive(Clone)]
pub struct Bed {
    pub handle: Handle,
    pub memory: Memory,
    pub shared: Shared,
    pub options: Options,
    pub share: Share,
}

impl Bed {
    /// One more engine.
    pub async fn join(&self) -> Member {
        let store = self.shared.join().await.expect("there is room");
        let engine =
            Engine::open(&self.handle, &store, self.options.clone()).await.expect("there is nothing to recover");
        Member { store, engine }
    }

    pub fn prng<T>(&self, draw: impl FnOnce(&mut Prng) -> T) -> T {
        draw(&mut self.share.borrow_mut().prng)
    }

    pub fn count(&self, name: &'static str) {
        self.add(name, 1);
    }

    pub fn add(&self, name: &'static str, count: u64) {
        *self.share.borrow_mut().counts.entry(name).or_default() += count;
    }

    pub fn fail(&self, what: String) {
        self.share.borrow_mut().failure.get_or_insert(what);
    }

    /// Counts what an engine did.
    pub fn count_work(&self, member: &Member) {
        let statistics = member.engine.statistics();
        self.add("checkpoints", statistics.checkpoints);
        self.add("merges", statistics.index_tables.merges);
        self.add("gc_removed_files", statistics.gc.removed_files);
        self.add("strays", statistics.strays);
    }

    /// A pause of some microseconds to some milliseconds.
    pub async fn pause(&self, most_us: u64) {
        let us = self.prng(|prng| prng.below(most_us));
        self.handle.sleep(Duration::from_micros(us)).await;
    }
}

fn options(prng: &mut Prng) -> Options {
    let kib = |prng: &mut Prng, low: u64, high: u64| prng.between(low / 4, high / 4) * 4 * KIB;
    Options {
        segment_cache_bytes: kib(prng, 16, 128),
        dump_age: Duration::from_millis(prng.between(1, 200)),
        page_cache_bytes: 64 * KIB,
        memtable_bytes_max: kib(prng, 4, 64),
        journal_file_bytes: 512 * KIB,
        journal_files: prng.between(2, 3) as usize,
        data_file_bytes: kib(prng, 64, 256),
        transaction_file_bytes: kib(prng, 64, 128),
        large_write_bytes: *prng.pick(&[8 * KIB, 64 * KIB]),
        gc: GcSettings { copy_bytes_per_sec: 1 << 30, ..GcSettings::default() },
        copies: 2,
        ownership: Ownership::Given,
        ..Options::default()
    }
}

/// Runs one world.
///
/// # Panics
/// Where something is not as it should be; names the seed.
pub fn run_seed(seed: u64, coverage: &mut Coverage) {
    let world = World::new(seed);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    let mut prng = Prng::new(seed);
    let options = options(&mut prng);
    let volumes = prng.between(1, 2);
    let segments: Vec<SegmentId> = (1..=volumes)
        .flat_map(|volume| (0..3).map(move |index| SegmentId { volume: VolumeId(volume), index }))
        .collect();
    let operations = prng.between(50, 400);
    let share = Rc::new(RefCell::new(State {
        sectors: Sectors::new(0..SECTORS),
        prng,
        owners: segments.iter().map(|segment| (*segment, None)).collect(),
        failure: None,
        operations_left: operations,
        next_write: 1,
        copies: 0,
        counts: BTreeMap::new(),
    }));
    let (inside, shared_state) = (handle.clone(), share.clone());
    world.block_on(&handle, async move { run(seed, inside, options, shared_state).await });
    let share = share.borrow();
    if let Some(failure) = &share.failure {
        panic!("{failure}\nreplay: LEVEE_SEED={seed} cargo test -p engine --test ownership");
    }
    share.counts.iter().for_each(|(name, count)| coverage.add(name, *count));
}

async fn run(seed: u64, handle: Handle, options: Options, share: Share) {
    // Sometimes so slow that much happens while something is on its way.
    let slowest_ns = *share.borrow_mut().prng.pick(&[100_000, 100_000, 2_000_000]);
    let memory_options = MemoryOptions { directories: 2, capacity: 512 * MIB, latency_ns: 10_000..slowest_ns };
    let memory = Memory::new(seed, memory_options);
    let shared_options = SharedOptions { grant_bytes: 8 * MIB, ..SharedOptions::default() };
    let shared = Shared::open(&handle, memory.open(&handle), shared_options).await.expect("an empty store");
    let bed = Bed { handle: handle.clone(), memory, shared, options, share: share.clone() };
    let mut manager = manager::Manager::begin(&bed).await;
    let clients: Vec<_> =
        (0..CLIENTS).map(|number| handle.spawn(Class::Io, "client", clients::client(bed.clone(), number))).collect();
    while clients.iter().any(|client| !client.is_finished()) {
        bed.pause(4_000).await;
        manager.act().await;
        if share.borrow().failure.is_some() {
            return;
        }
    }
    manager.settle().await;
    bed.memory.clear_faults();
    clients::read_everything(&bed).await;
    check_files(&bed, &manager).await;
    manager.drop_everything().await;
    manager.settle().await;
    check_files(&bed, &manager).await;
    for member in manager.living() {
        if let Err(error) = member.engine.close().await {
            share.borrow_mut().failure.get_or_insert(format!("a living engine did not close: {error}"));
        }
        bed.count_work(member);
    }
}

/// When nothing is under way any more, the store has what living engines refer to, and their logs, and nothing else.
async fn check_files(bed: &Bed, manager: &manager::Manager) {
    while bed.share.borrow().copies > 0 {
        bed.pause(2_000).await;
    }
    for member in manager.living() {
        if let Err(error) = member.engine.remove_strays().await {
            bed.fail(format!("strays of {}: {error}", member.incarnation()));
        }
    }
    // What nobody refers to is removed in the background.
    for _ in 0..LOOKS_MAX {
        let left = look_at_files(bed, manager);
        match left.first() {
            None => return,
            Some(_) => bed.handle.sleep(LOOK_AGAIN).await,
        }
    }
    for info in look_at_files(bed, manager) {
        bed.fail(format!("nobody refers to what was left: {info:?}"));
    }
}

/// Whatever a living engine refers to is there, says so, and is of no other one. Gives the files to which nobody refers.
fn look_at_files(bed: &Bed, manager: &manager::Manager) -> Vec<FileInfo> {
    let mut named: BTreeSet<FileId> = BTreeSet::new();
    for segment in manager.living().iter().flat_map(|member| member.engine.segments()) {
        for file in segment.files() {
            let what = match bed.shared.find(file) {
                None => "it is missing",
                Some(info) if info.segment != Some(segment.segment) => "it says that it is of another segment",
                Some(info) if info.epoch > segment.tenure.epoch => "it says that it was made later",
                Some(_) if !named.insert(file) => "two segments refer to it",
                Some(_) => continue,
            };
            bed.fail(format!("{}: file {file}: {what}", segment.segment));
        }
    }
    let living: BTreeSet<Incarnation> = manager.living().iter().map(Member::incarnation).collect();
    let is_needed = |info: &FileInfo| match info.kind {
        FileKind::Data | FileKind::Table => named.contains(&info.id),
        FileKind::Journal | FileKind::Transaction => living.contains(&info.incarnation),
        FileKind::Log | FileKind::Incarnation => false,
    };
    let all = bed.shared.lives().into_iter().flat_map(|life| bed.shared.files_of(life.incarnation));
    all.filter(|info| !is_needed(info)).collect()
}
