//! Names of objects, and the records in them (docs/formats/rados.md).

use base::{Epoch, Error, FileId, Incarnation, Result, SegmentId, StoreId, VolumeId};

use crate::layout::{DATA_APART, INCOMPATIBLE_AT, Unreadable, close, get, get_u64, get_u128, open_with, put};
use crate::{FileInfo, FileKind};

/// The head of a store.
pub(super) const HEAD: &str = "store";
/// Its attribute, a [`Head`].
pub(super) const HEAD_ATTRIBUTE: &str = "levee.head";
/// Of a pool for data files only: whose they are.
pub(super) const DATA_HEAD: &str = "data";
/// Its attribute, a [`DataHead`].
pub(super) const DATA_HEAD_ATTRIBUTE: &str = "levee.data";
/// The attribute of a life and of each part of its files: whether the life may change it.
pub(super) const STATE: &str = "levee.state";
/// It may.
pub(super) const OPEN: &[u8] = b"open";
/// It may not, ever.
pub(super) const FENCED: &[u8] = b"fenced";

/// Bytes of one part of a file. Half of what an object may have where nothing is set (`osd_max_object_size`).
pub(super) const PART_BYTES: u64 = 64 << 20;

/// Ids stay below those that are remembered only ([`crate::estate`]).
const FILE_BITS: u32 = 32;
/// The id of a file that is in the pool for data files has this bit.
const APART: u64 = 1 << 31;
/// Most files that a life may create.
pub(super) const FILES_MAX: u32 = (1 << 31) - 1;
/// The highest number of a life.
pub(super) const LIFE_MAX: u64 = (1 << 30) - 1;

const HEAD_MAGIC: [u8; 8] = *b"LEVEERHD";
const DATA_HEAD_MAGIC: [u8; 8] = *b"LEVEERDA";
const LIFE_MAGIC: [u8; 8] = *b"LEVEERLF";
const FILE_MAGIC: [u8; 8] = *b"LEVEERFI";
const RECORD_BYTES: usize = 128;

/// The object of a life: which files it has.
pub(super) fn life_object(life: Incarnation) -> String {
    format!("life.{:016x}", life.0)
}

/// The object of a segment: which files name it.
pub(super) fn segment_object(segment: SegmentId) -> String {
    format!("segment.{:016x}.{:08x}", segment.volume.0, segment.index)
}

/// The object of a part of a file.
pub(super) fn part_object(file: FileId, part: u64) -> String {
    format!("file.{:016x}.{part:04x}", file.0)
}

/// The file that an object is a part of, if it is one.
pub(super) fn file_of_part(object: &str) -> Option<FileId> {
    let (file, _) = object.strip_prefix("file.")?.split_once('.')?;
    u64::from_str_radix(file, 16).ok().map(FileId)
}

/// A number as the key of an entry: keys have the order of numbers.
pub(super) fn key(number: u64) -> String {
    format!("{number:016x}")
}

/// The number of a key.
///
/// # Errors
/// `Corrupt`.
pub(super) fn number(key: &str) -> Result<u64> {
    u64::from_str_radix(key, 16).map_err(|_| Error::corrupt(format!("the entry {key} is none of Levee's")))
}

/// The id of the `count`th file of a life, from 1 to [`FILES_MAX`], and whether it is in the pool for data files.
pub(super) fn file_id(life: Incarnation, count: u32, is_apart: bool) -> FileId {
    FileId(life.0 << FILE_BITS | u64::from(count) | if is_apart { APART } else { 0 })
}

/// Whether a file is in the pool for data files.
pub(super) fn is_apart(file: FileId) -> bool {
    file.0 & APART != 0
}

/// The life that created a file.
pub(super) fn creator(file: FileId) -> Incarnation {
    Incarnation(file.0 >> FILE_BITS)
}

/// What is in the head's attribute: it changes with each change of the head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) store: StoreId,
    /// Counts changes.
    pub(super) turn: u64,
    /// The highest number that was given to a life.
    pub(super) last: Incarnation,
    /// The pool for data files, if there is one: [`DataHead::id`].
    pub(super) data: Option<u128>,
}

impl Head {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut record = vec![0; RECORD_BYTES];
        put(&mut record, 40, self.store.0.to_le_bytes());
        put(&mut record, 56, self.turn.to_le_bytes());
        put(&mut record, 64, self.last.0.to_le_bytes());
        if let Some(id) = self.data {
            put(&mut record, INCOMPATIBLE_AT, DATA_APART.to_le_bytes());
            put(&mut record, 72, id.to_le_bytes());
        }
        close(&mut record, HEAD_MAGIC);
        record
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Head> {
        let decode = |record: &[u8]| {
            Some(Head {
                store: StoreId(get_u128(record, 40)),
                turn: get_u64(record, 56),
                last: Incarnation(get_u64(record, 64)),
                data: (get_u64(record, INCOMPATIBLE_AT) & DATA_APART != 0).then(|| get_u128(record, 72)),
            })
        };
        read(bytes, HEAD_MAGIC, decode, Head::encode, "the head of the store")
    }
}

