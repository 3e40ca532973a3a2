//! What is seen during one step, and what it comes to.

use std::time::Duration;

use base::Instant;

use super::load::Ask;
use super::{Arrivals, Step};
use crate::slow_requests::Direction;

/// Requests that a step is judged by at least, if there is time.
const ENOUGH: u64 = 200;
/// With more the step ends.
const MOST: usize = 1 << 20;
/// With more in flight requests come faster than they are done, beyond doubt.
const IN_FLIGHT_MAX: u64 = 1024;
/// The same where so little of what came was done in time.
const DONE_PERCENT: u64 = 90;
/// Requests of a kind that its percentile needs; where fewer were alone, that of all kinds stands for it.
const FEW: usize = 5;

/// What was seen during a step.
#[derive(Clone, Debug)]
pub struct Sample {
    step: Step,
    begun: Instant,
    ended: Option<Instant>,
    arrived: u64,
    arrived_bytes: u64,
    /// What was done before it ended, and of that what was after half of its time.
    done: u64,
    done_bytes: u64,
    late_bytes: u64,
    /// What each took, also those that were done later.
    took: Vec<(Ask, u64)>,
}

impl Sample {
    /// A step begins.
    pub fn new(step: Step, now: Instant) -> Sample {
        Sample {
            step,
            begun: now,
            ended: None,
            arrived: 0,
            arrived_bytes: 0,
            done: 0,
            done_bytes: 0,
            late_bytes: 0,
            took: Vec::new(),
        }
    }

    /// A request was made.
    pub fn on_start(&mut self, ask: &Ask) {
        self.arrived += 1;
        self.arrived_bytes += ask.bytes;
    }

    /// It took `ns`.
    pub fn on_done(&mut self, now: Instant, ask: Ask, ns: u64) {
        self.took.push((ask, ns));
        if self.ended.is_some() {
            return;
        }
        self.done += 1;
        self.done_bytes += ask.bytes;
        if now >= self.begun + self.step.lasts / 2 {
            self.late_bytes += ask.bytes;
        }
    }

    /// Whether no more requests are to be made; from the first time on that it is, nothing counts as done in time.
    pub fn is_over(&mut self, now: Instant) -> bool {
        let spent = now.since(self.begun);
        let is_long = spent >= self.step.at_most || spent >= self.step.lasts && self.done >= ENOUGH;
        let is_random = matches!(self.step.arrivals, Arrivals::Random(_));
        let is_much = self.took.len() >= MOST || is_random && self.in_flight() >= IN_FLIGHT_MAX;
        if self.ended.is_none() && (is_long || is_much) {
            self.ended = Some(now);
        }
        self.ended.is_some()
    }

    /// When it is to be asked again whether it is over, if no request is made or done meanwhile.
    pub fn next_look(&self, now: Instant) -> Instant {
        let ends = [self.step.lasts, self.step.at_most].map(|span| self.begun + span);
        ends.into_iter().find(|end| *end > now).unwrap_or(now)
    }

    /// Requests that were made and are not done.
    pub fn in_flight(&self) -> u64 {
        self.arrived - self.took.len() as u64
    }

    /// What each request took, in nanoseconds, in no order.
    pub fn took_ns(&self) -> Vec<u64> {
        self.took.iter().map(|(_, ns)| *ns).collect()
    }

    /// Bytes per second that were done in the later half of its time: by then caches and credits count less.
    pub fn late_bytes_per_sec(&self) -> f64 {
        let late = self.lasted().saturating_sub(self.step.lasts / 2);
        self.late_bytes as f64 / late.as_secs_f64().max(1e-9)
    }

    /// Requests that were made per second.
    pub(super) fn made_per_sec(&self) -> f64 {
        self.arrived as f64 / self.lasted().as_secs_f64().max(1e-9)
    }

    /// Whether chance changes that by less than a tenth (three standard deviations).
    pub(super) fn is_large(&self) -> bool {
        self.arrived >= 1000
    }

    fn lasted(&self) -> Duration {
        self.ended.map_or(Duration::ZERO, |ended| ended.since(self.begun))
    }

    fn of_kind(&self, direction: Direction, bytes: u64) -> Vec<u64> {
        let kind = self.took.iter().filter(|(ask, _)| ask.direction == direction && ask.bytes == bytes);
        kind.map(|(_, ns)| *ns).collect()
    }
}

