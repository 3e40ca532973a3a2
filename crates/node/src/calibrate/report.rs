//! What a calibration came to: numbers for programs, lines for the configuration, sentences for doubts.

use std::time::Duration;

use base::MIB;
use base::units::format_size;
use policies::admission::calibration::{Doubt, Fit, Found, Point};
use policies::slow_requests::Direction;
use serde::Serialize;

use super::CalibrateOptions;

/// Rates below this are not a setting.
const RATE_MIN: u64 = MIB;

/// What was found. Rates are in bytes per second, times in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was asked for.
    pub mix: String,
    /// To how many directories a write went.
    pub copies: usize,
    /// Bytes of each directory's scratch file that were used.
    pub scratch_bytes: u64,
    /// How long all took.
    pub seconds: f64,
    /// From how many times its time alone on latency has taken off, in percent.
    pub takeoff_percent: u64,
    /// What requests take alone.
    pub alone: Vec<AloneRow>,
    /// What was tried, by rate.
    pub points: Vec<PointRow>,
    /// A little below the highest rate at which latency was flat; none if there is no such rate.
    pub knee: Option<u64>,
    /// The same in requests per second.
    pub knee_requests: Option<f64>,
    /// `mu`: what is delivered at most.
    pub service: u64,
    /// The curve of figure 6.
    pub curve: Option<Curve>,
    /// What to put into the configuration; none where there is nothing to put.
    pub lines: Option<Lines>,
    /// What speaks against the result.
    pub doubts: Vec<String>,
    /// Bytes that were read and written in each directory during the search.
    pub moved: Vec<[u64; 2]>,
}

/// What requests of a kind take alone.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct AloneRow {
    /// `read` or `write`.
    pub direction: &'static str,
    /// Their size.
    pub bytes: u64,
    /// How many there were.
    pub requests: u64,
    /// The median.
    pub p50_us: f64,
    /// The 95th percentile.
    pub p95_us: f64,
}

/// One rate that was tried.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PointRow {
    /// What was asked for.
    pub offered: u64,
    /// What was delivered in time.
    pub delivered: u64,
    /// Requests that were.
    pub requests: f64,
    /// The median of what they took.
    pub p50_us: f64,
    /// The 95th percentile.
    pub p95_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The 95th percentile over that of what their like take alone.
    pub stretch: f64,
    /// Whether requests came faster than they were done.
    pub outran: bool,
    /// Whether latency has taken off.
    pub has_taken_off: bool,
}

/// `P95 = w0 + k x bytes x 3 / (mu - rate)`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Curve {
    /// The device's own latency.
    pub w0_us: f64,
    /// What of an ideal queue's wait there is.
    pub k: f64,
    /// Bytes of a request in the mean.
    pub mean_bytes: f64,
    /// How far off it is, in the median of the points, in percent.
    pub off_percent: f64,
    #[serde(skip)]
    fit: Fit,
}

/// What to put into `[admission]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Lines {
    /// `bandwidth`.
    pub bandwidth: u64,
    /// `service_bandwidth`.
    pub service_bandwidth: u64,
    /// `headroom`.
    pub headroom: u64,
    /// `operation_cost`.
    pub operation_cost: u64,
}

impl Report {
    pub(super) fn new(
        options: &CalibrateOptions,
        found: &Found,
        scratch_bytes: u64,
        moved: Vec<[u64; 2]>,
        took: Duration,
    ) -> Report {
        let per_request = options.mix.mean_bytes();
        let mut doubts: Vec<String> = found.doubts.iter().map(said).collect();
        let lines = found.knee.map(|knee| Lines::of(knee, found.mu, per_request, options.operation_bytes));
        let lines = lines.filter(|lines| {
            if lines.bandwidth < RATE_MIN {
                doubts.push(format!(
                    "the knee is below {}, the least that a store can be given as a bandwidth: leave it at \"auto\"",
                    format_size(RATE_MIN)
                ));
            }
            lines.bandwidth >= RATE_MIN
        });
        Report {
            mix: options.mix.to_string(),
            copies: options.copies,
            scratch_bytes,
            seconds: took.as_secs_f64(),
            takeoff_percent: options.takeoff_percent,
            alone: alone_of(found),
            points: found.points.iter().map(PointRow::of).collect(),
            knee: found.knee.map(|knee| knee as u64),
            knee_requests: found.knee.map(|knee| knee / per_request),
            service: found.mu as u64,
            curve: found.fit.map(Curve::of),
            lines,
            doubts,
            moved,
        }
    }
}

impl Lines {
    /// Tokens of a request are its bytes and what an operation costs besides. What is between the knee and `mu` is what
    /// the estimate leaves alone: at the knee nothing is left for the background.
    fn of(knee: f64, mu: f64, bytes_per_request: f64, operation_bytes: u64) -> Lines {
        let tokens = 1.0 + operation_bytes as f64 / bytes_per_request;
        let [bandwidth, service] = [knee, mu].map(|rate| rounded((rate * tokens) as u64));
        let service_bandwidth = service.max(bandwidth);
        Lines { bandwidth, service_bandwidth, headroom: service_bandwidth - bandwidth, operation_cost: operation_bytes }
    }

