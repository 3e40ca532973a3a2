//! What each tenant may spend in a window, decided before it begins (Algorithm 1, lines 1 to 13).
//!
//! Each dimension is allocated by itself. Line 4 as printed knows one kind of usage: who used more than his base, or has
//! something that waits, keeps his base. With a vector of costs that would keep it for him in dimensions that he is not short
//! of, and nobody would get what he leaves there: two bursts, one short of processor time and one of bytes, would each have
//! a half of everything, and nobody the rest.

#[cfg(test)]
mod reference;

use super::super::IDLE_WINDOWS;
use super::super::cost::Cost;
use super::super::settings::Scheduling;
use super::super::tenant::Tenant;
use super::{Place, Scheduler};

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
            tenant.look_back();
            tenant.burst_windows += u64::from(tenant.has_burst(&base));
            (tenant.base, tenant.burst) = (base, burst);
            let whole = base.min(burst);
            let lowered = (tenant.alloc * kept).max(tenant.usage).min(whole);
            tenant.alloc = Cost(std::array::from_fn(|d| if tenant.is_short[d] { whole.0[d] } else { lowered.0[d] }));
            unused -= tenant.alloc;
            wanted += tenant.wanted(weight);
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
            let own = tenant.wanted(weight);
            let more = own.zip(of_wanted, |own, each| own * each) + tenant.base.zip(of_base, |base, each| base * each);
            // Lines 11 to 13.
            let alloc = (tenant.alloc + more).min(tenant.burst);
            tenant.bursts = !tenant.base.covers(&alloc);
            tenant.begin_window(alloc, passed as f64);
            self.spare -= alloc;
            if tenant.bursts {
                self.burst.push(*number);
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

    fn scanned_each(&mut self, mut act: impl FnMut(&mut Tenant<T>)) {
        for number in &self.scanned {
            if let Some(tenant) = &mut self.tenants[*number as usize] {
                act(tenant);
            }
        }
    }

    #[cold]
    pub(super) fn begin_scanning(&mut self, number: u32) {
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

    /// What everybody's base is, with what there is in this window, where `count` of those that are looked at were promised
    /// nothing.
    fn divide(&mut self, count: usize) {
        let there = self.total - self.reserved();
        let for_promises = there * if count > 0 { 1.0 - UNPROMISED_MIN } else { 1.0 };
        self.scale = for_promises.zip(self.promised, |there, sum| if sum > there { there / sum } else { 1.0 });
        let left = there - self.promised.min(for_promises);
        self.unpromised = left * (1.0 / count.max(1) as f64);
    }

    /// What was promised in all.
    pub(super) fn weigh(&mut self) {
        let seconds = self.seconds();
        let promises = self.tenants.iter().flatten();
        let bases = promises.filter_map(|tenant| Some(tenant.promise.base? * (seconds * tenant.part)));
        self.promised = bases.fold(Cost::ZERO, |sum, base| sum + base);
    }

    /// What a window has, as things are priced now. Where everything is dearer by a factor, there is less by that.
    pub(super) fn price(&mut self) {
        let mut total = self.settings.per_second * (self.seconds() / self.delay.factor());
        total.0[0] /= self.measured.ratio();
        self.total = total;
    }

    pub(super) fn reserved(&self) -> Cost {
        match self.settings.scheduling {
            // Nobody comes back where there is one tenant.
            Scheduling::Bios if self.known > 1 => self.total * self.settings.reserve,
            _ => Cost::ZERO,
        }
    }
}
