use std::fmt::Write;

use base::checksum::crc32c;
use base::{Epoch, ErrorKind, Prng, SegmentSequence, VolumeId};
use files::Store;
use files::memory::{Memory, MemoryOptions};
use runtime::sim::{NodeOptions, World};

use super::page::PAGE;
use super::writer::{TableOptions, TableWriter};
use super::*;
use crate::index::memtable::Memtable;
use crate::index::sweep::Source;
use crate::options::Ownership;
use crate::verified::VerifiedFiles;

const SEGMENT: SegmentId = SegmentId { volume: VolumeId(0x11), index: 2 };

fn run<T: 'static, F: Future<Output = T> + 'static>(
    seed: u64,
    copies: u8,
    test: impl FnOnce(Memory, PageCache) -> F,
) -> T {
    let world = World::new(seed);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    let memory = Memory::new(seed, MemoryOptions { directories: copies, ..MemoryOptions::default() });
    let files = VerifiedFiles::new(&handle, &memory.open(&handle));
    world.block_on(&handle, test(memory, PageCache::new(files, 1 << 20)))
}

async fn write(store: &Store, entries: &[Entry], copies: u8) -> Table {
    let options = TableOptions {
        segment: SEGMENT,
        epoch: Epoch(1),
        entries_max: entries.len() as u64,
        data_files_max: entries.len() as u64,
        copies,
        ownership: Ownership::Whole,
    };
    let mut writer = TableWriter::create(store, options).await.unwrap();
    for entry in entries {
        if writer.push(*entry) {
            writer.flush().await.unwrap();
        }
    }
    Table::new(SEGMENT, writer.finish(true).await.unwrap())
}

fn random_memtable(prng: &mut Prng, count: u64, blocks: u64) -> Memtable {
    let mut memtable = Memtable::default();
    for sequence in 1..=count {
        let block = prng.below(blocks) as u32;
        let sequence = SegmentSequence(sequence);
        let entry = match prng.one_in(8) {
            true => Entry::zeros(block, prng.between(1, 300) as u32, sequence),
            false => Entry::data(block, sequence, FileId(prng.between(1, 400)), prng.below(1000) * 4096, block),
        };
        memtable.join(entry, &mut ());
    }
    memtable
}

#[test]
fn a_table_answers_as_the_memtable_it_came_from() {
    for seed in 0..20 {
        run(seed, 1, move |memory, cache| async move {
            let _ = memory;
            let mut prng = Prng::new(seed);
            let count = prng.between(1, 3000);
            let memtable = random_memtable(&mut prng, count, 10_000);
            let entries: Vec<Entry> = memtable.iter().copied().collect();
            let table = std::rc::Rc::new(write(cache.files().store(), &entries, 1).await);
            table.check_footer(&cache).await.unwrap();
            check_info(&table.info(), &entries);
            for _ in 0..50 {
                let start = prng.below(10_100) as u32;
                let blocks = start..start + prng.between(1, 400) as u32;
                let mut slots = vec![None; blocks.len()];
                table.overlay(&cache, blocks.clone(), &mut slots).await.unwrap();
                for (slot, block) in slots.iter().zip(blocks) {
                    let expected = memtable.get(block).map(|entry| entry.clipped(block, block + 1));
                    assert_eq!(*slot, expected, "seed {seed}, block {block}");
                }
            }
            for _ in 0..10 {
                let from = prng.below(10_100) as u32;
                let mut cursor = cursor::TableCursor::seek(table.clone(), &cache, from).await.unwrap();
                let mut scanned = Vec::new();
                loop {
                    cursor.fill(&cache).await.unwrap();
                    let Some(entry) = cursor.peek() else { break };
                    scanned.push(entry);
                    cursor.skip_to(entry.end());
                }
                let above = entries.iter().filter(|entry| entry.end() > from);
                let expected: Vec<Entry> = above.map(|entry| entry.clipped(from, u32::MAX)).collect();
                assert_eq!(scanned, expected, "seed {seed}, from {from}");
            }
            let mut counts = std::collections::BTreeMap::new();
            entries.iter().filter_map(Entry::file).for_each(|file| *counts.entry(file).or_insert(0u32) += 1);
            assert_eq!(table.data_files(&cache).await.unwrap(), counts.into_iter().collect::<Vec<_>>());
        });
    }
}

