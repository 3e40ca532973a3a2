use base::{KIB, SegmentId, VolumeId};

use super::*;
use crate::background::Work;

const MILLI: u64 = 1_000_000;
const SEGMENT: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };

/// A knee that is asked every 10 ms, beside a store that answers as it is told.
struct Bench {
    knee: Knee,
    background: Background,
    now: u64,
}

impl Bench {
    fn new() -> Bench {
        Bench { knee: Knee::new(KneeSettings::default(), Instant(0)), background: Background::new(Instant(0)), now: 0 }
    }

    /// For so many milliseconds, requests of a kind, so many in each 10 of them, that take so long. At a time there are
    /// `below` of them.
    fn serve(&mut self, millis: u64, per_look: u64, bytes: u64, took_us: u64, is_hot: bool, below: usize) {
        for _ in 0..millis / 10 {
            for _ in 0..per_look {
                for _ in 0..below {
                    self.knee.on_start(Instant(self.now));
                }
                let done = Instant(self.now + took_us * 1000);
                let (granted, direction) = (Instant(self.now + 1), Direction::Write);
                let outcome = Outcome { segment: SEGMENT, granted, bytes, direction, went_below: true };
                for _ in 0..below {
                    self.knee.on_done(done, &outcome, is_hot);
                }
            }
            self.now += 10 * MILLI;
        }
    }

    fn look(&mut self, binds: bool, shared: bool) {
        self.knee.look(Instant(self.now), binds, shared, &self.background);
    }

    /// Serves and looks.
    fn run(&mut self, millis: u64, per_look: u64, took_us: u64, binds: bool) {
        for _ in 0..millis / 10 {
            self.serve(10, per_look, 64 * KIB, took_us, false, 8);
            self.look(binds, true);
        }
    }

    /// For so many milliseconds, steady requests wait for tokens, and at each refill so many are let go, which the store does
    /// one after the other. If it `drains`, it is done with them before the next ones.
    fn run_bunches(&mut self, millis: u64, per_look: u64, drains: bool) {
        for _ in 0..millis / 10 {
            let granted = Instant(self.now);
            (0..per_look).for_each(|_| self.knee.on_start(granted));
            self.now += 10 * MILLI;
            // Those that are left behind were let go at the refill before.
            if !drains {
                self.look(true, true);
            }
            for number in 0..per_look {
                let outcome = Outcome {
                    segment: SEGMENT,
                    granted,
                    bytes: 64 * KIB,
                    direction: Direction::Write,
                    went_below: true,
                };
                let done = Instant(granted.0 + (100 + 30 * number) * 1000);
                self.knee.on_done(done, &outcome, false);
            }
            if drains {
                self.look(true, true);
            }
        }
    }

    /// Learns what a request takes alone, and then that many of them are too much: 200 in each 10 ms.
    fn knee_found() -> Bench {
        let mut bench = Bench::new();
        bench.serve(500, 2, 64 * KIB, 100, false, 1);
        bench.look(false, true);
        assert_eq!(bench.knee.limit(), None, "nothing was too much");
        bench.run(400, 25, 1_000, false);
        assert!(bench.knee.limit().is_some());
        bench
    }

    /// Tokens that a second of such requests costs, of those that there are.
    fn share(&self, per_sec: u64) -> f64 {
        (self.knee.cost(Direction::Write, 64 * KIB) * per_sec) as f64 / self.knee.budget.limit.unwrap()
    }
}

#[test]
fn what_was_delivered_above_the_knee_costs_more_than_the_limit() {
    let bench = Bench::knee_found();
    assert!(bench.share(20_000) > 1.05, "20,000 a second were too much: {}", bench.share(20_000));
}

#[test]
fn a_limit_that_binds_and_is_flat_is_raised_and_one_that_does_not_bind_is_not() {
    let mut bench = Bench::knee_found();
    bench.run(200, 2, 100, false);
    let before = bench.share(1_000);
    bench.run(5_000, 2, 100, false);
    assert!((bench.share(1_000) / before - 1.0).abs() < 0.01, "who asks for little proves nothing");
    bench.run(5_000, 2, 100, true);
    assert!(bench.share(1_000) < before * 0.8, "{} before, {} now", before, bench.share(1_000));
}

