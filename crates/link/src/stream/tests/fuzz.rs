//! Fuzz targets of whole connections: whatever one end is sent, it harms nobody else and nothing of it is left.

use std::time::Duration;

use base::io::fragment_checksums;
use base::{
    AlignedBuf, ErrorKind, Generation, Incarnation, Instant, Passage, Prng, ReadPart, SegmentId, Term, WriteStamp,
};
use runtime::{Address, Class};
use wire::connection::{self, Connection};
use wire::frame::{self, Frame, Kind, Marks, Message, Request, VERSION, Value};
use wire::{Assignment, Attachment, LeftSegment, Reply, SessionId, Source, Target, VolumeDescriptor, VolumeDirectory};

use super::engine::{self, ENGINE};
use super::store::EPOCH;
use super::world::{DISK, Fixture, attach, options, read, segment, write};
use crate::stream::{NearEnd, Services};

/// A seed of something valid, edits of it, and noise.
type Input = (u64, Vec<(u16, u8)>, Vec<u8>);

fn bytes_of(frame: &Frame) -> Vec<u8> {
    frame.payload.iter().fold(frame.head.to_vec(), |all, part| [&all[..], part].concat())
}

fn edited(mut bytes: Vec<u8>, edits: &[(u16, u8)], count: usize, noise: &[u8]) -> Vec<u8> {
    let len = bytes.len();
    edits.iter().take(count).for_each(|(at, value)| bytes[usize::from(*at) % len] ^= value);
    bytes.extend(noise);
    bytes
}

fn hello() -> Vec<u8> {
    let services = frame::Services { block: true, directory: true, segments: true, ..Default::default() };
    let options = connection::Options { services, ..options("a stranger").of_connection(&Services::default(), None) };
    bytes_of(&Connection::new(options, Instant::ZERO).1)
}

fn request(prng: &mut Prng) -> Request {
    let target = Target {
        session: SessionId(prng.between(1, 3)),
        segment: segment(),
        epoch: EPOCH,
        level: base::levels::Level::Open,
        behind: 0,
    };
    let (offset, len) = (prng.between(8, 64) * 512, prng.between(1, 80) * 512);
    let (engine, term, segment, epoch) = (ENGINE, Term(prng.below(3) as u32), target.segment, EPOCH);
    match prng.below(13) {
        7 => Request::ReleaseSegment { engine, term, segment, epoch, most: prng.below(200) as u32 },
        8 => Request::Recover { engine, term, dead: Incarnation(prng.below(9)), after: segment },
        9 => Request::Released { engine: Incarnation(prng.between(6, 7)), after: SegmentId::default() },
        10 => Request::Locate { segment },
        11 => Request::Register { engine, server: "left".into(), address: "left.example:7000".into() },
        12 => {
            let content = engine::content(segment, prng.below(40_000) as usize);
            let source = Source::Left(LeftSegment { incarnation: ENGINE, content });
            let volume = VolumeDescriptor::new(segment.volume, "disk", 1 << 30);
            Request::Assign { engine, term, assignments: vec![Assignment { volume, segment, epoch, source }] }
        }
        0 => Request::Attach { volume: DISK, generation: Generation(5) },
        1 => Request::Detach { session: target.session },
        2 => Request::Read { target, offset, len },
        3 => Request::Flush { target },
        4 => Request::Resolve { name: "disk".into() },
        5 => Request::List,
        _ => {
            let data = vec![3; len as usize];
            let checksums = fragment_checksums(target.segment, offset, &data);
            Request::Write { target, offset, data: data.into(), checksums, stamp: WriteStamp::default() }
        }
    }
}

#[test]
fn a_far_end_harms_nobody_whatever_it_is_sent() {
    let (mut served, mut ordered) = (0, 0);
    bolero::check!().with_iterations(150).with_type().for_each(|(seed, edits, noise): &Input| {
        let mut prng = Prng::new(*seed);
        let mut bytes = hello();
        for sequence in 1..=prng.below(9) {
            let message = Message::Request { sequence, marks: Marks::default(), request: request(&mut prng) };
            bytes.extend(bytes_of(&message.encode(VERSION)));
        }
        let noise = &noise[..noise.len() * usize::from(prng.one_in(4))];
        let bytes = edited(bytes, edits, prng.below(3) as usize, noise);
        let fixture = Fixture::new(*seed);
        let (near, handle, address) = (fixture.dial(), fixture.near.clone(), fixture.address.clone());
        fixture.run(async move {
            let target = attach(&near).await.unwrap();
            write(&near, target, 0, vec![0x55; 4096]).await.unwrap().result.unwrap();
            let stranger = handle.connect(&address).await.unwrap();
            // It may be cut off before it has said everything.
            let _ = stranger.send(vec![bytes.into()]).await;
            handle.sleep(Duration::from_millis(prng.below(4))).await;
            drop(stranger);
            assert!(read(&near, target, 0, 4096).await.unwrap().unwrap() == [0x55; 4096]);
        });
        fixture.settle();
        served += fixture.store.log.borrow().len() - 1;
        ordered += fixture.engine.log.borrow().len();
    });
    assert!(served > 0 && ordered > 0, "{served} requests and {ordered} orders: the target tests nothing");
}

