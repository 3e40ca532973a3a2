//! The manager of segments and volumes: decides while it is in charge, logs, and then says what it has decided.
//!
//! **Intuition.** The decisions are a machine without I/O (`policies::ownership`), and whether one may make them is a
//! [`Candidate`]. What is left is an order: *am I in charge, decide, log, say*. Everything that was decided while an append
//! was under way goes with the next one.
//!
//! **Names.** A *seat* is what the term has in which this one is in charge: the machine, and the volume table beside it, on
//! one *desk*. The *outlet* is the way to engines and to
//! the store, and may lose what it is given: it is said again.
//!
//! **Invariants.** Nothing is decided by one who is not in charge by its own clock; nothing is said before it is durable; a
//! decision was answered only if it is durable. After an append that failed nobody knows what is durable: the seat is given
//! up, and whoever is in charge next reads the log. What waits for the log is bounded.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::{Error, Incarnation, Instant, Result, Term};
use policies::ownership::{Change, Manager, Message, Order, Report, Settings, Table};
use runtime::sync::{Event, first};
use runtime::{Class, Handle, Task};
use wire::LocalBoxFuture;

use super::OwnersLog;
use super::tables::{Entry, Tables};
use crate::charge::Candidate;
use crate::table::{self, VolumeTable};

/// After so long everything that was not answered is said again.
const REPEAT: Duration = Duration::from_millis(250);
/// Changes that wait for the log at most before nothing more is decided.
const UNLOGGED_MAX: usize = 8192;

/// The way to engines, to the store, and to other managers.
pub trait Outlet {
    /// Sends an order to whom it is for. It may be lost; its answer is told to [`Keeper::report`].
    fn send(&self, message: Message);

    /// Asks the other managers which of these engines all of them miss, too.
    ///
    /// # Errors
    /// Nobody can be asked.
    fn ask_others(&self, missing: Vec<Incarnation>) -> LocalBoxFuture<'_, Result<Vec<Incarnation>>>;
}

/// What is decided over, in one seat.
pub struct Desk {
    /// Who has which segment.
    pub owners: Manager,
    volumes: VolumeTable,
    /// Changes of volumes that are not durable yet.
    unlogged: Vec<table::Change>,
}

impl Desk {
    /// Which volumes there are, durable or not.
    pub fn volumes(&self) -> &VolumeTable {
        &self.volumes
    }

    /// A change happens that was planned against [`Desk::volumes`] as it is; it is durable together with what the owners
    /// have decided.
    pub fn change(&mut self, change: table::Change) {
        self.volumes.apply(change.clone());
        self.unlogged.push(change);
    }

    /// Volumes of which nothing is left are forgotten, with their last segment.
    fn forget_volumes(&mut self) {
        let forgotten = self.owners.unlogged().iter().filter_map(|change| match change {
            Change::Forget(volume) => Some(table::Change::Forget(*volume)),
            _ => None,
        });
        for change in forgotten.collect::<Vec<_>>() {
            if self.volumes.check(&change).is_ok() {
                self.change(change);
            }
        }
    }

    /// What is to be logged.
    fn unlogged(&self) -> Vec<Entry> {
        let volumes = self.unlogged.iter().cloned().map(Entry::Volumes);
        volumes.chain(self.owners.unlogged().iter().cloned().map(Entry::Owners)).collect()
    }

    fn unlogged_len(&self) -> usize {
        self.unlogged.len() + self.owners.unlogged().len()
    }
}

/// A manager of segments. Dropped, it says nothing more, and its lease ends.
pub struct Keeper {
    inner: Rc<Inner>,
    _keeping: Task<()>,
}

struct Inner {
    handle: Handle,
    candidate: Candidate,
    log: Rc<dyn OwnersLog>,
    outlet: Rc<dyn Outlet>,
    settings: Settings,
    seat: RefCell<Option<Seat>>,
    /// Notified when there is something to log or to say.
    decided: Event,
    /// Notified when something is durable, or the seat was given up.
    settled: Event,
    /// Another one is being asked.
    is_asking: Cell<bool>,
}

