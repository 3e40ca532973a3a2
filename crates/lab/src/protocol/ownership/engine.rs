//! Engines: taking segments, giving them away, appending to their logs.

use super::state::{Append, Assignment, Holding, Life, Record, Reply, Request, Role, What, World};
use super::step::Step;
use super::{FENCED, Flaw, Ownership};

impl Ownership {
    /// An engine is told of assignments, adopts, releases, and forgets what it has released.
    pub(super) fn change_hands(&self, world: &World, engine: usize, lead: &mut dyn FnMut(Step, World)) {
        if world.engines[engine].stopped {
            return;
        }
        for segment in 0..self.segments {
            for assignment in world.manager.sent[segment].into_iter().flatten() {
                if usize::from(assignment.engine) == engine {
                    self.accept(world, segment, assignment, lead);
                }
                if usize::from(assignment.source) == engine {
                    self.release(world, segment, assignment, lead);
                }
            }
            self.adopt(world, engine, segment, lead);
            self.forget(world, engine, segment, lead);
        }
    }

    /// An assignment arrives: it is taken, refused, or too old.
    fn accept(&self, world: &World, segment: usize, assignment: Assignment, lead: &mut dyn FnMut(Step, World)) {
        let engine = usize::from(assignment.engine);
        let (own, log) = (&world.engines[engine], &world.logs[engine]);
        let refused = if self.has(Flaw::ForgetsRefusal) { 0 } else { log.refused[segment] };
        let taken = own.adopting[segment].map_or(0, |adopting| adopting.epoch);
        let in_hand = match own.pending.map(|pending| pending.record) {
            Some(Record::Adopt(of, holding)) if usize::from(of) == segment => holding.epoch,
            Some(Record::Refuse(of, epoch)) if usize::from(of) == segment => epoch,
            _ => 0,
        };
        if assignment.epoch <= refused.max(taken).max(in_hand).max(log.holdings[segment].epoch) {
            return;
        }
        let mut next = world.clone();
        next.engines[engine].adopting[segment] = Some(assignment);
        lead(Step::Accept(engine as u8, segment as u8, assignment.epoch), next);
        if world.left.refusals > 0 && own.pending.is_none() && log.refused[segment] < assignment.epoch {
            let mut next = world.clone();
            next.left.refusals -= 1;
            begin(&mut next, engine, Record::Refuse(segment as u8, assignment.epoch));
            lead(Step::Refuse(engine as u8, segment as u8, assignment.epoch), next);
        }
    }

    /// A source that lives is told who gets the segment.
    fn release(&self, world: &World, segment: usize, assignment: Assignment, lead: &mut dyn FnMut(Step, World)) {
        let engine = usize::from(assignment.source);
        let is_asked = world.serves(engine, segment).is_some_and(|epoch| epoch < assignment.epoch);
        if is_asked && world.engines[engine].pending.is_none() {
            let mut next = world.clone();
            begin(&mut next, engine, Record::Release(segment as u8));
            lead(Step::Release(engine as u8, segment as u8), next);
        }
    }

    /// What the source has is copied, once it says nothing more, and is the engine's own when its Adopt is durable.
    fn adopt(&self, world: &World, engine: usize, segment: usize, lead: &mut dyn FnMut(Step, World)) {
        let own = &world.engines[engine];
        let Some(assignment) = own.adopting[segment].filter(|_| own.pending.is_none()) else { return };
        let source = usize::from(assignment.source);
        let (life, log) = (world.manager.lives[source], &world.logs[source]);
        let taken = log.holdings[segment];
        let is_final = match taken.role {
            Role::None => false,
            Role::Released => true,
            Role::Owned => life == Life::Sealed || (life != Life::Alive && self.has(Flaw::AdoptsUnsealed)),
        };
        if !is_final || log.deleted || taken.epoch >= assignment.epoch {
            return;
        }
        let generation = if self.has(Flaw::ForgetsGeneration) { 1 } else { taken.generation };
        let holding = Holding { role: Role::Owned, epoch: assignment.epoch, generation, ..taken };
        let mut next = world.clone();
        next.engines[engine].adopting[segment] = None;
        begin(&mut next, engine, Record::Adopt(segment as u8, holding));
        lead(Step::Adopt(engine as u8, segment as u8, assignment.source), next);
    }

