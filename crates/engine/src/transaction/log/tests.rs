use std::cell::Cell;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use base::{KIB, MIB, Prng, SegmentId, SegmentSequence, VolumeId};
use files::FileKind;
use files::local::{self, LocalOptions};
use files::memory::{AppendFault, Memory, MemoryOptions};
use runtime::sim::{DiskOptions, NodeOptions, World};

use super::*;
use crate::transaction::format::Checkpoint;
use crate::transaction::scan::{ScannedLog, scan};

const OPTIONS: LogOptions = LogOptions { file_bytes: 64 * KIB, copies: 1 };

fn record(number: u64) -> Record {
    // More than a sector of it is content.
    Record::TableSet {
        segment: SegmentId { volume: VolumeId(1), index: 0 },
        added: Vec::new(),
        removed: vec![FileId(number); 100],
        covers: LogSequence(1),
    }
}

fn checkpoint(from: u64) -> Record {
    Record::Checkpoint(Checkpoint { from: LogSequence(from), ..Checkpoint::default() })
}

fn large(sequence: u64) -> Record {
    Record::Large {
        segment: SegmentId { volume: VolumeId(1), index: 0 },
        epoch: crate::EPOCH,
        sequence: SegmentSequence(sequence),
        stamp: base::WriteStamp::default(),
        block: 0,
        file: FileId(9),
        offset: 0,
        checksums: vec![1],
    }
}

/// A world with one loop, and content that outlives it.
fn world(seed: u64) -> (World, runtime::sim::NodeId, Memory) {
    let world = World::new(seed);
    let node = world.add_node(NodeOptions::default());
    (world, node, Memory::new(seed, MemoryOptions::default()))
}

/// A life that begins a log in an empty store.
fn new_log(world: &World, node: runtime::sim::NodeId, memory: &Memory) -> (Handle, Store, TransactionLog) {
    let handle = world.restart(node);
    let store = memory.open(&handle);
    let log = TransactionLog::new(&handle, &store, OPTIONS, LogSequence(1), Vec::new(), &Event::new());
    (handle, store, log)
}

fn scanned(world: &World, handle: &Handle, store: &Store) -> Result<ScannedLog> {
    let store = store.clone();
    world.block_on(handle, async move { scan(&store, false).await })
}

fn numbers(scanned: &ScannedLog) -> Vec<u64> {
    let number = |(_, record): &(LogSequence, Record)| match record {
        Record::TableSet { removed, .. } => Some(removed[0].0),
        _ => None,
    };
    scanned.records.iter().filter_map(number).collect()
}

/// Each append is made durable by itself, which takes a disk longer than to write a few blocks more.
#[test]
fn records_of_one_turn_are_one_append() {
    let world = World::new(1);
    let disks = vec![("/disk".into(), DiskOptions::default())];
    let node = world.add_node(NodeOptions { disks, ..NodeOptions::default() });
    let handle = world.start_loop(node);
    let (inside, disk) = (handle.clone(), world.disk(node, "/disk"));
    world.block_on(&handle, async move {
        let (store, _) = local::open(&inside, LocalOptions::new(vec!["/disk/levee".into()])).await.unwrap();
        let options = LogOptions { file_bytes: 4 * MIB, ..OPTIONS };
        let log = TransactionLog::new(&inside, &store, options, LogSequence(1), Vec::new(), &Event::new());
        log.prepare().await.unwrap();
        // Spares are made in the background.
        inside.sleep(Duration::from_secs(5)).await;
        // 20 blocks: two appends of 16 blocks at most.
        for (records, appends) in [(1, 1), (10, 1), (20, 2)] {
            let before = disk.counters().writes;
            let outcomes: Vec<_> = (0..records).map(|number| log.append(&record(number), Box::new(|_| ())).1).collect();
            for outcome in outcomes {
                outcome.await.unwrap();
            }
            assert_eq!(disk.counters().writes - before, appends, "{records} records");
        }
    });
}

