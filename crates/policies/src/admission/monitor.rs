//! Which segments are hot (NSDI 2026, §4.2, segment-level I/O rate monitoring).
//!
//! **Intuition.** A segment that asks for more than its fair share of an interval's tokens is what drives a burst; one
//! that asks for less has a right not to notice. So arrivals are counted by segment and interval. A segment is *hot* from
//! the request on that carries it above the threshold `R`, and *steady* again after `N` intervals in a row below.
//!
//! A few requests are no rate, but a few large ones per interval may be one: with 64 KiB, a segment may have ten times its
//! share in seven, and with a low limit one of them is more than an interval has. So bytes are judged when there are
//! enough requests: in this interval alone, or in a window that grows over intervals until it has enough, at most a
//! second; its threshold grows with it. Such a window may be longer than `N` intervals: a hot segment whose window is
//! above the threshold has not been calm, even if there are too few requests yet to call it hot again.
//!
//! `R` is not printed. Ours: the main bucket's size divided by the number of segments that had a request in the last
//! second, times a setting. The text has a hot segment steady "in the next interval" (end of a burst) and after `N`
//! intervals: `N` holds.
//!
//! **Invariant.** The count of active segments is exact, by intervals: a ring holds how many segments had their last
//! request in each interval of the last second, so that an arrival moves one of them and a passing interval forgets one
//! entry.

use std::time::Duration;

use base::Instant;

/// How long a segment counts as active after a request.
const ACTIVE: Duration = Duration::from_secs(1);

/// What is counted of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Track {
    /// One more than the interval of the last request; 0: there was none.
    seen: u64,
    /// Bytes and requests of that interval.
    interval: Sum,
    /// Those of the window, and the interval that it began in.
    window: Sum,
    window_begun: u64,
    /// The first interval in which it is steady again.
    hot_until: u64,
}

/// What arrived in some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Sum {
    bytes: u64,
    requests: u32,
}

impl Sum {
    fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.requests += 1;
    }
}

/// The rates of all segments of a server.
#[derive(Clone, Debug)]
pub struct Monitor {
    interval_ns: u64,
    calm_intervals: u64,
    requests_min: u32,
    share_bytes: u64,
    /// How many segments had their last request in each interval of the last second, by interval.
    last_seen: Box<[u32]>,
    active: u64,
    /// The newest interval that [`Monitor::last_seen`] knows.
    newest: u64,
}

impl Monitor {
    /// `share_bytes` is what all segments together may ask for in an interval before the first of them is hot.
    pub fn new(interval: Duration, share_bytes: u64, requests_min: u32, calm_intervals: u64) -> Monitor {
        let interval_ns = (interval.as_nanos() as u64).max(1);
        let slots = (ACTIVE.as_nanos() as u64).div_ceil(interval_ns).clamp(1, 1 << 16);
        Monitor {
            interval_ns,
            calm_intervals,
            requests_min,
            share_bytes,
            last_seen: vec![0; slots as usize].into(),
            active: 0,
            newest: 0,
        }
    }

    /// Changes what all segments together may ask for in an interval before the first of them is hot.
    pub fn set_share(&mut self, share_bytes: u64) {
        self.share_bytes = share_bytes;
    }

    /// Segments that had a request in the last second.
    pub fn active(&self) -> u64 {
        self.active
    }

    /// `R`, in bytes per interval.
    pub fn threshold(&self) -> u64 {
        self.share_bytes / self.active.max(1)
    }

    /// A request of `bytes` for the segment of `track` arrived.
    pub fn on_arrival(&mut self, track: &mut Track, now: Instant, bytes: u64) {
        let interval = self.advance(now);
        if track.seen != interval + 1 {
            self.move_to_newest(track);
            track.seen = interval + 1;
            track.interval = Sum::default();
            let is_judged = track.window.requests >= self.requests_min;
            if is_judged || interval >= track.window_begun + self.last_seen.len() as u64 {
                (track.window, track.window_begun) = (Sum::default(), interval);
            }
        }
        track.interval.add(bytes);
        track.window.add(bytes);
        let threshold = self.threshold();
        let exceeds = |sum: &Sum, intervals: u64| {
            sum.requests >= self.requests_min && sum.bytes > threshold.saturating_mul(intervals)
        };
        if exceeds(&track.interval, 1) || exceeds(&track.window, interval - track.window_begun + 1) {
            track.hot_until = track.hot_until.max(interval + 1 + self.calm_intervals);
        } else if interval < track.hot_until {
            // For so long the window is above the threshold, whether it has enough requests or not.
            let above = (track.window.bytes / threshold.max(1)).min(self.last_seen.len() as u64);
            track.hot_until = track.hot_until.max(track.window_begun + above + 1);
        }
    }

    /// A hot segment goes on being hot, as if it had asked for too much in this interval.
    pub fn keep_hot(&self, track: &mut Track, now: Instant) {
        track.hot_until = track.hot_until.max(now.0 / self.interval_ns + 1 + self.calm_intervals);
    }

