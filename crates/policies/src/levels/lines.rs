//! The requests of one loop that pass the levels of their volumes, and those that wait for them.

use std::collections::VecDeque;
use std::time::Duration;

use base::Instant;
use base::levels::Level;

use super::account::Purse;
use super::allowance::Held;
use crate::waits::{Reason, Waits};

/// While somebody waits the account is asked at least so often: the levels may be others by then.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What is said to an arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It may start, on that level.
    Start(Level),
    /// It is in line, for that reason so far: [`Lines::next_grant`] hands its ticket out.
    Wait(Reason),
}

/// A request that was in line and may start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant<T> {
    /// What it was put in line with.
    pub ticket: T,
    /// On which level it starts.
    pub level: Level,
    /// How long it waited, and for what.
    pub waited_ns: u64,
    /// See `waited_ns`.
    pub reason: Reason,
}

struct Waiting<T> {
    arrived: Instant,
    bytes: u64,
    held: Held,
    ticket: T,
}

struct Volume<T> {
    /// Whether anything holds it.
    is_bound: bool,
    purse: Purse,
    waiting: VecDeque<Waiting<T>>,
    waits: Waits,
    /// Requests that were started on the base level, and beyond.
    started: [u64; 2],
}

/// See the module. `T` is what the agent finds a waiting request by.
pub struct Lines<T> {
    volumes: Vec<Option<Volume<T>>>,
    free: Vec<u32>,
    /// Volumes of which requests wait; their turn comes round.
    ring: VecDeque<u32>,
    waiting: usize,
}

impl<T> Default for Lines<T> {
    fn default() -> Self {
        Lines { volumes: Vec::new(), free: Vec::new(), ring: VecDeque::new(), waiting: 0 }
    }
}

impl<T> Lines<T> {
    /// A volume appears. `is_bound`: it has levels, or its owner has.
    pub fn add(&mut self, is_bound: bool) -> u32 {
        let volume = Volume {
            is_bound,
            purse: Purse::default(),
            waiting: VecDeque::new(),
            waits: Waits::default(),
            started: [0; 2],
        };
        let number = self.free.pop().unwrap_or_else(|| {
            self.volumes.push(None);
            self.volumes.len() as u32 - 1
        });
        self.volumes[number as usize] = Some(volume);
        number
    }

    /// Says whether anything holds a volume. Those that wait ask the account all the same.
    pub fn set_bound(&mut self, number: u32, is_bound: bool) {
        self.volume(number).is_bound = is_bound;
    }

    /// A volume goes, and with it whoever waits. What is in its purse belongs to its account.
    pub fn remove(&mut self, number: u32) -> Purse {
        self.ring.retain(|other| *other != number);
        self.free.push(number);
        let gone = self.volumes[number as usize].take();
        self.waiting -= gone.as_ref().map_or(0, |volume| volume.waiting.len());
        gone.map(|volume| volume.purse).unwrap_or_default()
    }

    /// A request of a volume arrives: it starts, or `ticket` is put in line. `ask` asks the volume's account.
    #[inline]
    pub fn submit(
        &mut self,
        now: Instant,
        number: u32,
        bytes: u64,
        ask: impl FnOnce(&mut Purse) -> Result<Level, Held>,
        ticket: impl FnOnce() -> T,
    ) -> Verdict {
        let volume = self.volume(number);
        if volume.waiting.is_empty() {
            if !volume.is_bound {
                return Verdict::Start(Level::Open);
            }
            if let Some(level) = volume.purse.pay(now, bytes) {
                return volume.start(level);
            }
        }
        let held = match volume.waiting.front() {
            Some(first) => first.held,
            None => match ask(&mut volume.purse) {
                Ok(level) => return volume.start(level),
                Err(held) => soon(held, now),
            },
        };
        volume.waits.on_wait(held.reason);
        let is_first = volume.waiting.is_empty();
        volume.waiting.push_back(Waiting { arrived: now, bytes, held, ticket: ticket() });
        if is_first {
            self.ring.push_back(number);
        }
        self.waiting += 1;
        Verdict::Wait(held.reason)
    }

    /// The next of those in line that may start now. `ask` asks the account of a volume: with its number, the bytes of
    /// the request, whether it is the last one in line, and the purse.
    pub fn next_grant(
        &mut self,
        now: Instant,
        mut ask: impl FnMut(u32, u64, bool, &mut Purse) -> Result<Level, Held>,
    ) -> Option<Grant<T>> {
        for _ in 0..self.ring.len() {
            let number = self.ring.pop_front()?;
            let volume = self.volume(number);
            let is_last = volume.waiting.len() == 1;
            let Some(first) = volume.waiting.front_mut() else { continue };
            let asked = match is_due(first, now) {
                true => ask(number, first.bytes, is_last, &mut volume.purse),
                false => Err(first.held),
            };
            match asked {
                Ok(level) => {
                    let Waiting { arrived, held, ticket, .. } = volume.waiting.pop_front()?;
                    let waited_ns = now.nanos_since(arrived);
                    volume.waits.on_start(held.reason, waited_ns);
                    volume.start(level);
                    if !is_last {
                        self.ring.push_back(number);
                    }
                    self.waiting -= 1;
                    return Some(Grant { ticket, level, waited_ns, reason: held.reason });
                }
                Err(held) => {
                    volume.waits.on_change(first.held.reason, held.reason);
                    first.held = soon(held, now);
                    self.ring.push_back(number);
                }
            }
        }
        None
    }

    /// When to call [`Lines::next_grant`] next, if anybody waits.
    pub fn next_look(&self) -> Option<Instant> {
        let first = |number: &u32| Some(self.volumes[*number as usize].as_ref()?.waiting.front()?.held.until);
        self.ring.iter().filter_map(first).min()
    }

    /// What requests of a volume waited for, and how many were started on its base level and beyond.
    pub fn status(&self, number: u32) -> (Waits, [u64; 2]) {
        let volume = self.volumes[number as usize].as_ref();
        volume.map(|volume| (volume.waits, volume.started)).unwrap_or_default()
    }

    /// Checks the books, and says how many requests wait.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn audit(&self) -> Result<usize, String> {
        let mut waiting = 0;
        for (number, volume) in self.volumes.iter().enumerate().filter_map(|(at, one)| Some((at as u32, one.as_ref()?)))
        {
            waiting += volume.waiting.len();
            let turns = self.ring.iter().filter(|other| **other == number).count();
            if turns != usize::from(!volume.waiting.is_empty()) {
                return Err(format!(
                    "{} requests of a volume wait for its level, and it has {turns} turns",
                    volume.waiting.len()
                ));
            }
        }
        match waiting == self.waiting {
            true => Ok(waiting),
            false => Err(format!("{} requests are said to wait for levels, and {waiting} do", self.waiting)),
        }
    }

    #[inline]
    fn volume(&mut self, number: u32) -> &mut Volume<T> {
        self.volumes[number as usize].as_mut().expect("whoever has the number knows that it is there")
    }
}

/// The same, with a look in time.
fn soon(held: Held, now: Instant) -> Held {
    Held { until: held.until.max(Instant(now.0 + 1)).min(now + LOOK_EVERY), ..held }
}

fn is_due<T>(first: &Waiting<T>, now: Instant) -> bool {
    first.held.until <= now
}

impl<T> Volume<T> {
    #[inline]
    fn start(&mut self, level: Level) -> Verdict {
        match level {
            Level::Base => self.started[0] += 1,
            Level::Burst | Level::Merge => self.started[1] += 1,
            Level::Open => {}
        }
        Verdict::Start(level)
    }
}
