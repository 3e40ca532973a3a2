//! The figures: their points, and what each depends on.

use std::time::Duration;

use policies::burst::{Average, BurstSettings, Cap};
use policies::forwarding::{Limits, Pace};

use super::geometry::Geometry;
use super::homes::INTERVAL_NS;
use super::judges::*;
use super::latency::{Auto, Merging};
use super::printed::*;
use super::schemes::Scheme;
use super::{Bench, Figure, Parameters, Point, Replicated, Source};

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
const READ: &[&str] =
    &["heavy_burst_mib", "burst_mib", "burst_sigma", "burst_seconds", "window_ms", "behind_us", "read_again_writes"];
const REPLICATED: &[&str] =
    &["heavy_burst_mib", "burst_mib", "burst_sigma", "burst_seconds", "window_ms", "behind_us", "change_bytes"];

pub(super) const FIGURES: &[Figure] = &[
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
        name: "sig23/fig2d",
        title: "how long writes take where volumes are not cut, and how much of cards is used",
        points: |parameters| {
            let of =
                |utilization: &f64| latency("volumes not cut", Scheme::Segmentation, Geometry::WHOLE, *utilization);
            points_of(parameters, Source::W1, &parameters.utilizations.iter().map(of).collect::<Vec<_>>())
        },
        judge: judge_fig2d,
        printed: &[&FIG2D_TIMES, &FIG2D_STEPS],
        sensitive: LATENCY,
    },
    Figure {
        name: "sig23/fig5",
        title: "what segmentation, migration and replication make of it",
        points: |parameters| {
            let each = sizes(parameters, Geometry::paper(parameters.segment_gib)).into_iter();
            // Nothing of bursts, the fourth each time; and replication of volumes that are not cut.
            let others = each.take(8).enumerate().filter(|(at, _)| at % 4 < 3).map(|(_, one)| one);
            let each = others.chain([replication(parameters, Geometry::WHOLE, parameters.utilization)]);
            points_of(parameters, Source::W1, &each.collect::<Vec<_>>())
        },
        judge: judge_fig5,
        printed: &[
            &FIG5_COV,
            &FIG5_TIMES,
            &FIG5_MIGRATION,
            &FIG5_REPLICATION_COV,
            &FIG5_REPLICATION_AVERAGE,
            &FIG5_REPLICATION_P99,
        ],
        sensitive: REPLICATED,
    },
    Figure {
        name: "sig23/predictions",
        title: "how wrong predictions of volumes' traffic are, which migration goes by",
        points: |parameters| {
            let of = |interval_ms| (format!("intervals of {interval_ms} ms"), Bench::Prediction { interval_ms });
            points_of(parameters, Source::W1, &[of(INTERVAL_NS / 1_000_000), of(parameters.bin_ms)])
        },
        judge: judge_predictions,
        printed: &[&PREDICTIONS_LONG, &PREDICTIONS_SHORT],
        sensitive: TRAFFIC,
    },
    Figure {
        name: "sig23/fig12",
        title: "how far the most loaded server is from the least loaded one, and how high its traffic gets",
        points: |parameters| points(parameters, &balances(parameters)),
        judge: judge_fig12,
        printed: &[&FIG12_RANGE, &FIG12_MIGRATION, &FIG12_REPLICATION, &FIG12_PEAK],
        sensitive: DETECTION,
    },
    Figure {
        name: "sig23/fig13",
        title: "how even servers are with segmentation, with migration, and with bursts spread over all",
        points: |parameters| points(parameters, &balances(parameters)),
        judge: judge_fig13,
        printed: &[&FIG13_COV, &FIG13_TIMES, &FIG13_PROTOTYPE, &FIG13_MIGRATION, &FIG13_REPLICATION, &FIG13_WORSE],
        sensitive: DETECTION,
    },
    Figure {
        name: "sig23/fig14",
        title: "how long writes take with segmentation, migration and replication, and with bursts spread over all",
        points: |parameters| {
            let Parameters { utilization, ewma_last, .. } = *parameters;
            let migration = |name: &str, last| {
                let scheme = Scheme::Migration { last };
                latency(&format!("migration by {name}"), scheme, Geometry::LEVEE, utilization)
            };
            let [segmentation, spread] = latencies(parameters, utilization);
            let [last, average] = [migration("the last interval", 1.0), migration("an average", ewma_last)];
            let chosen = replication(parameters, Geometry::WHOLE, utilization);
            points(parameters, &[segmentation, spread, last, average, chosen])
        },
        judge: judge_fig14,
        printed: &[
            &FIG14_AVERAGE,
            &FIG14_P99,
            &FIG14_MIGRATION_AVERAGE,
            &FIG14_MIGRATION_P99,
            &FIG14_WORSE,
            &FIG14_REPLICATION,
        ],
        sensitive: REPLICATED,
    },
    Figure {
        name: "sig23/fig15",
        title: "how long reads take beside that",
        points: |parameters| {
            let (utilization, schemes) = (parameters.utilization, schemes(parameters));
            let of = |has_one_card: bool| {
                let what = if has_one_card { "one card" } else { "another card behind" };
                let reads = move |scheme| Bench::Reads { scheme, utilization, has_one_card };
                let schemes = schemes.map(|(name, scheme)| (format!("{name}, {what}"), reads(scheme)));
                let replicated = Replicated {
                    geometry: Geometry::WHOLE,
                    utilization,
                    chooses: true,
                    synchronizes: true,
                    reads_with_one_card: Some(has_one_card),
                };
                let replication = (format!("replication, {what}"), Bench::Replication(replicated));
                schemes.into_iter().chain([replication]).collect::<Vec<_>>()
            };
            points(parameters, &[of(true), of(false)].concat())
        },
        judge: judge_fig15,
        printed: &[&FIG15_AVERAGE, &FIG15_P99],
        sensitive: READ,
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
        name: "sig23/fig17",
        title: "segments of other sizes: how even servers are, and how long writes take",
        points: |parameters| {
            let each = geometries(parameters).into_iter().flat_map(|geometry| sizes(parameters, geometry));
            points_of(parameters, Source::W1, &each.collect::<Vec<_>>())
        },
        judge: judge_fig17,
        printed: &[&FIG17_COV, &FIG17_TIMES, &FIG17_AVERAGE, &FIG17_P99],
        sensitive: REPLICATED,
    },
    Figure {
        name: "sig23/fig18",
        title: "how sensitive detection is: TH, and how much of cards is used",
        points: |parameters| {
            let of = |utilization: f64, beta: f64| {
                let ms = parameters.th_ms as f64 * beta;
                let settings = BurstSettings { threshold: Duration::from_secs_f64(ms / 1e3), ..text(parameters, 1) };
                let scheme = Scheme::DiffForward { settings, in_turn: true };
                latency(&format!("TH of {ms} ms"), scheme, Geometry::LEVEE, utilization)
            };
            let used = [parameters.utilization, parameters.low_utilization];
            let each = used.into_iter().flat_map(|used| parameters.betas.iter().map(move |beta| of(used, *beta)));
            points_of(parameters, Source::W1, &each.collect::<Vec<_>>())
        },
        judge: judge_fig18,
        printed: &[&FIG18_BEST, &FIG18_ENDS, &FIG18_FLAT],
        sensitive: LATENCY,
    },
    Figure {
        name: "sig23/fig19",
        title: "where the time of writes goes",
        points: |parameters| points_of(parameters, Source::W1, &latencies(parameters, parameters.utilization)),
        judge: judge_fig19,
        printed: &[&FIG19_WAITING_AVERAGE, &FIG19_WAITING_P99, &FIG19_PASSING_AVERAGE, &FIG19_PASSING_P99],
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
    Figure {
        name: "sig23/fig20b",
        title: "how much waits in logs, second by second",
        points: |parameters| {
            let spread = latencies(parameters, parameters.utilization)[1].clone();
            points_of(parameters, Source::W1, &[spread])
        },
        judge: judge_fig20b,
        printed: &[&FIG20B_MOST, &FIG20B_GROWTH],
        sensitive: LATENCY,
    },
    Figure {
        name: "sig23/fig20c",
        title: "how many entries agents keep in mind",
        points: |parameters| {
            let spread = latencies(parameters, parameters.utilization)[1].clone();
            points_of(parameters, Source::W1, &[spread])
        },
        judge: judge_fig20c,
        printed: &[&FIG20C_AVERAGE, &FIG20C_LARGEST],
        sensitive: LATENCY,
    },
    Figure {
        name: "sig23/fig20d",
        title: "what merging costs clients, which it lets go first or not",
        points: |parameters| {
            let Parameters { utilization, th_ms, .. } = *parameters;
            let scheme = Scheme::DiffForward { settings: text(parameters, th_ms), in_turn: true };
            let each = [
                ("no merging", Merging::Free),
                ("prioritized", Merging::Carried(Pace::Prioritized)),
                ("1 MiB at once", Merging::Carried(Pace::Limited)),
                ("as soon as possible", Merging::Carried(Pace::AtOnce)),
            ];
            let of = |(label, merging): (&str, Merging)| {
                let bench = Bench::Latency { scheme, geometry: Geometry::LEVEE, utilization, merging };
                (label.to_owned(), bench)
            };
            points_of(parameters, Source::W1, &each.map(of))
        },
        judge: judge_fig20d,
        printed: &[&FIG20D_PRIORITIZED, &FIG20D_LIMITED, &FIG20D_AT_ONCE],
        sensitive: LATENCY,
    },
    Figure {
        name: "sig23/auto",
        title: "where agents find out what a burst is, and whether spreading gains: against each TH",
        points: |parameters| {
            let Parameters { th_ms, utilization, .. } = *parameters;
            let fixed = parameters.betas.iter().map(|beta| {
                let ms = th_ms as f64 * beta;
                let settings = BurstSettings { threshold: Duration::from_secs_f64(ms / 1e3), ..text(parameters, 1) };
                (format!("TH of {ms} ms"), told(settings, None, utilization))
            });
            let usual = Auto::default();
            let limited = |limits| Auto { limits, ..usual };
            let autos = [
                ("auto", usual),
                ("auto, gain or not", Auto { finds_gain: false, ..usual }),
                ("auto, however much is logged", limited(Limits { logged_percent: 100, ..usual.limits })),
                ("auto, TH without a least", limited(Limits { threshold_bytes: 0, ..usual.limits })),
            ];
            let autos =
                autos.map(|(label, auto)| (label.to_owned(), told(text(parameters, th_ms), Some(auto), utilization)));
            points(parameters, &fixed.chain(autos).collect::<Vec<_>>())
        },
        judge: judge_auto,
        printed: &[&AUTO_COV, &AUTO_AVERAGE, &AUTO_P99],
        sensitive: LATENCY,
    },
    Figure {
        name: "sig23/categories",
        title: "where bursts that are mild go to the nearest log: against all of them in turn",
        points: |parameters| {
            let Parameters { th_ms, utilization, .. } = *parameters;
            let of = |mild_below: u32| {
                let settings = BurstSettings { mild_below, ..text(parameters, th_ms) };
                (format!("mild below {mild_below}%"), told(settings, None, utilization))
            };
            let each = [0].iter().chain(&parameters.mild_percents).map(|percent| of(*percent));
            points(parameters, &each.collect::<Vec<_>>())
        },
        judge: judge_categories,
        printed: &[&CATEGORIES_AVERAGE, &CATEGORIES_P99],
        sensitive: LATENCY,
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

/// DiffForward that tells bursts so, or finds out how.
fn told(settings: BurstSettings, auto: Option<Auto>, utilization: f64) -> Bench {
    Bench::Told { scheme: Scheme::DiffForward { settings, in_turn: true }, auto, utilization }
}

/// How even servers are with segmentation, both ways of migration, DiffForward with both thresholds, and replication.
fn balances(parameters: &Parameters) -> Vec<(String, Bench)> {
    let Parameters { ewma_last, th_ms, prototype_th_ms, bin_ms, .. } = *parameters;
    let spread = |th_ms| Scheme::DiffForward { settings: text(parameters, th_ms), in_turn: true };
    let prototype = Scheme::DiffForward { settings: prototype(parameters), in_turn: true };
    let schemes = [
        ("segmentation".to_owned(), Scheme::Segmentation),
        ("migration by the last interval".to_owned(), Scheme::Migration { last: 1.0 }),
        ("migration by an average".to_owned(), Scheme::Migration { last: ewma_last }),
        (format!("DiffForward, TH of {th_ms} ms"), spread(th_ms)),
        (format!("DiffForward, TH of {prototype_th_ms} ms"), prototype),
    ];
    let geometry = Geometry::paper(parameters.segment_gib);
    let counted = schemes.map(|(label, scheme)| (label, Bench::Balance { scheme, geometry, bin_ms }));
    counted.into_iter().chain([replication(parameters, Geometry::WHOLE, parameters.utilization)]).collect()
}

/// How long writes take on cards of which so much is used.
fn latency(name: &str, scheme: Scheme, geometry: Geometry, utilization: f64) -> (String, Bench) {
    let bench = Bench::Latency { scheme, geometry, utilization, merging: Merging::default() };
    (format!("{name}, {:.0}% used", utilization * 100.0), bench)
}

/// Segmentation, and DiffForward with the text's threshold, over Levee's own segments.
fn latencies(parameters: &Parameters, utilization: f64) -> [(String, Bench); 2] {
    let th_ms = parameters.th_ms;
    let spread = Scheme::DiffForward { settings: text(parameters, th_ms), in_turn: true };
    [("segmentation".to_owned(), Scheme::Segmentation), (format!("DiffForward, TH of {th_ms} ms"), spread)]
        .map(|(name, scheme)| latency(&name, scheme, Geometry::LEVEE, utilization))
}

/// Volumes that are not cut, and segments of the paper's sizes.
fn geometries(parameters: &Parameters) -> Vec<Geometry> {
    let sizes = parameters.segment_sizes_gib.iter().map(|gib| Geometry::paper(*gib));
    [Geometry::WHOLE].into_iter().chain(sizes).collect()
}

/// Segmentation, both ways of migration, and DiffForward with the text's threshold.
fn schemes(parameters: &Parameters) -> [(&'static str, Scheme); 4] {
    let settings = text(parameters, parameters.th_ms);
    [
        ("segmentation", Scheme::Segmentation),
        ("migration by the last interval", Scheme::Migration { last: 1.0 }),
        ("migration by an average", Scheme::Migration { last: parameters.ewma_last }),
        ("DiffForward", Scheme::DiffForward { settings, in_turn: true }),
    ]
}

/// Those four: how even servers are, then how long writes take; then replication, with
/// both.
fn sizes(parameters: &Parameters, geometry: Geometry) -> Vec<(String, Bench)> {
    let Parameters { utilization, bin_ms, .. } = *parameters;
    let schemes = schemes(parameters).map(|(name, scheme)| (format!("{}, {name}", geometry.name()), scheme));
    let counted =
        schemes.iter().map(|(name, scheme)| (name.clone(), Bench::Balance { scheme: *scheme, geometry, bin_ms }));
    let timed = schemes.iter().map(|(name, scheme)| latency(name, *scheme, geometry, utilization));
    counted.chain(timed).chain([replication(parameters, geometry, utilization)]).collect()
}

fn replication(parameters: &Parameters, geometry: Geometry, utilization: f64) -> (String, Bench) {
    let label = format!("{}, {} replicas, {:.0}% used", geometry.name(), parameters.replicas, utilization * 100.0);
    let replicated = Replicated { geometry, utilization, chooses: true, synchronizes: true, reads_with_one_card: None };
    (label, Bench::Replication(replicated))
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
