//! Tenants on the loops of one agent: [`policies::tenants`] decides, this keeps its clock, its waiting requests, and what
//! loops have to know of each other.
//!
//! **Who is a tenant.** An owner with its volumes on this agent; a volume without an owner is one by itself. Each loop has a
//! scheduler of its own for the connections that it serves, since what they compete for is its time. What belongs to a
//! tenant wherever its connections are, is in the [`Roster`] that loops share: its volumes with their levels, and what
//! part of its base each loop gives it. A loop looks there some times a second while it has something to do.
//!
//! **Levels.** A request first passes the levels of its volume and its tenant ([`policies::levels`]), and is marked as
//! base or burst by them: what is beyond the burst level is none of the loop's business yet. The account of a volume is
//! in the roster, too, behind a lock of its own; each loop has a line for it.
//!
//! **Flow.** A request passes ([`Seat::pass`]) before it takes its turn in the order of writes. If it may start at once that
//! costs some comparisons; while only one tenant has connections on the loop nothing is decided at all. Who waits leaves a
//! sender in line; one task hands out what may start, some tens of microseconds' worth at a time, and lets everything
//! else that is ready run in between: so who is within his base comes before what others burst, though the loop has but
//! one line for its tasks. It ends when nobody waits.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::levels::{Level, Levels, Rate};
use base::{Instant, Map, Passage, Stage, VolumeId};
use policies::admission::ClientId;
use policies::levels::{Account, Allowance, DEPTH, Enforcer, INTERVAL, LevelsSettings, Lines, Purse};
use policies::tenants::{
    Cost, Frontend, Operation, Promise, Scheduler, Shares, TenantStatus, TenantsSettings, VolumeNumber,
};
use policies::waits::{Reason, Waits};
use policies::{levels, tenants};
use runtime::sync::{Receiver, Sender, oneshot};
use runtime::{Class, Handle, Lock};
use wire::VolumeDescriptor;

use crate::statistics::Counters;

/// Processor time, by the profile, of what is handed out before everything else that is ready runs, in nanoseconds.
const HANDED_OUT_NS: f64 = 30_000.0;
/// How often a loop that has something to do looks at the roster.
const EXCHANGE_EVERY: Duration = Duration::from_millis(10);
/// How often it says how busy it was.
const BUSY_EVERY: Duration = Duration::from_millis(50);
/// Requests whose levels have something again that are let go before everything else that is ready runs.
const LET_GO: usize = 64;
/// Accounts that are kept of volumes and tenants without connections.
const REMEMBERED: usize = 1024;

/// A tenant, as loops and statistics call it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TenantKey(pub u64);

impl TenantKey {
    /// Whose a volume is.
    pub fn of(volume: &VolumeDescriptor) -> TenantKey {
        match volume.owner.is_empty() {
            true => TenantKey(volume.id.0 | 1 << 63),
            false => TenantKey(ClientId::of(&volume.owner).0 & !(1 << 63)),
        }
    }
}

/// What a tenant did on an agent, on all its loops, while it had connections there.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TenantStatistics {
    /// The owner, or the volume that has none.
    pub name: String,
    /// Its volumes, by name.
    pub volumes: Vec<String>,
    /// What they were promised, together.
    pub base: Rate,
    /// The most that it gets, all its volumes together; none: no bound.
    pub burst: Rate,
    /// Requests that were started.
    pub started: u64,
    /// Requests that were started within the base levels of their volumes, and beyond; of volumes that have levels.
    pub marked_base: u64,
    /// See `marked_base`.
    pub marked_burst: u64,
    /// What requests waited for that a level held back, of their volume or tenant.
    pub waits: Waits,
    /// Requests that had to wait because nothing was left for them.
    pub throttled: u64,
    /// Requests that were paid for by what others had beyond their base.
    pub reclaimed: u64,
    /// Requests that were paid for from the reserve.
    pub from_reserve: u64,
    /// Requests that wait now.
    pub waiting: u64,
    /// How long requests waited, in nanoseconds: all together.
    pub waited_ns: u64,
    /// And the longest.
    pub waited_max_ns: u64,
    /// Windows in which it had more than its base, on any loop.
    pub burst_windows: u64,
    /// The part of what it was promised that it has: below 1 where promises exceed what there is.
    pub scaled: f64,
}

