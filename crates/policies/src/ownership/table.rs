//! The manager's table as a state machine that a log of changes rebuilds.
//!
//! A change is checked against the table ([`Table::check`]) and then applied, which never fails; the same changes give the
//! same table. [`Table::history`] is a short list of changes that gives it, too: a checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use base::limits::{ENGINES_MAX, SERVER_NAME_MAX, VOLUMES_MAX};
use base::{Epoch, Error, Generation, Incarnation, Result, SegmentId, Term, VolumeId};

/// Most segments of a volume.
const SEGMENTS_MAX: u32 = (base::limits::VOLUME_SIZE_MAX / base::limits::SEGMENT_SIZE) as u32;

/// Who is to own a segment that it does not hold yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// Under which epoch.
    pub epoch: Epoch,
    /// Who.
    pub engine: Incarnation,
}

/// What the table knows of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// Under which epoch the holder has it; zero without one.
    pub epoch: Epoch,
    /// The engine whose log has it; nobody before its first owner has created it.
    pub holder: Option<Incarnation>,
    /// The holder has released it.
    pub is_released: bool,
    /// Who is to have it next. The source is the holder.
    pub assignment: Option<Assignment>,
    /// The holder has logged that the volume is gone.
    pub is_dropped: bool,
}

impl Segment {
    /// Who has it when everything is done that was decided.
    pub fn owner_to_be(&self) -> Option<Incarnation> {
        self.assignment.map(|assignment| assignment.engine).or(self.holder)
    }
}

/// What the table knows of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Volume {
    /// How many segments it has.
    pub segments: u32,
    /// Its newest attachment.
    pub generation: Generation,
    /// The newest attachment that the owners of all segments had recorded.
    pub attached: Generation,
    /// Its deletion was decided.
    pub is_dropping: bool,
}

/// How far it has come with an engine that was declared dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Death {
    /// Nothing of it can be confirmed any more.
    pub is_fenced: bool,
    /// Who decides where its log ends; nobody any more when that is decided.
    pub recoverer: Option<Incarnation>,
    /// That is decided.
    pub is_recovered: bool,
}

/// One step in the life of the table.
// The fields are those of the table.
#[allow(missing_docs)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A manager is in charge from here on.
    Term(Term),
    /// What a checkpoint does not list was forgotten or used up to here.
    Floor { engine: Incarnation, epoch: Epoch },
    /// An engine lives.
    Engine { engine: Incarnation, server: String },
    /// A server is to own nothing, or may again.
    Drain { server: String, is_drained: bool },
    /// An engine is dead, whatever it believes.
    Declare(Incarnation),
    /// Nothing of a dead engine can be confirmed any more.
    Fenced(Incarnation),
    /// Who decides where the log of a dead engine ends.
    Recoverer { dead: Incarnation, recoverer: Incarnation },
    /// That is decided.
    Recovered(Incarnation),
    /// The log of a dead engine is no more.
    Delete(Incarnation),
    /// A volume is to be, and its segments have no owners.
    Create { volume: VolumeId, segments: u32 },
    /// A volume has a new attachment.
    Attach { volume: VolumeId, generation: Generation },
    /// All owners know of it.
    Attached { volume: VolumeId, generation: Generation },
    /// A volume is to be no more.
    Drop(VolumeId),
    /// Nothing of it is left.
    Forget(VolumeId),
    /// A segment is to be an engine's, under an epoch that was never used.
    Assign { segment: SegmentId, epoch: Epoch, engine: Incarnation },
    /// Its assignee has refused it, or died without it.
    Revoke { segment: SegmentId, epoch: Epoch },
    /// Its holder has released it.
    Released { segment: SegmentId, epoch: Epoch },
    /// Its assignee has adopted or created it, and holds it now.
    Adopted { segment: SegmentId, epoch: Epoch },
    /// Its holder has logged that the volume is gone.
    Dropped { segment: SegmentId, epoch: Epoch },
}

/// Everything that a manager must not forget.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Table {
    term: Term,
    /// The highest epoch that was ever assigned.
    last_epoch: Epoch,
    /// The highest engine that was forgotten. Up to it, who is not in the table never comes back.
    forgotten: Incarnation,
    engines: BTreeMap<Incarnation, String>,
    drained: BTreeSet<String>,
    deaths: BTreeMap<Incarnation, Death>,
    volumes: BTreeMap<VolumeId, Volume>,
    segments: BTreeMap<SegmentId, Segment>,
    /// The rest follows from the segments: whose they are, and to be.
    held: BTreeMap<Incarnation, BTreeSet<SegmentId>>,
    owned: BTreeMap<Incarnation, BTreeSet<SegmentId>>,
    assigned: BTreeSet<SegmentId>,
    /// How many segments each assignee is to have from each holder.
    between: BTreeMap<(Incarnation, Incarnation), usize>,
    /// Neither assigned nor served by a holder, if that lives.
    loose: BTreeSet<SegmentId>,
}

