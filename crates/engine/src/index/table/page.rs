//! The pages of a table: bytes and nothing else (docs/formats/table.md).
//!
//! Every page is 4 KiB: a header of 32 bytes that names the table, the segment and the page's own number, then items
//! of a fixed size. The checksum covers all of the page but itself, so a page that was lost, misdirected, or belongs
//! to a file's earlier life is noticed when it is read.

use base::checksum::crc32c;
use base::{BLOCK, FileId, SECTOR, SegmentId, SegmentSequence};

use crate::index::TableInfo;
use crate::index::entry::{Entry, Mapping, Version};

/// Bytes of a page.
pub const PAGE: usize = BLOCK as usize;
/// Bytes of a page's header.
pub const HEADER_LEN: usize = 32;
/// Bytes of an encoded entry.
pub const ENTRY_LEN: usize = 32;
/// Entries of a leaf.
pub const LEAF_ENTRIES: usize = (PAGE - HEADER_LEN) / ENTRY_LEN;
/// Children of an inner page.
pub const INNER_CHILDREN: usize = (PAGE - HEADER_LEN) / 4;
/// Data files named by a summary page.
pub const SUMMARY_FILES: usize = (PAGE - HEADER_LEN) / SUMMARY_LEN;

const SUMMARY_LEN: usize = 16;
const VERSION: u8 = 1;
const FOOTER_MAGIC: &[u8; 8] = b"LVTABLE1";

const KIND_ZEROS: u8 = 1;
const KIND_DATA: u8 = 2;

/// What a page holds. The numbers are on disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PageKind {
    /// Entries, by block.
    Leaf = 1,
    /// The first block of each child page.
    Inner = 2,
    /// Data files with the number of entries that name them, by file.
    Summary = 3,
    /// The table's [`TableInfo`]; the last page.
    Footer = 4,
}

/// A page's place: what its header must say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagePlace {
    /// The segment of the table.
    pub segment: SegmentId,
    /// The table's file.
    pub file: FileId,
    /// The page's number in the file.
    pub number: u32,
    /// What it holds.
    pub kind: PageKind,
}

/// What a page's header says besides count and checksum.
fn header(place: &PagePlace) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[4] = place.kind as u8;
    header[5] = VERSION;
    header[8..12].copy_from_slice(&place.number.to_le_bytes());
    header[12..16].copy_from_slice(&place.segment.index.to_le_bytes());
    header[16..24].copy_from_slice(&place.segment.volume.0.to_le_bytes());
    header[24..32].copy_from_slice(&place.file.0.to_le_bytes());
    header
}

/// Starts a page in `page`, which must be zeros.
fn begin(page: &mut [u8], place: &PagePlace) {
    assert_eq!(page.len(), PAGE);
    page[..HEADER_LEN].copy_from_slice(&header(place));
}

/// Ends a page of `count` items.
fn finish(page: &mut [u8], count: usize) {
    page[6..8].copy_from_slice(&(count as u16).to_le_bytes());
    let checksum = crc32c(&page[4..]);
    page[..4].copy_from_slice(&checksum.to_le_bytes());
}

/// Whether `page` is intact and belongs at `place`.
pub fn is_intact(page: &[u8], place: &PagePlace) -> bool {
    if page.len() != PAGE || u32_at(page, 0) != crc32c(&page[4..]) {
        return false;
    }
    let expected = header(place);
    let count_max = match place.kind {
        PageKind::Leaf => LEAF_ENTRIES,
        PageKind::Inner => INNER_CHILDREN,
        PageKind::Summary => SUMMARY_FILES,
        PageKind::Footer => 1,
    };
    let says_its_place = page[4..6] == expected[4..6] && page[8..HEADER_LEN] == expected[8..];
    says_its_place && (1..=count_max).contains(&count(page))
}

/// Items of a page.
pub fn count(page: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([page[6], page[7]]))
}

/// Writes a leaf of up to [`LEAF_ENTRIES`] entries into `page`, which must be zeros.
pub fn encode_leaf(page: &mut [u8], place: &PagePlace, entries: &[Entry]) {
    assert!(place.kind == PageKind::Leaf && !entries.is_empty() && entries.len() <= LEAF_ENTRIES);
    begin(page, place);
    for (entry, bytes) in entries.iter().zip(page[HEADER_LEN..].chunks_exact_mut(ENTRY_LEN)) {
        encode_entry(entry, bytes);
    }
    finish(page, entries.len());
}

fn encode_entry(entry: &Entry, bytes: &mut [u8]) {
    assert!(entry.is_valid(), "{entry:?}");
    bytes[..4].copy_from_slice(&entry.block.to_le_bytes());
    bytes[4..10].copy_from_slice(&entry.version.sequence.0.to_le_bytes()[..6]);
    bytes[10..13].copy_from_slice(&entry.version.moves.to_le_bytes()[..3]);
    match entry.mapping {
        Mapping::Zeros => {
            bytes[16..20].copy_from_slice(&entry.count.to_le_bytes());
            bytes[13] = KIND_ZEROS;
        }
        Mapping::Data { file, offset, checksum } => {
            bytes[16..24].copy_from_slice(&file.0.to_le_bytes());
            // A valid entry's offset fits 32 bits in units of 512 bytes.
            bytes[24..28].copy_from_slice(&((offset / SECTOR) as u32).to_le_bytes());
            bytes[28..32].copy_from_slice(&checksum.to_le_bytes());
            bytes[13] = KIND_DATA;
        }
    }
}

