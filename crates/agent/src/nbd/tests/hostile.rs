//! What a hostile or broken client may send: it ends its own connection, and nobody else notices.

use base::Prng;
use bytes::BufMut;

use super::client::{option_bytes, request_bytes};
use super::*;
use crate::nbd::handshake::OPTION_SKIP_MAX;
use crate::nbd::protocol::*;
use crate::nbd::request::PAYLOAD_SKIP_MAX;

/// What is sent after the greeting, and whether it is said in transmission.
fn table() -> Vec<(&'static str, bool, Vec<u8>)> {
    let flags = 3u32.to_be_bytes().to_vec();
    let mut endless = flags.clone();
    endless.put_u64(OPTION_MAGIC);
    endless.put_u32(option::GO);
    endless.put_u32(OPTION_SKIP_MAX + 1);
    vec![
        ("unknown client flags", false, 0xffff_ffffu32.to_be_bytes().to_vec()),
        ("another protocol", false, b"GET / HTTP/1.1\r\nHost: levee\r\n\r\n".to_vec()),
        ("a wrong option magic", false, [&flags[..], &[0; 16]].concat()),
        ("an option without end", false, endless),
        ("an export that does not exist", false, [&flags[..], &option_bytes(option::EXPORT_NAME, b"no")].concat()),
        ("an export name that is not text", false, [&flags[..], &option_bytes(option::EXPORT_NAME, &[0xff])].concat()),
        ("a wrong request magic", true, vec![0x25; 28]),
        ("an old request magic", true, [&0x1256_0953u32.to_be_bytes()[..], &[0; 24]].concat()),
        ("a payload without end", true, request_bytes(command::WRITE, 0, 1, 0, PAYLOAD_SKIP_MAX + 1)),
        ("the largest payload of all", true, request_bytes(command::WRITE, 0, 1, 0, u32::MAX)),
        ("an option after the handshake", true, option_bytes(option::LIST, b"")),
    ]
}

#[test]
fn a_violation_ends_its_own_connection_only() {
    let fixture = Fixture::new(1);
    let (handle, address) = (fixture.client.clone(), fixture.address.clone());
    fixture.world.block_on(&fixture.client, async move {
        let mut bystander = Client::attach(&handle, &address, "disk").await.unwrap();
        for (what, in_transmission, bytes) in table() {
            let mut client = match in_transmission {
                true => Client::attach(&handle, &address, "disk").await.unwrap(),
                false => {
                    let mut client = Client::connect_silently(&handle, &address).await.unwrap();
                    client.take(18).await.unwrap();
                    client
                }
            };
            client.send(&bytes).await.unwrap();
            assert!(client.is_ended().await, "{what}");
            assert_eq!(bystander.write(0, &[1; 512]).await.unwrap().errno, 0, "after {what}");
        }
    });
    let statistics = fixture.agent.statistics();
    assert_eq!(statistics.violations, 10, "all but the export that does not exist");
    assert_eq!((statistics.payload_bytes, statistics.connections_open), (0, 1));
}

#[test]
fn a_connection_may_end_at_any_byte() {
    let fixture = Fixture::new(2);
    let mut all = 3u32.to_be_bytes().to_vec();
    all.extend(option_bytes(option::STRUCTURED_REPLY, b""));
    all.extend(option_bytes(option::GO, b"\0\0\0\x04disk\0\0"));
    all.extend(request_bytes(command::READ, 0, 1, 0, 65_536));
    all.extend(request_bytes(command::WRITE, 0, 2, 0, 1024));
    all.extend([7; 1024]);
    all.extend(request_bytes(command::FLUSH, 0, 3, 0, 0));
    let (handle, address) = (fixture.client.clone(), fixture.address.clone());
    fixture.world.block_on(&fixture.client, async move {
        for end in (0..all.len()).step_by(3).chain([all.len()]) {
            let mut client = Client::connect_silently(&handle, &address).await.unwrap();
            client.send(&all[..end]).await.unwrap();
            match end % 2 {
                0 => client.stream.shutdown(),
                _ => drop(client),
            }
        }
    });
    fixture.settle();
    let statistics = fixture.agent.statistics();
    assert_eq!((statistics.connections_open, statistics.payload_bytes), (0, 0), "nothing is left behind");
    assert_eq!(fixture.store.log.borrow().iter().filter(|line| line.starts_with("attached")).count() as u64, {
        let volumes = fixture.store.volumes.borrow();
        volumes["disk"].generation.0
    });
}

#[test]
fn noise_in_transmission_never_harms_others() {
    for seed in 0..60 {
        let fixture = Fixture::new(seed);
        let (handle, address) = (fixture.client.clone(), fixture.address.clone());
        fixture.world.block_on(&fixture.client, async move {
            let mut prng = Prng::new(seed);
            let mut bystander = Client::attach(&handle, &address, "disk").await.unwrap();
            bystander.write(1 << 32, &[0x55; 4096]).await.unwrap();
            let mut noisy = Client::attach(&handle, &address, "disk").await.unwrap();
            for _ in 0..30 {
                // Requests that are mostly well formed, with wild fields, below the bystander's data.
                let kind = prng.below(9) as u16;
                let len = (prng.next_u64() as u32 >> prng.between(10, 31)) & !(prng.below(2) as u32 * 511);
                let offset = prng.below(1 << 31) & !if prng.one_in(4) { 0 } else { 511 };
                let flags = if prng.one_in(3) { prng.below(64) as u16 } else { 0 };
                let mut bytes = request_bytes(kind, flags, prng.next_u64(), offset, len);
                if kind == command::WRITE {
                    bytes.resize(28 + len as usize, 7);
                }
                if prng.one_in(40) {
                    bytes[prng.below(28) as usize] ^= 1 << prng.below(8);
                }
                if noisy.send(&bytes).await.is_err() {
                    break;
                }
            }
            drop(noisy);
            let read = bystander.read(1 << 32, 4096).await.unwrap();
            assert_eq!(read.content, [0x55; 4096], "seed {seed}");
        });
        fixture.settle();
        assert_eq!(fixture.agent.statistics().payload_bytes, 0, "seed {seed}");
    }
}

#[test]
fn too_many_connections_are_turned_away() {
    let fixture = Fixture::with(3, Options { connections_max: 5, ..Options::default() });
    let (handle, address) = (fixture.client.clone(), fixture.address.clone());
    fixture.world.block_on(&fixture.client, async move {
        let mut clients = Vec::new();
        for _ in 0..5 {
            clients.push(Client::attach(&handle, &address, "disk").await.unwrap());
        }
        let mut one_more = Client::connect_silently(&handle, &address).await.unwrap();
        assert!(one_more.is_ended().await);
        clients.pop();
        handle.sleep(Duration::from_millis(10)).await;
        Client::attach(&handle, &address, "disk").await.unwrap();
    });
    assert_eq!(fixture.agent.statistics().connections_refused, 1);
}
