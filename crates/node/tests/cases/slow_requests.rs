//! Whatever makes a request slow is named: a whole store in the simulated world, in which one thing at a time is slow.
//!
//! Each test first lets the store learn what is usual, then makes a request slow, and looks up what the store says that
//! it waited for.

use std::time::Duration;

use base::{GIB, Stage};
use control::levels::LevelsChange;
use node::settings::EngineSettings;
use node::{Node, Settings};
use runtime::sim::{DiskOptions, Fault, NodeOptions, SimDisk, World};
use runtime::{Class, Handle};
use wire::api::SlowRequest;

use crate::client::{Client, request};

/// Blocks of the volume that tests use: in one data sector, so in one segment.
const BLOCKS: u64 = 32;

struct Bed {
    handle: Handle,
    node: Node,
    client: Client,
    disks: Vec<SimDisk>,
}

/// A store over `disks` with so many loops, and a client of its volume.
fn in_a_store<F: Future<Output = Bed> + 'static>(
    disks: &'static [&'static str],
    loops: u8,
    act: impl FnOnce(Bed) -> F + 'static,
) {
    let world = World::new(1);
    let machine = world.add_node(NodeOptions::with_disks(disks.iter().copied(), &DiskOptions::default()));
    let handle = world.start_loop(machine);
    let address = world.address(machine);
    let sim_disks = disks.iter().map(|disk| world.disk(machine, disk)).collect();
    let inside = handle.clone();
    world.block_on(&handle, async move {
        let directories = disks.iter().map(|disk| format!("{disk}/store").into()).collect();
        let mut settings = Settings { directories, ..Settings::default() };
        settings.nbd.listen = (address, 0).into();
        settings.api.is_off = true;
        settings.engine = EngineSettings::small();
        settings.event_loop.count = Some(loops);
        let node = Node::start(&inside, &settings).await.unwrap();
        node.ensure_volume("disk", GIB).await.unwrap();
        let client = Client::attach(&inside, &node.ready().nbd, "disk").await;
        let bed = act(Bed { handle: inside, node, client, disks: sim_disks }).await;
        bed.node.stop().await.unwrap();
    });
}

impl Bed {
    async fn write(&self, offset: u64) {
        self.client.send(&[&request(1, offset, 4096), &[7; 4096]]).await;
        self.client.replies(1, 0).await;
    }

    async fn read(&self, offset: u64, len: u32) {
        self.client.send(&[&request(0, offset, len)]).await;
        self.client.replies(1, len as usize).await;
    }

    /// What writes usually take.
    async fn learn_writes(&self) {
        for number in 0..100 {
            self.write(number % BLOCKS * 4096).await;
        }
    }

    /// The same for reads from disk.
    async fn learn_reads(&self) {
        self.learn_writes().await;
        // Idle caches are dumped in time.
        self.handle.sleep(Duration::from_secs(60)).await;
        for number in 0..100 {
            self.read(number % BLOCKS * 4096, 4096).await;
        }
    }

    /// The latest first.
    async fn slow(&self) -> Vec<SlowRequest> {
        let (_, explained) = self.node.manager().explain("disk").await.unwrap();
        let blamed: u64 = explained.slow_reasons.iter().map(|reason| reason.requests).sum();
        assert!(blamed >= explained.slow_requests.len() as u64, "each slow request has a reason");
        explained.slow_requests
    }

    /// The latest slow request, which was not slow before `began` was counted.
    async fn latest(&self, began: usize) -> SlowRequest {
        let slow = self.slow().await;
        assert!(slow.len() > began, "a request was slow");
        slow.into_iter().next().unwrap()
    }
}

/// The stages of a request are its time.
fn assert_adds_up(slow: &SlowRequest, at_least: Duration) {
    let sum: u64 = slow.stages.iter().map(|stage| stage.ns).sum();
    assert!(sum == slow.total_ns && Duration::from_nanos(sum) >= at_least, "{slow:?}");
}

#[test]
fn a_slow_disk_is_blamed_for_a_read() {
    in_a_store(&["/disk"], 1, async |bed| {
        bed.learn_reads().await;
        let began = bed.slow().await.len();
        bed.disks[0].set_slowness(100);
        bed.read(4096, 4096).await;
        bed.disks[0].set_slowness(1);
        let slow = bed.latest(began).await;
        assert_eq!(slow.reason, Stage::Disk.name(), "{slow:?}");
        assert_adds_up(&slow, Duration::from_millis(4));
        bed
    });
}

/// So slow that the write takes longer than the very first one, which had waited for journal files to be made.
#[test]
fn a_slow_disk_is_blamed_for_a_write() {
    for loops in [1, 2] {
        in_a_store(&["/disk"], loops, async |bed| {
            bed.learn_writes().await;
            let began = bed.slow().await.len();
            bed.disks[0].set_slowness(10_000);
            bed.write(4096).await;
            bed.disks[0].set_slowness(1);
            let slow = bed.latest(began).await;
            assert_eq!(slow.reason, Stage::Append.name(), "{slow:?}");
            assert_adds_up(&slow, Duration::from_millis(100));
            bed
        });
    }
}

