//! Calls on names and whole files that are rare and quick, or happen at start-up only: made on the spot, not through
//! the ring.

use std::ffi::CString;
use std::io;
use std::mem::zeroed;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::check;
use crate::driver::{DirectoryEntry, OpenOptions, Space};

/// # Errors
/// `InvalidInput` if the path holds a zero byte.
pub(super) fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("a path with a zero byte: {path:?}")))
}

/// The flags of open(2) for a file; without O_DIRECT if the file system refused that.
pub(super) fn open_flags(options: &OpenOptions, direct: bool) -> i32 {
    let mut flags = libc::O_CLOEXEC;
    flags |= if options.write { libc::O_RDWR } else { libc::O_RDONLY };
    let optional = [
        (options.create, libc::O_CREAT),
        (options.create && options.exclusive, libc::O_EXCL),
        (direct, libc::O_DIRECT),
        (options.dsync, libc::O_DSYNC),
    ];
    optional.iter().filter(|(wanted, _)| *wanted).fold(flags, |flags, (_, flag)| flags | flag)
}

/// A directory, opened to be synced.
pub(super) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: the path outlives the call; the new descriptor is owned by nobody else.
    unsafe {
        let fd = check(libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// The names in a directory, sorted. A name that is not UTF-8 is none of ours; it is shown as well as possible.
pub(super) fn read_directory(path: &Path) -> io::Result<Vec<DirectoryEntry>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let is_directory = entry.file_type()?.is_dir();
        entries.push(DirectoryEntry { name: entry.file_name().to_string_lossy().into_owned(), is_directory });
    }
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

pub(super) fn space(path: &Path) -> io::Result<Space> {
    let path = c_path(path)?;
    // SAFETY: all zeros is a valid structure; path and structure outlive the call.
    let stat = unsafe {
        let mut stat: libc::statvfs = zeroed();
        check(libc::statvfs(path.as_ptr(), &mut stat))?;
        stat
    };
    Ok(Space { total: stat.f_frsize * stat.f_blocks, free: stat.f_frsize * stat.f_bavail })
}

/// The length of a file, and the number of its file system's device.
pub(super) fn status(fd: RawFd) -> io::Result<(u64, u64)> {
    // SAFETY: all zeros is a valid structure, and it outlives the call.
    let stat = unsafe {
        let mut stat: libc::stat = zeroed();
        check(libc::fstat(fd, &mut stat))?;
        stat
    };
    Ok((stat.st_size as u64, stat.st_dev))
}

/// Truncates or extends. Only kernels before 6.9 come here; later ones do it on the ring.
pub(super) fn set_len(fd: RawFd, len: u64) -> io::Result<u64> {
    let len = i64::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::ftruncate(fd, len) }).map(|_| 0)
}

/// Takes the exclusive lock of an open file without waiting: 1 if taken, 0 if held elsewhere.
pub(super) fn try_lock(fd: RawFd) -> io::Result<u64> {
    // SAFETY: no memory is passed.
    match check(unsafe { libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(_) => Ok(1),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error),
    }
}
