//! Looks at transaction files and changes nothing: every copy by itself, every record of it.
//!
//! What is not a record is **damage** where a record was durable: the file was sealed behind it, a later file was
//! begun, or a record that was written later says so. Otherwise it is what a crash leaves.

use base::{AlignedBuf, BLOCK, ErrorKind, FileId, LogSequence, MIB, Result};
use files::{FileInfo, FileKind, Store};

use super::codec::decode;

/// Bytes of one read.
const READ_BYTES: u64 = MIB;

/// What the transaction files of a store hold.
#[derive(Debug, Default)]
pub(crate) struct TransactionInspection {
    /// Records that are intact, each copy counted.
    pub(crate) records: u64,
    /// Places where a durable record should be.
    pub(crate) damage: Vec<DamagedRecord>,
}

/// A place in one copy where a durable record should be.
#[derive(Debug)]
pub(crate) struct DamagedRecord {
    pub(crate) file: FileId,
    pub(crate) copy: u8,
    pub(crate) offset: u64,
    pub(crate) reason: String,
    /// Whether another copy holds it.
    pub(crate) is_elsewhere: bool,
}

/// Reads every copy of every transaction file. `on_read` hears of the bytes read.
///
/// # Errors
/// `Invalid`: a later version wrote it. A copy that cannot be read is damaged.
pub(crate) async fn inspect(store: &Store, mut on_read: impl FnMut(u64)) -> Result<TransactionInspection> {
    let mut files = Vec::new();
    for info in store.list().into_iter().filter(|info| info.kind == FileKind::Transaction) {
        let mut copies = Vec::new();
        for copy in 0..info.copies_wanted {
            copies.extend(read_copy(store, &info, copy, &mut on_read).await?);
        }
        let first = copies.iter().flat_map(|copy| &copy.records).map(|record| record.first).min();
        files.push((first, info, copies));
    }
    let firsts: Vec<LogSequence> = files.iter().filter_map(|(first, ..)| *first).collect();
    let mut found = TransactionInspection::default();
    for (first, info, copies) in &files {
        let next_file = first.and_then(|first| firsts.iter().copied().filter(|other| *other > first).min());
        let records = || copies.iter().flat_map(|copy| &copy.records);
        let durable_through = records().map(|record| record.durable_through).max().unwrap_or_default();
        for copy in copies {
            found.records += copy.records.len() as u64;
            for hole in &copy.holes {
                let expected = hole.expected.or(*first);
                let was_durable = hole.offset < info.sealed.unwrap_or(0)
                    || expected.is_some_and(|expected| {
                        expected <= durable_through || next_file.is_some_and(|next_file| expected < next_file)
                    });
                if was_durable {
                    found.damage.push(DamagedRecord {
                        file: info.id,
                        copy: copy.copy,
                        offset: hole.offset,
                        reason: hole.reason.clone(),
                        is_elsewhere: records().any(|record| record.offset == hole.offset),
                    });
                }
            }
        }
    }
    Ok(found)
}

/// One copy of a file.
struct ReadCopy {
    copy: u8,
    records: Vec<Intact>,
    holes: Vec<Hole>,
}

struct Intact {
    offset: u64,
    /// The number of its file's first record.
    first: LogSequence,
    durable_through: LogSequence,
}

/// A stretch without a record.
struct Hole {
    offset: u64,
    /// The record that should be there; none at the start of the file.
    expected: Option<LogSequence>,
    reason: String,
}

/// Nothing where there is no such copy.
async fn read_copy(
    store: &Store,
    info: &FileInfo,
    copy: u8,
    on_read: &mut impl FnMut(u64),
) -> Result<Option<ReadCopy>> {
    let len = info.sealed.unwrap_or(info.capacity);
    let mut content = AlignedBuf::zeroed(len as usize);
    let mut unreadable: Vec<(u64, String)> = Vec::new();
    for start in (0..len).step_by(READ_BYTES as usize) {
        let end = len.min(start + READ_BYTES);
        match store.read_copy(info.id, copy, start, (end - start) as usize).await {
            Ok(bytes) => content[start as usize..end as usize].copy_from_slice(&bytes),
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
            Err(_) => {
                for at in (start..end).step_by(BLOCK as usize) {
                    match store.read_copy(info.id, copy, at, BLOCK as usize).await {
                        Ok(bytes) => content[at as usize..(at + BLOCK) as usize].copy_from_slice(&bytes),
                        Err(error) => unreadable.push((at, error.message)),
                    }
                }
            }
        }
        on_read(end - start);
    }
    let mut found = ReadCopy { copy, records: Vec::new(), holes: Vec::new() };
    let (mut offset, mut expected, mut in_hole) = (0, None, false);
    while offset < len {
        match decode(&content[offset as usize..], info.id)? {
            Some((header, _, record_len)) => {
                let (first, durable_through) = (header.first(), header.durable_through);
                found.records.push(Intact { offset, first, durable_through });
                (offset, expected, in_hole) = (offset + record_len, Some(LogSequence(header.sequence.0 + 1)), false);
            }
            None => {
                if !in_hole {
                    let error = unreadable.iter().find(|(at, _)| *at == offset).map(|(_, error)| error.clone());
                    let reason = error.unwrap_or_else(|| "there is no valid record".into());
                    found.holes.push(Hole { offset, expected, reason });
                }
                (offset, in_hole) = (offset + BLOCK, true);
            }
        }
    }
    Ok(Some(found))
}
