//! One stream between two processes, as either end sees it: what may be said now, and what was said. No I/O.
//!
//! **Intuition.** Both ends are alike. Each says a hello, then asks and answers. Whoever has the socket feeds in what
//! arrives and sends what comes out; this machine decides what it means, and gives the connection up at the first thing
//! that cannot be right: after a wrong byte nobody knows where the next frame begins, and what was in flight is tried
//! again over another connection.
//!
//! **Names.** The *peer* is the other end. *Asked* is what this end has asked and has no reply to, *taken* what the peer
//! has asked and was not answered yet. The *credit* of an end is how many requests, and how many bytes of payload with
//! them, it may have asked at a time; the hello grants it, a request takes it, its reply gives it back. A read takes
//! what it will bring. *Silence* is how long an end waits for any byte at all.
//!
//! **Invariants.** Nothing but a hello comes first, and no hello later. Nobody has more in flight than its credit: so
//! whoever receives never has to stop receiving, and keep-alives get through. Requests are numbered one by one, so that
//! a frame that is lost or comes twice is noticed. A reply answers what was asked and brings what was asked for. No
//! memory is promised to a payload that nobody asked for or has credit for.
//!
//! **Flow.** [`Connection::new`] gives the hello -> [`Connection::receive`] takes what arrives until
//! [`Event::Greeted`] -> [`Connection::ask`] and [`Connection::answer`] give frames, [`Connection::receive`] events.
//! [`Connection::on_time`] is to be called at [`Connection::next_deadline`]. After an error only
//! [`Connection::goodbye`] is left to be sent.

use std::time::Duration;

use base::{Bytes, Error, Instant, Map, Result};

use crate::frame::{
    FEATURES, Frame, HEADER_LEN, Header, Hello, Kind, Marks, Message, Request, Services, VERSION, Value,
};
use crate::service::Reply;

/// A payload of so many bytes is asked for by itself ([`Needs::Payload`]), so that it can be received where it is to
/// stay; a shorter one is a part of what arrived with its header.
pub const LARGE_PAYLOAD: usize = 16 * 1024;
/// Keep-alives within the silence of the peer: one or two may be late.
const KEEP_ALIVES: u32 = 3;

/// What an end says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// What it does for the peer.
    pub services: Services,
    /// Requests that it takes at a time.
    pub requests_max: u32,
    /// Bytes of payload that these may have; at least the largest request.
    pub bytes_max: u64,
    /// It gives the peer up after so long without a byte, or without one taken.
    pub silence: Duration,
    /// What it is, for the peer's messages.
    pub name: String,
}

/// One end of a stream.
pub struct Connection {
    hello: Hello,
    silence: Duration,
    peer: Option<Peer>,
    asked: InFlight,
    taken: InFlight,
    /// A frame whose payload is being received elsewhere.
    incomplete: Option<(Header, Bytes)>,
    needs: Needs,
    /// When the last byte came.
    heard: Instant,
    /// When the last frame was given out.
    said: Instant,
    /// Since when what is being sent waits for the peer to take it.
    sends_since: Option<Instant>,
    /// This end receives. While it does not, nobody is silent.
    is_listening: bool,
}

/// What is known of the peer once its hello has come.
struct Peer {
    hello: Hello,
    version: u8,
    keep_alive: Duration,
}

/// Requests in one direction.
#[derive(Default)]
struct InFlight {
    by_sequence: Map<u64, (Kind, u64)>,
    last: u64,
    bytes: u64,
}

impl InFlight {
    fn has_room(&self, bytes: u64, granted_by: &Hello) -> bool {
        self.by_sequence.len() < granted_by.requests_max as usize
            && self.bytes.checked_add(bytes).is_some_and(|bytes| bytes <= granted_by.bytes_max)
    }

    fn insert(&mut self, kind: Kind, bytes: u64) -> u64 {
        self.last += 1;
        self.bytes += bytes;
        self.by_sequence.insert(self.last, (kind, bytes));
        self.last
    }

    fn remove(&mut self, sequence: u64) -> Option<(Kind, u64)> {
        let found = self.by_sequence.remove(&sequence)?;
        self.bytes -= found.1;
        Some(found)
    }
}

