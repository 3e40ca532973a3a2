//! A data file that an append failed in is sealed behind what has landed: what is within a seal is there, in whatever store.

use std::time::Duration;

use base::io::fragment_checksums;
use base::{BLOCK, Bytes, GIB, KIB, Result, SegmentId, VolumeId, WriteStamp};
use engine::{Engine, Options};
use files::FileKind;
use files::memory::{AppendFault, Memory, MemoryOptions};
use runtime::sim::{NodeOptions, World};

const SEGMENT: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };
const LARGE: u64 = 64 * KIB;

async fn write(engine: &Engine, number: u64) -> Result<()> {
    let data = Bytes::from(vec![number as u8; LARGE as usize]);
    let checksums = fragment_checksums(SEGMENT, number * LARGE, &data);
    engine.write(SEGMENT, number * LARGE, data, checksums, WriteStamp::default()).await
}

#[test]
fn what_failed_is_not_within_the_seal() {
    for fault in [AppendFault::Lost, AppendFault::Torn, AppendFault::Landed] {
        let world = World::new(1);
        let handle = world.start_loop(world.add_node(NodeOptions::default()));
        let disk = Memory::new(1, MemoryOptions { capacity: 4 * GIB, ..MemoryOptions::default() });
        let (store, here) = (disk.open(&handle), handle.clone());
        let sealed = world.block_on(&handle, async move {
            let options = Options { large_write_bytes: LARGE, ..Options::default() };
            let engine = Engine::open(&here, &store, options).await.unwrap();
            for number in 1..3 {
                write(&engine, number).await.unwrap();
            }
            disk.fail_appends(Some(FileKind::Data), 1, fault);
            // It is tried again, in another file.
            write(&engine, 3).await.unwrap();
            here.sleep(Duration::from_secs(1)).await;
            let data = store.list().into_iter().filter(|info| info.kind == FileKind::Data);
            data.filter_map(|info| info.sealed).collect::<Vec<u64>>()
        });
        // With a label each.
        assert_eq!(sealed, [2 * (LARGE + BLOCK)], "{fault:?}");
    }
}
