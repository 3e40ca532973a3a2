//! Large writes that were acknowledged and whose records the log had not got yet: found by the labels in front of
//! their data.
//!
//! Only files of the life that wrote the newest checkpoint can hold any, behind what the log knows of them: a start
//! logs what it finds before its own checkpoint, and appends to no file of an earlier life. From there on label follows
//! label. The first one that is missing, or whose data is not whole, ends the file: nothing behind it was acknowledged
//! by its label ([`crate::landings`]). Unless a label behind it says that it had landed: then it is not torn, but
//! rotten. The same holds for a write whose record the log has, while nothing in the log vouches for its data.
//!
//! A file that is there under its name while its header cannot be read may hold labels, too: then nobody can say what was
//! acknowledged, and the start is refused. Not where the life before stopped cleanly: the last checkpoint of that says that
//! the log knows everything (it has no key for labels), and what is lost in such a file is read as an error.

use base::seeded::is_on;
use base::{Error, ErrorKind, FileId, Incarnation, MIB, Result, SegmentId};
use files::FileInfo;

use super::proof::{in_doubt, is_proven};
use super::replay::Replay;
use crate::index::Index;
use crate::label::{self, LABEL_BYTES, Place};
use crate::statistics::RecoveryStatistics;
use crate::transaction::Record;
use crate::verified::VerifiedFiles;
use runtime::sync::join_all;

/// Files that are read at the same time.
const FILES_IN_FLIGHT: usize = 16;
/// The longest append of a large write: within so many bytes behind a label stands the next one.
const APPEND_BYTES_MAX: u64 = MIB + LABEL_BYTES;

/// Where a file may go on.
struct Tail {
    segment: SegmentId,
    info: FileInfo,
    from: u64,
}

/// What a tail held.
#[derive(Default)]
struct Found {
    records: Vec<Record>,
    /// Whether it ends in a write whose data is not whole.
    is_torn: bool,
}

/// Finds what the log does not know, and joins it to `replay` and `index`. Gives the records, which the log has to get
/// before the next checkpoint, in the order of their places in each file.
///
/// # Errors
/// `Corrupt`, `Io`: something that was acknowledged may be lost, or cannot be read (`accept_data_loss`: goes on).
pub(super) async fn restore(
    index: &Index,
    files: &VerifiedFiles,
    replay: &mut Replay,
    accept_data_loss: bool,
    found: &mut RecoveryStatistics,
) -> Result<Vec<Record>> {
    let Some((life, key)) = replay.labels.filter(|_| !is_on("labels-not-read")) else { return Ok(Vec::new()) };
    let mut tails = Vec::new();
    let older = OlderFiles::of(files, replay, life);
    for (segment, replayed) in &replay.segments {
        for (&file, &from) in &replayed.data_files {
            match files.store().info(file) {
                Some(info) if info.incarnation == life => tails.push(Tail { segment: *segment, info, from }),
                Some(_) => {}
                None if older.has(file) => {}
                None => check_unknown(files, *segment, file, accept_data_loss).await?,
            }
        }
    }
    let mut records = Vec::new();
    for group in tails.chunks(FILES_IN_FLIGHT) {
        for read in join_all(group.iter().map(|tail| tail.read(files, key, accept_data_loss))).await {
            let read = read?;
            found.rejected_large_writes += u64::from(read.is_torn);
            records.extend(read.records);
        }
    }
    found.labelled_large_writes += records.len() as u64;
    for record in &records {
        tracing::trace!(?record, "found by its label");
        if !is_on("labelled-order-forgotten") {
            replay.on_structure(record);
        }
        if let Some(segment) = record.segment() {
            index.apply(segment, &record.entries());
        }
    }
    Ok(records)
}

/// Files that are certainly of a life before the one whose labels are looked for, though their headers cannot be read:
/// what a life creates has a higher number than what earlier ones have created. Where several engines share a store the
/// numbers say nothing of that.
struct OlderFiles {
    through: Option<FileId>,
}

impl OlderFiles {
    fn of(files: &VerifiedFiles, replay: &Replay, life: Incarnation) -> OlderFiles {
        let known = files.store().list().into_iter().filter(|info| !replay.is_given && info.incarnation < life);
        OlderFiles { through: known.map(|info| info.id).max() }
    }

    fn has(&self, file: FileId) -> bool {
        self.through.is_some_and(|through| file <= through)
    }
}

/// Makes sure that a file of which nothing is known is not there: one that was never made, or is deleted already.
///
/// # Errors
/// It is there: nobody knows what was acknowledged because of it.
async fn check_unknown(files: &VerifiedFiles, segment: SegmentId, file: FileId, accept_data_loss: bool) -> Result<()> {
    match files.store().read_copy(file, 0, 0, LABEL_BYTES as usize).await {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
        Err(error) if accept_data_loss => {
            tracing::error!(%file, %error, "accepting the loss of large writes that may have been in it");
            Ok(())
        }
        Err(error) => Err(in_doubt(segment, error)),
        // Its header could be read by now. The next start knows it.
        Ok(_) => Err(in_doubt(segment, Error::io(format!("file {file} was found too late; start again")))),
    }
}

