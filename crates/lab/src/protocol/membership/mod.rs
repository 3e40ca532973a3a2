//! Model of the membership of directories (rule 19 of docs/SAFETY.md): superblocks, starts, failures, resynchronization.
//!
//! **What is real.** The decisions are those of `files`: [`plan_open`] (who is a member at a start), [`newest_slot`] and
//! [`slot_of`] (which slot of a superblock counts, which is written), [`plan_publication`], [`plan_conclusion`],
//! [`plan_failure`], [`was_left_behind`] and [`is_only_there`]. What waits for what between them is said again here, in
//! functions that name the ones that they repeat: `files::local::{open, membership, access, lifecycle, resync}`.
//!
//! **What happens.** A process starts with any of the directories, publishes twice, recovers, serves. It creates files
//! with a write in them, seals and deletes them; each touches its copies one after the other, in any order. Any write to
//! a directory may fail, landed or not. A directory that failed may be found again, and is resynchronized file by file.
//! At any moment the process may be killed: each write that was under way has landed, or not, or, in a superblock, is
//! torn. While nobody runs, a disk may be put back to an image of it that was taken earlier.
//!
//! **What is not in it.** Content: a file holds one write, and a copy has it or not. Two processes at once on one
//! directory: locks exclude them; two on different directories do not touch each other, so one after the other is the
//! same. A disk that is put back to one of its last two publications, or while it was the only current one: nobody
//! could notice.
//!
//! **Invariants.**
//! - [`ACKNOWLEDGED`]: while a process serves, each write that was acknowledged on its way is in every copy that is
//!   read; in particular, a start that cannot know is refused.
//! - [`DELETED`]: a file whose deletion was acknowledged does not come back.
//! - [`ONE_FILE`]: no two files of one name are taken for one.
//! - [`NOTHING_LOST`]: what was acknowledged by a process that went on alone is not removed without a person's word.
//! - [`STARTS`]: with all members there, and nothing given up before, a start is not refused.
//! - [`CONVERGES`]: when everything is there and nothing is under way, every directory is a member with all its copies,
//!   or stays out because it alone holds something.
//!
//! [`plan_open`]: files::local::plan::plan_open
//! [`newest_slot`]: files::local::superblock::newest_slot
//! [`slot_of`]: files::local::superblock::slot_of
//! [`plan_publication`]: files::local::agreement::plan_publication
//! [`plan_conclusion`]: files::local::agreement::plan_conclusion
//! [`plan_failure`]: files::local::agreement::plan_failure
//! [`was_left_behind`]: files::local::agreement::was_left_behind
//! [`is_only_there`]: files::local::agreement::is_only_there

mod canonical;
mod failure;
mod invariants;
mod operation;
mod publish;
mod resync;
mod start;
mod state;
mod step;
#[cfg(test)]
mod tests;

use self::state::{DIRECTORIES_MAX, Disk, Stage, World};
use super::explore::{Broken, Model};
use super::small_set::SmallSet;

pub use self::state::{ACKNOWLEDGED, CONVERGES, DELETED, Left, NOTHING_LOST, ONE_FILE, STARTS};
pub use self::step::{SlotFate, Step};

/// The model with its bounds.
#[derive(Clone, Debug)]
pub struct Membership {
    /// Directories of the store, at most three.
    pub directories: usize,
    /// Empty directories besides.
    pub empty: usize,
    /// Copies of a file.
    pub copies: usize,
    /// What was before.
    pub before: Before,
    /// What may happen.
    pub left: Left,
    /// What is wrong with the protocol.
    pub flaw: Option<Flaw>,
}

/// What happened before the model begins. Nobody runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Before {
    /// A store was made; all of its directories know the same.
    Made,
    /// Then directory 1 was excluded in a publication that it missed.
    Excluded,
    /// Then directory 1 missed a write, and was excluded before that was acknowledged.
    MissedAWrite,
}

/// What may be wrong, to see that it would be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// Something is confirmed before the directory that lacks it is excluded for good.
    ConfirmsBeforeExclusion,
    /// A start goes on without members that are missing.
    StartsWithoutMembers,
    /// A start that leaves members behind draws no lineage.
    NoLineage,
    /// A start that leaves members behind goes on with the file ids where it is.
    SameIdsAfterLeaving,
    /// A change of members counts though a member does not know it.
    CountsWhatMembersDoNotKnow,
    /// A directory that failed is looked for before everybody knows that it is excluded.
    LooksTooEarly,
    /// A directory that comes back is a member at once.
    ReadBeforeResync,
    /// A copy that was made before its directory failed counts when the directory is back.
    CountsCopiesFromBefore,
    /// A directory that comes back keeps what nobody knows.
    KeepsUnknownFiles,
    /// A directory that was left behind is made like the others without a look at what only it has.
    RemovesWhatOnlyItHas,
    /// Files are removed from a directory that comes back before it knows who the members are.
    RemovesBeforeTelling,
    /// No record says which publication all members know.
    NothingAgreed,
    /// The only copy of a file may be excluded with its directory.
    ExcludesOnlyCopies,
    /// Nobody makes copies that are missing.
    NoRepair,
    /// A start demands every directory that ever was one, whether it is a member or not.
    DemandsEverything,
}

