//! What admission costs an I/O that does not have to wait: no allocation.
#![allow(unsafe_code, reason = "a global allocator that counts")]
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test panics where something is not as it should")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use base::levels::{Levels, Rate};
use base::{Instant, SegmentId, VolumeId};
use policies::admission::{Admission, AdmissionSettings, ClientId, Outcome, Request, Verdict};
use policies::slow_requests::Direction;

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
        let verdict =
            admission.submit(now, Request { segment, bytes: 4096, direction: Direction::Write }, || ()).unwrap();
        assert_eq!(verdict, Verdict::Start);
        let direction = Direction::Write;
        let outcome = Outcome { segment, granted: now, bytes: 4096, direction, went_below: true };
        admission.on_done(Instant(now.0 + 100_000), outcome);
    };
    (0..1_000).for_each(&mut io);
    let before = ALLOCATIONS.with(Cell::get);
    (1_000..300_000).for_each(&mut io);
    assert_eq!(ALLOCATIONS.with(Cell::get) - before, 0);
}
