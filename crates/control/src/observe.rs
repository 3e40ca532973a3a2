//! What policies count, in the words of the API: for whoever implements [`wire::Observer`].

use std::cmp::Reverse;

use base::{Instant, Stage};
use policies::admission::{AdmissionSettings, AdmissionStatus, Throttle};
use policies::slow_requests::{Direction, SlowRequest, SlowRequests};
use policies::waits::{Reason, Waits};
use wire::api;

/// How the admission of a block server stands.
pub fn admission(settings: &AdmissionSettings, server: &AdmissionStatus) -> api::Admission {
    let limit = server.limit_bytes_per_sec;
    let sized = Some(()).filter(|()| server.is_limited);
    api::Admission {
        throttle: throttle_name(settings.throttle).into(),
        bandwidth_bytes_per_second: limit,
        cap_bytes_per_second: match settings.throttle {
            Throttle::ClientCap(cap) | Throttle::SegmentCap(cap) => Some(cap),
            _ => None,
        },
        is_learned: settings.learns.is_some() && settings.throttle != Throttle::Off,
        main_bytes: sized.map(|()| server.main),
        main_size_bytes: sized.map(|()| server.main_size),
        cheque_bytes: sized.map(|()| server.cheque),
        cheque_size_bytes: sized.map(|()| server.cheque_size),
        waiting_requests: server.waiting as u64,
        active_segments: server.active_segments,
        hot_segments: server.hot_segments,
        started_bytes: server.started_bytes,
        overdrawn_bytes: server.overdrawn_bytes,
        p95_ns: server.p95_ns,
        p99999_ns: server.p99999_ns,
        available_bytes_per_second: server.available_bytes_per_sec,
    }
}

/// What a throttle is called in settings and answers.
pub fn throttle_name(throttle: Throttle) -> &'static str {
    match throttle {
        Throttle::Off => "off",
        Throttle::OneBucket => "one-bucket",
        Throttle::DualBuckets => "dual-buckets",
        Throttle::ClientCap(_) => "client-cap",
        Throttle::SegmentCap(_) => "segment-cap",
    }
}

/// Why requests waited: the reasons that occurred.
pub fn waits(waits: &Waits) -> Vec<api::Waiting> {
    let occurred = Reason::ALL.iter().map(|reason| (reason, waits.of(*reason)));
    let mut waits: Vec<api::Waiting> = occurred
        .filter(|(_, wait)| wait.requests > 0 || wait.now > 0)
        .map(|(reason, wait)| api::Waiting {
            reason: reason.name().into(),
            requests: wait.requests,
            total_ns: wait.total_ns,
            longest_ns: wait.max_ns,
            waiting_requests: wait.now,
        })
        .collect();
    api::Waiting::sort(&mut waits);
    waits
}

/// What slow requests waited for, the most frequent reason first; the reasons that occurred.
pub fn slow_reasons(slow: &SlowRequests) -> Vec<api::SlowReason> {
    let all = Direction::ALL.into_iter().flat_map(|direction| Stage::ALL.map(|stage| (direction, stage)));
    let mut reasons: Vec<api::SlowReason> = all
        .map(|(direction, stage)| (direction, stage, slow.blame(direction, stage)))
        .filter(|(.., blame)| blame.requests > 0)
        .map(|(direction, stage, blame)| api::SlowReason {
            operation: direction.name().into(),
            reason: stage.name().into(),
            requests: blame.requests,
            total_ns: blame.total_ns,
            longest_ns: blame.max_ns,
        })
        .collect();
    reasons.sort_by_key(|reason| Reverse(reason.requests));
    reasons
}

/// The last slow requests, the latest first.
pub fn slow_requests(slow: &SlowRequests, now: Instant) -> Vec<api::SlowRequest> {
    slow.last().rev().map(|one| slow_request(one, now)).collect()
}

fn slow_request(slow: &SlowRequest, now: Instant) -> api::SlowRequest {
    let passage = &slow.request.passage;
    let detail = match slow.reason {
        Stage::Tokens => passage.tokens,
        Stage::Busy => passage.task,
        _ => "",
    };
    let took = Stage::ALL.into_iter().filter(|stage| passage.of(*stage) > 0);
    api::SlowRequest {
        operation: slow.request.direction.name().into(),
        offset: slow.request.offset,
        bytes: slow.request.len,
        ago_ns: now.nanos_since(slow.at),
        total_ns: passage.total_ns(),
        reason: slow.reason.name().into(),
        beyond_ns: slow.beyond_ns,
        detail: (!detail.is_empty()).then(|| detail.into()),
        stages: took.map(|stage| api::StageTime { stage: stage.name().into(), ns: passage.of(stage) }).collect(),
    }
}
