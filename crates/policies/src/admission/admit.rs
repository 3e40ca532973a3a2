//! Admission as a whole: arrivals, grants, completions.

use base::levels::{Credits, Level, Levels, Rate};
use base::{Instant, Map, SegmentId, VolumeId};

use super::background::Background;
use super::buckets::{Bucket, Buckets};
use super::client::ClientId;
use super::estimator::Estimator;
use super::knee::Knee;
use super::line::{Key, Line, Lines, Place, Waiting};
use super::monitor::Monitor;
use super::request::{Outcome, Request};
use super::rings::{Rings, may_spend};
use super::settings::{AdmissionSettings, Throttle};
use crate::levels::Allowance;
use crate::waits::{Reason, Waits};

/// What is said to an arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It may start.
    Start,
    /// It is in line: [`Admission::next_grant`] hands its ticket out.
    Wait,
}

/// A request that was in line and may start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant<T> {
    /// What it was put in line with.
    pub ticket: T,
    /// How long it waited.
    pub waited_ns: u64,
    /// For what.
    pub reason: Reason,
}

/// More requests wait than may: this one is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overload {
    /// How many may wait.
    pub waiting_max: usize,
}

/// A volume that requests were made for.
#[derive(Clone)]
pub(super) struct Volume {
    client: ClientId,
    /// The volume that clients know it by: itself, or the one whose logs it has.
    pub(super) part_of: VolumeId,
    pub(super) allowance: Allowance,
    pub(super) waits: Waits,
    pub(super) started: u64,
    /// When a request of it arrived last.
    pub(super) used_at: Option<Instant>,
}

impl Volume {
    /// Whether a request with that mark would be within the base level.
    pub(super) fn is_base(&mut self, now: Instant, level: Level) -> bool {
        match level {
            Level::Open => self.allowance.plan(now) == Ok(Level::Base),
            Level::Base => self.allowance.covers_mark(now),
            Level::Burst | Level::Merge => false,
        }
    }
}

/// Intervals in a row in which latency had taken off below half of the limit.
#[derive(Default)]
pub(super) struct Slow {
    pub(super) intervals: u64,
    /// The most that was delivered meanwhile.
    pub(super) bytes_per_sec: u64,
    pub(super) is_told: bool,
}

/// What is left to do of a round of grants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Round {
    /// So many lines are still to be looked at for requests within their base level.
    Base(usize),
    Steady,
    Hot,
    Done,
}

/// The admission of a block server; `T` is what the server finds a waiting request by.
pub struct Admission<T> {
    pub(super) settings: AdmissionSettings,
    pub(super) buckets: Buckets,
    pub(super) monitor: Monitor,
    pub(super) estimator: Estimator,
    pub(super) knee: Option<Knee>,
    /// Tokens per second that the buckets have their sizes from.
    pub(super) limit: u64,
    pub(super) background: Background,
    pub(super) resized: Instant,
    /// Tokens that steady segments drew in this interval, and the most in one of the last.
    pub(super) steady_drawn: u64,
    pub(super) steady_demand: u64,
    pub(super) slow: Slow,
    pub(super) volumes: Vec<Volume>,
    pub(super) by_volume: Map<VolumeId, u32>,
    free_volumes: Vec<u32>,
    /// Volumes with a base level.
    promised: usize,
    pub(super) lines: Lines<T>,
    pub(super) rings: Rings,
    pub(super) round: Round,
    pub(super) waiting: usize,
    pub(super) started_bytes: u64,
    /// Tokens that were drawn.
    pub(super) drawn: i128,
    /// When something beyond a base level was started last, since levels were changed.
    pub(super) burst_at: Instant,
    pub(super) overdrawn_bytes: u64,
}

