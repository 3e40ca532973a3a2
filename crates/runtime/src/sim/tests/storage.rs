//! Disks of the simulated world: what a kill and a loss of power leave, and what each fault means.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use base::{AlignedBuf, Bytes, Prng};

use super::{CREATE, world};
use crate::sim::{DiskOptions, Fault, FaultPlan, NodeId, NodeOptions, SimDisk, World};
use crate::{Class, File, Handle, OpenOptions};

const DIRECT: OpenOptions = OpenOptions { direct: true, ..CREATE };
const DURABLE: OpenOptions = OpenOptions { direct: true, dsync: true, ..CREATE };

fn page(value: u8) -> Bytes {
    pages(value, 1)
}

fn pages(value: u8, count: usize) -> Bytes {
    AlignedBuf::copy_of(&vec![value; count * 4096]).freeze()
}

/// Runs a piece of a test on a loop.
fn run<T: 'static, F: Future<Output = T> + 'static>(
    world: &World,
    handle: &Handle,
    act: impl FnOnce(Handle) -> F,
) -> T {
    world.block_on(handle, act(handle.clone()))
}

async fn open(handle: &Handle, path: &str, options: OpenOptions) -> File {
    handle.open(Path::new(path), options).await.unwrap()
}

/// A file of `count` durable pages of ones, with a durable name.
fn with_file(seed: u64, count: usize) -> (World, NodeId, Handle, SimDisk) {
    let (world, node, handle) = world(seed);
    run(&world, &handle, |handle| async move {
        let file = open(&handle, "/disk/file", DURABLE).await;
        file.write_at(0, pages(1, count)).await.unwrap();
        handle.sync_directory(Path::new("/disk")).await.unwrap();
    });
    let disk = world.disk(node, "/disk");
    (world, node, handle, disk)
}

#[test]
fn a_direct_file_wants_aligned_offsets_lengths_and_memory() {
    let (world, _, handle) = world(1);
    run(&world, &handle, |handle| async move {
        let file = open(&handle, "/disk/file", DIRECT).await;
        file.write_at(4096, pages(1, 2)).await.unwrap();
        let kind = |result: std::io::Result<()>| result.err().map(|error| error.kind());
        assert_eq!(kind(file.write_at(512, page(1)).await), Some(ErrorKind::InvalidInput));
        assert_eq!(kind(file.write_at(0, page(1).slice(..512)).await), Some(ErrorKind::InvalidInput));
        assert_eq!(kind(file.write_at(0, pages(1, 2).slice(100..4196)).await), Some(ErrorKind::InvalidInput));
        assert_eq!(file.read_up_to(100, 4096).await.unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(file.read_up_to(8192, 8192).await.unwrap().len(), 4096);
        let buffered = open(&handle, "/disk/file", OpenOptions::default()).await;
        assert_eq!(buffered.read_at(4095, 2).await.unwrap()[..], [0, 1]);
        assert_eq!(buffered.write_at(0, page(1)).await.unwrap_err().raw_os_error(), Some(9), "opened for reading");
    });
}

#[test]
fn a_kill_loses_nothing_that_completed() {
    for seed in 0..50 {
        let (world, node, handle, disk) = with_file(seed, 4);
        run(&world, &handle, |handle| async move {
            open(&handle, "/disk/file", CREATE).await.write_at(100, Bytes::from(vec![2; 9000])).await.unwrap();
            open(&handle, "/disk/new", CREATE).await.write_at(0, page(3)).await.unwrap();
            handle.rename(Path::new("/disk/new"), Path::new("/disk/newer")).await.unwrap();
        });
        world.kill(node);
        let content = disk.content("file");
        assert!(content[..100].iter().all(|&byte| byte == 1) && content[100..9100].iter().all(|&byte| byte == 2));
        assert_eq!(disk.content("newer"), page(3));
    }
}

#[test]
fn a_loss_of_power_keeps_what_is_durable_and_any_sectors_of_the_rest() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let (world, node, handle, disk) = with_file(seed, 4);
        run(&world, &handle, |handle| async move {
            let durable = open(&handle, "/disk/file", DURABLE).await;
            let cached = open(&handle, "/disk/file", DIRECT).await;
            durable.write_at(0, page(2)).await.unwrap();
            cached.write_at(4096, page(3)).await.unwrap();
            cached.sync().await.unwrap();
            cached.write_at(8192, pages(4, 2)).await.unwrap();
        });
        world.power_loss(node);
        let content = disk.content("file");
        assert!(content[..4096].iter().all(|&byte| byte == 2), "seed {seed}: O_DSYNC");
        assert!(content[4096..8192].iter().all(|&byte| byte == 3), "seed {seed}: synced");
        let sectors: Vec<u8> = content[8192..].chunks(512).map(|sector| sector[0]).collect();
        assert!(content[8192..].chunks(512).all(|sector| sector.iter().all(|&byte| byte == sector[0])));
        assert!(sectors.iter().all(|&value| value == 1 || value == 4));
        seen.insert(match sectors.iter().filter(|&&value| value == 4).count() {
            0 => "nothing",
            16 => "everything",
            _ if sectors.is_sorted_by(|a, b| a >= b) => "a prefix",
            _ => "scattered",
        });
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
}

