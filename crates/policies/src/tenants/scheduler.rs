//! The scheduler of one loop: arrivals, and grants from what was [allocated](allocation) for the window.

mod allocation;

use std::collections::VecDeque;

use base::{Instant, Prng};

use super::cost::{Cost, UNLIMITED};
use super::delay::Delay;
use super::measured::Measured;
use super::profile::{Frontend, Operation};
use super::settings::{Pricing, Promise, Scheduling, TenantsSettings};
use super::tenant::{Place, Queue, Tenant, Waiting, fits};

/// What a turn among tenants that wait gives one, in parts of its base.
const TURNS: f64 = 16.0;
/// The least that a turn gives, as a share of a window: nobody is passed over for long.
const TURN_MIN: f64 = 0.001;

/// A volume of a tenant, as a loop's scheduler calls it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeNumber {
    tenant: u32,
    queue: u32,
}

impl VolumeNumber {
    /// Its tenant.
    pub fn tenant(self) -> u32 {
        self.tenant
    }
}

/// What is said to an arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It may start, within its tenant's base or beyond.
    Start {
        /// Within the base.
        is_base: bool,
    },
    /// It is in line: [`Scheduler::next_grant`] hands its ticket out.
    Wait,
}

/// A request that was in line and may start.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Grant<T> {
    /// What it was put in line with.
    pub ticket: T,
    /// Whether it is within its tenant's base.
    pub is_base: bool,
    /// How long it waited.
    pub waited_ns: u64,
    /// Processor time that it takes, by the profile: whoever hands grants out lets others run after some.
    pub processor_ns: f64,
}

/// What there is to tell of a tenant on one loop.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TenantStatus {
    /// What it is called.
    pub key: u64,
    /// Requests that were started.
    pub started: u64,
    /// Those of them that had to wait, because nothing was allocated for them.
    pub throttled: u64,
    /// Those that were paid for by what others had beyond their base, and from the reserve.
    pub reclaimed: u64,
    /// See `reclaimed`.
    pub from_reserve: u64,
    /// Requests that wait now.
    pub waiting: usize,
    /// How long requests waited, in nanoseconds: all together, and the longest.
    pub waited_ns: u64,
    /// See `waited_ns`.
    pub waited_max_ns: u64,
    /// Windows in which it was allocated more than its base.
    pub burst_windows: u64,
    /// Its base in a window, and how much of what it was promised that is: below 1 where promises exceed what there is.
    pub base: Cost,
    /// See `base`.
    pub scaled: f64,
}

/// See [the module](super). `T` is what the agent finds a waiting request by.
pub struct Scheduler<T> {
    settings: TenantsSettings,
    window_ns: u64,
    /// The present window.
    window: u64,
    /// What there is in a window, as things are priced now.
    total: Cost,
    tenants: Vec<Option<Tenant<T>>>,
    free: Vec<u32>,
    /// Tenants that are allocated something.
    scanned: Vec<u32>,
    /// Of those, the ones that got more than their base.
    burst: Vec<u32>,
    reserve: Cost,
    /// What was allocated to nobody: where all that are there are bounded by their burst, or nobody was there.
    spare: Cost,
    /// What is left of a window's budget, for WildCBS.
    budget: Cost,
    /// The sum of what was promised, and by how much promises are scaled because of it.
    promised: Cost,
    scale: Cost,
    /// The base of a tenant that was promised nothing.
    unpromised: Cost,
    ready: VecDeque<u32>,
    blocked: VecDeque<u32>,
    waiting: usize,
    known: usize,
    /// Whether there is a bound besides processor time: it holds for one tenant, too.
    is_limited: bool,
    prng: Prng,
    delay: Delay,
    measured: Measured,
    /// What was started, by the profile, since [`Scheduler::on_busy`] was told last, in nanoseconds.
    profiled_ns: f64,
}

