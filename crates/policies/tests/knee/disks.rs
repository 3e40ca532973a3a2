//! Disks of very different kinds, as queues. None is what the policy assumes: it assumes no model at all.

use base::Prng;

/// What a disk is made of: so many channels work side by side, and all that they move passes one bus.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    pub name: &'static str,
    /// Requests that are worked on at a time.
    pub channels: usize,
    /// What one takes in its channel, in nanoseconds, read and write; up to `spread` percent more.
    pub service_ns: [u64; 2],
    pub spread: u64,
    /// Bytes per second of the bus.
    pub bus_bytes_per_sec: u64,
    /// Operations per second that its owner was sold, and what of them may be saved up.
    pub sold: Option<Sold>,
    /// From when to when, in seconds, the bus has half of its rate.
    pub halved: Option<(u64, u64)>,
}

/// A token bucket inside a disk.
#[derive(Clone, Copy, Debug)]
pub struct Sold {
    pub iops: u64,
    pub bytes_per_sec: u64,
    pub saved_secs: u64,
}

pub const DISKS: [Disk; 5] = [
    Disk {
        name: "hard disk",
        channels: 1,
        service_ns: [6_000_000, 5_000_000],
        spread: 100,
        bus_bytes_per_sec: 180_000_000,
        sold: None,
        halved: None,
    },
    Disk {
        name: "SATA SSD",
        channels: 8,
        service_ns: [90_000, 60_000],
        spread: 60,
        bus_bytes_per_sec: 520_000_000,
        sold: None,
        halved: None,
    },
    Disk {
        name: "NVMe",
        channels: 32,
        service_ns: [70_000, 25_000],
        spread: 60,
        bus_bytes_per_sec: 2_400_000_000,
        sold: None,
        halved: None,
    },
    Disk {
        name: "cloud disk",
        channels: 256,
        service_ns: [500_000, 700_000],
        spread: 40,
        bus_bytes_per_sec: 1_000_000_000,
        sold: Some(Sold { iops: 6_000, bytes_per_sec: 200_000_000, saved_secs: 2 }),
        halved: None,
    },
    Disk {
        name: "NVMe, halved for a minute",
        channels: 32,
        service_ns: [70_000, 25_000],
        spread: 60,
        bus_bytes_per_sec: 1_200_000_000,
        sold: None,
        halved: Some((20, 80)),
    },
];

/// A disk at work.
pub struct Queue {
    disk: Disk,
    channels: Vec<u64>,
    bus_free_at: u64,
    /// When the bucket's operations and bytes are paid for.
    paid_at: [u64; 2],
    prng: Prng,
}

impl Queue {
    pub fn new(disk: Disk, seed: u64) -> Queue {
        Queue { disk, channels: vec![0; disk.channels], bus_free_at: 0, paid_at: [0; 2], prng: Prng::new(seed) }
    }

    /// When a request that is handed over at `now` is done. Requests come in order of time.
    pub fn done_at(&mut self, now: u64, is_write: bool, bytes: u64) -> u64 {
        let mut start = now;
        if let Some(sold) = self.disk.sold {
            for (paid, (amount, rate)) in self.paid_at.iter_mut().zip([(1, sold.iops), (bytes, sold.bytes_per_sec)]) {
                let oldest = now.saturating_sub(sold.saved_secs * 1_000_000_000);
                *paid = (*paid).max(oldest) + amount * 1_000_000_000 / rate;
                start = start.max(*paid);
            }
        }
        let channel = (0..self.channels.len()).min_by_key(|at| self.channels[*at]).expect("a channel");
        let usual = self.disk.service_ns[usize::from(is_write)];
        let service = usual + self.prng.below(usual * self.disk.spread / 100 + 1);
        let served = self.channels[channel].max(start) + service;
        let is_halved = self.disk.halved.is_some_and(|(from, to)| (from..to).contains(&(now / 1_000_000_000)));
        let bus = if is_halved { self.disk.bus_bytes_per_sec / 2 } else { self.disk.bus_bytes_per_sec };
        self.bus_free_at = self.bus_free_at.max(served) + bytes * 1_000_000_000 / bus;
        self.channels[channel] = served;
        self.bus_free_at
    }
}
