//! Who goes first at a server: clients, or what comes home from logs (DiffForward, SIGMETRICS 2023, §3.4, "prioritized traffic
//! coordination").
//!
//! **Intuition.** Merging is for moments in which no client wants the server: it is suspended while the global queue depth (GQD) is
//! above zero. A server that is never idle would so let logs grow to their bound, and all would wait there; so what has waited
//! for long goes all the same, for a part of the time.
//!
//! **Names** are the paper's. LQD is what one agent has to do at this server, GQD their sum. What is here already a server counts
//! itself ([`Coordination::on_client`], [`Coordination::on_client_done`]); what still waits at an agent each of its requests says
//! ([`Depths`]).
//!
//! **Chosen.** The paper's owners fetch entries, the longest log's first. Here agents carry them (each the longest log of a volume
//! first), and each piece asks for its turn where it is read, and where it is written. Between volumes the one that waits longest
//! has it, so that nobody starves. Who has waited too long is sent away, and asks again: what waits for the end of a session does
//! not wait for this.
//!
//! A pure decision; `T` is what the caller finds a waiting piece by.

use std::collections::VecDeque;
use std::time::Duration;

use base::Instant;

use super::Depths;

/// Settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoordinationSettings {
    /// What has waited for so long goes though clients want the server.
    pub patience: Duration,
    /// Such pieces take so many of a hundred of the time at most, one after the other.
    pub share_percent: u32,
    /// So many pieces go at once at most: a client that comes then finds no more than these before it.
    pub at_once: u64,
    /// What has waited for so long is sent away.
    pub waits_max: Duration,
    /// So many wait at most; those behind them are sent away at once.
    pub waiting_max: usize,
}

impl Default for CoordinationSettings {
    fn default() -> Self {
        CoordinationSettings {
            patience: Duration::from_millis(20),
            share_percent: 25,
            at_once: 16,
            waits_max: Duration::from_millis(100),
            waiting_max: 1_024,
        }
    }
}

/// A piece that may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Since when it goes.
    pub begun: Instant,
    /// Clients wanted the server all the same.
    pub is_forced: bool,
}

/// What becomes of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// It goes.
    Goes(Turn),
    /// It waits, and hears.
    Waits,
    /// It has to ask again later.
    Leaves,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Coordination<T> {
    settings: CoordinationSettings,
    /// Requests of clients that are here.
    here: u64,
    depths: Depths,
    /// Who waits longest is in front.
    waiting: VecDeque<(Instant, T)>,
    /// Pieces that go.
    under_way: u64,
    /// One that goes though clients want the server, and when the next one may.
    is_forcing: bool,
    next_forced: Instant,
}

/// How often whoever waits looks again, while clients want the server.
const LOOK: Duration = Duration::from_millis(5);

impl<T> Coordination<T> {
    /// Nobody is there.
    pub fn new(settings: CoordinationSettings) -> Coordination<T> {
        Coordination {
            settings,
            here: 0,
            depths: Depths::default(),
            waiting: VecDeque::new(),
            under_way: 0,
            is_forcing: false,
            next_forced: Instant(0),
        }
    }

    /// A request of a client is here; behind it so many more of its agent wait to be sent. An agent is called by a number of the
    /// caller's.
    #[inline]
    pub fn on_client(&mut self, now: Instant, agent: u64, behind: u32) {
        self.here += 1;
        self.depths.on_request(now, agent, behind);
    }

    /// It is done, or gone.
    #[inline]
    pub fn on_client_done(&mut self) {
        self.here = self.here.saturating_sub(1);
    }

    /// GQD.
    pub fn depth(&self, now: Instant) -> u64 {
        self.here + self.depths.sum(now)
    }

    /// A piece asks for its turn; `ticket` is for one that has to wait.
    pub fn ask(&mut self, now: Instant, ticket: impl FnOnce() -> T) -> Asked {
        if self.waiting.is_empty() && self.is_free(now) {
            self.under_way += 1;
            return Asked::Goes(Turn { begun: now, is_forced: false });
        }
        if self.waiting.len() >= self.settings.waiting_max {
            return Asked::Leaves;
        }
        self.waiting.push_back((now, ticket()));
        Asked::Waits
    }

