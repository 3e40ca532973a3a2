//! One queue, several loops: each request is run once, by one of them, and what concerns a queue or a disk holds on all.

use std::collections::VecDeque;
use std::time::Duration;

use base::{Prng, SECTOR, Set};
use policies::queues::Queues;
use policies::tenants::Dimension;
use runtime::guest::{Answer, Ask, Bell};
use runtime::sync::first;

use super::*;
use crate::vhost::claims::{Claim, Claims};
use crate::vhost::driver::{Asked, PLAIN, Shape, WRITE, places};
use crate::vhost::protocol::kind;
use crate::vhost::ring::{Places, Ring};

/// One descriptor for each request: as many as a queue has may be under way.
const INDIRECT: Shape = Shape { is_indirect: true, piece: 4096 };

/// A machine whose requests take a loop so long.
fn busy(request_us: u64) -> CpuOptions {
    CpuOptions { request_ns: request_us * 1000, crossing_ns: 2000, lock_ns: 50, ..CpuOptions::default() }
}

/// All ways in which loops share queues.
const WAYS: [Queues; 4] = [Queues::Shared, Queues::Static, Queues::Dispatcher, Queues::Stealing];

/// Each way with so many seeds.
fn ways(seeds: u64) -> impl Iterator<Item = (Queues, u64)> {
    WAYS.into_iter().flat_map(move |queues| (0..seeds).map(move |seed| (queues, seed)))
}

fn sharing(queues: Queues) -> Options {
    Options { queues, ..Options::default() }
}

/// Puts writes of one sector each into a queue, from `sector` on, with one kick.
fn put_writes(guest: &mut Guest, queue: usize, sector: u64, count: u64, value: u8) -> Vec<Asked> {
    let before = guest.queues[queue].available;
    let put = |n| guest.put_request(queue, kind::OUT, sector + n, &[value; 512], 0, INDIRECT);
    let asked = (0..count).map(put).collect();
    guest.kick(queue, before);
    asked
}

/// Loops that have begun requests.
fn loops_used(agent: &Agent) -> usize {
    agent.guest_requests().into_iter().filter(|begun| *begun > 0).count()
}

#[test]
fn a_burst_of_one_queue_is_run_by_all_loops() {
    for loops in [1, 2, 4] {
        let fixture = Fixture::on(loops as u64, busy(10), Options::default(), loops);
        let agent = fixture.agent.clone();
        fixture.attached(|mut guest| async move {
            let mut asked = put_writes(&mut guest, 0, 0, 240, 7);
            while !asked.is_empty() {
                let (head, _) = guest.wait_used(0).await;
                asked.retain(|other| other.head != head);
            }
            let (status, bytes) = guest.read(1, 0, 240 * SECTOR, PLAIN).await;
            assert_eq!((status, bytes), (0, vec![7; 240 * 512]));
        });
        let begun = agent.guest_requests();
        assert_eq!(begun.iter().sum::<u64>(), 241, "each once");
        // The first loop is also the store of this test, and takes less.
        assert!(begun.iter().all(|begun| *begun >= 240 / loops as u64 / 2), "{begun:?}");
    }
}

/// Requests of one queue, 128 at once, that so many loops answer in 40 ms, after they have begun for 20, of which each takes
/// 20 us; and how many each loop did.
fn throughput(options: Options, loops: usize) -> (usize, Vec<u64>) {
    let cpu = CpuOptions { request_ns: 20_000, crossing_ns: 500, lock_ns: 50, ..CpuOptions::default() };
    let fixture = Fixture::on(1, cpu, options, loops);
    let agent = fixture.agent.clone();
    fixture.run(|handle| async move {
        let mut guest = started(&handle, path("disk")).await;
        put_writes(&mut guest, 0, 0, 128, 1);
        let mut sector = 128;
        let mut ask_for = async |span| {
            let (end, mut answered) = (handle.now() + span, 0);
            while handle.now() < end {
                guest.wait_used(0).await;
                let more = 1 + std::iter::from_fn(|| guest.next_used(0)).count();
                put_writes(&mut guest, 0, sector % (1 << 20), more as u64, 1);
                (answered, sector) = (answered + more, sector + more as u64);
            }
            answered
        };
        ask_for(Duration::from_millis(20)).await;
        let before = agent.guest_requests();
        let answered = ask_for(Duration::from_millis(40)).await;
        (answered, agent.guest_requests().into_iter().zip(before).map(|(after, before)| after - before).collect())
    })
}

