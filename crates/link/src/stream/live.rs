//! One connection from its first byte to its last, as either end has it.
//!
//! Three tasks work on it: one receives, and starts a task for each request of the peer; one sends; one looks at the
//! time. The first that finds something wrong gives the connection up, with the one reason that everybody hears: those
//! who wait for a reply, the log, and the peer if it can still be told. Then the sessions of the peer are closed.

use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::rc::Rc;
use std::time::Duration;

use base::levels::Level;
use base::{Error, ErrorKind, Map, Passage, Result};
use runtime::sync::{Budget, Event, Permit, Sender, oneshot};
use runtime::{Class, Handle, Work};
use wire::connection::{self, Connection};
use wire::frame::{self, Marks, Request, Value};
use wire::{LinkLost, Reply};

use super::Options;
use super::first::first;
use super::intake::{End, Intake};
use super::offer::Offer;
use super::outbox::Outbox;
use super::serve::Duties;
use crate::tls::{Channel, Role};

/// How long what the peer has said before it went may take to be read.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How long the peer has to take the reason for an end.
pub(super) const GOODBYE: Duration = Duration::from_millis(500);

/// See the module.
pub(super) struct Live {
    pub(super) handle: Handle,
    /// What this end does for the peer.
    duties: Duties,
    /// What the peer may have in flight here, and this end there at most.
    requests_max: u32,
    bytes_max: u64,
    stream: Channel,
    connection: Rc<RefCell<Connection>>,
    outbox: Outbox,
    /// What this end has asked.
    asked: RefCell<Map<u64, Asked>>,
    /// What the peer has said of itself.
    peer: OnceCell<Peer>,
    end: RefCell<Option<Error>>,
    /// Notified when the peer has greeted, and at the end.
    changed: Event,
    /// Requests of clients that wait to be sent to the peer.
    waiting: Cell<u32>,
    /// Requests of the peer that are being done.
    running: Cell<usize>,
    is_over: Cell<bool>,
    over: Event,
}

struct Peer {
    name: String,
    services: frame::Services,
    /// Those who want credit: who was first is sent first.
    line: Budget,
    /// The credit of this end.
    requests: Budget,
    bytes: Budget,
}

/// A request of a client that waits to be sent. What merges is none.
struct Waits<'a>(Option<&'a Cell<u32>>);

impl<'a> Waits<'a> {
    fn new(waiting: &'a Cell<u32>, request: &Request) -> Self {
        let counts = request.level().is_some_and(|level| level != Level::Merge);
        let waiting = counts.then_some(waiting);
        if let Some(waiting) = waiting {
            waiting.set(waiting.get() + 1);
        }
        Waits(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.0 {
            waiting.set(waiting.get() - 1);
        }
    }
}

struct Asked {
    sender: Sender<Result<Reply<Value>, LinkLost>>,
    _credit: (Permit, Permit),
}

impl Live {
    /// Begins to talk over `stream`. `peer` is what is at its other end, where that is known.
    pub(super) fn start(
        handle: &Handle,
        stream: Channel,
        peer: Option<Role>,
        offer: &Rc<Offer>,
        options: &Options,
    ) -> Rc<Live> {
        let options = offer.get(|services| options.of_connection(services, peer));
        let (requests_max, bytes_max) = (options.requests_max, options.bytes_max);
        let (connection, hello) = Connection::new(options, handle.now());
        let live = Rc::new(Live {
            handle: handle.clone(),
            duties: Duties::new(offer.clone()),
            requests_max,
            bytes_max,
            stream,
            connection: Rc::new(RefCell::new(connection)),
            outbox: Outbox::default(),
            asked: RefCell::default(),
            peer: OnceCell::new(),
            end: RefCell::default(),
            changed: Event::new(),
            waiting: Cell::new(0),
            running: Cell::new(0),
            is_over: Cell::new(false),
            over: Event::new(),
        });
        live.outbox.put(hello, None);
        handle.spawn(Class::Io, "stream", live.clone().run()).detach();
        live
    }

    fn connection(&self) -> RefMut<'_, Connection> {
        self.connection.borrow_mut()
    }

