//! A store of leases in one process, in memory.
//!
//! **Intuition.** Who is gone need not say so: a lease that nobody keeps alive ends by the clock here, and what was bound to
//! it goes with it. Nothing of that needs a task of its own: whoever asks first lets end what has ended, and whoever
//! watches wakes up when the next one may.
//!
//! **Names.** A *life* of the store is from its start to its end; it remembers nothing of the lives before. So in the
//! beginning it is *quiet* for as long as any lease lives: whoever held one has let it go by then.
//!
//! **Invariants.** In no two lives is a lease or a revision the same, but by a chance of one in 2^61: they count up from a
//! random number. Leases, keys and those who watch are bounded; an entry of a lease that has ended is seen by nobody.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use base::limits::LEASES_MAX;
use base::{Error, Instant, Result};
use runtime::Handle;
use runtime::sync::{Event, first};
use wire::lease::{Entry, Lease, LeaseId, Revision, Snapshot, Swapped, Write, check_key, check_write};
use wire::{LeaseStore, LocalBoxFuture};

/// Those who may watch at a time.
const WATCHES_MAX: usize = 1024;
/// Shortest life that is granted.
const TTL_MIN_MS: u32 = 100;

/// Settings of a store of leases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The longest time to live that is granted, in milliseconds; so long the store is quiet when it begins.
    pub ttl_ms_max: u32,
    /// A watch returns after so long, whether or not anything has happened.
    pub watch: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options { ttl_ms_max: 2_000, watch: Duration::from_secs(1) }
    }
}

/// See the module.
pub struct Leases {
    handle: Handle,
    options: Options,
    begun: Instant,
    state: RefCell<State>,
    changed: Event,
    watching: Cell<usize>,
}

struct State {
    /// The last write.
    revision: Revision,
    last_lease: LeaseId,
    /// The last time that a key went.
    deleted: Revision,
    entries: BTreeMap<String, Entry>,
    leases: BTreeMap<LeaseId, Held>,
}

#[derive(Clone, Copy)]
struct Held {
    ttl_ms: u32,
    ends: Instant,
}

impl Leases {
    /// A store that begins now, and is quiet at first.
    pub fn new(handle: &Handle, options: Options) -> Rc<Leases> {
        let any = || handle.random_u64() >> 2;
        let (revision, last_lease) = (Revision(any()), LeaseId(any()));
        let state =
            State { revision, last_lease, deleted: revision, entries: BTreeMap::new(), leases: BTreeMap::new() };
        Rc::new(Leases {
            handle: handle.clone(),
            options,
            begun: handle.now(),
            state: RefCell::new(state),
            changed: Event::new(),
            watching: Cell::new(0),
        })
    }

    /// Lets end what has ended.
    ///
    /// # Errors
    /// `Retry`: leases of the life before may not have ended.
    fn begin(&self) -> Result<()> {
        let (now, quiet) = (self.handle.now(), Duration::from_millis(self.options.ttl_ms_max.into()));
        if now.since(self.begun) < quiet {
            let left = quiet - now.since(self.begun);
            return Err(Error::retry(format!(
                "the store of leases has just begun, and leases from before may live: try again in {left:?}"
            )));
        }
        if self.state.borrow_mut().expire(now) {
            self.changed.notify();
        }
        Ok(())
    }

    fn grant_one(&self, ttl_ms: u32) -> Result<Lease> {
        self.begin()?;
        let mut state = self.state.borrow_mut();
        if state.leases.len() >= LEASES_MAX {
            return Err(Error::full(format!("there are {LEASES_MAX} leases, as many as can be: let some end")));
        }
        let ttl_ms = ttl_ms.clamp(TTL_MIN_MS, self.options.ttl_ms_max.max(TTL_MIN_MS));
        state.last_lease.0 += 1;
        let id = state.last_lease;
        state.leases.insert(id, Held { ttl_ms, ends: self.ends(ttl_ms) });
        Ok(Lease { id, ttl_ms })
    }

    fn keep_one_alive(&self, id: LeaseId) -> Result<Lease> {
        self.begin()?;
        let mut state = self.state.borrow_mut();
        let held = state.leases.get_mut(&id).ok_or_else(|| ended(id))?;
        held.ends = self.ends(held.ttl_ms);
        Ok(Lease { id, ttl_ms: held.ttl_ms })
    }

    fn swap(&self, key: &str, expected: Revision, write: Write) -> Result<Swapped> {
        check_key(key)?;
        check_write(&write)?;
        self.begin()?;
        let swapped = self.state.borrow_mut().swap(key, expected, write)?;
        if matches!(swapped, Swapped::Yes(_)) {
            self.changed.notify();
        }
        Ok(swapped)
    }

