//! What directories know of each other when a process ends in the middle of telling them.

use std::path::Path;
use std::time::Duration;

use files::local::LocalOptions;
use runtime::sim::Fault;

use crate::bench::{BLOCK, Bench, blocks, options, read_all, sealed_file, states};

const SUPERBLOCK: &str = "levee/superblock";

/// The highest membership generation that a directory knows.
fn generation(bench: &Bench, disk: usize) -> u64 {
    let content = bench.disk(disk).content(SUPERBLOCK);
    let field = |slot: &[u8]| u64::from_le_bytes(slot[80..88].try_into().unwrap());
    content.chunks_exact(BLOCK).map(field).max().unwrap_or(0)
}

/// A store of two directories, and an empty one.
fn two_and_an_empty_one(seed: u64) -> Bench {
    let mut bench = Bench::new(seed, 3);
    drop(bench.open_with(&[0, 1]).unwrap());
    bench.restart();
    let handle = bench.handle.clone();
    bench.run(async move { handle.create_directory(Path::new("/2/levee")).await.unwrap() });
    bench
}

#[test]
fn members_that_never_heard_of_one_are_not_left_behind_by_it() {
    let mut told = 0;
    for seed in 0..200 {
        let mut bench = two_and_an_empty_one(seed);
        let fail_both = |bench: &Bench| {
            // What a killed process had in flight meets no fault of the next one.
            bench.world.run_for(Duration::from_secs(1));
            bench.disk(0).inject_on(SUPERBLOCK, Fault::WriteError, 1);
            // It is tried again without the first one.
            bench.disk(1).inject_on(SUPERBLOCK, Fault::WriteError, 2);
        };
        fail_both(&bench);
        assert!(bench.open_with(&[0, 1, 2]).is_err());
        bench.restart();
        fail_both(&bench);
        // Only the one that joins has got to know that it does: a write that failed may be on the disk nevertheless.
        if [0, 1].iter().any(|disk| generation(&bench, *disk) > 1) || generation(&bench, 2) == 1 {
            continue;
        }
        told += 1;
        // The others fail again. The store must not go on without both: together they believe to be all of it.
        let alone = bench.open_with(&[0, 1, 2]);
        assert!(alone.is_err(), "{:?}", alone.map(|(_, report)| report));
        bench.restart();
        [0, 1].iter().for_each(|disk| bench.disk(*disk).stop_injections());
        let file = bench.run(sealed_file(bench.open_with(&[0, 1]).unwrap().0, 2, 1));
        bench.restart();
        let store = bench.open();
        bench.world.run_for(Duration::from_secs(5));
        assert_eq!(states(&store), ["healthy"; 3]);
        assert_eq!(bench.run(read_all(store, file)), blocks(1, 4));
    }
    assert!(told > 3, "{told} of 200");
}

#[test]
fn one_that_was_about_to_return_does_not_bring_back_what_was_deleted_since() {
    let mut told = 0;
    for seed in 0..20 {
        let mut bench = Bench::new(60 + seed, 2);
        let store = bench.open();
        let deleted = bench.run(sealed_file(store.clone(), 2, 3));
        bench.disk(1).vanish();
        let late = bench.run(sealed_file(store.clone(), 2, 4));
        bench.world.run_until(|| states(&store)[1] == "failed");
        bench.world.run_for(Duration::from_millis(100));
        bench.disk(1).come_back();
        let known = generation(&bench, 0);
        // It is told that it is a member again; the other one is about to be.
        bench.world.run_until(|| {
            let resynchronizing = states(&store)[1] == "resynchronizing";
            bench.disk(0).set_slowness(if resynchronizing { 1000 } else { 1 });
            generation(&bench, 1) > known
        });
        drop(store);
        bench.power_loss();
        bench.disk(0).set_slowness(1);
        if generation(&bench, 0) != known || generation(&bench, 1) <= known {
            continue;
        }
        told += 1;
        // It fails again. The other one goes on, and deletes.
        let (store, _) = bench.open_with(&[0]).unwrap();
        bench.run({
            let store = store.clone();
            async move { store.delete(deleted).await.unwrap() }
        });
        drop(store);
        bench.restart();
        let store = bench.open();
        assert!(store.info(deleted).is_none(), "seed {seed}: it is back");
        bench.world.run_for(Duration::from_secs(5));
        assert_eq!(states(&store), ["healthy"; 2]);
        assert_eq!(bench.run(read_all(store, late)), blocks(4, 4));
    }
    assert!(told > 3, "{told}");
}

