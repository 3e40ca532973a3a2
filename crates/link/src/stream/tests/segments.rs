//! What managers and engines say to each other: every call with its arguments and its answer, lists that are longer than a
//! frame, an engine that is another one, and connections that break.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::{Bytes, Epoch, ErrorKind, Generation, Incarnation, SegmentId, Term, VolumeId};
use runtime::Class;
use wire::frame::{ASSIGNED_MAX, HOLDINGS_MAX, LEFT_MAX};
use wire::{
    Assignment, EngineRegistry, LeftSegment, Located, Registered, SegmentDirectory, Source, VolumeDescriptor,
    VolumeDirectory,
};

use super::engine::{ENGINE, EPOCH, Engine, content, holding, segment};
use super::world::{Fixture, SILENCE, listen, options};
use crate::stream::{FarEnd, NearEnd, Services};

const TERM: Term = Term(5);
const DEAD: Incarnation = Incarnation(4);

/// Two nodes, an engine on one of them, and who asks it.
fn fixture(seed: u64) -> (Fixture, Rc<Engine>, NearEnd) {
    let fixture = Fixture::new(seed);
    let (engine, near) = (fixture.engine.clone(), fixture.dial());
    (fixture, engine, near)
}

fn volume(id: VolumeId) -> VolumeDescriptor {
    VolumeDescriptor {
        generation: Generation(6),
        owner: "somebody".into(),
        ..VolumeDescriptor::new(id, "disk", 1 << 30)
    }
}

fn assignment(segment: SegmentId, source: Source) -> Assignment {
    Assignment { volume: volume(segment.volume), segment, epoch: EPOCH, source }
}

fn left(segment: SegmentId, len: usize) -> Source {
    Source::Left(LeftSegment { incarnation: DEAD, content: content(segment, len) })
}

#[test]
fn every_order_crosses_with_its_arguments_and_its_answer() {
    let (fixture, engine, near) = fixture(1);
    fixture.run(async move {
        let owner = near.engine(ENGINE);
        let refused = SegmentId { volume: VolumeId(1), index: 998 };
        let outcomes = owner
            .assign(
                TERM,
                vec![
                    assignment(segment(1), Source::Nobody),
                    assignment(segment(1002), left(segment(1002), 300)),
                    assignment(refused, Source::Estate(DEAD)),
                    assignment(segment(3), left(segment(3), 0)),
                ],
            )
            .await;
        let shown: Vec<_> = outcomes.iter().map(|outcome| outcome.as_ref().map_err(|error| error.kind)).collect();
        assert_eq!(shown, [Ok(&()), Ok(&()), Err(ErrorKind::Conflict), Ok(&())]);
        assert_eq!(outcomes[2].as_ref().unwrap_err().message, "v1/998 was refused here");
        assert!(owner.assign(TERM, vec![]).await.is_empty());
        owner.refuse(TERM, segment(1), EPOCH).await.unwrap();
        let was_left = owner.release(TERM, segment(2), EPOCH).await.unwrap();
        assert_eq!(was_left, LeftSegment { incarnation: ENGINE, content: content(segment(2), 100) });
        assert_eq!(owner.held(segment(3)).await.unwrap(), Some(Epoch(3)));
        assert_eq!(owner.held(segment(901)).await.unwrap(), None);
        let released = [0, 1, 2].map(|number| (segment(number), Epoch(number.into())));
        assert_eq!(owner.released().await.unwrap(), released);
        owner.forget_release(TERM, segment(4), EPOCH).await.unwrap();
        assert_eq!(owner.recover(TERM, DEAD).await.unwrap(), [0, 1, 2].map(holding));
        owner.begin_attachment(TERM, volume(VolumeId(1)), segment(5), EPOCH).await.unwrap();
        owner.drop_segment(TERM, segment(6), EPOCH).await.unwrap();
        // What an engine refuses is no concern of the connection.
        let moved = SegmentId { volume: VolumeId(1), index: 999 };
        let error = owner.release(TERM, moved, EPOCH).await.unwrap_err();
        assert_eq!((error.kind, &*error.message), (ErrorKind::Moved, "v1/999 is not here"));

        let located = Located { owner: ENGINE, address: "left.example:7000".into(), epoch: EPOCH };
        assert_eq!(near.locate(segment(7)).await.unwrap(), located);
        assert_eq!(near.locate(moved).await.unwrap_err().kind, ErrorKind::Retry);
        let registered = near.register(ENGINE, "left", "/run/levee.sock").await.unwrap();
        assert_eq!(registered, Registered { lease_ms: 2000, is_in_charge: true });
        let fenced = near.register(DEAD, "left", "left.example:7000").await.unwrap_err();
        assert!(fenced.kind == ErrorKind::Fenced && fenced.message.contains("start as another one"), "{fenced}");
        let error = near.register(ENGINE, "left", "").await.unwrap_err();
        assert!(error.kind == ErrorKind::Invalid && error.message.contains("1 to 259 bytes"), "{error}");
        let engines = (1..=4).map(Incarnation).collect();
        assert_eq!(near.missing(engines).await.unwrap(), [Incarnation(2), Incarnation(4)]);
    });
    let expected = [
        "assign t5 4",
        "v1/1 e9 g6 nobody",
        "v2/2 e9 g6 i4 left 300 bytes",
        "v1/998 e9 g6 dead i4",
        "v1/3 e9 g6 i4 left 0 bytes",
        "refuse t5 v1/1 e9",
        "release t5 v1/2 e9",
        "held v1/3",
        "held v1/901",
        "released",
        "forget t5 v1/4 e9",
        "recover t5 i4",
        "attach t5 disk g6 v1/5 e9",
        "drop t5 v1/6 e9",
        "release t5 v1/999 e9",
        "locate v1/7",
        "locate v1/999",
        "register i7 left /run/levee.sock",
        "register i4 left left.example:7000",
        "missing 4",
    ];
    assert_eq!(*engine.log.borrow(), expected);
    fixture.settle();
}

