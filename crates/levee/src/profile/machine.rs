//! A virtual machine that keeps its disk busy: the hypervisor's side of vhost-user and the driver's side of one queue, with
//! nothing behind them. A machine without acceleration could not.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use base::{Error, KIB, Prng, Result};
use node::profile::Asked;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use vhost::vhost_user::message::{VhostUserInflight, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

use super::Client;

/// Descriptors of the queue; a request has three.
const SIZE: u16 = 256;
const MEMORY: u64 = 16 << 20;
/// Where the hypervisor is said to have that.
const USER: u64 = 0x7f00_0000_0000;
const TABLE: u64 = 0x1000;
const AVAILABLE: u64 = 0x4000;
const USED: u64 = 0x8000;
const HEADERS: u64 = 0x1_0000;
const STATUSES: u64 = 0x2_0000;
const BUFFERS: u64 = 0x10_0000;
/// The largest request.
const BUFFER_BYTES: u64 = 64 * KIB;
const SECTOR: u64 = 512;
/// Features: 1.0, who is told when, and that queues are enabled.
const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 29;

/// See the module.
pub(super) struct Machine {
    memory: GuestMemoryMmap,
    kick: EventFd,
    call: EventFd,
    available: u16,
    seen: u16,
    size: u64,
    depth: u16,
    places: Prng,
    _frontend: Frontend,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::internal(format!("the virtual machine of the measurement: {error}"))
}

impl Machine {
    pub(super) fn connect(socket: &Path, size: u64, depth: usize) -> Result<Machine> {
        let file = File::from(memfd_create(c"guest", MemfdFlags::ALLOW_SEALING).map_err(failed)?);
        file.set_len(MEMORY).map_err(failed)?;
        fcntl_add_seals(&file, SealFlags::SHRINK).map_err(failed)?;
        let offset = FileOffset::new(file.try_clone().map_err(failed)?, 0);
        let range = (GuestAddress(0), MEMORY as usize, Some(offset));
        let memory = GuestMemoryMmap::<()>::from_ranges_with_files([range]).map_err(failed)?;
        let (kick, call) = (EventFd::new(0).map_err(failed)?, EventFd::new(0).map_err(failed)?);
        let mut frontend = Frontend::connect(socket, 1).map_err(failed)?;
        frontend.set_owner().map_err(failed)?;
        let has = frontend.get_features().map_err(failed)?;
        frontend.set_features(has & FEATURES).map_err(failed)?;
        frontend.get_protocol_features().map_err(failed)?;
        let protocol = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::REPLY_ACK;
        frontend.set_protocol_features(protocol).map_err(failed)?;
        let (inflight, area) = frontend.get_inflight_fd(&VhostUserInflight::new(0, 0, 1, SIZE)).map_err(failed)?;
        frontend.set_inflight_fd(&inflight, area.as_raw_fd()).map_err(failed)?;
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        };
        frontend.set_mem_table(&[region]).map_err(failed)?;
        frontend.set_vring_num(0, SIZE).map_err(failed)?;
        frontend.set_vring_base(0, 0).map_err(failed)?;
        let places = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: USER + TABLE,
            used_ring_addr: USER + USED,
            avail_ring_addr: USER + AVAILABLE,
            log_addr: None,
        };
        frontend.set_vring_addr(0, &places).map_err(failed)?;
        frontend.set_vring_kick(0, &kick).map_err(failed)?;
        frontend.set_vring_call(0, &call).map_err(failed)?;
        frontend.set_vring_enable(0, true).map_err(failed)?;
        let (depth, places) = ((depth as u16).min(SIZE / 3), Prng::new(2));
        Ok(Machine { memory, kick, call, available: 0, seen: 0, size, depth, places, _frontend: frontend })
    }

    fn put<T: vm_memory::ByteValued>(&self, value: T, at: u64) -> Result<()> {
        self.memory.write_obj(value, GuestAddress(at)).map_err(failed)
    }

    fn index(&self, ring: u64) -> Result<u16> {
        self.memory.load(GuestAddress(ring + 2), Ordering::Acquire).map_err(failed)
    }

    /// Puts the request of that slot into the ring, at a random place.
    fn submit(&mut self, slot: u16, asked: Asked, bytes: u64) -> Result<()> {
        let sector = self.places.below(self.size / bytes) * (bytes / SECTOR);
        let (number, head, is_write) = (u64::from(slot), slot * 3, asked == Asked::Write);
        let header = HEADERS + 16 * number;
        self.put(u32::from(is_write), header)?;
        self.put(sector, header + 8)?;
        let data_flags: u16 = if is_write { 1 } else { 3 };
        let pieces = [
            (header, 16, 1u16, head + 1),
            (BUFFERS + BUFFER_BYTES * number, bytes, data_flags, head + 2),
            (STATUSES + number, 1, 2, 0),
        ];
        for (index, (address, len, flags, next)) in (0..).zip(pieces) {
            let place = TABLE + 16 * (u64::from(head) + index);
            self.put(address, place)?;
            self.put(len | u64::from(flags) << 32 | u64::from(next) << 48, place + 8)?;
        }
        self.put(head, AVAILABLE + 4 + 2 * u64::from(self.available % SIZE))?;
        self.available = self.available.wrapping_add(1);
        Ok(())
    }

    /// Shows what was submitted since `before`, and kicks if that is wanted.
    fn show(&mut self, before: u16) -> Result<()> {
        self.memory.store(self.available, GuestAddress(AVAILABLE + 2), Ordering::Release).map_err(failed)?;
        fence(Ordering::SeqCst);
        let event: u16 = self.memory.read_obj(GuestAddress(USED + 4 + 8 * u64::from(SIZE))).map_err(failed)?;
        match self.available.wrapping_sub(event).wrapping_sub(1) < self.available.wrapping_sub(before) {
            true => self.kick.write(1).map_err(failed),
            false => Ok(()),
        }
    }

    /// The next slot that was answered, if there is one.
    fn take(&mut self) -> Result<Option<u16>> {
        if self.seen == self.index(USED)? {
            return Ok(None);
        }
        let place = USED + 4 + 8 * u64::from(self.seen % SIZE);
        let head: u32 = self.memory.read_obj(GuestAddress(place)).map_err(failed)?;
        self.seen = self.seen.wrapping_add(1);
        let slot = (head / 3) as u16;
        let status: u8 = self.memory.read_obj(GuestAddress(STATUSES + u64::from(slot))).map_err(failed)?;
        if status != 0 {
            return Err(failed("a request failed, the log says why"));
        }
        Ok(Some(slot))
    }

    /// Waits until something was answered.
    fn wait(&mut self) -> Result<()> {
        self.put(self.seen, AVAILABLE + 4 + 2 * u64::from(SIZE))?;
        fence(Ordering::SeqCst);
        match self.index(USED)? == self.seen {
            true => self.call.read().map(drop).map_err(failed),
            false => Ok(()),
        }
    }
}

impl Client for Machine {
    fn ask(&mut self, asked: Asked, bytes: u64, span: Duration) -> Result<u64> {
        let (begun, mut in_flight, mut count) = (Instant::now(), self.depth, 0);
        let before = self.available;
        (0..self.depth).try_for_each(|slot| self.submit(slot, asked, bytes))?;
        self.show(before)?;
        while in_flight > 0 {
            let (before, goes_on) = (self.available, begun.elapsed() < span);
            let answered = count;
            while let Some(slot) = self.take()? {
                count += 1;
                match goes_on {
                    true => self.submit(slot, asked, bytes)?,
                    false => in_flight -= 1,
                }
            }
            if self.available != before {
                self.show(before)?;
            } else if count == answered {
                self.wait()?;
            }
        }
        Ok(count)
    }
}
