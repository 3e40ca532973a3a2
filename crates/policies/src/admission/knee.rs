//! What the store below takes before its latency takes off, learned while it runs: `bandwidth = "auto"`.
//!
//! **Intuition.** Below its knee a disk answers about as fast as if it were alone; above, it delivers no more, and all
//! that grows is the queue (NSDI 2026, §4.2, figure 6). So whoever knows how long a request takes alone sees on which
//! side of the knee the store is. From above it, what is delivered says where it is: the limit goes a little below that.
//! From below, a limit that binds hides what lies above it: it is probed, a little higher for a moment, and taken back
//! if latency rises. The paper calibrates once, offline; disks differ, age, and have neighbours of their own.
//!
//! **Names.** The *budget* is one disk's time: a request costs `theta` for its operation and for each of its bytes, by
//! direction ([`Cost`]), background operations included, in bytes of the mix in which the first limit was found; the limit of tokens stays, and what
//! things cost is learned, so that a mix that was seen before is known again. *Alone* is what a request takes that met
//! nobody below, the 95th percentile by direction and size ([`super::company`]). The *stretch* of a window is the 95th
//! percentile of its steady requests' times, each over what it takes alone: they are whom the limit is for. Where there
//! are none, it is the third quartile of all. Above [`KneeSettings::takeoff_percent`] latency has *taken off*. A limit
//! *binds* in a window in which somebody waited for tokens.
//!
//! **Flow.** [`Knee::on_start`] and [`Knee::on_done`] count; [`Knee::look`], at each refill of the buckets, ends a window
//! that is long enough, and decides:
//! - taken off in a few windows in a row: costs rise until what was delivered costs more than the limit, and hot segments
//!   are *held* until what is in line below is done;
//! - taken off during a *probe*: the probe is taken back at once, they are held, and the next one comes later, each time that
//!   happens again;
//! - flat, and the limit binds: a probe, or the one before is kept;
//! - bound for long, and nobody was alone: hot segments are held for a moment, to see what alone is now;
//! - requests wait for tokens, but nearly always the store is idle when the next ones are issued: the limit is *far below* the
//!   knee, whatever latency says (those that were let go together meet each other). It is doubled, up to where a knee was
//!   found;
//! - else nothing: who asks for little proves nothing. Nor does what happens while the store is disturbed
//!   ([`Knee::disturb`]).
//!
//! **Proof expires**: a limit that was too high is probed again after [`KneeSettings::proof`] and not before, one that has
//! become too low by a change below is found within that time; what was delivered is believed for one window.
//!
//! While one volume has the store for itself, limits protect nobody and do not hold ([`Knee::limit`]).

use std::time::Duration;

use base::{Instant, MIB};

use super::background::Background;
use super::company::Company;
use super::cost::{Cost, Load};
use super::request::Outcome;
use super::tally::Tally;
use crate::slow_requests::Direction;

#[cfg(test)]
mod tests;
mod window;

use window::{STEADY_MIN, Window};

/// Which part of what was delivered a limit leaves that is found.
const CUTS: std::ops::RangeInclusive<f64> = 0.5..=0.93;
/// The limit is at least so many times what steady segments have.
const STEADY_ROOM: f64 = 4.0;
/// How much of what steady segments had is forgotten in each window.
const STEADY_FORGOTTEN: f64 = 1.0 / 512.0;
/// Where nothing binds and fewer requests are below in the mean, latency is not what it is because of them.
const BUSY: f64 = 3.0;
/// A probe is tried only where the stretch is below this part of what has taken off, in percent.
const PROBE_BELOW_PERCENT: u64 = 85;
/// What clients have in any case of what the disk takes, whatever the background does.
const CLIENTS_MIN: f64 = 0.25;
/// How long what requests took is told.
const LATENCY_HOLDS: Duration = Duration::from_secs(5);
/// For how many windows it is waited for enough steady requests to judge by.
const STEADY_WINDOWS: u32 = 4;
/// How long hot segments are held: until hardly anything is in line below, but no longer than this, whatever the store
/// below does; and where nobody was alone so far, long enough for somebody to come.
const HOLD_MAX: Duration = Duration::from_secs(2);
/// See [`HOLD_MAX`].
const HOLD_ALONE: Duration = Duration::from_millis(50);
/// What a store below has in hand of which nothing is left in line.
const DRAINED: usize = 2;
/// How long nobody was alone before hot segments are held.
const HOLD_EVERY: Duration = Duration::from_secs(10);
/// The first pause after a probe that failed; each further one doubles it, up to the proof's time.
const PROBE_PAUSE: Duration = Duration::from_millis(500);
/// The pause between probes above a knee that was found not long ago.
const PROBE_ABOVE: Duration = Duration::from_secs(2);
/// For how long it counts as found not long ago.
const FOUND_HOLDS: Duration = Duration::from_secs(60);
/// After so many probes in a row that knee is forgotten.
const PROVEN: u32 = 5;
/// How many times the limit a probe is that begins far below the knee.
const FAR: f64 = 2.0;

