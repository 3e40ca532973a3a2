//! Fuzz targets of superblocks and file headers: edits, with the checksum made right again.

use base::checksum::crc32c;
use base::{DirectoryId, Epoch, FileId, Incarnation, Prng, SegmentId, StoreId, VolumeId};

use super::header::{Birth, COPIES_MAX, Header};
use super::superblock::{Member, SLOT, Shard, StoreRecord, Superblock};
use crate::FileKind;
use crate::layout::Unreadable;

/// A seed of something valid, and edits of it.
type Edits = (u64, Vec<(u16, u8)>);

/// A seed of something valid, edits of it, and noise.
type Input = (u64, Vec<(u16, u8)>, Vec<u8>);

fn superblock(prng: &mut Prng) -> Superblock {
    let member = |prng: &mut Prng| Member {
        id: DirectoryId(u128::from(prng.next_u64())),
        path: format!("/disk{}/{}", prng.below(9), "é".repeat(prng.below(40) as usize)),
    };
    Superblock {
        sequence: prng.below(100),
        directory: DirectoryId(7),
        record: StoreRecord {
            store: StoreId(9),
            shard: *prng.pick(&[Shard::WHOLE, Shard { index: 1, count: 2 }, Shard { index: 7, count: 8 }]),
            generation: prng.below(10),
            incarnation: Incarnation(prng.below(100)),
            next_file: prng.next_u64(),
            publication: prng.next_u64(),
            agreed_publication: prng.below(50),
            lineages: (0..prng.below(9)).collect(),
            members: (0..prng.below(33)).map(|_| member(prng)).collect(),
        },
    }
}

fn header(prng: &mut Prng) -> Header {
    let copies_wanted = prng.between(1, COPIES_MAX as u64) as u8;
    let capacity = prng.between(1, 100) * 4096;
    let kind = *prng.pick(&FileKind::ALL);
    let segment = SegmentId { volume: VolumeId(prng.between(1, 99)), index: prng.below(9) as u32 };
    let birth = Birth {
        store: StoreId(9),
        file: FileId(prng.between(1, 99)),
        kind,
        incarnation: Incarnation(prng.below(99)),
        epoch: Epoch(1),
        segment: (kind.is_of_segment() && prng.one_in(2)).then_some(segment),
        capacity,
        copies_wanted,
        copy: prng.below(u64::from(copies_wanted)) as u8,
        prepared: prng.one_in(2),
        directories: (0..prng.below(u64::from(copies_wanted) + 1)).map(|id| DirectoryId(id.into())).collect(),
    };
    Header { birth, sealed: prng.one_in(2).then(|| prng.below(capacity / 4096) * 4096) }
}

/// Makes the checksum of a record right.
fn reseal(record: &mut [u8]) {
    record[12..16].fill(0);
    let sum = crc32c(record);
    record[12..16].copy_from_slice(&sum.to_le_bytes());
}

/// Applies edits, mostly where the fields are.
fn edit(bytes: &mut [u8], edits: &[(u16, u8)], prng: &mut Prng) {
    let region = if prng.one_in(2) { bytes.len() } else { 256 };
    let count = if prng.one_in(2) { 1 } else { edits.len() };
    edits.iter().take(count).for_each(|(at, value)| bytes[usize::from(*at) % region] ^= value);
}

#[test]
fn a_superblock_is_refused_or_means_what_it_says() {
    let mut accepted = 0;
    bolero::check!().with_iterations(20_000).with_type().for_each(|(seed, edits, noise): &Input| {
        let mut prng = Prng::new(*seed);
        let mut other = vec![0; SLOT as usize];
        let len = noise.len().min(other.len());
        other[..len].copy_from_slice(&noise[..len]);
        let slot = superblock(&mut prng).encode();
        let chosen = Superblock::choose(&[&slot[..], &other].concat()).expect("the valid slot counts");
        assert_eq!(chosen.record.encode(), slot);
        let mut bytes = slot.clone();
        edit(&mut bytes, edits, &mut prng);
        if bytes != slot {
            assert_eq!(Superblock::decode(&bytes), Err(Unreadable::Damaged), "an edit is noticed");
        }
        reseal(&mut bytes);
        if let Ok(found) = Superblock::decode(&bytes) {
            accepted += 1;
            // With an unknown feature it is looked at only, and may have more in it.
            assert!(!found.writable || found.record.encode() == bytes);
        }
    });
    assert!(accepted > 0, "nothing was ever accepted: the target tests nothing");
}

#[test]
fn a_header_is_refused_or_means_what_it_says() {
    let mut accepted = 0;
    bolero::check!().with_iterations(20_000).with_type().for_each(|(seed, edits): &Edits| {
        let mut prng = Prng::new(*seed);
        let header = header(&mut prng);
        let block = header.encode();
        assert_eq!(Header::decode(&block).map(|found| found.record), Ok(header));
        let mut bytes = block.clone();
        let len = if prng.one_in(4) { 4096 } else { 1024 };
        edit(&mut bytes[..len], edits, &mut prng);
        if bytes != block {
            assert!(Header::decode(&bytes).is_err(), "an edit is noticed");
        }
        let (birth, rest) = bytes.split_at_mut(512);
        reseal(birth);
        if rest[..512].iter().any(|byte| *byte != 0) {
            reseal(&mut rest[..512]);
        }
        if let Ok(found) = Header::decode(&bytes) {
            accepted += 1;
            assert!(!found.writable || found.record.encode() == bytes);
        }
    });
    assert!(accepted > 0, "nothing was ever accepted: the target tests nothing");
}
