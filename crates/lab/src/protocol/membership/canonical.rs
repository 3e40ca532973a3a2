//! States that differ in numbers only, in a way that no decision can notice, are one.
//!
//! Counters that only grow are compared with each other and counted up by one, so all of a kind may be shifted
//! together. The older slot of a superblock is never read again while the newer one is not the next to be written.

use super::state::{Disk, Life, Record, Slot, State, World, newest};

/// No model runs long enough to give out so many file ids.
const FILES_APART: u64 = 1 << 14;

impl World {
    /// See the module.
    pub(super) fn canonicalize(&mut self) {
        self.canonicalize_slots();
        self.shift_incarnations();
        self.shift_publications();
        self.shift_generations();
        self.canonicalize_files();
    }

    /// Forgets older slots, and numbers those that are left from one or two on.
    fn canonicalize_slots(&mut self) {
        let World { disks, life, backup, .. } = self;
        for (directory, disk) in disks.iter_mut().enumerate() {
            let open = life.as_mut().filter(|life| {
                !matches!(life.states[directory], State::NotGiven | State::Failed | State::Missing)
                    || life.publication.is_some_and(|publication| publication.pending.has(directory))
            });
            match open {
                Some(life) => canonicalize_open(disk, &mut life.sequences[directory]),
                None => canonicalize_closed(disk),
            }
        }
        if let Some(life) = life {
            forget_sequences(life);
        }
        if let Some(backup) = backup {
            canonicalize_closed(&mut backup.disk);
        }
    }

    fn records(&mut self) -> impl Iterator<Item = &mut Record> {
        let World { disks, life, backup, .. } = self;
        let disks = disks.iter_mut().chain(backup.as_mut().map(|backup| &mut backup.disk));
        let slots = disks.flat_map(|disk| &mut disk.slots).filter_map(|slot| match slot {
            Slot::Valid(_, record) => Some(record),
            Slot::Blank | Slot::Torn => None,
        });
        let life = life.iter_mut().flat_map(|life| {
            let Life { record, agreed, publication, .. } = &mut **life;
            [Some(record), agreed.as_mut(), publication.as_mut().map(|publication| &mut publication.record)]
        });
        slots.chain(life.flatten())
    }

    fn shift_incarnations(&mut self) {
        let lowest = lowest(self.records().map(|record| record.incarnation));
        self.records().for_each(|record| shift(&mut record.incarnation, lowest));
    }

    fn shift_publications(&mut self) {
        let lowest = lowest(self.records().flat_map(|record| [record.publication, record.agreed]));
        for record in self.records() {
            shift(&mut record.publication, lowest);
            shift(&mut record.agreed, lowest);
        }
    }

    fn shift_generations(&mut self) {
        // That of the life is one of those that a record has, or has had.
        let own = self.life.as_ref().map(|life| life.agreed_generation);
        let lowest = lowest(self.records().map(|record| record.generation).chain(own).collect::<Vec<_>>().into_iter());
        self.records().for_each(|record| shift(&mut record.generation, lowest));
        self.life.iter_mut().for_each(|life| shift(&mut life.agreed_generation, lowest));
    }

    /// Renames files: what matters is which have the same name, and how far they are from the ids that are given out
    /// next.
    fn canonicalize_files(&mut self) {
        let mut values = self.records().map(|record| record.next_file).collect::<Vec<_>>();
        values.extend(self.life.as_ref().map(|life| life.next_file));
        let lowest = values.iter().copied().min().unwrap_or(0);
        let mut old = Vec::new();
        for file in self.truths.iter().flatten().map(|truth| truth.file) {
            match file < lowest {
                true if !old.contains(&file) => old.push(file),
                true => {}
                false => values.push(file),
            }
        }
        values.sort_unstable();
        values.dedup();
        let mut renamed = Vec::with_capacity(values.len());
        let (mut before, mut next) = (lowest, 8);
        for value in values {
            next += (value - before).min(FILES_APART);
            before = value;
            renamed.push((value, next));
        }
        let rename = |value: &mut u64| {
            let old = old.iter().position(|old| old == value);
            let new = renamed.iter().find(|(before, _)| before == value);
            *value = old.map(|at| at as u64).or(new.map(|(_, new)| *new)).expect("every value has a name");
        };
        self.records().for_each(|record| rename(&mut record.next_file));
        self.life.iter_mut().for_each(|life| rename(&mut life.next_file));
        self.truths.iter_mut().flatten().for_each(|truth| rename(&mut truth.file));
    }
}

/// The lowest that is not zero.
fn lowest(values: impl Iterator<Item = u8>) -> u8 {
    values.filter(|value| *value > 0).min().unwrap_or(1)
}

/// Makes the lowest one a one; zero stays what it is, that nothing was ever counted.
fn shift(value: &mut u8, lowest: u8) {
    *value = value.saturating_sub(lowest - 1);
}

/// Nobody writes to it: the next one who does goes on from the newest slot.
fn canonicalize_closed(disk: &mut Disk) {
    let mut sequence = newest(disk).map_or(0, |(sequence, _)| sequence);
    canonicalize_open(disk, &mut sequence);
}

/// The next update is numbered `sequence` + 1.
fn canonicalize_open(disk: &mut Disk, sequence: &mut u8) {
    let Some((newest, _)) = newest(disk) else { return };
    if newest == *sequence {
        let is_older = |slot: &Slot| !matches!(slot, Slot::Valid(own, _) if *own == newest);
        disk.slots.iter_mut().filter(|slot| is_older(slot)).for_each(|slot| *slot = Slot::Blank);
    }
    let valid = disk.slots.iter().filter_map(|slot| match slot {
        Slot::Valid(own, _) => Some(*own),
        Slot::Blank | Slot::Torn => None,
    });
    let lowest = valid.chain([*sequence]).min().unwrap_or(0);
    // Which slot is next depends on whether it is even.
    let shift = lowest.saturating_sub(1) / 2 * 2;
    *sequence -= shift;
    for slot in &mut disk.slots {
        if let Slot::Valid(own, _) = slot {
            *own -= shift;
        }
    }
}

/// Of directories that are away, the sequence is read again when they are back.
fn forget_sequences(life: &mut Life) {
    for (directory, state) in life.states.iter().enumerate() {
        let is_pending = life.publication.is_some_and(|publication| publication.pending.has(directory));
        if matches!(state, State::NotGiven | State::Failed | State::Missing) && !is_pending {
            life.sequences[directory] = 0;
        }
    }
}
