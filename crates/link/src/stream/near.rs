//! The end of those who ask: it stands for another process, whether or not a connection with it is there.

mod block;
mod control;
mod files;
mod lease;
mod observe;
mod segments;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

use base::{Error, Instant, Map, Result, VolumeId};
use runtime::sync::Event;
use runtime::{Address, Class, Handle};
use wire::frame::{Request, Value};
use wire::{LinkLost, Reply, SessionId};

use super::first::first;
use super::live::Live;
use super::offer::Offer;
use super::{Options, Services, Tls};
use crate::tls::Channel;

/// How long nobody dials after it failed: who asks meanwhile hears why.
const REDIAL: Duration = Duration::from_millis(200);

/// A process that may be asked for what it offers. Clones are the same. Dropped with the last clone, it ends its
/// connection.
#[derive(Clone)]
pub struct NearEnd(Rc<Inner>);

struct Inner {
    handle: Handle,
    way: Way,
    state: RefCell<State>,
    /// The sessions that were opened here: where, and what they are called there. Numbers are given out once.
    sessions: RefCell<Map<SessionId, (Rc<Live>, SessionId)>>,
    last_session: Cell<u64>,
    /// What an owner of volumes was not told yet.
    untold: RefCell<BTreeMap<Option<VolumeId>, Request>>,
    is_telling: Cell<bool>,
    /// The last attempt to connect was refused: nobody listens there.
    is_refused: Cell<bool>,
    /// What is known of those who use a volume, of volumes that somebody asked of.
    users: RefCell<BTreeMap<VolumeId, Users>>,
}

/// How many used a volume when the other process was last asked, and whether it is being asked.
#[derive(Clone, Copy, Default)]
struct Users {
    count: usize,
    is_asked: bool,
}

/// How a connection comes about.
enum Way {
    Dials {
        address: Address,
        offer: Rc<Offer>,
        options: Options,
    },
    /// The peer has made it: there will be no other.
    Accepted,
}

enum State {
    /// There is none. It was tried until then, in vain, if a reason is there.
    Idle(Instant, Option<Error>),
    /// Notified when that is decided.
    Dialing(Event),
    Live(Rc<Live>),
}

impl NearEnd {
    /// The process at `address`. It is dialled when somebody asks it, and again after a connection was lost. This process
    /// does `services` for it meanwhile.
    pub fn dial(handle: &Handle, address: Address, services: Services, options: Options) -> NearEnd {
        let way = Way::Dials { address, offer: Offer::new(handle, services), options };
        Self::new(handle, way, State::Idle(Instant::ZERO, None))
    }

    /// The process that has made this connection.
    pub(super) fn of(live: &Rc<Live>) -> NearEnd {
        Self::new(&live.handle, Way::Accepted, State::Live(live.clone()))
    }

    fn new(handle: &Handle, way: Way, state: State) -> NearEnd {
        NearEnd(Rc::new(Inner {
            handle: handle.clone(),
            way,
            state: RefCell::new(state),
            sessions: RefCell::default(),
            last_session: Cell::new(0),
            untold: RefCell::default(),
            is_telling: Cell::new(false),
            is_refused: Cell::new(false),
            users: RefCell::default(),
        }))
    }

    /// Whether the last attempt to connect was refused by a machine that answers: nobody listens at the address, so the
    /// process that did is gone. Whoever does not answer, or answers and is no such peer, has refused nothing, and a
    /// connection that was lost says nothing. To be asked after a request has failed.
    pub fn is_refused(&self) -> bool {
        self.0.is_refused.get()
    }

    /// Returns when the connection has been lost; one is made first, if there is none.
    ///
    /// # Errors
    /// `Io`: none can be made.
    pub async fn lost(&self) -> Result<()> {
        let live = self.0.live().await?;
        live.ended().await;
        Ok(())
    }

    /// Ends the connection, if there is one: what is in flight is lost. Whoever asks next has another one made.
    pub fn hang_up(&self) {
        self.0.hang_up("it was hung up");
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // One that the peer has made is the far end's.
        if matches!(self.way, Way::Dials { .. }) {
            self.hang_up("nobody needs it any more");
        }
    }
}

