//! What is to be done next, given the table: deaths, recoverers, owners of what is adrift, moves, volumes. Then what
//! follows from the table for everything that has changed.

use std::collections::BTreeSet;

use base::{Incarnation, Instant, Prng, SegmentId, VolumeId};

use super::flaw::Flaw;
use super::manager::{Manager, Touched};
use super::message::Order;
use super::placing::Places;
use super::table::{Change, Death, Segment};

impl Manager {
    /// Decides what can be decided, and says what follows.
    pub(super) fn settle(&mut self, now: Instant, random: u64) {
        let mut prng = Prng::new(random);
        self.plan_deaths(now);
        self.plan_recoverers(&mut prng);
        self.plan_volumes();
        self.plan_adrift(&mut prng);
        self.plan_moves(&mut prng);
        let touched = std::mem::take(&mut self.touched);
        self.say_due(touched);
    }

    fn plan_deaths(&mut self, now: Instant) {
        let verdict = self.doubt.plan(now, &self.table);
        for engine in verdict.dead {
            let server = self.table.server(engine).unwrap_or_default().to_owned();
            self.doubt.on_declared(now, engine, &server);
            self.log(Change::Declare(engine));
        }
        if self.asked != verdict.ask {
            self.asked = verdict.ask;
            if !self.asked.is_empty() {
                self.say(Order::Doubt { missing: self.asked.clone() });
            }
        }
    }

    /// Everyone who is fenced and not recovered has a recoverer who is not fenced.
    fn plan_recoverers(&mut self, prng: &mut Prng) {
        let two = self.has(Flaw::TwoRecoverers);
        let is_fenced = |engine: Incarnation| self.table.death(engine).is_some_and(|death| death.is_fenced);
        let lacks = |(dead, death): &(Incarnation, Death)| {
            let is_slow = two && self.touched.dead.contains(dead);
            let has_none = is_slow || death.recoverer.is_none_or(is_fenced);
            death.is_fenced && !death.is_recovered && has_none
        };
        let lacking: Vec<Incarnation> = self.table.deaths().filter(lacks).map(|(dead, _)| dead).collect();
        for dead in lacking {
            let mut rank = |engine: Incarnation| {
                let draw = prng.next_u64();
                (self.doubt.is_missing(engine), self.table.load(engine), draw)
            };
            let engines = self.table.living().map(|(engine, _)| (rank(engine), engine));
            let Some((_, recoverer)) = engines.min() else { return };
            self.log(Change::Recoverer { dead, recoverer });
        }
    }

    /// Every segment that is adrift gets an owner: as many as there is somebody for.
    fn plan_adrift(&mut self, prng: &mut Prng) {
        let mut adrift: Vec<SegmentId> = self.table.loose().filter(|id| self.is_offered(*id)).collect();
        for (dead, death) in self.table.deaths() {
            // With as many adopters as there may be, the rest waits for one of them to be done.
            if death.is_recovered && self.table.adopters_of(dead).len() < self.settings.adopters_max {
                let has_said_so = |id: &SegmentId| self.table.segment(*id).is_some_and(|row| row.is_released);
                adrift.extend(self.table.owned_by(dead).filter(|id| !has_said_so(id) && self.is_offered(*id)));
            }
        }
        if adrift.is_empty() {
            return;
        }
        let mut places = self.places(adrift.len());
        for segment in adrift {
            let except = self.refusals.of(segment);
            let adopters = self.adopters(segment);
            if let Some(engine) = places.choose(&self.table, segment, except, adopters.as_ref(), prng) {
                self.assign(segment, engine);
            }
        }
    }

    /// Whether somebody might take it: a segment that all have refused is offered again after a while, and one of a
    /// volume that goes needs no first owner.
    fn is_offered(&self, segment: SegmentId) -> bool {
        let is_dropping = self.table.volume(segment.volume).is_some_and(|volume| volume.is_dropping);
        let has_holder = self.table.segment(segment).is_some_and(|row| row.holder.is_some());
        let refused = self.refusals.of(segment);
        let is_open = self.table.living().any(|(engine, _)| !refused.contains(&engine));
        is_open && (has_holder || !is_dropping)
    }

    /// The only ones who may adopt `segment` now, if that is so. Each adopter reads all that a dead engine has journaled,
    /// so few at a time do from one, each as much of it as it has room for.
    fn adopters(&self, segment: SegmentId) -> Option<BTreeSet<Incarnation>> {
        let source = self.table.segment(segment).and_then(|row| row.holder);
        let adopters = self.table.adopters_of(source.filter(|source| !self.table.lives(*source))?);
        (adopters.len() >= self.settings.adopters_max).then_some(adopters)
    }

