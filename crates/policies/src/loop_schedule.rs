//! When a loop receives, how long it runs background tasks, and when it blocks: priority-based task scheduling
//! ("Come Hell or Still Water", NSDI 2026, §4.3).
//!
//! Intuition: a request that waits in the receive buffer while the loop dumps a cache is latency that nobody
//! ordered. So I/O tasks run first and are never cut short; background tasks run after them, and only for as long as
//! the I/O of the same turn justifies.
//!
//! Names, for one turn of the loop:
//! - `T_io`: the time from the turn's start to the end of its I/O tasks, receiving included;
//! - `LT`: the loop timeout, 10 us;
//! - `DLT = max(alpha * T_io, LT)`: the dynamic loop timeout. A background task starts only while the turn is younger
//!   than that, both in whole microseconds with `DLT` rounded down; a task that was started runs to its next yield.
//!
//! Background work is held to a share of wall time besides. A loop that always finds some never sleeps, and a thread
//! that never sleeps loses its processor at the worst moment: on a shared machine that turned a p99 of 0.2 ms into
//! 4 ms. The share is a bucket of time that fills with the clock and pays for background tasks. Once it is empty
//! background work rests until half the bucket is there again, and the loop may block.
//!
//! Flow of one turn: [`LoopSchedule::plan_receive`], receive or not, [`LoopSchedule::on_turn_start`], run I/O tasks
//! (at most [`LoopSchedule::plan_io_polls`] polls, looking at the world in between when [`LoopSchedule::plan_look`]
//! says so), [`LoopSchedule::on_io_end`]; then [`LoopSchedule::plan_background`] before and
//! [`LoopSchedule::on_background_end`] after each background task.
//!
//! The baseline is [`Discipline::Fifo`]: one queue for everything, received into only when it has run dry.

use std::time::Duration;

use base::Instant;

use crate::polling::{PollingPolicy, PollingSettings};

/// The order of tasks within a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Discipline {
    /// I/O first, background for a bounded time after it (NSDI 2026, §4.3).
    Priority,
    /// The baseline of the paper: one queue in arrival order, and nothing is received before it is empty.
    Fifo,
}

/// The settings of a loop.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoopSettings {
    /// The order of tasks.
    pub discipline: Discipline,
    /// `alpha` in percent: how far a turn may outlast its I/O. 120 leaves background about a fifth of a busy loop.
    pub alpha_percent: u64,
    /// `LT`: how old a turn with little I/O may become before background tasks stop starting.
    pub loop_timeout: Duration,
    /// Polls of I/O tasks that became ready during the turn itself, beyond those that were ready at its start.
    pub successors_max: usize,
    /// Polls of I/O tasks between two looks at the world: disk and clients work on what the first tasks of a turn asked
    /// for while the others still run. Each look costs a system call, which is why it is not every poll.
    pub polls_per_look: u64,
    /// Polls of background tasks in one turn, which bounds a turn whose tasks take no measurable time.
    pub background_polls_max: usize,
    /// Turns in a row that may pass without receiving because I/O tasks were ready all along.
    pub turns_without_receive_max: u32,
    /// Background's share of wall time, in percent.
    pub background_share_percent: u64,
    /// How much unused background time is saved up; also the largest debt that one long poll leaves.
    pub background_savings: Duration,
    /// When it looks on before it sleeps.
    pub polling: PollingSettings,
}

impl Default for LoopSettings {
    fn default() -> Self {
        LoopSettings {
            discipline: Discipline::Priority,
            alpha_percent: 120,
            loop_timeout: Duration::from_micros(10),
            successors_max: 256,
            polls_per_look: 8,
            background_polls_max: 64,
            turns_without_receive_max: 8,
            background_share_percent: 50,
            background_savings: Duration::from_micros(500),
            polling: PollingSettings::default(),
        }
    }
}

/// What a loop does between two tasks of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// Nothing.
    No,
    /// Submits what was asked for.
    Submit,
    /// That, and takes what is done.
    Collect,
}

/// How long a loop without anything to do now may sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// Not at all: something is ready.
    No,
    /// Until this point, when background work may go on, or until something happens.
    Until(Instant),
    /// Until something happens.
    Forever,
}

/// The decisions of one loop. See the module's header.
#[derive(Clone, Debug)]
pub struct LoopSchedule {
    settings: LoopSettings,
    turns_without_receive: u32,
    turn_start: Instant,
    /// The age at which background tasks stop starting in this turn, in whole microseconds.
    dynamic_loop_timeout_us: u64,
    background_polls: usize,
    background: BackgroundShare,
    polling: PollingPolicy,
}

