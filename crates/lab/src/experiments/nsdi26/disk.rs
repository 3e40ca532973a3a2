//! A flash drive, as a model that the estimator knows nothing of (NSDI 2026, figure 6): several channels, a time of access
//! that is no queueing, reads and writes that differ, and garbage collection that no counter of a server sees.
//!
//! A write goes to the channel that is free first, a read to the one that has its data, which is any. There it waits for
//! what came before, and keeps it busy for a time in proportion to its bytes; besides, it takes the time of access, which
//! keeps nothing busy. Garbage collection reads and writes flash pages at random times, from some point in time on.

use base::Prng;

use super::load::{exponential, uniform};

/// What is assumed of a drive.
#[derive(Clone, PartialEq, Debug)]
pub struct DiskOptions {
    /// What can be done at one time.
    pub channels: u64,
    /// Bytes per second of all channels together, half of them read; and what a written byte costs beside a read one, in
    /// percent.
    pub bytes_per_sec: u64,
    /// See [`DiskOptions::bytes_per_sec`].
    pub write_percent_of_read: u64,
    /// Time of access in nanoseconds, up to a quarter more or less.
    pub read_ns: u64,
    /// See [`DiskOptions::read_ns`].
    pub write_ns: u64,
    /// Garbage collection: bytes per second, read and written together; bytes of a page; when it begins, in nanoseconds
    /// (of a store: after its start).
    pub gc_bytes_per_sec: u64,
    /// See [`DiskOptions::gc_bytes_per_sec`].
    pub gc_bytes: u64,
    /// See [`DiskOptions::gc_bytes_per_sec`].
    pub gc_begins_ns: f64,
}

/// The drive.
pub struct Disk {
    options: DiskOptions,
    prng: Prng,
    /// When each channel has done what has arrived so far.
    free_at: Vec<f64>,
    gc_at: f64,
}

impl Disk {
    /// An idle one.
    pub fn new(options: DiskOptions, seed: u64) -> Disk {
        let (free_at, gc_at) = (vec![0.0; options.channels as usize], options.gc_begins_ns);
        Disk { options, prng: Prng::new(seed), free_at, gc_at }
    }

    /// When a request that arrives at `now` is done.
    pub fn pass(&mut self, now: f64, is_write: bool, bytes: u64) -> f64 {
        if self.options.gc_bytes_per_sec > 0 {
            let gap_ns = self.options.gc_bytes as f64 / self.options.gc_bytes_per_sec as f64 * 1e9;
            while self.gc_at < now {
                let is_write = self.prng.one_in(2);
                self.occupy(self.gc_at, is_write, self.options.gc_bytes);
                self.gc_at += exponential(&mut self.prng, gap_ns);
            }
        }
        let access_ns = if is_write { self.options.write_ns } else { self.options.read_ns } as f64;
        let access_ns = access_ns * (0.75 + 0.5 * uniform(&mut self.prng));
        self.occupy(now, is_write, bytes) + access_ns
    }

    /// When a channel has done this.
    fn occupy(&mut self, now: f64, is_write: bool, bytes: u64) -> f64 {
        let channels = 0..self.free_at.len();
        let channel = match is_write {
            true => channels.min_by(|one, other| self.free_at[*one].total_cmp(&self.free_at[*other])).unwrap_or(0),
            false => self.prng.below(self.options.channels) as usize,
        };
        let busy_ns = bytes as f64 * self.ns_per_byte(is_write);
        self.free_at[channel] = self.free_at[channel].max(now) + busy_ns;
        self.free_at[channel]
    }

    /// Of one channel, so that with as many bytes read as written all of them have the rate of the options.
    fn ns_per_byte(&self, is_write: bool) -> f64 {
        let mean = self.options.channels as f64 / self.options.bytes_per_sec as f64 * 1e9;
        let write = self.options.write_percent_of_read as f64 / 100.0;
        let read_share = 2.0 / (1.0 + write);
        mean * if is_write { read_share * write } else { read_share }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> DiskOptions {
        DiskOptions {
            channels: 4,
            bytes_per_sec: 400_000_000,
            write_percent_of_read: 200,
            read_ns: 80_000,
            write_ns: 20_000,
            gc_bytes_per_sec: 0,
            gc_bytes: 16_384,
            gc_begins_ns: 0.0,
        }
    }

    #[test]
    fn an_idle_drive_takes_the_time_of_access_and_a_busy_one_has_its_rate() {
        let mut disk = Disk::new(options(), 1);
        let read = disk.pass(1e9, false, 4096) - 1e9;
        assert!((60_000.0..140_000.0).contains(&read), "{read}");
        // A hundred megabytes at once, half of them written: a quarter of a second.
        let done = (0..24_414).map(|number| disk.pass(2e9, number % 2 == 0, 4096)).fold(0.0, f64::max) - 2e9;
        assert!((0.24e9..0.29e9).contains(&done), "{done}");
    }

    #[test]
    fn garbage_collection_takes_its_share_from_when_it_begins() {
        let busy = DiskOptions { gc_bytes_per_sec: 300_000_000, gc_begins_ns: 1e9, ..options() };
        let mut disk = Disk::new(busy, 1);
        let mut mean = |from: u64| {
            let each = (0..10_000).map(|number| {
                let now = from as f64 + number as f64 * 50_000.0;
                disk.pass(now, false, 4096) - now
            });
            each.sum::<f64>() / 10_000.0
        };
        let (before, after) = (mean(100_000_000), mean(2_000_000_000));
        assert!(after > before * 1.5, "{before} and {after}");
    }
}
