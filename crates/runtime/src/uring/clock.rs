//! The real clock and the kernel's random numbers.

use std::sync::OnceLock;

use base::Instant;

/// Nanoseconds since the first call in this process: the same for all loops. Costs about 25 ns.
pub(super) fn now() -> Instant {
    static START_NS: OnceLock<u64> = OnceLock::new();
    let present_ns = read_ns(libc::CLOCK_MONOTONIC);
    // Another thread may have come first with a later reading.
    Instant(present_ns.saturating_sub(*START_NS.get_or_init(|| present_ns)))
}

/// Milliseconds since 1970.
pub(super) fn wall_ms() -> u64 {
    read_ns(libc::CLOCK_REALTIME) / 1_000_000
}

fn read_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure outlives the call.
    let outcome = unsafe { libc::clock_gettime(clock, &mut time) };
    assert!(outcome == 0, "the kernel has a clock");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Random numbers drawn from the kernel in batches, because each draw is a system call.
pub(super) struct Randomness {
    numbers: [u64; 32],
    left: usize,
}

impl Randomness {
    pub fn new() -> Self {
        Randomness { numbers: [0; 32], left: 0 }
    }

    pub fn next(&mut self) -> u64 {
        if self.left == 0 {
            self.refill();
        }
        self.left -= 1;
        // A number that was given out is not kept.
        std::mem::take(&mut self.numbers[self.left])
    }

    fn refill(&mut self) {
        let size = size_of_val(&self.numbers);
        // SAFETY: the array outlives the call. A request of up to 256 bytes is never cut short once the kernel's
        // generator is seeded, and waits until it is.
        let drawn = unsafe { libc::getrandom(self.numbers.as_mut_ptr().cast(), size, 0) };
        assert!(drawn == size as isize, "the kernel has random numbers");
        self.left = self.numbers.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_and_numbers_differ() {
        let first = now();
        assert!(now() >= first && wall_ms() > 1_600_000_000_000);
        let mut randomness = Randomness::new();
        let mut numbers: Vec<u64> = (0..100).map(|_| randomness.next()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 100);
    }
}
