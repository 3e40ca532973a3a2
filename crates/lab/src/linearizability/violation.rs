//! What the check says about a history that it does not accept, in sentences for a person.

use std::fmt;

use super::{Action, End, Moment, Operation, Value};

/// More values, or operations, than this are not listed.
const LISTED_MAX: usize = 8;

/// Why a history is not accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Violation {
    /// It is not the history of a register.
    Unexplained(Box<Unexplained>),
    /// It may be one, or not: the check would take more memory than it may.
    TooConcurrent(TooConcurrent),
}

/// The first read that no order of the operations explains.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unexplained {
    /// The read. Without it, what was known when it returned is the history of a register.
    pub read: Operation,
    /// What it might have seen instead, sorted.
    pub possible: Vec<Value>,
    /// The few operations that cannot be brought into an order with the read, and those that write what it saw: the
    /// last ones before it returned, else the first one after. In order of invocation.
    pub involved: Vec<Operation>,
    /// No operation writes what it saw, and it was not there at the start.
    pub from_nowhere: bool,
}

/// The history exceeds a bound of the check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooConcurrent {
    /// When.
    pub at: Moment,
    /// Operations that were pending.
    pub pending: usize,
    /// Configurations that were possible.
    pub configurations: usize,
}

impl std::error::Error for Violation {}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Unexplained(unexplained) => unexplained.fmt(f),
            Violation::TooConcurrent(how) => how.fmt(f),
        }
    }
}

impl fmt::Display for Unexplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unexplained { read, possible, involved, from_nowhere } = self;
        write!(f, "{read} cannot be explained: the sector held {} then", Alternatives(possible))?;
        if *from_nowhere {
            write!(f, ", and no operation writes {}", Shown(read.value()))?;
        }
        write!(f, ".")?;
        // The last ones are the closest to the read.
        let left_out = involved.len().saturating_sub(LISTED_MAX);
        for (number, operation) in involved[left_out..].iter().enumerate() {
            write!(f, "{}{operation}", if number == 0 { " Involved: " } else { "; " })?;
        }
        match (involved.len(), left_out) {
            (0, _) => Ok(()),
            (_, 0) => write!(f, "."),
            _ => write!(f, "; and {left_out} before them."),
        }
    }
}

impl fmt::Display for TooConcurrent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooConcurrent { at, pending, configurations } = self;
        write!(
            f,
            "too concurrent to be checked: at {at} the sector had {pending} operations pending and {configurations} \
             possible states"
        )
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.action {
            Action::Read(value) => write!(f, "read {} of {}", self.id, Shown(value))?,
            Action::Write(0) => write!(f, "discard {}", self.id)?,
            Action::Write(value) => write!(f, "write {} of {}", self.id, Shown(value))?,
        }
        match self.end {
            End::Returned(at) => write!(f, " (from {} to {at})", self.invoked),
            End::Settled(at) => write!(f, " (from {}, outcome unknown, settled at {at})", self.invoked),
            End::Refused => write!(f, " (at {}, refused)", self.invoked),
            End::Open => write!(f, " (from {}, outcome unknown)", self.invoked),
        }
    }
}

/// A value as a person reads it.
struct Shown(Value);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { write!(f, "zeros") } else { write!(f, "value {}", self.0) }
    }
}

struct Alternatives<'a>(&'a [Value]);

impl fmt::Display for Alternatives<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = self.0.len().min(LISTED_MAX);
        for (number, &value) in self.0[..listed].iter().enumerate() {
            write!(f, "{}{}", if number == 0 { "" } else { " or " }, Shown(value))?;
        }
        match self.0.len() - listed {
            0 => Ok(()),
            more => write!(f, " or one of {more} others"),
        }
    }
}
