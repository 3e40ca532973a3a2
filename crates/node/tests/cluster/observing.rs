//! What people are told of several servers: why I/O waits, what was counted, where clients connect; by whoever answers.

use std::time::Duration;

use base::GIB;
use control::http::{explanation, status};
use control::levels::LevelsChange;
use control::metrics::render;
use control::service::{CreateVolume, Reply, Request};
use wire::api;
use wire::observe::Snapshot;

use super::bed::{Bed, Role};
use super::nbd::Nbd;
use super::{Clients, MS};

fn observed(bed: &Bed) -> Snapshot {
    let Reply::Snapshot(snapshot) = bed.ask(Request::Observe).unwrap() else { panic!("a snapshot") };
    *snapshot
}

fn explained(bed: &Bed, name: &str) -> api::Explanation {
    let Reply::Explained(view, explained) = bed.ask(Request::Explain(name.into())).unwrap() else { panic!("reasons") };
    explanation(view, *explained)
}

fn uris(bed: &Bed) -> Vec<String> {
    let Reply::Volumes(views) = bed.ask(Request::List).unwrap() else { panic!("volumes") };
    views[0].nbd.to_vec()
}

/// Writes `count` blocks that lie in all segments of a volume, and reads them.
fn write_and_read(bed: &Bed, agent: usize, count: u64) {
    let (handle, address) = (bed.handle(Role::Agent, agent), bed.nbd(agent));
    let inside = handle.clone();
    bed.world.block_on(&handle, async move {
        let client = Nbd::attach(&inside, &address).await.unwrap();
        for number in 0..count {
            // The stripe unit: the next one is in the next segment.
            let offset = number * (128 << 10);
            client.write(offset, &[number as u8; 4096]).await.unwrap();
            assert_eq!(client.read(offset, 4096).await.unwrap(), [number as u8; 4096]);
        }
    });
}

/// How many requests of a kind are in the metrics under these labels.
fn counted(page: &str, start: &str) -> Vec<u64> {
    let of = page.lines().filter(|line| line.starts_with(start));
    of.map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect()
}

#[test]
fn whoever_asks_is_told_what_a_throttled_volume_waits_for() {
    let mut bed = Bed::new(11, 3, 3, 1);
    bed.start_all();
    bed.create("disk", GIB);
    let levels = LevelsChange { burst_iops: Some(200), ..LevelsChange::default() };
    bed.ask(Request::Set { name: "disk".into(), change: levels.into() }).unwrap();
    let clients = Clients::start(&bed, 4);
    bed.world.run_for(Duration::from_secs(2));
    let found = explained(&bed, "disk");
    assert_eq!((found.waits[0].reason.as_str(), found.clients), ("burst_level", 4), "{found:?}");
    assert!(found.waits[0].requests > 10 && found.waits[0].total_ns > 0, "{found:?}");
    // Every engine that has a part of it is there, and what it says is what all of them say together.
    let segments: Vec<usize> = found.engines.iter().map(|engine| engine.segments).collect();
    assert_eq!((segments.len(), segments.iter().sum::<usize>()), (3, 4), "{found:?}");
    let sum = |of: fn(&api::ExplainedEngine) -> u64| found.engines.iter().map(of).sum::<u64>();
    assert_eq!(sum(|engine| engine.started_requests), found.started_requests);
    // Its level is the agent's to hold: no server does so again.
    let waited = |engine: &api::ExplainedEngine| engine.waits.iter().map(|wait| wait.requests).sum();
    assert_eq!((sum(waited), found.waits.len()), (0, 1), "{found:?}");
    let page = render(&observed(&bed));
    let held = "levee_throttled_requests_total{agent=\"agent-0\",volume=\"disk\",reason=\"burst_level\"}";
    assert!(counted(&page, held)[0] > 10, "{page}");
    let held = "levee_tenant_held_total{agent=\"agent-0\",tenant=\"disk\",reason=\"burst_level\"}";
    assert!(counted(&page, held)[0] > 10, "{page}");
    assert!(found.engines.iter().all(|engine| engine.admission.is_some() && engine.silent.is_none()), "{found:?}");
    // What the client waited for is known to the agent.
    let write = found.latency.iter().find(|latency| latency.operation == "write").unwrap();
    assert!(write.requests > 0 && write.p99_ns > 1_000_000, "{write:?}");
    assert_eq!(
        found.slow_reasons.iter().find(|slow| slow.reason == "tokens").map(|slow| slow.requests > 0),
        Some(true)
    );
    clients.end(&bed);
}