impl Flaw {
    /// Every one.
    pub const ALL: [Flaw; 15] = [
        Flaw::ConfirmsBeforeExclusion,
        Flaw::StartsWithoutMembers,
        Flaw::NoLineage,
        Flaw::SameIdsAfterLeaving,
        Flaw::CountsWhatMembersDoNotKnow,
        Flaw::LooksTooEarly,
        Flaw::ReadBeforeResync,
        Flaw::CountsCopiesFromBefore,
        Flaw::KeepsUnknownFiles,
        Flaw::RemovesWhatOnlyItHas,
        Flaw::RemovesBeforeTelling,
        Flaw::NothingAgreed,
        Flaw::ExcludesOnlyCopies,
        Flaw::NoRepair,
        Flaw::DemandsEverything,
    ];
}

impl Membership {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn all(&self) -> SmallSet {
        SmallSet::below(self.directories + self.empty)
    }

    fn made(&self) -> World {
        let mut world = World::new(self.left, Disk::default());
        world.left.starts += 1;
        let world = self.serving(&world);
        self.only(&world, |step| matches!(step, Step::Kill { .. }))
    }

    fn excluded(&self) -> World {
        let mut world = self.made();
        world.left.starts += 1;
        world.left.failures += 1;
        // It knows of this life, and which file ids it would give out.
        let mut world = self.started(&world);
        while world.life.as_ref().is_some_and(|life| life.stage != Stage::Second || life.publication.is_none()) {
            world = self.only(&world, |step| matches!(step, Step::Publish | Step::Lands(_)));
        }
        let world = self.only(&world, |step| *step == Step::Fails(1, SlotFate::Lost));
        let world = self.undisturbed(world);
        self.only(&world, |step| matches!(step, Step::Kill { .. }))
    }

    fn missed_a_write(&self) -> World {
        let mut world = self.made();
        world.left.starts += 1;
        world.left.writes += 1;
        world.left.failures += 1;
        let world = self.serving(&world);
        let mut world = self.only(&world, |step| matches!(step, Step::Begin(_, _, to) if to.has(1)));
        for missed in [false, true] {
            for directory in 0..self.copies {
                world = self.only(&world, |step| match missed && directory == 1 {
                    true => *step == Step::CopyFails(directory, false),
                    false => *step == Step::CopyLands(directory),
                });
            }
        }
        while world.acknowledged.is_empty() {
            world = self.only(&world, |step| matches!(step, Step::Publish | Step::Lands(_)));
        }
        self.only(&world, |step| matches!(step, Step::Kill { .. }))
    }

    /// A process starts with all directories.
    fn started(&self, world: &World) -> World {
        let given = SmallSet::below(self.directories);
        self.only(world, |step| matches!(step, Step::Start { given: with, .. } if *with == given))
    }

    /// The same, and nothing goes wrong until it serves.
    fn serving(&self, world: &World) -> World {
        self.undisturbed(self.started(world))
    }

    fn undisturbed(&self, mut world: World) -> World {
        while world.life.as_ref().is_some_and(|life| life.stage != Stage::Serving) {
            world = self.only(&world, |step| matches!(step, Step::Publish | Step::Lands(_) | Step::Recover));
        }
        world
    }

    /// The first of the steps that are meant.
    fn only(&self, world: &World, meant: impl Fn(&Step) -> bool) -> World {
        let mut found = None;
        self.steps(world, &mut |step, next| {
            if found.is_none() && meant(&step) {
                found = Some(next);
            }
        });
        found.expect("one of the steps is possible")
    }
}

impl Model for Membership {
    type State = World;
    type Step = Step;

    fn starts(&self) -> Vec<World> {
        assert!(self.directories + self.empty <= DIRECTORIES_MAX && self.directories > 0);
        vec![match self.before {
            Before::Made => self.made(),
            Before::Excluded => self.excluded(),
            Before::MissedAWrite => self.missed_a_write(),
        }]
    }

    fn steps(&self, world: &World, lead: &mut dyn FnMut(Step, World)) {
        match &world.life {
            None => {
                self.start(world, lead);
                self.put_back(world, lead);
            }
            Some(life) => {
                self.publish(world, life, lead);
                self.resynchronize(world, life, lead);
                self.operate(world, life, lead);
                self.kill(world, life, lead);
            }
        }
    }

    fn canonical(&self, mut world: World) -> World {
        world.canonicalize();
        world
    }

    fn broken(&self, world: &World) -> Option<Broken> {
        self.check(world)
    }
}
