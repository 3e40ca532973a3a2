//! Files that no log names: whoever has their segment removes them, and nothing else (rule 43 of docs/SAFETY.md).

use std::collections::BTreeSet;
use std::time::Duration;

use base::io::fragment_checksums;
use base::{Bytes, Epoch, FileId, Generation, KIB, MIB, SegmentId, VolumeId, WriteStamp};
use engine::transaction::{Record, scan};
use engine::{Engine, Options, Ownership, Tenure};
use files::memory::{Memory, MemoryOptions};
use files::shared::{Shared, SharedOptions};
use files::{Claim, CreateOptions, FileKind, Redundancy, Store};
use runtime::Handle;

const SEGMENT: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };
const OTHER: SegmentId = SegmentId { volume: VolumeId(1), index: 1 };
/// Until what was begun in the background is done.
const SOON: Duration = Duration::from_millis(50);

fn tenure(epoch: u64) -> Tenure {
    Tenure { epoch: Epoch(epoch), generation: Generation(1) }
}

fn options() -> Options {
    Options {
        journal_file_bytes: MIB,
        journal_files: 2,
        data_file_bytes: 256 * KIB,
        transaction_file_bytes: 256 * KIB,
        ownership: Ownership::Given,
        ..Options::default()
    }
}

async fn write(engine: &Engine, segment: SegmentId) {
    let data = Bytes::from(vec![7; 64 << 10]);
    let checksums = fragment_checksums(segment, 0, &data);
    engine.write(segment, 0, data, checksums, WriteStamp::default()).await.expect("there is room");
}

/// A file as one makes it for a segment, under an epoch, and dies.
async fn leave(store: &Store, segment: SegmentId, epoch: u64, kind: FileKind) -> FileId {
    let options = CreateOptions {
        kind,
        capacity: MIB,
        redundancy: Redundancy::Copies(1),
        prepared: false,
        epoch: Epoch(epoch),
        segment: Some(segment),
        claim: Claim::Use,
    };
    store.create(options).await.expect("there is room").id()
}

async fn shared(handle: &Handle) -> Shared {
    let memory = Memory::new(1, MemoryOptions { capacity: 256 * MIB, ..MemoryOptions::default() });
    let options = SharedOptions { grant_bytes: 8 * MIB, ..SharedOptions::default() };
    Shared::open(handle, memory.open(handle), options).await.expect("an empty store")
}

async fn join(handle: &Handle, shared: &Shared) -> (Store, Engine) {
    let store = shared.join().await.expect("there is room");
    let engine = Engine::open(handle, &store, options()).await.expect("there is nothing to recover");
    (store, engine)
}

