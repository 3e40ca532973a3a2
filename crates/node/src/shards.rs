//! The shards of a store: each is what one loop owns, some segments with their files, engine and block server.
//!
//! The first shard is on the node's own loop, beside manager and agent; each other one on a loop, and thread, of its
//! own that the node starts. What they share is little: the tokens of admission, and of the agent, which has a part on
//! each loop ([`Shards::spread`]), the order of a volume's writes and the memory of its requests. What the node wants of
//! another loop it asks through mailboxes: [`Host`] is the far end for everything that is no I/O, the block server
//! itself the one for I/O, with a near end on every other loop.
//!
//! A directory `D` that a person gave holds the first shard's files, and `D/shard-1` and so on those of the others. To
//! the file layer each is a store by itself. They are made from the last to the first: so where the first is, all were
//! made, and one that holds nothing has lost what it held.
//!
//! Flow of a start: the file layers are opened, one after the other ([`open`]) -> the volume table, in the first one's
//! files -> engines and block servers, all at once ([`Opened::serve`]).

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;

use agent::{Agent, Invitation};
use base::limits::{CONNECTIONS_MAX, REQUESTS_PER_CONNECTION};
use base::{Error, Result, SegmentId, StoreId, VolumeId};
use engine::Engine;
use files::local::{self, LocalOptions, OpenReport, superblock};
use files::{Store, StoreSpace};
use link::{NearEnd, Routes, Sessions, mailbox};
use policies::sharding::shard_of;
use runtime::{Class, Handle};
use server::{Buckets, Server, ServerStatistics};
use wire::{BlockService, LinkLost, LocalBoxFuture, VolumeDescriptor, VolumeDirectory, VolumeOwner};

/// What the node may ask another loop at once, I/O apart.
const ERRANDS_MAX: usize = 64;
/// Requests on their way to another loop.
const QUEUED_MAX: usize = 1024;
/// Requests of the agent that another loop has taken, those in line for tokens included. No fewer than there can be, or
/// those who wait would stand in the way of others.
const TAKEN_MAX: usize = CONNECTIONS_MAX * REQUESTS_PER_CONNECTION;

/// The name of the directory of a shard within one of the store's.
fn folder(index: u8) -> String {
    format!("shard-{index}")
}

/// What may be in an empty directory that is to be the first shard's, besides `neighbours`: where there is one shard
/// only, the folder of another one is what is left of a store.
pub(crate) fn neighbours_of(neighbours: &[String], count: u8) -> Vec<String> {
    neighbours.iter().cloned().chain((1..count).map(folder)).collect()
}

/// Where a shard's files are within the directories of the store.
pub(crate) fn directories(directories: &[PathBuf], index: u8) -> Vec<PathBuf> {
    match index {
        0 => directories.to_vec(),
        _ => directories.iter().map(|directory| directory.join(folder(index))).collect(),
    }
}

/// What lives on one loop.
pub(crate) struct Shard {
    handle: Handle,
    store: Store,
    engine: Engine,
    server: Rc<Server<Engine>>,
}

/// What a shard is told, wherever it is.
#[derive(Clone)]
pub(crate) struct ShardOptions {
    pub engine: engine::Options,
    pub requests_max: usize,
    pub buckets: Buckets,
}

/// What a shard counted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub engine: engine::statistics::Statistics,
    pub server: ServerStatistics,
    pub looped: runtime::statistics::Statistics,
    pub files: files::Statistics,
    pub space: StoreSpace,
}

impl Counters {
    fn merge(&mut self, other: &Counters) {
        let Counters { engine, server, looped, files, space } = other;
        self.engine.merge(engine);
        self.server.merge(server);
        self.looped.merge(looped);
        self.files.merge(files);
        self.space.merge(space);
    }
}

impl Shard {
    async fn serve(
        handle: &Handle,
        store: Store,
        directory: Rc<dyn VolumeDirectory>,
        options: ShardOptions,
    ) -> Result<Shard> {
        let engine = Engine::open(handle, &store, options.engine).await?;
        let server = Server::sharing(handle, engine.clone(), directory, options.requests_max, options.buckets);
        Ok(Shard { handle: handle.clone(), store, engine, server })
    }

    fn counters(&self) -> Counters {
        Counters {
            engine: self.engine.statistics(),
            server: self.server.statistics(),
            looped: self.handle.statistics(),
            files: self.store.statistics(),
            space: self.store.space(),
        }
    }

