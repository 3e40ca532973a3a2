//! One bad history for each way in which a store may fail, beside the good one that looks most like it.

use super::*;

/// `good` is accepted with `last` as the values in the end; in `bad` the read invoked at `wrong` cannot be explained.
fn assert_told_apart(good: &[Operation], last: &[Value], bad: &[Operation], wrong: Moment) {
    assert_eq!(check_register(good, &[0]), Ok(last.to_vec()));
    assert_eq!(wrong_read(bad, &[0]).read.invoked, wrong);
}

#[test]
fn stale_read() {
    assert_told_apart(
        &[write(1, 1, 2), write(2, 3, 6), read(1, 4, 5)],
        &[2],
        &[write(1, 1, 2), write(2, 3, 4), read(1, 5, 6)],
        5,
    );
}

#[test]
fn acknowledged_write_is_lost() {
    assert_told_apart(&[write(1, 1, 2), read(1, 3, 4)], &[1], &[write(1, 1, 2), read(0, 3, 4)], 3);
}

#[test]
fn overwritten_value_comes_back() {
    let begin = [write(1, 1, 2), write(2, 3, 4), read(2, 5, 6)];
    assert_told_apart(&[&begin[..], &[read(2, 7, 8)]].concat(), &[2], &[&begin[..], &[read(1, 7, 8)]].concat(), 7);
}

#[test]
fn two_readers_see_two_writes_in_opposite_orders() {
    let writes = [write(1, 1, 20), write(2, 2, 21)];
    let first = [read(1, 3, 4), read(2, 5, 6)];
    assert_told_apart(
        &[&writes[..], &first, &[read(2, 7, 8)]].concat(),
        &[2],
        &[&writes[..], &first, &[read(1, 7, 8)]].concat(),
        7,
    );
    // The same with readers that overlap.
    let overlapping = [read(1, 3, 5), read(2, 4, 6), read(2, 7, 9), read(1, 8, 10)];
    assert_eq!(wrong_read(&[&writes[..], &overlapping].concat(), &[0]).possible, [2]);
}

#[test]
fn write_of_unknown_outcome_is_seen_and_then_gone() {
    for end in [End::Open, End::Settled(20)] {
        let begin = [write(1, 1, 2), write_that(end, 2, 3), read(2, 4, 5)];
        assert_told_apart(&[&begin[..], &[read(2, 6, 7)]].concat(), &[2], &[&begin[..], &[read(1, 6, 7)]].concat(), 6);
    }
}

#[test]
fn write_of_unknown_outcome_comes_late() {
    let late = [write(1, 1, 2), write_that(End::Open, 2, 3), read(1, 4, 5), read(2, 6, 7)];
    assert_eq!(check_register(&late, &[0]), Ok(vec![2]));
    assert_eq!(check_register(&late[..3], &[0]), Ok(vec![1, 2]));
}

#[test]
fn write_that_a_recovery_settled_as_gone_comes_back() {
    let begin = [write(1, 1, 2), write_that(End::Settled(4), 2, 3)];
    assert_eq!(check_register(&begin, &[0]), Ok(vec![1, 2]));
    assert_told_apart(
        &[&begin[..], &[read(1, 5, 6), read(1, 7, 8)]].concat(),
        &[1],
        &[&begin[..], &[read(1, 5, 6), read(2, 7, 8)]].concat(),
        7,
    );
    // A read that was invoked before the recovery, and returned after it, may have seen it early.
    let early = [write(1, 1, 2), write_that(End::Settled(5), 2, 3), read(2, 4, 6), read(2, 7, 8)];
    assert_eq!(check_register(&early, &[0]), Ok(vec![2]));
}

#[test]
fn one_recovery_settles_several_writes() {
    let begin =
        [write_that(End::Settled(4), 1, 1), write_that(End::Settled(4), 2, 2), write_that(End::Settled(4), 0, 3)];
    assert_eq!(check_register(&begin, &[9]), Ok(vec![0, 1, 2, 9]));
    assert_told_apart(
        &[&begin[..], &[read(2, 5, 6), read(2, 7, 8)]].concat(),
        &[2],
        &[&begin[..], &[read(2, 5, 6), read(0, 7, 8)]].concat(),
        7,
    );
}

#[test]
fn refused_write_is_seen() {
    let begin = [write(1, 1, 2), write_that(End::Refused, 2, 3)];
    assert_told_apart(&[&begin[..], &[read(1, 5, 6)]].concat(), &[1], &[&begin[..], &[read(2, 5, 6)]].concat(), 5);
}

#[test]
fn discard_is_undone() {
    let begin = [write(1, 1, 2), discard(3, 4)];
    assert_told_apart(&[&begin[..], &[read(0, 5, 6)]].concat(), &[0], &[&begin[..], &[read(1, 5, 6)]].concat(), 5);
}

