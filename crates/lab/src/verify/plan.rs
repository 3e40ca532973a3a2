//! What one run does: drawn from its seed before anything happens, as plain data that can be printed, cut and run again.
//!
//! Names: the *shape* is what does not change (disks, copies, sizes, clients); *steps* are a list of requests,
//! accidents and pauses. Workers take the steps in order, each when it has nothing else to do, so that as many requests
//! are in flight as there are workers, and an accident happens in the middle of them. Cutting steps out of the list
//! gives another valid plan: that is what the shrinker does.
//!
//! The *budget*: which accidents a seed may have follows from the promise that it tests, never the other way round.
//! See [`Promise`].

mod faults;
mod guests;
mod machines;
mod several;

use std::ops::Range;
use std::time::Duration;

use base::{GIB, KIB, MIB, Prng, SECTOR};
use control::levels::LevelsChange;
use node::cluster::settings::Forwarding;
use node::settings::{Queues, Throttle};

pub use self::faults::{Fault, FaultKind, Reach};
pub use self::guests::Vm;
pub use self::machines::{Harm, Machine, Role};
pub use self::several::{Order, Pooled, Several};

/// What must hold in a run, whatever goes wrong within its budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    /// Every request is answered, nothing fails but what a crash or a broken connection interrupts.
    Flawless,
    /// One disk of several misbehaves at a time: requests may fail meanwhile, nothing is lost.
    NothingLost,
    /// The only copy of some bytes may be destroyed: requests may fail for good, and a start may be refused; wrong
    /// bytes are still never returned.
    NeverWrong,
}

/// What does not change during a run.
#[derive(Clone, Debug)]
pub struct Shape {
    /// What must hold.
    pub promise: Promise,
    /// Disks, each with one directory of the store.
    pub disks: usize,
    /// Copies of everything.
    pub copies: u8,
    /// The disk that may misbehave, where one may.
    pub bad_disk: usize,
    /// How long a disk takes for an operation.
    pub disk_latency: Duration,
    /// How much longer it takes now and then, in percent.
    pub disk_jitter_percent: u64,
    /// Bytes of each disk.
    pub disk_bytes: u64,
    /// Volumes that exist at a time.
    pub volumes: usize,
    /// Bytes of each volume.
    pub volume_bytes: u64,
    /// Sectors that are used of each volume.
    pub sectors: Range<u64>,
    /// Connections that share the volumes; each takes a connection to each volume.
    pub clients: usize,
    /// Requests that one client has in flight at most.
    pub depth: usize,
    /// Size from which on writes skip the journal.
    pub large_write_bytes: u64,
    /// When a segment's cache is dumped.
    pub segment_cache_bytes: u64,
    /// Bytes of the index that are kept in memory until they become tables.
    pub memtable_bytes: u64,
    /// Size of a journal file.
    pub journal_file_bytes: u64,
    /// Size of a file of the transaction log.
    pub transaction_file_bytes: u64,
    /// Size of a data file.
    pub data_file_bytes: u64,
    /// Packets of which one is lost.
    pub packet_loss_one_in: u64,
    /// What the store believes that its disks take, per second, if it has to believe anything.
    pub bandwidth: Option<u64>,
    /// Who has to wait when there is more to do.
    pub throttle: Throttle,
    /// Base and burst level of every volume.
    pub levels: LevelsChange,
    /// Loops of the server, each with a shard of the store.
    pub loops: u8,
    /// How often all copies of everything are read; never, as long as a run lasts, by default.
    pub scrub_period: Option<Duration>,
    /// Space for data files that is zero-written ahead of need in each directory, and after how much quiet.
    pub zero_ahead: (u64, Duration),
    /// By client: what its disks are like, if it is a virtual machine. Nothing else is known of clients that are not named.
    pub vms: Vec<Option<Vm>>,
    /// Which loops serve the queues of virtual machines.
    pub queues: Queues,
    /// What all clients of an agent together may read and write, per second.
    pub limit: Option<u64>,
    /// Which writes are logged, where there are several servers.
    pub forwarding: Forwarding,
    /// The machines, where there are several.
    pub several: Option<Several>,
    /// The pool that has their files, if one has.
    pub pool: Option<Pooled>,
    /// Bytes per second that the network card of each server carries, each way, if that is little.
    pub card: Option<u64>,
}

