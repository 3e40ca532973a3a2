//! The walk through the events, with all configurations that are left (Lowe 2017, §3, for a register).
//!
//! Intuition: an operation that ends without having taken effect makes each configuration *step*: pending writes take
//! effect one after the other, the last of them is what the end needs, and the value that was there is gone. Between
//! ends nothing happens, except that a read that is pending while its value is there has taken effect: that changes
//! nothing and only helps.
//!
//! A step does not try every subset of the pending writes. Of two configurations with the same value, one is enough
//! if whatever may follow the other may follow it too:
//!
//! 1. A write that is overwritten in the same step does one of two things: its obligation ends if it is a must, and
//!    pending reads of its value take effect. An optional write that does neither is left alone.
//! 2. A must whose value is not *wanted* any more (no read of it is to be invoked, and it need not be there in the
//!    end) goes along in the first step: if it took effect later, it would only be overwritten.
//! 3. The only write of a value stays away from a step that overwrites it, if that value is wanted: nothing else could
//!    bring it back.
//! 4. Of two pending writes of one value the one with the earlier deadline goes first, unless it is optional and the
//!    other a must.
//!
//! So a write of a unique value never branches, and only zeros that are wanted do.
//!
//! What the sector holds in the end is a question of its own: rule 2 would overwrite the write that might be the
//! last. So when the write of a last candidate is invoked, each configuration is there a second time with the *wish*
//! that this value is there in the end. Values of several writes need no wish: they are always wanted.
//!
//! Invariants: each configuration is a true one (some order of the operations leads to it). After the event that ends
//! an operation no configuration has its bit, so its slot is free again; with nothing pending, configurations differ
//! in value and wish only.

mod step;

use super::history::{Event, EventKind, History, Prepared, ValueIndex};
use super::mask::{Mask, PENDING_MAX, Slot};
use super::violation::TooConcurrent;
use super::{Moment, Value};

/// Why there is no answer, or a bad one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// No configuration was left after the event of this moment. The first read that nothing explains returned then or
    /// later: rule 3 looks ahead.
    Unexplained { at: Moment },
    /// A bound was reached.
    TooConcurrent(TooConcurrent),
}

/// A state that the sector may be in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Configuration {
    value: ValueIndex,
    /// What is to be there in the end, if that matters.
    wish: Option<ValueIndex>,
    /// The pending operations that took effect.
    done: Mask,
}

/// An operation that was invoked and has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pending {
    slot: Slot,
    value: ValueIndex,
    must: bool,
    deadline: Moment,
}

pub(super) struct Search {
    history: History,
    configurations_max: usize,
    configurations: Vec<Configuration>,
    /// The configurations after the event at hand; empty between events.
    next: Vec<Configuration>,
    writes: Vec<Pending>,
    reads: Vec<Pending>,
    slots_used: Mask,
    /// By operation; says something while it is pending.
    slots: Vec<Slot>,
    /// By value: its reads that are not invoked yet.
    reads_to_come: Vec<u32>,
}

impl Search {
    pub fn new(history: History, configurations_max: usize) -> Self {
        let configurations =
            history.initial.iter().map(|&value| Configuration { value, wish: None, done: Mask::default() }).collect();
        Search {
            configurations_max,
            configurations,
            next: Vec::new(),
            writes: Vec::new(),
            reads: Vec::new(),
            slots_used: Mask::default(),
            slots: vec![0; history.operations.len()],
            reads_to_come: history.values.iter().map(|facts| facts.reads).collect(),
            history,
        }
    }

    /// The values that the sector may hold in the end, sorted.
    pub fn run(mut self) -> Result<Vec<Value>, Failure> {
        for number in 0..self.history.events.len() {
            let event = self.history.events[number];
            match event.kind {
                EventKind::Invoked => self.on_invoked(event)?,
                EventKind::Returned | EventKind::Due | EventKind::Settled => self.on_ended(event)?,
            }
        }
        Ok(self.last_values())
    }