fn check_info(info: &TableInfo, entries: &[Entry]) {
    assert_eq!(info.entries as usize, entries.len());
    assert_eq!(info.tombstones as usize, entries.iter().filter(|entry| entry.file().is_none()).count());
    assert_eq!((info.first_block, info.end_block), (entries[0].block, entries[entries.len() - 1].end()));
    assert_eq!(Some(info.sequence_max), entries.iter().map(|entry| entry.version.sequence).max());
    assert_eq!(Some(info.sequence_min), entries.iter().map(|entry| entry.version.sequence).min());
    assert!(info.quiet);
}

#[test]
fn a_table_of_three_levels() {
    run(1, 1, |memory, cache| async move {
        let _ = memory;
        let count = (LEAF_ENTRIES * INNER_CHILDREN + 1000) as u32;
        let at = |i: u32| Entry::data(i * 3, SegmentSequence(1 + u64::from(i)), FileId(9), u64::from(i) * 4096, i);
        let entries: Vec<Entry> = (0..count).map(at).collect();
        let table = write(cache.files().store(), &entries, 1).await;
        assert_eq!(table.layout.levels, 2);
        for i in [0, 1, 126, 127, 128, 5000, 129_031, 129_032, 129_033, count - 1] {
            let mut slots = [None; 3];
            table.overlay(&cache, i * 3..i * 3 + 3, &mut slots).await.unwrap();
            assert_eq!(slots, [Some(at(i)), None, None]);
        }
    });
}

#[test]
fn a_bad_page_is_served_from_another_copy_and_repaired() {
    run(2, 2, |memory, cache| async move {
        let mut prng = Prng::new(2);
        let memtable = random_memtable(&mut prng, 2000, 100_000);
        let entries: Vec<Entry> = memtable.iter().copied().collect();
        let table = write(cache.files().store(), &entries, 2).await;
        let file = table.info.file;
        for number in 0..table.layout.pages() {
            let start = u64::from(number) * PAGE as u64 + prng.below(PAGE as u64);
            memory.corrupt(file, (number % 2) as u8, start..start + 1);
        }
        let mut slots = vec![None; 100_000];
        table.overlay(&cache, 0..100_000, &mut slots).await.unwrap();
        for (block, slot) in (0..).zip(&slots) {
            assert_eq!(*slot, memtable.get(block).map(|entry| entry.clipped(block, block + 1)));
        }
        let statistics = cache.files().statistics();
        assert!(statistics.mismatches > 0 && statistics.lost == 0, "{statistics:?}");
        cache.files().handle().sleep(std::time::Duration::from_millis(50)).await;
        assert!(cache.files().statistics().repaired > 0);
        assert_eq!(cache.files().statistics().mismatches, statistics.mismatches);
    });
}

#[test]
fn pages_that_are_bad_everywhere_are_an_error_that_names_them() {
    run(3, 2, |memory, cache| async move {
        let mut prng = Prng::new(3);
        let memtable = random_memtable(&mut prng, 500, 10_000);
        let entries: Vec<Entry> = memtable.iter().copied().collect();
        let table = std::rc::Rc::new(write(cache.files().store(), &entries, 2).await);
        for copy in 0..2 {
            memory.corrupt(table.info.file, copy, 4096 + 100..4096 + 101);
        }
        let mut slots = vec![None; 10_000];
        let error = table.overlay(&cache, 0..10_000, &mut slots).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt);
        for copy in 0..2 {
            let path = cache.files().store().locate(table.info.file, copy);
            assert!(error.message.contains(&path) && error.message.contains("offset 4096"), "{error}");
        }
        assert_eq!(cursor::TableCursor::seek(table, &cache, 0).await.err().map(|e| e.kind), Some(ErrorKind::Corrupt));
        assert!(cache.files().statistics().lost >= 2);
    });
}

