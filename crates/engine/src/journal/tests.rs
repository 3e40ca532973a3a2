use base::checksum::crc32c;
use base::io::fragment_checksums;
use base::{
    AlignedBuf, BLOCK, Bytes, Epoch, ErrorKind, FileId, Generation, Incarnation, LogSequence, Prng, SECTOR, SegmentId,
    SegmentSequence, SnapshotNumber, VolumeId, WriteSequence, WriteStamp,
};

use super::batch::{Batch, Place, Submitted};
use super::format::{AppendHeader, HEADER_LEN, decode_records};
use super::{JournalRecord, Operation};

const FILE: FileId = FileId(0x1122);

const PLACE: Place = Place {
    file: FILE,
    incarnation: Incarnation(3),
    log: 1,
    ordinal: 2,
    base: LogSequence(40),
    sequence: LogSequence(47),
    durable_through: LogSequence(45),
    offset: 0x5000,
};

fn write(offset: u64, data: Vec<u8>) -> JournalRecord {
    let segment = SegmentId { volume: VolumeId(0x0a0b), index: 5 };
    let stamp = WriteStamp { generation: Generation(2), sequence: WriteSequence(0x0c0d), snapshot: SnapshotNumber(9) };
    JournalRecord {
        segment,
        epoch: Epoch(1),
        sequence: SegmentSequence(0x0e0f),
        stamp,
        offset,
        len: data.len() as u64,
        operation: Operation::Write { checksums: fragment_checksums(segment, offset, &data), data: data.into() },
    }
}

fn discard(offset: u64, len: u64) -> JournalRecord {
    JournalRecord { offset, len, operation: Operation::Discard, ..write(0, vec![0; 512]) }
}

/// A write over a block boundary, a discard, a write of one sector.
fn samples() -> Vec<JournalRecord> {
    vec![write(3584, vec![0x5a; 1024]), discard(1 << 30, 1 << 20), write(8192, vec![1; 512])]
}

fn encode(records: &[JournalRecord]) -> Bytes {
    let submitted = records.iter().map(|record| Submitted::new(record.clone(), drop)).collect();
    Batch::new(submitted).encode(&PLACE)
}

fn decode(bytes: &Bytes) -> Result<Vec<JournalRecord>, String> {
    let header = AppendHeader::decode(bytes, FILE).map_err(|error| error.message)?;
    let header = header.ok_or_else(|| "no header".to_owned())?;
    if header.len != bytes.len() as u64 {
        return Err("another length".to_owned());
    }
    decode_records(&header, bytes)
}

/// Changes bytes of an append and makes its checksums right again.
fn forge(bytes: &Bytes, change: impl FnOnce(&mut [u8])) -> Bytes {
    let mut forged = AlignedBuf::copy_of(bytes);
    change(&mut forged);
    let headers_len = u32::from_le_bytes(forged[92..96].try_into().unwrap()) as usize;
    let records = crc32c(&forged[HEADER_LEN..headers_len.clamp(HEADER_LEN, bytes.len())]);
    forged[12..16].copy_from_slice(&records.to_le_bytes());
    let checked = [&forged[..8], &forged[12..HEADER_LEN]].concat();
    let checksum = crc32c(&checked);
    forged[8..12].copy_from_slice(&checksum.to_le_bytes());
    forged.freeze()
}

