//! What goes wrong with the directories of a store, case by case, in the simulated world.
#![allow(clippy::unwrap_used, reason = "a test panics where something is not as it should be")]

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::{AlignedBuf, Bytes, Epoch, Error, ErrorKind, FileId, KIB, MIB, Result};
use files::local::{self, LocalOptions, OpenReport};
use files::{CreateOptions, FileKind, FileWriter, Redundancy, Store};
use runtime::sim::{DiskOptions, Fault, NodeId, NodeOptions, SimDisk, World};
use runtime::{Handle, OpenOptions};

const BLOCK: usize = 4096;

/// A node with disks at `/0`, `/1` and so on, and the folder `levee` on each as a directory of the store.
struct Bench {
    world: World,
    node: NodeId,
    handle: Handle,
    disks: usize,
}

impl Bench {
    fn new(seed: u64, disks: usize) -> Bench {
        Bench::with(seed, disks, DiskOptions::default())
    }

    fn with(seed: u64, disks: usize, options: DiskOptions) -> Bench {
        let world = World::new(seed);
        let paths = (0..disks).map(|disk| format!("/{disk}"));
        let node = world.add_node(NodeOptions::with_disks(paths, &options));
        let handle = world.start_loop(node);
        Bench { world, node, handle, disks }
    }

    fn options(&self, disks: &[usize]) -> LocalOptions {
        let directories = disks.iter().map(|disk| PathBuf::from(format!("/{disk}/levee"))).collect();
        LocalOptions {
            copies: 2.min(self.disks as u8),
            holder: "levee up, process 7".into(),
            ..LocalOptions::new(directories)
        }
    }

    fn all(&self) -> Vec<usize> {
        (0..self.disks).collect()
    }

    fn try_open(&self, options: LocalOptions) -> Result<(Store, OpenReport)> {
        let handle = self.handle.clone();
        self.run(async move { local::open(&handle, options).await })
    }

    fn open(&self) -> Store {
        self.try_open(self.options(&self.all())).unwrap().0
    }

    fn open_with(&self, disks: &[usize]) -> Result<(Store, OpenReport)> {
        self.try_open(self.options(disks))
    }

    fn refusal(&self, options: LocalOptions) -> Error {
        self.try_open(options).map(drop).unwrap_err()
    }

    fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        self.world.block_on(&self.handle, future)
    }

    fn restart(&mut self) {
        self.handle = self.world.restart(self.node);
    }

    fn power_loss(&mut self) {
        self.world.power_loss(self.node);
        self.restart();
    }

    fn disk(&self, disk: usize) -> SimDisk {
        self.world.disk(self.node, format!("/{disk}"))
    }

    fn file_path(&self, store: &Store, file: FileId, disk: usize) -> PathBuf {
        let info = store.info(file).unwrap();
        let prefix = format!("/{disk}/");
        let places = (0..info.copies_wanted).map(|copy| store.locate(file, copy));
        let place = places.into_iter().find(|place| place.starts_with(&prefix)).unwrap();
        PathBuf::from(place.strip_prefix(&prefix).unwrap())
    }
}

fn options(copies: u8) -> CreateOptions {
    CreateOptions {
        kind: FileKind::Data,
        capacity: 64 * KIB,
        redundancy: Redundancy::Copies(copies),
        prepared: false,
        epoch: Epoch(1),
    }
}

/// The same, or those of a journal, which is made of written space.
fn maybe_prepared(prepared: bool, copies: u8) -> CreateOptions {
    let kind = if prepared { FileKind::Journal } else { FileKind::Data };
    CreateOptions { kind, prepared, ..options(copies) }
}

fn blocks(byte: u8, count: usize) -> Bytes {
    let mut buffer = AlignedBuf::zeroed(count * BLOCK);
    buffer.fill(byte);
    buffer.freeze()
}

async fn sealed_file(store: Store, copies: u8, byte: u8) -> FileId {
    let mut writer = store.create(options(copies)).await.unwrap();
    writer.append(blocks(byte, 4)).await.unwrap();
    store.seal(writer.id(), 4 * BLOCK as u64).await.unwrap();
    writer.id()
}

async fn read_all(store: Store, file: FileId) -> Vec<u8> {
    store.read(file, 0, 4 * BLOCK).await.unwrap().to_vec()
}

fn states(store: &Store) -> Vec<&'static str> {
    store.statistics().directories.iter().map(|directory| directory.state).collect()
}

// Who may have a directory.

#[test]
fn a_second_process_is_told_who_has_the_directory() {
    let bench = Bench::new(1, 1);
    let store = bench.open();
    let refused = bench.refusal(bench.options(&[0]));
    assert_eq!(refused.kind, ErrorKind::Conflict);
    assert_eq!(refused.message, "/0/levee is in use by levee up, process 7: stop it, or give another directory");
    drop(store);
    bench.open();
}

#[test]
fn what_a_killed_process_had_in_flight_lands_before_its_file_is_read() {
    let (mut landed_late, mut lost) = (0, 0);
    for seed in 0..100 {
        let mut bench = Bench::new(2000 + seed, 1);
        let store = bench.open();
        let prepared = seed % 2 == 0;
        let mut writer = bench.run({
            let store = store.clone();
            async move { store.create(CreateOptions { prepared, ..options(1) }).await.unwrap() }
        });
        let (id, path) = (writer.id(), bench.file_path(&store, writer.id(), 0));
        let append = bench.handle.spawn(runtime::Class::Io, "append", async move {
            drop(writer.append(blocks(7, 1)).await);
        });
        append.detach();
        bench.world.run_for(Duration::from_micros(40));
        let has_landed = |bench: &Bench| bench.disk(0).content(&path).get(BLOCK..2 * BLOCK) == Some(&blocks(7, 1)[..]);
        assert!(!has_landed(&bench), "seed {seed}: the append is in flight");
        drop(store);
        // Killed, and started again at once.
        bench.restart();
        let before = has_landed(&bench);
        let store = bench.open();
        let after = has_landed(&bench);
        let read = |bench: &Bench| {
            let store = store.clone();
            bench.run(async move { store.read(id, 0, BLOCK).await.unwrap() })
        };
        assert_eq!(read(&bench)[..] == blocks(7, 1)[..], after, "seed {seed}");
        bench.world.run_for(Duration::from_secs(1));
        assert_eq!(has_landed(&bench), after, "seed {seed}: nothing lands once the store is open");
        assert_eq!(read(&bench)[..] == blocks(7, 1)[..], after, "seed {seed}");
        landed_late += u32::from(after && !before);
        lost += u32::from(!after);
        // What was read stays, power or not.
        drop(store);
        bench.power_loss();
        drop(bench.open());
        assert_eq!(has_landed(&bench), after, "seed {seed}");
    }
    assert!(landed_late > 10 && lost > 10, "{landed_late} {lost}");
}

