//! How much bandwidth the store below has left, from the latency of recent I/O (NSDI 2026, §4.2, equations 1 and 2, and
//! appendix A).
//!
//! **Intuition.** In an M/M/1 queue with service rate `mu` and arrival rate `lambda` the time of a request is
//! exponential with rate `mu - lambda`, so that any percentile tells what is left: `w_p = -alpha ln(1-p) / (mu -
//! lambda)`. (The print lost the sign in both equations.) A P99999 takes minutes of samples, a P95 a tenth of a second,
//! and the one predicts the other. Turned around, with a headroom `h` for the error of the model and for latency that
//! nobody wants: `delta = -alpha ln(1-p) / w_p - h`. It sees background work that no counter of the server does.
//!
//! **Units.** Rates in bytes per second, times in nanoseconds. One request of `b` bytes takes `b / mu`, so that an ideal
//! queue has `alpha = b`. The paper's constant (8000) misfits mixed sizes; ours is `k` times the mean size of the
//! window's requests. `k` is a setting, or fitted while the caller says that nothing else uses the store: then `mu -
//! lambda` is known, and the equation gives `k`.

use std::time::Duration;

use base::Instant;

/// Slots of the sliding window.
const SLOTS: usize = 10;
/// Sub-buckets of an octave of latency: a percentile is at most 6.25% too high.
const STEPS: u64 = 16;
/// Latencies from 1 us to 68 s, in nanoseconds by powers of two.
const FIRST_POWER: u32 = 10;
const OCTAVES: usize = 27;
const CELLS: usize = 1 + STEPS as usize * OCTAVES;
/// `-ln(1 - p)` for P95 and for P99999.
const LN_P95: f64 = 2.995_732_273_553_991;
const LN_P99999: f64 = 11.512_925_464_970_229;
/// How long the last estimate is held.
const HELD: Duration = Duration::from_secs(5);
/// Weight of a new fit of `k`.
const FIT_WEIGHT: f64 = 1.0 / 16.0;
/// Loads between which a fit means something: an idle queue says nothing of waiting, a full one is not stationary.
const FIT_LOAD: std::ops::Range<f64> = 0.2..0.9;

/// What is assumed of the store below.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct EstimatorSettings {
    /// `mu`: what it serves when nothing else uses it, in bytes per second. [P] 2130 (the unit slipped in print).
    pub service_bytes_per_sec: u64,
    /// `h`: what is left alone, in bytes per second. [P] 330, of 2130.
    pub headroom_bytes_per_sec: u64,
    /// `k`: see above.
    pub k: f64,
    /// Whether `k` is fitted.
    pub fits: bool,
    /// How far back the percentile looks.
    pub window: Duration,
    /// Requests that a percentile needs; with fewer, the last one is held, for some seconds.
    pub samples_min: u64,
}

impl Default for EstimatorSettings {
    fn default() -> Self {
        EstimatorSettings {
            service_bytes_per_sec: 2_130_000_000,
            headroom_bytes_per_sec: 330_000_000,
            k: 1.0,
            fits: false,
            window: Duration::from_millis(100),
            samples_min: 200,
        }
    }
}

#[derive(Clone, Debug)]
struct Slot {
    /// The tenth of a window that it counts.
    number: u64,
    cells: Box<[u32; CELLS]>,
    requests: u64,
    bytes: u64,
}

/// The recent latencies of a server, and what follows from them.
#[derive(Clone, Debug)]
pub struct Estimator {
    settings: EstimatorSettings,
    slot_ns: u64,
    slots: Vec<Slot>,
    /// Sum over the window's slots.
    cells: Box<[u32; CELLS]>,
    requests: u64,
    bytes: u64,
    k: f64,
    p95_ns: Option<u64>,
    available: Option<u64>,
    estimated_at: Instant,
}

impl Estimator {
    /// Nothing seen yet.
    pub fn new(settings: EstimatorSettings) -> Estimator {
        let slot_ns = (settings.window.as_nanos() as u64 / SLOTS as u64).max(1);
        let slot = Slot { number: 0, cells: Box::new([0; CELLS]), requests: 0, bytes: 0 };
        Estimator {
            settings,
            slot_ns,
            slots: vec![slot; SLOTS],
            cells: Box::new([0; CELLS]),
            requests: 0,
            bytes: 0,
            k: settings.k,
            p95_ns: None,
            available: None,
            estimated_at: Instant::ZERO,
        }
    }

    /// A request of `bytes` was done, `latency_ns` after it got its tokens.
    pub fn on_done(&mut self, now: Instant, latency_ns: u64, bytes: u64) {
        let number = now.0 / self.slot_ns;
        let cell = cell_of(latency_ns);
        let at = (number % SLOTS as u64) as usize;
        if self.slots[at].number != number {
            self.forget(at);
            self.slots[at].number = number;
        }
        let slot = &mut self.slots[at];
        slot.cells[cell] += 1;
        slot.requests += 1;
        slot.bytes += bytes;
        self.cells[cell] += 1;
        self.requests += 1;
        self.bytes += bytes;
    }

