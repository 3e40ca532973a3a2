//! A manager: one of several, of which one is in charge.
//!
//! Start: a life in the shared store -> it stands for being in charge -> the address, for engines, agents and other managers
//! -> the API. Stop: nobody is answered any more; its lease ends, and another one takes over.

use std::cell::OnceCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use base::limits::API_CALLS_MAX;
use base::{Error, Incarnation, MIB, Result, VolumeId};
use control::cluster::{Agents, ClusterManager, Others, Users, Way};
use control::owners::log;
use control::{cluster, http};
use files::rados::RadosOptions;
use link::stream::{FarEnd, NearEnd, Options, Services};
use link::tls::Role;
use runtime::sync::first;
use runtime::{Address, Class, Handle};
use wire::{EngineRegistry, LocalBoxFuture, Observer, VolumeDescriptor, VolumeUser};

use super::{Ceph, Pools, address, credentials, join, leases, listen, shown};
use crate::settings::Settings;

/// A manager or an engine that is silent for so long is dialled again.
const SILENCE: Duration = Duration::from_secs(1);
/// What a manager sets aside of a pool at a time. It has the files of one log there, of 16 MiB each.
const GRANT_BYTES: u64 = 64 * MIB;

/// See the module.
pub struct ManagerRole {
    handle: Handle,
    manager: Rc<ClusterManager>,
    far: Rc<FarEnd>,
    address: Address,
    api: Option<http::Server>,
    token_file: PathBuf,
}

impl ManagerRole {
    /// Starts a manager on the loop of `handle`.
    ///
    /// # Errors
    /// One sentence that says what was wrong and what to do: a setting, an address, the store.
    pub async fn start(handle: &Handle, settings: &Settings) -> Result<ManagerRole> {
        ManagerRole::start_over(handle, settings, Rc::new(Ceph)).await
    }

    /// The same, where `pools` reaches pools.
    ///
    /// # Errors
    /// As [`ManagerRole::start`].
    pub async fn start_over(handle: &Handle, settings: &Settings, pools: Rc<dyn Pools>) -> Result<ManagerRole> {
        let cluster = settings.cluster.resolve()?;
        let api = match settings.api.is_off {
            true => None,
            false => Some(http::Listener::bind(settings.api.listen)?),
        };
        if !cluster.managers.contains(&cluster.listen) {
            return Err(Error::invalid(format!(
                "a manager listens where all others look for it: {} (--listen) is not among --managers",
                shown(&cluster.listen)
            )));
        }
        let credentials = credentials(handle, &settings.tls).await?;
        let listener = listen(handle, &cluster.listen).await?;
        let place = listener.address().clone();
        let name = format!("manager {}", cluster.name);
        let store_at = settings.cluster.store()?;
        let store = join(handle, &store_at, &*pools, uses(), &name, credentials.as_ref()).await?;
        let leases = leases(handle, settings.cluster.leases()?, &name, credentials.as_ref());
        let to = |role| Options { silence: SILENCE, ..Options::new(name.clone()) }.secured(credentials.as_ref(), role);
        let far = Rc::new(LateEnd { handle: handle.clone(), far: OnceCell::new() });
        let others = cluster.managers.iter().filter(|manager| **manager != place);
        let others = others.map(|manager| -> Rc<dyn EngineRegistry> {
            Rc::new(NearEnd::dial(handle, manager.clone(), Services::default(), to(Role::Manager)))
        });
        let (dialing, to_engine) = (handle.clone(), to(Role::Server));
        let connect = move |engine: Incarnation, place: &str| {
            let address = address(place).unwrap_or_else(|_| Address::Unix(place.into()));
            let near = NearEnd::dial(&dialing, address, Services::default(), to_engine.clone());
            let (segments, lost, refused) = (near.engine(engine), near.clone(), near.clone());
            let lost = move || -> LocalBoxFuture<'static, Result<()>> {
                let near = lost.clone();
                Box::pin(async move { near.lost().await })
            };
            let is_refused = Rc::new(move || refused.is_refused());
            let observer = Rc::new(near.clone());
            Way { segments, volumes: Rc::new(near), observer, lost: Rc::new(lost), is_refused }
        };
        let others = Others { connect: Rc::new(connect), managers: others.collect(), agents: far.clone() };
        let (dialing, joining, shown) = (handle.clone(), name.clone(), credentials.clone());
        let again = move || -> LocalBoxFuture<'static, Result<files::Store>> {
            let (handle, store_at, name) = (dialing.clone(), store_at.clone(), joining.clone());
            let (credentials, pools) = (shown.clone(), pools.clone());
            Box::pin(async move { join(&handle, &store_at, &*pools, uses(), &name, credentials.as_ref()).await })
        };
        let api_at = api.as_ref().map(http::Listener::address);
        if let (Address::Tcp(at), Some(api)) = (&place, api_at)
            && cluster.managers.len() > 1
            && api.ip().is_loopback()
            && !at.ip().is_loopback()
        {
            tracing::warn!(%api, "the API is reached from this machine only, also for calls that other managers send on: set api.listen");
        }
        let defaults = cluster::Options::default();
        let file_bytes = settings.engine.transaction_file_bytes.unwrap_or(defaults.log.file_bytes);
        let log = log::Options { file_bytes, ..defaults.log };
        let cluster_options = cluster::Options { lease: cluster.lease, log, api: api_at, ..defaults };
        let manager =
            ClusterManager::start(handle, &cluster.name, &store, Rc::new(again), leases, others, cluster_options);
        let services = Services {
            directory: Some(manager.clone()),
            places: Some(manager.clone()),
            registry: Some(manager.clone()),
            ..Services::default()
        };
        let end = FarEnd::new(handle, services, Options::new(name).secured(credentials.as_ref(), Role::Manager));
        end.serve(listener);
        let _ = far.far.set(end.clone());
        let token_file = settings.cluster.token_file.clone().unwrap_or_else(|| http::TOKEN_FILE.into());
        let api = match api {
            None => None,
            Some(listener) => {
                let (calls, mailbox) = runtime::sync::mailbox(API_CALLS_MAX);
                manager.serve(mailbox).detach();
                let options = http::Options {
                    token_file: token_file.clone(),
                    token_seed: std::array::from_fn(|_| handle.random_u64()),
                    host_names: settings.api.host_names.clone(),
                    nbd: vec![],
                    is_one_of_several: true,
                };
                Some(listener.serve(options, calls)?)
            }
        };
        Ok(ManagerRole { handle: handle.clone(), manager, far: end, address: place, api, token_file })
    }

    /// Where it listens for others.
    pub fn address(&self) -> String {
        shown(&self.address)
    }

    /// The address of its API; none where it is off.
    pub fn api(&self) -> Option<std::net::SocketAddr> {
        self.api.as_ref().map(http::Server::address)
    }

    /// Where the token of its API stands.
    pub fn token_file(&self) -> &std::path::Path {
        &self.token_file
    }

    /// The manager, for whoever shares the loop.
    pub fn manager(&self) -> &Rc<ClusterManager> {
        &self.manager
    }

    /// Answers nobody any more.
    pub async fn stop(self) {
        if let Some(api) = self.api {
            api.stop().await;
        }
        self.far.stop().await;
        if let Address::Unix(path) = &self.address {
            let _ = self.handle.remove(path).await;
        }
    }
}

