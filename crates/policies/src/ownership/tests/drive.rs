//! One run: managers that follow each other, a network that loses, delays and repeats, engines that die and wake up.

use std::collections::BTreeMap;

use base::{Epoch, Generation, Incarnation, Instant, SegmentId, Term, VolumeId};

use super::super::placing::bound;
use super::world::{Engine, Role, World};
use super::*;

const STEPS: usize = 500;

/// What has happened, in all runs together.
#[derive(Default, Debug)]
pub(super) struct Seen {
    moves: u64,
    adopted_from_dead: u64,
    refusals: u64,
    managers: u64,
    deposed: u64,
    replaced_recoverers: u64,
    revoked: u64,
    attached: u64,
    gone: u64,
    doubts: u64,
    zombies: u64,
    writes: u64,
}

impl Seen {
    pub(super) fn add(&mut self, other: &Seen) {
        let Seen { moves, adopted_from_dead, refusals, managers, deposed, replaced_recoverers, .. } = other;
        self.moves += moves;
        self.adopted_from_dead += adopted_from_dead;
        self.refusals += refusals;
        self.managers += managers;
        self.deposed += deposed;
        self.replaced_recoverers += replaced_recoverers;
        self.revoked += other.revoked;
        self.attached += other.attached;
        self.gone += other.gone;
        self.doubts += other.doubts;
        self.zombies += other.zombies;
        self.writes += other.writes;
    }

    pub(super) fn assert_all(&self) {
        println!("{self:?}");
        let Seen { moves, adopted_from_dead, refusals, managers, deposed, replaced_recoverers, .. } = *self;
        let first = [moves, adopted_from_dead, refusals, managers, deposed, replaced_recoverers];
        let second = [self.revoked, self.attached, self.gone, self.doubts, self.zombies, self.writes];
        assert!(first.iter().chain(&second).all(|count| *count > 100), "{self:?}");
    }
}

struct Drive {
    prng: Prng,
    /// How often engines die, of 4. Where none does, segments move between a few, and messages come late.
    harm: u64,
    flaws: Flaws,
    world: World,
    /// What is durable of the table, and all of its log.
    table: Table,
    log: Vec<Change>,
    /// The last one is in charge; those before do not know yet that they are not.
    managers: Vec<Manager>,
    orders: Vec<Message>,
    reports: Vec<Report>,
    /// What was asked under each epoch.
    epochs: BTreeMap<Epoch, (SegmentId, Incarnation)>,
    now: Instant,
    last_engine: u64,
    last_volume: u64,
    last_generation: u64,
    seen: Seen,
}

pub(super) fn run(seed: u64, flaws: Flaws) -> Result<Seen, String> {
    let mut prng = Prng::new(seed);
    let mut world = World::default();
    (world.flaw, world.refuses) = (flaws.world, prng.one_in(2));
    let mut drive = Drive {
        harm: prng.below(5),
        prng,
        flaws,
        world,
        table: Table::default(),
        log: vec![],
        managers: vec![],
        orders: vec![],
        reports: vec![],
        epochs: BTreeMap::new(),
        now: Instant::ZERO,
        last_engine: 0,
        last_volume: 0,
        last_generation: 0,
        seen: Seen::default(),
    };
    drive.take_over();
    let engines = if drive.harm == 0 { 2 } else { drive.prng.between(3, 6) };
    for _ in 0..engines {
        drive.start_engine();
    }
    for _ in 0..STEPS {
        drive.step();
        drive.verdict()?;
    }
    drive.heal()?;
    Ok(drive.seen)
}

impl Drive {
    fn verdict(&mut self) -> Result<(), String> {
        for manager in &self.managers {
            manager.check_invariants();
        }
        self.world.broken.take().map_or(Ok(()), Err)
    }

