//! Several engines at once over one shared store: each has a log and files of its own, and one that is fenced stops alone.

use base::io::{ReadPart, fragment_checksums};
use base::{Bytes, ErrorKind, KIB, MIB, Result, SegmentId, VolumeId, WriteStamp};
use engine::{Engine, Options};
use files::memory::{Memory, MemoryOptions};
use files::shared::{Shared, SharedOptions};
use runtime::sim::{NodeOptions, World};

const WRITE_BYTES: u64 = 32 * KIB;

fn segment(volume: u64) -> SegmentId {
    SegmentId { volume: VolumeId(volume), index: 0 }
}

fn content(volume: u64, offset: u64) -> Bytes {
    Bytes::from(vec![(volume * 100 + offset / WRITE_BYTES) as u8; WRITE_BYTES as usize])
}

async fn write(engine: &Engine, volume: u64, offset: u64) -> Result<()> {
    let data = content(volume, offset);
    let checksums = fragment_checksums(segment(volume), offset, &data);
    engine.write(segment(volume), offset, data, checksums, WriteStamp::default()).await
}

async fn check(engine: &Engine, volume: u64, offset: u64) {
    let parts = engine.read(segment(volume), offset, WRITE_BYTES).await.expect("it is there");
    let mut found = Vec::new();
    for part in parts {
        let ReadPart::Data(data) = part else { panic!("{offset} of volume {volume} was written") };
        found.extend_from_slice(&data);
    }
    assert_eq!(found, content(volume, offset), "{offset} of volume {volume}");
}

#[test]
fn engines_share_a_store_and_one_that_is_fenced_stops_alone() {
    let world = World::new(11);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    let inside = handle.clone();
    world.block_on(&handle, async move {
        let memory = Memory::new(5, MemoryOptions { directories: 2, capacity: 256 * MIB, ..MemoryOptions::default() });
        let options = SharedOptions { grant_bytes: 24 * MIB, ..SharedOptions::default() };
        let shared = Shared::open(&inside, memory.open(&inside), options).await.expect("an empty store");
        let mut engines = Vec::new();
        for _ in 0..3 {
            let store = shared.join().await.expect("there is room");
            let options = Options {
                copies: 2,
                journal_file_bytes: MIB,
                journal_files: 2,
                data_file_bytes: 2 * MIB,
                transaction_file_bytes: 256 * KIB,
                segment_cache_bytes: 128 * KIB,
                ..Options::default()
            };
            let engine = Engine::open(&inside, &store, options).await.expect("there is nothing to recover");
            engines.push((store, engine));
        }
        // More than journals and caches hold, so that each has files of every kind.
        for offset in (0..128 * WRITE_BYTES).step_by(WRITE_BYTES as usize) {
            for (volume, (_, engine)) in (1..).zip(&engines) {
                write(engine, volume, offset).await.expect("there is room");
            }
        }
        let victim = engines[1].0.incarnation();
        engines[0].0.fence(victim).await.expect("nothing fails");
        let refused = write(&engines[1].1, 2, 0).await.expect_err("it was fenced");
        assert_eq!(refused.kind, ErrorKind::Fenced, "{refused}");
        for offset in (0..256 * WRITE_BYTES).step_by(WRITE_BYTES as usize) {
            for volume in [1, 3] {
                write(&engines[volume as usize - 1].1, volume, offset).await.expect("the others go on");
            }
        }
        for offset in (0..256 * WRITE_BYTES).step_by(WRITE_BYTES as usize) {
            for volume in [1, 3] {
                check(&engines[volume as usize - 1].1, volume, offset).await;
            }
        }
        let mut files = engines.iter().flat_map(|(store, _)| store.list());
        assert!(files.all(|info| info.segment.is_none()), "where segments stay, no file has to say whose it is");
        let lives = shared.lives();
        assert_eq!(
            lives.iter().filter(|life| life.is_fenced).map(|life| life.incarnation).collect::<Vec<_>>(),
            [victim]
        );
        assert!(
            lives.iter().map(|life| life.granted_bytes.max(life.used_bytes)).sum::<u64>() <= 256 * MIB,
            "{lives:?}"
        );
        assert!(!shared.files_of(victim).is_empty(), "what it had is there to be adopted");
    });
}