    /// Moves that were wished for; then those off servers that are drained; then those that even out.
    fn plan_moves(&mut self, prng: &mut Prng) {
        loop {
            let moving = self.table.between().filter(|(holder, ..)| self.table.lives(*holder));
            let moving: usize = moving.map(|(.., count)| count).sum();
            if moving >= self.settings.moves_max || self.is_spent() {
                return;
            }
            let Some((segment, engine)) = self.wished(prng).or_else(|| self.drained(prng)).or_else(|| self.uneven())
            else {
                return;
            };
            self.assign(segment, engine);
        }
    }

    /// The next move that was wished for and is possible.
    fn wished(&mut self, prng: &mut Prng) -> Option<(SegmentId, Incarnation)> {
        while let Some((segment, to)) = self.wishes.pop_front() {
            let Some(row) = self.table.segment(segment).filter(|row| self.can_move(segment, row)) else { continue };
            let to = match to {
                Some(to) => self.table.lives(to).then_some(to),
                None => {
                    let except = row.holder.into_iter().collect();
                    self.places(1).choose(&self.table, segment, &except, None, prng)
                }
            };
            if let Some(to) = to.filter(|to| Some(*to) != row.holder) {
                return Some((segment, to));
            }
        }
        None
    }

    /// The next segment of a server that is drained.
    fn drained(&mut self, prng: &mut Prng) -> Option<(SegmentId, Incarnation)> {
        let engines = self.table.living().filter(|(_, server)| self.table.is_drained(server));
        let mut owned = engines.flat_map(|(engine, _)| self.table.owned_by(engine));
        let segment = owned.find(|id| {
            self.refusals.of(*id).is_empty() && self.table.segment(*id).is_some_and(|row| self.can_move(*id, &row))
        })?;
        let engine = self.places(1).choose(&self.table, segment, &BTreeSet::new(), None, prng)?;
        let is_better = self.table.server(engine).is_some_and(|server| !self.table.is_drained(server));
        (is_better && !self.doubt.is_missing(engine)).then_some((segment, engine))
    }

    /// A segment from the fullest server to the emptiest one, if one of them is beyond the bound and nobody is being
    /// recovered.
    fn uneven(&self) -> Option<(SegmentId, Incarnation)> {
        let is_calm =
            |(dead, death): (Incarnation, Death)| death.is_recovered && self.table.owned_by(dead).next().is_none();
        if !self.table.deaths().all(is_calm) || self.table.loose().next().is_some() {
            return None;
        }
        let places = self.places(0);
        let usable = || places.servers().iter().filter(|place| place.is_usable());
        let fullest = usable().max_by_key(|place| place.load)?;
        let emptiest = usable().min_by_key(|place| place.load)?;
        if fullest.load <= places.bound() || fullest.load <= emptiest.load + 1 {
            return None;
        }
        let engines_of = |name: &str| {
            let name = name.to_owned();
            self.table.living().filter(move |(_, server)| *server == name).map(|(engine, _)| engine)
        };
        let engine = engines_of(&emptiest.name)
            .filter(|engine| !self.doubt.is_missing(*engine))
            .min_by_key(|engine| self.table.load(*engine))?;
        let from = engines_of(&fullest.name).max_by_key(|engine| self.table.load(*engine))?;
        let mut owned = self.table.owned_by(from);
        let segment = owned.find(|id| {
            self.refusals.of(*id).is_empty() && self.table.segment(*id).is_some_and(|row| self.can_move(*id, &row))
        })?;
        Some((segment, engine))
    }

    /// Whether a segment has an owner that serves it and can release it.
    fn can_move(&self, segment: SegmentId, row: &Segment) -> bool {
        let is_served = row.holder.is_some_and(|holder| self.table.lives(holder) && !self.doubt.is_missing(holder));
        let is_dropping = self.table.volume(segment.volume).is_none_or(|volume| volume.is_dropping);
        is_served && row.assignment.is_none() && !row.is_released && !is_dropping
    }

    pub(super) fn places(&self, more: usize) -> Places {
        Places::new(&self.table, &self.doubt, more, self.settings.over_mean_percent)
    }

    /// Attachments that all owners know of, and volumes of which nothing is left.
    fn plan_volumes(&mut self) {
        for volume in self.touched.volumes.clone() {
            let Some(row) = self.table.volume(volume) else { continue };
            if row.is_dropping {
                self.plan_drop(volume);
            } else if row.generation > row.attached && self.knows(volume) {
                self.log(Change::Attached { volume, generation: row.generation });
                self.forget_recorded(volume);
                self.say(Order::Attached { volume, generation: row.generation });
            }
        }
    }

