//! Traffic as that of the paper's clusters (DiffForward, SIGMETRICS 2023, §2.2, §2.3 and table 1): a thousand volumes, of which
//! twenty do most, with bursts at random places over a steady stream.
//!
//! The trace that the paper replays is not at hand; this is made after what is known of it: the paper's own figures (2a: how
//! unequal servers are at 100 ms and at 100 s; a fiftieth of the volumes at 40 times the mean), its totals (table 1), and the
//! sizes of another published trace of the same kind. How long bursts last and how large they are was fitted to the first two.
//! So these figures are calibration, and no result.
//!
//! **A volume** has a mean, a size, and a share of its bytes that comes in bursts. *Bursts* come at random (Poisson), each of
//! some MiB within some tens of milliseconds, at random places but for some that are one run. The *steady* rest comes at random
//! times under an envelope that changes slowly, each write behind the last one of one of a few streams.
//!
//! What is random depends on the seed only, and that of one volume on its number: volumes are made independently.

use std::collections::VecDeque;
use std::io;

use base::{BLOCK, GIB, KIB, MIB, Prng};
use rand_distr::{Beta, Distribution, Exp, LogNormal, Normal, Poisson};

use super::super::Trace;
use super::super::random::Random;
use super::super::trace::Request;
use super::Parameters;

/// Sizes of writes in KiB, and how many of a thousand have them: three quarters are of 16 KiB at most.
const SIZES: [(u64, u64); 9] =
    [(4, 450), (8, 150), (12, 50), (16, 100), (32, 80), (64, 90), (128, 45), (256, 25), (512, 10)];
/// The same of reads.
const READ_SIZES: [(u64, u64); 9] =
    [(4, 449), (8, 78), (12, 41), (16, 83), (32, 103), (64, 193), (128, 39), (256, 7), (512, 7)];
/// Seconds for which the envelope of what is steady stays as it is.
const ENVELOPE_SECS: u64 = 10;
const ENVELOPE_SIGMA: f64 = 0.2;
const ENVELOPE_MEMORY: f64 = 0.9;
/// The fastest burst, in bytes per second.
const FASTEST: f64 = 400e6;
const SECOND: f64 = 1e9;
/// Reads are drawn apart from writes, which are the same without them.
const READS: u64 = 0x7ead;

/// What of a cluster is asked for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Workload {
    /// Volumes.
    pub volumes: usize,
    /// Those of them that do most.
    pub heavy: usize,
    /// Of all bytes, those of the heavy ones.
    pub heavy_share: f64,
    /// Bytes written in a second, of all.
    pub bytes_per_sec: f64,
    /// What the rate is multiplied by at the begin and at the end.
    pub ramp: [f64; 2],
    /// How long it goes on.
    pub seconds: u64,
    /// Bytes of a burst: the median of those of heavy volumes, and of others.
    pub burst_median: [f64; 2],
    /// How much they differ (sigma of the logarithm).
    pub burst_sigma: f64,
    /// The median of how long a burst lasts, in seconds.
    pub burst_seconds: f64,
    /// Of a volume's bytes, those that come in bursts: of heavy volumes, and of others. None: there are no bursts.
    pub burst_share: [f64; 2],
    /// Bytes read in a second, of all.
    pub read_bytes_per_sec: f64,
    /// How many of the reads are where a write was, one of the last so many of the volume.
    pub read_again: (f64, usize),
}

impl Workload {
    /// The morning (W1): traffic that rises.
    pub fn w1(parameters: &Parameters) -> Workload {
        Workload {
            volumes: parameters.volumes,
            heavy: parameters.heavy_volumes,
            heavy_share: parameters.heavy_share,
            bytes_per_sec: parameters.w1_mib_per_sec * MIB as f64,
            ramp: parameters.w1_ramp,
            seconds: parameters.seconds,
            burst_median: [parameters.heavy_burst_mib, parameters.burst_mib].map(|mib| mib * MIB as f64),
            burst_sigma: parameters.burst_sigma,
            burst_seconds: parameters.burst_seconds,
            burst_share: [parameters.heavy_burst_share, parameters.burst_share],
            read_bytes_per_sec: parameters.w1_read_mib_per_sec * MIB as f64,
            read_again: (parameters.read_again_share, parameters.read_again_writes),
        }
    }

