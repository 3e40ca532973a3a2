//! Algorithm 1 once more, lines 1 to 13, as plainly as it can be said: one dimension after the other, nothing remembered
//! from one window to the next but what a tenant is described by. What the scheduler decides is the same to the last bit.
//!
//! Tenants do as they like meanwhile; whenever a window begins, what each had is copied, both decide, and all of it is
//! compared: who is looked at, levels, allocations, balances, who bursts, what is left for nobody.

use base::{Instant, Prng};

use super::super::super::cost::{Cost, DIMENSIONS};
use super::super::super::settings::{Pricing, Promise, Scheduling, TenantsSettings};
use super::super::super::{IDLE_WINDOWS, UNLIMITED};
use super::super::Scheduler;
use super::UNPROMISED_MIN;

const WINDOW: u64 = 1_000_000;
/// What may be left over of a base, in parts of it.
const CARRIED: f64 = 0.125;

/// What a tenant is described by where a window ends.
#[derive(Clone, PartialEq, Debug)]
struct Plain {
    number: u32,
    promise: Promise,
    part: f64,
    base: Cost,
    burst: Cost,
    alloc: Cost,
    balance: Cost,
    covered: Cost,
    usage: Cost,
    queued: Cost,
    /// What its next request that waits costs.
    next: Option<Cost>,
    idle: u64,
    bursts: bool,
    burst_windows: u64,
}

/// A window as it is decided: of tenants that are looked at, and of nobody.
#[derive(PartialEq, Debug)]
struct Decided {
    tenants: Vec<Plain>,
    spare: Cost,
    donors: Vec<u32>,
}

/// What was met in all windows: a test that never gets somewhere says nothing of it.
#[derive(Default, Debug)]
struct Met {
    windows: u64,
    short_in_some: u64,
    capped: u64,
    debts: u64,
    kept: u64,
    scaled: u64,
    unpromised: u64,
    pauses: u64,
    left: u64,
    nothing_wanted: u64,
}

/// Copies what there is.
fn decided<T>(scheduler: &Scheduler<T>) -> Decided {
    let plain = |number: &u32| {
        let account = &scheduler.accounts[*number as usize];
        let tenant = scheduler.tenants[*number as usize].as_ref().unwrap();
        Plain {
            number: *number,
            promise: tenant.promise,
            part: tenant.part,
            base: account.base,
            burst: account.burst,
            alloc: account.alloc,
            balance: account.balance,
            covered: account.covered,
            usage: account.usage,
            queued: account.queued,
            next: tenant.first().map(|first| first.cost),
            idle: account.idle,
            bursts: scheduler.burst.contains(number),
            burst_windows: account.burst_windows,
        }
    };
    let tenants = scheduler.scanned.iter().map(plain).collect();
    Decided { tenants, spare: scheduler.spare, donors: scheduler.burst.clone() }
}

/// One scheduler's numbers that hold for all tenants of a window.
struct Reference<'a> {
    settings: &'a TenantsSettings,
    total: Cost,
    reserved: Cost,
    /// The sum of what was promised in a window.
    promised: Cost,
}

