//! One world: the store, the servers, the volume as it is attached, and the end.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use agent::{Router, RouterOptions};
use base::{Epoch, Error, FileId, Generation, Incarnation, KIB, MIB, Prng, Result, SegmentId, VolumeId};
use engine::{Engine, Options, Ownership};
use files::memory::{Memory, MemoryOptions};
use files::shared::{Shared, SharedOptions};
use files::{FileKind, Store};
use policies::gc::GcSettings;
use runtime::sim::{NodeOptions, World};
use runtime::{Class, Handle};
use server::{Owner, Server};
use wire::{BlockService, LocalBoxFuture, Located, SegmentDirectory, SessionId, VolumeDescriptor};

use crate::links::Link;
use crate::sectors::{OpId, Sectors};
use crate::{Coverage, clients, managed, manager};

/// Sectors of each segment that are used; each client writes to its own part of them.
pub const SECTORS: u64 = 8 * 8 * 8;
pub const CLIENTS: u64 = 3;
pub const VOLUME: VolumeId = VolumeId(1);
pub const SEGMENTS: u32 = 4;
/// How often, and how many times, files are looked at until nothing is left.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const LOOKS_MAX: u64 = 200;

/// A server. It may have been declared dead.
#[derive(Clone)]
pub struct Member {
    pub store: Store,
    pub server: Rc<Server<Engine>>,
    pub owner: Rc<Owner>,
}

impl Member {
    pub fn incarnation(&self) -> Incarnation {
        self.store.incarnation()
    }
}

/// The volume as it is attached.
#[derive(Clone)]
pub struct Hold {
    pub router: Rc<Router>,
    pub session: SessionId,
    pub generation: Generation,
}

/// Who has a segment, and under which epoch.
pub type Locate = Rc<dyn Fn(SegmentId) -> Option<(Incarnation, Epoch)>>;

/// What everybody knows.
pub struct State {
    pub sectors: Sectors,
    pub prng: Prng,
    /// None while a segment is on its way.
    pub owners: BTreeMap<SegmentId, Option<(Incarnation, Epoch)>>,
    /// Every server that there ever was.
    pub members: BTreeMap<Incarnation, Member>,
    pub volume: VolumeDescriptor,
    pub hold: Option<Hold>,
    /// The newest attachment that has returned.
    pub attached: Generation,
    /// Writes of older attachments of which nobody knows the outcome.
    pub in_doubt: Vec<(Generation, OpId)>,
    /// Who says where segments are, instead of `owners`.
    pub locate: Option<Locate>,
    pub failure: Option<String>,
    pub operations_left: u64,
    pub next_write: u64,
    /// Links are good from now on.
    pub is_over: bool,
    pub counts: BTreeMap<&'static str, u64>,
}

/// See [`State`].
pub type Share = Rc<RefCell<State>>;

/// What the world is made of.
#[derive(Clone)]
pub struct Bed {
    pub handle: Handle,
    pub shared: Shared,
    pub options: Options,
    pub share: Share,
}

