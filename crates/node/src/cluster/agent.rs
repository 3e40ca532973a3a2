//! An agent: NBD clients, and the way from their volumes to segments wherever they are.
//!
//! It has no files and decides nothing. Managers are asked to attach a volume, and to find a segment whose owner is not where
//! it was; all else goes to servers over one stream with each.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use agent::forwarding::Forwarder;
use agent::{Agent, Router, RouterOptions, RouterStatistics};
use base::{Error, Map, Result, VolumeId};
use link::stream::{NearEnd, Options, Services};
use link::tls::Role;
use runtime::{Address, Class, Handle, Task};
use wire::observe::{Detail, Explained, Snapshot};
use wire::{BlockService, LocalBoxFuture, Located, Observer, VolumeDescriptor, VolumeUser};

use super::managers::Managers;
use super::{address, credentials, listen};
use crate::addresses::add_device_when_free;
use crate::node::nbd_uri;
use crate::observer::AgentObserver;
use crate::settings::{Settings, VhostUserSettings};

/// A server that is silent for so long is asked over another connection, or another one is: about when managers take its
/// segments from it.
const SILENCE: Duration = Duration::from_millis(1500);
/// Between two tries to serve a disk of virtual machines: its volume may not be known yet.
const DEVICE_RETRY: Duration = Duration::from_secs(5);
/// Streams to servers that are kept though nobody may need them any more.
const STREAMS_KEPT: usize = 256;

/// See the module.
pub struct AgentRole {
    agent: Agent,
    router: Rc<Router>,
    forwarder: Rc<Forwarder>,
    nbd: Vec<Address>,
    handle: Handle,
    /// Those that are still to be served.
    _devices: Vec<Task<()>>,
}

impl AgentRole {
    /// Starts an agent on the loop of `handle`.
    ///
    /// # Errors
    /// One sentence that says what was wrong and what to do: a setting, an address.
    pub async fn start(handle: &Handle, settings: &Settings) -> Result<AgentRole> {
        let cluster = settings.cluster.resolve()?;
        let resolved = settings.resolve_without_directories()?;
        let credentials = credentials(handle, &settings.tls).await?;
        let name = format!("agent {}", cluster.name);
        // Managers ask an agent over the connection that it has made: who uses what is known when there is an agent.
        let late: Rc<LateAgent> = Rc::default();
        let to_manager = |manager: &Address| {
            let (user, observer) = (Some(late.clone() as _), Some(late.clone() as _));
            let services = Services { user, observer, ..Services::default() };
            let options = Options::new(name.clone()).secured(credentials.as_ref(), Role::Manager);
            NearEnd::dial(handle, manager.clone(), services, options)
        };
        let managers = Managers::new(handle, cluster.managers.iter().map(to_manager).collect());
        let options = Options { silence: SILENCE, ..Options::new(name.clone()) };
        let options = options.secured(credentials.as_ref(), Role::Server);
        let streams = Streams { handle: handle.clone(), options, ends: RefCell::default() };
        let connect = move |to: &Located| -> Rc<dyn BlockService> { Rc::new(streams.to(&to.address)) };
        let options = RouterOptions { patience: cluster.patience, ..RouterOptions::default() };
        let router = Router::new(handle, managers.clone(), Rc::new(connect), options);
        let options = agent::Options {
            payload_bytes_max: resolved.payload_bytes_max,
            tenants: resolved.tenants.clone(),
            levels: resolved.levels,
            queues: resolved.queues,
            tls: settings.tls.of_clients(),
            ..agent::Options::default()
        };
        let forwarder = Forwarder::new(handle, managers.clone(), router.clone(), cluster.forwarding);
        let agent = Agent::new(handle, managers, forwarder.clone(), options, 1);
        let mut wanted = vec![Address::Tcp(settings.nbd.listen)];
        wanted.extend(settings.nbd.socket.clone().map(Address::Unix));
        let mut nbd = Vec::new();
        for address in wanted {
            let listener = listen(handle, &address).await?;
            nbd.push(listener.address().clone());
            agent.serve(listener);
        }
        let devices = settings.vhost_user.iter().map(|device| {
            let serving = serve_device(handle.clone(), agent.clone(), device.clone());
            handle.spawn(Class::Io, "vhost-user device", serving)
        });
        let devices = devices.collect();
        let observer = AgentObserver {
            handle: handle.clone(),
            name: cluster.name,
            agent: agent.clone(),
            router: router.clone(),
            forwarder: forwarder.clone(),
            nbd: nbd.iter().map(|address| nbd_uri(address, &settings.tls)).collect(),
            memory_bytes_max: resolved.memory_bytes,
            begun: handle.now(),
        };
        *late.0.borrow_mut() = Some(Rc::new(observer));
        Ok(AgentRole { agent, router, forwarder, nbd, handle: handle.clone(), _devices: devices })
    }