impl Reference<'_> {
    /// What is decided after these `passed` windows, the last of which saw requests only if it is the only one.
    fn window(&self, mut tenants: Vec<Plain>, passed: u64, met: &mut Met) -> Decided {
        let before = tenants.len();
        tenants.retain_mut(|tenant| {
            tenant.idle = match (tenant.next, tenant.usage == Cost::ZERO) {
                (Some(_), _) => 0,
                (None, true) => tenant.idle + passed,
                (None, false) => passed - 1,
            };
            tenant.idle <= IDLE_WINDOWS
        });
        met.left += (before - tenants.len()) as u64;
        let mut spare = self.allocate(&mut tenants, 1, met);
        if passed > 1 {
            met.pauses += 1;
            spare = self.allocate(&mut tenants, passed - 1, met);
        }
        let donors = tenants.iter().filter(|tenant| tenant.bursts).map(|tenant| tenant.number).collect();
        Decided { tenants, spare, donors }
    }

    fn allocate(&self, tenants: &mut [Plain], passed: u64, met: &mut Met) -> Cost {
        met.windows += 1;
        let levels: Vec<(Cost, Cost)> = tenants.iter().map(|tenant| self.levels(tenant, tenants, met)).collect();
        for (tenant, (base, _)) in tenants.iter_mut().zip(&levels) {
            let beyond = (0..DIMENSIONS).any(|d| tenant.usage.0[d] > base.0[d] * (1.0 + CARRIED));
            tenant.burst_windows += u64::from(beyond);
            tenant.bursts = false;
        }
        let mut short = vec![0; tenants.len()];
        let mut spare = Cost::ZERO;
        for d in 0..DIMENSIONS {
            spare.0[d] = self.allocate_one(d, tenants, &levels, passed, &mut short, met);
        }
        met.short_in_some += short.iter().filter(|count| (1..DIMENSIONS).contains(count)).count() as u64;
        for (tenant, (base, burst)) in tenants.iter_mut().zip(levels) {
            (tenant.base, tenant.burst, tenant.usage) = (base, burst, Cost::ZERO);
        }
        spare
    }

    /// One dimension; returns what nobody was allocated.
    fn allocate_one(
        &self,
        d: usize,
        tenants: &mut [Plain],
        levels: &[(Cost, Cost)],
        passed: u64,
        short: &mut [usize],
        met: &mut Met,
    ) -> f64 {
        let kept = self.settings.alpha.powi(passed.min(1_000) as i32);
        let mut unused = self.total.0[d] - self.reserved.0[d];
        let (mut wants, mut allocs) = (Vec::new(), Vec::new());
        for (at, tenant) in tenants.iter().enumerate() {
            let (base, burst) = (levels[at].0.0[d], levels[at].1.0[d]);
            let usage = tenant.usage.0[d];
            let next = tenant.next.map_or(0.0, |next| next.0[d]);
            // Lines 4 to 8.
            let is_short = usage > tenant.base.0[d] || next > tenant.balance.0[d];
            let alloc = match is_short {
                true => base.min(burst),
                false => (tenant.alloc.0[d] * kept).max(usage).min(base.min(burst)),
            };
            short[at] += usize::from(is_short);
            unused -= alloc;
            allocs.push(alloc);
            // Line 10, what is above its bar.
            wants.push(if is_short { usage + tenant.queued.0[d] * self.settings.weight_throttle } else { usage });
        }
        let unused = unused.max(0.0);
        let sum_of_wants = wants.iter().fold(0.0, |sum, want| sum + want);
        let sum_of_bases = levels.iter().fold(0.0, |sum, (base, _)| sum + base.0[d]);
        met.nothing_wanted += u64::from(sum_of_wants == 0.0 && sum_of_bases > 0.0);
        let mut spare = self.total.0[d] - self.reserved.0[d];
        for (at, tenant) in tenants.iter_mut().enumerate() {
            let (base, burst) = (levels[at].0.0[d], levels[at].1.0[d]);
            let more = match (sum_of_wants > 0.0, sum_of_bases > 0.0) {
                (true, _) => wants[at] * (unused / sum_of_wants),
                (false, true) => base * (unused / sum_of_bases),
                (false, false) => 0.0,
            };
            // Lines 11 to 13.
            let alloc = (allocs[at] + more).min(burst);
            met.capped += u64::from(allocs[at] + more > burst);
            tenant.bursts |= alloc > base && self.settings.per_second.0[d] < UNLIMITED;
            spare -= alloc;
            // Debts are paid out of the bases of windows that nobody saw; who waits keeps less than his next request.
            let debt = (tenant.balance.0[d].min(0.0) + base * (passed as f64 - 1.0)).min(0.0);
            let kept = tenant.next.map_or(0.0, |next| tenant.balance.0[d].max(0.0).min(next.0[d]));
            met.debts += u64::from(debt < 0.0);
            met.kept += u64::from(kept > 0.0);
            tenant.alloc.0[d] = alloc;
            tenant.balance.0[d] = alloc + debt + kept;
            tenant.covered.0[d] = (tenant.covered.0[d] + base * passed as f64).min(base * (1.0 + CARRIED));
        }
        spare
    }

    /// Base and burst of one, beside those that are looked at.
    fn levels(&self, tenant: &Plain, all: &[Plain], met: &mut Met) -> (Cost, Cost) {
        let unpromised = all.iter().filter(|tenant| tenant.promise.base.is_none()).count();
        let seconds = WINDOW as f64 / 1e9;
        let base = match tenant.promise.base {
            Some(base) => {
                let scaled = std::array::from_fn(|d| {
                    let there = self.total.0[d] - self.reserved.0[d];
                    let there = there * if unpromised > 0 { 1.0 - UNPROMISED_MIN } else { 1.0 };
                    let is_over = self.promised.0[d] > there;
                    met.scaled += u64::from(is_over);
                    base.0[d] * (seconds * tenant.part) * if is_over { there / self.promised.0[d] } else { 1.0 }
                });
                self.priced(Cost(scaled))
            }
            None => {
                met.unpromised += 1;
                Cost(std::array::from_fn(|d| {
                    let there = self.total.0[d] - self.reserved.0[d];
                    (there - self.promised.0[d].min(there * (1.0 - UNPROMISED_MIN))) * (1.0 / unpromised as f64)
                }))
            }
        };
        let burst = match tenant.promise.burst {
            Some(burst) => self.priced(burst * seconds),
            None => Cost([UNLIMITED; DIMENSIONS]),
        };
        // Who was promised no burst has no bound, also where his base is more than what counts as one.
        let floor = if tenant.promise.burst.is_some() { base } else { Cost::ZERO };
        (base, Cost(std::array::from_fn(|d| burst.0[d].max(floor.0[d]))))
    }

    fn priced(&self, cost: Cost) -> Cost {
        let share = |d: usize| cost.0[d] / self.total.0[d];
        match self.settings.pricing {
            Pricing::Vector => cost,
            Pricing::Scalar => self.total * (0..DIMENSIONS).map(share).fold(0.0, f64::max),
        }
    }
}

