//! Engines that obey the protocol, the store that has their logs, and what must never be seen there.
//!
//! An engine has one record on its way to its log at a time. Who fences the log takes that record with it: it is *in doubt*,
//! and whoever recovers the engine finds it or does not.

use std::collections::{BTreeMap, BTreeSet};

use base::{Epoch, Generation, Incarnation, Prng, SegmentId, Term, VolumeId};

use super::super::{Message, Order, Report, Table};
use super::WorldFlaw;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Role {
    #[default]
    None,
    Owned,
    Released,
}

/// What a log says of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Holding {
    pub(super) role: Role,
    pub(super) epoch: Epoch,
    pub(super) generation: Generation,
    /// How many writes it has.
    pub(super) writes: u64,
    pub(super) is_dropped: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Record {
    Hold(SegmentId, Holding),
    Refuse(SegmentId, Epoch),
}

#[derive(Default, Debug)]
pub(super) struct Log {
    pub(super) is_fenced: bool,
    pub(super) is_deleted: bool,
    pub(super) is_sealed: bool,
    pub(super) holdings: BTreeMap<SegmentId, Holding>,
    refused: BTreeMap<SegmentId, Epoch>,
    /// What it was when it was fenced, and the record in doubt.
    base: BTreeMap<SegmentId, Holding>,
    in_doubt: Option<Record>,
    /// Whether whoever sealed it had found that.
    was_found: Option<bool>,
}

#[derive(Default, Debug)]
pub(super) struct Engine {
    pub(super) server: String,
    pub(super) is_running: bool,
    pub(super) log: Log,
    pub(super) pending: Option<(Record, Option<Report>)>,
    /// The highest term that it has heard of.
    term: Term,
    /// Whom it recovers, and whether it has found the record in doubt.
    pub(super) recovering: Option<(Incarnation, bool)>,
}

#[derive(Default)]
pub(super) struct World {
    pub(super) engines: BTreeMap<Incarnation, Engine>,
    /// What was acknowledged to clients.
    acknowledged: BTreeMap<SegmentId, u64>,
    created: BTreeSet<SegmentId>,
    gone: BTreeSet<VolumeId>,
    /// The highest term that the store has heard of.
    term: Term,
    pub(super) flaw: Option<WorldFlaw>,
    pub(super) refuses: bool,
    pub(super) broken: Option<String>,
}

impl World {
    pub(super) fn break_down(&mut self, why: String) {
        self.broken.get_or_insert(why);
    }

    /// The engine whose log has the last word on a segment.
    fn last_word(&self, segment: SegmentId) -> Option<(Incarnation, Holding)> {
        let says = self.engines.iter().filter(|(_, engine)| !engine.log.is_deleted);
        let says = says.filter_map(|(id, engine)| Some((*id, *engine.log.holdings.get(&segment)?)));
        says.filter(|(_, holding)| holding.role != Role::None).max_by_key(|(_, holding)| holding.epoch)
    }

    /// What must hold of a segment at any moment.
    pub(super) fn check(&mut self, table: &Table, segment: SegmentId) {
        let owns = |engine: &Engine| {
            let holding = engine.log.holdings.get(&segment).copied().unwrap_or_default();
            holding.role == Role::Owned && !engine.log.is_fenced && !engine.log.is_deleted
        };
        let owners: Vec<_> = self.engines.iter().filter(|(_, engine)| owns(engine)).map(|(id, _)| *id).collect();
        if owners.len() > 1 {
            return self.break_down(format!("{owners:?} own {segment}"));
        }
        if self.gone.contains(&segment.volume) {
            let lives_on = |id: &Incarnation| !self.engines[id].log.holdings[&segment].is_dropped;
            if let Some(owner) = owners.into_iter().find(lives_on) {
                self.break_down(format!("{owner} owns {segment}, which was deleted"));
            }
            return;
        }
        let is_dropped = table.segment(segment).is_none_or(|row| row.is_dropped);
        if is_dropped || !self.created.contains(&segment) {
            return;
        }
        match self.last_word(segment) {
            None => self.break_down(format!("no log has {segment}")),
            Some((engine, holding)) => {
                let acknowledged = self.acknowledged.get(&segment).copied().unwrap_or_default();
                if holding.writes < acknowledged {
                    self.break_down(format!("{engine} has {} of {acknowledged} writes of {segment}", holding.writes));
                }
            }
        }
    }

    /// The table says that a segment is dropped: so does the log with the last word on it, if there is one.
    pub(super) fn on_dropped(&mut self, segment: SegmentId) {
        if let Some((engine, holding)) = self.last_word(segment).filter(|(_, holding)| !holding.is_dropped) {
            self.break_down(format!("{segment} counts as dropped, and {engine} has {holding:?}"));
        }
    }

