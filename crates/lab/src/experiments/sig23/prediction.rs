//! How wrong it is to expect of a volume what it wrote before (DiffForward, SIGMETRICS 2023, §2.4): the prediction that migration
//! goes by, an average of intervals (EWMA).
//!
//! How errors of many intervals become one number the paper does not say. Here: of a volume, by how much predictions and what came
//! differ in all intervals together, by all that came; then the mean of volumes. (By interval there would be no number for one in
//! which nothing comes, and those are most.)

use super::balance::WARM_UP_NS;
use super::homes::expected;
use super::workload::{Traffic, Write};

/// See the module. In parts of what came.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Errors {
    /// The mean of volumes.
    pub of_volumes: f64,
    /// All volumes together: that of large ones.
    pub of_bytes: f64,
}

impl Errors {
    /// Of predictions for intervals of that length, for which the last one counts `last`.
    pub fn of(traffic: &Traffic, interval_ns: u64, last: f64) -> Errors {
        let intervals = traffic.writes.last().map_or(0, |last| last.at_ns / interval_ns) as usize;
        let each: Vec<(f64, f64)> = traffic
            .by_volume()
            .iter()
            .map(|writes| wrong(writes, interval_ns, intervals, last))
            .filter(|(_, came)| *came > 0.0)
            .collect();
        let (wrong, came) = each.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let of_volumes = each.iter().map(|(wrong, came)| wrong / came).sum::<f64>() / each.len() as f64;
        Errors { of_volumes, of_bytes: wrong / came }
    }
}

/// By how much predictions for a volume were wrong, and what came. Only whole intervals, after the warm-up.
fn wrong(writes: &[Write], interval_ns: u64, intervals: usize, last: f64) -> (f64, f64) {
    let mut bytes = vec![0u64; intervals];
    for write in writes {
        if let Some(bytes) = bytes.get_mut((write.at_ns / interval_ns) as usize) {
            *bytes += write.bytes;
        }
    }
    let (mut predicted, mut wrong, mut came) = (0.0, 0.0, 0.0);
    for (at, bytes) in bytes.into_iter().enumerate() {
        let bytes = bytes as f64;
        if at as u64 * interval_ns >= WARM_UP_NS {
            wrong += (bytes - predicted).abs();
            came += bytes;
        }
        predicted = expected(last, bytes, predicted);
    }
    (wrong, came)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// By hand: what is the same in each interval is known after a while, and what comes in every other one never is.
    #[test]
    fn what_changes_is_not_predicted() {
        let every = |step: usize, volume: u32| {
            (0..100).step_by(step).map(move |at| Write {
                at_ns: at * SECOND,
                volume,
                offset: 0,
                bytes: 100,
                is_burst: false,
            })
        };
        let of = |mut writes: Vec<Write>, volumes| {
            writes.sort_by_key(|write| write.at_ns);
            Errors::of(&Traffic { writes, sizes: vec![1 << 30; volumes] }, SECOND, 1.0)
        };
        assert_eq!(of(every(1, 0).collect(), 1), Errors { of_volumes: 0.0, of_bytes: 0.0 });
        let alternating = of(every(2, 0).collect(), 1);
        assert!((alternating.of_volumes - 2.0).abs() < 0.05, "{alternating:?}");
        let both = of(every(1, 0).chain(every(2, 1)).collect(), 2);
        assert!((both.of_volumes - 1.0).abs() < 0.05 && (both.of_bytes - 2.0 / 3.0).abs() < 0.05, "{both:?}");
    }
}
