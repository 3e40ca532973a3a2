//! Two ends that talk, and one that is lied to.

use std::collections::VecDeque;

use base::io::fragment_checksums;
use base::levels::Level;
use base::{
    Epoch, ErrorKind, FileId, Generation, Incarnation, KIB, MIB, Passage, ReadPart, SegmentId, Term, VolumeId,
    WriteStamp,
};

use super::*;
use crate::VolumeDescriptor;
use crate::files::Life;
use crate::owner::{Assignment, LeftSegment, Source};
use crate::service::{SessionId, Target};

pub(super) const TARGET: Target = Target {
    session: SessionId(1),
    segment: SegmentId { volume: VolumeId(2), index: 3 },
    epoch: Epoch(4),
    level: Level::Base,
    behind: 0,
};
const SILENCE: Duration = Duration::from_secs(9);

pub(super) fn options(name: &str) -> Options {
    let services = Services { block: true, directory: true, files: true, segments: true, ..Services::default() };
    Options { services, requests_max: 4, bytes_max: 32 * MIB, silence: SILENCE, name: name.into() }
}

pub(super) fn bytes_of(frame: &Frame) -> Bytes {
    let mut all = frame.head.to_vec();
    frame.payload.iter().for_each(|part| all.extend_from_slice(part));
    all.into()
}

pub(super) fn read(len: u64) -> Request {
    Request::Read { target: TARGET, offset: 0, len }
}

pub(super) fn write(len: usize) -> Request {
    let data = Bytes::from(vec![7; len]);
    let checksums = fragment_checksums(TARGET.segment, 0, &data);
    Request::Write { target: TARGET, offset: 0, data, checksums, stamp: WriteStamp::default() }
}

const ENGINE: Incarnation = Incarnation(8);
const LIFE: Life = Life { incarnation: Incarnation(5), generation: Generation(6) };

pub(super) fn append(len: usize) -> Request {
    Request::Append { life: LIFE, file: FileId(7), offset: 0, data: Bytes::from(vec![8; len]).into() }
}

pub(super) fn read_file(len: u64) -> Request {
    Request::ReadFile { life: LIFE, file: FileId(7), copy: None, offset: 0, len }
}

/// An assignment of a segment of which so much was left.
pub(super) fn assign(len: usize) -> Request {
    let segment = TARGET.segment;
    let source = Source::Left(LeftSegment { incarnation: ENGINE, content: vec![9; len].into() });
    let volume = VolumeDescriptor::new(segment.volume, "disk", MIB);
    Request::Assign {
        engine: ENGINE,
        term: Term(1),
        assignments: vec![Assignment { volume, segment, epoch: Epoch(4), source }],
    }
}

pub(super) fn release(most: u32) -> Request {
    Request::ReleaseSegment { engine: ENGINE, term: Term(1), segment: TARGET.segment, epoch: Epoch(4), most }
}

pub(super) fn left(len: usize) -> Value {
    Value::Left { incarnation: ENGINE, len: len as u32, content: vec![9; len].into() }
}

pub(super) fn done(value: Value) -> Reply<Value> {
    Reply { epoch: Epoch(4), result: Ok(value), passage: Passage::default() }
}

/// Gives `end` all of `bytes`, at most `piece` at a time: the events that come of it.
pub(super) fn feed(end: &mut Connection, bytes: &[u8], piece: usize) -> Result<Vec<Event>> {
    let mut coming: VecDeque<Bytes> = bytes.chunks(piece).map(Bytes::copy_from_slice).collect();
    let (mut there, mut events) = (Bytes::new(), Vec::new());
    loop {
        if let Needs::Payload(len) = end.needs() {
            if there.len() >= len {
                events.push(end.receive_payload(there.split_to(len))?);
                continue;
            }
        } else if let Some(event) = end.receive(&mut there)? {
            events.push(event);
            continue;
        } else if matches!(end.needs(), Needs::Payload(_)) {
            continue;
        }
        end.check_invariants();
        let Some(next) = coming.pop_front() else { return Ok(events) };
        there = [there, next].concat().into();
    }
}

/// Two ends that have greeted each other.
pub(super) fn greeted() -> [Connection; 2] {
    let (mut near, hello) = Connection::new(options("near"), Instant::ZERO);
    let (mut far, other) = Connection::new(options("far"), Instant::ZERO);
    assert!(!near.may_ask(0), "nothing is granted before the hello");
    assert!(
        matches!(&feed(&mut far, &bytes_of(&hello), 7).unwrap()[..], [Event::Greeted(hello)] if hello.name == "near")
    );
    assert!(
        matches!(&feed(&mut near, &bytes_of(&other), 1000).unwrap()[..], [Event::Greeted(hello)] if hello.name == "far")
    );
    [near, far]
}

