//! A disk swallows the record of a volume's creation, and says that it is durable. The store has data of a volume then
//! that its table does not know, and must not give the id of that volume to another one.

use std::net::IpAddr;
use std::time::Duration;

use base::GIB;
use node::inspect::inspect;
use node::settings::EngineSettings;
use node::{Node, Settings};
use runtime::Handle;
use runtime::sim::{DiskOptions, Fault, NodeOptions, World};

use crate::client::{Client, request};

fn settings(address: IpAddr, accept_data_loss: bool) -> Settings {
    let mut settings = Settings { directories: vec!["/disk/store".into()], accept_data_loss, ..Settings::default() };
    settings.nbd.listen = (address, 0).into();
    settings.api.is_off = true;
    settings.engine = EngineSettings::small();
    settings
}

async fn write(handle: &Handle, node: &Node, volume: &str, value: u8) -> Client {
    let client = Client::attach(handle, &node.ready().nbd, volume).await;
    client.send(&[&request(1, 8192, 4096), &[value; 4096]]).await;
    client.replies(1, 0).await;
    client
}

async fn assert_reads(handle: &Handle, node: &Node, volume: &str, value: u8) {
    let client = Client::attach(handle, &node.ready().nbd, volume).await;
    client.send(&[&request(0, 8192, 4096)]).await;
    assert_eq!(client.replies(1, 4096).await, [[value; 4096]], "{volume}");
}

#[test]
fn the_id_of_a_volume_whose_creation_was_lost_is_not_given_out_again() {
    let world = World::new(1);
    let machine = world.add_node(NodeOptions::with_disks(["/disk"], &DiskOptions::default()));
    let (address, disk) = (world.address(machine), world.disk(machine, "/disk"));

    let handle = world.start_loop(machine);
    world.block_on(&handle.clone(), async move {
        let node = Node::start(&handle, &settings(address, false)).await.unwrap();
        node.ensure_volume("kept", GIB).await.unwrap();
        write(&handle, &node, "kept", 1).await;
        // Until nobody else writes.
        handle.sleep(Duration::from_secs(1)).await;
        disk.inject(Fault::LostWrite, 1);
        node.ensure_volume("lost", GIB).await.unwrap();
        assert!(!disk.has_injections());
        // Nor is anything left of the attachment: its record would show that one before it is missing, as that of the
        // client's end or of a clean stop would.
        disk.inject(Fault::LostWrite, 1);
        let client = write(&handle, &node, "lost", 2).await;
        assert!(!disk.has_injections());
        std::mem::forget((client, node));
    });

    let handle = world.restart(machine);
    world.block_on(&handle.clone(), async move {
        let found = inspect(&handle, &["/disk/store".into()], |_, _| ()).await.unwrap();
        let refused = Node::start(&handle, &settings(address, false)).await.err().unwrap();
        assert!(refused.message.contains("volume id 2") && refused.message.contains("--accept-data-loss"), "{refused}");
        assert_eq!(found.refusals, [refused.message]);
    });

    let handle = world.restart(machine);
    world.block_on(&handle.clone(), async move {
        let node = Node::start(&handle, &settings(address, true)).await.unwrap();
        node.ensure_volume("new", GIB).await.unwrap();
        assert_reads(&handle, &node, "kept", 1).await;
        assert_reads(&handle, &node, "new", 0).await;
        node.stop().await.unwrap();
    });

    let handle = world.restart(machine);
    world.block_on(&handle.clone(), async move {
        let found = inspect(&handle, &["/disk/store".into()], |_, _| ()).await.unwrap();
        assert!(found.is_intact() && found.notes.is_empty(), "{found:?}");
        assert_eq!(found.volumes.iter().map(|volume| volume.id).collect::<Vec<_>>(), [1, 3]);
        let node = Node::start(&handle, &settings(address, false)).await.unwrap();
        write(&handle, &node, "new", 3).await;
        assert_reads(&handle, &node, "kept", 1).await;
        assert_reads(&handle, &node, "new", 3).await;
        assert_eq!(node.audit().await.unwrap(), Vec::<String>::new());
        node.stop().await.unwrap();
    });
}
