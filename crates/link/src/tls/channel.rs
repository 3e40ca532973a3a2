//! A byte stream, in the open or under TLS.

use std::io;
use std::rc::Rc;

use base::{AlignedBuf, Bytes};
use runtime::Stream;

use super::secure::Secure;

/// See the module. Clones share it.
#[derive(Clone)]
pub enum Channel {
    /// As it comes.
    Open(Stream),
    /// Under TLS.
    Secure(Rc<Secure>),
}

impl Channel {
    /// As [`Stream::receive_more`]; there is room.
    pub async fn receive_more(&self, buffer: AlignedBuf, room: usize) -> (io::Result<usize>, AlignedBuf) {
        match self {
            Channel::Open(stream) => stream.receive_more(buffer, room).await,
            Channel::Secure(secure) => secure.receive_more(buffer, room).await,
        }
    }

    /// As [`Stream::send`].
    ///
    /// # Errors
    /// The world's; the peer may have received a prefix.
    pub async fn send(&self, data: Vec<Bytes>) -> io::Result<()> {
        match self {
            Channel::Open(stream) => stream.send(data).await,
            Channel::Secure(secure) => secure.send(&data).await,
        }
    }

    /// Whether it is under TLS.
    pub fn is_secure(&self) -> bool {
        matches!(self, Channel::Secure(_))
    }

    /// Ends both directions.
    pub fn shutdown(&self) {
        match self {
            Channel::Open(stream) => stream.shutdown(),
            Channel::Secure(secure) => secure.shutdown(),
        }
    }
}

impl From<Stream> for Channel {
    fn from(stream: Stream) -> Channel {
        Channel::Open(stream)
    }
}
