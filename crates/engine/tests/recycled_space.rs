//! Large writes go where something was written before, also if that is a smaller file than a new one would be.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use std::time::Duration;

use base::io::fragment_checksums;
use base::{Bytes, MIB, SegmentId, VolumeId, WriteStamp};
use engine::{Engine, Options};
use files::local::{self, LocalOptions};
use files::{FileInfo, FileKind, Store};
use runtime::sim::{NodeOptions, World};

/// What goes before each large write in its data file.
const LABEL_BYTES: u64 = 4096;

const LEAVES: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };
const STAYS: SegmentId = SegmentId { volume: VolumeId(2), index: 0 };

async fn write(engine: &Engine, segment: SegmentId, mebibytes: std::ops::Range<u64>) {
    for number in mebibytes {
        let data = Bytes::from(vec![7; MIB as usize]);
        let checksums = fragment_checksums(segment, number * MIB, &data);
        engine.write(segment, number * MIB, data, checksums, WriteStamp::default()).await.unwrap();
    }
}

fn data_files(store: &Store) -> Vec<FileInfo> {
    store.list().into_iter().filter(|info| info.kind == FileKind::Data).collect()
}

#[test]
fn what_a_dropped_volume_leaves_is_written_again() {
    let world = World::new(1);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    let here = handle.clone();
    world.block_on(&handle, async move {
        let (store, _) = local::open(&here, LocalOptions::new(vec!["/disk/levee".into()])).await.unwrap();
        let engine = Engine::open(&here, &store, Options::default()).await.unwrap();
        write(&engine, LEAVES, 0..4).await;
        let small = data_files(&store).iter().map(|info| info.capacity).max().unwrap();
        write(&engine, STAYS, 0..10).await;
        let before = data_files(&store);
        engine.drop_volume(LEAVES.volume).await.unwrap();
        // Its files are deleted in the background.
        here.sleep(Duration::from_secs(60)).await;
        assert_eq!(store.recyclable(FileKind::Data, 0..=small), Some(small));
        write(&engine, STAYS, 10..26).await;
        let mut later = data_files(&store);
        later.retain(|info| before.iter().all(|old| old.id != info.id));
        assert_eq!(small, MIB + LABEL_BYTES, "the files of a small segment: one write with its label");
        assert_eq!(later[0].capacity, small, "{later:?}");
        assert!(later.iter().any(|info| info.capacity > small), "then there are no more, and new ones are larger");
        engine.close().await.unwrap();
    });
}
