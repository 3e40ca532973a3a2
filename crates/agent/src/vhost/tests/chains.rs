//! Descriptors, one chain at a time.

use runtime::guest::{Memory, Region};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress};

use super::disk;
use crate::vhost::chain::{Chain, copy_chain};
use crate::vhost::driver::{HIGH, INDIRECT, NEXT, REGION, USER, WRITE};
use crate::vhost::protocol::{Status, Violation, kind};
use crate::vhost::request::{Command, Plan, plan_request};

const TABLE: u64 = 0x1000;
const OTHER: u64 = 0x8000;

fn memory() -> Memory {
    let regions = [0, HIGH].map(|guest| Region { guest, len: REGION, user: USER + guest });
    Memory::plain(regions.to_vec()).unwrap()
}

fn put(memory: &Memory, table: u64, descriptors: &[(u64, u32, u16, u16)]) {
    for (index, &(address, len, flags, next)) in descriptors.iter().enumerate() {
        let place = GuestAddress(table + 16 * index as u64);
        memory.map().write_obj(Descriptor::new(address, len, flags, next), place).unwrap();
    }
}

fn chain(descriptors: &[(u64, u32, u16, u16)]) -> Result<Chain, Violation> {
    let memory = memory();
    put(&memory, TABLE, descriptors);
    copy_chain(&memory, TABLE, 8, 0)
}

#[test]
fn a_chain_is_what_its_descriptors_say() {
    let chain = chain(&[(0x2000, 16, NEXT, 3), (0, 0, 0, 0), (HIGH, 512, WRITE, 0), (0x3000, 0, NEXT, 2)]).unwrap();
    assert_eq!((chain.readable.len(), chain.writable.len()), (16, 512));
    assert_eq!((chain.readable.count(), chain.writable.count()), (1, 1), "what is empty is nothing");
}

#[test]
fn a_chain_that_is_wrong_is_refused() {
    assert_eq!(chain(&[(0x2000, 16, NEXT, 1), (0x2000, 16, NEXT, 0)]), Err(Violation::Loop));
    assert_eq!(chain(&[(0x2000, 16, NEXT, 0)]), Err(Violation::Loop));
    assert_eq!(chain(&[(0x2000, 16, NEXT, 8)]), Err(Violation::OutOfTable));
    assert_eq!(chain(&[(0x2000, 16, NEXT | WRITE, 1), (0x3000, 16, 0, 0)]), Err(Violation::Order));
    for (address, len) in [(REGION - 8, 16), (REGION, 1), (u64::MAX - 4, 16), (HIGH - 1, 2), (0, u32::MAX)] {
        let expected = Violation::Unreachable { address, len: u64::from(len) };
        assert_eq!(chain(&[(address, len, 0, 0)]), Err(expected));
        assert_eq!(chain(&[(address, len, WRITE, 0)]), Err(expected));
    }
    let memory = memory();
    assert_eq!(copy_chain(&memory, TABLE, 8, 8), Err(Violation::OutOfTable));
    let unread = Violation::Unreachable { address: REGION - 16, len: 32 };
    put(&memory, REGION - 16, &[(0x2000, 16, NEXT, 1)]);
    assert_eq!(copy_chain(&memory, REGION - 16, 8, 0), Err(unread));
}