/// A server has started anew at its address: what was asked of its last life is not done by this one.
#[test]
fn what_was_asked_of_the_last_life_is_not_done_by_the_next() {
    let (fixture, engine, near) = fixture(2);
    fixture.run(async move {
        let gone = near.engine(Incarnation(6));
        let refused = |error: base::Error| {
            let said = "engine i6 does not live here any more: i7 does";
            assert_eq!((error.kind, &*error.message), (ErrorKind::NotFound, said));
        };
        let assignments = vec![assignment(segment(1), Source::Nobody), assignment(segment(2), Source::Estate(DEAD))];
        let outcomes = gone.assign(TERM, assignments).await;
        assert_eq!(outcomes.len(), 2);
        outcomes.into_iter().for_each(|outcome| refused(outcome.unwrap_err()));
        refused(gone.refuse(TERM, segment(1), EPOCH).await.unwrap_err());
        refused(gone.release(TERM, segment(1), EPOCH).await.unwrap_err());
        refused(gone.held(segment(1)).await.unwrap_err());
        refused(gone.released().await.unwrap_err());
        refused(gone.forget_release(TERM, segment(1), EPOCH).await.unwrap_err());
        refused(gone.recover(TERM, DEAD).await.unwrap_err());
        refused(gone.begin_attachment(TERM, volume(VolumeId(1)), segment(1), EPOCH).await.unwrap_err());
        refused(gone.drop_segment(TERM, segment(1), EPOCH).await.unwrap_err());
        assert_eq!(near.engine(ENGINE).held(segment(1)).await.unwrap(), Some(Epoch(1)), "the connection goes on");
    });
    assert_eq!(*engine.log.borrow(), ["held v1/1"], "nothing else has reached the engine");
    fixture.settle();
}