/// Lives that end in the middle of appends, some of which fail: what was told durable is there, in order, and
/// nothing is there that an earlier scan did not find.
#[test]
fn what_retired_is_found() {
    let (mut torn, mut rotations, mut faults) = (0, 0, 0);
    for seed in 0..300 {
        let mut prng = Prng::new(seed);
        let (world, node, memory) = world(seed);
        let told = Rc::new(RefCell::new(Vec::new()));
        let mut known: Vec<u64> = Vec::new();
        let mut number = 0;
        for life in 0..4 {
            let handle = world.restart(node);
            let store = memory.open(&handle);
            let found = scanned(&world, &handle, &store).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let there = numbers(&found);
            assert!(there.starts_with(&known), "seed {seed}: {there:?} went back on {known:?}");
            assert!(there.starts_with(&told.borrow()), "seed {seed}: {there:?} lacks one of {:?}", told.borrow());
            known = there;
            told.replace(known.clone());
            torn += u64::from(found.torn_tail);
            let log = TransactionLog::new(&handle, &store, OPTIONS, found.next, found.files, &Event::new());
            let first = log.clone();
            world.block_on(&handle, async move {
                first.prepare().await.unwrap();
                // Everything since the store began stays needed: the test reads it all in the end.
                first.append(&checkpoint(1), Box::new(|_| ())).1.await.unwrap();
            });
            let before = number;
            for _ in 0..prng.below(60) {
                number += 1;
                if prng.one_in(20) {
                    let fault = *prng.pick(&[AppendFault::Lost, AppendFault::Torn, AppendFault::Landed]);
                    memory.fail_appends(Some(FileKind::Transaction), 1, fault);
                    faults += 1;
                }
                let (told, number) = (told.clone(), number);
                drop(log.append(&record(number), Box::new(move |_| told.borrow_mut().push(number))));
                if prng.one_in(3) {
                    world.run_for(Duration::from_micros(prng.below(200)));
                }
            }
            if life == 3 || prng.one_in(2) {
                world.run_for(Duration::from_secs(1));
                assert!(number == before || told.borrow().last() == Some(&number), "seed {seed}: all retire");
            }
            rotations += log.rotations();
            match prng.one_in(2) {
                true => memory.kill(),
                false => memory.power_loss(),
            }
            memory.clear_faults();
        }
    }
    assert!(torn > 10 && rotations > 700 && faults > 100, "{torn} {rotations} {faults}");
}

#[test]
fn a_rotten_record_stops_the_start_and_a_second_copy_heals_it() {
    for copies in [1, 2] {
        let world = World::new(1);
        let node = world.add_node(NodeOptions::default());
        let memory = Memory::new(1, MemoryOptions { directories: copies, ..MemoryOptions::default() });
        let handle = world.restart(node);
        let store = memory.open(&handle);
        let log = TransactionLog::new(
            &handle,
            &store,
            LogOptions { copies, ..OPTIONS },
            LogSequence(1),
            Vec::new(),
            &Event::new(),
        );
        world.block_on(&handle, async move {
            log.prepare().await.unwrap();
            log.append(&checkpoint(1), Box::new(|_| ())).1.await.unwrap();
            for number in 1..=3 {
                log.append(&record(number), Box::new(|_| ())).1.await.unwrap();
            }
        });
        let file = store.list()[0].id;
        memory.kill();
        // The second record: the fourth says that it was durable.
        memory.corrupt(file, 0, 4096..8192);
        let handle = world.restart(node);
        let store = memory.open(&handle);
        match scanned(&world, &handle, &store) {
            Ok(found) => {
                assert_eq!((copies, numbers(&found)), (2, vec![1, 2, 3]));
                assert!(found.repaired_copies > 0);
            }
            Err(error) => assert!(copies == 1 && error.message.contains("--accept-data-loss"), "{error}"),
        }
    }
}

