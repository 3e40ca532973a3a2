//! Which writes of a volume are a burst, to be spread over many servers, and which are its steady traffic (DiffForward,
//! SIGMETRICS 2023, §3.2 and Algorithm 1).
//!
//! **Intuition.** A volume has a virtual queue (VRQ), into which each of its writes is put, and which drains at the volume's
//! average rate R. Steady traffic never fills it. A burst comes faster than R, and at random places, which count for more: the
//! queue grows beyond TH, and from there on each write that finds no room is a burst, until the queue has drained. Nothing is
//! ever kept waiting by this queue: it is a number, QLEN.
//!
//! **Names** are the paper's: R in bytes per second; TH, a time of average traffic, `threshold` times R in bytes; W, what a
//! byte counts for.
//!
//! **Flow.** [`Detector::on_write`] drains, looks how far the write lies from those before it, adds it, and answers.
//!
//! **Chosen** where the paper is silent or garbled:
//! - line 2 limits QLEN from below, although it prints `min(QLEN, 0)`;
//! - R is not said to be of any time: it is an average over windows of 5 s, in which each weighs as much as all before it
//!   together, so that it follows the volume over the day. A fixed R is a setting. Until the first window has closed nothing
//!   is known, and everything is steady;
//! - a volume that has been idle for long has an R of next to nothing, and what it writes then is a burst until a window has
//!   closed: that is what its average says;
//! - TH is 50 ms of average traffic where the paper speaks of it. With 16 times that, as its prototype has it, the detection is
//!   about as exact as it prints (recall about 80%, precision about 90%), with 50 ms the balance is as good: both are
//!   settings, and the numbers are in docs/RESULTS.md;
//! - a volume that writes less often than each 50 ms has in TH no room for one of its writes: each of them is a burst, however calm it
//!   is. [`BurstSettings::threshold_bytes`] sets a least, none by default, as nothing is printed of one;
//! - equation 2 compares an offset with itself, too (j = 0), which would make everything sequential: it is compared with the
//!   `HISTORY` before it;
//! - a write that is found to be a burst leaves QLEN at TH (line 7); in the prototype it is not added at all: a setting, too
//!   ([`Cap`]);
//! - §4 says that traffic is a spectrum, of which two kinds are a coarse picture, and nothing of how to measure it. Here the
//!   *burstiness* of a write is the share of what it counts for that finds no room in the queue. Of a volume that writes v random
//!   bytes a second for a while it is 1 - R/v: a half at twice the average, nine tenths at ten times. What is a burst, and less
//!   so than [`BurstSettings::mild_below`], is a mild one. None is by default: docs/RESULTS.md has what that gains.
//!
//! Invariants: QLEN is never above TH once R is known, unless TH itself shrinks, and never below 0; the answer depends on the volume's own
//! writes and their times only; nothing is allocated. Whether a burst is mild changes nothing of what comes after it.

use std::time::Duration;

use base::{Instant, KIB};

/// Writes that the next one is compared with (n of §3.2).
pub const HISTORY: usize = 32;
/// What a byte counts for is given in hundredths.
const WHOLE: u64 = 100;
const NANOS: u128 = 1_000_000_000;

/// What a write is part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Traffic {
    /// Goes to the segment's owner.
    Stable,
    /// Goes to the nearest log.
    Mild,
    /// Is spread over all logs.
    Burst,
}

/// Where R comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Average {
    /// So many bytes per second.
    Fixed(u64),
    /// Measured in windows of that length, of which the last one counts for so many of a hundred.
    Measured {
        /// Not zero.
        window: Duration,
        /// 1 to 100.
        percent: u64,
    },
}

/// Where a burst leaves the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cap {
    /// At TH, as Algorithm 1 has it.
    Threshold,
    /// Where it was: the write is not added.
    Before,
}

/// What a detector is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BurstSettings {
    /// R.
    pub average: Average,
    /// TH is so much of the average traffic.
    pub threshold: Duration,
    /// And never fewer bytes than these.
    pub threshold_bytes: u64,
    /// What a byte of a sequential write counts for, in hundredths (W_seq).
    pub weight_sequential: u64,
    /// What a byte of a random write counts for (W_rand).
    pub weight_random: u64,
    /// A write is random if all of the last [`HISTORY`] began farther away than so many bytes (T_ran).
    pub random_beyond: u64,
    /// See there.
    pub cap: Cap,
    /// A burst is mild if less than so much of a hundred of it finds no room.
    pub mild_below: u32,
}

