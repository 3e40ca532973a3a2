//! Case by case: what becomes of each question that has no answer.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use base::{AlignedBuf, BLOCK, Bytes, Epoch, ErrorKind, FileId, KIB, MIB, Prng, Result};
use files::memory::{Memory, MemoryOptions};
use files::remote::{self, RemoteOptions};
use files::served::Served;
use files::shared::{Shared, SharedOptions};
use files::{CreateOptions, FileKind, FileWriter, Redundancy, Store};
use link::stream::{FarEnd, NearEnd, Services};
use runtime::sim::{NodeOptions, World};
use runtime::{Address, Class, Handle, Stream};
use wire::FileService;

use crate::forgetful::{Asked, Forgetful, Lost};
use crate::model::Model;
use crate::site::{Below, Running, SILENCE, Site, stream_options};

const PATIENCE: Duration = Duration::from_secs(3);

fn options(kind: FileKind) -> CreateOptions {
    CreateOptions {
        kind,
        capacity: MIB,
        redundancy: Redundancy::Copies(2),
        prepared: false,
        epoch: Epoch(1),
        segment: None,
        claim: files::Claim::Use,
    }
}

fn remote_options() -> RemoteOptions {
    RemoteOptions { patience: PATIENCE, ..RemoteOptions::new("the store") }
}

fn blocks(byte: u8, count: usize) -> Bytes {
    let mut buffer = AlignedBuf::zeroed(count * BLOCK as usize);
    buffer.fill(byte);
    buffer.freeze()
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    result.map(drop).unwrap_err().kind
}

/// A shared store on the same loop as its lives, and ways to it on which answers are lost.
struct Bed {
    handle: Handle,
    memory: Memory,
}

impl Bed {
    async fn open(&self) -> Shared {
        let options = SharedOptions { grant_bytes: 16 * MIB, ..SharedOptions::default() };
        Shared::open(&self.handle, self.memory.open(&self.handle), options).await.unwrap()
    }

    /// A way on which the next answers to these are lost.
    fn way(&self, served: &Rc<Served>, next: &[Asked]) -> Rc<Forgetful> {
        Rc::new(Forgetful {
            behind: RefCell::new(served.clone()),
            next: RefCell::new(next.to_vec()),
            prng: RefCell::new(Prng::new(1)),
            forgets_one_in: 0,
            late: None,
            lost: Rc::new(Lost::default()),
            model: Rc::new(Model::default()),
        })
    }

    async fn join(&self, way: &Rc<Forgetful>) -> Store {
        remote::join(&self.handle, way.clone(), remote_options()).await.unwrap()
    }
}

fn run<F: Future<Output = ()> + 'static>(act: impl FnOnce(Bed) -> F) {
    let world = World::new(3);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    let options = MemoryOptions { capacity: 256 * MIB, directories: 2, ..MemoryOptions::default() };
    let bed = Bed { memory: Memory::new(7, options), handle: handle.clone() };
    world.block_on(&handle, act(bed));
}

fn ids(store: &Store) -> Vec<FileId> {
    store.list().iter().map(|info| info.id).collect()
}

#[test]
fn a_creation_without_an_answer_is_done_again_and_leaves_nothing() {
    run(|bed| async move {
        let shared = bed.open().await;
        let way = bed.way(&Served::new(shared.clone()), &[Asked::Create, Asked::Create, Asked::Enter, Asked::Delete]);
        let store = bed.join(&way).await;
        let used = store.space().used;
        let [first, second] = [0, 1].map(|_| store.create(options(FileKind::Journal)));
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        assert_eq!((way.lost.created.get(), way.next.borrow().len()), (2, 0), "two were made for nobody");
        assert_eq!(ids(&store), [first.id(), second.id()]);
        let there: Vec<FileId> = shared.files_of(store.incarnation()).iter().map(|info| info.id).collect();
        assert_eq!(there, ids(&store));
        assert_eq!(store.space().used, used + 2 * MIB);
    });
}

