//! Directories that fail, processes that are killed, disks that are put back.

use files::local::agreement::{Fate, plan_failure};
use files::local::superblock::slot_of;

use super::state::{
    Awaited, Backup, Content, Copy, Disk, Kind, Left, Life, Operation, Slot, State, WRITES_MAX, World, newest,
};
use super::step::{SlotFate, Step};
use super::{Flaw, Membership};
use crate::protocol::small_set::SmallSet;

impl World {
    pub(super) fn new(left: Left, disk: Disk) -> World {
        World {
            disks: [disk; 3],
            life: None,
            truths: [None; WRITES_MAX],
            branches: Vec::new(),
            acknowledged: SmallSet::EMPTY,
            members: None,
            backup: None,
            put_back: None,
            left,
            broken: None,
        }
    }
}

impl Disk {
    /// What becomes of the slot that an update numbered `sequence` goes to.
    pub(super) fn write_slot(&mut self, sequence: u8, record: super::state::Record, fate: SlotFate) {
        let slot = &mut self.slots[slot_of(sequence.into()) as usize];
        match fate {
            SlotFate::Lost => {}
            SlotFate::Torn => *slot = Slot::Torn,
            SlotFate::Landed => *slot = Slot::Valid(sequence, record),
        }
    }

    /// Does to the copy of a write what `operation` is about.
    pub(super) fn carry_out(&mut self, operation: &Operation, born_in: SmallSet) {
        let copy = &mut self.copies[operation.write as usize];
        *copy = match operation.kind {
            Kind::Create => Some(Copy { content: Content::Empty, born_in }),
            Kind::Append => copy.map(|copy| Copy { content: Content::Written, ..copy }),
            Kind::Seal => copy.map(|copy| Copy { content: Content::Sealed, ..copy }),
            Kind::Delete => None,
        };
    }
}

impl Operation {
    /// Every copy that it is about.
    pub(super) fn all(&self) -> SmallSet {
        self.pending.or(self.done).or(self.failed)
    }
}

impl Membership {
    /// `Local::on_directory_failure`.
    pub(super) fn on_failure(&self, life: &mut Life, directory: usize) {
        let fate = match life.states[directory] {
            State::NotGiven | State::Failed | State::Missing => return,
            State::Joining | State::Resynchronizing(_) => Fate::Excluded,
            State::Member if self.has(Flaw::ExcludesOnlyCopies) => plan_failure(life.members().len() == 1, false),
            State::Member => plan_failure(life.members().len() == 1, needs(life, directory)),
        };
        match fate {
            Fate::Suspect => life.suspect = life.suspect.with(directory),
            Fate::Excluded => {
                life.states[directory] = State::Failed;
                detach_all(life, directory);
                if let Some(operation) = &mut life.operation {
                    operation.stale = operation.stale.with(directory);
                }
                life.wanted = true;
                life.unsettled = Some(Awaited::Next);
            }
        }
    }

    /// The process is killed. What it had under way is done or not: nobody starts before that is settled, because the
    /// locks of the files say so.
    pub(super) fn kill(&self, world: &World, life: &Life, lead: &mut dyn FnMut(Step, World)) {
        let slots = life.publication.map_or(SmallSet::EMPTY, |publication| publication.pending);
        let pending = life.operation.map_or(SmallSet::EMPTY, |operation| operation.pending);
        for fates in fates_of(slots) {
            for copies in pending.subsets() {
                let mut next = World { life: None, ..world.clone() };
                for directory in slots.iter() {
                    let (Some(fate), Some(publication)) = (fates[directory], life.publication) else { continue };
                    next.disks[directory].write_slot(life.sequences[directory] + 1, publication.record, fate);
                }
                for directory in copies.iter() {
                    let Some(operation) = life.operation else { continue };
                    next.disks[directory].carry_out(&operation, operation.all());
                }
                lead(Step::Kill { slots: fates, copies }, next);
            }
        }
    }

    /// A disk is put back, with nobody running: an older state than the last two publications, of a disk that is not
    /// the only current one.
    pub(super) fn put_back(&self, world: &World, lead: &mut dyn FnMut(Step, World)) {
        let Some(Backup { directory, disk, publications: 2 }) = world.backup else { return };
        let directory = directory as usize;
        let mut next = World { backup: None, put_back: Some(directory as u8), ..world.clone() };
        next.disks[directory] = disk;
        if !current(&next).is_empty() {
            lead(Step::PutBack(directory), next);
        }
    }
}

/// The members of the newest agreement that were not put back. Whoever was put back has to be given with one of them
/// to be found out.
pub(super) fn current(world: &World) -> SmallSet {
    let put_back = world.put_back.map(usize::from);
    let record = |directory: usize| newest(&world.disks[directory]).map(|(_, record)| record);
    let known = (0..world.disks.len()).filter(|directory| Some(*directory) != put_back);
    let newest = known.filter_map(record).max_by_key(|record| (record.incarnation, record.publication));
    newest.map_or(SmallSet::EMPTY, |newest| {
        let there = newest.members.iter().filter(|directory| Some(*directory) != put_back);
        there.filter(|directory| record(*directory).is_some_and(|own| own.publication >= newest.agreed)).collect()
    })
}

/// `Catalogue::needs`.
fn needs(life: &Life, directory: usize) -> bool {
    life.catalogue.iter().flatten().any(|entry| {
        let elsewhere = entry.attached.and(life.members()).without(directory);
        !entry.attached.is_empty() && elsewhere.is_empty()
    })
}

/// `Catalogue::detach_all`.
pub(super) fn detach_all(life: &mut Life, directory: usize) {
    for entry in life.catalogue.iter_mut().flatten() {
        entry.attached = entry.attached.without(directory);
    }
}

/// Every combination of fates of the slots in these directories.
fn fates_of(slots: SmallSet) -> Vec<[Option<SlotFate>; 3]> {
    let mut all = vec![[None; 3]];
    for directory in slots.iter() {
        let with = |fates: &[Option<SlotFate>; 3]| {
            let fates = *fates;
            SlotFate::ALL.map(move |fate| {
                let mut fates = fates;
                fates[directory] = Some(fate);
                fates
            })
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}
