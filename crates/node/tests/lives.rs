//! The life of a segment, and that of a write through an agent, a server and the shared store (docs/ARCHITECTURE.md), pinned
//! by what says that it was passed. Change both together.
//!
//! A program of its own: tracing asks the first thread that passes a place whether anybody listens there, for all threads.
#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

#[allow(dead_code, reason = "the tests of all roles use more of it")]
#[path = "cluster/bed.rs"]
mod bed;
#[path = "over_a_stream/nbd.rs"]
mod nbd;
mod stages;

use std::time::Duration;

use base::GIB;
use control::service::Request;

use self::bed::{Bed, Role};
use self::nbd::Nbd;
use self::stages::{Passed, Stages};

/// A block that is written to the first segment of a volume.
fn write(bed: &Bed, byte: u8) {
    let (handle, address) = (bed.handle(Role::Agent, 0), bed.nbd(0));
    let inside = handle.clone();
    bed.world.block_on(&handle, async move {
        let client = Nbd::attach(&inside, &address).await.unwrap();
        client.write(0, &[byte; 4096]).await.unwrap();
        assert_eq!(client.read(0, 4096).await.unwrap(), [byte; 4096]);
    });
}

/// What happened to the first segment, and to the engine that had it.
fn of_first_segment(stages: &Stages) -> Vec<String> {
    let is_of_it = |passed: &Passed| {
        let segment = passed.fields.iter().find(|(name, _)| *name == "segment");
        segment.is_none_or(|(_, segment)| segment.ends_with("/0"))
    };
    stages.take().into_iter().filter(is_of_it).map(|passed| passed.message).collect()
}

#[test]
fn a_segment_is_created_moved_inherited_and_dropped() {
    let stages = Stages::of(&["levee::segment"]);
    let collecting = stages.clone();
    tracing::subscriber::with_default(collecting, || {
        let mut bed = Bed::new(6, 3, 4, 1);
        bed.start_all();
        bed.create("disk", GIB);
        assert_eq!(of_first_segment(&stages), ["created"]);
        write(&bed, 1);
        assert_eq!(of_first_segment(&stages), ["found"]);
        bed.ask(Request::MoveSegment { volume: "disk".into(), index: 0, to: None }).unwrap();
        bed.settle();
        assert_eq!(of_first_segment(&stages), ["released", "adopted"]);
        write(&bed, 2);
        assert_eq!(of_first_segment(&stages), ["found"]);
        // Its new owner has two, the others have one or none.
        let cluster = bed.cluster();
        let owner = cluster.servers.iter().position(|server| server.segments == 2).unwrap();
        bed.kill(Role::Server, owner);
        // Its machine refuses the manager's next connection.
        bed.world.run_for(Duration::from_millis(200));
        bed.settle();
        // From what is left of the dead engine it is released as from a living one.
        assert_eq!(of_first_segment(&stages), ["fenced", "sealed", "released", "adopted"]);
        write(&bed, 3);
        assert_eq!(of_first_segment(&stages), ["found"]);
        bed.ask(Request::Delete { name: "disk".into(), force: true }).unwrap();
        assert_eq!(of_first_segment(&stages), ["dropped"]);
    });
}

#[test]
fn a_write_goes_through_an_agent_a_server_and_the_store() {
    let stages = Stages::of(&["levee::stage"]);
    let collecting = stages.clone();
    tracing::subscriber::with_default(collecting, || {
        let mut bed = Bed::new(7, 1, 1, 1);
        bed.start_all();
        bed.create("disk", GIB);
        // The first one finds the way, and may begin a journal.
        write(&bed, 1);
        let (handle, address) = (bed.handle(Role::Agent, 0), bed.nbd(0));
        let (inside, passing) = (handle.clone(), stages.clone());
        let passed = bed.world.block_on(&handle, async move {
            let client = Nbd::attach(&inside, &address).await.unwrap();
            client.write(0, &[2; 4096]).await.unwrap();
            passing.take();
            client.write(8192, &[3; 4096]).await.unwrap();
            passing.take()
        });
        let is_about_it = |passed: &Passed| match &passed.message[..] {
            // Others ask each other, too.
            "taken" => {
                passed.fields.iter().any(|(name, kind)| *name == "kind" && (kind == "write" || kind == "append"))
            }
            _ => true,
        };
        let passed: Vec<String> = passed.into_iter().filter(is_about_it).map(|passed| passed.message).collect();
        let expected = [
            "received",
            "routed",
            "taken",
            "session",
            "slot",
            "admitted",
            "gathered",
            "append",
            "taken",
            "durable",
            "applied",
            "reply queued",
            "replies sent",
        ];
        assert_eq!(passed, expected);
    });
}