#[test]
fn what_was_in_flight_to_a_deleted_file_does_not_reach_the_next_one_in_its_place() {
    let mut overlaps = 0;
    for (seed, is_killed) in (0..60).map(|seed| (seed, seed % 2 == 0)) {
        let mut bench = Bench::new(3000 + seed, 1);
        let mut store = bench.open();
        let prepared = CreateOptions { prepared: true, ..options(1) };
        let mut writer = bench.run({
            let store = store.clone();
            async move { store.create(prepared).await.unwrap() }
        });
        let deleted = writer.id();
        bench.disk(0).set_slowness(20);
        let append = writer.append(blocks(7, 2));
        let append = bench.handle.spawn(runtime::Class::Io, "append", async move { drop(append.await) });
        bench.world.run_for(Duration::from_micros(10));
        bench.disk(0).set_slowness(1);
        bench.run({
            let store = store.clone();
            async move { store.delete(deleted).await.unwrap() }
        });
        overlaps += u32::from(!append.is_finished());
        append.detach();
        if is_killed {
            drop(store);
            bench.restart();
            store = bench.open();
        }
        let next = bench.run({
            let store = store.clone();
            async move {
                let mut writer = store.create(prepared).await.unwrap();
                writer.append(blocks(8, 4)).await.unwrap();
                writer.id()
            }
        });
        bench.world.run_for(Duration::from_secs(1));
        assert!(bench.run(read_all(store, next)) == blocks(8, 4), "seed {seed}");
    }
    assert!(overlaps > 50, "{overlaps}");
}

#[test]
fn directories_that_cannot_be_used_are_refused_with_the_next_step() {
    let bench = Bench::new(2, 2);
    let handle = bench.handle.clone();
    bench.run(async move {
        handle.create_directory(Path::new("/0/home/photos")).await.unwrap();
        let create = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        handle.open(Path::new("/0/file"), create).await.unwrap();
    });
    let at = |paths: &[&str]| LocalOptions::new(paths.iter().map(PathBuf::from).collect());
    let foreign = bench.refusal(at(&["/0/home"]));
    assert!(foreign.kind == ErrorKind::Invalid && foreign.message.contains("contains 'photos'"), "{foreign}");
    let file = bench.refusal(at(&["/0/file"]));
    assert_eq!(
        (file.kind, file.message.as_str()),
        (ErrorKind::Invalid, "/0/file is not a directory: give a directory")
    );
    assert!(bench.refusal(at(&[])).message.contains("at least one"));
    assert!(bench.refusal(at(&["/0/a", "/0/a"])).message.contains("twice"));
    assert_eq!(bench.refusal(at(&["/nowhere/a"])).kind, ErrorKind::NotFound);
    let nothing = bench.refusal(LocalOptions { read_only: true, ..at(&["/0/a"]) });
    assert!(nothing.kind == ErrorKind::NotFound && nothing.message.contains("no store in /0/a"));
    assert!(bench.disk(0).files().iter().all(|(path, _)| path == Path::new("file")), "nothing was left behind");

    drop(bench.try_open(at(&["/0/a"])).unwrap());
    drop(bench.try_open(at(&["/1/b"])).unwrap());
    let mixed = bench.refusal(at(&["/0/a", "/1/b"]));
    assert!(mixed.kind == ErrorKind::Conflict && mixed.message.contains("one store"), "{mixed}");
    let zero = bench.refusal(LocalOptions { copies: 0, ..at(&["/0/a"]) });
    assert!(zero.kind == ErrorKind::Invalid && zero.message.contains("1 to 8"));
}

#[test]
fn what_a_newer_version_wrote_is_left_alone() {
    let mut bench = Bench::new(3, 1);
    drop(bench.open());
    bench.restart();
    // The version in both slots, with the checksums that a newer program would have written.
    for slot in [0, 4096] {
        let mut bytes = bench.disk(0).content("levee/superblock")[slot..slot + BLOCK].to_vec();
        if bytes.iter().all(|byte| *byte == 0) {
            continue;
        }
        bytes[8] = 2;
        bytes[12..16].fill(0);
        let sum = base::checksum::crc32c(&bytes);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        bench.disk(0).overwrite("levee/superblock", slot as u64, &bytes);
    }
    let refused = bench.refusal(bench.options(&[0]));
    assert!(refused.kind == ErrorKind::Invalid && refused.message.contains("newer version"), "{refused}");
}

#[test]
fn a_damaged_superblock_is_read_from_its_other_slot() {
    let mut bench = Bench::new(4, 1);
    bench.open();
    bench.open();
    let store = bench.open();
    let newest = store.incarnation();
    bench.run(sealed_file(store.clone(), 1, 3));
    drop(store);
    bench.restart();
    let before = bench.disk(0).snapshot();
    for slot in [100..200, 4196..4296] {
        bench.disk(0).corrupt("levee/superblock", slot);
        // No two lives have one number, whichever slot is left: the newest file tells.
        assert_eq!(bench.open().incarnation(), base::Incarnation(newest.0 + 1));
        bench.restart();
        bench.disk(0).restore(&before);
    }
    bench.disk(0).corrupt("levee/superblock", 100..200);
    bench.disk(0).corrupt("levee/superblock", 4196..4296);
    let refused = bench.refusal(bench.options(&[0]));
    assert!(refused.kind == ErrorKind::Corrupt && refused.message.contains("superblock"), "{refused}");
}

#[test]
fn looking_changes_nothing_and_disturbs_nobody() {
    let bench = Bench::new(5, 2);
    let store = bench.open();
    let file = bench.run(sealed_file(store.clone(), 2, 3));
    let writer = bench.run({
        let store = store.clone();
        async move {
            let mut writer = store.create(options(2)).await.unwrap();
            writer.append(blocks(4, 1)).await.unwrap();
            writer
        }
    });
    let look = |bench: &Bench| {
        (0..2)
            .map(|disk| {
                let disk = bench.disk(disk);
                disk.files().into_iter().map(|(path, _)| (path.clone(), disk.content(path))).collect::<Vec<_>>()
            })
            .collect::<Vec<_>>()
    };
    let before = look(&bench);
    let read_only = LocalOptions { read_only: true, ..bench.options(&[0, 1]) };
    let (looker, report) = bench.try_open(read_only.clone()).unwrap();
    assert_eq!(looker.incarnation(), store.incarnation());
    assert_eq!(looker.list(), store.list());
    assert_eq!(bench.run(read_all(looker.clone(), file)), blocks(3, 4));
    let id = writer.id();
    let refused = bench.run({
        let looker = looker.clone();
        async move {
            let created = looker.create(options(2)).await.map(drop);
            [created, looker.seal(id, 0).await, looker.delete(id).await, looker.fence(looker.incarnation()).await]
        }
    });
    assert!(refused.into_iter().all(|result| result.unwrap_err().message.contains("reading only")));
    assert!(report.notes.is_empty() && look(&bench) == before);
    // With a directory missing, it shows what there is.
    let (looker, report) = bench.try_open(LocalOptions { directories: vec!["/1/levee".into()], ..read_only }).unwrap();
    assert_eq!(looker.info(file).unwrap().copies, 1);
    assert!(report.notes.iter().any(|note| note.contains("/0/levee") && note.contains("missing")), "{report:?}");
    assert_eq!(bench.run(read_all(looker, file)), blocks(3, 4));
}

