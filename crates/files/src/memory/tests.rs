use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use base::{Epoch, ErrorKind, MIB};

use super::*;

/// The result of a future that has nothing to wait for.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("an untimed call is complete at its first poll"),
    }
}

fn options(kind: FileKind, prepared: bool) -> CreateOptions {
    CreateOptions {
        kind,
        capacity: MIB,
        redundancy: Redundancy::Copies(2),
        prepared,
        epoch: Epoch(1),
        segment: None,
        claim: crate::Claim::Use,
    }
}

fn block(byte: u8) -> Bytes {
    Bytes::from(vec![byte; BLOCK as usize])
}

fn memory(seed: u64) -> Memory {
    Memory::new(seed, MemoryOptions { directories: 2, ..MemoryOptions::default() })
}

#[test]
fn what_is_confirmed_survives_and_what_is_not_differs_between_copies() {
    let (mut lost, mut landed, mut torn, mut different) = (0, 0, 0, 0);
    for seed in 0..200 {
        let memory = memory(seed);
        let store = memory.open_untimed();
        let mut writer = now(store.create(options(FileKind::Journal, false))).unwrap();
        let id = writer.id();
        assert_eq!(now(writer.append(block(1))).unwrap(), 0);
        let unconfirmed = writer.append(block(2));
        memory.power_loss();
        assert_eq!(now(unconfirmed).unwrap_err().kind, ErrorKind::Fenced);

        let store = memory.open_untimed();
        assert_eq!(store.incarnation(), Incarnation(2));
        assert_eq!(now(store.read(id, 0, 4096)).unwrap()[..], block(1)[..]);
        let copies: Vec<_> = (0..2).map(|k| now(store.read_copy(id, k, 4096, 4096)).unwrap()).collect();
        for copy in &copies {
            let sectors = copy.chunks(512).map(|sector| sector == [2; 512]).collect::<Vec<_>>();
            lost += u32::from(sectors.iter().all(|there| !there));
            landed += u32::from(sectors.iter().all(|there| *there));
            torn += u32::from(sectors.iter().any(|there| *there) && sectors.iter().any(|there| !there));
        }
        different += u32::from(copies[0][..] != copies[1][..]);
        assert_eq!(now(writer.append(block(3))).unwrap_err().kind, ErrorKind::Fenced);
    }
    assert!(lost > 20 && landed > 20 && torn > 20 && different > 20, "{lost} {landed} {torn} {different}");
}

#[test]
fn a_seal_ends_a_file() {
    let memory = memory(1);
    let store = memory.open_untimed();
    let mut writer = now(store.create(options(FileKind::Data, false))).unwrap();
    now(writer.append(block(1))).unwrap();
    let in_flight = writer.append(block(2));
    now(store.seal(writer.id(), 8192)).unwrap();
    assert_eq!(now(in_flight).unwrap(), 4096);
    now(store.seal(writer.id(), 8192)).unwrap();
    assert_eq!(now(store.seal(writer.id(), 4096)).unwrap_err().kind, ErrorKind::Conflict);
    assert_eq!(now(writer.append(block(3))).unwrap_err().kind, ErrorKind::Conflict);
    assert_eq!(now(store.read(writer.id(), 4096, 8192)).unwrap_err().kind, ErrorKind::Invalid);
    let info = store.info(writer.id()).unwrap();
    assert_eq!((info.sealed, info.capacity), (Some(8192), 8192), "the tail of an unprepared file is given back");
}

#[test]
fn faults_happen_as_asked() {
    let memory = memory(2);
    let store = memory.open_untimed();
    let mut writer = now(store.create(options(FileKind::Data, false))).unwrap();
    let id = writer.id();
    memory.fail_appends(Some(FileKind::Journal), 1, AppendFault::Lost);
    now(writer.append(block(1))).unwrap();
    memory.clear_faults();
    memory.fail_appends(None, 1, AppendFault::Landed);
    assert_eq!(now(writer.append(block(2))).unwrap_err().kind, ErrorKind::Io);
    assert_eq!(now(store.read(id, 4096, 4096)).unwrap()[..], block(2)[..]);

    memory.fail_reads(id, Some(0), 0..4096);
    assert_eq!(now(store.read_copy(id, 0, 0, 4096)).unwrap_err().kind, ErrorKind::Io);
    assert_eq!(now(store.read(id, 0, 4096)).unwrap()[..], block(1)[..], "the other copy serves");
    now(store.repair_copy(id, 0, 0, block(1))).unwrap();
    assert_eq!(now(store.read_copy(id, 0, 0, 4096)).unwrap()[..], block(1)[..]);

    memory.corrupt(id, 1, 0..4096);
    assert_ne!(now(store.read_copy(id, 1, 0, 4096)).unwrap()[..], block(1)[..]);
    memory.drop_copy(id, 1);
    assert_eq!(now(store.read_copy(id, 1, 0, 4096)).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(store.info(id).unwrap().copies, 1);

    memory.set_capacity(MIB);
    assert_eq!(now(store.create(options(FileKind::Data, false))).map(drop).unwrap_err().kind, ErrorKind::Full);
    now(store.delete(id)).unwrap();
    assert_eq!(store.space().free, MIB);
    now(store.fence(store.incarnation())).unwrap();
    assert_eq!(now(store.create(options(FileKind::Data, false))).map(drop).unwrap_err().kind, ErrorKind::Fenced);
}

#[test]
fn a_prepared_file_may_show_an_earlier_life_and_ids_are_never_reused() {
    let memory = memory(3);
    let store = memory.open_untimed();
    let (mut shown, mut last) = (0, FileId(0));
    for _ in 0..50 {
        let mut writer = now(store.create(options(FileKind::Journal, true))).unwrap();
        assert!(writer.id() > last);
        last = writer.id();
        shown += u32::from(now(store.read(last, 4096, 4096)).unwrap()[0] == 9);
        now(writer.append(block(8))).unwrap();
        now(writer.append(block(9))).unwrap();
        now(store.delete(last)).unwrap();
    }
    assert!(shown > 5 && store.list().is_empty());
}
