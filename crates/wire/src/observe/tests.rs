//! What is said is heard, in parts if need be; what cannot be is refused; what several say is added up.

use base::ErrorKind;
use base::limits::OBSERVED_MAX;

use super::*;

fn waiting(reason: &str, requests: u64, waiting_requests: u64) -> api::Waiting {
    api::Waiting { reason: reason.into(), requests, total_ns: requests * 10, longest_ns: requests, waiting_requests }
}

fn histogram(values: &[u64]) -> Histogram {
    let mut histogram = Histogram::new();
    values.iter().for_each(|value| histogram.record(*value));
    histogram
}

fn counters(operation: &'static str, values: &[u64]) -> RequestCounters {
    let latency = histogram(values);
    RequestCounters {
        operation: operation.into(),
        requests: latency.count(),
        bytes: latency.count() * 4096,
        errors: 1,
        latency: Distribution::from(&latency),
        latency_ns: latency.buckets().collect(),
    }
}

fn slow(reason: &str, requests: u64) -> api::SlowReason {
    api::SlowReason { operation: "write".into(), reason: reason.into(), requests, total_ns: 9, longest_ns: 8 }
}

fn volume(id: u64) -> VolumeCounters {
    VolumeCounters {
        volume: VolumeId(id),
        name: format!("disk-{id}"),
        clients: 2,
        requests: vec![counters("write", &[3, 20_000])],
        waits: vec![waiting("burst_level", 3, 1)],
        slow: vec![slow("append", 2)],
    }
}

fn admission(waiting_requests: u64) -> api::Admission {
    api::Admission {
        throttle: "dual-buckets".into(),
        bandwidth_bytes_per_second: Some(1 << 20),
        is_learned: false,
        cap_bytes_per_second: None,
        main_bytes: Some(-5),
        main_size_bytes: Some(10),
        cheque_bytes: Some(7),
        cheque_size_bytes: Some(20),
        waiting_requests,
        active_segments: 2,
        hot_segments: 1,
        started_bytes: 4096,
        overdrawn_bytes: 512,
        p95_ns: Some(1_000),
        p99999_ns: None,
        available_bytes_per_second: Some(100),
    }
}

pub(super) fn full() -> Snapshot {
    Snapshot {
        name: "s1".into(),
        store: "00ff".into(),
        incarnation: 7,
        uptime_seconds: 1.5,
        traffic: vec![volume(3)],
        tenants: vec![tenant()],
        served: vec![counters("read", &[5])],
        stages: vec![("journal".into(), Distribution::from(&histogram(&[20_000])))],
        directories: vec![api::Directory {
            path: "/disk".into(),
            state: "healthy".into(),
            free_bytes: 1,
            behind_bytes: 2,
        }],
        space: api::Space { capacity_bytes: 5, used_bytes: 4, garbage_bytes: 3, free_bytes: 2, kept_bytes: 1 },
        memory: api::Memory { used_bytes: 10, limit_bytes: 20 },
        scrub: api::Scrub { rounds: 3, lost_blocks: 1, ..api::Scrub::default() },
        connections: 4,
        nbd: vec!["nbd://127.0.0.1:10809".into()],
        broken_logs: 1,
        full_engines: 1,
        lost_reads: 2,
        admission: Some(admission(2)),
        slow_engines: vec![SlowEngine { engine: 4, part: "link".into() }],
        metrics: vec![Metric::labelled("queue_depth", "What waits.", "queue", "disk", 3.0)],
        ..Snapshot::default()
    }
}

fn tenant() -> api::Tenant {
    api::Tenant {
        name: "shop".into(),
        volumes: vec!["disk-3".into()],
        agent: String::new(),
        base_iops: 100,
        base_bytes_per_second: 200,
        base_percent: 50.0,
        started: 9,
        throttled: 8,
        reclaimed: 1,
        from_reserve: 2,
        waiting: 3,
        waited_ns: 4_000,
        longest_ns: 3_000,
        burst_windows: 7,
        bursts_with: vec![api::BurstsWith { name: "batch".into(), percent: 62.5 }],
        burst_iops: 300,
        burst_bytes_per_second: 400,
        marked_base: 5,
        marked_burst: 4,
        waits: vec![waiting("tenant_level", 2, 1)],
    }
}

pub(super) fn full_explanation() -> Explained {
    Explained {
        incarnation: 7,
        admission: Some(admission(2)),
        started_requests: 5,
        waits: vec![waiting("burst_level", 3, 1)],
        hot_segments: vec![2],
        latency: vec![Timed::of("write", &histogram(&[10, 20, 30]), Some(25))],
        slow_reasons: vec![slow("append", 2)],
        slow_requests: vec![slow_request(1)],
        forwarding: Some(bursts(100)),
        engines: vec![],
    }
}