#[test]
fn a_wrong_copy_is_blamed_for_the_read_that_meets_it() {
    in_a_store(&["/disk0", "/disk1"], 1, async |bed| {
        bed.learn_reads().await;
        let began = bed.slow().await.len();
        for disk in &bed.disks {
            disk.inject(Fault::ReadError, 1);
        }
        for number in 0..8 {
            bed.read(number * 4096, 4096).await;
        }
        bed.disks.iter().for_each(SimDisk::stop_injections);
        let slow = bed.latest(began).await;
        assert_eq!(slow.reason, Stage::Repair.name(), "{slow:?}");
        bed
    });
}

#[test]
fn a_level_is_blamed_with_its_name() {
    in_a_store(&["/disk"], 1, async |bed| {
        bed.learn_writes().await;
        let began = bed.slow().await.len();
        let change = LevelsChange { burst_iops: Some(10), ..LevelsChange::default() };
        bed.node.manager().set("disk", change.into()).await.unwrap();
        for number in 0..20 {
            bed.write(number * 4096).await;
        }
        let slow = bed.latest(began).await;
        assert_eq!((slow.reason.as_str(), slow.detail.as_deref()), ("tokens", Some("burst_level")), "{slow:?}");
        assert_adds_up(&slow, Duration::from_millis(50));
        bed
    });
}

/// A task that takes the loop for 20 ms, in one step, as none should.
fn block(handle: &Handle) {
    let inside = handle.clone();
    let step = async move { inside.charge(Duration::from_millis(20)) };
    handle.spawn(Class::Background, "a long step", step).detach();
}

#[test]
fn a_loop_that_did_something_else_is_blamed_with_the_task() {
    // Before the request was seen, and while its append was at the disk.
    for later in [None, Some(Duration::from_micros(60))] {
        in_a_store(&["/disk"], 1, async move |bed| {
            bed.learn_writes().await;
            let began = bed.slow().await.len();
            if let Some(later) = later {
                let (handle, pause) = (bed.handle.clone(), bed.handle.sleep(later));
                let blocking = async move {
                    pause.await;
                    block(&handle);
                };
                bed.handle.spawn(Class::Io, "soon", blocking).detach();
            } else {
                block(&bed.handle);
            }
            bed.write(4096).await;
            let slow = bed.latest(began).await;
            let (reason, task) = (slow.reason.as_str(), slow.detail.as_deref());
            assert_eq!((reason, task), ("busy_loop", Some("a long step")), "{later:?}: {slow:?}");
            assert_adds_up(&slow, Duration::from_millis(15));
            bed
        });
    }
}

#[test]
fn an_overlapping_write_is_blamed() {
    in_a_store(&["/disk"], 1, async |bed| {
        bed.learn_writes().await;
        let began = bed.slow().await.len();
        let (head, payload) = (request(1, 4096, 4096), [9; 4096]);
        let writes: Vec<&[u8]> = (0..8).flat_map(|_| [&head[..], &payload[..]]).collect();
        bed.client.send(&writes).await;
        bed.client.replies(8, 0).await;
        let slow = bed.latest(began).await;
        assert_eq!(slow.reason, Stage::Order.name(), "{slow:?}");
        bed
    });
}

#[test]
fn a_client_that_does_not_take_its_replies_is_blamed() {
    in_a_store(&["/disk"], 1, async |bed| {
        let len = 1 << 20;
        for _ in 0..40 {
            bed.read(0, len).await;
        }
        let began = bed.slow().await.len();
        let head = request(0, 0, len);
        bed.client.send(&[&head[..]; 8]).await;
        bed.handle.sleep(Duration::from_secs(1)).await;
        bed.client.replies(8, len as usize).await;
        let slow = bed.latest(began).await;
        assert_eq!(slow.reason, Stage::Reply.name(), "{slow:?}");
        assert_adds_up(&slow, Duration::from_millis(900));
        bed
    });
}

#[test]
fn a_client_that_sends_half_a_write_is_blamed() {
    in_a_store(&["/disk"], 1, async |bed| {
        bed.learn_writes().await;
        let began = bed.slow().await.len();
        bed.client.send(&[&request(1, 4096, 4096), &[9; 2048]]).await;
        bed.handle.sleep(Duration::from_secs(1)).await;
        bed.client.send(&[&[9; 2048]]).await;
        bed.client.replies(1, 0).await;
        let slow = bed.latest(began).await;
        assert_eq!(slow.reason, Stage::Payload.name(), "{slow:?}");
        assert_adds_up(&slow, Duration::from_millis(990));
        bed
    });
}