    fn plan_drop(&mut self, volume: VolumeId) {
        self.forget_recorded(volume);
        let never_created = |row: &Segment| row.holder.is_none() && row.assignment.is_none() && !row.is_dropped;
        let rows = self.table.segments_of(volume);
        let never: Vec<_> = rows.filter(|(_, row)| never_created(row)).map(|(id, row)| (id, row.epoch)).collect();
        for (segment, epoch) in never {
            self.log(Change::Dropped { segment, epoch });
        }
        if self.has(Flaw::DropsBeside) {
            self.drop_beside(volume);
        }
        if self.table.segments_of(volume).all(|(_, row)| row.is_dropped) {
            self.log(Change::Forget(volume));
            self.refusals.forget_volume(volume);
            self.say(Order::Gone { volume });
        }
    }

    /// [`Flaw::DropsBeside`].
    fn drop_beside(&mut self, volume: VolumeId) {
        let rows: Vec<_> = self.table.segments_of(volume).collect();
        for (segment, row) in rows {
            if let Some(assignment) = row.assignment {
                self.log(Change::Revoke { segment, epoch: assignment.epoch });
                self.log(Change::Dropped { segment, epoch: row.epoch });
            }
        }
    }

    /// Whether the owner of each segment has recorded the newest attachment.
    fn knows(&self, volume: VolumeId) -> bool {
        let beside = self.has(Flaw::AttachesBeside);
        self.table.segments_of(volume).all(|(id, row)| {
            let is_settled =
                row.assignment.is_none() && !row.is_released && row.holder.is_some_and(|h| self.table.lives(h));
            (is_settled && self.has_recorded(id, &row)) || (!is_settled && beside)
        })
    }

    fn has_recorded(&self, segment: SegmentId, row: &Segment) -> bool {
        let newest = self.table.volume(segment.volume).map(|volume| volume.generation);
        let recorded = self.recorded.get(&segment).filter(|(epoch, _)| *epoch == row.epoch);
        recorded.is_some_and(|(_, generation)| Some(*generation) >= newest)
    }

    fn forget_recorded(&mut self, volume: VolumeId) {
        self.recorded.retain(|segment, _| segment.volume != volume);
    }

    /// Says what follows from the table for all that has changed.
    fn say_due(&mut self, touched: Touched) {
        let dead: Vec<Order> = touched.dead.into_iter().filter_map(|dead| self.due_of_dead(dead)).collect();
        let segments = touched.segments.into_iter().filter_map(|segment| self.due(segment));
        let orders: Vec<Order> = dead.into_iter().chain(segments).collect();
        orders.into_iter().for_each(|order| self.say(order));
    }

    /// What is asked for a segment, as the table is.
    pub fn due(&self, segment: SegmentId) -> Option<Order> {
        let row = self.table.segment(segment)?;
        let volume = self.table.volume(segment.volume)?;
        let (epoch, generation) = (row.epoch, volume.generation);
        let holder = row.holder.map(|holder| (holder, self.table.lives(holder)));
        match (row.assignment.filter(|assignment| self.table.lives(assignment.engine)), holder) {
            (Some(next), None) => Some(Order::Create { engine: next.engine, segment, epoch: next.epoch, generation }),
            (Some(next), Some((source, _))) if row.is_released || self.table.is_recovered(source) => {
                Some(Order::Adopt {
                    engine: next.engine,
                    segment,
                    epoch: next.epoch,
                    source,
                    source_epoch: epoch,
                    generation,
                })
            }
            (Some(next), Some((engine, true))) => Some(Order::Release { engine, segment, epoch, next: next.epoch }),
            (None, Some((engine, true))) if row.assignment.is_none() && !row.is_released => {
                let is_attaching = generation > volume.attached && !self.has_recorded(segment, &row);
                match volume.is_dropping {
                    true => Some(Order::Drop { engine, segment, epoch }),
                    false => is_attaching.then_some(Order::Reattach { engine, segment, epoch, generation }),
                }
            }
            _ => None,
        }
    }

    /// What is asked for a dead engine, as the table is.
    fn due_of_dead(&self, dead: Incarnation) -> Option<Order> {
        let death = self.table.death(dead)?;
        match death.recoverer.filter(|recoverer| self.table.lives(*recoverer)) {
            _ if !death.is_fenced => Some(Order::Fence { dead }),
            _ if death.is_recovered => self.table.is_needless(dead).then_some(Order::Delete { dead }),
            recoverer => recoverer.map(|recoverer| Order::Recover { dead, recoverer }),
        }
    }
}
