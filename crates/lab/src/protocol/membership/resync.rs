//! Directories that come back, and copies that are missing: `files::local::resync`.

use files::local::agreement::{is_only_there, was_left_behind};

use super::state::{
    Content, Copy, Entry, Life, NOTHING_LOST, ONE_FILE, Resync, Stage, State, WRITES_MAX, World, id_of, newest,
};
use super::step::{SlotFate, Step};
use super::{Flaw, Membership};
use crate::protocol::explore::Broken;
use crate::protocol::small_set::SmallSet;

impl Membership {
    /// What may happen in the background.
    pub(super) fn resynchronize(&self, world: &World, life: &Life, lead: &mut dyn FnMut(Step, World)) {
        if life.stage == Stage::Recovering {
            let mut next = world.clone();
            next.change(|world, life| self.recover(world, life));
            lead(Step::Recover, next);
        }
        if !matches!(life.stage, Stage::Recovering | Stage::Serving) {
            return;
        }
        for directory in 0..life.states.len() {
            let mut step = |step: Step, change: &dyn Fn(&mut World, &mut Life)| {
                let mut next = world.clone();
                next.change(change);
                lead(step, next);
            };
            match life.states[directory] {
                State::Failed | State::Missing if self.may_look(world, life, directory) => {
                    step(Step::Look(directory), &|world, life| self.look_for(world, life, directory));
                }
                State::Resynchronizing(Resync::Telling { left_behind }) => {
                    step(Step::Tell(directory), &|world, life| self.tell(world, life, directory, left_behind, None));
                    if world.left.failures > 0 {
                        for fate in SlotFate::ALL {
                            step(Step::TellFails(directory, fate), &|world, life| {
                                world.left.failures -= 1;
                                self.tell(world, life, directory, left_behind, Some(fate));
                            });
                        }
                    }
                }
                State::Resynchronizing(Resync::Comparing) => {
                    step(Step::Compare(directory), &|world, life| self.compare(world, life, directory));
                }
                State::Resynchronizing(Resync::Removing) => {
                    let unknown = self.unknown_in(world, life, directory);
                    let write = unknown.iter().next();
                    step(Step::Remove(directory, write), &|world, life| match write {
                        Some(write) => remove(world, life, directory, write),
                        None => {
                            life.states[directory] = State::Joining;
                            life.wanted = true;
                        }
                    });
                }
                State::Member if life.suspect.has(directory) => step(Step::Trust(directory), &|_, life| {
                    life.suspect = life.suspect.without(directory);
                    life.wanted = true;
                }),
                _ => {}
            }
        }
        for (write, directory) in self.repairs(life) {
            let mut next = world.clone();
            next.change(|world, life| write_copy(world, life, write, directory));
            lead(Step::Repair(write, directory), next);
        }
    }

    /// Its locks come free when what was being written to it is done. Before its exclusion is published, a superblock
    /// may still turn up that says it is a member.
    fn may_look(&self, world: &World, life: &Life, directory: usize) -> bool {
        let was_member = newest(&world.disks[directory]).is_some_and(|(_, record)| record.generation > 0);
        let is_settled = life.unsettled.is_none() || self.has(Flaw::LooksTooEarly);
        was_member && is_settled && !busy(life).has(directory)
    }

    /// `Local::look_for`.
    fn look_for(&self, world: &mut World, life: &mut Life, directory: usize) {
        let Some((sequence, record)) = newest(&world.disks[directory]) else { return };
        life.sequences[directory] = sequence;
        let left_behind = was_left_behind(&record.expand(), &life.record.expand());
        life.states[directory] = self.on_return(left_behind);
    }

    /// The first part of `Local::bring_up`: whether it stays out, and `Local::tell_members`, which may fail.
    fn tell(&self, world: &mut World, life: &mut Life, directory: usize, left_behind: bool, fails: Option<SlotFate>) {
        if left_behind && !self.has(Flaw::RemovesWhatOnlyItHas) && !only_in(world, life, directory).is_empty() {
            life.states[directory] = State::Missing;
            return;
        }
        life.states[directory] = State::Resynchronizing(Resync::Comparing);
        let Some(agreed) = life.agreed.filter(|_| !self.has(Flaw::RemovesBeforeTelling)) else { return };
        let sequence = life.sequences[directory] + 1;
        world.disks[directory].write_slot(sequence, agreed, fails.unwrap_or(SlotFate::Landed));
        match fails {
            Some(_) => self.on_failure(life, directory),
            None => life.sequences[directory] = sequence,
        }
    }