/// One rate, and what came of it. Rates are in bytes per second, times in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// What was to be asked for: the mean of many such samples.
    pub rate: f64,
    /// What was asked for.
    pub offered_bytes_per_sec: f64,
    /// What was done in time.
    pub delivered_bytes_per_sec: f64,
    /// Requests that were done in time, per second.
    pub requests_per_sec: f64,
    /// The median of what they took.
    pub p50_ns: u64,
    /// The 95th percentile.
    pub p95_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 95th percentile over that of what their like take alone, in percent.
    pub stretch_percent: u64,
    /// Whether they came faster than they were done.
    pub outran: bool,
    /// Whether latency has taken off.
    pub has_taken_off: bool,
}

impl Point {
    pub(super) fn of(sample: &Sample, rate: f64, alone: &Alone, takeoff_percent: u64) -> Point {
        let seconds = sample.lasted().as_secs_f64().max(1e-9);
        let mut took = sample.took_ns();
        let mut like: Vec<u64> = sample.took.iter().map(|(ask, _)| alone.p95_of(ask)).collect();
        took.sort_unstable();
        like.sort_unstable();
        let p95_ns = percentile(&took, 95);
        let stretch_percent = p95_ns * 100 / percentile(&like, 95).max(1);
        let outran = sample.done * 100 < sample.arrived * DONE_PERCENT;
        Point {
            rate,
            offered_bytes_per_sec: sample.arrived_bytes as f64 / seconds,
            delivered_bytes_per_sec: sample.done_bytes as f64 / seconds,
            requests_per_sec: sample.done as f64 / seconds,
            p50_ns: percentile(&took, 50),
            p95_ns,
            p99_ns: percentile(&took, 99),
            stretch_percent,
            outran,
            has_taken_off: outran || stretch_percent > takeoff_percent,
        }
    }
}

/// What requests of one direction and size take alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AloneClass {
    /// Read or write.
    pub direction: Direction,
    /// The size.
    pub bytes: u64,
    /// How many there were.
    pub requests: u64,
    /// The median in nanoseconds.
    pub p50_ns: u64,
    /// The 95th percentile.
    pub p95_ns: u64,
}

/// What requests take one after the other.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Alone {
    classes: Vec<AloneClass>,
    /// The medians of reads and of writes. That of both says nothing where one takes 50 times as long as the other.
    p50_ns: [u64; 2],
    p95_ns: u64,
}

impl Alone {
    pub(super) fn of(sample: &Sample) -> Alone {
        let mut kinds: Vec<(Direction, u64)> = sample.took.iter().map(|(ask, _)| (ask.direction, ask.bytes)).collect();
        kinds.sort_unstable_by_key(|(direction, bytes)| (*direction != Direction::Read, *bytes));
        kinds.dedup();
        let class = |(direction, bytes): (Direction, u64)| {
            let mut took = sample.of_kind(direction, bytes);
            took.sort_unstable();
            let [p50_ns, p95_ns] = [50, 95].map(|percent| percentile(&took, percent));
            AloneClass { direction, bytes, requests: took.len() as u64, p50_ns, p95_ns }
        };
        let mut all = sample.took_ns();
        all.sort_unstable();
        let classes = kinds.into_iter().map(class).collect();
        let p50_ns = Direction::ALL.map(|direction| {
            let of = sample.took.iter().filter(|(ask, _)| ask.direction == direction);
            let mut took: Vec<u64> = of.map(|(_, ns)| *ns).collect();
            took.sort_unstable();
            percentile(&took, 50)
        });
        Alone { classes, p50_ns, p95_ns: percentile(&all, 95) }
    }

    /// By direction and size.
    pub fn classes(&self) -> &[AloneClass] {
        &self.classes
    }

    /// The medians of reads and of writes, in nanoseconds; zero where there was none.
    pub fn p50_ns(&self) -> [u64; 2] {
        self.p50_ns
    }

    /// The 95th percentile of the whole mix, in nanoseconds.
    pub fn p95_ns(&self) -> u64 {
        self.p95_ns
    }

    fn p95_of(&self, ask: &Ask) -> u64 {
        let known = self.classes.iter().find(|class| class.direction == ask.direction && class.bytes == ask.bytes);
        known.filter(|class| class.requests >= FEW as u64).map_or(self.p95_ns, |class| class.p95_ns)
    }
}

/// A percentile of what is sorted.
fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}
