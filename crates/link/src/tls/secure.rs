//! A byte stream under TLS: what is sent is sealed, what comes is opened, and the rest is the stream's.
//!
//! Sending and receiving are tasks of their own, and share the state of the session between two waits only. A
//! receiver may have to say something too (a change of keys): that goes out with the next bytes that are sent.

use std::cell::RefCell;
use std::io::{self, BufRead, IoSlice, Write};

use base::{AlignedBuf, Bytes};
use runtime::Stream;
use rustls::Connection;
use rustls::pki_types::CertificateDer;

use super::reasons;

/// Sealed bytes that are received at a time: two records of the largest kind.
const SEALED: usize = 36 * 1024;

/// See the module.
pub struct Secure {
    stream: Stream,
    session: RefCell<Connection>,
    /// What came and was not opened yet.
    sealed: RefCell<Bytes>,
}

/// Why there is no session.
pub(super) enum Failure {
    /// The stream has ended or failed.
    Stream(io::Error),
    /// One side does not believe the other, or does not understand it. With the first byte that the other side said.
    Session(rustls::Error, Option<u8>),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Stream(error)
    }
}

impl Secure {
    /// Comes to terms with the other side.
    pub(super) async fn agree(stream: Stream, session: Connection) -> Result<Secure, Failure> {
        let secure = Secure { stream, session: RefCell::new(session), sealed: RefCell::default() };
        let mut first = None;
        loop {
            secure.flush().await?;
            if !secure.session.borrow().is_handshaking() {
                return Ok(secure);
            }
            if secure.sealed.borrow().is_empty() {
                secure.receive_sealed().await?;
            }
            first = first.or(secure.sealed.borrow().first().copied());
            if let Err(error) = secure.open_some() {
                // An alert that says why, to who understands it.
                if reasons::speaks_tls(first) {
                    secure.flush().await?;
                }
                return Err(Failure::Session(error, first));
            }
        }
    }

    /// The certificate of the other side. It was verified.
    pub(super) fn certificate(&self) -> Option<CertificateDer<'static>> {
        let session = self.session.borrow();
        session.peer_certificates().and_then(|chain| chain.first()).map(|first| first.clone().into_owned())
    }

    /// As [`Stream::receive_more`]: as much as is there, once anything is.
    pub async fn receive_more(&self, mut buffer: AlignedBuf, room: usize) -> (io::Result<usize>, AlignedBuf) {
        let (before, end) = (buffer.len(), buffer.len() + room);
        loop {
            let is_over = match self.take_opened(&mut buffer, end) {
                Ok(is_over) => is_over,
                Err(error) => return (Err(error), buffer),
            };
            let has_more = !self.sealed.borrow().is_empty();
            if is_over || buffer.len() == end || (buffer.len() > before && !has_more) {
                return (Ok(buffer.len() - before), buffer);
            }
            if !has_more && let Err(error) = self.receive_sealed().await {
                return (Err(error), buffer);
            }
            if let Err(error) = self.open_some() {
                // What was opened before it is worth nothing without what comes next.
                let reason = reasons::of(&error, true, false);
                return (Err(io::Error::new(io::ErrorKind::InvalidData, reason)), buffer);
            }
        }
    }

    /// Seals `data` and sends it. One send at a time: the caller queues.
    ///
    /// # Errors
    /// The world's; the peer may have received a prefix.
    pub async fn send(&self, data: &[Bytes]) -> io::Result<()> {
        {
            let mut session = self.session.borrow_mut();
            let mut parts: Vec<IoSlice<'_>> = data.iter().map(|part| IoSlice::new(part)).collect();
            let mut parts = &mut parts[..];
            // Small parts share a record. The session has no limit of what it holds, and takes all of it.
            while !parts.is_empty() {
                let taken = session.writer().write_vectored(parts)?;
                IoSlice::advance_slices(&mut parts, taken);
                if taken == 0 {
                    break;
                }
            }
        }
        self.flush().await
    }

    /// Ends both directions.
    pub fn shutdown(&self) {
        self.stream.shutdown();
    }

    /// Sends what the session has to say.
    async fn flush(&self) -> io::Result<()> {
        let mut sealed = Vec::new();
        {
            let mut session = self.session.borrow_mut();
            while session.wants_write() {
                session.write_tls(&mut sealed)?;
            }
        }
        self.stream.send(vec![sealed.into()]).await
    }

    /// Receives some sealed bytes behind none.
    async fn receive_sealed(&self) -> io::Result<()> {
        let (count, buffer) = self.stream.receive_more(AlignedBuf::with_capacity(SEALED), SEALED).await;
        match count? {
            // The end of the stream is the end of what it says only if the other side has said so: a byte may be missing.
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => {
                self.sealed.replace(buffer.freeze());
                Ok(())
            }
        }
    }

    /// Gives the session as much of the sealed bytes as it takes.
    fn open_some(&self) -> Result<(), rustls::Error> {
        let (mut session, mut sealed) = (self.session.borrow_mut(), self.sealed.borrow_mut());
        let mut rest = &sealed[..];
        let taken = session.read_tls(&mut rest);
        let left = rest.len();
        let opened = session.process_new_packets();
        let start = sealed.len() - left;
        *sealed = sealed.slice(start..);
        match (opened, taken) {
            (Err(error), _) => Err(error),
            (Ok(_), Err(error)) => Err(rustls::Error::General(error.to_string())),
            (Ok(_), Ok(_)) => Ok(()),
        }
    }

    /// Moves what was opened behind the bytes of `buffer`, up to `end`. Gives whether the other side has ended.
    fn take_opened(&self, buffer: &mut AlignedBuf, end: usize) -> io::Result<bool> {
        let mut session = self.session.borrow_mut();
        let mut reader = session.reader();
        while buffer.len() < end {
            let taken = match reader.fill_buf() {
                Ok([]) => return Ok(true),
                Ok(opened) => {
                    let taken = opened.len().min(end - buffer.len());
                    buffer.extend_from_slice(&opened[..taken]);
                    taken
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            };
            reader.consume(taken);
        }
        Ok(false)
    }
}