#[test]
fn an_append_without_an_answer_is_not_done_again_and_its_file_takes_no_more() {
    run(|bed| async move {
        let shared = bed.open().await;
        let way = bed.way(&Served::new(shared.clone()), &[]);
        let store = bed.join(&way).await;
        let mut writer = store.create(options(FileKind::Journal)).await.unwrap();
        let mut other = store.create(options(FileKind::Journal)).await.unwrap();
        writer.append(blocks(1, 1)).await.unwrap();
        way.next.borrow_mut().push(Asked::Append);
        let error = writer.append(blocks(2, 1)).await.unwrap_err();
        assert!(error.kind == ErrorKind::Io && error.message.contains("nobody knows"), "{error}");
        let error = writer.append(blocks(3, 1)).await.unwrap_err();
        assert!(error.kind == ErrorKind::Io && error.message.contains("go on in a new one"), "{error}");
        other.append(blocks(4, 1)).await.unwrap();
        assert_eq!(store.read(writer.id(), 8192, 4096).await.unwrap()[..], blocks(0, 1)[..], "none was done after it");
        // The answer to the seal is lost, too.
        way.next.borrow_mut().push(Asked::Seal);
        store.seal(writer.id(), 4096).await.unwrap();
        assert_eq!(store.info(writer.id()).unwrap().sealed, Some(4096));
        way.next.borrow_mut().push(Asked::Delete);
        store.delete(writer.id()).await.unwrap();
        assert!(shared.find(writer.id()).is_none() && store.info(writer.id()).is_none());
    });
}

#[test]
fn a_life_that_does_not_come_about_leaves_nothing() {
    run(|bed| async move {
        let shared = bed.open().await;
        let way = bed.way(&Served::new(shared.clone()), &[Asked::Join, Asked::Enter, Asked::Join, Asked::Enter]);
        let store = bed.join(&way).await;
        assert!(way.next.borrow().is_empty());
        let lives: Vec<_> = shared.lives().iter().map(|life| life.incarnation).collect();
        assert_eq!(lives, [store.incarnation()]);
        assert_eq!(shared.lives()[0].granted_bytes, 16 * MIB, "it was granted its space once");

        // A number that is not used before the store starts anew is worth nothing, and nobody notices.
        let number = shared.number().await.unwrap();
        drop(shared);
        let shared = bed.open().await;
        assert_eq!(kind(shared.enter(number).await), ErrorKind::NotFound);
        let number = shared.number().await.unwrap();
        shared.fence(number).await.unwrap();
        assert_eq!(kind(shared.enter(number).await), ErrorKind::NotFound, "nor one that was fenced meanwhile");
        assert!(shared.lives().iter().all(|life| life.incarnation != number), "of which nothing is left");
    });
}

#[test]
fn a_life_that_is_over_does_nothing_and_nothing_is_done_for_it() {
    run(|bed| async move {
        let served = Served::new(bed.open().await);
        let [way, other_way] = [0, 1].map(|_| bed.way(&served, &[]));
        let (store, other) = (bed.join(&way).await, bed.join(&other_way).await);
        let mut writer = store.create(options(FileKind::Journal)).await.unwrap();
        let id = writer.id();
        writer.append(blocks(1, 1)).await.unwrap();
        other_way.next.borrow_mut().push(Asked::Fence);
        other.fence(store.incarnation()).await.unwrap();
        let everything = async |store: &Store, writer: &mut FileWriter| {
            assert_eq!(kind(writer.append(blocks(2, 1)).await), ErrorKind::Fenced);
            for refused in [
                store.create(options(FileKind::Data)).await.map(drop),
                store.seal(id, 4096).await,
                store.delete(id).await,
                store.read(id, 0, 4096).await.map(drop),
                store.read_copy(id, 0, 0, 4096).await.map(drop),
                store.repair_copy(id, 0, 0, blocks(3, 1)).await,
                store.check_headers(id).await.map(drop),
                store.check_life().await,
            ] {
                assert_eq!(kind(refused), ErrorKind::Fenced);
            }
        };
        // The store is asked: the life does not know it.
        assert_eq!(kind(store.check_life().await), ErrorKind::Fenced);
        other.check_life().await.unwrap();
        everything(&store, &mut writer).await;
        // Also when it does not know yet, and has to enter; and when the store has forgotten it.
        way.next.borrow_mut().push(Asked::Read);
        everything(&store, &mut writer).await;
        other.seal(id, 4096).await.unwrap();
        other.delete(id).await.unwrap();
        way.next.borrow_mut().push(Asked::Read);
        everything(&store, &mut writer).await;
        for refused in
            [other.fence(other.incarnation()).await, other.delete(id).await, other.fence(store.incarnation()).await]
                .into_iter()
                .skip(1)
        {
            assert_eq!(kind(refused), ErrorKind::Fenced);
        }
    });
}

