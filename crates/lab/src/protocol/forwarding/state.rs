//! What there is: the owner's bytes, logs, the agent, what is on its way, and what its clients were told.

use std::ops::Range;

use policies::forwarding::{Content, Index, IndexSettings, LogNumber, Part, Place, Serial};

/// Places of the segment.
pub(super) const CELLS: usize = 2;
/// Logs of the volume.
pub(super) const LOGS: u8 = 2;
/// No write: of an entry that should be in a log, and is not.
const NOWHERE: u8 = 7;

/// How often something may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Left {
    /// Writes that clients begin, at most 6.
    pub writes: u8,
    /// Agents that die.
    pub deaths: u8,
    /// Appends that are refused.
    pub refusals: u8,
    /// Appends that get no answer.
    pub silences: u8,
}

/// Writes, by their numbers; 0 is what was there before.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Writes(u8);

impl Writes {
    pub(super) fn only(write: u8) -> Writes {
        Writes(1 << write)
    }

    pub(super) fn add(&mut self, write: u8) {
        self.0 |= 1 << write;
    }

    /// Those of them that are `others`, too, or began after `write`.
    pub(super) fn among(self, others: Writes, write: u8) -> Writes {
        Writes(self.0 & (others.0 | !0 << write))
    }

    pub(super) fn has(self, write: u8) -> bool {
        self.0 & 1 << write != 0
    }
}

impl std::fmt::Debug for Writes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries((0..8).filter(|write| self.has(*write))).finish()
    }
}

/// A part of a write on its way. `log`: to which one, and under which serial; none: to the owner.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Piece {
    pub(super) range: Range<u64>,
    pub(super) write: u8,
    pub(super) log: Option<(LogNumber, Serial)>,
}

/// An entry in a log.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Appended {
    pub(super) serial: Serial,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) write: u8,
}

/// A write without an answer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Open {
    pub(super) write: u8,
    pub(super) range: Range<u64>,
    pub(super) pieces: u8,
    pub(super) has_failed: bool,
    /// Writes that had no answer when it began: either order is right.
    pub(super) beside: Writes,
}

/// What an owner was asked to merge, and has not yet; then the watermark on its way, durable or not.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Merging {
    AtOwner(Serial, Vec<(Range<u64>, Place)>),
    Watermark(Serial),
    Durable(Serial),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Agent {
    pub(super) index: Index,
    pub(super) pieces: Vec<Piece>,
    pub(super) open: Vec<Open>,
    pub(super) merging: Option<Merging>,
    /// It has a session with the owner: nothing of an earlier agent is on its way there.
    pub(super) has_session: bool,
}

impl Agent {
    pub(super) fn new(index: Index) -> Agent {
        Agent { index, pieces: Vec::new(), open: Vec::new(), merging: None, has_session: false }
    }
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    /// Of which write each cell is at the owner.
    pub(super) owner: [u8; CELLS],
    pub(super) logs: [Vec<Appended>; LOGS as usize],
    pub(super) watermark: Serial,
    /// What was refused.
    pub(super) void: Vec<Serial>,
    pub(super) agent: Agent,
    /// What an agent that is gone had on its way to the owner, and had asked that to merge.
    pub(super) late: Vec<Piece>,
    pub(super) late_merge: Vec<(Range<u64>, Place)>,
    /// What a read of each cell may find.
    pub(super) allowed: [Writes; CELLS],
    pub(super) begun: u8,
    pub(super) left: Left,
}

pub(super) fn settings() -> IndexSettings {
    IndexSettings::default()
}

impl World {
    pub(super) fn new(left: Left) -> World {
        World {
            owner: [0; CELLS],
            logs: Default::default(),
            watermark: Serial(0),
            void: Vec::new(),
            agent: Agent::new(Index::new(settings(), Serial(0))),
            late: Vec::new(),
            late_merge: Vec::new(),
            allowed: [Writes::only(0); CELLS],
            begun: 0,
            left,
        }
    }

    /// A cell that a read would find to be of a write that it must not be of, and of which ones it may.
    pub(super) fn stale(&self) -> Option<(usize, u8, Writes)> {
        let parts = self.agent.index.find(0..CELLS as u64);
        parts.into_iter().find_map(|Part { range, place }| {
            range.clone().find_map(|cell| {
                let cell = cell as usize;
                let found = match place {
                    Some(place) => self.logged(place),
                    // A read would open a session first, which is a step.
                    None if !self.agent.has_session => return None,
                    None => self.owner[cell],
                };
                (!self.allowed[cell].has(found)).then_some((cell, found, self.allowed[cell]))
            })
        })
    }

    /// Which write an entry is of. One that should be there and is not is of none.
    pub(super) fn logged(&self, place: Place) -> u8 {
        let entries = &self.logs[usize::from(place.log.0)];
        entries.iter().find(|entry| entry.serial == place.serial).map_or(NOWHERE, |entry| entry.write)
    }

    /// A piece lands.
    pub(super) fn land(&mut self, piece: &Piece) {
        match piece.log {
            None => piece.range.clone().for_each(|cell| self.owner[cell as usize] = piece.write),
            Some((log, serial)) => {
                let entries = &mut self.logs[usize::from(log.0)];
                if entries.iter().all(|entry| entry.serial != serial) {
                    let Range { start, end } = piece.range;
                    entries.push(Appended { serial, start, end, write: piece.write });
                    entries.sort();
                }
            }
        }
    }

    /// The owner writes what it reads in a log.
    pub(super) fn merge(&mut self, (range, place): (Range<u64>, Place)) {
        let write = self.logged(place);
        range.for_each(|cell| self.owner[cell as usize] = write);
    }

    /// A piece of a write has its outcome; its client has, when all have.
    pub(super) fn answer(&mut self, write: u8, has_failed: bool) {
        let Some(at) = self.agent.open.iter().position(|open| open.write == write) else { return };
        let open = &mut self.agent.open[at];
        open.pieces -= 1;
        open.has_failed |= has_failed;
        if open.pieces > 0 {
            return;
        }
        let open = self.agent.open.remove(at);
        if !open.has_failed {
            for cell in open.range {
                let allowed = &mut self.allowed[cell as usize];
                *allowed = allowed.among(open.beside, write);
            }
        }
    }

    /// Somebody reads all that nobody is writing: what he finds is what is found from then on.
    pub(super) fn observe(&mut self) {
        for Part { range, place } in self.agent.index.find(0..CELLS as u64) {
            for cell in range {
                let is_open = self.agent.open.iter().any(|open| open.range.contains(&cell));
                if is_open || (place.is_none() && !self.agent.has_session) {
                    continue;
                }
                let cell = cell as usize;
                let found = place.map_or(self.owner[cell], |place| self.logged(place));
                if self.allowed[cell].has(found) {
                    self.allowed[cell] = Writes::only(found);
                }
            }
        }
    }

    /// What a new agent finds.
    pub(super) fn traverse(&self) -> Index {
        let mut found = Vec::new();
        for (log, entries) in (0..LOGS).zip(&self.logs) {
            found.extend(entries.iter().map(|entry| {
                let content = Content::Data(entry.start);
                (entry.start..entry.end, Place { serial: entry.serial, log: LogNumber(log), content, reschedules: 0 })
            }));
        }
        Index::found(settings(), self.watermark, &self.void, found)
    }
}
