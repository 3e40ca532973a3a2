//! Whether a loop that has nothing to do looks on for a moment before it sleeps.
//!
//! Intuition: who sleeps is woken late. The processor has gone idle and takes its time to come back, which on some
//! machines costs as much as a fast disk's read. Where the next event comes soon, looking on for that moment takes the
//! wake-up out of the way. But on a machine with few processors the looking on itself is in the way: a client that would
//! have been woken on this processor, for nothing, is woken on another one, and the kernel's workers wait for theirs.
//! Which of the two is larger cannot be told but by trying. So the policy tries, now and then, and compares what gets
//! done.
//!
//! Names: a *wait* is the time from having nothing to do to the next event. It is *short* if it lasts no longer than
//! [`PollingSettings::limit`], which is also how long a loop looks on. *Work* is polls of I/O tasks: requests come with
//! so many of them either way. A *round* is [`ROUND`] waits: a window of them as before, a window the other way round
//! (the *trial*), and the rest in the way in which more was done in a given time.
//!
//! Invariants: a loop looks on only while at least three of four of its last 32 waits were short, so that an idle loop
//! sleeps; and, trials apart, only while that gets [`GAIN_PERCENT`] more done at least. Where it never does, one wait of 32
//! is looked on. Whoever asks at a fixed rate gets no more done by it, and his loop sleeps.
//!
//! Baselines: [`Polling::Never`] and [`Polling::Always`].

use std::time::Duration;

use base::Instant;

/// When a loop looks on before it sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Polling {
    /// While more is done by it.
    Adaptive,
    /// Not at all: it sleeps at once.
    Never,
    /// Before each sleep.
    Always,
}

/// The settings of a [`PollingPolicy`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PollingSettings {
    /// When it looks on.
    pub polling: Polling,
    /// How long it looks on, and how long a short wait may be.
    pub limit: Duration,
}

/// Nothing is looked on for, until adaptive polling is right everywhere: on a virtual machine with two processors it took
/// a loop that looks on for the faster one where it did 12 to 38% less (docs/CONFIGURATION.md).
impl Default for PollingSettings {
    fn default() -> Self {
        PollingSettings { polling: Polling::Never, limit: Duration::from_micros(100) }
    }
}

/// Waits of a round.
const ROUND: u32 = 32 * WINDOW;
/// Waits of a window: half a second, more or less. Client and loop run on one processor or on two, and the system's
/// scheduler moves them apart while a loop looks on; in a shorter window what is slept is measured with both still apart.
const WINDOW: u32 = 16 * 1024;
/// How much more has to be done for a processor to be spent on it.
const GAIN_PERCENT: u128 = 25;
/// Of the last 32 waits so many are short where looking on can help.
const SHORT_MIN: u32 = 24;

/// The decision of one loop.
#[derive(Clone, Debug)]
pub struct PollingPolicy {
    settings: PollingSettings,
    /// The last 32 waits, the newest in the lowest bit: whether they were short.
    recent: u32,
    /// Whether it looks on outside of trials.
    pays: bool,
    /// Waits of the present round.
    waits: u32,
    /// The first window of the round, and the trial.
    windows: [Window; 2],
    /// When the last wait ended, and the work that was done by then.
    last: (Instant, u64),
}

/// What was done in a window, and in which time.
#[derive(Clone, Copy, Default, Debug)]
struct Window {
    work: u64,
    span_ns: u64,
}

impl Window {
    /// Whether as much more was done than in `other` as is asked for.
    fn beats(&self, other: &Window) -> bool {
        let of = |work: &Window, time: &Window| u128::from(work.work) * u128::from(time.span_ns);
        of(self, other) * 100 > of(other, self) * (100 + GAIN_PERCENT)
    }
}

impl PollingPolicy {
    /// A loop that has not waited yet.
    pub fn new(settings: PollingSettings, now: Instant) -> Self {
        PollingPolicy { settings, recent: 0, pays: false, waits: 0, windows: Default::default(), last: (now, 0) }
    }

    /// How long to look on before sleeping; zero: not at all.
    pub fn plan_poll(&self) -> Duration {
        let looks_on = match self.settings.polling {
            Polling::Adaptive => self.can_help() && self.pays != self.is_trial(),
            Polling::Never => false,
            Polling::Always => true,
        };
        if looks_on { self.settings.limit } else { Duration::ZERO }
    }

