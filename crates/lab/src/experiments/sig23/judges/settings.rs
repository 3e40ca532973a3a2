//! What the paper leaves for later (§4), and Levee has: TH that tunes itself, and finer categories.

use super::super::super::Row;
use super::super::super::row::Printed;
use super::super::printed::*;
use super::super::{Case, Measured, Point};
use super::times::{TIMES_OF_WRITES, observe_latencies, slower};
use super::{COV, Value, change, most, observe};

type Compare = fn(&(Point, Measured), &(Point, Measured)) -> Value;
const COMPARED: [Compare; 3] = [
    |before, after| change(before, after, COV),
    |before, after| slower(before, after, TIMES_OF_WRITES[0].1),
    |before, after| slower(before, after, TIMES_OF_WRITES[1].1),
];

/// Points come as each TH, then auto, and then auto without each of three of its parts, workload by workload.
pub(in super::super) fn judge_auto(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    let fixed = case.parameters.betas.len();
    let workloads = || case.measured.chunks_exact(fixed + 4).map(|points| &points[..=fixed]);
    let printed: [&'static Printed; 3] = [&AUTO_COV, &AUTO_AVERAGE, &AUTO_P99];
    for (printed, compare) in printed.into_iter().zip(COMPARED) {
        // Against the best one it is worst.
        let worst = |points: &[(Point, Measured)]| {
            let (auto, fixed) = points.split_last()?;
            let each = fixed.iter().map(|one| compare(one, auto));
            each.max_by(|one, other| one.measured.total_cmp(&other.measured))
        };
        most(&mut rows, printed, workloads().filter_map(worst));
    }
    observe(&mut rows, case.measured);
    observe_latencies(&mut rows, case.measured);
    rows
}

/// Points come as no mild bursts and then each percentage, workload by workload.
pub(in super::super) fn judge_categories(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    let percentages = case.parameters.mild_percents.len();
    let printed: [&'static Printed; 2] = [&CATEGORIES_AVERAGE, &CATEGORIES_P99];
    for (printed, compare) in printed.into_iter().zip(&COMPARED[1..]) {
        let workloads = || case.measured.chunks_exact(percentages + 1);
        let by_more = |one: &Value, other: &Value| one.measured.total_cmp(&other.measured);
        let of = |at: usize| workloads().map(|points| compare(&points[0], &points[at])).max_by(by_more);
        let best = (1..=percentages).filter_map(of).min_by(by_more);
        rows.extend(best.map(|best| Row::judged(printed, best.measured, best.detail)));
    }
    observe(&mut rows, case.measured);
    observe_latencies(&mut rows, case.measured);
    rows
}
