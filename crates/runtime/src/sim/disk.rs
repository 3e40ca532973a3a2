//! One simulated disk: how long an operation takes, what goes wrong, how much room there is.
//!
//! Time: an operation waits for the first free one of a few *channels*, its bytes cross one *bus* of a fixed
//! bandwidth, and a latency with some jitter is added. So small operations overlap, complete out of order, and large
//! ones share the bandwidth.
//!
//! Faults come from a [`FaultPlan`] (each with a probability, drawn from the world's seed) or are injected one by one
//! for the next operations that they fit. A disk can also *vanish*: then every operation on it ends with EIO and
//! nothing can be opened, until it returns as it was, empty, or as an older copy of itself. Files that were open stay
//! dead.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::{GIB, Prng};

use super::namespace::Namespace;

/// What a simulated disk is like.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// How long an operation takes beyond its transfer.
    pub latency: Duration,
    /// How much longer a write takes to be durable (O_DSYNC), and a sync beyond the transfer of what is dirty.
    pub sync_latency: Duration,
    /// How long a call takes that needs no transfer: open, rename, length, a write into the page cache.
    pub cached_latency: Duration,
    /// How far latencies vary upwards, in percent.
    pub jitter_percent: u64,
    /// What crosses the bus in a second, in bytes.
    pub transfer_bytes_per_sec: u64,
    /// How many operations are worked on at once.
    pub channels: usize,
    /// Room for the content of files, in bytes.
    pub capacity: u64,
    /// What goes wrong by itself.
    pub faults: FaultPlan,
}

impl Default for DiskOptions {
    /// A middling NVMe device of 64 GiB without faults.
    fn default() -> Self {
        DiskOptions {
            latency: Duration::from_micros(50),
            sync_latency: Duration::from_micros(20),
            cached_latency: Duration::from_micros(5),
            jitter_percent: 20,
            transfer_bytes_per_sec: 1_000_000_000,
            channels: 16,
            capacity: 64 * GIB,
            faults: FaultPlan::default(),
        }
    }
}

/// How often a disk does each kind of wrong, as "one in so many operations" of the fitting kind; 0 is never.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultPlan {
    /// [`Fault::ReadError`].
    pub read_error_one_in: u64,
    /// [`Fault::WriteError`].
    pub write_error_one_in: u64,
    /// [`Fault::SyncError`].
    pub sync_error_one_in: u64,
    /// [`Fault::ShortWrite`].
    pub short_write_one_in: u64,
    /// [`Fault::LostWrite`].
    pub lost_write_one_in: u64,
    /// [`Fault::MisdirectedWrite`].
    pub misdirected_write_one_in: u64,
    /// [`Fault::Rot`].
    pub rot_one_in: u64,
    /// [`Fault::Slow`].
    pub slow_one_in: u64,
}

/// One wrong that a disk can do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// A read ends with EIO.
    ReadError,
    /// A write ends with EIO; which of its sectors are on the disk is random.
    WriteError,
    /// A sync (of a file or a directory) ends with EIO. Of the file's unsynced sectors some are on the disk, the rest
    /// is gone, and the next sync succeeds: as in Linux.
    SyncError,
    /// A write of more than a block writes only some of its blocks, and says so.
    ShortWrite,
    /// A write is reported as done, and never happened.
    LostWrite,
    /// A write is reported as done, but its data went to another place of the same file.
    MisdirectedWrite,
    /// A bit of what a read is about to return has flipped on the disk, for good.
    Rot,
    /// An operation takes 1,000 times its latency.
    Slow,
}

impl Fault {
    pub(super) const COUNT: usize = 8;
}

/// The number of a disk in its world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct DiskId(pub(super) usize);

/// What a disk did so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskCounters {
    /// Reads that completed.
    pub reads: u64,
    /// Writes that completed.
    pub writes: u64,
    /// Syncs of files and directories that completed.
    pub syncs: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Writes and allocations that were refused because the disk was full.
    pub full: u64,
    faults: [u64; Fault::COUNT],
}

impl DiskCounters {
    /// How often this fault happened.
    pub fn faults(&self, fault: Fault) -> u64 {
        self.faults[fault as usize]
    }
}

/// A disk, as the world keeps it.
pub(super) struct Disk {
    pub(super) options: DiskOptions,
    pub(super) names: Namespace,
    pub(super) counters: DiskCounters,
    /// Raised when the disk vanishes: files that were opened in an earlier life stay dead.
    pub(super) life: u64,
    pub(super) present: bool,
    /// All times are this many times longer.
    pub(super) slowness: u64,
    used: u64,
    injections: Vec<Injection>,
    channels_free_ns: Vec<u64>,
    bus_free_ns: u64,
}

struct Injection {
    fault: Fault,
    path: Option<PathBuf>,
    left: u64,
}

impl Disk {
    pub(super) fn new(options: DiskOptions) -> Self {
        assert!(options.channels > 0 && options.transfer_bytes_per_sec > 0, "a disk works");
        Disk {
            names: Namespace::new(),
            counters: DiskCounters::default(),
            life: 0,
            present: true,
            slowness: 1,
            used: 0,
            injections: Vec::new(),
            channels_free_ns: vec![0; options.channels],
            bus_free_ns: 0,
            options,
        }
    }

