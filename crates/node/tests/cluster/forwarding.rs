//! Writes that go to logs on all servers, and come home, while everything happens that can.

use std::rc::Rc;
use std::time::Duration;

use base::{ErrorKind, GIB};
use control::levels::VolumeChange;
use control::service::{Reply, Request};
use node::cluster::settings::Forwarding;
use runtime::Class;
use wire::VolumeDirectory;

use super::bed::{self, Bed, Role};
use super::nbd::Nbd;
use super::{Clients, MS};

fn world(seed: u64, servers: usize, agents: usize) -> Bed {
    let mut bed = Bed::new(seed, 1, servers, agents);
    bed.forwarding = Forwarding::Mixed;
    bed.start_all();
    bed.create("disk", GIB);
    bed
}

/// Bytes and entries that wait in logs at an agent.
fn waiting(bed: &Bed, agent: usize) -> (u64, usize) {
    bed.agent(agent).forwarder().waiting()
}

#[test]
fn what_is_logged_comes_home() {
    for seed in bed::seeds(3) {
        let bed = world(seed, 5, 1);
        let clients = Clients::start(&bed, 4);
        bed.world.run_for(Duration::from_secs(3));
        let counted = bed.agent(0).forwarder().counted();
        assert!(counted.burst_bytes > 1 << 20 && counted.log_reads > 0, "seed {seed}: {counted:?}");
        assert_eq!(clients.broken(), 0, "seed {seed}");
        clients.models.iter().for_each(|model| model.stop());
        bed.wait("all is merged", |bed| waiting(bed, 0) == (0, 0));
        let counted = bed.agent(0).forwarder().counted();
        assert!(counted.merged_bytes > 0 && counted.failed_merges == 0, "seed {seed}: {counted:?}");
        // The logs are spread as the volume is: eight segments more.
        assert_eq!(bed.cluster().segments, 12, "seed {seed}");
        let Reply::Volumes(shown) = bed.ask(Request::List).unwrap() else { panic!("a list") };
        assert_eq!(shown.len(), 1, "the logs are nobody's volume: {shown:?}");
        clients.end(&bed);
    }
}

/// Its clients see that it died, and whoever serves them next finds what it had acknowledged.
#[test]
fn whoever_attaches_next_finds_what_an_agent_left_in_logs() {
    let mut found = 0;
    for seed in bed::seeds(4) {
        let mut bed = world(seed, 4, 2);
        let clients = Clients::start_on(&bed, 1, 8);
        let mut prng = bed.world.fork_prng();
        for round in 0..4 {
            bed.world.run_for(prng.between(50, 300) as u32 * MS);
            found += waiting(&bed, 0).1;
            bed.kill(Role::Agent, 0);
            // One that does not forward has to find them, too.
            bed.forwarding = if round % 2 == 0 { Forwarding::Off } else { Forwarding::Mixed };
            bed.start(Role::Agent, 0);
        }
        bed.world.run_for(500 * MS);
        clients.end(&bed);
    }
    assert!(found > 50, "{found} entries were in logs when their agent died");
}

/// Whoever lost its connection asks again; what it had asked before must not take the logs from it later.
#[test]
fn logs_that_are_asked_for_twice_belong_to_who_asked_last() {
    for seed in bed::seeds(3) {
        let mut bed = Bed::new(seed, 1, 4, 1);
        bed.start_all();
        bed.create("disk", GIB);
        let (index, manager) = bed.in_charge().unwrap();
        let handle = bed.handle(Role::Manager, index);
        let (inside, asked) = (handle.clone(), manager.clone());
        bed.world.block_on(&handle, async move {
            let volume = asked.resolve("disk").await.unwrap();
            let attached = asked.attach(volume.id).await.unwrap();
            let ask = || {
                let (manager, volume, generation) = (asked.clone(), attached.id, attached.generation);
                let asking = async move { manager.take_logs(volume, generation, true).await };
                inside.spawn(Class::Io, "somebody who takes logs", asking)
            };
            let first = ask();
            // It waits for logs to be made.
            inside.sleep(Duration::from_micros(10)).await;
            let logs = ask().await.unwrap();
            first.await.unwrap_err();
            let newest = asked.describe(logs.id).await.unwrap().generation;
            assert_eq!(newest, logs.generation, "seed {seed}");
            // Later it is one more attachment.
            let again = ask().await.unwrap();
            assert!(again.id == logs.id && again.generation > logs.generation, "seed {seed}");
        });
    }
}

