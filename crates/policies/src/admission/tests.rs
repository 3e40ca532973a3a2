use std::collections::VecDeque;
use std::time::Duration;

use crate::slow_requests::Direction;
use base::levels::{Credits, Level, Levels, Rate};
use base::{Instant, Prng, SegmentId, VolumeId};

use super::buckets::Buckets;
use super::estimator::EstimatorSettings;
use super::*;

const T: u64 = 10_000_000;

fn at(interval: u64) -> Instant {
    Instant(interval * T + 1)
}

fn segment(volume: u64, index: u32) -> SegmentId {
    SegmentId { volume: VolumeId(volume), index }
}

/// 100 requests of 1,000 bytes per interval, and 20 on the cheque.
fn settings(throttle: Throttle) -> AdmissionSettings {
    AdmissionSettings { throttle, limit_bytes_per_sec: 10_000_000, hot_parts: 1, ..AdmissionSettings::default() }
}

struct Server {
    admission: Admission<u64>,
    next: u64,
}

impl Server {
    fn new(settings: AdmissionSettings) -> Server {
        Server { admission: Admission::new(settings, at(0)), next: 0 }
    }

    /// Submits `count` requests of 1,000 bytes; says how many started.
    fn submit(&mut self, now: Instant, segment: SegmentId, count: u64) -> u64 {
        let request = Request { segment, bytes: 1000, direction: Direction::Write, level: Level::Open };
        let mut started = 0;
        for _ in 0..count {
            self.next += 1;
            let verdict = self.admission.submit(now, request, || self.next).unwrap();
            started += u64::from(verdict == Verdict::Start);
        }
        started
    }

    fn grants(&mut self, now: Instant) -> Vec<Grant<u64>> {
        std::iter::from_fn(|| self.admission.next_grant(now)).collect()
    }
}

/// Limits do not hold while one volume has the store for itself: with its logs it is still one.
#[test]
fn a_volume_and_its_logs_do_not_share_a_store() {
    let mut server = Server::new(settings(Throttle::DualBuckets));
    let is_shared = |server: &Server, interval| server.admission.is_shared(at(interval), Duration::from_secs(1));
    server.submit(at(0), segment(1, 0), 1);
    assert!(!is_shared(&server, 0));
    server.submit(at(0), segment(2, 0), 1);
    assert!(is_shared(&server, 0));
    server.admission.set_part_of(at(0), VolumeId(2), VolumeId(1));
    assert!(!is_shared(&server, 0));
    server.submit(at(50), segment(3, 0), 1);
    assert!(is_shared(&server, 50) && !is_shared(&server, 120));
}

#[test]
fn steady_segments_do_not_notice_a_burst() {
    let mut server = Server::new(settings(Throttle::DualBuckets));
    let (hot, steady) = (segment(1, 0), segment(2, 0));
    assert_eq!(server.submit(at(0), steady, 5), 5);
    assert_eq!(server.submit(at(0), hot, 300), 95, "the main bucket is empty");
    assert_eq!(server.submit(at(0), steady, 10), 10, "the cheque bucket is not");
    let status = server.admission.status(at(0));
    assert_eq!((status.hot_segments, status.waiting, status.overdrawn_bytes), (1, 205, 10_000));
    assert_eq!(server.admission.next_look(at(0)), Some(Instant(T)));
    assert!(server.grants(at(0)).is_empty());
    // The next interval pays the overdraw back and serves the hot one with the rest, in order.
    let grants = server.grants(at(1));
    assert_eq!(grants.iter().map(|grant| grant.ticket).collect::<Vec<_>>(), (101..=190).collect::<Vec<_>>());
    assert!(grants.iter().all(|grant| grant.reason == Reason::HotSegment && grant.waited_ns == T));
    assert_eq!(server.submit(at(1), steady, 15), 15);
    let waits = server.admission.volume(VolumeId(1), at(1)).unwrap().waits;
    assert_eq!((waits.of(Reason::HotSegment).requests, waits.of(Reason::HotSegment).now), (90, 115));
}

