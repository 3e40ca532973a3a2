//! The bytes of files: parts of 64 MiB, an object each.
//!
//! All parts are made before there is a record of the file, and none later; each append says that the part must be there, open,
//! and where its bytes go. So what a fenced life still has on its way is refused by the object itself, whenever it arrives,
//! also when the file was removed meanwhile.

use std::rc::Rc;

use base::{AlignedBuf, Bytes, Error, FileId, Gathered, Result};
use runtime::sync::join_all;

use super::directory::{AT_ONCE, fenced, there_or_not};
use super::failed;
use super::objects::{Change, Condition, Effect, Failure, Objects};
use super::records::{FENCED, FileRecord, OPEN, PART_BYTES, STATE, creator, part_object};
use crate::LocalBoxFuture;

/// See the module.
pub(super) struct Contents {
    pub(super) objects: Rc<dyn Objects>,
}

/// A piece of a range that lies in one part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    part: u64,
    /// Where it begins in the part.
    at: u64,
    /// Where it begins in the range.
    from: usize,
    len: usize,
}

fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = offset + from as u64;
        let (part, at) = (start / PART_BYTES, start % PART_BYTES);
        let piece = Piece { part, at, from, len: (len - from).min((PART_BYTES - at) as usize) };
        from += piece.len;
        (piece.len > 0).then_some(piece)
    })
}

impl Contents {
    /// Makes the parts of a file, which are open.
    ///
    /// # Errors
    /// `Full`; `Io`: nobody knows which are there.
    pub(super) async fn make(&self, record: &FileRecord) -> Result<()> {
        let file = record.info.id;
        let make_part = async |part: u64| {
            let change = Change::of_absent().and(Effect::SetAttribute(STATE, OPEN.to_vec()));
            let made = self.objects.change(&part_object(file, part), change).await;
            made.map_err(|failure| failed(failure, || format!("file {file} could not be made")))
        };
        all(record.parts(), make_part).await
    }

    /// Appends to a file of one's own. All is submitted at the call.
    ///
    /// # Errors
    /// `Fenced`, `Full`; `Io`: nobody knows what is there.
    pub(super) fn append(&self, file: FileId, offset: u64, data: &Gathered) -> LocalBoxFuture<'static, Result<()>> {
        let mut writes = Vec::with_capacity(1);
        for piece in pieces(offset, data.len()) {
            let data = match piece.len == data.len() {
                true => data.clone(),
                false => data.joined().slice(piece.from..piece.from + piece.len).into(),
            };
            let change = Change::of_present()
                .only_if(Condition::Attribute(STATE, OPEN.to_vec()))
                .and(Effect::Write { offset: piece.at, data });
            writes.push(self.objects.change(&part_object(file, piece.part), change));
        }
        Box::pin(async move {
            for write in join_all(writes).await {
                write.map_err(|failure| match failure {
                    // Somebody has fenced this life, and removed the file perhaps.
                    Failure::Absent | Failure::Changed => fenced(creator(file)),
                    failure => failed(failure, || format!("an append to file {file}")),
                })?;
            }
            Ok(())
        })
    }

    /// Reads a range, as far as each part has it: the rest is zeros. Gives also whether all of it was there.
    ///
    /// # Errors
    /// `Io`; `NotFound`: a part is not there.
    pub(super) async fn read(&self, file: FileId, offset: u64, len: usize) -> Result<(AlignedBuf, bool)> {
        let reads = pieces(offset, len).map(|piece| {
            let read = self.objects.read(&part_object(file, piece.part), piece.at, piece.len);
            async move { (piece, read.await) }
        });
        let (mut all, mut is_all) = (AlignedBuf::with_capacity(len), true);
        for (piece, read) in join_all(reads).await {
            let read = read.map_err(|failure| match failure {
                Failure::Absent => Error::not_found(format!("file {file} has no part {}", piece.part)),
                failure => failed(failure, || format!("a read of file {file}")),
            })?;
            is_all &= read.len() == piece.len;
            if read.len() == len {
                return Ok((read, true));
            }
            all.extend_from_slice(&read);
            all.extend_zeros(piece.from + piece.len - all.len());
        }
        Ok((all, is_all))
    }

    /// Writes over bytes that are there. Of a file that its life may still append to only that life does so.
    ///
    /// # Errors
    /// `Io`; `NotFound`: there is no such part; `Fenced`.
    pub(super) async fn repair(&self, file: FileId, offset: u64, data: &Bytes, is_own: bool) -> Result<()> {
        for piece in pieces(offset, data.len()) {
            let mut change = Change::of_present();
            if is_own {
                change = change.only_if(Condition::Attribute(STATE, OPEN.to_vec()));
            }
            let data = data.slice(piece.from..piece.from + piece.len).into();
            let change = change.and(Effect::Write { offset: piece.at, data });
            let repaired = self.objects.change(&part_object(file, piece.part), change).await;
            repaired.map_err(|failure| match failure {
                Failure::Changed => fenced(creator(file)),
                Failure::Absent => Error::not_found(format!("file {file} has no part {}", piece.part)),
                failure => failed(failure, || format!("a repair of file {file}")),
            })?;
        }
        Ok(())
    }

    /// No append to a file is taken any more.
    ///
    /// # Errors
    /// `Io`.
    pub(super) async fn fence(&self, record: &FileRecord) -> Result<()> {
        let file = record.info.id;
        let fence_part = async |part: u64| {
            let change = Change::of_present().and(Effect::SetAttribute(STATE, FENCED.to_vec()));
            // One that is not there was removed.
            let done = there_or_not(self.objects.change(&part_object(file, part), change).await);
            done.map_err(|failure| failed(failure, || format!("file {file} could not be fenced")))
        };
        all(record.parts(), fence_part).await
    }

    /// The bytes of a file go.
    ///
    /// # Errors
    /// `Io`.
    pub(super) async fn remove(&self, record: &FileRecord) -> Result<()> {
        let file = record.info.id;
        let remove_part = async |part: u64| {
            let removed = self.objects.change(&part_object(file, part), Change::of_present().and(Effect::Remove)).await;
            there_or_not(removed).map_err(|failure| failed(failure, || format!("file {file} could not be removed")))
        };
        all(record.parts(), remove_part).await
    }
}

/// Does something with each part, some at a time.
async fn all(parts: u64, each: impl AsyncFn(u64) -> Result<()>) -> Result<()> {
    let parts: Vec<u64> = (0..parts).collect();
    for some in parts.chunks(AT_ONCE) {
        for done in join_all(some.iter().map(|part| each(*part))).await {
            done?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_where_parts_end() {
        let cut = |offset, len| pieces(offset, len).map(|piece| (piece.part, piece.at, piece.from, piece.len));
        assert_eq!(cut(4096, 8192).collect::<Vec<_>>(), [(0, 4096, 0, 8192)]);
        let end = PART_BYTES - 4096;
        assert_eq!(cut(end, 8192).collect::<Vec<_>>(), [(0, end, 0, 4096), (1, 0, 4096, 4096)]);
        assert_eq!(cut(3 * PART_BYTES, 4096).collect::<Vec<_>>(), [(3, 0, 0, 4096)]);
        assert_eq!(cut(0, 0).count(), 0);
    }
}
