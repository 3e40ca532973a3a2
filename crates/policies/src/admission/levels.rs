//! What a volume has left of its base and burst levels ([`base::levels`]; EBS, FAST 2024, §3.2).
//!
//! Each level is a bucket of operations and one of bytes, refilled by the interval; a request needs something in both,
//! and its debt is paid by later intervals. Of the base level's tokens that an interval leaves over, a part is saved
//! where the volume has credits, and none otherwise.

use std::hash::BuildHasher;
use std::time::Duration;

use base::levels::{Credits, Levels, Rate};
use base::{Instant, Map};

/// One operation, in the parts that rates are counted in.
const OPERATION: i64 = 1_000_000;

/// Who a volume belongs to, as a server tells clients apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ClientId(pub u64);

impl ClientId {
    /// The client of that name: a hash, so that nobody keeps a table of every name that ever was.
    pub fn of(owner: &str) -> ClientId {
        ClientId(Map::<(), ()>::default().hasher().hash_one(owner))
    }
}

/// Tokens in one dimension.
#[derive(Clone, Copy, Debug, Default)]
struct Tokens {
    balance: i64,
    per_interval: i64,
    /// Most that may be there: one interval's, or what is saved.
    cap: i64,
    percent: i64,
}

impl Tokens {
    fn new(per_interval: u64, cap_intervals: u64, percent: u32) -> Tokens {
        let per_interval = per_interval.min(i64::MAX as u64 >> 24) as i64;
        let cap = per_interval.saturating_mul(1 + i64::try_from(cap_intervals).unwrap_or(i64::MAX));
        Tokens { balance: per_interval, per_interval, cap, percent: i64::from(percent) }
    }

    fn refill(&mut self, passed: u64) {
        let passed = i64::try_from(passed).unwrap_or(i64::MAX);
        // A debt is paid first; what is left of the interval before the last is saved in part, and the last counts.
        let debt = self.balance.min(0);
        let saved = self.balance.max(0).saturating_mul(self.percent) / 100;
        let between = self.per_interval.saturating_mul(passed - 1);
        let paid = (debt + between).min(0);
        let idle = (debt + between).max(0).saturating_mul(self.percent) / 100;
        self.balance = (paid + idle).saturating_add(saved).saturating_add(self.per_interval).min(self.cap);
    }
}

/// Tokens of a rate, refilled by the interval.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    operations: Option<Tokens>,
    bytes: Option<Tokens>,
}

impl Meter {
    fn new(rate: Rate, credits: Credits, interval: Duration) -> Meter {
        let nanos = interval.as_nanos().max(1);
        let per_interval =
            |per_sec: u64| u64::try_from(u128::from(per_sec) * nanos / 1_000_000_000).unwrap_or(u64::MAX);
        let cap = (u128::from(credits.cap_seconds) * 1_000_000_000 / nanos) as u64;
        let tokens =
            |per_sec: u64| (per_sec > 0).then(|| Tokens::new(per_interval(per_sec).max(1), cap, credits.percent));
        Meter { operations: tokens(rate.iops.saturating_mul(OPERATION as u64)), bytes: tokens(rate.bytes_per_sec) }
    }

    fn refill(&mut self, passed: u64) {
        self.operations.iter_mut().chain(&mut self.bytes).for_each(|tokens| tokens.refill(passed));
    }

    fn has_some(&self) -> bool {
        self.operations.iter().chain(&self.bytes).all(|tokens| tokens.balance > 0)
    }

    fn draw(&mut self, bytes: u64) {
        self.operations.iter_mut().for_each(|tokens| tokens.balance -= OPERATION);
        self.bytes.iter_mut().for_each(|tokens| tokens.balance -= bytes as i64);
    }
}

/// What a volume has left of its levels.
#[derive(Clone, Debug)]
pub struct Allowance {
    interval_ns: u64,
    levels: Levels,
    base: Option<Meter>,
    burst: Option<Meter>,
    interval: u64,
}