// Directories that come and go.

#[test]
fn a_start_needs_every_member_or_a_word() {
    let mut bench = Bench::new(6, 2);
    let file = bench.run(sealed_file(bench.open(), 2, 5));
    bench.restart();
    let refused = bench.refusal(bench.options(&[1]));
    assert_eq!(refused.kind, ErrorKind::Invalid);
    assert!(refused.message.contains("/0/levee") && refused.message.contains("--accept-missing-directories"));

    let accept = LocalOptions { accept_missing: true, ..bench.options(&[1]) };
    let (store, report) = bench.try_open(accept.clone()).unwrap();
    assert!(report.notes.iter().any(|note| note.contains("/0/levee")), "{report:?}");
    assert_eq!(bench.run(read_all(store.clone(), file)), blocks(5, 4));
    let newer = bench.run(sealed_file(store, 2, 6));
    bench.restart();
    drop(bench.open_with(&[1]).unwrap());
    bench.restart();

    // The one that was left behind comes back: it gets what it missed.
    let store = bench.open();
    bench.world.run_for(Duration::from_secs(5));
    assert_eq!(states(&store), ["healthy", "healthy"]);
    for file in [file, newer] {
        assert_eq!(store.info(file).unwrap().copies, 2);
    }
    bench.restart();
    let alone = LocalOptions { accept_missing: true, ..bench.options(&[0]) };
    let (store, _) = bench.try_open(alone).unwrap();
    assert_eq!(bench.run(read_all(store, newer)), blocks(6, 4));
    bench.restart();
    // Now the other one was left behind. Both alone, each for itself: no.
    let (store, _) = bench.try_open(LocalOptions { accept_missing: true, ..bench.options(&[1]) }).unwrap();
    drop(store);
    bench.restart();
    let refused = bench.refusal(bench.options(&[0, 1]));
    assert!(refused.kind == ErrorKind::Conflict && refused.message.contains("without each other"), "{refused}");
}

#[test]
fn what_only_a_directory_left_behind_holds_is_not_thrown_away() {
    let mut bench = Bench::new(7, 2);
    let store = bench.open();
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(bench.run(sealed_file(store.clone(), 1, 7)));
    }
    let on_0 = ids.iter().find(|id| store.locate(**id, 0).starts_with("/0/")).copied().unwrap();
    drop(store);
    bench.restart();
    drop(bench.try_open(LocalOptions { accept_missing: true, ..bench.options(&[1]) }).unwrap());
    bench.restart();
    let store = bench.open();
    bench.world.run_for(Duration::from_secs(5));
    assert_eq!(states(&store), ["missing", "healthy"], "a person has to decide");
    assert!(store.info(on_0).is_none());
    assert!(bench.disk(0).files().iter().any(|(path, _)| path.to_string_lossy().contains("data-")));
}

#[test]
fn appends_go_on_when_a_disk_vanishes_and_it_is_never_taken_for_current_again() {
    let mut bench = Bench::new(8, 2);
    let store = bench.open();
    let mut writer = bench.run({
        let store = store.clone();
        async move { store.create(options(2)).await.unwrap() }
    });
    let (id, disk) = (writer.id(), bench.disk(0));
    bench.run(async move {
        writer.append(blocks(1, 1)).await.unwrap();
        disk.vanish();
        assert_eq!(writer.append(blocks(2, 1)).await.unwrap(), BLOCK as u64);
    });
    assert_eq!(states(&store), ["failed", "healthy"]);
    assert_eq!(store.info(id).unwrap().copies, 1);
    assert!(store.statistics().copy_errors > 0);
    drop(store);
    bench.power_loss();
    bench.disk(0).come_back();
    // The disk that missed the second append, alone: it believes to be a member, and needs the other one.
    assert!(bench.refusal(bench.options(&[0])).message.contains("/1/levee"));
    let (store, report) = bench.open_with(&[0, 1]).unwrap();
    assert!(report.notes.iter().any(|note| note.contains("resynchronized")));
    let read = bench.run({
        let store = store.clone();
        async move { store.read(id, 0, 2 * BLOCK).await.unwrap() }
    });
    assert_eq!(read[..], [blocks(1, 1), blocks(2, 1)].concat()[..]);
    assert_eq!(store.info(id).unwrap().copies, 1, "the stale copy is none");
    bench.run({
        let store = store.clone();
        async move { store.seal(id, 2 * BLOCK as u64).await.unwrap() }
    });
    bench.world.run_for(Duration::from_secs(5));
    assert_eq!((states(&store), store.info(id).unwrap().copies), (vec!["healthy", "healthy"], 2));
}

#[test]
fn a_directory_that_returns_gets_what_it_missed_and_loses_what_was_deleted() {
    let mut bench = Bench::new(9, 2);
    let store = bench.open();
    let kept = bench.run(sealed_file(store.clone(), 2, 1));
    let deleted = bench.run(sealed_file(store.clone(), 2, 2));
    let path = bench.file_path(&store, kept, 0);
    bench.disk(0).vanish();
    let late = bench.run(sealed_file(store.clone(), 2, 3));
    bench.run({
        let store = store.clone();
        async move { store.delete(deleted).await.unwrap() }
    });
    // While it was away, a block of it rotted. Which of two copies is the good one, only the caller can tell.
    bench.disk(0).come_back();
    bench.disk(0).corrupt(&path, 8192..8292);
    let errors = store.statistics().copy_errors;
    bench.world.run_for(Duration::from_secs(30));
    assert_eq!(states(&store), ["healthy", "healthy"], "found again without a restart");
    assert_eq!(store.statistics().copy_errors, errors + 1);
    let rotten = (0..2).find(|copy| store.locate(kept, *copy).starts_with("/0/")).unwrap();
    bench.run({
        let store = store.clone();
        async move {
            let good = store.read_copy(kept, 1 - rotten, 4096, BLOCK).await.unwrap();
            assert_ne!(store.read_copy(kept, rotten, 4096, BLOCK).await.unwrap()[..], good[..]);
            store.repair_copy(kept, rotten, 4096, good.freeze()).await.unwrap();
        }
    });
    drop(store);
    bench.restart();
    let store = bench.open();
    for (file, byte) in [(kept, 1), (late, 3)] {
        for copy in 0..2 {
            let store = store.clone();
            let read = bench.run(async move { store.read_copy(file, copy, 0, 4 * BLOCK).await.unwrap() });
            assert_eq!(read[..], blocks(byte, 4)[..], "copy {copy} of {file}");
        }
    }
    assert!(store.info(deleted).is_none());
}

