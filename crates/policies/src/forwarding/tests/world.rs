//! One segment in a world of one agent after the other: clients write and read, bursts go to logs, an owner merges, agents die
//! at any moment, and what they had on its way lands late or never.

use std::collections::VecDeque;
use std::ops::Range;

use base::Instant;

use super::*;

const CELLS: usize = 8;
const LOGS: usize = 3;
const STEPS: usize = 160;

/// What is wrong on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flaw {
    /// 52: an agent forgets entries before it is durable that they were merged.
    TrimsBeforeWatermark,
    /// 55: what was on its way to a log is tried again at another one, under another serial.
    RetriesElsewhere,
    /// 54: whoever attaches does not look into the logs.
    AttachesUntraversed,
    /// 53: a stable write goes to the owner though it overlaps what is logged.
    WritesOverLogged,
    /// An entry that never was appended holds up all behind it.
    StopsAtHoles,
    /// Overlapping writes begin beside each other.
    LosesOrder,
    /// A batch passes what is still on its way.
    PassesOpen,
    /// Nobody writes down that an append failed that may be there.
    ForgetsVoids,
}

impl Flaw {
    pub(super) const ALL: [Flaw; 8] = [
        Flaw::TrimsBeforeWatermark,
        Flaw::RetriesElsewhere,
        Flaw::AttachesUntraversed,
        Flaw::WritesOverLogged,
        Flaw::StopsAtHoles,
        Flaw::LosesOrder,
        Flaw::PassesOpen,
        Flaw::ForgetsVoids,
    ];
}

/// How often something happened.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Seen {
    rescheduled: usize,
    waited: usize,
    failed: usize,
    deaths: usize,
    late: usize,
    found: usize,
    merged: usize,
    log_reads: usize,
}

impl Seen {
    pub(super) fn add(&mut self, other: &Seen) {
        self.rescheduled += other.rescheduled;
        self.waited += other.waited;
        self.failed += other.failed;
        self.deaths += other.deaths;
        self.late += other.late;
        self.found += other.found;
        self.merged += other.merged;
        self.log_reads += other.log_reads;
    }

    pub(super) fn assert_all(&self) {
        let all = [
            self.rescheduled,
            self.waited,
            self.failed,
            self.deaths,
            self.late,
            self.found,
            self.merged,
            self.log_reads,
        ];
        assert!(all.iter().all(|count| *count > 100), "{self:?}");
    }
}

/// What was said of a write, of each cell of the segment: its value counts, or may.
type Value = u32;

/// A piece of a write on its way.
#[derive(Clone, Debug)]
enum Way {
    Owner,
    Log(Serial, LogNumber),
}

#[derive(Clone, Debug)]
struct Piece {
    range: Range<u64>,
    value: Value,
    way: Way,
    /// Which write it is of.
    write: usize,
}

/// What a log holds: an entry, as it is durable there.
#[derive(Clone, Debug)]
struct Appended {
    serial: Serial,
    range: Range<u64>,
    value: Value,
}

/// A write that has no answer yet.
#[derive(Clone, Debug)]
struct Write {
    range: Range<u64>,
    value: Value,
    left: usize,
    has_failed: bool,
}

struct Agent {
    index: Index,
    turns: Turns,
    pieces: Vec<Piece>,
    writes: Vec<Option<Write>>,
    merging: Option<Merging>,
    /// Whether it has spoken to the owner: what an earlier one had on its way there has landed by then, or never will.
    is_known_to_owner: bool,
}

/// A batch at the owner; what is left of it; or the watermark on its way.
#[derive(Clone)]
enum Merging {
    AtOwner(Serial, VecDeque<(Range<u64>, Place)>),
    Watermark(Serial),
}

pub(super) struct World {
    prng: Prng,
    flaw: Option<Flaw>,
    owner: [Value; CELLS],
    logs: [Vec<Appended>; LOGS],
    watermark: Serial,
    void: Vec<Serial>,
    agent: Agent,
    /// What agents that are gone had on its way to the owner, and what the owner was merging for one.
    late: Vec<Piece>,
    late_merge: Option<VecDeque<(Range<u64>, Place)>>,
    /// Of each cell the values that a read may give: the last one of which a client was told, and those of which none was.
    allowed: [Vec<Value>; CELLS],
    last_value: Value,
    seen: Seen,
}

