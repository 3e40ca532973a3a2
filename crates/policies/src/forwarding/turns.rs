//! Which log the next part of a burst goes to: each in its turn (DiffForward, §3.3), or the nearest one.
//!
//! The paper sends the l-th write of a burst to server l mod n. Servers that drain, are full or gone are left out here, so that it
//! is the next one of those that are there.
//!
//! A mild burst ([`crate::burst`]) goes to the *nearest* log, which is the one that took least time of late: what an agent can
//! see of distance and of load. What it has not seen for 5 s it takes for nearest, so that each one is tried again.

use std::time::Duration;

use base::Instant;

use super::LogNumber;

/// How long it is known what a log takes.
const FRESH: Duration = Duration::from_secs(5);
/// What the last append counts for: this part.
const LAST: u32 = 4;

/// How far a burst goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// To one log.
    Nearest,
    /// To all, in turn.
    All,
}

/// The logs of a volume, by number.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    logs: Vec<Log>,
    next: usize,
}

#[derive(Clone, Copy, Debug)]
struct Log {
    /// It takes appends.
    is_open: bool,
    /// How long one takes, and when that was seen.
    took: Option<(Duration, Instant)>,
}

impl Log {
    fn took(&self, now: Instant) -> Option<Duration> {
        self.took.filter(|(_, at)| now.since(*at) < FRESH).map(|(took, _)| took)
    }
}

impl Turns {
    /// So many logs, all of which take appends. `first`: who begins, so that volumes do not all begin with the same one.
    pub fn new(logs: u8, first: u8) -> Turns {
        Turns { logs: vec![Log { is_open: true, took: None }; usize::from(logs)], next: usize::from(first) }
    }

    /// From here on a log takes appends, or does not.
    pub fn set_open(&mut self, log: LogNumber, is_open: bool) {
        if let Some(known) = self.logs.get_mut(usize::from(log.0)) {
            known.is_open = is_open;
        }
    }

    /// A log has taken an append.
    pub fn on_append(&mut self, now: Instant, log: LogNumber, took: Duration) {
        if let Some(known) = self.logs.get_mut(usize::from(log.0)) {
            let mean = known.took(now).map_or(took, |before| before - before / LAST + took / LAST);
            known.took = Some((mean, now));
        }
    }

    /// Which log is next, of those that take appends and that `has_room`.
    pub fn next(&mut self, now: Instant, reach: Reach, has_room: impl Fn(LogNumber) -> bool) -> Option<LogNumber> {
        let count = self.logs.len();
        let may_take = |at: &usize| self.logs[*at].is_open && has_room(LogNumber(*at as u8));
        let mut in_turn = (0..count).map(|step| (self.next + step) % count).filter(may_take);
        let found = match reach {
            Reach::All => in_turn.next(),
            // None of them is known: the one whose turn it is.
            Reach::Nearest => in_turn.min_by_key(|at| self.logs[*at].took(now)),
        }?;
        if reach == Reach::All || self.logs[found].took(now).is_none() {
            self.next = (found + 1) % count;
        }
        Some(LogNumber(found as u8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    #[test]
    fn each_has_its_turn_but_who_takes_nothing() {
        let mut turns = Turns::new(3, 1);
        let next = |turns: &mut Turns| turns.next(at(0), Reach::All, |log| log.0 != 9).map(|log| log.0);
        assert_eq!([(); 4].map(|()| next(&mut turns)), [1, 2, 0, 1].map(Some));
        turns.set_open(LogNumber(2), false);
        assert_eq!([(); 3].map(|()| next(&mut turns)), [0, 1, 0].map(Some));
        assert_eq!(turns.next(at(0), Reach::All, |log| log.0 != 1), Some(LogNumber(0)), "the other one is full");
        turns.set_open(LogNumber(2), true);
        assert_eq!([(); 3].map(|()| next(&mut turns)), [1, 2, 0].map(Some));
        (0..3).for_each(|log| turns.set_open(LogNumber(log), false));
        assert_eq!(next(&mut turns), None);
        assert_eq!(Turns::new(0, 0).next(at(0), Reach::All, |_| true), None);
    }

    #[test]
    fn the_nearest_is_who_took_least_of_late() {
        let mut turns = Turns::new(3, 1);
        let next = |turns: &mut Turns, ms| turns.next(at(ms), Reach::Nearest, |_| true).map(|log| log.0);
        assert_eq!([(); 4].map(|()| next(&mut turns, 0)), [1, 2, 0, 1].map(Some), "nothing is known");
        for (log, took) in [(0, 3), (1, 1), (2, 2)] {
            turns.on_append(at(1), LogNumber(log), Duration::from_millis(took));
        }
        assert_eq!([(); 3].map(|()| next(&mut turns, 2)), [1; 3].map(Some));
        assert_eq!(turns.next(at(2), Reach::Nearest, |log| log.0 != 1), Some(LogNumber(2)), "that one is full");
        assert_eq!(turns.next(at(2), Reach::All, |_| true), Some(LogNumber(2)), "turns are as they were");
        // It gets slower, 2.25 ms, and is not the nearest any more.
        turns.on_append(at(2), LogNumber(1), Duration::from_millis(6));
        assert_eq!(next(&mut turns, 3), Some(2));
        turns.set_open(LogNumber(2), false);
        assert_eq!(next(&mut turns, 3), Some(1));
        assert_eq!(next(&mut turns, 5_001), Some(0), "nobody has seen it for long, so it is tried");
    }
}
