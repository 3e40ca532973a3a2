//! The figures of "Come Hell or Still Water" (NSDI 2026).
//!
//! Figures 10, 13, 18 and 20: bursts, one bucket against two; figures 11, 12, 19 and 21: an underloaded server, one
//! queue against split threads against I/O first. Figure 3: where the tail comes from. Figure 6: what the estimator's
//! equations say, against the queue that they describe. Figure 9: the example of the loop. Figures 14 and 15 are of
//! production traces that are not published whole: ours are synthetic, with the printed properties. RQ2 and RQ3 are the
//! questions of section 3.1. Percentiles are of all servers together.

use base::{Histogram, KIB};
use policies::admission::Throttle;

use std::time::Duration;

use base::Instant;
use policies::loop_schedule::{LoopSchedule, LoopSettings};

use super::load::Shape;
use super::world::{Latencies, Measured, Point, Scheduling};
use super::{Experiment, Parameters, Row};

/// Writes in a hundred requests, as figures 10 to 13 have them.
const MIXES: [u64; 4] = [100, 75, 50, 25];
/// Sizes of the appendix, in KiB, half of them writes.
const SIZES: [u64; 4] = [8, 16, 32, 64];
const P99: u64 = 990_000;
const P99999: u64 = 999_990;

/// All of them.
pub const ALL: &[Experiment] = &[
    Experiment {
        name: "nsdi26/fig3",
        title: "where P99999 comes from, in bursts and without, with one bucket and one queue",
        points: |parameters| {
            let burst = Point { throttle: Throttle::OneBucket, ..point(parameters, 4 * KIB, 75) };
            let calm = Point { scheduling: Scheduling::Fifo, shape: Shape::Steady, ..point(parameters, 4 * KIB, 75) };
            vec![Point { label: "burst".into(), ..burst }, Point { label: "underloaded".into(), ..calm }]
        },
        judge: judge_stages,
    },
    Experiment {
        name: "nsdi26/fig6",
        title: "latency of the store below: equation 1 against a simulated queue",
        points: loads,
        judge: judge_loads,
    },
    Experiment {
        name: "nsdi26/fig9",
        title: "the printed example of priority-based task scheduling",
        points: |_| Vec::new(),
        judge: |_| judge_example(),
    },
    Experiment {
        name: "nsdi26/fig10",
        title: "proxy layer, steady segments during bursts, 4 KiB: one bucket against two",
        points: |parameters| bursts(parameters, &mixes()),
        judge: |measured| judge_bursts(measured, Layer::Proxy, true),
    },
    Experiment {
        name: "nsdi26/fig13",
        title: "whole cluster, steady segments during bursts, 4 KiB",
        points: |parameters| bursts(parameters, &mixes()),
        judge: |measured| judge_bursts(measured, Layer::Cluster, true),
    },
    Experiment {
        name: "nsdi26/fig18",
        title: "proxy layer, steady segments during bursts, 8 to 64 KiB, half writes",
        points: |parameters| bursts(parameters, &sizes()),
        judge: |measured| judge_bursts(measured, Layer::Proxy, false),
    },
    Experiment {
        name: "nsdi26/fig20",
        title: "whole cluster, steady segments during bursts, 8 to 64 KiB, half writes",
        points: |parameters| bursts(parameters, &sizes()),
        judge: |measured| judge_bursts(measured, Layer::Cluster, false),
    },
    Experiment {
        name: "nsdi26/fig11",
        title: "whole cluster, writes of an underloaded server, 4 KiB: FIFO, split threads, priority",
        points: |parameters| underloaded(parameters, &mixes()),
        judge: |measured| judge_underloaded(measured, Layer::Cluster, true),
    },
    Experiment {
        name: "nsdi26/fig12",
        title: "proxy layer, writes of an underloaded server, 4 KiB",
        points: |parameters| underloaded(parameters, &mixes()),
        judge: |measured| judge_underloaded(measured, Layer::Proxy, true),
    },
    Experiment {
        name: "nsdi26/fig19",
        title: "proxy layer, writes of an underloaded server, 8 to 64 KiB, half writes",
        points: |parameters| underloaded(parameters, &sizes()),
        judge: |measured| judge_underloaded(measured, Layer::Proxy, false),
    },
    Experiment {
        name: "nsdi26/fig21",
        title: "whole cluster, writes of an underloaded server, 8 to 64 KiB, half writes",
        points: |parameters| underloaded(parameters, &sizes()),
        judge: |measured| judge_underloaded(measured, Layer::Cluster, false),
    },
    Experiment {
        name: "nsdi26/fig14",
        title: "whole cluster, steady segments, rare bursts as in production (synthetic): one bucket against two",
        points: |parameters| {
            let parameters = Parameters { pause_factor: 10.0, ..parameters.clone() };
            bursts(&parameters, &[(4 * KIB, 75), (16 * KIB, 75)])
        },
        judge: judge_production_bursts,
    },
    Experiment {
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
        judge: judge_production_underload,
    },
    Experiment {
        name: "nsdi26/rq2",
        title: "what a burst of major clients does to the others, with one bucket and with two",
        points: |parameters| {
            let burst = |throttle| Point { throttle, ..point(parameters, 4 * KIB, 75) };
            let calm = Point { shape: Shape::Steady, throttle: Throttle::OneBucket, ..burst(Throttle::OneBucket) };
            vec![calm, burst(Throttle::OneBucket), burst(Throttle::DualBuckets)]
        },
        judge: judge_minor_clients,
    },
    Experiment {
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
    },
];

