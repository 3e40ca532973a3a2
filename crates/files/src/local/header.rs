//! The header of a file: its birth and its end. docs/formats/files.md describes every byte.
//!
//! The first 4 KiB of every file are its header and hidden from callers. Sector 0 is the birth record, written before
//! the file gets its name; sector 1 is the seal record, zeros until the file is sealed. Each fits one 512-byte
//! sector, so a power loss leaves it old or new; sealing writes the block again with the same birth record.

use base::{BLOCK, DirectoryId, Epoch, FileId, Incarnation, SECTOR, SegmentId, StoreId, VolumeId};

use crate::FileKind;
use crate::layout::{self, NAMES_SEGMENT, READ_ONLY_COMPATIBLE_AT, Readable, Unreadable, get_u64, get_u128, put};

/// Bytes before the content of a file.
pub(crate) const HEADER: u64 = BLOCK;
/// Most copies of one file.
pub(crate) const COPIES_MAX: usize = 8;

const BIRTH_MAGIC: [u8; 8] = *b"LEVEEFIL";
const SEAL_MAGIC: [u8; 8] = *b"LEVEEEND";
const SECTOR_LEN: usize = SECTOR as usize;
/// The only scheme so far; erasure coding gets the next number.
const SCHEME_COPIES: u8 = 1;
const FLAG_PREPARED: u8 = 1;
const DIRECTORIES_AT: usize = 112;
const SEGMENT_AT: usize = DIRECTORIES_AT + 16 * COPIES_MAX;

/// What a file was born as.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Birth {
    /// The store.
    pub(crate) store: StoreId,
    /// The file.
    pub(crate) file: FileId,
    /// What it is for.
    pub(crate) kind: FileKind,
    /// The life that created it.
    pub(crate) incarnation: Incarnation,
    /// The ownership under which it was created.
    pub(crate) epoch: Epoch,
    /// The segment that it belongs to, where segments move.
    pub(crate) segment: Option<SegmentId>,
    /// Bytes set aside for content.
    pub(crate) capacity: u64,
    /// Copies that it should have.
    pub(crate) copies_wanted: u8,
    /// Which copy this is, from 0.
    pub(crate) copy: u8,
    /// Whether it was prepared.
    pub(crate) prepared: bool,
    /// The directories that its copies were born in, by copy number: at most the copies wanted.
    pub(crate) directories: Vec<DirectoryId>,
}

/// The header of one copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// Sector 0.
    pub(crate) birth: Birth,
    /// Sector 1: the length at which the file was sealed.
    pub(crate) sealed: Option<u64>,
}

impl Header {
    /// The block of the header.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut block = self.birth.encode();
        block.resize(HEADER as usize, 0);
        if let Some(length) = self.sealed {
            block[SECTOR_LEN..2 * SECTOR_LEN].copy_from_slice(&encode_seal(self.birth.file, length));
        }
        block
    }

    /// Reads the block of a header.
    ///
    /// A seal record of another file is no seal (it cannot be: the block was written as a whole when the file was
    /// born); one that is damaged makes the header damaged, because the end of the file is unknown.
    pub(crate) fn decode(block: &[u8]) -> Result<Readable<Header>, Unreadable> {
        assert_eq!(block.len() as u64, HEADER);
        let birth = layout::open(&block[..SECTOR_LEN], BIRTH_MAGIC, decode_birth, Birth::encode)?;
        let seal = layout::open(
            &block[SECTOR_LEN..2 * SECTOR_LEN],
            SEAL_MAGIC,
            |sector| Some((FileId(get_u64(sector, 40)), get_u64(sector, 48))),
            |(file, length)| encode_seal(*file, *length),
        );
        let (sealed, writable) = match seal {
            Ok(seal) if seal.record.0 == birth.record.file => {
                let length = seal.record.1;
                if length > birth.record.capacity || !length.is_multiple_of(BLOCK) {
                    return Err(Unreadable::Damaged);
                }
                (Some(length), seal.writable)
            }
            Ok(_) => return Err(Unreadable::Damaged),
            Err(Unreadable::Blank) => (None, true),
            Err(unreadable) => return Err(unreadable),
        };
        if block[2 * SECTOR_LEN..].iter().any(|byte| *byte != 0) && birth.writable {
            return Err(Unreadable::Damaged);
        }
        Ok(Readable { record: Header { birth: birth.record, sealed }, writable: birth.writable && writable })
    }
}