    /// A wait of `span` ended, looked on or slept. `work` counts the polls of I/O tasks so far.
    pub fn on_wait_end(&mut self, now: Instant, span: Duration, work: u64) {
        let (last_end, last_work) = std::mem::replace(&mut self.last, (now, work));
        self.recent = self.recent << 1 | u32::from(span <= self.settings.limit);
        if !self.can_help() {
            // A round begins when waits are short, and both of its windows are of such times.
            (self.waits, self.windows) = (0, Default::default());
            return;
        }
        if let Some(window) = self.windows.get_mut((self.waits / WINDOW) as usize) {
            window.work += work - last_work;
            window.span_ns += now.nanos_since(last_end);
        }
        self.waits += 1;
        if self.waits == 2 * WINDOW {
            let [before, trial] = self.windows;
            let (looked_on, slept) = if self.pays { (before, trial) } else { (trial, before) };
            self.pays = looked_on.beats(&slept);
        }
        if self.waits == ROUND {
            (self.waits, self.windows) = (0, Default::default());
        }
    }

    fn can_help(&self) -> bool {
        self.recent.count_ones() >= SHORT_MIN
    }

    fn is_trial(&self) -> bool {
        self.waits / WINDOW == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    /// A loop and its client, one request at a time: how long a wait lasts that is looked on, and one that is slept, and
    /// how long the work in between takes in each way.
    struct Loop {
        policy: PollingPolicy,
        now: Instant,
        work: u64,
        looked_on: [u64; 2],
        slept: [u64; 2],
    }

    impl Loop {
        fn new(polling: Polling, looked_on: [u64; 2], slept: [u64; 2]) -> Loop {
            let settings = PollingSettings { polling, ..PollingSettings::default() };
            Loop { policy: PollingPolicy::new(settings, Instant(0)), now: Instant(0), work: 0, looked_on, slept }
        }

        /// How many of `waits` waits were looked on.
        fn run(&mut self, waits: u32) -> u32 {
            let mut looked_on = 0;
            for _ in 0..waits {
                let looks_on = !self.policy.plan_poll().is_zero();
                looked_on += u32::from(looks_on);
                let [wait, busy] = if looks_on { self.looked_on } else { self.slept };
                self.now = self.now + us(wait + busy);
                self.work += 3;
                self.policy.on_wait_end(self.now, us(wait), self.work);
            }
            looked_on
        }
    }

    #[test]
    fn it_looks_on_where_more_is_done_by_it() {
        let mut fast = Loop::new(Polling::Adaptive, [30, 10], [60, 10]);
        assert!(fast.run(4 * ROUND) > 4 * (ROUND - WINDOW) - 4 * WINDOW);
        // Now it is in the way.
        (fast.looked_on, fast.slept) = ([70, 10], [60, 10]);
        fast.run(ROUND);
        assert!(fast.run(4 * ROUND) <= 4 * WINDOW, "only to try");
        (fast.looked_on, fast.slept) = ([30, 10], [60, 10]);
        fast.run(ROUND);
        assert!(fast.run(ROUND) > ROUND - 2 * WINDOW, "it comes back");
    }

    /// Shorter waits are no gain if the work takes longer for it, as where every client has to be woken elsewhere.
    #[test]
    fn a_gain_that_is_smaller_than_its_price_is_none() {
        assert!(Loop::new(Polling::Adaptive, [30, 40], [60, 10]).run(8 * ROUND) <= 8 * WINDOW);
        assert!(Loop::new(Polling::Adaptive, [50, 10], [60, 10]).run(8 * ROUND) <= 8 * WINDOW);
        assert!(Loop::new(Polling::Adaptive, [60, 10], [60, 10]).run(8 * ROUND) <= 8 * WINDOW);
    }

    #[test]
    fn rare_events_are_slept_for() {
        let mut rare = Loop::new(Polling::Adaptive, [1000, 10], [1000, 10]);
        assert_eq!(rare.run(4 * ROUND), 0);
        // Also after a time in which it paid.
        let mut fast = Loop::new(Polling::Adaptive, [30, 10], [60, 10]);
        fast.run(ROUND);
        (fast.looked_on, fast.slept) = ([1000, 10], [1000, 10]);
        assert!(fast.run(4 * ROUND) <= 9, "a few, until it is known");
    }

    /// What looking on costs in vain is bounded: a loop whose waits are short and long by turns sleeps.
    #[test]
    fn mixed_waits_are_slept() {
        let settings = PollingSettings { polling: Polling::Adaptive, ..PollingSettings::default() };
        let mut policy = PollingPolicy::new(settings, Instant(0));
        let mut looked = 0;
        for number in 0..2_000_000 {
            looked += u32::from(!policy.plan_poll().is_zero());
            policy.on_wait_end(Instant(number * 1000), us(if number % 2 == 0 { 50 } else { 300 }), number);
        }
        assert_eq!(looked, 0);
    }

    #[test]
    fn the_baselines_do_not_look_at_waits() {
        assert_eq!(Loop::new(Polling::Never, [30, 10], [60, 10]).run(2 * ROUND), 0);
        assert_eq!(Loop::new(Polling::Always, [1000, 10], [1000, 10]).run(2 * ROUND), 2 * ROUND);
    }
}