#[test]
fn a_directory_that_was_put_back_to_an_older_state_is_no_member() {
    let mut bench = Bench::new(18, 2);
    let store = bench.open();
    let kept = bench.run(sealed_file(store.clone(), 2, 1));
    let deleted = bench.run(sealed_file(store.clone(), 2, 2));
    drop(store);
    bench.restart();
    let backup = bench.disk(0).snapshot();
    let store = bench.open();
    let late = bench.run(sealed_file(store.clone(), 2, 3));
    bench.run({
        let store = store.clone();
        async move { store.delete(deleted).await.unwrap() }
    });
    drop(store);
    bench.restart();
    // As of the life before: nothing is older than that by less.
    bench.disk(0).restore(&backup);
    let refused = bench.refusal(bench.options(&[0, 1]));
    assert!(refused.message.contains("/0/levee holds an older state of itself"), "{refused}");
    let accept = LocalOptions { accept_missing: true, ..bench.options(&[0, 1]) };
    let (store, _) = bench.try_open(accept).unwrap();
    assert_eq!(states(&store), ["resynchronizing", "healthy"]);
    bench.world.run_for(Duration::from_secs(5));
    assert_eq!(states(&store), ["healthy", "healthy"]);
    assert!(store.info(deleted).is_none());
    assert!([kept, late].iter().all(|file| store.info(*file).unwrap().copies == 2));
    drop(store);
    bench.restart();
    assert!(bench.open().info(deleted).is_none());
}

#[test]
fn a_directory_that_was_put_back_within_a_life_is_no_member() {
    let mut bench = Bench::new(19, 2);
    let store = bench.open();
    let deleted = bench.run(sealed_file(store.clone(), 2, 1));
    let backup = bench.disk(0).snapshot();
    let delete = |store: Store| async move { store.delete(deleted).await.unwrap() };
    bench.run(delete(store.clone()));
    for byte in 0..4 {
        bench.world.run_for(Duration::from_secs(40));
        bench.run(sealed_file(store.clone(), 2, byte));
    }
    drop(store);
    bench.power_loss();
    bench.disk(0).restore(&backup);
    for given in [[0, 1].as_slice(), &[0]] {
        let refused = bench.refusal(bench.options(given));
        assert_eq!(refused.kind, ErrorKind::Invalid, "{refused}");
        assert!(refused.message.contains(if given.len() == 2 { "/0/levee holds an older state" } else { "/1/levee" }));
    }
    let accept = LocalOptions { accept_missing: true, ..bench.options(&[0, 1]) };
    let (store, _) = bench.try_open(accept).unwrap();
    assert!(store.info(deleted).is_none(), "not before the directory is resynchronized, either");
    bench.world.run_for(Duration::from_secs(5));
    assert_eq!(states(&store), ["healthy", "healthy"]);
    assert!(store.info(deleted).is_none());
}

#[test]
fn a_copy_from_before_the_seal_counts_only_if_it_is_the_same() {
    for (stale, prepared) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut bench = Bench::new(20, 2);
        let store = bench.open();
        let mut writer = bench.run({
            let store = store.clone();
            async move { store.create(CreateOptions { prepared, ..options(2) }).await.unwrap() }
        });
        let id = writer.id();
        let path = bench.file_path(&store, id, 0);
        let mut header = Vec::new();
        for byte in 1..=4 {
            if byte == if stale { 3 } else { 1 } {
                header = bench.disk(0).content(&path);
            }
            writer = bench.run(async move {
                writer.append(blocks(byte, 1)).await.unwrap();
                writer
            });
        }
        if !stale {
            header.truncate(BLOCK);
        }
        bench.run({
            let store = store.clone();
            async move { store.seal(id, 4 * BLOCK as u64).await.unwrap() }
        });
        drop((store, writer));
        bench.restart();
        // One copy is put back to before it was sealed, or to before its last blocks.
        bench.disk(0).overwrite(&path, 0, &header);
        let read_only = LocalOptions { read_only: true, ..bench.options(&[0, 1]) };
        for options in [read_only, bench.options(&[0, 1])] {
            let repairs = !options.read_only;
            let (store, report) = bench.try_open(options).unwrap();
            assert_eq!(report.damaged.len(), usize::from(stale), "{report:?}");
            assert!(report.damaged.iter().all(|damaged| damaged.offset == 3 * BLOCK as u64));
            assert_eq!(store.info(id).unwrap().sealed, Some(4 * BLOCK as u64));
            assert_eq!(store.info(id).unwrap().copies, if stale { 1 } else { 2 });
            bench.world.run_for(Duration::from_secs(5));
            if repairs || !stale {
                for copy in 0..2 {
                    let store = store.clone();
                    let read = bench.run(async move { store.read_copy(id, copy, 0, 4 * BLOCK).await.unwrap() });
                    assert_eq!(read[..], [1, 2, 3, 4].map(|byte| blocks(byte, 1).to_vec()).concat()[..]);
                }
            }
        }
    }
}

#[test]
fn a_sealed_copy_that_was_cut_off_is_reported_and_made_anew() {
    let mut bench = Bench::new(21, 2);
    let store = bench.open();
    let file = bench.run(sealed_file(store.clone(), 2, 1));
    let path = Path::new("/0").join(bench.file_path(&store, file, 0));
    drop(store);
    bench.restart();
    let handle = bench.handle.clone();
    bench.run(async move {
        let write = OpenOptions { write: true, ..OpenOptions::default() };
        handle.open(&path, write).await.unwrap().set_len(3 * BLOCK as u64).await.unwrap();
    });
    let (store, report) = bench.open_with(&[0, 1]).unwrap();
    assert!(report.damaged.len() == 1 && report.damaged[0].why.contains("cut off: 12288 bytes are left of 20480"));
    bench.world.run_for(Duration::from_secs(5));
    assert_eq!(store.info(file).unwrap().copies, 2);
    assert_eq!(bench.run(read_all(store, file)), blocks(1, 4));
}

