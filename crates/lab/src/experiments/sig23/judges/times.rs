//! How long writes take.

use base::Histogram;

use super::super::super::Row;
use super::super::super::row::Printed;
use super::super::latency::Latency;
use super::super::printed::*;
use super::super::{Case, Measured, Point};
use super::{Value, farthest, least, most};

/// What a write takes, in milliseconds.
pub(super) type Time = fn(&Latency) -> f64;
pub(super) const TIMES_OF_WRITES: [(&str, Time); 2] =
    [("average", |latency| average(&latency.writes)), ("P99", |latency| p99(&latency.writes))];

fn average(times: &Histogram) -> f64 {
    times.sum() as f64 / times.count().max(1) as f64 / 1e6
}

fn p99(times: &Histogram) -> f64 {
    times.estimate(990_000) / 1e6
}

/// By how many percent a time of writes is more than before.
pub(super) fn slower(before: &(Point, Measured), after: &(Point, Measured), time: Time) -> Value {
    let [before, after] = [before, after].map(|(point, measured)| (point.name(), time(&measured.latency)));
    let measured = (after.1 / before.1 - 1.0) * 100.0;
    Value { measured, detail: format!("{}: {:.2} ms, {}: {:.2} ms", before.0, before.1, after.0, after.1) }
}

pub(super) fn observe_latencies<'a>(rows: &mut Vec<Row>, points: impl IntoIterator<Item = &'a (Point, Measured)>) {
    for (point, Measured { latency, .. }) in points {
        let [written, logged, merged] = latency.bytes.map(|bytes| bytes as f64 / (1 << 20) as f64);
        let most = latency.waiting.iter().max().map_or(0.0, |bytes| *bytes as f64 / (1 << 20) as f64);
        let detail = format!(
            "{} writes; {written:.0} MiB seen, {logged:.0} MiB logged, {merged:.0} MiB came home, at most {most:.1} MiB waited",
            latency.writes.count(),
        );
        for (name, time) in TIMES_OF_WRITES {
            rows.push(Row::observed(format!("{}, {name}", point.name()), time(latency), "ms", detail.clone()));
        }
    }
}

/// Points come as segmentation, DiffForward, both ways of migration, and replication.
pub(in super::super) fn judge_fig14(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    let days = || case.measured.chunks_exact(5);
    let migrations = || days().flat_map(|five| [(five, 2), (five, 3)]);
    let [(_, average), (_, p99)] = TIMES_OF_WRITES;
    for (printed, from, time) in [(&FIG14_AVERAGE, -47.0, average), (&FIG14_P99, -69.0, p99)] {
        farthest(&mut rows, printed, from, days().map(|five| slower(&five[0], &five[1], time)));
    }
    for (printed, from, time) in [(&FIG14_MIGRATION_AVERAGE, -54.0, average), (&FIG14_MIGRATION_P99, -71.5, p99)] {
        farthest(&mut rows, printed, from, migrations().map(|(five, way)| slower(&five[way], &five[1], time)));
    }
    least(&mut rows, &FIG14_WORSE, migrations().map(|(five, way)| slower(&five[0], &five[way], average)));
    let others = days().flat_map(|five| [(five, 0), (five, 2), (five, 3)]);
    least(&mut rows, &FIG14_REPLICATION, others.map(|(five, other)| slower(&five[other], &five[4], average)));
    observe_latencies(&mut rows, case.measured);
    rows
}

/// Points come as segmentation, both ways of migration, DiffForward and replication, with one card and then with two.
pub(in super::super) fn judge_fig15(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    let of_reads: [(&str, Time); 2] =
        [("average of reads", |latency| average(&latency.reads)), ("P99 of reads", |latency| p99(&latency.reads))];
    for (printed, (_, time)) in [(&FIG15_AVERAGE, of_reads[0]), (&FIG15_P99, of_reads[1])] {
        let against =
            case.measured.chunks_exact(10).flat_map(|day| [0, 1, 2, 4].map(|other| slower(&day[other], &day[3], time)));
        most(&mut rows, printed, against);
    }
    for (point, Measured { latency, .. }) in case.measured {
        for (name, time) in of_reads {
            let detail = format!("{} reads", latency.reads.count());
            rows.push(Row::observed(format!("{}, {name}", point.name()), time(latency), "ms", detail));
        }
    }
    observe_latencies(&mut rows, case.measured);
    rows
}

