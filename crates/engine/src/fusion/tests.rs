use base::io::fragment_checksums;
use base::{Bytes, Epoch, ErrorKind, KIB, MIB, Passage, Prng, Stage, VolumeId, WriteStamp};
use files::FileKind;
use files::memory::{AppendFault, Memory, MemoryOptions};
use runtime::sim::{NodeOptions, World};

use super::*;

/// What `on_durable` said, in order: the record's number, and what became of it.
type Told = Rc<RefCell<Vec<(u64, Result<CacheExtent>)>>>;

/// A loop, a store and an engine on it.
struct Rig {
    world: World,
    handle: Handle,
    disk: Memory,
    memory: CacheMemory,
    store: Store,
    engine: FusionWriteEngine,
    told: Told,
    /// The ways of those that became durable, in order.
    ways: Rc<RefCell<Vec<Way>>>,
    submitted: Cell<u64>,
}

fn journal_options() -> JournalOptions {
    JournalOptions { file_bytes: MIB, files_max: 4, copies: 2, log: 0, fusion_wait: Duration::ZERO }
}

impl Rig {
    fn new(seed: u64, options: JournalOptions) -> Rig {
        let world = World::new(seed);
        let node = world.add_node(NodeOptions::default());
        let handle = world.start_loop(node);
        let disk = Memory::new(seed, MemoryOptions { directories: 2, ..MemoryOptions::default() });
        let store = disk.open(&handle);
        let memory = CacheMemory::new();
        let engine = FusionWriteEngine::new(&handle, &store, options, &memory, Vec::new());
        Rig {
            world,
            handle,
            disk,
            memory,
            store,
            engine,
            told: Rc::default(),
            ways: Rc::default(),
            submitted: Cell::new(0),
        }
    }

    fn submit(&self, record: JournalRecord) {
        let number = self.submitted.replace(self.submitted.get() + 1);
        let (told, ways, submitted) = (self.told.clone(), self.ways.clone(), self.handle.now());
        self.engine.submit(record, move |outcome| {
            let extent = outcome.map(|(extent, way)| {
                ways.borrow_mut().push(Way { submitted, applied: way.confirmed, ..way });
                extent
            });
            told.borrow_mut().push((number, extent));
        });
    }

    fn settle(&self) {
        let engine = self.engine.clone();
        self.world.run_until(move || engine.unsettled_bytes() == 0);
        let told = self.told.borrow();
        assert!(told.iter().map(|(number, _)| *number).eq(0..self.submitted.get()), "each is told once, in order");
    }

    /// What the record of that number waited for most.
    fn waited_for(&self, number: usize) -> Stage {
        let mut passage = Passage::default();
        self.ways.borrow()[number].add_to(&mut passage);
        Stage::ALL.into_iter().max_by_key(|stage| passage.of(*stage)).unwrap()
    }

    fn journals(&self) -> usize {
        self.store.list().iter().filter(|file| file.kind == FileKind::Journal).count()
    }
}

fn segment(index: u32) -> SegmentId {
    SegmentId { volume: VolumeId(1), index }
}

fn write(index: u32, sequence: u64, offset: u64, len: usize) -> JournalRecord {
    let segment = segment(index);
    let mut data = vec![0; len];
    Prng::new(sequence).fill(&mut data);
    JournalRecord {
        segment,
        epoch: Epoch(1),
        sequence: SegmentSequence(sequence),
        stamp: WriteStamp::default(),
        offset,
        len: len as u64,
        operation: Operation::Write { checksums: fragment_checksums(segment, offset, &data), data: Bytes::from(data) },
    }
}