/// How the knee is looked for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct KneeSettings {
    /// The limit is never below this, in bytes per second, whatever latency says.
    pub floor_bytes_per_sec: u64,
    /// From how many times its time alone on latency has taken off, in percent.
    pub takeoff_percent: u64,
    /// How long a window is at least.
    pub window: Duration,
    /// Requests that a window needs; it lasts longer with fewer, and says nothing after [`KneeSettings::window_max`].
    pub samples_min: u64,
    /// See [`KneeSettings::samples_min`].
    pub window_max: Duration,
    /// How far a probe goes above the limit, in percent.
    pub probe_percent: u64,
    /// How long it is believed that more is too much.
    pub proof: Duration,
    /// A volume that was not used for so long leaves the store to another one for itself.
    pub absent: Duration,
}

impl Default for KneeSettings {
    fn default() -> Self {
        KneeSettings {
            floor_bytes_per_sec: MIB,
            takeoff_percent: 160,
            window: Duration::from_millis(100),
            samples_min: 16,
            window_max: Duration::from_secs(2),
            probe_percent: 10,
            proof: Duration::from_secs(5),
            absent: Duration::from_secs(60),
        }
    }
}

/// What things cost, and how much of that a second has.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Budget {
    cost: Cost,
    /// Tokens per second; none before latency has taken off for the first time.
    limit: Option<f64>,
}

impl Budget {
    /// How many seconds that load takes which was a second's. Nothing without a limit.
    fn seconds(&self, load: &Load) -> f64 {
        self.limit.map_or(0.0, |limit| self.cost.of_load(load) / limit)
    }

    /// Has that load take so many seconds, if there is a limit. Costs change; where they are at their bounds, the limit does.
    fn set_seconds(&mut self, load: &Load, seconds: f64) {
        let Some(limit) = self.limit else { return };
        self.cost.project(load, limit * seconds);
        let found = self.seconds(load);
        if found > 0.0 {
            self.limit = Some(limit * found / seconds);
        }
    }
}

/// What is tried at the moment.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Trial {
    No,
    /// There is more than there was before.
    Probe(Budget),
    /// Hot segments are held, from when on and for how long at least.
    Held(Instant, Duration),
}

/// What it knows.
#[derive(Clone, Debug)]
pub struct Knee {
    settings: KneeSettings,
    budget: Budget,
    company: Company,
    window: Window,
    trial: Trial,
    /// Windows in a row in which latency had taken off.
    taken_off: u32,
    /// What there was when the knee was found last.
    found: Option<(Budget, Instant)>,
    /// Probes in a row that did not fail.
    proven: u32,
    /// When the limit was cut last.
    cut_at: Instant,
    /// No probe before, and how long the next pause will be.
    probe_at: Instant,
    pause: Duration,
    /// When a request was alone last.
    quiet_at: Instant,
    /// What steady segments have in a second.
    steady: Load,
    /// What the background has in a second.
    background: Load,
    /// What a second of the last window's mix may have, in bytes, and what clients leave of that.
    bytes_per_sec: Option<u64>,
    left_bytes_per_sec: u64,
    /// What requests took in the last window.
    latency: Option<(Tally, Instant)>,
    is_shared: bool,
    /// No window before that is judged.
    disturbed_until: Instant,
}

