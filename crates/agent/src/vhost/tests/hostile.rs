//! Guests and hypervisors that break the rules: they end their own device, and nobody else notices.

use std::time::Duration;

use runtime::guest::Ask;

use super::*;
use crate::vhost::driver::{Guest, INDIRECT, NEXT, PLAIN, REGION, USER, WRITE, places};
use crate::vhost::protocol::{feature, kind};

fn put(guest: &mut Guest, chain: &[(u64, u32, u16)]) {
    guest.put_chain(0, chain);
}

type Misdeed = fn(&mut Guest);

/// What a guest does that its disk cannot go on after.
const MISDEEDS: [(&str, Misdeed); 9] = [
    ("a loop", |guest| {
        let head = guest.put_chain(0, &[(0x10_0000, 16, 0), (0x10_0000, 16, NEXT)]);
        let (table, ..) = places(0);
        let second: u16 = guest.get(table + 16 * u64::from(head) + 14);
        guest.put(head, table + 16 * u64::from(second) + 14);
    }),
    ("memory that is not there", |guest| put(guest, &[(REGION - 8, 16, 0), (0x10_0000, 1, WRITE)])),
    ("a status that is not there", |guest| put(guest, &[(0x10_0000, 16, 0), (REGION, 1, WRITE)])),
    ("no header", |guest| put(guest, &[(0x10_0000, 1, WRITE)])),
    ("no status", |guest| put(guest, &[(0x10_0000, 16, 0)])),
    ("the wrong order", |guest| put(guest, &[(0x10_0000, 16, WRITE), (0x10_0000, 16, 0)])),
    ("half a table", |guest| put(guest, &[(0x10_0000, 24, INDIRECT)])),
    ("a head that is none", |guest| guest.make_available(0, 256)),
    ("more than the ring has", |guest| {
        let (_, available, _) = places(0);
        guest.put(5000u16, available + 2);
    }),
];

#[test]
fn a_guest_that_breaks_the_rules_ends_its_own_disk_until_it_is_reset() {
    for (seed, (name, misdeed)) in MISDEEDS.into_iter().enumerate() {
        let fixture = Fixture::new(seed as u64);
        let agent = fixture.agent.clone();
        fixture.run(|handle| async move {
            let mut bystander = started(&handle, path("other")).await;
            let mut guest = started(&handle, path("disk")).await;
            assert_eq!(guest.write(0, 0, &[1; 512], PLAIN).await, 0);
            let before = guest.queues[0].available;
            misdeed(&mut guest);
            guest.kick(0, before);
            guest.queues[0].kick.ring();
            handle.sleep(Duration::from_millis(20)).await;
            let other = guest.request(1, kind::OUT, 1, &[1; 512], 0, PLAIN);
            handle.sleep(Duration::from_millis(20)).await;
            assert_eq!(guest.next_used(1), None, "{name}: nothing of it is served, {other:?}");
            assert_eq!(agent.statistics().violations, 1, "{name}: it is said once");
            assert_eq!(bystander.write(0, 0, &[1; 512], PLAIN).await, 0, "{name}");
            guest.reset().await.unwrap();
            assert_eq!(guest.read(0, 0, 512, PLAIN).await, (0, vec![1; 512]), "{name}");
        });
        assert_eq!(fixture.agent.statistics().payload_bytes, 0);
    }
}

/// A request that is made available twice while it is in flight.
#[test]
fn a_request_is_in_flight_once() {
    let fixture = Fixture::new(3);
    fixture.store.delay.set(Duration::from_millis(5));
    let agent = fixture.agent.clone();
    fixture.run(|handle| async move {
        let mut guest = started(&handle, path("disk")).await;
        let before = guest.queues[0].available;
        let asked = guest.put_request(0, kind::OUT, 0, &[1; 512], 0, PLAIN);
        guest.make_available(0, asked.head);
        guest.kick(0, before);
        assert_eq!(guest.outcome(0, &asked).await.0, 0, "what was right is finished");
        handle.sleep(Duration::from_millis(20)).await;
        assert_eq!(agent.statistics().violations, 1);
        assert_eq!(guest.next_used(0), None);
    });
}

