//! One suite for every engine of the file layer: what a caller may rely on, whatever is below.
#![allow(clippy::unwrap_used, reason = "a test panics where something is not as it should be")]

mod pool;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;

use base::{AlignedBuf, Bytes, Epoch, ErrorKind, FileId, MIB, SegmentId, VolumeId};
use files::local::{self, LocalOptions};
use files::memory::{Memory, MemoryOptions};
use files::remote::{self, RemoteOptions};
use files::served::Served;
use files::shared::{Shared, SharedOptions};
use files::{CreateOptions, FileKind, FileWriter, Redundancy, Store};
use link::stream::{FarEnd, NearEnd, Options, Services};
use runtime::sim::{DiskOptions, NodeOptions, World};
use runtime::sync::join_all;
use runtime::{Address, Handle};

const BLOCK: usize = 4096;
/// The kinds of file that a writer makes.
const KINDS: [FileKind; 5] = [FileKind::Journal, FileKind::Transaction, FileKind::Data, FileKind::Table, FileKind::Log];

/// Something that a store can be opened on again and again.
#[derive(Clone)]
struct Bed {
    open: Rc<dyn Fn() -> Pin<Box<dyn Future<Output = Store>>>>,
    copies: u8,
}

impl Bed {
    async fn open(&self) -> Store {
        (self.open)().await
    }
}

fn options(kind: FileKind, prepared: bool, copies: u8) -> CreateOptions {
    CreateOptions {
        kind,
        capacity: MIB,
        redundancy: Redundancy::Copies(copies),
        prepared,
        epoch: Epoch(1),
        segment: None,
        claim: files::Claim::Use,
    }
}

fn blocks(byte: u8, count: usize) -> Bytes {
    let mut buffer = AlignedBuf::zeroed(count * BLOCK);
    buffer.fill(byte);
    buffer.freeze()
}

async fn append(writer: &mut FileWriter, byte: u8, count: usize) -> u64 {
    writer.append(blocks(byte, count)).await.unwrap()
}

async fn all_cases(bed: Bed) {
    cases_of_one_life(&bed).await;
    a_file_outlives_its_life_but_takes_no_appends(&bed).await;
    a_fenced_life_writes_no_more(&bed).await;
}

/// Where lives follow each other, and where there are several at once.
async fn cases_of_one_life(bed: &Bed) {
    what_was_appended_is_read(bed).await;
    files_that_are_made_at_once_are_not_the_same(bed).await;
    files_are_found_by_the_segment_that_they_name(bed).await;
    several_appends_are_in_flight(bed).await;
    a_seal_is_the_end(bed).await;
    nonsense_is_refused(bed).await;
    deleted_is_deleted(bed).await;
    space_is_counted(bed).await;
    copies_are_read_and_repaired_one_by_one(bed).await;
}

async fn what_was_appended_is_read(bed: &Bed) {
    let store = bed.open().await;
    for prepared in [false, true] {
        for kind in KINDS {
            let mut writer = store.create(options(kind, prepared, bed.copies)).await.unwrap();
            let id = writer.id();
            assert_eq!(append(&mut writer, 1, 1).await, 0);
            assert_eq!(append(&mut writer, 2, 3).await, 4096);
            assert_eq!((writer.position(), writer.room()), (16384, MIB - 16384));
            assert_eq!(store.read(id, 0, BLOCK).await.unwrap()[..], blocks(1, 1)[..]);
            assert_eq!(store.read(id, 8192, 2 * BLOCK).await.unwrap()[..], blocks(2, 2)[..]);
            let info = store.info(id).unwrap();
            assert_eq!((info.id, info.kind, info.incarnation, info.epoch), (id, kind, store.incarnation(), Epoch(1)));
            assert_eq!((info.capacity, info.sealed), (MIB, None));
            assert_eq!((info.copies, info.copies_wanted), (bed.copies, bed.copies));
            assert_eq!(store.list().into_iter().find(|info| info.id == id), Some(info.clone()));
            assert_eq!(store.find(id).await.unwrap(), Some(info.clone()));
            assert!(store.files_of(info.incarnation).await.unwrap().contains(&info));
            assert!(!store.locate(id, 0).is_empty());
        }
    }
    let ids = store.list().into_iter().map(|info| info.id).collect::<Vec<_>>();
    assert!(ids.is_sorted() && ids.len() >= 10);
    let statistics = store.statistics();
    let written = u64::from(bed.copies) * 16384 * 2;
    assert!(statistics.written_bytes[1..=KINDS.len()].iter().all(|bytes| *bytes >= written), "{statistics:?}");
    assert!(statistics.read_bytes[1..=KINDS.len()].iter().all(|bytes| *bytes == 3 * 4096 * 2), "{statistics:?}");
}

