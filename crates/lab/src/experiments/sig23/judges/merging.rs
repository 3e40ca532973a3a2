//! What is in logs, and what it costs to bring it home.

use base::GIB;

use super::super::super::Row;
use super::super::printed::*;
use super::super::{Case, Measured};
use super::Value;
use super::times::{TIMES_OF_WRITES, observe_latencies, slower};

/// The mean of a part of all seconds, in bytes.
fn mean(seconds: &[u64]) -> f64 {
    seconds.iter().sum::<u64>() as f64 / seconds.len() as f64
}

pub(in super::super) fn judge_fig20b(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    let servers = case.parameters.servers as f64;
    for (point, Measured { latency, .. }) in case.measured {
        let each: Vec<f64> = latency.waiting.chunks(latency.waiting.len().div_ceil(4).max(1)).map(mean).collect();
        let in_gib = |bytes: f64| bytes / servers / GIB as f64;
        let quarters: Vec<String> = each.iter().map(|bytes| format!("{:.3}", in_gib(*bytes))).collect();
        let detail =
            format!("{}: quarters of {} seconds {} GiB", point.name(), latency.waiting.len(), quarters.join(", "));
        let most = latency.waiting.iter().max().map_or(f64::NAN, |bytes| in_gib(*bytes as f64));
        let growth = match each[..] {
            [_, second, _, last] => last / second,
            _ => f64::NAN,
        };
        rows.push(Row::judged(&FIG20B_MOST, most, detail.clone()));
        rows.push(Row::judged(&FIG20B_GROWTH, growth, detail));
    }
    observe_latencies(&mut rows, case.measured);
    rows
}

pub(in super::super) fn judge_fig20c(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    for (point, Measured { latency, .. }) in case.measured {
        let mut means: Vec<f64> = latency.entries.iter().map(|(mean, _)| *mean).collect();
        let mut most: Vec<u64> = latency.entries.iter().map(|(_, most)| *most).collect();
        means.sort_by(f64::total_cmp);
        most.sort_unstable();
        let nine_in_ten = means.len() * 9 / 10;
        let detail = format!("{}: of {} volumes", point.name(), means.len());
        let [of_most, largest] = [means.get(nine_in_ten), means.last()].map(|mean| mean.copied().unwrap_or(f64::NAN));
        rows.push(Row::judged(&FIG20C_AVERAGE, of_most, detail.clone()));
        rows.push(Row::judged(&FIG20C_LARGEST, largest, detail));
        for (what, most) in [("90% of volumes below", most.get(nine_in_ten)), ("largest volume", most.last())] {
            let most = most.map_or(f64::NAN, |most| *most as f64);
            rows.push(Row::observed(format!("{}, entries at most, {what}", point.name()), most, "", String::new()));
        }
    }
    rows
}

/// Points come as none, prioritized, 1 MiB at once, and all at once.
pub(in super::super) fn judge_fig20d(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    let [(_, average), _] = TIMES_OF_WRITES;
    for four in case.measured.chunks_exact(4) {
        for (printed, before, after) in [(&FIG20D_PRIORITIZED, 0, 1), (&FIG20D_LIMITED, 1, 2), (&FIG20D_AT_ONCE, 2, 3)]
        {
            let Value { measured, detail } = slower(&four[before], &four[after], average);
            rows.push(Row::judged(printed, measured, detail));
        }
        for (which, time) in TIMES_OF_WRITES {
            for after in &four[1..] {
                let Value { measured, detail } = slower(&four[0], after, time);
                rows.push(Row::observed(
                    format!("{which} against no merging, {}", after.0.name()),
                    measured,
                    "%",
                    detail,
                ));
            }
        }
    }
    observe_latencies(&mut rows, case.measured);
    rows
}