/// What a client asks for. Ranges are sectors of the volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Reads a range.
    Read(Range<u64>),
    /// Writes a range, every sector with a value that nothing else writes.
    Write(Range<u64>),
    /// TRIM.
    Discard(Range<u64>),
    /// WRITE_ZEROES; with `allocate`, as data.
    WriteZeroes {
        /// The range.
        range: Range<u64>,
        /// NO_HOLE.
        allocate: bool,
    },
    /// FLUSH.
    Flush,
}

/// One thing that happens in a run.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// A client asks volume `volume` for something.
    Ask {
        /// The number of the volume.
        volume: usize,
        /// What.
        request: Request,
    },
    /// The worker that takes it does nothing for a while.
    Idle(Duration),
    /// Closes the connections of one client; it attaches again when it needs to.
    Reattach,
    /// Deletes a volume and makes another one of the same name.
    Replace(usize),
    /// Stops the store cleanly, and starts it again.
    Restart,
    /// A person asks something of several servers.
    Order(Order),
    /// Something goes wrong, so long after the step was taken.
    Accident {
        /// What.
        fault: Fault,
        /// When.
        after: Duration,
    },
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The world's seed.
    pub seed: u64,
    /// What does not change.
    pub shape: Shape,
    /// What happens, in order.
    pub steps: Vec<Step>,
}

impl Plan {
    /// The plan of a seed, with accidents of `kinds` only: of one server, or, in one of three, of several.
    pub fn draw(seed: u64, kinds: &[FaultKind]) -> Plan {
        match Prng::new(seed ^ 0x6c61_6233).one_in(3) {
            true => Plan::draw_several(seed, kinds),
            false => Plan::draw_alone(seed, kinds),
        }
    }

    /// The plan of a seed, of one server.
    pub fn draw_alone(seed: u64, kinds: &[FaultKind]) -> Plan {
        let mut prng = Prng::new(seed ^ 0x6c61_6221);
        let shape = Shape::draw(&mut prng);
        let mut allowed: Vec<FaultKind> = kinds.iter().copied().filter(|kind| shape.allows(*kind)).collect();
        if shape.promise == Promise::NeverWrong && prng.one_in(2) {
            // What vanishes without a sign excuses old bytes: where nothing does, all of them are checked.
            allowed.retain(|kind| !kind.is_silent());
        }
        // Two accidents that show a mistake only together seldom meet among twenty kinds: most runs have a few, and a
        // crash among them.
        let few = *prng.pick(&[2, 4, 8, FaultKind::ALL.len()]);
        let crash = *prng.pick(&[FaultKind::Kill, FaultKind::PowerLoss]);
        while allowed.len() > few {
            let at = prng.below(allowed.len() as u64) as usize;
            if allowed[at] != crash {
                allowed.swap_remove(at);
            }
        }
        let count = prng.between(60, 500);
        // Accidents are rare in some runs and everything in others.
        let accident_one_in = *prng.pick(&[15, 40, 120]);
        let mut steps = Vec::new();
        // Some clients read a disk from one end to the other.
        let scan_one_in = *prng.pick(&[20, 100, 1_000]);
        for _ in 0..count {
            if prng.one_in(scan_one_in) {
                shape.draw_scan(&mut prng, &mut steps);
            }
            if allowed.is_empty() || !prng.one_in(accident_one_in) {
                steps.push(shape.draw_step(&mut prng));
                continue;
            }
            let kind = *prng.pick(&allowed);
            let latest_ns = *prng.pick(&[1, 100_000, 5_000_000]);
            let after = Duration::from_nanos(prng.below(latest_ns));
            steps.push(Step::Accident { fault: shape.draw_fault(kind, &mut prng), after });
        }
        // Scrubbing mends what a mistake of others left in one copy: in most runs it would hide what they are there for.
        let period = Duration::from_millis(*prng.pick(&[100, 10_000]));
        let scrub_period = prng.one_in(6).then_some(period);
        // A run is short: what waits for quiet has to find some between two requests.
        let quiet = Duration::from_micros(*prng.pick(&[0, 200, 5_000]));
        let zero_ahead = (*prng.pick(&[512 * KIB, 4 * MIB]), quiet);
        let (vms, queues) = guests::draw(seed, shape.clients);
        let limit = guests::draw_limit(seed);
        let levels = with_credits(seed, shape.levels);
        Plan { seed, shape: Shape { levels, scrub_period, zero_ahead, vms, queues, limit, ..shape }, steps }
    }