#[test]
fn a_turn_shares_an_append() {
    let rig = Rig::new(1, journal_options());
    for sequence in 1..=32 {
        rig.submit(write(sequence as u32 % 4, sequence, sequence * 4096, 4096));
    }
    rig.settle();
    let statistics = rig.engine.statistics();
    assert_eq!((statistics.appends, statistics.records), (1, 32));
    assert!(statistics.bytes <= 33 * 4096 + 4096, "headers cost less than 5%: {}", statistics.bytes);
    let told = rig.told.borrow();
    for (number, extent) in told.iter() {
        let extent = extent.as_ref().unwrap();
        let Operation::Write { data, .. } = write(0, number + 1, 0, 4096).operation else { unreachable!() };
        assert_eq!(extent.sequence(), SegmentSequence(number + 1));
        assert_eq!(extent.hit(0..8), crate::cache::CacheHit::Data(data));
    }
    assert_eq!(rig.memory.bytes(), statistics.bytes, "the caches show the buffer that went to the disk");
}

#[test]
fn journals_rotate_fill_up_and_are_trimmed() {
    let rig = Rig::new(2, journal_options());
    let engine = rig.engine.clone();
    for sequence in 1..=40 {
        // Each append takes about 200 KiB: five fit a file.
        rig.submit(write(sequence as u32 % 2, sequence, 0, 200 * KIB as usize));
        rig.world.run_for(Duration::from_millis(1));
    }
    rig.world.run_for(Duration::from_secs(1));
    assert_eq!((rig.journals(), engine.pressure()), (4, JournalPressure::Full));
    let durable = rig.told.borrow().len() as u64;
    assert_eq!(durable, 4 * 5, "writers wait");
    let nothing_dumped = |_| SegmentSequence(0);
    let oldest = engine.oldest_undumped(nothing_dumped).unwrap();
    assert_eq!((oldest.segments, oldest.position.offset), (vec![segment(0), segment(1)], 0));
    assert_eq!(engine.replay_start(nothing_dumped), Some(oldest.position));

    // Dumping one of the two segments of the oldest file frees nothing.
    let trimming = engine.clone();
    rig.world.block_on(&rig.handle, async move {
        trimming.trim(|s| SegmentSequence(if s.index == 0 { 1000 } else { 0 }), async |_| Ok(())).await;
    });
    assert_eq!((rig.journals(), engine.pressure()), (4, JournalPressure::Full));
    let oldest = engine.oldest_undumped(|s| SegmentSequence(if s.index == 0 { 1000 } else { 0 })).unwrap();
    assert_eq!(oldest.segments, [segment(1)]);

    while rig.told.borrow().len() < 40 {
        let trimming = engine.clone();
        let dumped = SegmentSequence(rig.told.borrow().len() as u64);
        rig.world.block_on(&rig.handle, async move { trimming.trim(|_| dumped, async |_| Ok(())).await });
        rig.world.run_for(Duration::from_millis(100));
        assert!(rig.journals() <= 4);
    }
    rig.settle();
    assert!(engine.statistics().file_waits > 0);
    let closing = engine.clone();
    rig.world
        .block_on(&rig.handle, async move { closing.close(|_| SegmentSequence(40), async |_| Ok(())).await })
        .unwrap();
    assert_eq!(rig.journals(), 0);
}

/// Whoever waits for a file brings nothing to dump, so no dump comes that would delete the file as well.
#[test]
fn a_deletion_that_failed_is_asked_for_again_while_writers_wait() {
    let rig = Rig::new(9, JournalOptions { files_max: 2, ..journal_options() });
    for sequence in 1..=12 {
        rig.submit(write(0, sequence, 0, 200 * KIB as usize));
        rig.world.run_for(Duration::from_millis(1));
    }
    assert_eq!((rig.told.borrow().len(), rig.engine.pressure()), (10, JournalPressure::Full), "two writers wait");
    rig.disk.fail_deletions(3);
    let trims = Rc::new(Cell::new(0));
    let (engine, count) = (rig.engine.clone(), trims.clone());
    let relieving = async move {
        loop {
            let pressed = engine.pressure_event().wait();
            engine.trim(|_| SegmentSequence(10), async |_| Ok(())).await;
            count.set(count.get() + 1);
            pressed.await;
        }
    };
    rig.handle.spawn(runtime::Class::Io, "relief", relieving).detach();
    rig.settle();
    assert_eq!([9, 10, 11].map(|number| rig.waited_for(number) == Stage::JournalFile), [false, true, true]);
    rig.world.run_for(Duration::from_secs(3600));
    assert!((4..10).contains(&trims.get()), "{} trims, and none without need", trims.get());
}

