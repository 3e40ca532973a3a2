//! What the log's records have not brought about yet: large writes whose data is not durable, effects on the index that are
//! not applied, relocations that are under way.
//!
//! A record retires when it is durable in its place; this may be before or after its effect. A checkpoint has to know of
//! both: which large writes count, and up to where the index holds what the log says.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{LogSequence, SegmentId};

use super::super::{FrozenAt, Record, Relocating};

/// The account of it.
#[derive(Default)]
pub(super) struct Unsettled {
    /// Large writes whose record retired before their data was there, or that failed.
    incomplete: BTreeMap<LogSequence, Incomplete>,
    /// Records whose effect on the index is not applied yet.
    effects: BTreeMap<LogSequence, SegmentId>,
    relocating: BTreeMap<SegmentId, Rc<Cell<usize>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Incomplete {
    Pending,
    Failed,
}

impl Unsettled {
    /// A record has got its place.
    pub fn on_called(&mut self, sequence: LogSequence, record: &Record) {
        if matches!(record, Record::Large { .. }) {
            self.incomplete.insert(sequence, Incomplete::Pending);
        }
        if let Some(segment) = record.segment().filter(|_| record.changes_index()) {
            self.effects.insert(sequence, segment);
        }
    }

    /// A record has retired: but for large writes, which wait for their data, its effect is applied with that.
    pub fn on_retired(&mut self, sequence: LogSequence) {
        if !self.incomplete.contains_key(&sequence) {
            self.effects.remove(&sequence);
        }
    }

    /// The data of a large write is durable, and its effect was applied.
    pub fn on_large_done(&mut self, sequence: LogSequence) {
        self.incomplete.remove(&sequence);
        self.effects.remove(&sequence);
    }

    /// The data of a large write did not become durable.
    pub fn on_large_failed(&mut self, sequence: LogSequence) {
        self.incomplete.insert(sequence, Incomplete::Failed);
        self.effects.remove(&sequence);
    }

    /// A durable checkpoint lists this failed large write.
    pub fn on_rejected(&mut self, sequence: LogSequence) {
        self.incomplete.remove(&sequence);
    }

    /// Whether a large write failed that no checkpoint lists yet.
    pub fn has_failed(&self) -> bool {
        self.incomplete.values().any(|what| *what == Incomplete::Failed)
    }

    /// The first large write that is pending or failed.
    pub fn first_incomplete(&self) -> Option<LogSequence> {
        self.incomplete.keys().next().copied()
    }

    /// The first one that is pending.
    pub fn first_pending(&self) -> Option<LogSequence> {
        self.incomplete.iter().find(|(_, what)| **what == Incomplete::Pending).map(|(at, _)| *at)
    }

    /// Those below `end` that failed.
    pub fn failed_below(&self, end: LogSequence) -> Vec<LogSequence> {
        let below = self.incomplete.range(..end);
        below.filter(|(_, what)| **what == Incomplete::Failed).map(|(at, _)| *at).collect()
    }

    /// The first record whose effect is not applied yet.
    pub fn first_effect(&self) -> Option<LogSequence> {
        self.effects.keys().next().copied()
    }

    /// See [`super::TransactionSink::frozen_at`]; `next` is the sequence that the next record gets.
    pub fn frozen_at(&self, segment: SegmentId, next: LogSequence) -> FrozenAt {
        let pending = self.effects.iter().find(|(_, of)| **of == segment).map(|(sequence, _)| *sequence);
        let relocating = self.relocating.get(&segment).is_some_and(|count| count.get() > 0);
        FrozenAt { covers: pending.unwrap_or(next), quiet: pending.is_none() && !relocating }
    }

    /// See [`super::TransactionSink::relocating`].
    pub fn relocating(&mut self, segment: SegmentId) -> Relocating {
        self.relocating.retain(|_, count| count.get() > 0);
        Relocating::new(self.relocating.entry(segment).or_default().clone())
    }
}
