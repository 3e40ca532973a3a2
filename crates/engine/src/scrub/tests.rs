//! Rounds over stores with damage, without any, and with files that come and go meanwhile.

use std::time::Duration;

use base::io::fragment_checksums;
use base::{Bytes, KIB, MIB, Prng, VolumeId, WriteStamp};
use files::FileKind;
use files::memory::{Memory, MemoryOptions};
use policies::background::Left;
use runtime::sim::{NodeOptions, World};

use super::*;
use crate::{Engine, Options};

const SEGMENT: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };

fn options(copies: u8) -> Options {
    Options {
        journal_file_bytes: MIB,
        transaction_file_bytes: 256 * KIB,
        data_file_bytes: 256 * KIB,
        scrub: ScrubSettings { bytes_per_sec: 0, ..ScrubSettings::default() },
        copies,
        ..Options::default()
    }
}

async fn write(engine: &Engine, segment: SegmentId, block: u64, byte: u8, len: usize) -> Result<()> {
    let data = Bytes::from(vec![byte; len]);
    let checksums = fragment_checksums(segment, block * BLOCK, &data);
    engine.write(segment, block * BLOCK, data, checksums, WriteStamp::default()).await
}

/// A world with a store that was written to, closed and opened again: all is in data files and tables.
fn at_rest(copies: u8) -> (World, Handle, Memory, Engine) {
    at_rest_with(options(copies))
}

fn at_rest_with(options: Options) -> (World, Handle, Memory, Engine) {
    let world = World::new(1);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    let memory = Memory::new(1, MemoryOptions { directories: 2, ..MemoryOptions::default() });
    let (life, inside) = (handle.clone(), memory.clone());
    let engine = world.block_on(&handle, async move {
        let engine = Engine::open(&life, &inside.open(&life), options.clone()).await.unwrap();
        for block in 0..200 {
            write(&engine, SEGMENT, block * 3, block as u8, 4096).await.unwrap();
        }
        write(&engine, SEGMENT, 4096, 7, 128 << 10).await.unwrap();
        engine.close().await.unwrap();
        Engine::open(&life, &inside.open(&life), options).await.unwrap()
    });
    (world, handle, memory, engine)
}

fn round(world: &World, handle: &Handle, engine: &Engine) -> u64 {
    let engine = engine.clone();
    let lost = world.block_on(handle, async move { engine.scrub().await });
    world.run_for(Duration::from_secs(1));
    lost
}

/// The files of a kind, with the number of bytes that were written to each.
fn files(engine: &Engine, kind: FileKind) -> Vec<(FileId, u64)> {
    let of_kind = engine.0.store.list().into_iter().filter(|info| info.kind == kind);
    of_kind.map(|info| (info.id, info.sealed.unwrap_or(info.capacity))).collect()
}

#[test]
fn what_one_copy_has_wrong_is_repaired_before_anybody_reads_it() {
    let (world, handle, memory, engine) = at_rest(2);
    let mut damaged = 0;
    for (file, len) in files(&engine, FileKind::Data).into_iter().chain(files(&engine, FileKind::Table)) {
        // More blocks of it than can be repaired at a time.
        let last = (len / BLOCK).min(64);
        memory.corrupt(file, 1, 0..last * BLOCK);
        damaged += last;
    }
    assert!(damaged >= 100, "data of both kinds of writes, and tables: {damaged} blocks");
    assert_eq!(round(&world, &handle, &engine), 0);
    let (verify, scrub) = (engine.statistics().verify, engine.statistics().scrub);
    // One of them is the label of the large write, which nobody reads once its record is logged.
    damaged -= 1;
    assert_eq!((verify.mismatches, verify.repaired, verify.lost), (damaged, damaged, 0));
    assert_eq!((scrub.segments, scrub.segments_done), (1, 1));
    assert!(scrub.read_bytes >= 2 * (200 + 32) * BLOCK, "both copies of everything: {scrub:?}");

    assert_eq!(round(&world, &handle, &engine), 0);
    assert_eq!(engine.statistics().verify.mismatches, damaged, "nothing is wrong any more");
}

#[test]
fn what_no_copy_has_right_is_counted_and_the_rest_is_served() {
    let (world, handle, memory, engine) = at_rest(1);
    let (file, _) = files(&engine, FileKind::Data)[0];
    memory.corrupt(file, 0, 8 * KIB..8 * KIB + 1);
    assert_eq!(round(&world, &handle, &engine), 1);
    assert_eq!((engine.statistics().verify.lost, engine.statistics().verify.repaired), (1, 0));
    let reading = engine.clone();
    let broken = world.block_on(&handle, async move {
        let mut broken = 0;
        for block in 0..200 {
            broken += u32::from(reading.read(SEGMENT, block * 3 * BLOCK, BLOCK).await.is_err());
        }
        broken
    });
    assert_eq!(broken, 1);
}

