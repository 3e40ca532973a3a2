//! What is marked as in flight is what a next life does again, wherever this one ended.

use std::collections::VecDeque;
use std::time::Duration;

use base::Prng;
use policies::queues::Queues;
use runtime::Class;
use runtime::guest::Memory;
use runtime::sim::{NodeOptions, World};
use vm_memory::{Bytes, GuestAddress};

use super::path;
use crate::vhost::claims::{Claim, Claims};
use crate::vhost::driver::{Guest, PLAIN, places};
use crate::vhost::inflight::{Tracking, area_len};
use crate::vhost::protocol::{Violation, kind};
use crate::vhost::ring::{Places, Ring};

fn ring(guest: &Guest) -> Ring {
    let (descriptors, available, used) = places(0);
    let places = Places { descriptors, available, used };
    let mut ring = Ring::new(&guest.memory, guest.queues[0].size, places, guest.used_index(0), true).unwrap();
    let used = ring.used_index(&guest.memory).unwrap();
    let (tracking, left) = Tracking::open(guest.area.clone(), 2, guest.queues[0].size, 0, used).unwrap();
    ring.track(tracking, left);
    ring
}

/// Lives that end at any moment: each request is used once, and what is left comes first, in the order it was taken in.
#[test]
fn every_request_is_used_once_over_many_lives() {
    for seed in 0..200 {
        let mut prng = Prng::new(seed);
        let mut guest = Guest::new(path("disk"), 2, 16);
        let (mut made, mut used, mut order) = (0, 0, Vec::new());
        while used < 60 {
            let mut ring = ring(&guest);
            // What was left comes back in the order in which it was taken.
            let mut taken: Vec<u16> = Vec::new();
            for head in std::mem::take(&mut order) {
                let again = ring.take(&guest.memory).unwrap().expect("it was left");
                assert_eq!(again, head, "seed {seed}");
                taken.push(head);
            }
            for _ in 0..prng.below(20) {
                match prng.below(3) {
                    0 if made - used < 5 => {
                        guest.put_request(0, kind::FLUSH, 0, &[], 0, PLAIN);
                        made += 1;
                    }
                    1 => taken.extend(ring.take(&guest.memory).unwrap()),
                    _ if !taken.is_empty() => {
                        let head = taken.remove(prng.below(taken.len() as u64) as usize);
                        ring.put_used(&guest.memory, head, 1).unwrap();
                    }
                    _ => {}
                }
                assert_eq!(ring.in_flight(), taken.len());
                while let Some((_, len)) = guest.next_used(0) {
                    assert_eq!(len, 1);
                    used += 1;
                }
            }
            order = taken;
        }
    }
}

/// A driver that resets its disk right after the agent was started anew: what was left is done first, and nothing else is.
#[test]
fn a_queue_that_is_stopped_at_once_does_what_was_left() {
    let (world, mut guest) = (World::new(1), Guest::new(path("disk"), 2, 16));
    let handle = world.start_loop(world.add_node(NodeOptions::default()));
    (0..3).for_each(|_| drop(guest.put_request(0, kind::FLUSH, 0, &[], 0, PLAIN)));
    let mut before = ring(&guest);
    let taken = [(); 2].map(|()| before.take(&guest.memory).unwrap().unwrap());
    for ends_first in [true, false] {
        let claims = Claims::new(ring(&guest), guest.memory.clone(), Queues::Shared, 0, 1);
        claims.stop(&handle);
        let idle = handle.spawn(Class::Io, "stop", {
            let (claims, handle) = (claims.clone(), handle.clone());
            async move { claims.wait_until_idle(&handle).await }
        });
        world.run_for(Duration::from_millis(1));
        assert!(!idle.is_finished(), "two are left");
        let mut heads = VecDeque::new();
        let claim = |heads: &mut _, is_over| claims.claim(&handle, 0, 8, heads, is_over, |_| 0).unwrap();
        if ends_first {
            // The connection ends before: the next life does it.
            assert!(matches!(claim(&mut heads, true), Claim::Over) && heads.is_empty());
            claims.depart(&handle, 0);
        } else {
            assert!(matches!(claim(&mut heads, false), Claim::Taken(_)));
            assert_eq!(Vec::from(heads.clone()), taken, "and not the third");
            for head in heads.drain(..) {
                claims.put_used(&handle, head, 1, true).unwrap();
                claims.notice_told(&handle);
            }
            assert!(matches!(claim(&mut heads, false), Claim::Over));
        }
        assert_eq!(world.block_on(&handle, idle), 2);
        assert_eq!(guest.used_index(0), if ends_first { 0 } else { 2 });
    }
}

