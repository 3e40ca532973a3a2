//! Who is in charge: one of several managers, by a lease and a term.
//!
//! **Intuition.** The lease makes it *one*: a key in the store of leases goes with the lease of whoever wrote it, and nobody
//! else can write it before. The term makes it *safe*: it is durable and higher than all before it when a manager begins the
//! log of its table under it, and from then on the log takes nothing of anybody else. So a lease that is wrong, because a
//! clock lies or the store of leases was lost, costs time and no data.
//!
//! **Names.** A *candidate* is a manager that would be in charge; one is. Its *hold* is a lease that is kept alive. The
//! lease *ends here* when it has certainly not ended there: earlier, by as much as two clocks may drift apart.
//!
//! **Invariants.** A candidate is in charge until its lease ends here, counted from when it *began* the last call that was
//! answered; the next one begins after it has ended there ([`span`]). Terms only grow. A manager asks
//! [`Candidate::in_charge`] before each decision, and logs it under the term that it gets: so who was asleep decides nothing,
//! and what it decided just before is refused by the log.
//!
//! **Flow.** `wait until the key is free -> lease -> key -> term -> begin the log -> in charge, keep alive -> lost`. All
//! who wait watch the key, so that they hear at once when it goes.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use base::{Error, ErrorKind, Instant, Result, Term};
use runtime::sync::{Event, first};
use runtime::{Class, Handle, Task};
use wire::LeaseStore;
use wire::lease::{Entry, LeaseId, Revision, Snapshot, Swapped, Write};

use crate::owners::OwnersLog;
use crate::owners::tables::Tables;

/// How long a lease is to live; a store that grants no such short ones says how long it does (etcd: 2 s). Another manager is to be in charge within a second after one has died: that is this, up to one
/// more third of it where only the answers are lost, and some round trips for lease, key, term and log. Much shorter, and a
/// pause of a loop or of the network costs a change of managers.
const TTL: Duration = Duration::from_millis(600);
/// It is kept alive so many times while it lives: one call may be lost, and the next one late.
const KEEP_ALIVES: u32 = 3;
/// Clocks run wrong by at most so many percent. Quartz does by a thousandth of one; a virtual machine that is moved, by more.
const DRIFT_PERCENT: u64 = 2;
/// How long to wait before something is tried again that has failed.
const PAUSE: Duration = Duration::from_millis(50);
/// A term that others have meanwhile is followed by the next one, so many times.
const TERMS_TRIED: usize = 8;

/// A peer that is silent for so long is dialled again, where the store of leases is behind a stream: soon enough for a lease
/// to be kept alive over the next connection.
pub const SILENCE: Duration = Duration::from_millis(300);

/// What a candidate is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who it is, for others: the address of a manager.
    pub name: String,
    /// What there is one in charge of.
    pub partition: u32,
}

/// How long a lease of `ttl` certainly lives by the clock of its holder: if that is slow and the store's is fast, too.
pub fn span(ttl: Duration) -> Duration {
    let nanos = u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(nanos / (100 + DRIFT_PERCENT) * (100 - DRIFT_PERCENT))
}

/// The key that whoever is in charge of a partition has: its value is [`Options::name`].
pub fn key(partition: u32) -> String {
    format!("charge/{partition}")
}

/// A manager that would be in charge. Dropped, it lets its lease end.
pub struct Candidate {
    inner: Rc<Inner>,
    _standing: Task<()>,
}

struct Inner {
    handle: Handle,
    store: Rc<dyn LeaseStore>,
    log: Rc<dyn OwnersLog>,
    options: Options,
    charge: RefCell<Option<Charge>>,
    changed: Event,
}

/// What one has who is in charge.
struct Charge {
    term: Term,
    hold: Rc<Hold>,
    /// What the log came to when it began.
    tables: Option<Tables>,
}

/// A lease that is kept alive for as long as this lives.
struct Hold {
    id: LeaseId,
    ttl: Duration,
    /// When the lease ends here.
    until: Cell<Instant>,
    /// It has ended there, or is not wanted any more.
    has_ended: Cell<bool>,
}

