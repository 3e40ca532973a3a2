//! What part of a tenant's base each loop gives it: as much as it asked for there in the last window.
//!
//! A virtual machine's requests come to all loops, or to one; its base is one number. So loops divide it by demand, from one
//! table that they share, equally where there was none. Numbers of demand are weights: only their ratio counts.

use base::Map;

/// Demand of one tenant by loop, smoothed so that one window's chance does not move the base about.
#[derive(Clone, Debug, Default)]
struct Demand {
    by_loop: Vec<f64>,
    sum: f64,
}

/// The weight of a new window.
const WEIGHT: f64 = 0.25;

/// The table; its keys are what loops call tenants by.
#[derive(Clone, Debug)]
pub struct Shares {
    loops: usize,
    tenants: Map<u64, Demand>,
}

impl Shares {
    /// A table for so many loops.
    pub fn new(loops: usize) -> Shares {
        Shares { loops: loops.max(1), tenants: Map::default() }
    }

    /// What a loop saw of a tenant in its last window (usage and what waits), and its part of the base from here on.
    pub fn exchange(&mut self, tenant: u64, index: usize, demand: f64) -> f64 {
        if self.loops == 1 {
            return 1.0;
        }
        let loops = self.loops;
        let known = self.tenants.entry(tenant).or_default();
        known.by_loop.resize(loops, 0.0);
        let before = known.by_loop[index];
        known.by_loop[index] += WEIGHT * (demand - before);
        known.sum = known.by_loop.iter().sum();
        // Nobody is left without: who begins on a loop has something to begin with.
        let least = 0.1 / loops as f64;
        match known.sum > 0.0 {
            true => least + (1.0 - least * loops as f64) * known.by_loop[index] / known.sum,
            false => 1.0 / loops as f64,
        }
    }

    /// A tenant is gone.
    pub fn forget(&mut self, tenant: u64) {
        self.tenants.remove(&tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_goes_where_the_demand_is_and_is_never_more_than_one() {
        let mut shares = Shares::new(2);
        assert_eq!([shares.exchange(7, 0, 0.0), shares.exchange(7, 1, 0.0)], [0.5, 0.5]);
        for _ in 0..40 {
            shares.exchange(7, 0, 30.0);
            shares.exchange(7, 1, 10.0);
        }
        let parts = [shares.exchange(7, 0, 30.0), shares.exchange(7, 1, 10.0)];
        assert!((parts[0] - 0.725).abs() < 0.01 && (parts[0] + parts[1] - 1.0).abs() < 0.01, "{parts:?}");
        for _ in 0..200 {
            shares.exchange(7, 0, 0.0);
            shares.exchange(7, 1, 10.0);
        }
        let parts = [shares.exchange(7, 0, 0.0), shares.exchange(7, 1, 10.0)];
        assert!(parts[0] >= 0.05 && parts[1] > 0.94, "{parts:?}");
        assert_eq!(Shares::new(1).exchange(7, 0, 3.0), 1.0);
    }
}
