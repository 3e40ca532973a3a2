//! What clients ask for: `Local::create_file`, `start_append`, `seal_file` and `delete_file`.

use super::state::{Content, Entry, Kind, Life, Operation, Stage, Truth, World};
use super::step::{Asked, Step};
use super::{Flaw, Membership};
use crate::protocol::small_set::SmallSet;

impl Membership {
    /// What may happen to what clients asked for.
    pub(super) fn operate(&self, world: &World, life: &Life, lead: &mut dyn FnMut(Step, World)) {
        match life.operation {
            None if life.stage == Stage::Serving => {
                self.begin_write(world, life, lead);
                self.begin_others(world, life, lead);
                self.take_image(world, life, lead);
            }
            None => {}
            Some(operation) => {
                for directory in operation.pending.iter() {
                    lead(Step::CopyLands(directory), self.resolve(world, directory, true, false));
                    if world.left.failures > 0 {
                        lead(Step::CopyFails(directory, true), self.resolve(world, directory, true, true));
                        lead(Step::CopyFails(directory, false), self.resolve(world, directory, false, true));
                    }
                }
            }
        }
    }

    fn begin_write(&self, world: &World, life: &Life, lead: &mut dyn FnMut(Step, World)) {
        let Some(write) = world.truths.iter().position(Option::is_none).filter(|_| world.left.writes > 0) else {
            return;
        };
        let trusted = life.members().minus(life.suspect);
        let places = if trusted.is_empty() { life.members() } else { trusted };
        let copies = self.copies.min(places.len());
        for to in places.subsets().filter(|to| to.len() == copies) {
            let mut next = world.clone();
            next.left.writes -= 1;
            next.change(|world, life| {
                world.truths[write] = Some(Truth { file: life.next_file });
                life.next_file += 1;
                life.operation = Some(Operation::new(Kind::Create, write, to));
            });
            lead(Step::Begin(Asked::Write, write, to), next);
        }
    }

    fn begin_others(&self, world: &World, life: &Life, lead: &mut dyn FnMut(Step, World)) {
        for (write, entry) in life.catalogue.iter().enumerate().filter_map(|(write, entry)| Some((write, (*entry)?))) {
            if entry.deleted {
                continue;
            }
            let mut begin = |asked: Asked, to: SmallSet| {
                let mut next = world.clone();
                next.change(|world, life| {
                    life.operation = Some(Operation::new(asked.kind(), write, to));
                    match asked {
                        Asked::Delete => {
                            world.left.deletions -= 1;
                            world.branch_mut(life.record.lineage()).forget(write);
                            life.catalogue[write] = Some(Entry { deleted: true, ..entry });
                        }
                        Asked::Seal => world.left.seals -= 1,
                        Asked::Write => {}
                    }
                    self.complete(world, life);
                });
                lead(Step::Begin(asked, write, to), next);
            };
            if world.left.deletions > 0 {
                begin(Asked::Delete, entry.attached);
            }
            if world.left.seals > 0 && !entry.sealed && !life.live(write).is_empty() {
                begin(Asked::Seal, life.live(write));
            }
        }
    }

    fn take_image(&self, world: &World, life: &Life, lead: &mut dyn FnMut(Step, World)) {
        if world.left.backups == 0 || world.backup.is_some() {
            return;
        }
        for directory in life.members().iter() {
            let mut next = world.clone();
            next.left.backups -= 1;
            let (disk, directory) = (world.disks[directory], directory as u8);
            next.backup = Some(super::state::Backup { directory, disk, publications: 0 });
            lead(Step::Image(directory.into()), next);
        }
    }

    /// What was to be done in one directory is done, or not, or is done and looks as if not.
    fn resolve(&self, world: &World, directory: usize, is_done: bool, fails: bool) -> World {
        let mut next = world.clone();
        next.left.failures -= u8::from(fails);
        next.change(|world, life| {
            let Some(operation) = &mut life.operation else { return };
            operation.pending = operation.pending.without(directory);
            match fails {
                true => operation.failed = operation.failed.with(directory),
                false => operation.done = operation.done.with(directory),
            }
            if is_done {
                world.disks[directory].carry_out(operation, operation.all());
            }
            self.complete(world, life);
        });
        next
    }

