//! What must hold at every moment, whoever is dead.
//!
//! - An ownership has one engine: nobody else ever has that segment under that epoch (rules 40 and 45 of docs/SAFETY.md).
//! - A term has one manager, and a manager's terms grow.
//!
//! What lives were granted is the shared store's to say, which is asked in the end; see `proof`.

use std::collections::BTreeMap;

use base::{Epoch, Incarnation, SegmentId};

use super::super::clients::Shared;
use super::super::coverage::Event;
use super::super::plan::{Machine, Role};
use super::machines::Machines;

/// Segments of a volume that are looked at: those that are used.
const SEGMENTS: u32 = 4;

/// Which life of which manager.
type ManagerLife = (usize, u64);

/// What was seen so far.
#[derive(Default)]
pub(super) struct Watch {
    owners: BTreeMap<(SegmentId, Epoch), Incarnation>,
    newest: BTreeMap<SegmentId, Epoch>,
    terms: BTreeMap<u64, ManagerLife>,
    last_term: BTreeMap<ManagerLife, u64>,
    dismissed: u64,
}

impl Watch {
    /// Looks at all that runs.
    pub(super) fn look(&mut self, machines: &Machines, shared: &mut Shared) {
        for (engine, store) in machines.engines() {
            for volume in store.volumes() {
                for segment in (0..SEGMENTS).map(|index| SegmentId { volume, index }) {
                    if let Some(tenure) = store.tenure(segment) {
                        self.on_owner(segment, tenure.epoch, engine, shared);
                    }
                }
            }
        }
        for (index, manager) in machines.managers() {
            let life = (index, machines.deaths(Machine { role: Role::Manager, index }));
            if let Some(term) = manager.term() {
                self.on_term(u64::from(term.0), life, shared);
            }
        }
        let dismissed = machines.dismissed();
        shared.coverage.count(Event::Dismissal, dismissed - self.dismissed);
        self.dismissed = dismissed;
    }

    pub(super) fn on_owner(&mut self, segment: SegmentId, epoch: Epoch, engine: Incarnation, shared: &mut Shared) {
        let first = *self.owners.entry((segment, epoch)).or_insert(engine);
        if first != engine {
            shared.fail(format!("{segment} has two owners under epoch {epoch}: {first} and {engine}"));
        }
        let newest = self.newest.get(&segment).copied();
        if newest.is_none_or(|newest| newest < epoch) {
            self.newest.insert(segment, epoch);
            shared.coverage.count(Event::Handover, u64::from(newest.is_some()));
        }
    }

    pub(super) fn on_term(&mut self, term: u64, life: ManagerLife, shared: &mut Shared) {
        if *self.terms.entry(term).or_insert(life) != life {
            shared.fail(format!("two managers were in charge in term {term}"));
        }
        match self.last_term.insert(life, term) {
            Some(last) if last > term => shared.fail(format!("the term of a manager fell from {last} to {term}")),
            Some(last) if last == term => {}
            _ => shared.coverage.count(Event::Term, 1),
        }
    }
}
