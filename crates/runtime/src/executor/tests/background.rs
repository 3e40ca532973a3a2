//! Background tasks beside endless I/O: they have their share, and no more.

use super::*;

/// A task that is never done: each poll takes so long.
fn grind(handle: &Handle, class: Class, poll: Duration) {
    let inner = handle.clone();
    let grind = async move {
        loop {
            inner.charge(poll);
            inner.yield_now().await;
        }
    };
    handle.spawn(class, "grind", grind).detach();
}

#[test]
fn background_has_its_turn_beside_endless_io_and_the_watchdog_times_it() {
    let (world, handle) = start_default();
    grind(&handle, IO, Duration::from_micros(50));
    for _ in 0..200 {
        figure_task(&handle, &Trace::default(), BACKGROUND, "background", 30);
    }
    for _ in 0..2_000 {
        handle.0.turn(false);
    }
    let statistics = handle.statistics();
    assert_eq!((statistics.background_polls, statistics.background_overdue), (200, 0));
    let waits = &statistics.background_wait;
    assert!(waits.count() >= 1 && waits.max() > 200 * 30_000 && waits.max() < world.now().0, "{}", waits.max());
    handle.0.kill();
}

#[test]
fn a_background_task_that_waits_longer_than_a_second_is_told_of() {
    let (_world, handle) = start_default();
    figure_task(&handle, &Trace::default(), BACKGROUND, "first", 3);
    figure_task(&handle, &Trace::default(), BACKGROUND, "second", 1_500_000);
    figure_task(&handle, &Trace::default(), BACKGROUND, "third", 3);
    grind(&handle, IO, Duration::from_micros(10));
    for _ in 0..1_000 {
        handle.0.turn(false);
    }
    let statistics = handle.statistics();
    assert_eq!((statistics.background_polls, statistics.background_overdue), (3, 1));
    assert!(statistics.background_wait.max() >= 1_500_000_000);
    handle.0.kill();
}

#[test]
fn background_rests_when_its_share_is_used_up() {
    let (world, handle) = start_default();
    grind(&handle, BACKGROUND, Duration::from_micros(200));
    let (mut turns, mut rest) = (0, None);
    while rest.is_none() && turns < 100 {
        if let Wait::Until(end) = handle.0.turn(false).wait {
            rest = Some(end);
        }
        turns += 1;
    }
    let rest = rest.expect("it rests before long");
    assert!(rest > world.now());
    let slow = handle.statistics().slow_polls["grind"];
    assert!(slow.count > 1 && slow.longest_ns == 200_000);
    // I/O runs all the same.
    spawn_note(&world, &handle, IO, "io");
    assert_eq!(handle.0.turn(false).polls, 1);
    world.now.set(rest);
    assert_eq!(handle.0.turn(false).polls, 1);
    handle.0.kill();
}
