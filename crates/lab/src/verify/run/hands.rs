//! What makes things go wrong, and what starts a store again.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use control::service::{Reply, Request};
use node::{Node, Settings};
use runtime::sim::{self, NodeId, SimDisk, World};
use runtime::{Class, Handle};
use wire::LocalBoxFuture;

use super::super::clients::{Client, reconcile};
use super::super::history::VolumeLife;
use super::super::plan::{Fault, FaultKind, Promise, Reach};
use super::super::shared::{Door, Running, Share};
use super::rot::rot;
use super::{QUIET, REFUSED_MAX, START_PAUSE, START_PAUSE_MAX, Server, State};

/// What is needed to make something go wrong, and to start a store: callbacks of the world hold it.
#[derive(Clone)]
pub(super) struct Hands {
    pub server: NodeId,
    pub clients: NodeId,
    pub client_handle: Handle,
    pub users: Rc<[Rc<Client>]>,
    pub settings: Rc<Settings>,
    pub disks: Rc<Vec<SimDisk>>,
    pub bad_disk: usize,
    pub disk_bytes: u64,
    pub promise: Promise,
    pub share: Share,
    pub state: Rc<RefCell<State>>,
}

impl Hands {
    /// Starts the next life of the server.
    pub fn start(&self, world: &World) {
        let again = self.users.iter().flat_map(|user| user.on_end_of_process(0));
        let again: Vec<_> = again.map(|(change, ..)| change).collect();
        self.share.borrow_mut().history.on_again(&again);
        let handle = world.restart(self.server);
        let beside = world.start_loop(self.server);
        tracing::info!(at = ?world.now(), "a start");
        let life = {
            let mut state = self.state.borrow_mut();
            state.life += 1;
            state.server = Server::Starting;
            state.is_refused = false;
            state.life
        };
        self.share.borrow_mut().busy.begin(self.client_handle.now());
        let (hands, inside) = (self.clone(), handle.clone());
        let mut settings = (*self.settings).clone();
        let follows_advice = std::mem::take(&mut self.state.borrow_mut().override_next);
        settings.accept_missing_directories = follows_advice;
        let starting = async move {
            let started = Node::start(&inside, &settings).await;
            hands.share.borrow_mut().busy.end(hands.client_handle.now());
            match started {
                Ok(node) => {
                    let manager = node.manager().clone();
                    hands.share.borrow_mut().history.on_recovered();
                    hands.share.borrow_mut().coverage.recoveries += 1;
                    hands.share.borrow_mut().store = Some(Running {
                        handle: inside.clone(),
                        manager: manager.clone(),
                        order: Rc::new(node.order()),
                        connections: Rc::new(node.connections()),
                    });
                    let devices = manager.clone();
                    let serve = move |volume, path| -> LocalBoxFuture<'static, base::Result<()>> {
                        let devices = devices.clone();
                        Box::pin(async move { devices.handle(Request::AttachDevice { volume, path }).await.map(drop) })
                    };
                    let (serve, statistics) = (Rc::new(serve), Rc::new(node.agent_statistics()));
                    let audit = Rc::new(node.fairness());
                    hands.set_door(Some(Door {
                        beside,
                        handle: inside.clone(),
                        serve,
                        statistics,
                        audit,
                        logged: Rc::new(|| 0),
                    }));
                    let volumes = hands.share.borrow().slots.len();
                    // A deletion that failed counts, or it does not.
                    for slot in &mut hands.share.borrow_mut().slots {
                        slot.changing |= std::mem::take(&mut slot.in_doubt);
                    }
                    for volume in 0..volumes {
                        reconcile(&hands.share, &manager, volume).await;
                    }
                    hands.serve_disks(&node).await;
                    let mut state = hands.state.borrow_mut();
                    (state.refusal, state.pause, state.refused) = (None, START_PAUSE, 0);
                    state.server = Server::Up(Box::new(node));
                }
                Err(error) => {
                    tracing::info!(%error, "a start was refused");
                    let mut state = hands.state.borrow_mut();
                    // The operator knows what happened to the disk, and follows the advice.
                    state.override_next = state.is_stale && error.to_string().contains("older state of itself");
                    let allowed = hands.share.borrow().errors_allowed || hands.share.borrow().full_allowed;
                    // A clock that jumps shortens the wait for what a killed process has in flight.
                    let is_early = error.to_string().contains("try again in a moment");
                    if !allowed && !is_early && !state.override_next {
                        hands.share.borrow_mut().fail(format!("the store does not start: {error}"));
                    }
                    (state.refusal, state.is_refused) = (Some(error.to_string()), true);
                    state.pause = (state.pause * 2).min(START_PAUSE_MAX);
                    state.refused += 1;
                    let mut shared = hands.share.borrow_mut();
                    let now = hands.client_handle.now();
                    // A start that is refused has few operations that something could happen to.
                    if hands.disks.iter().any(SimDisk::has_injections) {
                        shared.trouble_at = now;
                    }
                    let is_quiet = now.since(shared.trouble_at) > QUIET;
                    if state.refused > REFUSED_MAX && shared.may_refuse {
                        shared.is_given_up = true;
                    } else if state.refused > REFUSED_MAX && is_quiet && (follows_advice || !state.override_next) {
                        // Refusals that had another cause may come before the first advice.
                        shared.fail(format!("the store does not start although nothing is wrong any more: {error}"));
                    }
                }
            }
        };
        handle.spawn(Class::Io, "lab start", starting).detach();
        let hands = self.clone();
        let pause = self.state.borrow().pause;
        world.after(pause, move |world| hands.try_again(world, life));
    }

    pub fn set_door(&self, door: Option<Door>) {
        let doors = self.share.borrow().doors.clone();
        let before = std::mem::replace(&mut doors.borrow_mut()[0], door);
        drop(before);
    }

    /// Serves what was served before; of what was promised nothing may be missing.
    async fn serve_disks(&self, node: &Node) {
        let served = node.serve_devices().await;
        let devices = node.manager().handle(Request::Devices).await;
        let mut shared = self.share.borrow_mut();
        if let Err(error) = served {
            return shared.fail(format!("the disks of virtual machines are not served: {error}"));
        }
        let Ok(Reply::Devices(devices)) = devices else { return };
        let is_there = |path: &Path| devices.iter().any(|device| device.path == path);
        let gone = |at: &VolumeLife| shared.life_of(at.volume) != Some(*at);
        let missing = shared.served.iter().find(|(path, at)| !is_there(path) && !gone(at));
        let missing = missing.map(|(path, _)| path.display().to_string());
        // A list that cannot be read, or is an older one, is no reason not to start.
        if let Some(path) = missing.filter(|_| self.promise == Promise::Flawless) {
            shared.fail(format!("{path} is not served any more after a start"));
        }
    }

    /// Starts once more if the start of `life` was refused.
    fn try_again(&self, world: &World, life: u64) {
        let is_starting = {
            let state = self.state.borrow();
            state.life == life && matches!(state.server, Server::Starting)
        };
        if !is_starting {
            return;
        }
        let is_over = self.share.borrow().violation.is_some() || self.share.borrow().is_given_up;
        if self.state.borrow().is_refused && !is_over {
            self.share.borrow_mut().coverage.refused_starts += 1;
            self.state.borrow_mut().server = Server::Down;
            return self.start(world);
        }
        let hands = self.clone();
        let pause = self.state.borrow().pause;
        world.after(pause, move |world| hands.try_again(world, life));
    }

    /// Ends the present life, if there is one; says whether there was.
    fn crash(&self, world: &World, power: bool) -> bool {
        if matches!(self.state.borrow().server, Server::Down) {
            return false;
        }
        {
            let mut shared = self.share.borrow_mut();
            shared.coverage.crashes += 1;
            shared.coverage.crashes_in_flight += u64::from(shared.in_flight > 0);
            shared.store = None;
        }
        self.set_door(None);
        if matches!(self.state.borrow().server, Server::Starting) && !self.state.borrow().is_refused {
            self.share.borrow_mut().busy.end(self.client_handle.now());
        }
        self.state.borrow_mut().life += 1;
        match power {
            true => world.power_loss(self.server),
            false => world.kill(self.server),
        }
        let old = std::mem::replace(&mut self.state.borrow_mut().server, Server::Down);
        drop(old);
        if power {
            // Virtual machines run on the same machine.
            self.users.iter().for_each(|user| user.on_power_loss(0));
        }
        true
    }

    fn start_after(&self, world: &World, down: Duration) {
        let (hands, life) = (self.clone(), self.state.borrow().life);
        world.after(down, move |world| {
            if hands.state.borrow().life == life && matches!(hands.state.borrow().server, Server::Down) {
                hands.start(world);
            }
        });
    }

    /// Makes something go wrong.
    pub fn cause(&self, world: &World, fault: &Fault) {
        tracing::info!(?fault, at = ?world.now(), "an accident");
        let hands = self.clone();
        {
            let mut shared = self.share.borrow_mut();
            *shared.coverage.faults.entry(fault.kind()).or_default() += 1;
            shared.trouble_at = self.client_handle.now();
            shared.errors_allowed |= fault.may_fail_requests();
            shared.full_allowed |= matches!(fault, Fault::FullDisk { .. });
            shared.may_be_older |= self.promise == Promise::NeverWrong && fault.is_silent();
            shared.may_refuse |= self.promise == Promise::NeverWrong && fault.is_damage();
        }
        match fault {
            Fault::Kill { down } | Fault::PowerLoss { down } => {
                if self.crash(world, matches!(fault, Fault::PowerLoss { .. })) {
                    self.start_after(world, *down);
                }
            }
            Fault::RestartStorm { lives, power } => self.storm(world, lives.clone(), *power),
            Fault::Pause(span) => {
                let store = self.share.borrow().store.clone();
                let span = *span;
                if let Some(Running { handle, .. }) = store {
                    let inside = handle.clone();
                    handle.spawn(Class::Io, "lab pause", async move { inside.charge(span) }).detach();
                }
            }
            Fault::ClockJump(span) => world.jump_clock(self.server, *span),
            Fault::ClockDrift(drift_ppm) => world.set_clock_drift(self.server, *drift_ppm),
            Fault::Partition { there, back, span } => {
                if *there {
                    world.cut_link(self.clients, self.server);
                }
                if *back {
                    world.cut_link(self.server, self.clients);
                }
                world.after(*span, move |world| world.heal(hands.server, hands.clients));
            }
            Fault::Reset => world.reset_connections(self.server, self.clients),
            Fault::SlowDisk { disk, factor, span } => {
                let disk = self.disks[*disk].clone();
                disk.set_slowness(*factor);
                world.after(*span, move |_| disk.set_slowness(1));
            }
            Fault::FullDisk { spare_bytes, span } => {
                self.disks.iter().for_each(|disk| disk.set_capacity(disk.used() + spare_bytes));
                let bytes = self.disk_bytes;
                world.after(*span, move |_| hands.disks.iter().for_each(|disk| disk.set_capacity(bytes)));
            }
            Fault::Disk { disk, fault, count } => {
                self.disks[*disk].inject(*fault, *count);
                // Where a superblock was not written, the directory looks like an older state of itself.
                self.state.borrow_mut().is_stale |=
                    matches!(fault, sim::Fault::LostWrite | sim::Fault::MisdirectedWrite);
            }
            Fault::Rot { reach: Reach::AtRest, .. } => {
                self.state.borrow_mut().at_rest = Some(fault.clone());
                self.share.borrow_mut().restart_wanted = true;
            }
            Fault::Rot { disk, reach, places, seed } => {
                // Nobody reads a log before the next start.
                let is_down = *reach == Reach::InLog && self.crash(world, false);
                rot(&self.disks[*disk], *reach, *places, *seed);
                if is_down {
                    self.start_after(world, Duration::ZERO);
                }
            }
            // There is one machine.
            Fault::At { .. } | Fault::InCharge { .. } | Fault::Giver { .. } => {}
            Fault::LostDisk { disk, span, stale } => self.lose_disk(world, *disk, *span, *stale),
        }
        if self.promise != Promise::Flawless && matches!(fault.kind(), FaultKind::Kill | FaultKind::PowerLoss) {
            let now = self.disks[self.bad_disk].snapshot();
            self.state.borrow_mut().snapshot.get_or_insert(now);
        }
    }

    /// Crashes, starts, crashes again while it starts, and so on; then starts for good.
    fn storm(&self, world: &World, mut lives: Vec<Duration>, power: bool) {
        if !self.crash(world, power) {
            return;
        }
        let Some(next) = lives.pop() else { return self.start_after(world, Duration::ZERO) };
        self.start(world);
        let hands = self.clone();
        world.after(next, move |world| hands.storm(world, lives, power));
    }

    fn lose_disk(&self, world: &World, disk: usize, span: Duration, stale: bool) {
        let disk_of = self.disks[disk].clone();
        disk_of.vanish();
        // Only the one that may misbehave was remembered.
        let snapshot = if stale && disk == self.bad_disk { self.state.borrow_mut().snapshot.take() } else { None };
        let state = self.state.clone();
        world.after(span, move |_| {
            if let Some(snapshot) = snapshot {
                disk_of.restore(&snapshot);
                state.borrow_mut().is_stale = true;
            }
            disk_of.come_back();
        });
    }
}