    /// A checkpoint leaves out a release that the table does not need.
    fn forget(&self, world: &World, engine: usize, segment: usize, lead: &mut dyn FnMut(Step, World)) {
        let (entry, holding) = (world.manager.table[segment], world.logs[engine].holdings[segment]);
        let is_settled = (entry.adopted && entry.epoch > holding.epoch) || self.has(Flaw::ForgetsRelease);
        let may_write = world.engines[engine].pending.is_none() && !world.logs[engine].fenced;
        if holding.role == Role::Released && is_settled && may_write {
            let mut next = world.clone();
            // It still knows the epoch: an assignment of an older one is refused.
            next.logs[engine].holdings[segment] = Holding { epoch: holding.epoch, ..Holding::default() };
            lead(Step::Forget(engine as u8, segment as u8), next);
        }
    }

    /// The record on its way reaches the log, or is refused there; then the engine is told.
    pub(super) fn append(&self, world: &World, engine: usize, lead: &mut dyn FnMut(Step, World)) {
        let Some(append) = world.engines[engine].pending else { return };
        let mut next = world.clone();
        let Some(is_accepted) = append.outcome else {
            let log = &mut next.logs[engine];
            let is_accepted = !log.fenced && !log.deleted;
            if is_accepted {
                log.apply(append.record);
                on_durable(&mut next, engine, append.record);
            }
            next.engines[engine].pending = Some(Append { outcome: Some(is_accepted), ..append });
            return lead(Step::AppendArrives(engine as u8, is_accepted), next);
        };
        next.engines[engine].pending = None;
        next.engines[engine].stopped |= !is_accepted;
        if let Record::Write(request) = append.record {
            let reply = if is_accepted { Reply::Written } else { Reply::Moved };
            next.send(Request { reply: Some(reply), ..request });
            if is_accepted {
                acknowledge(&mut next, request);
            }
        }
        lead(Step::AppendReturns(engine as u8), next);
    }

    /// A request reaches its engine. False: it waits, because another record is on its way.
    pub(super) fn serve(&self, world: &mut World, request: Request) -> bool {
        let (engine, segment) = (usize::from(request.engine), usize::from(request.segment));
        let (agent, holding) = (usize::from(request.agent), world.logs[engine].holdings[segment]);
        let answer = |world: &mut World, reply| world.send(Request { reply: Some(reply), ..request });
        let is_newest = request.session >= world.engines[engine].sessions[agent] || self.has(Flaw::AdmitsOldSessions);
        if world.serves(engine, segment) != Some(request.epoch) {
            answer(world, Reply::Moved);
        } else if holding.generation != request.generation || !is_newest {
            answer(world, Reply::Fenced);
        } else if world.engines[engine].pending.is_some() {
            return false;
        } else {
            // The first request of a session closes the ones before it.
            let session = &mut world.engines[engine].sessions[agent];
            *session = request.session.max(*session);
            match request.what {
                What::Read => answer(world, Reply::Value(holding.last)),
                What::Write(_) => begin(world, engine, Record::Write(request)),
            }
        }
        true
    }
}

/// A record sets out. There is no other one on its way.
pub(super) fn begin(world: &mut World, engine: usize, record: Record) {
    debug_assert!(world.engines[engine].pending.is_none());
    world.engines[engine].pending = Some(Append { record, outcome: None });
}

/// What must not become durable is noticed when it does.
fn on_durable(world: &mut World, engine: usize, record: Record) {
    let Record::Write(request) = record else { return };
    let (segment, What::Write(write)) = (usize::from(request.segment), request.what) else { return };
    let generation = world.writes[usize::from(write)].generation;
    let is_fenced = world.agents.iter().any(|agent| agent.generation == generation && agent.fenced);
    if is_fenced && world.holder(segment) == Some(engine) {
        let why = format!("write {write} of generation {generation} takes effect in engine {engine}");
        world.break_invariant(FENCED, why);
    }
}

fn acknowledge(world: &mut World, request: Request) {
    let (segment, What::Write(write)) = (usize::from(request.segment), request.what) else { return };
    world.acknowledged[segment] = world.acknowledged[segment].with(write.into());
    world.newest[segment] = world.newest[segment].max(Some(write));
}
