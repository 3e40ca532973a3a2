//! What several lives may do to each other, and what a restart of the store below changes.

use base::{AlignedBuf, BLOCK, Bytes, Epoch, ErrorKind, MIB, Prng};
use runtime::sim::{NodeOptions, World};

use super::*;
use crate::layout::Unreadable;
use crate::memory::{AppendFault, Memory, MemoryOptions};
use crate::{CreateOptions, FileWriter, Redundancy};

use super::guard::Record;

const OPTIONS: SharedOptions = SharedOptions { grant_bytes: 16 * MIB, reserve_bytes: 0, copies: 2 };

/// A store in memory that is shared again and again, and a loop.
struct Bed {
    memory: Memory,
    handle: Handle,
    options: SharedOptions,
}

impl Bed {
    async fn open(&self) -> Shared {
        Shared::open(&self.handle, self.memory.open(&self.handle), self.options).await.unwrap()
    }
}

fn run<F: Future<Output = ()> + 'static>(capacity: u64, act: impl FnOnce(Bed) -> F) {
    run_with(OPTIONS, capacity, act);
}

fn run_with<F: Future<Output = ()> + 'static>(options: SharedOptions, capacity: u64, act: impl FnOnce(Bed) -> F) {
    let world = World::new(3);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    let memory = MemoryOptions { capacity, directories: 2, ..MemoryOptions::default() };
    let bed = Bed { memory: Memory::new(7, memory), handle: handle.clone(), options };
    world.block_on(&handle, act(bed));
}

fn blocks(byte: u8, count: usize) -> Bytes {
    let mut buffer = AlignedBuf::zeroed(count * BLOCK as usize);
    buffer.fill(byte);
    buffer.freeze()
}

async fn create_as(store: &Store, claim: Claim) -> Result<FileId> {
    let kind = if claim == Claim::Log { FileKind::Transaction } else { FileKind::Data };
    let options = CreateOptions {
        kind,
        capacity: MIB,
        redundancy: Redundancy::Copies(2),
        prepared: false,
        epoch: Epoch(1),
        segment: None,
        claim,
    };
    store.create(options).await.map(|writer| writer.id())
}

async fn create(store: &Store, kind: FileKind) -> Result<FileWriter> {
    let redundancy = Redundancy::Copies(2);
    store
        .create(CreateOptions {
            kind,
            capacity: MIB,
            redundancy,
            prepared: false,
            epoch: Epoch(1),
            segment: None,
            claim: Claim::Use,
        })
        .await
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    result.map(drop).unwrap_err().kind
}

#[test]
fn lives_write_beside_each_other_and_each_has_its_own() {
    run(256 * MIB, |bed| async move {
        let shared = bed.open().await;
        let (one, two) = (shared.join().await.unwrap(), shared.join().await.unwrap());
        assert!(one.incarnation() < two.incarnation() && one.id() == two.id());
        let mut journal = create(&one, FileKind::Journal).await.unwrap();
        let mut data = create(&two, FileKind::Data).await.unwrap();
        journal.append(blocks(1, 2)).await.unwrap();
        data.append(blocks(2, 1)).await.unwrap();
        let of_one: Vec<FileId> = two.files_of(one.incarnation()).await.unwrap().iter().map(|info| info.id).collect();
        assert_eq!(of_one, [journal.id()]);
        assert_eq!(two.find(journal.id()).await.unwrap().map(|info| info.kind), Some(FileKind::Journal));
        assert!(two.find(FileId(999)).await.unwrap().is_none());
        assert_eq!(one.read(data.id(), 0, 4096).await.unwrap()[..], blocks(2, 1)[..]);
        assert_eq!(two.read(journal.id(), 0, 8192).await.unwrap()[..], blocks(1, 2)[..]);
        let ids = |store: &Store| store.list().iter().map(|info| info.id).collect::<Vec<_>>();
        assert_eq!((ids(&one), ids(&two)), (vec![journal.id()], vec![data.id()]));
        assert_eq!(two.info(journal.id()).unwrap().incarnation, one.incarnation());
        assert_eq!(shared.files_of(one.incarnation()).len(), 1);

        // What is another life's is not touched, except what belongs to a segment.
        assert_eq!(kind(two.seal(journal.id(), 0).await), ErrorKind::Conflict);
        assert_eq!(kind(two.delete(journal.id()).await), ErrorKind::Conflict);
        assert_eq!(kind(two.repair_copy(journal.id(), 0, 0, blocks(9, 1)).await), ErrorKind::Conflict);
        assert_eq!(kind(one.seal(data.id(), 0).await), ErrorKind::Conflict);
        one.repair_copy(data.id(), 0, 0, blocks(2, 1)).await.unwrap();
        one.delete(data.id()).await.unwrap();
        assert_eq!((two.list(), two.space().used), (vec![], 0));

        // Guards are nobody's.
        assert_eq!(kind(create(&one, FileKind::Incarnation).await), ErrorKind::Invalid);
        let guards = || (1..20).map(FileId).filter(|id| shared.0.below.info(*id).is_some() && one.info(*id).is_none());
        assert_eq!(guards().count(), 2);
        for guard in guards().collect::<Vec<_>>() {
            one.delete(guard).await.unwrap();
            assert_eq!(kind(one.seal(guard, 0).await), ErrorKind::NotFound);
        }
        assert_eq!(guards().count(), 2);
    });
}