#[test]
fn any_flipped_bit_of_a_page_is_noticed() {
    let place = PagePlace { segment: SEGMENT, file: FileId(5), number: 9, kind: PageKind::Leaf };
    let mut page = vec![0; PAGE];
    page::encode_leaf(&mut page, &place, &[Entry::data(1, SegmentSequence(1), FileId(2), 0, 3)]);
    assert!(page::is_intact(&page, &place));
    assert!(!page::is_intact(&[0; PAGE], &place));
    for other in [
        PagePlace { number: 8, ..place },
        PagePlace { file: FileId(6), ..place },
        PagePlace { kind: PageKind::Inner, ..place },
        PagePlace { segment: SegmentId { index: 1, ..SEGMENT }, ..place },
    ] {
        assert!(!page::is_intact(&page, &other), "{other:?}");
    }
    let mut prng = Prng::new(4);
    for _ in 0..1000 {
        let (at, bit) = (prng.below(PAGE as u64) as usize, 1 << prng.below(8));
        page[at] ^= bit;
        assert!(!page::is_intact(&page, &place), "byte {at}");
        page[at] ^= bit;
    }
}

#[test]
fn hostile_pages_with_good_checksums_never_panic() {
    let place = PagePlace { segment: SEGMENT, file: FileId(5), number: 9, kind: PageKind::Leaf };
    let mut prng = Prng::new(5);
    for _ in 0..300 {
        let mut page = vec![0; PAGE];
        page::encode_leaf(&mut page, &place, &[Entry::data(1, SegmentSequence(1), FileId(2), 0, 3)]);
        page[6..8].copy_from_slice(&(prng.below(140) as u16).to_le_bytes());
        prng.fill(&mut page[page::HEADER_LEN..]);
        let checksum = crc32c(&page[4..]);
        page[..4].copy_from_slice(&checksum.to_le_bytes());
        if page::is_intact(&page, &place) {
            assert!(page::count(&page) <= LEAF_ENTRIES);
            let _ = page::leaf_search(&page, prng.next_u64() as u32);
            (0..page::count(&page))
                .for_each(|index| assert!(page::leaf_entry(&page, index).is_none_or(|entry| entry.is_valid())));
        }
        let _ = (page::footer_info(&page), page::inner_search(&page, 7), page::summary_files(&page).count());
    }
}

/// The bytes of format 1. If this fails without a decision to change the format, stores in the field become unreadable.
#[test]
fn golden() {
    let place = |number, kind| PagePlace { segment: SEGMENT, file: FileId(0xabcd), number, kind };
    let moved =
        Entry::data(8, SegmentSequence(0x0203_0405_0607), FileId(0x99), 0, 0xdead_beef).relocated(FileId(0x9a), 8192);
    let entries = [Entry::zeros(1, 7, SegmentSequence(5)), moved];
    let mut pages = vec![vec![0; PAGE]; 4];
    page::encode_leaf(&mut pages[0], &place(0, PageKind::Leaf), &entries);
    page::encode_inner(&mut pages[1], &place(1, PageKind::Inner), &[1, 0x0102_0304]);
    page::encode_summary(&mut pages[2], &place(2, PageKind::Summary), &[(FileId(0x9a), 1)]);
    let info = TableInfo {
        file: FileId(0xabcd),
        leaves: 1,
        entries: 2,
        tombstones: 1,
        data_files: 1,
        first_block: 1,
        end_block: 9,
        moves_max: 1,
        sequence_min: SegmentSequence(5),
        sequence_max: SegmentSequence(0x0203_0405_0607),
        quiet: true,
    };
    page::encode_footer(&mut pages[3], &place(3, PageKind::Footer), &info);
    let mut text = String::new();
    for page in &pages {
        let used = page.len() - page.iter().rev().take_while(|&&byte| byte == 0).count();
        for line in page[..used].chunks(32) {
            line.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
            text.push('\n');
        }
        text.push('\n');
    }
    assert_eq!(text, include_str!("golden.txt"), "\n{text}");
}

#[test]
fn every_page_of_a_layout_has_its_kind() {
    for (leaves, data_files) in [(1, 0), (1, 1), (2, 300), (1_016, 5), (1_017, 5), (1_016 * 1_016 + 1, 1_000)] {
        let layout = Layout::new(leaves, data_files);
        let mut counts = [0u32; 4];
        (0..layout.pages()).for_each(|page| counts[layout.kind(page) as usize - 1] += 1);
        let inner: u32 = layout.inner[..layout.levels].iter().map(|(_, pages)| pages).sum();
        assert_eq!(counts, [leaves, inner, layout.summary_pages, 1], "{leaves} leaves");
        assert_eq!(layout.kind(layout.footer()), PageKind::Footer);
    }
}