#[test]
fn another_store_at_the_same_address_is_not_taken_for_this_one() {
    run(|bed| async move {
        let way = bed.way(&Served::new(bed.open().await), &[]);
        let store = bed.join(&way).await;
        let foreign = Memory::new(8, MemoryOptions::default());
        let shared = Shared::open(&bed.handle, foreign.open(&bed.handle), SharedOptions::default()).await.unwrap();
        let lives = [shared.join().await.unwrap(), shared.join().await.unwrap()].map(|life| life.incarnation());
        assert!(lives.contains(&store.incarnation()), "it has a life of the same number");
        let service = Served::new(shared.clone());
        let life = wire::files::Life { incarnation: store.incarnation(), generation: base::Generation(u64::MAX) };
        let refused = [
            service.enter(store.id(), life).await.unwrap().map(drop),
            service.fence(store.id(), store.incarnation()).await.unwrap(),
            service.files_of(store.id(), store.incarnation(), FileId(0)).await.unwrap().map(drop),
            service.find(store.id(), FileId(1)).await.unwrap().map(drop),
        ];
        for refused in refused {
            assert_eq!(kind(refused), ErrorKind::Conflict);
        }
        assert!(shared.lives().iter().all(|life| !life.is_fenced));
        // A life that finds it behind its address says so at once, and goes on where its own store is again.
        let mut writer = store.create(options(FileKind::Journal)).await.unwrap();
        let own = way.behind.replace(service);
        let begun = bed.handle.now();
        let error = store.create(options(FileKind::Journal)).await.map(drop).unwrap_err();
        assert!(error.kind == ErrorKind::Conflict && error.message.contains("address"), "{error}");
        assert_eq!(kind(store.fence(store.incarnation()).await), ErrorKind::Conflict);
        assert!(bed.handle.now() - begun < Duration::from_secs(1));
        way.behind.replace(own);
        writer.append(blocks(1, 1)).await.unwrap();
        assert_eq!(ids(&store), [writer.id()]);
    });
}

#[test]
fn space_is_granted_when_it_is_needed_and_what_others_deleted_is_noticed() {
    run(|bed| async move {
        let served = Served::new(bed.open().await);
        let [way, other_way] = [0, 1].map(|_| bed.way(&served, &[]));
        let (store, other) = (bed.join(&way).await, bed.join(&other_way).await);
        assert_eq!(store.space().free, 16 * MIB);
        store.need_space(40 * MIB);
        bed.handle.sleep(Duration::from_secs(1)).await;
        assert!(store.space().free >= 40 * MIB, "{:?}", store.space());
        let prepared = CreateOptions { prepared: true, ..options(FileKind::Data) };
        let file = store.create(prepared).await.unwrap().id();
        let used = store.space().used;
        // It belongs to a segment, and whoever has that deletes it.
        assert_eq!(other.files_of(store.incarnation()).await.unwrap().len(), 1);
        assert_eq!(other.info(file).map(|info| info.incarnation), Some(store.incarnation()));
        other.delete(file).await.unwrap();
        assert!(other.info(file).is_none() && store.info(file).is_some());
        store.need_space(1 << 40);
        bed.handle.sleep(Duration::from_secs(1)).await;
        assert_eq!((store.space().used, store.list()), (used - MIB, vec![]));
        assert_eq!(store.find(file).await.unwrap(), None);
        // What it deletes itself may be at hand for the next file.
        assert_eq!(store.recyclable(FileKind::Data, 0..=MIB), None);
        let file = store.create(prepared).await.unwrap().id();
        store.delete(file).await.unwrap();
        assert_eq!(store.recyclable(FileKind::Data, 0..=MIB), Some(MIB));
        assert_eq!(store.recyclable(FileKind::Journal, 0..=MIB), None);
        store.create(prepared).await.unwrap();
        assert_eq!(store.recyclable(FileKind::Data, 0..=MIB), None);
    });
}

