//! A directory comes back that was away: what is written from then on has a copy there, also what goes on in the middle of a file.

use std::net::IpAddr;
use std::time::Duration;

use base::GIB;
use node::settings::EngineSettings;
use node::{Node, Settings};
use runtime::Handle;
use runtime::sim::{DiskOptions, NodeOptions, World};

use crate::client::{Client, request};

const BOTH: &[&str] = &["/a/store", "/b/store"];
const SMALL: usize = 4096;
const LARGE: usize = 128 << 10;

fn settings(address: IpAddr, directories: &[&str]) -> Settings {
    let mut settings = Settings {
        directories: directories.iter().map(Into::into).collect(),
        copies: Some(directories.len() as u8),
        accept_missing_directories: directories.len() < BOTH.len(),
        ..Settings::default()
    };
    settings.nbd.listen = (address, 0).into();
    settings.api.is_off = true;
    settings.engine = EngineSettings::small();
    settings
}

async fn write(client: &Client, offset: u64, value: u8, len: usize) {
    client.send(&[&request(1, offset, len as u32), &vec![value; len]]).await;
    client.replies(1, 0).await;
}

async fn assert_reads(handle: &Handle, node: &Node, offset: u64, value: u8, len: usize) {
    let client = Client::attach(handle, &node.ready().nbd, "v").await;
    client.send(&[&request(0, offset, len as u32)]).await;
    assert!(client.replies(1, len).await[0].iter().all(|byte| *byte == value), "what was written at {offset}");
}

/// Written in that order: with both directories, with one, and with both again. Then the one that was there all the time is gone.
#[test]
fn what_is_written_after_a_directory_came_back_is_there_too() {
    let world = World::new(1);
    let machine = world.add_node(NodeOptions::with_disks(["/a", "/b"], &DiskOptions::default()));
    let (address, disk) = (world.address(machine), world.disk(machine, "/b"));
    let writes = [
        [(0, 1, SMALL), (1 << 20, 2, LARGE)],
        [(2 << 20, 3, SMALL), (3 << 20, 4, LARGE)],
        [(4 << 20, 5, SMALL), (5 << 20, 6, LARGE)],
    ];
    let handle = world.start_loop(machine);
    world.block_on(&handle.clone(), async move {
        let node = Node::start(&handle, &settings(address, BOTH)).await.unwrap();
        node.ensure_volume("v", GIB).await.unwrap();
        let client = Client::attach(&handle, &node.ready().nbd, "v").await;
        for (at, writes) in writes.into_iter().enumerate() {
            match at {
                1 => disk.vanish(),
                2 => {
                    disk.come_back();
                    // It is found, and gets what it lacks.
                    handle.sleep(Duration::from_secs(120)).await;
                }
                _ => {}
            }
            for (offset, value, len) in writes {
                write(&client, offset, value, len).await;
            }
        }
        // It is killed.
        std::mem::forget((client, node));
    });
    let handle = world.restart(machine);
    world.block_on(&handle.clone(), async move {
        let node = Node::start(&handle, &settings(address, &BOTH[1..])).await.unwrap();
        for (offset, value, len) in writes.into_iter().flatten() {
            assert_reads(&handle, &node, offset, value, len).await;
        }
        node.stop().await.unwrap();
    });
}
