//! The life of a write (docs/ARCHITECTURE.md), pinned: a whole store in the simulated world, an NBD client, and the
//! order in which the stages are passed.
//!
//! Each stage says that it was passed with a trace event of the target `levee::stage`; a subscriber of this test
//! collects them. A stage that is moved, skipped or passed too early changes the list, and the document with it.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod client;

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use node::settings::EngineSettings;
use node::{Node, Settings};
use runtime::sim::{DiskOptions, NetworkOptions, NodeOptions, World};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, span};

use self::client::{Client, request};

/// Stages in the order in which they were passed.
#[derive(Clone, Default)]
struct Stages(Arc<Mutex<Vec<String>>>);

impl Stages {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl tracing::Subscriber for Stages {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "levee::stage"
    }

    fn event(&self, event: &Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// A store with a volume of 1 GiB, and a client of it. What `act` leaves in `stages` was passed by it alone.
fn in_a_store<F: Future<Output = ()> + 'static>(act: impl FnOnce(Client, Stages) -> F + 'static) {
    let world = World::new(1);
    // What was sent together arrives together: in one turn.
    world.set_network(NetworkOptions { split_one_in: 0, ..NetworkOptions::default() });
    let node = world.add_node(NodeOptions::with_disks(["/disk"], &DiskOptions::default()));
    let handle = world.start_loop(node);
    let address = world.address(node);
    let stages = Stages::default();
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
        assert_eq!(stages.take(), WRITE);
        client.send(&[&request(0, 64 << 10, 4096)]).await;
        assert_eq!(client.replies(1, 4096).await, [payload]);
        // A read comes the same way, and touches neither batch nor journal nor cache.
        assert_eq!(stages.take(), ["received", "routed", "session", "slot", "reply queued", "replies sent"]);
    });
}

/// Two writes that one turn received share an append, and their replies share a send.
#[test]
fn writes_of_one_turn_share_an_append() {
    in_a_store(async |client, stages| {
        client.send(&[&request(1, 0, 512), &[1; 512], &request(1, 8192, 512), &[2; 512]]).await;
        client.replies(2, 0).await;
        let passed = stages.take();
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
