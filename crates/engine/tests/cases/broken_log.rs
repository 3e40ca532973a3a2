//! What becomes of a store whose background work fails, so that nothing gives memory, journal files or room in
//! memtables back. Everybody is told, reads go on, and no acknowledged write is lost. Where the transaction log cannot
//! be written any more, that lasts until a restart; else until the work comes through again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::io::{ReadPart, fragment_checksums};
use base::{Bytes, ErrorKind, KIB, MIB, Result, SegmentId, VolumeId, WriteStamp};
use engine::{Engine, Options};
use files::FileKind;
use files::memory::{AppendFault, Memory, MemoryOptions};
use runtime::sim::{NodeId, NodeOptions, World};
use runtime::{Class, Handle};

const WRITERS: u64 = 40;
const WRITE_BYTES: u64 = 32 * KIB;
/// Of each writer: together more than memory and journal hold.
const WRITES: u64 = 10;
const SEGMENT: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };

fn content(offset: u64) -> Bytes {
    Bytes::from(vec![(offset / WRITE_BYTES % 255) as u8 + 1; WRITE_BYTES as usize])
}

async fn write(engine: &Engine, offset: u64) -> Result<()> {
    let data = content(offset);
    let checksums = fragment_checksums(SEGMENT, offset, &data);
    engine.write(SEGMENT, offset, data, checksums, WriteStamp::default()).await
}

async fn read(engine: &Engine, offset: u64) -> Bytes {
    let parts = engine.read(SEGMENT, offset, WRITE_BYTES).await.expect("a read needs no log");
    let mut all = Vec::new();
    for part in parts {
        let ReadPart::Data(data) = part else { panic!("it was written") };
        all.extend_from_slice(&data);
    }
    Bytes::from(all)
}

/// Memory is what runs out.
fn short_of_memory() -> Options {
    Options { dirty_bytes_max: MIB, segment_cache_bytes: 256 * KIB, journal_file_bytes: 4 * MIB, ..Options::default() }
}

/// Journal files are.
fn short_of_journal() -> Options {
    Options {
        dirty_bytes_max: 64 * MIB,
        segment_cache_bytes: MIB,
        journal_file_bytes: MIB,
        journal_files: 2,
        ..Options::default()
    }
}

/// Room in memtables is.
fn short_of_memtables() -> Options {
    Options {
        memtable_bytes_max: 16 * KIB,
        large_write_bytes: WRITE_BYTES,
        journal_file_bytes: 4 * MIB,
        ..Options::default()
    }
}

/// A disk with a store on it, in a world of its own.
fn open(seed: u64, options: Options) -> (World, NodeId, Handle, Memory, Engine) {
    let world = World::new(seed);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    let disk = Memory::new(1, MemoryOptions { capacity: 256 * MIB, ..MemoryOptions::default() });
    let (store, here) = (disk.open(&handle), handle.clone());
    let engine = world.block_on(&handle, async move { Engine::open(&here, &store, options).await }).unwrap();
    (world, node, handle, disk, engine)
}

/// Has many writers write more than there is room for; gives what each was told.
fn overwhelm(world: &World, handle: &Handle, engine: &Engine) -> BTreeMap<u64, Result<()>> {
    let told: Rc<RefCell<BTreeMap<u64, Result<()>>>> = Rc::default();
    for writer in 0..WRITERS {
        let (engine, told) = (engine.clone(), told.clone());
        let writing = async move {
            for round in 0..WRITES {
                let offset = (writer * WRITES + round) * WRITE_BYTES;
                let outcome = write(&engine, offset).await;
                told.borrow_mut().insert(offset, outcome);
            }
        };
        handle.spawn(Class::Io, "writer", writing).detach();
    }
    let all = told.clone();
    world.run_until(move || all.borrow().len() as u64 == WRITERS * WRITES);
    told.take()
}

