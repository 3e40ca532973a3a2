//! Directories that come and go: what a start needs, what one that was left behind gets and loses.

use std::path::Path;
use std::time::Duration;

use base::{ErrorKind, FileId};
use files::local::LocalOptions;
use files::{CreateOptions, FileWriter, Store};
use runtime::sim::Fault;
use runtime::{Class, OpenOptions};

use crate::bench::{BLOCK, Bench, blocks, maybe_prepared, options, read_all, sealed_file, states};

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
    let before = store.background_work();
    bench.run({
        let store = store.clone();
        async move { store.seal(id, 2 * BLOCK as u64).await.unwrap() }
    });
    bench.world.run_for(Duration::from_secs(5));
    assert_eq!((states(&store), store.info(id).unwrap().copies), (vec!["healthy", "healthy"], 2));
    let copied = store.background_work().since(&before);
    assert!(copied.read_bytes >= 2 * BLOCK as u64 && copied.written_bytes >= 2 * BLOCK as u64, "{copied:?}");
}

#[test]
fn a_name_that_a_disk_lost_while_it_was_away_for_a_moment_is_not_taken_for_durable() {
    let mut excluded = [0, 0];
    for (prepared, step) in [false, true].into_iter().flat_map(|prepared| (0..60).map(move |step| (prepared, step))) {
        let mut bench = Bench::new(step, 2);
        let store = bench.open();
        let old = bench.run(sealed(store.clone(), maybe_prepared(prepared, 2)));
        // Away and back in the middle of it, before anybody asks for what was open on it.
        let working = bench.handle.spawn(Class::Io, "work", {
            let store = store.clone();
            async move {
                store.delete(old).await.unwrap();
                sealed(store, maybe_prepared(prepared, 2)).await
            }
        });
        bench.world.run_for(Duration::from_micros(20 * step));
        bench.disk(0).vanish();
        bench.world.run_for(Duration::from_micros(5));
        bench.disk(0).come_back();
        let new = bench.run(working);
        excluded[usize::from(states(&store)[0] != "healthy")] += 1;
        drop(store);
        bench.restart();
        let store = bench.open();
        let listed = store.list().iter().map(|info| info.id).collect::<Vec<_>>();
        assert_eq!(listed, [new], "prepared {prepared}, step {step}");
    }
    assert!(excluded.iter().all(|count| *count > 0), "some during the work, some after it: {excluded:?}");
}

#[test]
fn a_slot_of_a_superblock_that_cannot_be_read_is_no_disk_that_was_away() {
    let bench = Bench::new(1, 1);
    let store = bench.open();
    for (slots, is_away) in [(1, false), (2, true)] {
        let file = bench.run(sealed(store.clone(), options(1)));
        bench.disk(0).inject(Fault::ReadError, slots);
        let store = store.clone();
        let deleted = bench.run(async move { store.delete(file).await });
        assert_eq!(deleted.is_err(), is_away, "{slots} of two: {deleted:?}");
    }
}