fn refusal(end: &mut Connection, frame: &Frame) -> Error {
    feed(end, &bytes_of(frame), usize::MAX).unwrap_err()
}

#[test]
fn what_one_asks_the_other_answers_however_it_is_cut() {
    for piece in [1, 100, 4096, 1 << 20] {
        let [mut near, mut far] = greeted();
        let (first, asked) = near.ask(Instant::ZERO, write(64 << 10), Marks::default());
        let (second, also) = near.ask(Instant::ZERO, read(8192), Marks { queue_depth: 1, ..Marks::default() });
        assert_eq!((first, second), (1, 2));
        let bytes = [bytes_of(&asked), bytes_of(&also)].concat();
        let events = feed(&mut far, &bytes, piece).unwrap();
        let [Event::Request { sequence: 1, request, .. }, Event::Request { sequence: 2, marks, request: also }] =
            &events[..]
        else {
            panic!("{events:?}")
        };
        // What waits behind it is for whoever serves it.
        let target = Target { behind: 1, ..TARGET };
        assert!(*request == write(64 << 10) && marks.queue_depth == 1);
        assert_eq!(*also, Request::Read { target, offset: 0, len: 8192 });
        let parts = vec![ReadPart::Data(vec![9; 4096].into()), ReadPart::Zeros(4096)];
        let answers = [
            far.answer(Instant::ZERO, 2, done(Value::Parts(parts.clone()))),
            far.answer(Instant::ZERO, 1, done(Value::Done)),
        ];
        let events = feed(&mut near, &answers.each_ref().map(bytes_of).concat(), piece).unwrap();
        let [Event::Reply { sequence: 2, reply }, Event::Reply { sequence: 1, .. }] = &events[..] else {
            panic!("{events:?}")
        };
        assert_eq!(reply.result.as_ref().unwrap(), &Value::Parts(parts));
    }
}

/// What was left of a segment may be long: it comes as far as it was asked for, and goes as far as there is credit.
#[test]
fn what_was_left_of_a_segment_is_covered_by_the_credit() {
    let [mut near, mut far] = greeted();
    let (_, asked) = near.ask(Instant::ZERO, assign(16 << 20), Marks::default());
    assert!(!near.may_ask(16 << 20) && near.may_ask(15 << 20));
    let events = feed(&mut far, &bytes_of(&asked), 1 << 20).unwrap();
    assert!(matches!(&events[..], [Event::Request { request, .. }] if *request == assign(16 << 20)));
    // Beyond it.
    let [_, mut far] = greeted();
    feed(&mut far, &bytes_of(&asked), usize::MAX).unwrap();
    let again = Message::Request { sequence: 2, marks: Marks::default(), request: assign(16 << 20) }.encode(VERSION);
    assert!(refusal(&mut far, &again).message.contains("beyond the credit"));

    for (most, has) in [(4096, 4096), (100_000, 100_000), (4096, 0)] {
        let [mut near, mut far] = greeted();
        let (_, asked) = near.ask(Instant::ZERO, release(most), Marks::default());
        feed(&mut far, &bytes_of(&asked), 100).unwrap();
        let answer = far.answer(Instant::ZERO, 1, done(left(has)));
        let events = feed(&mut near, &bytes_of(&answer), 1000).unwrap();
        let [Event::Reply { reply, .. }] = &events[..] else { panic!("{events:?}") };
        assert_eq!(reply.result, Ok(left(has)));
        // More than was asked for.
        let (_, asked) = near.ask(Instant::ZERO, release(most), Marks::default());
        feed(&mut far, &bytes_of(&asked), 100).unwrap();
        let answer = far.answer(Instant::ZERO, 2, done(left(most as usize + 1)));
        assert!(refusal(&mut near, &answer).message.contains("nobody has asked for"));
    }
}

/// What a file is given and gives is covered by the credit as what a segment is.
#[test]
fn payloads_of_files_are_believed_within_the_credit_only() {
    let [mut near, mut far] = greeted();
    let (_, asked) = near.ask(Instant::ZERO, append(20 << 20), Marks::default());
    assert!(!near.may_ask(16 << 20) && near.may_ask(12 << 20));
    let events = feed(&mut far, &bytes_of(&asked), 1 << 20).unwrap();
    assert!(matches!(&events[..], [Event::Request { sequence: 1, request, .. }] if *request == append(20 << 20)));
    let (second, asked) = near.ask(Instant::ZERO, read_file(8192), Marks::default());
    feed(&mut far, &bytes_of(&asked), 100).unwrap();
    let parts = |len: usize| done(Value::Parts(vec![ReadPart::Data(vec![9; len].into())]));
    let answer = far.answer(Instant::ZERO, second, parts(4096));
    assert!(refusal(&mut near, &answer).message.contains("another number"));

    let [mut near, mut far] = greeted();
    let (_, asked) = near.ask(Instant::ZERO, read_file(4096), Marks::default());
    feed(&mut far, &bytes_of(&asked), usize::MAX).unwrap();
    let answer = far.answer(Instant::ZERO, 1, parts(8192));
    assert!(refusal(&mut near, &answer).message.contains("nobody has asked for"));
}

