//! The control API: HTTP and JSON for people and programs, on a thread of its own.
//!
//! Intuition: this is a skin. It parses, sends a typed [`Request`](crate::service::Request) through a bounded mailbox
//! to the manager's loop, awaits one reply for a bounded time, and renders it. It is the only place of the store that
//! uses tokio, so that the store itself runs unchanged in the simulated world.
//!
//! Flow: [`Listener::bind`] takes the address (a conflict is known before anything else starts) -> [`Listener::serve`]
//! starts the thread -> `serve` accepts a bounded number of connections -> `guard` checks who asks ->
//! `routes` answers -> [`Server::stop`] ends it when the open requests are done.
//!
//! Invariants: it binds to loopback unless told otherwise; a request needs a `Host` that
//! is no name of elsewhere, a change needs a token that is for it ([`token::Right`]), and so does every request where the
//! address is not loopback; connections, bodies, waiting calls and waiting times have bounds.

mod api;
mod bodies;
mod explain;
mod guard;
mod refusal;
mod relay;
mod routes;
mod serve;
mod status;
mod token;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use base::{Error, ErrorKind, Result};

use crate::service::Call;

pub use explain::explanation;
pub use routes::{OPENAPI, ROUTES};
pub use status::status;
use token::Tokens;
pub use token::{ATTACH_TOKEN_FILE, READ_TOKEN_FILE, read as read_token};

/// The name of the token file in the first directory of a store.
pub const TOKEN_FILE: &str = "api.token";

/// What the API says of the store besides what the manager knows, and how it lets people in.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file with the token; made if it does not exist.
    pub token_file: PathBuf,
    /// 256 random bits for a new token.
    pub token_seed: [u64; 4],
    /// Names that may stand in `Host` besides `localhost` and addresses.
    pub host_names: Vec<String>,
    /// URIs of the NBD listeners: `nbd://ADDRESS` and `nbd+unix:///?socket=PATH`.
    pub nbd: Vec<String>,
    /// Whether it is the API of one of several managers: calls are sent on to the one in charge.
    pub is_one_of_several: bool,
}

/// An address that is taken and not yet served.
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Takes `address`; port 0 asks for a free one.
    ///
    /// # Errors
    /// `Conflict` where somebody listens there already, `Invalid`, `Io`.
    pub fn bind(address: SocketAddr) -> Result<Listener> {
        let bound = TcpListener::bind(address).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(Listener { address: listener.local_addr()?, listener })
        });
        bound.map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::AddrInUse => {
                    "; another store may be running there: choose another address with \
                                            --api-listen, or port 0 for a free one"
                }
                _ => "",
            };
            let mut error = Error::from_io(format!("cannot listen on {address} for the control API"), &error);
            error.message.push_str(hint);
            error
        })
    }

    /// The address as really bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts the thread that serves. Calls go to `calls`.
    ///
    /// # Errors
    /// `Invalid` or `Io` where the token file cannot be read or made, or the thread not started.
    pub fn serve(self, options: Options, calls: async_channel::Sender<Call>) -> Result<Server> {
        let tokens = Tokens::of(token::read_or_make(&options.token_file, options.token_seed)?);
        match tokens.write_beside(&options.token_file) {
            // They follow from the token of the store: whoever needs one finds it beside another manager's.
            Err(error) if error.kind != ErrorKind::Invalid => {
                tracing::warn!(%error, "the tokens that only allow a part are not written down here");
            }
            written => written?,
        }
        let api = Arc::new(api::Api {
            calls,
            tokens,
            is_public: !self.address.ip().is_loopback(),
            token_file: options.token_file,
            host_names: options.host_names,
            nbd: options.nbd,
            is_one_of_several: options.is_one_of_several,
        });
        let address = self.address;
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (finish, finished) = futures_channel::oneshot::channel();
        std::thread::Builder::new()
            .name("levee-api".into())
            .spawn(move || {
                serve::run(self.listener, api, stopped);
                let _ = finish.send(());
            })
            .map_err(|error| Error::from_io("cannot start the thread of the control API", &error))?;
        Ok(Server { address, stop: Some(stop), finished })
    }
}

/// The API while it is served. Dropping it ends the service without waiting for it.
pub struct Server {
    address: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    finished: futures_channel::oneshot::Receiver<()>,
}

impl Server {
    /// The address that it serves.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no more connections, gives the requests in progress a short time, and ends the thread.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        let _ = (&mut self.finished).await;
    }
}
