//! Counts of values by size: latencies, depths, lengths. Plain counters, without locks, clocks or allocation on the
//! path of a record.
//!
//! Values fall into buckets whose width is an eighth of their octave, so that a quantile is at most 12.5% too high
//! and a record is two shifts and an addition. Values below 8 have a bucket of their own.

/// Sub-buckets of one octave.
const STEPS: usize = 8;
/// Buckets in all: 8 exact ones, then eight for each octave from 2^3 to 2^63.
const BUCKETS: usize = STEPS + 61 * STEPS;

/// How often values of each size were seen. The unit is the owner's choice; latencies are in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Histogram {
    /// Empty until the first value: most kinds of requests are never seen on most volumes.
    counts: Box<[u64]>,
    count: u64,
    sum: u64,
    max: u64,
}

impl Histogram {
    /// An empty histogram; the first value gives it 4 KiB of counters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts `value` once.
    pub fn record(&mut self, value: u64) {
        self.counters()[bucket_of(value)] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(value);
        self.max = self.max.max(value);
    }

    /// Adds everything that `other` counted.
    pub fn merge(&mut self, other: &Histogram) {
        if other.count == 0 {
            return;
        }
        for (mine, theirs) in self.counters().iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The sum of all values.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The largest value; zero when nothing was counted.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value that `per_million` parts of a million of all values do not exceed (500,000: the median; 999,000:
    /// the 99.9th percentile), at most 12.5% too high; zero when nothing was counted.
    pub fn quantile(&self, per_million: u64) -> u64 {
        let rank = self.rank(per_million);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_bound(bucket).min(self.max);
            }
        }
        self.max
    }

    /// About the same, without the steps: values of a bucket are taken to lie evenly in it. To compare two of them; one that must
    /// not be too low is [`Histogram::quantile`].
    pub fn estimate(&self, per_million: u64) -> f64 {
        let rank = self.rank(per_million);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            if seen + count >= rank {
                let below = bucket.checked_sub(1).map_or(0.0, |bucket| upper_bound(bucket) as f64);
                let above = upper_bound(bucket).min(self.max) as f64;
                return below + (above - below) * (rank - seen) as f64 / *count as f64;
            }
            seen += count;
        }
        self.max as f64
    }

    fn rank(&self, per_million: u64) -> u64 {
        (u128::from(self.count) * u128::from(per_million)).div_ceil(1_000_000).max(1) as u64
    }

    /// How many values lie below each of the powers of two 2^`first`, 2^(`first`+1) and so on, from 8 on: exact,
    /// because every bucket ends at or between them.
    pub fn counts_below_powers(&self, first: u32, powers: usize) -> Vec<u64> {
        assert!(first >= 3, "the buckets of smaller values do not fill an octave");
        let mut seen = 0;
        let mut next = 0;
        (0..powers)
            .map(|power| {
                let end = STEPS + (first as usize + power - 3) * STEPS;
                // An empty histogram has no counters.
                seen += self.counts.iter().take(end).skip(next).sum::<u64>();
                next = end;
                seen
            })
            .collect()
    }

    /// The largest value of each bucket that is not empty, ascending, and how many values it has.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let seen = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        seen.map(|(bucket, count)| (upper_bound(bucket), *count))
    }

    /// How many values are surely not above `bound`: those of the buckets that end at or below it.
    pub fn count_up_to(&self, bound: u64) -> u64 {
        self.counts.iter().enumerate().take_while(|(bucket, _)| upper_bound(*bucket) <= bound).map(|(_, n)| n).sum()
    }

    fn counters(&mut self) -> &mut [u64] {
        if self.counts.is_empty() {
            self.counts = vec![0; BUCKETS].into_boxed_slice();
        }
        &mut self.counts
    }
}

/// The bucket that `value` falls into.
fn bucket_of(value: u64) -> usize {
    if value < STEPS as u64 {
        return value as usize;
    }
    let octave = 63 - value.leading_zeros() as usize;
    let step = (value >> (octave - 3)) as usize - STEPS;
    STEPS + (octave - 3) * STEPS + step
}

/// The largest value of a bucket.
fn upper_bound(bucket: usize) -> u64 {
    if bucket < STEPS {
        return bucket as u64;
    }
    let octave = (bucket - STEPS) / STEPS;
    let step = ((bucket - STEPS) % STEPS + STEPS + 1) as u128;
    u64::try_from((step << octave) - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_histogram_answers_like_any_other() {
        let empty = Histogram::new();
        assert_eq!((empty.quantile(999_000), empty.count_up_to(u64::MAX), empty.max()), (0, 0, 0));
        assert_eq!(empty.counts_below_powers(10, 3), [0, 0, 0]);
        assert_eq!(empty.buckets().next(), None);
    }

    #[test]
    fn buckets_that_are_not_empty_come_in_order() {
        let mut histogram = Histogram::new();
        [1_000, 3, 1_000].into_iter().for_each(|value| histogram.record(value));
        assert_eq!(histogram.buckets().collect::<Vec<_>>(), [(3, 1), (1_023, 2)]);
    }
    use crate::Prng;

    #[test]
    fn every_value_falls_into_the_bucket_that_bounds_it() {
        let mut random = Prng::new(7);
        let edges = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        let others = std::iter::repeat_with(|| random.next_u64() >> (random.next_u64() % 64)).take(10_000);
        for value in edges.chain([u64::MAX]).chain(others) {
            let bucket = bucket_of(value);
            assert!(bucket < BUCKETS && value <= upper_bound(bucket), "{value}");
            assert!(bucket == 0 || value > upper_bound(bucket - 1), "{value}");
        }
    }

    #[test]
    fn quantiles_are_at_most_an_eighth_too_high() {
        let mut histogram = Histogram::new();
        assert_eq!((histogram.quantile(500_000), histogram.max(), histogram.count()), (0, 0, 0));
        (1..=100_000u64).for_each(|value| histogram.record(value));
        for per_million in [1_000, 500_000, 990_000, 999_000, 1_000_000] {
            let exact = per_million / 10;
            let found = histogram.quantile(per_million);
            assert!((exact..=exact * 9 / 8).contains(&found), "{per_million}: {found} for {exact}");
            let estimated = histogram.estimate(per_million);
            assert!((estimated / exact as f64 - 1.0).abs() < 0.01, "{per_million}: {estimated} for {exact}");
        }
        assert_eq!((histogram.quantile(1_000_000), histogram.estimate(1_000_000)), (100_000, 100_000.0));
        assert_eq!(Histogram::new().estimate(500_000), 0.0);
        assert_eq!(histogram.sum(), 5_000_050_000);
    }

    #[test]
    fn cumulative_counts_never_claim_too_much() {
        let mut one = Histogram::new();
        let mut other = Histogram::new();
        [3, 900, 1_000, 1_100].into_iter().for_each(|value| one.record(value));
        other.record(5_000_000);
        one.merge(&other);
        assert_eq!((one.count_up_to(2), one.count_up_to(3), one.count_up_to(1023)), (0, 1, 3));
        assert_eq!(one.counts_below_powers(3, 9), [1, 1, 1, 1, 1, 1, 1, 3, 4]);
        assert_eq!(one.counts_below_powers(22, 3), [4, 5, 5]);
        assert_eq!((one.count_up_to(u64::MAX), one.max()), (5, 5_000_000));
    }
}
