//! Space that is zero-written ahead of need: when that happens, and when not.

use std::time::Duration;

use base::{KIB, MIB};
use files::local::LocalOptions;
use files::{CreateOptions, FileKind, FileWriter, Store};
use policies::ready::ReadySettings;
use runtime::sim::{DiskOptions, Fault};

use crate::bench::{BLOCK, Bench, blocks, options};

const SPARE: u64 = MIB;
const QUIET: Duration = Duration::from_millis(200);

fn with_ready(bench: &Bench, disks: &[usize], bytes_max: u64) -> LocalOptions {
    let ready = ReadySettings { bytes_max, bytes_per_sec: 100 * MIB, quiet: QUIET };
    LocalOptions { ready, ..bench.options(disks) }
}

/// A store on all disks that keeps so many bytes ready.
fn open(bench: &Bench, disks: &[usize], bytes_max: u64) -> Store {
    let (store, _) = bench.try_open(with_ready(bench, disks, bytes_max)).unwrap();
    store.keep_ready(&[SPARE], u64::MAX);
    store
}

fn prepared(capacity: u64, copies: u8) -> CreateOptions {
    CreateOptions { kind: FileKind::Data, prepared: true, capacity, ..options(copies) }
}

fn vacant(bench: &Bench, disk: usize) -> usize {
    let files = bench.disk(disk).files();
    files.into_iter().filter(|(path, _)| path.to_string_lossy().contains("vacant-")).count()
}

fn create(bench: &Bench, store: &Store, options: CreateOptions) -> FileWriter {
    let store = store.clone();
    bench.run(async move { store.create(options).await.unwrap() })
}

#[test]
fn every_member_gets_spares_once_and_then_the_store_sleeps() {
    let bench = Bench::new(31, 2);
    let store = open(&bench, &[0, 1], 4 * MIB + 64 * KIB);
    let free = store.space().free;
    bench.world.run_for(QUIET / 2);
    assert_eq!(store.statistics().zeroed_bytes, 0, "it may have been busy until now");
    bench.world.run_for(Duration::from_secs(2));
    assert_eq!((vacant(&bench, 0), vacant(&bench, 1)), (4, 4));
    assert_eq!(store.statistics().zeroed_bytes, 8 * (SPARE + BLOCK as u64));
    assert!(store.statistics().written_bytes[FileKind::Data as usize] >= store.statistics().zeroed_bytes);
    assert_eq!((store.space().free, store.space().used), (free, 0), "spares are free");
    assert_eq!(store.statistics().kept_bytes, 4 * (SPARE + BLOCK as u64));
    bench.world.run_for(Duration::from_secs(60));
    let before = bench.world.operations_done();
    bench.world.run_for(Duration::from_secs(3600));
    assert_eq!(bench.world.operations_done(), before);
    assert!(!bench.world.step(), "no timer waits");
    // One is taken, in both directories, and replaced.
    assert_eq!(store.recyclable(FileKind::Data, SPARE / 4..=4 * SPARE), Some(SPARE));
    let mut writer = create(&bench, &store, prepared(SPARE, 2));
    assert_eq!((vacant(&bench, 0), vacant(&bench, 1)), (3, 3));
    bench.run(async move { writer.append(blocks(1, 4)).await.unwrap() });
    bench.world.run_for(Duration::from_secs(2));
    assert_eq!((vacant(&bench, 0), vacant(&bench, 1)), (4, 4));
}

#[test]
fn zeros_give_way_to_whoever_wants_the_store() {
    let bench = Bench::new(32, 1);
    let store = open(&bench, &[0], 64 * MIB);
    bench.world.run_for(QUIET + Duration::from_millis(100));
    let zeroed = store.statistics().zeroed_bytes;
    assert!((MIB..64 * MIB).contains(&zeroed), "it has begun: {zeroed}");
    let mut writer = create(&bench, &store, options(1));
    let under_load = store.statistics().zeroed_bytes;
    assert!(under_load <= zeroed + MIB, "one step, that was under way");
    for number in 0..100u32 {
        match number % 2 {
            0 => writer = bench.run(async move { writer.append(blocks(1, 1)).await.map(|_| writer).unwrap() }),
            // A read, as the engine tells it.
            _ => store.on_request(),
        }
        if writer.room() == 0 {
            writer = create(&bench, &store, options(1));
        }
        bench.world.run_for(QUIET * 3 / 4);
    }
    assert_eq!(store.statistics().zeroed_bytes, under_load, "load as thin as that is enough");
    bench.world.run_for(Duration::from_secs(2));
    let spares = vacant(&bench, 0) as u64;
    assert!(
        spares >= 63 && store.statistics().zeroed_bytes == spares * (SPARE + BLOCK as u64),
        "no zero is written twice"
    );
}

