//! Publications: `Local::run_publications` and what it calls.

use files::local::agreement::{Conclusion, Written, plan_conclusion, plan_publication};

use super::Membership;
use super::state::{Awaited, Backup, Life, Publication, Record, Stage, State, World, member};
use super::step::{SlotFate, Step};
use crate::protocol::small_set::SmallSet;

impl Membership {
    /// What may happen to publications.
    pub(super) fn publish(&self, world: &World, life: &Life, lead: &mut dyn FnMut(Step, World)) {
        let Some(publication) = life.publication else {
            if life.wanted {
                let mut next = world.clone();
                next.change(|world, life| self.begin_publication(world, life));
                lead(Step::Publish, next);
            }
            return;
        };
        for directory in publication.pending.iter() {
            let resolved = |fate: SlotFate, fails: bool| {
                let mut next = world.clone();
                next.left.failures -= u8::from(fails);
                next.change(|world, life| {
                    let sequence = life.sequences[directory] + 1;
                    world.disks[directory].write_slot(sequence, publication.record, fate);
                    let Some(publication) = &mut life.publication else { return };
                    publication.pending = publication.pending.without(directory);
                    match fails {
                        true => publication.failed = publication.failed.with(directory),
                        false => life.sequences[directory] = sequence,
                    }
                    self.conclude(world, life);
                });
                next
            };
            lead(Step::Lands(directory), resolved(SlotFate::Landed, false));
            if world.left.failures > 0 {
                SlotFate::ALL.into_iter().for_each(|fate| lead(Step::Fails(directory, fate), resolved(fate, true)));
            }
        }
    }

    /// `Local::publish_once`, up to the writes: first to those who join, if there are any.
    fn begin_publication(&self, world: &mut World, life: &mut Life) {
        life.wanted = false;
        life.unsettled = life.unsettled.map(|_| Awaited::Present);
        if let Some(operation) = &mut life.operation {
            operation.awaits = operation.awaits.map(|_| Awaited::Present);
        }
        let joining = life.in_state(State::Joining);
        match life.agreed.filter(|_| !joining.is_empty()) {
            Some(agreed) => {
                life.publication = Some(Publication {
                    record: agreed,
                    introducing: true,
                    to: joining,
                    pending: joining,
                    failed: SmallSet::EMPTY,
                });
            }
            None => self.publish_next(world, life, joining),
        }
    }

    /// The same, with those who join and know what was agreed on before.
    fn publish_next(&self, world: &mut World, life: &mut Life, joining: SmallSet) {
        let to = life.members().or(joining.and(life.in_state(State::Joining)));
        let members = to.iter().map(member).collect();
        let next = plan_publication(&life.record.expand(), members, life.next_file);
        world.members = world.members.filter(|members| *members == to);
        life.record = Record::shrink(&next);
        life.publication =
            Some(Publication { record: life.record, introducing: false, to, pending: to, failed: SmallSet::EMPTY });
        self.conclude(world, life);
    }

    /// The rest of it, when every write is done.
    fn conclude(&self, world: &mut World, life: &mut Life) {
        let Some(publication) = life.publication.filter(|publication| publication.pending.is_empty()) else { return };
        if publication.introducing {
            publication.failed.iter().for_each(|directory| self.on_failure(life, directory));
            return self.publish_next(world, life, publication.to);
        }
        let same = publication.record.generation == life.agreed_generation;
        let written = publication.to.iter().map(|directory| {
            if !publication.failed.has(directory) {
                return Written::Yes;
            }
            self.on_failure(life, directory);
            match life.states[directory] {
                State::Member => Written::StillMember,
                _ => Written::Excluded,
            }
        });
        let written = written.collect::<Vec<_>>();
        life.publication = None;
        match plan_conclusion(&written, same) {
            Conclusion::Again => self.begin_publication(world, life),
            Conclusion::Failed => self.on_failed(world, life, publication.to),
            Conclusion::Published { complete } => {
                for directory in publication.to.and(life.in_state(State::Joining)).iter() {
                    life.states[directory] = State::Member;
                    world.put_back = world.put_back.filter(|put_back| usize::from(*put_back) != directory);
                }
                life.agreed_generation = publication.record.generation;
                world.members = Some(publication.to);
                if complete {
                    life.record.agreed = publication.record.publication;
                    life.agreed = Some(publication.record);
                    if let Some(Backup { publications, .. }) = &mut world.backup {
                        *publications = (*publications + 1).min(2);
                    }
                }
                self.on_published(world, life);
            }
        }
    }

    fn on_published(&self, world: &mut World, life: &mut Life) {
        life.unsettled = life.unsettled.filter(|unsettled| *unsettled == Awaited::Next);
        match life.stage {
            Stage::First => {
                life.stage = Stage::Second;
                life.wanted = true;
            }
            Stage::Second => {
                life.stage = Stage::Recovering;
                self.finish(world, life);
            }
            Stage::Recovering | Stage::Serving => {}
        }
        if life.operation.is_some_and(|operation| operation.awaits == Some(Awaited::Present)) {
            self.on_settled(world, life);
        }
    }

    fn on_failed(&self, world: &mut World, life: &mut Life, to: SmallSet) {
        if matches!(life.stage, Stage::First | Stage::Second) {
            // The start fails, and the process ends.
            life.states = [State::NotGiven; 3];
            return;
        }
        // Whoever wanted to join did not, and whoever waited is told.
        to.and(life.in_state(State::Joining)).iter().for_each(|directory| self.on_failure(life, directory));
        if life.operation.is_some_and(|operation| operation.awaits == Some(Awaited::Present)) {
            self.on_error(world, life);
        }
    }

    /// `Local::settle`: whether nothing has to be published before anything is confirmed. If not, the operation waits.
    pub(super) fn settle(&self, life: &mut Life) -> bool {
        let Some(unsettled) = life.unsettled else { return true };
        let is_running = life.publication.is_some() || life.wanted;
        let awaits = if is_running { unsettled } else { Awaited::Next };
        if !is_running {
            life.wanted = true;
            life.unsettled = Some(Awaited::Next);
        }
        if let Some(operation) = &mut life.operation {
            operation.awaits = Some(awaits);
        }
        false
    }
}

impl World {
    /// Changes the life together with the rest. One that has no directories left has ended.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut World, &mut Life)) {
        let mut life = self.life.take().expect("a process runs");
        change(self, &mut life);
        self.life = Some(life).filter(|life| !life.members().or(life.in_state(State::Joining)).is_empty());
    }
}
