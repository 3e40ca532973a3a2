//! A disk that has less room than its file system last said: writes are told that it is full, and soon.

use std::time::Duration;

use base::io::fragment_checksums;
use base::{Bytes, ErrorKind, KIB, Result, SegmentId, VolumeId, WriteStamp};
use engine::{Engine, Options};
use files::local::{self, LocalOptions};
use runtime::sim::{NodeOptions, World};

const SEGMENT: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };

async fn write(engine: &Engine, offset: u64, len: u64) -> Result<()> {
    let data = Bytes::from(vec![7; len as usize]);
    let checksums = fragment_checksums(SEGMENT, offset, &data);
    engine.write(SEGMENT, offset, data, checksums, WriteStamp::default()).await
}

#[test]
fn writes_are_told_at_once_that_the_room_has_gone() {
    // Large ones, and such that go through the journal.
    for len in [64 * KIB, 4 * KIB] {
        let world = World::new(1);
        let node = world.add_node(NodeOptions::default());
        let disk = world.disk(node, "/disk");
        let handle = world.start_loop(node);
        let life = handle.clone();
        let before = world.now();
        world.block_on(&handle, async move {
            let options = Options {
                transaction_file_bytes: 64 * KIB,
                journal_file_bytes: 512 * KIB,
                data_file_bytes: 256 * KIB,
                large_write_bytes: 16 * KIB,
                dump_age: Duration::from_millis(5),
                ..Options::default()
            };
            let (store, _) = local::open(&life, LocalOptions::new(vec!["/disk/levee".into()])).await.unwrap();
            let engine = Engine::open(&life, &store, options).await.unwrap();
            write(&engine, 0, len).await.unwrap();
            // Somebody else has taken everything.
            disk.set_capacity(0);
            let refused = loop {
                if let Err(error) = write(&engine, 0, len).await {
                    break error;
                }
            };
            assert_eq!(refused.kind, ErrorKind::Full, "{refused}");
        });
        assert!(world.now() - before < Duration::from_secs(20), "with {len} bytes it took {:?}", world.now() - before);
    }
}