async fn files_that_are_made_at_once_are_not_the_same(bed: &Bed) {
    let store = bed.open().await;
    let made = join_all((0..12).map(|_| store.create(options(FileKind::Data, false, bed.copies)))).await;
    let mut writers: Vec<FileWriter> = made.into_iter().map(|made| made.unwrap()).collect();
    for (writer, byte) in writers.iter_mut().zip(1..) {
        assert_eq!(append(writer, byte, 1).await, 0);
    }
    for (writer, byte) in writers.iter().zip(1..) {
        assert_eq!(store.read(writer.id(), 0, BLOCK).await.unwrap()[..], blocks(byte, 1)[..]);
    }
}

async fn files_are_found_by_the_segment_that_they_name(bed: &Bed) {
    let store = bed.open().await;
    let segments = [(7, 0), (7, 1), (9, 0)].map(|(volume, index)| SegmentId { volume: VolumeId(volume), index });
    let named = |kind, segment| CreateOptions { segment: Some(segment), ..options(kind, false, bed.copies) };
    let mut made = Vec::new();
    for segment in segments {
        for kind in [FileKind::Data, FileKind::Table, FileKind::Data] {
            let file = store.create(named(kind, segment)).await.unwrap().id();
            assert_eq!(store.info(file).unwrap().segment, Some(segment));
            made.push((file, segment));
        }
    }
    let unnamed = store.create(options(FileKind::Data, false, bed.copies)).await.unwrap().id();
    assert_eq!(store.info(unnamed).unwrap().segment, None);
    store.seal(made[1].0, 0).await.unwrap();
    store.delete(made[2].0).await.unwrap();
    made.remove(2);
    for segment in segments {
        let found = store.files_of_segment(segment).await.unwrap();
        let mut expected: Vec<_> = made.iter().filter(|(_, of)| *of == segment).map(|(file, _)| *file).collect();
        expected.sort();
        assert!(found.iter().map(|info| info.id).eq(expected), "{segment}: {found:?}");
        for info in found {
            assert_eq!(store.find(info.id).await.unwrap(), Some(info.clone()));
        }
    }
    assert_eq!(store.files_of_segment(SegmentId { volume: VolumeId(8), index: 0 }).await.unwrap(), []);
    // What belongs to an engine belongs to no segment, and there is no volume 0.
    for kind in [FileKind::Journal, FileKind::Transaction, FileKind::Log] {
        let refused = store.create(named(kind, segments[0])).await.map(drop).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Invalid, "{refused}");
    }
    let nowhere = SegmentId { volume: VolumeId(0), index: 1 };
    let refused = store.create(named(FileKind::Data, nowhere)).await.map(drop).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Invalid, "{refused}");
}

async fn several_appends_are_in_flight(bed: &Bed) {
    let store = bed.open().await;
    let mut writer = store.create(options(FileKind::Journal, true, bed.copies)).await.unwrap();
    let appends = (0..16).map(|byte| writer.append(blocks(byte, 2))).collect::<Vec<_>>();
    for (index, append) in appends.into_iter().enumerate().rev() {
        assert_eq!(append.await.unwrap(), index as u64 * 8192);
    }
    for byte in 0..16 {
        let read = store.read(writer.id(), u64::from(byte) * 8192, 2 * BLOCK).await.unwrap();
        assert_eq!(read[..], blocks(byte, 2)[..]);
    }
    // One whose caller went away still happens.
    drop(writer.append(blocks(77, 1)));
    assert_eq!(append(&mut writer, 78, 1).await, 33 * 4096);
}