impl Bed {
    /// One more server.
    pub async fn join(&self) -> Member {
        let store = self.shared.join().await.unwrap();
        let engine = Engine::open(&self.handle, &store, self.options.clone()).await.unwrap();
        let options = server::Options {
            requests_max: self.prng(|prng| prng.between(1, 8)) as usize,
            ..server::Options::default()
        };
        let server = Server::told(&self.handle, engine, options);
        let owner = Owner::new(&self.handle, server.clone(), &store, self.options.clone());
        let member = Member { store, server, owner };
        self.share.borrow_mut().members.insert(member.incarnation(), member.clone());
        member
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

    pub fn has_failed(&self) -> bool {
        self.share.borrow().failure.is_some()
    }

    /// A pause of some microseconds to some milliseconds.
    pub async fn pause(&self, most_us: u64) {
        let us = self.prng(|prng| prng.below(most_us));
        self.handle.sleep(Duration::from_micros(us)).await;
    }

    /// The volume is attached anew: what older attachments had in flight has its outcome.
    pub fn on_attached(&self, hold: Hold) {
        let mut state = self.share.borrow_mut();
        state.attached = hold.generation;
        let old = state.hold.replace(hold);
        for (_, op) in std::mem::take(&mut state.in_doubt) {
            state.sectors.on_settled(op);
        }
        drop(state);
        self.count("attachments");
        self.count_routes(old);
    }

    /// Counts what a router did.
    pub fn count_routes(&self, hold: Option<Hold>) {
        let statistics = hold.map(|hold| hold.router.statistics()).unwrap_or_default();
        self.add("routes_moved", statistics.moved);
        self.add("routes_broken", statistics.broken);
        self.add("replies_stale", statistics.stale);
    }

    /// A new router, and the volume attached by it.
    pub async fn attach(&self, generation: Generation) -> Hold {
        let bed = self.clone();
        let connect = move |to: &Located| -> Rc<dyn BlockService> {
            let server = bed.share.borrow().members[&to.owner].server.clone();
            Rc::new(Link { bed: bed.clone(), server })
        };
        let options = RouterOptions { patience: Duration::from_secs(30), ..RouterOptions::default() };
        let router = Router::new(&self.handle, Rc::new(self.clone()), Rc::new(connect), options);
        let session = router.attach(VOLUME, generation).await.unwrap().session;
        Hold { router, session, generation }
    }
}

impl SegmentDirectory for Bed {
    fn locate(&self, segment: SegmentId) -> LocalBoxFuture<'_, Result<Located>> {
        Box::pin(async move {
            self.pause(300).await;
            let locate = self.share.borrow().locate.clone();
            let owner = match locate {
                Some(locate) => locate(segment),
                None => self.share.borrow().owners[&segment],
            };
            let (owner, epoch) = owner.ok_or_else(|| Error::retry(format!("{segment} is on its way")))?;
            Ok(Located { owner, address: String::new(), epoch })
        })
    }
}

