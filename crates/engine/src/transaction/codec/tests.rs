use base::SegmentId;

use super::*;

pub(super) const HEADER: Header = Header {
    file: FileId(0x1122),
    incarnation: Incarnation(3),
    sequence: LogSequence(9),
    durable_through: LogSequence(7),
    index: 2,
};

fn segment(index: u32) -> SegmentId {
    SegmentId { volume: VolumeId(5), index }
}

fn table(file: u64) -> TableInfo {
    TableInfo {
        file: FileId(file),
        leaves: 1,
        entries: 2,
        tombstones: 1,
        data_files: 1,
        first_block: 7,
        end_block: 9,
        moves_max: 0,
        sequence_min: SegmentSequence(1),
        sequence_max: SegmentSequence(2),
        quiet: true,
    }
}

/// One record of every kind.
pub(super) fn samples() -> Vec<Record> {
    let entries = vec![
        Entry::data(7, SegmentSequence(40), FileId(12), 8192, 0xdead_beef),
        Entry::zeros(8, 100, SegmentSequence(41)),
        Entry::data(200, SegmentSequence(3), FileId(12), 4096, 1).relocated(FileId(13), 0),
    ];
    vec![
        Record::Dump {
            segment: segment(0),
            epoch: Epoch(1),
            through: SegmentSequence(41),
            replay: Some(JournalPosition { file: FileId(3), offset: 8192, sequence: LogSequence(17) }),
            entries: entries.clone(),
        },
        Record::Large {
            segment: segment(1),
            epoch: Epoch(1),
            sequence: SegmentSequence(42),
            stamp: WriteStamp { generation: Generation(2), sequence: WriteSequence(77), snapshot: SnapshotNumber(1) },
            block: 16,
            file: FileId(12),
            offset: 12288,
            checksums: vec![1, 2, 3],
        },
        Record::Relocate { segment: segment(2), epoch: Epoch(1), entries: vec![entries[2]] },
        Record::TableSet {
            segment: segment(0),
            added: vec![table(20)],
            removed: vec![FileId(18), FileId(19)],
            covers: LogSequence(6),
        },
        Record::DataFile { segment: segment(0), file: FileId(12) },
        Record::DropFile { segment: segment(0), file: FileId(11) },
        Record::DropVolume { volume: VolumeId(4) },
        Record::Checkpoint(Checkpoint {
            label_key: Some(0x1234_5678_9abc_def0),
            from: LogSequence(6),
            decided_through: LogSequence(5),
            replay: None,
            rejected: vec![LogSequence(4)],
            dropped: vec![VolumeId(4)],
            dumped_journals: vec![FileId(7)],
            segments: vec![held(Tenure::default())],
            released: None,
        }),
        Record::DropJournal { file: FileId(7) },
        Record::Create { segment: segment(3), epoch: Epoch((2 << 32) | 5), generation: Generation(6) },
        Record::Adopt { source: Incarnation(2), segment: held(TENURE) },
        Record::Release(held(TENURE)),
        Record::Attach { volume: VolumeId(5), generation: Generation(7) },
        Record::DropSegment { segment: segment(3), epoch: Epoch(8) },
        Record::Checkpoint(Checkpoint {
            label_key: Some(1),
            from: LogSequence(6),
            decided_through: LogSequence(5),
            segments: vec![SegmentCheckpoint::empty(segment(3), TENURE, LogSequence(6))],
            released: Some(vec![held(TENURE)]),
            ..Checkpoint::default()
        }),
    ]
}

const TENURE: Tenure = Tenure { epoch: Epoch((1 << 32) | 9), generation: Generation(4) };

fn held(tenure: Tenure) -> SegmentCheckpoint {
    SegmentCheckpoint {
        segment: segment(0),
        tenure,
        next: SegmentSequence(43),
        dumped_through: SegmentSequence(41),
        last_large: SegmentSequence(42),
        tables: SegmentTables { tables: vec![table(20)], covers: LogSequence(6) },
        data_files: vec![(FileId(12), 24576)],
    }
}

