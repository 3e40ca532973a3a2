//! Comparisons of what was measured with what the paper printed. Every point is shown as an observation, too.

use super::super::Row;
use super::super::row::Printed;
use super::balance::Balance;
use super::latency::Latency;
use super::printed::*;
use super::{Case, Measured, Point};

/// One of the two numbers that say how even servers are.
type Metric = fn(&Balance) -> f64;
const METRICS: [(&str, Metric); 2] = [("CoV", |balance| balance.cov), ("most by least", |balance| balance.max_by_min)];
const COV: Metric = METRICS[0].1;
const TIMES: Metric = METRICS[1].1;

/// One value of a figure.
struct Value {
    measured: f64,
    detail: String,
}

/// The mean of all placements, and in words also from the tenth to the ninetieth of a hundred.
fn value((point, measured): &(Point, Measured), metric: Metric) -> Value {
    let mut all: Vec<f64> = measured.balances.iter().map(metric).collect();
    all.sort_by(f64::total_cmp);
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    let at =
        |share: f64| all.get(((all.len().max(1) - 1) as f64 * share).round() as usize).copied().unwrap_or(f64::NAN);
    let detail = format!("{}: {mean:.2} [{:.2} to {:.2}]", point.name(), at(0.1), at(0.9));
    Value { measured: mean, detail }
}

/// By how many percent it is more than before.
fn change(before: &(Point, Measured), after: &(Point, Measured), metric: Metric) -> Value {
    let [before, after] = [before, after].map(|one| value(one, metric));
    let measured = (after.measured / before.measured - 1.0) * 100.0;
    Value { measured, detail: format!("{}, {}", before.detail, after.detail) }
}

/// That of several values which is the farthest from what is printed. What is no number is farther than all.
fn farthest(rows: &mut Vec<Row>, printed: &'static Printed, from: f64, values: impl IntoIterator<Item = Value>) {
    let distance = |value: &Value| (value.measured - from).abs();
    let found = values.into_iter().max_by(|one, other| distance(one).total_cmp(&distance(other)));
    rows.extend(found.map(|value| Row::judged(printed, value.measured, value.detail)));
}

fn observe(rows: &mut Vec<Row>, case: &Case) {
    for one in case.measured {
        let each = METRICS.map(|(name, metric)| (name, value(one, metric)));
        rows.extend(
            each.map(|(name, value)| {
                Row::observed(format!("{}, {name}", one.0.name()), value.measured, "", value.detail)
            }),
        );
    }
}

/// Points come as short bins and long ones.
pub(super) fn judge_fig2a(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    let numbers = [
        (&FIG2A_COV, 1.01, 0, COV),
        (&FIG2A_TIMES, 50.5, 0, TIMES),
        (&FIG2A_LONG_COV, 0.38, 1, COV),
        (&FIG2A_LONG_TIMES, 2.8, 1, TIMES),
    ];
    for (printed, from, number, metric) in numbers {
        farthest(&mut rows, printed, from, case.measured.chunks_exact(2).map(|two| value(&two[number], metric)));
    }
    observe(&mut rows, case);
    rows
}

/// Points come as segmentation, both ways of migration, and DiffForward with both thresholds.
pub(super) fn judge_fig13(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    let days = || case.measured.chunks_exact(5);
    let migrations = || days().flat_map(|five| [(five, 1), (five, 2)]);
    farthest(&mut rows, &FIG13_COV, -66.0, days().map(|five| change(&five[0], &five[3], COV)));
    farthest(&mut rows, &FIG13_TIMES, -82.0, days().map(|five| change(&five[0], &five[3], TIMES)));
    farthest(&mut rows, &FIG13_PROTOTYPE, -40.0, days().map(|five| change(&five[0], &five[4], COV)));
    farthest(&mut rows, &FIG13_MIGRATION, -70.0, migrations().map(|(five, way)| change(&five[way], &five[3], COV)));
    let worse = migrations().map(|(five, way)| change(&five[0], &five[way], COV));
    let least = worse.min_by(|one, other| one.measured.total_cmp(&other.measured));
    rows.extend(least.map(|value| Row::judged(&FIG13_WORSE, value.measured, value.detail)));
    observe(&mut rows, case);
    rows
}