/// What a queue gets grows with the loops (the paper's figure 18a: nearly linear), and those do as much each that have nothing
/// else to do (figure 18c): the first one is also the store of this test, and takes less. Where a queue belongs to one loop
/// (figure 10a) it gets what that has.
#[test]
fn one_queue_is_served_by_as_many_processors_as_there_are_loops() {
    let (alone, _) = throughput(sharing(Queues::Shared), 1);
    for (loops, least) in [(2, 1.8), (4, 3.4), (6, 5.0)] {
        let (shared, each) = throughput(sharing(Queues::Shared), loops);
        let (bound, _) = throughput(sharing(Queues::Static), loops);
        let [shared, bound] = [shared, bound].map(|answered| answered as f64 / alone as f64);
        let [most, fewest] = [each[1..].iter().max(), each[1..].iter().min()].map(|count| *count.unwrap() as f64);
        println!("{loops} loops: {shared:.2} times as much, most by fewest {:.3}; static {bound:.2}", most / fewest);
        assert!(shared >= least, "{loops} loops: {shared:.2} times as much as one");
        assert!(bound < 1.1, "{loops} loops: {bound:.2} times as much as one");
        assert!(most / fewest <= 1.1, "{loops} loops: {each:?}");
    }
}

/// A limit of what all loops have together is divided among them. One that has used its part leaves the queue to those that have
/// not, though it could claim all that is there.
#[test]
fn one_queue_gets_the_whole_of_a_limit_whichever_loops_serve_it() {
    let mut options = Options::default();
    // Of 50,000 requests of 512 bytes that one loop could do in a second.
    options.tenants.per_second.set(Dimension::Ingress, 20_000.0 * 512.0);
    let (alone, _) = throughput(options.clone(), 1);
    assert!((700..=900).contains(&alone), "in 40 ms: {alone}");
    for loops in [2, 4] {
        let (shared, each) = throughput(options.clone(), loops);
        println!("{loops} loops: {shared}, one {alone}; {each:?}");
        assert!(shared * 10 >= alone * 9, "{loops} loops: {shared} instead of {alone}: {each:?}");
    }
}

/// A message costs the loop that sends it and the one that gets it. A dispatcher hands to the next loop first, and then it is its
/// own turn; one who steals has asked when it began, gets the first batch, and asks again when the owner has run the second.
/// What the second loop runs is an errand more for the store of this test, each.
#[test]
fn messages_between_loops_are_charged_at_both_ends() {
    const CROSSING: u64 = 100_000;
    let cpu = CpuOptions { crossing_ns: CROSSING, ..CpuOptions::default() };
    for (queues, count, ends) in [
        (Queues::Shared, 1, [0, 0]),
        (Queues::Static, 8, [0, 0]),
        (Queues::Dispatcher, 1, [2 + 1, 0]),
        (Queues::Stealing, 1, [0, 0]),
        (Queues::Stealing, 8, [3 + 4, 2 + 4]),
    ] {
        let fixture = Fixture::on(1, cpu, sharing(queues), 2);
        let took = fixture.run(|handle| async move {
            let mut guest = started(&handle, path("disk")).await;
            handle.sleep(Duration::from_millis(1)).await;
            let mut took = Vec::new();
            for _ in 0..2 {
                let since = handle.now();
                for _ in put_writes(&mut guest, 0, 0, count, 1) {
                    guest.wait_used(0).await;
                }
                took.push(handle.now().nanos_since(since) / CROSSING);
                handle.sleep(Duration::from_millis(1)).await;
            }
            took
        });
        assert_eq!(took, ends, "{queues:?}, {count} at once: in crossings");
    }
}

/// A dispatcher uses all loops, one after the other; one queue that others steal from is run by all.
#[test]
fn what_one_loop_claims_is_run_by_all() {
    for queues in [Queues::Dispatcher, Queues::Stealing] {
        let (alone, _) = throughput(sharing(queues), 1);
        let (shared, each) = throughput(sharing(queues), 4);
        println!("{queues:?}: {:.2} times as much as one loop, {each:?}", shared as f64 / alone as f64);
        assert!(shared as f64 >= 2.0 * alone as f64, "{queues:?}: {shared} by four loops, {alone} by one");
    }
}