    /// A plan without accidents: one client that reads or writes 4 KiB `iops` times a second, for so many seconds.
    pub fn steady(seed: u64, iops: u64, seconds: u64) -> Plan {
        let mut prng = Prng::new(seed);
        let mut shape = Shape::draw(&mut prng);
        (shape.promise, shape.disks, shape.copies, shape.loops) = (Promise::Flawless, 1, 1, 1);
        (shape.disk_latency, shape.disk_jitter_percent) = (Duration::from_micros(50), 20);
        (shape.clients, shape.depth, shape.packet_loss_one_in, shape.bandwidth) = (1, 16, 0, None);
        (shape.volumes, shape.volume_bytes, shape.sectors) = (1, 64 * MIB, 0..64 * MIB / SECTOR);
        // Each worker asks, and then rests for its share of the time.
        let pause = Duration::from_secs(shape.depth as u64) / iops as u32;
        let block = base::BLOCK / SECTOR;
        let ask = |prng: &mut Prng| {
            let start = prng.below(shape.sectors.end / block) * block;
            let sectors = start..start + block;
            let request = if prng.one_in(2) { Request::Read(sectors) } else { Request::Write(sectors) };
            Step::Ask { volume: 0, request }
        };
        let steps = (0..iops * seconds).flat_map(|_| [ask(&mut prng), Step::Idle(pause)]).collect();
        Plan { seed, shape, steps }
    }
}

/// Levels of which some save what is not used. Who saves bursts on what he has saved only: of a lower base that takes longer than
/// a client has patience.
fn with_credits(seed: u64, levels: LevelsChange) -> LevelsChange {
    let credits = *Prng::new(seed ^ 0x6c61_6263).pick(&[None, Some((1, 100)), Some((10, 25))]);
    match (credits, levels.base_bytes_per_sec) {
        (Some((seconds, percent)), Some(MIB..)) => {
            LevelsChange { credit_seconds: Some(seconds), credit_percent: Some(percent), ..levels }
        }
        _ => levels,
    }
}

fn micros(prng: &mut Prng, low: u64, high: u64) -> Duration {
    Duration::from_micros(prng.between(low, high))
}

