//! What the scheduler of tenants takes at the beginning of a window, by itself and in real time: time is an argument here, too.

use std::hint::black_box;
use std::time::Duration;

use base::Instant;
use policies::tenants::{Cost, Frontend, Operation, Promise, Scheduler, TenantsSettings};

/// A window, in nanoseconds.
const WINDOW: u64 = 1_000_000;
/// Windows of each number of tenants, and how many of the first are left out, which have more to do.
const ROUNDS: u64 = 2_000;
const FIRST: usize = 200;

/// So many tenants, and what a window with them takes.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Window {
    /// Tenants.
    pub known: u64,
    /// Those of them that ask for something in each window.
    pub active: u64,
    /// What the scheduler takes for a window, in microseconds: the median, and the least.
    pub median_us: f64,
    /// See `median_us`.
    pub lowest_us: f64,
}

/// Measures windows with so many tenants, of which so many are active. `clock`: the time that has passed.
pub(super) fn measure(known: u64, active: u64, clock: &dyn Fn() -> Duration) -> Window {
    let mut scheduler: Scheduler<()> = Scheduler::new(TenantsSettings::default(), 1, Instant(0));
    let base = Some(Cost([2e8 / known as f64, 1e9, 1e9, 1e9]));
    let add = |key| {
        let tenant = scheduler.add_tenant(key, Promise { base, burst: None });
        scheduler.add_volume(tenant, 0, 1)
    };
    let volumes: Vec<_> = (0..known).map(add).collect();
    let cost = scheduler.cost(Frontend::VhostUser, Operation::Read, 4096);
    let timed = |window: u64| {
        for volume in &volumes[..active as usize] {
            black_box(scheduler.submit(Instant(window * WINDOW), *volume, cost, || ()));
        }
        while scheduler.next_grant(Instant(window * WINDOW)).is_some() {}
        let begun = clock();
        // Nothing: what the clock takes is no part of it.
        black_box(scheduler.next_look(Instant((window + 1) * WINDOW)));
        let turned = clock();
        black_box(scheduler.next_grant(Instant((window + 1) * WINDOW)));
        (clock() - turned).saturating_sub(turned - begun).as_nanos() as f64 / 1e3
    };
    let mut rounds: Vec<f64> = (1..ROUNDS).map(timed).skip(FIRST).collect();
    rounds.sort_by(f64::total_cmp);
    Window { known, active, median_us: rounds[rounds.len() / 2], lowest_us: rounds[0] }
}