impl<T> Scheduler<T> {
    /// Nobody there.
    pub fn new(settings: TenantsSettings, seed: u64, now: Instant) -> Self {
        let window_ns = (settings.window.as_nanos() as u64).max(1);
        let mut scheduler = Scheduler {
            window_ns,
            window: now.0 / window_ns,
            total: Cost::ZERO,
            tenants: Vec::new(),
            free: Vec::new(),
            scanned: Vec::new(),
            burst: Vec::new(),
            reserve: Cost::ZERO,
            spare: Cost::ZERO,
            budget: Cost::ZERO,
            promised: Cost::ZERO,
            scale: Cost([1.0; 4]),
            unpromised: Cost::ZERO,
            ready: VecDeque::new(),
            blocked: VecDeque::new(),
            waiting: 0,
            known: 0,
            is_limited: settings.per_second.0[1..].iter().any(|rate| *rate < UNLIMITED),
            prng: Prng::new(seed),
            delay: Delay::default(),
            measured: Measured::default(),
            profiled_ns: 0.0,
            settings,
        };
        scheduler.price();
        scheduler.budget = scheduler.total;
        scheduler.reserve = scheduler.reserved();
        scheduler.spare = scheduler.total - scheduler.reserve;
        scheduler
    }

    /// Its settings.
    pub fn settings(&self) -> &TenantsSettings {
        &self.settings
    }

