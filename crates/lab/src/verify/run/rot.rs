//! Bits that flip on the medium.

use std::ops::Range;
use std::path::{Path, PathBuf};

use base::{BLOCK, FileId, LogSequence, MIB, Prng, SECTOR};
use control::table;
use engine::journal::format::AppendHeader;
use engine::transaction::codec;
use runtime::sim::SimDisk;

use super::super::plan::Reach;

/// Bytes before the content of a file.
const FILE_HEADER: u64 = BLOCK;

/// Flips bits at some places of a disk.
pub(super) fn rot(disk: &SimDisk, reach: Reach, places: u64, seed: u64) {
    let mut prng = Prng::new(seed);
    // Superblocks are left out: a directory without one is refused until the operator says so.
    let can_rot = |(path, len): &(PathBuf, u64)| *len >= SECTOR && !path.ends_with("superblock");
    let files: Vec<(PathBuf, u64)> = disk.files().into_iter().filter(can_rot).collect();
    let ranges: Vec<(&PathBuf, Range<u64>)> = match reach {
        // Files are large and seldom full: their beginnings matter most.
        Reach::Anywhere => {
            files.iter().flat_map(|(path, len)| [(path, 0..*len), (path, 0..(*len).min(MIB / 8))]).collect()
        }
        Reach::InLog | Reach::AtRest => files
            .iter()
            .flat_map(|(path, _)| proven(disk, path, reach).into_iter().map(move |range| (path, range)))
            .collect(),
    };
    if ranges.is_empty() {
        return;
    }
    for _ in 0..places {
        let (path, range) = prng.pick(&ranges);
        disk.flip_bit(path, range.start + prng.below(range.end - range.start), prng.below(8) as u32);
    }
}

/// Where the appends of a log stand that are known to have been durable: a later one of the same file says so, or it is
/// the last one where a clean stop left it.
fn proven(disk: &SimDisk, path: &Path, reach: Reach) -> Vec<Range<u64>> {
    let logged = logged(disk, path).unwrap_or_default();
    let last = logged.iter().map(|one| one.sequence).max();
    let through = logged.iter().map(|one| one.durable_through).max().unwrap_or_default();
    let is_proven = |one: &Logged| match reach {
        Reach::AtRest => Some(one.sequence) == last,
        _ => one.sequence <= through,
    };
    logged.into_iter().filter(is_proven).map(|one| one.range).collect()
}

/// An append to a journal, a transaction record or one of the volume table, on the disk.
struct Logged {
    /// Its bytes that are covered by checksums.
    range: Range<u64>,
    sequence: LogSequence,
    durable_through: LogSequence,
}

/// What stands in a journal, a transaction file or the volume table.
fn logged(disk: &SimDisk, path: &Path) -> Option<Vec<Logged>> {
    let (kind, number) = path.file_name()?.to_str()?.rsplit_once('-')?;
    let file = FileId(u64::from_str_radix(number, 16).ok()?);
    let decode = match kind {
        "journal" => append_at,
        "transaction" => record_at,
        "log" => change_at,
        _ => return None,
    };
    let content = disk.content(path);
    let mut logged = Vec::new();
    for at in (FILE_HEADER..content.len() as u64).step_by(BLOCK as usize) {
        let found = decode(&content[at as usize..], file);
        logged.extend(found.map(|(len, sequence, durable_through)| Logged {
            range: at..(at + len).min(content.len() as u64),
            sequence,
            durable_through,
        }));
    }
    Some(logged)
}

fn append_at(bytes: &[u8], file: FileId) -> Option<(u64, LogSequence, LogSequence)> {
    let header = AppendHeader::decode(bytes, file).ok()??;
    Some((u64::from(header.headers_len) + u64::from(header.data_len), header.sequence, header.durable_through))
}

fn record_at(bytes: &[u8], file: FileId) -> Option<(u64, LogSequence, LogSequence)> {
    let (header, ..) = codec::decode(bytes, file).ok()??;
    let len = codec::HEADER_BYTES + codec::claimed_body_len(bytes);
    Some((len as u64, header.sequence, header.durable_through))
}

fn change_at(bytes: &[u8], file: FileId) -> Option<(u64, LogSequence, LogSequence)> {
    match table::format::decode(file, bytes).ok()? {
        table::format::Found::Record(header, _, len) => Some((len, header.sequence, header.durable_through)),
        table::format::Found::Nothing => None,
    }
}