impl<T> Admission<T> {
    /// Nobody there, both buckets full.
    pub fn new(settings: AdmissionSettings, now: Instant) -> Self {
        let limit = if settings.learns.is_some() { u64::MAX } else { settings.limit_bytes_per_sec };
        let (main, cheque) = settings.bucket_sizes(limit);
        Admission {
            buckets: Buckets::new(settings.interval, main, cheque, now),
            monitor: Monitor::new(
                settings.interval,
                main.saturating_mul(settings.hot_share_percent) / 100,
                settings.hot_requests_min,
                settings.calm_intervals,
            ),
            estimator: Estimator::new(settings.estimator),
            knee: settings.learns.map(|learns| Knee::new(learns, now)),
            limit,
            background: Background::new(now),
            resized: now,
            steady_drawn: 0,
            steady_demand: 0,
            slow: Slow::default(),
            volumes: Vec::new(),
            by_volume: Map::default(),
            free_volumes: Vec::new(),
            promised: 0,
            lines: Lines::new(),
            rings: Rings::default(),
            round: Round::Done,
            waiting: 0,
            started_bytes: 0,
            drawn: 0,
            burst_at: Instant::ZERO,
            overdrawn_bytes: 0,
            settings,
        }
    }

    /// Its settings.
    pub fn settings(&self) -> &AdmissionSettings {
        &self.settings
    }

    /// Says whose a volume is and what it was promised; also while requests wait.
    pub fn set_volume(&mut self, now: Instant, volume: VolumeId, client: ClientId, levels: Levels) {
        let number = self.volume_number(now, volume);
        let known = &mut self.volumes[number as usize];
        known.client = client;
        if *known.allowance.levels() != levels {
            self.promised -= usize::from(!known.allowance.levels().base.is_none());
            self.promised += usize::from(!levels.base.is_none());
            known.allowance.change(levels, now);
            self.burst_at = Instant::ZERO;
            self.begin_round(now);
        }
    }

    /// Says that a volume is a part of another one, so that together they are one where it matters how many use the store.
    pub fn set_part_of(&mut self, now: Instant, volume: VolumeId, whole: VolumeId) {
        let number = self.volume_number(now, volume);
        self.volumes[number as usize].part_of = whole;
    }

    /// Forgets a volume, unless requests of it wait.
    pub fn remove_volume(&mut self, volume: VolumeId) {
        let Some(number) = self.by_volume.get(&volume).copied() else { return };
        let known = &mut self.volumes[number as usize];
        if Reason::ALL.iter().any(|reason| known.waits.of(*reason).now > 0) {
            return;
        }
        self.promised -= usize::from(!known.allowance.levels().base.is_none());
        known.allowance = Allowance::new(Levels::default(), self.settings.interval, 1, Instant::ZERO);
        known.used_at = None;
        self.by_volume.remove(&volume);
        self.free_volumes.push(number);
    }

    /// A request arrives: it starts, or `ticket` is put in line.
    ///
    /// # Errors
    /// [`Overload`]: nothing was put in line.
    pub fn submit(&mut self, now: Instant, request: Request, ticket: impl FnOnce() -> T) -> Result<Verdict, Overload> {
        let volume = self.volume_number(now, request.segment.volume);
        if self.settings.throttle == Throttle::Off {
            self.volumes[volume as usize].started += 1;
            self.started_bytes += request.bytes;
            return Ok(Verdict::Start);
        }
        self.volumes[volume as usize].used_at = Some(now);
        self.refill(now);
        let cost = match &self.knee {
            Some(knee) => knee.cost(request.direction, request.bytes),
            None => request.bytes + self.settings.operation_bytes,
        };
        let number = self.line_of(now, request.segment, volume);
        let line = self.lines.get_mut(number);
        self.monitor.on_arrival(&mut line.track, now, cost);
        let reason = match line.waiting.front() {
            Some(first) => first.reason,
            None => match self.start(now, number, volume, request.bytes, cost, request.level, true) {
                Ok(()) => return Ok(Verdict::Start),
                Err(reason) => reason,
            },
        };
        if self.waiting >= self.settings.waiting_max {
            return Err(Overload { waiting_max: self.settings.waiting_max });
        }
        self.waiting += 1;
        if matches!(reason, Reason::MainBucketEmpty | Reason::HotSegment)
            && let Some(knee) = &mut self.knee
        {
            knee.on_wait();
        }
        self.volumes[volume as usize].waits.on_wait(reason);
        let ticket = ticket();
        let line = self.lines.get_mut(number);
        let Request { bytes, level, .. } = request;
        line.marks += usize::from(level == Level::Base);
        line.waiting.push_back(Waiting { arrived: now, bytes, cost, volume, reason, level, ticket });
        if line.place == Place::Nowhere {
            let is_hot = self.settings.throttle == Throttle::DualBuckets && self.monitor.is_hot(&line.track, now);
            self.rings.enter(number, line, is_hot);
            if self.round == Round::Hot && !is_hot {
                self.round = Round::Steady;
            }
        }
        Ok(Verdict::Wait)
    }

