//! The bytes of the volume table: docs/formats/volume-table.md.

use base::checksum::{crc32c, crc32c_append};
use base::levels::{Credits, Levels, Rate};
use base::units::round_up;
use base::{BLOCK, Error, FileId, Generation, Incarnation, LogSequence, Result, VolumeId};
use wire::Forwarding;

use super::{Change, Row, VolumeState, VolumeTable};
use crate::rules;

/// The first bytes of every record.
pub const MAGIC: [u8; 8] = *b"LEVEEVT\0";
/// The version that is written, and the only one that is read.
pub const VERSION: u16 = 1;
/// Length of a record's header in bytes.
pub const HEADER: usize = 64;
/// Longest body that a reader accepts: a checkpoint of the most volumes with the longest names.
pub const BODY_MAX: usize = 16 + base::limits::VOLUMES_MAX * ROW_MAX;

/// Most bytes of one change.
pub(crate) const CHANGE_MAX: usize = 8 + ROW_MAX;

const ROW: usize = 48;
const LEVELS: usize = 40;
const ROW_MAX: usize = ROW + base::limits::VOLUME_NAME_MAX + rules::OWNER_MAX + LEVELS;

/// What a record says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The file that it was written to.
    pub file: FileId,
    /// The life of the server that wrote it.
    pub incarnation: Incarnation,
    /// Its place in the table's history: 1 for the first record of a store, then one more for each.
    pub sequence: LogSequence,
    /// The last record that was durable when this one was written.
    pub durable_through: LogSequence,
}

/// A record's content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// The whole table. The first record of every file, and only that.
    Checkpoint(VolumeTable),
    /// One change.
    Change(Change),
}

/// What a reader finds at a place.
#[derive(Debug)]
pub enum Found {
    /// A record that is intact, and its length in the file with padding.
    Record(Header, Body, u64),
    /// Nothing that is intact: never written, torn or rotten.
    Nothing,
}