/// The first block of item `index` of a leaf.
pub fn leaf_block(page: &[u8], index: usize) -> u32 {
    u32_at(page, HEADER_LEN + index * ENTRY_LEN)
}

/// Entry `index` of a leaf; `None` where it makes no sense (a later version's, or a bug's).
pub fn leaf_entry(page: &[u8], index: usize) -> Option<Entry> {
    let bytes = &page[HEADER_LEN + index * ENTRY_LEN..][..ENTRY_LEN];
    let sequence = u64::from(u32_at(bytes, 4)) | u64::from(u16_at(bytes, 8)) << 32;
    let moves = u32_at(bytes, 10) & 0x00ff_ffff;
    let version = Version { sequence: SegmentSequence(sequence), moves };
    let (count, mapping) = match bytes[13] {
        KIND_ZEROS if bytes[20..] == [0; 12] => (u32_at(bytes, 16), Mapping::Zeros),
        KIND_DATA => {
            let (file, offset) = (FileId(u64_at(bytes, 16)), u64::from(u32_at(bytes, 24)) * SECTOR);
            (1, Mapping::Data { file, offset, checksum: u32_at(bytes, 28) })
        }
        _ => return None,
    };
    let reserved_is_zero = bytes[14..16] == [0, 0];
    let entry = Entry { block: u32_at(bytes, 0), count, version, mapping };
    (reserved_is_zero && entry.is_valid()).then_some(entry)
}

/// The last item of a leaf that starts at `block` or below; `None` where all start above.
pub fn leaf_search(page: &[u8], block: u32) -> Option<usize> {
    search(count(page), |index| leaf_block(page, index) <= block)
}

/// Writes an inner page with the first block of each child.
pub fn encode_inner(page: &mut [u8], place: &PagePlace, first_blocks: &[u32]) {
    assert!(place.kind == PageKind::Inner && !first_blocks.is_empty() && first_blocks.len() <= INNER_CHILDREN);
    begin(page, place);
    for (block, bytes) in first_blocks.iter().zip(page[HEADER_LEN..].chunks_exact_mut(4)) {
        bytes.copy_from_slice(&block.to_le_bytes());
    }
    finish(page, first_blocks.len());
}

/// The child of an inner page in which `block` is: the last one that starts at `block` or below.
pub fn inner_search(page: &[u8], block: u32) -> Option<usize> {
    search(count(page), |index| u32_at(page, HEADER_LEN + 4 * index) <= block)
}

/// The last index below `count` for which `is_below` holds; it holds for a prefix.
fn search(count: usize, is_below: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = (low + high) / 2;
        match is_below(middle) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    low.checked_sub(1)
}

/// Writes a summary page: data files and how many entries of the table name each.
pub fn encode_summary(page: &mut [u8], place: &PagePlace, files: &[(FileId, u32)]) {
    assert!(place.kind == PageKind::Summary && !files.is_empty() && files.len() <= SUMMARY_FILES);
    begin(page, place);
    for ((file, entries), bytes) in files.iter().zip(page[HEADER_LEN..].chunks_exact_mut(SUMMARY_LEN)) {
        bytes[..8].copy_from_slice(&file.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&entries.to_le_bytes());
    }
    finish(page, files.len());
}

/// The data files of a summary page.
pub fn summary_files(page: &[u8]) -> impl Iterator<Item = (FileId, u32)> + '_ {
    let items = page[HEADER_LEN..].chunks_exact(SUMMARY_LEN).take(count(page));
    items.map(|bytes| (FileId(u64_at(bytes, 0)), u32_at(bytes, 8)))
}

/// Writes the footer.
pub fn encode_footer(page: &mut [u8], place: &PagePlace, info: &TableInfo) {
    assert!(place.kind == PageKind::Footer && place.file == info.file);
    begin(page, place);
    page[HEADER_LEN..HEADER_LEN + 8].copy_from_slice(FOOTER_MAGIC);
    // Compatible, read-only-compatible and incompatible feature flags stay zero in format 1.
    page[64..64 + TableInfo::ENCODED_LEN].copy_from_slice(&info.encode());
    finish(page, 1);
}

/// What the footer says, if this version may read the table: an unknown incompatible feature hides it.
pub fn footer_info(page: &[u8]) -> Option<TableInfo> {
    let incompatible_features = u64_at(page, 56);
    if page[HEADER_LEN..HEADER_LEN + 8] != FOOTER_MAGIC[..] || incompatible_features != 0 {
        return None;
    }
    TableInfo::decode(page[64..64 + TableInfo::ENCODED_LEN].try_into().ok()?)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

const _: () = assert!(LEAF_ENTRIES == 127 && INNER_CHILDREN == 1016 && SUMMARY_FILES == 254);
const _: () = assert!(HEADER_LEN + ENTRY_LEN * LEAF_ENTRIES == PAGE);