impl BurstSettings {
    /// TH as the text of the paper has it: the detector takes much for a burst.
    pub const SENSITIVE: BurstSettings = BurstSettings {
        average: Average::Measured { window: Duration::from_secs(5), percent: 50 },
        threshold: Duration::from_millis(50),
        threshold_bytes: 0,
        weight_sequential: WHOLE / 2,
        weight_random: WHOLE,
        random_beyond: 128 * KIB,
        cap: Cap::Threshold,
        mild_below: 0,
    };
    /// As it was run by those who made it: it is as exact as the paper prints.
    pub const EXACT: BurstSettings =
        BurstSettings { threshold: Duration::from_millis(800), cap: Cap::Before, ..BurstSettings::SENSITIVE };
}

/// The detector of one volume. See the module.
#[derive(Clone, Debug)]
pub struct Detector {
    settings: BurstSettings,
    rate: Rate,
    /// QLEN, in bytes times [`WHOLE`].
    queue: u64,
    /// When it drained last.
    at: Instant,
    /// Where the last writes began, and how many there were so far.
    offsets: [u64; HISTORY],
    count: usize,
}

impl Detector {
    /// A volume that has written nothing.
    ///
    /// # Panics
    /// A window of no length, or one that counts for nothing or for more than all.
    pub fn new(settings: BurstSettings, now: Instant) -> Detector {
        Detector {
            settings,
            rate: Rate::new(settings.average, now),
            queue: 0,
            at: now,
            offsets: [0; HISTORY],
            count: 0,
        }
    }

    /// A write of `len` bytes at `offset` arrives: what it is part of.
    pub fn on_write(&mut self, now: Instant, offset: u64, len: u64) -> Traffic {
        self.rate.on_write(now, len);
        let weight = match self.is_random(offset) {
            true => self.settings.weight_random,
            false => self.settings.weight_sequential,
        };
        self.offsets[self.count % HISTORY] = offset;
        self.count += 1;
        let Some(rate) = self.rate.known() else {
            self.at = now;
            return Traffic::Stable;
        };
        let drained = per_time(rate, now.nanos_since(self.at));
        self.at = now;
        let threshold = per_time(rate, self.settings.threshold.as_nanos() as u64);
        let threshold = threshold.max(self.settings.threshold_bytes.saturating_mul(WHOLE));
        let before = self.queue.saturating_sub(drained);
        let added = weight.saturating_mul(len);
        let after = before.saturating_add(added);
        let is_burst = after > threshold;
        self.queue = match (is_burst, self.settings.cap) {
            (false, _) => after,
            (true, Cap::Threshold) => threshold,
            (true, Cap::Before) => before,
        };
        let is_mild = || {
            let [over, enough] = [(after - threshold, 100), (added, self.settings.mild_below)]
                .map(|(share, times)| u128::from(share) * u128::from(times));
            over < enough
        };
        match is_burst {
            false => Traffic::Stable,
            true if is_mild() => Traffic::Mild,
            true => Traffic::Burst,
        }
    }

    /// TH is so much of the average traffic from here on, and never fewer bytes.
    pub fn set_threshold(&mut self, threshold: Duration, bytes: u64) {
        self.settings.threshold = threshold;
        self.settings.threshold_bytes = bytes;
    }

    /// TH, as time of the average traffic.
    pub fn threshold(&self) -> Duration {
        self.settings.threshold
    }

    /// R in bytes per second, if it is known yet.
    pub fn average(&self) -> Option<u64> {
        self.rate.known()
    }

    /// Whether a write that begins there is at a random place: equation 2, without the write itself.
    pub fn is_random(&self, offset: u64) -> bool {
        let seen = &self.offsets[..self.count.min(HISTORY)];
        // Without a way out of the middle this takes the same few nanoseconds each time.
        let nearest = seen.iter().map(|other| other.abs_diff(offset)).fold(u64::MAX, u64::min);
        nearest > self.settings.random_beyond
    }
}

