//! Histories by hand, and random ones against two other ways to find the answer.

mod against_every_order;
mod against_zones;
mod bounds;
mod by_hand;
mod explanation;
mod oracle;
mod random;

use super::*;

/// A write that was answered.
fn write(value: Value, invoked: Moment, returned: Moment) -> Operation {
    Operation { id: invoked, invoked, end: End::Returned(returned), action: Action::Write(value) }
}

fn discard(invoked: Moment, returned: Moment) -> Operation {
    write(0, invoked, returned)
}

/// A write that went out otherwise.
fn write_that(end: End, value: Value, invoked: Moment) -> Operation {
    Operation { id: invoked, invoked, end, action: Action::Write(value) }
}

fn read(value: Value, invoked: Moment, returned: Moment) -> Operation {
    Operation { id: invoked, invoked, end: End::Returned(returned), action: Action::Read(value) }
}

/// The read that cannot be explained.
fn wrong_read(operations: &[Operation], initial: &[Value]) -> Unexplained {
    match check_register(operations, initial) {
        Err(Violation::Unexplained(unexplained)) => *unexplained,
        other => panic!("{other:?} for {operations:?}"),
    }
}