#[test]
fn a_fence_is_for_one_life_and_for_ever() {
    run(256 * MIB, |bed| async move {
        let shared = bed.open().await;
        let lives = [shared.join().await.unwrap(), shared.join().await.unwrap(), shared.join().await.unwrap()];
        let mut writers = Vec::new();
        for life in &lives {
            writers.push(create(life, FileKind::Journal).await.unwrap());
        }
        let [first, second, third] = lives;
        let (dead, file) = (second.incarnation(), writers[1].id());
        // What is in flight when the fence comes is on disk when the fence stands, or is refused, also for one who does
        // not wait for it.
        let late = (0..64).map(|_| writers[1].append(blocks(1, 1))).collect::<Vec<_>>();
        drop(writers[1].append(blocks(1, 1)));
        first.fence(dead).await.unwrap();
        let on_disk = third.read(file, 0, 65 * 4096).await.unwrap();
        for append in late {
            match append.await {
                Ok(offset) => assert_eq!(on_disk[offset as usize..][..4096], blocks(1, 1)[..]),
                Err(error) => assert_eq!(error.kind, ErrorKind::Fenced),
            }
        }
        assert_eq!(on_disk[..], third.read(file, 0, 65 * 4096).await.unwrap()[..]);
        assert_eq!(kind(writers[1].append(blocks(2, 1)).await), ErrorKind::Fenced);
        for result in [
            create(&second, FileKind::Data).await.map(drop),
            second.seal(file, 4096).await,
            second.delete(file).await,
            second.repair_copy(file, 0, 0, blocks(3, 1)).await,
        ] {
            assert_eq!(kind(result), ErrorKind::Fenced);
        }
        assert_eq!(second.read(file, 0, 65 * 4096).await.unwrap()[..], on_disk[..]);
        // Those with lower and higher numbers notice nothing.
        writers[0].append(blocks(4, 1)).await.unwrap();
        writers[2].append(blocks(5, 1)).await.unwrap();
        first.fence(dead).await.unwrap();
        drop(shared);

        let shared = bed.open().await;
        let second = shared.rejoin(dead).unwrap();
        assert_eq!(kind(create(&second, FileKind::Data).await), ErrorKind::Fenced);
        let first = shared.rejoin(first.incarnation()).unwrap();
        let mut next = create(&first, FileKind::Journal).await.unwrap();
        next.append(blocks(6, 1)).await.unwrap();
        // Somebody else ends and deletes what it left. Then nothing has to be known of it.
        first.seal(file, 4096).await.unwrap();
        first.delete(file).await.unwrap();
        assert!(shared.lives().iter().all(|life| life.incarnation != dead));
        assert_eq!(kind(create(&second, FileKind::Data).await), ErrorKind::Fenced);
        drop(shared);
        assert_eq!(bed.open().await.rejoin(dead).map(drop).unwrap_err().kind, ErrorKind::NotFound);
    });
}

#[test]
fn a_number_that_was_fenced_before_it_was_given_out_is_given_to_nobody() {
    run(256 * MIB, |bed| async move {
        let shared = bed.open().await;
        let now = shared.join().await.unwrap().incarnation();
        let early = Incarnation(now.0 + 4);
        shared.fence(early).await.unwrap();
        drop(shared);
        let shared = bed.open().await;
        assert!(shared.lives().iter().any(|life| life.incarnation == early && life.is_fenced));
        let mut given = Vec::new();
        for _ in 0..5 {
            given.push(shared.join().await.unwrap().incarnation());
        }
        assert!(given.is_sorted() && given[0] > now && given[4] > early && !given.contains(&early), "{given:?}");
    });
}

