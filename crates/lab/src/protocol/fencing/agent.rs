//! Agents: attaching, writing, reading, giving up, asking again.

use super::server::acknowledge;
use super::state::{Agent, Reply, Request, Stage, Waiting, What, World};
use super::step::Step;
use super::{FRESH, Fencing, Flaw};

impl Fencing {
    /// An agent attaches: the manager counts, the owner records and drains, the attach returns.
    pub(super) fn attach(&self, world: &World, agent: usize, lead: &mut dyn FnMut(Step, World)) {
        let own = world.agents[agent];
        if own.generation == 0 {
            let mut next = world.clone();
            next.manager.generation += 1;
            let generation = next.manager.generation;
            next.agents[agent].generation = generation;
            return lead(Step::Attach(agent as u8, generation), next);
        }
        if own.attached {
            return;
        }
        let owner = usize::from(world.manager.owner);
        let server = &world.servers[owner];
        // An owner that cannot be reached is failed over first.
        if server.stage != Stage::Serving || server.epoch != world.manager.epoch {
            return;
        }
        let is_older = |write: u8| world.writes[usize::from(write)] < own.generation;
        let is_drained =
            self.has(Flaw::AttachDrainsNothing) || !server.pending.is_some_and(|pending| is_older(pending.write));
        if server.generation < own.generation {
            let mut next = world.clone();
            // Its older sessions are closed at once; it answers when they are drained.
            let is_recorded = self.has(Flaw::GenerationNotDurable) || next.directories[owner].epoch <= server.epoch;
            match is_recorded {
                true => next.servers[owner].generation = own.generation,
                false => next.servers[owner].stage = Stage::Fenced,
            }
            if is_recorded && !self.has(Flaw::GenerationNotDurable) {
                next.directories[owner].generation = own.generation;
            }
            lead(Step::Record(owner as u8, own.generation), next);
        }
        if (server.generation == own.generation && is_drained) || self.has(Flaw::AttachReturnsEarly) {
            let mut next = world.clone();
            let epoch = world.manager.epoch;
            next.agents[agent] = Agent { attached: true, route: (owner as u8, epoch), highest: epoch, ..own };
            for other in next.agents.iter_mut().filter(|other| other.generation < own.generation) {
                other.fenced = true;
            }
            lead(Step::Attached(agent as u8), next);
        }
    }

    /// An attached agent reads and writes, one request at a time.
    pub(super) fn use_volume(&self, world: &World, agent: usize, lead: &mut dyn FnMut(Step, World)) {
        let own = world.agents[agent];
        if !own.attached {
            return;
        }
        let with = |waits: Waiting| {
            let mut next = world.clone();
            next.agents[agent].waits = Some(waits);
            next
        };
        match own.waits {
            None => {
                let begins = |what: What| Waiting { what, floor: world.newest, is_sent: false };
                if world.left.writes > 0 {
                    let write = world.writes.len() as u8;
                    let mut next = with(begins(What::Write(write)));
                    next.left.writes -= 1;
                    next.writes.push(own.generation);
                    lead(Step::Write(agent as u8, write), next);
                }
                if world.left.reads > 0 {
                    let mut next = with(begins(What::Read(world.left.reads)));
                    next.left.reads -= 1;
                    lead(Step::Read(agent as u8), next);
                }
            }
            Some(waits) if !waits.is_sent => {
                let mut next = with(Waiting { is_sent: true, ..waits });
                let (generation, (server, epoch)) = (own.generation, own.route);
                let what = waits.what;
                next.send(Request { agent: agent as u8, generation, server, epoch, what, reply: None });
                lead(Step::Send(agent as u8, server), next);
            }
            Some(waits) => {
                if world.left.timeouts > 0 {
                    // It waits no longer, and sends the same again to whom the manager names: the outcome is not known.
                    let mut next = with(Waiting { is_sent: false, ..waits });
                    next.left.timeouts -= 1;
                    next.agents[agent].route = (world.manager.owner, world.manager.epoch);
                    lead(Step::Timeout(agent as u8), next.clone());
                    if world.left.detours > 0 {
                        next.left.detours -= 1;
                        let before = (0..self.servers).filter(|server| *server != usize::from(world.manager.owner));
                        for server in before.filter(|server| world.servers[*server].epoch > 0) {
                            let mut next = next.clone();
                            next.agents[agent].route = (server as u8, world.servers[server].epoch);
                            lead(Step::Detour(agent as u8, server as u8), next);
                        }
                    }
                }
            }
        }
    }

    /// Requests and replies arrive, in any order.
    pub(super) fn receive(&self, world: &World, lead: &mut dyn FnMut(Step, World)) {
        for (index, request) in world.requests.iter().enumerate() {
            if index > 0 && world.requests[index - 1] == *request {
                continue;
            }
            let mut next = world.clone();
            next.requests.remove(index);
            match request.reply {
                Some(reply) => {
                    self.on_reply(&mut next, *request, reply);
                    lead(Step::ReplyArrives(request.agent), next);
                }
                None => {
                    if self.on_request(&mut next, *request) {
                        lead(Step::RequestArrives(request.agent, request.server), next);
                    }
                }
            }
        }
    }

    /// False if the server cannot take it now.
    fn on_request(&self, world: &mut World, request: Request) -> bool {
        let server = usize::from(request.server);
        let own = &world.servers[server];
        let is_admitted = match self.has(Flaw::AdmitsOldGenerations) {
            true => own.admits(request.epoch, own.generation),
            false => own.admits(request.epoch, request.generation),
        };
        let epoch = own.epoch;
        let answer = |world: &mut World, reply: Reply| world.send(Request { epoch, reply: Some(reply), ..request });
        match request.what {
            _ if !is_admitted => answer(world, Reply::Refused),
            What::Read(_) => {
                let value = own.applied.last().copied();
                answer(world, Reply::Value(value));
            }
            // A repetition of what is applied already.
            What::Write(write) if own.applied.contains(&write) => {
                acknowledge(world, server, write);
                answer(world, Reply::Written);
            }
            What::Write(write) => {
                if !self.can_append(world, server) {
                    return false;
                }
                self.append(world, server, request, write);
            }
        }
        true
    }

    fn on_reply(&self, world: &mut World, request: Request, reply: Reply) {
        let agent = usize::from(request.agent);
        let own = world.agents[agent];
        let is_old = request.epoch < own.highest && !self.has(Flaw::BelievesOldReplies);
        let is_mine = |waits: &Waiting| waits.is_sent && waits.what == request.what;
        let Some(waits) = own.waits.filter(|_| !is_old) else { return };
        if reply != Reply::Refused {
            world.agents[agent].highest = own.highest.max(request.epoch);
        }
        if !is_mine(&waits) {
            return;
        }
        match reply {
            Reply::Written => world.agents[agent].waits = None,
            Reply::Value(value) => {
                world.agents[agent].waits = None;
                if value < waits.floor && !own.fenced {
                    let why = format!("agent {agent} reads {value:?}, and {:?} was acknowledged before", waits.floor);
                    world.break_invariant(FRESH, why);
                }
            }
            Reply::Refused => {
                // It asks the manager, and sends it again.
                world.agents[agent].waits = Some(Waiting { is_sent: false, ..waits });
                world.agents[agent].route = (world.manager.owner, world.manager.epoch);
            }
        }
    }
}
