use std::time::Duration;

use base::AlignedBuf;
use base::io::fragment_checksums;
use base::{Bytes, Epoch, KIB, MIB, Prng, ReadPart, SegmentId, SegmentSequence, VolumeId, WriteStamp};
use files::memory::{Memory, MemoryOptions};
use runtime::sim::{NodeOptions, World};

use super::replay::Replay;
use super::*;
use crate::Engine;
use crate::dropped::Dropped;
use crate::index::{Entry, TableInfo};
use crate::transaction::{Checkpoint, ScannedLog, SegmentCheckpoint};

const ID: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };

fn journal_record(offset: u64, data: &[u8]) -> JournalRecord {
    JournalRecord {
        segment: ID,
        epoch: Epoch(1),
        sequence: SegmentSequence(5),
        stamp: WriteStamp::default(),
        offset,
        len: data.len() as u64,
        operation: Operation::Write {
            checksums: fragment_checksums(ID, offset, data),
            data: Bytes::copy_from_slice(data),
        },
    }
}

/// What a newer write does not cover of an older record is the record's, with checksums that fit.
#[test]
fn uncovered_parts_are_the_rest() {
    let mut prng = Prng::new(1);
    for _ in 0..2_000 {
        let (first, count) = (prng.below(40), prng.between(1, 60));
        let mut data = vec![0; (count * SECTOR) as usize];
        prng.fill(&mut data);
        let record = journal_record(first * SECTOR, &data);
        let shadow: Vec<bool> = (0..16).map(|_| prng.one_in(3)).collect();
        let blocks = (0..16u32).filter(|block| shadow[*block as usize]);
        let shadowed: Vec<Range<u64>> = blocks.map(|block| sectors_of(block..block + 1)).collect();
        let mut seen = vec![false; count as usize];
        for part in uncovered(&record, &shadowed) {
            assert_eq!((part.sequence, part.segment), (record.sequence, record.segment));
            let Operation::Write { checksums, data: bytes } = &part.operation else { panic!("a part of a write") };
            assert_eq!(*checksums, fragment_checksums(ID, part.offset, bytes));
            let at = (part.offset - record.offset) as usize;
            assert_eq!(bytes[..], data[at..at + part.len as usize]);
            for sector in part.offset / SECTOR..(part.offset + part.len) / SECTOR {
                assert!(!std::mem::replace(&mut seen[(sector - first) as usize], true), "once");
            }
        }
        for (i, seen) in seen.into_iter().enumerate() {
            let block = (first + i as u64) / (BLOCK / SECTOR);
            assert_eq!(seen, !shadow.get(block as usize).copied().unwrap_or(false));
        }
    }
}

fn table(file: u64) -> TableInfo {
    TableInfo { file: FileId(file), leaves: 1, entries: 1, first_block: 0, end_block: 1, ..TableInfo::default() }
}

fn large(sequence: u64, file: u64, offset: u64) -> Record {
    Record::Large {
        segment: ID,
        epoch: Epoch(1),
        sequence: SegmentSequence(sequence),
        stamp: WriteStamp::default(),
        block: 0,
        file: FileId(file),
        offset,
        checksums: vec![0, 0],
    }
}

fn dump(through: u64, file: u64, offset: u64) -> Record {
    let entries = vec![Entry::data(7, SegmentSequence(through), FileId(file), offset, 0)];
    Record::Dump { segment: ID, epoch: Epoch(1), through: SegmentSequence(through), replay: None, entries }
}

fn replay(checkpoint: Checkpoint, records: Vec<(u64, Record)>) -> Replay {
    let records = records.into_iter().map(|(sequence, record)| (LogSequence(sequence), record)).collect();
    Replay::new(&mut ScannedLog { checkpoint: Some(checkpoint), records, ..ScannedLog::default() })
}