/// A client that keeps as many requests in flight has a line that never empties.
#[test]
fn a_line_that_never_empties_tells_what_it_waits_for_now() {
    let mut server = Server::new(settings(Throttle::DualBuckets));
    assert_eq!(server.submit(at(0), segment(1, 0), 300), 100);
    let waits = |server: &Server, now| server.admission.volume(VolumeId(1), now).unwrap().waits;
    assert!(waits(&server, at(0)).of(Reason::BurstLevel).now == 0);
    let levels = Levels { burst: Rate { iops: 2000, bytes_per_sec: 0 }, ..Levels::default() };
    server.admission.set_volume(at(0), VolumeId(1), ClientId(1), levels);
    let mut last = Vec::new();
    for interval in 1..=30 {
        last = server.grants(at(interval));
        server.submit(at(interval), segment(1, 0), last.len() as u64);
    }
    assert!(last.len() == 20 && last.iter().all(|grant| grant.reason == Reason::BurstLevel), "{last:?}");
    let after = waits(&server, at(30));
    let waiting = Reason::ALL.map(|reason| after.of(reason).now);
    assert_eq!((after.of(Reason::BurstLevel).now, waiting.iter().sum::<u64>()), (200, 200));
}

#[test]
fn with_one_bucket_everybody_waits_in_one_line() {
    let mut server = Server::new(settings(Throttle::OneBucket));
    assert_eq!(server.submit(at(0), segment(1, 0), 300), 100);
    assert_eq!(server.submit(at(0), segment(2, 0), 1), 0);
    let grants: Vec<u64> = (1..=3).flat_map(|interval| server.grants(at(interval))).map(|grant| grant.ticket).collect();
    assert_eq!(grants, (101..=301).collect::<Vec<_>>());
}

#[test]
fn caps_hold_for_clients_and_for_segments() {
    let mut server = Server::new(settings(Throttle::ClientCap(1_000_000)));
    for volume in [1, 2] {
        server.admission.set_volume(at(0), VolumeId(volume), ClientId(7), Levels::default());
    }
    assert_eq!(server.submit(at(0), segment(1, 0), 8), 8);
    assert_eq!(server.submit(at(0), segment(2, 3), 8), 2, "they have one owner");
    assert_eq!(server.submit(at(0), segment(3, 0), 5), 5, "that is somebody else");
    assert!(server.grants(at(1)).iter().all(|grant| grant.reason == Reason::ClientCap));
    let mut server = Server::new(settings(Throttle::SegmentCap(1_000_000)));
    assert_eq!(server.submit(at(0), segment(1, 0), 15), 10);
    assert_eq!(server.submit(at(0), segment(1, 1), 15), 10);
    assert_eq!(server.grants(at(1)).len(), 10);
    assert!(server.admission.next_look(at(1)).is_none());
}

#[test]
fn nobody_waits_where_nothing_is_throttled() {
    let mut server = Server::new(settings(Throttle::Off));
    assert_eq!(server.submit(at(0), segment(1, 0), 10_000), 10_000);
}

#[test]
fn the_base_level_comes_before_everybodys_burst() {
    let mut server = Server::new(settings(Throttle::DualBuckets));
    // 30 requests in each interval.
    let base = Rate { iops: 3000, bytes_per_sec: 0 };
    let levels = Levels { base, ..Levels::default() };
    server.admission.set_volume(at(0), VolumeId(9), ClientId(1), levels);
    server.submit(at(0), segment(1, 0), 1000);
    server.submit(at(0), segment(2, 0), 200);
    server.submit(at(0), segment(9, 0), 500);
    let grants = server.grants(at(1));
    let from = |range: std::ops::RangeInclusive<u64>, grants: &[Grant<u64>]| {
        grants.iter().filter(|grant| range.contains(&grant.ticket)).count()
    };
    assert_eq!(from(1201..=1700, &grants[..30]), 30, "first of all");
    assert!(from(1201..=1700, &grants) < 60 && from(1..=1200, &grants) > 40, "and then like the others");
    // A level that changes while requests wait holds from the next round on.
    server.admission.set_volume(at(1), VolumeId(9), ClientId(1), Levels::default());
    let grants = server.grants(at(2));
    assert!(from(1201..=1700, &grants) < 45, "{grants:?}");
}

