//! Connections of one volume on several loops: one attachment, one order of writes, one bound on memory.

use base::{MIB, Prng, VolumeId};
use wire::VolumeUser;

use super::*;
use crate::nbd::protocol::*;

const DISK: VolumeId = VolumeId(1);

#[test]
fn connections_spread_over_the_loops_and_share_one_attachment() {
    let fixture = Fixture::on_loops(1, Options::default(), 3);
    let clients = fixture.run(|handle, address| async move {
        let mut clients = Vec::new();
        for _ in 0..6 {
            clients.push(Client::attach(&handle, &address, "disk").await.unwrap());
        }
        for (number, client) in clients.iter_mut().enumerate() {
            client.write(number as u64 * 512, &[number as u8 + 1; 512]).await.unwrap();
        }
        for client in &mut clients {
            let content = client.read(0, 6 * 512).await.unwrap().content;
            assert!((0..6).all(|number| content[number * 512] == number as u8 + 1));
        }
        clients
    });
    assert_eq!(fixture.agent.connections(), [2, 2, 2]);
    assert_eq!((fixture.agent.users(DISK), fixture.agent.statistics().connections_open), (6, 6));
    let counted = fixture.statistics();
    assert_eq!((counted.write.latency_ns.count(), counted.read.bytes, counted.connections), (6, 6 * 6 * 512, 6));
    drop(clients);
    fixture.settle();
    assert_eq!(*fixture.store.log.borrow(), ["attached v1 g1", "released v1 g1"]);
    assert_eq!(fixture.agent.connections(), [0; 3]);
    // Counters outlive the attachment, and the loops' parts of it.
    assert_eq!(fixture.statistics().write.latency_ns.count(), 6);
}

/// The store asserts that no two changes in flight overlap, and that stamps of a sector grow.
#[test]
fn overlapping_writes_wait_for_each_other_across_loops() {
    let mut waited = 0;
    for seed in 0..30 {
        let fixture = Fixture::on_loops(seed, Options::default(), 3);
        fixture.run(|handle, address| async move {
            let writers: Vec<_> = (0..6)
                .map(|number| {
                    let (inside, address) = (handle.clone(), address.clone());
                    handle.spawn(Class::Io, "writer", async move {
                        let mut prng = Prng::new(seed * 10 + number);
                        let mut client = Client::attach(&inside, &address, "disk").await.unwrap();
                        for _ in 0..10 {
                            for _ in 0..4 {
                                let (at, sectors) = (prng.below(12), prng.between(1, 6));
                                let data = vec![number as u8; sectors as usize * 512];
                                client.request(command::WRITE, 0, at * 512, data.len() as u32, &data).await.unwrap();
                            }
                            for _ in 0..4 {
                                assert_eq!(client.response().await.unwrap().errno, 0);
                            }
                        }
                    })
                })
                .collect();
            for writer in writers {
                writer.await;
            }
        });
        waited += fixture.statistics().order_wait_ns.count();
    }
    assert!(waited > 1_000, "the test reaches what it checks: {waited} waited");
}

/// A volume is let go of while connections to it come in on every loop: each of them ends, or is refused.
#[test]
fn a_release_meets_connections_that_are_just_entering() {
    let mut met = 0;
    for seed in 0..100 {
        let fixture = Fixture::on_loops(seed, Options::default(), 3);
        let (handle, address) = (fixture.client.clone(), fixture.address.clone());
        let clients: Vec<_> = (0..6)
            .map(|_| {
                let (inside, address) = (handle.clone(), address.clone());
                handle.spawn(Class::Io, "client", async move {
                    let Ok(mut client) = Client::attach(&inside, &address, "disk").await else { return false };
                    while client.read(0, 512).await.is_ok() {}
                    true
                })
            })
            .collect();
        fixture.world.run_for(Duration::from_micros(150 + seed * 5));
        let agent = fixture.agent.clone();
        fixture.world.block_on(&fixture.server, async move { agent.release(DISK).await });
        assert_eq!(fixture.agent.users(DISK), 0, "seed {seed}");
        // After it the volume can be had again: a deletion that failed leaves it.
        fixture.attached(|mut client| async move { assert_eq!(client.read(0, 512).await.unwrap().errno, 0) });
        fixture.stop();
        for client in clients {
            met += u64::from(fixture.world.block_on(&handle, client));
        }
    }
    assert!((50..550).contains(&met), "the test reaches what it checks: {met} of 600 had entered");
}

/// Who waits for memory on one loop ends those that hold it on another one without moving.
#[test]
fn a_peer_that_holds_memory_on_another_loop_is_ended() {
    let options = Options { payload_bytes_max: 32 * MIB, ..Options::default() };
    let fixture = Fixture::on_loops(5, options, 3);
    let hoarders = fixture.run(|handle, address| async move {
        let mut hoarders = Vec::new();
        for _ in 0..8 {
            let mut client = Client::attach(&handle, &address, "disk").await.unwrap();
            // The payload never comes.
            client.request(command::WRITE, 0, 0, 4 * MIB as u32, b"").await.unwrap();
            hoarders.push(client);
        }
        hoarders
    });
    fixture.attached(|mut client| async move { assert_eq!(client.write(64 * MIB, &[1; 512]).await.unwrap().errno, 0) });
    assert_eq!(fixture.agent.statistics().stalled, 8);
    drop(hoarders);
}