/// Whoever attached a volume just before it is deleted must not take it for one without logs, and serve what lies beneath them.
#[test]
fn who_comes_while_a_volume_is_deleted_is_not_told_that_it_has_no_logs() {
    let mut refused = 0;
    for seed in bed::seeds(8) {
        let mut bed = Bed::new(seed, 1, 4, 1);
        bed.start_all();
        bed.create("disk", GIB);
        let (index, manager) = bed.in_charge().unwrap();
        let handle = bed.handle(Role::Manager, index);
        let (inside, asked) = (handle.clone(), manager.clone());
        refused += bed.world.block_on(&handle, async move {
            let volume = asked.resolve("disk").await.unwrap();
            let attached = asked.attach(volume.id).await.unwrap();
            asked.take_logs(attached.id, attached.generation, true).await.unwrap();
            let service = asked.clone();
            let deleting = async move { service.handle(Request::Delete { name: "disk".into(), force: true }).await };
            let deleting = inside.spawn(Class::Io, "somebody who deletes a volume", deleting);
            let mut refused = 0;
            while !deleting.is_finished() {
                if let Err(error) = asked.take_logs(attached.id, attached.generation, false).await {
                    assert_eq!(error.kind, ErrorKind::Fenced, "seed {seed}: {error}");
                    refused += 1;
                }
                inside.sleep(Duration::from_micros(10)).await;
            }
            deleting.await.unwrap();
            refused
        });
    }
    assert!(refused > 8, "{refused}");
}

/// A log moves with its segment, whatever becomes of its server.
#[test]
fn logs_outlive_their_servers() {
    let mut deaths = 0;
    for seed in bed::seeds(4) {
        let mut bed = world(seed, 4, 1);
        let clients = Clients::start(&bed, 2);
        let mut prng = bed.world.fork_prng();
        for _ in 0..6 {
            bed.world.run_for(prng.between(20, 300) as u32 * MS);
            let index = prng.below(4) as usize;
            let lasts = *prng.pick(&[0, 20, 400, 3_000]) as u32 * MS;
            deaths += 1;
            if prng.one_in(3) {
                bed.cut_off(Role::Server, index);
                bed.world.run_for(lasts);
                bed.reconnect(Role::Server, index);
            } else {
                bed.kill(Role::Server, index);
                bed.world.run_for(lasts);
                bed.start(Role::Server, index);
            }
        }
        bed.settle();
        let counted = bed.agent(0).forwarder().counted();
        assert!(counted.burst_bytes > 0 && counted.rescheduled_bytes > 0, "seed {seed}: {counted:?}");
        assert_eq!(clients.broken(), 0, "seed {seed}");
        clients.end(&bed);
    }
    assert!(deaths > 20);
}

/// Whose attachment is over appends nothing, and what he had appended is there for the next one.
#[test]
fn a_later_attachment_has_the_logs() {
    let bed = world(3, 3, 2);
    let at = |index: usize| (bed.handle(Role::Agent, index), bed.nbd(index));
    let (handle, address) = at(0);
    let inside = handle.clone();
    let first = bed.world.block_on(&handle, async move {
        let client = Nbd::attach(&inside, &address).await.unwrap();
        // Until there are logs, owners have it.
        for round in 0..60 {
            client.write(0, &[round; 4096]).await.unwrap();
            client.write(1 << 20, &[round + 100; 4096]).await.unwrap();
            inside.sleep(10 * MS).await;
        }
        client
    });
    assert!(bed.agent(0).forwarder().counted().burst_bytes > 0);
    let (handle, address) = at(1);
    let inside = handle.clone();
    let second = bed.world.block_on(&handle, async move {
        let client = Nbd::attach(&inside, &address).await.unwrap();
        assert_eq!(client.read(0, 4096).await.unwrap(), [59; 4096]);
        client.write(0, &[200; 4096]).await.unwrap();
        client
    });
    let (handle, _) = at(0);
    bed.world.block_on(&handle, async move {
        for at in [0, 1 << 20, 2 << 20] {
            assert!(first.write(at, &[9; 4096]).await.is_none(), "a former holder writes nothing");
        }
    });
    let (handle, _) = at(1);
    bed.world.block_on(&handle, async move {
        assert_eq!(second.read(0, 4096).await.unwrap(), [200; 4096]);
        assert_eq!(second.read(1 << 20, 4096).await.unwrap(), [159; 4096]);
    });
}

