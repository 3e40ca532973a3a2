//! Socket addresses as the kernel wants them, and the calls on sockets that do not wait: making one, listening.

use std::ffi::OsStr;
use std::io;
use std::mem::{offset_of, size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use libc::{c_int, sa_family_t, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, sockaddr_un, socklen_t};

use super::check;
use crate::driver::Address;

/// Connections that the kernel completes before they are accepted.
const LISTEN_BACKLOG: c_int = 1024;

/// An address in the kernel's form, at a place that does not move.
pub(super) struct RawAddress {
    storage: Box<sockaddr_storage>,
    len: socklen_t,
}

impl RawAddress {
    /// # Errors
    /// `InvalidInput` if a socket's path is too long for the kernel, or holds a zero byte.
    pub fn new(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(SocketAddr::V4(address)) => Ok(Self::of(sockaddr_in {
                sin_family: libc::AF_INET as sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            })),
            Address::Tcp(SocketAddr::V6(address)) => Ok(Self::of(sockaddr_in6 {
                sin6_family: libc::AF_INET6 as sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            })),
            Address::Unix(path) => Self::of_path(path),
        }
    }

    fn of_path(path: &Path) -> io::Result<Self> {
        let bytes = path.as_os_str().as_bytes();
        // SAFETY: all zeros is a valid address structure.
        let mut address: sockaddr_un = unsafe { zeroed() };
        let room = address.sun_path.len() - 1;
        if bytes.len() > room || bytes.is_empty() || bytes.contains(&0) {
            let message = format!("the path of a socket has 1 to {room} bytes and none of them is zero: {path:?}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        address.sun_family = libc::AF_UNIX as sa_family_t;
        for (to, from) in address.sun_path.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        let mut raw = Self::of(address);
        raw.len = (offset_of!(sockaddr_un, sun_path) + bytes.len() + 1) as socklen_t;
        Ok(raw)
    }

    fn of<T>(address: T) -> Self {
        const { assert!(size_of::<T>() <= size_of::<sockaddr_storage>()) };
        let mut raw = Self::empty();
        // SAFETY: every kind of address fits into the storage, which is aligned for all of them.
        unsafe { std::ptr::from_mut(&mut *raw.storage).cast::<T>().write(address) };
        raw.len = size_of::<T>() as socklen_t;
        raw
    }

    /// Room for the kernel to write an address to.
    fn empty() -> Self {
        // SAFETY: all zeros is a valid address structure.
        RawAddress { storage: Box::new(unsafe { zeroed() }), len: size_of::<sockaddr_storage>() as socklen_t }
    }

    pub fn as_ptr(&self) -> *const sockaddr {
        std::ptr::from_ref(&*self.storage).cast()
    }

    pub fn len(&self) -> socklen_t {
        self.len
    }

    fn family(&self) -> c_int {
        c_int::from(self.storage.ss_family)
    }

    fn to_address(&self) -> io::Result<Address> {
        let pointer = self.as_ptr();
        match self.family() {
            // SAFETY: the family says which structure is there, and the storage is large enough for each.
            libc::AF_INET => Ok(Address::Tcp(SocketAddr::V4(unsafe {
                let address = &*pointer.cast::<sockaddr_in>();
                let ip = Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes());
                SocketAddrV4::new(ip, u16::from_be(address.sin_port))
            }))),
            // SAFETY: as above.
            libc::AF_INET6 => Ok(Address::Tcp(SocketAddr::V6(unsafe {
                let address = &*pointer.cast::<sockaddr_in6>();
                let (ip, port) = (Ipv6Addr::from(address.sin6_addr.s6_addr), u16::from_be(address.sin6_port));
                SocketAddrV6::new(ip, port, address.sin6_flowinfo, address.sin6_scope_id)
            }))),
            libc::AF_UNIX => {
                // SAFETY: as above.
                let path = unsafe { &(*pointer.cast::<sockaddr_un>()).sun_path };
                let used = (self.len as usize).saturating_sub(offset_of!(sockaddr_un, sun_path)).min(path.len());
                let bytes: Vec<u8> =
                    path[..used].iter().map(|byte| *byte as u8).take_while(|byte| *byte != 0).collect();
                Ok(Address::Unix(PathBuf::from(OsStr::from_bytes(&bytes))))
            }
            family => Err(io::Error::other(format!("a socket of the unknown family {family}"))),
        }
    }
}

/// A stream socket of the address's family. TCP is set up for small messages, and notices a peer that vanished.
pub(super) fn open_stream(address: &RawAddress) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed; the new descriptor is owned by nobody else.
    let socket = unsafe {
        OwnedFd::from_raw_fd(check(libc::socket(address.family(), libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0))?)
    };
    if address.family() != libc::AF_UNIX {
        set_option(&socket, libc::IPPROTO_TCP, libc::TCP_NODELAY)?;
        set_option(&socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE)?;
    }
    Ok(socket)
}