#[test]
fn a_wrong_low_start_is_left_within_half_a_minute_of_demand() {
    let mut bench = Bench::knee_found();
    bench.knee.budget.cost = Cost([32.0; 4]);
    let before = bench.share(1_000);
    bench.run(30_000, 2, 100, true);
    assert!(bench.share(1_000) < before / 8.0, "{} before, {} now", before, bench.share(1_000));
}

/// Who waits for tokens is let go with all others that do, and meets them below: the smaller the limit, the surer.
#[test]
fn what_the_gate_lets_go_at_once_is_no_queue_of_the_store() {
    let mut bench = Bench::knee_found();
    bench.run(200, 2, 100, false);
    let before = bench.share(1_000);
    bench.run_bunches(3_000, 12, true);
    let after = bench.share(1_000);
    assert!(after < before / 2.0, "nobody was too much for the store: {before} before, {after} now");
    // But a store that has the last ones still below when the next ones come is asked for too much.
    bench.run_bunches(3_000, 12, false);
    assert!(bench.share(1_000) > after * 2.0, "{after} before, {} now", bench.share(1_000));
}

/// A server begins with what its memory answers, and is slow to do so: that is no crowd, and no reason for a limit.
#[test]
fn few_of_whom_none_was_alone_below_are_no_crowd() {
    for (per_look, is_limited) in [(1, false), (60, true)] {
        let mut bench = Bench::new();
        for _ in 0..100 {
            for _ in 0..per_look {
                bench.knee.on_start(Instant(bench.now));
                let granted = Instant(bench.now + 1);
                let outcome = Outcome {
                    segment: SEGMENT,
                    granted,
                    bytes: 4 * KIB,
                    direction: Direction::Read,
                    went_below: false,
                };
                bench.knee.on_done(Instant(bench.now + MILLI), &outcome, false);
            }
            bench.now += 10 * MILLI;
            bench.look(false, true);
        }
        assert_eq!(bench.knee.limit().is_some(), is_limited, "{per_look} in each 10 ms that take a millisecond");
    }
}

/// Of a hundred times as much, beyond the bounds of costs, too.
#[test]
fn a_limit_far_below_what_the_store_does_is_left_in_seconds() {
    for is_hot in [false, true] {
        let mut bench = Bench::knee_found();
        bench.run(200, 2, 100, false);
        (bench.knee.budget.limit, bench.knee.found) = (Some(MIB as f64), None);
        bench.knee.budget.cost = Cost([1.0; 4]);
        // Six in a tenth of a second that all wait for their tokens: only the fewest that a window can be judged by.
        for _ in 0..80 {
            bench.serve(50, 1, 64 * KIB, 500, is_hot, 1);
            (0..5).for_each(|_| bench.look(true, true));
        }
        let limit = bench.knee.limit().unwrap();
        assert!(limit > 100 * MIB, "{limit} after four seconds");
    }
}

#[test]
fn costs_at_their_bounds_change_the_limit() {
    let mut load = Load::default();
    (0..1_000).for_each(|_| load.add(Direction::Write, 64 * KIB));
    for seconds in [1e-3, 1.0, 1e3] {
        let mut budget = Budget { cost: Cost([1.0; 4]), limit: Some(load.plain()) };
        budget.set_seconds(&load, seconds);
        assert!((0.99..1.01).contains(&(budget.seconds(&load) / seconds)), "{seconds}: {budget:?}");
    }
}

#[test]
fn one_slow_window_is_an_outlier() {
    let mut bench = Bench::new();
    bench.serve(500, 2, 64 * KIB, 100, false, 1);
    bench.look(false, true);
    for _ in 0..10 {
        bench.run(90, 25, 5_000, false);
        bench.run(300, 25, 100, false);
        assert_eq!(bench.knee.limit(), None);
    }
}

#[test]
fn what_is_slow_because_of_something_else_is_no_knee() {
    let mut bench = Bench::new();
    bench.serve(500, 2, 64 * KIB, 100, false, 1);
    bench.look(false, true);
    bench.knee.disturb(Instant(bench.now + 3_000 * MILLI));
    bench.run(2_000, 25, 1_000, false);
    assert_eq!(bench.knee.limit(), None, "it was disturbed");
    // What is over is judged again.
    bench.knee.disturb(Instant(bench.now));
    bench.run(400, 25, 1_000, false);
    assert!(bench.knee.limit().is_some());
    // A probe that was under way proves nothing.
    let limit = bench.knee.limit();
    bench.knee.disturb(Instant(bench.now + 1_000 * MILLI));
    bench.run(900, 25, 5_000, true);
    assert_eq!(bench.knee.limit(), limit);
}

