//! Random lives of a store against a simple model: whatever was confirmed is there after kills, power losses and
//! failing disks, and whatever was deleted is not.
//!
//! A world has disks, a store over them and a few clients that create, append, seal, delete and read. Each life ends
//! at a random moment, in the middle of opening, too. The next one compares everything with the model, which lives
//! outside of the world. `LEVEE_SEED=N` repeats one seed.
#![allow(clippy::unwrap_used, reason = "a test panics where something is not as it should be")]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use base::{AlignedBuf, Bytes, Epoch, Error, ErrorKind, FileId, Incarnation, KIB, Prng, Result};
use files::local::{self, LocalOptions, OpenReport};
use files::{CreateOptions, FileKind, FileWriter, Redundancy, Store};
use runtime::sim::{DiskOptions, Fault, NodeId, NodeOptions, World};
use runtime::{Class, Handle};

const BLOCK: u64 = 4096;
const CLIENTS: u64 = 3;
const FILES_MAX: usize = 14;

/// What happened over all seeds: each must be above zero.
#[derive(Default, Debug)]
struct Coverage {
    lives: u32,
    kills: u32,
    power_losses: u32,
    ended_while_opening: u32,
    recovered_files: u32,
    tails_kept: u32,
    swept: u32,
    seals_completed: u32,
    deletions_found_undone: u32,
    failed_appends: u32,
    disks_failed: u32,
    refused_starts: u32,
    returns: u32,
    full: u32,
    healthy_again: u32,
}

/// What is known of a file.
struct ModelFile {
    options: CreateOptions,
    born: Incarnation,
    /// Of each block that was appended, whether that was confirmed.
    blocks: Vec<bool>,
    /// The length that a seal chose, and whether it was confirmed.
    seal: Option<(u64, bool)>,
    /// A deletion was asked for.
    deleting: bool,
}

impl ModelFile {
    /// Bytes from the beginning that were confirmed.
    fn confirmed(&self) -> u64 {
        self.blocks.iter().take_while(|confirmed| **confirmed).count() as u64 * BLOCK
    }
}

#[derive(Default)]
struct Model {
    files: BTreeMap<FileId, ModelFile>,
    seen: BTreeSet<FileId>,
    creating: u32,
    /// Files that nobody heard of, and that are not deleted for sure yet.
    unheard: BTreeSet<FileId>,
    incarnation: Incarnation,
    coverage: Coverage,
}

/// What a life shows to the outside.
#[derive(Default)]
struct Life {
    opened: Option<(Store, OpenReport)>,
    refused: Option<Error>,
    /// A fault was injected in this life or is there from before: errors are to be expected.
    faulty: Rc<Cell<bool>>,
    resting: Cell<bool>,
}

/// Says what happens, if one seed is repeated.
fn trace(handle: &Handle, text: impl FnOnce() -> String) {
    if std::env::var("LEVEE_SEED").is_ok() {
        eprintln!("{:>12} {}", handle.now().0 / 1000, text());
    }
}

struct Setup {
    world: World,
    node: NodeId,
    paths: Vec<String>,
    copies: u8,
    model: Rc<RefCell<Model>>,
}

fn content(file: FileId, block: u64) -> Vec<u8> {
    let mut prng = Prng::new(file.0 << 20 | block);
    let mut bytes = vec![0; BLOCK as usize];
    prng.fill(&mut bytes);
    bytes
}

fn payload(file: FileId, blocks: std::ops::Range<u64>) -> Bytes {
    let mut buffer = AlignedBuf::with_capacity(((blocks.end - blocks.start) * BLOCK) as usize);
    blocks.for_each(|block| buffer.extend_from_slice(&content(file, block)));
    buffer.freeze()
}

