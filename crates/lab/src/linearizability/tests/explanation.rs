//! What a person reads.

use super::*;

fn sentence(operations: &[Operation], initial: &[Value]) -> String {
    let violation = check_register(operations, initial).expect_err("a bad history");
    violation.to_string()
}

#[test]
fn names_the_read_what_was_there_and_who_wrote_it() {
    assert_eq!(
        sentence(&[write(1, 1, 2), write(2, 3, 4), read(1, 5, 6), read(2, 7, 8)], &[0]),
        "read 5 of value 1 (from 5 to 6) cannot be explained: the sector held value 2 then. \
         Involved: write 1 of value 1 (from 1 to 2); write 3 of value 2 (from 3 to 4)."
    );
}

#[test]
fn names_what_is_not_an_answer() {
    let begin = [write(1, 1, 2), write_that(End::Refused, 2, 3), write_that(End::Open, 3, 4), discard(5, 9)];
    assert_eq!(
        sentence(&[&begin[..], &[read(2, 6, 7)]].concat(), &[0]),
        "read 6 of value 2 (from 6 to 7) cannot be explained: the sector held zeros or value 1 or value 3 then. \
         Involved: write 3 of value 2 (at 3, refused)."
    );
    let settled = [write(1, 1, 2), write_that(End::Settled(4), 2, 3), read(1, 5, 6), read(2, 7, 8)];
    assert_eq!(
        sentence(&settled, &[0]),
        "read 7 of value 2 (from 7 to 8) cannot be explained: the sector held value 1 then. \
         Involved: write 3 of value 2 (from 3, outcome unknown, settled at 4); read 5 of value 1 (from 5 to 6)."
    );
}

#[test]
fn names_what_came_from_nowhere_or_too_early() {
    assert_eq!(
        sentence(&[read(7, 1, 2)], &[0]),
        "read 1 of value 7 (from 1 to 2) cannot be explained: the sector held zeros then, and no operation writes \
         value 7."
    );
    assert_eq!(
        sentence(&[read(7, 1, 2), write(7, 3, 4)], &[0]),
        "read 1 of value 7 (from 1 to 2) cannot be explained: the sector held zeros then. \
         Involved: write 3 of value 7 (from 3 to 4)."
    );
}

/// In a long history, only what matters is named.
#[test]
fn leaves_out_what_does_not_matter() {
    let mut operations: Vec<Operation> =
        (0..5000).map(|number| write(number, 4 * number + 1, 4 * number + 2)).collect();
    operations.extend((0..5000).map(|number| read(number, 4 * number + 3, 4 * number + 4)));
    let unexplained = wrong_read(&[&operations[..], &[read(17, 30_000, 30_001)]].concat(), &[0]);
    assert_eq!(unexplained.possible, [4999]);
    assert_eq!(unexplained.involved[0], write(17, 69, 70));
    assert!(unexplained.involved.len() <= 3, "{unexplained}");
}

#[test]
fn lists_a_few_values_only() {
    let mut operations: Vec<Operation> = (1..=12).map(|value| write_that(End::Open, value, value)).collect();
    operations.push(read(77, 20, 21));
    assert!(sentence(&operations, &[0]).contains("value 6 or value 7 or one of 5 others then"));
}
