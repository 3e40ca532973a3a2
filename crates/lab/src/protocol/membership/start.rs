//! Starts: `files::local::open`.

use std::path::PathBuf;

use base::{ErrorKind, StoreId};
use files::local::agreement::was_left_behind;
use files::local::plan::{Found, Plan, Role, plan_open};
use files::local::superblock::{LINEAGES_MAX, StoreRecord, Superblock};

use super::failure::current;
use super::state::{
    Branch, Content, DIRECTORIES_MAX, Entry, Life, ONE_FILE, Record, Resync, STARTS, Slot, Stage, State, WRITES_MAX,
    World, id_of, newest,
};
use super::step::{SlotFate, Step};
use super::{Flaw, Membership};
use crate::protocol::explore::Broken;
use crate::protocol::small_set::SmallSet;

impl Membership {
    /// A process starts with some of the directories, if it is not refused.
    pub(super) fn start(&self, world: &World, lead: &mut dyn FnMut(Step, World)) {
        if world.left.starts == 0 {
            return;
        }
        for given in self.all().subsets().filter(|given| !given.is_empty()) {
            // Whoever was put back must be given with somebody who knows better.
            if world.put_back.is_some() && given.and(current(world)).is_empty() {
                continue;
            }
            match self.plan(world, given, false) {
                Ok(plan) => self.open(world, given, &plan, lead),
                Err(refused) => {
                    let has_all = world.members.is_some_and(|members| members.is_in(given)) || given == self.all();
                    if has_all && !world.gave_up() && world.put_back.is_none() {
                        let mut next = world.clone();
                        next.broken = Some(Broken::new(STARTS, refused.message.clone()));
                        lead(Step::Start { given, accepts_missing: false }, next);
                    }
                    if refused.kind == ErrorKind::Invalid
                        && world.left.overrides > 0
                        && let Ok(plan) = self.plan(world, given, true)
                    {
                        self.open(world, given, &plan, lead);
                    }
                }
            }
        }
    }

    /// [`plan_open`] over what is found.
    fn plan(&self, world: &World, given: SmallSet, accepts_missing: bool) -> base::Result<Plan> {
        let found = |directory: usize| {
            let superblock = newest(&world.disks[directory]).map(|(sequence, record)| {
                let mut record = record.expand();
                if self.has(Flaw::NothingAgreed) {
                    record.agreed_publication = 0;
                }
                Superblock { sequence: sequence.into(), directory: id_of(directory), record }
            });
            Found { path: PathBuf::new(), exists: true, superblock }
        };
        let mut found = given.iter().map(found).collect::<Vec<_>>();
        if self.has(Flaw::DemandsEverything) && given != self.all() {
            return Err(base::Error::invalid("a directory is missing"));
        }
        let fresh = u64::from(world.branches.last().map_or(0, |branch| branch.lineage)) + 1;
        if self.has(Flaw::CountsWhatMembersDoNotKnow) {
            make_known(&mut found);
        }
        let mut plan = plan_open(&found, accepts_missing || self.has(Flaw::StartsWithoutMembers), (StoreId(1), fresh))?;
        if self.has(Flaw::SameIdsAfterLeaving) && !plan.missing.is_empty() {
            let highest = given.iter().filter_map(|directory| newest(&world.disks[directory]));
            plan.record.next_file = highest.map(|(_, record)| record.next_file).max().unwrap_or(1);
        }
        let draws_none = self.has(Flaw::NoLineage) || self.has(Flaw::StartsWithoutMembers);
        if draws_none && !plan.missing.is_empty() {
            plan.record.lineages.pop();
        }
        assert!(plan.record.lineages.len() <= LINEAGES_MAX);
        Ok(plan)
    }

    /// `files::local::open`, after the plan.
    fn open(&self, world: &World, given: SmallSet, plan: &Plan, lead: &mut dyn FnMut(Step, World)) {
        let mut next = world.clone();
        next.left.starts -= 1;
        let accepts_missing = !plan.missing.is_empty() && !self.has(Flaw::StartsWithoutMembers);
        let mut record = Record::shrink(&plan.record);
        let mut life = Life::new(record);
        for (directory, role) in given.iter().zip(&plan.roles) {
            let known = newest(&next.disks[directory]);
            life.sequences[directory] = known.map_or(0, |(sequence, _)| sequence);
            life.states[directory] = match role {
                Role::Member => State::Member,
                Role::Returns => {
                    let own = known.map_or(record, |(_, own)| own);
                    self.on_return(was_left_behind(&own.expand(), &plan.record))
                }
                Role::Joins => {
                    // `join`: formed anew, with a record that names nobody.
                    let disk = &mut next.disks[directory];
                    disk.slots = [Slot::Blank; 2];
                    let forming = Record { generation: 0, members: SmallSet::EMPTY, ..record };
                    disk.write_slot(1, forming, SlotFate::Landed);
                    life.sequences[directory] = 1;
                    State::Joining
                }
                Role::Absent => State::Missing,
            };
        }
        record.incarnation += 1;
        life.record = record;
        let members = life.members();
        next.fork(plan, members, accepts_missing);
        if accepts_missing {
            next.left.overrides -= 1;
        }
        if let Err(broken) = scan(&next, &mut life) {
            next.broken = Some(broken);
        }
        next.life = Some(Box::new(life));
        lead(Step::Start { given, accepts_missing }, next);
    }

