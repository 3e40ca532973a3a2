//! The process is killed, a directory is lost, and what a killed process had in flight lands late.

use super::super::disk::Change;
use super::state::{Flight, Phase, World};
use super::step::{Fate, Step};
use super::{Flaw, Journal};
use crate::protocol::small_set::SmallSet;

impl Journal {
    /// Killed: what was in flight has landed in each copy for itself, whole, in part, or not at all. A start waits for
    /// the locks of the files, so nothing lands after it.
    pub(super) fn kill(&self, world: &World, lead: &mut dyn FnMut(Step, World)) {
        let flights = match &world.phase {
            Phase::Down => return,
            Phase::Recovering(_) => Vec::new(),
            Phase::Running(writer) => {
                writer.flights.iter().filter(|flight| flight.outcome.is_none()).cloned().collect::<Vec<_>>()
            }
        };
        let down = World { phase: Phase::Down, ..world.clone() };
        self.resolve(&flights, &mut Vec::new(), down, lead);
    }

    fn resolve(&self, flights: &[Flight], fates: &mut Vec<Fate>, world: World, lead: &mut dyn FnMut(Step, World)) {
        let Some((flight, rest)) = flights.split_first() else {
            return lead(Step::Kill(fates.clone()), world);
        };
        for fate in self.fates(flight.blocks.len()) {
            let mut next = world.clone();
            next.place(flight, &fate);
            fates.push(fate);
            self.resolve(rest, fates, next, lead);
            fates.pop();
        }
        if self.has(Flaw::NeitherWaitsNorSeals) {
            let mut next = world;
            for (index, block) in flight.blocks.iter().enumerate() {
                for copy in 0..self.bounds.copies as u8 {
                    let at = flight.at + index as u8;
                    next.late.push(Change::Write { file: flight.file, copy, at, block: *block });
                }
            }
            fates.push(Fate(vec![SmallSet::EMPTY; flight.blocks.len()]));
            self.resolve(rest, fates, next, lead);
            fates.pop();
        }
    }

    /// Nothing, the first block, the last one, or all, in each copy for itself.
    fn fates(&self, blocks: usize) -> Vec<Fate> {
        let mut fates = vec![Fate(vec![SmallSet::EMPTY; blocks])];
        for copy in 0..self.bounds.copies {
            let before = std::mem::take(&mut fates);
            for there in SmallSet::below(blocks).subsets() {
                // With two copies, a last block without the first one is left out: it is the same as nothing.
                if self.bounds.copies == 2 && there == SmallSet::of(1) {
                    continue;
                }
                for fate in &before {
                    let mut fate = fate.clone();
                    there.iter().for_each(|block| fate.0[block] = fate.0[block].with(copy));
                    fates.push(fate);
                }
            }
        }
        fates
    }

    /// Nobody runs, and one of the directories is gone for good, in which nothing is that is nowhere else.
    pub(super) fn lose(&self, world: &World, lead: &mut dyn FnMut(Step, World)) {
        if world.left.losses == 0 || self.bounds.copies < 2 || world.disk.files.is_empty() {
            return;
        }
        for copy in (0..self.bounds.copies).filter(|copy| !world.disk.needs(*copy)) {
            let mut next = world.clone();
            next.left.losses -= 1;
            next.disk.lose(copy as u8);
            lead(Step::Lose(copy as u8), next);
        }
    }

    /// What was in flight when a process was killed lands while the next one runs: only if nobody waits for it.
    pub(super) fn land_late(&self, world: &World, lead: &mut dyn FnMut(Step, World)) {
        if let Some((first, rest)) = world.late.split_first() {
            let mut next = World { late: rest.to_vec(), ..world.clone() };
            next.disk.apply(*first);
            lead(Step::LandsLate, next);
        }
    }
}
