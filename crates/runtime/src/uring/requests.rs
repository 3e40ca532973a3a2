//! Requests that the kernel works on: their memory, the entry that asks for them, and what their completion means.
//!
//! Everything that an entry points to is on the heap and owned by the request, so the request itself may move.

use std::ffi::{CString, c_void};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use base::buffer::ALIGNMENT;
use base::{AlignedBuf, Bytes, Gathered};
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, types};

use super::names;
use super::resources::{Kind, ResourceKey};
use super::sockets::RawAddress;
use crate::driver::{OpId, OpenOptions, Outcome, Payload};

/// Most bytes of one read or write; the kernel's own limit is a little below 2 GiB.
const TRANSFER_MAX: usize = 1 << 30;
/// Most parts of one gathered send (the kernel's IOV_MAX).
const PARTS_MAX: usize = 1024;

pub(super) struct Request {
    pub id: OpId,
    /// Tells this use of a slot from earlier ones.
    pub life: u32,
    pub resource: Option<ResourceKey>,
    pub cancelled: bool,
    pub work: Work,
}

/// What a request asks for. A read has `done` of its `len` bytes.
pub(super) enum Work {
    Open {
        path: CString,
        options: OpenOptions,
        direct: bool,
    },
    Close {
        fd: RawFd,
        is_file: bool,
    },
    Read {
        buffer: AlignedBuf,
        len: usize,
        done: usize,
        offset: u64,
        direct: bool,
    },
    Write {
        data: Gathered,
        parts: Vec<libc::iovec>,
        bounce: Option<AlignedBuf>,
        offset: u64,
    },
    Sync,
    SyncDirectory {
        directory: OwnedFd,
    },
    Allocate {
        offset: u64,
        len: u64,
    },
    SetLen {
        len: u64,
    },
    Rename {
        from: CString,
        to: CString,
    },
    Remove {
        path: CString,
    },
    Accept,
    Connect {
        socket: OwnedFd,
        address: RawAddress,
    },
    /// `is_awaited`: nothing is there yet, as far as is known. The kernel then does not look before it waits.
    Receive {
        buffer: AlignedBuf,
        range: Range<usize>,
        is_awaited: bool,
    },
    Send {
        data: Vec<Bytes>,
        message: Option<Box<Message>>,
    },
    Shutdown,
    /// Waits until an event counter is not zero, and takes its value. `polled`: it was not zero a moment ago.
    Hear {
        count: Box<u64>,
        polled: bool,
    },
    /// Adds one to an event counter.
    Ring {
        one: Box<u64>,
    },
}

/// The header of a gathered send, with what it points to.
pub(super) struct Message {
    header: libc::msghdr,
    parts: Vec<libc::iovec>,
}

/// What a completion leads to.
pub(super) enum Next {
    /// The operation has its outcome.
    Done(Outcome),
    /// The operation opened something; its id is the outcome.
    Opened(OwnedFd, Kind),
    /// The request goes on: its entry is to be queued again.
    Again,
}

impl Work {
    /// Writes `data`; memory that O_DIRECT would refuse is copied first.
    pub fn write(data: Gathered, offset: u64, direct: bool) -> Work {
        let is_direct = |part: &Bytes| (part.as_ptr() as usize | part.len()).is_multiple_of(ALIGNMENT);
        let single = data.parts().count() <= 1;
        let misaligned = direct
            && match single {
                true => data.parts().any(|part| !(part.as_ptr() as usize).is_multiple_of(ALIGNMENT)),
                false => !data.parts().all(is_direct),
            };
        let bounce = misaligned.then(|| AlignedBuf::copy_of(&data.joined()));
        let parts = match single || misaligned {
            true => Vec::new(),
            false => data.parts().map(part_of).collect(),
        };
        Work::Write { data, parts, bounce, offset }
    }