#[test]
fn a_round_that_is_asked_for_begins_once_and_ends_with_the_engine() {
    // A second for all of it; by itself it begins within the hour.
    let scrub = ScrubSettings { bytes_per_sec: MIB, ..ScrubSettings::default() };
    let (world, handle, _, engine) = at_rest_with(Options { scrub, ..options(1) });
    engine.begin_scrub();
    engine.begin_scrub();
    assert_eq!(engine.statistics().scrub.running, 1);
    world.run_for(Duration::from_secs(10));
    assert_eq!((engine.statistics().scrub.rounds, engine.statistics().scrub.running), (1, 0));
    engine.begin_scrub();
    let closing = engine.clone();
    world.block_on(&handle, async move { closing.close().await }).unwrap();
    assert_eq!((engine.statistics().scrub.rounds, engine.statistics().scrub.running), (1, 0));
}

#[test]
fn what_comes_and_goes_during_a_round_is_not_taken_for_lost() {
    let mut read_bytes = 0;
    for seed in 0..20 {
        let (world, handle, _, engine) = at_rest(2);
        let writing = engine.clone();
        let writer = async move {
            let mut prng = Prng::new(seed);
            for number in 0..400u64 {
                let segment = SegmentId { volume: VolumeId(1 + number / 100), index: prng.below(2) as u32 };
                let len = *prng.pick(&[4096, 128 << 10]);
                write(&writing, segment, prng.below(100) * 32, number as u8, len).await.unwrap();
                if number % 100 == 99 {
                    writing.drop_volume(VolumeId(1 + number / 100)).await.unwrap();
                }
            }
        };
        let writer = handle.spawn(Class::Io, "writer", writer);
        let mut lost = 0;
        for _ in 0..10 {
            lost += round(&world, &handle, &engine);
        }
        world.block_on(&handle, writer);
        let statistics = engine.statistics();
        assert_eq!((lost, statistics.verify.mismatches, statistics.verify.lost), (0, 0, 0), "seed {seed}");
        read_bytes += statistics.scrub.read_bytes;
    }
    assert!(read_bytes > 20 * MIB);
}

#[test]
fn rounds_come_once_a_period_at_the_pace_that_was_set_and_more_slowly_beside_others() {
    let world = World::new(1);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    let memory = Memory::new(1, MemoryOptions::default());
    let life = handle.clone();
    let period = Duration::from_secs(3600);
    let engine = world.block_on(&handle, async move {
        let scrub = ScrubSettings { bytes_per_sec: 16 * MIB, period };
        let engine = Engine::open(&life, &memory.open(&life), Options { scrub, ..options(1) }).await.unwrap();
        for number in 0..256 {
            write(&engine, SEGMENT, number * 32, 1, 128 << 10).await.unwrap();
        }
        engine
    });
    // The first round begins after ten seconds, and has 32 MiB to read: two seconds of work.
    world.run_for(Duration::from_secs(9));
    assert_eq!(engine.statistics().scrub, ScrubStatistics::default());
    let unread = engine.background_work();
    world.run_for(Duration::from_secs(2));
    let half = engine.statistics().scrub;
    assert!(half.rounds == 0 && half.read_bytes > 8 * MIB && half.read_bytes < 24 * MIB, "{half:?}");
    world.run_for(Duration::from_secs(2));
    let first = engine.statistics().scrub;
    assert!(first.rounds == 1 && first.read_bytes >= 32 * MIB && first.late_rounds == 0, "{first:?}");
    assert_eq!(engine.background_work().since(&unread).read_bytes, first.read_bytes, "nobody asked for it");
    world.run_for(period - Duration::from_secs(10));
    assert_eq!(engine.statistics().scrub.rounds, 1);
    // Somebody else needs the disks: a sixteenth of the pace is left.
    let spared = engine.clone();
    let before = engine.statistics().scrub.read_bytes;
    let sparing = async move {
        let clock = spared.0.handle.clone();
        for _ in 0..120 {
            spared.set_spare_bandwidth(Left::Bytes(0));
            clock.sleep(Duration::from_millis(100)).await;
        }
    };
    world.block_on(&handle, sparing);
    let read = engine.statistics().scrub.read_bytes - before;
    assert!(read > MIB && read < 16 * MIB, "{read}");
}