/// A store of two directories of which the second one missed a file, was started alone all the same, and got others.
/// Gives the file that only the first has, whose first block both have.
fn gone_on_without_the_first(bench: &mut Bench) -> base::FileId {
    let store = bench.open();
    let mut writer = bench.run({
        let store = store.clone();
        async move { store.create(options(2)).await.unwrap() }
    });
    let (file, disk) = (writer.id(), bench.disk(1));
    bench.run(async move {
        writer.append(blocks(1, 1)).await.unwrap();
        disk.vanish();
        writer.append(blocks(2, 1)).await.unwrap();
    });
    drop(store);
    bench.power_loss();
    bench.disk(1).come_back();
    let accept = LocalOptions { accept_missing: true, ..bench.options(&[1]) };
    let (store, _) = bench.try_open(accept).unwrap();
    bench.run({
        let store = store.clone();
        async move { store.seal(file, BLOCK as u64).await.unwrap() }
    });
    // One of them would get the id that the other directory gives out next.
    for _ in 0..4 {
        bench.run(sealed_file(store.clone(), 2, 5));
    }
    drop(store);
    bench.restart();
    file
}

#[test]
fn files_of_directories_that_went_on_without_each_other_are_never_taken_for_the_same() {
    let mut bench = Bench::new(51, 2);
    gone_on_without_the_first(&mut bench);
    // The other one needs nobody: it goes on, too.
    let (store, _) = bench.open_with(&[0]).unwrap();
    let only_here = bench.run(sealed_file(store.clone(), 2, 6));
    let path = bench.file_path(&store, only_here, 0);
    drop(store);
    bench.restart();
    let store = bench.open();
    bench.world.run_for(Duration::from_secs(30));
    assert_eq!(states(&store), ["missing", "healthy"], "a person has to decide");
    assert!(store.info(only_here).is_none());
    assert_eq!(bench.disk(0).content(path)[BLOCK..], blocks(6, 4)[..]);
}

#[test]
fn a_directory_that_is_made_like_the_others_does_not_start_alone_with_what_is_left() {
    let (mut started, mut refused) = (0, 0);
    for step in 0..400 {
        let mut bench = Bench::new(52, 2);
        let file = gone_on_without_the_first(&mut bench);
        let start = bench.world.operations_done();
        let handle = bench.handle.clone();
        let both = bench.options(&[0, 1]);
        let task = bench.handle.spawn(runtime::Class::Io, "life", async move {
            let store = files::local::open(&handle, both).await.unwrap();
            handle.sleep(Duration::from_secs(1)).await;
            drop(store);
        });
        let world = bench.world.clone();
        bench.world.run_until(|| task.is_finished() || world.operations_done() >= start + step);
        let done = task.is_finished();
        drop(task);
        bench.restart();
        match bench.open_with(&[0]) {
            Ok((store, _)) => {
                started += 1;
                let read = bench.run(async move { store.read(file, 0, 2 * BLOCK).await });
                assert_eq!(read.unwrap()[..], [blocks(1, 1), blocks(2, 1)].concat()[..], "step {step}");
            }
            Err(error) => {
                refused += 1;
                assert!(error.message.contains("/1/levee"), "{error}");
            }
        }
        if done {
            break;
        }
    }
    assert!(started > 3 && refused > 3, "{started} {refused}");
}