    /// Whether a segment is hot.
    pub fn is_hot(&self, track: &Track, now: Instant) -> bool {
        now.0 / self.interval_ns < track.hot_until
    }

    /// Whether a segment had no request in the last second, and is not hot: nothing of its track matters any more.
    pub fn is_idle(&self, track: &Track, now: Instant) -> bool {
        let interval = now.0 / self.interval_ns + 1;
        track.seen + (self.last_seen.len() as u64) < interval && !self.is_hot(track, now)
    }

    /// The interval of `now`; forgets who had a last request more than a second ago.
    fn advance(&mut self, now: Instant) -> u64 {
        let (interval, slots) = (now.0 / self.interval_ns, self.last_seen.len() as u64);
        if interval > self.newest {
            for passed in 0..(interval - self.newest).min(slots) {
                let slot = &mut self.last_seen[((interval - passed) % slots) as usize];
                self.active -= u64::from(std::mem::take(slot));
            }
            self.newest = interval;
        }
        self.newest
    }

    /// A segment had a request in the newest interval, after the one that its track knows.
    fn move_to_newest(&mut self, track: &Track) {
        let slots = self.last_seen.len() as u64;
        match track.seen > 0 && track.seen + slots > self.newest + 1 {
            true => self.last_seen[((track.seen - 1) % slots) as usize] -= 1,
            false => self.active += 1,
        }
        self.last_seen[(self.newest % slots) as usize] += 1;
    }
}

#[cfg(test)]
mod tests {
    use base::Prng;

    use super::*;

    const T: Duration = Duration::from_millis(10);

    fn at(interval: u64) -> Instant {
        Instant(interval * 10_000_000 + 1)
    }

    #[test]
    fn hot_from_the_crossing_on_and_steady_after_ten_calm_intervals() {
        let mut monitor = Monitor::new(T, 100_000, 16, 10);
        let mut track = Track::default();
        for _ in 0..10 {
            monitor.on_arrival(&mut track, at(5), 10_000);
        }
        assert!(!monitor.is_hot(&track, at(5)), "at the threshold, and with too few requests");
        for request in 11..=16 {
            monitor.on_arrival(&mut track, at(5), 10_000);
            assert_eq!(monitor.is_hot(&track, at(5)), request >= 16);
        }
        // A request in an interval does not make it one above the threshold.
        monitor.on_arrival(&mut track, at(9), 10_000);
        assert!(monitor.is_hot(&track, at(15)));
        assert!(!monitor.is_hot(&track, at(16)));
    }

    #[test]
    fn a_few_large_requests_in_each_interval_are_a_rate() {
        let mut monitor = Monitor::new(T, 100_000, 16, 10);
        let (mut heavy, mut light) = (Track::default(), Track::default());
        let (mut hot, mut calm) = (0, 0);
        for interval in 0..100 {
            // Six times 64 KiB against a share of 50,000 bytes, and now and then one.
            (0..6).for_each(|_| monitor.on_arrival(&mut heavy, at(interval), 65_536));
            if interval % 3 == 0 {
                monitor.on_arrival(&mut light, at(interval), 65_536);
            }
            hot += u64::from(monitor.is_hot(&heavy, at(interval)));
            calm += u64::from(!monitor.is_hot(&light, at(interval)));
        }
        assert_eq!((hot, calm), (98, 100), "from the third interval on, when there are 16 requests");
    }

    #[test]
    fn the_threshold_is_a_fair_share_of_the_active() {
        let mut monitor = Monitor::new(T, 100_000, 1, 10);
        let mut tracks = [Track::default(); 4];
        for track in &mut tracks {
            monitor.on_arrival(track, at(0), 1);
        }
        assert_eq!((monitor.active(), monitor.threshold()), (4, 25_000));
        monitor.on_arrival(&mut tracks[0], at(60), 1);
        monitor.on_arrival(&mut tracks[1], at(100), 1);
        assert_eq!(monitor.active(), 2, "the others had their last request a second ago");
        monitor.on_arrival(&mut tracks[1], at(1000), 1);
        assert_eq!(monitor.active(), 1);
        assert!(monitor.is_idle(&tracks[0], at(1000)) && !monitor.is_idle(&tracks[1], at(1000)));
    }

    #[test]
    fn the_count_of_active_segments_is_that_of_a_naive_one() {
        for seed in 0..50 {
            let mut prng = Prng::new(seed);
            let mut monitor = Monitor::new(T, 1_000, 1, 10);
            let mut tracks = [Track::default(); 20];
            let mut last = [None; 20];
            let mut interval = prng.below(1000);
            for _ in 0..2000 {
                if prng.one_in(3) {
                    let longest = if prng.one_in(20) { 150 } else { 5 };
                    interval += prng.below(longest);
                }
                let which = prng.below(20) as usize;
                monitor.on_arrival(&mut tracks[which], at(interval), 1);
                last[which] = Some(interval);
                let active = last.iter().flatten().filter(|seen| **seen + 100 > interval).count();
                assert_eq!(monitor.active(), active as u64, "seed {seed}, interval {interval}");
            }
        }
    }
}