/// Nobody takes anything from a loop that can do it itself.
#[test]
fn a_few_requests_are_not_stolen() {
    let fixture = Fixture::on(1, busy(10), sharing(Queues::Stealing), 3);
    let agent = fixture.agent.clone();
    fixture.attached(|mut guest| async move {
        for n in 0..20 {
            for queue in 0..2 {
                for _ in put_writes(&mut guest, queue, n * 4, 4, 1) {
                    guest.wait_used(queue).await;
                }
            }
        }
    });
    assert_eq!(agent.guest_requests(), [80, 80, 0], "each queue by its own loop");
}

/// The next connection writes into the same rings: it begins when nothing is left of what one loop has handed to another, also
/// of what that has not begun with, because another disk keeps it busy.
#[test]
fn a_connection_ends_when_what_was_handed_over_has_run() {
    for (queues, seed) in ways(10) {
        let fixture = Fixture::on(seed, busy(20), sharing(queues), 3);
        fixture.run(|handle| async move {
            let mut guest = started(&handle, path("disk")).await;
            let mut other = started(&handle, path("other")).await;
            let before = guest.queues[0].available;
            for _ in 0..3 {
                put_writes(&mut other, 0, 0, 80, 1);
                put_writes(&mut guest, 0, 0, 80, 1);
            }
            handle.sleep(Duration::from_micros(500 + 100 * seed)).await;
            guest.visitor = None;
            guest.connect(&handle).await.unwrap();
            for _ in 0..240 {
                guest.wait_used(0).await;
            }
            handle.sleep(Duration::from_millis(20)).await;
            assert_eq!(guest.used_index(0), before.wrapping_add(240), "{queues:?}, seed {seed}: each once");
        });
    }
}

/// Who has a queue of its own to look after asks for nothing: what loops would exchange there are messages.
#[test]
fn a_loop_that_has_enough_does_not_steal() {
    let took = [Queues::Static, Queues::Stealing].map(|queues| {
        let cpu = CpuOptions { request_ns: 10_000, crossing_ns: 20_000, ..CpuOptions::default() };
        let fixture = Fixture::on(1, cpu, sharing(queues), 2);
        let handle = fixture.guests.clone();
        fixture.attached(move |mut guest| async move {
            handle.sleep(Duration::from_millis(1)).await;
            let since = handle.now();
            for queue in 0..2 {
                let before = guest.queues[queue].available;
                // The store has no part in that.
                (0..200).for_each(|_| drop(guest.put_request(queue, kind::GET_ID, 0, &[], 20, INDIRECT)));
                guest.kick(queue, before);
            }
            for queue in [0, 1].repeat(200) {
                guest.wait_used(queue).await;
            }
            handle.now().nanos_since(since)
        })
    });
    let [bound, stealing] = took;
    assert!(stealing < bound + bound / 5, "{bound} ns, {stealing} where loops may steal");
}

/// What asks for little goes by one loop: nobody else is woken for it.
#[test]
fn a_few_requests_wake_no_other_loop() {
    let fixture = Fixture::on(1, busy(10), Options::default(), 4);
    let agent = fixture.agent.clone();
    fixture.attached(|mut guest| async move {
        for n in 0..20 {
            for queue in 0..2 {
                for _ in put_writes(&mut guest, queue, n * 4, 4, 1) {
                    guest.wait_used(queue).await;
                }
            }
        }
    });
    assert_eq!(agent.guest_requests(), [80, 80, 0, 0], "each queue by the loop that listens there");
}

#[test]
fn with_static_queues_each_is_served_by_its_own_loop() {
    let options = Options { queues: Queues::Static, ..Options::default() };
    let fixture = Fixture::on(3, busy(10), options, 3);
    let agent = fixture.agent.clone();
    fixture.attached(|mut guest| async move {
        for queue in 0..2 {
            let count = [100, 50][queue];
            for _ in put_writes(&mut guest, queue, 200 * queue as u64, count, 1) {
                guest.wait_used(queue).await;
            }
        }
    });
    assert_eq!(agent.guest_requests(), [100, 50, 0]);
}

