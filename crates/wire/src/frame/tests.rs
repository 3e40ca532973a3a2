//! Golden bytes of every message, and what a frame that cannot be right says.

use base::io::fragment_checksums;
use base::levels::{Credits, Level, Levels, Rate};
use base::limits::ENGINES_MAX;
use base::{
    AllocationExtent, Bytes, Epoch, Error, ErrorKind, FileId, Gathered, Generation, Incarnation, Passage, ReadPart,
    SegmentId, SnapshotNumber, Stage, StoreId, Term, VolumeId, WriteSequence, WriteStamp,
};

use super::header::checksum;
use super::*;
use crate::directory::{Forwarding, VolumeDescriptor};
use crate::files::{FileDescriptor, Life, LifeDescriptor, LifeSpace, NewFile};
use crate::lease::{Entry, Lease, LeaseId, Revision, Snapshot, Swapped, Write};
use crate::owner::{Assignment, Holding, LeftSegment, Located, Source};
use crate::registry::Registered;
use crate::service::{Attachment, Reply, SessionId, Target};

pub(super) const TARGET: Target = Target {
    session: SessionId(0x1122),
    segment: SegmentId { volume: VolumeId(0x0a0b), index: 5 },
    epoch: Epoch(0x0c0d),
    level: Level::Burst,
    behind: 0x1617,
};
const STAMP: WriteStamp =
    WriteStamp { generation: Generation(0x0e0f), sequence: WriteSequence(0x1011), snapshot: SnapshotNumber(0x1213) };

const LIFE: Life = Life { incarnation: Incarnation(0x1a1b), generation: Generation(3) };
const STORE: StoreId = StoreId(0x1e1f << 64 | 0x2021);
const FILE: FileId = FileId(0x1c1d);
const ENGINE: Incarnation = Incarnation(0x2223);
const DEAD: Incarnation = Incarnation(0x2425);
const TERM: Term = Term(0x2627);
const SEGMENT: SegmentId = SegmentId { volume: VolumeId(7), index: 5 };
const SPACE: LifeSpace = LifeSpace { granted: 1 << 30, used: 1 << 20 };

const NEW_FILE: NewFile = NewFile {
    kind: 3,
    capacity: 4096,
    copies: 2,
    prepared: true,
    epoch: Epoch(7),
    segment: Some(TARGET.segment),
    claim: 2,
};

fn file() -> FileDescriptor {
    FileDescriptor {
        id: FILE,
        kind: 3,
        incarnation: LIFE.incarnation,
        epoch: Epoch(7),
        segment: Some(TARGET.segment),
        capacity: 1 << 20,
        sealed: Some(8192),
        copies: 2,
        copies_wanted: 3,
    }
}

pub(super) fn hello() -> Hello {
    Hello {
        versions: 1..=1,
        features: 2,
        required: 0,
        services: Services { block: true, directory: true, ..Services::default() },
        requests_max: 1024,
        bytes_max: 64 << 20,
        silence_ms: 10_000,
        name: "server".into(),
    }
}

pub(super) fn write(offset: u64, data: Vec<u8>) -> Request {
    let checksums = fragment_checksums(TARGET.segment, offset, &data);
    Request::Write { target: TARGET, offset, data: data.into(), checksums, stamp: STAMP }
}

fn volume() -> VolumeDescriptor {
    let levels = Levels {
        base: Rate { iops: 1, bytes_per_sec: 2 },
        burst: Rate { iops: 3, bytes_per_sec: 4 },
        credits: Credits { cap_seconds: 5, percent: 6 },
    };
    let volume = VolumeDescriptor::new(VolumeId(7), "disk", 1 << 30);
    let forwarding = Forwarding::Auto;
    VolumeDescriptor {
        generation: Generation(8),
        read_only: true,
        owner: "somebody".into(),
        levels,
        forwarding,
        ..volume
    }
}

/// An assignment of each source.
fn assign() -> Request {
    let left = |content: &'static [u8]| LeftSegment { incarnation: DEAD, content: Bytes::from_static(content) };
    let sources = [Source::Nobody, Source::Left(left(b"tables")), Source::Estate(DEAD), Source::Left(left(b"files"))];
    let assignment = |(index, source)| Assignment {
        volume: volume(),
        segment: SegmentId { index, ..SEGMENT },
        epoch: Epoch(0x0c0d),
        source,
    };
    let assignments = (5..).zip(sources).map(assignment).collect();
    Request::Assign { engine: ENGINE, term: TERM, assignments }
}