impl LoopSchedule {
    /// The schedule of a loop that starts at `now`.
    pub fn new(settings: LoopSettings, now: Instant) -> Self {
        assert!(settings.alpha_percent >= 100, "a turn lasts at least as long as its I/O");
        assert!(settings.polls_per_look > 0, "something runs between two looks");
        let background = BackgroundShare::new(&settings, now);
        LoopSchedule {
            polling: PollingPolicy::new(settings.polling, now),
            settings,
            turns_without_receive: 0,
            turn_start: now,
            dynamic_loop_timeout_us: 0,
            background_polls: 0,
            background,
        }
    }

    /// The settings that it was made with.
    pub fn settings(&self) -> &LoopSettings {
        &self.settings
    }

    /// Whether the coming turn starts with receiving. `ready` counts tasks in the I/O queue.
    ///
    /// With the priority discipline the answer is also yes when the queue has not run dry for several turns: tasks
    /// that keep waking each other must not lock out the network.
    pub fn plan_receive(&mut self, ready: usize) -> bool {
        let insist = self.settings.discipline == Discipline::Priority
            && self.turns_without_receive >= self.settings.turns_without_receive_max;
        let receive = ready == 0 || insist;
        self.turns_without_receive = if receive { 0 } else { self.turns_without_receive + 1 };
        receive
    }

    /// A turn starts: before receiving, unless receiving slept.
    pub fn on_turn_start(&mut self, now: Instant) {
        self.turn_start = now;
        self.background_polls = 0;
        self.background.on_time(now);
    }

    /// How many polls of I/O tasks this turn may make when `ready` tasks are queued.
    pub fn plan_io_polls(&self, ready: usize) -> usize {
        ready + self.settings.successors_max
    }

    /// What happens before the next I/O task of this turn runs, after `polls`.
    ///
    /// A turn in which many requests finish would otherwise be a convoy: the client gets all replies at its end, the
    /// disk what the client asks for next, and each of the three waits while another works. What is taken in the
    /// middle of a turn waits behind what is ready. The FIFO baseline takes nothing before its queue has run dry.
    pub fn plan_look(&self, polls: u64) -> Look {
        match (polls > 0 && polls.is_multiple_of(self.settings.polls_per_look), self.settings.discipline) {
            (false, _) => Look::No,
            (true, Discipline::Priority) => Look::Collect,
            (true, Discipline::Fifo) => Look::Submit,
        }
    }

    /// The I/O tasks of this turn have run, and what they queued is submitted: `T_io` is known.
    pub fn on_io_end(&mut self, now: Instant) {
        let io_ns = now.nanos_since(self.turn_start);
        let stretched_ns = u128::from(io_ns) * u128::from(self.settings.alpha_percent) / 100;
        let timeout_ns = stretched_ns.max(self.settings.loop_timeout.as_nanos());
        self.dynamic_loop_timeout_us = u64::try_from(timeout_ns / 1000).unwrap_or(u64::MAX);
    }

    /// Whether a background task may start now.
    pub fn plan_background(&mut self, now: Instant) -> bool {
        self.background.on_time(now);
        let age_us = now.nanos_since(self.turn_start) / 1000;
        age_us < self.dynamic_loop_timeout_us
            && self.background_polls < self.settings.background_polls_max
            && !self.background.rests()
    }

    /// A background task ran for `span` and yielded at `now`.
    pub fn on_background_end(&mut self, now: Instant, span: Duration) {
        self.background_polls += 1;
        self.background.on_time(now);
        self.background.pay(span);
    }

    /// Whether background work has used up its share and waits for more, so that ready tasks do not keep the loop up.
    pub fn background_rests(&self) -> bool {
        self.background.rests()
    }

    /// How long the loop may sleep when that many tasks are ready.
    pub fn plan_sleep(&mut self, now: Instant, io_ready: usize, background_ready: usize) -> Sleep {
        self.background.on_time(now);
        if io_ready > 0 {
            return Sleep::No;
        }
        match (background_ready > 0, self.background.rest_end(now)) {
            (false, _) => Sleep::Forever,
            (true, None) => Sleep::No,
            (true, Some(end)) => Sleep::Until(end),
        }
    }