    async fn wait_for(&self, prefix: &str, seen: Revision) -> Result<Snapshot> {
        check_key(prefix)?;
        if self.watching.get() >= WATCHES_MAX {
            return Err(Error::retry(format!("{WATCHES_MAX} watch already: try again later")));
        }
        let _watch = Watch::new(&self.watching);
        let patience = self.handle.now() + self.options.watch;
        loop {
            self.begin()?;
            let changed = self.changed.wait();
            let wake = {
                let state = self.state.borrow();
                if state.has_changed(prefix, seen) || self.handle.now() >= patience {
                    return Ok(state.snapshot(prefix));
                }
                state.next_end().map_or(patience, |end| end.min(patience))
            };
            let _ = first(changed, self.handle.sleep_until(wake)).await;
        }
    }

    fn ends(&self, ttl_ms: u32) -> Instant {
        self.handle.now() + Duration::from_millis(ttl_ms.into())
    }
}

impl State {
    /// Whether anything has gone.
    fn expire(&mut self, now: Instant) -> bool {
        let before = (self.leases.len(), self.entries.len());
        self.leases.retain(|_, held| held.ends > now);
        if self.leases.len() < before.0 {
            let leases = &self.leases;
            self.entries.retain(|_, entry| entry.lease == LeaseId(0) || leases.contains_key(&entry.lease));
        }
        let has_gone = self.entries.len() < before.1;
        if has_gone {
            self.revision.0 += 1;
            self.deleted = self.revision;
        }
        has_gone
    }

    fn swap(&mut self, key: &str, expected: Revision, write: Write) -> Result<Swapped> {
        let entry = self.entries.get(key);
        if entry.map_or(Revision(0), |entry| entry.revision) != expected {
            return Ok(Swapped::No(entry.cloned()));
        }
        let is_new = entry.is_none();
        let revision = Revision(self.revision.0 + 1);
        match write {
            Write::Put { value, lease } => {
                if lease != LeaseId(0) && !self.leases.contains_key(&lease) {
                    return Err(ended(lease));
                }
                if is_new && self.entries.len() >= LEASES_MAX {
                    return Err(Error::full(format!("there are {LEASES_MAX} keys, as many as can be: delete some")));
                }
                self.entries.insert(key.to_owned(), Entry { key: key.to_owned(), value, revision, lease });
            }
            Write::Delete => {
                self.entries.remove(key);
                self.deleted = revision;
            }
        }
        self.revision = revision;
        Ok(Swapped::Yes(revision))
    }

    fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a Entry> {
        let from = self.entries.range(prefix.to_owned()..);
        from.take_while(move |(key, _)| key.starts_with(prefix)).map(|(_, entry)| entry)
    }

    /// Whether something under `prefix` may be other than at `seen`; one of another life is none of this one.
    fn has_changed(&self, prefix: &str, seen: Revision) -> bool {
        let is_of_this_life = seen <= self.revision && seen != Revision(0);
        !is_of_this_life || self.deleted > seen || self.under(prefix).any(|entry| entry.revision > seen)
    }

    fn snapshot(&self, prefix: &str) -> Snapshot {
        Snapshot { revision: self.revision, entries: self.under(prefix).cloned().collect() }
    }

    /// When the next lease ends.
    fn next_end(&self) -> Option<Instant> {
        self.leases.values().map(|held| held.ends).min()
    }
}

/// One who watches; counted for as long as it does.
struct Watch<'a>(&'a Cell<usize>);

impl Watch<'_> {
    fn new(count: &Cell<usize>) -> Watch<'_> {
        count.set(count.get() + 1);
        Watch(count)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

fn ended(lease: LeaseId) -> Error {
    Error::not_found(format!("lease {:x} has ended: ask for another one", lease.0))
}

impl LeaseStore for Leases {
    fn grant(&self, ttl_ms: u32) -> LocalBoxFuture<'_, Result<Lease>> {
        Box::pin(async move { self.grant_one(ttl_ms) })
    }

    fn keep_alive(&self, lease: LeaseId) -> LocalBoxFuture<'_, Result<Lease>> {
        Box::pin(async move { self.keep_one_alive(lease) })
    }

    fn compare_and_swap<'a>(
        &'a self,
        key: &'a str,
        expected: Revision,
        write: Write,
    ) -> LocalBoxFuture<'a, Result<Swapped>> {
        Box::pin(async move { self.swap(key, expected, write) })
    }

    fn watch<'a>(&'a self, prefix: &'a str, seen: Revision) -> LocalBoxFuture<'a, Result<Snapshot>> {
        Box::pin(self.wait_for(prefix, seen))
    }
}

#[cfg(test)]
pub(crate) mod tests;