    pub fn send(data: Vec<Bytes>) -> Work {
        let message = (data.len() != 1).then(|| Message::new(&data));
        Work::Send { data, message }
    }

    pub fn hear() -> Work {
        Work::Hear { count: Box::new(0), polled: false }
    }

    pub fn ring() -> Work {
        Work::Ring { one: Box::new(1) }
    }

    /// The entry that asks the kernel for (the rest of) this work. `fd` is the resource's descriptor, if it has one.
    pub fn entry(&mut self, fd: RawFd) -> Entry {
        let file = Fd(fd);
        let cwd = Fd(libc::AT_FDCWD);
        match self {
            Work::Open { path, options, direct } => {
                let flags = names::open_flags(options, *direct);
                opcode::OpenAt::new(cwd, path.as_ptr()).flags(flags).mode(0o600).build()
            }
            Work::Close { fd, is_file } => {
                // The last close of a removed file frees its blocks, which takes long: not on this thread.
                let flags = if *is_file { Flags::ASYNC } else { Flags::empty() };
                opcode::Close::new(Fd(*fd)).build().flags(flags)
            }
            Work::Read { buffer, len, done, offset, .. } => {
                assert!(done <= len && *len <= buffer.capacity(), "a read has room");
                let rest = (*len - *done).min(TRANSFER_MAX) as u32;
                // SAFETY: within the buffer's memory.
                let target = unsafe { buffer.as_target().add(*done) };
                opcode::Read::new(file, target.as_ptr(), rest).offset(*offset + *done as u64).build()
            }
            Work::Write { parts, offset, .. } if !parts.is_empty() => {
                opcode::Writev::new(file, parts.as_ptr(), parts.len() as u32).offset(*offset).build()
            }
            Work::Write { data, bounce, offset, .. } => {
                let whole = data.parts().next().map_or(&[][..], |part| part);
                let bytes: &[u8] = bounce.as_deref().unwrap_or(whole);
                let len = bytes.len().min(TRANSFER_MAX) as u32;
                opcode::Write::new(file, bytes.as_ptr(), len).offset(*offset).build()
            }
            Work::Sync => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
            Work::SyncDirectory { directory } => opcode::Fsync::new(Fd(directory.as_raw_fd())).build(),
            Work::Allocate { offset, len } => opcode::Fallocate::new(file, *len).offset(*offset).build(),
            Work::SetLen { len } => opcode::Ftruncate::new(file, *len).build(),
            Work::Rename { from, to } => opcode::RenameAt::new(cwd, from.as_ptr(), cwd, to.as_ptr()).build(),
            Work::Remove { path } => opcode::UnlinkAt::new(cwd, path.as_ptr()).build(),
            Work::Accept => {
                opcode::Accept::new(file, ptr::null_mut(), ptr::null_mut()).flags(libc::SOCK_CLOEXEC).build()
            }
            Work::Connect { socket, address } => {
                opcode::Connect::new(Fd(socket.as_raw_fd()), address.as_ptr(), address.len()).build()
            }
            Work::Receive { buffer, range, is_awaited } => {
                assert!(range.end <= buffer.capacity(), "a receive stays in its buffer");
                // SAFETY: within the buffer's memory.
                let target = unsafe { buffer.as_target().add(range.start) };
                let entry = opcode::Recv::new(file, target.as_ptr(), range.len().min(TRANSFER_MAX) as u32).build();
                if *is_awaited { poll_first(entry) } else { entry }
            }
            Work::Send { data, message } => match message {
                Some(message) => opcode::SendMsg::new(file, &message.header).flags(libc::MSG_NOSIGNAL as u32).build(),
                None => {
                    let len = data[0].len().min(TRANSFER_MAX) as u32;
                    opcode::Send::new(file, data[0].as_ptr(), len).flags(libc::MSG_NOSIGNAL).build()
                }
            },
            Work::Shutdown => opcode::Shutdown::new(file, libc::SHUT_RDWR).build(),
            // Whoever made the counter may have said that nobody is to wait in a read of it.
            Work::Hear { polled: false, .. } => opcode::PollAdd::new(file, libc::POLLIN as u32).build(),
            Work::Hear { count, .. } => {
                opcode::Read::new(file, std::ptr::from_mut(&mut **count).cast(), size_of::<u64>() as u32).build()
            }
            Work::Ring { one } => {
                opcode::Write::new(file, std::ptr::from_ref(&**one).cast(), size_of::<u64>() as u32).build()
            }
        }
    }