#[test]
fn a_file_that_left_a_suspect_directory_keeps_its_numbers() {
    let mut bench = Bench::new(22, 3);
    let store = bench.open();
    let files = (0..6).map(|byte| bench.run(sealed_file(store.clone(), 2, byte))).collect::<Vec<_>>();
    // Something that is nowhere else keeps the directory in the store when it fails.
    let mut writers = Vec::new();
    while !writers.iter().any(|writer: &FileWriter| store.locate(writer.id(), 0).starts_with("/0/")) {
        let store = store.clone();
        writers.push(bench.run(async move { store.create(options(1)).await.unwrap() }));
    }
    let mut writer = writers.pop().unwrap();
    bench.disk(0).inject(Fault::WriteError, 1);
    bench.run(async move { writer.append(blocks(1, 1)).await.unwrap_err() });
    assert_eq!(states(&store)[0], "failed");
    let check = |store: &Store, bench: &Bench| {
        for (byte, file) in files.iter().enumerate() {
            assert_eq!(store.info(*file).unwrap().copies, 2);
            for copy in 0..2 {
                let (store, file) = (store.clone(), *file);
                let read = bench.run(async move { store.read_copy(file, copy, 0, 4 * BLOCK).await.unwrap() });
                assert_eq!(read[..], blocks(byte as u8, 4)[..]);
            }
        }
    };
    // At every moment, and after a crash at every moment.
    for _ in 0..200 {
        bench.world.run_for(Duration::from_micros(50));
        check(&store, &bench);
    }
    bench.world.run_for(Duration::from_secs(5));
    let left = |bench: &Bench| {
        let names = bench.disk(0).files().into_iter().map(|(path, _)| path.to_string_lossy().into_owned());
        let names = names.collect::<Vec<_>>();
        files.iter().filter(|file| names.iter().any(|name| name.ends_with(&format!("data-{file}")))).count()
    };
    assert_eq!(left(&bench), 0, "they were copied away");
    drop((store, writers));
    bench.restart();
    let store = bench.open();
    check(&store, &bench);
}

#[test]
fn a_store_on_a_full_disk_starts() {
    let mut bench = Bench::new(23, 1);
    let store = bench.open();
    let file = bench.run(sealed_file(store.clone(), 1, 1));
    drop(store);
    for _ in 0..2 {
        bench.power_loss();
        bench.disk(0).set_capacity(bench.disk(0).used());
        let handle = bench.handle.clone();
        // Whatever the disk still had room for.
        bench.run(async move {
            let write = OpenOptions { write: true, ..OpenOptions::default() };
            handle.open(Path::new("/0/levee/lock"), write).await.unwrap().set_len(0).await.unwrap();
        });
        bench.disk(0).set_capacity(bench.disk(0).used());
        let store = bench.open();
        assert_eq!(bench.run(read_all(store.clone(), file)), blocks(1, 4));
        let refused = bench.run({
            let store = store.clone();
            async move { store.create(options(1)).await.map(drop).unwrap_err() }
        });
        assert!(refused.kind == ErrorKind::Full && refused.message.contains("delete"), "{refused}");
    }
    bench.restart();
    let store = bench.open();
    bench.run(async move { store.delete(file).await.unwrap() });
}

#[test]
fn a_directory_with_the_only_copy_of_something_stays() {
    let mut bench = Bench::new(10, 2);
    let store = bench.open();
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(bench.run(sealed_file(store.clone(), 1, 7)));
    }
    let mut writer = bench.run({
        let store = store.clone();
        async move { store.create(options(1)).await.unwrap() }
    });
    let place = store.locate(writer.id(), 0);
    let disk = usize::from(place.starts_with("/1/"));
    bench.disk(disk).inject(Fault::WriteError, 1);
    let failed = bench.run(async move { writer.append(blocks(1, 1)).await });
    assert_eq!(failed.unwrap_err().kind, ErrorKind::Io);
    assert_eq!(states(&store)[disk], "failed");
    let elsewhere = bench.run(sealed_file(store.clone(), 1, 8));
    assert!(store.locate(elsewhere, 0).starts_with(&format!("/{}/", 1 - disk)), "it gets no new files");
    bench.world.run_for(Duration::from_secs(30));
    assert_eq!(states(&store), ["healthy", "healthy"], "it works again");
    drop(store);
    bench.restart();
    let store = bench.open();
    assert!(ids.iter().all(|id| store.info(*id).unwrap().copies == 1));
}

#[test]
fn an_empty_directory_joins_but_one_that_does_not_exist_is_not_made() {
    let mut bench = Bench::new(11, 2);
    drop(bench.open_with(&[0]).unwrap());
    let (store, report) = bench.open_with(&[0, 1]).unwrap();
    assert_eq!(states(&store), ["healthy", "missing"]);
    assert!(report.notes.iter().any(|note| note.contains("/1/levee")), "{report:?}");
    assert!(bench.disk(1).files().is_empty());
    let file = bench.run(sealed_file(store.clone(), 2, 1));
    drop(store);
    bench.restart();
    let handle = bench.handle.clone();
    bench.run(async move { handle.create_directory(Path::new("/1/levee")).await.unwrap() });
    let store = bench.open();
    assert_eq!(states(&store), ["healthy", "healthy"]);
    bench.world.run_for(Duration::from_secs(5));
    assert_eq!(store.info(file).unwrap().copies, 2, "what was waiting for a second directory is copied");
    drop(store);
    bench.restart();
    assert!(bench.refusal(bench.options(&[0])).message.contains("/1/levee"));
}

// Single disks, single files.

#[test]
fn a_read_error_is_answered_from_the_other_copy() {
    let bench = Bench::new(12, 2);
    let store = bench.open();
    let file = bench.run(sealed_file(store.clone(), 2, 1));
    for disk in 0..2 {
        let path = bench.file_path(&store, file, disk);
        bench.disk(disk).inject_on(path, Fault::ReadError, 1);
        assert_eq!(bench.run(read_all(store.clone(), file)), blocks(1, 4));
        assert_eq!(bench.run(read_all(store.clone(), file)), blocks(1, 4));
        bench.disk(disk).stop_injections();
    }
    assert_eq!(store.statistics().copy_errors, 1, "only the copy that was asked first");
    assert_eq!(states(&store), ["healthy", "healthy"]);
}

