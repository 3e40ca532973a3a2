//! The superblock of a directory: whose it is, which directories the store consists of, and the counters that only
//! grow. docs/formats/files.md describes every byte.
//!
//! A directory has one file `superblock` with two slots of 4 KiB. An update goes to the slot that holds the older
//! content, so that a torn update leaves the newer one of before; the valid slot with the higher sequence counts.

use std::fmt::{self, Display, Formatter};

use base::{BLOCK, DirectoryId, Incarnation, StoreId};

use crate::layout::{self, INCOMPATIBLE_AT, Readable, SHARDED, Unreadable, get, get_u64, get_u128, put};

/// Most directories of one store.
pub const MEMBERS_MAX: usize = 32;
/// Most starts without missing directories that a store remembers.
pub const LINEAGES_MAX: usize = 8;
/// Bytes of one slot.
pub(crate) const SLOT: u64 = BLOCK;
/// Slots of a superblock file.
pub(crate) const SLOTS: u64 = 2;

const MAGIC: [u8; 8] = *b"LEVEEDIR";
const COUNTS_AT: usize = 120;
const SHARD_AT: usize = 122;
const LINEAGES_AT: usize = 128;
const MEMBERS_AT: usize = 192;
const MEMBER_SIZE: usize = 120;
/// Bytes of a member's path that are kept: its end, which tells more than its beginning.
const PATH_MAX: usize = MEMBER_SIZE - 17;

const _: () = assert!(MEMBERS_AT == LINEAGES_AT + 8 * LINEAGES_MAX);
const _: () = assert!(MEMBERS_AT + MEMBERS_MAX * MEMBER_SIZE <= SLOT as usize, "the members fit one slot");

/// Which part of a store: the segments of one loop, with files of their own. Each shard is a store to the file layer,
/// with directories and members of its own; what they share is the store's id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shard {
    /// Which, from 0.
    pub index: u8,
    /// How many there are.
    pub count: u8,
}

impl Shard {
    /// A store with one loop.
    pub const WHOLE: Shard = Shard { index: 0, count: 1 };

    /// All shards of a store that has so many.
    pub fn all(count: u8) -> impl Iterator<Item = Shard> {
        (0..count).map(move |index| Shard { index, count })
    }
}

impl Display for Shard {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "shard {} of {}", self.index, self.count)
    }
}

/// A directory that belongs to the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Which.
    pub id: DirectoryId,
    /// Where it was when this was written, for a person; perhaps only the end of the path.
    pub path: String,
}

/// What all directories of a store agree on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreRecord {
    /// The store.
    pub store: StoreId,
    /// Which part of it these directories hold.
    pub shard: Shard,
    /// Grows with each change of the members. 0: this directory was never part of a store.
    pub generation: u64,
    /// The number of the last life that wrote.
    pub incarnation: Incarnation,
    /// File ids from here on were never given out.
    pub next_file: u64,
    /// Grows with each publication, from life to life.
    pub publication: u64,
    /// A publication that every member knew when this record was made. A member that does not know it was put back to
    /// an older state.
    pub agreed_publication: u64,
    /// A random number for the birth of the store and for each start that left members behind, the newest last. A
    /// directory whose newest is unknown elsewhere went a way of its own.
    pub lineages: Vec<u64>,
    /// The directories that hold all that was confirmed.
    pub members: Vec<Member>,
}

/// One slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The number of this update of this directory.
    pub sequence: u64,
    /// The directory.
    pub directory: DirectoryId,
    /// What it says about the store.
    pub record: StoreRecord,
}

impl StoreRecord {
    /// Whether `directory` is one of the members.
    pub fn has_member(&self, directory: DirectoryId) -> bool {
        self.members.iter().any(|member| member.id == directory)
    }
}

impl Superblock {
    /// Where the next update of a superblock that is now at `sequence` goes.
    pub(crate) fn slot_offset(sequence: u64) -> u64 {
        slot_of(sequence) * SLOT
    }