#[test]
fn a_durable_write_in_flight_is_torn_by_a_loss_of_power() {
    let mut torn = 0;
    for seed in 0..100 {
        let (world, node, handle, disk) = with_file(seed, 4);
        let inside = handle.clone();
        let writer = handle.spawn(Class::Io, "writer", async move {
            open(&inside, "/disk/file", DURABLE).await.write_at(0, pages(2, 4)).await.unwrap();
        });
        world.run_for(Duration::from_micros(40));
        assert!(!writer.is_finished());
        world.power_loss(node);
        let values: BTreeSet<u8> = disk.content("file").into_iter().collect();
        torn += u64::from(values.len() == 2);
        world.run_for(Duration::from_secs(1));
        assert_eq!(values, disk.content("file").into_iter().collect(), "seed {seed}: nothing lands later");
    }
    assert!((20..90).contains(&torn), "{torn} of 100 are torn");
}

#[test]
fn writes_of_a_killed_process_land_in_time_late_or_never_and_hold_the_lock_of_their_file() {
    let (mut landed, mut late, mut unlocked_first) = (0, 0, 0);
    for seed in 0..100 {
        let (world, node, handle, disk) = with_file(seed, 1);
        let inside = handle.clone();
        let writer = handle.spawn(Class::Io, "writer", async move {
            let lock = open(&inside, "/disk/lock", CREATE).await;
            let file = open(&inside, "/disk/file", DURABLE).await;
            assert!(lock.try_lock().await.unwrap() && file.try_lock().await.unwrap());
            file.write_at(0, page(2)).await.unwrap();
            std::future::pending::<()>().await;
        });
        writer.detach();
        world.run_for(Duration::from_micros(60));
        assert_eq!(disk.content("file"), page(1), "seed {seed}: the write is in flight");
        let handle = world.restart(node);
        let checked = disk.clone();
        let (free, waited, at_unlock) = run(&world, &handle, |handle| async move {
            let lock = open(&handle, "/disk/lock", CREATE).await;
            let free = lock.try_lock().await.unwrap() && checked.content("file") == page(1);
            let file = open(&handle, "/disk/file", DURABLE).await;
            let mut waited = 0;
            while !file.try_lock().await.unwrap() {
                handle.sleep(Duration::from_micros(500)).await;
                waited += 1;
            }
            (free, waited, checked.content("file"))
        });
        world.run_for(Duration::from_secs(1));
        assert_eq!(at_unlock, disk.content("file"), "seed {seed}: nothing lands once the file's own lock is free");
        landed += u64::from(at_unlock == page(2));
        late += u64::from(waited > 0);
        unlocked_first += u64::from(free && at_unlock == page(2));
    }
    assert!((20..90).contains(&landed) && late > 20 && unlocked_first > 20, "{landed} {late} {unlocked_first}");
}