#[test]
fn a_damaged_header_is_reported_and_its_copy_made_anew() {
    let mut bench = Bench::new(13, 2);
    let store = bench.open();
    let file = bench.run(sealed_file(store.clone(), 2, 1));
    let only = bench.run(sealed_file(store.clone(), 1, 2));
    let path = bench.file_path(&store, file, 0);
    let only_disk = usize::from(store.locate(only, 0).starts_with("/1/"));
    let only_path = bench.file_path(&store, only, only_disk);
    drop(store);
    bench.restart();
    bench.disk(0).flip_bit(&path, 600, 3);
    bench.disk(only_disk).corrupt(&only_path, 0..512);
    let (store, report) = bench.open_with(&[0, 1]).unwrap();
    assert_eq!(report.damaged.len(), 2, "{report:?}");
    assert_eq!(bench.run(read_all(store.clone(), file)), blocks(1, 4));
    let lost = bench.run({
        let store = store.clone();
        async move { store.read(only, 0, BLOCK).await.unwrap_err() }
    });
    assert!(lost.kind == ErrorKind::Corrupt && lost.message.contains(only_path.to_str().unwrap()), "{lost}");
    bench.world.run_for(Duration::from_secs(5));
    assert_eq!(store.info(file).unwrap().copies, 2);
    bench.run({
        let store = store.clone();
        async move { store.delete(only).await.unwrap() }
    });
    drop(store);
    bench.restart();
    let (_, report) = bench.open_with(&[0, 1]).unwrap();
    assert!(report.damaged.is_empty(), "{report:?}");
}

#[test]
fn a_full_disk_says_so_and_room_comes_back() {
    let bench = Bench::with(14, 1, DiskOptions { capacity: MIB, ..DiskOptions::default() });
    let store = bench.open();
    let fill = |prepared: bool| {
        let store = store.clone();
        bench.run(async move {
            let mut ids = Vec::new();
            loop {
                match store.create(maybe_prepared(prepared, 1)).await {
                    Ok(writer) => ids.push(writer.id()),
                    Err(error) => {
                        assert!(error.kind == ErrorKind::Full && error.message.contains("delete"), "{error}");
                        return ids;
                    }
                }
            }
        })
    };
    let prepared = fill(true);
    assert!(prepared.len() > 10 && store.space().free < 64 * KIB, "{} {:?}", prepared.len(), store.space());
    let count = prepared.len();
    bench.run({
        let store = store.clone();
        async move {
            for id in prepared {
                store.delete(id).await.unwrap();
            }
        }
    });
    assert!(store.space().free >= 60 * KIB * count as u64, "spares count as free: {:?}", store.space());
    assert!(bench.disk(0).files().iter().any(|(path, _)| path.to_string_lossy().contains("spare-")));
    assert!(fill(false).len() + 1 >= count, "spares give way");
}

#[test]
fn a_capacity_bounds_the_store() {
    let bench = Bench::new(15, 2);
    let (store, _) = bench.try_open(LocalOptions { capacity: Some(MIB), ..bench.options(&[0, 1]) }).unwrap();
    assert_eq!(store.space().free, MIB);
    let created = bench.run({
        let store = store.clone();
        async move {
            let mut count = 0;
            while store.create(options(2)).await.is_ok() {
                count += 1;
            }
            count
        }
    });
    assert_eq!(created, 15, "with their headers");
    assert!(store.space().free < 64 * KIB);
}

#[test]
fn prepared_space_is_ready_ahead_of_need_and_used_again() {
    let bench = Bench::new(16, 1);
    let store = bench.open();
    let prepared = CreateOptions { kind: FileKind::Journal, prepared: true, capacity: MIB, ..options(1) };
    let spares = |bench: &Bench| {
        let files = bench.disk(0).files();
        files.into_iter().filter(|(path, _)| path.to_string_lossy().contains("spare-")).count()
    };
    let create = |count: usize| {
        let store = store.clone();
        bench.run(async move {
            let mut writers: Vec<FileWriter> = Vec::new();
            for _ in 0..count {
                writers.push(store.create(prepared).await.unwrap());
            }
            writers
        })
    };
    let mut writers = create(2);
    bench.world.run_for(Duration::from_secs(1));
    assert_eq!(spares(&bench), 2, "as many as are in use");
    let zeros = store.statistics().written_bytes[FileKind::Journal as usize];
    let before = bench.disk(0).counters();
    writers.extend(create(2));
    assert!(bench.disk(0).counters().written_bytes - before.written_bytes < MIB, "nobody waited for zeros");
    bench.world.run_for(Duration::from_secs(1));
    assert_eq!(spares(&bench), 4);
    // Appends to it change no allocation and no length.
    let used = bench.disk(0).used();
    bench.run({
        let mut writer = writers.pop().unwrap();
        async move { writer.append(blocks(1, 16)).await.map(drop).unwrap() }
    });
    assert_eq!(bench.disk(0).used(), used);
    assert!(zeros >= 4 * MIB && store.statistics().written_bytes[FileKind::Journal as usize] >= zeros + 2 * MIB);
}

#[test]
fn a_prepared_data_file_takes_what_another_left_and_is_never_zero_written() {
    let bench = Bench::new(18, 1);
    let store = bench.open();
    let prepared = CreateOptions { prepared: true, capacity: MIB, ..options(1) };
    let vacant = |bench: &Bench| {
        let files = bench.disk(0).files();
        files.into_iter().filter(|(path, _)| path.to_string_lossy().contains("vacant-")).count()
    };
    let written = |bench: &Bench| bench.disk(0).counters().written_bytes;
    let create = |store: &Store| {
        let store = store.clone();
        bench.run(async move { store.create(prepared).await.unwrap().id() })
    };
    let before = written(&bench);
    let id = create(&store);
    assert!(written(&bench) - before < 64 * KIB && vacant(&bench) == 0, "set aside, not written");
    bench.run({
        let store = store.clone();
        async move { store.delete(id).await.unwrap() }
    });
    assert_eq!(vacant(&bench), 1);
    let used = bench.disk(0).used();
    create(&store);
    assert_eq!((vacant(&bench), bench.disk(0).used()), (0, used), "the same space");
}

#[test]
fn an_idle_store_does_nothing() {
    let bench = Bench::new(17, 2);
    let store = bench.open();
    bench.run(sealed_file(store.clone(), 2, 1));
    bench.world.run_for(Duration::from_secs(60));
    let before = bench.world.operations_done();
    bench.world.run_for(Duration::from_secs(3600));
    assert_eq!(bench.world.operations_done(), before);
    assert!(!bench.world.step(), "no timer waits");
}

