//! The parts by themselves; whole searches on disks of very different kinds are in `tests/calibration`.

use base::{KIB, MIB, Prng};

use super::*;
use crate::slow_requests::Direction;

fn point(delivered_bytes_per_sec: f64, p95_ns: u64) -> Point {
    Point {
        rate: delivered_bytes_per_sec,
        offered_bytes_per_sec: delivered_bytes_per_sec,
        delivered_bytes_per_sec,
        requests_per_sec: 1.0,
        p50_ns: p95_ns,
        p95_ns,
        p99_ns: p95_ns,
        stretch_percent: 100,
        outran: false,
        has_taken_off: false,
    }
}

#[test]
fn a_mix_is_what_it_says() {
    let mix = Mix::parse("4K-64K:50").unwrap();
    assert_eq!((mix, mix.to_string().as_str()), (Mix::default(), "4 KiB to 64 KiB, 50% reads"));
    assert_eq!(Mix::parse("8K:70%").unwrap().to_string(), "8 KiB, 70% reads");
    assert_eq!(mix.mean_bytes(), (4 + 8 + 16 + 32 + 64) as f64 * 1024.0 / 5.0);
    for wrong in ["", "4K", "4K:101", "64K-4K:50", "5K:50", "2K:50", "2M:50", "4K-:50", "x:50", "4K:x"] {
        let said = Mix::parse(wrong).unwrap_err();
        assert!(said.contains("such as 4K-64K:50") && said.contains("from 4 KiB to 1 MiB"), "{wrong}: {said}");
    }
}

#[test]
fn what_is_drawn_lies_within_and_covers_the_mix() {
    let (mix, mut prng) = (Mix::default(), Prng::new(5));
    let asks: Vec<Ask> = (0..20_000).map(|_| mix.draw(&mut prng, MIB)).collect();
    assert!(asks.iter().all(|ask| ask.offset % 4096 == 0 && ask.offset + ask.bytes <= MIB));
    for bytes in [4, 8, 16, 32, 64].map(|kib| kib * KIB) {
        for direction in Direction::ALL {
            let count = asks.iter().filter(|ask| ask.bytes == bytes && ask.direction == direction).count();
            assert!((1_700..2_300).contains(&count), "{direction:?} of {bytes}: {count}");
        }
    }
    let all: u64 = (0..20_000).map(|_| gap_ns(&mut prng, 1000.0)).sum();
    assert!((19_000_000_000..21_000_000_000).contains(&all), "{all}");
}

#[test]
fn the_curve_of_figure_6_is_found_again() {
    let mu = 2_130e6;
    let curve = |rate: f64| 300_000.0 + 1.7 * 25_000.0 * LN_20 / (mu - rate) * 1e9;
    let points: Vec<Point> = (1..20).map(|n| mu / 20.0 * f64::from(n)).map(|at| point(at, curve(at) as u64)).collect();
    let fit = Fit::of(&points, 300_000, mu, 25_000.0).unwrap();
    assert!((fit.k - 1.7).abs() < 0.01 && fit.off_percent < 0.1, "{fit:?}");
    assert!(fit.p95_ns(mu).is_none() && fit.p95_ns(mu / 2.0).unwrap() > 300_000.0);
    let above = [point(2.0 * mu, 1), Point { outran: true, ..point(mu / 2.0, 1) }];
    assert!(Fit::of(&above, 300_000, mu, 25_000.0).is_none(), "nothing below mu");
}

const LN_20: f64 = 2.995_732_273_553_991;

#[test]
fn a_step_ends_with_its_time_or_with_a_queue_that_grows() {
    let seconds = Duration::from_secs;
    let step = Step { arrivals: Arrivals::Random(100.0), lasts: seconds(1), at_most: seconds(3) };
    let ask = Ask { direction: Direction::Read, bytes: 4096, offset: 0 };
    let mut few = Sample::new(step, Instant::ZERO);
    few.on_start(&ask);
    few.on_done(Instant(500_000_000), ask, 7);
    assert!(!few.is_over(Instant(2_999_999_999)) && few.is_over(Instant(3_000_000_000)), "it waits for more");
    assert_eq!(few.next_look(Instant(1_000_000_000)), Instant(3_000_000_000));
    let mut many = Sample::new(step, Instant::ZERO);
    for _ in 0..200 {
        many.on_start(&ask);
        many.on_done(Instant(1), ask, 7);
    }
    assert!(!many.is_over(Instant(999_999_999)) && many.is_over(Instant(1_000_000_000)));
    let mut queue = Sample::new(step, Instant::ZERO);
    (0..1023).for_each(|_| queue.on_start(&ask));
    assert!(!queue.is_over(Instant(1)));
    queue.on_start(&ask);
    assert!(queue.is_over(Instant(2)));
    queue.on_done(Instant(3), ask, 7);
    let point = Point::of(&queue, 1.0, &Alone::default(), 160);
    assert!(point.outran && point.has_taken_off && point.p95_ns == 7, "what is done later counts as latency only");
}
