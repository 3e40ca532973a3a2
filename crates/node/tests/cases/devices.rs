//! Disks of virtual machines that were asked for while the store ran are there again after a restart, and after a kill; those
//! of a volume that is gone are not, though another one has its name.

use std::path::PathBuf;
use std::time::Duration;

use base::{ErrorKind, GIB, Result, VolumeId};
use control::service::{Reply, Request};
use node::settings::{EngineSettings, VhostUserSettings};
use node::{Node, Settings};
use runtime::Handle;
use runtime::sim::{DiskOptions, Fault, NodeId, NodeOptions, World};

/// A machine with a store that is started again and again.
struct Bed {
    world: World,
    machine: NodeId,
    disks: &'static [&'static str],
    configured: Vec<VhostUserSettings>,
    accept_missing: bool,
}

impl Bed {
    fn new() -> Bed {
        Bed::on(1, &["/disk"])
    }

    fn on(seed: u64, disks: &'static [&'static str]) -> Bed {
        let world = World::new(seed);
        let machine = world.add_node(NodeOptions::with_disks(disks.iter().copied(), &DiskOptions::default()));
        world.start_loop(machine);
        Bed { world, machine, disks, configured: Vec::new(), accept_missing: false }
    }

    /// Kills what runs, starts the store, and does something with it.
    fn live(&self, work: impl AsyncFnOnce(&Handle, &Node) + 'static) {
        let handle = self.world.restart(self.machine);
        let directories = self.disks.iter().map(|disk| format!("{disk}/store").into()).collect();
        let mut settings = Settings { directories, copies: Some(1), ..Settings::default() };
        settings.accept_missing_directories = self.accept_missing;
        settings.nbd.listen = (self.world.address(self.machine), 0).into();
        settings.api.is_off = true;
        settings.engine = EngineSettings::small();
        settings.vhost_user = self.configured.clone();
        self.world.block_on(&handle.clone(), async move {
            let node = Node::start(&handle, &settings).await.unwrap();
            for volume in ["a", "b"] {
                node.ensure_volume(volume, GIB).await.unwrap();
            }
            node.serve_devices().await.unwrap();
            work(&handle, &node).await;
            std::mem::forget(node);
        });
    }
}

fn path(name: &str) -> PathBuf {
    format!("/run/{name}.sock").into()
}

async fn attach(node: &Node, volume: &str, at: &str) -> Result<Reply> {
    node.manager().handle(Request::AttachDevice { volume: volume.into(), path: path(at) }).await
}

async fn detach(node: &Node, at: &str) -> Result<Reply> {
    node.manager().handle(Request::DetachDevice { path: path(at) }).await
}

async fn there(node: &Node) -> Vec<(String, PathBuf)> {
    let Reply::Devices(devices) = node.manager().handle(Request::Devices).await.unwrap() else { panic!() };
    devices.into_iter().map(|device| (device.volume, device.path)).collect()
}

#[test]
fn what_was_asked_for_is_there_after_a_kill_until_it_is_ended() {
    let bed = Bed::new();
    bed.live(async |_, node| {
        assert!(there(node).await.is_empty());
        attach(node, "a", "one").await.unwrap();
        attach(node, "b", "two").await.unwrap();
        attach(node, "b", "two").await.unwrap();
        assert_eq!(attach(node, "b", "one").await.unwrap_err().kind, ErrorKind::Conflict);
        assert_eq!(attach(node, "none", "three").await.unwrap_err().kind, ErrorKind::NotFound);
    });
    bed.live(async |_, node| {
        assert_eq!(there(node).await, [("a".into(), path("one")), ("b".into(), path("two"))]);
        detach(node, "one").await.unwrap();
        assert_eq!(detach(node, "one").await.unwrap_err().kind, ErrorKind::NotFound);
    });
    bed.live(async |_, node| assert_eq!(there(node).await, [("b".into(), path("two"))]));
}

#[test]
fn what_the_configuration_names_is_there_without_it_no_more() {
    let mut bed = Bed::new();
    bed.configured = vec![VhostUserSettings { volume: "a".into(), path: path("one") }];
    bed.live(async |_, node| {
        attach(node, "a", "one").await.unwrap();
        attach(node, "b", "two").await.unwrap();
    });
    bed.configured.clear();
    bed.live(async |_, node| assert_eq!(there(node).await, [("b".into(), path("two"))]));
}

#[test]
fn a_machine_does_not_get_another_volume_of_the_same_name() {
    let bed = Bed::new();
    bed.live(async |_, node| {
        attach(node, "a", "one").await.unwrap();
        node.manager().handle(Request::Delete { name: "a".into(), force: true }).await.unwrap();
    });
    // It has been made anew by then.
    for _ in 0..2 {
        bed.live(async |_, node| assert!(there(node).await.is_empty()));
    }
}

/// Where the volume table is lost with what an older directory does not have, which somebody accepted, numbers are given out again.
#[test]
fn a_list_that_is_older_than_the_store_is_not_believed() {
    let mut given_again = 0;
    for seed in 0..8 {
        let mut bed = Bed::on(seed, &["/disk0", "/disk1"]);
        bed.live(async |_, node| drop(attach(node, "a", "one").await.unwrap()));
        let [disk, other] = ["/disk0", "/disk1"].map(|path| bed.world.disk(bed.machine, path));
        let before = disk.snapshot();
        // What is made from now on is made on the first one.
        other.set_capacity(other.used() + base::MIB);
        for _ in 0..2 {
            let delete = || Request::Delete { name: "a".into(), force: true };
            bed.live(async move |_, node| drop(node.manager().handle(delete()).await.unwrap()));
        }
        disk.restore(&before);
        bed.accept_missing = true;
        for _ in 0..2 {
            let (sender, id) = runtime::sync::oneshot();
            bed.live(async move |_, node| {
                assert_eq!(there(node).await, []);
                sender.send(node.manager().show("a").unwrap().row.id);
            });
            given_again += u32::from(bed.world.block_on(&bed.world.start_loop(bed.machine), id) == Some(VolumeId(1)));
            bed.accept_missing = false;
        }
    }
    assert!(given_again > 0, "nothing was tried");
}

#[test]
fn what_would_be_forgotten_is_refused_and_a_broken_list_ends_nothing() {
    let bed = Bed::new();
    let disk = bed.world.disk(bed.machine, "/disk");
    bed.live(async move |handle, node| {
        attach(node, "a", "one").await.unwrap();
        // Until nobody else writes.
        handle.sleep(Duration::from_secs(1)).await;
        disk.inject(Fault::WriteError, 1);
        let refused = attach(node, "b", "two").await.unwrap_err();
        assert!(refused.message.contains("devices.toml") && refused.kind == ErrorKind::Io, "{refused}");
        assert_eq!(there(node).await, [("a".into(), path("one"))]);
    });
    let disk = bed.world.disk(bed.machine, "/disk");
    bed.live(async |_, node| assert_eq!(there(node).await, [("a".into(), path("one"))]));
    let (list, _) = disk.files().into_iter().find(|(path, _)| path.ends_with("devices.toml")).unwrap();
    disk.flip_bit(&list, 0, 6);
    bed.live(async |_, node| {
        assert!(there(node).await.is_empty());
        attach(node, "b", "two").await.unwrap();
    });
    bed.live(async |_, node| assert_eq!(there(node).await, [("b".into(), path("two"))]));
}