    /// Sends on the spot what the socket takes: what the completion of an entry would bring, or nothing where the socket
    /// takes nothing now.
    pub fn send_now(&self, fd: RawFd) -> Option<i32> {
        let Work::Send { data, message } = self else { return None };
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        let sent = match message {
            // SAFETY: the header and what it points to belong to the request.
            Some(message) => unsafe { libc::sendmsg(fd, &message.header, flags) },
            None => {
                let len = data[0].len().min(TRANSFER_MAX);
                // SAFETY: the bytes outlive the call.
                unsafe { libc::send(fd, data[0].as_ptr().cast(), len, flags) }
            }
        };
        if sent >= 0 {
            return Some(sent as i32);
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) | None => None,
            Some(errno) => Some(-errno),
        }
    }

    /// Whether a receive of so many bytes has taken all that was there.
    pub fn has_drained(&self, count: i32) -> bool {
        matches!(self, Work::Receive { range, .. } if usize::try_from(count).is_ok_and(|count| count < range.len()))
    }

    /// Whether it may wait for a peer for ever, so that it is cancelled when the loop ends.
    pub fn waits_for_peer(&self) -> bool {
        matches!(
            self,
            Work::Accept
                | Work::Connect { .. }
                | Work::Receive { .. }
                | Work::Send { .. }
                | Work::Hear { .. }
                | Work::Ring { .. }
        )
    }
}

impl Request {
    /// What the kernel's `result` means: a count or descriptor, or a negative error number.
    ///
    /// Takes the memory out of the request unless it goes on.
    pub fn on_completion(&mut self, result: i32) -> Next {
        let value = match u64::try_from(result) {
            Ok(value) => Ok(value),
            Err(_) if self.is_repeated(-result) => return Next::Again,
            Err(_) => Err(io::Error::from_raw_os_error(-result)),
        };
        if let (Work::Hear { polled: polled @ false, .. }, Ok(_), false) = (&mut self.work, &value, self.cancelled) {
            *polled = true;
            return Next::Again;
        }
        if let (Work::Read { len, done, direct, .. }, Ok(count)) = (&mut self.work, &value) {
            *done += *count as usize;
            // A direct read that ends within a block has met the end of the file, and could not go on from there.
            let goes_on = *count > 0 && (!*direct || done.is_multiple_of(ALIGNMENT));
            if goes_on && *done < *len && !self.cancelled {
                return Next::Again;
            }
        }
        // What the request owned goes with its outcome, or goes now.
        match (std::mem::replace(&mut self.work, Work::Sync), value) {
            (Work::Open { direct, .. }, Ok(fd)) => Next::Opened(own(fd), Kind::File { direct }),
            (Work::Accept, Ok(fd)) => Next::Opened(own(fd), Kind::Stream),
            (Work::Connect { socket, .. }, Ok(_)) => Next::Opened(socket, Kind::Stream),
            (Work::Read { mut buffer, done, .. }, value) => {
                // SAFETY: the kernel wrote so many bytes.
                unsafe { buffer.set_written(done) };
                Next::Done(Outcome { value: value.map(|_| done as u64), payload: Payload::Buffer(buffer) })
            }
            (Work::Receive { mut buffer, range, .. }, value) => {
                let end = range.start + value.as_ref().map_or(0, |count| *count as usize);
                if end > buffer.len() {
                    // SAFETY: what lies before the range was visible, and the kernel wrote the rest.
                    unsafe { buffer.set_written(end) };
                }
                Next::Done(Outcome { value, payload: Payload::Buffer(buffer) })
            }
            (_, value) => Next::Done(Outcome { value, payload: Payload::None }),
        }
    }
}

