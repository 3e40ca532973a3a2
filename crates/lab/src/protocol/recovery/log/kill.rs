//! The process is killed, a directory is lost, and what a killed process had in flight lands late.

use super::super::disk::{Block, Change};
use super::state::{Phase, Progress, World};
use super::step::{Fate, Step};
use super::{Flaw, Log};

/// Something in flight.
#[derive(Clone)]
struct Flight {
    file: u8,
    at: u8,
    blocks: Vec<Block>,
}

impl Log {
    /// Killed: what was in flight has landed in each copy for itself, whole, in part, or not at all.
    pub(super) fn kill(&self, world: &World, lead: &mut dyn FnMut(Step, World)) {
        let mut flights = Vec::new();
        match &world.phase {
            Phase::Down => return,
            Phase::Recovering(_) => {}
            Phase::Running(writer) => {
                for slot in writer.in_flight() {
                    let Progress::InFlight { file, at, block } = slot.progress else { continue };
                    flights.push(Flight { file, at, blocks: vec![block] });
                }
                for large in writer.large.iter().filter(|large| large.data.is_none()) {
                    flights.push(Flight { file: large.file, at: large.at, blocks: self.data(large.write) });
                }
            }
        }
        let down = World { phase: Phase::Down, ..world.clone() };
        self.resolve(&flights, &mut Vec::new(), down, lead);
    }

    fn resolve(&self, flights: &[Flight], fates: &mut Vec<Fate>, world: World, lead: &mut dyn FnMut(Step, World)) {
        let Some((flight, rest)) = flights.split_first() else {
            return lead(Step::Kill(fates.clone()), world);
        };
        for fate in self.fates(flight.blocks.len()) {
            let mut next = world.clone();
            self.place(&mut next, flight.file, flight.at, &flight.blocks, &fate);
            fates.push(fate);
            self.resolve(rest, fates, next, lead);
            fates.pop();
        }
        if self.has(Flaw::NeitherWaitsNorSeals) {
            let mut next = world;
            for (at, block) in (flight.at..).zip(&flight.blocks) {
                let write = |copy| Change::Write { file: flight.file, copy, at, block: *block };
                next.late.extend((0..self.bounds.copies as u8).map(write));
            }
            fates.push(Fate::nothing(flight.blocks.len()));
            self.resolve(rest, fates, next, lead);
            fates.pop();
        }
    }

    /// In each copy for itself: nothing, all, or of a record its beginning, of data its first block.
    fn fates(&self, blocks: usize) -> Vec<Fate> {
        let mut fates = vec![Fate::nothing(blocks)];
        for copy in 0..self.bounds.copies {
            let with = |fate: &Fate| {
                let (mut whole, mut part) = (fate.clone(), fate.clone());
                whole.there.iter_mut().for_each(|copies| *copies = copies.with(copy));
                match blocks {
                    1 => part.torn = part.torn.with(copy),
                    _ => part.there[0] = part.there[0].with(copy),
                }
                [fate.clone(), whole, part]
            };
            fates = fates.iter().flat_map(with).collect();
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