    /// The afternoon (W2): steady.
    pub fn w2(parameters: &Parameters) -> Workload {
        let bytes_per_sec = parameters.w2_mib_per_sec * MIB as f64;
        let read_bytes_per_sec = parameters.w2_read_mib_per_sec * MIB as f64;
        Workload { bytes_per_sec, read_bytes_per_sec, ramp: [1.0, 1.0], ..Workload::w1(parameters) }
    }
}

/// A write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// After the begin.
    pub at_ns: u64,
    /// Of which volume.
    pub volume: u32,
    /// From where, in bytes.
    pub offset: u64,
    /// How much.
    pub bytes: u64,
    /// Whether it was made as part of a burst.
    pub is_burst: bool,
}

/// A read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// After the begin.
    pub at_ns: u64,
    /// Of which volume.
    pub volume: u32,
    /// From where, in bytes.
    pub offset: u64,
    /// How much.
    pub bytes: u64,
}

/// All writes, in the order of their times, and the sizes of volumes in bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct Traffic {
    /// See there.
    pub writes: Vec<Write>,
    /// By volume.
    pub sizes: Vec<u64>,
}

impl Traffic {
    /// From the first write to the last one, where the first one is at the begin.
    pub fn length_ns(&self) -> u64 {
        self.writes.last().map_or(0, |last| last.at_ns)
    }

    /// The writes of each volume.
    pub fn by_volume(&self) -> Vec<Vec<Write>> {
        let mut each: Vec<Vec<Write>> = vec![Vec::new(); self.sizes.len()];
        self.writes.iter().for_each(|write| each[write.volume as usize].push(*write));
        each
    }

    /// So much of the writes, each kept or left out by chance: there is less of everything, and all of it when it was.
    ///
    /// # Panics
    /// `share` is no probability.
    pub fn thinned(mut self, share: f64, seed: u64) -> Traffic {
        assert!((0.0..=1.0).contains(&share), "{share} is no share");
        let mut random = Random(Prng::new(seed));
        self.writes.retain(|_| random.unit() < share);
        self
    }

    /// Says it in lines as those of the Alibaba traces (`super::super::trace`).
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_lines(&self, out: &mut impl io::Write) -> io::Result<()> {
        for Write { at_ns, volume, offset, bytes, .. } in &self.writes {
            writeln!(out, "{volume},W,{offset},{bytes},{}", at_ns / 1000)?;
        }
        Ok(())
    }
}

/// What is written in a trace: its devices are volumes.
pub fn writes_of(trace: &Trace) -> Traffic {
    let requests = || trace.requests().iter().filter(|request| request.is_write);
    let mut devices: Vec<u64> = requests().map(|request| request.device).collect();
    devices.sort_unstable();
    devices.dedup();
    let mut sizes = vec![0; devices.len()];
    let mut writes = Vec::new();
    for Request { at_ns, device, offset, bytes, .. } in requests().copied() {
        let volume = devices.binary_search(&device).unwrap_or_default();
        sizes[volume] = (offset + bytes).max(sizes[volume]);
        writes.push(Write { at_ns, volume: volume as u32, offset, bytes, is_burst: false });
    }
    Traffic { writes, sizes }
}

/// Traffic of few volumes, several times: each copy has volumes of its own, and begins somewhere else in it, as drawn.
pub fn copied(traffic: &Traffic, copies: u32, random: &mut Random) -> Traffic {
    let (length, volumes) = (traffic.length_ns() + 1, traffic.sizes.len() as u32);
    let mut all = Traffic { writes: Vec::new(), sizes: Vec::new() };
    for copy in 0..copies {
        let shift = if copy == 0 { 0 } else { (random.unit() * length as f64) as u64 };
        let shifted = traffic.writes.iter().map(|write| Write {
            at_ns: (write.at_ns + shift) % length,
            volume: write.volume + copy * volumes,
            ..*write
        });
        all.writes.extend(shifted);
        all.sizes.extend(&traffic.sizes);
    }
    all.writes.sort_by_key(|write| write.at_ns);
    all
}