    /// The bytes of one slot.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let record = &self.record;
        assert!(record.members.len() <= MEMBERS_MAX && record.lineages.len() <= LINEAGES_MAX);
        let mut slot = vec![0; SLOT as usize];
        put(&mut slot, 40, self.sequence.to_le_bytes());
        put(&mut slot, 48, record.store.0.to_le_bytes());
        put(&mut slot, 64, self.directory.0.to_le_bytes());
        put(&mut slot, 80, record.generation.to_le_bytes());
        put(&mut slot, 88, record.incarnation.0.to_le_bytes());
        put(&mut slot, 96, record.next_file.to_le_bytes());
        put(&mut slot, 104, record.publication.to_le_bytes());
        put(&mut slot, 112, record.agreed_publication.to_le_bytes());
        put(&mut slot, COUNTS_AT, [record.lineages.len() as u8, record.members.len() as u8]);
        if record.shard != Shard::WHOLE {
            put(&mut slot, SHARD_AT, [record.shard.index, record.shard.count]);
            put(&mut slot, INCOMPATIBLE_AT, SHARDED.to_le_bytes());
        }
        for (index, lineage) in record.lineages.iter().enumerate() {
            put(&mut slot, LINEAGES_AT + 8 * index, lineage.to_le_bytes());
        }
        for (index, member) in record.members.iter().enumerate() {
            let at = MEMBERS_AT + MEMBER_SIZE * index;
            let path = path_end(&member.path).as_bytes();
            put(&mut slot, at, member.id.0.to_le_bytes());
            slot[at + 16] = path.len() as u8;
            slot[at + 17..at + 17 + path.len()].copy_from_slice(path);
        }
        layout::close(&mut slot, MAGIC);
        slot
    }

    /// Reads one slot.
    pub(crate) fn decode(slot: &[u8]) -> Result<Readable<Superblock>, Unreadable> {
        layout::open(slot, MAGIC, decode_fields, Superblock::encode)
    }

    /// The newest valid slot of a superblock file. A newer program's slot decides even beside a valid one.
    pub(crate) fn choose(file: &[u8]) -> Result<Readable<Superblock>, Unreadable> {
        let slots = file.chunks_exact(SLOT as usize).map(Superblock::decode).collect::<Vec<_>>();
        if slots.contains(&Err(Unreadable::Newer)) {
            return Err(Unreadable::Newer);
        }
        let blank = slots.iter().all(|slot| *slot == Err(Unreadable::Blank));
        let newest = newest_slot(slots.into_iter().flatten(), |slot| slot.record.sequence);
        newest.ok_or(if blank { Unreadable::Blank } else { Unreadable::Damaged })
    }
}

/// Which slot the next update of a superblock goes to that is at `sequence` then: the one with the older content.
pub fn slot_of(sequence: u64) -> u64 {
    sequence % SLOTS
}

/// Which of the valid slots counts.
pub fn newest_slot<T>(slots: impl Iterator<Item = T>, sequence: impl Fn(&T) -> u64) -> Option<T> {
    slots.max_by_key(sequence)
}

fn decode_fields(slot: &[u8]) -> Option<Superblock> {
    let [lineages, members] = get::<2>(slot, COUNTS_AT);
    if lineages as usize > LINEAGES_MAX || members as usize > MEMBERS_MAX {
        return None;
    }
    let shard = match get::<2>(slot, SHARD_AT) {
        [0, 0] => Shard::WHOLE,
        [index, count] if count > 1 && index < count => Shard { index, count },
        _ => return None,
    };
    let member = |index: usize| {
        let at = MEMBERS_AT + MEMBER_SIZE * index;
        let len = slot[at + 16] as usize;
        let path = slot.get(at + 17..at + 17 + len.min(PATH_MAX))?;
        Some(Member { id: DirectoryId(get_u128(slot, at)), path: String::from_utf8(path.to_vec()).ok()? })
    };
    Some(Superblock {
        sequence: get_u64(slot, 40),
        directory: DirectoryId(get_u128(slot, 64)),
        record: StoreRecord {
            store: StoreId(get_u128(slot, 48)),
            shard,
            generation: get_u64(slot, 80),
            incarnation: Incarnation(get_u64(slot, 88)),
            next_file: get_u64(slot, 96),
            publication: get_u64(slot, 104),
            agreed_publication: get_u64(slot, 112),
            lineages: (0..lineages as usize).map(|index| get_u64(slot, LINEAGES_AT + 8 * index)).collect(),
            members: (0..members as usize).map(member).collect::<Option<_>>()?,
        },
    })
}

