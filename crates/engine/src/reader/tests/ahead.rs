//! Reads in sequence: from memory where it is what the index names, in few disk operations, and memory comes back.

use super::*;

const SECTORS_128K: u64 = 256;

/// A segment as large writes leave it: labels between the data.
async fn labelled_disk(handle: &Handle, seed: u64, blocks: u32) -> Disk {
    let mut disk = Disk::new(handle, seed, 1).await;
    disk.blocks = vec![None; blocks as usize];
    let mut prng = Prng::new(seed);
    for first in (0..blocks).step_by(32) {
        disk.writer.append(base::AlignedBuf::copy_of(&[0xee; BLOCK as usize]).freeze()).await.unwrap();
        disk.write(&mut prng, first, 32.min(blocks - first)).await;
    }
    disk
}

/// Reads all of it in pieces, checks every byte, and returns how long it took.
async fn read_through(disk: &Disk, handle: &Handle, sectors: u64) -> Duration {
    let (all, start) = (disk.blocks.len() as u64 * SECTORS_PER_BLOCK, handle.now());
    for at in (0..all).step_by(sectors as usize) {
        let range = at..(at + sectors).min(all);
        let found = disk.read(range.clone(), Cached::new()).await.unwrap();
        assert!(found == disk.expected(range.clone(), &Cached::new()), "{range:?}");
    }
    handle.now() - start
}

#[test]
fn a_stream_is_read_ahead_and_waits_for_the_disk_seldom() {
    run(1, |handle| async move {
        let disk = labelled_disk(&handle, 1, 4096).await;
        let off = Reader::new(&disk.index, ReadAheadSettings { bytes_max: 0, ..ReadAheadSettings::default() });
        let ahead = read_through(&disk, &handle, SECTORS_128K).await;
        let statistics = disk.reader.ahead();
        assert!(statistics.used_bytes > 14 * base::MIB, "{statistics:?}");
        assert_eq!((statistics.unproven_bytes, statistics.unused_chunks), (0, 0), "{statistics:?}");
        let alone = read_through(&Disk { reader: off, ..disk }, &handle, SECTORS_128K).await;
        assert!(ahead * 2 < alone, "{ahead:?} against {alone:?}");
    });
}

#[test]
fn memory_is_bounded_and_comes_back_when_nobody_reads() {
    run(2, |handle| async move {
        let disk = labelled_disk(&handle, 2, 4096).await;
        let options = ReadAheadSettings { bytes_max: base::MIB, ..ReadAheadSettings::default() };
        let disk = Disk { reader: Reader::new(&disk.index, options), ..disk };
        let mut kept = Vec::new();
        for at in 0..64u64 {
            // A client that does not take what it asked for.
            let parts = disk
                .reader
                .read(SEGMENT, at * 32 * BLOCK, 32 * BLOCK, Vec::new, Instant::ZERO, &mut Passage::default())
                .await
                .unwrap();
            kept.push(parts);
            assert!(disk.reader.ahead().held_bytes <= base::MIB);
        }
        assert!(disk.reader.ahead().held_bytes > 0);
        drop(kept);
        let (tasks, streams) = (handle.statistics().tasks, disk.reader.ahead().streams);
        assert_eq!(streams, 1);
        handle.sleep(Duration::from_secs(3)).await;
        let statistics = disk.reader.ahead();
        assert_eq!((statistics.held_bytes, statistics.streams), (0, 0), "{statistics:?}");
        assert_eq!(handle.statistics().tasks, tasks - 1, "nobody waits for anything");
        // And it begins anew.
        read_through(&disk, &handle, SECTORS_128K).await;
        assert!(disk.reader.ahead().streams == 1);
    });
}

/// What is written, discarded or moved in front of a stream is what it reads, though the old bytes are in memory.
#[test]
fn what_changes_in_front_of_a_stream_is_read_as_it_is() {
    for seed in 0..30 {
        run(seed, move |handle| async move {
            let mut prng = Prng::new(seed);
            let mut disk = labelled_disk(&handle, seed, 1024).await;
            let sectors = *prng.pick(&[8, 32, 256, 300]);
            let all = 1024 * SECTORS_PER_BLOCK;
            for at in (0..all).step_by(sectors as usize) {
                let here = (at / SECTORS_PER_BLOCK) as u32;
                let first = here + prng.below(u64::from(1024 - here)) as u32;
                let count = prng.between(1, 40).min(u64::from(1024 - first)) as u32;
                match prng.below(6) {
                    0 => disk.write(&mut prng, first, count).await,
                    1 => disk.discard(first, count),
                    2 => {
                        let entries = disk.index.scan(SEGMENT, first, count as usize).await.unwrap().entries;
                        let live: Vec<Entry> = entries.into_iter().filter(|entry| entry.file().is_some()).collect();
                        let content: Vec<u8> =
                            live.iter().flat_map(|entry| disk.blocks[entry.block as usize].clone().unwrap()).collect();
                        if !live.is_empty() {
                            let copy = base::AlignedBuf::copy_of(&content).freeze();
                            let offset = disk.writer.append(copy).await.unwrap();
                            let places = (0..).map(|number: u64| offset + number * BLOCK);
                            let moved = live.iter().zip(places).map(|(e, at)| e.relocated(disk.writer.id(), at));
                            disk.index.apply(SEGMENT, &moved.collect::<Vec<_>>());
                        }
                    }
                    _ => {}
                }
                let range = at..(at + sectors).min(all);
                let cached = if prng.one_in(4) { random_cached(&mut prng, &range) } else { Cached::new() };
                let found = disk.read(range.clone(), cached.clone()).await.unwrap();
                assert!(found == disk.expected(range.clone(), &cached), "seed {seed}, {range:?}");
            }
            assert!(disk.reader.ahead().used_bytes > 0, "seed {seed}: {:?}", disk.reader.ahead());
        });
    }
}

