//! Engines as a manager knows them: where they are, and when it last heard of each.
//!
//! **Intuition.** An engine says to all managers that it lives, several times in each *lease*. The manager in charge
//! declares dead whom nobody heard of for a lease, whose machine says that nobody listens there any more, and whose address
//! another engine has now. A manager that takes over has heard of engines before, and gives all of them a lease from then
//! on: so nobody dies of the death of a manager.
//!
//! An engine that is killed is known to be dead at once: a connection with each is kept, and when it is lost another one is
//! refused.
//!
//! **Invariants** (rule 50 of docs/SAFETY.md). An engine that cannot be reached and did not refuse is a suspicion, until
//! its lease has ended; so is one that was not heard of for half of it. Whether many that are missing are really dead is
//! the machine's to doubt (`policies::ownership`); a manager that began less than a lease ago is no witness of the death of
//! one that it never heard of. What is known is bounded: engines that the table does not have are
//! forgotten.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use base::limits::ENGINES_MAX;
use base::{Error, Incarnation, Instant, Result, Term};
use runtime::sync::first;
use runtime::{Class, Handle, Task};
use wire::registry::check_registration;
use wire::{Observer, Registered, VolumeDescriptor};

use super::{Connect, Way};
use crate::owners::dispatch::Dispatch;
use crate::owners::keeper::Keeper;

/// How many times in a lease a manager looks who is missing.
const LOOKS: u32 = 20;
/// How long to wait before an engine that could not be reached is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// How long an engine may take to begin a round of scrubbing.
const SCRUB_PATIENCE: Duration = Duration::from_secs(2);
/// How long a server is remembered of which nothing is left.
const REMEMBERED: Duration = Duration::from_secs(3600);
/// After so many leases an engine that the table does not have is forgotten.
const FORGOTTEN: u32 = 30;

/// See the module.
pub(super) struct Engines {
    handle: Handle,
    keeper: Rc<Keeper>,
    dispatch: Rc<Dispatch>,
    connect: Connect,
    lease: Duration,
    begun: Instant,
    known: RefCell<BTreeMap<Incarnation, Known>>,
    /// Servers that were heard of lately, whatever became of their engines. Every manager hears of them, so whoever takes
    /// over knows who is missing.
    lately: RefCell<BTreeMap<String, Instant>>,
    /// The term in which this manager is in charge, and since when.
    charge: Cell<(Term, Instant)>,
    this: Weak<Engines>,
}

struct Known {
    server: String,
    address: String,
    way: Way,
    heard: Instant,
    _watch: Task<()>,
}

impl Engines {
    pub(super) fn new(
        handle: &Handle,
        keeper: Rc<Keeper>,
        dispatch: Rc<Dispatch>,
        connect: Connect,
        lease: Duration,
    ) -> Rc<Engines> {
        let engines = Rc::new_cyclic(|this| Engines {
            handle: handle.clone(),
            keeper,
            dispatch,
            connect,
            lease,
            begun: handle.now(),
            known: RefCell::default(),
            lately: RefCell::default(),
            charge: Cell::new((Term(0), handle.now())),
            this: this.clone(),
        });
        let (watched, clock) = (Rc::downgrade(&engines), handle.clone());
        handle.spawn(Class::Io, "watch engines", watch(watched, clock, lease / LOOKS)).detach();
        engines
    }

    /// See [`wire::EngineRegistry::register`].
    pub(super) async fn register(&self, engine: Incarnation, server: &str, address: &str) -> Result<Registered> {
        check_registration(server, address)?;
        let superseded = self.note(engine, server, address)?;
        let is_in_charge = self.keeper.term().is_some();
        if is_in_charge {
            let decided = self.keeper.decide(|manager, now, random| {
                manager.on_registered(now, random, engine, server)?;
                superseded.iter().for_each(|former| manager.on_gone(now, random, *former));
                Ok(())
            });
            // Whoever was in charge a moment ago knows as much as the others.
            let decided = decided.await.map_err(|error| Error::io(error.message))?;
            if let Err(error) = decided {
                self.known.borrow_mut().remove(&engine);
                return Err(error);
            }
        }
        Ok(Registered { lease_ms: self.lease.as_millis() as u32, is_in_charge })
    }

