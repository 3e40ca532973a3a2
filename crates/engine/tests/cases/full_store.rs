//! A shared store of which nothing is left to be granted: what a dead engine had is taken over all the same, also by an
//! engine that is new and was granted nothing, and that can delete what it has taken over; what is discarded frees space,
//! and writes of those who were granted it go on (rule 44 of docs/SAFETY.md).

use std::time::Duration;

use base::io::{ReadPart, fragment_checksums};
use base::{
    Bytes, Epoch, Error, ErrorKind, Generation, Incarnation, KIB, MIB, Result, SegmentId, VolumeId, WriteStamp,
};
use engine::ownership::estate::Estate;
use engine::{Engine, Options, Ownership, Tenure};
use files::memory::{Memory, MemoryOptions};
use files::shared::{Shared, SharedOptions};
use files::{FileKind, Store};
use runtime::Handle;

const CAPACITY: u64 = 96 * MIB;
const WRITE_BYTES: u64 = 32 * KIB;
/// What the one who dies has in its journals only.
const UNDUMPED: u64 = 2 * MIB;
/// Until everything that can be freed is freed.
const A_WHILE: Duration = Duration::from_secs(5);

fn segment(volume: u64) -> SegmentId {
    SegmentId { volume: VolumeId(volume), index: 0 }
}

fn tenure(epoch: u64) -> Tenure {
    Tenure { epoch: Epoch(epoch), generation: Generation(1) }
}

/// Those of one who dumps soon, and has small journals, or of one who never does, if it can help it.
fn options(dumps: bool) -> Options {
    Options {
        dump_age: Duration::from_millis(if dumps { 5 } else { 36_000_000 }),
        segment_cache_bytes: 8 * MIB,
        journal_file_bytes: if dumps { 512 * KIB } else { 4 * MIB },
        journal_files: 2,
        data_file_bytes: 512 * KIB,
        transaction_file_bytes: 128 * KIB,
        memtable_bytes_max: 256 * KIB,
        ownership: Ownership::Given,
        ..Options::default()
    }
}

fn content(volume: u64, offset: u64, round: u8) -> Bytes {
    Bytes::from(vec![(volume * 100 + offset / WRITE_BYTES) as u8 ^ round; WRITE_BYTES as usize])
}

/// An engine, and its store.
type Member = (Store, Engine);

async fn write(member: &Member, volume: u64, offset: u64, round: u8) -> Result<()> {
    let (segment, data) = (segment(volume), content(volume, offset, round));
    let checksums = fragment_checksums(segment, offset, &data);
    member.1.write(segment, offset, data, checksums, WriteStamp::default()).await
}

async fn check(member: &Member, volume: u64, offset: u64, round: u8) {
    let mut found = Vec::new();
    for part in member.1.read(segment(volume), offset, WRITE_BYTES).await.expect("it is there") {
        let ReadPart::Data(data) = part else { panic!("{offset} of volume {volume} was written") };
        found.extend_from_slice(&data);
    }
    assert_eq!(found, content(volume, offset, round), "{offset} of volume {volume}");
}

/// Writes until nothing more fits, and nothing more is granted; gives where that was.
async fn fill(handle: &Handle, member: &Member, volume: u64, mut offset: u64) -> u64 {
    let mut refused = 0;
    while refused < 10 {
        match write(member, volume, offset, 0).await {
            Ok(()) => (offset, refused) = (offset + WRITE_BYTES, 0),
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::Full, "{error}");
                refused += 1;
                handle.sleep(Duration::from_millis(100)).await;
            }
        }
    }
    offset
}

async fn join(handle: &Handle, shared: &Shared, dumps: bool) -> Result<Member> {
    let store = shared.join().await?;
    let engine = Engine::open(handle, &store, options(dumps)).await?;
    Ok((store, engine))
}

/// Takes over the segment of `dead`, whose log has an end.
async fn take_over(handle: &Handle, adopter: &Member, dead: Incarnation) -> Result<()> {
    let options = options(true);
    let estate = Estate::open_sealed(handle, &adopter.0, dead, &options, &[segment(3)].into()).await?;
    assert!(estate.recovery().journal_records >= UNDUMPED / WRITE_BYTES, "there is much to be copied");
    let left = estate.take(segment(3)).await?;
    adopter.1.adopt(dead, left, tenure(2)).await?;
    for info in adopter.0.files_of(dead).await? {
        if matches!(info.kind, FileKind::Journal | FileKind::Transaction) {
            adopter.0.delete(info.id).await?;
        }
    }
    Ok(())
}

