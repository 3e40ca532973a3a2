//! Names and numbers of a virtio disk, what it says of itself, and what ends it.

use std::fmt;

use base::limits::REQUEST_SIZE_MAX;
use base::{KIB, MIB, SECTOR};
use wire::VolumeDescriptor;

/// Queues of one disk.
pub const QUEUES_MAX: usize = 16;
/// Descriptors of one queue: no more requests are in flight in it.
pub const QUEUE_SIZE_MAX: u16 = 256;
/// Pieces of memory of one request, its header and status apart.
pub const SEGMENTS_MAX: u32 = 126;
/// Bytes of one of them, as the driver is told: all of them fit the largest request.
pub const SEGMENT_SIZE_MAX: u32 = 256 * KIB as u32;
/// Descriptors that are looked at for one request, also of a driver that does not care what it is told.
pub const DESCRIPTORS_MAX: usize = 1024;
/// The most that one request discards, or zeroes, in sectors: some of the latter is written.
const DISCARD_SECTORS_MAX: u32 = (1024 * MIB / SECTOR) as u32;
const ZEROES_SECTORS_MAX: u32 = (64 * MIB / SECTOR) as u32;
/// Length of the configuration space.
pub const CONFIG_LEN: usize = 60;
/// Length of what a disk calls itself.
pub const ID_LEN: usize = 20;

const _: () =
    assert!(SEGMENTS_MAX as u64 * SEGMENT_SIZE_MAX as u64 <= REQUEST_SIZE_MAX, "what the driver may ask runs");

/// Bits of features.
pub mod feature {
    /// Pieces of memory have a largest size.
    pub const SIZE_MAX: u64 = 1 << 1;
    /// A request has a largest number of them.
    pub const SEG_MAX: u64 = 1 << 2;
    /// Nothing can be written.
    pub const RO: u64 = 1 << 5;
    /// The size of a block is said.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// There are flushes.
    pub const FLUSH: u64 = 1 << 9;
    /// What is written well together is said.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// There are several queues.
    pub const MQ: u64 = 1 << 12;
    /// There are discards.
    pub const DISCARD: u64 = 1 << 13;
    /// There are zeroes.
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// Descriptors may lie in tables of their own.
    pub const INDIRECT: u64 = 1 << 28;
    /// Either side says when it wants to be told.
    pub const EVENT_IDX: u64 = 1 << 29;
    /// The hypervisor says which queues are served.
    pub const PROTOCOL: u64 = 1 << 30;
    /// As virtio 1.0 has it.
    pub const VERSION_1: u64 = 1 << 32;
}

/// Kinds of requests.
pub mod kind {
    /// A read.
    pub const IN: u32 = 0;
    /// A write.
    pub const OUT: u32 = 1;
    /// A flush.
    pub const FLUSH: u32 = 4;
    /// What the disk calls itself.
    pub const GET_ID: u32 = 8;
    /// A discard.
    pub const DISCARD: u32 = 11;
    /// Zeroes.
    pub const WRITE_ZEROES: u32 = 13;
}

/// What a request came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Status {
    /// It was done.
    Ok = 0,
    /// It failed, or makes no sense.
    IoError = 1,
    /// There is no such request.
    Unsupported = 2,
}

/// A disk, as its guest sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    /// In bytes.
    pub size: u64,
    /// Whether it cannot be written.
    pub read_only: bool,
    /// Its stripe unit in bytes.
    pub stripe: u64,
    /// What it calls itself.
    pub id: [u8; ID_LEN],
}

impl Disk {
    /// The disk that a volume is.
    pub fn of(volume: &VolumeDescriptor) -> Disk {
        let mut id = [0; ID_LEN];
        // With the number, which no other volume ever has: a name is used again.
        id.iter_mut().zip(format!("levee-{}", volume.id.0).bytes()).for_each(|(to, from)| *to = from);
        Disk { size: volume.size, read_only: volume.read_only, stripe: volume.data_sector_bytes, id }
    }

    /// What it can do.
    pub fn features(&self) -> u64 {
        use feature::*;
        let always = SIZE_MAX | SEG_MAX | BLK_SIZE | FLUSH | TOPOLOGY | MQ | INDIRECT | EVENT_IDX | VERSION_1;
        always | if self.read_only { RO } else { DISCARD | WRITE_ZEROES }
    }

    /// The configuration space.
    pub fn config(&self) -> [u8; CONFIG_LEN] {
        let mut config = [0; CONFIG_LEN];
        let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        let block_sectors = (4 * KIB / SECTOR) as u32;
        put(0, &(self.size / SECTOR).to_le_bytes());
        put(8, &SEGMENT_SIZE_MAX.to_le_bytes());
        put(12, &SEGMENTS_MAX.to_le_bytes());
        put(20, &(SECTOR as u32).to_le_bytes());
        // Blocks of 4 KiB are best, as exponent and as the least; the best is a stripe unit.
        put(24, &[block_sectors.trailing_zeros() as u8, 0]);
        put(26, &(block_sectors as u16).to_le_bytes());
        put(28, &((self.stripe / SECTOR) as u32).to_le_bytes());
        put(34, &(QUEUES_MAX as u16).to_le_bytes());
        put(36, &DISCARD_SECTORS_MAX.to_le_bytes());
        put(40, &1u32.to_le_bytes());
        put(44, &block_sectors.to_le_bytes());
        put(48, &ZEROES_SECTORS_MAX.to_le_bytes());
        put(52, &1u32.to_le_bytes());
        put(56, &[1]);
        config
    }

    /// The most sectors of a discard, or of zeroes.
    pub fn sectors_max(zeroes: bool) -> u32 {
        if zeroes { ZEROES_SECTORS_MAX } else { DISCARD_SECTORS_MAX }
    }
}

/// How a guest broke the rules, so that nothing that it says can be believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// Descriptors lead back to one of themselves, or are more than their table has.
    Loop,
    /// A descriptor behind the end of its table.
    OutOfTable,
    /// Memory that the guest does not have.
    Unreachable {
        /// Where.
        address: u64,
        /// How much.
        len: u64,
    },
    /// A table of descriptors that is empty, not whole, too long, or named by another one.
    IndirectTable,
    /// More descriptors than any request needs.
    TooManyDescriptors,
    /// Something to be read behind something to be written.
    Order,
    /// No room for a header in what is to be read.
    NoHeader,
    /// No room for a status in what is to be written.
    NoStatus,
    /// More requests than the ring has places, or parts of a ring where none can be.
    Ring,
    /// A request that was made available while it was in flight.
    Again,
    /// What the hypervisor keeps for the disk is not what the disk has written there.
    Inflight,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Loop => write!(f, "descriptors lead back to one of themselves"),
            Violation::OutOfTable => write!(f, "a descriptor lies behind the end of its table"),
            Violation::Unreachable { address, len } => {
                write!(f, "the guest has no {len} bytes of memory at {address:#x}")
            }
            Violation::IndirectTable => {
                write!(f, "a table of descriptors is empty, not whole, too long, or in a table")
            }
            Violation::TooManyDescriptors => write!(f, "a request has more than {DESCRIPTORS_MAX} descriptors"),
            Violation::Order => write!(f, "something to be read comes behind something to be written"),
            Violation::NoHeader => write!(f, "a request has no header"),
            Violation::NoStatus => write!(f, "a request has no room for its status"),
            Violation::Ring => write!(f, "a ring has more requests than places, or lies where none can be"),
            Violation::Again => write!(f, "a request was made available again while it was in flight"),
            Violation::Inflight => write!(f, "what is in flight cannot be read from the hypervisor's memory"),
        }
    }
}