impl TenantStatistics {
    /// Adds what one loop says.
    pub(crate) fn add(&mut self, on_loop: &TenantOnLoop) {
        let TenantOnLoop { share: status, marked, waits, .. } = on_loop;
        self.marked_base += marked[0];
        self.marked_burst += marked[1];
        self.waits.add(waits);
        self.started += status.started;
        self.throttled += status.throttled;
        self.reclaimed += status.reclaimed;
        self.from_reserve += status.from_reserve;
        self.waiting += status.waiting as u64;
        self.waited_ns += status.waited_ns;
        self.waited_max_ns = self.waited_max_ns.max(status.waited_max_ns);
        self.burst_windows += status.burst_windows;
        self.scaled = if self.scaled == 0.0 { status.scaled } else { self.scaled.min(status.scaled) };
    }
}

/// How a tenant stands on one loop.
pub(crate) struct TenantOnLoop {
    key: TenantKey,
    share: TenantStatus,
    marked: [u64; 2],
    waits: Waits,
}

impl TenantOnLoop {
    pub(crate) fn key(&self) -> TenantKey {
        self.key
    }
}

/// What the loops of an agent know of its tenants together. Clones are the same.
#[derive(Clone)]
pub(crate) struct Roster {
    books: Lock<Books>,
    /// Counts changes of what was promised.
    revision: Arc<AtomicU64>,
    loops: usize,
    levels: LevelsSettings,
}

/// What holds a volume: its account, and that of its tenant if it has one. Clones are the same.
#[derive(Clone)]
struct Bounds {
    account: Lock<Account>,
    tenant: Option<Lock<Allowance>>,
}

impl Bounds {
    fn with<R>(&self, handle: &Handle, act: impl FnOnce(&mut Account, Option<&mut Allowance>) -> R) -> R {
        self.account.with(handle, |account| match &self.tenant {
            Some(tenant) => tenant.with(handle, |tenant| act(account, Some(tenant))),
            None => act(account, None),
        })
    }
}

struct Books {
    tenants: Map<TenantKey, Entry>,
    shares: Shares,
    /// Accounts of volumes and tenants without connections, those that left last at the end: who comes back finds his debts
    /// and his credits.
    left: VecDeque<(TenantKey, Option<VolumeId>, Bound)>,
}

/// What was left behind.
enum Bound {
    Volume(Lock<Account>),
    Tenant(Lock<Allowance>),
}

impl Books {
    fn remember(&mut self, key: TenantKey, volume: Option<VolumeId>, bound: Bound) {
        if self.left.len() >= REMEMBERED {
            self.left.pop_front();
        }
        self.left.push_back((key, volume, bound));
    }

    fn recall(&mut self, key: TenantKey, volume: Option<VolumeId>) -> Option<Bound> {
        let at = self.left.iter().position(|(tenant, other, _)| (*tenant, *other) == (key, volume))?;
        self.left.remove(at).map(|(.., bound)| bound)
    }
}

#[derive(Default)]
struct Entry {
    name: String,
    /// What all its volumes together may start.
    bound: Option<Lock<Allowance>>,
    volumes: BTreeMap<VolumeId, Used>,
}

/// A volume with connections.
struct Used {
    name: String,
    levels: Levels,
    connections: usize,
    account: Lock<Account>,
}

impl Used {
    /// Whether the agent counts what it starts: it has levels, or its tenant has.
    fn is_bound(&self, settings: &LevelsSettings) -> bool {
        let has_levels = !self.levels.base.is_none() || !self.levels.burst.is_none();
        settings.enforcer == Enforcer::Agent && (has_levels || !settings.tenant_burst.is_none())
    }
}

