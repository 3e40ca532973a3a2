//! Requests that wait in the order of their arrival, and what is known of the segment that they are for.

use std::collections::VecDeque;

use base::levels::Level;
use base::{Instant, Map, SegmentId};

use super::client::ClientId;
use super::monitor::{Monitor, Track};
use crate::levels::Allowance;
use crate::waits::Reason;

/// Whose requests stand in one line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Key {
    /// Everybody's: one bucket.
    All,
    /// A client's: a cap for each.
    Client(ClientId),
    /// A segment's.
    Segment(SegmentId),
}

/// Where a line's turn comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Nothing waits in it.
    Nowhere,
    /// Among the steady ones.
    Steady,
    /// Among the hot ones.
    Hot,
    /// Its first request has used up a level or a cap: it comes back with the next refill.
    Parked,
}

/// A request in a line.
pub struct Waiting<T> {
    pub arrived: Instant,
    pub bytes: u64,
    pub cost: u64,
    /// The volume's number in the server's table.
    pub volume: u32,
    pub reason: Reason,
    /// How its agent has marked it.
    pub level: Level,
    pub ticket: T,
}

/// A line.
pub struct Line<T> {
    pub key: Key,
    pub track: Track,
    pub cap: Option<Allowance>,
    pub place: Place,
    /// What deficit round robin still owes it, in bytes.
    pub deficit: u64,
    /// Marks of base that came with those who wait, and are left.
    pub marks: usize,
    pub waiting: VecDeque<Waiting<T>>,
}

impl<T> Line<T> {
    /// The mark of the first request. Those of a segment stay in their order, so that a mark of base which came with a
    /// later one is for whoever is first: else base would wait behind a burst.
    pub fn level_of_first(&self) -> Level {
        self.level_of_first_with(self.marks)
    }

    /// The same, as it was before those marks came that came since then.
    pub fn level_of_first_before(&self, then: Instant) -> Level {
        let since = self.waiting.iter().filter(|waiting| waiting.level == Level::Base && waiting.arrived >= then);
        self.level_of_first_with(self.marks.saturating_sub(since.count()))
    }

    fn level_of_first_with(&self, marks: usize) -> Level {
        match (self.waiting.front().map_or(Level::Open, |first| first.level), self.key) {
            (Level::Base | Level::Burst | Level::Merge, Key::Segment(_)) if marks > 0 => Level::Base,
            (Level::Base | Level::Burst | Level::Merge, Key::Segment(_)) => Level::Burst,
            (level, _) => level,
        }
    }
}

/// The lines of a server, by number. Those of segments that are not used are given up after a while.
pub struct Lines<T> {
    by_key: Map<Key, u32>,
    lines: Vec<Line<T>>,
    free: Vec<u32>,
    /// Where the search for unused ones goes on.
    swept: usize,
}

/// Lines that one refill looks at, for unused ones.
const SWEEP: usize = 16;

impl<T> Lines<T> {
    pub fn new() -> Self {
        Lines { by_key: Map::default(), lines: Vec::new(), free: Vec::new(), swept: 0 }
    }

    /// The line of `key`, a new one with `cap` where there is none.
    #[inline]
    pub fn number_of(&mut self, key: Key, cap: impl FnOnce() -> Option<Allowance>) -> u32 {
        match self.by_key.get(&key) {
            Some(number) => *number,
            None => self.add(key, cap()),
        }
    }

    #[cold]
    fn add(&mut self, key: Key, cap: Option<Allowance>) -> u32 {
        let line = Line {
            key,
            track: Track::default(),
            cap,
            place: Place::Nowhere,
            deficit: 0,
            marks: 0,
            waiting: VecDeque::new(),
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.lines[number as usize] = line;
                number
            }
            None => {
                self.lines.push(line);
                self.lines.len() as u32 - 1
            }
        };
        self.by_key.insert(key, number);
        number
    }

    /// The line of `key`, if there is one.
    #[inline]
    pub fn find(&self, key: &Key) -> Option<&Line<T>> {
        self.by_key.get(key).map(|number| &self.lines[*number as usize])
    }

    #[inline]
    pub fn get_mut(&mut self, number: u32) -> &mut Line<T> {
        &mut self.lines[number as usize]
    }

    /// Lines that are in use.
    pub fn used(&self) -> impl Iterator<Item = &Line<T>> {
        self.by_key.values().map(|number| &self.lines[*number as usize])
    }

    /// Gives up some of the lines whose segment has not been used for a second.
    pub fn sweep(&mut self, monitor: &Monitor, now: Instant) {
        for _ in 0..SWEEP.min(self.lines.len()) {
            self.swept = (self.swept + 1) % self.lines.len();
            let line = &mut self.lines[self.swept];
            let owes = line.cap.as_mut().is_some_and(|cap| !cap.has_burst(now));
            let is_idle = line.waiting.is_empty() && monitor.is_idle(&line.track, now) && !owes;
            // One that was given up already is in nobody's table.
            if is_idle && self.by_key.get(&line.key) == Some(&(self.swept as u32)) {
                self.by_key.remove(&line.key);
                line.waiting = VecDeque::new();
                self.free.push(self.swept as u32);
            }
        }
    }
}