/// Bytes that were bad when they were read ahead are found out when they are used, and mended.
#[test]
fn what_was_read_ahead_is_proven_when_it_is_used() {
    run(3, |handle| async move {
        let mut disk = Disk::new(&handle, 3, 2).await;
        disk.blocks = vec![None; 1024];
        let mut prng = Prng::new(3);
        for first in (0..1024).step_by(32) {
            disk.write(&mut prng, first, 32).await;
        }
        let file = disk.writer.id();
        for block in (0..1024).step_by(7) {
            let sector = block * BLOCK + prng.below(SECTORS_PER_BLOCK) * SECTOR;
            disk.memory.corrupt(file, prng.below(2) as u8, sector..sector + 1);
        }
        read_through(&disk, &handle, SECTORS_128K).await;
        let (ahead, verify) = (disk.reader.ahead(), disk.index.files().statistics());
        assert!(ahead.unproven_bytes > 0 && ahead.used_bytes > 0, "{ahead:?}");
        assert!(verify.lost == 0 && verify.mismatches > 0, "{verify:?}");
    });
}

/// What is all in the caches needs nothing from the disk.
#[test]
fn what_is_not_used_is_not_read_ahead_for_long() {
    run(6, |handle| async move {
        let disk = labelled_disk(&handle, 6, 4096).await;
        for at in (0..4096 * SECTORS_PER_BLOCK).step_by(SECTORS_128K as usize) {
            let range = at..at + SECTORS_128K;
            disk.read(range.clone(), vec![(range, CacheHit::Zeros)]).await.unwrap();
            handle.sleep(Duration::from_millis(1)).await;
        }
        let statistics = disk.reader.ahead();
        assert!(statistics.unused_chunks > 0 && statistics.used_bytes == 0, "{statistics:?}");
        assert!(statistics.read_bytes <= 2 * base::MIB, "{statistics:?}");
    });
}

/// Where nothing can be read ahead, the reader says what is wrong.
#[test]
fn a_disk_that_does_not_answer_is_an_error_of_the_read_that_asked() {
    run(4, |handle| async move {
        let disk = labelled_disk(&handle, 4, 1024).await;
        disk.memory.fail_reads(disk.writer.id(), None, 600 * BLOCK..601 * BLOCK);
        let mut failed = 0;
        for at in (0..1024).step_by(32) {
            match disk
                .reader
                .read(SEGMENT, at * BLOCK, 32 * BLOCK, Vec::new, Instant::ZERO, &mut Passage::default())
                .await
            {
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::Io, "{error}");
                    failed += 1;
                }
            }
        }
        assert_eq!(failed, 1);
    });
}

#[test]
fn files_that_are_deleted_in_front_of_a_stream_are_not_missed() {
    run(5, |handle| async move {
        let mut prng = Prng::new(5);
        let mut disk = Disk::new(&handle, 5, 1).await;
        disk.blocks = vec![None; 512];
        disk.write(&mut prng, 0, 512).await;
        let files = disk.index.files().clone();
        for at in (0..512 * SECTORS_PER_BLOCK).step_by(64) {
            // All of it moves to another file while reads ahead of it are in flight.
            let (reader, range) = (disk.reader.clone(), at..at + 64);
            let expected = disk.expected(range, &Cached::new());
            let reading = handle.spawn(Class::Io, "reader", async move {
                reader.read(SEGMENT, at * SECTOR, 64 * SECTOR, Vec::new, Instant::ZERO, &mut Passage::default()).await
            });
            handle.sleep(Duration::from_nanos(prng.below(60_000))).await;
            let old = disk.writer.id();
            let live = disk.index.scan(SEGMENT, 0, 1024).await.unwrap().entries;
            let content: Vec<u8> = disk.blocks.iter().flatten().flatten().copied().collect();
            disk.writer = Disk::open_file(&files, 1).await;
            let offset = disk.writer.append(base::AlignedBuf::copy_of(&content).freeze()).await.unwrap();
            let moved = live.iter().map(|e| e.relocated(disk.writer.id(), offset + u64::from(e.block) * BLOCK));
            disk.index.apply(SEGMENT, &moved.collect::<Vec<_>>());
            files.delete_unpinned(old).await.unwrap();
            let parts = reading.await.unwrap();
            let found: Vec<u8> = parts
                .iter()
                .flat_map(|part| match part {
                    ReadPart::Data(data) => data.to_vec(),
                    ReadPart::Zeros(_) => panic!("data"),
                })
                .collect();
            assert!(found == expected, "at {at}");
        }
    });
}