/// The last thing that changes before a stop may be a deletion that fails.
#[test]
fn closing_goes_on_when_a_deletion_that_was_under_way_fails() {
    let rig = Rig::new(10, journal_options());
    for sequence in 1..=8 {
        rig.submit(write(0, sequence, 0, 200 * KIB as usize));
    }
    rig.settle();
    let (trimming, handle) = (rig.engine.clone(), rig.handle.clone());
    let trim = async move {
        let intend = async |_| {
            handle.sleep(Duration::from_secs(1)).await;
            Err(base::Error::io("the log is broken"))
        };
        trimming.trim(|_| SegmentSequence(8), intend).await;
    };
    rig.handle.spawn(runtime::Class::Io, "trim", trim).detach();
    let closing = rig.engine.clone();
    let closed = async move { closing.close(|_| SegmentSequence(8), async |_| Ok(())).await };
    rig.world.block_on(&rig.handle, closed).unwrap();
    assert_eq!(rig.journals(), 0);
}

/// Nobody else has a turn as long as it asks again at once, and what it waits for does not come to its end: a file that is tried to
/// be made again and again.
#[test]
fn closing_gives_way_while_deletions_fail_at_once() {
    let rig = Rig::new(9, journal_options());
    for sequence in 1..=9 {
        if sequence == 7 {
            rig.settle();
            rig.disk.set_capacity(0);
        }
        rig.submit(write(0, sequence, 0, 200 * KIB as usize));
    }
    let (closing, asked, begun) = (rig.engine.clone(), Rc::new(Cell::new(0)), rig.handle.now());
    let asks = asked.clone();
    let closed = async move {
        let intend = async |_| {
            asks.set(asks.get() + 1);
            assert!(asks.get() < 100, "it goes round");
            Err(base::Error::io("the log is broken"))
        };
        closing.close(|_| SegmentSequence(9), intend).await
    };
    rig.world.block_on(&rig.handle, closed).unwrap_err();
    assert!(asked.get() > 1 && rig.handle.now().since(begun) > Duration::from_millis(10), "nothing was under way");
}

#[test]
fn a_failed_append_is_written_again_into_a_new_file() {
    for fault in [AppendFault::Lost, AppendFault::Landed, AppendFault::Torn] {
        let rig = Rig::new(3, journal_options());
        rig.submit(write(0, 1, 0, 4096));
        rig.settle();
        let first = rig.store.list()[0].id;
        rig.disk.fail_appends(Some(FileKind::Journal), 1, fault);
        for sequence in 2..8 {
            rig.submit(write(0, sequence, 0, 4096));
            rig.world.run_for(Duration::from_micros(10));
        }
        rig.settle();
        assert!(rig.told.borrow().iter().all(|(_, outcome)| outcome.is_ok()), "{fault:?}");
        assert_eq!([0, 1].map(|number| rig.waited_for(number)), [Stage::Append, Stage::Retry], "{fault:?}");
        assert_eq!(rig.store.info(first).unwrap().sealed, Some(8192), "the first append is confirmed");
        let statistics = rig.engine.statistics();
        assert_eq!((statistics.failed_appends, statistics.files), (1, 2));
        assert!(statistics.rewritten_batches >= 1);
    }
}

#[test]
fn when_no_journal_can_be_written_writers_are_told_and_the_store_lives_on() {
    let rig = Rig::new(4, journal_options());
    rig.disk.fail_appends(Some(FileKind::Journal), 1000, AppendFault::Torn);
    for sequence in 1..6 {
        rig.submit(write(0, sequence, 0, 4096));
        rig.world.run_for(Duration::from_micros(10));
    }
    rig.settle();
    for (_, outcome) in rig.told.borrow().iter() {
        let error = outcome.as_ref().err().unwrap();
        assert!(error.kind == ErrorKind::Io && error.message.contains("the journal cannot be written"), "{error}");
    }
    assert!(rig.journals() <= 2, "files without a confirmed append are deleted");
    rig.disk.clear_faults();
    rig.submit(write(0, 6, 0, 4096));
    rig.settle();
    assert!(rig.told.borrow()[5].1.is_ok());
}

