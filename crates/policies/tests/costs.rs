//! What decisions cost an I/O: no allocation. With admission one that does not have to wait; with tenants also one that does, once
//! queues have their size.
#![allow(unsafe_code, reason = "a global allocator that counts")]
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test panics where something is not as it should")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use base::levels::{Level, Levels, Rate};
use base::{Instant, SegmentId, VolumeId};
use policies::admission::{Admission, AdmissionSettings, ClientId, Outcome, Request};
use policies::burst::{BurstSettings, Detector};
use policies::levels::{Account, Lines, Purse};
use policies::slow_requests::Direction;
use policies::tenants::{Cost, Frontend, Operation, Promise, Scheduler, TenantsSettings, VolumeNumber};
use policies::{admission, levels, tenants};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as for this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as for this function.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn an_io_that_starts_at_once_allocates_nothing() {
    let mut admission: Admission<()> = Admission::new(AdmissionSettings::default(), Instant::ZERO);
    let levels = Levels { base: Rate { iops: 10_000, bytes_per_sec: 0 }, ..Levels::default() };
    for volume in 0..25 {
        admission.set_volume(Instant::ZERO, VolumeId(volume), ClientId(1), levels);
    }
    let mut io = |number: u64| {
        // 100,000 a second, over many intervals and windows of the estimator.
        let now = Instant(number * 10_000);
        let segment = SegmentId { volume: VolumeId(number % 25), index: (number / 25 % 4) as u32 };
        let verdict = admission
            .submit(now, Request { segment, bytes: 4096, direction: Direction::Write, level: Level::Open }, || ())
            .unwrap();
        assert_eq!(verdict, admission::Verdict::Start);
        let direction = Direction::Write;
        let outcome = Outcome { segment, granted: now, bytes: 4096, direction, went_below: true };
        admission.on_done(Instant(now.0 + 100_000), outcome);
    };
    (0..1_000).for_each(&mut io);
    let before = ALLOCATIONS.with(Cell::get);
    (1_000..300_000).for_each(&mut io);
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
}

#[test]
fn a_request_that_is_within_its_level_allocates_nothing() {
    let base = Rate { iops: 20_000, bytes_per_sec: 0 };
    let levels = Levels { base, burst: Rate { iops: 200_000, bytes_per_sec: 0 }, ..Levels::default() };
    let (mut account, mut lines) = (Account::new(levels, 4, Instant::ZERO), Lines::<()>::default());
    let number = lines.add(true);
    let mut asked = 0;
    let mut io = |number_of_io: u64| {
        // 100,000 a second.
        let now = Instant(number_of_io * 10_000);
        let ask = |purse: &mut Purse| {
            asked += 1;
            account.arrive(now, 1, 4096, purse, None)
        };
        assert!(matches!(lines.submit(now, number, 4096, ask, || ()), levels::Verdict::Start(_)));
    };
    (0..1_000).for_each(&mut io);
    let before = ALLOCATIONS.with(Cell::get);
    (1_000..300_000).for_each(&mut io);
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
    assert!(asked < 50_000, "the account, which others use, too, is asked for few: {asked}");
}

#[test]
fn requests_and_windows_of_tenants_allocate_nothing() {
    let mut scheduler: Scheduler<u64> = Scheduler::new(TenantsSettings::default(), 1, Instant(0));
    let base = Some(Cost([1e8, 1e9, 1e9, 1e9]));
    let volumes: Vec<VolumeNumber> = (0..8)
        .map(|key| {
            let tenant = scheduler.add_tenant(key, Promise { base, burst: None });
            scheduler.add_volume(tenant, 0, 1)
        })
        .collect();
    let (mut waited, mut in_line) = (0, 0u64);
    let mut io = |number: u64| {
        // 150,000 a second are more than there is; the first tenant bursts, the others come and go.
        let now = Instant(number * 6_666);
        let volume = volumes[if number.is_multiple_of(20) { (number / 20_000 % 7 + 1) as usize } else { 0 }];
        let cost = scheduler.cost(Frontend::Nbd, Operation::Write, 8192);
        // Clients have so many in flight, and no more.
        if number % 512 < 400
            && in_line < 128
            && scheduler.submit(now, volume, cost, || number) == tenants::Verdict::Wait
        {
            in_line += 1;
        }
        while scheduler.next_grant(now).is_some() {
            waited += 1;
            in_line -= 1;
        }
        scheduler.on_delay(5_000);
    };
    (0..2_000_000).for_each(&mut io);
    let before = ALLOCATIONS.with(Cell::get);
    (2_000_000..2_400_000).for_each(&mut io);
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
    assert!(waited > 100_000, "{waited}");
}

#[test]
fn to_tell_whether_a_write_is_a_burst_allocates_nothing() {
    let mut detector = Detector::new(BurstSettings::EXACT, Instant::ZERO);
    let before = ALLOCATIONS.with(Cell::get);
    for number in 0..100_000 {
        detector.on_write(Instant(number * 1_000_000), (number * 7919 % 1000) << 20, 4096);
    }
    assert_eq!(ALLOCATIONS.with(Cell::get), before);
}