impl Knee {
    /// Nothing is known.
    pub fn new(settings: KneeSettings, now: Instant) -> Knee {
        Knee {
            settings,
            budget: Budget { cost: Cost([1.0; 4]), limit: None },
            company: Company::default(),
            window: Window::new(now),
            trial: Trial::No,
            taken_off: 0,
            found: None,
            proven: 0,
            cut_at: Instant::ZERO,
            probe_at: now,
            pause: PROBE_PAUSE,
            quiet_at: now,
            steady: Load::default(),
            background: Load::default(),
            bytes_per_sec: None,
            left_bytes_per_sec: 0,
            latency: None,
            is_shared: false,
            disturbed_until: Instant::ZERO,
        }
    }

    /// Until then requests wait for what none of them asked for, like the adoption of what a dead server had: how long they
    /// take says nothing of the knee. A later call counts instead.
    pub fn disturb(&mut self, until: Instant) {
        self.disturbed_until = until;
    }

    /// Tokens of a request.
    #[inline]
    pub fn cost(&self, direction: Direction, bytes: u64) -> u64 {
        self.budget.cost.of(direction, bytes)
    }

    /// Tokens per second that clients have now: none while nothing is known, or one volume is by itself. What the background
    /// does comes out of the same budget, but never takes more than the most of it, nor what steady segments need.
    pub fn limit(&self) -> Option<u64> {
        let Budget { cost, limit } = self.budget;
        let limit = limit.filter(|_| self.is_shared)?;
        let least = (limit * CLIENTS_MIN).max(STEADY_ROOM * cost.of_load(&self.steady)).min(limit);
        Some((limit - cost.of_load(&self.background)).max(least) as u64)
    }

    /// Whether hot segments are held for a moment.
    pub fn holds(&self) -> bool {
        matches!(self.trial, Trial::Held(..))
    }

    /// What was learned: bytes per second of the mix that was seen last.
    pub fn bytes_per_sec(&self) -> Option<u64> {
        self.bytes_per_sec
    }

    /// What clients leave of that, in bytes per second: nothing while any of them waits. None where nothing is known.
    pub fn available(&self) -> Option<u64> {
        self.bytes_per_sec.map(|_| self.left_bytes_per_sec)
    }