/// A hypervisor that says what makes no sense loses its connection; the device takes the next one.
#[test]
fn a_hypervisor_that_makes_no_sense_is_refused() {
    let asks: [fn(&Guest) -> Ask; 9] = [
        |_| Ask::SetFeatures(1 << 60),
        |_| Ask::SetSize { queue: 0, size: 512 },
        |_| Ask::SetSize { queue: 0, size: 0 },
        |_| Ask::SetSize { queue: 0, size: 48 },
        |_| Ask::SetNext { queue: 16, next: 0 },
        |_| Ask::SetKick { queue: 0, bell: None },
        |_| Ask::InflightLen { queues: 17, size: 128 },
        |guest| Ask::SetInflight { area: guest.area.clone(), queues: 16, size: 256 },
        |_| Ask::Config { offset: 0, len: 1 << 30 },
    ];
    let fixture = Fixture::new(1);
    fixture.run(|handle| async move {
        for (n, ask) in asks.into_iter().enumerate() {
            let mut guest = Guest::new(path("disk"), 2, 16);
            guest.dial(&handle).await.unwrap();
            assert!(guest.ask(ask(&guest)).await.is_err(), "{n}");
            assert!(guest.ask(Ask::Features).await.is_err(), "{n}: the connection has ended");
        }
        let mut guest = started(&handle, path("disk")).await;
        assert_eq!(guest.write(0, 0, &[1; 512], PLAIN).await, 0);
    });
    assert_eq!(fixture.agent.statistics().violations, 9);
}

/// Rings where none can be are the guest's doing: its disk waits for a reset, and the connection stays.
#[test]
fn rings_where_none_can_be_are_not_served() {
    let fixture = Fixture::new(2);
    let agent = fixture.agent.clone();
    fixture.run(|handle| async move {
        for (descriptors, available, used) in [(0, 0x1000, 0x1001), (0, 0x1001, 0x2000), (1 << 40, 0x1000, 0x2000)] {
            let mut guest = Guest::new(path("disk"), 1, 16);
            guest.dial(&handle).await.unwrap();
            guest.ask(Ask::SetFeatures(guest.features & !feature::PROTOCOL)).await.unwrap();
            guest.ask(Ask::SetMemory(guest.memory.clone())).await.unwrap();
            let [descriptors, available, used] = [descriptors, available, used].map(|place| USER + place);
            guest.ask(Ask::SetSize { queue: 0, size: 16 }).await.unwrap();
            guest.ask(Ask::SetAddresses { queue: 0, descriptors, available, used }).await.unwrap();
            let kick = guest.queues[0].kick.bell();
            guest.ask(Ask::SetKick { queue: 0, bell: Some(kick) }).await.unwrap();
            guest.reset().await.unwrap();
            assert_eq!(guest.write(0, 0, &[1; 512], PLAIN).await, 0);
        }
        assert_eq!(agent.statistics().violations, 3);
    });
}

/// The guest changes what it writes while that is under way: the store asserts that what it gets has the checksums that
/// come with it.
#[test]
fn memory_that_changes_meanwhile_is_copied_once() {
    let fixture = Fixture::new(4);
    fixture.store.delay.set(Duration::from_millis(3));
    fixture.run(|handle| async move {
        let mut guest = started(&handle, path("disk")).await;
        for n in 0..20u64 {
            let asked = guest.request(0, kind::OUT, n, &[1; 512], 0, PLAIN);
            handle.sleep(Duration::from_micros(n * 20)).await;
            guest.put([2u8; 32], asked.input[0].0 + 64);
            assert_eq!(guest.outcome(0, &asked).await.0, 0);
            guest.put([3u8; 32], asked.input[0].0 + 64);
            let (_, bytes) = guest.read(0, n, 512, PLAIN).await;
            assert!(bytes[64..96] == [1; 32] || bytes[64..96] == [2; 32]);
        }
    });
}
