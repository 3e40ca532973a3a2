//! Plays a virtual machine: random requests of 4 KiB to a vhost-user disk, as many at once as are asked for, and the
//! processor time that a process takes for each.
//!
//! ```text
//! cargo run --release -p runtime --example guest -- SOCKET PID [DEPTH] [SECONDS] [read|write] [MIB]
//! ```
//!
//! A machine without acceleration cannot keep such a disk busy; this can. It prints requests per second, and processor time
//! of process PID in microseconds for each. `bench/guests` compares that with NBD.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a small program that measures real time")]

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use vhost::vhost_user::message::{VhostUserInflight, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

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
const BLOCK: u64 = 4096;
/// Features: 1.0, who is told when, and that queues are enabled.
const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 29;

struct Guest {
    memory: GuestMemoryMmap,
    kick: EventFd,
    call: EventFd,
    available: u16,
    seen: u16,
    is_write: bool,
    blocks: u64,
    random: u64,
    _frontend: Frontend,
}

impl Guest {
    fn connect(socket: &str, is_write: bool, blocks: u64) -> Guest {
        // SAFETY: the name outlives the call; the new descriptor is owned by nobody else.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"guest".as_ptr(), libc::MFD_ALLOW_SEALING)) };
        file.set_len(MEMORY).unwrap();
        // SAFETY: no memory is passed.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        let offset = FileOffset::new(file.try_clone().unwrap(), 0);
        let range = (GuestAddress(0), MEMORY as usize, Some(offset));
        let memory = GuestMemoryMmap::<()>::from_ranges_with_files([range]).unwrap();
        let [kick, call] = [(), ()].map(|()| EventFd::new(0).unwrap());
        let mut frontend = Frontend::connect(socket, 1).unwrap();
        frontend.set_owner().unwrap();
        let has = frontend.get_features().unwrap();
        frontend.set_features(has & FEATURES).unwrap();
        frontend.get_protocol_features().unwrap();
        let protocol = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::REPLY_ACK;
        frontend.set_protocol_features(protocol).unwrap();
        let wanted = VhostUserInflight::new(0, 0, 1, SIZE);
        let (inflight, area) = frontend.get_inflight_fd(&wanted).unwrap();
        frontend.set_inflight_fd(&inflight, area.as_raw_fd()).unwrap();
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        };
        frontend.set_mem_table(&[region]).unwrap();
        frontend.set_vring_num(0, SIZE).unwrap();
        frontend.set_vring_base(0, 0).unwrap();
        let places = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: USER + TABLE,
            used_ring_addr: USER + USED,
            avail_ring_addr: USER + AVAILABLE,
            log_addr: None,
        };
        frontend.set_vring_addr(0, &places).unwrap();
        frontend.set_vring_kick(0, &kick).unwrap();
        frontend.set_vring_call(0, &call).unwrap();
        frontend.set_vring_enable(0, true).unwrap();
        Guest { memory, kick, call, available: 0, seen: 0, is_write, blocks, random: 1, _frontend: frontend }
    }

    fn put<T: vm_memory::ByteValued>(&self, value: T, at: u64) {
        self.memory.write_obj(value, GuestAddress(at)).unwrap();
    }

    /// Puts the request of that slot into the ring, at a random block.
    fn submit(&mut self, slot: u16) {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let sector = (self.random >> 33) % self.blocks * (BLOCK / 512);
        let (number, head) = (u64::from(slot), slot * 3);
        let header = HEADERS + 16 * number;
        self.put(u32::from(self.is_write), header);
        self.put(sector, header + 8);
        let data_flags: u16 = if self.is_write { 1 } else { 3 };
        let pieces = [
            (header, 16u32, 1u16, head + 1),
            (BUFFERS + BLOCK * number, BLOCK as u32, data_flags, head + 2),
            (STATUSES + number, 1, 2, 0),
        ];
        for (index, (address, len, flags, next)) in pieces.into_iter().enumerate() {
            let place = TABLE + 16 * (u64::from(head) + index as u64);
            self.put(address, place);
            self.put(u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48, place + 8);
        }
        self.put(head, AVAILABLE + 4 + 2 * u64::from(self.available % SIZE));
        self.available = self.available.wrapping_add(1);
    }

    /// Shows what was submitted since `before`, and kicks if that is wanted.
    fn show(&mut self, before: u16) {
        self.memory.store(self.available, GuestAddress(AVAILABLE + 2), Ordering::Release).unwrap();
        fence(Ordering::SeqCst);
        let event: u16 = self.memory.read_obj(GuestAddress(USED + 4 + 8 * u64::from(SIZE))).unwrap();
        if self.available.wrapping_sub(event).wrapping_sub(1) < self.available.wrapping_sub(before) {
            self.kick.write(1).unwrap();
        }
    }

    /// Takes what was used, and submits it again: how many there were.
    fn turn(&mut self) -> u64 {
        let (before, mut count) = (self.available, 0);
        loop {
            let used: u16 = self.memory.load(GuestAddress(USED + 2), Ordering::Acquire).unwrap();
            while self.seen != used {
                let place = USED + 4 + 8 * u64::from(self.seen % SIZE);
                let head: u32 = self.memory.read_obj(GuestAddress(place)).unwrap();
                self.seen = self.seen.wrapping_add(1);
                let slot = (head / 3) as u16;
                let status: u8 = self.memory.read_obj(GuestAddress(STATUSES + u64::from(slot))).unwrap();
                assert_eq!(status, 0, "a request failed");
                self.submit(slot);
                count += 1;
            }
            if count > 0 {
                self.show(before);
                return count;
            }
            // To be told of the next one.
            self.put(self.seen, AVAILABLE + 4 + 2 * u64::from(SIZE));
            fence(Ordering::SeqCst);
            let again: u16 = self.memory.load(GuestAddress(USED + 2), Ordering::Acquire).unwrap();
            if again == self.seen {
                self.call.read().unwrap();
            }
        }
    }
}

/// Processor time that a process has taken so far.
fn processor_time(process: &str) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, process] = arguments.first_chunk().expect("SOCKET PID [DEPTH] [SECONDS] [read|write] [MIB]");
    let number = |at: usize, usual: u64| arguments.get(at).map_or(usual, |text| text.parse().unwrap());
    let (depth, seconds, mib) = (number(2, 32).min(u64::from(SIZE / 3)), number(3, 10), number(5, 1024));
    let is_write = arguments.get(4).is_none_or(|how| how == "write");
    let mut guest = Guest::connect(socket, is_write, (mib << 20) / BLOCK);
    (0..depth as u16).for_each(|slot| guest.submit(slot));
    guest.show(0);
    let warm = Instant::now();
    while warm.elapsed() < Duration::from_secs(1) {
        guest.turn();
    }
    let (begun, before, mut count) = (Instant::now(), processor_time(process), 0);
    while begun.elapsed() < Duration::from_secs(seconds) {
        count += guest.turn();
    }
    let (took, busy) = (begun.elapsed().as_secs_f64(), processor_time(process) - before);
    println!(
        "{:.0} IOPS, {:.2} us of processor time a request",
        count as f64 / took,
        busy.as_secs_f64() * 1e6 / count as f64
    );
}