#[test]
fn a_level_that_is_used_up_holds_its_volume_only() {
    let mut server = Server::new(settings(Throttle::DualBuckets));
    let rate = Rate { iops: 500, bytes_per_sec: 0 };
    let fixed = Levels { base: rate, burst: rate, credits: Credits::default() };
    let bursting = Levels { base: rate, burst: Rate { iops: 1000, bytes_per_sec: 0 }, credits: Credits::default() };
    server.admission.set_volume(at(0), VolumeId(1), ClientId(1), fixed);
    server.admission.set_volume(at(0), VolumeId(2), ClientId(1), bursting);
    assert_eq!(server.submit(at(0), segment(1, 0), 15), 5);
    assert_eq!(server.submit(at(0), segment(2, 0), 15), 10);
    assert_eq!(server.submit(at(0), segment(3, 0), 50), 50);
    let grants = server.grants(at(1));
    let count = |reason| grants.iter().filter(|grant| grant.reason == reason).count();
    assert_eq!((count(Reason::BaseLevel), count(Reason::BurstLevel)), (5, 5));
    server.admission.remove_volume(VolumeId(1));
    assert!(server.admission.volume(VolumeId(1), at(1)).is_some(), "five of its requests wait");
    server.grants(at(2));
    server.admission.remove_volume(VolumeId(1));
    assert!(server.admission.volume(VolumeId(1), at(2)).is_none());
}

#[test]
fn too_many_are_refused_and_none_of_them_is_in_line() {
    let mut server = Server::new(AdmissionSettings { waiting_max: 10, ..settings(Throttle::DualBuckets) });
    server.submit(at(0), segment(1, 0), 110);
    let refused = server.admission.submit(
        at(0),
        Request { segment: segment(1, 0), bytes: 1000, direction: Direction::Write, level: Level::Open },
        || 0,
    );
    assert_eq!(refused, Err(Overload { waiting_max: 10 }));
    assert_eq!(server.admission.status(at(0)).waiting, 10);
}

#[test]
fn lines_of_unused_segments_are_given_up() {
    let mut server = Server::new(settings(Throttle::DualBuckets));
    for index in 0..1000 {
        server.submit(at(0), segment(1, index), 1);
    }
    assert_eq!(server.admission.status(at(0)).active_segments, 1000);
    for interval in 1..500 {
        server.grants(at(interval));
        server.submit(at(interval), segment(2, 0), 1);
    }
    assert_eq!(server.admission.known_lines(), 1);
}

/// Random arrivals, against what must hold whatever happens.
#[test]
fn invariants_hold_under_random_load() {
    for seed in 0..300 {
        let mut prng = Prng::new(seed);
        let throttles = [
            Throttle::DualBuckets,
            Throttle::DualBuckets,
            Throttle::OneBucket,
            Throttle::ClientCap(3_000_000),
            Throttle::SegmentCap(1_000_000),
        ];
        let throttle = *prng.pick(&throttles);
        random_load(seed, &mut prng, throttle);
    }
}

