//! The scheduler of one loop: who is there, and what each was promised.
//!
//! A window is [allocated](allocation) when it begins; [arrivals] spend that; [status] is what is told of it. What a window goes
//! through are [accounts](super::account), by tenants' numbers; what only a request or a question touches is beside them, in
//! [tenants](super::tenant) under the same numbers.

mod allocation;
mod arrivals;
mod status;

use std::collections::VecDeque;

use base::{Instant, Prng};

pub use arrivals::{Grant, Verdict};
pub use status::TenantStatus;

use super::account::Account;
use super::cost::{Cost, DIMENSIONS, UNLIMITED};
use super::delay::Delay;
use super::measured::Measured;
use super::settings::{Pricing, Promise, TenantsSettings};
use super::slack::Slack;
use super::tenant::Tenant;

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

/// See [the module](super). `T` is what the agent finds a waiting request by.
pub struct Scheduler<T> {
    settings: TenantsSettings,
    window_ns: u64,
    /// The present window.
    window: u64,
    /// What there is in a window, as things are priced now.
    total: Cost,
    /// What each has and spends; what is at a free number is nobody's.
    accounts: Vec<Account>,
    tenants: Vec<Option<Tenant<T>>>,
    free: Vec<u32>,
    /// Tenants that are allocated something.
    scanned: Vec<u32>,
    /// How many of those were promised nothing.
    scanned_unpromised: usize,
    /// Of those, the ones that got more than their base of something that others could be short of.
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
    /// The dimensions of which there can be too little.
    limited: [bool; DIMENSIONS],
    prng: Prng,
    delay: Delay,
    measured: Measured,
    slack: Slack,
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
            accounts: Vec::new(),
            tenants: Vec::new(),
            free: Vec::new(),
            scanned: Vec::new(),
            scanned_unpromised: 0,
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
            limited: settings.per_second.0.map(|rate| rate < UNLIMITED),
            prng: Prng::new(seed),
            delay: Delay::default(),
            measured: Measured::default(),
            slack: Slack::default(),
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
            self.accounts.push(Account::new(key));
            self.tenants.push(None);
            self.tenants.len() as u32 - 1
        });
        self.accounts[number as usize] = Account::new(key);
        self.tenants[number as usize] = Some(Tenant::new(promise));
        self.known += 1;
        self.enter_promise(number);
        self.weigh();
        number
    }

    /// A tenant is promised something else.
    pub fn set_promise(&mut self, number: u32, promise: Promise) {
        self.tenant(number).promise = promise;
        self.enter_promise(number);
        self.weigh();
    }

    /// What part of its base a tenant has on this loop from the next window on ([`super::Shares`]).
    pub fn set_part(&mut self, number: u32, part: f64) {
        let tenant = self.tenant(number);
        let before = std::mem::replace(&mut tenant.part, part);
        if let Some(base) = tenant.promise.base {
            self.promised = (self.promised + base * (self.seconds() * (part - before))).max(Cost::ZERO);
        }
        self.enter_promise(number);
    }

    /// A volume of a tenant; `weight`: how many of its requests may start in one turn among the volumes of that.
    pub fn add_volume(&mut self, tenant: u32, key: u64, weight: u32) -> VolumeNumber {
        let queue = self.tenant(tenant).queue(key, weight.max(1));
        VolumeNumber { tenant, queue }
    }

    /// A tenant of which nothing waits goes. Says whether it did.
    pub fn remove_tenant(&mut self, number: u32) -> bool {
        if self.account(number).waiting > 0 {
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

    #[inline]
    fn account(&mut self, number: u32) -> &mut Account {
        &mut self.accounts[number as usize]
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
