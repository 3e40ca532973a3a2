//! How much is called a burst, so that an operator's limits hold (DiffForward, SIGMETRICS 2023, §4: "Detection sensitivity adjustment").
//!
//! **Intuition.** A lower TH calls more a burst: load is spread better, and more has to be logged, found again and merged. The paper
//! leaves TH to the operator, and says that it should follow what an operator can say: how much overhead there may be. So: TH goes
//! down in small steps, to the paper's own, while what forwarding costs is within its limits; and up in large ones as soon as one
//! of them is not kept. A volume of which more is logged than its owners can merge becomes one of which less is.
//!
//! It is the rule by which TCP finds its window: what is steady about it is that it never stops to look.

use std::time::Duration;

/// Shares of what is written are of so many intervals, in which what is longer ago counts for less: a volume that is calm but for one
/// burst a minute writes most of an interval into logs then, and little of the minute.
const INTERVALS: u64 = 60;

/// What the operator allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// So many of a hundred written bytes may be logged, over about a minute.
    pub logged_percent: u32,
    /// So many bytes may wait in the logs of a volume.
    pub log_bytes: u64,
    /// So old may an entry become.
    pub lag: Duration,
    /// TH lies between these: so much average traffic.
    pub threshold: (Duration, Duration),
    /// And is never fewer bytes.
    pub threshold_bytes: u64,
}

impl Default for Limits {
    /// The paper's own numbers: TH of its text, and of its prototype (docs/RESULTS.md), and 3 MiB wait in a log on average (§3.4), of
    /// at most eight. Of how much may be logged it says nothing: with half of it writes take a quarter longer than with the best TH,
    /// with three quarters as long (docs/RESULTS.md, "What Levee adds"). The least of TH is ours: a volume that
    /// writes less often than each 50 ms is not all bursts ([`crate::burst`]), and what has 1 MiB keeps nobody waiting for long. With
    /// 256 KiB a tenth of traffic without any burst was one (bench/README.md).
    fn default() -> Self {
        Limits {
            logged_percent: 75,
            log_bytes: 32 << 20,
            lag: Duration::from_secs(5),
            threshold: (Duration::from_millis(50), Duration::from_millis(800)),
            threshold_bytes: 1 << 20,
        }
    }
}

/// What was seen of a volume in an interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Bytes that were written, and those of them that were logged because they were a burst.
    pub written: u64,
    /// See there.
    pub logged: u64,
    /// Bytes that wait in its logs now.
    pub log_bytes: u64,
    /// How long the oldest entry waits.
    pub lag: Duration,
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    limits: Limits,
    threshold: Duration,
    /// Bytes that were written, and logged, of late.
    written: u64,
    logged: u64,
}

impl Tuning {
    /// TH begins at its least.
    pub fn new(limits: Limits) -> Tuning {
        Tuning { limits, threshold: limits.threshold.0, written: 0, logged: 0 }
    }

    /// An interval is over in which this was seen: TH from here on. Nothing was written and nothing waits: nothing is learned.
    pub fn on_interval(&mut self, seen: Seen) -> Duration {
        let (least, most) = self.limits.threshold;
        let of_late = |before: u64, more: u64| (before - before.div_ceil(INTERVALS)).saturating_add(more);
        (self.written, self.logged) = (of_late(self.written, seen.written), of_late(self.logged, seen.logged));
        let is_too_much = |logged: u64, written: u64| {
            u128::from(logged) * 100 > u128::from(written) * u128::from(self.limits.logged_percent)
        };
        let is_late = seen.log_bytes > self.limits.log_bytes || seen.lag > self.limits.lag;
        let of_late_and_now = [is_too_much(self.logged, self.written), is_too_much(seen.logged, seen.written)];
        self.threshold = match (is_late, of_late_and_now) {
            (true, _) | (_, [true, true]) => (self.threshold * 3 / 2).clamp(least, most),
            (false, [false, false]) if seen != Seen::default() => (self.threshold * 19 / 20).clamp(least, most),
            // Nothing was seen; or a burst within a minute of which little was logged; or less is logged already, after too much.
            (false, _) => self.threshold,
        };
        self.threshold
    }

    /// The least of TH in bytes.
    pub fn threshold_bytes(&self) -> u64 {
        self.limits.threshold_bytes
    }

    /// TH.
    pub fn threshold(&self) -> Duration {
        self.threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: Seen = Seen { written: 100_000, logged: 75_000, log_bytes: 32 << 20, lag: Duration::from_secs(5) };

    #[test]
    fn each_limit_raises_it_and_it_comes_back() {
        let over = [
            Seen { logged: 80_000, ..WELL },
            Seen { log_bytes: (32 << 20) + 1, ..WELL },
            Seen { lag: Duration::from_millis(5_001), ..WELL },
        ];
        for seen in over {
            let mut tuning = Tuning::new(Limits::default());
            assert_eq!(tuning.on_interval(WELL), Duration::from_millis(50));
            assert_eq!(tuning.on_interval(seen), Duration::from_millis(75));
            assert_eq!(tuning.on_interval(Seen::default()), Duration::from_millis(75), "nothing was seen");
            for _ in 0..20 {
                tuning.on_interval(seen);
            }
            assert_eq!(tuning.threshold(), Duration::from_millis(800), "and no farther");
            for _ in 0..100 {
                tuning.on_interval(Seen { logged: 50_000, ..WELL });
            }
            assert_eq!(tuning.threshold(), Duration::from_millis(50));
        }
    }

    /// A burst is logged as it is, however much of an interval, where what is logged of a minute is within its limit.
    #[test]
    fn a_burst_does_not_raise_it() {
        let mut tuning = Tuning::new(Limits::default());
        let calm = Seen { written: 1_000_000, ..Seen::default() };
        for _ in 0..20 {
            tuning.on_interval(calm);
        }
        for _ in 0..4 {
            assert_eq!(tuning.on_interval(Seen { logged: 9_000_000, written: 10_000_000, ..calm }).as_millis(), 50);
        }
        // One that does not end does.
        let mut last = Duration::ZERO;
        for _ in 0..10 {
            last = tuning.on_interval(Seen { logged: 9_000_000, written: 10_000_000, ..calm });
        }
        assert!(last > Duration::from_millis(200), "{last:?}");
    }

    /// A volume of which a share is logged that falls with TH: it ends near its limit, and stays there.
    #[test]
    fn it_settles_where_the_limit_is() {
        let mut tuning = Tuning::new(Limits { logged_percent: 20, ..Limits::default() });
        let mut shares = Vec::new();
        for _ in 0..400 {
            // A tenth at 500 ms, everything at 50.
            let logged = (5_000 / tuning.threshold().as_millis() as u64).min(100);
            shares.push(logged);
            tuning.on_interval(Seen { written: 100, logged, log_bytes: 0, lag: Duration::ZERO });
        }
        let last = &shares[200..];
        let mean = last.iter().sum::<u64>() as f64 / last.len() as f64;
        assert!((13.0..=21.0).contains(&mean), "{mean}");
        assert!(last.iter().all(|share| *share <= 25), "{last:?}");
    }
}
