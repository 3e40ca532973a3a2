//! A store with several loops: every segment lives in the shard of one of them, and a client does not notice.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use base::limits::MEMORY_MIN;
use base::{GIB, KIB};
use node::inspect::inspect;
use node::settings::EngineSettings;
use node::{Node, Settings};
use runtime::Handle;
use runtime::sim::{DiskOptions, NodeId, NodeOptions, SimDisk, World};
use wire::api::Size;

use crate::client::{Client, request};

/// The stripe unit: neighbouring ones lie in different segments.
const SECTOR: u64 = 128 * KIB;

fn settings(address: IpAddr, disks: &[&str], loops: Option<u8>) -> Settings {
    let directories = disks.iter().map(|disk| Path::new(disk).join("store")).collect();
    let mut settings = Settings { directories, memory: Size::Bytes(4 * MEMORY_MIN), ..Settings::default() };
    settings.nbd.listen = (address, 0).into();
    settings.api.is_off = true;
    settings.engine = EngineSettings::small();
    settings.event_loop.count = loops;
    settings
}

struct Machine {
    world: World,
    node: NodeId,
    address: IpAddr,
    disks: Vec<&'static str>,
}

impl Machine {
    fn new(seed: u64, disks: &[&'static str]) -> Machine {
        let world = World::new(seed);
        let node = world.add_node(NodeOptions::with_disks(disks.iter().copied(), &DiskOptions::default()));
        Machine { address: world.address(node), world, node, disks: disks.to_vec() }
    }

    fn settings(&self, loops: Option<u8>) -> Settings {
        settings(self.address, &self.disks, loops)
    }

    fn disk(&self, path: &str) -> SimDisk {
        self.world.disk(self.node, path)
    }

    /// Starts the machine's process anew and does something there.
    fn live<T: 'static, F: Future<Output = T> + 'static>(&self, act: impl FnOnce(Handle) -> F) -> T {
        let handle = self.world.restart(self.node);
        self.world.block_on(&handle, act(handle.clone()))
    }

    /// Why a start is refused.
    fn refusal(&self, loops: Option<u8>) -> String {
        let settings = self.settings(loops);
        self.live(|handle| async move { Node::start(&handle, &settings).await.err().unwrap().message })
    }

    /// Which shards have files of a kind with something in it.
    fn shards_with(&self, prefix: &str) -> Vec<String> {
        let shard = |path: &Path| -> Option<String> {
            let is_wanted = path.file_name()?.to_str()?.starts_with(prefix);
            is_wanted.then(|| path.parent()?.parent()?.file_name()?.to_str().map(str::to_owned))?
        };
        let files = self.disk(self.disks[0]).files();
        let mut shards: Vec<String> = files.iter().filter_map(|(path, _)| shard(path)).collect();
        shards.sort();
        shards.dedup();
        shards
    }
}

/// Writes to eight data sectors, which are in four segments.
async fn write(handle: &Handle, node: &Node, volume: &str, value: u8) -> Client {
    let client = Client::attach(handle, &node.ready().nbd, volume).await;
    for sector in 0..8 {
        client.send(&[&request(1, sector * SECTOR + 4096, 4096), &[value + sector as u8; 4096]]).await;
        client.replies(1, 0).await;
    }
    client
}

async fn assert_reads(handle: &Handle, node: &Node, volume: &str, value: u8) {
    let client = Client::attach(handle, &node.ready().nbd, volume).await;
    for sector in 0..8 {
        client.send(&[&request(0, sector * SECTOR + 4096, 4096)]).await;
        assert_eq!(client.replies(1, 4096).await, [[value + sector as u8; 4096]], "{volume}, sector {sector}");
    }
}

#[test]
fn what_was_written_is_there_after_a_crash_and_after_a_clean_stop() {
    for loops in [2, 4] {
        let machine = Machine::new(loops.into(), &["/disk0", "/disk1"]);
        let settings = machine.settings(Some(loops));
        machine.live(|handle| async move {
            let node = Node::start(&handle, &settings).await.unwrap();
            node.ensure_volume("first", GIB).await.unwrap();
            node.ensure_volume("second", GIB).await.unwrap();
            let clients = [write(&handle, &node, "first", 1).await, write(&handle, &node, "second", 101).await];
            std::mem::forget((clients, node));
        });
        assert_eq!(machine.shards_with("journal-").len(), usize::from(loops));
        // Without a number it is the one that the store has.
        for (end_cleanly, wanted) in [(true, None), (false, Some(loops)), (true, None)] {
            let settings = machine.settings(wanted);
            machine.live(|handle| async move {
                let node = Node::start(&handle, &settings).await.unwrap();
                assert_reads(&handle, &node, "first", 1).await;
                assert_reads(&handle, &node, "second", 101).await;
                assert_eq!(node.audit().await.unwrap(), Vec::<String>::new());
                assert_eq!(node.directories().await.len(), 2 * usize::from(loops));
                node.fairness()().unwrap();
                match end_cleanly {
                    true => node.stop().await.unwrap(),
                    false => std::mem::forget(node),
                }
            });
        }
        let directories = machine.settings(None).directories;
        let found = machine.live(|handle| async move { inspect(&handle, &directories, |_, _| ()).await.unwrap() });
        assert!(found.is_intact(), "{:?} {:?}", found.damage, found.refusals);
        assert_eq!((found.segments.len(), found.volumes[0].data_bytes), (8, 8 * 4096));
        assert_eq!(machine.shards_with("data-").len(), usize::from(loops));
    }
}

/// Every loop has clients of each volume; what one wrote the others read; a deletion and a stop reach all of them.
#[test]
fn clients_are_on_all_loops() {
    let machine = Machine::new(5, &["/disk0"]);
    let settings = machine.settings(Some(4));
    machine.live(|handle| async move {
        let node = Node::start(&handle, &settings).await.unwrap();
        let mut clients = Vec::new();
        for volume in ["gone", "kept"] {
            node.ensure_volume(volume, GIB).await.unwrap();
            for _ in 0..4 {
                clients.push(write(&handle, &node, volume, 1).await);
            }
        }
        let connections = node.connections();
        assert_eq!(connections(), [2, 2, 2, 2]);
        for client in &clients {
            for sector in 0..8 {
                client.send(&[&request(0, sector * SECTOR + 4096, 4096)]).await;
                assert_eq!(client.replies(1, 4096).await, [[1 + sector as u8; 4096]]);
            }
        }
        node.manager().delete("gone", true).await.unwrap();
        assert_eq!(connections(), [1, 1, 1, 1]);
        assert_reads(&handle, &node, "kept", 1).await;
        node.stop().await.unwrap();
        assert_eq!(connections(), [0; 4]);
    });
    let settings = machine.settings(None);
    machine.live(|handle| async move {
        let node = Node::start(&handle, &settings).await.unwrap();
        assert_reads(&handle, &node, "kept", 1).await;
        node.stop().await.unwrap();
    });
}

#[test]
fn a_deleted_volume_leaves_nothing_in_any_shard() {
    let machine = Machine::new(7, &["/disk0"]);
    let settings = machine.settings(Some(2));
    machine.live(|handle| async move {
        let node = Node::start(&handle, &settings).await.unwrap();
        node.ensure_volume("gone", GIB).await.unwrap();
        let client = write(&handle, &node, "gone", 1).await;
        drop(client);
        node.stop().await.unwrap();
    });
    assert_eq!(machine.shards_with("data-").len(), 2);
    let settings = machine.settings(None);
    machine.live(|handle| async move {
        let node = Node::start(&handle, &settings).await.unwrap();
        let (_, is_done) = node.manager().delete("gone", true).await.unwrap();
        assert!(is_done);
        node.ensure_volume("new", GIB).await.unwrap();
        handle.sleep(Duration::from_secs(5)).await;
        node.stop().await.unwrap();
    });
    assert_eq!(machine.shards_with("data-"), Vec::<String>::new());
    assert_eq!(machine.shards_with("table-"), Vec::<String>::new());
}

#[test]
fn a_store_keeps_its_number_of_loops() {
    for (made_for, asked_for) in [(2, 1), (1, 2), (2, 4), (4, 2)] {
        let machine = Machine::new(9, &["/disk0"]);
        let settings = machine.settings(Some(made_for));
        machine.live(|handle| async move { Node::start(&handle, &settings).await.unwrap().stop().await.unwrap() });
        let refusal = machine.refusal(Some(asked_for));
        let expected = format!("was made for {made_for} loops, which stays so: start it with --loops {made_for}");
        assert!(refusal.contains(&expected), "{refusal}");
        let settings = machine.settings(None);
        machine.live(|handle| async move { Node::start(&handle, &settings).await.unwrap().stop().await.unwrap() });
    }
}

#[test]
fn a_shard_that_lost_its_files_is_not_made_anew() {
    let machine = Machine::new(11, &["/disk0"]);
    let settings = machine.settings(Some(2));
    machine.live(|handle| async move {
        let node = Node::start(&handle, &settings).await.unwrap();
        node.ensure_volume("kept", GIB).await.unwrap();
        let client = write(&handle, &node, "kept", 1).await;
        std::mem::forget((client, node));
    });
    // Its folder is away, as after a careless removal.
    let moved = machine.live(|handle| async move {
        let folder = Path::new("/disk0/store/shard-1");
        let names = handle.read_directory(&folder.join("files")).await.unwrap();
        for name in &names {
            handle.remove(&folder.join("files").join(&name.name)).await.unwrap();
        }
        for name in ["superblock", "lock"] {
            handle.remove(&folder.join(name)).await.unwrap();
        }
        for path in [folder.join("files"), folder.to_owned()] {
            handle.sync_directory(&path).await.unwrap();
        }
        names.len()
    });
    assert!(moved > 0);
    let refusal = machine.refusal(None);
    assert!(refusal.contains("/disk0/store/shard-1") && refusal.contains("bring back"), "{refusal}");
}

#[test]
fn a_store_that_lost_its_first_shard_is_not_made_anew_beside_the_others() {
    let machine = Machine::new(12, &["/disk0"]);
    let settings = machine.settings(Some(2));
    machine.live(|handle| async move {
        let node = Node::start(&handle, &settings).await.unwrap();
        node.ensure_volume("kept", GIB).await.unwrap();
        drop(write(&handle, &node, "kept", 1).await);
        node.stop().await.unwrap();
    });
    machine.live(|handle| async move {
        let store = Path::new("/disk0/store");
        for name in handle.read_directory(&store.join("files")).await.unwrap() {
            handle.remove(&store.join("files").join(&name.name)).await.unwrap();
        }
        for name in ["superblock", "lock"] {
            handle.remove(&store.join(name)).await.unwrap();
        }
        for path in [store.join("files"), store.to_owned()] {
            handle.sync_directory(&path).await.unwrap();
        }
    });
    // As a store with one loop, and as what an interrupted creation may have left.
    let refusal = machine.refusal(None);
    assert!(refusal.contains("it contains 'shard-1'"), "{refusal}");
    let refusal = machine.refusal(Some(2));
    assert!(refusal.contains("--accept-data-loss"), "{refusal}");
}

/// A directory that is new to the store becomes one of every shard.
#[test]
fn a_new_directory_joins_all_shards() {
    let machine = Machine::new(13, &["/disk0", "/disk1"]);
    let settings = settings(machine.address, &["/disk0"], Some(2));
    machine.live(|handle| async move {
        let node = Node::start(&handle, &settings).await.unwrap();
        node.ensure_volume("kept", GIB).await.unwrap();
        drop(write(&handle, &node, "kept", 1).await);
        node.stop().await.unwrap();
        handle.create_directory(Path::new("/disk1/store")).await.unwrap();
    });
    let settings = machine.settings(None);
    machine.live(|handle| async move {
        let node = Node::start(&handle, &settings).await.unwrap();
        assert_reads(&handle, &node, "kept", 1).await;
        let healthy = node.directories().await.iter().filter(|directory| directory.state == "healthy").count();
        assert_eq!((healthy, node.ready().notes.len()), (4, 0), "{:?}", node.ready().notes);
        node.stop().await.unwrap();
    });
}

#[test]
fn a_store_whose_making_was_interrupted_is_made_by_the_next_start() {
    for millis in 0..40 {
        let machine = Machine::new(100 + millis, &["/disk0", "/disk1"]);
        let settings = machine.settings(Some(4));
        let handle = machine.world.restart(machine.node);
        let inside = handle.clone();
        let first = settings.clone();
        let starting = async move { Node::start(&inside, &first).await.map(std::mem::forget) };
        let node = machine.node;
        machine.world.after(Duration::from_micros(250 * millis), move |world| match millis % 2 {
            0 => world.kill(node),
            _ => world.power_loss(node),
        });
        handle.spawn(runtime::Class::Io, "first start", starting).detach();
        machine.world.run_for(Duration::from_micros(250 * millis) + Duration::from_secs(1));
        machine.live(|handle| async move {
            let node = Node::start(&handle, &settings).await.unwrap();
            node.ensure_volume("new", GIB).await.unwrap();
            let client = write(&handle, &node, "new", 1).await;
            std::mem::forget((client, node));
        });
        let settings = machine.settings(None);
        machine.live(|handle| async move {
            let node = Node::start(&handle, &settings).await.unwrap();
            assert_reads(&handle, &node, "new", 1).await;
        });
    }
}
