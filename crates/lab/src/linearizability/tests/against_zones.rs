//! The check against another algorithm, on longer histories in which each value is written once and all is answered.
//!
//! Gibbons and Korach ("Testing shared memories", 1997, §4): a write and the reads that saw it make a cluster. Its
//! zone lies between the first end and the last invocation in the cluster. If the end comes first, the zone is
//! forward: the sector held the value all the time. Else it is backward: the sector held it at some moment in it. The
//! history is linearizable if and only if no two forward zones overlap, and no backward zone lies within a forward one.

use base::{Map, Prng};

use super::random::Shape;
use super::*;

const HISTORIES: u64 = 4000;

#[derive(Clone, Copy, Debug)]
struct Cluster {
    written: Option<Moment>,
    first_end: Moment,
    last_invocation: Moment,
    first_read_end: Moment,
}

fn is_linearizable(operations: &[Operation], initial: Value) -> bool {
    let mut clusters: Map<Value, Cluster> = Map::default();
    let none = Cluster { written: None, first_end: Moment::MAX, last_invocation: 0, first_read_end: Moment::MAX };
    // The initial value was written before everything.
    clusters.insert(initial, Cluster { written: Some(0), first_end: 0, ..none });
    for operation in operations {
        let cluster = clusters.entry(operation.value()).or_insert(none);
        let ended = operation.ended().expect("all is answered");
        cluster.first_end = cluster.first_end.min(ended);
        cluster.last_invocation = cluster.last_invocation.max(operation.invoked);
        if operation.is_read() {
            cluster.first_read_end = cluster.first_read_end.min(ended);
        } else {
            assert_eq!(cluster.written.replace(operation.invoked), None, "each value is written once");
        }
    }
    let is_sound = |cluster: &Cluster| cluster.written.is_some_and(|written| written < cluster.first_read_end);
    if !clusters.values().all(is_sound) {
        return false;
    }
    let (forward, backward): (Vec<Cluster>, Vec<Cluster>) =
        clusters.values().partition(|cluster| cluster.first_end < cluster.last_invocation);
    let mut zones: Vec<(Moment, Moment)> =
        forward.iter().map(|cluster| (cluster.first_end, cluster.last_invocation)).collect();
    zones.sort_unstable();
    let apart = zones.windows(2).all(|pair| pair[0].1 < pair[1].0);
    let within = |inner: &Cluster| zones.iter().any(|&(from, to)| from < inner.last_invocation && inner.first_end < to);
    apart && !backward.iter().any(within)
}

#[test]
fn same_answer_as_the_zones() {
    let mut prng = Prng::new(3);
    let (mut accepted, mut refused) = (0, 0);
    for number in 0..HISTORIES {
        let shape = Shape {
            operations: prng.between(5, 60) as usize,
            overlap: prng.between(1, 20),
            one_in_zeros: 0,
            one_in_unanswered: 0,
            one_in_wrong: if prng.one_in(2) { 0 } else { prng.between(2, 40) },
        };
        let operations = random::history(&mut prng, &shape, 0);
        let end = operations.iter().filter_map(Operation::ended).max().unwrap_or(0);
        let mut expected: Vec<Value> = operations.iter().map(Operation::value).chain([0]).collect();
        expected.sort_unstable();
        expected.dedup();
        // The sector may hold in the end what a last read may see.
        expected.retain(|&value| is_linearizable(&[&operations[..], &[read(value, end + 1, end + 2)]].concat(), 0));
        assert_eq!(is_linearizable(&operations, 0), !expected.is_empty());
        match check_register(&operations, &[0]) {
            Ok(values) => {
                assert_eq!(values, expected, "history {number}: {operations:#?}");
                accepted += 1;
            }
            Err(violation) => {
                assert!(expected.is_empty(), "history {number}: {operations:#?} {violation}");
                refused += 1;
            }
        }
    }
    let few = HISTORIES / 5;
    assert!(accepted > few && refused > few, "{accepted} accepted, {refused} refused");
}
