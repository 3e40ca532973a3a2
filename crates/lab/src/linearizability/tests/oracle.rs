//! The answer from first principles: every order of a tiny history is tried.

use super::*;

/// All values that the sector may hold after some order of the operations that explains each read, sorted; none if no
/// order does.
pub fn last_values(operations: &[Operation], initial: &[Value]) -> Vec<Value> {
    assert!(operations.len() <= 16);
    let relevant: Vec<Operation> = operations
        .iter()
        .filter(|operation| match operation.end {
            End::Returned(_) => true,
            End::Settled(_) | End::Open => !operation.is_read(),
            End::Refused => false,
        })
        .copied()
        .collect();
    let mut last = Vec::new();
    for &value in initial {
        try_all(&relevant, 0, value, &mut last);
    }
    last.sort_unstable();
    last.dedup();
    last
}

/// `taken` took effect or never will, and left `value`.
fn try_all(operations: &[Operation], taken: u32, value: Value, last: &mut Vec<Value>) {
    let left = |number: &usize| taken & (1 << number) == 0;
    if !(0..operations.len()).filter(left).any(|number| matches!(operations[number].end, End::Returned(_))) {
        last.push(value);
    }
    for number in (0..operations.len()).filter(left) {
        // It is not the next one if another one that is left ended before it began.
        let mut overdue = 0;
        for other in (0..operations.len()).filter(left) {
            if operations[other].ended().is_some_and(|ended| ended < operations[number].invoked) {
                overdue |= 1 << other;
                // One that need not take effect never will.
                if matches!(operations[other].end, End::Returned(_)) {
                    overdue = u32::MAX;
                    break;
                }
            }
        }
        if overdue == u32::MAX {
            continue;
        }
        match operations[number].action {
            Action::Read(seen) if seen != value => {}
            Action::Read(_) => try_all(operations, taken | overdue | (1 << number), value, last),
            Action::Write(written) => try_all(operations, taken | overdue | (1 << number), written, last),
        }
    }
}
