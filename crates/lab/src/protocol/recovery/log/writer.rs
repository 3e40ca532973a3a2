//! The writer: `transaction::log::TransactionLog`, `Core::submit_large` and `Core::checkpoint`.

use files::FileKind;

use super::super::disk::{BLOCKS_MAX, Change};
use super::super::{ACKNOWLEDGED, CUT, SHOWN};
use super::state::{Current, Decision, Incomplete, Large, LogFile, Phase, Progress, Slot, What, World, Writer};
use super::step::{Fate, Step};
use super::{Flaw, LARGE_BLOCKS, Log, Place};
use crate::protocol::explore::Broken;
use crate::protocol::small_set::SmallSet;

impl Log {
    /// A writer that goes on where a recovery ended, with its first checkpoint on its way.
    pub(super) fn begin(&self, world: &mut World, decision: &Decision) -> Writer {
        let Decision { writes, tabled, covers, next, .. } = *decision;
        let rejected = decision.rejected.iter().copied().filter(|sequence| *sequence >= covers.min(next));
        let mut writer = Writer {
            is_serving: false,
            decision: decision.clone(),
            next,
            slots: Vec::new(),
            current: None,
            opening: true,
            incomplete: Vec::new(),
            effects: Vec::new(),
            files: decision.files.clone(),
            applied: writes,
            rejected: rejected.collect(),
            large: Vec::new(),
            data_file: None,
            data_at: 0,
            trim: 0,
            checkpointing: Some(Vec::new()),
        };
        let what = What::Checkpoint {
            from: next,
            covers,
            decided_through: next - 1,
            rejected: if self.has(Flaw::ForgetsRejected) { Vec::new() } else { writer.rejected.clone() },
            tabled,
        };
        self.append(world, &mut writer, what);
        writer
    }

