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

/// Bytes of a file, one of which rots.
type Place = (PathBuf, Range<u64>);

/// Flips bits at some places of a disk.
pub(super) fn rot(disk: &SimDisk, reach: Reach, places: u64, seed: u64) {
    let mut prng = Prng::new(seed);
    for (path, range) in draw_places(disk, reach, places as usize, &mut prng) {
        disk.flip_bit(&path, range.start + prng.below(range.end - range.start), prng.below(8) as u32);
    }
}

fn draw_places(disk: &SimDisk, reach: Reach, count: usize, prng: &mut Prng) -> Vec<Place> {
    // Superblocks are left out: a directory without one is refused until the operator says so.
    let can_rot = |(path, len): &(PathBuf, u64)| *len >= SECTOR && !path.ends_with("superblock");
    let files: Vec<(PathBuf, u64)> = disk.files().into_iter().filter(can_rot).collect();
    let logs = || files.iter().filter_map(|(path, _)| Some((path.clone(), logged(disk, path)?)));
    let candidates: Vec<Place> = match reach {
        // Files are large and seldom full: their beginnings matter most.
        Reach::Anywhere => files
            .iter()
            .flat_map(|(path, len)| [0..*len, 0..(*len).min(MIB / 8)].map(|range| (path.clone(), range)))
            .collect(),
        Reach::InLog => logs().flat_map(|(path, log)| proven(log).map(move |one| (path.clone(), one.range))).collect(),
        Reach::AtRest => {
            let written: Vec<(PathBuf, Vec<Logged>)> = logs().filter(|(_, log)| !log.is_empty()).collect();
            if written.is_empty() {
                return Vec::new();
            }
            let (path, log) = prng.pick(&written);
            return log.iter().rev().take(count).map(|one| (path.clone(), one.range.clone())).collect();
        }
    };
    match candidates.is_empty() {
        true => Vec::new(),
        false => (0..count).map(|_| prng.pick(&candidates).clone()).collect(),
    }
}

/// The appends of a log that are known to have been durable, because a later one of the same file says so.
fn proven(log: Vec<Logged>) -> impl Iterator<Item = Logged> {
    let through = log.iter().map(|one| one.durable_through).max().unwrap_or_default();
    log.into_iter().filter(move |one| one.sequence <= through)
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
