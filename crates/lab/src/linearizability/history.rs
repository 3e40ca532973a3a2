//! A history made ready for the search: events in order, values by small numbers, and what the whole of it tells about
//! each value.
//!
//! The checker looks at a history that is over, so it may use what comes later:
//!
//! - A write of unknown outcome that was seen took effect, if nothing else explains what was seen: it is a *must*, due
//!   when the first read that saw it returned.
//! - A write of unknown outcome whose value nobody saw matters only for what the sector holds in the end. If it was
//!   settled before the last must was invoked, it was overwritten or never happened.
//! - An open write may take effect after everything else. So of the open writes of one value only the first ones are
//!   needed, one for each read that saw it; if there are more, the sector may hold that value in the end for certain.
//! - What the sector holds in the end was written by an operation that may end after the last must was invoked. Only
//!   the values of those are *last candidates*.
//!
//! Invariants: `events` are in order of time; the only operations in them are reads that returned and writes that
//! matter.

use base::Map;

use super::{Action, End, Moment, Operation, Value};

/// The place of a value in [`History::values`].
pub(super) type ValueIndex = u32;

/// What the whole history tells about a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct ValueFacts {
    pub value: Value,
    /// Writes of it that may take effect. With one it is the value of the one write that puts it there.
    pub writes: u32,
    /// Reads that saw it.
    pub reads: u32,
    /// When the first of these reads returned.
    pub first_seen: Moment,
    /// Open writes of it that matter.
    pub open: u32,
    /// The sector may have held it at the start.
    pub initial: bool,
    /// The sector may hold it in the end because of a write of it.
    pub last_candidate: bool,
}

/// What happens to an operation, in the order in which it happens at one moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum EventKind {
    Invoked,
    /// It took effect by now.
    Returned,
    /// It took effect by now, because a read saw it that returned at this moment.
    Due,
    /// It took effect by now, or never will.
    Settled,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Event {
    pub moment: Moment,
    pub kind: EventKind,
    /// Its place in [`History::operations`].
    pub operation: u32,
}

/// An operation as the search sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prepared {
    pub value: ValueIndex,
    pub is_read: bool,
    /// Takes effect for certain.
    pub must: bool,
    /// The last moment at which it takes effect.
    pub deadline: Moment,
}

#[derive(Debug)]
pub(super) struct History {
    pub operations: Vec<Prepared>,
    pub events: Vec<Event>,
    pub values: Vec<ValueFacts>,
    pub initial: Vec<ValueIndex>,
    /// Values that the sector may hold in the end whatever else happened.
    pub last_always: Vec<Value>,
}

impl History {
    /// `operations` are in order of invocation.
    pub fn new(operations: &[Operation], initial: &[Value]) -> Self {
        let mut table = ValueTable::default();
        let mut initial: Vec<ValueIndex> = initial.iter().map(|&value| table.index_of(value)).collect();
        initial.sort_unstable();
        initial.dedup();
        for &index in &initial {
            table.facts[index as usize].initial = true;
        }
        let relevant: Vec<(&Operation, ValueIndex)> = operations
            .iter()
            .filter(|operation| is_relevant(operation))
            .map(|operation| (operation, table.count(operation)))
            .collect();
        let mut history = History {
            operations: Vec::with_capacity(relevant.len()),
            events: Vec::with_capacity(2 * relevant.len()),
            values: table.facts,
            initial,
            last_always: Vec::new(),
        };
        history.fill(&relevant);
        history.events.sort_unstable();
        history.check_moments();
        history
    }

