//! What is under way when a volume is dropped does not bring it back at the next start.

use std::time::Duration;

use base::io::fragment_checksums;
use base::{Bytes, KIB, MIB, SegmentId, VolumeId, WriteStamp};
use engine::{Engine, Options};
use files::memory::{Memory, MemoryOptions};
use runtime::sim::{NodeOptions, World};

const SEGMENT: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };

/// Writes until a cache is full, so that a dump begins; drops the volume a little later, stops cleanly, and starts.
fn drop_during_a_dump(after: Duration) -> u64 {
    let world = World::new(1);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    let disk = Memory::new(1, MemoryOptions { capacity: 256 * MIB, ..MemoryOptions::default() });
    let options = Options { segment_cache_bytes: 256 * KIB, journal_file_bytes: 4 * MIB, ..Options::default() };
    let (store, here, opening) = (disk.open(&handle), handle.clone(), options.clone());
    let dumped = world.block_on(&handle, async move {
        let engine = Engine::open(&here, &store, opening).await.unwrap();
        for number in 0..16 {
            let (offset, data) = (number * 16 * KIB, Bytes::from(vec![7; 16 * KIB as usize]));
            let checksums = fragment_checksums(SEGMENT, offset, &data);
            engine.write(SEGMENT, offset, data, checksums, WriteStamp::default()).await.unwrap();
        }
        here.sleep(after).await;
        let dumped = engine.statistics().dumped_blocks;
        engine.drop_volume(SEGMENT.volume).await.unwrap();
        engine.close().await.unwrap();
        dumped
    });
    let (store, here) = (disk.open(&handle), handle.clone());
    world.block_on(&handle, async move {
        let engine = Engine::open(&here, &store, options).await.unwrap();
        let wrong = engine.audit().await.unwrap();
        assert!(wrong.is_empty(), "dropped after {after:?}: {wrong:?}");
        engine.close().await.unwrap();
    });
    dumped
}

#[test]
fn a_dump_that_is_under_way_does_not_bring_its_volume_back() {
    let dumped: Vec<u64> = (0..200).map(|step| drop_during_a_dump(Duration::from_micros(step * 10))).collect();
    assert!(dumped.contains(&0) && dumped.iter().any(|blocks| *blocks > 0), "before, during and after: {dumped:?}");
}
