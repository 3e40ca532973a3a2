//! Recoveries: what `engine::journal::scan` decides, carried out step by step.

use std::cell::RefCell;
use std::rc::Rc;

use base::BLOCK;
use engine::journal::{self, JournalRecord, ScanOptions};

use super::super::disk::Change;
use super::super::scanner::Scanned;
use super::super::{ACKNOWLEDGED, CUT, SHOWN, STARTS, WHOLE};
use super::state::{Known, Phase, Recovering, Start, World, Writer};
use super::step::Step;
use super::{Flaw, Journal, journal_record};
use crate::protocol::explore::Broken;
use crate::protocol::small_set::SmallSet;

/// What a recovery depends on besides the disk.
pub(super) type Key = (u8, Option<Start>);

/// What a recovery hands out, in order, and the files that are left.
pub(super) struct Found {
    pub(super) records: Vec<JournalRecord>,
    pub(super) files: Vec<u8>,
    pub(super) is_torn: bool,
}

impl Journal {
    /// A process starts, with the locks of all files.
    pub(super) fn start(&self, world: &World, lead: &mut dyn FnMut(Step, World)) {
        if world.left.starts == 0 {
            return;
        }
        let mut next = world.clone();
        next.left.starts -= 1;
        next.incarnation += 1;
        next.disk.open();
        let scanned = self.scanned(&next);
        match &scanned.found {
            Err(why) => next.broken = Some(Broken::new(STARTS, why)),
            Ok(found) if found.is_torn && self.has(Flaw::CutsNothing) => {
                next.broken = Some(Broken::new(STARTS, "the journal ends in something else"));
            }
            Ok(found) => match known(found, &scanned.changes, &next) {
                Err(why) => next.broken = Some(Broken::new(WHOLE, why)),
                Ok((records, files)) => {
                    let changes = scanned.changes.iter().copied().filter(|change| self.is_made(change)).collect();
                    next.phase = Phase::Recovering(Recovering { changes, records, files });
                }
            },
        }
        lead(Step::Start, next);
    }

    fn scanned(&self, world: &World) -> Rc<Scanned<Found>> {
        let key = (world.incarnation, world.start);
        let start = world.start.map(Start::expand);
        self.scanner.scan(&world.disk, self.bounds.copies, world.incarnation, key, move |handle, store| async move {
            let (infos, options) = (store.list(), ScanOptions { start, accept_data_loss: false });
            let records = Rc::new(RefCell::new(Vec::new()));
            let visited = records.clone();
            let visit = move |record| visited.borrow_mut().push(record);
            let report = journal::scan(&handle, &store, &infos, &options, visit).await?;
            let files = report.files.iter().map(|file| file.file().0 as u8).collect();
            Ok(Found { records: records.take(), files, is_torn: report.torn_tails > 0 })
        })
    }

    fn is_made(&self, change: &Change) -> bool {
        match change {
            Change::Write { .. } => !self.has(Flaw::RepairsNothing) && !self.has(Flaw::ChangesNothing),
            Change::Seal { .. } => !self.has(Flaw::NeitherWaitsNorSeals) && !self.has(Flaw::ChangesNothing),
            Change::Delete { .. } => true,
        }
    }

    /// The recovery makes the next change; or it is done, and what it found is served.
    pub(super) fn recover(&self, world: &World, recovering: &Recovering, lead: &mut dyn FnMut(Step, World)) {
        let mut next = world.clone();
        if let Some((change, rest)) = recovering.changes.split_first() {
            next.disk.apply(*change);
            next.phase = Phase::Recovering(Recovering { changes: rest.to_vec(), ..recovering.clone() });
            return lead(Step::Change(format!("{change:?}")), next);
        }
        next.broken = check(world, recovering.records);
        next.shown = recovering.records;
        next.cut = world.submitted.minus(recovering.records).minus(world.dumped);
        next.phase = Phase::Running(Box::new(Writer {
            next: 1,
            durable_through: 0,
            ordinal: 0,
            current: None,
            flights: Vec::new(),
            again: Vec::new(),
            failing: None,
            unmarked: false,
            ledger: recovering.files.clone(),
        }));
        lead(Step::Serve, next);
    }
}

/// The numbers of the records that were found, and what is known of the files that are left.
fn known(found: &Found, changes: &[Change], world: &World) -> Result<(SmallSet, Vec<Known>), String> {
    let mut records = SmallSet::EMPTY;
    let mut last = None;
    for record in &found.records {
        let number = (record.sequence.0 - 1) as u8;
        if *record != journal_record(number) || !world.submitted.has(number.into()) {
            return Err(format!("a record was found that nobody wrote: {record:?}"));
        }
        if last.is_some_and(|last| last >= number) {
            return Err(format!("record {number} was found behind record {last:?}"));
        }
        last = Some(number);
        records = records.with(number.into());
    }
    let files = found.files.iter().filter_map(|file| {
        let on_disk = world.disk.file(*file)?;
        let seal = changes.iter().find_map(|change| match change {
            Change::Seal { file: of, length, .. } if of == file => Some(*length),
            _ => None,
        });
        let sealed = on_disk.sealed().or(seal);
        // Which records stand in which file is not told; all that were found may stand in each.
        let end = sealed.unwrap_or(on_disk.capacity);
        Some(Known { file: *file, end, next: 0, records, sealed: on_disk.present(), ended: true })
    });
    Ok((records, files.collect()))
}

fn check(world: &World, found: SmallSet) -> Option<Broken> {
    let missing = world.acknowledged.minus(world.dumped).minus(found);
    if !missing.is_empty() {
        return Some(Broken::new(ACKNOWLEDGED, format!("records {missing:?} are not found")));
    }
    let taken_back = world.shown.minus(world.dumped).minus(found);
    if !taken_back.is_empty() {
        return Some(Broken::new(SHOWN, format!("records {taken_back:?} were found before")));
    }
    let back = world.cut.and(found);
    (!back.is_empty()).then(|| Broken::new(CUT, format!("records {back:?} are found again")))
}

const _: () = assert!(BLOCK == 4096, "blocks of the model are those of the files");
