//! Anything that a guest or a hypervisor may say: nothing gets past the checks, nothing panics, and nobody else notices.
//!
//! Random tables rarely make a chain. So each input is also the seed of valid requests, which are then changed in a few
//! places.

use base::{Prng, SECTOR};
use runtime::guest::{Ask, Memory};
use vm_memory::{Bytes as _, GuestAddress};

use super::*;
use crate::vhost::chain::{copy_chain, is_reachable};
use crate::vhost::driver::{Guest, HIGH, PLAIN, REGION, places, shape};
use crate::vhost::inflight::{Tracking, area_len};
use crate::vhost::protocol::{DESCRIPTORS_MAX, kind};
use crate::vhost::request::{Command, Plan, plan_request};

/// A seed of something valid, edits of it, and noise.
type Bytes = (u64, Vec<(u16, u8)>, Vec<u8>);

/// Requests of every kind in the first queue.
fn put_requests(guest: &mut Guest, prng: &mut Prng) {
    for _ in 0..prng.between(1, 6) {
        let (sector, len) = (prng.below(300), prng.below(9) * SECTOR);
        let data = vec![7; len as usize];
        let said = [&prng.below(300).to_le_bytes()[..], &8u32.to_le_bytes(), &[prng.below(2) as u8, 0, 0, 0]].concat();
        let shape = shape(prng);
        match prng.below(6) {
            0 => guest.put_request(0, kind::IN, sector, &[], len, shape),
            1 => guest.put_request(0, kind::OUT, sector, &data, 0, shape),
            2 => guest.put_request(0, kind::DISCARD, 0, &said, 0, shape),
            3 => guest.put_request(0, kind::WRITE_ZEROES, 0, &said, 0, shape),
            4 => guest.put_request(0, kind::GET_ID, 0, &[], 20, shape),
            _ => guest.put_request(0, prng.below(20) as u32, 0, &[], 0, shape),
        };
    }
}

/// Changes the first queue's table and ring, and the buffers.
fn spoil(guest: &Guest, prng: &mut Prng, edits: &[(u16, u8)], noise: &[u8]) {
    let (table, available, used) = places(0);
    for (at, value) in edits {
        let start = *prng.pick(&[table, table, available, used, 0x10_0000, HIGH]);
        let place = start + u64::from(*at) % 256;
        let before: u8 = guest.get(place);
        guest.put(before ^ value, place);
    }
    if prng.one_in(4) {
        let at = *prng.pick(&[table, available, used]) + prng.below(64);
        guest.memory.map().write_slice(noise, GuestAddress(at)).unwrap();
    }
}

#[test]
fn a_request_that_runs_lies_in_memory_and_on_the_disk() {
    let (mut runs, mut refused) = (0, 0);
    bolero::check!().with_iterations(3000).with_type().for_each(|(seed, edits, noise): &Bytes| {
        let mut prng = Prng::new(*seed);
        let mut guest = Guest::new(path("disk"), 1, 128);
        put_requests(&mut guest, &mut prng);
        let count = prng.below(4) as usize;
        spoil(&guest, &mut prng, &edits[..count.min(edits.len())], noise);
        let disk = disk(280);
        for head in 0..30 {
            let chain = copy_chain(&guest.memory, places(0).0, 128, head);
            let Ok(chain) = chain else {
                refused += 1;
                continue;
            };
            assert!(chain.readable.count() + chain.writable.count() <= DESCRIPTORS_MAX);
            let Ok(mut request) = plan_request(&guest.memory, chain, &disk) else { continue };
            assert!(is_reachable(guest.memory.map(), request.status, 1));
            for pieces in [&mut request.input, &mut request.output] {
                while let Some(address) = pieces.pop_byte() {
                    assert!(address < REGION || (HIGH..HIGH + REGION).contains(&address));
                }
            }
            let Plan::Run(command) = request.plan else { continue };
            runs += 1;
            if let Command::Read(range) | Command::Write(range) | Command::Discard(range) = command {
                assert!(range.start < range.end && range.end <= disk.size);
                assert!(range.start % SECTOR == 0 && range.end % SECTOR == 0);
            }
        }
    });
    assert!(runs > 0 && refused > 0, "{runs} ran and {refused} were refused: the target tests nothing");
}

