//! Large writes go where something was written before, be it zeros, also if that is a smaller file than a new one would be.

use std::time::Duration;

use base::io::fragment_checksums;
use base::{Bytes, MIB, SegmentId, VolumeId, WriteStamp};
use engine::{Engine, Options};
use files::local::{self, LocalOptions};
use files::{FileInfo, FileKind, Store};
use policies::ready::ReadySettings;
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

#[test]
fn large_writes_of_a_new_store_go_where_zeros_were_written() {
    let world = World::new(2);
    let node = world.add_node(NodeOptions::default());
    let handle = world.start_loop(node);
    let here = handle.clone();
    let (engine, store) = world.block_on(&handle, async move {
        let ready = ReadySettings { bytes_max: 256 * MIB, ..ReadySettings::default() };
        let options = LocalOptions { ready, ..LocalOptions::new(vec!["/disk/levee".into()]) };
        let (store, _) = local::open(&here, options).await.unwrap();
        let engine =
            Engine::open(&here, &store, Options { data_file_bytes: 16 * MIB, ..Options::default() }).await.unwrap();
        here.sleep(Duration::from_secs(10)).await;
        assert_eq!(store.statistics().zeroed_bytes, 0, "nobody said that there are volumes");
        let used = store.space().used;
        engine.set_provisioned(used + 128 * MIB);
        here.sleep(Duration::from_secs(10)).await;
        let zeroed = store.statistics().zeroed_bytes;
        let expected = 128 * MIB + used / 2;
        assert!((expected - 4 * MIB..=expected).contains(&zeroed), "what volumes may hold, and overwrite: {zeroed}");
        (engine, store)
    });
    // Then it sleeps, but for the next round of scrubbing.
    let before = world.operations_done();
    world.run_for(Duration::from_secs(600));
    assert_eq!(world.operations_done(), before);
    let here = handle.clone();
    world.block_on(&handle, async move {
        let (used, kept) = (store.space().used, store.statistics().kept_bytes);
        write(&engine, STAYS, 0..64).await;
        let taken = kept - store.statistics().kept_bytes;
        assert!(taken >= 48 * MIB, "all but the first files of the segment: {taken}");
        assert!(store.space().used - used <= 96 * MIB, "three writes fit a file of 4 MiB");
        // Of what was taken half is made up for: no more can come, but what came may be overwritten.
        here.sleep(Duration::from_secs(10)).await;
        assert!(store.statistics().kept_bytes <= kept - taken / 2 + 16 * MIB);
        engine.close().await.unwrap();
    });
}