    fn step(&mut self) {
        self.now = Instant(self.now.0 + self.prng.below(50_000_000));
        match self.prng.below(100) {
            0..20 => self.write_log(),
            20..50 => self.deliver_order(),
            50..65 => self.deliver_report(),
            65..83 => self.land(),
            83..86 => self.client_writes(),
            86 if self.prng.below(4) < self.harm => self.kill(),
            87 if self.prng.below(4) < self.harm => self.start_engine(),
            88 => self.notice(),
            89 if self.prng.below(4) < self.harm => self.cut(),
            90..92 => self.wish(),
            92..94 => self.time_passes(),
            94 => self.register(),
            95 if self.prng.one_in(3) => self.take_over(),
            96 => self.repeat(),
            97 => self.lose(),
            // Where much goes wrong, a recoverer takes its time.
            98 if self.harm > 0 && self.prng.one_in(self.harm) => self.seal(),
            99 if self.harm == 0 => self.wish(),
            _ => {}
        }
    }

    /// Usually who is in charge, sometimes one who believes to be.
    fn manager(&mut self) -> usize {
        let last = self.managers.len() - 1;
        if self.prng.one_in(4) { self.prng.below(last as u64 + 1) as usize } else { last }
    }

    fn take_over(&mut self) {
        let term = Term(self.table.term().0 + 1);
        let random = self.prng.next_u64();
        let mut manager = Manager::take_over(Settings::default(), self.table.clone(), term, self.now, random).unwrap();
        manager.flaw = self.flaws.manager;
        // The log is the new one's from here on.
        let begin = manager.unlogged()[0].clone();
        self.append(&begin);
        let said = manager.on_logged(1);
        self.say(said);
        if self.prng.one_in(2) {
            self.managers.clear();
        }
        self.managers.push(manager);
        self.managers.drain(..self.managers.len().saturating_sub(3));
        self.seen.managers += 1;
    }

    fn append(&mut self, change: &Change) {
        match change {
            Change::Assign { segment, epoch, engine } => {
                let former = self.epochs.insert(*epoch, (*segment, *engine));
                if former.is_some_and(|former| former != (*segment, *engine)) {
                    self.world.break_down(format!("{epoch} was used for {former:?} before"));
                }
            }
            Change::Recoverer { dead, .. }
                if self.table.death(*dead).is_some_and(|death| death.recoverer.is_some()) =>
            {
                self.seen.replaced_recoverers += 1;
            }
            Change::Dropped { segment, .. } => self.world.on_dropped(*segment),
            Change::Revoke { .. } => self.seen.revoked += 1,
            Change::Adopted { segment, .. } => {
                let former = self.table.segment(*segment).and_then(|row| row.holder);
                match former.map(|former| self.table.lives(former)) {
                    Some(true) => self.seen.moves += 1,
                    Some(false) => self.seen.adopted_from_dead += 1,
                    None => {}
                }
            }
            _ => {}
        }
        if let Err(error) = self.table.check(change) {
            return self.world.break_down(format!("the log has what does not follow: {error}"));
        }
        self.table.apply(change);
        self.table.check_invariants();
        self.log.push(change.clone());
    }

    /// A manager logs a part of what it has decided, and says what may be said then.
    fn write_log(&mut self) {
        let index = self.manager();
        let count = self.prng.below(self.managers[index].unlogged().len() as u64 + 1) as usize;
        self.write_some(index, count);
    }

    fn write_some(&mut self, index: usize, count: usize) {
        let changes = self.managers[index].unlogged()[..count].to_vec();
        let in_charge = self.managers[index].term() == self.table.term();
        if !in_charge && count > 0 && self.flaws.world != Some(WorldFlaw::OldManagerWrites) {
            self.managers.remove(index);
            self.seen.deposed += 1;
            return;
        }
        if in_charge && self.flaws.world == Some(WorldFlaw::SaysTooEarly) && self.prng.one_in(20) {
            // It says everything, dies, and nothing of it was written.
            let count = self.managers[index].unlogged().len();
            let said = self.managers[index].on_logged(count);
            self.say(said);
            return self.take_over();
        }
        if in_charge {
            changes.iter().for_each(|change| self.append(change));
        }
        let said = self.managers[index].on_logged(count);
        self.say(said);
    }