/// A file with one block that nobody reads.
async fn sealed(store: Store, options: CreateOptions) -> FileId {
    let mut writer = store.create(options).await.unwrap();
    writer.append(blocks(1, 1)).await.unwrap();
    store.seal(writer.id(), BLOCK as u64).await.unwrap();
    writer.id()
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

/// One copy lost its seal. It may be older than that, and miss blocks; or the sealed one may have rotted since. Nothing
/// in the files tells which, so that both must be there for whoever can.
#[test]
fn a_copy_from_before_the_seal_that_differs_is_kept_and_read_last() {
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
        let good = [1, 2, 3, 4].map(|byte| blocks(byte, 1).to_vec()).concat();
        let read_only = LocalOptions { read_only: true, ..bench.options(&[0, 1]) };
        for options in [read_only, bench.options(&[0, 1])] {
            let (store, report) = bench.try_open(options).unwrap();
            assert_eq!(report.damaged.len(), usize::from(stale), "{report:?}");
            assert!(report.damaged.iter().all(|damaged| damaged.offset == 3 * BLOCK as u64));
            assert_eq!(store.info(id).unwrap().sealed, Some(4 * BLOCK as u64));
            assert_eq!(store.info(id).unwrap().copies, 2);
            bench.world.run_for(Duration::from_secs(5));
            assert_eq!(bench.run(read_all(store.clone(), id))[..], good[..], "the sealed one is read first");
            let copies = (0..2).filter(|copy| {
                let (store, copy) = (store.clone(), *copy);
                bench.run(async move { store.read_copy(id, copy, 0, 4 * BLOCK).await.unwrap() })[..] == good[..]
            });
            assert_eq!(copies.count(), if stale { 1 } else { 2 });
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

/// Two directories with one copy of everything: what one of them has is being copied to the other when that one fails,
/// too, and the new copy is one too many. While it is removed, the first one fails again.
#[test]
fn a_copy_that_is_being_removed_is_not_counted_on() {
    let one = |bench: &Bench| LocalOptions { copies: 1, ..bench.options(&[0, 1]) };
    for moment in 0..120 {
        let mut bench = Bench::new(moment, 2);
        let store = bench.try_open(one(&bench)).unwrap().0;
        let at = |store: &Store, file| usize::from(store.locate(file, 0).starts_with("/1/"));
        let file = bench.run(sealed_file(store.clone(), 1, 7));
        let (from, to) = (at(&store, file), 1 - at(&store, file));
        let mut writers: [Option<FileWriter>; 2] = [None, None];
        while writers.iter().any(Option::is_none) {
            let (creating, deleting) = (store.clone(), store.clone());
            let writer = bench.run(async move { creating.create(options(1)).await.unwrap() });
            let place = at(&store, writer.id());
            match writers[place] {
                None => writers[place] = Some(writer),
                Some(_) => bench.run(async move { deleting.delete(writer.id()).await.unwrap() }),
            }
        }
        let [mut first, mut second] = [from, to].map(|disk| writers[disk].take().unwrap());
        bench.disk(from).inject(Fault::WriteError, 1);
        let (deleting, id) = (store.clone(), first.id());
        bench.run(async move {
            first.append(blocks(1, 1)).await.unwrap_err();
            deleting.delete(id).await.unwrap();
        });
        bench.world.run_for(Duration::from_micros(10 * moment));
        bench.disk(to).inject(Fault::WriteError, 1);
        bench.run(async move { drop(second.append(blocks(1, 1)).await) });
        // Whatever is to be made there fails.
        bench.disk(from).inject(Fault::WriteError, 1_000);
        for _ in 0..40 {
            let store = store.clone();
            let creating = async move { drop(store.create(options(1)).await) };
            bench.handle.spawn(Class::Io, "create", creating).detach();
            bench.world.run_for(Duration::from_micros(20));
        }
        bench.world.run_for(Duration::from_millis(20));
        bench.disk(from).stop_injections();
        bench.world.run_for(Duration::from_secs(5));
        drop(store);
        bench.restart();
        let store = bench.try_open(one(&bench)).unwrap().0;
        assert!(store.info(file).is_some(), "moment {moment}: the file is gone");
        assert_eq!(bench.run(read_all(store, file)), blocks(7, 4), "moment {moment}");
    }
}

/// A copy of a file is being made in a directory that fails, or stays because of what only it has, while the file is
/// deleted: the name that the copy may have got is forgotten with the file, or removed.
#[test]
fn a_file_that_is_deleted_while_it_is_copied_leaves_no_name_behind() {
    for moment in 0..100 {
        for stays in [false, true] {
            let bench = Bench::new(moment, 3);
            let store = bench.open();
            let file = bench.run(sealed_file(store.clone(), 2, 7));
            let from = (0..3).find(|disk| is_in(&store, file, *disk)).unwrap();
            let to = (0..3).find(|disk| !is_in(&store, file, *disk)).unwrap();
            // What only one directory has keeps it in the store.
            let mut writers = Vec::new();
            while stays && !writers.last().is_some_and(|last: &FileWriter| is_in(&store, last.id(), to)) {
                let store = store.clone();
                writers.push(bench.run(async move { store.create(options(1)).await.unwrap() }));
            }
            let mut writer = loop {
                let creating = store.clone();
                let writer = bench.run(async move { creating.create(options(2)).await.unwrap() });
                if is_in(&store, writer.id(), from) {
                    break writer;
                }
            };
            bench.disk(from).inject(Fault::WriteError, 1);
            bench.run(async move { drop(writer.append(blocks(1, 1)).await) });
            bench.world.run_for(Duration::from_micros(10 * moment));
            bench.disk(to).inject(Fault::WriteError, 1);
            bench.disk(to).inject(Fault::SyncError, 1);
            let deleting = store.clone();
            // In a directory that stays it may fail, and is repeated.
            bench.run(async move { while deleting.delete(file).await.is_err() {} });
            bench.world.run_for(Duration::from_millis(20));
            let known = || store.unidentified().iter().any(|(id, _)| *id == file) || store.info(file).is_some();
            assert!(!known(), "moment {moment}");
        }
    }
}

fn is_in(store: &Store, file: FileId, disk: usize) -> bool {
    (0..2).any(|copy| store.locate(file, copy).starts_with(&format!("/{disk}/")))
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
fn a_directory_with_the_only_copy_of_what_is_being_deleted_does_not_stay() {
    let bench = Bench::new(12, 2);
    let store = bench.open();
    let file = bench.run(sealed_file(store.clone(), 1, 7));
    let disk = usize::from(is_in(&store, file, 1));
    bench.disk(disk).inject(Fault::SyncError, 1);
    let deleting = store.clone();
    bench.run(async move { deleting.delete(file).await.unwrap() });
    assert_eq!((store.info(file).is_none(), states(&store)[disk]), (true, "failed"));
    bench.world.run_for(Duration::from_secs(30));
    assert_eq!(states(&store), ["healthy", "healthy"], "it came back");
    assert_eq!(bench.disk(disk).files().iter().filter(|(path, _)| path.ends_with(format!("data-{file}"))).count(), 0);
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