/// An agent that spreads nothing spreads what is set so, while it is attached, and says what came of it.
#[test]
fn a_volume_is_spread_as_it_is_set() {
    let mut bed = Bed::new(5, 3, 3, 1);
    bed.start_all();
    bed.create("disk", GIB);
    let set = |bed: &Bed, forwarding| {
        let change = VolumeChange { forwarding: Some(forwarding), ..VolumeChange::default() };
        bed.ask(Request::Set { name: "disk".into(), change }).unwrap();
    };
    let told = |bed: &Bed| {
        let Reply::Explained(view, explained) = bed.ask(Request::Explain("disk".into())).unwrap() else {
            panic!("told")
        };
        (view.row.forwarding, explained.forwarding.unwrap())
    };
    let (handle, address) = (bed.handle(Role::Agent, 0), bed.nbd(0));
    let inside = handle.clone();
    let client = bed.world.block_on(&handle, async move { Rc::new(Nbd::attach(&inside, &address).await.unwrap()) });
    let burst = |bed: &Bed, value: u8| {
        let (client, inside) = (client.clone(), handle.clone());
        bed.world.block_on(&handle, async move {
            // The average is known when some seconds are over; and more than that, all at once, is a burst.
            for number in 0..80 {
                client.write(number << 20, &[value; 4096]).await.unwrap();
                inside.sleep(100 * MS).await;
            }
            for number in 0..200 {
                client.write(number << 20, &[value; 16 << 10]).await.unwrap();
            }
            for number in 0..200 {
                assert_eq!(client.read(number << 20, 4096).await.unwrap(), [value; 4096]);
            }
        });
    };
    burst(&bed, 1);
    let (row, bursts) = told(&bed);
    assert_eq!((row, bursts.mode.as_str(), bursts.has_logs), (wire::Forwarding::Default, "off", false));
    set(&bed, wire::Forwarding::On);
    burst(&bed, 2);
    let (row, bursts) = told(&bed);
    assert_eq!((row, bursts.mode.as_str(), bursts.has_logs), (wire::Forwarding::On, "on", true));
    assert!(bursts.burst_bytes > 100 << 10 && bursts.burst_bytes < bursts.written_bytes, "{bursts:?}");
    set(&bed, wire::Forwarding::Off);
    bed.world.run_for(Duration::from_secs(1));
    let before = told(&bed).1;
    burst(&bed, 3);
    let (_, bursts) = told(&bed);
    assert_eq!((bursts.mode.as_str(), bursts.burst_bytes), ("off", before.burst_bytes));
    assert_eq!((bursts.waiting_entries, bursts.waiting_bytes), (0, 0), "what was logged comes home: {bursts:?}");
}

#[test]
fn a_volume_goes_with_its_logs() {
    let mut bed = world(4, 3, 1);
    let clients = Clients::start(&bed, 2);
    bed.world.run_for(Duration::from_secs(1));
    assert_eq!(bed.cluster().segments, 8);
    // Whoever is in charge next finds them in the tables.
    bed.kill(Role::Manager, 0);
    bed.start(Role::Manager, 0);
    bed.settle();
    assert_eq!(bed.cluster().segments, 8);
    bed.ask(Request::Delete { name: "disk".into(), force: true }).unwrap();
    clients.models.iter().for_each(|model| model.stop());
    bed.wait("nothing is left", |bed| bed.cluster().segments == 0);
}
