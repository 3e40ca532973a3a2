//! Single disks, single files: damage, errors, full disks, space that is set aside.

use std::path::Path;
use std::time::Duration;

use base::{Error, ErrorKind, KIB, MIB, Result};
use files::local::LocalOptions;
use files::{CreateOptions, FileKind, FileWriter, Store};
use runtime::OpenOptions;
use runtime::sim::{DiskOptions, Fault};

use crate::bench::{BLOCK, Bench, blocks, maybe_prepared, options, read_all, sealed_file, states};

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

/// A disk that loses a write, or puts it elsewhere, says that it wrote. A file without a header stops a start, if it
/// may be a log: so a header is looked for before it gets its name.
#[test]
fn a_file_has_its_header_before_its_name_whatever_the_disk_says() {
    for (fault, losses, must_work) in [
        (Fault::LostWrite, 1, true),
        (Fault::MisdirectedWrite, 1, true),
        (Fault::LostWrite, 100, false),
        (Fault::MisdirectedWrite, 100, false),
    ] {
        let mut bench = Bench::new(15, 1);
        let store = bench.open();
        bench.disk(0).inject(fault, losses);
        let making = store.clone();
        let options = CreateOptions { kind: FileKind::Transaction, ..options(1) };
        let made = bench.run(async move { making.create(options).await.map(|writer| writer.id()) });
        bench.disk(0).stop_injections();
        assert_eq!(made.is_ok(), must_work, "{fault:?} {losses}: {made:?}");
        drop(store);
        bench.restart();
        let (store, report) = bench.open_with(&[0]).unwrap();
        assert!(report.damaged.is_empty() && store.list().len() == usize::from(must_work), "{report:?}");
    }
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
fn a_header_that_rots_is_written_anew_before_the_next_start_needs_it() {
    let mut bench = Bench::new(13, 2);
    let store = bench.open();
    let sealed = bench.run(sealed_file(store.clone(), 2, 1));
    let only = bench.run(sealed_file(store.clone(), 1, 2));
    let only_disk = usize::from(store.locate(only, 0).starts_with("/1/"));
    let damage = [(0, bench.file_path(&store, sealed, 0)), (only_disk, bench.file_path(&store, only, only_disk))];
    for (disk, path) in &damage {
        bench.disk(*disk).flip_bit(path, 600, 3);
    }
    let checking = store.clone();
    let check =
        async move { (checking.check_headers(sealed).await.unwrap(), checking.check_headers(only).await.unwrap()) };
    assert_eq!(bench.run(check), (1, 1));
    let checking = store.clone();
    assert_eq!(bench.run(async move { checking.check_headers(sealed).await.unwrap() }), 0, "once is enough");
    drop(store);
    bench.restart();
    let (store, report) = bench.open_with(&[0, 1]).unwrap();
    assert!(report.damaged.is_empty(), "{report:?}");
    assert_eq!(store.info(sealed).unwrap().sealed, Some(4 * BLOCK as u64));
    assert_eq!(bench.run(read_all(store.clone(), only)), blocks(2, 4));
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
fn room_that_somebody_else_gives_back_is_seen_by_the_next_file() {
    let bench = Bench::with(15, 1, DiskOptions { capacity: MIB, ..DiskOptions::default() });
    let (store, handle, disk) = (bench.open(), bench.handle.clone(), bench.disk(0));
    bench.run(async move {
        let file = store.create(maybe_prepared(false, 1)).await.unwrap().id();
        // The store looks at the disk when a file goes, and finds that somebody else has filled it.
        disk.set_capacity(0);
        handle.sleep(Duration::from_secs(5)).await;
        store.delete(file).await.unwrap();
        handle.sleep(Duration::from_millis(50)).await;
        let refused = store.create(maybe_prepared(false, 1)).await.err().unwrap();
        assert!(refused.kind == ErrorKind::Full && store.space().free < 64 * KIB, "{refused} {:?}", store.space());
        disk.set_capacity(MIB);
        // Longer than a moment, shorter than the store looks by itself.
        handle.sleep(Duration::from_millis(50)).await;
        store.create(maybe_prepared(false, 1)).await.unwrap();
    });
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
fn what_many_data_files_leave_is_offered_and_bounded_by_the_room() {
    let bench = Bench::new(19, 1);
    bench.disk(0).set_capacity(100 * MIB);
    let store = bench.open();
    let prepared = CreateOptions { prepared: true, capacity: MIB, ..options(1) };
    let files = bench.run({
        let store = store.clone();
        async move {
            let mut files = Vec::new();
            for _ in 0..60 {
                files.push(store.create(prepared).await.unwrap().id());
            }
            files
        }
    });
    assert_eq!(store.recyclable(FileKind::Data, KIB..=4 * MIB), None);
    let used = bench.disk(0).used();
    bench.run({
        let store = store.clone();
        async move {
            for file in files {
                store.delete(file).await.unwrap();
            }
        }
    });
    let kept = bench.disk(0).used() - (used - 60 * (MIB + BLOCK as u64));
    assert!((32 * MIB..=50 * MIB).contains(&kept), "{kept} of 100 MiB are kept");
    assert_eq!(store.recyclable(FileKind::Data, 256 * KIB..=4 * MIB), Some(MIB));
    assert_eq!(store.recyclable(FileKind::Data, 2 * MIB..=4 * MIB), None);
    assert_eq!(store.recyclable(FileKind::Journal, 256 * KIB..=4 * MIB), None, "nobody wrote all of it");
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
        bench.world.run_for(Duration::from_micros(30 * step));
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