impl World {
    pub(super) fn run(seed: u64, flaw: Option<Flaw>) -> Result<Seen, String> {
        let mut world = World {
            prng: Prng::new(seed),
            flaw,
            owner: [0; CELLS],
            logs: Default::default(),
            watermark: Serial(0),
            void: Vec::new(),
            agent: Agent::new(Index::new(settings(), Serial(0))),
            late: Vec::new(),
            late_merge: None,
            allowed: std::array::from_fn(|_| vec![0]),
            last_value: 0,
            seen: Seen::default(),
        };
        for _ in 0..STEPS {
            world.step()?;
            world.agent.index.check_invariants();
        }
        world.settle()?;
        Ok(world.seen)
    }

    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn step(&mut self) -> Result<(), String> {
        match self.prng.below(16) {
            0..4 => self.begin_write(),
            4..8 => self.land_one(),
            8..10 => self.merge_on(),
            10..13 => self.read()?,
            13 => self.land_late(),
            14 => self.lose_an_answer(),
            _ if self.prng.one_in(3) => self.die(),
            _ => {}
        }
        Ok(())
    }

    fn some_range(&mut self) -> Range<u64> {
        let start = self.prng.below(CELLS as u64);
        start..self.prng.between(start + 1, (start + 4).min(CELLS as u64))
    }

    fn begin_write(&mut self) {
        let range = self.some_range();
        let overlaps = |write: &Write| write.range.start < range.end && range.start < write.range.end;
        if self.agent.writes.iter().flatten().any(overlaps) && !self.is(Flaw::LosesOrder) {
            return;
        }
        let is_burst = self.prng.one_in(2) && !self.agent.index.is_full();
        let routes = match (is_burst, self.is(Flaw::WritesOverLogged)) {
            (true, _) => vec![Route::Log(range.clone(), 0)],
            (false, true) => vec![Route::Owner(range.clone())],
            (false, false) => self.agent.index.route(range.clone()),
        };
        if routes.iter().any(|route| matches!(route, Route::Wait(..))) {
            // It would begin when that is merged: another one does.
            self.seen.waited += 1;
            return;
        }
        self.last_value += 1;
        let value = self.last_value;
        range.clone().for_each(|cell| self.allowed[cell as usize].push(value));
        let write = self.agent.writes.len();
        self.agent.writes.push(Some(Write { range, value, left: routes.len(), has_failed: false }));
        for route in routes {
            let (range, way) = match route {
                Route::Owner(range) | Route::Wait(range, _) => (range, Way::Owner),
                Route::Log(range, reschedules) => {
                    self.seen.rescheduled += usize::from(reschedules > 0);
                    let way = self.append(range.clone(), value, reschedules);
                    (range, way)
                }
            };
            if matches!(way, Way::Owner) {
                self.speak_to_owner();
            }
            self.agent.pieces.push(Piece { range, value, way, write });
        }
    }

    fn append(&mut self, range: Range<u64>, value: Value, reschedules: u8) -> Way {
        let log = self.agent.turns.next(Instant::ZERO, Reach::All, |_| true).expect("all logs are open");
        let serial = self.agent.index.begin(range, log, Content::Data(value.into()), reschedules);
        Way::Log(serial, log)
    }

    /// A piece lands, and its agent hears of it; or a log refuses it.
    fn land_one(&mut self) {
        if self.agent.pieces.is_empty() {
            return;
        }
        let at = self.prng.below(self.agent.pieces.len() as u64) as usize;
        let piece = self.agent.pieces.swap_remove(at);
        let mut has_failed = false;
        match piece.way {
            Way::Owner => self.write_home(&piece),
            Way::Log(serial, log) if self.prng.one_in(10) => {
                self.seen.failed += 1;
                has_failed = true;
                if self.prng.one_in(2) {
                    self.append_home(serial, log, &piece);
                }
                if !self.is(Flaw::ForgetsVoids) {
                    self.void.push(serial);
                }
                if !self.is(Flaw::StopsAtHoles) {
                    self.agent.index.failed(serial);
                }
            }
            Way::Log(serial, log) => {
                self.append_home(serial, log, &piece);
                self.agent.index.logged(serial);
            }
        }
        self.answer(piece.write, has_failed);
    }

