//! What makes things go wrong with machines, each with its own end.

use std::rc::Rc;
use std::time::Duration;

use base::{Instant, SegmentId, VolumeId};
use runtime::sim::World;
use runtime::{Class, Handle};

use super::super::clients::Client;
use super::super::coverage::Event;
use super::super::plan::{Fault, Harm, Machine, Role};
use super::super::shared::Share;
use super::machines::Machines;

/// Callbacks of the world hold it.
#[derive(Clone)]
pub(super) struct Hands {
    pub machines: Machines,
    pub share: Share,
    /// The loop of the clients, by whose clock is said when something went wrong.
    pub clients: Handle,
    pub users: Rc<[Rc<Client>]>,
}

impl Hands {
    /// Makes something go wrong.
    pub(super) fn cause(&self, world: &World, fault: &Fault) {
        tracing::info!(?fault, at = ?world.now(), "an accident");
        let (machine, harm) = match fault {
            Fault::At { machine, harm } => (*machine, harm),
            Fault::InCharge { harm } => match self.machines.manager_in_charge() {
                Some(index) => (Machine { role: Role::Manager, index }, harm),
                None => return,
            },
            Fault::Giver { volume, index, harm } => {
                let volume = VolumeId(self.share.borrow().slots[*volume].life);
                match self.machines.giver(SegmentId { volume, index: *index }) {
                    Some(machine) => (machine, harm),
                    None => return,
                }
            }
            _ => return,
        };
        self.note(fault, machine, harm);
        self.note_harm(world.now(), machine, harm);
        let node = self.machines.node(machine);
        match harm {
            Harm::Death { power, down } => self.kill(world, machine, *power, *down),
            Harm::Pause(span) => {
                let span = *span;
                if let Some(handle) = self.machines.handle(machine) {
                    let inside = handle.clone();
                    handle.spawn(Class::Io, "lab pause", async move { inside.charge(span) }).detach();
                }
            }
            Harm::ClockJump(span) => world.jump_clock(node, *span),
            Harm::ClockDrift(drift_ppm) => world.set_clock_drift(node, *drift_ppm),
            Harm::Cut { from, there, back, span } => {
                let from = from.map(|other| self.machines.node(other));
                let others = from.map_or_else(|| self.machines.others(machine), |other| vec![other]);
                for other in &others {
                    if *there {
                        world.cut_link(node, *other);
                    }
                    if *back {
                        world.cut_link(*other, node);
                    }
                }
                world.after(*span, move |world| others.iter().for_each(|other| world.heal(node, *other)));
            }
            Harm::CutOff { role, span } => {
                let others = self.machines.of(*role).filter(|other| *other != machine);
                let others: Vec<_> = others.map(|other| self.machines.node(other)).collect();
                others.iter().for_each(|other| world.partition(node, *other));
                world.after(*span, move |world| others.iter().for_each(|other| world.heal(node, *other)));
            }
            Harm::Reset => {
                let others = self.machines.others(machine);
                others.into_iter().for_each(|other| world.reset_connections(node, other));
            }
            Harm::SlowLink { delay, span } => {
                let others = self.machines.others(machine);
                others.iter().for_each(|other| world.set_extra_delay(node, *other, *delay));
                let end = move |world: &World| {
                    others.iter().for_each(|other| world.set_extra_delay(node, *other, Duration::ZERO));
                };
                world.after(*span, end);
            }
            Harm::SlowDisk { disk, factor, span } => {
                let (machines, disk) = (self.machines.clone(), *disk);
                machines.slow_down(disk, *factor);
                world.after(*span, move |_| machines.slow_down(disk, 1));
            }
        }
    }

    /// To whom something happens: a manager that is cut off, or whose process or clock stops, harms no server.
    fn note_harm(&self, now: Instant, machine: Machine, harm: &Harm) {
        self.machines.on_harm(machine, now);
        match harm {
            Harm::Cut { from: Some(other), .. } => self.machines.on_harm(*other, now),
            // It may hear of some servers before it looks again, and of others not.
            Harm::ClockJump(_) if machine.role == Role::Manager => {
                self.machines.of(Role::Server).for_each(|server| self.machines.on_harm(server, now));
            }
            _ => {}
        }
    }

    fn note(&self, fault: &Fault, machine: Machine, harm: &Harm) {
        let mut shared = self.share.borrow_mut();
        let now = self.clients.now();
        shared.trouble_at = now;
        *shared.coverage.faults.entry(fault.kind()).or_default() += 1;
        match harm {
            Harm::Death { .. } => {}
            Harm::Pause(_) => shared.coverage.count(Event::Pause(machine.role), 1),
            Harm::Cut { .. } | Harm::CutOff { .. } => shared.coverage.count(Event::Cut(machine.role), 1),
            _ => {}
        }
        if machine.role == Role::Agent && matches!(harm, Harm::Reset) {
            shared.cut_at = Some(now);
        }
    }

    /// Virtual machines stay when their agent's process dies, and the next one does what they have in flight.
    fn on_end_of_agent(&self, agent: usize, power: bool) {
        if power {
            return self.users.iter().for_each(|user| user.on_power_loss(agent));
        }
        for user in self.users.iter() {
            for (change, volume, gate) in user.on_end_of_process(agent) {
                let mut shared = self.share.borrow_mut();
                let first = shared.history.on_again(&[change]);
                shared.adrift.extend(first.into_iter().map(|first| (first, volume, gate)));
            }
        }
    }

    /// Ends a life, and starts another one after a while.
    pub(super) fn kill(&self, world: &World, machine: Machine, power: bool, down: Duration) {
        if !self.machines.kill(world, machine, power) {
            return;
        }
        {
            let mut shared = self.share.borrow_mut();
            shared.coverage.crashes += 1;
            shared.coverage.crashes_in_flight += u64::from(shared.in_flight > 0);
            shared.coverage.count(Event::Death(machine.role), 1);
            if machine.role == Role::Agent {
                shared.agents[machine.index].life += 1;
            }
        }
        if machine.role == Role::Agent {
            self.on_end_of_agent(machine.index, power);
        }
        let hands = self.clone();
        world.after(down, move |world| {
            if !hands.machines.runs(machine) {
                hands.machines.start(world, machine);
            }
        });
    }
}