#[test]
fn what_is_encoded_is_decoded() {
    let mut prng = Prng::new(7);
    for _ in 0..300 {
        let records: Vec<JournalRecord> = (0..prng.below(20))
            .map(|_| {
                let (offset, sectors) = (prng.below(1 << 20) * SECTOR, prng.between(1, 30));
                match prng.one_in(4) {
                    true => discard(offset, sectors * SECTOR),
                    false => {
                        let mut data = vec![0; (sectors * SECTOR) as usize];
                        prng.fill(&mut data);
                        write(offset, data)
                    }
                }
            })
            .collect();
        let bytes = encode(&records);
        assert!((bytes.len() as u64).is_multiple_of(BLOCK));
        let header = AppendHeader::decode(&bytes, FILE).unwrap().unwrap();
        assert_eq!((header.file, header.incarnation, header.log, header.ordinal), (FILE, Incarnation(3), 1, 2));
        assert_eq!((header.base.0, header.sequence.0, header.durable_through.0), (40, 47, 45));
        assert_eq!((header.offset, header.len), (0x5000, bytes.len() as u64));
        assert_eq!(decode(&bytes).unwrap(), records);
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let bytes = encode(&samples());
    let header = AppendHeader::decode(&bytes, FILE).unwrap().unwrap();
    let content = (header.headers_len + header.data_len) as usize;
    for bit in 0..content * 8 {
        let mut flipped = AlignedBuf::copy_of(&bytes);
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&flipped.freeze()).is_err(), "bit {bit}");
    }
    // What follows is padding, which says nothing.
    let mut padded = AlignedBuf::copy_of(&bytes);
    padded[content] ^= 1;
    assert_eq!(decode(&padded.freeze()).unwrap(), samples());
}

#[test]
fn zeros_other_files_and_prefixes_are_nothing() {
    let bytes = encode(&samples());
    assert_eq!(AppendHeader::decode(&[0; 4096], FileId(0)).unwrap(), None);
    assert_eq!(AppendHeader::decode(&bytes, FileId(0x1123)).unwrap(), None);
    assert!((0..HEADER_LEN).all(|len| AppendHeader::decode(&bytes[..len], FILE).unwrap().is_none()));
}

#[test]
fn later_versions_are_refused_not_taken_for_torn() {
    let bytes = encode(&samples());
    // Version, kind, an incompatible feature, a compressed append.
    for at in [16, 18, 20, 104] {
        let later = forge(&bytes, |bytes| bytes[at] ^= 4);
        let error = AppendHeader::decode(&later, FILE).unwrap_err();
        assert!(error.kind == ErrorKind::Invalid && error.message.contains("newer version"), "{error}");
        assert_eq!(AppendHeader::decode(&later, FileId(1)).unwrap(), None, "of a file's earlier life");
    }
    // Features that do not concern a reader.
    for at in [24, 28] {
        let compatible = forge(&bytes, |bytes| bytes[at] ^= 4);
        assert_eq!(decode(&compatible).unwrap(), samples());
    }
}

#[test]
fn nonsense_with_right_checksums_is_an_error() {
    let bytes = encode(&samples());
    let headers_len = AppendHeader::decode(&bytes, FILE).unwrap().unwrap().headers_len as usize;
    let mut prng = Prng::new(1);
    let mut refused = 0;
    for _ in 0..20_000 {
        let forged = forge(&bytes, |bytes| {
            for _ in 0..prng.between(1, 4) {
                // The header's fields from the lengths on, and the record headers.
                let at = prng.between(80, headers_len as u64 - 1) as usize;
                bytes[at] = prng.next_u64() as u8;
            }
        });
        refused += u32::from(decode(&forged).is_err());
    }
    assert!(refused > 10_000, "{refused}");
}

#[test]
fn a_record_for_each_way_to_be_wrong() {
    let bytes = encode(&samples());
    let first = HEADER_LEN;
    let cases: [(&str, usize, u8); 8] = [
        ("header length", first, 1),
        ("operation", first + 2, 9),
        ("reserved byte", first + 3, 1),
        ("algorithm", first + 52, 1),
        ("key", first + 56, 1),
        ("stored length", first + 60, 3),
        ("an offset beyond the segment", first + 69, 0xff),
        ("length", first + 72, 7),
    ];
    for (what, at, value) in cases {
        let forged = forge(&bytes, |bytes| bytes[at] = value);
        assert!(decode(&forged).unwrap_err().contains("record 0"), "{what}");
    }
}

/// The bytes of format 1. If this fails without a decision to change the format, stores in the field become unreadable.
#[test]
fn golden() {
    let bytes = encode(&samples());
    let mut text = String::new();
    let used = bytes.len() - bytes.iter().rev().take_while(|byte| **byte == 0).count();
    for line in bytes[..used].chunks(32) {
        line.iter().for_each(|byte| text.push_str(&format!("{byte:02x}")));
        text.push('\n');
    }
    assert_eq!(text, include_str!("golden.txt"), "\n{text}");
}