    /// A piece of a write has its outcome. A client is told when all have, if none has failed.
    fn answer(&mut self, write: usize, has_failed: bool) {
        let slot = &mut self.agent.writes[write];
        let Some(open) = slot else { return };
        open.left -= 1;
        open.has_failed |= has_failed;
        if open.left > 0 {
            return;
        }
        let Some(done) = slot.take() else { return };
        if done.has_failed {
            // Its client is told so: some of it may be there, and some not.
            return;
        }
        for cell in done.range {
            let allowed = &mut self.allowed[cell as usize];
            let at = allowed.iter().position(|value| *value == done.value);
            // What was begun before it is over; what was begun after it may have landed.
            allowed.drain(..at.unwrap_or(0));
        }
    }

    /// What was on its way to a log gets no answer, and is tried again: where it was, or it may be there twice.
    fn lose_an_answer(&mut self) {
        let Some(at) = self.agent.pieces.iter().position(|piece| matches!(piece.way, Way::Log(..))) else { return };
        if !self.is(Flaw::RetriesElsewhere) {
            // The same serial, the same log: what landed is written over with itself.
            let piece = self.agent.pieces[at].clone();
            if let Way::Log(serial, log) = piece.way {
                self.append_home(serial, log, &piece);
            }
            return;
        }
        let piece = self.agent.pieces[at].clone();
        if let Way::Log(serial, _) = piece.way {
            self.agent.index.failed(serial);
        }
        self.late.push(piece.clone());
        self.agent.pieces[at].way = self.append(piece.range, piece.value, 0);
    }

    fn write_home(&mut self, piece: &Piece) {
        piece.range.clone().for_each(|cell| self.owner[cell as usize] = piece.value);
    }

    fn append_home(&mut self, serial: Serial, log: LogNumber, piece: &Piece) {
        let log = &mut self.logs[usize::from(log.0)];
        if log.iter().all(|other| other.serial != serial) {
            log.push(Appended { serial, range: piece.range.clone(), value: piece.value });
        }
    }

    /// An agent's first request to the owner: what others had on its way there is done by then, or dropped.
    fn speak_to_owner(&mut self) {
        if std::mem::replace(&mut self.agent.is_known_to_owner, true) {
            return;
        }
        while !self.late.is_empty() || self.late_merge.is_some() {
            match self.prng.one_in(2) {
                true => self.land_late(),
                false => {
                    self.late.retain(|piece| !matches!(piece.way, Way::Owner));
                    self.late_merge = None;
                    break;
                }
            }
        }
    }

    /// Something lands that an agent had on its way which is gone.
    fn land_late(&mut self) {
        if let Some(merge) = &mut self.late_merge {
            match merge.pop_front() {
                Some((range, place)) => self.merge_part(range, place),
                None => self.late_merge = None,
            }
        }
        if let Some(piece) = self.late.pop() {
            self.seen.late += 1;
            match piece.way {
                Way::Owner => self.write_home(&piece),
                Way::Log(serial, log) => self.append_home(serial, log, &piece),
            }
        }
    }

    fn merge_on(&mut self) {
        let through = match self.agent.merging.take() {
            None => {
                let Some(mut batch) = self.agent.index.next_batch(4, 3) else { return };
                if self.is(Flaw::PassesOpen) {
                    batch.through = Serial(batch.through.0 + 1);
                }
                self.speak_to_owner();
                self.agent.merging = Some(Merging::AtOwner(batch.through, batch.parts.into()));
                return;
            }
            Some(Merging::AtOwner(through, mut parts)) => match parts.pop_front() {
                Some((range, place)) => {
                    self.merge_part(range, place);
                    self.agent.merging = Some(Merging::AtOwner(through, parts));
                    return;
                }
                None => {
                    self.agent.merging = Some(Merging::Watermark(through));
                    if !self.is(Flaw::TrimsBeforeWatermark) {
                        return;
                    }
                    through
                }
            },
            Some(Merging::Watermark(through)) => {
                self.watermark = self.watermark.max(through);
                self.seen.merged += 1;
                through
            }
        };
        self.agent.index.merged(through);
    }