/// Listens at `address`; the socket, and the address as really bound. Accepted streams inherit its options.
///
/// A stale socket file (nobody answers there) is replaced. A new one is for this user only.
pub(super) fn listen(address: &Address) -> io::Result<(OwnedFd, Address)> {
    let raw = RawAddress::new(address)?;
    let socket = open_stream(&raw)?;
    match address {
        Address::Tcp(_) => set_option(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR)?,
        // The socket file gets the mode that the socket has when it is bound.
        // SAFETY: no memory is passed.
        Address::Unix(_) => drop(check(unsafe { libc::fchmod(socket.as_raw_fd(), 0o600) })?),
    }
    match (bind(&socket, &raw), address) {
        (Err(error), Address::Unix(path)) if error.raw_os_error() == Some(libc::EADDRINUSE) => {
            remove_stale(path, &raw)?;
            bind(&socket, &raw)?;
        }
        (outcome, _) => outcome?,
    }
    // SAFETY: no memory is passed.
    check(unsafe { libc::listen(socket.as_raw_fd(), LISTEN_BACKLOG) })?;
    let bound = local_address(&socket)?;
    Ok((socket, bound))
}

/// Removes a socket file that no process listens on.
fn remove_stale(path: &Path, raw: &RawAddress) -> io::Result<()> {
    let in_use = |what: &str| io::Error::new(io::ErrorKind::AddrInUse, format!("{}: {what}", path.display()));
    if !std::fs::symlink_metadata(path)?.file_type().is_socket() {
        return Err(in_use("exists and is not a socket"));
    }
    let probe = open_stream(raw)?;
    // SAFETY: the address outlives the call. A Unix socket connects at once, or is refused, or its queue is full.
    let answer = check(unsafe {
        libc::fcntl(probe.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK);
        libc::connect(probe.as_raw_fd(), raw.as_ptr(), raw.len())
    });
    match answer.map_err(|error| error.raw_os_error()) {
        Err(Some(libc::ECONNREFUSED)) => std::fs::remove_file(path),
        _ => Err(in_use("another process listens there")),
    }
}

fn bind(socket: &OwnedFd, address: &RawAddress) -> io::Result<()> {
    // SAFETY: the address outlives the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), address.as_ptr(), address.len()) }).map(drop)
}

fn local_address(socket: &OwnedFd) -> io::Result<Address> {
    let mut raw = RawAddress::empty();
    let pointer = std::ptr::from_mut(&mut *raw.storage).cast::<sockaddr>();
    // SAFETY: the storage takes every kind of address, and the length says how large it is.
    check(unsafe { libc::getsockname(socket.as_raw_fd(), pointer, &mut raw.len) })?;
    raw.to_address()
}

fn set_option(socket: &OwnedFd, level: c_int, name: c_int) -> io::Result<()> {
    let on: c_int = 1;
    let (pointer, len) = (std::ptr::from_ref(&on).cast(), size_of::<c_int>() as socklen_t);
    // SAFETY: the value outlives the call, and its length is given.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, pointer, len) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_kernels_form() {
        let addresses = [
            Address::Tcp("127.0.0.1:10809".parse().expect("valid")),
            Address::Tcp("[fe80::1%3]:80".parse().expect("valid")),
            Address::Unix("/run/levee/nbd.sock".into()),
        ];
        for address in addresses {
            assert_eq!(RawAddress::new(&address).and_then(|raw| raw.to_address()).expect("valid"), address);
        }
        for bad in ["", &"x".repeat(108), "a\0b"] {
            assert!(RawAddress::new(&Address::Unix(bad.into())).is_err(), "{bad}");
        }
        assert!(RawAddress::new(&Address::Unix("x".repeat(107).into())).is_ok());
    }
}