fn entry() -> Entry {
    let (revision, lease) = (Revision(0x1e1f), LeaseId(0x1c1d));
    Entry { key: "charge/0".into(), value: b"term 3".to_vec(), revision, lease }
}

/// A request of each kind.
pub(super) fn requests() -> Vec<Request> {
    let (volume_id, generation) = (VolumeId(7), Generation(8));
    let (engine, term, segment, epoch) = (ENGINE, TERM, SEGMENT, Epoch(0x0c0d));
    vec![
        Request::Attach { volume: volume_id, generation },
        Request::Detach { session: SessionId(0x1122) },
        Request::Read { target: TARGET, offset: 4096, len: 8192 },
        write(3584, vec![0x5a; 1024]),
        Request::Discard { target: TARGET, offset: 0, len: 32 << 30, stamp: STAMP },
        Request::Flush { target: TARGET },
        Request::Allocation { target: TARGET, offset: 512, len: 1 << 20, extents_max: 1040 },
        Request::Resolve { name: "disk".into() },
        Request::Describe { volume: volume_id },
        Request::List,
        Request::Take { volume: volume_id },
        Request::GiveBack { volume: volume_id, generation },
        Request::TakeLogs { volume: volume_id, generation, make: true },
        Request::DropVolume { volume: volume_id },
        Request::BeginScrub,
        Request::SetLevels(Box::new(volume())),
        Request::SetProvisioned { bytes: 1 << 40 },
        Request::Release { volume: volume_id },
        Request::Users { volume: volume_id },
        Request::LearnLevels(Box::new(volume())),
        Request::Join,
        Request::Enter { store: STORE, life: LIFE },
        Request::CreateFile { life: LIFE, file: NewFile { capacity: 1 << 20, ..NEW_FILE } },
        Request::Append { life: LIFE, file: FILE, offset: 4096, data: Bytes::from(vec![0x77; 8192]).into() },
        Request::ReadFile { life: LIFE, file: FILE, copy: Some(1), offset: 4096, len: 4096 },
        Request::RepairCopy { life: LIFE, file: FILE, copy: 1, offset: 8192, data: vec![0x88; 4096].into() },
        Request::CheckHeaders { life: LIFE, file: FILE },
        Request::Seal { life: LIFE, file: FILE, length: 8192 },
        Request::DeleteFile { life: LIFE, file: FILE },
        Request::NeedSpace { life: LIFE, bytes: 1 << 30 },
        Request::Fence { store: STORE, incarnation: LIFE.incarnation },
        Request::FilesOf { store: STORE, incarnation: LIFE.incarnation, after: FILE },
        Request::FindFile { store: STORE, file: FILE },
        Request::Lives { after: LIFE.incarnation },
        Request::FilesOfSegment { store: STORE, segment: TARGET.segment, after: FILE },
        Request::Grant { ttl_ms: 600 },
        Request::KeepAlive { lease: LeaseId(0x1c1d) },
        Request::Swap {
            key: "charge/0".into(),
            expected: Revision(0x1e1f),
            write: Write::Put { value: b"term 3".to_vec(), lease: LeaseId(0x1c1d) },
        },
        Request::Watch { prefix: "charge/".into(), seen: Revision(0x1e1f) },
        Request::Locate { segment },
        Request::Register { engine, server: "left".into(), address: "left.example:7000".into() },
        Request::Missing { engines: vec![engine, DEAD] },
        Request::Observe { after: volume_id },
        Request::Explain { volume: volume_id },
        assign(),
        Request::Refuse { engine, term, segment, epoch },
        Request::ReleaseSegment { engine, term, segment, epoch, most: 4096 },
        Request::Held { engine, segment },
        Request::Released { engine, after: segment },
        Request::ForgetRelease { engine, term, segment, epoch },
        Request::Recover { engine, term, dead: DEAD, after: segment },
        Request::BeginAttachment { engine, term, volume: Box::new(volume()), segment, epoch },
        Request::DropSegment { engine, term, segment, epoch },
    ]
}

