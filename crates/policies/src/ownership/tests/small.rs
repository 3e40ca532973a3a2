//! Single decisions, with engines that do what they are asked at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::{Epoch, ErrorKind, Generation, Incarnation, Instant, SegmentId, Term, VolumeId};

use super::super::placing::bound;
use super::*;

const NOW: Instant = Instant(1_000_000_000);
const VOLUME: VolumeId = VolumeId(1);

fn server(index: u64) -> String {
    format!("s{index}")
}

fn manager(engines: u64) -> Manager {
    let mut manager = Manager::take_over(Settings::default(), Table::default(), Term(1), NOW, 0).unwrap();
    (1..=engines).for_each(|engine| {
        manager.on_registered(NOW, engine, Incarnation(engine), &server(engine)).unwrap();
    });
    manager
}

/// Everything is logged: what is said then.
fn said(manager: &mut Manager) -> Vec<Order> {
    let count = manager.unlogged().len();
    let messages = manager.on_logged(count);
    assert!(messages.iter().all(|message| message.term == manager.term()));
    messages.into_iter().map(|message| message.order).collect()
}

/// What one who obeys reports.
fn done(order: &Order) -> Option<Report> {
    Some(match *order {
        Order::Create { engine, segment, epoch, generation }
        | Order::Adopt { engine, segment, epoch, generation, .. } => {
            Report::Adopted { engine, segment, epoch, generation }
        }
        Order::Release { engine, segment, epoch, .. } => Report::Released { engine, segment, epoch },
        Order::Reattach { engine, segment, epoch, generation } => {
            Report::Recorded { engine, segment, epoch, generation }
        }
        Order::Drop { engine, segment, epoch } => Report::Dropped { engine, segment, epoch },
        Order::Fence { dead } => Report::Fenced { dead },
        Order::Recover { dead, recoverer } => Report::Recovered { dead, recoverer, has: vec![] },
        Order::Delete { dead } => Report::Deleted { dead },
        _ => return None,
    })
}

/// Everybody does everything; gives what was said.
fn settle(manager: &mut Manager, random: u64) -> Vec<Order> {
    let mut all = vec![];
    loop {
        let orders = said(manager);
        if orders.is_empty() {
            return all;
        }
        orders.iter().filter_map(done).for_each(|report| manager.on_report(NOW, random, &report));
        all.extend(orders);
    }
}

fn loads(manager: &Manager) -> BTreeMap<Incarnation, usize> {
    manager.table().living().map(|(engine, _)| (engine, manager.table().load(engine))).collect()
}

fn kill(manager: &mut Manager, engine: u64) {
    manager.on_gone(NOW, 5, Incarnation(engine));
    manager.on_confirmed(NOW, 5, &[Incarnation(engine)]);
}

#[test]
fn first_owners_are_spread_and_a_group_is_on_four_servers() {
    for servers in 1..12 {
        for seed in 0..50 {
            let mut manager = manager(servers);
            for volume in 1..=6 {
                manager.create(NOW, seed + volume, VolumeId(volume), 4 * (1 + (seed + volume) as u32 % 5)).unwrap();
            }
            settle(&mut manager, seed);
            let loads = loads(&manager);
            let most = bound(loads.values().sum(), servers as usize, 20);
            assert!(loads.values().all(|load| *load <= most), "{servers} servers, seed {seed}: {loads:?}");
            for (volume, row) in manager.table().volumes() {
                for group in 0..row.segments / 4 {
                    let owner =
                        |index| manager.table().segment(SegmentId { volume, index: 4 * group + index }).unwrap().holder;
                    let owners: BTreeSet<_> = (0..4).map(owner).collect();
                    assert_eq!(owners.len() as u64, servers.min(4), "{servers} servers, seed {seed}, {volume}");
                }
            }
        }
    }
}

#[test]
fn the_same_random_numbers_give_the_same_owners_and_others_give_others() {
    let owners = |seed| {
        let mut manager = manager(9);
        manager.create(NOW, seed, VOLUME, 40).unwrap();
        settle(&mut manager, seed);
        manager.table().segments().map(|(_, row)| row.holder).collect::<Vec<_>>()
    };
    assert_eq!(owners(7), owners(7));
    assert_ne!(owners(7), owners(8));
}

