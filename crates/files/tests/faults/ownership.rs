//! Who may have a directory: one process at a time, and what somebody else or an earlier life left there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::ErrorKind;
use files::CreateOptions;
use files::local::LocalOptions;
use runtime::OpenOptions;

use crate::bench::{BLOCK, Bench, blocks, options, read_all, sealed_file};

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

/// From the first confirmed append on, either slot is enough: also in the life that made the directory, or that let it
/// join.
#[test]
fn a_new_directory_has_both_slots_of_its_superblock() {
    for (seed, disks, first) in [(40, 1, &[0][..]), (41, 2, &[0, 1][..]), (42, 2, &[0][..])] {
        let mut bench = Bench::new(seed, disks);
        let (store, _) = bench.open_with(first).unwrap();
        let mut file = bench.run(sealed_file(store.clone(), 1, 1));
        drop(store);
        bench.power_loss();
        if first.len() < disks {
            let handle = bench.handle.clone();
            bench.run(async move { handle.create_directory(Path::new("/1/levee")).await.unwrap() });
            let store = bench.open();
            file = bench.run(sealed_file(store.clone(), 2, 1));
            drop(store);
            bench.power_loss();
        }
        let all: Vec<usize> = (0..disks).collect();
        for (disk, slot) in [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().filter(|(disk, _)| *disk < disks) {
            let before: Vec<_> = (0..disks).map(|disk| bench.disk(disk).snapshot()).collect();
            let at = slot * BLOCK as u64;
            bench.disk(disk).corrupt("levee/superblock", at..at + 512);
            let (store, report) = bench.open_with(&all).unwrap();
            assert!(!report.created && report.notes.is_empty(), "disk {disk}, slot {slot}: {report:?}");
            assert_eq!(bench.run(read_all(store.clone(), file)), blocks(1, 4));
            drop(store);
            bench.restart();
            before.iter().enumerate().for_each(|(disk, before)| bench.disk(disk).restore(before));
        }
    }
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