struct Seat {
    term: Term,
    desk: Desk,
    /// Changes that are durable.
    logged: u64,
}

impl Keeper {
    /// Keeps the table of `log` whenever `candidate` is in charge.
    pub fn start(
        handle: &Handle,
        candidate: Candidate,
        log: Rc<dyn OwnersLog>,
        outlet: Rc<dyn Outlet>,
        settings: Settings,
    ) -> Keeper {
        let inner = Rc::new(Inner {
            handle: handle.clone(),
            candidate,
            log,
            outlet,
            settings,
            seat: RefCell::default(),
            decided: Event::new(),
            settled: Event::new(),
            is_asking: Cell::default(),
        });
        let keeping = inner.clone();
        let keeping = handle.spawn(Class::Io, "keep the table of owners", async move { keeping.run().await });
        Keeper { inner, _keeping: keeping }
    }

    /// The term under which it decides at this moment.
    pub fn term(&self) -> Option<Term> {
        self.inner.term()
    }

    /// Decides something, and returns when that is durable. The machine is given with the time and a random number.
    ///
    /// # Errors
    /// `Retry`: it is not in charge, or too much waits for the log. `Io`: nobody knows whether it is durable. What the
    /// decision itself refuses is in its value.
    pub async fn decide<T>(&self, decide: impl FnOnce(&mut Manager, Instant, u64) -> T) -> Result<T> {
        self.decide_both(|desk, now, random| decide(&mut desk.owners, now, random)).await
    }

    /// As [`Keeper::decide`], over volumes, too. It waits for all that was decided before, so what was looked at is durable.
    ///
    /// # Errors
    /// Those of [`Keeper::decide`].
    pub async fn decide_both<T>(&self, decide: impl FnOnce(&mut Desk, Instant, u64) -> T) -> Result<T> {
        let (value, term, through) = self.inner.decide(decide)?;
        loop {
            let settled = self.inner.settled.wait();
            match &*self.inner.seat.borrow() {
                Some(seat) if seat.term == term && seat.logged >= through => return Ok(value),
                Some(seat) if seat.term == term => {}
                _ => {
                    return Err(Error::io(
                        "this manager is not in charge any more: ask the next one whether it was done",
                    ));
                }
            }
            settled.await;
        }
    }

    /// Somebody reports something. Where nobody is in charge it is passed over: it is reported again when it is asked for.
    pub fn report(&self, report: &Report) {
        let _ = self.inner.decide(|desk, now, random| desk.owners.on_report(now, random, report));
    }

    /// The connection with an engine was lost: that decides nothing, and is kept in mind by whoever is in charge.
    pub fn suspect(&self, engine: Incarnation) {
        let _ = self.inner.decide(|desk, _, _| desk.owners.on_lost(engine));
    }

    /// Looks at the tables as they were decided, durable or not, if it is in charge.
    pub fn look<T>(&self, look: impl FnOnce(&Table, &VolumeTable) -> T) -> Option<T> {
        self.term()?;
        self.inner.seat.borrow().as_ref().map(|seat| look(seat.desk.owners.table(), &seat.desk.volumes))
    }
}

impl Inner {
    fn term(&self) -> Option<Term> {
        let term = self.seat.borrow().as_ref().map(|seat| seat.term)?;
        (self.candidate.in_charge() == Some(term)).then_some(term)
    }

    fn decide<T>(&self, decide: impl FnOnce(&mut Desk, Instant, u64) -> T) -> Result<(T, Term, u64)> {
        let term = self.term().ok_or_else(|| Error::retry("this manager is not in charge: ask the one who is"))?;
        let mut seat = self.seat.borrow_mut();
        let Some(seat) = seat.as_mut() else { unreachable!("who is in charge has a seat") };
        if seat.desk.unlogged_len() > UNLOGGED_MAX {
            return Err(Error::retry("too many decisions wait for the log: try again later"));
        }
        let value = decide(&mut seat.desk, self.handle.now(), self.handle.random_u64());
        seat.desk.forget_volumes();
        self.decided.notify();
        Ok((value, term, seat.logged + seat.desk.unlogged_len() as u64))
    }

