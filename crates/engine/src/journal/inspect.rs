//! Looks at one journal file by itself and changes nothing: for a person who wants to know what is there.

use base::{LogSequence, Result, Set};
use files::{FileInfo, Store};
use runtime::Handle;

use super::scan::source::{Found, Source};

/// What a journal file holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct JournalInspection {
    /// Intact appends in a row from its beginning.
    pub appends: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes of them in the file.
    pub bytes: u64,
    /// Segments that they write to.
    pub segments: u64,
    /// What is wrong with what follows: place and reason. `None`: nothing follows that was acknowledged, as far as
    /// this file says.
    pub damage: Option<String>,
}

/// Reads a journal file to its end and verifies every checksum.
///
/// # Errors
/// `Invalid`: a later version wrote it.
pub async fn inspect(handle: &Handle, store: &Store, info: &FileInfo) -> Result<JournalInspection> {
    let mut source = Source::new(handle, store, info.clone());
    let mut found = JournalInspection::default();
    let Some(any) = source.any_header().await? else { return Ok(found) };
    let mut segments = Set::default();
    let mut next = any.base;
    while found.bytes < source.end {
        match source.append_at(found.bytes, |header| header.sequence == next).await? {
            Found::Intact(append) => {
                found.appends += 1;
                found.records += append.records.len() as u64;
                found.bytes += append.header.len;
                segments.extend(append.records.iter().map(|record| record.segment));
                next = LogSequence(next.0 + 1);
            }
            Found::Bad(bad) => {
                let proven = match info.sealed {
                    Some(_) => true,
                    None => source.headers_from(found.bytes).await?.iter().any(|later| later.durable_through >= next),
                };
                let place = source.place(found.bytes);
                found.damage = (proven || bad.unreadable).then(|| format!("{place}: append {next}: {}", bad.reason));
                break;
            }
        }
    }
    found.segments = segments.len() as u64;
    Ok(found)
}