impl Workload {
    /// Makes it.
    ///
    /// # Panics
    /// Parameters that no distribution has, such as a share above 1.
    pub fn make(&self, seed: u64) -> Traffic {
        let mut prng = Prng::new(seed);
        let means = self.means(&mut prng);
        let mut traffic = Traffic { writes: Vec::new(), sizes: Vec::new() };
        for (volume, mean) in means.into_iter().enumerate() {
            let mut random = Random(prng.fork());
            let size = size_of_volume(&mut random);
            traffic.sizes.push(size);
            let maker = Maker { workload: self, volume: volume as u32, is_heavy: volume < self.heavy, size };
            maker.write(mean, &mut random, &mut traffic.writes);
        }
        traffic.writes.sort_by_key(|write| (write.at_ns, write.volume, write.offset));
        traffic
    }

    /// Makes reads beside such traffic, until its last write: at random times (Poisson), of a volume as often as that has written
    /// bytes, at random places or where one of its last writes was.
    pub fn reads(&self, traffic: &Traffic, seed: u64) -> Vec<Read> {
        let mut random = Random(Prng::new(seed ^ READS));
        let usual = READ_SIZES.iter().map(|(kib, count)| (kib * KIB * count) as f64 / 1e3).sum::<f64>();
        let pauses = Exp::new(self.read_bytes_per_sec / usual).expect("a rate");
        let (share, lately) = self.read_again;
        let mut until = Vec::with_capacity(traffic.sizes.len());
        let mut all = 0;
        for writes in traffic.by_volume() {
            all += writes.iter().map(|write| write.bytes).sum::<u64>();
            until.push(all);
        }
        let mut written: Vec<VecDeque<u64>> = vec![VecDeque::new(); traffic.sizes.len()];
        let (mut reads, mut next, mut seconds) = (Vec::new(), 0, 0.0);
        let end = traffic.writes.last().map_or(0.0, |last| last.at_ns as f64 / SECOND);
        loop {
            let pause: f64 = pauses.sample(&mut random);
            seconds += pause;
            if seconds >= end {
                return reads;
            }
            let at_ns = (seconds * SECOND) as u64;
            while let Some(write) = traffic.writes.get(next).filter(|write| write.at_ns <= at_ns) {
                let of_volume = &mut written[write.volume as usize];
                of_volume.push_back(write.offset);
                if of_volume.len() > lately {
                    of_volume.pop_front();
                }
                next += 1;
            }
            let drawn = random.0.below(all);
            let volume = until.partition_point(|until| *until <= drawn);
            let (bytes, size) = (size_of(&READ_SIZES, &mut random), traffic.sizes[volume]);
            let is_again = random.unit() < share && !written[volume].is_empty();
            let offset = match is_again {
                true => written[volume][random.0.below(written[volume].len() as u64) as usize].min(size - bytes),
                false => random.0.below((size - bytes) / BLOCK + 1) * BLOCK,
            };
            reads.push(Read { at_ns, volume: volume as u32, offset, bytes });
        }
    }

    /// Bytes per second, by volume: the heavy ones first.
    fn means(&self, prng: &mut Prng) -> Vec<f64> {
        let mut random = Random(prng.fork());
        let mut group = |count: usize, sigma: f64, share: f64, longest_tail: f64| {
            let weights = LogNormal::new(0.0, sigma).expect("a spread");
            let mut weights: Vec<f64> = (0..count).map(|_| weights.sample(&mut random)).collect();
            let mut sorted = weights.clone();
            sorted.sort_by(f64::total_cmp);
            let most = sorted[((count - 1) as f64 * longest_tail) as usize];
            weights.iter_mut().for_each(|weight| *weight = weight.min(most));
            let sum: f64 = weights.iter().sum();
            weights.into_iter().map(|weight| weight / sum * share * self.bytes_per_sec).collect::<Vec<f64>>()
        };
        let mut means = group(self.heavy, 0.6, self.heavy_share, 1.0);
        means.extend(group(self.volumes - self.heavy, 1.5, 1.0 - self.heavy_share, 0.995));
        means
    }
}

/// Around 120 GiB, in steps of 20.
fn size_of_volume(random: &mut Random) -> u64 {
    let gib: f64 = LogNormal::new(120f64.ln(), 0.9).expect("a spread").sample(random);
    ((gib / 20.0).round() * 20.0).clamp(20.0, 2000.0) as u64 * GIB
}

fn size_of_write(random: &mut Random) -> u64 {
    size_of(&SIZES, random)
}

fn size_of(sizes: &[(u64, u64)], random: &mut Random) -> u64 {
    let mut left = random.0.below(1000);
    for &(kib, count) in sizes {
        if left < count {
            return kib * KIB;
        }
        left -= count;
    }
    unreachable!("they add up to a thousand")
}

