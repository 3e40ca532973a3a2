//! An NBD client for tests, written from the specification and apart from the server's code where it can be: it
//! reads what it is sent strictly, and can also say what no honest client would.

use std::collections::BTreeMap;
use std::io;

use base::AlignedBuf;
use bytes::{Buf, BufMut};
use link::tls::{Channel, Credentials, Role};
use runtime::{Address, Handle};

use crate::nbd::protocol::*;

pub struct Client {
    pub stream: Channel,
    buffer: AlignedBuf,
    start: usize,
    end: usize,
    pub structured: bool,
    next_cookie: u64,
    /// Reads in flight: offset and length.
    reads: BTreeMap<u64, (u64, u32)>,
}

/// What a request came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Response {
    pub cookie: u64,
    pub errno: u32,
    pub message: String,
    /// What a read returned, assembled.
    pub content: Vec<u8>,
    /// Content chunks: length, and whether it is a hole.
    pub chunks: Vec<(u64, bool)>,
    /// Extents of a block status: length and flags.
    pub extents: Vec<(u32, u32)>,
}

impl Client {
    /// Connects and exchanges the first words.
    pub async fn connect(handle: &Handle, address: &Address) -> io::Result<Client> {
        let mut client = Client::connect_silently(handle, address).await?;
        let mut greeting = &client.take(18).await?[..];
        assert_eq!((greeting.get_u64(), greeting.get_u64()), (GREETING_MAGIC, OPTION_MAGIC));
        assert_eq!(greeting.get_u16(), handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        client.send(&3u32.to_be_bytes()).await?;
        Ok(client)
    }

    /// Connects, says and reads nothing.
    pub async fn connect_silently(handle: &Handle, address: &Address) -> io::Result<Client> {
        let stream = handle.connect(address).await?.into();
        let buffer = AlignedBuf::zeroed(256 * 1024);
        let (structured, next_cookie, reads) = (false, 1, BTreeMap::new());
        Ok(Client { stream, buffer, start: 0, end: 0, structured, next_cookie, reads })
    }

    /// Connects and takes an export with everything that can be negotiated.
    pub async fn attach(handle: &Handle, address: &Address, export: &str) -> io::Result<Client> {
        let mut client = Client::connect(handle, address).await?;
        client.negotiate_structured().await?;
        client.select_allocation(export).await?;
        client.go(export).await?.map_err(|(reply, text)| io::Error::other(format!("{reply:#x} {text}")))?;
        Ok(client)
    }

    /// Goes over to TLS. `sneaked` is sent in the open before, by somebody in between.
    pub async fn start_tls(&mut self, credentials: &Credentials, sneaked: &[u8]) -> base::Result<()> {
        let option = [option_bytes(option::STARTTLS, b""), sneaked.to_vec()].concat();
        self.send(&option).await.unwrap();
        assert_eq!(self.option_replies(option::STARTTLS).await.unwrap(), [(option_reply::ACK, vec![])]);
        assert_eq!(self.start, self.end, "nothing comes between");
        let Channel::Open(stream) = self.stream.clone() else { panic!("it is under TLS") };
        self.stream = credentials.connect(stream, Role::Agent).await?;
        Ok(())
    }

    pub async fn negotiate_structured(&mut self) -> io::Result<()> {
        assert_eq!(self.option(option::STRUCTURED_REPLY, b"").await?, [(option_reply::ACK, vec![])]);
        self.structured = true;
        Ok(())
    }

    pub async fn select_allocation(&mut self, export: &str) -> io::Result<()> {
        let data = meta_context(export, &[CONTEXT_NAME]);
        let replies = self.option(option::SET_META_CONTEXT, &data).await?;
        let selected = [&CONTEXT_ID.to_be_bytes(), CONTEXT_NAME.as_bytes()].concat();
        assert_eq!(replies, [(option_reply::META_CONTEXT, selected), (option_reply::ACK, vec![])]);
        Ok(())
    }

    /// Takes an export: its size and flags, or the error reply and its message.
    pub async fn go(&mut self, export: &str) -> io::Result<Result<(u64, u16), (u32, String)>> {
        let replies = self.option(option::GO, &info_request(export, &[info::BLOCK_SIZE])).await?;
        let (last, message) = replies.last().unwrap();
        if *last != option_reply::ACK {
            return Ok(Err((*last, String::from_utf8(message.clone()).unwrap())));
        }
        let export = replies.iter().find(|(reply, data)| *reply == option_reply::INFO && data[..2] == [0, 0]);
        let mut data = &export.expect("the description of the export").1[2..];
        Ok(Ok((data.get_u64(), data.get_u16())))
    }

    /// Sends an option and collects its replies up to the final one.
    pub async fn option(&mut self, option: u32, data: &[u8]) -> io::Result<Vec<(u32, Vec<u8>)>> {
        self.send(&option_bytes(option, data)).await?;
        self.option_replies(option).await
    }

    /// Collects the replies to an option up to the final one.
    pub async fn option_replies(&mut self, option: u32) -> io::Result<Vec<(u32, Vec<u8>)>> {
        let mut replies = Vec::new();
        loop {
            let mut header = &self.take(20).await?[..];
            assert_eq!((header.get_u64(), header.get_u32()), (OPTION_REPLY_MAGIC, option));
            let (reply, len) = (header.get_u32(), header.get_u32());
            replies.push((reply, self.take(len as usize).await?));
            if reply == option_reply::ACK || reply >> 31 == 1 {
                return Ok(replies);
            }
        }
    }

    /// Sends a request with a payload of its own and returns its cookie.
    pub async fn request(&mut self, kind: u16, flags: u16, offset: u64, len: u32, payload: &[u8]) -> io::Result<u64> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        if kind == command::READ {
            self.reads.insert(cookie, (offset, len));
        }
        let mut bytes = request_bytes(kind, flags, cookie, offset, len);
        bytes.put_slice(payload);
        self.send(&bytes).await?;
        Ok(cookie)
    }