    async fn run(self: Rc<Self>) {
        loop {
            let (term, Tables { owners, volumes }) = self.candidate.begin().await;
            let random = self.handle.random_u64();
            match Manager::take_over(self.settings, owners, term, self.handle.now(), random) {
                Ok(owners) => {
                    let desk = Desk { owners, volumes, unlogged: vec![] };
                    *self.seat.borrow_mut() = Some(Seat { term, desk, logged: 0 });
                }
                Err(error) => tracing::error!(%term, %error, "the table of owners has a later term than its log"),
            }
            if let Err(error) = self.keep(term).await {
                tracing::warn!(%term, %error, "this manager gives up its seat");
            }
            self.seat.take();
            self.settled.notify();
            self.candidate.resign(term);
            self.candidate.end(term).await;
        }
    }

    /// Logs and says what is decided, for as long as it is in charge.
    async fn keep(self: &Rc<Self>, term: Term) -> Result<()> {
        let mut repeat = self.handle.now() + REPEAT;
        while self.term() == Some(term) {
            let decided = self.decided.wait();
            self.log_and_say(term).await?;
            if self.handle.now() >= repeat {
                repeat = self.handle.now() + REPEAT;
                self.decide(|desk, now, random| desk.owners.on_time(now, random))?;
                continue;
            }
            let _ = first(first(decided, self.candidate.end(term)), self.handle.sleep_until(repeat)).await;
        }
        Ok(())
    }

    async fn log_and_say(self: &Rc<Self>, term: Term) -> Result<()> {
        let (changes, of_volumes, is_spent) = {
            let seat = self.seat.borrow();
            let Some(Seat { desk, .. }) = seat.as_ref() else { return Ok(()) };
            (desk.unlogged(), desk.unlogged.len(), desk.owners.is_spent())
        };
        let count = changes.len();
        if base::seeded::is_on("orders-before-durable") {
            let mut seat = self.seat.borrow_mut();
            let early = seat.as_mut().map(|seat| seat.desk.owners.on_logged(0)).unwrap_or_default();
            drop(seat);
            early.into_iter().for_each(|message| self.say(term, message));
        }
        if count > 0 {
            self.log.append(term, changes).await?;
        }
        let messages = {
            let mut seat = self.seat.borrow_mut();
            let Some(seat) = seat.as_mut() else { return Ok(()) };
            seat.logged += count as u64;
            seat.desk.unlogged.drain(..of_volumes);
            seat.desk.owners.on_logged(count - of_volumes)
        };
        if count > 0 {
            self.settled.notify();
        }
        messages.into_iter().for_each(|message| self.say(term, message));
        match is_spent {
            true => Err(Error::retry("its epochs are used up")),
            false => Ok(()),
        }
    }

    fn say(self: &Rc<Self>, term: Term, message: Message) {
        match message.order {
            Order::Doubt { missing } => self.doubt(term, missing),
            _ => self.outlet.send(message),
        }
    }

    /// So many are missing that this may be the one that is cut off: it sees whether its lease can be kept alive, and then
    /// asks the others.
    fn doubt(self: &Rc<Self>, term: Term, missing: Vec<Incarnation>) {
        if self.is_asking.replace(true) {
            return;
        }
        let inner = self.clone();
        let asking = async move {
            let confirmed = match inner.candidate.renew(term).await {
                Ok(()) => inner.outlet.ask_others(missing).await,
                Err(error) => Err(error),
            };
            inner.is_asking.set(false);
            match confirmed {
                Ok(missing) if inner.term() == Some(term) => {
                    let _ = inner.decide(|desk, now, random| desk.owners.on_confirmed(now, random, &missing));
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "many engines are missing, and nobody could be asked whether they are")
                }
            }
        };
        self.handle.spawn(Class::Io, "doubt", asking).detach();
    }
}

#[cfg(test)]
mod tests;