/// What is to be received before the next event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Needs {
    /// Bytes, until so many are there that were not taken yet.
    More(usize),
    /// So many bytes of a payload, for [`Connection::receive_payload`] in one piece.
    Payload(usize),
}

/// What the peer has said.
#[derive(Debug)]
pub enum Event {
    /// Its hello: from here on it may be asked, and asks.
    Greeted(Hello),
    /// It asks; to be answered by [`Connection::answer`] with the same number.
    Request {
        /// The number.
        sequence: u64,
        /// For those who schedule it.
        marks: Marks,
        /// What it asks.
        request: Request,
    },
    /// It has answered what this end has asked under that number.
    Reply {
        /// The number.
        sequence: u64,
        /// The outcome.
        reply: Reply<Value>,
    },
    /// It ends the connection, and says why.
    Goodbye(Error),
}

impl Connection {
    /// A new connection, and the first frame to be sent.
    pub fn new(options: Options, now: Instant) -> (Connection, Frame) {
        let hello = Hello {
            versions: VERSION..=VERSION,
            features: FEATURES,
            required: FEATURES,
            services: options.services,
            requests_max: options.requests_max,
            bytes_max: options.bytes_max,
            silence_ms: u32::try_from(options.silence.as_millis()).unwrap_or(u32::MAX),
            name: options.name,
        };
        let frame = Message::Hello(hello.clone()).encode(VERSION);
        let connection = Connection {
            hello,
            silence: options.silence,
            peer: None,
            asked: InFlight::default(),
            taken: InFlight::default(),
            incomplete: None,
            needs: Needs::More(HEADER_LEN),
            heard: now,
            said: now,
            sends_since: None,
            is_listening: true,
        };
        (connection, frame)
    }

    /// What the peer is called in messages.
    pub fn peer_name(&self) -> &str {
        self.peer.as_ref().map_or("the other side", |peer| &peer.hello.name)
    }

    /// Takes frames from the front of `bytes`, which are what arrived and was not taken yet, until one is an event. If
    /// there is none, [`Self::needs`] says what to receive.
    ///
    /// # Errors
    /// `Corrupt`, `Invalid`: what arrived cannot be right. The connection is to be given up.
    pub fn receive(&mut self, bytes: &mut Bytes) -> Result<Option<Event>> {
        assert!(self.incomplete.is_none(), "a payload is received before what follows it");
        loop {
            self.needs = Needs::More(HEADER_LEN);
            let Some(header) = bytes.first_chunk::<HEADER_LEN>() else { return Ok(None) };
            let header = Header::decode(header)?;
            self.check(&header)?;
            let (payload_len, head_len) = (header.payload_len as usize, HEADER_LEN + header.rest_len());
            let is_large = payload_len >= LARGE_PAYLOAD;
            let needed = head_len + if is_large { 0 } else { payload_len };
            if bytes.len() < needed {
                self.needs = Needs::More(needed);
                return Ok(None);
            }
            let mut head = bytes.split_to(needed);
            if is_large {
                self.incomplete = Some((header, head.slice(HEADER_LEN..)));
                self.needs = Needs::Payload(payload_len);
                return Ok(None);
            }
            let payload = head.split_off(head_len);
            let event = self.accept(&header, &head[HEADER_LEN..], payload)?;
            if event.is_some() {
                return Ok(event);
            }
        }
    }

