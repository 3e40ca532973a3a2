//! Comparisons of what was measured with what the paper printed.

use std::time::Duration;

use base::{Histogram, Instant, KIB};
use policies::loop_schedule::{LoopSchedule, LoopSettings};

use super::super::balance::variation;
use super::super::measured::{Latencies, Measured};
use super::super::world::Point;
use super::super::{Parameters, Row};

const P99: u64 = 990_000;
const P99999: u64 = 999_990;

/// Where latency is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Layer {
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

pub(super) fn judge_bursts(measured: &[(Point, Measured)], layer: Layer, is_small: bool) -> Vec<Row> {
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

pub(super) fn judge_underloaded(measured: &[(Point, Measured)], layer: Layer, is_small: bool) -> Vec<Row> {
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

pub(super) fn judge_stages(measured: &[(Point, Measured)]) -> Vec<Row> {
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

/// Clusters that figure 4 looks at, since where volumes happen to be placed decides, and seconds of each.
const CLUSTERS: u64 = 16;
const SECONDS: usize = 15;

pub(super) fn judge_balance(parameters: &Parameters) -> Vec<Row> {
    let found: Vec<f64> = (1..=CLUSTERS).flat_map(|seed| variation(parameters, SECONDS, seed)).collect();
    let low = found.iter().copied().fold(f64::INFINITY, f64::min);
    let high = found.iter().copied().fold(0.0, f64::max);
    let row = |what: &str, printed: &str, measured, band| Row {
        what: what.to_owned(),
        printed: printed.to_owned(),
        measured,
        detail: format!("{low:.2} to {high:.2} in {SECONDS} seconds of {CLUSTERS} clusters"),
        band,
        unit: "",
        is_reduction: false,
    };
    let mean = found.iter().sum::<f64>() / found.len().max(1) as f64;
    vec![
        row("coefficient of variation of arrivals, mean", "0.12", mean, [0.08, 0.18]),
        row("the same, lowest second", "0.08", low, [0.04, 0.12]),
        row("the same, highest second", "0.18", high, [0.12, 0.27]),
    ]
}

/// Equation 1 with `alpha` = bytes of a request, and the P99999 that follows from the measured P95.
pub(super) fn judge_loads(measured: &[(Point, Measured)]) -> Vec<Row> {
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
pub(super) fn judge_example() -> Vec<Row> {
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

pub(super) fn judge_production_bursts(measured: &[(Point, Measured)]) -> Vec<Row> {
    let pairs = measured.chunks_exact(2).map(|pair| {
        let tail = |measured: &Measured| measured.steady().cluster_ns.quantile(P99999);
        let (measured, detail) = change(tail(&pair[0].1), tail(&pair[1].1));
        let what = format!("{} KiB, P99999 of steady segments", pair[0].0.bytes / KIB);
        Row { what, printed: "-71%".into(), measured, detail, band: [-90.0, -40.0], unit: "%", is_reduction: true }
    });
    pairs.collect()
}

pub(super) fn judge_production_underload(measured: &[(Point, Measured)]) -> Vec<Row> {
    let pairs = measured.chunks_exact(2).zip(["-14%", "-13%"]).map(|(pair, printed)| {
        let tail = |measured: &Measured| measured.writes().cluster_ns.quantile(P99999);
        let (measured, detail) = change(tail(&pair[0].1), tail(&pair[1].1));
        let what = format!("{}, P99999 of writes", pair[0].0.label);
        Row { what, printed: printed.into(), measured, detail, band: [-40.0, 0.0], unit: "%", is_reduction: true }
    });
    pairs.collect()
}

pub(super) fn judge_minor_clients(measured: &[(Point, Measured)]) -> Vec<Row> {
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

pub(super) fn judge_cap(measured: &[(Point, Measured)]) -> Vec<Row> {
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
