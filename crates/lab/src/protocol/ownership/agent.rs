//! Agents: attaching, writing, reading, giving up, asking again.

use super::engine::begin;
use super::state::{Agent, Record, Reply, Request, Stage, Waiting, What, World, Write};
use super::step::Step;
use super::{FRESH, Flaw, Ownership};

impl Ownership {
    /// An agent attaches: the manager counts, the owners record, the attach returns.
    pub(super) fn attach(&self, world: &World, agent: usize, lead: &mut dyn FnMut(Step, World)) {
        let own = world.agents[agent];
        if own.generation == 0 {
            let mut next = world.clone();
            next.manager.generation += 1;
            next.agents[agent].generation = next.manager.generation;
            return lead(Step::Attach(agent as u8, next.manager.generation), next);
        }
        if own.attached || own.ended || own.generation < world.manager.generation {
            return;
        }
        let mut is_recorded = true;
        for segment in 0..self.segments {
            let entry = world.manager.table[segment];
            let owner = usize::from(entry.engine);
            let serves = entry.adopted && world.serves(owner, segment) == Some(entry.epoch);
            let has_it = serves && world.logs[owner].holdings[segment].generation == own.generation;
            if serves && !has_it && world.engines[owner].pending.is_none() {
                let mut next = world.clone();
                begin(&mut next, owner, Record::Attach(segment as u8, own.generation));
                lead(Step::Record(entry.engine, segment as u8, own.generation), next);
            }
            is_recorded &= has_it || (!entry.adopted && self.has(Flaw::AttachesBeside));
        }
        if is_recorded {
            let mut next = world.clone();
            let routes = world.manager.table.map(|entry| (entry.engine, entry.epoch));
            next.agents[agent] = Agent { attached: true, routes, ..own };
            for other in next.agents.iter_mut().filter(|other| other.generation < own.generation) {
                other.fenced = true;
            }
            lead(Step::Attached(agent as u8), next);
        }
    }

    /// An attached agent reads and writes, one request at a time.
    pub(super) fn use_volume(&self, world: &World, agent: usize, lead: &mut dyn FnMut(Step, World)) {
        let own = world.agents[agent];
        let Some(waits) = own.waits else {
            if own.attached {
                self.begin_request(world, agent, lead);
            }
            return;
        };
        let mut next = world.clone();
        match waits.stage {
            Stage::Known | Stage::Asked => {
                let segment = usize::from(waits.segment);
                if waits.stage == Stage::Asked {
                    let entry = world.manager.table[segment];
                    if !entry.adopted {
                        return;
                    }
                    next.agents[agent].routes[segment] = (entry.engine, entry.epoch);
                }
                let (engine, epoch) = next.agents[agent].routes[segment];
                next.agents[agent].waits = Some(Waiting { stage: Stage::Sent, ..waits });
                next.send(Request {
                    agent: agent as u8,
                    generation: own.generation,
                    session: own.session,
                    segment: waits.segment,
                    engine,
                    epoch,
                    what: waits.what,
                    reply: None,
                });
                lead(Step::Send(agent as u8, engine), next);
            }
            Stage::Sent if world.left.timeouts > 0 => {
                next.left.timeouts -= 1;
                next.agents[agent].session += 1;
                next.agents[agent].waits = Some(Waiting { stage: Stage::Asked, ..waits });
                lead(Step::Timeout(agent as u8), next);
            }
            Stage::Sent => {}
        }
    }

    fn begin_request(&self, world: &World, agent: usize, lead: &mut dyn FnMut(Step, World)) {
        for segment in 0..self.segments {
            let begins =
                |what| Waiting { segment: segment as u8, what, floor: world.newest[segment], stage: Stage::Known };
            if world.left.writes > 0 {
                let mut next = world.clone();
                let write = next.writes_begun;
                next.left.writes -= 1;
                next.writes_begun += 1;
                next.writes[usize::from(write)] =
                    Write { generation: world.agents[agent].generation, segment: segment as u8 };
                next.agents[agent].waits = Some(begins(What::Write(write)));
                lead(Step::Write(agent as u8, write, segment as u8), next);
            }
            if world.left.reads > 0 {
                let mut next = world.clone();
                next.left.reads -= 1;
                next.agents[agent].waits = Some(begins(What::Read));
                lead(Step::Read(agent as u8, segment as u8), next);
            }
        }
    }

    /// Requests and replies arrive, in any order.
    pub(super) fn receive(&self, world: &World, lead: &mut dyn FnMut(Step, World)) {
        for (index, request) in world.requests.iter().enumerate() {
            let Some(request) = *request else { continue };
            let mut next = world.clone();
            next.take(index);
            match request.reply {
                None => {
                    if self.serve(&mut next, request) {
                        lead(Step::RequestArrives(request.agent, request.engine), next);
                    }
                }
                Some(reply) => {
                    on_reply(&mut next, request, reply);
                    lead(Step::ReplyArrives(request.agent), next);
                }
            }
        }
    }
}

fn on_reply(world: &mut World, request: Request, reply: Reply) {
    let agent = usize::from(request.agent);
    let own = &mut world.agents[agent];
    // What comes by a stream that was given up is no answer. (An older epoch needs such a stream: one request is in flight.)
    let is_mine =
        |waits: &Waiting| waits.stage == Stage::Sent && waits.what == request.what && request.session == own.session;
    let Some(waits) = own.waits.filter(is_mine) else { return };
    match reply {
        Reply::Written => own.waits = None,
        Reply::Value(value) => {
            own.waits = None;
            if value < waits.floor && !own.fenced {
                let why = format!("agent {agent} reads {value:?}, and {:?} was acknowledged before", waits.floor);
                world.break_invariant(FRESH, why);
            }
        }
        Reply::Moved => own.waits = Some(Waiting { stage: Stage::Asked, ..waits }),
        // Somebody else has the volume.
        Reply::Fenced => (own.waits, own.attached, own.ended) = (None, false, true),
    }
}