#[test]
fn the_dead_are_fenced_then_recovered_then_shared_out_by_four_at_a_time() {
    let mut manager = manager(60);
    (1..=6).for_each(|volume| manager.create(NOW, 1, VolumeId(volume), 1_000).unwrap());
    settle(&mut manager, 1);
    kill(&mut manager, 3);
    let dead = Incarnation(3);
    assert_eq!(said(&mut manager), [Order::Fence { dead }]);
    manager.on_report(NOW, 1, &Report::Fenced { dead });
    let recover = said(&mut manager);
    let [Order::Recover { recoverer, .. }] = recover[..] else { panic!("{recover:?}") };
    let other = Incarnation(if recoverer == Incarnation(1) { 2 } else { 1 });
    manager.on_report(NOW, 1, &Report::Recovered { dead, recoverer: other, has: vec![] });
    assert_eq!(said(&mut manager), [], "there is one recoverer");
    manager.on_report(NOW, 1, &Report::Recovered { dead, recoverer, has: vec![] });
    let mut rounds = 0;
    loop {
        let orders = said(&mut manager);
        assert!(manager.table().adopters_of(dead).len() <= 4);
        if orders == [Order::Delete { dead }] {
            break;
        }
        // One at a time, so that the next adopter begins while others are at it.
        let Some(report) = orders.iter().find_map(done) else {
            manager.on_time(NOW, 1);
            continue;
        };
        rounds += 1;
        manager.on_report(NOW, 1, &report);
        let others = orders.iter().filter(|order| matches!(order, Order::Adopt { .. }));
        others.filter_map(done).for_each(|report| manager.on_report(NOW, 1, &report));
    }
    // Each of the first four has taken what it has room for, 23 within the bound of 123, and those after them the rest:
    // nobody reads what the dead one has journaled for a few segments only.
    assert_eq!(rounds, 2);
    assert!(loads(&manager).values().all(|load| (100..=123).contains(load)), "{:?}", loads(&manager));
    assert_eq!(loads(&manager).values().filter(|load| **load == 123).count(), 4);
    manager.on_report(NOW, 1, &Report::Deleted { dead });
    said(&mut manager);
    assert_eq!(manager.table().server(dead), None);
    let refused = manager.on_registered(NOW, 1, dead, "s3").unwrap_err();
    assert_eq!((refused.kind, said(&mut manager)), (ErrorKind::Fenced, vec![Order::Dismiss { engine: dead }]));
}

#[test]
fn a_drained_server_is_emptied_by_four_moves_at_a_time() {
    let mut manager = manager(6);
    manager.create(NOW, 1, VOLUME, 60).unwrap();
    settle(&mut manager, 1);
    manager.drain(NOW, 1, &server(2), true).unwrap();
    let mut releases = 0;
    loop {
        let orders = said(&mut manager);
        if orders.is_empty() {
            break;
        }
        assert!(manager.table().assigned().count() <= 4);
        releases += orders.iter().filter(|order| matches!(order, Order::Release { .. })).count();
        orders.iter().filter_map(done).for_each(|report| manager.on_report(NOW, 2, &report));
    }
    assert_eq!((releases, loads(&manager)[&Incarnation(2)]), (10, 0));
    manager.drain(NOW, 1, &server(2), false).unwrap();
    settle(&mut manager, 3);
    let most = bound(60, 6, 20);
    assert!(loads(&manager).values().all(|load| *load <= most), "{:?}", loads(&manager));
}

#[test]
fn a_move_is_released_before_it_is_adopted_and_forgotten_after() {
    let mut manager = manager(5);
    manager.create(NOW, 1, VOLUME, 4).unwrap();
    settle(&mut manager, 1);
    let segment = SegmentId { volume: VOLUME, index: 2 };
    let row = manager.table().segment(segment).unwrap();
    let (from, former) = (row.holder.unwrap(), row.epoch);
    let to = manager.table().living().map(|(engine, _)| engine).find(|engine| manager.table().load(*engine) == 0);
    let to = to.unwrap();
    manager.move_segment(NOW, 1, segment, Some(to)).unwrap();
    let epoch = Epoch::of(Term(1), 5);
    let adopt =
        Order::Adopt { engine: to, segment, epoch, source: from, source_epoch: former, generation: Generation(0) };
    assert_eq!(
        settle(&mut manager, 1),
        [
            Order::Release { engine: from, segment, epoch: former, next: epoch },
            adopt,
            Order::Forget { engine: from, segment, epoch: former },
        ]
    );
    // It says so once more, after a manager was replaced: it is told again.
    let again = manager.table().clone();
    assert_eq!(
        Manager::take_over(Settings::default(), again.clone(), Term(1), NOW, 1).unwrap_err().kind,
        ErrorKind::Fenced
    );
    let mut next = Manager::take_over(Settings::default(), again, Term(2), NOW, 1).unwrap();
    next.on_report(NOW, 1, &Report::Released { engine: from, segment, epoch: former });
    assert_eq!(said(&mut next), [Order::Forget { engine: from, segment, epoch: former }]);
}