/// What a write takes, in milliseconds.
type Time = fn(&Latency) -> f64;
const TIMES_OF_WRITES: [(&str, Time); 2] = [
    ("average", |latency| latency.writes.sum() as f64 / latency.writes.count().max(1) as f64 / 1e6),
    ("P99", |latency| latency.writes.quantile(990_000) as f64 / 1e6),
];

/// By how many percent a time of writes is more than with segmentation, which comes first.
fn slower(pair: &[(Point, Measured)], time: Time) -> Value {
    let [before, after] = [0, 1].map(|at| (pair[at].0.name(), time(&pair[at].1.latency)));
    let measured = (after.1 / before.1 - 1.0) * 100.0;
    Value { measured, detail: format!("{}: {:.2} ms, {}: {:.2} ms", before.0, before.1, after.0, after.1) }
}

fn observe_latencies(rows: &mut Vec<Row>, case: &Case) {
    for (point, Measured { latency, .. }) in case.measured {
        let [written, logged, merged] = latency.bytes.map(|bytes| bytes as f64 / (1 << 20) as f64);
        let detail = format!(
            "{} writes; {written:.0} MiB seen, {logged:.0} MiB logged, {merged:.0} MiB came home, at most {:.1} MiB waited",
            latency.writes.count(),
            latency.waiting_max as f64 / (1 << 20) as f64
        );
        for (name, time) in TIMES_OF_WRITES {
            rows.push(Row::observed(format!("{}, {name}", point.name()), time(latency), "ms", detail.clone()));
        }
    }
}

/// Points come as segmentation and DiffForward.
pub(super) fn judge_fig14(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    let pairs = || case.measured.chunks_exact(2);
    for (printed, from, (_, time)) in
        [(&FIG14_AVERAGE, -47.0, TIMES_OF_WRITES[0]), (&FIG14_P99, -69.0, TIMES_OF_WRITES[1])]
    {
        farthest(&mut rows, printed, from, pairs().map(|pair| slower(pair, time)));
    }
    observe_latencies(&mut rows, case);
    rows
}

/// The same, load by load.
pub(super) fn judge_fig16(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    for (printed, (_, time)) in [(&FIG16_AVERAGE, TIMES_OF_WRITES[0]), (&FIG16_P99, TIMES_OF_WRITES[1])] {
        let least = case.measured.chunks_exact(2).map(|pair| slower(pair, time));
        let least = least.max_by(|one, other| one.measured.total_cmp(&other.measured));
        rows.extend(least.map(|value| Row::judged(printed, value.measured, value.detail)));
    }
    observe_latencies(&mut rows, case);
    rows
}

/// Points come as the prototype's threshold first.
pub(super) fn judge_fig20a(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    let of = |(point, measured): &(Point, Measured), is_recall: bool| {
        let hits = measured.detection.intervals;
        let (measured, all) = if is_recall { (hits.recall(), hits.there) } else { (hits.precision(), hits.found) };
        Value { measured, detail: format!("{}: {} of {all} intervals", point.name(), hits.hit) }
    };
    let days = || case.measured.chunks_exact(3);
    farthest(&mut rows, &FIG20A_RECALL, 0.8, days().map(|three| of(&three[0], true)));
    farthest(&mut rows, &FIG20A_PRECISION, 0.92, days().map(|three| of(&three[0], false)));
    for (point, measured) in case.measured {
        for (by, hits) in [("intervals", measured.detection.intervals), ("bytes", measured.detection.bytes)] {
            let detail = format!("{} there, {} found, {} both", hits.there, hits.found, hits.hit);
            for (what, value) in [("recall", hits.recall()), ("precision", hits.precision())] {
                rows.push(Row::observed(format!("{}, {what} by {by}", point.name()), value, "", detail.clone()));
            }
        }
    }
    rows
}
