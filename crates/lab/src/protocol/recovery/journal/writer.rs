//! The writer: `journal::writer::JournalWriter` and `journal::writer::journal_files`.

use base::{BLOCK, FileId, Incarnation};
use engine::journal::Place;
use files::FileKind;

use super::super::disk::{BLOCKS_MAX, Change};
use super::state::{Current, Flight, Known, Phase, Start, World, Writer};
use super::step::{Fate, Step};
use super::{APPEND_BLOCKS, Flaw, Journal, MARKER_BLOCKS, sequence};
use crate::protocol::small_set::SmallSet;

impl Journal {
    /// What may happen while a process serves.
    pub(super) fn write(&self, world: &World, writer: &Writer, lead: &mut dyn FnMut(Step, World)) {
        let can_append = writer.failing.is_none() && writer.flights.len() < self.bounds.in_flight;
        if can_append && world.left.writes > 0 {
            let record = world.submitted.len() as u8;
            lead(
                Step::Submit(record),
                self.changed(world, |world, writer| {
                    world.left.writes -= 1;
                    world.submitted = world.submitted.with(record.into());
                    self.launch(world, writer, Some(record));
                }),
            );
        }
        let is_quiet = writer.flights.is_empty() && writer.unmarked;
        if can_append && is_quiet && world.left.markers > 0 {
            lead(
                Step::Mark,
                self.changed(world, |world, writer| {
                    world.left.markers -= 1;
                    self.launch(world, writer, None);
                }),
            );
        }
        self.land(world, writer, lead);
        self.end(world, writer, lead);
        self.trim(world, writer, lead);
    }

    fn changed(&self, world: &World, change: impl FnOnce(&mut World, &mut Writer)) -> World {
        let mut next = world.clone();
        if let Phase::Running(mut writer) = std::mem::replace(&mut next.phase, Phase::Down) {
            change(&mut next, &mut writer);
            next.phase = Phase::Running(writer);
        }
        next
    }

    /// `JournalWriter::launch`, in a new file if there is no room.
    fn launch(&self, world: &mut World, writer: &mut Writer, record: Option<u8>) {
        let len = if record.is_some() { APPEND_BLOCKS } else { MARKER_BLOCKS };
        if writer.current.is_none_or(|current| current.at + len > self.bounds.file_blocks) {
            self.install(world, writer);
        }
        let Some(current) = &mut writer.current else { return };
        let place = Place {
            file: FileId(current.file.into()),
            incarnation: Incarnation(world.incarnation.into()),
            log: 0,
            ordinal: current.ordinal.into(),
            base: sequence(current.base),
            sequence: sequence(writer.next),
            durable_through: sequence(writer.durable_through),
            offset: u64::from(current.at) * BLOCK,
        };
        let flight = Flight {
            sequence: writer.next,
            file: current.file,
            at: current.at,
            record,
            blocks: self.blocks(place, record),
            outcome: None,
        };
        current.at += len;
        writer.next += 1;
        writer.unmarked = record.is_some();
        writer.flights.push(flight);
    }

    /// `JournalWriter::install`, of a file that was just created.
    fn install(&self, world: &mut World, writer: &mut Writer) {
        assert!(usize::from(self.bounds.file_blocks) <= BLOCKS_MAX);
        world.files += 1;
        let file = world.files;
        world.disk.create(file, FileKind::Journal, world.incarnation, self.bounds.file_blocks, self.bounds.copies);
        writer.ordinal += 1;
        let base = match self.has(Flaw::FailedAppendsStayValid) {
            true => 1,
            false => writer.next,
        };
        writer.current = Some(Current { file, ordinal: writer.ordinal, base, at: 0 });
        let (records, sealed) = (SmallSet::EMPTY, SmallSet::EMPTY);
        writer.ledger.push(Known { file, end: 0, next: writer.next, records, sealed, ended: false });
    }

