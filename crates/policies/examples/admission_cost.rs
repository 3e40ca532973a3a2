//! What admission takes of an I/O that starts at once, what the scheduler of tenants takes of one and of a window, and what
//! it takes to tell whether a write is part of a burst, and to know where it is.
//!
//! It does so many of them in one of several ways; `bench/instructions` measures that from outside.
#![allow(clippy::expect_used, reason = "a tool for the command line")]

use std::hint::black_box;

use base::levels::{Level, Levels, Rate};
use base::{Instant, SegmentId, VolumeId};
use policies::admission::knee::KneeSettings;
use policies::admission::{Admission, AdmissionSettings, ClientId, Outcome, Request};
use policies::burst::{BurstSettings, Detector};
use policies::forwarding::{Content, Index, IndexSettings, LogNumber, Serial};
use policies::slow_requests::Direction;
use policies::tenants::{Cost, Frontend, Operation, Promise, Scheduler, TenantsSettings, Verdict};

fn request(number: u64) -> (Instant, Request) {
    // 250,000 a second on 100 segments, in no order that a cache would like.
    let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let segment = SegmentId { volume: VolumeId(scattered % 25), index: (scattered / 25 % 4) as u32 };
    (Instant(number * 4_000), Request { segment, bytes: 4096, direction: Direction::Write, level: Level::Open })
}

/// Arrival and completion of so many I/Os.
fn admit(ios: u64, with_levels: bool, learns: Option<KneeSettings>) {
    let settings = AdmissionSettings { learns, ..AdmissionSettings::default() };
    let mut admission: Admission<()> = Admission::new(settings, Instant::ZERO);
    let base = Rate { iops: 50_000, bytes_per_sec: 400_000_000 };
    for volume in (0..25).filter(|_| with_levels) {
        admission.set_volume(Instant::ZERO, VolumeId(volume), ClientId(1), Levels { base, ..Levels::default() });
    }
    for number in 0..ios {
        let (now, request) = request(number);
        let _ = black_box(admission.submit(now, request, || ()));
        let Request { segment, bytes, direction, .. } = request;
        let outcome = Outcome { segment, granted: now, bytes, direction, went_below: true };
        admission.on_done(Instant(now.0 + 90_000 + number % 64 * 1000), outcome);
    }
}

/// Pricing, marking and starting so many I/Os of two tenants, 100 in a window, one of which asks for nine in ten.
fn schedule(ios: u64) {
    let mut scheduler: Scheduler<()> = Scheduler::new(TenantsSettings::default(), 1, Instant::ZERO);
    let base = Some(Cost([1e8, 1e9, 1e9, 1e9]));
    let volumes = [0, 1].map(|key| {
        let tenant = scheduler.add_tenant(key, Promise { base, burst: None });
        scheduler.add_volume(tenant, 0, 1)
    });
    for number in 0..ios {
        let (_, Request { bytes, .. }) = request(number);
        let now = Instant(number * 10_000);
        let cost = scheduler.cost(Frontend::Nbd, Operation::Read, bytes);
        let volume = volumes[usize::from(number % 10 > 0)];
        if black_box(scheduler.submit(now, volume, cost, || ())) == Verdict::Wait {
            black_box(scheduler.next_grant(now));
        }
        scheduler.on_delay(5_000);
    }
}

/// So many I/Os of 1,024 tenants, one of each in a window, which has room for all: what a tenant takes of the beginning of
/// a window, and its I/O.
fn allocate(ios: u64) {
    const TENANTS: u64 = 1024;
    let mut scheduler: Scheduler<()> = Scheduler::new(TenantsSettings::default(), 1, Instant::ZERO);
    let volumes: Vec<_> = (0..TENANTS)
        .map(|key| {
            let tenant = scheduler.add_tenant(key, Promise { base: Some(Cost([5e5, 1e9, 1e9, 1e9])), burst: None });
            scheduler.add_volume(tenant, 0, 1)
        })
        .collect();
    let cost = Cost([400.0, 0.0, 4096.0, 4096.0]);
    for number in 0..ios {
        black_box(request(number));
        let now = Instant(number / TENANTS * 1_000_000);
        if black_box(scheduler.submit(now, volumes[(number % TENANTS) as usize], cost, || ())) == Verdict::Wait {
            black_box(scheduler.next_grant(now));
        }
    }
}

/// Whether so many writes of 25 volumes are part of a burst, at random places.
fn detect(ios: u64) {
    let mut volumes: Vec<Detector> = (0..25).map(|_| Detector::new(BurstSettings::EXACT, Instant::ZERO)).collect();
    for number in 0..ios {
        let (now, Request { segment, bytes, .. }) = request(number);
        let detector = &mut volumes[segment.volume.0 as usize];
        black_box(detector.on_write(now, number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24, bytes));
    }
}

/// Entries that an index has: for 90% of volumes no more in what DiffForward prints (§5.6).
const ENTRIES: usize = 645;

/// A place for a write.
fn scattered(number: u64) -> std::ops::Range<u64> {
    let at = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 44) * 4096;
    at..at + 4096
}

/// Puts a write into a log.
fn append(index: &mut Index, number: u64) {
    let serial = index.begin(scattered(number), LogNumber((number % 4) as u8), Content::Data(number * 4608), 0);
    index.logged(serial);
}

/// So many writes that go to logs, and come home in batches.
fn log(ios: u64) {
    let mut index = Index::new(IndexSettings::default(), Serial(0));
    for number in 0..ios {
        black_box(request(number));
        append(&mut index, number);
        if index.len() > ENTRIES {
            let batch = index.next_batch(1 << 20, 64).expect("there is something");
            black_box(index.merged(batch.through));
        }
    }
}

/// So many writes that are no burst, while others are in logs.
fn route(ios: u64) {
    let mut index = Index::new(IndexSettings::default(), Serial(0));
    (0..ENTRIES as u64).for_each(|number| append(&mut index, number));
    for number in 0..ios {
        black_box(request(number));
        black_box(index.route(scattered(number + 1_000_000)));
    }
}

/// The same I/Os, and nothing else.
fn ask(ios: u64) {
    for number in 0..ios {
        let _ = black_box(request(number));
    }
}

fn main() {
    let mut given = std::env::args().skip(1);
    let case =
        given.next().expect("a case: admission, levels, auto, tenants, windows, burst, logged, routed or nothing");
    let ios = given.next().and_then(|text| text.parse().ok()).expect("a number of I/Os");
    match case.as_str() {
        "admission" => admit(ios, false, None),
        "levels" => admit(ios, true, None),
        "auto" => admit(ios, false, Some(KneeSettings::default())),
        "tenants" => schedule(ios),
        "windows" => allocate(ios),
        "burst" => detect(ios),
        "logged" => log(ios),
        "routed" => route(ios),
        _ => ask(ios),
    }
}
