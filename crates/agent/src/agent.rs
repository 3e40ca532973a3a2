//! The agent as its node sees it: it serves listeners, stops, lets go of volumes, and counts.
//!
//! It has a part on each loop that serves connections. The first one's loop accepts them, and gives each of NBD to the loop
//! that has the fewest (`policies::spreading`); from then on it stays there. Other loops join with an [`Invitation`].

mod devices;

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::limits::{CONNECTIONS_MAX, REQUEST_SIZE_MAX};
use base::{Result, VolumeId};
use link::{FarEnd, NearEnd, mailbox};
use policies::spreading::plan_loop;
use runtime::{Class, Handle, Listener, Released, Stream, Task};
use wire::{BlockService, Device, DeviceHost, LocalBoxFuture, VolumeDescriptor, VolumeDirectory, VolumeUser};

use self::devices::Devices;
use crate::home::Home;
use crate::nbd::{self, Entrance};
use crate::peers::{Line, Peer};
use crate::registry::Registry;
use crate::roster::{TenantOnLoop, TenantStatistics};
use crate::shared::{Commons, Options, Place, Shared};
use crate::statistics::{AgentStatistics, VolumeStatistics};

/// How long to wait after an accept that failed, for file descriptors to come free.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// What parts ask each other at once: a connection has at most one errand on each loop, and a few things concern all.
const ERRANDS_MAX: usize = CONNECTIONS_MAX + 64;

/// An agent, on the first of its loops. Clones are the same agent.
#[derive(Clone)]
pub struct Agent(Rc<Inner>);

struct Inner {
    handle: Handle,
    commons: Arc<Commons>,
    home: Rc<Home>,
    here: Rc<Shared>,
    devices: Devices,
    /// The loops that have joined, this one included.
    loops: Cell<usize>,
    /// The end of the home's mailbox that those who join get; none before the first.
    door: RefCell<Option<NearEnd<Home>>>,
    listeners: RefCell<Vec<Task<()>>>,
}

/// What another loop needs to serve connections of an agent.
pub struct Invitation {
    index: usize,
    commons: Arc<Commons>,
    home: NearEnd<Home>,
    errands: FarEnd<Shared>,
}

impl Invitation {
    /// Serves connections on the loop of `handle` from here on, until that ends. Volumes are found in `directory` and
    /// their bytes at `service`, in the sessions that the agent's first loop has opened.
    pub fn accept(self, handle: &Handle, directory: Rc<dyn VolumeDirectory>, service: Rc<dyn BlockService>) {
        let Invitation { index, commons, home, errands } = self;
        let part = Shared::new(handle, index, commons, Box::new(home), directory, service);
        handle.spawn(Class::Io, "agent", errands.serve(handle.clone(), part, ERRANDS_MAX)).detach();
    }
}

impl Agent {
    /// An agent on the loop of `handle` that finds volumes in `directory` and their bytes at `service`, and has room for
    /// `loops` in all.
    pub fn new(
        handle: &Handle,
        directory: Rc<dyn VolumeDirectory>,
        service: Rc<dyn BlockService>,
        options: Options,
        loops: usize,
    ) -> Agent {
        let payload_bytes_max = options.payload_bytes_max.max(REQUEST_SIZE_MAX);
        let commons = Commons::new(Options { payload_bytes_max, ..options }, loops.max(1));
        let home = Home::new(handle, Registry::new(handle, directory.clone(), service.clone()), payload_bytes_max);
        let here = Shared::new(handle, 0, commons.clone(), Box::new(home.clone()), directory, service);
        home.set_here(&here);
        Agent(Rc::new(Inner {
            handle: handle.clone(),
            commons,
            home,
            here,
            devices: Devices::default(),
            loops: Cell::new(1),
            door: RefCell::default(),
            listeners: RefCell::default(),
        }))
    }

    /// Lets one more loop serve connections, once it has accepted: connections that go there wait for that. To be called
    /// before the agent serves.
    ///
    /// # Panics
    /// There are as many as it has room for.
    pub fn invite(&self) -> Invitation {
        let (inner, index) = (&self.0, self.0.loops.get());
        assert!(index < inner.commons.connections().count(), "an agent knows how many loops it will have");
        inner.loops.set(index + 1);
        let mut door = inner.door.borrow_mut();
        let home = door.get_or_insert_with(|| {
            let (near, far) = mailbox(ERRANDS_MAX);
            let serving = far.serve(inner.handle.clone(), inner.home.clone(), ERRANDS_MAX);
            inner.handle.spawn(Class::Io, "volumes of the agent", serving).detach();
            near
        });
        let (part, errands) = mailbox(ERRANDS_MAX);
        inner.home.add(part);
        Invitation { index, commons: inner.commons.clone(), home: home.clone(), errands }
    }

