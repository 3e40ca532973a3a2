//! What the ways that look at segments make of it, and segments of other sizes.

use super::super::super::Row;
use super::super::printed::*;
use super::super::{Case, Measured, Point};
use super::times::{TIMES_OF_WRITES, Time, observe_latencies, slower};
use super::{COV, Metric, TIMES, Value, change, least, most, observe, value};

type One = (Point, Measured);

/// Points come size by size as segmentation, both ways of migration and DiffForward, for balance and then for times, and
/// replication for both.
pub(in super::super) fn judge_fig17(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    let sizes = || case.measured.chunks_exact(9);
    let others = |nine: &[One], from: usize| -> Vec<One> { [&nine[from..from + 3], &nine[8..]].concat() };
    let balance = |metric: Metric| {
        sizes().map(move |nine| {
            let others = others(nine, 0);
            let of = |one: &One| value(one, metric).measured;
            best(&others, of).map_or(NOTHING, |best| change(best, &nine[3], metric))
        })
    };
    let times = |time: Time| {
        sizes().map(move |nine| {
            let others = others(nine, 4);
            best(&others, |one| time(&one.1.latency)).map_or(NOTHING, |best| slower(best, &nine[7], time))
        })
    };
    most(&mut rows, &FIG17_COV, balance(COV));
    most(&mut rows, &FIG17_TIMES, balance(TIMES));
    most(&mut rows, &FIG17_AVERAGE, times(TIMES_OF_WRITES[0].1));
    most(&mut rows, &FIG17_P99, times(TIMES_OF_WRITES[1].1));
    observe(&mut rows, sizes().flat_map(|nine| nine[..4].iter().chain(&nine[8..])));
    observe_latencies(&mut rows, sizes().flat_map(|nine| &nine[4..]));
    rows
}

const NOTHING: Value = Value { measured: f64::NAN, detail: String::new() };

fn best(others: &[One], of: impl Fn(&One) -> f64) -> Option<&One> {
    others.iter().min_by(|one, other| of(one).total_cmp(&of(other)))
}

/// Points come as segmentation and both ways of migration, for balance and then for times, and replication for both.
pub(in super::super) fn judge_fig5(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    let [segmentation, last, average, slow @ .., replication] = case.measured else { return rows };
    let Some(cut) = slow.first() else { return rows };
    most(&mut rows, &FIG5_COV, [value(segmentation, COV)]);
    least(&mut rows, &FIG5_TIMES, [segmentation, last, average].map(|one| value(one, TIMES)));
    least(&mut rows, &FIG5_MIGRATION, [last, average].map(|one| change(segmentation, one, COV)));
    most(&mut rows, &FIG5_REPLICATION_COV, [change(segmentation, replication, COV)]);
    let [(_, mean), (_, p99)] = TIMES_OF_WRITES;
    least(&mut rows, &FIG5_REPLICATION_AVERAGE, slow.iter().map(|other| slower(other, replication, mean)));
    most(&mut rows, &FIG5_REPLICATION_P99, [slower(cut, replication, p99)]);
    observe(&mut rows, [segmentation, last, average, replication]);
    observe_latencies(&mut rows, slow.iter().chain([replication]));
    rows
}