/// The answer comes after that to the enter which followed, though what was asked was done before it.
#[test]
fn a_creation_whose_answer_is_late_was_not_for_nobody() {
    run(|bed| async move {
        let shared = bed.open().await;
        let mut way = bed.way(&Served::new(shared.clone()), &[]);
        Rc::get_mut(&mut way).unwrap().late = Some((bed.handle.clone(), Duration::from_millis(50)));
        let store = bed.join(&way).await;
        let creating = store.clone();
        let created =
            bed.handle.spawn(Class::Io, "create", async move { creating.create(options(FileKind::Data)).await });
        bed.handle.sleep(Duration::from_millis(10)).await;
        assert_eq!(shared.files_of(store.incarnation()).len(), 1, "it is done");
        way.next.borrow_mut().push(Asked::Read);
        assert_eq!(kind(store.read(FileId(999), 0, 4096).await), ErrorKind::NotFound);
        let file = created.await.unwrap().id();
        assert_eq!(ids(&store), [file]);
        assert!(shared.find(file).is_some());
    });
}

#[test]
fn of_a_life_the_highest_generation_is_served() {
    run(|bed| async move {
        let served = Served::new(bed.open().await);
        let (id, incarnation) = served.join().await.unwrap().unwrap();
        let life = |generation| wire::files::Life { incarnation, generation: base::Generation(generation) };
        let file = wire::files::NewFile {
            kind: 3,
            capacity: MIB,
            copies: 2,
            prepared: false,
            epoch: Epoch(1),
            segment: None,
            claim: 0,
        };
        assert_eq!(kind(served.create(life(5), file).await.unwrap()), ErrorKind::Retry, "it has not entered");
        served.enter(id, life(5)).await.unwrap().unwrap();
        let (created, _) = served.create(life(5), file).await.unwrap().unwrap();
        for earlier in [4, 5] {
            assert_eq!(kind(served.enter(id, life(earlier)).await.unwrap()), ErrorKind::Retry);
        }
        served.append(life(5), created.id, 0, blocks(1, 1).into()).await.unwrap().unwrap();
        served.enter(id, life(6)).await.unwrap().unwrap();
        for other in [5, 7] {
            for refused in [
                served.create(life(other), file).await.unwrap().map(drop),
                served.append(life(other), created.id, 4096, blocks(2, 1).into()).await.unwrap(),
                served.seal(life(other), created.id, 0).await.unwrap().map(drop),
                served.delete(life(other), created.id).await.unwrap(),
                served.read(life(other), created.id, None, 0, 4096).await.unwrap().map(drop),
                served.need_space(life(other), 1 << 40).await.unwrap().map(drop),
            ] {
                assert_eq!(kind(refused), ErrorKind::Retry);
            }
        }
        let content = served.read(life(6), created.id, None, 0, 8192).await.unwrap().unwrap();
        assert_eq!(content[..], [&blocks(1, 1)[..], &blocks(0, 1)[..]].concat());
        // A kind or a claim that is unknown here is refused, and so is a journal of a segment; nothing is made.
        let segment = Some(base::SegmentId { volume: base::VolumeId(1), index: 0 });
        let refused = [
            wire::files::NewFile { kind: 77, ..file },
            wire::files::NewFile { claim: 3, ..file },
            wire::files::NewFile { kind: 1, segment, ..file },
        ];
        for unknown in refused {
            assert_eq!(kind(served.create(life(6), unknown).await.unwrap()), ErrorKind::Invalid, "{unknown:?}");
        }
        let lives = served.lives(base::Incarnation(0)).await.unwrap().unwrap();
        assert_eq!((lives.len(), lives[0].incarnation, lives[0].space.used), (1, incarnation, MIB));
        assert_eq!(served.lives(incarnation).await.unwrap().unwrap(), []);
    });
}

/// A store on a machine, and another one with a life in it.
fn far_apart(seed: u64, latency_ns: std::ops::Range<u64>) -> (Site, Memory, Running, Store) {
    let site = Site::new(seed);
    let memory = Memory::new(seed, MemoryOptions { directories: 2, latency_ns, ..MemoryOptions::default() });
    let running = site.start_store(&Below::Memory(memory.clone()));
    let store = join(&site);
    (site, memory, running, store)
}

fn join(site: &Site) -> Store {
    join_at(site, site.address.clone())
}

fn join_at(site: &Site, address: Address) -> Store {
    let handle = site.handles[0].clone();
    site.world.block_on(&site.handles[0], async move {
        let near = NearEnd::dial(&handle, address, Services::default(), stream_options("a life"));
        remote::join(&handle, Rc::new(near), remote_options()).await.unwrap()
    })
}