impl Table {
    /// The term of the manager that wrote last.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The server of an engine that is known, dead ones included.
    pub fn server(&self, engine: Incarnation) -> Option<&str> {
        self.engines.get(&engine).map(String::as_str)
    }

    /// The engines that nobody declared dead, with their servers.
    pub fn living(&self) -> impl Iterator<Item = (Incarnation, &str)> {
        let lives = self.engines.iter().filter(|(engine, _)| !self.deaths.contains_key(engine));
        lives.map(|(engine, server)| (*engine, server.as_str()))
    }

    /// Whether an engine is known, and nobody declared it dead.
    pub fn lives(&self, engine: Incarnation) -> bool {
        self.engines.contains_key(&engine) && !self.deaths.contains_key(&engine)
    }

    /// Whether an engine can never be one of this table again.
    pub fn is_past(&self, engine: Incarnation) -> bool {
        self.deaths.contains_key(&engine) || (engine <= self.forgotten && !self.engines.contains_key(&engine))
    }

    /// Whether a server is to own nothing.
    pub fn is_drained(&self, server: &str) -> bool {
        self.drained.contains(server)
    }

    /// The engines that were declared dead, and are not forgotten.
    pub fn deaths(&self) -> impl Iterator<Item = (Incarnation, Death)> {
        self.deaths.iter().map(|(engine, death)| (*engine, *death))
    }

    /// How far it has come with a dead engine.
    pub fn death(&self, engine: Incarnation) -> Option<Death> {
        self.deaths.get(&engine).copied()
    }

    /// All volumes.
    pub fn volumes(&self) -> impl Iterator<Item = (VolumeId, Volume)> {
        self.volumes.iter().map(|(id, volume)| (*id, *volume))
    }

    /// One of them.
    pub fn volume(&self, volume: VolumeId) -> Option<Volume> {
        self.volumes.get(&volume).copied()
    }

    /// All segments.
    pub fn segments(&self) -> impl Iterator<Item = (SegmentId, Segment)> {
        self.segments.iter().map(|(id, segment)| (*id, *segment))
    }

    /// One of them.
    pub fn segment(&self, segment: SegmentId) -> Option<Segment> {
        self.segments.get(&segment).copied()
    }

    /// Those of a volume.
    pub fn segments_of(&self, volume: VolumeId) -> impl Iterator<Item = (SegmentId, Segment)> {
        let range = SegmentId { volume, index: 0 }..=SegmentId { volume, index: u32::MAX };
        self.segments.range(range).map(|(id, segment)| (*id, *segment))
    }

    /// The segments that an engine's log has the last word on.
    pub fn held_by(&self, engine: Incarnation) -> impl Iterator<Item = SegmentId> {
        self.held.get(&engine).into_iter().flatten().copied()
    }

    /// The segments that an engine has when everything is done that was decided.
    pub fn owned_by(&self, engine: Incarnation) -> impl Iterator<Item = SegmentId> {
        self.owned.get(&engine).into_iter().flatten().copied()
    }

    /// How many those are.
    pub fn load(&self, engine: Incarnation) -> usize {
        self.owned.get(&engine).map_or(0, BTreeSet::len)
    }

    /// The segments with an assignment.
    pub fn assigned(&self) -> impl Iterator<Item = SegmentId> {
        self.assigned.iter().copied()
    }

    /// Who is to have segments from whom: the holder, the assignee, and how many.
    pub fn between(&self) -> impl Iterator<Item = (Incarnation, Incarnation, usize)> {
        self.between.iter().map(|((holder, engine), count)| (*holder, *engine, *count))
    }

    /// Those who are to have segments from `holder`.
    pub fn adopters_of(&self, holder: Incarnation) -> BTreeSet<Incarnation> {
        let range = (holder, Incarnation(0))..=(holder, Incarnation(u64::MAX));
        self.between.range(range).map(|((_, engine), _)| *engine).collect()
    }

