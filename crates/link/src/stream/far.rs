//! The end of those who are asked: it accepts connections, a bounded number of them, and serves each to its end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::{Error, ErrorKind, Instant};
use runtime::{Class, Handle, Listener, Stream, Task};
use wire::frame::{Message, VERSION};

use super::first::first;
use super::live::{GOODBYE, Live};
use super::near::NearEnd;
use super::offer::Offer;
use super::{Options, Services, Tls, rights};
use crate::tls::{Accepted, Channel, Refused, Role};

/// How long to wait after an accept that failed, for file descriptors to come free.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Between two lines in the log on those who are not believed.
const LOG_PAUSE: Duration = Duration::from_secs(1);

/// Connections that others make. It lives until it is stopped.
pub struct FarEnd {
    handle: Handle,
    offer: Rc<Offer>,
    options: Options,
    lives: RefCell<Vec<Rc<Live>>>,
    /// Connections that are not secure yet, and are to be.
    agreeing: Cell<usize>,
    /// Nobody is served any more.
    is_stopped: Cell<bool>,
    /// When the log last heard of one that was not believed.
    logged: Cell<Option<Instant>>,
    listeners: RefCell<Vec<Task<()>>>,
    statistics: Cell<Statistics>,
}

/// What a far end has counted since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Connections that are open now, or that something is left of.
    pub open: usize,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections that were closed at once, and told so, because there were too many.
    pub refused: u64,
    /// Connections that were given up because of what came over them.
    pub violations: u64,
}

impl FarEnd {
    /// A far end that does `services` for whoever connects.
    pub fn new(handle: &Handle, services: Services, options: Options) -> Rc<FarEnd> {
        Rc::new(FarEnd {
            handle: handle.clone(),
            offer: Offer::new(handle, services),
            options,
            lives: RefCell::default(),
            agreeing: Cell::default(),
            is_stopped: Cell::default(),
            logged: Cell::default(),
            listeners: RefCell::default(),
            statistics: Cell::default(),
        })
    }

    /// Serves those who connect to `listener`, until it is stopped.
    pub fn serve(self: &Rc<Self>, listener: Listener) {
        let far = self.clone();
        let accepting = self.handle.spawn(Class::Io, "stream accept", async move {
            loop {
                match listener.accept().await {
                    Ok(stream) => far.on_connection(stream),
                    Err(error) => {
                        tracing::warn!(%error, "a connection of another process could not be accepted");
                        far.handle.sleep(ACCEPT_RETRY).await;
                    }
                }
            }
        });
        self.listeners.borrow_mut().push(accepting);
    }

    /// Those who are connected and do something for this process: to ask them.
    pub fn peers(&self) -> Vec<NearEnd> {
        let lives = self.lives.borrow();
        let asked = lives.iter().filter(|live| !live.has_ended() && live.offered() != Default::default());
        asked.map(NearEnd::of).collect()
    }

    /// What it has counted.
    pub fn statistics(&self) -> Statistics {
        Statistics { open: self.open(), ..self.statistics.get() }
    }

    /// Accepts nothing more, ends all connections, and returns when what was asked over them is done and their sessions
    /// are closed.
    pub async fn stop(&self) {
        self.is_stopped.set(true);
        self.listeners.borrow_mut().clear();
        let lives = self.lives.borrow().clone();
        let name = &self.options.name;
        lives.iter().for_each(|live| live.give_up(Error::internal(format!("{name} is stopping"))));
        for live in lives {
            live.wait_until_over().await;
        }
    }

    fn on_connection(self: &Rc<Self>, stream: Stream) {
        let open = self.open();
        if open >= self.options.streams_max {
            self.count(|statistics| statistics.refused += 1);
            let refused = self.statistics.get().refused;
            if refused.is_power_of_two() {
                tracing::warn!(open, refused, "too many connections of other processes: new ones are closed");
            }
            // Who expects TLS would take what is said in the open for another fault.
            if self.options.tls.is_some() {
                return stream.shutdown();
            }
            let full = format!("it has {open} connections, as many as it takes: end some, or try again later");
            return self.refuse(stream.into(), Error::retry(full));
        }
        self.count(|statistics| statistics.accepted += 1);
        let Some(Tls { credentials, .. }) = self.options.tls.clone() else { return self.begin(stream.into(), None) };
        let far = self.clone();
        let agreeing = async move {
            let roles = rights::roles(far.offer.get(Services::offered));
            let patience = far.handle.sleep(far.options.silence);
            let agreed = first(credentials.accept(stream.clone(), &roles), patience).await;
            far.agreeing.update(|agreeing| agreeing - 1);
            match agreed {
                _ if far.is_stopped.get() => stream.shutdown(),
                Ok(Ok(Accepted::Believed(channel, role))) => far.begin(channel, Some(role)),
                Ok(Ok(Accepted::Other(channel, error))) => far.distrust(Some(channel), error),
                Ok(Err(Refused { error, speaks_tls })) => {
                    far.distrust((!speaks_tls).then(|| stream.into()), error);
                }
                Err(()) => stream.shutdown(),
            }
        };
        self.agreeing.update(|agreeing| agreeing + 1);
        self.handle.spawn(Class::Io, "tls handshake", agreeing).detach();
    }

    /// Connections that are there, or come about.
    fn open(&self) -> usize {
        self.lives.borrow().len() + self.agreeing.get()
    }

    /// Ends a connection of one that is not believed, or speaks no TLS, and tells it why where it would understand.
    fn distrust(&self, channel: Option<Channel>, error: Error) {
        self.count(|statistics| statistics.violations += 1);
        let now = self.handle.now();
        if self.logged.get().is_none_or(|logged| now.nanos_since(logged) > LOG_PAUSE.as_nanos() as u64) {
            self.logged.set(Some(now));
            tracing::warn!(%error, "a connection of another process was refused");
        }
        if let Some(channel) = channel {
            self.refuse(channel, error);
        }
    }

    fn begin(self: &Rc<Self>, channel: Channel, peer: Option<Role>) {
        let live = Live::start(&self.handle, channel, peer, &self.offer, &self.options);
        self.lives.borrow_mut().push(live.clone());
        let far = self.clone();
        let outliving = async move {
            live.wait_until_over().await;
            if live.end().is_some_and(|error| matches!(error.kind, ErrorKind::Invalid | ErrorKind::Corrupt)) {
                far.count(|statistics| statistics.violations += 1);
            }
            far.lives.borrow_mut().retain(|other| !Rc::ptr_eq(other, &live));
        };
        self.handle.spawn(Class::Io, "stream end", outliving).detach();
    }

    /// Says why it is not served, and closes.
    fn refuse(&self, channel: Channel, error: Error) {
        let goodbye = Message::Goodbye(error).encode(VERSION);
        let pause = self.handle.sleep(GOODBYE);
        let parting = async move { drop(first(channel.send(vec![goodbye.head]), pause).await) };
        self.handle.spawn(Class::Io, "stream refused", parting).detach();
    }

    fn count(&self, count: impl FnOnce(&mut Statistics)) {
        let mut statistics = self.statistics.get();
        count(&mut statistics);
        self.statistics.set(statistics);
    }
}
