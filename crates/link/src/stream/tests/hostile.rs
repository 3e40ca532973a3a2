//! Peers that say what cannot be right, say nothing, or take nothing: each is given up with a clear reason, alone.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use base::io::fragment_checksums;
use base::{AlignedBuf, Bytes, Error, ErrorKind, Generation, Instant, Passage, WriteStamp};
use runtime::{Address, Class, Handle, Stream, Task};
use wire::connection::{self, Connection, Event, Needs};
use wire::frame::{self, FEATURES, Frame, Hello, Marks, Message, Request, VERSION, Value};
use wire::{BlockService, Reply, SessionId, Target, VolumeDirectory};

use super::store::EPOCH;
use super::world::{DISK, Fixture, SILENCE, attach, options, read, segment, write};
use crate::stream::{NearEnd, Services};

/// A peer that has a socket, speaks the protocol, and does what it likes.
struct Raw {
    handle: Handle,
    stream: Stream,
    connection: Connection,
    there: Bytes,
}

fn bytes_of(frame: &Frame) -> Vec<u8> {
    frame.payload.iter().fold(frame.head.to_vec(), |all, part| [&all[..], part].concat())
}

fn request(sequence: u64, request: Request) -> Message {
    Message::Request { sequence, marks: Marks::default(), request }
}

impl Raw {
    async fn connect(handle: &Handle, address: &Address) -> Raw {
        Raw::over(handle, handle.connect(address).await.unwrap(), frame::Services::default()).await
    }

    /// Says hello over `stream`.
    async fn over(handle: &Handle, stream: Stream, services: frame::Services) -> Raw {
        let options = connection::Options {
            services,
            requests_max: 64,
            bytes_max: 32 << 20,
            silence: Duration::from_secs(3600),
            name: "a stranger".into(),
        };
        let (connection, hello) = Connection::new(options, Instant::ZERO);
        let raw = Raw { handle: handle.clone(), stream, connection, there: Bytes::new() };
        raw.send(bytes_of(&hello)).await;
        raw
    }

    async fn greeted(handle: &Handle, address: &Address) -> Raw {
        let mut raw = Raw::connect(handle, address).await;
        assert!(matches!(raw.next().await, Some(Event::Greeted(Hello { name, .. })) if name == "the store"));
        raw
    }

    /// Sends bytes; it may be cut off before the end of them.
    async fn send(&self, bytes: Vec<u8>) {
        let _ = self.stream.send(vec![bytes.into()]).await;
    }

    async fn say(&self, message: &Message) {
        self.send(bytes_of(&message.encode(VERSION))).await;
    }

    /// Asks, and waits for the reply.
    async fn ask(&mut self, asked: Request) -> base::Result<Value> {
        let (_, frame) = self.connection.ask(Instant::ZERO, asked, Marks::default());
        self.send(bytes_of(&frame)).await;
        match self.next().await {
            Some(Event::Reply { reply, .. }) => reply.result,
            other => panic!("no reply, but {other:?}"),
        }
    }

    /// What the other side says next; nothing where it has ended the connection.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Needs::Payload(len) = self.connection.needs() {
                if self.there.len() >= len {
                    return Some(self.connection.receive_payload(self.there.split_to(len)).unwrap());
                }
            } else if let Some(event) = self.connection.receive(&mut self.there).unwrap() {
                return Some(event);
            } else if let Needs::Payload(_) = self.connection.needs() {
                continue;
            }
            let (count, buffer) = self.stream.receive(AlignedBuf::zeroed(4096), 0).await;
            match count {
                Ok(count @ 1..) => self.there = [&self.there[..], &buffer[..count]].concat().into(),
                _ => return None,
            }
        }
    }

    /// Why the other side ends the connection, which it does then.
    async fn parting(&mut self) -> String {
        let Some(Event::Goodbye(error)) = self.next().await else { panic!("no goodbye") };
        assert!(self.next().await.is_none(), "it has ended");
        error.message
    }
}

/// Whatever one peer says, another one goes on.
fn beside_a_bystander<F: Future<Output = ()> + 'static>(seed: u64, act: impl FnOnce(Handle, Address) -> F) -> Fixture {
    let fixture = Fixture::new(seed);
    let near = fixture.dial();
    let asking = near.clone();
    let target = fixture.run(async move {
        let target = attach(&asking).await.unwrap();
        write(&asking, target, 0, vec![0x55; 4096]).await.unwrap().result.unwrap();
        target
    });
    fixture.run(act(fixture.near.clone(), fixture.address.clone()));
    fixture.run(async move { assert!(read(&near, target, 0, 4096).await.unwrap().unwrap() == [0x55; 4096]) });
    fixture.settle();
    fixture
}