    /// What requests took lately.
    pub(super) fn latency(&self, now: Instant) -> Option<&Tally> {
        self.latency.as_ref().filter(|(_, at)| now.since(*at) < LATENCY_HOLDS).map(|(tally, _)| tally)
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

    /// A request waits for tokens.
    #[inline]
    pub fn on_wait(&mut self) {
        self.window.binds = true;
    }

    /// A request is done. `is_hot`: its segment asks for more than its share.
    #[inline]
    pub fn on_done(&mut self, now: Instant, done: &Outcome, is_hot: bool) {
        let compared = self.company.on_done(now, done);
        let window = &mut self.window;
        let counted = if is_hot { &mut window.hot } else { &mut window.steady };
        counted.requests += 1;
        counted.took_ns += now.nanos_since(done.granted);
        counted.load.add(done.direction, done.bytes);
        if compared.was_alone {
            self.quiet_at = now;
        }
        if let Some(alone) = compared.alone {
            counted.tally.add(compared.took, alone);
        }
    }

    /// Looks at the window that may end now. `waiting`: somebody waits for tokens; `is_shared`: more than one volume was
    /// used lately; `background`: what nobody waits for.
    pub(super) fn look(&mut self, now: Instant, waiting: bool, is_shared: bool, background: &Background) {
        self.is_shared = is_shared;
        self.background = *background.per_sec();
        if now < self.disturbed_until {
            self.end_trial();
            (self.taken_off, self.window) = (0, Window::new(now));
            return;
        }
        self.window.binds |= waiting && self.limit().is_some();
        self.window.refills += 1;
        self.window.idle += u32::from(self.company.below() == 0);
        let (span, usual) = (now.since(self.window.begun), self.settings.window);
        let is_seen = self.limit().is_some() && self.window.binds && self.window.steady.tally.count >= STEADY_MIN;
        let is_seen = is_seen && !self.holds() && !self.window.is_far_below();
        if is_seen && self.window.steady.tally.stretch(75) > self.settings.takeoff_percent {
            // No need to wait for the rest.
            let window = std::mem::replace(&mut self.window, Window::new(now));
            self.taken_off = 0;
            match self.trial {
                Trial::Probe(before) => self.fail_probe(now, before),
                _ => {
                    self.note_steady(&window, span);
                    let load = window.done().scaled(1.0 / span.as_secs_f64()).plus(&self.background);
                    self.set_knee(now, &load, window.steady.tally.stretch(95));
                }
            }
            return;
        }
        if let Trial::Held(since, least) = self.trial {
            let held = now.since(since);
            if held < least || (self.company.below() > DRAINED && held < HOLD_MAX) {
                return;
            }
            // What was held on purpose says nothing of the knee.
            (self.trial, self.quiet_at, self.window) = (Trial::No, now, Window::new(now));
            return;
        }
        let is_enough = self.window.requests() >= self.settings.samples_min
            && (self.window.steady.tally.count >= STEADY_MIN || span >= usual * STEADY_WINDOWS);
        if span < usual || (!is_enough && span < self.settings.window_max) {
            return;
        }
        let window = std::mem::replace(&mut self.window, Window::new(now));
        self.company.find();
        // Who slept in between does not know how long it took.
        if is_enough && span < self.settings.window_max {
            self.judge(now, &window, span);
            return;
        }
        self.end_trial();
        self.taken_off = 0;
        let bytes_per_sec = window.done().bytes() / span.as_secs_f64();
        self.left_bytes_per_sec = self.bytes_per_sec.unwrap_or(0).saturating_sub(bytes_per_sec as u64);
        if window.requests() == 0 {
            self.company.forget_below();
        }
    }

    fn judge(&mut self, now: Instant, window: &Window, span: Duration) {
        let clients = window.done().scaled(1.0 / span.as_secs_f64());
        let load = clients.plus(&self.background);
        self.latency = Some((window.tally(), now)).filter(|(tally, _)| tally.count > 0);
        self.note_steady(window, span);
        let stretch = window.stretch_percent();
        let is_crowded = window.took_ns() as f64 >= BUSY * span.as_nanos() as f64;
        let is_judged = (window.binds || is_crowded) && !window.is_far_below();
        let has_taken_off = is_judged && stretch.is_some_and(|stretch| stretch > self.settings.takeoff_percent);
        match self.trial {
            Trial::Probe(before) if has_taken_off => self.fail_probe(now, before),
            _ if has_taken_off => {
                self.taken_off += 1;
                // A flush or a stall is an outlier, and may be in two windows.
                if self.taken_off >= if window.binds { 2 } else { 3 } {
                    self.taken_off = 0;
                    self.set_knee(now, &load, stretch.unwrap_or(0));
                }
            }
            trial => {
                self.taken_off = 0;
                if trial != Trial::No {
                    self.pause = PROBE_PAUSE;
                    self.proven += 1;
                    if self.proven >= PROVEN {
                        self.found = None;
                    }
                }
                self.trial = Trial::No;
                self.raise(now, &load, window, stretch, is_crowded);
            }
        }
        let Budget { cost, limit } = &self.budget;
        self.bytes_per_sec = limit.map(|limit| (clients.bytes() * limit / cost.of_load(&clients).max(1.0)) as u64);
        let left = self.bytes_per_sec.filter(|_| !window.binds).unwrap_or(0);
        self.left_bytes_per_sec = left.saturating_sub(clients.bytes() as u64);
    }

    /// Nothing came of what was tried.
    fn end_trial(&mut self) {
        if let Trial::Probe(before) = std::mem::replace(&mut self.trial, Trial::No) {
            self.budget = before;
        }
    }

    fn fail_probe(&mut self, now: Instant, before: Budget) {
        self.budget = before;
        self.trial = Trial::Held(now, Duration::ZERO);
        self.probe_later(now);
        self.window = Window::new(now);
    }

    fn probe_later(&mut self, now: Instant) {
        self.proven = 0;
        self.probe_at = now + self.pause;
        self.pause = (self.pause * 2).min(self.settings.proof);
    }

    /// What steady segments have, at most: hot ones may be taken for them and they for hot ones, now and then.
    fn note_steady(&mut self, window: &Window, span: Duration) {
        // Before there is a limit nobody is hot.
        if self.limit().is_none() || window.hot.tally.count == 0 {
            return;
        }
        let found = window.steady.load.scaled(1.0 / span.as_secs_f64());
        for (known, found) in self.steady.0.iter_mut().zip(found.0) {
            *known = found.max(*known * (1.0 - STEADY_FORGOTTEN));
        }
    }

    /// Latency has taken off: what was delivered is more than the store takes, by how much the stretch says.
    fn set_knee(&mut self, now: Instant, load: &Load, stretch: u64) {
        let floor = self.settings.floor_bytes_per_sec as f64;
        // What asks for so little is not what makes it slow.
        if load.plain() < floor {
            return;
        }
        let Budget { cost, limit } = &mut self.budget;
        limit.get_or_insert(cost.of_load(load));
        // Less than what was delivered lets the queue go. Where latency takes off again right after that, it is not a queue
        // but the company.
        let again = now.since(self.cut_at) < self.settings.window * 10;
        let part = (self.settings.takeoff_percent as f64 / stretch.max(1) as f64).sqrt();
        let part = if again { part.clamp(*CUTS.start(), *CUTS.end()) } else { *CUTS.end() };
        self.cut_at = now;
        // A limit of little more than what steady segments ask for would make them hot.
        let steady = cost.of_load(&self.steady) / cost.of_load(load);
        let part = part.max(STEADY_ROOM * steady).max(floor / load.plain());
        if part < 1.0 {
            // While the limit holds, more than that was delivered only because it held no earlier.
            let least = if self.is_shared { self.budget.seconds(load) } else { 0.0 };
            self.budget.set_seconds(load, (1.0 / part).max(least));
        }
        self.found = Some((self.budget, now));
        self.probe_later(now);
        self.trial = Trial::Held(now, Duration::ZERO);
    }

    /// Latency is flat. There is more than was thought if the limit is what keeps it so. `is_crowded`: enough were below for
    /// latency to be what it is because of them.
    fn raise(&mut self, now: Instant, load: &Load, window: &Window, stretch: Option<u64>, is_crowded: bool) {
        let (binds, is_far) = (window.binds, window.is_far_below());
        let held = Trial::Held(now, HOLD_ALONE);
        if self.budget.limit.is_none() {
            // A crowd in which nobody was ever alone: a limit is needed that hot segments can be held by.
            if stretch.is_none() && self.is_shared && is_crowded {
                self.budget.limit = Some(load.plain().max(self.settings.floor_bytes_per_sec as f64));
                self.trial = held;
            }
            return;
        }
        if self.budget.seconds(load) > 1.0 {
            // More than the limit, and nobody was the slower for it.
            self.budget.set_seconds(load, 1.0);
        }
        let stretch = stretch.filter(|_| now.since(self.quiet_at) < HOLD_EVERY);
        if stretch.is_none() && !is_far {
            self.trial = if binds { held } else { Trial::No };
            return;
        }
        let is_flat = stretch.is_some_and(|it| it * 100 < self.settings.takeoff_percent * PROBE_BELOW_PERCENT);
        if !binds || !(is_far || is_flat) || now < self.probe_at {
            return;
        }
        // Up to where the knee was last it goes fast. What is above may be saved up: credits of a disk are no proof.
        let is_above = self
            .found
            .is_some_and(|(found, at)| now.since(at) < FOUND_HOLDS && self.budget.seconds(load) <= found.seconds(load));
        // Nobody is there who has to be kept from the others: it may turn out to be too much.
        if is_above && !is_far {
            self.probe_at = now + PROBE_ABOVE;
        }
        self.trial = Trial::Probe(self.budget);
        match is_far && !is_above {
            // Of the mix nothing was learned so far from the knee.
            true => self.budget.limit = self.budget.limit.map(|limit| limit * FAR),
            false => {
                let percent = 100.0 + self.settings.probe_percent as f64;
                self.budget.set_seconds(load, self.budget.seconds(load) * 100.0 / percent);
            }
        }
    }
}