/// The answer to a stop comes when nothing of the queue is in flight on any loop, and no loop touches its rings after it.
#[test]
fn a_stop_waits_for_every_loop() {
    for (queues, seed) in ways(10) {
        let fixture = Fixture::on(seed, busy(5), sharing(queues), 2 + seed as usize % 3);
        fixture.store.delay.set(Duration::from_millis(3));
        let agent = fixture.agent.clone();
        fixture.run(|handle| async move {
            let mut guest = started(&handle, path("disk")).await;
            put_writes(&mut guest, 0, 0, 200, 1);
            handle.sleep(Duration::from_micros(100 + 50 * seed)).await;
            assert!(queues == Queues::Static || loops_used(&agent) > 1, "{queues:?}, seed {seed}");
            let Answer::Number(next) = guest.ask(Ask::Stop { queue: 0 }).await.unwrap() else { panic!() };
            assert_eq!(guest.used_index(0), next as u16, "{queues:?}, seed {seed}: all that was claimed was used");
            let call = guest.queues[0].call.clone();
            let is_told = async |wait| first(call.wait(), handle.sleep(wait)).await.is_ok();
            assert!(is_told(Duration::from_micros(1)).await, "{queues:?}, seed {seed}: the guest was told");
            assert!(!is_told(Duration::from_millis(20)).await, "{queues:?}, seed {seed}: before the answer");
            assert_eq!(guest.used_index(0), next as u16, "{queues:?}, seed {seed}: nothing else was used");
            guest.set_up_queue(0).await.unwrap();
            for _ in 0..200 {
                guest.wait_used(0).await;
            }
            assert_eq!(guest.next_used(0), None);
        });
    }
}

/// A descriptor that breaks the rules in the middle of a burst: what came before it is answered, the disk ends on all loops,
/// that is said once, and its driver can begin anew.
#[test]
fn a_guest_that_breaks_the_rules_ends_its_disk_on_every_loop() {
    for (queues, seed) in ways(10) {
        let fixture = Fixture::on(seed, busy(5), sharing(queues), 2 + seed as usize % 3);
        fixture.store.delay.set(Duration::from_millis(1));
        let agent = fixture.agent.clone();
        fixture.run(|handle| async move {
            let mut guest = started(&handle, path("disk")).await;
            let before = guest.queues[0].available;
            let good: Set<u16> = put_writes(&mut guest, 0, 0, 8 * seed, 1).iter().map(|asked| asked.head).collect();
            // The same again, whichever loops find it: no header.
            for _ in 0..seed + 1 {
                guest.put_chain(0, &[(0x10_0000, 1, WRITE)]);
            }
            let after: Set<u16> = put_writes(&mut guest, 0, 1000, 60, 2).iter().map(|asked| asked.head).collect();
            guest.kick(0, before);
            guest.queues[0].kick.ring();
            handle.sleep(Duration::from_millis(20)).await;
            let mut used = Set::default();
            while let Some((head, _)) = guest.next_used(0) {
                assert!(good.contains(&head) || after.contains(&head));
                used.insert(head);
            }
            assert!(good.is_subset(&used), "{queues:?}, seed {seed}: what was right, and came before");
            put_writes(&mut guest, 1, 0, 40, 3);
            handle.sleep(Duration::from_millis(20)).await;
            assert_eq!(
                (guest.next_used(0), guest.next_used(1)),
                (None, None),
                "{queues:?}, seed {seed}: nothing of it is served"
            );
            assert_eq!(agent.statistics().violations, 1, "{queues:?}, seed {seed}: it is said once");
            guest.reset().await.unwrap();
            for _ in put_writes(&mut guest, 0, 0, 60, 4) {
                guest.wait_used(0).await;
            }
        });
        fixture.settle();
        assert_eq!(fixture.agent.statistics().payload_bytes, 0, "{queues:?}, seed {seed}");
    }
}

/// Several loops have something wrong in what they have claimed, and come to it at the same time: they wait for memory first.
#[test]
fn what_several_loops_find_wrong_is_said_once() {
    for (queues, seed) in ways(10) {
        let fixture = Fixture::on(seed, busy(5), sharing(queues), 4);
        fixture.store.delay.set(Duration::from_millis(1));
        let agent = fixture.agent.clone();
        fixture.run(|handle| async move {
            let mut guest = started(&handle, path("disk")).await;
            let read = |guest: &mut Guest, queue| guest.put_request(queue, kind::IN, 0, &[], base::MIB / 2, INDIRECT);
            let before = guest.queues[1].available;
            (0..24).for_each(|_| drop(read(&mut guest, 1)));
            guest.kick(1, before);
            handle.sleep(Duration::from_micros(500)).await;
            let before = guest.queues[0].available;
            for _ in 0..8 {
                (0..2).for_each(|_| drop(read(&mut guest, 0)));
                for _ in 0..6 {
                    guest.put_chain(0, &[(0x10_0000, 1, WRITE)]);
                }
            }
            guest.kick(0, before);
            handle.sleep(Duration::from_millis(50)).await;
            assert_eq!(agent.statistics().violations, 1, "{queues:?}, seed {seed}");
            assert!(
                queues != Queues::Shared || loops_used(&agent) > 2,
                "{queues:?}, seed {seed}: {:?}",
                agent.guest_requests()
            );
            guest.reset().await.unwrap();
            assert_eq!(guest.write(0, 0, &[1; 512], PLAIN).await, 0);
        });
    }
}