    /// The way to its block server from other loops.
    fn open_door(&self) -> NearEnd<dyn BlockService> {
        let (near, far) = mailbox(QUEUED_MAX);
        let service: Rc<dyn BlockService> = self.server.clone();
        self.handle.spawn(Class::Io, "shard", far.serve(self.handle.clone(), service, TAKEN_MAX)).detach();
        near
    }

    /// Nothing new is taken, what is in flight finishes, what is dirty is dumped.
    async fn stop(&self) -> Result<()> {
        self.server.stop().await;
        self.engine.close().await
    }
}

/// A loop that has a shard, once it is served.
struct Host {
    handle: Handle,
    store: RefCell<Option<Store>>,
    shard: OnceCell<Shard>,
    /// The way to the volumes of the store.
    directory: OnceCell<NearEnd<dyn VolumeDirectory>>,
}

/// The block servers as seen from a loop that is not theirs, in the order of the shards, and the sessions that all loops
/// have with them.
#[derive(Clone)]
struct Network {
    services: Vec<NearEnd<dyn BlockService>>,
    sessions: Sessions,
}

impl Network {
    /// The way to all of them from the loop of the one with that index, which is a call away.
    fn routes(&self, handle: &Handle, here: usize, server: &Rc<Server<Engine>>) -> Rc<dyn BlockService> {
        let owner = |(index, far): (usize, &NearEnd<dyn BlockService>)| -> Rc<dyn BlockService> {
            if index == here { link::call(server.clone()) } else { Rc::new(far.clone()) }
        };
        let owners: Vec<_> = self.services.iter().enumerate().map(owner).collect();
        let count = owners.len() as u8;
        let route = Rc::new(move |segment: SegmentId| usize::from(shard_of(segment, count)));
        Routes::new(handle, owners, here, route, self.sessions.clone())
    }
}

impl Host {
    async fn open(&self, options: LocalOptions) -> Result<(StoreId, OpenReport)> {
        let (store, report) = local::open(&self.handle, options).await?;
        let id = store.id();
        *self.store.borrow_mut() = Some(store);
        Ok((id, report))
    }

    async fn serve(
        &self,
        directory: NearEnd<dyn VolumeDirectory>,
        options: ShardOptions,
    ) -> Result<NearEnd<dyn BlockService>> {
        let store = self.store.borrow_mut().take();
        let store = store.ok_or_else(|| Error::internal("a shard is served once, after it was opened"))?;
        let shard = Shard::serve(&self.handle, store, Rc::new(directory.clone()), options).await?;
        let near = shard.open_door();
        let _ = (self.shard.set(shard), self.directory.set(directory));
        Ok(near)
    }

    /// Serves clients from here on.
    fn join(&self, index: usize, invitation: Invitation, network: &Network) -> Result<()> {
        let directory = self.directory.get().ok_or_else(|| Error::internal("a shard is not served yet"))?;
        let routes = network.routes(&self.handle, index, &self.shard()?.server);
        invitation.accept(&self.handle, Rc::new(directory.clone()), routes);
        Ok(())
    }

    fn shard(&self) -> Result<&Shard> {
        self.shard.get().ok_or_else(|| Error::internal("a shard is not served yet"))
    }
}

/// A shard on another loop, as the node's own loop sees it.
#[derive(Clone)]
struct Remote(NearEnd<Host>);

impl Remote {
    async fn open(handle: &Handle, index: u8, options: LocalOptions) -> Result<(Remote, StoreId, OpenReport)> {
        let (near, far) = mailbox::<Host>(ERRANDS_MAX);
        let main = move |handle: Handle| async move {
            let host = Host {
                handle: handle.clone(),
                store: RefCell::default(),
                shard: OnceCell::new(),
                directory: OnceCell::new(),
            };
            far.serve(handle, Rc::new(host), ERRANDS_MAX).await;
        };
        let started = handle.start_loop(&format!("levee {}", folder(index)), main).await;
        started.map_err(|error| Error::from_io("another loop cannot be started", &error))?;
        let remote = Remote(near);
        let (store, report) = remote.ask(move |host| Box::pin(async move { host.open(options).await })).await?;
        Ok((remote, store, report))
    }

    /// Has something done there.
    async fn ask<R: Send + 'static>(
        &self,
        errand: impl FnOnce(Rc<Host>) -> LocalBoxFuture<'static, Result<R>> + Send + 'static,
    ) -> Result<R> {
        self.0.ask(errand).await.map_err(|LinkLost { message }| Error::internal(message))?
    }
}

