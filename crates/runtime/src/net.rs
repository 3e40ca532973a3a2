//! Listeners and streams.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::rc::Rc;

use base::{AlignedBuf, Bytes};

use crate::Handle;
use crate::driver::{Address, Op, Payload, ResourceId, Token};

struct Inner {
    handle: Handle,
    id: ResourceId,
    /// Another loop has it, or will.
    is_released: Cell<bool>,
}

impl Inner {
    fn new(handle: &Handle, id: ResourceId) -> Inner {
        Inner { handle: handle.clone(), id, is_released: Cell::new(false) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.is_released.get() {
            drop(self.handle.operate(Op::Close { id: self.id }));
        }
    }
}

/// A listening socket, closed when dropped.
pub struct Listener {
    inner: Inner,
    address: Address,
}

/// A byte stream to a peer. Clones share it; it is closed when the last one is dropped.
#[derive(Clone)]
pub struct Stream(Rc<Inner>);

/// A stream on its way from one loop of a process to another: [`Stream::release`], then [`Handle::adopt`]. Closed when
/// dropped.
pub struct Released(Token);

impl Released {
    /// It, in the form of its world.
    pub(crate) fn into_token(self) -> Token {
        self.0
    }
}

impl Listener {
    /// The address as really bound: a port instead of 0.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// The world's; too many open files is one to wait out.
    pub async fn accept(&self) -> io::Result<Stream> {
        let id = self.inner.handle.operate(Op::Accept { id: self.inner.id }).await.value?;
        Ok(Stream(Rc::new(Inner::new(&self.inner.handle, ResourceId(id)))))
    }
}

impl Stream {
    /// Receives into `buffer[from..]` and gives the buffer back with the count of new bytes, 0 at the stream's end.
    pub async fn receive(&self, buffer: AlignedBuf, from: usize) -> (io::Result<usize>, AlignedBuf) {
        let range = from..buffer.len();
        self.receive_into(buffer, range).await
    }

    /// Receives up to `room` bytes behind those of `buffer`, which has the capacity, and gives it back with them and
    /// with their count, 0 at the stream's end.
    pub async fn receive_more(&self, buffer: AlignedBuf, room: usize) -> (io::Result<usize>, AlignedBuf) {
        let range = buffer.len()..buffer.len() + room;
        self.receive_into(buffer, range).await
    }

    async fn receive_into(&self, buffer: AlignedBuf, range: Range<usize>) -> (io::Result<usize>, AlignedBuf) {
        let outcome = self.0.handle.operate(Op::Receive { id: self.0.id, buffer, range }).await;
        match outcome.payload {
            Payload::Buffer(buffer) => (outcome.value.map(|n| n as usize), buffer),
            _ => (Err(io::Error::other("the driver kept a buffer")), AlignedBuf::zeroed(0)),
        }
    }

    /// Sends all of `data`, in order. One send at a time: the caller queues.
    ///
    /// # Errors
    /// The world's; the peer may have received a prefix.
    pub async fn send(&self, mut data: Vec<Bytes>) -> io::Result<()> {
        data.retain(|part| !part.is_empty());
        while !data.is_empty() {
            let mut sent = self.0.handle.operate(Op::Send { id: self.0.id, data: data.clone() }).await.value? as usize;
            if sent == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero));
            }
            let whole = data
                .iter()
                .take_while(|part| {
                    let fits = part.len() <= sent;
                    if fits {
                        sent -= part.len()
                    }
                    fits
                })
                .count();
            data.drain(..whole);
            if sent > 0 {
                data[0] = data[0].slice(sent..);
            }
        }
        Ok(())
    }

    /// Takes the stream from its loop, so that another one can have it. Nothing may be in flight on it, and no clone of
    /// it be used any more.
    ///
    /// # Errors
    /// Something is in flight. The stream is closed then.
    pub async fn release(self) -> io::Result<Released> {
        let outcome = self.0.handle.operate(Op::Release { id: self.0.id }).await;
        outcome.value?;
        self.0.is_released.set(true);
        match outcome.payload {
            Payload::Token(token) => Ok(Released(token)),
            _ => Err(io::Error::other("the driver kept a stream")),
        }
    }

    /// Ends both directions: operations in flight on any clone end.
    pub fn shutdown(&self) {
        drop(self.0.handle.operate(Op::Shutdown { id: self.0.id }));
    }
}

impl Handle {
    /// Listens at `address`.
    ///
    /// # Errors
    /// `AddrInUse` where somebody answers there, and the world's others.
    pub async fn listen(&self, address: &Address) -> io::Result<Listener> {
        let outcome = self.operate(Op::Listen { address: address.clone() }).await;
        let id = ResourceId(outcome.value?);
        let inner = Inner::new(self, id);
        match outcome.payload {
            Payload::Address(address) => Ok(Listener { inner, address }),
            _ => Err(io::Error::other("the driver kept a listener's address")),
        }
    }

    /// Connects to `address`.
    ///
    /// # Errors
    /// `ConnectionRefused`, and the world's others.
    pub async fn connect(&self, address: &Address) -> io::Result<Stream> {
        let id = ResourceId(self.operate(Op::Connect { address: address.clone() }).await.value?);
        Ok(Stream(Rc::new(Inner::new(self, id))))
    }

    /// Takes over a stream that another loop has released.
    ///
    /// # Errors
    /// It comes from another world.
    pub async fn adopt(&self, released: Released) -> io::Result<Stream> {
        let id = ResourceId(self.operate(Op::Adopt { token: released.0 }).await.value?);
        Ok(Stream(Rc::new(Inner::new(self, id))))
    }
}