impl Entry {
    /// The sum of the bases of its volumes; none where none has one.
    fn base(&self, settings: &TenantsSettings) -> Option<Cost> {
        let bases = self.volumes.values().map(|used| used.levels.base).filter(|base| !base.is_none());
        bases.map(|base| settings.profile.of_rate(base.iops, base.bytes_per_sec)).reduce(|sum, base| sum + base)
    }
}

impl Roster {
    pub(crate) fn new(loops: usize, levels: LevelsSettings) -> Roster {
        let books = Books { tenants: Map::default(), shares: Shares::new(loops), left: VecDeque::new() };
        Roster { books: Lock::new(books), revision: Arc::default(), loops: loops.max(1), levels }
    }

    /// What an account is to hold a volume to: nothing, where the servers do.
    fn held_to(&self, volume: &VolumeDescriptor) -> Levels {
        match self.levels.enforcer {
            Enforcer::Agent => volume.levels,
            Enforcer::Server => Levels::default(),
        }
    }

    fn changed(&self) {
        self.revision.fetch_add(1, Ordering::Release);
    }

    /// A connection uses a volume, whose levels are what was just found.
    fn enter(&self, handle: &Handle, key: TenantKey, volume: &VolumeDescriptor) -> Bounds {
        let (now, levels, settings) = (handle.now(), self.held_to(volume), self.levels);
        let bounds = self.books.with(handle, |books| {
            let (account, bound) = (books.recall(key, Some(volume.id)), books.recall(key, None));
            let entry = books.tenants.entry(key).or_default();
            if let Some(Bound::Tenant(bound)) = bound {
                entry.bound = Some(bound);
            }
            let name = if volume.owner.is_empty() { &volume.name } else { &volume.owner };
            entry.name.clone_from(name);
            if settings.enforcer == Enforcer::Agent && !settings.tenant_burst.is_none() {
                let levels = Levels { burst: settings.tenant_burst, ..Levels::default() };
                entry.bound.get_or_insert_with(|| Lock::new(Allowance::new(levels, INTERVAL, DEPTH, now)));
            }
            let used = entry.volumes.entry(volume.id).or_insert_with(|| Used {
                name: String::new(),
                levels: volume.levels,
                connections: 0,
                account: match account {
                    Some(Bound::Volume(account)) => account,
                    _ => Lock::new(Account::new(levels, self.loops, now)),
                },
            });
            used.name.clone_from(&volume.name);
            (used.levels, used.connections) = (volume.levels, used.connections + 1);
            used.account.with(handle, |account| account.change(levels, now));
            Bounds { account: used.account.clone(), tenant: entry.bound.clone() }
        });
        self.changed();
        bounds
    }

    fn leave(&self, handle: &Handle, key: TenantKey, volume: VolumeId) {
        self.books.with(handle, |books| {
            let Some(entry) = books.tenants.get_mut(&key) else { return };
            let Some(used) = entry.volumes.get_mut(&volume) else { return };
            used.connections -= 1;
            if used.connections > 0 {
                return;
            }
            let used = entry.volumes.remove(&volume);
            let bound = if entry.volumes.is_empty() { entry.bound.take() } else { None };
            if entry.volumes.is_empty() {
                books.tenants.remove(&key);
                books.shares.forget(key.0);
            }
            if let Some(used) = used {
                books.remember(key, Some(volume), Bound::Volume(used.account));
            }
            if let Some(bound) = bound {
                books.remember(key, None, Bound::Tenant(bound));
            }
        });
        self.changed();
    }

    /// A volume was promised something else.
    pub(crate) fn set_levels(&self, handle: &Handle, volume: &VolumeDescriptor) {
        let key = TenantKey::of(volume);
        self.books.with(handle, |books| {
            let known = books.tenants.get_mut(&key).and_then(|entry| entry.volumes.get_mut(&volume.id));
            if let Some(used) = known {
                used.levels = volume.levels;
                let (levels, now) = (self.held_to(volume), handle.now());
                used.account.with(handle, |account| account.change(levels, now));
            }
        });
        self.changed();
    }