    /// A message comes out of a manager: what it says is so.
    pub(super) fn on_said(&mut self, table: &Table, message: &Message) {
        match &message.order {
            Order::Attached { volume, generation } => {
                let segments: Vec<_> = self.created.iter().filter(|id| id.volume == *volume).copied().collect();
                for segment in segments {
                    let known = self.last_word(segment).map(|(_, holding)| holding.generation);
                    if known < Some(*generation) {
                        self.break_down(format!("{volume} is attached as {generation}, {segment} knows {known:?}"));
                    }
                }
            }
            Order::Gone { volume } => {
                let segments: Vec<_> = self.created.iter().filter(|id| id.volume == *volume).copied().collect();
                for segment in segments {
                    self.gone.insert(*volume);
                    self.check(table, segment);
                }
            }
            _ => {}
        }
    }

    /// The store does what it is asked.
    pub(super) fn store(&mut self, table: &Table, message: &Message) -> Option<Report> {
        if message.term < self.term {
            return None;
        }
        self.term = message.term;
        match &message.order {
            Order::Fence { dead } => {
                if table.lives(*dead) {
                    self.break_down(format!("{dead} is fenced, and nobody declared it dead"));
                }
                let engine = self.engines.get_mut(dead)?;
                if !engine.log.is_fenced {
                    engine.log.is_fenced = true;
                    engine.log.base = engine.log.holdings.clone();
                    engine.log.in_doubt = engine.pending.as_ref().map(|(record, _)| *record);
                }
                Some(Report::Fenced { dead: *dead })
            }
            Order::Delete { dead } => {
                let log = &mut self.engines.get_mut(dead)?.log;
                log.is_deleted = true;
                let segments: Vec<_> = log.holdings.keys().copied().collect();
                segments.into_iter().for_each(|segment| self.check(table, segment));
                Some(Report::Deleted { dead: *dead })
            }
            _ => None,
        }
    }

    /// The engine that an order is for.
    pub(super) fn recipient(order: &Order) -> Option<Incarnation> {
        match order {
            Order::Create { engine, .. }
            | Order::Release { engine, .. }
            | Order::Adopt { engine, .. }
            | Order::Forget { engine, .. }
            | Order::Reattach { engine, .. }
            | Order::Drop { engine, .. }
            | Order::Dismiss { engine } => Some(*engine),
            Order::Recover { recoverer, .. } => Some(*recoverer),
            _ => None,
        }
    }

    /// An engine is told something. It answers at once, or begins to write a record, or is busy with one.
    pub(super) fn engine(&mut self, prng: &mut Prng, message: &Message) -> Option<Report> {
        let id = Self::recipient(&message.order)?;
        let refuses = self.refuses && prng.one_in(6);
        let forgetful = self.flaw == Some(WorldFlaw::ForgetsRefusals);
        let source = match &message.order {
            Order::Adopt { segment, source, .. } => self
                .engines
                .get(source)
                .and_then(|source| source.log.holdings.get(segment).copied().filter(|_| !source.log.is_deleted)),
            _ => None,
        };
        let engine = self.engines.get_mut(&id)?;
        if !engine.is_running || message.term < engine.term || engine.pending.is_some() {
            return None;
        }
        engine.term = message.term;
        let held = |segment: &SegmentId| engine.log.holdings.get(segment).copied().unwrap_or_default();
        match message.order {
            Order::Create { segment, epoch, .. } | Order::Adopt { segment, epoch, .. } => {
                let (had, refused) = (held(&segment), engine.log.refused.get(&segment).copied().unwrap_or_default());
                if had.epoch == epoch && had.role == Role::Owned {
                    return Some(Report::Adopted { engine: id, segment, epoch, generation: had.generation });
                }
                if refused >= epoch && !forgetful {
                    return Some(Report::Refused { engine: id, segment, epoch });
                }
                if had.epoch >= epoch {
                    return None;
                }
                if refuses {
                    let report = Report::Refused { engine: id, segment, epoch };
                    engine.pending = Some((Record::Refuse(segment, epoch), Some(report)));
                    return None;
                }
                let (taken, generation) = match message.order {
                    Order::Adopt { source_epoch, generation, source: from, .. } => {
                        let Some(taken) = source.filter(|had| had.role != Role::None && had.epoch == source_epoch)
                        else {
                            if !engine.log.is_fenced {
                                let found = format!("{id} is to adopt {segment} of {from}, and finds {source:?}");
                                self.break_down(found);
                            }
                            return None;
                        };
                        (taken, generation)
                    }
                    Order::Create { generation, .. } => (Holding::default(), generation),
                    _ => return None,
                };
                let generation = taken.generation.max(generation);
                let holding = Holding { role: Role::Owned, epoch, generation, ..taken };
                let report = Report::Adopted { engine: id, segment, epoch, generation };
                engine.pending = Some((Record::Hold(segment, holding), Some(report)));
            }
            Order::Release { segment, epoch, .. } => {
                let had = held(&segment);
                let report = Report::Released { engine: id, segment, epoch };
                match had.role {
                    Role::Released if had.epoch == epoch => return Some(report),
                    Role::Owned if had.epoch == epoch => {
                        let holding = Holding { role: Role::Released, ..had };
                        engine.pending = Some((Record::Hold(segment, holding), Some(report)));
                    }
                    _ => {}
                }
            }
            Order::Forget { segment, epoch, .. } => {
                let had = held(&segment);
                if had.role == Role::Released && had.epoch == epoch && !engine.log.is_fenced {
                    engine.log.holdings.insert(segment, Holding { epoch, ..Holding::default() });
                }
            }
            Order::Reattach { segment, epoch, generation, .. } => {
                let had = held(&segment);
                if (had.role, had.epoch) == (Role::Owned, epoch) {
                    let holding = Holding { generation: generation.max(had.generation), ..had };
                    let generation = holding.generation;
                    let report = Report::Recorded { engine: id, segment, epoch, generation };
                    engine.pending = Some((Record::Hold(segment, holding), Some(report)));
                }
            }
            Order::Drop { segment, epoch, .. } => {
                let had = held(&segment);
                if (had.role, had.epoch) == (Role::Owned, epoch) {
                    let holding = Holding { is_dropped: true, ..had };
                    let report = Report::Dropped { engine: id, segment, epoch };
                    engine.pending = Some((Record::Hold(segment, holding), Some(report)));
                }
            }
            Order::Dismiss { .. } => engine.is_running = false,
            Order::Recover { dead, .. } => {
                let log = &self.engines.get(&dead)?.log;
                // Who reads what is sealed finds what was decided.
                let found = match log.is_sealed {
                    true => None,
                    false => Some(log.in_doubt.is_some() && prng.one_in(2)),
                };
                match found {
                    None => return Some(self.recovered(dead, id)),
                    Some(found) => self.engines.get_mut(&id)?.recovering = Some((dead, found)),
                }
            }
            _ => {}
        }
        None
    }