#[test]
fn a_large_payload_is_received_by_itself() {
    let [mut near, mut far] = greeted();
    let (_, asked) = near.ask(Instant::ZERO, write(LARGE_PAYLOAD), Marks::default());
    let mut head = asked.head.clone();
    assert!(far.receive(&mut head).unwrap().is_none() && head.is_empty());
    assert_eq!(far.needs(), Needs::Payload(LARGE_PAYLOAD));
    let payload = asked.payload[0].clone();
    let Event::Request { request: Request::Write { data, .. }, .. } = far.receive_payload(payload.clone()).unwrap()
    else {
        panic!("a write was asked");
    };
    assert_eq!(data.as_ptr(), payload.as_ptr(), "it is handed on where it is");
    // A small one is a part of what arrived.
    let (_, asked) = near.ask(Instant::ZERO, write(4096), Marks::default());
    let mut bytes = bytes_of(&asked);
    let within = bytes.as_ptr_range();
    let Some(Event::Request { request: Request::Write { data, .. }, .. }) = far.receive(&mut bytes).unwrap() else {
        panic!("a write was asked");
    };
    assert!(within.contains(&data.as_ptr()));
}

#[test]
fn nobody_asks_beyond_its_credit() {
    let [mut near, mut far] = greeted();
    let mut frames: Vec<Frame> = (0..4).map(|_| near.ask(Instant::ZERO, read(4096), Marks::default()).1).collect();
    assert!(!near.may_ask(0));
    let all: Vec<u8> = frames.iter().flat_map(|frame| bytes_of(frame).to_vec()).collect();
    assert_eq!(feed(&mut far, &all, 999).unwrap().len(), 4);
    // A reply gives it back: of a request, and of its bytes.
    let answer = far.answer(Instant::ZERO, 3, done(Value::Parts(vec![ReadPart::Zeros(4096)])));
    feed(&mut near, &bytes_of(&answer), 10).unwrap();
    assert!(near.may_ask(32 * MIB - 3 * 4096) && !near.may_ask(32 * MIB - 3 * 4096 + 1));
    frames.push(near.ask(Instant::ZERO, read(512), Marks::default()).1);
    feed(&mut far, &bytes_of(&frames[4]), 10).unwrap();
    // Whoever asks all the same is refused, before memory is taken for what it sends.
    let more = Message::Request { sequence: 6, marks: Marks::default(), request: read(512) }.encode(VERSION);
    let error = refusal(&mut far, &more);
    assert!(error.kind == ErrorKind::Invalid && error.message.contains("were granted"), "{error}");
    let more = Message::Request { sequence: 6, marks: Marks::default(), request: write(64 << 10) }.encode(VERSION);
    let error = far.receive(&mut more.head.clone()).unwrap_err();
    assert!(error.message.contains("beyond the credit"), "{error}");
}