    /// Every tenant that is there, by key, with what was promised to its volumes.
    pub(crate) fn tenants(&self, handle: &Handle) -> BTreeMap<TenantKey, TenantStatistics> {
        self.books.with(handle, |books| {
            let entries = books.tenants.iter().map(|(key, entry)| {
                let bases = entry.volumes.values().map(|used| used.levels.base);
                let base = bases.fold(Rate::default(), |sum, base| Rate {
                    iops: sum.iops + base.iops,
                    bytes_per_sec: sum.bytes_per_sec + base.bytes_per_sec,
                });
                let volumes = entry.volumes.values().map(|used| used.name.clone()).collect();
                let (name, burst) = (entry.name.clone(), self.levels.tenant_burst);
                (*key, TenantStatistics { name, volumes, base, burst, ..TenantStatistics::default() })
            });
            entries.collect()
        })
    }
}

/// The tenants with connections on one loop. Clones share them.
#[derive(Clone)]
pub(crate) struct Tenants(Rc<Inner>);

struct Inner {
    handle: Handle,
    /// Which loop this is.
    index: usize,
    roster: Roster,
    state: RefCell<State>,
    exchange_due: Cell<Instant>,
    busy_due: Cell<Instant>,
    /// When the loop said last how busy it was, and for how long it had been idle.
    told: Cell<(Instant, u64)>,
    seen_revision: Cell<u64>,
    is_serving: Cell<bool>,
    /// Whether a task lets those go that waited for their levels.
    is_letting_go: Cell<bool>,
}

struct State {
    scheduler: Scheduler<Sender<()>>,
    seats: Map<TenantKey, Known>,
    lines: Lines<Sender<(Level, Reason)>>,
    /// What holds the volume of each line.
    bounds: Vec<Option<Bounds>>,
}

/// A tenant with connections here.
struct Known {
    number: u32,
    volumes: Map<VolumeId, Chair>,
}

/// A volume with connections here.
struct Chair {
    number: VolumeNumber,
    /// Its number among the lines.
    line: u32,
    users: usize,
}

/// A connection's place among the tenants of its loop. Dropped when the last of its requests has its answer.
pub(crate) struct Seat {
    tenants: Tenants,
    key: TenantKey,
    volume: VolumeId,
    number: VolumeNumber,
    line: u32,
    bounds: Bounds,
    frontend: Frontend,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.tenants.leave(self.key, self.volume);
    }
}

impl Tenants {
    pub(crate) fn new(handle: &Handle, index: usize, roster: Roster, settings: &TenantsSettings) -> Tenants {
        let mut settings = settings.clone();
        // What all loops have together is divided evenly; processor time each has of its own.
        (1..settings.per_second.0.len()).for_each(|d| settings.per_second.0[d] /= roster.loops as f64);
        let now = handle.now();
        let scheduler = Scheduler::new(settings, index as u64, now);
        Tenants(Rc::new(Inner {
            handle: handle.clone(),
            index,
            roster,
            state: RefCell::new(State {
                scheduler,
                seats: Map::default(),
                lines: Lines::default(),
                bounds: Vec::new(),
            }),
            exchange_due: Cell::new(now),
            busy_due: Cell::new(now + BUSY_EVERY),
            told: Cell::new((now, handle.idle_ns())),
            seen_revision: Cell::new(0),
            is_serving: Cell::new(false),
            is_letting_go: Cell::new(false),
        }))
    }