#[test]
fn what_a_killed_process_wrote_may_be_in_a_cache_until_somebody_syncs() {
    let mut kept = BTreeSet::new();
    for (seed, synced) in (0..200).flat_map(|seed| [(seed, false), (seed, true)]) {
        let (world, node, handle, disk) = with_file(seed, 1);
        let inside = handle.clone();
        let writer = handle.spawn(Class::Io, "writer", async move {
            open(&inside, "/disk/file", DURABLE).await.write_at(0, page(2)).await.unwrap();
        });
        writer.detach();
        world.run_for(Duration::from_micros(40));
        let handle = world.restart(node);
        world.run_for(Duration::from_secs(1));
        if disk.content("file") != page(2) {
            continue;
        }
        if synced {
            run(
                &world,
                &handle,
                |handle| async move { open(&handle, "/disk/file", CREATE).await.sync().await.unwrap() },
            );
        }
        world.power_loss(node);
        kept.insert((synced, disk.content("file") == page(2)));
    }
    assert_eq!(kept, BTreeSet::from([(false, false), (false, true), (true, true)]));
}

#[test]
fn a_lock_belongs_to_one_open_file() {
    let (world, _, handle) = world(2);
    run(&world, &handle, |handle| async move {
        let [first, second] = [open(&handle, "/disk/file", CREATE).await, open(&handle, "/disk/file", CREATE).await];
        assert!(first.try_lock().await.unwrap() && first.try_lock().await.unwrap());
        assert!(!second.try_lock().await.unwrap());
        drop(first);
        handle.sleep(Duration::from_micros(100)).await;
        assert!(second.try_lock().await.unwrap());
    });
}

#[test]
fn names_count_when_their_directory_was_synced() {
    let mut seen = BTreeSet::new();
    for seed in 0..300 {
        let (world, node, handle, disk) = with_file(seed, 1);
        run(&world, &handle, |handle| async move {
            let path = Path::new;
            open(&handle, "/disk/synced.tmp", CREATE).await.sync().await.unwrap();
            handle.rename(path("/disk/synced.tmp"), path("/disk/synced")).await.unwrap();
            handle.create_directory(path("/disk/a/b")).await.unwrap();
            handle.sync_directory(path("/disk")).await.unwrap();
            open(&handle, "/disk/a/b/lost", CREATE).await;
            let new = open(&handle, "/disk/new", DURABLE).await;
            new.write_at(0, page(9)).await.unwrap();
            handle.rename(path("/disk/new"), path("/disk/file")).await.unwrap();
            handle.remove(path("/disk/synced")).await.unwrap();
        });
        assert_eq!(disk.files().len(), 2);
        world.power_loss(node);
        let files: BTreeSet<String> = disk.files().into_iter().map(|(path, _)| path.display().to_string()).collect();
        assert!(files.contains("file"), "seed {seed}: a rename over a name never loses the name: {files:?}");
        let content = disk.content("file");
        assert!(content == page(1) || content == page(9), "seed {seed}");
        seen.insert((content[0], files.contains("new"), files.contains("synced"), files.contains("a/b/lost")));
        assert!(!(content[0] == 9 && files.contains("new")), "seed {seed}: a rename is atomic");
    }
    // The renamed file, before or after, or even not created; the removed one there or not; the one in the directory
    // that nobody synced lost or not (never without `a` being kept, which was synced).
    assert!(seen.len() >= 8, "{seen:?}");
}

#[test]
fn a_removed_file_lives_while_it_is_open_and_its_room_comes_back() {
    let (world, node, handle) = world(3);
    let disk = world.disk(node, "/disk");
    disk.set_capacity(64 * 1024);
    let checked = disk.clone();
    run(&world, &handle, |handle| async move {
        let file = open(&handle, "/disk/file", CREATE).await;
        file.write_at(1 << 30, pages(1, 16)).await.unwrap();
        assert_eq!(handle.space(Path::new("/disk")).await.unwrap().free, 0);
        let full = file.write_at(0, page(1)).await.unwrap_err();
        assert_eq!((full.kind(), full.raw_os_error()), (ErrorKind::StorageFull, Some(28)));
        assert_eq!(file.allocate(0, 4096).await.unwrap_err().kind(), ErrorKind::StorageFull);
        file.write_at(1 << 30, pages(2, 16)).await.unwrap();
        handle.remove(Path::new("/disk/file")).await.unwrap();
        assert_eq!(file.read_at(1 << 30, 4096).await.unwrap()[..], page(2)[..]);
        assert_eq!(checked.used(), 64 * 1024);
        drop(file);
        handle.sleep(Duration::from_micros(100)).await;
        assert_eq!(checked.used(), 0);
        let file = open(&handle, "/disk/file", CREATE).await;
        file.allocate(0, 64 * 1024).await.unwrap();
        assert_eq!(file.length().await.unwrap(), 64 * 1024);
        file.set_len(10).await.unwrap();
        assert_eq!(handle.space(Path::new("/disk")).await.unwrap().free, 60 * 1024);
    });
    assert!(disk.counters().full == 2);
}

