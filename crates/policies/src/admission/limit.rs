//! The limit, and the sizes of both buckets that follow from it: looked at once in an interval.
//!
//! A limit is set or learned ([`super::knee`]). What is set is believed, and judged: one that is far above what the store
//! below takes protects nobody, and is told. The cheque bucket follows what steady segments ask for.

use std::time::Duration;

use base::Instant;

use super::admit::{Admission, Volume};
use super::estimator::Estimate;
use crate::background::Work;

/// How often demand may change the cheque bucket's size.
const RESIZE: Duration = Duration::from_millis(100);
/// It holds what steady segments ask for in so many intervals, and the part of that which is forgotten in each.
const CHEQUE_INTERVALS: u64 = 2;
/// See [`CHEQUE_INTERVALS`].
const DEMAND_FORGOTTEN: u64 = 64;

/// Latency of so many times what requests take alone, for so many intervals, is no accident.
const SLOW_STRETCH: u64 = 3;
/// See [`SLOW_STRETCH`].
const SLOW_INTERVALS: u64 = 200;

impl<T> Admission<T> {
    /// Something was done that nobody waits for: dumps, garbage collection, copies.
    pub fn on_background(&mut self, work: &Work) {
        self.background.add(work);
    }

    /// See [`super::knee::Knee::disturb`].
    pub fn disturb(&mut self, until: Instant) {
        if let Some(knee) = &mut self.knee {
            knee.disturb(until);
        }
    }

    /// What the store has left, in bytes per second, as far as that is known: background work takes no more.
    pub fn available(&self) -> Option<u64> {
        match &self.knee {
            Some(knee) => knee.available(),
            None => self.estimate().map(|estimate| estimate.available_bytes_per_sec),
        }
    }

    /// What was delivered at most while latency had taken off, if the limit that was set is far more than that: once.
    pub fn take_excess(&mut self) -> Option<u64> {
        match self.slow.intervals {
            SLOW_INTERVALS.. if !self.slow.is_told => {
                self.slow.is_told = true;
                Some(self.slow.bytes_per_sec)
            }
            _ => None,
        }
    }

    /// Looks whether the limit that was set is so high that it never holds anybody up.
    fn judge_limit(&mut self) {
        let is_slow = |estimate: &Estimate| {
            estimate.is_alone_known
                && estimate.p95_ns > SLOW_STRETCH * estimate.alone_ns
                && estimate.arrivals_bytes_per_sec < self.limit / 2
        };
        match self.estimate().filter(is_slow) {
            Some(estimate) => {
                self.slow.intervals += 1;
                self.slow.bytes_per_sec = self.slow.bytes_per_sec.max(estimate.arrivals_bytes_per_sec);
            }
            None => (self.slow.intervals, self.slow.bytes_per_sec) = (0, 0),
        }
    }

    /// The estimate: of a limit that was set.
    pub(super) fn estimate(&self) -> Option<Estimate> {
        self.estimator.estimate().filter(|_| self.limit < u64::MAX)
    }

    /// Looks at what the last interval says of the limit and of demand.
    pub(super) fn review_limit(&mut self, now: Instant) {
        self.background.look(now);
        if self.knee.is_none() {
            self.estimator.update(now, self.background.bytes_per_sec());
            self.judge_limit();
        }
        self.learn(now);
        let forgotten = self.steady_demand.div_ceil(DEMAND_FORGOTTEN);
        self.steady_demand = std::mem::take(&mut self.steady_drawn).max(self.steady_demand - forgotten);
        if now.since(self.resized) >= RESIZE {
            self.resized = now;
            self.buckets.set_cheque_size(self.cheque_size());
        }
    }

    /// Looks at what the store below takes, and gives both buckets their sizes.
    fn learn(&mut self, now: Instant) {
        let is_shared = self.settings.learns.is_some_and(|learns| self.is_shared(now, learns.absent));
        let Some(knee) = &mut self.knee else { return };
        knee.look(now, self.waiting > 0, is_shared, &self.background);
        if knee.holds() {
            // Who is held is not calm because it does not ask for more.
            for number in self.rings.hot.iter() {
                self.monitor.keep_hot(&mut self.lines.get_mut(*number).track, now);
            }
        }
        self.buckets.set_hot_held(knee.holds());
        let limit = knee.limit().unwrap_or(u64::MAX);
        if limit != self.limit {
            self.limit = limit;
            let (main, _) = self.settings.bucket_sizes(limit);
            self.buckets.resize(main, self.cheque_size());
            self.monitor.set_share(main.saturating_mul(self.settings.hot_share_percent) / 100);
        }
    }

    /// Whether more than one volume used the store not longer ago than that.
    pub(super) fn is_shared(&self, now: Instant, absent: Duration) -> bool {
        let is_used = |volume: &&Volume| volume.used_at.is_some_and(|at| now.since(at) < absent);
        let mut used = self.volumes.iter().filter(is_used).map(|volume| volume.part_of);
        let first = used.next();
        used.any(|other| Some(other) != first)
    }

    /// What the cheque bucket holds: what was set, or what steady segments may ask for at once, up to twice of that. Too
    /// small, they wait; too large, the store below is asked for more than it takes.
    ///
    /// **Chosen.** It is never smaller than what was set: a volume that wakes would find little of it before its demand is known,
    /// and what nobody draws asks the store below for nothing.
    fn cheque_size(&self) -> u64 {
        let (_, usual) = self.settings.bucket_sizes(self.limit);
        match self.settings.cheque_follows_demand {
            true => self.steady_demand.saturating_mul(CHEQUE_INTERVALS).clamp(usual, usual.saturating_mul(2)),
            false => usual,
        }
    }
}