#[test]
fn what_cannot_be_right_ends_that_connection_with_the_reason() {
    let target =
        Target { session: SessionId(1), segment: segment(), epoch: EPOCH, level: base::levels::Level::Open, behind: 0 };
    let data = Bytes::from(vec![3; 32 << 10]);
    let checksums = fragment_checksums(target.segment, 0, &data);
    let asked = Request::Write { target, offset: 0, data, checksums, stamp: WriteStamp::default() };
    let good = bytes_of(&request(1, asked).encode(VERSION));
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 4;
        bytes
    };
    let attach = || Request::Attach { volume: DISK, generation: Generation(1) };
    let hello = Raw::hello();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"GET / HTTP/1.1\r\nHost: store\r\n\r\n".repeat(5), "another service"),
        (flipped(40), "the header of a frame has the wrong checksum"),
        (flipped(130), "the body of a frame has the wrong checksum"),
        (flipped(20_000), "the payload of a write has the wrong checksum"),
        (bytes_of(&request(1, attach()).encode(2)), "a frame of version 2"),
        (bytes_of(&request(7, attach()).encode(VERSION)), "a frame is missing"),
        (bytes_of(&hello.encode(VERSION)), "a second hello"),
        ((1..=9).flat_map(|n| bytes_of(&request(n, attach()).encode(VERSION))).collect(), "were granted"),
    ];
    for (index, (bytes, says)) in cases.into_iter().enumerate() {
        let fixture = beside_a_bystander(index as u64, async move |handle, address| {
            let mut raw = Raw::greeted(&handle, &address).await;
            raw.send(bytes).await;
            let why = raw.parting().await;
            assert!(why.contains(says) && why.contains("a connection with a stranger is given up"), "{says}: {why}");
        });
        assert_eq!(fixture.end.statistics().violations, 1, "{says}");
    }
}

impl Raw {
    fn hello() -> Message {
        Message::Hello(Hello {
            versions: VERSION..=VERSION,
            features: FEATURES,
            required: 0,
            services: frame::Services::default(),
            requests_max: 1,
            bytes_max: 32 << 20,
            silence_ms: 1000,
            name: "a stranger".into(),
        })
    }
}

#[test]
fn a_session_of_another_connection_is_refused_and_nothing_else() {
    beside_a_bystander(20, async |handle, address| {
        let mut raw = Raw::greeted(&handle, &address).await;
        // The bystander's.
        let target = Target {
            session: SessionId(1),
            segment: segment(),
            epoch: EPOCH,
            level: base::levels::Level::Open,
            behind: 0,
        };
        for asked in [
            Request::Read { target, offset: 0, len: 512 },
            Request::Discard { target, offset: 0, len: 512, stamp: WriteStamp::default() },
            Request::Detach { session: target.session },
        ] {
            let refused = raw.ask(asked).await.unwrap_err();
            assert!(refused.kind == ErrorKind::Fenced && refused.message.contains("attach again"), "{refused}");
        }
        let Value::Attached(own) = raw.ask(Request::Attach { volume: DISK, generation: Generation(4) }).await.unwrap()
        else {
            panic!("it is attached")
        };
        let target = Target { session: own.session, ..target };
        assert!(raw.ask(Request::Flush { target }).await.is_ok());
        raw.ask(Request::Detach { session: own.session }).await.unwrap();
        let refused = raw.ask(Request::Flush { target }).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Fenced);
    });
}

