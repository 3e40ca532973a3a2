//! The figures of "Come Hell or Still Water" (NSDI 2026).
//!
//! Figures 10, 13, 18 and 20: bursts, one bucket against two; figures 11, 12, 19 and 21: an underloaded server, one
//! queue against split threads against I/O first. Figure 3: where the tail comes from. Figure 4: how even a cluster is.
//! Figure 6: what the server's estimator says of a drive that it does not know. Figure 9: the example of the
//! loop. Figures 14 and 15 are of production traces that are not published whole: ours are synthetic, with the printed
//! properties. RQ2 and RQ3 are the questions of section 3.1. Percentiles are of all servers together.
//!
//! **What is real and what is a model.** The block server ([`server::Server`]: sessions, admission, statistics) and its
//! event loop run as they are shipped, in the simulated world, behind its network ([`world`]). The [`store`] below them is a
//! model: a queue with a known service rate, so that it is known what admission should find out. Clients are models, too; in
//! place of their [`load`] there can be a trace ([`replay`]).
//!
//! Here is what is measured; [`judges`] compare it with what was [`printed`].

mod ask;
mod balance;
mod disk;
mod judges;
mod load;
mod measured;
mod parameters;
mod printed;
mod proxy;
mod replay;
mod store;
mod world;

use std::sync::Arc;
use std::time::Duration;

use base::KIB;
use policies::admission::Throttle;

use self::ask::Shape;
use self::disk::DiskOptions;
use self::judges::*;
use self::load::LESSONS_END_NS;
use self::printed::*;
use self::world::Scheduling;
use super::{Mechanism, Paper, Trace, figure};

pub use measured::Measured;
pub use parameters::Parameters;
pub use world::Point;

/// The paper.
#[derive(Clone, Debug)]
pub struct Nsdi26;

type Figure = figure::Figure<Nsdi26>;
type Case<'a> = figure::Case<'a, Nsdi26>;

impl Paper for Nsdi26 {
    const NAME: &'static str = "nsdi26";
    const FIGURES: &'static [Figure] = FIGURES;
    const REQUESTS: [u64; 2] = [10_000_000, 600_000];
    const TITLES: [&'static str; 2] = [
        "Against the paper's baseline: one bucket, one queue in the order of arrival",
        "Against other designs: tasks on threads of their own, a static cap",
    ];
    const SUMMARY: &'static str = "summary.md";
    const NO_LOAD: &'static str = "nothing is asked for in this experiment that a trace could take the place of";

    type Parameters = Parameters;
    type Point = Point;
    type Measured = Measured;

    fn with(point: Point, requests: u64, seed: u64) -> Point {
        Point { requests, seed, ..point }
    }

    fn without(point: Point, mechanism: Mechanism) -> Point {
        let has_two = point.throttle == Throttle::DualBuckets;
        match mechanism {
            Mechanism::ChequeBucket if has_two => Point { tune: |settings| settings.cheque_permille = 0, ..point },
            Mechanism::HotMarking if has_two => {
                Point { tune: |settings| settings.hot_requests_min = u32::MAX, ..point }
            }
            Mechanism::Estimate => Point { tune: |settings| settings.estimator.fits = false, ..point },
            Mechanism::Priority => {
                let scheduling = match point.scheduling {
                    Scheduling::Priority => Scheduling::Fifo,
                    Scheduling::SplitPriority => Scheduling::Split,
                    other => other,
                };
                Point { scheduling, ..point }
            }
            Mechanism::Burst => Point { shape: Shape::Steady, ..point },
            Mechanism::BackgroundTasks => {
                let parameters = Parameters { tasks: Vec::new(), ..point.parameters.clone() };
                Point { parameters, ..point }
            }
            Mechanism::Cap if matches!(point.throttle, Throttle::ClientCap(_)) => {
                Point { throttle: Throttle::Off, ..point }
            }
            _ => point,
        }
    }