#[test]
fn only_what_tables_do_not_cover_is_replayed_but_all_of_it_counts() {
    let tables = SegmentTables { tables: vec![table(20)], covers: LogSequence(3) };
    let segment = SegmentCheckpoint {
        segment: ID,
        next: SegmentSequence(4),
        dumped_through: SegmentSequence(2),
        tables,
        data_files: vec![(FileId(10), 4096)],
        ..SegmentCheckpoint::default()
    };
    let checkpoint = Checkpoint {
        from: LogSequence(5),
        rejected: vec![LogSequence(7)],
        segments: vec![segment],
        ..Checkpoint::default()
    };
    let covers = LogSequence(9);
    let replayed = replay(
        checkpoint,
        vec![
            // Before the checkpoint: its effect is needed, the rest is in the checkpoint.
            (4, dump(3, 10, 0)),
            (6, Record::DataFile { segment: ID, file: FileId(11) }),
            (7, large(4, 11, 0)),
            (8, large(5, 11, 8192)),
            (9, dump(6, 10, 8192)),
            (10, Record::TableSet { segment: ID, added: vec![table(21)], removed: vec![FileId(20)], covers }),
            (11, large(7, 11, 16384)),
            (12, Record::DropFile { segment: ID, file: FileId(10) }),
        ],
    );
    let segment = &replayed.segments[&ID];
    let start = &segment.start;
    assert_eq!((start.next.0, start.dumped_through.0, start.last_large.0), (8, 6, 7));
    assert_eq!(replayed.effects.iter().map(|(sequence, _)| sequence.0).collect::<Vec<_>>(), [9, 11]);
    // The length counts also what tables cover and what was rejected.
    assert_eq!(segment.data_files, BTreeMap::from([(FileId(11), 24576)]));
    assert_eq!(replayed.referenced(), BTreeSet::from([FileId(11), FileId(21)]));
}

#[test]
fn a_dropped_volume_stays_dropped() {
    let other = SegmentId { volume: VolumeId(2), index: 0 };
    let replayed = replay(
        Checkpoint { from: LogSequence(1), ..Checkpoint::default() },
        vec![
            (1, Record::DataFile { segment: ID, file: FileId(10) }),
            (2, Record::DataFile { segment: other, file: FileId(11) }),
            (3, Record::DropVolume { volume: ID.volume }),
            // A dump that was under way.
            (4, dump(3, 10, 0)),
        ],
    );
    assert_eq!(replayed.segments.keys().copied().collect::<Vec<_>>(), [other]);
    assert!(replayed.effects.is_empty() && replayed.dropped.contains(&ID.volume));
    assert_eq!(replayed.segments[&other].tables.covers, LogSequence(1));
}

#[test]
fn a_volume_is_forgotten_when_no_journal_and_no_record_on_its_way_can_name_it() {
    let world = World::new(1);
    let node = world.add_node(NodeOptions::default());
    let store = Memory::new(1, MemoryOptions::default()).open(&world.start_loop(node));
    let mut dropped = Dropped::default();
    dropped.restore([ID.volume].into_iter(), &[], LogSequence(7));
    assert_eq!(dropped.still_needed(&store, LogSequence(6)), [ID.volume]);
    assert_eq!(dropped.still_needed(&store, LogSequence(7)), []);
}

async fn write(engine: &Engine, offset: u64, byte: u8, len: usize) {
    let data = AlignedBuf::copy_of(&vec![byte; len]).freeze();
    let checksums = fragment_checksums(ID, offset, &data);
    engine.write(ID, offset, data, checksums, WriteStamp::default()).await.unwrap();
}

async fn first_byte(engine: &Engine, offset: u64) -> Option<u8> {
    match &engine.read(ID, offset, BLOCK).await.unwrap()[..] {
        [ReadPart::Data(data)] => Some(data[0]),
        _ => None,
    }
}

