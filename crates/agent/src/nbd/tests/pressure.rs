//! Many connections, many requests, little memory.

use std::cell::Cell;

use base::MIB;
use runtime::sim::NetworkOptions;

use super::*;
use crate::nbd::protocol::*;

/// As little payload memory as an agent takes.
const TIGHT: u64 = base::limits::REQUEST_SIZE_MAX;

fn tight() -> Options {
    Options { payload_bytes_max: TIGHT, ..Options::default() }
}

/// Watches the agent's memory from beside.
fn watch(fixture: &Fixture) -> Rc<Cell<u64>> {
    let (highest, agent, handle) = (Rc::new(Cell::new(0)), fixture.agent.clone(), fixture.server.clone());
    let inside = highest.clone();
    let watching = async move {
        loop {
            let statistics = agent.statistics();
            assert!(statistics.payload_bytes <= statistics.payload_bytes_max);
            inside.set(inside.get().max(statistics.payload_bytes));
            handle.sleep(Duration::from_micros(50)).await;
        }
    };
    fixture.server.spawn(Class::Io, "watch", watching).detach();
    highest
}

#[test]
fn memory_stays_within_its_bound_and_everybody_is_served() {
    let fixture = Fixture::with(1, tight());
    let highest = watch(&fixture);
    let served = fixture.run(|handle, address| async move {
        let clients: Vec<_> = (0..16)
            .map(|n| {
                let (inside, address) = (handle.clone(), address.clone());
                handle.spawn(Class::Io, "client", async move {
                    let mut client = Client::attach(&inside, &address, "disk").await.unwrap();
                    let start = inside.now();
                    for request in 0..16u64 {
                        let kind = if (request + n) % 2 == 0 { command::READ } else { command::WRITE };
                        let payload = if kind == command::WRITE { vec![n as u8; MIB as usize] } else { vec![] };
                        client.request(kind, 0, (n * 64 + request) * MIB, MIB as u32, &payload).await.unwrap();
                    }
                    for _ in 0..16 {
                        assert_eq!(client.response().await.unwrap().errno, 0);
                    }
                    store::since(&inside, start)
                })
            })
            .collect();
        let mut served = Vec::new();
        for client in clients {
            served.push(client.await);
        }
        served
    });
    let (fastest, slowest) = (served.iter().min().unwrap(), served.iter().max().unwrap());
    assert!(*slowest < *fastest * 3, "nobody starves: {served:?}");
    assert!(highest.get() > TIGHT / 2, "the test reaches what it checks: {}", highest.get());
    assert!(fixture.store.reading_max.get() <= TIGHT, "what the owner is asked for is within the bound, too");
    assert_eq!(fixture.agent.statistics().stalled, 0);
}

/// More connections want a large buffer than there are: the others go on with their small ones.
#[test]
fn connections_without_a_large_buffer_are_served_too() {
    let fixture = Fixture::on_loops(9, Options::default(), 1);
    fixture.world.set_network(NetworkOptions { split_one_in: 0, ..NetworkOptions::default() });
    let clients = crate::nbd::LARGE_BUFFERS_MAX + 16;
    fixture.run(|handle, address| async move {
        let clients: Vec<_> = (0..clients)
            .map(|number| {
                let (inside, address) = (handle.clone(), address.clone());
                handle.spawn(Class::Io, "client", async move {
                    let mut client = Client::attach(&inside, &address, "disk").await.unwrap();
                    for request in 0..24 {
                        let offset = (number * 24 + request) * 4096;
                        client.request(command::WRITE, 0, offset, 4096, &[number as u8; 4096]).await.unwrap();
                    }
                    for _ in 0..24 {
                        assert_eq!(client.response().await.unwrap().errno, 0);
                    }
                })
            })
            .collect();
        for client in clients {
            client.await;
        }
    });
}

#[test]
fn a_client_has_256_requests_in_flight_and_no_more() {
    let fixture = Fixture::new(2);
    fixture.store.delay.set(Duration::from_millis(100));
    let store = fixture.store.clone();
    fixture.attached(|mut client| async move {
        for n in 0..600 {
            client.request(command::READ, 0, n * 512, 512, b"").await.unwrap();
        }
        for _ in 0..600 {
            assert_eq!(client.response().await.unwrap().errno, 0);
        }
    });
    assert_eq!(store.reading_max.get(), 256 * 512);
}

