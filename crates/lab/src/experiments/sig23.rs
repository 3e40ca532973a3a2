//! The figures of "DiffForward" (SIGMETRICS 2023), as far as they are about where traffic goes: who is asked for how much, and
//! when. Figure 2a: how unequal servers are; figure 13: what ways to spread writes make of that; figure 20a: how well bursts are
//! found.
//!
//! Figures 14 and 16: how long writes take.
//!
//! [`workload`] is the traffic, [`schemes`] are the ways to spread it, [`balance`] is what is made of it, [`detection`] compares
//! what was found with what was there. Nothing waits in these: a write counts at the server that takes it, at the time when it was
//! made. In [`latency`] the store's own agent sends writes to servers that are busy. The detector is the store's own ([`policies::burst`]). For figure 20a there can be a real
//! trace in place of the traffic.

pub mod balance;
pub mod detection;
mod judges;
pub mod latency;
mod parameters;
mod printed;
pub mod schemes;
pub mod workload;

use std::sync::Arc;
use std::time::Duration;

use base::GIB;
use policies::burst::{Average, BurstSettings, Cap};

use self::balance::Balance;
use self::detection::Detection;
use self::judges::*;
use self::latency::{Cluster, Latency};
use self::printed::*;
use self::schemes::{Geometry, Scheme};
use self::workload::{Traffic, Workload, writes_of};
use super::{Mechanism, Paper, Trace, figure};

pub use parameters::Parameters;

/// The paper.
#[derive(Clone, Debug)]
pub struct Sig23;

type Figure = figure::Figure<Sig23>;
type Case<'a> = figure::Case<'a, Sig23>;

/// Traffic, and what is done with it.
#[derive(Clone, Debug)]
pub struct Point {
    /// How it is spread, or how bursts are found.
    label: String,
    parameters: Parameters,
    source: Source,
    bench: Bench,
    requests: u64,
    seed: u64,
}

/// Whose traffic it is.
#[derive(Clone, Debug)]
enum Source {
    /// The morning's.
    W1,
    /// The afternoon's.
    W2,
    /// That of a real disk.
    Trace(Arc<Trace>),
}

/// What is looked at.
#[derive(Clone, Debug)]
enum Bench {
    /// How even servers are.
    Balance { scheme: Scheme, geometry: Geometry, bin_ms: u64 },
    /// Which bursts are found; without settings none is.
    Detection(Option<BurstSettings>),
    /// How long writes take where so much of servers' cards is used; without settings all of them go to owners.
    Latency { bursts: Option<BurstSettings>, in_turn: bool, utilization: f64 },
}

/// What came of a point.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// For each placement of segments.
    pub balances: Vec<Balance>,
    /// What of bursts was found.
    pub detection: Detection,
    /// How long writes took.
    pub latency: Latency,
}

impl Paper for Sig23 {
    const NAME: &'static str = "sig23";
    const FIGURES: &'static [Figure] = FIGURES;
    /// At most: the first so many writes. All of `seconds` are about as many.
    const REQUESTS: [u64; 2] = [2_000_000, 600_000];
    const TITLES: [&'static str; 2] = [
        "Against the paper's baselines, segmentation and migration; against bursts that are there",
        "Calibration: traffic was made after these",
    ];
    const SUMMARY: &'static str = "summary-sig23.md";
    const NO_LOAD: &'static str =
        "a trace of a disk takes the place of traffic in sig23/fig20a only: leave --trace out";

    type Parameters = Parameters;
    type Point = Point;
    type Measured = Measured;

    fn with(point: Point, requests: u64, seed: u64) -> Point {
        Point { requests, seed, ..point }
    }

    fn without(point: Point, mechanism: Mechanism) -> Point {
        let bench = match (mechanism, point.bench.clone()) {
            (Mechanism::BurstDetection, Bench::Balance { scheme: Scheme::DiffForward { .. }, geometry, bin_ms }) => {
                Bench::Balance { scheme: Scheme::Segmentation, geometry, bin_ms }
            }
            (Mechanism::BurstDetection, Bench::Detection(_)) => Bench::Detection(None),
            (Mechanism::BurstDetection, Bench::Latency { in_turn, utilization, .. }) => {
                Bench::Latency { bursts: None, in_turn, utilization }
            }
            (Mechanism::RoundRobin, Bench::Latency { bursts, utilization, .. }) => {
                Bench::Latency { bursts, in_turn: false, utilization }
            }
            (Mechanism::RoundRobin, Bench::Balance { scheme, geometry, bin_ms }) => {
                Bench::Balance { scheme: scheme.to_one_server(), geometry, bin_ms }
            }
            (_, bench) => bench,
        };
        let mut parameters = point.parameters.clone();
        if mechanism == Mechanism::Burst {
            (parameters.heavy_burst_share, parameters.burst_share) = (0.0, 0.0);
        }
        Point { bench, parameters, ..point }
    }

