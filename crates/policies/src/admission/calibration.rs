//! The knee of a disk, searched while nothing else uses it: `levee calibrate` (NSDI 2026, §4.2, figure 6).
//!
//! **Intuition.** Below its knee a disk answers about as fast as if each request were alone; above, latency takes off
//! while hardly more is done. [`Knee`](super::knee::Knee) follows that point while a store runs, from whatever load there
//! is. Here the load is ours: requests arrive at random times at a rate that we choose, whether the disk keeps up or not,
//! as those of many clients do, so that the whole curve can be drawn.
//!
//! **Names.** *Alone*: what requests take one after the other ([`Alone`]). *Full*: what is delivered with many in flight,
//! `mu`. A [`Point`] is one rate that was tried; its *stretch* is the 95th percentile of its requests over that of what
//! their like take alone, as in [`knee`](super::knee). It has *taken off* above [`CalibrationSettings::takeoff_percent`],
//! or if requests came faster than they were done.
//!
//! **Flow.** [`Calibration::next`] says what to do next, [`Calibration::on_measured`] takes what came of it:
//! 1. alone, then full: the measures of latency and of rates;
//! 2. *rise* in tenths of `mu` until latency has taken off (or halve, where it has at the first one);
//! 3. *refine* between the last flat rate and the first that was not;
//! 4. full once more, which uses up what a disk has saved up (the burst credits of a cloud disk), then *prove* that the
//!    rate is held for longer. If it is not, back to 3;
//! 5. alone once more: if that has changed, somebody else used the disk.
//!
//! A rate that has taken off by little is asked for again: one hiccup is no knee. Time is bounded: with little left, the
//! search ends with what it knows, and says what it does not ([`Doubt`]).

use std::time::Duration;

use base::Instant;

mod fit;
mod load;
mod sample;
#[cfg(test)]
mod tests;

pub use fit::Fit;
pub use load::{Ask, Mix, gap_ns};
pub use sample::{Alone, AloneClass, Point, Sample};

/// Parts of `mu` that rates rise by, and the most of it that is tried: whoever does that without taking off was not full.
const RISE: f64 = 0.1;
const RISE_MAX: f64 = 2.0;
/// The least part of `mu` that is tried.
const FALL_MIN: f64 = 1.0 / 128.0;
/// The knee is known well enough when the last flat rate is as near to the first one that was not.
const NEAR: f64 = 0.04;
/// The knee is said to be this part of the highest rate that was flat: there latency is about to take off.
const BELOW: f64 = 0.95;
/// A rate is not held if latency is so much above what counts as taken off, in percent: a look that lasts is not to be
/// stricter than the short ones by which the rate was found, whose chance it does not share.
const PROOF_ROOM_PERCENT: u64 = 125;
/// Above so many times what counts as taken off, it is not asked again.
const BEYOND_DOUBT: u64 = 2;
/// How much more than it was, or less, means that it was another disk, in percent.
const CHANGED_PERCENT: f64 = 150.0;
const SLOWER_PERCENT: f64 = 125.0;
/// An offer that is so much smaller than it should be: it was not the disk that was slow.
const OFFERED_PERCENT: f64 = 90.0;

/// Parts that the time is divided into, and how many of them each step gets.
const PARTS: u32 = 28;
const ALONE_PARTS: u32 = 2;
const FULL_PARTS: u32 = 2;
const PROVE_PARTS: u32 = 3;
const ALONE_AGAIN_PARTS: u32 = 1;
/// What the end of the search takes.
const END_PARTS: u32 = FULL_PARTS + PROVE_PARTS + ALONE_AGAIN_PARTS;
/// What is kept for it, in case that the first rate is not held.
const KEPT_PARTS: u32 = END_PARTS + PROVE_PARTS;
/// So many times longer a step may take on a disk that does few requests.
const LONGER: u32 = 3;

/// How the knee is searched.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CalibrationSettings {
    /// How long the search takes in all, about.
    pub lasts: Duration,
    /// From how many times what requests take alone on latency has taken off, in percent.
    pub takeoff_percent: u64,
    /// What is asked for.
    pub mix: Mix,
}

/// How requests come during a step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Arrivals {
    /// One after the other.
    Alone,
    /// So many at any time.
    Full(u64),
    /// At random times (Poisson), so many per second in the mean, however many are in flight.
    Random(f64),
}

/// One thing to do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Step {
    /// How requests come.
    pub arrivals: Arrivals,
    /// For how long.
    pub lasts: Duration,
    /// For how long at most, until there are enough of them to judge by.
    pub at_most: Duration,
}

/// What keeps a result from being trusted.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Doubt {
    /// Reads or writes that were alone took so many nanoseconds before and after, in the median.
    IdleChanged(u64, u64),
    /// So many bytes per second were delivered at first, full, and so many at the end.
    Slower(u64, u64),
    /// The rate was not held for longer, or there was no time to see.
    NotProven,
    /// Latency never took off.
    NeverTookOff,
    /// Latency had taken off at every rate.
    NeverFlat,
    /// So few requests could be made per second, of so many: the processor was the limit.
    NotOffered(u64, u64),
}