/// The store takes long. A connection breaks meanwhile, and over the next one the file is sealed: what the first one
/// brought is done before, and changes nothing afterwards.
#[test]
fn nothing_lands_behind_a_seal_that_came_over_a_later_connection() {
    let (mut landed, mut before) = (0, 0);
    for seed in 0..40 {
        let (site, _memory, running, store) = far_apart(seed, 300_000_000..700_000_000);
        let (world, nodes) = (site.world.clone(), site.nodes);
        let handle = site.handles[0].clone();
        let shared = running.shared.clone();
        let (content, at_seal) = site.world.block_on(&site.handles[0], async move {
            let mut writer = store.create(options(FileKind::Journal)).await.unwrap();
            let id = writer.id();
            let late: Vec<_> = (1..5).map(|byte| writer.append(blocks(byte, 1))).collect();
            handle.sleep(Duration::from_millis(20)).await;
            world.reset_connections(nodes[0], nodes[1]);
            for append in late {
                assert_eq!(kind(append.await), ErrorKind::Io);
            }
            // Nothing was confirmed. For others it is open still: they read up to its capacity.
            store.need_space(1 << 30);
            let at_enter = store.read(id, 0, 4 * BLOCK as usize).await.unwrap();
            assert!(at_enter.chunks(4096).all(|block| block[0] != 0), "what was begun is done when the life is back");
            store.seal(id, 2 * BLOCK).await.unwrap();
            let at_seal = shared.find(id).unwrap();
            handle.sleep(Duration::from_secs(5)).await;
            let content = store.read(id, 0, 2 * BLOCK as usize).await.unwrap();
            assert_eq!(content[..], at_enter[..2 * BLOCK as usize]);
            (content, at_seal)
        });
        landed += content.chunks(4096).filter(|block| block[0] != 0).count();
        before += usize::from(at_seal.sealed == Some(2 * BLOCK));
    }
    assert_eq!((landed, before), (80, 40));
}

/// Passes on what it gets to the store, except that it once ends a connection to the life, and passes on what that had
/// said much later.
async fn stand_between(handle: Handle, here: Address, store: Address, ends_next: Rc<Cell<bool>>) -> Address {
    let listener = handle.listen(&here).await.unwrap();
    let address = listener.address().clone();
    let inside = handle.clone();
    let passing = async move {
        while let Ok(life) = listener.accept().await {
            let far = inside.connect(&store).await.unwrap();
            let back = pass_on(inside.clone(), far.clone(), life.clone(), Rc::default());
            inside.spawn(Class::Io, "to the life", back).detach();
            inside.spawn(Class::Io, "to the store", pass_on(inside.clone(), life, far, ends_next.clone())).detach();
        }
    };
    handle.spawn(Class::Io, "stand between", passing).detach();
    address
}

async fn pass_on(handle: Handle, from: Stream, to: Stream, ends_next: Rc<Cell<bool>>) {
    let (mut late, mut is_late) = (Vec::new(), false);
    loop {
        let (count, buffer) = from.receive(AlignedBuf::zeroed(1 << 16), 0).await;
        let Ok(count @ 1..) = count else { break };
        if ends_next.take() {
            is_late = true;
            handle.sleep(Duration::from_millis(5)).await;
            from.shutdown();
        }
        match is_late {
            true => late.extend_from_slice(&buffer[..count]),
            // Whether or not anybody takes it.
            false => drop(to.send(vec![Bytes::copy_from_slice(&buffer[..count])]).await),
        }
    }
    if is_late {
        handle.sleep(SILENCE / 2).await;
        let _ = to.send(vec![late.into()]).await;
        handle.sleep(SILENCE / 4).await;
    }
    to.shutdown();
}

/// What a connection that has ended for the life still carries arrives when the life has entered over the next one.
#[test]
fn what_arrives_late_is_not_begun() {
    let site = Site::new(5);
    let (arrived, shared) = start_watched(&site, 5);
    let ends_next: Rc<Cell<bool>> = Rc::default();
    let here = Address::Tcp((site.world.address(site.nodes[2]), 0).into());
    let between = stand_between(site.handles[1].clone(), here, site.address.clone(), ends_next.clone());
    let between = site.world.block_on(&site.handles[1], between);
    let store = join_at(&site, between);
    let handle = site.handles[0].clone();
    site.world.block_on(&site.handles[0], async move {
        let mut writer = store.create(options(FileKind::Journal)).await.unwrap();
        let id = writer.id();
        writer.append(blocks(1, 1)).await.unwrap();
        ends_next.set(true);
        let (append, late) = (writer.append(blocks(2, 1)), store.clone());
        let creating = async move { late.create(options(FileKind::Data)).await };
        let creation = handle.spawn(Class::Io, "create", creating);
        assert_eq!(kind(append.await), ErrorKind::Io);
        let created = creation.await.unwrap().id();
        assert_eq!(*arrived.borrow(), [0], "it is on its way still");
        let files: BTreeSet<FileId> = [id, created].into();
        let there = || shared.files_of(store.incarnation()).iter().map(|info| info.id).collect::<BTreeSet<_>>();
        for _ in 0..40 {
            assert_eq!(there(), files, "what arrives late makes no file");
            assert_eq!(store.read(id, 4096, 4096).await.unwrap()[..], blocks(0, 1)[..], "and no append");
            handle.sleep(SILENCE / 20).await;
        }
        assert_eq!(*arrived.borrow(), [0, 4096], "it has arrived");
    });
}

