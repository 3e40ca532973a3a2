//! A store without an agent: file layer, engine, block server and manager, served over a stream.

use std::cell::OnceCell;
use std::rc::Rc;
use std::time::Duration;

use agent::Agent;
use base::{GIB, VolumeId};
use control::service::{self, CreateVolume};
use control::{Connection, Manager};
use engine::Engine;
use files::Redundancy;
use files::local::{self, LocalOptions};
use link::stream::{FarEnd, NearEnd, Options, Services};
use node::Settings;
use node::settings::EngineSettings;
use runtime::{Address, Handle};
use server::Server;
use wire::{LocalBoxFuture, VolumeUser};

/// How long an end waits for the other.
pub const SILENCE: Duration = Duration::from_secs(2);

pub fn stream_options(name: &str) -> Options {
    Options { silence: SILENCE, ..Options::new(name) }
}

pub struct Store {
    pub engine: Engine,
    pub server: Rc<Server<Engine>>,
    pub manager: Manager,
    pub far: Rc<FarEnd>,
    connection: Connection,
}

impl Store {
    /// Opens the store of `/disk`, with a volume of 1 GiB called `disk`, and serves it at `address`.
    pub async fn open(handle: &Handle, address: &Address) -> Store {
        let settings = Settings {
            directories: vec!["/disk/store".into()],
            engine: EngineSettings::small(),
            ..Settings::default()
        };
        let options = settings.resolve().unwrap().engine_of(1).unwrap();
        let (files, _) = local::open(handle, LocalOptions::new(settings.directories)).await.unwrap();
        let table = service::Options { redundancy: Redundancy::Copies(1), accept_data_loss: false };
        let manager = Manager::open(handle, &files, table).await.unwrap();
        let engine = Engine::open(handle, &files, options).await.unwrap();
        let server = Server::new(handle, engine.clone(), Rc::new(manager.clone()), server::Options::default());
        let services =
            Services { block: Some(server.clone()), directory: Some(Rc::new(manager.clone())), ..Services::default() };
        let far = FarEnd::new(handle, services, stream_options("the store"));
        let connection = manager.connect(server.clone(), Rc::new(Peers(far.clone())), None);
        manager.resume();
        let wanted = CreateVolume { allow_existing: true, ..CreateVolume::new("disk", GIB) };
        manager.create(wanted).await.unwrap();
        far.serve(handle.listen(address).await.unwrap());
        Store { engine, server, manager, far, connection }
    }

    pub async fn close(self) {
        self.far.stop().await;
        self.server.stop().await;
        self.engine.close().await.unwrap();
        drop(self.connection);
        self.manager.close().await.unwrap();
    }
}

/// Those who use volumes: whoever has dialled and says so.
pub struct Peers(Rc<FarEnd>);

impl VolumeUser for Peers {
    fn release(&self, volume: VolumeId) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            for peer in self.0.peers() {
                peer.release(volume).await;
            }
        })
    }

    fn users(&self, volume: VolumeId) -> usize {
        self.0.peers().iter().map(|peer: &NearEnd| peer.users(volume)).sum()
    }
}

/// An agent that there will be.
#[derive(Default)]
pub struct Later(OnceCell<Agent>);

impl Later {
    pub fn set(&self, agent: Agent) {
        assert!(self.0.set(agent).is_ok(), "there is one agent");
    }
}

impl VolumeUser for Later {
    fn release(&self, volume: VolumeId) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(agent) = self.0.get() {
                agent.release(volume).await;
            }
        })
    }

    fn users(&self, volume: VolumeId) -> usize {
        self.0.get().map_or(0, |agent| agent.users(volume))
    }
}
