//! What a client has of a volume: a connection of NBD, or a disk of its virtual machine.

use std::rc::Rc;

use base::Bytes;

use super::disk::Disk;
use super::history::RequestId;
use super::nbd::{Command, Connection, Gone, Reply};
use super::shared::Gate;

/// See the module. Clones are the same.
#[derive(Clone)]
pub enum Link {
    /// A connection.
    Nbd(Rc<Connection>),
    /// A disk.
    Disk(Rc<Disk>),
}

impl Link {
    /// Whether nothing more is answered.
    pub fn is_broken(&self) -> bool {
        match self {
            Link::Nbd(connection) => connection.is_broken(),
            Link::Disk(disk) => disk.is_over(),
        }
    }

    /// Asks for something. `len` is in bytes; `change` is what the history calls it, if it changes something.
    ///
    /// # Errors
    /// There will be no answer.
    pub async fn ask(
        &self,
        change: Option<RequestId>,
        command: Command,
        flags: u16,
        (offset, len): (u64, u32),
        data: Bytes,
    ) -> Result<Reply, Gone> {
        match self {
            Link::Nbd(connection) => connection.ask(command, flags, offset, len, data).await,
            Link::Disk(disk) => disk.ask(change, command, flags, (offset, len), data).await,
        }
    }

    /// Through what it is used; it was attached through `first`.
    pub fn gate(&self, first: Gate) -> Gate {
        match self {
            Link::Nbd(_) => first,
            Link::Disk(disk) => disk.gate(),
        }
    }

    /// The disk that it is.
    pub fn disk(&self) -> Option<&Rc<Disk>> {
        match self {
            Link::Nbd(_) => None,
            Link::Disk(disk) => Some(disk),
        }
    }
}