#[test]
fn counters_of_a_volume_on_several_servers_add_up() {
    let mut bed = Bed::new(12, 1, 3, 2);
    bed.start_all();
    bed.create("disk", GIB);
    write_and_read(&bed, 0, 40);
    write_and_read(&bed, 1, 20);
    let Reply::Status(snapshot, volumes) = bed.ask(Request::Status).unwrap() else { panic!("a status") };
    let shown = status(&snapshot, &volumes, vec![], String::new());
    let of = |operation: &str| {
        let traffic = shown.traffic[0].operations.iter().find(|found| found.operation == operation).unwrap();
        (traffic.requests, traffic.bytes, traffic.latency_ns.iter().map(|(_, count)| count).sum::<u64>())
    };
    assert_eq!((of("write"), of("read")), ((60, 60 * 4096, 60), (60, 60 * 4096, 60)));
    // By engine: each has done a part.
    let engines: Vec<_> =
        shown.cluster.iter().flat_map(|cluster| &cluster.servers).flat_map(|server| &server.engines).collect();
    let written = |engine: &&api::Engine| {
        let work = engine.work.as_ref().unwrap();
        work.operations.iter().find(|found| found.operation == "write").unwrap().requests
    };
    let written: Vec<u64> = engines.iter().map(written).collect();
    assert!(written.len() == 3 && written.iter().all(|count| *count > 0), "{written:?}");
    assert_eq!(written.iter().sum::<u64>(), 60);
    assert!(shown.memory.limit_bytes > 0 && shown.space.used_bytes > 0 && shown.is_healthy, "{shown:?}");
    // The metrics have each process by itself.
    let page = render(&snapshot);
    let by_agent = |agent: &str| {
        counted(&page, &format!("levee_volume_requests_total{{agent=\"{agent}\",volume=\"disk\",operation=\"write\""))
    };
    assert_eq!((by_agent("agent-0"), by_agent("agent-1")), (vec![40], vec![20]));
    let served: Vec<u64> = (0..3)
        .flat_map(|index| counted(&page, &format!("levee_served_requests_total{{server=\"server-{index}\"")))
        .collect();
    assert_eq!(served.iter().sum::<u64>(), 120);
    assert_eq!(counted(&page, "levee_engine_answers{"), [1, 1, 1]);
}

/// An engine that is cut off answers nobody; it is declared dead only when its lease has ended.
#[test]
fn an_engine_that_does_not_answer_holds_nobody_up() {
    let mut bed = Bed::new(13, 1, 3, 1);
    bed.lease_ms = 10_000;
    bed.start_all();
    bed.create("disk", GIB);
    write_and_read(&bed, 0, 12);
    bed.cut_off(Role::Server, 1);
    let clock = bed.handle(Role::Manager, 0);
    let begun = clock.now();
    let snapshot = observed(&bed);
    let took = clock.now() - begun;
    assert!(took <= 1_100 * MS, "{took:?}");
    let page = render(&snapshot);
    assert_eq!(counted(&page, "levee_engine_answers{server=\"server-1\""), [0], "{page}");
    assert_eq!(counted(&page, "levee_served_requests_total{server=\"server-1\""), [0; 0]);
    assert!(!counted(&page, "levee_served_requests_total{server=\"server-0\"").is_empty());
    assert_eq!(snapshot.scrub.silent_engines, 1);
    let shown = status(&snapshot, &[], vec![], String::new());
    let mute = shown.problems.iter().find(|problem| problem.kind == "server_mute").unwrap();
    assert!(mute.message.starts_with("server-1"), "{mute:?}");
    let begun = clock.now();
    let found = explained(&bed, "disk");
    let took = clock.now() - begun;
    assert!(took <= 1_100 * MS, "{took:?}");
    let engine = found.engines.iter().find(|engine| engine.server == "server-1").unwrap();
    assert!(engine.silent.is_some() && engine.segments > 0, "{found:?}");
    // It is dead by and by, and then nobody waits for it any more.
    bed.wait("it is gone", |bed| bed.cluster().servers.iter().all(|server| server.name != "server-1"));
    let begun = clock.now();
    let snapshot = observed(&bed);
    assert!(clock.now() - begun < 100 * MS && snapshot.scrub.silent_engines == 0);
}

/// An agent knows whether requests are late at a server, or on the way to it. Neither is named for what is over soon.
#[test]
fn a_server_that_is_slow_and_a_link_that_is_are_named() {
    let mut bed = Bed::new(18, 1, 3, 1);
    bed.start_all();
    bed.create("disk", GIB);
    let clients = Clients::start(&bed, 4);
    bed.world.run_for(Duration::from_secs(3));
    let slow = |bed: &Bed| -> Vec<(String, String)> {
        let shown = status(&observed(bed), &[], vec![], String::new());
        let slow = shown.problems.into_iter().filter(|problem| problem.kind.ends_with("_slow"));
        slow.map(|problem| (problem.kind, problem.message)).collect()
    };
    assert_eq!(slow(&bed), []);
    bed.delay((Role::Agent, 0), (Role::Server, 1), 15 * MS);
    bed.delay((Role::Server, 2), (Role::Store, 0), 15 * MS);
    bed.world.run_for(Duration::from_secs(2));
    assert_eq!(slow(&bed), [], "it may be over soon");
    bed.world.run_for(Duration::from_secs(6));
    let found = slow(&bed);
    let kinds: Vec<&str> = found.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["link_slow", "server_slow"], "{found:?}");
    assert!(found[0].1.starts_with("the network between server-1 and agent-0 is slow"), "{found:?}");
    assert!(found[1].1.starts_with("server-2 answers agent-0 more slowly"), "{found:?}");
    let page = render(&observed(&bed));
    assert_eq!(counted(&page, "levee_engine_slow{agent=\"agent-0\"").len(), 2, "{page}");
    bed.delay((Role::Agent, 0), (Role::Server, 1), Duration::ZERO);
    bed.delay((Role::Server, 2), (Role::Store, 0), Duration::ZERO);
    bed.wait("all are well", |bed| slow(bed).is_empty());
    clients.end(&bed);
}

