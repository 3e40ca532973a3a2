//! Numbers at fixed places of a record, little-endian, with a checksum: what all records of this crate have in common.
//!
//! They start the same way, so that a program that is older than a record can still say why it does not read it:
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | magic |
//! | 8 | 2 | format version |
//! | 10 | 2 | the record's own |
//! | 12 | 4 | CRC-32C of the whole record, with this field zero |
//! | 16 | 8 | compatible feature flags: ignored where unknown |
//! | 24 | 8 | read-only-compatible feature flags: unknown ones allow reading only |
//! | 32 | 8 | incompatible feature flags: unknown ones forbid reading, too |

use base::checksum;

/// The format version that this program writes, and the newest that it reads.
pub(crate) const VERSION: u16 = 1;
/// Feature flags that this program knows.
const COMPATIBLE_KNOWN: u64 = 0;
const READ_ONLY_COMPATIBLE_KNOWN: u64 = NAMES_SEGMENT;

/// Incompatible: the directory belongs to one of several shards of a store.
pub(crate) const SHARDED: u64 = 1;

/// Incompatible, of the head of a store in a pool: data files are in a pool of their own.
pub(crate) const DATA_APART: u64 = 2;

/// Read-only-compatible: the file says which segment it belongs to. Whoever does not know that would forget it.
pub(crate) const NAMES_SEGMENT: u64 = 1;

const VERSION_AT: usize = 8;
const CHECKSUM_AT: usize = 12;
const COMPATIBLE_AT: usize = 16;
pub(crate) const READ_ONLY_COMPATIBLE_AT: usize = 24;
pub(crate) const INCOMPATIBLE_AT: usize = 32;

/// Why a record is not read. Only the first two are damage or absence; the others are a newer program's work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unreadable {
    /// All zeros: never written.
    Blank,
    /// Wrong magic or checksum, or a field that makes no sense.
    Damaged,
    /// Written by a newer version, with a format or a feature that this one does not know.
    Newer,
}

/// A record that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Readable<T> {
    /// Its content.
    pub(crate) record: T,
    /// Whether a writer may change it: it has no unknown feature that forbids that.
    pub(crate) writable: bool,
}

/// Puts a field in its place.
pub(crate) fn put<const N: usize>(record: &mut [u8], at: usize, bytes: [u8; N]) {
    record[at..at + N].copy_from_slice(&bytes);
}

/// Takes a field from its place.
pub(crate) fn get<const N: usize>(record: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&record[at..at + N]);
    bytes
}

/// A `u64` from its place.
pub(crate) fn get_u64(record: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(get(record, at))
}

/// A `u128` from its place.
pub(crate) fn get_u128(record: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(get(record, at))
}

/// Completes a record: magic, version, checksum. Feature flags are its writer's matter.
pub(crate) fn close(record: &mut [u8], magic: [u8; 8]) {
    put(record, 0, magic);
    put(record, VERSION_AT, VERSION.to_le_bytes());
    put(record, CHECKSUM_AT, [0; 4]);
    let sum = checksum::crc32c(record);
    put(record, CHECKSUM_AT, sum.to_le_bytes());
}

/// Checks what all records have in common, then `decode`s the rest. Reserved bytes are checked by encoding what was
/// decoded: it must give the same bytes, unless a compatible feature that is unknown here uses them.
pub(crate) fn open<T>(
    bytes: &[u8],
    magic: [u8; 8],
    decode: impl Fn(&[u8]) -> Option<T>,
    encode: impl Fn(&T) -> Vec<u8>,
) -> Result<Readable<T>, Unreadable> {
    open_with(bytes, magic, SHARDED, decode, encode)
}

/// The same for records of which these incompatible features are known.
pub(crate) fn open_with<T>(
    bytes: &[u8],
    magic: [u8; 8],
    incompatible_known: u64,
    decode: impl Fn(&[u8]) -> Option<T>,
    encode: impl Fn(&T) -> Vec<u8>,
) -> Result<Readable<T>, Unreadable> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Err(Unreadable::Blank);
    }
    let mut unsummed = bytes.to_vec();
    put(&mut unsummed, CHECKSUM_AT, [0; 4]);
    let sum = u32::from_le_bytes(get(bytes, CHECKSUM_AT));
    if get(bytes, 0) != magic || sum != checksum::crc32c(&unsummed) {
        return Err(Unreadable::Damaged);
    }
    let version = u16::from_le_bytes(get(bytes, VERSION_AT));
    if version > VERSION || get_u64(bytes, INCOMPATIBLE_AT) & !incompatible_known != 0 {
        return Err(Unreadable::Newer);
    }
    let record = decode(bytes).ok_or(Unreadable::Damaged)?;
    let flagged = get_u64(bytes, COMPATIBLE_AT) & !COMPATIBLE_KNOWN != 0;
    let writable = get_u64(bytes, READ_ONLY_COMPATIBLE_AT) & !READ_ONLY_COMPATIBLE_KNOWN == 0;
    if writable && !flagged && encode(&record) != bytes {
        return Err(Unreadable::Damaged);
    }
    // Writing a record drops the features that it does not know of, so that is left to programs that know them.
    Ok(Readable { record, writable: writable && !flagged })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Sets a byte of a record and makes its checksum right again.
    pub(crate) fn edit(record: &mut [u8], at: usize, byte: u8) {
        record[at] = byte;
        put(record, CHECKSUM_AT, [0; 4]);
        let sum = checksum::crc32c(record);
        put(record, CHECKSUM_AT, sum.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Result<Readable<u64>, Unreadable> {
        open(bytes, *b"LEVEETST", |bytes| Some(get_u64(bytes, 40)), |value| write(*value))
    }

    fn write(value: u64) -> Vec<u8> {
        let mut record = vec![0; 512];
        put(&mut record, 40, value.to_le_bytes());
        close(&mut record, *b"LEVEETST");
        record
    }

    #[test]
    fn feature_flags_decide_what_an_older_program_may_do() {
        assert_eq!(read(&write(7)), Ok(Readable { record: 7, writable: true }));
        let edited = |at, byte| {
            let mut record = write(7);
            edit(&mut record, at, byte);
            read(&record)
        };
        assert_eq!(edited(COMPATIBLE_AT, 1), Ok(Readable { record: 7, writable: false }));
        assert_eq!(edited(READ_ONLY_COMPATIBLE_AT, 2), Ok(Readable { record: 7, writable: false }));
        assert_eq!(edited(INCOMPATIBLE_AT + 7, 1), Err(Unreadable::Newer));
        assert_eq!(edited(VERSION_AT, 2), Err(Unreadable::Newer));
        assert_eq!(edited(200, 1), Err(Unreadable::Damaged), "a reserved byte that is not zero");
        assert_eq!(edited(0, b'X'), Err(Unreadable::Damaged));
        assert_eq!(read(&[0; 512]), Err(Unreadable::Blank));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for bit in 0..512 * 8 {
            let mut record = write(7);
            record[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&record), Err(Unreadable::Damaged), "bit {bit}");
        }
    }
}