    fn say(&mut self, messages: Vec<Message>) {
        for message in messages {
            self.world.on_said(&self.table, &message);
            match message.order {
                Order::Attached { .. } => self.seen.attached += 1,
                Order::Gone { .. } => self.seen.gone += 1,
                Order::Doubt { .. } => self.seen.doubts += 1,
                _ => {}
            }
            self.orders.push(message);
        }
    }

    fn deliver_order(&mut self) {
        if self.orders.is_empty() {
            return;
        }
        let index = self.prng.below(self.orders.len() as u64) as usize;
        let message = match self.prng.below(10) {
            0 => self.orders[index].clone(),
            _ => self.orders.swap_remove(index),
        };
        if !self.prng.one_in(12) {
            self.obey(&message);
        }
    }

    fn obey(&mut self, message: &Message) {
        if let Order::Doubt { missing } = &message.order {
            // Another one misses whoever does not run, and some that do.
            let random = self.prng.next_u64();
            let misses = |id: &&Incarnation| !self.world.engines[id].is_running || random.is_multiple_of(4);
            let confirmed: Vec<_> = missing.iter().filter(misses).copied().collect();
            if let Some(manager) = self.managers.iter_mut().find(|manager| manager.term() == message.term) {
                manager.on_confirmed(self.now, random, &confirmed);
            }
            return;
        }
        let answer = match World::recipient(&message.order) {
            Some(_) => self.world.engine(&mut self.prng, message),
            None => self.world.store(&self.table, message),
        };
        self.reports.extend(answer);
    }

    fn deliver_report(&mut self) {
        if self.reports.is_empty() {
            return;
        }
        let index = self.prng.below(self.reports.len() as u64) as usize;
        let report = match self.prng.below(if self.harm == 0 { 3 } else { 10 }) {
            0 => self.reports[index].clone(),
            _ => self.reports.swap_remove(index),
        };
        if !self.prng.one_in(12) {
            self.tell(&report);
        }
    }

    fn tell(&mut self, report: &Report) {
        self.seen.refusals += u64::from(matches!(report, Report::Refused { .. }));
        let (index, random) = (self.manager(), self.prng.next_u64());
        self.managers[index].on_report(self.now, random, report);
    }

    fn any_engine(&mut self, is_running: bool) -> Option<Incarnation> {
        let engines = self.world.engines.iter().filter(|(_, engine)| engine.is_running == is_running);
        let engines: Vec<_> = engines.map(|(id, _)| *id).collect();
        (!engines.is_empty()).then(|| *self.prng.pick(&engines))
    }

    /// A running engine; rather one that is in the middle of something.
    fn victim(&mut self) -> Option<Incarnation> {
        let is_busy = |engine: &Engine| engine.is_running && (engine.pending.is_some() || engine.recovering.is_some());
        let busy: Vec<_> = self.world.engines.iter().filter(|(_, engine)| is_busy(engine)).map(|(id, _)| *id).collect();
        let id = match busy.is_empty() || self.prng.one_in(2) {
            true => self.any_engine(true)?,
            false => *self.prng.pick(&busy),
        };
        let order = self.orders.iter().position(|message| World::recipient(&message.order) == Some(id));
        match order {
            Some(index) => {
                let message = self.orders.swap_remove(index);
                self.obey(&message);
            }
            None => {
                let owned = self.world.engines[&id].log.holdings.keys().next().copied();
                owned.into_iter().for_each(|segment| self.world.write(id, segment));
            }
        }
        Some(id)
    }

    fn land(&mut self) {
        let busy: Vec<_> =
            self.world.engines.iter().filter(|(_, engine)| engine.pending.is_some()).map(|(id, _)| *id).collect();
        if !busy.is_empty() {
            let id = *self.prng.pick(&busy);
            // What a dead process had sent lies around for a while.
            if !self.world.engines[&id].is_running && !self.prng.one_in(20) {
                return;
            }
            self.reports.extend(self.world.land(&self.table, id));
        }
    }

    fn client_writes(&mut self) {
        let owned = |(id, engine): (&Incarnation, &Engine)| {
            let id = *id;
            let owned = engine.log.holdings.iter().filter(|(_, holding)| holding.role == Role::Owned);
            owned.map(|(segment, _)| (id, *segment)).collect::<Vec<_>>()
        };
        let owned: Vec<_> = self.world.engines.iter().flat_map(owned).collect();
        if !owned.is_empty() {
            let (id, segment) = *self.prng.pick(&owned);
            self.world.write(id, segment);
            self.seen.writes += 1;
        }
    }