#[test]
fn what_cannot_be_right_is_one_clear_error() {
    let request = |sequence, request| Message::Request { sequence, marks: Marks::default(), request };
    let attach = || Request::Attach { volume: VolumeId(1), generation: Generation(1) };
    let reply = |sequence, kind, value| Message::Reply { sequence, kind, reply: done(value) };
    let hello = |versions| {
        let (other, _) = Connection::new(options("other"), Instant::ZERO);
        Message::Hello(Hello { versions, ..other.hello })
    };
    let cases = [
        (request(2, attach()).encode(VERSION), "a frame is missing, or came twice"),
        (request(1, attach()).encode(2), "a frame of version 2"),
        (request(1, attach()).encode(0), "without a version"),
        (request(1, Request::BeginScrub).encode(VERSION), "does no begin scrub"),
        (reply(9, Kind::Flush, Value::Done).encode(VERSION), "request 9, which was not asked"),
        (reply(1, Kind::Flush, Value::Done).encode(VERSION), "a reply (flush) to request 1"),
        (reply(1, Kind::Read, Value::Parts(vec![ReadPart::Zeros(512)])).encode(VERSION), "another number"),
        (
            reply(1, Kind::Read, Value::Parts(vec![ReadPart::Data(vec![0; 8192].into())])).encode(VERSION),
            "nobody has asked for",
        ),
        (
            reply(7, Kind::Read, Value::Parts(vec![ReadPart::Data(vec![0; 512].into())])).encode(VERSION),
            "nobody has asked for",
        ),
        (hello(1..=1).encode(VERSION), "a second hello"),
    ];
    for (frame, says) in cases {
        let [mut near, _] = greeted();
        near.ask(Instant::ZERO, read(4096), Marks::default());
        let error = refusal(&mut near, &frame);
        assert!(error.kind == ErrorKind::Invalid && error.message.contains(says), "{says}: {error}");
        let last = near.goodbye(Instant::ZERO, &error);
        let [mut far, _] = greeted();
        let told = feed(&mut far, &bytes_of(&last), 50).unwrap();
        assert!(matches!(&told[..], [Event::Goodbye(told)] if told.message == error.message), "{told:?}");
    }
    let fresh = || Connection::new(options("near"), Instant::ZERO).0;
    for (frame, says) in [
        (request(1, attach()).encode(VERSION), "agreed on is none so far"),
        (request(1, attach()).encode(0), "before the hello"),
        (hello(2..=3).encode(VERSION), "upgrade the older one"),
    ] {
        let error = refusal(&mut fresh(), &frame);
        assert!(error.kind == ErrorKind::Invalid && error.message.contains(says), "{says}: {error}");
    }
}

#[test]
fn a_request_that_comes_twice_is_noticed() {
    let [mut near, mut far] = greeted();
    let (_, frame) = near.ask(Instant::ZERO, write(512), Marks::default());
    feed(&mut far, &bytes_of(&frame), 100).unwrap();
    far.answer(Instant::ZERO, 1, done(Value::Done));
    assert!(refusal(&mut far, &frame).message.contains("came twice"));
}

#[test]
fn whoever_is_silent_or_takes_nothing_is_given_up() {
    let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
    // Before the hello, too.
    let (mut near, _) = Connection::new(options("near"), at(0));
    assert_eq!(near.next_deadline(), at(9));
    assert!(near.on_time(at(8)).unwrap().is_none());
    assert!(near.on_time(at(9)).unwrap_err().message.contains("nothing came from the other side"));
    let [mut near, mut far] = greeted();
    // A third of the silence that the other one has.
    assert_eq!(near.next_deadline(), at(3));
    let alive = near.on_time(at(3)).unwrap().expect("a keep-alive is due");
    assert!(feed(&mut far, &bytes_of(&alive), 5).unwrap().is_empty(), "nothing comes of it");
    far.on_bytes(at(3));
    assert_eq!((near.next_deadline(), near.on_time(at(4)).unwrap()), (at(6), None));
    let error = near.on_time(at(9)).unwrap_err();
    assert!(error.kind == ErrorKind::Io && error.message.contains("nothing came from far"), "{error}");
    // One that sends, and takes nothing.
    far.on_sending(at(5), true);
    far.on_bytes(at(11));
    assert!(far.on_time(at(11)).unwrap().is_none(), "what is being sent speaks for itself");
    assert_eq!(far.next_deadline(), at(14));
    assert!(far.on_time(at(14)).unwrap_err().message.contains("near has taken nothing for 9s"));
    far.on_sending(at(14), false);
    assert!(far.on_time(at(14)).is_ok());
    // Whoever does not receive cannot say that nothing came.
    far.on_listening(at(15), false);
    far.on_sending(at(22), true);
    assert!(far.on_time(at(30)).is_ok());
    assert!(far.on_time(at(31)).unwrap_err().message.contains("has taken nothing"));
    far.on_sending(at(31), false);
    far.on_listening(at(31), true);
    assert!(far.on_time(at(39)).is_ok());
    assert!(far.on_time(at(40)).unwrap_err().message.contains("nothing came from near"));
}

#[test]
fn a_largest_read_fits_with_all_its_parts() {
    let [mut near, mut far] = greeted();
    let (_, asked) = near.ask(Instant::ZERO, read(32 * MIB), Marks::default());
    feed(&mut far, &bytes_of(&asked), 4096).unwrap();
    let sector = Bytes::from(vec![1; 512]);
    let parts: Vec<ReadPart> =
        (0..32 * KIB).flat_map(|_| [ReadPart::Data(sector.clone()), ReadPart::Zeros(512)]).collect();
    let answer = far.answer(Instant::ZERO, 1, done(Value::Parts(parts.clone())));
    let events = feed(&mut near, &bytes_of(&answer), 16 << 20).unwrap();
    let [Event::Reply { reply, .. }] = &events[..] else { panic!("{} events", events.len()) };
    assert!(*reply.result.as_ref().unwrap() == Value::Parts(parts));
}
