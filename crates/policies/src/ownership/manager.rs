//! The manager in charge: wishes and reports come in, changes and messages go out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{Epoch, Error, Generation, Incarnation, Instant, Result, SegmentId, Term, VolumeId};

use super::doubt::Doubt;
use super::flaw::Flaw;
use super::message::{Message, Order, Report};
use super::outbox::Outbox;
use super::refusals::Refusals;
use super::table::{Change, Segment, Table};

/// Moves that were wished for and wait for their turn.
const WISHES_MAX: usize = 256;

/// What an operator sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Engines that adopt from one dead engine at a time: each reads its whole log.
    pub adopters_max: usize,
    /// Planned moves at a time: each is a pause for somebody.
    pub moves_max: usize,
    /// How much more than the mean a server may have before segments are moved away, and where it can be avoided.
    pub over_mean_percent: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { adopters_max: 4, moves_max: 4, over_mean_percent: 20 }
    }
}

/// The manager in charge of a table. Every method that takes a `random` number decides the same, given the same.
#[derive(Debug)]
pub struct Manager {
    pub(super) settings: Settings,
    term: Term,
    /// Of the last epoch that was made.
    pub(super) counter: u32,
    pub(super) table: Table,
    outbox: Outbox,
    pub(super) doubt: Doubt,
    /// Whom another one was asked about.
    pub(super) asked: Vec<Incarnation>,
    /// The segments that somebody has refused since they had an owner.
    pub(super) refusals: Refusals,
    /// Moves to be, and where to.
    pub(super) wishes: VecDeque<(SegmentId, Option<Incarnation>)>,
    /// Of volumes that are being attached: what a holder has recorded, under which epoch.
    pub(super) recorded: BTreeMap<SegmentId, (Epoch, Generation)>,
    /// What has changed since messages were made of it.
    pub(super) touched: Touched,
    #[cfg(test)]
    pub(super) flaw: Option<Flaw>,
}

#[derive(Debug, Default)]
pub(super) struct Touched {
    pub(super) segments: BTreeSet<SegmentId>,
    pub(super) dead: BTreeSet<Incarnation>,
    pub(super) volumes: BTreeSet<VolumeId>,
}

impl Manager {
    /// Takes over `table`, which is all that was logged, under a term that is its own.
    ///
    /// # Errors
    /// `Fenced`: the table was written under this term or a later one.
    pub fn take_over(settings: Settings, table: Table, term: Term, now: Instant, random: u64) -> Result<Manager> {
        table.check(&Change::Term(term))?;
        let mut manager = Manager {
            settings,
            term,
            counter: 0,
            table,
            outbox: Outbox::default(),
            doubt: Doubt::default(),
            asked: vec![],
            refusals: Refusals::default(),
            wishes: VecDeque::new(),
            recorded: BTreeMap::new(),
            touched: Touched::default(),
            #[cfg(test)]
            flaw: None,
        };
        manager.log(Change::Term(term));
        manager.on_time(now, random);
        Ok(manager)
    }

    /// Its term.
    pub fn term(&self) -> Term {
        self.term
    }

    /// The table with all that was decided, durable or not.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// What was decided and is not durable yet, to be logged in this order. A manager that cannot log it is not in charge
    /// any more, or does not know what is durable: it is dropped, and another one takes over.
    pub fn unlogged(&self) -> &[Change] {
        self.outbox.unlogged()
    }

    /// The first `count` of [`Manager::unlogged`] are durable: gives the messages that nothing keeps back any more.
    pub fn on_logged(&mut self, count: usize) -> Vec<Message> {
        self.outbox.on_logged(count)
    }

    /// Whether its epochs are used up: it is to be followed by another one, under a new term.
    pub fn is_spent(&self) -> bool {
        self.counter == u32::MAX
    }

