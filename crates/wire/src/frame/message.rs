//! Messages to frames, and back.

use base::checksum::crc32c;
use base::limits::FRAME_BODY_MAX;
use base::{Bytes, Error, Result};

use super::error::{changed, error, put_error};
use super::extension::{passage, put_passage};
use super::fields::Fields;
use super::header::{HEADER_LEN, Header, Marks};
use super::hello::Hello;
use super::kind::{Kind, Type};
use super::reply::{self, Value};
use super::request::Request;
use crate::service::Reply;

/// What a frame says.
#[derive(Clone, Debug)]
pub enum Message {
    /// The first one of either side.
    Hello(Hello),
    /// Nothing, but that its sender is there.
    KeepAlive,
    /// Why its sender ends the connection: the last one.
    Goodbye(Error),
    /// What the other side is asked.
    Request {
        /// Its number, which the reply has too.
        sequence: u64,
        /// For those who schedule it.
        marks: Marks,
        /// What is asked.
        request: Request,
    },
    /// What came of a request.
    Reply {
        /// The number of the request.
        sequence: u64,
        /// The kind of the request.
        kind: Kind,
        /// Its outcome.
        reply: Reply<Value>,
    },
}

/// A message as it is sent: everything but the payload in one piece, and the payload as it was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Header, extensions and body.
    pub head: Bytes,
    /// The payload, in parts.
    pub payload: Vec<Bytes>,
}

