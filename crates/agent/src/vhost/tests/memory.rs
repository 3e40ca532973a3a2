//! Memory of queues: what is set aside for each, and what bursts take of the pool.

use std::time::Duration;

use base::{MIB, SECTOR};
use runtime::guest::Ask;

use super::*;
use crate::vhost::driver::{PLAIN, Shape};
use crate::vhost::memory::DEDICATED;
use crate::vhost::protocol::kind;

const LARGE: Shape = Shape { is_indirect: true, piece: 1 << 16 };
/// Each connection may have an eighth of it, all queues together a quarter.
const POOL: u64 = 32 * MIB;
/// So many connections that burst hold all of it.
const BURSTS: usize = 9;

fn name(number: usize) -> String {
    format!("burst-{number}")
}

/// An agent with a small pool, and devices of one volume for those who burst and one more.
fn fixture(seed: u64) -> Fixture {
    let options = Options { payload_bytes_max: POOL, ..Options::default() };
    let fixture = Fixture::with(seed, options, 1 + seed as usize % 3);
    fixture.with_agent(|agent| async move {
        for number in 0..=BURSTS {
            agent.add_device("disk", &path(&name(number))).await.unwrap();
        }
    });
    fixture
}

/// Guests that read more than the pool has, none of which is answered yet.
async fn burst(fixture: &(Rc<Store>, Agent), handle: &Handle) -> Vec<Guest> {
    let (store, agent) = fixture;
    store.delay.set(Duration::from_secs(1));
    let mut guests = Vec::new();
    for number in 0..BURSTS {
        let mut guest = Guest::new(path(&name(number)), 1, 16);
        guest.connect(handle).await.unwrap();
        let before = guest.queues[0].available;
        (0..8).for_each(|_| drop(guest.put_request(0, kind::IN, 0, &[], MIB, LARGE)));
        guest.kick(0, before);
        guests.push(guest);
    }
    handle.sleep(Duration::from_millis(10)).await;
    let statistics = agent.statistics();
    let free = POOL - statistics.payload_bytes - statistics.queue_bytes;
    assert!(free < MIB, "the pool is taken: {statistics:?}");
    guests
}

async fn finish(guests: &mut [Guest]) {
    for guest in guests {
        for _ in 0..8 {
            guest.wait_used(0).await;
        }
    }
}

#[test]
fn a_queue_that_was_idle_starts_while_others_hold_the_pool() {
    for seed in 0..6 {
        let fixture = fixture(seed);
        let inside = (fixture.store.clone(), fixture.agent.clone());
        fixture.run(|handle| async move {
            let mut idle = started(&handle, path("other")).await;
            assert_eq!(idle.write(0, 0, &[1; 512], PLAIN).await, 0);
            let mut guests = burst(&inside, &handle).await;
            inside.0.delay.set(Duration::ZERO);
            for sector in 0..40 {
                assert_eq!(idle.write(1, sector, &[2; 512], PLAIN).await, 0, "seed {seed}");
            }
            assert_eq!(idle.read(0, 0, DEDICATED, LARGE).await.0, 0, "seed {seed}: all of what it has");
            assert!(guests.iter().all(|guest| guest.used_index(0) == 0), "seed {seed}: the pool is still taken");
            finish(&mut guests).await;
            let statistics = inside.1.statistics();
            assert_eq!(statistics.payload_bytes, 0, "seed {seed}: a burst that is over keeps nothing");
            assert_eq!(statistics.queue_bytes, (2 + BURSTS as u64) * DEDICATED);
            assert_eq!((statistics.guest_requests, statistics.guest_requests_pooled), (42 + 72, 72));
        });
        fixture.settle();
        let statistics = fixture.agent.statistics();
        assert_eq!((statistics.payload_bytes, statistics.queue_bytes), (0, 0), "seed {seed}: all came back");
    }
}

/// What is set aside is given back with its queue, and a queue that comes while there is nothing gets it later.
#[test]
fn a_queue_that_finds_no_memory_gets_it_when_there_is_some() {
    let fixture = fixture(1);
    let inside = (fixture.store.clone(), fixture.agent.clone());
    fixture.run(|handle| async move {
        let mut guests = burst(&inside, &handle).await;
        let set_aside = || inside.1.statistics().queue_bytes;
        let before = set_aside();
        let mut late = Guest::new(path(&name(BURSTS)), 8, 16);
        late.connect(&handle).await.unwrap();
        assert_eq!(set_aside(), before, "nobody overtakes those who wait");
        finish(&mut guests).await;
        handle.sleep(Duration::from_millis(1)).await;
        assert_eq!(set_aside(), (8 + BURSTS as u64) * DEDICATED);
        inside.0.delay.set(Duration::ZERO);
        assert_eq!(late.write(7, 0, &[1; 512], PLAIN).await, 0);
        late.ask(Ask::Stop { queue: 7 }).await.unwrap();
        assert_eq!(set_aside(), (7 + BURSTS as u64) * DEDICATED);
        drop(late);
        handle.sleep(Duration::from_millis(1)).await;
        assert_eq!(set_aside(), BURSTS as u64 * DEDICATED);
    });
}

/// All queues together have a quarter; the others work from the pool.
#[test]
fn no_more_than_a_quarter_is_set_aside() {
    let fixture = fixture(2);
    let agent = fixture.agent.clone();
    fixture.run(|handle| async move {
        let mut guests = Vec::new();
        for number in 0..5 {
            let mut guest = Guest::new(path(&name(number)), 15, 16);
            guest.connect(&handle).await.unwrap();
            guests.push(guest);
        }
        assert_eq!(agent.statistics().queue_bytes, POOL / 4);
        for guest in &mut guests {
            for queue in 0..15 {
                assert_eq!(guest.read(queue, 0, SECTOR, PLAIN).await.0, 0);
            }
        }
        assert_eq!(agent.statistics().guest_requests_pooled, 75 - 64);
    });
}
