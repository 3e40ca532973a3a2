//! Recoveries: what `engine::recovery::open` decides about the transaction log, carried out step by step.

use std::rc::Rc;

use base::{BLOCK, LogSequence};
use engine::data::is_intact;
use engine::index::Mapping;
use engine::transaction::{self, Record};
use engine::verified::VerifiedFiles;
use engine::{Replay, is_proven};
use files::Store;
use runtime::Handle;

use super::super::disk::Change;
use super::super::scanner::Scanned;
use super::super::{STARTS, WHOLE};
use super::state::{Decision, LogFile, Phase, Recovering, World};
use super::step::Step;
use super::{Flaw, Log, SEGMENT, tabled, write_of};
use crate::protocol::explore::Broken;
use crate::protocol::small_set::SmallSet;

/// What a recovery decided; or which large write it counts that is not there.
pub(super) type Found = Result<Decision, String>;

impl Log {
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
            Ok(Err(why)) => next.broken = Some(Broken::new(WHOLE, why)),
            Ok(Ok(decision)) if !decision.writes.is_in(next.submitted) => {
                next.broken = Some(Broken::new(WHOLE, format!("{:?} were never begun", decision.writes)));
            }
            Ok(Ok(decision)) => {
                let changes = scanned.changes.iter().copied().filter(|change| self.is_made(change)).collect();
                next.phase = Phase::Recovering(Recovering { changes, decision: decision.clone() });
            }
        }
        lead(Step::Start, next);
    }

    fn scanned(&self, world: &World) -> Rc<Scanned<Found>> {
        let incarnation = world.incarnation;
        self.scanner.scan(&world.disk, self.bounds.copies, incarnation, incarnation, recover)
    }

    fn is_made(&self, change: &Change) -> bool {
        match change {
            Change::Write { .. } => !self.has(Flaw::RepairsNothing) && !self.has(Flaw::ChangesNothing),
            Change::Seal { .. } => !self.has(Flaw::NeitherWaitsNorSeals) && !self.has(Flaw::ChangesNothing),
            Change::Delete { .. } => true,
        }
    }

    /// The recovery makes the next change; or all are made, and its checkpoint begins.
    pub(super) fn recover(&self, world: &World, recovering: &Recovering, lead: &mut dyn FnMut(Step, World)) {
        let mut next = world.clone();
        if let Some((change, rest)) = recovering.changes.split_first() {
            next.disk.apply(*change);
            next.phase = Phase::Recovering(Recovering { changes: rest.to_vec(), ..recovering.clone() });
            return lead(Step::Change(format!("{change:?}")), next);
        }
        let writer = self.begin(&mut next, &recovering.decision);
        next.phase = Phase::Running(Box::new(writer));
        lead(Step::Decided, next);
    }
}

/// The part of `engine::recovery::open` that is about the transaction log: scan, replay, proofs.
async fn recover(handle: Handle, store: Store) -> base::Result<Found> {
    let mut scanned = transaction::scan(&store, false).await?;
    let mut replay = Replay::new(&mut scanned);
    let files = VerifiedFiles::new(&handle, &store);
    let tables = replay.segments.get(&SEGMENT).map(|segment| segment.tables.clone()).unwrap_or_default();
    let mut writes = tabled(&tables);
    for (sequence, record) in std::mem::take(&mut replay.effects) {
        if matches!(record, Record::Large { .. }) {
            if sequence > scanned.durable_through && !is_proven(&files, &record, false).await? {
                replay.rejected.insert(sequence);
                continue;
            }
            if !is_there(&store, &record).await {
                return Ok(Err(format!("large write {sequence} counts, but its data is not there")));
            }
        }
        writes = writes.or(record.entries().iter().map(write_of).collect::<SmallSet>());
    }
    let small = |sequence: LogSequence| sequence.0 as u8;
    Ok(Ok(Decision {
        writes,
        tabled: tabled(&tables),
        covers: small(tables.covers.max(LogSequence(1))),
        rejected: replay.rejected.iter().copied().map(small).collect(),
        next: small(scanned.next),
        files: scanned.files.iter().map(|log| LogFile { file: log.file.0 as u8, first: small(log.first) }).collect(),
    }))
}

/// Whether each block of a large write is intact in some copy.
async fn is_there(store: &Store, record: &Record) -> bool {
    for entry in record.entries().iter() {
        let Mapping::Data { file, offset, .. } = entry.mapping else { return false };
        let mut intact = false;
        for copy in 0..2 {
            let bytes = store.read_copy(file, copy, offset, BLOCK as usize).await;
            intact |= bytes.is_ok_and(|bytes| is_intact(SEGMENT, entry, &bytes));
        }
        if !intact {
            return false;
        }
    }
    true
}