/// A life that ends between two steps of a use: the used ring decides.
#[test]
fn a_use_that_was_cut_off_counts_if_the_guest_sees_it() {
    let area = Memory::area(area_len(2, 16).unwrap()).unwrap();
    let open = |used| Tracking::open(area.clone(), 2, 16, 1, used);
    let (mut tracking, left) = open(7).unwrap();
    assert_eq!(left, None, "nothing was ever there");
    for head in [3, 9, 1] {
        tracking.mark(head).unwrap();
    }
    let left = |used| open(used).unwrap().1.unwrap().heads;
    assert_eq!(left(7), [3, 9, 1]);
    tracking.before_used(9).unwrap();
    assert_eq!(left(7), [3, 9, 1], "the guest does not see it");
    assert_eq!(left(8), [3, 1], "it does");
    assert_eq!(left(8), [3, 1], "and that is known from then on");
    tracking.unmark(3, 9).unwrap();
    assert_eq!(left(9), [1]);
    let (other, none) = Tracking::open(area.clone(), 2, 16, 0, 0).unwrap();
    assert_eq!(none, None, "queues have parts of their own: {other:?}");
}

#[test]
fn what_others_wrote_is_not_believed() {
    let area = Memory::area(area_len(1, 16).unwrap()).unwrap();
    let open = |used| Tracking::open(area.clone(), 1, 16, 0, used).map(|(_, left)| left.map(|left| left.heads));
    assert_eq!(open(0), Ok(None));
    let put = |at, value: u16| area.map().write_obj(value, GuestAddress(at)).unwrap();
    assert_eq!(open(2), Err(Violation::Inflight), "two were used, and one is noted");
    put(12, 16);
    assert_eq!(open(1), Err(Violation::Inflight), "there is no such head");
    put(10, 32);
    assert_eq!(open(0), Err(Violation::Inflight), "another size");
    put(8, 2);
    assert_eq!(open(0), Err(Violation::Inflight), "another version");
    assert!(Tracking::open(area.clone(), 2, 16, 0, 0).is_err(), "too short");
    assert!(Tracking::open(area.clone(), 1, 16, 1, 0).is_err(), "no such queue");
    assert_eq!((area_len(0, 16), area_len(17, 16), area_len(1, 257)), (None, None, None));
}

/// docs/formats/vhost-user.md: a life that another version has begun is read by this one.
#[test]
fn the_layout_is_the_documented_one() {
    let area = Memory::area(area_len(2, 16).unwrap()).unwrap();
    assert_eq!((area.len(), area_len(1, 1)), (2 * 320, Some(64)));
    let (mut tracking, _) = Tracking::open(area.clone(), 2, 16, 1, 0x0107).unwrap();
    tracking.mark(3).unwrap();
    tracking.mark(2).unwrap();
    tracking.before_used(3).unwrap();
    tracking.unmark(3, 0x0108).unwrap();
    let mut bytes = vec![0; 320];
    area.map().read_slice(&mut bytes, GuestAddress(320)).unwrap();
    let mut expected = vec![0; 320];
    expected[8..16].copy_from_slice(&[1, 0, 16, 0, 3, 0, 8, 1]);
    (expected[16 + 16 * 3 + 8], expected[16 + 16 * 2], expected[16 + 16 * 2 + 8]) = (1, 1, 2);
    assert_eq!(bytes, expected);
}