/// What was found. Rates are in bytes per second.
#[derive(Clone, Debug)]
pub struct Found {
    /// What requests take alone.
    pub alone: Alone,
    /// What was tried, by rate.
    pub points: Vec<Point>,
    /// A little below the highest rate at which latency was flat.
    pub knee: Option<f64>,
    /// `mu`: what is delivered at most.
    pub mu: f64,
    /// The curve of figure 6.
    pub fit: Option<Fit>,
    /// What speaks against all this.
    pub doubts: Vec<Doubt>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Alone,
    Full,
    Rise,
    Refine,
    Drain,
    Prove,
    AloneAgain,
    Done,
}

/// A search.
#[derive(Clone, Debug)]
pub struct Calibration {
    settings: CalibrationSettings,
    deadline: Instant,
    stage: Stage,
    alone: Alone,
    alone_again: Option<Alone>,
    /// What was delivered when it was full: at first, and last.
    full: (f64, f64),
    /// The rate that is tried.
    rate: f64,
    /// Whether it is tried for the second time.
    is_again: bool,
    /// The highest rate that was flat, below the lowest that was not.
    low: Option<f64>,
    high: Option<f64>,
    is_proven: bool,
    not_offered: Option<(u64, u64)>,
    points: Vec<Point>,
}

impl Calibration {
    /// Nothing is known.
    pub fn new(settings: CalibrationSettings, now: Instant) -> Calibration {
        Calibration {
            settings,
            deadline: now + settings.lasts,
            stage: Stage::Alone,
            alone: Alone::default(),
            alone_again: None,
            full: (0.0, 0.0),
            rate: 0.0,
            is_again: false,
            low: None,
            high: None,
            is_proven: false,
            not_offered: None,
            points: Vec::new(),
        }
    }

    /// What to do next; nothing: the search is over.
    pub fn next(&mut self, now: Instant) -> Option<Step> {
        let left = self.deadline.since(now);
        let is_late = left < self.parts(KEPT_PARTS + 1);
        if matches!(self.stage, Stage::Rise | Stage::Refine) && is_late {
            self.stage = if self.low.is_some() { Stage::Drain } else { Stage::AloneAgain };
        }
        if self.stage == Stage::Refine && self.is_near() {
            self.stage = Stage::Drain;
        }
        match self.stage {
            Stage::Alone => Some(self.step(Arrivals::Alone, ALONE_PARTS, left)),
            Stage::Full | Stage::Drain => Some(self.step(Arrivals::Full(DEPTH), FULL_PARTS, left)),
            Stage::Rise => Some(self.step(self.random(), 1, left)),
            Stage::Refine => {
                if let (false, Some(low), Some(high)) = (self.is_again, self.low, self.high) {
                    self.rate = f64::midpoint(low, high);
                }
                Some(self.step(self.random(), 1, left))
            }
            Stage::Prove => {
                self.rate = BELOW * self.low.unwrap_or(self.rate);
                Some(self.step(self.random(), PROVE_PARTS, left))
            }
            Stage::AloneAgain => Some(self.step(Arrivals::Alone, ALONE_AGAIN_PARTS, left)),
            Stage::Done => None,
        }
    }

    /// What came of it. `sample` is of the step that was asked for last, and of nothing else. Gives the point that it is,
    /// if a rate was tried.
    pub fn on_measured(&mut self, now: Instant, sample: &Sample) -> Option<Point> {
        match self.stage {
            Stage::Alone => {
                self.alone = Alone::of(sample);
                self.stage = Stage::Full;
            }
            Stage::Full => {
                let mu = sample.late_bytes_per_sec();
                (self.full, self.rate) = ((mu, mu), RISE * mu);
                self.stage = if mu > 0.0 { Stage::Rise } else { Stage::Done };
            }
            Stage::Drain => {
                self.full.1 = sample.late_bytes_per_sec();
                self.stage = Stage::Prove;
            }
            Stage::AloneAgain => {
                self.alone_again = Some(Alone::of(sample));
                self.stage = Stage::Done;
            }
            Stage::Rise | Stage::Refine | Stage::Prove => {
                let point = Point::of(sample, self.rate, &self.alone, self.settings.takeoff_percent);
                self.points.push(point);
                self.on_point(now, sample, &point);
                return Some(point);
            }
            Stage::Done => {}
        }
        None
    }

    /// What was found; to be asked when there is nothing more to do.
    pub fn found(&self) -> Found {
        let mut points = self.points.clone();
        points.sort_by(|one, other| one.rate.total_cmp(&other.rate));
        let knee = self.low.map(|low| BELOW * low);
        let mu = self.full.1.max(knee.unwrap_or(0.0));
        let fit = Fit::of(&points, self.alone.p95_ns(), mu, self.settings.mix.mean_bytes());
        Found { alone: self.alone.clone(), points, knee, mu, fit, doubts: self.doubts() }
    }