#[test]
fn what_is_longer_than_a_frame_goes_over_in_parts() {
    let (fixture, engine, near) = fixture(3);
    let asked = engine.clone();
    let calls = move |what: &str| asked.log.borrow().iter().filter(|text| text.starts_with(what)).count();
    fixture.run(async move {
        let owner = near.engine(ENGINE);
        for (segments, parts) in [(HOLDINGS_MAX - 1, 1), (HOLDINGS_MAX, 2), (2 * HOLDINGS_MAX + 1, 3)] {
            engine.log.borrow_mut().clear();
            engine.segments.set(segments as u32);
            let all: Vec<u32> = (0..segments as u32).collect();
            let holdings = owner.recover(TERM, DEAD).await.unwrap();
            assert!(holdings.iter().copied().eq(all.iter().map(|number| holding(*number))), "{segments}");
            let released = owner.released().await.unwrap();
            assert!(released.into_iter().eq(all.iter().map(|number| (segment(*number), Epoch((*number).into())))));
            assert_eq!((calls("recover"), calls("released")), (parts, parts), "{segments}");
        }

        // All of a frame at once, so that the log of a dead engine is read once for them.
        engine.log.borrow_mut().clear();
        let many = 2 * ASSIGNED_MAX + 9;
        let assignments = (0..many as u32).map(|number| assignment(segment(number), Source::Estate(DEAD))).collect();
        let outcomes = owner.assign(TERM, assignments).await;
        let failed: Vec<usize> = (0..many).filter(|number| outcomes[*number].is_err()).collect();
        assert_eq!((outcomes.len(), failed), (many, vec![998, 1998]), "each has the answer to it");
        assert_eq!(engine.log.borrow()[..2], ["assign t5 1024", "assign t5 1024"]);
        assert_eq!(calls("assign"), 3);

        engine.log.borrow_mut().clear();
        let large = LEFT_MAX as usize / 2;
        let assignments = (0..5).map(|number| assignment(segment(number), left(segment(number), large))).collect();
        assert!(owner.assign(TERM, assignments).await.iter().all(Result::is_ok));
        assert_eq!(calls("assign t5 2"), 2);
        assert_eq!(calls("assign t5 1"), 1);

        for (len, asked) in [(64 << 10, 1), ((64 << 10) + 1, 2), (LEFT_MAX as usize, 2)] {
            engine.log.borrow_mut().clear();
            engine.left_len.set(len);
            let left = owner.release(TERM, segment(1), EPOCH).await.unwrap();
            assert!(left.content == content(segment(1), len), "{len}");
            assert_eq!(calls("release"), asked, "{len}");
        }
        engine.left_len.set(LEFT_MAX as usize + 1);
        let error = owner.release(TERM, segment(1), EPOCH).await.unwrap_err();
        assert!(error.kind == ErrorKind::Invalid && error.message.contains("engine.data_file"), "{error}");
        let source =
            Source::Left(LeftSegment { incarnation: DEAD, content: Bytes::from(vec![1; LEFT_MAX as usize + 1]) });
        let assignments = vec![assignment(segment(2), source), assignment(segment(3), Source::Nobody)];
        let outcomes = owner.assign(TERM, assignments).await;
        assert_eq!(outcomes[0].as_ref().unwrap_err().kind, ErrorKind::Invalid);
        assert!(outcomes[1].is_ok(), "the others are no worse for it");
    });
    fixture.settle();
}

/// Recovering what a dead engine had takes as long as it takes; keep-alives say that its recoverer is there.
#[test]
fn an_order_may_take_longer_than_the_silence() {
    let (fixture, engine, near) = fixture(4);
    engine.takes.set(20 * SILENCE);
    let handle = fixture.near.clone();
    fixture.run(async move {
        let since = handle.now();
        assert_eq!(near.engine(ENGINE).recover(TERM, DEAD).await.unwrap().len(), 3);
        assert!(handle.now().since(since) >= 20 * SILENCE);
    });
    assert_eq!(fixture.end.statistics().accepted, 1);
    fixture.settle();
}

#[test]
fn an_order_in_flight_is_lost_with_its_connection_and_done_all_the_same() {
    let (fixture, engine, near) = fixture(5);
    engine.takes.set(Duration::from_millis(10));
    let (a, b) = (fixture.nodes[0], fixture.nodes[1]);
    fixture.world.after(Duration::from_millis(5), move |world| world.reset_connections(a, b));
    let asking = near.clone();
    let outcomes = fixture.run(async move {
        let assignments = (0..2).map(|number| assignment(segment(number), Source::Nobody)).collect();
        asking.engine(ENGINE).assign(TERM, assignments).await
    });
    assert_eq!(outcomes.len(), 2);
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(
            error.kind == ErrorKind::Io && error.message.contains("the connection with the store was lost"),
            "{error}"
        );
    }
    fixture.world.run_for(Duration::from_millis(10));
    assert_eq!(engine.log.borrow().len(), 3, "what was taken was done");
    // Of a list nothing comes when a part of it is lost.
    engine.segments.set(2 * HOLDINGS_MAX as u32);
    engine.takes.set(Duration::from_millis(40));
    fixture.world.after(Duration::from_millis(70), move |world| world.reset_connections(a, b));
    let asking = near.clone();
    let error = fixture.run(async move { asking.engine(ENGINE).released().await.unwrap_err() });
    assert_eq!((error.kind, engine.log.borrow().len()), (ErrorKind::Io, 5), "{error}");
    fixture.run(async move { assert_eq!(near.engine(ENGINE).held(segment(2)).await.unwrap(), Some(Epoch(2))) });
    fixture.settle();
}

