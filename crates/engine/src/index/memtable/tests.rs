use base::{Map, Prng, SegmentSequence};

use super::*;
use crate::index::Version;

const BLOCKS: u32 = 96;

/// Counts references the way the garbage ledger does.
#[derive(Default)]
struct Counts(Map<FileId, i64>);

impl References for Counts {
    fn added(&mut self, file: FileId) {
        *self.0.entry(file).or_default() += 1;
    }

    fn removed(&mut self, file: FileId) {
        *self.0.entry(file).or_default() -= 1;
    }
}

/// Entries as they can exist together: content is a function of (block, sequence), and a sequence is either a write or
/// a discard.
fn random_entries(prng: &mut Prng, count: u64) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for sequence in 1..=count {
        let block = prng.below(u64::from(BLOCKS)) as u32;
        let sequence = SegmentSequence(sequence);
        if prng.one_in(4) {
            let count = prng.between(1, u64::from(BLOCKS - block).min(30)) as u32;
            entries.push(Entry::zeros(block, count, sequence));
            continue;
        }
        let mut entry =
            Entry::data(block, sequence, FileId(prng.between(1, 5)), prng.below(64) * 4096, sequence.0 as u32);
        entries.push(entry);
        while prng.one_in(3) {
            entry = entry.relocated(FileId(prng.between(6, 9)), prng.below(64) * 4096);
            entries.push(entry);
        }
    }
    entries
}

fn shuffled_with_repetitions(prng: &mut Prng, entries: &[Entry]) -> Vec<Entry> {
    let mut out = entries.to_vec();
    for _ in 0..entries.len() / 3 {
        out.push(*prng.pick(entries));
    }
    for i in (1..out.len()).rev() {
        out.swap(i, prng.below(i as u64 + 1) as usize);
    }
    out
}

fn winner(entries: &[Entry], block: u32) -> Option<Entry> {
    let covering = entries.iter().filter(|e| e.covers(block)).map(|e| e.clipped(block, block + 1));
    covering.reduce(|best, e| if e.wins_over(&best) { e } else { best })
}

#[test]
fn any_order_and_repetition_gives_the_same_index() {
    for seed in 0..400 {
        let mut prng = Prng::new(seed);
        let count = prng.between(1, 80);
        let entries = random_entries(&mut prng, count);
        for _ in 0..3 {
            let mut memtable = Memtable::default();
            let mut counts = Counts::default();
            for entry in shuffled_with_repetitions(&mut prng, &entries) {
                memtable.join(entry, &mut counts);
            }
            for block in 0..BLOCKS {
                let found = memtable.get(block).map(|e| e.clipped(block, block + 1));
                assert_eq!(found, winner(&entries, block), "seed {seed}, block {block}");
            }
            check_structure(&memtable, &counts, seed);
        }
    }
}

fn check_structure(memtable: &Memtable, counts: &Counts, seed: u64) {
    let all: Vec<Entry> = memtable.iter().copied().collect();
    assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].block), "seed {seed}: entries overlap");
    let mut expected: Map<FileId, i64> = Map::default();
    for file in all.iter().filter_map(Entry::file) {
        *expected.entry(file).or_default() += 1;
    }
    for (file, count) in &counts.0 {
        assert_eq!(expected.get(file).copied().unwrap_or(0), *count, "seed {seed}: references of {file}");
    }
    assert_eq!(memtable.overlapping(0..BLOCKS).count(), memtable.len());
}

#[test]
fn overlapping_starts_with_the_entry_that_spans_the_start() {
    let mut memtable = Memtable::default();
    memtable.join(Entry::zeros(10, 20, SegmentSequence(1)), &mut ());
    memtable.join(Entry::data(15, SegmentSequence(2), FileId(1), 0, 0), &mut ());
    let starts = |range| memtable.overlapping(range).map(|e| e.block).collect::<Vec<_>>();
    assert_eq!(starts(12..16), [10, 15]);
    assert_eq!(starts(16..17), [16]);
    assert_eq!(starts(30..40), [] as [u32; 0]);
    assert_eq!(starts(0..11), [10]);
    assert_eq!(memtable.bytes(), 3 * ENTRY_BYTES);
}

#[test]
fn a_loser_cuts_nothing() {
    let mut memtable = Memtable::default();
    let hole = Entry::zeros(0, 50, SegmentSequence(9));
    memtable.join(hole, &mut ());
    memtable.join(Entry::zeros(10, 5, SegmentSequence(3)), &mut ());
    memtable.join(Entry::data(20, SegmentSequence(4), FileId(1), 0, 0), &mut ());
    assert_eq!(memtable.iter().copied().collect::<Vec<_>>(), [hole]);
    assert_eq!(hole.version, Version { sequence: SegmentSequence(9), moves: 0 });
}