    /// What may happen while a process runs.
    pub(super) fn write(&self, world: &World, writer: &Writer, lead: &mut dyn FnMut(Step, World)) {
        let has_room = writer.slots.len() < self.bounds.in_flight && writer.is_serving;
        if has_room && world.left.writes > 0 {
            let write = world.submitted.len() as u8;
            for is_large in [false, true] {
                if is_large && (world.left.large == 0 || !writer.large.is_empty()) {
                    continue;
                }
                lead(
                    Step::Begin(write, is_large),
                    self.changed(world, |world, writer| {
                        world.left.writes -= 1;
                        world.submitted = world.submitted.with(write.into());
                        match is_large {
                            false => drop(self.append(world, writer, What::Plain(write))),
                            true => {
                                world.left.large -= 1;
                                self.begin_large(world, writer, write);
                            }
                        }
                    }),
                );
            }
        }
        if has_room && world.left.checkpoints > 0 && writer.checkpointing.is_none() {
            lead(
                Step::Checkpoint,
                self.changed(world, |world, writer| {
                    world.left.checkpoints -= 1;
                    self.checkpoint(world, writer);
                }),
            );
        }
        self.land(world, writer, lead);
        self.land_data(world, writer, lead);
        self.rotate(world, writer, lead);
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

    /// `TransactionLog::append`.
    fn append(&self, world: &mut World, writer: &mut Writer, what: What) -> u8 {
        let sequence = writer.next;
        writer.next += 1;
        if matches!(what, What::Large { .. }) {
            writer.incomplete.push((sequence, Incomplete::Pending));
        }
        if !matches!(what, What::Checkpoint { .. }) {
            writer.effects.push(sequence);
        }
        writer.slots.push(Slot { sequence, what, progress: Progress::Waiting });
        self.write_waiting(world, writer);
        sequence
    }

    /// `TransactionLog::write_waiting`.
    fn write_waiting(&self, world: &World, writer: &mut Writer) {
        if writer.opening {
            return;
        }
        let durable_through = match self.has(Flaw::VouchesWithoutData) {
            true => writer.retired_below() - 1,
            false => writer.durable_through(),
        };
        let first = writer.files.last().map_or(writer.next, |file| file.first);
        for slot in writer.slots.iter_mut().filter(|slot| slot.progress == Progress::Waiting) {
            let current =
                writer.current.as_mut().filter(|current| !current.failed && current.at < self.bounds.file_records);
            let Some(Current { file, at, .. }) = current else {
                writer.opening = true;
                return;
            };
            let sequence = slot.sequence;
            let place = Place {
                file: *file,
                incarnation: world.incarnation,
                sequence,
                durable_through,
                index: sequence - first,
            };
            slot.progress = Progress::InFlight { file: *file, at: *at, block: self.block(place, &slot.what) };
            *at += 1;
        }
    }

    fn land(&self, world: &World, writer: &Writer, lead: &mut dyn FnMut(Step, World)) {
        for (index, slot) in writer.slots.iter().enumerate() {
            let Progress::InFlight { file, at, block } = slot.progress else { continue };
            let resolved = |fate: &Fate, is_ok: bool| {
                self.changed(world, |world, writer| {
                    self.place(world, file, at, &[block], fate);
                    self.on_landed(world, writer, index, is_ok);
                })
            };
            lead(Step::Lands(slot.sequence), resolved(&Fate::all(1, self.bounds.copies), true));
            if world.left.failures > 0 {
                let torn = Fate { torn: SmallSet::of(0), ..Fate::nothing(1) };
                for fate in [Fate::nothing(1), Fate::all(1, self.bounds.copies), torn] {
                    let mut next = resolved(&fate, false);
                    next.left.failures -= 1;
                    lead(Step::Fails(slot.sequence, fate), next);
                }
            }
        }
    }

    /// `TransactionLog::on_landed`.
    fn on_landed(&self, world: &mut World, writer: &mut Writer, index: usize, is_ok: bool) {
        let slot = &mut writer.slots[index];
        slot.progress = if is_ok { Progress::Durable } else { Progress::Waiting };
        if self.has(Flaw::RetiresOutOfOrder)
            && is_ok
            && let What::Plain(write) = slot.what
        {
            world.acknowledged = world.acknowledged.with(write.into());
        }
        if let Some(current) = writer.current.as_mut().filter(|_| !is_ok) {
            current.failed = true;
        }
        self.retire(world, writer);
        self.write_waiting(world, writer);
    }

    /// `TransactionLog::retire`: applies what is durable, in log order.
    fn retire(&self, world: &mut World, writer: &mut Writer) {
        while writer.slots.first().is_some_and(|slot| slot.progress == Progress::Durable) {
            let Slot { sequence, what, .. } = writer.slots.remove(0);
            if let Some(current) = &mut writer.current {
                current.retired_end += 1;
            }
            if !writer.incomplete.iter().any(|(other, _)| *other == sequence) {
                writer.effects.retain(|other| *other != sequence);
            }
            match what {
                What::Plain(write) => {
                    writer.applied = writer.applied.with(write.into());
                    world.acknowledged = world.acknowledged.with(write.into());
                }
                What::Large { write, .. } => {
                    let large = writer.large.iter_mut().filter(|large| large.log == sequence);
                    large.for_each(|large| large.retired = true);
                    if self.has(Flaw::AcknowledgesWithoutData) {
                        world.acknowledged = world.acknowledged.with(write.into());
                    }
                    self.settle(world, writer);
                }
                What::Checkpoint { from, covers, rejected, .. } => {
                    self.on_checkpoint(world, writer, from.min(covers), rejected);
                }
            }
        }
    }

    /// The rest of `Core::checkpoint`, or of `first_checkpoint`: then the process serves.
    fn on_checkpoint(&self, world: &mut World, writer: &mut Writer, start: u8, rejected: Vec<u8>) {
        let failed = writer.checkpointing.take().unwrap_or_default();
        writer.incomplete.retain(|(sequence, _)| !failed.contains(sequence));
        if writer.is_serving {
            writer.rejected = rejected;
        }
        writer.trim = writer.trim.max(start);
        if !std::mem::replace(&mut writer.is_serving, true) {
            let found = writer.decision.writes;
            world.broken = check(world, found);
            world.shown = found;
            world.cut = world.submitted.minus(found);
        }
    }

    /// `Core::checkpoint`. What is applied is in tables before it.
    fn checkpoint(&self, world: &mut World, writer: &mut Writer) {
        // `TransactionLog::frozen_at`.
        let covers = writer.effects.first().copied().unwrap_or(writer.next);
        // `TransactionLog::undecided`.
        let pending = writer.incomplete.iter().find(|(_, what)| *what == Incomplete::Pending);
        let end = pending.map_or(writer.next, |(sequence, _)| *sequence).min(writer.retired_below());
        let failed = writer.incomplete.iter().filter(|(_, what)| *what == Incomplete::Failed);
        let failed = failed.map(|(sequence, _)| *sequence).take_while(|sequence| *sequence < end).collect::<Vec<_>>();
        let from = writer.retired_below();
        let start = from.min(covers);
        let rejected = writer.rejected.iter().chain(&failed).copied().filter(|sequence| *sequence >= start).collect();
        let tabled = writer.applied;
        if self.has(Flaw::TrimsBeforeCheckpoint) {
            writer.trim = writer.trim.max(start);
        }
        writer.checkpointing = Some(failed);
        self.append(world, writer, What::Checkpoint { from, covers, decided_through: end - 1, rejected, tabled });
    }

    /// `LargeWrite::begin`: data and record go out together.
    fn begin_large(&self, world: &mut World, writer: &mut Writer, write: u8) {
        let file = match writer.data_file.filter(|_| writer.data_at + LARGE_BLOCKS <= BLOCKS_MAX as u8) {
            Some(file) => file,
            None => {
                world.files += 1;
                let file = world.files;
                world.disk.create(file, FileKind::Data, world.incarnation, BLOCKS_MAX as u8, self.bounds.copies);
                (writer.data_file, writer.data_at) = (Some(file), 0);
                file
            }
        };
        let at = writer.data_at;
        writer.data_at += LARGE_BLOCKS;
        let log = writer.next;
        writer.large.push(Large { write, log, file, at, data: None, retired: false });
        self.append(world, writer, What::Large { write, file, at });
    }

    fn land_data(&self, world: &World, writer: &Writer, lead: &mut dyn FnMut(Step, World)) {
        for (index, large) in writer.large.iter().enumerate().filter(|(_, large)| large.data.is_none()) {
            let blocks = self.data(large.write);
            let resolved = |fate: &Fate, is_ok: bool| {
                self.changed(world, |world, writer| {
                    self.place(world, large.file, large.at, &blocks, fate);
                    writer.large[index].data = Some(is_ok);
                    self.settle(world, writer);
                })
            };
            lead(Step::DataLands(large.write), resolved(&Fate::all(blocks.len(), self.bounds.copies), true));
            if world.left.failures > 0 {
                let mut torn = Fate::nothing(blocks.len());
                torn.there[0] = SmallSet::of(0);
                for fate in [Fate::nothing(blocks.len()), Fate::all(blocks.len(), self.bounds.copies), torn] {
                    let mut next = resolved(&fate, false);
                    next.left.failures -= 1;
                    lead(Step::DataFails(large.write, fate), next);
                }
            }
        }
    }

    /// `LargeWrite::finish` and `Segment::settle`: acknowledged in segment order; tried again when the data failed.
    fn settle(&self, world: &mut World, writer: &mut Writer) {
        let is_failed = |large: &Large| large.retired && large.data == Some(false);
        if let Some(at) = writer.large.iter().position(is_failed) {
            let Large { write, log, .. } = writer.large.remove(at);
            // `TransactionLog::on_large_failed`.
            let failed = writer.incomplete.iter_mut().filter(|(sequence, _)| *sequence == log);
            failed.for_each(|(_, what)| *what = Incomplete::Failed);
            writer.effects.retain(|sequence| *sequence != log);
            self.begin_large(world, writer, write);
        }
        while writer.large.first().is_some_and(|large| large.retired && large.data == Some(true)) {
            let Large { write, log, .. } = writer.large.remove(0);
            writer.applied = writer.applied.with(write.into());
            // `TransactionLog::on_large_done`.
            writer.incomplete.retain(|(sequence, _)| *sequence != log);
            writer.effects.retain(|sequence| *sequence != log);
            world.acknowledged = world.acknowledged.with(write.into());
        }
    }

    /// `TransactionLog::rotate`, once the present file is quiet.
    fn rotate(&self, world: &World, writer: &Writer, lead: &mut dyn FnMut(Step, World)) {
        if !writer.opening || writer.in_flight().next().is_some() {
            return;
        }
        let failed = writer.current.filter(|current| current.failed && !self.has(Flaw::RotatesWithoutSeal));
        let unsealed = failed.and_then(|current| world.disk.file(current.file)).map_or(SmallSet::EMPTY, |file| {
            file.present().iter().filter(|copy| file.copies[*copy].is_some_and(|copy| copy.sealed.is_none())).collect()
        });
        if let Some(Current { file, retired_end: length, .. }) = failed.filter(|_| !unsealed.is_empty()) {
            for copy in unsealed.iter() {
                let next = self.changed(world, |world, _| {
                    world.disk.apply(Change::Seal { file, copy: copy as u8, length });
                });
                lead(Step::Seal(copy as u8), next);
            }
            return;
        }
        lead(
            Step::Rotate,
            self.changed(world, |world, writer| {
                // What landed behind a hole is cut off by the seal, and written again.
                writer.slots.iter_mut().for_each(|slot| slot.progress = Progress::Waiting);
                world.files += 1;
                let file = world.files;
                let (records, copies) = (self.bounds.file_records, self.bounds.copies);
                world.disk.create(file, FileKind::Transaction, world.incarnation, records, copies);
                writer.files.push(LogFile { file, first: writer.retired_below() });
                writer.current = Some(Current { file, at: 0, retired_end: 0, failed: false });
                writer.opening = false;
                self.write_waiting(world, writer);
            }),
        );
    }

    /// `TransactionLog::trim`.
    fn trim(&self, world: &World, writer: &Writer, lead: &mut dyn FnMut(Step, World)) {
        let [oldest, second, ..] = writer.files[..] else { return };
        if second.first > writer.trim {
            return;
        }
        for copy in world.disk.file(oldest.file).into_iter().flat_map(|file| file.present().iter()) {
            let next = self.changed(world, |world, writer| {
                world.disk.apply(Change::Delete { file: oldest.file, copy: copy as u8 });
                if world.disk.file(oldest.file).is_none() {
                    writer.files.remove(0);
                }
            });
            lead(Step::Trim(oldest.file, copy as u8), next);
        }
    }

    /// Puts blocks where they landed.
    pub(super) fn place(&self, world: &mut World, file: u8, at: u8, blocks: &[u16], fate: &Fate) {
        for (index, (block, copies)) in blocks.iter().zip(&fate.there).enumerate() {
            let at = at + index as u8;
            for copy in copies.iter() {
                world.disk.apply(Change::Write { file, copy: copy as u8, at, block: *block });
            }
            for copy in fate.torn.iter() {
                world.disk.apply(Change::Write { file, copy: copy as u8, at, block: self.scanner.torn(*block) });
            }
        }
    }
}

fn check(world: &World, found: SmallSet) -> Option<Broken> {
    let missing = world.acknowledged.minus(found);
    if !missing.is_empty() {
        return Some(Broken::new(ACKNOWLEDGED, format!("writes {missing:?} are not found")));
    }
    let taken_back = world.shown.minus(found);
    if !taken_back.is_empty() {
        return Some(Broken::new(SHOWN, format!("writes {taken_back:?} were found before")));
    }
    let back = world.cut.and(found);
    (!back.is_empty()).then(|| Broken::new(CUT, format!("writes {back:?} are found again")))
}
