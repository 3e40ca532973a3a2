//! Why I/O of a volume waits, as the API says it.

use std::cmp::Reverse;

use base::{Instant, Stage};
use policies::admission::{AdmissionSettings, AdmissionStatus, Reason, Throttle, Waits};
use policies::slow_requests::{Direction, SlowRequest, SlowRequests};
use wire::api;

use crate::observe::Explained;
use crate::service::VolumeView;

/// The answer. The levels are those of the table: a volume that nobody has used yet has them, too.
pub fn explanation(view: VolumeView, explained: Explained) -> api::Explanation {
    let Explained { settings, server, volume, latency, slow, now } = explained;
    let slow_ns = |operation: &str| {
        let direction = Direction::ALL.into_iter().find(|direction| direction.name() == operation)?;
        slow.as_ref()?.threshold_ns(direction)
    };
    let latency = latency.into_iter().map(|latency| api::Latency {
        operation: latency.operation.into(),
        requests: latency.requests,
        p50_ns: latency.p50_ns,
        p99_ns: latency.p99_ns,
        slow_ns: slow_ns(latency.operation),
    });
    let started_requests = volume.as_ref().map_or(0, |volume| volume.started);
    let (waits, hot) = volume.map(|volume| (volume.waits, volume.hot_segments)).unwrap_or_default();
    api::Explanation {
        volume: view.row.name,
        clients: view.clients,
        levels: view.row.levels.into(),
        started_requests,
        waits: waits_of(&waits),
        hot_segments: hot.iter().map(|segment| segment.index).collect(),
        latency: latency.collect(),
        slow_reasons: slow.as_ref().map(slow_reasons).unwrap_or_default(),
        slow_requests: slow.iter().flat_map(|slow| slow.last().rev()).map(|one| slow_request(one, now)).collect(),
        server: admission(&settings, &server),
    }
}

/// What slow requests waited for, the most frequent reason first.
fn slow_reasons(slow: &SlowRequests) -> Vec<api::SlowReason> {
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

/// The reasons that occurred.
pub fn waits_of(waits: &Waits) -> Vec<api::Waiting> {
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
    sort(&mut waits);
    waits
}

/// What is waited for now comes first, then what cost most.
fn sort(waits: &mut [api::Waiting]) {
    waits.sort_by_key(|wait| Reverse((wait.waiting_requests > 0, wait.total_ns)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_now_comes_first() {
        let wait = |reason: &str, total_ns, waiting_requests| api::Waiting {
            reason: reason.into(),
            requests: 1,
            total_ns,
            longest_ns: total_ns,
            waiting_requests,
        };
        let mut waits = [wait("a", 9, 0), wait("b", 1, 1), wait("c", 10, 0), wait("d", 2, 1)];
        sort(&mut waits);
        assert_eq!(waits.each_ref().map(|wait| wait.reason.as_str()), ["d", "b", "c", "a"]);
    }
}
