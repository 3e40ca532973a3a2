//! The scheduler of one loop: arrivals, grants, windows.

use std::collections::VecDeque;

use base::{Instant, Prng};

use super::IDLE_WINDOWS;
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
/// The part of everything that those share at least who were promised nothing.
const UNPROMISED_MIN: f64 = 0.05;

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

    fn reserved(&self) -> Cost {
        match self.settings.scheduling {
            // Nobody comes back where there is one tenant.
            Scheduling::Bios if self.known > 1 => self.total * self.settings.reserve,
            _ => Cost::ZERO,
        }
    }

    fn priced(&self, cost: Cost) -> Cost {
        match self.settings.pricing {
            Pricing::Vector => cost,
            Pricing::Scalar => self.total * cost.share_of(&self.total),
        }
    }

    /// What a window has, as things are priced now. Where everything is dearer by a factor, there is less by that.
    fn price(&mut self) {
        let mut total = self.settings.per_second * (self.seconds() / self.delay.factor());
        total.0[0] /= self.measured.ratio();
        self.total = total;
    }

    /// What was promised in all.
    fn weigh(&mut self) {
        let seconds = self.seconds();
        let promises = self.tenants.iter().flatten();
        let bases = promises.filter_map(|tenant| Some(tenant.promise.base? * (seconds * tenant.part)));
        self.promised = bases.fold(Cost::ZERO, |sum, base| sum + base);
    }

    /// What everybody's base is, with what there is in this window, where `count` of those that are looked at were promised
    /// nothing.
    fn divide(&mut self, count: usize) {
        let there = self.total - self.reserved();
        let for_promises = there * if count > 0 { 1.0 - UNPROMISED_MIN } else { 1.0 };
        self.scale = for_promises.zip(self.promised, |there, sum| if sum > there { there / sum } else { 1.0 });
        let left = there - self.promised.min(for_promises);
        self.unpromised = left * (1.0 / count.max(1) as f64);
    }

    /// A tenant is looked at from here on.
    #[inline]
    fn scan(&mut self, number: u32) {
        if !self.tenant(number).is_scanned {
            self.begin_scanning(number);
        }
    }

    #[cold]
    fn begin_scanning(&mut self, number: u32) {
        self.scanned.push(number);
        let unpromised =
            |number: &&u32| self.tenants[**number as usize].as_ref().is_some_and(|t| t.promise.base.is_none());
        let count = self.scanned.iter().filter(unpromised).count();
        self.divide(count);
        let (base, burst) = self.levels_of(number);
        let alloc = match self.settings.scheduling {
            Scheduling::Base => self.fixed_part(number),
            _ => Cost::ZERO,
        };
        let tenant = self.tenant(number);
        (tenant.is_scanned, tenant.idle) = (true, 0);
        (tenant.base, tenant.burst, tenant.covered) = (base, burst, base);
        (tenant.alloc, tenant.balance, tenant.usage) = (alloc, alloc, Cost::ZERO);
    }

    /// Base and burst of a tenant in a window.
    #[inline]
    fn levels_of(&self, number: u32) -> (Cost, Cost) {
        let seconds = self.window_ns as f64 / 1e9;
        let Some(tenant) = self.tenants[number as usize].as_ref() else { return (Cost::ZERO, Cost::ZERO) };
        let base = match tenant.promise.base {
            Some(base) => self.priced((base * (seconds * tenant.part)).zip(self.scale, |base, scale| base * scale)),
            None => self.unpromised,
        };
        let burst = tenant.promise.burst.map_or(Cost::UNLIMITED, |burst| self.priced(burst * seconds).max(base));
        (base, burst)
    }

    /// What BaseCBS gives a tenant of every window: its part by base of all, whoever is there.
    fn fixed_part(&self, number: u32) -> Cost {
        let weight = |tenant: &Tenant<T>| {
            let base = tenant.promise.base.map(|base| (base * self.seconds()).share_of(&self.total));
            base.unwrap_or(1.0 / self.known as f64)
        };
        let sum: f64 = self.tenants.iter().flatten().map(weight).sum();
        let own = self.tenants[number as usize].as_ref().map_or(0.0, weight);
        self.total * (own / sum.max(f64::MIN_POSITIVE))
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
        if let Some(donor) = self.draw_donor(number)
            && self.tenant(donor).can_give(cost)
        {
            self.tenant(donor).balance -= *cost;
            self.tenant(number).reclaimed += 1;
            return Some(());
        }
        if !self.reserve.covers(cost) {
            return None;
        }
        self.reserve -= *cost;
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

    #[cold]
    fn begin_window(&mut self, passed: u64) {
        if self.settings.adjusts {
            self.delay.on_windows(passed);
        }
        self.price();
        self.reserve = self.reserved();
        let owed = self.budget.min(Cost::ZERO) + self.total * (passed - 1) as f64;
        self.budget = self.total + owed.min(Cost::ZERO);
        self.leave_idle(passed);
        match self.settings.scheduling {
            Scheduling::Bios => {
                self.allocate(1);
                // Nobody was there in windows that nobody saw.
                if passed > 1 {
                    self.scanned_each(|tenant| tenant.usage = Cost::ZERO);
                    self.allocate(passed - 1);
                }
            }
            Scheduling::Base => {
                for at in 0..self.scanned.len() {
                    let number = self.scanned[at];
                    let (base, alloc) = (self.levels_of(number).0, self.fixed_part(number));
                    let tenant = self.tenant(number);
                    tenant.base = base;
                    tenant.begin_window(alloc, passed as f64);
                }
            }
            Scheduling::Wild | Scheduling::Off => self.scanned_each(|tenant| {
                tenant.begin_window(Cost::ZERO, passed as f64);
            }),
        }
        while let Some(number) = self.blocked.pop_front() {
            self.enter(number, Place::Ready);
        }
    }

    fn scanned_each(&mut self, mut act: impl FnMut(&mut Tenant<T>)) {
        for number in &self.scanned {
            if let Some(tenant) = &mut self.tenants[*number as usize] {
                act(tenant);
            }
        }
    }

    /// Tenants without a request for a while are looked at no more (BurstCBS §6.6).
    fn leave_idle(&mut self, passed: u64) {
        let tenants = &mut self.tenants;
        let mut unpromised = 0;
        self.scanned.retain(|number| {
            let Some(tenant) = &mut tenants[*number as usize] else { return false };
            let is_idle = tenant.usage.is_zero() && tenant.waiting == 0;
            // In windows that nobody saw, nobody was there.
            tenant.idle = if is_idle { tenant.idle + passed } else { passed - 1 };
            if tenant.waiting > 0 {
                tenant.idle = 0;
            }
            if tenant.idle > IDLE_WINDOWS {
                (tenant.is_scanned, tenant.bursts) = (false, false);
                return false;
            }
            unpromised += usize::from(tenant.promise.base.is_none());
            true
        });
        self.divide(unpromised);
    }

    /// Algorithm 1, lines 1 to 13, for windows of which the last `passed - 1` saw nobody.
    fn allocate(&mut self, passed: u64) {
        let kept = self.settings.alpha.powi(passed.min(1_000) as i32);
        let weight = self.settings.weight_throttle;
        let mut unused = self.total - self.reserved();
        let (mut wanted, mut bases) = (Cost::ZERO, Cost::ZERO);
        for at in 0..self.scanned.len() {
            let number = self.scanned[at];
            let (base, burst) = self.levels_of(number);
            let Some(tenant) = &mut self.tenants[number as usize] else { continue };
            // Lines 4 to 8. As printed line 7 lowers what a tenant has that steadily uses a part of its base, below what it uses,
            // until it waits; and what covers it meanwhile is the reserve, which is for those who come back. So it keeps
            // what it used.
            let has_burst = !tenant.base.covers(&tenant.usage);
            (tenant.base, tenant.burst) = (base, burst);
            tenant.alloc = match has_burst || tenant.waiting > 0 {
                true => base.min(burst),
                false => (tenant.alloc * kept).max(tenant.usage).min(base).min(burst),
            };
            unused -= tenant.alloc;
            wanted += tenant.usage + tenant.queued * weight;
            bases += base;
        }
        let unused = unused.max(Cost::ZERO);
        // Line 10: a share for each unit of what was wanted, or of the base in dimensions of which nothing was.
        let of_wanted = unused.zip(wanted, |unused, wanted| if wanted > 0.0 { unused / wanted } else { 0.0 });
        let of_base = Cost(std::array::from_fn(|d| match wanted.0[d] > 0.0 || bases.0[d] <= 0.0 {
            true => 0.0,
            false => unused.0[d] / bases.0[d],
        }));
        self.burst.clear();
        self.spare = self.total - self.reserve;
        for number in &self.scanned {
            let Some(tenant) = &mut self.tenants[*number as usize] else { continue };
            let own = tenant.usage + tenant.queued * weight;
            let more = own.zip(of_wanted, |own, each| own * each) + tenant.base.zip(of_base, |base, each| base * each);
            // Lines 11 to 13.
            let alloc = (tenant.alloc + more).min(tenant.burst);
            tenant.bursts = !tenant.base.covers(&alloc);
            tenant.burst_windows += u64::from(tenant.bursts);
            tenant.begin_window(alloc, passed as f64);
            self.spare -= alloc;
            if tenant.bursts {
                self.burst.push(*number);
            }
        }
    }
}