/// A manager may also ask an engine over the connection that the engine has made.
#[test]
fn an_engine_that_has_dialled_may_be_asked_back() {
    let fixture = Fixture::new(6);
    let (manager, engine) = (Engine::new(&fixture.far), Engine::new(&fixture.near));
    let end = FarEnd::new(
        &fixture.far,
        Services { registry: Some(manager.clone()), ..Services::default() },
        options("a manager"),
    );
    let any = runtime::Address::Tcp((fixture.world.address(fixture.nodes[1]), 0).into());
    let address = listen(&fixture.world, &fixture.far, &end, any);
    let services = Services { segments: Some((ENGINE, engine.clone())), ..Services::default() };
    let near = NearEnd::dial(&fixture.near, address, services, options("an engine"));
    let asking = near.clone();
    fixture.run(async move {
        asking.register(ENGINE, "left", "left.example:7000").await.unwrap();
        let refused = asking.locate(segment(1)).await.unwrap_err();
        let said = "a manager does no locate a segment";
        assert!(refused.kind == ErrorKind::Invalid && refused.message.contains(said), "{refused}");
    });
    let peers = end.peers();
    let [peer] = &peers[..] else { panic!("{} peers", peers.len()) };
    let peer = peer.clone();
    fixture.world.block_on(&fixture.far, async move {
        peer.engine(ENGINE).refuse(TERM, segment(1), EPOCH).await.unwrap();
        assert!(peer.list().await.is_err(), "it does nothing else");
        assert!(!peer.is_refused(), "nobody has dialled");
    });
    assert_eq!(*engine.log.borrow(), ["refuse t5 v1/1 e9"]);
}

/// Connections that break all the time, under many orders at once: every answer is the right one, and nothing is left.
#[test]
fn answers_to_orders_stay_right_while_connections_break() {
    let (answered, lost) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    for seed in 0..20 {
        let (fixture, engine, near) = fixture(100 + seed);
        engine.takes.set(Duration::from_micros(300));
        engine.segments.set(HOLDINGS_MAX as u32 + 3);
        engine.left_len.set(100_000);
        let mut prng = fixture.world.fork_prng();
        let (a, b) = (fixture.nodes[0], fixture.nodes[1]);
        let mut at = Duration::ZERO;
        for _ in 0..30 {
            at += Duration::from_micros(prng.between(100, 20_000));
            let cuts = prng.one_in(2);
            fixture.world.after(at, move |world| match cuts {
                false => world.reset_connections(a, b),
                true => {
                    world.partition(a, b);
                    world.after(Duration::from_millis(3), move |world| world.heal(a, b));
                }
            });
        }
        let handle = fixture.near.clone();
        let counts = (answered.clone(), lost.clone());
        fixture.run(async move {
            let callers: Vec<_> = (0..8u32)
                .map(|caller| {
                    let (owner, inside, counts) = (near.engine(ENGINE), handle.clone(), counts.clone());
                    handle.spawn(Class::Io, "caller", async move {
                        for round in 0..40u32 {
                            let wanted = segment(caller * 100 + round);
                            let outcome = match (caller + round) % 8 {
                                0 => owner.recover(TERM, DEAD).await.map(|all| all.len() == HOLDINGS_MAX + 3),
                                1 | 2 => owner
                                    .release(TERM, wanted, EPOCH)
                                    .await
                                    .map(|left| left.content == content(wanted, 100_000)),
                                3 => {
                                    let source = left(wanted, 70_000);
                                    owner.assign(TERM, vec![assignment(wanted, source)]).await.remove(0).map(|()| true)
                                }
                                _ => owner.held(wanted).await.map(|epoch| epoch == Some(Epoch(wanted.index.into()))),
                            };
                            match outcome {
                                Ok(is_right) => {
                                    assert!(is_right, "seed {seed}: a wrong answer");
                                    counts.0.set(counts.0.get() + 1);
                                }
                                Err(error) => {
                                    assert_eq!(error.kind, ErrorKind::Io, "seed {seed}: {error}");
                                    counts.1.set(counts.1.get() + 1);
                                    inside.sleep(Duration::from_millis(1)).await;
                                }
                            }
                        }
                    })
                })
                .collect();
            for caller in callers {
                caller.await;
            }
        });
        fixture.settle();
    }
    assert!(answered.get() > 2_000 && lost.get() > 200, "{} answered, {} lost", answered.get(), lost.get());
}