    /// The next of those in line that may start now.
    pub fn next_grant(&mut self, now: Instant) -> Option<Grant<T>> {
        self.refill(now);
        loop {
            match self.round {
                Round::Base(0) => self.round = Round::Steady,
                Round::Base(left) => {
                    // The steady ring has gone round once when only the hot one's lines are left.
                    let is_hot = left <= self.rings.hot.len();
                    if let Some(grant) = self.grant_base(now, is_hot) {
                        return Some(grant);
                    }
                    self.round = Round::Base(left - 1);
                }
                Round::Steady if self.rings.steady.is_empty() => self.round = Round::Hot,
                Round::Hot if self.rings.hot.is_empty() => self.round = Round::Done,
                Round::Steady | Round::Hot => {
                    if let Some(grant) = self.grant_in_turn(now, self.round == Round::Hot) {
                        return Some(grant);
                    }
                }
                Round::Done => return None,
            }
        }
    }

    /// When to call [`Admission::next_grant`] next: at once, at the next refill, or not at all.
    pub fn next_look(&self, now: Instant) -> Option<Instant> {
        match (self.rings.is_empty(), self.round) {
            (true, _) => None,
            (false, Round::Done) => Some(self.next_tokens()),
            (false, _) => Some(now),
        }
    }

    /// When somebody in line may get tokens next.
    fn next_tokens(&self) -> Instant {
        let part = self.buckets.next_part().filter(|_| !self.rings.hot.is_empty() && self.buckets.main() > 0);
        part.unwrap_or_else(|| self.buckets.next_refill())
    }

    /// A request that was started is done.
    pub fn on_done(&mut self, now: Instant, done: Outcome) {
        match &mut self.knee {
            Some(knee) => {
                let line = self.lines.find(&Key::Segment(done.segment));
                let is_hot = line.is_some_and(|line| self.monitor.is_hot(&line.track, now));
                knee.on_done(now, &done, is_hot);
            }
            None => self.estimator.on_done(now, &done),
        }
    }

    /// A request that was started is gone, and nobody will know how long it took.
    pub fn on_gone(&mut self) {
        match &mut self.knee {
            Some(knee) => knee.on_gone(),
            None => self.estimator.on_gone(),
        }
    }

    pub(super) fn is_hot(&self, line: &Line<T>, now: Instant) -> bool {
        self.settings.throttle == Throttle::DualBuckets && self.monitor.is_hot(&line.track, now)
    }

    #[inline]
    fn volume_number(&mut self, now: Instant, id: VolumeId) -> u32 {
        match self.by_volume.get(&id) {
            Some(number) => *number,
            None => self.add_volume(now, id),
        }
    }

    #[cold]
    fn add_volume(&mut self, now: Instant, id: VolumeId) -> u32 {
        let allowance = Allowance::new(Levels::default(), self.settings.interval, 1, now);
        let (client, waits) = Default::default();
        let volume = Volume { client, part_of: id, allowance, waits, started: 0, used_at: None };
        let number = match self.free_volumes.pop() {
            Some(number) => {
                self.volumes[number as usize] = volume;
                number
            }
            None => {
                self.volumes.push(volume);
                self.volumes.len() as u32 - 1
            }
        };
        self.by_volume.insert(id, number);
        number
    }

    #[inline]
    fn line_of(&mut self, now: Instant, segment: SegmentId, volume: u32) -> u32 {
        let (key, cap) = match self.settings.throttle {
            Throttle::Off | Throttle::OneBucket => (Key::All, 0),
            Throttle::DualBuckets => (Key::Segment(segment), 0),
            Throttle::ClientCap(cap) => (Key::Client(self.volumes[volume as usize].client), cap),
            Throttle::SegmentCap(cap) => (Key::Segment(segment), cap),
        };
        let interval = self.settings.interval;
        self.lines.number_of(key, || {
            let burst = Rate { iops: 0, bytes_per_sec: cap };
            (cap > 0).then(|| {
                let levels = Levels { base: Rate::default(), burst, credits: Credits::default() };
                Allowance::new(levels, interval, 1, now)
            })
        })
    }

