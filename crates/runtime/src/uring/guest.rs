//! Virtual machines in the real world: a thread of each connection that speaks vhost-user, memory that is mapped from
//! files, event counters of the kernel.
//!
//! The messages come from a program that is trusted with its own guest and with nothing else, so nothing in them may do
//! harm beyond their connection. Receiving a message waits for all of it, and so does its answer: that is for a thread of
//! its own, which ends with its connection. What it hands over was looked at here:
//!
//! - Memory is a memfd that is sealed against shrinking. Otherwise whoever has it could cut it off under our feet, and a
//!   touch behind its end kills the process. For the same reason it has no huge pages: a touch of one that cannot be had
//!   kills, too.
//! - A bell is an event counter, not any other file: those may make a read or write wait in the kernel.

use std::any::Any;
use std::fs::File;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use vhost::vhost_user::message::*;
use vhost::vhost_user::{BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandler};
use vm_memory::{FileOffset, GuestAddress, GuestRegionMmap, MmapRegion};

use super::check;
use crate::guest::{Answer, Ask, Bell, Hung, Map, Memory, Port, Question, Region, WorldBell};

/// What an anonymous file of an event counter is called.
const EVENT_COUNTER: &str = "anon_inode:[eventfd]";
/// The most bytes that a hypervisor is given for what is in flight.
const INFLIGHT_MAX: u64 = 1 << 20;

/// An event counter of the kernel.
#[derive(Debug)]
pub(super) struct EventCounter(OwnedFd);

impl EventCounter {
    fn new(file: File) -> io::Result<EventCounter> {
        let fd = OwnedFd::from(file);
        let name = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        match name.as_os_str() == EVENT_COUNTER {
            true => Ok(EventCounter(fd)),
            false => Err(io::Error::other(format!("a bell is an event counter (eventfd), not {}", name.display()))),
        }
    }

    pub(super) fn into_fd(self) -> OwnedFd {
        self.0
    }
}

impl WorldBell for EventCounter {
    fn share(&self) -> io::Result<Box<dyn WorldBell>> {
        Ok(Box::new(EventCounter(self.0.try_clone()?)))
    }

    fn into_token(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// Ends a connection when it is dropped, whoever waits for what.
struct Line(UnixStream);

impl Drop for Line {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// Starts the thread of a connection.
pub(super) fn attend(stream: OwnedFd) -> io::Result<Port> {
    let stream = UnixStream::from(stream);
    let line = Line(stream.try_clone()?);
    let (sender, questions) = async_channel::bounded(1);
    let serve = move || {
        let mut handler = BackendReqHandler::from_stream(stream, Arc::new(Asking(sender)));
        loop {
            match handler.handle_request() {
                Ok(()) => {}
                Err(Error::Disconnected) => return,
                // Said by whoever refused.
                Err(Error::ReqHandlerError(error)) if error.kind() == io::ErrorKind::ConnectionAborted => return,
                Err(error) => return tracing::warn!(%error, "a hypervisor's connection ended"),
            }
        }
    };
    std::thread::Builder::new().name("levee-guest".into()).spawn(serve)?;
    Ok(Port::new(questions, Box::new(line)))
}

/// Passes what is asked on to the loop of the device, and waits.
struct Asking(async_channel::Sender<Question>);

fn failed(error: io::Error) -> Error {
    Error::ReqHandlerError(error)
}

impl Asking {
    fn ask(&self, ask: Ask) -> Result<Answer> {
        let ended = || failed(io::ErrorKind::ConnectionAborted.into());
        let (question, answer) = Question::new(ask);
        self.0.send_blocking(question).map_err(|_| ended())?;
        match answer.recv_blocking() {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => Err(ended()),
        }
    }

    fn done(&self, ask: Ask) -> Result<()> {
        self.ask(ask).map(drop)
    }

    fn number(&self, ask: Ask) -> Result<u64> {
        match self.ask(ask)? {
            Answer::Number(number) => Ok(number),
            _ => Err(Error::BackendInternalError),
        }
    }
}

fn bell(file: Option<File>) -> Result<Option<Bell>> {
    let counter = file.map(EventCounter::new).transpose().map_err(failed)?;
    Ok(counter.map(|counter| Bell(Hung::World(Box::new(counter)))))
}

/// Maps a part of a file that cannot shrink.
fn map(file: File, offset: u64, len: u64, guest: u64) -> io::Result<GuestRegionMmap> {
    // SAFETY: no memory is passed.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return Err(io::Error::other(
            "memory that may shrink would end this process: give it as a sealed memfd (QEMU: \
             memory-backend-memfd,share=on, without seal=off)",
        ));
    }
    // SAFETY: all zeros is a valid structure of numbers.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call.
    check(unsafe { libc::fstatfs(file.as_raw_fd(), &mut system) })?;
    if system.f_type == libc::HUGETLBFS_MAGIC {
        return Err(io::Error::other(
            "huge pages that cannot be had would end this process: give memory without them (QEMU: \
             memory-backend-memfd,share=on, without hugetlb=on)",
        ));
    }
    if offset.checked_add(len).is_none_or(|end| end > file.metadata().map_or(0, |metadata| metadata.len())) {
        return Err(io::Error::other("memory ends before its region does"));
    }
    let len = usize::try_from(len).map_err(io::Error::other)?;
    let mapping = MmapRegion::from_file(FileOffset::new(file, offset), len).map_err(io::Error::other)?;
    GuestRegionMmap::new(mapping, GuestAddress(guest)).ok_or_else(|| io::Error::other("a region wraps around"))
}

