//! Comparisons of what was measured with what the paper printed. Every point is shown as an observation, too.
//!
//! Here those about balance and detection; `times.rs` has how long writes take, `sizes.rs` segments of other
//! sizes, `merging.rs` what is in logs, `settings.rs` what Levee adds.

mod merging;
mod settings;
mod sizes;
mod times;

pub(super) use self::merging::*;
pub(super) use self::settings::*;
pub(super) use self::sizes::*;
pub(super) use self::times::*;

use super::super::Row;
use super::super::row::Printed;
use super::balance::Balance;
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

/// The least of several values, of what should be large.
fn least(rows: &mut Vec<Row>, printed: &'static Printed, values: impl IntoIterator<Item = Value>) {
    let found = values.into_iter().min_by(|one, other| one.measured.total_cmp(&other.measured));
    rows.extend(found.map(|value| Row::judged(printed, value.measured, value.detail)));
}

/// The most of several values, of what should be small.
fn most(rows: &mut Vec<Row>, printed: &'static Printed, values: impl IntoIterator<Item = Value>) {
    let found = values.into_iter().max_by(|one, other| one.measured.total_cmp(&other.measured));
    rows.extend(found.map(|value| Row::judged(printed, value.measured, value.detail)));
}

fn observe<'a>(rows: &mut Vec<Row>, points: impl IntoIterator<Item = &'a (Point, Measured)>) {
    for one in points {
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
    observe(&mut rows, case.measured);
    rows
}

/// Points come as in figure 13.
pub(super) fn judge_fig12(case: &Case) -> Vec<Row> {
    const RANGE: Metric = |balance| balance.range[0] - balance.range[1];
    const PEAK: Metric = |balance| balance.peak;
    let mut rows = Vec::new();
    let days = || case.measured.chunks_exact(6);
    let migrations = || days().flat_map(|six| [(six, 1), (six, 2)]);
    most(&mut rows, &FIG12_RANGE, days().map(|six| change(&six[0], &six[3], RANGE)));
    most(&mut rows, &FIG12_MIGRATION, migrations().map(|(six, way)| change(&six[way], &six[3], RANGE)));
    most(&mut rows, &FIG12_REPLICATION, days().map(|six| change(&six[0], &six[5], RANGE)));
    most(&mut rows, &FIG12_PEAK, days().map(|six| change(&six[0], &six[3], PEAK)));
    let parts: [(&str, Metric); 3] =
        [("most", |balance| balance.range[0]), ("least", |balance| balance.range[1]), ("highest", PEAK)];
    for one in case.measured {
        for (part, metric) in parts {
            let Value { measured, detail } = value(one, metric);
            rows.push(Row::observed(format!("{}, {part} by the mean", one.0.name()), measured, "", detail));
        }
    }
    rows
}

/// Points come as segmentation, both ways of migration, DiffForward with both thresholds, and replication.
pub(super) fn judge_fig13(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    let days = || case.measured.chunks_exact(6);
    let migrations = || days().flat_map(|six| [(six, 1), (six, 2)]);
    farthest(&mut rows, &FIG13_COV, -66.0, days().map(|six| change(&six[0], &six[3], COV)));
    farthest(&mut rows, &FIG13_TIMES, -82.0, days().map(|six| change(&six[0], &six[3], TIMES)));
    farthest(&mut rows, &FIG13_PROTOTYPE, -40.0, days().map(|six| change(&six[0], &six[4], COV)));
    farthest(&mut rows, &FIG13_MIGRATION, -70.0, migrations().map(|(six, way)| change(&six[way], &six[3], COV)));
    farthest(&mut rows, &FIG13_REPLICATION, -24.0, days().map(|six| change(&six[5], &six[3], COV)));
    let worse = migrations().map(|(six, way)| change(&six[0], &six[way], COV));
    least(&mut rows, &FIG13_WORSE, worse);
    observe(&mut rows, case.measured);
    rows
}

/// Points come as long intervals and short ones.
pub(super) fn judge_predictions(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    if let [(_, long), (_, short)] = case.measured {
        let [long, short] = [long, short].map(|measured| measured.errors.of_volumes * 100.0);
        rows.push(Row::judged(&PREDICTIONS_LONG, long, String::new()));
        rows.push(Row::judged(&PREDICTIONS_SHORT, short / long, format!("{short:.0}%, {long:.0}%")));
    }
    for (point, Measured { errors, .. }) in case.measured {
        for (what, error) in [("mean of volumes", errors.of_volumes), ("of all bytes", errors.of_bytes)] {
            rows.push(Row::observed(format!("{}, {what}", point.name()), error * 100.0, "%", String::new()));
        }
    }
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