/// The file layers of all shards.
pub(crate) struct Opened {
    handle: Handle,
    first: Store,
    others: Vec<Remote>,
    /// What the starts found, the first shard's report first.
    pub reports: Vec<OpenReport>,
}

/// Opens the file layer of every shard. `wanted`: how many there should be, if that matters; `options`: those of the
/// first one of many, or of the only one.
pub(crate) async fn open(handle: &Handle, wanted: Option<u8>, options: &LocalOptions) -> Result<Opened> {
    // Where one is wanted, whatever else is there will be refused.
    let found = match wanted {
        Some(1) => None,
        _ => local::shards(handle, &options.directories).await,
    };
    let count = wanted.or(found.map(|(_, count)| count)).unwrap_or(1);
    let mut store = found.map(|(store, _)| store);
    let mut shards: Vec<superblock::Shard> = superblock::Shard::all(count).collect();
    if found.is_none() {
        shards.reverse();
    }
    let (mut first, mut others, mut reports) = (None, Vec::new(), Vec::new());
    for shard in shards {
        let options = LocalOptions {
            directories: directories(&options.directories, shard.index),
            capacity: options.capacity.map(|capacity| capacity / u64::from(count)),
            ready: options.ready.of(count),
            resync_bytes_per_sec: (options.resync_bytes_per_sec / u64::from(count)).max(1),
            resync_floor_bytes_per_sec: options.resync_floor_bytes_per_sec / u64::from(count),
            shard,
            store,
            may_create: shard.index == 0 || found.is_none(),
            neighbours: neighbours_of(&options.neighbours, count),
            ..options.clone()
        };
        let (id, report) = match shard.index {
            0 => {
                let (opened, report) = local::open(handle, options).await?;
                let id = opened.id();
                first = Some(opened);
                (id, report)
            }
            index => {
                let (remote, id, report) = Remote::open(handle, index, options).await?;
                others.push(remote);
                (id, report)
            }
        };
        store = Some(id);
        reports.push(report);
    }
    if found.is_none() {
        others.reverse();
        reports.reverse();
    }
    let first = first.ok_or_else(|| Error::internal("a store has a first shard"))?;
    Ok(Opened { handle: handle.clone(), first, others, reports })
}

impl Opened {
    /// The first shard's files.
    pub fn first(&self) -> &Store {
        &self.first
    }

    /// How many there are.
    pub fn count(&self) -> u8 {
        1 + self.others.len() as u8
    }

    /// Opens engines and block servers on their loops, which ask `directory` for volumes.
    pub async fn serve(self, directory: Rc<dyn VolumeDirectory>, options: ShardOptions) -> Result<Shards> {
        let Opened { handle, first, others, .. } = self;
        let (near, far) = mailbox::<dyn VolumeDirectory>(ERRANDS_MAX);
        if !others.is_empty() {
            let asked = far.serve(handle.clone(), directory.clone(), ERRANDS_MAX);
            handle.spawn(Class::Io, "volumes for shards", asked).detach();
        }
        let starts: Vec<_> = others
            .iter()
            .cloned()
            .map(|remote| {
                let (directory, options) = (near.clone(), options.clone());
                let serve = |host: Rc<Host>| Box::pin(async move { host.serve(directory, options).await }) as _;
                handle.spawn(Class::Io, "start a shard", async move { remote.ask(serve).await })
            })
            .collect();
        let first = Shard::serve(&handle, first, directory, options).await;
        let mut services = Vec::with_capacity(1 + starts.len());
        for (index, start) in starts.into_iter().enumerate() {
            services.push(start.await.map_err(|error| error.context(folder(index as u8 + 1)))?);
        }
        let first = first?;
        if !services.is_empty() {
            services.insert(0, first.open_door());
        }
        Ok(Shards { first, others, network: Network { services, sessions: Sessions::default() } })
    }
}

/// All shards, served.
pub(crate) struct Shards {
    first: Shard,
    others: Vec<Remote>,
    /// Without services where there is one shard: nobody is far.
    network: Network,
}

impl Shards {
    /// How many there are.
    pub fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// What an agent on the first loop sends its requests to.
    pub fn service(&self) -> Rc<dyn BlockService> {
        match self.others.is_empty() {
            true => link::call(self.first.server.clone()),
            false => self.network.routes(&self.first.handle, 0, &self.first.server),
        }
    }

