//! The main and the cheque bucket (NSDI 2026, §4.2, dual-bucket throttling).
//!
//! Every interval the main bucket is filled with what the limit gives; nothing is carried over but debt. Then, while the
//! cheque bucket is not full, the main one gives it some: what the estimate says that the store has left, at least 5%
//! of an interval's tokens, at most a full cheque. So in the long run no more is spent than the limit gives, and a full
//! cheque bucket lets steady segments overdraw by its size, once.
//!
//! Where hot segments wait when an interval begins, they do not get its tokens at once: all that it has for them would
//! start together, and steady requests would find the store below busy with it. The interval has *parts* then, and each
//! gives them its share. This is ours: the paper does not say when within an interval who waits is started.
//!
//! A request starts where a balance is positive, however large it is; the debt is paid by later intervals. Intervals that
//! passed unnoticed are made up for at the next look: an idle server needs no timer.

use std::time::Duration;

use base::Instant;

/// Least share of an interval's tokens that a cheque bucket which is not full gets, in percent.
const CHEQUE_FLOW_MIN_PERCENT: i64 = 5;

/// Which bucket tokens came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bucket {
    /// For all.
    Main,
    /// For steady segments: an overdraw.
    Cheque,
}

/// Both buckets of a server. Tokens are bytes.
#[derive(Clone, Debug)]
pub struct Buckets {
    interval_ns: u64,
    main_size: i64,
    cheque_size: i64,
    main: i64,
    cheque: i64,
    /// The interval that was issued last.
    issued: u64,
    /// What the main bucket had when it was issued, and what hot segments took of that.
    issue: i64,
    hot_drawn: i64,
    /// The parts of the interval, and how many of them have begun.
    parts: u64,
    parts_begun: u64,
    /// Whether hot segments get nothing for now.
    hot_held: bool,
    /// All that was ever issued, what they were full of at first included.
    issued_total: i128,
}

impl Buckets {
    /// Two full buckets; without a cheque bucket where its size is 0.
    pub fn new(interval: Duration, main_size: u64, cheque_size: u64, now: Instant) -> Buckets {
        let interval_ns = (interval.as_nanos() as u64).max(1);
        let (main_size, cheque_size) = (main_size.max(1) as i64, cheque_size as i64);
        Buckets {
            interval_ns,
            main_size,
            cheque_size,
            main: main_size,
            cheque: cheque_size,
            issued: now.0 / interval_ns,
            issue: main_size,
            hot_drawn: 0,
            parts: 1,
            parts_begun: 1,
            hot_held: false,
            issued_total: i128::from(main_size) + i128::from(cheque_size),
        }
    }

    /// Tokens in the main bucket; below zero: debt.
    pub fn main(&self) -> i64 {
        self.main
    }

    /// Tokens in the cheque bucket; below zero: debt.
    pub fn cheque(&self) -> i64 {
        self.cheque
    }

    /// What a full cheque bucket holds.
    pub fn cheque_size(&self) -> u64 {
        self.cheque_size as u64
    }

    /// When the last tokens were issued.
    pub fn interval_begun(&self) -> Instant {
        Instant(self.issued.saturating_mul(self.interval_ns))
    }

    /// An upper bound of the tokens that there ever were.
    pub fn issued_at_most(&self) -> i128 {
        self.issued_total
    }

    /// Tokens of an interval.
    pub fn main_size(&self) -> u64 {
        self.main_size as u64
    }

    /// Changes the tokens of the intervals to come, and what a full cheque bucket holds.
    pub fn resize(&mut self, main_size: u64, cheque_size: u64) {
        self.main_size = main_size.max(1) as i64;
        self.set_cheque_size(cheque_size);
    }

    /// Has hot segments get nothing, or what is theirs.
    pub fn set_hot_held(&mut self, held: bool) {
        self.hot_held = held;
    }

    /// Changes what a full cheque bucket holds. What it holds beyond that is gone.
    pub fn set_cheque_size(&mut self, size: u64) {
        self.cheque_size = size as i64;
        self.cheque = self.cheque.min(self.cheque_size);
    }

    /// When the next tokens are issued.
    pub fn next_refill(&self) -> Instant {
        Instant((self.issued + 1).saturating_mul(self.interval_ns))
    }

    /// When hot segments get more of the present interval's tokens, if it is not all theirs yet.
    pub fn next_part(&self) -> Option<Instant> {
        let begins = || self.issued * self.interval_ns + self.interval_ns * self.parts_begun / self.parts;
        (self.parts_begun < self.parts).then(|| Instant(begins()))
    }

    /// Has the tokens of the present interval given to hot segments in so many parts. Right after a refill.
    pub fn divide(&mut self, now: Instant, parts: u64) {
        (self.parts, self.parts_begun) = (parts.max(1), 0);
        self.begin_parts(now);
    }

    /// Begins the parts whose time has come.
    pub fn begin_parts(&mut self, now: Instant) {
        let elapsed = (now.0 - self.issued * self.interval_ns).min(self.interval_ns - 1);
        self.parts_begun = elapsed * self.parts / self.interval_ns + 1;
    }

    /// Tokens that hot segments may draw.
    pub fn for_hot(&self) -> i64 {
        let share = match self.parts_begun < self.parts {
            _ if self.hot_held => 0,
            true => self.issue.saturating_mul(self.parts_begun as i64) / self.parts as i64,
            false => return self.main,
        };
        self.main.min(share - self.hot_drawn)
    }