impl Candidate {
    /// Stands for being in charge, from now on.
    pub fn stand(handle: &Handle, store: Rc<dyn LeaseStore>, log: Rc<dyn OwnersLog>, options: Options) -> Candidate {
        let inner = Rc::new(Inner {
            handle: handle.clone(),
            store,
            log,
            options,
            charge: RefCell::default(),
            changed: Event::new(),
        });
        let standing = inner.clone();
        let standing = handle.spawn(Class::Io, "stand for charge", async move { standing.run().await });
        Candidate { inner, _standing: standing }
    }

    /// The term under which it is in charge at this moment, by its own clock.
    pub fn in_charge(&self) -> Option<Term> {
        self.inner.charge.borrow().as_ref().filter(|charge| self.inner.is_held(&charge.hold)).map(|charge| charge.term)
    }

    /// Waits until it is in charge; gives the term, and what the log came to when it was begun. Once for each term.
    pub async fn begin(&self) -> (Term, Tables) {
        loop {
            let changed = self.inner.changed.wait();
            let begun = self.inner.charge.borrow_mut().as_mut().and_then(|charge| {
                let is_held = self.inner.is_held(&charge.hold);
                charge.tables.take().filter(|_| is_held).map(|tables| (charge.term, tables))
            });
            match begun {
                Some(begun) => return begun,
                None => changed.await,
            }
        }
    }

    /// Keeps the lease alive now, rather than when it is time to.
    ///
    /// # Errors
    /// Why that cannot be: it is not in charge, as far as it can tell.
    pub async fn renew(&self, term: Term) -> Result<()> {
        let hold =
            self.inner.charge.borrow().as_ref().filter(|charge| charge.term == term).map(|charge| charge.hold.clone());
        let hold = hold.filter(|hold| self.inner.is_held(hold));
        let hold = hold.ok_or_else(|| Error::fenced(format!("this manager is not in charge under {term} any more")))?;
        self.inner.keep_once(&hold).await
    }

    /// Is not in charge under `term` any more, and stands again. The next one has to wait for the lease to end.
    pub fn resign(&self, term: Term) {
        if let Some(charge) = self.inner.charge.borrow().as_ref().filter(|charge| charge.term == term) {
            charge.hold.has_ended.set(true);
        }
    }

    /// Waits until it is not in charge under `term` any more.
    pub async fn end(&self, term: Term) {
        loop {
            let changed = self.inner.changed.wait();
            if self.in_charge() != Some(term) {
                return;
            }
            changed.await;
        }
    }
}

impl Inner {
    async fn run(self: Rc<Self>) {
        let mut was_told = false;
        loop {
            let stood = self.stand().await;
            if self.charge.take().is_some() {
                tracing::warn!(name = self.options.name, "this manager is not in charge any more");
                self.changed.notify();
            }
            let Err(error) = stood else {
                was_told = false;
                continue;
            };
            // What may be for a person to mend is said once; the rest passes.
            if error.kind == ErrorKind::Io && !std::mem::replace(&mut was_told, true) {
                tracing::warn!(name = self.options.name, %error, "this manager does not come into charge; it goes on trying");
            } else {
                tracing::info!(name = self.options.name, %error, "this manager does not come into charge; it tries again");
            }
            self.handle.sleep(PAUSE).await;
        }
    }

    /// Until it was in charge, or somebody else is.
    async fn stand(self: &Rc<Self>) -> Result<()> {
        let key = key(self.options.partition);
        self.wait_until_free(&key).await?;
        let hold = self.hold().await?;
        let keeper = self.clone();
        let kept = hold.clone();
        let mut keeping = self.handle.spawn(Class::Io, "keep a lease alive", async move { keeper.keep(&kept).await });
        let taken = first(self.take_charge(&key, &hold), &mut keeping).await;
        match taken {
            Ok(Ok(Some((term, tables)))) if self.is_held(&hold) => {
                tracing::info!(name = self.options.name, %term, "this manager is in charge");
                *self.charge.borrow_mut() = Some(Charge { term, hold, tables: Some(tables) });
                self.changed.notify();
                keeping.await;
                Ok(())
            }
            Ok(Ok(Some(_))) | Err(()) => Err(Error::retry("its lease has ended before it was in charge")),
            // Somebody else was faster.
            Ok(Ok(None)) => Ok(()),
            Ok(Err(error)) => Err(error),
        }
    }

