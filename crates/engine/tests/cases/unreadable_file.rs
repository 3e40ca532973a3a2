//! What becomes of a store with a file whose header cannot be read at a start: it is there under its name, and nobody
//! knows what is in it. The engine opens with everything that was acknowledged, or reads it as an error, or does not
//! open; and it never gives anything up that a later start could read.

use std::path::Path;
use std::time::Duration;

use base::io::{ReadPart, fragment_checksums};
use base::{Bytes, Epoch, Error, KIB, Result, SegmentId, VolumeId, WriteStamp};
use engine::{Engine, Options, inspect};
use files::dry_run::DryRun;
use files::local::{self, LocalOptions};
use files::{CreateOptions, FileKind, Redundancy};
use runtime::Handle;
use runtime::sim::{DiskOptions, Fault, NodeOptions, World};

const SEGMENT: SegmentId = SegmentId { volume: VolumeId(1), index: 0 };
const SMALL: usize = 4 << 10;
const LARGE: usize = 64 << 10;
const LARGE_AT: u64 = 128 * KIB;

async fn open(handle: &Handle) -> Result<Engine> {
    let options = Options {
        transaction_file_bytes: 64 * KIB,
        data_file_bytes: 256 * KIB,
        large_write_bytes: 16 * KIB,
        dump_age: Duration::from_millis(5),
        ..Options::default()
    };
    let (store, _) = local::open(handle, LocalOptions::new(vec!["/disk/levee".into()])).await?;
    Engine::open(handle, &store, options).await
}

async fn write(engine: &Engine, offset: u64, byte: u8, len: usize) {
    let data = Bytes::from(vec![byte; len]);
    let checksums = fragment_checksums(SEGMENT, offset, &data);
    engine.write(SEGMENT, offset, data, checksums, WriteStamp::default()).await.unwrap();
}

/// The first byte there, `None` for zeros.
async fn first_byte(engine: &Engine, offset: u64) -> Result<Option<u8>> {
    Ok(match &engine.read(SEGMENT, offset, 4 * KIB).await?[..] {
        [ReadPart::Data(data)] => Some(data[0]),
        _ => None,
    })
}

/// What an attempt to start and to read gave.
enum Outcome {
    Good,
    ReadError(Error),
    Refused(Error),
}

async fn look(handle: &Handle) -> Outcome {
    let engine = match open(handle).await {
        Ok(engine) => engine,
        Err(error) => return Outcome::Refused(error),
    };
    for (offset, wanted) in [(0, 3), (LARGE_AT, 2)] {
        match first_byte(&engine, offset).await {
            Ok(found) => assert_eq!(found, Some(wanted), "what was acknowledged is there, at {offset}"),
            Err(error) => return Outcome::ReadError(error),
        }
    }
    Outcome::Good
}

/// Why a start would refuse, by an inspection that changes nothing.
async fn foretold(handle: &Handle) -> Vec<String> {
    let options = LocalOptions { read_only: true, ..LocalOptions::new(vec!["/disk/levee".into()]) };
    match local::open(handle, options).await {
        Ok((store, _)) => inspect(handle, &DryRun::over(&store), |_, _| ()).await.unwrap().refusals,
        Err(error) => vec![error.message],
    }
}