    fn replaying(point: Point, trace: &Arc<Trace>) -> Option<Point> {
        let is_detection = matches!(point.bench, Bench::Detection(_));
        is_detection.then(|| Point { source: Source::Trace(trace.clone()), ..point })
    }

    fn unlabelled(point: Point) -> Point {
        Point { label: String::new(), ..point }
    }

    fn measure(point: &Point, _clock: &dyn Fn() -> Duration) -> Measured {
        point.measure()
    }
}

/// Parameters that are not printed, on which all figures can depend.
const TRAFFIC: &[&str] =
    &["heavy_burst_mib", "burst_mib", "burst_sigma", "burst_seconds", "heavy_burst_share", "burst_share", "seconds"];
const DETECTION: &[&str] = &[
    "heavy_burst_mib",
    "burst_mib",
    "burst_sigma",
    "burst_seconds",
    "heavy_burst_share",
    "burst_share",
    "window_ms",
    "prototype_th_ms",
];

const LATENCY: &[&str] = &["heavy_burst_mib", "burst_mib", "burst_sigma", "burst_seconds", "window_ms", "behind_us"];

const FIGURES: &[Figure] = &[
    Figure {
        name: "sig23/fig2a",
        title: "how unequal servers are where volumes are not cut (calibration)",
        points: |parameters| {
            let whole = |bin_ms| Bench::Balance { scheme: Scheme::Segmentation, geometry: Geometry::WHOLE, bin_ms };
            let bins = [parameters.bin_ms, parameters.long_bin_ms];
            points(parameters, &bins.map(|bin_ms| (format!("volumes not cut, bins of {bin_ms} ms"), whole(bin_ms))))
        },
        judge: judge_fig2a,
        printed: &[&FIG2A_COV, &FIG2A_TIMES, &FIG2A_LONG_COV, &FIG2A_LONG_TIMES],
        sensitive: TRAFFIC,
    },
    Figure {
        name: "sig23/fig13",
        title: "how even servers are with segmentation, with migration, and with bursts spread over all",
        points: |parameters| {
            let Parameters { ewma_last, th_ms, prototype_th_ms, .. } = *parameters;
            let spread = |th_ms| Scheme::DiffForward { settings: text(parameters, th_ms), in_turn: true };
            let prototype = Scheme::DiffForward { settings: prototype(parameters), in_turn: true };
            let schemes = [
                ("segmentation".to_owned(), Scheme::Segmentation),
                ("migration by the last interval".to_owned(), Scheme::Migration { last: 1.0 }),
                ("migration by an average".to_owned(), Scheme::Migration { last: ewma_last }),
                (format!("DiffForward, TH of {th_ms} ms"), spread(th_ms)),
                (format!("DiffForward, TH of {prototype_th_ms} ms"), prototype),
            ];
            let geometry = Geometry { segment_bytes: Some(parameters.segment_gib * GIB) };
            let bin_ms = parameters.bin_ms;
            points(parameters, &schemes.map(|(label, scheme)| (label, Bench::Balance { scheme, geometry, bin_ms })))
        },
        judge: judge_fig13,
        printed: &[&FIG13_COV, &FIG13_TIMES, &FIG13_PROTOTYPE, &FIG13_MIGRATION, &FIG13_WORSE],
        sensitive: DETECTION,
    },
    Figure {
        name: "sig23/fig14",
        title: "how long writes take with segmentation, and with bursts spread over all",
        points: |parameters| {
            let Parameters { utilization, .. } = *parameters;
            points(parameters, &latencies(parameters, utilization))
        },
        judge: judge_fig14,
        printed: &[&FIG14_AVERAGE, &FIG14_P99],
        sensitive: LATENCY,
    },
    Figure {
        name: "sig23/fig16",
        title: "the same with other cards: how much of them is used",
        points: |parameters| {
            let each = parameters.utilizations.iter().flat_map(|utilization| latencies(parameters, *utilization));
            points_of(parameters, Source::W1, &each.collect::<Vec<_>>())
        },
        judge: judge_fig16,
        printed: &[&FIG16_AVERAGE, &FIG16_P99],
        sensitive: LATENCY,
    },
    Figure {
        name: "sig23/fig20a",
        title: "how many of the bursts are found, and how much that is none",
        points: |parameters| {
            let Parameters { th_ms, prototype_th_ms, .. } = *parameters;
            let prototype = prototype(parameters);
            let detectors = [
                (format!("TH of {prototype_th_ms} ms"), prototype),
                (
                    format!("TH of {prototype_th_ms} ms, QLEN left at TH"),
                    BurstSettings { cap: Cap::Threshold, ..prototype },
                ),
                (format!("TH of {th_ms} ms"), text(parameters, th_ms)),
            ];
            points(parameters, &detectors.map(|(label, settings)| (label, Bench::Detection(Some(settings)))))
        },
        judge: judge_fig20a,
        printed: &[&FIG20A_RECALL, &FIG20A_PRECISION],
        sensitive: DETECTION,
    },
];

