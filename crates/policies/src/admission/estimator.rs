//! How much bandwidth the store below has left, from the latency of recent I/O (NSDI 2026, §4.2, equations 1 and 2, and
//! appendix A).
//!
//! **Intuition.** In an M/M/1 queue with service rate `mu` and arrival rate `lambda` the time of a request is
//! exponential with rate `mu - lambda`, so that any percentile tells what is left: `w_p = -alpha ln(1-p) / (mu -
//! lambda)`. (The print lost the sign in both equations.) A P99999 takes minutes of samples, a P95 a tenth of a second,
//! and the one predicts the other. Turned around, with a headroom `h` for the error of the model and for latency that
//! nobody wants: `delta = -alpha ln(1-p) / w_p - h`. It sees background work that no counter of the server does.
//!
//! A real disk takes time that is no waiting, however little there is to do, so that `delta` would be next to nothing on
//! an idle one. So ours is `w_p = w0 - alpha ln(1-p) / (mu - lambda)`, where `w0` is what requests of the window's
//! directions and sizes take alone, the same percentile of it ([`super::company`]). Where nobody was alone so far it is what
//! the fastest of the window took: that did not wait for long.
//!
//! **Units.** Rates in bytes per second, times in nanoseconds. One request of `b` bytes takes `b / mu`, so that an ideal
//! queue has `alpha = b`. The paper's constant (8000) misfits mixed sizes; ours is `k` times the mean size of the
//! window's requests. `k` is fitted: `lambda` is known, of clients and of the background, and where it is neither little
//! nor all that the store takes, the equation gives `k`. So slowly that what others do to the disk counts for what is left
//! and not for `k`.

use std::time::Duration;

use base::Instant;

use super::company::Company;
use super::request::Outcome;
use super::tally::{Cell, Tally};

/// Slots of the sliding window.
const SLOTS: usize = 10;
/// `-ln(1 - p)` for P95 and for P99999.
pub(super) const LN_P95: f64 = 2.995_732_273_553_991;
const LN_P99999: f64 = 11.512_925_464_970_229;
/// How long the last estimate is held.
const HELD: Duration = Duration::from_secs(5);
/// Least weight of a new fit of `k`: at a look every 10 ms it takes more than half a minute to forget. At first `k` is the
/// mean of what was found.
const FIT_WEIGHT: f64 = 1.0 / 4096.0;
/// Loads between which a fit means something: an idle queue says nothing of waiting, a full one is not stationary.
const FIT_LOAD: std::ops::Range<f64> = 0.2..0.9;
/// What a fit finds is between these.
const K: std::ops::RangeInclusive<f64> = 0.01..=1000.0;
/// Waiting is at least this part of a percentile: shorter than histograms can tell.
const WAITING_MIN: f64 = 1.0 / 16.0;

/// What is assumed of the store below.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct EstimatorSettings {
    /// `mu`: what it serves when nothing else uses it, in bytes per second. [P] 2130 (the unit slipped in print).
    pub service_bytes_per_sec: u64,
    /// `h`: what is left alone, in bytes per second. [P] 330, of 2130.
    pub headroom_bytes_per_sec: u64,
    /// `k`, to begin with: see above.
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
            fits: true,
            window: Duration::from_millis(100),
            samples_min: 200,
        }
    }
}

#[derive(Clone, Debug)]
struct Slot {
    /// The tenth of a window that it counts.
    number: u64,
    tally: Tally,
    bytes: u64,
}

/// What follows from the requests of a window.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Estimate {
    /// The 95th percentile of what they took, in nanoseconds.
    pub p95_ns: u64,
    /// `w0`: the 95th percentile of what their like takes alone, or what the
    /// fastest took where that is not known.
    pub alone_ns: u64,
    /// Whether that was seen.
    pub is_alone_known: bool,
    /// `lambda`: what was asked for, in bytes per second.
    pub arrivals_bytes_per_sec: u64,
    /// `delta`: what can be used besides, in bytes per second (equation 2).
    pub available_bytes_per_sec: u64,
}

