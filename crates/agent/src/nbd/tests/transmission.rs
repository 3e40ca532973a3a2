//! Requests and their replies.

use std::collections::BTreeMap;

use base::{ErrorKind, KIB, MIB, Prng};

use super::*;
use crate::nbd::protocol::*;

#[test]
fn what_is_written_is_read_by_every_connection() {
    for seed in 0..20 {
        let fixture = Fixture::new(seed);
        fixture.run(|handle, address| async move {
            let mut one = Client::attach(&handle, &address, "disk").await.unwrap();
            let mut two = Client::attach(&handle, &address, "disk").await.unwrap();
            // Over the end of a data sector, and over that of a row of data sectors.
            for offset in [0, 512, 128 * KIB - 512, 512 * KIB - 4096] {
                let mut data = vec![0; 9 * 512];
                Prng::new(seed ^ offset).fill(&mut data);
                assert_eq!(one.write(offset, &data).await.unwrap().errno, 0);
                let read = two.read(offset, data.len() as u32).await.unwrap();
                assert!(read.content == data, "seed {seed} at {offset}");
            }
            assert_eq!(one.ask(command::FLUSH, 0, 0, 0, b"").await.unwrap().errno, 0);
            one.request(command::DISC, 0, 0, 0, b"").await.unwrap();
            assert!(one.is_ended().await);
            assert_eq!(two.read(0, 512).await.unwrap().errno, 0);
        });
    }
}

#[test]
fn holes_are_told_apart_unless_the_client_wants_one_piece() {
    let fixture = Fixture::new(1);
    fixture.attached(|mut client| async move {
        client.write(16 * KIB, &[1; 8192]).await.unwrap();
        let read = client.read(0, 64 * KIB as u32).await.unwrap();
        assert_eq!(read.chunks, [(16 * KIB, true), (8 * KIB, false), (40 * KIB, true)]);
        let whole = client.ask(command::READ, command_flag::DF, 0, 64 * KIB as u32, b"").await.unwrap();
        assert_eq!(whole.chunks, [(64 * KIB, false)]);
        assert!(whole.content == read.content);
        let hole = client.ask(command::READ, command_flag::DF, MIB, MIB as u32, b"").await.unwrap();
        assert_eq!(hole.chunks, [(MIB, true)]);
    });
}

#[test]
fn zeroes_and_trims_leave_holes_and_no_hole_leaves_data() {
    let fixture = Fixture::new(2);
    fixture.attached(|mut client| async move {
        let len = 4 * MIB as u32;
        let status =
            async |client: &mut Client| client.ask(command::BLOCK_STATUS, 0, 0, len, b"").await.unwrap().extents;
        assert_eq!(status(&mut client).await, [(len, 3)]);
        client.write(0, &vec![9; len as usize]).await.unwrap();
        assert_eq!(status(&mut client).await, [(len, 0)]);
        let fast = command_flag::FAST_ZERO;
        assert_eq!(client.ask(command::WRITE_ZEROES, fast, 0, MIB as u32, b"").await.unwrap().errno, 0);
        let flags = command_flag::NO_HOLE | command_flag::FUA;
        assert_eq!(client.ask(command::WRITE_ZEROES, flags, MIB + 512, MIB as u32, b"").await.unwrap().errno, 0);
        assert_eq!(client.ask(command::TRIM, 0, 3 * MIB, 512 * KIB as u32, b"").await.unwrap().errno, 0);
        let (mib, half) = (MIB as u32, 512 * KIB as u32);
        assert_eq!(status(&mut client).await, [(mib, 3), (2 * mib, 0), (half, 3), (half, 0)]);
        let read = client.read(0, len).await.unwrap().content;
        let expected = |at: usize| match at as u64 {
            at if at < MIB || (MIB + 512..2 * MIB + 512).contains(&at) => 0,
            at if (3 * MIB..3 * MIB + 512 * KIB).contains(&at) => 0,
            _ => 9,
        };
        assert!(read.iter().enumerate().all(|(at, &byte)| byte == expected(at)));
        let not_fast = client.ask(command::WRITE_ZEROES, command_flag::NO_HOLE | fast, 0, 512, b"").await.unwrap();
        assert_eq!(not_fast.errno, Errno::NotSup as u32);
        let one = client.ask(command::BLOCK_STATUS, command_flag::REQ_ONE, 512, len - 512, b"").await.unwrap();
        assert_eq!(one.extents, [(mib - 512, 3)]);
        // A trim of the whole volume is a handful of requests, and a status of it one extent.
        assert_eq!(client.ask(command::TRIM, 0, 0, u32::MAX - 511, b"").await.unwrap().errno, 0);
        let all = client.ask(command::BLOCK_STATUS, 0, 0, u32::MAX - 511, b"").await.unwrap();
        assert_eq!(all.extents, [(u32::MAX - 511, 3)]);
        assert_eq!(client.ask(command::CACHE, 0, 0, mib, b"").await.unwrap().errno, 0);
    });
}

