//! Volumes that an agent holds to their levels, whichever loops their connections are on, and what it marks.

use std::cell::Cell;

use base::levels::{Levels, Rate};
use base::{KIB, Map};
use policies::levels::{Enforcer, LevelsSettings};
use policies::waits::Reason;
use wire::VolumeUser;

use super::*;
use crate::nbd::protocol::*;

fn iops(iops: u64) -> Rate {
    Rate { iops, bytes_per_sec: 0 }
}

fn fixture(enforcer: Enforcer, tenant_burst: Rate, loops: usize) -> Fixture {
    let levels = LevelsSettings { enforcer, tenant_burst };
    let fixture = Fixture::on_loops(5, Options { levels, ..Options::default() }, loops);
    fixture.store.add_volume("other", 8 * GIB);
    fixture
}

/// How many requests of 4 KiB are answered in a second, with 32 at a time on each of some connections, by volume.
fn answered(fixture: &Fixture, volumes: &'static [&'static str]) -> Map<&'static str, u64> {
    fixture.run(|handle, address| async move {
        let counts: Rc<Map<&str, Cell<u64>>> = Rc::new(volumes.iter().map(|name| (*name, Cell::new(0))).collect());
        let mut working = Vec::new();
        for name in volumes {
            let mut client = Client::attach(&handle, &address, name).await.unwrap();
            let counts = counts.clone();
            working.push(handle.spawn(Class::Io, "client", async move {
                for n in 0..32 {
                    client.request(command::READ, 0, n * 4 * KIB, 4096, b"").await.unwrap();
                }
                loop {
                    client.response().await.unwrap();
                    counts[name].set(counts[name].get() + 1);
                    client.request(command::READ, 0, 0, 4096, b"").await.unwrap();
                }
            }));
        }
        handle.sleep(Duration::from_millis(100)).await;
        counts.values().for_each(|count| count.set(0));
        handle.sleep(Duration::from_secs(1)).await;
        drop(working);
        counts.iter().map(|(name, count)| (*name, count.get())).collect()
    })
}

#[test]
fn a_volume_gets_its_burst_level_once_on_however_many_loops() {
    for loops in [1, 2, 3] {
        let fixture = fixture(Enforcer::Agent, Rate::default(), loops);
        fixture.store.set_levels("disk", Levels { base: iops(500), burst: iops(2000), ..Levels::default() });
        let count = answered(&fixture, &["disk", "disk", "disk"])["disk"];
        assert!((1950..=2020).contains(&count), "{count} on {loops} loops");
        let [open, base, burst] = fixture.store.marked.get();
        // 1.1 seconds, and ten milliseconds' worth that was there at first.
        assert!(open == 0 && (540..=560).contains(&base) && (1620..=1700).contains(&burst), "{base} and {burst}");
        let waits = fixture.statistics().waits;
        assert!(waits.of(Reason::BurstLevel).requests > 2000 && waits.of(Reason::BaseLevel).requests == 0, "{waits:?}");
        fixture.agent.audit_tenants()().unwrap();
        fixture.settle();
        let waits = fixture.statistics().waits;
        assert_eq!(waits.of(Reason::BurstLevel).now, 0, "nobody is left");
    }
}

#[test]
fn where_the_servers_hold_volumes_the_agent_marks_nothing() {
    let fixture = fixture(Enforcer::Server, Rate::default(), 2);
    fixture.store.set_levels("disk", Levels { base: iops(500), burst: iops(2000), ..Levels::default() });
    let count = answered(&fixture, &["disk"])["disk"];
    let [open, base, burst] = fixture.store.marked.get();
    assert!(count > 20_000 && open > 20_000, "{count} were answered, {open} without a mark");
    assert_eq!((base, burst), (0, 0));
}

#[test]
fn other_levels_hold_at_once_and_a_volume_without_any_is_free() {
    let fixture = fixture(Enforcer::Agent, Rate::default(), 2);
    let free = answered(&fixture, &["disk", "disk"])["disk"];
    let [open, ..] = fixture.store.marked.get();
    assert!(free > 20_000 && open > 20_000, "{free}");
    let (agent, store) = (fixture.agent.clone(), fixture.store.clone());
    let raising = fixture.server.spawn(Class::Io, "other levels", {
        let handle = fixture.server.clone();
        async move {
            for burst in [1_000, 0, 3_000] {
                handle.sleep(Duration::from_millis(300)).await;
                agent.learn_levels(&store.set_levels("disk", Levels { burst: iops(burst), ..Levels::default() }));
            }
        }
    });
    // 100 ms before it counts, 200 ms free, 300 ms at 1,000, 300 ms free, 200 ms at 3,000.
    let count = answered(&fixture, &["disk", "disk"])["disk"];
    drop(raising);
    let expected = free / 2 + 300 + 600;
    assert!(count.abs_diff(expected) < expected / 10, "{count}, and {expected} were expected");
}

/// Nobody gets rid of what he owes by connecting again.
#[test]
fn who_comes_back_finds_his_debts() {
    let fixture = fixture(Enforcer::Agent, Rate::default(), 2);
    let burst = Rate { iops: 0, bytes_per_sec: 1 << 20 };
    fixture.store.set_levels("disk", Levels { burst, ..Levels::default() });
    let read_all = |count: u64| {
        fixture.run(move |handle, address| async move {
            let begun = handle.now();
            for _ in 0..count {
                let mut client = Client::attach(&handle, &address, "disk").await.unwrap();
                assert_eq!(client.read(0, 1 << 20).await.unwrap().errno, 0);
                drop(client);
                handle.sleep(Duration::from_millis(5)).await;
            }
            store::since(&handle, begun)
        })
    };
    let took = read_all(4);
    assert!(took >= Duration::from_millis(2_900) && took < Duration::from_millis(3_200), "{took:?}");
}

#[test]
fn volumes_of_an_owner_share_what_a_tenant_gets() {
    let fixture = fixture(Enforcer::Agent, iops(3_000), 2);
    fixture.store.set_owner("disk", "shop");
    fixture.store.set_owner("other", "shop");
    fixture.store.add_volume("alone", 8 * GIB);
    fixture.store.set_levels("other", Levels { burst: iops(1_000), ..Levels::default() });
    let counts = answered(&fixture, &["disk", "other", "alone"]);
    let together = counts["disk"] + counts["other"];
    assert!((2900..=3050).contains(&together) && counts["other"] <= 1010, "{counts:?}");
    assert!((2900..=3050).contains(&counts["alone"]), "a volume without an owner is a tenant: {counts:?}");
    let waits = fixture.statistics().waits;
    assert!(waits.of(Reason::TenantLevel).requests > 1000, "{waits:?}");
}