/// It asks for what it has credit for, and takes none of it: nothing piles up, and it is given up.
#[test]
fn a_peer_that_stops_reading_is_given_up() {
    let fixture = beside_a_bystander(21, async |handle, address| {
        let mut raw = Raw::greeted(&handle, &address).await;
        let Value::Attached(own) = raw.ask(Request::Attach { volume: DISK, generation: Generation(4) }).await.unwrap()
        else {
            panic!("it is attached")
        };
        let target = Target {
            session: own.session,
            segment: segment(),
            epoch: EPOCH,
            level: base::levels::Level::Open,
            behind: 0,
        };
        let since = handle.now();
        // Each is 1 MiB of written bytes; it asks on and on, and never takes what comes.
        let data = Bytes::from(vec![1; 1 << 20]);
        let checksums = fragment_checksums(target.segment, 1 << 30, &data);
        let asked = Request::Write { target, offset: 1 << 30, data, checksums, stamp: WriteStamp::default() };
        raw.ask(asked).await.unwrap();
        let mut sequence = 2;
        while handle.now().since(since) < SILENCE + SILENCE / 2 {
            sequence += 1;
            raw.say(&request(sequence, Request::Read { target, offset: 1 << 30, len: 1 << 20 })).await;
            handle.sleep(Duration::from_millis(20)).await;
        }
        // Bytes that were on their way, and then the end.
        let (mut received, mut buffer) = (0, AlignedBuf::zeroed(1 << 16));
        loop {
            let (count, back) = raw.stream.receive(buffer, 0).await;
            buffer = back;
            match count {
                Ok(count @ 1..) => received += count,
                _ => break,
            }
        }
        assert!(received < 2 << 20, "{received} bytes were sent to one who takes none");
    });
    // Eight replies may lie there, one more shows that it is behind, and eight more may have been asked for by then.
    let reads = fixture.store.reads.get();
    assert!((9..=8 + 1 + 8).contains(&reads), "{reads} reads were done for one who takes nothing");
    assert_eq!(fixture.end.statistics().violations, 0, "it broke no rule");
}

/// It is there, and says so, but takes nothing.
#[test]
fn a_peer_that_says_that_it_is_there_and_reads_nothing_is_given_up() {
    let fixture = beside_a_bystander(22, async |handle, address| {
        let mut raw = Raw::greeted(&handle, &address).await;
        let Value::Attached(own) = raw.ask(Request::Attach { volume: DISK, generation: Generation(4) }).await.unwrap()
        else {
            panic!("it is attached")
        };
        let target = Target {
            session: own.session,
            segment: segment(),
            epoch: EPOCH,
            level: base::levels::Level::Open,
            behind: 0,
        };
        let data = Bytes::from(vec![1; 4 << 20]);
        let checksums = fragment_checksums(target.segment, 1 << 30, &data);
        let asked = Request::Write { target, offset: 1 << 30, data, checksums, stamp: WriteStamp::default() };
        raw.ask(asked).await.unwrap();
        raw.say(&request(3, Request::Read { target, offset: 1 << 30, len: 4 << 20 })).await;
        for _ in 0..20 {
            raw.say(&Message::KeepAlive).await;
            handle.sleep(SILENCE / 10).await;
        }
        handle.sleep(SILENCE / 10).await;
        // The far end has ended it; a send shows that, or the next one.
        let gone = async |raw: &Raw| raw.stream.send(vec![Bytes::from_static(b"x")]).await.is_err();
        assert!(gone(&raw).await || gone(&raw).await || gone(&raw).await, "it is still there");
    });
    assert_eq!(fixture.end.statistics().violations, 0, "it broke no rule");
}

#[test]
fn a_peer_that_says_nothing_or_too_little_is_given_up() {
    for said in 0..3 {
        beside_a_bystander(30 + said, async move |handle, address| {
            let since = handle.now();
            let mut raw = match said {
                0 => {
                    // Not even a hello.
                    let stream = handle.connect(&address).await.unwrap();
                    Raw { stream, ..Raw::connect(&handle, &address).await }
                }
                1 => Raw::greeted(&handle, &address).await,
                _ => {
                    let raw = Raw::greeted(&handle, &address).await;
                    let half = bytes_of(&request(1, Request::List).encode(VERSION));
                    raw.send(half[..100].to_vec()).await;
                    raw
                }
            };
            while raw.next().await.is_some() {}
            let waited = handle.now().since(since);
            assert!(waited >= SILENCE - SILENCE / 100 && waited < SILENCE + SILENCE / 10, "{waited:?}");
            drop(raw.handle);
        });
    }
}

#[test]
fn one_too_many_is_closed_at_once() {
    let fixture = beside_a_bystander(40, async |handle, address| {
        let mut raws = Vec::new();
        for _ in 0..3 {
            raws.push(Raw::greeted(&handle, &address).await);
        }
        let mut more = Raw::connect(&handle, &address).await;
        let why = more.parting().await;
        assert!(why.contains("it has 4 connections, as many as it takes"), "{why}");
        drop(raws.pop());
        handle.sleep(Duration::from_millis(10)).await;
        drop(Raw::greeted(&handle, &address).await);
    });
    assert_eq!(fixture.end.statistics().refused, 1);
}

