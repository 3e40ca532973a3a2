//! What the simulated world promises as a whole: it repeats itself, its time moves, its loops behave.

mod network;
mod storage;

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use base::{AlignedBuf, Bytes, Instant};

use super::*;
use crate::{Address, File, OpenOptions};

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
        file.write_at(10_000, Bytes::from(&b"levee"[..])).await.unwrap();
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

#[test]
fn clocks_drift_and_jump_and_timers_follow_them() {
    let world = World::new(6);
    let fast = NodeOptions { clock_drift_ppm: 100_000, wall_offset_ms: -5_000, ..NodeOptions::default() };
    let nodes = [NodeOptions::default(), fast].map(|options| world.add_node(options));
    let handles = nodes.map(|node| world.start_loop(node));
    let sleep = |side: usize, span: Duration| {
        let (before, inside) = (world.now(), handles[side].clone());
        world.block_on(&handles[side], async move { inside.sleep(span).await });
        (world.now() - before).as_millis()
    };
    assert_eq!(sleep(0, Duration::from_millis(1100)), 1100);
    assert_eq!(sleep(1, Duration::from_millis(1100)), 1000);
    assert_eq!((handles[0].wall_ms() - handles[1].wall_ms()) / 1000, 5);
    world.set_clock_drift(nodes[1], 0);
    assert_eq!(sleep(1, Duration::from_millis(500)), 500);
    let (jumping, node) = (world.clone(), nodes[0]);
    jumping.after(Duration::from_millis(100), move |world| world.jump_clock(node, Duration::from_secs(60)));
    assert_eq!(sleep(0, Duration::from_secs(30)), 100);
    world.set_wall_offset(nodes[0], 1_000_000);
    assert_eq!((handles[0].wall_ms() - handles[1].wall_ms()) / 1000, 1005);
}

#[test]
fn a_killed_loop_drops_its_tasks_and_does_nothing_more() {
    struct Writes(File);
    impl Drop for Writes {
        fn drop(&mut self) {
            // Its driver is dead by now: this reaches nobody.
            drop(self.0.write_at(0, Bytes::from(&b"from the grave"[..])));
        }
    }
    let (world, node, handle) = world(7);
    let inside = handle.clone();
    let dropped = Rc::new(());
    let held = dropped.clone();
    let task = handle.spawn(Class::Io, "held", async move {
        let _writes = Writes(inside.open(Path::new("/disk/file"), CREATE).await.unwrap());
        let _held = held;
        std::future::pending::<()>().await;
    });
    task.detach();
    world.run_for(Duration::from_millis(1));
    assert_eq!(Rc::strong_count(&dropped), 2);
    world.kill(node);
    assert_eq!(Rc::strong_count(&dropped), 1);
    world.run_for(Duration::from_secs(1));
    assert_eq!(world.disk(node, "/disk").content("file"), b"");
}

#[test]
#[should_panic(expected = "seed 8: the loop died")]
fn who_waits_for_a_killed_loop_is_told() {
    let (world, node, handle) = world(8);
    world.after(Duration::from_millis(1), move |world| world.kill(node));
    world.block_on(&handle, std::future::pending::<()>());
}

/// A little of everything, as a function of the seed.
fn workout(seed: u64) -> (u64, u64, Instant) {
    let world = World::new(seed);
    let faults = FaultPlan { write_error_one_in: 50, rot_one_in: 50, slow_one_in: 100, ..FaultPlan::default() };
    let disk = DiskOptions { faults, ..DiskOptions::default() };
    let nodes = [0, 1].map(|_| world.add_node(NodeOptions::with_disks(["/disk"], &disk)));
    let mut handles = nodes.map(|node| world.start_loop(node));
    for round in 0..6 {
        let address = Address::Tcp((world.address(nodes[0]), 7000 + round).into());
        let [near, far] = handles.clone();
        let bound = address.clone();
        let server = handles[0].spawn(Class::Io, "server", async move {
            let listener = near.listen(&bound).await?;
            let stream = listener.accept().await?;
            for page in 0.. {
                let (count, buffer) = stream.receive(AlignedBuf::zeroed(4096), 0).await;
                let file = near.open(Path::new("/disk/received"), CREATE).await?;
                file.write_at(page * 4096, buffer.freeze().slice(..count?)).await?;
            }
            Ok::<(), std::io::Error>(())
        });
        let client = handles[1].spawn(Class::Background, "client", async move {
            let stream = far.connect(&address).await?;
            loop {
                let bytes = vec![1; (far.random_u64() % 9000) as usize + 1];
                stream.send(vec![bytes.into()]).await?;
                far.sleep(Duration::from_micros(far.random_u64() % 100)).await;
            }
            #[allow(unreachable_code, reason = "it tells the type of the task")]
            Ok::<(), std::io::Error>(())
        });
        world.run_for(Duration::from_micros(world.random_u64() % 5_000));
        let side = (world.random_u64() % 2) as usize;
        match world.random_u64() % 4 {
            0 => world.kill(nodes[side]),
            1 => world.power_loss(nodes[side]),
            2 => world.cut_link(nodes[side], nodes[1 - side]),
            _ => world.reset_connections(nodes[0], nodes[1]),
        }
        world.run_for(Duration::from_millis(1));
        drop((server, client));
        handles[side] = world.restart(nodes[side]);
    }
    (world.history_hash(), world.random_u64(), world.now())
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..50 {
        let first = workout(seed);
        assert_eq!(first, workout(seed), "seed {seed}");
        assert_ne!(first.0, workout(seed + 1).0, "seed {seed}");
    }
}
