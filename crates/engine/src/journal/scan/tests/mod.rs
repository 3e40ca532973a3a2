use base::{BLOCK, ErrorKind, SECTOR};

use super::*;

mod rig;

use rig::{Coverage, Disk, Rig};

fn run(mut rig: Rig, coverage: &mut Coverage) {
    for epoch in 1..=4 {
        rig.live(epoch, coverage);
    }
    let shown = rig.shown.clone();
    rig.scan(false).unwrap();
    rig.check(&shown, coverage);
}

/// Everything acknowledged is returned, nothing that was not submitted, and nothing that was shown is taken back. It
/// goes on for up to ten times as many seeds until what has to be covered was.
fn run_seeds(seeds: u64, rig: impl Fn(u64, u8) -> Rig, is_covered: impl Fn(&Coverage) -> bool) -> Coverage {
    let base = base_seed();
    let mut coverage = Coverage::default();
    for seed in base..base + 10 * seeds {
        if seed >= base + seeds && is_covered(&coverage) {
            break;
        }
        run(rig(seed, 1 + (seed % 2) as u8), &mut coverage);
    }
    println!("{coverage:?}");
    coverage
}

/// A new one in each run of the tests, unless `LEVEE_SEED` names one.
fn base_seed() -> u64 {
    let seed = match std::env::var("LEVEE_SEED") {
        Ok(seed) => seed.parse().expect("LEVEE_SEED is a number"),
        Err(_) => std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0) >> 32,
    };
    println!("LEVEE_SEED={seed}");
    seed
}

#[test]
fn crashes_on_a_store_in_memory() {
    let coverage = run_seeds(100, Rig::memory, |_| true);
    coverage.assert_complete();
}

#[test]
fn crashes_on_a_store_on_disks() {
    let is_covered =
        |coverage: &Coverage| coverage.acknowledged > 0 && coverage.failed_writes > 0 && coverage.trims > 0;
    let coverage = run_seeds(40, Rig::local, is_covered);
    assert!(is_covered(&coverage), "{coverage:?}");
}

/// A rig whose journal has so many appends, all acknowledged and proven, and its headers.
fn settled(mut rig: Rig, appends: u64) -> (Rig, rig::Life, Vec<AppendHeader>) {
    let mut life = rig.scan(false).unwrap();
    let engine = rig.engine(&mut life);
    for _ in 0..appends {
        (0..rig.prng.between(1, 12)).for_each(|_| rig.submit(&engine, 1));
        let settling = engine.clone();
        rig.world.run_until(move || settling.unsettled_bytes() == 0);
    }
    rig.world.run_for(std::time::Duration::from_secs(1));
    let headers = rig.headers(&life);
    rig.end();
    let life = rig.scan(false).unwrap();
    (rig, life, headers)
}

/// A block of an append in which rot (a bit in the middle of each sector) hits content, not padding.
fn some_block(rig: &mut Rig, header: &AppendHeader) -> std::ops::Range<u64> {
    let content = u64::from(header.headers_len) + u64::from(header.data_len);
    let start = header.offset + rig.prng.below(content - SECTOR / 2) / BLOCK * BLOCK;
    start..start + BLOCK
}

#[test]
fn rot_is_refused_where_it_is_and_the_override_loses_nothing_else() {
    for seed in 0..20 {
        println!("seed {seed}");
        let store = if seed % 2 == 0 { Rig::memory } else { Rig::local };
        let (mut rig, life, headers) = settled(store(seed, 1), 30);
        let before = rig.shown.clone();
        // The marker at the end says that everything before it was durable.
        let victims: Vec<AppendHeader> = headers.iter().filter(|header| header.data_len > 0).copied().collect();
        let victim = *rig.prng.pick(&victims);
        let range = some_block(&mut rig, &victim);
        assert_eq!(rig.inspect(&life), []);
        rig.rot(&life, victim.file, 0, range);
        let damage = rig.inspect(&life);
        assert!(damage.len() == 1 && !damage[0].is_elsewhere, "{damage:?}");
        assert_eq!((damage[0].file, damage[0].offset), (victim.file, victim.offset), "{damage:?}");
        rig.end();
        let error = rig.scan(false).err().expect("rot is not cut");
        assert_eq!(error.kind, ErrorKind::Corrupt);
        let place = format!("{} at offset {}:", life.store.locate(victim.file, 0), victim.offset);
        assert!(error.message.contains(&place) && error.message.contains("--accept-data-loss"), "{error}");
        // A refusal changes nothing; with the override exactly the records of that append are gone.
        for _ in 0..2 {
            let life = rig.scan(true).unwrap();
            assert_eq!(life.report.lost.len(), 1);
            assert_eq!(rig.shown.len(), before.len() - victim.record_count as usize);
            assert!(rig.shown.iter().all(|(key, record)| before.get(key) == Some(record)));
        }
    }
}

/// A file of which nothing is left is no empty one, if it was sealed behind something.
#[test]
fn a_sealed_file_that_rotted_whole_is_not_taken_for_empty() {
    let (mut rig, life, headers) = settled(Rig::memory(4, 1), 1);
    assert!(!rig.shown.is_empty());
    let file = headers[0].file;
    rig.rot(&life, file, 0, 0..life.store.info(file).and_then(|info| info.sealed).expect("a scan sealed it"));
    let damage = rig.inspect(&life);
    assert!(damage.len() == 1 && (damage[0].file, damage[0].offset) == (file, 0), "{damage:?}");
    rig.end();
    let error = rig.scan(false).err().expect("rot is not cut");
    let place = format!("{} at offset 0:", life.store.locate(file, 0));
    assert!(error.message.contains(&place) && error.message.contains("--accept-data-loss"), "{error}");
    assert_eq!(rig.scan(true).unwrap().report.lost.len(), 1);
}