#[test]
fn without_room_for_a_journal_writers_are_told_so() {
    let rig = Rig::new(5, journal_options());
    rig.disk.set_capacity(0);
    rig.world.run_for(Duration::from_secs(2));
    rig.submit(write(0, 1, 0, 4096));
    rig.settle();
    assert_eq!(rig.told.borrow()[0].1.as_ref().err().unwrap().kind, ErrorKind::Full);
    rig.disk.set_capacity(base::GIB);
    rig.submit(write(0, 2, 0, 4096));
    rig.settle();
    assert!(rig.told.borrow()[1].1.is_ok());
}

/// With a broken transaction log nothing is dumped any more, and no journal file comes free.
#[test]
fn whoever_needs_another_file_is_told_when_none_comes_any_more() {
    let rig = Rig::new(8, JournalOptions { files_max: 2, ..journal_options() });
    for sequence in 1..=6 {
        rig.submit(write(0, sequence, 0, 200 * KIB as usize));
        rig.world.run_for(Duration::from_millis(100));
    }
    assert_eq!(rig.journals(), 2);
    rig.engine.end(&base::Error::io("the log is broken"));
    // There is room in the second file, and none for what has to be written again after it failed.
    rig.submit(write(0, 7, 0, 4096));
    rig.world.run_for(Duration::from_millis(100));
    rig.disk.fail_appends(Some(FileKind::Journal), 1, AppendFault::Lost);
    rig.submit(write(0, 8, 0, 4096));
    rig.settle();
    rig.submit(write(0, 9, 0, 4096));
    rig.settle();
    let told: Vec<bool> = rig.told.borrow().iter().map(|(_, outcome)| outcome.is_ok()).collect();
    assert_eq!(told, [true, true, true, true, true, true, true, false, false]);
    let why = rig.told.borrow()[7].1.as_ref().err().unwrap().message.clone();
    assert!(why.contains("the journal cannot be written") && why.contains("the log is broken"), "{why}");
}

#[test]
fn a_write_that_does_not_match_its_checksums_fails_alone() {
    let rig = Rig::new(6, journal_options());
    for sequence in 1..=3 {
        let mut record = write(0, sequence, 0, 4096);
        if let (2, Operation::Write { checksums, .. }) = (sequence, &mut record.operation) {
            checksums[0] ^= 1;
        }
        rig.submit(record);
    }
    rig.settle();
    let told = rig.told.borrow();
    assert!(told[0].1.is_ok() && told[2].1.is_ok());
    let error = told[1].1.as_ref().err().unwrap();
    assert!(error.kind == ErrorKind::Internal && error.message.contains("v1/0"), "{error}");
    assert_eq!(rig.engine.statistics().records, 2);
}

#[test]
fn a_quiet_journal_says_that_its_last_append_is_durable() {
    let rig = Rig::new(7, journal_options());
    rig.submit(write(0, 1, 0, 4096));
    rig.settle();
    assert_eq!(rig.engine.statistics().appends, 1);
    rig.world.run_for(Duration::from_millis(100));
    assert_eq!(rig.engine.statistics().appends, 2);
    rig.world.run_for(Duration::from_secs(10));
    assert_eq!(rig.engine.statistics().appends, 2, "once");
}

#[test]
fn a_wait_gathers_more_than_a_turn() {
    let options = JournalOptions { fusion_wait: Duration::from_micros(200), ..journal_options() };
    let rig = Rig::new(8, options);
    rig.world.run_for(Duration::from_millis(10));
    for sequence in 1..=3 {
        rig.submit(write(0, sequence, 0, 4096));
        rig.world.run_for(Duration::from_micros(20));
    }
    rig.settle();
    assert_eq!(rig.engine.statistics().appends, 1);
}