    /// A connection uses a volume from here on, which was just found.
    pub(crate) fn enter(&self, volume: &VolumeDescriptor, frontend: Frontend) -> Seat {
        let key = TenantKey::of(volume);
        let bounds = self.0.roster.enter(&self.0.handle, key, volume);
        let (number, line) = {
            let State { scheduler, seats, lines, bounds: all } = &mut *self.0.state.borrow_mut();
            let known = seats.entry(key).or_insert_with(|| {
                let number = scheduler.add_tenant(key.0, Promise::default());
                Known { number, volumes: Map::default() }
            });
            let number = known.number;
            let chair = known.volumes.entry(volume.id).or_insert_with(|| {
                // Inside a tenant volumes take turns by base: one more request for each 1,000 operations per second.
                let weight = 1 + (volume.levels.base.iops / 1000).min(200) as u32;
                let line = lines.add(false);
                all.resize_with(all.len().max(line as usize + 1), || None);
                all[line as usize] = Some(bounds.clone());
                Chair { number: scheduler.add_volume(number, volume.id.0, weight), line, users: 0 }
            });
            chair.users += 1;
            (chair.number, chair.line)
        };
        self.exchange(self.0.handle.now());
        Seat { tenants: self.clone(), key, volume: volume.id, number, line, bounds, frontend }
    }

    fn leave(&self, key: TenantKey, volume: VolumeId) {
        let handle = &self.0.handle;
        let State { scheduler, seats, lines, bounds } = &mut *self.0.state.borrow_mut();
        if let Some(known) = seats.get_mut(&key) {
            if let Some(chair) = known.volumes.get_mut(&volume) {
                chair.users -= 1;
                if chair.users == 0 {
                    let (line, now) = (chair.line, handle.now());
                    known.volumes.remove(&volume);
                    let purse = lines.remove(line);
                    if let Some(bounds) = bounds[line as usize].take() {
                        bounds.with(handle, |account, tenant| account.leave(now, self.0.index, purse, tenant));
                    }
                }
            }
            // A request that waits keeps its connection's seat: nothing of a tenant without seats waits.
            if known.volumes.is_empty() && scheduler.remove_tenant(known.number) {
                seats.remove(&key);
            }
        }
        self.0.roster.leave(handle, key, volume);
    }

    /// How things stand on this loop.
    pub(crate) fn status(&self) -> Vec<TenantOnLoop> {
        let State { scheduler, seats, lines, .. } = &*self.0.state.borrow();
        let on_loop = |share: TenantStatus| {
            let key = TenantKey(share.key);
            let mut found = TenantOnLoop { key, share, marked: [0; 2], waits: Waits::default() };
            for chair in seats.get(&key).into_iter().flat_map(|known| known.volumes.values()) {
                let (waits, [base, burst]) = lines.status(chair.line);
                found.marked = [found.marked[0] + base, found.marked[1] + burst];
                found.waits.add(&waits);
            }
            found
        };
        scheduler.status().map(on_loop).collect()
    }

    /// Checks the books of this loop, and says how many requests wait: see [`Scheduler::audit`] and [`policies::levels`].
    pub(crate) fn audit(&self) -> Result<usize, String> {
        let State { scheduler, lines, bounds, .. } = &*self.0.state.borrow();
        for bounds in bounds.iter().flatten() {
            bounds.with(&self.0.handle, |account, tenant| {
                account.audit()?;
                tenant.map_or(Ok(()), |tenant| tenant.audit())
            })?;
        }
        Ok(scheduler.audit()? + lines.audit()?)
    }

    /// What there is to do now and then while requests come.
    #[inline]
    fn on_arrival(&self, now: Instant) {
        if now >= self.0.exchange_due.get() {
            self.on_due(now);
        }
    }

    #[cold]
    fn on_due(&self, now: Instant) {
        let inner = &self.0;
        inner.exchange_due.set(now + EXCHANGE_EVERY);
        let revision = inner.roster.revision.load(Ordering::Acquire);
        if inner.roster.loops > 1 || revision != inner.seen_revision.get() {
            self.exchange(now);
        }
        if now >= inner.busy_due.get() {
            inner.busy_due.set(now + BUSY_EVERY);
            let idle_ns = inner.handle.idle_ns();
            let (since, idle_before_ns) = inner.told.replace((now, idle_ns));
            let span_ns = now.nanos_since(since);
            let busy_ns = span_ns.saturating_sub(idle_ns.saturating_sub(idle_before_ns));
            inner.state.borrow_mut().scheduler.on_busy(span_ns, busy_ns);
        }
    }

