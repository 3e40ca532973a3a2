//! A server: one engine with its block server, whose segments managers give and take.
//!
//! Start: a life in the shared store -> the engine, empty -> the address -> it says to all managers that it lives, and from
//! then on again and again. Who was declared dead meanwhile is told so, and its life is over ([`ServerRole::dismissed`]); so
//! is that of one whose log takes no more records, because the store was away for too long.
//! Stop: nobody is served any more, what is dirty is dumped; managers find nobody at the address, and give its segments to
//! others. Who wants no pause drains the server first.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::{ErrorKind, Incarnation, Result};
use engine::{Engine, Ownership};
use files::Store;
use files::rados::RadosOptions;
use link::stream::{FarEnd, NearEnd, Options, Services};
use link::tls::Role;
use runtime::sync::Event;
use runtime::{Address, Class, Handle, Task};
use server::{Owner, Server};
use wire::EngineRegistry;

use super::{Ceph, Pools, credentials, join, listen, shown};
use crate::observer::ServerObserver;
use crate::settings::Settings;

/// It says so many times in a lease that it lives.
const SAYS: u32 = 4;
/// And so often to a manager that did not answer.
const SAYS_AGAIN: Duration = Duration::from_millis(100);

/// See the module.
pub struct ServerRole {
    handle: Handle,
    store: Store,
    engine: Engine,
    server: Rc<Server<Engine>>,
    owner: Rc<Owner>,
    far: Rc<FarEnd>,
    address: Address,
    dismissed: Event,
    is_dismissed: Rc<Cell<bool>>,
    _tasks: Vec<Task<()>>,
}

impl ServerRole {
    /// Starts a server on the loop of `handle`.
    ///
    /// # Errors
    /// One sentence that says what was wrong and what to do: a setting, an address, the store.
    pub async fn start(handle: &Handle, settings: &Settings) -> Result<ServerRole> {
        ServerRole::start_over(handle, settings, Rc::new(Ceph)).await
    }

    /// The same, where `pools` reaches pools.
    ///
    /// # Errors
    /// As [`ServerRole::start`].
    pub async fn start_over(handle: &Handle, settings: &Settings, pools: Rc<dyn Pools>) -> Result<ServerRole> {
        let cluster = settings.cluster.resolve()?;
        let resolved = settings.resolve_without_directories()?;
        let credentials = credentials(handle, &settings.tls).await?;
        let listener = listen(handle, &cluster.listen).await?;
        let address = listener.address().clone();
        let name = format!("server {}", cluster.name);
        let (place, uses) = (settings.cluster.store()?, RadosOptions::default());
        let store = join(handle, &place, &*pools, uses, &name, credentials.as_ref()).await?;
        let options = engine::Options { ownership: Ownership::Given, ..resolved.engine_of(1)? };
        let engine = Engine::open(handle, &store, options.clone()).await?;
        let server_options = server::Options { admission: resolved.admission.clone(), ..server::Options::default() };
        let server = Server::told(handle, engine.clone(), server_options);
        let owner = Owner::new(handle, server.clone(), &store, options);
        let observer = ServerObserver {
            handle: handle.clone(),
            name: cluster.name.clone(),
            store: store.clone(),
            engine: engine.clone(),
            server: Rc::downgrade(&server),
            memory_bytes_max: resolved.memory_bytes,
            begun: handle.now(),
        };
        let services = Services {
            block: Some(server.clone()),
            owner: Some(server.clone()),
            segments: Some((store.incarnation(), owner.clone())),
            observer: Some(Rc::new(observer)),
            ..Services::default()
        };
        // Whoever it dials is a manager.
        let stream_options = Options::new(name).secured(credentials.as_ref(), Role::Manager);
        let far = FarEnd::new(handle, services, stream_options.clone());
        far.serve(listener);
        let (dismissed, is_dismissed) = (Event::new(), Rc::new(Cell::new(false)));
        let (broken, over, is_over) = (engine.clone(), dismissed.clone(), is_dismissed.clone());
        let watching = async move {
            let error = broken.when_broken().await;
            tracing::warn!("this server takes no more writes: {error}");
            is_over.set(true);
            over.notify();
        };
        let mut tasks = vec![handle.spawn(Class::Io, "watch the log", watching)];
        for manager in &cluster.managers {
            let saying = Saying {
                handle: handle.clone(),
                manager: NearEnd::dial(handle, manager.clone(), Services::default(), stream_options.clone()),
                engine: store.incarnation(),
                server: cluster.name.clone(),
                address: shown(&address),
                dismissed: dismissed.clone(),
                is_dismissed: is_dismissed.clone(),
            };
            tasks.push(handle.spawn(Class::Io, "say that an engine lives", saying.run()));
        }
        Ok(ServerRole {
            handle: handle.clone(),
            store,
            engine,
            server,
            owner,
            far,
            address,
            dismissed,
            is_dismissed,
            _tasks: tasks,
        })
    }

    /// The number of its life.
    pub fn incarnation(&self) -> Incarnation {
        self.store.incarnation()
    }

    /// Where it listens.
    pub fn address(&self) -> String {
        shown(&self.address)
    }

    /// Its engine, for whoever shares the loop.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What managers ask of it, for whoever shares the loop.
    pub fn owner(&self) -> &Rc<Owner> {
        &self.owner
    }

    /// Returns when this life is over: it was declared dead, or can log nothing more. Others get its segments.
    pub fn dismissed(&self) -> impl Future<Output = ()> + use<> {
        let (event, is_dismissed) = (self.dismissed.clone(), self.is_dismissed.clone());
        async move {
            loop {
                let dismissed = event.wait();
                if is_dismissed.get() {
                    return;
                }
                dismissed.await;
            }
        }
    }

    /// Serves nobody any more, after it was dismissed: what it had is others'.
    pub async fn abandon(self) {
        self.far.stop().await;
        self.server.stop().await;
        self.remove_socket().await;
    }

    /// Serves nobody any more, and has what is dirty on disk.
    ///
    /// # Errors
    /// `Io`: not all of it could be written; it is recovered by others.
    pub async fn stop(self) -> Result<()> {
        self.far.stop().await;
        self.server.stop().await;
        self.remove_socket().await;
        match self.engine.close().await {
            // As soon as nobody listens managers may have given its segments to others, who have all of it.
            Err(error) if error.kind == ErrorKind::Fenced => Ok(()),
            closed => closed,
        }
    }

    async fn remove_socket(&self) {
        if let Address::Unix(path) = &self.address {
            let _ = self.handle.remove(path).await;
        }
    }
}

/// What it says to one manager.
struct Saying {
    handle: Handle,
    manager: NearEnd,
    engine: Incarnation,
    server: String,
    address: String,
    dismissed: Event,
    is_dismissed: Rc<Cell<bool>>,
}

impl Saying {
    async fn run(self) {
        loop {
            let said = self.manager.register(self.engine, &self.server, &self.address).await;
            let pause = match said {
                Ok(registered) => Duration::from_millis(registered.lease_ms.into()) / SAYS,
                Err(error) if error.kind == ErrorKind::Fenced => {
                    tracing::warn!(engine = %self.engine, "this server was declared dead: {error}");
                    self.is_dismissed.set(true);
                    return self.dismissed.notify();
                }
                Err(error) => {
                    tracing::debug!(%error, "a manager was not told that this engine lives");
                    SAYS_AGAIN
                }
            };
            self.handle.sleep(pause).await;
        }
    }
}