    /// Takes the key, a term of its own, and the log. Nothing, if somebody else has the key.
    async fn take_charge(&self, key: &str, hold: &Hold) -> Result<Option<(Term, Tables)>> {
        let name = self.options.name.as_bytes();
        let value = name[..name.len().min(base::limits::LEASE_VALUE_MAX)].to_vec();
        let write = Write::Put { value, lease: hold.id };
        match self.store.compare_and_swap(key, Revision(0), write).await? {
            Swapped::Yes(_) => {}
            Swapped::No(entry) if entry.as_ref().is_some_and(|entry| entry.lease == hold.id) => {}
            Swapped::No(_) => return Ok(None),
        }
        for _ in 0..TERMS_TRIED {
            let term = self.next_term().await?;
            match self.log.begin(term).await {
                Ok(tables) => return Ok(Some((term, tables))),
                Err(error) if error.kind == ErrorKind::Fenced => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::retry("others begin later terms all the time"))
    }

    /// A term that nobody has had: above what the store of leases knows, which it may have forgotten, and above the log's.
    async fn next_term(&self) -> Result<Term> {
        let key = format!("term/{}", self.options.partition);
        for _ in 0..TERMS_TRIED {
            let Snapshot { entries, .. } = self.store.watch(&key, Revision(0)).await?;
            let entry = entries.into_iter().find(|entry| entry.key == key);
            let revision = entry.as_ref().map_or(Revision(0), |entry| entry.revision);
            let known = entry.map_or(Ok(0), |entry| read_term(&entry))?;
            let last = known.max(self.log.term().await?.0);
            let next = last.checked_add(1).ok_or_else(|| Error::full("there are no terms left"))?;
            let write = Write::Put { value: next.to_le_bytes().to_vec(), lease: LeaseId(0) };
            if let Swapped::Yes(_) = self.store.compare_and_swap(&key, revision, write).await? {
                return Ok(Term(next));
            }
        }
        Err(Error::retry("others take the next term all the time"))
    }

    async fn wait_until_free(&self, key: &str) -> Result<()> {
        let mut seen = Revision(0);
        loop {
            let Snapshot { revision, entries } = self.store.watch(key, seen).await?;
            if !entries.iter().any(|entry| entry.key == key) {
                return Ok(());
            }
            seen = revision;
        }
    }

    async fn hold(&self) -> Result<Rc<Hold>> {
        let asked = self.handle.now();
        let lease = self.store.grant(TTL.as_millis() as u32).await?;
        let ttl = Duration::from_millis(lease.ttl_ms.into());
        Ok(Rc::new(Hold { id: lease.id, ttl, until: Cell::new(asked + span(ttl)), has_ended: Cell::new(false) }))
    }

    /// Keeps a lease alive until it has ended.
    async fn keep(&self, hold: &Hold) {
        let ended = || self.handle.sleep_until(hold.until.get());
        let mut pause = hold.ttl / KEEP_ALIVES;
        while self.is_held(hold) {
            if first(self.handle.sleep(pause), ended()).await.is_err() {
                return;
            }
            let Ok(kept) = first(self.keep_once(hold), ended()).await else { return };
            pause = if kept.is_ok() { hold.ttl / KEEP_ALIVES } else { PAUSE };
        }
    }

    async fn keep_once(&self, hold: &Hold) -> Result<()> {
        let asked = self.handle.now();
        match self.store.keep_alive(hold.id).await {
            Ok(lease) => {
                let until = asked + span(Duration::from_millis(lease.ttl_ms.into()));
                hold.until.set(until.max(hold.until.get()));
                Ok(())
            }
            Err(error) => {
                hold.has_ended.set(hold.has_ended.get() || error.kind == ErrorKind::NotFound);
                Err(error)
            }
        }
    }

    fn is_held(&self, hold: &Hold) -> bool {
        !hold.has_ended.get() && self.handle.now() < hold.until.get()
    }
}

fn read_term(entry: &Entry) -> Result<u32> {
    let bytes = entry.value[..].try_into().map(u32::from_le_bytes);
    bytes.map_err(|_| Error::corrupt(format!("{} in the store of leases is no term: delete it", entry.key)))
}

#[cfg(test)]
mod tests;