fn random_load(seed: u64, prng: &mut Prng, throttle: Throttle) {
    let hot_parts = *prng.pick(&[1, 10]);
    let settings = AdmissionSettings { cheque_follows_demand: prng.one_in(2), hot_parts, ..settings(throttle) };
    let (interval, limit) = (settings.interval, settings.limit_bytes_per_sec);
    let mut server: Admission<(SegmentId, u64)> = Admission::new(settings, at(0));
    // At most half of the limit is promised.
    let promised = prng.one_in(2);
    if promised {
        for volume in 0..2 {
            let base = Rate { iops: 0, bytes_per_sec: limit / 4 };
            server.set_volume(at(0), VolumeId(volume), ClientId(volume), Levels { base, ..Levels::default() });
        }
    }
    let mut waiting: Vec<(SegmentId, VecDeque<(u64, Instant)>)> = Vec::new();
    let (mut now, mut started, mut number, mut largest) = (at(0), 0u64, 0u64, 0u64);
    for _ in 0..3000 {
        let longest = if prng.one_in(50) { 30_000 } else { 300 };
        now = now + Duration::from_micros(prng.below(longest));
        let heavy = prng.one_in(4);
        let which = segment(prng.below(5), prng.below(if heavy { 1 } else { 4 }) as u32);
        for _ in 0..prng.below(if heavy { 40 } else { 3 }) {
            let bytes = 512 * prng.between(1, 32);
            largest = largest.max(bytes);
            number += 1;
            match server
                .submit(now, Request { segment: which, bytes, direction: Direction::Write, level: Level::Open }, || {
                    (which, number)
                })
                .unwrap()
            {
                Verdict::Start => {
                    started += bytes;
                    let line = waiting.iter().find(|(segment, _)| *segment == which);
                    assert!(line.is_none_or(|(_, line)| line.is_empty()), "seed {seed}: it overtook its own segment");
                }
                Verdict::Wait => {
                    match waiting.iter_mut().find(|(segment, _)| *segment == which) {
                        Some((_, line)) => line.push_back((number, now)),
                        None => waiting.push((which, [(number, now)].into())),
                    }
                    started += 0;
                }
            }
        }
        // Now and then the rest of the grants comes after the next arrivals.
        if prng.one_in(4) {
            continue;
        }
        let before = server.status(now).started_bytes;
        let mut turns = if prng.one_in(4) { prng.below(8) } else { u64::MAX };
        while turns > 0
            && let Some(Grant { ticket: (segment, number), waited_ns, .. }) = server.next_grant(now)
        {
            turns -= 1;
            let (_, line) = waiting.iter_mut().find(|(known, _)| *known == segment).unwrap();
            let (first, since) = line.pop_front().unwrap();
            assert_eq!((first, now.nanos_since(since)), (number, waited_ns), "seed {seed}: out of order");
        }
        started += server.status(now).started_bytes - before;
        let audited = server.audit(now);
        assert!(audited.is_ok(), "seed {seed}: {audited:?}");
        let status = server.status(now);
        assert_eq!(status.started_bytes, started, "seed {seed}");
        let issued = limit as u128 * u128::from(now.0 + 2 * T) / 1_000_000_000;
        let most = issued as u64 + limit / 100 + 2 * largest;
        assert!(started <= most, "seed {seed}: {started} bytes started, {most} at most");
        let left: usize = waiting.iter().map(|(_, line)| line.len()).sum();
        assert_eq!(status.waiting, left, "seed {seed}");
        if turns == 0 {
            continue;
        }
        match left {
            0 => assert_eq!(server.next_look(now), None, "seed {seed}: an idle server has no timer"),
            _ => {
                let look = server.next_look(now).unwrap();
                assert!(look > now && look <= now + interval, "seed {seed}");
            }
        }
        let caps = matches!(throttle, Throttle::ClientCap(_) | Throttle::SegmentCap(_));
        if left > 0 && !caps {
            assert!(server.buckets.for_hot() <= 0, "seed {seed}: tokens are left, and {left} wait");
            let (steady_waits, most) = (server.steady_waiting(now), status.main.max(status.cheque));
            assert!(!steady_waits || most <= 0, "seed {seed}: a steady line waits beside tokens");
        }
        if promised {
            for volume in 0..2 {
                // What waits longer than an interval, though within the base level, was forgotten.
                let late = waiting.iter().filter(|(segment, _)| segment.volume == VolumeId(volume));
                let late = late.filter_map(|(_, line)| line.front()).any(|(_, since)| now.since(*since) > 2 * interval);
                let has_base = server.has_base(VolumeId(volume), now);
                assert!(!(late && has_base) || throttle != Throttle::DualBuckets || status.main <= 0, "seed {seed}");
            }
        }
        if prng.one_in(2) {
            let direction = Direction::Write;
            let segment = segment(0, 0);
            server.on_done(now, Outcome { segment, granted: now, bytes: largest, direction, went_below: true });
        }
    }
    // It all ends.
    for _ in 0..2_000_000 {
        let Some(look) = server.next_look(now) else { break };
        now = look;
        while server.next_grant(now).is_some() {}
    }
    assert_eq!(server.status(now).waiting, 0, "seed {seed}: somebody waits for ever");
}