    fn land(&self, world: &World, writer: &Writer, lead: &mut dyn FnMut(Step, World)) {
        for (index, flight) in writer.flights.iter().enumerate().filter(|(_, flight)| flight.outcome.is_none()) {
            let all = Fate(vec![SmallSet::below(self.bounds.copies); flight.blocks.len()]);
            let resolved = |fate: &Fate, is_ok: bool| {
                self.changed(world, |world, writer| {
                    world.place(&writer.flights[index], fate);
                    writer.flights[index].outcome = Some(is_ok);
                    self.on_landed(world, writer, is_ok);
                })
            };
            lead(Step::Lands(flight.sequence), resolved(&all, true));
            if world.left.failures > 0 {
                let nothing = Fate(vec![SmallSet::EMPTY; flight.blocks.len()]);
                let mut torn = nothing.clone();
                torn.0[0] = SmallSet::of(0);
                for fate in [nothing, all, torn] {
                    let mut next = resolved(&fate, false);
                    next.left.failures -= 1;
                    lead(Step::Fails(flight.sequence, fate), next);
                }
            }
        }
    }

    /// `JournalWriter::on_landed` and `settle`.
    fn on_landed(&self, world: &mut World, writer: &mut Writer, is_ok: bool) {
        if !is_ok && self.has(Flaw::GoesOnBehindAHole) {
            // The record is written again, behind what is in flight.
            let failed = writer.flights.iter().position(|flight| flight.outcome == Some(false));
            let failed = writer.flights.remove(failed.unwrap_or(0));
            self.launch(world, writer, failed.record);
        } else if !is_ok && writer.failing.is_none() {
            writer.failing = Some(Vec::new());
        }
        if self.has(Flaw::AcknowledgesOutOfOrder) {
            let durable = writer.flights.iter().filter(|flight| flight.outcome == Some(true));
            let durable: SmallSet = durable.filter_map(|flight| flight.record).map(usize::from).collect();
            world.acknowledged = world.acknowledged.or(durable);
        }
        while writer.flights.first().is_some_and(|flight| flight.outcome == Some(true)) {
            let Flight { sequence, file, blocks, record, .. } = writer.flights.remove(0);
            writer.durable_through = sequence;
            let record: SmallSet = record.into_iter().map(usize::from).collect();
            world.acknowledged = world.acknowledged.or(record);
            if let Some(known) = writer.ledger.iter_mut().find(|known| known.file == file) {
                known.end += blocks.len() as u8;
                known.next = sequence + 1;
                known.records = known.records.or(record);
            }
        }
        self.take_failure(writer);
    }

    /// `JournalWriter::take_failure`: when all has landed after a failure, what was not confirmed is to be written
    /// again.
    fn take_failure(&self, writer: &mut Writer) {
        let all_landed = writer.flights.iter().all(|flight| flight.outcome.is_some());
        let (Some(files), Some(first)) = (writer.failing.as_mut().filter(|_| all_landed), writer.flights.first())
        else {
            return;
        };
        writer.next = first.sequence;
        *files =
            writer.flights.iter().map(|flight| flight.file).chain(writer.current.map(|current| current.file)).collect();
        files.dedup();
        writer.current = None;
        writer.again = writer.flights.drain(..).map(|flight| flight.record).collect();
    }

    /// `JournalWriter::end_files` and `end_file`: files that take no more appends are sealed, or deleted.
    fn end(&self, world: &World, writer: &Writer, lead: &mut dyn FnMut(Step, World)) {
        for file in self.ending(writer) {
            let Some(known) = writer.ledger.iter().find(|known| known.file == file) else { continue };
            for copy in world.disk.file(file).map_or(SmallSet::EMPTY, |file| file.present()).minus(known.sealed).iter()
            {
                let next = self.changed(world, |world, writer| {
                    let (file, length, copy) = (file, known.end, copy as u8);
                    world.disk.apply(match length {
                        0 => Change::Delete { file, copy },
                        _ => Change::Seal { file, copy, length },
                    });
                    if let Some(known) = writer.ledger.iter_mut().find(|known| known.file == file) {
                        known.sealed = known.sealed.with(copy.into());
                    }
                    self.on_ended(world, writer, file);
                });
                lead(Step::Ends(file, copy as u8), next);
            }
            if world.left.failures > 0 {
                let next = self.changed(world, |world, writer| {
                    world.left.failures -= 1;
                    if let Some(known) = writer.ledger.iter_mut().find(|known| known.file == file) {
                        known.ended = true;
                    }
                    self.on_ended(world, writer, file);
                });
                lead(Step::EndFails(file), next);
            }
        }
    }

