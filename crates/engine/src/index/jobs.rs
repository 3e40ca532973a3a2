//! The two jobs that change the tables of a segment: flushing a frozen memtable, merging tables.
//!
//! Both write a table, log a `TableSet` record, and change the set in memory when the record is durable, in log
//! order. A job that fails or finds its segment dropped removes what it wrote; memtable and old tables stay as they
//! were, and the job can be tried again.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::seeded::is_on;
use base::{Error, FileId, Result, SegmentId};
use runtime::sync::Event;

use super::Index;
use super::entry::Entry;
use super::manifest::TableInfo;
use super::segment::{Frozen, SegmentIndex, State};
use super::sweep::{Coalesce, next_piece};
use super::table::Table;
use super::table::cursor::TableCursor;
use super::table::writer::{TableOptions, TableWriter};
use crate::transaction::{Record, TransactionSink};

/// Pieces of a merge between two yields to other tasks: some tens of microseconds.
const PIECES_PER_STEP: usize = 512;
/// Until another task has read the summary of a table.
const WAIT_FOR_COUNT: Duration = Duration::from_millis(1);

impl Index {
    /// Writes the oldest frozen memtable of `segment` as a table, logs it, and puts it in the memtable's place.
    /// Returns false if there is none, or another flush of the segment is at work.
    ///
    /// # Errors
    /// `Full`, `Io`, `Fenced`: the memtable stays, and can be flushed again.
    pub async fn flush(&self, segment: SegmentId, sink: &dyn TransactionSink) -> Result<bool> {
        let Some(segment) = self.segment(segment) else { return Ok(false) };
        let at_work = AtWork::begin(&segment, &self.0.changed, |state| &mut state.is_flushing);
        let Some(at_work) = at_work else { return Ok(false) };
        let Some(frozen) = segment.oldest_frozen() else { return Ok(false) };
        if frozen.memtable.is_empty() {
            self.install_flushed(&segment, &frozen, None);
            return Ok(true);
        }
        let info = self.write_frozen(&segment, &frozen).await?;
        let (this, installed) = (self.clone(), segment.clone());
        let covers = frozen.at.covers;
        let apply = move || {
            this.install_flushed(&installed, &frozen, Some(info));
            drop(at_work);
        };
        let record = Record::TableSet { segment: segment.id(), added: vec![info], removed: Vec::new(), covers };
        self.log_table_set(&segment, record, info.file, Vec::new(), sink, Box::new(apply)).await?;
        bump(&self.0.counters.flushes, 1);
        Ok(true)
    }

    fn install_flushed(&self, segment: &SegmentIndex, frozen: &Rc<Frozen>, table: Option<TableInfo>) {
        // Whoever flushed it: the flusher, or a checkpoint.
        self.0.patience.on_success();
        if !segment.borrow_mut().is_dropped {
            let freed = segment.install_flushed(frozen, table);
            self.0.memtable_bytes.set(self.0.memtable_bytes.get() - freed);
            if !segment.has_frozen() {
                self.0.frozen.borrow_mut().remove(&segment.id());
            }
            self.on_tables_changed(segment.id());
        }
        self.0.changed.notify();
    }

    pub(super) fn on_tables_changed(&self, segment: SegmentId) {
        self.0.merge_candidates.borrow_mut().insert(segment);
        self.0.tables_changed.notify();
    }

    async fn write_frozen(&self, segment: &SegmentIndex, frozen: &Frozen) -> Result<TableInfo> {
        let entries = frozen.memtable.len() as u64;
        let mut writer = self.create_table(segment, entries, entries).await?;
        let file = writer.file();
        let written = async move {
            for entry in frozen.memtable.iter() {
                if writer.push(*entry) {
                    writer.flush().await?;
                    self.0.files.handle().yield_now().await;
                }
            }
            writer.finish(frozen.at.quiet).await
        };
        self.or_remove(file, written.await)
    }