/// Points come as segmentation and DiffForward, load by load.
pub(in super::super) fn judge_fig16(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    for (printed, (_, time)) in [(&FIG16_AVERAGE, TIMES_OF_WRITES[0]), (&FIG16_P99, TIMES_OF_WRITES[1])] {
        most(&mut rows, printed, case.measured.chunks_exact(2).map(|pair| slower(&pair[0], &pair[1], time)));
    }
    observe_latencies(&mut rows, case.measured);
    rows
}

/// Points come as DiffForward with each TH, with much of the cards used and then with little.
pub(in super::super) fn judge_fig18(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    let (_, time) = TIMES_OF_WRITES[0];
    let betas = &case.parameters.betas;
    for (at, points) in case.measured.chunks_exact(betas.len()).enumerate() {
        let averages: Vec<f64> = points.iter().map(|(_, measured)| time(&measured.latency)).collect();
        // Of those that are as good the first one: if nothing is found all are, and that is an end.
        let by_time = |one: &usize, other: &usize| averages[*one].total_cmp(&averages[*other]);
        let (Some(best), Some(worst)) = ((0..betas.len()).min_by(by_time), (0..betas.len()).max_by(by_time)) else {
            continue;
        };
        let over_best = |average: f64| (average / averages[best] - 1.0) * 100.0;
        let named: Vec<String> = betas.iter().zip(&averages).map(|(beta, ms)| format!("{beta}: {ms:.2} ms")).collect();
        let detail = named.join(", ");
        match at {
            0 => {
                let ends = averages[0].min(averages[betas.len() - 1]);
                rows.push(Row::judged(&FIG18_BEST, betas[best], detail.clone()));
                rows.push(Row::judged(&FIG18_ENDS, over_best(ends), detail));
            }
            _ => rows.push(Row::judged(&FIG18_FLAT, over_best(averages[worst]), detail)),
        }
    }
    observe_latencies(&mut rows, case.measured);
    rows
}

/// Points come as segmentation and DiffForward.
pub(in super::super) fn judge_fig19(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    let parts: [(&'static Printed, Time); 4] = [
        (&FIG19_WAITING_AVERAGE, |latency| average(&latency.parts[0])),
        (&FIG19_WAITING_P99, |latency| p99(&latency.parts[0])),
        (&FIG19_PASSING_AVERAGE, |latency| average(&latency.parts[1])),
        (&FIG19_PASSING_P99, |latency| p99(&latency.parts[1])),
    ];
    for pair in case.measured.chunks_exact(2) {
        for (printed, time) in parts {
            let Value { measured, detail } = slower(&pair[0], &pair[1], time);
            rows.push(Row::judged(printed, measured, detail));
        }
        for (point, Measured { latency, .. }) in pair {
            let [all, waiting, passing] = [&latency.writes, &latency.parts[0], &latency.parts[1]].map(average);
            let detail = format!("{all:.2} ms, of which {waiting:.2} ms waiting and {passing:.2} ms transmission");
            rows.push(Row::observed(
                format!("{}, what is behind cards", point.name()),
                all - waiting - passing,
                "ms",
                detail,
            ));
        }
    }
    observe_latencies(&mut rows, case.measured);
    rows
}

/// Points come as more and more is used.
pub(in super::super) fn judge_fig2d(case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    let by = |before: &(Point, Measured), after: &(Point, Measured)| {
        let Value { measured, detail } = slower(before, after, TIMES_OF_WRITES[1].1);
        Value { measured: measured / 100.0 + 1.0, detail }
    };
    if let [first, .., last] = case.measured {
        most(&mut rows, &FIG2D_TIMES, [by(first, last)]);
    }
    least(&mut rows, &FIG2D_STEPS, case.measured.windows(2).map(|two| by(&two[0], &two[1])));
    observe_latencies(&mut rows, case.measured);
    rows
}