    /// Notes that an engine lives. Those that had its address before it.
    fn note(&self, engine: Incarnation, server: &str, address: &str) -> Result<Vec<Incarnation>> {
        let mut known = self.known.borrow_mut();
        if known.len() >= ENGINES_MAX && !known.contains_key(&engine) {
            return Err(Error::invalid(format!("there are {ENGINES_MAX} engines already, the most that a store has")));
        }
        let heard = self.handle.now();
        self.remember(server, heard);
        match known.get_mut(&engine).filter(|known| known.address == address) {
            Some(known) => known.heard = heard,
            None => {
                let way = (self.connect)(engine, address);
                self.dispatch.add(engine, way.segments.clone());
                let (server, address) = (server.to_owned(), address.to_owned());
                let watching = watch_one(self.this.clone(), self.handle.clone(), engine, way.clone());
                let _watch = self.handle.spawn(Class::Io, "watch an engine", watching);
                known.insert(engine, Known { server, address, way, heard, _watch });
            }
        }
        let former = known.iter().filter(|(other, known)| **other < engine && known.address == address);
        Ok(former.map(|(other, _)| *other).collect())
    }

    /// Those of `engines` that were not heard of for a lease, or refuse connections.
    pub(super) fn missing(&self, engines: Vec<Incarnation>) -> Vec<Incarnation> {
        let known = self.known.borrow();
        let now = self.handle.now();
        let is_there = |known: &Known| now - known.heard < self.lease && !(known.way.is_refused)();
        let hears = |engine: &Incarnation| known.get(engine).is_some_and(is_there);
        engines.into_iter().filter(|engine| !hears(engine)).collect()
    }

    /// See [`wire::EngineRegistry::missing`]: what another manager asks who doubts itself. One who has just begun has heard of
    /// nobody yet, and knows no better who is dead.
    pub(super) fn missing_too(&self, engines: Vec<Incarnation>) -> Result<Vec<Incarnation>> {
        let has_just_begun = self.handle.now() - self.begun < self.lease;
        let is_known = |engine: &Incarnation| self.known.borrow().contains_key(engine);
        if has_just_begun && !engines.iter().all(is_known) {
            return Err(Error::io(
                "this manager has just begun, and may not have heard of all engines: ask another one",
            ));
        }
        Ok(self.missing(engines))
    }

    /// Where an engine listens.
    pub(super) fn address(&self, engine: Incarnation) -> Option<String> {
        self.known.borrow().get(&engine).map(|known| known.address.clone())
    }

    /// How long ago an engine was heard of.
    pub(super) fn silent_for(&self, engine: Incarnation) -> Option<Duration> {
        let now = self.handle.now();
        self.known.borrow().get(&engine).map(|known| now - known.heard)
    }

    fn remember(&self, server: &str, heard: Instant) {
        let mut lately = self.lately.borrow_mut();
        match lately.get_mut(server) {
            Some(known) => *known = heard,
            None => {
                lately.retain(|_, known| heard - *known < REMEMBERED);
                if lately.len() < ENGINES_MAX {
                    lately.insert(server.to_owned(), heard);
                }
            }
        }
    }

    /// Servers that were heard of in the last hour, and how long ago.
    pub(super) fn lately(&self) -> Vec<(String, Duration)> {
        let now = self.handle.now();
        let lately = self.lately.borrow();
        let silent = lately.iter().map(|(server, heard)| (server.clone(), now - *heard));
        silent.filter(|(_, silent)| *silent < REMEMBERED).collect()
    }

    /// To ask an engine how it stands, if it is in touch.
    pub(super) fn observer(&self, engine: Incarnation) -> Option<Rc<dyn Observer>> {
        let is_missing = !self.missing(vec![engine]).is_empty();
        self.known.borrow().get(&engine).filter(|_| !is_missing).map(|known| known.way.observer.clone())
    }

    /// Tells every engine what a volume was promised.
    pub(super) fn set_levels(&self, volume: &VolumeDescriptor) {
        let ways: Vec<Way> = self.known.borrow().values().map(|known| known.way.clone()).collect();
        ways.iter().for_each(|way| way.volumes.set_levels(volume));
    }