/// The recent latencies of a server, and what follows from them.
#[derive(Clone, Debug)]
pub struct Estimator {
    settings: EstimatorSettings,
    slot_ns: u64,
    slots: Vec<Slot>,
    company: Company,
    k: f64,
    /// How often `k` was fitted.
    fits: u64,
    estimate: Option<Estimate>,
    estimated_at: Instant,
}

impl Estimator {
    /// Nothing seen yet.
    pub fn new(settings: EstimatorSettings) -> Estimator {
        let slot_ns = (settings.window.as_nanos() as u64 / SLOTS as u64).max(1);
        let slot = Slot { number: 0, tally: Tally::NONE, bytes: 0 };
        Estimator {
            settings,
            slot_ns,
            slots: vec![slot; SLOTS],
            company: Company::default(),
            k: settings.k,
            fits: 0,
            estimate: None,
            estimated_at: Instant::ZERO,
        }
    }

    /// A request was started.
    #[inline]
    pub fn on_start(&mut self, now: Instant) {
        self.company.on_start(now);
    }

    /// A request that was started is gone without an outcome.
    pub fn on_gone(&mut self) {
        self.company.on_gone();
    }

    /// A request is done.
    #[inline]
    pub fn on_done(&mut self, now: Instant, done: &Outcome) {
        let compared = self.company.on_done(now, done);
        let number = now.0 / self.slot_ns;
        let slot = &mut self.slots[(number % SLOTS as u64) as usize];
        if slot.number != number {
            *slot = Slot { number, tally: Tally::NONE, bytes: 0 };
        }
        slot.tally.add(compared.took, compared.alone.unwrap_or_default());
        slot.bytes += done.bytes;
    }

    /// Looks at the window that ends now: once per interval is enough. `background`: bytes per second that are read and
    /// written besides what clients ask for.
    pub fn update(&mut self, now: Instant, background: f64) {
        let oldest = (now.0 / self.slot_ns).saturating_sub(SLOTS as u64 - 1);
        let (mut tally, mut bytes) = (Tally::NONE, 0);
        for slot in self.slots.iter().filter(|slot| slot.number >= oldest && slot.tally.count > 0) {
            tally.merge(&slot.tally);
            bytes += slot.bytes;
        }
        if u64::from(tally.count) < self.settings.samples_min.max(1) {
            if now.since(self.estimated_at) > HELD {
                self.estimate = None;
            }
            return;
        }
        self.estimated_at = now;
        self.company.find();
        let (p95_ns, (_, alone)) = (tally.took_between(95), tally.quantile(95));
        let is_alone_known = alone > Cell::default().middle_ns();
        let alone_ns = match is_alone_known {
            true => alone,
            false => tally.quantile(1).0.min(p95_ns / 2),
        };
        let waiting_ns = (p95_ns as f64 - alone_ns as f64).max(p95_ns as f64 * WAITING_MIN);
        // -ln(1-p) requests in a percentile's time of waiting, in bytes per second.
        let per_waiting = bytes as f64 / f64::from(tally.count) * LN_P95 / waiting_ns * 1e9;
        // The last slot has only begun.
        let span = now.0.saturating_sub(oldest * self.slot_ns).max(self.slot_ns) as f64 / 1e9;
        let arrivals = bytes as f64 / span + background;
        let service = self.settings.service_bytes_per_sec as f64;
        if self.settings.fits && FIT_LOAD.contains(&(arrivals / service)) {
            self.fits += 1;
            let found = ((service - arrivals) / per_waiting).clamp(*K.start(), *K.end());
            self.k += (found - self.k) * (1.0 / self.fits as f64).max(FIT_WEIGHT);
        }
        // More than what nothing known uses is not there.
        let left = (self.k * per_waiting).min(service - arrivals) - self.settings.headroom_bytes_per_sec as f64;
        self.estimate = Some(Estimate {
            p95_ns,
            alone_ns,
            is_alone_known,
            arrivals_bytes_per_sec: arrivals as u64,
            available_bytes_per_sec: left.max(0.0) as u64,
        });
    }

    /// What followed from the last window that had enough requests, if that was not long ago.
    pub fn estimate(&self) -> Option<Estimate> {
        self.estimate
    }

    /// `k` as it is now.
    pub fn k(&self) -> f64 {
        self.k
    }
}