#[test]
fn a_fragmented_range_is_described_in_several_replies() {
    let fixture = Fixture::new(3);
    fixture.attached(|mut client| async move {
        for n in 0..1500 {
            client.write(n * 2 * 512, &[1; 512]).await.unwrap();
        }
        let (mut at, mut extents, mut replies) = (0, Vec::new(), 0);
        let end = 1500 * 1024u64;
        while at < end {
            let status = client.ask(command::BLOCK_STATUS, 0, at, (end - at) as u32, b"").await.unwrap();
            at += status.extents.iter().map(|(len, _)| u64::from(*len)).sum::<u64>();
            extents.extend(status.extents);
            replies += 1;
        }
        assert_eq!((at, extents.len(), replies), (end, 3000, 3));
        assert!(extents.iter().enumerate().all(|(n, extent)| *extent == (512, if n % 2 == 0 { 0 } else { 3 })));
    });
}

#[test]
fn errors_have_their_number_and_the_connection_goes_on() {
    let fixture = Fixture::new(4);
    let store = fixture.store.clone();
    fixture.attached(|mut client| async move {
        let end = 8 * GIB;
        let table = [
            (command::READ, 0, 1, 512, Errno::Inval),
            (command::READ, 0, end, 512, Errno::Inval),
            (command::WRITE, 0, end, 512, Errno::NoSpc),
            (command::WRITE, 0, 7, 512, Errno::Inval),
            (command::WRITE, 1 << 9, 0, 512, Errno::Inval),
            (command::WRITE, 0, 0, 33 * MIB as u32, Errno::Inval),
            (command::READ, command_flag::DF, 0, 33 * MIB as u32, Errno::Overflow),
            (99, 0, 0, 512, Errno::Inval),
        ];
        for (kind, flags, offset, len, errno) in table {
            let payload = if kind == command::WRITE { vec![1; len as usize] } else { vec![] };
            let response = client.ask(kind, flags, offset, len, &payload).await.unwrap();
            assert_eq!(response.errno, errno as u32, "{kind} {flags} {offset} {len}");
            assert!(!response.message.is_empty());
        }
        for kind in [command::READ, command::WRITE, command::TRIM, command::WRITE_ZEROES, command::CACHE] {
            assert_eq!(client.ask(kind, 0, 0, 0, b"").await.unwrap().errno, 0, "nothing to do is done");
        }
        let kinds = [
            (ErrorKind::Full, Errno::NoSpc),
            (ErrorKind::Corrupt, Errno::Io),
            (ErrorKind::Io, Errno::Io),
            (ErrorKind::Internal, Errno::Io),
        ];
        for (kind, errno) in kinds {
            store.fails.set(Some((kind, 1)));
            let response = client.write(0, &[1; 512]).await.unwrap();
            assert_eq!(response.errno, errno as u32, "{kind:?}");
            assert!(!response.message.contains("test wants") || kind == ErrorKind::Full);
            store.fails.set(Some((kind, 1)));
            assert_eq!(client.read(0, 512).await.unwrap().errno, errno as u32, "{kind:?}");
        }
        store.fails.set(Some((ErrorKind::Retry, 5)));
        assert_eq!(client.write(0, &[2; 512]).await.unwrap().errno, 0, "a passing obstacle is no error");
        assert_eq!(client.read(0, 512).await.unwrap().content, [2; 512]);
    });
    let statistics = fixture.statistics();
    assert_eq!((statistics.refused, statistics.write.errors, statistics.read.errors), (8, 4, 4));
    assert_eq!((statistics.write.latency_ns.count(), statistics.write.bytes), (1, 512));
}

#[test]
fn simple_replies_carry_the_same() {
    let fixture = Fixture::new(5);
    let store = fixture.store.clone();
    fixture.run(|handle, address| async move {
        let mut client = Client::connect(&handle, &address).await.unwrap();
        client.go("disk").await.unwrap().unwrap();
        client.write(8192, &[3; 4096]).await.unwrap();
        let read = client.read(0, 3 * MIB as u32).await.unwrap();
        assert!(read.content.iter().enumerate().all(|(at, &b)| b == if (8192..12288).contains(&at) { 3 } else { 0 }));
        assert_eq!(client.ask(command::READ, command_flag::DF, 0, 512, b"").await.unwrap().errno, Errno::Inval as u32);
        let status = client.ask(command::BLOCK_STATUS, 0, 0, 512, b"").await.unwrap();
        assert_eq!(status.errno, Errno::Inval as u32);
        store.fails.set(Some((ErrorKind::Corrupt, 1)));
        assert_eq!(client.read(0, 512).await.unwrap().errno, Errno::Io as u32);
    });
}