/// What a pool for data files says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DataHead {
    /// The store whose files they are.
    pub(super) store: StoreId,
    /// Which of the pools that were ever named for them: the store keeps to one.
    pub(super) id: u128,
}

impl DataHead {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut record = vec![0; RECORD_BYTES];
        put(&mut record, 40, self.store.0.to_le_bytes());
        put(&mut record, 56, self.id.to_le_bytes());
        close(&mut record, DATA_HEAD_MAGIC);
        record
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<DataHead> {
        let decode = |record: &[u8]| Some(DataHead { store: StoreId(get_u128(record, 40)), id: get_u128(record, 56) });
        read(bytes, DATA_HEAD_MAGIC, decode, DataHead::encode, "what the pool for data files says of itself")
    }
}

/// What the head knows of a life, besides its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct LifeRecord {
    pub(super) is_fenced: bool,
    /// What it may set aside for files.
    pub(super) granted: u64,
    /// What its files had set aside when somebody counted: more than it was granted, where logs needed it.
    pub(super) used: u64,
}

impl LifeRecord {
    /// What nobody else may have because of it.
    pub(super) fn claim(&self) -> u64 {
        match self.is_fenced {
            true => self.used,
            false => self.granted.max(self.used),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut record = vec![0; RECORD_BYTES];
        put(&mut record, 10, [u8::from(self.is_fenced), 0]);
        put(&mut record, 40, self.granted.to_le_bytes());
        put(&mut record, 48, self.used.to_le_bytes());
        close(&mut record, LIFE_MAGIC);
        record
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<LifeRecord> {
        let decode = |record: &[u8]| {
            Some(LifeRecord { is_fenced: record[10] == 1, granted: get_u64(record, 40), used: get_u64(record, 48) })
        };
        read(bytes, LIFE_MAGIC, decode, LifeRecord::encode, "what the store knows of a life")
    }
}

/// What the life that created a file knows of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FileRecord {
    pub(super) info: FileInfo,
    /// Its capacity when it was made: as far as there may be bytes.
    pub(super) made_for: u64,
    /// Whether its capacity stays when it is sealed.
    pub(super) is_prepared: bool,
    /// It is being removed: nobody refers to it any more.
    pub(super) is_going: bool,
}

impl FileRecord {
    /// How many parts it may have.
    pub(super) fn parts(&self) -> u64 {
        self.made_for.div_ceil(PART_BYTES)
    }

    /// The same, ended at `length`.
    pub(super) fn sealed_at(&self, length: u64) -> FileRecord {
        let mut sealed = self.clone();
        sealed.info.sealed = Some(length);
        if !self.is_prepared {
            sealed.info.capacity = length;
        }
        sealed
    }

    /// The same, about to be removed.
    pub(super) fn going(&self) -> FileRecord {
        FileRecord { is_going: true, ..self.clone() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let FileInfo { id, kind, incarnation, epoch, segment, capacity, sealed, .. } = &self.info;
        let mut record = vec![0; RECORD_BYTES];
        put(&mut record, 10, [u8::from(self.is_prepared) | u8::from(self.is_going) << 1, *kind as u8]);
        put(&mut record, 40, id.0.to_le_bytes());
        put(&mut record, 48, incarnation.0.to_le_bytes());
        put(&mut record, 56, epoch.0.to_le_bytes());
        put(&mut record, 64, capacity.to_le_bytes());
        // A length is a multiple of 4 KiB, so that none can be this.
        put(&mut record, 72, sealed.unwrap_or(u64::MAX).to_le_bytes());
        let SegmentId { volume, index } = segment.unwrap_or(SegmentId { volume: VolumeId(0), index: 0 });
        put(&mut record, 80, volume.0.to_le_bytes());
        put(&mut record, 88, index.to_le_bytes());
        put(&mut record, 96, self.made_for.to_le_bytes());
        close(&mut record, FILE_MAGIC);
        record
    }

    pub(super) fn decode(file: FileId, bytes: &[u8]) -> Result<FileRecord> {
        let decode = |record: &[u8]| {
            let [flags, kind] = get(record, 10);
            let sealed = get_u64(record, 72);
            let segment =
                SegmentId { volume: VolumeId(get_u64(record, 80)), index: u32::from_le_bytes(get(record, 88)) };
            let info = FileInfo {
                id: FileId(get_u64(record, 40)),
                kind: FileKind::from_number(kind)?,
                incarnation: Incarnation(get_u64(record, 48)),
                epoch: Epoch(get_u64(record, 56)),
                segment: (segment.volume.0 != 0).then_some(segment),
                capacity: get_u64(record, 64),
                sealed: (sealed != u64::MAX).then_some(sealed),
                copies: 1,
                copies_wanted: 1,
            };
            let is_its = info.id == file && info.incarnation == creator(file) && flags < 4;
            let (is_prepared, is_going) = (flags & 1 != 0, flags & 2 != 0);
            is_its.then_some(FileRecord { info, made_for: get_u64(record, 96), is_prepared, is_going })
        };
        read(bytes, FILE_MAGIC, decode, FileRecord::encode, &format!("the record of file {file}"))
    }
}

fn read<T>(
    bytes: &[u8],
    magic: [u8; 8],
    decode: impl Fn(&[u8]) -> Option<T>,
    encode: impl Fn(&T) -> Vec<u8>,
    what: &str,
) -> Result<T> {
    if bytes.len() != RECORD_BYTES {
        return Err(Error::corrupt(format!("{what} has {} bytes instead of {RECORD_BYTES}", bytes.len())));
    }
    // Of these records only the head has a feature.
    let known = if magic == HEAD_MAGIC { DATA_APART } else { 0 };
    match open_with(bytes, magic, known, decode, encode) {
        Ok(readable) if readable.writable => Ok(readable.record),
        Ok(_) | Err(Unreadable::Newer) => {
            Err(Error::invalid(format!("{what} was written by a newer Levee: upgrade this process")))
        }
        Err(Unreadable::Blank | Unreadable::Damaged) => Err(Error::corrupt(format!("{what} is damaged"))),
    }
}

#[cfg(test)]
mod tests {
    use base::GIB;