#[test]
fn the_room_in_use_is_what_files_with_a_name_or_a_reader_take_up() {
    for seed in 0..60 {
        let (world, node, handle) = world(seed);
        let disk = world.disk(node, "/disk");
        disk.set_capacity(2 << 20);
        disk.set_faults(FaultPlan { write_error_one_in: 20, misdirected_write_one_in: 20, ..FaultPlan::default() });
        let mut prng = Prng::new(seed);
        for life in 0..4 {
            let handle = if life == 0 { handle.clone() } else { world.restart(node) };
            let mut prng = prng.fork();
            let checked = disk.clone();
            run(&world, &handle, |handle| async move {
                let mut files = Vec::new();
                for step in 0..150 {
                    let mut name = || format!("/disk/{}", prng.below(5));
                    let (one, other) = (name(), name());
                    match prng.below(8) {
                        0..3 if files.len() < 8 => {
                            let options = if prng.one_in(2) { DURABLE } else { CREATE };
                            files.push(open(&handle, &one, options).await);
                        }
                        3 => drop(handle.remove(Path::new(&one)).await),
                        4 => drop(handle.rename(Path::new(&one), Path::new(&other)).await),
                        5 => drop(handle.sync_directory(Path::new("/disk")).await),
                        _ if files.is_empty() => {}
                        kind => {
                            let file = &files[prng.below(files.len() as u64) as usize];
                            let offset = prng.below(64) * 4096;
                            match kind {
                                6 => drop(file.set_len(offset).await),
                                7 => drop(file.allocate(offset, 64 * 4096).await),
                                _ => drop(file.write_at(offset, pages(1, 20)).await),
                            }
                            if prng.one_in(3) {
                                files.swap_remove(prng.below(files.len() as u64) as usize);
                            }
                        }
                    }
                    assert_eq!(checked.used(), checked.counted(), "seed {seed}, life {life}, step {step}");
                }
                // The life ends with writes in flight to files of which some have lost their names.
                for file in files {
                    handle.spawn(Class::Io, "writer", async move { file.write_at(0, pages(2, 20)).await }).detach();
                }
            });
            match life {
                0 => world.kill(node),
                1 => world.power_loss(node),
                _ => {
                    disk.vanish();
                    disk.come_back();
                }
            }
            assert_eq!(disk.used(), disk.counted(), "seed {seed}, after life {life}");
        }
    }
}

