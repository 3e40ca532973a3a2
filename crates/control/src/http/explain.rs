//! Why I/O of a volume waits, as the API says it.

use wire::api;
use wire::observe::Explained;

use crate::service::VolumeView;

/// The answer. The levels are those of the table: a volume that nobody has used yet has them, too.
pub fn explanation(view: VolumeView, explained: Explained) -> api::Explanation {
    let latency = explained.latency.iter().map(|timed| api::Latency {
        operation: timed.operation.to_string(),
        requests: timed.requests(),
        p50_ns: timed.quantile(500_000),
        p99_ns: timed.quantile(990_000),
        slow_ns: timed.slow_ns,
    });
    api::Explanation {
        volume: view.row.name,
        clients: view.clients,
        levels: view.row.levels.into(),
        started_requests: explained.started_requests,
        latency: latency.collect(),
        waits: explained.waits,
        hot_segments: explained.hot_segments,
        slow_reasons: explained.slow_reasons,
        slow_requests: explained.slow_requests,
        server: explained.admission,
        engines: explained.engines,
        forwarding: explained.forwarding,
    }
}