    /// The files that are being ended now.
    fn ending(&self, writer: &Writer) -> Vec<u8> {
        let in_use = |file: u8| {
            let is_current = writer.current.is_some_and(|current| current.file == file);
            is_current || writer.flights.iter().any(|flight| flight.file == file)
        };
        let open = writer.ledger.iter().filter(|known| !known.ended).map(|known| known.file);
        match &writer.failing {
            Some(files) => open.filter(|file| files.contains(file)).collect(),
            None => open.filter(|file| !in_use(*file)).collect(),
        }
    }

    fn on_ended(&self, world: &mut World, writer: &mut Writer, file: u8) {
        let present = world.disk.file(file).map(|file| file.present());
        if let Some(known) = writer.ledger.iter_mut().find(|known| known.file == file) {
            known.ended |= present.is_none_or(|present| present.is_in(known.sealed));
        }
        writer.ledger.retain(|known| known.file != file || known.end > 0 || present.is_some());
        let is_failing = |file: &u8| writer.ledger.iter().any(|known| known.file == *file && !known.ended);
        if writer.failing.as_ref().is_some_and(|files| !files.is_empty() && !files.iter().any(is_failing)) {
            // `start_over`, and `relaunch`.
            writer.failing = None;
            for record in std::mem::take(&mut writer.again) {
                self.launch(world, writer, record);
            }
        }
    }

    /// A dump, as far as it concerns the journal: a durable record says where a replay may start, then files go.
    fn trim(&self, world: &World, writer: &Writer, lead: &mut dyn FnMut(Step, World)) {
        let needed = world.acknowledged.or(world.shown);
        if world.left.dumps > 0 && !needed.is_in(world.dumped) {
            let next = self.changed(world, |world, writer| {
                world.left.dumps -= 1;
                world.dumped = needed;
                // `Ledger::replay_start`, with everything dumped. Of a recovered file its next number is not known here:
                // while there is no other, the start stays where it is.
                let is_own = |known: &&Known| {
                    world.disk.file(known.file).is_some_and(|file| file.incarnation == world.incarnation)
                };
                let own = || writer.ledger.iter().filter(is_own);
                let open = own().find(|known| !known.ended).or(own().next_back());
                let start = open.map(|known| Start { file: known.file, at: known.end, sequence: known.next });
                world.start = start.or(world.start);
            });
            lead(Step::Dump, next);
        }
        // `Ledger::plan_trim`.
        let Some(oldest) = writer.ledger.first().filter(|known| known.ended && known.records.is_in(world.dumped))
        else {
            return;
        };
        for copy in world.disk.file(oldest.file).into_iter().flat_map(|file| file.present().iter()) {
            let next = self.changed(world, |world, writer| {
                world.disk.apply(Change::Delete { file: oldest.file, copy: copy as u8 });
                if world.disk.file(oldest.file).is_none() {
                    writer.ledger.remove(0);
                }
            });
            lead(Step::Trim(oldest.file, copy as u8), next);
        }
    }
}

impl World {
    /// Puts the blocks of an append where they landed.
    pub(super) fn place(&mut self, flight: &Flight, fate: &Fate) {
        for (index, (block, copies)) in flight.blocks.iter().zip(&fate.0).enumerate() {
            for copy in copies.iter() {
                let at = flight.at + index as u8;
                self.disk.apply(Change::Write { file: flight.file, copy: copy as u8, at, block: *block });
            }
        }
    }
}