#[test]
fn a_fence_that_the_disk_refuses_is_said_to_be_in_doubt() {
    run(256 * MIB, |bed| async move {
        let shared = bed.open().await;
        let life = shared.join().await.unwrap();
        // So much is not there: neither a guard nor anything else.
        bed.memory.set_capacity(0);
        let nobody = Incarnation(life.incarnation().0 + 100);
        assert_eq!(kind(shared.fence(nobody).await), ErrorKind::Full);
        bed.memory.set_capacity(256 * MIB);
        shared.fence(nobody).await.unwrap();
        drop(shared);
        let shared = bed.open().await;
        assert!(shared.lives().iter().any(|life| life.incarnation == nobody && life.is_fenced));
    });
}

#[test]
fn after_a_restart_of_the_store_a_life_goes_on_in_new_files() {
    run(256 * MIB, |bed| async move {
        let shared = bed.open().await;
        let life = shared.join().await.unwrap();
        let mut writer = create(&life, FileKind::Journal).await.unwrap();
        writer.append(blocks(1, 1)).await.unwrap();
        let (before, file) = (life.space(), writer.id());
        drop((shared, writer));

        let shared = bed.open().await;
        let life = shared.rejoin(life.incarnation()).unwrap();
        assert_eq!(life.space(), before);
        assert_eq!(life.list().iter().map(|info| info.id).collect::<Vec<_>>(), [file]);
        let mut stale = FileWriter { store: life.clone(), file, capacity: MIB, position: 4096, failed: false };
        let refused = stale.append(blocks(2, 1)).await.unwrap_err();
        assert!(refused.kind == ErrorKind::Io && refused.message.contains("go on in a new one"), "{refused}");
        life.seal(file, 4096).await.unwrap();
        create(&life, FileKind::Journal).await.unwrap().append(blocks(2, 1)).await.unwrap();
        // Another life starts with a number of its own.
        assert!(shared.join().await.unwrap().incarnation() > life.incarnation());
    });
}

/// Bytes that lives have or may take.
fn claimed(shared: &Shared) -> u64 {
    shared.lives().iter().map(|life| life.granted_bytes.max(life.used_bytes)).sum()
}

#[test]
fn a_grant_grows_with_what_is_used_and_comes_back_with_a_fence() {
    run(64 * MIB, |bed| async move {
        let shared = bed.open().await;
        let (one, two) = (shared.join().await.unwrap(), shared.join().await.unwrap());
        assert_eq!((one.space().free, two.space().free), (16 * MIB, 16 * MIB));
        let mut files = Vec::new();
        let full = loop {
            match create(&one, FileKind::Data).await {
                Ok(writer) => files.push(writer.id()),
                Err(error) => break error,
            }
        };
        assert!(full.kind == ErrorKind::Full && full.message.contains("was granted"), "{full}");
        // All but what the other was granted, guards, and a little.
        assert!((44..48).contains(&files.len()), "{}", files.len());
        assert!(two.space().free == 16 * MIB && claimed(&shared) <= 64 * MIB);
        for _ in 0..16 {
            create(&two, FileKind::Data).await.unwrap();
        }
        // What it has deleted is its own still; what it has not used is everybody's when it is fenced.
        one.delete(files.pop().unwrap()).await.unwrap();
        assert_eq!(kind(create(&two, FileKind::Data).await), ErrorKind::Full);
        shared.fence(one.incarnation()).await.unwrap();
        create(&two, FileKind::Data).await.unwrap();
        for file in files {
            two.delete(file).await.unwrap();
        }
        assert!(shared.lives().len() == 1 && claimed(&shared) < 40 * MIB, "{:?}", shared.lives());
    });
}

#[test]
fn a_grant_in_doubt_is_nobody_elses() {
    run(64 * MIB, |bed| async move {
        let shared = bed.open().await;
        let two = shared.join().await.unwrap();
        // It is on disk, and was said to have failed.
        bed.memory.fail_appends(None, 1, AppendFault::Landed);
        assert_eq!(kind(shared.join().await), ErrorKind::Io);
        while create(&two, FileKind::Data).await.is_ok() {}
        drop(shared);
        let shared = bed.open().await;
        assert!(claimed(&shared) <= 64 * MIB, "{:?}", shared.lives());
        // Its owner may ask again; a file of before that stays, too, counts for nothing.
        let one = shared.rejoin(Incarnation(two.incarnation().0 + 1)).unwrap();
        bed.memory.set_capacity(128 * MIB);
        bed.memory.fail_deletions(100);
        for _ in 0..3 {
            bed.memory.fail_appends(None, 1, AppendFault::Landed);
            shared.0.grant(&shared.0.life_or_lost(one.incarnation()), 4096).await.unwrap_err();
        }
        shared.0.grant(&shared.0.life_or_lost(one.incarnation()), 8192).await.unwrap();
        let space = one.space();
        assert!(space.capacity == 16 * MIB + 8192);
        drop(shared);
        assert_eq!(bed.open().await.rejoin(one.incarnation()).unwrap().space(), space);
    });
}