impl Birth {
    fn encode(&self) -> Vec<u8> {
        assert!(self.directories.len() <= COPIES_MAX && self.copies_wanted as usize <= COPIES_MAX);
        let mut sector = vec![0; SECTOR_LEN];
        put(&mut sector, 10, [self.kind as u8, SCHEME_COPIES]);
        put(&mut sector, 40, self.store.0.to_le_bytes());
        put(&mut sector, 56, self.file.0.to_le_bytes());
        put(&mut sector, 64, self.incarnation.0.to_le_bytes());
        put(&mut sector, 72, self.epoch.0.to_le_bytes());
        put(&mut sector, 80, self.capacity.to_le_bytes());
        let flags = if self.prepared { FLAG_PREPARED } else { 0 };
        put(&mut sector, 88, [self.copies_wanted, self.copy, self.directories.len() as u8, flags]);
        for (index, directory) in self.directories.iter().enumerate() {
            put(&mut sector, DIRECTORIES_AT + 16 * index, directory.0.to_le_bytes());
        }
        if let Some(segment) = self.segment {
            put(&mut sector, READ_ONLY_COMPATIBLE_AT, NAMES_SEGMENT.to_le_bytes());
            put(&mut sector, SEGMENT_AT, segment.volume.0.to_le_bytes());
            put(&mut sector, SEGMENT_AT + 8, segment.index.to_le_bytes());
        }
        layout::close(&mut sector, BIRTH_MAGIC);
        sector
    }
}

fn decode_birth(sector: &[u8]) -> Option<Birth> {
    let [copies_wanted, copy, directories, flags] = layout::get::<4>(sector, 88);
    let [kind, scheme] = layout::get::<2>(sector, 10);
    let capacity = get_u64(sector, 80);
    let kind = FileKind::from_number(kind)?;
    let names_segment = get_u64(sector, READ_ONLY_COMPATIBLE_AT) & NAMES_SEGMENT != 0;
    let index = u32::from_le_bytes(layout::get(sector, SEGMENT_AT + 8));
    let segment = SegmentId { volume: VolumeId(get_u64(sector, SEGMENT_AT)), index };
    let sane = scheme == SCHEME_COPIES
        && copies_wanted as usize <= COPIES_MAX
        && directories <= copies_wanted
        && copy < copies_wanted
        && flags & !FLAG_PREPARED == 0
        && (!names_segment || kind.is_of_segment() && segment.volume != VolumeId(0))
        && capacity.is_multiple_of(BLOCK)
        && capacity < u64::MAX / 2;
    if !sane {
        return None;
    }
    Some(Birth {
        store: StoreId(get_u128(sector, 40)),
        file: FileId(get_u64(sector, 56)),
        kind,
        incarnation: Incarnation(get_u64(sector, 64)),
        epoch: Epoch(get_u64(sector, 72)),
        segment: names_segment.then_some(segment),
        capacity,
        copies_wanted,
        copy,
        prepared: flags & FLAG_PREPARED != 0,
        directories: (0..directories as usize)
            .map(|index| DirectoryId(get_u128(sector, DIRECTORIES_AT + 16 * index)))
            .collect(),
    })
}