    fn fill(&mut self, relevant: &[(&Operation, ValueIndex)]) {
        let ends: Vec<(Option<EventKind>, Moment)> =
            relevant.iter().map(|(operation, index)| end_of(operation, &self.values[*index as usize])).collect();
        let last_must = relevant
            .iter()
            .zip(&ends)
            .filter(|((operation, _), (kind, _))| !operation.is_read() && is_must(*kind))
            .map(|((operation, _), _)| operation.invoked)
            .max();
        for (&(operation, value), &(end, deadline)) in relevant.iter().zip(&ends) {
            assert!(deadline > operation.invoked, "operation {} ended before it was invoked", operation.id);
            let facts = &mut self.values[value as usize];
            let may_be_last = last_must.is_none_or(|must| deadline > must);
            if !operation.is_read() {
                if end.is_none() && facts.open == facts.reads {
                    self.last_always.push(facts.value);
                    continue;
                }
                if !is_must(end) && facts.reads == 0 && !may_be_last {
                    continue;
                }
                facts.open += u32::from(end.is_none());
                facts.last_candidate |= may_be_last;
            }
            let number = u32::try_from(self.operations.len()).expect("a history has fewer than 2^32 operations");
            self.operations.push(Prepared { value, is_read: operation.is_read(), must: is_must(end), deadline });
            self.events.push(Event { moment: operation.invoked, kind: EventKind::Invoked, operation: number });
            self.events.extend(end.map(|kind| Event { moment: deadline, kind, operation: number }));
        }
    }

    /// A recovery settles many operations at once, and a write is due when a read returns; nothing else happens twice
    /// at a moment.
    fn check_moments(&self) {
        for pair in self.events.windows(2) {
            let (first, second) = (&pair[0], &pair[1]);
            let together = matches!(
                (first.kind, second.kind),
                (EventKind::Returned | EventKind::Due, EventKind::Due)
                    | (EventKind::Due | EventKind::Settled, EventKind::Settled)
            );
            assert!(first.moment < second.moment || together, "two events have the moment {}", first.moment);
        }
    }
}

/// A refused write has no effect, and a read that did not return says nothing.
fn is_relevant(operation: &Operation) -> bool {
    match operation.end {
        End::Returned(_) => true,
        End::Settled(_) | End::Open => !operation.is_read(),
        End::Refused => false,
    }
}

fn is_must(end: Option<EventKind>) -> bool {
    matches!(end, Some(EventKind::Returned | EventKind::Due))
}

/// The event that ends `operation`, and when it takes effect at the latest.
fn end_of(operation: &Operation, facts: &ValueFacts) -> (Option<EventKind>, Moment) {
    let (kind, deadline) = match operation.end {
        End::Returned(at) => return (Some(EventKind::Returned), at),
        End::Settled(at) => (Some(EventKind::Settled), at),
        End::Open | End::Refused => (None, Moment::MAX),
    };
    // A read that returned before the invocation is a violation, which the search finds; it proves nothing here.
    let seen = facts.reads > 0 && facts.writes == 1 && !facts.initial && facts.first_seen > operation.invoked;
    if seen { (Some(EventKind::Due), deadline.min(facts.first_seen)) } else { (kind, deadline) }
}

#[derive(Default)]
struct ValueTable {
    facts: Vec<ValueFacts>,
    indices: Map<Value, ValueIndex>,
}

impl ValueTable {
    fn index_of(&mut self, value: Value) -> ValueIndex {
        *self.indices.entry(value).or_insert_with(|| {
            self.facts.push(ValueFacts {
                value,
                writes: 0,
                reads: 0,
                first_seen: Moment::MAX,
                open: 0,
                initial: false,
                last_candidate: false,
            });
            u32::try_from(self.facts.len() - 1).expect("a history has fewer than 2^32 values")
        })
    }

    fn count(&mut self, operation: &Operation) -> ValueIndex {
        let index = self.index_of(operation.value());
        let facts = &mut self.facts[index as usize];
        match operation.action {
            Action::Write(_) => facts.writes += 1,
            Action::Read(_) => {
                facts.reads += 1;
                facts.first_seen = facts.first_seen.min(operation.ended().unwrap_or(Moment::MAX));
            }
        }
        index
    }
}