    /// When an operation is done that moves `len` bytes and starts at `now_ns`.
    pub(super) fn serve(&mut self, now_ns: u64, len: u64, durable: bool, slow: bool, prng: &mut Prng) -> u64 {
        let factor = self.slowness * if slow { 1000 } else { 1 };
        let sync = if durable { self.options.sync_latency } else { Duration::ZERO };
        let latency_ns = self.jitter(self.options.latency + sync, prng) * factor;
        let transfer_ns = len * 1_000_000_000 / self.options.transfer_bytes_per_sec * self.slowness;
        let channel = (0..self.channels_free_ns.len()).min_by_key(|&i| self.channels_free_ns[i]).unwrap_or(0);
        let start_ns = now_ns.max(self.channels_free_ns[channel]).max(self.bus_free_ns);
        self.bus_free_ns = start_ns + transfer_ns;
        let done_ns = start_ns + transfer_ns + latency_ns;
        self.channels_free_ns[channel] = done_ns;
        done_ns
    }

    /// When a call is done that only touches memory, of `len` bytes.
    pub(super) fn serve_cached(&mut self, now_ns: u64, len: u64, prng: &mut Prng) -> u64 {
        now_ns + self.jitter(self.options.cached_latency, prng) * self.slowness + len / 8
    }

    fn jitter(&self, latency: Duration, prng: &mut Prng) -> u64 {
        let latency_ns = latency.as_nanos() as u64;
        latency_ns + prng.below(latency_ns * self.options.jitter_percent / 100 + 1)
    }

    /// Whether `fault` happens to an operation on `path` now, by injection or by the plan.
    pub(super) fn happens(&mut self, fault: Fault, path: &Path, prng: &mut Prng) -> bool {
        let plan = &self.options.faults;
        let one_in = match fault {
            Fault::ReadError => plan.read_error_one_in,
            Fault::WriteError => plan.write_error_one_in,
            Fault::SyncError => plan.sync_error_one_in,
            Fault::ShortWrite => plan.short_write_one_in,
            Fault::LostWrite => plan.lost_write_one_in,
            Fault::MisdirectedWrite => plan.misdirected_write_one_in,
            Fault::Rot => plan.rot_one_in,
            Fault::Slow => plan.slow_one_in,
        };
        let happens = (one_in > 0 && prng.one_in(one_in)) || self.injected(fault, path);
        self.counters.faults[fault as usize] += u64::from(happens);
        happens
    }

    fn injected(&mut self, fault: Fault, path: &Path) -> bool {
        let fits = |injection: &Injection| {
            injection.fault == fault && injection.path.as_ref().is_none_or(|wanted| wanted == path)
        };
        let Some(index) = self.injections.iter().position(fits) else { return false };
        self.injections[index].left -= 1;
        if self.injections[index].left == 0 {
            self.injections.remove(index);
        }
        true
    }

    /// Makes `fault` happen to the next `count` operations that it fits: of one file, or of any.
    pub(super) fn inject(&mut self, fault: Fault, path: Option<PathBuf>, count: u64) {
        if count > 0 {
            self.injections.push(Injection { fault, path, left: count });
        }
    }

    pub(super) fn has_injections(&self) -> bool {
        !self.injections.is_empty()
    }

    pub(super) fn stop_injections(&mut self) {
        self.injections.clear();
    }

    /// Bytes that are still free.
    pub(super) fn free(&self) -> u64 {
        self.options.capacity.saturating_sub(self.used)
    }

    /// Takes `bytes` of room if they are free.
    pub(super) fn reserve(&mut self, bytes: u64) -> bool {
        let fits = bytes == 0 || bytes <= self.free();
        match fits {
            true => self.used += bytes,
            false => self.counters.full += 1,
        }
        fits
    }

    /// Gives `bytes` of room back.
    pub(super) fn release(&mut self, bytes: u64) {
        self.used -= bytes;
    }

    /// The room that every file takes up, counted anew.
    pub(super) fn occupied(&self) -> u64 {
        self.names.occupants().map(|file| file.content.allocated()).sum()
    }

    /// Power is lost, or the cable is pulled: caches are gone.
    pub(super) fn lose_power(&mut self, now_ns: u64, prng: &mut Prng) {
        self.names.lose_power(prng);
        self.used = self.occupied();
        self.channels_free_ns.iter_mut().for_each(|free_ns| *free_ns = now_ns);
        self.bus_free_ns = now_ns;
    }

    /// The disk is gone until it returns; of what its cache held some reached the medium.
    pub(super) fn vanish(&mut self, now_ns: u64, prng: &mut Prng) {
        self.present = false;
        self.life += 1;
        self.lose_power(now_ns, prng);
    }

    /// Replaces the content: what was open is dead, and everything is durable.
    pub(super) fn replace(&mut self, names: Namespace) {
        self.names = names;
        self.life += 1;
        self.used = self.occupied();
    }

    /// Bytes of room in use.
    pub(super) fn used(&self) -> u64 {
        self.used
    }
}