/// The cap of RQ3, in bytes per second.
const CAP: u64 = 60_000_000;

/// Where latency is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layer {
    Proxy,
    Cluster,
}

impl Layer {
    fn of(self, latencies: &Latencies) -> &Histogram {
        match self {
            Layer::Proxy => &latencies.proxy_ns,
            Layer::Cluster => &latencies.cluster_ns,
        }
    }
}

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

/// By how much `after` is lower, in percent, below zero; and both in words.
fn change(before: u64, after: u64) -> (f64, String) {
    let percent = (after as f64 / before.max(1) as f64 - 1.0) * 100.0;
    (percent, format!("{} to {}", time(before), time(after)))
}

fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} us", ns / 1000),
        _ => format!("{} ms", ns / 1_000_000),
    }
}

fn judge_bursts(measured: &[(Point, Measured)], layer: Layer, is_small: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for pair in measured.chunks_exact(2) {
        let [(point, one), (_, two)] = pair else { continue };
        let (before, after) = (one.steady(), two.steady());
        let label = &point.label;
        let mut compare = |what: &str, printed: &str, quantile, band| {
            let (measured, detail) = change(layer.of(&before).quantile(quantile), layer.of(&after).quantile(quantile));
            let what = format!("{label}, {what} of steady segments");
            rows.push(Row { what, printed: printed.to_owned(), measured, detail, band, unit: "%", is_reduction: true });
        };
        match (layer, is_small) {
            (Layer::Proxy, true) => {
                compare("P99", "up to -96%", P99, [-99.0, -70.0]);
                compare("P99999", "up to -83%", P99999, [-95.0, -50.0]);
            }
            (Layer::Proxy, false) => compare("P99999", "-92 to -97%", P99999, [-98.0, -60.0]),
            (Layer::Cluster, true) => compare("P99999", "-85%", P99999, [-95.0, -60.0]),
            (Layer::Cluster, false) => compare("P99999", "-77 to -86%", P99999, [-95.0, -60.0]),
        }
        rows.push(share_of_proxy(label, one));
        rows.push(hot_ones(label, one, two));
        let lost = (1.0 - two.throughput() / one.throughput()) * 100.0;
        rows.push(Row {
            what: format!("{label}, throughput lost by two buckets"),
            printed: String::new(),
            measured: lost,
            detail: format!("{:.0} to {:.0} MB/s", one.throughput() / 1e6, two.throughput() / 1e6),
            band: [-100.0, 3.0],
            unit: "%",
            is_reduction: true,
        });
    }
    rows
}

/// With one bucket, nearly all of the tail is the proxy's.
fn share_of_proxy(label: &str, one: &Measured) -> Row {
    let steady = one.steady();
    let (proxy, cluster) = (steady.proxy_ns.quantile(P99999), steady.cluster_ns.quantile(P99999));
    Row {
        what: format!("{label}, one bucket: the proxy's share of P99999"),
        printed: "98%".into(),
        measured: proxy as f64 / cluster.max(1) as f64 * 100.0,
        detail: format!("{} of {}", time(proxy), time(cluster)),
        band: [90.0, 100.0],
        unit: "%",
        is_reduction: false,
    }
}

fn hot_ones(label: &str, one: &Measured, two: &Measured) -> Row {
    let of = |measured: &Measured| measured.hot().cluster_ns.quantile(P99);
    Row {
        what: format!("{label}, hot segments' P99, two buckets by one"),
        printed: "not significant".into(),
        measured: of(two) as f64 / of(one).max(1) as f64,
        detail: format!("{} to {}", time(of(one)), time(of(two))),
        band: [0.0, 1.3],
        unit: "x",
        is_reduction: false,
    }
}