#[test]
fn a_file_that_cannot_be_read_at_a_start_is_not_taken_for_none() {
    let (mut refusals, mut said_so) = (0, 0);
    // With a dump before the large writes, or everything in the journal.
    for is_dumped in [false, true] {
        let mut number = 0;
        loop {
            let world = World::new(1);
            let disks = vec![("/disk".into(), DiskOptions::default())];
            let node = world.add_node(NodeOptions { disks, ..NodeOptions::default() });
            let disk = world.disk(node, "/disk");
            let handle = world.start_loop(node);
            let life = handle.clone();
            world.block_on(&handle, async move {
                let engine = open(&life).await.unwrap();
                write(&engine, 0, 1, SMALL).await;
                if is_dumped {
                    life.sleep(Duration::from_millis(50)).await;
                }
                write(&engine, LARGE_AT, 2, LARGE).await;
                if is_dumped {
                    write(&engine, 0, 1, SMALL).await;
                    life.sleep(Duration::from_millis(50)).await;
                }
                // Of this one nothing but its label says anything, while the log vouches for the one before.
                write(&engine, 0, 3, LARGE).await;
            });
            world.kill(node);
            let files: Vec<_> = disk
                .files()
                .into_iter()
                .filter(|(path, _)| path.parent().is_some_and(|folder| folder.ends_with("levee/files")))
                .collect();
            let Some((bad, _)) = files.get(number) else { break };
            number += 1;
            // Many failures are an error, one is nothing, and the next life has everything again.
            for (failures, must_be_good) in [(100_000, false), (1, true), (0, true)] {
                disk.inject_on(bad, Fault::ReadError, failures);
                let handle = world.restart(node);
                let life = handle.clone();
                let foretold = world.block_on(&handle, async move { foretold(&life).await });
                disk.inject_on(bad, Fault::ReadError, failures);
                let life = handle.clone();
                let outcome = world.block_on(&handle, async move { look(&life).await });
                let is_refused = matches!(outcome, Outcome::Refused(_));
                assert_eq!(is_refused, !foretold.is_empty(), "{bad:?} with {failures} failures: {foretold:?}");
                match &outcome {
                    Outcome::Good => {}
                    Outcome::ReadError(error) => {
                        assert!(error.message.contains("its header cannot be read"), "{error}");
                    }
                    Outcome::Refused(error) => {
                        said_so += u32::from(error.message.contains("may have been acknowledged"));
                        refusals += 1;
                    }
                }
                assert!(!must_be_good || matches!(outcome, Outcome::Good), "{bad:?} with {failures} failures");
                world.kill(node);
                disk.stop_injections();
            }
        }
    }
    assert!(refusals > 2 && said_so > 0, "{refusals} {said_so}");
}

#[test]
fn a_file_without_a_good_header_that_nobody_refers_to_is_removed() {
    let world = World::new(2);
    let node = world.add_node(NodeOptions::default());
    let disk = world.disk(node, "/disk");
    let handle = world.start_loop(node);
    let life = handle.clone();
    let orphan = world.block_on(&handle, async move {
        let engine = open(&life).await.unwrap();
        write(&engine, 0, 1, SMALL).await;
        life.sleep(Duration::from_millis(50)).await;
        write(&engine, LARGE_AT, 2, LARGE).await;
        engine.close().await.unwrap();
        drop(engine);
        // As a crash leaves it that comes after a file's birth and before the record that says what it is for.
        let (store, _) = local::open(&life, LocalOptions::new(vec!["/disk/levee".into()])).await.unwrap();
        let options = CreateOptions {
            kind: FileKind::Table,
            capacity: 16 * KIB,
            redundancy: Redundancy::Copies(1),
            prepared: false,
            epoch: Epoch(1),
            segment: None,
            claim: files::Claim::Use,
        };
        store.create(options).await.unwrap().id()
    });
    world.kill(node);
    let named = |prefix: &str| -> Vec<_> {
        let of_kind = |path: &Path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
        disk.files().into_iter().map(|(path, _)| path).filter(|path| of_kind(path)).collect()
    };
    let orphan = named(&format!("table-{orphan}"));
    let used = named("data-");
    assert!(orphan.len() == 1 && !used.is_empty());
    for path in orphan.iter().chain(&used) {
        disk.flip_bit(path, 60, 1);
    }
    let handle = world.restart(node);
    let life = handle.clone();
    world.block_on(&handle, async move {
        let engine = open(&life).await.unwrap();
        life.sleep(Duration::from_secs(1)).await;
        assert!(first_byte(&engine, 0).await.is_err());
        assert!(first_byte(&engine, LARGE_AT).await.is_err());
    });
    assert!(named("table-").iter().all(|path| !orphan.contains(path)));
    assert!(used.iter().all(|path| named("data-").contains(path)), "what is referred to may be read again one day");
}