/// The life of a process: opens, compares, recovers, then lets clients work.
async fn live(
    handle: Handle,
    options: LocalOptions,
    model: Rc<RefCell<Model>>,
    life: Rc<RefCell<Life>>,
    mut prng: Prng,
) {
    let (store, report) = match local::open(&handle, options).await {
        Ok(opened) => opened,
        Err(error) => {
            life.borrow_mut().refused = Some(error);
            return;
        }
    };
    let faulty = life.borrow().faulty.clone();
    trace(&handle, || format!("life {} {report:?}", store.incarnation()));
    compare(&store, &model, &faulty).await;
    {
        let mut model = model.borrow_mut();
        model.coverage.swept += u32::from(report.swept > 0);
        model.coverage.seals_completed += u32::from(report.seals_completed > 0);
        model.coverage.returns += u32::from(report.notes.iter().any(|note| note.contains("resynchronized")));
    }
    recover(&store, &model, &faulty, &mut prng).await;
    life.borrow_mut().opened = Some((store.clone(), report));
    for client in 0..CLIENTS {
        let (store, model, life, prng) = (store.clone(), model.clone(), life.clone(), prng.fork());
        let work = work(handle.clone(), store, model, life, prng, client);
        handle.spawn(Class::Io, "client", work).detach();
    }
}

/// Everything is as the model has it.
async fn compare(store: &Store, model: &Rc<RefCell<Model>>, faulty: &Cell<bool>) {
    {
        let mut model = model.borrow_mut();
        assert!(store.incarnation() > model.incarnation, "an incarnation was used again");
        model.incarnation = store.incarnation();
        let listed = store.list();
        let is_known = |id| model.files.contains_key(id) || model.unheard.contains(id);
        let unknown = listed.iter().filter(|info| !is_known(&info.id)).collect::<Vec<_>>();
        for info in &unknown {
            let place =
                || (0..info.copies_wanted).map(|copy| store.locate(info.id, copy)).collect::<Vec<_>>().join(", ");
            assert!(!model.seen.contains(&info.id), "deleted file {} is back: {}", info.id, place());
            assert_eq!(info.sealed, None, "nobody sealed {}", info.id);
        }
        // A creation that a failing disk made to try again may have left several behind.
        let begun = model.creating + 4 * model.coverage.disks_failed;
        assert!(unknown.len() as u32 <= begun, "more files than anybody began to create: {unknown:?}");
        let unknown = unknown.into_iter().map(|info| info.id).collect::<Vec<_>>();
        model.seen.extend(unknown.iter().copied());
        model.unheard.extend(unknown);
        model.creating = 0;
        let ids = model.files.keys().copied().collect::<Vec<_>>();
        for id in ids {
            let file = &model.files[&id];
            match store.info(id) {
                None => {
                    assert!(file.deleting, "file {id} is lost; it has {} bytes confirmed", file.confirmed());
                    model.files.remove(&id);
                }
                Some(info) => {
                    model.coverage.deletions_found_undone += u32::from(file.deleting);
                    let file = model.files.get_mut(&id).unwrap();
                    assert_eq!((info.kind, info.incarnation), (file.options.kind, file.born));
                    match (file.seal, info.sealed) {
                        (Some((length, true)), sealed) => assert_eq!(sealed, Some(length), "the end of {id} changed"),
                        (Some((length, false)), Some(sealed)) => {
                            assert_eq!(sealed, length);
                            file.seal = Some((length, true));
                        }
                        (None, sealed) => assert_eq!(sealed, None, "nobody sealed {id}"),
                        (Some((_, false)), None) => {}
                    }
                }
            }
        }
    }
    for info in store.list() {
        if !model.borrow().files.contains_key(&info.id) {
            // The caller of its creation never heard of it.
            let deleted = store.delete(info.id).await;
            assert!(deleted.is_ok() || faulty.get(), "{deleted:?}");
            if deleted.is_ok() {
                model.borrow_mut().unheard.remove(&info.id);
            }
            continue;
        }
        for copy in 0..info.copies_wanted {
            check_content(store, model, info.id, Some(copy), faulty).await;
        }
        check_content(store, model, info.id, None, faulty).await;
    }
}