    /// Takes what a request needs, or says what is missing. `level`: its mark, or the one that is left to it; `arrives`: it is
    /// not in line.
    #[allow(clippy::too_many_arguments, reason = "a request, taken apart so that one in line is not copied")]
    #[inline]
    fn start(
        &mut self,
        now: Instant,
        number: u32,
        volume: u32,
        bytes: u64,
        cost: u64,
        level: Level,
        arrives: bool,
    ) -> Result<(), Reason> {
        let line = self.lines.get_mut(number);
        let known = &mut self.volumes[volume as usize];
        // Its agent has seen to the burst level of what it has marked.
        let is_base = match level {
            Level::Open => known.allowance.plan(now).map_err(|held| held.reason)? == Level::Base,
            Level::Base => known.allowance.covers_mark(now),
            Level::Burst | Level::Merge => false,
        };
        if line.cap.as_mut().is_some_and(|cap| !cap.has_burst(now)) {
            return Err(match self.settings.throttle {
                Throttle::ClientCap(_) => Reason::ClientCap,
                _ => Reason::SegmentCap,
            });
        }
        let is_dual = self.settings.throttle == Throttle::DualBuckets;
        let is_hot = is_dual && !is_base && self.monitor.is_hot(&line.track, now);
        let missing = if is_hot { Reason::HotSegment } else { Reason::MainBucketEmpty };
        // Tokens were issued, and those in line have not had their turn yet: who comes now is behind its like.
        let is_behind = match self.round {
            Round::Base(_) | Round::Steady => !is_base,
            Round::Hot => is_hot,
            Round::Done => false,
        };
        if arrives && is_behind {
            return Err(missing);
        }
        let drawn = if is_hot { self.buckets.draw_hot(cost) } else { self.buckets.draw_steady(cost) };
        let bucket = drawn.ok_or(missing)?;
        match (level, is_base) {
            (Level::Open, true) => known.allowance.draw(cost, Level::Base),
            (Level::Open, false) => known.allowance.draw(cost, Level::Burst),
            (_, true) => known.allowance.draw_marked(cost),
            (_, false) => {}
        }
        known.started += 1;
        if let Some(cap) = &mut line.cap {
            cap.draw(cost, Level::Burst);
        }
        if !is_base {
            self.burst_at = now;
        }
        self.started_bytes += bytes;
        self.drawn += i128::from(cost);
        match &mut self.knee {
            Some(knee) => knee.on_start(now),
            None => self.estimator.on_start(now),
        }
        self.steady_drawn += if is_hot { 0 } else { cost };
        self.overdrawn_bytes += if bucket == Bucket::Cheque { bytes } else { 0 };
        Ok(())
    }

    /// Issues the tokens of intervals that have begun.
    #[inline]
    fn refill(&mut self, now: Instant) {
        if now >= self.buckets.next_refill() {
            self.on_interval(now);
        } else if self.buckets.next_part().is_some_and(|next| now >= next) {
            self.buckets.begin_parts(now);
            if self.round == Round::Done && !self.rings.hot.is_empty() {
                self.round = Round::Hot;
            }
        }
    }

    #[cold]
    fn on_interval(&mut self, now: Instant) {
        self.review_limit(now);
        // What is learned leaves room by itself: the cheque bucket gets what it lacks.
        let available = self.available().filter(|_| self.knee.is_none());
        self.buckets.refill(now, available);
        self.lines.sweep(&self.monitor, now);
        self.begin_round(now);
        if !self.rings.hot.is_empty() {
            self.buckets.divide(now, self.settings.hot_parts);
        }
    }

    fn begin_round(&mut self, now: Instant) {
        if self.rings.is_empty() {
            self.round = Round::Done;
            return;
        }
        let (dual, monitor) = (self.settings.throttle == Throttle::DualBuckets, &self.monitor);
        self.rings.sort(&mut self.lines, |line| dual && monitor.is_hot(&line.track, now));
        self.round = Round::Base(if self.promised > 0 { self.rings.turning() } else { 0 });
    }