    /// A process dies. What it had on its way may still land.
    fn kill(&mut self) {
        if let Some(id) = self.victim() {
            self.world.engines.get_mut(&id).unwrap().is_running = false;
        }
    }

    fn start_engine(&mut self) {
        self.last_engine += 1;
        let server = format!("s{}", self.prng.below(6));
        let mut engine = Engine::default();
        (engine.server, engine.is_running) = (server, true);
        self.world.engines.insert(Incarnation(self.last_engine), engine);
        self.register_one(Incarnation(self.last_engine));
    }

    /// An engine says again that it is there, an old one too.
    fn register(&mut self) {
        if let Some(id) = self.any_engine(true) {
            self.register_one(id);
        }
    }

    fn register_one(&mut self, id: Incarnation) {
        let (index, random) = (self.manager(), self.prng.next_u64());
        let server = self.world.engines[&id].server.clone();
        let taken = self.managers[index].on_registered(self.now, random, id, &server);
        if taken.is_err() {
            self.world.engines.get_mut(&id).unwrap().is_running = false;
        }
    }

    /// A manager notices that an engine has died.
    fn notice(&mut self) {
        if let Some(id) = self.any_engine(false) {
            let (index, random) = (self.manager(), self.prng.next_u64());
            self.managers[index].on_gone(self.now, random, id);
        }
    }

    /// A manager believes that an engine has died, which goes on.
    fn cut(&mut self) {
        if let Some(id) = self.victim() {
            let (index, random) = (self.manager(), self.prng.next_u64());
            match self.prng.below(3) {
                0 => {
                    self.managers[index].on_gone(self.now, random, id);
                    self.seen.zombies += 1;
                }
                1 => self.managers[index].on_lost(id),
                _ => self.managers[index].on_touch(self.now, random, id),
            }
        }
    }

    fn wish(&mut self) {
        let (index, random, now) = (self.manager(), self.prng.next_u64(), self.now);
        let volumes: Vec<VolumeId> = self.table.volumes().map(|(id, _)| id).collect();
        let volume = if volumes.is_empty() { VolumeId(0) } else { *self.prng.pick(&volumes) };
        let manager = &mut self.managers[index];
        // What is not possible is refused.
        let _ = match self.prng.below(12) {
            0..3 if volumes.len() < 3 => {
                self.last_volume += 1;
                manager.create(now, random, VolumeId(self.last_volume), 4 * self.prng.between(1, 2) as u32)
            }
            0..6 => {
                self.last_generation += 1;
                manager.attach(now, random, volume, Generation(self.last_generation))
            }
            6 => manager.drop_volume(now, random, volume),
            7 => {
                let (server, is_drained) = (format!("s{}", self.prng.below(6)), self.prng.one_in(3));
                manager.drain(now, random, &server, is_drained)
            }
            _ => {
                let segment = SegmentId { volume, index: self.prng.below(8) as u32 };
                let engine = Incarnation(self.prng.between(1, self.last_engine));
                manager.move_segment(now, random, segment, Some(engine).filter(|_| self.prng.one_in(2)))
            }
        };
    }

    fn time_passes(&mut self) {
        let (index, random) = (self.manager(), self.prng.next_u64());
        self.managers[index].on_time(self.now, random);
    }

    fn repeat(&mut self) {
        if let Some(id) = self.any_engine(true) {
            self.reports.extend(self.world.repeated(id));
        }
    }

    fn lose(&mut self) {
        self.orders.truncate(self.prng.below(self.orders.len() as u64 + 1) as usize);
        self.reports.truncate(self.prng.below(self.reports.len() as u64 + 1) as usize);
    }

    fn seal(&mut self) {
        if let Some(id) = self.any_engine(true) {
            self.reports.extend(self.world.seal(&self.table, id));
        }
    }

