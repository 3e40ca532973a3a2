//! What happens when the way between two processes fails: in-flight requests are lost, nothing is wrong, and it goes on
//! when the cause is gone.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::{ErrorKind, Prng};
use runtime::sim::NetworkOptions;
use runtime::{Address, Class};
use wire::{BlockService, SessionId, Target, VolumeDirectory};

use super::store::Store;
use super::world::{Fixture, Flip, SILENCE, attach, listen, middlebox, options, read, write};
use crate::stream::{FarEnd, NearEnd, Services};

/// Starts a write in a session that is open, and gives what came of it once something has.
type Outcome = Rc<RefCell<Option<Result<(), String>>>>;

fn begin_write(fixture: &Fixture, near: &NearEnd, target: Target) -> Outcome {
    let outcome = Outcome::default();
    let (writing, slot) = (write(near, target, 0, vec![7; 4096]), outcome.clone());
    let work = async move {
        let answer = writing.await;
        *slot.borrow_mut() = Some(answer.map(|reply| reply.result.unwrap()).map_err(|lost| lost.message));
    };
    fixture.near.spawn(Class::Io, "writer", work).detach();
    outcome
}

#[test]
fn what_is_in_flight_is_lost_with_its_connection_and_a_session_too() {
    let fixture = Fixture::new(1);
    let near = fixture.dial();
    let asking = near.clone();
    let target = fixture.run(async move { attach(&asking).await.unwrap() });
    fixture.store.takes.set(Duration::from_millis(10));
    let outcome = begin_write(&fixture, &near, target);
    fixture.world.run_for(Duration::from_millis(5));
    assert_eq!((fixture.store.in_flight.get(), outcome.borrow().is_none()), (1, true));
    fixture.world.reset_connections(fixture.nodes[0], fixture.nodes[1]);
    fixture.world.run_for(Duration::from_millis(1));
    let lost = outcome.take().unwrap().unwrap_err();
    assert!(lost.contains("the connection with the store was lost"), "{lost}");
    assert!(fixture.store.sessions.borrow().is_empty(), "the far end has closed its session");
    let store = fixture.store.clone();
    let asking = near.clone();
    fixture.run(async move {
        let ended = asking.read(target, 0, 512).await.unwrap();
        let error = ended.result.unwrap_err();
        assert!(error.kind == ErrorKind::Fenced && error.message.contains("attach again"), "{error}");
        BlockService::detach(&asking, target.session).await.unwrap();
        let again = attach(&asking).await.unwrap();
        assert_ne!(again.session, target.session);
        assert_eq!(store.in_flight.get(), 0, "what was taken was done");
        write(&asking, again, 0, vec![8; 4096]).await.unwrap().result.unwrap();
        assert_eq!(read(&asking, again, 0, 4096).await.unwrap().unwrap(), [8; 4096]);
    });
    drop(near);
    fixture.settle();
}

/// One direction carries nothing, the other does: each end finds out by itself or is told, within the silence.
#[test]
fn a_half_open_connection_is_given_up() {
    for (from, to) in [(0, 1), (1, 0)] {
        for seed in 0..5 {
            let fixture = Fixture::new(seed);
            let near = fixture.dial();
            let asking = near.clone();
            let target = fixture.run(async move { attach(&asking).await.unwrap() });
            fixture.world.run_for(Duration::from_millis(1000 + 17 * seed));
            fixture.world.cut_link(fixture.nodes[from], fixture.nodes[to]);
            let outcome = begin_write(&fixture, &near, target);
            fixture.world.run_for(SILENCE + SILENCE / 3);
            let lost = outcome.take().expect("it was given up").unwrap_err();
            assert!(lost.contains("nothing came from") || lost.contains("has ended"), "{lost}");
            fixture.world.mend_link(fixture.nodes[from], fixture.nodes[to]);
            fixture.world.run_for(SILENCE);
            assert!(fixture.store.sessions.borrow().is_empty());
            fixture.run(async move {
                let target = attach(&near).await.unwrap();
                write(&near, target, 0, vec![9; 512]).await.unwrap().result.unwrap();
            });
            fixture.settle();
        }
    }
}

#[test]
fn while_nobody_is_there_the_reason_is_told_and_then_it_goes_on() {
    let fixture = Fixture::new(3);
    let (near, handle) = (fixture.dial(), fixture.near.clone());
    let (a, b) = (fixture.nodes[0], fixture.nodes[1]);
    fixture.world.partition(a, b);
    let asking = near.clone();
    fixture.run(async move {
        let since = handle.now();
        let refused = asking.list().await.unwrap_err();
        assert!(refused.kind == ErrorKind::Io && refused.message.contains("did not answer for 2s"), "{refused}");
        assert!(handle.now().since(since) < SILENCE + SILENCE / 10);
        // Whoever asks right after that hears it at once.
        let since = handle.now();
        assert!(asking.list().await.is_err() && handle.now().since(since) < SILENCE / 10);
    });
    fixture.world.heal(a, b);
    fixture.world.run_for(SILENCE);
    fixture.run(async move { assert_eq!(near.list().await.unwrap().len(), 2) });
    fixture.settle();
}