#[test]
fn more_is_granted_before_it_is_needed() {
    run(256 * MIB, |bed| async move {
        let shared = bed.open().await;
        let life = shared.join().await.unwrap();
        for _ in 0..100 {
            create(&life, FileKind::Data).await.unwrap();
            bed.handle.sleep(std::time::Duration::from_millis(1)).await;
            assert!(life.space().free >= 8 * MIB, "{:?}", life.space());
        }
    });
}

#[test]
fn the_reserve_is_for_logs_and_for_what_is_adopted() {
    for reserve in [0, 4] {
        run_with(SharedOptions { reserve_bytes: reserve * MIB, ..OPTIONS }, 64 * MIB, move |bed| async move {
            let shared = bed.open().await;
            let (one, two) = (shared.join().await.unwrap(), shared.join().await.unwrap());
            let mut files = Vec::new();
            while let Ok(file) = create_as(&one, Claim::Use).await {
                files.push(file);
            }
            while create_as(&two, Claim::Use).await.is_ok() {}
            // A little more is always left than what files are made of.
            let left = |claimed: u64| (63 * MIB - claimed) / MIB;
            assert_eq!(left(claimed(&shared)), reserve, "nobody was granted more for use");

            // Logs come and go; what they take is not for use, however often.
            for _ in 0..20 {
                let mut logs = Vec::new();
                while let Ok(log) = create_as(&one, Claim::Log).await {
                    logs.push(log);
                }
                assert_eq!(logs.len() as u64, reserve);
                for life in [&one, &two] {
                    assert_eq!(kind(create_as(life, Claim::Use).await), ErrorKind::Full);
                }
                for log in logs {
                    one.delete(log).await.unwrap();
                }
            }

            // What is adopted leaves as much for use as before. What comes back is for the reserve first.
            let before = [one.space().free, two.space().free];
            let mut adopted = Vec::new();
            while let Ok(file) = create_as(&two, Claim::Adoption).await {
                adopted.push(file);
            }
            assert_eq!((adopted.len() as u64, [one.space().free, two.space().free]), (reserve, before));
            assert_eq!(left(claimed(&shared)), 0);
            shared.fence(one.incarnation()).await.unwrap();
            for _ in 0..reserve {
                two.delete(files.pop().unwrap()).await.unwrap();
            }
            assert_eq!(kind(create_as(&two, Claim::Use).await), ErrorKind::Full);
            two.delete(files.pop().unwrap()).await.unwrap();
            create_as(&two, Claim::Use).await.unwrap();
        });
    }
}

/// Who has more than it was granted makes that good before it makes files for use, also after a restart of the store.
#[test]
fn what_a_log_takes_beyond_the_grant_is_made_good() {
    run_with(SharedOptions { reserve_bytes: 4 * MIB, ..OPTIONS }, 64 * MIB, |bed| async move {
        let shared = bed.open().await;
        let one = shared.join().await.unwrap();
        let mut files = Vec::new();
        while let Ok(file) = create_as(&one, Claim::Use).await {
            files.push(file);
        }
        create_as(&one, Claim::Log).await.unwrap();
        create_as(&one, Claim::Log).await.unwrap();
        let (space, all) = (one.space(), claimed(&shared));
        assert!(space.used > space.capacity && space.free == 0, "{space:?}");
        drop(shared);
        let shared = bed.open().await;
        let one = shared.rejoin(one.incarnation()).unwrap();
        assert_eq!((one.space(), claimed(&shared)), (space, all));
        one.delete(files.pop().unwrap()).await.unwrap();
        assert_eq!(kind(create_as(&one, Claim::Use).await), ErrorKind::Full, "the reserve is filled first");
        one.delete(files.pop().unwrap()).await.unwrap();
        one.delete(files.pop().unwrap()).await.unwrap();
        create_as(&one, Claim::Use).await.unwrap();
        create_as(&one, Claim::Log).await.unwrap();
        assert!(claimed(&shared) <= 64 * MIB);
    });
}