/// The bytes of a record, padded with zeros to a multiple of 4 KiB.
pub fn encode(header: &Header, body: &Body) -> Vec<u8> {
    let mut bytes = vec![0; HEADER];
    let kind: u16 = match body {
        Body::Checkpoint(table) => {
            put_u64(&mut bytes, table.next_id().0);
            put_u64(&mut bytes, table.rows().count() as u64);
            table.rows().for_each(|row| put_row(&mut bytes, row));
            1
        }
        Body::Change(change) => {
            put_change(&mut bytes, change);
            2
        }
    };
    let body_len = (bytes.len() - HEADER) as u32;
    bytes[0..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    bytes[10..12].copy_from_slice(&kind.to_le_bytes());
    bytes[12..16].copy_from_slice(&body_len.to_le_bytes());
    bytes[16..24].copy_from_slice(&header.file.0.to_le_bytes());
    bytes[24..32].copy_from_slice(&header.incarnation.0.to_le_bytes());
    bytes[32..40].copy_from_slice(&header.sequence.0.to_le_bytes());
    bytes[40..48].copy_from_slice(&header.durable_through.0.to_le_bytes());
    bytes.resize(round_up(bytes.len() as u64, BLOCK) as usize, 0);
    let checksum = record_checksum(&bytes);
    bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Reads the record at the start of `bytes` if it is one of `file` and intact.
///
/// # Errors
/// `Corrupt` for a record whose checksum is right and whose content makes no sense, `Invalid` for one of a newer
/// Levee.
pub fn decode(file: FileId, bytes: &[u8]) -> Result<Found> {
    if bytes.len() < HEADER || bytes[0..8] != MAGIC {
        return Ok(Found::Nothing);
    }
    let body_len = u32_at(bytes, 12) as usize;
    let header = Header {
        file: FileId(u64_at(bytes, 16)),
        incarnation: Incarnation(u64_at(bytes, 24)),
        sequence: LogSequence(u64_at(bytes, 32)),
        durable_through: LogSequence(u64_at(bytes, 40)),
    };
    let padded_len = round_up((HEADER + body_len) as u64, BLOCK);
    if header.file != file || body_len > BODY_MAX || padded_len > bytes.len() as u64 {
        return Ok(Found::Nothing);
    }
    if record_checksum(&bytes[..padded_len as usize]) != u32_at(bytes, 60) {
        return Ok(Found::Nothing);
    }
    let (version, kind) = (u16_at(bytes, 8), u16_at(bytes, 10));
    let (read_only_compatible, incompatible) = (u16_at(bytes, 50), u16_at(bytes, 52));
    if version != VERSION || incompatible != 0 || read_only_compatible != 0 || bytes[54..60] != [0; 6] {
        return Err(Error::invalid(format!(
            "the volume table was written in format {version} (flags {read_only_compatible:#x}, {incompatible:#x}), \
             this Levee knows format {VERSION}: start the version that wrote it"
        )));
    }
    let mut rest = Reader(&bytes[HEADER..HEADER + body_len]);
    let body = match kind {
        1 => Body::Checkpoint(rest.table()?),
        2 => Body::Change(rest.change()?),
        _ => return Err(Error::corrupt(format!("a record of the volume table has the unknown kind {kind}"))),
    };
    rest.end()?;
    Ok(Found::Record(header, body, padded_len))
}

/// The checksum of a record, padding included, over everything but the checksum itself.
fn record_checksum(record: &[u8]) -> u32 {
    crc32c_append(crc32c(&record[..60]), &record[HEADER..])
}

fn put_u64(bytes: &mut Vec<u8>, value: u64) {
    bytes.extend_from_slice(&value.to_le_bytes());
}

fn put_row(bytes: &mut Vec<u8>, row: &Row) {
    put_u64(bytes, row.id.0);
    put_u64(bytes, row.size);
    put_u64(bytes, row.data_sector_bytes);
    put_u64(bytes, row.created_wall_ms);
    put_u64(bytes, row.generation.0);
    let has_levels = row.levels != Levels::default();
    let forwarding = row.forwarding as u8;
    let lengths = [row.name.len() as u8, row.owner.len() as u8];
    bytes.extend_from_slice(&[row.state as u8, lengths[0], lengths[1], u8::from(has_levels), forwarding, 0, 0, 0]);
    bytes.extend_from_slice(row.name.as_bytes());
    bytes.extend_from_slice(row.owner.as_bytes());
    if has_levels {
        put_levels(bytes, &row.levels);
    }
}

fn put_levels(bytes: &mut Vec<u8>, levels: &Levels) {
    let credits = u64::from(levels.credits.cap_seconds) | u64::from(levels.credits.percent) << 32;
    for rate in [levels.base, levels.burst] {
        put_u64(bytes, rate.iops);
        put_u64(bytes, rate.bytes_per_sec);
    }
    put_u64(bytes, credits);
}

/// A change as it stands in a record, also of the log that managers of several servers share.
pub(crate) fn put_change(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Create(row) => {
            put_u64(bytes, 1);
            put_row(bytes, row);
        }
        Change::Attach { volume, generation } => {
            put_u64(bytes, 2);
            put_u64(bytes, volume.0);
            put_u64(bytes, generation.0);
        }
        Change::MarkDeleted(volume) => {
            put_u64(bytes, 3);
            put_u64(bytes, volume.0);
        }
        Change::Forget(volume) => {
            put_u64(bytes, 4);
            put_u64(bytes, volume.0);
        }
        Change::Set { volume, levels, forwarding } => {
            put_u64(bytes, 6);
            put_u64(bytes, volume.0);
            put_u64(bytes, *forwarding as u64);
            put_levels(bytes, levels);
        }
    }
}

/// A change, and nothing else.
///
/// # Errors
/// `Corrupt`.
pub(crate) fn read_change(bytes: &[u8]) -> Result<Change> {
    let mut rest = Reader(bytes);
    let change = rest.change()?;
    rest.end().map(|()| change)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn forwarding(number: u64) -> Result<Forwarding> {
    let known = u8::try_from(number).ok().and_then(Forwarding::of);
    known.ok_or_else(|| Error::corrupt(format!("a volume in the table has the unknown forwarding {number}")))
}

/// Takes a body apart; every step may find that it is too short.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take(&mut self, len: usize) -> Result<&[u8]> {
        if len > self.0.len() {
            return Err(Error::corrupt("a record of the volume table is shorter than what it holds"));
        }
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        Ok(taken)
    }

    fn u64(&mut self) -> Result<u64> {
        self.take(8).map(|bytes| u64_at(bytes, 0))
    }

    fn text(&mut self, len: u8) -> Result<String> {
        let text = std::str::from_utf8(self.take(usize::from(len))?);
        text.map(str::to_owned).map_err(|_| Error::corrupt("a name in the volume table is not UTF-8"))
    }

    fn row(&mut self) -> Result<Row> {
        let [id, size, data_sector_bytes, created_wall_ms, generation] =
            [self.u64()?, self.u64()?, self.u64()?, self.u64()?, self.u64()?];
        let tail = self.take(8)?;
        let (state, name_len, owner_len, has_levels) = (tail[0], tail[1], tail[2], tail[3]);
        let forwarding = forwarding(tail[4].into())?;
        if has_levels > 1 || tail[5..] != [0; 3] {
            return Err(Error::corrupt("a row of the volume table uses bytes that format 1 reserves"));
        }
        let row = Row {
            id: VolumeId(id),
            name: self.text(name_len)?,
            size,
            data_sector_bytes,
            owner: self.text(owner_len)?,
            created_wall_ms,
            generation: Generation(generation),
            state: match state {
                1 => VolumeState::Active,
                2 => VolumeState::Deleting,
                _ => return Err(Error::corrupt(format!("a volume in the table has the unknown state {state}"))),
            },
            levels: if has_levels == 1 { self.levels()? } else { Levels::default() },
            forwarding,
        };
        if has_levels == 1 && row.levels == Levels::default() {
            return Err(Error::corrupt("a row of the volume table has levels that are none"));
        }
        rules::check_recorded(&row.name)
            .and_then(|()| rules::check_size(row.size))
            .and_then(|()| rules::check_data_sector(row.data_sector_bytes))
            .and_then(|()| rules::check_owner(&row.owner))
            .map_err(|error| Error::corrupt(error.message).context("the volume table"))?;
        Ok(row)
    }

    fn levels(&mut self) -> Result<Levels> {
        let [base_iops, base_bytes, burst_iops, burst_bytes, credits] =
            [self.u64()?, self.u64()?, self.u64()?, self.u64()?, self.u64()?];
        let levels = Levels {
            base: Rate { iops: base_iops, bytes_per_sec: base_bytes },
            burst: Rate { iops: burst_iops, bytes_per_sec: burst_bytes },
            credits: Credits { cap_seconds: credits as u32, percent: (credits >> 32) as u32 },
        };
        rules::check_levels(&levels).map_err(|error| Error::corrupt(error.message).context("the volume table"))?;
        Ok(levels)
    }

    fn table(&mut self) -> Result<VolumeTable> {
        let next_id = VolumeId(self.u64()?);
        let count = self.u64()?;
        if count > base::limits::VOLUMES_MAX as u64 {
            return Err(Error::corrupt(format!("the volume table lists {count} volumes")));
        }
        let rows = (0..count).map(|_| self.row()).collect::<Result<Vec<_>>>()?;
        VolumeTable::from_rows(next_id, rows)
    }

    fn change(&mut self) -> Result<Change> {
        match self.u64()? {
            1 => Ok(Change::Create(self.row()?)),
            2 => Ok(Change::Attach { volume: VolumeId(self.u64()?), generation: Generation(self.u64()?) }),
            3 => Ok(Change::MarkDeleted(VolumeId(self.u64()?))),
            4 => Ok(Change::Forget(VolumeId(self.u64()?))),
            // From when no volume had anything else to set, which is why the bursts of none were spread.
            5 => {
                let (volume, levels) = (VolumeId(self.u64()?), self.levels()?);
                Ok(Change::Set { volume, levels, forwarding: Forwarding::Default })
            }
            6 => {
                let (volume, forwarding) = (VolumeId(self.u64()?), forwarding(self.u64()?)?);
                Ok(Change::Set { volume, levels: self.levels()?, forwarding })
            }
            kind => Err(Error::corrupt(format!("the volume table has the unknown change {kind}"))),
        }
    }

    fn end(&self) -> Result<()> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(Error::corrupt("a record of the volume table is longer than what it holds")),
        }
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use base::{GIB, KIB, MIB};

    use super::*;

    pub(super) fn header() -> Header {
        Header {
            file: FileId(0x1122),
            incarnation: Incarnation(7),
            sequence: LogSequence(42),
            durable_through: LogSequence(41),
        }
    }

    fn row() -> Row {
        Row {
            id: VolumeId(5),
            name: "vm-1".into(),
            size: 10 * GIB,
            data_sector_bytes: 128 * KIB,
            owner: "ops".into(),
            created_wall_ms: 1_700_000_000_000,
            generation: Generation(3),
            state: VolumeState::Active,
            levels: Levels::default(),
            forwarding: Forwarding::default(),
        }
    }

    fn levels() -> Levels {
        Levels {
            base: Rate { iops: 3_000, bytes_per_sec: 128 * MIB },
            burst: Rate { iops: 16_000, bytes_per_sec: 1 << 40 },
            credits: Credits { cap_seconds: 3_600, percent: 50 },
        }
    }

    pub(super) fn bodies() -> Vec<Body> {
        let promised =
            Row { id: VolumeId(7), name: "c".into(), levels: levels(), forwarding: Forwarding::Auto, ..row() };
        let table = VolumeTable::from_rows(
            VolumeId(9),
            [row(), promised.clone(), Row { id: VolumeId(8), name: "b".into(), ..row() }],
        );
        vec![
            Body::Checkpoint(VolumeTable::default()),
            Body::Checkpoint(table.unwrap()),
            Body::Change(Change::Create(row())),
            Body::Change(Change::Attach { volume: VolumeId(5), generation: Generation(4) }),
            Body::Change(Change::MarkDeleted(VolumeId(5))),
            Body::Change(Change::Forget(VolumeId(5))),
            Body::Change(Change::Create(promised)),
            Body::Change(Change::Set { volume: VolumeId(5), levels: levels(), forwarding: Forwarding::Off }),
            Body::Change(Change::Set {
                volume: VolumeId(5),
                levels: Levels::default(),
                forwarding: Forwarding::default(),
            }),
        ]
    }

    fn decoded(bytes: &[u8]) -> Option<(Header, Body, u64)> {
        match decode(FileId(0x1122), bytes).unwrap() {
            Found::Record(header, body, len) => Some((header, body, len)),
            Found::Nothing => None,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for body in bodies() {
            let bytes = encode(&header(), &body);
            assert!(bytes.len().is_multiple_of(4096));
            assert_eq!(decoded(&bytes), Some((header(), body, bytes.len() as u64)));
        }
    }

    #[test]
    fn the_bytes_stay_as_documented() {
        let bytes = encode(&header(), &Body::Change(Change::Create(row())));
        let hex: String = bytes[..HEADER + 63].iter().map(|byte| format!("{byte:02x}")).collect();
        // magic, version, kind, body length | file, incarnation | sequence, durable through | flags, reserved, checksum
        // create | id, size, data sector | created, generation | state, lengths, reserved, name, owner
        let expected = "
            4c45564545565400 0100 0200 3f000000
            2211000000000000 0700000000000000
            2a00000000000000 2900000000000000
            000000000000 000000000000 88ffa8d0
            0100000000000000
            0500000000000000 0000008002000000 0000020000000000
            0068e5cf8b010000 0300000000000000
            010403 0000000000 766d2d31 6f7073";
        assert_eq!(hex, expected.split_whitespace().collect::<String>());
        assert!(bytes[HEADER + 63..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn the_bytes_of_levels_stay_as_documented() {
        let hex = |change, len: usize| -> String {
            let bytes = encode(&header(), &Body::Change(change));
            assert_eq!(u32_at(&bytes, 12) as usize, len);
            bytes[HEADER..HEADER + len].iter().map(|byte| format!("{byte:02x}")).collect()
        };
        // base, burst, credits: seconds, percent
        let five = "
            b80b000000000000 0000000800000000 803e000000000000 0000000000010000
            100e0000 32000000";
        // create | id, size, data sector | created, generation | state, lengths, levels follow, forwarding, reserved | names
        let promised = format!(
            "0100000000000000
            0500000000000000 0000008002000000 0000020000000000
            0068e5cf8b010000 0300000000000000
            010403 01 02 000000 766d2d31 6f7073 {five}"
        );
        let joined = |text: &str| text.split_whitespace().collect::<String>();
        assert_eq!(
            hex(Change::Create(Row { levels: levels(), forwarding: Forwarding::Auto, ..row() }), 103),
            joined(&promised)
        );
        let set = |forwarding| Change::Set { volume: VolumeId(5), levels: levels(), forwarding };
        let expected = format!("0600000000000000 0500000000000000 0300000000000000 {five}");
        assert_eq!(hex(set(Forwarding::On), 64), joined(&expected));
        // Nobody writes these any more.
        let old = joined(&format!("0500000000000000 0500000000000000 {five}"));
        let old: Vec<u8> =
            (0..old.len()).step_by(2).map(|at| u8::from_str_radix(&old[at..at + 2], 16).unwrap()).collect();
        assert_eq!(read_change(&old).unwrap(), set(Forwarding::Default));
    }

    #[test]
    fn levels_that_are_none_or_break_the_rules_are_corrupt() {
        let bytes = encode(&header(), &Body::Change(Change::Create(Row { levels: levels(), ..row() })));
        let with = |at: usize, value: &[u8]| {
            let mut bytes = bytes.clone();
            bytes[HEADER + at..HEADER + at + value.len()].copy_from_slice(value);
            let checksum = record_checksum(&bytes);
            bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
            decode(FileId(0x1122), &bytes).map(drop)
        };
        assert!(with(0, &[1]).is_ok());
        for (at, value) in [
            (63, &[0; 40][..]),            // levels that are none
            (51, &[2]),                    // neither with nor without levels
            (52, &[4]),                    // an unknown forwarding
            (53, &[1]),                    // reserved
            (63, &u64::MAX.to_le_bytes()), // a base level beyond the limit
            (79, &1u64.to_le_bytes()),     // a burst level below the base level
            (99, &101u32.to_le_bytes()),   // more is saved than was left over
            (51, &[0]),                    // bytes that belong to nothing
        ] {
            assert_eq!(with(at, value).unwrap_err().kind, base::ErrorKind::Corrupt, "{value:?} at {at}");
        }
    }

    #[test]
    fn zeros_another_file_and_any_flipped_bit_do_not_validate() {
        assert!(decoded(&[0; 4096]).is_none());
        for body in bodies() {
            let bytes = encode(&header(), &body);
            assert!(matches!(decode(FileId(0x1123), &bytes), Ok(Found::Nothing)));
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(matches!(decode(FileId(0x1122), &flipped), Ok(Found::Nothing)), "{body:?} bit {bit}");
            }
            for torn in (0..bytes.len()).step_by(16) {
                assert!(matches!(decode(FileId(0x1122), &bytes[..torn]), Ok(Found::Nothing)), "torn at {torn}");
            }
        }
    }
}
