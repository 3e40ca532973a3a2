//! What kinds of worlds there are, and what is random in each.

use std::ops::Range;
use std::time::Duration;

use base::limits::SEGMENT_SIZE;
use base::{KIB, MIB, Prng, SECTOR};
use engine::{Options, Ownership};
use policies::gc::GcSettings;
use policies::read_ahead::ReadAheadSettings;
use policies::scrub::ScrubSettings;

/// What a test is after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scenario {
    /// Everything a little, on a store that is large enough.
    Everyday,
    /// A store that is too small for what is written to it.
    FullDisk,
    /// Two copies, of which one rots, cannot be read, or is gone; in some worlds content is lost in both.
    BadCopies,
    /// Writes, reads and syncs fail now and then, and disks are slow.
    Faults,
    /// Directories on simulated disks.
    Local,
}

/// How likely each operation is, in parts of their sum.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    pub read: u64,
    pub scan: u64,
    pub allocation: u64,
    pub small_write: u64,
    pub large_write: u64,
    pub discard: u64,
    pub drop_volume: u64,
}

/// One world's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    pub options: Options,
    /// Directories on simulated disks instead of a file layer in memory.
    pub local: bool,
    pub directories: u8,
    /// Bytes of the store, one copy counted; of each disk, if there are some.
    pub capacity: u64,
    /// Bytes of live blocks that certainly fit.
    pub room: u64,
    pub volumes: usize,
    pub segments: u32,
    /// Sectors of each segment that are used.
    pub sectors: Range<u64>,
    pub clients: usize,
    pub lives: usize,
    /// Operations of one life, at most.
    pub operations: u64,
    pub mix: Mix,
    /// How long a call of the file layer takes, in nanoseconds.
    pub latency_ns: Range<u64>,
    /// Whether the content of some blocks is lost in all copies.
    pub loses_content: bool,
}

/// Often far more eager than a store should be.
fn gc(prng: &mut Prng) -> GcSettings {
    let garbage_percent_ample = *prng.pick(&[10, 40, 80]);
    GcSettings {
        garbage_percent_ample,
        garbage_percent_scarce: garbage_percent_ample.min(30),
        stale_percent_ample: prng.between(1, 50),
        stale_percent_scarce: prng.between(1, 10),
        ..GcSettings::default()
    }
}

impl Scenario {
    /// The name of its test.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Everyday => "everyday",
            Scenario::FullDisk => "full_disk",
            Scenario::BadCopies => "bad_copies",
            Scenario::Faults => "faults",
            Scenario::Local => "local",
        }
    }

    /// Whether every byte that was written can be read as it was.
    pub fn is_sound(self) -> bool {
        !matches!(self, Scenario::BadCopies | Scenario::Faults)
    }

    fn options(self, prng: &mut Prng) -> Options {
        let kib = |prng: &mut Prng, low: u64, high: u64| prng.between(low / 4, high / 4) * 4 * KIB;
        let segment_cache_bytes = kib(prng, 16, 128);
        Options {
            dirty_bytes_max: segment_cache_bytes * prng.between(2, 8) + 256 * KIB,
            segment_cache_bytes,
            dump_age: Duration::from_millis(prng.between(1, 200)),
            page_cache_bytes: *prng.pick(&[64 * KIB, MIB]),
            read_ahead: ReadAheadSettings {
                bytes_max: *prng.pick(&[0, 512 * KIB, 16 * MIB]),
                ..ReadAheadSettings::default()
            },
            memtable_bytes_max: kib(prng, 4, 64),
            journal_file_bytes: kib(prng, 512, 1024),
            journal_files: prng.between(2, 4) as usize,
            data_file_bytes: kib(prng, 64, 512),
            transaction_file_bytes: kib(prng, 64, 128),
            large_write_bytes: *prng.pick(&[8 * KIB, 16 * KIB, 64 * KIB]),
            fusion_wait: *prng.pick(&[Duration::ZERO, Duration::from_micros(8)]),
            ownership: Ownership::Whole,
            gc: gc(prng),
            scrub: ScrubSettings {
                bytes_per_sec: *prng.pick(&[0, 64 * MIB]),
                period: Duration::from_millis(*prng.pick(&[10, 1_000])),
            },
            copies: match self {
                Scenario::BadCopies => 2,
                _ => prng.between(1, 2) as u8,
            },
            accept_data_loss: false,
        }
    }

    /// The settings of a seed.
    pub fn settings(self, prng: &mut Prng) -> Settings {
        let options = self.options(prng);
        let volumes = prng.between(1, 3) as usize;
        let segments = prng.between(1, 2) as u32;
        let sectors = match self {
            Scenario::FullDisk => *prng.pick(&[1024, 2048]),
            _ => *prng.pick(&[64, 256, 1024]),
        };
        let used = volumes as u64 * u64::from(segments) * sectors * SECTOR;
        let (capacity, room) = match self {
            Scenario::FullDisk => {
                let room = used * prng.between(20, 130) / 100;
                (room + set_aside(&options, volumes as u64 * u64::from(segments)), room)
            }
            _ => (256 * MIB, u64::MAX),
        };
        let first = if prng.one_in(2) { 0 } else { SEGMENT_SIZE / SECTOR - sectors };
        Settings {
            capacity,
            room,
            local: self == Scenario::Local || (self == Scenario::Faults && prng.one_in(3)),
            directories: options.copies,
            volumes,
            segments,
            sectors: first..first + sectors,
            clients: prng.between(1, 12) as usize,
            lives: prng.between(2, 5) as usize,
            operations: prng.between(20, 300),
            mix: Mix {
                read: prng.between(1, 4),
                scan: prng.below(2),
                allocation: prng.below(2),
                small_write: prng.between(2, 8),
                large_write: prng.below(3),
                discard: prng.below(3),
                drop_volume: u64::from(prng.one_in(4)),
            },
            latency_ns: match prng.below(3) {
                0 => 10_000..100_000,
                1 => 1_000..2_000_000,
                _ => 1_000..2_000,
            },
            loses_content: self == Scenario::BadCopies && prng.one_in(3),
            options,
        }
    }
}

/// What a store of `segments` busy segments may hold besides live blocks, at most, when it says that it is full: the
/// reserves of `engine::admission`, and files that are open or partly garbage.
fn set_aside(options: &Options, segments: u64) -> u64 {
    // Of a store that is so small.
    const DATA_FILE: u64 = 64 * KIB;
    let journals = options.journal_files as u64 * options.journal_file_bytes;
    let transactions = 4 * options.transaction_file_bytes;
    let collection = 4 * DATA_FILE;
    let tables = 256 * KIB;
    journals + transactions + collection + tables + segments * 3 * DATA_FILE
}