    /// Lets every other loop serve clients of `agent`, too.
    ///
    /// # Errors
    /// `Internal`: a shard is stopping.
    pub async fn spread(&self, agent: &Agent) -> Result<()> {
        for (remote, index) in self.others.iter().zip(1..) {
            let (invitation, network) = (agent.invite(), self.network.clone());
            remote.ask(move |host| Box::pin(async move { host.join(index, invitation, &network) })).await?;
        }
        Ok(())
    }

    /// The first one's file layer.
    pub fn store(&self) -> &Store {
        &self.first.store
    }

    /// The block server of the first one. What it says of admission holds for all: they share the tokens.
    pub fn server(&self) -> &Rc<Server<Engine>> {
        &self.first.server
    }

    /// See [`Engine::volumes`].
    pub async fn volumes(&self) -> Result<BTreeSet<VolumeId>> {
        let mut all: BTreeSet<VolumeId> = self.first.engine.volumes().into_iter().collect();
        for remote in &self.others {
            let volumes = remote.ask(|host| {
                Box::pin(async move { Ok(host.shard()?.engine.volumes().into_iter().collect::<Vec<_>>()) })
            });
            all.extend(volumes.await?);
        }
        Ok(all)
    }

    /// What all of them counted, together.
    pub async fn counters(&self) -> Counters {
        let mut all = self.first.counters();
        for remote in &self.others {
            // One that has ended counts no more.
            if let Ok(more) = remote.ask(|host| Box::pin(async move { Ok(host.shard()?.counters()) })).await {
                all.merge(&more);
            }
        }
        all
    }

    /// See [`Engine::audit`].
    pub async fn audit(&self) -> Result<Vec<String>> {
        let mut wrong = self.first.engine.audit().await?;
        for remote in &self.others {
            wrong.extend(remote.ask(|host| Box::pin(async move { host.shard()?.engine.audit().await })).await?);
        }
        Ok(wrong)
    }

    /// See [`Engine::scrub`].
    ///
    /// # Errors
    /// `Internal`: a shard is stopping.
    pub async fn scrub(&self) -> Result<u64> {
        let mut lost = self.first.engine.scrub().await;
        for remote in &self.others {
            lost += remote.ask(|host| Box::pin(async move { Ok(host.shard()?.engine.scrub().await) })).await?;
        }
        Ok(lost)
    }

    /// Ends all of them cleanly, at the same time, whatever comes of one.
    ///
    /// # Errors
    /// Those of [`Engine::close`].
    pub async fn stop(&self) -> Result<()> {
        let stop_there = |remote: Remote| async move {
            remote.ask(|host| Box::pin(async move { host.shard()?.stop().await })).await
        };
        let spawn = |remote: &Remote| self.first.handle.spawn(Class::Io, "stop a shard", stop_there(remote.clone()));
        let stops: Vec<_> = self.others.iter().map(spawn).collect();
        let mut outcome = self.first.stop().await;
        for stopped in stops {
            outcome = outcome.and(stopped.await);
        }
        outcome
    }
}

impl VolumeOwner for Shards {
    fn drop_volume(&self, volume: VolumeId) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.first.server.drop_volume(volume).await?;
            for remote in &self.others {
                let drop_there = move |host: Rc<Host>| -> LocalBoxFuture<'static, Result<()>> {
                    Box::pin(async move { host.shard()?.server.drop_volume(volume).await })
                };
                remote.ask(drop_there).await?;
            }
            Ok(())
        })
    }

    fn begin_scrub(&self) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.first.server.begin_scrub().await?;
            for remote in &self.others {
                let begin = |host: Rc<Host>| -> LocalBoxFuture<'static, Result<()>> {
                    Box::pin(async move { host.shard()?.server.begin_scrub().await })
                };
                remote.ask(begin).await?;
            }
            Ok(())
        })
    }

    fn set_levels(&self, volume: &VolumeDescriptor) {
        // They are in the tokens that all share.
        self.first.server.set_levels(volume);
    }

    fn set_provisioned(&self, bytes: u64) {
        // Segments take turns over them.
        let bytes = bytes / (self.others.len() as u64 + 1);
        self.first.server.set_provisioned(bytes);
        for remote in self.others.clone() {
            let set_there = move |host: Rc<Host>| -> LocalBoxFuture<'static, Result<()>> {
                Box::pin(async move {
                    host.shard()?.server.set_provisioned(bytes);
                    Ok(())
                })
            };
            // One that is stopping does not need to know any more.
            let told = async move { drop(remote.ask(set_there).await) };
            self.first.handle.spawn(Class::Io, "tell a shard", told).detach();
        }
    }
}