/// Settings of any kind, with a limit in some dimensions.
fn drawn_settings(prng: &mut Prng) -> TenantsSettings {
    let mut per_second = Cost::UNLIMITED * 1000.0;
    for d in 0..DIMENSIONS {
        if d == 0 || prng.one_in(2) {
            per_second.0[d] = prng.between(20, 300) as f64 * 1000.0;
        }
    }
    TenantsSettings {
        scheduling: Scheduling::Bios,
        pricing: if prng.one_in(5) { Pricing::Scalar } else { Pricing::Vector },
        alpha: prng.below(101) as f64 / 100.0,
        weight_throttle: prng.below(5) as f64,
        reserve: prng.below(3) as f64 * 0.05,
        recovers: !prng.one_in(4),
        adjusts: prng.one_in(2),
        measures: prng.one_in(2),
        per_second,
        ..TenantsSettings::default()
    }
}

/// An amount of nothing or something, up to `most`, in each dimension.
fn drawn(prng: &mut Prng, most: u64) -> Cost {
    Cost(std::array::from_fn(|_| if prng.one_in(3) { 0.0 } else { prng.below(most * 8) as f64 / 7.0 }))
}

fn drawn_promise(prng: &mut Prng) -> Promise {
    let base = (!prng.one_in(3)).then(|| drawn(prng, 30) * 1000.0);
    let burst = prng.one_in(3).then(|| drawn(prng, 150) * 1000.0);
    Promise { base, burst }
}

/// Begins the window of this time, if it is another one, and compares.
fn begin(scheduler: &mut Scheduler<u32>, now: Instant, seed: u64, met: &mut Met) {
    let passed = now.0 / WINDOW - scheduler.window;
    if passed == 0 {
        return;
    }
    let before = decided(scheduler);
    scheduler.roll(now);
    let reserved = match scheduler.known {
        0 | 1 => Cost::ZERO,
        _ => scheduler.total * scheduler.settings.reserve,
    };
    let (total, promised) = (scheduler.total, scheduler.promised);
    let reference = Reference { settings: &scheduler.settings, total, reserved, promised };
    let expected = reference.window(before.tenants, passed, met);
    let found = decided(scheduler);
    for (found, expected) in found.tenants.iter().zip(&expected.tenants) {
        assert_eq!(found, expected, "seed {seed}, window {}", scheduler.window);
    }
    assert_eq!(found, expected, "seed {seed}, window {}", scheduler.window);
}

#[test]
fn every_window_is_allocated_as_the_algorithm_says() {
    let mut met = Met::default();
    for seed in 0..150 {
        let mut prng = Prng::new(seed);
        let settings = drawn_settings(&mut prng);
        let mut scheduler: Scheduler<u32> = Scheduler::new(settings, seed, Instant(0));
        let mut volumes = Vec::new();
        // What is asked for, at most, in one go: lines empty now and then, or never.
        let (count, eager) = (prng.between(2, 20), prng.between(1, 8));
        let mut now = 0;
        for step in 0..2_000 {
            let pause = if prng.one_in(100) { 80 * WINDOW } else { WINDOW / 4 };
            now += prng.below(pause);
            begin(&mut scheduler, Instant(now), seed, &mut met);
            if step < count || prng.one_in(200) {
                let tenant = scheduler.add_tenant(step, drawn_promise(&mut prng));
                volumes.extend([1, 2].map(|key| scheduler.add_volume(tenant, key, key as u32)));
            }
            let volume = volumes[prng.below(volumes.len() as u64) as usize];
            match prng.below(100) {
                0 => scheduler.set_promise(volume.tenant, drawn_promise(&mut prng)),
                1 => scheduler.set_part(volume.tenant, prng.below(11) as f64 / 10.0),
                2 => scheduler.on_delay(prng.below(900_000)),
                3 => scheduler.on_busy(WINDOW, prng.below(WINDOW)),
                4 if volumes.len() > 4 => {
                    if scheduler.remove_tenant(volume.tenant) {
                        volumes.retain(|other| other.tenant != volume.tenant);
                    }
                }
                _ => {
                    for _ in 0..prng.below(eager) {
                        let most = if prng.one_in(30) { 400 } else { 6 };
                        scheduler.submit(Instant(now), volume, drawn(&mut prng, most), || volume.tenant);
                    }
                }
            }
            for _ in 0..prng.below(20) {
                scheduler.next_grant(Instant(now));
            }
        }
    }
    let Met { windows, short_in_some, capped, debts, kept, scaled, unpromised, pauses, left, nothing_wanted } = met;
    let least = [short_in_some, capped, debts, kept, scaled, unpromised, pauses, left, nothing_wanted];
    assert!(windows > 10_000 && least.iter().all(|count| *count > 100), "{met:?}");
}