/// Opens the store, lets its log break after a while, and overwhelms it: either memory or the journal is what runs out.
fn everybody_is_told(options: Options, after: Duration) {
    let (world, node, handle, disk, engine) = open(1, options.clone());
    let log = disk.clone();
    world.after(after, move |_| log.fail_appends(Some(FileKind::Transaction), 1000, AppendFault::Lost));

    let told = overwhelm(&world, &handle, &engine);
    let errors: Vec<_> = told.values().filter_map(|outcome| outcome.as_ref().err()).collect();
    assert!(told.values().any(Result::is_ok) && !errors.is_empty());
    for error in errors {
        assert!(error.kind == ErrorKind::Io && error.message.contains("transaction log is broken"), "{error}");
    }

    let acknowledged: Vec<u64> =
        told.iter().filter(|(_, outcome)| outcome.is_ok()).map(|(offset, _)| *offset).collect();
    let (reading, offsets) = (engine.clone(), acknowledged.clone());
    world.block_on(&handle, async move {
        for offset in offsets {
            assert_eq!(read(&reading, offset).await, content(offset));
        }
        let late = write(&reading, 0).await.and(reading.discard(SEGMENT, 0, 4 * KIB, WriteStamp::default()).await);
        assert!(late.unwrap_err().message.contains("restart the store"));
    });
    // Nothing is left that tries again and again: a day passes in no time.
    world.run_for(Duration::from_secs(86_400));

    disk.kill();
    world.kill(node);
    disk.clear_faults();
    let handle = world.restart(node);
    let (store, here) = (disk.open(&handle), handle.clone());
    world.block_on(&handle, async move {
        let engine = Engine::open(&here, &store, options).await.unwrap();
        for offset in acknowledged {
            assert_eq!(read(&engine, offset).await, content(offset));
        }
        write(&engine, 0).await.unwrap();
        engine.close().await.unwrap();
    });
}

#[test]
fn writers_that_wait_for_memory_are_told_that_the_log_is_broken() {
    everybody_is_told(short_of_memory(), Duration::ZERO);
}

#[test]
fn writers_that_wait_for_the_journal_are_told_that_the_log_is_broken() {
    everybody_is_told(short_of_journal(), Duration::ZERO);
}

#[test]
fn writers_that_wait_for_the_index_are_told_that_the_log_is_broken() {
    // Before the first large write is through, and when memtables are flushed already.
    for after in [500, 2_000] {
        everybody_is_told(short_of_memtables(), Duration::from_micros(after));
    }
}

/// Opens a store whose disk has the fault that `inject` gives it, overwhelms it, and mends it.
fn everybody_is_told_until_it_passes(options: Options, inject: impl FnOnce(&Memory)) {
    let (world, _, handle, disk, engine) = open(2, options);
    inject(&disk);

    let began = world.now();
    let told = overwhelm(&world, &handle, &engine);
    let took = world.now() - began;
    assert!(took < Duration::from_secs(30), "nobody waits for as long as a client does: {took:?}");
    let errors: Vec<_> = told.values().filter_map(|outcome| outcome.as_ref().err()).collect();
    assert!(told.values().any(Result::is_ok) && !errors.is_empty());
    assert!(errors.iter().all(|error| error.kind == ErrorKind::Io), "{errors:?}");

    disk.clear_faults();
    world.run_for(Duration::from_secs(5));
    world.block_on(&handle, async move {
        for offset in told.into_iter().filter(|(_, outcome)| outcome.is_ok()).map(|(offset, _)| offset) {
            assert_eq!(read(&engine, offset).await, content(offset));
        }
        for writer in 0..WRITERS * WRITES {
            write(&engine, writer * WRITE_BYTES).await.unwrap();
        }
        engine.close().await.unwrap();
    });
}

/// Appends to files of a kind fail.
fn fails(kind: FileKind) -> impl FnOnce(&Memory) {
    move |disk| disk.fail_appends(Some(kind), 1_000_000, AppendFault::Lost)
}

#[test]
fn writers_that_wait_for_memory_are_told_that_dumps_fail() {
    everybody_is_told_until_it_passes(short_of_memory(), fails(FileKind::Data));
}

#[test]
fn writers_that_wait_for_the_journal_are_told_that_dumps_fail() {
    everybody_is_told_until_it_passes(short_of_journal(), fails(FileKind::Data));
}

#[test]
fn writers_that_wait_for_the_journal_are_told_that_its_files_cannot_be_deleted() {
    everybody_is_told_until_it_passes(short_of_journal(), |disk| disk.fail_deletions(1_000_000));
}

#[test]
fn writers_that_wait_for_the_index_are_told_that_flushes_fail() {
    everybody_is_told_until_it_passes(short_of_memtables(), fails(FileKind::Table));
}
