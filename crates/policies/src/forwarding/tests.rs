//! One segment of a volume, its owner, its logs and its agent, through everything that can go wrong; and breaks with each flaw.
//! And the index by itself, against a list.

mod world;

use std::ops::Range;

use base::Prng;

use super::*;
use world::{Flaw, Seen, World};

#[test]
fn whatever_happens_nothing_is_lost_and_nothing_old_is_read() {
    let mut seen = Seen::default();
    for seed in 0..3_000 {
        match World::run(seed, None) {
            Ok(run) => seen.add(&run),
            Err(broken) => panic!("seed {seed}: {broken}"),
        }
    }
    // What never happens is not tested.
    seen.assert_all();
}

#[test]
fn every_flaw_is_noticed() {
    for flaw in Flaw::ALL {
        let noticed = (0..500).filter(|seed| World::run(*seed, Some(flaw)).is_err()).count();
        println!("{flaw:?}: {noticed} of 500 seeds");
        assert!(noticed > 0, "{flaw:?}");
    }
}

/// What is found is what was logged last, of every byte.
#[test]
fn the_index_agrees_with_a_list() {
    const BYTES: u64 = 64;
    for seed in 0..300 {
        let mut prng = Prng::new(seed);
        let settings = IndexSettings { entries_max: 1_000, ..IndexSettings::default() };
        let mut index = Index::new(settings, Serial(prng.below(100)));
        let mut list: Vec<(Range<u64>, Place)> = Vec::new();
        for _ in 0..120 {
            match prng.below(8) {
                0..5 => {
                    let start = prng.below(BYTES - 1);
                    let range = start..prng.between(start + 1, (start + 20).min(BYTES));
                    let content = match prng.one_in(4) {
                        true => Content::Zeros(prng.below(1_000)),
                        false => Content::Data(prng.below(1_000)),
                    };
                    let serial = index.begin(range.clone(), LogNumber(prng.below(3) as u8), content, 0);
                    if prng.one_in(8) {
                        index.failed(serial);
                        continue;
                    }
                    index.logged(serial);
                    let log = index.find(range.clone())[0].place.expect("it is logged").log;
                    list.push((range, Place { serial, log, content, reschedules: 0 }));
                }
                _ => {
                    let most = prng.between(1, 60);
                    let Some(batch) = index.next_batch(most, 6) else { continue };
                    // Each byte that is to be merged is the newest there is, and nothing that is not merged is left behind.
                    let in_batch = |byte: u64| batch.parts.iter().filter(|(range, _)| range.contains(&byte)).count();
                    for byte in 0..BYTES {
                        let newest = list.iter().rev().find(|(range, _)| range.contains(&byte));
                        let is_due = newest.is_some_and(|(_, place)| place.serial <= batch.through);
                        assert_eq!(in_batch(byte), usize::from(is_due), "seed {seed}, byte {byte}");
                    }
                    index.merged(batch.through);
                    list.retain(|(_, place)| place.serial > batch.through);
                }
            }
            index.check_invariants();
            let parts = index.find(0..BYTES);
            let covered: Vec<u64> = parts.iter().flat_map(|part| part.range.clone()).collect();
            assert_eq!(covered, (0..BYTES).collect::<Vec<_>>(), "seed {seed}");
            for part in parts {
                for byte in part.range.clone() {
                    let newest = list.iter().rev().find(|(range, _)| range.contains(&byte));
                    let there = part.place.map(|place| (place.serial, at(place.content, byte - part.range.start)));
                    let expected = newest.map(|(range, place)| (place.serial, at(place.content, byte - range.start)));
                    assert_eq!(there, expected, "seed {seed}, byte {byte}");
                }
            }
        }
    }
}

fn at(content: Content, further: u64) -> Option<u64> {
    match content {
        Content::Data(address) => Some(address + further),
        Content::Zeros(_) => None,
    }
}

/// A write that covers what is logged follows it, and only as much of it as does; after too many in a row it waits.
#[test]
fn a_stable_write_follows_what_it_overlaps() {
    let mut index = Index::new(IndexSettings { reschedules_max: 2, ..IndexSettings::default() }, Serial(0));
    let log = |index: &mut Index, range: Range<u64>, times| {
        let serial = index.begin(range, LogNumber(0), Content::Data(0), times);
        index.logged(serial);
        serial
    };
    assert_eq!(index.route(0..8), [Route::Owner(0..8)]);
    log(&mut index, 2..4, 0);
    assert_eq!(index.route(0..8), [Route::Owner(0..2), Route::Log(2..4, 1), Route::Owner(4..8)]);
    log(&mut index, 2..4, 1);
    let last = log(&mut index, 2..3, 2);
    assert_eq!(index.route(2..4), [Route::Wait(2..3, last), Route::Log(3..4, 2)]);
    index.merged(last);
    assert_eq!((index.route(2..4), index.is_empty(), index.bytes()), (vec![Route::Owner(2..4)], true, 0));
}

/// At a bound nothing new begins, and what has to follow waits.
#[test]
fn an_index_is_bounded() {
    for settings in [
        IndexSettings { entries_max: 2, ..IndexSettings::default() },
        IndexSettings { bytes_max: 16, ..IndexSettings::default() },
    ] {
        let mut index = Index::new(settings, Serial(7));
        for start in [0, 8] {
            assert!(!index.is_full());
            let serial = index.begin(start..start + 8, LogNumber(0), Content::Data(0), 0);
            index.logged(serial);
        }
        assert!(index.is_full());
        assert_eq!(
            index.route(4..20),
            [Route::Wait(4..8, Serial(8)), Route::Wait(8..16, Serial(9)), Route::Owner(16..20)]
        );
        index.merged(Serial(8));
        assert!(!index.is_full());
    }
}

/// A traversal finds entries in any order, one of them twice, some merged or void, and not one that was never appended.
#[test]
fn what_a_traversal_finds_is_what_was_there() {
    let place = |serial: u64| Place {
        serial: Serial(serial),
        log: LogNumber(serial as u8 % 3),
        content: Content::Data(serial * 100),
        reschedules: 0,
    };
    let found = [9, 4, 10, 6, 6, 5].map(|serial| (serial..serial + 4, place(serial))).to_vec();
    let mut index = Index::found(IndexSettings::default(), Serial(4), &[Serial(10)], found);
    index.check_invariants();
    assert_eq!((index.watermark(), index.len(), index.bytes()), (Serial(4), 6, 12));
    let there: Vec<_> = index.find(5..13).iter().map(|part| part.place.map(|place| place.serial.0)).collect();
    assert_eq!(there, [Some(5), Some(6), Some(9)]);
    let batch = index.next_batch(u64::MAX, 100).expect("there is something");
    assert_eq!((batch.through, batch.parts.len()), (Serial(10), 3));
    let released: Vec<_> = index.merged(batch.through).into_iter().map(|(log, _)| log.0).collect();
    assert_eq!(released, [2, 0, 0], "and nothing of those that were nowhere");
    assert_eq!(index.begin(0..1, LogNumber(0), Content::Zeros(0), 0), Serial(11));
}
