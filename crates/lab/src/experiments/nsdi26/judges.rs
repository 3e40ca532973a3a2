//! Comparisons of what was measured with what the paper printed.
//!
//! A number that is printed as "up to" is judged by the best of its points; a range by its ends; a plain one by the point
//! that lies farthest from it, so that no average hides a point. Each point itself is shown as an observation.

use std::collections::VecDeque;
use std::time::Duration;

use base::{Histogram, Instant};
use policies::loop_schedule::{Discipline, LoopSchedule, LoopSettings};

use super::super::row::{Printed, value};
use super::super::{Mechanism, Row};
use super::ask::Shape;
use super::balance::{Placement, variation};
use super::measured::Latencies;
use super::printed::*;
use super::{Case, Measured, Point};

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

/// One value of a figure: what it is at a point.
struct Value {
    label: String,
    measured: f64,
    detail: String,
}

impl Value {
    /// By how many percent `after` is lower, below zero. Where nothing was measured, that is no number, which meets nothing.
    fn change(label: &str, before: u64, after: u64) -> Value {
        let measured = match before.min(after) {
            0 => f64::NAN,
            _ => (after as f64 / before as f64 - 1.0) * 100.0,
        };
        Value { label: label.to_owned(), measured, detail: format!("{} to {}", time(before), time(after)) }
    }

    /// `part` of `whole`, in percent.
    fn share(label: &str, part: u64, whole: u64) -> Value {
        let measured = part as f64 / whole as f64 * 100.0;
        Value { label: label.to_owned(), measured, detail: format!("{} of {}", time(part), time(whole)) }
    }

    fn judged(&self, printed: &'static Printed) -> Row {
        Row::judged(printed, self.measured, format!("{}: {}", self.label, self.detail))
    }

    fn observed(&self, what: &str, unit: &'static str) -> Row {
        Row::observed(format!("{}, {what}", self.label), self.measured, unit, self.detail.clone())
    }
}

fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} us", ns / 1000),
        _ => format!("{} ms", ns / 1_000_000),
    }
}

fn least(values: &[Value]) -> Option<&Value> {
    values.iter().min_by(|one, other| one.measured.total_cmp(&other.measured))
}

fn most(values: &[Value]) -> Option<&Value> {
    values.iter().max_by(|one, other| one.measured.total_cmp(&other.measured))
}

fn farthest(values: &[Value], from: f64) -> Option<&Value> {
    values.iter().max_by(|one, other| (one.measured - from).abs().total_cmp(&(other.measured - from).abs()))
}

fn judged(rows: &mut Vec<Row>, printed: &'static Printed, value: Option<&Value>) {
    rows.extend(value.map(|value| value.judged(printed)));
}

fn observed(rows: &mut Vec<Row>, values: &[Value], what: &str, unit: &'static str) {
    rows.extend(values.iter().map(|value| value.observed(what, unit)));
}

/// One bucket against two, at each mix or size.
struct Bursts {
    p99: Vec<Value>,
    p99999: Vec<Value>,
    /// With one bucket: the proxy layer's share of the tail.
    shares: Vec<Value>,
    /// Hot segments' P99 with two, by that with one.
    hot: Vec<Value>,
    lost: Vec<Value>,
}

impl Bursts {
    fn new(measured: &[(Point, Measured)], layer: Layer) -> Bursts {
        let mut all =
            Bursts { p99: Vec::new(), p99999: Vec::new(), shares: Vec::new(), hot: Vec::new(), lost: Vec::new() };
        for pair in measured.chunks_exact(2) {
            let [(point, one), (_, two)] = pair else { continue };
            let label = &point.label;
            let (before, after) = (one.steady(), two.steady());
            let change = |quantile| {
                Value::change(label, layer.of(&before).quantile(quantile), layer.of(&after).quantile(quantile))
            };
            all.p99.push(change(P99));
            all.p99999.push(change(P99999));
            all.shares.push(Value::share(label, before.proxy_ns.quantile(P99999), before.cluster_ns.quantile(P99999)));
            let hot = |measured: &Measured| measured.hot().cluster_ns.quantile(P99);
            all.hot.push(Value {
                label: label.clone(),
                measured: hot(two) as f64 / hot(one) as f64,
                detail: format!("{} to {}", time(hot(one)), time(hot(two))),
            });
            all.lost.push(Value {
                label: label.clone(),
                measured: (1.0 - two.throughput() / one.throughput()) * 100.0,
                detail: format!("{:.0} to {:.0} MB/s", one.throughput() / 1e6, two.throughput() / 1e6),
            });
        }
        all
    }

