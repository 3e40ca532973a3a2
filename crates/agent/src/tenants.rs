//! Tenants on the loops of one agent: [`policies::tenants`] decides, this keeps its clock and its waiting requests.
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
use std::rc::Rc;
use std::time::Duration;

use base::levels::Level;
use base::{Instant, Map, Passage, Stage, VolumeId};
use policies::levels::{Lines, Purse};
use policies::queues::BATCH;
use policies::tenants::{Frontend, Operation, Promise, Scheduler, TenantStatus, TenantsSettings, VolumeNumber};
use policies::waits::{Reason, Waits};
use policies::{levels, tenants};
use runtime::sync::{Event, Receiver, Sender, oneshot};
use runtime::{Class, Handle};
use wire::VolumeDescriptor;

use crate::roster::{Bounds, Roster, TenantKey, TenantOnLoop};
use crate::statistics::Counters;

/// Processor time, by the profile, of what is handed out before everything else that is ready runs, in nanoseconds.
const HANDED_OUT_NS: f64 = 30_000.0;
/// How often a loop that has something to do looks at the roster.
const EXCHANGE_EVERY: Duration = Duration::from_millis(10);
/// How often it says how busy it was.
const BUSY_EVERY: Duration = Duration::from_millis(50);
/// Requests whose levels have something again that are let go before everything else that is ready runs.
const LET_GO: usize = 64;

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
    /// What may start was handed out, if anything: who waits to want more looks again.
    looked: Event,
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
        (1..settings.per_second.0.len()).for_each(|d| settings.per_second.0[d] /= roster.loops() as f64);
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
            looked: Event::new(),
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
        let revision = inner.roster.revision();
        if inner.roster.loops() > 1 || revision != inner.seen_revision.get() {
            self.exchange(now);
        }
        let mut bursting = Vec::new();
        inner.state.borrow_mut().scheduler.take_bursting(|key| bursting.push(TenantKey(key)));
        inner.roster.note_bursting(&inner.handle, &bursting, now);
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
        inner.seen_revision.set(inner.roster.revision());
        inner.exchange_due.set(now + EXCHANGE_EVERY);
        let State { scheduler, seats, lines, .. } = &mut *inner.state.borrow_mut();
        let demands: Map<u64, f64> = scheduler.demands().map(|(_, key, demand)| (key, demand)).collect();
        for (key, known) in seats.iter() {
            let demand = demands.get(&key.0).copied().unwrap_or(0.0);
            let here = (inner.index, demand);
            let on_volume = |volume, is_bound| {
                if let Some(chair) = known.volumes.get(&volume) {
                    lines.set_bound(chair.line, is_bound);
                }
            };
            let (base, part) = inner.roster.exchange(&inner.handle, *key, here, scheduler.settings(), on_volume);
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
            self.0.looked.notify();
            let next = self.0.state.borrow().scheduler.next_look(now);
            match next {
                None => break,
                Some(at) if at > now => {
                    let idle_ns = handle.idle_ns();
                    handle.sleep_until(at).await;
                    let (waited_ns, idle_ns) = (handle.now().nanos_since(now), handle.idle_ns() - idle_ns);
                    self.0.state.borrow_mut().scheduler.on_wait(waited_ns, idle_ns);
                }
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

    /// Whether the loop has so many requests of the tenant in line that it will not begin with another one soon.
    #[inline]
    pub(crate) fn has_enough(&self) -> bool {
        self.tenants.0.state.borrow().scheduler.has_enough(self.number.tenant(), BATCH)
    }

    /// Returns when that is not so.
    pub(crate) async fn until_wanting(&self) {
        loop {
            let looked = self.tenants.0.looked.wait();
            if !self.has_enough() {
                return;
            }
            looked.await;
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
