//! Keeps the volume table durable: a checkpoint, then changes, in one file of kind `Log` per life.
//!
//! Flow: [`TableLog::open`] recovers the table of the lives before, seals their last file at the end that was chosen,
//! writes the whole table as the checkpoint of a new file, and deletes the older files; then it takes changes. A full
//! file, or one with a failed append, is replaced in the same way, and so is one with fewer copies than it could have, when a
//! directory has come ([`TableLog::renew`]). A clean stop seals it ([`TableLog::close`]).
//!
//! Invariants: one append is in flight; a file takes changes only after every older file is deleted; a file of an
//! earlier life is never appended to; the last [`RESERVE`] bytes of a file are for deletions, so that a full disk can
//! be emptied.

use base::seeded::is_on;
use base::units::round_up;
use base::{AlignedBuf, BLOCK, Epoch, FileId, LogSequence, MIB, Result};
use files::{Claim, CreateOptions, FileKind, FileWriter, Redundancy, Store};

use super::format::{self, Body, Header};
use super::recovery::{self, Recovered};
use super::{Change, VolumeTable};

/// Room for changes in a new file, after its checkpoint.
const ROOM: u64 = MIB;
/// What only deletions may use when no new file can be made.
pub const RESERVE: u64 = 64 * BLOCK;

/// The writer of the table's log.
pub struct TableLog {
    store: Store,
    redundancy: Redundancy,
    writer: FileWriter,
    /// The last record that is durable.
    sequence: LogSequence,
    /// A newer file could not be begun, and nobody knows whether it counts: this one takes no more changes.
    is_doubtful: bool,
}

impl TableLog {
    /// Recovers the table and begins a new file with it.
    ///
    /// # Errors
    /// Those of [`recovery::recover`], and `Full` or `Io` where the new file cannot be made.
    pub async fn open(store: &Store, redundancy: Redundancy, accept_loss: bool) -> Result<(Recovered, TableLog)> {
        let recovered = recovery::recover(store, accept_loss).await?;
        if let Some((file, end)) = recovered.source {
            repair(store, &recovered).await;
            if store.info(file).is_some_and(|info| info.sealed.is_none()) {
                store.seal(file, end).await?;
            }
        }
        let (writer, sequence) = begin_file(store, redundancy, &recovered.table, recovered.sequence).await?;
        let log = TableLog { store: store.clone(), redundancy, writer, sequence, is_doubtful: false };
        Ok((recovered, log))
    }

    /// Makes `change` durable; `table` gives the table before it. When this fails the outcome is unknown until the
    /// next success, which settles that the change did not happen.
    ///
    /// # Errors
    /// `Full`, `Io`.
    pub async fn append(&mut self, table: impl Fn() -> VolumeTable, change: &Change) -> Result<()> {
        let is_deletion = matches!(change, Change::MarkDeleted(_) | Change::Forget(_));
        if self.writer.has_failed() || self.writer.room() < RESERVE || self.is_doubtful {
            match self.restate(&table()).await {
                Ok(()) => {}
                Err(_) if is_deletion && self.is_newest() => {}
                Err(error) => return Err(error.context("the volume table needs a new file")),
            }
        }
        let sequence = LogSequence(self.sequence.0 + 1);
        let header = Header {
            file: self.writer.id(),
            incarnation: self.store.incarnation(),
            sequence,
            durable_through: self.sequence,
        };
        let confirmed = self.writer.position();
        let record = format::encode(&header, &Body::Change(change.clone()));
        let appended = self.writer.append(AlignedBuf::copy_of(&record).freeze());
        if is_on("table-acked-early") {
            self.sequence = sequence;
            return Ok(());
        }
        match appended.await {
            Ok(_) => {
                self.sequence = sequence;
                Ok(())
            }
            Err(error) => {
                self.writer.fail();
                // The next append begins a new file in any case; the seal only keeps a reader from the doubtful record.
                let _ = self.store.seal(self.writer.id(), confirmed).await;
                Err(error.context("writing the volume table"))
            }
        }
    }

    /// Begins a new file with `table`, which is what the log says from here on.
    ///
    /// # Errors
    /// `Full`, `Io`: nobody knows which of the two files counts.
    pub async fn restate(&mut self, table: &VolumeTable) -> Result<()> {
        self.is_doubtful = true;
        (self.writer, self.sequence) = begin_file(&self.store, self.redundancy, table, self.sequence).await?;
        self.is_doubtful = false;
        Ok(())
    }

    /// A directory has come: where the file has fewer copies than a new one would have, the log goes on in a new one.
    ///
    /// # Errors
    /// Those of [`TableLog::restate`]: the next change tries it again.
    pub async fn renew(&mut self, table: &VolumeTable) -> Result<()> {
        match self.store.is_inferior(self.writer.id()) {
            true => self.restate(table).await,
            false => Ok(()),
        }
    }

    /// Ends the file behind its last record: what is missing before that at the next start is no torn tail.
    ///
    /// # Errors
    /// `Io`: every confirmed change is durable, but nothing says that there are no more.
    pub async fn close(self) -> Result<()> {
        match self.writer.has_failed() {
            // It was sealed, or could not be, when that happened.
            true => Ok(()),
            false if is_on("log-not-sealed") => Ok(()),
            false => self.store.seal(self.writer.id(), self.writer.position()).await,
        }
    }

    /// Whether the writer's file still counts: with an intact checkpoint in a newer one it would not.
    fn is_newest(&self) -> bool {
        let newest = self.store.list().into_iter().filter(|info| info.kind == FileKind::Log).map(|info| info.id).max();
        !self.writer.has_failed() && newest == Some(self.writer.id())
    }
}

/// Brings copies that have lost a record back in line. A copy that cannot be mended is left: the file goes soon.
async fn repair(store: &Store, recovered: &Recovered) {
    for bad in &recovered.bad_copies {
        let Some(info) = store.info(bad.file) else { continue };
        for copy in (0..info.copies_wanted).filter(|copy| *copy != bad.copy) {
            let Ok(bytes) = store.read_copy(bad.file, copy, bad.offset, bad.len as usize).await else { continue };
            if matches!(format::decode(bad.file, &bytes), Ok(format::Found::Record(..))) {
                let _ = store.repair_copy(bad.file, bad.copy, bad.offset, bytes.freeze()).await;
                break;
            }
        }
    }
}

/// A new file that begins with `table`; every older one is gone when this returns.
async fn begin_file(
    store: &Store,
    redundancy: Redundancy,
    table: &VolumeTable,
    last: LogSequence,
) -> Result<(FileWriter, LogSequence)> {
    let older: Vec<_> = store.list().into_iter().filter(|info| info.kind == FileKind::Log).collect();
    let sequence = LogSequence(last.0 + 1);
    let body = Body::Checkpoint(table.clone());
    let record = |file| {
        format::encode(&Header { file, incarnation: store.incarnation(), sequence, durable_through: last }, &body)
    };
    let checkpoint_len = record(FileId(0)).len() as u64;
    let mut writer = store
        .create(CreateOptions {
            kind: FileKind::Log,
            capacity: round_up(checkpoint_len + RESERVE + ROOM, MIB),
            redundancy,
            prepared: false,
            epoch: Epoch(1),
            segment: None,
            claim: Claim::Use,
        })
        .await?;
    if let Err(error) = writer.append(AlignedBuf::copy_of(&record(writer.id())).freeze()).await {
        // Without its checkpoint the file was never in use, as recovery knows, too.
        let _ = store.delete(writer.id()).await;
        return Err(error);
    }
    for info in older {
        store.delete(info.id).await?;
    }
    Ok((writer, sequence))
}
