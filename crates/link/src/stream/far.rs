//! The end of those who are asked: it accepts connections, a bounded number of them, and serves each to its end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::{Error, ErrorKind};
use runtime::{Class, Handle, Listener, Stream, Task};
use wire::frame::{Message, VERSION};

use super::first::first;
use super::live::{GOODBYE, Live};
use super::near::NearEnd;
use super::offer::Offer;
use super::{Options, Services};

/// How long to wait after an accept that failed, for file descriptors to come free.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Connections that others make. It lives until it is stopped.
pub struct FarEnd {
    handle: Handle,
    offer: Rc<Offer>,
    options: Options,
    lives: RefCell<Vec<Rc<Live>>>,
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
        Statistics { open: self.lives.borrow().len(), ..self.statistics.get() }
    }

    /// Accepts nothing more, ends all connections, and returns when what was asked over them is done and their sessions
    /// are closed.
    pub async fn stop(&self) {
        self.listeners.borrow_mut().clear();
        let lives = self.lives.borrow().clone();
        let name = &self.options.name;
        lives.iter().for_each(|live| live.give_up(Error::internal(format!("{name} is stopping"))));
        for live in lives {
            live.wait_until_over().await;
        }
    }

    fn on_connection(self: &Rc<Self>, stream: Stream) {
        let open = self.lives.borrow().len();
        if open >= self.options.streams_max {
            self.count(|statistics| statistics.refused += 1);
            let refused = self.statistics.get().refused;
            if refused.is_power_of_two() {
                tracing::warn!(open, refused, "too many connections of other processes: new ones are closed");
            }
            return self.refuse(stream, open);
        }
        self.count(|statistics| statistics.accepted += 1);
        let live = Live::start(&self.handle, stream, &self.offer, &self.options);
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

    /// Says why there is no room, and closes.
    fn refuse(&self, stream: Stream, open: usize) {
        let error =
            Error::retry(format!("it has {open} connections, as many as it takes: end some, or try again later"));
        let goodbye = Message::Goodbye(error).encode(VERSION);
        let pause = self.handle.sleep(GOODBYE);
        let parting = async move { drop(first(stream.send(vec![goodbye.head]), pause).await) };
        self.handle.spawn(Class::Io, "stream refused", parting).detach();
    }

    fn count(&self, count: impl FnOnce(&mut Statistics)) {
        let mut statistics = self.statistics.get();
        count(&mut statistics);
        self.statistics.set(statistics);
    }
}