    /// Goes on when every copy is done with.
    fn complete(&self, world: &mut World, life: &mut Life) {
        let Some(operation) = life.operation.filter(|operation| operation.pending.is_empty()) else { return };
        let write = operation.write as usize;
        operation.failed.iter().for_each(|directory| self.on_failure(life, directory));
        let failed_in_member = !operation.failed.and(life.members()).is_empty();
        match operation.kind {
            Kind::Create => {
                let stale = if self.has(Flaw::CountsCopiesFromBefore) { SmallSet::EMPTY } else { operation.stale };
                let attached = operation.done.minus(stale).and(life.members());
                if !operation.failed.is_empty() || attached.is_empty() {
                    // It is tried again elsewhere, which is the same as another write.
                    operation.done.iter().for_each(|directory| world.disks[directory].copies[write] = None);
                    life.operation = None;
                    return;
                }
                life.catalogue[write] = Some(Entry { attached, sealed: false, deleted: false });
            }
            Kind::Seal | Kind::Delete if failed_in_member => return self.on_error(world, life),
            Kind::Append | Kind::Seal | Kind::Delete => {}
        }
        if self.has(Flaw::ConfirmsBeforeExclusion) || self.settle(life) {
            self.on_settled(world, life);
        }
    }

    /// What was waited for is published: the operation ends, or goes on.
    pub(super) fn on_settled(&self, world: &mut World, life: &mut Life) {
        let Some(operation) = life.operation.take() else { return };
        let write = operation.write as usize;
        let live = life.live(write);
        match operation.kind {
            Kind::Create if !live.is_empty() => life.operation = Some(Operation::new(Kind::Append, write, live)),
            Kind::Append if !live.is_empty() && live.is_in(operation.done) => {
                world.acknowledged = world.acknowledged.with(write);
                let branch = world.branch_mut(life.record.lineage());
                branch.expected = branch.expected.with(write);
            }
            Kind::Create | Kind::Append => {}
            Kind::Seal => {
                if let Some(entry) = life.catalogue[write].as_mut().filter(|_| !live.and(operation.done).is_empty()) {
                    entry.sealed = true;
                }
            }
            Kind::Delete => {
                life.catalogue[write] = None;
                let branch = world.branch_mut(life.record.lineage());
                branch.gone = branch.gone.with(write);
            }
        }
    }

    /// It ends, and nobody knows how.
    pub(super) fn on_error(&self, _world: &mut World, life: &mut Life) {
        let Some(operation) = life.operation.take() else { return };
        if let Some(entry) =
            life.catalogue[operation.write as usize].as_mut().filter(|_| operation.kind == Kind::Delete)
        {
            entry.deleted = false;
        }
    }

    /// What the engine does before it serves: an unsealed file of an earlier life is brought to what any of its copies
    /// has, and sealed; one without content is deleted.
    pub(super) fn recover(&self, world: &mut World, life: &mut Life) {
        for write in 0..life.catalogue.len() {
            let Some(entry) = life.catalogue[write].filter(|entry| !entry.sealed) else { continue };
            let live = life.live(write);
            let holds = |directory: usize| {
                world.disks[directory].copies[write].is_some_and(|copy| copy.content >= Content::Written)
            };
            let is_written = live.iter().any(holds);
            for directory in live.iter() {
                let copy = &mut world.disks[directory].copies[write];
                *copy = copy.filter(|_| is_written).map(|copy| super::state::Copy { content: Content::Sealed, ..copy });
            }
            life.catalogue[write] = is_written.then_some(Entry { sealed: true, ..entry });
        }
        life.stage = Stage::Serving;
    }
}

impl Operation {
    fn new(kind: Kind, write: usize, to: SmallSet) -> Operation {
        let (done, failed, stale) = (SmallSet::EMPTY, SmallSet::EMPTY, SmallSet::EMPTY);
        Operation { kind, write: write as u8, pending: to, done, failed, stale, awaits: None }
    }
}