    fn replaying(point: Point, trace: &Arc<Trace>) -> Option<Point> {
        point.disk.is_none().then(|| point.replaying(trace))
    }

    fn unlabelled(point: Point) -> Point {
        Point { label: String::new(), ..point }
    }

    fn measure(point: &Point, _clock: &dyn Fn() -> Duration) -> Measured {
        point.measure()
    }
}

/// Writes in a hundred requests, as figures 10 to 13 have them.
const MIXES: [u64; 4] = [100, 75, 50, 25];
/// Sizes of the appendix, in KiB, half of them writes.
const SIZES: [u64; 4] = [8, 16, 32, 64];

/// Parameters that are not printed, on which the figures of bursts, and of an underloaded server, can depend.
const BURST: &[&str] = &[
    "hot_share_percent",
    "calm_intervals",
    "hot_parts",
    "burst_median_ms",
    "burst_sigma",
    "pause_factor",
    "depth",
    "segments",
    "write_ns",
];
const UNDERLOAD: &[&str] = &["step_percent", "write_cpu_ns", "parse_ns", "reply_ns", "write_ns", "hop_ns"];

const FIGURES: &[Figure] = &[
    Figure {
        name: "nsdi26/fig3",
        title: "where P99999 comes from, in bursts and without, with one bucket and one queue",
        points: |parameters| {
            let burst = Point { throttle: Throttle::OneBucket, ..point(parameters, 4 * KIB, 75) };
            let calm = Point { scheduling: Scheduling::Fifo, shape: Shape::Steady, ..point(parameters, 4 * KIB, 75) };
            vec![Point { label: "burst".into(), ..burst }, Point { label: "underloaded".into(), ..calm }]
        },
        judge: judge_stages,
        printed: &[&FIG3_CALM],
        sensitive: &[],
    },
    Figure {
        name: "nsdi26/fig4",
        title: "how evenly requests arrive at the servers of a cluster",
        points: |_| Vec::new(),
        judge: judge_balance,
        printed: &[&FIG4_MEAN, &FIG4_LOW, &FIG4_HIGH],
        sensitive: &["clients", "segments"],
    },
    Figure {
        name: "nsdi26/fig6",
        title: "what the server's estimator says of a drive that it does not know: what is left, and the tail",
        points: loads,
        judge: judge_estimates,
        printed: &[&FIG6_LEFT[0], &FIG6_TAIL[0], &FIG6_LEFT[1], &FIG6_TAIL[1]],
        sensitive: &[],
    },
    Figure {
        name: "nsdi26/fig9",
        title: "the printed example of priority-based task scheduling",
        points: |_| Vec::new(),
        judge: judge_example,
        printed: &[&FIG9[0], &FIG9[1], &FIG9[2]],
        sensitive: &[],
    },
    Figure {
        name: "nsdi26/fig10",
        title: "proxy layer, steady segments during bursts, 4 KiB: one bucket against two",
        points: |parameters| bursts(parameters, &mixes()),
        judge: judge_small_in_proxy,
        printed: &[&FIG10_P99, &FIG10_P99999, &FIG10_HOT],
        sensitive: BURST,
    },
    Figure {
        name: "nsdi26/fig13",
        title: "whole cluster, steady segments during bursts, 4 KiB",
        points: |parameters| bursts(parameters, &mixes()),
        judge: judge_small_in_cluster,
        printed: &[&FIG13_P99999, &FIG13_SHARE],
        sensitive: BURST,
    },
    Figure {
        name: "nsdi26/fig18",
        title: "proxy layer, steady segments during bursts, 8 to 64 KiB, half writes",
        points: |parameters| bursts(parameters, &sizes()),
        judge: judge_sizes_in_proxy,
        printed: &[&FIG18_LEAST, &FIG18_MOST, &FIG18_ORDER],
        sensitive: BURST,
    },
    Figure {
        name: "nsdi26/fig20",
        title: "whole cluster, steady segments during bursts, 8 to 64 KiB, half writes",
        points: |parameters| bursts(parameters, &sizes()),
        judge: judge_sizes_in_cluster,
        printed: &[&FIG20_LEAST, &FIG20_MOST],
        sensitive: BURST,
    },
    Figure {
        name: "nsdi26/fig11",
        title: "whole cluster, writes of an underloaded server, 4 KiB: FIFO, split threads, priority",
        points: |parameters| underloaded(parameters, &mixes()),
        judge: judge_calm_in_cluster,
        printed: &[&FIG11, &FIG11_SPLIT],
        sensitive: UNDERLOAD,
    },
    Figure {
        name: "nsdi26/fig12",
        title: "proxy layer, writes of an underloaded server, 4 KiB",
        points: |parameters| underloaded(parameters, &mixes()),
        judge: judge_calm_in_proxy,
        printed: &[&FIG12, &FIG12_SPLIT],
        sensitive: UNDERLOAD,
    },
    Figure {
        name: "nsdi26/fig19",
        title: "proxy layer, writes of an underloaded server, 8 to 64 KiB, half writes",
        points: |parameters| underloaded(parameters, &sizes()),
        judge: judge_calm_sizes_in_proxy,
        printed: &[&FIG19_SPLIT],
        sensitive: UNDERLOAD,
    },
    Figure {
        name: "nsdi26/fig21",
        title: "whole cluster, writes of an underloaded server, 8 to 64 KiB, half writes",
        points: |parameters| underloaded(parameters, &sizes()),
        judge: judge_calm_sizes_in_cluster,
        printed: &[&FIG21, &FIG21_SPLIT],
        sensitive: UNDERLOAD,
    },
    Figure {
        name: "nsdi26/fig14",
        title: "whole cluster, steady segments, rare bursts as in production (synthetic): one bucket against two",
        points: |parameters| {
            let parameters = Parameters { pause_factor: 10.0, ..parameters.clone() };
            let points = bursts(&parameters, &[(4 * KIB, 75), (16 * KIB, 75)]).into_iter();
            points.map(|point| Point { label: format!("{} KiB", point.bytes / KIB), ..point }).collect()
        },
        judge: judge_production_bursts,
        printed: &[&FIG14],
        sensitive: BURST,
    },
    Figure {
        name: "nsdi26/fig15",
        title: "whole cluster, writes at 200 and 300 MBps (synthetic), 16 KiB: one queue against I/O first",
        points: |parameters| {
            let loads = [200_000_000, 300_000_000]
                .map(|load| Parameters { underload_bytes_per_sec: load, ..parameters.clone() });
            let both = [Scheduling::Fifo, Scheduling::Priority];
            let each = |parameters: &Parameters| {
                both.map(|scheduling| Point {
                    label: format!("{} MBps", parameters.underload_bytes_per_sec / 1_000_000),
                    scheduling,
                    shape: Shape::Steady,
                    ..point(parameters, 16 * KIB, 75)
                })
            };
            loads.iter().flat_map(each).collect()
        },
        judge: judge_production_calm,
        printed: &[&FIG15[0], &FIG15[1]],
        sensitive: UNDERLOAD,
    },
    Figure {
        name: "nsdi26/rq2",
        title: "what a burst of major clients does to the others, with one bucket and with two",
        points: |parameters| {
            let burst = |throttle| Point { throttle, ..point(parameters, 4 * KIB, 75) };
            let calm = Point { shape: Shape::Steady, throttle: Throttle::OneBucket, ..burst(Throttle::OneBucket) };
            vec![calm, burst(Throttle::OneBucket), burst(Throttle::DualBuckets)]
        },
        judge: judge_minor_clients,
        printed: &[&RQ2],
        sensitive: BURST,
    },
    Figure {
        name: "nsdi26/rq3-cap",
        title: "a static cap of 60 MBps for each major client: what is left unused between bursts",
        points: |parameters| {
            // The top three clients have 63% of the traffic [P, section 3.1].
            let between =
                Parameters { burst_percent: parameters.calm_percent, hot_load_percent: 63, ..parameters.clone() };
            let with = |throttle| Point { throttle, ..point(&between, 16 * KIB, 75) };
            vec![with(Throttle::Off), with(Throttle::ClientCap(CAP)), with(Throttle::DualBuckets)]
        },
        judge: judge_cap,
        printed: &[&RQ3],
        sensitive: &[],
    },
];