    /// Starts the first request of the line at a ring's front if it is within the base level; else its turn is over.
    fn grant_base(&mut self, now: Instant, is_hot: bool) -> Option<Grant<T>> {
        let number = self.rings.ring(is_hot).front().copied()?;
        let line = self.lines.get_mut(number);
        let level = line.level_of_first();
        let first = line.waiting.front()?;
        let (volume, bytes, cost) = (first.volume, first.bytes, first.cost);
        let is_base = self.volumes[volume as usize].is_base(now, level);
        if is_base && self.start(now, number, volume, bytes, cost, level, false).is_ok() {
            let grant = self.take_first(now, number, is_hot);
            // A line that is empty now has left its ring, and is not to be counted again.
            if self.lines.get_mut(number).place == Place::Nowhere
                && let Round::Base(left) = self.round
            {
                self.round = Round::Base(left - 1);
            }
            return grant;
        }
        self.rings.rotate(is_hot);
        None
    }

    /// Lets the line at a ring's front take its turn. Nothing: look again, the ring or the round has changed.
    fn grant_in_turn(&mut self, now: Instant, is_hot: bool) -> Option<Grant<T>> {
        let number = self.rings.ring(is_hot).front().copied()?;
        let line = self.lines.get_mut(number);
        let turned =
            !is_hot && self.settings.throttle == Throttle::DualBuckets && self.monitor.is_hot(&line.track, now);
        if turned {
            self.rings.steady.pop_front();
            self.rings.enter(number, line, true);
            return None;
        }
        let level = line.level_of_first();
        let first = line.waiting.front()?;
        let (volume, bytes, cost) = (first.volume, first.bytes, first.cost);
        if !may_spend(line, cost) {
            self.rings.rotate(is_hot);
            return None;
        }
        match self.start(now, number, volume, bytes, cost, level, false) {
            Ok(()) => self.take_first(now, number, is_hot),
            Err(reason) => {
                self.blame(number, reason);
                match reason {
                    Reason::HotSegment | Reason::MainBucketEmpty => {
                        self.lines.get_mut(number).deficit += cost;
                        self.round = Round::Done;
                    }
                    _ => self.rings.park(is_hot, self.lines.get_mut(number)),
                }
                None
            }
        }
    }

    /// What keeps the first request of a line from starting now. Who comes later inherits it, so that a line which
    /// never empties does not tell for ever what it once waited for.
    fn blame(&mut self, number: u32, reason: Reason) {
        let Some(first) = self.lines.get_mut(number).waiting.front_mut() else { return };
        let before = std::mem::replace(&mut first.reason, reason);
        self.volumes[first.volume as usize].waits.on_change(before, reason);
    }

    /// The first request of the line at a ring's front has been started.
    fn take_first(&mut self, now: Instant, number: u32, is_hot: bool) -> Option<Grant<T>> {
        let line = self.lines.get_mut(number);
        let Waiting { arrived, volume, reason, level, ticket, .. } = line.waiting.pop_front()?;
        line.marks -= usize::from(level != Level::Open && line.marks > 0);
        if line.waiting.is_empty() {
            self.rings.leave(is_hot, line);
        }
        self.waiting -= 1;
        let waited_ns = now.nanos_since(arrived);
        self.volumes[volume as usize].waits.on_start(reason, waited_ns);
        Some(Grant { ticket, waited_ns, reason })
    }
}

#[cfg(test)]
impl<T> Admission<T> {
    pub(super) fn known_lines(&self) -> usize {
        self.lines.used().count()
    }

    pub(super) fn steady_waiting(&self, now: Instant) -> bool {
        self.lines.used().any(|line| !line.waiting.is_empty() && !self.is_hot(line, now))
    }

    pub(super) fn has_base(&mut self, volume: VolumeId, now: Instant) -> bool {
        let number = self.by_volume.get(&volume).copied();
        number.is_some_and(|number| self.volumes[number as usize].allowance.has_base(now))
    }
}