fn memory(regions: Vec<(Region, GuestRegionMmap)>) -> io::Result<Memory> {
    let (mut places, mut maps): (Vec<_>, Vec<_>) = regions.into_iter().unzip();
    places.sort_by_key(|region: &Region| region.guest);
    maps.sort_by_key(|map: &GuestRegionMmap| vm_memory::GuestMemoryRegion::start_addr(map));
    let map = Map::from_regions(maps).map_err(io::Error::other)?;
    Ok(Memory::new(map, places))
}

/// Says why, for the device's owner; the hypervisor learns that its connection ends.
fn refused<T>(result: io::Result<T>) -> Result<T> {
    result.map_err(|error| {
        tracing::warn!(%error, "a hypervisor's device was refused");
        failed(io::ErrorKind::ConnectionAborted.into())
    })
}

/// A new file of zeros that neither shrinks nor grows.
fn sealed_file(len: u64) -> io::Result<File> {
    let name = c"levee-inflight";
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name outlives the call; the new descriptor is owned by nobody else.
    let file = unsafe { File::from_raw_fd(check(libc::memfd_create(name.as_ptr(), flags))?) };
    file.set_len(len)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(file)
}

impl VhostUserBackendReqHandler for Asking {
    fn set_owner(&self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&self) -> Result<()> {
        self.done(Ask::Reset)
    }

    fn reset_device(&self) -> Result<()> {
        self.done(Ask::Reset)
    }

    fn get_features(&self) -> Result<u64> {
        let features = self.number(Ask::Features)?;
        Ok(features | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits())
    }

    fn set_features(&self, features: u64) -> Result<()> {
        self.done(Ask::SetFeatures(features))
    }

    fn set_mem_table(
        &self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<vhost::VhostUserMemoryRegionBase>>> {
        let each = |(region, file): (&VhostUserMemoryRegion, File)| {
            let place = Region { guest: region.guest_phys_addr, len: region.memory_size, user: region.user_addr };
            Ok((place, map(file, region.mmap_offset, place.len, place.guest)?))
        };
        let mapped: io::Result<Vec<_>> = regions.iter().zip(files).map(each).collect();
        let memory = refused(mapped.and_then(memory))?;
        self.done(Ask::SetMemory(memory))?;
        Ok(None)
    }

    fn set_vring_num(&self, index: u32, num: u32) -> Result<()> {
        self.done(Ask::SetSize { queue: index as usize, size: num })
    }

    fn set_vring_addr(
        &self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.done(Ask::SetAddresses { queue: index as usize, descriptors: descriptor, available, used })
    }

    fn set_vring_base(&self, index: u32, base: u32) -> Result<()> {
        self.done(Ask::SetNext { queue: index as usize, next: base })
    }

    fn get_vring_base(&self, index: u32) -> Result<VhostUserVringState> {
        let next = self.number(Ask::Stop { queue: index as usize })?;
        Ok(VhostUserVringState::new(index, next as u32))
    }

    fn set_vring_kick(&self, index: u8, fd: Option<File>) -> Result<()> {
        self.done(Ask::SetKick { queue: usize::from(index), bell: bell(fd)? })
    }

    fn set_vring_call(&self, index: u8, fd: Option<File>) -> Result<()> {
        self.done(Ask::SetCall { queue: usize::from(index), bell: bell(fd)? })
    }

    fn set_vring_err(&self, _index: u8, _fd: Option<File>) -> Result<()> {
        Ok(())
    }

    fn get_protocol_features(&self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::RESET_DEVICE)
    }

    fn set_protocol_features(&self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&self) -> Result<u64> {
        self.number(Ask::QueuesMax)
    }

    fn set_vring_enable(&self, index: u32, enable: bool) -> Result<()> {
        self.done(Ask::SetEnabled { queue: index as usize, is_enabled: enable })
    }

    fn get_config(&self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        match self.ask(Ask::Config { offset, len: size })? {
            Answer::Bytes(bytes) => Ok(bytes),
            _ => Err(Error::BackendInternalError),
        }
    }

    /// There is nothing in it that a guest may change.
    fn set_config(&self, _offset: u32, _bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        Ok(())
    }

    fn get_inflight_fd(&self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = (wanted.num_queues, wanted.queue_size);
        let len = self.number(Ask::InflightLen { queues, size })?;
        let file = refused(sealed_file(len.min(INFLIGHT_MAX)))?;
        Ok((VhostUserInflight::new(len, 0, queues, size), file))
    }

    fn set_inflight_fd(&self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let (queues, size) = (inflight.num_queues, inflight.queue_size);
        let len = inflight.mmap_size.min(INFLIGHT_MAX);
        let place = Region { guest: 0, len, user: 0 };
        let area = map(file, inflight.mmap_offset, len, 0).and_then(|map| memory(vec![(place, map)]));
        self.done(Ask::SetInflight { area: refused(area)?, queues, size })
    }

    fn get_max_mem_slots(&self) -> Result<u64> {
        Err(Error::InvalidOperation("memory comes as a table"))
    }

    fn add_mem_region(
        &self,
        _region: &VhostUserSingleMemoryRegion,
        _fd: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<vhost::VhostUserMemoryRegionBase>> {
        Err(Error::InvalidOperation("memory comes as a table"))
    }

    fn remove_mem_region(&self, _region: &VhostUserSingleMemoryRegion) -> Result<()> {
        Err(Error::InvalidOperation("memory comes as a table"))
    }

    fn set_gpu_socket(&self, _gpu: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("a disk draws nothing"))
    }

    fn get_shared_object(&self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("nothing is shared"))
    }

    fn set_device_state_fd(
        &self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("a disk has no state of its own"))
    }

    fn check_device_state(&self) -> Result<()> {
        Err(Error::InvalidOperation("a disk has no state of its own"))
    }

    fn get_shmem_config(&self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("nothing is shared"))
    }

    fn set_log_base(&self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(Error::InvalidOperation("what is written is not logged: no live migration"))
    }
}