/// Three engines fill the store, one dies, and what it had is adopted: by one that has been there, or by a new one.
async fn fill_and_take_over(handle: Handle, reserve_bytes: u64, by_a_new_one: bool) -> Result<()> {
    let memory = Memory::new(5, MemoryOptions { capacity: CAPACITY, ..MemoryOptions::default() });
    let shared_options = SharedOptions { grant_bytes: 4 * MIB, reserve_bytes, copies: 1 };
    let shared = Shared::open(&handle, memory.open(&handle), shared_options).await?;
    let members = [
        join(&handle, &shared, true).await?,
        join(&handle, &shared, true).await?,
        join(&handle, &shared, false).await?,
    ];
    for (volume, member) in (1..).zip(&members) {
        member.1.create_segment(segment(volume), tenure(1)).await?;
    }
    let [first, second, third] = members;
    for offset in (0..UNDUMPED).step_by(WRITE_BYTES as usize) {
        write(&third, 3, offset, 0).await?;
    }
    let mut ends = [fill(&handle, &first, 1, 0).await, fill(&handle, &second, 2, 0).await];
    // What the dead one was granted and did not use, and its journals without content, are granted to others, who go on.
    let dead = third.0.incarnation();
    Estate::open(&handle, &first.0, dead, &options(true)).await?.seal().await?;
    ends = [fill(&handle, &first, 1, ends[0]).await, fill(&handle, &second, 2, ends[1]).await];
    assert!(ends.iter().sum::<u64>() > CAPACITY / 2, "much of it is data: {ends:?}");

    let adopter = match by_a_new_one {
        true => join(&handle, &shared, true).await?,
        false => second.clone(),
    };
    take_over(&handle, &adopter, dead).await?;
    for offset in (0..UNDUMPED).step_by(WRITE_BYTES as usize) {
        check(&adopter, 3, offset, 0).await;
    }

    if by_a_new_one {
        // What came back with the logs of the dead is granted to the others: it has no journal but by the reserve.
        ends = [fill(&handle, &first, 1, ends[0]).await, fill(&handle, &second, 2, ends[1]).await];
    }
    // Everything but the last mebibyte of each goes, and so there is room.
    let all = [(&adopter, 3, UNDUMPED), (&first, 1, ends[0]), (&second, 2, ends[1])];
    for (member, volume, end) in all {
        member.1.discard(segment(volume), 0, end - MIB, WriteStamp::default()).await?;
    }
    handle.sleep(A_WHILE).await;
    for (member, volume, end) in all {
        // Space that is free again is for those who were granted it, as long as they live.
        let may_write = volume != 3 || !by_a_new_one;
        for offset in (0..MIB).step_by(WRITE_BYTES as usize) {
            if may_write {
                write(member, volume, offset, 7).await?;
                check(member, volume, offset, 7).await;
            }
            check(member, volume, end - MIB + offset, 0).await;
        }
        member.1.drop_segment(segment(volume), member.1.tenure(segment(volume)).ok_or_else(lost)?.epoch).await?;
    }
    handle.sleep(A_WHILE).await;
    assert!((1..=3).all(|volume| shared.files_of_segment(segment(volume)).is_empty()), "all of it is gone");
    let claimed: u64 = shared.lives().iter().map(|life| life.granted_bytes.max(life.used_bytes)).sum();
    assert!(claimed <= CAPACITY);
    Ok(())
}

fn lost() -> Error {
    Error::internal("a segment is not where it was")
}

fn run(reserve_bytes: u64, by_a_new_one: bool) -> Result<()> {
    let world = runtime::sim::World::new(7);
    let node = world.add_node(runtime::sim::NodeOptions::default());
    let handle = world.start_loop(node);
    let inside = handle.clone();
    world.block_on(&handle, async move { fill_and_take_over(inside, reserve_bytes, by_a_new_one).await })
}

#[test]
fn a_full_store_is_taken_over_and_emptied() {
    for by_a_new_one in [false, true] {
        run(CAPACITY, by_a_new_one).unwrap_or_else(|error| panic!("by a new one: {by_a_new_one}: {error}"));
        let refused = run(0, by_a_new_one).expect_err("without the reserve there is no room");
        assert_eq!(refused.kind, ErrorKind::Full, "{refused}");
    }
}
