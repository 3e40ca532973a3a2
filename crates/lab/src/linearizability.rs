//! Is the history of one sector that of a register? An exact answer: yes, no, or "too concurrent to say".
//!
//! Intuition: a sector of a correct store behaves as if every operation took effect at one moment between its
//! invocation and its answer (Herlihy and Wing, 1990). The check walks through the history as time went and keeps
//! every state that the sector may be in. A read that returns leaves only the states in which it may have seen what
//! it saw; if none is left, no order of the operations explains the history. This is just-in-time linearization
//! (Lowe, "Testing for linearizability", 2017): nothing takes effect before something that ends needs it.
//!
//! Names: *moment*, the number of an event in the order of real time; *end*, how an operation went out; *must*, said
//! of a write that took effect for certain (it was answered, or was seen and nothing else explains that), the other
//! writes are *optional*; *configuration*, what the sector holds, and which pending operations took effect already.
//!
//! Invariants:
//! - Exact in both directions: a history is refused only if no order explains it, and the values that are returned
//!   are all those that the sector may hold, and no others. What the search leaves out is never better than what it
//!   keeps (`search` says why).
//! - The memory is bounded: [`CONFIGURATIONS_MAX`] configurations, [`PENDING_MAX`] pending operations; beyond it is an
//!   error, never a guess.
//!
//! Flow: [`check_register`] orders the history; without concurrency one pass answers (`sequential`); else `history`
//! turns operations into events, drops what cannot matter, and `search` walks through them. If that ends without a
//! configuration, `explain` looks for the first read that went wrong and for the few operations that show it.

mod explain;
mod history;
mod mask;
mod search;
mod sequential;
#[cfg(test)]
mod tests;
mod violation;

pub use mask::PENDING_MAX;
pub use violation::{Unexplained, Violation};

use history::History;
use search::{Failure, Search};

/// What a sector holds: 0 is zeros (discarded or never written), else the number of the one write that puts it there.
pub type Value = u64;

/// The number of an event: unique, and increasing in real time.
pub type Moment = u64;

/// More configurations than this at one moment end the check with [`Violation::TooConcurrent`].
pub const CONFIGURATIONS_MAX: usize = 1 << 20;

/// What an operation does to the sector, or saw in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Puts a value there. `Write(0)` is a discard: zeros are the one value that many operations write.
    Write(Value),
    /// Saw this value.
    Read(Value),
}

/// How an operation went out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Answered with success then: it took effect between its invocation and this moment.
    Returned(Moment),
    /// No answer, or an error that does not tell: it took effect between its invocation and this moment (a recovery),
    /// or never. Several operations may be settled at one moment.
    Settled(Moment),
    /// Refused: it never takes effect.
    Refused,
    /// The outcome is never known: it takes effect any time after its invocation, or never.
    Open,
}

/// One operation on the sector. A read says something only if it returned; others are ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// For messages.
    pub id: u64,
    /// When it was submitted.
    pub invoked: Moment,
    /// How it went out.
    pub end: End,
    /// What it does or saw.
    pub action: Action,
}

impl Operation {
    /// When it ended, if that is known.
    fn ended(&self) -> Option<Moment> {
        match self.end {
            End::Returned(at) | End::Settled(at) => Some(at),
            End::Refused | End::Open => None,
        }
    }

    /// The value that it writes or saw.
    fn value(&self) -> Value {
        match self.action {
            Action::Write(value) | Action::Read(value) => value,
        }
    }

    fn is_read(&self) -> bool {
        matches!(self.action, Action::Read(_))
    }
}

/// Checks that `operations`, in any order, are a history of a register that held one of `initial` before the first of
/// them. Returns the values that it may hold after the last of them, sorted; a write whose outcome stays open counts
/// there as one that may have taken effect by then.
///
/// # Errors
/// [`Violation::Unexplained`] when no order of the operations explains what the reads saw, and
/// [`Violation::TooConcurrent`] when the check would take more memory than it may.
///
/// # Panics
/// If the history is none: `initial` is empty, an operation ended before it was invoked, or two events share a moment.
pub fn check_register(operations: &[Operation], initial: &[Value]) -> Result<Vec<Value>, Violation> {
    assert!(!initial.is_empty(), "a sector holds something");
    if operations.is_sorted_by_key(|operation| operation.invoked) {
        return check_ordered(operations, initial);
    }
    let mut ordered = operations.to_vec();
    ordered.sort_unstable_by_key(|operation| operation.invoked);
    check_ordered(&ordered, initial)
}

fn check_ordered(operations: &[Operation], initial: &[Value]) -> Result<Vec<Value>, Violation> {
    if let Some(values) = sequential::final_values(operations, initial) {
        return Ok(values);
    }
    match final_values(operations, initial) {
        Ok(values) => Ok(values),
        Err(Failure::TooConcurrent(how)) => Err(Violation::TooConcurrent(how)),
        Err(Failure::Unexplained { at }) => {
            Err(Violation::Unexplained(Box::new(explain::explain(operations, initial, at))))
        }
    }
}

/// The search alone, without an explanation. `operations` are in order of invocation.
fn final_values(operations: &[Operation], initial: &[Value]) -> Result<Vec<Value>, Failure> {
    Search::new(History::new(operations, initial), CONFIGURATIONS_MAX).run()
}
