//! Gates on two loops of a simulated machine, with one set of buckets.

use base::levels::{Level, Levels, Rate};
use base::{KIB, MIB, SegmentId};
use policies::admission::Throttle;
use policies::background::Work;
use policies::slow_requests::Direction;
use runtime::sim::{NodeOptions, World};

use super::*;

const PAGE: u64 = 4 * KIB;
const ORIGIN: Origin = Origin { agent: 1, behind: 0 };

fn page(segment: SegmentId) -> Request {
    Request { segment, bytes: PAGE, direction: Direction::Write, level: Level::Open }
}

/// Two gates, and what they share.
fn two_gates(seed: u64, throttle: Throttle) -> (World, [Gate; 2]) {
    let world = World::new(seed);
    let node = world.add_node(NodeOptions::default());
    let handles = [world.start_loop(node), world.start_loop(node)];
    let settings = AdmissionSettings { throttle, limit_bytes_per_sec: MIB, ..AdmissionSettings::default() };
    let buckets = Buckets::new(settings, handles[0].now(), 2);
    (world, handles.map(|handle| Gate::new(&handle, buckets.clone())))
}

/// Asks for tokens without pause, `depth` requests at a time, and counts what got them.
fn load(gate: &Gate, volume: u64, depth: usize) -> Rc<Cell<u64>> {
    let started = Rc::new(Cell::new(0));
    let segment = SegmentId { volume: VolumeId(volume), index: 0 };
    for _ in 0..depth {
        let (gate, started) = (gate.clone(), started.clone());
        let handle = gate.0.handle.clone();
        let asking = async move {
            loop {
                let since = gate.0.handle.now();
                let (pass, _) = gate.pass(since, page(segment), ORIGIN).await.unwrap();
                started.set(started.get() + PAGE);
                gate.0.handle.sleep(Duration::from_micros(100)).await;
                let Request { segment, bytes, direction, .. } = page(segment);
                let outcome = Outcome { segment, granted: since, bytes, direction, went_below: true };
                gate.on_done(gate.0.handle.now(), pass, outcome, Work::default);
            }
        };
        handle.spawn(Class::Io, "load", asking).detach();
    }
    started
}

#[test]
fn loops_together_start_no_more_than_the_buckets_have() {
    for throttle in [Throttle::OneBucket, Throttle::DualBuckets] {
        let (world, gates) = two_gates(1, throttle);
        let started = [load(&gates[0], 1, 8), load(&gates[1], 2, 8)];
        world.run_for(Duration::from_secs(2));
        let [here, there] = started.map(|started| started.get());
        // What is refilled, what the buckets held, and the interval that has just begun.
        assert!((15 * MIB / 8..=9 * MIB / 4).contains(&(here + there)), "{here} and {there} bytes with {throttle:?}");
        assert!(here.min(there) > MIB / 2, "both have their share: {here} and {there} with {throttle:?}");
        assert!(gates.iter().all(|gate| gate.audit().is_ok()));
    }
}

#[test]
fn a_loop_takes_what_the_other_one_leaves() {
    let (world, gates) = two_gates(2, Throttle::DualBuckets);
    let started = load(&gates[1], 2, 8);
    world.run_for(Duration::from_secs(2));
    assert!(started.get() >= 15 * MIB / 8, "{} bytes", started.get());
}

#[test]
fn a_level_holds_over_both_loops() {
    let (world, gates) = two_gates(3, Throttle::DualBuckets);
    let levels = Levels { burst: Rate { iops: 0, bytes_per_sec: MIB / 4 }, ..Levels::default() };
    let volume = VolumeDescriptor::new(VolumeId(1), "volume", MIB);
    gates[0].set_volume(&VolumeDescriptor { levels, ..volume.clone() });
    let started = [load(&gates[0], 1, 4), load(&gates[1], 1, 4)];
    world.run_for(Duration::from_secs(2));
    let sum: u64 = started.iter().map(|started| started.get()).sum();
    assert!((7 * MIB / 16..=9 * MIB / 16).contains(&sum), "{sum} bytes");
    // Changed on one, it holds on the other.
    gates[1].set_volume(&volume);
    world.run_for(Duration::from_secs(1));
    let more = started.iter().map(|started| started.get()).sum::<u64>() - sum;
    assert!(more >= 3 * MIB / 4, "{more} bytes");
}