    /// The second part: `Local::compare` of each file.
    fn compare(&self, world: &mut World, life: &mut Life, directory: usize) {
        for write in copies_in(world, directory).iter() {
            let Some((entry_of, entry)) =
                lookup(world, life, write).filter(|(_, entry)| !entry.deleted && entry.sealed)
            else {
                continue;
            };
            let is_same = world.disks[directory].copies[write].is_some_and(|copy| copy.content == Content::Sealed);
            if !is_same || life.live(entry_of).len() >= self.copies {
                continue;
            }
            if entry_of != write {
                let why = format!("the file of write {write} in {directory} is taken for that of write {entry_of}");
                world.broken = Some(Broken::new(ONE_FILE, why));
            }
            life.catalogue[entry_of] = Some(Entry { attached: entry.attached.with(directory), ..entry });
        }
        life.states[directory] = State::Resynchronizing(Resync::Removing);
    }

    /// What the third part of `Local::bring_up` removes.
    fn unknown_in(&self, world: &World, life: &Life, directory: usize) -> SmallSet {
        if self.has(Flaw::KeepsUnknownFiles) {
            return SmallSet::EMPTY;
        }
        let is_attached = |write: usize| life.catalogue[write].is_some_and(|entry| entry.attached.has(directory));
        copies_in(world, directory).iter().filter(|write| !is_attached(*write)).collect()
    }

    /// `Local::plan_repair` of each file.
    pub(super) fn repairs(&self, life: &Life) -> Vec<(usize, usize)> {
        let members = life.members().minus(life.suspect);
        let mut repairs = Vec::new();
        for (write, entry) in life.catalogue.iter().enumerate() {
            let Some(entry) = entry.filter(|entry| entry.sealed && !entry.deleted) else { continue };
            let trusted = life.live(write).minus(life.suspect);
            let lacks = trusted.len() < self.copies.min(members.len()) && !life.live(write).is_empty();
            // An operation on the file holds its gate.
            let is_gated = life.operation.is_some_and(|operation| operation.write as usize == write);
            if lacks && !is_gated && !self.has(Flaw::NoRepair) {
                repairs.extend(members.minus(entry.attached).iter().map(|directory| (write, directory)));
            }
        }
        repairs
    }
}

/// Directories that something is still being written to.
fn busy(life: &Life) -> SmallSet {
    let slots = life.publication.map_or(SmallSet::EMPTY, |publication| publication.pending);
    life.operation.map_or(slots, |operation| operation.pending.or(slots))
}

/// The writes that a disk has a file of.
pub(super) fn copies_in(world: &World, directory: usize) -> SmallSet {
    (0..WRITES_MAX).filter(|write| world.disks[directory].copies[*write].is_some()).collect()
}

/// What the catalogue knows under the name of a write's file: perhaps that of another one.
fn lookup(world: &World, life: &Life, write: usize) -> Option<(usize, Entry)> {
    let file = world.truths[write]?.file;
    let known = life.catalogue.iter().enumerate().filter_map(|(write, entry)| Some((write, (*entry)?)));
    known.into_iter().find(|(known, _)| world.truths[*known].is_some_and(|truth| truth.file == file))
}

/// `Local::is_only_there`, of each file.
pub(super) fn only_in(world: &World, life: &Life, directory: usize) -> SmallSet {
    let members = life.members().iter().map(id_of).collect::<Vec<_>>();
    let is_only_there = |write: &usize| {
        let Some(copy) = world.disks[directory].copies[*write] else { return false };
        let born_in = copy.born_in.iter().map(id_of).collect::<Vec<_>>();
        is_only_there(lookup(world, life, *write).is_some(), &born_in, &members)
    };
    copies_in(world, directory).iter().filter(is_only_there).collect()
}

fn remove(world: &mut World, life: &Life, directory: usize, write: usize) {
    if let Some((other, _)) = lookup(world, life, write).filter(|(other, _)| *other != write) {
        let why = format!("the file of write {write} in {directory} is removed as if it were that of write {other}");
        world.broken = Some(Broken::new(ONE_FILE, why));
    }
    let copy = world.disks[directory].copies[write].take();
    let branch = *world.branch_mut(life.record.lineage());
    let is_known = branch.expected.or(branch.gone).or(branch.given_up).has(write) || life.catalogue[write].is_some();
    if copy.is_some_and(|copy| copy.content >= Content::Written) && world.acknowledged.has(write) && !is_known {
        let why = format!("write {write} was acknowledged, is in {directory} only, and is removed");
        world.broken.get_or_insert(Broken::new(NOTHING_LOST, why));
    }
}

/// `Local::write_copy`: under another name until it is complete, so it is there or not.
fn write_copy(world: &mut World, life: &mut Life, write: usize, directory: usize) {
    let Some(entry) = life.catalogue[write] else { return };
    let Some(born_in) = entry.attached.iter().find_map(|other| Some(world.disks[other].copies[write]?.born_in)) else {
        return;
    };
    // It takes the place of the first one that is missing.
    let replaced = born_in.minus(entry.attached).iter().next();
    let born_in = replaced.map_or(born_in, |replaced| born_in.without(replaced)).with(directory);
    world.disks[directory].copies[write] = Some(Copy { content: Content::Sealed, born_in });
    life.catalogue[write] = Some(Entry { attached: entry.attached.with(directory), ..entry });
}