#[test]
fn each_injected_fault_does_what_it_says() {
    let (world, _, handle, disk) = with_file(4, 8);
    let broken = disk.clone();
    run(&world, &handle, |handle| async move {
        let file = open(&handle, "/disk/file", DURABLE).await;
        let other = open(&handle, "/disk/other", DURABLE).await;

        broken.inject_on("file", Fault::ReadError, 1);
        other.write_at(0, page(1)).await.unwrap();
        other.read_at(0, 4096).await.unwrap();
        assert_eq!(file.read_at(0, 4096).await.unwrap_err().raw_os_error(), Some(5));
        file.read_at(0, 4096).await.unwrap();

        broken.inject(Fault::WriteError, 1);
        assert_eq!(file.write_at(0, pages(2, 8)).await.unwrap_err().raw_os_error(), Some(5));
        assert!(broken.content("file").iter().all(|&byte| byte == 1 || byte == 2));

        broken.inject(Fault::ShortWrite, 2);
        file.write_at(0, pages(3, 8)).await.unwrap();
        assert_eq!(broken.content("file"), pages(3, 8), "the rest was written after a short write");

        broken.inject(Fault::LostWrite, 1);
        file.write_at(0, pages(4, 8)).await.unwrap();
        assert_eq!(file.read_at(0, 8 * 4096).await.unwrap()[..], pages(3, 8)[..]);

        broken.inject(Fault::MisdirectedWrite, 1);
        file.write_at(8192, page(5)).await.unwrap();
        let content = file.read_at(0, 8 * 4096).await.unwrap();
        assert_eq!((content[8192], content.iter().filter(|&&byte| byte == 5).count()), (3, 4096));

        broken.inject(Fault::Rot, 1);
        let content = other.read_at(0, 4096).await.unwrap();
        let flipped: u32 = content.iter().map(|byte| (byte ^ 1).count_ones()).sum();
        assert_eq!(flipped, 1);
        assert_eq!(other.read_at(0, 4096).await.unwrap()[..], content[..], "for good");

        broken.inject(Fault::Slow, 1);
        let before = handle.now();
        file.read_at(0, 4096).await.unwrap();
        assert!(handle.now() - before > Duration::from_millis(50));

        broken.inject_on("", Fault::SyncError, 1);
        other.sync().await.unwrap();
        assert_eq!(handle.sync_directory(Path::new("/disk")).await.unwrap_err().raw_os_error(), Some(5));
        handle.sync_directory(Path::new("/disk")).await.unwrap();
    });
    for fault in [Fault::ReadError, Fault::WriteError, Fault::LostWrite, Fault::Rot, Fault::Slow, Fault::SyncError] {
        assert_eq!(disk.counters().faults(fault), 1, "{fault:?}");
    }
}

#[test]
fn after_a_failed_sync_the_next_one_succeeds_and_proves_nothing() {
    let mut lost = 0;
    for seed in 0..50 {
        let (world, node, handle, disk) = with_file(seed, 4);
        let broken = disk.clone();
        run(&world, &handle, |handle| async move {
            let file = open(&handle, "/disk/file", CREATE).await;
            file.write_at(0, pages(2, 4)).await.unwrap();
            broken.inject(Fault::SyncError, 1);
            assert_eq!(file.sync().await.unwrap_err().raw_os_error(), Some(5));
            file.sync().await.unwrap();
        });
        world.power_loss(node);
        lost += u64::from(disk.content("file") != pages(2, 4));
    }
    assert!((10..45).contains(&lost), "{lost} of 50");
}

#[test]
fn planned_faults_come_about_as_often_as_planned() {
    let plan = FaultPlan { read_error_one_in: 10, write_error_one_in: 20, rot_one_in: 5, ..FaultPlan::default() };
    let world = World::new(5);
    let options = NodeOptions::with_disks(["/a", "/b"], &DiskOptions { faults: plan, ..DiskOptions::default() });
    let node = world.add_node(options);
    let handle = world.start_loop(node);
    run(&world, &handle, |handle| async move {
        let file = open(&handle, "/a/file", DURABLE).await;
        for _ in 0..1000 {
            let _ = file.write_at(0, page(1)).await;
            let _ = file.read_at(0, 4096).await;
        }
    });
    let counters = world.disk(node, "/a").counters();
    assert!((70..130).contains(&counters.faults(Fault::ReadError)));
    assert!((30..70).contains(&counters.faults(Fault::WriteError)));
    assert!((140..220).contains(&counters.faults(Fault::Rot)));
    assert_eq!(world.disk(node, "/b").counters(), Default::default());
}