#[test]
fn what_the_only_living_server_refused_is_offered_again_after_a_while() {
    let mut manager = manager(1);
    manager.create(NOW, 1, VOLUME, 1).unwrap();
    let segment = SegmentId { volume: VOLUME, index: 0 };
    let create = |counter| Order::Create {
        engine: Incarnation(1),
        segment,
        epoch: Epoch::of(Term(1), counter),
        generation: Generation(0),
    };
    assert_eq!(said(&mut manager), [create(1)]);
    manager.on_time(NOW, 1);
    assert_eq!(said(&mut manager), [create(1)], "who is silent keeps it");
    manager.on_report(NOW, 1, &Report::Refused { engine: Incarnation(1), segment, epoch: Epoch::of(Term(1), 1) });
    assert_eq!(said(&mut manager), []);
    manager.on_time(NOW, 1);
    assert_eq!(said(&mut manager), [create(2)]);
    // It may come late, and is what was asked before: nothing of it counts.
    manager.on_report(NOW, 1, &Report::Refused { engine: Incarnation(1), segment, epoch: Epoch::of(Term(1), 1) });
    assert_eq!(manager.table().assigned().count(), 1);
}

/// An assignment that nobody can follow (its files are missing) is a record at each try.
#[test]
fn what_everybody_refuses_is_offered_less_and_less_often() {
    const TICK: Duration = Duration::from_millis(250);
    let mut manager = manager(4);
    // One of them has not refused it, and cannot be asked: that is no reason to ask the others all the time.
    manager.on_lost(Incarnation(4));
    manager.create(NOW, 1, VOLUME, 1).unwrap();
    let (mut now, mut tries) = (NOW, vec![]);
    let refuse_all = |manager: &mut Manager, now: Instant, tries: &mut Vec<Instant>| {
        loop {
            let offers = said(manager);
            if offers.is_empty() {
                return;
            }
            for offer in offers {
                let Order::Create { engine, segment, epoch, .. } = offer else { panic!("{offer:?}") };
                tries.push(now);
                assert!(tries.len() < 100, "it is offered again and again");
                manager.on_report(now, 1, &Report::Refused { engine, segment, epoch });
            }
        }
    };
    for _ in 0..4 * 60 {
        refuse_all(&mut manager, now, &mut tries);
        now = now + TICK;
        manager.on_time(now, 1);
    }
    assert!(tries[..6].iter().all(|at| *at <= NOW + TICK), "once more soon: {tries:?}");
    let rounds = tries.len() / 3;
    assert!((8..=14).contains(&rounds), "{rounds} rounds in a minute, of which the last are 8 s apart");
    let longest = tries.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert_eq!(longest, Some(Duration::from_secs(8)), "who puts it right waits no longer");
    // Who has not refused it yet is asked at once, and can take it. The next refusal is a first one.
    manager.on_registered(now, 1, Incarnation(5), &server(5)).unwrap();
    settle(&mut manager, 1);
    assert_eq!(manager.table().load(Incarnation(5)), 1);
    manager.refusals.on_refused(now, SegmentId { volume: VOLUME, index: 0 }, Incarnation(5));
    manager.on_time(now, 1);
    assert!(manager.refusals.of(SegmentId { volume: VOLUME, index: 0 }).is_empty());
}

#[test]
fn who_takes_over_goes_on_with_everything() {
    let mut manager = manager(5);
    manager.create(NOW, 1, VOLUME, 8).unwrap();
    settle(&mut manager, 1);
    kill(&mut manager, 1);
    manager.attach(NOW, 1, VOLUME, Generation(1)).unwrap();
    manager.create(NOW, 1, VolumeId(2), 4).unwrap();
    let first: BTreeSet<String> = said(&mut manager).iter().map(|order| format!("{order:?}")).collect();
    let mut next = Manager::take_over(Settings::default(), manager.table().clone(), Term(2), NOW, 9).unwrap();
    let second: BTreeSet<String> = said(&mut next).iter().map(|order| format!("{order:?}")).collect();
    assert_eq!(first, second);
    assert!(first.iter().any(|order| order.starts_with("Fence")), "{first:?}");
    assert!(first.iter().any(|order| order.starts_with("Reattach")), "{first:?}");
    assert!(first.iter().any(|order| order.starts_with("Create")), "{first:?}");
}