#[test]
fn a_table_of_its_own_is_walked_through_once() {
    let memory = memory();
    let inner = |descriptors: &[(u64, u32, u16, u16)], outer: (u64, u32, u16, u16)| {
        put(&memory, OTHER, descriptors);
        put(&memory, TABLE, &[outer]);
        copy_chain(&memory, TABLE, 8, 0)
    };
    let good = [(0x2000, 16, NEXT, 1), (0x3000, 1, WRITE, 0)];
    assert_eq!(inner(&good, (OTHER, 32, INDIRECT, 0)).unwrap().readable.len(), 16);
    // A table is not whole, empty, behind the end of memory, in another one, or goes on elsewhere.
    for outer in [(OTHER, 31, INDIRECT, 0), (OTHER, 0, INDIRECT, 0), (OTHER, 32, INDIRECT | NEXT, 1)] {
        assert_eq!(inner(&good, outer), Err(Violation::IndirectTable));
    }
    assert_eq!(inner(&good, (OTHER, 16 * 65_536, INDIRECT, 0)), Err(Violation::IndirectTable));
    assert_eq!(inner(&[(OTHER, 32, INDIRECT, 0)], (OTHER, 32, INDIRECT, 0)), Err(Violation::IndirectTable));
    assert!(matches!(inner(&good, (REGION - 8, 32, INDIRECT, 0)), Err(Violation::Unreachable { .. })));
    assert_eq!(inner(&good, (OTHER, 16, INDIRECT, 0)), Err(Violation::OutOfTable));
    assert_eq!(inner(&[(0x2000, 16, NEXT, 1), (0x2000, 1, NEXT, 0)], (OTHER, 32, INDIRECT, 0)), Err(Violation::Loop));
    let long: Vec<_> = (0..2000u16).map(|index| (0x2000, 1, NEXT, index + 1)).collect();
    assert_eq!(inner(&long, (OTHER, 16 * 2000, INDIRECT, 0)), Err(Violation::TooManyDescriptors));
}

/// Header and status lie in any pieces; what is copied is what was there once.
#[test]
fn a_request_may_be_cut_anywhere() {
    let memory = memory();
    let mut header = [0; 16];
    header[..4].copy_from_slice(&kind::IN.to_le_bytes());
    header[8..].copy_from_slice(&5u64.to_le_bytes());
    memory.map().write_slice(&header[..3], GuestAddress(0x2000)).unwrap();
    memory.map().write_slice(&header[3..], GuestAddress(HIGH)).unwrap();
    put(
        &memory,
        TABLE,
        &[(0x2000, 3, NEXT, 1), (HIGH, 13, NEXT, 2), (0x3000, 512, NEXT | WRITE, 3), (0x4000, 513, WRITE, 0)],
    );
    let chain = copy_chain(&memory, TABLE, 8, 0).unwrap();
    // The guest changes its mind: that is too late.
    put(&memory, TABLE, &[(REGION * 2, 3, NEXT, 1)]);
    let request = plan_request(&memory, chain, &disk(100)).unwrap();
    assert_eq!(request.plan, Plan::Run(Command::Read(5 * 512..7 * 512)));
    assert_eq!((request.output.len(), request.status), (1024, 0x4000 + 512));
    request.output.writer(&memory).put(&[9; 1024]).unwrap();
    assert_eq!(memory.map().read_obj::<u8>(GuestAddress(0x4000 + 511)).unwrap(), 9);
    assert_eq!(memory.map().read_obj::<u8>(GuestAddress(0x4000 + 512)).unwrap(), 0, "the status is apart");
}

#[test]
fn a_request_without_header_or_status_cannot_be_answered() {
    let memory = memory();
    let plan = |descriptors: &[(u64, u32, u16, u16)]| {
        put(&memory, TABLE, descriptors);
        copy_chain(&memory, TABLE, 8, 0).and_then(|chain| plan_request(&memory, chain, &disk(100)))
    };
    assert_eq!(plan(&[(0x2000, 15, NEXT, 1), (0x3000, 1, WRITE, 0)]), Err(Violation::NoHeader));
    assert_eq!(plan(&[(0x3000, 1, WRITE, 0)]), Err(Violation::NoHeader));
    assert_eq!(plan(&[(0x2000, 16, 0, 0)]), Err(Violation::NoStatus));
    let nothing = plan(&[(0x2000, 16, NEXT, 1), (0x3000, 1, WRITE, 0)]).unwrap();
    assert_eq!(nothing.plan, Plan::Answer(Status::IoError));
}