#[test]
fn zeros_that_no_discard_explains() {
    assert_told_apart(
        &[write(1, 1, 2), discard(3, 8), read(1, 4, 5), read(0, 6, 7)],
        &[0],
        &[discard(1, 2), write(1, 3, 4), read(0, 5, 6)],
        5,
    );
    // One discard makes zeros once.
    let begin = [discard(1, 20), write(1, 2, 3), read(0, 4, 5), write(2, 6, 7)];
    assert_told_apart(&[&begin[..], &[read(2, 8, 9)]].concat(), &[2], &[&begin[..], &[read(0, 8, 9)]].concat(), 8);
    // Two make them twice.
    let twice = [discard(1, 20), write(1, 2, 3), read(0, 4, 5), write_that(End::Open, 0, 6), write(2, 7, 8)];
    assert_eq!(check_register(&[&twice[..], &[read(0, 9, 10)]].concat(), &[0]), Ok(vec![0]));
}

#[test]
fn value_is_read_before_its_write_is_invoked() {
    assert_told_apart(&[write(1, 1, 4), read(1, 2, 3)], &[1], &[read(1, 1, 2), write(1, 3, 4)], 1);
    for end in [End::Open, End::Settled(4)] {
        assert_eq!(wrong_read(&[read(1, 1, 2), write_that(end, 1, 3)], &[0]).read.invoked, 1);
    }
}

#[test]
fn value_that_nobody_writes() {
    assert!(wrong_read(&[write(1, 1, 2), read(7, 3, 4)], &[0]).from_nowhere);
}

#[test]
fn initial_values() {
    assert_eq!(check_register(&[], &[4, 0, 4]), Ok(vec![0, 4]));
    assert_eq!(check_register(&[read(4, 1, 2)], &[0, 4]), Ok(vec![4]));
    assert_eq!(wrong_read(&[read(4, 1, 2), read(0, 3, 4)], &[0, 4]).read.invoked, 3);
    // A write of unknown outcome of an earlier time: it was there already, or came later.
    let again = [write(5, 2, 3), write_that(End::Open, 4, 1), read(4, 4, 5)];
    assert_eq!(check_register(&again, &[0, 4]), Ok(vec![4]));
}

#[test]
fn reads_without_an_answer_say_nothing() {
    let ends = [End::Open, End::Settled(9), End::Refused];
    for end in ends {
        let silent = Operation { id: 1, invoked: 1, end, action: Action::Read(77) };
        assert_eq!(check_register(&[silent, write(1, 2, 3)], &[0]), Ok(vec![1]));
    }
}

#[test]
fn values_in_the_end() {
    // Concurrent writes: any may be the last, except one that returned before another began.
    assert_eq!(check_register(&[write(1, 1, 5), write(2, 2, 6), write(3, 3, 4)], &[0]), Ok(vec![1, 2, 3]));
    assert_eq!(check_register(&[write(1, 1, 3), write(2, 2, 6), write(3, 4, 5)], &[0]), Ok(vec![2, 3]));
    // An open write may come after everything, if it was not seen before.
    let seen = [write_that(End::Open, 1, 1), write_that(End::Open, 2, 2), read(1, 3, 4), write(3, 5, 6)];
    assert_eq!(check_register(&seen, &[0]), Ok(vec![2, 3]));
    // Two open discards, of which one was seen.
    let discards = [write(1, 1, 2), write_that(End::Open, 0, 3), write_that(End::Open, 0, 4), read(0, 5, 6)];
    assert_eq!(check_register(&[&discards[..], &[write(2, 7, 8)]].concat(), &[0]), Ok(vec![0, 2]));
    let one = [discards[0], discards[1], discards[3], write(2, 7, 8)];
    assert_eq!(check_register(&one, &[0]), Ok(vec![2]));
}

#[test]
fn order_of_the_list_does_not_matter() {
    let mut operations = vec![write(1, 1, 4), write(2, 3, 8), read(1, 5, 6), read(2, 7, 10), discard(9, 12)];
    for _ in 0..operations.len() {
        operations.rotate_left(1);
        assert_eq!(check_register(&operations, &[0]), Ok(vec![0]));
    }
}

#[test]
#[should_panic(expected = "two events have the moment 3")]
fn moments_are_unique() {
    let _ = check_register(&[write(1, 1, 3), write(2, 2, 4), write(3, 3, 5)], &[0]);
}

#[test]
#[should_panic(expected = "ended before it was invoked")]
fn nothing_ends_before_it_begins() {
    let _ = check_register(&[write(1, 2, 1)], &[0]);
}