    /// Has all of `engines` begin to read every copy of everything, at the same time.
    ///
    /// # Errors
    /// The first one that an engine gives; `Retry` if one is not in touch, or does not answer. The others begin.
    pub(super) async fn begin_scrub(&self, engines: Vec<Incarnation>) -> Result<()> {
        let missing = self.missing(engines.clone());
        let begin = |engine: &Incarnation| {
            let way = self.known.borrow().get(engine).filter(|_| !missing.contains(engine))?.way.clone();
            let patience = self.handle.sleep(SCRUB_PATIENCE);
            let begun = async move { first(way.volumes.begin_scrub(), patience).await };
            Some(self.handle.spawn(Class::Io, "begin to scrub", begun))
        };
        let tasks: Vec<_> = engines.iter().map(|engine| (*engine, begin(engine))).collect();
        let mut outcome = Ok(());
        for (engine, task) in tasks {
            let silent = || {
                let server = self.known.borrow().get(&engine).map_or(engine.to_string(), |known| known.server.clone());
                Err(Error::retry(format!(
                    "{server} does not answer, the others begin: see `levee status`, and ask again"
                )))
            };
            let begun = match task {
                Some(task) => task.await.unwrap_or_else(|()| silent()),
                None => silent(),
            };
            outcome = outcome.and(begun);
        }
        outcome
    }

    /// Declares dead who is, if this manager is in charge. Leases of many end one after the other: so those are suspected
    /// whose lease is half over, and whoever misses many knows that before the first one is dead.
    async fn look(&self) {
        let silent = self.silent_since(self.lease / 2);
        silent.into_iter().for_each(|engine| self.keeper.suspect(engine));
        let gone = self.gone();
        if gone.is_empty() {
            return;
        }
        let declaring = self
            .keeper
            .decide(|manager, now, random| gone.iter().for_each(|engine| manager.on_gone(now, random, *engine)));
        // Whoever is in charge next sees it, too.
        drop(declaring.await);
    }

    /// Since when this manager is in charge, if it is.
    fn in_charge_since(&self) -> Option<Instant> {
        let term = self.keeper.term()?;
        if self.charge.get().0 != term {
            self.charge.set((term, self.handle.now()));
        }
        Some(self.charge.get().1)
    }

    /// Who was not heard of for so long while this manager was in charge.
    fn silent_since(&self, span: Duration) -> Vec<Incarnation> {
        let Some(since) = self.in_charge_since() else { return vec![] };
        let now = self.handle.now();
        let known = self.known.borrow();
        let is_silent =
            |engine: &Incarnation| now - known.get(engine).map_or(since, |known| known.heard.max(since)) >= span;
        let living = self.keeper.look(|owners, _| owners.living().map(|(engine, _)| engine).collect::<Vec<_>>());
        living.unwrap_or_default().into_iter().filter(is_silent).collect()
    }

    /// Who is dead, as far as this manager can tell; nobody, while it is not in charge.
    fn gone(&self) -> Vec<Incarnation> {
        let Some(since) = self.in_charge_since() else { return vec![] };
        let now = self.handle.now();
        let living: Vec<Incarnation> =
            self.keeper.look(|owners, _| owners.living().map(|(engine, _)| engine).collect()).unwrap_or_default();
        let mut known = self.known.borrow_mut();
        // The table has them in their order.
        known
            .retain(|engine, known| living.binary_search(engine).is_ok() || now - known.heard < self.lease * FORGOTTEN);
        let is_gone = |engine: &Incarnation| match known.get(engine) {
            Some(known) => now - known.heard.max(since) >= self.lease || (known.way.is_refused)(),
            None => now - since >= self.lease,
        };
        let gone: Vec<Incarnation> = living.into_iter().filter(is_gone).collect();
        for engine in &gone {
            let server = known.get(engine).map_or("", |known| &known.server);
            tracing::info!(%engine, server, "an engine seems dead");
        }
        gone
    }
}

/// Keeps a connection with an engine. When it is lost, that is a suspicion; when none can be made, somebody may be dead.
async fn watch_one(engines: Weak<Engines>, handle: Handle, engine: Incarnation, way: Way) {
    loop {
        let lost = (way.lost)().await;
        let Some(engines) = engines.upgrade() else { return };
        engines.keeper.suspect(engine);
        if lost.is_ok() {
            // It was there until now: whether its machine refuses another connection tells what it is.
            continue;
        }
        engines.look().await;
        drop(engines);
        handle.sleep(TRY_AGAIN).await;
    }
}

async fn watch(engines: Weak<Engines>, handle: Handle, pause: Duration) {
    while let Some(engines) = engines.upgrade() {
        engines.look().await;
        drop(engines);
        handle.sleep(pause).await;
    }
}
