//! Every bound of the system in one place, with the relations between them checked when it is compiled.

use crate::units::{BLOCK, GIB, KIB, MIB, SECTOR, TIB};

/// Smallest volume, in bytes.
pub const VOLUME_SIZE_MIN: u64 = MIB;
/// Largest volume, in bytes.
pub const VOLUME_SIZE_MAX: u64 = 64 * TIB;
/// Longest name of a volume, in bytes.
pub const VOLUME_NAME_MAX: usize = 63;
/// Longest name of whom a volume belongs to, in bytes.
pub const VOLUME_OWNER_MAX: usize = 63;
/// Most volumes of one store.
pub const VOLUMES_MAX: usize = 10_000;

/// Engines that one manager knows: those that live, and those that died and are not forgotten yet.
pub const ENGINES_MAX: usize = 4096;
/// Longest name of a server, in bytes.
pub const SERVER_NAME_MAX: usize = 63;
/// Longest address at which somebody listens, in bytes: the name of a host and a port, or the path of a socket.
pub const ADDRESS_MAX: usize = 259;

/// Leases of a lease store that have not ended, and keys that it has.
pub const LEASES_MAX: usize = 4096;
/// Longest key in a lease store, in bytes.
pub const LEASE_KEY_MAX: usize = 63;
/// Longest value in a lease store, in bytes.
pub const LEASE_VALUE_MAX: usize = 127;

/// Address space of one segment, in bytes (EBS, FAST 2024, §2.2).
pub const SEGMENT_SIZE: u64 = 32 * GIB;
/// Segments of one group; its data sectors go round-robin over them (EBS, FAST 2024, §2.2).
pub const SEGMENTS_PER_GROUP: u64 = 4;
/// Address space of one segment group, in bytes.
pub const GROUP_SIZE: u64 = SEGMENT_SIZE * SEGMENTS_PER_GROUP;
/// Default stripe unit within a group, in bytes.
pub const DATA_SECTOR_DEFAULT: u64 = 128 * KIB;
/// Blocks of one segment.
pub const SEGMENT_BLOCKS: u64 = SEGMENT_SIZE / BLOCK;

/// Largest read or write that a frontend accepts, in bytes.
pub const REQUEST_SIZE_MAX: u64 = 32 * MIB;
/// Requests in flight on one connection.
pub const REQUESTS_PER_CONNECTION: usize = 256;
/// Connections of one frontend.
pub const CONNECTIONS_MAX: usize = 1024;

/// Calls of the control API that wait for the manager or are with it.
pub const API_CALLS_MAX: usize = 64;
/// Connections of the control API.
pub const API_CONNECTIONS_MAX: usize = 128;
/// Longest body of a call of the control API, in bytes.
pub const API_BODY_MAX: usize = 64 * 1024;

/// Requests in flight in one direction of a stream between processes.
pub const STREAM_REQUESTS: usize = 1024;
/// Bytes of payload in flight in one direction of a stream between processes.
pub const STREAM_BYTES: u64 = 64 * MIB;
/// Streams from other processes that one loop serves.
pub const STREAMS_MAX: usize = 256;
/// Longest body of a frame between processes, in bytes.
pub const FRAME_BODY_MAX: usize = MIB as usize;
/// Longest extensions of a frame between processes, in bytes.
pub const FRAME_EXTENSIONS_MAX: usize = 4096;

/// Longest that a process says of itself at once, in bytes.
pub const OBSERVED_MAX: usize = MIB as usize;

/// Largest file, in bytes: more than any store sets aside, and offsets in it can be added.
pub const FILE_SIZE_MAX: u64 = 1 << 60;

/// Most bytes of one journal append.
pub const JOURNAL_APPEND_MAX: u64 = MIB;
/// Journal appends in flight on one loop.
pub const JOURNAL_APPENDS_IN_FLIGHT: usize = 8;
/// Default bound on memory of one process, in bytes.
pub const MEMORY_DEFAULT: u64 = 512 * MIB;
/// Smallest bound on memory that a store runs with.
pub const MEMORY_MIN: u64 = 64 * MIB;

const _: () = assert!(SEGMENT_BLOCKS <= u32::MAX as u64, "a block number fits 32 bits");
const _: () = assert!(VOLUME_SIZE_MAX / SEGMENT_SIZE <= u32::MAX as u64, "a segment index fits 32 bits");
const _: () = assert!(DATA_SECTOR_DEFAULT.is_multiple_of(BLOCK) && SEGMENT_SIZE.is_multiple_of(DATA_SECTOR_DEFAULT));
const _: () = assert!(REQUEST_SIZE_MAX <= MEMORY_MIN / 2, "one largest request fits the payload's share of memory");
const _: () = assert!(REQUEST_SIZE_MAX <= STREAM_BYTES, "one largest request fits a stream");
const _: () =
    assert!(REQUEST_SIZE_MAX / SECTOR * 4 < FRAME_BODY_MAX as u64, "a body says each sector of a largest read");
const _: () = assert!(
    LEASES_MAX * (LEASE_KEY_MAX + LEASE_VALUE_MAX + 20) + 8 < FRAME_BODY_MAX,
    "a body has everything that a lease store has"
);
const _: () = assert!(VOLUMES_MAX * (VOLUME_NAME_MAX + 2) < FRAME_BODY_MAX, "a body has the names of all volumes");
const _: () = assert!(OBSERVED_MAX as u64 <= REQUEST_SIZE_MAX, "a payload has all that is said at once");