/// Nor is a file of which nobody knows what is in it, because its header has rotted.
#[test]
fn a_file_without_a_header_is_not_taken_for_gone() {
    let (mut rig, life, headers) = settled(Rig::local(5, 1), 30);
    let before = rig.shown.len();
    let last = headers.iter().rfind(|header| header.data_len > 0).unwrap();
    let place = life.store.locate(last.file, 0);
    let of_file = headers.iter().filter(|header| header.file == last.file);
    let lost: u32 = of_file.map(|header| header.record_count).sum();
    rig.end();
    rig.world.disk(rig.node, "/disk0").corrupt(place.strip_prefix("/disk0").unwrap(), 0..SECTOR);
    let error = rig.scan(false).err().expect("it may have been acknowledged");
    assert!(error.message.contains(&place) && error.message.contains("--accept-data-loss"), "{error}");
    assert_eq!(rig.scan(true).unwrap().report.lost.len(), 1);
    assert_eq!(rig.shown.len(), before - lost as usize);
    rig.end();
    rig.scan(false).unwrap();
}

#[test]
fn rot_in_one_copy_is_repaired_from_the_other() {
    for seed in 0..20 {
        println!("seed {seed}");
        let store = if seed % 2 == 0 { Rig::memory } else { Rig::local };
        let (mut rig, life, headers) = settled(store(seed, 2), 30);
        let before = rig.shown.clone();
        let mut rotten = Vec::new();
        for header in headers.iter().filter(|header| header.data_len > 0) {
            let copy = rig.prng.below(2) as u8;
            let range = some_block(&mut rig, header);
            rig.rot(&life, header.file, copy, range);
            rotten.push((header.file, copy, header.offset));
        }
        let mut seen: Vec<_> = rig.inspect(&life).iter().map(|bad| (bad.file, bad.copy, bad.offset)).collect();
        seen.sort();
        rotten.sort();
        assert_eq!(seen, rotten);
        rig.end();
        let life = rig.scan(false).unwrap();
        assert_eq!(rig.shown, before);
        assert!(life.report.repaired_appends > 0);
    }
}

#[test]
fn what_cannot_be_read_is_not_cut() {
    let (mut rig, _, headers) = settled(Rig::memory(1, 1), 30);
    let last = headers.iter().rfind(|header| header.data_len > 0).unwrap();
    let Disk::Memory(memory) = &rig.disk else { unreachable!() };
    memory.fail_reads(last.file, None, last.offset..last.offset + BLOCK);
    let error = rig.scan(false).err().expect("it may have been acknowledged");
    assert!(error.kind == ErrorKind::Corrupt && error.message.contains("cannot be read"), "{error}");
    let Disk::Memory(memory) = &rig.disk else { unreachable!() };
    memory.clear_faults();
    rig.scan(false).unwrap();
}

#[test]
fn a_file_that_is_missing_in_the_middle_is_noticed() {
    let (mut rig, life, headers) = settled(Rig::memory(2, 1), 45);
    let mut files: Vec<FileId> = headers.iter().map(|header| header.file).collect();
    files.dedup();
    assert!(files.len() >= 3, "the journal has several files");
    let (store, missing) = (life.store.clone(), files[1]);
    rig.world.block_on(&life.handle, async move { store.delete(missing).await }).unwrap();
    let error = rig.scan(false).err().expect("a gap in the sequence");
    assert!(error.kind == ErrorKind::Corrupt && error.message.contains("was durable"), "{error}");
    let life = rig.scan(true).unwrap();
    assert_eq!(life.report.lost.len(), 1);
}

#[test]
fn what_one_copy_had_is_in_every_copy_when_the_scan_returns() {
    let mut only_in_one = 0;
    for seed in 0..60 {
        let mut rig = Rig::memory(seed, 2);
        let mut life = rig.scan(false).unwrap();
        let engine = rig.engine(&mut life);
        for _ in 0..6 {
            rig.submit(&engine, 1);
            rig.world.run_for(std::time::Duration::from_micros(100));
        }
        rig.end();
        let report = rig.scan(false).unwrap().report;
        only_in_one += report.repaired_appends;
        let shown = rig.shown.clone();
        let Disk::Memory(memory) = &rig.disk else { unreachable!() };
        for file in report.files {
            memory.drop_copy(file.file(), (seed % 2) as u8);
        }
        rig.scan(false).unwrap();
        assert_eq!(rig.shown, shown, "seed {seed}");
    }
    assert!(only_in_one > 10, "{only_in_one}");
}

#[test]
fn what_lands_late_stays_cut() {
    let mut rig = Rig::local(3, 1);
    let mut life = rig.scan(false).unwrap();
    let engine = rig.engine(&mut life);
    for _ in 0..5 {
        rig.submit(&engine, 1);
        let settling = engine.clone();
        rig.world.run_until(move || settling.unsettled_bytes() == 0);
    }
    let last = *rig.headers(&life).last().unwrap();
    rig.end();
    // At the time of the first scan the last append has not landed yet, at the time of the second one it has.
    let content = 4096 + last.offset;
    let path = life.store.locate(last.file, 0);
    let path = path.strip_prefix("/disk0").unwrap();
    let disk = rig.world.disk(rig.node, "/disk0");
    let landed = disk.content(path)[content as usize..(content + last.len) as usize].to_vec();
    disk.overwrite(path, content, &vec![0; last.len as usize]);
    rig.scan(false).unwrap();
    let shown = rig.shown.clone();
    assert_eq!(shown.len(), 4);
    rig.end();
    disk.overwrite(path, content, &landed);
    rig.scan(false).unwrap();
    assert_eq!(rig.shown, shown);
}