    /// Issues the tokens of every interval that has begun since the last time. `available` is what the store is
    /// estimated to have left, in bytes per second, where that is known. Says whether there were any.
    pub fn refill(&mut self, now: Instant, available: Option<u64>) -> bool {
        let interval = now.0 / self.interval_ns;
        let Some(passed) = interval.checked_sub(self.issued).filter(|passed| *passed > 0) else { return false };
        self.issued = interval;
        self.issued_total += i128::from(self.main_size) * i128::from(passed);
        let flow = self.cheque_flow(available);
        let mut left = passed;
        while left > 0 {
            left -= 1;
            self.main = self.main.min(0) + self.main_size;
            let given = flow.min(self.cheque_size - self.cheque).min(self.main).max(0);
            self.main -= given;
            self.cheque += given;
            let is_full = self.cheque == self.cheque_size && self.main == self.main_size;
            if is_full {
                break;
            }
        }
        (self.issue, self.hot_drawn, self.parts, self.parts_begun) = (self.main, 0, 1, 1);
        true
    }

    /// What a cheque bucket that is not full gets of an interval's tokens.
    fn cheque_flow(&self, available: Option<u64>) -> i64 {
        let least = (self.main_size * CHEQUE_FLOW_MIN_PERCENT / 100).max(1);
        let estimated = available.map_or(self.cheque_size, |per_sec| {
            i64::try_from(u128::from(per_sec) * u128::from(self.interval_ns) / 1_000_000_000).unwrap_or(i64::MAX)
        });
        estimated.min(self.cheque_size).max(least)
    }

    /// Draws `cost` for a steady segment: from the main bucket, or else from the cheque.
    pub fn draw_steady(&mut self, cost: u64) -> Option<Bucket> {
        let (balance, bucket) = match self.main > 0 {
            true => (&mut self.main, Bucket::Main),
            false => (&mut self.cheque, Bucket::Cheque),
        };
        (*balance > 0).then(|| {
            *balance -= cost as i64;
            bucket
        })
    }

    /// Draws `cost` for a hot segment: from the main bucket only, and no more than its parts so far.
    pub fn draw_hot(&mut self, cost: u64) -> Option<Bucket> {
        (self.for_hot() > 0).then(|| {
            self.main -= cost as i64;
            self.hot_drawn += cost as i64;
            Bucket::Main
        })
    }
}

#[cfg(test)]
mod tests {
    use base::Prng;

    use super::*;

    const T: Duration = Duration::from_millis(10);

    fn at(interval: u64) -> Instant {
        Instant(interval * 10_000_000 + 3)
    }

    fn drain_main(buckets: &mut Buckets) {
        while buckets.draw_hot(100).is_some() {}
    }

    #[test]
    fn steady_ones_overdraw_once_and_are_paid_back_from_the_main_bucket() {
        let mut buckets = Buckets::new(T, 1000, 200, at(0));
        drain_main(&mut buckets);
        assert_eq!(buckets.draw_hot(1), None);
        assert_eq!(buckets.draw_steady(150), Some(Bucket::Cheque));
        assert_eq!(buckets.draw_steady(150), Some(Bucket::Cheque), "a positive balance is enough");
        assert_eq!((buckets.draw_steady(1), buckets.cheque()), (None, -100));
        assert!(!buckets.refill(at(0), Some(0)));
        // 80 bytes per interval: the estimate.
        assert!(buckets.refill(at(1), Some(8_000)));
        assert_eq!((buckets.main(), buckets.cheque()), (920, -20));
        // Without an estimate to speak of, 5%.
        assert!(buckets.refill(at(2), Some(0)));
        assert_eq!((buckets.main(), buckets.cheque()), (950, 30));
        assert!(buckets.refill(at(3), Some(u64::MAX)));
        assert_eq!((buckets.main(), buckets.cheque()), (830, 200));
        assert!(buckets.refill(at(4), None));
        assert_eq!((buckets.main(), buckets.cheque()), (1000, 200));
    }

    #[test]
    fn a_debt_is_paid_by_later_intervals() {
        let mut buckets = Buckets::new(T, 1000, 0, at(7));
        assert_eq!(buckets.draw_hot(3500), Some(Bucket::Main));
        for (interval, main) in [(8, -1500), (9, -500), (10, 500), (11, 1000)] {
            assert!(buckets.refill(at(interval), None));
            assert_eq!(buckets.main(), main);
        }
        assert_eq!(buckets.draw_hot(3500), Some(Bucket::Main));
        assert!(buckets.refill(at(14), None));
        assert_eq!(buckets.main(), 500, "intervals that nobody saw count");
        assert!(buckets.refill(at(1_000_000_000_000), None));
        assert_eq!(buckets.main(), 1000);
    }

    /// However it is drawn from, no more is spent than issued, and looks more or less often make no difference.
    #[test]
    fn no_token_comes_from_nothing() {
        for seed in 0..200 {
            let mut prng = Prng::new(seed);
            let (main, cheque) = (prng.between(100, 5000), prng.below(2000));
            let mut buckets = Buckets::new(T, main, cheque, at(0));
            let (mut spent, mut interval, mut largest) = (0, 0, 0);
            for _ in 0..500 {
                interval += prng.below(3);
                buckets.refill(at(interval), Some(prng.below(1_000_000)));
                for _ in 0..prng.below(30) {
                    let cost = prng.between(1, 1000);
                    let drawn = if prng.one_in(2) { buckets.draw_hot(cost) } else { buckets.draw_steady(cost) };
                    spent += if drawn.is_some() { cost } else { 0 };
                    largest = largest.max(cost);
                }
                let issued = main * (interval + 1) + cheque;
                assert!(spent <= issued + 2 * largest, "seed {seed}: {spent} of {issued}");
            }
        }
    }
}