    /// The segments that need an assignment, whoever lives.
    pub fn loose(&self) -> impl Iterator<Item = SegmentId> {
        self.loose.iter().copied()
    }

    /// Whether what the log of `engine` says of its segments is final: it is dead, and its end decided.
    pub fn is_recovered(&self, engine: Incarnation) -> bool {
        self.death(engine).is_some_and(|death| death.is_recovered)
    }

    /// Whether nobody needs the log of a dead engine any more: nothing has its last word there, and it recovers nobody.
    pub fn is_needless(&self, dead: Incarnation) -> bool {
        let recovers = self.deaths.values().any(|death| death.recoverer == Some(dead));
        self.is_recovered(dead) && self.held_by(dead).next().is_none() && !recovers
    }

    /// Checks that `change` can follow on this table: true of every change that a manager makes, and of every record of a
    /// log that is intact.
    ///
    /// # Errors
    /// `Fenced` for a term that is not the newest, `Corrupt` otherwise, with what does not fit.
    pub fn check(&self, change: &Change) -> Result<()> {
        if let Change::Term(term) = change {
            return match *term > self.term {
                true => Ok(()),
                false => Err(Error::fenced(format!("{term} is over: the table is written by {}", self.term))),
            };
        }
        match self.follows(change) {
            true => Ok(()),
            false => Err(Error::corrupt(format!("the change {change:?} does not follow from the table of owners"))),
        }
    }

    fn follows(&self, change: &Change) -> bool {
        let volume = |id: &VolumeId| self.volumes.get(id);
        let segment = |id: &SegmentId| self.segments.get(id);
        let death = |engine: &Incarnation| self.deaths.get(engine);
        match change {
            Change::Term(_) => false,
            Change::Floor { epoch, .. } => epoch.term() <= self.term,
            Change::Engine { engine, server } => {
                let is_new = !self.engines.contains_key(engine) && *engine > Incarnation(0);
                is_new && !self.is_past(*engine) && is_name(server) && self.engines.len() < ENGINES_MAX
            }
            Change::Drain { server, is_drained } => {
                let has_room = !is_drained || self.drained.len() < ENGINES_MAX;
                is_name(server) && has_room && self.drained.contains(server) != *is_drained
            }
            Change::Declare(engine) => self.lives(*engine),
            Change::Fenced(engine) => death(engine).is_some_and(|death| !death.is_fenced),
            Change::Recoverer { dead, recoverer } => {
                let may = |death: &Death| death.is_fenced && !death.is_recovered;
                death(dead).is_some_and(may) && self.engines.contains_key(recoverer)
            }
            Change::Recovered(dead) => {
                death(dead).is_some_and(|death| death.is_fenced && !death.is_recovered)
                    && self.owned_by(*dead).all(|id| self.segments[&id].assignment.is_none())
            }
            Change::Delete(dead) => self.is_needless(*dead),
            Change::Create { volume: id, segments } => {
                let is_new = volume(id).is_none() && *id > VolumeId(0) && self.volumes.len() < VOLUMES_MAX;
                is_new && (1..=SEGMENTS_MAX).contains(segments)
            }
            Change::Attach { volume: id, generation } => {
                volume(id).is_some_and(|volume| *generation > volume.generation && !volume.is_dropping)
            }
            Change::Attached { volume: id, generation } => {
                volume(id).is_some_and(|volume| *generation == volume.generation && *generation > volume.attached)
            }
            Change::Drop(id) => volume(id).is_some_and(|volume| !volume.is_dropping),
            Change::Forget(id) => {
                volume(id).is_some_and(|volume| volume.is_dropping)
                    && self.segments_of(*id).all(|(_, segment)| segment.is_dropped)
            }
            Change::Assign { segment: id, epoch, engine } => {
                let is_new = *epoch > self.last_epoch && epoch.term() <= self.term;
                let may = |segment: &Segment| segment.assignment.is_none() && !segment.is_dropped;
                is_new && self.lives(*engine) && segment(id).is_some_and(may)
            }
            Change::Revoke { segment: id, epoch } | Change::Adopted { segment: id, epoch } => {
                segment(id).and_then(|segment| segment.assignment).is_some_and(|assignment| assignment.epoch == *epoch)
            }
            Change::Released { segment: id, epoch } => segment(id).is_some_and(|segment| {
                segment.holder.is_some() && segment.epoch == *epoch && !segment.is_released && !segment.is_dropped
            }),
            Change::Dropped { segment: id, epoch } => {
                let is_dropping = volume(&id.volume).is_some_and(|volume| volume.is_dropping);
                // One that nobody ever created has no holder, and epoch 0.
                let is_settled = |segment: &Segment| segment.assignment.is_none() && segment.epoch == *epoch;
                is_dropping && segment(id).is_some_and(|segment| is_settled(segment) && !segment.is_dropped)
            }
        }
    }