    /// Sends a request and waits for its response, which must be the next one.
    pub async fn ask(&mut self, kind: u16, flags: u16, offset: u64, len: u32, payload: &[u8]) -> io::Result<Response> {
        let cookie = self.request(kind, flags, offset, len, payload).await?;
        let response = self.response().await?;
        assert_eq!(response.cookie, cookie);
        Ok(response)
    }

    /// Writes `data`.
    pub async fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<Response> {
        self.ask(command::WRITE, 0, offset, data.len() as u32, data).await
    }

    /// Reads a range.
    pub async fn read(&mut self, offset: u64, len: u32) -> io::Result<Response> {
        self.ask(command::READ, 0, offset, len, b"").await
    }

    /// Waits for the next response to any request. Chunks of different replies must not be mixed, which is what this
    /// server promises by sending each reply at once.
    pub async fn response(&mut self) -> io::Result<Response> {
        let mut response = Response::default();
        loop {
            let magic = (&self.take(4).await?[..]).get_u32();
            if magic == SIMPLE_REPLY_MAGIC {
                let mut rest = &self.take(12).await?[..];
                (response.errno, response.cookie) = (rest.get_u32(), rest.get_u64());
                if let Some((_, len)) = self.reads.remove(&response.cookie) {
                    assert!(!self.structured, "a read is answered in chunks once they are negotiated");
                    if response.errno == 0 {
                        response.content = self.take(len as usize).await?;
                    }
                }
                return Ok(response);
            }
            assert_eq!(magic, CHUNK_MAGIC);
            assert!(self.structured);
            let mut rest = &self.take(16).await?[..];
            let (flags, kind, cookie, len) = (rest.get_u16(), rest.get_u16(), rest.get_u64(), rest.get_u32());
            assert!(response.cookie == 0 || response.cookie == cookie);
            response.cookie = cookie;
            let payload = self.take(len as usize).await?;
            self.on_chunk(&mut response, kind, &payload);
            if flags == chunk::FLAG_DONE {
                if let Some((_, len)) = self.reads.remove(&cookie) {
                    assert!(response.errno != 0 || response.content.len() == len as usize, "all of the range");
                }
                return Ok(response);
            }
            assert_eq!(flags, 0);
        }
    }

    fn on_chunk(&self, response: &mut Response, kind: u16, mut payload: &[u8]) {
        let at = response.content.len() as u64;
        let start = self.reads.get(&response.cookie).map(|(offset, _)| *offset);
        match kind {
            chunk::NONE => assert!(payload.is_empty()),
            chunk::OFFSET_DATA => {
                assert_eq!(Some(payload.get_u64()), start.map(|start| start + at));
                assert!(!payload.is_empty());
                response.content.extend_from_slice(payload);
                response.chunks.push((payload.len() as u64, false));
            }
            chunk::OFFSET_HOLE => {
                assert_eq!(Some(payload.get_u64()), start.map(|start| start + at));
                let len = payload.get_u32();
                assert!(len > 0 && payload.is_empty());
                response.content.resize((at + u64::from(len)) as usize, 0);
                response.chunks.push((u64::from(len), true));
            }
            chunk::BLOCK_STATUS => {
                assert_eq!(payload.get_u32(), CONTEXT_ID);
                assert!(!payload.is_empty() && payload.len().is_multiple_of(8));
                while !payload.is_empty() {
                    response.extents.push((payload.get_u32(), payload.get_u32()));
                }
            }
            chunk::ERROR => {
                response.errno = payload.get_u32();
                assert_ne!(response.errno, 0);
                assert_eq!(usize::from(payload.get_u16()), payload.len());
                response.message = String::from_utf8(payload.to_vec()).unwrap();
            }
            other => panic!("chunk type {other}"),
        }
    }

    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.send(vec![bytes.to_vec().into()]).await
    }

    /// Receives exactly `len` bytes.
    pub async fn take(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut taken = Vec::with_capacity(len);
        loop {
            let part = (self.end - self.start).min(len - taken.len());
            taken.extend_from_slice(&self.buffer[self.start..self.start + part]);
            self.start += part;
            if taken.len() == len {
                return Ok(taken);
            }
            let mut buffer = std::mem::replace(&mut self.buffer, AlignedBuf::zeroed(0));
            buffer.set_len(0);
            let room = buffer.capacity();
            let (count, buffer) = self.stream.receive_more(buffer, room).await;
            self.buffer = buffer;
            (self.start, self.end) = (0, count?);
            if self.end == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Whether the server has ended the connection, without another byte.
    pub async fn is_ended(&mut self) -> bool {
        self.take(1).await.is_err()
    }
}

pub fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u64(OPTION_MAGIC);
    out.put_u32(option);
    out.put_u32(data.len() as u32);
    out.put_slice(data);
    out
}

pub fn request_bytes(kind: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u32(REQUEST_MAGIC);
    out.put_u16(flags);
    out.put_u16(kind);
    out.put_u64(cookie);
    out.put_u64(offset);
    out.put_u32(len);
    out
}

pub fn info_request(export: &str, wanted: &[u16]) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u32(export.len() as u32);
    out.put_slice(export.as_bytes());
    out.put_u16(wanted.len() as u16);
    wanted.iter().for_each(|item| out.put_u16(*item));
    out
}

pub fn meta_context(export: &str, queries: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u32(export.len() as u32);
    out.put_slice(export.as_bytes());
    out.put_u32(queries.len() as u32);
    for query in queries {
        out.put_u32(query.len() as u32);
        out.put_slice(query.as_bytes());
    }
    out
}