fn judge_underloaded(measured: &[(Point, Measured)], layer: Layer, is_small: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for four in measured.chunks_exact(4) {
        let [(point, fifo), (_, split), (_, priority), (_, both)] = four else { continue };
        let tail = |measured: &Measured| layer.of(&measured.writes()).quantile(P99999);
        let (by_fifo, fifo_words) = change(tail(fifo), tail(priority));
        // "Compared with only employing the thread split design" (§5.2): what is moved stays moved.
        let (by_split, split_words) = change(tail(split), tail(both));
        let (printed, bands) = match (layer, is_small) {
            (Layer::Proxy, true) => (["up to -63%", "up to -37%"], [[-70.0, -20.0], [-50.0, -10.0]]),
            (Layer::Proxy, false) => (["", "up to -55%"], [[-80.0, -20.0], [-75.0, -10.0]]),
            (Layer::Cluster, true) => (["-43%", "-22%"], [[-70.0, -21.5], [-50.0, -11.0]]),
            (Layer::Cluster, false) => (["up to -66%", "up to -37%"], [[-80.0, -20.0], [-60.0, -10.0]]),
        };
        let sides = [
            ("priority against FIFO", by_fifo, fifo_words),
            ("split threads with priority against without", by_split, split_words),
        ];
        for ((name, measured, detail), (printed, band)) in sides.into_iter().zip(printed.into_iter().zip(bands)) {
            let what = format!("{}, P99999 of writes, {name}", point.label);
            rows.push(Row { what, printed: printed.to_owned(), measured, detail, band, unit: "%", is_reduction: true });
        }
        let longest = priority.background_wait_ns.max();
        rows.push(Row {
            what: format!("{}, longest wait of a background task", point.label),
            printed: String::new(),
            measured: longest as f64 / 1e6,
            detail: format!("{} tasks", priority.background_wait_ns.count()),
            band: [0.0, 1000.0],
            unit: "ms",
            is_reduction: false,
        });
    }
    rows
}

fn judge_stages(measured: &[(Point, Measured)]) -> Vec<Row> {
    let bands = [("98% (figure 13)", [90.0, 100.0]), ("over 49.2%", [40.0, 100.0])];
    let each = measured.iter().zip(bands).map(|((point, measured), (printed, band))| {
        let all = measured.writes();
        let tail = |histogram: &Histogram| histogram.quantile(P99999);
        let (proxy, cluster) = (tail(&all.proxy_ns), tail(&all.cluster_ns));
        Row {
            what: format!("{}, the proxy layer's share of P99999 of writes", point.label),
            printed: printed.to_owned(),
            measured: proxy as f64 / cluster.max(1) as f64 * 100.0,
            detail: format!(
                "receive buffer {}, proxy layer {}, store {}, together {}",
                time(tail(&all.receive_ns)),
                time(proxy),
                time(tail(&measured.store_ns)),
                time(cluster)
            ),
            band,
            unit: "%",
            is_reduction: false,
        }
    });
    each.collect()
}

/// Loads of the store below in percent of what background work leaves of it.
const LOADS: [u64; 4] = [30, 50, 70, 85];

fn loads(parameters: &Parameters) -> Vec<Point> {
    let mut points = Vec::new();
    for background in [300_000_000, 600_000_000] {
        for load in LOADS {
            let left = parameters.service_bytes_per_sec - background;
            let parameters = Parameters {
                background_bytes_per_sec: background,
                underload_bytes_per_sec: left * load / 100,
                // The queue alone: without what else a request takes, and without tasks that make a loop send requests
                // in batches, from which the queue is not what the equation is about.
                hop_ns: 0,
                write_ns: 0,
                read_ns: 0,
                tasks: Vec::new(),
                depth: u32::MAX,
                ..parameters.clone()
            };
            points.push(Point {
                label: format!("background {} MBps, load {load}%", background / 1_000_000),
                throttle: Throttle::Off,
                shape: Shape::Steady,
                ..point(&parameters, 4 * KIB, 50)
            });
        }
    }
    points
}

/// Equation 1 with `alpha` = bytes of a request, and the P99999 that follows from the measured P95.
fn judge_loads(measured: &[(Point, Measured)]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (point, measured) in measured {
        let parameters = &point.parameters;
        let arrivals = parameters.background_bytes_per_sec + parameters.underload_bytes_per_sec;
        let left = (parameters.service_bytes_per_sec - arrivals) as f64 / 1e9;
        let (p95, p99999) = (measured.store_ns.quantile(950_000), measured.store_ns.quantile(P99999));
        let expected = point.bytes as f64 * -(0.05f64).ln() / left;
        let mut compare = |what: &str, by: f64, of: u64, band| {
            rows.push(Row {
                what: format!("{}, {what}", point.label),
                printed: "matches".into(),
                measured: (by / of as f64 - 1.0) * 100.0,
                detail: format!("{} for {}", time(by as u64), time(of)),
                band,
                unit: "%",
                is_reduction: false,
            });
        };
        compare("P95 by equation 1", expected, p95, [-20.0, 20.0]);
        compare("P99999 by P95", p95 as f64 * (1e-5f64).ln() / (0.05f64).ln(), p99999, [-35.0, 35.0]);
    }
    rows
}