/// The cap of RQ3, in bytes per second.
const CAP: u64 = 60_000_000;

/// Bytes and share of writes of each point.
fn mixes() -> Vec<(u64, u64)> {
    MIXES.map(|writes| (4 * KIB, writes)).into()
}

fn sizes() -> Vec<(u64, u64)> {
    SIZES.map(|kib| (kib * KIB, 50)).into()
}

fn point(parameters: &Parameters, bytes: u64, write_percent: u64) -> Point {
    Point {
        label: match write_percent {
            50 if bytes > 4 * KIB => format!("{} KiB", bytes / KIB),
            _ => format!("{write_percent}% writes"),
        },
        parameters: parameters.clone(),
        throttle: Throttle::DualBuckets,
        tune: |_| (),
        scheduling: Scheduling::Priority,
        shape: Shape::Bursts,
        bytes,
        write_percent,
        disk: None,
        trace: None,
        requests: 0,
        seed: 0,
    }
}

fn bursts(parameters: &Parameters, cases: &[(u64, u64)]) -> Vec<Point> {
    let both = [Throttle::OneBucket, Throttle::DualBuckets];
    let each =
        |&(bytes, writes): &(u64, u64)| both.map(|throttle| Point { throttle, ..point(parameters, bytes, writes) });
    cases.iter().flat_map(each).collect()
}