    /// Merges `files`, tables of `segment`, into one. Tombstones are dropped if these are all of its tables and the
    /// newest is quiet. Returns false if a merge of the segment is at work or one of the tables is gone.
    ///
    /// # Errors
    /// `Full`, `Io`, `Corrupt`, `Fenced`: the tables stay.
    pub async fn merge(&self, segment: SegmentId, files: &[FileId], sink: &dyn TransactionSink) -> Result<bool> {
        let Some(_work) = self.begin_work(segment) else { return Ok(false) };
        let Some(segment) = self.segment(segment) else { return Ok(false) };
        let at_work = AtWork::begin(&segment, &self.0.tables_changed, |state| &mut state.is_merging);
        let Some(at_work) = at_work else { return Ok(false) };
        let all = segment.tables();
        let inputs: Vec<Rc<Table>> = all.iter().filter(|table| files.contains(&table.info().file)).cloned().collect();
        if inputs.is_empty() || inputs.len() != files.len() {
            return Ok(false);
        }
        let quiet = inputs[0].info().quiet;
        let drop_tombstones = (inputs.len() == all.len() && quiet) || is_on("tombstone-dropped-early");
        let written = self.write_merged(&segment, &inputs, quiet, drop_tombstones).await;
        let merged = match written {
            Err(_) if segment.borrow_mut().is_dropped => return Ok(false),
            written => written?,
        };
        let removed: Vec<FileId> = inputs.iter().map(|table| table.info().file).collect();
        let added: Vec<TableInfo> = merged.table.into_iter().collect();
        let covers = segment.manifest().covers;
        let record = Record::TableSet { segment: segment.id(), added: added.clone(), removed: removed.clone(), covers };
        let new_file = merged.table.map_or(FileId(0), |table| table.file);
        let (this, installed, gone) = (self.clone(), segment.clone(), removed.clone());
        let apply = move || {
            if !installed.borrow_mut().is_dropped {
                installed.install_merged(&added, &gone);
                merged.losers.iter().for_each(|(&file, &entries)| this.0.garbage.drop_references(file, entries));
                bump(&this.0.counters.tombstones_dropped, merged.tombstones_dropped);
                this.on_tables_changed(installed.id());
            }
            drop(at_work);
        };
        self.log_table_set(&segment, record, new_file, removed, sink, Box::new(apply)).await?;
        bump(&self.0.counters.merges, 1);
        Ok(true)
    }

    async fn write_merged(
        &self,
        segment: &SegmentIndex,
        inputs: &[Rc<Table>],
        quiet: bool,
        drop_tombstones: bool,
    ) -> Result<Merged> {
        // What a merge drops is subtracted from what was added before.
        for table in inputs {
            while !self.while_it_exists(segment, table.count_references(&self.0.pages, &self.0.garbage)).await? {
                self.0.files.handle().sleep(WAIT_FOR_COUNT).await;
            }
        }
        let mut cursors = Vec::with_capacity(inputs.len());
        for table in inputs {
            let seek = TableCursor::seek(table.clone(), &self.0.pages, 0);
            cursors.push(self.while_it_exists(segment, seek).await?);
        }
        let infos = || inputs.iter().map(|table| table.info());
        let entries: u64 = infos().map(|info| u64::from(info.entries)).sum();
        let tombstones: u64 = infos().map(|info| u64::from(info.tombstones)).sum();
        // A tombstone can be cut into one piece more for each entry that lies in it.
        let entries_max = if tombstones > 0 && !drop_tombstones { 2 * entries } else { entries };
        let mut merge = Merge { writer: None, merged: Merged::default(), drop_tombstones };
        let options = (entries_max, infos().map(|info| u64::from(info.data_files)).sum());
        let written = self.run_merge(segment, &mut cursors, options, &mut merge).await;
        let file = merge.writer.as_ref().map(TableWriter::file);
        let finished = match (written, merge.writer.take()) {
            (Ok(()), Some(writer)) => writer.finish(quiet).await.map(Some),
            (written, _) => written.map(|()| None),
        };
        merge.merged.table = match file {
            Some(file) => self.or_remove(file, finished)?,
            None => finished?,
        };
        Ok(merge.merged)
    }

    async fn run_merge(
        &self,
        segment: &SegmentIndex,
        cursors: &mut [TableCursor],
        (entries_max, data_files_max): (u64, u64),
        merge: &mut Merge,
    ) -> Result<()> {
        let (mut coalesce, mut pieces) = (Coalesce::default(), 0);
        loop {
            for cursor in cursors.iter_mut().filter(|cursor| cursor.is_starved()) {
                self.while_it_exists(segment, cursor.fill(&self.0.pages)).await?;
            }
            let losers = &mut merge.merged.losers;
            let piece = next_piece(cursors, |loser| {
                if let Some(file) = loser.file() {
                    *losers.entry(file).or_default() += 1;
                }
            });
            let is_last = piece.is_none();
            let ready = match piece {
                Some(piece) => coalesce.push(piece),
                None => coalesce.finish(),
            };
            if let Some(entry) = ready.filter(|entry| merge.keeps(entry)) {
                if merge.writer.is_none() {
                    merge.writer = Some(self.create_table(segment, entries_max, data_files_max).await?);
                }
                if let Some(writer) = &mut merge.writer
                    && writer.push(entry)
                {
                    writer.flush().await?;
                }
            }
            if is_last {
                return Ok(());
            }
            pieces += 1;
            if pieces % PIECES_PER_STEP == 0 {
                self.0.files.handle().yield_now().await;
            }
        }
    }