#[test]
fn a_store_that_is_away_is_waited_for_and_then_given_up_with_one_clear_error() {
    let (site, memory, running, store) = far_apart(1, 10_000..100_000);
    site.world.kill(site.nodes[0]);
    drop(running);
    let handle = site.handles[0].clone();
    let asked = store.clone();
    let (error, took) = site.world.block_on(&site.handles[0], async move {
        let begun = handle.now();
        let error = asked.create(options(FileKind::Data)).await.map(drop).unwrap_err();
        (error, handle.now() - begun)
    });
    let said = &error.message;
    assert!(error.kind == ErrorKind::Io && said.contains("the store could not be reached for 3s"), "{said}");
    assert!(said.contains("see whether a server listens there"), "{said}");
    assert!(took >= PATIENCE && took < PATIENCE + Duration::from_millis(100), "{took:?}");
    assert_eq!(store.statistics().directories[0].state, "missing");
    let asked = store.clone();
    let error = site.world.block_on(&site.handles[0], async move { asked.check_life().await.unwrap_err() });
    assert_eq!(error.kind, ErrorKind::Io, "nobody knows: {error}");

    // It comes back within the patience of those who ask then.
    let asked = store.clone();
    let waiting =
        site.handles[0].spawn(Class::Io, "create", async move { asked.create(options(FileKind::Data)).await });
    site.world.run_for(PATIENCE / 2);
    let running = site.start_store(&Below::Memory(memory));
    let file = site.world.block_on(&site.handles[0], async move { waiting.await.unwrap().id() });
    assert_eq!(ids(&store), [file]);
    assert_eq!(store.statistics().directories[0].state, "healthy");
    assert_eq!(running.shared.files_of(store.incarnation()).len(), 1, "and nothing is left of the one that failed");
}

/// A life goes on across restarts of the store, in new files.
#[test]
fn files_of_before_a_restart_take_no_more() {
    let (site, memory, running, store) = far_apart(2, 10_000..100_000);
    let before = store.clone();
    let mut writer = site.world.block_on(&site.handles[0], async move {
        let mut writer = before.create(options(FileKind::Journal)).await.unwrap();
        writer.append(blocks(1, 1)).await.unwrap();
        writer
    });
    drop(running);
    let _running = site.start_store(&Below::Memory(memory));
    site.world.block_on(&site.handles[0], async move {
        let error = writer.append(blocks(2, 1)).await.unwrap_err();
        assert!(error.kind == ErrorKind::Io, "{error}");
        store.seal(writer.id(), 4096).await.unwrap();
        let mut next = store.create(options(FileKind::Journal)).await.unwrap();
        next.append(blocks(3, 1)).await.unwrap();
        assert_eq!(store.read(writer.id(), 0, 4096).await.unwrap()[..], blocks(1, 1)[..]);
    });
}

/// A store in memory, and the offsets of the appends that come to it.
fn start_watched(site: &Site, seed: u64) -> (Rc<RefCell<Vec<u64>>>, Shared) {
    let memory = Memory::new(seed, MemoryOptions { directories: 2, ..MemoryOptions::default() });
    let handle = site.world.restart(site.nodes[0]);
    let appended: Rc<RefCell<Vec<u64>>> = Rc::default();
    let (inside, seen, address) = (handle.clone(), appended.clone(), site.address.clone());
    let shared = site.world.block_on(&handle, async move {
        let shared = Shared::open(&inside, memory.open(&inside), SharedOptions::default()).await.unwrap();
        let way = Forgetful {
            behind: RefCell::new(Served::new(shared.clone())),
            next: RefCell::default(),
            prng: RefCell::new(Prng::new(1)),
            forgets_one_in: 0,
            late: None,
            lost: Rc::new(Lost { appended: seen, ..Lost::default() }),
            model: Rc::new(Model::default()),
        };
        let services = Services { files: Some(Rc::new(way)), ..Services::default() };
        let end = FarEnd::new(&inside, services, stream_options("the store"));
        end.serve(inside.listen(&address).await.unwrap());
        shared
    });
    (appended, shared)
}