    /// An engine says that it lives, on the server of this name.
    ///
    /// # Errors
    /// `Fenced`: it was declared dead, or is older than one that was forgotten; it is told so. `Invalid`: the server has no
    /// possible name, or there are too many engines. `Conflict`: it is another server's.
    pub fn on_registered(&mut self, now: Instant, random: u64, engine: Incarnation, server: &str) -> Result<()> {
        if self.table.is_past(engine) {
            self.say(Order::Dismiss { engine });
            return Err(Error::fenced(format!("{engine} was declared dead: it must start as another one")));
        }
        match self.table.server(engine) {
            Some(known) if known == server => self.doubt.on_touch(now, engine, &self.table),
            Some(known) => return Err(Error::conflict(format!("{engine} is of server {known:?}, not {server:?}"))),
            None => {
                let change = Change::Engine { engine, server: server.to_owned() };
                self.table.check(&change).map_err(|_| {
                    Error::invalid(format!("{engine} of server {server:?} cannot be taken: no such name, or too many"))
                })?;
                self.doubt.on_touch(now, engine, &self.table);
                self.log(change);
            }
        }
        self.settle(now, random);
        Ok(())
    }

    /// The connection with an engine was lost. Nobody dies of that.
    pub fn on_lost(&mut self, engine: Incarnation) {
        if self.table.lives(engine) {
            self.doubt.on_lost(engine);
        }
    }

    /// An engine refused a connection, or its lease ended.
    pub fn on_gone(&mut self, now: Instant, random: u64, engine: Incarnation) {
        if self.table.lives(engine) {
            self.doubt.on_gone(engine);
            self.settle(now, random);
        }
    }

    /// An engine is in touch again.
    pub fn on_touch(&mut self, now: Instant, random: u64, engine: Incarnation) {
        self.doubt.on_touch(now, engine, &self.table);
        self.settle(now, random);
    }

    /// An [`Order::Doubt`] was answered: the own lease was renewed after it was given, and then another one said that it
    /// misses these engines, too.
    pub fn on_confirmed(&mut self, now: Instant, random: u64, missing: &[Incarnation]) {
        self.doubt.on_confirmed(missing);
        self.settle(now, random);
    }

    /// A volume was created: its segments get owners.
    ///
    /// # Errors
    /// `Conflict`: it exists. `Invalid`: it can have no such number of segments, or there are too many volumes.
    pub fn create(&mut self, now: Instant, random: u64, volume: VolumeId, segments: u32) -> Result<()> {
        if self.table.volume(volume).is_some() {
            return Err(Error::conflict(format!("the segments of {volume} have owners already")));
        }
        let change = Change::Create { volume, segments };
        let refused = |_| Error::invalid(format!("{volume} with {segments} segments cannot be, or is one too many"));
        self.table.check(&change).map_err(refused)?;
        self.log(change);
        self.settle(now, random);
        Ok(())
    }

    /// A volume has a new attachment; [`Order::Attached`] says when its owners know.
    ///
    /// # Errors
    /// `NotFound`. `Fenced`: there was a later attachment.
    pub fn attach(&mut self, now: Instant, random: u64, volume: VolumeId, generation: Generation) -> Result<()> {
        self.usable(volume)?;
        let change = Change::Attach { volume, generation };
        let refused = |_| Error::fenced(format!("{volume} has an attachment that is newer than {generation}"));
        self.table.check(&change).map_err(refused)?;
        self.log(change);
        self.settle(now, random);
        Ok(())
    }