async fn a_seal_is_the_end(bed: &Bed) {
    let store = bed.open().await;
    for prepared in [false, true] {
        let mut writer = store.create(options(FileKind::Data, prepared, bed.copies)).await.unwrap();
        let id = writer.id();
        append(&mut writer, 1, 4).await;
        store.seal(id, 12288).await.unwrap();
        store.seal(id, 12288).await.unwrap();
        assert_eq!(store.seal(id, 8192).await.unwrap_err().kind, ErrorKind::Conflict);
        assert_eq!(writer.append(blocks(2, 1)).await.unwrap_err().kind, ErrorKind::Conflict);
        assert_eq!(store.read(id, 0, 3 * BLOCK).await.unwrap()[..], blocks(1, 3)[..]);
        assert_eq!(store.read(id, 12288, BLOCK).await.unwrap_err().kind, ErrorKind::Invalid);
        let info = store.info(id).unwrap();
        assert_eq!((info.sealed, info.capacity), (Some(12288), if prepared { MIB } else { 12288 }));
    }
    let empty = store.create(options(FileKind::Table, false, bed.copies)).await.unwrap().id();
    store.seal(empty, 0).await.unwrap();
    assert_eq!(store.info(empty).unwrap().sealed, Some(0));
    assert_eq!(store.read(empty, 0, 0).await.unwrap().len(), 0);
}