    /// The owner writes what it reads in a log.
    fn merge_part(&mut self, range: Range<u64>, place: Place) {
        let entry = self.logs[usize::from(place.log.0)].iter().find(|entry| entry.serial == place.serial);
        let value = entry.expect("what is to be merged is there").value;
        range.for_each(|cell| self.owner[cell as usize] = value);
    }

    fn read(&mut self) -> Result<(), String> {
        let range = self.some_range();
        for part in self.agent.index.find(range) {
            if part.place.is_none() {
                self.speak_to_owner();
            }
            for cell in part.range {
                let cell = cell as usize;
                let value = match part.place {
                    None => self.owner[cell],
                    Some(place) => {
                        self.seen.log_reads += 1;
                        let log = &self.logs[usize::from(place.log.0)];
                        let entry = log.iter().find(|entry| entry.serial == place.serial);
                        entry.ok_or(format!("an entry that is to be read is not there: {place:?}"))?.value
                    }
                };
                if !self.allowed[cell].contains(&value) {
                    return Err(format!("cell {cell} is {value}, and not one of {:?}", self.allowed[cell]));
                }
            }
        }
        Ok(())
    }

    /// The agent is gone, and another one attaches: it fences and drains the logs, and looks into them.
    fn die(&mut self) {
        self.seen.deaths += 1;
        for piece in std::mem::take(&mut self.agent.pieces) {
            match piece.way {
                // Until the next one speaks to the owner.
                Way::Owner => self.late.push(piece),
                // It has landed when the log is read, or never will.
                Way::Log(serial, log) if self.prng.one_in(2) => self.append_home(serial, log, &piece),
                Way::Log(..) => {}
            }
        }
        if !self.is(Flaw::RetriesElsewhere) {
            self.late.retain(|piece| matches!(piece.way, Way::Owner));
        }
        match self.agent.merging.take() {
            Some(Merging::AtOwner(_, parts)) => self.late_merge = Some(parts),
            // It is durable, or it is not.
            Some(Merging::Watermark(through)) if self.prng.one_in(2) => self.watermark = self.watermark.max(through),
            _ => {}
        }
        let mut entries = Vec::new();
        for (number, log) in self.logs.iter().enumerate() {
            entries.extend(log.iter().map(|entry| {
                let (serial, content) = (entry.serial, Content::Data(entry.value.into()));
                (entry.range.clone(), Place { serial, log: LogNumber(number as u8), content, reschedules: 0 })
            }));
        }
        if self.is(Flaw::AttachesUntraversed) {
            entries.clear();
        }
        for at in 1..entries.len() {
            entries.swap(at, self.prng.below(at as u64 + 1) as usize);
        }
        let index = Index::found(settings(), self.watermark, &self.void, entries);
        self.seen.found += index.len();
        self.agent = Agent::new(index);
    }

    /// All that is on its way lands, everything is merged, and each cell is read once more.
    fn settle(&mut self) -> Result<(), String> {
        while !self.agent.pieces.is_empty() {
            self.land_one();
        }
        for _ in 0..1_000 {
            self.merge_on();
        }
        if !self.agent.index.is_empty() {
            return Err(format!("{} entries are not merged, and never will be", self.agent.index.len()));
        }
        self.die();
        for _ in 0..50 {
            self.read()?;
        }
        Ok(())
    }
}

impl Agent {
    fn new(index: Index) -> Agent {
        Agent {
            index,
            turns: Turns::new(LOGS as u8, 0),
            pieces: Vec::new(),
            writes: Vec::new(),
            merging: None,
            is_known_to_owner: false,
        }
    }
}

fn settings() -> IndexSettings {
    IndexSettings { entries_max: 12, bytes_max: 20, reschedules_max: 2 }
}