/// The owner's next life gives out the same numbers again; a session of the last one must not be taken for one of them.
#[test]
fn a_session_does_not_outlive_its_server() {
    let fixture = Fixture::new(4);
    let near = fixture.dial();
    let asking = near.clone();
    let first = fixture.run(async move { attach(&asking).await.unwrap() });
    fixture.world.power_loss(fixture.nodes[1]);
    let handle = fixture.world.restart(fixture.nodes[1]);
    let store = Store::new(&handle);
    let end = FarEnd::new(&handle, store.services(), options("the store"));
    listen(&fixture.world, &handle, &end, fixture.address.clone());
    fixture.world.run_for(2 * SILENCE);
    fixture.run(async move {
        let second = attach(&near).await.unwrap();
        assert_eq!(store.sessions.borrow().keys().copied().collect::<Vec<_>>(), [SessionId(1)]);
        let old = near.read(first, 0, 512).await.unwrap();
        assert_eq!(old.result.unwrap_err().kind, ErrorKind::Fenced);
        assert!(near.read(second, 0, 512).await.unwrap().result.is_ok());
        assert_eq!(store.in_flight_max.get(), 1, "only one of them reached it");
    });
}

#[test]
fn the_sessions_of_an_agent_without_power_end() {
    let fixture = Fixture::new(5);
    let near = fixture.dial();
    let asking = near.clone();
    fixture.run(async move { attach(&asking).await.unwrap() });
    assert_eq!(fixture.store.sessions.borrow().len(), 1);
    // Its loop goes with it.
    std::mem::forget(near);
    fixture.world.power_loss(fixture.nodes[0]);
    fixture.world.run_for(SILENCE - SILENCE / 10);
    assert_eq!((fixture.open(), fixture.store.sessions.borrow().len()), (1, 1));
    fixture.settle();
}

/// A session whose opening is under way when its connection ends is closed when it is open.
#[test]
fn an_attachment_that_nobody_hears_of_is_taken_back() {
    let fixture = Fixture::new(6);
    fixture.store.takes.set(Duration::from_millis(50));
    let near = fixture.dial();
    let (a, b) = (fixture.nodes[0], fixture.nodes[1]);
    fixture.world.after(Duration::from_millis(10), move |world| world.reset_connections(a, b));
    let refused = fixture.run(async move { attach(&near).await.unwrap_err() });
    assert_eq!(refused.kind, ErrorKind::Io);
    assert!(fixture.store.sessions.borrow().is_empty(), "it is under way");
    fixture.settle();
    assert_eq!(*fixture.store.log.borrow(), ["attach v1 g4", "detach session 1"]);
}

/// Slow is not silent: what takes longer than the silence, but moves, comes through.
#[test]
fn a_slow_way_is_waited_for() {
    let fixture = Fixture::new(7);
    let delay = SILENCE / 3;
    fixture.world.set_network(NetworkOptions {
        transfer_bytes_per_sec: 4 << 20,
        loss_one_in: 20,
        ..NetworkOptions::default()
    });
    fixture.world.set_extra_delay(fixture.nodes[0], fixture.nodes[1], delay);
    let (near, handle) = (fixture.dial(), fixture.near.clone());
    fixture.run(async move {
        let target = attach(&near).await.unwrap();
        let since = handle.now();
        let mut data = vec![0; 16 << 20];
        Prng::new(7).fill(&mut data);
        write(&near, target, 0, data.clone()).await.unwrap().result.unwrap();
        assert!(read(&near, target, 0, 16 << 20).await.unwrap().unwrap() == data);
        assert!(handle.now().since(since) > 2 * SILENCE);
    });
    fixture.settle();
}

#[test]
fn whoever_has_nothing_to_say_stays_connected() {
    let fixture = Fixture::new(8);
    let near = fixture.dial();
    let asking = near.clone();
    let target = fixture.run(async move { attach(&asking).await.unwrap() });
    fixture.world.run_for(20 * SILENCE);
    fixture.run(async move { near.flush(target).await.unwrap().result.unwrap() });
    assert_eq!(fixture.end.statistics().accepted, 1);
    fixture.settle();
}