#[test]
fn a_stall_and_a_clock_that_jumps_leave_no_lasting_value() {
    let mut bench = Bench::knee_found();
    bench.run(500, 2, 100, false);
    let before = bench.share(1_000);
    // Ten seconds without any answer, then all of them at once.
    bench.now += 10_000 * MILLI;
    bench.look(true, true);
    bench.serve(10, 64, 64 * KIB, 10_000_000, false, 1);
    bench.now += 3_600_000 * MILLI;
    bench.look(true, true);
    bench.run(1_000, 2, 100, false);
    assert!((0.8..1.25).contains(&(bench.share(1_000) / before)), "{} before, {} now", before, bench.share(1_000));
}

#[test]
fn what_asks_for_little_is_not_slow_because_of_it() {
    let mut bench = Bench::new();
    bench.serve(500, 2, 64 * KIB, 100, false, 1);
    bench.look(false, true);
    for _ in 0..100 {
        // 200 in a second that take 2 ms each are less than one at a time.
        bench.serve(10, 2, 64 * KIB, 2_000, false, 1);
        bench.look(false, true);
    }
    assert_eq!(bench.knee.limit(), None);
}

#[test]
fn nobody_is_held_up_while_one_volume_is_alone() {
    let mut bench = Bench::knee_found();
    bench.look(false, false);
    assert_eq!(bench.knee.limit(), None);
    bench.look(false, true);
    assert!(bench.knee.limit().is_some(), "what was learned holds as soon as somebody comes");
}

#[test]
fn a_mix_that_changes_is_not_a_knee() {
    let mut cost = Cost([1.0; 4]);
    let (mut small, mut large) = (Load::default(), Load::default());
    (0..60_000).for_each(|_| small.add(Direction::Write, 4 * KIB));
    (0..16_000).for_each(|_| large.add(Direction::Write, 64 * KIB));
    // Both are all that a disk takes.
    for _ in 0..200 {
        cost.project(&small, 1e9);
        cost.project(&large, 1e9);
    }
    for load in [&small, &large] {
        assert!((0.98..1.02).contains(&(cost.of_load(load) / 1e9)), "{cost:?}");
    }
    let mut mixed = small.scaled(0.5);
    mixed.0.iter_mut().zip(large.0).for_each(|(sum, part)| *sum += part / 2.0);
    assert!((0.98..1.02).contains(&(cost.of_load(&mixed) / 1e9)), "half of each, too");
}

#[test]
fn the_background_works_out_of_the_same_budget_and_leaves_clients_a_part_of_it() {
    let mut bench = Bench::knee_found();
    let alone = bench.knee.limit().unwrap();
    let mut limits = Vec::new();
    for written_bytes in [2 * MIB, 1 << 30] {
        bench.background.add(&Work { read_bytes: 0, written_bytes });
        bench.now += 200 * MILLI;
        bench.background.look(Instant(bench.now));
        bench.look(false, true);
        limits.push(bench.knee.limit().unwrap());
    }
    assert!(limits[0] < alone && limits[0] > alone / 2, "{alone} alone, {} beside some", limits[0]);
    assert!((alone / 5..alone / 3).contains(&limits[1]), "{alone} alone, {} beside too much", limits[1]);
}

#[test]
fn nothing_is_left_while_clients_wait() {
    let mut bench = Bench::knee_found();
    assert_eq!(bench.knee.available(), Some(0), "latency has just taken off");
    bench.run(500, 2, 100, false);
    let of_all = bench.knee.bytes_per_sec().unwrap();
    assert!(bench.knee.available().unwrap() > of_all / 2, "{:?} of {of_all}", bench.knee.available());
    bench.run(500, 2, 100, true);
    assert_eq!(bench.knee.available(), Some(0));
}

#[test]
fn what_requests_take_is_told_for_some_seconds() {
    let mut bench = Bench::knee_found();
    bench.run(500, 2, 100, false);
    let (took, alone) = bench.knee.latency(Instant(bench.now)).unwrap().quantile(95);
    assert!((90_000..110_000).contains(&took) && (90_000..110_000).contains(&alone), "{took} {alone}");
    assert!(bench.knee.latency(Instant(bench.now + 5_100 * MILLI)).is_none());
}