/// What the disk cannot read at a start is neither torn nor empty: with any block of any file unreadable for a while,
/// the engine opens with everything that was acknowledged, or not at all; and never gives it up for later starts.
#[test]
fn what_cannot_be_read_at_a_start_is_not_taken_for_torn() {
    let options = Options {
        journal_file_bytes: 512 * KIB,
        journal_files: 2,
        transaction_file_bytes: 64 * KIB,
        data_file_bytes: 64 * KIB,
        large_write_bytes: 8 * KIB,
        dump_age: Duration::from_millis(5),
        ..Options::default()
    };
    let (mut opened, mut refused) = (0, 0);
    // With a dump behind the first write, or a large write last, or a small one.
    for story in 0..3 {
        for bad in 0..24 {
            let world = World::new(story);
            let node = world.add_node(NodeOptions::default());
            let memory = Memory::new(story, MemoryOptions { latency_ns: 1_000..2_000, ..MemoryOptions::default() });
            let (handle, inside, disk, settings) =
                (world.start_loop(node), memory.clone(), memory.clone(), options.clone());
            let life = handle.clone();
            let files = world.block_on(&handle, async move {
                let store = inside.open(&life);
                let engine = Engine::open(&life, &store, settings).await.unwrap();
                write(&engine, 0, 1, 4096).await;
                if story == 0 {
                    life.sleep(Duration::from_millis(20)).await;
                }
                if story < 2 {
                    write(&engine, 16 * BLOCK, 2, 8192).await;
                }
                store.list()
            });
            memory.kill();
            world.kill(node);
            // Files by turns, and their first three blocks.
            let info = &files[bad % files.len()];
            let at = (bad / files.len()) as u64 * BLOCK;
            disk.fail_reads(info.id, None, at..at + BLOCK);
            for fails in [true, false] {
                let (handle, inside, settings) = (world.restart(node), memory.clone(), options.clone());
                let life = handle.clone();
                let is_open = world.block_on(&handle, async move {
                    let Ok(engine) = Engine::open(&life, &inside.open(&life), settings).await else { return false };
                    inside.clear_faults();
                    assert_eq!(first_byte(&engine, 0).await, Some(1));
                    assert_eq!(first_byte(&engine, 16 * BLOCK).await, (story < 2).then_some(2));
                    true
                });
                assert!(is_open || fails, "without faults it opens");
                (opened, refused) = (opened + u32::from(is_open && fails), refused + u32::from(!is_open));
                memory.kill();
                world.kill(node);
                memory.clear_faults();
            }
        }
    }
    assert!(opened > 10 && refused > 3, "{opened} opened, {refused} refused");
}

/// After a clean stop nothing is torn: with the last record of the log gone, or all of them, the engine does not open,
/// says where, and an inspection says the same.
#[test]
fn rot_at_the_end_of_a_store_that_was_closed_is_refused() {
    let options = Options { transaction_file_bytes: 256 * KIB, data_file_bytes: 64 * KIB, ..Options::default() };
    for only_last in [true, false] {
        let world = World::new(1);
        let node = world.add_node(NodeOptions::default());
        let memory = Memory::new(1, MemoryOptions::default());
        let handle = world.start_loop(node);
        let (life, inside, options) = (handle.clone(), memory.clone(), options.clone());
        world.block_on(&handle, async move {
            for number in 1..4 {
                let engine = Engine::open(&life, &inside.open(&life), options.clone()).await.unwrap();
                assert_eq!(first_byte(&engine, 0).await, (number > 1).then_some(number - 1));
                write(&engine, 0, number, 4096).await;
                write(&engine, 16 * BLOCK, number, 128 << 10).await;
                engine.close().await.unwrap();
            }
            let store = inside.open(&life);
            let is_log = |info: &FileInfo| matches!(info.kind, FileKind::Journal | FileKind::Transaction);
            let logs: Vec<FileInfo> = store.list().into_iter().filter(is_log).collect();
            assert!(logs.iter().all(|info| info.sealed.is_some()), "{logs:?}");
            let last = logs.last().unwrap();
            let end = last.sealed.unwrap();
            let start = if only_last { end - BLOCK } else { 0 };
            inside.corrupt(last.id, 0, start..end);
            let place = store.locate(last.id, 0);
            let found = inspect::inspect(&life, &files::dry_run::DryRun::over(&store), |_, _| ()).await.unwrap();
            let damage = found.damage.iter().find(|damage| damage.path == place).expect("it is found");
            assert!(damage.offset.is_some_and(|at| at <= start), "{damage:?}");
            assert_eq!(found.refusals.len(), 1, "{:?}", found.refusals);
            let Err(refused) = Engine::open(&life, &store, options.clone()).await else { panic!("it went on") };
            assert_eq!(refused.kind, base::ErrorKind::Corrupt);
            assert!(refused.message.contains(&place) && refused.message.contains("at byte "), "{refused}");
        });
    }
}