/// A server that is none, or another version: whoever dials it hears what to do.
#[test]
fn a_near_end_says_what_is_wrong_with_the_other_side() {
    let versions = |versions| {
        let Message::Hello(hello) = Raw::hello() else { unreachable!("it is one") };
        bytes_of(&Message::Hello(Hello { versions, ..hello }).encode(VERSION))
    };
    let cases = [
        (b"220 mail.example.org ESMTP ready, and more than a header long".repeat(3), "another service"),
        (versions(2..=3), "speaks versions 2 to 3 of the protocol, and this side 1 to 1: upgrade the older one"),
        (vec![], "nothing came from the other side for 2s"),
    ];
    for (index, (bytes, says)) in cases.into_iter().enumerate() {
        let fixture = Fixture::new(50 + index as u64);
        let (server, any) = (fixture.far.clone(), Address::Tcp((fixture.world.address(fixture.nodes[1]), 0).into()));
        let listener = fixture.world.block_on(&fixture.far, async move { server.listen(&any).await.unwrap() });
        let address = listener.address().clone();
        let serving = async move {
            let stream = listener.accept().await.unwrap();
            let _ = stream.send(vec![bytes.into()]).await;
            // Whatever comes is taken.
            loop {
                let (count, _) = stream.receive(AlignedBuf::zeroed(4096), 0).await;
                if !matches!(count, Ok(1..)) {
                    return;
                }
            }
        };
        fixture.far.spawn(Class::Io, "another server", serving).detach();
        let near = Rc::new(NearEnd::dial(&fixture.near, address, Services::default(), options("an agent")));
        let refused = fixture.run(async move { near.list().await.unwrap_err() });
        assert!(refused.message.contains(says), "{says}: {refused}");
    }
}

#[test]
fn one_that_waits_for_its_reply_keeps_its_session() {
    let fixture = Fixture::new(60);
    fixture.store.takes.set(3 * SILENCE);
    let near = fixture.dial();
    fixture.run(async move {
        let target = attach(&near).await.unwrap();
        assert!(near.flush(target).await.unwrap().result.is_ok(), "slow is not silent");
    });
}

/// Who is shown the door may still be talking: it hears why, and not only that nobody listens.
#[test]
fn why_a_peer_has_gone_counts_for_more_than_that_it_has() {
    let said = Rc::new(Cell::new(0));
    for seed in 0..100 {
        let fixture = Fixture::new(seed);
        let (server, any) = (fixture.far.clone(), Address::Tcp((fixture.world.address(fixture.nodes[1]), 0).into()));
        let listener = fixture.world.block_on(&fixture.far, async move { server.listen(&any).await.unwrap() });
        let address = listener.address().clone();
        let handle = fixture.far.clone();
        let serving = async move {
            let services = frame::Services { directory: true, ..frame::Services::default() };
            let mut raw = Raw::over(&handle, listener.accept().await.unwrap(), services).await;
            assert!(matches!(raw.next().await, Some(Event::Greeted(_))));
            for _ in 0..100 {
                let Some(Event::Request { sequence, .. }) = raw.next().await else { panic!("a request") };
                let reply = Reply { epoch: EPOCH, result: Ok(Value::Names(vec![])), passage: Passage::default() };
                let frame = raw.connection.answer(handle.now(), sequence, reply);
                raw.send(bytes_of(&frame)).await;
            }
            let goodbye = raw.connection.goodbye(handle.now(), &Error::invalid("nobody like that may ask here"));
            raw.send(bytes_of(&goodbye)).await;
        };
        fixture.far.spawn(Class::Io, "a short conversation", serving).detach();
        let near = NearEnd::dial(&fixture.near, address, Services::default(), options("an agent"));
        let asks = |_| {
            let near = near.clone();
            let asking = async move {
                loop {
                    if let Err(error) = near.list().await {
                        return error;
                    }
                }
            };
            fixture.near.spawn(Class::Io, "asks", asking)
        };
        let asking: Vec<Task<Error>> = (0..32).map(asks).collect();
        let said = said.clone();
        fixture.run(async move {
            for asking in asking {
                let error = asking.await;
                assert!(!error.message.contains("Broken pipe"), "seed {seed}: {error}");
                said.set(said.get() + u64::from(error.message.contains("nobody like that may ask here")));
            }
        });
    }
    // The others: a connection that is reset takes with it what is still on its way.
    assert!(said.get() > 100 * 32 / 2, "{said:?} of those who asked heard why");
}