/// The detector as the text has it, and as it was run by those who made it.
fn text(parameters: &Parameters, th_ms: u64) -> BurstSettings {
    tuned(parameters, th_ms, BurstSettings::SENSITIVE)
}

fn prototype(parameters: &Parameters) -> BurstSettings {
    tuned(parameters, parameters.prototype_th_ms, BurstSettings::EXACT)
}

fn tuned(parameters: &Parameters, th_ms: u64, settings: BurstSettings) -> BurstSettings {
    let average = match settings.average {
        Average::Measured { percent, .. } => {
            Average::Measured { window: Duration::from_millis(parameters.window_ms), percent }
        }
        other => other,
    };
    BurstSettings { average, threshold: Duration::from_millis(th_ms), ..settings }
}

/// Segmentation, and DiffForward with the text's threshold, on cards of which so much is used.
fn latencies(parameters: &Parameters, utilization: f64) -> [(String, Bench); 2] {
    let th_ms = parameters.th_ms;
    let of = |name: &str, bursts| {
        let label = format!("{name}, {:.0}% used", utilization * 100.0);
        (label, Bench::Latency { bursts, in_turn: true, utilization })
    };
    [of("segmentation", None), of(&format!("DiffForward, TH of {th_ms} ms"), Some(text(parameters, th_ms)))]
}

/// Each with the morning's traffic, then each with the afternoon's.
fn points(parameters: &Parameters, each: &[(String, Bench)]) -> Vec<Point> {
    [Source::W1, Source::W2].into_iter().flat_map(|source| points_of(parameters, source, each)).collect()
}

fn points_of(parameters: &Parameters, source: Source, each: &[(String, Bench)]) -> Vec<Point> {
    let of = |(label, bench): &(String, Bench)| Point {
        label: label.clone(),
        parameters: parameters.clone(),
        source: source.clone(),
        bench: bench.clone(),
        requests: 0,
        seed: 0,
    };
    each.iter().map(of).collect()
}

impl Point {
    /// As tables have it.
    fn name(&self) -> String {
        let source = match &self.source {
            Source::W1 => "W1",
            Source::W2 => "W2",
            Source::Trace(_) => "trace",
        };
        format!("{source}, {}", self.label)
    }

    fn traffic(&self) -> Traffic {
        let mut traffic = match &self.source {
            Source::W1 => Workload::w1(&self.parameters).make(self.seed),
            Source::W2 => Workload::w2(&self.parameters).make(self.seed),
            Source::Trace(trace) => writes_of(trace),
        };
        traffic.writes.truncate(self.requests as usize);
        traffic
    }

    /// Makes the traffic, and looks at it.
    pub fn measure(&self) -> Measured {
        let traffic = self.traffic();
        let Parameters { servers, placements, .. } = self.parameters;
        match &self.bench {
            Bench::Balance { scheme, geometry, bin_ms } => {
                let of = |seed| Balance::of(&traffic, *scheme, *geometry, servers, bin_ms * 1_000_000, seed);
                Measured { balances: (0..placements).map(of).collect(), ..Measured::default() }
            }
            Bench::Detection(settings) => {
                let each = traffic.by_volume().into_iter().map(|writes| Detection::of(&writes, *settings));
                Measured { detection: each.reduce(Detection::and).unwrap_or_default(), ..Measured::default() }
            }
            Bench::Latency { bursts, in_turn, utilization } => {
                let behind = Duration::from_micros(self.parameters.behind_us);
                let (bursts, in_turn, utilization) = (*bursts, *in_turn, *utilization);
                let cluster = Cluster { servers, utilization, bursts, in_turn, behind };
                Measured { latency: Latency::of(&traffic, cluster, self.seed), ..Measured::default() }
            }
        }
    }
}