/// Reads what was confirmed of a file, in one copy or in any.
async fn check_content(store: &Store, model: &Rc<RefCell<Model>>, id: FileId, copy: Option<u8>, faulty: &Cell<bool>) {
    let count = {
        let model = model.borrow();
        let Some(file) = model.files.get(&id) else { return };
        let end = file.seal.map_or(u64::MAX, |(length, _)| length);
        file.confirmed().min(end) / BLOCK
    };
    for block in 0..count {
        let read = match copy {
            Some(copy) => store.read_copy(id, copy, block * BLOCK, BLOCK as usize).await,
            None => store.read(id, block * BLOCK, BLOCK as usize).await,
        };
        let still_there = model.borrow().files.get(&id).is_some_and(|file| !file.deleting);
        match read {
            Ok(read) => {
                assert!(
                    read[..] == content(id, block)[..] || !still_there,
                    "block {block} of {id} (copy {copy:?}) is not what was confirmed: {:?}",
                    store.info(id)
                );
            }
            Err(error) => {
                // A copy is away only where the store says, at this very moment, that one is.
                let info = store.info(id);
                let lacks = info.as_ref().is_none_or(|info| info.copies < info.copies_wanted);
                let expected = match error.kind {
                    ErrorKind::NotFound => copy.is_some() && lacks,
                    ErrorKind::Io => faulty.get(),
                    _ => false,
                };
                assert!(
                    expected || !still_there,
                    "block {block} of {id} (copy {copy:?}): {error} {:?} {:?}",
                    store.info(id),
                    (0..8).map(|copy| store.locate(id, copy)).collect::<Vec<_>>()
                );
                return;
            }
        }
    }
}

/// Chooses an end for files of earlier lives, in the way that a journal's recovery does.
async fn recover(store: &Store, model: &Rc<RefCell<Model>>, faulty: &Cell<bool>, prng: &mut Prng) {
    for info in store.list() {
        if info.sealed.is_some() || !model.borrow().files.contains_key(&info.id) || prng.one_in(4) {
            continue;
        }
        let (chosen, mut length) = {
            let model = model.borrow();
            let file = &model.files[&info.id];
            (file.seal.map(|(length, _)| length), file.confirmed())
        };
        if let Some(chosen) = chosen {
            length = chosen;
        } else if prng.one_in(2) && length < info.capacity {
            // A block that nobody confirmed is kept if some copy has it, and brought to the others.
            let block = length / BLOCK;
            let good = payload(info.id, block..block + 1);
            let mut found = false;
            for copy in 0..info.copies_wanted {
                let read = store.read_copy(info.id, copy, length, BLOCK as usize).await;
                found |= read.is_ok_and(|read| read[..] == good[..]);
            }
            if found && repair_all(store, &info, length, &good).await.is_ok() {
                let mut model = model.borrow_mut();
                model.coverage.tails_kept += 1;
                let file = model.files.get_mut(&info.id).unwrap();
                file.blocks.resize(file.blocks.len().max(block as usize + 1), false);
                length += BLOCK;
            }
        }
        seal(store, model, info.id, length, faulty).await;
        model.borrow_mut().coverage.recovered_files += 1;
    }
}

async fn repair_all(store: &Store, info: &files::FileInfo, offset: u64, good: &Bytes) -> Result<()> {
    for copy in 0..info.copies_wanted {
        match store.repair_copy(info.id, copy, offset, good.clone()).await {
            Err(error) if error.kind == ErrorKind::NotFound => {}
            result => result?,
        }
    }
    Ok(())
}

async fn seal(store: &Store, model: &Rc<RefCell<Model>>, id: FileId, length: u64, may_fail: &Cell<bool>) {
    {
        let mut model = model.borrow_mut();
        let Some(file) = model.files.get_mut(&id) else { return };
        file.seal.get_or_insert((length, false));
    }
    let sealed = store.seal(id, length).await;
    let mut model = model.borrow_mut();
    let Some(file) = model.files.get_mut(&id) else { return };
    match sealed {
        Ok(()) => {
            file.seal = Some((length, true));
            // What lies before a confirmed end is confirmed.
            file.blocks.truncate((length / BLOCK) as usize);
            file.blocks.fill(true);
        }
        Err(error) => assert!(may_fail.get() || file.deleting, "sealing {id}: {error}"),
    }
}

