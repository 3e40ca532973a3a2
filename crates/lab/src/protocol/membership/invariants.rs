//! What must always hold.

use super::state::{ACKNOWLEDGED, CONVERGES, Content, DELETED, Life, Stage, State, World, newest};
use super::{Membership, resync};
use crate::protocol::explore::Broken;
use crate::protocol::small_set::SmallSet;

impl Membership {
    /// The invariant that does not hold, if one does not.
    pub(super) fn check(&self, world: &World) -> Option<Broken> {
        if let Some(broken) = &world.broken {
            return Some(broken.clone());
        }
        let life = world.life.as_ref().filter(|life| life.stage == Stage::Serving)?;
        let branch = world.branches.iter().find(|branch| branch.lineage == life.record.lineage())?;
        for write in branch.expected.iter() {
            let live = life.live(write);
            if live.is_empty() {
                return Some(Broken::new(ACKNOWLEDGED, format!("write {write} is nowhere")));
            }
            let content = |directory: usize| world.disks[directory].copies[write].map(|copy| copy.content);
            if let Some(stale) = live.iter().find(|directory| content(*directory) < Some(Content::Written)) {
                return Some(Broken::new(ACKNOWLEDGED, format!("write {write} is read from {stale}, which lacks it")));
            }
        }
        if let Some(write) = branch.gone.iter().find(|write| life.catalogue[*write].is_some()) {
            return Some(Broken::new(DELETED, format!("the file of write {write} is there again")));
        }
        self.check_convergence(world, life)
    }

    /// When everything is there and nothing is under way, every copy is where it should be.
    fn check_convergence(&self, world: &World, life: &Life) -> Option<Broken> {
        let is_quiet =
            life.operation.is_none() && life.publication.is_none() && !life.wanted && life.suspect.is_empty();
        let is_underway = |state: &State| {
            matches!(state, State::Joining | State::Failed | State::NotGiven | State::Resynchronizing(_))
        };
        let given = &life.states[..self.directories + self.empty];
        if !is_quiet || given.iter().any(is_underway) {
            return None;
        }
        let out = life.in_state(State::Missing);
        for directory in out.iter() {
            // A directory that was left behind stays out with what only it has; an empty one waits for the next start.
            let reason = resync::only_in(world, life, directory);
            let is_empty = newest(&world.disks[directory]).is_none_or(|(_, record)| record.generation == 0);
            if reason.is_empty() && !is_empty {
                // It is looked for again and again.
                return None;
            }
        }
        if !self.repairs(life).is_empty() {
            return None;
        }
        let wanted = self.copies.min(life.members().len());
        let lacks = |write: &usize| {
            let entry = life.catalogue[*write].filter(|entry| entry.sealed && !entry.deleted);
            entry.is_some_and(|_| life.live(*write).len() < wanted)
        };
        let lacking: SmallSet = (0..life.catalogue.len()).filter(lacks).collect();
        if !lacking.is_empty() {
            return Some(Broken::new(CONVERGES, format!("the files of writes {lacking:?} lack copies")));
        }
        for directory in life.members().iter() {
            // One that was never acknowledged may be left over from a creation that failed.
            for write in resync::copies_in(world, directory).and(world.acknowledged).iter() {
                if !life.catalogue[write].is_some_and(|entry| entry.attached.has(directory)) {
                    return Some(Broken::new(
                        CONVERGES,
                        format!("{directory} has a file of write {write} that nobody knows"),
                    ));
                }
            }
        }
        None
    }
}
