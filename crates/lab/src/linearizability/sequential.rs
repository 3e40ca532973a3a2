//! The fast path: a history in which no operation overlaps another and all outcomes are known.
//!
//! Most sectors of most runs are like that. There is one order, so there is nothing to search.

use super::{Action, End, Operation, Value};

/// The values that the sector may hold in the end; nothing if operations overlap, if an outcome is not known, or if a
/// read cannot be explained: the search then says more. `operations` are in order of invocation.
pub(super) fn final_values(operations: &[Operation], initial: &[Value]) -> Option<Vec<Value>> {
    let mut values = initial.to_vec();
    let mut quiet_since = None;
    for operation in operations {
        let returned = match operation.end {
            End::Returned(at) if at > operation.invoked => at,
            End::Refused => continue,
            _ => return None,
        };
        if quiet_since.is_some_and(|since| since >= operation.invoked) {
            return None;
        }
        quiet_since = Some(returned);
        if let Action::Read(seen) = operation.action
            && !values.contains(&seen)
        {
            return None;
        }
        values.clear();
        values.push(operation.value());
    }
    values.sort_unstable();
    values.dedup();
    Some(values)
}