#[test]
fn strays_go_by_an_intent_and_nothing_else_does() {
    runtime::sim::run(1, |handle| async move {
        let shared = shared(&handle).await;
        let (former, adopter) = (join(&handle, &shared).await, join(&handle, &shared).await);
        let (dead, refuser) = (shared.join().await.expect("room"), shared.join().await.expect("room"));
        former.1.create_segment(SEGMENT, tenure(2)).await.expect("nothing fails");
        write(&former.1, SEGMENT).await;
        let left = former.1.release(SEGMENT, Epoch(2)).await.expect("nothing fails");
        let named: BTreeSet<FileId> = left.files().collect();
        assert!(named.len() >= 2, "a data file and a table");
        // Of one who died midway, of one who lives and has refused, of the owner before, and of an earlier tenure.
        let strays = [
            leave(&dead, SEGMENT, 2, FileKind::Data).await,
            leave(&dead, SEGMENT, 1, FileKind::Table).await,
            leave(&refuser, SEGMENT, 2, FileKind::Data).await,
            leave(&former.0, SEGMENT, 2, FileKind::Table).await,
            leave(&adopter.0, SEGMENT, 1, FileKind::Data).await,
        ];
        // What was made under the new epoch, or is for one who has it later, and what is of another segment.
        let kept = [
            leave(&adopter.0, SEGMENT, 3, FileKind::Data).await,
            leave(&dead, SEGMENT, 4, FileKind::Data).await,
            leave(&dead, OTHER, 1, FileKind::Data).await,
        ];
        shared.fence(dead.incarnation()).await.expect("nothing fails");
        assert_eq!(former.1.remove_strays().await.expect("it may ask"), 0, "it has the segment no more");
        adopter.1.adopt(former.0.incarnation(), left, tenure(3)).await.expect("nothing fails");
        handle.sleep(SOON).await;
        let is_there = |file: &FileId| shared.find(*file).is_some();
        assert!(!strays.iter().any(is_there), "{strays:?}");
        assert!(kept.iter().chain(&named).all(is_there), "{kept:?}, {named:?}");
        assert_eq!(adopter.1.statistics().strays, strays.len() as u64);
        // One that comes later is found later.
        let late = leave(&refuser, SEGMENT, 2, FileKind::Table).await;
        handle.sleep(Duration::from_secs(1800)).await;
        assert!(!is_there(&late));

        // Whoever is fenced removes nothing any more.
        let stray = leave(&refuser, SEGMENT, 2, FileKind::Data).await;
        shared.fence(adopter.0.incarnation()).await.expect("nothing fails");
        adopter.1.remove_strays().await.expect_err("nothing is logged any more");
        assert!(is_there(&stray));
        let estate = files::estate::Estate::open(&refuser, adopter.0.incarnation()).await.expect("it can be read");
        let log = scan(&estate.store(), false).await.expect("nothing is wrong with it");
        let mut intents = BTreeSet::new();
        for (_, record) in log.records {
            if let Record::DropFile { segment: SEGMENT, file } = record {
                intents.insert(file);
            }
        }
        let expected: BTreeSet<FileId> = strays.into_iter().chain([late]).collect();
        assert_eq!(intents, expected, "what was removed was intended, and only that");
    });
}

#[test]
fn a_segment_that_is_dropped_leaves_nothing() {
    runtime::sim::run(2, |handle| async move {
        let shared = shared(&handle).await;
        let (store, engine) = join(&handle, &shared).await;
        engine.create_segment(SEGMENT, tenure(2)).await.expect("nothing fails");
        write(&engine, SEGMENT).await;
        let stray = leave(&store, SEGMENT, 2, FileKind::Data).await;
        let other = leave(&store, OTHER, 2, FileKind::Data).await;
        engine.drop_segment(SEGMENT, Epoch(2)).await.expect("nothing fails");
        handle.sleep(SOON).await;
        assert!(shared.find(stray).is_none() && shared.find(other).is_some());
        assert_eq!(shared.files_of_segment(SEGMENT), []);
    });
}

/// A list of the store has files that a log does not know: whose they are is not for a restart to say.
#[test]
fn a_restart_leaves_what_was_released() {
    runtime::sim::run(3, |handle| async move {
        let memory = Memory::new(1, MemoryOptions::default());
        let engine = Engine::open(&handle, &memory.open(&handle), options()).await.expect("an empty store");
        engine.create_segment(SEGMENT, tenure(1)).await.expect("nothing fails");
        engine.create_segment(OTHER, tenure(1)).await.expect("nothing fails");
        write(&engine, SEGMENT).await;
        let left = engine.release(SEGMENT, Epoch(1)).await.expect("nothing fails");
        let store = memory.open(&handle);
        let stray = leave(&store, OTHER, 1, FileKind::Data).await;
        let store = memory.open(&handle);
        let engine = Engine::open(&handle, &store, options()).await.expect("nothing is wrong");
        handle.sleep(SOON).await;
        assert!(left.files().all(|file| store.info(file).is_some()), "they are for whoever adopts them");
        assert!(store.info(stray).is_none(), "the segment is here, and does not name it");
        engine.adopt(store.incarnation(), left, tenure(2)).await.expect("all of it is there");
    });
}