#[test]
fn a_pulled_disk_fails_everything_and_returns_as_it_was_or_stale_or_empty() {
    let (world, node, handle, disk) = with_file(6, 1);
    let old = disk.snapshot();
    let pulled = disk.clone();
    run(&world, &handle, |handle| async move {
        let file = open(&handle, "/disk/file", DURABLE).await;
        file.write_at(0, page(2)).await.unwrap();
        assert!(file.try_lock().await.unwrap());
        pulled.vanish();
        assert_eq!(file.read_at(0, 4096).await.unwrap_err().raw_os_error(), Some(5));
        assert_eq!(file.write_at(0, page(3)).await.unwrap_err().raw_os_error(), Some(5));
        assert_eq!(file.sync().await.unwrap_err().raw_os_error(), Some(5));
        let again = handle.open(Path::new("/disk/file"), DURABLE).await;
        assert_eq!(again.err().unwrap().kind(), ErrorKind::NotFound);
        assert_eq!(handle.read_directory(Path::new("/disk")).await.unwrap_err().kind(), ErrorKind::NotFound);

        pulled.come_back();
        assert_eq!(file.read_at(0, 4096).await.unwrap_err().raw_os_error(), Some(5), "the old one stays dead");
        let file = open(&handle, "/disk/file", DURABLE).await;
        assert!(file.try_lock().await.unwrap());
        assert_eq!(file.read_at(0, 4096).await.unwrap()[..], page(2)[..]);
    });
    disk.vanish();
    disk.restore(&old);
    disk.come_back();
    assert_eq!(disk.content("file"), page(1));
    disk.corrupt("file", 0..100);
    disk.flip_bit("file", 4000, 7);
    let content = disk.content("file");
    assert!(content[..100] != page(1)[..100] && content[100..4000] == page(1)[100..4000] && content[4000] == 129);
    disk.overwrite("file", 0, &page(1));
    world.power_loss(node);
    assert_eq!(disk.content("file"), page(1), "on the medium as well");
    disk.restore(&old);
    assert_eq!(disk.content("file"), page(1), "a snapshot does not change");
    disk.erase();
    assert_eq!((disk.files().len(), disk.used()), (0, 0));
}

#[test]
fn directories_and_names_behave() {
    let world = World::new(7);
    let node = world.add_node(NodeOptions::with_disks(["/a", "/a/deep/b"], &DiskOptions::default()));
    let handle = world.start_loop(node);
    run(&world, &handle, |handle| async move {
        let path = Path::new;
        handle.create_directory(path("/a/x/y")).await.unwrap();
        handle.create_directory(path("/a/x/y")).await.unwrap();
        open(&handle, "/a/x/y/file", CREATE).await;
        open(&handle, "/a/x/zfile", CREATE).await;
        let entries = handle.read_directory(path("/a/x")).await.unwrap();
        let entries: Vec<_> = entries.iter().map(|entry| (entry.name.as_str(), entry.is_directory)).collect();
        assert_eq!(entries, [("y", true), ("zfile", false)]);
        open(&handle, "/a/deep/b/file", CREATE).await;
        assert_eq!(handle.read_directory(path("/a/deep/b")).await.unwrap().len(), 1);
        let kind = |result: std::io::Result<()>| result.unwrap_err().kind();
        assert_eq!(kind(handle.rename(path("/a/x/zfile"), path("/a/deep/b/z")).await), ErrorKind::CrossesDevices);
        assert_eq!(kind(handle.rename(path("/a/none"), path("/a/z")).await), ErrorKind::NotFound);
        assert_eq!(kind(handle.rename(path("/a/x/zfile"), path("/a/x/y")).await), ErrorKind::IsADirectory);
        assert_eq!(kind(handle.remove(path("/a/x")).await), ErrorKind::IsADirectory);
        assert_eq!(kind(handle.remove(path("/a/x/none")).await), ErrorKind::NotFound);
        assert_eq!(kind(handle.create_directory(path("/a/x/zfile/w")).await), ErrorKind::NotADirectory);
        let twice = handle.open(path("/a/x/zfile"), OpenOptions { exclusive: true, ..CREATE }).await;
        assert_eq!(twice.err().unwrap().kind(), ErrorKind::AlreadyExists);
        handle.rename(path("/a/x/zfile"), path("/a/x/y/file")).await.unwrap();
        assert_eq!(handle.read_directory(path("/a/x/y")).await.unwrap().len(), 1);
        handle.rename(path("/a/x/y"), path("/a/moved")).await.unwrap();
        open(&handle, "/a/moved/file", OpenOptions::default()).await;
    });
}