impl Request {
    /// Whether an error asks for another attempt rather than being the outcome.
    fn is_repeated(&mut self, errno: i32) -> bool {
        match (&mut self.work, errno) {
            _ if self.cancelled => false,
            // A signal, or a moment without memory: nothing has happened.
            (Work::Connect { .. }, _) => false,
            // Somebody else has read the counter in between.
            (Work::Hear { polled, .. }, libc::EAGAIN) => {
                *polled = false;
                true
            }
            // The counter is full: what was rung is not heard yet, and will be.
            (Work::Ring { .. }, libc::EAGAIN) => false,
            (_, libc::EINTR | libc::EAGAIN) => true,
            // The file system refuses O_DIRECT. It says so after it has made the file: only the first attempt can
            // have been exclusive.
            (Work::Open { direct, options, .. }, libc::EINVAL) => {
                options.exclusive = false;
                std::mem::take(direct)
            }
            _ => false,
        }
    }
}

impl Message {
    fn new(data: &[Bytes]) -> Box<Message> {
        let parts: Vec<libc::iovec> = data.iter().take(PARTS_MAX).map(part_of).collect();
        // SAFETY: all zeros is a valid header: no address, no parts, no control data.
        let header: libc::msghdr = unsafe { std::mem::zeroed() };
        let mut message = Box::new(Message { header, parts });
        message.header.msg_iov = message.parts.as_mut_ptr();
        message.header.msg_iovlen = message.parts.len();
        message
    }
}

fn part_of(bytes: &Bytes) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr() as *mut c_void, iov_len: bytes.len() }
}

/// Has the kernel wait for something to receive before it looks (5.19).
fn poll_first(mut entry: Entry) -> Entry {
    const POLL_FIRST: u16 = 1;
    const PRIORITY_OFFSET: usize = 2;
    const { assert!(size_of::<Entry>() == 64) };
    // SAFETY: an entry is the kernel's structure, which begins with a byte for the operation, a byte of flags, and two for
    // the priority, where receives have flags of their own. It is aligned to 8.
    unsafe { (&raw mut entry).cast::<u8>().add(PRIORITY_OFFSET).cast::<u16>().write(POLL_FIRST) };
    entry
}

fn own(fd: u64) -> OwnedFd {
    // SAFETY: the kernel has just made this descriptor for the request, and nobody else knows it.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

/// Asks for the end of one request, or of all on a descriptor.
pub(super) fn cancel_entry(target: types::CancelBuilder) -> Entry {
    opcode::AsyncCancel2::new(target).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receive_that_has_to_wait_says_so_to_the_kernel() {
        let mut receive = Work::Receive { buffer: AlignedBuf::zeroed(64), range: 0..64, is_awaited: false };
        assert!(receive.has_drained(63) && !receive.has_drained(64), "more may be there behind a full buffer");
        assert!(!receive.has_drained(-libc::EINTR) && !Work::Sync.has_drained(0));
        // SAFETY: both are 64 bytes without padding.
        let bytes = |work: &mut Work| unsafe { std::mem::transmute::<Entry, [u8; 64]>(work.entry(3)) };
        let looking = bytes(&mut receive);
        let Work::Receive { is_awaited, .. } = &mut receive else { unreachable!("it is one") };
        *is_awaited = true;
        let mut waiting = bytes(&mut receive);
        assert_eq!(u16::from_ne_bytes([waiting[2], waiting[3]]), 1, "IORING_RECVSEND_POLL_FIRST");
        waiting[2] = 0;
        assert_eq!(waiting, looking, "nothing else is different");
    }
}