fn underloaded(parameters: &Parameters, cases: &[(u64, u64)]) -> Vec<Point> {
    let all = [Scheduling::Fifo, Scheduling::Split, Scheduling::Priority, Scheduling::SplitPriority];
    let each = |&(bytes, writes): &(u64, u64)| {
        all.map(|scheduling| Point { scheduling, shape: Shape::Steady, ..point(parameters, bytes, writes) })
    };
    cases.iter().flat_map(each).collect()
}

/// Loads of the drive in percent of what garbage collection leaves of it.
const LOADS: [u64; 4] = [30, 50, 70, 85];

/// A drive that a server gets to know without garbage collection, and then has to judge with it.
fn loads(parameters: &Parameters) -> Vec<Point> {
    let mut points = Vec::new();
    for gc_bytes_per_sec in [300_000_000, 600_000_000] {
        for load in LOADS {
            let left = parameters.service_bytes_per_sec - gc_bytes_per_sec;
            let drive = DiskOptions {
                channels: parameters.disk_channels,
                bytes_per_sec: parameters.service_bytes_per_sec,
                write_percent_of_read: parameters.disk_write_percent,
                read_ns: parameters.disk_read_ns,
                write_ns: parameters.disk_write_ns,
                gc_bytes_per_sec,
                gc_bytes: parameters.disk_gc_bytes,
                gc_begins_ns: LESSONS_END_NS,
            };
            let parameters = Parameters {
                servers: 1,
                underload_bytes_per_sec: left * load / 100,
                // Nobody waits for tokens, nothing is set aside, the drive is a local one and the loop has no other tasks.
                limit_bytes_per_sec: parameters.service_bytes_per_sec * 4,
                headroom_bytes_per_sec: 0,
                hop_ns: 0,
                tasks: Vec::new(),
                depth: u32::MAX,
                ..parameters.clone()
            };
            points.push(Point {
                label: format!("garbage collection {} MBps, load {load}%", gc_bytes_per_sec / 1_000_000),
                throttle: Throttle::OneBucket,
                shape: Shape::Taught,
                disk: Some(drive),
                ..point(&parameters, 4 * KIB, 50)
            });
        }
    }
    points
}