    /// Serves NBD on `listener` until the agent stops.
    pub fn serve(&self, listener: Listener) {
        let inner = self.0.clone();
        let entrance = Entrance::of(listener.address(), inner.commons.options.tls.as_ref());
        let accepting = self.0.handle.spawn(Class::Io, "nbd accept", async move {
            loop {
                match listener.accept().await {
                    Ok(stream) => inner.on_connection(stream, entrance),
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        inner.handle.sleep(ACCEPT_RETRY).await;
                    }
                }
            }
        });
        self.0.listeners.borrow_mut().push(accepting);
    }

    /// Accepts nothing more, lets what is in flight finish, ends all connections and detaches all volumes.
    pub async fn stop(&self) {
        let inner = &self.0;
        inner.commons.stop();
        inner.listeners.borrow_mut().clear();
        inner.devices.clear();
        inner.home.drain(None);
        inner.here.wait_until_idle().await;
        for part in inner.home.others() {
            let idle = |part: Rc<Shared>| -> LocalBoxFuture<'static, ()> {
                Box::pin(async move { part.wait_until_idle().await })
            };
            // A loop that has ended has no connections.
            drop(part.ask(idle).await);
        }
    }

    /// The counters of every volume that was used lately, with its name.
    pub fn volume_statistics(&self) -> Vec<(VolumeId, String, VolumeStatistics)> {
        self.0.home.registry.statistics()
    }

    /// The agent's own counters.
    pub fn statistics(&self) -> AgentStatistics {
        self.0.commons.statistics(&self.0.handle)
    }

    /// The tenants that have connections, and what they did. Of every loop that answers.
    pub async fn tenants(&self) -> Vec<TenantStatistics> {
        let inner = &self.0;
        let mut tenants = inner.commons.roster.tenants(&inner.handle);
        let mut statuses = inner.here.tenants.status();
        for part in inner.home.others() {
            let status = |part: Rc<Shared>| -> LocalBoxFuture<'static, Vec<TenantOnLoop>> {
                Box::pin(async move { part.tenants.status() })
            };
            // A loop that has ended has no connections.
            statuses.extend(part.ask(status).await.unwrap_or_default());
        }
        for status in &statuses {
            if let Some(tenant) = tenants.get_mut(&status.key) {
                tenant.add(status);
            }
        }
        tenants.into_values().collect()
    }

    /// What checks the books of the scheduler of tenants on this loop, for as long as the agent lives: what is wrong with them,
    /// or how many requests wait.
    pub fn audit_tenants(&self) -> impl Fn() -> std::result::Result<usize, String> + use<> {
        let here = Rc::downgrade(&self.0.here);
        move || here.upgrade().map_or(Ok(0), |here| here.tenants.audit())
    }

    /// How many requests of virtual machines each loop has begun.
    pub fn guest_requests(&self) -> Vec<u64> {
        self.0.commons.begun().collect()
    }

    /// How many connections each loop has.
    pub fn connections(&self) -> Vec<usize> {
        self.0.commons.connections().collect()
    }
}

impl DeviceHost for Agent {
    fn add_device<'a>(&'a self, volume: &'a str, path: &'a Path) -> LocalBoxFuture<'a, Result<()>> {
        Box::pin(self.0.devices.add(&self.0, volume, path))
    }

    fn remove_device<'a>(&'a self, path: &'a Path) -> LocalBoxFuture<'a, Result<()>> {
        Box::pin(self.0.devices.remove(path))
    }

    fn devices(&self) -> Vec<Device> {
        self.0.devices.list()
    }
}

impl VolumeUser for Agent {
    fn release(&self, volume: VolumeId) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            let home = &self.0.home;
            home.registry.close(volume);
            while let Some(changed) = home.registry.held(volume) {
                let changed = changed.wait();
                home.registry.turn_away(volume);
                home.drain(Some(volume));
                changed.await;
            }
            home.registry.forget(volume);
        })
    }

    fn users(&self, volume: VolumeId) -> usize {
        self.0.home.registry.users(volume)
    }

    fn learn_levels(&self, volume: &VolumeDescriptor) {
        self.0.commons.roster.set_levels(&self.0.handle, volume);
    }
}

impl Inner {
    /// A number and a place for a connection that was accepted; none if there are too many, which is to be closed then.
    fn admit(&self) -> Option<(u64, Place)> {
        let commons = &self.commons;
        let open: usize = commons.connections().sum();
        if open >= commons.options.connections_max {
            let refused = commons.refused.fetch_add(1, Ordering::Relaxed) + 1;
            if refused.is_power_of_two() {
                tracing::warn!(open, refused, "too many connections: new ones are closed");
            }
            return None;
        }
        let id = commons.accepted.fetch_add(1, Ordering::Relaxed) + 1;
        let index = plan_loop(commons.connections().take(self.loops.get()));
        Some((id, commons.place(index)))
    }

    fn on_connection(&self, stream: Stream, entrance: Entrance) {
        let Some((id, place)) = self.admit() else { return };
        let index = place.index();
        if index == 0 {
            return serve(&self.here, id, stream, entrance, place);
        }
        let part = self.home.other(index);
        let moving = async move {
            let released = match stream.release().await {
                Ok(released) => released,
                Err(error) => return tracing::warn!(connection = id, %error, "a connection did not leave its loop"),
            };
            let taking = move |part: Rc<Shared>| -> LocalBoxFuture<'static, ()> {
                Box::pin(take_over(part, id, released, entrance, place))
            };
            // Where the loop is gone, the process is about to go.
            drop(part.ask(taking).await);
        };
        self.handle.spawn(Class::Io, "move a connection", moving).detach();
    }
}

/// Serves a connection that was accepted on this loop.
fn serve(shared: &Rc<Shared>, id: u64, stream: Stream, entrance: Entrance, place: Place) {
    let peer = Rc::new(Peer::new(id, Line::Stream(stream.clone())));
    shared.peers.insert(peer.clone());
    let serving_for = shared.clone();
    let serving = async move {
        nbd::serve_connection(&serving_for, &peer, stream, entrance).await;
        // Whoever waits for the last peer to go finds the place free, too.
        drop(place);
        serving_for.peers.remove(peer.id);
    };
    shared.handle.spawn(Class::Io, "nbd connection", serving).detach();
}

/// Serves a connection that another loop has accepted.
async fn take_over(shared: Rc<Shared>, id: u64, released: Released, entrance: Entrance, place: Place) {
    match shared.handle.adopt(released).await {
        // Whoever drains all connections may have looked already.
        Ok(_) if shared.commons.is_stopping() => {}
        Ok(stream) => serve(&shared, id, stream, entrance, place),
        Err(error) => tracing::warn!(connection = id, %error, "a connection did not reach its loop"),
    }
}