impl Tail {
    async fn read(&self, files: &VerifiedFiles, key: u64, accept_data_loss: bool) -> Result<Found> {
        let mut found = Found::default();
        let mut place = Place { file: self.info.id, incarnation: self.info.incarnation, key, offset: self.from };
        while place.offset + LABEL_BYTES < end_of(&self.info) {
            let label = self.label_at(files, &place, accept_data_loss).await?;
            if let Some(record) = label {
                if is_proven(files, &record, accept_data_loss).await? {
                    let (_, next) = self.data_of(&record);
                    found.records.push(record);
                    place.offset = next;
                    continue;
                }
                found.is_torn = true;
            }
            match landed_behind(files, &self.info, &place).await {
                None => break,
                Some(next) if accept_data_loss => {
                    tracing::error!(file = %place.file, offset = place.offset, "accepting the loss of a large write");
                    place.offset = next;
                }
                Some(_) => return Err(rotten(files, &place)),
            }
        }
        Ok(found)
    }

    /// The file and the byte behind the data of a labelled write.
    fn data_of(&self, record: &Record) -> (Option<FileId>, u64) {
        match record {
            Record::Large { file, offset, checksums, .. } => {
                (Some(*file), offset + checksums.len() as u64 * base::BLOCK)
            }
            _ => (None, 0),
        }
    }

    /// Whether the record of a label speaks of what stands behind it.
    fn is_sound(&self, place: &Place, record: &Record) -> bool {
        let starts_behind = matches!(record, Record::Large { offset, .. } if *offset == place.offset + LABEL_BYTES);
        let (file, end) = self.data_of(record);
        starts_behind && record.segment() == Some(self.segment) && file == Some(place.file) && end <= end_of(&self.info)
    }

    /// The record of the label at `place`, from any copy.
    async fn label_at(&self, files: &VerifiedFiles, place: &Place, accept_data_loss: bool) -> Result<Option<Record>> {
        let (mut is_read, mut unread) = (false, None);
        for copy in 0..self.info.copies_wanted {
            match files.store().read_copy(place.file, copy, place.offset, LABEL_BYTES as usize).await {
                Ok(bytes) => {
                    is_read = true;
                    let record = label::decode(&bytes, place).map(|(record, _)| record);
                    if let Some(record) = record.filter(|record| self.is_sound(place, record)) {
                        return Ok(Some(record));
                    }
                }
                Err(error) => unread = Some(error),
            }
        }
        match unread.filter(|_| !is_read && !accept_data_loss) {
            None => Ok(None),
            Some(error) => Err(in_doubt(self.segment, error)),
        }
    }
}

/// Makes sure that the large write of `record`, which the log has and whose data is not whole, was never acknowledged:
/// a later label of the life that `labels` are of would say that it had landed.
///
/// # Errors
/// `Corrupt`: it had landed, and has rotted since.
pub(super) async fn check_torn(
    files: &VerifiedFiles,
    labels: Option<(Incarnation, u64)>,
    record: &Record,
    accept_data_loss: bool,
) -> Result<()> {
    let (Some((life, key)), &Record::Large { file, offset, .. }) = (labels, record) else { return Ok(()) };
    let info = files.store().info(file).filter(|info| info.incarnation == life);
    // What earlier versions wrote has no label in front.
    let (Some(info), Some(at)) = (info, offset.checked_sub(LABEL_BYTES)) else { return Ok(()) };
    let place = Place { file, incarnation: life, key, offset: at };
    match landed_behind(files, &info, &place).await {
        Some(_) if !accept_data_loss => Err(rotten(files, &place)),
        Some(_) => {
            tracing::error!(%file, offset, "accepting the loss of a large write");
            Ok(())
        }
        None => Ok(()),
    }
}

fn end_of(info: &FileInfo) -> u64 {
    info.sealed.unwrap_or(info.capacity)
}

/// Where a later label stands that says that what should be at `place` had landed.
async fn landed_behind(files: &VerifiedFiles, info: &FileInfo, place: &Place) -> Option<u64> {
    let from = place.offset + LABEL_BYTES;
    let len = APPEND_BYTES_MAX.min(end_of(info).saturating_sub(from));
    for copy in 0..info.copies_wanted {
        // What cannot be read says nothing.
        let Ok(bytes) = files.store().read_copy(place.file, copy, from, len as usize).await else { continue };
        for (number, block) in bytes.chunks_exact(LABEL_BYTES as usize).enumerate() {
            let offset = from + number as u64 * LABEL_BYTES;
            let label = label::decode(block, &Place { offset, ..*place });
            if label.is_some_and(|(_, whole_through)| whole_through > place.offset) {
                return Some(offset);
            }
        }
    }
    None
}

fn rotten(files: &VerifiedFiles, place: &Place) -> Error {
    Error::corrupt(format!(
        "{}: a large write at byte {} was durable and cannot be read from any copy; restore the file, or start once \
         with --accept-data-loss to go on without it",
        files.store().locate(place.file, 0),
        place.offset
    ))
}