/// Makes the writes of one volume.
struct Maker<'a> {
    workload: &'a Workload,
    volume: u32,
    is_heavy: bool,
    size: u64,
}

impl Maker<'_> {
    fn write(&self, mean: f64, random: &mut Random, writes: &mut Vec<Write>) {
        let share = self.workload.burst_share[usize::from(!self.is_heavy)];
        if share == 0.0 {
            return self.flow(mean, random, writes);
        }
        let share: f64 = Beta::new(8.0 * share, 8.0 * (1.0 - share)).expect("a share").sample(random);
        self.burst(mean * share, random, writes);
        self.flow(mean * (1.0 - share), random, writes);
    }

    /// What the rate is multiplied by at that time.
    fn ramp(&self, seconds: f64) -> f64 {
        let [from, to] = self.workload.ramp;
        from + (to - from) * seconds / self.workload.seconds as f64
    }

    fn place(&self, random: &mut Random, bytes: u64) -> u64 {
        random.0.below((self.size - bytes) / BLOCK + 1) * BLOCK
    }

    fn put(&self, seconds: f64, offset: u64, bytes: u64, is_burst: bool, writes: &mut Vec<Write>) {
        writes.push(Write { at_ns: (seconds * SECOND) as u64, volume: self.volume, offset, bytes, is_burst });
    }

    /// Bursts of `mean` bytes a second in all.
    fn burst(&self, mean: f64, random: &mut Random, writes: &mut Vec<Write>) {
        let Workload { burst_sigma: sigma, seconds, .. } = *self.workload;
        let median = self.workload.burst_median[usize::from(!self.is_heavy)];
        let sizes = LogNormal::new(median.ln(), sigma).expect("a spread");
        let lengths = LogNormal::new(self.workload.burst_seconds.ln(), 0.7).expect("a spread");
        let per_sec = mean / (median * (sigma * sigma / 2.0).exp());
        let most = self.workload.ramp[0].max(self.workload.ramp[1]);
        let mut begin = 0.0;
        loop {
            // As often as ever, and thinned out by the ramp.
            begin += Exp::new(per_sec * most).expect("a rate").sample(random);
            if begin >= seconds as f64 {
                return;
            }
            if random.unit() * most > self.ramp(begin) {
                continue;
            }
            let bytes: f64 = sizes.sample(random);
            let length = f64::max(lengths.sample(random), bytes / FASTEST);
            let is_run = random.unit() < 0.15;
            let (mut left, mut next) = (bytes, self.place(random, MIB));
            while left > 0.0 {
                let size = size_of_write(random);
                left -= size as f64;
                let offset = if is_run && next + size <= self.size { next } else { self.place(random, size) };
                next = offset + size;
                let at = begin + random.unit() * length;
                if at < seconds as f64 {
                    self.put(at, offset, size, true, writes);
                }
            }
        }
    }

    /// What is steady, `mean` bytes a second.
    fn flow(&self, mean: f64, random: &mut Random, writes: &mut Vec<Write>) {
        let mut streams: Vec<u64> = (0..random.0.between(2, 8)).map(|_| self.place(random, MIB)).collect();
        let usual = SIZES.iter().map(|(kib, count)| (kib * KIB * count) as f64 / 1e3).sum::<f64>();
        let (still, kick) = (Normal::new(0.0, ENVELOPE_SIGMA), (1.0 - ENVELOPE_MEMORY * ENVELOPE_MEMORY).sqrt());
        let still = still.expect("a spread");
        let mut level: f64 = still.sample(random);
        for part in (0..self.workload.seconds).step_by(ENVELOPE_SECS as usize) {
            let length = ENVELOPE_SECS.min(self.workload.seconds - part) as f64;
            // The mean of the exponential is 1.
            let envelope = (level - ENVELOPE_SIGMA * ENVELOPE_SIGMA / 2.0).exp();
            level = ENVELOPE_MEMORY * level + kick * still.sample(random);
            let expected = mean * envelope * self.ramp(part as f64 + length / 2.0) * length / usual;
            if expected <= 0.0 {
                continue;
            }
            let count: f64 = Poisson::new(expected).expect("a rate").sample(random);
            for _ in 0..count as u64 {
                let size = size_of_write(random);
                let stream = random.0.below(streams.len() as u64) as usize;
                if streams[stream] + size > self.size {
                    streams[stream] = 0;
                }
                self.put(part as f64 + random.unit() * length, streams[stream], size, false, writes);
                streams[stream] += size;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::FromFile;
    use super::*;

    /// What it was fitted to, besides the balance of servers.
    #[test]
    fn it_is_what_it_was_made_after() {
        let workload = Workload::w1(&Parameters::from_file().unwrap());
        let traffic = workload.make(1);
        let bytes: u64 = traffic.writes.iter().map(|write| write.bytes).sum();
        let rate = bytes as f64 / 240.0 / MIB as f64;
        assert!((200.0..260.0).contains(&rate), "{rate} MiB/s");
        let small = traffic.writes.iter().filter(|write| write.bytes <= 16 * KIB).count() as f64;
        let small = small / traffic.writes.len() as f64;
        assert!((0.74..0.76).contains(&small), "{small}");
        let mut each = vec![0u64; 1000];
        traffic.writes.iter().for_each(|write| each[write.volume as usize] += write.bytes);
        each.sort_unstable_by(|one, other| other.cmp(one));
        let top = each[..20].iter().sum::<u64>() as f64 / bytes as f64 * 50.0;
        assert!((35.0..45.0).contains(&top), "the first fiftieth has {top} times the mean");
        let burst: u64 = traffic.writes.iter().filter(|write| write.is_burst).map(|write| write.bytes).sum();
        let burst = burst as f64 / bytes as f64;
        assert!((0.8..0.95).contains(&burst), "{burst}");
        assert!(traffic.writes.is_sorted_by_key(|write| write.at_ns));
        let ends = |write: &Write| write.offset + write.bytes <= traffic.sizes[write.volume as usize];
        assert!(traffic.writes.iter().all(|write| ends(write) && write.at_ns < 240_000_000_000));
        assert_eq!(traffic, workload.make(1));
    }

    #[test]
    fn reads_are_where_writes_were_or_anywhere() {
        let parameters = Parameters::with(&["seconds=20".into()]).unwrap();
        let workload = Workload::w1(&parameters);
        let traffic = workload.make(1);
        let reads = workload.reads(&traffic, 1);
        let rate = reads.iter().map(|read| read.bytes).sum::<u64>() as f64 / 20.0 / MIB as f64;
        assert!((24.0..30.0).contains(&rate), "{rate} MiB/s");
        let ends = |read: &Read| read.offset + read.bytes <= traffic.sizes[read.volume as usize];
        assert!(reads.is_sorted_by_key(|read| read.at_ns) && reads.iter().all(ends));
        let written: base::Set<(u32, u64)> = traffic.writes.iter().map(|write| (write.volume, write.offset)).collect();
        let again = reads.iter().filter(|read| written.contains(&(read.volume, read.offset))).count() as f64;
        let share = again / reads.len() as f64;
        assert!((0.45..0.55).contains(&share), "{share}");
        let heavy = reads.iter().filter(|read| read.volume < 20).count() as f64 / reads.len() as f64;
        assert!((0.6..0.95).contains(&heavy), "{heavy}");
    }

    /// What is said of traffic in lines is read again as it was, with times in microseconds, and a part of it is so large.
    #[test]
    fn a_part_of_it_is_a_trace() {
        let parameters = Parameters::with(&["seconds=4".into(), "volumes=50".into()]).unwrap();
        let traffic = Workload::w1(&parameters).make(1);
        let all = traffic.writes.len() as f64;
        let part = traffic.clone().thinned(0.25, 7);
        assert_eq!(part, traffic.clone().thinned(0.25, 7));
        assert!((0.2..0.3).contains(&(part.writes.len() as f64 / all)));
        assert!(part.writes.iter().all(|write| traffic.writes.contains(write)));
        assert_eq!(traffic.clone().thinned(1.0, 7), traffic);
        let mut lines = Vec::new();
        part.write_lines(&mut lines).unwrap();
        let trace = Trace::parse("made", &lines).unwrap();
        let begun = part.writes[0].at_ns / 1000;
        let read = trace.requests().iter().zip(&part.writes);
        assert!(read.clone().all(|(request, write)| {
            (request.at_ns / 1000, request.device, request.offset, request.bytes, request.is_write)
                == (write.at_ns / 1000 - begun, u64::from(write.volume), write.offset, write.bytes, true)
        }));
        assert_eq!(read.count(), part.writes.len());
    }
}