/// Whoever stops a queue learns of it when every loop has told the guest what it used.
#[test]
fn a_queue_is_busy_until_its_guest_is_told() {
    let fixture = Fixture::on(1, busy(1), Options::default(), 2);
    fixture.run(|handle| async move {
        let mut guest = Guest::new(path("disk"), 1, 16);
        let (descriptors, available, used) = places(0);
        let ring = Ring::new(&guest.memory, 16, Places { descriptors, available, used }, 0, true).unwrap();
        let claims = Claims::new(ring, guest.memory.clone(), Queues::Shared, 0, 2);
        put_writes(&mut guest, 0, 0, 2, 1);
        let mut heads = VecDeque::new();
        assert!(matches!(claims.claim(&handle, 1, 8, &mut heads, false, |_| 0), Ok(Claim::Taken(_))));
        claims.stop(&handle);
        let (stopped, inside) = (claims.clone(), handle.clone());
        let stopping = handle.spawn(Class::Io, "stop", async move { stopped.wait_until_idle(&inside).await });
        let pause = async || handle.sleep(Duration::from_micros(100)).await;
        for (n, head) in heads.into_iter().enumerate() {
            pause().await;
            assert!(!stopping.is_finished(), "something is in flight");
            // Each on a loop of its own, which has told the guest of nothing yet.
            claims.put_used(&handle, head, 1, true).unwrap();
            if n == 0 {
                claims.notice_told(&handle);
            }
        }
        // Who comes now has to wait as well.
        let late = claims.clone();
        let inside = handle.clone();
        let waiting = handle.spawn(Class::Io, "late", async move { late.wait_until_idle(&inside).await });
        pause().await;
        assert!(!waiting.is_finished(), "the guest was not told");
        drop((waiting, stopping));
        claims.notice_told(&handle);
        assert_eq!(claims.wait_until_idle(&handle).await, 2);
    });
}

/// A loop that listened before may hear the bell in place of the one that listens. The guest rings once: if nobody asked it
/// to ring again, it would wait for ever.
#[test]
fn who_hears_the_bell_listens_from_then_on() {
    let fixture = Fixture::on(1, busy(1), Options::default(), 2);
    fixture.run(|handle| async move {
        let mut guest = Guest::new(path("disk"), 1, 16);
        let (descriptors, available, used) = places(0);
        let ring = Ring::new(&guest.memory, 16, Places { descriptors, available, used }, 0, true).unwrap();
        let claims = Claims::new(ring, guest.memory.clone(), Queues::Shared, 0, 2);
        let mut heads = VecDeque::new();
        assert!(matches!(claims.claim(&handle, 1, 8, &mut heads, false, |_| 0), Ok(Claim::Sleep)));
        assert!(matches!(claims.claim(&handle, 0, 8, &mut heads, false, |_| 0), Ok(Claim::Listen)));
        put_writes(&mut guest, 0, 0, 2, 1);
        claims.hear(&handle, 1);
        assert!(matches!(claims.claim(&handle, 1, 8, &mut heads, false, |_| 0), Ok(Claim::Taken(_))));
        assert_eq!(std::mem::take(&mut heads).len(), 2);
        assert!(matches!(claims.claim(&handle, 1, 8, &mut heads, false, |_| 0), Ok(Claim::Listen)));
        // The one before it needs not look any more.
        assert!(matches!(claims.claim(&handle, 0, 8, &mut heads, false, |_| 0), Ok(Claim::Sleep)));
    });
}

/// A hypervisor that is killed stops nothing first.
#[test]
fn nothing_is_left_of_a_connection_that_breaks() {
    for queues in WAYS {
        let fixture = Fixture::on(1, busy(1), sharing(queues), 3);
        fixture.attached(|mut guest| async move {
            assert_eq!(guest.write(0, 0, &[1; 512], PLAIN).await, 0);
        });
        fixture.settle();
        let tenants = fixture.with_agent(|agent| async move { agent.tenants().await });
        assert_eq!(tenants, [], "{queues:?}: each part has left the volume");
    }
}