    /// Looks at the window that ends now: once per interval is enough. `alone` says that nothing but the requests
    /// counted here uses the store.
    pub fn update(&mut self, now: Instant, alone: bool) {
        let oldest = (now.0 / self.slot_ns).saturating_sub(SLOTS as u64 - 1);
        for at in 0..SLOTS {
            if self.slots[at].number < oldest && self.slots[at].requests > 0 {
                self.forget(at);
            }
        }
        if self.requests < self.settings.samples_min.max(1) {
            if now.since(self.estimated_at) > HELD {
                (self.p95_ns, self.available) = (None, None);
            }
            return;
        }
        self.estimated_at = now;
        let p95_ns = self.quantile_95();
        let mean_bytes = self.bytes as f64 / self.requests as f64;
        let per_ns = mean_bytes * LN_P95 / p95_ns as f64;
        if self.settings.fits && alone {
            let arrivals = self.bytes as f64 / self.settings.window.as_secs_f64();
            let service = self.settings.service_bytes_per_sec as f64;
            if FIT_LOAD.contains(&(arrivals / service)) {
                let k = (service - arrivals) / (per_ns * 1e9);
                self.k += (k.clamp(0.01, 1000.0) - self.k) * FIT_WEIGHT;
            }
        }
        let left = self.k * per_ns * 1e9 - self.settings.headroom_bytes_per_sec as f64;
        self.p95_ns = Some(p95_ns);
        self.available = Some(left.max(0.0) as u64);
    }

    /// `delta_p`: what can be used besides, in bytes per second (equation 2). Nothing before the first `samples_min`
    /// requests.
    pub fn available(&self) -> Option<u64> {
        self.available
    }

    /// The 95th percentile of the last window that had enough requests, in nanoseconds.
    pub fn p95_ns(&self) -> Option<u64> {
        self.p95_ns
    }

    /// The 99.999th percentile that equation 1 predicts from it.
    pub fn predicted_p99999_ns(&self) -> Option<u64> {
        self.p95_ns.map(|p95| (p95 as f64 * (LN_P99999 / LN_P95)) as u64)
    }

    /// `k` as it is now.
    pub fn k(&self) -> f64 {
        self.k
    }

    fn quantile_95(&self) -> u64 {
        let rank = (self.requests * 95).div_ceil(100);
        let mut seen = 0;
        for (cell, count) in self.cells.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= rank {
                return upper_bound(cell);
            }
        }
        upper_bound(CELLS - 1)
    }

    fn forget(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        for (sum, count) in self.cells.iter_mut().zip(slot.cells.iter_mut()) {
            *sum -= std::mem::take(count);
        }
        self.requests -= std::mem::take(&mut slot.requests);
        self.bytes -= std::mem::take(&mut slot.bytes);
    }
}

/// Where a latency is counted.
fn cell_of(ns: u64) -> usize {
    let Some(power) = ns.checked_ilog2().filter(|power| *power >= FIRST_POWER) else { return 0 };
    let step = (ns >> (power - 4)) & (STEPS - 1);
    (1 + (power - FIRST_POWER) as usize * STEPS as usize + step as usize).min(CELLS - 1)
}

/// The highest latency that is counted there.
fn upper_bound(cell: usize) -> u64 {
    let Some(cell) = cell.checked_sub(1) else { return (1 << FIRST_POWER) - 1 };
    let (power, step) = (FIRST_POWER + (cell as u64 / STEPS) as u32, cell as u64 % STEPS);
    (1 << power) + ((step + 1) << (power - 4)) - 1
}

#[cfg(test)]
mod tests {
    use base::Prng;

    use super::*;

    /// A simulated M/M/1 queue: requests of `bytes` each in the mean, exponential, at `load` of `mu`.
    fn queue(seed: u64, mu: f64, load: f64, bytes: f64, estimator: &mut Estimator, seconds: f64) -> Vec<u64> {
        let mut prng = Prng::new(seed);
        let mut exponential = |mean: f64| -mean * (1.0 - prng.below(1 << 53) as f64 / (1u64 << 53) as f64).ln();
        let (mut now, mut free_at, mut latencies) = (0.0f64, 0.0f64, Vec::new());
        let mut done = std::collections::BinaryHeap::new();
        while now < seconds {
            now += exponential(bytes / (mu * load));
            let served = exponential(bytes / mu);
            free_at = free_at.max(now) + served;
            let latency = ((free_at - now) * 1e9) as u64;
            latencies.push(latency);
            done.push(std::cmp::Reverse(((free_at * 1e9) as u64, latency)));
            while done.peek().is_some_and(|next| next.0.0 <= (now * 1e9) as u64) {
                let Some(std::cmp::Reverse((at, latency))) = done.pop() else { break };
                estimator.on_done(Instant(at), latency, bytes as u64);
            }
        }
        estimator.update(Instant((now * 1e9) as u64), true);
        latencies.sort_unstable();
        latencies
    }