    fn observe(&self, rows: &mut Vec<Row>) {
        observed(rows, &self.p99, "P99 of steady segments", "%");
        observed(rows, &self.p99999, "P99999 of steady segments", "%");
        observed(rows, &self.shares, "one bucket: the proxy layer's share of P99999", "%");
        observed(rows, &self.hot, "hot segments' P99, two buckets by one", "x");
        observed(rows, &self.lost, "throughput lost by two buckets", "%");
    }
}

/// Figure 10.
pub(super) fn judge_small_in_proxy(case: &Case) -> Vec<Row> {
    let (bursts, mut rows) = (Bursts::new(case.measured, Layer::Proxy), Vec::new());
    judged(&mut rows, &FIG10_P99, least(&bursts.p99));
    judged(&mut rows, &FIG10_P99999, least(&bursts.p99999));
    judged(&mut rows, &FIG10_HOT, most(&bursts.hot));
    bursts.observe(&mut rows);
    rows
}

/// Figure 13.
pub(super) fn judge_small_in_cluster(case: &Case) -> Vec<Row> {
    let (bursts, mut rows) = (Bursts::new(case.measured, Layer::Cluster), Vec::new());
    judged(&mut rows, &FIG13_P99999, farthest(&bursts.p99999, -85.0));
    judged(&mut rows, &FIG13_SHARE, farthest(&bursts.shares, 98.0));
    bursts.observe(&mut rows);
    rows
}

/// Figure 18.
pub(super) fn judge_sizes_in_proxy(case: &Case) -> Vec<Row> {
    let (bursts, mut rows) = (Bursts::new(case.measured, Layer::Proxy), Vec::new());
    judged(&mut rows, &FIG18_LEAST, most(&bursts.p99999));
    judged(&mut rows, &FIG18_MOST, least(&bursts.p99999));
    if let [small, .., large] = bursts.p99999.as_slice() {
        let detail = format!("{} and {}", value(small.measured, "%"), value(large.measured, "%"));
        rows.push(Row::judged(&FIG18_ORDER, large.measured - small.measured, detail));
    }
    bursts.observe(&mut rows);
    rows
}

/// Figure 20.
pub(super) fn judge_sizes_in_cluster(case: &Case) -> Vec<Row> {
    let (bursts, mut rows) = (Bursts::new(case.measured, Layer::Cluster), Vec::new());
    judged(&mut rows, &FIG20_LEAST, most(&bursts.p99999));
    judged(&mut rows, &FIG20_MOST, least(&bursts.p99999));
    bursts.observe(&mut rows);
    rows
}

/// Figure 14.
pub(super) fn judge_production_bursts(case: &Case) -> Vec<Row> {
    let (bursts, mut rows) = (Bursts::new(case.measured, Layer::Cluster), Vec::new());
    judged(&mut rows, &FIG14, farthest(&bursts.p99999, -71.0));
    bursts.observe(&mut rows);
    rows
}

/// Writes without a burst, at each mix or size: I/O first against one queue; with what can be moved on another thread,
/// I/O first against without ("compared with only employing the thread split design", §5.2).
struct Underloaded {
    by_fifo: Vec<Value>,
    by_split: Vec<Value>,
    waits: Vec<Value>,
}

impl Underloaded {
    fn new(measured: &[(Point, Measured)], layer: Layer) -> Underloaded {
        let tail = |measured: &Measured| layer.of(&measured.writes()).quantile(P99999);
        let mut all = Underloaded { by_fifo: Vec::new(), by_split: Vec::new(), waits: Vec::new() };
        for four in measured.chunks_exact(4) {
            let [(point, fifo), (_, split), (_, priority), (_, both)] = four else { continue };
            all.by_fifo.push(Value::change(&point.label, tail(fifo), tail(priority)));
            all.by_split.push(Value::change(&point.label, tail(split), tail(both)));
            all.waits.push(Value {
                label: point.label.clone(),
                measured: priority.background_wait_ns.max() as f64 / 1e6,
                detail: format!("{} tasks", priority.background_wait_ns.count()),
            });
        }
        all
    }