/// What a guest does and what is done to it, at random: each request is answered once, and what was written last is read.
/// `LEVEE_SEEDS` is how many seeds are run.
#[test]
fn whatever_happens_each_request_is_run_once() {
    let seeds = std::env::var("LEVEE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(40);
    for (queues, seed) in ways(seeds) {
        let mut prng = Prng::new(seed);
        let (loops, request_us) = (prng.between(2, 5) as usize, *prng.pick(&[0, 1, 20]));
        let mut options = sharing(queues);
        if prng.one_in(3) {
            options.tenants.per_second.set(Dimension::Ingress, 512.0 * *prng.pick(&[20_000.0, 100_000.0]));
        }
        let fixture = Fixture::on(seed, busy(request_us), options, loops);
        fixture.store.delay.set(Duration::from_micros(prng.between(0, 400)));
        fixture.run(|handle| async move {
            let mut guest = Guest::new(path("disk"), 3, 256);
            guest.connect(&handle).await.unwrap();
            // What each sector has, and what is under way, by queue: one write of a sector at a time.
            let mut written = vec![0u8; 1024];
            let mut under_way: Vec<(usize, Asked, u64, u8)> = Vec::new();
            for step in 0..60u64 {
                let queue = prng.below(3) as usize;
                match prng.below(12) {
                    0 => {
                        let Answer::Number(next) = guest.ask(Ask::Stop { queue }).await.unwrap() else { panic!() };
                        assert_eq!(guest.used_index(queue), next as u16, "{queues:?}, seed {seed}");
                        guest.set_up_queue(queue).await.unwrap();
                    }
                    1 => {
                        for is_enabled in [false, true] {
                            guest.ask(Ask::SetEnabled { queue, is_enabled }).await.unwrap();
                        }
                    }
                    2 => {
                        guest.visitor = None;
                        guest.connect(&handle).await.unwrap();
                    }
                    3 => drop(guest.ask(Ask::SetMemory(guest.memory.clone())).await.unwrap()),
                    4 => {
                        let (kick, call) = (Bell::plain(), Bell::plain());
                        guest.ask(Ask::SetKick { queue, bell: Some(kick.bell()) }).await.unwrap();
                        guest.ask(Ask::SetCall { queue, bell: Some(call.bell()) }).await.unwrap();
                        (guest.queues[queue].kick, guest.queues[queue].call) = (kick, call);
                    }
                    _ => {
                        let before = guest.queues[queue].available;
                        for _ in 0..prng.between(1, 60) {
                            let sector = prng.below(1024);
                            let is_free = under_way.iter().all(|(_, _, other, _)| *other != sector);
                            if is_free && under_way.iter().filter(|(of, ..)| *of == queue).count() < 250 {
                                let value = step as u8 + 1;
                                let data = [value; 512];
                                let asked = guest.put_request(queue, kind::OUT, sector, &data, 0, INDIRECT);
                                under_way.push((queue, asked, sector, value));
                            }
                        }
                        guest.kick(queue, before);
                    }
                }
                handle.sleep(Duration::from_micros(prng.below(300))).await;
                for queue in 0..3 {
                    while let Some((head, _)) = guest.next_used(queue) {
                        let is_it = |(of, asked, ..): &(usize, Asked, u64, u8)| *of == queue && asked.head == head;
                        let at = under_way.iter().position(is_it).expect("it was asked for");
                        let (_, asked, sector, value) = under_way.swap_remove(at);
                        assert_eq!(guest.answer(&asked).0, 0, "{queues:?}, seed {seed}");
                        written[sector as usize] = value;
                    }
                }
            }
            while let Some((queue, ..)) = under_way.first() {
                let queue = *queue;
                let (head, _) = guest.wait_used(queue).await;
                let is_it = |(of, asked, ..): &(usize, Asked, u64, u8)| *of == queue && asked.head == head;
                let at = under_way.iter().position(is_it).expect("it was asked for");
                let (_, asked, sector, value) = under_way.swap_remove(at);
                assert_eq!(guest.answer(&asked).0, 0, "{queues:?}, seed {seed}");
                written[sector as usize] = value;
            }
            let (status, bytes) = guest.read(0, 0, 1024 * SECTOR, PLAIN).await;
            assert_eq!(status, 0);
            for (sector, value) in written.iter().enumerate() {
                assert_eq!(
                    bytes[sector * 512..(sector + 1) * 512],
                    [*value; 512],
                    "{queues:?}, seed {seed}, sector {sector}"
                );
            }
        });
        fixture.settle();
        assert_eq!(fixture.agent.statistics().payload_bytes, 0, "{queues:?}, seed {seed}");
    }
}