fn bursts(written_bytes: u64) -> api::ForwardedBursts {
    api::ForwardedBursts {
        mode: "auto".into(),
        has_logs: true,
        spread_percent: Some(50),
        written_bytes,
        burst_bytes: 50,
        rescheduled_bytes: 10,
        merged_bytes: 20,
        waiting_bytes: 40,
        waiting_entries: 4,
        lag_ns: 1_000,
        log_reads: 3,
        waits: 2,
        failed_merges: 1,
        threshold_ns: 50_000_000,
    }
}

fn slow_request(ago_ns: u64) -> api::SlowRequest {
    api::SlowRequest {
        operation: "write".into(),
        offset: 0,
        bytes: 4096,
        ago_ns,
        total_ns: 30,
        reason: "append".into(),
        beyond_ns: 20,
        detail: None,
        stages: vec![api::StageTime { stage: "append".into(), ns: 29 }],
    }
}

/// The text of version 1: processes of two builds understand each other for as long as no field of it changes its meaning.
#[test]
fn golden() {
    let snapshot = bytes::part_of(full(), VolumeId(0)).unwrap();
    let explained = bytes::of_explained(&full_explanation()).unwrap();
    let text = [snapshot, explained].map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()).join("\n") + "\n";
    assert_eq!(text, include_str!("golden.txt"), "\n{text}");
}