/// A bit changes on the way, in a header, a body or a payload, in either direction: the connection is lost, and nobody
/// reads or stores wrong bytes.
#[test]
fn a_flipped_bit_is_a_lost_connection_and_never_wrong_bytes() {
    let mut refused_by_far = 0;
    for seed in 0..120 {
        let fixture = Fixture::new(seed);
        let mut prng = fixture.world.fork_prng();
        let flip = Flip { to_far: seed % 2 == 0, at: prng.below(24_000), bit: prng.below(8) as u8 };
        let (address, flipped) = middlebox(&fixture, flip);
        let near = NearEnd::dial(&fixture.near, address, Services::default(), options("an agent"));
        let handle = fixture.near.clone();
        let lost = fixture.run(async move {
            let (mut lost, mut written) = (0, Vec::new());
            for _ in 0..4 {
                match life(&near, &mut prng, &mut written).await {
                    Ok(()) => return lost,
                    Err(_) => lost += 1,
                }
                handle.sleep(Duration::from_secs(1)).await;
            }
            panic!("seed {seed}: one bit is one lost connection");
        });
        assert!(flipped.get(), "seed {seed}: the bit was on the way");
        assert_eq!(lost, 1, "seed {seed}: {} {}", flip.to_far, flip.at);
        refused_by_far += fixture.end.statistics().violations;
        fixture.settle();
    }
    assert!(refused_by_far >= 60, "what goes to the far end is refused there: {refused_by_far}");
}

/// Attaches, writes and reads; whatever is read was written before, or just now and nobody knows.
async fn life(near: &NearEnd, prng: &mut Prng, written: &mut Vec<(u64, Vec<u8>)>) -> Result<(), String> {
    let target = attach(near).await.map_err(|error| error.message)?;
    for (offset, len) in [(0, 4096), (4096, 512), (65_536, 20_480)] {
        let mut data = vec![0; len];
        prng.fill(&mut data);
        written.push((offset, data.clone()));
        write(near, target, offset, data).await.map_err(|lost| lost.message)?.result.map_err(|error| error.message)?;
        let bytes = read(near, target, offset, len as u64).await.map_err(|lost| lost.message)?;
        let bytes = bytes.map_err(|error| error.message)?;
        // Nobody else writes: it is the last one.
        assert!(written.last().is_some_and(|(_, last)| *last == bytes), "wrong bytes were read");
    }
    Ok(())
}

/// Connections that break all the time, under many requests at once: every answer is right, and nothing is left.
#[test]
fn answers_stay_right_while_connections_break() {
    let (answered, lost) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    for seed in 0..20 {
        let fixture = Fixture::new(seed);
        fixture.store.takes.set(Duration::from_micros(300));
        let (a, b) = (fixture.nodes[0], fixture.nodes[1]);
        let mut prng = fixture.world.fork_prng();
        let mut at = Duration::ZERO;
        for _ in 0..30 {
            at += Duration::from_micros(prng.between(100, 20_000));
            let what = prng.below(3);
            fixture.world.after(at, move |world| match what {
                0 => world.reset_connections(a, b),
                1 => {
                    world.partition(a, b);
                    world.after(Duration::from_millis(3), move |world| world.heal(a, b));
                }
                _ => world.set_extra_delay(b, a, Duration::from_micros(at.as_micros() as u64 % 3000)),
            });
        }
        let (near, handle) = (fixture.dial(), fixture.near.clone());
        let counts = (answered.clone(), lost.clone());
        fixture.run(async move {
            let writers: Vec<_> = (0..16u64)
                .map(|writer| {
                    let (near, inside, counts) = (near.clone(), handle.clone(), counts.clone());
                    handle.spawn(Class::Io, "writer", async move {
                        let (mut session, mut known) = (None, vec![vec![0; 4096]]);
                        for round in 1..60u64 {
                            let target = match session {
                                Some(target) => target,
                                None => match attach(&near).await {
                                    Ok(target) => *session.insert(target),
                                    Err(_) => {
                                        inside.sleep(Duration::from_millis(1)).await;
                                        continue;
                                    }
                                },
                            };
                            let data = vec![(round + writer) as u8; 4096];
                            known.push(data.clone());
                            let offset = writer * 4096;
                            match write(&near, target, offset, data).await.map(|reply| reply.result) {
                                // Nobody knows of those before any more.
                                Ok(Ok(())) => drop(known.drain(..known.len() - 1)),
                                _ => {
                                    counts.1.set(counts.1.get() + 1);
                                    session = None;
                                    continue;
                                }
                            }
                            if let Ok(Ok(bytes)) = read(&near, target, offset, 4096).await {
                                assert!(known.contains(&bytes), "seed {seed}: wrong bytes");
                                counts.0.set(counts.0.get() + 1);
                            }
                        }
                    })
                })
                .collect();
            for writer in writers {
                writer.await;
            }
        });
        fixture.settle();
    }
    assert!(answered.get() > 5_000 && lost.get() > 200, "{} answered, {} lost", answered.get(), lost.get());
}

#[test]
fn what_does_not_listen_there_is_named() {
    let fixture = Fixture::new(9);
    let nobody = Address::Tcp((fixture.world.address(fixture.nodes[1]), 9).into());
    let near = NearEnd::dial(&fixture.near, nobody, Services::default(), options("an agent"));
    fixture.run(async move {
        let refused = attach(&near).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Io);
        assert!(
            refused.message.contains(":9: cannot be reached") && refused.message.contains("see whether"),
            "{refused}"
        );
    });
}