    /// Lets a change happen that [`Table::check`] accepts.
    pub fn apply(&mut self, change: &Change) {
        assert!(self.check(change).is_ok(), "only changes that follow are applied: {change:?}");
        match change {
            Change::Term(term) => self.term = *term,
            Change::Floor { engine, epoch } => {
                self.forgotten = self.forgotten.max(*engine);
                self.last_epoch = self.last_epoch.max(*epoch);
            }
            Change::Engine { engine, server } => drop(self.engines.insert(*engine, server.clone())),
            Change::Drain { server, is_drained: true } => drop(self.drained.insert(server.clone())),
            Change::Drain { server, is_drained: false } => drop(self.drained.remove(server)),
            Change::Declare(engine) => drop(self.deaths.insert(*engine, Death::default())),
            Change::Fenced(engine) => self.death_mut(*engine).is_fenced = true,
            Change::Recoverer { dead, recoverer } => self.death_mut(*dead).recoverer = Some(*recoverer),
            Change::Recovered(dead) => {
                *self.death_mut(*dead) = Death { is_fenced: true, recoverer: None, is_recovered: true };
            }
            Change::Delete(dead) => {
                self.deaths.remove(dead);
                self.engines.remove(dead);
                self.forgotten = self.forgotten.max(*dead);
            }
            Change::Create { volume, segments } => {
                self.volumes.insert(*volume, Volume { segments: *segments, ..Volume::default() });
                (0..*segments).for_each(|index| self.put(SegmentId { volume: *volume, index }, Segment::default()));
            }
            Change::Attach { volume, generation } => self.volume_mut(*volume).generation = *generation,
            Change::Attached { volume, generation } => self.volume_mut(*volume).attached = *generation,
            Change::Drop(volume) => self.volume_mut(*volume).is_dropping = true,
            Change::Forget(volume) => {
                let segments: Vec<_> = self.segments_of(*volume).map(|(id, _)| id).collect();
                segments.into_iter().for_each(|id| self.take(id));
                self.volumes.remove(volume);
            }
            Change::Assign { segment, epoch, engine } => {
                self.last_epoch = *epoch;
                let assignment = Some(Assignment { epoch: *epoch, engine: *engine });
                self.put(*segment, Segment { assignment, ..self.segments[segment] });
            }
            Change::Revoke { segment, .. } => {
                self.put(*segment, Segment { assignment: None, ..self.segments[segment] });
            }
            Change::Released { segment, .. } => {
                self.put(*segment, Segment { is_released: true, ..self.segments[segment] });
            }
            Change::Adopted { segment, epoch } => {
                let holder = self.segments[segment].assignment.map(|assignment| assignment.engine);
                self.put(*segment, Segment { epoch: *epoch, holder, ..Segment::default() });
            }
            // Nobody needs what the holder has of it.
            Change::Dropped { segment, .. } => {
                self.put(*segment, Segment { is_dropped: true, ..Segment::default() });
            }
        }
    }

    /// Changes that make this table of an empty one: what a checkpoint has.
    pub fn history(&self) -> Vec<Change> {
        let mut changes = vec![];
        if self.term > Term(0) {
            changes.push(Change::Term(self.term));
        }
        for (engine, server) in &self.engines {
            changes.push(Change::Engine { engine: *engine, server: server.clone() });
        }
        changes.extend(self.drained.iter().map(|server| Change::Drain { server: server.clone(), is_drained: true }));
        for (&volume, row) in &self.volumes {
            changes.push(Change::Create { volume, segments: row.segments });
            let attached = [row.attached, row.generation].map(|generation| Change::Attach { volume, generation });
            let [former, newest] = attached;
            if row.attached > Generation(0) {
                changes.extend([former, Change::Attached { volume, generation: row.attached }]);
            }
            if row.generation > row.attached {
                changes.push(newest);
            }
            if row.is_dropping {
                changes.push(Change::Drop(volume));
            }
        }
        changes.extend(self.history_of_segments());
        for (&dead, death) in &self.deaths {
            changes.push(Change::Declare(dead));
            if death.is_fenced {
                changes.push(Change::Fenced(dead));
            }
        }
        for (&dead, death) in &self.deaths {
            changes.extend(death.recoverer.map(|recoverer| Change::Recoverer { dead, recoverer }));
            if death.is_recovered {
                changes.push(Change::Recovered(dead));
            }
        }
        changes.push(Change::Floor { engine: self.forgotten, epoch: self.last_epoch });
        changes
    }