    /// What a directory is that was away and is there again.
    pub(super) fn on_return(&self, left_behind: bool) -> State {
        match self.has(Flaw::ReadBeforeResync) {
            true => State::Member,
            false => State::Resynchronizing(Resync::Telling { left_behind }),
        }
    }

    /// `Local::finish`: seals that reached some copies are completed.
    pub(super) fn finish(&self, world: &mut World, life: &mut Life) {
        for (write, entry) in life.catalogue.iter().enumerate() {
            let Some(entry) = entry.filter(|entry| entry.sealed) else { continue };
            for directory in entry.attached.and(life.members()).iter() {
                if let Some(copy) = &mut world.disks[directory].copies[write] {
                    copy.content = Content::Sealed;
                }
            }
        }
    }
}

impl Life {
    fn new(record: Record) -> Life {
        Life {
            stage: Stage::First,
            states: [State::NotGiven; DIRECTORIES_MAX],
            suspect: SmallSet::EMPTY,
            sequences: [0; DIRECTORIES_MAX],
            record,
            agreed: None,
            agreed_generation: 0,
            next_file: record.next_file,
            wanted: true,
            unsettled: None,
            publication: None,
            catalogue: [None; WRITES_MAX],
            operation: None,
        }
    }
}

/// As if everybody knew the record with the most changes of members.
fn make_known(found: &mut [Found]) {
    let records = found.iter().filter_map(|found| found.superblock.as_ref()).map(|superblock| &superblock.record);
    let newest = records.max_by_key(|record| (record.generation, record.publication)).cloned();
    for superblock in found.iter_mut().filter_map(|found| found.superblock.as_mut()) {
        if let Some(newest) = &newest
            && newest.has_member(superblock.directory)
        {
            let publication = superblock.record.publication;
            superblock.record = StoreRecord { publication, ..newest.clone() };
        }
    }
}

/// `Local::scan` and `Local::compare_unsealed`: what the members hold. A copy that is shorter than its sealed one is set
/// aside.
fn scan(world: &World, life: &mut Life) -> Result<(), Broken> {
    for write in 0..WRITES_MAX {
        let copy_in = |directory: usize| world.disks[directory].copies[write];
        let holders: SmallSet = life.members().iter().filter(|directory| copy_in(*directory).is_some()).collect();
        let (Some(truth), false) = (world.truths[write], holders.is_empty()) else { continue };
        life.next_file = life.next_file.max(truth.file + 1);
        let others = world.truths[..write]
            .iter()
            .enumerate()
            .filter(|(_, other)| other.is_some_and(|other| other.file == truth.file));
        for (other, _) in others {
            if life.catalogue[other].is_some() {
                let why = format!("the files of write {other} and write {write} have the same name");
                return Err(Broken::new(ONE_FILE, why));
            }
        }
        let content_in = |directory: usize| copy_in(directory).map(|copy| copy.content);
        let sealed = holders.iter().any(|directory| content_in(directory) == Some(Content::Sealed));
        let is_stale = |directory: usize| sealed && content_in(directory) == Some(Content::Empty);
        let attached = holders.iter().filter(|directory| !is_stale(*directory)).collect();
        life.catalogue[write] = Some(Entry { attached, sealed, deleted: false });
    }
    Ok(())
}

impl World {
    /// Whether members were ever left behind.
    fn gave_up(&self) -> bool {
        self.branches.len() > 1
    }

    /// Begins a way of its own, if members were left behind.
    fn fork(&mut self, plan: &Plan, members: SmallSet, accepts_missing: bool) {
        let lineages = &plan.record.lineages;
        let newest = lineages.last().map_or(0, |lineage| *lineage as u8);
        if plan.created {
            let (expected, gone, given_up) = (SmallSet::EMPTY, SmallSet::EMPTY, SmallSet::EMPTY);
            self.branches.push(Branch { lineage: newest, expected, gone, given_up });
        }
        if !accepts_missing {
            return;
        }
        let held = (0..WRITES_MAX).filter(|write| {
            let holds =
                |directory: usize| self.disks[directory].copies[*write].is_some_and(|c| c.content >= Content::Written);
            members.iter().any(holds)
        });
        let held: SmallSet = held.collect();
        let before = lineages.len().checked_sub(2).map_or(newest, |at| lineages[at] as u8);
        let parent = *self.branch_mut(before);
        let exists = |write: usize| members.iter().any(|directory| self.disks[directory].copies[write].is_some());
        let branch = Branch {
            lineage: newest,
            expected: parent.expected.and(held),
            gone: parent.gone.iter().filter(|write| !exists(*write)).collect(),
            given_up: parent.given_up.or(parent.expected.minus(held)),
        };
        match self.branches.iter_mut().find(|branch| branch.lineage == newest) {
            Some(same) => *same = branch,
            None => self.branches.push(branch),
        }
    }

    pub(super) fn branch_mut(&mut self, lineage: u8) -> &mut Branch {
        self.branches.iter_mut().find(|branch| branch.lineage == lineage).expect("every way has a branch")
    }
}

impl Branch {
    /// Its deletion begins: nobody knows any more whether a write must be there.
    pub(super) fn forget(&mut self, write: usize) {
        self.expected = self.expected.without(write);
        self.given_up = self.given_up.with(write);
    }
}
