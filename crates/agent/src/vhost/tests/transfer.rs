//! What guests read is what they wrote, in every shape of request.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::{ErrorKind, MIB, Prng, SECTOR};
use runtime::guest::{Answer, Ask};

use super::*;
use crate::vhost::driver::{Guest, PLAIN, Shape, shape};
use crate::vhost::protocol::{feature, kind};

#[test]
fn what_was_written_is_read() {
    for seed in 0..30 {
        let fixture = Fixture::new(seed);
        fixture.attached(move |mut guest| async move {
            let mut prng = Prng::new(seed);
            for n in 0..20u64 {
                let len = prng.between(1, 64) * SECTOR;
                let data: Vec<u8> = (0..len).map(|_| prng.next_u64() as u8).collect();
                // Over the edge of a stripe unit, and of a segment's turn.
                let sector = prng.below(600);
                let queue = n as usize % 2;
                assert_eq!(guest.write(queue, sector, &data, shape(&mut prng)).await, 0);
                assert_eq!(guest.read(1 - queue, sector, len, shape(&mut prng)).await, (0, data), "seed {seed}");
            }
        });
    }
}

/// Many requests at once in two queues: each is answered once, and each sector has what its last write put there.
#[test]
fn full_queues_are_served() {
    for seed in 0..10 {
        let fixture = Fixture::new(seed);
        fixture.store.delay.set(Duration::from_millis(2));
        let counts = fixture.attached(move |mut guest| async move {
            let mut prng = Prng::new(seed);
            let mut asked: BTreeMap<(usize, u16), (u64, Vec<u8>)> = BTreeMap::new();
            let befores = [0, 1].map(|queue: usize| guest.queues[queue].available);
            for n in 0..128u64 {
                let queue = n as usize % 2;
                let data = vec![n as u8 + 1; 512];
                let request =
                    guest.put_request(queue, kind::OUT, n, &data, 0, Shape { is_indirect: true, piece: 4096 });
                asked.insert((queue, request.head), (n, data));
            }
            guest.kick(0, befores[0]);
            guest.kick(1, befores[1]);
            while !asked.is_empty() {
                let queue = asked.keys().next().expect("it is not empty").0;
                let (head, _) = guest.wait_used(queue).await;
                asked.remove(&(queue, head)).expect("each is answered once");
            }
            let (status, all) = guest.read(0, 0, 128 * SECTOR, shape(&mut prng)).await;
            assert_eq!(status, 0);
            assert!((0..128).all(|n| all[n * 512..(n + 1) * 512].iter().all(|byte| *byte == n as u8 + 1)));
            (guest.queues[0].calls + guest.queues[1].calls, guest.queues[0].kicks + guest.queues[1].kicks)
        });
        // Those that are done in one turn of the loop are told together, and nobody kicks who was not asked to.
        assert!(counts.0 < 120 && counts.1 <= 3, "{counts:?}");
        let statistics = &fixture.agent.volume_statistics()[0].2;
        assert_eq!((statistics.write.latency_ns.count(), statistics.write.bytes), (128, 128 * 512));
    }
}

#[test]
fn a_guest_that_does_not_say_when_to_tell_is_told_always() {
    let fixture = Fixture::new(1);
    fixture.run(|handle| async move {
        let mut guest = Guest::new(path("disk"), 1, 16);
        guest.features &= !feature::EVENT_IDX;
        guest.connect(&handle).await.unwrap();
        for n in 0..40 {
            assert_eq!(guest.write(0, n, &[1; 512], PLAIN).await, 0);
        }
    });
}

#[test]
fn flushes_discards_and_zeroes() {
    let fixture = Fixture::new(2);
    let store = fixture.store.clone();
    fixture.attached(|mut guest| async move {
        assert_eq!(guest.write(0, 0, &[7; 8192], PLAIN).await, 0);
        let flush = guest.request(0, kind::FLUSH, 0, &[], 0, PLAIN);
        assert_eq!(guest.outcome(0, &flush).await.0, 0);
        assert_eq!(guest.range(0, kind::DISCARD, 0, 2, 0).await, 0);
        assert_eq!(guest.range(0, kind::WRITE_ZEROES, 4, 2, 0).await, 0);
        assert_eq!(guest.range(1, kind::WRITE_ZEROES, 8, 2, 1).await, 0);
        let (_, bytes) = guest.read(1, 0, 8192, PLAIN).await;
        let zeros = |sector: usize| bytes[sector * 512..(sector + 1) * 512].iter().all(|byte| *byte == 0);
        let expected = [true, true, false, false, true, true, false, false, true, true, false, false, false];
        assert_eq!((0..13).map(zeros).collect::<Vec<_>>(), expected);
        // Of the rules: a discard has no flag, zeroes have one; ranges end with the disk.
        assert_eq!(guest.range(0, kind::DISCARD, 0, 2, 1).await, 2);
        assert_eq!(guest.range(0, kind::WRITE_ZEROES, 0, 2, 2).await, 2);
        assert_eq!(guest.range(0, kind::DISCARD, (8 * GIB / SECTOR) - 1, 2, 0).await, 1);
        assert_eq!(guest.range(0, kind::DISCARD, 0, 0, 0).await, 1);
        // The store says no: so does the disk, and goes on.
        store.fails.set(Some((ErrorKind::Full, 1)));
        assert_eq!(guest.write(0, 0, &[7; 512], PLAIN).await, 1);
        assert_eq!(guest.write(0, 0, &[7; 512], PLAIN).await, 0);
    });
}