    /// A volume is deleted; [`Order::Gone`] says when it is.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn drop_volume(&mut self, now: Instant, random: u64, volume: VolumeId) -> Result<()> {
        self.usable(volume)?;
        self.log(Change::Drop(volume));
        self.settle(now, random);
        Ok(())
    }

    /// A server is to own nothing, or may again.
    ///
    /// # Errors
    /// `Invalid`: no server has such a name.
    pub fn drain(&mut self, now: Instant, random: u64, server: &str, is_drained: bool) -> Result<()> {
        if self.table.is_drained(server) != is_drained {
            let change = Change::Drain { server: server.to_owned(), is_drained };
            let refused = |_| Error::invalid(format!("no server is called {server:?}, or too many are drained"));
            self.table.check(&change).map_err(refused)?;
            self.log(change);
        }
        self.settle(now, random);
        Ok(())
    }

    /// Whether one more segment would stay on a server: one with more than its share has some taken away, and so has one
    /// that is drained.
    pub fn has_room(&self, server: &str) -> bool {
        let places = self.places(0);
        let usable = || places.servers().iter().filter(|place| place.is_usable());
        let least = usable().map(|place| place.load).min().unwrap_or_default();
        usable().any(|place| place.name == server && (place.load < places.bound() || place.load <= least))
    }

    /// A segment is to move, to an engine or wherever there is room. It waits for its turn; a manager that takes over does
    /// not know of those that wait.
    ///
    /// # Errors
    /// `NotFound`, `Retry`: too many wait.
    pub fn move_segment(
        &mut self,
        now: Instant,
        random: u64,
        segment: SegmentId,
        to: Option<Incarnation>,
    ) -> Result<()> {
        self.usable(segment.volume)?;
        if self.table.segment(segment).is_none() || to.is_some_and(|to| !self.table.lives(to)) {
            return Err(Error::not_found(format!("there is no segment {segment}, or no engine to move it to")));
        }
        if self.wishes.len() >= WISHES_MAX {
            return Err(Error::retry(format!("{WISHES_MAX} moves wait for their turn: try again later")));
        }
        self.wishes.push_back((segment, to));
        self.settle(now, random);
        Ok(())
    }

    /// An engine or the store says something. What does not matter any more is passed over.
    pub fn on_report(&mut self, now: Instant, random: u64, report: &Report) {
        match report {
            Report::Refused { engine, segment, epoch } => self.on_refused(now, *engine, *segment, *epoch),
            Report::Released { engine, segment, epoch } => self.on_released(*engine, *segment, *epoch),
            Report::Adopted { engine, segment, epoch, generation } => {
                if self.is_assigned(*engine, *segment, *epoch) {
                    self.adopted(*segment, *epoch);
                    self.record(*segment, *epoch, *generation);
                }
            }
            Report::Recorded { engine, segment, epoch, generation } => {
                if self.is_held(*engine, *segment, *epoch) {
                    self.record(*segment, *epoch, *generation);
                }
            }
            Report::Dropped { engine, segment, epoch } => self.on_dropped(*engine, *segment, *epoch),
            Report::Fenced { dead } => {
                if self.table.death(*dead).is_some_and(|death| !death.is_fenced) {
                    self.log(Change::Fenced(*dead));
                }
            }
            Report::Recovered { dead, recoverer, has } => self.on_recovered(*dead, *recoverer, has),
            Report::Deleted { dead } => {
                if self.table.is_needless(*dead) {
                    self.log(Change::Delete(*dead));
                }
            }
        }
        self.settle(now, random);
    }

    /// Some time has passed in which engines should have answered: everything is said once more, unless it was not even
    /// said yet; who has refused a segment may be offered it again, once it has been left alone for long enough.
    pub fn on_time(&mut self, now: Instant, random: u64) {
        self.refusals.on_time(now);
        if self.has(Flaw::ReassignsSilent) {
            self.reassign_silent(now);
        }
        self.asked.clear();
        if !self.outbox.has_messages() {
            self.touched.segments.extend(self.table.assigned());
            self.touched.dead.extend(self.table.deaths().map(|(dead, _)| dead));
            let unsettled = |volume: &super::Volume| volume.is_dropping || volume.generation > volume.attached;
            let volumes = self.table.volumes().filter(|(_, volume)| unsettled(volume));
            self.touched.volumes.extend(volumes.map(|(id, _)| id));
            for volume in &self.touched.volumes {
                self.touched.segments.extend(self.table.segments_of(*volume).map(|(id, _)| id));
            }
        }
        self.settle(now, random);
    }

    /// What must hold between any two calls.
    ///
    /// # Panics
    /// It does not.
    pub fn check_invariants(&self) {
        self.table.check_invariants();
        let is_attaching =
            |id: &SegmentId| self.table.volume(id.volume).is_some_and(|volume| volume.generation > volume.attached);
        assert!(self.recorded.keys().all(is_attaching));
        assert!(self.wishes.len() <= WISHES_MAX);
    }

    fn on_refused(&mut self, now: Instant, engine: Incarnation, segment: SegmentId, epoch: Epoch) {
        if self.is_assigned(engine, segment, epoch) {
            self.log(Change::Revoke { segment, epoch });
            self.refusals.on_refused(now, segment, engine);
        }
    }

    fn on_released(&mut self, engine: Incarnation, segment: SegmentId, epoch: Epoch) {
        let row = self.table.segment(segment);
        if self.is_held(engine, segment, epoch) {
            if row.is_some_and(|row| !row.is_released) {
                self.log(Change::Released { segment, epoch });
            }
            if self.has(Flaw::ForgetsReleases) {
                self.say(Order::Forget { engine, segment, epoch });
            }
        } else if row.is_none_or(|row| row.is_dropped || row.epoch > epoch) {
            self.say(Order::Forget { engine, segment, epoch });
        }
    }

    fn on_dropped(&mut self, engine: Incarnation, segment: SegmentId, epoch: Epoch) {
        let row = self.table.segment(segment);
        let is_settled = row.is_some_and(|row| row.assignment.is_none() && !row.is_released);
        let is_dropping = self.table.volume(segment.volume).is_some_and(|volume| volume.is_dropping);
        if is_dropping && is_settled && self.is_held(engine, segment, epoch) {
            self.log(Change::Dropped { segment, epoch });
        }
    }

    fn on_recovered(&mut self, dead: Incarnation, recoverer: Incarnation, has: &[(SegmentId, Epoch)]) {
        let Some(death) = self.table.death(dead) else { return };
        let is_believed = death.recoverer == Some(recoverer) || self.has(Flaw::TwoRecoverers);
        if !death.is_fenced || death.is_recovered || !is_believed {
            return;
        }
        let has: BTreeSet<_> = has.iter().copied().collect();
        let given: Vec<SegmentId> = self.table.owned_by(dead).collect();
        for segment in given {
            let Some(assignment) = self.table.segment(segment).and_then(|row| row.assignment) else { continue };
            match has.contains(&(segment, assignment.epoch)) {
                true => self.adopted(segment, assignment.epoch),
                false => self.log(Change::Revoke { segment, epoch: assignment.epoch }),
            }
        }
        self.log(Change::Recovered(dead));
        // Of a volume that goes, what its log has no more was dropped, and nobody heard of that.
        let held: Vec<SegmentId> = self.table.held_by(dead).collect();
        for segment in held {
            let Some(row) = self.table.segment(segment).filter(|row| row.assignment.is_none()) else { continue };
            let is_dropping = self.table.volume(segment.volume).is_some_and(|volume| volume.is_dropping);
            if is_dropping && !has.contains(&(segment, row.epoch)) {
                self.log(Change::Dropped { segment, epoch: row.epoch });
            }
        }
    }

    /// An assignee has the segment now.
    fn adopted(&mut self, segment: SegmentId, epoch: Epoch) {
        let Some(Segment { holder: former, epoch: former_epoch, .. }) = self.table.segment(segment) else { return };
        self.log(Change::Adopted { segment, epoch });
        self.refusals.forget(segment);
        if let Some(engine) = former.filter(|former| self.table.lives(*former)) {
            self.say(Order::Forget { engine, segment, epoch: former_epoch });
        }
    }

    /// Notes what a holder has recorded, while somebody waits for it.
    fn record(&mut self, segment: SegmentId, epoch: Epoch, generation: Generation) {
        let volume = self.table.volume(segment.volume);
        if volume.is_some_and(|volume| volume.generation > volume.attached) {
            self.recorded.insert(segment, (epoch, generation));
            self.touched.volumes.insert(segment.volume);
        }
    }

    fn is_assigned(&self, engine: Incarnation, segment: SegmentId, epoch: Epoch) -> bool {
        let assignment = self.table.segment(segment).and_then(|row| row.assignment);
        assignment.is_some_and(|assignment| (assignment.engine, assignment.epoch) == (engine, epoch))
    }

    fn is_held(&self, engine: Incarnation, segment: SegmentId, epoch: Epoch) -> bool {
        self.table.segment(segment).is_some_and(|row| (row.holder, row.epoch) == (Some(engine), epoch))
    }

    fn usable(&self, volume: VolumeId) -> Result<()> {
        match self.table.volume(volume) {
            Some(row) if !row.is_dropping => Ok(()),
            _ => Err(Error::not_found(format!("there is no volume {volume}"))),
        }
    }

    /// An epoch that was never used.
    pub(super) fn assign(&mut self, segment: SegmentId, engine: Incarnation) {
        // Another manager goes on, under another term.
        let Some(counter) = self.counter.checked_add(1) else { return };
        self.counter = counter;
        self.log(Change::Assign { segment, epoch: Epoch::of(self.term, counter), engine });
    }

    /// A change happens here now, and is to be logged.
    pub(super) fn log(&mut self, change: Change) {
        self.touched.note(&self.table, &change);
        self.table.apply(&change);
        self.outbox.log(change);
    }

    pub(super) fn say(&mut self, order: Order) {
        self.outbox.say(Message { term: self.term, order });
    }

    #[cfg(test)]
    pub(super) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    #[cfg(not(test))]
    pub(super) fn has(&self, flaw: Flaw) -> bool {
        flaw.is_seeded()
    }

    /// [`Flaw::ReassignsSilent`].
    fn reassign_silent(&mut self, now: Instant) {
        let silent: Vec<SegmentId> = self.table.assigned().collect();
        for segment in silent {
            if let Some(assignment) = self.table.segment(segment).and_then(|row| row.assignment) {
                self.log(Change::Revoke { segment, epoch: assignment.epoch });
                self.refusals.on_refused(now, segment, assignment.engine);
            }
        }
    }
}