    /// A recoverer seals what it has read.
    pub(super) fn seal(&mut self, table: &Table, id: Incarnation) -> Option<Report> {
        let engine = self.engines.get_mut(&id)?;
        let (dead, is_found) = engine.recovering.take()?;
        if engine.log.is_fenced || !engine.is_running {
            return None;
        }
        let log = &mut self.engines.get_mut(&dead)?.log;
        if !log.is_fenced {
            self.break_down(format!("{id} seals {dead}, which is not fenced"));
            return None;
        }
        let decided = log.was_found.replace(is_found).filter(|decided| *decided != is_found && log.in_doubt.is_some());
        if decided.is_some() {
            self.break_down(format!("{id} decides once more where {dead} ends, and otherwise"));
            return None;
        }
        log.is_sealed = true;
        log.holdings = log.base.clone();
        if let Some(record) = log.in_doubt.filter(|_| is_found) {
            log.apply(record);
            if let Record::Hold(segment, _) = record {
                self.created.insert(segment);
            }
        }
        let segments: Vec<_> = self.engines[&dead].log.holdings.keys().copied().collect();
        segments.into_iter().for_each(|segment| self.check(table, segment));
        Some(self.recovered(dead, id))
    }

    fn recovered(&self, dead: Incarnation, recoverer: Incarnation) -> Report {
        let holdings = self.engines[&dead].log.holdings.iter();
        let has = holdings.filter(|(_, holding)| holding.role != Role::None);
        Report::Recovered { dead, recoverer, has: has.map(|(id, holding)| (*id, holding.epoch)).collect() }
    }

    /// A client writes to a segment that an engine owns.
    pub(super) fn write(&mut self, id: Incarnation, segment: SegmentId) {
        let Some(engine) = self.engines.get_mut(&id) else { return };
        let had = engine.log.holdings.get(&segment).copied().unwrap_or_default();
        if engine.is_running && engine.pending.is_none() && had.role == Role::Owned && !had.is_dropped {
            let holding = Holding { writes: had.writes + 1, ..had };
            engine.pending = Some((Record::Hold(segment, holding), None));
        }
    }

    /// The record on its way reaches the log, or is refused there.
    pub(super) fn land(&mut self, table: &Table, id: Incarnation) -> Option<Report> {
        let engine = self.engines.get_mut(&id)?;
        let (record, report) = engine.pending.take()?;
        if engine.log.is_fenced {
            engine.is_running = false;
            return None;
        }
        engine.log.apply(record);
        let is_running = engine.is_running;
        if let Record::Hold(segment, holding) = record {
            if report.is_none() && is_running {
                let acknowledged = self.acknowledged.entry(segment).or_default();
                *acknowledged = holding.writes.max(*acknowledged);
            }
            self.created.insert(segment);
            self.check(table, segment);
        }
        report.filter(|_| is_running)
    }

    /// What an engine says until it is told to forget it.
    pub(super) fn repeated(&self, id: Incarnation) -> Vec<Report> {
        let engine = &self.engines[&id];
        let released = engine.log.holdings.iter().filter(|(_, holding)| holding.role == Role::Released);
        let report = |(segment, holding): (&SegmentId, &Holding)| Report::Released {
            engine: id,
            segment: *segment,
            epoch: holding.epoch,
        };
        released.map(report).filter(|_| engine.is_running).collect()
    }
}

impl Log {
    fn apply(&mut self, record: Record) {
        match record {
            Record::Hold(segment, holding) => drop(self.holdings.insert(segment, holding)),
            Record::Refuse(segment, epoch) => drop(self.refused.insert(segment, epoch)),
        }
    }
}