/// One client: its files are those with its number as remainder of their ids.
async fn work(
    handle: Handle,
    store: Store,
    model: Rc<RefCell<Model>>,
    life: Rc<RefCell<Life>>,
    mut prng: Prng,
    client: u64,
) {
    let mut writers: BTreeMap<FileId, FileWriter> = BTreeMap::new();
    let faulty = life.borrow().faulty.clone();
    loop {
        if life.borrow().resting.get() {
            // So that nothing is left without its copies.
            for id in std::mem::take(&mut writers).into_keys() {
                let length = model.borrow().files.get(&id).map(ModelFile::confirmed);
                if let Some(length) = length {
                    seal(&store, &model, id, length, &faulty).await;
                }
            }
            return;
        }
        let mine =
            |model: &Model| model.files.keys().filter(|id| id.0 % CLIENTS == client).copied().collect::<Vec<_>>();
        let files = mine(&model.borrow());
        match prng.below(13) {
            0..=1 if model.borrow().files.len() < FILES_MAX => {
                create(&store, &model, &faulty, &mut prng, &mut writers).await;
            }
            0..=7 if !writers.is_empty() => {
                let ids = writers.keys().copied().collect::<Vec<_>>();
                let id = *prng.pick(&ids);
                if model.borrow().files.get(&id).is_none_or(|file| file.deleting) {
                    // By another client.
                    writers.remove(&id);
                    continue;
                }
                let writer = writers.get_mut(&id).unwrap();
                let whole = append_some(&handle, &model, writer, &mut prng, &faulty).await;
                if !whole {
                    // An error: the file ends where it was confirmed.
                    writers.remove(&id);
                    let length = model.borrow().files.get(&id).map_or(0, ModelFile::confirmed);
                    seal(&store, &model, id, length, &faulty).await;
                }
            }
            8 | 12 if !writers.is_empty() => {
                let ids = writers.keys().copied().collect::<Vec<_>>();
                let id = *prng.pick(&ids);
                writers.remove(&id);
                let length = model.borrow().files.get(&id).map_or(0, ModelFile::confirmed);
                seal(&store, &model, id, length, &faulty).await;
            }
            9 if !files.is_empty() && prng.one_in(2) => {
                let id = *prng.pick(&files);
                writers.remove(&id);
                model.borrow_mut().files.get_mut(&id).unwrap().deleting = true;
                let places = (0..2).map(|copy| store.locate(id, copy)).collect::<Vec<_>>().join(", ");
                let result = store.delete(id).await;
                trace(&handle, || format!("delete {id} {places} {result:?}"));
                match result {
                    Ok(()) => drop(model.borrow_mut().files.remove(&id)),
                    Err(error) => assert!(faulty.get(), "deleting {id}: {error}"),
                }
            }
            10 => {
                let all = model.borrow().files.keys().copied().collect::<Vec<_>>();
                if !all.is_empty() {
                    check_content(&store, &model, *prng.pick(&all), None, &faulty).await;
                }
            }
            _ => handle.sleep(Duration::from_micros(prng.between(1, 500))).await,
        }
    }
}

async fn create(
    store: &Store,
    model: &Rc<RefCell<Model>>,
    faulty: &Rc<Cell<bool>>,
    prng: &mut Prng,
    writers: &mut BTreeMap<FileId, FileWriter>,
) {
    let copies = (store.statistics().directories.len() as u8).min(2);
    let options = CreateOptions {
        kind: *prng.pick(&FileKind::ALL),
        capacity: *prng.pick(&[32 * KIB, 64 * KIB]),
        redundancy: Redundancy::Copies(copies),
        prepared: prng.one_in(2),
        epoch: Epoch(1),
    };
    model.borrow_mut().creating += 1;
    let created = store.create(options).await;
    let mut model = model.borrow_mut();
    match created {
        Ok(writer) => {
            model.creating -= 1;
            let id = writer.id();
            assert!(model.seen.insert(id), "id {id} was used again");
            let file =
                ModelFile { options, born: store.incarnation(), blocks: Vec::new(), seal: None, deleting: false };
            model.files.insert(id, file);
            writers.insert(id, writer);
        }
        // It may be found later: `creating` stays raised.
        Err(error) if error.kind == ErrorKind::Full => model.coverage.full += 1,
        Err(error) => assert!(faulty.get(), "creating a file: {error}"),
    }
}

