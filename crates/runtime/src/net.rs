//! Listeners and streams.

use std::io;
use std::ops::Range;
use std::rc::Rc;

use base::{AlignedBuf, Bytes};

use crate::Handle;
use crate::driver::{Address, Op, Payload, ResourceId};

struct Inner {
    handle: Handle,
    id: ResourceId,
}

impl Drop for Inner {
    fn drop(&mut self) {
        drop(self.handle.operate(Op::Close { id: self.id }));
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
        Ok(Stream(Rc::new(Inner { handle: self.inner.handle.clone(), id: ResourceId(id) })))
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
        let inner = Inner { handle: self.clone(), id };
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
        Ok(Stream(Rc::new(Inner { handle: self.clone(), id })))
    }
}