    /// How long to look on before such a sleep; zero: not at all.
    pub fn plan_poll(&self) -> Duration {
        self.polling.plan_poll()
    }

    /// The loop had nothing to do for `span`, and now it has. `io_polls` counts those of its life.
    pub fn on_wait_end(&mut self, now: Instant, span: Duration, io_polls: u64) {
        self.polling.on_wait_end(now, span, io_polls);
    }
}

/// Time that background tasks may still use: a bucket that fills at a share of wall time.
#[derive(Clone, Debug)]
struct BackgroundShare {
    share_percent: u64,
    savings_ns: i64,
    /// At most `savings_ns`; below zero after a poll that took longer than what was saved.
    balance_ns: i64,
    /// Hundredths of a nanosecond that did not make a whole one yet.
    remainder: u64,
    filled_at: Instant,
    resting: bool,
}

impl BackgroundShare {
    fn new(settings: &LoopSettings, now: Instant) -> Self {
        let savings_ns = i64::try_from(settings.background_savings.as_nanos()).unwrap_or(i64::MAX / 4);
        assert!((1..=100).contains(&settings.background_share_percent), "a share is 1 to 100 percent");
        assert!(savings_ns >= 2, "background work needs some time to start with");
        BackgroundShare {
            share_percent: settings.background_share_percent,
            savings_ns,
            balance_ns: savings_ns,
            remainder: 0,
            filled_at: now,
            resting: false,
        }
    }

    fn on_time(&mut self, now: Instant) {
        let passed_ns = now.nanos_since(self.filled_at);
        if passed_ns == 0 {
            return;
        }
        self.filled_at = now;
        let earned = u128::from(passed_ns) * u128::from(self.share_percent) + u128::from(self.remainder);
        self.remainder = (earned % 100) as u64;
        // The sum stays far from the ends of i64: both are at most `savings_ns`.
        let room_ns = self.savings_ns - self.balance_ns;
        self.balance_ns += i64::try_from(earned / 100).unwrap_or(i64::MAX).min(room_ns);
        if self.balance_ns >= self.wake_at_ns() {
            self.resting = false;
        }
    }

    fn pay(&mut self, span: Duration) {
        let span_ns = i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
        // A loop that lost its processor in the middle of a poll is not punished for the whole gap.
        self.balance_ns = self.balance_ns.saturating_sub(span_ns).max(-self.savings_ns);
        if self.balance_ns <= 0 {
            self.resting = true;
        }
    }

    fn rests(&self) -> bool {
        self.resting
    }

    /// When rest ends if it does: resting for a few microseconds at a time would cost more than it saves.
    fn rest_end(&self, now: Instant) -> Option<Instant> {
        if !self.resting {
            return None;
        }
        let missing_ns = (self.wake_at_ns() - self.balance_ns).max(1) as u64;
        Some(now + Duration::from_nanos((missing_ns * 100).div_ceil(self.share_percent)))
    }