#[test]
fn what_is_in_flight_is_refused_or_each_of_it_once() {
    let mut left_over = 0;
    type Input = (u16, Vec<(u16, u8)>, Vec<u8>);
    bolero::check!().with_iterations(5000).with_type().for_each(|(used, edits, noise): &Input| {
        let area = Memory::area(area_len(2, 16).unwrap()).unwrap();
        let open = |used| Tracking::open(area.clone(), 2, 16, 0, used);
        let (mut tracking, _) = open(*used).unwrap();
        for (n, (head, _)) in edits.iter().enumerate().take(8) {
            tracking.mark(head.wrapping_add(n as u16) % 16).unwrap();
        }
        for (at, value) in edits.iter().skip(2).take(3) {
            area.map().write_obj(*value, GuestAddress(u64::from(*at) % 272)).unwrap();
        }
        if noise.len() > 40 {
            area.map().write_slice(noise, GuestAddress(0)).unwrap();
        }
        for used in [*used, used.wrapping_add(1), 0] {
            let Ok((mut tracking, Some(left))) = open(used) else { continue };
            let mut heads = left.heads.clone();
            left_over += heads.len();
            heads.sort_unstable();
            heads.dedup();
            assert!(heads.len() == left.heads.len() && heads.iter().all(|head| *head < 16));
            tracking.mark(3).unwrap();
        }
    });
    assert!(left_over > 0, "nothing was ever left: the target tests nothing");
}

/// A whole device: whatever its guest and its hypervisor do, it ends, leaves nothing behind, and a bystander does not notice.
#[test]
fn a_guest_harms_nobody_whatever_it_does() {
    let mut answered = 0;
    bolero::check!().with_iterations(150).with_type().for_each(|(seed, edits, noise): &Bytes| {
        let (seed, edits, noise) = (*seed, edits.clone(), noise.clone());
        let fixture = Fixture::new(seed);
        answered += fixture.run(|handle| async move {
            let mut prng = Prng::new(seed);
            let mut bystander = started(&handle, path("other")).await;
            assert_eq!(bystander.write(0, 1000, &[0x55; 512], PLAIN).await, 0);
            let mut guest = Guest::new(path("disk"), 2, 128);
            // What its memory tells may be wrong from the beginning.
            if prng.one_in(4) && !noise.is_empty() {
                let at = prng.below(guest.area.len() - noise.len() as u64);
                guest.area.map().write_slice(&noise, GuestAddress(at)).unwrap();
            }
            let mut is_there = guest.connect(&handle).await.is_ok();
            for round in 0..3 {
                put_requests(&mut guest, &mut prng);
                let part = &edits[(2 * round).min(edits.len())..(2 * round + 2).min(edits.len())];
                spoil(&guest, &mut prng, part, &noise);
                guest.queues[0].kick.ring();
                handle.sleep(std::time::Duration::from_micros(prng.below(300))).await;
                if is_there && prng.one_in(3) {
                    let queue = prng.below(20) as usize;
                    let ask = match prng.below(6) {
                        0 => Ask::SetMemory(guest.memory.clone()),
                        1 => Ask::SetAddresses {
                            queue,
                            descriptors: prng.next_u64() >> prng.below(64),
                            available: prng.next_u64() >> prng.below(64),
                            used: prng.next_u64() >> prng.below(64),
                        },
                        2 => Ask::SetSize { queue, size: prng.below(400) as u32 },
                        3 => Ask::Stop { queue },
                        4 => Ask::SetFeatures(prng.next_u64() & prng.next_u64()),
                        _ => Ask::SetEnabled { queue, is_enabled: prng.one_in(2) },
                    };
                    is_there = guest.ask(ask).await.is_ok();
                }
            }
            let answered = guest.used_index(0);
            drop(guest);
            let read = bystander.read(1, 1000, 512, PLAIN).await;
            assert_eq!(read, (0, vec![0x55; 512]));
            drop(bystander);
            usize::from(answered.min(20))
        });
        fixture.settle();
        let statistics = fixture.agent.statistics();
        assert_eq!((statistics.connections_open, statistics.payload_bytes), (0, 0), "nothing is left behind");
    });
    assert!(answered > 0, "no request was ever answered: the target tests nothing");
}
