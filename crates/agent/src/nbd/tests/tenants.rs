//! Tenants that share a loop whose processor time is charged: who is within his base is not delayed by who bursts.

use base::KIB;
use base::levels::Rate;
use policies::tenants::{Scheduling, TenantsSettings};
use runtime::sim::CpuOptions;
use wire::VolumeUser;

use super::*;
use crate::TenantStatistics;
use crate::nbd::protocol::*;

/// A machine on which a request takes 8 us.
fn machine() -> NodeOptions {
    let cpu = CpuOptions { request_ns: 8_000, ..CpuOptions::default() };
    NodeOptions { cpu, ..NodeOptions::default() }
}

fn fixture(scheduling: Scheduling, loops: usize) -> Fixture {
    let tenants = TenantsSettings { scheduling, ..TenantsSettings::default() };
    let fixture = Fixture::on_machine(3, machine(), Options { tenants, ..Options::default() }, loops);
    fixture.store.add_volume("quiet", 8 * GIB);
    fixture.store.add_volume("loud", 8 * GIB);
    fixture
}

/// One volume is read one by one, each a while after the last; the mean latency in microseconds. Another one meanwhile with so many
/// at a time, on as many connections.
fn quiet_beside_loud(fixture: &Fixture, depth: usize, connections: usize) -> f64 {
    measure(fixture, depth, connections).0
}

/// The same, and how long it took in seconds.
fn measure(fixture: &Fixture, depth: usize, connections: usize) -> (f64, f64) {
    fixture.run(|handle, address| async move {
        let begun = handle.now();
        let mut loud = Vec::new();
        for _ in 0..connections {
            let mut client = Client::attach(&handle, &address, "loud").await.unwrap();
            let working = async move {
                for n in 0..depth as u64 {
                    client.request(command::READ, 0, n * 4 * KIB, 4096, b"").await.unwrap();
                }
                loop {
                    client.response().await.unwrap();
                    client.request(command::READ, 0, 0, 4096, b"").await.unwrap();
                }
            };
            if depth > 0 {
                loud.push(handle.spawn(Class::Io, "loud", working));
            }
        }
        let mut quiet = Client::attach(&handle, &address, "quiet").await.unwrap();
        handle.sleep(Duration::from_millis(150)).await;
        let (mut sum, count) = (Duration::ZERO, 200);
        for _ in 0..count {
            handle.sleep(Duration::from_micros(700 + handle.random_u64() % 600)).await;
            let since = handle.now();
            assert_eq!(quiet.read(0, 4096).await.unwrap().errno, 0);
            sum += store::since(&handle, since);
        }
        drop(loud);
        (sum.as_secs_f64() * 1e6 / f64::from(count), store::since(&handle, begun).as_secs_f64())
    })
}

fn tenants(fixture: &Fixture) -> Vec<TenantStatistics> {
    let agent = fixture.agent.clone();
    fixture.world.block_on(&fixture.server, async move { agent.tenants().await })
}

#[test]
fn who_is_within_his_base_is_not_delayed_by_who_bursts() {
    let alone = quiet_beside_loud(&fixture(Scheduling::Bios, 1), 0, 1);
    let off = quiet_beside_loud(&fixture(Scheduling::Off, 1), 64, 1);
    let beside = fixture(Scheduling::Bios, 1);
    beside.store.set_base("quiet", Rate { iops: 5_000, bytes_per_sec: 0 });
    let bios = quiet_beside_loud(&beside, 64, 1);
    assert!(off > 3.0 * alone, "the burst is one: {off} us beside it, {alone} us without");
    assert!(bios < 0.5 * off && bios < 2.0 * alone, "{bios} us with it, {off} us without, {alone} us alone");
    beside.agent.audit_tenants()().unwrap();
}

/// Nobody has thought of levels: everybody has an equal part.
#[test]
fn without_levels_volumes_are_protected_from_each_other() {
    let off = quiet_beside_loud(&fixture(Scheduling::Off, 1), 64, 2);
    let beside = fixture(Scheduling::Bios, 1);
    let bios = quiet_beside_loud(&beside, 64, 2);
    assert!(bios < 0.5 * off, "{bios} us with it, {off} us without");
}