/// A client that sends reads and takes no replies.
async fn silent_reader(handle: &Handle, address: &Address) -> Client {
    let mut client = Client::attach(handle, address, "disk").await.unwrap();
    for n in 0..40 {
        client.request(command::READ, 0, n * MIB, MIB as u32, b"").await.unwrap();
    }
    client
}

#[test]
fn a_client_that_does_not_read_stops_itself_only() {
    let fixture = Fixture::with(3, tight());
    // Data, because holes take no bytes on the wire.
    fixture.attached(|mut client| async move {
        for n in 0..40 {
            client.write(n * MIB, &vec![1; MIB as usize]).await.unwrap();
        }
    });
    let worst = fixture.run(|handle, address| async move {
        let silent = silent_reader(&handle, &address).await;
        let mut client = Client::attach(&handle, &address, "disk").await.unwrap();
        let mut worst = Duration::ZERO;
        for n in 0..100 {
            let start = handle.now();
            assert_eq!(client.write(n * 4096, &[1; 4096]).await.unwrap().errno, 0);
            worst = worst.max(store::since(&handle, start));
        }
        drop(silent);
        worst
    });
    assert!(worst < Duration::from_millis(100), "{worst:?}");
    assert_eq!(fixture.agent.statistics().stalled, 0);
}

#[test]
fn clients_that_hold_all_memory_without_moving_are_cut_off() {
    let fixture = Fixture::with(4, tight());
    fixture.attached(|mut client| async move {
        for n in 0..40 {
            client.write(n * MIB, &vec![1; MIB as usize]).await.unwrap();
        }
    });
    let waited = fixture.run(|handle, address| async move {
        let mut silent = Vec::new();
        for _ in 0..12 {
            silent.push(silent_reader(&handle, &address).await);
        }
        let mut half_sent = Client::attach(&handle, &address, "disk").await.unwrap();
        half_sent.request(command::WRITE, 0, 0, 4 * MIB as u32, &[1; 512]).await.unwrap();
        handle.sleep(Duration::from_secs(1)).await;
        let start = handle.now();
        let mut client = Client::attach(&handle, &address, "disk").await.unwrap();
        assert_eq!(client.write(0, &vec![1; MIB as usize]).await.unwrap().errno, 0);
        store::since(&handle, start)
    });
    assert!(waited < Duration::from_secs(15), "{waited:?}");
    assert!(fixture.agent.statistics().stalled >= 8, "{}", fixture.agent.statistics().stalled);
}

#[test]
fn the_largest_request_passes_even_when_memory_is_tight() {
    let fixture = Fixture::with(5, tight());
    fixture.attached(|mut client| async move {
        let data: Vec<u8> = (0..PAYLOAD_MAX).map(|n| (n / 512) as u8).collect();
        assert_eq!(client.write(512, &data).await.unwrap().errno, 0);
        assert!(client.read(512, PAYLOAD_MAX).await.unwrap().content == data);
    });
}

#[test]
fn many_small_requests_are_answered_in_few_sends() {
    let fixture = Fixture::new(6);
    fixture.world.set_network(NetworkOptions { split_one_in: 0, ..NetworkOptions::default() });
    fixture.store.delay.set(Duration::ZERO);
    fixture.attached(|mut client| async move {
        let mut batch = Vec::new();
        for n in 0..32 {
            batch.extend(client::request_bytes(command::WRITE, 0, n + 1, n * 4096, 4096));
            batch.extend([1; 4096]);
        }
        for _ in 0..20 {
            client.send(&batch).await.unwrap();
            for _ in 0..32 {
                assert_eq!(client.response().await.unwrap().errno, 0);
            }
        }
    });
    let statistics = fixture.statistics();
    assert_eq!(statistics.write.latency_ns.count(), 640);
    let submitted = fixture.server.statistics().operations_submitted;
    // One receive and one send for each request would be 1280. A reply leaves as soon as it is there, and only those
    // that become ready behind a send under way share the next one.
    assert!(submitted < 240, "receives and sends are shared: {submitted} operations for 640 requests");
}