#[test]
fn a_steady_segment_that_comes_while_hot_ones_are_served_does_not_wait_for_the_next_refill() {
    let mut server = Server::new(settings(Throttle::DualBuckets));
    server.submit(at(0), segment(1, 0), 200);
    // A new interval; some of the hot ones have had their turn when a steady segment comes, first with one request that
    // may start, then with more than there is.
    assert!(server.admission.next_grant(at(1)).is_some());
    assert_eq!(server.submit(at(1), segment(2, 0), 1), 1);
    server.submit(at(1), segment(1, 0), 1);
    let grants = server.grants(at(1));
    assert!(grants.len() > 90 && server.admission.status(at(1)).waiting > 0);
    // The same where it has to get in line: its tokens come before those of the hot ones that are left.
    server.submit(at(1), segment(3, 0), 200);
    let mut first = server.admission.next_grant(at(2)).unwrap();
    while first.ticket < 203 {
        first = server.admission.next_grant(at(2)).unwrap();
    }
    server.submit(at(2), segment(4, 0), 1);
    server.grants(at(2));
    assert_eq!(server.admission.volume(VolumeId(4), at(2)).unwrap().waits, Waits::default());
}

#[test]
fn base_levels_whose_sum_fits_are_met_in_every_interval() {
    let mut server = Server::new(settings(Throttle::DualBuckets));
    // 40, 30 and 20 of the 100 requests of an interval; volume 4 has no level and asks for ten times as much.
    for (volume, iops) in [(1, 4000), (2, 3000), (3, 2000)] {
        let levels = Levels { base: Rate { iops, bytes_per_sec: 0 }, ..Levels::default() };
        server.admission.set_volume(at(0), VolumeId(volume), ClientId(volume), levels);
    }
    let mut started = [0; 5];
    for interval in 0..300 {
        server.submit(at(interval), segment(4, 0), 1000);
        for volume in 1..=3 {
            server.submit(at(interval), segment(volume, (interval % 4) as u32), 50);
        }
        server.grants(at(interval));
        for volume in 1..=4 {
            let now = server.admission.volume(VolumeId(volume), at(interval)).unwrap().started;
            let least = [0, 40, 30, 20, 0][volume as usize];
            // The first interval's tokens went to whoever came first.
            assert!(interval == 0 || now - started[volume as usize] >= least, "volume {volume}, interval {interval}");
            started[volume as usize] = now;
        }
    }
    assert!(started[4] > 300, "and what is left is for the others");
}

/// The audit itself: a server that does what it must not is found out.
#[test]
fn an_audit_notices_tokens_from_nothing_and_who_waits_beside_some() {
    let mut server = Server::new(settings(Throttle::DualBuckets));
    server.submit(at(0), segment(1, 0), 300);
    assert_eq!(server.admission.audit(at(0)), Ok(200));
    let complaint = |server: &Server, now| server.admission.audit(now).unwrap_err();
    server.admission.buckets = Buckets::new(Duration::from_millis(10), 100_000, 20_000, at(0));
    assert!(complaint(&server, at(0)).contains("100000 tokens were drawn, and 100000 and 20000 are left"));
    server.admission.drawn = 0;
    assert!(
        complaint(&server, at(0)).contains("waits for HotSegment although the main bucket has 100000 tokens for it")
    );
    assert_eq!(server.admission.audit(at(1)), Ok(200), "the next look grants it");
    server.admission.waiting += 1;
    assert!(complaint(&server, at(0)).contains("201 requests are said to wait, and 200 are in line"));
}