/// A few appends at once. False if one failed.
async fn append_some(
    handle: &Handle,
    model: &Rc<RefCell<Model>>,
    writer: &mut FileWriter,
    prng: &mut Prng,
    faulty: &Rc<Cell<bool>>,
) -> bool {
    let id = writer.id();
    let mut appends = Vec::new();
    for _ in 0..prng.between(1, 3) {
        let count = prng.between(1, 3).min(writer.room() / BLOCK);
        if count == 0 {
            break;
        }
        let first = writer.position() / BLOCK;
        model.borrow_mut().files.get_mut(&id).unwrap().blocks.extend((0..count).map(|_| false));
        let append = writer.append(payload(id, first..first + count));
        let (model, faulty) = (model.clone(), faulty.clone());
        appends.push(handle.spawn(Class::Io, "append", async move {
            let appended = append.await;
            let mut model = model.borrow_mut();
            let Some(file) = model.files.get_mut(&id) else { return true };
            match appended {
                Ok(offset) => {
                    let first = (offset / BLOCK) as usize;
                    file.blocks[first..first + count as usize].fill(true);
                    true
                }
                Err(error) => {
                    assert!(faulty.get() || file.deleting, "appending: {error}");
                    model.coverage.failed_appends += 1;
                    false
                }
            }
        }));
    }
    let mut whole = true;
    for append in appends {
        whole &= append.await;
    }
    whole
}

impl Setup {
    fn new(seed: u64, prng: &mut Prng) -> Setup {
        let world = World::new(seed);
        let disks = *prng.pick(&[1, 2, 2, 3]);
        let paths = (0..disks).map(|disk| format!("/{disk}")).collect::<Vec<_>>();
        let disk = DiskOptions { capacity: *prng.pick(&[1 << 20, 4 << 20]), ..DiskOptions::default() };
        let node = world.add_node(NodeOptions::with_disks(&paths, &disk));
        Setup { world, node, paths, copies: if disks > 1 { 2 } else { 1 }, model: Rc::default() }
    }

    fn options(&self) -> LocalOptions {
        let directories = self.paths.iter().map(|path| PathBuf::from(path).join("levee")).collect();
        LocalOptions { copies: self.copies, resync_bytes_per_sec: 1 << 30, ..LocalOptions::new(directories) }
    }

    /// One life, with a fault in the middle perhaps. Gives the disk that vanished, if one is gone at its end.
    fn one_life(&self, prng: &mut Prng, mut gone: Option<usize>) -> Option<usize> {
        let world = &self.world;
        let handle = world.restart(self.node);
        let life = Rc::new(RefCell::new(Life::default()));
        life.borrow().faulty.set(gone.is_some());
        let process = live(handle.clone(), self.options(), self.model.clone(), life.clone(), prng.fork());
        handle.spawn(Class::Io, "process", process).detach();
        let long = prng.one_in(8);
        if prng.one_in(5) {
            world.run_for(Duration::from_micros(1 << prng.between(5, 11)));
        } else {
            let ready = |life: &Life| life.opened.is_some() || life.refused.is_some();
            world.run_until(|| ready(&life.borrow()));
            world.run_for(Duration::from_micros(if long { 20_000 } else { 1 << prng.between(5, 14) }));
        }
        if let Some(error) = life.borrow().refused.clone() {
            trace(&handle, || format!("refused: {error}"));
            // Only because the disk that is gone was a member still, and nobody knows otherwise.
            assert!(gone.is_some() && error.message.contains("missing"), "{error}");
            self.model.borrow_mut().coverage.refused_starts += 1;
            world.disk(self.node, &self.paths[gone.unwrap()]).come_back();
            return None;
        }
        if self.may_fail(&life, gone) && prng.one_in(2) {
            gone = self.fail_a_disk(&handle, prng, &life);
            world.run_for(Duration::from_micros(1 << prng.between(5, 14)));
        }
        if long && life.borrow().opened.is_some() {
            if let Some(disk) = gone.take() {
                world.disk(self.node, &self.paths[disk]).come_back();
            }
            life.borrow().resting.set(true);
            world.run_for(Duration::from_secs(60));
            let life = life.borrow();
            let (store, _) = life.opened.as_ref().unwrap();
            let statistics = store.statistics();
            let healthy = statistics.directories.iter().all(|directory| directory.state == "healthy");
            assert!(healthy, "{statistics:?}");
            self.model.borrow_mut().coverage.healthy_again += u32::from(life.faulty.get());
        }
        let mut model = self.model.borrow_mut();
        model.coverage.lives += 1;
        model.coverage.ended_while_opening += u32::from(life.borrow().opened.is_none());
        drop(model);
        let kill = prng.one_in(2);
        trace(&handle, || if kill { "kill".into() } else { "power loss".into() });
        match kill {
            true => {
                self.model.borrow_mut().coverage.kills += 1;
                world.kill(self.node);
            }
            false => {
                self.model.borrow_mut().coverage.power_losses += 1;
                world.power_loss(self.node);
            }
        }
        if let Some(disk) = gone
            && prng.one_in(2)
        {
            world.disk(self.node, &self.paths[disk]).come_back();
            gone = None;
        }
        gone
    }