impl Allowance {
    /// A volume with these levels, as they are full.
    pub fn new(levels: Levels, interval: Duration, now: Instant) -> Allowance {
        let interval_ns = (interval.as_nanos() as u64).max(1);
        let meter = |rate: Rate, credits| (!rate.is_none()).then(|| Meter::new(rate, credits, interval));
        Allowance {
            interval_ns,
            levels,
            base: meter(levels.base, levels.credits),
            burst: meter(levels.burst, Credits::default()),
            interval: now.0 / interval_ns,
        }
    }

    /// Its levels.
    pub fn levels(&self) -> &Levels {
        &self.levels
    }

    /// Whether a request would be within the base level.
    pub fn has_base(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.base.as_ref().is_some_and(Meter::has_some)
    }

    /// Whether a request would be within the burst level.
    pub fn has_burst(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.burst.as_ref().is_none_or(Meter::has_some)
    }

    /// A request of `bytes` is started; `is_base` says on which level.
    pub fn draw(&mut self, bytes: u64, is_base: bool) {
        if let Some(meter) = self.base.as_mut().filter(|_| is_base) {
            meter.draw(bytes);
        }
        if let Some(meter) = &mut self.burst {
            meter.draw(bytes);
        }
    }

    fn refill(&mut self, now: Instant) {
        let interval = now.0 / self.interval_ns;
        if interval > self.interval {
            let passed = interval - self.interval;
            self.interval = interval;
            self.base.iter_mut().chain(&mut self.burst).for_each(|meter| meter.refill(passed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_millis(10);

    fn at(interval: u64) -> Instant {
        Instant(interval * 10_000_000)
    }

    fn base(iops: u64, bytes_per_sec: u64, credits: Credits) -> Allowance {
        let levels = Levels { base: Rate { iops, bytes_per_sec }, burst: Rate::default(), credits };
        Allowance::new(levels, T, at(0))
    }

    /// Base requests that are started when they come as fast as they may.
    fn started(allowance: &mut Allowance, intervals: std::ops::Range<u64>, bytes: u64) -> u64 {
        let mut count = 0;
        for interval in intervals {
            while allowance.has_base(at(interval)) {
                allowance.draw(bytes, true);
                count += 1;
            }
        }
        count
    }

    #[test]
    fn rates_hold_even_below_one_operation_in_an_interval() {
        for iops in [1, 7, 50, 99, 1000, 50_000] {
            let count = started(&mut base(iops, 0, Credits::default()), 0..1000, 4096);
            assert!(count >= 10 * iops && count <= 10 * iops + 1 + iops / 100, "{iops}: {count}");
        }
        let count = started(&mut base(0, 1_000_000, Credits::default()), 0..1000, 65_536);
        assert!((152..=154).contains(&count), "{count}");
        // The tighter of the two.
        let count = started(&mut base(1000, 1_000_000, Credits::default()), 0..1000, 65_536);
        assert!((152..=154).contains(&count), "{count}");
    }

    #[test]
    fn what_is_not_used_is_gone_or_saved() {
        let mut plain = base(1000, 0, Credits::default());
        assert_eq!(started(&mut plain, 500..501, 512), 10);
        let mut saving = base(1000, 0, Credits { cap_seconds: 2, percent: 100 });
        assert_eq!(started(&mut saving, 100..101, 512), 1010);
        assert_eq!(started(&mut saving, 10_000..10_001, 512), 2010, "no more than the cap");
        let mut half = base(1000, 0, Credits { cap_seconds: 100, percent: 50 });
        let count = started(&mut half, 100..101, 512);
        assert!((500..=520).contains(&count), "{count}");
    }

    #[test]
    fn the_burst_level_bounds_base_and_burst_together() {
        let levels = Levels {
            base: Rate { iops: 1000, bytes_per_sec: 0 },
            burst: Rate { iops: 3000, bytes_per_sec: 0 },
            credits: Credits::default(),
        };
        let mut allowance = Allowance::new(levels, T, at(0));
        let (mut with_base, mut all) = (0, 0);
        while allowance.has_burst(at(0)) {
            let is_base = allowance.has_base(at(0));
            allowance.draw(4096, is_base);
            with_base += u64::from(is_base);
            all += 1;
        }
        assert_eq!((with_base, all), (10, 30));
        assert!(Allowance::new(Levels::default(), T, at(0)).has_burst(at(0)), "without levels there is no bound");
    }
}