#[test]
fn requests_that_make_no_sense_are_answered() {
    let fixture = Fixture::new(3);
    fixture.attached(|mut guest| async move {
        let end = 8 * GIB / SECTOR;
        assert_eq!(guest.read(0, end, 512, PLAIN).await.0, 1);
        assert_eq!(guest.read(0, u64::MAX, 512, PLAIN).await.0, 1);
        assert_eq!(guest.write(0, end - 1, &[1; 1024], PLAIN).await, 1);
        assert_eq!(guest.write(0, 0, &[1; 100], PLAIN).await, 1);
        assert_eq!(guest.write(0, 0, &[], PLAIN).await, 1);
        let unknown = guest.request(0, 77, 0, &[], 0, PLAIN);
        assert_eq!(guest.outcome(0, &unknown).await.0, 2);
        let short = guest.request(0, kind::GET_ID, 0, &[], 3, PLAIN);
        assert_eq!(guest.outcome(0, &short).await.0, 1);
        let id = guest.request(0, kind::GET_ID, 0, &[], 20, PLAIN);
        assert_eq!(guest.outcome(0, &id).await, (0, b"levee-1\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec()));
        assert_eq!(guest.write(0, end - 1, &[1; 512], PLAIN).await, 0);
    });
    assert_eq!(fixture.agent.statistics().violations, 0);
}

#[test]
fn a_disk_says_what_it_is_like() {
    let fixture = Fixture::new(4);
    fixture.attached(|guest| async move {
        let Answer::Bytes(config) = guest.ask(Ask::Config { offset: 0, len: 60 }).await.unwrap() else { panic!() };
        let number = |at: usize| u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
        assert_eq!(u64::from(number(0)) | u64::from(number(4)) << 32, 8 * GIB / SECTOR);
        assert_eq!((number(8), number(12), number(20)), (256 << 10, 126, 512));
        assert_eq!((config[24], config[26], number(28)), (3, 8, 256));
        assert_eq!((config[34], number(36), number(40)), (16, 2 << 20, 1));
        assert_eq!((number(44), number(48), number(52), config[56]), (8, 128 << 10, 1, 1));
        let part = guest.ask(Ask::Config { offset: 20, len: 4 }).await.unwrap();
        assert_eq!(part, Answer::Bytes(512u32.to_le_bytes().to_vec()));
        let behind = guest.ask(Ask::Config { offset: 60, len: 4 }).await.unwrap();
        assert_eq!(behind, Answer::Bytes(vec![0; 4]));
    });
}

#[test]
fn a_volume_that_is_read_only_is_not_written() {
    let fixture = Fixture::new(5);
    fixture.store.volumes.borrow_mut().get_mut("disk").unwrap().read_only = true;
    fixture.attached(|mut guest| async move {
        let Answer::Number(features) = guest.ask(Ask::Features).await.unwrap() else { panic!() };
        assert_eq!(features & (feature::RO | feature::DISCARD | feature::WRITE_ZEROES), feature::RO);
        assert_eq!(guest.write(0, 0, &[1; 512], PLAIN).await, 1);
        assert_eq!(guest.range(0, kind::DISCARD, 0, 2, 0).await, 1);
        assert_eq!(guest.read(0, 0, 512, PLAIN).await, (0, vec![0; 512]));
    });
}

/// What is in flight is bounded by the memory for payloads, whatever the guests want.
#[test]
fn payload_memory_is_bounded() {
    let options = Options { payload_bytes_max: 32 * MIB, ..Options::default() };
    let fixture = Fixture::with(6, options, 1);
    fixture.store.delay.set(Duration::from_millis(5));
    let agent = fixture.agent.clone();
    let most = Rc::new(std::cell::Cell::new(0));
    let seen = most.clone();
    fixture.attached(move |mut guest| async move {
        let big = Shape { is_indirect: true, piece: 256 << 10 };
        for n in 0..16 {
            guest.request(n % 2, kind::IN, 0, &[], MIB, big);
        }
        for n in 0..16 {
            guest.wait_used(n % 2).await;
            seen.set(seen.get().max(agent.statistics().payload_bytes));
        }
    });
    // An eighth of all for one connection.
    assert!(most.get() > 0 && most.get() <= 4 * MIB, "{most:?}");
    assert!(fixture.store.reading_max.get() <= 4 * MIB, "{:?}", fixture.store.reading_max);
    assert_eq!(fixture.agent.statistics().payload_bytes, 0);
}
