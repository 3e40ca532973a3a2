//! The roles of several servers over one shared store, each a process: servers, agents, managers.
//!
//! **Intuition.** What one process is under `levee up` is taken apart here. A *server* ([`server`]) is an engine with its
//! block server; its segments are given to it. An *agent* ([`agent`]) has NBD clients, and finds segments wherever they are.
//! A *manager* ([`manager`]) decides who has what, if it is the one in charge. All of them reach each other over streams
//! (`link::stream`), and the files of servers and managers are in one store that they share: a pool of Ceph (`files::rados`), or
//! another process (`files::remote`).
//! [`together`] has all of it in one process, to try it out.
//!
//! **Names.** The *place* of a process is an address at which it listens, as text. A *life* is what a server or a manager is
//! in the shared store: it ends when it is fenced, and then the process begins another one.
//!
//! **Invariants.** A process needs no other one of its role. Whoever cannot reach somebody waits or asks the next; what it
//! was asked itself ends with an error after a bounded time.

pub mod agent;
pub mod manager;
pub mod managers;
pub mod server;
pub mod settings;
pub mod together;

use std::rc::Rc;

use base::{Error, Result};
use control::charge;
use control::etcd::{self, Etcd};
use files::Store;
use files::rados::librados::{self, Place};
use files::rados::{self, RadosOptions, StorePools};
use files::remote::{self, RemoteOptions};
use link::stream::{NearEnd, Options, Services};
use link::tls::{Credentials, Role};
use runtime::{Address, Handle, Listener};
use wire::{LeaseStore, LocalBoxFuture};

use crate::addresses::listen_when_free;
use crate::settings::TlsSettings;

/// An address as text: `HOST:PORT`, or `unix:` and a path.
pub fn shown(address: &Address) -> String {
    match address {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => format!("unix:{}", path.display()),
    }
}

/// The address that a text names.
///
/// # Errors
/// What is wrong with it, and an example.
pub fn address(text: &str) -> std::result::Result<Address, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        return match path.is_empty() {
            true => Err("a socket has a path: write unix:/run/files.sock".into()),
            false => Ok(Address::Unix(path.into())),
        };
    }
    let socket = text.parse().map_err(|_| format!("'{text}' is no address: write 127.0.0.1:7500 or unix:PATH"))?;
    Ok(Address::Tcp(socket))
}

/// Takes an address for other processes.
///
/// # Errors
/// `Io`, `Conflict`: what is wrong, and what to do.
pub(crate) async fn listen(handle: &Handle, wanted: &Address) -> Result<Listener> {
    listen_when_free(handle, wanted).await.map_err(|error| {
        let mut refusal = Error::from_io(format!("cannot listen on {}", shown(wanted)), &error);
        if error.kind() == std::io::ErrorKind::AddrInUse {
            refusal.message.push_str("; somebody answers there: choose another address with --listen");
        }
        refusal
    })
}

/// What a process shows other processes, if it was given anything.
///
/// # Errors
/// What is wrong with the directory, and what to do.
pub(crate) async fn credentials(handle: &Handle, tls: &TlsSettings) -> Result<Option<Rc<Credentials>>> {
    let Some(directory) = &tls.directory else { return Ok(None) };
    let opened = Credentials::open(handle, directory).await;
    let opened = opened.map_err(|error| error.context("tls.directory (--tls)"))?;
    Ok((!tls.only_clients).then_some(opened))
}

/// Where the shared store is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StorePlace {
    /// In another process, which is reached there.
    Served(Address),
    /// A pool of Ceph.
    Pool(Place),
}

/// Where the store of leases is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeasesPlace {
    /// In another process, which is reached there.
    Served(Address),
    /// An etcd.
    Etcd(etcd::Place),
}

/// The store of leases at `place`, for a manager of this name.
fn leases(
    handle: &Handle,
    place: LeasesPlace,
    name: &str,
    credentials: Option<&Rc<Credentials>>,
) -> Rc<dyn LeaseStore> {
    match place {
        LeasesPlace::Served(address) => {
            let impatient = Options { silence: charge::SILENCE, ..Options::new(name) };
            let impatient = impatient.secured(credentials, Role::Store);
            Rc::new(NearEnd::dial(handle, address, Services::default(), impatient))
        }
        LeasesPlace::Etcd(place) => Etcd::new(handle, place),
    }
}

/// Who reaches the pools that settings name.
pub trait Pools {
    /// The pools at `place`, from the loop of `handle`.
    fn open(&self, handle: &Handle, place: Place) -> LocalBoxFuture<'static, Result<StorePools>>;
}

/// Pools of Ceph, by its library.
pub struct Ceph;

impl Pools for Ceph {
    fn open(&self, handle: &Handle, place: Place) -> LocalBoxFuture<'static, Result<StorePools>> {
        let handle = handle.clone();
        Box::pin(async move { librados::open(&handle, place).await })
    }
}

/// Begins a life in the shared store at `place`. Of pools it sets aside as `uses` says; a store that is served decides that itself.
///
/// # Errors
/// `Io`, `Full`; what is wrong with a pool.
async fn join(
    handle: &Handle,
    place: &StorePlace,
    pools: &dyn Pools,
    uses: RadosOptions,
    name: &str,
    credentials: Option<&Rc<Credentials>>,
) -> Result<Store> {
    let joined = match place {
        StorePlace::Served(address) => {
            let options = Options::new(name).secured(credentials, Role::Store);
            let near = NearEnd::dial(handle, address.clone(), Services::default(), options);
            let options = RemoteOptions::new(format!("the shared store at {}", shown(address)));
            remote::join(handle, Rc::new(near), options).await
        }
        StorePlace::Pool(place) => match pools.open(handle, place.clone()).await {
            Ok(pools) => rados::join(handle, pools, uses).await,
            Err(error) => Err(error),
        },
    };
    joined.map_err(|error| error.context("the shared store"))
}