#[test]
fn an_audit_notices_who_is_kept_from_his_base_level_or_from_the_cheque() {
    let mut server = Server::new(settings(Throttle::DualBuckets));
    let levels = Levels { base: Rate { iops: 0, bytes_per_sec: 1_000_000 }, ..Levels::default() };
    server.admission.set_volume(at(0), VolumeId(1), ClientId(1), levels);
    server.submit(at(0), segment(1, 0), 200);
    // As if somebody else had got the tokens of later intervals.
    for interval in 1..=30 {
        server.admission.buckets.refill(at(interval), None);
        while server.admission.buckets.draw_steady(1000).is_some() {}
        assert_eq!(server.admission.audit(at(interval)), Ok(100));
    }
    server.admission.burst_at = at(30);
    let complaint = server.admission.audit(at(30)).unwrap_err();
    assert!(complaint.contains("its volume has base tokens, and others burst"), "{complaint}");
    // Long after its burst the segment is steady again, and the cheque bucket is full.
    server.admission.buckets.refill(at(60), None);
    while server.admission.buckets.draw_hot(1000).is_some() {}
    let complaint = server.admission.audit(at(60)).unwrap_err();
    assert!(complaint.contains("it is steady, and the cheque bucket has 20000 tokens"), "{complaint}");
}

/// Whoever waited for tokens does not start with all of them at once.
#[test]
fn hot_segments_that_wait_get_an_interval_in_parts() {
    let mut server = Server::new(AdmissionSettings { hot_parts: 10, ..settings(Throttle::DualBuckets) });
    assert_eq!(server.submit(at(0), segment(1, 0), 400), 100, "nobody waited: all at once");
    let mut started = Vec::new();
    let mut now = at(0);
    for _ in 0..12 {
        now = server.admission.next_look(now).unwrap();
        started.push(server.grants(now).len());
        assert_eq!(server.admission.audit(now), Ok(server.admission.waiting));
        if started.len() == 5 {
            assert_eq!(server.submit(now, segment(2, 0), 3), 3, "steady ones may draw from all of them");
        }
    }
    // What the steady one took is missing in the end.
    assert_eq!(started, [10, 10, 10, 10, 10, 10, 10, 10, 10, 7, 10, 10]);
}

/// A volume that keeps 32 requests of 64 KiB in flight, beside one with a small request every five milliseconds, on a
/// store that serves each in two: with a low limit an interval has tokens for a few of the large ones only.
#[test]
fn a_burst_of_few_large_requests_does_not_keep_steady_ones_waiting() {
    for (limit, interval_ms, waits_max) in
        [(20_000_000, 10, 30), (50_000_000, 5, 10), (50_000_000, 10, 5), (100_000_000, 5, 5), (200_000_000, 2, 30)]
    {
        let interval = Duration::from_millis(interval_ms);
        let settings = AdmissionSettings { limit_bytes_per_sec: limit, interval, ..AdmissionSettings::default() };
        let (waited, asked) = beside_large_requests(settings);
        assert!(waited <= waits_max, "{limit} bytes/s, {interval_ms} ms: {waited} of {asked} waited");
    }
}

