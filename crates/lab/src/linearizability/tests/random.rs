//! Random histories: of a true register, or with reads that saw anything.

use base::Prng;

use super::*;

/// What a random history looks like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub operations: usize,
    /// Operations begin within so many moments after one another: fewer make them overlap more.
    pub overlap: u64,
    /// One write in so many writes zeros, after the first of which values repeat; 0: none.
    pub one_in_zeros: u64,
    /// One operation in so many has no plain answer; 0: all have.
    pub one_in_unanswered: u64,
    /// One read in so many saw some value instead of what was there; 0: none.
    pub one_in_wrong: u64,
}

/// A history of a register that held `initial`, except for the reads that saw something else.
pub fn history(prng: &mut Prng, shape: &Shape, initial: Value) -> Vec<Operation> {
    // Each operation has three points in time: invoked, took effect, ended. Their order makes the moments.
    let mut points: Vec<(u64, usize, usize)> = Vec::new();
    for number in 0..shape.operations {
        let mut times = [0; 3].map(|_: i32| number as u64 * 16 + prng.below(16 * shape.overlap));
        times.sort_unstable();
        points.extend(times.into_iter().enumerate().map(|(which, time)| (time, number, which)));
    }
    points.sort_unstable();
    let mut operations: Vec<Operation> = (0..shape.operations).map(|number| operation(prng, shape, number)).collect();
    let mut held = initial;
    for (moment, &(_, number, which)) in points.iter().enumerate() {
        let moment = moment as Moment + 1;
        let operation = &mut operations[number];
        match which {
            0 => operation.invoked = moment,
            1 => take_effect(prng, operation, &mut held),
            _ => match &mut operation.end {
                End::Returned(at) | End::Settled(at) => *at = moment,
                End::Refused | End::Open => {}
            },
        }
    }
    if shape.one_in_wrong > 0 {
        let values: Vec<Value> = operations.iter().map(Operation::value).chain([initial, 0]).collect();
        for operation in operations.iter_mut().filter(|operation| operation.is_read()) {
            if prng.one_in(shape.one_in_wrong) {
                operation.action = Action::Read(*prng.pick(&values));
            }
        }
    }
    operations
}

fn operation(prng: &mut Prng, shape: &Shape, number: usize) -> Operation {
    let id = number as u64 + 1;
    if prng.one_in(2) {
        return Operation { id, invoked: 0, end: End::Returned(0), action: Action::Read(0) };
    }
    let zeros = shape.one_in_zeros > 0 && prng.one_in(shape.one_in_zeros);
    let unanswered = shape.one_in_unanswered > 0 && prng.one_in(shape.one_in_unanswered);
    let end = if unanswered { *prng.pick(&[End::Open, End::Settled(0), End::Refused]) } else { End::Returned(0) };
    Operation { id, invoked: 0, end, action: Action::Write(if zeros { 0 } else { id }) }
}

fn take_effect(prng: &mut Prng, operation: &mut Operation, held: &mut Value) {
    let takes_effect = match operation.end {
        End::Returned(_) => true,
        End::Settled(_) | End::Open => prng.one_in(2),
        End::Refused => false,
    };
    match &mut operation.action {
        Action::Read(seen) => *seen = *held,
        Action::Write(value) if takes_effect => *held = *value,
        Action::Write(_) => {}
    }
}