impl Shape {
    fn draw(prng: &mut Prng) -> Shape {
        let promise = *prng.pick(&[Promise::Flawless, Promise::NothingLost, Promise::NeverWrong]);
        let (disks, copies) = match promise {
            Promise::Flawless => *prng.pick(&[(1, 1), (1, 1), (2, 1), (2, 2), (3, 2)]),
            Promise::NothingLost => *prng.pick(&[(2, 2), (2, 2), (3, 2), (3, 3)]),
            Promise::NeverWrong => *prng.pick(&[(1, 1), (2, 1), (2, 2)]),
        };
        let volume_bytes = *prng.pick(&[MIB, 64 * MIB, 10 * GIB]);
        let used = (*prng.pick(&[64, 512, 2048])).min(volume_bytes / SECTOR);
        // At an end of the volume, or across the border of two stripes.
        let first = match prng.below(3) {
            0 => 0,
            1 => volume_bytes / SECTOR - used,
            _ => (128 * KIB / SECTOR).saturating_sub(used / 2),
        };
        let (disk_latency, disk_jitter_percent) = match prng.below(3) {
            0 => (micros(prng, 1_000, 10_000), 20),
            // What was sent later is often done earlier.
            _ => (micros(prng, 5, 200), *prng.pick(&[20, 300, 3_000])),
        };
        // Small enough that somebody has to wait; together the volumes are promised half of it at most.
        let bandwidth = *prng.pick(&[None, None, Some(MIB), Some(8 * MIB)]);
        let base = bandwidth.filter(|_| prng.one_in(2)).map(|bandwidth| bandwidth / 8);
        let burst = bandwidth.filter(|_| prng.one_in(4)).map(|bandwidth| bandwidth / 2);
        Shape {
            promise,
            disks,
            copies,
            bad_disk: prng.below(disks as u64) as usize,
            disk_latency,
            disk_jitter_percent,
            disk_bytes: 256 * MIB,
            volumes: prng.between(1, 3) as usize,
            volume_bytes,
            sectors: first..first + used,
            clients: prng.between(1, 3) as usize,
            depth: prng.between(1, 4) as usize,
            large_write_bytes: *prng.pick(&[16 * KIB, 64 * KIB]),
            segment_cache_bytes: *prng.pick(&[16 * KIB, 64 * KIB, 512 * KIB]),
            memtable_bytes: *prng.pick(&[8 * KIB, 64 * KIB, 4 * MIB]),
            journal_file_bytes: *prng.pick(&[512 * KIB, MIB]),
            transaction_file_bytes: *prng.pick(&[64 * KIB, 256 * KIB, MIB]),
            data_file_bytes: *prng.pick(&[64 * KIB, 256 * KIB, MIB]),
            packet_loss_one_in: *prng.pick(&[0, 0, 200]),
            bandwidth,
            throttle: *prng.pick(&[Throttle::DualBuckets, Throttle::DualBuckets, Throttle::OneBucket]),
            levels: LevelsChange { base_bytes_per_sec: base, burst_bytes_per_sec: burst, ..LevelsChange::default() },
            loops: *prng.pick(&[1, 1, 1, 2, 4]),
            scrub_period: None,
            zero_ahead: (MIB, Duration::from_millis(1)),
            vms: Vec::new(),
            queues: Queues::Shared,
            limit: None,
            forwarding: Forwarding::Off,
            several: None,
            pool: None,
            card: None,
        }
    }

    /// Whether an accident leaves the promise whole.
    fn allows(&self, kind: FaultKind) -> bool {
        if kind == FaultKind::SlowLink {
            return false;
        }
        match self.promise {
            Promise::Flawless => kind.is_harmless(),
            Promise::NothingLost | Promise::NeverWrong => true,
        }
    }

    /// A range of what is used.
    pub(super) fn draw_range(&self, prng: &mut Prng, len: u64) -> Range<u64> {
        let all = self.sectors.end - self.sectors.start;
        let mut len = len.clamp(1, all);
        let mut start = prng.below(all - len + 1);
        if prng.one_in(2) {
            start = start / 8 * 8;
            len = len.next_multiple_of(8).min(all - start);
        }
        self.sectors.start + start..self.sectors.start + start + len
    }

    fn draw_step(&self, prng: &mut Prng) -> Step {
        let volume = prng.below(self.volumes as u64) as usize;
        let longest = *prng.pick(&[1, 8, 24, 64, 320]);
        let len = prng.between(1, longest);
        let ask = |request| Step::Ask { volume, request };
        match prng.below(200) {
            0..=69 => ask(Request::Read(self.draw_range(prng, len))),
            70..=159 => ask(Request::Write(self.draw_range(prng, len))),
            160..=171 => ask(Request::Discard(self.draw_range(prng, len))),
            172..=179 => {
                let allocate = prng.one_in(2);
                ask(Request::WriteZeroes { range: self.draw_range(prng, len), allocate })
            }
            180..=185 => ask(Request::Flush),
            186..=194 => Step::Idle(Duration::from_nanos(prng.below(20_000_000))),
            195..=197 => Step::Reattach,
            198 => Step::Replace(volume),
            _ => Step::Restart,
        }
    }