/// How many of the small requests of five seconds waited.
fn beside_large_requests(settings: AdmissionSettings) -> (u64, u64) {
    const MS: u64 = 1_000_000;
    const SMALL: u64 = 1000;
    let mut prng = Prng::new(1);
    let mut admission: Admission<u64> = Admission::new(settings, at(0));
    // When the large requests end, each of which is followed by another one; and when the next small one comes.
    let mut ends: Vec<(u64, u64)> = (0..32).map(|number| (MS, number)).collect();
    let mut small_at = 50 * MS;
    let (mut waited, mut asked, mut now) = (0, 0, 0);
    while now < 5_000 * MS {
        let look = admission.next_look(Instant(now)).map(|look| look.0);
        let next = ends.iter().map(|end| end.0).chain([small_at]).chain(look).min().unwrap();
        now = next.max(now);
        while let Some(grant) = admission.next_grant(Instant(now)) {
            match grant.ticket {
                SMALL => waited += 1,
                large => ends.push((now + 2 * MS, large)),
            }
        }
        for index in (0..ends.len()).rev().filter(|index| ends[*index].0 <= now).collect::<Vec<_>>() {
            let (_, number) = ends.swap_remove(index);
            let request = Request {
                segment: segment(1, prng.below(2) as u32),
                bytes: 65_536,
                direction: Direction::Write,
                level: Level::Open,
            };
            if admission.submit(Instant(now), request, || number).unwrap() == Verdict::Start {
                ends.push((now + 2 * MS, number));
            }
        }
        if small_at <= now {
            small_at += 5 * MS;
            asked += 1;
            let request = Request {
                segment: segment(2, prng.below(2) as u32),
                bytes: 4096,
                direction: Direction::Write,
                level: Level::Open,
            };
            admission.submit(Instant(now), request, || SMALL).unwrap();
        }
    }
    (waited, asked)
}

#[test]
fn the_cheque_bucket_follows_what_steady_segments_ask_for() {
    for (follows, per_interval, size) in
        [(true, 1, 20_000), (true, 15, 30_000), (true, 60, 40_000), (false, 60, 20_000)]
    {
        let settings = AdmissionSettings { cheque_follows_demand: follows, ..settings(Throttle::DualBuckets) };
        let mut server = Server::new(settings);
        for interval in 0..40 {
            for number in 0..per_interval {
                server.submit(at(interval), segment(number, 0), 1);
            }
            server.grants(at(interval));
        }
        let found = server.admission.status(at(39)).cheque_size;
        assert_eq!(found, size, "{per_interval} in each interval");
    }
}

#[test]
fn a_limit_beyond_what_the_disks_take_is_told_once_with_what_they_do() {
    let estimator = EstimatorSettings { samples_min: 20, ..EstimatorSettings::default() };
    let settings = AdmissionSettings { limit_bytes_per_sec: 1 << 40, estimator, ..settings(Throttle::DualBuckets) };
    let mut admission: Admission<()> = Admission::new(settings, at(0));
    let mut told = Vec::new();
    let request = Request { segment: segment(1, 0), bytes: 4096, direction: Direction::Write, level: Level::Open };
    // For a second one at a time, then ten at a time that take twenty times as long.
    for interval in 0..500u64 {
        let (at_once, took) = if interval < 100 { (1, 50_000) } else { (10, 1_000_000) };
        for round in 0..5 {
            let now = Instant(interval * T + round * 2_000_000);
            (0..at_once).for_each(|_| assert_eq!(admission.submit(now, request, || ()), Ok(Verdict::Start)));
            for _ in 0..at_once {
                let granted = Instant(now.0 + 1);
                let Request { segment, bytes, direction, .. } = request;
                admission
                    .on_done(Instant(now.0 + took), Outcome { segment, granted, bytes, direction, went_below: true });
            }
        }
        told.extend(admission.take_excess());
    }
    // 50 in 10 ms.
    assert!(told.len() == 1 && (18_000_000..23_000_000).contains(&told[0]), "{told:?}");
}