    /// Tells the roster what tenants wanted here, and learns what they have.
    fn exchange(&self, now: Instant) {
        let inner = &self.0;
        inner.seen_revision.set(inner.roster.revision.load(Ordering::Acquire));
        inner.exchange_due.set(now + EXCHANGE_EVERY);
        let State { scheduler, seats, lines, .. } = &mut *inner.state.borrow_mut();
        let demands: Map<u64, f64> = scheduler.demands().map(|(_, key, demand)| (key, demand)).collect();
        for (key, known) in seats.iter() {
            let demand = demands.get(&key.0).copied().unwrap_or(0.0);
            let (base, part) = inner.roster.books.with(&inner.handle, |books| {
                let entry = books.tenants.get(key);
                for (id, used) in entry.iter().flat_map(|entry| &entry.volumes) {
                    if let Some(chair) = known.volumes.get(id) {
                        lines.set_bound(chair.line, used.is_bound(&inner.roster.levels));
                    }
                }
                let base = entry.and_then(|entry| entry.base(scheduler.settings()));
                (base, books.shares.exchange(key.0, inner.index, demand))
            });
            scheduler.set_promise(known.number, Promise { base, burst: None });
            scheduler.set_part(known.number, part);
        }
    }

    /// Makes sure that somebody hands out what may start while anybody waits.
    fn serve(&self) {
        if !self.0.is_serving.replace(true) {
            let this = self.clone();
            self.0.handle.spawn(Class::Io, "tenants", async move { this.hand_out().await }).detach();
        }
    }

    async fn hand_out(self) {
        let handle = &self.0.handle;
        loop {
            // What came in the same look at the network is in line first.
            handle.yield_now().await;
            let mut handed_out = 0.0;
            let now = handle.now();
            while handed_out < HANDED_OUT_NS {
                let Some(grant) = self.0.state.borrow_mut().scheduler.next_grant(now) else { break };
                handed_out += grant.processor_ns;
                // Who waited may be gone with his connection.
                grant.ticket.send(());
            }
            let next = self.0.state.borrow().scheduler.next_look(now);
            match next {
                None => break,
                Some(at) if at > now => handle.sleep_until(at).await,
                Some(_) => {}
            }
        }
        self.0.is_serving.set(false);
    }
}

/// Lets those go that waited for the levels of their volumes.
impl Tenants {
    fn let_go_in_time(&self) {
        if !self.0.is_letting_go.replace(true) {
            let this = self.clone();
            self.0.handle.spawn(Class::Io, "levels", async move { this.let_go().await }).detach();
        }
    }

    async fn let_go(self) {
        let handle = &self.0.handle;
        while let Some(next) = { self.0.state.borrow().lines.next_look() } {
            match next > handle.now() {
                true => handle.sleep_until(next).await,
                false => handle.yield_now().await,
            }
            let now = handle.now();
            for _ in 0..LET_GO {
                let Some(grant) = self.next_grant(now) else { break };
                // Who waited may be gone with his connection.
                grant.ticket.send((grant.level, grant.reason));
            }
        }
        self.0.is_letting_go.set(false);
    }

    fn next_grant(&self, now: Instant) -> Option<levels::Grant<Sender<(Level, Reason)>>> {
        let State { lines, bounds, .. } = &mut *self.0.state.borrow_mut();
        lines.next_grant(now, |line, bytes, is_last, purse| match &bounds[line as usize] {
            Some(bounds) => bounds.with(&self.0.handle, |account, tenant| {
                account.go_on(now, self.0.index, bytes, is_last, purse, tenant)
            }),
            None => Ok(Level::Open),
        })
    }
}