#[test]
fn a_disk_may_be_full_at_any_step() {
    let (mut starts, mut births, mut deletions) = ([0, 0], [0, 0], 0);
    let count = |counts: &mut [u32; 2], result: Result<()>| {
        if let Err(error) = &result {
            assert_eq!(error.kind, ErrorKind::Full, "{error}");
            assert!(error.message.contains("free"), "{error}");
        }
        counts[usize::from(result.is_ok())] += 1;
    };
    for room in (0..400 * KIB).step_by(2 * KIB as usize) {
        let mut bench = Bench::with(24, 1, DiskOptions { capacity: room, ..DiskOptions::default() });
        let opened = bench.try_open(bench.options(&[0]));
        count(&mut starts, opened.as_ref().map(drop).map_err(Error::clone));
        let mut kept = None;
        if let Ok((store, _)) = opened {
            for prepared in [true, false, true] {
                let created = bench.run({
                    let store = store.clone();
                    async move { store.create(CreateOptions { prepared, ..options(1) }).await }
                });
                let created = created.map(|mut writer| {
                    // What was set aside is there, however full the disk is.
                    let store = store.clone();
                    bench.run(async move {
                        writer.append(blocks(1, 4)).await.unwrap();
                        store.seal(writer.id(), 4 * BLOCK as u64).await.unwrap();
                        writer.id()
                    })
                });
                kept = created.as_ref().ok().copied().or(kept);
                count(&mut births, created.map(drop));
            }
            if let Some(id) = kept {
                let deleted = store.clone();
                assert_eq!(bench.run(read_all(store.clone(), id)), blocks(1, 4));
                let first = store.list()[0].id;
                bench.run(async move { deleted.delete(first).await.unwrap() });
                kept = kept.filter(|id| *id != first);
                deletions += 1;
            }
            assert_eq!(states(&store), ["healthy"]);
        }
        // As full as it is, and then with room again.
        for _ in 0..2 {
            bench.power_loss();
            let opened = bench.try_open(bench.options(&[0]));
            assert!(opened.is_ok() || starts[1] == 0, "room {room}: {:?}", opened.map(drop));
            bench.disk(0).set_capacity(64 * MIB);
        }
        bench.restart();
        let store = bench.open();
        if let Some(id) = kept {
            assert_eq!(bench.run(read_all(store.clone(), id)), blocks(1, 4));
        }
        bench.run(sealed_file(store, 1, 2));
    }
    assert!(starts[0] > 0 && births[0] > 0 && births[1] > 0 && deletions > 0, "{starts:?} {births:?} {deletions}");
}

#[test]
fn a_full_disk_is_no_failed_one_when_copies_are_made() {
    let mut complete = 0;
    for step in 0..200 {
        let mut bench = Bench::new(25, 2);
        let store = bench.open();
        bench.disk(0).vanish();
        let files = (0..8).map(|byte| bench.run(sealed_file(store.clone(), 2, byte))).collect::<Vec<_>>();
        drop(store);
        bench.restart();
        bench.disk(0).come_back();
        let store = bench.open();
        bench.world.run_for(Duration::from_micros(20 * step));
        complete += u32::from(files.iter().all(|file| store.info(*file).unwrap().copies == 2));
        // Somebody else fills it: up to the last block, or so that a file fits without its header.
        bench.disk(0).set_capacity(bench.disk(0).used() + (step % 2) * 4 * BLOCK as u64);
        bench.world.run_for(Duration::from_secs(20));
        assert_eq!(states(&store), ["healthy", "healthy"], "step {step}");
        bench.disk(0).set_capacity(64 * MIB);
        bench.world.run_for(Duration::from_secs(20));
        // What comes free is used for the copies that are missing.
        for _ in 0..2 {
            let id = bench.run(sealed_file(store.clone(), 1, 9));
            let store = store.clone();
            bench.run(async move { store.delete(id).await.unwrap() });
            bench.world.run_for(Duration::from_secs(20));
        }
        assert!(files.iter().all(|file| store.info(*file).unwrap().copies == 2), "step {step}");
    }
    assert!((1..100).contains(&complete), "the steps reach to the end and not far beyond: {complete}");
}

#[test]
fn a_sync_that_fails_is_never_taken_for_done() {
    for disks in [1, 2] {
        let mut syncs = 0;
        for skipped in 0..8 {
            let mut bench = Bench::new(26, disks);
            let store = bench.open();
            let copies = disks as u8;
            let done = std::rc::Rc::new(std::cell::Cell::new(false));
            let (flag, disk, inside) = (done.clone(), bench.disk(0), store.clone());
            let before = disk.counters().syncs;
            let task = bench.handle.spawn(runtime::Class::Io, "create", async move {
                let created = inside.create(CreateOptions { prepared: true, ..options(copies) }).await;
                flag.set(true);
                created.map(|writer| writer.id())
            });
            bench.world.run_until(|| done.get() || disk.counters().syncs >= before + skipped);
            bench.disk(0).inject(Fault::SyncError, 1);
            bench.world.run_until(|| done.get());
            let created = bench.run(task);
            if let Err(error) = &created {
                assert!(disks == 1 && error.kind == ErrorKind::Io && error.message.contains("/0/levee"), "{error}");
                syncs += 1;
            }
            bench.disk(0).stop_injections();
            bench.world.run_for(Duration::from_secs(60));
            assert!(states(&store).iter().all(|state| *state == "healthy"));
            bench.run(sealed_file(store.clone(), copies, 3));
            let confirmed = store.list();
            drop(store);
            bench.power_loss();
            let store = bench.open();
            let found = store.list();
            assert!(
                confirmed.iter().all(|info| found.iter().any(|other| other.id == info.id)),
                "{confirmed:?} {found:?}"
            );
            assert!(created.is_err() || store.info(*created.as_ref().unwrap()).is_some());
        }
        assert!(disks == 2 || syncs > 1, "{syncs}");
    }
}

#[test]
fn a_superblock_that_could_not_be_written_is_tried_again_in_the_same_slot() {
    let mut bench = Bench::new(27, 1);
    let store = bench.open();
    let slots =
        |bench: &Bench| bench.disk(0).content("levee/superblock").chunks(BLOCK).map(Vec::from).collect::<Vec<_>>();
    let sequence = |slot: &Vec<u8>| u64::from_le_bytes(slot[40..48].try_into().unwrap());
    let before = slots(&bench);
    let good = usize::from(sequence(&before[1]) > sequence(&before[0]));
    bench.disk(0).inject_on("levee/superblock", Fault::WriteError, 1);
    bench.world.run_for(Duration::from_secs(31));
    // The superblock is written because files came after a while: in vain, and once more when the directory is tried.
    bench.run(sealed_file(store.clone(), 1, 1));
    bench.world.run_until(|| states(&store) == ["failed"]);
    bench.world.run_until(|| states(&store) == ["healthy"]);
    bench.world.run_for(Duration::from_secs(1));
    let after = slots(&bench);
    assert!(after[good] == before[good], "the only good one was left alone");
    assert_eq!(sequence(&after[1 - good]), sequence(&before[good]) + 1);
    let incarnation = store.incarnation();
    drop(store);
    bench.power_loss();
    assert!(bench.open().incarnation() > incarnation);
}