#[test]
fn a_record_that_a_disk_put_over_another_one_is_taken_from_the_other_copy() {
    for (from, to) in [(4096, 8192), (8192, 4096), (4096, 0), (8192, 12288)] {
        let world = World::new(1);
        let node = world.add_node(NodeOptions::default());
        let memory = Memory::new(1, MemoryOptions { directories: 2, ..MemoryOptions::default() });
        let handle = world.restart(node);
        let store = memory.open(&handle);
        let options = LogOptions { copies: 2, ..OPTIONS };
        let log = TransactionLog::new(&handle, &store, options, LogSequence(1), Vec::new(), &Event::new());
        world.block_on(&handle, {
            let store = store.clone();
            async move {
                log.prepare().await.unwrap();
                log.append(&checkpoint(1), Box::new(|_| ())).1.await.unwrap();
                for number in 1..=3 {
                    log.append(&record(number), Box::new(|_| ())).1.await.unwrap();
                }
                let file = store.list()[0].id;
                let misplaced = store.read_copy(file, 0, from, 4096).await.unwrap();
                store.repair_copy(file, 0, to, misplaced.freeze()).await.unwrap();
            }
        });
        memory.kill();
        let handle = world.restart(node);
        let store = memory.open(&handle);
        let found = scanned(&world, &handle, &store).unwrap();
        assert_eq!(numbers(&found), [1, 2, 3], "the record at {from} at {to}");
    }
}

/// Two full files and a third one, with a checkpoint in the second one that says where a replay starts. Gives the first
/// file.
fn three_files(start: u64) -> (World, runtime::sim::NodeId, Memory, FileId) {
    let (world, node, memory) = world(1);
    let (handle, store, log) = new_log(&world, node, &memory);
    world.block_on(&handle, async move {
        log.prepare().await.unwrap();
        log.append(&checkpoint(1), Box::new(|_| ())).1.await.unwrap();
        for number in 2..=40 {
            let record = if number == 20 { checkpoint(start) } else { record(number) };
            log.append(&record, Box::new(|_| ())).1.await.unwrap();
        }
        assert_eq!(log.rotations(), 3);
    });
    let first = store.list().iter().filter(|info| info.kind == FileKind::Transaction).map(|info| info.id).min();
    memory.kill();
    (world, node, memory, first.unwrap())
}

/// A power loss may bring back the name of a file that was being deleted, in one directory of several: nobody needs it
/// and it has fewer copies to heal from.
#[test]
fn damage_before_the_newest_checkpoint_does_not_matter() {
    for (start, is_needed) in [(16, true), (17, false), (20, false)] {
        for is_readable in [true, false] {
            let (world, node, memory, first) = three_files(start);
            match is_readable {
                true => memory.corrupt(first, 0, 8192..12288),
                false => memory.fail_reads(first, None, 0..65536),
            }
            let handle = world.restart(node);
            let store = memory.open(&handle);
            match scanned(&world, &handle, &store) {
                Ok(found) => {
                    assert!(!is_needed && found.files[0].first == LogSequence(17));
                    assert!(numbers(&found).into_iter().eq((start..=40).filter(|number| *number != 20)));
                    assert!(store.info(first).is_none());
                }
                Err(error) => {
                    let said = if is_readable { "record #3 at byte 8192" } else { "byte 0 cannot be read" };
                    assert!(is_needed && error.message.contains(said), "{start} {error}");
                }
            }
        }
    }
}