    /// In the order of epochs, as they were assigned.
    fn history_of_segments(&self) -> Vec<Change> {
        let mut by_epoch: BTreeMap<Epoch, Vec<Change>> = BTreeMap::new();
        for (&segment, row) in &self.segments {
            let epoch = row.epoch;
            let past = by_epoch.entry(epoch).or_default();
            if let Some(engine) = row.holder {
                past.extend([Change::Assign { segment, epoch, engine }, Change::Adopted { segment, epoch }]);
            }
            if row.is_released {
                past.push(Change::Released { segment, epoch });
            }
            if row.is_dropped {
                past.push(Change::Dropped { segment, epoch });
            }
            if let Some(Assignment { epoch, engine }) = row.assignment {
                by_epoch.entry(epoch).or_default().push(Change::Assign { segment, epoch, engine });
            }
        }
        by_epoch.into_values().flatten().collect()
    }

    fn death_mut(&mut self, engine: Incarnation) -> &mut Death {
        self.deaths.get_mut(&engine).expect("a change that was checked names an engine that is dead")
    }

    fn volume_mut(&mut self, volume: VolumeId) -> &mut Volume {
        self.volumes.get_mut(&volume).expect("a change that was checked names a volume that exists")
    }

    fn put(&mut self, id: SegmentId, segment: Segment) {
        self.take(id);
        if let Some(holder) = segment.holder {
            self.held.entry(holder).or_default().insert(id);
        }
        if let Some(owner) = segment.owner_to_be() {
            self.owned.entry(owner).or_default().insert(id);
        }
        if let Some(assignment) = segment.assignment {
            self.assigned.insert(id);
            if let Some(holder) = segment.holder {
                *self.between.entry((holder, assignment.engine)).or_default() += 1;
            }
        } else if !segment.is_dropped && (segment.holder.is_none() || segment.is_released) {
            self.loose.insert(id);
        }
        self.segments.insert(id, segment);
    }

    fn take(&mut self, id: SegmentId) {
        let Some(former) = self.segments.remove(&id) else { return };
        let remove = |index: &mut BTreeMap<Incarnation, BTreeSet<SegmentId>>, engine: Option<Incarnation>| {
            let Some(engine) = engine else { return };
            let Some(segments) = index.get_mut(&engine) else { return };
            segments.remove(&id);
            if segments.is_empty() {
                index.remove(&engine);
            }
        };
        remove(&mut self.held, former.holder);
        remove(&mut self.owned, former.owner_to_be());
        self.assigned.remove(&id);
        self.loose.remove(&id);
        if let (Some(holder), Some(assignment)) = (former.holder, former.assignment) {
            let pair = (holder, assignment.engine);
            let count = self.between.remove(&pair).unwrap_or_default() - 1;
            if count > 0 {
                self.between.insert(pair, count);
            }
        }
    }

    /// What must hold between any two changes.
    ///
    /// # Panics
    /// It does not.
    pub fn check_invariants(&self) {
        for (id, segment) in &self.segments {
            assert!(self.volumes.contains_key(&id.volume), "{id} is of no volume");
            assert_eq!(segment.holder.is_none(), segment.epoch == Epoch(0), "{id}: {segment:?}");
            let epochs = segment.assignment.map(|assignment| assignment.epoch);
            assert!(epochs.is_none_or(|epoch| epoch > segment.epoch && epoch <= self.last_epoch), "{id}: {segment:?}");
            for engine in [segment.holder, segment.owner_to_be()].into_iter().flatten() {
                assert!(self.engines.contains_key(&engine), "{id} is of {engine}, which was forgotten");
            }
        }
        assert!(self.deaths.keys().all(|dead| self.engines.contains_key(dead)));
        assert!(self.deaths.values().all(|death| death.is_fenced || death.recoverer.is_none()));
        assert_eq!(self.owned.values().map(BTreeSet::len).sum::<usize>(), {
            self.segments.values().filter(|segment| segment.owner_to_be().is_some()).count()
        });
    }
}

fn is_name(server: &str) -> bool {
    (1..=SERVER_NAME_MAX).contains(&server.len())
}
