//! What the simulated world promises as a whole: it repeats itself, its time moves, its loops behave.

mod network;
mod storage;

use std::path::Path;
use std::time::Duration;

use base::{AlignedBuf, Instant};

use super::*;
use crate::OpenOptions;

const CREATE: OpenOptions = OpenOptions { write: true, create: true, exclusive: false, direct: false, dsync: false };

fn world(seed: u64) -> (World, NodeId, Handle) {
    let world = World::new(seed);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    (world, node, handle)
}

#[test]
fn a_file_holds_what_was_written() {
    let (world, _, handle) = world(1);
    let inside = handle.clone();
    world.block_on(&handle, async move {
        let file = inside.open(Path::new("/disk/file"), CREATE).await.unwrap();
        file.write_at(10_000, b"levee"[..].into()).await.unwrap();
        assert_eq!(file.length().await.unwrap(), 10_005);
        let read = file.read_up_to(9_998, 100).await.unwrap();
        assert_eq!(&read[..], b"\0\0levee");
        assert_eq!(file.read_at(9_998, 100).await.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
        let missing = inside.open(Path::new("/disk/other"), OpenOptions::default()).await;
        assert_eq!(missing.err().unwrap().kind(), std::io::ErrorKind::NotFound);
        let nowhere = inside.open(Path::new("/elsewhere/file"), CREATE).await;
        assert_eq!(nowhere.err().unwrap().kind(), std::io::ErrorKind::NotFound);
    });
}

#[test]
fn time_passes_as_the_disk_and_the_sleepers_say() {
    let (world, _, handle) = world(2);
    let inside = handle.clone();
    let (slept, wrote) = world.block_on(&handle, async move {
        let start = inside.now();
        inside.sleep(Duration::from_millis(5)).await;
        let middle = inside.now();
        let options = OpenOptions { direct: true, dsync: true, ..CREATE };
        let file = inside.open(Path::new("/disk/file"), options).await.unwrap();
        let before = inside.now();
        file.write_at(0, AlignedBuf::zeroed(1 << 20).freeze()).await.unwrap();
        (middle - start, inside.now() - before)
    });
    assert!((5_000..5_010).contains(&slept.as_micros()), "{slept:?}");
    // 70 us of latency with up to 20% of jitter, 1 MiB at 1 GB/s.
    assert!((1_118..1_150).contains(&wrote.as_micros()), "{wrote:?}");
}

#[test]
fn a_loop_that_never_rests_still_lets_time_pass() {
    let (world, _, handle) = world(3);
    let inside = handle.clone();
    for class in [Class::Io, Class::Background] {
        let spinner = handle.clone();
        handle
            .spawn(class, "spinner", async move {
                loop {
                    spinner.yield_now().await;
                }
            })
            .detach();
    }
    world.block_on(&handle, async move { inside.sleep(Duration::from_micros(300)).await });
    world.run_for(Duration::from_millis(1));
}

#[test]
#[should_panic(expected = "seed 4: deadlock")]
fn a_world_where_nothing_can_happen_says_so() {
    let (world, _, handle) = world(4);
    world.block_on(&handle, std::future::pending::<()>());
}

#[test]
fn offloaded_jobs_and_other_loops_wake_a_loop() {
    let (world, node, handle) = world(5);
    let other = world.start_loop(node);
    let (sender, receiver) = crate::sync::mailbox(1);
    let theirs = other.clone();
    let task = other.spawn(Class::Io, "sender", async move {
        theirs.sleep(Duration::from_millis(1)).await;
        sender.send(7).await.unwrap();
    });
    task.detach();
    let inside = handle.clone();
    let (sum, end) = world.block_on(&handle, async move {
        let job = inside.offload(Duration::from_millis(3), || 35);
        let got = receiver.recv().await.unwrap();
        assert_eq!(inside.now().nanos_since(Instant::ZERO) / 1_000_000, 1_001);
        (got + job.await, inside.now())
    });
    assert_eq!((sum, end.0 / 1_000_000), (42, 1_003));
}

/// A little of everything, as a function of the seed.
fn workout(seed: u64) -> (u64, u64, Instant) {
    let (world, node, handle) = world(seed);
    for round in 0..3 {
        let handle = if round == 0 { handle.clone() } else { world.restart(node) };
        for writer in 0..4u64 {
            let inside = handle.clone();
            let task = handle.spawn(Class::Io, "writer", async move {
                let path = format!("/disk/file-{writer}");
                let file = inside.open(Path::new(&path), CREATE).await.unwrap();
                for _ in 0..50 {
                    let offset = inside.random_u64() % 100 * 512;
                    file.write_at(offset, vec![writer as u8; 700].into()).await.unwrap();
                    if inside.random_u64().is_multiple_of(7) {
                        file.sync().await.unwrap();
                    }
                }
            });
            task.detach();
        }
        world.run_for(Duration::from_micros(700));
        match world.random_u64() % 2 {
            0 => world.kill(node),
            _ => world.power_loss(node),
        }
    }
    (world.history_hash(), world.random_u64(), world.now())
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..20 {
        let first = workout(seed);
        assert_eq!(first, workout(seed), "seed {seed}");
        assert_ne!(first.0, workout(seed + 1).0, "seed {seed}");
    }
}