/// What a request of a kind is answered with.
pub(super) fn value(kind: Kind) -> Value {
    match kind {
        Kind::Attach => Value::Attached(Attachment { session: SessionId(0x1122), epoch: Epoch(0x0c0d) }),
        Kind::Read => Value::Parts(vec![
            ReadPart::Zeros(4096),
            ReadPart::Data(Bytes::from(vec![0xa5; 512])),
            ReadPart::Data(Bytes::from(vec![0x3c; 3584])),
        ]),
        Kind::Allocation => Value::Extents(vec![
            AllocationExtent { len: 4096, allocated: true },
            AllocationExtent { len: 32 << 30, allocated: false },
        ]),
        Kind::Resolve | Kind::Describe | Kind::Take | Kind::TakeLogs => Value::Volume(Box::new(volume())),
        Kind::List => Value::Names(vec!["a".into(), "disk".into()]),
        Kind::Users | Kind::CheckHeaders => Value::Count(3),
        Kind::Join => Value::Joined(STORE, LIFE.incarnation),
        Kind::CreateFile => Value::Created(FileDescriptor { sealed: None, ..file() }, SPACE),
        Kind::ReadFile => Value::Parts(vec![ReadPart::Data(Bytes::from(vec![0x99; 4096]))]),
        Kind::Seal => Value::File(Some(file())),
        Kind::FindFile => Value::File(None),
        Kind::FilesOf | Kind::FilesOfSegment => {
            Value::Files(vec![file(), FileDescriptor { sealed: None, segment: None, ..file() }])
        }
        Kind::Lives => {
            Value::Lives(vec![LifeDescriptor { incarnation: LIFE.incarnation, is_fenced: true, space: SPACE }])
        }
        Kind::Enter | Kind::NeedSpace => Value::Space(SPACE),
        Kind::Grant | Kind::KeepAlive => Value::Lease(Lease { id: LeaseId(0x1c1d), ttl_ms: 600 }),
        Kind::Swap => Value::Swapped(Swapped::No(Some(entry()))),
        Kind::Watch => Value::Snapshot(Snapshot { revision: Revision(0x2021), entries: vec![entry(), entry()] }),
        Kind::Locate => {
            Value::Located(Located { owner: ENGINE, address: "left.example:7000".into(), epoch: Epoch(0x0c0d) })
        }
        Kind::Register => Value::Registered(Registered { lease_ms: 2000, is_in_charge: true }),
        Kind::Missing => Value::Engines(vec![DEAD]),
        Kind::Observe => Value::Observed(Bytes::from_static(br#"{"name":"left","uptime_seconds":1.5}"#)),
        Kind::Explain => Value::Observed(Bytes::from_static(br#"{"incarnation":8739}"#)),
        Kind::Assign => Value::Outcomes(vec![
            Ok(()),
            Err(Error::conflict("it was refused here")),
            Ok(()),
            Err(Error::io("a disk has failed")),
        ]),
        Kind::ReleaseSegment => Value::Left { incarnation: ENGINE, len: 6, content: Bytes::from_static(b"tables") },
        Kind::Held => Value::Held(Some(Epoch(0x0c0d))),
        Kind::Released => Value::Released(vec![(SEGMENT, Epoch(0x0c0d)), (SEGMENT, Epoch(0x0c0e))]),
        Kind::Recover => Value::Holdings(vec![
            Holding { segment: SEGMENT, epoch: Epoch(0x0c0d), generation: Generation(8), is_released: false },
            Holding { segment: SEGMENT, epoch: Epoch(0x0c0e), generation: Generation(9), is_released: true },
        ]),
        _ => Value::Done,
    }
}

pub(super) fn reply(result: Result<Value, Error>, passage: Passage) -> Reply<Value> {
    Reply { epoch: TARGET.epoch, result, passage }
}

/// A message of each type.
pub(super) fn messages() -> Vec<Message> {
    let marks = Marks {
        level: Level::Burst,
        is_retry: true,
        is_hedge: true,
        deadline_us: 0x1415,
        queue_depth: 0x1617,
        trace: 0x1819,
    };
    let mut all = vec![
        Message::Hello(hello()),
        Message::KeepAlive,
        Message::Goodbye(Error::corrupt("the header of a frame has the wrong checksum")),
    ];
    for (index, request) in requests().into_iter().enumerate() {
        let (sequence, kind) = (index as u64 + 1, request.kind());
        all.push(Message::Request { sequence, marks, request });
        let mut passage = Passage::default();
        if matches!(kind, Kind::Read | Kind::Write) {
            passage.tokens = "burst_level";
            Stage::ALL.into_iter().enumerate().for_each(|(index, stage)| passage.add(stage, index as u64 + 1));
        }
        all.push(Message::Reply { sequence, kind, reply: reply(Ok(value(kind)), passage) });
    }
    let failed = reply(Err(Error::fenced("session 4386 has ended")), Passage::default());
    all.push(Message::Reply { sequence: 99, kind: Kind::Read, reply: failed });
    let lost = reply(Ok(Value::Lost("the other loop has ended".into())), Passage::default());
    for swapped in [Swapped::Yes(Revision(0x2021)), Swapped::No(None)] {
        let swapped = reply(Ok(Value::Swapped(swapped)), Passage::default());
        all.push(Message::Reply { sequence: 101, kind: Kind::Swap, reply: swapped });
    }
    let too_much = Value::Left { incarnation: ENGINE, len: 1 << 20, content: Bytes::new() };
    for (kind, value) in [(Kind::ReleaseSegment, too_much), (Kind::Held, Value::Held(None))] {
        all.push(Message::Reply { sequence: 103, kind, reply: reply(Ok(value), Passage::default()) });
    }
    let delete = Request::Swap { key: "charge/0".into(), expected: Revision(0x1e1f), write: Write::Delete };
    all.push(Message::Request { sequence: 102, marks: Marks::default(), request: delete });
    all.push(Message::Reply { sequence: 100, kind: Kind::Write, reply: lost });
    let services = Services {
        block: true,
        directory: true,
        owner: true,
        user: true,
        files: true,
        lease: true,
        places: true,
        registry: true,
        segments: true,
        observer: true,
    };
    all.push(Message::Hello(Hello { services, ..hello() }));
    all
}

/// All bytes of a frame.
pub(super) fn bytes_of(frame: &Frame) -> Vec<u8> {
    frame.payload.iter().fold(frame.head.to_vec(), |mut all, part| {
        all.extend_from_slice(part);
        all
    })
}

/// Reads the frame that `bytes` are.
pub(super) fn read(bytes: &[u8]) -> base::Result<(Header, Message)> {
    let short = || Error::invalid("not all of a frame");
    let header = Header::decode(bytes.first_chunk().ok_or_else(short)?)?;
    let (rest, payload) = bytes[HEADER_LEN..].split_at_checked(header.rest_len()).ok_or_else(short)?;
    if payload.len() != header.payload_len as usize {
        return Err(short());
    }
    Message::decode(&header, rest, Bytes::copy_from_slice(payload)).map(|message| (header, message))
}

/// Makes the checksums right, as far as the lengths make sense; not those of an agent.
pub(super) fn reseal(bytes: &mut [u8]) {
    let len_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize;
    let end = HEADER_LEN.saturating_add(len_at(100)).saturating_add(len_at(104));
    if let Some(rest) = bytes.get(HEADER_LEN..end) {
        let rest = base::checksum::crc32c(rest);
        let payload = base::checksum::crc32c(&bytes[end..]);
        bytes[112..116].copy_from_slice(&rest.to_le_bytes());
        if bytes[9] & Kind::REPLY != 0 || bytes[9] == Kind::Assign as u8 {
            bytes[116..120].copy_from_slice(&payload.to_le_bytes());
        }
    }
    let sum = checksum(bytes.first_chunk().unwrap());
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn every_kind_is_asked_and_answered() {
    let asked: Vec<Kind> = requests().iter().map(Request::kind).collect();
    assert_eq!(asked, Kind::ALL);
    for message in messages() {
        let frame = message.encode(VERSION);
        let bytes = bytes_of(&frame);
        assert_eq!(bytes.len(), frame.len());
        let (_, again) = read(&bytes).unwrap();
        assert_eq!(format!("{again:?}"), format!("{message:?}"));
    }
}

/// The bytes of version 1. If this fails without a decision to change them, processes of two builds do not understand
/// each other.
#[test]
fn golden() {
    let mut text = String::new();
    for message in messages() {
        let bytes = bytes_of(&message.encode(VERSION));
        for line in bytes.chunks(32) {
            // Payloads are what they are.
            if line.iter().all(|&byte| byte == line[0]) && line.len() == 32 && line[0] != 0 {
                continue;
            }
            line.iter().for_each(|byte| text.push_str(&format!("{byte:02x}")));
            text.push('\n');
        }
        text.push('\n');
    }
    assert_eq!(text, include_str!("golden.txt"), "\n{text}");
}

#[test]
fn a_payload_is_sent_from_where_it_is() {
    let data = Bytes::from(vec![7; 4096]);
    let request = match write(0, data.to_vec()) {
        Request::Write { target, offset, checksums, stamp, .. } => {
            Request::Write { target, offset, data: data.clone(), checksums, stamp }
        }
        other => panic!("{other:?}"),
    };
    let frame = Message::Request { sequence: 1, marks: Marks::default(), request }.encode(VERSION);
    assert_eq!(frame.payload[0].as_ptr(), data.as_ptr());
    assert_eq!(frame.head.len(), HEADER_LEN + 4, "a small write costs a header and a checksum");
    let parts = vec![ReadPart::Data(data.slice(..512)), ReadPart::Zeros(512), ReadPart::Data(data.slice(512..))];
    let reply = reply(Ok(Value::Parts(parts)), Passage::default());
    let frame = Message::Reply { sequence: 1, kind: Kind::Read, reply }.encode(VERSION);
    assert_eq!((frame.payload[0].as_ptr(), frame.payload[1].as_ptr()), (data.as_ptr(), data[512..].as_ptr()));
}

/// A label and the bytes behind it are one append, from where either is.
#[test]
fn an_append_is_sent_from_where_its_parts_are() {
    let (label, data) = (Bytes::from(vec![1; 4096]), Bytes::from(vec![2; 8192]));
    let append = |data| Request::Append { life: LIFE, file: FILE, offset: 0, data };
    let message = |data| Message::Request { sequence: 1, marks: Marks::default(), request: append(data) };
    let frame = message(Gathered::new(label.clone(), data.clone())).encode(VERSION);
    assert_eq!((frame.payload[0].as_ptr(), frame.payload[1].as_ptr()), (label.as_ptr(), data.as_ptr()));
    let joined = message(Gathered::new(label, data).joined().into()).encode(VERSION);
    assert_eq!(bytes_of(&frame), bytes_of(&joined));
}

/// One bit, wherever it is in a frame: it is noticed, or the frame is not there yet.
#[test]
fn every_flipped_bit_is_noticed() {
    for message in messages() {
        let bytes = bytes_of(&message.encode(VERSION));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&flipped).is_err(), "bit {bit} of {message:?}");
        }
    }
}

#[test]
fn what_cannot_be_right_is_refused() {
    let frame = |request| bytes_of(&Message::Request { sequence: 1, marks: Marks::default(), request }.encode(VERSION));
    let read_request = frame(Request::Read { target: TARGET, offset: 0, len: 512 });
    let write_request = frame(write(0, vec![7; 4096]));
    let segment = SegmentId { volume: VolumeId(11), index: 5 };
    let create = Request::CreateFile { life: LIFE, file: NewFile { segment: Some(segment), ..NEW_FILE } };
    let create_request = frame(create);
    let cases: [(&str, &[u8], usize, u8, &str); 10] = [
        ("an unknown flag", &read_request, 10, 16, "flags"),
        ("a reserved byte", &read_request, 127, 1, "reserved"),
        ("an unknown type", &read_request, 9, 60, "upgrade"),
        ("a write sequence in a read", &read_request, 64, 1, "does not say"),
        ("no range", &read_request, 80, 0, "no such range"),
        ("an offset that is no multiple of 512", &read_request, 72, 1, "no such range"),
        ("another length than the payload's", &write_request, 81, 0x20, "does not say"),
        ("a payload checksum beside the agent's", &write_request, 116, 1, "does not say"),
        ("a file of a segment without a volume", &create_request, 32, 0, "no file belongs to"),
        ("a body of 16 MiB", &read_request, 107, 1, "where 1048576 are allowed"),
    ];
    for (what, bytes, at, value, says) in cases {
        let mut forged = bytes.to_vec();
        forged[at] = value;
        if at == 80 {
            forged[81] = 0;
        }
        reseal(&mut forged);
        let error = read(&forged).unwrap_err();
        assert!(error.message.contains(says) && error.kind == ErrorKind::Invalid, "{what}: {error}");
    }
    let mut forged = write_request.clone();
    *forged.last_mut().unwrap() ^= 1;
    reseal(&mut forged);
    assert_eq!(read(&forged).unwrap_err().kind, ErrorKind::Corrupt, "only the agent's checksums show it");
    assert!(read(b"GET / HTTP/1.1\r\n".repeat(8).as_slice()).unwrap_err().message.contains("another service"));
}

/// What a reply says is no longer than what can have been asked for.
#[test]
fn a_part_an_extent_or_a_file_that_cannot_be_is_refused() {
    let frame = |kind| {
        let reply = reply(Ok(value(kind)), Passage::default());
        bytes_of(&Message::Reply { sequence: 1, kind, reply }.encode(VERSION))
    };
    // Behind the status: the first part is zeros, the first extent data.
    let at = HEADER_LEN + 1;
    let cases = [
        (Kind::Read, at, vec![0, 0, 0, 0x80], "zeros without a length"),
        (Kind::Read, at, vec![0, 0, 0, 0x84], "64 MiB of zeros"),
        (Kind::Allocation, at, vec![0, 0, 0, 0, 0, 0, 0, 0x80], "an extent without a length"),
        (Kind::Allocation, at, vec![0, 0, 0, 0, 0, 0, 1, 0x80], "an extent longer than a segment"),
        (Kind::FilesOf, at + 36, vec![0, 0, 0, 0, 0, 0, 0, 0x20], "a file that is longer than any"),
        (Kind::FilesOf, at + 44, vec![0, 0], "a file of a segment without a volume"),
    ];
    for (kind, at, forged, what) in cases {
        let mut bytes = frame(kind);
        read(&bytes).unwrap();
        bytes[at..at + forged.len()].copy_from_slice(&forged);
        reseal(&mut bytes);
        assert_eq!(read(&bytes).unwrap_err().kind, ErrorKind::Invalid, "{what}");
    }
}

/// What was left of segments is all of a payload, a list is no longer than one that is asked for, and of a failed
/// assignment as much is said as was agreed on.
#[test]
fn what_is_said_of_segments_adds_up() {
    let said = |request| bytes_of(&Message::Request { sequence: 1, marks: Marks::default(), request }.encode(VERSION));
    let answered = |kind, value| {
        bytes_of(&Message::Reply { sequence: 1, kind, reply: reply(Ok(value), Passage::default()) }.encode(VERSION))
    };
    // As many assignments as there may be, with volumes of which as much is to be said as may be.
    let longest = VolumeDescriptor { name: "n".repeat(63), owner: "o".repeat(63), ..volume() };
    let source = Source::Estate(DEAD);
    let assignment = Assignment { volume: longest, segment: SEGMENT, epoch: Epoch(1), source };
    read(&said(Request::Assign { engine: ENGINE, term: TERM, assignments: vec![assignment; ASSIGNED_MAX] })).unwrap();
    // The length of what was left of the second segment, behind engine, term, the whole first assignment and 21 bytes.
    let first = {
        let Request::Assign { assignments, .. } = assign() else { panic!() };
        said(Request::Assign { engine: ENGINE, term: TERM, assignments: assignments[..1].to_vec() }).len()
    };
    let left = answered(Kind::ReleaseSegment, value(Kind::ReleaseSegment));
    let cases = [
        ("less was left than the payload has", said(assign()), first + 21, 5),
        ("more was left than the payload has", said(assign()), first + 21, 7),
        ("a source that nobody knows", said(assign()), HEADER_LEN + 24, 3),
        ("an answer with a part of what was left", left, HEADER_LEN + 9, 7),
    ];
    for (what, mut bytes, at, forged) in cases {
        read(&bytes).unwrap();
        bytes[at] = forged;
        reseal(&mut bytes);
        let error = read(&bytes).expect_err(what);
        assert!(error.kind == ErrorKind::Invalid && error.message.contains("does not say"), "{what}: {error}");
    }

    let long = Value::Outcomes(vec![Err(Error::io("ä".repeat(400)))]);
    let Ok((_, Message::Reply { reply: Reply { result: Ok(Value::Outcomes(outcomes)), .. }, .. })) =
        read(&answered(Kind::Assign, long))
    else {
        panic!()
    };
    assert_eq!(outcomes, [Err(Error::io("ä".repeat(256)))]);
    // One byte more behind what is there; the length of a body is at 104.
    let longer = |mut bytes: Vec<u8>, len: usize| {
        bytes.resize(bytes.len() + len, 0);
        let body = u32::try_from(bytes.len() - HEADER_LEN).unwrap();
        bytes[104..108].copy_from_slice(&body.to_le_bytes());
        bytes
    };
    let mut reason = longer(answered(Kind::Assign, Value::Outcomes(vec![Err(Error::io("x".repeat(512)))])), 1);
    // Behind the status of the reply and that of the outcome.
    reason[HEADER_LEN + 2..HEADER_LEN + 4].copy_from_slice(&513u16.to_le_bytes());
    reseal(&mut reason);
    assert!(read(&reason).unwrap_err().message.contains("does not say"));
    // A whole list and one more, of each kind.
    let epoch = Epoch(1);
    let holding = Holding { segment: SEGMENT, epoch, generation: Generation(1), is_released: true };
    let whole = [
        (Kind::Released, Value::Released(vec![(SEGMENT, epoch); HOLDINGS_MAX]), 20),
        (Kind::Recover, Value::Holdings(vec![holding; HOLDINGS_MAX]), 29),
        (Kind::Missing, Value::Engines(vec![ENGINE; ENGINES_MAX]), 8),
        (Kind::Assign, Value::Outcomes(vec![Ok(()); ASSIGNED_MAX]), 1),
    ];
    for (kind, value, len) in whole {
        let bytes = answered(kind, value);
        read(&bytes).unwrap();
        let mut bytes = longer(bytes, len);
        reseal(&mut bytes);
        assert!(read(&bytes).unwrap_err().message.contains("does not say"), "{kind:?}");
    }
}

/// An older peer skips extensions that it does not know, wherever they stand.
#[test]
fn unknown_extensions_are_skipped() {
    let unknown = [0x2a, 0, 3, 0, 1, 2, 3];
    for message in messages() {
        let mut bytes = bytes_of(&message.encode(VERSION));
        let len = u32::from_le_bytes([bytes[100], bytes[101], bytes[102], bytes[103]]);
        bytes[100..104].copy_from_slice(&(len + unknown.len() as u32).to_le_bytes());
        bytes.splice(HEADER_LEN..HEADER_LEN, unknown);
        reseal(&mut bytes);
        let (_, again) = read(&bytes).unwrap();
        assert_eq!(format!("{again:?}"), format!("{message:?}"));
    }
}

#[test]
fn two_sides_agree_or_say_why_not() {
    let ours = hello();
    let agreed = ours.agree(&Hello { features: 3, ..hello() }).unwrap();
    assert_eq!((agreed.version, agreed.features), (1, 2));
    let later = Hello { versions: 1..=9, ..hello() };
    assert_eq!((ours.agree(&later).unwrap().version, later.agree(&ours).unwrap().version), (1, 1));
    let cases = [
        (Hello { versions: 2..=3, ..hello() }, "speaks versions 2 to 3"),
        (Hello { versions: std::ops::RangeInclusive::new(3, 1), ..hello() }, "speaks versions 3 to 1"),
        (Hello { versions: 0..=0, ..hello() }, "speaks versions 0 to 0"),
        (Hello { required: 8, ..hello() }, "features 0x8"),
        (Hello { requests_max: 0, ..hello() }, "grants 0 requests"),
        (Hello { bytes_max: 4096, ..hello() }, "with 4096 bytes"),
        (Hello { silence_ms: 99, ..hello() }, "waits for 99 ms"),
    ];
    for (theirs, says) in cases {
        let error = ours.agree(&theirs).unwrap_err();
        assert!(error.message.contains(says) && error.message.contains("'server'"), "{error}");
    }
}

#[test]
fn a_request_that_no_frame_can_say_is_known_before() {
    let target = TARGET;
    let assignment = |volume, len| {
        let source = Source::Left(LeftSegment { incarnation: DEAD, content: vec![1; len].into() });
        Assignment { volume, segment: SEGMENT, epoch: Epoch(1), source }
    };
    let assigned = |assignments| Request::Assign { engine: ENGINE, term: TERM, assignments };
    assigned(vec![assignment(volume(), 1); ASSIGNED_MAX]).check().unwrap();
    let refused = [
        Request::Read { target, offset: 0, len: 0 },
        Request::Read { target, offset: 0, len: (32 << 20) + 512 },
        Request::Read { target, offset: 1, len: 512 },
        Request::Read { target, offset: u64::MAX - 511, len: 512 },
        Request::Discard { target, offset: 512, len: 32 << 30, stamp: STAMP },
        Request::Write { target, offset: 0, data: Bytes::from(vec![0; 512]), checksums: vec![], stamp: STAMP },
        Request::Write {
            target,
            offset: u64::MAX - 511,
            data: Bytes::from(vec![0; 512]),
            checksums: vec![1],
            stamp: STAMP,
        },
        Request::Resolve { name: "x".repeat(5000) },
        Request::CreateFile { life: LIFE, file: NewFile { capacity: 4095, ..NEW_FILE } },
        Request::CreateFile {
            life: LIFE,
            file: NewFile { segment: Some(SegmentId { volume: VolumeId(0), index: 1 }), ..NEW_FILE },
        },
        Request::Append { life: LIFE, file: FILE, offset: 512, data: Bytes::from(vec![0; 4096]).into() },
        Request::Append { life: LIFE, file: FILE, offset: 0, data: Bytes::new().into() },
        Request::Append { life: LIFE, file: FILE, offset: 0, data: Bytes::from(vec![0; (32 << 20) + 4096]).into() },
        Request::Append { life: LIFE, file: FILE, offset: u64::MAX - 4095, data: Bytes::from(vec![0; 4096]).into() },
        Request::ReadFile { life: LIFE, file: FILE, copy: None, offset: 0, len: 512 },
        Request::ReadFile { life: LIFE, file: FILE, copy: None, offset: 0, len: (32 << 20) + 4096 },
        Request::RepairCopy { life: LIFE, file: FILE, copy: 1, offset: 0, data: vec![0; 512].into() },
        Request::Seal { life: LIFE, file: FILE, length: 1 },
        Request::Watch { prefix: "x".repeat(64), seen: Revision(0) },
        Request::Register { engine: ENGINE, server: String::new(), address: "host:1".into() },
        Request::Register { engine: ENGINE, server: "x".repeat(64), address: "host:1".into() },
        Request::Register { engine: ENGINE, server: "left".into(), address: "x".repeat(260) },
        Request::Missing { engines: vec![ENGINE; ENGINES_MAX + 1] },
        assigned(vec![]),
        assigned(vec![assignment(volume(), 0); ASSIGNED_MAX + 1]),
        assigned(vec![assignment(volume(), LEFT_MAX as usize + 1)]),
        assigned(vec![assignment(volume(), LEFT_MAX as usize); 2]),
        assigned(vec![assignment(VolumeDescriptor { name: "x".repeat(64), ..volume() }, 0)]),
        assigned(vec![assignment(VolumeDescriptor { id: VolumeId(8), ..volume() }, 0)]),
        Request::BeginAttachment {
            engine: ENGINE,
            term: TERM,
            volume: Box::new(VolumeDescriptor { owner: "x".repeat(64), ..volume() }),
            segment: SEGMENT,
            epoch: Epoch(1),
        },
        Request::ReleaseSegment { engine: ENGINE, term: TERM, segment: SEGMENT, epoch: Epoch(1), most: 1 << 25 },
        Request::Swap { key: String::new(), expected: Revision(0), write: Write::Delete },
        Request::Swap {
            key: "x".into(),
            expected: Revision(0),
            write: Write::Put { value: vec![0; 128], lease: LeaseId(0) },
        },
    ];
    for request in refused {
        assert_eq!(request.check().unwrap_err().kind, ErrorKind::Invalid, "{request:?}");
    }
    requests().iter().for_each(|request| request.check().unwrap());
}