/// The directory of an old file may be away for long. Nobody waits for that, and what a start finds of it later does
/// not matter, though the files between are gone.
#[test]
fn a_file_that_cannot_be_deleted_holds_nobody_up() {
    let (world, node, memory) = world(1);
    let (handle, _, log) = new_log(&world, node, &memory);
    let (inside, disk) = (log.clone(), memory.clone());
    world.block_on(&handle, async move {
        inside.prepare().await.unwrap();
        inside.append(&checkpoint(1), Box::new(|_| ())).1.await.unwrap();
        for number in 2..=100 {
            inside.append(&record(number), Box::new(|_| ())).1.await.unwrap();
        }
        assert!(inside.is_long());
        inside.append(&checkpoint(101), Box::new(|_| ())).1.await.unwrap();
        disk.fail_deletions(1);
        inside.trim(LogSequence(101)).await;
        assert!(!inside.is_long());
        inside.append(&record(102), Box::new(|_| ())).1.await.unwrap();
    });
    memory.kill();
    let handle = world.restart(node);
    let store = memory.open(&handle);
    let oldest = store.list()[0].id;
    let found = scanned(&world, &handle, &store).unwrap();
    assert_eq!((numbers(&found), found.files.len()), (vec![102], 1));
    assert!(found.files[0].file > oldest && store.info(oldest).is_none());
}

/// What was behind records that were given up for lost is not taken for what follows the log that goes on.
#[test]
fn a_log_that_goes_on_after_a_loss_has_nothing_of_its_former_end() {
    for goes_on_to in [16, 30, 40] {
        let (world, node, memory, first) = three_files(1);
        memory.corrupt(first, 0, 8192..12288);
        let handle = world.restart(node);
        let store = memory.open(&handle);
        let inside = handle.clone();
        world.block_on(&handle, async move {
            let found = scan(&store, true).await.unwrap();
            assert_eq!((numbers(&found), found.next), (vec![2], LogSequence(3)));
            let log = TransactionLog::new(&inside, &store, OPTIONS, found.next, found.files, &Event::new());
            log.prepare().await.unwrap();
            for number in 3..=goes_on_to {
                log.append(&record(1000 + number), Box::new(|_| ())).1.await.unwrap();
            }
        });
        memory.kill();
        let handle = world.restart(node);
        let store = memory.open(&handle);
        let found = scanned(&world, &handle, &store).unwrap();
        let wanted: Vec<u64> = [2].into_iter().chain((3..=goes_on_to).map(|number| 1000 + number)).collect();
        assert_eq!(numbers(&found), wanted);
    }
}

/// Behind a clean stop nothing is torn: whichever records are missing at its end have rotted. After a kill the last
/// one may be torn.
#[test]
fn after_a_clean_stop_the_last_record_is_no_torn_tail() {
    for (first, cleanly) in [(4, false), (4, true), (2, true), (0, true)] {
        let (world, node, memory) = world(1);
        let (handle, store, log) = new_log(&world, node, &memory);
        world.block_on(&handle, async move {
            log.prepare().await.unwrap();
            // More than a sector of it is content, too.
            let rejected = vec![LogSequence(9); 100];
            let beginning = Record::Checkpoint(Checkpoint { from: LogSequence(1), rejected, ..Checkpoint::default() });
            let mut outcomes = vec![log.append(&beginning, Box::new(|_| ())).1];
            for number in 1..=4 {
                outcomes.push(log.append(&record(number), Box::new(|_| ())).1);
            }
            match cleanly {
                // Also of what is in flight.
                true => log.close().await.unwrap(),
                false => outcomes.pop().unwrap().await.map(drop).unwrap(),
            }
            let refused = log.append(&record(5), Box::new(|_| ())).1.await;
            assert_eq!(refused.is_err(), cleanly);
        });
        let file = store.list()[0].id;
        memory.kill();
        let handle = world.restart(node);
        let store = memory.open(&handle);
        assert_eq!(store.list().len(), if cleanly { 1 } else { 2 }, "no spare file is left behind");
        memory.corrupt(file, 0, first * 4096..(5 + u64::from(!cleanly)) * 4096);
        match scanned(&world, &handle, &store) {
            Ok(found) => assert_eq!((cleanly, numbers(&found)), (false, vec![1, 2, 3])),
            Err(error) => {
                assert!(cleanly && error.kind == base::ErrorKind::Corrupt, "{first} {error}");
                let place = format!("{}: ", store.locate(file, 0));
                let at = format!("at byte {} was durable", first * 4096);
                assert!(error.message.contains(&place) && error.message.contains(&at), "{first} {error}");
            }
        }
    }
}