/// A request that waits, as its volume counts it.
struct Waiting<'a> {
    counters: &'a Counters,
    reason: Option<Reason>,
}

impl<'a> Waiting<'a> {
    fn new(counters: &'a Counters, reason: Reason) -> Waiting<'a> {
        counters.with(|counters| counters.waits.on_wait(reason));
        Waiting { counters, reason: Some(reason) }
    }

    /// It has waited so long, for that reason in the end.
    fn end(mut self, reason: Reason, waited_ns: u64, passage: &mut Passage) {
        if let Some(before) = self.reason.take() {
            self.counters.with(|counters| {
                counters.waits.on_change(before, reason);
                counters.waits.on_start(reason, waited_ns);
            });
        }
        passage.add(Stage::Tokens, waited_ns);
        passage.tokens = reason.name();
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(reason) = self.reason {
            self.counters.with(|counters| counters.waits.on_gone(reason));
        }
    }
}

impl Seat {
    /// On which level a request may start now; or else what hands it that in time, and why it waits.
    #[inline]
    fn try_levels(&self, now: Instant, bytes: u64) -> Result<Level, (Receiver<(Level, Reason)>, Reason)> {
        let inner = &self.tenants.0;
        let mut receiver = None;
        let ticket = || {
            let (sender, waiting) = oneshot();
            receiver = Some(waiting);
            sender
        };
        let ask = |purse: &mut Purse| {
            self.bounds.with(&inner.handle, |account, tenant| account.arrive(now, inner.index, bytes, purse, tenant))
        };
        let verdict = inner.state.borrow_mut().lines.submit(now, self.line, bytes, ask, ticket);
        match (verdict, receiver) {
            (levels::Verdict::Wait(reason), Some(receiver)) => Err((receiver, reason)),
            (levels::Verdict::Start(level), _) => Ok(level),
            (levels::Verdict::Wait(_), None) => unreachable!("who waits has left a ticket"),
        }
    }

    /// Returns when a request may start, and on which level. What it waited is added to `passage` and `counters`. The
    /// loop came to it `delay_ns` after its bytes were there, slots, memory and payload not counted: what tells that there
    /// is more to do than the loop can.
    #[inline]
    pub(crate) async fn pass(
        &self,
        operation: Operation,
        bytes: u64,
        delay_ns: u64,
        passage: &mut Passage,
        counters: &Counters,
    ) -> Level {
        let tenants = &self.tenants;
        let mut now = tenants.0.handle.now();
        tenants.on_arrival(now);
        let mut level = Level::Open;
        if matches!(operation, Operation::Read | Operation::Write) {
            match self.try_levels(now, bytes) {
                Ok(found) => level = found,
                Err((receiver, reason)) => {
                    tenants.let_go_in_time();
                    let waiting = Waiting::new(counters, reason);
                    // A line goes with the last seat only.
                    let (found, reason) = receiver.await.unwrap_or((Level::Open, reason));
                    level = found;
                    let waited_ns = tenants.0.handle.now().nanos_since(now);
                    waiting.end(reason, waited_ns, passage);
                    now = tenants.0.handle.now();
                }
            }
        }
        let mut granted = None;
        let ticket = || {
            let (sender, receiver) = oneshot();
            granted = Some(receiver);
            sender
        };
        {
            let scheduler = &mut tenants.0.state.borrow_mut().scheduler;
            scheduler.on_delay(delay_ns);
            let cost = scheduler.cost(self.frontend, operation, bytes);
            if matches!(scheduler.submit(now, self.number, cost, ticket), tenants::Verdict::Start { .. }) {
                return level;
            }
        }
        tenants.serve();
        if let Some(granted) = granted {
            let waiting = Waiting::new(counters, Reason::TenantShare);
            granted.await;
            waiting.end(Reason::TenantShare, tenants.0.handle.now().nanos_since(now), passage);
        }
        level
    }
}