impl Estimate {
    /// The 99.999th percentile that equation 1 predicts, in nanoseconds.
    pub fn p99999_ns(&self) -> u64 {
        p99999_ns(self.p95_ns, self.alone_ns)
    }
}

/// See [`Estimate::p99999_ns`].
pub(super) fn p99999_ns(p95_ns: u64, alone_ns: u64) -> u64 {
    let waiting_ns = p95_ns.saturating_sub(alone_ns);
    p95_ns.min(alone_ns) + (waiting_ns as f64 * (LN_P99999 / LN_P95)) as u64
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use base::{Prng, SegmentId, VolumeId};

    use super::*;
    use crate::slow_requests::Direction;

    fn done(granted: Instant, bytes: u64) -> Outcome {
        let segment = SegmentId { volume: VolumeId(1), index: 0 };
        Outcome { segment, granted, bytes, direction: Direction::Write, went_below: true }
    }

    /// A simulated M/M/1 queue behind a way that takes `access_ns` of every request: requests of `bytes` each in the mean,
    /// exponential, at `load` of `mu`. Says how long they took.
    fn queue(seed: u64, mu: f64, load: f64, access_ns: f64, estimator: &mut Estimator, seconds: f64) -> Vec<u64> {
        const BYTES: f64 = 4096.0;
        let mut prng = Prng::new(seed);
        let mut exponential = |mean: f64| -mean * (1.0 - prng.below(1 << 53) as f64 / (1u64 << 53) as f64).ln();
        let (mut now, mut free_at, mut latencies, mut looked) = (0.0f64, 0.0f64, Vec::new(), 0.0);
        let mut below: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
        while now < seconds * 1e9 {
            now += exponential(BYTES / (mu * load) * 1e9);
            while let Some(&Reverse((at, arrived))) = below.peek().filter(|next| next.0.0 <= now as u64) {
                below.pop();
                estimator.on_done(Instant(at), &done(Instant(arrived), BYTES as u64));
            }
            free_at = free_at.max(now) + exponential(BYTES / mu * 1e9);
            let ended = free_at + access_ns;
            latencies.push((ended - now) as u64);
            below.push(Reverse((ended as u64, now as u64)));
            estimator.on_start(Instant(now as u64));
            if now - looked > 1e7 {
                looked = now;
                estimator.update(Instant(now as u64), 0.0);
            }
        }
        latencies.sort_unstable();
        latencies
    }

    fn settings() -> EstimatorSettings {
        EstimatorSettings { headroom_bytes_per_sec: 0, fits: false, ..EstimatorSettings::default() }
    }

    #[test]
    fn an_ideal_queue_is_read_right() {
        // A long window, so that the percentile is about the queue and not about chance; and nothing known of alone.
        let settings = EstimatorSettings { window: Duration::from_secs(5), ..settings() };
        for (seed, load) in [(1, 0.6), (2, 0.8)] {
            let mut estimator = Estimator::new(settings);
            let latencies = queue(seed, 0.4e9, load, 0.0, &mut estimator, 5.0);
            let left = 0.4e9 * (1.0 - load);
            let estimate = estimator.estimate().unwrap();
            // What is alone takes the time of its service in such a queue, and that is a part of its waiting.
            let waited = (estimate.p95_ns - estimate.alone_ns) as f64 / estimate.p95_ns as f64;
            let available = estimate.available_bytes_per_sec as f64 * waited;
            assert!((0.8..1.2).contains(&(available / left)), "load {load}: {available} of {left}");
            let p99999 = latencies[latencies.len() - 1 - latencies.len() / 100_000] as f64;
            let predicted = estimate.p99999_ns() as f64;
            assert!((0.55..1.35).contains(&(predicted / p99999)), "load {load}: {predicted} for {p99999}");
        }
    }

    /// A disk that takes 80 us of every request, whatever there is to do: as printed, it would have 77 MB/s left in the
    /// mean, whatever there is to do.
    #[test]
    fn the_time_of_the_disk_itself_is_no_waiting() {
        for (seed, load) in [(1, 0.3), (2, 0.6), (3, 0.85)] {
            let fitting = EstimatorSettings { service_bytes_per_sec: 400_000_000, fits: true, ..settings() };
            let mut estimator = Estimator::new(fitting);
            queue(seed, 0.4e9, load, 80_000.0, &mut estimator, 5.0);
            let (left, estimate) = (0.4e9 * (1.0 - load), estimator.estimate().unwrap());
            assert!((75_000..130_000).contains(&estimate.alone_ns), "{}", estimate.alone_ns);
            let available = estimate.available_bytes_per_sec as f64;
            assert!((0.6..1.2).contains(&(available / left)), "load {load}: {available} of {left}");
        }
    }

    #[test]
    fn headroom_is_left_alone_and_nothing_is_less_than_nothing() {
        let kept = EstimatorSettings { headroom_bytes_per_sec: 330_000_000, ..settings() };
        let mut estimator = Estimator::new(kept);
        let serve = |estimator: &mut Estimator, at: u64, ns: u64, count: u64| {
            (0..count).for_each(|_| estimator.on_start(Instant(at - ns)));
            for number in 0..count {
                // A few are so fast that they cannot have waited.
                let granted = if number % 25 == 0 { at - 1 } else { at - ns };
                estimator.on_done(Instant(at), &done(Instant(granted), 4096));
            }
            estimator.update(Instant(at), 0.0);
            estimator.estimate().unwrap().available_bytes_per_sec
        };
        // 4096 * 2.9957 / (40 us - 4 us) = 341 MB/s.
        let available = serve(&mut estimator, 1_000_000, 40_000, 300);
        assert!((1..=40_000_000).contains(&available), "{available}");
        assert_eq!(serve(&mut estimator, 2_100_000, 2_000_000, 10_000), 0);
    }

    #[test]
    fn with_few_requests_the_last_estimate_is_held_and_old_requests_are_forgotten() {
        let mut estimator = Estimator::new(settings());
        let serve = |estimator: &mut Estimator, at: u64, ns: u64, count: u64| {
            for _ in 0..count {
                estimator.on_start(Instant(at));
                estimator.on_start(Instant(at));
                estimator.on_gone();
                estimator.on_done(Instant(at + ns), &done(Instant(at), 4096));
            }
            estimator.update(Instant(at + ns), 0.0);
            estimator.estimate()
        };
        assert_eq!(serve(&mut estimator, 0, 20_000, 199), None);
        let first = serve(&mut estimator, 0, 20_000, 1);
        assert!(first.is_some());
        assert_eq!(serve(&mut estimator, 150_000_000, 1_000_000, 199), first, "the 200 of the first window are gone");
        let second = serve(&mut estimator, 151_000_000, 1_000_000, 1).unwrap();
        assert!(second.available_bytes_per_sec < first.unwrap().available_bytes_per_sec);
        assert!((940_000..1_060_000).contains(&second.p95_ns), "{second:?}");
        estimator.update(Instant(5_100_000_000), 0.0);
        assert!(estimator.estimate().is_some());
        estimator.update(Instant(5_200_000_000), 0.0);
        assert_eq!(estimator.estimate(), None, "what is old is no estimate");
    }

    #[test]
    fn k_is_fitted_to_a_queue_that_is_not_ideal_and_what_the_background_has_counts() {
        let fitting = EstimatorSettings { fits: true, window: Duration::from_secs(1), ..settings() };
        for background in [0.0, 500e6] {
            let mut estimator = Estimator::new(fitting);
            for round in 1..100u64 {
                let at = Instant(round * 1_000_000_000);
                (0..26_000).for_each(|_| estimator.on_start(at));
                for number in 0..26_000 {
                    let took = if number % 25 == 0 { 1 } else { 40_000 };
                    estimator.on_done(Instant(at.0 + took), &done(at, 40_960));
                }
                // When the last slot is over, so that the window is the second that the load is of.
                estimator.update(Instant(at.0 + 99_999_999), background);
            }
            // lambda = 26,000 x 40,960 = 1.065 GB/s, so as much is left as the fit says, whatever an ideal queue would.
            let left = 2.13e9 - 1.065e9 - background;
            let available = estimator.estimate().unwrap().available_bytes_per_sec as f64;
            assert!((0.95..1.05).contains(&(available / left)), "{available} of {left}, k {}", estimator.k());
            assert!((0.1..0.38).contains(&estimator.k()), "{}", estimator.k());
        }
    }
}