/// What a server may say to one who attaches, reads and lists: a frame to each that it hears.
fn replies(prng: &mut Prng) -> Vec<Vec<u8>> {
    let values = [
        (Kind::Attach, Value::Attached(Attachment { session: SessionId(1), epoch: EPOCH })),
        (Kind::Read, Value::Parts(vec![ReadPart::Data(vec![0x55; 3584].into()), ReadPart::Zeros(512)])),
        (Kind::List, Value::Names(vec!["disk".into()])),
        (Kind::ReleaseSegment, Value::Left { incarnation: ENGINE, len: 300, content: engine::content(segment(), 300) }),
        (Kind::Recover, Value::Holdings((0..3).map(engine::holding).collect())),
        (Kind::Assign, Value::Outcomes(vec![Ok(()); prng.below(4) as usize])),
    ];
    let mut reply = |index: usize| {
        // Mostly what was asked.
        let (kind, value) = if prng.one_in(8) { prng.pick(&values).clone() } else { values[index].clone() };
        let lost = Value::Lost("the other loop has ended".into());
        let value = if kind == Kind::Read && prng.one_in(8) { lost } else { value };
        let reply = Reply { epoch: EPOCH, result: Ok(value), passage: Passage::default() };
        bytes_of(&Message::Reply { sequence: index as u64 + 1, kind, reply }.encode(VERSION))
    };
    vec![hello(), reply(0), reply(1), reply(2), reply(3), reply(4), reply(5)]
}

#[test]
fn a_near_end_survives_whatever_it_is_told() {
    let (mut right, mut wrong) = (0, 0);
    bolero::check!().with_iterations(300).with_type().for_each(|(seed, edits, noise): &Input| {
        let mut prng = Prng::new(*seed);
        let mut frames = replies(&mut prng);
        let at = prng.below(frames.len() as u64) as usize;
        let noise = &noise[..noise.len() * usize::from(prng.one_in(4))];
        frames[at] = edited(std::mem::take(&mut frames[at]), edits, prng.below(3) as usize, noise);
        let fixture = Fixture::new(*seed);
        let (server, any) = (fixture.far.clone(), Address::Tcp((fixture.world.address(fixture.nodes[1]), 0).into()));
        let listener = fixture.world.block_on(&fixture.far, async move { server.listen(&any).await.unwrap() });
        let (address, inside) = (listener.address().clone(), fixture.far.clone());
        let accepting = async move {
            while let Ok(stream) = listener.accept().await {
                let frames = frames.clone();
                let lying = async move {
                    for frame in frames {
                        let (count, _) = stream.receive(AlignedBuf::zeroed(4096), 0).await;
                        if !matches!(count, Ok(1..)) || stream.send(vec![frame.into()]).await.is_err() {
                            return;
                        }
                    }
                };
                inside.spawn(Class::Io, "liar", lying).detach();
            }
        };
        fixture.far.spawn(Class::Io, "another server", accepting).detach();
        let near = NearEnd::dial(&fixture.near, address, Services::default(), options("an agent"));
        let (believed, doubted) = fixture.run(async move {
            let (mut right, mut wrong) = (0, 0);
            if let Ok(target) = attach(&near).await {
                match read(&near, target, 0, 4096).await {
                    Ok(Ok(bytes)) => {
                        assert!(bytes[..3584] == [0x55; 3584] && bytes[3584..] == [0; 512], "wrong bytes");
                        right += 1;
                    }
                    _ => wrong += 1,
                }
            }
            match near.list().await {
                Ok(names) => assert_eq!(names, ["disk"]),
                Err(error) => assert!(matches!(error.kind, ErrorKind::Io | ErrorKind::Invalid), "{error:?}"),
            }
            let owner = near.engine(ENGINE);
            let mut hear = |outcome: base::Result<bool>| match outcome {
                Ok(is_right) => {
                    assert!(is_right, "wrong bytes");
                    right += 1;
                }
                Err(_) => wrong += 1,
            };
            let left = owner.release(Term(1), segment(), EPOCH).await;
            hear(left.map(|left| left.content == engine::content(segment(), 300)));
            let held = owner.recover(Term(1), Incarnation(1)).await;
            hear(held.map(|held| held.into_iter().eq((0..3).map(engine::holding))));
            let volume = VolumeDescriptor::new(segment().volume, "disk", 1 << 30);
            let assignment = Assignment { volume, segment: segment(), epoch: EPOCH, source: Source::Nobody };
            let outcomes = owner.assign(Term(1), vec![assignment; 2]).await;
            assert_eq!(outcomes.len(), 2, "each assignment has its answer, whatever is said");
            outcomes.into_iter().for_each(|outcome| hear(outcome.map(|()| true)));
            (right, wrong)
        });
        right += believed;
        wrong += doubted;
    });
    assert!(right > 0 && wrong > 0, "{right} right, {wrong} wrong: the target tests nothing");
}
