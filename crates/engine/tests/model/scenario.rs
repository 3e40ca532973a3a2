//! What kinds of worlds there are, and what is random in each.

use std::time::Duration;

use base::{KIB, MIB, Prng};
use engine::Options;
use policies::gc::GcSettings;

/// What a test is after.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scenario {
    /// Everything a little, on a store that is large enough.
    Everyday,
    /// A store that is too small for what is written to it.
    FullDisk,
    /// Two copies, of which one rots or fails.
    BadCopies,
}

/// How likely each operation is, in parts of their sum.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    pub read: u64,
    pub small_write: u64,
    pub large_write: u64,
    pub discard: u64,
    pub drop_volume: u64,
}

/// One world's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    pub options: Options,
    pub capacity: u64,
    pub directories: u8,
    pub volumes: usize,
    pub segments: u32,
    /// Sectors of each segment that are used.
    pub sectors: u64,
    pub clients: usize,
    pub lives: usize,
    /// Operations of one life, at most.
    pub operations: u64,
    pub mix: Mix,
    pub latency_ns: std::ops::Range<u64>,
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
    /// For messages.
    pub fn name(&self) -> &'static str {
        match self {
            Scenario::Everyday => "everyday",
            Scenario::FullDisk => "full disk",
            Scenario::BadCopies => "bad copies",
        }
    }

    /// The settings of a seed.
    pub fn settings(&self, prng: &mut Prng) -> Settings {
        let kib = |prng: &mut Prng, low: u64, high: u64| prng.between(low / 4, high / 4) * 4 * KIB;
        let segment_cache_bytes = kib(prng, 16, 128);
        let options = Options {
            dirty_bytes_max: segment_cache_bytes * prng.between(2, 8) + 256 * KIB,
            segment_cache_bytes,
            dump_age: Duration::from_millis(prng.between(1, 200)),
            page_cache_bytes: *prng.pick(&[64 * KIB, MIB]),
            memtable_bytes_max: kib(prng, 16, 256),
            journal_file_bytes: MIB,
            journal_files: prng.between(2, 4) as usize,
            data_file_bytes: kib(prng, 64, 512),
            transaction_file_bytes: kib(prng, 64, 256),
            large_write_bytes: *prng.pick(&[8 * KIB, 16 * KIB, 64 * KIB]),
            fusion_wait: *prng.pick(&[Duration::ZERO, Duration::from_micros(8)]),
            gc: gc(prng),
            copies: match self {
                Scenario::BadCopies => 2,
                _ => prng.between(1, 2) as u8,
            },
            accept_data_loss: false,
        };
        let volumes = prng.between(1, 3) as usize;
        let segments = prng.between(1, 2) as u32;
        let sectors = *prng.pick(&[64, 256, 1024]);
        let used = volumes as u64 * u64::from(segments) * sectors * 512;
        let capacity = match self {
            Scenario::FullDisk => 10 * MIB + prng.below(2 * used),
            _ => 256 * MIB,
        };
        Settings {
            capacity,
            directories: options.copies,
            volumes,
            segments,
            sectors,
            clients: prng.between(1, 12) as usize,
            lives: prng.between(2, 5) as usize,
            operations: prng.between(20, 400),
            mix: Mix {
                read: prng.between(1, 4),
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
            options,
        }
    }
}