fn options(prng: &mut Prng) -> Options {
    Options {
        segment_cache_bytes: prng.between(4, 32) * 4 * KIB,
        dump_age: Duration::from_millis(prng.between(1, 200)),
        page_cache_bytes: 64 * KIB,
        memtable_bytes_max: prng.between(1, 16) * 4 * KIB,
        journal_file_bytes: 512 * KIB,
        journal_files: prng.between(2, 3) as usize,
        data_file_bytes: prng.between(16, 64) * 4 * KIB,
        transaction_file_bytes: prng.between(16, 32) * 4 * KIB,
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
pub fn run_seed(seed: u64, who: Who, coverage: &mut Coverage) {
    let world = World::new(seed);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    let mut prng = Prng::new(seed);
    let options = options(&mut prng);
    let operations_left = prng.between(50, 300);
    let segments = (0..SEGMENTS).map(|index| SegmentId { volume: VOLUME, index });
    let share = Rc::new(RefCell::new(State {
        sectors: Sectors::new(0..SECTORS),
        prng,
        owners: segments.map(|segment| (segment, None)).collect(),
        members: BTreeMap::new(),
        volume: VolumeDescriptor {
            generation: Generation(1),
            ..VolumeDescriptor::new(VOLUME, "disk", 128 * base::GIB)
        },
        hold: None,
        attached: Generation(1),
        in_doubt: Vec::new(),
        locate: None,
        failure: None,
        operations_left,
        next_write: 1,
        is_over: false,
        counts: BTreeMap::new(),
    }));
    let (inside, state) = (handle.clone(), share.clone());
    world.block_on(&handle, async move { run(seed, who, inside, options, state).await });
    let share = share.borrow();
    if let Some(failure) = &share.failure {
        panic!("{failure}\nreplay: LEVEE_SEED={seed} cargo test -p node --test change_hands");
    }
    for (name, count) in &share.counts {
        *coverage.0.entry(name).or_default() += count;
    }
}

/// Who decides who has what.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// One who makes no mistake and never dies.
    One,
    /// Managers as they are.
    Managers,
}

enum Deciding {
    One(manager::Manager),
    Managers(managed::Managed),
}

async fn run(seed: u64, who: Who, handle: Handle, options: Options, share: Share) {
    // Sometimes so slow that much happens while something is on its way.
    let slowest_ns = *share.borrow_mut().prng.pick(&[100_000, 100_000, 2_000_000]);
    let memory_options = MemoryOptions { directories: 2, capacity: 512 * MIB, latency_ns: 10_000..slowest_ns };
    let memory = Memory::new(seed, memory_options);
    let shared_options = SharedOptions { grant_bytes: 8 * MIB, ..SharedOptions::default() };
    let shared = Shared::open(&handle, memory.open(&handle), shared_options).await.unwrap();
    let bed = Bed { handle: handle.clone(), shared, options, share: share.clone() };
    let mut deciding = match who {
        Who::One => Deciding::One(manager::Manager::begin(&bed).await),
        Who::Managers => Deciding::Managers(managed::Managed::begin(&bed).await),
    };
    let hold = bed.attach(Generation(1)).await;
    share.borrow_mut().hold = Some(hold);
    let clients: Vec<_> =
        (0..CLIENTS).map(|number| handle.spawn(Class::Io, "client", clients::client(bed.clone(), number))).collect();
    while clients.iter().any(|client| !client.is_finished()) && !bed.has_failed() {
        bed.pause(4_000).await;
        match &mut deciding {
            Deciding::One(manager) => manager.act().await,
            Deciding::Managers(managed) => managed.act().await,
        }
    }
    share.borrow_mut().is_over = true;
    if let Deciding::Managers(managed) = &mut deciding {
        managed.settle().await;
    }
    let hold = share.borrow().hold.clone();
    bed.count_routes(hold);
    if !bed.has_failed() {
        clients::read_everything(&bed).await;
        check_files(&bed, who).await;
    }
}

/// When nothing is under way any more, there are the files that living engines refer to, their logs, and those of
/// managers.
async fn check_files(bed: &Bed, who: Who) {
    let is_living = |incarnation| bed.shared.life(incarnation).is_some_and(|life| !life.is_fenced);
    let members = bed.share.borrow().members.clone();
    let living: Vec<Member> = members.into_values().filter(|member| is_living(member.incarnation())).collect();
    let mut left = Vec::new();
    for _ in 0..LOOKS_MAX {
        // Orders and copies may be on their way still.
        for member in &living {
            if let Err(error) = member.server.backend().remove_strays().await {
                return bed.fail(format!("strays of {}: {error}", member.incarnation()));
            }
        }
        let segments = living.iter().flat_map(|member| member.server.backend().segments());
        let named: BTreeSet<FileId> = segments.flat_map(|segment| segment.files().collect::<Vec<_>>()).collect();
        if let Some(missing) = named.iter().find(|file| bed.shared.find(**file).is_none()) {
            return bed.fail(format!("file {missing} is referred to, and is missing"));
        }
        let all = bed.shared.lives().into_iter().flat_map(|life| bed.shared.files_of(life.incarnation));
        left = all.collect();
        left.retain(|info| match info.kind {
            FileKind::Data | FileKind::Table => !named.contains(&info.id),
            // The one who makes no mistake leaves them.
            FileKind::Journal | FileKind::Transaction => who == Who::Managers && !is_living(info.incarnation),
            FileKind::Log | FileKind::Incarnation => false,
        });
        if left.is_empty() {
            return;
        }
        bed.handle.sleep(LOOK_AGAIN).await;
    }
    bed.fail(format!("nobody refers to what was left: {left:?}"));
}
