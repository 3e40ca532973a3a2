//! What a connection receives: small frames, many in one buffer, and large payloads into memory of their own.
//!
//! Small payloads are slices of the buffer that they came in, which lives as long as one of them; then comes another
//! buffer. So a small write may hold up to [`BUFFER`] bytes for the time that it is in flight.

use std::cell::{RefCell, RefMut};
use std::io;
use std::rc::Rc;

use base::{AlignedBuf, Bytes, Error, Result};
use runtime::Handle;
use wire::connection::{Connection, Event, Needs};

use crate::tls::Channel;

/// The buffer for small frames.
const BUFFER: usize = 32 * 1024;

/// The receiving side of a connection.
pub(super) struct Intake {
    handle: Handle,
    stream: Channel,
    connection: Rc<RefCell<Connection>>,
    /// What was received and not taken yet.
    there: Bytes,
}

/// Why nothing more is received.
pub(super) enum End {
    /// The stream has ended or failed.
    Stream(io::Error),
    /// What came cannot be right.
    Refused(Error),
}

impl From<Error> for End {
    fn from(error: Error) -> End {
        End::Refused(error)
    }
}

impl Intake {
    pub(super) fn new(handle: &Handle, stream: Channel, connection: Rc<RefCell<Connection>>) -> Intake {
        Intake { handle: handle.clone(), stream, connection, there: Bytes::new() }
    }

    fn connection(&self) -> RefMut<'_, Connection> {
        self.connection.borrow_mut()
    }

    /// The next thing that the peer says.
    ///
    /// # Errors
    /// The connection is over.
    pub(super) async fn next(&mut self) -> Result<Event, End> {
        loop {
            let event = self.connection.borrow_mut().receive(&mut self.there)?;
            if let Some(event) = event {
                return Ok(event);
            }
            let needs = self.connection().needs();
            match needs {
                Needs::More(len) => self.fill(len).await?,
                Needs::Payload(len) => {
                    let payload = self.payload(len).await?;
                    return Ok(self.connection().receive_payload(payload)?);
                }
            }
        }
    }

    /// Receives until `needed` bytes are there, and takes what comes with them.
    async fn fill(&mut self, needed: usize) -> Result<(), End> {
        let mut buffer = AlignedBuf::with_capacity(needed.max(BUFFER));
        buffer.extend_from_slice(&self.there);
        self.there = Bytes::new();
        while buffer.len() < needed {
            let room = buffer.capacity() - buffer.len();
            buffer = self.receive(buffer, room).await?;
        }
        self.there = buffer.freeze();
        Ok(())
    }

    /// Receives `len` bytes into memory of their own; those that are there already are copied.
    async fn payload(&mut self, len: usize) -> Result<Bytes, End> {
        let mut payload = AlignedBuf::with_capacity(len);
        payload.extend_from_slice(&self.there.split_to(len.min(self.there.len())));
        while payload.len() < len {
            let room = len - payload.len();
            payload = self.receive(payload, room).await?;
        }
        Ok(payload.freeze())
    }

    async fn receive(&self, buffer: AlignedBuf, room: usize) -> Result<AlignedBuf, End> {
        let (count, buffer) = self.stream.receive_more(buffer, room).await;
        match count {
            Ok(0) => Err(End::Stream(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) => {
                self.connection().on_bytes(self.handle.now());
                Ok(buffer)
            }
            Err(error) => Err(End::Stream(error)),
        }
    }
}