impl Inner {
    fn hang_up(&self, why: &str) {
        if let State::Live(live) = &*self.state.borrow() {
            live.give_up(Error::internal(why));
        }
    }

    /// A connection on which the peer has greeted.
    ///
    /// # Errors
    /// `Io`: there is none, and why.
    async fn live(self: &Rc<Self>) -> Result<Rc<Live>> {
        loop {
            let dialing = {
                let mut state = self.state.borrow_mut();
                match &*state {
                    State::Live(live) if !live.has_ended() => return Ok(live.clone()),
                    State::Live(live) if matches!(self.way, Way::Accepted) => {
                        let why = live.end().map_or(String::new(), |error| error.message);
                        return Err(Error::io(format!("its connection has ended, and it has to connect again: {why}")));
                    }
                    State::Dialing(event) => event.wait(),
                    State::Idle(until, Some(error)) if self.handle.now() < *until => return Err(error.clone()),
                    State::Live(_) | State::Idle(..) => {
                        let event = Event::new();
                        let dialing = event.wait();
                        *state = State::Dialing(event);
                        let inner = self.clone();
                        // A task of its own: whoever asked first may stop waiting.
                        let dial = async move { inner.dial().await };
                        self.handle.spawn(Class::Io, "dial", dial).detach();
                        dialing
                    }
                }
            };
            dialing.await;
            if let State::Idle(_, Some(error)) = &*self.state.borrow() {
                return Err(error.clone());
            }
        }
    }

    async fn dial(&self) {
        let Way::Dials { address, offer, options } = &self.way else {
            unreachable!("a connection that the peer has made is not made again");
        };
        let next = match self.connect(address, offer, options).await {
            Ok(live) => State::Live(live),
            // To whoever asks, what is wrong with the peer is a connection that failed.
            Err(error) => {
                let error = Error::io(format!("{}: {error}", shown(address)));
                State::Idle(self.handle.now() + REDIAL, Some(error))
            }
        };
        if let State::Dialing(event) = self.state.replace(next) {
            event.notify();
        }
    }

    async fn connect(&self, address: &Address, offer: &Rc<Offer>, options: &Options) -> Result<Rc<Live>> {
        let patience = self.handle.sleep(options.silence);
        let connected = first(self.handle.connect(address), patience).await;
        self.is_refused.set(matches!(&connected, Ok(Err(error)) if refuses(address, error.kind())));
        let stream = match connected {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                return Err(Error::io(format!("cannot be reached: {error}; see whether a server listens there")));
            }
            Err(()) => {
                let silence = options.silence;
                return Err(Error::io(format!("did not answer for {silence:?}; see whether the network carries")));
            }
        };
        let channel = match &options.tls {
            None => Channel::from(stream),
            Some(Tls { credentials, dialled }) => {
                let patience = self.handle.sleep(options.silence);
                match first(credentials.connect(stream, *dialled), patience).await {
                    Ok(agreed) => agreed?,
                    Err(()) => {
                        return Err(Error::io("did not answer in TLS; see whether it was started with --tls DIR"));
                    }
                }
            }
        };
        let peer = options.tls.as_ref().map(|tls| tls.dialled);
        let live = Live::start(&self.handle, channel, peer, offer, options);
        live.greeted().await.map(|()| live)
    }

    /// Asks whoever is there, over whichever connection.
    async fn ask_any(self: &Rc<Self>, request: Request) -> Result<Value> {
        let live = self.live().await?;
        match live.ask(request).await {
            Ok(Reply { result, .. }) => result,
            Err(LinkLost { message }) => Err(Error::io(message)),
        }
    }
}

/// Whether an attempt that failed this way says that nobody listens. The file of a Unix socket goes with its listener, or
/// stays behind.
fn refuses(address: &Address, kind: ErrorKind) -> bool {
    match address {
        Address::Tcp(_) => kind == ErrorKind::ConnectionRefused,
        Address::Unix(_) => matches!(kind, ErrorKind::ConnectionRefused | ErrorKind::NotFound),
    }
}

fn shown(address: &Address) -> String {
    match address {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => path.display().to_string(),
    }
}

/// What an answer must be: the connection sees to it that its kind is that of the request.
fn other(value: &Value) -> ! {
    unreachable!("a reply has the kind of its request: {value:?}")
}