    fn observe(&self, rows: &mut Vec<Row>) {
        observed(rows, &self.by_fifo, "P99999 of writes, priority against one queue", "%");
        observed(rows, &self.by_split, "P99999 of writes, split threads with priority against without", "%");
        observed(rows, &self.waits, "longest wait of a background task", "ms");
    }
}

/// Figure 11.
pub(super) fn judge_calm_in_cluster(case: &Case) -> Vec<Row> {
    let (calm, mut rows) = (Underloaded::new(case.measured, Layer::Cluster), Vec::new());
    judged(&mut rows, &FIG11, farthest(&calm.by_fifo, -43.0));
    judged(&mut rows, &FIG11_SPLIT, farthest(&calm.by_split, -22.0));
    calm.observe(&mut rows);
    rows
}

/// Figure 12.
pub(super) fn judge_calm_in_proxy(case: &Case) -> Vec<Row> {
    let (calm, mut rows) = (Underloaded::new(case.measured, Layer::Proxy), Vec::new());
    judged(&mut rows, &FIG12, least(&calm.by_fifo));
    judged(&mut rows, &FIG12_SPLIT, least(&calm.by_split));
    calm.observe(&mut rows);
    rows
}

/// Figure 19.
pub(super) fn judge_calm_sizes_in_proxy(case: &Case) -> Vec<Row> {
    let (calm, mut rows) = (Underloaded::new(case.measured, Layer::Proxy), Vec::new());
    judged(&mut rows, &FIG19_SPLIT, least(&calm.by_split));
    calm.observe(&mut rows);
    rows
}

/// Figure 21.
pub(super) fn judge_calm_sizes_in_cluster(case: &Case) -> Vec<Row> {
    let (calm, mut rows) = (Underloaded::new(case.measured, Layer::Cluster), Vec::new());
    judged(&mut rows, &FIG21, least(&calm.by_fifo));
    judged(&mut rows, &FIG21_SPLIT, least(&calm.by_split));
    calm.observe(&mut rows);
    rows
}

/// Figure 15.
pub(super) fn judge_production_calm(case: &Case) -> Vec<Row> {
    let tail = |measured: &Measured| measured.writes().cluster_ns.quantile(P99999);
    let pairs = case.measured.chunks_exact(2).zip(&FIG15);
    pairs
        .map(|(pair, printed)| Value::change(&pair[0].0.label, tail(&pair[0].1), tail(&pair[1].1)).judged(printed))
        .collect()
}

/// Figure 3.
pub(super) fn judge_stages(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    for (point, measured) in case.measured {
        let all = measured.writes();
        let tail = |histogram: &Histogram| histogram.quantile(P99999);
        let share = Value::share(&point.label, tail(&all.proxy_ns), tail(&all.cluster_ns));
        let stages = [("receive buffer", &all.receive_ns), ("store", &measured.store_ns)];
        match point.shape {
            Shape::Steady => rows.push(share.judged(&FIG3_CALM)),
            _ => rows.push(share.observed("the proxy layer's share of P99999 of writes: see figure 13", "%")),
        }
        rows.extend(stages.map(|(stage, histogram)| {
            Row::observed(
                format!("{}, P99999 in the {stage}", point.label),
                tail(histogram) as f64 / 1e3,
                "us",
                String::new(),
            )
        }));
    }
    rows
}

/// Clusters that figure 4 looks at, since where volumes happen to be placed decides, and seconds of each.
const CLUSTERS: u64 = 16;
const SECONDS: usize = 15;