    use super::*;

    fn file() -> FileRecord {
        let id = file_id(Incarnation(3), 7, false);
        let segment = Some(SegmentId { volume: VolumeId(9), index: 2 });
        let info = FileInfo {
            id,
            kind: FileKind::Data,
            incarnation: Incarnation(3),
            epoch: Epoch(0x2_0000_0001),
            segment,
            capacity: GIB,
            sealed: None,
            copies: 1,
            copies_wanted: 1,
        };
        FileRecord { info, made_for: GIB, is_prepared: true, is_going: false }
    }

    #[test]
    fn records_are_as_docs_formats_has_them() {
        let head = Head { store: StoreId(0x1122), turn: 5, last: Incarnation(4), data: None };
        let apart = Head { data: Some(0x33), ..head };
        let data = DataHead { store: StoreId(0x1122), id: 0x33 };
        let life = LifeRecord { is_fenced: true, granted: GIB, used: 8192 };
        let records = [head.encode(), life.encode(), file().encode(), apart.encode(), data.encode()];
        let shown = records.map(|record| {
            let words = record.chunks(8).map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
            words.take(13).collect::<Vec<_>>().join(" ")
        });
        let golden = include_str!("../../tests/golden/rados.txt");
        assert_eq!(shown.join("\n"), golden.trim_end(), "a format has changed: docs/formats/rados.md");
        assert_eq!(Head::decode(&head.encode()).unwrap(), head);
        assert_eq!(LifeRecord::decode(&life.encode()).unwrap(), life);
        assert_eq!(Head::decode(&apart.encode()).unwrap(), apart);
        assert_eq!(DataHead::decode(&data.encode()).unwrap(), data);
    }

    #[test]
    fn an_id_says_whose_file_it_is_and_in_which_pool() {
        for apart in [false, true] {
            for (life, count) in [(1, 1), (LIFE_MAX, FILES_MAX)] {
                let file = file_id(Incarnation(life), count, apart);
                assert_eq!((creator(file), is_apart(file)), (Incarnation(life), apart));
                assert_eq!(file_of_part(&part_object(file, 3)), Some(file));
            }
        }
    }

    #[test]
    fn a_record_of_a_file_is_believed_of_that_file_only() {
        let of = |record: &FileRecord| FileRecord::decode(record.info.id, &record.encode()).unwrap();
        let record = file();
        for record in [record.sealed_at(4096), record.going(), FileRecord { is_prepared: false, ..file() }.sealed_at(0)]
        {
            assert_eq!(of(&record), record);
        }
        let elsewhere = FileRecord::decode(file_id(Incarnation(3), 8, false), &record.encode());
        assert_eq!(elsewhere.unwrap_err().kind, base::ErrorKind::Corrupt);
        let mut damaged = record.encode();
        damaged[70] ^= 1;
        assert_eq!(FileRecord::decode(record.info.id, &damaged).unwrap_err().kind, base::ErrorKind::Corrupt);
        assert!(FileRecord::decode(record.info.id, &damaged[..20]).is_err());
    }
}