    /// Reads tables of `segment`, which stay until that is done; not if it was dropped. A merge as a whole holds no
    /// pin: nothing could be removed while it runs.
    async fn while_it_exists<T>(&self, segment: &SegmentIndex, read: impl Future<Output = Result<T>>) -> Result<T> {
        let _pin = self.0.files.pin();
        if segment.borrow_mut().is_dropped {
            return Err(Error::not_found(format!("segment {} was dropped", segment.id())));
        }
        read.await
    }

    async fn create_table(&self, segment: &SegmentIndex, entries_max: u64, data_files_max: u64) -> Result<TableWriter> {
        let options = TableOptions {
            segment: segment.id(),
            epoch: segment.epoch(),
            entries_max,
            data_files_max: data_files_max.min(entries_max),
            copies: self.0.options.copies,
            ownership: self.0.options.ownership,
        };
        let writer = TableWriter::create(self.0.files.store(), options).await?;
        Ok(writer.keep_in(&self.0.pages, &options))
    }

    /// Logs a change of tables; `apply` runs when it is durable. Afterwards removes the tables that are gone.
    async fn log_table_set(
        &self,
        segment: &Rc<SegmentIndex>,
        record: Record,
        new_file: FileId,
        removed: Vec<FileId>,
        sink: &dyn TransactionSink,
        apply: Box<dyn FnOnce()>,
    ) -> Result<()> {
        let added_bytes = match &record {
            Record::TableSet { added, .. } => added.iter().map(|info| Table::new(segment.id(), *info).bytes()).sum(),
            _ => 0,
        };
        if segment.borrow_mut().is_dropped {
            self.0.files.delete_in_background(vec![new_file]);
            return Ok(());
        }
        let is_needless = Rc::new(Cell::new(false));
        let (dropped, found) = (segment.clone(), is_needless.clone());
        let apply = move |_| {
            found.set(dropped.borrow_mut().is_dropped);
            apply();
        };
        // If this fails the record may count after a restart; its table must stay then. The next start removes it if
        // nothing refers to it.
        sink.log(record, Box::new(apply)).await?;
        bump(&self.0.counters.table_bytes_written, added_bytes);
        let mut gone = removed;
        // Once it is installed it goes with the segment: removed with it, or to whoever has the segment now.
        if is_needless.get() {
            gone.push(new_file);
        }
        self.0.files.delete_in_background(gone);
        Ok(())
    }

    /// Removes the unfinished table `file` if writing it failed.
    fn or_remove<T>(&self, file: FileId, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.0.files.delete_in_background(vec![file]);
        }
        result
    }
}

/// A merge at work.
struct Merge {
    /// Created with the first entry: a merge may leave nothing.
    writer: Option<TableWriter>,
    merged: Merged,
    drop_tombstones: bool,
}

/// What a merge found.
#[derive(Default)]
struct Merged {
    table: Option<TableInfo>,
    /// Data entries that were hidden, by the file that they name.
    losers: std::collections::BTreeMap<FileId, u64>,
    tombstones_dropped: u64,
}

impl Merge {
    fn keeps(&mut self, entry: &Entry) -> bool {
        let dropped = self.drop_tombstones && entry.file().is_none();
        self.merged.tombstones_dropped += u64::from(dropped);
        !dropped
    }
}

/// A job at work on a segment, until it is dropped; then those who wait for their turn are woken. From the moment
/// its record is on its way it belongs to what the record does when it is durable: a job that is cancelled meanwhile,
/// because the engine closes, has not ended, and doing it again would install the same tables twice.
struct AtWork {
    segment: Rc<SegmentIndex>,
    done: Event,
    flag: fn(&mut State) -> &mut bool,
}

impl AtWork {
    fn begin(segment: &Rc<SegmentIndex>, done: &Event, flag: fn(&mut State) -> &mut bool) -> Option<AtWork> {
        let was_at_work = std::mem::replace(flag(&mut segment.borrow_mut()), true);
        (!was_at_work).then(|| AtWork { segment: segment.clone(), done: done.clone(), flag })
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        *(self.flag)(&mut self.segment.borrow_mut()) = false;
        self.done.notify();
    }
}

fn bump(counter: &Cell<u64>, by: u64) {
    counter.set(counter.get() + by);
}
