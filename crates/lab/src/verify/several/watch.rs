//! What must hold at every moment, whoever is dead.
//!
//! - An ownership has one engine: nobody else ever has that segment under that epoch (rules 40 and 45 of docs/SAFETY.md).
//! - Of the engines that are not fenced one at most has a segment (rules 36 and 39 to 41).
//! - What is fenced makes no files (rule 35).
//! - A term has one manager, and a manager's terms grow.
//! - Nobody is declared dead for what happened to a manager, while another one is well (rule 50).
//! - An engine takes orders under terms that grow (rule 45).
//!
//! What lives were granted is the shared store's to say, which is asked in the end; see `proof`.

use std::collections::BTreeMap;

use base::{Epoch, Incarnation, Instant, SegmentId, Set, Term};
use files::shared::LifeInfo;

use super::super::coverage::Event;
use super::super::plan::{Machine, Role};
use super::super::shared::Shared;
use super::machines::Machines;

/// Which life of which manager.
type ManagerLife = (usize, u64);

/// What was seen so far.
#[derive(Default)]
pub(super) struct Watch {
    owners: BTreeMap<(SegmentId, Epoch), Incarnation>,
    newest: BTreeMap<SegmentId, Epoch>,
    terms: BTreeMap<u64, ManagerLife>,
    last_term: BTreeMap<ManagerLife, u64>,
    orders: BTreeMap<Incarnation, Term>,
    /// What lives had set aside when their fences returned.
    left: BTreeMap<Incarnation, u64>,
}

impl Watch {
    /// Looks at all that runs.
    pub(super) fn look(&mut self, machines: &Machines, now: Instant, shared: &mut Shared) {
        let lives = machines.lives().unwrap_or_default();
        lives.iter().for_each(|life| self.on_life(life, shared));
        let may_write = lives.into_iter().filter(|life| !life.is_fenced);
        let may_write: Set<Incarnation> = may_write.map(|life| life.incarnation).collect();
        let mut present: BTreeMap<SegmentId, Incarnation> = BTreeMap::new();
        for server in machines.servers() {
            let engine = server.engine;
            self.on_orders(engine, server.orders.term(), shared);
            for (segment, tenure) in server.segments() {
                self.on_owner(segment, tenure.epoch, engine, shared);
                let other = may_write.contains(&engine).then(|| present.insert(segment, engine)).flatten();
                if let Some(other) = other {
                    shared.fail(format!("{segment} is with two engines that may write: {other} and {engine}"));
                }
            }
        }
        for (index, manager) in machines.managers() {
            let life = (index, machines.deaths(Machine { role: Role::Manager, index }));
            if let Some(term) = manager.term() {
                self.on_term(u64::from(term.0), life, shared);
            }
        }
        for index in machines.take_dismissed() {
            shared.coverage.count(Event::Dismissal, 1);
            // Of the last look nobody knows how long ago it was.
            if shared.workers > 0 {
                self.on_dismissed(machines, Machine { role: Role::Server, index }, now, shared);
            }
        }
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

    /// A server was declared dead. One to which nothing has happened, and that a manager misses who is well, is not: whoever
    /// misses many asks another one.
    pub(super) fn on_dismissed(&mut self, machines: &Machines, server: Machine, now: Instant, shared: &mut Shared) {
        let is_well = |machine: Machine| machines.is_well(machine, now);
        let has_witness = machines.of(Role::Manager).any(is_well);
        if has_witness && is_well(server) && machines.of(Role::Store).all(is_well) {
            shared.fail(format!("{server:?} was declared dead, though nothing had happened to it"));
        }
    }

    /// Nothing of a life grows after its fence has returned, which gives its grant back.
    pub(super) fn on_life(&mut self, life: &LifeInfo, shared: &mut Shared) {
        if !life.is_fenced || life.granted_bytes > 0 {
            return;
        }
        let former = self.left.insert(life.incarnation, life.used_bytes);
        if let Some(former) = former.filter(|former| *former < life.used_bytes) {
            let (life, now) = (life.incarnation, life.used_bytes);
            shared.fail(format!("incarnation {life} was fenced with {former} bytes of files, and has {now} now"));
        }
    }

    pub(super) fn on_orders(&mut self, engine: Incarnation, term: Term, shared: &mut Shared) {
        match self.orders.insert(engine, term) {
            Some(last) if last > term => {
                shared.fail(format!("engine {engine} obeyed a manager of term {term} after one of term {last}"));
            }
            _ => {}
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