    /// Why it has ended, if it has.
    pub(super) fn end(&self) -> Option<Error> {
        self.end.borrow().clone()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// Waits until nothing of it is left: the peer's requests are done, and its sessions closed.
    pub(super) async fn wait_until_over(&self) {
        let over = self.over.wait();
        if !self.is_over.get() {
            over.await;
        }
    }

    /// Waits until the peer has said its hello.
    ///
    /// # Errors
    /// Why the connection has ended before.
    pub(super) async fn greeted(&self) -> Result<()> {
        loop {
            let changed = self.changed.wait();
            if let Some(error) = self.end() {
                return Err(error);
            }
            if self.peer.get().is_some() {
                return Ok(());
            }
            changed.await;
        }
    }

    /// What the peer does for this end.
    pub(super) fn offered(&self) -> frame::Services {
        self.peer.get().map(|peer| peer.services).unwrap_or_default()
    }

    /// Asks the peer, which has greeted, and waits for its reply. Nobody has to wait: what was sent is done all the same.
    ///
    /// # Errors
    /// The connection ended with the request in flight, or before it was sent.
    pub(super) async fn ask(&self, request: Request) -> Result<Reply<Value>, LinkLost> {
        let peer = self.peer.get().expect("a peer is asked when it has greeted");
        let refused = |error| Ok(Reply { epoch: request.epoch(), result: Err(error), passage: Passage::default() });
        if let Err(error) = request.check() {
            return refused(error);
        }
        if !peer.services.have(request.kind()) {
            let (name, kind) = (&peer.name, request.kind().name());
            return refused(Error::invalid(format!(
                "{name} does no {kind}: its address is that of another service, or it is older and has to be upgraded"
            )));
        }
        let waits = Waits::new(&self.waiting, &request);
        // Whoever has all that it takes goes ahead before the next one gets anything.
        let turn = peer.line.take(1).await;
        let credit = (peer.requests.take(1).await, peer.bytes.take(request.bytes()).await);
        if let Some(error) = self.end() {
            return Err(LinkLost { message: error.message });
        }
        let (sender, receiver) = oneshot();
        self.handle.spend(Work::Crossing);
        drop(waits);
        let marks = Marks { trace: self.handle.random_u64(), queue_depth: self.waiting.get(), ..Marks::default() };
        let (sequence, frame) = self.connection().ask(self.handle.now(), request, marks);
        self.asked.borrow_mut().insert(sequence, Asked { sender, _credit: credit });
        self.outbox.put(frame, None);
        drop(turn);
        receiver.await.unwrap_or_else(|| Err(LinkLost { message: "the loop of the connection has ended".into() }))
    }

    /// Answers a request of the peer that took so many bytes of its credit, if it still listens.
    fn answer(&self, sequence: u64, credit: u64, reply: Reply<Value>) {
        if !self.has_ended() {
            let frame = self.connection().answer(self.handle.now(), sequence, reply);
            self.outbox.put(frame, Some(credit));
        }
    }

    /// Gives the connection up; the first reason counts. Whoever waits for a reply hears it.
    pub(super) fn give_up(&self, error: Error) {
        if self.has_ended() {
            return;
        }
        *self.end.borrow_mut() = Some(error.clone());
        self.duties.end();
        let asked = std::mem::take(&mut *self.asked.borrow_mut());
        for (_, Asked { sender, .. }) in asked {
            sender.send(Err(LinkLost { message: error.message.clone() }));
        }
        self.changed.notify();
    }

    async fn run(self: Rc<Self>) {
        let live = self.clone();
        let sending = self.handle.spawn_ahead("stream send", async move {
            let on_sending = |is_sending| live.connection().on_sending(live.handle.now(), is_sending);
            let error = live.outbox.send(&live.stream, on_sending).await;
            // A peer that has gone may have said why, and whoever receives may be about to read it: that says more.
            let _ = first(live.ended(), live.handle.sleep(LAST_WORDS)).await;
            live.give_up(live.lost(&error));
        });
        let live = self.clone();
        let watching = self.handle.spawn(Class::Io, "stream time", async move { live.give_up(live.watch().await) });
        let live = self.clone();
        let receiving =
            self.handle.spawn(Class::Io, "stream receive", async move { live.give_up(live.receive().await) });
        self.ended().await;
        drop((watching, receiving));
        if let Some(error) = self.end() {
            tracing::info!(peer = self.connection().peer_name(), %error, "a connection between processes has ended");
            self.part(&error).await;
        }
        drop(sending);
        self.outbox.close();
        self.stream.shutdown();
        self.duties.close_sessions(&self.handle).await;
        self.idle().await;
        self.is_over.set(true);
        self.over.notify();
    }

    /// Waits for its end.
    pub(super) async fn ended(&self) {
        loop {
            let changed = self.changed.wait();
            if self.has_ended() {
                return;
            }
            changed.await;
        }
    }

    /// Receives until that is over, and says why it is.
    async fn receive(self: &Rc<Self>) -> Error {
        let mut intake = Intake::new(&self.handle, self.stream.clone(), self.connection.clone());
        loop {
            self.catch_up().await;
            let event = match intake.next().await {
                Ok(event) => event,
                Err(End::Stream(error)) => return self.lost(&error),
                Err(End::Refused(error)) => {
                    let from = self.connection().peer_name().to_owned();
                    return error.context(format!("a connection with {from} is given up"));
                }
            };
            // Another task may have given it up meanwhile.
            if let Some(error) = self.end() {
                return error;
            }
            match event {
                connection::Event::Greeted(hello) => {
                    // No more than this end has memory for, however much is granted.
                    let requests = Budget::new(hello.requests_max.min(self.requests_max).into());
                    let bytes = Budget::new(hello.bytes_max.min(self.bytes_max));
                    let line = Budget::new(1);
                    let peer = Peer { name: hello.name, services: hello.services, line, requests, bytes };
                    assert!(self.peer.set(peer).is_ok(), "there is one hello");
                    self.changed.notify();
                }
                connection::Event::Request { sequence, marks, request } => self.begin(sequence, marks, request),
                connection::Event::Reply { sequence, reply } => {
                    let asked = self.asked.borrow_mut().remove(&sequence);
                    let Asked { sender, .. } = asked.expect("what is answered was asked");
                    sender.send(Ok(reply));
                }
                connection::Event::Goodbye(error) => {
                    let from = self.connection().peer_name().to_owned();
                    // What is no fault of the stream is none to tell it of.
                    return Error::io(format!("{from} has ended the connection: {error}"));
                }
            }
        }
    }

    /// Receives nothing while the peer does not take what waits for it.
    async fn catch_up(&self) {
        if self.outbox.is_behind(self.requests_max, self.bytes_max) {
            self.connection().on_listening(self.handle.now(), false);
            self.outbox.catch_up(self.requests_max, self.bytes_max).await;
            self.connection().on_listening(self.handle.now(), true);
        }
    }

    /// Does what the peer asks, in a task of its own.
    fn begin(self: &Rc<Self>, sequence: u64, marks: Marks, request: Request) {
        self.handle.spend(Work::Crossing);
        self.running.set(self.running.get() + 1);
        let (live, credit) = (self.clone(), request.bytes());
        let work = async move {
            tracing::trace!(target: "levee::stage", trace = marks.trace, kind = request.kind().name(), "taken");
            let reply = live.duties.serve(request).await;
            live.answer(sequence, credit, reply);
            live.running.set(live.running.get() - 1);
            if live.running.get() == 0 && live.has_ended() {
                live.changed.notify();
            }
        };
        self.handle.spawn(Class::Io, "request of a stream", work).detach();
    }

    /// Looks at the time until it is too late.
    async fn watch(&self) -> Error {
        loop {
            let changed = self.changed.wait();
            let deadline = self.connection().next_deadline();
            // The hello of the peer may bring the deadline forward.
            let _ = first(self.handle.sleep_until(deadline), changed).await;
            let due = self.connection().on_time(self.handle.now());
            match due {
                Ok(frame) => frame.into_iter().for_each(|frame| self.outbox.put(frame, None)),
                Err(error) => return error,
            }
        }
    }

    /// Tells the peer why, if what it has said is the reason.
    async fn part(&self, error: &Error) {
        if error.kind == ErrorKind::Io {
            return;
        }
        let frame = self.connection().goodbye(self.handle.now(), error);
        self.outbox.put(frame, None);
        let _ = first(self.outbox.drained(), self.handle.sleep(GOODBYE)).await;
    }

    /// Waits until what the peer has asked is done.
    async fn idle(&self) {
        loop {
            let changed = self.changed.wait();
            if self.running.get() == 0 {
                return;
            }
            changed.await;
        }
    }

    fn lost(&self, error: &std::io::Error) -> Error {
        let name = self.connection().peer_name().to_owned();
        match error.kind() {
            std::io::ErrorKind::UnexpectedEof => Error::io(format!("the connection with {name} has ended")),
            _ => Error::io(format!("the connection with {name} was lost: {error}")),
        }
    }
}
