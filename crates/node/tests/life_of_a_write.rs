//! The life of a write (docs/ARCHITECTURE.md), pinned: a whole store in the simulated world, an NBD client, and the
//! order in which the stages are passed.
//!
//! Each stage says that it was passed with a trace event of the target `levee::stage`; a subscriber of this test
//! collects them. A stage that is moved, skipped or passed too early changes the list, and the document with it.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod client;
mod stages;

use node::settings::EngineSettings;
use node::{Node, Settings};
use runtime::sim::{DiskOptions, NetworkOptions, NodeOptions, World};

use self::client::{Client, request};
use self::stages::Stages;

/// A store with a volume of 1 GiB, and a client of it. What `act` leaves in `stages` was passed by it alone.
fn in_a_store<F: Future<Output = ()> + 'static>(act: impl FnOnce(Client, Stages) -> F + 'static) {
    let world = World::new(1);
    // What was sent together arrives together: in one turn.
    world.set_network(NetworkOptions { split_one_in: 0, ..NetworkOptions::default() });
    let node = world.add_node(NodeOptions::with_disks(["/disk"], &DiskOptions::default()));
    let handle = world.start_loop(node);
    let address = world.address(node);
    let stages = Stages::of(&["levee::stage"]);
    let collecting = stages.clone();
    tracing::subscriber::with_default(collecting, || {
        world.block_on(&handle.clone(), async move {
            let mut settings = Settings { directories: vec!["/disk/store".into()], ..Settings::default() };
            settings.nbd.listen = (address, 0).into();
            settings.api.is_off = true;
            settings.engine = EngineSettings::small();
            let node = Node::start(&handle, &settings).await.unwrap();
            node.ensure_volume("disk", base::GIB).await.unwrap();
            let client = Client::attach(&handle, &node.ready().nbd, "disk").await;
            // The journal may begin with a marker, which is nobody's write.
            handle.sleep(std::time::Duration::from_secs(1)).await;
            stages.take();
            act(client, stages).await;
            node.stop().await.unwrap();
        });
    });
}

/// docs/ARCHITECTURE.md, "The life of a write": change both together.
const WRITE: [&str; 11] = [
    "received",
    "routed",
    "session",
    "slot",
    "admitted",
    "gathered",
    "append",
    "durable",
    "applied",
    "reply queued",
    "replies sent",
];

#[test]
fn a_write_passes_its_stages_in_order() {
    in_a_store(async |client, stages| {
        let payload = [7; 4096];
        client.send(&[&request(1, 64 << 10, 4096), &payload]).await;
        client.replies(1, 0).await;
        assert_eq!(stages.messages(), WRITE);
        client.send(&[&request(0, 64 << 10, 4096)]).await;
        assert_eq!(client.replies(1, 4096).await, [payload]);
        // A read comes the same way, and touches neither batch nor journal nor cache.
        assert_eq!(stages.messages(), ["received", "routed", "session", "slot", "reply queued", "replies sent"]);
    });
}

/// Two writes that one turn received share an append, and their replies share a send.
#[test]
fn writes_of_one_turn_share_an_append() {
    in_a_store(async |client, stages| {
        client.send(&[&request(1, 0, 512), &[1; 512], &request(1, 8192, 512), &[2; 512]]).await;
        client.replies(2, 0).await;
        let passed = stages.messages();
        let count = |stage: &str| passed.iter().filter(|passed| *passed == stage).count();
        for stage in WRITE {
            // The first reply does not wait for the second, so each is a send.
            let expected = if matches!(stage, "append" | "durable") { 1 } else { 2 };
            assert_eq!(count(stage), expected, "{stage}: {passed:?}");
        }
        // No reply is queued, and nothing is seen by a read, before the append is durable.
        let first = |stage: &str| passed.iter().position(|passed| passed == stage);
        let last = |stage: &str| passed.iter().rposition(|passed| passed == stage);
        assert!(last("gathered") < first("append") && first("append") < first("durable"), "{passed:?}");
        assert!(first("durable") < first("applied") && last("applied") < last("reply queued"), "{passed:?}");
        assert!(
            first("durable") < first("reply queued") && first("reply queued") < first("replies sent"),
            "{passed:?}"
        );
    });
}