/// Whichever manager is asked: all of them have heard of it.
#[test]
fn a_server_that_was_there_lately_is_missed() {
    let mut bed = Bed::new(17, 2, 3, 1);
    bed.start_all();
    bed.create("disk", GIB);
    let gone = |bed: &Bed| bed.cluster().gone.into_iter().map(|server| server.name).collect::<Vec<_>>();
    assert_eq!(gone(&bed), [""; 0]);
    bed.kill(Role::Server, 1);
    bed.wait("it is missed", |bed| gone(bed) == ["server-1"]);
    let in_charge = bed.cluster().manager.unwrap().name;
    bed.kill(Role::Manager, usize::from(in_charge == "manager-1"));
    bed.wait("the other manager misses it, too", |bed| gone(bed) == ["server-1"]);
    bed.world.run_for(Duration::from_secs(60));
    let silent = bed.cluster().gone[0].silent_seconds;
    assert!((60.0..70.0).contains(&silent), "{silent}");
    bed.start(Role::Server, 1);
    bed.wait("it is back", |bed| gone(bed).is_empty());
    // Nobody is missed for ever.
    bed.kill(Role::Server, 1);
    bed.world.run_for(Duration::from_secs(3590));
    assert_eq!(gone(&bed), ["server-1"]);
    bed.world.run_for(Duration::from_secs(30));
    assert_eq!(gone(&bed), [""; 0]);
}

#[test]
fn what_scrubbing_finds_everywhere_is_told() {
    let mut bed = Bed::new(14, 1, 3, 1);
    bed.start_all();
    bed.create("disk", GIB);
    write_and_read(&bed, 0, 64);
    let before = observed(&bed).scrub;
    let Reply::Snapshot(begun) = bed.ask(Request::Scrub).unwrap() else { panic!("a snapshot") };
    assert!(begun.scrub.is_running || begun.scrub.rounds > before.rounds, "{:?}", begun.scrub);
    bed.wait("all rounds are over", |bed| {
        let scrub = observed(bed).scrub;
        !scrub.is_running && scrub.rounds >= before.rounds + 3
    });
    let after = observed(&bed).scrub;
    assert_eq!((after.segments, after.segments_done, after.lost_blocks, after.silent_engines), (4, 4, 0, 0));
}

#[test]
fn a_volume_has_the_uris_of_agents_that_are_there() {
    let mut bed = Bed::new(15, 3, 1, 2);
    bed.start_all();
    bed.create("disk", GIB);
    let of = |bed: &Bed, agents: &[usize]| -> Vec<String> {
        agents.iter().map(|agent| node::nbd_uri(&bed.nbd(*agent), &node::settings::TlsSettings::default())).collect()
    };
    bed.wait("both are in touch", |bed| uris(bed) == of(bed, &[0, 1]));
    let Reply::Volume(view) = bed.ask(Request::Show("disk".into())).unwrap() else { panic!("a volume") };
    assert_eq!(view.nbd.to_vec(), of(&bed, &[0, 1]));
    let Reply::Created(view, _) = bed.ask(Request::Create(CreateVolume::new("another", GIB))).unwrap() else {
        panic!("a volume")
    };
    assert_eq!(view.nbd.to_vec(), of(&bed, &[0, 1]));
    bed.kill(Role::Agent, 0);
    bed.wait("one is gone", |bed| uris(bed) == of(bed, &[1]));
    bed.start(Role::Agent, 0);
    bed.wait("it is back", |bed| uris(bed) == of(bed, &[0, 1]));
    // One that nothing reaches is not to be attached at.
    bed.cut_off(Role::Agent, 1);
    let clock = bed.handle(Role::Manager, 0);
    let begun = clock.now();
    assert_eq!(uris(&bed), of(&bed, &[0]), "its connection is there, and it does not answer");
    assert!(clock.now() - begun <= 1_100 * MS, "{:?}", clock.now() - begun);
    bed.wait("the other one is cut off", |bed| uris(bed) == of(bed, &[0]));
}