    /// Nothing fails any more: everything comes to an end, and is what it should be.
    fn heal(&mut self) -> Result<(), String> {
        self.world.refuses = false;
        self.managers.drain(..self.managers.len() - 1);
        if self.prng.one_in(2) {
            self.take_over();
            self.managers.drain(..self.managers.len() - 1);
        }
        for name in 0..6 {
            let random = self.prng.next_u64();
            self.managers[0].drain(self.now, random, &format!("s{name}"), false).unwrap();
        }
        self.start_engine();
        for _ in 0..400 {
            self.now = Instant(self.now.0 + 1_000_000_000);
            self.exhaust();
            self.verdict()?;
            let random = self.prng.next_u64();
            let engines: Vec<_> =
                self.world.engines.iter().map(|(id, engine)| (*id, engine.is_running, engine.server.clone())).collect();
            for (id, is_running, server) in engines {
                self.reports.extend(self.world.repeated(id));
                let manager = &mut self.managers[0];
                match is_running {
                    true if manager.on_registered(self.now, random, id, &server).is_err() => {
                        self.world.engines.get_mut(&id).unwrap().is_running = false;
                    }
                    true => {}
                    false => manager.on_gone(self.now, random, id),
                }
            }
            self.managers[0].on_time(self.now, random);
            if self.unsettled().is_none() {
                return self.replays();
            }
        }
        Err(format!("in the end {}", self.unsettled().unwrap_or_default()))
    }

    fn exhaust(&mut self) {
        loop {
            let count = self.managers[0].unlogged().len();
            self.write_some(0, count);
            for id in self.world.engines.keys().copied().collect::<Vec<_>>() {
                self.reports.extend(self.world.land(&self.table, id));
                self.reports.extend(self.world.seal(&self.table, id));
            }
            let (orders, reports) = (std::mem::take(&mut self.orders), std::mem::take(&mut self.reports));
            if count + orders.len() + reports.len() == 0 {
                return;
            }
            for order in orders {
                self.obey(&order);
                for id in self.world.engines.keys().copied().collect::<Vec<_>>() {
                    self.reports.extend(self.world.land(&self.table, id));
                }
            }
            reports.iter().for_each(|report| self.tell(report));
        }
    }

    /// What is not yet as it should be in the end.
    fn unsettled(&self) -> Option<String> {
        let mut loads: BTreeMap<&str, usize> = self.table.living().map(|(_, server)| (server, 0)).collect();
        for (id, row) in self.table.segments() {
            let engine = row.holder.filter(|holder| self.table.lives(*holder) && self.world.engines[holder].is_running);
            let Some(engine) = engine else { return Some(format!("{id} has no living owner: {row:?}")) };
            let holding = self.world.engines[&engine].log.holdings.get(&id).copied().unwrap_or_default();
            if row.assignment.is_some() || (holding.role, holding.epoch) != (Role::Owned, row.epoch) {
                return Some(format!("{id} is {row:?}, and {engine} has {holding:?}"));
            }
            *loads.entry(&self.world.engines[&engine].server).or_default() += 1;
        }
        if let Some((volume, row)) =
            self.table.volumes().find(|(_, row)| row.is_dropping || row.generation > row.attached)
        {
            return Some(format!("{volume} waits: {row:?}"));
        }
        if let Some(death) = self.table.deaths().next() {
            return Some(format!("not everything is done for the dead: {death:?}"));
        }
        let most = bound(loads.values().sum(), loads.len(), Settings::default().over_mean_percent);
        let (server, load) = loads.iter().max_by_key(|(_, load)| **load)?;
        (*load > most).then(|| format!("{server} has {load} segments, and {most} are the most"))
    }

    /// The log gives the table, and so does a checkpoint of it.
    fn replays(&self) -> Result<(), String> {
        for changes in [self.log.clone(), self.table.history()] {
            let mut again = Table::default();
            for change in &changes {
                again.check(change).map_err(|error| format!("a replay: {error}"))?;
                again.apply(change);
            }
            if again != self.table {
                return Err(format!("a replay gives {again:?}, not {:?}", self.table));
            }
        }
        Ok(())
    }
}