/// Requests as an agent has marked them.
fn marked(server: &mut Server, now: Instant, segment: SegmentId, level: Level, count: u64) -> u64 {
    let request = Request { segment, bytes: 1000, direction: Direction::Write, level };
    let mut started = 0;
    for _ in 0..count {
        server.next += 1;
        let verdict = server.admission.submit(now, request, || server.next).unwrap();
        started += u64::from(verdict == Verdict::Start);
    }
    started
}

#[test]
fn what_an_agent_has_marked_is_held_to_no_burst_level_again() {
    let mut server = Server::new(settings(Throttle::DualBuckets));
    let rate = Rate { iops: 500, bytes_per_sec: 0 };
    let levels = Levels { base: rate, burst: rate, credits: Credits::default() };
    server.admission.set_volume(at(0), VolumeId(1), ClientId(1), levels);
    assert_eq!(marked(&mut server, at(0), segment(1, 0), Level::Burst, 15), 15);
    assert_eq!(marked(&mut server, at(0), segment(1, 1), Level::Base, 15), 15);
    // Requests without a mark are held as ever.
    assert_eq!(server.submit(at(1), segment(1, 2), 15), 5);
    assert_eq!(server.admission.volume(VolumeId(1), at(1)).unwrap().waits.of(Reason::BaseLevel).now, 10);
    assert_eq!(marked(&mut server, at(1), segment(1, 0), Level::Burst, 15), 15);
    assert_eq!(server.admission.audit(at(1)), Ok(10));
}

#[test]
fn marked_base_comes_first_as_far_as_it_was_promised_and_behind_no_burst_of_its_segment() {
    let mut server = Server::new(settings(Throttle::DualBuckets));
    // 30 requests in each interval.
    let base = Rate { iops: 3000, bytes_per_sec: 0 };
    for volume in [8, 9] {
        server.admission.set_volume(at(0), VolumeId(volume), ClientId(1), Levels { base, ..Levels::default() });
    }
    server.submit(at(0), segment(1, 0), 1000);
    // Volume 8 has marks of burst only, volume 9 such of base behind them.
    marked(&mut server, at(0), segment(8, 0), Level::Burst, 200);
    marked(&mut server, at(0), segment(9, 0), Level::Burst, 200);
    marked(&mut server, at(0), segment(9, 0), Level::Base, 500);
    let grants = server.grants(at(2));
    let of = |range: std::ops::RangeInclusive<u64>, grants: &[Grant<u64>]| {
        grants.iter().filter(|grant| range.contains(&grant.ticket)).count()
    };
    // In the order of their segment: what an interval gives, and the one that is lent; no more.
    let first = grants.iter().take_while(|grant| (1201..=1900).contains(&grant.ticket)).count();
    assert!((59..=62).contains(&first), "{first} of {}", grants.len());
    assert_eq!(of(1001..=1200, &grants[..first]), 0);
    let grants = server.grants(at(3));
    let first = grants.iter().take_while(|grant| (1201..=1900).contains(&grant.ticket)).count();
    assert!((29..=31).contains(&first), "an interval's: {first}");
    assert!(server.admission.audit(at(3)).is_ok());
}

/// What came before it has waited for the disks, as bursts do, and is base from now on: at the next interval.
#[test]
fn a_mark_that_comes_late_counts_from_the_next_interval_on() {
    let mut server = Server::new(settings(Throttle::DualBuckets));
    let base = Rate { iops: 3000, bytes_per_sec: 0 };
    server.admission.set_volume(at(0), VolumeId(9), ClientId(1), Levels { base, ..Levels::default() });
    server.submit(at(0), segment(1, 0), 1000);
    marked(&mut server, at(0), segment(9, 0), Level::Burst, 500);
    server.grants(at(1));
    marked(&mut server, at(1), segment(9, 0), Level::Base, 1);
    assert!(server.admission.audit(at(1)).is_ok(), "{:?}", server.admission.audit(at(1)));
    let grants = server.grants(at(2));
    assert!((1001..=1500).contains(&grants[0].ticket), "{:?}", grants[0]);
}