/// The end of a path, cut at a character.
pub(crate) fn path_end(path: &str) -> &str {
    let start = (path.len().saturating_sub(PATH_MAX)..path.len()).find(|at| path.is_char_boundary(*at));
    &path[start.unwrap_or(path.len())..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::edit;

    fn example() -> Superblock {
        Superblock {
            sequence: 0x0102_0304_0506_0708,
            directory: DirectoryId(0x1111_2222_3333_4444_5555_6666_7777_8888),
            record: StoreRecord {
                store: StoreId(0xaaaa_bbbb_cccc_dddd_eeee_ffff_0000_1111),
                shard: Shard::WHOLE,
                generation: 3,
                incarnation: Incarnation(42),
                next_file: 1025,
                publication: 0x305,
                agreed_publication: 0x304,
                lineages: vec![0xfeed, 0xbeef],
                members: vec![
                    Member { id: DirectoryId(0x1111_2222_3333_4444_5555_6666_7777_8888), path: "/srv/a".into() },
                    Member { id: DirectoryId(9), path: format!("/{}", "é".repeat(80)) },
                ],
            },
        }
    }

    #[test]
    fn golden_bytes() {
        let slot = example().encode();
        assert_eq!(slot.len(), 4096);
        let start = "4c45564545444952 0100 0000 c46622e2 0000000000000000 0000000000000000 0000000000000000 \
             0807060504030201 11110000ffffeeeeddddccccbbbbaaaa 88887777666655554444333322221111 \
             0300000000000000 2a00000000000000 0104000000000000 0503000000000000 0403000000000000 0202 000000000000 \
             edfe000000000000 efbe000000000000";
        assert_eq!(hex(&slot[..144]), start.replace(' ', ""));
        assert!(slot[144..192].iter().all(|byte| *byte == 0));
        assert_eq!(hex(&slot[192..215]), "88887777666655554444333322221111062f7372762f61");
        assert_eq!((slot[312], slot[328] as usize), (9, 102), "51 two-byte characters are the end of the path");
    }

    #[test]
    fn decoding_gives_what_was_encoded() {
        let mut expected = example();
        expected.record.members[1].path = "é".repeat(51);
        let slot = example().encode();
        assert_eq!(Superblock::decode(&slot), Ok(Readable { record: expected, writable: true }));
        let mut reserved = slot.clone();
        edit(&mut reserved, 4095, 1);
        assert_eq!(Superblock::decode(&reserved), Err(Unreadable::Damaged));
        let mut crowded = slot;
        edit(&mut crowded, 121, 33);
        assert_eq!(Superblock::decode(&crowded), Err(Unreadable::Damaged));
    }

    #[test]
    fn golden_bytes_of_a_shard() {
        let mut shard = example();
        shard.record.shard = Shard { index: 2, count: 4 };
        let slot = shard.encode();
        let whole = example().encode();
        let changed: Vec<(usize, u8)> =
            (0..slot.len()).filter(|at| slot[*at] != whole[*at]).map(|at| (at, slot[at])).collect();
        assert_eq!(
            changed.iter().filter(|(at, _)| !(12..16).contains(at)).collect::<Vec<_>>(),
            [&(32, 1), &(122, 2), &(123, 4)]
        );
        let mut expected = shard.clone();
        expected.record.members[1].path = "é".repeat(51);
        assert_eq!(Superblock::decode(&slot), Ok(Readable { record: expected, writable: true }));
        for (at, byte) in [(122, 4), (123, 1), (123, 0), (32, 0)] {
            let mut wrong = slot.clone();
            edit(&mut wrong, at, byte);
            assert_eq!(Superblock::decode(&wrong), Err(Unreadable::Damaged), "{byte} at {at}");
        }
    }

    #[test]
    fn the_newest_valid_slot_counts() {
        let at = |sequence| Superblock { sequence, ..example() }.encode();
        let choose = |a: &[u8], b: &[u8]| Superblock::choose(&[a, b].concat()).map(|slot| slot.record.sequence);
        let blank = vec![0; SLOT as usize];
        assert_eq!(choose(&at(4), &at(5)), Ok(5));
        assert_eq!(choose(&at(6), &at(5)), Ok(6));
        let mut torn = at(6);
        torn[2048..].fill(7);
        assert_eq!(choose(&torn, &at(5)), Ok(5));
        assert_eq!(choose(&blank, &at(1)), Ok(1));
        assert_eq!(choose(&torn, &torn), Err(Unreadable::Damaged));
        assert_eq!(choose(&blank, &blank), Err(Unreadable::Blank));
        let mut newer = at(5);
        edit(&mut newer, 32, 2);
        assert_eq!(choose(&at(6), &newer), Err(Unreadable::Newer));
        assert_ne!(Superblock::slot_offset(6), Superblock::slot_offset(5));
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