#[test]
fn a_read_only_volume_says_so_and_keeps_its_word() {
    let fixture = Fixture::new(6);
    fixture.store.volumes.borrow_mut().get_mut("disk").unwrap().read_only = true;
    fixture.run(|handle, address| async move {
        let mut client = Client::connect(&handle, &address).await.unwrap();
        let (_, flags) = client.go("disk").await.unwrap().unwrap();
        assert_ne!(flags & export_flag::READ_ONLY, 0);
        for kind in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            let payload = if kind == command::WRITE { &[0; 512][..] } else { &[] };
            assert_eq!(client.ask(kind, 0, 0, 512, payload).await.unwrap().errno, Errno::Perm as u32);
        }
        assert_eq!(client.read(0, 512).await.unwrap().errno, 0);
    });
}

/// Random requests in flight on several connections against an array of sectors. The contract is per sector: a read
/// returns what was written by a write that it did not surely precede, and none that it surely followed another.
#[test]
fn random_requests_agree_with_an_array() {
    let base_seed = 0x6c65_7665;
    let (mut checked, mut waited) = (0, 0);
    for seed in base_seed..base_seed + 40 {
        let fixture = Fixture::new(seed);
        let (address, handle) = (fixture.address.clone(), fixture.client.clone());
        checked += fixture.world.block_on(&fixture.client, async move {
            let mut tasks = Vec::new();
            for n in 0..3u64 {
                let (inside, address) = (handle.clone(), address.clone());
                tasks.push(handle.spawn(runtime::Class::Io, "client", async move {
                    random_client(&inside, &address, seed ^ (n << 32), n).await
                }));
            }
            let mut checked = 0;
            for task in tasks {
                checked += task.await;
            }
            checked
        });
        fixture.settle();
        waited += fixture.statistics().order_wait_ns.count();
        assert_eq!(fixture.statistics().receive_wait_ns.count(), fixture.statistics().reply_ns.count(), "seed {seed}");
    }
    assert!(checked > 1_000 && waited > 100, "the test reaches what it checks: {checked}, {waited}");
}

/// One client with a region of its own, many requests in flight on it, and a model of what each sector may hold.
async fn random_client(handle: &Handle, address: &Address, seed: u64, region: u64) -> usize {
    let mut prng = Prng::new(seed);
    let mut client = Client::attach(handle, address, "disk").await.unwrap();
    // The region lies over the end of a data sector; sectors hold the number of the write in each byte.
    let start = region * MIB + 128 * KIB - 32 * 512;
    let mut possible: Vec<Vec<u8>> = vec![vec![0]; 64];
    let mut in_flight: BTreeMap<u64, (u16, usize, usize, u8)> = BTreeMap::new();
    let mut checked = 0;
    for number in 1..=150u8 {
        let first = prng.below(64) as usize;
        let count = prng.between(1, 64 - first as u64) as usize;
        let kind = *prng.pick(&[command::READ, command::WRITE, command::WRITE, command::WRITE_ZEROES]);
        let (offset, len) = (start + first as u64 * 512, count as u32 * 512);
        let value = if kind == command::WRITE { number } else { 0 };
        let payload = if kind == command::WRITE { vec![number; len as usize] } else { vec![] };
        let flags = if kind == command::WRITE_ZEROES && prng.one_in(2) { command_flag::NO_HOLE } else { 0 };
        let cookie = client.request(kind, flags, offset, len, &payload).await.unwrap();
        if kind != command::READ {
            // From here on each of these sectors may hold the new value, and those in flight keep their order.
            possible[first..first + count].iter_mut().for_each(|values| values.push(value));
        }
        in_flight.insert(cookie, (kind, first, count, value));
        while in_flight.len() > if number == 150 { 0 } else { prng.below(20) as usize } {
            let response = client.response().await.unwrap();
            assert_eq!(response.errno, 0);
            let (kind, first, count, value) = in_flight.remove(&response.cookie).unwrap();
            for (n, values) in possible[first..first + count].iter_mut().enumerate() {
                match kind {
                    command::READ => {
                        let sector = &response.content[n * 512..(n + 1) * 512];
                        assert!(sector.iter().all(|byte| *byte == sector[0]), "seed {seed}: a sector is atomic");
                        assert!(values.contains(&sector[0]), "seed {seed}: {} is none of {values:?}", sector[0]);
                        checked += 1;
                    }
                    _ => {
                        // Overlapping writes end in order of arrival: what came before this one is gone.
                        let at = values.iter().position(|v| *v == value).expect("it was noted when it was sent");
                        let overtaken = !in_flight
                            .values()
                            .any(|(k, f, c, _)| *k == command::READ && (*f..f + c).contains(&(first + n)));
                        if overtaken {
                            values.drain(..at);
                        }
                    }
                }
            }
        }
    }
    checked
}