#[test]
fn a_log_that_cannot_go_on_says_so() {
    let (world, node, memory) = world(1);
    let (handle, _, log) = new_log(&world, node, &memory);
    let outcome = world.block_on(&handle, async move {
        log.prepare().await.unwrap();
        memory.set_capacity(0);
        memory.fail_appends(Some(FileKind::Transaction), 2, AppendFault::Lost);
        let outcome = log.append(&checkpoint(1), Box::new(|_| panic!("it is not durable"))).1.await;
        assert!(log.broken().is_some());
        outcome.and(log.append(&checkpoint(1), Box::new(|_| ())).1.await)
    });
    assert!(outcome.unwrap_err().message.contains("broken"));
}

#[test]
fn durable_through_waits_for_the_data_of_large_writes() {
    let (world, node, memory) = world(1);
    let (handle, _, log) = new_log(&world, node, &memory);
    let segment = SegmentId { volume: VolumeId(1), index: 0 };
    world.block_on(&handle, async move {
        let mut outcomes = Vec::new();
        for sequence in 1..=3 {
            outcomes.push(log.append(&large(sequence), Box::new(|_| ())).1);
        }
        for outcome in outcomes {
            outcome.await.unwrap();
        }
        assert_eq!(log.frozen_at(segment), FrozenAt { covers: LogSequence(1), quiet: false });
        assert_eq!(log.undecided(), (LogSequence(0), vec![]));
        log.on_large_failed(LogSequence(2));
        log.on_large_done(LogSequence(1));
        assert_eq!(log.undecided(), (LogSequence(2), vec![LogSequence(2)]));
        log.on_large_done(LogSequence(3));
        assert_eq!(log.undecided(), (LogSequence(3), vec![LogSequence(2)]));
        assert_eq!(log.0.state.borrow().durable_through(), LogSequence(1), "nothing says yet that 2 does not count");
        log.on_rejected(&[LogSequence(2)]);
        assert_eq!(log.0.state.borrow().durable_through(), LogSequence(3));
        assert_eq!(log.frozen_at(segment), FrozenAt { covers: LogSequence(4), quiet: true });
        let relocating = log.relocating(segment);
        assert!(!log.frozen_at(segment).quiet);
        drop(relocating);
        assert!(log.frozen_at(segment).quiet);
    });
}

#[test]
fn a_dump_does_not_wait_for_a_log_that_a_large_write_holds_back() {
    let (world, node, memory) = world(1);
    let (handle, _, log) = new_log(&world, node, &memory);
    let asked = Rc::new(Cell::new(0));
    let ask = |log: &TransactionLog| {
        let (log, asked) = (log.clone(), asked.clone());
        let wait = async move {
            log.room_for_dump().await.unwrap();
            asked.set(asked.get() + 1);
        };
        handle.spawn(Class::Io, "dump", wait).detach();
    };
    let filling = log.clone();
    let last = world.block_on(&handle, async move {
        filling.append(&large(1), Box::new(|_| ())).1.await.unwrap();
        let mut number = 2;
        while !filling.is_long() {
            filling.append(&record(number), Box::new(|_| ())).1.await.unwrap();
            number += 1;
        }
        LogSequence(number)
    });
    assert!(log.is_held_back());
    ask(&log);
    world.run_for(Duration::from_secs(1));
    assert_eq!(asked.get(), 1, "no checkpoint helps before the large write is applied");

    log.on_large_done(LogSequence(1));
    assert!(log.is_long() && !log.is_held_back());
    ask(&log);
    world.run_for(Duration::from_secs(1));
    assert_eq!(asked.get(), 1, "a checkpoint comes");
    let trimming = log.clone();
    world.block_on(&handle, async move { trimming.trim(last).await });
    world.run_for(Duration::from_secs(1));
    assert!(!log.is_long() && asked.get() == 2);
}