/// Figure 4.
pub(super) fn judge_balance(case: &Case) -> Vec<Row> {
    let placement = match case.without {
        Some(Mechanism::Spreading) => Placement::Together,
        _ => Placement::Spread,
    };
    let seeds = (0..CLUSTERS).map(|number| case.seed.wrapping_mul(CLUSTERS).wrapping_add(number));
    let found: Vec<f64> = seeds.flat_map(|seed| variation(case.parameters, placement, SECONDS, seed)).collect();
    let low = found.iter().copied().fold(f64::INFINITY, f64::min);
    let high = found.iter().copied().fold(0.0, f64::max);
    let mean = found.iter().sum::<f64>() / found.len().max(1) as f64;
    let detail = format!("{low:.2} to {high:.2} in {SECONDS} seconds of {CLUSTERS} clusters");
    [(&FIG4_MEAN, mean), (&FIG4_LOW, low), (&FIG4_HIGH, high)]
        .map(|(printed, measured)| Row::judged(printed, measured, detail.clone()))
        .into()
}

/// Figure 6: what the server's estimator said, beside what the drive was doing.
pub(super) fn judge_estimates(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    for (number, of_gc) in case.measured.chunk_by(|one, other| gc_of(&one.0) == gc_of(&other.0)).enumerate().take(2) {
        let (mut left, mut tail) = (Vec::new(), Vec::new());
        for (point, measured) in of_gc {
            let parameters = &point.parameters;
            let truth = (parameters.service_bytes_per_sec - gc_of(point) - parameters.underload_bytes_per_sec) as f64;
            let (available, p99999) = measured.estimates.means();
            left.push(Value {
                label: point.label.clone(),
                measured: (available / truth - 1.0) * 100.0,
                detail: format!("{:.0} for {:.0} MB/s", available / 1e6, truth / 1e6),
            });
            tail.push(Value::change(&point.label, measured.store_ns.quantile(P99999), p99999 as u64));
        }
        judged(&mut rows, &FIG6_LEFT[number], farthest(&left, 0.0));
        judged(&mut rows, &FIG6_TAIL[number], farthest(&tail, 0.0));
        observed(&mut rows, &left, "what is left, by equation 2", "%");
        observed(&mut rows, &tail, "P99999, by P95", "%");
    }
    rows
}

fn gc_of(point: &Point) -> u64 {
    point.disk.as_ref().map_or(0, |disk| disk.gc_bytes_per_sec)
}

/// Figure 9, with the policy that the loop runs on: each loop's tasks in microseconds, as they arrive.
pub(super) fn judge_example(case: &Case) -> Vec<Row> {
    let is_fifo = case.without == Some(Mechanism::Priority);
    let discipline = if is_fifo { Discipline::Fifo } else { Discipline::Priority };
    let mut schedule = LoopSchedule::new(LoopSettings { discipline, ..LoopSettings::default() }, Instant::ZERO);
    let (mut io, mut background): (Vec<u64>, VecDeque<u64>) = (vec![3, 3, 3], VecDeque::from([3, 2, 2]));
    let (mut now, mut is_there, mut ends) = (Instant::ZERO, true, Vec::new());
    for _ in 0..3 {
        let begun = now;
        if is_fifo {
            // One queue for all tasks.
            io.extend(background.drain(..));
        }
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
    let rows = ends.iter().zip(&FIG9);
    rows.map(|(end, printed)| Row::judged(printed, end.as_nanos() as f64 / 1000.0, String::new())).collect()
}

/// RQ2.
pub(super) fn judge_minor_clients(case: &Case) -> Vec<Row> {
    let [(_, calm), (_, one), (_, two)] = case.measured else { return Vec::new() };
    let tail = |measured: &Measured| measured.steady().cluster_ns.quantile(P99999);
    let times = |label: &str, measured: &Measured| Value {
        label: label.to_owned(),
        measured: tail(measured) as f64 / tail(calm) as f64,
        detail: format!("{} to {}", time(tail(calm)), time(tail(measured))),
    };
    vec![times("one bucket", one).judged(&RQ2), times("two buckets", two).observed("the same", "x")]
}

/// RQ3.
pub(super) fn judge_cap(case: &Case) -> Vec<Row> {
    let [(_, free), (_, capped), (_, two)] = case.measured else { return Vec::new() };
    let lost = |label: &str, measured: &Measured| Value {
        label: label.to_owned(),
        measured: (1.0 - measured.throughput() / free.throughput()) * 100.0,
        detail: format!("{:.0} to {:.0} MB/s", free.throughput() / 1e6, measured.throughput() / 1e6),
    };
    vec![lost("cap", capped).judged(&RQ3), lost("two buckets", two).observed("throughput lost", "%")]
}