/// Many at once, beyond what the connection grants, and larger than one request may be.
#[test]
fn appends_go_out_in_order_and_as_many_at_a_time_as_there_is_credit() {
    let site = Site::new(9);
    let (order, _) = start_watched(&site, 9);
    let store = join(&site);
    let handle = site.handles[0].clone();
    site.world.block_on(&site.handles[0], async move {
        let large = CreateOptions { capacity: 256 * MIB, ..options(FileKind::Data) };
        let mut writer = store.create(large).await.unwrap();
        let mut prng = Prng::new(4);
        let mut offsets = Vec::new();
        let begun = handle.now();
        let mut flying = std::collections::VecDeque::new();
        for byte in (0..2000).map(|n| n as u8) {
            offsets.push(writer.position());
            flying.push_back(writer.append(blocks(byte, prng.between(1, 4) as usize)));
            // The next one comes while the answers to others are there and were not looked at.
            if flying.len() > 12 {
                if flying.len() > 13 {
                    flying.pop_front().unwrap().await.unwrap();
                }
                handle.charge(Duration::from_micros(prng.below(100)));
                handle.sleep(Duration::from_micros(prng.below(20))).await;
            }
        }
        for append in flying {
            append.await.unwrap();
        }
        let took = handle.now() - begun;
        assert_eq!(*order.borrow(), offsets, "in the order of the calls");
        assert!(took < Duration::from_millis(250), "{took:?}: one after the other");

        let mut content = AlignedBuf::zeroed(65 * MIB as usize);
        prng.fill(&mut content);
        let content = content.freeze();
        let offset = writer.append(content.clone()).await.unwrap();
        let read = store.read(writer.id(), offset, content.len()).await.unwrap();
        assert!(read[..] == content[..]);
        // A label and what is behind it.
        let gathered = base::Gathered::new(blocks(7, 1), blocks(8, 2));
        let offset = writer.append(gathered).await.unwrap();
        let read = store.read(writer.id(), offset, 3 * 4096).await.unwrap();
        assert_eq!(read[..], [&blocks(7, 1)[..], &blocks(8, 2)[..]].concat());
    });
}

/// One that asks for much and takes nothing keeps nobody else waiting, nor the store when it is gone.
#[test]
fn one_that_does_not_read_harms_only_itself() {
    let (site, _memory, running, store) = far_apart(11, 10_000..100_000);
    let before = store.clone();
    let file = site.world.block_on(&site.handles[0], async move {
        let mut writer = before.create(options(FileKind::Data)).await.unwrap();
        writer.append(blocks(1, 256)).await.unwrap();
        writer.id()
    });
    // Its machine hears nothing from now on, and asks.
    let (handle, address) = (site.handles[1].clone(), site.address.clone());
    let deaf = site.world.block_on(&site.handles[1], async move {
        let near = NearEnd::dial(&handle, address, Services::default(), stream_options("a deaf life"));
        remote::join(&handle, Rc::new(near), remote_options()).await.unwrap()
    });
    site.world.cut_link(site.nodes[0], site.nodes[2]);
    for _ in 0..50 {
        let read = deaf.read(file, 0, MIB as usize);
        site.handles[1].spawn(Class::Io, "read", async move { drop(read.await) }).detach();
    }
    let handle = site.handles[0].clone();
    let slowest = site.world.block_on(&site.handles[0], async move {
        let mut slowest = Duration::ZERO;
        for _ in 0..200 {
            let begun = handle.now();
            store.read(file, 0, 64 * KIB as usize).await.unwrap();
            slowest = slowest.max(handle.now() - begun);
            handle.sleep(SILENCE / 100).await;
        }
        slowest
    });
    assert!(slowest < Duration::from_millis(50), "{slowest:?}");
    assert_eq!(running.shared.lives().len(), 2, "its life goes on, all the same");
}