    /// Whether somebody may go who waits: looked at whenever a request is done.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        !self.waiting.is_empty() && self.is_free(now)
    }

    fn is_free(&self, now: Instant) -> bool {
        self.depth(now) == 0 && self.under_way < self.settings.at_once
    }

    /// The next one of those that wait that goes now, or that is sent away (without a turn).
    pub fn next(&mut self, now: Instant) -> Option<(T, Option<Turn>)> {
        let waited = now.since(self.waiting.front()?.0);
        let (is_free, is_wanted) = (self.is_free(now), self.depth(now) > 0);
        let is_forced = is_wanted && waited >= self.settings.patience && !self.is_forcing && now >= self.next_forced;
        if !is_free && !is_forced && waited < self.settings.waits_max {
            return None;
        }
        let (_, ticket) = self.waiting.pop_front()?;
        self.is_forcing |= is_forced;
        let turn = (is_free || is_forced).then_some(Turn { begun: now, is_forced });
        self.under_way += u64::from(turn.is_some());
        Some((ticket, turn))
    }

    /// A piece that went is done, or gone.
    pub fn on_done(&mut self, now: Instant, turn: Turn) {
        self.under_way = self.under_way.saturating_sub(1);
        if turn.is_forced {
            let share = u64::from(self.settings.share_percent.clamp(1, 100));
            let pause = now.nanos_since(turn.begun).saturating_mul(100 - share) / share;
            (self.is_forcing, self.next_forced) = (false, Instant(now.0.saturating_add(pause)));
        }
    }

    /// When to look again; none: nobody waits.
    pub fn next_look(&self, now: Instant) -> Option<Instant> {
        (!self.waiting.is_empty()).then(|| if self.is_free(now) { now } else { now + LOOK })
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    fn turn(ms: u64, is_forced: bool) -> Turn {
        Turn { begun: at(ms), is_forced }
    }

    #[test]
    fn merging_waits_while_a_client_wants_the_server() {
        let mut coordination = Coordination::new(CoordinationSettings::default());
        assert_eq!(coordination.ask(at(0), || 1), Asked::Goes(turn(0, false)));
        coordination.on_client(at(0), 7, 0);
        assert_eq!(coordination.ask(at(0), || 2), Asked::Waits);
        assert_eq!(coordination.next(at(1)), None);
        coordination.on_client_done();
        assert!(coordination.is_due(at(2)));
        assert_eq!(coordination.ask(at(2), || 3), Asked::Waits, "nobody goes past who waits");
        assert_eq!(coordination.next(at(2)), Some((2, Some(turn(2, false)))));
        assert_eq!(coordination.next(at(2)), Some((3, Some(turn(2, false)))));
        assert_eq!((coordination.next(at(2)), coordination.next_look(at(2))), (None, None));
    }

    /// Whoever is gone without a word does not keep it waiting for ever.
    #[test]
    fn what_waits_at_an_agent_counts_for_a_moment() {
        let mut coordination = Coordination::new(CoordinationSettings::default());
        coordination.on_client(at(0), 7, 3);
        coordination.on_client_done();
        assert_eq!(coordination.depth(at(99)), 3);
        assert_eq!(coordination.ask(at(90), || 1), Asked::Waits);
        assert_eq!(coordination.next(at(99)), None);
        assert_eq!(coordination.next_look(at(99)), Some(at(104)));
        assert_eq!(coordination.next(at(104)), Some((1, Some(turn(104, false)))));
    }

    /// A quarter of the time is theirs, one after the other.
    #[test]
    fn at_a_server_that_is_never_idle_merging_has_a_part_of_the_time() {
        let mut coordination = Coordination::new(CoordinationSettings::default());
        coordination.on_client(at(0), 7, 0);
        for ticket in 0..4 {
            assert_eq!(coordination.ask(at(0), || ticket), Asked::Waits);
        }
        assert_eq!(coordination.next(at(19)), None);
        assert_eq!(coordination.next(at(20)), Some((0, Some(turn(20, true)))));
        assert_eq!(coordination.next(at(25)), None, "one is under way");
        coordination.on_done(at(30), turn(20, true));
        assert_eq!(coordination.next(at(59)), None, "ten of it, thirty of others");
        assert_eq!(coordination.next(at(60)), Some((1, Some(turn(60, true)))));
        // Who waited too long asks again later.
        assert_eq!(coordination.next(at(99)), None);
        assert_eq!(coordination.next(at(100)), Some((2, None)));
        assert_eq!((coordination.next(at(100)), coordination.waiting()), (Some((3, None)), 0));
    }

    #[test]
    fn so_many_go_at_once() {
        let mut coordination =
            Coordination::new(CoordinationSettings { at_once: 1, ..CoordinationSettings::default() });
        assert_eq!(coordination.ask(at(0), || 1), Asked::Goes(turn(0, false)));
        assert_eq!(coordination.ask(at(0), || 2), Asked::Waits);
        assert_eq!((coordination.next(at(50)), coordination.is_due(at(50))), (None, false));
        coordination.on_done(at(51), turn(0, false));
        assert!(coordination.is_due(at(51)));
        assert_eq!(coordination.next(at(51)), Some((2, Some(turn(51, false)))));
    }

    #[test]
    fn who_waits_is_bounded() {
        let settings = CoordinationSettings { waiting_max: 2, ..CoordinationSettings::default() };
        let mut coordination = Coordination::new(settings);
        coordination.on_client(at(0), 7, 0);
        let asked = [1, 2, 3].map(|ticket| coordination.ask(at(0), || ticket));
        assert_eq!(asked, [Asked::Waits, Asked::Waits, Asked::Leaves]);
    }
}