/// Each loop says what it has done since it said so last, ten times a second; all of it together is what admission knows.
#[test]
fn what_loops_do_in_the_background_is_known() {
    let (world, gates) = two_gates(4, Throttle::DualBuckets);
    for gate in gates.clone() {
        let handle = gate.0.handle.clone();
        let asking = async move {
            let Request { segment, bytes, direction, .. } = page(SegmentId { volume: VolumeId(1), index: 0 });
            let begun = gate.0.handle.now();
            loop {
                let now = gate.0.handle.now();
                let (pass, _) = gate.pass(now, page(segment), ORIGIN).await.unwrap();
                gate.0.handle.sleep(Duration::from_millis(1)).await;
                let outcome = Outcome { segment, granted: now, bytes, direction, went_below: true };
                // A megabyte in a second, half of it read.
                let each = gate.0.handle.now().nanos_since(begun) / 2_000;
                let now = gate.0.handle.now();
                gate.on_done(now, pass, outcome, || Work { read_bytes: each, written_bytes: each });
            }
        };
        handle.spawn(Class::Io, "load", asking).detach();
    }
    world.run_for(Duration::from_secs(3));
    // Not exactly: what is said in one span may have been done in the one before.
    let found = gates[0].status().background_bytes_per_sec;
    assert!((1_600_000..2_400_000).contains(&found), "{found}");
}

/// Merges one piece after the other, each of a millisecond, until the world ends: how many were let in, and sent away.
fn merge(gate: &Gate, at_once: usize) -> Rc<Cell<[u64; 2]>> {
    let counted = Rc::new(Cell::new([0; 2]));
    for _ in 0..at_once {
        let (gate, counted) = (gate.clone(), counted.clone());
        let handle = gate.0.handle.clone();
        let merging = async move {
            let count = |index: usize| {
                let mut all = counted.get();
                all[index] += 1;
                counted.set(all);
            };
            loop {
                let request = Request { level: Level::Merge, ..page(SegmentId { volume: VolumeId(9), index: 0 }) };
                let since = gate.0.handle.now();
                match gate.pass(since, request, ORIGIN).await {
                    Ok((pass, _)) => {
                        count(0);
                        gate.0.handle.sleep(Duration::from_millis(1)).await;
                        let Request { segment, bytes, direction, .. } = request;
                        let outcome = Outcome { segment, granted: since, bytes, direction, went_below: true };
                        gate.on_done(gate.0.handle.now(), pass, outcome, Work::default);
                    }
                    Err(error) => {
                        assert_eq!(error.kind, base::ErrorKind::Retry, "{error}");
                        count(1);
                    }
                }
            }
        };
        handle.spawn(Class::Io, "merge", merging).detach();
    }
    counted
}

/// Whichever loop they are on.
#[test]
fn what_merges_waits_for_clients_and_has_a_part_of_the_time_all_the_same() {
    for clients in [0, 2] {
        let (world, gates) = two_gates(5, Throttle::Off);
        let started = load(&gates[0], 1, clients);
        let merged = merge(&gates[1], 64);
        world.run_for(Duration::from_secs(2));
        let [let_in, sent_away] = merged.get();
        match clients {
            // Sixteen at once, two seconds.
            0 => assert!((31_000..=32_100).contains(&let_in) && sent_away == 0, "{let_in} {sent_away}"),
            // Two clients, of which one is always there: a quarter of the time is 500 of them, one at a time, but for the look of 5 ms.
            _ => {
                assert!((150..=500).contains(&let_in), "{let_in}");
                assert!(sent_away > 0 && started.get() / PAGE > 30_000, "{sent_away} {}", started.get() / PAGE);
            }
        }
        let unused = gates[0].look(|books| books.coordination.depth(Instant(u64::MAX)));
        assert!(unused <= clients as u64, "{unused}");
    }
}

/// A client that comes and goes keeps them waiting for no longer than it is there.
#[test]
fn what_merges_goes_on_when_the_last_client_is_done() {
    let (world, gates) = two_gates(6, Throttle::Off);
    let [here, there] = gates;
    let handle = here.0.handle.clone();
    let waited = world.block_on(&handle.clone(), async move {
        let client = page(SegmentId { volume: VolumeId(1), index: 0 });
        let (pass, _) = here.pass(handle.now(), client, ORIGIN).await.unwrap();
        let merging = there.clone();
        let turn = there.0.handle.spawn(Class::Io, "merge", async move {
            let request = Request { level: Level::Merge, ..client };
            merging.pass(merging.0.handle.now(), request, ORIGIN).await.unwrap();
            merging.0.handle.now()
        });
        handle.sleep(Duration::from_millis(7)).await;
        let done = handle.now();
        here.on_gone(pass);
        turn.await.nanos_since(done)
    });
    assert!(waited < 1_000_000, "{waited} ns");
}