/// A disk that was away for a moment is no reason to keep what nobody needs until the next start.
#[test]
fn what_nobody_refers_to_is_removed_though_the_disk_refuses_at_first() {
    let world = World::new(1);
    let node = world.add_node(NodeOptions::default());
    let memory = Memory::new(1, MemoryOptions::default());
    let handle = world.start_loop(node);
    let (life, inside) = (handle.clone(), memory.clone());
    let engine = world.block_on(&handle, async move {
        let options = Options { transaction_file_bytes: 256 * KIB, ..Options::default() };
        let create = files::CreateOptions {
            kind: FileKind::Data,
            capacity: 64 * KIB,
            redundancy: files::Redundancy::Copies(1),
            prepared: false,
            epoch: Epoch(1),
            segment: None,
            claim: files::Claim::Use,
        };
        Engine::open(&life, &inside.open(&life), options.clone()).await.unwrap().close().await.unwrap();
        inside.open(&life).create(create).await.unwrap();
        let engine = Engine::open(&life, &inside.open(&life), options).await.unwrap();
        inside.fail_deletions(2);
        engine
    });
    world.run_for(Duration::from_secs(60));
    assert_eq!(world.block_on(&handle, async move { engine.audit().await }).unwrap(), Vec::<String>::new());
}

/// A large write whose record the log has, and nothing there that vouches for its data: a label behind it does. So rot
/// in it is told from a torn append.
#[test]
fn rot_in_a_large_write_that_a_later_label_vouches_for_is_refused() {
    for is_followed in [true, false] {
        let world = World::new(1);
        let node = world.add_node(NodeOptions::default());
        let memory = Memory::new(1, MemoryOptions::default());
        let (handle, inside) = (world.start_loop(node), memory.clone());
        let life = handle.clone();
        world.block_on(&handle, async move {
            let engine = Engine::open(&life, &inside.open(&life), Options::default()).await.unwrap();
            write(&engine, 0, 1, 128 << 10).await;
            // Its record goes out.
            life.sleep(Duration::from_millis(50)).await;
            if is_followed {
                write(&engine, MIB, 2, 128 << 10).await;
            }
        });
        let inside = memory.clone();
        memory.kill();
        world.kill(node);
        let handle = world.restart(node);
        let life = handle.clone();
        world.block_on(&handle, async move {
            let store = inside.open(&life);
            let data: Vec<FileInfo> = store.list().into_iter().filter(|info| info.kind == FileKind::Data).collect();
            assert_eq!(data.len(), 1, "{data:?}");
            inside.corrupt(data[0].id, 0, 3 * BLOCK..4 * BLOCK);
            let opened = Engine::open(&life, &store, Options::default()).await.map(drop);
            let Err(refused) = opened else { return assert!(!is_followed, "what was durable is given up") };
            assert!(is_followed, "a torn append is cut: {refused}");
            assert_eq!(refused.kind, base::ErrorKind::Corrupt);
            assert!(refused.message.contains(&store.locate(data[0].id, 0)), "{refused}");
            // Once more, and the second one is there.
            let accepting = Options { accept_data_loss: true, ..Options::default() };
            let engine = Engine::open(&life, &store, accepting).await.unwrap();
            assert_eq!(first_byte(&engine, 0).await, None);
            assert_eq!(first_byte(&engine, MIB).await, Some(2));
        });
    }
}