    /// As a configuration file has them.
    pub fn toml(&self) -> String {
        let line = |key: &str, bytes: u64, what: &str| {
            format!("{:32}# {}/s: {what}", format!("{key} = {bytes}"), format_size(bytes))
        };
        let mut lines = vec![
            "[admission]".to_owned(),
            line("bandwidth", self.bandwidth, "a little below the knee"),
            line("service_bandwidth", self.service_bandwidth, "what the disks deliver at most"),
            line("headroom", self.headroom, "what is between the two"),
        ];
        if self.operation_cost > 0 {
            lines.push(format!("operation_cost = {}", self.operation_cost));
        }
        lines.join("\n")
    }
}

/// Down to three digits: more would say that more is known.
fn rounded(bytes: u64) -> u64 {
    let unit = 10u64.pow(bytes.max(1).ilog10().saturating_sub(2));
    bytes / unit * unit
}

impl PointRow {
    /// A point as people and programs read it.
    pub fn of(point: &Point) -> PointRow {
        PointRow {
            offered: point.offered_bytes_per_sec as u64,
            delivered: point.delivered_bytes_per_sec as u64,
            requests: point.requests_per_sec,
            p50_us: us(point.p50_ns),
            p95_us: us(point.p95_ns),
            p99_us: us(point.p99_ns),
            stretch: point.stretch_percent as f64 / 100.0,
            outran: point.outran,
            has_taken_off: point.has_taken_off,
        }
    }
}

impl Curve {
    fn of(fit: Fit) -> Curve {
        let Fit { w0_ns, k, mean_bytes, off_percent, .. } = fit;
        Curve { w0_us: us(w0_ns), k, mean_bytes, off_percent, fit }
    }

    /// The 95th percentile in microseconds at a rate in bytes per second; none where the curve has no end.
    pub fn p95_us(&self, rate: f64) -> Option<f64> {
        self.fit.p95_ns(rate).map(|ns| ns / 1000.0)
    }
}

fn alone_of(found: &Found) -> Vec<AloneRow> {
    let row = |class: &policies::admission::calibration::AloneClass| AloneRow {
        direction: if class.direction == Direction::Read { "read" } else { "write" },
        bytes: class.bytes,
        requests: class.requests,
        p50_us: us(class.p50_ns),
        p95_us: us(class.p95_ns),
    };
    found.alone.classes().iter().map(row).collect()
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

/// A doubt in a sentence.
fn said(doubt: &Doubt) -> String {
    match doubt {
        Doubt::IdleChanged(before, after) => format!(
            "a request that was alone took {:.0} us before and {:.0} us after (medians): somebody else uses these disks, or \
             they have become slower. Try again when they are idle",
            us(*before),
            us(*after)
        ),
        Doubt::Slower(first, last) => format!(
            "the disks delivered {}/s at first and {}/s at the end: they had credits saved up, somebody else uses them, or \
             they have become slower. The second number is what counts here",
            format_size(*first),
            format_size(*last)
        ),
        Doubt::NotProven => "the rate was not held when it was asked for longer, or there was no time to see: more time \
                             with --seconds helps"
            .into(),
        Doubt::NeverTookOff => "latency never took off: the knee is at this rate or above. More time with --seconds helps".into(),
        Doubt::NeverFlat => "latency had taken off at every rate that was tried: somebody else uses these disks, or they \
                             are too slow to be measured in this time. Try again when they are idle, or with more --seconds"
            .into(),
        Doubt::NotOffered(made, wanted) => format!(
            "this machine made {made} requests per second where {wanted} were wanted: its processors are the limit, not the \
             disks"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    #[test]
    fn the_lines_are_a_configuration() {
        for (knee, mu, operation_bytes) in
            [(123_456_789.0, 456e6, 0), (5e6, 5e6, 4096), (1.1e6, 1e9, 0), (2_222_222_222.0, 2_400_000_000.0, 1 << 20)]
        {
            let lines = Lines::of(knee, mu, 25_000.0, operation_bytes);
            let mut settings = Settings::from_toml(&lines.toml()).unwrap();
            settings.directories.push("/disk".into());
            let admission = settings.resolve().unwrap().admission;
            assert_eq!(admission.limit_bytes_per_sec, lines.bandwidth);
            assert_eq!(admission.operation_bytes, operation_bytes);
            assert_eq!(admission.estimator.service_bytes_per_sec, lines.service_bandwidth);
            assert_eq!(admission.estimator.headroom_bytes_per_sec, lines.service_bandwidth - lines.bandwidth);
            assert!(lines.bandwidth as f64 <= knee * (1.0 + operation_bytes as f64 / 25_000.0));
        }
        assert_eq!(rounded(123_456), 123_000);
        assert_eq!([0, 7, 99, 101].map(rounded), [0, 7, 99, 101]);
    }
}