impl Frame {
    /// Its bytes in all.
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.iter().map(Bytes::len).sum::<usize>()
    }

    /// Never: a frame has a header.
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl Message {
    /// Its frame, under the version that both sides agreed on.
    ///
    /// # Panics
    /// A request that [`Request::check`] refuses, or a reply that does not suit its request or is too long: bugs.
    pub fn encode(&self, version: u8) -> Frame {
        let mut out = vec![0; HEADER_LEN];
        let mut header = self.fields(version);
        if let Message::Reply { reply, .. } = self {
            put_passage(&mut out, &reply.passage);
        }
        header.extensions_len = (out.len() - HEADER_LEN) as u32;
        let mut payload = vec![];
        match self {
            Message::Hello(hello) => hello.put(&mut out),
            Message::KeepAlive => {}
            Message::Goodbye(error) => put_error(&mut out, error),
            Message::Request { request, .. } => {
                request.put_body(&mut out);
                (payload, header.payload_checksum) = request.payload();
            }
            Message::Reply { kind, reply, .. } => {
                (payload, header.payload_checksum) = reply::put_body(&mut out, *kind, reply);
            }
        }
        header.body_len = (out.len() - HEADER_LEN) as u32 - header.extensions_len;
        assert!(header.body_len as usize <= FRAME_BODY_MAX, "a body of {} bytes", header.body_len);
        header.payload_len = payload.iter().map(Bytes::len).sum::<usize>() as u32;
        header.rest_checksum = crc32c(&out[HEADER_LEN..]);
        out[..HEADER_LEN].copy_from_slice(&header.encode());
        Frame { head: out.into(), payload }
    }

    /// Reads a message: `rest` and `payload` are as long as its header says.
    ///
    /// # Errors
    /// `Corrupt`: bytes changed on their way. `Invalid`: a type, or something in it, that this version does not know.
    pub fn decode(header: &Header, rest: &[u8], payload: Bytes) -> Result<Message> {
        assert!(
            (rest.len(), payload.len()) == (header.rest_len(), header.payload_len as usize),
            "all of a frame is there"
        );
        if crc32c(rest) != header.rest_checksum {
            return Err(changed("the body of a frame"));
        }
        let kind = Type::from_code(header.code).ok_or_else(|| {
            Error::invalid(format!("a frame of type {}, which this version does not know: upgrade it", header.code))
        })?;
        let (extensions, body) = rest.split_at(header.extensions_len as usize);
        let has_its_own = matches!(kind, Type::Request(Kind::Write));
        if !has_its_own && crc32c(&payload) != header.payload_checksum {
            return Err(changed("the payload of a frame"));
        }
        let message = Self::read(kind, header, extensions, body, payload).ok_or_else(|| malformed(kind))?;
        if !message.has_only(header) {
            return Err(malformed(kind));
        }
        if let Message::Request { request, .. } = &message {
            request.check()?;
            if !request.is_intact() {
                return Err(changed("the payload of a write"));
            }
        }
        Ok(message)
    }

    fn read(kind: Type, header: &Header, extensions: &[u8], body: &[u8], payload: Bytes) -> Option<Message> {
        let mut body = Fields(body);
        let passage = passage(extensions)?;
        let message = match kind {
            // A later version may say more.
            Type::Hello => return Some(Message::Hello(Hello::get(&mut body)?)),
            Type::KeepAlive => Message::KeepAlive,
            Type::Goodbye => {
                let code = body.u8()?;
                Message::Goodbye(error(code, &mut body)?)
            }
            Type::Request(kind) => Message::Request {
                sequence: header.sequence,
                marks: header.marks,
                request: Request::get(kind, header, &mut body, payload)?,
            },
            Type::Reply(kind) => {
                let result = reply::result(kind, header, &mut body, payload)?;
                Message::Reply {
                    sequence: header.sequence,
                    kind,
                    reply: Reply { epoch: header.epoch, result, passage },
                }
            }
        };
        body.end().map(|()| message)
    }

    fn kind(&self) -> Type {
        match self {
            Message::Hello(_) => Type::Hello,
            Message::KeepAlive => Type::KeepAlive,
            Message::Goodbye(_) => Type::Goodbye,
            Message::Request { request, .. } => Type::Request(request.kind()),
            Message::Reply { kind, .. } => Type::Reply(*kind),
        }
    }

    /// The fields of its header, but for lengths and checksums.
    fn fields(&self, version: u8) -> Header {
        let (kind, fields) = (self.kind(), Header::default());
        let fields = match self {
            Message::Hello(_) | Message::KeepAlive | Message::Goodbye(_) => fields,
            Message::Request { sequence, marks, request } => {
                let marks = Marks { level: request.level().unwrap_or(marks.level), ..*marks };
                Header { sequence: *sequence, marks, ..request.fields() }
            }
            Message::Reply { sequence, reply, .. } => Header { sequence: *sequence, ..reply::fields(reply) },
        };
        Header { version: if kind.is_timeless() { 0 } else { version }, code: kind.code(), ..fields }
    }

    /// Whether `header` says nothing that this message does not use.
    fn has_only(&self, header: &Header) -> bool {
        let &Header { extensions_len, body_len, payload_len, rest_checksum, payload_checksum, .. } = header;
        let payload_is_used = match self {
            Message::Request { request: Request::Write { data, .. }, .. } => {
                payload_checksum == 0 && data.len() as u64 == header.len
            }
            Message::Request { request: Request::Append { data, .. }, .. } => data.len() as u64 == header.len,
            Message::Request { request: Request::RepairCopy { data, .. }, .. } => data.len() as u64 == header.len,
            // What they are made of is all of it.
            Message::Request { request: Request::Assign { .. }, .. }
            | Message::Reply {
                reply: Reply { result: Ok(Value::Parts(_) | Value::Left { .. } | Value::Observed(_)), .. },
                ..
            } => true,
            _ => (payload_len, payload_checksum) == (0, 0),
        };
        let lengths = Header {
            extensions_len,
            body_len,
            payload_len,
            rest_checksum,
            payload_checksum,
            ..self.fields(header.version)
        };
        payload_is_used && lengths == *header
    }
}

fn malformed(kind: Type) -> Error {
    let what = match kind {
        Type::Request(kind) => format!("a request ({})", kind.name()),
        Type::Reply(kind) => format!("a reply ({})", kind.name()),
        Type::Hello => "a hello".to_owned(),
        Type::KeepAlive => "a keep-alive".to_owned(),
        Type::Goodbye => "a goodbye".to_owned(),
    };
    Error::invalid(format!(
        "the frame of {what} does not say what one of its version says: the other side has a bug, or is no part of Levee"
    ))
}
