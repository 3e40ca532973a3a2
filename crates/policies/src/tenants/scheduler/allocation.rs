//! What each tenant may spend in a window, decided before it begins (Algorithm 1, lines 1 to 13).
//!
//! Each dimension is allocated by itself. Line 4 as printed knows one kind of usage: who used more than his base, or has
//! something that waits, keeps his base. With a vector of costs that would keep it for him in dimensions that he is not short
//! of, and nobody would get what he leaves there: two bursts, one short of processor time and one of bytes, would each have
//! a half of everything, and nobody the rest.

#[cfg(test)]
mod reference;

use super::super::IDLE_WINDOWS;
use super::super::account::{Account, Place};
use super::super::cost::{Cost, DIMENSIONS};
use super::super::settings::Scheduling;
use super::super::tenant::Tenant;
use super::Scheduler;

/// The part of everything that those share at least who were promised nothing.
const UNPROMISED_MIN: f64 = 0.05;

impl<T> Scheduler<T> {
    #[cold]
    pub(super) fn begin_window(&mut self, passed: u64) {
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
                    self.scanned_each(|account| account.usage = Cost::ZERO);
                    self.allocate(passed - 1);
                }
            }
            Scheduling::Base => {
                let all = self.fixed_weights();
                for at in 0..self.scanned.len() {
                    let number = self.scanned[at];
                    let (base, alloc) = (self.levels_of(number).0, self.fixed_part(number, all));
                    let account = self.account(number);
                    account.base = base;
                    account.begin_window(alloc, passed as f64);
                }
            }
            Scheduling::Wild | Scheduling::Off => self.scanned_each(|account| {
                account.begin_window(Cost::ZERO, passed as f64);
            }),
        }
        while let Some(number) = self.blocked.pop_front() {
            self.enter(number, Place::Ready);
        }
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
            let account = self.account(number);
            account.look_back(base, burst, kept, weight);
            unused -= account.alloc;
            wanted += account.wanted;
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
            let account = &mut self.accounts[*number as usize];
            let by_wanted = account.wanted.zip(of_wanted, |wanted, each| wanted * each);
            let more = by_wanted + account.base.zip(of_base, |base, each| base * each);
            // Lines 11 to 13.
            let alloc = (account.alloc + more).min(account.burst);
            account.begin_window(alloc, passed as f64);
            self.spare -= alloc;
            // What there is no end of is allocated, too, and is nothing that anybody could give.
            if (0..DIMENSIONS).any(|d| self.limited[d] & (alloc.0[d] > account.base.0[d])) {
                self.burst.push(*number);
            }
        }
    }

    /// Tenants without a request for a while are looked at no more (BurstCBS §6.6).
    fn leave_idle(&mut self, passed: u64) {
        let (accounts, unpromised) = (&mut self.accounts, &mut self.scanned_unpromised);
        *unpromised = 0;
        self.scanned.retain(|number| {
            let account = &mut accounts[*number as usize];
            account.count_idle(passed);
            account.is_scanned = account.idle <= IDLE_WINDOWS;
            *unpromised += usize::from(account.is_scanned && account.promised.is_none());
            account.is_scanned
        });
        self.divide();
    }

    fn scanned_each(&mut self, act: impl Fn(&mut Account)) {
        self.scanned.iter().for_each(|number| act(&mut self.accounts[*number as usize]));
    }

    #[cold]
    pub(super) fn begin_scanning(&mut self, number: u32) {
        self.scanned.push(number);
        self.scanned_unpromised += usize::from(self.account(number).promised.is_none());
        self.divide();
        let (base, burst) = self.levels_of(number);
        let alloc = match self.settings.scheduling {
            Scheduling::Base => self.fixed_part(number, self.fixed_weights()),
            _ => Cost::ZERO,
        };
        let account = self.account(number);
        (account.is_scanned, account.idle) = (true, 0);
        (account.base, account.burst, account.covered) = (base, burst, base);
        (account.alloc, account.balance, account.usage) = (alloc, alloc, Cost::ZERO);
    }

    /// Base and burst of a tenant in a window.
    #[inline]
    fn levels_of(&self, number: u32) -> (Cost, Cost) {
        let account = &self.accounts[number as usize];
        let base = match account.promised {
            Some(promised) => self.priced(promised.zip(self.scale, |base, scale| base * scale)),
            None => self.unpromised,
        };
        let burst = account.bound.map_or(Cost::UNLIMITED, |bound| self.priced(bound).max(base));
        (base, burst)
    }

    /// Writes down what a tenant is promised in each window, where it was promised something else.
    pub(super) fn enter_promise(&mut self, number: u32) {
        let seconds = self.seconds();
        let tenant = self.tenant(number);
        let promised = tenant.promise.base.map(|base| base * (seconds * tenant.part));
        let bound = tenant.promise.burst.map(|burst| burst * seconds);
        let account = self.account(number);
        (account.promised, account.bound) = (promised, bound);
    }

    /// What BaseCBS gives a tenant of every window: its part by base of `all` weights, whoever is there.
    fn fixed_part(&self, number: u32, all: f64) -> Cost {
        let own = self.tenants[number as usize].as_ref().map_or(0.0, |tenant| self.fixed_weight(tenant));
        self.total * (own / all.max(f64::MIN_POSITIVE))
    }

    /// The weights of all.
    fn fixed_weights(&self) -> f64 {
        self.tenants.iter().flatten().map(|tenant| self.fixed_weight(tenant)).sum()
    }

    fn fixed_weight(&self, tenant: &Tenant<T>) -> f64 {
        let base = tenant.promise.base.map(|base| (base * self.seconds()).share_of(&self.total));
        base.unwrap_or(1.0 / self.known as f64)
    }

    /// What everybody's base is, with what there is in this window.
    fn divide(&mut self) {
        let count = self.scanned_unpromised;
        let there = self.total - self.reserved();
        let for_promises = there * if count > 0 { 1.0 - UNPROMISED_MIN } else { 1.0 };
        self.scale = for_promises.zip(self.promised, |there, sum| if sum > there { there / sum } else { 1.0 });
        let left = there - self.promised.min(for_promises);
        self.unpromised = left * (1.0 / count.max(1) as f64);
    }

    /// What was promised in all, and to how many of those that are looked at nothing was.
    pub(super) fn weigh(&mut self) {
        let there = self.accounts.iter().zip(&self.tenants).filter(|(_, tenant)| tenant.is_some());
        let promised = there.filter_map(|(account, _)| account.promised);
        self.promised = promised.fold(Cost::ZERO, |sum, base| sum + base);
        self.scanned_unpromised = self.count_unpromised();
    }

    /// How many of those that are looked at were promised nothing.
    pub(super) fn count_unpromised(&self) -> usize {
        let is_unpromised = |number: &&u32| self.accounts[**number as usize].promised.is_none();
        self.scanned.iter().filter(is_unpromised).count()
    }

    /// What a window has, as things are priced now. Where everything is dearer by a factor, there is less by that.
    pub(super) fn price(&mut self) {
        let mut total = self.settings.per_second * (self.seconds() / self.delay.factor());
        total.0[0] *= self.slack() / self.measured.ratio();
        self.total = total;
    }

    /// By how much there is more than the profile says. Nothing, where something was promised: with it a victim
    /// had 17.4 of the 20 kIOPS of its base beside a burst of large requests (osdi24/fig21, seed 0), and 20.0 without.
    pub(super) fn slack(&self) -> f64 {
        match self.promised.is_zero() {
            true => self.slack.factor(),
            false => 1.0,
        }
    }

    pub(super) fn reserved(&self) -> Cost {
        match self.settings.scheduling {
            // Nobody comes back where there is one tenant.
            Scheduling::Bios if self.known > 1 => self.total * self.settings.reserve,
            _ => Cost::ZERO,
        }
    }
}
