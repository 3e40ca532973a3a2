//! What the scheduler of tenants costs a request, waiting or not: no allocation, once queues have their size.
#![allow(unsafe_code, reason = "a global allocator that counts")]
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test panics where something is not as it should")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use base::Instant;
use policies::tenants::{Cost, Frontend, Operation, Promise, Scheduler, TenantsSettings, Verdict, VolumeNumber};

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
fn requests_and_windows_allocate_nothing() {
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
        if number % 512 < 400 && in_line < 128 && scheduler.submit(now, volume, cost, || number) == Verdict::Wait {
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