    /// What to receive before the next event.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// Takes the payload that [`Needs::Payload`] asked for.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn receive_payload(&mut self, payload: Bytes) -> Result<Event> {
        let (header, rest) = self.incomplete.take().expect("a payload was asked for");
        self.needs = Needs::More(HEADER_LEN);
        let event = self.accept(&header, &rest, payload)?;
        Ok(event.expect("what has a payload is an event"))
    }

    /// Whether the peer's credit allows another request that moves so many bytes.
    pub fn may_ask(&self, bytes: u64) -> bool {
        self.peer.as_ref().is_some_and(|peer| self.asked.has_room(bytes, &peer.hello))
    }

    /// Asks the peer: the number of the request, and its frame.
    ///
    /// # Panics
    /// There is no credit ([`Self::may_ask`]), or the request is none ([`Request::check`]).
    pub fn ask(&mut self, now: Instant, request: Request, marks: Marks) -> (u64, Frame) {
        assert!(self.may_ask(request.bytes()), "nobody asks beyond its credit");
        let sequence = self.asked.insert(request.kind(), request.bytes());
        let message = Message::Request { sequence, marks, request };
        (sequence, self.say(now, &message))
    }

    /// Answers what the peer has asked under this number.
    ///
    /// # Panics
    /// It has not, or was answered before.
    pub fn answer(&mut self, now: Instant, sequence: u64, reply: Reply<Value>) -> Frame {
        let (kind, _) = self.taken.remove(sequence).expect("what was asked is answered once");
        self.say(now, &Message::Reply { sequence, kind, reply })
    }

    /// The last frame: why this end ends the connection.
    pub fn goodbye(&mut self, now: Instant, error: &Error) -> Frame {
        self.say(now, &Message::Goodbye(error.clone()))
    }

    /// Bytes have come.
    pub fn on_bytes(&mut self, now: Instant) {
        self.heard = now;
    }

    /// Bytes are being sent, or the last of them were taken.
    pub fn on_sending(&mut self, now: Instant, is_sending: bool) {
        self.sends_since = is_sending.then_some(now);
    }

    /// This end receives, or does not until the peer has taken what waits for it.
    pub fn on_listening(&mut self, now: Instant, is_listening: bool) {
        self.is_listening = is_listening;
        self.heard = now;
    }

    /// When [`Self::on_time`] is to be called again.
    pub fn next_deadline(&self) -> Instant {
        let patience = self.sends_since.map_or(self.heard, |since| since.min(self.heard)) + self.silence;
        match &self.peer {
            Some(peer) => patience.min(self.said + peer.keep_alive),
            None => patience,
        }
    }

    /// Time has passed: a keep-alive to be sent, if nothing else was lately.
    ///
    /// # Errors
    /// `Io`: the peer is silent, or takes nothing. The connection is to be given up.
    pub fn on_time(&mut self, now: Instant) -> Result<Option<Frame>> {
        let (silence, name) = (self.silence, self.peer_name().to_owned());
        if !self.is_listening {
            // Nothing can be heard; whether it takes what waits for it is looked at below.
            self.heard = now;
        } else if now.since(self.heard) >= silence {
            return Err(Error::io(format!(
                "nothing came from {name} for {silence:?}: see whether it runs and the network carries, then connect again"
            )));
        }
        if self.sends_since.is_some_and(|since| now.since(since) >= silence) {
            return Err(Error::io(format!(
                "{name} has taken nothing for {silence:?}: see whether it is stuck, then connect again"
            )));
        }
        let Some(peer) = &self.peer else { return Ok(None) };
        if now.since(self.said) < peer.keep_alive {
            return Ok(None);
        }
        // What is being sent speaks for itself.
        if self.sends_since.is_some() {
            self.said = now;
            return Ok(None);
        }
        Ok(Some(self.say(now, &Message::KeepAlive)))
    }

    /// What must hold between any two calls.
    ///
    /// # Panics
    /// It does not.
    pub fn check_invariants(&self) {
        let within = |in_flight: &InFlight, granted_by: Option<&Hello>| {
            let bytes: u64 = in_flight.by_sequence.values().map(|(_, bytes)| bytes).sum();
            assert_eq!(in_flight.bytes, bytes);
            let granted = granted_by.map_or((0, 0), |hello| (hello.requests_max as usize, hello.bytes_max));
            assert!(in_flight.by_sequence.len() <= granted.0 && bytes <= granted.1, "more in flight than was granted");
            assert!(in_flight.by_sequence.keys().all(|&sequence| sequence <= in_flight.last));
        };
        within(&self.asked, self.peer.as_ref().map(|peer| &peer.hello));
        within(&self.taken, self.peer.as_ref().map(|_| &self.hello));
    }

    fn say(&mut self, now: Instant, message: &Message) -> Frame {
        self.said = now;
        message.encode(self.peer.as_ref().map_or(VERSION, |peer| peer.version))
    }

    /// What a header must be before more is received for it.
    fn check(&self, header: &Header) -> Result<()> {
        let version = self.peer.as_ref().map(|peer| peer.version);
        // What is the same in every version says 0; before the hello nothing else is expected.
        if header.version != 0 && Some(header.version) != version {
            let agreed = version.map_or("none so far".to_owned(), |version| version.to_string());
            return Err(Error::invalid(format!(
                "a frame of version {}, where the version that was agreed on is {agreed}: the other side has a bug",
                header.version
            )));
        }
        if header.payload_len == 0 {
            return Ok(());
        }
        let len = u64::from(header.payload_len);
        let is_wanted = match Kind::ALL.iter().find(|&&kind| kind as u8 == header.code & !Kind::REPLY) {
            Some(Kind::Write | Kind::Append | Kind::RepairCopy | Kind::Assign) if header.code & Kind::REPLY == 0 => {
                self.taken.has_room(len, &self.hello)
            }
            Some(Kind::Read | Kind::ReadFile | Kind::ReleaseSegment | Kind::Observe | Kind::Explain) => {
                self.asked.by_sequence.get(&header.sequence).is_some_and(|(_, asked)| len <= *asked)
            }
            _ => false,
        };
        match is_wanted && version.is_some() {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "a payload of {len} bytes that nobody has asked for, or beyond the credit of its sender: the other side \
                 has a bug"
            ))),
        }
    }

    /// Takes a whole frame; nothing comes of a keep-alive.
    fn accept(&mut self, header: &Header, rest: &[u8], payload: Bytes) -> Result<Option<Event>> {
        let message = Message::decode(header, rest, payload)?;
        match (&message, &self.peer) {
            (Message::Hello(_), None) | (Message::Goodbye(_), _) => {}
            (Message::Hello(_), Some(_)) => return Err(Error::invalid("a second hello: the other side has a bug")),
            (_, None) => return Err(Error::invalid("a frame before the hello: the other side has a bug")),
            // A version of 0 is for what is the same in every version.
            (_, Some(_)) if header.version == 0 => {
                return Err(Error::invalid("a frame without a version: the other side has a bug"));
            }
            (_, Some(_)) => {}
        }
        match message {
            Message::Hello(hello) => self.on_hello(hello).map(Some),
            Message::KeepAlive => Ok(None),
            Message::Goodbye(error) => Ok(Some(Event::Goodbye(error))),
            Message::Request { sequence, marks, request } => self.on_request(sequence, marks, request).map(Some),
            Message::Reply { sequence, kind, reply } => self.on_reply(sequence, kind, reply).map(Some),
        }
    }

    fn on_hello(&mut self, hello: Hello) -> Result<Event> {
        let agreement = self.hello.agree(&hello)?;
        let keep_alive = Duration::from_millis(hello.silence_ms.into()) / KEEP_ALIVES;
        self.peer = Some(Peer { hello: hello.clone(), version: agreement.version, keep_alive });
        Ok(Event::Greeted(hello))
    }

    fn on_request(&mut self, sequence: u64, marks: Marks, request: Request) -> Result<Event> {
        let (kind, bytes) = (request.kind(), request.bytes());
        if sequence != self.taken.last.wrapping_add(1) {
            let last = self.taken.last;
            return Err(Error::invalid(format!(
                "request {sequence} came after request {last}: a frame is missing, or came twice"
            )));
        }
        if !self.hello.services.have(kind) {
            return Err(Error::invalid(format!(
                "this side does no {} for others: is the address that of another service?",
                kind.name()
            )));
        }
        if !self.taken.has_room(bytes, &self.hello) {
            let Hello { requests_max, bytes_max, .. } = self.hello;
            return Err(Error::invalid(format!(
                "more in flight than the {requests_max} requests with {bytes_max} bytes that were granted: the other \
                 side has a bug"
            )));
        }
        self.taken.insert(kind, bytes);
        Ok(Event::Request { sequence, marks, request })
    }

    fn on_reply(&mut self, sequence: u64, kind: Kind, reply: Reply<Value>) -> Result<Event> {
        let asked = self.asked.remove(sequence);
        let Some((_, len)) = asked.filter(|(asked, _)| *asked == kind) else {
            return Err(Error::invalid(format!(
                "a reply ({}) to request {sequence}, which was not asked or is answered already",
                kind.name()
            )));
        };
        if let Ok(Value::Parts(parts)) = &reply.result
            && parts.iter().map(base::ReadPart::len).sum::<u64>() != len
        {
            return Err(Error::invalid(format!("a read of {len} bytes was answered with another number of them")));
        }
        Ok(Event::Reply { sequence, reply })
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