    fn settings() -> EstimatorSettings {
        EstimatorSettings { headroom_bytes_per_sec: 0, ..EstimatorSettings::default() }
    }

    #[test]
    fn an_ideal_queue_is_read_right() {
        // A long window, so that the percentile is about the queue and not about chance.
        let settings = EstimatorSettings { window: Duration::from_secs(5), ..settings() };
        for (seed, load) in [(1, 0.3), (2, 0.6), (3, 0.8)] {
            let mut estimator = Estimator::new(settings);
            let latencies = queue(seed, 2.13e9, load, 4096.0, &mut estimator, 5.0);
            let left = 2.13e9 * (1.0 - load);
            let available = estimator.available().unwrap() as f64;
            assert!((0.8..1.2).contains(&(available / left)), "load {load}: {available} of {left}");
            let p99999 = latencies[latencies.len() - 1 - latencies.len() / 100_000] as f64;
            let predicted = estimator.predicted_p99999_ns().unwrap() as f64;
            assert!((0.65..1.35).contains(&(predicted / p99999)), "load {load}: {predicted} for {p99999}");
        }
    }

    #[test]
    fn headroom_is_left_alone_and_nothing_is_less_than_nothing() {
        let mut estimator =
            Estimator::new(EstimatorSettings { headroom_bytes_per_sec: 330_000_000, ..EstimatorSettings::default() });
        for _ in 0..300 {
            // 4096 * 2.9957 / 20 us = 613.5 MB/s.
            estimator.on_done(Instant(1_000_000), 20_000, 4096);
        }
        estimator.update(Instant(1_000_000), false);
        let available = estimator.available().unwrap();
        assert!((240_000_000..=284_000_000).contains(&available), "{available}");
        for _ in 0..10_000 {
            estimator.on_done(Instant(2_000_000), 2_000_000, 4096);
        }
        estimator.update(Instant(2_000_000), false);
        assert_eq!(estimator.available(), Some(0));
    }

    #[test]
    fn with_few_requests_the_last_estimate_is_held_and_old_requests_are_forgotten() {
        let mut estimator = Estimator::new(settings());
        for _ in 0..199 {
            estimator.on_done(Instant(0), 20_000, 4096);
        }
        estimator.update(Instant(0), false);
        assert_eq!(estimator.available(), None);
        estimator.on_done(Instant(0), 20_000, 4096);
        estimator.update(Instant(0), false);
        let first = estimator.available();
        assert!(first.is_some());
        for _ in 0..199 {
            estimator.on_done(Instant(150_000_000), 1_000_000, 4096);
        }
        estimator.update(Instant(150_000_000), false);
        assert_eq!(estimator.available(), first, "the 200 of the first window are gone");
        estimator.on_done(Instant(151_000_000), 1_000_000, 4096);
        estimator.update(Instant(151_000_000), false);
        assert!(estimator.available() < first && estimator.p95_ns() >= Some(1_000_000));
        estimator.update(Instant(5_100_000_000), false);
        assert!(estimator.available().is_some());
        estimator.update(Instant(5_200_000_000), false);
        assert_eq!((estimator.available(), estimator.p95_ns()), (None, None), "what is old is no estimate");
    }

    #[test]
    fn k_is_fitted_to_a_queue_that_is_not_ideal() {
        // Each request takes half as long again as the service rate says: k must become less than 1.
        let fitting = EstimatorSettings { fits: true, window: Duration::from_secs(1), ..settings() };
        let mut estimator = Estimator::new(fitting);
        for round in 0..100u64 {
            for _ in 0..260_000 / 10 {
                estimator.on_done(Instant(round * 1_000_000_000), 40_000, 40_960);
            }
            estimator.update(Instant(round * 1_000_000_000), true);
        }
        // lambda = 26,000 x 40,960 = 1.065 GB/s, so 1.065 GB/s are left; the ideal queue would say 3.07 GB/s.
        assert!((0.32..0.38).contains(&estimator.k()), "{}", estimator.k());
        let available = estimator.available().unwrap();
        assert!((1_000_000_000..1_150_000_000).contains(&available), "{available}");
    }

    #[test]
    fn cells_hold_what_they_say() {
        for ns in (0..60).flat_map(|power| [(1u64 << power) - 1, 1 << power, (1 << power) + (1 << power) / 3]) {
            let cell = cell_of(ns);
            assert!(ns <= upper_bound(cell) || cell == CELLS - 1, "{ns}");
            assert!(cell == 0 || cell == CELLS - 1 || upper_bound(cell - 1) < ns, "{ns}");
        }
    }
}
