//! Managers and recoverers: who is to own what, who is dead, where a dead one's log ends.

use super::state::{Assignment, Life, Role, World};
use super::step::Step;
use super::{Flaw, Ownership};

impl Ownership {
    /// Planned moves, assignments of what dead engines had, what was adopted, another manager.
    pub(super) fn manage(&self, world: &World, lead: &mut dyn FnMut(Step, World)) {
        for segment in 0..self.segments {
            let entry = world.manager.table[segment];
            if world.left.moves > 0 && entry.adopted {
                let mut next = world.clone();
                next.left.moves -= 1;
                self.assign_anew(&next, segment, entry.engine, Some(entry.engine), lead);
            }
            if let Some(source) = self.source_after_failure(world, segment) {
                self.assign_anew(world, segment, source, None, lead);
            }
            let has_adopted = world.serves(entry.engine.into(), segment) == Some(entry.epoch);
            if !entry.adopted && has_adopted {
                let mut next = world.clone();
                next.manager.table[segment].adopted = true;
                next.manager.durable[segment].adopted |= next.manager.durable[segment].epoch == entry.epoch;
                lead(Step::Confirm(segment as u8, entry.engine), next);
            }
            if world.manager.durable[segment] != entry {
                let mut next = world.clone();
                next.manager.durable[segment] = entry;
                lead(Step::Durable(segment as u8), next);
            }
        }
        self.change_manager(world, lead);
    }

    /// Where a segment is to be had from whose assignee will not serve it, if that is so.
    fn source_after_failure(&self, world: &World, segment: usize) -> Option<u8> {
        let entry = world.manager.table[segment];
        let (life, log) = (world.manager.lives[usize::from(entry.engine)], &world.logs[usize::from(entry.engine)]);
        let has_adopted = log.holdings[segment].role != Role::None && log.holdings[segment].epoch == entry.epoch;
        let is_given_up = match life {
            Life::Sealed => true,
            Life::Dead | Life::Fenced => self.has(Flaw::AdoptsUnsealed),
            Life::Alive if log.refused[segment] == entry.epoch => true,
            Life::Alive => self.has(Flaw::ReassignsSilent) && !entry.adopted,
        };
        if is_given_up {
            return Some(if has_adopted { entry.engine } else { entry.source });
        }
        // What an engine had that is not the assignee is nobody's business any more.
        let looks_owned = |engine: &usize| {
            let role = world.logs[*engine].holdings[segment].role;
            world.manager.lives[*engine] == Life::Sealed
                && !world.logs[*engine].deleted
                && ((role == Role::Released && self.has(Flaw::ReplaysReleased))
                    || (role == Role::Owned && self.has(Flaw::TwoRecoverers)))
        };
        let wrongly = (0..self.engines).find(looks_owned).filter(|_| entry.adopted && world.left.moves == 0);
        wrongly.map(|engine| engine as u8)
    }

    /// Every living engine but one may get it: also one that has refused it, which may be the last that lives, and the
    /// source of what was never adopted.
    fn assign_anew(
        &self,
        world: &World,
        segment: usize,
        source: u8,
        except: Option<u8>,
        lead: &mut dyn FnMut(Step, World),
    ) {
        let epoch = world.manager.table[segment].epoch + 1;
        let may = |engine: &usize| {
            world.manager.lives[*engine] == Life::Alive && except.is_none_or(|except| usize::from(except) != *engine)
        };
        for engine in (0..self.engines).filter(may).filter(|_| world.manager.may_send(segment)) {
            let mut next = world.clone();
            let assignment = Assignment { epoch, engine: engine as u8, source, adopted: false };
            next.manager.table[segment] = assignment;
            if !self.has(Flaw::SendsBeforeDurable) {
                next.manager.durable[segment] = assignment;
            }
            next.manager.send(segment, assignment);
            lead(Step::Assign(segment as u8, engine as u8, epoch), next);
        }
    }

    /// Another manager takes charge and reads the table; the one before may not know.
    fn change_manager(&self, world: &World, lead: &mut dyn FnMut(Step, World)) {
        if world.left.managers > 0 {
            let mut next = world.clone();
            next.left.managers -= 1;
            next.manager.stale = Some(world.manager.table);
            next.manager.table = world.manager.durable;
            lead(Step::NewManager, next);
        }
        let Some(stale) = world.manager.stale else { return };
        for (segment, entry) in stale.into_iter().enumerate().take(self.segments) {
            if world.left.moves == 0 || !entry.adopted {
                continue;
            }
            for engine in (0..self.engines).filter(|engine| *engine != usize::from(entry.engine)) {
                let mut next = world.clone();
                next.left.moves -= 1;
                next.manager.stale = None;
                // The table compares the term, and refuses: it knows then that it is not in charge.
                if self.has(Flaw::OldManagerWrites) {
                    let source = entry.engine;
                    let assignment =
                        Assignment { epoch: entry.epoch + 1, engine: engine as u8, source, adopted: false };
                    next.manager.table[segment] = assignment;
                    next.manager.durable[segment] = assignment;
                    next.manager.send(segment, assignment);
                }
                lead(Step::OldManager(segment as u8, engine as u8), next);
            }
        }
    }

    /// An engine is declared dead, fenced, recovered, and its log deleted when nobody needs it.
    pub(super) fn recover(&self, world: &World, engine: usize, lead: &mut dyn FnMut(Step, World)) {
        match world.manager.lives[engine] {
            Life::Alive if world.left.deaths > 0 => {
                let mut next = world.clone();
                next.left.deaths -= 1;
                next.manager.lives[engine] = Life::Dead;
                lead(Step::Declare(engine as u8), next);
            }
            Life::Alive => {}
            Life::Dead => {
                let mut next = world.clone();
                next.manager.lives[engine] = Life::Fenced;
                let first = if self.has(Flaw::FencesBelow) { 0 } else { engine };
                for log in &mut next.logs[first..=engine] {
                    // It creates what it fences, so that nobody registers it later.
                    log.fenced = log.registered || !self.has(Flaw::FencesNothing);
                }
                lead(Step::Fence(engine as u8), next);
            }
            Life::Fenced => self.decide(world, engine, lead),
            Life::Sealed => {
                if self.has(Flaw::TwoRecoverers) {
                    self.decide(world, engine, lead);
                }
                self.delete(world, engine, lead);
            }
        }
    }

    /// Where the log of a fenced engine ends: before a record in doubt, or behind it.
    fn decide(&self, world: &World, engine: usize, lead: &mut dyn FnMut(Step, World)) {
        let mut next = world.clone();
        next.manager.lives[engine] = Life::Sealed;
        if world.manager.lives[engine] == Life::Fenced {
            lead(Step::Decide(engine as u8, false), next.clone());
        }
        let in_doubt = world.engines[engine].pending.filter(|pending| pending.outcome.is_none());
        if let Some(pending) = in_doubt {
            next.logs[engine].apply(pending.record);
            lead(Step::Decide(engine as u8, true), next);
        }
    }

    fn delete(&self, world: &World, engine: usize, lead: &mut dyn FnMut(Step, World)) {
        let is_elsewhere = |segment: usize| {
            let entry = world.manager.table[segment];
            let is_settled = entry.adopted || self.has(Flaw::DeletesEarly);
            world.logs[engine].holdings[segment].role == Role::None
                || (is_settled && usize::from(entry.engine) != engine)
        };
        if !world.logs[engine].deleted && (0..self.segments).all(is_elsewhere) {
            let mut next = world.clone();
            next.logs[engine].deleted = true;
            lead(Step::Delete(engine as u8), next);
        }
    }
}
