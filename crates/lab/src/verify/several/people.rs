//! What a person asks of several servers: it goes to the manager in charge, and to the next one if that one dies.

use std::cell::RefCell;
use std::time::Duration;

use base::{Error, ErrorKind, Result};
use control::service::{CreateVolume, Reply, Request};
use runtime::sync::oneshot;
use runtime::{Class, Handle};
use wire::LocalBoxFuture;

use super::super::clients::Errands;
use super::super::coverage::Event;
use super::super::plan::{Machine, Order, Role};
use super::super::shared::{Share, name_of};
use super::machines::{Machines, name};

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);
/// How often something is tried: for longer than the longest accidents together.
const TRIES: u32 = 1_200;

/// See the module.
pub(super) struct People {
    handle: Handle,
    share: Share,
    machines: Machines,
    /// Servers that may have no segments.
    drained: RefCell<Vec<bool>>,
}

impl People {
    pub(super) fn new(handle: &Handle, share: &Share, machines: &Machines) -> People {
        let drained = RefCell::new(vec![false; machines.of(Role::Server).count()]);
        People { handle: handle.clone(), share: share.clone(), machines: machines.clone(), drained }
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Asks whoever is in charge, until one answers who is.
    pub(super) async fn ask(&self, request: Request) -> Result<Reply> {
        let mut last = Error::io("nobody was in charge");
        for _ in 0..TRIES {
            if self.share.borrow().violation.is_some() {
                break;
            }
            if let Some((handle, manager)) = self.machines.in_charge() {
                let (sender, receiver) = oneshot();
                let request = request.clone();
                let asking = async move { sender.send(manager.handle(request).await) };
                handle.spawn(Class::Io, "lab person", asking).detach();
                match receiver.await {
                    None => last = Error::io("the manager died"),
                    Some(Err(error)) if matches!(error.kind, ErrorKind::Moved | ErrorKind::Io) => last = error,
                    Some(answer) => return answer,
                }
            }
            self.handle.sleep(PAUSE).await;
        }
        Err(last)
    }

    /// Makes a volume if there is none of its name, and learns what the name stands for.
    pub(super) async fn make(&self, volume: usize) {
        let bytes = self.share.borrow().shape.volume_bytes;
        let wanted = CreateVolume { allow_existing: true, ..CreateVolume::new(name_of(volume), bytes) };
        let made = self.ask(Request::Create(wanted)).await;
        let mut shared = self.share.borrow_mut();
        match made {
            Ok(Reply::Created(view, _)) => {
                let id = view.row.id.0;
                let slot = &mut shared.slots[volume];
                let is_older = id <= slot.life;
                (slot.life, slot.exists, slot.changing) = (id, true, false);
                if is_older {
                    shared.fail(format!("volume v{volume} was made again under the id {id} of an earlier one"));
                }
            }
            Ok(_) => shared.fail("the creation of a volume was answered with something else"),
            Err(error) => shared.fail(format!("volume v{volume} cannot be made: {error}")),
        }
    }

    /// Deletes a volume.
    pub(super) async fn delete(&self, volume: usize) -> Result<()> {
        self.share.borrow_mut().slots[volume].changing = true;
        match self.ask(Request::Delete { name: name_of(volume), force: true }).await {
            Ok(_) => {}
            // One that died had done it.
            Err(error) if error.kind == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        self.share.borrow_mut().slots[volume].exists = false;
        Ok(())
    }

    /// All servers may have segments again.
    pub(super) async fn undrain_all(&self) {
        let drained: Vec<usize> = (0..).zip(&*self.drained.borrow()).filter(|(_, is)| **is).map(|(at, _)| at).collect();
        for server in drained {
            self.drain(server, false).await;
        }
    }

    async fn drain(&self, server: usize, is_drained: bool) {
        self.drained.borrow_mut()[server] = is_drained;
        let request = Request::Drain { server: name(Machine { role: Role::Server, index: server }), is_drained };
        // One that is dead at the moment is not known by its name: it is asked again until it is back.
        for _ in 0..TRIES {
            match self.ask(request.clone()).await {
                Err(error) if error.kind == ErrorKind::NotFound && !is_drained => self.handle.sleep(PAUSE).await,
                Err(_) if is_drained => return self.drained.borrow_mut()[server] = false,
                Err(error) => return self.share.borrow_mut().fail(format!("a server stays drained: {error}")),
                Ok(_) => break,
            }
        }
        let event = if is_drained { Event::Drain } else { Event::Undrain };
        self.share.borrow_mut().coverage.count(event, 1);
    }

    async fn carry_out(&self, order: Order) {
        // It may be in the way of requests for a while.
        let now = self.handle.now();
        self.share.borrow_mut().trouble_at = now;
        match order {
            Order::Move { volume, index, to } => {
                let to = to.map(|index| name(Machine { role: Role::Server, index }));
                // It may be on its way, or have nowhere to go.
                let moved = self.ask(Request::MoveSegment { volume: name_of(volume), index, to }).await;
                self.share.borrow_mut().coverage.count(Event::Move, u64::from(moved.is_ok()));
            }
            Order::Drain(server) => {
                let others = (0..).zip(&*self.drained.borrow()).filter(|(at, is)| *at != server && !**is).count();
                match others < 2 {
                    true => self.undrain_all().await,
                    false => self.drain(server, true).await,
                }
            }
            Order::UndrainAll => self.undrain_all().await,
            Order::Elsewhere { volume, agent } => {
                let mut shared = self.share.borrow_mut();
                let slot = &mut shared.slots[volume];
                let is_other = slot.agent != agent;
                if is_other {
                    (slot.agent, slot.moves) = (agent, slot.moves + 1);
                }
                let is_under_fire = is_other && shared.in_flight > 0;
                shared.coverage.count(Event::Elsewhere, u64::from(is_under_fire));
            }
        }
    }
}

impl Errands for People {
    fn carry(&self, order: Order) -> LocalBoxFuture<'_, ()> {
        Box::pin(self.carry_out(order))
    }

    fn replace(&self, volume: usize) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            if !self.share.borrow().is_usable(volume) {
                return;
            }
            let now = self.handle.now();
            self.share.borrow_mut().trouble_at = now;
            if let Err(error) = self.delete(volume).await {
                return self.share.borrow_mut().fail(format!("volume v{volume} cannot be deleted: {error}"));
            }
            {
                let mut shared = self.share.borrow_mut();
                shared.coverage.deletions += 1;
                shared.coverage.count(Event::Replacement, 1);
            }
            self.make(volume).await;
        })
    }
}
