//! The error numbers of Linux that the simulated world answers with, as a real one would.

use std::io;

pub(super) const ENOENT: i32 = 2;
pub(super) const EIO: i32 = 5;
pub(super) const EBADF: i32 = 9;
pub(super) const EEXIST: i32 = 17;
pub(super) const EXDEV: i32 = 18;
pub(super) const ENOTDIR: i32 = 20;
pub(super) const EISDIR: i32 = 21;
pub(super) const EINVAL: i32 = 22;
pub(super) const ENOSPC: i32 = 28;
pub(super) const EPIPE: i32 = 32;
pub(super) const ENOTEMPTY: i32 = 39;
pub(super) const EADDRINUSE: i32 = 98;
pub(super) const EADDRNOTAVAIL: i32 = 99;
pub(super) const ECONNRESET: i32 = 104;
pub(super) const ETIMEDOUT: i32 = 110;
pub(super) const ECONNREFUSED: i32 = 111;
pub(super) const EHOSTUNREACH: i32 = 113;
pub(super) const ECANCELED: i32 = 125;

/// The error with this number.
pub(super) fn error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

/// The error with this number, as a result.
pub(super) fn fail<T>(number: i32) -> io::Result<T> {
    Err(error(number))
}