    fn on_point(&mut self, now: Instant, sample: &Sample, point: &Point) {
        let is_bad = match self.stage {
            Stage::Prove => {
                point.outran || point.stretch_percent * 100 > self.settings.takeoff_percent * PROOF_ROOM_PERCENT
            }
            _ => point.has_taken_off || self.falls_short(sample),
        };
        let doubtful = point.stretch_percent <= self.settings.takeoff_percent * BEYOND_DOUBT && !point.outran;
        let has_time = self.stage != Stage::Prove || self.deadline.since(now) >= self.parts(PROVE_PARTS);
        if is_bad && doubtful && !self.is_again && has_time {
            self.is_again = true;
            return;
        }
        self.is_again = false;
        match (self.stage, is_bad) {
            (Stage::Prove, false) => {
                self.is_proven = true;
                self.stage = Stage::AloneAgain;
            }
            (Stage::Prove, true) => self.on_refuted(now),
            (Stage::Rise, false) => {
                self.low = Some(self.rate);
                match self.high {
                    Some(_) => self.stage = Stage::Refine,
                    None if self.rate >= RISE_MAX * self.full.0 => self.stage = Stage::Drain,
                    None => self.rate += RISE * self.full.0,
                }
            }
            (Stage::Rise, true) => {
                self.high = Some(self.rate);
                match self.low {
                    Some(_) => self.stage = Stage::Refine,
                    None if self.rate <= FALL_MIN * self.full.0 => self.stage = Stage::AloneAgain,
                    None => self.rate /= 2.0,
                }
            }
            (_, false) => self.low = Some(self.rate),
            (_, true) => self.high = Some(self.rate),
        }
    }

    /// A rate was not held for long: what was flat near it was so by luck, or with what the disk had saved up; with that,
    /// more than `mu` was, too.
    fn on_refuted(&mut self, now: Instant) {
        let high = self.rate.min(self.full.1);
        let is_below = |point: &&Point| point.rate < high * (1.0 - NEAR);
        let flat = self.points.iter().filter(|point| !point.has_taken_off).filter(is_below);
        let low = flat.map(|point| point.rate).max_by(f64::total_cmp);
        let left = self.deadline.since(now);
        (self.high, self.low) = (Some(high), low);
        self.stage = match low {
            Some(_) if left > self.parts(KEPT_PARTS) => Stage::Refine,
            // What was saved up is used up by now.
            Some(_) if left >= self.parts(PROVE_PARTS) => Stage::Prove,
            Some(_) => Stage::AloneAgain,
            None => {
                self.rate = high / 2.0;
                Stage::Rise
            }
        };
    }

    /// Whether fewer requests were made than should have been: then it is not the disk that is slow.
    fn falls_short(&mut self, sample: &Sample) -> bool {
        let wanted = self.rate / self.settings.mix.mean_bytes();
        let made = sample.made_per_sec();
        let is_short = sample.is_large() && made * 100.0 < wanted * OFFERED_PERCENT;
        if is_short {
            self.not_offered = Some((made as u64, wanted as u64));
        }
        is_short
    }

    fn is_near(&self) -> bool {
        match (self.low, self.high) {
            (Some(low), Some(high)) => !self.is_again && low >= high * (1.0 - NEAR),
            _ => false,
        }
    }

    fn random(&self) -> Arrivals {
        Arrivals::Random(self.rate / self.settings.mix.mean_bytes())
    }

    fn step(&self, arrivals: Arrivals, parts: u32, left: Duration) -> Step {
        let lasts = self.parts(parts);
        // What must still come is not to be pushed out by a step that wants more requests.
        let spare = left.saturating_sub(self.parts(KEPT_PARTS));
        Step { arrivals, lasts, at_most: (lasts * LONGER).min(spare).max(lasts) }
    }

    fn parts(&self, count: u32) -> Duration {
        self.settings.lasts / PARTS * count
    }

    fn doubts(&self) -> Vec<Doubt> {
        let mut doubts = Vec::new();
        let differ = |one: f64, other: f64, percent: f64| one.max(other) * 100.0 > one.min(other) * percent;
        if let Some(again) = &self.alone_again {
            let pairs = self.alone.p50_ns().into_iter().zip(again.p50_ns());
            let changed = pairs.filter(|(before, after)| differ(*before as f64, *after as f64, CHANGED_PERCENT));
            doubts.extend(changed.map(|(before, after)| Doubt::IdleChanged(before, after)));
        }
        let (first, last) = self.full;
        if first * 100.0 > last * SLOWER_PERCENT {
            doubts.push(Doubt::Slower(first as u64, last as u64));
        }
        if let Some((made, wanted)) = self.not_offered {
            doubts.push(Doubt::NotOffered(made, wanted));
        }
        match (self.low, self.high) {
            (None, _) => doubts.push(Doubt::NeverFlat),
            (Some(_), None) => doubts.push(Doubt::NeverTookOff),
            (Some(_), Some(_)) if !self.is_proven => doubts.push(Doubt::NotProven),
            _ => {}
        }
        doubts
    }
}

/// Requests in flight when a disk is to be full: as many as the burst of the store's other measurements has.
const DEPTH: u64 = 128;