#[test]
fn nobody_dies_of_a_lost_connection() {
    let mut manager = manager(6);
    manager.on_lost(Incarnation(1));
    manager.on_time(NOW + Duration::from_secs(600), 1);
    said(&mut manager);
    assert!(manager.table().lives(Incarnation(1)));
    manager.on_gone(NOW, 1, Incarnation(1));
    assert!(!manager.table().lives(Incarnation(1)));
}

#[test]
fn who_misses_more_than_a_third_asks_first() {
    let mut manager = manager(6);
    let gone = |manager: &mut Manager, engine| manager.on_gone(NOW, 1, Incarnation(engine));
    gone(&mut manager, 1);
    gone(&mut manager, 2);
    assert_eq!([1, 2].map(|engine| manager.table().lives(Incarnation(engine))), [false; 2], "a third is believed");
    // Those that went before count.
    said(&mut manager);
    gone(&mut manager, 3);
    manager.on_lost(Incarnation(4));
    assert!(manager.table().lives(Incarnation(3)));
    assert_eq!(said(&mut manager), [Order::Doubt { missing: vec![Incarnation(3)] }]);
    manager.on_touch(NOW, 1, Incarnation(5));
    assert_eq!(said(&mut manager), [], "it asks once");
    manager.on_confirmed(NOW, 1, &[Incarnation(4)]);
    assert!(
        [3, 4].iter().all(|engine| manager.table().lives(Incarnation(*engine))),
        "a suspicion is none, confirmed or not"
    );
    manager.on_confirmed(NOW, 1, &[Incarnation(3)]);
    assert!(!manager.table().lives(Incarnation(3)));
}

#[test]
fn the_last_to_come_back_is_not_dead_because_others_were_faster() {
    let mut manager = manager(6);
    let engines = (1..=6).map(Incarnation);
    engines.clone().for_each(|engine| manager.on_lost(engine));
    engines.clone().for_each(|engine| manager.on_gone(NOW, 1, engine));
    (1..=5).for_each(|engine| manager.on_touch(NOW + Duration::from_secs(1), 1, Incarnation(engine)));
    manager.on_gone(NOW + Duration::from_secs(1), 1, Incarnation(6));
    assert!(engines.clone().all(|engine| manager.table().lives(engine)));
    manager.on_gone(NOW + Duration::from_secs(20), 1, Incarnation(6));
    assert!(!manager.table().lives(Incarnation(6)), "when all is well again it is believed");
}

#[test]
fn who_suspected_many_a_short_while_ago_asks_first() {
    let after = |millis| NOW + Duration::from_millis(millis);
    // A lease may be a minute: what counts is until when many were missing.
    for suspected in [0, 30_000] {
        for begins_anew in [false, true] {
            let mut manager = manager(5);
            (1..=5).for_each(|engine| manager.on_lost(Incarnation(engine)));
            let back = suspected + 1_000;
            // The link is whole again before the first lease is over. One of them is a server that was started anew.
            let first = if begins_anew { 6 } else { 1 };
            [(first, 1), (2, 2), (3, 3), (4, 4)].iter().for_each(|(engine, index)| {
                manager.on_registered(after(back), 1, Incarnation(*engine), &server(*index)).unwrap();
            });
            said(&mut manager);
            manager.on_gone(after(back + 3), 1, Incarnation(5));
            assert!(manager.table().lives(Incarnation(5)), "of what happened to the manager");
            assert_eq!(said(&mut manager), [Order::Doubt { missing: vec![Incarnation(5)] }]);
            manager.on_registered(after(back + 10), 1, Incarnation(5), &server(5)).unwrap();
            manager.on_gone(after(back + 12_000), 1, Incarnation(5));
            assert!(!manager.table().lives(Incarnation(5)), "when all is well again it is believed");
        }
    }
}

