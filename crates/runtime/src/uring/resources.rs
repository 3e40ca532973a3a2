//! What the driver has open: files, streams, listeners.
//!
//! A descriptor is closed only when no request on it is in flight, so that its number cannot come to mean another
//! file for a request that is continued (a short read). From the `Close` on, nobody finds the resource any more.

use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

use slab::Slab;

use crate::driver::{OpId, ResourceId};

pub(super) struct Resource {
    fd: OwnedFd,
    pub kind: Kind,
    /// Tells this use of a slot from earlier ones.
    life: u32,
    in_flight: u32,
    /// A stream of which the last receive has taken all that was there.
    pub is_drained: bool,
    /// The `Close` that waits for the requests in flight.
    closing: Option<OpId>,
}

pub(super) enum Kind {
    File {
        /// Opened with O_DIRECT, and the file system has it.
        direct: bool,
    },
    Stream,
    /// An event counter.
    Bell,
    Listener {
        /// The socket file, which goes with the listener.
        path: Option<PathBuf>,
    },
}

/// A slot of [`Resources`], valid while a request on it is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ResourceKey(usize);

/// A resource that is ready to be closed, and the operation that asked for it.
pub(super) struct Closable {
    pub fd: RawFd,
    pub id: OpId,
    pub is_file: bool,
}

#[derive(Default)]
pub(super) struct Resources {
    slots: Slab<Resource>,
    opened: u32,
}

impl Resources {
    pub fn insert(&mut self, fd: OwnedFd, kind: Kind) -> ResourceId {
        self.opened = self.opened.wrapping_add(1);
        let key =
            self.slots.insert(Resource { fd, kind, life: self.opened, in_flight: 0, is_drained: false, closing: None });
        ResourceId(u64::from(self.opened) << 32 | key as u64)
    }

    /// Finds an open resource.
    ///
    /// # Errors
    /// EBADF if it was closed.
    pub fn find(&self, id: ResourceId) -> io::Result<(ResourceKey, &Resource)> {
        let key = (id.0 & u64::from(u32::MAX)) as usize;
        match self.slots.get(key) {
            Some(resource) if u64::from(resource.life) == id.0 >> 32 && resource.closing.is_none() => {
                Ok((ResourceKey(key), resource))
            }
            _ => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }

    /// A request on the resource starts: the descriptor stays open until it ends.
    pub fn begin(&mut self, key: ResourceKey) -> RawFd {
        let resource = &mut self.slots[key.0];
        resource.in_flight += 1;
        resource.fd.as_raw_fd()
    }

    /// The descriptor of a resource with a request in flight.
    pub fn fd(&self, key: ResourceKey) -> RawFd {
        self.slots[key.0].fd.as_raw_fd()
    }

    /// A receive on the stream has ended.
    pub fn on_received(&mut self, key: ResourceKey, is_drained: bool) {
        self.slots[key.0].is_drained = is_drained;
    }

    /// A request on the resource has ended. Gives the resource if that was the last before its `Close`.
    pub fn end(&mut self, key: ResourceKey) -> Option<Closable> {
        let resource = &mut self.slots[key.0];
        resource.in_flight -= 1;
        self.take_if_idle(key)
    }

    /// Somebody closes the resource: at once if nothing is in flight, otherwise when that has ended.
    pub fn close(&mut self, key: ResourceKey, id: OpId) -> Option<Closable> {
        let resource = &mut self.slots[key.0];
        assert!(resource.closing.is_none(), "closed twice");
        resource.closing = Some(id);
        self.take_if_idle(key)
    }

    /// Takes an open stream out, with its descriptor.
    ///
    /// # Errors
    /// EBADF if it was closed or is no stream, EBUSY if a request on it is in flight.
    pub fn release(&mut self, id: ResourceId) -> io::Result<OwnedFd> {
        let (key, resource) = self.find(id)?;
        match resource.kind {
            Kind::Stream if resource.in_flight == 0 => Ok(self.slots.remove(key.0).fd),
            Kind::Stream => Err(io::Error::from_raw_os_error(libc::EBUSY)),
            _ => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }

    fn take_if_idle(&mut self, key: ResourceKey) -> Option<Closable> {
        let id = self.slots[key.0].closing.filter(|_| self.slots[key.0].in_flight == 0)?;
        let resource = self.slots.remove(key.0);
        resource.kind.retire();
        let is_file = matches!(resource.kind, Kind::File { .. });
        Some(Closable { fd: resource.fd.into_raw_fd(), id, is_file })
    }

    /// Closes everything.
    pub fn clear(&mut self) {
        self.slots.drain().for_each(|resource| resource.kind.retire());
    }
}

impl Resource {
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    pub fn is_direct(&self) -> bool {
        matches!(self.kind, Kind::File { direct: true })
    }

    /// Whether what is in flight on it may wait for a peer.
    pub fn has_peer(&self) -> bool {
        matches!(self.kind, Kind::Stream | Kind::Listener { .. } | Kind::Bell)
    }
}

impl Kind {
    /// Removes what is visible of a resource, before its descriptor goes: whoever finds the socket file may connect.
    fn retire(&self) {
        if let Kind::Listener { path: Some(path) } = self {
            // It may have been removed by hand; a stale one does no harm.
            let _ = std::fs::remove_file(path);
        }
    }
}
