//! Makes an explanation out of "no": the first read that went wrong, what it might have seen, and the few operations
//! that show it.
//!
//! Intuition: what was known at some moment is a history too, in which pending writes are open and pending reads say
//! nothing. If it cannot be explained, no later one can; so the first read is found by halving. A write whose outcome
//! is said to be open, and a read that is left out, constrain less than they did; so the operations that matter are a
//! set that still cannot be explained when all others constrain nothing, and would be without any one of its own. As
//! a larger set never constrains less, each of them is found by halving, too: it is the last one that cannot be left
//! out together with all before it.
//!
//! Invariants: only a read can be what goes wrong. A write that returns may always be the last one to take effect, if
//! the history without its answer has an explanation.

use base::Map;

use super::search::Failure;
use super::violation::Unexplained;
use super::{Action, End, Moment, Operation, Value, final_values};

/// Of several writes of the value that was seen, so many are shown.
const WRITERS_MAX: usize = 3;

/// Explains why `operations`, in order of invocation, are not the history of a register. The first read that went
/// wrong returned at `failed_at` or later.
pub(super) fn explain(operations: &[Operation], initial: &[Value], failed_at: Moment) -> Unexplained {
    let read = first_wrong_read(operations, initial, failed_at);
    let known = known_at(operations, returned_at(&read));
    let possible = what_it_might_have_seen(&known, initial, &read);
    let writers = writers_of_what_it_saw(operations, &read);
    let from_nowhere = writers.is_empty() && !initial.contains(&read.value());
    let mut involved = what_matters(&known, initial);
    involved.extend(writers);
    involved.sort_unstable_by_key(|operation| operation.invoked);
    involved.dedup_by_key(|operation| operation.invoked);
    involved.retain(|operation| operation.invoked != read.invoked);
    Unexplained { read, possible, involved, from_nowhere }
}

fn first_wrong_read(operations: &[Operation], initial: &[Value], failed_at: Moment) -> Operation {
    let mut reads: Vec<&Operation> = operations
        .iter()
        .filter(|operation| is_returned_read(operation) && returned_at(operation) >= failed_at)
        .collect();
    assert!(!reads.is_empty(), "only a read can be what goes wrong");
    reads.sort_unstable_by_key(|read| returned_at(read));
    // The last one for want of another: what was known then may be too concurrent, though all of the history was not.
    *reads[fewest(reads.len(), |count| is_wrong(&known_at(operations, returned_at(reads[count - 1])), initial)) - 1]
}

/// What is known of the history at `at`: what ends later is still open, and a read says nothing before it returns.
fn known_at(operations: &[Operation], at: Moment) -> Vec<Operation> {
    let invoked = operations.iter().take_while(|operation| operation.invoked <= at);
    let known = invoked.map(|operation| match operation.ended() {
        Some(ended) if ended > at => Operation { end: End::Open, ..*operation },
        _ => *operation,
    });
    known.filter(|operation| !operation.is_read() || is_returned_read(operation)).collect()
}

fn what_it_might_have_seen(known: &[Operation], initial: &[Value], read: &Operation) -> Vec<Value> {
    let mut others = known.to_vec();
    others.retain(|operation| operation.invoked != read.invoked);
    // It saw what was there when it was invoked, or something that was written later.
    let mut candidates = final_values(&known_at(&others, read.invoked), initial).unwrap_or_default();
    let meanwhile =
        others.iter().filter(|other| other.invoked > read.invoked && !other.is_read() && other.end != End::Refused);
    candidates.extend(meanwhile.map(Operation::value));
    candidates.sort_unstable();
    candidates.dedup();
    let mut history = known.to_vec();
    let place = known.partition_point(|operation| operation.invoked < read.invoked);
    candidates.retain(|&value| {
        history[place].action = Action::Read(value);
        final_values(&history, initial).is_ok()
    });
    candidates
}

/// The last ones before `read` returned, else the first one after.
fn writers_of_what_it_saw(operations: &[Operation], read: &Operation) -> Vec<Operation> {
    let mut writers: Vec<Operation> =
        operations.iter().filter(|operation| operation.action == Action::Write(read.value())).copied().collect();
    let before = writers.partition_point(|writer| writer.invoked < returned_at(read));
    writers.truncate(before.max(1));
    writers.drain(..writers.len().saturating_sub(WRITERS_MAX));
    writers
}

/// Operations that cannot be explained even when the others constrain nothing; all of them are needed for that.
fn what_matters(known: &[Operation], initial: &[Value]) -> Vec<Operation> {
    let mut writers: Map<Value, Vec<usize>> = Map::default();
    for (number, operation) in known.iter().enumerate().filter(|(_, operation)| !operation.is_read()) {
        writers.entry(operation.value()).or_default().push(number);
    }
    let mut rest: Vec<usize> =
        (0..known.len()).filter(|&number| known[number].is_read() || known[number].end != End::Open).collect();
    let mut needed = Vec::new();
    let fails = |needed: &[usize], rest: &[usize]| {
        let kept = [needed, rest].concat();
        is_wrong(&relaxed(known, &writers, &kept), initial)
    };
    while !rest.is_empty() && !fails(&needed, &[]) {
        let count = fewest(rest.len(), |count| fails(&needed, &rest[rest.len() - count..]));
        rest.drain(..rest.len() - count);
        needed.push(rest.remove(0));
    }
    needed.into_iter().map(|number| known[number]).collect()
}

/// The lowest number from 1 to `most` that is `enough`; `most` is. Low numbers are tried first, they cost less.
fn fewest(most: usize, enough: impl Fn(usize) -> bool) -> usize {
    let (mut too_few, mut sufficient) = (0, 1);
    while sufficient < most && !enough(sufficient) {
        too_few = sufficient;
        sufficient *= 2;
    }
    sufficient = sufficient.min(most);
    while sufficient - too_few > 1 {
        let middle = too_few.midpoint(sufficient);
        *(if enough(middle) { &mut sufficient } else { &mut too_few }) = middle;
    }
    sufficient
}

/// The history in which only the operations `kept`, in order, constrain: other reads are left out, and the outcome of
/// other writes is open. Of those only the first ones matter, one for each read that saw their value.
fn relaxed(known: &[Operation], writers: &Map<Value, Vec<usize>>, kept: &[usize]) -> Vec<Operation> {
    let mut reads: Map<Value, usize> = Map::default();
    for &number in kept.iter().filter(|&&number| known[number].is_read()) {
        *reads.entry(known[number].value()).or_default() += 1;
    }
    let mut numbers: Vec<(usize, bool)> = kept.iter().map(|&number| (number, true)).collect();
    for (value, &count) in &reads {
        let of_value = writers.get(value).into_iter().flatten();
        let others = of_value.filter(|number| kept.binary_search(number).is_err());
        numbers.extend(others.take(count).map(|&number| (number, false)));
    }
    numbers.sort_unstable();
    let operation = |(number, constrains): (usize, bool)| match constrains {
        true => known[number],
        false => Operation { end: End::Open, ..known[number] },
    };
    numbers.into_iter().map(operation).collect()
}

fn is_wrong(operations: &[Operation], initial: &[Value]) -> bool {
    matches!(final_values(operations, initial), Err(Failure::Unexplained { .. }))
}

fn is_returned_read(operation: &Operation) -> bool {
    operation.is_read() && matches!(operation.end, End::Returned(_))
}

fn returned_at(operation: &Operation) -> Moment {
    operation.ended().unwrap_or(Moment::MAX)
}