    fn on_invoked(&mut self, event: Event) -> Result<(), Failure> {
        let operation = self.history.operations[event.operation as usize];
        let Some(slot) = self.slots_used.first_free() else {
            let how =
                TooConcurrent { at: event.moment, pending: PENDING_MAX, configurations: self.configurations.len() };
            return Err(Failure::TooConcurrent(how));
        };
        self.slots_used.insert(slot);
        self.slots[event.operation as usize] = slot;
        let Prepared { value, must, deadline, .. } = operation;
        let pending = Pending { slot, value, must, deadline };
        if operation.is_read {
            self.reads.push(pending);
            self.reads_to_come[value as usize] -= 1;
            for configuration in self.configurations.iter_mut().filter(|configuration| configuration.value == value) {
                configuration.done.insert(slot);
            }
            return Ok(());
        }
        self.writes.push(pending);
        let facts = &self.history.values[value as usize];
        if facts.last_candidate && facts.writes == 1 {
            let plain = self.configurations.iter().filter(|configuration| configuration.wish.is_none());
            self.next.extend(plain.map(|&configuration| Configuration { wish: Some(value), ..configuration }));
            self.configurations.append(&mut self.next);
            self.keep_bound(event.moment)?;
        }
        Ok(())
    }

    fn on_ended(&mut self, event: Event) -> Result<(), Failure> {
        let Prepared { value, is_read, must, .. } = self.history.operations[event.operation as usize];
        let slot = self.slots[event.operation as usize];
        let current = std::mem::take(&mut self.configurations);
        for configuration in &current {
            if configuration.done.has(slot) {
                self.next.push(*configuration);
            } else if is_read {
                self.step_to_value(configuration, value);
            } else if must {
                self.step_to_write(configuration, value, slot);
            } else {
                self.next.push(*configuration);
                self.step_to_optional(configuration, value, slot);
            }
            self.keep_bound_of_next(event.moment)?;
        }
        let ended = if is_read { &mut self.reads } else { &mut self.writes };
        ended.retain(|pending| pending.slot != slot);
        self.slots_used.remove(slot);
        for configuration in &mut self.next {
            configuration.done.remove(slot);
        }
        self.configurations = current;
        self.configurations.clear();
        std::mem::swap(&mut self.configurations, &mut self.next);
        sort_out(&mut self.configurations);
        if self.configurations.is_empty() { Err(Failure::Unexplained { at: event.moment }) } else { Ok(()) }
    }

    fn last_values(&self) -> Vec<Value> {
        let fulfilled =
            |configuration: &&Configuration| configuration.wish.is_none_or(|wish| wish == configuration.value);
        let mut values = self.history.last_always.clone();
        for configuration in self.configurations.iter().filter(fulfilled) {
            values.push(self.history.values[configuration.value as usize].value);
            // What is pending now stays open, and may still come.
            let open = self.writes.iter().filter(|write| !configuration.done.has(write.slot));
            values.extend(open.map(|write| self.history.values[write.value as usize].value));
        }
        sort_out(&mut values);
        values
    }

    fn keep_bound_of_next(&mut self, at: Moment) -> Result<(), Failure> {
        if self.next.len() <= self.configurations_max {
            return Ok(());
        }
        sort_out(&mut self.next);
        self.bound(self.next.len(), at)
    }

    fn keep_bound(&self, at: Moment) -> Result<(), Failure> {
        self.bound(self.configurations.len(), at)
    }

    fn bound(&self, configurations: usize, at: Moment) -> Result<(), Failure> {
        if configurations <= self.configurations_max {
            return Ok(());
        }
        let pending = self.writes.len() + self.reads.len();
        Err(Failure::TooConcurrent(TooConcurrent { at, pending, configurations }))
    }
}

fn sort_out<T: Ord>(items: &mut Vec<T>) {
    if items.len() > 1 {
        items.sort_unstable();
        items.dedup();
    }
}