    /// Reads all of a volume that is used, from its begin to its end, while the same sectors are written and discarded
    /// here and there.
    fn draw_scan(&self, prng: &mut Prng, steps: &mut Vec<Step>) {
        let volume = prng.below(self.volumes as u64) as usize;
        let len = *prng.pick(&[8, 32, 64, 256]);
        let write_one_in = *prng.pick(&[1, 2, 5]);
        let mut at = self.sectors.start;
        while at < self.sectors.end {
            let range = at..(at + len).min(self.sectors.end);
            at = range.end;
            steps.push(Step::Ask { volume, request: Request::Read(range) });
            if prng.one_in(write_one_in) {
                let longest = *prng.pick(&[8, 24, 320]);
                let len = prng.between(1, longest);
                let range = self.draw_range(prng, len);
                let request = if prng.one_in(6) { Request::Discard(range) } else { Request::Write(range) };
                steps.push(Step::Ask { volume, request });
            }
        }
    }

    fn draw_fault(&self, kind: FaultKind, prng: &mut Prng) -> Fault {
        let down_ns = *prng.pick(&[1_000, 1_000_000, 50_000_000]);
        let down = Duration::from_nanos(prng.below(down_ns));
        let any_disk = prng.below(self.disks as u64) as usize;
        // Of several copies one stays intact, whatever happens to the others.
        let disk = if self.promise == Promise::NeverWrong { any_disk } else { self.bad_disk };
        let count = prng.between(1, 3);
        let longest_ms = *prng.pick(&[5, 100, 2_000]);
        let span = Duration::from_millis(prng.between(1, longest_ms));
        let on_disk = |fault| Fault::Disk { disk, fault, count };
        match kind {
            FaultKind::Kill => Fault::Kill { down },
            FaultKind::PowerLoss => Fault::PowerLoss { down },
            FaultKind::RestartStorm => {
                let lives = (0..prng.between(1, 4)).map(|_| micros(prng, 1, 20_000)).collect();
                Fault::RestartStorm { lives, power: prng.one_in(2) }
            }
            FaultKind::Pause => Fault::Pause(span),
            FaultKind::ClockJump => Fault::ClockJump(Duration::from_secs(prng.between(1, 4_000))),
            FaultKind::ClockDrift => Fault::ClockDrift(prng.below(2_000) as i64 - 1_000),
            FaultKind::Partition => {
                let direction = prng.below(3);
                Fault::Partition { there: direction != 0, back: direction != 1, span }
            }
            FaultKind::Reset => Fault::Reset,
            FaultKind::SlowDisk => Fault::SlowDisk { disk: any_disk, factor: *prng.pick(&[10, 100, 1_000]), span },
            FaultKind::FullDisk => Fault::FullDisk { spare_bytes: prng.below(MIB), span },
            FaultKind::ReadError => on_disk(runtime::sim::Fault::ReadError),
            FaultKind::WriteError => on_disk(runtime::sim::Fault::WriteError),
            FaultKind::SyncError => on_disk(runtime::sim::Fault::SyncError),
            FaultKind::ShortWrite => Fault::Disk { disk: any_disk, fault: runtime::sim::Fault::ShortWrite, count },
            FaultKind::LostWrite => on_disk(runtime::sim::Fault::LostWrite),
            FaultKind::MisdirectedWrite => on_disk(runtime::sim::Fault::MisdirectedWrite),
            FaultKind::Rot | FaultKind::RotInLog | FaultKind::RotAtRest => {
                let reach = match kind {
                    FaultKind::RotInLog => Reach::InLog,
                    FaultKind::RotAtRest => Reach::AtRest,
                    _ => Reach::Anywhere,
                };
                Fault::Rot { disk, reach, places: prng.between(1, 8), seed: prng.next_u64() }
            }
            // A store of one disk that is put back as a whole cannot know.
            FaultKind::LostDisk => Fault::LostDisk { disk, span, stale: prng.one_in(2) && self.disks > 1 },
            // There is one machine: see `allows`.
            FaultKind::SlowLink => Fault::Reset,
        }
    }
}
