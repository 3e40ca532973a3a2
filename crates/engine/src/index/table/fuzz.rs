//! Fuzz targets of tables: pages with edits, their checksum made right again, and what is known of a table.

use base::checksum::crc32c;
use base::{BLOCK, FileId, Prng, SegmentId, SegmentSequence, VolumeId};

use super::Layout;
use super::page::{self, PAGE, PageKind, PagePlace};
use crate::index::{Entry, TableInfo};

/// The same, and noise.
type Fields = (u64, Vec<(u8, u8)>, [u8; 64]);

/// A seed of something valid, and edits of it.
type Edits = (u64, Vec<(u16, u8)>);

const SEGMENT: SegmentId = SegmentId { volume: VolumeId(0x11), index: 2 };

fn place(kind: PageKind) -> PagePlace {
    PagePlace { segment: SEGMENT, file: FileId(0x22), number: 3, kind }
}

fn info(prng: &mut Prng) -> TableInfo {
    let entries = prng.between(1, 1000) as u32;
    TableInfo {
        file: FileId(0x22),
        leaves: entries.div_ceil(127),
        entries,
        tombstones: prng.below(u64::from(entries)) as u32,
        data_files: prng.between(1, u64::from(entries)) as u32,
        first_block: 7,
        end_block: 7 + entries,
        moves_max: prng.below(3) as u32,
        sequence_min: SegmentSequence(1),
        sequence_max: SegmentSequence(prng.between(1, 1000)),
        quiet: prng.one_in(2),
    }
}

/// A page of `kind` and how many of its bytes are used.
fn example(kind: PageKind, prng: &mut Prng) -> (Vec<u8>, usize) {
    let mut bytes = vec![0; PAGE];
    let count = prng.between(1, 100);
    let item = match kind {
        PageKind::Leaf => {
            let entry = |block| match block % 5 {
                0 => Entry::zeros(block, 1, SegmentSequence(9)),
                _ => Entry::data(block, SegmentSequence(8), FileId(4), u64::from(block) * BLOCK, block),
            };
            let entries: Vec<Entry> = (0..count as u32).map(entry).collect();
            page::encode_leaf(&mut bytes, &place(kind), &entries);
            page::ENTRY_LEN
        }
        PageKind::Inner => {
            let blocks: Vec<u32> = (0..count as u32).map(|index| index * 10).collect();
            page::encode_inner(&mut bytes, &place(kind), &blocks);
            4
        }
        PageKind::Summary => {
            let files: Vec<(FileId, u32)> = (0..count).map(|index| (FileId(index + 1), 3)).collect();
            page::encode_summary(&mut bytes, &place(kind), &files);
            16
        }
        PageKind::Footer => {
            page::encode_footer(&mut bytes, &place(kind), &info(prng));
            return (bytes, 128);
        }
    };
    (bytes, page::HEADER_LEN + count as usize * item)
}

/// Everything that a reader may ask of a page that is believed. What has all its entries is encoded again.
fn use_page(bytes: &[u8], place: &PagePlace) -> Option<Vec<u8>> {
    let mut again = vec![0; PAGE];
    match place.kind {
        PageKind::Leaf => {
            let entries: Option<Vec<Entry>> =
                (0..page::count(bytes)).map(|index| page::leaf_entry(bytes, index)).collect();
            for block in [0, 50, u32::MAX] {
                assert!(page::leaf_search(bytes, block).is_none_or(|index| index < page::count(bytes)));
            }
            page::encode_leaf(&mut again, place, &entries?);
        }
        PageKind::Inner => {
            for block in [0, 50, u32::MAX] {
                assert!(page::inner_search(bytes, block).is_none_or(|index| index < page::count(bytes)));
            }
            return None;
        }
        PageKind::Summary => {
            assert_eq!(page::summary_files(bytes).count(), page::count(bytes));
            return None;
        }
        PageKind::Footer => {
            let info = page::footer_info(bytes)?;
            let layout = Layout::new(info.leaves, info.data_files);
            assert!(layout.pages() > info.leaves);
            if info.file != place.file {
                return None;
            }
            page::encode_footer(&mut again, place, &info);
        }
    }
    Some(again)
}

#[test]
fn a_page_is_refused_or_means_what_it_says() {
    let kinds = [PageKind::Leaf, PageKind::Inner, PageKind::Summary, PageKind::Footer];
    let mut accepted = [0; 4];
    bolero::check!().with_iterations(20_000).with_type().for_each(|(seed, edits): &Edits| {
        let mut prng = Prng::new(*seed);
        let number = prng.below(4) as usize;
        let place = place(kinds[number]);
        let (sound, used) = example(kinds[number], &mut prng);
        assert!(page::is_intact(&sound, &place));
        let mut bytes = sound.clone();
        let count = if prng.one_in(2) { 1 } else { edits.len() };
        edits.iter().take(count).for_each(|(at, value)| bytes[usize::from(*at) % used] ^= value);
        assert!(bytes == sound || !page::is_intact(&bytes, &place), "an edit is noticed");
        let sum = crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
        if !page::is_intact(&bytes, &place) {
            return;
        }
        let Some(again) = use_page(&bytes, &place) else { return };
        accepted[number] += 1;
        match place.kind {
            // What lies behind the entries, and flags of compatible features, are passed over.
            PageKind::Footer => assert_eq!(again[64..], bytes[64..]),
            _ => {
                let end = page::HEADER_LEN + page::count(&bytes) * page::ENTRY_LEN;
                assert_eq!(again[4..end], bytes[4..end]);
            }
        }
    });
    assert!(accepted[0] > 0 && accepted[3] > 0, "nothing was ever accepted: {accepted:?}");
}

#[test]
fn what_is_known_of_a_table_makes_sense_or_is_refused() {
    bolero::check!().with_iterations(20_000).with_type().for_each(|(seed, edits, noise): &Fields| {
        let mut bytes = info(&mut Prng::new(*seed)).encode();
        edits.iter().take(3).for_each(|(at, value)| bytes[usize::from(*at) % 64] ^= value);
        for bytes in [bytes, *noise] {
            let Some(info) = TableInfo::decode(&bytes) else { continue };
            assert_eq!(info.encode(), bytes);
            assert!(Layout::new(info.leaves, info.data_files).pages() > info.leaves);
        }
    });
}