/// What `rate` bytes per second come to in that time, in bytes times [`WHOLE`].
fn per_time(rate: u64, ns: u64) -> u64 {
    let bytes = u128::from(rate) * u128::from(ns) / (NANOS / u128::from(WHOLE));
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// R, as far as it is known.
#[derive(Clone, Debug)]
enum Rate {
    Fixed(u64),
    Measured {
        window_ns: u64,
        percent: u64,
        /// When the window that is open began, and what was written in it.
        began: Instant,
        bytes: u64,
        known: Option<u64>,
    },
}

impl Rate {
    fn new(average: Average, now: Instant) -> Rate {
        match average {
            Average::Fixed(rate) => Rate::Fixed(rate),
            Average::Measured { window, percent } => {
                let window_ns = window.as_nanos() as u64;
                assert!(window_ns > 0 && (1..=100).contains(&percent), "an average needs a window that counts");
                Rate::Measured { window_ns, percent, began: now, bytes: 0, known: None }
            }
        }
    }

    fn known(&self) -> Option<u64> {
        match self {
            Rate::Fixed(rate) => Some(*rate),
            Rate::Measured { known, .. } => *known,
        }
    }

    /// Closes the windows that are over, and counts `len` bytes in the one that is open.
    fn on_write(&mut self, now: Instant, len: u64) {
        let Rate::Measured { window_ns, percent, began, bytes, known } = self else { return };
        let over = now.nanos_since(*began) / *window_ns;
        if over > 0 {
            let rate = (u128::from(*bytes) * NANOS / u128::from(*window_ns)) as u64;
            *known = Some(match *known {
                None => rate,
                Some(before) => blend(before, rate, *percent),
            });
            // Windows without a write, until nothing is left of what was before.
            for _ in 1..over {
                match known {
                    None | Some(0) => break,
                    Some(rate) => *rate = blend(*rate, 0, *percent),
                }
            }
            (*began, *bytes) = (Instant(began.0 + over * *window_ns), 0);
        }
        *bytes = bytes.saturating_add(len);
    }
}

fn blend(before: u64, last: u64, percent: u64) -> u64 {
    ((u128::from(before) * u128::from(100 - percent) + u128::from(last) * u128::from(percent)) / 100) as u64
}

#[cfg(test)]
mod tests {
    use base::MIB;

    use super::*;

    const R: u64 = 1_000_000;

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    fn fixed(cap: Cap) -> Detector {
        Detector::new(BurstSettings { average: Average::Fixed(R), cap, ..BurstSettings::SENSITIVE }, at(0))
    }

    /// Writes at places that have nothing to do with each other.
    fn far(n: u64) -> u64 {
        n * MIB
    }

    /// TH is 50 kB: five random writes of 10 kB fit, and one more each 10 ms.
    #[test]
    fn what_finds_no_room_in_the_queue_is_a_burst() {
        let mut detector = fixed(Cap::Threshold);
        let found: Vec<Traffic> = (0..8).map(|n| detector.on_write(at(0), far(n), 10_000)).collect();
        assert_eq!(found[..5], [Traffic::Stable; 5]);
        assert_eq!(found[5..], [Traffic::Burst; 3]);
        assert_eq!(detector.on_write(at(10), far(8), 10_000), Traffic::Stable, "it has drained by as much");
        assert_eq!(detector.on_write(at(19), far(9), 10_000), Traffic::Burst, "and by a little less");
        // However long a burst was, it ends when the queue has drained.
        for n in 10..1000 {
            detector.on_write(at(19), far(n), 10_000);
        }
        assert_eq!(detector.on_write(at(69), far(1001), 50_000), Traffic::Stable);
    }

    #[test]
    fn the_two_caps_differ_by_what_was_not_added() {
        for (cap, then) in [(Cap::Threshold, Traffic::Burst), (Cap::Before, Traffic::Stable)] {
            let mut detector = fixed(cap);
            let found: Vec<Traffic> = (0..4).map(|n| detector.on_write(at(0), far(n), 15_000)).collect();
            assert_eq!(found[3], Traffic::Burst, "60 of 50");
            // 40 + 15, or 35 + 15.
            assert_eq!(detector.on_write(at(10), far(4), 15_000), then, "{cap:?}");
        }
    }

    /// What follows one of the last 32 writes counts half.
    #[test]
    fn a_sequential_write_counts_half() {
        let mut detector = fixed(Cap::Threshold);
        let found: Vec<Traffic> = (0..10).map(|n| detector.on_write(at(0), n * 10_000, 10_000)).collect();
        assert_eq!(found[..9], [Traffic::Stable; 9], "10 and 8 times 5");
        assert_eq!(found[9], Traffic::Burst);
        let mut detector = fixed(Cap::Threshold);
        // As many streams as are remembered.
        let streams = HISTORY as u64;
        for n in 0..streams {
            detector.on_write(at(n * 100), far(n), 4096);
        }
        assert!(!detector.is_random(far(0) + 128 * KIB) && detector.is_random(far(0) + 128 * KIB + 1));
        detector.on_write(at(streams * 100), far(streams), 4096);
        assert!(detector.is_random(far(0)), "it is forgotten");
    }

    /// R of the first window is known when it is over; each one counts as much as all before it.
    #[test]
    fn the_average_follows_the_windows() {
        let mut detector = Detector::new(BurstSettings::SENSITIVE, at(0));
        for n in 0..1000 {
            assert_eq!(detector.on_write(at(n * 5), far(n), 50_000), Traffic::Stable, "nothing is known yet");
        }
        detector.on_write(at(5_000), 0, 20 * 5000);
        assert_eq!(detector.average(), Some(10_000_000));
        detector.on_write(at(10_000), 0, 0);
        assert_eq!(detector.average(), Some(5_010_000));
        detector.on_write(at(20_000), 0, 4096);
        assert_eq!(detector.average(), Some(1_252_500), "two without a write");
        detector.on_write(at(3_600_000), 0, 4096);
        assert_eq!(detector.average(), Some(0));
        assert_eq!(detector.on_write(at(3_600_001), 0, 1), Traffic::Burst, "of a volume that does nothing on average");
    }

    /// A volume that writes at its average, at random places, is never a burst; ten times that for 100 ms is one, but for its
    /// beginning, and no longer than it lasts.
    #[test]
    fn a_burst_is_found_while_it_lasts() {
        let mut detector = Detector::new(BurstSettings::EXACT, at(0));
        // 4 KiB each 4 ms: 1 MiB a second.
        let mut bursts = Vec::new();
        for ms in (0..60_000).step_by(4) {
            let is_burst = (30_000..30_200).contains(&ms);
            for n in 0..if is_burst { 20 } else { 1 } {
                if detector.on_write(at(ms), far(ms * 20 + n), 4096) == Traffic::Burst {
                    bursts.push(ms);
                }
            }
        }
        let (first, last) = (bursts[0], bursts[bursts.len() - 1]);
        assert!((30_030..30_060).contains(&first), "after 800 ms of traffic in about 42 ms: {first}");
        assert!(last < 30_200, "{last}");
        assert!(bursts.len() > 700, "{} of 1000", bursts.len());
    }

    /// What comes at three halves of the average finds no room for a third of it, and at ten times for nine tenths.
    #[test]
    fn what_is_a_little_more_than_the_average_is_mild() {
        let found = |each_us: u64, mild_below: u32| {
            let settings = BurstSettings { average: Average::Fixed(R), mild_below, ..BurstSettings::SENSITIVE };
            let mut detector = Detector::new(settings, at(0));
            let mut write = |n: u64| detector.on_write(Instant(n * each_us * 1_000), far(n), 10_000);
            let found: Vec<Traffic> = (0..400).map(&mut write).collect();
            let of = |kind| found[200..].iter().filter(|one| **one == kind).count();
            [Traffic::Stable, Traffic::Mild, Traffic::Burst].map(of)
        };
        // The average is one each 10 ms.
        assert_eq!(found(20_000, 60), [200, 0, 0]);
        assert_eq!(found(6_667, 0), [0, 0, 200], "none is mild unless that is set");
        assert_eq!((found(6_667, 33), found(6_667, 34)), ([0, 0, 200], [0, 200, 0]));
        assert_eq!((found(1_000, 89), found(1_000, 91)), ([0, 0, 200], [0, 200, 0]));
        assert_eq!(found(0, 100), [0, 0, 200], "what comes at once is nothing but a burst");
    }

    /// Times that stand still or are far apart, and any length: the queue stays within its bounds.
    #[test]
    fn the_queue_is_bounded() {
        let mut prng = base::Prng::new(1);
        for cap in [Cap::Threshold, Cap::Before] {
            let mut detector = fixed(cap);
            let mut now = at(0);
            for _ in 0..10_000 {
                now = Instant(now.0 + *prng.pick(&[0, 1, 1_000_000, 3_600_000_000_000]));
                let len = *prng.pick(&[0, 1, 512, 4096, 1 << 20, u64::MAX]);
                let traffic = detector.on_write(now, prng.below(u64::MAX), len);
                assert!(detector.queue <= 50_000 * WHOLE);
                assert!(traffic != Traffic::Stable || len <= 50_000);
            }
        }
    }

    /// Ten writes a second, all alike: with TH as it is printed half of them and more are bursts, with a least none, and a burst still is.
    #[test]
    fn who_writes_seldom_is_calm_where_a_burst_has_a_least() {
        let bursts = |threshold_bytes: u64| {
            let mut detector = Detector::new(BurstSettings { threshold_bytes, ..BurstSettings::SENSITIVE }, at(0));
            let mut write = |ms: u64, number: u64| {
                u64::from(detector.on_write(at(ms), number * 97 % 64 * MIB, 16 * KIB) == Traffic::Burst)
            };
            let calm: u64 = (0..300).map(|number| write(number * 100, number)).sum();
            (calm, (0..100).map(|number| write(30_000, number)).sum::<u64>())
        };
        let (calm, burst) = bursts(0);
        assert!(calm > 150 && burst > 95, "{calm} {burst}");
        let (calm, burst) = bursts(256 * KIB);
        assert!(calm == 0 && burst > 80, "{calm} {burst}");
    }
}