#[test]
fn what_is_idle_is_not_wasted() {
    let per_second = |scheduling| {
        let fixture = fixture(scheduling, 1);
        let (_, seconds) = measure(&fixture, 64, 1);
        let volumes = fixture.agent.volume_statistics();
        let loud = volumes.into_iter().find(|(_, name, _)| name == "loud").unwrap().2;
        loud.read.latency_ns.count() as f64 / seconds
    };
    let (bios, off) = (per_second(Scheduling::Bios), per_second(Scheduling::Off));
    assert!(bios > 0.9 * off, "{bios} of {off} requests: the reserve, and little more");
}

/// For whoever places volumes.
#[test]
fn who_bursts_together_is_told() {
    let fixture = fixture(Scheduling::Bios, 1);
    fixture.store.add_volume("also loud", 8 * GIB);
    fixture.store.set_base("quiet", Rate { iops: 30_000, bytes_per_sec: 0 });
    let _clients = fixture.run(|handle, address| async move {
        let mut loud = Vec::new();
        for volume in ["loud", "also loud"] {
            let mut client = Client::attach(&handle, &address, volume).await.unwrap();
            let working = async move {
                for _ in 0..32 {
                    client.request(command::READ, 0, 0, 4096, b"").await.unwrap();
                }
                loop {
                    client.response().await.unwrap();
                    client.request(command::READ, 0, 0, 4096, b"").await.unwrap();
                }
            };
            loud.push(handle.spawn(Class::Io, "loud", working));
        }
        let mut quiet = Client::attach(&handle, &address, "quiet").await.unwrap();
        for _ in 0..800 {
            handle.sleep(Duration::from_millis(1)).await;
            assert_eq!(quiet.read(0, 4096).await.unwrap().errno, 0);
        }
        (loud, quiet)
    });
    let found = tenants(&fixture);
    let with = |name: &str| found.iter().find(|one| one.name == name).unwrap().bursts_with.clone();
    for (name, other) in [("loud", "also loud"), ("also loud", "loud")] {
        let companions = with(name);
        assert!(companions.len() == 1 && companions[0].0 == other && companions[0].1 > 0.5, "{name}: {companions:?}");
    }
    assert_eq!(with("quiet"), []);
}

#[test]
fn volumes_of_one_owner_are_one_tenant_and_leave_as_they_came() {
    let fixture = fixture(Scheduling::Bios, 3);
    fixture.store.set_owner("quiet", "shop");
    fixture.store.set_owner("loud", "shop");
    fixture.store.set_base("quiet", Rate { iops: 100, bytes_per_sec: 0 });
    fixture.store.set_base("loud", Rate { iops: 50, bytes_per_sec: 7 });
    let clients = fixture.run(|handle, address| async move {
        let mut clients = Vec::new();
        for volume in ["quiet", "loud", "disk", "loud"] {
            let mut client = Client::attach(&handle, &address, volume).await.unwrap();
            assert_eq!(client.read(0, 4096).await.unwrap().errno, 0);
            clients.push(client);
        }
        clients
    });
    let mut names: Vec<_> = tenants(&fixture).into_iter().map(|one| (one.name, one.volumes.len(), one.base)).collect();
    names.sort_by(|one, other| one.0.cmp(&other.0));
    assert_eq!(names[0], ("disk".into(), 1, Rate::default()));
    assert_eq!(names[1], ("shop".into(), 2, Rate { iops: 150, bytes_per_sec: 7 }));
    assert_eq!(tenants(&fixture).iter().map(|one| one.started).sum::<u64>(), 4);
    // New levels are heard of without a new connection.
    let descriptor = fixture.store.set_base("quiet", Rate { iops: 200, bytes_per_sec: 0 });
    fixture.agent.learn_levels(&descriptor);
    assert!(tenants(&fixture).iter().any(|one| one.base.iops == 250));
    drop(clients);
    fixture.settle();
    assert_eq!(tenants(&fixture), []);
}
