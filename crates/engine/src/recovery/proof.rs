//! The proof that a large write counts, where nothing vouches for it: its data is there, block by block.

use base::seeded::is_on;
use base::{AlignedBuf, BLOCK, Error, ErrorKind, Result, SegmentId};

use crate::data::is_intact;
use crate::index::Mapping;
use crate::transaction::Record;
use crate::verified::VerifiedFiles;

/// Whether every block of a large write is there. What only some copies have is brought to all: it counts from now
/// on, so it has to be as durable as anything that counts.
///
/// One copy that can be read and does not have it is enough to reject it: an append is confirmed when it is in every
/// member, so nobody was told, and nobody has read it. Where no copy can be read, nothing can be said; nor where the
/// file is there under its name, and nobody knows what is in it.
///
/// # Errors
/// `Io`, `Corrupt`: no copy can be read.
pub async fn is_proven(files: &VerifiedFiles, record: &Record, accept_data_loss: bool) -> Result<bool> {
    let store = files.store();
    let Some(id) = record.segment() else { return Ok(false) };
    let entries = record.entries();
    let Some(Mapping::Data { file, offset, .. }) = entries.first().map(|entry| entry.mapping) else {
        return Ok(false);
    };
    let len = entries.len() * BLOCK as usize;
    let in_doubt = |error: Error| match accept_data_loss {
        true => Ok(false),
        false => Err(in_doubt(id, error)),
    };
    let Some(info) = store.info(file) else {
        return match store.read_copy(file, 0, offset, len).await {
            Err(error) if error.kind != ErrorKind::NotFound => in_doubt(error),
            _ => Ok(false),
        };
    };
    if offset + len as u64 > info.sealed.unwrap_or(info.capacity) {
        return Ok(false);
    }
    if is_on("large-write-not-proven") {
        return Ok(true);
    }
    let mut good = AlignedBuf::zeroed(len);
    let mut proven = vec![false; entries.len()];
    let (mut copies, mut unread) = (Vec::new(), None);
    for copy in 0..info.copies_wanted {
        let bytes = match store.read_copy(file, copy, offset, len).await {
            Ok(bytes) => bytes,
            Err(error) => {
                unread = Some(error);
                continue;
            }
        };
        for (i, entry) in entries.iter().enumerate() {
            let block = &bytes[i * BLOCK as usize..(i + 1) * BLOCK as usize];
            if !proven[i] && is_intact(id, entry, block) {
                proven[i] = true;
                good[i * BLOCK as usize..(i + 1) * BLOCK as usize].copy_from_slice(block);
            }
        }
        copies.push((copy, bytes));
    }
    if !proven.iter().all(|&proven| proven) {
        return match unread.filter(|_| copies.is_empty()) {
            Some(error) => in_doubt(error),
            None => Ok(false),
        };
    }
    let good = good.freeze();
    for (copy, bytes) in copies.into_iter().filter(|_| !is_on("large-write-not-spread")) {
        if bytes[..] != good[..] {
            store.repair_copy(file, copy, offset, good.clone()).await?;
        }
    }
    Ok(true)
}

/// Why nobody can say whether a large write counts.
pub(super) fn in_doubt(segment: SegmentId, error: Error) -> Error {
    error.context(format!(
        "a large write to {segment} may have been acknowledged, and cannot be read; bring the disk back, or start once \
         with --accept-data-loss to go on without it"
    ))
}