// Power lost at every step.

/// Runs `work` on a store again and again, each time losing power one operation later, until it gets to its end;
/// `check` looks at what the next life finds, knowing whether the work was done.
fn at_every_step<W: Future<Output = ()> + 'static>(
    disks: usize,
    prepare: impl Fn(Store) -> std::pin::Pin<Box<dyn Future<Output = FileId>>>,
    work: impl Fn(Store, FileId) -> W,
    check: impl Fn(&Bench, Store, FileId, bool),
) {
    for step in 0.. {
        let mut done = false;
        for seed in 0..4 {
            let mut bench = Bench::new(step * 10 + seed, disks);
            let store = bench.open();
            let file = bench.run(prepare(store.clone()));
            let start = bench.world.operations_done();
            let task = bench.handle.spawn(runtime::Class::Io, "work", work(store.clone(), file));
            let world = bench.world.clone();
            bench.world.run_until(|| task.is_finished() || world.operations_done() >= start + step);
            done = task.is_finished();
            drop((task, store));
            bench.power_loss();
            let store = bench.open();
            check(&bench, store, file, done);
        }
        if done {
            assert!(step > 3, "there were steps in between");
            return;
        }
    }
}

#[test]
fn power_is_lost_at_every_step_of_a_creation() {
    for prepared in [false, true] {
        at_every_step(
            2,
            |store| Box::pin(async move { store.create(options(2)).await.unwrap().id() }),
            move |store, _| async move {
                store.create(CreateOptions { prepared, ..options(2) }).await.unwrap();
            },
            |bench, store, file, done| {
                let others = store.list().into_iter().filter(|info| info.id != file).collect::<Vec<_>>();
                assert!(others.len() <= 1 && (!done || others.len() == 1), "{others:?}");
                assert!(!done || others[0].copies == 2);
                assert!(others.iter().all(|info| info.sealed.is_none() && info.id > file));
                // The next one is another one, and whole.
                let next = bench.run(sealed_file(store, 2, 3));
                assert!(others.iter().all(|info| info.id < next));
            },
        );
    }
}

#[test]
fn power_is_lost_at_every_step_of_a_seal() {
    for prepared in [false, true] {
        at_every_step(
            2,
            move |store| {
                Box::pin(async move {
                    let mut writer = store.create(maybe_prepared(prepared, 2)).await.unwrap();
                    writer.append(blocks(1, 4)).await.unwrap();
                    writer.id()
                })
            },
            |store, file| async move { store.seal(file, 4 * BLOCK as u64).await.unwrap() },
            |bench, store, file, done| {
                let sealed = store.info(file).unwrap().sealed;
                assert!(sealed == Some(4 * BLOCK as u64) || (sealed.is_none() && !done), "{sealed:?}");
                assert_eq!(bench.run(read_all(store.clone(), file)), blocks(1, 4));
                // Sealed in one copy is sealed in both.
                bench.disk(0).vanish();
                assert_eq!(store.info(file).unwrap().sealed, sealed);
                assert_eq!(bench.run(read_all(store, file)), blocks(1, 4));
            },
        );
    }
}

#[test]
fn power_is_lost_at_every_step_of_a_deletion_and_the_birth_in_its_place() {
    for prepared in [false, true] {
        at_every_step(
            2,
            move |store| {
                Box::pin(async move {
                    let mut writer = store.create(CreateOptions { prepared, ..options(2) }).await.unwrap();
                    writer.append(blocks(1, 4)).await.unwrap();
                    store.seal(writer.id(), 4 * BLOCK as u64).await.unwrap();
                    writer.id()
                })
            },
            move |store, file| async move {
                store.delete(file).await.unwrap();
                let mut writer = store.create(CreateOptions { prepared, ..options(2) }).await.unwrap();
                writer.append(blocks(2, 4)).await.unwrap();
            },
            |bench, store, file, done| {
                assert!(!done || store.info(file).is_none());
                if store.info(file).is_some() {
                    assert_eq!(store.info(file).unwrap().sealed, Some(4 * BLOCK as u64));
                    assert_eq!(bench.run(read_all(store.clone(), file)), blocks(1, 4), "the old state as a whole");
                }
                for info in store.list().into_iter().filter(|info| info.id != file) {
                    assert_eq!(info.sealed, None, "a seal of the file before");
                    if done {
                        assert_eq!(bench.run(read_all(store.clone(), info.id)), blocks(2, 4));
                    }
                }
            },
        );
    }
}

#[test]
fn power_is_lost_at_every_step_of_a_change_of_members() {
    for step in 0..60 {
        for seed in 0..4 {
            let mut bench = Bench::new(1000 + step * 10 + seed, 3);
            let store = bench.open();
            let mut writer = bench.run({
                let store = store.clone();
                async move { store.create(options(3)).await.unwrap() }
            });
            let (id, disk) = (writer.id(), bench.disk(1));
            let confirmed = std::rc::Rc::new(std::cell::Cell::new(0));
            let count = confirmed.clone();
            let start = bench.world.operations_done();
            let task = bench.handle.spawn(runtime::Class::Io, "appends", async move {
                for byte in 0..4 {
                    if byte == 1 {
                        disk.inject(Fault::WriteError, 1);
                    }
                    writer.append(blocks(byte, 1)).await.unwrap();
                    count.set(byte + 1);
                }
            });
            let world = bench.world.clone();
            bench.world.run_until(|| task.is_finished() || world.operations_done() >= start + step);
            drop((task, store));
            bench.power_loss();
            // Whichever directories are there: what was confirmed is, or the start is refused.
            for given in [[0, 2].as_slice(), &[1], &[0, 1, 2]] {
                let Ok((store, _)) = bench.open_with(given) else {
                    assert!(given.len() < 3);
                    continue;
                };
                assert!(given.len() > 1, "the one that failed never starts alone");
                for byte in 0..confirmed.get() {
                    let store = store.clone();
                    let read = bench.run(async move { store.read(id, u64::from(byte) * BLOCK as u64, BLOCK).await });
                    assert_eq!(read.unwrap()[..], blocks(byte, 1)[..], "step {step}, given {given:?}");
                }
                drop(store);
                bench.restart();
            }
        }
    }
}