/// Figure 9, with the policy that the loop runs on: each loop's tasks in microseconds, as they arrive.
fn judge_example() -> Vec<Row> {
    let mut schedule = LoopSchedule::new(LoopSettings::default(), Instant::ZERO);
    let (mut now, mut ends) = (Instant::ZERO, Vec::new());
    let mut io: Vec<u64> = vec![3, 3, 3];
    let mut background = std::collections::VecDeque::from([3, 2, 2]);
    let mut is_there = true;
    for _ in 0..3 {
        let begun = now;
        let receives = schedule.plan_receive(io.len());
        schedule.on_turn_start(now);
        if receives && std::mem::take(&mut is_there) {
            now = now + Duration::from_micros(5);
            io.extend([3, 3]);
            background.extend([3, 3]);
        }
        io.drain(..).for_each(|us| now = now + Duration::from_micros(us));
        schedule.on_io_end(now);
        while !background.is_empty() && schedule.plan_background(now) {
            let us = background.pop_front().unwrap_or_default();
            let span = Duration::from_micros(us);
            now = now + span;
            schedule.on_background_end(now, span);
        }
        ends.push(now.since(begun));
    }
    let expected = [12.0, 13.0, 8.0];
    let rows = ends.iter().zip(expected).enumerate().map(|(number, (end, expected))| Row {
        what: format!("length of loop {}", number + 1),
        printed: ["12 us", "13.0 us by its rule", "the rest, 8 us"][number].to_owned(),
        measured: end.as_nanos() as f64 / 1000.0,
        detail: String::new(),
        band: [expected, expected],
        unit: "us",
        is_reduction: false,
    });
    rows.collect()
}

fn judge_production_bursts(measured: &[(Point, Measured)]) -> Vec<Row> {
    let pairs = measured.chunks_exact(2).map(|pair| {
        let tail = |measured: &Measured| measured.steady().cluster_ns.quantile(P99999);
        let (measured, detail) = change(tail(&pair[0].1), tail(&pair[1].1));
        let what = format!("{} KiB, P99999 of steady segments", pair[0].0.bytes / KIB);
        Row { what, printed: "-71%".into(), measured, detail, band: [-90.0, -40.0], unit: "%", is_reduction: true }
    });
    pairs.collect()
}

fn judge_production_underload(measured: &[(Point, Measured)]) -> Vec<Row> {
    let pairs = measured.chunks_exact(2).zip(["-14%", "-13%"]).map(|(pair, printed)| {
        let tail = |measured: &Measured| measured.writes().cluster_ns.quantile(P99999);
        let (measured, detail) = change(tail(&pair[0].1), tail(&pair[1].1));
        let what = format!("{}, P99999 of writes", pair[0].0.label);
        Row { what, printed: printed.into(), measured, detail, band: [-40.0, 0.0], unit: "%", is_reduction: true }
    });
    pairs.collect()
}

fn judge_minor_clients(measured: &[(Point, Measured)]) -> Vec<Row> {
    let [(_, calm), (_, one), (_, two)] = measured else { return Vec::new() };
    let tail = |measured: &Measured| measured.steady().cluster_ns.quantile(P99999);
    let row = |what: &str, printed: &str, measured: &Measured, band| Row {
        what: what.to_owned(),
        printed: printed.to_owned(),
        measured: tail(measured) as f64 / tail(calm).max(1) as f64,
        detail: format!("{} to {}", time(tail(calm)), time(tail(measured))),
        band,
        unit: "x",
        is_reduction: false,
    };
    vec![
        row("P99999 of steady segments in a burst, one bucket", "20x", one, [5.0, 60.0]),
        row("the same, two buckets", "", two, [0.5, 15.0]),
    ]
}

fn judge_cap(measured: &[(Point, Measured)]) -> Vec<Row> {
    let [(_, free), (_, capped), (_, two)] = measured else { return Vec::new() };
    let lost = |measured: &Measured| (1.0 - measured.throughput() / free.throughput()) * 100.0;
    let row = |what: &str, printed: &str, measured: &Measured, band| Row {
        what: what.to_owned(),
        printed: printed.to_owned(),
        measured: lost(measured),
        detail: format!("{:.0} to {:.0} MB/s", free.throughput() / 1e6, measured.throughput() / 1e6),
        band,
        unit: "%",
        is_reduction: false,
    };
    vec![
        row("throughput lost to a cap of 60 MBps", "27%", capped, [10.0, 45.0]),
        row("throughput lost to two buckets", "", two, [-1.0, 1.0]),
    ]
}