fn encoded(record: &Record) -> AlignedBuf {
    encode(&HEADER, kind_of(record), &encode_body(record))
}

#[test]
fn every_kind_survives() {
    for record in samples() {
        let bytes = encoded(&record);
        assert_eq!(bytes.len() as u64, padded_len(encode_body(&record).len()));
        assert_eq!(decode(&bytes, HEADER.file).unwrap(), Some((HEADER, record.clone(), bytes.len() as u64)));
        assert_eq!(decode(&bytes, FileId(0x1123)).unwrap(), None, "a record of another file");
    }
}

/// Fails when a byte of the format changes by accident. Change it on purpose together with
/// `docs/formats/transaction.md` and the version.
#[test]
fn golden() {
    let all: Vec<u8> = samples().iter().flat_map(|record| encoded(record).to_vec()).collect();
    let dump = encoded(&samples()[0]);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&dump[..64]), GOLDEN_HEADER);
    assert_eq!(hex(&dump[64..256]), GOLDEN_DUMP);
    assert_eq!(all.len(), 15 * 4096);
    // A log whose segments stay where they are is as it was before any could move.
    assert_eq!(base::checksum::crc32c(&all[..9 * 4096]), GOLDEN_CRC);
    assert_eq!(base::checksum::crc32c(&all[9 * 4096..]), GOLDEN_CRC_OF_OWNERSHIP);
}

const GOLDEN_HEADER: &str = "4c76547801000100000000007ec2909a2211000000000000030000000000000009000000000000000700000000000000\
    d0000000000000000000000002000000";
const GOLDEN_DUMP: &str = "050000000000000000000000000000000100000000000000290000000000000003000000000000000020000000000000\
    110000000000000003000000000000000700000001000000280000000000000000000000010000000c00000000000000\
    0020000000000000efbeadde001000000800000064000000290000000000000000000000020000000000000000000000\
    00000000000000000000000000000000c800000001000000030000000000000001000000010000000d00000000000000";
const GOLDEN_CRC: u32 = 0x8fb0_416f;
const GOLDEN_CRC_OF_OWNERSHIP: u32 = 0x66e2_2c7a;

/// What versions without labels wrote: no flag, and no key in front.
#[test]
fn a_checkpoint_without_labels_is_read() {
    let found = samples().into_iter().find(|record| matches!(record, Record::Checkpoint(_)));
    let Some(Record::Checkpoint(checkpoint)) = found else { panic!("a checkpoint is among the samples") };
    let record = Record::Checkpoint(checkpoint.clone());
    let old = encode(&HEADER, Kind { incompatible: 0, ..kind_of(&record) }, &encode_body(&record)[8..]);
    let (_, read, _) = decode(&old, HEADER.file).unwrap().expect("it is whole");
    assert_eq!(read, Record::Checkpoint(Checkpoint { label_key: None, ..checkpoint }));
}

#[test]
fn zeros_and_prefixes_are_nothing() {
    assert_eq!(decode(&[0; 4096], HEADER.file).unwrap(), None);
    for record in samples() {
        let bytes = encoded(&record);
        let used = HEADER_BYTES + encode_body(&record).len();
        assert!((0..used).step_by(7).all(|len| decode(&bytes[..len], HEADER.file).unwrap().is_none()));
    }
}

/// What a later version wrote is refused, not cut off like a torn record.
#[test]
fn later_versions_are_refused() {
    let record = &samples()[4];
    for (at, value) in [(4, 2), (6, 99), (8, 1), (56, 1), (60, 9)] {
        let mut bytes = encoded(record).to_vec();
        bytes[at] = value;
        bytes[CRC_AT..CRC_AT + 4].fill(0);
        let used = HEADER_BYTES + encode_body(record).len();
        let crc = base::checksum::crc32c(&bytes[..used]);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        let error = decode(&bytes, HEADER.file).unwrap_err();
        assert!(error.message.contains("later version"), "byte {at}: {error}");
    }
}