    /// Whether one more disk may fail: everything has all its copies.
    fn may_fail(&self, life: &Rc<RefCell<Life>>, gone: Option<usize>) -> bool {
        let life = life.borrow();
        let Some((store, _)) = &life.opened else { return false };
        gone.is_none()
            && store.statistics().directories.iter().all(|directory| directory.state == "healthy")
            && store.list().iter().all(|info| info.copies == info.copies_wanted)
    }

    fn fail_a_disk(&self, handle: &Handle, prng: &mut Prng, life: &Rc<RefCell<Life>>) -> Option<usize> {
        self.model.borrow_mut().coverage.disks_failed += 1;
        let index = prng.below(self.paths.len() as u64) as usize;
        let disk = self.world.disk(self.node, &self.paths[index]);
        life.borrow().faulty.set(true);
        let manner = if self.paths.len() > 1 { prng.below(4) } else { prng.between(1, 3) };
        trace(handle, || format!("disk {index} fails, manner {manner}"));
        match manner {
            0 => {
                disk.vanish();
                return Some(index);
            }
            1 => disk.inject(Fault::WriteError, prng.between(1, 3)),
            2 => disk.inject(Fault::SyncError, 1),
            _ => disk.inject(Fault::ReadError, prng.between(1, 3)),
        }
        None
    }
}

fn run_seed(seed: u64, total: &mut Coverage) {
    let mut prng = Prng::new(seed);
    let setup = Setup::new(seed, &mut prng);
    let mut gone = None;
    for _ in 0..12 {
        gone = setup.one_life(&mut prng, gone);
        for path in &setup.paths {
            setup.world.disk(setup.node, path).stop_injections();
        }
    }
    let model = setup.model.borrow();
    let one = &model.coverage;
    total.lives += one.lives;
    total.kills += one.kills;
    total.power_losses += one.power_losses;
    total.ended_while_opening += one.ended_while_opening;
    total.recovered_files += one.recovered_files;
    total.tails_kept += one.tails_kept;
    total.swept += one.swept;
    total.seals_completed += one.seals_completed;
    total.deletions_found_undone += one.deletions_found_undone;
    total.failed_appends += one.failed_appends;
    total.disks_failed += one.disks_failed;
    total.refused_starts += one.refused_starts;
    total.returns += one.returns;
    total.full += one.full;
    total.healthy_again += one.healthy_again;
}

#[test]
fn what_was_confirmed_is_there_and_what_was_deleted_is_not() {
    let mut coverage = Coverage::default();
    if let Ok(seed) = std::env::var("LEVEE_SEED") {
        run_seed(seed.parse().unwrap(), &mut coverage);
        return;
    }
    let count = std::env::var("LEVEE_SEEDS").map_or(100, |count| count.parse().unwrap());
    let base = std::hash::RandomState::new().build_hasher().finish() >> 16;
    println!("seeds {base} to {}", base + count);
    for seed in base..base + count {
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run_seed(seed, &mut coverage)));
        if let Err(panic) = run {
            eprintln!("failed with LEVEE_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
    println!("{coverage:?}");
    let text = format!("{coverage:?}");
    assert!(!text.contains(": 0,") && !text.contains(": 0 }"), "not everything was covered: {text}");
}