    fn wake_at_ns(&self) -> i64 {
        self.savings_ns / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_us(us: u64) -> Instant {
        Instant(us * 1000)
    }

    /// A task of figure 9: its name and how many microseconds it takes.
    type FigureTask = (&'static str, u64);

    /// Runs one loop of figure 9: what it received (and for how long), its I/O tasks, its background queue. Gives the
    /// background tasks that ran, and when the loop ended.
    fn figure_loop(
        schedule: &mut LoopSchedule,
        start_us: u64,
        receive_us: u64,
        io: &[FigureTask],
        background: &mut Vec<FigureTask>,
    ) -> (Vec<&'static str>, u64) {
        let mut now_us = start_us;
        schedule.on_turn_start(at_us(now_us));
        now_us += receive_us + io.iter().map(|task| task.1).sum::<u64>();
        schedule.on_io_end(at_us(now_us));
        let mut ran = Vec::new();
        while !background.is_empty() && schedule.plan_background(at_us(now_us)) {
            let (name, span_us) = background.remove(0);
            now_us += span_us;
            schedule.on_background_end(at_us(now_us), Duration::from_micros(span_us));
            ran.push(name);
        }
        (ran, now_us - start_us)
    }

    #[test]
    fn figure_9_to_the_microsecond() {
        let mut schedule = LoopSchedule::new(LoopSettings::default(), Instant::ZERO);
        let mut background = vec![("a3", 3), ("b2", 2), ("c2", 2)];

        assert!(!schedule.plan_receive(3));
        let io = [("A3", 3), ("B3", 3), ("C3", 3)];
        assert_eq!(figure_loop(&mut schedule, 0, 0, &io, &mut background), (vec!["a3"], 12));

        assert!(schedule.plan_receive(0));
        background.extend([("d3", 3), ("e3", 3)]);
        let io = [("E3", 3), ("F3", 3)];
        assert_eq!(figure_loop(&mut schedule, 12, 5, &io, &mut background), (vec!["b2"], 13));

        assert!(schedule.plan_receive(0));
        assert_eq!(figure_loop(&mut schedule, 25, 0, &[], &mut background), (vec!["c2", "d3", "e3"], 8));
        assert!(background.is_empty());
    }

    #[test]
    fn the_timeout_is_rounded_down() {
        let mut schedule = LoopSchedule::new(LoopSettings::default(), Instant::ZERO);
        schedule.on_turn_start(Instant::ZERO);
        schedule.on_io_end(Instant(9_999));
        assert_eq!(schedule.dynamic_loop_timeout_us, 11, "1.2 x 9.999 us is 11.998 us");
        assert!(schedule.plan_background(Instant(10_999)) && !schedule.plan_background(Instant(11_000)));
    }

    #[test]
    fn io_that_never_runs_dry_does_not_lock_out_the_network() {
        let settings = LoopSettings { turns_without_receive_max: 3, ..LoopSettings::default() };
        let mut schedule = LoopSchedule::new(settings.clone(), Instant::ZERO);
        let received: Vec<bool> = (0..8).map(|_| schedule.plan_receive(1)).collect();
        assert_eq!(received, [false, false, false, true, false, false, false, true]);
        let mut fifo = LoopSchedule::new(LoopSettings { discipline: Discipline::Fifo, ..settings }, Instant::ZERO);
        assert!((0..8).all(|_| !fifo.plan_receive(1)) && fifo.plan_receive(0));
    }

    #[test]
    fn background_gets_its_share_of_wall_time_and_no_more() {
        for share in [1, 20, 50, 90] {
            let settings = LoopSettings { background_share_percent: share, ..LoopSettings::default() };
            let mut schedule = LoopSchedule::new(settings, Instant::ZERO);
            let (mut now, mut used_ns) = (Instant::ZERO, 0);
            while now < Instant(1_000_000_000) {
                match schedule.plan_sleep(now, 0, 1) {
                    Sleep::Until(end) => {
                        assert!(end > now, "a sleep makes progress");
                        now = end;
                    }
                    Sleep::No => {
                        schedule.on_turn_start(now);
                        schedule.on_io_end(now);
                        while schedule.plan_background(now) {
                            now = now + Duration::from_micros(7);
                            used_ns += 7_000;
                            schedule.on_background_end(now, Duration::from_micros(7));
                        }
                    }
                    Sleep::Forever => unreachable!("a background task is ready"),
                }
            }
            let used_percent = used_ns / 10_000_000;
            assert!((share.saturating_sub(1)..=share + 1).contains(&used_percent), "{share}: {used_percent}");
        }
    }

    #[test]
    fn a_lost_processor_costs_one_rest() {
        let mut schedule = LoopSchedule::new(LoopSettings::default(), Instant::ZERO);
        schedule.on_background_end(at_us(1_000_000), Duration::from_secs(1));
        let Sleep::Until(end) = schedule.plan_sleep(at_us(1_000_000), 0, 1) else { panic!("it rests") };
        assert_eq!(end, at_us(1_000_000) + Duration::from_micros(1_500));
        assert_eq!(schedule.plan_sleep(at_us(1_000_000), 1, 1), Sleep::No, "I/O never rests");
        assert_eq!(schedule.plan_sleep(at_us(1_000_000), 0, 0), Sleep::Forever);
        assert_eq!(schedule.plan_sleep(end, 0, 1), Sleep::No);
    }

    #[test]
    fn tasks_that_take_no_time_are_counted() {
        let mut schedule = LoopSchedule::new(LoopSettings::default(), Instant::ZERO);
        schedule.on_turn_start(Instant::ZERO);
        schedule.on_io_end(Instant::ZERO);
        let polls = (0..1000)
            .take_while(|_| {
                let start = schedule.plan_background(Instant::ZERO);
                schedule.on_background_end(Instant::ZERO, Duration::ZERO);
                start
            })
            .count();
        assert_eq!(polls, 64);
    }
}
