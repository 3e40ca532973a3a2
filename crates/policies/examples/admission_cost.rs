//! Nanoseconds that admission takes of an I/O that starts at once: `cargo run --release -p policies --example
//! admission_cost`. The second number is the same loop without admission; what is said is the difference.
#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "a measurement looks at the clock and prints")]

use std::hint::black_box;

use base::levels::{Levels, Rate};
use base::{Instant, SegmentId, VolumeId};
use policies::admission::{Admission, AdmissionSettings, ClientId, Request};

const IOS: u64 = 5_000_000;

fn request(number: u64) -> (Instant, Request) {
    // 250,000 a second on 100 segments, in no order that a cache would like.
    let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let segment = SegmentId { volume: VolumeId(scattered % 25), index: (scattered / 25 % 4) as u32 };
    (Instant(number * 4_000), Request { segment, bytes: 4096 })
}

fn main() {
    for with_levels in [false, true] {
        let mut admission: Admission<()> = Admission::new(AdmissionSettings::default(), Instant::ZERO);
        let base = Rate { iops: 50_000, bytes_per_sec: 400_000_000 };
        for volume in (0..25).filter(|_| with_levels) {
            admission.set_volume(Instant::ZERO, VolumeId(volume), ClientId(1), Levels { base, ..Levels::default() });
        }
        let begun = std::time::Instant::now();
        for number in 0..IOS {
            let (now, request) = request(number);
            let _ = black_box(admission.submit(now, request, || ()));
            admission.on_done(Instant(now.0 + 90_000 + number % 64 * 1000), now, request.bytes);
        }
        let with = begun.elapsed();
        let begun = std::time::Instant::now();
        for number in 0..IOS {
            black_box(request(number));
        }
        let cost_ns = with.saturating_sub(begun.elapsed()).as_nanos() as f64 / IOS as f64;
        println!("{} levels: {cost_ns:.1} ns per I/O", if with_levels { "with" } else { "without" });
    }
}