#[test]
fn what_is_said_is_heard() {
    let heard = bytes::snapshot(&bytes::part_of(full(), VolumeId(0)).unwrap()).unwrap();
    assert_eq!(heard, full());
    let heard = bytes::explained(&bytes::of_explained(&full_explanation()).unwrap()).unwrap();
    assert_eq!(heard, full_explanation());
    // Of two agents that say to have a volume the one counts that has written more; who has none says nothing of bursts.
    for others in [vec![90, 80], vec![80, 90], vec![]] {
        let mut sum = Explained::default();
        others
            .iter()
            .for_each(|written| sum.add(&Explained { forwarding: Some(bursts(*written)), ..full_explanation() }));
        sum.add(&Explained::default());
        assert_eq!(sum.forwarding, others.first().map(|_| bursts(90)));
    }
    // Of several agents it is said which one a tenant is at.
    let mut sum = Snapshot::default();
    sum.add(&full());
    assert_eq!(sum.tenants, [api::Tenant { agent: "s1".into(), ..tenant() }]);
    // Another version knows less, or more.
    assert_eq!(bytes::snapshot(b"{}").unwrap(), Snapshot::default());
    let more = bytes::snapshot(br#"{"incarnation": 3, "mood": {"good": [true]}}"#).unwrap();
    assert_eq!(more, Snapshot { incarnation: 3, ..Snapshot::default() });
}

#[test]
fn more_volumes_than_a_frame_holds_are_said_in_parts() {
    let count = 5_000;
    let all = Snapshot { traffic: (1..=count).rev().map(volume).collect(), ..full() };
    let (mut heard, mut after, mut parts) = (Vec::new(), VolumeId(0), 0);
    loop {
        let bytes = bytes::part_of(all.clone(), after).unwrap();
        assert!(bytes.len() <= OBSERVED_MAX, "{}", bytes.len());
        let part = bytes::snapshot(&bytes).unwrap();
        assert_eq!(part.metrics, all.metrics);
        parts += 1;
        heard.extend(part.traffic);
        if !part.has_more {
            break;
        }
        after = heard.last().unwrap().volume;
    }
    assert!(parts > 1, "one part has all");
    assert_eq!(heard, (1..=count).map(volume).collect::<Vec<_>>());
    let without = bytes::snapshot(&bytes::part_of(all, bytes::NO_VOLUMES).unwrap()).unwrap();
    assert!(without.traffic.is_empty() && !without.has_more);
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |change: &dyn Fn(&mut Snapshot)| {
        let mut snapshot = full();
        change(&mut snapshot);
        let bytes = serde_json::to_vec(&snapshot).unwrap();
        bytes::snapshot(&bytes).err().map(|error| error.kind)
    };
    assert_eq!(refused(&|_| ()), None);
    let io = Some(ErrorKind::Io);
    assert_eq!(refused(&|snapshot| snapshot.metrics[0].name = "two words".into()), io);
    assert_eq!(refused(&|snapshot| snapshot.metrics[0].name = "".into()), io);
    assert_eq!(refused(&|snapshot| snapshot.metrics[0].help = "a\nlevee_up 1".into()), io);
    assert_eq!(refused(&|snapshot| snapshot.metrics[0].labels[0].0 = "a=\"".into()), io);
    assert_eq!(refused(&|snapshot| snapshot.slow_engines[0].part = "<b>".into()), io);
    assert_eq!(refused(&|snapshot| snapshot.stages[0].1.below = vec![0; 100]), io);
    assert_eq!(refused(&|snapshot| snapshot.served[0].operation = "}".into()), io);
    assert_eq!(refused(&|snapshot| snapshot.traffic[0].requests[0].latency_ns = vec![(3, 1), (3, 1)]), io);
    assert_eq!(refused(&|snapshot| snapshot.traffic = vec![volume(2), volume(2)]), io);
    for text in ["", "[", "null", r#"{"incarnation": -1}"#, r#"{"traffic": [{}]}"#, r#"{"uptime_seconds": 1e999}"#] {
        assert_eq!(bytes::snapshot(text.as_bytes()).unwrap_err().kind, ErrorKind::Io, "{text}");
        assert!(text.starts_with('{') || bytes::explained(text.as_bytes()).is_err(), "{text}");
    }
    let too_long = Snapshot { nbd: vec!["x".repeat(OBSERVED_MAX)], ..full() };
    assert_eq!(bytes::part_of(too_long, VolumeId(0)).unwrap_err().kind, ErrorKind::Internal);
}

#[test]
fn counters_of_several_add_up() {
    let mut all = Snapshot::default();
    all.add(&full());
    let other = Snapshot {
        traffic: vec![volume(3), volume(4)],
        admission: Some(api::Admission { bandwidth_bytes_per_second: None, p95_ns: Some(5_000), ..admission(3) }),
        scrub: api::Scrub { is_running: true, rounds: 1, ..api::Scrub::default() },
        ..full()
    };
    all.add(&other);
    assert_eq!(all.traffic.iter().map(|volume| volume.clients).collect::<Vec<_>>(), [4, 2]);
    let write = &all.traffic[0].requests[0];
    assert_eq!((write.requests, write.bytes, write.errors), (4, 16_384, 2));
    assert_eq!(write.latency_ns, counters("write", &[3, 3, 20_000, 20_000]).latency_ns);
    assert_eq!(write.latency, counters("write", &[3, 3, 20_000, 20_000]).latency);
    assert_eq!(all.traffic[0].waits, [api::Waiting { longest_ns: 3, total_ns: 60, ..waiting("burst_level", 6, 2) }]);
    assert_eq!(all.traffic[0].slow[0].requests, 4);
    assert_eq!((all.connections, all.lost_reads, all.memory.used_bytes, all.nbd.len()), (8, 4, 20, 2));
    assert_eq!((all.scrub.rounds, all.scrub.is_running, all.scrub.lost_blocks), (4, true, 1));
    let admission = all.admission.clone().unwrap();
    // What one part does not know the sum does not.
    assert_eq!((admission.waiting_requests, admission.bandwidth_bytes_per_second), (5, None));
    assert_eq!((admission.main_bytes, admission.p95_ns), (Some(-10), Some(5_000)));
    // Whatever others say, nobody falls over it.
    let absurd = Snapshot { connections: u64::MAX, ..Snapshot::default() };
    all.add(&absurd);
    assert_eq!(all.connections, u64::MAX);
}

#[test]
fn reasons_of_several_engines_are_one_list() {
    let mut all = full_explanation();
    let other = Explained {
        waits: vec![waiting("hot_segment", 1, 2), waiting("burst_level", 1, 0)],
        hot_segments: vec![1, 2],
        latency: vec![Timed::of("write", &histogram(&[1_000]), Some(900)), Timed::of("read", &histogram(&[1]), None)],
        slow_requests: (0..SLOW_TOLD_MAX as u64).map(|ago| slow_request(2 * ago)).collect(),
        ..full_explanation()
    };
    all.add(&other);
    // Both are waited for now; what cost most comes first.
    let reasons: Vec<_> = all.waits.iter().map(|wait| (wait.reason.as_str(), wait.requests)).collect();
    assert_eq!(reasons, [("burst_level", 4), ("hot_segment", 1)]);
    assert_eq!((all.hot_segments.as_slice(), all.started_requests), (&[1, 2][..], 10));
    let write = &all.latency[0];
    assert_eq!((write.requests(), write.quantile(500_000), write.quantile(1_000_000)), (4, 21, 1_000));
    assert_eq!((write.slow_ns, all.latency.len()), (Some(900), 2));
    let ages: Vec<u64> = all.slow_requests.iter().map(|slow| slow.ago_ns).collect();
    assert!(ages.len() == SLOW_TOLD_MAX && ages.is_sorted() && ages[..3] == [0, 1, 2], "{ages:?}");
}

#[test]
fn percentiles_are_those_of_the_histogram() {
    let values = histogram(&[1_000, 1_000, 1_000_000]);
    let timed = Timed::of("write", &values, None);
    for per_million in [1, 500_000, 990_000, 1_000_000] {
        assert_eq!(timed.quantile(per_million), values.quantile(per_million));
    }
    assert_eq!((timed.requests(), quantile(&[], 500_000)), (3, 0));
}