/// Agents that are connected to this manager.
struct LateEnd {
    handle: Handle,
    /// It accepts connections when there is a manager to serve.
    far: OnceCell<Rc<FarEnd>>,
}

impl LateEnd {
    fn peers(&self) -> Vec<NearEnd> {
        self.far.get().map(|far| far.peers()).unwrap_or_default()
    }
}

impl Agents for LateEnd {
    fn users(&self, volume: VolumeId, patience: Duration) -> LocalBoxFuture<'_, Users> {
        Box::pin(async move {
            let count = |peer: NearEnd| {
                let handle = self.handle.clone();
                let counting = async move { first(peer.count_users(volume), handle.sleep(patience)).await };
                self.handle.spawn(Class::Io, "count users", counting)
            };
            let counting: Vec<_> = self.peers().into_iter().map(count).collect();
            let mut users = Users::default();
            for task in counting {
                match task.await {
                    Ok(Ok(clients)) => users.clients += clients,
                    // It is no agent, or is not in touch any more.
                    Ok(Err(_)) => {}
                    Err(()) => users.silent_agents += 1,
                }
            }
            users
        })
    }

    fn learn_levels(&self, volume: &VolumeDescriptor) {
        self.peers().iter().for_each(|peer| VolumeUser::learn_levels(peer, volume));
    }

    fn observers(&self) -> Vec<Rc<dyn Observer>> {
        self.peers().into_iter().map(|peer| -> Rc<dyn Observer> { Rc::new(peer) }).collect()
    }

    fn release(&self, volume: VolumeId) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            let release = |peer: NearEnd| {
                let releasing = async move { VolumeUser::release(&peer, volume).await };
                self.handle.spawn(Class::Io, "release a volume", releasing)
            };
            let releasing: Vec<_> = self.peers().into_iter().map(release).collect();
            for task in releasing {
                task.await;
            }
        })
    }
}

fn uses() -> RadosOptions {
    RadosOptions { grant_bytes: GRANT_BYTES, ..RadosOptions::default() }
}
