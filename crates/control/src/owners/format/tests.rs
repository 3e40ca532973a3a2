//! Golden bytes of every change.

use super::*;
use crate::table::{self, Row, VolumeState};

pub(in crate::owners) const FILE: FileId = FileId(0x1122);

pub(in crate::owners) fn header(sequence: u64) -> Header {
    Header {
        file: FILE,
        incarnation: Incarnation(7),
        sequence: LogSequence(sequence),
        durable_through: LogSequence(sequence - 1),
        term: Term(3),
    }
}

/// One of each, in an order in which they follow on each other.
pub(in crate::owners) fn changes() -> Vec<Change> {
    let (volume, generation, server) = (VolumeId(5), Generation(9), "s-1".to_owned());
    let segment = SegmentId { volume, index: 2 };
    let [one, two] = [Incarnation(11), Incarnation(12)];
    let epoch = |counter| Epoch::of(Term(3), counter);
    vec![
        Change::Term(Term(3)),
        Change::Floor { engine: Incarnation(10), epoch: Epoch::of(Term(2), 6) },
        Change::Engine { engine: one, server: server.clone() },
        Change::Engine { engine: two, server: server.clone() },
        Change::Drain { server: server.clone(), is_drained: true },
        Change::Drain { server, is_drained: false },
        Change::Create { volume, segments: 4 },
        Change::Attach { volume, generation },
        Change::Attached { volume, generation },
        Change::Assign { segment, epoch: epoch(1), engine: one },
        Change::Revoke { segment, epoch: epoch(1) },
        Change::Assign { segment, epoch: epoch(2), engine: one },
        Change::Adopted { segment, epoch: epoch(2) },
        Change::Released { segment, epoch: epoch(2) },
        Change::Assign { segment, epoch: epoch(3), engine: two },
        Change::Adopted { segment, epoch: epoch(3) },
        Change::Declare(one),
        Change::Fenced(one),
        Change::Recoverer { dead: one, recoverer: two },
        Change::Recovered(one),
        Change::Delete(one),
        Change::Drop(volume),
        Change::Dropped { segment, epoch: epoch(3) },
        Change::Dropped { segment: SegmentId { volume, index: 0 }, epoch: Epoch(0) },
        Change::Dropped { segment: SegmentId { volume, index: 1 }, epoch: Epoch(0) },
        Change::Dropped { segment: SegmentId { volume, index: 3 }, epoch: Epoch(0) },
        Change::Forget(volume),
    ]
}

/// Those of the volume table.
pub(in crate::owners) fn of_volumes() -> Vec<Entry> {
    let row = Row {
        id: VolumeId(6),
        name: "vm-1".into(),
        size: 10 << 30,
        data_sector_bytes: 128 << 10,
        owner: "ops".into(),
        created_wall_ms: 1_700_000_000_000,
        generation: Generation(0),
        state: VolumeState::Active,
        levels: base::levels::Levels::default(),
        forwarding: wire::Forwarding::default(),
    };
    vec![
        Entry::Volumes(table::Change::Create(row)),
        Entry::Volumes(table::Change::MarkDeleted(VolumeId(6))),
        Entry::NextVolume(VolumeId(9)),
    ]
}

pub(in crate::owners) fn entries() -> Vec<Entry> {
    changes().into_iter().map(Entry::Owners).chain(of_volumes()).collect()
}

pub(super) fn record() -> Record {
    Record { header: header(42), kind: Kind::Changes, changes: entries() }
}

#[test]
fn what_is_written_is_read() {
    for kind in [Kind::Checkpoint, Kind::Changes] {
        let record = Record { kind, ..record() };
        let bytes = encode(&record);
        assert!(bytes.len().is_multiple_of(4096));
        let Found::Record(again, len) = decode(FILE, &bytes).unwrap() else { panic!("{bytes:?}") };
        assert_eq!((again, len), (record, bytes.len() as u64));
    }
}

#[test]
fn the_bytes_stay_as_documented() {
    let bytes = encode(&record());
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    let mut lines = vec![hex(&bytes[..HEADER])];
    let mut one = vec![];
    for entry in entries() {
        one.clear();
        put_entry(&mut one, &entry);
        lines.push(hex(&one));
    }
    let used = HEADER + (lines[1..].concat().len() / 2);
    assert_eq!(hex(&bytes[..used]), lines.concat());
    assert!(bytes[used..].iter().all(|byte| *byte == 0));
    let expected = include_str!("golden.txt");
    assert_eq!(lines.join("\n"), expected.trim_end(), "docs/formats/owners.md says what they are");
}

#[test]
fn zeros_another_file_and_any_flipped_bit_do_not_validate() {
    assert!(matches!(decode(FILE, &[0; 4096]), Ok(Found::Nothing)));
    let bytes = encode(&record());
    assert!(matches!(decode(FileId(0x1123), &bytes), Ok(Found::Nothing)));
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(matches!(decode(FILE, &flipped), Ok(Found::Nothing)), "bit {bit}");
    }
    for torn in (0..bytes.len()).step_by(16) {
        assert!(matches!(decode(FILE, &bytes[..torn]), Ok(Found::Nothing)), "torn at {torn}");
    }
}

#[test]
fn a_record_has_room_for_a_piece_of_the_longest_changes() {
    let Some(Entry::Volumes(table::Change::Create(row))) = of_volumes().into_iter().next() else { panic!("a volume") };
    let [name, owner] = [base::limits::VOLUME_NAME_MAX, crate::rules::OWNER_MAX].map(|len| "x".repeat(len));
    let base = base::levels::Rate { iops: 100, bytes_per_sec: 0 };
    let levels = base::levels::Levels { base, ..row.levels };
    let longest = Entry::Volumes(table::Change::Create(Row { name, owner, levels, ..row }));
    let all = vec![longest; 20_000];
    assert!(!fits(&all) && fits(&vec![Change::Declare(Incarnation(1)).into(); 20_000]));
    let pieces: Vec<_> = pieces(&all).collect();
    assert_eq!((pieces.len() > 1, pieces.concat().len()), (true, 20_000));
    for changes in pieces {
        encode(&Record { changes: changes.to_vec(), ..record() });
    }
}
