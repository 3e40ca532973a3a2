//! A power loss may undo some of a deletion: the name of a journal file that nobody needs any more is there again in
//! one directory, without the other copies that it had to heal from. Whatever is in it, the store starts and has
//! everything.

use std::path::Path;

use base::io::{ReadPart, fragment_checksums};
use base::{Bytes, KIB, Result, SegmentId, VolumeId, WriteStamp};
use engine::{Engine, Options};
use files::local::{self, LocalOptions};
use runtime::sim::{DiskOptions, NodeOptions, SimDisk, World};
use runtime::{Class, Handle};

const WRITES: u64 = 8;
const WRITE_BYTES: u64 = 4 * KIB;

async fn open(handle: &Handle) -> Result<Engine> {
    let options = Options { copies: 2, ..Options::default() };
    let directories = vec!["/disk0/levee".into(), "/disk1/levee".into()];
    let (store, _) = local::open(handle, LocalOptions::new(directories)).await?;
    Engine::open(handle, &store, options).await
}

/// Neighbouring writes are of two segments, so that neither dump says where a replay starts after both.
fn segment(number: u64) -> SegmentId {
    SegmentId { volume: VolumeId(1), index: (number % 2) as u32 }
}

async fn write(engine: &Engine, number: u64) {
    let data = Bytes::from(vec![number as u8 + 1; WRITE_BYTES as usize]);
    let offset = number * WRITE_BYTES;
    let checksums = fragment_checksums(segment(number), offset, &data);
    engine.write(segment(number), offset, data, checksums, WriteStamp::default()).await.unwrap();
}

async fn check(engine: &Engine) {
    for number in 0..WRITES {
        let parts = engine.read(segment(number), number * WRITE_BYTES, WRITE_BYTES).await.unwrap();
        assert!(matches!(&parts[..], [ReadPart::Data(data)] if data[0] == number as u8 + 1), "write {number}");
    }
}

fn is_journal(path: &Path) -> bool {
    path.to_string_lossy().contains("files/journal-")
}

fn has(disk: &SimDisk, file: &Path) -> bool {
    disk.files().iter().any(|(path, _)| path == file)
}

#[test]
fn what_is_left_of_a_deleted_journal_does_not_matter() {
    let mut left = 0;
    for seed in 0..60 {
        let world = World::new(seed);
        let disks = vec![("/disk0".into(), DiskOptions::default()), ("/disk1".into(), DiskOptions::default())];
        let node = world.add_node(NodeOptions { disks, ..NodeOptions::default() });
        let disks = [world.disk(node, "/disk0"), world.disk(node, "/disk1")];
        let handle = world.start_loop(node);
        let life = handle.clone();
        let engine = world.block_on(&handle, async move {
            let engine = open(&life).await.unwrap();
            for number in 0..WRITES {
                write(&engine, number).await;
            }
            engine
        });
        let journal = disks[0].files().into_iter().map(|(path, _)| path).filter(|path| is_journal(path)).min().unwrap();
        handle.spawn(Class::Io, "close", async move { engine.close().await.unwrap() }).detach();
        // The dump is done when the first name of the file is gone.
        world.run_until(|| disks.iter().any(|disk| !has(disk, &journal)));
        world.power_loss(node);
        let holders: Vec<&SimDisk> = disks.iter().filter(|disk| has(disk, &journal)).collect();
        if let [only] = holders[..] {
            left += 1;
            only.corrupt(&journal, 4096..8192);
        }
        let handle = world.restart(node);
        let life = handle.clone();
        world.block_on(&handle, async move { check(&open(&life).await.unwrap()).await });
    }
    assert!(left > 0, "no deletion was undone in one directory only");
}