    /// A tenant appears, under a name of the caller's.
    pub fn add_tenant(&mut self, key: u64, promise: Promise) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.tenants.push(None);
            self.tenants.len() as u32 - 1
        });
        self.tenants[number as usize] = Some(Tenant::new(key, promise));
        self.known += 1;
        self.weigh();
        number
    }

    /// A tenant is promised something else.
    pub fn set_promise(&mut self, number: u32, promise: Promise) {
        self.tenant(number).promise = promise;
        self.weigh();
    }

    /// What part of its base a tenant has on this loop from the next window on ([`super::Shares`]).
    pub fn set_part(&mut self, number: u32, part: f64) {
        let tenant = self.tenant(number);
        let before = std::mem::replace(&mut tenant.part, part);
        if let Some(base) = tenant.promise.base {
            self.promised = (self.promised + base * (self.seconds() * (part - before))).max(Cost::ZERO);
        }
    }

    /// A volume of a tenant; `weight`: how many of its requests may start in one turn among the volumes of that.
    pub fn add_volume(&mut self, tenant: u32, key: u64, weight: u32) -> VolumeNumber {
        let queues = &mut self.tenant(tenant).queues;
        let weight = weight.max(1);
        let queue = queues.iter().position(|queue| queue.key == key).unwrap_or_else(|| {
            queues.push(Queue { key, weight, turn: 0, waiting: VecDeque::new() });
            queues.len() - 1
        });
        queues[queue].weight = weight;
        VolumeNumber { tenant, queue: queue as u32 }
    }

    /// A tenant of which nothing waits goes. Says whether it did.
    pub fn remove_tenant(&mut self, number: u32) -> bool {
        if self.tenant(number).waiting > 0 {
            return false;
        }
        self.tenants[number as usize] = None;
        self.scanned.retain(|other| *other != number);
        self.burst.retain(|other| *other != number);
        self.free.push(number);
        self.known -= 1;
        self.weigh();
        true
    }

    /// What a request costs, as requests are priced.
    #[inline]
    pub fn cost(&self, frontend: Frontend, operation: Operation, bytes: u64) -> Cost {
        self.priced(self.settings.profile.cost(frontend, operation, bytes))
    }

    /// A request of a volume arrives: it starts, or `ticket` is put in line.
    #[inline]
    pub fn submit(&mut self, now: Instant, volume: VolumeNumber, cost: Cost, ticket: impl FnOnce() -> T) -> Verdict {
        self.profiled_ns += cost.0[0];
        let is_alone = self.known < 2 && !self.is_limited;
        if self.settings.scheduling == Scheduling::Off || is_alone || cost.is_zero() {
            self.tenant(volume.tenant).started += 1;
            return Verdict::Start { is_base: false };
        }
        self.roll(now);
        self.scan(volume.tenant);
        let tenant = self.tenant(volume.tenant);
        let (waits, is_blocked) = (tenant.waiting > 0, tenant.place == Place::Blocked);
        let is_paced = self.settings.scheduling == Scheduling::Bios
            && self.scanned.len() > 1
            && !self.tenant(volume.tenant).stays_within(&cost);
        let queues_for_budget = self.settings.scheduling == Scheduling::Wild && self.waiting > 0;
        if !waits
            && !is_paced
            && !queues_for_budget
            && let Some(is_base) = self.start(volume.tenant, &cost)
        {
            return Verdict::Start { is_base };
        }
        let can_pay = is_paced && self.tenant(volume.tenant).can_pay(&cost);
        let is_throttled = is_blocked || queues_for_budget || !(waits || can_pay);
        let tenant = self.tenant(volume.tenant);
        tenant.throttled += u64::from(is_throttled);
        tenant.push(volume.queue, Waiting { arrived: now, cost, ticket: ticket() });
        self.waiting += 1;
        if self.tenant(volume.tenant).place == Place::Nowhere {
            let place = if is_throttled { Place::Blocked } else { Place::Ready };
            self.enter(volume.tenant, place);
        }
        Verdict::Wait
    }

    /// The next of those in line that may start now.
    pub fn next_grant(&mut self, now: Instant) -> Option<Grant<T>> {
        self.roll(now);
        while let Some(number) = self.ready.front().copied() {
            let Some(cost) = self.tenant(number).first().map(|first| first.cost) else {
                // It has left the line with its last request.
                self.ready.pop_front();
                self.tenant(number).place = Place::Nowhere;
                continue;
            };
            if self.tenant(number).turn <= 0.0 {
                let turn = self.turn_of(number);
                let tenant = self.tenant(number);
                tenant.turn += turn;
                if tenant.turn <= 0.0 {
                    self.ready.rotate_left(1);
                    continue;
                }
            }
            let Some(is_base) = self.start(number, &cost) else {
                if self.settings.scheduling == Scheduling::Wild {
                    // The budget is gone, for everybody; the next window goes on here.
                    return None;
                }
                self.ready.pop_front();
                self.tenant(number).turn = 0.0;
                self.enter(number, Place::Blocked);
                continue;
            };
            let share = cost.share_of(&self.total);
            let tenant = self.tenant(number);
            tenant.turn -= share;
            let is_over = tenant.turn <= 0.0;
            let Waiting { arrived, cost, ticket } = tenant.pop()?;
            let waited_ns = now.nanos_since(arrived);
            tenant.waited_ns += waited_ns;
            tenant.waited_max_ns = tenant.waited_max_ns.max(waited_ns);
            let is_empty = tenant.waiting == 0;
            self.waiting -= 1;
            if is_empty {
                let tenant = self.tenant(number);
                (tenant.place, tenant.turn) = (Place::Nowhere, 0.0);
                self.ready.pop_front();
            } else if is_over {
                self.ready.rotate_left(1);
            }
            return Some(Grant { ticket, is_base, waited_ns, processor_ns: cost.0[0] });
        }
        None
    }

    /// When to call [`Scheduler::next_grant`] next: at once, at the next window, or not at all.
    pub fn next_look(&self, now: Instant) -> Option<Instant> {
        let next = Instant((self.window + 1) * self.window_ns);
        match (self.waiting, self.ready.is_empty()) {
            (0, _) => None,
            (_, false) if self.settings.scheduling != Scheduling::Wild || self.may_start_first() => Some(now),
            _ => Some(next),
        }
    }

    /// The agent itself took so long for a request: see [`Delay`].
    #[inline]
    pub fn on_delay(&mut self, delay_ns: u64) {
        if self.settings.adjusts {
            self.delay.on_delay(delay_ns);
        }
    }

    /// In a span the loop was busy for so long: see [`Measured`].
    pub fn on_busy(&mut self, span_ns: u64, busy_ns: u64) {
        let profiled_ns = std::mem::take(&mut self.profiled_ns);
        if self.settings.measures {
            self.measured.on_span(span_ns, busy_ns, profiled_ns);
        }
    }

    /// What a loop saw of its tenants since it was asked last, for [`super::Shares`]: the share of a window that each used or
    /// waits for. Of those that are looked at.
    pub fn demands(&self) -> impl Iterator<Item = (u32, u64, f64)> + '_ {
        self.scanned.iter().filter_map(|number| {
            let tenant = self.tenants[*number as usize].as_ref()?;
            Some((*number, tenant.key, (tenant.usage + tenant.queued).share_of(&self.total)))
        })
    }

    /// Whether at least so many requests of a tenant wait, and they take what it has of a window: what comes beyond them
    /// starts in no window that is near, so that it may as well go to another loop.
    pub fn has_enough(&self, tenant: u32, requests: usize) -> bool {
        let tenant = self.tenants[tenant as usize].as_ref();
        tenant.is_some_and(|tenant| tenant.waiting >= requests && !tenant.alloc.covers(&tenant.queued))
    }

    /// Tells the keys of those that had more than their base since this was asked last.
    pub fn take_bursting(&mut self, mut tell: impl FnMut(u64)) {
        for number in &self.scanned {
            let Some(tenant) = &mut self.tenants[*number as usize] else { continue };
            if tenant.burst_windows != std::mem::replace(&mut tenant.told_bursts, tenant.burst_windows) {
                tell(tenant.key);
            }
        }
    }

    /// How things stand.
    pub fn status(&self) -> impl Iterator<Item = TenantStatus> + '_ {
        self.tenants.iter().flatten().map(|tenant| TenantStatus {
            key: tenant.key,
            started: tenant.started,
            throttled: tenant.throttled,
            reclaimed: tenant.reclaimed,
            from_reserve: tenant.from_reserve,
            waiting: tenant.waiting,
            waited_ns: tenant.waited_ns,
            waited_max_ns: tenant.waited_max_ns,
            burst_windows: tenant.burst_windows,
            base: tenant.base,
            scaled: if tenant.promise.base.is_some() { self.scale.0.into_iter().fold(1.0, f64::min) } else { 1.0 },
        })
    }

    /// How many tenants' bases the reserve covers at once, of the largest there are.
    pub fn covered_by_reserve(&self) -> f64 {
        let largest = self.tenants.iter().flatten().map(|tenant| tenant.base.share_of(&self.total)).fold(0.0, f64::max);
        if largest > 0.0 { self.settings.reserve / largest } else { f64::INFINITY }
    }

    /// By how much requests are dearer than the profile says: by delay, and by measured processor time.
    pub fn factors(&self) -> (f64, f64) {
        (self.delay.factor(), self.measured.ratio())
    }

    /// Checks the books, and says how many requests wait.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn audit(&self) -> Result<usize, String> {
        let waiting: usize = self.tenants.iter().flatten().map(|tenant| tenant.waiting).sum();
        if waiting != self.waiting {
            return Err(format!("{} are said to wait, and {waiting} do", self.waiting));
        }
        if self.reserve.0.iter().any(|left| *left < 0.0) {
            return Err(format!("the reserve is negative: {:?}", self.reserve));
        }
        for (number, tenant) in self.tenants.iter().enumerate().filter_map(|(at, one)| Some((at as u32, one.as_ref()?)))
        {
            let lines = [&self.ready, &self.blocked].map(|line| line.iter().filter(|other| **other == number).count());
            if lines[0] + lines[1] != usize::from(tenant.place != Place::Nowhere) {
                return Err(format!("tenant {} is in {lines:?} lines, at {:?}", tenant.key, tenant.place));
            }
            if tenant.waiting > 0 && tenant.place == Place::Nowhere {
                return Err(format!("requests of tenant {} wait, and nobody knows", tenant.key));
            }
            if !tenant.burst.covers(&tenant.alloc) && self.settings.scheduling == Scheduling::Bios {
                return Err(format!("tenant {} was allocated more than its burst", tenant.key));
            }
        }
        Ok(self.waiting)
    }

    #[inline]
    fn tenant(&mut self, number: u32) -> &mut Tenant<T> {
        self.tenants[number as usize].as_mut().expect("whoever has the number knows that it is there")
    }

    fn seconds(&self) -> f64 {
        self.window_ns as f64 / 1e9
    }

    fn priced(&self, cost: Cost) -> Cost {
        match self.settings.pricing {
            Pricing::Vector => cost,
            Pricing::Scalar => self.total * cost.share_of(&self.total),
        }
    }

    /// A tenant is looked at from here on.
    #[inline]
    fn scan(&mut self, number: u32) {
        if !self.tenant(number).is_scanned {
            self.begin_scanning(number);
        }
    }

    /// What a turn among those that wait gives a tenant.
    fn turn_of(&mut self, number: u32) -> f64 {
        let total = self.total;
        match self.settings.scheduling {
            // The quantum of weight x window.
            Scheduling::Wild => self.tenant(number).base.share_of(&total).max(TURN_MIN),
            _ => (self.tenant(number).base.share_of(&total) / TURNS).max(TURN_MIN),
        }
    }

    fn enter(&mut self, number: u32, place: Place) {
        self.tenant(number).place = place;
        match place {
            Place::Ready => self.ready.push_back(number),
            Place::Blocked if self.settings.scheduling == Scheduling::Wild => {
                self.tenant(number).place = Place::Ready;
                self.ready.push_back(number);
            }
            Place::Blocked => self.blocked.push_back(number),
            Place::Nowhere => {}
        }
    }

    /// Whether the budget of WildCBS has something for whose turn it is.
    fn may_start_first(&self) -> bool {
        let first = self.ready.front().and_then(|number| self.tenants[*number as usize].as_ref()?.first());
        first.is_some_and(|first| fits(&self.budget, &first.cost, &self.total))
    }

    /// Takes what a request costs, from whoever has it (Algorithm 1, lines 14 to 25). Says whether it is within the base that
    /// its tenant was promised.
    #[inline]
    fn start(&mut self, number: u32, cost: &Cost) -> Option<bool> {
        match self.settings.scheduling {
            Scheduling::Off => {}
            Scheduling::Wild => {
                if !fits(&self.budget, cost, &self.total) {
                    return None;
                }
                self.budget -= *cost;
            }
            Scheduling::Base | Scheduling::Bios => {
                let tenant = self.tenant(number);
                match tenant.can_pay(cost) {
                    true => tenant.balance -= *cost,
                    false => self.recover(number, cost)?,
                }
            }
        }
        let tenant = self.tenant(number);
        let is_base = tenant.promise.base.is_some() && tenant.stays_within(cost);
        tenant.on_start(cost);
        Some(is_base)
    }

    /// Who stays within his base gets it back: from what nobody has, from one of those that were allocated more than their
    /// base, or from the reserve.
    #[cold]
    fn recover(&mut self, number: u32, cost: &Cost) -> Option<()> {
        let may = self.settings.scheduling == Scheduling::Bios && self.settings.recovers;
        if !may || !self.tenant(number).stays_within(cost) {
            return None;
        }
        if self.spare.covers(cost) {
            self.spare -= *cost;
            return Some(());
        }
        let donor = self.draw_donor(number);
        let given = donor.map_or(Cost::ZERO, |donor| self.tenant(donor).can_give(cost));
        // What the donor has not got the reserve adds: what either has left is of no use where both together would do.
        let rest = *cost - given;
        if !self.reserve.covers(&rest) {
            return None;
        }
        if let Some(donor) = donor {
            self.tenant(donor).balance -= given;
        }
        if rest.is_zero() {
            self.tenant(number).reclaimed += 1;
            return Some(());
        }
        self.reserve -= rest;
        self.tenant(number).from_reserve += 1;
        Some(())
    }

    /// The richer of two that burst, drawn at random: sorting them for each request would take too long (§5.2).
    fn draw_donor(&mut self, number: u32) -> Option<u32> {
        if self.burst.is_empty() {
            return None;
        }
        let count = self.burst.len() as u64;
        let (one, other) = (self.prng.below(count) as usize, self.prng.below(count) as usize);
        let drawn = [self.burst[one], self.burst[other]].into_iter().filter(|donor| *donor != number);
        let total = self.total;
        drawn.max_by(|one, other| {
            let wealth =
                |donor: &u32| self.tenants[*donor as usize].as_ref().map_or(0.0, |t| t.balance.share_of(&total));
            wealth(one).total_cmp(&wealth(other))
        })
    }

    /// Begins the windows that have begun.
    #[inline]
    fn roll(&mut self, now: Instant) {
        let window = now.0 / self.window_ns;
        if window > self.window {
            let passed = window - self.window;
            self.window = window;
            self.begin_window(passed);
        }
    }
}