/// Whatever lives do, whatever fails, and whenever the store is restarted: numbers differ, a fence stays, and together
/// they never have more than there is.
#[test]
fn any_order_of_events_keeps_fences_and_space() {
    let seeds = 200;
    let (mut fenced_refusals, mut full, mut failed, mut restarts) = (0, 0, 0, 0);
    for seed in 0..seeds {
        let counts = Rc::new(Cell::new((0u64, 0u64, 0u64, 0u64)));
        let seen = counts.clone();
        run_with(SharedOptions { reserve_bytes: 3 * MIB, ..OPTIONS }, 48 * MIB, move |bed| async move {
            let mut prng = Prng::new(seed);
            let mut shared = bed.open().await;
            let (mut known, mut over): (Vec<Incarnation>, Vec<Incarnation>) = (Vec::new(), Vec::new());
            for _ in 0..60 {
                let (mut fenced, mut full, mut failed, mut restarts) = seen.get();
                match prng.below(8) {
                    0 | 1 if known.len() < 5 => match shared.join().await {
                        Ok(life) => {
                            assert!(!known.contains(&life.incarnation()), "seed {seed}");
                            known.push(life.incarnation());
                        }
                        Err(_) => failed += 1,
                    },
                    2 => {
                        bed.memory.fail_appends(None, 1, *prng.pick(&[AppendFault::Lost, AppendFault::Landed]));
                    }
                    3 if !known.is_empty() && prng.one_in(3) => {
                        let victim = *prng.pick(&known);
                        shared.fence(victim).await.unwrap();
                        over.push(victim);
                    }
                    4 if prng.one_in(3) => {
                        drop(shared);
                        bed.memory.clear_faults();
                        shared = bed.open().await;
                        restarts += 1;
                    }
                    _ if !known.is_empty() => {
                        let who = *prng.pick(&known);
                        let Ok(life) = shared.rejoin(who) else {
                            assert!(over.contains(&who), "seed {seed}: {who} is unknown");
                            continue;
                        };
                        let done = match life.list().first().filter(|_| prng.one_in(3)) {
                            Some(info) => life.delete(info.id).await,
                            None => {
                                let claim = *prng.pick(&[Claim::Use, Claim::Use, Claim::Log, Claim::Adoption]);
                                create_as(&life, claim).await.map(drop)
                            }
                        };
                        match done.map_err(|error| error.kind) {
                            Ok(()) => assert!(!over.contains(&who), "seed {seed}: {who} was fenced"),
                            Err(ErrorKind::Fenced) => {
                                assert!(over.contains(&who), "seed {seed}: {who} was not fenced");
                                fenced += 1;
                            }
                            Err(ErrorKind::Full) => full += 1,
                            Err(_) => failed += 1,
                        }
                    }
                    _ => {}
                }
                seen.set((fenced, full, failed, restarts));
                assert!(claimed(&shared) <= 48 * MIB, "seed {seed}: {:?}", shared.lives());
                let used: u64 = shared.0.below.list().iter().map(|info| info.capacity).sum();
                assert!(used <= 48 * MIB, "seed {seed}");
            }
        });
        let (a, b, c, d) = counts.get();
        (fenced_refusals, full, failed, restarts) = (fenced_refusals + a, full + b, failed + c, restarts + d);
    }
    println!("{seeds} seeds: {fenced_refusals} refused, {full} full, {failed} failed, {restarts} restarts");
    assert!(fenced_refusals > 0 && full > 0 && failed > 0 && restarts > 0);
}

#[test]
fn records_have_their_bytes_and_nothing_else_is_one() {
    let record = Record { file: FileId(0x1122), incarnation: Incarnation(3), sequence: 5, granted: 1 << 30 };
    let bytes = record.encode();
    let hex = bytes[..72].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(
        hex,
        "4c45564545494e4301000000025633520000000000000000000000000000000000000000000000002211000000000000\
         030000000000000005000000000000000000004000000000"
    );
    assert!(bytes[72..].iter().all(|byte| *byte == 0) && bytes.len() == BLOCK as usize);
    assert_eq!(Record::decode(&bytes), Ok(record));
    assert_eq!(Record::decode(&[0; BLOCK as usize]), Err(Unreadable::Blank));
    let mut prng = Prng::new(1);
    for _ in 0..2000 {
        let mut bytes = record.encode();
        bytes[prng.below(BLOCK) as usize] ^= 1 << prng.below(8);
        assert_eq!(Record::decode(&bytes), Err(Unreadable::Damaged));
    }
}