fn encode_seal(file: FileId, length: u64) -> Vec<u8> {
    let mut sector = vec![0; SECTOR_LEN];
    put(&mut sector, 40, file.0.to_le_bytes());
    put(&mut sector, 48, length.to_le_bytes());
    layout::close(&mut sector, SEAL_MAGIC);
    sector
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::edit;

    fn example(sealed: Option<u64>) -> Header {
        let birth = Birth {
            store: StoreId(0xaaaa_bbbb_cccc_dddd_eeee_ffff_0000_1111),
            file: FileId(0x0102_0304_0506_0708),
            kind: FileKind::Data,
            incarnation: Incarnation(42),
            epoch: Epoch(1),
            segment: None,
            capacity: 1 << 26,
            copies_wanted: 3,
            copy: 1,
            prepared: true,
            directories: vec![DirectoryId(5), DirectoryId(6)],
        };
        Header { birth, sealed }
    }

    #[test]
    fn golden_bytes() {
        let block = example(Some(8192)).encode();
        assert_eq!(block.len(), 4096);
        let birth = "4c4556454546494c 0100 03 01 6abf9248 0000000000000000 0000000000000000 0000000000000000 \
             11110000ffffeeeeddddccccbbbbaaaa 0807060504030201 2a00000000000000 0100000000000000 0000000400000000 \
             03 01 02 01 0000000000000000000000000000000000000000 \
             05000000000000000000000000000000 06000000000000000000000000000000";
        assert_eq!(hex(&block[..144]), birth.replace(' ', ""));
        let seal = "4c45564545454e44 0100 0000 2556a4c9 0000000000000000 0000000000000000 0000000000000000 \
             0807060504030201 0020000000000000";
        assert_eq!(hex(&block[512..568]), seal.replace(' ', ""));
        assert!(block[144..512].iter().chain(&block[568..]).all(|byte| *byte == 0));
    }

    /// A file of a segment that may move says so behind the directories, and that an older program is not to write it.
    #[test]
    fn golden_bytes_of_a_segment() {
        let block = of_segment(None).encode();
        let birth = "4c4556454546494c 0100 03 01 f4038d22 0000000000000000 0100000000000000 0000000000000000 \
             11110000ffffeeeeddddccccbbbbaaaa 0807060504030201 2a00000000000000 0100000000000000 0000000400000000 \
             03 01 02 01 0000000000000000000000000000000000000000 \
             05000000000000000000000000000000 06000000000000000000000000000000";
        assert_eq!(hex(&block[..144]), birth.replace(' ', ""));
        assert_eq!(hex(&block[240..256]), "14131211000000000700000000000000");
        assert!(block[144..240].iter().chain(&block[256..]).all(|byte| *byte == 0));
    }

    fn of_segment(sealed: Option<u64>) -> Header {
        let segment = Some(SegmentId { volume: VolumeId(0x1112_1314), index: 7 });
        Header { birth: Birth { segment, ..example(None).birth }, sealed }
    }

    #[test]
    fn decoding_gives_what_was_encoded() {
        for sealed in [None, Some(0), Some(8192), Some(1 << 26)] {
            for header in [example(sealed), of_segment(sealed)] {
                assert_eq!(Header::decode(&header.encode()), Ok(Readable { record: header, writable: true }));
            }
        }
        assert_eq!(Header::decode(&[0; 4096]), Err(Unreadable::Blank));
    }

    #[test]
    fn what_cannot_be_is_damaged() {
        let damaged = |at: usize, byte: u8| {
            let mut block = example(Some(8192)).encode();
            let sector = at / 512 * 512;
            match sector < 1024 {
                true => edit(&mut block[sector..sector + 512], at - sector, byte),
                false => block[at] = byte,
            }
            assert_eq!(Header::decode(&block), Err(Unreadable::Damaged), "byte {at}");
        };
        damaged(10, 7); // a kind that does not exist
        damaged(11, 2); // a scheme that does not exist
        damaged(89, 3); // copy 3 of 3
        damaged(90, 4); // more directories than copies
        damaged(91, 2); // an unknown flag
        damaged(80, 1); // half a block of capacity
        damaged(300, 1); // reserved
        damaged(240, 1); // a segment, and nothing says that there is one
        damaged(24, 1); // a segment of volume 0
        let mut of_journal = of_segment(None).encode();
        edit(&mut of_journal[..512], 10, FileKind::Journal as u8);
        assert_eq!(Header::decode(&of_journal), Err(Unreadable::Damaged), "journals belong to engines");
        damaged(512 + 40, 9); // the seal of another file
        damaged(512 + 48, 1); // sealed within a block
        damaged(512 + 54, 1); // sealed beyond the capacity
        damaged(4000, 1); // reserved
        let mut torn = example(Some(8192)).encode();
        torn[600] ^= 1;
        assert_eq!(Header::decode(&torn), Err(Unreadable::Damaged));
        let mut newer = example(None).encode();
        edit(&mut newer[..512], 8, 2);
        assert_eq!(Header::decode(&newer), Err(Unreadable::Newer));
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
