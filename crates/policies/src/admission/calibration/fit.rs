//! The curve of NSDI 2026, figure 6: how the 95th percentile grows with the load.
//!
//! In an M/M/1 queue it is `k x bytes x -ln(1 - 0.95) / (mu - lambda)` (equation 1, with `k` for the form of the real
//! disk, see [`estimator`](super::super::estimator)). A device has a latency of its own besides, however idle it is: `w0`.

use super::super::estimator::LN_P95;
use super::sample::Point;

/// Up to which part of `mu` points count: nearer to it the model has no value.
const LOAD_MAX: f64 = 0.97;

/// `P95 = w0 + k x bytes x 3 / (mu - lambda)`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fit {
    /// The device's own latency, in nanoseconds: the 95th percentile alone.
    pub w0_ns: u64,
    /// What of the ideal queue's wait there is.
    pub k: f64,
    /// What is delivered at most, in bytes per second.
    pub mu: f64,
    /// Bytes of a request in the mean.
    pub mean_bytes: f64,
    /// How far off the curve is, in the median of the points it was made from, in percent of what was measured.
    pub off_percent: f64,
}

impl Fit {
    /// The curve whose relative errors have the least sum of squares; none where nothing was measured below `mu`.
    pub(super) fn of(points: &[Point], w0_ns: u64, mu: f64, mean_bytes: f64) -> Option<Fit> {
        let mut fit = Fit { w0_ns, k: 1.0, mu, mean_bytes, off_percent: 0.0 };
        let counts = |point: &&Point| !point.outran && point.delivered_bytes_per_sec < LOAD_MAX * mu;
        let points: Vec<&Point> = points.iter().filter(counts).collect();
        let (mut above, mut below) = (0.0, 0.0);
        for point in &points {
            let took = point.p95_ns.max(1) as f64;
            let wait = fit.wait_ns(point.delivered_bytes_per_sec)? / took;
            above += wait * (took - w0_ns as f64) / took;
            below += wait * wait;
        }
        if below <= 0.0 {
            return None;
        }
        fit.k = (above / below).max(0.0);
        let off = |point: &&Point| {
            let curve = fit.p95_ns(point.delivered_bytes_per_sec).unwrap_or(f64::INFINITY);
            (curve / point.p95_ns.max(1) as f64 - 1.0).abs() * 100.0
        };
        let mut offs: Vec<f64> = points.iter().map(off).collect();
        offs.sort_by(f64::total_cmp);
        fit.off_percent = offs[offs.len() / 2];
        Some(fit)
    }

    /// The curve at a rate in bytes per second; nothing where it has no end.
    pub fn p95_ns(&self, rate: f64) -> Option<f64> {
        Some(self.w0_ns as f64 + self.k * self.wait_ns(rate)?)
    }

    /// What the ideal queue's requests take.
    fn wait_ns(&self, rate: f64) -> Option<f64> {
        let left = self.mu - rate;
        (left > 0.0).then(|| self.mean_bytes * LN_P95 / left * 1e9)
    }
}