async fn nonsense_is_refused(bed: &Bed) {
    let store = bed.open().await;
    let nobody = FileId(u64::MAX);
    assert_eq!(store.read(nobody, 0, BLOCK).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(store.seal(nobody, 0).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(store.info(nobody), None);
    let mut writer = store.create(options(FileKind::Log, false, bed.copies)).await.unwrap();
    let id = writer.id();
    for (offset, len) in [(1, BLOCK), (0, 512), (MIB, BLOCK), (MIB - 4096, 2 * BLOCK), (u64::MAX - 4095, BLOCK)] {
        assert_eq!(store.read(id, offset, len).await.unwrap_err().kind, ErrorKind::Invalid, "{len} at {offset}");
    }
    for length in [1, MIB + 4096, u64::MAX] {
        assert_eq!(store.seal(id, length).await.unwrap_err().kind, ErrorKind::Invalid, "{length}");
    }
    assert_eq!(writer.append(blocks(1, 257)).await.unwrap_err().kind, ErrorKind::Full);
    assert_eq!(append(&mut writer, 1, 256).await, 0, "what did not fit took no room");
    assert_eq!(writer.append(blocks(1, 1)).await.unwrap_err().kind, ErrorKind::Full);
    assert_eq!(store.read_copy(id, 99, 0, BLOCK).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(store.repair_copy(id, 99, 0, blocks(1, 1)).await.unwrap_err().kind, ErrorKind::NotFound);
    writer.fail();
    assert!(writer.has_failed());
    assert_eq!(writer.append(blocks(1, 1)).await.unwrap_err().kind, ErrorKind::Full);
}

async fn a_file_outlives_its_life_but_takes_no_appends(bed: &Bed) {
    let store = bed.open().await;
    let first = store.incarnation();
    let mut writer = store.create(options(FileKind::Journal, true, bed.copies)).await.unwrap();
    let id = writer.id();
    append(&mut writer, 5, 2).await;
    let sealed = store.create(options(FileKind::Data, false, bed.copies)).await.unwrap().id();
    store.seal(sealed, 0).await.unwrap();
    let store_id = store.id();
    drop((store, writer));

    let store = bed.open().await;
    assert_eq!(store.id(), store_id);
    assert!(store.incarnation() > first);
    let info = store.info(id).unwrap();
    assert_eq!((info.incarnation, info.sealed, info.copies), (first, None, bed.copies));
    assert_eq!(store.info(sealed).unwrap().sealed, Some(0));
    for copy in 0..bed.copies {
        assert_eq!(store.read_copy(id, copy, 0, 2 * BLOCK).await.unwrap()[..], blocks(5, 2)[..]);
    }
    assert_eq!(store.read(id, MIB - 4096, BLOCK).await.unwrap().len(), BLOCK, "up to the capacity");
    store.seal(id, 4096).await.unwrap();
    assert_eq!(store.read(id, 0, BLOCK).await.unwrap()[..], blocks(5, 1)[..]);
    let next = store.create(options(FileKind::Journal, true, bed.copies)).await.unwrap().id();
    assert!(next > id && next > sealed);
    drop(store);

    let store = bed.open().await;
    assert_eq!(store.info(id).unwrap().sealed, Some(4096));
    assert_eq!(store.info(next).unwrap().sealed, None);
}

async fn deleted_is_deleted(bed: &Bed) {
    let store = bed.open().await;
    let before = store.list();
    let mut ids = Vec::new();
    for prepared in [false, true, true, true] {
        let mut writer = store.create(options(FileKind::Journal, prepared, bed.copies)).await.unwrap();
        append(&mut writer, 9, 4).await;
        ids.push(writer.id());
    }
    for id in &ids {
        store.delete(*id).await.unwrap();
        store.delete(*id).await.unwrap();
        assert_eq!(store.read(*id, 0, BLOCK).await.unwrap_err().kind, ErrorKind::NotFound);
    }
    assert_eq!(store.list(), before);
    // What is born in the space of a deleted file is a file of its own.
    let mut writer = store.create(options(FileKind::Journal, true, bed.copies)).await.unwrap();
    append(&mut writer, 8, 1).await;
    assert!(ids.iter().all(|id| *id < writer.id()));
    let reborn = writer.id();
    assert_eq!(store.info(reborn).unwrap().sealed, None);
    drop((store, writer));
    let store = bed.open().await;
    assert!(ids.iter().all(|id| store.info(*id).is_none()));
    assert_eq!(store.read(reborn, 0, BLOCK).await.unwrap()[..], blocks(8, 1)[..]);
}

async fn space_is_counted(bed: &Bed) {
    let store = bed.open().await;
    let before = store.space();
    assert!(before.free > 8 * MIB && before.used + before.free <= before.capacity);
    let mut writer = store.create(options(FileKind::Data, false, bed.copies)).await.unwrap();
    append(&mut writer, 1, 1).await;
    let during = store.space();
    assert!(during.used >= before.used + MIB && during.free <= before.free - MIB);
    store.seal(writer.id(), 4096).await.unwrap();
    let sealed = store.space();
    assert!(sealed.used < before.used + MIB / 2, "the tail is given back: {sealed:?}");
    store.delete(writer.id()).await.unwrap();
    assert_eq!(store.space().used, before.used);
    let huge = CreateOptions { capacity: 1 << 50, ..options(FileKind::Data, false, bed.copies) };
    assert_eq!(store.create(huge).await.map(drop).unwrap_err().kind, ErrorKind::Full);
    assert_eq!(store.space().used, before.used);
}

async fn copies_are_read_and_repaired_one_by_one(bed: &Bed) {
    let store = bed.open().await;
    let mut writer = store.create(options(FileKind::Data, false, bed.copies)).await.unwrap();
    let id = writer.id();
    append(&mut writer, 1, 2).await;
    for copy in 0..bed.copies {
        store.repair_copy(id, copy, 4096, blocks(copy + 10, 1)).await.unwrap();
    }
    store.seal(id, 8192).await.unwrap();
    for copy in 0..bed.copies {
        assert_eq!(store.read_copy(id, copy, 0, BLOCK).await.unwrap()[..], blocks(1, 1)[..]);
        assert_eq!(store.read_copy(id, copy, 4096, BLOCK).await.unwrap()[..], blocks(copy + 10, 1)[..]);
    }
    assert_eq!(store.read_copy(id, bed.copies, 0, BLOCK).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(store.repair_copy(id, 0, 8192, blocks(1, 1)).await.unwrap_err().kind, ErrorKind::Invalid);
}

async fn a_fenced_life_writes_no_more(bed: &Bed) {
    let store = bed.open().await;
    let life = store.incarnation();
    let mut writer = store.create(options(FileKind::Journal, false, bed.copies)).await.unwrap();
    store.fence(base::Incarnation(life.0 - 1)).await.unwrap();
    append(&mut writer, 1, 1).await;
    store.fence(base::Incarnation(life.0 + 5)).await.unwrap();
    assert_eq!(writer.append(blocks(2, 1)).await.unwrap_err().kind, ErrorKind::Fenced);
    let created = store.create(options(FileKind::Journal, false, bed.copies)).await;
    assert_eq!(created.map(drop).unwrap_err().kind, ErrorKind::Fenced);
    assert_eq!(store.read(writer.id(), 0, BLOCK).await.unwrap()[..], blocks(1, 1)[..]);
    drop((store, writer));
    assert!(bed.open().await.incarnation().0 > life.0 + 5);
}

/// Where there are several lives at once.
async fn a_life_is_told_that_it_is_over(bed: &Bed) {
    let (store, other) = (bed.open().await, bed.open().await);
    let mut writer = store.create(options(FileKind::Journal, false, bed.copies)).await.unwrap();
    store.check_life().await.unwrap();
    other.fence(base::Incarnation(other.incarnation().0 + 5)).await.unwrap();
    store.check_life().await.unwrap();
    other.fence(store.incarnation()).await.unwrap();
    // Nobody told it before.
    assert_eq!(store.check_life().await.unwrap_err().kind, ErrorKind::Fenced);
    assert_eq!(writer.append(blocks(1, 1)).await.unwrap_err().kind, ErrorKind::Fenced);
    other.delete(writer.id()).await.unwrap();
    assert_eq!(store.check_life().await.unwrap_err().kind, ErrorKind::Fenced);
    other.check_life().await.unwrap();
}

fn memory_bed(handle: &Handle, copies: u8) -> Bed {
    let memory = Memory::new(1, MemoryOptions { directories: copies, ..MemoryOptions::default() });
    let handle = handle.clone();
    let open = Rc::new(move || -> Pin<Box<dyn Future<Output = Store>>> {
        let store = memory.open(&handle);
        Box::pin(async move { store })
    });
    Bed { open, copies }
}

fn local_bed(handle: &Handle, directories: Vec<PathBuf>, copies: u8) -> Bed {
    let handle = handle.clone();
    let options = LocalOptions { copies, ..LocalOptions::new(directories) };
    let open = Rc::new(move || -> Pin<Box<dyn Future<Output = Store>>> {
        let (handle, options) = (handle.clone(), options.clone());
        Box::pin(async move { local::open(&handle, options).await.unwrap().0 })
    });
    Bed { open, copies }
}

/// Each opening is another life, beside those of before.
async fn shared_bed(handle: &Handle, below: Bed) -> Bed {
    let options = SharedOptions { copies: below.copies, ..SharedOptions::default() };
    let shared = Shared::open(handle, below.open().await, options).await.unwrap();
    let open = Rc::new(move || -> Pin<Box<dyn Future<Output = Store>>> {
        let shared = shared.clone();
        Box::pin(async move { shared.join().await.unwrap() })
    });
    Bed { open, copies: below.copies }
}

/// The same from another machine: each opening is another life, over a connection of its own.
async fn remote_bed(far: &Handle, near: &Handle, address: Address, below: Bed) -> Bed {
    let options = SharedOptions { copies: below.copies, ..SharedOptions::default() };
    let shared = Shared::open(far, below.open().await, options).await.unwrap();
    let services = Services { files: Some(Served::new(shared)), ..Services::default() };
    let end = FarEnd::new(far, services, Options::new("the store"));
    let listener = far.listen(&address).await.unwrap();
    let address = listener.address().clone();
    end.serve(listener);
    let near = near.clone();
    let open = Rc::new(move || -> Pin<Box<dyn Future<Output = Store>>> {
        let link = NearEnd::dial(&near, address.clone(), Services::default(), Options::new("a life"));
        let near = near.clone();
        Box::pin(async move { remote::join(&near, Rc::new(link), RemoteOptions::new("the store")).await.unwrap() })
    });
    Bed { open, copies: below.copies }
}

/// A world with a disk at `/0`, `/1` and so on.
fn world(disks: usize) -> (World, Handle) {
    let world = World::new(7);
    let paths = (0..disks).map(|disk| format!("/{disk}"));
    let node = world.add_node(NodeOptions::with_disks(paths, &DiskOptions::default()));
    let handle = world.start_loop(node);
    (world, handle)
}

#[test]
fn memory() {
    for copies in [1, 3] {
        let (world, handle) = world(1);
        world.block_on(&handle, all_cases(memory_bed(&handle, copies)));
    }
}

#[test]
fn shared() {
    for copies in [1, 3] {
        let (world, handle) = world(4);
        let directories = (0..4).map(|disk| PathBuf::from(format!("/{disk}/levee"))).collect();
        for below in [memory_bed(&handle, copies), local_bed(&handle, directories, copies)] {
            let inside = handle.clone();
            world.block_on(&handle, async move {
                let bed = shared_bed(&inside, below).await;
                cases_of_one_life(&bed).await;
                a_life_is_told_that_it_is_over(&bed).await;
            });
        }
    }
}

#[test]
fn remote() {
    for copies in [1, 3] {
        let world = World::new(7);
        let paths = (0..4).map(|disk| format!("/{disk}"));
        let nodes = [NodeOptions::with_disks(paths, &DiskOptions::default()), NodeOptions::default()];
        let nodes = nodes.map(|options| world.add_node(options));
        let [far, near] = nodes.map(|node| world.start_loop(node));
        let directories = (0..4).map(|disk| PathBuf::from(format!("/{disk}/levee"))).collect();
        for below in [memory_bed(&far, copies), local_bed(&far, directories, copies)] {
            let (inside, address) = (near.clone(), Address::Tcp((world.address(nodes[0]), 0).into()));
            let far_end = far.clone();
            let bed = world.block_on(&far, async move { remote_bed(&far_end, &inside, address, below).await });
            world.block_on(&near, async move {
                cases_of_one_life(&bed).await;
                a_life_is_told_that_it_is_over(&bed).await;
            });
        }
    }
}

#[test]
fn remote_on_a_real_file_system() {
    let folder = tempfile::tempdir().unwrap();
    let directories = (0..2).map(|index| folder.path().join(format!("disk{index}"))).collect::<Vec<_>>();
    let address = Address::Unix(folder.path().join("files.sock"));
    let run = runtime::uring::run(runtime::uring::Options::default(), move |handle| async move {
        let below = local_bed(&handle, directories, 2);
        let bed = remote_bed(&handle, &handle, address, below).await;
        cases_of_one_life(&bed).await;
        a_life_is_told_that_it_is_over(&bed).await;
    });
    run.unwrap();
}

#[test]
fn local_in_simulation() {
    for (disks, copies) in [(1, 1), (2, 2), (4, 3)] {
        let (world, handle) = world(disks);
        let directories = (0..disks).map(|disk| PathBuf::from(format!("/{disk}/levee"))).collect();
        world.block_on(&handle, all_cases(local_bed(&handle, directories, copies)));
    }
}

#[test]
fn local_on_a_real_file_system() {
    let folder = tempfile::tempdir().unwrap();
    let directories = (0..2).map(|index| folder.path().join(format!("disk{index}"))).collect::<Vec<_>>();
    let run = runtime::uring::run(runtime::uring::Options::default(), move |handle| async move {
        all_cases(local_bed(&handle, directories, 2)).await;
    });
    run.unwrap();
}