#[test]
fn a_small_or_full_disk_is_left_alone() {
    let bench = Bench::with(33, 1, DiskOptions { capacity: 32 * MIB, ..DiskOptions::default() });
    let store = open(&bench, &[0], 1 << 40);
    let free = store.space().free;
    bench.world.run_for(Duration::from_secs(5));
    let ready = vacant(&bench, 0) as u64;
    assert!((9..=10).contains(&ready), "a third of the room, not {ready} MiB");
    // And all of it is given back to files of any kind and size.
    let fill = |capacity: u64| {
        let store = store.clone();
        bench.run(async move {
            let mut bytes = 0;
            while store.create(CreateOptions { capacity, ..options(1) }).await.is_ok() {
                bytes += capacity;
            }
            bytes
        })
    };
    let filled = fill(3 * MIB) + fill(64 * KIB);
    assert!(filled + MIB > free, "{filled} of {free}");
    assert_eq!(vacant(&bench, 0), 0);
    bench.world.run_for(Duration::from_secs(5));
    assert_eq!(vacant(&bench, 0), 0, "nothing is taken of the last room");
}

#[test]
fn one_that_is_being_written_gives_way_to_a_file_too() {
    for seed in 0..40 {
        let bench = Bench::with(seed, 1, DiskOptions { capacity: 32 * MIB, ..DiskOptions::default() });
        let store = open(&bench, &[0], 1 << 40);
        bench.world.run_for(QUIET + Duration::from_micros(1500 * seed));
        // Everything there is, in one file: only without any spare there is room for it.
        let room = store.space().free / BLOCK as u64 * BLOCK as u64;
        create(&bench, &store, CreateOptions { capacity: room, ..options(1) });
        assert_eq!(vacant(&bench, 0), 0, "seed {seed}");
    }
}

#[test]
fn a_crash_in_the_middle_leaves_spares_as_good_as_others() {
    let mut interrupted = 0;
    for seed in 0..40 {
        let mut bench = Bench::new(seed, 1);
        let store = open(&bench, &[0], 4 * MIB + 64 * KIB);
        bench.world.run_for(QUIET + Duration::from_micros(1700 * seed));
        interrupted += u64::from(vacant(&bench, 0) < 4);
        drop(store);
        match seed % 2 {
            0 => bench.restart(),
            _ => bench.power_loss(),
        }
        let store = open(&bench, &[0], 4 * MIB + 64 * KIB);
        let found = vacant(&bench, 0);
        let mut writer = create(&bench, &store, prepared(SPARE, 1));
        assert_eq!(vacant(&bench, 0), found.saturating_sub(1), "seed {seed}");
        // What the killed process still had in flight does not land on it.
        let file = writer.id();
        bench.run(async move { writer.append(blocks(7, 16)).await.unwrap() });
        bench.world.run_for(Duration::from_secs(2));
        let read = bench.run(async move { store.read(file, 0, 16 * BLOCK).await.unwrap() });
        assert!(read.iter().all(|byte| *byte == 7), "seed {seed}");
        assert_eq!(vacant(&bench, 0), 4);
    }
    assert!(interrupted > 10, "{interrupted}");
}

#[test]
fn a_disk_that_fails_meanwhile_costs_nothing_else() {
    for seed in 0..40 {
        let bench = Bench::new(seed, 2);
        let store = open(&bench, &[0, 1], 4 * MIB + 64 * KIB);
        bench.world.run_for(QUIET + Duration::from_micros(300 * seed));
        bench.disk(1).inject(Fault::WriteError, 1);
        bench.world.run_for(Duration::from_secs(1));
        let mut writer = create(&bench, &store, prepared(SPARE, 2));
        bench.run(async move { writer.append(blocks(7, 1)).await.unwrap() });
        bench.world.run_for(Duration::from_secs(2));
        assert_eq!(
            (vacant(&bench, 0), vacant(&bench, 1)),
            (4, 4),
            "seed {seed}: it is tried again when files come or go"
        );
    }
}