#[test]
fn a_new_engine_does_not_hide_that_many_were_missing() {
    let mut manager = manager(5);
    // Two of five servers, until one of them is there with a new engine.
    [4, 5].iter().for_each(|engine| manager.on_lost(Incarnation(*engine)));
    manager.on_registered(NOW, 1, Incarnation(6), &server(4)).unwrap();
    manager.on_gone(NOW, 1, Incarnation(5));
    assert!(manager.table().lives(Incarnation(5)));
}

#[test]
fn who_comes_back_in_time_lives() {
    let mut manager = manager(2);
    manager.on_gone(NOW, 1, Incarnation(1));
    manager.on_touch(NOW, 1, Incarnation(1));
    manager.on_confirmed(NOW, 1, &[Incarnation(1)]);
    assert!(manager.table().lives(Incarnation(1)));
}

#[test]
fn what_cannot_be_is_refused() {
    let mut manager = manager(2);
    manager.create(NOW, 1, VOLUME, 4).unwrap();
    let kinds = [
        manager.create(NOW, 1, VOLUME, 4),
        manager.create(NOW, 1, VolumeId(2), 0),
        manager.create(NOW, 1, VolumeId(2), 2049),
        manager.attach(NOW, 1, VolumeId(2), Generation(1)),
        manager.attach(NOW, 1, VOLUME, Generation(0)),
        manager.drop_volume(NOW, 1, VolumeId(2)),
        manager.drain(NOW, 1, "", true),
        manager.move_segment(NOW, 1, SegmentId { volume: VOLUME, index: 4 }, None),
        manager.on_registered(NOW, 1, Incarnation(1), "another"),
        manager.on_registered(NOW, 1, Incarnation(9), &"x".repeat(64)),
    ]
    .map(|result| result.unwrap_err().kind);
    use ErrorKind::{Conflict, Fenced, Invalid, NotFound};
    assert_eq!(kinds, [Conflict, Invalid, Invalid, NotFound, Fenced, NotFound, Invalid, NotFound, Conflict, Invalid]);
}

#[test]
fn whose_epochs_are_used_up_assigns_nothing_more() {
    let mut manager = manager(3);
    manager.create(NOW, 1, VOLUME, 8).unwrap();
    settle(&mut manager, 1);
    manager.counter = u32::MAX - 3;
    assert!(!manager.is_spent());
    manager.drain(NOW, 1, &server(1), true).unwrap();
    manager.create(NOW, 1, VolumeId(2), 4).unwrap();
    settle(&mut manager, 1);
    assert!(manager.is_spent());
    assert!(manager.table().loose().count() > 0, "the next manager goes on");
    let mut next = Manager::take_over(Settings::default(), manager.table().clone(), Term(2), NOW, 1).unwrap();
    settle(&mut next, 1);
    assert_eq!((next.table().loose().count(), next.table().load(Incarnation(1))), (0, 0));
}

#[test]
fn what_the_dead_had_dropped_is_gone_though_nobody_heard_of_it() {
    for has_dropped in [true, false] {
        let mut manager = manager(3);
        manager.create(NOW, 1, VOLUME, 4).unwrap();
        settle(&mut manager, 1);
        let held: Vec<_> = manager.table().held_by(Incarnation(1)).collect();
        let held: Vec<_> = held.iter().map(|id| (*id, manager.table().segment(*id).unwrap().epoch)).collect();
        assert!(!held.is_empty());
        manager.drop_volume(NOW, 1, VOLUME).unwrap();
        let of_the_dead = |order: &Order| matches!(order, Order::Drop { engine: Incarnation(1), .. });
        let orders = said(&mut manager);
        let reports = orders.iter().filter(|order| !of_the_dead(order)).filter_map(done);
        reports.for_each(|report| manager.on_report(NOW, 1, &report));
        kill(&mut manager, 1);
        let dead = Incarnation(1);
        said(&mut manager);
        manager.on_report(NOW, 1, &Report::Fenced { dead });
        let recoverer = manager.table().death(dead).unwrap().recoverer.unwrap();
        let has = if has_dropped { vec![] } else { held };
        manager.on_report(NOW, 1, &Report::Recovered { dead, recoverer, has });
        let orders = settle(&mut manager, 1);
        let adopted = orders.iter().filter(|order| matches!(order, Order::Adopt { .. })).count();
        assert_eq!(adopted > 0, !has_dropped, "what its log does not have is not asked for: {orders:?}");
        assert_eq!(manager.table().volume(VOLUME), None);
    }
}
