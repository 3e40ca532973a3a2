//! What is measured of a loop and its tenants, and what is told of them.

use super::super::account::Account;
use super::super::account::Place;
use super::super::cost::Cost;
use super::super::settings::Scheduling;
use super::super::tenant::Tenant;
use super::Scheduler;

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

impl<T> Scheduler<T> {
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

    /// Some waited for a window to begin, for so long, and of that the loop was idle: see [`Slack`](super::super::Slack). Who is
    /// bound by what somebody has set, or is short of something else than processor time, waits for no loop.
    pub fn on_wait(&mut self, waited_ns: u64, idle_ns: u64) {
        let waits_for_loop = |number: &u32| {
            let Account { next, balance, alloc, burst, .. } = &self.accounts[*number as usize];
            next.0[0] > balance.0[0] && alloc.0[0] < burst.0[0]
        };
        let is_asked = self.settings.measures && self.settings.scheduling == Scheduling::Bios;
        if is_asked && self.blocked.iter().any(waits_for_loop) {
            self.slack.on_wait(waited_ns, idle_ns);
        }
    }

    /// What a loop saw of its tenants since it was asked last, for [`super::Shares`]: the share of a window that each used or
    /// waits for. Of those that are looked at.
    pub fn demands(&self) -> impl Iterator<Item = (u32, u64, f64)> + '_ {
        self.scanned.iter().map(|number| {
            let account = &self.accounts[*number as usize];
            (*number, account.key, (account.usage + account.queued).share_of(&self.total))
        })
    }

    /// Whether at least so many requests of a tenant wait, and they take what it has of a window: what comes beyond them
    /// starts in no window that is near, so that it may as well go to another loop.
    pub fn has_enough(&self, tenant: u32, requests: usize) -> bool {
        let account = &self.accounts[tenant as usize];
        account.waiting >= requests && !account.alloc.covers(&account.queued)
    }

    /// Tells the keys of those that had more than their base since this was asked last.
    pub fn take_bursting(&mut self, mut tell: impl FnMut(u64)) {
        for number in &self.scanned {
            let account = &mut self.accounts[*number as usize];
            if account.burst_windows != std::mem::replace(&mut account.told_bursts, account.burst_windows) {
                tell(account.key);
            }
        }
    }

    /// How things stand.
    pub fn status(&self) -> impl Iterator<Item = TenantStatus> + '_ {
        self.present().map(|(_, account, tenant)| TenantStatus {
            key: account.key,
            started: account.started,
            throttled: tenant.throttled,
            reclaimed: tenant.reclaimed,
            from_reserve: tenant.from_reserve,
            waiting: account.waiting,
            waited_ns: tenant.waited_ns,
            waited_max_ns: tenant.waited_max_ns,
            burst_windows: account.burst_windows,
            base: account.base,
            scaled: if account.promised.is_some() { self.scale.0.into_iter().fold(1.0, f64::min) } else { 1.0 },
        })
    }

    /// How many tenants' bases the reserve covers at once, of the largest there are.
    pub fn covered_by_reserve(&self) -> f64 {
        let largest = self.present().map(|(_, account, _)| account.base.share_of(&self.total)).fold(0.0, f64::max);
        if largest > 0.0 { self.settings.reserve / largest } else { f64::INFINITY }
    }

    /// By how much requests are dearer than the profile says: by delay, and by measured processor time, less what the loop had
    /// beyond that.
    pub fn factors(&self) -> (f64, f64) {
        (self.delay.factor(), self.measured.ratio() / self.slack())
    }

    /// Checks the books, and says how many requests wait.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn audit(&self) -> Result<usize, String> {
        let waiting: usize = self.tenants.iter().flatten().map(Tenant::count_waiting).sum();
        if waiting != self.waiting {
            return Err(format!("{} are said to wait, and {waiting} do", self.waiting));
        }
        if self.reserve.0.iter().any(|left| *left < 0.0) {
            return Err(format!("the reserve is negative: {:?}", self.reserve));
        }
        let unpromised = self.count_unpromised();
        if unpromised != self.scanned_unpromised {
            return Err(format!("{} are said to be promised nothing, and {unpromised} are", self.scanned_unpromised));
        }
        for (number, account, tenant) in self.present() {
            let Account { key, waiting, place, .. } = account;
            let lines = [&self.ready, &self.blocked].map(|line| line.iter().filter(|other| **other == number).count());
            if lines[0] + lines[1] != usize::from(*place != Place::Nowhere) {
                return Err(format!("tenant {key} is in {lines:?} lines, at {place:?}"));
            }
            if *waiting > 0 && *place == Place::Nowhere {
                return Err(format!("requests of tenant {key} wait, and nobody knows"));
            }
            let next = tenant.first().map_or(Cost::ZERO, |first| first.cost);
            if *waiting != tenant.count_waiting() || account.next != next {
                return Err(format!("the account of tenant {key} says that {waiting} wait, {:?} first", account.next));
            }
            if !account.burst.covers(&account.alloc) && self.settings.scheduling == Scheduling::Bios {
                return Err(format!("tenant {key} was allocated more than its burst"));
            }
        }
        Ok(self.waiting)
    }

    /// Those that are there.
    fn present(&self) -> impl Iterator<Item = (u32, &Account, &Tenant<T>)> {
        let numbered = self.accounts.iter().zip(&self.tenants).enumerate();
        numbered.filter_map(|(at, (account, tenant))| Some((at as u32, account, tenant.as_ref()?)))
    }
}