impl Touched {
    /// What follows from the table may be something else when `change` has happened.
    fn note(&mut self, table: &Table, change: &Change) {
        match change {
            Change::Declare(dead) | Change::Fenced(dead) | Change::Recoverer { dead, .. } => {
                self.dead.insert(*dead);
            }
            Change::Recovered(dead) => {
                self.dead.insert(*dead);
                self.dead.extend(table.death(*dead).and_then(|death| death.recoverer));
                // Those who are to have what it held may take it.
                self.segments.extend(table.held_by(*dead));
            }
            Change::Create { volume, .. } | Change::Attach { volume, .. } | Change::Drop(volume) => {
                self.volumes.insert(*volume);
                self.segments.extend(table.segments_of(*volume).map(|(id, _)| id));
            }
            Change::Assign { segment, .. }
            | Change::Revoke { segment, .. }
            | Change::Released { segment, .. }
            | Change::Adopted { segment, .. }
            | Change::Dropped { segment, .. } => {
                self.segments.insert(*segment);
                self.volumes.insert(segment.volume);
                // Its log may be needless now.
                self.dead.extend(table.segment(*segment).and_then(|row| row.holder));
            }
            Change::Term(_)
            | Change::Floor { .. }
            | Change::Engine { .. }
            | Change::Drain { .. }
            | Change::Delete(_)
            | Change::Attached { .. }
            | Change::Forget(_) => {}
        }
    }
}