    /// Where NBD clients connect.
    pub fn nbd(&self) -> &[Address] {
        &self.nbd
    }

    /// The agent, for whoever shares the loop.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// What its router did.
    pub fn statistics(&self) -> RouterStatistics {
        self.router.statistics()
    }

    /// What it forwarded.
    pub fn forwarder(&self) -> &Rc<Forwarder> {
        &self.forwarder
    }

    /// Accepts nothing more, lets what is in flight finish, and detaches all volumes.
    pub async fn stop(self) {
        self.agent.stop().await;
        for address in &self.nbd {
            if let Address::Unix(path) = address {
                let _ = self.handle.remove(path).await;
            }
        }
    }
}

/// Serves a volume as a disk of virtual machines, when a manager says that there is such a volume.
async fn serve_device(handle: Handle, agent: Agent, device: VhostUserSettings) {
    let VhostUserSettings { volume, path } = device;
    loop {
        match add_device_when_free(&handle, &agent, &volume, &path).await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(%volume, path = %path.display(), %error, "a disk cannot be served: trying again")
            }
        }
        handle.sleep(DEVICE_RETRY).await;
    }
}

/// The agent, for managers; nobody uses anything before it is there.
#[derive(Default)]
struct LateAgent(RefCell<Option<Rc<AgentObserver>>>);

impl LateAgent {
    fn observer(&self) -> Result<Rc<AgentObserver>> {
        self.0.borrow().clone().ok_or_else(|| Error::retry("the agent is starting"))
    }
}

impl Observer for LateAgent {
    fn observe(&self, detail: Detail) -> LocalBoxFuture<'_, Result<Snapshot>> {
        Box::pin(async move { self.observer()?.observe(detail).await })
    }

    fn explain(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<Explained>> {
        Box::pin(async move { self.observer()?.explain(volume).await })
    }
}

impl VolumeUser for LateAgent {
    fn release(&self, volume: VolumeId) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            if let Ok(observer) = self.observer() {
                observer.agent.release(volume).await;
            }
        })
    }

    fn users(&self, volume: VolumeId) -> usize {
        self.observer().map_or(0, |observer| observer.agent.users(volume))
    }

    fn learn_levels(&self, volume: &VolumeDescriptor) {
        if let Ok(observer) = self.observer() {
            observer.agent.learn_levels(volume);
            observer.forwarder.learn(volume);
        }
    }
}

/// One stream to each server.
struct Streams {
    handle: Handle,
    options: Options,
    ends: RefCell<Map<String, NearEnd>>,
}

impl Streams {
    fn to(&self, place: &str) -> NearEnd {
        let mut ends = self.ends.borrow_mut();
        if ends.len() >= STREAMS_KEPT && !ends.contains_key(place) {
            ends.clear();
        }
        let dial = || {
            // A place that makes no sense is one where nobody listens.
            let address = address(place).unwrap_or_else(|_| Address::Unix(place.into()));
            NearEnd::dial(&self.handle, address, Services::default(), self.options.clone())
        };
        ends.entry(place.to_owned()).or_insert_with(dial).clone()
    }
}
