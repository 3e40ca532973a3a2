use base::{Epoch, Generation, SegmentId, SegmentSequence, SnapshotNumber, VolumeId, WriteSequence, WriteStamp};

use super::*;

const PLACE: Place =
    Place { file: FileId(0x1122), incarnation: Incarnation(3), key: 0xfeed_beef_0102_0304, offset: 8192 };

fn record() -> Record {
    Record::Large {
        segment: SegmentId { volume: VolumeId(5), index: 1 },
        epoch: Epoch(1),
        sequence: SegmentSequence(42),
        stamp: WriteStamp { generation: Generation(2), sequence: WriteSequence(77), snapshot: SnapshotNumber(1) },
        block: 16,
        file: FileId(0x1122),
        offset: 12288,
        checksums: vec![1, 2, 3],
    }
}

#[test]
fn golden_bytes() {
    let label = encode(&PLACE, 4096, &record());
    let hex: String = label[..176].iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = concat!(
        "4c764c770100000000000000CCCCCCCC", // magic, version, flags, checksum
        "22110000000000000300000000000000", // file, incarnation
        "00200000000000000010000000000000", // offset, whole through
        "04030201efbeedfe6400000000000000", // key, body length, compatible flags
    );
    let crc = &hex[24..32];
    assert_eq!(hex[..128], expected.replace("CCCCCCCC", crc));
    assert_eq!(crc, "5b755140");
    assert_eq!(label[HEADER_BYTES..HEADER_BYTES + 100], encode_body(&record())[..]);
    assert!(label[HEADER_BYTES + 100..].iter().all(|byte| *byte == 0));
    assert_eq!(decode(&label, &PLACE), Some((record(), 4096)));
}

#[test]
fn a_label_counts_only_where_it_was_written_and_whole() {
    let label = encode(&PLACE, 4096, &record());
    let others = [
        Place { file: FileId(0x1123), ..PLACE },
        Place { incarnation: Incarnation(4), ..PLACE },
        Place { key: 0, ..PLACE },
        Place { offset: 4096, ..PLACE },
    ];
    assert!(others.iter().all(|place| decode(&label, place).is_none()));
    for at in 0..HEADER_BYTES + 100 {
        let mut damaged = AlignedBuf::copy_of(&label);
        damaged[at] ^= 0x10;
        // The compatible flags are not looked at, but the checksum is over them, too.
        assert!(decode(&damaged, &PLACE).is_none(), "byte {at}");
    }
    assert!(decode(&[0; 4096], &PLACE).is_none() && decode(&label[..100], &PLACE).is_none());
}
