//! What a connection receives: many small requests in one buffer, large payloads straight into their own memory.

use std::io;

use base::{AlignedBuf, Bytes, Instant};
use link::tls::Channel;
use runtime::sync::{Budget, Permit};
use runtime::{Handle, Stream};

/// The buffer of a connection that has little to say.
const SMALL: usize = 16 * 1024;
/// The buffer of one that sends many small requests at once.
const LARGE: usize = 128 * 1024;
/// Large buffers of one agent (8 MiB in all).
pub(crate) const LARGE_BUFFERS_MAX: u64 = 64;
/// A missing part of a payload from this length on is received into the payload's memory, without a second copy.
const DIRECT_MIN: usize = 16 * 1024;
/// A large buffer that was so many times filled no further than a small one goes back.
const QUIET_FILLS_MAX: u32 = 64;

/// The receiving side of a stream.
pub(crate) struct Intake {
    handle: Handle,
    channel: Channel,
    /// What was received; from `start` on it is not yet consumed.
    buffer: AlignedBuf,
    start: usize,
    large_buffers: Budget,
    large: Option<Permit>,
    /// Whether the last fill left no room, and no payload was received directly since.
    filled: bool,
    quiet_fills: u32,
    received_at: Instant,
    /// How long the last bytes may have lain there unseen, in nanoseconds.
    unseen_ns: u64,
}

impl Intake {
    pub(crate) fn new(handle: &Handle, stream: Stream, large_buffers: Budget) -> Self {
        Intake {
            handle: handle.clone(),
            channel: stream.into(),
            buffer: AlignedBuf::with_capacity(SMALL),
            start: 0,
            large_buffers,
            large: None,
            filled: false,
            quiet_fills: 0,
            received_at: handle.now(),
            unseen_ns: 0,
        }
    }

    /// What it receives from.
    pub(crate) fn channel(&self) -> &Channel {
        &self.channel
    }

    /// The stream, if it is in the open.
    pub(crate) fn open(&self) -> Option<Stream> {
        match &self.channel {
            Channel::Open(stream) => Some(stream.clone()),
            Channel::Secure(_) => None,
        }
    }

    /// From here on it receives from `channel`. What came before, in the open, may be anybody's: it is forgotten.
    pub(crate) fn secured(&mut self, channel: Channel) {
        self.start = self.buffer.len();
        self.channel = channel;
    }

    /// What is there.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// The next `count` bytes were understood.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.buffer.len(), "only what is there is consumed");
    }

    /// When the last bytes arrived.
    pub(crate) fn received_at(&self) -> Instant {
        self.received_at
    }

    /// How long they may have lain there at most before, in nanoseconds, because the loop was busy for long; for whoever
    /// asks first: what came together did not wait twice.
    pub(crate) fn take_unseen_ns(&mut self) -> u64 {
        std::mem::take(&mut self.unseen_ns)
    }

    /// Receives more behind what is there. The caller has consumed enough that there is room.
    ///
    /// # Errors
    /// The world's; the end of the stream is `UnexpectedEof`.
    pub(crate) async fn fill(&mut self) -> io::Result<()> {
        self.make_room();
        let buffer = std::mem::replace(&mut self.buffer, AlignedBuf::with_capacity(0));
        let room = buffer.capacity() - buffer.len();
        let (count, buffer) = self.channel.receive_more(buffer, room).await;
        self.buffer = buffer;
        self.arrived(count?)?;
        self.filled = self.buffer.len() == self.buffer.capacity();
        self.quiet_fills = if self.buffer.len() > SMALL { 0 } else { self.quiet_fills + 1 };
        Ok(())
    }

    /// Takes a payload of `len` bytes.
    ///
    /// # Errors
    /// As [`Self::fill`].
    pub(crate) async fn payload(&mut self, len: usize) -> io::Result<Bytes> {
        let mut payload = AlignedBuf::with_capacity(len);
        loop {
            let part = self.bytes().len().min(len - payload.len());
            payload.extend_from_slice(&self.buffer[self.start..self.start + part]);
            self.consume(part);
            let done = payload.len();
            if done == len {
                return Ok(payload.freeze());
            }
            if len - done < DIRECT_MIN {
                self.fill().await?;
                continue;
            }
            self.filled = false;
            let (count, buffer) = self.channel.receive_more(payload, len - done).await;
            payload = buffer;
            self.arrived(count?)?;
        }
    }

    /// Forgets `len` bytes.
    ///
    /// # Errors
    /// As [`Self::fill`].
    pub(crate) async fn skip(&mut self, mut len: usize) -> io::Result<()> {
        loop {
            let part = self.bytes().len().min(len);
            self.consume(part);
            len -= part;
            if len == 0 {
                return Ok(());
            }
            self.fill().await?;
        }
    }

    fn arrived(&mut self, count: usize) -> io::Result<()> {
        self.received_at = self.handle.now();
        self.unseen_ns = self.handle.unseen_ns();
        match count {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Moves what is left to the front, into a buffer of the right size.
    fn make_room(&mut self) {
        let left = self.start..self.buffer.len();
        if self.large.is_none() && self.filled {
            self.large = self.large_buffers.try_take(1);
            if self.large.is_some() {
                return self.replace(LARGE);
            }
        }
        if self.large.is_some() && self.quiet_fills > QUIET_FILLS_MAX && left.len() < SMALL {
            self.large = None;
            self.replace(SMALL);
        } else if left.is_empty() {
            self.start = 0;
            self.buffer.set_len(0);
        } else if left.start > 0 {
            self.buffer.copy_within(left.clone(), 0);
            self.start = 0;
            self.buffer.set_len(left.len());
        }
        self.quiet_fills = if self.large.is_some() { self.quiet_fills } else { 0 };
        assert!(self.buffer.len() < self.buffer.capacity(), "what is left always leaves room");
    }

    fn replace(&mut self, size: usize) {
        let mut buffer = AlignedBuf::with_capacity(size);
        buffer.extend_from_slice(self.bytes());
        self.buffer = buffer;
        self.start = 0;
    }
}
